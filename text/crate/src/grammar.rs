//! Compiles grammars by llguidance.
//!
//! Where a schema is all of the output, Berth builds llguidance's grammar (rules.rs). Others are read by llguidance. It
//! cannot be stopped while it reads a grammar and builds its lexer. That work is bounded by ParserLimits, by the text's
//! length and, for schemas, by the length of the grammar that schema/ writes. A request to stop is seen between these
//! steps. llguidance's matcher and Berth's own work see it at once.

use crate::constraint::{message, Constraint};
use crate::mask_cache::States;
use crate::pattern::{escape, translate};
use crate::schema::dialect::Notes;
use crate::schema::{Style, Written};
use crate::spec::{limits, Spec};
use crate::structural_tag::Controls;
use crate::tracker::Tracker;
use crate::vocabulary::Vocabulary;
use crate::watched::Watch;
use crate::work::Work;
use crate::{guard, json, lark, rules, schema, structural_tag, Bytes, Ids};
use llguidance::api::{GrammarInit, GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::earley::{lexerspec::LexerSpec, Grammar};
use llguidance::{Matcher, TokenParser};
use serde_json::{json, Value};
use std::sync::Arc;

/// llguidance calls itself for a rule in a rule, which only the text's length bounds.
const STACK_BYTES: usize = 1 << 30;
/// Limit of a Lark grammar: each rule may name the next.
const MAX_LARK_BYTES: usize = 256 << 10;

/// What a spec says, in Rust's types.
struct Job<'a> {
    vocabulary: &'a Arc<Vocabulary>,
    work: &'a Work,
    kind: i32,
    whitespace: i32,
    begin: Option<u32>,
    begin_text: &'a str,
    own_text: bool,
    any_order: bool,
    text: &'a str,
    choices: Vec<&'a str>,
    limits: ParserLimits,
    notes: Notes,
}

/// Grammars in Lark, by their names. The first one begins.
type Grammars = Vec<GrammarWithLexer>;

enum Source {
    Grammars(Grammars),
    /// A schema that is all of the output.
    Schema(Written),
}

struct Body {
    source: Source,
    watch: Option<Watch>,
}

impl Source {
    fn grammars(self) -> Grammars {
        match self {
            Source::Grammars(grammars) => grammars,
            Source::Schema(written) => vec![GrammarWithLexer::from_lark(written.lark())],
        }
    }
}

