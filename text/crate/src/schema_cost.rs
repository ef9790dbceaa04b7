//! What llguidance takes to compile a schema that the reader wrote, by a model of how it does. Nothing interrupts it,
//! so what would take long is refused.
//!
//! Keywords that stand beside each other are intersected, pair by pair. Each option of one side then gets a copy of the
//! other side:
//!
//!   {"anyOf": [A, B], "properties": P}    ->    A and P, B and P
//!
//! Options of different types meet in nothing, so they are counted by type. An object costs the square of its names.

use crate::schema_refs::{dependencies_first, list, parts};
use crate::work::Work;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Names in an object's properties and in what is required.
pub const MAX_NAMES: u64 = 2000;
/// Telling apart two patterns of properties, and finding whether a pattern has a name.
const PATTERN_PAIR_COST: u64 = 150;
const PATTERN_NAME_COST: u64 = 10;

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
const OBJECT: usize = 5;

/// What an intersection copies and multiplies. All upper bounds.
#[derive(Clone, Copy)]
struct Shape {
    is_any: bool,
    options: [u64; 6], // of each type
    size: u64,         // schemas in all of them, where a reference is one
    full_size: u64,    // the same with the references that an intersection follows
    names: u64,        // of an object
}

const ANY: Shape = Shape { is_any: true, options: [1; 6], size: 1, full_size: 1, names: 0 };
const NOTHING: Shape = Shape { is_any: false, options: [0; 6], size: 0, full_size: 0, names: 0 };

fn sum(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(0, u64::saturating_add)
}

impl Shape {
    fn all_options(&self) -> u64 {
        sum(self.options)
    }

    fn or(self, other: Shape) -> Shape {
        let mut options = self.options;
        options.iter_mut().zip(other.options).for_each(|(a, b)| *a = a.saturating_add(b));
        let size = self.size.saturating_add(other.size);
        let full_size = self.full_size.saturating_add(other.full_size);
        Shape { is_any: false, options, size, full_size, names: self.names.max(other.names) }
    }
}

struct Costs<'a> {
    known: BTreeMap<&'a str, Shape>, // of references
    work: &'a Work,
}

/// Charges the work for the compilation of `schema`.
pub fn charge(schema: &Value, work: &Work) -> Result<(), String> {
    let mut costs = Costs { known: BTreeMap::new(), work };
    for definition in dependencies_first(schema, work)? {
        let shape = costs.of(definition.schema)?;
        costs.known.insert(definition.pointer, shape);
    }
    costs.of(schema).map(|_| ())
}

