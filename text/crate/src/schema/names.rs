//! Objects as a grammar writes them: which property may come next, and which demand it must fit.
//!
//!   all: "p" fits A, names like ^x fit B; some: "p"    ->    named: p (required): A; free: names like ^x but p: B

use super::demands::{Demand, Demands, ANY, NOTHING};
use super::texts::Text;
use super::values::{Names, Object};
use super::Outcome;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

/// Patterns of names that are told apart, and sets of names that they make.
const MAX_PATTERNS: usize = 20;
const MAX_CELLS: usize = 128;
/// Names of an object.
pub const MAX_NAMES: usize = 2000;
/// Properties that must be there and whose names are not listed, and the ways in which listed ones can be they.
const MAX_NEEDS: usize = 5;
const MAX_ALTERNATIVES: usize = 200;
/// Names that patterns have and that are listed, where several are needed or counted.
const MAX_FEW: u64 = 32;

type NeededName = (Rc<Vec<Text>>, Demand);

#[derive(Clone)]
pub struct Named {
    pub name: Rc<str>,
    pub demand: Demand,
    pub is_required: bool,
    /// Whether it is masked once it has come, so that the grammar needs no bit for it (watch.rs).
    pub is_followed: bool,
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
    /// Properties that must be there, whose names are not listed. Each option meets the needs whose bits it has.
    pub needs: Vec<(u64, Vec<Free>)>,
    pub num_needs: usize,
    pub least: u64,
    pub most: Option<u64>,
}

impl Demands<'_> {
    /// An object may be several: what must be there can be one property or another.
    pub fn fields(&mut self, object: &Object) -> Outcome<Vec<Fields>> {
        let object = &object.as_written();
        let all = self.alternatives(object, None);
        let is_full = |own: &Fields| own.num_needs > 1 || own.least > own.named.len() as u64 + 1;
        if all.as_ref().is_ok_and(|all| !all.iter().any(is_full)) {
            return all;
        }
        match self.few_names(object)? {
            Some(few) => self.alternatives(object, Some(few)),
            None => all,
        }
    }

    /// `others`: all names that are not listed, to be listed too.
    fn alternatives(&mut self, object: &Object, others: Option<Vec<Rc<str>>>) -> Outcome<Vec<Fields>> {
        let mut whole = object.clone();
        let needs: Vec<(Names, Demand)> =
            object.some.iter().filter(|(names, _)| matches!(names, Names::In(_))).cloned().collect();
        whole.some.retain(|(names, _)| matches!(names, Names::Is(_)));
        let mut listed = self.listed_names(object);
        let is_whole = others.is_some();
        listed.extend(others.into_iter().flatten());
        if listed.len() > MAX_NAMES {
            return Err(format!("an object has {} names in properties and required, over {MAX_NAMES}", listed.len()));
        }
        let mut open = vec![(whole, vec![])];
        for (names, demand) in needs {
            let mut next = vec![];
            for (object, mut needs) in open {
                for name in &listed {
                    if self.has_name(&names, name)? {
                        let mut with = object.clone();
                        with.some.push((Names::Is(name.clone()), demand));
                        next.push((with, needs.clone()));
                    }
                }
                let Names::In(texts) = &names else { continue };
                let need = (texts.clone(), demand);
                if !needs.contains(&need) {
                    needs.push(need);
                }
                next.extend((!is_whole).then_some((object, needs)));
            }
            if next.len() > MAX_ALTERNATIVES {
                return Err(format!("properties of several names are needed, in over {MAX_ALTERNATIVES} combinations"));
            }
            self.work.small_steps(next.len() * 10)?;
            open = next;
        }
        let mut all = vec![];
        for (object, needs) in open {
            all.extend(self.written(&object, &listed, &needs)?);
        }
        Ok(all)
    }

    /// The names that an object may have and that are not listed, if they are few.
    fn few_names(&mut self, object: &Object) -> Outcome<Option<Vec<Rc<str>>>> {
        let but = self.listed_names(object).iter().map(|name| name.to_string()).collect();
        let mut all = vec![];
        for free in self.free(object, &but, &[])? {
            let ast = self.patterns.spelled(&free.names, self.work)?;
            let Some(words) = self.patterns.words(&ast, self.work)?.few(MAX_FEW) else { return Ok(None) };
            all.extend(words.iter().filter_map(|word| serde_json::from_slice::<String>(word).ok()).map(Rc::from));
        }
        Ok(Some(all).filter(|all| all.len() <= MAX_FEW as usize))
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

    fn written(&mut self, object: &Object, listed: &[Rc<str>], needs: &[NeededName]) -> Outcome<Option<Fields>> {
        let mut demands: HashMap<&str, Demand> = listed.iter().map(|name| (&**name, ANY)).collect();
        let mut required: BTreeSet<&str> = BTreeSet::new();
        for (names, demand) in object.all.iter().chain(&object.some) {
            match names {
                Names::Is(name) => drop(demands.insert(name, self.both(demands[&**name], *demand)?)),
                // The others have been made properties, or needs.
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
                named.push(Named { name: name.clone(), demand, is_required, is_followed: false });
            }
        }
        self.work.charge((listed.len() * 10) as u64)?;
        let but: BTreeSet<String> = listed.iter().map(|name| name.to_string()).collect();
        let free = self.free(object, &but, &[])?;
        if needs.len() > MAX_NEEDS {
            return Err(format!("over {MAX_NEEDS} properties are needed whose names are not listed"));
        }
        let mut options = vec![];
        let mut met = 0;
        for mask in 1..1u64 << needs.len() {
            let some = needs.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1).map(|(_, need)| need.clone());
            let own = self.free(object, &but, &some.collect::<Vec<_>>())?;
            if !own.is_empty() {
                met |= mask;
                options.push((mask, own));
            }
        }
        if met.count_ones() < needs.len() as u32 {
            return Ok(None);
        }
        let mut num_needs = needs.len();
        if object.most == Some(1) && num_needs > 1 {
            // One property meets them all.
            let Some((_, own)) = options.pop().filter(|(mask, _)| *mask == (1 << num_needs) - 1) else {
                return Ok(None);
            };
            (options, num_needs) = (vec![(1, own)], 1);
        }
        Ok(Some(Fields { named, free, needs: options, num_needs, least: object.least, most: object.most }))
    }

    /// The names that are not listed, by what they must fit; of those, the ones that meet all `needs`.
    fn free(&mut self, object: &Object, but: &BTreeSet<String>, needs: &[NeededName]) -> Outcome<Vec<Free>> {
        let mut rules: Vec<(&[Text], Demand)> = vec![];
        for (names, demand) in &object.all {
            if let Names::In(texts) = names {
                rules.push((texts, *demand));
            }
        }
        let all_texts =
            rules.iter().flat_map(|(texts, _)| texts.iter()).chain(needs.iter().flat_map(|(texts, _)| texts.iter()));
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
            for (texts, own) in needs {
                demand = if texts.iter().any(has) { self.both(demand, *own)? } else { NOTHING };
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

/// The fewest properties that meet the needs which `met` has not. `masks`: of the needs that one property can meet.
pub fn fewest(masks: &[u64], num_needs: usize, met: u64) -> Option<u64> {
    let whole = (1u64 << num_needs) - 1;
    let mut reached = vec![met & whole];
    for count in 0..=num_needs as u64 {
        if reached.contains(&whole) {
            return Some(count);
        }
        reached = reached.iter().flat_map(|met| masks.iter().map(move |mask| met | mask)).collect();
        reached.sort_unstable();
        reached.dedup();
    }
    None
}
