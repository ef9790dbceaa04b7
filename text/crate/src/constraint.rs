//! Where one output is in its grammar: which tokens may come, and which have to.
//!
//! llguidance's matcher follows the bytes. Which tokens are forced is decided here, once for each place in the output,
//! and kept until they have all come. So it makes no difference whether they come at once or one by one.
//!
//! At a place where the grammar leaves one byte string F, its tokens are the tokenizer's own, T. The last ones may have
//! to be left out: where a single token could also spell the end of F and what follows it, the model is to choose. So
//! T is cut before the first of its last LOOKBACK tokens within which the grammar allows such a token to begin.

use crate::mask_cache::{Key, States};
use crate::tracker::Tracker;
use crate::vocabulary::Vocabulary;
use llguidance::derivre::StateID;
use llguidance::toktrie::{parse_numeric_token, SimpleVob, TokTrie};
use llguidance::{CancellationHandle, Matcher};
use std::sync::Arc;

const LOOKBACK: usize = 4;

/// What comes at the present place.
#[derive(Clone)]
enum Plan {
    Forced(Arc<Vec<u32>>, usize), // tokens, and how many of them have come
    Free(Option<Arc<SimpleVob>>), // the mask, if it is known already
}

pub struct Constraint {
    vocabulary: Arc<Vocabulary>,
    start: Arc<Matcher>, // at the beginning
    matcher: Matcher,
    tokens: Vec<u32>, // that the matcher has consumed
    plan: Option<Plan>,
    begin: Option<u32>, // the token before which everything but the end may come
    own_text: bool,
    ended: bool,                 // an end token has come
    states: Option<Arc<States>>, // of a regular expression: where masks may be shared
    path: Vec<StateID>,          // the states at the start and after each of `tokens`, as far as they are known
    tracker: Option<Tracker>,    // of arrays that may not repeat an item
    pub size_bytes: u64,
}

/// The first line of llguidance's message; what follows is its state.
pub fn message(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    let end = ["\n<non-verbose/>", "\n<state>", "\n<backtrace>"].iter().filter_map(|mark| text.find(mark)).min();
    match &text[..end.unwrap_or(text.len())] {
        text if text.contains("grammar.symbols.len() < u16::MAX") => "the grammar has over 65,000 symbols".to_string(),
        text if text.contains("oneOf constraints are not supported") => {
            "oneOf: two of its schemas may fit the same value".to_string()
        }
        "NoExtensionBias" => "no token spells what the grammar asks for here".to_string(),
        text => text.trim_end().to_string(),
    }
}

impl Constraint {
    pub fn new(
        vocabulary: Arc<Vocabulary>,
        matcher: Matcher,
        begin: Option<u32>,
        own_text: bool,
        states: Option<States>,
        tracker: Option<Tracker>,
        size_bytes: u64,
    ) -> Self {
        let start = Arc::new(matcher.deep_clone());
        let own_text = own_text && vocabulary.strips_space;
        Self {
            vocabulary,
            start,
            matcher,
            tokens: vec![],
            plan: None,
            begin,
            own_text,
            ended: false,
            path: states.iter().map(States::start).collect(),
            states: states.map(Arc::new),
            tracker,
            size_bytes,
        }
    }

    /// Nothing is shared with the copy but what never changes.
    pub fn copy(&self) -> Self {
        Self {
            vocabulary: self.vocabulary.clone(),
            start: self.start.clone(),
            matcher: self.matcher.deep_clone(),
            tokens: self.tokens.clone(),
            plan: self.plan.clone(),
            begin: self.begin,
            own_text: self.own_text,
            ended: self.ended,
            states: self.states.clone(),
            path: self.path.clone(),
            tracker: self.tracker.clone(),
            size_bytes: self.size_bytes,
        }
    }

    pub fn cancellation_handle(&self) -> Option<CancellationHandle> {
        self.matcher.cancellation_handle()
    }

    /// Whether the grammar has no more bytes. Where it has, but no token spells them, only the mask knows.
    pub fn is_complete(&self) -> bool {
        self.begin.is_none() && (self.ended || (self.matcher.is_stopped() && !self.matcher.is_error()))
    }

    fn is_end(&self, token: u32) -> bool {
        self.vocabulary.end_tokens.contains(&token)
    }

    fn is_bad_first(&self, token: u32) -> bool {
        self.own_text && self.tokens.is_empty() && self.vocabulary.bad_first.contains(&token)
    }

