//! Reads the text of rules that schema/ writes in Lark, piece by piece, for rules.rs:
//!
//!   d1x::_: "a" d2 d1x::set_bit(0) %if bit_clear(0)    a name, whether it has a parameter, and its definition
//!     | S1{2,5}                                        a line that begins with a space continues the definition
//!
//! What does not read so is an internal error: clients send schemas, and no rules.

use crate::work::Work;
use llguidance::earley::{BitIdx, ParamCond, ParamExpr, ParamRef, ParamValue};
use llguidance::HashMap;

#[derive(Clone, Copy)]
pub struct Definition<'t> {
    pub has_parameter: bool,
    pub text: &'t str,
}

/// What is left of a definition's text.
pub struct Cursor<'t>(pub &'t str);

pub fn internal<T>(what: impl std::fmt::Display) -> Result<T, String> {
    Err(format!("internal error: {what}"))
}

/// The end of the string or pattern that `text` begins with.
fn quoted_end(text: &str) -> Result<usize, String> {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != bytes[0] {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    if at < bytes.len() {
        Ok(at + 1)
    } else {
        internal("a string of a rule has no end")
    }
}

/// The definitions by their names. A line that begins with a space continues the one before.
pub fn definitions<'t>(text: &'t str, work: &Work) -> Result<HashMap<&'t str, Definition<'t>>, String> {
    let mut all = HashMap::default();
    let mut rest = text;
    while !rest.is_empty() {
        let Some((name, after)) = rest.split_once(':') else {
            return internal(format_args!("a rule without a colon: {rest}"));
        };
        let (has_parameter, body) = after.strip_prefix(":_:").map_or((false, after), |body| (true, body));
        let bytes = body.as_bytes();
        let mut end = 0;
        while end < bytes.len() && (bytes[end] != b'\n' || bytes.get(end + 1) == Some(&b' ')) {
            end += if matches!(bytes[end], b'"' | b'/') { quoted_end(&body[end..])? } else { 1 };
        }
        let text = &body[..end];
        work.text(text)?;
        if all.insert(name, Definition { has_parameter, text }).is_some() {
            return internal(format_args!("two rules {name}"));
        }
        rest = body.get(end + 1..).unwrap_or("");
    }
    Ok(all)
}

impl<'t> Cursor<'t> {
    pub fn peek(&mut self) -> Option<u8> {
        self.0 = self.0.trim_start_matches([' ', '\n']);
        self.0.bytes().next()
    }

    pub fn take(&mut self, mark: &str) -> bool {
        self.peek();
        self.0.strip_prefix(mark).map(|rest| self.0 = rest).is_some()
    }

    pub fn expect(&mut self, mark: &str) -> Result<(), String> {
        if self.take(mark) {
            Ok(())
        } else {
            internal(format_args!("{mark} is missing before {:?}", &self.0.chars().take(20).collect::<String>()))
        }
    }

