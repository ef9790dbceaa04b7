//! What has come in an array or an object whose items or names may not repeat.

use serde_json::Value;
use std::collections::{BTreeSet, HashSet};
use std::ops::Bound;
use std::sync::Arc;

/// Items or names that have come. A copy shares what came before it.
#[derive(Clone, Default)]
pub struct Used {
    known: Arc<Known>,
    more: Vec<(String, Value)>,
}

#[derive(Default)]
struct Known {
    values: Vec<Value>,
    texts: HashSet<String>, // canonical
    scalars: BTreeSet<String>,
}

impl Used {
    pub fn contains(&self, text: &str) -> bool {
        self.known.texts.contains(text) || self.more.iter().any(|(other, _)| other == text)
    }

    /// False: it has come.
    pub fn add(&mut self, text: String, value: Value) -> bool {
        if self.contains(&text) {
            return false;
        }
        self.more.push((text, value));
        if let Some(known) = Arc::get_mut(&mut self.known) {
            for (text, value) in self.more.drain(..) {
                known.texts.insert(text);
                if !value.is_array() && !value.is_object() {
                    known.scalars.insert(value.to_string());
                }
                known.values.push(value);
            }
        }
        true
    }

    pub fn is_empty(&self) -> bool {
        self.known.values.is_empty() && self.more.is_empty()
    }

    pub fn len(&self) -> usize {
        self.known.values.len() + self.more.len()
    }

    /// How many scalars are spelled with `begun` at their beginning.
    pub fn count_scalars(&self, begun: &[u8]) -> usize {
        let whole = begun.utf8_chunks().next().map_or("", |chunk| chunk.valid()); // a token may end within a character
        let fits = |text: &str| text.as_bytes().starts_with(begun);
        let known = self.known.scalars.range::<str, _>((Bound::Included(whole), Bound::Unbounded));
        let of_more = |value: &Value| !value.is_array() && !value.is_object() && fits(&value.to_string());
        known.take_while(|text| text.starts_with(whole)).filter(|text| fits(text)).count()
            + self.more.iter().filter(|(_, value)| of_more(value)).count()
    }

    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.known.values.iter().chain(self.more.iter().map(|(_, value)| value))
    }
}
