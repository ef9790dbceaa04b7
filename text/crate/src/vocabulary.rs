//! The bytes of every token (token_bytes.rs) in llguidance's trie. Control tokens are not text: in the trie they stand
//! behind the byte 0xFF, which no text has.

use crate::mask_cache::MaskCache;
use crate::plain_text::PlainText;
use crate::token_bytes::LoadedTokenizer;
use crate::{guard, Bytes};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenizerEnv, INVALID_TOKEN};
use llguidance::ParserFactory;
use std::sync::Arc;

const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
/// The trie's nodes know at most 1024 ancestors. Longer tokens are never needed.
const MAX_TOKEN_BYTES: usize = 1000;
/// Random texts that must decode to their tokens' bytes, one after the other.
const CHECKED_TEXTS: usize = 300;

/// The tokenizer outlives the vocabulary: berth_vocabulary_create says so.
struct Shared(*const LoadedTokenizer);
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
    pub plain_text: Arc<PlainText>,
    pub masks: MaskCache,
    pub end_tokens: Vec<u32>,
    /// Whether a text's first character is dropped if it is a space.
    pub strips_space: bool,
    /// With `strips_space`: tokens that decode to something else than their bytes less one space when they come first.
    pub bad_first: Vec<u32>,
    /// Tokens that the tokenizer knows, except end tokens.
    pub any_token: SimpleVob,
    /// Ids from here on have no token.
    pub known: usize,
    /// Which bytes some token has.
    pub spelled: [bool; 256],
    /// Tokens with at least one quote, two and three.
    pub quotes: [Vec<u32>; 3],
    /// Tokens that may hold an array's beginning and a whole item.
    pub lists: Vec<u32>,
    /// Tokens that may begin an array or an object, and how many at most.
    pub opening: Vec<u32>,
    pub most_opened: usize,
}

impl Vocabulary {
    pub fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }

    pub fn special_token(&self, name: &str) -> Option<u32> {
        self.trie().get_special_token(name)
    }

    fn tokenizer(&self) -> &LoadedTokenizer {
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
                let tokens =
                    [context, "", "\n", "\"", ".", "a"].iter().find_map(|c| self.encode_after(c, chunk.valid()));
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

fn usable(word: &[u8]) -> bool {
    !word.is_empty() && word.len() <= MAX_TOKEN_BYTES && word[0] != MARKER
}

fn is_text(word: &[u8]) -> bool {
    std::str::from_utf8(word).is_ok()
}

/// Decoders whose text is not the tokens' bytes one after the other cannot be followed byte by byte.
fn check(tokenizer: &LoadedTokenizer, words: &[Vec<u8>]) -> Result<(), String> {
    let reader = tokenizer.reader()?;
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
        if reader.text(tokenizer, &ids).map(String::into_bytes) != Some(want) {
            return Err(format!("the tokenizer's decoder is not supported: the text of {ids:?} is not that of each"));
        }
    }
    Ok(())
}

/// The bytes of all tokens, and those of control tokens behind the marker.
fn read_words(tokenizer: &LoadedTokenizer, size: usize, end_tokens: &[u32]) -> Vec<Vec<u8>> {
    let added = tokenizer.get_added_tokens_decoder();
    (0..size as u32)
        .map(|id| {
            let control = end_tokens.contains(&id) || added.get(&id).is_some_and(|token| token.special);
            if control {
                let name = tokenizer.id_to_token(id).unwrap_or_default();
                return if name.is_empty() { vec![] } else { [&[MARKER], name.as_bytes()].concat() };
            }
            let word = tokenizer.bytes(id);
            if usable(&word) {
                word
            } else {
                vec![]
            }
        })
        .collect()
}

/// Whether a text loses a space at its start, and the tokens that lose something else.
fn read_first(tokenizer: &LoadedTokenizer, words: &[Vec<u8>]) -> (bool, Vec<u32>) {
    let alone = |id: u32| tokenizer.decode(&[id], false).unwrap_or_default().into_bytes();
    let is_word = |word: &[u8]| usable(word) && is_text(word) && word[0] == b' ';
    let ids = || (0..words.len() as u32).filter(|&id| is_word(&words[id as usize]));
    let strips = ids().any(|id| words[id as usize].len() > 1 && alone(id) == words[id as usize][1..]);
    if !strips {
        return (false, vec![]);
    }
    (true, ids().filter(|&id| alone(id) != words[id as usize][1..]).collect())
}

fn create(
    tokenizer: *const LoadedTokenizer,
    size: usize,
    end_tokens: Vec<u32>,
    mask_bytes: usize,
) -> Result<Vocabulary, String> {
    let shared = Shared(tokenizer);
    let tokenizer = unsafe { &*shared.0 };
    let known = tokenizer.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1).min(size);
    let mut words = read_words(tokenizer, known, &end_tokens);
    check(tokenizer, &words)?;
    let (strips_space, bad_first) = read_first(tokenizer, &words);
    words.resize(size, vec![]);
    let mut spelled = [false; 256];
    words.iter().filter(|w| usable(w)).flatten().for_each(|&b| spelled[b as usize] = true);

    let with = |fits: &dyn Fn(&[u8]) -> bool| -> Vec<u32> {
        (0..known as u32).filter(|&id| usable(&words[id as usize]) && fits(&words[id as usize])).collect()
    };
    let quotes = [1, 2, 3].map(|count| with(&|word| word.iter().filter(|&&b| b == b'"').count() >= count));
    let lists = with(&|word| word.contains(&b'[') && word.contains(&b','));
    let opened = |word: &[u8]| word.iter().filter(|&&b| b == b'[' || b == b'{').count();
    let opening = with(&|word| opened(word) > 0);
    let most_opened = opening.iter().map(|&id| opened(&words[id as usize])).max().unwrap_or(0);
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
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &SlicedBiasComputer::general_slices())
        .map_err(|e| e.to_string())?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    let plain_text = Arc::new(PlainText::new(env.tok_trie(), factory.slicer()));
    let masks = MaskCache::new(mask_bytes, any_token.as_slice().len() * 4);
    Ok(Vocabulary {
        tokenizer: shared,
        env,
        factory,
        plain_text,
        masks,
        end_tokens,
        strips_space,
        bad_first,
        any_token,
        known,
        spelled,
        quotes,
        lists,
        opening,
        most_opened,
    })
}

/// # Safety
/// `tokenizer` outlives the vocabulary and every grammar compiled with it; `end_tokens` points to `len` ids; `out` and
/// `error` to writable places.
#[no_mangle]
pub unsafe extern "C" fn berth_vocabulary_create(
    tokenizer: *const LoadedTokenizer,
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
