//! The bytes that every value of a schema has, as far as the schema shows.

use crate::schema_refs::{dependencies_first, list, Definition};
use crate::work::Work;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

type Bytes = [bool; 256];

struct Needs<'a> {
    known: BTreeMap<&'a str, Bytes>, // of references
    work: &'a Work,
}

fn add_text(text: &str, into: &mut Bytes) {
    text.bytes().for_each(|b| into[b as usize] = true);
}

fn unite(into: &mut Bytes, other: &Bytes) {
    into.iter_mut().zip(other).for_each(|(a, b)| *a |= b);
}

/// `schema` is as the reader wrote it. The least sets that agree with each other, found by going over the definitions
/// until none changes.
pub fn required_bytes(schema: &Value, work: &Work) -> Result<Bytes, String> {
    let definitions = dependencies_first(schema, work)?;
    let mut needs = Needs { known: BTreeMap::new(), work };
    while needs.pass(&definitions)? {}
    needs.of(schema)
}

impl<'a> Needs<'a> {
    /// Whether a definition needs more than before.
    fn pass(&mut self, definitions: &[Definition<'a>]) -> Result<bool, String> {
        let mut changed = false;
        for definition in definitions {
            let bytes = self.of(definition.schema)?;
            changed |= self.known.insert(definition.pointer, bytes).unwrap_or([false; 256]) != bytes;
        }
        Ok(changed)
    }

    fn of(&self, schema: &Value) -> Result<Bytes, String> {
        self.work.step()?;
        let mut needs = [false; 256];
        let Some(object) = schema.as_object() else { return Ok(needs) };
        if let Some(value) = object.get("const") {
            self.literal(value, &mut needs)?;
        }
        match object.get("type").and_then(Value::as_str) {
            Some("string") => add_text("\"", &mut needs),
            Some("null") => add_text("null", &mut needs),
            Some("array") => self.array(object, &mut needs)?,
            Some("object") => self.object(object, &mut needs)?,
            _ => {}
        }
        if let Some(known) = object.get("$ref").and_then(Value::as_str).and_then(|pointer| self.known.get(pointer)) {
            unite(&mut needs, known);
        }
        for part in list(object, "allOf") {
            unite(&mut needs, &self.of(part)?);
        }
        for key in ["anyOf", "oneOf"] {
            self.options(list(object, key), &mut needs, |option, own| Ok(unite(own, &self.of(option)?)))?;
        }
        self.options(list(object, "enum"), &mut needs, |value, own| self.literal(value, own))?;
        Ok(needs)
    }

    /// With whitespace or without: none is needed.
    fn literal(&self, value: &Value, needs: &mut Bytes) -> Result<(), String> {
        let text = value.to_string();
        self.work.text(&text)?;
        add_text(&text, needs);
        Ok(())
    }

    fn array(&self, object: &Map<String, Value>, needs: &mut Bytes) -> Result<(), String> {
        add_text("[]", needs);
        if object.get("minItems").and_then(Value::as_u64).unwrap_or(0) > 0 {
            if let Some(first) = object.get("prefixItems").and_then(|items| items.get(0)).or(object.get("items")) {
                unite(needs, &self.of(first)?);
            }
        }
        Ok(())
    }

    fn object(&self, object: &Map<String, Value>, needs: &mut Bytes) -> Result<(), String> {
        add_text("{}", needs);
        for name in list(object, "required") {
            add_text(":", needs);
            self.literal(name, needs)?;
            if let Some(schema) = name.as_str().and_then(|name| object.get("properties")?.get(name)) {
                unite(needs, &self.of(schema)?);
            }
        }
        Ok(())
    }

    /// Adds what all options need.
    fn options(
        &self,
        options: &[Value],
        needs: &mut Bytes,
        of: impl Fn(&Value, &mut Bytes) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut common = [!options.is_empty(); 256];
        for option in options {
            self.work.step()?;
            let mut own = [false; 256];
            of(option, &mut own)?;
            common.iter_mut().zip(own).for_each(|(all, one)| *all &= one);
        }
        unite(needs, &common);
        Ok(())
    }
}
