//! tokenizer.json in, ids and text out, and the table of the bytes behind each id.

use crate::{bytes, give, guard, utf8, vocab, Sink};
use serde_json::Value;
use std::borrow::Cow;
use std::ffi::c_char;
use tokenizers::Tokenizer;

const TOKEN: u8 = 1;
const ADDED: u8 = 2;
pub const SPECIAL: u8 = 4;
const BYTE: u8 = 8;
const MAX_ID: u32 = 1 << 23; // ids are untrusted, and the table is as long as the highest

pub struct Tok {
    inner: Tokenizer,
    bytes: Vec<u8>,
    ends: Vec<u32>,
    flags: Vec<u8>,
}

#[repr(C)]
pub struct Table {
    bytes: *const u8,
    ends: *const u32,
    flags: *const u8,
    count: usize,
}

/// How the decoder turns a token's string into bytes.
#[derive(Default)]
struct Alphabet {
    byte_level: bool,
    byte_fallback: bool,
    replace: Vec<(String, String)>,
}

impl Alphabet {
    fn read(&mut self, decoder: &Value) {
        let text = |key: &str| decoder[key].as_str().unwrap_or_default().to_string();
        match decoder["type"].as_str() {
            Some("ByteLevel") => self.byte_level = true,
            Some("ByteFallback") => self.byte_fallback = true,
            Some("Replace") => {
                if let Some(from) = decoder["pattern"]["String"].as_str() {
                    self.replace.push((from.to_string(), text("content")));
                }
            }
            Some("Metaspace") => self.replace.push((text("replacement"), " ".into())),
            Some("BPEDecoder") => self.replace.push((text("suffix"), " ".into())),
            Some("WordPiece") => self.replace.push((text("prefix"), String::new())),
            Some("Sequence") => {
                decoder["decoders"].as_array().into_iter().flatten().for_each(|d| self.read(d))
            }
            _ => {}
        }
    }

    /// Appends the token's bytes; returns the flags that they give it.
    fn add(&self, token: &str, out: &mut Vec<u8>) -> u8 {
        let start = out.len();
        if self.byte_fallback {
            if let Some(byte) = byte_token(token) {
                out.push(byte);
                return BYTE;
            }
        }
        if self.byte_level {
            for c in token.chars() {
                match byte_of(c) {
                    Some(byte) => out.push(byte),
                    None => {
                        out.truncate(start);
                        out.extend_from_slice(token.as_bytes());
                        break;
                    }
                }
            }
            return 0;
        }
        let mut text = Cow::Borrowed(token);
        for (from, to) in self.replace.iter().filter(|(from, _)| !from.is_empty()) {
            if text.contains(from) {
                text = text.replace(from, to).into();
            }
        }
        out.extend_from_slice(text.as_bytes());
        0
    }
}

