//! Objects in the grammar where unlisted properties are needed or counted, and no name comes twice.
//!
//! A rule with a parameter remembers the needs that are met, how many properties have come that are not required, and
//! in any order the listed ones that have come. A name that is not required and followed (watch.rs) needs no bit. What is
//! left out must have room to come later:
//!
//!   {"minProperties": 2, "maxProperties": 3, "required": ["p"]}    1 or 2 others; "p" keeps a place

use super::names::{fewest, Fields, Named};
use super::shapes::MAX_BITS;
use super::texts::literal;
use super::writer::{all, Writer};
use super::Outcome;
use std::collections::BTreeMap;

/// Needs that are told apart where properties are counted: each set of them has its own conditions.
const MAX_COUNTED_NEEDS: usize = 4;
/// The most bits that a bounded count of properties takes.
pub const MAX_COUNT_BITS: usize = 21;

/// What one object's rules have in common.
struct Tally {
    prefix: String,
    num_needs: usize,
    masks: Vec<u64>, // of the needs that options meet
    sure: usize,     // bits that must be set at the end, from the first on
    counter: Option<(usize, usize)>,
    least: u64,        // properties that are not required
    most: Option<u64>, // likewise
}

impl Tally {
    /// Conditions for one more property that is not required and meets the needs of `mask`. None: always.
    fn conditions(&self, mask: u64) -> Option<Vec<String>> {
        let (most, (from, to)) = self.most.zip(self.counter)?;
        let mut conditions = vec![];
        for met in 0..1u64 << self.num_needs {
            let after = fewest(&self.masks, self.num_needs, met | mask).unwrap_or(u64::MAX);
            if after.saturating_add(1) > most {
                continue;
            }
            let mut own = vec![format!("lt([{from}:{to}], {})", most - after)];
            if self.num_needs > 0 {
                own.push(format!("eq([0:{}], {met})", self.num_needs));
            }
            conditions.push(all(&own));
        }
        Some(conditions)
    }

    /// Whether such a property may come first.
    fn may_begin(&self, mask: u64) -> bool {
        self.most.is_none_or(|most| fewest(&self.masks, self.num_needs, mask).is_some_and(|after| after < most))
    }

    /// The rule for the value of a listed property, and what follows.
    fn valued(&self, own: &Named) -> String {
        format!("{}v{}{}", self.prefix, own.demand.0, if own.is_required { "r" } else { "o" })
    }

    fn one(&self) -> u64 {
        self.counter.map_or(0, |(from, _)| 1 << from)
    }
}

/// The option under each of the conditions `any` in turn, and always under `condition`. `any` None: once.
fn under(option: &str, condition: Option<&str>, any: Option<Vec<String>>) -> Vec<String> {
    let with = |other: Option<String>| {
        let own: Vec<String> = condition.map(str::to_string).into_iter().chain(other).collect();
        if own.is_empty() {
            option.to_string()
        } else {
            format!("{option} %if {}", all(&own))
        }
    };
    any.map_or_else(|| vec![with(None)], |any| any.into_iter().map(|own| with(Some(own))).collect())
}

