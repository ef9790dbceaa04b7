//! Reads a JSON schema (draft 2020-12) before llguidance does. Refuses every keyword that llguidance does not enforce,
//! by its JSON pointer, and rewrites what it would read otherwise. By itself, llguidance ignores unknown keywords.

use crate::json::At;
use crate::pattern;
use crate::schema_cost::MAX_NAMES;
use crate::schema_lists::{values_of, write_counts, write_names, write_unique};
use crate::work::Work;
use serde_json::{json, Map, Value};
use std::collections::{BTreeMap, HashSet};

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";
/// Drafts whose keywords, among those that are supported, mean the same or less than in 2020-12. So a value that fits
/// a schema as read here fits it in its own draft too.
const OLDER_DRAFTS: [&str; 3] = [
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
];
pub const ANNOTATIONS: [&str; 8] =
    ["title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"];
/// Keywords of the draft that are refused.
const UNSUPPORTED: [&str; 24] = [
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas",
    "dependencies", "unevaluatedItems", "unevaluatedProperties", "$anchor", "$dynamicRef",
    "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary", "contentEncoding", "contentMediaType",
    "contentSchema", "additionalItems", "id", "x-guidance",
];
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
/// Formats that llguidance enforces as they are.
const FORMATS: [&str; 6] = ["email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
const DATE: &str = concat!(
    r"(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    r"|(?:(?:[0-9][1-9]|[1-9]0)(?:0[48]|[2468][048]|[13579][26])|00(?:0[48]|[2468][048]|[13579][26])",
    r"|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
);
const TIME: &str = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// Six digits at most, so that the whole fits every language's type of durations.
const DURATION: &str = concat!(
    r"P(?:N{1,6}W|(?:N{1,6}Y(?:N{1,6}M(?:N{1,6}D)?)?|N{1,6}M(?:N{1,6}D)?|N{1,6}D)(?:T(?:TIME))?|T(?:TIME))"
);
const DURATION_TIME: &str = "N{1,6}H(?:N{1,6}M(?:N{1,6}S)?)?|N{1,6}M(?:N{1,6}S)?|N{1,6}S";
/// Formats that say what a string is for, and not how it looks.
const FREE_FORMATS: [&str; 2] = ["binary", "password"];
/// The lexer has a state for each remainder, so the least common multiple of all multipleOf is bounded.
const MAX_MULTIPLE: u64 = 10_000;
/// References that are followed to find the values of a schema.
const MAX_DEPTH: usize = 12;
/// Whole numbers up to here are exact in a double.
const MAX_EXACT: f64 = 9007199254740992.0;
/// What llguidance takes for a value of a schema, and for a pattern, which it asks whether anything matches it.
pub const VALUE_COST: u64 = 40;
const PATTERN_COST: u64 = 300;

/// What a reference names: a pointer, and the property that a discriminator requires.
type Target = (String, Option<String>);

pub struct Reader<'a> {
    root: &'a Value,
    prefix: &'a str, // the root's pointer, for errors
    work: &'a Work,
    refs: BTreeMap<Target, usize>,
    todo: Vec<Target>,
    is_older: bool, // $schema names an older draft
    multiple: (u64, u32), // of all multipleOf: a whole number, and after how many of its digits from the right the point is
}

pub type Outcome<T> = Result<T, String>;

pub fn fail<T>(at: &At, what: impl std::fmt::Display) -> Outcome<T> {
    let at = at.to_string();
    Err(format!("{}: {what}", if at.is_empty() { "/" } else { &at }))
}

fn integer(value: &Value, at: &At) -> Outcome<u64> {
    let exact = |f: f64| f >= 0.0 && f.fract() == 0.0 && f <= MAX_EXACT;
    match value.as_f64() {
        Some(f) if exact(f) => Ok(f as u64),
        _ => fail(at, format_args!("{value} is not a whole number from 0 on")),
    }
}

fn number(value: &Value, at: &At) -> Outcome<f64> {
    match value.as_f64() {
        None => fail(at, format_args!("{value} is not a number")),
        Some(f) if !f.is_finite() || (f.fract() == 0.0 && f.abs() >= MAX_EXACT) => {
            fail(at, format_args!("{value} is not below 2^53, up to which whole numbers are exact"))
        }
        Some(f) => Ok(f),
    }
}

fn map<'v>(value: &'v Value, at: &At) -> Outcome<&'v Map<String, Value>> {
    value.as_object().map_or_else(|| fail(at, "must be an object"), Ok)
}

fn list<'v>(value: &'v Value, at: &At) -> Outcome<&'v Vec<Value>> {
    match value.as_array() {
        Some(list) if !list.is_empty() => Ok(list),
        _ => fail(at, "must be an array with at least 1 element"),
    }
}

