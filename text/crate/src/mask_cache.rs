//! Masks of regular expressions, kept by the state that the expression is in.
//!
//! Which tokens may come depends only on the texts that may still follow: the derivative of the expression by the text
//! so far. Equal derivatives have equal masks, whatever came before them. So the rows of one compiled expression share
//! the masks of equal states, in one request or in several:
//!
//!   ([a-z]{1,12} ){400}    "a bc "  and  "word is "    ->    ([a-z]{1,12} ){398}    ->    one mask
//!
//! The derivatives are derivre's, which llguidance's lexer has too. But each matcher has a lexer of its own, whose states
//! are numbered as its output meets them, so they cannot be compared.

use llguidance::derivre::{Regex, RegexAst, RegexBuilder, StateID};
use llguidance::toktrie::SimpleVob;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most bytes of one expression's states. An expression with more has masks that hardly ever come again.
const MAX_STATES_BYTES: usize = 1 << 20;
/// Longer expressions are choices among very long texts.
const MAX_PATTERN_BYTES: usize = 16 << 10;
/// What a kept mask takes beside its bits.
const MASK_OVERHEAD: usize = 128;
/// Work to build the states' start, and for the bytes of one token: a few milliseconds.
const START_FUEL: u64 = 100_000;
const STEP_FUEL: u64 = 50_000;

/// A state of one compiled expression.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    expression: u64,
    state: u32,
}

/// The states of one compiled expression, for all its rows.
pub struct States {
    expression: u64,
    start: StateID,
    max_bytes: usize,
    regex: Mutex<Option<Regex>>, // None: it became too large
}

impl States {
    /// None: the expression is too large for it to pay. `plain`: it has no repeats, and thus not many states.
    pub fn new(pattern: &str, plain: bool) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if pattern.len() > MAX_PATTERN_BYTES {
            return None;
        }
        let mut builder = RegexBuilder::new();
        let top = builder.mk(&RegexAst::Regex(pattern.to_string())).ok()?;
        let mut regex = builder.into_regex_limited(top, START_FUEL).ok()?;
        let start = regex.initial_state();
        let max_bytes = if plain { MAX_STATES_BYTES.min(pattern.len() << 10) } else { MAX_STATES_BYTES };
        let small = regex.num_bytes() <= max_bytes;
        let expression = NEXT.fetch_add(1, Ordering::Relaxed);
        small.then(|| Self { expression, start, max_bytes, regex: Mutex::new(Some(regex)) })
    }

    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    pub fn start(&self) -> StateID {
        self.start
    }

    pub fn key(&self, state: StateID) -> Key {
        Key { expression: self.expression, state: state.as_u32() }
    }

    /// The state after `bytes`; None: unknown, from now on for every row.
    pub fn after(&self, mut state: StateID, bytes: &[u8]) -> Option<StateID> {
        let mut guard = self.regex.lock().unwrap_or_else(PoisonError::into_inner);
        let regex = guard.as_mut()?;
        let most = regex.cost() + STEP_FUEL;
        for &byte in bytes {
            state = regex.transition(state, byte);
            if regex.cost() > most {
                break;
            }
        }
        if regex.cost() > most || regex.num_bytes() > self.max_bytes {
            *guard = None;
            return None;
        }
        Some(state).filter(|state| !state.is_dead())
    }
}

/// Masks up to a number of bytes. The masks that were not used for the longest time go first, half of all at once.
pub struct MaskCache {
    max_each: usize, // masks in a generation
    generations: Mutex<[HashMap<Key, Arc<SimpleVob>>; 2]>, // new ones and those used since, and older ones
}

impl MaskCache {
    pub fn new(max_bytes: usize, mask_bytes: usize) -> Self {
        Self { max_each: max_bytes / (mask_bytes + MASK_OVERHEAD) / 2, generations: Mutex::default() }
    }

    pub fn get(&self, key: Key) -> Option<Arc<SimpleVob>> {
        let mut guard = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mask) = guard[0].get(&key) {
            return Some(mask.clone());
        }
        let mask = guard[1].remove(&key)?;
        self.insert(&mut guard, key, mask.clone());
        Some(mask)
    }

    pub fn put(&self, key: Key, mask: Arc<SimpleVob>) {
        let mut guard = self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        self.insert(&mut guard, key, mask);
    }

    fn insert(&self, generations: &mut [HashMap<Key, Arc<SimpleVob>>; 2], key: Key, mask: Arc<SimpleVob>) {
        if self.max_each == 0 {
            return;
        }
        if generations[0].len() >= self.max_each {
            generations[1] = std::mem::take(&mut generations[0]);
        }
        generations[0].insert(key, mask);
    }
}
