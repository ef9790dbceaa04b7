//! Regular languages whose words are counted.

use llguidance::derivre::{Regex, StateID};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

/// From here on there are as many as one likes: no output holds a million items.
pub const ENDLESS: u64 = 1 << 20;
/// States that are counted, and how deep.
const MAX_STATES: usize = 50_000;
const MAX_DEPTH: usize = 3000;

pub struct Words(Mutex<Automaton>);

struct Automaton {
    regex: Regex,
    /// The counts of states; None while one is being counted.
    counts: HashMap<StateID, Option<u64>>,
}

impl Words {
    pub fn new(regex: Regex) -> Words {
        Words(Mutex::new(Automaton { regex, counts: HashMap::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Automaton> {
        self.0.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// How many words begin with `begun`, up to ENDLESS.
    pub fn after(&self, begun: &[u8]) -> u64 {
        let mut own = self.lock();
        let start = own.regex.initial_state();
        let state = own.regex.transition_bytes(start, begun);
        own.count(state, 0)
    }

    /// All words, if they are no more than `most`.
    pub fn few(&self, most: u64) -> Option<Vec<Vec<u8>>> {
        let mut own = self.lock();
        let start = own.regex.initial_state();
        if own.count(start, 0) > most {
            return None;
        }
        let mut all = vec![];
        let mut open = vec![(start, vec![])];
        while let Some((state, word)) = open.pop() {
            if own.count(state, 0) == 0 {
                continue;
            }
            for b in (0..=255).rev() {
                let next = own.regex.transition(state, b);
                if !next.is_dead() {
                    open.push((next, [word.as_slice(), &[b]].concat()));
                }
            }
            if own.regex.is_accepting(state) {
                all.push(word);
            }
        }
        Some(all)
    }

    /// Whether whatever a word begins with can continue in endless ways, until the word is whole.
    pub fn stay_endless(&self) -> bool {
        let mut own = self.lock();
        let mut known = HashSet::new();
        let mut open = vec![own.regex.initial_state()];
        while let Some(state) = open.pop() {
            if state.is_dead() || !known.insert(state) {
                continue;
            }
            let is_endless = own.count(state, 0) == ENDLESS;
            if known.len() >= MAX_STATES || !(is_endless || own.regex.is_accepting(state)) {
                return false;
            }
            open.extend((0..=255).map(|b| own.regex.transition(state, b)));
        }
        true
    }
}

impl Automaton {
    /// How many words lead from a state to an end. Where too many states would have to be looked at: ENDLESS.
    fn count(&mut self, state: StateID, depth: usize) -> u64 {
        if state.is_dead() {
            return 0;
        }
        match self.counts.get(&state) {
            Some(Some(count)) => return *count,
            // A loop that an end can be reached from.
            Some(None) => return ENDLESS,
            None if self.counts.len() >= MAX_STATES || depth >= MAX_DEPTH => return ENDLESS,
            None => {}
        }
        self.counts.insert(state, None);
        let mut all = u64::from(self.regex.is_accepting(state));
        for b in 0..=255 {
            if all >= ENDLESS {
                break;
            }
            let next = self.regex.transition(state, b);
            all += self.count(next, depth + 1);
        }
        let all = all.min(ENDLESS);
        self.counts.insert(state, Some(all));
        all
    }
}
