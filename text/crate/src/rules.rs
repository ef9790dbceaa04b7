//! Builds llguidance's grammar from the rules that schema/ writes in Lark.
//!
//! llguidance reads Lark too, but prepares a lexer of Lark for each text. That takes half of the time in which the
//! grammar of a usual schema is compiled. Here each name is one symbol, and its options are the symbol's rules; a
//! bracket or a repetition is a symbol without a name:
//!
//!   d2: "{" (d3 "," )? d4 "}"    ->    d2 = A #1 d4 C,  #1 = nothing,  #1 = d3 B    (A, B, C: lexemes)
//!
//! Equal lexemes are one symbol. Only what `start` leads to is built. A rule with a parameter is `name::_` where it is
//! defined, and `name::` with the value of its parameter where it is used.

use crate::constraint::message;
use crate::work::Work;
use llguidance::api::{ParserLimits, SkipSpec};
use llguidance::derivre::{ExprRef, RegexAst};
use llguidance::earley::lexerspec::{LexemeClass, LexerSpec};
use llguidance::earley::{BitIdx, Grammar, ParamCond, ParamExpr, ParamRef, ParamValue, SymIdx, SymbolProps};
use llguidance::HashMap;

/// Repetitions up to here are written out; longer ones are made of blocks of BLOCK.
const WRITTEN_OUT: u64 = 8;
const BLOCK: u64 = 4;
/// Choices of all rules together: about as many as llguidance's reader of Lark has symbols for. A mask looks at the
/// choices of every rule that may come, so that more of them could take a mask over half a second.
const MAX_CHOICES: usize = 34_500;

/// A symbol, and its parameter.
type Item = (SymIdx, ParamExpr);
struct Choice {
    condition: ParamCond,
    items: Vec<Item>,
}

struct Definition<'t> {
    has_parameter: bool,
    text: &'t str,
}

/// What is left of a definition's text.
struct Cursor<'t>(&'t str);

struct Builder<'t> {
    limits: &'t ParserLimits,
    work: &'t Work,
    definitions: HashMap<&'t str, Definition<'t>>,
    grammar: Grammar,
    num_choices: usize,
    lexer: LexerSpec,
    class: LexemeClass,
    rules: HashMap<&'t str, SymIdx>,
    open: Vec<&'t str>, // rules that have a symbol, and no options yet
    terminals: HashMap<&'t str, ExprRef>,
    lexemes: HashMap<ExprRef, SymIdx>,
    repeated: HashMap<(SymIdx, u64, Option<u64>), SymIdx>, // of symbols without a parameter
}

/// Builds what `start` leads to. `skip`: the pattern of what may come once between two lexemes.
pub fn build(
    text: &str,
    skip: Option<&str>,
    limits: &ParserLimits,
    work: &Work,
) -> Result<(Grammar, LexerSpec), String> {
    let mut lexer = LexerSpec::new().map_err(message)?;
    lexer.regex_builder.unicode(true).utf8(true).reserve(text.len() / 8);
    let skip = skip.map_or(RegexAst::NoMatch, |pattern| RegexAst::Regex(pattern.to_string()));
    let class = lexer.setup_lexeme_class_with_skip(SkipSpec::once(skip)).map_err(message)?;
    let mut builder = Builder {
        limits,
        work,
        definitions: definitions(text, work)?,
        grammar: Grammar::new(None),
        num_choices: 0,
        lexer,
        class,
        rules: HashMap::default(),
        open: vec![],
        terminals: HashMap::default(),
        lexemes: HashMap::default(),
        repeated: HashMap::default(),
    };
    let (start, _) = builder.rule("start", ParamExpr::Null)?;
    builder.grammar.sym_props_mut(start).is_start = true;
    while let Some(name) = builder.open.pop() {
        builder.define(name)?;
    }
    Ok((builder.grammar, builder.lexer))
}

fn internal<T>(what: impl std::fmt::Display) -> Result<T, String> {
    Err(format!("internal error: {what}"))
}

