//! Numbers that are multiples of some numbers and not of others, as terminals. Each digit leads from one remainder to
//! another, and a terminal is what may follow a remainder in a number of digits:
//!
//!   not a multiple of 3, up to 2 digits    ->    r2x0: /[147]/ r1x1? | /[258]/ r1x2? | /[0369]/ r1x0
//!                                                r1x0: /[147]/ | /[258]/    r1x1: /[0369]/ | /[147]/    ...
//!
//! A number has at most 15 digits, so that what is not a multiple in decimals is none when it is read as a double.

use super::numbers::{decimal, Kind, Number, FEW_DIGITS};
use super::writer::Writer;
use super::Outcome;
use crate::exact::Exact;
use std::collections::{BTreeMap, BTreeSet, HashMap};

const MAX_DIGITS: usize = 15;
/// Digits after the point of what numbers are multiples of.
const MAX_SCALE: u32 = 4;
/// Remainders of a terminal, and those of all terminals that are read at once.
const MAX_REMAINDERS: u64 = 250;
const MAX_EASY: u64 = 10;
pub const MAX_COMBINED: u64 = 10_000;
/// Numbers that are tried to find one of a set.
const MAX_TRIED: u64 = 20_000;
/// Numbers between two bounds that are listed.
const MAX_LISTED: usize = 500;
/// Bounds from which on a number may not have enough digits.
const MAX_BOUND: f64 = 1e9;
/// A number, the decimal point left out, that is a double and has few digits.
const MAX_DIGITS_TRIED: f64 = 1e14;
/// What llguidance takes for a remainder of a set, and for an option of a terminal.
const REMAINDER_COST: u64 = 500;
const OPTION_COST: u64 = 140;

/// What a number, times a power of ten, leaves when it is divided.
struct Remainders {
    scale: u32, // digits after the point that count
    divisor: u64,
    fits: Vec<u64>,
    fits_not: Vec<u64>,
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        common_divisor(b, a % b)
    }
}

fn least_common_multiple(a: u64, b: u64) -> Option<u64> {
    (a / common_divisor(a, b)).checked_mul(b)
}

impl Remainders {
    fn of(number: &Number) -> Option<Remainders> {
        let read = |all: &[f64]| all.iter().map(|&of| decimal(Exact::from(of))).collect::<Option<Vec<_>>>();
        let (fits, fits_not) = (read(&number.multiples)?, read(&number.multiples_not)?);
        let scale = fits.iter().chain(&fits_not).map(|(_, digits)| *digits as u32).max()?;
        if scale > MAX_SCALE {
            return None;
        }
        let scaled = |(digits, own): &(i128, usize)| u64::try_from(*digits * 10i128.pow(scale - *own as u32)).ok();
        let fits: Vec<u64> = fits.iter().map(scaled).collect::<Option<_>>()?;
        let fits_not: Vec<u64> = fits_not.iter().map(scaled).collect::<Option<_>>()?;
        let divisor = fits.iter().chain(&fits_not).try_fold(1, |all, &own| least_common_multiple(all, own))?;
        (divisor <= u64::from(u32::MAX)).then_some(Remainders { scale, divisor, fits, fits_not })
    }

    /// By the powers of primes whose product the divisor is.
    fn factors(&self) -> Vec<Remainders> {
        let (mut left, mut factors) = (self.divisor, vec![]);
        let mut prime = 2;
        while left > 1 {
            let mut power = 1;
            while left % prime == 0 {
                (left, power) = (left / prime, power * prime);
            }
            factors.extend((power > 1).then_some(power));
            prime = if prime * prime > left { left.max(prime + 1) } else { prime + 1 };
        }
        if factors.is_empty() {
            factors.push(1);
        }
        let (is_fit, scale) = (self.fits_not.is_empty(), self.scale);
        let with = |divisor: u64| {
            let (fits, fits_not) = if is_fit { (vec![divisor], vec![]) } else { (vec![], vec![divisor]) };
            Remainders { scale, divisor, fits, fits_not }
        };
        factors.into_iter().map(with).collect()
    }

    fn unit(&self) -> u64 {
        10u64.pow(self.scale)
    }

    /// Whether a number with this remainder is in the set.
    fn has(&self, remainder: u64) -> bool {
        self.fits.iter().all(|of| remainder % of == 0) && !self.fits_not.iter().any(|of| remainder % of == 0)
    }

    /// Whether a number with more digits after the point is, which is a multiple of none.
    fn has_more_digits(&self) -> bool {
        self.fits.is_empty()
    }

    /// Digits by what they lead to. Each counts `by`, and is added to a remainder.
    fn next(&self, remainder: u64, by: u64) -> BTreeMap<u64, String> {
        let mut all: BTreeMap<u64, String> = BTreeMap::new();
        for digit in 0..10u64 {
            let next = (remainder + digit * by) % self.divisor;
            all.entry(next).or_default().push(char::from(b'0' + digit as u8));
        }
        all
    }

