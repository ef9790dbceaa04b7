//! Filters of jinja2 that minijinja lacks, or that do something else there; those of texts are in texts.rs.
//!
//! `add` puts them over minijinja's filters of the same name, and removes the ones that jinja2 lacks. Each filter binds
//! its arguments by the names that jinja2 gives them, so templates may name them or not.

use super::arguments::{bind, integer, integer_or, items, refuse, text, truth_or};
use super::{json, orders, texts};
use crate::pyformat;
use minijinja::value::{Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error};

pub fn add(environment: &mut Environment) {
    for name in ["zip", "chain", "lines", "bool", "split"] {
        environment.remove_filter(name); // jinja2 has none of these
    }
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("string", |value: Value| match value.is_safe() {
        true => value,
        false => Value::from(pyformat::str(&value)),
    });
    for name in ["default", "d"] {
        environment.add_filter(name, default);
    }
    environment.add_filter("list", |value: Value| items(&value));
    environment.add_filter("items", pairs);
    environment.add_filter("join", join);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("sort", sort);
    environment.add_filter("dictsort", dictsort);
    environment.add_filter("min", |value: Value, args: Rest<ValueOrKwargs>| extreme(value, &args.into_values(), false));
    environment.add_filter("max", |value: Value, args: Rest<ValueOrKwargs>| extreme(value, &args.into_values(), true));
    texts::add(environment);
}

fn default(value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [default, boolean] = bind(&args.into_values(), ["default_value", "boolean"], 0)?;
    let kept = !value.is_undefined() && (value.is_true() || !truth_or(&boolean, false));
    Ok(if kept { value } else { default.unwrap_or_else(|| Value::from("")) })
}

fn pairs(value: Value) -> Result<Vec<Value>, Error> {
    if value.is_undefined() {
        return Ok(Vec::new());
    }
    let pairs = value.as_object().filter(|_| value.kind() == ValueKind::Map).and_then(|map| map.try_iter_pairs());
    let pairs = pairs.ok_or_else(|| refuse("Can only get item pairs from a mapping."))?;
    Ok(pairs.map(|(key, value)| Value::from(Tuple::from([key, value]))).collect())
}

/// A number, or keys with dots between them, as attribute= of a filter names what it looks at.
pub fn attribute(item: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else {
        return item.get_item(path);
    };
    let key = |key: &str| key.parse::<i64>().map_or_else(|_| Value::from(key), Value::from);
    path.split('.').try_fold(item.clone(), |value, part| value.get_item(&key(part)))
}

fn join(value: Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [between, path] = bind(&args.into_values(), ["d", "attribute"], 0)?;
    let between = between.map_or(String::new(), |between| pyformat::str(&between));
    let mut list = items(&value)?;
    if let Some(path) = path.filter(|path| !path.is_none()) {
        list = list.iter().map(|item| attribute(item, &path)).collect::<Result<_, _>>()?;
    }
    Ok(list.iter().map(pyformat::str).collect::<Vec<_>>().join(&between))
}

/// The text of a number as Python reads it: spaces around it, and underscores between digits.
fn digits(text: &str) -> Option<String> {
    let text = text.trim_matches(super::characters::is_space);
    let chars: Vec<char> = text.chars().collect();
    let between =
        |i: usize| i > 0 && chars[i - 1].is_ascii_hexdigit() && chars.get(i + 1).is_some_and(char::is_ascii_hexdigit);
    let fits = chars.iter().enumerate().all(|(i, c)| *c != '_' || between(i));
    fits.then(|| text.replace('_', ""))
}

fn parse_integer(text: &str, base: u32) -> Option<i128> {
    let text = digits(text)?;
    let (sign, number) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(&text)),
    };
    let prefix = match base {
        2 => ["0b", "0B"],
        8 => ["0o", "0O"],
        16 => ["0x", "0X"],
        _ => ["", ""],
    };
    let number = number.strip_prefix(prefix[0]).or(number.strip_prefix(prefix[1])).unwrap_or(number);
    let starts = number.starts_with(|c: char| c.is_digit(base));
    starts.then(|| i128::from_str_radix(number, base).ok()).flatten().map(|number| sign * number)
}

fn parse_float(text: &str) -> Option<f64> {
    digits(text)?.parse().ok()
}

