//! str.format(): fields and their nested ones. Numbers are written by minijinja, which lacks `%` and `n`.
//!
//! `render` copies the text between the fields and replaces each field, `{path!conversion:spec}`. For each,
//! it looks up the value, renders the fields that the spec contains, converts the value, and writes it by the spec.

use super::arguments::{refuse, split_keywords};
use crate::pyformat;
use minijinja::formatting::{self, FormatStyle};
use minijinja::value::{Value, ValueKind};
use minijinja::Error;

/// Where fields find their values.
struct Values<'a> {
    positional: &'a [Value],
    named: &'a dyn Fn(&str) -> Option<Value>,
    next: usize,
    numbered: bool,
}

pub fn format(s: &str, args: &[Value]) -> Result<String, Error> {
    let (positional, keywords) = split_keywords(args)?;
    let named = |name: &str| keywords.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    render(s, &mut Values { positional, named: &named, next: 0, numbered: false }, 2)
}

pub fn format_map(s: &str, map: Value) -> Result<String, Error> {
    let named = |name: &str| map.as_object().and_then(|object| object.get_value(&Value::from(name)));
    render(s, &mut Values { positional: &[], named: &named, next: 0, numbered: false }, 2)
}

/// `depth`: how deep fields may be nested.
fn render(s: &str, values: &mut Values, depth: usize) -> Result<String, Error> {
    if depth == 0 {
        return Err(refuse("Max string recursion exceeded"));
    }
    let mut out = String::new();
    let mut rest = s;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let sign = &rest[at..at + 1];
        if after.starts_with(sign) {
            out.push_str(sign);
            rest = &after[1..];
            continue;
        }
        let end = if sign == "{" { end_of_field(after) } else { None };
        let end = end.ok_or_else(|| refuse(format!("Single '{sign}' encountered in format string")))?;
        out.push_str(&field(&after[..end], values, depth)?);
        rest = &after[end + 1..];
    }
    Ok(out + rest)
}

fn end_of_field(s: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in s.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn field(s: &str, values: &mut Values, depth: usize) -> Result<String, Error> {
    let closed = s.rfind(']').filter(|close| s[..*close].find(['!', ':']).is_none_or(|sign| s[..sign].contains('[')));
    let start = closed.map_or(0, |close| close + 1);
    let (head, spec) = match s[start..].find(':') {
        Some(colon) => (&s[..start + colon], &s[start + colon + 1..]),
        None => (s, ""),
    };
    let (path, conversion) = match head[start.min(head.len())..].find('!') {
        Some(mark) => (&head[..start + mark], Some(&head[start + mark + 1..])),
        None => (head, None),
    };
    let value = lookup(path, values)?;
    let spec = if spec.contains(['{', '}']) { render(spec, values, depth - 1)? } else { spec.to_string() };
    let value = match conversion {
        None => value,
        Some("s") => Value::from(pyformat::str(&value)),
        Some("r") => Value::from(pyformat::repr(&value)),
        Some("a") => Value::from(pyformat::ascii(&value)),
        Some(other) => return Err(refuse(format!("Unknown conversion specifier {other:?}"))),
    };
    format_value(&value, &spec)
}

/// `0.name[key]`: attributes and items are looked up alike.
fn lookup(path: &str, values: &mut Values) -> Result<Value, Error> {
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (name, mut rest) = path.split_at(end);
    let number = name.parse::<usize>().ok();
    let first = if name.is_empty() || number.is_some() {
        if values.next > 0 && values.numbered != number.is_some() {
            return Err(refuse("cannot mix automatic and manual field numbering"));
        }
        values.numbered = number.is_some();
        values.next += 1;
        values.positional.get(number.unwrap_or(values.next - 1)).cloned()
    } else {
        (values.named)(name)
    };
    let mut value = first.ok_or_else(|| refuse(format!("no argument for the field {{{path}}}")))?;
    while !rest.is_empty() {
        let (key, after) = if let Some(index) = rest.strip_prefix('[') {
            index.split_once(']').ok_or_else(|| refuse("Missing ']' in format string"))?
        } else if let Some(name) = rest.strip_prefix('.') {
            name.split_at(name.find(['.', '[']).unwrap_or(name.len()))
        } else {
            return Err(refuse("Only '.' or '[' may follow ']' in format field specifier"));
        };
        let is_index = rest.starts_with('[');
        let index = key.parse::<i64>().ok().filter(|_| is_index);
        value = value.get_item(&index.map_or_else(|| Value::from(key), Value::from))?;
        rest = after;
    }
    Ok(value)
}

fn format_value(value: &Value, spec: &str) -> Result<String, Error> {
    match value.kind() {
        _ if spec.is_empty() => Ok(pyformat::str(value)),
        ValueKind::String => write(spec, value.clone()),
        ValueKind::Number | ValueKind::Bool => {
            let number = match value.kind() {
                ValueKind::Bool => Value::from(i64::from(value.is_true())),
                _ => value.clone(),
            };
            match (spec.strip_suffix('%'), spec.strip_suffix('n')) {
                (Some(spec), _) => percent(&number, spec),
                (_, Some(spec)) => write(&format!("{spec}{}", if number.is_integer() { 'd' } else { 'g' }), number),
                _ if parse(spec).align.ends_with('=') => {
                    let spec = parse(spec);
                    fill(write(&format!("{}{}", spec.sign, spec.rest), number)?, &spec)
                }
                _ => write(spec, number),
            }
        }
        kind => Err(refuse(format!("unsupported format string for {kind}"))),
    }
}

fn write(spec: &str, value: Value) -> Result<String, Error> {
    formatting::format(FormatStyle::StrFormat, &format!("{{:{spec}}}"), &[value])
}

/// The parts of a spec that minijinja does not know all of.
struct Spec<'a> {
    align: &'a str, // with the character to fill with, before it
    sign: &'a str,
    width: &'a str,
    rest: &'a str,
}

