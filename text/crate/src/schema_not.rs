//! What a schema does not allow, written with the keywords that llguidance has. So `not`, `if`, the dependencies and a
//! oneOf whose schemas overlap can be written as choices:
//!
//!   not A                 the complement of A
//!   if A then B else C    A and B, or not A and C
//!   oneOf [A, B]          A and not B, or B and not A
//!
//! A schema is all of its keywords, so its complement is a choice: one of them does not hold. A keyword of one type
//! fails only for a value of this type. What cannot be written, such as an array with an item that does not fit, is
//! refused.

use crate::json::{canonical, At};
use crate::pattern_sets::Texts;
use crate::schema::{fail, integer, list, map, number, string, Outcome, Reader, Target, VALUE_COST};
use crate::schema_dialect::Keywords;
use crate::schema_formats::{own_format, FORMATS};
use crate::schema_lists::add_all_of;
use crate::schema_types::{
    other_numbers, other_texts, Types, ALL, ARRAY, BOOLEAN, FRACTION, INTEGER, NAMES, NUMBER, OBJECT, STRING,
};
use serde_json::{json, Map, Value};
use std::collections::BTreeSet;

/// Most options of a oneOf that are written as one and none of the others.
const MAX_OPTIONS: usize = 24;
/// A copy of written schemas, for each byte of their text.
const BYTE_COST: u64 = 2;
/// For errors.
const WITHIN: &str = "not supported within not, if, or a oneOf whose schemas overlap";
/// Most values of a list whose complement is written.
const MAX_VALUES: usize = 1000;

fn any_of(mut options: Vec<Value>) -> Value {
    options.retain(|option| option != &Value::Bool(false));
    if options.contains(&Value::Bool(true)) {
        return Value::Bool(true);
    }
    match options.len() {
        0 => Value::Bool(false),
        1 => options.remove(0),
        _ => json!({ "anyOf": options }),
    }
}

fn all_of(mut parts: Vec<Value>) -> Value {
    parts.retain(|part| part != &Value::Bool(true));
    if parts.contains(&Value::Bool(false)) {
        return Value::Bool(false);
    }
    match parts.len() {
        0 => Value::Bool(true),
        1 => parts.remove(0),
        _ => json!({ "allOf": parts }),
    }
}

/// An object that has a property, of this schema.
fn with(name: &str, schema: Value) -> Value {
    json!({ "type": "object", "properties": { name: schema }, "required": [name] })
}

/// A value of another type than object, or an object without a property.
fn lacks(name: &str) -> Value {
    json!({ "properties": { name: false } })
}

