//! tokenizer.json in, ids and text out, and the table of the bytes behind each id.

use crate::{bytes, give, guard, utf8, Sink};
use serde_json::Value;
use std::ffi::c_char;
use tokenizers::Tokenizer;

const TOKEN: u8 = 1;
const ADDED: u8 = 2;
const SPECIAL: u8 = 4;
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

    fn bytes(&self, token: &str) -> (Vec<u8>, u8) {
        if self.byte_fallback {
            if let Some(byte) = byte_token(token) {
                return (vec![byte], BYTE);
            }
        }
        if self.byte_level {
            return match token.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
                Some(bytes) => (bytes, 0),
                None => (token.into(), 0),
            };
        }
        let mut text = token.to_string();
        for (from, to) in self.replace.iter().filter(|(from, _)| !from.is_empty()) {
            text = text.replace(from, to);
        }
        (text.into_bytes(), 0)
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
    let visible = |c: u32| matches!(c, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match c as u32 {
        c if visible(c) => Some(c as u8),
        c @ 0x100..=0x143 => (0u32..=255).filter(|b| !visible(*b)).nth(c as usize - 0x100).map(|b| b as u8),
        _ => None,
    }
}

fn open(json: &[u8]) -> Result<Tok, String> {
    let mut inner = Tokenizer::from_bytes(json).map_err(|e| e.to_string())?;
    inner.with_truncation(None).map_err(|e| e.to_string())?;
    inner.with_padding(None);
    let decoder = serde_json::to_value(inner.get_decoder()).map_err(|e| e.to_string())?;
    let mut alphabet = Alphabet::default();
    alphabet.read(&decoder);
    let added = inner.get_added_tokens_decoder();
    let mut vocab: Vec<(u32, String)> = inner.get_vocab(true).into_iter().map(|(t, id)| (id, t)).collect();
    vocab.sort_unstable();
    let count = vocab.last().map_or(0, |last| last.0 as usize + 1);
    if count > MAX_ID as usize {
        return Err(format!("token id {} is too large", count - 1));
    }
    let mut tok = Tok { inner, bytes: Vec::new(), ends: Vec::with_capacity(count), flags: vec![0; count] };
    for (id, token) in &vocab {
        tok.ends.resize(*id as usize, tok.bytes.len() as u32); // ids of no token before this one
        if tok.ends.len() > *id as usize {
            continue;
        }
        let (bytes, mut flags) = match added.get(id) {
            Some(token) if token.special => (token.content.clone().into_bytes(), ADDED | SPECIAL),
            Some(token) if alphabet.byte_level => (token.content.clone().into_bytes(), ADDED),
            Some(token) => (alphabet.bytes(&token.content).0, ADDED),
            None => alphabet.bytes(token),
        };
        flags |= TOKEN;
        tok.bytes.extend_from_slice(&bytes);
        tok.ends.push(u32::try_from(tok.bytes.len()).map_err(|_| "the vocabulary is too large")?);
        tok.flags[*id as usize] = flags;
    }
    Ok(tok)
}

/// # Safety
/// As textkit.h says, for this and every function below.
#[no_mangle]
pub unsafe extern "C" fn tk_tokenizer_open(
    json: *const c_char,
    len: usize,
    err: *mut c_char,
    err_size: usize,
) -> *mut Tok {
    let json = bytes(json.cast(), len);
    Sink(err, err_size).object(guard(|| open(json)))
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
