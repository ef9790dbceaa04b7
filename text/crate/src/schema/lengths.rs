//! How long the strings are that a pattern matches, where that is seen without an automaton.

use super::texts::is_spelled;
use regex_syntax::hir::{Class, Hir, HirKind};

/// From the first number to the second, which None leaves open.
type Range = (u64, Option<u64>);

/// Whether a pattern for whole texts surely matches more than `count` strings of `least` to `most` characters.
pub fn surely_has_over(count: usize, pattern: &Hir, least: u64, most: Option<u64>) -> bool {
    lengths(pattern).is_some_and(|(from, to)| {
        let (from, to) = (from.max(least), to.into_iter().chain(most).min());
        to.is_none_or(|to| to.saturating_add(1).saturating_sub(from) > count as u64)
    })
}

/// A range in which some string of the pattern has each length. There may be other lengths. None: no string is seen.
fn lengths(hir: &Hir) -> Option<Range> {
    match hir.kind() {
        HirKind::Empty => Some((0, Some(0))),
        HirKind::Look(_) => None,
        HirKind::Literal(text) => {
            let text = std::str::from_utf8(&text.0).ok().filter(|text| text.chars().all(is_spelled))?;
            let count = text.chars().count() as u64;
            Some((count, Some(count)))
        }
        HirKind::Class(Class::Unicode(own)) => {
            let mut ranges = own.ranges().iter();
            ranges
                .any(|range| range.end() > '\x7F' || (range.start()..=range.end()).any(is_spelled))
                .then_some((1, Some(1)))
        }
        HirKind::Class(Class::Bytes(_)) => None,
        HirKind::Capture(capture) => lengths(&capture.sub),
        HirKind::Repetition(own) => repeated(lengths(&own.sub), u64::from(own.min), own.max.map(u64::from)),
        HirKind::Concat(parts) => parts.iter().try_fold((0, Some(0)), |(least, most): Range, part| {
            let (from, to) = lengths(part)?;
            Some((least.saturating_add(from), most.zip(to).map(|(a, b)| a.saturating_add(b))))
        }),
        HirKind::Alternation(options) => options.iter().filter_map(lengths).reduce(joined),
    }
}

/// One range and another, or only the first if there is a gap between them.
fn joined(a: Range, b: Range) -> Range {
    let touches = |a: Range, b: Range| a.1.is_none_or(|most| b.0 <= most.saturating_add(1));
    if touches(a, b) && touches(b, a) {
        (a.0.min(b.0), a.1.zip(b.1).map(|(a, b)| a.max(b)))
    } else {
        a
    }
}

/// The lengths of a repetition. Each further time adds a range; without gaps, all of them are one.
fn repeated(own: Option<Range>, min: u64, max: Option<u64>) -> Option<Range> {
    let Some((least, most)) = own else { return (min == 0).then_some((0, Some(0))) };
    let times = |length: u64, count: u64| length.saturating_mul(count);
    if most == Some(0) || max == Some(0) {
        return Some((0, Some(0)));
    }
    let first = if min == 0 { Some(0) } else { most.map(|most| times(most, min)) };
    let has_gaps = first.is_some_and(|first| first.saturating_add(1) < times(least, min.saturating_add(1)));
    let to = if has_gaps { first } else { most.zip(max).map(|(most, max)| times(most, max)) };
    Some((times(least, min), to))
}