    pub fn split(&mut self, at: usize) -> &'t str {
        let (head, rest) = self.0.split_at(at);
        self.0 = rest;
        head
    }

    pub fn name(&mut self) -> &'t str {
        self.peek();
        let end = self.0.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        self.split(end.unwrap_or(self.0.len()))
    }

    fn number(&mut self) -> Result<u64, String> {
        let digits = self.name();
        let number = match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        number.or_else(|_| internal(format_args!("{digits:?} is no number")))
    }

    /// A number up to `most`.
    fn bits(&mut self, most: usize) -> Result<BitIdx, String> {
        match self.number()? {
            bits if bits <= most as u64 => Ok(bits as BitIdx),
            bits => internal(format_args!("a parameter has no bit {bits}")),
        }
    }

    fn bit(&mut self) -> Result<BitIdx, String> {
        self.bits(ParamValue::NUM_BITS - 1)
    }

    /// `_`, or some of its bits: `[from:to]`.
    fn part(&mut self) -> Result<ParamRef, String> {
        if self.take("_") {
            return Ok(ParamRef::full());
        }
        self.expect("[")?;
        let from = self.bit()?;
        self.expect(":")?;
        let to = self.bits(ParamValue::NUM_BITS)?;
        self.expect("]")?;
        if from < to {
            Ok(ParamRef::new(from, to))
        } else {
            internal("a part of a parameter has no bit")
        }
    }

    /// The value of a parameter where a rule is used.
    pub fn value(&mut self) -> Result<ParamExpr, String> {
        if self.peek().is_some_and(|b| b.is_ascii_digit()) {
            return Ok(ParamExpr::Const(ParamValue(self.number()?)));
        }
        let name = self.name();
        if name == "_" {
            return Ok(ParamExpr::SelfRef);
        }
        self.expect("(")?;
        let value = match name {
            "incr" => ParamExpr::Incr(self.part()?),
            "decr" => ParamExpr::Decr(self.part()?),
            "bit_and" => ParamExpr::BitAnd(ParamValue(self.number()?)),
            "bit_or" => ParamExpr::BitOr(ParamValue(self.number()?)),
            "set_bit" => ParamExpr::BitOr(ParamValue(1 << self.bit()?)),
            "clear_bit" => ParamExpr::BitAnd(ParamValue(!(1 << self.bit()?))),
            _ => return internal(format_args!("{name:?} gives a parameter no value")),
        };
        self.expect(")")?;
        Ok(value)
    }

    pub fn condition(&mut self) -> Result<ParamCond, String> {
        let name = self.name();
        if name == "true" {
            return Ok(ParamCond::True);
        }
        self.expect("(")?;
        let condition = match name {
            "and" | "or" => {
                let one = Box::new(self.condition()?);
                self.expect(",")?;
                let other = Box::new(self.condition()?);
                if name == "and" {
                    ParamCond::And(one, other)
                } else {
                    ParamCond::Or(one, other)
                }
            }
            "not" => ParamCond::Not(Box::new(self.condition()?)),
            "bit_clear" => ParamCond::EQ(ParamRef::single_bit(self.bit()?), ParamValue(0)),
            "bit_set" => ParamCond::EQ(ParamRef::single_bit(self.bit()?), ParamValue(1)),
            "is_zeros" => ParamCond::EQ(self.part()?, ParamValue(0)),
            "is_ones" => {
                let part = self.part()?;
                ParamCond::EQ(part, ParamValue(part.mask() >> part.start()))
            }
            _ => self.comparison(name)?,
        };
        self.expect(")")?;
        Ok(condition)
    }

    fn comparison(&mut self, name: &str) -> Result<ParamCond, String> {
        let part = self.part()?;
        self.expect(",")?;
        if let Some(name) = name.strip_prefix("bit_count_") {
            let make = match name {
                "eq" => ParamCond::BitCountEQ,
                "ne" => ParamCond::BitCountNE,
                "lt" => ParamCond::BitCountLT,
                "le" => ParamCond::BitCountLE,
                "gt" => ParamCond::BitCountGT,
                "ge" => ParamCond::BitCountGE,
                _ => return internal(format_args!("bit_count_{name} is no condition")),
            };
            return Ok(make(part, self.bit()?));
        }
        let make = match name {
            "eq" => ParamCond::EQ,
            "ne" => ParamCond::NE,
            "lt" => ParamCond::LT,
            "le" => ParamCond::LE,
            "gt" => ParamCond::GT,
            "ge" => ParamCond::GE,
            _ => return internal(format_args!("{name:?} is no condition")),
        };
        Ok(make(part, ParamValue(self.number()?)))
    }

    /// How often what was before comes: from, to (None: without end). None: once, and nothing is said.
    pub fn times(&mut self) -> Result<Option<(u64, Option<u64>)>, String> {
        for (mark, times) in [("?", (0, Some(1))), ("*", (0, None)), ("+", (1, None))] {
            if self.take(mark) {
                return Ok(Some(times));
            }
        }
        if !self.take("{") {
            return Ok(None);
        }
        let from = self.number()?;
        let mut to = Some(from);
        if self.take(",") {
            to = if self.peek() == Some(b'}') { None } else { Some(self.number()?) };
        }
        self.expect("}")?;
        Ok(Some((from, to)))
    }

    /// The text of a string in quotes.
    pub fn string(&mut self) -> Result<String, String> {
        let quoted = self.split(quoted_end(self.0)?);
        if quoted.contains('\x7F') {
            return Err("the control character U+007F is not supported".to_string());
        }
        serde_json::from_str(quoted).or_else(|error| internal(format_args!("{quoted}: {error}")))
    }

    /// The pattern between slashes.
    pub fn pattern(&mut self) -> Result<&'t str, String> {
        let quoted = self.split(quoted_end(self.0)?);
        Ok(&quoted[1..quoted.len() - 1])
    }
}
