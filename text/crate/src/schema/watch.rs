//! Where an output has arrays whose items may not repeat, and how many values their items have. No grammar can say that
//! two texts differ, so tracker.rs follows the output.
//!
//! The values of items are counted where there are few. An object that may always have another property needs no count.
//!
//! followed.rs has the names that may not repeat.

use super::demands::{Demand, ANY, NOTHING};
use super::names::Fields;
use super::nodes::Node;
use super::numbers::{Kind, Number};
use super::shapes::{Items, Order, MAX_BITS};
use super::texts::Text;
use super::writer::Writer;
use super::Outcome;
use crate::watched::{ArrayShape, ListedName, Member, ObjectShape, Place, Shape, Watch};
use crate::words::{Words, ENDLESS};
use llguidance::derivre::RegexAst;
use std::collections::{BTreeMap, BTreeSet, HashMap};

const MAX_PLACES: usize = 5000;

/// What is found while the places and shapes are made.
#[derive(Default)]
struct Found {
    places: Vec<Place>,
    by_demands: HashMap<BTreeSet<Demand>, usize>,
    shapes: Vec<Shape>,
    by_demand: HashMap<Demand, usize>,
    leads: BTreeSet<Demand>,                 // to an array that is watched, or to names
    names: HashMap<Demand, Vec<ListedName>>, // of a demand's objects
    shared: BTreeSet<Demand>,                // whose names the grammar has to remember
}

fn is_watched(items: &Items) -> bool {
    matches!(items.kind, Order::Watched)
}

impl Writer<'_, '_> {
    /// None: no array is watched.
    pub fn watch(&mut self, top: Demand) -> Outcome<Option<Watch>> {
        let mut found = Found::default();
        let unlisted = if self.demands.has_watch { self.unlisted_names()? } else { None };
        let has_names = unlisted.is_some();
        if self.demands.has_watch && self.style.any_order {
            found.names = self.followed_names(unlisted.as_deref())?;
        }
        loop {
            let before = found.leads.len();
            for demand in self.order.iter().filter(|demand| self.some.contains(demand)) {
                self.demands.work.step()?;
                let node = &self.nodes[demand];
                let is_own = node.arrays.iter().any(|items| is_watched(items) && items.has_some(&self.some));
                if is_own
                    || found.names.contains_key(demand)
                    || node.demands().iter().any(|inner| found.leads.contains(inner))
                {
                    found.leads.insert(*demand);
                }
            }
            if found.leads.len() == before {
                break;
            }
        }
        if !has_names && !found.leads.contains(&top) {
            return Ok(None);
        }
        found.places.push(Place::default());
        let top = self.place(BTreeSet::from([top]), &mut found)?;
        for demand in found.names.keys().filter(|demand| !found.shared.contains(demand)) {
            let objects = self.nodes.get_mut(demand).into_iter().flat_map(|node| &mut node.objects);
            objects.flat_map(|fields| &mut fields.named).for_each(|own| own.is_followed = true);
        }
        Ok(Some(Watch { places: found.places, shapes: found.shapes, top, has_names }))
    }

