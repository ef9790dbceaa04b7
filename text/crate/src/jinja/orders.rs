//! Python's order of values: numbers, texts and lists among themselves, and an error for anything else.

use super::arguments::refuse;
use minijinja::value::{Value, ValueKind};
use minijinja::Error;
use std::cmp::Ordering;

pub fn compare(a: &Value, b: &Value) -> Result<Ordering, Error> {
    use ValueKind::{Bool, Iterable, Number, Seq, String};
    match (a.kind(), b.kind()) {
        (Number | Bool, Number | Bool) | (String, String) => Ok(a.cmp(b)),
        (Seq | Iterable, Seq | Iterable) if a.is_tuple() == b.is_tuple() => compare_lists(a, b),
        (kind_a, kind_b) => Err(refuse(format!("{kind_a} and {kind_b} have no order"))),
    }
}

fn compare_lists(a: &Value, b: &Value) -> Result<Ordering, Error> {
    let (mut left, mut right) = (a.try_iter()?, b.try_iter()?);
    loop {
        match (left.next(), right.next()) {
            (Some(x), Some(y)) if x == y => continue,
            (Some(x), Some(y)) => return compare(&x, &y),
            (x, y) => return Ok(x.is_some().cmp(&y.is_some())),
        }
    }
}

/// Keeps the order of equal items, also in reverse. The first error ends it.
pub fn sort<T>(list: &mut [T], reverse: bool, key: impl Fn(&T) -> &Value) -> Result<(), Error> {
    let mut failed = None;
    list.sort_by(|a, b| {
        let order = compare(key(a), key(b)).unwrap_or_else(|error| {
            failed.get_or_insert(error);
            Ordering::Equal
        });
        if reverse {
            order.reverse()
        } else {
            order
        }
    });
    failed.map_or(Ok(()), Err)
}
