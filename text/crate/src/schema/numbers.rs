//! Sets of numbers, and regular expressions for how they are written.
//!
//! A bound becomes an expression of digits. At least 12.5 is one of:
//!
//!   12.5...12.9...    13...19, 20...99, then any fraction    100 and more

use std::collections::BTreeSet;

/// Among the numbers: all, those without a fraction, or those with one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Any,
    Whole,
    Fraction,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bound {
    pub at: f64,
    pub is_open: bool, // the number itself is out
}

/// The numbers that all of this holds for.
#[derive(Clone, PartialEq, Debug)]
pub struct Number {
    pub kind: Kind,
    pub low: Option<Bound>,
    pub high: Option<Bound>,
    pub multiples: Vec<f64>,
    pub multiples_not: Vec<f64>,
    pub only: Option<Vec<(f64, String)>>, // in their order, with their text
    pub but: Vec<f64>,                    // in their order
}

/// A decimal number: digits and how many of them are after the point.
pub fn decimal(number: f64) -> Option<(i128, usize)> {
    let text = number.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    Some((format!("{whole}{fraction}").parse().ok()?, fraction.len()))
}

fn is_multiple(number: f64, of: f64) -> bool {
    let (Some((mut a, x)), Some((mut b, y))) = (decimal(number), decimal(of)) else { return false };
    let scale = |digits: i128, by: usize| 10i128.checked_pow(by as u32).and_then(|power| digits.checked_mul(power));
    let most = x.max(y);
    match (scale(a, most - x), scale(b, most - y)) {
        (Some(x), Some(y)) => (a, b) = (x, y),
        _ => return false,
    }
    b != 0 && a % b == 0
}

impl Number {
    pub fn any() -> Number {
        Number {
            kind: Kind::Any,
            low: None,
            high: None,
            multiples: vec![],
            multiples_not: vec![],
            only: None,
            but: vec![],
        }
    }

    pub fn of_kind(kind: Kind) -> Number {
        Number { kind, ..Number::any() }
    }

    /// The numbers of a list, each with a text.
    pub fn only(mut numbers: Vec<(f64, String)>) -> Number {
        numbers.iter_mut().for_each(|(number, _)| *number += 0.0); // no sign of zero
        numbers.sort_by(|a, b| a.0.total_cmp(&b.0));
        numbers.dedup_by(|a, b| a.0 == b.0);
        Number { only: Some(numbers), ..Number::any() }
    }

    pub fn has(&self, number: f64) -> bool {
        let number = number + 0.0;
        let is_whole = number.fract() == 0.0;
        (match self.kind {
            Kind::Any => true,
            Kind::Whole => is_whole,
            Kind::Fraction => !is_whole,
        }) && self.low.is_none_or(|low| number > low.at || (number == low.at && !low.is_open))
            && self.high.is_none_or(|high| number < high.at || (number == high.at && !high.is_open))
            && self.multiples.iter().all(|&of| is_multiple(number, of))
            && !self.multiples_not.iter().any(|&of| is_multiple(number, of))
            && self.only.as_ref().is_none_or(|only| only.binary_search_by(|known| known.0.total_cmp(&number)).is_ok())
            && self.but.binary_search_by(|known| known.total_cmp(&number)).is_err()
    }

    /// The numbers that both have. None: surely no number is in both.
    pub fn and(&self, other: &Number) -> Option<Number> {
        let kind = match (self.kind, other.kind) {
            (Kind::Any, kind) | (kind, Kind::Any) => kind,
            (a, b) if a == b => a,
            _ => return None,
        };
        let tighter = |a: Option<Bound>, b: Option<Bound>, is_low: bool| match (a, b) {
            (Some(x), Some(y)) if x.at == y.at => Some(Bound { at: x.at, is_open: x.is_open || y.is_open }),
            (Some(x), Some(y)) => Some(if (x.at > y.at) == is_low { x } else { y }),
            (x, y) => x.or(y),
        };
        let mut both = Number {
            kind,
            low: tighter(self.low, other.low, true),
            high: tighter(self.high, other.high, false),
            multiples: joined(&self.multiples, &other.multiples),
            multiples_not: joined(&self.multiples_not, &other.multiples_not),
            only: self.only.clone().or(other.only.clone()),
            but: joined(&self.but, &other.but),
        };
        if let Some(only) = both.only.take() {
            let is_in = |number: f64| both.has(number) && self.has(number) && other.has(number);
            let left: Vec<_> = only.into_iter().filter(|(number, _)| is_in(*number)).collect();
            return (!left.is_empty()).then(|| Number::only(left));
        }
        (!both.is_empty()).then_some(both)
    }

