//! Names that tracker.rs follows, so that none comes twice in an object: a name that has come is masked. These are names
//! that are not listed, if they can always continue. In any order they are listed names too, which then need no bit in
//! the grammar.
//!
//! What a name begins with must lead to another one: either to one that is not listed, or the place lists the names, and
//! tracker.rs looks at them. So it does where an object has no other names.
//!
//!   properties: a, ab; others: ^a    ->    both lead to others: "aba"
//!   properties: p0 to p99; others: ^x    ->    "p may not come after all of them
//!   properties: p0 to p99; no others    ->    no comma may come after all of them
//!
//! Several objects may stand at one place, if a name's values are the same in all that have it. Which of them are left,
//! the names tell:
//!
//!   dependentRequired: {a: [b]}    ->    without a, or with b: after all names but a, a may come

use super::demands::Demand;
use super::names::Fields;
use super::shapes::MAX_BITS;
use super::tallies::MAX_COUNT_BITS;
use super::texts::Text;
use super::watch::is_any;
use super::writer::Writer;
use super::Outcome;
use crate::watched::ListedName;
use crate::words::Words;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Objects at one place. ListedName has a bit for each.
const MAX_OBJECTS: usize = 64;

/// Names that are not listed, without those that are. None: any names.
type Unlisted = (Text, Option<Words>);

impl Writer<'_, '_> {
    /// The names that are not listed, if all of them can always continue: "a", "aa" and so forth.
    pub fn unlisted_names(&mut self) -> Outcome<Option<Vec<Unlisted>>> {
        let mut sets: Vec<Text> = vec![];
        for node in self.order.iter().filter(|demand| self.some.contains(demand)).map(|demand| &self.nodes[demand]) {
            for free in node.objects.iter().flat_map(Fields::unlisted) {
                let names = without_listed(&free.names);
                if self.is_some(free.demand) && !sets.contains(&names) {
                    sets.push(names);
                }
            }
        }
        let mut all = vec![];
        for names in sets {
            let words = if is_any(&names) { None } else { Some(self.words(&names)?) };
            if words.as_ref().map_or(names.most.is_some(), |words| !words.stay_endless()) {
                return Ok(None);
            }
            all.push((names, words));
        }
        Ok(Some(all).filter(|all| !all.is_empty()))
    }

    /// Marks the names that need no bit, as other names begin like them. Returns the names of larger objects, by their
    /// demands: places can list them. `unlisted` None: some cannot continue, and only objects without such names count.
    pub fn followed_names(&mut self, unlisted: Option<&[Unlisted]>) -> Outcome<HashMap<Demand, Vec<ListedName>>> {
        let mut all = HashMap::new();
        for demand in self.order.clone().into_iter().filter(|demand| self.some.contains(demand)) {
            let mut node = self.nodes.remove(&demand).unwrap();
            let objects: Vec<&mut Fields> =
                node.objects.iter_mut().filter(|fields| fields.has_some(&self.some)).collect();
            let can_list = unlisted.is_some() || objects.iter().all(|fields| self.is_closed(fields));
            let mut lists = vec![];
            for fields in objects {
                if unlisted.is_some() || self.is_closed(fields) {
                    lists.push(self.follow_names(fields, unlisted.unwrap_or(&[]))?);
                }
            }
            let objects: Vec<&Fields> = node.objects.iter().filter(|fields| fields.has_some(&self.some)).collect();
            let is_large =
                |fields: &&Fields| fields.named.len() > MAX_BITS && !fields.named.iter().all(|own| own.is_followed);
            if can_list && objects.iter().any(is_large) && self.can_follow(&objects)? {
                all.insert(demand, merged(lists));
            }
            self.nodes.insert(demand, node);
        }
        Ok(all)
    }

