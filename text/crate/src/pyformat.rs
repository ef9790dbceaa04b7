//! Values as Python writes them: str(), repr() and json.dumps(), which templates written for jinja2 print.

use minijinja::value::{Value, ValueKind};
use serde_json::Value as Json;

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
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        _ => str(value),
    }
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
        ValueKind::Seq => {
            let items: Vec<String> = value.try_iter().map(|i| i.map(|v| repr(&v)).collect()).unwrap_or_default();
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map if value.as_object().is_some() => {
            let keys: Vec<Value> = value.try_iter().map(|i| i.collect()).unwrap_or_default();
            let items: Vec<String> = keys
                .iter()
                .map(|key| format!("{}: {}", repr(key), repr(&value.get_item(key).unwrap_or_default())))
                .collect();
            format!("{{{}}}", items.join(", "))
        }
        _ => value.to_string(),
    }
}

/// How json.dumps was asked to write.
pub struct JsonStyle {
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
    pub ensure_ascii: bool,
}

fn json_string(text: &str, ensure_ascii: bool) -> String {
    let quoted = Json::from(text).to_string();
    if !ensure_ascii {
        return quoted;
    }
    let mut out = String::new();
    for c in quoted.chars() {
        if c.is_ascii() && c as u32 != 0x7f {
            out.push(c);
        } else if c as u32 == 0x7f {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

/// json.dumps(value).
pub fn json(value: &Json, style: &JsonStyle) -> String {
    let mut out = String::new();
    write_json(value, style, 0, &mut out);
    out
}

fn write_json(value: &Json, style: &JsonStyle, depth: usize, out: &mut String) {
    match value {
        Json::String(text) => out.push_str(&json_string(text, style.ensure_ascii)),
        Json::Number(number) if number.is_f64() => {
            let text = float(number.as_f64().unwrap_or_default());
            out.push_str(match text.as_str() {
                "nan" => "NaN",
                "inf" => "Infinity",
                "-inf" => "-Infinity",
                other => other,
            });
        }
        Json::Array(items) => write_list(items.iter(), '[', ']', style, depth, out, |item, out| {
            write_json(item, style, depth + 1, out)
        }),
        Json::Object(map) => {
            let mut entries: Vec<(&String, &Json)> = map.iter().collect();
            if style.sort_keys {
                entries.sort_by_key(|(key, _)| *key);
            }
            write_list(entries.into_iter(), '{', '}', style, depth, out, |(key, item), out| {
                out.push_str(&json_string(key, style.ensure_ascii));
                out.push_str(&style.key_separator);
                write_json(item, style, depth + 1, out);
            })
        }
        other => out.push_str(&other.to_string()),
    }
}

fn write_list<T>(
    items: impl ExactSizeIterator<Item = T>,
    open: char,
    close: char,
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
    mut write: impl FnMut(T, &mut String),
) {
    out.push(open);
    let empty = items.len() == 0;
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth + 1));
        }
        write(item, out);
    }
    if let (Some(indent), false) = (&style.indent, empty) {
        out.push('\n');
        out.push_str(&indent.repeat(depth));
    }
    out.push(close);
}
