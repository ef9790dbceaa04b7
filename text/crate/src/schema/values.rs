//! Sets of JSON values, by type. Each type has a list of sets, and the values are those of any of them:
//!
//!   {"type": ["null", "string"], "minLength": 2}    ->    null; texts of 2 characters and more
//!
//! What an array or object holds is said by demands: the schemas that a value must fit together.

use super::demands::{Demand, ANY};
use super::numbers::{Kind, Number};
use super::texts::Text;
use std::borrow::Cow;
use std::rc::Rc;

#[derive(Clone, Default)]
pub struct Values {
    pub null: bool,
    pub is_false: bool,
    pub is_true: bool,
    pub numbers: Vec<Number>,
    pub texts: Vec<Text>,
    pub arrays: Vec<Array>,
    pub objects: Vec<Object>,
}

/// The arrays that all of this holds for.
#[derive(Clone, PartialEq)]
pub struct Array {
    pub first: Vec<Demand>, // of the first items, if they are there
    pub rest: Demand,       // of each other item
    pub least: u64,
    pub most: Option<u64>,
    pub needs: Vec<Need>,
    pub is_unique: bool,
}

/// How many items from a place on fit a demand.
#[derive(Clone, PartialEq)]
pub struct Need {
    pub demand: Demand,
    pub from: usize,
    pub least: u64,
    pub most: Option<u64>,
}

/// The objects that all of this holds for.
#[derive(Clone, PartialEq)]
pub struct Object {
    pub all: Vec<(Names, Demand)>,  // each property with such a name fits
    pub some: Vec<(Names, Demand)>, // there is a property with such a name, and it fits
    pub least: u64,                 // properties
    pub most: Option<u64>,
    /// The names that the schema's keywords have looked at, for unevaluatedProperties.
    pub seen: Vec<Names>,
    /// What is written fits these rules of `all` and `some` too. Other objects fit the schema all the same.
    pub written: [Vec<(Names, Demand)>; 2],
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Names {
    Is(Rc<str>),
    In(Rc<Vec<Text>>),
}

impl Names {
    pub fn name(&self) -> Option<&str> {
        match self {
            Names::Is(name) => Some(name),
            Names::In(_) => None,
        }
    }
}

impl Array {
    pub fn any() -> Array {
        Array { first: vec![], rest: ANY, least: 0, most: None, needs: vec![], is_unique: false }
    }
}

impl Object {
    pub fn any() -> Object {
        Object { all: vec![], some: vec![], least: 0, most: None, seen: vec![], written: Default::default() }
    }

    pub fn as_written(&self) -> Cow<'_, Object> {
        let [all, some] = &self.written;
        if all.is_empty() && some.is_empty() {
            return Cow::Borrowed(self);
        }
        let with = |own: &[(Names, Demand)], more: &[(Names, Demand)]| [own, more].concat();
        Cow::Owned(Object { all: with(&self.all, all), some: with(&self.some, some), ..self.clone() })
    }
}

impl Values {
    pub fn none() -> Values {
        Values::default()
    }

    pub fn all() -> Values {
        Values {
            null: true,
            is_false: true,
            is_true: true,
            numbers: vec![Number::any()],
            texts: vec![Text::any()],
            arrays: vec![Array::any()],
            objects: vec![Object::any()],
        }
    }

    /// The values of the types that a name of `type` stands for.
    pub fn of_type(name: &str) -> Values {
        let (all, none) = (Values::all(), Values::none());
        match name {
            "null" => Values { null: true, ..none },
            "boolean" => Values { is_false: true, is_true: true, ..none },
            "integer" => Values { numbers: vec![Number::of_kind(Kind::Whole)], ..none },
            "number" => Values { numbers: all.numbers, ..none },
            "string" => Values { texts: all.texts, ..none },
            "array" => Values { arrays: all.arrays, ..none },
            _ => Values { objects: all.objects, ..none },
        }
    }

    pub fn add(&mut self, other: Values) {
        self.null |= other.null;
        self.is_false |= other.is_false;
        self.is_true |= other.is_true;
        unite(&mut self.numbers, other.numbers, &Number::any());
        unite(&mut self.texts, other.texts, &Text::any());
        unite(&mut self.arrays, other.arrays, &Array::any());
        unite(&mut self.objects, other.objects, &Object::any());
        self.join_lists();
    }

    /// Makes one list of the texts that are listed, and one of the numbers.
    fn join_lists(&mut self) {
        if self.texts.iter().filter(|set| set.only.is_some()).count() > 1 {
            let (lists, mut sets): (Vec<Text>, Vec<Text>) = self.texts.drain(..).partition(|set| set.only.is_some());
            sets.push(Text::only(lists.into_iter().filter_map(|set| set.only).flatten()));
            self.texts = sets;
        }
        if self.numbers.iter().filter(|set| set.only.is_some()).count() > 1 {
            let (lists, mut sets): (Vec<Number>, Vec<Number>) =
                self.numbers.drain(..).partition(|set| set.only.is_some());
            sets.push(Number::only(lists.into_iter().filter_map(|set| set.only).flatten().collect()));
            self.numbers = sets;
        }
    }
}

/// Where one of the sets has everything, the others add nothing.
fn unite<T: PartialEq>(own: &mut Vec<T>, other: Vec<T>, any: &T) {
    if own.contains(any) {
        return;
    }
    for set in other {
        if set == *any {
            own.clear();
        }
        if !own.contains(&set) {
            own.push(set);
        }
    }
}
