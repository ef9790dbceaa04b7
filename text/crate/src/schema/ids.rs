//! Where a schema's references lead: by a pointer, by the `$id` of a schema within, or by an anchor.
//!
//! A schema with an `$id` is a resource of its own: references in it are relative to its URI, and their pointers begin
//! at it. Nothing is fetched, so each reference leads to a place in the schema itself.

use super::dialect::{Draft, Notes};
use super::{fail, Outcome};
use crate::json::{escape, At};
use crate::uri::{decode_percent, resolve};
use crate::work::Work;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};

struct Resource {
    pointer: String,
    uri: String,
    draft: Draft,
    anchors: HashMap<String, String>, // to pointers
    is_recursive: bool,               // $recursiveAnchor is true
}

pub struct Resources {
    prefix: String,     // the root's pointer, for errors
    all: Vec<Resource>, // the whole schema first
    by_pointer: BTreeMap<String, usize>,
    by_uri: HashMap<String, usize>,
}

/// The keywords, of any draft, whose value is a schema, a list of schemas, or a map to schemas. Some are more than one.
const SCHEMAS: [&str; 11] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
const LISTS: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
const MAPS: [&str; 6] = ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

fn split_fragment(reference: &str) -> (&str, &str) {
    reference.split_once('#').unwrap_or((reference, ""))
}

impl Resources {
    /// `prefix`: the root's pointer, for errors.
    pub fn of(root: &Value, prefix: &str, notes: &Notes, work: &Work) -> Outcome<Resources> {
        let (by_pointer, by_uri) = (BTreeMap::new(), HashMap::new());
        let mut resources = Resources { prefix: prefix.to_string(), all: vec![], by_pointer, by_uri };
        let draft = draft_of(root, Draft::Any, &At::Root(prefix), notes)?;
        resources.add(String::new(), String::new(), draft);
        resources.walk(root, &mut String::new(), 0, notes, work)?;
        Ok(resources)
    }

    fn add(&mut self, pointer: String, uri: String, draft: Draft) -> usize {
        let index = self.all.len();
        self.by_pointer.insert(pointer.clone(), index);
        self.by_uri.entry(uri.clone()).or_insert(index);
        self.all.push(Resource { pointer, uri, draft, anchors: HashMap::new(), is_recursive: false });
        index
    }

    /// Finds the resources and anchors of a schema. `pointer`: the schema's, restored when it returns.
    fn walk(&mut self, schema: &Value, pointer: &mut String, own: usize, notes: &Notes, work: &Work) -> Outcome<()> {
        work.step()?;
        let Some(object) = schema.as_object() else { return Ok(()) };
        let own = self.enter(object, schema, pointer, own, notes, work)?;
        for (key, value) in object {
            let length = pointer.len();
            let key = key.as_str();
            if !SCHEMAS.contains(&key) && !LISTS.contains(&key) && !MAPS.contains(&key) {
                continue;
            }
            pointer.push('/');
            pointer.push_str(key);
            match value {
                Value::Array(list) if LISTS.contains(&key) => {
                    for (i, part) in list.iter().enumerate() {
                        self.walk_part(part, &i.to_string(), pointer, own, notes, work)?;
                    }
                }
                Value::Object(map) if MAPS.contains(&key) => {
                    for (name, part) in map {
                        self.walk_part(part, &escape(name), pointer, own, notes, work)?;
                    }
                }
                value if SCHEMAS.contains(&key) => self.walk(value, pointer, own, notes, work)?,
                _ => {}
            }
            pointer.truncate(length);
        }
        Ok(())
    }

    fn walk_part(
        &mut self,
        part: &Value,
        name: &str,
        pointer: &mut String,
        own: usize,
        notes: &Notes,
        work: &Work,
    ) -> Outcome<()> {
        let length = pointer.len();
        pointer.push('/');
        pointer.push_str(name);
        self.walk(part, pointer, own, notes, work)?;
        pointer.truncate(length);
        Ok(())
    }

