//! Writes demands as a grammar in Lark: a rule for each demand that a value may have to fit.
//!
//!   {"type": "object", "properties": {"p": {"type": "integer"}}, "required": ["p"], "additionalProperties": false}
//!
//!   start: d2
//!   d2: "{" "\"p\"" ":" d3 "}"
//!   d3: S3
//!   S3: /-?(?:0|[1-9][0-9]*)/
//!
//! A demand that no value fits has no rule, and nothing that needs one is written. So what is begun can be ended.
//!
//! A rule with a parameter remembers which of some names or items have come: it has a bit for each.

use super::counts::Counted;
use super::demands::{Demand, Demands, NOTHING};
use super::multiples::MAX_COMBINED;
use super::nodes::{Bytes, Node};
use super::numbers::Kind;
use super::shapes::{Items, Order};
use super::texts::{lark_string, literal};
use super::Outcome;
use crate::watched::Watch;
use crate::work::TOO_LARGE;
use llguidance::HashMap;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// How JSON is written.
#[derive(Clone, Copy)]
pub struct Style {
    pub whitespace: i32, // BerthGrammarSpec's
    pub any_order: bool, // of properties
    pub has_watch: bool, // the value is the whole output
}

/// Bytes of a grammar.
const MAX_BYTES: usize = 4 << 20;
const MAX_DEMANDS: usize = 20_000;

pub struct Written {
    /// In Lark, beginning with `start`.
    pub rules: String,
    /// What may come once between two lexemes: whitespace.
    pub skip: Option<&'static str>,
    /// Whether rules have schemas in them, which llguidance reads.
    pub has_json: bool,
    /// The bytes that every value has.
    pub bytes: Bytes,
    pub watch: Option<Watch>,
}

pub struct Writer<'d, 'a> {
    pub demands: &'d mut Demands<'a>,
    pub style: Style,
    pub nodes: BTreeMap<Demand, Node>,
    pub order: Vec<Demand>, // of nodes: what a demand needs comes before it, except around a loop
    pub some: BTreeSet<Demand>, // that some value fits
    rules: String,
    terminals: HashMap<String, String>, // names by what they match
    next: usize,
    /// The least common multiple of all multipleOf: digits, and how many of them are after the point.
    pub multiple: (u64, u32),
    /// Whether names are followed, so that none comes twice in an object.
    pub has_names: bool,
    has_json: bool,
}

impl Written {
    /// The grammar as a text of its own, which llguidance reads.
    pub fn lark(&self) -> String {
        let skip = self.skip.map_or(String::new(), |pattern| format!("%ignore /{pattern}/\n"));
        format!("%llguidance {{\"ignore_once\": true}}\n{skip}{}", self.rules)
    }
}

/// The grammar of the values that fit a demand. None: no value does.
pub fn write(demands: &mut Demands, top: Demand, style: Style) -> Outcome<Option<Written>> {
    let writer = Writer {
        demands,
        style,
        nodes: BTreeMap::new(),
        order: vec![],
        some: BTreeSet::new(),
        rules: String::new(),
        terminals: HashMap::default(),
        next: 0,
        multiple: (1, 0),
        has_names: false,
        has_json: false,
    };
    writer.run(top)
}

impl Writer<'_, '_> {
    fn run(mut self, top: Demand) -> Outcome<Option<Written>> {
        // Twice on the stack: before what it needs, and after.
        let mut open = vec![(top, false)];
        while let Some((demand, is_done)) = open.pop() {
            if is_done {
                self.order.push(demand);
                continue;
            }
            if demand == NOTHING || self.nodes.contains_key(&demand) {
                continue;
            }
            self.demands.work.step()?;
            if self.nodes.len() >= MAX_DEMANDS {
                return Err(format!("the schema is too large: over {MAX_DEMANDS} combinations of its parts"));
            }
            let node = self.node(demand)?;
            open.push((demand, true));
            open.extend(node.demands().into_iter().map(|demand| (demand, false)));
            self.nodes.insert(demand, node);
        }
        self.find_some()?;
        if !self.some.contains(&top) {
            return Ok(None);
        }
        let bytes = self.bytes(top)?;
        let watch = self.watch(top)?;
        self.has_names = watch.as_ref().is_some_and(|watch| watch.has_names);
        let mut open = vec![top];
        let mut written = BTreeSet::new();
        while let Some(demand) = open.pop() {
            if written.insert(demand) {
                self.rule(demand)?;
                let node = &self.nodes[&demand];
                open.extend(node.demands().into_iter().filter(|demand| self.some.contains(demand)));
            }
        }
        let rules = format!("start: d{}\n{}", top.0, self.rules);
        let skip = (self.style.whitespace == 0).then_some(r"[ \t\n\r]+");
        Ok(Some(Written { rules, skip, has_json: self.has_json, bytes, watch }))
    }

