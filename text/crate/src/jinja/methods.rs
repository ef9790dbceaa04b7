//! The methods of Python's types. Methods that change a list or a dict are refused, as jinja2's immutable sandbox does.

use super::arguments::{bind, integer, integer_or, is_absent, items, nothing, refuse, split_keywords};
use super::strings;
use super::values::{is_namespace, is_special, DictView};
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

pub fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let unknown = || Err(Error::from(ErrorKind::UnknownMethod));
    match value.kind() {
        ValueKind::String => strings::call(state, value.as_str().unwrap_or_default(), method, args),
        ValueKind::Map if !is_namespace(value) => of_dict(value, method, args),
        ValueKind::Seq | ValueKind::Iterable if !is_special(value) => of_list(value, method, args),
        ValueKind::Number | ValueKind::Bool => of_number(value, method, args),
        ValueKind::Bytes if method == "decode" => {
            let [encoding, _] = bind(args, ["encoding", "errors"], 0)?;
            strings::check_encoding(&encoding)?;
            let text = std::str::from_utf8(value.as_bytes().unwrap_or_default());
            text.map(Value::from).map_err(|_| refuse("not UTF-8"))
        }
        _ => unknown(),
    }
}

fn changes() -> Error {
    refuse("a template cannot change a list or a dict")
}

fn of_list(list: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "count" => {
            let [what] = bind(args, [""], 1)?;
            let what = what.unwrap_or_default();
            Ok(Value::from(items(list)?.iter().filter(|item| equal(item, &what)).count()))
        }
        "index" => {
            let [what, start, end] = bind(args, ["", "", ""], 1)?;
            let what = what.unwrap_or_default();
            let all = items(list)?;
            let len = all.len() as i64;
            let place = |number: i64| {
                if number < 0 {
                    (number + len).max(0)
                } else {
                    number
                }
            };
            let (start, end) = (place(integer_or(&start, 0)?), place(integer_or(&end, len)?));
            let mut places = all.iter().enumerate().filter(|(i, _)| (start..end).contains(&(*i as i64)));
            let found = places.find(|(_, item)| equal(item, &what));
            found.map(|(i, _)| Value::from(i)).ok_or_else(|| refuse("the value is not in the list"))
        }
        "copy" if !list.is_tuple() => {
            nothing(args)?;
            Ok(Value::from(items(list)?))
        }
        "append" | "clear" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort" => Err(changes()),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// `==` of Python, for which true is 1.
fn equal(a: &Value, b: &Value) -> bool {
    let number = |value: &Value| match value.kind() {
        ValueKind::Bool => Value::from(i64::from(value.is_true())),
        _ => value.clone(),
    };
    number(a) == number(b)
}

fn of_dict(dict: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "keys" | "values" | "items" => {
            nothing(args)?;
            DictView::of(dict, method).ok_or_else(|| Error::from(ErrorKind::UnknownMethod))
        }
        "get" => {
            let [key, default] = bind(args, ["", ""], 1)?;
            let key = key.unwrap_or_default();
            if matches!(key.kind(), ValueKind::Seq | ValueKind::Map) && !key.is_tuple() {
                return Err(refuse(format!("unhashable type: {}", key.kind())));
            }
            let found = dict.as_object().and_then(|object| object.get_value(&key));
            Ok(found.or(default).unwrap_or(Value::from(())))
        }
        "copy" => {
            nothing(args)?;
            Ok(dict.clone())
        }
        "fromkeys" => {
            let [keys, value] = bind(args, ["", ""], 1)?;
            let value = value.unwrap_or(Value::from(()));
            Ok(Value::from_pairs(items(&keys.unwrap_or_default())?.into_iter().map(|key| (key, value.clone()))))
        }
        "clear" | "pop" | "popitem" | "setdefault" | "update" => Err(changes()),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn of_number(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let whole = value.kind() == ValueKind::Bool || value.is_integer();
    let (positional, keywords) = split_keywords(args)?;
    if !positional.is_empty() || !keywords.is_empty() || is_absent(&Some(value.clone())) {
        return Err(Error::from(ErrorKind::UnknownMethod));
    }
    match method {
        "bit_length" if whole => {
            let number = integer(value)?.unsigned_abs();
            Ok(Value::from(u64::BITS - number.leading_zeros()))
        }
        "bit_count" if whole => Ok(Value::from(integer(value)?.unsigned_abs().count_ones())),
        "conjugate" if whole => Ok(Value::from(integer(value)?)),
        "conjugate" => Ok(value.clone()),
        "is_integer" if !whole => {
            Ok(Value::from(f64::try_from(value.clone()).is_ok_and(|number| number.fract() == 0.0)))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}
