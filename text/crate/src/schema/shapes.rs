//! Arrays as a grammar writes them: which item may come next, and which demand it must fit.

use super::counts::Counted;
use super::demands::{Demand, Demands, NOTHING};
use super::values::Array;
use super::Outcome;
use crate::json::canonical;
use serde_json::Value;
use std::collections::BTreeSet;

/// Bits of a grammar's parameter.
pub const MAX_BITS: usize = 64;
/// Values that are listed, and how deep.
const MAX_LISTED: usize = 1000;
const MAX_NESTED: usize = 20;

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
    /// Items are watched, so that none comes twice.
    Watched,
    Counted(Counted),
}

impl Demands<'_> {
    pub fn items(&mut self, array: &Array) -> Outcome<Items> {
        let Array { first, rest, least, most, needs, is_unique } = array;
        let is_unique = *is_unique && most.is_none_or(|most| most > 1) && !(first.len() <= 1 && *rest == NOTHING);
        let kind = match (needs.as_slice(), is_unique) {
            ([], false) => Order::Plain,
            ([], true) => self.distinct(array)?,
            (_, false) => Order::Counted(self.counted(array)?),
            (_, true) => return Err("uniqueItems: not supported beside contains".to_string()),
        };
        Ok(Items { first: first.clone(), rest: *rest, least: *least, most: *most, kind })
    }

    fn distinct(&mut self, array: &Array) -> Outcome<Order> {
        let listed = if array.first.is_empty() { self.listed(array.rest, MAX_NESTED)? } else { None };
        match listed {
            Some(values) if values.len() <= MAX_BITS => Ok(Order::Unique(values)),
            _ if self.has_watch && array.first.is_empty() => Ok(Order::Watched),
            Some(values) => Err(format!("uniqueItems: {} values of items are over {MAX_BITS}", values.len())),
            None => Err("uniqueItems: supported here only where the items list their values".to_string()),
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
                let count = fields.named.len() as u64;
                if count < fields.least || fields.most.is_some_and(|most| count > most) {
                    continue;
                }
                if !fields.free.is_empty()
                    || !fields.needs.is_empty()
                    || fields.named.iter().any(|own| !own.is_required)
                {
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
}