impl Writer<'_, '_> {
    pub fn tallied(&mut self, fields: &Fields, free: Option<String>, needs: &[(u64, String)]) -> Outcome<String> {
        let named = self.named(fields);
        let (num_needs, masks) = (fields.num_needs, needs.iter().map(|(mask, _)| *mask).collect());
        let required = named.iter().filter(|own| own.is_required).count();
        let least = fields.least.saturating_sub(required as u64);
        // No object has too few properties to be counted.
        let most = fields.most.map(|most| most.saturating_sub(required as u64)).filter(|&most| most < 1 << (MAX_COUNT_BITS - 1));
        let is_counted = least > 0 || most.is_some();
        let width = (least.max(most.unwrap_or(0)) + 2).ilog2() as usize + 1;
        let width = if is_counted { width } else { 0 };
        if num_needs > MAX_COUNTED_NEEDS && is_counted {
            return Err(format!(
                "minProperties: not supported where {num_needs} properties are needed whose names are not listed"
            ));
        }
        let (kept, passed): (Vec<&Named>, Vec<&Named>) =
            named.iter().partition(|own| own.is_required || !own.is_followed);
        let any_order = self.style.any_order && kept.len() + num_needs + width <= MAX_BITS;
        // In the schema's order, listed_first writes them.
        let (kept, passed) = if any_order { (kept, passed) } else { Default::default() };
        let others: Vec<String> = free.into_iter().chain(passed.iter().map(|own| self.named_property(own))).collect();
        let sure = num_needs + if any_order { required } else { 0 };
        let from = num_needs + kept.len();
        let counter = is_counted.then_some((from, from + width));
        let tally = Tally { prefix: self.fresh("w"), num_needs, masks, sure, counter, least, most };
        let mut more = needs.to_vec();
        if !others.is_empty() {
            let name = self.fresh("w");
            self.add(&name, &others)?;
            if kept.is_empty() && num_needs == 0 && !is_counted && (any_order || named.is_empty()) {
                return Ok(self.only_free(Some(name), None, 0, None));
            }
            more.push((0, name));
        }
        self.all_rules(&tally, kept, &more)?;
        if any_order || named.is_empty() {
            return Ok(format!("{}f", tally.prefix));
        }
        self.listed_first(&tally, &named)
    }

    /// Rules for properties in any order: `n` after some of them, `f` before the first.
    fn all_rules(&mut self, tally: &Tally, mut kept: Vec<&Named>, others: &[(u64, String)]) -> Outcome<()> {
        let (comma, then) = (self.comma(), format!("{}n", tally.prefix));
        let mut at_end = vec![];
        at_end.extend((tally.sure > 0).then(|| format!("is_ones([0:{}])", tally.sure)));
        if let Some((from, to)) = tally.counter.filter(|_| tally.least > 0) {
            at_end.push(format!("ge([{from}:{to}], {})", tally.least));
        }
        // A rule with a parameter must use it.
        let at_end = if at_end.is_empty() { "ge(_, 0)".to_string() } else { all(&at_end) };
        let mut options = vec![format!("\"\" %if {at_end}")];
        let mut firsts = vec![];
        if tally.sure == 0 && tally.least == 0 {
            firsts.push(String::new());
        }
        for (mask, own) in others {
            self.property(tally, (own, *mask, *mask), None, &mut options)?;
            firsts.extend(tally.may_begin(*mask).then(|| format!("{own} {then}::{:#x}", mask | tally.one())));
        }
        kept.sort_by_key(|own| !own.is_required);
        for (at, named) in kept.into_iter().enumerate() {
            let (own, bit) = (self.named_property(named), tally.num_needs + at);
            if named.is_required {
                options.push(format!("{comma} {own} {then}::set_bit({bit}) %if bit_clear({bit})"));
                firsts.push(format!("{own} {then}::{:#x}", 1u64 << bit));
            } else {
                let clear = format!("bit_clear({bit})");
                self.property(tally, (&own, 0, 1 << bit), Some(&clear), &mut options)?;
                firsts.extend(tally.may_begin(0).then(|| format!("{own} {then}::{:#x}", (1 << bit) | tally.one())));
            }
        }
        self.add(&format!("{then}::_"), &options)?;
        self.add(&format!("{}f", tally.prefix), &firsts)
    }

