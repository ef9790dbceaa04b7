//! What a grammar holds only where it can list it: arrays of distinct items, names of properties, counts of properties.
//! Each is written with keywords that llguidance has.

use crate::json::{canonical, At};
use crate::schema::{fail, Outcome, VALUE_COST};
use crate::schema_dialect::is_keyword;
use crate::schema_refs::list;
use crate::work::Work;
use serde_json::{json, Map, Value};
use std::collections::HashSet;

/// Most arrays that stand for one with uniqueItems: as many as 5 distinct items have in every order. llguidance follows
/// all of them at once.
const MAX_ARRAYS: usize = 400;
/// Most choices of properties that stand for a count of them.
const MAX_CHOICES: usize = 256;

/// The values of a schema that says no more than which they are; None if it says more, or there are too many to tell.
/// `find` gives what a reference leads to.
pub fn values_of<'v>(
    find: &dyn Fn(&str) -> Option<&'v Value>,
    schema: &Value,
    depth: usize,
    work: &Work,
) -> Outcome<Option<Vec<Value>>> {
    work.step()?;
    work.charge(VALUE_COST)?;
    let Some(object) = schema.as_object().filter(|_| depth > 0) else { return Ok(None) };
    let mut sets: Vec<Vec<Value>> = vec![];
    let mut types = None;
    for (key, value) in object {
        let found = match key.as_str() {
            "const" => Some(vec![value.clone()]),
            "enum" => value.as_array().cloned(),
            "$ref" => {
                let target = value.as_str().and_then(find);
                target.map_or(Ok(None), |target| values_of(find, target, depth - 1, work))?
            }
            "anyOf" | "allOf" if key == "anyOf" || list(object, key).len() == 1 => {
                let parts = list(object, key).iter().map(|part| values_of(find, part, depth - 1, work));
                parts.collect::<Outcome<Option<Vec<_>>>>()?.map(|parts| parts.concat())
            }
            "type" => {
                types = Some(value);
                continue;
            }
            key if !is_keyword(key) => continue,
            _ => None,
        };
        match found {
            Some(values) => sets.push(values),
            None => return Ok(None),
        }
    }
    let types = types.map_or(vec![], |t| t.as_array().map_or_else(|| vec![t], |all| all.iter().collect()));
    let names: Vec<&str> = types.into_iter().filter_map(Value::as_str).collect();
    if sets.is_empty() && !names.is_empty() && names.iter().all(|name| ["boolean", "null"].contains(name)) {
        let all = [Value::Null, false.into(), true.into()];
        sets.push(all.into_iter().filter(|value| names.iter().any(|name| has_type(value, name))).collect());
    }
    let Some(first) = sets.first() else { return Ok(None) };
    let others: Vec<HashSet<String>> = sets[1..].iter().map(|set| set.iter().map(canonical).collect()).collect();
    let mut seen = HashSet::new();
    let mut all = vec![];
    for value in first {
        work.step()?;
        let text = canonical(value);
        let typed = names.is_empty() || names.iter().any(|name| has_type(value, name));
        if typed && others.iter().all(|set| set.contains(&text)) && seen.insert(text) {
            all.push(value.clone());
        }
    }
    Ok(Some(all))
}

pub fn has_type(value: &Value, name: &str) -> bool {
    match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::Number(n) => name == "number" || (name == "integer" && n.as_f64().is_some_and(|f| f.fract() == 0.0)),
        Value::String(_) => name == "string",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    }
}

