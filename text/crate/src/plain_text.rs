//! Masks within texts, such as strings of JSON, without a walk over all tokens.
//!
//! Most tokens are plain text. Where any plain text may come next, all tokens of plain text may. Then only the others are
//! walked byte by byte. The slices of llguidance do that where a regular expression is seen to repeat a class of characters. Here
//! the lexer's states are followed instead: from the present one, over all plain texts at once. So it is found for
//! `[0-9]{4}-[0-9]{2}` without anchors, for `.*@.*`, and for a pattern beside a bound of the length.

use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};
use llguidance::{HashMap, HashSet};
use regex_syntax::utf8::Utf8Sequences;
use std::sync::Arc;

/// llguidance's slice of texts of up to 10 characters, see `SlicedBiasComputer::json_slices`, and the budget it gives.
const SHORT_SLICE: usize = 1;
const SLICE_BUDGET: u64 = 1000;
/// Where the length of the text is bounded: how many characters a token has at most. Few have more than 16.
const LENGTHS: [usize; 2] = [16, 8];
/// Places that are followed at most for a mask. Then a walk over all tokens is faster.
const MAX_PLACES: usize = 400;

/// A set of characters, as an automaton over bytes. State 0 is between two characters.
struct Characters {
    contains: fn(char) -> bool,
    edges: Vec<Vec<(u8, usize)>>,
}

/// `.` of a regular expression does not match the two separators.
fn beyond_ascii(c: char) -> bool {
    !c.is_ascii() && !matches!(c, '\u{2028}' | '\u{2029}')
}

/// What a string of JSON holds as it is.
fn is_plain(c: char) -> bool {
    matches!(c, ' '..='~') && !matches!(c, '"' | '\\') || beyond_ascii(c)
}

fn is_word_or_space(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ' ') || beyond_ascii(c)
}

fn is_ascii_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

impl Characters {
    fn new(contains: fn(char) -> bool) -> Self {
        let mut edges = vec![(0..0x80).filter(|&b| contains(b as char)).map(|b| (b, 0)).collect::<Vec<_>>()];
        let ranges = [('\u{80}', '\u{2027}'), ('\u{202A}', '\u{10FFFF}')];
        let mut states = HashMap::from_iter([(vec![], 0)]); // by what is left of a character
        for (first, last) in ranges.into_iter().filter(|&(first, _)| contains(first)) {
            for sequence in Utf8Sequences::new(first, last) {
                let mut next = 0;
                let mut rest = vec![];
                for (at, range) in sequence.as_slice().iter().enumerate().rev() {
                    rest.push((range.start, range.end));
                    let state = if at == 0 { 0 } else { *states.entry(rest.clone()).or_insert(edges.len()) };
                    if state == edges.len() {
                        edges.push(vec![]);
                    }
                    if at == 0 || edges[state].is_empty() {
                        edges[state].extend((range.start..=range.end).map(|b| (b, next)));
                    }
                    next = state;
                }
            }
        }
        Self { contains, edges }
    }

    fn count(&self, token: &[u8]) -> Option<usize> {
        let text = std::str::from_utf8(token).ok().filter(|text| text.chars().all(self.contains))?;
        Some(text.chars().count())
    }
}

struct Tokens {
    mask: SimpleVob,
    rest: TokTrie, // all others
}

impl Tokens {
    /// The mask has the tokens of 1 to `longest` of a slice's characters. `counts`: how many each token has, if it has
    /// no others.
    fn new(trie: &TokTrie, counts: &[Option<usize>], longest: usize) -> Self {
        let (mut mask, mut rest) = (trie.alloc_token_set(), trie.alloc_token_set());
        for (id, count) in counts.iter().enumerate() {
            let fits = count.is_some_and(|count| (1..=longest).contains(&count));
            if fits { &mut mask } else { &mut rest }.allow_token(id as u32);
        }
        Self { mask, rest: trie.filter(&rest) }
    }
}

struct Slice {
    characters: Characters,
    tokens: [Tokens; LENGTHS.len()],
}

impl Slice {
    fn new(trie: &TokTrie, contains: fn(char) -> bool) -> Self {
        let characters = Characters::new(contains);
        let counts: Vec<_> = (0..trie.vocab_size() as u32).map(|id| characters.count(trie.token(id))).collect();
        let tokens = LENGTHS.map(|length| Tokens::new(trie, &counts, length));
        Self { characters, tokens }
    }

    /// How many characters may come here, whichever of the slice they are; counts up to the longest of LENGTHS. Takes the
    /// places that it follows from `left`.
    fn reach(&self, recognizer: &mut ParserRecognizer<'_>, left: &mut usize) -> usize {
        let mut last = (recognizer.lexer_state(), 0);
        let mut seen = HashSet::from_iter([last]);
        let mut places = vec![last]; // after as many characters
        for count in 0..LENGTHS[0] {
            let mut next = vec![];
            while let Some((state, at)) = places.pop() {
                if *left == 0 || recognizer.cancellation_requested() {
                    return count;
                }
                *left -= 1;
                for &(byte, to) in &self.characters.edges[at] {
                    // From any state, in spite of the name.
                    let after = recognizer.lexer_mut().transition_start_state(state, Some(byte), &None);
                    if after.is_dead() || after.has_lowest_match() {
                        return count;
                    }
                    if (after, to) != last && seen.insert((after, to)) {
                        if to == 0 { &mut next } else { &mut places }.push((after, to));
                    }
                    last = (after, to);
                }
            }
            if next.is_empty() {
                break;
            }
            places = next;
        }
        LENGTHS[0]
    }
}

pub struct PlainText {
    slices: [Slice; 3],
    sliced: Arc<SlicedBiasComputer>,
}

impl PlainText {
    pub fn new(trie: &TokTrie, sliced: Arc<SlicedBiasComputer>) -> Self {
        Self { slices: [is_plain, is_word_or_space, is_ascii_word].map(|each| Slice::new(trie, each)), sliced }
    }

    /// The most tokens that may all come here.
    fn tokens(&self, recognizer: &mut ParserRecognizer<'_>) -> Option<&Tokens> {
        let state = recognizer.lexer_state();
        let lexer = recognizer.lexer_mut();
        if !lexer.subsume_possible(state) {
            return None;
        }
        if lexer.check_subsume(state, SHORT_SLICE, SLICE_BUDGET, None).unwrap_or(false) {
            return None; // llguidance finds it
        }
        let mut left = MAX_PLACES;
        self.slices.iter().find_map(|slice| {
            let count = slice.reach(recognizer, &mut left);
            LENGTHS.iter().position(|&length| length <= count).map(|at| &slice.tokens[at])
        })
    }
}

impl BiasComputer for PlainText {
    fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let tokens = if start.is_empty() { self.tokens(recognizer) } else { None };
        let Some(tokens) = tokens else { return self.sliced.compute_bias(recognizer, start) };
        let mut mask = tokens.mask.clone();
        tokens.rest.add_bias(recognizer, &mut mask, &[]);
        mask
    }

    fn trie(&self) -> &TokTrie {
        self.sliced.trie()
    }
}