    fn node(&mut self, demand: Demand) -> Outcome<Node> {
        let values = self.demands.values(demand)?;
        let mut node = Node {
            null: values.null,
            is_false: values.is_false,
            is_true: values.is_true,
            numbers: values.numbers.iter().filter(|set| !set.is_empty()).cloned().collect(),
            texts: vec![],
            arrays: vec![],
            objects: vec![],
        };
        for set in &values.texts {
            if !self.demands.patterns.is_empty(set, self.demands.work)? {
                node.texts.push(set.clone());
            }
        }
        for array in values.arrays.iter().filter(|array| array.most.is_none_or(|most| array.least <= most)) {
            node.arrays.push(self.demands.items(array).or_else(|error| self.demands.fail_in(demand, error))?);
        }
        for object in &values.objects {
            node.objects.extend(self.demands.fields(object).or_else(|error| self.demands.fail_in(demand, error))?);
        }
        Ok(node)
    }

    /// Finds the demands that some value fits, from those up that need no other.
    fn find_some(&mut self) -> Outcome<()> {
        loop {
            let before = self.some.len();
            for &demand in &self.order {
                self.demands.work.small_steps(self.nodes[&demand].size())?;
                if !self.some.contains(&demand) && self.nodes[&demand].has_some(&self.some) {
                    self.some.insert(demand);
                }
            }
            if self.some.len() == before {
                return Ok(());
            }
        }
    }

    pub fn is_some(&self, demand: Demand) -> bool {
        self.some.contains(&demand)
    }

    pub fn add(&mut self, name: &str, options: &[String]) -> Outcome<()> {
        let options: Vec<&str> =
            options.iter().map(|text| if text.trim().is_empty() { "\"\"" } else { text }).collect();
        writeln!(self.rules, "{name}: {}", options.join("\n  | ")).unwrap();
        options.iter().try_for_each(|option| self.demands.work.text(option))?;
        if self.rules.len() > MAX_BYTES {
            return Err(TOO_LARGE.to_string());
        }
        Ok(())
    }

    pub fn fresh(&mut self, kind: &str) -> String {
        self.next += 1;
        format!("{kind}{}", self.next)
    }

    /// A terminal of what one of these matches.
    pub fn terminal(&mut self, options: &[String]) -> String {
        let text = options.join("\n  | ");
        let next = self.terminals.len();
        let rules = &mut self.rules;
        self.terminals
            .entry(text)
            .or_insert_with_key(|text| {
                let name = format!("S{next}");
                writeln!(rules, "{name}: {text}").unwrap();
                name
            })
            .clone()
    }

    pub fn num_terminals(&self) -> usize {
        self.terminals.len()
    }

