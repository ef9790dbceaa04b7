//! Turns oneOf into anyOf where no value fits two of its schemas. A grammar holds an anyOf, and cannot count how many
//! schemas fit.
//!
//! Schemas exclude each other if they have no type in common, or if they list values and share none. They also do if they
//! describe objects with a property that must be there and whose schemas exclude each other: the tag of a tagged union.
//! What this cannot tell stays a oneOf, which llguidance refuses unless it can tell.

use crate::json::canonical;
use crate::schema::ONE_OF_AT;
use crate::schema_refs::list;
use crate::work::Work;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
const OBJECT: u8 = 1 << 5;
/// References and properties within each other that are looked into.
const MAX_DEPTH: usize = 12;
/// Looking at a schema within a comparison. llguidance compares again what cannot be told here.
const LOOK_COST: u64 = 40;

/// What a value must fit, all of it.
type Conjunction<'a> = Vec<&'a Map<String, Value>>;

struct Unions<'a> {
    root: &'a Value,
    work: &'a Work,
    open: RefCell<Vec<String>>, // the pointers of oneOf whose schemas may overlap
}

/// `root` as the reader wrote it. Adds the pointers of each oneOf that stays to `open`.
pub fn settle(root: &Value, work: &Work, open: &mut BTreeSet<String>) -> Result<Value, String> {
    let unions = Unions { root, work, open: RefCell::default() };
    let settled = unions.schema(root)?;
    open.extend(unions.open.into_inner());
    Ok(settled)
}

fn type_bits(value: &Value) -> u8 {
    let of = |name: &str| TYPES.iter().position(|t| *t == name).map_or(1 << 2, |i| 1 << i); // "integer" is a number
    match value {
        Value::String(name) => of(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).map(of).fold(0, |a, b| a | b),
        _ => u8::MAX,
    }
}

fn listed(part: &Map<String, Value>) -> Option<&[Value]> {
    let one = part.get("const").map(std::slice::from_ref);
    one.or(part.get("enum").and_then(Value::as_array).map(Vec::as_slice))
}

fn type_of(value: &Value) -> u8 {
    match value {
        Value::Null => 1,
        Value::Bool(_) => 1 << 1,
        Value::Number(_) => 1 << 2,
        Value::String(_) => 1 << 3,
        Value::Array(_) => 1 << 4,
        Value::Object(_) => OBJECT,
    }
}

impl<'a> Unions<'a> {
    fn schema(&self, schema: &'a Value) -> Result<Value, String> {
        self.work.step()?;
        let Some(object) = schema.as_object() else { return Ok(schema.clone()) };
        let exclusive = object.contains_key("oneOf") && self.is_exclusive(object)?;
        if let Some(pointer) = object.get(ONE_OF_AT).and_then(Value::as_str).filter(|_| !exclusive) {
            self.open.borrow_mut().push(pointer.to_string());
        }
        let mut out = Map::new();
        for (key, value) in object.iter().filter(|(key, _)| *key != ONE_OF_AT) {
            let new = match (key.as_str(), value) {
                ("properties" | "patternProperties" | "$defs", Value::Object(schemas)) => {
                    let each = schemas.iter().map(|(name, schema)| Ok((name.clone(), self.schema(schema)?)));
                    Value::Object(each.collect::<Result<_, String>>()?)
                }
                ("allOf" | "anyOf" | "oneOf" | "prefixItems", Value::Array(schemas)) => {
                    schemas.iter().map(|schema| self.schema(schema)).collect::<Result<_, String>>()?
                }
                ("items" | "additionalProperties", schema) => self.schema(schema)?,
                _ => value.clone(),
            };
            out.insert(key.clone(), new);
        }
        if exclusive {
            let options = out.get_mut("oneOf").map(Value::take).unwrap_or_default();
            let is_free = !out.contains_key("anyOf");
            // In its place, which is the order of the properties.
            out = out.into_iter().filter_map(|(key, value)| match key.as_str() {
                "oneOf" => is_free.then(|| ("anyOf".to_string(), options.clone())),
                _ => Some((key, value)),
            }).collect();
            if !is_free {
                let all = out.entry("allOf").or_insert_with(|| Value::Array(vec![]));
                all.as_array_mut().unwrap().push(serde_json::json!({ "anyOf": options }));
            }
        }
        Ok(Value::Object(out))
    }

