//! The tokenizers crate: text to ids and back.

use crate::added_tokens;
use crate::token_bytes::LoadedTokenizer;
use crate::{guard, text, Bytes, Ids};
use std::cell::Cell;
use std::ffi::c_void;
use tokenizers::tokenizer::{Model, OffsetType, PreTokenizer};
use tokenizers::Tokenizer;

/// Asks the caller whether to give up. `None`: never.
type Stop = Option<extern "C" fn(*const c_void) -> bool>;

/// Encodes like `Tokenizer::encode_fast`, but asks `stop` before each word, and leaves out the rest of the words once
/// there are more than `max_tokens` tokens. A word is what the pre-tokenizer leaves whole. 0: no limit.
fn encode(
    tokenizer: &Tokenizer,
    text: &str,
    add_special_tokens: bool,
    max_tokens: usize,
    stop: &dyn Fn() -> bool,
) -> tokenizers::Result<Vec<u32>> {
    let mut words = tokenizer.get_added_vocabulary().extract_and_normalize(tokenizer.get_normalizer(), text);
    if stop() {
        return Err("stopped".into());
    }
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut words)?;
    }
    let count = Cell::new(0);
    words.tokenize(|word| {
        if max_tokens > 0 && count.get() > max_tokens {
            return Ok(Vec::new());
        }
        if stop() {
            return Err("stopped".into());
        }
        let tokens = tokenizer.get_model().tokenize(word.get())?;
        count.set(count.get() + tokens.len());
        Ok(tokens)
    })?;
    let encoding = words.into_encoding(None, 0, OffsetType::None)?;
    Ok(tokenizer.post_process(encoding, None, add_special_tokens)?.get_ids().to_vec())
}

/// `settings` is JSON of added_tokens::Settings; empty: none.
///
/// # Safety
/// `json` points to `len` bytes, and `settings` to `settings_len`; `out` and `error` to writable places.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_load(
    json: *const u8,
    len: usize,
    settings: *const u8,
    settings_len: usize,
    out: *mut *mut LoadedTokenizer,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let json = text(json, len)?;
        // The crate panics at some errors of syntax.
        serde_json::from_str::<serde::de::IgnoredAny>(json).map_err(|e| format!("not JSON: {e}"))?;
        let mut tokenizer: Tokenizer = json.parse().map_err(|e| format!("{e}"))?;
        // The file may carry the padding and truncation of some training run: a server wants neither.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| format!("{e}"))?;
        if settings_len > 0 {
            let settings = serde_json::from_str(text(settings, settings_len)?).map_err(|e| format!("settings: {e}"))?;
            added_tokens::apply(&settings, &mut tokenizer)?;
        }
        Ok(Box::into_raw(Box::new(LoadedTokenizer::new(tokenizer))))
    })
}

/// # Safety
/// `tokenizer` came from `berth_tokenizer_load` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_free(tokenizer: *mut LoadedTokenizer) {
    drop(Box::from_raw(tokenizer));
}

/// # Safety
/// `tokenizer` is alive.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_is_bpe(tokenizer: *const LoadedTokenizer) -> bool {
    matches!((*tokenizer).get_model(), tokenizers::ModelWrapper::BPE(_))
}

/// # Safety
/// As `berth_tokenizer_load`; `tokenizer` is alive; `stop` may be called with `stop_data`.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_encode(
    tokenizer: *const LoadedTokenizer,
    data: *const u8,
    len: usize,
    add_special_tokens: bool,
    max_tokens: usize,
    stop: Stop,
    stop_data: *const c_void,
    out: *mut Ids,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let stop = || stop.is_some_and(|stop| stop(stop_data));
        let ids = encode(&*tokenizer, text(data, len)?, add_special_tokens, max_tokens, &stop);
        Ok(ids.map_err(|e| format!("{e}"))?.into())
    })
}

/// # Safety
/// `ids` points to `len` ids; otherwise as `berth_tokenizer_encode`.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_decode(
    tokenizer: *const LoadedTokenizer,
    ids: *const u32,
    len: usize,
    skip_special_tokens: bool,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let ids = if len == 0 { &[] } else { std::slice::from_raw_parts(ids, len) };
        let decoded = (*tokenizer).decode(ids, skip_special_tokens).map_err(|e| format!("{e}"))?;
        Ok(decoded.into())
    })
}