/// The end of the string or pattern that `text` begins with.
fn quoted_end(text: &str) -> Result<usize, String> {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != bytes[0] {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    if at < bytes.len() {
        Ok(at + 1)
    } else {
        internal("a string of a rule has no end")
    }
}

/// The definitions by their names. A line that begins with a space continues the one before.
fn definitions<'t>(text: &'t str, work: &Work) -> Result<HashMap<&'t str, Definition<'t>>, String> {
    let mut all = HashMap::default();
    let mut rest = text;
    while !rest.is_empty() {
        let Some((name, after)) = rest.split_once(':') else {
            return internal(format_args!("a rule without a colon: {rest}"));
        };
        let (has_parameter, body) = after.strip_prefix(":_:").map_or((false, after), |body| (true, body));
        let bytes = body.as_bytes();
        let mut end = 0;
        while end < bytes.len() && (bytes[end] != b'\n' || bytes.get(end + 1) == Some(&b' ')) {
            end += if matches!(bytes[end], b'"' | b'/') { quoted_end(&body[end..])? } else { 1 };
        }
        let text = &body[..end];
        work.text(text)?;
        if all.insert(name, Definition { has_parameter, text }).is_some() {
            return internal(format_args!("two rules {name}"));
        }
        rest = body.get(end + 1..).unwrap_or("");
    }
    Ok(all)
}

impl<'t> Cursor<'t> {
    fn peek(&mut self) -> Option<u8> {
        self.0 = self.0.trim_start_matches([' ', '\n']);
        self.0.bytes().next()
    }

    fn take(&mut self, mark: &str) -> bool {
        self.peek();
        self.0.strip_prefix(mark).map(|rest| self.0 = rest).is_some()
    }

    fn expect(&mut self, mark: &str) -> Result<(), String> {
        if self.take(mark) {
            Ok(())
        } else {
            internal(format_args!("{mark} is missing before {:?}", &self.0.chars().take(20).collect::<String>()))
        }
    }

    fn split(&mut self, at: usize) -> &'t str {
        let (head, rest) = self.0.split_at(at);
        self.0 = rest;
        head
    }

    fn name(&mut self) -> &'t str {
        self.peek();
        let end = self.0.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        self.split(end.unwrap_or(self.0.len()))
    }

    fn number(&mut self) -> Result<u64, String> {
        let digits = self.name();
        let number = match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        number.or_else(|_| internal(format_args!("{digits:?} is no number")))
    }

    /// The number of a bit, or of bits: `most` at the most.
    fn bits(&mut self, most: usize) -> Result<BitIdx, String> {
        match self.number()? {
            bits if bits <= most as u64 => Ok(bits as BitIdx),
            bits => internal(format_args!("a parameter has no bit {bits}")),
        }
    }

    fn bit(&mut self) -> Result<BitIdx, String> {
        self.bits(ParamValue::NUM_BITS - 1)
    }

    /// `_`, or some of its bits: `[from:to]`.
    fn part(&mut self) -> Result<ParamRef, String> {
        if self.take("_") {
            return Ok(ParamRef::full());
        }
        self.expect("[")?;
        let from = self.bit()?;
        self.expect(":")?;
        let to = self.bits(ParamValue::NUM_BITS)?;
        self.expect("]")?;
        if from < to {
            Ok(ParamRef::new(from, to))
        } else {
            internal("a part of a parameter has no bit")
        }
    }

    /// The value of a parameter where a rule is used.
    fn value(&mut self) -> Result<ParamExpr, String> {
        if self.peek().is_some_and(|b| b.is_ascii_digit()) {
            return Ok(ParamExpr::Const(ParamValue(self.number()?)));
        }
        let name = self.name();
        if name == "_" {
            return Ok(ParamExpr::SelfRef);
        }
        self.expect("(")?;
        let value = match name {
            "incr" => ParamExpr::Incr(self.part()?),
            "decr" => ParamExpr::Decr(self.part()?),
            "bit_and" => ParamExpr::BitAnd(ParamValue(self.number()?)),
            "bit_or" => ParamExpr::BitOr(ParamValue(self.number()?)),
            "set_bit" => ParamExpr::BitOr(ParamValue(1 << self.bit()?)),
            "clear_bit" => ParamExpr::BitAnd(ParamValue(!(1 << self.bit()?))),
            _ => return internal(format_args!("{name:?} gives a parameter no value")),
        };
        self.expect(")")?;
        Ok(value)
    }

    fn condition(&mut self) -> Result<ParamCond, String> {
        let name = self.name();
        self.expect("(")?;
        let condition = match name {
            "and" | "or" => {
                let one = Box::new(self.condition()?);
                self.expect(",")?;
                let other = Box::new(self.condition()?);
                if name == "and" {
                    ParamCond::And(one, other)
                } else {
                    ParamCond::Or(one, other)
                }
            }
            "not" => ParamCond::Not(Box::new(self.condition()?)),
            "bit_clear" => ParamCond::EQ(ParamRef::single_bit(self.bit()?), ParamValue(0)),
            "bit_set" => ParamCond::EQ(ParamRef::single_bit(self.bit()?), ParamValue(1)),
            "is_zeros" => ParamCond::EQ(self.part()?, ParamValue(0)),
            "is_ones" => {
                let part = self.part()?;
                ParamCond::EQ(part, ParamValue(part.mask() >> part.start()))
            }
            _ => self.comparison(name)?,
        };
        self.expect(")")?;
        Ok(condition)
    }

    fn comparison(&mut self, name: &str) -> Result<ParamCond, String> {
        let part = self.part()?;
        self.expect(",")?;
        if let Some(name) = name.strip_prefix("bit_count_") {
            let make = match name {
                "eq" => ParamCond::BitCountEQ,
                "ne" => ParamCond::BitCountNE,
                "lt" => ParamCond::BitCountLT,
                "le" => ParamCond::BitCountLE,
                "gt" => ParamCond::BitCountGT,
                "ge" => ParamCond::BitCountGE,
                _ => return internal(format_args!("bit_count_{name} is no condition")),
            };
            return Ok(make(part, self.bits(ParamValue::NUM_BITS)?));
        }
        let make = match name {
            "eq" => ParamCond::EQ,
            "ne" => ParamCond::NE,
            "lt" => ParamCond::LT,
            "le" => ParamCond::LE,
            "gt" => ParamCond::GT,
            "ge" => ParamCond::GE,
            _ => return internal(format_args!("{name:?} is no condition")),
        };
        Ok(make(part, ParamValue(self.number()?)))
    }

    /// How often what was before comes: from, to (None: without end). None: once, and nothing is said.
    fn times(&mut self) -> Result<Option<(u64, Option<u64>)>, String> {
        for (mark, times) in [("?", (0, Some(1))), ("*", (0, None)), ("+", (1, None))] {
            if self.take(mark) {
                return Ok(Some(times));
            }
        }
        if !self.take("{") {
            return Ok(None);
        }
        let from = self.number()?;
        let mut to = Some(from);
        if self.take(",") {
            to = if self.peek() == Some(b'}') { None } else { Some(self.number()?) };
        }
        self.expect("}")?;
        Ok(Some((from, to)))
    }

    /// The text of a string in quotes.
    fn string(&mut self) -> Result<String, String> {
        let quoted = self.split(quoted_end(self.0)?);
        serde_json::from_str(quoted).or_else(|error| internal(format_args!("{quoted}: {error}")))
    }

    /// The pattern between slashes.
    fn pattern(&mut self) -> Result<&'t str, String> {
        let quoted = self.split(quoted_end(self.0)?);
        Ok(&quoted[1..quoted.len() - 1])
    }
}

