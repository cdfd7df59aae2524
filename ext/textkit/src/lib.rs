//! What dspark takes from Rust: tokenizers, templates and (through its own C header) llguidance.
//! The interface and its rules are in textkit.h; this file has what both halves share.

extern crate llguidance as _; // keeps its C symbols in the library

mod python;
mod source;
mod template;
mod tokenizer;
mod vocab;

use std::cell::RefCell;
use std::ffi::{c_char, c_void};
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::sync::Once;

extern "C" {
    fn malloc(size: usize) -> *mut c_void;
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `f`, turning a panic into its message.
pub(crate) fn guard<T>(f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        set_hook(Box::new(|info| {
            let _ = PANIC.try_with(|cell| *cell.borrow_mut() = Some(info.to_string()));
        }))
    });
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
        let what = PANIC.with(|cell| cell.borrow_mut().take()).unwrap_or_default();
        Err(format!("internal error: {}", what.replace('\n', " ")))
    })
}

/// A caller's error buffer.
pub(crate) struct Sink(pub *mut c_char, pub usize);

impl Sink {
    pub unsafe fn put(&self, text: &str) {
        if self.0.is_null() || self.1 == 0 {
            return;
        }
        let mut n = text.len().min(self.1 - 1);
        while !text.is_char_boundary(n) {
            n -= 1;
        }
        std::ptr::copy_nonoverlapping(text.as_ptr(), self.0.cast(), n);
        *self.0.add(n) = 0;
    }

    /// 0, or -1 with the sentence written.
    pub unsafe fn status(&self, result: Result<(), String>) -> i32 {
        match result {
            Ok(()) => 0,
            Err(text) => {
                self.put(&text);
                -1
            }
        }
    }

    /// An object for C, or NULL with the sentence written.
    pub unsafe fn object<T>(&self, result: Result<T, String>) -> *mut T {
        match result {
            Ok(value) => Box::into_raw(Box::new(value)),
            Err(text) => {
                self.put(&text);
                std::ptr::null_mut()
            }
        }
    }
}

pub(crate) unsafe fn bytes<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if len == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, len)
    }
}

pub(crate) unsafe fn utf8<'a>(data: *const c_char, len: usize) -> Result<&'a str, String> {
    std::str::from_utf8(bytes(data.cast(), len)).map_err(|e| format!("byte {} is not UTF-8", e.valid_up_to()))
}

/// Copies to malloc's memory, which C frees; `end` zero items follow.
pub(crate) unsafe fn give<T: Copy>(
    items: &[T],
    end: usize,
    out: *mut *mut T,
    out_len: *mut usize,
) -> Result<(), String> {
    let unit = std::mem::size_of::<T>();
    let copy: *mut T = malloc(((items.len() + end) * unit).max(1)).cast();
    if copy.is_null() {
        return Err("out of memory".into());
    }
    std::ptr::copy_nonoverlapping(items.as_ptr(), copy, items.len());
    std::ptr::write_bytes(copy.add(items.len()), 0, end);
    *out = copy;
    *out_len = items.len();
    Ok(())
}
