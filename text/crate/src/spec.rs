//! What C++ asks to have compiled, as text_abi.h has it, and the limits in it.

use crate::text;
use llguidance::api::ParserLimits;

/// Work to build the lexer. What is built is what the first masks need, for each token of the vocabulary.
const LEXER_FUEL: u64 = 10_000_000;
/// Work of the lexer for one mask. An output that needs more ends with an error, and nearly all need far less.
const STEP_LEXER_FUEL: u64 = 1_000_000;
/// The parser's items at one place. An enum of 2,000 objects in any order takes 6,000.
const MAX_ITEMS_IN_ROW: usize = 8_000;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct View {
    data: *const u8,
    len: usize,
}

impl View {
    pub unsafe fn str<'a>(&self) -> Result<&'a str, String> {
        text(self.data, self.len)
    }
}

/// BerthGrammarSpec of text_abi.h.
#[repr(C)]
pub struct Spec {
    pub kind: i32,
    pub whitespace: i32,
    pub begin_token: i32,
    pub own_text: bool,
    pub refuse_unknown: bool,
    pub any_order: bool,
    pub text: View,
    pub begin_text: View,
    pub choices: *const View,
    pub num_choices: usize,
    pub max_grammar_size: u64,
    pub max_lexer_states: u64,
    pub initial_lexer_fuel: u64,
    pub step_lexer_fuel: u64,
    pub step_max_items: u64,
    pub max_items_in_row: u64,
}

pub fn limits(spec: &Spec) -> ParserLimits {
    let mut limits = ParserLimits { verbose_errors: false, max_items_in_row: MAX_ITEMS_IN_ROW, ..Default::default() };
    let set = |to: &mut usize, value: u64| {
        if value > 0 {
            *to = value as usize;
        }
    };
    set(&mut limits.max_grammar_size, spec.max_grammar_size);
    set(&mut limits.max_lexer_states, spec.max_lexer_states);
    set(&mut limits.step_max_items, spec.step_max_items);
    set(&mut limits.max_items_in_row, spec.max_items_in_row);
    limits.initial_lexer_fuel = if spec.initial_lexer_fuel > 0 { spec.initial_lexer_fuel } else { LEXER_FUEL };
    limits.step_lexer_fuel = if spec.step_lexer_fuel > 0 { spec.step_lexer_fuel } else { STEP_LEXER_FUEL };
    limits
}
