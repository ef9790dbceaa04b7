//! The values that two sets both have. Each has several sets of objects, and these multiply:
//!
//!   (A or B) and (C or D)    ->    A and C, A and D, B and C, B and D
//!
//! So pairs without an object are left out, and those that another pair contains: what is left is often short.

use super::demands::{Demand, Demands, NOTHING};
use super::numbers::Number;
use super::texts::Text;
use super::values::{Array, Names, Need, Object, Values};
use super::Outcome;
use llguidance::HashMap;
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

/// Pairs of sets that one intersection may have, and what is left of those of objects.
const MAX_PAIRS: usize = 2000;
const MAX_PAIRS_OF_OBJECTS: usize = 20_000;
const MAX_SETS: usize = 2000;
const SET_COST: u64 = 20;
const MULTIPLES_COST: u64 = 500;
const TOO_MANY: &str = "the schemas that must hold together have too many alternatives";

/// A set of objects, with what has been asked about it.
struct Known<'o> {
    object: &'o Object,
    all: HashSet<&'o str>,  // names with a rule of their own
    some: HashSet<&'o str>, // names of properties that are there
    properties: HashMap<Rc<str>, Demand>,
}

impl<'o> Known<'o> {
    fn of(object: &'o Object) -> Known<'o> {
        let names = |rules: &'o [(Names, Demand)]| rules.iter().filter_map(|(names, _)| names.name()).collect();
        Known { object, all: names(&object.all), some: names(&object.some), properties: HashMap::default() }
    }

    /// All names that a property may have, if they are listed.
    fn listed(&self) -> Option<&'o BTreeSet<String>> {
        self.object.all.iter().find_map(|(names, demand)| match names {
            Names::In(texts) if *demand == NOTHING => match texts.as_slice() {
                [text] if *text == (Text { but: text.but.clone(), ..Text::any() }) => Some(&text.but),
                _ => None,
            },
            _ => None,
        })
    }
}

