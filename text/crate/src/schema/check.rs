//! Checks each schema that the document uses: its keywords have values of the right kind, and its references lead
//! somewhere. What the draft does not know becomes a warning.

use super::dialect::{is_list_of_names, modern, Keywords, Notes};
use super::formats::{format_pattern, FREE_FORMATS};
use super::ids::Resources;
use super::names::MAX_NAMES;
use super::numbers::MAX_DIGITS;
use super::texts::Patterns;
use super::{fail, integer, list, map, number, string, Outcome, MAX_EXACT};
use crate::json::At;
use crate::work::Work;
use serde_json::Value;
use std::collections::{BTreeSet, HashSet};

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
const MAX_NUMBER: f64 = 1e38; // of MAX_DIGITS
/// What a value of a schema takes to be compiled, and a pattern.
const VALUE_COST: u64 = 40;
const PATTERN_COST: u64 = 300;

pub struct Checker<'a> {
    root: &'a Value,
    prefix: &'a str,
    work: &'a Work,
    notes: &'a Notes,
    resources: &'a Resources,
    seen: BTreeSet<String>,
    todo: Vec<String>,
    pub patterns: Patterns,
    pub has_unevaluated: bool,
}

/// A value of const or enum.
fn literal(value: &Value, at: &At, work: &Work) -> Outcome<()> {
    work.step()?;
    work.charge(VALUE_COST)?;
    match value {
        Value::Number(_) if number(value, at)?.is_vague() => {
            fail(at, format_args!("{value} is over 64 bits, up to which whole numbers are told apart"))
        }
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

/// A bound that some number meets.
fn bound(value: &Value, at: &At, is_low: bool) -> Outcome<()> {
    let number = number(value, at)?.at();
    if (if is_low { number } else { -number }) >= MAX_NUMBER {
        return fail(
            at,
            format_args!("{value} is past all numbers of {MAX_DIGITS} digits, which a grammar writes at most"),
        );
    }
    Ok(())
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
        if seen.insert(v.as_str()) {
            Ok(())
        } else {
            fail(&At::Index(at, i), format_args!("{v} comes twice"))
        }
    })
}

impl<'a> Checker<'a> {
    pub fn new(root: &'a Value, prefix: &'a str, resources: &'a Resources, notes: &'a Notes, work: &'a Work) -> Self {
        let (seen, todo, patterns) = (BTreeSet::new(), vec![], Patterns::default());
        Checker { root, prefix, work, notes, resources, seen, todo, patterns, has_unevaluated: false }
    }

    pub fn run(&mut self) -> Outcome<()> {
        let top = At::Root(self.prefix);
        self.schema(self.root, &top, 0)?;
        while let Some(pointer) = self.todo.pop() {
            let Some(target) = self.root.pointer(&pointer) else {
                return fail(&top, format_args!("$ref \"#{pointer}\" points to nothing"));
            };
            let place = format!("{}{pointer}", self.prefix);
            self.schema(target, &At::Root(&place), self.resources.around(&pointer))?;
        }
        Ok(())
    }

    fn schema(&mut self, value: &Value, at: &At, resource: usize) -> Outcome<()> {
        self.work.step()?;
        self.work.charge(VALUE_COST)?;
        let Some(object) = value.as_object() else {
            return if value.is_boolean() { Ok(()) } else { fail(at, "a schema is an object, true or false") };
        };
        let mut resource = resource;
        if !self.resources.is_one() && (object.contains_key("$id") || object.contains_key("id")) {
            resource = self.resources.at(&at.to_string()[self.prefix.len()..]).unwrap_or(resource);
        }
        let keywords = modern(object, self.resources.draft(resource), at, self.notes)?;
        for (key, value) in keywords.iter() {
            self.keyword(key, value, &keywords, &At::Key(at, key), resource)?;
        }
        Ok(())
    }

