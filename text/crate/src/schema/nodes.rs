//! The values of a demand, ready to be written: whether there are any, and which bytes all of them have.
//!
//!   properties a: A, b: B; a is required    ->    some value fits if one fits A; it has the bytes {"a": and those of A's
//!
//! Both questions are asked again and again, as schemas may refer to each other: the writer does, until nothing changes.

use super::demands::Demand;
use super::names::{fewest, Fields, Free};
use super::numbers::Number;
use super::shapes::{Items, Order};
use super::texts::Text;
use llguidance::HashMap;
use serde_json::json;
use std::collections::BTreeSet;

pub type Bytes = [bool; 256];

pub struct Node {
    pub null: bool,
    pub is_false: bool,
    pub is_true: bool,
    pub numbers: Vec<Number>,
    pub texts: Vec<Text>,
    pub arrays: Vec<Items>,
    pub objects: Vec<Fields>,
}

impl Node {
    /// All demands that it names.
    pub fn demands(&self) -> Vec<Demand> {
        let mut all = vec![];
        for items in &self.arrays {
            all.extend(items.first.iter().copied().chain([items.rest]));
            if let Order::Counted(counted) = &items.kind {
                all.extend(&counted.demands);
            }
        }
        for fields in &self.objects {
            all.extend(fields.named.iter().map(|own| own.demand));
            all.extend(fields.unlisted().map(|own| own.demand));
        }
        all
    }

    /// Small steps that it takes to look at it.
    pub fn size(&self) -> usize {
        let of = |items: &Items| if let Order::Counted(counted) = &items.kind { counted.states.len() } else { 1 };
        1 + self.arrays.iter().map(of).sum::<usize>()
    }

    pub fn has_scalar(&self) -> bool {
        self.null || self.is_false || self.is_true || !self.numbers.is_empty() || !self.texts.is_empty()
    }

    pub fn has_some(&self, some: &BTreeSet<Demand>) -> bool {
        self.has_scalar()
            || self.arrays.iter().any(|items| items.has_some(some))
            || self.objects.iter().any(|fields| fields.has_some(some))
    }

    pub fn bytes(&self, known: &HashMap<Demand, Bytes>, some: &BTreeSet<Demand>) -> Bytes {
        let mut options: Vec<Bytes> = vec![];
        let of_text = |text: &str| {
            let mut bytes = [false; 256];
            text.bytes().for_each(|b| bytes[b as usize] = true);
            bytes
        };
        for (is, text) in [(self.null, "null"), (self.is_false, "false"), (self.is_true, "true")] {
            options.extend(is.then(|| of_text(text)));
        }
        for set in &self.numbers {
            match &set.only {
                Some(numbers) => options.extend(numbers.iter().map(|(_, text)| of_text(text))),
                None => options.push([false; 256]),
            }
        }
        for set in &self.texts {
            match &set.only {
                Some(texts) => options.extend(texts.iter().map(|text| of_text(&json!(text).to_string()))),
                None => options.push(of_text("\"")),
            }
        }
        let add = |bytes: &mut Bytes, demand: Demand| {
            let own = known.get(&demand).copied().unwrap_or([false; 256]);
            bytes.iter_mut().zip(own).for_each(|(a, b)| *a |= b);
        };
        for items in self.arrays.iter().filter(|items| items.has_some(some)) {
            let mut bytes = of_text("[]");
            if items.least > 0 {
                add(&mut bytes, items.first.first().copied().unwrap_or(items.rest));
            }
            options.push(bytes);
        }
        for fields in self.objects.iter().filter(|fields| fields.has_some(some)) {
            let mut bytes = of_text("{}");
            for own in fields.named.iter().filter(|own| own.is_required) {
                let text = of_text(&format!("{}:", json!(&*own.name)));
                bytes.iter_mut().zip(text).for_each(|(a, b)| *a |= b);
                add(&mut bytes, own.demand);
            }
            options.push(bytes);
        }
        let mut common = [!options.is_empty(); 256];
        options.iter().for_each(|own| common.iter_mut().zip(own).for_each(|(all, one)| *all &= one));
        common
    }
}

impl Items {
    /// Whether there is such an array, of items that fit these demands.
    pub fn has_some(&self, some: &BTreeSet<Demand>) -> bool {
        let of = |i: usize| self.first.get(i).copied().unwrap_or(self.rest);
        match &self.kind {
            Order::Unique(values) => self.least as usize <= values.len(),
            Order::Plain | Order::Watched => {
                let sure = self.least.min(self.first.len() as u64 + 1) as usize;
                (0..sure).all(|i| some.contains(&of(i)))
            }
            Order::Counted(counted) => counted.live(some)[0],
        }
    }
}

impl Fields {
    /// What properties whose names are not listed may be.
    pub fn unlisted(&self) -> impl Iterator<Item = &Free> {
        self.free.iter().chain(self.needs.iter().flat_map(|(_, own)| own))
    }

    pub fn has_some(&self, some: &BTreeSet<Demand>) -> bool {
        let named = self.named.iter().filter(|own| some.contains(&own.demand)).count() as u64;
        let required = self.named.iter().filter(|own| own.is_required);
        let has = |all: &[Free]| all.iter().any(|own| some.contains(&own.demand));
        let needs: Vec<u64> = self.needs.iter().filter(|(_, own)| has(own)).map(|(mask, _)| *mask).collect();
        let Some(needed) = fewest(&needs, self.num_needs, 0) else { return false };
        let sure = required.clone().count() as u64 + needed;
        let is_open = has(&self.free) || self.num_needs > 0;
        required.into_iter().all(|own| some.contains(&own.demand))
            && self.most.is_none_or(|most| sure <= most)
            && (is_open || self.least <= named)
    }
}
