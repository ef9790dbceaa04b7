//! Numbers of a schema as they stand there: whole numbers of 64 bits, and doubles. Whole numbers beyond 64 bits are read
//! as doubles too, so such a double stands for any of its neighbours. It is vague.

use serde_json::Number;
use std::cmp::Ordering;

/// What fits an i128.
const MAX_WHOLE: f64 = 170141183460469231731687303715884105728.0;
/// Beyond these, a whole number is vague.
const FROM: f64 = -9223372036854775808.0;
const TO: f64 = 18446744073709551616.0;

#[derive(Clone, Copy, Debug)]
pub struct Exact {
    at: f64,
    whole: Option<i128>, // if it is a whole number that is known
}

impl Exact {
    pub fn of(number: &Number) -> Exact {
        match (number.as_i64().map(i128::from).or(number.as_u64().map(i128::from)), number.as_f64()) {
            (Some(whole), _) => Exact::from(whole),
            (None, Some(at)) if at.fract() == 0.0 && !(FROM..TO).contains(&at) => Exact { at, whole: None },
            (None, at) => Exact::from(at.unwrap_or(0.0)),
        }
    }

    pub fn at(self) -> f64 {
        self.at
    }

    pub fn is_whole(self) -> bool {
        self.at.fract() == 0.0
    }

    pub fn is_vague(self) -> bool {
        self.is_whole() && self.whole.is_none()
    }

    /// Whether whoever reads doubles has just this number.
    pub fn is_double(self) -> bool {
        self.whole.is_none_or(|whole| self.at.abs() < MAX_WHOLE && self.at as i128 == whole)
    }

    pub fn floor(self) -> i128 {
        self.whole.unwrap_or(self.at.floor() as i128)
    }

    pub fn ceil(self) -> i128 {
        self.whole.unwrap_or(self.at.ceil() as i128)
    }

    pub fn negated(self) -> Exact {
        Exact { at: 0.0 - self.at, whole: self.whole.map(|whole| -whole) }
    }

    /// The nearest double that is surely not below it, or not above.
    pub fn double(self, is_above: bool) -> Exact {
        let own = Exact::from(self.at);
        let is_inside = if is_above { own >= self } else { own <= self };
        if is_inside && !self.is_vague() {
            own
        } else {
            self.past(is_above)
        }
    }

    /// The next double after it, also for whoever reads it as a double.
    pub fn past(self, is_above: bool) -> Exact {
        Exact::from(if is_above { self.at.next_up() } else { self.at.next_down() })
    }

    /// As JSON has it.
    pub fn json(self) -> serde_json::Value {
        match self.whole.map(|whole| (i64::try_from(whole), u64::try_from(whole))) {
            Some((Ok(whole), _)) => whole.into(),
            Some((_, Ok(whole))) => whole.into(),
            _ => self.at.into(),
        }
    }

    /// Its digits, without an exponent.
    pub fn digits(self) -> String {
        self.whole.map_or_else(|| self.at.to_string(), |whole| whole.to_string())
    }
}

impl From<f64> for Exact {
    fn from(at: f64) -> Exact {
        let at = at + 0.0; // no sign of zero
        let is_whole = at.fract() == 0.0 && at.abs() < MAX_WHOLE;
        Exact { at, whole: is_whole.then_some(at as i128) }
    }
}

impl From<i128> for Exact {
    fn from(whole: i128) -> Exact {
        Exact { at: whole as f64, whole: Some(whole) }
    }
}

impl Ord for Exact {
    fn cmp(&self, other: &Exact) -> Ordering {
        match (self.whole, other.whole) {
            (Some(own), Some(other)) => own.cmp(&other),
            // A number with a fraction is below 2^53, up to which whole numbers are doubles.
            _ => self.at.total_cmp(&other.at),
        }
    }
}

impl PartialOrd for Exact {
    fn partial_cmp(&self, other: &Exact) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Exact {
    fn eq(&self, other: &Exact) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Exact {}
