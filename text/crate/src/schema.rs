//! Reads a JSON schema (draft 2020-12) before llguidance does: refuses every keyword that llguidance does not enforce,
//! by its JSON pointer, and rewrites what it would read otherwise. llguidance ignores unknown keywords.

use crate::json::step;
use crate::pattern;
use serde_json::{json, Map, Value};
use std::collections::BTreeMap;

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";
/// Drafts whose keywords, among those that are supported, mean the same or less than in 2020-12. So a value that fits
/// a schema as read here fits it in its own draft too.
const OLDER_DRAFTS: [&str; 3] = [
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
];
const ANNOTATIONS: [&str; 8] =
    ["title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"];
/// Keywords of the draft that are refused.
const UNSUPPORTED: [&str; 25] = [
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas",
    "dependencies", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "$anchor", "$dynamicRef",
    "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary", "contentEncoding", "contentMediaType",
    "contentSchema", "additionalItems", "id", "x-guidance",
];
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
/// Formats that llguidance enforces as they are.
const FORMATS: [&str; 7] = ["duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
const DATE: &str = concat!(
    r"(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    r"|(?:(?:[0-9][1-9]|[1-9]0)(?:0[48]|[2468][048]|[13579][26])|00(?:0[48]|[2468][048]|[13579][26])",
    r"|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
);
const TIME: &str = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// The lexer has a state for each remainder, so the least common multiple of all multipleOf is bounded.
const MAX_MULTIPLE: u64 = 10_000;
/// llguidance's work grows with the square of an object's properties: half a second for this many.
const MAX_PROPERTIES: usize = 2000;
/// Whole numbers up to here are exact in a double.
const MAX_EXACT: f64 = 9007199254740992.0;

pub struct Reader<'a> {
    root: &'a Value,
    prefix: String, // the root's pointer, for errors
    refs: BTreeMap<String, usize>,
    todo: Vec<String>,
    is_older: bool, // $schema names an older draft
    multiple: (u64, u32), // of all multipleOf: a whole number, and after how many of its digits from the right the point is
}

type Outcome<T> = Result<T, String>;

fn fail<T>(at: &str, what: impl std::fmt::Display) -> Outcome<T> {
    Err(format!("{}: {what}", if at.is_empty() { "/" } else { at }))
}

fn integer(value: &Value, at: &str) -> Outcome<u64> {
    let exact = |f: f64| f >= 0.0 && f.fract() == 0.0 && f <= MAX_EXACT;
    match value.as_f64() {
        Some(f) if exact(f) => Ok(f as u64),
        _ => fail(at, format_args!("{value} is not a whole number from 0 on")),
    }
}

fn number(value: &Value, at: &str) -> Outcome<f64> {
    match value.as_f64() {
        None => fail(at, format_args!("{value} is not a number")),
        Some(f) if !f.is_finite() || (f.fract() == 0.0 && f.abs() >= MAX_EXACT) => {
            fail(at, format_args!("{value} is not below 2^53, up to which whole numbers are exact"))
        }
        Some(f) => Ok(f),
    }
}

fn map<'v>(value: &'v Value, at: &str) -> Outcome<&'v Map<String, Value>> {
    value.as_object().map_or_else(|| fail(at, "must be an object"), Ok)
}

fn list<'v>(value: &'v Value, at: &str) -> Outcome<&'v Vec<Value>> {
    match value.as_array() {
        Some(list) if !list.is_empty() => Ok(list),
        _ => fail(at, "must be an array with at least 1 element"),
    }
}

fn string<'v>(value: &'v Value, at: &str) -> Outcome<&'v str> {
    value.as_str().map_or_else(|| fail(at, "must be a string"), Ok)
}

/// A value of const or enum.
fn literal(value: &Value, at: &str) -> Outcome<()> {
    match value {
        Value::Number(_) => number(value, at).map(|_| ()),
        Value::String(text) => {
            let bad = |c: &char| (*c < ' ' && !"\n\r\t\x08\x0C".contains(*c)) || *c == '\x7F';
            match text.chars().find(bad) {
                Some(c) => fail(at, format_args!("the control character U+{:04X} is not supported", c as u32)),
                None => Ok(()),
            }
        }
        Value::Array(items) => items.iter().enumerate().try_for_each(|(i, v)| literal(v, &step(at, &i.to_string()))),
        Value::Object(items) => items.iter().try_for_each(|(k, v)| literal(v, &step(at, k))),
        _ => Ok(()),
    }
}

