//! Filters that take or give texts.
//!
//! Most take any value, by Python's str() of it. `format` counts the values that its format uses, because Python refuses
//! values that are left over and minijinja does not.

use super::arguments::{bind, integer, integer_or, items, length, pair, refuse, split_keywords, text, truth_or};
use super::{characters, parts, strings};
use crate::pyformat;
use minijinja::formatting::{self, FormatStyle};
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error};

pub fn add(environment: &mut Environment) {
    environment.add_filter("capitalize", |value: Value| strings::capitalize(&pyformat::str(&value)));
    environment.add_filter("trim", trim);
    environment.add_filter("center", center);
    environment.add_filter("indent", indent);
    environment.add_filter("truncate", truncate);
    environment.add_filter("wordcount", |value: Value| {
        let text = pyformat::str(&value);
        let words = text.split(|c| c != '_' && !characters::is_alphanumeric(c));
        words.filter(|word| !word.is_empty()).count()
    });
    environment.add_filter("format", printf);
    environment.add_filter("pprint", pprint);
    environment.add_filter("filesizeformat", file_size);
    for name in ["escape", "e"] {
        environment.add_filter(name, |value: Value| match value.is_safe() {
            true => value,
            false => Value::from_safe_string(escape(&pyformat::str(&value))),
        });
    }
    environment.add_filter("forceescape", |value: Value| Value::from_safe_string(escape(&pyformat::str(&value))));
    environment.add_filter("xmlattr", xml_attributes);
    environment.add_filter("urlencode", url_encode);
}

fn trim(value: Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [set] = bind(&args.into_values(), ["chars"], 0)?;
    let set = set.filter(|set| !set.is_none());
    let set = set.as_ref().map(text).transpose()?;
    let listed = |c: char| set.map_or_else(|| characters::is_space(c), |set| set.contains(c));
    Ok(pyformat::str(&value).trim_matches(listed).to_string())
}

fn center(state: &minijinja::State, value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [width] = bind(&args.into_values(), ["width"], 0)?;
    let width = width.unwrap_or_else(|| Value::from(80));
    strings::call(state, &pyformat::str(&value), "center", &[width])
}

fn indent(value: Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let text = text(&value)?.to_string() + "\n"; // so that a last empty line counts
    let [width, first, blank] = bind(&args.into_values(), ["width", "first", "blank"], 0)?;
    let (first, blank) = (truth_or(&first, false), truth_or(&blank, false));
    let indent = match width.as_ref().and_then(Value::as_str) {
        Some(text) => text.to_string(),
        None => " ".repeat(length(integer_or(&width, 4)?)?),
    };
    let lines = parts::lines(&text, false);
    length(lines.len().saturating_mul(indent.len()) as i64)?;
    let indented = |(i, line): (usize, &&str)| {
        let indents = if i == 0 { first } else { blank || !line.is_empty() };
        format!("{}{line}", if indents { indent.as_str() } else { "" })
    };
    Ok(lines.iter().enumerate().map(indented).collect::<Vec<_>>().join("\n"))
}

fn truncate(value: Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [most, kill_words, end, leeway] = bind(&args.into_values(), ["length", "killwords", "end", "leeway"], 0)?;
    let text_in = pyformat::str(&value);
    let end = end.map_or(Ok("...".to_string()), |end| text(&end).map(str::to_string))?;
    let (most, leeway) = (integer_or(&most, 255)?, integer_or(&leeway, 5)?);
    let kept = most - end.chars().count() as i64;
    if kept < 0 || leeway < 0 {
        return Err(refuse("truncate: the length is less than that of the end, or the leeway is negative"));
    }
    if (text_in.chars().count() as i64) <= most.saturating_add(leeway) {
        return Ok(text_in);
    }
    let start: String = text_in.chars().take(kept as usize).collect();
    let whole_words = start.rsplit_once(' ').filter(|_| !truth_or(&kill_words, false));
    Ok(whole_words.map_or(start.as_str(), |(words, _)| words).to_string() + &end)
}

