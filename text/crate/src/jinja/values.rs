//! Python's values that minijinja has no type for.

use crate::pyformat;
use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, Value, ValueKind};
use std::fmt;
use std::sync::Arc;

/// What dict.keys(), values() and items() give.
#[derive(Debug)]
pub struct DictView {
    name: &'static str,
    items: Vec<Value>,
}

impl DictView {
    /// `name`: the method's. None: `dict` is not a dict.
    pub fn of(dict: &Value, name: &str) -> Option<Value> {
        let pairs = dict.as_object().filter(|_| dict.kind() == ValueKind::Map)?.try_iter_pairs()?;
        let (name, items) = match name {
            "keys" => ("dict_keys", pairs.map(|(key, _)| key).collect()),
            "values" => ("dict_values", pairs.map(|(_, value)| value).collect()),
            _ => ("dict_items", pairs.map(|(key, value)| Value::from(Tuple::from([key, value]))).collect()),
        };
        Some(Value::from_object(DictView { name, items }))
    }
}

impl Object for DictView {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name, pyformat::list(&self.items))
    }
}

/// What range() gives.
#[derive(Debug)]
pub struct Range {
    pub start: i64,
    pub stop: i64,
    pub step: i64,
}

impl Range {
    pub fn len(&self) -> usize {
        let span = if self.step > 0 { self.stop - self.start } else { self.start - self.stop };
        let step = self.step.abs();
        usize::try_from((span + step - 1) / step).unwrap_or(0)
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize().filter(|index| *index < self.len())?;
        Some(Value::from(self.start + index as i64 * self.step))
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len())
    }
    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            1 => write!(f, "range({}, {})", self.start, self.stop),
            step => write!(f, "range({}, {}, {step})", self.start, self.stop),
        }
    }
}

pub fn is_range(value: &Value) -> bool {
    value.downcast_object_ref::<Range>().is_some()
}

/// Prints in a way of its own, and is not JSON.
pub fn is_special(value: &Value) -> bool {
    is_range(value) || value.downcast_object_ref::<DictView>().is_some()
}

pub fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}
