//! Follows an output of JSON, and says which tokens would repeat a property's name in its object, or an item where items
//! may not repeat (uniqueItems).
//!
//!   {"items": {"type": "string"}, "uniqueItems": true}    after ["a", "    a", may not come
//!
//! A token is also out if, after it, every value that the item can still become has come already. So whatever is begun
//! can be ended. `room` counts these values; schema/watch.rs prepares what it needs to know of the items.

use crate::json::canonical;
use crate::used::Used;
use crate::vocabulary::Vocabulary;
use crate::watched::{scalars, times, ListedName, Member, ObjectShape, Shape, Watch};
use crate::words::ENDLESS;
use llguidance::toktrie::SimpleVob;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Arrays and objects within each other. Values are copied and compared level by level, and readers of JSON have limits
/// too: Python's is near 1,000.
const MAX_DEPTH: usize = 512;

/// An array or an object that is not closed.
#[derive(Clone)]
struct Frame {
    is_object: bool,
    place: usize,
    shape: Option<usize>, // if it is an item or a part of one
    index: usize,         // of the item or property
    name: String,         // of an object's property
    value: Option<Value>, // so far, if it is an item or a part of one
    used: Option<Used>,   // if its items may not repeat
    names: Option<Used>,  // if its names may not
    objects: u64,         // those of the place's that may have all its names
}

impl Frame {
    fn is_recorded(&self) -> bool {
        self.used.is_some() || self.value.is_some()
    }

    /// Whether a listed name may still come.
    fn may_have(&self, listed: &ListedName) -> bool {
        listed.objects & self.objects != 0 && !self.names.as_ref().is_some_and(|names| names.contains(&listed.name))
    }
}

#[derive(Clone)]
enum At {
    Value,
    Name,
    Colon,
    /// Within a string, without its first quote.
    Text {
        text: Vec<u8>,
        is_escaped: bool,
        is_name: bool,
    },
    Scalar(Vec<u8>),
    End,
}

#[derive(Clone)]
pub struct Tracker {
    watch: Arc<Watch>,
    frames: Vec<Arc<Frame>>,
    at: At,
}

impl Tracker {
    pub fn new(watch: Arc<Watch>) -> Tracker {
        Tracker { watch, frames: vec![], at: At::Value }
    }

