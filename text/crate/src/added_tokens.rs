//! Tokens that a model's other files add to its tokenizer.json, as transformers' TokenizersBackend adds them.

use serde::Deserialize;
use std::collections::HashSet;
use tokenizers::{AddedToken, Tokenizer};

/// A token of a file, all its properties filled in.
#[derive(Deserialize)]
struct FileToken {
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
    /// It counts only if tokenizer.json has no token of this id.
    #[serde(default)]
    unless_id: Option<u32>,
}

/// What text/tokenizer_config.cc makes of the files.
#[derive(Deserialize)]
pub struct Settings {
    split_special_tokens: bool,
    /// The tokens of added_tokens_decoder or added_tokens.json, by id.
    decoder: Vec<FileToken>,
    /// bos_token and so on: always special.
    named: Vec<FileToken>,
    /// extra_special_tokens.
    extra: Vec<FileToken>,
}

impl FileToken {
    fn is(&self, other: &AddedToken) -> bool {
        self.content == other.content
            && self.single_word == other.single_word
            && self.lstrip == other.lstrip
            && self.rstrip == other.rstrip
            && self.normalized == other.normalized
            && self.special == other.special
    }

    fn added(&self, special: bool) -> AddedToken {
        AddedToken::from(self.content.clone(), special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized)
    }
}

/// Adds the tokens that the tokenizer lacks, or that have other properties there. A token of the vocabulary keeps its
/// id; any other gets the next one.
pub fn apply(settings: &Settings, tokenizer: &mut Tokenizer) -> Result<(), String> {
    let existing = tokenizer.get_added_tokens_decoder();
    let named: HashSet<&str> = settings.named.iter().map(|t| t.content.as_str()).collect();
    let mut known: HashSet<&str> = existing.values().map(|t| t.content.as_str()).collect();
    let mut added = Vec::new();
    for token in &settings.decoder {
        let hidden = token.unless_id.is_some_and(|id| existing.contains_key(&id));
        if hidden || existing.values().any(|t| token.is(t)) {
            continue;
        }
        known.insert(&token.content);
        added.push(token.added(token.special || named.contains(token.content.as_str())));
    }
    for token in settings.named.iter().chain(&settings.extra) {
        if known.insert(&token.content) {
            added.push(token.added(true));
        }
    }
    tokenizer.add_tokens(added).map_err(|e| format!("{e}"))?;
    tokenizer.set_encode_special_tokens(settings.split_special_tokens);
    Ok(())
}
