//! Demands: the schemas of a document that a value must fit together, and those that it must not fit.
//!
//!   {"allOf": [A, {"not": B}], "properties": {"p": C}}    ->    demand {A, not B, own keywords}; of p: {C, A's p, ...}
//!
//! There are finitely many schemas, so there are finitely many demands, however schemas refer to each other. Each is
//! looked at once.

use super::dialect::{modern, Keywords, Notes};
use super::glances::{Alike, Glance};
use super::ids::Resources;
use super::texts::Patterns;
use super::values::Values;
use super::{fail, Outcome};
use crate::json::{escape, At};
use crate::work::Work;
use llguidance::HashMap;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Demand(pub u32);

/// What every value fits, and what no value fits.
pub const ANY: Demand = Demand(0);
pub const NOTHING: Demand = Demand(1);

/// A schema or a literal value, or what does not fit it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Part {
    pub place: u32,
    pub is_not: bool,
}

/// A schema, or a value of `const` or `enum`.
struct Place<'a> {
    value: &'a Value,
    parent: Option<u32>, // the place that its pointer continues
    tail: String,        // the rest of its pointer
    around: usize,       // the resource that it is in
    is_literal: bool,
}

struct Pointer<'b, 'a> {
    places: &'b [Place<'a>],
    prefix: &'b str,
    place: u32,
}

impl fmt::Display for Pointer<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let of = |place: u32| &self.places[place as usize];
        let mut all: Vec<&str> = std::iter::successors(Some(of(self.place)), |place| place.parent.map(of))
            .map(|place| place.tail.as_str())
            .collect();
        all.push(self.prefix);
        all.iter().rev().try_for_each(|part| f.write_str(part))
    }
}

/// References that lead to each other without anything between.
const MAX_HOPS: usize = 100;