fn string<'v>(value: &'v Value, at: &At) -> Outcome<&'v str> {
    value.as_str().map_or_else(|| fail(at, "must be a string"), Ok)
}

/// A value of const or enum.
fn literal(value: &Value, at: &At, work: &Work) -> Outcome<()> {
    work.step()?;
    work.charge(VALUE_COST)?;
    match value {
        Value::Number(_) => number(value, at).map(|_| ()),
        Value::String(text) => {
            work.text(text)?;
            let bad = |c: &char| (*c < ' ' && !"\n\r\t\x08\x0C".contains(*c)) || *c == '\x7F';
            match text.chars().find(bad) {
                Some(c) => fail(at, format_args!("the control character U+{:04X} is not supported", c as u32)),
                None => Ok(()),
            }
        }
        Value::Array(items) => items.iter().enumerate().try_for_each(|(i, v)| literal(v, &At::Index(at, i), work)),
        Value::Object(items) => items.iter().try_for_each(|(k, v)| literal(v, &At::Key(at, k), work)),
        _ => Ok(()),
    }
}

fn types(value: &Value, at: &At) -> Outcome<()> {
    let known = |v: &Value, at: &At| match v.as_str() {
        Some(name) if TYPES.contains(&name) => Ok(()),
        _ => fail(at, format_args!("{v} is not a type")),
    };
    let Value::Array(_) = value else { return known(value, at) };
    let mut seen = HashSet::new();
    list(value, at)?.iter().enumerate().try_for_each(|(i, v)| {
        known(v, &At::Index(at, i))?;
        // llguidance would compile the schema once more.
        if seen.insert(v.as_str()) { Ok(()) } else { fail(&At::Index(at, i), format_args!("{v} comes twice")) }
    })
}

impl<'a> Reader<'a> {
    /// `prefix`: the pointer to `root` in what the client sent.
    pub fn new(root: &'a Value, prefix: &'a str, work: &'a Work) -> Self {
        let draft = root.get("$schema").and_then(Value::as_str).unwrap_or(DRAFT).trim_end_matches('#');
        let is_older = OLDER_DRAFTS.contains(&draft);
        Reader { root, prefix, work, refs: BTreeMap::new(), todo: vec![], is_older, multiple: (1, 0) }
    }

    /// The schema for llguidance.
    pub fn read(mut self) -> Outcome<Value> {
        let prefix = self.prefix;
        let top = At::Root(prefix);
        let mut root = self.schema(self.root, &top, true)?;
        if root == Value::Bool(false) {
            return fail(&top, "no value matches false");
        }
        if root == Value::Bool(true) {
            root = json!({});
        }
        let mut defs = Map::new();
        while let Some(next) = self.todo.pop() {
            let name = format!("r{}", self.refs[&next]);
            let (pointer, tag) = next;
            let Some(target) = self.root.pointer(&pointer) else {
                return fail(&top, format_args!("$ref \"#{pointer}\" points to nothing"));
            };
            let at = format!("{prefix}{pointer}");
            let mut schema = self.schema(target, &At::Root(&at), pointer.is_empty())?;
            if let Some(tag) = tag {
                require(tag, &mut schema);
            }
            defs.insert(name, schema);
        }
        if !defs.is_empty() {
            root.as_object_mut().unwrap().insert("$defs".to_string(), Value::Object(defs));
        }
        Ok(root)
    }

