//! The functions that every template may call.

use super::arguments::{bind, integer, items, pair, refuse, split_keywords, text};
use super::values::Range;
use crate::pyformat;
use minijinja::value::{Object, ObjectRepr, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{functions, Environment, Error, State};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// As jinja2's sandbox.
const MAX_RANGE: usize = 100_000;

pub fn add(environment: &mut Environment) {
    environment.remove_global("debug");
    environment.add_function("range", range);
    environment.add_function("dict", dict);
    environment.add_function("namespace", namespace);
    environment.add_function("cycler", |values: Rest<Value>| match values.is_empty() {
        true => Err(refuse("at least one item has to be provided")),
        false => Ok(Value::from_object(Cycler { values: values.0, next: AtomicUsize::new(0) })),
    });
    environment.add_function("joiner", |args: Rest<ValueOrKwargs>| {
        let [separator] = bind(&args.into_values(), ["sep"], 0)?;
        let separator = separator.unwrap_or_else(|| Value::from(", "));
        Ok::<_, Error>(Value::from_object(Joiner { separator, calls: AtomicUsize::new(0) }))
    });
    environment.add_function("raise_exception", |message: Value| Err::<Value, _>(refuse(pyformat::str(&message))));
    environment.add_function("strftime_now", |format: Value| strftime_now(text(&format)?));
}

fn range(args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [first, second, step] = bind(&args.into_values(), ["", "", ""], 1)?;
    let first = integer(&first.unwrap_or_default())?;
    let (start, stop) = second.map_or(Ok((0, first)), |stop| integer(&stop).map(|stop| (first, stop)))?;
    let step = step.map_or(Ok(1), |step| integer(&step))?;
    let small = [start, stop, step].iter().all(|number| number.abs() < 1 << 53);
    if step == 0 || !small {
        return Err(refuse(format!("range({start}, {stop}, {step}) is not possible")));
    }
    let range = Range { start, stop, step };
    if range.len() > MAX_RANGE {
        return Err(refuse(format!("Range too big. The sandbox blocks ranges larger than {MAX_RANGE}.")));
    }
    Ok(Value::from_object(range))
}

/// A dict of a dict or of pairs, and of keywords.
fn dict(args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (positional, keywords) = split_keywords(&args)?;
    let mut pairs = Vec::new();
    if let [first] = positional {
        for item in items(first)? {
            let value = first.as_object().and_then(|object| object.get_value(&item));
            pairs.push(match value {
                Some(value) if first.kind() == ValueKind::Map => (item, value),
                _ => pair(&item)?,
            });
        }
    } else if !positional.is_empty() {
        return Err(refuse("one dict or list of pairs is taken"));
    }
    pairs.extend(keywords.into_iter().map(|(name, value)| (Value::from(name), value)));
    Ok(Value::from_pairs(pairs))
}

fn namespace(state: &mut State, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let values = dict(args)?;
    Value::from_function(functions::namespace).call(state, &[values])
}

#[derive(Debug)]
struct Cycler {
    values: Vec<Value>,
    next: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let current = self.next.load(Ordering::Relaxed) % self.values.len();
        (key.as_str() == Some("current")).then(|| self.values[current].clone())
    }
    fn call_method(self: &Arc<Self>, _: &mut State, method: &str, args: &[Value]) -> Result<Value, Error> {
        super::arguments::nothing(args)?;
        match method {
            "next" => Ok(self.values[self.next.fetch_add(1, Ordering::Relaxed) % self.values.len()].clone()),
            "reset" => {
                self.next.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(minijinja::ErrorKind::UnknownMethod.into()),
        }
    }
}

#[derive(Debug)]
struct Joiner {
    separator: Value,
    calls: AtomicUsize,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
    fn call(self: &Arc<Self>, _: &mut State, args: &[Value]) -> Result<Value, Error> {
        super::arguments::nothing(args)?;
        let first = self.calls.fetch_add(1, Ordering::Relaxed) == 0;
        Ok(if first { Value::from("") } else { self.separator.clone() })
    }
}

/// datetime.now().strftime(format), whose time has no zone.
fn strftime_now(format: &str) -> Result<String, Error> {
    let now = chrono::Local::now().naive_local();
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let tag = &rest[at..];
        let flags = tag[1..].find(|c: char| !matches!(c, '-' | '_' | '0' | '^' | '#')).map_or(tag.len(), |n| n + 1);
        let end = flags + tag[flags..].chars().next().map_or(0, char::len_utf8);
        let (tag, after) = tag.split_at(end);
        match tag {
            "%f" => out.push_str(&now.format("%6f").to_string()),
            "%Z" | "%z" => {}
            _ if write!(out, "{}", now.format(tag)).is_err() => out.push_str(tag),
            _ => {}
        }
        rest = after;
    }
    Ok(out + rest)
}