/// Writes an array of distinct items, of `values` if these are all, as the list of all such arrays.
pub fn write_unique(values: Option<Vec<Value>>, out: &mut Map<String, Value>, at: &At, work: &Work) -> Outcome<()> {
    let count = |out: &Map<String, Value>, key: &str| out.get(key).and_then(Value::as_u64);
    if count(out, "maxItems").is_some_and(|most| most <= 1) {
        return Ok(());
    }
    let what = "supported only for \"type\": \"array\" whose items list their values";
    let values = match values {
        Some(values) if out.get("type") == Some(&json!("array")) && !out.contains_key("prefixItems") => values,
        _ => return fail(at, what),
    };
    let least = count(out, "minItems").unwrap_or(0) as usize;
    let most = (count(out, "maxItems").unwrap_or(u64::MAX) as usize).min(values.len());
    // n (n - 1) ... arrays of each length
    let of_length = |length: usize| (0..length).fold(1usize, |product, i| product.saturating_mul(values.len() - i));
    let mut count = 0usize;
    for length in least..=most {
        count = count.saturating_add(of_length(length));
        if count > MAX_ARRAYS {
            break;
        }
    }
    if count == 0 || count > MAX_ARRAYS {
        let why = if count == 0 { "too few for minItems".to_string() } else { format!("over {MAX_ARRAYS} arrays") };
        return fail(at, format_args!("{} distinct values make {why}", values.len()));
    }
    charge_copies(count, values.iter().map(|value| value.to_string().len()), work)?;
    let mut arrays = vec![];
    add_arrays(&values, &mut vec![], (least, most), &mut arrays);
    for key in ["items", "minItems", "maxItems", "type"] {
        out.shift_remove(key);
    }
    add_all_of(json!({ "enum": arrays }), out);
    Ok(())
}

/// Charges for alternatives that may each have all of the texts.
fn charge_copies(count: usize, lengths: impl Iterator<Item = usize>, work: &Work) -> Outcome<()> {
    work.charge((count as u64).saturating_mul(lengths.sum::<usize>() as u64))
}

/// Adds the arrays that begin with `chosen`.
fn add_arrays(values: &[Value], chosen: &mut Vec<usize>, counts: (usize, usize), arrays: &mut Vec<Value>) {
    if chosen.len() >= counts.0 {
        arrays.push(chosen.iter().map(|&i| values[i].clone()).collect());
    }
    if chosen.len() == counts.1 {
        return;
    }
    for i in 0..values.len() {
        if !chosen.contains(&i) {
            chosen.push(i);
            add_arrays(values, chosen, counts, arrays);
            chosen.pop();
        }
    }
}

pub fn add_all_of(schema: Value, out: &mut Map<String, Value>) {
    let all = out.entry("allOf").or_insert_with(|| json!([]));
    all.as_array_mut().unwrap().push(schema);
}

/// Writes an object whose names are of `names`. `other` is the schema of properties that have none of their own.
pub fn write_names(names: Vec<Value>, other: &Value, out: &mut Map<String, Value>) {
    let names: Vec<String> = names.into_iter().filter_map(|name| name.as_str().map(str::to_string)).collect();
    let allowed: HashSet<&str> = names.iter().map(String::as_str).collect();
    let mut properties = out.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, schema) in &mut properties {
        if !allowed.contains(name.as_str()) {
            *schema = Value::Bool(false);
        }
    }
    for name in &names {
        if !properties.contains_key(name) {
            properties.insert(name.clone(), other.clone());
        }
    }
    out.insert("properties".to_string(), Value::Object(properties));
    out.insert("additionalProperties".to_string(), Value::Bool(false));
}

/// Writes minProperties and maxProperties where named properties are optional: as a choice of those that are there.
///
/// At least m of n optional properties: one of the choices of m is there. Where others may come too, or one of the
/// choices of m - 1, none of the rest, and one other. At most m: all but the choice of m are forbidden. llguidance
/// counts a key that comes twice as two, so more than one other cannot be asked for.
pub fn write_counts(out: &mut Map<String, Value>, at: &At, work: &Work) -> Outcome<()> {
    let number = |key: &str| out.get(key).and_then(Value::as_f64).map(|f| f as usize);
    let (least, most) = (number("minProperties").unwrap_or(0), number("maxProperties"));
    if least == 0 && most.is_none() {
        return Ok(());
    }
    let required: HashSet<&str> = list(out, "required").iter().filter_map(Value::as_str).collect();
    let named = out.get("properties").and_then(Value::as_object);
    let optional = named.into_iter().flatten().filter(|(_, schema)| **schema != Value::Bool(false));
    let optional = optional.map(|(name, _)| name.clone()).filter(|name| !required.contains(name.as_str()));
    let optional: Vec<String> = optional.collect();
    let no_others = out.get("additionalProperties") == Some(&Value::Bool(false));
    let is_closed = no_others && !out.contains_key("patternProperties");
    if most.is_some_and(|most| most < required.len()) {
        return fail(&At::Key(at, "maxProperties"), format_args!("{} properties are required", required.len()));
    }
    let (least, most) = (least.saturating_sub(required.len()), most.map(|most| most.saturating_sub(required.len())));
    let others = if is_closed { 0 } else { 1 };
    if least > optional.len() + others {
        let most = required.len() + optional.len() + others;
        let what = if is_closed { "the number of named properties" } else { "1 over the number of named properties" };
        return fail(&At::Key(at, "minProperties"), format_args!("at most {most} is supported here, {what}"));
    }
    if optional.is_empty() || (is_closed && least <= 1 && most.unwrap_or(1) == 1) {
        return Ok(()); // llguidance has these
    }
    if out.get("type") != Some(&json!("object")) {
        return fail(at, "minProperties and maxProperties beside optional properties need \"type\": \"object\"");
    }
    charge_copies(MAX_CHOICES, optional.iter().map(String::len), work)?;
    let Some(choices) = choices(&optional, least, most, is_closed, required.len()) else {
        return fail(at, format_args!("minProperties and maxProperties leave over {MAX_CHOICES} choices of properties"));
    };
    out.shift_remove("minProperties");
    out.shift_remove("maxProperties");
    add_all_of(json!({ "anyOf": choices }), out);
    Ok(())
}

