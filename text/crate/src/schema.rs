//! Reads a JSON schema before llguidance does, and writes it with the keywords that llguidance enforces. What these
//! cannot say is refused, by its JSON pointer. By itself, llguidance ignores unknown keywords.
//!
//!   schema_dialect  what the keywords of each draft mean       schema_ids    where references lead
//!   schema_not      not, if, oneOf, dependencies               schema_lists  items and counts that can be listed
//!   schema_objects  names of properties, discriminator         schema_unions oneOf as anyOf

use crate::json::At;
use crate::pattern;
use crate::schema_cost::MAX_NAMES;
use crate::schema_dialect::{modern, Keywords, Notes};
use crate::schema_formats::{own_format, FORMATS, FREE_FORMATS};
use crate::schema_ids::Resources;
use crate::schema_lists::{add_all_of, write_counts, write_unique};
use crate::schema_objects::require;
use crate::schema_types::Types;
use crate::schema_unions::settle;
use crate::work::Work;
use serde_json::{json, Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Keywords that are refused.
const UNSUPPORTED: [&str; 7] = [
    "contains", "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef",
    "$recursiveRef", // the last two where they may lead to several places
];
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
/// The lexer has a state for each remainder, so the least common multiple of all multipleOf is bounded.
const MAX_MULTIPLE: u64 = 10_000;
/// Beside a oneOf that is written: its pointer in what is read. schema_unions.rs removes it.
pub const ONE_OF_AT: &str = "oneOf at";
/// References that are followed to find the values of a schema.
pub const MAX_DEPTH: usize = 12;
/// Whole numbers up to here are exact in a double.
const MAX_EXACT: f64 = 9007199254740992.0;
/// What llguidance takes for a value of a schema, and for a pattern, which it asks whether anything matches it.
pub const VALUE_COST: u64 = 40;
const PATTERN_COST: u64 = 300;

/// What a reference in the written schema stands for: a schema of the one that is read, or what it does not allow.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    pub pointer: String,
    pub tag: Option<String>,  // the property that a discriminator requires
    pub not: Option<Types>,   // the values of these types that do not fit
}

pub struct Reader<'a> {
    pub root: &'a Value,
    prefix: &'a str, // the root's pointer, for errors
    pub work: &'a Work,
    pub notes: &'a Notes,
    pub resources: Resources,
    /// The pointers of the oneOf that are written as "one, and none of the others".
    exact: &'a BTreeSet<String>,
    refs: BTreeMap<Target, usize>,
    todo: Vec<Target>,
    multiple: (u64, u32), // of all multipleOf: a whole number, and after how many of its digits from the right the point is
}

pub type Outcome<T> = Result<T, String>;

pub fn fail<T>(at: &At, what: impl std::fmt::Display) -> Outcome<T> {
    let at = at.to_string();
    Err(format!("{}: {what}", if at.is_empty() { "/" } else { &at }))
}

pub fn integer(value: &Value, at: &At) -> Outcome<u64> {
    let exact = |f: f64| f >= 0.0 && f.fract() == 0.0 && f <= MAX_EXACT;
    match value.as_f64() {
        Some(f) if exact(f) => Ok(f as u64),
        _ => fail(at, format_args!("{value} is not a whole number from 0 on")),
    }
}

pub fn number(value: &Value, at: &At) -> Outcome<f64> {
    match value.as_f64() {
        None => fail(at, format_args!("{value} is not a number")),
        Some(f) if !f.is_finite() || (f.fract() == 0.0 && f.abs() >= MAX_EXACT) => {
            fail(at, format_args!("{value} is not below 2^53, up to which whole numbers are exact"))
        }
        Some(f) => Ok(f),
    }
}

pub fn map<'v>(value: &'v Value, at: &At) -> Outcome<&'v Map<String, Value>> {
    value.as_object().map_or_else(|| fail(at, "must be an object"), Ok)
}

pub fn list<'v>(value: &'v Value, at: &At) -> Outcome<&'v Vec<Value>> {
    match value.as_array() {
        Some(list) if !list.is_empty() => Ok(list),
        _ => fail(at, "must be an array with at least 1 element"),
    }
}

pub fn string<'v>(value: &'v Value, at: &At) -> Outcome<&'v str> {
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

