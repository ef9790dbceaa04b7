//! Regular expressions for the digits of numbers between bounds.
//!
//! A bound becomes an expression of digits. At least 12.5 is one of:
//!
//!   12.5...12.9...    13...19, 20...99, then any fraction    100 and more

use crate::exact::Exact;

/// Digits of a number, before its point and after it. So a number of any length ends.
pub const MAX_DIGITS: usize = 38;
/// The first number with more.
pub const TOO_LARGE: i128 = 10i128.pow(MAX_DIGITS as u32);
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bound {
    pub at: Exact,
    pub is_open: bool, // the number itself is out
}

pub const NATURAL: &str = "(?:0|[1-9][0-9]{0,37})";
pub const FRACTION: &str = r"\.[0-9]*[1-9][0-9]*";
pub const ANY_FRACTION: &str = r"(?:\.[0-9]+)?";
/// A number without a sign and bounds, which is a double however its digits and its exponent are.
pub const UNSIGNED: &str = concat!(
    r"(?:(?:0|[1-9][0-9]{0,37})(?:\.[0-9]{1,38})?(?:[eE](?:-[0-9]{1,3}|\+?(?:[0-9]{1,2}|1[0-9]{2}|2[0-6][0-9])))?",
    r"|[0-9](?:\.[0-9]{1,38})?[eE]\+?(?:2[7-9][0-9]|30[0-7])|1(?:\.0)?[eE]\+?308)"
);

fn either(mut options: Vec<String>) -> String {
    match options.len() {
        0 => r"[^\x{0}-\x{10FFFF}]".to_string(),
        1 => options.remove(0),
        _ => format!("(?:{})", options.join("|")),
    }
}

fn digits(first: u8, last: u8) -> String {
    if first == last {
        char::from(first).to_string()
    } else {
        format!("[{}-{}]", char::from(first), char::from(last))
    }
}

fn any_digits(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => "[0-9]".to_string(),
        _ => format!("[0-9]{{{count}}}"),
    }
}

/// The numbers from one to another, written with as many digits.
fn of_length(low: &[u8], high: &[u8]) -> String {
    let rest = low.len().saturating_sub(1);
    let (least, most) = (vec![b'0'; rest], vec![b'9'; rest]);
    if low.is_empty() {
        return String::new();
    }
    if low[0] == high[0] {
        return format!("{}{}", char::from(low[0]), of_length(&low[1..], &high[1..]));
    }
    let mut options = vec![];
    let (mut first, mut last) = (low[0], high[0]);
    if low[1..] != least[..] {
        options.push(format!("{}{}", char::from(first), of_length(&low[1..], &most)));
        first += 1;
    }
    let ends_early = high[1..] != most[..];
    if ends_early {
        last -= 1;
    }
    if first <= last {
        options.push(format!("{}{}", digits(first, last), any_digits(rest)));
    }
    if ends_early {
        options.push(format!("{}{}", char::from(high[0]), of_length(&least, &high[1..])));
    }
    either(options)
}

/// The natural numbers from one to another.
fn naturals(low: u128, high: Option<u128>) -> Vec<String> {
    let mut options = vec![];
    let mut low = low;
    loop {
        if low >= TOO_LARGE as u128 {
            return options;
        }
        let text = low.to_string();
        let end = 10u128.checked_pow(text.len() as u32).map_or(u128::MAX, |power| power - 1);
        match high {
            Some(high) if high < low => return options,
            Some(high) if high <= end => {
                options.push(of_length(text.as_bytes(), high.to_string().as_bytes()));
                return options;
            }
            _ => {}
        }
        if high.is_none() && (low == 0 || text.bytes().skip(1).all(|b| b == b'0') && text.starts_with('1')) {
            let longer = format!("[1-9][0-9]{{{},{}}}", text.len() - 1, MAX_DIGITS - 1);
            options.push(if low == 0 { NATURAL.to_string() } else { longer });
            return options;
        }
        options.push(of_length(text.as_bytes(), end.to_string().as_bytes()));
        low = end + 1;
    }
}