    /// The sets that together have all other numbers.
    pub fn others(&self) -> Vec<Number> {
        let any = Number::any;
        let mut all = vec![];
        match self.kind {
            Kind::Any => {}
            Kind::Whole => all.push(Number::of_kind(Kind::Fraction)),
            Kind::Fraction => all.push(Number::of_kind(Kind::Whole)),
        }
        let turned = |bound: Bound| Some(Bound { at: bound.at, is_open: !bound.is_open });
        all.extend(self.low.map(|low| Number { high: turned(low), ..any() }));
        all.extend(self.high.map(|high| Number { low: turned(high), ..any() }));
        all.extend(self.multiples.iter().map(|&of| Number { multiples_not: vec![of], ..any() }));
        all.extend(self.multiples_not.iter().map(|&of| Number { multiples: vec![of], ..any() }));
        if let Some(only) = &self.only {
            all.push(Number { but: joined(&only.iter().map(|(number, _)| *number).collect::<Vec<_>>(), &[]), ..any() });
        }
        if !self.but.is_empty() {
            let texts = self.but.iter().map(|number| (*number, number.to_string()));
            all.push(Number::only(texts.collect()));
        }
        all
    }

    /// The least and the greatest whole number in the bounds.
    fn whole_bounds(&self) -> (Option<i128>, Option<i128>) {
        let low = self.low.map(|low| match low.at.ceil() {
            least if least == low.at && low.is_open => least as i128 + 1,
            least => least as i128,
        });
        let high = self.high.map(|high| match high.at.floor() {
            most if most == high.at && high.is_open => most as i128 - 1,
            most => most as i128,
        });
        (low, high)
    }

    pub fn is_empty(&self) -> bool {
        if let Some(only) = &self.only {
            return only.is_empty();
        }
        if self.has_multiples() && self.has_multiple() == Some(false) {
            return true;
        }
        if let (Some(low), Some(high)) = (self.low, self.high) {
            if low.at > high.at || (low.at == high.at && (low.is_open || high.is_open)) {
                return true;
            }
            if low.at == high.at {
                return !self.has(low.at);
            }
            if self.kind == Kind::Whole || !self.multiples.is_empty() {
                let (least, most) = self.whole_bounds();
                let count = most.zip(least).map_or(0, |(most, least)| most - least + 1);
                if self.kind == Kind::Whole && count <= 0 {
                    return true;
                }
                if self.kind == Kind::Whole && count <= 10_000 {
                    return !(least.unwrap()..=most.unwrap()).any(|number| self.has(number as f64));
                }
                if let [of] = self.multiples[..] {
                    let first = (low.at / of).floor() * of;
                    return !(0..3).any(|i| self.has(first + i as f64 * of));
                }
            }
        }
        self.kind == Kind::Fraction && self.multiples.iter().any(|of| of.fract() == 0.0)
    }

    /// If they are few, all whole numbers of it.
    pub fn listed(&self, most: usize) -> Option<Vec<(f64, String)>> {
        if self.only.is_some() {
            return self.only.clone();
        }
        let (Kind::Whole, (Some(low), Some(high))) = (self.kind, self.whole_bounds()) else { return None };
        if high - low >= most as i128 {
            return None;
        }
        Some((low..=high).filter(|&n| self.has(n as f64)).map(|n| (n as f64, n.to_string())).collect())
    }

    /// Sets without `but`: those between its numbers.
    pub fn between(&self) -> Vec<Number> {
        let own = Number { but: vec![], ..self.clone() };
        let mut cuts: Vec<f64> = self.but.iter().copied().filter(|&number| own.has(number)).collect();
        cuts.sort_by(f64::total_cmp);
        let mut all = vec![];
        let mut low = None;
        for high in cuts.into_iter().map(Some).chain([None]) {
            let open = |at: Option<f64>| at.map(|at| Bound { at, is_open: true });
            let range = Number { low: open(low), high: open(high), ..Number::any() };
            all.extend(own.and(&range));
            low = high;
        }
        all
    }

    /// Whether only llguidance's own schemas can write it.
    pub fn has_multiples(&self) -> bool {
        !self.multiples.is_empty() || !self.multiples_not.is_empty()
    }

