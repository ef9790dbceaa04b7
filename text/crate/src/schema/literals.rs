//! The values of `const` and `enum`.

use super::demands::{Demands, Part, ANY, NOTHING};
use super::keywords::is;
use super::numbers::Number;
use super::texts::Text;
use super::values::{Array, Names, Object, Values};
use super::Outcome;
use crate::exact::Exact;
use serde_json::Value;
use std::collections::BTreeSet;
use std::rc::Rc;

impl<'a> Demands<'a> {
    pub fn list_values(&mut self, place: u32, list: &'a [Value]) -> Outcome<Values> {
        let mut any = Values::none();
        let (mut texts, mut numbers) = (BTreeSet::new(), vec![]);
        for value in list {
            self.work.step()?;
            match value {
                Value::String(text) => drop(texts.insert(text.clone())),
                Value::Number(number) => numbers.push((Exact::of(number), number.to_string())),
                value => {
                    let literal = self.literal(place, value);
                    let demand = self.demand([Part { place: literal, is_not: false }])?;
                    any.add(self.values(demand)?.as_ref().clone());
                }
            }
        }
        any.texts.extend((!texts.is_empty()).then(|| Text::only(texts)));
        any.numbers.extend((!numbers.is_empty()).then(|| Number::only(numbers)));
        Ok(any)
    }

    pub fn literal_values(&mut self, place: u32) -> Outcome<Values> {
        let mut values = Values::none();
        match self.value(place) {
            Value::Null => values.null = true,
            Value::Bool(is) => (values.is_true, values.is_false) = (*is, !*is),
            Value::Number(_) | Value::String(_) => {
                return self.list_values(place, std::slice::from_ref(self.value(place)))
            }
            Value::Array(items) => {
                let mut array = Array { rest: NOTHING, least: items.len() as u64, ..Array::any() };
                for item in items {
                    let literal = self.literal(place, item);
                    array.first.push(self.of(literal, false)?);
                }
                values.arrays.push(array);
            }
            Value::Object(items) => {
                let mut object = Object::any();
                let mut others = Text::any();
                for (name, item) in items {
                    let literal = self.literal(place, item);
                    object.all.push((is(name), self.of(literal, false)?));
                    object.some.push((is(name), ANY));
                    others.but.insert(name.clone());
                }
                object.all.push((Names::In(Rc::new(vec![others])), NOTHING));
                values.objects.push(object);
            }
        }
        Ok(values)
    }
}
