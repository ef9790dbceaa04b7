//! Sets of strings, as far as schemas tell strings apart: by their length, by patterns, and by lists of texts.
//!
//! A set becomes a regular expression for JSON's spelling of its strings. Each character has one spelling:
//!
//!   pattern ^a"+$    ->    "a(?:\\")+"

use super::anchors::{class_text, has_all, is_any_text, text_of, whole, write_hir, NO_CHARACTER};
use super::lengths::surely_has_over;
use super::{fail, Outcome};
use crate::json::At;
use crate::pattern;
use crate::words::Words;
use crate::work::Work;
use llguidance::derivre::{Regex, RegexAst, RegexBuilder};
use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange, Hir};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// What derivre may spend to find whether patterns have a text in common.
const FUEL: u64 = 2_000_000;
const PATTERN_COST: u64 = 300;
/// A character of a string.
pub const CHARACTER: &str = r#"(?:[^"\\\x00-\x1f\x7f]|\\["\\bfnrt])"#;
/// Characters that CHARACTER does not spell.
const UNSPELLED: [(char, char); 4] = [('\0', '\x07'), ('\x0B', '\x0B'), ('\x0E', '\x1F'), ('\x7F', '\x7F')];

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

/// Whether a string may have the character.
pub fn is_spelled(c: char) -> bool {
    !UNSPELLED.iter().any(|&(first, last)| first <= c && c <= last)
}

/// A pattern for whole texts of characters that a string may have.
fn spelled_text() -> String {
    let mut class = ClassUnicode::new(UNSPELLED.map(|(first, last)| ClassUnicodeRange::new(first, last)));
    class.negate();
    format!("{}*", class_text(&class))
}

/// What is known of patterns.
#[derive(Default)]
pub struct Patterns {
    wholes: RefCell<HashMap<String, Rc<Hir>>>,
    regexes: RefCell<HashMap<String, Regex>>,
    quoted: RefCell<HashMap<String, String>>,
    empty: RefCell<HashMap<Text, bool>>,
}

impl Patterns {
    /// For errors that say where a pattern stands.
    pub fn check(&self, source: &str, at: &At) -> Outcome<()> {
        let text = Text::of_pattern(source).or_else(|e| fail(at, format_args!("pattern {source:?}: {e}")))?;
        let mut patterns = text.fits.iter().chain(&text.fits_not);
        patterns.try_for_each(|pattern| self.whole(pattern).map(|_| ()).or_else(|e| fail(at, e)))
    }

    /// A pattern for whole texts.
    fn whole(&self, pattern: &str) -> Outcome<Rc<Hir>> {
        if let Some(known) = self.wholes.borrow().get(pattern) {
            return Ok(known.clone());
        }
        let whole = Rc::new(whole(pattern)?);
        self.wholes.borrow_mut().insert(pattern.to_string(), whole.clone());
        Ok(whole)
    }

    fn text(&self, pattern: &str) -> Outcome<String> {
        text_of(&*self.whole(pattern)?).map_err(|e| format!("pattern {pattern:?}: {e}"))
    }

    /// Whether a pattern matches something in a text.
    pub fn is_match(&self, pattern: &str, text: &str, work: &Work) -> Outcome<bool> {
        work.text(text)?;
        work.charge(text.len() as u64)?;
        if let Some(regex) = self.regexes.borrow_mut().get_mut(pattern) {
            return Ok(regex.is_match(text));
        }
        work.charge(PATTERN_COST + pattern.len() as u64)?;
        let whole = self.text(pattern)?;
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
        let count = |set: &Text| set.only.as_ref().map_or(0, BTreeSet::len);
        work.small_steps(1 + count(a) + count(b))?;
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

    /// Whether a set with patterns has no string, where no automaton is needed to see it.
    fn is_empty_at_a_glance(&self, set: &Text) -> Outcome<Option<bool>> {
        let others = set.fits_not.iter().map(|pattern| self.whole(pattern)).collect::<Outcome<Vec<_>>>()?;
        if others.iter().any(|other| is_any_text(other)) {
            return Ok(Some(true));
        }
        let has_some = match set.fits.first() {
            Some(pattern) if set.fits.len() == 1 && others.is_empty() => {
                surely_has_over(set.but.len(), &*self.whole(pattern)?, set.least, set.most)
            }
            Some(_) => false,
            // The empty string.
            None => {
                let is_in = set.least == 0 && !set.but.contains("");
                is_in && others.iter().all(|other| other.properties().minimum_len() != Some(0))
            }
        };
        Ok(has_some.then_some(false))
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
        if let Some(known) = self.empty.borrow().get(set) {
            return Ok(*known);
        }
        let size: usize = set.fits.iter().chain(&set.fits_not).map(String::len).sum();
        work.charge(size as u64)?;
        if let Some(is_empty) = self.is_empty_at_a_glance(set)? {
            return Ok(is_empty);
        }
        work.charge(1000)?;
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
            add(&self.text(pattern)?, true)?;
        }
        for pattern in &set.fits_not {
            add(&self.text(pattern)?, false)?;
        }
        if let Some(pattern) = set.length_pattern() {
            add(&text_of(&whole(&pattern)?)?, true)?;
        }
        add(&spelled_text(), true)?;
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

    /// JSON's spelling of the strings, for derivre.
    pub fn spelled(&self, set: &Text, work: &Work) -> Outcome<RegexAst> {
        let list = |texts: &BTreeSet<String>| {
            RegexAst::Or(texts.iter().map(|text| RegexAst::Literal(Value::from(text.as_str()).to_string())).collect())
        };
        if let Some(only) = &set.only {
            return Ok(list(only));
        }
        let most = set.most.map_or(String::new(), |most| most.to_string());
        let mut all = vec![RegexAst::Regex(format!("\"{CHARACTER}{{{},{most}}}\"", set.least))];
        for pattern in &set.fits {
            all.push(RegexAst::Regex(format!("\"{}\"", self.quoted(pattern, work)?)));
        }
        for pattern in &set.fits_not {
            let other = RegexAst::Regex(format!("\"{}\"", self.quoted(pattern, work)?));
            all.push(RegexAst::Not(Box::new(other)));
        }
        all.push(RegexAst::Not(Box::new(list(&set.but))));
        Ok(RegexAst::And(all))
    }

    /// The words of what an expression describes.
    pub fn words(&self, ast: &RegexAst, work: &Work) -> Outcome<Words> {
        work.charge(PATTERN_COST * 10)?;
        let mut builder = RegexBuilder::new();
        let regex = builder.mk(ast).and_then(|regex| builder.to_regex_limited(regex, FUEL));
        regex.map(Words::new).map_err(|e| format!("a string's patterns are too large together: {e}"))
    }

    fn quoted(&self, pattern: &str, work: &Work) -> Outcome<String> {
        if let Some(known) = self.quoted.borrow().get(pattern) {
            return Ok(known.clone());
        }
        let mut out = String::new();
        let written = write_hir(&*self.whole(pattern)?, &quote_class, &mut out);
        written.map_err(|e| format!("pattern {pattern:?}: {e}"))?;
        work.charge(out.len() as u64)?;
        self.quoted.borrow_mut().insert(pattern.to_string(), out.clone());
        Ok(out)
    }
}

/// A Lark string of JSON's spelling of a text.
pub fn literal(text: &str) -> String {
    lark_string(&Value::from(text).to_string())
}

/// A Lark string.
pub fn lark_string(text: &str) -> String {
    Value::from(text).to_string()
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

fn quote_class(class: &ClassUnicode, out: &mut String) {
    if has_all(class) {
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