    /// Alternatives of a terminal, in Lark. The set has no multiples.
    pub fn terminals(&self) -> Vec<String> {
        if let Some(only) = &self.only {
            // 1.0 may be written 1.
            let texts: BTreeSet<String> =
                only.iter().flat_map(|(number, text)| [plain(*number).to_string(), text.clone()]).collect();
            return texts.iter().map(|text| super::texts::lark_string(text)).collect();
        }
        self.between().iter().map(Number::range_terminal).collect()
    }

    pub fn range_terminal(&self) -> String {
        if self.kind == Kind::Whole {
            return format!("/{}/", whole(self.whole_bounds()));
        }
        let mut parts = vec![];
        parts.extend(self.low.map(|low| format!("/{}/", at_least(low))));
        parts.extend(self.high.map(|high| format!("/{}/", at_most(high))));
        if self.kind == Kind::Fraction {
            parts.push(format!("/-?{NATURAL}{FRACTION}/"));
        }
        // With up to 15 digits, different decimals are different doubles. So what is past an open bound in decimals is
        // past it when it is read, and a fraction is one.
        let is_open = [self.low, self.high].into_iter().flatten().any(|bound| bound.is_open);
        if is_open || self.kind == Kind::Fraction {
            parts.push(FEW_DIGITS.to_string());
        }
        if parts.is_empty() {
            parts.push(format!("/-?{NATURAL}(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/"));
        }
        parts.join(" & ")
    }

    /// The sets as JSON schemas of llguidance.
    pub fn schemas(&self) -> Option<Vec<serde_json::Value>> {
        let kind = match self.kind {
            Kind::Any => "number",
            Kind::Whole => "integer",
            Kind::Fraction => return None,
        };
        if !self.multiples_not.is_empty() {
            return None;
        }
        let of_range = |range: &Number| {
            let mut parts = vec![serde_json::json!({"type": kind})];
            for (bound, open, closed) in
                [(range.low, "exclusiveMinimum", "minimum"), (range.high, "exclusiveMaximum", "maximum")]
            {
                parts.extend(bound.map(|b| serde_json::json!({ if b.is_open { open } else { closed }: b.at })));
            }
            parts.extend(range.multiples.iter().map(|of| serde_json::json!({ "multipleOf": plain(*of) })));
            serde_json::json!({ "allOf": parts })
        };
        Some(self.between().iter().map(of_range).collect())
    }
}

/// A whole number without a point.
fn plain(number: f64) -> serde_json::Value {
    if number.fract() == 0.0 && number.abs() < 9e15 {
        (number as i64).into()
    } else {
        number.into()
    }
}

fn joined(a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut all: Vec<f64> = a.iter().chain(b).map(|number| number + 0.0).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

/// Up to 15 digits.
pub const FEW_DIGITS: &str = r"/-?[0-9.]{1,16}/ & /-?[0-9]{1,15}(?:\.[0-9]+)?/";
const NATURAL: &str = "(?:0|[1-9][0-9]*)";
const FRACTION: &str = r"\.[0-9]*[1-9][0-9]*";
const ANY_FRACTION: &str = r"(?:\.[0-9]+)?";

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
            let longer = format!("[1-9][0-9]{{{},}}", text.len() - 1);
            options.push(if low == 0 { NATURAL.to_string() } else { longer });
            return options;
        }
        options.push(of_length(text.as_bytes(), end.to_string().as_bytes()));
        low = end + 1;
    }
}

/// Whole numbers in these bounds.
fn whole((low, high): (Option<i128>, Option<i128>)) -> String {
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
fn parts(number: f64) -> (u128, String) {
    let text = number.abs().to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    (whole.parse().unwrap_or(u128::MAX), fraction.to_string())
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

fn at_least(bound: Bound) -> String {
    if bound.at < 0.0 {
        let size = size_to(Bound { at: -bound.at, ..bound });
        return format!("(?:{NATURAL}{ANY_FRACTION}|-{size})");
    }
    size_from(Bound { at: bound.at.abs(), ..bound })
}

fn at_most(bound: Bound) -> String {
    if bound.at <= 0.0 {
        let size = size_from(Bound { at: -bound.at, ..bound });
        let zero = if bound.at == 0.0 && !bound.is_open { r"|0(?:\.0+)?" } else { "" };
        return format!("(?:-{size}{zero})");
    }
    format!("(?:{}|-{NATURAL}{ANY_FRACTION})", size_to(bound))
}