    fn keyword(&mut self, key: &str, value: &Value, all: &Keywords, at: &At, resource: usize) -> Outcome<()> {
        match key {
            // ids.rs has read these.
            "$schema" | "$id" | "id" | "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" => Ok(()),
            // What is named is read where it is named.
            "$defs" | "definitions" => map(value, at).map(|_| ()),
            "$dynamicRef" if self.is_ambiguous(value) => fail(at, "may lead to several places, which is not supported"),
            "$recursiveRef" if self.resources.is_recursion_ambiguous() => {
                fail(at, "may lead to several places, which is not supported")
            }
            "$ref" | "$dynamicRef" | "$recursiveRef" => {
                let pointer = self.resources.find(string(value, at)?, resource, at)?;
                self.work.small_steps(pointer.len() / 64)?;
                if self.seen.insert(pointer.clone()) {
                    self.todo.push(pointer);
                }
                Ok(())
            }
            "type" => types(value, at),
            "const" => literal(value, at, self.work),
            "enum" => {
                list(value, at)?.iter().enumerate().try_for_each(|(i, v)| literal(v, &At::Index(at, i), self.work))
            }
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => {
                let items = list(value, at)?.iter().enumerate();
                items.into_iter().try_for_each(|(i, v)| self.schema(v, &At::Index(at, i), resource))
            }
            "properties" => match map(value, at)?.len() {
                count if count > MAX_NAMES => fail(at, format_args!("{count} are over {MAX_NAMES}")),
                _ => self.schemas(value, at, resource, |_| true),
            },
            "dependentSchemas" => {
                let is_shared = is_shared(all);
                self.schemas(value, at, resource, |value| !is_shared || !is_list_of_names(value))
            }
            "dependentRequired" => {
                let is_shared = is_shared(all);
                for (name, names) in map(value, at)?.iter().filter(|(_, names)| !is_shared || is_list_of_names(names)) {
                    if !names.is_string() {
                        self.names(names, &At::Key(at, name))?;
                    }
                }
                Ok(())
            }
            "patternProperties" => {
                for (pattern, schema) in map(value, at)? {
                    let at = At::Key(at, pattern);
                    self.regex(pattern, &at)?;
                    self.schema(schema, &at, resource)?;
                }
                Ok(())
            }
            "unevaluatedProperties" | "unevaluatedItems" => {
                self.has_unevaluated |= key == "unevaluatedProperties";
                self.schema(value, at, resource)
            }
            "items" | "additionalProperties" | "propertyNames" | "contains" | "not" | "if" | "then" | "else" => {
                self.schema(value, at, resource)
            }
            "required" => self.names(value, at),
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" | "minContains"
            | "maxContains" => integer(value, at).map(|_| ()),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                bound(value, at, key.ends_with("inimum"))
            }
            "multipleOf" => self.multiple_of(value, at),
            "pattern" => self.regex(string(value, at)?, at),
            "format" => match string(value, at)? {
                name if FREE_FORMATS.contains(&name) || format_pattern(name).is_some() => Ok(()),
                _ => self.notes.add(at, format_args!("the format {value} is not checked")),
            },
            "uniqueItems" if value.is_boolean() => Ok(()),
            "uniqueItems" => fail(at, "must be true or false"),
            "discriminator" => match value.get("propertyName").and_then(Value::as_str) {
                Some(_) => Ok(()),
                None => self.notes.add(at, "no object with a propertyName"),
            },
            _ => fail(at, "internal error: an unknown keyword"),
        }
    }

    fn is_ambiguous(&self, reference: &Value) -> bool {
        let anchor = reference.as_str().and_then(|text| text.split_once('#'));
        anchor.is_none_or(|(_, name)| self.resources.is_ambiguous(name))
    }

    fn schemas(&mut self, value: &Value, at: &At, resource: usize, is_own: impl Fn(&Value) -> bool) -> Outcome<()> {
        for (key, value) in map(value, at)?.iter().filter(|(_, value)| is_own(value)) {
            self.work.text(key)?;
            self.schema(value, &At::Key(at, key), resource)?;
        }
        Ok(())
    }

    fn multiple_of(&mut self, value: &Value, at: &At) -> Outcome<()> {
        let of = number(value, at)?.at();
        if of >= MAX_EXACT {
            return fail(at, format_args!("{value} is not below 2^53, up to which whole numbers are exact"));
        }
        if of <= 0.0 {
            return fail(at, "must be over 0");
        }
        Ok(())
    }

    fn regex(&self, text: &str, at: &At) -> Outcome<()> {
        self.work.text(text)?;
        self.work.charge(PATTERN_COST)?;
        self.patterns.check(text, at)
    }

    fn names(&self, value: &Value, at: &At) -> Outcome<()> {
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
        Ok(())
    }
}

/// Whether both kinds of dependencies are in one map, which was `dependencies`.
fn is_shared(all: &Keywords) -> bool {
    let maps = all.get("dependentRequired").zip(all.get("dependentSchemas"));
    maps.is_some_and(|(a, b)| std::ptr::eq(a, b))
}
