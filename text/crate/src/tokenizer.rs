//! The tokenizers crate: text to ids and back.

use crate::{guard, text, Bytes, Ids};
use tokenizers::Tokenizer;

/// # Safety
/// `json` points to `len` bytes; `out` and `error` to writable places.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_load(
    json: *const u8,
    len: usize,
    out: *mut *mut Tokenizer,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let mut tokenizer: Tokenizer = text(json, len)?.parse().map_err(|e| format!("{e}"))?;
        // The file may carry the padding and truncation of some training run: a server wants neither.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| format!("{e}"))?;
        Ok(Box::into_raw(Box::new(tokenizer)))
    })
}

/// # Safety
/// `tokenizer` came from `berth_tokenizer_load` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_free(tokenizer: *mut Tokenizer) {
    drop(Box::from_raw(tokenizer));
}

/// # Safety
/// As `berth_tokenizer_load`; `tokenizer` is alive.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_encode(
    tokenizer: *const Tokenizer,
    data: *const u8,
    len: usize,
    add_special_tokens: bool,
    out: *mut Ids,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let encoding = (*tokenizer).encode_fast(text(data, len)?, add_special_tokens).map_err(|e| format!("{e}"))?;
        Ok(encoding.get_ids().to_vec().into())
    })
}

/// # Safety
/// `ids` points to `len` ids; otherwise as `berth_tokenizer_encode`.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_decode(
    tokenizer: *const Tokenizer,
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

/// The token's entry in the vocabulary, as the file spells it. An error when there is none.
///
/// # Safety
/// As `berth_tokenizer_encode`.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_token(
    tokenizer: *const Tokenizer,
    id: u32,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || match (*tokenizer).id_to_token(id) {
        Some(token) => Ok(token.into()),
        None => Err(format!("no token has id {id}")),
    })
}

/// The id of a token, or -1.
///
/// # Safety
/// As `berth_tokenizer_encode`.
#[no_mangle]
pub unsafe extern "C" fn berth_tokenizer_id(tokenizer: *const Tokenizer, data: *const u8, len: usize) -> i64 {
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
pub unsafe extern "C" fn berth_tokenizer_size(tokenizer: *const Tokenizer) -> i64 {
    (*tokenizer).get_vocab(true).values().max().map_or(0, |id| i64::from(*id) + 1)
}
