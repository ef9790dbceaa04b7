//! The bytes of every token as the tokenizer itself decodes them, in llguidance's trie.
//!
//! A token's bytes are those it adds in the middle of a text: what a neutral token and this one decode to, less what the
//! neutral token alone does. A token that is part of a character has no text; its bytes are then in its entry in the
//! vocabulary. Tokens of one byte (<0x41>) are always read from their entries: next to another such token they decode
//! together with it. Control tokens are no text: in the trie they stand behind the byte 0xFF, which no text has.

use crate::mask_cache::MaskCache;
use crate::{guard, Bytes};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenizerEnv, INVALID_TOKEN};
use llguidance::ParserFactory;
use std::collections::HashMap;
use std::sync::Arc;
use tokenizers::Tokenizer;

const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
/// The trie's nodes know at most 1024 ancestors. Longer tokens are never needed.
const MAX_TOKEN_BYTES: usize = 1000;
/// Random texts that must decode to their tokens' bytes, one after the other.
const CHECKED_TEXTS: usize = 300;

/// The tokenizer outlives the vocabulary: berth_vocabulary_create says so.
struct Shared(*const Tokenizer);
unsafe impl Send for Shared {}
unsafe impl Sync for Shared {}

struct Env {
    trie: TokTrie,
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.trie.greedy_tokenize(bytes)
    }
    // Berth forces tokens itself (grammar.rs): llguidance would choose others after each of them.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

pub struct Vocabulary {
    tokenizer: Shared,
    env: TokEnv,
    pub factory: ParserFactory,
    pub masks: MaskCache,
    pub end_tokens: Vec<u32>,
    /// Whether a text's first character is dropped if it is a space.
    pub strips_space: bool,
    /// With `strips_space`: tokens that decode to something else than their bytes less one space when they come first.
    pub bad_first: Vec<u32>,
    /// Tokens that the tokenizer knows, but for end tokens.
    pub any_token: SimpleVob,
    /// Ids from here on have no token.
    pub known: usize,
    /// Which bytes some token has.
    pub spelled: [bool; 256],
}

impl Vocabulary {
    pub fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }

    pub fn special_token(&self, name: &str) -> Option<u32> {
        self.trie().get_special_token(name)
    }

    fn tokenizer(&self) -> &Tokenizer {
        unsafe { &*self.tokenizer.0 }
    }

    fn words(&self, ids: &[u32]) -> Vec<u8> {
        ids.iter().flat_map(|&id| self.trie().token(id).iter().copied()).collect()
    }

    /// The tokenizer's tokens for `text` after `context`, if their bytes are those of `text`.
    fn encode_after(&self, context: &str, text: &str) -> Option<Vec<u32>> {
        let encoding = self.tokenizer().encode_fast(format!("{context}{text}"), false).ok()?;
        let ids = encoding.get_ids();
        let words = self.words(ids);
        // Some tokenizers put a space before a text.
        let extra = words.len().checked_sub(context.len() + text.len())?;
        if extra > 1 || !words.ends_with(text.as_bytes()) || (extra == 1 && words[0] != b' ') {
            return None;
        }
        let mut at = 0;
        for (i, &id) in ids.iter().enumerate() {
            if at == extra + context.len() {
                return Some(ids[i..].to_vec());
            }
            at += self.trie().token(id).len();
        }
        None
    }

    /// The tokenizer's tokens for a text of its own, if their bytes are `text` after a space.
    pub fn encode_own(&self, text: &str) -> Option<Vec<u32>> {
        let ids = self.tokenizer().encode_fast(text, false).ok()?.get_ids().to_vec();
        let words = self.words(&ids);
        let right = words.len() == text.len() + 1 && words[0] == b' ' && words[1..] == *text.as_bytes();
        (right && !self.bad_first.contains(&ids[0])).then_some(ids)
    }

    /// Tokens for as many of `bytes` as tokens spell, the tokenizer's own if it has any that have just those bytes.
    /// `last`: the token before.
    pub fn spell(&self, last: Option<u32>, bytes: &[u8]) -> Vec<u32> {
        let before = last.and_then(|id| std::str::from_utf8(self.trie().token(id)).ok()).unwrap_or("");
        let mut out = vec![];
        for chunk in bytes.utf8_chunks() {
            if !chunk.valid().is_empty() {
                let context = if out.is_empty() { before } else { "" };
                let tokens = [context, "", "\n", "\"", ".", "a"].iter().find_map(|c| self.encode_after(c, chunk.valid()));
                match tokens {
                    Some(tokens) => out.extend(tokens),
                    None if !self.spell_longest(chunk.valid().as_bytes(), &mut out) => return out,
                    None => {}
                }
            }
            if !self.spell_longest(chunk.invalid(), &mut out) {
                return out;
            }
        }
        out
    }

    /// Appends the longest token each time. Returns whether all bytes are spelled.
    fn spell_longest(&self, mut bytes: &[u8], out: &mut Vec<u32>) -> bool {
        while !bytes.is_empty() {
            let (id, len) = self.trie().prefix_token_id(bytes);
            if len == 0 {
                return false;
            }
            out.push(id);
            bytes = &bytes[len..];
        }
        true
    }
}

