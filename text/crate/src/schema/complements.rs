//! The values that do not fit a schema or a literal value. A set of arrays or objects is all of its rules, so what is
//! outside of it breaks one of them:
//!
//!   each name like ^x fits A, "p" is there    is not    some name like ^x does not fit A; "p" is not there

use super::demands::{is_place, Demand, Demands, ANY, NOTHING};
use super::dialect::{is_list_of_names, Keywords};
use super::keywords::{having, lacking, map, names_of};
use super::numbers::{Kind, Number};
use super::texts::Text;
use super::values::{Array, Names, Need, Object, Values};
use super::Outcome;
use serde_json::Value;
use std::collections::HashSet;

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
/// Properties of an object that are taken for tags.
const MAX_TAGS: usize = 3;
/// For errors.
const WITHIN: &str = "not supported within not, if, or a oneOf whose schemas overlap";

/// A set of objects with one more rule. `is_some`: of a property that is there.
fn with_rule(object: &Object, is_some: bool, rule: (Names, Demand)) -> Object {
    let mut with = object.clone();
    if is_some { &mut with.some } else { &mut with.all }.push(rule);
    with
}

impl<'a> Demands<'a> {
    /// The values but one.
    pub fn other_values(&mut self, place: u32) -> Outcome<Values> {
        let own = self.literal_values(place)?;
        self.turned(place, own)
    }

    fn turned(&mut self, place: u32, own: Values) -> Outcome<Values> {
        let mut all = Values::all();
        all.null = !own.null;
        all.is_true = !own.is_true;
        all.is_false = !own.is_false;
        for set in own.numbers {
            let other = Values { numbers: set.others(), ..Values::all() };
            all = self.and(&all, &other)?;
        }
        for set in own.texts {
            let other = Values { texts: set.others(), ..Values::all() };
            all = self.and(&all, &other)?;
        }
        for set in own.arrays {
            let other = Values { arrays: self.other_arrays(place, &set)?, ..Values::all() };
            all = self.and(&all, &other)?;
        }
        for set in own.objects {
            let other = Values { objects: self.other_objects(&set)?, ..Values::all() };
            all = self.and(&all, &other)?;
        }
        Ok(all)
    }

    /// The arrays that one set does not have.
    fn other_arrays(&mut self, place: u32, array: &Array) -> Outcome<Vec<Array>> {
        if array.is_unique {
            return self.fail(place, "uniqueItems", WITHIN);
        }
        let mut all = vec![];
        if array.least > 0 {
            all.push(Array { most: Some(array.least - 1), ..Array::any() });
        }
        all.extend(array.most.map(|most| Array { least: most + 1, ..Array::any() }));
        for (i, &demand) in array.first.iter().enumerate() {
            for other in self.others(demand)? {
                let mut first = vec![ANY; i];
                first.push(other);
                all.push(Array { first, least: i as u64 + 1, ..Array::any() });
            }
        }
        let from = array.first.len();
        if array.rest == NOTHING {
            all.push(Array { least: from as u64 + 1, ..Array::any() });
        } else {
            for demand in self.others(array.rest)? {
                let needs = vec![Need { demand, from, least: 1, most: None }];
                all.push(Array { needs, ..Array::any() });
            }
        }
        for need in &array.needs {
            if need.least > 0 {
                let fewer = Need { least: 0, most: Some(need.least - 1), ..need.clone() };
                all.push(Array { needs: vec![fewer], ..Array::any() });
            }
            if let Some(most) = need.most {
                let more = Need { least: most + 1, most: None, ..need.clone() };
                all.push(Array { needs: vec![more], ..Array::any() });
            }
        }
        all.retain(|array| array.rest != NOTHING && !array.first.contains(&NOTHING));
        all.retain(|array| !array.needs.iter().any(|need| need.demand == NOTHING && need.least > 0));
        Ok(all)
    }

    /// The objects that one set does not have. What has another tag comes first, and the rest has the tag: so that
    /// complements of several sets exclude each other, and their products are few.
    fn other_objects(&mut self, object: &Object) -> Outcome<Vec<Object>> {
        let mut all = vec![];
        let mut sure = Object::any();
        let is_one = |names: &Names| names.name().is_some();
        let required: HashSet<&Names> = object
            .some
            .iter()
            .filter(|(names, demand)| is_one(names) && *demand == ANY)
            .map(|(names, _)| names)
            .collect();
        for rule in &object.all {
            if sure.all.len() < MAX_TAGS && rule.0.name().is_some() && self.is_listed_at_a_glance(rule.1)? {
                all.extend(self.without_rule(&sure, rule, required.contains(&rule.0))?);
                sure.all.push(rule.clone());
                sure.some.extend(required.contains(&rule.0).then(|| (rule.0.clone(), ANY)));
            }
        }
        if object.least > 0 {
            all.push(Object { most: Some(object.least - 1), ..sure.clone() });
        }
        all.extend(object.most.map(|most| Object { least: most + 1, ..sure.clone() }));
        for rule in object.all.iter().filter(|rule| !sure.all.contains(rule)) {
            all.extend(self.without_rule(&sure, rule, required.contains(&rule.0))?);
        }
        let told: HashSet<&Names> = object.all.iter().map(|(names, _)| names).filter(|names| is_one(names)).collect();
        for (names, demand) in object.some.iter().filter(|(names, demand)| *demand != ANY || !told.contains(names)) {
            self.work.small_steps(sure.all.len())?;
            for other in self.others(*demand)? {
                all.push(with_rule(&sure, false, (names.clone(), other)));
            }
            if *demand == ANY {
                all.push(with_rule(&sure, false, (names.clone(), NOTHING)));
            }
        }
        all.retain(|object| object.some.iter().all(|(_, demand)| *demand != NOTHING));
        Ok(all)
    }