impl Job<'_> {
    /// The grammar of a schema. `prefix`: the pointer to it in the text.
    fn read(&self, value: &Value, prefix: &str) -> Result<Written, String> {
        // Where a schema is all of the output, it can be followed.
        let has_watch = self.kind <= 1 && self.begin_text.is_empty();
        let style = Style { whitespace: self.whitespace, any_order: self.any_order, has_watch };
        schema::write(value, prefix, style, &self.notes, self.work)
    }

    fn schema(&self, value: &Value) -> Result<Body, String> {
        let mut written = self.read(value, "")?;
        self.check_bytes(&written.bytes)?;
        let watch = written.watch.take();
        Ok(Body { source: Source::Schema(written), watch })
    }

    fn check_bytes(&self, needed: &[bool; 256]) -> Result<(), String> {
        match (0..256).find(|&b| needed[b] && !self.vocabulary.spelled[b]) {
            Some(b) => Err(format!("no token has the byte 0x{b:02X}{}, which every output needs", shown(b as u8))),
            None => Ok(()),
        }
    }

    fn regex(&self, pattern: &str) -> Result<GrammarWithLexer, String> {
        if pattern.is_empty() {
            return Ok(GrammarWithLexer::from_lark("start: \"\"".to_string()));
        }
        let terminal = llguidance::regex_to_lark(pattern, "");
        Ok(GrammarWithLexer::from_lark(format!("start: /{terminal}/")))
    }

    fn choice_pattern(&self) -> String {
        let choices: Vec<String> = self.choices.iter().map(|choice| escape(choice)).collect();
        format!("(?:{})", choices.join("|"))
    }

    fn choice(&self) -> Result<GrammarWithLexer, String> {
        if self.choices.is_empty() {
            return Err("0 choices; at least 1 is needed".to_string());
        }
        for (i, choice) in self.choices.iter().enumerate() {
            self.work.text(choice)?;
            if choice.is_empty() {
                return Err(format!("choice {i} is empty"));
            }
            if let Some(byte) = choice.bytes().find(|b| !self.vocabulary.spelled[*b as usize]) {
                return Err(format!("choice {i}: no token has the byte 0x{byte:02X}{}", shown(byte)));
            }
        }
        self.regex(&self.choice_pattern())
    }

    fn lark(&self) -> Result<Grammars, String> {
        if self.text.len() > MAX_LARK_BYTES {
            return Err(format!("{} bytes are over {MAX_LARK_BYTES}", self.text.len()));
        }
        let mut grammars = vec![];
        let mut add = |schema: &Value| {
            let mut grammar = GrammarWithLexer::from_lark(self.read(schema, "")?.lark());
            let name = format!("schema_{}", grammars.len());
            grammar.name = Some(name.clone());
            grammars.push(grammar);
            Ok(name)
        };
        let text = lark::read(self.text, &mut add, self.work)?;
        grammars.insert(0, GrammarWithLexer::from_lark(text));
        Ok(grammars)
    }

    fn structural_tag(&self) -> Result<Grammars, String> {
        let trie = self.vocabulary.trie();
        let controls = (0..self.vocabulary.known as u32)
            .filter(|&id| trie.is_special_token(id))
            .filter_map(|id| std::str::from_utf8(&trie.token(id)[1..]).ok().map(|name| (id, name)))
            .filter(|(_, name)| !name.is_empty());
        let controls = Controls::new(controls)?;
        let read = |schema: &Value, prefix: &str| Ok(self.read(schema, prefix)?.lark());
        let translated = structural_tag::translate(self.text, &controls, &read, self.work)?;
        let mut grammars = vec![GrammarWithLexer::from_lark(translated.lark)];
        for (i, schema) in translated.schemas.into_iter().enumerate() {
            let mut grammar = GrammarWithLexer::from_lark(schema);
            grammar.name = Some(format!("schema_{i}"));
            grammars.push(grammar);
        }
        Ok(grammars)
    }

    fn body(&self) -> Result<Body, String> {
        let grammars = match self.kind {
            0 => return self.schema(&json::parse(self.text, self.work)?),
            1 => return self.schema(&json!({"type": "object"})),
            2 => {
                let pattern = translate(self.text)?;
                self.check_bytes(&crate::pattern::required_bytes(&pattern))?;
                vec![self.regex(&pattern)?]
            }
            3 => vec![self.choice()?],
            4 => self.lark()?,
            5 => self.structural_tag()?,
            other => return Err(format!("unknown kind {other}")),
        };
        Ok(Body { source: Source::Grammars(grammars), watch: None })
    }

    fn begins_with_space(&self) -> bool {
        self.own_text && self.vocabulary.strips_space && self.begin.is_none()
    }

    /// The states of a grammar that is a regular expression.
    fn states(&self) -> Result<Option<States>, String> {
        let pattern = match self.kind {
            2 => translate(self.text)?,
            3 => self.choice_pattern(),
            _ => return Ok(None),
        };
        if !self.begin_text.is_empty() {
            return Ok(None);
        }
        let whole = if self.begins_with_space() { format!(" (?:{pattern})") } else { pattern };
        Ok(States::new(&whole, self.kind == 3))
    }

    /// The body after the text before it.
    fn whole(&self) -> Result<Body, String> {
        let Body { source, watch } = self.body()?;
        let mut before = String::new();
        let mut terminals = String::new();
        if self.begins_with_space() {
            before.push_str("\" \" ");
        }
        if !self.begin_text.is_empty() {
            let begin = escape(self.begin_text);
            before.push_str("BEGIN ");
            // Text up to the end of the first begin.
            terminals = format!("BEGIN: /(?s:.*){begin}/ & ~/(?s:.*){begin}(?s:.+)/\n");
        }
        if before.is_empty() {
            return Ok(Body { source, watch });
        }
        let mut grammars = source.grammars();
        grammars[0].name = Some("body".to_string());
        grammars.insert(0, GrammarWithLexer::from_lark(format!("start: {before}@body\n{terminals}")));
        Ok(Body { source: Source::Grammars(grammars), watch })
    }

    /// llguidance's grammar and lexer, which it has not worked on yet.
    fn rules(&self, source: Source) -> Result<(Grammar, LexerSpec), String> {
        match source {
            Source::Schema(own) if !own.has_json => rules::build(&own.rules, own.skip, &self.limits, self.work),
            source => {
                let top = TopLevelGrammar { grammars: source.grammars(), max_tokens: None };
                let tokens = Some(self.vocabulary.factory.tok_env().clone());
                GrammarInit::Serialized(top).to_internal(tokens, self.limits.clone()).map_err(message)
            }
        }
    }

    fn compile(&self) -> Result<Constraint, String> {
        let Body { source, watch } = self.whole()?;
        self.work.look()?;
        let factory = &self.vocabulary.factory;
        let logger = llguidance::Logger::new(0, 0);
        let caps = Default::default();
        let (grammar, lexer) = self.rules(source)?;
        self.work.look()?;
        let init = GrammarInit::Internal(grammar, lexer);
        let mut parser =
            factory.create_parser_from_init_ext(init, logger, caps, self.limits.clone()).map_err(message)?;
        parser.bias_computer = self.vocabulary.plain_text.clone();
        check_features(&parser)?;
        let states = self.states()?;
        let size = estimate_size(&parser, self.text.len()) + states.as_ref().map_or(0, States::max_bytes) as u64;
        self.work.look()?;
        let own_text = self.own_text && self.begin.is_none();
        let mut matcher = Matcher::new(Ok(parser)).into_cancellable();
        if let Some(error) = matcher.get_error() {
            return Err(message(error));
        }
        self.work.of_matcher(matcher.cancellation_handle(), || begin(&mut matcher))?;
        let tracker = watch.map(|watch| Tracker::new(Arc::new(watch)));
        let constraint = Constraint::new(self.vocabulary.clone(), matcher, self.begin, own_text, states, tracker, size);
        let mut probe = constraint.copy();
        self.work.of_matcher(probe.cancellation_handle(), || probe.check_start())?;
        Ok(constraint)
    }
}

