//! The types of JSON values, as sets, and the values of a type that a list does not have.

use crate::pattern::escape;
use crate::schema_dialect::Keywords;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A set of types. Numbers with a fraction are one of their own: "number" is these and the integers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Types(pub u8);

pub const NULL: Types = Types(1);
pub const BOOLEAN: Types = Types(1 << 1);
pub const INTEGER: Types = Types(1 << 2);
pub const FRACTION: Types = Types(1 << 3);
pub const STRING: Types = Types(1 << 4);
pub const ARRAY: Types = Types(1 << 5);
pub const OBJECT: Types = Types(1 << 6);
pub const NUMBER: Types = Types(INTEGER.0 | FRACTION.0);
pub const ALL: Types = Types((1 << 7) - 1);
pub const NAMES: [(&str, Types); 7] = [
    ("null", NULL),
    ("boolean", BOOLEAN),
    ("number", NUMBER),
    ("integer", INTEGER),
    ("string", STRING),
    ("array", ARRAY),
    ("object", OBJECT),
];
/// Characters of a pattern, about.
const MAX_PATTERN: usize = 100_000;

impl Types {
    pub fn has(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    pub fn and(self, other: Types) -> Types {
        Types(self.0 & other.0)
    }

    pub fn or(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    pub fn without(self, other: Types) -> Types {
        Types(self.0 & !other.0)
    }

    /// The types that the keyword `type` names.
    pub fn named(value: &Value) -> Types {
        let names = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let of = |name: &Value| NAMES.iter().find(|known| name == known.0).map_or(0, |known| known.1 .0);
        Types(names.iter().map(of).fold(0, |a, b| a | b))
    }

    pub fn of_value(value: &Value) -> Types {
        match value {
            Value::Null => NULL,
            Value::Bool(_) => BOOLEAN,
            Value::Number(n) if n.as_f64().is_some_and(|f| f.fract() == 0.0) => INTEGER,
            Value::Number(_) => FRACTION,
            Value::String(_) => STRING,
            Value::Array(_) => ARRAY,
            Value::Object(_) => OBJECT,
        }
    }

    /// The types that a value may have beside these keywords.
    pub fn beside(object: &Keywords) -> Types {
        let typed = object.get("type").map_or(ALL, Types::named);
        let values = object.get("const").map(std::slice::from_ref).or(object.has("enum").then(|| object.list("enum")));
        let listed = |values: &[Value]| values.iter().map(|v| Types::of_value(v).0).fold(0, |a, b| a | b);
        typed.and(values.map_or(ALL, |values| Types(listed(values))))
    }

    /// The name of the numbers in it; None: it has none.
    pub fn number(self) -> Option<&'static str> {
        match (self.has(INTEGER), self.has(FRACTION)) {
            (_, true) => Some("number"), // where the integers are not among the types, they do not matter
            (true, false) => Some("integer"),
            (false, false) => None,
        }
    }
}

/// A pattern for each text but these. None: it would be too long.
pub fn other_texts(texts: &BTreeSet<&str>) -> Option<String> {
    // For each beginning of a text: whether it is a text itself, and what comes next.
    let mut beginnings: BTreeMap<&str, (bool, BTreeSet<char>)> = BTreeMap::new();
    let mut size = 0;
    for text in texts {
        size += text.len() * text.len();
        if size > MAX_PATTERN {
            return None;
        }
        for (i, c) in text.char_indices() {
            beginnings.entry(&text[..i]).or_default().1.insert(c);
        }
        beginnings.entry(text).or_default().0 = true;
    }
    // A beginning that is not a text itself, or one with something else after it.
    let mut choices = vec![];
    for (beginning, (is_text, next)) in beginnings {
        let beginning = escape(beginning);
        let next: String = next.iter().map(|c| escape(&c.to_string())).collect();
        let other = if next.is_empty() { "(?s:.)".to_string() } else { format!("[^{next}]") };
        choices.push(format!("{beginning}(?:{other}(?s:.)*){}", if is_text { "" } else { "?" }));
    }
    Some(format!("^(?:{})$", choices.join("|")))
}

/// The numbers but these.
pub fn other_numbers(numbers: &[f64], name: &str) -> Vec<Value> {
    let mut numbers = numbers.to_vec();
    numbers.sort_by(f64::total_cmp);
    let mut out = vec![];
    let mut least: Option<f64> = None;
    for most in numbers.into_iter().map(Some).chain([None]) {
        let mut range = Map::new();
        range.insert("type".to_string(), name.into());
        for (key, bound) in [("exclusiveMinimum", least), ("exclusiveMaximum", most)] {
            if let Some(number) = bound {
                range.insert(key.to_string(), number.into());
            }
        }
        let has_some = match (least, most) {
            (Some(low), Some(high)) if name == "integer" => low.floor() + 1.0 < high,
            (Some(low), Some(high)) => low < high,
            _ => true,
        };
        if has_some {
            out.push(range.into());
        }
        least = most;
    }
    out
}
