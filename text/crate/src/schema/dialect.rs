//! The drafts of JSON Schema. A schema of any of them is read as one of draft 2020-12, whose keywords say the same:
//!
//!   draft-04         "exclusiveMaximum": true, "maximum": 5    ->    "exclusiveMaximum": 5
//!   before 2020-12   "items": [A, B], "additionalItems": C     ->    "prefixItems": [A, B], "items": C
//!   before 2019-09   "dependencies": {"a": ["b"]}              ->    "dependentRequired": {"a": ["b"]}
//!   before 2019-09   "$ref" beside other keywords              ->    "$ref" alone
//!
//! What the draft does not know is an annotation: it constrains nothing, and a warning names it. A schema without
//! $schema is of draft 2020-12, and may use the older spellings too.

use super::{fail, Outcome};
use crate::json::At;
use llguidance::HashSet;
use serde_json::{Map, Value};
use std::cell::{Cell, RefCell};
use std::fmt::Write;

/// In their order. `Any`: no $schema names one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Draft {
    D4,
    D6,
    D7,
    D2019,
    D2020,
    Any,
}

const DRAFTS: [(&str, Draft, &str); 6] = [
    ("http://json-schema.org/draft-04/schema", Draft::D4, "draft-04"),
    ("http://json-schema.org/draft-06/schema", Draft::D6, "draft-06"),
    ("http://json-schema.org/draft-07/schema", Draft::D7, "draft-07"),
    ("https://json-schema.org/draft/2019-09/schema", Draft::D2019, "2019-09"),
    ("https://json-schema.org/draft/2020-12/schema", Draft::D2020, "2020-12"),
    // Means the newest.
    ("http://json-schema.org/schema", Draft::Any, "2020-12"),
];

/// The keywords, and the first and last draft that have them.
const KEYWORDS: [(&str, Draft, Draft); 52] = {
    use Draft::*;
    [
        ("$anchor", D2019, Any),
        ("$defs", D4, Any), // only a place, so of any draft
        ("$dynamicAnchor", D2020, Any),
        ("$dynamicRef", D2020, Any),
        ("$id", D6, Any),
        ("$recursiveAnchor", D2019, D2019),
        ("$recursiveRef", D2019, D2019),
        ("$ref", D4, Any),
        ("$schema", D4, Any),
        ("additionalItems", D4, D2019),
        ("additionalProperties", D4, Any),
        ("allOf", D4, Any),
        ("anyOf", D4, Any),
        ("const", D6, Any),
        ("contains", D6, Any),
        ("definitions", D4, Any),
        ("dependencies", D4, D7),
        ("dependentRequired", D2019, Any),
        ("dependentSchemas", D2019, Any),
        ("discriminator", D4, Any), // OpenAPI's
        ("else", D7, Any),
        ("enum", D4, Any),
        ("exclusiveMaximum", D4, Any),
        ("exclusiveMinimum", D4, Any),
        ("format", D4, Any),
        ("id", D4, D4),
        ("if", D7, Any),
        ("items", D4, Any),
        ("maxContains", D2019, Any),
        ("maxItems", D4, Any),
        ("maxLength", D4, Any),
        ("maxProperties", D4, Any),
        ("maximum", D4, Any),
        ("minContains", D2019, Any),
        ("minItems", D4, Any),
        ("minLength", D4, Any),
        ("minProperties", D4, Any),
        ("minimum", D4, Any),
        ("multipleOf", D4, Any),
        ("not", D4, Any),
        ("oneOf", D4, Any),
        ("pattern", D4, Any),
        ("patternProperties", D4, Any),
        ("prefixItems", D2020, Any),
        ("properties", D4, Any),
        ("propertyNames", D6, Any),
        ("required", D4, Any),
        ("then", D7, Any),
        ("type", D4, Any),
        ("unevaluatedItems", D2019, Any),
        ("unevaluatedProperties", D2019, Any),
        ("uniqueItems", D4, Any),
    ]
};

/// Keywords of a draft, or of OpenAPI, that constrain nothing.
pub const ANNOTATIONS: [&str; 13] = [
    "title",
    "description",
    "default",
    "examples",
    "$comment",
    "deprecated",
    "readOnly",
    "writeOnly",
    "example",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "$vocabulary",
];
/// Most warnings of a schema that are listed.
const MAX_NOTES: usize = 20;
/// Characters of a pointer in a warning.
const MAX_PLACE: usize = 200;
/// Letters that are added, left out or changed in a keyword that is meant.
const MAX_DISTANCE: usize = 2;

