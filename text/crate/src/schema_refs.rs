//! The definitions of a schema that the reader wrote, in an order in which each comes after those that it names. So
//! what holds for a definition is found once, however many references there are to it.

use crate::work::Work;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

pub struct Definition<'a> {
    pub pointer: &'a str, // as references spell it
    pub schema: &'a Value,
}

/// The schemas that are part of a keyword's value.
pub fn parts<'a>(key: &str, value: &'a Value) -> Vec<&'a Value> {
    match (key, value) {
        ("properties" | "patternProperties", Value::Object(schemas)) => schemas.values().collect(),
        ("allOf" | "anyOf" | "oneOf" | "prefixItems", Value::Array(schemas)) => schemas.iter().collect(),
        ("items" | "additionalProperties", schema) => vec![schema],
        _ => vec![],
    }
}

/// The elements of a keyword's array.
pub fn list<'v>(object: &'v Map<String, Value>, key: &str) -> &'v [Value] {
    object.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The pointers of all references in `schema`, appended.
fn references<'a>(schema: &'a Value, into: &mut Vec<&'a str>, work: &Work) -> Result<(), String> {
    work.step()?;
    let Some(object) = schema.as_object() else { return Ok(()) };
    into.extend(object.get("$ref").and_then(Value::as_str));
    let mut all = object.iter().flat_map(|(key, value)| parts(key, value));
    all.try_for_each(|part| references(part, into, work))
}

/// Where definitions name each other in a circle, one of them comes before one that it names.
pub fn dependencies_first<'a>(root: &'a Value, work: &Work) -> Result<Vec<Definition<'a>>, String> {
    let mut order = vec![];
    let mut opened: BTreeMap<&str, &Value> = BTreeMap::new();
    // Depth first: the pointers that each open definition names and that are still to be looked at.
    let mut open: Vec<(Option<&str>, Vec<&str>)> = vec![(None, vec![])];
    references(root, &mut open[0].1, work)?;
    while let Some((own, names)) = open.last_mut() {
        work.step()?;
        let Some(pointer) = names.pop() else {
            order.extend(own.map(|pointer| Definition { pointer, schema: opened[pointer] }));
            open.pop();
            continue;
        };
        let Some(schema) = root.pointer(&pointer[1..]).filter(|_| !opened.contains_key(pointer)) else { continue };
        opened.insert(pointer, schema);
        let mut names = vec![];
        references(schema, &mut names, work)?;
        open.push((Some(pointer), names));
    }
    Ok(order)
}