fn parse(spec: &str) -> Spec<'_> {
    let is_align = |c: char| matches!(c, '<' | '>' | '=' | '^');
    let mut chars = spec.char_indices();
    let (first, second) = (chars.next(), chars.next());
    let align = match (first, second) {
        (_, Some((at, c))) if is_align(c) => at + 1,
        (Some((_, c)), _) if is_align(c) => 1,
        _ => 0,
    };
    let (align, spec) = spec.split_at(align);
    let (sign, spec) = spec.split_at(usize::from(spec.starts_with(['+', '-', ' '])));
    let (width, rest) = spec.split_at(spec.find(|c: char| !c.is_ascii_digit()).unwrap_or(spec.len()));
    Spec { align, sign, width, rest }
}

/// The number without a width, filled up to the width between its sign and its digits, or around it.
fn fill(text: String, spec: &Spec) -> Result<String, Error> {
    let zeros = spec.width.starts_with('0') && spec.align.is_empty();
    let between = spec.align.strip_suffix('=').or(zeros.then_some("0"));
    let Some(filled) = between else {
        let width = spec.width.trim_start_matches('0');
        let align = if spec.align.is_empty() { ">" } else { spec.align };
        return if width.is_empty() { Ok(text) } else { write(&format!("{align}{width}"), Value::from(text)) };
    };
    let filled = if filled.is_empty() { " " } else { filled };
    let missing = spec.width.parse::<usize>().unwrap_or(0).saturating_sub(text.chars().count());
    let digits = usize::from(text.starts_with(['+', '-', ' ']));
    Ok(text[..digits].to_string() + &filled.repeat(super::arguments::length(missing as i64)?) + &text[digits..])
}

/// `spec` without its `%`.
fn percent(number: &Value, spec: &str) -> Result<String, Error> {
    let spec = parse(spec);
    let hundred = Value::from(f64::try_from(number.clone())? * 100.0);
    fill(write(&format!("{}{}f", spec.sign, spec.rest), hundred)? + "%", &spec)
}