fn int(value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [default, base] = bind(&args.into_values(), ["default", "base"], 0)?;
    let base = integer_or(&base, 10)?;
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base));
    let base = base.ok_or_else(|| refuse("int() base must be >= 2 and <= 36"))?;
    let default = default.unwrap_or_else(|| Value::from(0));
    let number = match value.kind() {
        ValueKind::Undefined => return Err(refuse("an undefined value has no number")),
        ValueKind::Bool => return Ok(Value::from(integer(&value)?)),
        ValueKind::Number if value.is_integer() => return Ok(value),
        ValueKind::Number => Some(f64::try_from(value)?),
        ValueKind::String => match parse_integer(text(&value)?, base) {
            Some(number) => return Ok(Value::from(number)),
            None => parse_float(text(&value)?).filter(|number| number.is_finite()),
        },
        _ => None,
    };
    match number {
        Some(number) if number.abs() < 2f64.powi(127) => Ok(Value::from(number.trunc() as i128)),
        Some(number) if !number.is_nan() => Err(refuse("the number is too large")),
        _ => Ok(default),
    }
}

fn float(value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [default] = bind(&args.into_values(), ["default"], 0)?;
    let number = match value.kind() {
        ValueKind::Undefined => return Err(refuse("an undefined value has no number")),
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => Some(f64::try_from(value)?),
        ValueKind::String => parse_float(text(&value)?),
        _ => None,
    };
    Ok(number.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from))
}

/// What an item is sorted by: itself or its attributes, texts in lower case unless the case counts.
fn sort_key(item: &Value, paths: &Option<Value>, case_sensitive: bool) -> Result<Value, Error> {
    let folded = |value: Value| match value.as_str() {
        Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
        _ => value,
    };
    let Some(paths) = paths.as_ref().filter(|paths| !paths.is_none()) else {
        return Ok(folded(item.clone()));
    };
    let parts: Vec<Value> = match paths.as_str() {
        Some(text) => text.split(',').map(Value::from).collect(),
        None => vec![paths.clone()],
    };
    let keys = parts.iter().map(|part| attribute(item, part).map(folded)).collect::<Result<Vec<_>, _>>()?;
    Ok(Value::from(keys))
}

fn sort(value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [reverse, case_sensitive, paths] = bind(&args.into_values(), ["reverse", "case_sensitive", "attribute"], 0)?;
    let case_sensitive = truth_or(&case_sensitive, false);
    let keyed = |item: Value| Ok((sort_key(&item, &paths, case_sensitive)?, item));
    let mut list = items(&value)?.into_iter().map(keyed).collect::<Result<Vec<_>, Error>>()?;
    orders::sort(&mut list, truth_or(&reverse, false), |(key, _)| key)?;
    Ok(list.into_iter().map(|(_, item)| item).collect())
}

fn dictsort(value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [case_sensitive, by, reverse] = bind(&args.into_values(), ["case_sensitive", "by", "reverse"], 0)?;
    let place = match by.as_ref().map_or(Some("key"), |by| by.as_str()) {
        Some("key") => 0,
        Some("value") => 1,
        _ => return Err(refuse("You can only sort by either \"key\" or \"value\"")),
    };
    let case_sensitive = truth_or(&case_sensitive, false);
    let keyed = |pair: Value| Ok((sort_key(&pair.get_item_by_index(place)?, &None, case_sensitive)?, pair));
    let mut list = pairs(value)?.into_iter().map(keyed).collect::<Result<Vec<_>, Error>>()?;
    orders::sort(&mut list, truth_or(&reverse, false), |(key, _)| key)?;
    Ok(list.into_iter().map(|(_, pair)| pair).collect())
}

fn extreme(value: Value, args: &[Value], largest: bool) -> Result<Value, Error> {
    let [case_sensitive, path] = bind(args, ["case_sensitive", "attribute"], 0)?;
    let case_sensitive = truth_or(&case_sensitive, false);
    let keyed = |item: Value| Ok((sort_key(&item, &path, case_sensitive)?, item));
    let mut list = items(&value)?.into_iter().map(keyed).collect::<Result<Vec<_>, Error>>()?;
    orders::sort(&mut list, largest, |(key, _)| key)?;
    Ok(list.into_iter().next().map_or(Value::UNDEFINED, |(_, item)| item))
}
