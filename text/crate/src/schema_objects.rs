//! Keywords of objects that are written once the others are: the names that properties may have, and OpenAPI's
//! discriminator.

use crate::json::At;
use crate::pattern_sets::Texts;
use crate::schema::{fail, integer, string, Outcome, Reader, Target, MAX_DEPTH};
use crate::schema_dialect::{is_keyword, Keywords};
use crate::schema_lists::{values_of, write_names};
use serde_json::{json, Map, Value};

impl Reader<'_> {
    /// The values of a schema, if it lists them.
    pub fn values_of(&self, schema: &Value, resource: usize) -> Outcome<Option<Vec<Value>>> {
        let find = |reference: &str| {
            let pointer = self.resources.find(reference, resource, &At::Root("")).ok()?;
            self.root.pointer(&pointer)
        };
        values_of(&find, schema, MAX_DEPTH, self.work)
    }

    /// OpenAPI's discriminator names the property that tells the options apart. It does not say which values fit,
    /// but who reads the union needs the property, so it is required.
    pub fn discriminate(
        &mut self,
        object: &Keywords,
        out: &mut Map<String, Value>,
        at: &At,
        resource: usize,
    ) -> Outcome<()> {
        let Some(discriminator) = object.get("discriminator") else { return Ok(()) };
        let at = At::Key(at, "discriminator");
        let Some(name) = discriminator.get("propertyName").and_then(Value::as_str) else {
            return self.notes.add(&at, "no object with a propertyName");
        };
        for key in ["oneOf", "anyOf"] {
            let references = object.list(key).iter().map(|option| option.get("$ref").and_then(Value::as_str));
            for (i, text) in references.enumerate().filter_map(|(i, text)| Some((i, text?))) {
                let pointer = self.resources.find(text, resource, &at)?;
                let target = Target { pointer, tag: Some(name.to_string()), not: None };
                if let Some(option) = out.get_mut(key).and_then(|options| options.get_mut(i)) {
                    option["$ref"] = self.definition(target);
                }
            }
        }
        Ok(())
    }

    /// Writes an object with propertyNames.
    pub fn names(
        &mut self,
        names: &Value,
        object: &Keywords,
        out: &mut Map<String, Value>,
        at: &At,
        resource: usize,
    ) -> Outcome<()> {
        let other = match object.get("additionalProperties") {
            None => Value::Bool(true),
            Some(value) if value.is_boolean() => value.clone(),
            Some(_) => {
                let pointer = self.pointer(&At::Key(at, "additionalProperties"));
                json!({ "$ref": self.definition(Target { pointer, tag: None, not: None }) })
            }
        };
        let is_plain = !object.has("patternProperties");
        let values = self.values_of(names, resource)?;
        if let Some(values) = values.filter(|_| is_plain) {
            write_names(values, &other, out);
            return Ok(());
        }
        let at = At::Key(at, "propertyNames");
        let Some(pattern) = self.name_pattern(names, &at)?.filter(|_| is_plain) else {
            return fail(&at, "supported only where it lists the names or is one pattern, without patternProperties beside it");
        };
        if pattern.is_empty() {
            return Ok(()); // every name
        }
        let texts = Texts::of(&pattern, self.work);
        (self.work.look()?, self.work.charge(0)?); // an error of these is the schema's
        for (name, schema) in out.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
            match &texts {
                Ok(texts) if texts.has(name) => {}
                Ok(_) => *schema = Value::Bool(false),
                Err(why) => return fail(&at, format_args!("names cannot be compared with its pattern, which {why}")),
            }
        }
        out.insert("patternProperties".to_string(), json!({ pattern: other }));
        out.insert("additionalProperties".to_string(), Value::Bool(false));
        Ok(())
    }

    /// The pattern that all names match, "" for every name. None: it is not just one pattern.
    fn name_pattern(&self, names: &Value, at: &At) -> Outcome<Option<String>> {
        let Some(names) = names.as_object() else {
            return Ok(if names == &Value::Bool(true) { Some(String::new()) } else { None });
        };
        let keys = names.keys().map(String::as_str).filter(|key| is_keyword(key) && *key != "type");
        let is_string = names.get("type").is_none_or(|name| name == "string");
        let number = |key: &str| names.get(key).map(|value| integer(value, &At::Key(at, key))).transpose();
        Ok(match keys.collect::<Vec<_>>().as_slice() {
            _ if !is_string => None,
            [] => Some(String::new()),
            ["pattern"] => Some(self.regex(string(&names["pattern"], at)?, &At::Key(at, "pattern"))?),
            keys if keys.iter().all(|key| ["minLength", "maxLength"].contains(key)) => {
                let most = number("maxLength")?.map_or(String::new(), |most| most.to_string());
                Some(format!("^(?s:.){{{},{most}}}$", number("minLength")?.unwrap_or(0)))
            }
            _ => None,
        })
    }
}

/// Makes a property of an object required, where the schema is one of an object that has it.
pub fn require(name: String, schema: &mut Value) {
    let has = schema.get("properties").is_some_and(|properties| properties.get(&name).is_some());
    let has = has && schema.get("type") == Some(&json!("object"));
    let Some(object) = schema.as_object_mut().filter(|_| has) else { return };
    let required = object.entry("required").or_insert_with(|| json!([])).as_array_mut().unwrap();
    if !required.contains(&Value::from(name.as_str())) {
        required.push(name.into());
    }
}