fn needs_parameter(items: &[Item]) -> bool {
    items.iter().any(|(_, value)| value.needs_param())
}

impl<'t> Builder<'t> {
    fn check_limits(&self) -> Result<(), String> {
        self.work.step()?;
        let fuel = self.limits.initial_lexer_fuel;
        if self.lexer.cost() > fuel {
            return Err(format!("the grammar's strings and patterns take over {fuel} steps to prepare"));
        }
        let most = self.limits.max_grammar_size;
        if self.grammar.num_symbols() > most {
            return Err(format!("the grammar has over {most} symbols"));
        }
        Ok(())
    }

    fn symbol(&mut self, name: &str, parametric: bool) -> SymIdx {
        let props = SymbolProps { grammar_id: self.class, parametric, ..Default::default() };
        self.grammar.fresh_symbol_ext(name, props)
    }

    fn add(&mut self, symbol: SymIdx, condition: ParamCond, items: Vec<Item>) -> Result<(), String> {
        self.num_choices += 1;
        if self.num_choices > MAX_CHOICES {
            return Err(format!("the grammar has over {MAX_CHOICES} choices"));
        }
        self.grammar.add_rule_ext(symbol, condition, items).or_else(internal)
    }

    fn definition(&self, name: &str) -> Result<&Definition<'t>, String> {
        self.definitions.get(name).map_or_else(|| internal(format_args!("no rule {name}")), Ok)
    }

    fn rule(&mut self, name: &'t str, value: ParamExpr) -> Result<Item, String> {
        if let Some(symbol) = self.rules.get(name) {
            return Ok((*symbol, value));
        }
        let has_parameter = self.definition(name)?.has_parameter;
        let symbol = self.symbol(name, has_parameter);
        self.rules.insert(name, symbol);
        self.open.push(name);
        Ok((symbol, value))
    }

    fn define(&mut self, name: &'t str) -> Result<(), String> {
        self.check_limits()?;
        let mut at = Cursor(self.definition(name)?.text);
        let choices = self.choices(&mut at)?;
        if at.peek().is_some() {
            return internal(format_args!("{name}: {:?} follows its end", at.0));
        }
        for choice in choices {
            self.add(self.rules[name], choice.condition, choice.items)?;
        }
        Ok(())
    }

    fn choices(&mut self, at: &mut Cursor<'t>) -> Result<Vec<Choice>, String> {
        let mut choices = vec![];
        loop {
            let mut items = vec![];
            while !matches!(at.peek(), None | Some(b'|' | b')' | b'%')) {
                items.extend(self.element(at)?);
            }
            let condition = if at.take("%if") { at.condition()? } else { ParamCond::True };
            choices.push(Choice { condition, items });
            if !at.take("|") {
                return Ok(choices);
            }
        }
    }

    /// None: the empty string.
    fn element(&mut self, at: &mut Cursor<'t>) -> Result<Option<Item>, String> {
        let item = match at.peek() {
            Some(b'(') => {
                at.take("(");
                let choices = self.choices(at)?;
                at.expect(")")?;
                self.group(choices)?
            }
            Some(b'a'..=b'z') => {
                let name = at.name();
                let value = if at.0.starts_with("::") {
                    at.split(2);
                    at.value()?
                } else {
                    ParamExpr::Null
                };
                Some(self.rule(name, value)?)
            }
            _ => {
                let expression = self.atom(at)?;
                if expression == ExprRef::EMPTY_STRING {
                    None
                } else {
                    Some((self.lexeme(expression)?, ParamExpr::Null))
                }
            }
        };
        match (item, at.times()?) {
            (Some(item), Some((from, to))) => self.repeat(item, from, to),
            (item, _) => Ok(item),
        }
    }

    /// What one of the choices is.
    fn group(&mut self, mut choices: Vec<Choice>) -> Result<Option<Item>, String> {
        if let [Choice { condition: ParamCond::True, items }] = &mut choices[..] {
            if items.len() <= 1 {
                return Ok(items.pop());
            }
        }
        let parametric = choices.iter().any(|own| !own.condition.is_true() || needs_parameter(&own.items));
        let symbol = self.symbol("", parametric);
        for choice in choices {
            self.add(symbol, choice.condition, choice.items)?;
        }
        Ok(Some((symbol, self.grammar.sym_props(symbol).neutral_param())))
    }

    fn sequence(&mut self, items: Vec<Item>) -> Result<Option<Item>, String> {
        self.group(vec![Choice { condition: ParamCond::True, items }])
    }

    fn any(&mut self, options: Vec<Vec<Item>>) -> Result<Option<Item>, String> {
        self.group(options.into_iter().map(|items| Choice { condition: ParamCond::True, items }).collect())
    }

    fn repeat(&mut self, item: Item, from: u64, to: Option<u64>) -> Result<Option<Item>, String> {
        if to == Some(0) {
            return Ok(None);
        }
        let key = item.1.is_null().then_some((item.0, from, to));
        if let Some(symbol) = key.and_then(|key| self.repeated.get(&key)) {
            return Ok(Some((*symbol, ParamExpr::Null)));
        }
        let repeated = match to {
            None => {
                let loops = self.endless(item.clone())?;
                match self.exactly(item, from)? {
                    Some(first) => self.sequence(vec![first, loops])?,
                    None => Some(loops),
                }
            }
            Some(to) => {
                let first = self.exactly(item.clone(), from)?;
                let more = self.at_most(item, to.saturating_sub(from))?;
                self.sequence(first.into_iter().chain(more).collect())?
            }
        };
        if let (Some(key), Some((symbol, _))) = (key, &repeated) {
            self.repeated.insert(key, *symbol);
        }
        Ok(repeated)
    }

    fn endless(&mut self, item: Item) -> Result<Item, String> {
        let symbol = self.symbol("", item.1.needs_param());
        let own = (symbol, self.grammar.sym_props(symbol).neutral_param());
        self.add(symbol, ParamCond::True, vec![])?;
        self.add(symbol, ParamCond::True, vec![own.clone(), item])?;
        Ok(own)
    }

    /// A long one is blocks of blocks, so that the rules grow with the number's digits.
    fn exactly(&mut self, item: Item, count: u64) -> Result<Option<Item>, String> {
        if count <= WRITTEN_OUT {
            return self.sequence(vec![item; count as usize]);
        }
        let Some(block) = self.sequence(vec![item.clone(); BLOCK as usize])? else { return Ok(None) };
        let blocks = self.exactly(block, count / BLOCK)?;
        let rest = vec![item; (count % BLOCK) as usize];
        self.sequence(rest.into_iter().chain(blocks).collect())
    }

    /// A long one is fewer blocks than fit and less than a block, or all blocks that fit and what is left over.
    fn at_most(&mut self, item: Item, count: u64) -> Result<Option<Item>, String> {
        if count == 0 {
            return Ok(None);
        }
        if count <= WRITTEN_OUT {
            return self.any((0..=count).map(|own| vec![item.clone(); own as usize]).collect());
        }
        let Some(block) = self.sequence(vec![item.clone(); BLOCK as usize])? else { return Ok(None) };
        let fewer = [self.at_most(block.clone(), count / BLOCK - 1)?, self.at_most(item.clone(), BLOCK - 1)?];
        let all = [self.exactly(block, count / BLOCK)?, self.at_most(item, count % BLOCK)?];
        self.any([fewer, all].map(|parts| parts.into_iter().flatten().collect()).into())
    }

    fn lexeme(&mut self, expression: ExprRef) -> Result<SymIdx, String> {
        if let Some(symbol) = self.lexemes.get(&expression) {
            return Ok(*symbol);
        }
        let ast = RegexAst::ExprRef(expression);
        let lexeme = self.lexer.add_greedy_lexeme(String::new(), ast, false, None, usize::MAX).or_else(internal)?;
        let symbol = self.symbol("", false);
        self.grammar.make_terminal(symbol, lexeme, &self.lexer).or_else(internal)?;
        self.lexemes.insert(expression, symbol);
        Ok(symbol)
    }

    fn terminal(&mut self, name: &'t str) -> Result<ExprRef, String> {
        if let Some(expression) = self.terminals.get(name) {
            return Ok(*expression);
        }
        let mut at = Cursor(self.definition(name)?.text);
        let expression = self.expression(&mut at)?;
        if at.peek().is_some() {
            return internal(format_args!("{name}: {:?} follows its end", at.0));
        }
        self.terminals.insert(name, expression);
        Ok(expression)
    }

    fn make(&mut self, ast: RegexAst) -> Result<ExprRef, String> {
        self.lexer.regex_builder.mk(&ast).map_err(message)
    }

    fn of_all(&mut self, mut parts: Vec<ExprRef>, make: fn(Vec<RegexAst>) -> RegexAst) -> Result<ExprRef, String> {
        if parts.len() == 1 {
            return Ok(parts.remove(0));
        }
        self.make(make(parts.into_iter().map(RegexAst::ExprRef).collect()))
    }

    /// A terminal's options: what all parts of one of them match.
    fn expression(&mut self, at: &mut Cursor<'t>) -> Result<ExprRef, String> {
        self.check_limits()?;
        let mut options = vec![];
        loop {
            let mut all = vec![];
            loop {
                let mut parts = vec![];
                while !matches!(at.peek(), None | Some(b'|' | b'&' | b')')) {
                    parts.push(self.factor(at)?);
                }
                all.push(self.of_all(parts, RegexAst::Concat)?);
                if !at.take("&") {
                    break;
                }
            }
            options.push(self.of_all(all, RegexAst::And)?);
            if !at.take("|") {
                return self.of_all(options, RegexAst::Or);
            }
        }
    }

    fn factor(&mut self, at: &mut Cursor<'t>) -> Result<ExprRef, String> {
        let expression = self.atom(at)?;
        match at.times()? {
            None => Ok(expression),
            Some((from, to)) => {
                let [from, to] = [from, to.unwrap_or(u64::MAX)].map(|times| times.min(u64::from(u32::MAX)) as u32);
                self.make(RegexAst::Repeat(Box::new(RegexAst::ExprRef(expression)), from, to))
            }
        }
    }

    fn atom(&mut self, at: &mut Cursor<'t>) -> Result<ExprRef, String> {
        match at.peek() {
            Some(b'~') => {
                at.take("~");
                let own = self.atom(at)?;
                self.make(RegexAst::Not(Box::new(RegexAst::ExprRef(own))))
            }
            Some(b'(') => {
                at.take("(");
                let own = self.expression(at)?;
                at.expect(")")?;
                Ok(own)
            }
            Some(b'"') => {
                let text = at.string()?;
                self.make(RegexAst::Literal(text))
            }
            Some(b'/') => {
                let pattern = at.pattern()?;
                self.lexer.regex_builder.mk_regex(pattern).map_err(message)
            }
            Some(b'A'..=b'Z') => self.terminal(at.name()),
            _ => internal(format_args!("{:?} is no part of a rule", at.0)),
        }
    }
}