    fn mask_of_matcher(&mut self) -> Result<SimpleVob, String> {
        let mut mask = self.matcher.compute_mask().map_err(message)?;
        for id in self.vocabulary.known..self.vocabulary.trie().vocab_size() {
            mask.disallow_token(id as u32);
        }
        if self.own_text && self.tokens.is_empty() {
            self.vocabulary.bad_first.iter().for_each(|&id| mask.disallow_token(id));
        }
        if let Some(tracker) = &self.tracker {
            tracker.filter(&mut mask, &self.vocabulary);
        }
        if mask.is_zero() {
            return Err(message("NoExtensionBias"));
        }
        Ok(mask)
    }

    /// The state of the present place, if its mask may be shared.
    fn key(&mut self) -> Option<Key> {
        let states = self.states.clone()?;
        while self.path.len() <= self.tokens.len() {
            let bytes = self.vocabulary.trie().token(self.tokens[self.path.len() - 1]);
            let Some(state) = states.after(*self.path.last()?, bytes) else {
                self.states = None;
                return None;
            };
            self.path.push(state);
        }
        // Some tokens cannot come first.
        let special = self.own_text && self.tokens.is_empty();
        (!special).then(|| states.key(self.path[self.tokens.len()]))
    }

    /// The mask of a place where nothing is forced.
    fn free_mask(&mut self) -> Result<Arc<SimpleVob>, String> {
        let Some(key) = self.key() else { return Ok(Arc::new(self.mask_of_matcher()?)) };
        let vocabulary = self.vocabulary.clone();
        if let Some(mask) = vocabulary.masks.get(key) {
            return Ok(mask);
        }
        let mask = Arc::new(self.mask_of_matcher()?);
        vocabulary.masks.put(key, mask.clone());
        Ok(mask)
    }

    fn truncate(&mut self, count: usize) {
        self.tokens.truncate(count);
        self.path.truncate(count + 1);
    }

    /// Decides what is forced here.
    fn decide(&mut self) -> Result<(), String> {
        if self.plan.is_some() || self.begin.is_some() || self.is_complete() {
            return Ok(());
        }
        let forced = self.matcher.compute_ff_bytes();
        if let Some(error) = self.matcher.get_error() {
            return Err(message(error));
        }
        self.plan = Some(if forced.is_empty() { Plan::Free(None) } else { self.plan_forced(&forced)? });
        Ok(())
    }

    fn plan_forced(&mut self, forced: &[u8]) -> Result<Plan, String> {
        let (tokens, fixed) = self.forced_tokens(forced);
        let mut rest = forced;
        for (i, &token) in tokens.iter().enumerate() {
            let len = self.forced_len(token, rest);
            if i >= fixed && i + LOOKBACK >= tokens.len() && self.may_cross(&tokens[..i], rest, len)? {
                return Ok(if i == 0 { Plan::Free(None) } else { forced_plan(&tokens[..i]) });
            }
            rest = &rest[len..];
        }
        // What no token spells alone may begin one.
        if tokens.is_empty() {
            return Ok(Plan::Free(Some(Arc::new(self.mask_of_matcher()?))));
        }
        Ok(forced_plan(&tokens))
    }

    fn forced_len(&self, token: u32, rest: &[u8]) -> usize {
        if rest[0] == TokTrie::SPECIAL_TOKEN_MARKER {
            return parse_numeric_token(&rest[1..]).map_or(rest.len(), |(len, _)| len + 1);
        }
        self.vocabulary.trie().token(token).len()
    }

    /// The tokens of forced bytes, as far as tokens spell them, and how many of them are there by their number.
    fn forced_tokens(&self, forced: &[u8]) -> (Vec<u32>, usize) {
        let (mut tokens, mut fixed, mut rest) = (vec![], 0, forced);
        while !rest.is_empty() {
            if rest[0] == TokTrie::SPECIAL_TOKEN_MARKER {
                let Some((len, id)) = parse_numeric_token(&rest[1..]) else { break };
                tokens.push(id);
                fixed = tokens.len();
                rest = &rest[len + 1..];
                continue;
            }
            let len = rest.iter().position(|&b| b == TokTrie::SPECIAL_TOKEN_MARKER).unwrap_or(rest.len());
            let last = tokens.last().or(self.tokens.last()).copied();
            let first = tokens.is_empty() && self.tokens.is_empty();
            let some = self.spell(last, first, &rest[..len]);
            let spelled: usize = some.iter().map(|&id| self.vocabulary.trie().token(id).len()).sum();
            tokens.extend(some);
            if spelled < len {
                break;
            }
            rest = &rest[len..];
        }
        (tokens, fixed)
    }