/// `<0x0A>`: the byte that such a token stands for.
fn byte_token(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

/// Byte-level BPE writes every byte as a visible character: printable Latin-1 as itself, the other
/// 68 bytes in order from U+0100.
fn byte_of(c: char) -> Option<u8> {
    match c as u32 {
        c @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(c as u8),
        c @ 0x100..=0x120 => Some((c - 0x100) as u8),
        c @ 0x121..=0x142 => Some((c - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

unsafe fn open(json: &[u8], vocab: Option<&vocab::Vocab>) -> Result<Tok, String> {
    let mut inner = Tokenizer::from_bytes(json).map_err(|e| e.to_string())?;
    inner.with_truncation(None).map_err(|e| e.to_string())?;
    inner.with_padding(None);
    if let Some(vocab) = vocab {
        let tokens = vocab::fill(&mut inner, vocab)?;
        return with_table(inner, &tokens);
    }
    let vocab = inner.get_vocab(true);
    let mut tokens: Vec<(u32, &str)> = vocab.iter().map(|(token, id)| (*id, token.as_str())).collect();
    tokens.sort_unstable();
    with_table(inner, &tokens)
}

/// tokens: all of them, by id
fn with_table(inner: Tokenizer, tokens: &[(u32, &str)]) -> Result<Tok, String> {
    let decoder = serde_json::to_value(inner.get_decoder()).map_err(|e| e.to_string())?;
    let mut alphabet = Alphabet::default();
    alphabet.read(&decoder);
    let added = inner.get_added_tokens_decoder();
    let count = tokens.last().map_or(0, |last| last.0 as usize + 1);
    if count > MAX_ID as usize {
        return Err(format!("token id {} is too large", count - 1));
    }
    let mut tok = Tok { inner, bytes: Vec::new(), ends: Vec::with_capacity(count), flags: vec![0; count] };
    for (id, token) in tokens {
        tok.ends.resize(*id as usize, tok.bytes.len() as u32); // ids of no token before this one
        if tok.ends.len() > *id as usize {
            continue;
        }
        let flags = match added.get(id) {
            Some(token) if token.special || alphabet.byte_level => {
                tok.bytes.extend_from_slice(token.content.as_bytes());
                if token.special {
                    ADDED | SPECIAL
                } else {
                    ADDED
                }
            }
            Some(token) => {
                alphabet.add(&token.content, &mut tok.bytes);
                ADDED
            }
            None => alphabet.add(token, &mut tok.bytes),
        };
        tok.ends.push(u32::try_from(tok.bytes.len()).map_err(|_| "the vocabulary is too large")?);
        tok.flags[*id as usize] = flags | TOKEN;
    }
    Ok(tok)
}

/// # Safety
/// As textkit.h says, for this and every function below.
#[no_mangle]
pub unsafe extern "C" fn tk_tokenizer_open(
    json: *const c_char,
    len: usize,
    vocab: Option<&vocab::Vocab>,
    err: *mut c_char,
    err_size: usize,
) -> *mut Tok {
    let json = bytes(json.cast(), len);
    Sink(err, err_size).object(guard(|| open(json, vocab)))
}

#[no_mangle]
pub unsafe extern "C" fn tk_tokenizer_close(tok: *mut Tok) {
    if !tok.is_null() {
        let _ = guard(|| {
            drop(Box::from_raw(tok));
            Ok(())
        });
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_tokenizer_encode(
    tok: &Tok,
    text: *const c_char,
    len: usize,
    special: bool,
    out: *mut *mut u32,
    out_len: *mut usize,
    err: *mut c_char,
    err_size: usize,
) -> i32 {
    (*out, *out_len) = (std::ptr::null_mut(), 0);
    Sink(err, err_size).status(guard(|| {
        let encoding = tok.inner.encode_fast(utf8(text, len)?, special).map_err(|e| e.to_string())?;
        match encoding.get_ids() {
            [] => Ok(()),
            ids => give(ids, 0, out, out_len),
        }
    }))
}

#[no_mangle]
pub unsafe extern "C" fn tk_tokenizer_decode(
    tok: &Tok,
    ids: *const u32,
    n: usize,
    skip_special: bool,
    out: *mut *mut c_char,
    out_len: *mut usize,
    err: *mut c_char,
    err_size: usize,
) -> i32 {
    (*out, *out_len) = (std::ptr::null_mut(), 0);
    Sink(err, err_size).status(guard(|| {
        let text = tok.inner.decode(bytes(ids, n), skip_special).map_err(|e| e.to_string())?;
        give(text.as_bytes(), 1, out.cast(), out_len)
    }))
}

#[no_mangle]
pub extern "C" fn tk_tokenizer_table(tok: &Tok) -> Table {
    Table {
        bytes: tok.bytes.as_ptr(),
        ends: tok.ends.as_ptr(),
        flags: tok.flags.as_ptr(),
        count: tok.ends.len(),
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_tokenizer_id(tok: &Tok, token: *const c_char, len: usize) -> i64 {
    guard(|| Ok(tok.inner.token_to_id(utf8(token, len)?))).ok().flatten().map_or(-1, i64::from)
}
