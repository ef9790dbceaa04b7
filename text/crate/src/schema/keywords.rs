//! The values that a schema's keywords allow, and those that they do not.
//!
//! A schema is all of its keywords, so what does not fit is what breaks one of them:
//!
//!   {"type": "string", "minLength": 2}    is not    other types; texts of at most 1 character

use super::demands::{Demand, Demands, ANY, NOTHING};
use super::dialect::{is_list_of_names, Keywords};
use super::formats::{format_most, format_pattern};
use super::numbers::{Bound, Number};
use super::overlaps::MAX_OVERLAPS;
use super::texts::Text;
use super::values::{Array, Names, Need, Object, Values};
use super::Outcome;
use crate::exact::Exact;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Most options of an anyOf whose combinations are looked at, for what is unevaluated.
const MAX_COMBINED: usize = 4;

pub fn map(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

fn count(keywords: &Keywords, key: &str) -> Option<u64> {
    keywords.get(key).and_then(Value::as_f64).map(|f| f as u64)
}

pub fn names_of(value: &Value) -> Vec<&str> {
    match value {
        Value::String(name) => vec![name],
        value => value.as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
    }
}

pub fn is(name: &str) -> Names {
    Names::Is(Rc::from(name))
}

impl<'a> Demands<'a> {
    /// The values that fit a schema.
    pub fn schema(&mut self, place: u32) -> Outcome<Values> {
        let keywords = self.keywords(place)?.0;
        let keywords = keywords.as_ref();
        let mut all = self.own(place, keywords)?;
        if let Some(types) = keywords.get("type") {
            let mut typed = Values::none();
            names_of(types).into_iter().for_each(|name| typed.add(Values::of_type(name)));
            all = self.and(&all, &typed)?;
        }
        for (key, value) in keywords.iter() {
            if let Some(values) = self.applied(place, key, value, keywords)? {
                all = self.and(&all, &values)?;
            }
        }
        self.unevaluated(place, keywords, all)
    }

    /// The values that fit the keywords that each say something of one type.
    pub fn own(&mut self, place: u32, keywords: &Keywords<'a>) -> Outcome<Values> {
        let mut all = Values::all();
        all.numbers = vec![number(keywords)];
        all.texts = self.text(keywords)?.into_iter().collect();
        all.arrays = vec![self.array(place, keywords)?];
        all.objects = vec![self.object(place, keywords)?];
        Ok(all)
    }

    pub fn demand_of(&mut self, place: u32, value: &'a Value, path: &[&str], is_not: bool) -> Outcome<Demand> {
        let place = self.child(place, value, path)?;
        self.of(place, is_not)
    }

    /// The values that fit a keyword which says something of every type; None: this is not one.
    fn applied(&mut self, place: u32, key: &str, value: &'a Value, keywords: &Keywords<'a>) -> Outcome<Option<Values>> {
        Ok(Some(match key {
            "const" => self.list_values(place, std::slice::from_ref(value))?,
            "enum" => self.list_values(place, value.as_array().map_or(&[], Vec::as_slice))?,
            "$ref" | "$dynamicRef" | "$recursiveRef" => {
                let target = self.target(place, key, value.as_str().unwrap_or(""))?;
                let demand = self.of(target, false)?;
                self.values(demand)?.as_ref().clone()
            }
            "allOf" => {
                let mut all = Values::all();
                for demand in self.demands_of(place, key, value, false)? {
                    let own = self.values(demand)?;
                    all = self.and(&all, &own)?;
                }
                all
            }
            "anyOf" => self.any_of(place, value)?,
            "oneOf" => self.one_of(place, value)?,
            "not" => {
                let demand = self.demand_of(place, value, &["not"], true)?;
                let mut values = self.values(demand)?.as_ref().clone();
                // A schema that does not fit says nothing about unevaluated properties.
                values.objects.iter_mut().for_each(|object| object.seen.clear());
                values
            }
            "if" => self.choice(place, keywords, value, false)?,
            "dependentRequired" => {
                let mut all = Values::all();
                for (name, needs) in map(Some(value)).filter(|(_, needs)| is_list_of_names(needs)) {
                    let mut with = Object::any();
                    with.some = names_of(needs).into_iter().map(|need| (is(need), ANY)).collect();
                    with.seen.clear();
                    all.objects = self.and_objects(&all.objects, &[lacking(name), with])?;
                }
                all
            }
            "dependentSchemas" => {
                let mut all = Values::all();
                for (name, schema) in map(Some(value)).filter(|(_, schema)| !is_list_of_names(schema)) {
                    let demand = self.demand_of(place, schema, &[key, name], false)?;
                    let mut with = self.values(demand)?.as_ref().clone();
                    with.objects = self.and_objects(&with.objects, &[having(name)])?;
                    let mut either = Values { objects: vec![], ..Values::all() };
                    either.objects.push(lacking(name));
                    either.objects.extend(with.objects);
                    all = self.and(&all, &either)?;
                }
                all
            }
            _ => return Ok(None),
        }))
    }

    pub fn and_objects(&mut self, a: &[Object], b: &[Object]) -> Outcome<Vec<Object>> {
        let values = |objects: &[Object]| Values { objects: objects.to_vec(), ..Values::none() };
        Ok(self.and(&values(a), &values(b))?.objects)
    }

    pub fn demands_of(&mut self, place: u32, key: &str, value: &'a Value, is_not: bool) -> Outcome<Vec<Demand>> {
        let list = value.as_array().map_or(&[][..], Vec::as_slice).iter().enumerate();
        list.map(|(i, part)| self.demand_of(place, part, &[key, &i.to_string()], is_not)).collect()
    }

    fn any_of(&mut self, place: u32, value: &'a Value) -> Outcome<Values> {
        let mut any = Values::none();
        let demands = self.demands_of(place, "anyOf", value, false)?;
        for &demand in &demands {
            any.add(self.values(demand)?.as_ref().clone());
        }
        // A value may fit several options, and what each of them has looked at counts.
        if self.tracks_seen && demands.len() <= MAX_COMBINED {
            for mask in (0..1u32 << demands.len()).filter(|mask| mask.count_ones() > 1) {
                let mut all = Values::all();
                for (_, &demand) in demands.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1) {
                    let own = self.values(demand)?;
                    all = self.and(&all, &own)?;
                }
                any.objects.extend(all.objects);
            }
        }
        Ok(any)
    }

    /// One option, and none of those that may overlap it.
    fn one_of(&mut self, place: u32, value: &'a Value) -> Outcome<Values> {
        let own = self.demands_of(place, "oneOf", value, false)?;
        let overlaps = self.overlaps(&own).or_else(|error| self.fail_among(&[place], error))?;
        let mut any = Values::none();
        for (i, &demand) in own.iter().enumerate() {
            let mut all = self.values(demand)?.as_ref().clone();
            let others: Vec<usize> =
                (0..own.len()).filter(|&j| j != i && overlaps.contains(&(i.min(j), i.max(j)))).collect();
            if others.len() > MAX_OVERLAPS {
                let what = format_args!("a value may fit over {MAX_OVERLAPS} of its schemas");
                return self.fail(place, "oneOf", what);
            }
            for j in others {
                let mut other = Values::none();
                for demand in self.others(own[j])? {
                    other.add(self.values(demand)?.as_ref().clone());
                }
                all = self.and(&all, &other).or_else(|error| self.fail(place, "oneOf", error))?;
            }
            any.add(all);
        }
        Ok(any)
    }

    /// if, then and else: the values that fit, or those that do not.
    pub fn choice(
        &mut self,
        place: u32,
        keywords: &Keywords<'a>,
        condition: &'a Value,
        is_not: bool,
    ) -> Outcome<Values> {
        // What the condition has looked at may still count.
        if !keywords.has("then") && !keywords.has("else") && !self.tracks_seen {
            return Ok(if is_not { Values::none() } else { Values::all() });
        }
        let mut any = Values::none();
        for (key, is_met) in [("then", true), ("else", false)] {
            let then = match keywords.get(key) {
                Some(part) => self.demand_of(place, part, &[key], is_not)?,
                None => {
                    if is_not {
                        NOTHING
                    } else {
                        ANY
                    }
                }
            };
            if then == NOTHING {
                continue;
            }
            let condition = self.demand_of(place, condition, &["if"], !is_met)?;
            let both = self.both(condition, then)?;
            any.add(self.values(both)?.as_ref().clone());
        }
        Ok(any)
    }

    fn text(&mut self, keywords: &Keywords) -> Outcome<Option<Text>> {
        let mut text = Text::any();
        text.least = count(keywords, "minLength").unwrap_or(0);
        text.most = count(keywords, "maxLength");
        if let Some(found) = keywords.get("pattern").and_then(Value::as_str) {
            let found = Text::of_pattern(found)?;
            text.fits.extend(found.fits);
            text.fits_not.extend(found.fits_not);
        }
        if let Some(format) = keywords.get("format").and_then(Value::as_str) {
            text.fits.extend(format_pattern(format));
            text.most = text.most.into_iter().chain(format_most(format)).min();
        }
        Ok(text.most.is_none_or(|most| text.least <= most).then_some(text))
    }

    fn array(&mut self, place: u32, keywords: &Keywords<'a>) -> Outcome<Array> {
        let mut array = Array::any();
        if let Some(value) = keywords.get("prefixItems") {
            array.first = self.demands_of(place, "prefixItems", value, false)?;
        }
        if let Some(value) = keywords.get("items") {
            array.rest = self.demand_of(place, value, &["items"], false)?;
        }
        array.least = count(keywords, "minItems").unwrap_or(0);
        array.most = count(keywords, "maxItems");
        array.is_unique = keywords.get("uniqueItems") == Some(&Value::Bool(true));
        if let Some(value) = keywords.get("contains") {
            let demand = self.demand_of(place, value, &["contains"], false)?;
            let (least, most) = (count(keywords, "minContains").unwrap_or(1), count(keywords, "maxContains"));
            if least > 0 || most.is_some() {
                array.needs.push(Need { demand, from: 0, least, most });
            }
        }
        Ok(array)
    }

    fn object(&mut self, place: u32, keywords: &Keywords<'a>) -> Outcome<Object> {
        let mut object = Object::any();
        let mut others = Text::any();
        for (name, schema) in map(keywords.get("properties")) {
            object.all.push((is(name), self.demand_of(place, schema, &["properties", name], false)?));
            others.but.insert(name.clone());
        }
        for (found, schema) in map(keywords.get("patternProperties")) {
            let demand = self.demand_of(place, schema, &["patternProperties", found], false)?;
            let names = Text::of_pattern(found)?;
            match names.others().as_slice() {
                [other] => others.fits_not.extend(other.fits_not.iter().cloned()),
                _ if keywords.has("additionalProperties") => {
                    return self.fail(
                        place,
                        "patternProperties",
                        "lookahead is not supported beside additionalProperties",
                    );
                }
                _ => {}
            }
            object.all.push((Names::In(Rc::new(vec![names])), demand));
        }
        if let Some(schema) = keywords.get("additionalProperties") {
            let demand = self.demand_of(place, schema, &["additionalProperties"], false)?;
            object.all.push((Names::In(Rc::new(vec![others])), demand));
        }
        if self.tracks_seen {
            object.seen = object.all.iter().map(|(names, _)| names.clone()).collect();
        }
        for name in keywords.get("required").map_or(vec![], names_of) {
            object.some.push((is(name), ANY));
        }
        if let Some(schema) = keywords.get("propertyNames") {
            let demand = self.demand_of(place, schema, &["propertyNames"], false)?;
            // Names that surely do not fit, and those that Berth does not write.
            let (mut unfit, mut others) = (vec![Text::any()], vec![Text::any()]);
            for set in &self.values(demand)?.texts {
                unfit = self.texts_of_both(&unfit, &set.wider().others())?;
                others = self.texts_of_both(&others, &set.others())?;
            }
            if others != unfit {
                object.written[0].push((Names::In(Rc::new(others)), NOTHING));
            }
            if !unfit.is_empty() {
                object.all.push((Names::In(Rc::new(unfit)), NOTHING));
            }
        }
        object.least = count(keywords, "minProperties").unwrap_or(0);
        object.most = count(keywords, "maxProperties");
        if let Some(name) = keywords.get("discriminator").and_then(|value| value.get("propertyName")?.as_str()) {
            // It says which property tells the options apart. Who reads the union needs it.
            if keywords.has("oneOf") || keywords.has("anyOf") {
                object.written[1].push((is(name), ANY));
            }
        }
        Ok(object)
    }

    fn texts_of_both(&self, a: &[Text], b: &[Text]) -> Outcome<Vec<Text>> {
        let mut both = vec![];
        for own in a {
            for other in b {
                both.extend(self.patterns.and(own, other, self.work)?);
            }
        }
        Ok(both)
    }

    /// Without the properties and items that no keyword has looked at, where these are not allowed.
    fn unevaluated(&mut self, place: u32, keywords: &Keywords<'a>, mut all: Values) -> Outcome<Values> {
        if let Some(schema) = keywords.get("unevaluatedProperties") {
            let demand = self.demand_of(place, schema, &["unevaluatedProperties"], false)?;
            for object in &mut all.objects {
                // A text is unseen if it is in none of the sets.
                let mut unseen = vec![Text::any()];
                for names in &object.seen {
                    let others = match names {
                        Names::Is(name) => vec![Text { but: BTreeSet::from([name.to_string()]), ..Text::any() }],
                        Names::In(texts) if texts.len() == 1 => texts[0].others(),
                        Names::In(_) => {
                            return self.fail(place, "unevaluatedProperties", "names are too hard to tell apart")
                        }
                    };
                    unseen = self.texts_of_both(&unseen, &others)?;
                }
                if !unseen.is_empty() {
                    object.all.push((Names::In(Rc::new(unseen)), demand));
                    object.seen = vec![Names::In(Rc::new(vec![Text::any()]))];
                }
            }
        }
        if let Some(schema) = keywords.get("unevaluatedItems") {
            let applies = [
                "allOf",
                "anyOf",
                "oneOf",
                "if",
                "$ref",
                "$dynamicRef",
                "$recursiveRef",
                "contains",
                "not",
                "dependentSchemas",
                "const",
                "enum",
            ];
            if applies.iter().any(|key| keywords.has(key)) {
                return self.fail(place, "unevaluatedItems", "supported only beside prefixItems and items");
            }
            let demand = self.demand_of(place, schema, &["unevaluatedItems"], false)?;
            if !keywords.has("items") {
                all.arrays.iter_mut().for_each(|array| array.rest = demand);
            }
        }
        Ok(all)
    }
}

/// The objects with a property.
pub fn having(name: &str) -> Object {
    Object { some: vec![(is(name), ANY)], ..Object::any() }
}

/// The objects without a property.
pub fn lacking(name: &str) -> Object {
    Object { all: vec![(is(name), NOTHING)], ..Object::any() }
}

/// The numbers that fit the keywords of numbers.
fn number(keywords: &Keywords) -> Number {
    let mut number = Number::any();
    for (key, is_low, is_open) in [
        ("minimum", true, false),
        ("exclusiveMinimum", true, true),
        ("maximum", false, false),
        ("exclusiveMaximum", false, true),
    ] {
        if let Some(at) = keywords.get(key).and_then(Value::as_number).map(Exact::of) {
            let bound = Some(Bound { at, is_open });
            let own =
                if is_low { Number { low: bound, ..Number::any() } } else { Number { high: bound, ..Number::any() } };
            // Bounds that leave nothing stay as they are, and are found to be empty later.
            number = number.and(&own).unwrap_or_else(|| Number::only(vec![]));
        }
    }
    if let Some(of) = keywords.get("multipleOf").and_then(Value::as_f64) {
        number.multiples.push(of);
    }
    number
}