    fn schema(&mut self, value: &Value, at: &At, is_root: bool) -> Outcome<Value> {
        self.work.step()?;
        self.work.charge(VALUE_COST)?;
        let Some(object) = value.as_object() else {
            return if value.is_boolean() { Ok(value.clone()) } else { fail(at, "a schema is an object, true or false") };
        };
        let mut out = Map::new();
        for (key, value) in object {
            self.keyword(key, value, &At::Key(at, key), is_root, &mut out)?;
        }
        self.discriminate(object, &mut out, at)?;
        if object.get("uniqueItems") == Some(&Value::Bool(true)) {
            let items = object.get("items").unwrap_or(&Value::Bool(true));
            let items = values_of(self.root, items, MAX_DEPTH, self.work)?;
            write_unique(items, &mut out, &At::Key(at, "uniqueItems"), self.work)?;
        }
        if let Some(names) = object.get("propertyNames") {
            self.names(names, object, &mut out, at)?;
        }
        write_counts(&mut out, at, self.work)?;
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

    fn keyword(&mut self, key: &str, value: &Value, at: &At, is_root: bool, out: &mut Map<String, Value>) -> Outcome<()> {
        let new = match key {
            _ if ANNOTATIONS.contains(&key) => return Ok(()),
            "$schema" if is_root => return self.draft(value, at),
            "$id" if is_root => return string(value, at).map(|_| ()),
            "$schema" | "$id" => return fail(at, "supported only at the top of the schema"),
            "$defs" | "definitions" => return self.schemas(value, at).map(|_| ()),
            "$ref" => self.reference(value, at)?,
            "type" => types(value, at).map(|()| value.clone())?,
            "const" => literal(value, at, self.work).map(|()| value.clone())?,
            "enum" => {
                let items = list(value, at)?;
                items.iter().enumerate().try_for_each(|(i, v)| literal(v, &At::Index(at, i), self.work))?;
                value.clone()
            }
            "prefixItems" if self.is_older => return fail(at, "the keyword is of draft 2020-12, which $schema does not name"),
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => self.schema_list(value, at)?,
            "properties" => match map(value, at)?.len() {
                count if count > MAX_NAMES as usize => return fail(at, format_args!("{count} are over {MAX_NAMES}")),
                _ => self.schemas(value, at)?,
            },
            "patternProperties" => self.patterns(value, at)?,
            "items" if value.is_array() => return fail(at, "an array is of older drafts; use prefixItems"),
            "items" | "additionalProperties" => self.schema(value, at, false)?,
            "required" => self.required(value, at)?,
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                integer(value, at)?.into()
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                number(value, at).map(|_| value.clone())?
            }
            "multipleOf" => self.multiple_of(value, at)?,
            "pattern" => self.regex(string(value, at)?, at)?.into(),
            "format" if own_format(string(value, at)?).is_some() => return Ok(()),
            "format" if FREE_FORMATS.contains(&string(value, at)?) => return Ok(()),
            "format" if !FORMATS.contains(&string(value, at)?) => {
                return fail(at, format_args!("the format {value} is not supported"));
            }
            "format" => value.clone(),
            "uniqueItems" if value.is_boolean() => return Ok(()), // after the others
            "uniqueItems" => return fail(at, "must be true or false"),
            "propertyNames" => return self.schema(value, at, false).map(|_| ()), // after the others
            "discriminator" => return Ok(()),                                    // after the others
            _ if UNSUPPORTED.contains(&key) => return fail(at, "the keyword is not supported"),
            _ => return fail(at, "no such keyword in JSON Schema 2020-12"),
        };
        out.insert(key.to_string(), new);
        Ok(())
    }

    fn draft(&self, value: &Value, at: &At) -> Outcome<()> {
        let draft = string(value, at)?.trim_end_matches('#');
        if draft == DRAFT || OLDER_DRAFTS.contains(&draft) {
            return Ok(());
        }
        fail(at, format_args!("{value} is not supported; schemas are of draft 2020-12, 2019-09, 07 or 06"))
    }

    fn reference(&mut self, value: &Value, at: &At) -> Outcome<Value> {
        let text = string(value, at)?;
        let Some(pointer) = text.strip_prefix('#').filter(|p| p.is_empty() || p.starts_with('/')) else {
            return fail(at, format_args!("{value} is not supported; use \"#/...\" within the schema"));
        };
        let Some(pointer) = decode_percent(pointer) else {
            return fail(at, format_args!("{value} is not a URI reference"));
        };
        Ok(self.definition(pointer, None))
    }

    /// The reference, in what is written, to what a pointer names. With `tag`, its property of this name is required.
    fn definition(&mut self, pointer: String, tag: Option<&str>) -> Value {
        let next = self.refs.len();
        let todo = &mut self.todo;
        let index = *self.refs.entry((pointer, tag.map(str::to_string))).or_insert_with_key(|target| {
            todo.push(target.clone());
            next
        });
        format!("#/$defs/r{index}").into()
    }

    /// OpenAPI's discriminator names the property that tells the options apart. It does not say which values fit,
    /// but who reads the union needs the property, so it is required.
    fn discriminate(&mut self, object: &Map<String, Value>, out: &mut Map<String, Value>, at: &At) -> Outcome<()> {
        let Some(discriminator) = object.get("discriminator") else { return Ok(()) };
        let at = At::Key(at, "discriminator");
        for key in map(discriminator, &at)?.keys() {
            if key != "propertyName" && key != "mapping" {
                return fail(&At::Key(&at, key), "no such field of a discriminator");
            }
        }
        let name = string(discriminator.get("propertyName").unwrap_or(&Value::Null), &At::Key(&at, "propertyName"))?;
        for key in ["oneOf", "anyOf"] {
            let options = object.get(key).and_then(Value::as_array).into_iter().flatten();
            let references = options.map(|option| option.get("$ref").and_then(Value::as_str));
            for (i, text) in references.enumerate().filter_map(|(i, text)| Some((i, text?))) {
                let Some(pointer) = text.strip_prefix('#').and_then(decode_percent) else { continue };
                out[key][i]["$ref"] = self.definition(pointer, Some(name));
            }
        }
        Ok(())
    }

