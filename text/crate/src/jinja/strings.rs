//! The methods of str.
//!
//! `call` sends each method to the function for its kind: searching, cutting, changing case, or asking about characters.
//! What takes a text apart or fills it up is in parts.rs. Positions count characters, as in Python, not bytes.

use super::arguments::{bind, integer, items, nothing, refuse, text};
use super::characters as chars;
use super::{format, parts};
use minijinja::value::Value;
use minijinja::{Error, ErrorKind, State};

pub fn call(state: &State, s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "count" | "find" | "rfind" | "index" | "rindex" | "startswith" | "endswith" => search(s, method, args),
        "split" | "rsplit" | "partition" | "rpartition" | "splitlines" => parts::divide(s, method, args),
        "ljust" | "rjust" | "center" | "zfill" | "expandtabs" => parts::pad(s, method, args).map(Value::from),
        "strip" | "lstrip" | "rstrip" | "removeprefix" | "removesuffix" => cut(s, method, args),
        "join" => parts::join(state, s, args),
        "replace" => parts::replace(state, s, args),
        "translate" => parts::translate(state, s, args),
        "format" => format::format(s, args).map(Value::from),
        "format_map" => {
            let [map] = bind(args, [""], 1)?;
            format::format_map(s, map.unwrap_or_default()).map(Value::from)
        }
        "encode" => {
            let [encoding, _] = bind(args, ["encoding", "errors"], 0)?;
            check_encoding(&encoding)?;
            Ok(Value::from_bytes(s.as_bytes().to_vec()))
        }
        _ => {
            let value = change(s, method).map(Value::from).or_else(|| ask(s, method).map(Value::from));
            let value = value.ok_or_else(|| Error::from(ErrorKind::UnknownMethod))?;
            nothing(args)?;
            Ok(value)
        }
    }
}

pub fn check_encoding(encoding: &Option<Value>) -> Result<(), Error> {
    let Some(name) = encoding else { return Ok(()) };
    match text(name)?.to_lowercase().replace(['_', ' '], "-").as_str() {
        "utf-8" | "utf8" => Ok(()),
        other => Err(refuse(format!("the encoding {other} is not utf-8"))),
    }
}

/// Methods without arguments that give a text.
fn change(s: &str, method: &str) -> Option<String> {
    Some(match method {
        "upper" => s.to_uppercase(),
        "lower" => s.to_lowercase(),
        "title" => title(s),
        "capitalize" => capitalize(s),
        "casefold" => {
            let mut out = String::new();
            s.chars().for_each(|c| chars::push_folded(&mut out, c));
            out
        }
        "swapcase" => s.chars().flat_map(swapped).collect(),
        _ => return None,
    })
}

fn swapped(c: char) -> impl Iterator<Item = char> {
    let lower = c.is_uppercase().then(|| c.to_lowercase());
    let upper = c.is_lowercase().then(|| c.to_uppercase());
    let same = (lower.is_none() && upper.is_none()).then_some(c);
    lower.into_iter().flatten().chain(upper.into_iter().flatten()).chain(same)
}

fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut follows = false;
    for c in s.chars() {
        if follows {
            out.extend(c.to_lowercase());
        } else {
            chars::push_title(&mut out, c);
        }
        follows = chars::is_cased(c);
    }
    out
}

pub fn capitalize(s: &str) -> String {
    let mut rest = s.chars();
    let mut out = String::with_capacity(s.len());
    if let Some(first) = rest.next() {
        chars::push_title(&mut out, first);
    }
    out + &rest.as_str().to_lowercase()
}

