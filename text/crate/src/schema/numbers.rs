//! Sets of numbers, and how they are written (digits).
//!
//! A number is as its reader has it, which may be a double. So what is past an open bound must be past it as a double.

use super::digits::{at_least, at_most, fraction_digits, whole, FRACTION, NATURAL, TOO_LARGE, UNSIGNED};
pub use super::digits::{Bound, MAX_DIGITS};
use crate::exact::Exact;
use std::collections::BTreeSet;

/// Up to here, whole numbers are doubles.
const MAX_DOUBLE: i128 = 1 << 53;
/// With up to 15 digits, different decimals are different doubles.
const LESS_DIGITS: f64 = 1e14;
/// Up to 15 digits.
pub const FEW_DIGITS: &str = r"/-?[0-9.]{1,16}/ & /-?[0-9]{1,15}(?:\.[0-9]+)?/";

/// Among the numbers: all, those without a fraction, or those with one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Any,
    Whole,
    Fraction,
}

/// The numbers that all of this holds for.
#[derive(Clone, PartialEq, Debug)]
pub struct Number {
    pub kind: Kind,
    pub low: Option<Bound>,
    pub high: Option<Bound>,
    pub multiples: Vec<f64>,
    pub multiples_not: Vec<f64>,
    pub only: Option<Vec<(Exact, String)>>, // in their order, with their text
    pub but: Vec<Exact>,                    // in their order
}

/// A decimal number: digits and how many of them are after the point.
pub fn decimal(number: Exact) -> Option<(i128, usize)> {
    let text = number.digits();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    Some((format!("{whole}{fraction}").parse().ok()?, fraction.len()))
}

fn is_multiple(number: Exact, of: f64) -> bool {
    let (Some((mut a, x)), Some((mut b, y))) = (decimal(number), decimal(Exact::from(of))) else { return false };
    let scale = |digits: i128, by: usize| 10i128.checked_pow(by as u32).and_then(|power| digits.checked_mul(power));
    let most = x.max(y);
    match (scale(a, most - x), scale(b, most - y)) {
        (Some(x), Some(y)) => (a, b) = (x, y),
        _ => return false,
    }
    b != 0 && a % b == 0
}

