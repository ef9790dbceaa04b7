//! Objects in the grammar: properties in their order, or in any, and how many.

use super::names::{Fields, Free, Named};
use super::shapes::MAX_BITS;
use super::texts::literal;
use super::writer::{all, bit_count, or_empty, repeated, Writer};
use super::Outcome;
use std::collections::HashMap;

/// What llguidance takes for a property.
const NAME_COST: u64 = 300;

impl Writer<'_, '_> {
    pub fn named_property(&self, own: &Named) -> String {
        format!("{} {} d{}", literal(&own.name), self.colon(), own.demand.0)
    }

    /// A property of one of these.
    fn any_free(&mut self, free: &[Free]) -> Outcome<Option<String>> {
        let mut options = vec![];
        for own in free {
            if !self.is_some(own.demand) {
                continue;
            }
            let terminal = self.demands.patterns.terminal(&own.names, self.demands.work)?;
            let name = self.terminal(&[terminal]);
            options.push(format!("{name} {} d{}", self.colon(), own.demand.0));
        }
        if options.is_empty() {
            return Ok(None);
        }
        let name = self.fresh("f");
        self.add(&name, &options)?;
        Ok(Some(name))
    }

    pub fn fields(&mut self, fields: &Fields) -> Outcome<String> {
        self.demands.work.charge(fields.named.len() as u64 * NAME_COST)?;
        let free = self.any_free(&fields.free)?;
        let mut needs = vec![];
        for (mask, own) in &fields.needs {
            needs.extend(self.any_free(own)?.map(|name| (*mask, name)));
        }
        let is_open = free.is_some() || !needs.is_empty();
        let is_tallied = fields.least > 0 || fields.most.is_some() || !needs.is_empty() || self.style.any_order;
        let is_followed = !is_open && fields.named.iter().any(|own| own.is_followed);
        if is_followed || (self.has_names && is_open && is_tallied) {
            return self.tallied(fields, free, &needs);
        }
        if fields.num_needs > 1 {
            let what =
                "several properties are needed whose names are not listed, and these names have a bounded length";
            return Err(what.to_string());
        }
        // A name may come twice, and has the last of its values. So the property that is needed comes last.
        let tail = needs.into_iter().next().map(|(_, name)| name);
        let named = self.named(fields);
        let required = named.iter().filter(|own| own.is_required).count() as u64;
        let sure = required + u64::from(tail.is_some());
        let is_open = free.is_some() || tail.is_some();
        let least = fields.least.max(sure);
        let most = fields.most.filter(|&most| is_open || most < named.len() as u64);
        if least > named.len() as u64 + u64::from(is_open) {
            return Err(format!("minProperties: at most {} is supported here", named.len() + usize::from(is_open)));
        }
        let is_counted = least > sure || most.is_some();
        if named.is_empty() {
            return Ok(self.only_free(free, tail, least, most));
        }
        if is_counted || (self.style.any_order && named.len() <= MAX_BITS && (named.len() > 1 || is_open)) {
            if named.len() > MAX_BITS {
                return Err(format!("minProperties: over {MAX_BITS} names in properties and required"));
            }
            return self.remembered(&named, free, tail, least, most);
        }
        let rest = self.after_comma(&free, &tail, 0, None);
        let only = self.only_free(free, tail, 0, None);
        self.in_order(&named, rest, only)
    }

    /// The listed properties that have values.
    pub fn named(&self, fields: &Fields) -> Vec<Named> {
        fields.named.iter().filter(|own| self.is_some(own.demand)).cloned().collect()
    }

    pub fn only_free(&mut self, free: Option<String>, tail: Option<String>, least: u64, most: Option<u64>) -> String {
        let comma = self.comma();
        match (free, tail) {
            (None, None) => String::new(),
            (None, Some(tail)) => tail,
            (Some(free), Some(tail)) => {
                format!("{} {tail}", repeated(&format!("{free} {comma}"), 0, most.map(|most| most.saturating_sub(1))))
            }
            (Some(_), None) if most == Some(0) => String::new(),
            (Some(free), None) => {
                let more = repeated(&format!("{comma} {free}"), 0, most.map(|most| most - 1));
                if least > 0 {
                    format!("{free} {more}")
                } else {
                    format!("({free} {more})?")
                }
            }
        }
    }

