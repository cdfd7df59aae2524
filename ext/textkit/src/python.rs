//! What chat templates expect of Python: how values are printed, `tojson`, methods of strings.

use minijinja::value::{from_args, Kwargs, Object, Rest, Tuple, ValueKind};
use minijinja::{escape_formatter, Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;

const MAX_DEPTH: usize = 200;

pub fn install(env: &mut Environment) {
    minijinja_contrib::add_to_environment(env);
    env.set_unknown_method_callback(method);
    env.set_formatter(|out, state, value| match Writer::plain(state, value)? {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => escape_formatter(out, state, value),
    });
    env.add_filter("string", |state: &State, value: &Value| -> Result<Value, Error> {
        Ok(Writer::plain(state, value)?.map_or_else(|| Value::from(value.to_string()), Value::from))
    });
    env.add_filter("tojson", tojson);
    env.add_filter("indent", indent);
    env.add_filter("_percent", percent);
    env.add_function("cycler", |items: Rest<Value>| match items.is_empty() {
        true => Err(invalid("cycler: no items")),
        false => Ok(Value::from_object(Cycler { items: items.0, at: AtomicUsize::new(0) })),
    });
}

/// Jinja's cycler(*items); minijinja-contrib's takes a list.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Object for Cycler {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.items[self.at.load(Relaxed)].clone())
    }

    fn call_method(self: &Arc<Self>, _: &mut State, name: &str, args: &[Value]) -> Result<Value, Error> {
        let () = from_args(args)?;
        let at = self.at.load(Relaxed);
        let next = match name {
            "next" => (at + 1) % self.items.len(),
            "reset" => 0,
            _ => return Err(Error::from(ErrorKind::UnknownMethod)),
        };
        self.at.store(next, Relaxed);
        Ok(if name == "next" { self.items[at].clone() } else { Value::from(()) })
    }
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

/// A float as Python's repr has it: the shortest digits, an exponent below 1e-4 and from 1e16 on.
fn float(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() {
            "nan"
        } else if x > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .into();
    }
    let text = format!("{x:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        e if (-4..16).contains(&e) && x.fract() == 0.0 => format!("{x:.1}"),
        e if (-4..16).contains(&e) => x.to_string(),
        e => format!("{digits}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs()),
    }
}

/// Writes a value as json.dumps or as repr. Every node pays fuel, since a small value that refers
/// to one child many times can be a large text.
struct Writer<'a, 'env, 'vm> {
    state: &'a State<'vm, 'env>,
    out: String,
    json: bool,
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    separators: (String, String),
}

impl<'a, 'env, 'vm> Writer<'a, 'env, 'vm> {
    fn new(state: &'a State<'vm, 'env>, json: bool) -> Self {
        let separators = (", ".into(), ": ".into());
        Writer { state, out: String::new(), json, ascii: false, sort: false, indent: None, separators }
    }