    /// The resource of the schema at `pointer`: that around it, or one of its own.
    fn enter(
        &mut self,
        object: &Map<String, Value>,
        schema: &Value,
        pointer: &str,
        around: usize,
        notes: &Notes,
        work: &Work,
    ) -> Outcome<usize> {
        let draft = self.all[around].draft;
        let text = |key: &str| object.get(key).and_then(Value::as_str);
        let mut own = around;
        let id = if draft == Draft::D4 { text("id") } else { text("$id") };
        let is_alone = object.contains_key("$ref") && draft < Draft::D2019; // what stands beside does not count
        if let Some(id) = id.filter(|_| !is_alone) {
            let (uri, fragment) = split_fragment(id);
            if !uri.is_empty() {
                let uri = resolve(&self.all[around].uri, uri);
                if pointer.is_empty() {
                    self.by_uri.insert(uri.clone(), 0);
                    self.all[0].uri = uri;
                } else {
                    let place = format!("{}{pointer}", self.prefix);
                    let draft = draft_of(schema, draft, &At::Root(&place), notes)?;
                    work.charge(pointer.len() as u64)?;
                    own = self.add(pointer.to_string(), uri, draft);
                }
            }
            if draft < Draft::D2019 && !fragment.is_empty() {
                work.charge(pointer.len() as u64)?;
                self.all[own].anchors.insert(fragment.to_string(), pointer.to_string());
            }
        }
        self.all[own].is_recursive |= object.get("$recursiveAnchor") == Some(&Value::Bool(true));
        for anchor in [text("$anchor"), text("$dynamicAnchor")].into_iter().flatten() {
            work.charge(pointer.len() as u64)?;
            self.all[own].anchors.insert(anchor.to_string(), pointer.to_string());
        }
        Ok(own)
    }

    /// The resource that the schema at `pointer` is in.
    pub fn around(&self, pointer: &str) -> usize {
        let mut rest = pointer;
        loop {
            if let Some(&index) = self.by_pointer.get(rest) {
                return index;
            }
            rest = rest.rfind('/').map_or("", |slash| &rest[..slash]);
        }
    }

    /// The resource that begins at `pointer`, if one does.
    pub fn at(&self, pointer: &str) -> Option<usize> {
        self.by_pointer.get(pointer).copied()
    }

    /// Whether there is no resource but the whole.
    pub fn is_one(&self) -> bool {
        self.all.len() == 1
    }

    pub fn draft(&self, resource: usize) -> Draft {
        self.all[resource].draft
    }

    /// Whether several places may be meant by a dynamic anchor: which, depends on how the schema was come by.
    pub fn is_ambiguous(&self, anchor: &str) -> bool {
        self.all.iter().filter(|resource| resource.anchors.contains_key(anchor)).count() > 1
    }

    /// Whether a `$recursiveRef` may lead to several places.
    pub fn is_recursion_ambiguous(&self) -> bool {
        self.all.iter().any(|resource| resource.is_recursive) && !self.is_one()
    }

    /// The pointer that a `$ref` of `resource` leads to.
    pub fn find(&self, reference: &str, resource: usize, at: &At) -> Outcome<String> {
        let (uri, fragment) = split_fragment(reference);
        let Some(fragment) = decode_percent(fragment) else {
            return fail(at, format_args!("{reference:?} is not a URI reference"));
        };
        let mut resource = resource;
        if !uri.is_empty() {
            let absolute = resolve(&self.all[resource].uri, uri);
            let Some(&found) = self.by_uri.get(&absolute) else {
                return fail(at, format_args!("{reference:?} is no part of this schema, and nothing is fetched"));
            };
            resource = found;
        }
        let found = &self.all[resource];
        if fragment.is_empty() || fragment.starts_with('/') {
            return Ok(format!("{}{fragment}", found.pointer));
        }
        match found.anchors.get(&fragment) {
            Some(pointer) => Ok(pointer.clone()),
            None => fail(at, format_args!("{reference:?} names no anchor of this schema")),
        }
    }
}

/// The draft that a schema's `$schema` names; else `around`.
fn draft_of(schema: &Value, around: Draft, at: &At, notes: &Notes) -> Outcome<Draft> {
    let Some(value) = schema.get("$schema") else { return Ok(around) };
    let at = At::Key(at, "$schema");
    let Some(text) = value.as_str() else { return fail(&at, "must be a string") };
    if let Some(draft) = Draft::of(text) {
        return Ok(draft);
    }
    if ["-00", "-01", "-02", "-03"].iter().any(|old| text.contains(&format!("json-schema.org/draft{old}"))) {
        return fail(&at, format_args!("{value} is not supported; draft-04 is the oldest that is"));
    }
    notes.add(&at, "not a draft that Berth knows; the schema is read as one of 2020-12")?;
    Ok(around)
}
