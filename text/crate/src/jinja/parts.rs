//! The methods of str that take it apart, put it together or fill it up.
//!
//! A template is untrusted, so sizes are checked before a text is made: widths are limited (`length`), and join and
//! replace pay fuel for their bytes (`charge`).

use super::arguments::{bind, integer, integer_or, is_absent, items, length, refuse, text, truth_or};
use super::characters as chars;
use minijinja::value::{Tuple, Value};
use minijinja::{Error, State};

pub fn divide(s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "partition" | "rpartition" => {
            let [separator] = bind(args, [""], 1)?;
            let separator = separator.unwrap_or_default();
            let between = text(&separator)?;
            if between.is_empty() {
                return Err(refuse("empty separator"));
            }
            let parts = match (method, s.split_once(between), s.rsplit_once(between)) {
                ("partition", Some((before, after)), _) | ("rpartition", _, Some((before, after))) => {
                    [before, between, after]
                }
                ("partition", ..) => [s, "", ""],
                _ => ["", "", s],
            };
            Ok(Value::from(Tuple::from(parts.map(Value::from))))
        }
        "splitlines" => {
            let [keep] = bind(args, ["keepends"], 0)?;
            Ok(Value::from_iter(lines(s, truth_or(&keep, false))))
        }
        _ => {
            let [separator, most] = bind(args, ["sep", "maxsplit"], 0)?;
            let most = integer_or(&most, -1)?;
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let mut parts = match &separator {
                Some(separator) if !separator.is_none() => split_at(s, text(separator)?, most, method == "rsplit")?,
                _ if method == "rsplit" => split_space_from_end(s, most),
                _ => split_space(s, most),
            };
            if method == "rsplit" {
                parts.reverse();
            }
            Ok(Value::from_iter(parts))
        }
    }
}

fn split_at<'a>(s: &'a str, at: &str, most: usize, from_end: bool) -> Result<Vec<&'a str>, Error> {
    if at.is_empty() {
        return Err(refuse("empty separator"));
    }
    let count = most.saturating_add(1);
    Ok(if from_end { s.rsplitn(count, at).collect() } else { s.splitn(count, at).collect() })
}

fn split_space(s: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = s.trim_start_matches(chars::is_space);
    while !rest.is_empty() {
        let end = if parts.len() < most { rest.find(chars::is_space) } else { None };
        let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
        parts.push(part);
        rest = after.trim_start_matches(chars::is_space);
    }
    parts
}

/// The last part first.
fn split_space_from_end(s: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = s.trim_end_matches(chars::is_space);
    while !rest.is_empty() {
        let space = if parts.len() < most { rest.rfind(chars::is_space) } else { None };
        let start = space.map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
        parts.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(chars::is_space);
    }
    parts
}

pub fn lines(s: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = s;
    while let Some(at) = rest.find(chars::is_line_end) {
        let end = if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(0, char::len_utf8) };
        lines.push(&rest[..if keep_ends { at + end } else { at }]);
        rest = &rest[at + end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

pub fn pad(s: &str, method: &str, args: &[Value]) -> Result<String, Error> {
    if method == "expandtabs" {
        let [size] = bind(args, ["tabsize"], 0)?;
        return expand_tabs(s, length(integer_or(&size, 8)?)?);
    }
    let (width, fill) = match method {
        "zfill" => (bind(args, [""], 1)?[0].clone(), None),
        _ => {
            let [width, fill] = bind(args, ["", ""], 1)?;
            (width, fill)
        }
    };
    let width = length(integer_or(&width, 0)?)?;
    let fill = fill.map_or(Ok(" ".to_string()), |fill| text(&fill).map(str::to_string))?;
    if fill.chars().count() != 1 {
        return Err(refuse("the fill character must be exactly one character long"));
    }
    let missing = width.saturating_sub(s.chars().count());
    Ok(match method {
        "ljust" => s.to_string() + &fill.repeat(missing),
        "rjust" => fill.repeat(missing) + s,
        "center" => {
            let before = missing / 2 + (missing & width & 1);
            fill.repeat(before) + s + &fill.repeat(missing - before)
        }
        _ => {
            let sign = if s.starts_with(['+', '-']) { 1 } else { 0 };
            s[..sign].to_string() + &"0".repeat(missing) + &s[sign..]
        }
    })
}

fn expand_tabs(s: &str, size: usize) -> Result<String, Error> {
    let mut out = String::new();
    let mut column = 0;
    for c in s.chars() {
        match c {
            '\t' if size == 0 => {}
            '\t' => {
                let spaces = size - column % size;
                length((out.len() + spaces) as i64)?;
                out.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            c => {
                out.push(c);
                column = if c == '\n' || c == '\r' { 0 } else { column + 1 };
            }
        }
    }
    Ok(out)
}

/// Pays for bytes before they are made.
fn charge(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / 64) as u64)
}

pub fn join(state: &State, s: &str, args: &[Value]) -> Result<Value, Error> {
    let [list] = bind(args, [""], 1)?;
    let mut out = String::new();
    for (i, item) in items(&list.unwrap_or_default())?.iter().enumerate() {
        if i > 0 {
            charge(state, s.len())?;
            out.push_str(s);
        }
        out.push_str(text(item)?);
    }
    Ok(Value::from(out))
}

pub fn replace(state: &State, s: &str, args: &[Value]) -> Result<Value, Error> {
    let [old, new, count] = bind(args, ["", "", ""], 2)?;
    let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
    let (old, new) = (text(&old)?, text(&new)?);
    let most = usize::try_from(integer_or(&count, -1)?).unwrap_or(usize::MAX);
    let matches = (s.len() / old.len().max(1) + 1).min(most);
    charge(state, matches.saturating_mul(new.len().saturating_sub(old.len())))?;
    Ok(Value::from(s.replacen(old, new, most)))
}

pub fn translate(state: &State, s: &str, args: &[Value]) -> Result<Value, Error> {
    let [table] = bind(args, [""], 1)?;
    let table = table.unwrap_or_default();
    let mut out = String::new();
    for c in s.chars() {
        let to = table.get_item(&Value::from(c as u32))?;
        if to.is_undefined() {
            out.push(c);
        } else if let Some(text) = to.as_str() {
            charge(state, text.len())?;
            out.push_str(text);
        } else if !is_absent(&Some(to.clone())) {
            let code = u32::try_from(integer(&to)?).ok().and_then(char::from_u32);
            out.push(code.ok_or_else(|| refuse("no character has this number"))?);
        }
    }
    Ok(Value::from(out))
}