    /// str(value) where minijinja's own way differs: floats, lists and maps.
    fn plain(state: &'a State<'vm, 'env>, value: &Value) -> Result<Option<String>, Error> {
        let differs = match value.kind() {
            ValueKind::Number => !value.is_integer(),
            kind => matches!(kind, ValueKind::Seq | ValueKind::Map),
        };
        let mut writer = Self::new(state, false);
        differs.then(|| writer.value(value, 0).map(|()| writer.out)).transpose()
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid("a value is nested too deeply"));
        }
        self.state.consume_fuel(1)?;
        let word = match (value.kind(), self.json) {
            (ValueKind::None, json) => if json { "null" } else { "None" }.to_string(),
            (ValueKind::Bool, true) => value.is_true().to_string(),
            (ValueKind::Number, json) if !value.is_integer() => {
                let x = f64::try_from(value.clone())?;
                match json && !x.is_finite() {
                    true => if x.is_nan() {
                        "NaN"
                    } else if x > 0.0 {
                        "Infinity"
                    } else {
                        "-Infinity"
                    }
                    .into(),
                    false => float(x),
                }
            }
            (ValueKind::String, _) => return self.text(value.as_str().unwrap_or_default()),
            (ValueKind::Map, _) => return self.map(value, depth),
            (ValueKind::Seq, _) | (ValueKind::Iterable, true) => return self.list(value, depth),
            (ValueKind::Bool | ValueKind::Number, _) | (_, false) => value.to_string(),
            (kind, true) => return Err(invalid(format!("{kind} is not JSON serializable"))),
        };
        self.out.push_str(&word);
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<(), Error> {
        self.state.consume_fuel(text.len() as u64 / 64)?;
        let quote = if !self.json && (!text.contains('\'') || text.contains('"')) { '\'' } else { '"' };
        self.out.push(quote);
        for c in text.chars() {
            match c {
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\\' => self.out.push_str("\\\\"),
                '\x08' if self.json => self.out.push_str("\\b"),
                '\x0c' if self.json => self.out.push_str("\\f"),
                c if c == quote => self.out.extend(['\\', c]),
                c if c < ' ' && self.json => self.out.push_str(&format!("\\u{:04x}", c as u32)),
                c if (c < ' ' || c == '\x7f') && !self.json => {
                    self.out.push_str(&format!("\\x{:02x}", c as u32))
                }
                c if !c.is_ascii() && self.ascii => {
                    c.encode_utf16(&mut [0; 2]).iter().for_each(|u| self.out.push_str(&format!("\\u{u:04x}")))
                }
                c => self.out.push(c),
            }
        }
        self.out.push(quote);
        Ok(())
    }

    /// The comma (not before the first item) and the line that an item starts on.
    fn item(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.separators.0);
        }
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let tuple = !self.json && value.downcast_object_ref::<Tuple>().is_some();
        self.out.push(if tuple { '(' } else { '[' });
        let mut count = 0;
        for item in value.try_iter()? {
            self.item(count == 0, depth + 1);
            self.value(&item, depth + 1)?;
            count += 1;
        }
        if count > 0 && self.indent.is_some() {
            self.item(true, depth);
        }
        self.out.push_str(if !tuple {
            "]"
        } else if count == 1 {
            ",)"
        } else {
            ")"
        });
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort {
            keys.sort();
        }
        self.out.push('{');
        for (i, key) in keys.iter().enumerate() {
            self.item(i == 0, depth + 1);
            match key.kind() {
                ValueKind::Number | ValueKind::Bool | ValueKind::None if self.json => {
                    self.out.push('"');
                    self.value(key, depth + 1)?;
                    self.out.push('"');
                }
                _ => self.value(key, depth + 1)?,
            }
            self.out.push_str(&self.separators.1);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        if !keys.is_empty() && self.indent.is_some() {
            self.item(true, depth);
        }
        self.out.push('}');
        Ok(())
    }
}

/// tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false), as Hugging Face has it.
fn tojson(
    state: &State,
    value: &Value,
    ascii: Option<bool>,
    indent: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let mut writer = Writer::new(state, true);
    writer.ascii = ascii.or(kwargs.get("ensure_ascii")?).unwrap_or(false);
    writer.sort = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let indent = indent.or(kwargs.get("indent")?).filter(|v| !v.is_none());
    if let Some(indent) = indent {
        writer.separators.0 = ",".into();
        writer.indent = Some(match indent.as_str() {
            Some(text) if text.len() <= 64 => text.to_string(),
            Some(_) => return Err(invalid("tojson: the indent is too wide")),
            None => " ".repeat(
                i64::try_from(indent).map_err(|_| invalid("tojson: bad indent"))?.clamp(0, 64) as usize,
            ),
        });
    }
    if let Some(pair) = kwargs.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(pair).map_err(|_| invalid("tojson: two separators"))?;
        writer.separators = (item, key);
    }
    kwargs.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

/// Jinja's indent, which keeps a trailing newline.
fn indent(
    state: &State,
    text: &str,
    width: Option<Value>,
    first: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or(Value::from(4));
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = kwargs.get::<Option<bool>>("blank")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let pad = match width.as_str() {
        Some(text) => text.to_string(),
        None => " ".repeat(i64::try_from(width)?.clamp(0, 1024) as usize),
    };
    let lines = text.matches('\n').count() as u64 + 1;
    state.consume_fuel((lines.saturating_mul(pad.len() as u64) + text.len() as u64) / 64)?;
    let mut out = String::new();
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&pad);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// `format % operand`
fn percent(state: &mut State, format: &Value, operand: &Value) -> Result<Value, Error> {
    let mut args = vec![format.clone()];
    match operand.downcast_object_ref::<Tuple>() {
        Some(_) => args.extend(operand.try_iter()?),
        None => args.push(operand.clone()),
    }
    for arg in &mut args[1..] {
        if let Some(text) = Writer::plain(state, arg)?.filter(|_| arg.kind() != ValueKind::Number) {
            *arg = Value::from(text);
        }
    }
    state.apply_filter("format", &args)
}

fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        if name == "index" && value.kind() == ValueKind::Seq {
            let (what,): (&Value,) = from_args(args)?;
            let found = value.try_iter()?.position(|item| item == *what);
            return found.map(Value::from).ok_or_else(|| invalid("index: the value is not in the list"));
        }
        return unknown_method_callback(state, value, name, args);
    };
    let args = positional(name, args)?;
    match string_method(state, text, name, &args)? {
        Some(result) => Ok(result),
        None => unknown_method_callback(state, value, name, &args),
    }
}

