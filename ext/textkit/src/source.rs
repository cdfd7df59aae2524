//! Rewrites of a template's text for what minijinja does not know:
//! `{% generation %}` (marks the model's own words for training; here it changes nothing) becomes
//! `{% if true %}`, and `'literal' % operand` becomes `'literal'|_percent(operand)`.

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Text, // a string literal
    Word, // a name or a number
    Sign(u8),
}

#[derive(Clone, Copy)]
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
    mate: usize, // of an opening bracket: the index of its closing one
}

/// Replace bytes [0 .. 1) by the text.
type Edit = (usize, usize, &'static str);

pub fn rewrite(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut edits: Vec<Edit> = Vec::new();
    let (bytes, mut at) = (source.as_bytes(), 0);
    while let Some(open) = source[at..].find('{').map(|i| i + at) {
        at = open + 1;
        match bytes.get(at) {
            Some(b'#') => at = source[at..].find("#}").map_or(bytes.len(), |i| at + i + 2),
            Some(b'%') | Some(b'{') => {
                let close = if bytes[at] == b'%' { b'%' } else { b'}' };
                let tokens = scan(bytes, at + 1, close);
                at = tokens.last().map_or(at, |t| t.end) + 1;
                if close == b'%' {
                    at = tag(&source, &tokens, at, &mut edits);
                }
                percent(&tokens, &mut edits);
            }
            _ => {}
        }
    }
    apply(&source, edits)
}

/// The tokens from `at` up to the `%}` or `}}` that ends the tag.
fn scan(bytes: &[u8], mut at: usize, close: u8) -> Vec<Token> {
    let (mut tokens, mut open): (Vec<Token>, Vec<usize>) = (Vec::new(), Vec::new());
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c >= 0x80;
    while at < bytes.len() {
        let (start, c) = (at, bytes[at]);
        if c == close && bytes.get(at + 1) == Some(&b'}') && (c == b'%' || open.is_empty()) {
            break;
        }
        at += 1;
        let kind = match c {
            b'\'' | b'"' => {
                while at < bytes.len() && bytes[at] != c {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at = (at + 1).min(bytes.len());
                Kind::Text
            }
            _ if c.is_ascii_whitespace() => continue,
            _ if word(c) => {
                while at < bytes.len() && word(bytes[at]) {
                    at += 1;
                }
                Kind::Word
            }
            _ => Kind::Sign(c),
        };
        match c {
            b'(' | b'[' | b'{' => open.push(tokens.len()),
            b')' | b']' | b'}' => {
                if let Some(mate) = open.pop() {
                    tokens[mate].mate = tokens.len();
                }
            }
            _ => {}
        }
        tokens.push(Token { kind, start, end: at, mate: tokens.len() });
    }
    tokens
}

/// Edits a generation tag; returns where to go on (behind the body of a raw block).
fn tag(source: &str, tokens: &[Token], at: usize, edits: &mut Vec<Edit>) -> usize {
    let mut words = tokens.iter().filter(|t| !matches!(t.kind, Kind::Sign(b'-') | Kind::Sign(b'+')));
    let (Some(word), None) = (words.next(), words.next()) else {
        return at;
    };
    match &source[word.start..word.end] {
        "generation" => edits.push((word.start, word.end, "if true")),
        "endgeneration" => edits.push((word.start, word.end, "endif")),
        "raw" => return source[at..].find("endraw").map_or(source.len(), |i| at + i),
        _ => {}
    }
    at
}

fn percent(tokens: &[Token], edits: &mut Vec<Edit>) {
    for pair in 1..tokens.len() {
        if tokens[pair - 1].kind == Kind::Text && tokens[pair].kind == Kind::Sign(b'%') {
            if let Some(last) = operand(tokens, pair + 1) {
                edits.push((tokens[pair].start, tokens[pair].end, "|_percent("));
                edits.push((tokens[last].end, tokens[last].end, ")"));
            }
        }
    }
}

/// The last token of the operand that starts at `i`: a primary and what is attached to it.
fn operand(tokens: &[Token], mut i: usize) -> Option<usize> {
    let sign = |i: usize| match tokens.get(i).map(|t| t.kind) {
        Some(Kind::Sign(c)) => c,
        _ => 0,
    };
    while matches!(sign(i), b'-' | b'+') {
        i += 1;
    }
    let mut last = tokens.get(i)?.mate;
    loop {
        match sign(last + 1) {
            b'.' | b'|' if tokens.get(last + 2).is_some_and(|t| t.kind == Kind::Word) => last += 2,
            b'(' | b'[' if tokens[last + 1].mate > last + 1 => last = tokens[last + 1].mate,
            _ => return Some(last),
        }
    }
}

fn apply(source: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| edit.0);
    let (mut out, mut at) = (String::with_capacity(source.len() + 16 * edits.len()), 0);
    for (start, end, text) in edits {
        out.push_str(&source[at..start]);
        out.push_str(text);
        at = end;
    }
    out.push_str(&source[at..]);
    out
}
