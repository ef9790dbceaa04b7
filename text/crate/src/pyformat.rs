//! Values as Python writes them: str() and repr(), which templates written for jinja2 print.
//!
//! repr() quotes a text and escapes what does not print; str() prints the text itself, and nothing for an undefined
//! value. Both write the items of lists and dicts by repr(), in recursion.

use minijinja::value::{Value, ValueKind};
use minijinja::Error;

use crate::jinja::{characters, orders, values};

/// repr(float): the shortest digits that give the value back, with an exponent below 1e-4 and from 1e16 on.
pub fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let text = format!("{value:e}"); // "1.5e-7"
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, number) = match exponent.strip_prefix('-') {
            Some(rest) => ('-', rest),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{number:0>2}");
    }
    let text = format!("{value}");
    if text.contains('.') {
        text
    } else {
        text + ".0"
    }
}

/// repr(str): single quotes unless only they occur inside.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if characters::is_printable(c) => out.push(c),
            c => push_escaped(&mut out, c),
        }
    }
    out.push(quote);
    out
}

fn push_escaped(out: &mut String, c: char) {
    match c as u32 {
        code @ 0..=0xff => out.push_str(&format!("\\x{code:02x}")),
        code @ 0x100..=0xffff => out.push_str(&format!("\\u{code:04x}")),
        code => out.push_str(&format!("\\U{code:08x}")),
    }
}

pub fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Undefined => "Undefined".into(),
        _ => str(value),
    }
}

/// repr() with other characters than ASCII escaped.
pub fn ascii(value: &Value) -> String {
    let mut out = String::new();
    for c in repr(value).chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            push_escaped(&mut out, c);
        }
    }
    out
}

/// `[a, b]`
pub fn list(items: &[Value]) -> String {
    format!("[{}]", items.iter().map(repr).collect::<Vec<_>>().join(", "))
}

/// Also what groupby gives, which has names besides.
fn is_tuple(value: &Value) -> bool {
    value.is_tuple() || value.as_object().is_some_and(|object| object.type_name().ends_with("::GroupTuple"))
}

/// str(): what `{{ value }}` prints.
pub fn str(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::None => "None".into(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.into(),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => float(number),
            Err(_) => value.to_string(),
        },
        ValueKind::Bytes => bytes(value.as_bytes().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable if !values::is_special(value) => {
            let items: Vec<Value> = value.try_iter().map(|items| items.collect()).unwrap_or_default();
            match items.as_slice() {
                [item] if is_tuple(value) => format!("({},)", repr(item)),
                _ if is_tuple(value) => format!("({})", items.iter().map(repr).collect::<Vec<_>>().join(", ")),
                _ => list(&items),
            }
        }
        ValueKind::Map if !values::is_namespace(value) => {
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten();
            let items: Vec<String> = pairs.map(|(key, value)| format!("{}: {}", repr(&key), repr(&value))).collect();
            format!("{{{}}}", items.join(", "))
        }
        _ => value.to_string(),
    }
}

fn bytes(bytes: &[u8]) -> String {
    let mut out = String::from("b'");
    for byte in bytes {
        match byte {
            b'\\' => out.push_str("\\\\"),
            b'\'' => out.push_str("\\'"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x20..=0x7e => out.push(*byte as char),
            byte => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out + "'"
}

/// repr() with the keys of dicts in order, as Python's pprint writes a short value.
pub fn sorted_repr(value: &Value) -> Result<String, Error> {
    let items =
        |value: &Value| -> Result<Vec<String>, Error> { value.try_iter()?.map(|item| sorted_repr(&item)).collect() };
    Ok(match value.kind() {
        ValueKind::Seq | ValueKind::Iterable if !is_tuple(value) && !values::is_special(value) => {
            format!("[{}]", items(value)?.join(", "))
        }
        ValueKind::Map if !values::is_namespace(value) => {
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten();
            let mut pairs: Vec<(Value, Value)> = pairs.collect();
            orders::sort(&mut pairs, false, |(key, _)| key)?;
            let pair = |(key, value): &(Value, Value)| Ok(format!("{}: {}", repr(key), sorted_repr(value)?));
            format!("{{{}}}", pairs.iter().map(pair).collect::<Result<Vec<_>, Error>>()?.join(", "))
        }
        _ => repr(value),
    })
}