    /// Options for a property that is not required, after another one. It meets the needs of `mask` and sets `bits`.
    fn property(
        &mut self,
        tally: &Tally,
        (own, mask, bits): (&str, u64, u64),
        condition: Option<&str>,
        options: &mut Vec<String>,
    ) -> Outcome<()> {
        let (comma, then) = (self.comma(), format!("{}n", tally.prefix));
        let text = match tally.counter {
            None if bits == 0 => format!("{own} {then}::_"),
            None => format!("{own} {then}::bit_or({bits:#x})"),
            Some((from, to)) if bits == 0 => format!("{own} {then}::incr([{from}:{to}])"),
            // A reference has one expression. Without a condition, llguidance would put the rule in its place.
            Some((from, to)) => {
                let name = self.fresh("b");
                self.add(&format!("{name}::_"), &[format!("{own} {then}::bit_or({bits:#x}) %if ge(_, 0)")])?;
                format!("{name}::incr([{from}:{to}])")
            }
        };
        options.extend(under(&format!("{comma} {text}"), condition, tally.conditions(mask)));
        Ok(())
    }

    /// The listed properties in their order, and then the others. The place is as for in_order, in bits of its own:
    ///
    ///   "p"?    ->    next: "p" passed of the same place, cleared    passed: ":" valued of the place after it
    ///                 valued: d then, counted
    ///
    /// Each of these rules has a terminal before it changes the parameter. Whether a rule may be empty llguidance decides
    /// as if all rules in it had the rule's own parameter.
    fn listed_first(&mut self, tally: &Tally, named: &[Named]) -> Outcome<String> {
        let (comma, colon, prefix) = (self.comma(), self.colon(), &tally.prefix);
        if tally.most == Some(0) && named.iter().all(|own| !own.is_required) {
            return Ok(format!("{prefix}f"));
        }
        let (next, then) = (format!("{prefix}l"), format!("{prefix}t"));
        let low = tally.counter.map_or(tally.num_needs, |(_, to)| to);
        let high = low + named.len().ilog2() as usize + 1;
        if high > MAX_BITS {
            return Err(format!("minProperties: {} is too large", tally.least));
        }
        let place = format!("[{low}:{high}]");
        let cleared = !(u64::MAX >> (64 - (high - low)) << low);
        let mut from = 0; // after the last required one
        let mut options = vec![];
        for (i, own) in named.iter().enumerate() {
            let passed = format!("{prefix}p{i}");
            let room = tally.conditions(0).filter(|_| !own.is_required);
            let is_next = format!("and(ge({place}, {from}), le({place}, {i}))");
            let option = format!("{} {passed}::bit_and({cleared:#x})", literal(&own.name));
            options.extend(under(&option, Some(&is_next), room));
            let (valued, moved) = (tally.valued(own), (i as u64 + 1) << low);
            self.add(&format!("{passed}::_"), &[format!("{colon} {valued}::bit_or({moved:#x}) %if ge(_, 0)")])?;
            from = if own.is_required { i + 1 } else { from };
        }
        self.add(&format!("{next}::_"), &options)?;
        let valued: BTreeMap<String, &Named> = named.iter().map(|own| (tally.valued(own), own)).collect();
        for (rule, own) in valued {
            let count = tally.counter.filter(|_| !own.is_required).map(|(from, to)| format!("incr([{from}:{to}])"));
            let count = count.unwrap_or_else(|| "_".to_string());
            self.add(&format!("{rule}::_"), &[format!("d{} {then}::{count} %if ge(_, 0)", own.demand.0)])?;
        }
        // A comma comes where another listed property may: one that is required, or one that there is room for.
        let more = format!("{comma} {next}::_");
        let is_left = format!("and(ge({place}, {from}), lt({place}, {}))", named.len());
        let mut after =
            vec![format!("{prefix}n::_ %if ge({place}, {from})"), format!("{more} %if lt({place}, {from})")];
        after.extend(under(&more, Some(&is_left), tally.conditions(0)));
        self.add(&format!("{then}::_"), &after)?;
        let mut begins = vec![format!("{next}::0x0")];
        begins.extend((from == 0).then(|| format!("{prefix}f")));
        let first = format!("{prefix}b");
        self.add(&first, &begins)?;
        Ok(first)
    }
}
