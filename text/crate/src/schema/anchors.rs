//! Patterns without ^ and $. A pattern of JSON Schema matches something in a text; here it becomes one that matches the
//! whole text:
//!
//!   ^a|b$    ->    (?:a(?s:.*)|(?s:.*)b)

use super::Outcome;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Dot, Hir, HirKind, Look, Repetition};

pub const NO_CHARACTER: &str = r"[^\x{0}-\x{10FFFF}]";
/// Bytes of a pattern.
const MAX_BYTES: usize = 200_000;

/// The whole of each text in which `pattern` matches something.
pub fn whole(pattern: &str) -> Outcome<Hir> {
    let hir = regex_syntax::parse(pattern).map_err(|e| format!("pattern {pattern:?}: {e}"))?;
    let mut all = vec![];
    let found = alternatives(&hir, 0).and_then(|all| if all.len() > MAX_ALTERNATIVES { None } else { Some(all) });
    let Some(found) = found else {
        return Err(format!("pattern {pattern:?}: ^ and $ are supported only where an alternative begins or ends"));
    };
    for Alternative { from_start, parts, to_end } in found {
        let mut parts = trimmed(parts, from_start, to_end);
        if !from_start {
            parts.insert(0, any_text());
        }
        if !to_end {
            parts.push(any_text());
        }
        parts.retain(|part| !matches!(part.kind(), HirKind::Empty));
        parts.dedup_by(|next, own| is_any_text(next) && is_any_text(own));
        all.push(Hir::concat(parts));
    }
    Ok(Hir::alternation(all))
}

fn any_text() -> Hir {
    Hir::repetition(Repetition { min: 0, max: None, greedy: true, sub: Box::new(Hir::dot(Dot::AnyChar)) })
}

/// Whether a pattern is seen to match every text.
pub fn is_any_text(hir: &Hir) -> bool {
    let HirKind::Repetition(Repetition { min: 0, max: None, sub, .. }) = hir.kind() else { return false };
    matches!(sub.kind(), HirKind::Class(Class::Unicode(own)) if has_all(own))
}

/// Whether a class has every character.
pub fn has_all(class: &ClassUnicode) -> bool {
    class.ranges() == [ClassUnicodeRange::new('\0', char::MAX)]
}

/// The pattern as a text.
pub fn text_of(hir: &Hir) -> Outcome<String> {
    let mut text = String::new();
    write_hir(hir, &|class, out| out.push_str(&class_text(class)), &mut text)?;
    Ok(text)
}

/// Where any text may come before or after, a repeat at the edge need not come more often than it must: .*a{1,9} is .*a
fn trimmed(parts: Vec<Hir>, from_start: bool, to_end: bool) -> Vec<Hir> {
    let mut all: Vec<Hir> = vec![];
    for part in parts {
        match part.kind() {
            HirKind::Concat(inner) => all.extend(inner.iter().cloned()),
            _ => all.push(part),
        }
    }
    let last = all.len().wrapping_sub(1);
    for (i, part) in all.iter_mut().enumerate() {
        if let HirKind::Repetition(repetition) = part.kind() {
            if (i == 0 && !from_start) || (i == last && !to_end) {
                let mut least = repetition.clone();
                least.max = Some(least.min);
                *part = Hir::repetition(least);
            }
        }
    }
    all
}

/// Alternatives that ^ and $ within a pattern may make.
const MAX_ALTERNATIVES: usize = 200;
/// Pairs of alternatives that are tried: most of them cannot match.
const MAX_TRIED: usize = 2000;
const MAX_NESTED: usize = 40;

/// One way in which a pattern matches, without ^ and $.
#[derive(Clone)]
struct Alternative {
    from_start: bool,
    parts: Vec<Hir>,
    to_end: bool,
}

fn has_look(hir: &Hir) -> bool {
    !hir.properties().look_set().is_empty()
}