    /// The objects that break a rule of properties. If one must be there, they may also lack it.
    fn without_rule(&mut self, sure: &Object, rule: &(Names, Demand), is_there: bool) -> Outcome<Vec<Object>> {
        self.work.small_steps(sure.all.len())?;
        let (names, demand) = rule;
        let mut others = self.others(*demand)?;
        if is_there && others.is_empty() {
            others.push(NOTHING);
        }
        Ok(others.into_iter().map(|other| with_rule(sure, !is_there, (names.clone(), other))).collect())
    }

    /// The values that do not fit a schema.
    pub fn other_than_schema(&mut self, place: u32) -> Outcome<Values> {
        let keywords = self.keywords(place)?.0;
        let keywords = keywords.as_ref();
        for key in ["unevaluatedProperties", "unevaluatedItems"] {
            if keywords.has(key) {
                return self.fail(place, key, WITHIN);
            }
        }
        let mut any = Values::none();
        let own = self.own(place, keywords)?;
        for number in &own.numbers {
            any.numbers.extend(number.others());
        }
        match own.texts.first() {
            Some(text) => any.texts.extend(text.wider().others()),
            None => any.texts.push(Text::any()),
        }
        for array in &own.arrays {
            any.arrays.extend(self.other_arrays(place, array)?);
        }
        for object in &own.objects {
            any.objects.extend(self.other_objects(object)?);
        }
        if let Some(types) = keywords.get("type") {
            let names = names_of(types);
            for name in TYPES.into_iter().filter(|name| !names.contains(name)) {
                match name {
                    "number" if names.contains(&"integer") => {
                        any.add(Values { numbers: vec![Number::of_kind(Kind::Fraction)], ..Values::none() })
                    }
                    name => any.add(Values::of_type(name)),
                }
            }
        }
        for (key, value) in keywords.iter().filter(|(key, _)| !is_place(key)) {
            if let Some(values) = self.broken(place, key, value, keywords)? {
                any.add(values);
            }
        }
        // What such a schema has looked at does not count for unevaluatedProperties.
        any.objects.iter_mut().for_each(|object| object.seen.clear());
        Ok(any)
    }

    /// The values that break a keyword which says something of every type.
    fn broken(&mut self, place: u32, key: &str, value: &'a Value, keywords: &Keywords<'a>) -> Outcome<Option<Values>> {
        Ok(Some(match key {
            "const" | "enum" => {
                let list = if key == "const" {
                    std::slice::from_ref(value)
                } else {
                    value.as_array().map_or(&[][..], Vec::as_slice)
                };
                let own = self.list_values(place, list)?;
                self.turned(place, own)?
            }
            "$ref" | "$dynamicRef" | "$recursiveRef" => {
                let target = self.target(place, key, value.as_str().unwrap_or(""))?;
                let demand = self.of(target, true)?;
                self.values(demand)?.as_ref().clone()
            }
            "allOf" => {
                let mut any = Values::none();
                for demand in self.demands_of(place, key, value, true)? {
                    any.add(self.values(demand)?.as_ref().clone());
                }
                any
            }
            "anyOf" => self.none_of(place, key, value)?,
            "oneOf" => {
                let mut any = self.none_of(place, key, value)?;
                let own = self.demands_of(place, key, value, false)?;
                for (i, j) in self.overlaps(&own)? {
                    let both = self.both(own[i], own[j])?;
                    any.add(self.values(both)?.as_ref().clone());
                }
                any
            }
            "not" => {
                let demand = self.demand_of(place, value, &["not"], false)?;
                self.values(demand)?.as_ref().clone()
            }
            "if" => self.choice(place, keywords, value, true)?,
            "dependentRequired" => {
                let mut any = Values::none();
                for (name, needs) in map(Some(value)).filter(|(_, needs)| is_list_of_names(needs)) {
                    for need in names_of(needs).into_iter().filter(|need| need != name) {
                        let both = self.and_objects(&[having(name)], &[lacking(need)])?;
                        any.add(Values { objects: both, ..Values::none() });
                    }
                }
                any
            }
            "dependentSchemas" => {
                let mut any = Values::none();
                for (name, schema) in map(Some(value)).filter(|(_, schema)| !is_list_of_names(schema)) {
                    let demand = self.demand_of(place, schema, &[key, name], true)?;
                    let own = self.values(demand)?.objects.clone();
                    let both = self.and_objects(&[having(name)], &own)?;
                    any.add(Values { objects: both, ..Values::none() });
                }
                any
            }
            _ => return Ok(None),
        }))
    }

    fn none_of(&mut self, place: u32, key: &str, value: &'a Value) -> Outcome<Values> {
        let mut all = Values::all();
        for demand in self.demands_of(place, key, value, true)? {
            let own = self.values(demand)?;
            all = self.and(&all, &own)?;
        }
        Ok(all)
    }
}