/// The schema as llguidance is to read it. `prefix`: the pointer to `root` in what the client sent.
pub fn read(root: &Value, prefix: &str, notes: &Notes, work: &Work) -> Outcome<Value> {
    let mut exact = BTreeSet::new();
    let mut known = None;
    loop {
        let written = match Reader::new(root, prefix, &exact, notes, work).and_then(Reader::read) {
            Ok(written) => written,
            // What was read before has a oneOf that llguidance may take yet.
            Err(error) => {
                let before = known.ok_or_else(|| error.clone())?;
                work.look()?;
                notes.overlap.replace(Some(error));
                return Ok(before);
            }
        };
        let mut open = BTreeSet::new();
        let settled = settle(&written, work, &mut open)?;
        let count = exact.len();
        exact.extend(open);
        if exact.len() == count {
            return Ok(settled);
        }
        known = Some(settled);
    }
}

impl<'a> Reader<'a> {
    fn new(
        root: &'a Value,
        prefix: &'a str,
        exact: &'a BTreeSet<String>,
        notes: &'a Notes,
        work: &'a Work,
    ) -> Outcome<Self> {
        let resources = Resources::of(root, prefix, notes, work)?;
        let (refs, todo) = (BTreeMap::new(), vec![]);
        Ok(Reader { root, prefix, work, notes, resources, exact, refs, todo, multiple: (1, 0) })
    }