/// The alternatives of a pattern. None: ^ or $ stands where it cannot be told apart.
fn alternatives(hir: &Hir, depth: usize) -> Option<Vec<Alternative>> {
    let one = |from_start, parts, to_end| Some(vec![Alternative { from_start, parts, to_end }]);
    if depth > MAX_NESTED {
        return None;
    }
    match hir.kind() {
        HirKind::Look(Look::Start) => one(true, vec![], false),
        HirKind::Look(Look::End) => one(false, vec![], true),
        HirKind::Empty => one(false, vec![], false),
        _ if !has_look(hir) => one(false, vec![hir.clone()], false),
        HirKind::Capture(capture) => alternatives(&capture.sub, depth + 1),
        HirKind::Alternation(parts) => {
            let all: Option<Vec<_>> = parts.iter().map(|part| alternatives(part, depth + 1)).collect();
            all.map(|all| all.concat()).filter(|all| all.len() <= MAX_ALTERNATIVES)
        }
        HirKind::Repetition(repetition) if repetition.min == 0 && repetition.max == Some(1) => {
            let mut all = alternatives(&repetition.sub, depth + 1)?;
            all.insert(0, Alternative { from_start: false, parts: vec![], to_end: false });
            Some(all)
        }
        HirKind::Concat(parts) => {
            let mut all = vec![Alternative { from_start: false, parts: vec![], to_end: false }];
            for part in parts {
                let next = alternatives(part, depth + 1)?;
                if all.len() * next.len() > MAX_TRIED {
                    return None;
                }
                all = all
                    .iter()
                    .flat_map(|before| next.iter().filter_map(|after| joined(before, after)))
                    .collect::<Option<_>>()?;
                if all.len() > MAX_ALTERNATIVES {
                    return None;
                }
            }
            Some(all)
        }
        _ => None,
    }
}

/// One alternative after another. None: it cannot match. Some(None): it cannot be told.
fn joined(before: &Alternative, after: &Alternative) -> Option<Option<Alternative>> {
    let may_be_empty = |parts: &[Hir]| parts.iter().all(|part| part.properties().minimum_len() == Some(0));
    // What comes after $ or before ^ is empty.
    if (before.to_end && !may_be_empty(&after.parts)) || (after.from_start && !may_be_empty(&before.parts)) {
        return None;
    }
    if (before.to_end && !after.parts.is_empty()) || (after.from_start && !before.parts.is_empty()) {
        return Some(None);
    }
    Some(Some(Alternative {
        from_start: before.from_start || after.from_start,
        parts: before.parts.iter().chain(&after.parts).cloned().collect(),
        to_end: before.to_end || after.to_end,
    }))
}

/// Writes a pattern with its characters as `class` spells them. Each repeat has brackets: as regex_syntax writes it, the
/// optional `(?:a+)?` becomes the lazy `a+?`.
pub fn write_hir(hir: &Hir, class: &dyn Fn(&ClassUnicode, &mut String), out: &mut String) -> Outcome<()> {
    if out.len() > MAX_BYTES {
        return Err("a pattern is too long".to_string());
    }
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => {}
        HirKind::Literal(text) => {
            let text = std::str::from_utf8(&text.0).map_err(|_| "a pattern of bytes".to_string())?;
            text.chars().for_each(|c| class(&ClassUnicode::new([ClassUnicodeRange::new(c, c)]), out));
        }
        HirKind::Class(Class::Unicode(own)) => class(own, out),
        HirKind::Class(Class::Bytes(own)) => match own.to_unicode_class() {
            Some(own) => class(&own, out),
            None => return Err("a pattern of bytes".to_string()),
        },
        HirKind::Repetition(repetition) => {
            out.push_str("(?:");
            write_hir(&repetition.sub, class, out)?;
            out.push_str(&match (repetition.min, repetition.max) {
                (0, None) => ")*".to_string(),
                (1, None) => ")+".to_string(),
                (0, Some(1)) => ")?".to_string(),
                (min, max) => format!("){{{min},{}}}", max.map_or(String::new(), |max| max.to_string())),
            });
        }
        HirKind::Capture(capture) => write_hir(&capture.sub, class, out)?,
        HirKind::Concat(parts) => parts.iter().try_for_each(|part| write_hir(part, class, out))?,
        HirKind::Alternation(parts) => {
            out.push_str("(?:");
            for (i, part) in parts.iter().enumerate() {
                out.push_str(if i > 0 { "|" } else { "" });
                write_hir(part, class, out)?;
            }
            out.push(')');
        }
    }
    Ok(())
}

pub fn class_text(class: &ClassUnicode) -> String {
    if class.ranges().is_empty() {
        return NO_CHARACTER.to_string();
    }
    let spell = |c: char| if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\x{{{:x}}}", c as u32) };
    if let [range] = class.ranges() {
        if range.start() == range.end() {
            return spell(range.start());
        }
    }
    let range = |range: &ClassUnicodeRange| match (range.start(), range.end()) {
        (first, last) if first == last => spell(first),
        (first, last) => format!("{}-{}", spell(first), spell(last)),
    };
    let mut others = class.clone();
    others.negate();
    if class.ranges().last().is_some_and(|last| last.end() == char::MAX) && !others.ranges().is_empty() {
        return format!("[^{}]", others.ranges().iter().map(range).collect::<String>());
    }
    format!("[{}]", class.ranges().iter().map(range).collect::<String>())
}