impl Costs<'_> {
    fn of(&self, schema: &Value) -> Result<Shape, String> {
        self.work.step()?;
        let Some(object) = schema.as_object() else {
            return Ok(if schema == &Value::Bool(false) { NOTHING } else { ANY });
        };
        let mut shape = self.own(object)?;
        if let Some(pointer) = object.get("$ref").and_then(Value::as_str) {
            let target = self.known.get(pointer).copied().unwrap_or(ANY);
            shape = self.and(shape, Shape { size: 1, ..target })?;
        }
        for part in list(object, "allOf") {
            shape = self.and(shape, self.of(part)?)?;
        }
        for key in ["anyOf", "oneOf"] {
            if object.contains_key(key) {
                let mut options = NOTHING;
                for option in list(object, key) {
                    options = options.or(self.of(option)?);
                }
                shape = self.and(shape, options)?;
            }
        }
        for values in object.get("enum").into_iter().flat_map(Value::as_array) {
            let mut options = NOTHING;
            for value in values {
                options = options.or(self.literal(value)?);
            }
            shape = self.and(shape, options)?;
        }
        if let Some(value) = object.get("const") {
            shape = self.and(shape, self.literal(value)?)?;
        }
        Ok(shape)
    }

    /// The shape of the keywords that say something of one type.
    fn own(&self, object: &Map<String, Value>) -> Result<Shape, String> {
        let applied = ["$ref", "allOf", "anyOf", "oneOf", "enum", "const", "$defs"];
        if object.keys().all(|key| applied.contains(&key.as_str())) {
            return Ok(ANY);
        }
        let options = match object.get("type") {
            Some(Value::String(name)) => options_of([name.as_str()]),
            Some(Value::Array(names)) => options_of(names.iter().filter_map(Value::as_str)),
            _ => [1; 6],
        };
        let mut size = sum(options);
        for (key, value) in object.iter().filter(|(key, _)| !applied.contains(&key.as_str())) {
            for part in parts(key, value) {
                size = size.saturating_add(self.of(part)?.size);
            }
        }
        let count = |key: &str| object.get(key).and_then(Value::as_object).map_or(0, |map| map.len() as u64);
        let required = list(object, "required").iter().filter_map(Value::as_str);
        let extra = required.filter(|name| object.get("properties").and_then(|named| named.get(name)).is_none());
        let names = count("properties").saturating_add(extra.count() as u64);
        let patterns = count("patternProperties");
        let shape = Shape { is_any: false, options, size, full_size: size, names };
        if options[OBJECT] > 0 {
            self.work.charge(patterns.saturating_mul(patterns.saturating_mul(PATTERN_PAIR_COST)))?;
            self.work.charge(patterns.saturating_mul(names.saturating_mul(PATTERN_NAME_COST)))?;
            self.charge_objects(&shape)?;
        }
        Ok(shape)
    }

    fn charge_objects(&self, shape: &Shape) -> Result<(), String> {
        if shape.names > MAX_NAMES {
            return Err(format!("an object has {} names in properties and required, over {MAX_NAMES}", shape.names));
        }
        self.work.charge(shape.options[OBJECT].saturating_mul(shape.names * shape.names))
    }

    fn and(&self, a: Shape, b: Shape) -> Result<Shape, String> {
        if a.is_any || b.is_any {
            return Ok(if a.is_any { b } else { a });
        }
        let copies = |of: &Shape, times: u64| of.full_size.saturating_mul(times);
        self.work.charge(copies(&a, b.all_options()).saturating_add(copies(&b, a.all_options())))?;
        let mut options = a.options;
        options.iter_mut().zip(b.options).for_each(|(x, y)| *x = x.saturating_mul(y));
        let most = |of: &Shape| of.options.into_iter().max().unwrap_or(0);
        let size = copies(&a, most(&b)).saturating_add(copies(&b, most(&a)));
        let names = a.names.saturating_add(b.names);
        let shape = Shape { is_any: false, options, size, full_size: size, names };
        if options[OBJECT] > 0 {
            self.charge_objects(&shape)?;
        }
        Ok(shape)
    }

    fn literal(&self, value: &Value) -> Result<Shape, String> {
        self.work.step()?;
        let (kind, inner): (usize, Vec<&Value>) = match value {
            Value::Null => (0, vec![]),
            Value::Bool(_) => (1, vec![]),
            Value::Number(_) => (2, vec![]),
            Value::String(_) => (3, vec![]),
            Value::Array(items) => (4, items.iter().collect()),
            Value::Object(items) => (OBJECT, items.values().collect()),
        };
        let mut shape = Shape { size: 1, ..NOTHING };
        shape.options[kind] = 1;
        for value in &inner {
            shape.size = shape.size.saturating_add(self.literal(value)?.size);
        }
        shape.full_size = shape.size;
        if kind == OBJECT {
            shape.names = inner.len() as u64;
            self.charge_objects(&shape)?;
        }
        Ok(shape)
    }
}

fn options_of<'v>(names: impl IntoIterator<Item = &'v str>) -> [u64; 6] {
    let mut options = [0; 6];
    for name in names {
        let name = if name == "integer" { "number" } else { name };
        options.iter_mut().zip(TYPES).for_each(|(count, known)| *count += u64::from(name == known));
    }
    options
}
