//! Arrays whose items are counted, as states: how many items have come, and how many fit each need. An item that fits
//! some of the needs leads from one state to another:
//!
//!   contains A, contains B    ->    (0, 0)    A: (1, 0)    B: (0, 1)    A and B: (1, 1)    any: (0, 0)
//!
//! Where at most some items may fit, an item that is not counted must not fit. A state is kept only if the array can be
//! ended from it.

use super::demands::{Demand, Demands, NOTHING};
use super::values::{Array, Need};
use super::Outcome;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// States of an array, and ways from one to another.
const MAX_STATES: usize = 4000;
const MAX_STEPS: usize = 20_000;
/// Needs of an array: an item may fit each set of them.
const MAX_NEEDS: usize = 8;
/// Demands that an item which fits some needs and not others is one of.
const MAX_ALTERNATIVES: usize = 100;

pub struct Counted {
    pub states: Vec<State>,   // the first is before any item
    pub demands: Vec<Demand>, // of all items
}

pub struct State {
    pub can_end: bool,
    pub steps: Vec<(Vec<Demand>, usize)>, // an item that fits one of these leads to a state
}

/// What an item must fit besides, the needs that look at it, and those that it fits.
type Item = (Demand, u32, u32);

struct Counter<'n> {
    array: &'n Array,
    length: usize, // after these, all items are alike
    items: HashMap<Item, Rc<Vec<Demand>>>,
    index: HashMap<(usize, Vec<u64>), usize>,
    found: Vec<(usize, Vec<u64>)>,
    num_steps: usize,
}

impl Counted {
    /// Which states the array can be ended from, where some value fits each of `some`.
    pub fn live(&self, some: &BTreeSet<Demand>) -> Vec<bool> {
        let mut live = vec![false; self.states.len()];
        loop {
            let mut has_changed = false;
            // Most steps lead to later states.
            for (i, state) in self.states.iter().enumerate().rev().filter(|(i, _)| !live[*i]).collect::<Vec<_>>() {
                let goes_on = |(demands, next): &(Vec<Demand>, usize)| {
                    live[*next] && demands.iter().any(|demand| some.contains(demand))
                };
                if state.can_end || state.steps.iter().any(goes_on) {
                    live[i] = true;
                    has_changed = true;
                }
            }
            if !has_changed {
                return live;
            }
        }
    }
}

impl Demands<'_> {
    /// The states of an array with needs.
    pub fn counted(&mut self, array: &Array) -> Outcome<Counted> {
        let Array { first, least, most, needs, .. } = array;
        if needs.len() > MAX_NEEDS {
            return Err(format!("contains: {} for one array are over {MAX_NEEDS}", needs.len()));
        }
        let from = needs.iter().map(|need| need.from).max().unwrap_or(0);
        let last = first.len().max(from).max(*least as usize).max(1);
        let start = (0, vec![0; needs.len()]);
        let mut counter = Counter {
            array,
            length: most.map_or(last, |most| most as usize),
            items: HashMap::new(),
            index: HashMap::from([(start.clone(), 0)]),
            found: vec![start],
            num_steps: 0,
        };
        let mut states = vec![];
        while states.len() < counter.found.len() {
            let (i, counts) = counter.found[states.len()].clone();
            let is_enough = counts.iter().zip(needs).all(|(count, need)| *count >= need.least);
            let steps = self.steps(&mut counter, i, &counts)?;
            states.push(State { can_end: i as u64 >= *least && is_enough, steps });
        }
        let demands: BTreeSet<Demand> = counter.items.values().flat_map(|own| own.iter().copied()).collect();
        Ok(Counted { states, demands: demands.into_iter().collect() })
    }

    fn steps(&mut self, counter: &mut Counter, i: usize, counts: &[u64]) -> Outcome<Vec<(Vec<Demand>, usize)>> {
        let Array { first, rest, most, needs, .. } = counter.array;
        let mut steps: Vec<(Vec<Demand>, usize)> = vec![];
        if i == counter.length && most.is_some() {
            return Ok(steps);
        }
        let own = first.get(i).copied().unwrap_or(*rest);
        // Once there are enough, and any number may be, they need not be counted.
        let is_full = |(count, need): (&u64, &Need)| *count >= need.most.unwrap_or(need.least);
        let bits = |is: &dyn Fn(usize) -> bool| (0..needs.len()).filter(|&j| is(j)).fold(0, |all, j| all | 1u32 << j);
        let looking = bits(&|j| needs[j].from <= i);
        let open = bits(&|j| !is_full((&counts[j], &needs[j]))) & looking;
        self.work.small_steps(1 << needs.len())?;
        for fitting in (0..1u32 << needs.len()).filter(|fitting| fitting & !open == 0) {
            let demands = self.item(counter, (own, looking, fitting))?;
            if demands.is_empty() {
                continue;
            }
            let counts = counts.iter().enumerate().map(|(j, count)| count + u64::from(fitting >> j & 1)).collect();
            let next = counter.state((i + 1).min(counter.length), counts)?;
            match steps.iter_mut().find(|(_, known)| *known == next) {
                Some((known, _)) => known.extend(demands.iter()),
                None => steps.push((demands.to_vec(), next)),
            }
        }
        Ok(steps)
    }

    /// What an item is one of, that fits some needs and does not fit the others which must be counted.
    fn item(&mut self, counter: &mut Counter, item: Item) -> Outcome<Rc<Vec<Demand>>> {
        if let Some(known) = counter.items.get(&item) {
            return Ok(known.clone());
        }
        let (own, looking, fitting) = item;
        let mut all = BTreeSet::from([own]);
        for (j, need) in counter.array.needs.iter().enumerate().filter(|(j, _)| looking >> j & 1 == 1) {
            let options = match (fitting >> j & 1 == 1, need.most) {
                (true, _) => vec![need.demand],
                (false, None) => continue,
                (false, Some(_)) => self.others(need.demand)?,
            };
            self.work.small_steps(all.len() * options.len() * 10)?;
            let mut next = BTreeSet::new();
            for own in all {
                for &option in &options {
                    next.insert(self.both(own, option)?);
                }
            }
            all = next;
            if all.len() > MAX_ALTERNATIVES {
                return Err("contains: too many ways not to fit them".to_string());
            }
        }
        all.remove(&NOTHING);
        let all: Rc<Vec<Demand>> = Rc::new(all.into_iter().collect());
        counter.items.insert(item, all.clone());
        Ok(all)
    }
}

