//! Structural tags in the JSON of vLLM: free text in which a trigger begins a region whose content has a schema.
//!
//! As a grammar: TEXT has no trigger in it, and PRE_i is text up to the end of the first trigger, the i-th. So the lexer
//! tells at the trigger's last byte, and nowhere else, that a region begins.
//!
//!   start: (PRE_0 (tag_0 | tag_1) | PRE_1 (tag_2))* TEXT?
//!   PRE_0: /.*trigger 0/ & ~PAST
//!   PAST: /.*(trigger 0|trigger 1).+/
//!   tag_0: /rest of begin/ @schema_0 /end/
//!
//! A control token is not text. A trigger, begin or end that has one in its text stands for the token.

use crate::json::{self, At};
use crate::pattern::escape;
use crate::work::Work;
use aho_corasick::{AhoCorasick, AhoCorasickKind, Match, MatchKind};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};

pub struct Translated {
    pub lark: String,
    /// The grammars of the schemas that it names, schema_0 and so on.
    pub schemas: Vec<String>,
}

/// Reads a schema at a JSON pointer, and writes it as llguidance is to read it.
pub type ReadSchema<'a> = &'a dyn Fn(&Value, &str) -> Result<String, String>;

fn fields<'v>(value: &'v Value, at: &At, names: &[&str]) -> Result<&'v Map<String, Value>, String> {
    let Some(object) = value.as_object() else { return Err(format!("{at}: must be an object")) };
    for key in object.keys() {
        if !names.contains(&key.as_str()) {
            return Err(format!("{}: no such field", At::Key(at, key)));
        }
    }
    match names.iter().find(|name| !object.contains_key(**name)) {
        Some(name) => Err(format!("{}: missing", At::Key(at, name))),
        None => Ok(object),
    }
}

fn text<'v>(value: &'v Value, at: &str, may_be_empty: bool) -> Result<&'v str, String> {
    match value.as_str() {
        Some(text) if may_be_empty || !text.is_empty() => Ok(text),
        _ => Err(format!("{at}: must be a string{}", if may_be_empty { "" } else { " that is not empty" })),
    }
}

fn list<'v>(value: &'v Value, at: &str) -> Result<&'v Vec<Value>, String> {
    match value.as_array() {
        Some(list) if !list.is_empty() => Ok(list),
        _ => Err(format!("{at}: must be an array with at least 1 element")),
    }
}

/// Finds the names of control tokens in a text, the longest first.
pub struct Controls {
    names: AhoCorasick,
    ids: Vec<u32>,
}

impl Controls {
    pub fn new<'n>(tokens: impl Iterator<Item = (u32, &'n str)>) -> Result<Controls, String> {
        let (ids, names): (Vec<u32>, Vec<&str>) = tokens.unzip();
        let names = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(names);
        Ok(Controls { names: names.map_err(|e| format!("internal error: {e}"))?, ids })
    }

    /// The token as a term of a rule.
    fn term(&self, found: &Match) -> String {
        format!("<[{}]>", self.ids[found.pattern().as_usize()])
    }
}

/// `text` as terms of a rule.
fn terms(text: &str, controls: &Controls) -> String {
    let literal = |part: &str| if part.is_empty() { String::new() } else { format!(" /{}/", escape(part)) };
    let mut out = String::new();
    let mut done = 0;
    for control in controls.names.find_iter(text) {
        out.push_str(&literal(&text[done..control.start()]));
        out.push_str(&format!(" {}", controls.term(&control)));
        done = control.end();
    }
    out + &literal(&text[done..])
}

struct Trigger {
    text: String,
    control: Option<String>, // the term, where the trigger is a control token
    tags: Vec<usize>,
}

fn read_triggers(value: &Value, controls: &Controls, work: &Work) -> Result<Vec<Trigger>, String> {
    let mut triggers = vec![];
    for (i, value) in list(value, "/triggers")?.iter().enumerate() {
        let at = format!("/triggers/{i}");
        let text = text(value, &at, false)?;
        work.text(text)?;
        let control = controls.names.find(text);
        if control.is_some_and(|found| found.range() != (0..text.len())) {
            return Err(format!("{at}: a control token must be a trigger of its own"));
        }
        let control = control.map(|found| controls.term(&found));
        triggers.push(Trigger { text: text.to_string(), control, tags: vec![] });
    }
    check_apart(&triggers, work)?;
    Ok(triggers)
}