/// `%`, whose arguments must all be used. A dict's need not be.
fn printf(value: Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let format = pyformat::str(&value);
    let args = args.into_values();
    let (positional, keywords) = split_keywords(&args)?;
    if !positional.is_empty() && !keywords.is_empty() {
        return Err(refuse("can't handle positional and keyword arguments at the same time"));
    }
    let (format, values, used) = write_repr(&format, positional);
    if used < positional.len() {
        return Err(refuse("not all arguments converted during string formatting"));
    }
    formatting::format(FormatStyle::Printf, &format, if keywords.is_empty() { &values } else { &args })
}

/// `%r`, which minijinja lacks, becomes `%s` of a text. Also how many values the format uses.
fn write_repr(format: &str, values: &[Value]) -> (String, Vec<Value>, usize) {
    let (mut out, mut written, mut used) = (String::new(), values.to_vec(), 0);
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        let flags = rest[at + 1..].find(|c: char| !matches!(c, '-' | '+' | ' ' | '#' | '*' | '.' | '0'..='9'));
        let place = flags.map_or(rest.len(), |length| at + 1 + length);
        out.push_str(&rest[..place]);
        let sign = rest[place..].chars().next();
        used += rest[at..place].matches('*').count();
        if sign == Some('r') {
            if let Some(value) = written.get_mut(used) {
                *value = Value::from(pyformat::repr(value));
            }
        }
        used += usize::from(sign != Some('%'));
        out.extend(sign.map(|sign| if sign == 'r' { 's' } else { sign }));
        rest = &rest[place + sign.map_or(0, char::len_utf8)..];
    }
    (out + rest, written, used)
}

/// Up to the length of a line. What is longer, Python breaks into lines by rules of its own.
fn pprint(value: Value) -> Result<String, Error> {
    const MAX_CHARS: usize = 80;
    let text = pyformat::sorted_repr(&value)?;
    if text.chars().count() > MAX_CHARS {
        return Err(refuse(format!("pprint: the value takes over {MAX_CHARS} characters; use tojson")));
    }
    Ok(text)
}

fn file_size(value: Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [binary] = bind(&args.into_values(), ["binary"], 0)?;
    let bytes = match value.as_str() {
        Some(text) => text.trim().parse::<f64>().map_err(|_| refuse("filesizeformat: not a number"))?,
        None => f64::try_from(value.clone()).or_else(|_| integer(&value).map(|number| number as f64))?,
    };
    let (base, units) = match truth_or(&binary, false) {
        true => (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]),
        false => (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"]),
    };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base {
        return Ok(format!("{} Bytes", bytes.trunc()));
    }
    let power = (1..units.len()).find(|power| bytes < f64::powi(base, *power as i32 + 1)).unwrap_or(units.len());
    Ok(format!("{:.1} {}", bytes / f64::powi(base, power as i32), units[power - 1]))
}

pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

fn pairs_of(value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    if value.kind() == ValueKind::Map {
        return Ok(value.as_object().and_then(|map| map.try_iter_pairs()).into_iter().flatten().collect());
    }
    items(value)?.iter().map(pair).collect()
}

fn xml_attributes(value: Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [space] = bind(&args.into_values(), ["autospace"], 0)?;
    let mut parts = Vec::new();
    for (key, value) in pairs_of(&value)? {
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let key = pyformat::str(&key);
        if key.contains(|c| characters::is_space(c) || matches!(c, '/' | '>' | '=')) {
            return Err(refuse(format!("Invalid character in attribute name: {key:?}")));
        }
        parts.push(format!("{}=\"{}\"", escape(&key), escape(&pyformat::str(&value))));
    }
    let space = if truth_or(&space, true) && !parts.is_empty() { " " } else { "" };
    Ok(space.to_string() + &parts.join(" "))
}

fn url_encode(value: Value) -> Result<String, Error> {
    let quote = |text: &str, kept: char, space: &str| {
        let mut out = String::new();
        for byte in text.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(byte as char),
                b' ' => out.push_str(space),
                byte if byte as char == kept => out.push(kept),
                byte => out.push_str(&format!("%{byte:02X}")),
            }
        }
        out
    };
    if !matches!(value.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable) {
        return Ok(quote(&pyformat::str(&value), '/', "%20"));
    }
    let part = |value: &Value| quote(&pyformat::str(value), '~', "+");
    let pairs = pairs_of(&value)?;
    Ok(pairs.iter().map(|(key, value)| format!("{}={}", part(key), part(value))).collect::<Vec<_>>().join("&"))
}