/// The arguments with those given by name put in their places.
fn positional(name: &str, args: &[Value]) -> Result<Vec<Value>, Error> {
    let names: &[&str] = match name {
        "split" | "rsplit" => &["sep", "maxsplit"],
        "replace" => &["old", "new", "count"],
        "splitlines" => &["keepends"],
        _ => return Ok(args.to_vec()),
    };
    let Some((last, rest)) = args.split_last().filter(|(last, _)| last.is_kwargs()) else {
        return Ok(args.to_vec());
    };
    let (kwargs, mut all) = (Kwargs::try_from(last.clone())?, rest.to_vec());
    for name in names.iter().skip(rest.len()) {
        all.push(kwargs.get::<Option<Value>>(name)?.unwrap_or(Value::from(())));
    }
    kwargs.assert_all_used()?;
    while all.last().is_some_and(|v| v.is_none()) {
        all.pop();
    }
    Ok(all)
}

fn string_method(state: &State, s: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let separator = |sep: &str| match sep.is_empty() {
        true => Err(invalid("empty separator")),
        false => Ok(()),
    };
    let triple = |a: &str, b: &str, c: &str| Value::from(Tuple::new(vec![a.into(), b.into(), c.into()]));
    Ok(Some(match name {
        "split" => {
            if let Some(sep) = args.first().and_then(|sep| sep.as_str()) {
                separator(sep)?;
            }
            return Ok(None);
        }
        "rsplit" => {
            let (sep, max): (Option<&str>, Option<i64>) = from_args(args)?;
            let max = usize::try_from(max.unwrap_or(-1)).unwrap_or(usize::MAX - 1);
            let mut parts: Vec<&str> = match sep {
                Some(sep) => {
                    separator(sep)?;
                    s.rsplitn(max + 1, sep).collect()
                }
                None => rsplit_space(s, max),
            };
            parts.reverse();
            parts.into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            separator(sep)?;
            match if name == "partition" { s.split_once(sep) } else { s.rsplit_once(sep) } {
                Some((head, tail)) => triple(head, sep, tail),
                None if name == "partition" => triple(s, "", ""),
                None => triple("", "", s),
            }
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(s.strip_prefix(prefix).unwrap_or(s))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(s.strip_suffix(suffix).unwrap_or(s))
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            match if name == "index" { s.find(what) } else { s.rfind(what) } {
                Some(at) => Value::from(s[..at].chars().count()),
                None => return Err(invalid("substring not found")),
            }
        }
        "ljust" | "rjust" | "center" | "zfill" => {
            let (width, fill): (i64, Option<char>) = from_args(args)?;
            pad(state, s, name, width, fill)?
        }
        "casefold" => Value::from(s.to_lowercase()),
        "swapcase" => {
            s.chars()
                .map(|c| {
                    if c.is_uppercase() {
                        c.to_lowercase().to_string()
                    } else {
                        c.to_uppercase().to_string()
                    }
                })
                .collect::<String>()
                .into()
        }
        "isdecimal" => Value::from(!s.is_empty() && s.chars().all(|c| c.is_ascii_digit())),
        _ => return Ok(None),
    }))
}

/// Words from the right: at most max splits, the rest unsplit without the space at its end.
fn rsplit_space(s: &str, max: usize) -> Vec<&str> {
    let (mut rest, mut parts) = (s.trim_end(), Vec::new());
    while !rest.is_empty() {
        let start = rest
            .rfind(char::is_whitespace)
            .map_or(0, |i| i + rest[i..].chars().next().map_or(0, char::len_utf8));
        let start = if parts.len() == max { 0 } else { start };
        parts.push(&rest[start..]);
        rest = rest[..start].trim_end();
    }
    parts
}

fn pad(state: &State, s: &str, name: &str, width: i64, fill: Option<char>) -> Result<Value, Error> {
    let missing = (width.max(0) as u64).saturating_sub(s.chars().count() as u64);
    state.consume_fuel(missing / 16)?;
    let fill = fill.unwrap_or(if name == "zfill" { '0' } else { ' ' });
    let some = |n: u64| std::iter::repeat_n(fill, n as usize).collect::<String>();
    Ok(Value::from(match name {
        "ljust" => s.to_string() + &some(missing),
        "center" => {
            let left = missing / 2 + (missing & width as u64 & 1); // where Python puts the odd one
            some(left) + s + &some(missing - left)
        }
        _ if name == "zfill" && s.starts_with(['-', '+']) => s[..1].to_string() + &some(missing) + &s[1..],
        _ => some(missing) + s,
    }))
}