impl Reader<'_> {
    /// Writes not, if, and the dependencies, which hold beside the other keywords.
    pub fn conditions(
        &mut self,
        object: &Keywords,
        out: &mut Map<String, Value>,
        at: &At,
        resource: usize,
    ) -> Outcome<()> {
        if let Some(part) = object.get("not") {
            let part = self.complement(part, &At::Key(at, "not"), resource, Types::beside(object))?;
            add_all_of(part, out);
        }
        for (name, required) in self.map_of(object, "dependentRequired", at)? {
            let all = strings(required, &At::Key(&At::Key(at, "dependentRequired"), name))?;
            let mut there = vec![name.as_str()];
            there.extend(all.into_iter().filter(|other| *other != name.as_str()));
            add_all_of(json!({ "anyOf": [lacks(name), { "required": there }] }), out);
        }
        for (name, schema) in self.map_of(object, "dependentSchemas", at)? {
            let schema = self.schema(schema, &At::Key(&At::Key(at, "dependentSchemas"), name), resource)?;
            let there = all_of(vec![json!({ "required": [name] }), schema]);
            add_all_of(any_of(vec![lacks(name), there]), out);
        }
        if let Some(choice) = self.condition(object, at, resource, true, Types::beside(object))? {
            add_all_of(choice, out);
        }
        Ok(())
    }

    fn map_of<'v>(&self, object: &'v Keywords, key: &str, at: &At) -> Outcome<Vec<(&'v String, &'v Value)>> {
        object.get(key).map_or(Ok(vec![]), |value| Ok(map(value, &At::Key(at, key))?.iter().collect()))
    }

    /// if, then and else, or their complement. None: they say nothing.
    fn condition(
        &mut self,
        object: &Keywords,
        at: &At,
        resource: usize,
        holds: bool,
        types: Types,
    ) -> Outcome<Option<Value>> {
        let Some(condition) = object.get("if").filter(|_| object.has("then") || object.has("else")) else {
            return Ok(None);
        };
        let mut options = vec![];
        for (key, is_met) in [("then", true), ("else", false)] {
            let place = At::Key(at, key);
            let part = match (object.get(key), holds) {
                (None, holds) => Value::Bool(holds),
                (Some(part), true) => self.schema(part, &place, resource)?,
                (Some(part), false) => self.complement(part, &place, resource, types)?,
            };
            if part == Value::Bool(false) {
                continue;
            }
            let at = At::Key(at, "if");
            let met = match is_met {
                true => self.schema(condition, &at, resource)?,
                false => self.complement(condition, &at, resource, types)?,
            };
            options.push(all_of(vec![met, part]));
        }
        Ok(Some(any_of(options)))
    }

    /// Writes a oneOf as: one of the schemas, and none of the others.
    pub fn exactly_one(
        &mut self,
        value: &Value,
        at: &At,
        resource: usize,
        out: &mut Map<String, Value>,
    ) -> Outcome<()> {
        let options = list(value, at)?;
        if options.len() > MAX_OPTIONS {
            return fail(at, format_args!("{} schemas that a value may fit are over {MAX_OPTIONS}", options.len()));
        }
        // Only what fits one of the schemas is to be told from the others.
        let mut types = Types(0);
        for (i, option) in options.iter().enumerate() {
            types = types.or(match option.as_object() {
                Some(object) => Types::beside(&self.open(object, &At::Index(at, i), resource)?.0),
                None => ALL,
            });
        }
        let mut written = vec![];
        for (i, option) in options.iter().enumerate() {
            let at = At::Index(at, i);
            let own = self.schema(option, &at, resource)?;
            written.push((own, self.complement(option, &at, resource, types)?));
        }
        let sizes = written.iter().map(|(own, not)| own.to_string().len() + not.to_string().len());
        self.work.charge((sizes.sum::<usize>() * options.len()) as u64 * BYTE_COST)?;
        let choice = |i: usize| {
            let parts = written.iter().enumerate().map(|(j, (own, not))| if i == j { own } else { not });
            all_of(parts.cloned().collect())
        };
        add_all_of(any_of((0..options.len()).map(choice).collect()), out);
        Ok(())
    }

    /// Writes a schema of the values, among those of `types`, that do not fit `value`.
    pub fn complement(&mut self, value: &Value, at: &At, resource: usize, types: Types) -> Outcome<Value> {
        self.work.step()?;
        self.work.charge(VALUE_COST)?;
        let Some(object) = value.as_object() else {
            return value.as_bool().map_or_else(|| fail(at, "a schema is an object, true or false"), |b| Ok((!b).into()));
        };
        let (object, resource) = self.open(object, at, resource)?;
        // A value of a type that `type` does not name is covered by it.
        let named = object.get("type").map_or(ALL, Types::named);
        let types_left = types.and(named);
        let mut options = vec![];
        if object.has("type") {
            options.push(self.other_types(types.without(named), &At::Key(at, "type"))?);
        }
        for (key, value) in object.iter().filter(|(key, _)| *key != "type") {
            let place = At::Key(at, key);
            self.without(key, value, &object, &place, resource, types_left, &mut options)?;
        }
        options.extend(self.condition(&object, at, resource, false, types_left)?);
        Ok(any_of(options))
    }

    fn other_types(&self, types: Types, at: &At) -> Outcome<Value> {
        if types.has(FRACTION) && !types.has(INTEGER) {
            return fail(at, format_args!("{WITHIN}, where a number with a fraction would fit; name the types beside it"));
        }
        let names = NAMES.iter().filter(|(name, own)| types.has(*own) && (*name != "integer" || !types.has(FRACTION)));
        let names: Vec<&str> = names.filter(|(name, _)| *name != "number" || types.has(FRACTION)).map(|n| n.0).collect();
        Ok(match names.as_slice() {
            [] => Value::Bool(false),
            [name] => json!({ "type": name }),
            names => json!({ "type": names }),
        })
    }

    /// Adds what breaks one keyword.
    #[allow(clippy::too_many_arguments)]
    fn without(
        &mut self,
        key: &str,
        value: &Value,
        object: &Keywords,
        at: &At,
        resource: usize,
        types: Types,
        options: &mut Vec<Value>,
    ) -> Outcome<()> {
        let number_name = types.number();
        match key {
            "const" => options.extend(self.other_values(std::slice::from_ref(value), types, at)?),
            "enum" => options.extend(self.other_values(list(value, at)?, types, at)?),
            "allOf" => {
                for (i, part) in list(value, at)?.iter().enumerate() {
                    options.push(self.complement(part, &At::Index(at, i), resource, types)?);
                }
            }
            "anyOf" => options.push(all_of(self.complements(value, at, resource, types)?)),
            "oneOf" => options.extend(self.none_or_several(value, at, resource, types)?),
            "not" => options.push(self.schema(value, at, resource)?),
            "$ref" => {
                let pointer = self.find(string(value, at)?, at, resource)?;
                options.push(json!({ "$ref": self.definition(Target { pointer, tag: None, not: Some(types) }) }));
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                let opposite = match key {
                    "minimum" => "exclusiveMaximum",
                    "maximum" => "exclusiveMinimum",
                    "exclusiveMinimum" => "maximum",
                    _ => "minimum",
                };
                number(value, at)?;
                options.extend(number_name.map(|name| json!({ "type": name, opposite: value })));
            }
            "minLength" => options.extend(fewer(types, STRING, "string", "maxLength", integer(value, at)?)),
            "minItems" => options.extend(fewer(types, ARRAY, "array", "maxItems", integer(value, at)?)),
            "minProperties" => options.extend(fewer(types, OBJECT, "object", "maxProperties", integer(value, at)?)),
            "maxLength" => options.extend(more(types, STRING, "string", "minLength", integer(value, at)?)),
            "maxItems" => options.extend(more(types, ARRAY, "array", "minItems", integer(value, at)?)),
            "maxProperties" => options.extend(more(types, OBJECT, "object", "minProperties", integer(value, at)?)),
            "pattern" if types.has(STRING) => {
                let pattern = self.regex(string(value, at)?, at)?;
                options.extend(self.other_than(&pattern, at)?);
            }
            "prefixItems" if types.has(ARRAY) => {
                for (i, part) in list(value, at)?.iter().enumerate() {
                    let mut items = vec![Value::Bool(true); i];
                    items.push(self.complement(part, &At::Index(at, i), resource, ALL)?);
                    if items[i] != Value::Bool(false) {
                        options.push(json!({ "type": "array", "minItems": i + 1, "prefixItems": items }));
                    }
                }
            }
            "contains" if types.has(ARRAY) && !object.has("minContains") && !object.has("maxContains") => {
                let items = self.complement(value, at, resource, ALL)?;
                options.push(json!({ "type": "array", "items": items }));
            }
            "required" if types.has(OBJECT) => {
                let names = strings(value, at)?.into_iter();
                options.extend(names.map(|name| json!({ "type": "object", "properties": { name: false } })));
            }
            "properties" if types.has(OBJECT) => {
                for (name, part) in map(value, at)? {
                    let part = self.complement(part, &At::Key(at, name), resource, ALL)?;
                    if part != Value::Bool(false) {
                        options.push(with(name, part));
                    }
                }
            }
            "dependentRequired" if types.has(OBJECT) => {
                for (name, others) in map(value, at)? {
                    let others = strings(others, &At::Key(at, name))?.into_iter().filter(|other| *other != name.as_str());
                    let without = |other: &str| json!({ "properties": { name: true, other: false } });
                    options.extend(others.map(|other| all_of(vec![with(name, Value::Bool(true)), without(other)])));
                }
            }
            "dependentSchemas" if types.has(OBJECT) => {
                for (name, part) in map(value, at)? {
                    let part = self.complement(part, &At::Key(at, name), resource, OBJECT)?;
                    options.push(all_of(vec![with(name, Value::Bool(true)), part]));
                }
            }
            _ if never_fails(key, value, object, types) => {}
            _ => return fail(at, WITHIN),
        }
        Ok(())
    }

    fn complements(&mut self, value: &Value, at: &At, resource: usize, types: Types) -> Outcome<Vec<Value>> {
        let parts = list(value, at)?.iter().enumerate();
        parts.map(|(i, part)| self.complement(part, &At::Index(at, i), resource, types)).collect()
    }

    /// The texts that a pattern does not match; None: there are none.
    fn other_than(&self, pattern: &str, at: &At) -> Outcome<Option<Value>> {
        let others = Texts::of(pattern, self.work).and_then(|texts| texts.others().pattern(self.work));
        (self.work.look()?, self.work.charge(0)?); // an error of these is the schema's
        match others {
            Ok(found) => Ok(found.map(|pattern| json!({ "type": "string", "pattern": pattern }))),
            Err(why) => fail(at, format_args!("{WITHIN}: it {why}")),
        }
    }

    /// No schema fits, or two do.
    fn none_or_several(&mut self, value: &Value, at: &At, resource: usize, types: Types) -> Outcome<Vec<Value>> {
        let parts = list(value, at)?;
        if parts.len() > MAX_OPTIONS {
            return fail(at, format_args!("{} schemas are over {MAX_OPTIONS}", parts.len()));
        }
        let mut own = vec![];
        for (i, part) in parts.iter().enumerate() {
            own.push(self.schema(part, &At::Index(at, i), resource)?);
        }
        let size: usize = own.iter().map(|part| part.to_string().len()).sum();
        self.work.charge((size * parts.len()) as u64 * BYTE_COST)?;
        let mut options = vec![all_of(self.complements(value, at, resource, types)?)];
        for (i, one) in own.iter().enumerate() {
            options.extend(own[i + 1..].iter().map(|other| all_of(vec![one.clone(), other.clone()])));
        }
        Ok(options)
    }

    /// The values of `types` but these.
    fn other_values(&self, values: &[Value], types: Types, at: &At) -> Outcome<Vec<Value>> {
        if values.len() > MAX_VALUES {
            return fail(at, format_args!("{} values are over {MAX_VALUES}", values.len()));
        }
        let mut texts = BTreeSet::new();
        let (mut numbers, mut left, mut seen) = (vec![], types, BTreeSet::new());
        let mut booleans = vec![false, true];
        for value in values.iter().filter(|value| types.has(Types::of_value(value))) {
            self.work.step()?;
            match value {
                Value::Null => {}
                Value::Bool(b) => booleans.retain(|other| other != b),
                Value::Number(_) if seen.insert(canonical(value)) => numbers.push(number(value, at)?),
                Value::Number(_) => {}
                Value::String(text) => {
                    self.work.text(text)?;
                    texts.insert(text.as_str());
                }
                _ => return fail(at, format_args!("{WITHIN}, where it lists an array or an object")),
            }
            left = left.without(if value.is_number() { NUMBER } else { Types::of_value(value) });
        }
        let mut options = vec![];
        if !numbers.is_empty() {
            options.extend(types.number().map_or(vec![], |name| other_numbers(&numbers, name)));
        }
        if booleans.len() == 1 && types.has(BOOLEAN) {
            options.push(json!({ "enum": booleans }));
        }
        if !texts.is_empty() {
            let Some(pattern) = other_texts(&texts) else { return fail(at, format_args!("{WITHIN}: its texts are too long")) };
            options.push(json!({ "type": "string", "pattern": pattern }));
        }
        options.push(self.other_types(left, at)?);
        Ok(options)
    }
}