    /// Writes an object with propertyNames.
    fn names(
        &mut self,
        names: &Value,
        object: &Map<String, Value>,
        out: &mut Map<String, Value>,
        at: &At,
    ) -> Outcome<()> {
        let other = match object.get("additionalProperties") {
            None => Value::Bool(true),
            Some(value) if value.is_boolean() => value.clone(),
            Some(_) => {
                let pointer = format!("{at}/additionalProperties")[self.prefix.len()..].to_string();
                json!({ "$ref": self.definition(pointer, None) })
            }
        };
        let is_plain = !object.contains_key("patternProperties");
        let values = values_of(self.root, names, MAX_DEPTH, self.work)?;
        if let Some(values) = values.filter(|_| is_plain) {
            write_names(values, &other, out);
            return Ok(());
        }
        let at = At::Key(at, "propertyNames");
        let known = |key: &String| ANNOTATIONS.contains(&key.as_str()) || key == "type" || key == "pattern";
        let names = map(names, &at)?;
        let is_string = names.get("type").is_none_or(|name| name == "string");
        if !is_plain || !is_string || object.contains_key("properties") || !names.keys().all(known) {
            return fail(&at, "supported only where it lists the names, or is a pattern without properties beside it");
        }
        if let Some(pattern) = names.get("pattern") {
            let pattern = self.regex(string(pattern, &at)?, &At::Key(&at, "pattern"))?;
            out.insert("patternProperties".to_string(), json!({ pattern: other }));
            out.insert("additionalProperties".to_string(), Value::Bool(false));
        }
        Ok(())
    }

    fn multiple_of(&mut self, value: &Value, at: &At) -> Outcome<Value> {
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

    fn schema_list(&mut self, value: &Value, at: &At) -> Outcome<Value> {
        let items = list(value, at)?.iter().enumerate();
        items.map(|(i, v)| self.schema(v, &At::Index(at, i), false)).collect()
    }

    fn schemas(&mut self, value: &Value, at: &At) -> Outcome<Value> {
        let mut out = Map::new();
        for (key, value) in map(value, at)? {
            self.work.text(key)?;
            out.insert(key.clone(), self.schema(value, &At::Key(at, key), false)?);
        }
        Ok(Value::Object(out))
    }

    fn regex(&self, text: &str, at: &At) -> Outcome<String> {
        self.work.text(text)?;
        self.work.charge(PATTERN_COST)?;
        pattern::translate(text).or_else(|e| fail(at, format_args!("pattern {text:?}: {e}")))
    }

    fn required(&self, value: &Value, at: &At) -> Outcome<Value> {
        let Some(items) = value.as_array() else { return fail(at, "must be an array of strings") };
        let mut seen = HashSet::new();
        for (i, item) in items.iter().enumerate() {
            let at = At::Index(at, i);
            let name = string(item, &at)?;
            self.work.text(name)?;
            if !seen.insert(name) {
                return fail(&at, format_args!("{item} comes twice"));
            }
        }
        Ok(value.clone())
    }

    fn patterns(&mut self, value: &Value, at: &At) -> Outcome<Value> {
        let mut out = Map::new();
        for (key, value) in map(value, at)? {
            let at = At::Key(at, key);
            if out.insert(self.regex(key, &at)?, self.schema(value, &at, false)?).is_some() {
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

/// Makes a property of an object required, where the schema is one of an object that has it.
fn require(name: String, schema: &mut Value) {
    let has = schema.get("properties").is_some_and(|properties| properties.get(&name).is_some());
    let has = has && schema.get("type") == Some(&json!("object"));
    let Some(object) = schema.as_object_mut().filter(|_| has) else { return };
    let required = object.entry("required").or_insert_with(|| json!([])).as_array_mut().unwrap();
    if !required.contains(&Value::from(name.as_str())) {
        required.push(name.into());
    }
}

/// The patterns of formats that llguidance does not have, or that Berth reads more strictly: every day exists.
fn own_format(name: &str) -> Option<String> {
    match name {
        "date" => Some(format!("^{DATE}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{DATE}T{TIME}$")),
        "duration" => Some(format!("^{}$", DURATION.replace("TIME", DURATION_TIME).replace('N', "[0-9]"))),
        "uuid1" | "uuid3" | "uuid4" | "uuid5" | "uuid6" | "uuid7" | "uuid8" => {
            let (hex, version) = ("[0-9a-fA-F]", &name[4..]);
            Some(format!("^{hex}{{8}}-{hex}{{4}}-{version}{hex}{{3}}-[89abAB]{hex}{{3}}-{hex}{{12}}$"))
        }
        _ => None,
    }
}
