//! Tokenizers, chat templates and grammars behind a small C ABI (text/text_abi.h).
//!
//! Every call returns 0, or 1 with a message in `error`. Panics become errors. What a call hands out is freed by
//! `berth_bytes_free` or `berth_ids_free`.

mod added_tokens;
mod constraint;
mod exact;
mod grammar;
mod jinja;
mod json;
mod lark;
mod mask_cache;
mod pattern;
mod plain_text;
mod pyformat;
mod rule_text;
mod rules;
mod schema;
mod spec;
mod structural_tag;
mod template;
mod token_bytes;
mod tokenizer;
mod tracker;
mod used;
mod uri;
mod vocabulary;
mod watched;
mod words;
mod work;

use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::sync::Once;

/// Bytes owned by Rust until `berth_bytes_free`.
#[repr(C)]
pub struct Bytes {
    data: *mut u8,
    len: usize,
}

/// Token ids owned by Rust until `berth_ids_free`.
#[repr(C)]
pub struct Ids {
    data: *mut u32,
    len: usize,
}

impl From<String> for Bytes {
    fn from(text: String) -> Self {
        text.into_bytes().into()
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let mut boxed = bytes.into_boxed_slice();
        let bytes = Bytes { data: boxed.as_mut_ptr(), len: boxed.len() };
        std::mem::forget(boxed);
        bytes
    }
}

impl From<Vec<u32>> for Ids {
    fn from(ids: Vec<u32>) -> Self {
        let mut boxed = ids.into_boxed_slice();
        let ids = Ids { data: boxed.as_mut_ptr(), len: boxed.len() };
        std::mem::forget(boxed);
        ids
    }
}

/// # Safety
/// `data` points to `len` bytes, or `len` is 0.
pub(crate) unsafe fn text<'a>(data: *const u8, len: usize) -> Result<&'a str, String> {
    if len == 0 {
        return Ok("");
    }
    std::str::from_utf8(std::slice::from_raw_parts(data, len)).map_err(|e| format!("not UTF-8: {e}"))
}

/// Lets panics say where they were, but not their messages, which may quote a prompt.
fn hide_panic_messages() {
    static HIDE: Once = Once::new();
    HIDE.call_once(|| {
        set_hook(Box::new(|panic| {
            let place = panic.location().map_or("an unknown place".to_string(), |place| place.to_string());
            eprintln!("the text library panicked at {place}");
        }))
    });
}

/// Runs `call` and writes its value or its error.
pub(crate) fn guard<T>(out: *mut T, error: *mut Bytes, call: impl FnOnce() -> Result<T, String>) -> i32 {
    hide_panic_messages();
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        Err(format!("internal error: panic: {message}"))
    });
    match result {
        Ok(value) => {
            unsafe { out.write(value) };
            0
        }
        Err(message) => {
            unsafe { error.write(message.into()) };
            1
        }
    }
}

/// # Safety
/// `bytes` came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn berth_bytes_free(bytes: Bytes) {
    if !bytes.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(bytes.data, bytes.len)));
    }
}

/// # Safety
/// `ids` came from this library and is freed once.
#[no_mangle]
pub unsafe extern "C" fn berth_ids_free(ids: Ids) {
    if !ids.data.is_null() {
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(ids.data, ids.len)));
    }
}