/// The choices of `count` from `n`, added to `all` up to one more than MAX_CHOICES.
fn add_choices(n: usize, count: usize, chosen: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
    if chosen.len() == count {
        all.push(chosen.clone());
        return;
    }
    let first = chosen.last().map_or(0, |last| last + 1);
    for i in first..n {
        if n - i < count - chosen.len() || all.len() > MAX_CHOICES {
            return;
        }
        chosen.push(i);
        add_choices(n, count, chosen, all);
        chosen.pop();
    }
}

fn choices_of(n: usize, count: usize) -> Vec<Vec<usize>> {
    let mut all = vec![];
    add_choices(n, count, &mut vec![], &mut all);
    all
}

/// A choice: those of `optional` that are there, those that may be, and counts that are left for others.
fn choice(optional: &[String], there: &[usize], allowed: Option<&[usize]>, counts: Map<String, Value>) -> Value {
    let forbidden = (0..optional.len()).filter(|i| allowed.is_some_and(|all| !all.contains(i)));
    let properties: Map<String, Value> = forbidden.map(|i| (optional[i].clone(), false.into())).collect();
    let required: Vec<&String> = there.iter().map(|&i| &optional[i]).collect();
    let mut out = Map::new();
    out.insert("type".into(), "object".into());
    out.insert("properties".into(), properties.into());
    out.insert("required".into(), json!(required));
    out.extend(counts);
    out.into()
}

/// None: there are too many. `named`: how many other properties are required.
fn choices(
    optional: &[String],
    least: usize,
    most: Option<usize>,
    is_closed: bool,
    named: usize,
) -> Option<Vec<Value>> {
    let n = optional.len();
    let counts = |least: Option<usize>, most: Option<usize>| {
        let limits = [("minProperties", least), ("maxProperties", most)];
        limits.into_iter().filter_map(|(key, n)| Some((key.to_string(), (named + n?).into()))).collect::<Map<_, _>>()
    };
    let mut all = vec![];
    match most {
        None => {
            all.extend(choices_of(n, least).iter().map(|there| choice(optional, there, None, Map::new())));
            if !is_closed && least > 0 {
                let fewer = choices_of(n, least - 1);
                all.extend(fewer.iter().map(|there| choice(optional, there, Some(there), counts(Some(least), None))));
            }
        }
        Some(most) if is_closed => {
            for allowed in choices_of(n, most.min(n)) {
                let there = choices_of(allowed.len(), least).into_iter();
                let there = there.map(|there| there.into_iter().map(|i| allowed[i]).collect::<Vec<_>>());
                all.extend(there.map(|there| choice(optional, &there, Some(&allowed), Map::new())));
                if all.len() > MAX_CHOICES {
                    return None;
                }
            }
        }
        Some(most) => {
            for size in least.saturating_sub(1)..=most.min(n) {
                let least = Some(least).filter(|&least| size < least);
                let exact = choices_of(n, size);
                all.extend(exact.iter().map(|there| choice(optional, there, Some(there), counts(least, Some(most)))));
                if all.len() > MAX_CHOICES {
                    return None;
                }
            }
        }
    }
    Some(all).filter(|all| all.len() <= MAX_CHOICES)
}
