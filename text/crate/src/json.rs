//! JSON with the errors that serde_json leaves out: a key that comes twice. And JSON pointers.

use crate::exact::Exact;
use crate::work::Work;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

struct Strict<'a>(&'a Work);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.step().map_err(D::Error::custom)?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_str<E: Error>(self, v: &str) -> Result<Value, E> {
        self.0.text(v).map_err(E::custom)?;
        Ok(v.into())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = vec![];
        while let Some(value) = seq.next_element_seed(Strict(self.0))? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            self.0.text(&key).map_err(A::Error::custom)?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("the key {key:?} comes twice")));
            }
            map.insert(key, access.next_value_seed(Strict(self.0))?);
        }
        Ok(Value::Object(map))
    }
}

/// The error says the line and the column.
pub fn parse(text: &str, work: &Work) -> Result<Value, String> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Strict(work).deserialize(&mut reader).map_err(|e| e.to_string())?;
    reader.end().map_err(|e| e.to_string())?;
    Ok(value)
}

/// The value that `text` begins with, and how many bytes it takes. The error says line and column within `text`.
pub fn parse_prefix(text: &str, work: &Work) -> Result<(Value, usize), String> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<&serde_json::value::RawValue>();
    let raw = stream.next().ok_or("no JSON value")?.map_err(|e| e.to_string())?;
    let value = parse(raw.get(), work)?;
    Ok((value, stream.byte_offset()))
}

/// A place in a JSON value. It is written as RFC 6901 spells it, and only for an error: long ones would cost much.
#[derive(Clone, Copy)]
pub enum At<'a> {
    Root(&'a str),            // a pointer to what the value stands in
    Of(&'a dyn fmt::Display), // writes such a pointer
    Key(&'a At<'a>, &'a str),
    Index(&'a At<'a>, usize),
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            At::Root(pointer) => f.write_str(pointer),
            At::Of(pointer) => pointer.fmt(f),
            At::Key(parent, key) => write!(f, "{parent}/{}", escape(key)),
            At::Index(parent, index) => write!(f, "{parent}/{index}"),
        }
    }
}

/// As a pointer spells a key.
pub fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// A text that is the same for equal values: 1 and 1.0 are equal, and so are objects whose keys have another order.
pub fn canonical(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => {
            // All digits of a whole number, as if it had no exponent.
            Exact::from(number.as_f64().unwrap_or(0.0)).digits()
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Object(items) => {
            let pair = |(key, value): (&String, &Value)| format!("{}:{}", Value::from(key.as_str()), canonical(value));
            let mut items: Vec<String> = items.iter().map(pair).collect();
            items.sort();
            format!("{{{}}}", items.join(","))
        }
        other => other.to_string(),
    }
}
