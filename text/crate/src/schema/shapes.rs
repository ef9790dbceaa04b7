//! Arrays and objects as a grammar writes them: which item or property may come next, and which demand it must fit.
//!
//!   all: "p" fits A, names like ^x fit B; some: "p"    ->    named: p (required): A; free: names like ^x but p: B

use super::counts::Counted;
use super::demands::{Demand, Demands, ANY, NOTHING};
use super::texts::Text;
use super::values::{Array, Names, Object};
use super::Outcome;
use crate::json::canonical;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

/// Patterns of names that are told apart, and sets of names that they make.
const MAX_PATTERNS: usize = 20;
const MAX_CELLS: usize = 128;
/// Bits of a grammar's parameter.
pub const MAX_BITS: usize = 64;
/// Values that are listed, and how deep.
const MAX_LISTED: usize = 1000;
const MAX_NESTED: usize = 20;
/// Names of an object.
pub const MAX_NAMES: usize = 2000;

pub struct Items {
    pub first: Vec<Demand>,
    pub rest: Demand,
    pub least: u64,
    pub most: Option<u64>,
    pub kind: Order,
}

pub enum Order {
    Plain,
    /// Each of these values comes at most once.
    Unique(Vec<Value>),
    Counted(Counted),
}

pub struct Named {
    pub name: Rc<str>,
    pub demand: Demand,
    pub is_required: bool,
}

/// Properties whose names are not listed.
#[derive(Clone)]
pub struct Free {
    pub names: Text,
    pub demand: Demand,
}

pub struct Fields {
    pub named: Vec<Named>,
    pub free: Vec<Free>,
    /// One of these comes last. A name that comes twice has the last of its values.
    pub tail: Option<Vec<Free>>,
    pub least: u64,
    pub most: Option<u64>,
}

