//! Structural tags in the JSON of vLLM: free text in which a trigger begins a region whose content has a schema.
//!
//! As a grammar: TEXT has no trigger in it, and PRE_i is text up to the end of the first trigger, the i-th. So the lexer
//! tells at the trigger's last byte, and nowhere else, that a region begins.
//!
//!   start: (PRE_0 (tag_0 | tag_1) | PRE_1 (tag_2))* TEXT?
//!   tag_0: /rest of begin/ @schema_0 /end/
//!
//! A control token is no text. A trigger, begin or end that has one in its text stands for the token.

use crate::json;
use crate::pattern::escape;
use crate::schema;
use serde_json::{Map, Value};

pub struct Translated {
    pub lark: String,
    /// The schemas that it names, schema_0 and so on.
    pub schemas: Vec<Value>,
}

/// The longest name of a control token that `text` has at its start or after it: where, and the name.
pub type FindControl<'a> = &'a dyn Fn(&str) -> Option<(usize, String)>;

fn fields<'v>(value: &'v Value, at: &str, names: &[&str]) -> Result<&'v Map<String, Value>, String> {
    let Some(object) = value.as_object() else { return Err(format!("{at}: must be an object")) };
    for key in object.keys() {
        if !names.contains(&key.as_str()) {
            return Err(format!("{}: no such field", json::step(at, key)));
        }
    }
    match names.iter().find(|name| !object.contains_key(**name)) {
        Some(name) => Err(format!("{}: missing", json::step(at, name))),
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

/// `text` as terms of a rule, with control tokens by their names.
fn terms(mut text: &str, find: FindControl) -> String {
    let mut out = String::new();
    while !text.is_empty() {
        let (at, name) = find(text).unwrap_or((text.len(), String::new()));
        if at > 0 {
            out.push_str(&format!(" /{}/", escape(&text[..at])));
        }
        if !name.is_empty() {
            out.push_str(&format!(" {name}"));
        }
        text = &text[at + name.len()..];
    }
    out
}

struct Trigger {
    text: String,
    is_control: bool,
    tags: Vec<usize>,
}

fn read_triggers(value: &Value, find: FindControl) -> Result<Vec<Trigger>, String> {
    let mut triggers: Vec<Trigger> = vec![];
    for (i, value) in list(value, "/triggers")?.iter().enumerate() {
        let at = format!("/triggers/{i}");
        let text = text(value, &at, false)?;
        let control = find(text);
        let is_control = control.as_ref().is_some_and(|(start, name)| *start == 0 && name == text);
        if control.is_some() && !is_control {
            return Err(format!("{at}: a control token must be a trigger of its own"));
        }
        if let Some(other) = triggers.iter().find(|t| t.text.contains(text) || text.contains(&t.text)) {
            return Err(format!("{at}: {text:?} and {:?} contain each other", other.text));
        }
        triggers.push(Trigger { text: text.to_string(), is_control, tags: vec![] });
    }
    Ok(triggers)
}

fn write(triggers: &[Trigger], tags: &[String]) -> String {
    let texts: Vec<String> = triggers.iter().filter(|t| !t.is_control).map(|t| escape(&t.text)).collect();
    let any = format!("(?:{})", texts.join("|"));
    let mut lark = String::from("TEXT: /(?s:.+)/");
    if !texts.is_empty() {
        lark.push_str(&format!(" & ~/(?s:.*){any}(?s:.*)/"));
    }
    let mut regions = vec![];
    for (i, trigger) in triggers.iter().enumerate().filter(|(_, t)| !t.tags.is_empty()) {
        let names: Vec<String> = trigger.tags.iter().map(|tag| format!("tag_{tag}")).collect();
        if trigger.is_control {
            regions.push(format!("TEXT? {} ({})", trigger.text, names.join(" | ")));
        } else {
            regions.push(format!("PRE_{i} ({})", names.join(" | ")));
            lark.push_str(&format!("\nPRE_{i}: /(?s:.*){}/ & ~/(?s:.*){any}(?s:.+)/", escape(&trigger.text)));
        }
    }
    format!("start: ({})* TEXT?\n{lark}\n{}\n", regions.join(" | "), tags.join("\n"))
}

pub fn translate(source: &str, find: FindControl) -> Result<Translated, String> {
    let value = json::parse(source)?;
    if value.get("format").is_some() {
        return Err("/format: structural tags with \"format\" are not supported; use \"structures\" and \"triggers\"".into());
    }
    let object = fields(&value, "", &["type", "structures", "triggers"])?;
    if object["type"] != "structural_tag" {
        return Err(format!("/type: {} is not \"structural_tag\"", object["type"]));
    }
    let mut triggers = read_triggers(&object["triggers"], find)?;
    let (mut schemas, mut tags) = (vec![], vec![]);
    for (i, value) in list(&object["structures"], "/structures")?.iter().enumerate() {
        let at = format!("/structures/{i}");
        let structure = fields(value, &at, &["begin", "schema", "end"])?;
        let begin = text(&structure["begin"], &format!("{at}/begin"), false)?;
        let end = text(&structure["end"], &format!("{at}/end"), true)?;
        let Some(trigger) = triggers.iter_mut().find(|t| begin.starts_with(&t.text)) else {
            return Err(format!("{at}/begin: {begin:?} begins with none of the triggers"));
        };
        trigger.tags.push(i);
        let rest = terms(&begin[trigger.text.len()..], find);
        tags.push(format!("tag_{i}:{rest} @schema_{i}{}", terms(end, find)));
        schemas.push(schema::Reader::new(&structure["schema"], &format!("{at}/schema")).read()?);
    }
    if let Some(i) = triggers.iter().position(|t| t.tags.is_empty()) {
        return Err(format!("/triggers/{i}: no structure begins with {:?}", triggers[i].text));
    }
    Ok(Translated { lark: write(&triggers, &tags), schemas })
}