/// Methods without arguments that give a bool. Questions about characters need at least one.
fn ask(s: &str, method: &str) -> Option<bool> {
    let all = |test: fn(char) -> bool| !s.is_empty() && s.chars().all(test);
    Some(match method {
        "isalpha" => all(chars::is_letter),
        "isalnum" => all(chars::is_alphanumeric),
        "isdecimal" => all(chars::is_decimal),
        "isdigit" => all(chars::is_digit),
        "isnumeric" => all(chars::is_numeric),
        "isspace" => all(chars::is_space),
        "isascii" => s.is_ascii(),
        "isprintable" => s.chars().all(chars::is_printable),
        "isidentifier" => chars::is_identifier(s),
        "islower" => s.chars().any(char::is_lowercase) && !s.chars().any(|c| c.is_uppercase() || chars::is_title(c)),
        "isupper" => s.chars().any(char::is_uppercase) && !s.chars().any(|c| c.is_lowercase() || chars::is_title(c)),
        "istitle" => is_title(s),
        _ => return None,
    })
}

fn is_title(s: &str) -> bool {
    let (mut follows, mut any) = (false, false);
    for c in s.chars() {
        let capital = c.is_uppercase() || chars::is_title(c);
        if (capital && follows) || (c.is_lowercase() && !follows) {
            return false;
        }
        follows = chars::is_cased(c);
        any |= follows;
    }
    any
}

/// `s[start:end]` and the number of characters before it; None: start is behind the end of the text, or of the part.
fn part<'a>(s: &'a str, start: &Option<Value>, end: &Option<Value>) -> Result<Option<(usize, &'a str)>, Error> {
    let len = s.chars().count() as i64;
    let place = |value: &Option<Value>, default: i64| -> Result<i64, Error> {
        let Some(value) = value.as_ref().filter(|value| !value.is_none()) else {
            return Ok(default);
        };
        let number = integer(value)?;
        Ok(if number < 0 { (number + len).max(0) } else { number })
    };
    let (start, end) = (place(start, 0)?, place(end, len)?.min(len));
    if start > end {
        return Ok(None);
    }
    let byte = |place: i64| s.char_indices().nth(place as usize).map_or(s.len(), |(byte, _)| byte);
    Ok(Some((start as usize, &s[byte(start)..byte(end)])))
}

fn search(s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [what, start, end] = bind(args, ["", "", ""], 1)?;
    let what = what.unwrap_or_default();
    let part = part(s, &start, &end)?;
    if method == "startswith" || method == "endswith" {
        let single = [what.clone()];
        let any: Vec<Value> = if what.is_tuple() { items(&what)? } else { single.to_vec() };
        let texts = any.iter().map(text).collect::<Result<Vec<_>, Error>>()?;
        let found = part.is_some_and(|(_, part)| {
            texts.iter().any(|t| if method == "startswith" { part.starts_with(t) } else { part.ends_with(t) })
        });
        return Ok(Value::from(found));
    }
    let what = text(&what)?;
    if method == "count" {
        return Ok(Value::from(part.map_or(0, |(_, part)| part.matches(what).count())));
    }
    let found = part.and_then(|(before, part)| {
        let byte = if method.starts_with('r') { part.rfind(what) } else { part.find(what) };
        byte.map(|byte| (before + part[..byte].chars().count()) as i64)
    });
    match found {
        None if method.ends_with("index") => Err(refuse("substring not found")),
        found => Ok(Value::from(found.unwrap_or(-1))),
    }
}

fn cut(s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let "removeprefix" | "removesuffix" = method {
        let [affix] = bind(args, [""], 1)?;
        let affix = affix.unwrap_or_default();
        let affix = text(&affix)?;
        let cut = if method == "removeprefix" { s.strip_prefix(affix) } else { s.strip_suffix(affix) };
        return Ok(Value::from(cut.unwrap_or(s)));
    }
    let [set] = bind(args, [""], 0)?;
    let set = set.filter(|set| !set.is_none());
    let set = set.as_ref().map(text).transpose()?;
    let listed = |c: char| set.map_or_else(|| chars::is_space(c), |set| set.contains(c));
    Ok(Value::from(match method {
        "strip" => s.trim_matches(listed),
        "lstrip" => s.trim_start_matches(listed),
        _ => s.trim_end_matches(listed),
    }))
}