/// Values with fewer than `least` of what `most` counts.
fn fewer(types: Types, own: Types, name: &str, most: &str, least: u64) -> Option<Value> {
    (types.has(own) && least > 0).then(|| json!({ "type": name, most: least - 1 }))
}

fn more(types: Types, own: Types, name: &str, least: &str, most: u64) -> Option<Value> {
    types.has(own).then(|| json!({ "type": name, least: most + 1 }))
}

fn strings<'v>(value: &'v Value, at: &At) -> Outcome<Vec<&'v str>> {
    let Some(items) = value.as_array() else { return fail(at, "must be an array of strings") };
    items.iter().enumerate().map(|(i, item)| string(item, &At::Index(at, i))).collect()
}

/// Whether no value of these types breaks the keyword.
fn never_fails(key: &str, value: &Value, object: &Keywords, types: Types) -> bool {
    let is_true = |value: &Value| value == &Value::Bool(true) || value.as_object().is_some_and(Map::is_empty);
    match key {
        "$schema" | "$id" | "id" | "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" | "$defs" | "definitions" => true,
        // These are seen with "if" and "contains".
        "if" | "then" | "else" => true,
        "discriminator" => true,
        "format" => {
            let is_checked = value.as_str().is_some_and(|name| FORMATS.contains(&name) || own_format(name).is_some());
            !is_checked || !types.has(STRING)
        }
        "pattern" | "minLength" | "maxLength" => !types.has(STRING),
        "multipleOf" => !types.has(NUMBER),
        "uniqueItems" => value == &Value::Bool(false) || !types.has(ARRAY),
        "items" | "unevaluatedItems" => is_true(value) || !types.has(ARRAY),
        "prefixItems" | "contains" => !types.has(ARRAY),
        "minContains" | "maxContains" => !types.has(ARRAY) || !object.has("contains"),
        "additionalProperties" | "propertyNames" | "unevaluatedProperties" => is_true(value) || !types.has(OBJECT),
        "patternProperties" => value.as_object().is_some_and(|map| map.values().all(is_true)) || !types.has(OBJECT),
        "required" | "properties" | "dependentRequired" | "dependentSchemas" => !types.has(OBJECT),
        _ => false,
    }
}