    /// Whether no value fits two of the schemas of this oneOf.
    fn is_exclusive(&self, object: &'a Map<String, Value>) -> Result<bool, String> {
        // What stands beside the oneOf, by reference too. Its own properties hold for all options, and are left out.
        let mut beside: Conjunction = vec![];
        self.add(object, &mut beside, MAX_DEPTH)?;
        beside.remove(0);
        let mut options = vec![];
        for option in list(object, "oneOf") {
            let mut all = beside.clone();
            match option {
                Value::Bool(false) => continue,
                Value::Object(option) => self.add(option, &mut all, MAX_DEPTH)?,
                _ => {}
            }
            options.push(all);
        }
        let types = self.types(&vec![object])?;
        if self.have_tags(&options, types)? {
            return Ok(true);
        }
        let count = options.len() as u64;
        self.work.charge(count.saturating_mul(count))?;
        for (i, a) in options.iter().enumerate() {
            for b in &options[i + 1..] {
                if !self.exclude(a, b, types, &self.required(object), MAX_DEPTH)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn look(&self) -> Result<(), String> {
        self.work.step()?;
        self.work.charge(LOOK_COST)
    }

    /// Adds what a value must fit, references and allOf resolved.
    fn add(&self, object: &'a Map<String, Value>, into: &mut Conjunction<'a>, depth: usize) -> Result<(), String> {
        self.look()?;
        into.push(object);
        if depth == 0 {
            return Ok(());
        }
        let target = object.get("$ref").and_then(Value::as_str).and_then(|pointer| self.root.pointer(&pointer[1..]));
        for part in list(object, "allOf").iter().chain(target).filter_map(Value::as_object) {
            self.add(part, into, depth - 1)?;
        }
        Ok(())
    }

    /// The types that a value may have.
    fn types(&self, all: &Conjunction) -> Result<u8, String> {
        let mut types = u8::MAX;
        for part in all {
            types &= part.get("type").map_or(u8::MAX, type_bits);
            let Some(values) = listed(part) else { continue };
            let mut own = 0;
            for value in values {
                self.work.step()?;
                own |= type_of(value);
            }
            types &= own;
        }
        Ok(types)
    }

    /// The values that are listed, if some are.
    fn values(&self, all: &Conjunction) -> Result<Option<HashSet<String>>, String> {
        let mut common: Option<HashSet<String>> = None;
        for values in all.iter().filter_map(|part| listed(part)) {
            let mut own = HashSet::new();
            for value in values {
                self.work.step()?;
                own.insert(canonical(value));
            }
            common = Some(common.map_or(own.clone(), |before| &before & &own));
        }
        Ok(common)
    }

    fn required<'s>(&self, object: &'s Map<String, Value>) -> HashSet<&'s str> {
        list(object, "required").iter().filter_map(Value::as_str).collect()
    }

    /// What a property must fit, if it is there; None: it cannot be.
    fn property(&self, all: &Conjunction<'a>, name: &str, depth: usize) -> Result<Option<Conjunction<'a>>, String> {
        let mut found = vec![];
        for part in all {
            let named = part.get("properties").and_then(|properties| properties.get(name));
            let other = part.get("additionalProperties").filter(|_| !part.contains_key("patternProperties"));
            match named.or(other) {
                Some(Value::Bool(false)) => return Ok(None),
                Some(Value::Object(schema)) => self.add(schema, &mut found, depth)?,
                _ => {}
            }
        }
        Ok(Some(found))
    }

    /// Whether a property that is required everywhere lists values everywhere, and none twice. This is enough for a
    /// tagged union, and it looks at each schema once.
    fn have_tags(&self, options: &[Conjunction<'a>], types: u8) -> Result<bool, String> {
        let Some(first) = options.first() else { return Ok(true) };
        for name in first.iter().flat_map(|part| list(part, "required")).filter_map(Value::as_str) {
            let mut seen = HashSet::new();
            let mut is_tag = true;
            for all in options {
                self.look()?;
                let required = all.iter().any(|part| list(part, "required").iter().any(|item| item == name));
                let only_objects = self.types(all)? & types == OBJECT;
                let Some(schema) = self.property(all, name, MAX_DEPTH)? else { return Ok(false) };
                let values = self.values(&schema)?;
                is_tag = required && only_objects && values.is_some_and(|v| v.into_iter().all(|v| seen.insert(v)));
                if !is_tag {
                    break;
                }
            }
            if is_tag {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether no value of `types` and with the `required` names fits both.
    fn exclude(
        &self,
        a: &Conjunction<'a>,
        b: &Conjunction<'a>,
        types: u8,
        required: &HashSet<&str>,
        depth: usize,
    ) -> Result<bool, String> {
        self.look()?;
        let types = self.types(a)? & self.types(b)? & types;
        if types == 0 {
            return Ok(true);
        }
        if let (Some(x), Some(y)) = (self.values(a)?, self.values(b)?) {
            if x.is_disjoint(&y) {
                return Ok(true);
            }
        }
        if depth == 0 {
            return Ok(false);
        }
        // Options of either side: each must exclude the other side.
        for (side, other) in [(a, b), (b, a)] {
            for part in side {
                for options in ["anyOf", "oneOf"].map(|key| list(part, key)).into_iter().filter(|all| !all.is_empty()) {
                    if self.all_exclude(side, part, options, other, (types, required, depth - 1))? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(types == OBJECT && self.tell_apart(a, b, required, depth - 1)?)
    }

    fn all_exclude(
        &self,
        side: &Conjunction<'a>,
        part: &'a Map<String, Value>,
        options: &'a [Value],
        other: &Conjunction<'a>,
        (types, required, depth): (u8, &HashSet<&str>, usize),
    ) -> Result<bool, String> {
        for option in options {
            let Some(option) = option.as_object() else {
                if option == &Value::Bool(false) {
                    continue;
                }
                return Ok(false);
            };
            // The rest of the side without what has been chosen from.
            let mut chosen: Conjunction = side.iter().filter(|p| !std::ptr::eq(**p, part)).copied().collect();
            self.add(option, &mut chosen, depth)?;
            let types = types & self.types(&vec![part])?;
            if !self.exclude(&chosen, other, types, required, depth)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a property that must be there tells objects apart.
    fn tell_apart(
        &self,
        a: &Conjunction<'a>,
        b: &Conjunction<'a>,
        required: &HashSet<&str>,
        depth: usize,
    ) -> Result<bool, String> {
        let own = a.iter().chain(b).flat_map(|part| list(part, "required")).filter_map(Value::as_str);
        let names: HashSet<&str> = own.chain(required.iter().copied()).collect();
        for name in names {
            let (Some(x), Some(y)) = (self.property(a, name, depth)?, self.property(b, name, depth)?) else {
                return Ok(true);
            };
            if self.exclude(&x, &y, u8::MAX, &HashSet::new(), depth)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