fn begin(matcher: &mut Matcher) -> Result<(), String> {
    // llguidance looks for the end of the text only here: an empty one ends where it begins.
    matcher.consume_tokens(&[]).map_err(message)?;
    // And a mask sets the limits, which bind the search for forced bytes too.
    if !matcher.is_stopped() {
        matcher.compute_mask().map_err(message)?;
    }
    Ok(())
}

fn shown(byte: u8) -> String {
    if byte.is_ascii_graphic() {
        format!(" ({:?})", byte as char)
    } else {
        String::new()
    }
}

/// What would make forced tokens, drafts or the end wrong.
fn check_features(parser: &TokenParser) -> Result<(), String> {
    let spec = parser.parser.grammar().lexer_spec();
    let refused = [
        (spec.has_stop, "stop= (use suffix=)"),
        (spec.has_max_tokens, "max_tokens="),
        (spec.has_temperature, "temperature="),
        (spec.no_forcing, "no_forcing"),
    ];
    match refused.iter().find(|(is, _)| *is) {
        Some((_, name)) => Err(format!("{name} is not supported")),
        None => Ok(()),
    }
}

/// Grammar and lexer, twice: the constraint keeps a matcher at the start beside the one that moves.
fn estimate_size(parser: &TokenParser, text: usize) -> u64 {
    let stats = parser.parser.lexer_stats();
    (2 * (stats.num_bytes + 200 * stats.num_ast_nodes) + 40 * text + (64 << 10)) as u64
}

unsafe fn job<'a>(vocabulary: &'a Arc<Vocabulary>, spec: &'a Spec, work: &'a Work) -> Result<Job<'a>, String> {
    let views = if spec.num_choices == 0 { &[] } else { std::slice::from_raw_parts(spec.choices, spec.num_choices) };
    let mut begin = u32::try_from(spec.begin_token).ok();
    let mut begin_text = spec.begin_text.str()?;
    // Text that is a control token's is never a text.
    if let Some(token) = vocabulary.special_token(begin_text).filter(|_| !begin_text.is_empty()) {
        begin = Some(token);
        begin_text = "";
    }
    if let Some(token) = begin {
        if !begin_text.is_empty() {
            return Err("begin_token and begin_text are both set".to_string());
        }
        if token as usize >= vocabulary.known || !vocabulary.any_token.is_allowed(token) {
            return Err(format!("begin_token {token} is no token, or one that ends the output"));
        }
    }
    Ok(Job {
        vocabulary,
        work,
        kind: spec.kind,
        whitespace: spec.whitespace,
        begin,
        begin_text,
        own_text: spec.own_text,
        any_order: spec.any_order,
        text: spec.text.str()?,
        choices: views.iter().map(|view| view.str()).collect::<Result<_, _>>()?,
        limits: limits(spec),
        notes: Notes::new(spec.refuse_unknown),
    })
}

fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|e| format!("internal error: no thread: {e}"))?;
        thread.join().unwrap_or_else(|_| Err("internal error: panic".to_string()))
    })
}

#[no_mangle]
pub extern "C" fn berth_cancel_create() -> *mut Work {
    Box::into_raw(Box::default())
}

/// # Safety
/// `cancel` came from `berth_cancel_create` and is alive.
#[no_mangle]
pub unsafe extern "C" fn berth_cancel_request(cancel: *const Work) {
    (*cancel).cancel();
}

/// # Safety
/// `cancel` came from `berth_cancel_create` and is alive; `steps` and `longest` are writable.
#[no_mangle]
pub unsafe extern "C" fn berth_cancel_work(cancel: *const Work, steps: *mut u64, longest: *mut u64) {
    (*steps, *longest) = (*cancel).counts();
}

/// # Safety
/// `cancel` came from `berth_cancel_create` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn berth_cancel_free(cancel: *mut Work) {
    drop(Box::from_raw(cancel));
}

/// # Safety
/// All pointers point to what their types say, and views to as many bytes as they say.
#[no_mangle]
pub unsafe extern "C" fn berth_grammar_compile(
    vocabulary: *const Arc<Vocabulary>,
    spec: *const Spec,
    cancel: *const Work,
    out: *mut *mut Constraint,
    warnings: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let job = job(&*vocabulary, &*spec, &*cancel)?;
        let (constraint, notes) = on_large_stack(move || Ok((job.compile()?, job.notes.text())))?;
        *warnings = notes.into();
        Ok(Box::into_raw(Box::new(constraint)))
    })
}

/// # Safety
/// `grammar` came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn berth_grammar_free(grammar: *mut Constraint) {
    drop(Box::from_raw(grammar));
}

/// # Safety
/// `grammar` is alive; `out` and `error` are writable.
#[no_mangle]
pub unsafe extern "C" fn berth_grammar_clone(
    grammar: *const Constraint,
    out: *mut *mut Constraint,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || Ok(Box::into_raw(Box::new((*grammar).copy()))))
}

/// # Safety
/// As `berth_grammar_clone`.
#[no_mangle]
pub unsafe extern "C" fn berth_grammar_size_bytes(grammar: *const Constraint) -> u64 {
    (*grammar).size_bytes
}

/// # Safety
/// As `berth_grammar_clone`; `drafts` points to `len` ids and `masks` to `words` words.
#[no_mangle]
pub unsafe extern "C" fn berth_grammar_fill(
    grammar: *mut Constraint,
    drafts: *const u32,
    len: usize,
    masks: *mut u32,
    words: usize,
    error: *mut Bytes,
) -> i32 {
    let mut done = ();
    guard(&mut done, error, || (*grammar).fill(ids(drafts, len), std::slice::from_raw_parts_mut(masks, words)))
}

/// # Safety
/// As `berth_grammar_clone`.
#[no_mangle]
pub unsafe extern "C" fn berth_grammar_accept(grammar: *mut Constraint, token: u32, error: *mut Bytes) -> i32 {
    let mut done = ();
    guard(&mut done, error, || (*grammar).accept(token))
}

/// # Safety
/// As `berth_grammar_fill`.
#[no_mangle]
pub unsafe extern "C" fn berth_grammar_count_allowed(
    grammar: *mut Constraint,
    tokens: *const u32,
    len: usize,
    out: *mut i64,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || Ok((*grammar).count_allowed(ids(tokens, len))? as i64))
}

/// # Safety
/// As `berth_grammar_clone`.
#[no_mangle]
pub unsafe extern "C" fn berth_grammar_forced(
    grammar: *mut Constraint,
    limit: i64,
    out: *mut Ids,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || Ok((*grammar).forced(usize::try_from(limit).unwrap_or(0))?.into()))
}

/// # Safety
/// As `berth_grammar_clone`.
#[no_mangle]
pub unsafe extern "C" fn berth_grammar_is_complete(grammar: *const Constraint) -> bool {
    (*grammar).is_complete()
}

unsafe fn ids<'a>(data: *const u32, len: usize) -> &'a [u32] {
    if len == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, len)
    }
}