/// That no trigger is within another.
fn check_apart(triggers: &[Trigger], work: &Work) -> Result<(), String> {
    // The other kinds take the square of a long trigger to build.
    let mut builder = AhoCorasick::builder();
    let all = builder.kind(Some(AhoCorasickKind::NoncontiguousNFA)).build(triggers.iter().map(|t| &t.text));
    let all = all.map_err(|e| format!("/triggers: {e}"))?;
    for (i, trigger) in triggers.iter().enumerate() {
        work.text(&trigger.text)?;
        if let Some(other) = all.find_overlapping_iter(&trigger.text).find(|found| found.pattern().as_usize() != i) {
            let other = &triggers[other.pattern().as_usize()].text;
            return Err(format!("/triggers/{i}: {:?} and {other:?} contain each other", trigger.text));
        }
    }
    Ok(())
}

fn write(triggers: &[Trigger], tags: &[String]) -> String {
    let texts: Vec<String> = triggers.iter().filter(|t| t.control.is_none()).map(|t| escape(&t.text)).collect();
    let mut lark = String::from("TEXT: /(?s:.+)/");
    if !texts.is_empty() {
        let any = format!("(?:{})", texts.join("|"));
        lark.push_str(&format!(" & ~HAS\nHAS: /(?s:.*){any}(?s:.*)/\nPAST: /(?s:.*){any}(?s:.+)/"));
    }
    let mut regions = vec![];
    for (i, trigger) in triggers.iter().enumerate().filter(|(_, t)| !t.tags.is_empty()) {
        let names: Vec<String> = trigger.tags.iter().map(|tag| format!("tag_{tag}")).collect();
        if let Some(control) = &trigger.control {
            regions.push(format!("TEXT? {control} ({})", names.join(" | ")));
        } else {
            regions.push(format!("PRE_{i} ({})", names.join(" | ")));
            lark.push_str(&format!("\nPRE_{i}: /(?s:.*){}/ & ~PAST", escape(&trigger.text)));
        }
    }
    format!("start: ({})* TEXT?\n{lark}\n{}\n", regions.join(" | "), tags.join("\n"))
}

pub fn translate(source: &str, controls: &Controls, read: ReadSchema, work: &Work) -> Result<Translated, String> {
    let value = json::parse(source, work)?;
    if value.get("format").is_some() {
        return Err(
            "/format: structural tags with \"format\" are not supported; use \"structures\" and \"triggers\"".into()
        );
    }
    let object = fields(&value, &At::Root(""), &["type", "structures", "triggers"])?;
    if object["type"] != "structural_tag" {
        return Err(format!("/type: {} is not \"structural_tag\"", object["type"]));
    }
    let mut triggers = read_triggers(&object["triggers"], controls, work)?;
    // A text begins with one trigger at most, and that is the last one up to it in alphabetical order.
    let sorted: BTreeMap<String, usize> = triggers.iter().enumerate().map(|(i, t)| (t.text.clone(), i)).collect();
    let (mut schemas, mut tags) = (vec![], vec![]);
    let mut known: HashMap<String, usize> = HashMap::new();
    for (i, value) in list(&object["structures"], "/structures")?.iter().enumerate() {
        let at = format!("/structures/{i}");
        let structure = fields(value, &At::Root(&at), &["begin", "schema", "end"])?;
        let begin = text(&structure["begin"], &format!("{at}/begin"), false)?;
        let end = text(&structure["end"], &format!("{at}/end"), true)?;
        work.text(begin)?;
        work.text(end)?;
        let before = sorted.range(..=begin.to_string()).next_back();
        let Some((trigger, &index)) = before.filter(|(trigger, _)| begin.starts_with(trigger.as_str())) else {
            return Err(format!("{at}/begin: {begin:?} begins with none of the triggers"));
        };
        triggers[index].tags.push(i);
        let rest = terms(&begin[trigger.len()..], controls);
        // Structures with equal schemas share a grammar.
        let lark = read(&structure["schema"], &format!("{at}/schema"))?;
        let schema = *known.entry(lark).or_insert_with_key(|lark| {
            schemas.push(lark.clone());
            schemas.len() - 1
        });
        tags.push(format!("tag_{i}:{rest} @schema_{schema}{}", terms(end, controls)));
    }
    if let Some(i) = triggers.iter().position(|t| t.tags.is_empty()) {
        return Err(format!("/triggers/{i}: no structure begins with {:?}", triggers[i].text));
    }
    Ok(Translated { lark: write(&triggers, &tags), schemas })
}