    pub fn comma(&self) -> &'static str {
        if self.style.whitespace == 2 {
            "\", \""
        } else {
            "\",\""
        }
    }

    pub fn colon(&self) -> &'static str {
        if self.style.whitespace == 2 {
            "\": \""
        } else {
            "\":\""
        }
    }

    fn rule(&mut self, demand: Demand) -> Outcome<()> {
        let node = self.nodes.remove(&demand).unwrap();
        let mut options = vec![];
        let mut scalars: Vec<String> = vec![];
        for (is, text) in [(node.null, "null"), (node.is_false, "false"), (node.is_true, "true")] {
            scalars.extend(is.then(|| lark_string(text)));
        }
        for number in &node.numbers {
            if !number.has_multiples() {
                scalars.extend(number.terminals());
                continue;
            }
            if !self.takes_multiples(number) {
                let Some(few) = number.few().filter(|few| !few.is_empty()) else {
                    let what = "multipleOf: those of the schema have no common multiple up to";
                    return self.demands.fail_in(demand, format!("{what} {MAX_COMBINED}, the decimal point left out"));
                };
                scalars.extend(number.listed_terminals(&few));
                continue;
            }
            // llguidance writes 0.50 for a multiple of 0.25, and not 0.5.
            let schemas = number.schemas();
            let is_easy = number.kind == Kind::Any && Self::has_easy_multiples(number);
            if schemas.is_none() || is_easy || number.multiples.iter().any(|of| of.fract() != 0.0) {
                if let Some(own) = self.multiples(number)? {
                    scalars.extend(own);
                    continue;
                }
            }
            let Some(schemas) = schemas else {
                let what =
                    "multipleOf: too large, or with too small a fraction, for numbers that must not be multiples";
                return self.demands.fail_in(demand, what.to_string());
            };
            for schema in schemas {
                let name = self.fresh("n");
                self.add(&name, &[format!("%json {schema}")])?;
                self.has_json = true;
                options.push(name);
            }
        }
        for text in &node.texts {
            let terminal = self.demands.patterns.terminal(text, self.demands.work)?;
            scalars.push(terminal);
        }
        if !scalars.is_empty() {
            options.push(self.terminal(&scalars));
        }
        for items in &node.arrays {
            if !items.has_some(&self.some) {
                continue;
            }
            let text = self.items(items).or_else(|error| self.demands.fail_in(demand, error))?;
            options.push(format!("\"[\" {text} \"]\""));
        }
        for fields in &node.objects {
            if !fields.has_some(&self.some) {
                continue;
            }
            let text = self.fields(fields).or_else(|error| self.demands.fail_in(demand, error))?;
            options.push(format!("\"{{\" {text} \"}}\""));
        }
        self.nodes.insert(demand, node);
        self.add(&format!("d{}", demand.0), &options)
    }

    fn items(&mut self, items: &Items) -> Outcome<String> {
        match &items.kind {
            Order::Plain | Order::Watched => self.plain_items(items),
            Order::Unique(values) => self.unique_items(items, values),
            Order::Counted(counted) => self.counted_items(counted),
        }
    }

    /// Each item after the least ones may be the last.
    fn plain_items(&mut self, items: &Items) -> Outcome<String> {
        if items.least > MAX_COUNT {
            return Err(format!("minItems: at most {MAX_COUNT} is supported"));
        }
        let comma = self.comma();
        let most = items.most.unwrap_or(u64::MAX);
        let listed = items.first.iter().take_while(|demand| self.is_some(**demand)).count().min(most as usize);
        let mut text = String::new();
        if listed == items.first.len() && self.is_some(items.rest) {
            let rest = format!("d{}", items.rest.0);
            let (from, to) = (items.least.saturating_sub(listed as u64), items.most.map(|most| most - listed as u64));
            text = if listed > 0 {
                repeated(&format!("{comma} {rest}"), from, to)
            } else if to == Some(0) {
                String::new()
            } else {
                let more = repeated(&format!("{comma} {rest}"), from.saturating_sub(1), to.map(|to| to - 1));
                if from == 0 {
                    format!("({rest} {more})?")
                } else {
                    format!("{rest} {more}")
                }
            };
        }
        // Rules of their own, so that none has too many brackets.
        for (i, demand) in items.first[..listed].iter().enumerate().rev() {
            let own = format!("{} d{} {text}", if i > 0 { comma } else { "" }, demand.0);
            text = if (i as u64) < items.least { own } else { format!("({own})?") };
            if i % 16 == 15 {
                let name = self.fresh("i");
                self.add(&name, &[text])?;
                text = name;
            }
        }
        Ok(text)
    }

    /// A value as a rule's terms, with whitespace where it may be.
    fn literal(&self, value: &Value) -> String {
        let list = |open: &str, items: Vec<String>, close: &str| {
            format!("{} {} {}", lark_string(open), items.join(&format!(" {} ", self.comma())), lark_string(close))
        };
        match value {
            Value::Array(items) => list("[", items.iter().map(|item| self.literal(item)).collect(), "]"),
            Value::Object(items) => {
                let item = |(name, item): (&String, &Value)| {
                    format!("{} {} {}", literal(name), self.colon(), self.literal(item))
                };
                list("{", items.iter().map(item).collect(), "}")
            }
            value => lark_string(&value.to_string()),
        }
    }

    fn unique_items(&mut self, items: &Items, values: &[Value]) -> Outcome<String> {
        let comma = self.comma();
        let name = self.fresh("u");
        let most = items.most.map_or(values.len(), |most| (most as usize).min(values.len()));
        let mut rest = vec![format!("\"\" %if {}", bit_count("ge", items.least.max(1)))];
        let mut first = vec![];
        for (i, value) in values.iter().enumerate() {
            let value = self.literal(value);
            let room = bit_count("lt", most as u64);
            rest.push(format!("{comma} {value} {name}::set_bit({i}) %if and(bit_clear({i}), {room})"));
            first.push(format!("{value} {name}::{:#x}", 1u64 << i));
        }
        self.add(&format!("{name}::_"), &rest)?;
        let first = format!("({})", first.join(" | "));
        Ok(if items.least == 0 { format!("{first}?") } else { first })
    }

    /// A rule for each state that the array can be ended from.
    fn counted_items(&mut self, counted: &Counted) -> Outcome<String> {
        let prefix = self.fresh("c");
        let live = counted.live(&self.some);
        for (i, state) in counted.states.iter().enumerate().filter(|(i, _)| live[*i]) {
            let comma = if i > 0 { self.comma() } else { "" };
            let mut options = vec![];
            options.extend(state.can_end.then(String::new));
            let mut before = String::new();
            for (demands, next) in &state.steps {
                let own: Vec<String> =
                    demands.iter().filter(|own| self.is_some(**own)).map(|own| format!("d{}", own.0)).collect();
                if own.is_empty() || !live[*next] {
                    continue;
                }
                let item = format!("{comma} ({})", own.join(" | "));
                if *next == i {
                    before = format!("({item})*");
                } else {
                    options.push(format!("{item} {prefix}x{next}"));
                }
            }
            options.iter_mut().for_each(|option| *option = format!("{before} {option}"));
            self.add(&format!("{prefix}x{i}"), &options)?;
        }
        Ok(format!("{prefix}x0"))
    }

    /// The least sets that agree with each other, found by going over the demands until none changes.
    fn bytes(&self, top: Demand) -> Outcome<Bytes> {
        let mut known: HashMap<Demand, Bytes> = HashMap::default();
        loop {
            let mut has_changed = false;
            for &demand in self.order.iter().filter(|demand| self.some.contains(demand)) {
                self.demands.work.small_steps(self.nodes[&demand].size())?;
                let bytes = self.nodes[&demand].bytes(&known, &self.some);
                has_changed |= known.insert(demand, bytes).unwrap_or([false; 256]) != bytes;
            }
            if !has_changed {
                return Ok(known[&top]);
            }
        }
    }
}

