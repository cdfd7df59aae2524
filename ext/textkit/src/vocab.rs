//! A BPE model straight from its tokens and merges, without a tokenizer.json around them.

use crate::{bytes, utf8};
use std::cmp::Ordering;
use std::ffi::c_char;
use tokenizers::models::bpe::{self, BPE};
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

const MAX_PIECE: usize = 512; // bytes of a piece that is put together from others

#[repr(C)]
pub struct Span {
    data: *const c_char,
    len: usize,
}

#[repr(C)]
pub struct Vocab {
    tokens: *const Span,
    token_count: usize,
    merges: *const Span,
    merge_count: usize,
    scores: *const f64,
    added: *const u8,
    unknown: i64,
}

unsafe fn text<'a>(span: &Span, what: &str, i: usize) -> Result<&'a str, String> {
    utf8(span.data, span.len).map_err(|e| format!("{what} {i}: {e}"))
}

/// Gives `tokenizer`, whose model has its settings alone, the vocabulary. Returns the tokens by id; of
/// equal tokens only the last has its id.
pub unsafe fn fill<'a>(tokenizer: &mut Tokenizer, vocab: &Vocab) -> Result<Vec<(u32, &'a str)>, String> {
    let spans = bytes(vocab.tokens, vocab.token_count);
    let mut tokens = Vec::with_capacity(spans.len());
    let mut ids = bpe::Vocab::with_capacity(spans.len());
    let mut replaced = Vec::new();
    for (i, span) in spans.iter().enumerate() {
        let token = text(span, "token", i)?;
        replaced.extend(ids.insert(token.to_string(), i as u32));
        tokens.push((i as u32, token));
    }
    let merges = match vocab.merges.is_null() {
        true => merges_of_scores(&tokens, &ids, bytes(vocab.scores, tokens.len())),
        false => merges_of_lines(bytes(vocab.merges, vocab.merge_count), &tokens)?,
    };
    let ModelWrapper::BPE(settings) = tokenizer.get_model() else {
        return Err("the model is not BPE".into());
    };
    let mut model: BPE = BPE::builder()
        .vocab_and_merges(ids, merges)
        .build()
        .map_err(|e| format!("the merges do not fit the tokens: {e}"))?;
    model.unk_token =
        usize::try_from(vocab.unknown).ok().and_then(|id| tokens.get(id)).map(|(_, token)| token.to_string());
    model.fuse_unk = settings.fuse_unk;
    model.byte_fallback = settings.byte_fallback;
    model.ignore_merges = settings.ignore_merges;
    tokenizer.with_model(model);
    let added = bytes(vocab.added, tokens.len()).iter().zip(&tokens).filter(|(flags, _)| **flags != 0);
    let added = added.map(|(flags, (_, token))| {
        AddedToken::from(*token, flags & crate::tokenizer::SPECIAL != 0).normalized(false)
    });
    tokenizer.add_tokens(added).map_err(|e| e.to_string())?;
    if !replaced.is_empty() {
        replaced.sort_unstable();
        tokens.retain(|(id, _)| replaced.binary_search(id).is_err());
    }
    Ok(tokens)
}

/// Lines as merges.txt has them: two tokens with one space between.
unsafe fn merges_of_lines(lines: &[Span], tokens: &[(u32, &str)]) -> Result<bpe::Merges, String> {
    let longest = tokens.iter().map(|(_, token)| token.len()).max().unwrap_or(0);
    let mut merges = bpe::Merges::with_capacity(lines.len());
    for (i, line) in lines.iter().enumerate() {
        let line = text(line, "merge", i)?;
        if line.starts_with("#version") {
            continue;
        }
        match line.split_once(' ') {
            Some((_, right)) if right.contains(' ') => return Err(format!("merge {i} is not two tokens")),
            Some((left, right)) if left.len() + right.len() <= longest => {
                merges.push((left.to_string(), right.to_string()))
            }
            Some(_) => return Err(format!("merge {i} is longer than any token")),
            None => return Err(format!("merge {i} is not two tokens")),
        }
    }
    Ok(merges)
}

struct Merge {
    score: f64,
    left: u32,
    right: u32,
    chars: [usize; 2], // of left and right
    piece: u32,        // that they make
}

/// Every way to put a piece together from two others: by score, the longer halves first, then as they
/// were found. With the order of Hugging Face's converter BPE makes SentencePiece's pieces.
fn merges_of_scores(tokens: &[(u32, &str)], ids: &bpe::Vocab, scores: &[f64]) -> bpe::Merges {
    let mut found = Vec::new();
    for ((piece, token), score) in tokens.iter().zip(scores) {
        if token.len() > MAX_PIECE {
            continue;
        }
        let total = token.chars().count();
        for (chars, (cut, _)) in token.char_indices().enumerate().skip(1) {
            let (left, right) = token.split_at(cut);
            if let (Some(&left), Some(&right)) = (ids.get(left), ids.get(right)) {
                found.push(Merge {
                    score: *score,
                    left,
                    right,
                    chars: [chars, total - chars],
                    piece: *piece,
                });
            }
        }
    }
    found.sort_unstable_by(|a, b| {
        let by_score = b.score.partial_cmp(&a.score).unwrap_or(Ordering::Equal);
        by_score.then_with(|| (b.chars, a.piece, a.left, a.right).cmp(&(a.chars, b.piece, b.left, b.right)))
    });
    let text = |id: u32| tokens[id as usize].1.to_string();
    found.iter().map(|merge| (text(merge.left), text(merge.right))).collect()
}
