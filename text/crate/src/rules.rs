//! Builds llguidance's grammar from the rules that schema/ writes in Lark.
//!
//! llguidance reads Lark too, but prepares a lexer of Lark for each text. That takes half of the time in which the
//! grammar of a usual schema is compiled. Here each name is one symbol, and each option of its definition is one of the
//! symbol's choices. A bracket or a repetition is a symbol without a name:
//!
//!   d2: "{" (d3 ",")* d4 "}"    ->    d2 = A #2 d4 C,  #2 = nothing,  #2 = #2 #1,  #1 = d3 B    (A, B, C: lexemes)
//!
//! Equal lexemes are one symbol. Only what `start` leads to is built. A symbol with a parameter is `name::_` where it is
//! defined, and `name::` with the value of its parameter where it is used.

use crate::constraint::message;
use crate::rule_text::{definitions, internal, Cursor, Definition};
use crate::work::{Work, TOO_LARGE};
use llguidance::api::{ParserLimits, SkipSpec};
use llguidance::derivre::{ExprRef, RegexAst};
use llguidance::earley::lexerspec::{LexemeClass, LexerSpec};
use llguidance::earley::{Grammar, ParamCond, ParamExpr, SymIdx, SymbolProps};
use llguidance::HashMap;

/// Repetitions up to here are written out; longer ones are made of blocks of BLOCK.
const WRITTEN_OUT: u64 = 8;
const BLOCK: u64 = 4;
/// Choices of all symbols together: about as many as fit the 65,000 symbols that llguidance makes of such a text. A mask
/// looks at the choices of each symbol that may come, so that with more a mask could take over half a second.
const MAX_CHOICES: usize = 34_500;

/// A symbol, and its parameter.
type Item = (SymIdx, ParamExpr);
struct Choice {
    condition: ParamCond,
    items: Vec<Item>,
}

struct Builder<'t> {
    limits: &'t ParserLimits,
    work: &'t Work,
    definitions: HashMap<&'t str, Definition<'t>>,
    grammar: Grammar,
    num_choices: usize,
    lexer: LexerSpec,
    class: LexemeClass,
    symbols: HashMap<&'t str, SymIdx>,
    open: Vec<&'t str>, // names that have a symbol, and no choices yet
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
        symbols: HashMap::default(),
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
    builder.check_limits()?;
    Ok((builder.grammar, builder.lexer))
}

fn needs_parameter(items: &[Item]) -> bool {
    items.iter().any(|(_, value)| value.needs_param())
}

impl<'t> Builder<'t> {
    fn check_limits(&self) -> Result<(), String> {
        self.work.step()?;
        let fuel = self.limits.initial_lexer_fuel;
        if self.lexer.cost() > fuel {
            return Err(format!("the grammar's strings and patterns take over {fuel} units of lexer fuel"));
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
            return Err(TOO_LARGE.to_string());
        }
        self.grammar.add_rule_ext(symbol, condition, items).or_else(internal)
    }

    fn definition(&self, name: &str) -> Result<Definition<'t>, String> {
        self.definitions.get(name).map_or_else(|| internal(format_args!("no rule {name}")), |own| Ok(*own))
    }

    fn rule(&mut self, name: &'t str, value: ParamExpr) -> Result<Item, String> {
        if let Some(symbol) = self.symbols.get(name) {
            return Ok((*symbol, value));
        }
        let has_parameter = self.definition(name)?.has_parameter;
        let symbol = self.symbol(name, has_parameter);
        self.symbols.insert(name, symbol);
        self.open.push(name);
        Ok((symbol, value))
    }

    fn define(&mut self, name: &'t str) -> Result<(), String> {
        let mut at = Cursor(self.definition(name)?.text);
        let choices = self.choices(&mut at)?;
        if at.peek().is_some() {
            return internal(format_args!("{name}: {:?} follows its end", at.0));
        }
        for choice in choices {
            self.add(self.symbols[name], choice.condition, choice.items)?;
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
        self.check_limits()?;
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
        // Once: a terminal that names itself has no definition any more.
        let Some(definition) = self.definitions.remove(name) else {
            return internal(format_args!("no terminal {name}"));
        };
        let mut at = Cursor(definition.text);
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
        self.check_limits()?;
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