/// What is in a tokenizer's decoder.
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

struct Reader<'a> {
    tokenizer: &'a Tokenizer,
    kind: DecoderKind,
    alphabet: HashMap<char, u8>,
    context: u32,
    before: String,
}

impl<'a> Reader<'a> {
    fn new(tokenizer: &'a Tokenizer, count: u32) -> Result<Self, String> {
        let kind = decoder_kind(tokenizer)?;
        let decode = |ids: &[u32]| tokenizer.decode(ids, false).unwrap_or_default();
        let added = tokenizer.get_added_tokens_decoder();
        let neutral = |id: &u32| {
            let text = decode(&[*id]);
            !added.contains_key(id)
                && text.bytes().any(|b| b.is_ascii_alphanumeric())
                && text.is_ascii()
                && decode(&[*id, *id]).starts_with(&text)
        };
        let context = (0..count).find(neutral).ok_or("no token of the tokenizer has text")?;
        Ok(Reader { tokenizer, kind, alphabet: byte_level_alphabet(), context, before: decode(&[context]) })
    }

    /// The text that `ids` add in the middle of a text.
    fn text(&self, ids: &[u32]) -> Option<String> {
        let mut all = vec![self.context];
        all.extend_from_slice(ids);
        let text = self.tokenizer.decode(&all, false).ok()?;
        text.strip_prefix(&self.before).map(str::to_string)
    }

    fn bytes(&self, id: u32) -> Vec<u8> {
        let Some(entry) = self.tokenizer.id_to_token(id) else { return vec![] };
        if let Some(byte) = fallback_byte(&entry).filter(|_| self.kind.byte_fallback) {
            return vec![byte];
        }
        let text = self.text(&[id]).unwrap_or_default();
        if !text.contains('\u{FFFD}') || !self.kind.byte_level {
            return text.into_bytes();
        }
        let bytes: Option<Vec<u8>> = entry.chars().map(|c| self.alphabet.get(&c).copied()).collect();
        bytes.unwrap_or_else(|| entry.into_bytes())
    }

    /// Decoders whose text is not the tokens' bytes one after the other cannot be followed byte by byte.
    fn check(&self, words: &[Vec<u8>]) -> Result<(), String> {
        let texts: Vec<u32> =
            (0..words.len() as u32).filter(|&id| usable(&words[id as usize]) && is_text(&words[id as usize])).collect();
        if texts.is_empty() {
            return Err("no token of the tokenizer has text".to_string());
        }
        let mut state = 12345u64;
        let mut random = move |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        for _ in 0..CHECKED_TEXTS {
            let ids: Vec<u32> = (0..2 + random(5)).map(|_| texts[random(texts.len())]).collect();
            let want: Vec<u8> = ids.iter().flat_map(|&id| words[id as usize].iter().copied()).collect();
            if self.text(&ids).map(String::into_bytes) != Some(want) {
                return Err(format!("the tokenizer's decoder is not supported: the text of {ids:?} is not that of each"));
            }
        }
        Ok(())
    }
}

fn usable(word: &[u8]) -> bool {
    !word.is_empty() && word.len() <= MAX_TOKEN_BYTES && word[0] != MARKER
}

fn is_text(word: &[u8]) -> bool {
    std::str::from_utf8(word).is_ok()
}

/// The bytes of all tokens, and those of control tokens behind the marker.
fn read_words(tokenizer: &Tokenizer, reader: &Reader, size: usize, end_tokens: &[u32]) -> Vec<Vec<u8>> {
    let added = tokenizer.get_added_tokens_decoder();
    (0..size as u32)
        .map(|id| {
            let control = end_tokens.contains(&id) || added.get(&id).is_some_and(|token| token.special);
            if control {
                let name = tokenizer.id_to_token(id).unwrap_or_default();
                return if name.is_empty() { vec![] } else { [&[MARKER], name.as_bytes()].concat() };
            }
            let word = reader.bytes(id);
            if usable(&word) {
                word
            } else {
                vec![]
            }
        })
        .collect()
}