    /// The place whose value fits one of these demands.
    fn place(&mut self, demands: BTreeSet<Demand>, found: &mut Found) -> Outcome<usize> {
        self.demands.work.step()?;
        if demands.is_disjoint(&found.leads) {
            return Ok(0);
        }
        if let Some(known) = found.by_demands.get(&demands) {
            return Ok(*known);
        }
        let own = found.places.len();
        if own >= MAX_PLACES {
            return Err(format!(
                "the schema is too large: over {MAX_PLACES} places lead to uniqueItems or to many names"
            ));
        }
        found.places.push(Place::default());
        found.by_demands.insert(demands.clone(), own);
        let names = self.place_names(&demands, found);
        let nodes: Vec<&Node> = demands.iter().map(|demand| &self.nodes[demand]).collect();
        let arrays: Vec<&Items> =
            nodes.iter().flat_map(|node| &node.arrays).filter(|items| items.has_some(&self.some)).collect();
        let objects: Vec<&Fields> =
            nodes.iter().flat_map(|node| &node.objects).filter(|fields| fields.has_some(&self.some)).collect();
        let first_demand = demands.first().copied().unwrap_or(NOTHING);
        let is_distinct = arrays.iter().any(|items| is_watched(items));
        let is_plain = |items: &&Items| matches!(items.kind, Order::Plain | Order::Watched);
        let mut kinds: BTreeSet<Demand> = BTreeSet::new();
        if is_distinct && arrays.iter().all(is_plain) {
            let own = arrays.iter().flat_map(|items| items.first.iter().chain([&items.rest]));
            kinds.extend(own.filter(|demand| self.some.contains(demand)));
        }
        let least = arrays.iter().map(|items| items.least).max().unwrap_or(0);
        let sets = self.inner_places(&arrays, &objects);
        let place = Place {
            first: sets.first.into_iter().map(|set| self.place(set, found)).collect::<Outcome<_>>()?,
            rest: self.place(sets.rest, found)?,
            distinct: match is_distinct {
                true => {
                    let items = self.distinct_items(&kinds, first_demand)?;
                    Some(self.items_shape(items, least, first_demand, found)?)
                }
                false => None,
            },
            named: sets
                .named
                .into_iter()
                .map(|(name, set)| Ok((name, self.place(set, found)?)))
                .collect::<Outcome<_>>()?,
            other: self.place(sets.other, found)?,
            names,
        };
        found.places[own] = place;
        Ok(own)
    }

    /// What the items of some arrays fit, where one array may not repeat an item. Which array the output becomes is not
    /// known, so none repeats one. With several kinds of items, there must always be another of each.
    fn distinct_items(&mut self, kinds: &BTreeSet<Demand>, place: Demand) -> Outcome<Demand> {
        let mut widest = kinds.iter().copied().find(|own| kinds.iter().all(|other| self.has_all_of(*own, *other)));
        for &demand in kinds.iter().filter(|demand| kinds.len() > 1 && **demand != ANY) {
            widest = if self.is_always_another(demand)? { widest } else { None };
        }
        let what = "uniqueItems: not supported where the value may also be an array of other items";
        widest.map_or_else(|| self.demands.fail_in(place, what.to_string()), Ok)
    }

    /// Whether whatever begins a scalar of `other` begins one of `own`, which has objects if `other` has some.
    fn has_all_of(&self, own: Demand, other: Demand) -> bool {
        if own == other || own == ANY {
            return true;
        }
        let [own, other] = [own, other].map(|demand| &self.nodes[&demand]);
        let has_any_text = own.texts.iter().any(|text| is_any(text) && text.most.is_none());
        other.numbers.iter().all(|number| own.numbers.contains(number) || own.numbers.contains(&Number::any()))
            && other.texts.iter().all(|text| has_any_text || own.texts.contains(text))
            && (other.objects.is_empty() || !own.objects.is_empty())
    }

    /// Whether there is always another value that fits a demand, whatever one begins with.
    fn is_always_another(&mut self, demand: Demand) -> Outcome<bool> {
        let node = self.nodes.remove(&demand).unwrap();
        let mut is = node.arrays.is_empty() && !node.is_false && !node.is_true && !node.null;
        is =
            is && node.numbers.iter().all(|number| *number == Number::any() || *number == Number::of_kind(Kind::Whole));
        for text in &node.texts {
            is = is && if is_any(text) { text.most.is_none() } else { self.words(text)?.stay_endless() };
        }
        for fields in &node.objects {
            is = is && self.is_open(fields)?;
        }
        self.nodes.insert(demand, node);
        Ok(is)
    }

    /// The names that the objects at a place list, where they are followed and no other object may stand there.
    fn place_names(&self, demands: &BTreeSet<Demand>, found: &mut Found) -> Vec<ListedName> {
        let has_object = |demand: &&Demand| self.nodes[demand].objects.iter().any(|fields| fields.has_some(&self.some));
        let is_one = demands.iter().filter(has_object).count() == 1;
        let mut listed = demands.iter().filter(|demand| found.names.contains_key(demand));
        if is_one {
            return listed.next().map_or(vec![], |demand| found.names[demand].clone());
        }
        let shared: Vec<Demand> = listed.copied().collect();
        found.shared.extend(shared);
        vec![]
    }