    fn spell(&self, last: Option<u32>, first: bool, bytes: &[u8]) -> Vec<u32> {
        if !self.own_text || !first || bytes[0] != b' ' {
            return self.vocabulary.spell(last, bytes);
        }
        if let Some(tokens) = std::str::from_utf8(&bytes[1..]).ok().and_then(|text| self.vocabulary.encode_own(text)) {
            return tokens;
        }
        let mut tokens = self.vocabulary.spell(None, b" ");
        tokens.extend(self.vocabulary.spell(tokens.last().copied(), &bytes[1..]));
        tokens
    }

    /// Whether, after `tokens`, a text may continue with a token that spells more than the rest of what is forced. It begins
    /// within the first `len` bytes of the rest.
    fn may_cross(&mut self, tokens: &[u32], rest: &[u8], len: usize) -> Result<bool, String> {
        let vocabulary = self.vocabulary.clone();
        for at in (0..len).filter(|&at| vocabulary.trie().has_extensions(&rest[at..])) {
            let before = vocabulary.spell(None, &rest[..at]);
            let spelled: usize = before.iter().map(|&id| vocabulary.trie().token(id).len()).sum();
            if spelled == at && self.crosses(&[tokens, &before].concat(), &rest[at..])? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn crosses(&mut self, tokens: &[u32], rest: &[u8]) -> Result<bool, String> {
        let vocabulary = self.vocabulary.clone();
        if !tokens.is_empty() {
            self.matcher.consume_tokens(tokens).map_err(message)?;
            self.matcher.compute_ff_bytes();
        }
        let (count, tracker) = (self.tokens.len(), self.tracker.clone());
        self.tokens.extend(tokens);
        tokens.iter().for_each(|&token| self.track(token));
        let mask = self.mask_of_matcher();
        self.truncate(count);
        self.tracker = tracker;
        self.matcher.rollback(tokens.len()).map_err(message)?;
        self.matcher.invalidate_bias_cache();
        let mut crosses = false;
        mask?.iter_set_entries(|id| crosses |= vocabulary.trie().token(id as u32).len() > rest.len());
        Ok(crosses)
    }

    /// Writes the mask of the present place.
    fn write_mask(&mut self, out: &mut [u32]) -> Result<(), String> {
        out.fill(0);
        if self.begin.is_some() {
            out.copy_from_slice(&self.vocabulary.any_token.as_slice()[..out.len()]);
            return Ok(());
        }
        self.decide()?;
        let set = |out: &mut [u32], id: u32| out[id as usize / 32] |= 1 << (id % 32);
        if self.is_complete() {
            self.vocabulary.end_tokens.iter().for_each(|&id| set(out, id));
            return Ok(());
        }
        let mask = match &self.plan {
            None => return Err("internal error: no plan".to_string()),
            Some(Plan::Forced(tokens, at)) => {
                set(out, tokens[*at]);
                return Ok(());
            }
            Some(Plan::Free(Some(mask))) => mask.clone(),
            Some(Plan::Free(None)) => {
                let mask = self.free_mask()?;
                self.plan = Some(Plan::Free(Some(mask.clone())));
                mask
            }
        };
        out.copy_from_slice(&mask.as_slice()[..out.len()]);
        Ok(())
    }

    /// Whether the mask of the present place has `token`.
    fn allows(&mut self, token: u32) -> Result<bool, String> {
        if !self.is_token(token) {
            return Ok(false);
        }
        if self.begin.is_some() {
            return Ok(self.vocabulary.any_token.is_allowed(token));
        }
        self.decide()?;
        if self.is_complete() {
            return Ok(self.is_end(token));
        }
        match &self.plan {
            None => Ok(false),
            Some(Plan::Forced(tokens, at)) => Ok(tokens[*at] == token),
            Some(Plan::Free(Some(mask))) => Ok(mask.is_allowed(token)),
            Some(Plan::Free(None)) if self.is_end(token) => self.matcher.is_accepting().map_err(message),
            Some(Plan::Free(None)) if self.is_bad_first(token) => Ok(false),
            Some(Plan::Free(None)) if self.tracker.clone().is_some_and(|mut t| !t.accept(self.bytes(token))) => {
                Ok(false)
            }
            Some(Plan::Free(None)) => Ok(self.matcher.validate_tokens(&[token]).map_err(message)? == 1),
        }
    }

    pub fn accept(&mut self, token: u32) -> Result<(), String> {
        if let Some(begin) = self.begin {
            if token == begin {
                self.begin = None;
            }
            return Ok(());
        }
        if self.is_end(token) {
            if !self.is_complete() && !self.matcher.is_accepting().map_err(message)? {
                return Err(format!("the end token {token} may not come here"));
            }
            self.ended = true;
            return Ok(());
        }
        if !self.is_token(token) {
            return Err(format!("token {token} has no text"));
        }
        let next = match &self.plan {
            Some(Plan::Forced(tokens, at)) if tokens[*at] != token => {
                return Err(format!("token {token} came where {} is forced", tokens[*at]));
            }
            Some(Plan::Forced(tokens, at)) if at + 1 < tokens.len() => Some(Plan::Forced(tokens.clone(), at + 1)),
            _ => None,
        };
        // Asked before the matcher moves, which would be ahead otherwise.
        if self.tracker.clone().is_some_and(|mut tracker| !tracker.accept(self.bytes(token))) {
            return Err(format!("token {token} would repeat an item or a name"));
        }
        self.matcher.consume_token(token).map_err(message)?;
        self.track(token);
        self.tokens.push(token);
        self.plan = next;
        Ok(())
    }

    /// Whether the tokenizer has the token, and it has bytes.
    fn is_token(&self, token: u32) -> bool {
        (token as usize) < self.vocabulary.known && !self.bytes(token).is_empty()
    }

    fn bytes(&self, token: u32) -> &[u8] {
        self.vocabulary.trie().token(token)
    }

    fn track(&mut self, token: u32) {
        let bytes = self.vocabulary.trie().token(token);
        if let Some(tracker) = &mut self.tracker {
            tracker.accept(bytes);
        }
    }

    /// Runs `walk`, and comes back to the present place.
    fn and_back<T>(&mut self, walk: impl FnOnce(&mut Self) -> T) -> Result<T, String> {
        let (count, plan, begin, ended) = (self.tokens.len(), self.plan.clone(), self.begin, self.ended);
        let tracker = self.tracker.clone();
        let result = walk(self);
        let moved = self.tokens.len() - count;
        (self.begin, self.ended) = (begin, ended);
        if moved == 0 && !self.matcher.is_error() {
            return Ok(result); // a plan that was made is that of this place
        }
        self.plan = plan;
        self.tracker = tracker;
        self.truncate(count);
        if self.matcher.is_error() || self.matcher.rollback(moved).is_err() {
            // An error would stay.
            self.matcher = self.start.deep_clone();
            self.matcher.consume_tokens(&self.tokens).map_err(message)?;
        }
        // llguidance keeps a mask by the number of lexemes, which may come again with others.
        self.matcher.invalidate_bias_cache();
        Ok(result)
    }

    pub fn fill(&mut self, drafts: &[u32], masks: &mut [u32]) -> Result<(), String> {
        let words = masks.len() / (drafts.len() + 1);
        let (first, rest) = masks.split_at_mut(words);
        self.write_mask(first)?;
        if drafts.is_empty() {
            return Ok(());
        }
        self.and_back(|this| {
            drafts.iter().zip(rest.chunks_mut(words)).try_for_each(|(&draft, mask)| {
                this.accept(draft)?;
                this.write_mask(mask)
            })
        })?
    }

    pub fn count_allowed(&mut self, tokens: &[u32]) -> Result<usize, String> {
        self.and_back(|this| {
            for (i, &token) in tokens.iter().enumerate() {
                let last = i + 1 == tokens.len();
                // An error is one of the mask's: it is told there.
                if !this.allows(token).unwrap_or(false) || (!last && this.accept(token).is_err()) {
                    return i;
                }
            }
            tokens.len()
        })
    }

    pub fn forced(&mut self, limit: usize) -> Result<Vec<u32>, String> {
        self.decide()?;
        match &self.plan {
            Some(Plan::Forced(tokens, at)) => Ok(tokens[*at..].iter().take(limit).copied().collect()),
            _ => Ok(vec![]),
        }
    }

    /// Whether a token may come first, or why no token can.
    pub fn check_start(&mut self) -> Result<(), String> {
        let mut mask = vec![0; self.vocabulary.trie().vocab_size().div_ceil(32)];
        self.write_mask(&mut mask)
    }
}

fn forced_plan(tokens: &[u32]) -> Plan {
    Plan::Forced(Arc::new(tokens.to_vec()), 0)
}
