//! Writes a JSON schema as a grammar in Lark, which rules.rs or llguidance reads. What a grammar cannot hold is refused, by its JSON
//! pointer.
//!
//!   dialect    what the keywords of each draft mean
//!   ids        where references lead
//!   check      whether each keyword is well formed
//!   formats    formats as patterns, with regex_format
//!   demands    the schemas that hold together, with glances at those that surely do not
//!   keywords   the values that fit a schema, with literals, and complements for those that do not
//!   overlaps   whether a value may fit two schemas
//!   values     sets of values: texts (their patterns by anchors and lengths), numbers (digits, multiples); products
//!              of two
//!   shapes     arrays as a grammar has them, with counts of items, and the names of objects
//!   nodes      which demands some value fits
//!   writer     the grammar, with fields and tallies for its objects
//!   watch      where arrays may not repeat items, which no grammar can say
//!
//! Values are read by type, so that every keyword has a complement: what it does not allow. So `not`, `if` and a oneOf
//! whose schemas overlap are written like the rest.

pub mod anchors;
pub mod check;
pub mod complements;
pub mod counts;
pub mod demands;
pub mod dialect;
pub mod digits;
pub mod fields;
pub mod followed;
pub mod formats;
pub mod glances;
pub mod ids;
pub mod keywords;
pub mod lengths;
pub mod literals;
pub mod multiples;
pub mod names;
pub mod nodes;
pub mod numbers;
pub mod overlaps;
pub mod products;
pub mod regex_format;
pub mod shapes;
pub mod tallies;
pub mod texts;
pub mod values;
pub mod watch;
pub mod writer;

use crate::exact::Exact;
use crate::json::At;
use crate::work::Work;
use dialect::Notes;
use serde_json::{Map, Value};
pub use writer::{Style, Written};

/// Whole numbers up to here are exact in a double.
const MAX_EXACT: f64 = 9007199254740992.0;

pub type Outcome<T> = Result<T, String>;

pub fn fail<T>(at: &At, what: impl std::fmt::Display) -> Outcome<T> {
    let at = at.to_string();
    Err(format!("{}: {what}", if at.is_empty() { "/" } else { &at }))
}

pub fn integer(value: &Value, at: &At) -> Outcome<u64> {
    let exact = |f: f64| f >= 0.0 && f.fract() == 0.0 && f <= MAX_EXACT;
    match value.as_f64() {
        Some(f) if exact(f) => Ok(f as u64),
        _ => fail(at, format_args!("{value} is not a whole number from 0 on")),
    }
}

pub fn number(value: &Value, at: &At) -> Outcome<Exact> {
    value.as_number().map(Exact::of).map_or_else(|| fail(at, format_args!("{value} is not a number")), Ok)
}

pub fn map<'v>(value: &'v Value, at: &At) -> Outcome<&'v Map<String, Value>> {
    value.as_object().map_or_else(|| fail(at, "must be an object"), Ok)
}

pub fn list<'v>(value: &'v Value, at: &At) -> Outcome<&'v Vec<Value>> {
    match value.as_array() {
        Some(list) if !list.is_empty() => Ok(list),
        _ => fail(at, "must be an array with at least 1 element"),
    }
}

pub fn string<'v>(value: &'v Value, at: &At) -> Outcome<&'v str> {
    value.as_str().map_or_else(|| fail(at, "must be a string"), Ok)
}

/// The grammar of a schema. `prefix`: the pointer to `root` in what the client sent.
pub fn write(root: &Value, prefix: &str, style: Style, notes: &Notes, work: &Work) -> Outcome<Written> {
    notes.begin();
    let resources = ids::Resources::of(root, prefix, notes, work)?;
    let mut checker = check::Checker::new(root, prefix, &resources, notes, work);
    checker.run()?;
    let tracks_seen = checker.has_unevaluated;
    let mut demands = demands::Demands::new(root, prefix, &resources, tracks_seen, notes, work);
    demands.patterns = checker.patterns;
    demands.has_watch = style.has_watch;
    let top = demands.top()?;
    match writer::write(&mut demands, top, style)? {
        Some(written) => Ok(written),
        None => fail(&At::Root(prefix), "no value fits the schema"),
    }
}