    /// The schema for llguidance.
    fn read(mut self) -> Outcome<Value> {
        let top = At::Root(self.prefix);
        let mut root = self.schema(self.root, &top, 0)?;
        if root == Value::Bool(false) {
            return fail(&top, "no value matches false");
        }
        if root == Value::Bool(true) {
            root = json!({});
        }
        let mut defs = Map::new();
        while let Some(next) = self.todo.pop() {
            let name = format!("r{}", self.refs[&next]);
            let Target { pointer, tag, not } = next;
            let Some(target) = self.root.pointer(&pointer) else {
                return fail(&top, format_args!("$ref \"#{pointer}\" points to nothing"));
            };
            let place = format!("{}{pointer}", self.prefix);
            let (at, resource) = (At::Root(&place), self.resources.around(&pointer));
            let mut schema = match not {
                None => self.schema(target, &at, resource)?,
                Some(types) => self.complement(target, &at, resource, types)?,
            };
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

    /// The keywords of a schema as draft 2020-12 has them, and the resource that they are in.
    pub fn open<'v>(
        &self,
        object: &'v Map<String, Value>,
        at: &At,
        resource: usize,
    ) -> Outcome<(Keywords<'v>, usize)> {
        let mut resource = resource;
        if !self.resources.is_one() && (object.contains_key("$id") || object.contains_key("id")) {
            resource = self.resources.at(self.pointer(at).as_str()).unwrap_or(resource);
        }
        Ok((modern(object, self.resources.draft(resource), at, self.notes)?, resource))
    }

    /// The pointer from the root.
    pub fn pointer(&self, at: &At) -> String {
        at.to_string()[self.prefix.len()..].to_string()
    }

    /// Reads a schema of a resource.
    pub fn schema(&mut self, value: &Value, at: &At, resource: usize) -> Outcome<Value> {
        self.work.step()?;
        self.work.charge(VALUE_COST)?;
        let Some(object) = value.as_object() else {
            return if value.is_boolean() { Ok(value.clone()) } else { fail(at, "a schema is an object, true or false") };
        };
        let (object, resource) = self.open(object, at, resource)?;
        let mut out = Map::new();
        for (key, value) in object.iter() {
            self.keyword(key, value, &At::Key(at, key), resource, &mut out)?;
        }
        self.discriminate(&object, &mut out, at, resource)?;
        self.conditions(&object, &mut out, at, resource)?;
        if object.get("uniqueItems") == Some(&Value::Bool(true)) {
            let items = object.get("items").unwrap_or(&Value::Bool(true));
            let items = self.values_of(items, resource)?;
            write_unique(items, &mut out, &At::Key(at, "uniqueItems"), self.work)?;
        }
        if let Some(names) = object.get("propertyNames") {
            self.names(names, &object, &mut out, at, resource)?;
        }
        write_counts(&mut out, at, self.work)?;
        // A format says nothing of other types than strings, and nor does a pattern.
        if let Some(pattern) = object.get("format").and_then(Value::as_str).and_then(own_format) {
            add_all_of(json!({ "pattern": pattern }), &mut out);
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

    fn keyword(
        &mut self,
        key: &str,
        value: &Value,
        at: &At,
        resource: usize,
        out: &mut Map<String, Value>,
    ) -> Outcome<()> {
        let new = match key {
            // schema_ids.rs has read these.
            "$schema" | "$id" | "id" | "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" => return Ok(()),
            // What is named is read where it is named.
            "$defs" | "definitions" => return map(value, at).map(|_| ()),
            "$ref" => self.reference(string(value, at)?, at, resource)?,
            "$dynamicRef" if !self.is_ambiguous(value) => self.reference(string(value, at)?, at, resource)?,
            "$recursiveRef" if !self.resources.is_recursion_ambiguous() => {
                self.reference(string(value, at)?, at, resource)?
            }
            "type" => types(value, at).map(|()| value.clone())?,
            "const" => literal(value, at, self.work).map(|()| value.clone())?,
            "enum" => {
                let items = list(value, at)?;
                items.iter().enumerate().try_for_each(|(i, v)| literal(v, &At::Index(at, i), self.work))?;
                value.clone()
            }
            "oneOf" if self.exact.contains(&self.pointer(at)) => return self.exactly_one(value, at, resource, out),
            "oneOf" => {
                out.insert(ONE_OF_AT.to_string(), self.pointer(at).into());
                self.schema_list(value, at, resource)?
            }
            "allOf" | "anyOf" | "prefixItems" => self.schema_list(value, at, resource)?,
            "properties" => match map(value, at)?.len() {
                count if count > MAX_NAMES as usize => return fail(at, format_args!("{count} are over {MAX_NAMES}")),
                _ => self.schemas(value, at, resource)?,
            },
            "patternProperties" => self.patterns(value, at, resource)?,
            "items" | "additionalProperties" => self.schema(value, at, resource)?,
            "required" => self.required(value, at)?,
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                integer(value, at)?.into()
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                number(value, at).map(|_| value.clone())?
            }
            "multipleOf" => self.multiple_of(value, at)?,
            "pattern" => self.regex(string(value, at)?, at)?.into(),
            "format" => match string(value, at)? {
                name if FORMATS.contains(&name) => value.clone(),
                name if FREE_FORMATS.contains(&name) || own_format(name).is_some() => return Ok(()),
                _ => return self.notes.add(at, format_args!("the format {value} is not checked")),
            },
            "uniqueItems" if value.is_boolean() => return Ok(()), // after the others
            "uniqueItems" => return fail(at, "must be true or false"),
            "propertyNames" => return self.schema(value, at, resource).map(|_| ()), // after the others
            // After the others.
            "discriminator" | "not" | "if" | "then" | "else" | "dependentRequired" | "dependentSchemas" => return Ok(()),
            _ if UNSUPPORTED.contains(&key) => return fail(at, "the keyword is not supported"),
            _ => return fail(at, "internal error: an unknown keyword"),
        };
        let key = if ["$dynamicRef", "$recursiveRef"].contains(&key) { "$ref" } else { key };
        if out.contains_key(key) {
            add_all_of(json!({ key: new }), out);
        } else {
            out.insert(key.to_string(), new);
        }
        Ok(())
    }

    fn is_ambiguous(&self, reference: &Value) -> bool {
        let anchor = reference.as_str().and_then(|text| text.split_once('#'));
        anchor.is_none_or(|(_, name)| self.resources.is_ambiguous(name))
    }

    fn reference(&mut self, text: &str, at: &At, resource: usize) -> Outcome<Value> {
        let pointer = self.resources.find(text, resource, at)?;
        Ok(self.definition(Target { pointer, tag: None, not: None }))
    }

    /// The pointer that a reference leads to.
    pub fn find(&self, reference: &str, at: &At, resource: usize) -> Outcome<String> {
        self.resources.find(reference, resource, at)
    }

    /// The reference, in what is written, to a target.
    pub fn definition(&mut self, target: Target) -> Value {
        let next = self.refs.len();
        let todo = &mut self.todo;
        let index = *self.refs.entry(target).or_insert_with_key(|target| {
            todo.push(target.clone());
            next
        });
        format!("#/$defs/r{index}").into()
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

    fn schema_list(&mut self, value: &Value, at: &At, resource: usize) -> Outcome<Value> {
        let items = list(value, at)?.iter().enumerate();
        items.map(|(i, v)| self.schema(v, &At::Index(at, i), resource)).collect()
    }

    fn schemas(&mut self, value: &Value, at: &At, resource: usize) -> Outcome<Value> {
        let mut out = Map::new();
        for (key, value) in map(value, at)? {
            self.work.text(key)?;
            out.insert(key.clone(), self.schema(value, &At::Key(at, key), resource)?);
        }
        Ok(Value::Object(out))
    }

    pub fn regex(&self, text: &str, at: &At) -> Outcome<String> {
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

    fn patterns(&mut self, value: &Value, at: &At, resource: usize) -> Outcome<Value> {
        let mut out = Map::new();
        for (key, value) in map(value, at)? {
            let at = At::Key(at, key);
            if out.insert(self.regex(key, &at)?, self.schema(value, &at, resource)?).is_some() {
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
