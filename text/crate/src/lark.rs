//! What Berth reads in a Lark grammar before llguidance does: the schemas in it, and what it may not ask for.

use crate::json;
use crate::work::Work;

/// Brackets within brackets: llguidance's parser calls itself for each.
const MAX_DEPTH: usize = 200;

/// Options that would make forced tokens or masks wrong.
const REFUSED: [&str; 2] = ["no_forcing", "allow_invalid_utf8"];

/// Reads a schema in a grammar, and returns the name of a grammar for it.
pub type Rewrite<'a> = &'a mut dyn FnMut(&serde_json::Value) -> Result<String, String>;

fn position(text: &str, at: usize) -> String {
    let line = text[..at].matches('\n').count() + 1;
    let column = text[..at].rsplit('\n').next().unwrap_or("").chars().count() + 1;
    format!("line {line} column {column}")
}

/// The end of the string, regular expression, comment or control token's name that begins at `at`, if one does.
fn skip(text: &str, at: usize) -> Option<usize> {
    let rest = &text.as_bytes()[at..];
    if rest[0] == b'#' || rest.starts_with(b"//") {
        return Some(at + rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()));
    }
    if rest[0] == b'<' {
        let len = rest[1..].iter().position(|&b| b == b'<' || b == b'>' || b.is_ascii_whitespace())?;
        return (len > 0 && rest[1 + len] == b'>').then_some(at + len + 2);
    }
    if rest[0] != b'"' && rest[0] != b'/' {
        return None;
    }
    let mut i = 1;
    while i < rest.len() && rest[i] != rest[0] {
        i += if rest[i] == b'\\' { 2 } else { 1 };
    }
    Some(at + (i + 1).min(rest.len()))
}

/// The grammar with a name for each of its schemas (`%json`). Later lines keep their numbers: a schema's line breaks are
/// put at the end of the line on which it ends. An error on that line has the number of the one where the schema begins.
pub fn read(text: &str, rewrite: Rewrite, work: &Work) -> Result<String, String> {
    let mut out = String::new();
    let mut at = 0;
    let mut depth = 0usize;
    let mut breaks = 0;
    while at < text.len() {
        work.step()?;
        if let Some(end) = skip(text, at) {
            let end = (end..=text.len()).find(|&i| text.is_char_boundary(i)).unwrap();
            out.push_str(&text[at..end]);
            at = end;
            continue;
        }
        if let Some(rest) = text[at..].strip_prefix("%json") {
            let error = |e: String| format!("%json at {}: {e}", position(text, at));
            let (value, len) = json::parse_prefix(rest, work).map_err(error)?;
            let name = rewrite(&value).map_err(error)?;
            out.push_str(&format!(" @{name} "));
            breaks += rest[..len].matches('\n').count();
            at += "%json".len() + len;
            continue;
        }
        if let Some(rest) = text[at..].strip_prefix("%llguidance") {
            let error = |e: String| format!("%llguidance at {}: {e}", position(text, at));
            let (options, _) = json::parse_prefix(rest, work).map_err(error)?;
            // Bytes that are not text would let control tokens pass for text.
            if let Some(name) = REFUSED.iter().find(|name| options.get(**name).is_some()) {
                return Err(error(format!("{name} is not supported")));
            }
        }
        let c = text[at..].chars().next().unwrap();
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '\n' => out.push_str(&"\n".repeat(std::mem::take(&mut breaks))),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(format!("{}: over {MAX_DEPTH} brackets within each other", position(text, at)));
        }
        out.push(c);
        at += c.len_utf8();
    }
    Ok(out)
}
