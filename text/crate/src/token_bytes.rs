//! A tokenizer, and the bytes of its tokens.
//!
//! A token's bytes are those that it adds in the middle of a text. They are the text that a neutral token and this one
//! decode to, less the text of the neutral token alone. A token that is part of a character has no text; its bytes are
//! then in its entry in the vocabulary. Tokens of one byte (<0x41>) are always read from their entries: next to another
//! such token they decode together with it.

use std::collections::HashMap;
use std::ops::Deref;
use tokenizers::Tokenizer;

pub struct LoadedTokenizer {
    tokenizer: Tokenizer,
    reader: Reader,
}

impl LoadedTokenizer {
    pub fn new(tokenizer: Tokenizer) -> Self {
        let reader = Reader::new(&tokenizer);
        Self { tokenizer, reader }
    }

    /// An error if the decoder's text is not that of its tokens, one after the other.
    pub fn reader(&self) -> Result<&Reader, String> {
        self.reader.problem.clone().map_or(Ok(&self.reader), Err)
    }

    /// The bytes of the token as a text's first, which may lose a space.
    pub fn first_bytes(&self, id: u32) -> Vec<u8> {
        match self.decode(&[id], false) {
            // Only a part of a character has marks, and a token that is one.
            Ok(text) if !text.contains('\u{FFFD}') => text.into_bytes(),
            _ => self.bytes(id),
        }
    }

    /// None for an id without a token.
    pub fn bytes(&self, id: u32) -> Vec<u8> {
        self.id_to_token(id).map_or(vec![], |entry| self.reader.bytes(self, id, entry))
    }
}

impl Deref for LoadedTokenizer {
    type Target = Tokenizer;
    fn deref(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

/// What is in a tokenizer's decoder.
#[derive(Default)]
struct DecoderKind {
    byte_level: bool,
    byte_fallback: bool,
}

fn collect_types(value: &serde_json::Value, types: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            if let Some(serde_json::Value::String(name)) = map.get("type") {
                types.push(name.clone());
                if name == "WordPiece" && map.get("cleanup") == Some(&serde_json::Value::Bool(true)) {
                    types.push("WordPiece with cleanup".to_string());
                }
            }
            map.values().for_each(|v| collect_types(v, types));
        }
        serde_json::Value::Array(list) => list.iter().for_each(|v| collect_types(v, types)),
        _ => {}
    }
}

fn decoder_kind(tokenizer: &Tokenizer) -> Result<DecoderKind, String> {
    let mut types = vec![];
    if let Some(decoder) = tokenizer.get_decoder() {
        collect_types(&serde_json::to_value(decoder).map_err(|e| e.to_string())?, &mut types);
    }
    for name in ["CTC", "BPEDecoder", "WordPiece with cleanup"] {
        if types.iter().any(|t| t == name) {
            return Err(format!("the decoder {name} is not supported: its text depends on later tokens"));
        }
    }
    let has = |name: &str| types.iter().any(|t| t == name);
    Ok(DecoderKind { byte_level: has("ByteLevel"), byte_fallback: has("ByteFallback") })
}

/// GPT-2's characters for bytes, the other way round.
fn byte_level_alphabet() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 256;
    (0..=255u8)
        .map(|b| {
            let code = if printable(b) {
                u32::from(b)
            } else {
                next += 1;
                next - 1
            };
            (char::from_u32(code).unwrap(), b)
        })
        .collect()
}

/// The byte of a token that decoders with a fallback to bytes take for one: that of <0x41>, for example.
fn fallback_byte(entry: &str) -> Option<u8> {
    let digits = entry.strip_prefix("<0x")?.strip_suffix('>').filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

/// Reads the bytes of one tokenizer's tokens.
pub struct Reader {
    kind: DecoderKind,
    alphabet: HashMap<char, u8>,
    context: Vec<u32>, // the neutral token, if there is one
    before: String,
    problem: Option<String>, // why tokens have no bytes of their own
}

impl Reader {
    fn new(tokenizer: &Tokenizer) -> Self {
        let (kind, unsupported) = match decoder_kind(tokenizer) {
            Ok(kind) => (kind, None),
            Err(problem) => (DecoderKind::default(), Some(problem)),
        };
        let decode = |ids: &[u32]| tokenizer.decode(ids, false).unwrap_or_default();
        let added = tokenizer.get_added_tokens_decoder();
        let neutral = |id: &u32| {
            let text = decode(&[*id]);
            !added.contains_key(id)
                && text.bytes().any(|b| b.is_ascii_alphanumeric())
                && text.is_ascii()
                && decode(&[*id, *id]).starts_with(&text)
        };
        let mut ids: Vec<u32> = tokenizer.get_vocab(true).into_values().collect();
        ids.sort_unstable();
        let context: Vec<u32> = ids.into_iter().find(neutral).into_iter().collect();
        let no_text = context.is_empty().then(|| "no token of the tokenizer has text".to_string());
        let before = decode(&context);
        Reader { kind, alphabet: byte_level_alphabet(), context, before, problem: unsupported.or(no_text) }
    }

    /// The text that `ids` add in the middle of a text.
    pub fn text(&self, tokenizer: &Tokenizer, ids: &[u32]) -> Option<String> {
        let mut all = self.context.clone();
        all.extend_from_slice(ids);
        let text = tokenizer.decode(&all, false).ok()?;
        text.strip_prefix(&self.before).map(str::to_string)
    }

    fn bytes(&self, tokenizer: &Tokenizer, id: u32, entry: String) -> Vec<u8> {
        if let Some(byte) = fallback_byte(&entry).filter(|_| self.kind.byte_fallback) {
            return vec![byte];
        }
        let text = self.text(tokenizer, &[id]).unwrap_or_default();
        if !text.contains('\u{FFFD}') || !self.kind.byte_level {
            return text.into_bytes();
        }
        let bytes: Option<Vec<u8>> = entry.chars().map(|c| self.alphabet.get(&c).copied()).collect();
        bytes.unwrap_or_else(|| entry.into_bytes())
    }
}