impl Demands<'_> {
    pub fn items(&mut self, array: &Array) -> Outcome<Items> {
        let Array { first, rest, least, most, needs, is_unique } = array;
        let is_unique = *is_unique && most.is_none_or(|most| most > 1) && !(first.len() <= 1 && *rest == NOTHING);
        let kind = match (needs.as_slice(), is_unique) {
            ([], false) => Order::Plain,
            ([], true) => Order::Unique(self.distinct(array)?),
            (_, false) => Order::Counted(self.counted(array)?),
            (_, true) => return Err("uniqueItems: not supported beside contains".to_string()),
        };
        Ok(Items { first: first.clone(), rest: *rest, least: *least, most: *most, kind })
    }

    /// The values of items that are distinct.
    fn distinct(&mut self, array: &Array) -> Outcome<Vec<Value>> {
        let listed = if array.first.is_empty() { self.listed(array.rest, MAX_NESTED)? } else { None };
        match listed {
            Some(values) if values.len() <= MAX_BITS => Ok(values),
            Some(values) => Err(format!("uniqueItems: {} values of items are over {MAX_BITS}", values.len())),
            None => Err("uniqueItems: supported only where the items list their values".to_string()),
        }
    }

    /// All values that fit, if they are listed.
    fn listed(&mut self, demand: Demand, depth: usize) -> Outcome<Option<Vec<Value>>> {
        if depth == 0 {
            return Ok(None);
        }
        let values = self.values(demand)?;
        let mut all = vec![];
        for (is, value) in [(values.null, Value::Null), (values.is_false, false.into()), (values.is_true, true.into())]
        {
            all.extend(is.then_some(value));
        }
        for set in &values.numbers {
            let Some(numbers) = set.listed(MAX_LISTED) else { return Ok(None) };
            all.extend(numbers.iter().filter_map(|(_, text)| serde_json::from_str(text).ok()));
        }
        for set in &values.texts {
            let Some(texts) = &set.only else { return Ok(None) };
            all.extend(texts.iter().map(|text| Value::from(text.as_str())));
        }
        for array in &values.arrays {
            if array.rest != NOTHING
                || array.least < array.first.len() as u64
                || array.is_unique
                || !array.needs.is_empty()
            {
                return Ok(None);
            }
            let Some(items) = self.products(&array.first, depth)? else { return Ok(None) };
            all.extend(items.into_iter().map(Value::Array));
        }
        for object in &values.objects {
            for fields in self.fields(object)? {
                if !fields.free.is_empty() || fields.tail.is_some() || fields.named.iter().any(|own| !own.is_required) {
                    return Ok(None);
                }
                let demands: Vec<Demand> = fields.named.iter().map(|own| own.demand).collect();
                let Some(items) = self.products(&demands, depth)? else { return Ok(None) };
                let names = || fields.named.iter().map(|own| own.name.to_string());
                all.extend(items.into_iter().map(|values| Value::Object(names().zip(values).collect())));
            }
        }
        let mut seen = BTreeSet::new();
        all.retain(|value| seen.insert(canonical(value)));
        Ok((all.len() <= MAX_LISTED).then_some(all))
    }

    /// All ways to take a value of each demand.
    fn products(&mut self, demands: &[Demand], depth: usize) -> Outcome<Option<Vec<Vec<Value>>>> {
        let mut all: Vec<Vec<Value>> = vec![vec![]];
        for &demand in demands {
            let Some(values) = self.listed(demand, depth - 1)? else { return Ok(None) };
            self.work.small_steps(all.len() * values.len())?;
            if all.len() * values.len() > MAX_LISTED {
                return Ok(None);
            }
            let with = |before: &Vec<Value>, value: &Value| before.iter().chain([value]).cloned().collect();
            all = all.iter().flat_map(|before| values.iter().map(move |value| with(before, value))).collect();
        }
        Ok(Some(all))
    }

    /// An object may be several: what must be there can be one property or another.
    pub fn fields(&mut self, object: &Object) -> Outcome<Vec<Fields>> {
        let mut whole = object.clone();
        let needs: Vec<(Names, Demand)> =
            object.some.iter().filter(|(names, _)| matches!(names, Names::In(_))).cloned().collect();
        whole.some.retain(|(names, _)| matches!(names, Names::Is(_)));
        let listed = self.listed_names(object);
        if listed.len() > MAX_NAMES {
            return Err(format!("an object has {} names in properties and required, over {MAX_NAMES}", listed.len()));
        }
        let mut open = vec![(whole, None)];
        for (names, demand) in needs {
            let mut next = vec![];
            for (object, tail) in open {
                for name in &listed {
                    if self.has_name(&names, name)? {
                        let mut with = object.clone();
                        with.some.push((Names::Is(name.clone()), demand));
                        next.push((with, tail.clone()));
                    }
                }
                let Names::In(texts) = &names else { continue };
                match &tail {
                    None => next.push((object, Some((texts.clone(), demand)))),
                    Some(other) if *other == (texts.clone(), demand) => next.push((object, tail)),
                    Some(_) => {
                        return Err(
                            "two properties of some name that each must fit a schema of its own are not supported"
                                .to_string(),
                        )
                    }
                }
            }
            self.work.small_steps(next.len() * 10)?;
            open = next;
        }
        let mut all = vec![];
        for (object, tail) in open {
            all.extend(self.written(&object, &listed, tail)?);
        }
        Ok(all)
    }

    /// The names that an object's sets of names list, in their order.
    fn listed_names(&self, object: &Object) -> Vec<Rc<str>> {
        let mut seen = BTreeSet::new();
        let mut all = vec![];
        let mut add = |name: &str| {
            if seen.insert(name.to_string()) {
                all.push(Rc::from(name));
            }
        };
        for is_list in [false, true] {
            for (names, _) in object.all.iter().chain(&object.some) {
                match names {
                    Names::Is(name) if !is_list => add(name),
                    Names::In(texts) if is_list => texts
                        .iter()
                        .for_each(|text| text.only.iter().flatten().chain(&text.but).for_each(|name| add(name))),
                    _ => {}
                }
            }
        }
        all
    }

    fn written(
        &mut self,
        object: &Object,
        listed: &[Rc<str>],
        tail: Option<(Rc<Vec<Text>>, Demand)>,
    ) -> Outcome<Option<Fields>> {
        let mut demands: HashMap<&str, Demand> = listed.iter().map(|name| (&**name, ANY)).collect();
        let mut required: BTreeSet<&str> = BTreeSet::new();
        for (names, demand) in object.all.iter().chain(&object.some) {
            match names {
                Names::Is(name) => drop(demands.insert(name, self.both(demands[&**name], *demand)?)),
                // The others have been made properties, or a tail.
                Names::In(_) => {
                    for name in listed {
                        if self.has_name(names, name)? {
                            demands.insert(name, self.both(demands[&**name], *demand)?);
                        }
                    }
                }
            }
        }
        required.extend(object.some.iter().filter_map(|(names, _)| names.name()));
        let mut named = vec![];
        for name in listed {
            let (demand, is_required) = (demands[&**name], required.contains(&**name));
            if demand == NOTHING && is_required {
                return Ok(None);
            }
            if demand != NOTHING {
                named.push(Named { name: name.clone(), demand, is_required });
            }
        }
        self.work.charge((listed.len() * 10) as u64)?;
        let but: BTreeSet<String> = listed.iter().map(|name| name.to_string()).collect();
        let free = self.free(object, &but, None)?;
        let tail = match tail {
            None => None,
            Some((texts, demand)) => match self.free(object, &but, Some((&texts, demand)))? {
                last if last.is_empty() => return Ok(None),
                last => Some(last),
            },
        };
        Ok(Some(Fields { named, free, tail, least: object.least, most: object.most }))
    }

    /// The names that are not listed, by what they must fit. With `tail`: those of it, which also fit its demand.
    fn free(&mut self, object: &Object, but: &BTreeSet<String>, tail: Option<(&[Text], Demand)>) -> Outcome<Vec<Free>> {
        let mut rules: Vec<(&[Text], Demand)> = vec![];
        for (names, demand) in &object.all {
            if let Names::In(texts) = names {
                rules.push((texts, *demand));
            }
        }
        let all_texts =
            rules.iter().flat_map(|(texts, _)| texts.iter()).chain(tail.iter().flat_map(|(texts, _)| texts.iter()));
        let mut patterns: BTreeSet<String> = BTreeSet::new();
        for text in all_texts.filter(|text| text.only.is_none()) {
            patterns.extend(text.fits.iter().chain(&text.fits_not).cloned());
            patterns.extend(text.length_pattern());
        }
        if patterns.len() > MAX_PATTERNS {
            return Err(format!("{} patterns of names of one object are over {MAX_PATTERNS}", patterns.len()));
        }
        let patterns: Vec<String> = patterns.into_iter().collect();
        let apart = self.apart(&patterns)?;
        let mut all: Vec<Free> = vec![];
        for cell in cells(&patterns, &apart)? {
            let fits = |pattern: &String| cell.contains(pattern);
            // What is listed is not among these names.
            let has = |text: &Text| {
                text.only.is_none()
                    && text.fits.iter().all(fits)
                    && !text.fits_not.iter().any(fits)
                    && text.length_pattern().is_none_or(|pattern| fits(&pattern))
            };
            let mut demand = ANY;
            for (texts, own) in &rules {
                if texts.iter().any(has) {
                    demand = self.both(demand, *own)?;
                }
            }
            if let Some((texts, own)) = tail {
                demand = if texts.iter().any(has) { self.both(demand, own)? } else { NOTHING };
            }
            if demand == NOTHING {
                continue;
            }
            let fits_not = patterns.iter().filter(|pattern| !fits(pattern)).cloned().collect();
            let names = Text { fits: cell, fits_not, but: but.clone(), ..Text::any() };
            all.push(Free { names, demand });
        }
        merge(&mut all);
        let mut left = vec![];
        for mut free in all {
            let Text { fits, fits_not, .. } = &mut free.names;
            fits_not.retain(|other| !fits.iter().any(|own| apart.contains(&(own.clone(), other.clone()))));
            if !self.patterns.is_empty(&free.names, self.work)? {
                left.push(free);
            }
        }
        Ok(left)
    }

    /// The pairs of patterns that surely no text fits both of, each in both orders.
    fn apart(&mut self, patterns: &[String]) -> Outcome<HashSet<(String, String)>> {
        let mut pairs = HashSet::new();
        for (i, a) in patterns.iter().enumerate() {
            for b in &patterns[..i] {
                let both = Text { fits: BTreeSet::from([a.clone(), b.clone()]), ..Text::any() };
                if self.patterns.is_empty(&both, self.work).unwrap_or(false) {
                    pairs.extend([(a.clone(), b.clone()), (b.clone(), a.clone())]);
                }
                self.work.look()?;
            }
        }
        Ok(pairs)
    }
}