    /// What the items and properties fit.
    fn inner_places(&self, arrays: &[&Items], objects: &[&Fields]) -> Inner {
        let only = |demands: &mut dyn Iterator<Item = Demand>| -> BTreeSet<Demand> {
            demands.filter(|demand| self.some.contains(demand)).collect()
        };
        let length = arrays.iter().map(|items| items.first.len()).max().unwrap_or(0);
        let counted = |items: &&Items| match &items.kind {
            Order::Counted(counted) => counted.demands.clone(),
            _ => vec![],
        };
        let more: Vec<Demand> = arrays.iter().flat_map(counted).collect();
        let item = |i: usize| {
            let own = arrays.iter().map(|items| items.first.get(i).copied().unwrap_or(items.rest));
            only(&mut own.chain(more.iter().copied()))
        };
        let free = |fields: &Fields| -> Vec<Demand> { fields.unlisted().map(|own| own.demand).collect() };
        let mut named: BTreeMap<String, BTreeSet<Demand>> = BTreeMap::new();
        for name in objects.iter().flat_map(|fields| &fields.named).map(|own| &own.name) {
            let of = |fields: &&Fields| match fields.named.iter().find(|own| own.name == *name) {
                Some(own) => vec![own.demand],
                None => free(fields),
            };
            if !named.contains_key(&**name) {
                named.insert(name.to_string(), only(&mut objects.iter().flat_map(of)));
            }
        }
        Inner {
            first: (0..length).map(item).collect(),
            rest: item(length),
            named,
            other: only(&mut objects.iter().flat_map(|fields| free(fields))),
        }
    }

    /// The shape of an array's items, where there are values for the least items.
    fn items_shape(&mut self, demand: Demand, least: u64, array: Demand, found: &mut Found) -> Outcome<usize> {
        let shape = self.shape(demand, found).or_else(|error| self.demands.fail_in(array, error))?;
        if found.shapes[shape].count < least {
            let what = format!("uniqueItems: {} values are fewer than minItems", found.shapes[shape].count);
            return self.demands.fail_in(array, what);
        }
        Ok(shape)
    }

    fn shape(&mut self, demand: Demand, found: &mut Found) -> Outcome<usize> {
        self.demands.work.step()?;
        if let Some(known) = found.by_demand.get(&demand) {
            return Ok(*known);
        }
        let own = found.shapes.len();
        // What holds itself is endless.
        found.shapes.push(Shape { count: ENDLESS, ..Shape::default() });
        found.by_demand.insert(demand, own);
        let node = self.nodes.remove(&demand).unwrap();
        let shape = self.shape_of(&node, found);
        self.nodes.insert(demand, node);
        found.shapes[own] = shape?;
        if matches!(found.shapes[own].object, Some(ObjectShape::Closed { in_order: true, .. })) {
            found.shared.insert(demand); // its names keep their order
        }
        Ok(own)
    }

    fn shape_of(&mut self, node: &Node, found: &mut Found) -> Outcome<Shape> {
        let mut shape = self.scalars(node)?;
        let arrays: Vec<&Items> = node.arrays.iter().filter(|items| items.has_some(&self.some)).collect();
        let objects: Vec<&Fields> = node.objects.iter().filter(|fields| fields.has_some(&self.some)).collect();
        match arrays.as_slice() {
            [] => {}
            [items] => {
                let array = self.array_shape(items, found)?;
                shape.count = (shape.count + array.ways(0, &found.shapes)).min(ENDLESS);
                shape.array = Some(array);
            }
            _ => return Err("uniqueItems: not supported where an item has several kinds of arrays".to_string()),
        }
        let mut is_open = !objects.is_empty();
        for fields in &objects {
            is_open = is_open && self.is_open(fields)?;
        }
        match objects.as_slice() {
            [] => {}
            _ if is_open => (shape.object, shape.count) = (Some(ObjectShape::Open), ENDLESS),
            [fields] => {
                let (object, count) = self.closed_shape(fields, found)?;
                shape.count = (shape.count + count).min(ENDLESS);
                shape.object = Some(object);
            }
            _ => return Err("uniqueItems: not supported where an item has several kinds of objects".to_string()),
        }
        Ok(shape)
    }

