//! Regular languages whose words are counted.

use llguidance::derivre::{Regex, StateID};
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

/// From here on there are as many as one likes: no output holds a million items.
pub const ENDLESS: u64 = 1 << 20;
/// States that are looked at for one count, and how deep.
const MAX_STATES: usize = 5000;
const MAX_DEPTH: usize = 3000;

pub struct Words {
    regex: Mutex<Regex>,
}

impl Words {
    pub fn new(regex: Regex) -> Words {
        Words { regex: Mutex::new(regex) }
    }

    /// How many words begin with `begun`, up to ENDLESS.
    pub fn after(&self, begun: &[u8]) -> u64 {
        let mut regex = self.regex.lock().unwrap_or_else(|error| error.into_inner());
        let start = regex.initial_state();
        let state = regex.transition_bytes(start, begun);
        count(&mut regex, state, &mut HashMap::new(), 0)
    }

    /// Whether whatever a word begins with can go on in endless ways, until the word is whole.
    pub fn stay_endless(&self) -> bool {
        let mut regex = self.regex.lock().unwrap_or_else(|error| error.into_inner());
        let (mut known, mut counts) = (HashSet::new(), HashMap::new());
        let mut open = vec![regex.initial_state()];
        while let Some(state) = open.pop() {
            if state.is_dead() || !known.insert(state) {
                continue;
            }
            let is_endless = count(&mut regex, state, &mut counts, 0) == ENDLESS;
            if known.len() >= MAX_STATES || !(is_endless || regex.is_accepting(state)) {
                return false;
            }
            open.extend((0..=255).map(|b| regex.transition(state, b)));
        }
        true
    }
}

/// How many words lead from a state to an end. `known`: the states that have been counted; None for one that is being
/// counted.
fn count(regex: &mut Regex, state: StateID, known: &mut HashMap<StateID, Option<u64>>, depth: usize) -> u64 {
    if state.is_dead() {
        return 0;
    }
    match known.get(&state) {
        Some(Some(count)) => return *count,
        // A loop that an end can be reached from.
        Some(None) => return ENDLESS,
        None if known.len() >= MAX_STATES || depth >= MAX_DEPTH => return ENDLESS,
        None => {}
    }
    known.insert(state, None);
    let mut all = u64::from(regex.is_accepting(state));
    for b in 0..=255 {
        if all >= ENDLESS {
            break;
        }
        let next = regex.transition(state, b);
        all += count(regex, next, known, depth + 1);
    }
    let all = all.min(ENDLESS);
    known.insert(state, Some(all));
    all
}
