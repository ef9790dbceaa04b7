//! Characters as the methods of Python's str see them.
//!
//! Where Python asks for a property of Unicode, the ranges of regex_syntax answer, by binary search. Properties that it
//! lacks are listed here, and so are letters whose title case or folded case does not follow from their upper case.

use regex_syntax::hir::{Class, ClassUnicode, HirKind};
use std::sync::OnceLock;

/// A digit beyond the decimal ones, as in superscripts: Unicode's Numeric_Type=Digit.
const OTHER_DIGITS: [(u32, u32); 20] = [
    (0xB2, 0xB3),
    (0xB9, 0xB9),
    (0x1369, 0x1371),
    (0x19DA, 0x19DA),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247C),
    (0x2488, 0x2490),
    (0x24EA, 0x24EA),
    (0x24F5, 0x24FD),
    (0x24FF, 0x24FF),
    (0x2776, 0x277E),
    (0x2780, 0x2788),
    (0x278A, 0x2792),
    (0x10A40, 0x10A43),
    (0x10E60, 0x10E68),
    (0x11052, 0x1105A),
    (0x1F100, 0x1F10A),
];
/// The letters that are numbers.
const NUMERALS: &str = "㐅㒃㠪㭍一七万三九二五亖亿什仟仨伍佰億兆兩八六十千卄卅卌叁参參叄四壱壹幺廾廿弌弍弎弐拾捌柒漆玖百肆萬貮貳贰阡陆陌\
                        陸零\u{f96b}\u{f973}\u{f978}\u{f9b2}\u{f9d1}\u{f9d3}\u{f9fd}𠀁𠁤𠃢𠄡𠤪𠦃𠦌𠦜𠫪𠫽𠬙𢎐𢦘𣬛𦉭\u{2f890}";

struct Classes {
    letters: ClassUnicode,
    decimals: ClassUnicode,
    numbers: ClassUnicode,
    unprintable: ClassUnicode,
    starts: ClassUnicode,
    continues: ClassUnicode,
}

fn class(pattern: &str) -> ClassUnicode {
    match regex_syntax::parse(pattern).map(|hir| hir.into_kind()) {
        Ok(HirKind::Class(Class::Unicode(class))) => class,
        other => unreachable!("{pattern}: {other:?}"),
    }
}

fn classes() -> &'static Classes {
    static CLASSES: OnceLock<Classes> = OnceLock::new();
    CLASSES.get_or_init(|| Classes {
        letters: class(r"\p{L}"),
        decimals: class(r"\p{Nd}"),
        numbers: class(r"\p{N}"),
        unprintable: class(r"[\p{C}\p{Z}]"),
        starts: class(r"[\p{XID_Start}_]"),
        continues: class(r"\p{XID_Continue}"),
    })
}

fn within(class: &ClassUnicode, c: char) -> bool {
    let found = class.ranges().binary_search_by(|range| {
        if range.end() < c {
            std::cmp::Ordering::Less
        } else if range.start() > c {
            std::cmp::Ordering::Greater
        } else {
            std::cmp::Ordering::Equal
        }
    });
    found.is_ok()
}

pub fn is_letter(c: char) -> bool {
    within(&classes().letters, c)
}

pub fn is_decimal(c: char) -> bool {
    within(&classes().decimals, c)
}

pub fn is_digit(c: char) -> bool {
    is_decimal(c) || OTHER_DIGITS.iter().any(|(first, last)| (*first..=*last).contains(&(c as u32)))
}

pub fn is_numeric(c: char) -> bool {
    within(&classes().numbers, c) || NUMERALS.contains(c)
}

pub fn is_alphanumeric(c: char) -> bool {
    is_letter(c) || is_numeric(c) || is_digit(c)
}

/// Whether repr() writes it as it is.
pub fn is_printable(c: char) -> bool {
    c == ' ' || !within(&classes().unprintable, c)
}

pub fn is_identifier(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|first| within(&classes().starts, first)) && chars.all(|c| within(&classes().continues, c))
}

pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

pub fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// One character that looks like an upper-case and a lower-case one.
pub fn is_title(c: char) -> bool {
    matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ' | '\u{1f88}'..='\u{1f8f}' | '\u{1f98}'..='\u{1f9f}' | '\u{1fa8}'..='\u{1faf}'
        | '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}')
}

/// It is upper case, lower case or title case.
pub fn is_cased(c: char) -> bool {
    c.is_uppercase() || c.is_lowercase() || is_title(c)
}

/// As the first letter of a word.
pub fn push_title(out: &mut String, c: char) {
    let code = c as u32;
    let same_page = |code: u32| char::from_u32(code).unwrap_or(c);
    match c {
        'Ǆ'..='ǆ' => out.push('ǅ'),
        'Ǉ'..='ǉ' => out.push('ǈ'),
        'Ǌ'..='ǌ' => out.push('ǋ'),
        'Ǳ'..='ǳ' => out.push('ǲ'),
        '\u{10d0}'..='\u{10ff}' => out.push(c), // Georgian has capitals for whole texts only
        '\u{1f80}'..='\u{1faf}' => out.push(same_page(code | 8)),
        '\u{1fb3}' | '\u{1fc3}' | '\u{1ff3}' => out.push(same_page(code + 9)),
        '\u{1fb7}' | '\u{1fc7}' | '\u{1ff7}' => out.extend(c.to_uppercase().take(2).chain(['\u{345}'])),
        '\u{1fb2}' | '\u{1fb4}' | '\u{1fc2}' | '\u{1fc4}' | '\u{1ff2}' | '\u{1ff4}' => {
            out.extend(c.to_uppercase().next());
            out.push('\u{345}'); // an iota below
        }
        '\u{1fbc}' | '\u{1fcc}' | '\u{1ffc}' => out.push(c),
        _ => {
            let mut upper = c.to_uppercase();
            let first = upper.next().unwrap_or(c);
            out.push(first);
            let several_letters = first.is_uppercase(); // else an apostrophe comes first
            out.extend(upper.flat_map(|rest| {
                let kept = if several_letters { None } else { Some(rest) };
                let lower = several_letters.then(|| rest.to_lowercase());
                lower.into_iter().flatten().chain(kept)
            }));
        }
    }
}

/// str.casefold(), by the letter's upper case, which brings together what differs in case.
pub fn push_folded(out: &mut String, c: char) {
    match c {
        'ı' | '\u{13a0}'..='\u{13f5}' => out.push(c),
        '\u{13f8}'..='\u{13fd}' | '\u{ab70}'..='\u{abbf}' => out.extend(c.to_uppercase()),
        _ => out.extend(c.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase)),
    }
}