    fn scalars(&mut self, node: &Node) -> Outcome<Shape> {
        let mut shape = Shape::default();
        let mut options = vec![];
        for (is, text) in [(node.null, "null"), (node.is_false, "false"), (node.is_true, "true")] {
            options.extend(is.then(|| RegexAst::Literal(text.to_string())));
        }
        for number in &node.numbers {
            match number.one_way() {
                Some(patterns) => options.extend(patterns.into_iter().map(RegexAst::Regex)),
                None if *number == Number::any() => shape.has_number = true,
                None => {
                    return Err("uniqueItems: not supported for numbers with a fraction that have bounds or multipleOf"
                        .to_string())
                }
            }
        }
        for text in &node.texts {
            options.push(self.demands.patterns.spelled(text, self.demands.work)?);
        }
        if !options.is_empty() {
            let words = self.demands.patterns.words(&RegexAst::Or(options), self.demands.work)?;
            shape.count = words.after(b"");
            shape.words = Some(words);
        }
        if shape.has_number {
            shape.count = ENDLESS;
        }
        Ok(shape)
    }

    fn array_shape(&mut self, items: &Items, found: &mut Found) -> Outcome<ArrayShape> {
        // Items that may not repeat are as free as others where there are always more of them.
        let is_free = match items.kind {
            Order::Plain => true,
            Order::Watched => {
                let shape = self.shape(items.rest, found)?;
                found.shapes[shape].count == ENDLESS
            }
            _ => false,
        };
        if !is_free {
            return Err("uniqueItems: not supported where items are arrays with contains or uniqueItems".to_string());
        }
        let listed = items.first.iter().take_while(|demand| self.is_some(**demand)).count();
        let is_whole = listed == items.first.len() && self.is_some(items.rest);
        let first = items.first[..listed].iter().map(|demand| self.shape(*demand, found)).collect::<Outcome<_>>()?;
        let rest = if is_whole && items.most != Some(0) { Some(self.shape(items.rest, found)?) } else { None };
        Ok(ArrayShape { first, rest, least: items.least, most: items.most.unwrap_or(u64::MAX) })
    }

    /// Whether another property may always come.
    fn is_open(&mut self, fields: &Fields) -> Outcome<bool> {
        if fields.num_needs > 0 || fields.most.is_some() {
            return Ok(false);
        }
        for free in &fields.free {
            if self.is_some(free.demand) && self.is_endless(&free.names)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether there are always more of these strings.
    fn is_endless(&mut self, text: &Text) -> Outcome<bool> {
        if is_any(text) {
            return Ok(text.most.is_none());
        }
        Ok(self.words(text)?.after(b"") == ENDLESS)
    }

    pub fn words(&mut self, text: &Text) -> Outcome<Words> {
        let ast = self.demands.patterns.spelled(text, self.demands.work)?;
        self.demands.patterns.words(&ast, self.demands.work)
    }

    fn closed_shape(&mut self, fields: &Fields, found: &mut Found) -> Outcome<(ObjectShape, u64)> {
        let required = fields.named.iter().filter(|own| own.is_required).count() as u64;
        let has_free = fields.free.iter().any(|own| self.is_some(own.demand));
        if has_free || fields.num_needs > 0 || fields.most.is_some() || fields.least > required {
            return Err("uniqueItems: not supported for objects whose properties are counted, or whose unlisted names are bounded".to_string());
        }
        let mut members = vec![];
        let mut count = 1u64;
        for own in &fields.named {
            if !self.is_some(own.demand) {
                continue;
            }
            let shape = self.shape(own.demand, found)?;
            let values = found.shapes[shape].count + u64::from(!own.is_required);
            count = count.saturating_mul(values).min(ENDLESS);
            members.push(Member { name: own.name.to_string(), shape, is_required: own.is_required });
        }
        let in_order = !self.style.any_order || members.len() > MAX_BITS;
        Ok((ObjectShape::Closed { members, in_order }, count))
    }
}

/// What the items and properties of a place fit.
struct Inner {
    first: Vec<BTreeSet<Demand>>,
    rest: BTreeSet<Demand>,
    named: BTreeMap<String, BTreeSet<Demand>>,
    other: BTreeSet<Demand>,
}

/// Whether it is all strings, perhaps of some lengths.
pub fn is_any(text: &Text) -> bool {
    text.fits.is_empty() && text.fits_not.is_empty() && text.only.is_none()
}