impl Counter<'_> {
    /// The state after `i` items, with how many of them fit each need.
    fn state(&mut self, i: usize, counts: Vec<u64>) -> Outcome<usize> {
        let (found, key) = (&mut self.found, (i, counts));
        let state = *self.index.entry(key).or_insert_with_key(|key| {
            found.push(key.clone());
            found.len() - 1
        });
        self.num_steps += 1;
        if self.found.len() > MAX_STATES || self.num_steps > MAX_STEPS {
            return Err("contains: the items and counts of the array are too many".to_string());
        }
        Ok(state)
    }
}

impl Array {
    /// Without needs that say what the length or another need says. None: surely no array fits.
    pub fn simplified(mut self, is_stronger: impl Fn(Demand, Demand) -> bool) -> Option<Array> {
        if self.rest == NOTHING {
            self.limit(self.first.len() as u64);
        }
        if let Some(i) = self.first.iter().position(|demand| *demand == NOTHING) {
            self.limit(i as u64);
        }
        let mut needs: Vec<Need> = vec![];
        for need in std::mem::take(&mut self.needs) {
            match needs.iter_mut().find(|own| own.demand == need.demand && own.from == need.from) {
                Some(own) => {
                    own.least = own.least.max(need.least);
                    own.most = own.most.into_iter().chain(need.most).min();
                }
                None => needs.push(need),
            }
        }
        for need in &needs {
            let from = need.from as u64;
            if need.demand == super::demands::ANY {
                self.least = self.least.max(if need.least > 0 { from.saturating_add(need.least) } else { 0 });
                need.most.into_iter().for_each(|most| self.limit(from.saturating_add(most)));
            }
        }
        let room = |need: &Need| self.most.map_or(u64::MAX, |most| most.saturating_sub(need.from as u64));
        for need in &mut needs {
            need.most = need.most.filter(|most| *most < room(need));
        }
        let is_impossible = |need: &Need| {
            need.least > room(need)
                || need.most.is_some_and(|most| most < need.least)
                || (need.demand == NOTHING && need.least > 0)
        };
        if self.most.is_some_and(|most| most < self.least) || needs.iter().any(is_impossible) {
            return None;
        }
        needs.retain(|need| {
            need.demand != NOTHING && need.demand != super::demands::ANY && (need.least > 0 || need.most.is_some())
        });
        let says_more = |need: &Need, other: &Need| {
            need.most.is_none()
                && other.least >= need.least
                && other.from >= need.from
                && is_stronger(other.demand, need.demand)
        };
        let all = needs.clone();
        needs.retain(|need| !all.iter().any(|other| other != need && says_more(need, other)));
        self.needs = needs;
        Some(self)
    }

    fn limit(&mut self, most: u64) {
        self.most = Some(self.most.map_or(most, |own| own.min(most)));
        self.first.truncate(most as usize);
    }
}