/// Whether decoding reads the token at all: it has an entry, and is not left out as a special token.
///
/// # Safety
/// As `berth_tokenizer_encode`.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_reads(tokenizer: *const LoadedTokenizer, id: u32, skip_special_tokens: bool) -> bool {
    let added = (*tokenizer).get_added_vocabulary();
    (*tokenizer).id_to_token(id).is_some_and(|token| !(skip_special_tokens && added.is_special_token(&token)))
}

/// What a token adds to a text.
#[repr(C)]
pub struct TokenText {
    text: Bytes,  // with U+FFFD for parts of characters
    bytes: Bytes, // none if they are those of `text`
}

/// What the token adds to a text, as its first token or in its middle. Nothing for an id without a token.
///
/// # Safety
/// As `berth_tokenizer_encode`.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_token_text(
    tokenizer: *const LoadedTokenizer,
    id: u32,
    first: bool,
    out: *mut TokenText,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let bytes = if first { (*tokenizer).first_bytes(id) } else { (*tokenizer).bytes(id) };
        Ok(match String::from_utf8(bytes) {
            Ok(text) => TokenText { text: text.into(), bytes: vec![].into() },
            Err(parts) => TokenText {
                text: String::from_utf8_lossy(parts.as_bytes()).into_owned().into(),
                bytes: parts.into_bytes().into(),
            },
        })
    })
}

/// The id of a token, or -1.
///
/// # Safety
/// As `berth_tokenizer_encode`.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_id(tokenizer: *const LoadedTokenizer, data: *const u8, len: usize) -> i64 {
    match text(data, len) {
        Ok(token) => (*tokenizer).token_to_id(token).map_or(-1, i64::from),
        Err(_) => -1,
    }
}

/// The largest id plus one.
///
/// # Safety
/// As `berth_tokenizer_encode`.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_size(tokenizer: *const LoadedTokenizer) -> i64 {
    (*tokenizer).get_vocab(true).values().max().map_or(0, |id| i64::from(*id) + 1)
}

/// No token stands for more bytes of text than this. 0: unknown, because a normalizer, a pre-tokenizer or a model drops
/// text, or one unknown token stands for any.
///
/// # Safety
/// As `berth_tokenizer_encode`.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_longest_token(tokenizer: *const LoadedTokenizer) -> i64 {
    longest_token(&*tokenizer).unwrap_or(0)
}

fn longest_token(tokenizer: &Tokenizer) -> Option<i64> {
    use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};
    // How often longer a text may be than what the normalizer leaves of it.
    fn shrinks(normalizer: &NormalizerWrapper) -> Option<i64> {
        match normalizer {
            NormalizerWrapper::NFC(_) => Some(3),  // e and U+0301 are three bytes, their character has two
            NormalizerWrapper::Prepend(_) | NormalizerWrapper::ByteLevel(_) => Some(1),
            NormalizerWrapper::Sequence(all) => {
                all.as_ref().iter().try_fold(1, |product, one| Some(product * shrinks(one)?))
            }
            // SentencePiece's mark for a space, the usual case.
            NormalizerWrapper::Replace(_) => {
                let json = serde_json::to_value(normalizer).ok()?;
                let pattern = json["pattern"]["String"].as_str()?;
                (json["content"].as_str()?.len() >= pattern.len()).then_some(1)
            }
            _ => None,
        }
    }
    fn keeps_all(pre_tokenizer: &PreTokenizerWrapper) -> bool {
        match pre_tokenizer {
            PreTokenizerWrapper::ByteLevel(_)
            | PreTokenizerWrapper::Digits(_)
            | PreTokenizerWrapper::Metaspace(_)
            | PreTokenizerWrapper::UnicodeScripts(_) => true,
            PreTokenizerWrapper::Split(split) => !matches!(split.behavior, SplitDelimiterBehavior::Removed),
            PreTokenizerWrapper::Sequence(all) => all.as_ref().iter().all(keeps_all),
            _ => false,
        }
    }
    let factor = tokenizer.get_normalizer().map_or(Some(1), shrinks)?;
    if !tokenizer.get_pre_tokenizer().is_none_or(keeps_all) {
        return None;
    }
    match tokenizer.get_model() {
        ModelWrapper::BPE(bpe) if bpe.unk_token.is_none() || bpe.byte_fallback => {}
        _ => return None,
    }
    tokenizer.get_vocab(true).keys().map(|token| factor * token.len() as i64).max()
}