impl Draft {
    /// The draft that $schema names, if it is one that Berth reads.
    pub fn of(uri: &str) -> Option<Draft> {
        let uri = uri.trim_end_matches('#');
        let of =
            |known: &&(&str, Draft, &str)| known.0.split_once("//").map(|x| x.1) == uri.split_once("//").map(|x| x.1);
        DRAFTS.iter().find(of).map(|known| known.1)
    }

    fn name(self) -> &'static str {
        DRAFTS.iter().find(|known| known.1 == self).map_or("2020-12", |known| known.2)
    }

    fn has(self, first: Draft, last: Draft) -> bool {
        self == Draft::Any || (first <= self && self <= last)
    }

    /// Whether keywords beside $ref count.
    fn reads_beside_ref(self) -> bool {
        self >= Draft::D2019
    }
}

/// The first characters of what is written; the rest is an error.
struct Beginning {
    text: String,
    left: usize,
}

impl Write for Beginning {
    fn write_str(&mut self, more: &str) -> std::fmt::Result {
        for c in more.chars() {
            self.left = self.left.checked_sub(1).ok_or(std::fmt::Error)?;
            self.text.push(c);
        }
        Ok(())
    }
}

/// What the schema has that constrains nothing, though its author may think so.
#[derive(Default)]
pub struct Notes {
    refuse: bool,                  // it is an error
    seen: RefCell<HashSet<usize>>, // unknown keywords, by their values' addresses, which hold for one schema
    list: RefCell<Vec<String>>,
    more: Cell<bool>,
}

impl Notes {
    pub fn new(refuse: bool) -> Notes {
        Notes { refuse, ..Default::default() }
    }

    pub fn add(&self, at: &At, what: impl std::fmt::Display) -> Outcome<()> {
        if self.refuse {
            return fail(at, what);
        }
        let mut list = self.list.borrow_mut();
        let mut place = Beginning { text: String::new(), left: MAX_PLACE };
        let _ = write!(place, "{at}"); // an error says that it was cut
        let text = format!("{}: ignored: {what}", place.text).replace('\n', " "); // a line each
        if list.contains(&text) {
            return Ok(());
        }
        if list.len() >= MAX_NOTES {
            self.more.set(true);
        } else {
            list.push(text);
        }
        Ok(())
    }

    /// Call before a schema is read. Its parts may be read more than once.
    pub fn begin(&self) {
        self.seen.borrow_mut().clear();
    }

    /// Marks the value of an unknown keyword. Returns whether it is new, and the list has room.
    fn mark(&self, value: &Value) -> bool {
        let is_new = self.seen.borrow_mut().insert(value as *const Value as usize);
        let is_full = self.list.borrow().len() >= MAX_NOTES;
        self.more.set(self.more.get() || (is_new && is_full));
        is_new && !is_full
    }

    /// One a line.
    pub fn text(&self) -> String {
        let mut list = self.list.take();
        if self.more.get() {
            list.push(format!("and more: only {MAX_NOTES} warnings are listed"));
        }
        list.join("\n")
    }
}

/// The number of letters that differ, up to one over the most.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > MAX_DISTANCE {
        return MAX_DISTANCE + 1;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let least = (corner + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            corner = std::mem::replace(&mut row[j + 1], least);
        }
    }
    row[b.len()]
}

/// Says of a key that the draft does not know what may be meant.
fn unknown(key: &str, draft: Draft) -> String {
    if let Some((_, first, last)) = KEYWORDS.iter().find(|known| known.0 == key) {
        let (when, of) = if draft < *first { ("since", first) } else { ("until", last) };
        return format!("a keyword {when} {}; the schema is of {}", of.name(), draft.name());
    }
    let near = |name: &str| (distance(&key.to_lowercase(), &name.to_lowercase()), distance(key, name));
    let length = key.chars().count();
    let is_like = |name: &str| length.abs_diff(name.len()) <= MAX_DISTANCE;
    let known = KEYWORDS.iter().filter(|known| draft.has(known.1, known.2) && is_like(known.0)).map(|known| known.0);
    match known.map(|name| (near(name), name)).min() {
        Some((distance, name)) if distance.0 <= MAX_DISTANCE && name.len() > MAX_DISTANCE + 1 => {
            format!("unknown keyword; {name} may be meant")
        }
        _ => "unknown keyword".to_string(),
    }
}

