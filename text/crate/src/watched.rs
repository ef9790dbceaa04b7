//! What tracker.rs knows of a schema: where items may not repeat, and which values items can have. schema/watch.rs makes
//! it.

use crate::words::{Words, ENDLESS};
use std::collections::HashMap;

/// Where arrays may not repeat an item, and where objects list many names. Place 0 holds neither.
pub struct Watch {
    pub places: Vec<Place>,
    pub shapes: Vec<Shape>,
    pub top: usize,
    /// Whether no object may repeat a name. Then the names that are not listed can always continue.
    pub has_names: bool,
}

/// What may stand at a place of the output: where its items and properties are.
#[derive(Default)]
pub struct Place {
    pub first: Vec<usize>,
    pub rest: usize,
    pub distinct: Option<usize>, // the shape of items that may not repeat
    pub named: HashMap<String, usize>,
    pub other: usize,
    /// Names that the objects list which may stand here, where those are too many for the grammar to remember.
    pub names: Vec<ListedName>,
}

impl Place {
    /// Whether the objects here have listed names alone.
    pub fn has_no_others(&self) -> bool {
        self.names.first().is_some_and(|own| own.own_from == 0)
    }
}

#[derive(Clone)]
pub struct ListedName {
    pub name: String,
    pub spelled: Vec<u8>, // in JSON, without quotes
    /// From this many bytes on, only listed names begin like it.
    pub own_from: usize,
    /// A bit for each object that may stand at the place: whether it may have this name.
    pub objects: u64,
}

/// The values of an item, or of a part of one.
#[derive(Default)]
pub struct Shape {
    pub words: Option<Words>, // of scalars, as JSON spells them
    pub has_number: bool,     // any number
    pub array: Option<ArrayShape>,
    pub object: Option<ObjectShape>,
    pub count: u64, // of values, up to ENDLESS
}

pub struct ArrayShape {
    pub first: Vec<usize>,
    pub rest: Option<usize>,
    pub least: u64,
    pub most: u64,
}

pub enum ObjectShape {
    /// Until its end another property may come, so there is always another value.
    Open,
    Closed {
        members: Vec<Member>,
        in_order: bool,
    },
}

pub struct Member {
    pub name: String,
    pub shape: usize,
    pub is_required: bool,
}

pub fn times(a: u64, b: u64) -> u64 {
    a.saturating_mul(b).min(ENDLESS)
}

impl ArrayShape {
    pub fn item(&self, i: usize) -> Option<usize> {
        self.first.get(i).copied().or(self.rest)
    }

    /// In how many ways it can continue after `count` items.
    pub fn ways(&self, count: usize, shapes: &[Shape]) -> u64 {
        let of = |i: usize| self.item(i).map_or(0, |shape| shapes[shape].count);
        let listed = self.first.len().max(self.least as usize).max(count);
        let rest = self.rest.map_or(0, |shape| shapes[shape].count);
        // All lengths from `listed` on.
        let more = self.most.saturating_sub(listed as u64);
        let mut ways = match rest {
            _ if (listed as u64) > self.most => 0,
            0 => 1,
            1 => (more + 1).min(ENDLESS),
            _ if more >= 20 => ENDLESS,
            rest => (0..more).fold(1, |ways, _| (1 + times(rest, ways)).min(ENDLESS)),
        };
        for i in (count..listed).rev() {
            let may_end = i as u64 >= self.least && i as u64 <= self.most;
            ways = (u64::from(may_end) + times(of(i), ways)).min(ENDLESS);
        }
        ways
    }
}

/// How many scalars of a shape begin like this.
pub fn scalars(shape: &Shape, begun: &[u8]) -> u64 {
    if shape.has_number && begun.first().is_some_and(|b| *b == b'-' || b.is_ascii_digit()) {
        return ENDLESS;
    }
    shape.words.as_ref().map_or(0, |words| words.after(begun))
}