/// Whole numbers in these bounds.
pub fn whole((low, high): (Option<i128>, Option<i128>)) -> String {
    if low.is_none() && high.is_none() {
        return format!("-?{NATURAL}");
    }
    let mut options = vec![];
    if high.is_none_or(|high| high >= 0) {
        options.extend(naturals(low.unwrap_or(0).max(0) as u128, high.map(|high| high as u128)));
    }
    if low.is_none_or(|low| low < 0) {
        let nearest = high.map_or(1, |high| (-high).max(1)) as u128;
        let size = naturals(nearest, low.map(|low| low.unsigned_abs()));
        options.push(format!("-{}", either(size)));
    }
    either(options)
}

/// The digits before and after the point of a number that is not negative.
fn parts(number: Exact) -> (u128, String) {
    let text = number.digits();
    let (whole, fraction) = text.trim_start_matches('-').split_once('.').unwrap_or((text.trim_start_matches('-'), ""));
    (whole.parse().unwrap_or(u128::MAX).min(TOO_LARGE as u128), fraction.to_string())
}

pub fn fraction_digits(number: Exact) -> usize {
    parts(number).1.len()
}

/// What is not negative and at least a bound that is not negative.
fn size_from(bound: Bound) -> String {
    let (whole, fraction) = parts(bound.at);
    let mut options = vec![format!("{}{ANY_FRACTION}", either(naturals(whole + 1, None)))];
    let mut ends = vec![];
    for (i, digit) in fraction.bytes().enumerate().filter(|(_, digit)| *digit < b'9') {
        ends.push(format!(r"\.{}{}[0-9]*", &fraction[..i], digits(digit + 1, b'9')));
    }
    match (fraction.is_empty(), bound.is_open) {
        (true, false) => ends.push(ANY_FRACTION.to_string()),
        (true, true) => ends.push(FRACTION.to_string()),
        (false, false) => ends.push(format!(r"\.{fraction}[0-9]*")),
        (false, true) => ends.push(format!(r"\.{fraction}[0-9]*[1-9][0-9]*")),
    }
    options.push(format!("{whole}{}", either(ends)));
    either(options)
}

/// What is not negative and at most a bound that is not negative.
fn size_to(bound: Bound) -> String {
    let (whole, fraction) = parts(bound.at);
    let mut options = vec![];
    if whole > 0 {
        options.push(format!("{}{ANY_FRACTION}", either(naturals(0, Some(whole - 1)))));
    }
    let mut ends = vec![];
    for (i, digit) in fraction.bytes().enumerate() {
        if digit > b'0' {
            ends.push(format!(r"\.{}{}[0-9]*", &fraction[..i], digits(b'0', digit - 1)));
        }
        if i > 0 {
            ends.push(format!(r"\.{}", &fraction[..i]));
        }
    }
    if !fraction.is_empty() {
        ends.push(String::new());
        ends.extend((!bound.is_open).then(|| format!(r"\.{fraction}0*")));
    } else if !bound.is_open {
        ends.push(r"(?:\.0+)?".to_string());
    }
    if !ends.is_empty() {
        options.push(format!("{whole}{}", either(ends)));
    }
    either(options)
}

pub fn at_least(bound: Bound) -> String {
    if bound.at.at() < 0.0 {
        let size = size_to(Bound { at: bound.at.negated(), ..bound });
        return format!("(?:{NATURAL}{ANY_FRACTION}|-{size})");
    }
    size_from(bound)
}

pub fn at_most(bound: Bound) -> String {
    if bound.at.at() <= 0.0 {
        let size = size_from(Bound { at: bound.at.negated(), ..bound });
        let zero = if bound.at.at() == 0.0 && !bound.is_open { r"|0(?:\.0+)?" } else { "" };
        return format!("(?:-{size}{zero})");
    }
    format!("(?:{}|-{NATURAL}{ANY_FRACTION})", size_to(bound))
}