    /// The properties in their order. The parameter is the place from which on the next ones may come:
    ///
    ///   "a"?, "b", "c"?    ->    next: a then(1) %if 0 | b then(2) %if 0 or 1 | c then(3) %if 2
    ///                            then: rest %if 2 or 3 | "," next
    ///
    /// So each name that may come costs the parser one item. `rest`: what follows; `only`: where none has come.
    pub fn in_order(&mut self, named: &[Named], rest: String, only: String) -> Outcome<String> {
        let (comma, prefix) = (self.comma(), self.fresh("o"));
        let (next, then) = (format!("{prefix}n"), format!("{prefix}t"));
        let mut from = 0; // after the last required one
        let mut options = vec![];
        for (i, own) in named.iter().enumerate() {
            options.push(format!(
                "{} {then}::{:#x} %if and(ge(_, {from}), le(_, {i}))",
                self.named_property(own),
                i + 1
            ));
            from = if own.is_required { i + 1 } else { from };
        }
        self.add(&format!("{next}::_"), &options)?;
        let ends = format!("{} %if ge(_, {from})", or_empty(&rest));
        let goes_on = format!("{comma} {next}::_ %if lt(_, {})", named.len());
        self.add(&format!("{then}::_"), &[ends, goes_on])?;
        let mut begins = vec![format!("{next}::0x0")];
        begins.extend((from == 0).then_some(only));
        let first = format!("{prefix}f");
        self.add(&first, &begins)?;
        Ok(first)
    }

    /// The properties with a bit for each that has come: in any order, or in theirs where they are counted.
    fn remembered(
        &mut self,
        named: &[Named],
        free: Option<String>,
        tail: Option<String>,
        least: u64,
        most: Option<u64>,
    ) -> Outcome<String> {
        let comma = self.comma();
        let prefix = self.fresh("m");
        // The required ones have the lowest bits.
        let mut bits: Vec<usize> = (0..named.len()).collect();
        bits.sort_by_key(|&i| !named[i].is_required);
        let bit_of: HashMap<usize, usize> = bits.iter().enumerate().map(|(bit, &i)| (i, bit)).collect();
        let required = named.iter().filter(|own| own.is_required).count();
        let all_there = (required > 0).then(|| format!("is_ones([0:{required}])"));
        let is_tailed = tail.is_some();
        let sure = required as u64 + u64::from(is_tailed);
        // What is required must still have room.
        let room = most.map(|most| most.saturating_sub(sure));
        let below = |bit: usize| {
            let clear = format!("bit_clear({bit})");
            match room.filter(|&room| bit >= required && room < MAX_BITS as u64) {
                Some(room) => format!("and({clear}, bit_count_lt([{required}:{MAX_BITS}], {room}))"),
                None => clear,
            }
        };
        // After all named ones: how many others may come, by how many named ones have.
        let mut ends = vec![];
        for count in required..=named.len() {
            let from = least.saturating_sub(count as u64).max(u64::from(is_tailed));
            let to = most.map(|most| most.saturating_sub(count as u64));
            if to.is_some_and(|to| to < from) || from > u64::from(free.is_some() || is_tailed) {
                continue;
            }
            let mut rest = self.only_free(free.clone(), tail.clone(), from, to);
            if count > 0 && !rest.is_empty() {
                rest = self.after_comma(&free, &tail, from, to);
            }
            let mut conditions = vec![bit_count("eq", count as u64)];
            conditions.extend(all_there.clone());
            ends.push((rest, conditions));
        }
        let needs_count = most.is_some() || least > sure;
        let end = format!("{prefix}e");
        if needs_count {
            let options: Vec<String> =
                ends.iter().map(|(rest, conditions)| format!("{} %if {}", or_empty(rest), all(conditions))).collect();
            self.add(&format!("{end}::_"), &options)?;
        }
        if self.style.any_order {
            let may_be_first = |bit: usize| bit < required || room != Some(0);
            let rules = (&below as _, &may_be_first as _);
            return self.in_any_order(named, &bit_of, rules, (free, tail), needs_count, &prefix, all_there);
        }
        // In their order: a rule after each.
        for i in (0..named.len()).rev() {
            let property = self.named_property(&named[i]);
            let next = if i + 1 == named.len() { end.clone() } else { format!("{prefix}p{}", i + 1) };
            let bit = bit_of[&i];
            let condition = below(bit);
            let mut options = vec![
                format!("{property} {next}::set_bit({bit}) %if and(is_zeros(_), {condition})"),
                format!("{comma} {property} {next}::set_bit({bit}) %if and(ne(_, 0), {condition})"),
            ];
            // It may be left out where enough others can come.
            let others = (named.len() - i - 1) as u64 + u64::from(free.is_some() || is_tailed);
            let enough = bit_count("ge", least.saturating_sub(others));
            options.extend((!named[i].is_required).then(|| format!("{next}::_ %if {enough}")));
            self.add(&format!("{prefix}p{i}::_"), &options)?;
        }
        Ok(format!("{prefix}p0::0x0"))
    }