    /// Goes over a token's bytes. False: it repeats an item or a name, or leads to where only items are left that have
    /// come. The token fits the grammar.
    pub fn accept(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&b| self.byte(b)) && self.is_alive()
    }

    fn child(&self) -> (usize, Option<usize>) {
        let Some(frame) = self.frames.last() else { return (self.watch.top, None) };
        let place = &self.watch.places[frame.place];
        let shape = match (&place.distinct, frame.shape.map(|shape| &self.watch.shapes[shape])) {
            (Some(shape), _) if frame.used.is_some() => Some(*shape),
            (_, Some(Shape { object: Some(ObjectShape::Closed { members, .. }), .. })) if frame.is_object => {
                members.iter().find(|member| member.name == frame.name).map(|member| member.shape)
            }
            (_, Some(Shape { array: Some(array), .. })) if !frame.is_object => array.item(frame.index),
            _ => None,
        };
        let place = if frame.is_object {
            place.named.get(&frame.name).copied().unwrap_or(place.other)
        } else {
            place.first.get(frame.index).copied().unwrap_or(place.rest)
        };
        (place, shape)
    }

    fn is_recorded(&self) -> bool {
        self.frames.last().is_some_and(|frame| frame.is_recorded())
    }

    fn byte(&mut self, b: u8) -> bool {
        if let At::Text { text, is_escaped, .. } = &mut self.at {
            if b == b'"' && !*is_escaped {
                return self.end_text();
            }
            *is_escaped = b == b'\\' && !*is_escaped;
            text.push(b);
            return true;
        }
        let is_structure = b" \t\n\r,]}".contains(&b);
        if let At::Scalar(text) = &mut self.at {
            if !is_structure {
                text.push(b);
                return true;
            }
            let value = serde_json::from_slice(text).unwrap_or_default();
            if !self.end_value(value) {
                return false;
            }
        }
        match b {
            b' ' | b'\t' | b'\n' | b'\r' => {}
            b'"' => self.at = At::Text { text: vec![], is_escaped: false, is_name: matches!(self.at, At::Name) },
            b'{' | b'[' => return self.open(b == b'{'),
            b'}' | b']' => {
                let value = self.frames.pop().and_then(|frame| frame.value.clone());
                return self.end_value(value.unwrap_or_default());
            }
            b',' => {
                let Some(frame) = self.frames.last_mut() else { return true };
                self.at = if frame.is_object { At::Name } else { At::Value };
                Arc::make_mut(frame).index += 1;
            }
            b':' => self.at = At::Value,
            b => self.at = At::Scalar(vec![b]),
        }
        true
    }

    /// False: it repeats an item or a name.
    fn end_text(&mut self) -> bool {
        let At::Text { text, is_name, .. } = std::mem::replace(&mut self.at, At::Colon) else { return true };
        let mut own = String::new();
        if is_name || self.is_recorded() {
            own = serde_json::from_slice(&[b"\"", text.as_slice(), b"\""].concat()).unwrap_or_default();
        }
        if !is_name {
            return self.end_value(Value::String(own));
        }
        let Some(frame) = self.frames.last_mut() else { return true };
        let frame = Arc::make_mut(frame);
        let listed = self.watch.places[frame.place].names.iter().find(|listed| listed.name == own);
        frame.objects &= listed.map_or(u64::MAX, |listed| listed.objects);
        frame.name = own;
        frame.names.as_mut().is_none_or(|names| names.add(frame.name.clone(), Value::Null))
    }

    /// False: it is too deep.
    fn open(&mut self, is_object: bool) -> bool {
        if self.frames.len() == MAX_DEPTH {
            return false;
        }
        let (place, shape) = self.child();
        let empty = if is_object { Value::Object(Map::new()) } else { Value::Array(vec![]) };
        let is_distinct = !is_object && self.watch.places[place].distinct.is_some();
        self.frames.push(Arc::new(Frame {
            is_object,
            place,
            shape,
            index: 0,
            name: String::new(),
            value: self.is_recorded().then_some(empty),
            used: is_distinct.then(Used::default),
            names: (is_object && (self.watch.has_names || !self.watch.places[place].names.is_empty()))
                .then(Used::default),
            objects: u64::MAX,
        }));
        self.at = if is_object { At::Name } else { At::Value };
        true
    }

    /// False: it repeats an item.
    fn end_value(&mut self, value: Value) -> bool {
        self.at = At::End;
        let Some(frame) = self.frames.last_mut().filter(|frame| frame.is_recorded()) else { return true };
        let frame = Arc::make_mut(frame);
        if let Some(used) = &mut frame.used {
            if !used.add(canonical(&value), value.clone()) {
                return false;
            }
        }
        match &mut frame.value {
            Some(Value::Object(members)) => drop(members.insert(frame.name.clone(), value)),
            Some(Value::Array(items)) => items.push(value),
            _ => {}
        }
        true
    }

    fn is_alive(&self) -> bool {
        self.is_name_alive() && (0..self.frames.len()).all(|i| self.frames[i].used.is_none() || self.is_item_alive(i))
    }

    /// Whether the name that is begun, or has to begin, can become one that has not come. A name that is not listed always
    /// can.
    fn is_name_alive(&self) -> bool {
        let text: &[u8] = match &self.at {
            At::Text { text, is_name: true, .. } => text,
            At::Name if self.frames.last().is_some_and(|frame| frame.index > 0) => b"",
            _ => return true,
        };
        let Some(frame) = self.frames.last().filter(|frame| frame.is_object) else { return true };
        let place = &self.watch.places[frame.place];
        let mut like = place.names.iter().filter(|own| own.spelled.starts_with(text)).peekable();
        like.peek().is_none() || like.any(|own| text.len() < own.own_from || frame.may_have(own))
    }

    /// Whether an object that is not closed has all its names, so that no comma may come in it.
    fn has_all_names(&self) -> bool {
        self.frames.iter().any(|frame| {
            let place = &self.watch.places[frame.place];
            frame.is_object && place.has_no_others() && !place.names.iter().any(|own| frame.may_have(own))
        })
    }

    /// The names that the last object lists, if the tracker has to know them, and those that have come.
    fn listed_names(&self) -> (&[ListedName], Option<&Used>) {
        let Some(frame) = self.frames.last().filter(|frame| frame.is_object) else { return (&[], None) };
        (&self.watch.places[frame.place].names, frame.names.as_ref())
    }

    /// Whether the item that is begun in frame `i` can become one that has not come.
    fn is_item_alive(&self, i: usize) -> bool {
        let Some(used) = &self.frames[i].used else { return true };
        let last = self.frames.len() - 1;
        if i == last && (matches!(self.at, At::End) || (matches!(self.at, At::Value) && self.frames[i].index == 0)) {
            return true; // no item is begun
        }
        if let Some(names) = self.next_names() {
            return names.into_iter().any(|name| {
                let mut after = self.clone();
                Arc::make_mut(&mut after.frames[last]).name = name;
                after.at = At::Colon;
                after.is_item_alive(i)
            });
        }
        let room = self.room(i, true);
        if room > used.len() as u64 {
            return true; // ENDLESS too
        }
        let come = match &self.at {
            At::Text { text, is_name: false, .. } if i == last => {
                used.count_scalars(&[b"\"", text.as_slice()].concat())
            }
            At::Scalar(text) if i == last => used.count_scalars(text),
            _ => used.values().filter(|value| self.may_become(value, i)).take(room as usize).count(),
        };
        room > come as u64
    }

    /// The names that may come, where one has to.
    fn next_names(&self) -> Option<Vec<String>> {
        let begun: &[u8] = match &self.at {
            At::Name if self.frames.last()?.index > 0 => b"",
            At::Text { text, is_name: true, .. } => text,
            _ => return None,
        };
        if !self.is_closed() {
            return None;
        }
        let pending = self.pending(self.frames.len() - 1, false);
        let fits = |name: &&str| Value::from(*name).to_string().as_bytes()[1..].starts_with(begun);
        Some(pending.into_iter().map(|member| member.name.as_str()).filter(fits).map(str::to_string).collect())
    }

    /// The members of a closed object that may still come. `is_begun`: the value of the last name is.
    fn pending(&self, i: usize, is_begun: bool) -> Vec<&Member> {
        let frame = &self.frames[i];
        let Some(Some(ObjectShape::Closed { members, in_order })) =
            frame.shape.map(|shape| &self.watch.shapes[shape].object)
        else {
            return vec![];
        };
        let Some(Value::Object(known)) = &frame.value else { return vec![] };
        let has_come = |member: &Member| known.contains_key(&member.name) || (is_begun && member.name == frame.name);
        let from = if *in_order { members.iter().rposition(has_come).map_or(0, |last| last + 1) } else { 0 };
        members[from..].iter().filter(|member| !has_come(member)).collect()
    }

    /// How many values the item can still become that is begun in frame `i`. `with_scalar`: what a scalar that is begun
    /// can become counts too.
    fn room(&self, i: usize, with_scalar: bool) -> u64 {
        let shapes = &self.watch.shapes;
        let last = self.frames.len() - 1;
        let is_begun = !matches!(self.at, At::End | At::Name) && !matches!(self.at, At::Text { is_name: true, .. });
        let mut all = 1;
        for j in i + 1..=last {
            let frame = &self.frames[j];
            let Some(shape) = frame.shape.map(|shape| &shapes[shape]) else { return ENDLESS };
            let has_child = j < last || is_begun;
            all = times(
                all,
                match (&shape.object, &shape.array) {
                    (Some(ObjectShape::Open), _) if frame.is_object => return ENDLESS,
                    (Some(_), _) if frame.is_object => self
                        .pending(j, has_child)
                        .into_iter()
                        .fold(1, |all, member| times(all, shapes[member.shape].count + u64::from(!member.is_required))),
                    (_, Some(array)) => {
                        let is_fresh = j == last && matches!(self.at, At::Value) && frame.index == 0;
                        if is_fresh {
                            return times(all, array.ways(0, shapes));
                        }
                        array.ways(frame.index + 1, shapes)
                    }
                    _ => return ENDLESS,
                },
            );
        }
        if !with_scalar {
            return all;
        }
        let child = self.child().1.map(|shape| &shapes[shape]);
        times(
            all,
            match (&self.at, child) {
                (At::Value | At::Colon, Some(shape)) => shape.count,
                (At::Text { text, is_name: false, .. }, Some(shape)) => {
                    scalars(shape, &[b"\"", text.as_slice()].concat())
                }
                (At::Scalar(text), Some(shape)) => scalars(shape, text),
                _ => 1,
            },
        )
    }

    /// Whether the item that is begun in frame `i` can become `value`.
    fn may_become(&self, value: &Value, i: usize) -> bool {
        let mut value = value;
        for j in i + 1..self.frames.len() {
            match self.inner(value, j) {
                Some(Some(inner)) => value = inner,
                Some(None) => return true,
                None => return false,
            }
        }
        let begun = match &self.at {
            At::Text { text, is_name: false, .. } => [b"\"", text.as_slice()].concat(),
            At::Scalar(text) => text.clone(),
            _ => return true,
        };
        !value.is_array() && !value.is_object() && value.to_string().as_bytes().starts_with(&begun)
    }

    /// The part of `value` that is begun in frame `j`; None: it has other parts. Some(None): no part is begun.
    fn inner<'v>(&self, value: &'v Value, j: usize) -> Option<Option<&'v Value>> {
        let frame = &self.frames[j];
        let is_last = j + 1 == self.frames.len();
        let has_child = !is_last || !matches!(self.at, At::End | At::Name);
        let is_equal = |a: &Value, b: &Value| canonical(a) == canonical(b);
        match (&frame.value, value) {
            (Some(Value::Object(known)), Value::Object(other)) => {
                let is_known =
                    known.iter().all(|(name, own)| other.get(name).is_some_and(|value| is_equal(own, value)));
                let pending = self.pending(j, has_child);
                let may_come = |name: &String| {
                    known.contains_key(name)
                        || (has_child && *name == frame.name)
                        || pending.iter().any(|member| member.name == *name)
                };
                if !is_known || !other.keys().all(may_come) {
                    return None;
                }
                if has_child {
                    other.get(&frame.name).map(Some)
                } else {
                    Some(None)
                }
            }
            (Some(Value::Array(known)), Value::Array(other)) => {
                let is_known = known.len() <= other.len() && known.iter().zip(other).all(|(a, b)| is_equal(a, b));
                let is_fresh = is_last && matches!(self.at, At::Value) && frame.index == 0;
                match is_known {
                    false => None,
                    true if has_child && !is_fresh => other.get(frame.index).map(Some),
                    true => Some(None),
                }
            }
            _ => None,
        }
    }

    /// Takes the tokens out of `mask` that would repeat an item or a name.
    pub fn filter(&self, mask: &mut SimpleVob, vocabulary: &Vocabulary) {
        let trie = vocabulary.trie();
        let mut tokens: Vec<u32> = vec![];
        let is_watching = self.frames.iter().any(|frame| frame.used.is_some());
        let quotes = |count: usize| &vocabulary.quotes[count - 1];
        let mut add = |list: &[u32]| tokens.extend(list.iter().copied().filter(|&id| mask.is_allowed(id)));
        // A token may begin a name that has come, and not only end it.
        let begun = usize::from(self.frames.iter().any(|frame| !self.watch.places[frame.place].names.is_empty()));
        let has_all = self.has_all_names();
        match &self.at {
            // A token may end a name, or have a whole one after the string that it ends.
            At::Text { is_name, .. } if !is_watching => {
                let is_first = self.frames.last().and_then(|frame| frame.names.as_ref()).is_none_or(Used::is_empty);
                add(quotes(if has_all || (*is_name && !is_first) { 1 } else { 3 - begun }));
                if *is_name {
                    self.along_names(vocabulary, mask, &mut tokens);
                }
            }
            _ if !is_watching && !has_all => add(quotes(2 - begun)),
            At::Text { is_name, .. } if !is_name || !self.is_closed() => {
                add(quotes(1));
                self.along_used(vocabulary, mask, &mut tokens);
                if *is_name {
                    self.along_names(vocabulary, mask, &mut tokens);
                }
            }
            _ => mask.iter_set_entries(|id| tokens.push(id as u32)),
        }
        if self.frames.len() + vocabulary.most_opened > MAX_DEPTH {
            tokens.extend(vocabulary.opening.iter().copied().filter(|&id| mask.is_allowed(id)));
        }
        if !is_watching && !self.watch.shapes.is_empty() {
            tokens.extend(vocabulary.lists.iter().copied().filter(|&id| mask.is_allowed(id)));
        }
        for id in tokens {
            if !trie.is_special_token(id) && !self.clone().accept(trie.token(id)) {
                mask.disallow_token(id);
            }
        }
    }

    /// Whether the object is one that lists its names, as an item or a part of one.
    fn is_closed(&self) -> bool {
        let shape = self.frames.last().and_then(|frame| frame.shape).map(|shape| &self.watch.shapes[shape].object);
        matches!(shape, Some(Some(ObjectShape::Closed { .. })))
    }

    /// Within a name: the tokens that go along listed names which have come.
    fn along_names(&self, vocabulary: &Vocabulary, mask: &SimpleVob, tokens: &mut Vec<u32>) {
        let At::Text { text, .. } = &self.at else { return };
        let (names, used) = self.listed_names();
        for own in names.iter().filter(|own| used.is_some_and(|used| used.contains(&own.name))) {
            along(own.spelled.strip_prefix(text.as_slice()).unwrap_or_default(), vocabulary, mask, tokens);
        }
        tokens.sort_unstable();
        tokens.dedup();
    }

    /// Within a string: the tokens that go along items which have come, where few others are left.
    fn along_used(&self, vocabulary: &Vocabulary, mask: &SimpleVob, tokens: &mut Vec<u32>) {
        let At::Text { text, is_name: false, .. } = &self.at else { return };
        for i in (0..self.frames.len()).filter(|&i| self.frames[i].used.is_some()) {
            if self.room(i, false) == ENDLESS {
                continue;
            }
            for value in self.frames[i].used.iter().flat_map(Used::values) {
                let Some(Value::String(word)) = self.begun_part(value, i) else { continue };
                let spelled = Value::from(word.as_str()).to_string();
                let rest = spelled.as_bytes()[1..spelled.len() - 1].strip_prefix(text.as_slice());
                along(rest.unwrap_or_default(), vocabulary, mask, tokens);
            }
        }
        tokens.sort_unstable();
        tokens.dedup();
    }

    /// The scalar of `value` that is begun.
    fn begun_part<'v>(&self, value: &'v Value, i: usize) -> Option<&'v Value> {
        (i + 1..self.frames.len()).try_fold(value, |value, j| self.inner(value, j).flatten())
    }
}

/// Adds the tokens of `mask` that `bytes` begin with.
fn along(bytes: &[u8], vocabulary: &Vocabulary, mask: &SimpleVob, tokens: &mut Vec<u32>) {
    let trie = vocabulary.trie();
    let mut node = Some(trie.root());
    for &b in bytes {
        node = node.and_then(|node| trie.child_at_byte(node, b));
        tokens.extend(node.and_then(|node| node.token_id()).filter(|&id| mask.is_allowed(id)));
    }
}
