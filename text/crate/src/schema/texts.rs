//! Sets of strings, as far as schemas tell strings apart: by their length, by patterns, and by lists of texts.
//!
//! A set becomes a regular expression for JSON's spelling of its strings. Each character has one spelling:
//!
//!   pattern ^a"+$    ->    "a(?:\\")+"

use super::{formats, Outcome};
use crate::json::At;
use crate::pattern;
use crate::work::Work;
use llguidance::derivre::{Regex, RegexAst, RegexBuilder};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

/// What derivre may spend to find whether patterns have a text in common.
const FUEL: u64 = 2_000_000;
/// Bytes of JSON's spelling of a pattern.
const MAX_QUOTED: usize = 200_000;
const PATTERN_COST: u64 = 300;
/// A character of a string.
pub const CHARACTER: &str = r#"(?:[^"\\\x00-\x1f\x7f]|\\["\\bfnrt])"#;
const NO_CHARACTER: &str = r"[^\x{0}-\x{10FFFF}]";

/// The strings that all of this holds for.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text {
    pub least: u64, // characters
    pub most: Option<u64>,
    pub fits: BTreeSet<String>, // patterns, as pattern.rs writes them
    pub fits_not: BTreeSet<String>,
    pub only: Option<BTreeSet<String>>,
    pub but: BTreeSet<String>,
}

impl Text {
    pub fn any() -> Text {
        Text::default()
    }

    pub fn only(texts: impl IntoIterator<Item = String>) -> Text {
        Text { only: Some(texts.into_iter().collect()), ..Text::default() }
    }

    pub fn fits(pattern: String) -> Text {
        Text { fits: BTreeSet::from([pattern]), ..Text::default() }
    }

    /// The strings in which a pattern of JSON Schema matches something. It may begin with ^ and looks ahead:
    ///
    ///   ^(?!a)b    ->    fits ^b, does not fit ^a
    pub fn of_pattern(pattern: &str) -> Outcome<Text> {
        let mut text = Text::any();
        let mut rest = pattern.strip_prefix('^').unwrap_or("");
        while let Some((inner, after)) = look_ahead(rest) {
            let is_not = rest.starts_with("(?!");
            let inner = pattern::translate(&format!("^(?:{inner})"))?;
            if is_not {
                text.fits_not.insert(inner)
            } else {
                text.fits.insert(inner)
            };
            rest = after;
        }
        let has_looks = text != Text::any();
        let whole = if has_looks { format!("^{rest}") } else { pattern.to_string() };
        // With an alternative beside it, the look-ahead would be only of the first one.
        if has_looks && has_choice(rest) {
            return Err("lookahead beside | is not supported".to_string());
        }
        text.fits.insert(pattern::translate(&whole)?);
        Ok(text)
    }

    /// The sets that together have all other strings.
    pub fn others(&self) -> Vec<Text> {
        let mut all = vec![];
        if self.least > 0 {
            all.push(Text { most: Some(self.least - 1), ..Text::default() });
        }
        all.extend(self.most.map(|most| Text { least: most + 1, ..Text::default() }));
        all.extend(self.fits.iter().map(|p| Text { fits_not: BTreeSet::from([p.clone()]), ..Text::default() }));
        all.extend(self.fits_not.iter().map(|p| Text::fits(p.clone())));
        all.extend(self.only.iter().map(|only| Text { but: only.clone(), ..Text::default() }));
        if !self.but.is_empty() {
            all.push(Text { only: Some(self.but.clone()), ..Text::default() });
        }
        all
    }

    /// Its lengths as a pattern.
    pub fn length_pattern(&self) -> Option<String> {
        let most = self.most.map_or(String::new(), |most| most.to_string());
        (self.least > 0 || self.most.is_some()).then(|| format!("^(?s:.){{{},{most}}}$", self.least))
    }
}

/// The look-ahead that a pattern begins with, and what comes after it.
fn look_ahead(pattern: &str) -> Option<(&str, &str)> {
    let inner = pattern.strip_prefix("(?!").or_else(|| pattern.strip_prefix("(?="))?;
    let end = end_of(inner, |c, depth| c == ')' && depth == 0)?;
    Some((&inner[..end], &inner[end + 1..]))
}

