//! Whether a value may fit two demands, and which demand a property has.

use super::demands::{Demand, Demands, ANY, NOTHING};
use super::values::{Array, Names, Object};
use super::Outcome;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Properties that are followed to tell two schemas apart.
const MAX_DEPTH: usize = 3;
/// Most options of a oneOf that overlap another one.
pub const MAX_OVERLAPS: usize = 24;

impl Demands<'_> {
    /// The pairs of options that a value may fit both of.
    pub fn overlaps(&mut self, options: &[Demand]) -> Outcome<BTreeSet<(usize, usize)>> {
        let mut pairs = BTreeSet::new();
        for i in 0..options.len() {
            let before = pairs.len();
            for j in i + 1..options.len() {
                self.work.small_steps(10)?;
                if !self.exclude(options[i], options[j], MAX_DEPTH)? {
                    pairs.insert((i, j));
                }
                if pairs.len() - before > MAX_OVERLAPS {
                    return Err(format!("oneOf: a value may fit over {MAX_OVERLAPS} of its schemas"));
                }
            }
        }
        Ok(pairs)
    }

    /// Whether surely no value fits both demands. Where that cannot be told, it is not sure.
    fn exclude(&mut self, a: Demand, b: Demand, depth: usize) -> Outcome<bool> {
        // What a property or an item refers to may be what is being read.
        if depth < MAX_DEPTH && (self.is_open(a) || self.is_open(b)) {
            return Ok(false);
        }
        let is_sure = self.are_apart(a, b, depth);
        self.work.look()?;
        Ok(is_sure.unwrap_or(false))
    }

    fn are_apart(&mut self, a: Demand, b: Demand, depth: usize) -> Outcome<bool> {
        let (x, y) = (self.values(a)?, self.values(b)?);
        if (x.null && y.null) || (x.is_false && y.is_false) || (x.is_true && y.is_true) {
            return Ok(false);
        }
        if x.numbers.iter().any(|own| y.numbers.iter().any(|other| own.and(other).is_some())) {
            return Ok(false);
        }
        for own in &x.texts {
            for other in &y.texts {
                if let Some(both) = self.patterns.and(&own.wider(), &other.wider(), self.work)? {
                    if !self.patterns.is_empty(&both, self.work)? {
                        return Ok(false);
                    }
                }
            }
        }
        for own in &x.arrays {
            for other in &y.arrays {
                let is_apart =
                    own.most.is_some_and(|most| most < other.least) || other.most.is_some_and(|most| most < own.least);
                if !is_apart && !self.items_exclude(own, other, depth)? {
                    return Ok(false);
                }
            }
        }
        for own in &x.objects {
            for other in &y.objects {
                if !self.names_exclude(own, other, depth)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn items_exclude(&mut self, a: &Array, b: &Array, depth: usize) -> Outcome<bool> {
        if depth == 0 {
            return Ok(false);
        }
        let of = |array: &Array, i: usize| array.first.get(i).copied().unwrap_or(array.rest);
        let sure = a.least.max(b.least).min(a.first.len().max(b.first.len()) as u64 + 1);
        for i in 0..sure as usize {
            if self.exclude(of(a, i), of(b, i), depth - 1)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn names_exclude(&mut self, a: &Object, b: &Object, depth: usize) -> Outcome<bool> {
        let names: Vec<Rc<str>> = a
            .some
            .iter()
            .chain(&b.some)
            .filter_map(|(names, _)| match names {
                Names::Is(name) => Some(name.clone()),
                Names::In(_) => None,
            })
            .collect();
        for name in names {
            self.work.small_steps(a.all.len() + b.all.len())?;
            let (x, y) = (self.property(a, &name)?, self.property(b, &name)?);
            if x == NOTHING || y == NOTHING || (depth > 0 && x != ANY && y != ANY && self.exclude(x, y, depth - 1)?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What a property must fit, if it is there.
    pub fn property(&mut self, object: &Object, name: &str) -> Outcome<Demand> {
        let mut all = ANY;
        for (names, demand) in &object.all {
            if self.has_name(names, name)? {
                all = self.both(all, *demand)?;
            }
        }
        for (names, demand) in &object.some {
            if matches!(names, Names::Is(own) if &**own == name) {
                all = self.both(all, *demand)?;
            }
        }
        Ok(all)
    }

    pub fn has_name(&self, names: &Names, name: &str) -> Outcome<bool> {
        match names {
            Names::Is(own) => Ok(&**own == name),
            Names::In(texts) => {
                for text in texts.iter() {
                    if self.patterns.has(text, name, self.work)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}