/// The sets of patterns that a text may fit, without those that surely no text fits.
fn cells(patterns: &[String], apart: &HashSet<(String, String)>) -> Outcome<Vec<BTreeSet<String>>> {
    let mut all = vec![BTreeSet::new()];
    for pattern in patterns {
        let is_apart = |cell: &BTreeSet<String>| cell.iter().any(|own| apart.contains(&(own.clone(), pattern.clone())));
        let fit: Vec<_> = all.iter().filter(|cell| !is_apart(cell)).cloned().collect();
        all.extend(fit.into_iter().map(|mut cell| {
            cell.insert(pattern.clone());
            cell
        }));
        if all.len() > MAX_CELLS {
            return Err(format!("the patterns of an object's names make over {MAX_CELLS} sets of names"));
        }
    }
    Ok(all)
}

/// Makes two sets of names one, where they differ in one pattern only.
fn merge(all: &mut Vec<Free>) {
    loop {
        let mut found = None;
        'search: for i in 0..all.len() {
            for j in i + 1..all.len() {
                let (a, b) = (&all[i], &all[j]);
                if a.demand != b.demand {
                    continue;
                }
                let own: Vec<&String> = a.names.fits.symmetric_difference(&b.names.fits).collect();
                let other: Vec<&String> = a.names.fits_not.symmetric_difference(&b.names.fits_not).collect();
                if own.len() == 1 && own == other {
                    found = Some((i, j, own[0].clone()));
                    break 'search;
                }
            }
        }
        let Some((i, j, pattern)) = found else { return };
        all.remove(j);
        all[i].names.fits.remove(&pattern);
        all[i].names.fits_not.remove(&pattern);
    }
}