pub fn all(conditions: &[String]) -> String {
    match conditions {
        [one] => one.clone(),
        [first, rest @ ..] => format!("and({first}, {})", all(rest)),
        [] => "true".to_string(),
    }
}

pub fn or_empty(text: &str) -> &str {
    if text.trim().is_empty() {
        "\"\""
    } else {
        text
    }
}

/// More items or properties than these do not fit an output.
const MAX_COUNT: u64 = 1 << 30;

/// A condition on the number of bits that are set: "lt", "eq" or "ge". llguidance reads numbers up to 63 there.
pub fn bit_count(compare: &str, count: u64) -> String {
    match (compare, count) {
        ("lt", 64) => "not(is_ones(_))".to_string(),
        (_, 64) => "is_ones(_)".to_string(),
        _ => format!("bit_count_{compare}(_, {count})"),
    }
}

/// A part that comes at least `from` times and at most `to` times.
pub fn repeated(part: &str, from: u64, to: Option<u64>) -> String {
    match (from, to) {
        (_, Some(0)) => String::new(),
        (0, None) => format!("({part})*"),
        (1, Some(1)) => part.to_string(),
        (from, Some(to)) if to > MAX_COUNT => repeated(part, from, None),
        (from, None) => format!("({part}){{{from},}}"),
        (from, Some(to)) => format!("({part}){{{from},{to}}}"),
    }
}