    fn after_comma(&self, free: &Option<String>, tail: &Option<String>, from: u64, to: Option<u64>) -> String {
        let comma = self.comma();
        match (free, tail) {
            (None, None) => String::new(),
            (None, Some(tail)) => format!("{comma} {tail}"),
            (Some(free), Some(tail)) => {
                format!("{} {comma} {tail}", repeated(&format!("{comma} {free}"), 0, to.map(|to| to - 1)))
            }
            (Some(free), None) => repeated(&format!("{comma} {free}"), from, to),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn in_any_order(
        &mut self,
        named: &[Named],
        bit_of: &HashMap<usize, usize>,
        (below, may_be_first): (&dyn Fn(usize) -> String, &dyn Fn(usize) -> bool),
        (free, tail): (Option<String>, Option<String>),
        is_counted: bool,
        prefix: &str,
        all_there: Option<String>,
    ) -> Outcome<String> {
        let comma = self.comma();
        let (first, then, end) = (format!("{prefix}f"), format!("{prefix}n"), format!("{prefix}e"));
        if !is_counted {
            let rest = tail.as_ref().map_or(String::new(), |tail| format!("{comma} {tail}"));
            // A rule with a parameter must use it.
            let condition = all_there.unwrap_or_else(|| "ge(_, 0)".to_string());
            self.add(&format!("{end}::_"), &[format!("{} %if {condition}", or_empty(&rest))])?;
        }
        // Where properties are counted, others come last.
        let between = free.as_ref().filter(|_| !is_counted);
        let mut options = vec![format!("{end}::_")];
        let mut firsts = vec![];
        for (i, own) in named.iter().enumerate() {
            let (property, bit) = (self.named_property(own), bit_of[&i]);
            options.push(format!("{comma} {property} {then}::set_bit({bit}) %if {}", below(bit)));
            firsts.extend(may_be_first(bit).then(|| format!("{property} {then}::{:#x}", 1u64 << bit)));
        }
        if let Some(free) = between {
            let others = format!("{prefix}q");
            self.add(&format!("{others}::_"), &options)?;
            options = vec![format!("({comma} {free})* {others}::_")];
            firsts.push(format!("{free} {then}::0x0"));
        }
        self.add(&format!("{then}::_"), &options)?;
        if named.iter().all(|own| !own.is_required) {
            if is_counted {
                firsts.push(format!("{end}::0x0"));
            } else {
                firsts.push(tail.unwrap_or_default());
            }
        }
        self.add(&first, &firsts)?;
        Ok(first)
    }
}