fn types(value: &Value, at: &str) -> Outcome<()> {
    let known = |v: &Value, at: &str| match v.as_str() {
        Some(name) if TYPES.contains(&name) => Ok(()),
        _ => fail(at, format_args!("{v} is not a type")),
    };
    if let Value::Array(_) = value {
        return list(value, at)?.iter().enumerate().try_for_each(|(i, v)| known(v, &step(at, &i.to_string())));
    }
    known(value, at)
}

fn regex(text: &str, at: &str) -> Outcome<String> {
    pattern::translate(text).or_else(|e| fail(at, format_args!("pattern {text:?}: {e}")))
}

impl<'a> Reader<'a> {
    pub fn new(root: &'a Value, prefix: &str) -> Self {
        let draft = root.get("$schema").and_then(Value::as_str).unwrap_or(DRAFT).trim_end_matches('#');
        let is_older = OLDER_DRAFTS.contains(&draft);
        Reader { root, prefix: prefix.to_string(), refs: BTreeMap::new(), todo: vec![], is_older, multiple: (1, 0) }
    }

    /// The schema for llguidance.
    pub fn read(mut self) -> Outcome<Value> {
        let prefix = self.prefix.clone();
        let mut root = self.schema(self.root, &prefix, true)?;
        if root == Value::Bool(false) {
            return fail(&prefix, "no value matches false");
        }
        if root == Value::Bool(true) {
            root = json!({});
        }
        let mut defs = Map::new();
        while let Some(pointer) = self.todo.pop() {
            let name = format!("r{}", self.refs[&pointer]);
            let Some(target) = self.root.pointer(&pointer) else {
                return fail(&prefix, format_args!("$ref \"#{pointer}\" points to nothing"));
            };
            let schema = self.schema(target, &format!("{prefix}{pointer}"), pointer.is_empty())?;
            defs.insert(name, schema);
        }
        if !defs.is_empty() {
            root.as_object_mut().unwrap().insert("$defs".to_string(), Value::Object(defs));
        }
        Ok(root)
    }

    fn schema(&mut self, value: &Value, at: &str, is_root: bool) -> Outcome<Value> {
        let Some(object) = value.as_object() else {
            return if value.is_boolean() { Ok(value.clone()) } else { fail(at, "a schema is an object, true or false") };
        };
        let mut out = Map::new();
        for (key, value) in object {
            self.keyword(key, value, &step(at, key), is_root, &mut out)?;
        }
        check_counts(object, at)?;
        // A format says nothing of other types than strings, and nor does a pattern.
        if let Some(pattern) = object.get("format").and_then(Value::as_str).and_then(own_format) {
            let all = out.entry("allOf").or_insert_with(|| json!([]));
            all.as_array_mut().unwrap().push(json!({ "pattern": pattern }));
        }
        // llguidance must see these together, whatever stands between them.
        if out.contains_key("patternProperties") {
            for key in ["const", "enum", "allOf", "anyOf", "oneOf", "$ref"] {
                if let Some(value) = out.shift_remove(key) {
                    out.insert(key.to_string(), value);
                }
            }
        }
        Ok(Value::Object(out))
    }