/// Whether a text loses a space at its start, and the tokens that lose something else.
fn read_first(tokenizer: &Tokenizer, words: &[Vec<u8>]) -> (bool, Vec<u32>) {
    let alone = |id: u32| tokenizer.decode(&[id], false).unwrap_or_default().into_bytes();
    let is_word = |word: &[u8]| usable(word) && is_text(word) && word[0] == b' ';
    let ids = || (0..words.len() as u32).filter(|&id| is_word(&words[id as usize]));
    let strips = ids().any(|id| words[id as usize].len() > 1 && alone(id) == words[id as usize][1..]);
    if !strips {
        return (false, vec![]);
    }
    (true, ids().filter(|&id| alone(id) != words[id as usize][1..]).collect())
}

fn create(tokenizer: *const Tokenizer, size: usize, end_tokens: Vec<u32>, mask_bytes: usize) -> Result<Vocabulary, String> {
    let shared = Shared(tokenizer);
    let tokenizer = unsafe { &*shared.0 };
    let known = tokenizer.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1).min(size);
    let reader = Reader::new(tokenizer, known as u32)?;
    let mut words = read_words(tokenizer, &reader, known, &end_tokens);
    reader.check(&words)?;
    let (strips_space, bad_first) = read_first(tokenizer, &words);
    words.resize(size, vec![]);
    let mut spelled = [false; 256];
    words.iter().filter(|w| usable(w)).flatten().for_each(|&b| spelled[b as usize] = true);

    let eos = end_tokens.first().copied().unwrap_or(INVALID_TOKEN);
    let mut trie = TokTrie::from(&TokRxInfo::new(size as u32, eos), &words);
    if !end_tokens.is_empty() {
        trie = trie.with_eos_tokens(&end_tokens);
    }
    let mut any_token = trie.alloc_token_set();
    for id in 0..known as u32 {
        if tokenizer.id_to_token(id).is_some() && !end_tokens.contains(&id) {
            any_token.allow_token(id);
        }
    }
    let env: TokEnv = Arc::new(Env { trie });
    let mut factory =
        ParserFactory::new(&env, InferenceCapabilities::default(), &SlicedBiasComputer::general_slices())
            .map_err(|e| e.to_string())?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    let masks = MaskCache::new(mask_bytes, any_token.as_slice().len() * 4);
    Ok(Vocabulary {
        tokenizer: shared,
        env,
        factory,
        masks,
        end_tokens,
        strips_space,
        bad_first,
        any_token,
        known,
        spelled,
    })
}

/// # Safety
/// `tokenizer` outlives the vocabulary and every grammar compiled with it; `end_tokens` points to `len` ids; `out` and
/// `error` to writable places.
#[no_mangle]
pub unsafe extern "C" fn berth_vocabulary_create(
    tokenizer: *const Tokenizer,
    vocab_size: i64,
    end_tokens: *const u32,
    len: usize,
    mask_bytes: usize,
    out: *mut *mut Arc<Vocabulary>,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let size = usize::try_from(vocab_size).ok().filter(|s| (1..1 << 22).contains(s));
        let size = size.ok_or(format!("a vocabulary of {vocab_size} tokens is not supported"))?;
        let ends = if len == 0 { vec![] } else { std::slice::from_raw_parts(end_tokens, len).to_vec() };
        let ends = ends.into_iter().filter(|&id| (id as usize) < size).collect();
        Ok(Box::into_raw(Box::new(Arc::new(create(tokenizer, size, ends, mask_bytes)?))))
    })
}

/// # Safety
/// `vocabulary` came from `berth_vocabulary_create` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn berth_vocabulary_free(vocabulary: *mut Arc<Vocabulary>) {
    drop(Box::from_raw(vocabulary));
}

/// # Safety
/// As `berth_vocabulary_create`; `vocabulary` is alive.
#[no_mangle]
pub unsafe extern "C" fn berth_vocabulary_word(
    vocabulary: *const Arc<Vocabulary>,
    id: u32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || Ok((*vocabulary).trie().token(id).to_vec().into()))
}