    /// Marks the names of one object that need no bit. Returns all its names.
    fn follow_names(&self, fields: &mut Fields, unlisted: &[Unlisted]) -> Outcome<Vec<ListedName>> {
        let own: Vec<&Option<Words>> = fields
            .unlisted()
            .filter(|free| self.is_some(free.demand))
            .filter_map(|free| unlisted.iter().find(|(names, _)| *names == without_listed(&free.names)))
            .map(|(_, words)| words)
            .collect();
        let mut names = vec![];
        for named in fields.named.iter_mut().filter(|own| self.some.contains(&own.demand)) {
            self.demands.work.small_steps(1 + named.name.len() * own.len())?;
            let quoted = Value::from(&*named.name).to_string().into_bytes();
            let spelled = quoted[1..quoted.len() - 1].to_vec();
            let begins = |count: usize| {
                let begun = &quoted[..=count];
                own.iter().any(|words| words.as_ref().is_none_or(|words| words.after(begun) > 0))
            };
            let own_from = (0..=spelled.len()).find(|&count| !begins(count));
            named.is_followed = own_from.is_none();
            let name = named.name.to_string();
            names.push(ListedName { name, spelled, own_from: own_from.unwrap_or(usize::MAX), objects: 0 });
        }
        Ok(names)
    }

    /// Whether it has listed names alone.
    fn is_closed(&self, fields: &Fields) -> bool {
        !fields.unlisted().any(|free| self.is_some(free.demand))
    }

    /// Whether the grammar can remember what must come in each of these objects, and their names tell which are left.
    fn can_follow(&self, objects: &[&Fields]) -> Outcome<bool> {
        if let [fields] = objects {
            return Ok(!self.is_closed(fields) || self.can_count(fields));
        }
        let mut demands: BTreeMap<&str, Demand> = BTreeMap::new();
        for fields in objects {
            self.demands.work.small_steps(fields.named.len())?;
            for own in fields.named.iter().filter(|own| self.is_some(own.demand)) {
                if *demands.entry(&own.name).or_insert(own.demand) != own.demand {
                    return Ok(false);
                }
            }
        }
        // No name is refused by one object and not listed in another: the tracker would not know which is left.
        let others = |fields: &Fields| -> Vec<(Text, Demand)> {
            let free = fields.free.iter().filter(|free| self.is_some(free.demand));
            free.map(|free| (free.names.clone(), free.demand)).collect()
        };
        Ok(objects.len() <= MAX_OBJECTS
            && objects.iter().all(|fields| {
                fields.num_needs == 0
                    && !is_counted(fields)
                    && self.can_count(fields)
                    && others(fields) == others(objects[0])
            }))
    }

    /// Whether a parameter has the bits for what must be there, and for a count of the listed properties.
    fn can_count(&self, fields: &Fields) -> bool {
        let names = fields.named.iter().filter(|own| self.is_some(own.demand)).count();
        let width = if is_counted(fields) { MAX_COUNT_BITS } else { 0 };
        required(fields) + width <= MAX_BITS && (fields.least <= names as u64 || !self.is_closed(fields))
    }
}

fn required(fields: &Fields) -> usize {
    fields.named.iter().filter(|own| own.is_required).count()
}

fn is_counted(fields: &Fields) -> bool {
    fields.least > required(fields) as u64 || fields.most.is_some()
}

/// All names of some objects, each with the objects that have it.
fn merged(lists: Vec<Vec<ListedName>>) -> Vec<ListedName> {
    let mut at: HashMap<String, usize> = HashMap::new();
    let mut all: Vec<ListedName> = vec![];
    for (i, list) in lists.into_iter().enumerate() {
        for own in list {
            let known = *at.entry(own.name.clone()).or_insert(all.len());
            if known == all.len() {
                all.push(own);
            }
            all[known].objects |= 1 << i;
        }
    }
    all
}

/// Names without a word on which are listed: that makes no difference to whether they can continue, as those are few.
fn without_listed(names: &Text) -> Text {
    Text { but: BTreeSet::new(), ..names.clone() }
}