/// A bound that surely holds where one is vague.
fn sure(bound: Bound, is_low: bool) -> Bound {
    if bound.at.is_vague() {
        Bound { at: bound.at.double(is_low), is_open: false }
    } else {
        bound
    }
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
    pub fn only(mut numbers: Vec<(Exact, String)>) -> Number {
        numbers.sort_by_key(|known| known.0);
        numbers.dedup_by_key(|known| known.0);
        Number { only: Some(numbers), ..Number::any() }
    }

    fn sure_low(&self) -> Option<Bound> {
        self.low.map(|low| sure(low, true))
    }

    fn sure_high(&self) -> Option<Bound> {
        self.high.map(|high| sure(high, false))
    }

    pub fn has(&self, number: Exact) -> bool {
        (match self.kind {
            Kind::Any => true,
            Kind::Whole => number.is_whole(),
            Kind::Fraction => !number.is_whole(),
        }) && self.sure_low().is_none_or(|low| number > low.at || (number == low.at && !low.is_open))
            && self.sure_high().is_none_or(|high| number < high.at || (number == high.at && !high.is_open))
            && self.multiples.iter().all(|&of| is_multiple(number, of))
            && !self.multiples_not.iter().any(|&of| is_multiple(number, of))
            && self.only.as_ref().is_none_or(|only| only.binary_search_by_key(&number, |known| known.0).is_ok())
            && self.but.binary_search(&number).is_err()
    }

    pub fn count_of_list(&self) -> usize {
        self.only.as_ref().map_or(0, Vec::len)
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
        let both = Number {
            kind,
            low: tighter(self.low, other.low, true),
            high: tighter(self.high, other.high, false),
            multiples: joined_multiples(&self.multiples, &other.multiples),
            multiples_not: joined_multiples(&self.multiples_not, &other.multiples_not),
            only: None,
            but: joined(&self.but, &other.but),
        };
        if let Some(only) = self.only.as_ref().or(other.only.as_ref()) {
            let is_in = |number: Exact| both.has(number) && self.has(number) && other.has(number);
            let mut left: Vec<_> = only.iter().filter(|(number, _)| is_in(*number)).cloned().collect();
            if kind == Kind::Whole {
                // For draft-04, 1.0 is not an integer.
                left.iter_mut().for_each(|(number, text)| *text = number.json().to_string());
            }
            return (!left.is_empty()).then(|| Number::only(left));
        }
        (!both.has_none()).then_some(both)
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
            let texts = self.but.iter().map(|number| (*number, number.json().to_string()));
            all.push(Number::only(texts.collect()));
        }
        all
    }

    /// The least and the greatest whole number in the bounds.
    fn whole_bounds(&self) -> (Option<i128>, Option<i128>) {
        let past = |bound: Bound, is_low: bool| match bound.at.floor() {
            // The next double, so that a reader of doubles does not take the number for the bound.
            whole if whole.abs() >= MAX_DOUBLE => bound.at.past(is_low).floor(),
            whole => whole + if is_low { 1 } else { -1 },
        };
        let is_past = |bound: Bound| bound.is_open && bound.at.is_whole();
        let low = self.sure_low().map(|low| if is_past(low) { past(low, true) } else { low.at.ceil() });
        let high = self.sure_high().map(|high| if is_past(high) { past(high, false) } else { high.at.floor() });
        (low.filter(|&low| low > -TOO_LARGE), high.filter(|&high| high < TOO_LARGE))
    }

    /// Whether no number of it can be written.
    pub fn is_empty(&self) -> bool {
        if !self.but.is_empty() && self.between().iter().all(Number::is_empty) {
            return true;
        }
        if self.only.is_none() {
            let (low, high) = (self.sure_low(), self.sure_high());
            let least = low.map_or(-TOO_LARGE, |low| low.at.floor());
            let most = high.map_or(TOO_LARGE, |high| high.at.ceil());
            let limit = match (self.kind, self.has_multiples()) {
                (Kind::Fraction, _) => LESS_DIGITS as i128,
                (_, true) => MAX_DOUBLE,
                _ => TOO_LARGE,
            };
            if least >= limit || most <= -limit || least > most {
                return true;
            }
            if let (Kind::Whole, (Some(least), Some(most))) = (self.kind, self.whole_bounds()) {
                if least > most {
                    return true;
                }
            }
        }
        self.has_none()
    }

    /// Whether surely no number is in it.
    fn has_none(&self) -> bool {
        if let Some(only) = &self.only {
            return only.is_empty();
        }
        let is_known = if self.has_multiples() {
            self.has_multiple().or_else(|| self.few().map(|few| !few.is_empty()))
        } else {
            None
        };
        if is_known == Some(false) {
            return true;
        }
        if let (Some(low), Some(high)) = (self.low, self.high) {
            if low.at.is_vague() || high.at.is_vague() {
                return low.at > high.at;
            }
            if low.at > high.at || (low.at == high.at && (low.is_open || high.is_open)) {
                return true;
            }
            if low.at == high.at {
                return !self.has(low.at);
            }
            if self.kind == Kind::Whole || !self.multiples.is_empty() {
                let least = low.at.floor() + i128::from(low.is_open || !low.at.is_whole());
                let most = high.at.ceil() - i128::from(high.is_open || !high.at.is_whole());
                let count = most.saturating_sub(least).saturating_add(1);
                if self.kind == Kind::Whole && count <= 0 {
                    return true;
                }
                if self.kind == Kind::Whole && count <= 10_000 {
                    return !(least..=most).any(|number| self.has(Exact::from(number)));
                }
                // Doubles may miss a multiple, so they say only of a short range that it has none.
                if let ([of], None) = (&self.multiples[..], is_known) {
                    let first = (low.at.at() / of).floor() * of;
                    let is_short = high.at.at() - low.at.at() < *of;
                    return is_short && !(0..3).any(|i| self.has(Exact::from(first + i as f64 * of)));
                }
            }
        }
        self.kind == Kind::Fraction && self.multiples.iter().any(|of| of.fract() == 0.0)
    }

    /// If they are few, all whole numbers of it.
    pub fn listed(&self, most: usize) -> Option<Vec<(Exact, String)>> {
        if self.only.is_some() {
            return self.only.clone();
        }
        let (Kind::Whole, (Some(low), Some(high))) = (self.kind, self.whole_bounds()) else { return None };
        if high.saturating_sub(low) >= most as i128 {
            return None;
        }
        Some((low..=high).map(Exact::from).filter(|&n| self.has(n)).map(|n| (n, n.digits())).collect())
    }

    /// Sets without `but`: those between its numbers.
    pub fn between(&self) -> Vec<Number> {
        let own = Number { but: vec![], ..self.clone() };
        let mut cuts: Vec<Exact> = self.but.iter().copied().filter(|&number| own.has(number)).collect();
        cuts.sort();
        let mut all = vec![];
        let mut low = None;
        for high in cuts.into_iter().map(Some).chain([None]) {
            let open = |at: Option<Exact>| at.map(|at| Bound { at, is_open: true });
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
                only.iter().flat_map(|(number, text)| [number.json().to_string(), text.clone()]).collect();
            return texts.iter().map(|text| super::texts::lark_string(text)).collect();
        }
        self.between().iter().filter(|range| !range.is_empty()).flat_map(Number::range_terminals).collect()
    }

    /// Patterns of its numbers, where each number is written in one way only.
    pub fn one_way(&self) -> Option<Vec<String>> {
        match &self.only {
            _ if self.has_multiples() => None,
            None if self.kind == Kind::Whole => {
                Some(self.between().iter().map(|own| whole(own.whole_bounds())).collect())
            }
            Some(only) if only.iter().all(|(number, text)| number.json().to_string() == *text) => {
                Some(only.iter().map(|(_, text)| crate::pattern::escape(text)).collect())
            }
            _ => None,
        }
    }

    pub fn range_terminals(&self) -> Vec<String> {
        let whole = || format!("/{}/", whole(self.whole_bounds()));
        if self.kind == Kind::Whole {
            return vec![whole()];
        }
        let (low, high) = (self.sure_low(), self.sure_high());
        let zero = Bound { at: Exact::from(0i128), is_open: false };
        if self.kind == Kind::Any && high.is_none() && low.is_none_or(|low| low == zero) {
            // An exponent does not change the sign.
            return vec![format!("/{}{UNSIGNED}/", if low.is_none() { "-?" } else { "" })];
        }
        // A decimal next to a bound that is not a double may be read as a double past it.
        let is_double = [low, high].into_iter().flatten().all(|bound| bound.at.is_double());
        let [low, high] = [(low, true), (high, false)].map(|(bound, is_low)| {
            let closed = |at| Bound { at, is_open: false };
            bound.map(|bound| match bound {
                Bound { at, is_open: true } if at.at().abs() >= LESS_DIGITS => closed(at.past(is_low)),
                Bound { at, is_open: false } => closed(at.double(is_low)),
                bound => bound,
            })
        });
        let mut parts = vec![];
        parts.extend(low.map(|low| format!("/{}/", at_least(low))));
        parts.extend(high.map(|high| format!("/{}/", at_most(high))));
        if self.kind == Kind::Fraction {
            parts.push(format!("/-?{NATURAL}{FRACTION}/"));
        }
        // What is past an open bound in decimals must be past it when it is read, and a fraction must be one.
        let bounds = || [low, high].into_iter().flatten();
        if bounds().any(|bound| bound.is_open) || self.kind == Kind::Fraction {
            parts.push(FEW_DIGITS.to_string());
        } else {
            let most = bounds().map(|bound| fraction_digits(bound.at)).max().unwrap_or(0).max(MAX_DIGITS);
            parts.push(format!(r"/-?[0-9]{{1,{MAX_DIGITS}}}(?:\.[0-9]{{1,{most}}})?/"));
        }
        let mut all = vec![parts.join(" & ")];
        if self.kind == Kind::Any && !is_double {
            all.push(whole());
        }
        all
    }

    /// Terminals of some of its numbers. Zeros may follow, unless all are whole because of the type.
    pub fn listed_terminals(&self, numbers: &[f64]) -> Vec<String> {
        let (whole, others): (Vec<f64>, Vec<f64>) = numbers.iter().partition(|number| number.fract() == 0.0);
        let zeros = if self.kind == Kind::Whole { "" } else { r"(?:\.0{1,15})?" };
        let either = |numbers: &[f64], zeros: &str| {
            let texts: Vec<String> = numbers.iter().map(|number| crate::pattern::escape(&number.to_string())).collect();
            (!texts.is_empty()).then(|| format!("/(?:{}){zeros}/", texts.join("|")))
        };
        [either(&whole, zeros), either(&others, "0{0,15}")].into_iter().flatten().collect()
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
            for (bound, sign, open, closed) in [
                (range.sure_low(), -1i32, "exclusiveMinimum", "minimum"),
                (range.sure_high(), 1i32, "exclusiveMaximum", "maximum"),
            ] {
                // llguidance reads bounds as doubles.
                let is_far = |bound: &Bound| bound.at.at() * f64::from(sign) >= MAX_DOUBLE as f64;
                let within = Bound { at: Exact::from(i128::from(sign) * MAX_DOUBLE), is_open: true };
                // Multiples without a bound would have any number of digits.
                let bound = bound.map(|bound| if is_far(&bound) { within } else { bound });
                let bound = bound.or((!range.multiples.is_empty()).then_some(within));
                parts.extend(bound.map(|b| serde_json::json!({ if b.is_open { open } else { closed }: b.at.json() })));
            }
            parts.extend(range.multiples.iter().map(|of| serde_json::json!({ "multipleOf": Exact::from(*of).json() })));
            serde_json::json!({ "allOf": parts })
        };
        Some(self.between().iter().filter(|range| !range.is_empty()).map(of_range).collect())
    }
}

fn joined(a: &[Exact], b: &[Exact]) -> Vec<Exact> {
    let mut all = [a, b].concat();
    all.sort();
    all.dedup();
    all
}

fn joined_multiples(a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut all = [a, b].concat();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}