/// Whether | stands outside of all groups.
fn has_choice(pattern: &str) -> bool {
    end_of(pattern, |c, depth| c == '|' && depth == 0).is_some()
}

/// Where the first character is that `is_end` takes, by the groups that it is in.
fn end_of(pattern: &str, is_end: impl Fn(char, usize) -> bool) -> Option<usize> {
    let (mut depth, mut in_class, mut is_escaped) = (0usize, false, false);
    for (i, c) in pattern.char_indices() {
        if is_escaped {
            is_escaped = false;
            continue;
        }
        if !in_class && is_end(c, depth) {
            return Some(i);
        }
        match c {
            '\\' => is_escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// What is known of patterns.
#[derive(Default)]
pub struct Patterns {
    regexes: RefCell<HashMap<String, Regex>>,
    quoted: RefCell<HashMap<String, String>>,
    empty: RefCell<HashMap<Text, bool>>,
}

impl Patterns {
    /// Whether a pattern matches something in a text.
    pub fn is_match(&self, pattern: &str, text: &str, work: &Work) -> Outcome<bool> {
        work.text(text)?;
        work.charge(text.len() as u64)?;
        if let Some(regex) = self.regexes.borrow_mut().get_mut(pattern) {
            return Ok(regex.is_match(text));
        }
        work.charge(PATTERN_COST + pattern.len() as u64)?;
        let whole = whole_pattern(pattern)?;
        let mut builder = RegexBuilder::new();
        let regex = builder.mk_regex(&whole).and_then(|r| builder.to_regex_limited(r, FUEL));
        let mut regex = regex.map_err(|e| format!("the pattern {pattern:?} is too large: {e}"))?;
        let found = regex.is_match(text);
        self.regexes.borrow_mut().insert(pattern.to_string(), regex);
        Ok(found)
    }

    pub fn has(&self, set: &Text, text: &str, work: &Work) -> Outcome<bool> {
        let length = text.chars().count() as u64;
        let listed = set.only.as_ref().is_none_or(|only| only.contains(text)) && !set.but.contains(text);
        if !listed || length < set.least || set.most.is_some_and(|most| length > most) {
            return Ok(false);
        }
        for (patterns, is_in) in [(&set.fits, true), (&set.fits_not, false)] {
            for pattern in patterns {
                if self.is_match(pattern, text, work)? != is_in {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The strings that both have. None: surely no string is in both.
    pub fn and(&self, a: &Text, b: &Text, work: &Work) -> Outcome<Option<Text>> {
        work.step()?;
        let mut both = a.clone();
        both.least = a.least.max(b.least);
        both.most = a.most.into_iter().chain(b.most).min();
        both.fits.extend(b.fits.iter().cloned());
        both.fits_not.extend(b.fits_not.iter().cloned());
        both.but.extend(b.but.iter().cloned());
        both.only = match (&a.only, &b.only) {
            (Some(x), Some(y)) => Some(x & y),
            (x, y) => x.clone().or(y.clone()),
        };
        if let Some(only) = both.only.take() {
            let mut left = BTreeSet::new();
            for text in only {
                if self.has(&both, &text, work)? {
                    left.insert(text);
                }
            }
            return Ok((!left.is_empty()).then(|| Text::only(left)));
        }
        let is_empty = both.most.is_some_and(|most| most < both.least) || !both.fits.is_disjoint(&both.fits_not);
        Ok((!is_empty).then_some(both))
    }

    /// Whether the set has no string.
    pub fn is_empty(&self, set: &Text, work: &Work) -> Outcome<bool> {
        if let Some(only) = &set.only {
            return Ok(only.is_empty());
        }
        let parts = set.fits.len() + set.fits_not.len();
        if parts == 0 {
            // Lengths leave infinitely many strings, or at least one.
            return Ok(set.most.is_some_and(|most| most < set.least) || (set.most == Some(0) && set.but.contains("")));
        }
        if let [pattern] = set.fits.iter().collect::<Vec<_>>()[..] {
            if *set == Text::fits(pattern.clone()) && formats::has_some(pattern) {
                return Ok(false);
            }
        }
        if let Some(known) = self.empty.borrow().get(set) {
            return Ok(*known);
        }
        let size: usize = set.fits.iter().chain(&set.fits_not).map(String::len).sum();
        work.charge(1000 + size as u64)?;
        let mut builder = RegexBuilder::new();
        let mut all = vec![];
        let large = |e: &dyn std::fmt::Display| format!("a string's patterns are too large together: {e}");
        let mut add = |pattern: &str, is_in: bool| -> Outcome<()> {
            let regex = builder.mk_regex(pattern).map_err(|e| large(&e))?;
            let regex = RegexAst::ExprRef(regex);
            all.push(if is_in { regex } else { RegexAst::Not(Box::new(regex)) });
            Ok(())
        };
        for pattern in &set.fits {
            add(&whole_pattern(pattern)?, true)?;
        }
        for pattern in &set.fits_not {
            add(&whole_pattern(pattern)?, false)?;
        }
        if let Some(pattern) = set.length_pattern() {
            add(&whole_pattern(&pattern)?, true)?;
        }
        // Strings that no token may spell.
        add(r"[^\x00-\x07\x0B\x0E-\x1F\x7F]*", true)?;
        for text in &set.but {
            add(&pattern::escape(text), false)?;
        }
        let all = builder.mk(&RegexAst::And(all)).map_err(|e| large(&e))?;
        let is_empty = builder.to_regex_limited(all, FUEL).map_err(|e| large(&e))?.always_empty();
        self.empty.borrow_mut().insert(set.clone(), is_empty);
        Ok(is_empty)
    }

    /// A terminal's expression, in Lark, of JSON's spelling of the strings.
    pub fn terminal(&self, set: &Text, work: &Work) -> Outcome<String> {
        if let Some(only) = &set.only {
            let texts: Vec<String> = only.iter().map(|text| literal(text)).collect();
            return Ok(texts.join(" | "));
        }
        let most = set.most.map_or(String::new(), |most| most.to_string());
        let length =
            if set.least == 0 && set.most.is_none() { "*".into() } else { format!("{{{},{most}}}", set.least) };
        let mut all = vec![format!("/\"{CHARACTER}{length}\"/")];
        if !set.fits.is_empty() && length == "*" {
            all.clear();
        }
        for pattern in &set.fits {
            all.push(format!("/\"{}\"/", self.quoted(pattern, work)?));
        }
        for pattern in &set.fits_not {
            all.push(format!("~/\"{}\"/", self.quoted(pattern, work)?));
        }
        if !set.but.is_empty() {
            let texts: Vec<String> = set.but.iter().map(|text| literal(text)).collect();
            all.push(format!("~({})", texts.join(" | ")));
        }
        Ok(all.join(" & "))
    }

    fn quoted(&self, pattern: &str, work: &Work) -> Outcome<String> {
        if let Some(known) = self.quoted.borrow().get(pattern) {
            return Ok(known.clone());
        }
        let mut out = String::new();
        let hir = regex_syntax::parse(&whole_pattern(pattern)?).map_err(|e| e.to_string())?;
        quote(&hir, &mut out)?;
        work.charge(out.len() as u64)?;
        self.quoted.borrow_mut().insert(pattern.to_string(), out.clone());
        Ok(out)
    }
}

/// A Lark string of JSON's spelling of a text.
pub fn literal(text: &str) -> String {
    lark_string(&serde_json::Value::from(text).to_string())
}

/// A Lark string.
pub fn lark_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A pattern for the whole of each text in which `pattern` matches something.
fn whole_pattern(pattern: &str) -> Outcome<String> {
    let hir = regex_syntax::parse(pattern).map_err(|e| format!("pattern {pattern:?}: {e}"))?;
    let mut all = vec![];
    let found = alternatives(&hir, 0).and_then(|all| if all.len() > MAX_ALTERNATIVES { None } else { Some(all) });
    let Some(found) = found else {
        return Err(format!("pattern {pattern:?}: ^ and $ are supported only where an alternative begins or ends"));
    };
    for Alternative { from_start, parts, to_end } in found {
        let any = |is: bool| if is { "" } else { "(?s:.*)" };
        let whole = if parts.is_empty() { String::new() } else { format!("(?:{})", Hir::concat(parts)) };
        all.push(format!("{}{whole}{}", any(from_start), any(to_end)));
    }
    Ok(match all.len() {
        0 => NO_CHARACTER.to_string(),
        1 => all.remove(0),
        _ => format!("(?:{})", all.join("|")),
    })
}

/// Alternatives that ^ and $ within a pattern may make.
const MAX_ALTERNATIVES: usize = 200;
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
            all.map(|all| all.concat())
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

/// How a character is spelled after a backslash.
fn escape_of(c: char) -> Option<&'static str> {
    Some(match c {
        '"' => "\"",
        '\\' => r"\\",
        '\x08' => "b",
        '\x0C' => "f",
        '\n' => "n",
        '\r' => "r",
        '\t' => "t",
        _ => return None,
    })
}

fn quote(hir: &Hir, out: &mut String) -> Outcome<()> {
    if out.len() > MAX_QUOTED {
        return Err("a pattern is too long".to_string());
    }
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => {}
        HirKind::Literal(text) => {
            let text = std::str::from_utf8(&text.0).map_err(|_| "a pattern of bytes".to_string())?;
            text.chars().for_each(|c| quote_class(&ClassUnicode::new([ClassUnicodeRange::new(c, c)]), out));
        }
        HirKind::Class(Class::Unicode(class)) => quote_class(class, out),
        HirKind::Class(Class::Bytes(class)) => match class.to_unicode_class() {
            Some(class) => quote_class(&class, out),
            None => return Err("a pattern of bytes".to_string()),
        },
        HirKind::Repetition(repetition) => {
            out.push_str("(?:");
            quote(&repetition.sub, out)?;
            out.push_str(&match (repetition.min, repetition.max) {
                (0, None) => ")*".to_string(),
                (1, None) => ")+".to_string(),
                (0, Some(1)) => ")?".to_string(),
                (min, max) => format!("){{{min},{}}}", max.map_or(String::new(), |max| max.to_string())),
            });
        }
        HirKind::Capture(capture) => quote(&capture.sub, out)?,
        HirKind::Concat(parts) => parts.iter().try_for_each(|part| quote(part, out))?,
        HirKind::Alternation(parts) => {
            out.push_str("(?:");
            for (i, part) in parts.iter().enumerate() {
                out.push_str(if i > 0 { "|" } else { "" });
                quote(part, out)?;
            }
            out.push(')');
        }
    }
    Ok(())
}

fn quote_class(class: &ClassUnicode, out: &mut String) {
    if class.ranges() == [ClassUnicodeRange::new('\0', char::MAX)] {
        return out.push_str(CHARACTER);
    }
    let mut plain = ClassUnicode::new(
        [('"', '"'), ('\\', '\\'), ('\0', '\x1F'), ('\x7F', '\x7F')]
            .map(|(first, last)| ClassUnicodeRange::new(first, last)),
    );
    let special = class.clone();
    plain.negate();
    plain.intersect(class);
    let has = |c: char| special.ranges().iter().any(|range| range.start() <= c && c <= range.end());
    let escapes: String =
        ['"', '\\', '\x08', '\x0C', '\n', '\r', '\t'].into_iter().filter(|&c| has(c)).filter_map(escape_of).collect();
    let mut options = vec![];
    if !plain.ranges().is_empty() {
        options.push(class_text(&plain));
    }
    if !escapes.is_empty() {
        options.push(format!(r"\\[{escapes}]"));
    }
    match options.as_slice() {
        [] => out.push_str(NO_CHARACTER),
        [one] => out.push_str(one),
        all => out.push_str(&format!("(?:{})", all.join("|"))),
    }
}

fn class_text(class: &ClassUnicode) -> String {
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

/// For errors that say where a pattern stands.
pub fn check(source: &str, at: &At) -> Outcome<()> {
    let text = Text::of_pattern(source).or_else(|e| super::fail(at, format_args!("pattern {source:?}: {e}")))?;
    for pattern in text.fits.iter().chain(&text.fits_not) {
        whole_pattern(pattern).or_else(|e| super::fail(at, e))?;
    }
    Ok(())
}
