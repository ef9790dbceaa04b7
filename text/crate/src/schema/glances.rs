//! What is seen of schemas at a glance: which of them say the same words, and which have no value in common.
//!
//!   {"type": "string"}, not {"type": ["string", "null"]}    {"const": "a"}, {"enum": ["b", "c"]}    ->    no value
//!
//! Only a schema's own types and listed values are looked at, so that this may be asked of any schema at any time.

use super::demands::{is_place, Demand, Demands, Part};
use super::dialect::Keywords;
use super::keywords::names_of;
use super::Outcome;
use crate::json::canonical;
use crate::work::Work;
use llguidance::HashMap;
use serde_json::Value;
use std::rc::Rc;

/// Listed values that are looked at.
const MAX_VALUES: usize = 1000;
const ALL: u8 = 0x7f;
const WHOLE: u8 = 4;
const FRACTION: u8 = 8;

/// JSON values by number: equal ones have the same. The order of properties counts, except within literal values.
#[derive(Default)]
pub struct Alike<'v> {
    numbers: HashMap<Shape<'v>, u32>,
    known: HashMap<(*const Value, bool), u32>,
}

#[derive(PartialEq, Eq, Hash)]
enum Shape<'v> {
    Null,
    Bool(bool),
    Number(String),
    Text(&'v str),
    List(Vec<u32>),
    Map(Vec<(&'v str, u32)>, bool),
}

impl<'v> Alike<'v> {
    pub fn number(&mut self, value: &'v Value, is_literal: bool, work: &Work) -> Outcome<u32> {
        if let Some(known) = self.known.get(&(value as *const Value, is_literal)) {
            return Ok(*known);
        }
        work.small_steps(4)?;
        let shape = match value {
            Value::Null => Shape::Null,
            Value::Bool(value) => Shape::Bool(*value),
            Value::Number(_) => Shape::Number(canonical(value)),
            Value::String(text) => {
                work.text(text)?;
                Shape::Text(text)
            }
            Value::Array(items) => {
                Shape::List(items.iter().map(|item| self.number(item, is_literal, work)).collect::<Outcome<_>>()?)
            }
            Value::Object(items) => {
                let mut all = vec![];
                for (key, item) in items {
                    work.text(key)?;
                    all.push((key.as_str(), self.number(item, is_literal, work)?));
                }
                if is_literal {
                    all.sort();
                }
                Shape::Map(all, is_literal)
            }
        };
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry(shape).or_insert(next);
        self.known.insert((value, is_literal), number);
        Ok(number)
    }
}

/// What every value of a part has: one of these types, and one of the listed values but none of others. Both lists are
/// sorted.
pub struct Glance {
    types: u8,
    only: Option<Vec<u32>>,
    but: Vec<u32>,
}

fn types_of(name: &str) -> u8 {
    match name {
        "null" => 1,
        "boolean" => 2,
        "integer" => WHOLE,
        "number" => WHOLE | FRACTION,
        "string" => 16,
        "array" => 32,
        _ => 64,
    }
}

fn type_of(value: &Value) -> u8 {
    match value {
        Value::Null => 1,
        Value::Bool(_) => 2,
        Value::Number(number) if number.as_f64().is_some_and(|f| f.fract() == 0.0) => WHOLE,
        Value::Number(_) => FRACTION,
        Value::String(_) => 16,
        Value::Array(_) => 32,
        Value::Object(_) => 64,
    }
}

impl Glance {
    fn any() -> Glance {
        Glance { types: ALL, only: None, but: vec![] }
    }

    fn has(&self, value: u32) -> bool {
        self.only.as_ref().is_none_or(|only| only.binary_search(&value).is_ok())
            && self.but.binary_search(&value).is_err()
    }
}

impl<'a> Demands<'a> {
    /// Whether surely no value fits all of these.
    pub fn are_apart_at_a_glance(&mut self, parts: &[Part]) -> Outcome<bool> {
        let glances = parts.iter().map(|&part| self.glance(part)).collect::<Outcome<Vec<_>>>()?;
        self.work.small_steps(parts.len())?;
        if glances.iter().fold(ALL, |types, own| types & own.types) == 0 {
            return Ok(true);
        }
        let Some(fewest) = glances.iter().filter_map(|own| own.only.as_ref()).min_by_key(|only| only.len()) else {
            return Ok(false);
        };
        for &value in fewest {
            self.work.small_steps(parts.len())?;
            if glances.iter().all(|own| own.has(value)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the values that fit a demand are listed, as those of a tag are.
    pub fn is_listed_at_a_glance(&mut self, demand: Demand) -> Outcome<bool> {
        for part in self.parts(demand).to_vec() {
            if self.glance(part)?.only.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn glance(&mut self, part: Part) -> Outcome<Rc<Glance>> {
        if let Some(known) = self.glances.get(&part) {
            return Ok(known.clone());
        }
        let value = self.value(part.place);
        let own = match self.is_literal(part.place) {
            true => self.list_at_a_glance(ALL, std::slice::from_ref(value), part.is_not)?,
            false => {
                let keywords = self.keywords(part.place)?.0;
                self.schema_at_a_glance(&keywords, part.is_not)?
            }
        };
        let own = Rc::new(own);
        self.glances.insert(part, own.clone());
        Ok(own)
    }

    fn schema_at_a_glance(&mut self, keywords: &Keywords<'a>, is_not: bool) -> Outcome<Glance> {
        let types = match keywords.get("type") {
            Some(value) => names_of(value).into_iter().map(types_of).fold(0, |all, own| all | own),
            None => ALL,
        };
        let lists: Vec<&'a [Value]> = keywords
            .iter()
            .filter_map(|(key, value)| match (key, value) {
                ("const", value) => Some(std::slice::from_ref(value)),
                ("enum", Value::Array(list)) => Some(list.as_slice()),
                _ => None,
            })
            .collect();
        // What does not fit is known only of a schema that says nothing else.
        let is_all = keywords.iter().all(|(key, _)| is_place(key) || ["type", "const", "enum"].contains(&key));
        match (lists.as_slice(), is_not) {
            ([], false) => Ok(Glance { types, ..Glance::any() }),
            ([], true) if is_all => Ok(Glance { types: ALL & !types, ..Glance::any() }),
            ([list], false) => self.list_at_a_glance(types, list, false),
            ([list], true) if is_all => self.list_at_a_glance(types, list, true),
            _ => Ok(Glance::any()),
        }
    }

    /// The listed values of some types, or all others.
    fn list_at_a_glance(&mut self, types: u8, list: &'a [Value], is_not: bool) -> Outcome<Glance> {
        if list.len() > MAX_VALUES {
            return Ok(Glance::any());
        }
        let (mut values, mut own) = (vec![], 0);
        for value in list.iter().filter(|value| types & type_of(value) != 0) {
            values.push(self.alike.number(value, true, self.work)?);
            own |= type_of(value);
        }
        values.sort_unstable();
        Ok(match is_not {
            true => Glance { but: values, ..Glance::any() },
            false => Glance { types: own, only: Some(values), ..Glance::any() },
        })
    }

    /// The first schema of the same words as one: what each refers to is the same too.
    pub fn first_alike(&mut self, place: u32, keywords: &Keywords<'a>) -> Outcome<u32> {
        if !self.resources.is_one() {
            return Ok(place);
        }
        if let Some(known) = self.firsts.get(&place) {
            return Ok(*known);
        }
        let mut words = vec![];
        for (key, value) in keywords.iter().filter(|(key, _)| !is_place(key)) {
            words.push((key, self.alike.number(value, false, self.work)?));
        }
        let first = *self.by_words.entry(words).or_insert(place);
        self.firsts.insert(place, first);
        Ok(first)
    }
}