pub struct Demands<'a> {
    root: &'a Value,
    prefix: &'a str,
    pub work: &'a Work,
    notes: &'a Notes,
    pub resources: &'a Resources,
    pub patterns: Patterns,
    places: Vec<Place<'a>>,
    by_address: HashMap<(*const Value, bool), u32>,
    opened: HashMap<u32, (Rc<Keywords<'a>>, usize)>,
    table: Vec<Vec<Part>>,
    index: HashMap<Vec<Part>, Demand>,
    pairs: HashMap<(Demand, Demand), Demand>, // what two of them make
    values: HashMap<Demand, Rc<Values>>,
    parts: HashMap<Part, Rc<Values>>,
    open: BTreeSet<Part>,
    pub alike: Alike<'a>,
    pub glances: HashMap<Part, Rc<Glance>>,
    /// The first schema of some words, by them, and of each schema.
    pub by_words: HashMap<Vec<(&'a str, u32)>, u32>,
    pub firsts: HashMap<u32, u32>,
    /// Whether unevaluatedProperties asks for the names that keywords have looked at.
    pub tracks_seen: bool,
    /// Whether items that come twice can be found while the output is written (watch.rs).
    pub has_watch: bool,
}

impl<'a> Demands<'a> {
    pub fn new(
        root: &'a Value,
        prefix: &'a str,
        resources: &'a Resources,
        tracks_seen: bool,
        notes: &'a Notes,
        work: &'a Work,
    ) -> Self {
        Demands {
            root,
            prefix,
            work,
            notes,
            resources,
            patterns: Patterns::default(),
            places: vec![],
            by_address: HashMap::default(),
            opened: HashMap::default(),
            table: vec![vec![], vec![]], // ANY and NOTHING
            index: HashMap::from_iter([(vec![], ANY)]),
            pairs: HashMap::default(),
            values: HashMap::from_iter([(NOTHING, Rc::new(Values::none()))]),
            parts: HashMap::default(),
            open: BTreeSet::new(),
            alike: Alike::default(),
            glances: HashMap::default(),
            by_words: HashMap::default(),
            firsts: HashMap::default(),
            tracks_seen,
            has_watch: false,
        }
    }

    /// The demand of the whole schema.
    pub fn top(&mut self) -> Outcome<Demand> {
        let place = self.add_place(self.root, None, String::new(), 0, false);
        self.demand([Part { place, is_not: false }])
    }

    fn add_place(
        &mut self,
        value: &'a Value,
        parent: Option<u32>,
        tail: String,
        around: usize,
        is_literal: bool,
    ) -> u32 {
        let places = &mut self.places;
        *self.by_address.entry((value, is_literal)).or_insert_with(|| {
            places.push(Place { value, parent, tail, around, is_literal });
            places.len() as u32 - 1
        })
    }

    /// The pointer to a schema. Pointers may be long and many, so each is written only where it is needed.
    fn pointer<'b>(&'b self, prefix: &'b str, place: u32) -> Pointer<'b, 'a> {
        Pointer { places: &self.places, prefix, place }
    }

    /// A schema within a keyword of another.
    pub fn child(&mut self, place: u32, value: &'a Value, path: &[&str]) -> Outcome<u32> {
        let around = self.keywords(place)?.1;
        let mut tail = String::new();
        for key in path {
            tail.push('/');
            tail.push_str(&escape(key));
        }
        Ok(self.add_place(value, Some(place), tail, around, false))
    }

    pub fn literal(&mut self, place: u32, value: &'a Value) -> u32 {
        self.add_place(value, Some(place), String::new(), 0, true)
    }

    pub fn is_literal(&self, place: u32) -> bool {
        self.places[place as usize].is_literal
    }

    pub fn value(&self, place: u32) -> &'a Value {
        self.places[place as usize].value
    }

    /// Fails with the place of a schema's keyword.
    pub fn fail<T>(&self, place: u32, key: &str, what: impl std::fmt::Display) -> Outcome<T> {
        let pointer = self.pointer(self.prefix, place);
        let at = At::Of(&pointer);
        if key.is_empty() {
            fail(&at, what)
        } else {
            fail(&At::Key(&at, key), what)
        }
    }

    /// Fails with the place of one of these schemas, if the error has none yet. `error`: "KEYWORD: what".
    pub fn fail_among<T>(&mut self, places: &[u32], error: String) -> Outcome<T> {
        self.work.look()?;
        if error.starts_with('/') || places.is_empty() {
            return Err(error);
        }
        if let Some((key, what)) = error.split_once(": ") {
            for &place in places {
                if self.keywords(place)?.0.has(key) {
                    return self.fail(place, key, what);
                }
            }
        }
        self.fail(places[0], "", error)
    }

    /// Fails with the place of a demand.
    pub fn fail_in<T>(&mut self, demand: Demand, error: String) -> Outcome<T> {
        let places: Vec<u32> = self.parts(demand).iter().map(|part| part.place).collect();
        self.fail_among(&places, error)
    }

    /// The keywords of a schema that is an object, and its resource.
    pub fn keywords(&mut self, place: u32) -> Outcome<(Rc<Keywords<'a>>, usize)> {
        if let Some((keywords, resource)) = self.opened.get(&place) {
            return Ok((keywords.clone(), *resource));
        }
        let Place { value, around, .. } = self.places[place as usize];
        let (mut resource, empty) = (around, Keywords::none());
        let keywords = match value.as_object() {
            None => empty,
            Some(object) => {
                if !self.resources.is_one() && (object.contains_key("$id") || object.contains_key("id")) {
                    resource = self.resources.at(&self.pointer("", place).to_string()).unwrap_or(resource);
                }
                let at = self.pointer(self.prefix, place);
                modern(object, self.resources.draft(resource), &At::Of(&at), self.notes)?
            }
        };
        let keywords = Rc::new(keywords);
        self.opened.insert(place, (keywords.clone(), resource));
        Ok((keywords, resource))
    }

    /// The schema that a reference of a schema leads to.
    pub fn target(&mut self, place: u32, key: &str, reference: &str) -> Outcome<u32> {
        let resource = self.keywords(place)?.1;
        let own = self.pointer(self.prefix, place);
        let pointer = self.resources.find(reference, resource, &At::Key(&At::Of(&own), key))?;
        self.work.small_steps(pointer.len() / 64)?;
        match self.root.pointer(&pointer) {
            Some(value) => {
                let around = self.resources.around(&pointer);
                Ok(self.add_place(value, None, pointer, around, false))
            }
            None => self.fail(place, key, format_args!("\"#{pointer}\" points to nothing")),
        }
    }

    pub fn parts(&self, demand: Demand) -> &[Part] {
        &self.table[demand.0 as usize]
    }

    /// The demand that all parts make.
    pub fn demand(&mut self, parts: impl IntoIterator<Item = Part>) -> Outcome<Demand> {
        let mut all = BTreeSet::new();
        for part in parts {
            if !self.simplify(part, &mut all, 0)? {
                return Ok(NOTHING);
            }
        }
        self.of_parts(all.into_iter().collect())
    }

    /// The demand of parts that are simple, in their order and each once.
    fn of_parts(&mut self, parts: Vec<Part>) -> Outcome<Demand> {
        self.work.small_steps(parts.len())?;
        if let Some(known) = self.index.get(&parts) {
            return Ok(*known);
        }
        let is_none = parts.windows(2).any(|two| two[0].place == two[1].place)
            || (parts.len() > 1 && self.are_apart_at_a_glance(&parts)?);
        let mut demand = NOTHING;
        if !is_none {
            demand = Demand(self.table.len() as u32);
            self.table.push(parts.clone());
        }
        self.index.insert(parts, demand);
        Ok(demand)
    }

    pub fn of(&mut self, place: u32, is_not: bool) -> Outcome<Demand> {
        self.demand([Part { place, is_not }])
    }

    pub fn both(&mut self, a: Demand, b: Demand) -> Outcome<Demand> {
        if a == b || b == ANY {
            return Ok(a);
        }
        if a == ANY {
            return Ok(b);
        }
        if a == NOTHING || b == NOTHING {
            return Ok(NOTHING);
        }
        let pair = (a.min(b), a.max(b));
        if let Some(known) = self.pairs.get(&pair) {
            return Ok(*known);
        }
        let mut parts: Vec<Part> = self.parts(a).iter().chain(self.parts(b)).copied().collect();
        parts.sort();
        parts.dedup();
        let both = self.of_parts(parts)?;
        self.pairs.insert(pair, both);
        Ok(both)
    }

    /// Whether each value that fits one demand surely fits another.
    pub fn is_stronger(&self, demand: Demand, other: Demand) -> bool {
        let own = self.parts(demand);
        demand == NOTHING || (other != NOTHING && self.parts(other).iter().all(|part| own.binary_search(part).is_ok()))
    }

    /// A value that does not fit this demand fits one of these.
    pub fn others(&mut self, demand: Demand) -> Outcome<Vec<Demand>> {
        if demand == NOTHING {
            return Ok(vec![ANY]);
        }
        let parts = self.parts(demand).to_vec();
        parts.into_iter().map(|part| self.demand([Part { is_not: !part.is_not, ..part }])).collect()
    }

    /// Adds a part as the schemas that it comes to. False: no value fits.
    fn simplify(&mut self, part: Part, all: &mut BTreeSet<Part>, hops: usize) -> Outcome<bool> {
        self.work.step()?;
        let place = &self.places[part.place as usize];
        if hops > MAX_HOPS {
            return self.fail(part.place, "", "the reference leads to itself");
        }
        if place.is_literal {
            all.insert(part);
            return Ok(true);
        }
        if let Value::Bool(fits) = place.value {
            return Ok(*fits != part.is_not);
        }
        let keywords = self.keywords(part.place)?.0;
        let mut rest = keywords.iter().filter(|(key, _)| !is_place(key));
        let (first, second) = (rest.next(), rest.next());
        let Some((key, value)) = first else { return Ok(!part.is_not) };
        if second.is_none() {
            match (key, value) {
                ("$ref", Value::String(text)) => {
                    let place = self.target(part.place, key, text)?;
                    return self.simplify(Part { place, ..part }, all, hops + 1);
                }
                // What a schema within not has looked at does not count.
                ("not", value) if !self.tracks_seen => {
                    let place = self.child(part.place, value, &["not"])?;
                    return self.simplify(Part { place, is_not: !part.is_not }, all, hops + 1);
                }
                ("allOf", Value::Array(list)) if !part.is_not => {
                    for (i, value) in list.iter().enumerate() {
                        let place = self.child(part.place, value, &["allOf", &i.to_string()])?;
                        if !self.simplify(Part { place, ..part }, all, hops + 1)? {
                            return Ok(false);
                        }
                    }
                    return Ok(true);
                }
                ("anyOf" | "oneOf", Value::Array(list)) if list.len() == 1 => {
                    let place = self.child(part.place, &list[0], &[key, "0"])?;
                    return self.simplify(Part { place, ..part }, all, hops + 1);
                }
                _ => {}
            }
        }
        let place = self.first_alike(part.place, &keywords)?;
        all.insert(Part { place, ..part });
        Ok(true)
    }

    /// Whether the values of a demand are being found, so that they cannot be looked at yet.
    pub fn is_open(&self, demand: Demand) -> bool {
        self.parts(demand).iter().any(|part| self.open.contains(part))
    }

    /// The values that fit a demand.
    pub fn values(&mut self, demand: Demand) -> Outcome<Rc<Values>> {
        if let Some(known) = self.values.get(&demand) {
            return Ok(known.clone());
        }
        let mut all = Values::all();
        for part in self.parts(demand).to_vec() {
            let own = self.part(part)?;
            all = self.and(&all, &own)?;
        }
        let all = Rc::new(all);
        self.values.insert(demand, all.clone());
        Ok(all)
    }

    fn part(&mut self, part: Part) -> Outcome<Rc<Values>> {
        if let Some(known) = self.parts.get(&part) {
            return Ok(known.clone());
        }
        if !self.open.insert(part) {
            return self.fail(part.place, "", "the schema refers to itself for the value itself");
        }
        let place = &self.places[part.place as usize];
        let values = match (place.is_literal, part.is_not) {
            (true, false) => self.literal_values(part.place),
            (true, true) => self.other_values(part.place),
            (false, false) => self.schema(part.place),
            (false, true) => self.other_than_schema(part.place),
        };
        self.open.remove(&part);
        let values = Rc::new(values?);
        self.parts.insert(part, values.clone());
        Ok(values)
    }
}

/// Keywords that say where something stands, and nothing of values.
pub fn is_place(key: &str) -> bool {
    ["$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$defs", "definitions"].contains(&key)
}