    fn options(&self, remainder: u64, by: u64, rests: &HashMap<u64, Rest>) -> Vec<String> {
        self.next(remainder, by).iter().filter_map(|(next, digits)| rests[next].after(digits)).collect()
    }
}

impl Number {
    /// Whether a set of multiples has a number. None: that cannot be told.
    pub fn has_multiple(&self) -> Option<bool> {
        let all = Remainders::of(self)?;
        let (low, high) = (self.low.map(|bound| bound.at.at()), self.high.map(|bound| bound.at.at()));
        if low.is_some_and(|low| low > MAX_BOUND) || high.is_some_and(|high| high < -MAX_BOUND) {
            return None;
        }
        let is_whole = self.kind == Kind::Whole;
        if all.has_more_digits() && !is_whole {
            // Between two neighbours of these digits there are numbers with more.
            let is_wide = low.zip(high).is_none_or(|(low, high)| high - low > 2.0 / all.unit() as f64);
            return is_wide.then_some(true);
        }
        let unit = if is_whole { 1 } else { all.unit() };
        let period = if is_whole {
            all.divisor / common_divisor(all.divisor, all.unit())
        } else {
            all.divisor / common_divisor(all.divisor, unit) * unit
        };
        let count = period.checked_mul(1 + self.but.len() as u64)?.checked_add(2)?;
        if count > MAX_TRIED {
            return None;
        }
        let at = |bound: f64| (bound * unit as f64).floor() as i64;
        let (start, step) = match (low.filter(|low| *low >= -MAX_BOUND), high.filter(|high| *high <= MAX_BOUND)) {
            (Some(low), _) => (at(low), 1),
            (None, Some(high)) => (at(high) + 1, -1),
            (None, None) => (0, 1),
        };
        let scale = (all.unit() / unit) as i64;
        let mut tried = (0..count as i64).map(|i| start + i * step);
        Some(tried.any(|number| {
            let remainder = (number * scale).rem_euclid(all.divisor as i64);
            all.has(remainder as u64) && self.has(Exact::from(number as f64 / unit as f64))
        }))
    }
}

impl Number {
    /// All numbers of a set of multiples, if they are few.
    pub fn few(&self) -> Option<Vec<f64>> {
        let (low, high) = (self.low?.at.at(), self.high?.at.at());
        if low < -MAX_BOUND || high > MAX_BOUND {
            return None;
        }
        // Each is a multiple of the largest of `multiples`, or a whole number.
        let step = match self.multiples.iter().copied().max_by(f64::total_cmp) {
            Some(of) => Exact::from(of),
            None if self.kind == Kind::Whole => Exact::from(1.0),
            None => return None,
        };
        let (digits, point) = decimal(step)?;
        let (step, unit) = (step.at(), 10f64.powi(i32::try_from(point).ok()?));
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        if last - first > MAX_TRIED as f64 || high.abs().max(low.abs()) * unit >= MAX_DIGITS_TRIED {
            return None;
        }
        let at = |i: i64| (i as i128 * digits) as f64 / unit;
        let found: Vec<f64> =
            (first as i64..=last as i64).map(at).filter(|&number| self.has(Exact::from(number))).collect();
        (found.len() <= MAX_LISTED).then_some(found)
    }
}

/// What may follow: the name of a terminal for what is not empty, and whether nothing may follow.
#[derive(Clone, Default)]
struct Rest {
    name: Option<String>,
    can_end: bool,
}

impl Rest {
    /// It after some digits. None: nothing follows them.
    fn after(&self, digits: &str) -> Option<String> {
        match (&self.name, self.can_end) {
            (Some(name), true) => Some(format!("/[{digits}]/ {name}?")),
            (Some(name), false) => Some(format!("/[{digits}]/ {name}")),
            (None, true) => Some(format!("/[{digits}]/")),
            (None, false) => None,
        }
    }
}

/// The least common multiple of two decimal numbers, each digits and how many of them are after the point.
fn common_multiple(a: (u64, u32), b: (u64, u32)) -> Option<(u64, u32)> {
    let point = a.1.max(b.1);
    let scale = |n: (u64, u32)| 10u64.checked_pow(point - n.1)?.checked_mul(n.0);
    let (mut lcm, mut point) = (least_common_multiple(scale(a)?, scale(b)?)?, point);
    while point > 0 && lcm % 10 == 0 {
        (lcm, point) = (lcm / 10, point - 1);
    }
    (lcm <= MAX_COMBINED).then_some((lcm, point))
}

impl Writer<'_, '_> {
    /// Takes a set's multiples in. False: with all that the grammar has, the lexer would need too many states.
    pub fn takes_multiples(&mut self, number: &Number) -> bool {
        let mut all = self.multiple;
        for &of in number.multiples.iter().chain(&number.multiples_not) {
            let Some((digits, point)) = decimal(Exact::from(of)) else { return false };
            let own = u64::try_from(digits).ok().and_then(|digits| common_multiple(all, (digits, point as u32)));
            let Some(own) = own else { return false };
            all = own;
        }
        self.multiple = all;
        true
    }

