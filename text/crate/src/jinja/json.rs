//! The tojson filter of transformers: Python's json.dumps().

use super::arguments::{bind, integer, refuse, text, truth_or};
use super::{orders, values};
use crate::pyformat;
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::Error;

struct Style {
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

pub fn tojson(value: Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [ascii, indent, separators, sort_keys] =
        bind(&args.into_values(), ["ensure_ascii", "indent", "separators", "sort_keys"], 0)?;
    let indent = match indent {
        None => None,
        Some(v) if v.is_none() => None,
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(usize::try_from(integer(&v)?).unwrap_or(0).min(64)),
        }),
    };
    let separators = separators.filter(|v| !v.is_none()).map(|v| super::arguments::items(&v)).transpose()?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (text(item)?.to_string(), text(key)?.to_string()),
        Some(_) => return Err(refuse("separators: two texts are needed")),
        None if indent.is_some() => (",".to_string(), ": ".to_string()),
        None => (", ".to_string(), ": ".to_string()),
    };
    let style = Style {
        indent,
        item_separator,
        key_separator,
        sort_keys: truth_or(&sort_keys, false),
        ensure_ascii: truth_or(&ascii, false),
    };
    let mut out = String::new();
    write(&value, &style, 0, &mut out)?;
    Ok(out)
}

fn unserializable(what: impl std::fmt::Display) -> Error {
    refuse(format!("Object of type {what} is not JSON serializable"))
}

fn write(value: &Value, style: &Style, depth: usize, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => write_text(text(value)?, style, out),
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::Seq | ValueKind::Iterable if !values::is_special(value) => {
            let items = super::arguments::items(value)?;
            write_list(&items, ['[', ']'], style, depth, out, |item, out| write(item, style, depth + 1, out))?;
        }
        ValueKind::Map if !values::is_namespace(value) => write_map(value, style, depth, out)?,
        ValueKind::Undefined => return Err(unserializable("Undefined")),
        kind => return Err(unserializable(kind)),
    }
    Ok(())
}

fn write_map(map: &Value, style: &Style, depth: usize, out: &mut String) -> Result<(), Error> {
    let pairs = map.as_object().and_then(|object| object.try_iter_pairs());
    let mut pairs: Vec<(Value, Value)> = pairs.ok_or_else(|| unserializable("object"))?.collect();
    if style.sort_keys {
        orders::sort(&mut pairs, false, |(key, _)| key)?;
    }
    write_list(&pairs, ['{', '}'], style, depth, out, |(key, item), out| {
        let name = match key.kind() {
            ValueKind::String => text(key)?.to_string(),
            ValueKind::None => "null".to_string(),
            ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_string(),
            ValueKind::Number => number(key),
            kind => return Err(refuse(format!("keys must be str, int, float, bool or None, not {kind}"))),
        };
        write_text(&name, style, out);
        out.push_str(&style.key_separator);
        write(item, style, depth + 1, out)
    })
}

fn number(value: &Value) -> String {
    match pyformat::str(value).as_str() {
        "nan" => "NaN".to_string(),
        "inf" => "Infinity".to_string(),
        "-inf" => "-Infinity".to_string(),
        other => other.to_string(),
    }
}

fn write_text(text: &str, style: &Style, out: &mut String) {
    let quoted = serde_json::Value::from(text).to_string();
    if !style.ensure_ascii {
        out.push_str(&quoted);
        return;
    }
    for c in quoted.chars() {
        if c.is_ascii() && c != '\x7f' {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            out.push_str(&format!("\\u{unit:04x}"));
        }
    }
}

fn write_list<T>(
    items: &[T],
    [open, close]: [char; 2],
    style: &Style,
    depth: usize,
    out: &mut String,
    mut write: impl FnMut(&T, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    out.push(open);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        new_line(depth + 1, out);
        write(item, out)?;
    }
    if !items.is_empty() {
        new_line(depth, out);
    }
    out.push(close);
    Ok(())
}