    fn keyword(&mut self, key: &str, value: &Value, at: &str, is_root: bool, out: &mut Map<String, Value>) -> Outcome<()> {
        let new = match key {
            _ if ANNOTATIONS.contains(&key) => return Ok(()),
            "$schema" if is_root => return self.draft(value, at),
            "$id" if is_root => return string(value, at).map(|_| ()),
            "$schema" | "$id" => return fail(at, "supported only at the top of the schema"),
            "$defs" | "definitions" => return self.schemas(value, at).map(|_| ()),
            "$ref" => self.reference(value, at)?,
            "type" => types(value, at).map(|()| value.clone())?,
            "const" => literal(value, at).map(|()| value.clone())?,
            "enum" => {
                let items = list(value, at)?;
                items.iter().enumerate().try_for_each(|(i, v)| literal(v, &step(at, &i.to_string())))?;
                value.clone()
            }
            "prefixItems" if self.is_older => return fail(at, "the keyword is of draft 2020-12, which $schema does not name"),
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => self.schema_list(value, at)?,
            "properties" => self.schemas(value, at)?,
            "patternProperties" => self.patterns(value, at)?,
            "items" if value.is_array() => return fail(at, "an array is of older drafts; use prefixItems"),
            "items" | "additionalProperties" => self.schema(value, at, false)?,
            "required" => required(value, at)?,
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                integer(value, at)?.into()
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                number(value, at).map(|_| value.clone())?
            }
            "multipleOf" => self.multiple_of(value, at)?,
            "pattern" => regex(string(value, at)?, at)?.into(),
            "format" if own_format(string(value, at)?).is_some() => return Ok(()),
            "format" if !FORMATS.contains(&string(value, at)?) => {
                return fail(at, format_args!("the format {value} is not supported"));
            }
            "format" => value.clone(),
            "uniqueItems" if value == &Value::Bool(false) => return Ok(()),
            "uniqueItems" => return fail(at, "the keyword is not supported"),
            _ if UNSUPPORTED.contains(&key) => return fail(at, "the keyword is not supported"),
            _ => return fail(at, "no such keyword in JSON Schema 2020-12"),
        };
        out.insert(key.to_string(), new);
        Ok(())
    }

    fn draft(&self, value: &Value, at: &str) -> Outcome<()> {
        let draft = string(value, at)?.trim_end_matches('#');
        if draft == DRAFT || OLDER_DRAFTS.contains(&draft) {
            return Ok(());
        }
        fail(at, format_args!("{value} is not supported; schemas are of draft 2020-12, 2019-09, 07 or 06"))
    }

    fn reference(&mut self, value: &Value, at: &str) -> Outcome<Value> {
        let text = string(value, at)?;
        let Some(pointer) = text.strip_prefix('#').filter(|p| p.is_empty() || p.starts_with('/')) else {
            return fail(at, format_args!("{value} is not supported; use \"#/...\" within the schema"));
        };
        let Some(pointer) = decode_percent(pointer) else {
            return fail(at, format_args!("{value} is not a URI reference"));
        };
        let next = self.refs.len();
        let todo = &mut self.todo;
        let index = *self.refs.entry(pointer.clone()).or_insert_with(|| {
            todo.push(pointer);
            next
        });
        Ok(format!("#/$defs/r{index}").into())
    }

    fn multiple_of(&mut self, value: &Value, at: &str) -> Outcome<Value> {
        let of = number(value, at)?;
        if of <= 0.0 {
            return fail(at, "must be over 0");
        }
        let digits = of.to_string();
        let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
        let own = (format!("{whole}{fraction}").parse().ok(), fraction.len() as u32);
        match own.0.and_then(|own_digits| common_multiple(self.multiple, (own_digits, own.1))) {
            Some(multiple) => self.multiple = multiple,
            None => {
                let what = "the schema's multipleOf have no common multiple below";
                return fail(at, format_args!("{what} {MAX_MULTIPLE}, the decimal point left out"));
            }
        }
        Ok(value.clone())
    }

    fn schema_list(&mut self, value: &Value, at: &str) -> Outcome<Value> {
        let items = list(value, at)?.iter().enumerate();
        items.map(|(i, v)| self.schema(v, &step(at, &i.to_string()), false)).collect()
    }

    fn schemas(&mut self, value: &Value, at: &str) -> Outcome<Value> {
        let mut out = Map::new();
        let schemas = map(value, at)?;
        if at.ends_with("/properties") && schemas.len() > MAX_PROPERTIES {
            return fail(at, format_args!("{} are over {MAX_PROPERTIES}", schemas.len()));
        }
        for (key, value) in schemas {
            out.insert(key.clone(), self.schema(value, &step(at, key), false)?);
        }
        Ok(Value::Object(out))
    }

    fn patterns(&mut self, value: &Value, at: &str) -> Outcome<Value> {
        let mut out = Map::new();
        for (key, value) in map(value, at)? {
            let at = step(at, key);
            if out.insert(regex(key, &at)?, self.schema(value, &at, false)?).is_some() {
                return fail(&at, "another pattern says the same");
            }
        }
        Ok(Value::Object(out))
    }
}

/// The least common multiple of two decimal numbers, if it has few enough states.
fn common_multiple(a: (u64, u32), b: (u64, u32)) -> Option<(u64, u32)> {
    let point = a.1.max(b.1);
    let scale = |n: (u64, u32)| 10u64.checked_pow(point - n.1)?.checked_mul(n.0);
    let (x, y) = (scale(a)?, scale(b)?);
    let (mut gcd, mut rest) = (x, y);
    while rest != 0 {
        (gcd, rest) = (rest, gcd % rest);
    }
    let (mut lcm, mut point) = ((x / gcd).checked_mul(y)?, point);
    while point > 0 && lcm % 10 == 0 {
        (lcm, point) = (lcm / 10, point - 1);
    }
    (lcm <= MAX_MULTIPLE).then_some((lcm, point))
}

fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = vec![];
    let mut rest = text.bytes();
    while let Some(b) = rest.next() {
        bytes.push(if b == b'%' {
            let digits = [rest.next()?, rest.next()?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
        } else {
            b
        });
    }
    String::from_utf8(bytes).ok()
}

fn required(value: &Value, at: &str) -> Outcome<Value> {
    let Some(items) = value.as_array() else { return fail(at, "must be an array of strings") };
    for (i, item) in items.iter().enumerate() {
        string(item, &step(at, &i.to_string()))?;
        if items[..i].contains(item) {
            return fail(&step(at, &i.to_string()), format_args!("{item} comes twice"));
        }
    }
    Ok(value.clone())
}

/// llguidance counts a key that comes twice as two, so more keys than are named cannot be asked for.
fn check_counts(object: &Map<String, Value>, at: &str) -> Outcome<()> {
    let Some(min) = object.get("minProperties").and_then(Value::as_f64) else { return Ok(()) };
    let named = object.get("required").and_then(Value::as_array).map_or(0, Vec::len);
    if min > named as f64 + 1.0 {
        let what = format!("{min} is not supported here: at most 1 over the {named} names in required");
        return fail(&step(at, "minProperties"), what);
    }
    Ok(())
}

/// The patterns of formats that Berth reads more strictly than llguidance: every day exists.
fn own_format(name: &str) -> Option<String> {
    match name {
        "date" => Some(format!("^{DATE}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{DATE}T{TIME}$")),
        _ => None,
    }
}

/// The bytes that every value has, as far as the schema shows.
pub fn required_bytes(schema: &Value) -> [bool; 256] {
    Needs { root: schema, open: vec![] }.of(schema)
}

struct Needs<'a> {
    root: &'a Value,
    open: Vec<String>,
}

fn add_text(text: &str, into: &mut [bool; 256]) {
    text.bytes().for_each(|b| into[b as usize] = true);
}

fn unite(into: &mut [bool; 256], other: &[bool; 256]) {
    into.iter_mut().zip(other).for_each(|(a, b)| *a |= b);
}

impl Needs<'_> {
    fn of(&mut self, schema: &Value) -> [bool; 256] {
        let mut needs = [false; 256];
        let Some(object) = schema.as_object() else { return needs };
        if let Some(value) = object.get("const") {
            // With whitespace or without: none is needed.
            add_text(&value.to_string(), &mut needs);
        }
        match object.get("type").and_then(Value::as_str) {
            Some("string") => add_text("\"", &mut needs),
            Some("null") => add_text("null", &mut needs),
            Some("array") => self.array(object, &mut needs),
            Some("object") => self.object(object, &mut needs),
            _ => {}
        }
        if let Some(Value::String(pointer)) = object.get("$ref") {
            if !self.open.contains(pointer) && self.open.len() < 64 {
                self.open.push(pointer.clone());
                let target = self.root.pointer(&pointer[1..]).cloned().unwrap_or_default();
                unite(&mut needs, &self.of(&target));
                self.open.pop();
            }
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            self.options(object.get(key), key == "allOf", &mut needs);
        }
        if let Some(Value::Array(values)) = object.get("enum") {
            let options: Vec<Value> = values.iter().map(|v| json!({ "const": v })).collect();
            self.options(Some(&Value::Array(options)), false, &mut needs);
        }
        needs
    }

    fn array(&mut self, object: &Map<String, Value>, needs: &mut [bool; 256]) {
        add_text("[]", needs);
        if object.get("minItems").and_then(Value::as_u64).unwrap_or(0) > 0 {
            let first = object.get("prefixItems").and_then(|items| items.get(0)).or(object.get("items"));
            if let Some(first) = first {
                unite(needs, &self.of(first));
            }
        }
    }

    fn object(&mut self, object: &Map<String, Value>, needs: &mut [bool; 256]) {
        add_text("{}", needs);
        for name in object.get("required").and_then(Value::as_array).into_iter().flatten() {
            add_text(":", needs);
            add_text(&name.to_string(), needs);
            if let Some(schema) = name.as_str().and_then(|name| object.get("properties")?.get(name)) {
                unite(needs, &self.of(schema));
            }
        }
    }

    fn options(&mut self, options: Option<&Value>, all: bool, needs: &mut [bool; 256]) {
        let Some(Value::Array(options)) = options else { return };
        let each: Vec<[bool; 256]> = options.iter().map(|option| self.of(option)).collect();
        for byte in 0..256 {
            let mut bits = each.iter().map(|needs| needs[byte]);
            needs[byte] |= if all { bits.any(|bit| bit) } else { bits.all(|bit| bit) && !each.is_empty() };
        }
    }
}