    /// Whether `multiples` costs little. llguidance's own grammar writes no 6.0 for a 6.
    pub fn has_easy_multiples(number: &Number) -> bool {
        Remainders::of(number).is_some_and(|all| all.divisor <= MAX_EASY)
    }

    /// Alternatives of a terminal for a set with multiples. None: there are too many remainders, or perhaps no number.
    pub fn multiples(&mut self, number: &Number) -> Outcome<Option<Vec<String>>> {
        let ranges = number.between();
        let is_small = Remainders::of(number).is_some_and(|all| all.divisor <= MAX_COMBINED);
        if !is_small || !ranges.iter().all(|range| range.has_multiple() == Some(true)) {
            return Ok(None);
        }
        let mut parts = vec![FEW_DIGITS.to_string()];
        let mut num_remainders = 0;
        let fits = number.multiples.iter().map(|&of| Number { multiples: vec![of], ..Number::any() });
        let fits_not = number.multiples_not.iter().map(|&of| Number { multiples_not: vec![of], ..Number::any() });
        for set in fits.chain(fits_not) {
            let mut terminals = vec![];
            for factor in Remainders::of(&set).iter().flat_map(Remainders::factors) {
                if factor.divisor > MAX_REMAINDERS {
                    return Ok(None);
                }
                num_remainders += factor.divisor;
                let Some(digits) = self.digits(&factor)? else { return Ok(None) };
                terminals.push(format!("\"-\"? {digits}"));
            }
            // A multiple is one of each factor, and what is none lacks one of them.
            let alone: Vec<Vec<String>> = match set.multiples_not.is_empty() {
                true => terminals.into_iter().map(|terminal| vec![terminal]).collect(),
                false => vec![terminals],
            };
            parts.extend(alone.iter().map(|options| self.terminal(options)));
        }
        let parts = parts.join(" & ");
        let mut options = vec![];
        for range in &ranges {
            match range.few() {
                Some(few) => options.extend(range.listed_terminals(&few)),
                None => {
                    self.demands.work.charge(num_remainders * REMAINDER_COST)?;
                    options.extend(range.range_terminals().iter().map(|range| format!("{range} & {parts}")));
                }
            }
        }
        Ok(Some(options))
    }

    /// A terminal of the numbers with some remainders, without a sign.
    fn digits(&mut self, all: &Remainders) -> Outcome<Option<String>> {
        // What integers leave, times the unit.
        let mut found = BTreeSet::from([0]);
        let mut open = vec![0];
        while let Some(remainder) = open.pop() {
            open.extend(all.next(remainder * 10, all.unit()).into_keys().filter(|next| found.insert(*next)));
        }
        let fractions = self.fractions(all)?;
        let mut ends = HashMap::new();
        for &remainder in &found {
            let fraction = match all.scale {
                0 => fractions[&remainder].clone(),
                scale => self.rest(all.options(remainder, 10u64.pow(scale - 1), &fractions), false)?,
            };
            ends.insert(remainder, fraction.name.map(|name| format!("/\\./ {name}")));
        }
        let mut rests: HashMap<u64, Rest> = HashMap::new();
        for left in 0..=MAX_DIGITS {
            let mut next = HashMap::new();
            for &remainder in &found {
                let mut options: Vec<String> = ends[&remainder].iter().cloned().collect();
                if left > 0 {
                    options.extend(all.options(remainder * 10, all.unit(), &rests));
                }
                next.insert(remainder, self.rest(options, all.has(remainder))?);
            }
            rests = next;
        }
        Ok(rests.remove(&0).and_then(|rest| rest.name))
    }

    fn rest(&mut self, options: Vec<String>, can_end: bool) -> Outcome<Rest> {
        self.demands.work.small_steps(options.len() + 1)?;
        let before = self.num_terminals();
        let name = if options.is_empty() { None } else { Some(self.terminal(&options)) };
        if self.num_terminals() > before {
            self.demands.work.charge(options.len() as u64 * OPTION_COST)?;
        }
        Ok(Rest { name, can_end })
    }

    /// What may follow the first digit after the point, by what they all leave. If no digit counts: the point itself.
    fn fractions(&mut self, all: &Remainders) -> Outcome<HashMap<u64, Rest>> {
        let mut rests: HashMap<u64, Rest> = HashMap::new();
        for remainder in 0..all.divisor {
            let digits = match (all.has(remainder), all.has_more_digits()) {
                (true, true) => Some("/[0-9]+/"),
                (true, false) => Some("/0+/"),
                (false, true) => Some("/[0-9]*[1-9][0-9]*/"),
                (false, false) => None,
            };
            let rest = self.rest(digits.into_iter().map(String::from).collect(), all.has(remainder))?;
            rests.insert(remainder, rest);
        }
        // By the digits that still count.
        for left in 1..all.scale {
            let mut next = HashMap::new();
            for remainder in 0..all.divisor {
                let options = all.options(remainder, 10u64.pow(left - 1), &rests);
                next.insert(remainder, self.rest(options, all.has(remainder))?);
            }
            rests = next;
        }
        Ok(rests)
    }
}