impl Demands<'_> {
    pub fn and(&mut self, a: &Values, b: &Values) -> Outcome<Values> {
        let mut both = Values {
            null: a.null && b.null,
            is_false: a.is_false && b.is_false,
            is_true: a.is_true && b.is_true,
            ..Values::none()
        };
        let pairs = |x: usize, y: usize| x * y;
        let count = pairs(a.numbers.len(), b.numbers.len())
            + pairs(a.texts.len(), b.texts.len())
            + pairs(a.arrays.len(), b.arrays.len());
        let count_of_objects = pairs(a.objects.len(), b.objects.len());
        if count > MAX_PAIRS || count_of_objects > MAX_PAIRS_OF_OBJECTS {
            return Err(TOO_MANY.to_string());
        }
        self.work.charge((count + count_of_objects) as u64 * SET_COST)?;
        let has_multiples = a.numbers.iter().chain(&b.numbers).any(Number::has_multiples);
        for x in &a.numbers {
            self.work.charge(if has_multiples { b.numbers.len() as u64 * MULTIPLES_COST } else { 0 })?;
            for y in &b.numbers {
                self.work.small_steps(x.count_of_list() + y.count_of_list())?;
                both.numbers.extend(x.and(y));
            }
        }
        for x in &a.texts {
            for y in &b.texts {
                both.texts.extend(self.patterns.and(x, y, self.work)?);
            }
        }
        for x in &a.arrays {
            for y in &b.arrays {
                both.arrays.extend(self.both_arrays(x, y)?);
            }
        }
        let mut out = Values::none();
        out.add(both); // without what comes twice
        out.objects = self.product(&a.objects, &b.objects)?;
        Ok(out)
    }

    /// None: surely no array fits both.
    fn both_arrays(&mut self, a: &Array, b: &Array) -> Outcome<Option<Array>> {
        let of = |array: &Array, i: usize| array.first.get(i).copied().unwrap_or(array.rest);
        let mut first = vec![];
        for i in 0..a.first.len().max(b.first.len()) {
            self.work.small_steps(1)?;
            first.push(self.both(of(a, i), of(b, i))?);
        }
        let needs: Vec<Need> = a.needs.iter().chain(&b.needs).cloned().collect();
        self.work.small_steps(needs.len() * needs.len())?;
        let both = Array {
            first,
            rest: self.both(a.rest, b.rest)?,
            least: a.least.max(b.least),
            most: a.most.into_iter().chain(b.most).min(),
            needs,
            is_unique: a.is_unique || b.is_unique,
        };
        Ok(both.simplified(|own, other| self.is_stronger(own, other)))
    }

    fn product(&mut self, a: &[Object], b: &[Object]) -> Outcome<Vec<Object>> {
        let mut all = vec![];
        let mut ys: Vec<Known> = b.iter().map(Known::of).collect();
        for x in a {
            let mut known = Known::of(x);
            let before = all.len();
            for y in &mut ys {
                let Some(both) = self.both_objects(&mut known, y)? else { continue };
                if both == *x && !self.tracks_seen {
                    all.truncate(before); // it contains what x has with the others
                    all.push(both);
                    break;
                }
                all.push(both);
            }
            if all.len() > MAX_SETS {
                all = self.largest(all)?;
            }
            if all.len() > MAX_SETS {
                return Err(TOO_MANY.to_string());
            }
        }
        self.largest(all)
    }

    /// None: surely no object fits both.
    fn both_objects(&mut self, x: &mut Known, y: &mut Known) -> Outcome<Option<Object>> {
        let (a, b) = (x.object, y.object);
        let most = a.most.into_iter().chain(b.most).min();
        let least = a.least.max(b.least);
        self.work.small_steps(a.some.len() + b.some.len() + b.all.len())?;
        if most.is_some_and(|most| most < least) {
            return Ok(None);
        }
        for (names, _) in a.some.iter().chain(&b.some) {
            let Names::Is(name) = names else { continue };
            let (own, other) = (self.known_property(x, name)?, self.known_property(y, name)?);
            if self.both(own, other)? == NOTHING {
                return Ok(None);
            }
        }
        self.work.small_steps(a.all.len())?;
        let mut both = Object { least, most, ..a.clone() };
        for (names, demand) in &b.all {
            let is_implied = match names {
                // A name that is listed stays listed.
                Names::Is(name) if x.all.contains(&**name) || *demand == NOTHING => {
                    let own = self.known_property(x, name)?;
                    self.is_stronger(own, *demand)
                }
                Names::Is(_) => false,
                Names::In(_) => self.has_rule(&a.all, names, *demand),
            };
            both.all.extend((!is_implied).then(|| (names.clone(), *demand)));
        }
        for (names, demand) in &b.some {
            let is_implied = match names {
                Names::Is(name) => {
                    x.some.contains(&**name) && {
                        let own = self.known_property(x, name)?;
                        self.is_stronger(own, *demand)
                    }
                }
                Names::In(_) => self.has_rule(&a.some, names, *demand),
            };
            both.some.extend((!is_implied).then(|| (names.clone(), *demand)));
        }
        for (own, more) in both.written.iter_mut().zip(&b.written) {
            let new: Vec<_> = more.iter().filter(|rule| !own.contains(rule)).cloned().collect();
            own.extend(new);
        }
        both.seen.extend(b.seen.iter().filter(|names| !a.seen.contains(names)).cloned());
        let forbidden: HashSet<&Names> =
            both.all.iter().filter(|(_, demand)| *demand == NOTHING).map(|(names, _)| names).collect();
        let is_empty = both.some.iter().any(|(names, demand)| *demand == NOTHING || forbidden.contains(names));
        if is_empty {
            return Ok(None);
        }
        let is_some = self.name_the_few(&mut both, x.listed().or(y.listed()))?;
        Ok(is_some.then_some(both))
    }

    /// Whether a rule of the same names says as much.
    fn has_rule(&self, rules: &[(Names, Demand)], names: &Names, demand: Demand) -> bool {
        rules.iter().any(|(own, stronger)| self.is_stronger(*stronger, demand) && own == names)
    }

    fn known_property(&mut self, known: &mut Known, name: &Rc<str>) -> Outcome<Demand> {
        if let Some(demand) = known.properties.get(name) {
            return Ok(*demand);
        }
        self.work.small_steps(known.object.all.len() + known.object.some.len())?;
        let demand = self.property(known.object, name)?;
        known.properties.insert(name.clone(), demand);
        Ok(demand)
    }

    /// Where all names are listed, what is there under one of several names may only be there under one, or none. False:
    /// surely no object fits.
    fn name_the_few(&mut self, object: &mut Object, listed: Option<&BTreeSet<String>>) -> Outcome<bool> {
        let Some(listed) = listed else { return Ok(true) };
        for i in 0..object.some.len() {
            let (names, demand) = object.some[i].clone();
            if names.name().is_some() {
                continue;
            }
            let mut found = vec![];
            for name in listed {
                if found.len() < 2 && self.has_name(&names, name)? {
                    self.work.small_steps(object.all.len() + object.some.len())?;
                    let own = self.property(object, name)?;
                    if self.both(own, demand)? != NOTHING {
                        found.push(name);
                    }
                }
            }
            match found.as_slice() {
                [] => return Ok(false),
                [name] => object.some[i] = (Names::Is(Rc::from(name.as_str())), demand),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Without the sets that another one contains: those whose rules are all of its rules, and more.
    fn largest(&mut self, all: Vec<Object>) -> Outcome<Vec<Object>> {
        if all.len() < 2 {
            return Ok(all);
        }
        let mut numbers: HashMap<(bool, &Names, Demand), u32> = HashMap::default();
        let mut rules: Vec<(u64, BTreeSet<u32>)> = vec![];
        for object in &all {
            self.work.small_steps(object.all.len() + object.some.len())?;
            let own = object.all.iter().map(|rule| (false, rule)).chain(object.some.iter().map(|rule| (true, rule)));
            let own: BTreeSet<u32> = own
                .map(|(is_some, (names, demand))| {
                    let next = numbers.len() as u32;
                    *numbers.entry((is_some, names, *demand)).or_insert(next)
                })
                .collect();
            rules.push((own.iter().fold(0, |bits, rule| bits | 1 << (rule % 64)), own));
        }
        let has_all = |i: usize, j: usize| {
            let (a, b, x, y) = (&all[i], &all[j], &rules[i], &rules[j]);
            x.0 & !y.0 == 0
                && x.1.len() <= y.1.len()
                && a.least <= b.least
                && a.most.is_none_or(|most| b.most.is_some_and(|other| other <= most))
                && b.seen.iter().all(|names| a.seen.contains(names))
                && (0..2).all(|i| a.written[i].iter().all(|rule| b.written[i].contains(rule)))
                && x.1.is_subset(&y.1)
        };
        let mut keeps = vec![true; all.len()];
        for j in 0..all.len() {
            self.work.small_steps(all.len() / 8)?;
            // Where two are the same, the first stays.
            keeps[j] = !(0..all.len()).any(|i| i != j && keeps[i] && has_all(i, j) && (i < j || !has_all(j, i)));
        }
        let mut keeps = keeps.into_iter();
        Ok(all.into_iter().filter(|_| keeps.next() == Some(true)).collect())
    }
}