/// What a schema says, in the keywords of draft 2020-12 and in its own order.
pub struct Keywords<'v>(Vec<(&'v str, &'v Value)>);

impl<'v> Keywords<'v> {
    pub fn none() -> Keywords<'v> {
        Keywords(vec![])
    }

    pub fn get(&self, key: &str) -> Option<&'v Value> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'v str, &'v Value)> + '_ {
        self.0.iter().copied()
    }

    fn add(&mut self, key: &'v str, value: &'v Value) {
        self.0.push((key, value));
    }
}

/// Reads a schema's keywords. What its draft does not know is left out.
pub fn modern<'v>(object: &'v Map<String, Value>, draft: Draft, at: &At, notes: &Notes) -> Outcome<Keywords<'v>> {
    debug_assert!(KEYWORDS.is_sorted());
    let mut out = Keywords(vec![]);
    let is_alone = object.contains_key("$ref") && !draft.reads_beside_ref();
    for (key, value) in object {
        let known = KEYWORDS.binary_search_by(|known| known.0.cmp(key.as_str()));
        if !known.is_ok_and(|i| draft.has(KEYWORDS[i].1, KEYWORDS[i].2)) {
            if !ANNOTATIONS.contains(&key.as_str()) && notes.mark(value) {
                notes.add(&At::Key(at, key), unknown(key, draft))?;
            }
        } else if is_alone && !["$ref", "$defs", "definitions", "$schema", "$id", "id"].contains(&key.as_str()) {
            notes.add(&At::Key(at, key), format_args!("{} passes over keywords beside $ref", draft.name()))?;
        } else {
            write(key, value, object, draft, at, &mut out)?;
        }
    }
    Ok(out)
}

/// One keyword as draft 2020-12 has it.
fn write<'v>(
    key: &'v str,
    value: &'v Value,
    object: &'v Map<String, Value>,
    draft: Draft,
    at: &At,
    out: &mut Keywords<'v>,
) -> Outcome<()> {
    match key {
        "exclusiveMinimum" | "exclusiveMaximum" if value.is_boolean() => {
            if draft != Draft::D4 && draft != Draft::Any {
                return fail(&At::Key(at, key), format_args!("{value} is of draft-04; give the number itself"));
            }
            let bound = if key == "exclusiveMinimum" { "minimum" } else { "maximum" };
            if let (Value::Bool(true), Some(number)) = (value, object.get(bound)) {
                out.add(key, number);
            }
        }
        "items" if value.is_array() => {
            if draft == Draft::D2020 || object.contains_key("prefixItems") {
                return fail(&At::Key(at, key), "an array is of older drafts; use prefixItems");
            }
            if value.as_array().is_some_and(|list| !list.is_empty()) {
                out.add("prefixItems", value);
            }
            if let Some(rest) = object.get("additionalItems") {
                out.add("items", rest);
            }
        }
        "additionalItems" => {} // beside a list, which has written it; without one it says nothing
        "dependencies" => dependencies(value, object, &At::Key(at, key), out)?,
        _ => out.add(key, value),
    }
    Ok(())
}

/// What a key of `dependencies` needs: names, or a schema. Both keywords have the map, and each reads its own part.
pub fn is_list_of_names(value: &Value) -> bool {
    value.is_array() || value.is_string()
}

fn dependencies<'v>(value: &'v Value, object: &Map<String, Value>, at: &At, out: &mut Keywords<'v>) -> Outcome<()> {
    let Some(all) = value.as_object() else { return fail(at, "must be an object") };
    for (name, lists) in [("dependentRequired", true), ("dependentSchemas", false)] {
        if !all.values().any(|value| is_list_of_names(value) == lists) {
            continue;
        }
        if object.contains_key(name) {
            return fail(at, format_args!("stands beside {name}; use that alone"));
        }
        out.add(name, value);
    }
    Ok(())
}
