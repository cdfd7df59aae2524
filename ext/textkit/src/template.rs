//! Chat templates: a minijinja environment that behaves as the one Hugging Face makes for Jinja.

use crate::{bytes, give, guard, python, source, utf8, Sink};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use std::ffi::{c_char, CString};
use std::io::{self, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "chat template";
const MAX_SOURCE: usize = 1 << 20;
// Nested values are walked and freed recursively; fuel bounds their depth, and this stack holds it.
const STACK: usize = 512 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Template(Arc<Environment<'static>>);

extern "C" {
    fn time(out: *mut i64) -> i64;
    fn localtime_r(time: *const i64, out: *mut [u64; 16]) -> *mut [u64; 16]; // a struct tm and more
    fn strftime(out: *mut c_char, max: usize, format: *const c_char, tm: *const [u64; 16]) -> usize;
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let invalid = || Error::new(ErrorKind::InvalidOperation, "strftime_now: bad format");
    let c_format = CString::new(format).map_err(|_| invalid())?;
    let (mut tm, mut out) = ([0u64; 16], [0u8; 512]);
    let n = unsafe {
        let now = time(std::ptr::null_mut());
        localtime_r(&now, &mut tm);
        strftime(out.as_mut_ptr().cast(), out.len(), c_format.as_ptr(), &tm)
    };
    String::from_utf8(out[..n].to_vec()).map_err(|_| invalid())
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(Raised(message)))
}

#[derive(Debug)]
struct Raised(String);
impl std::error::Error for Raised {}
impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// One sentence: the template's own message where it raised one, else what went wrong and where.
fn explain(error: &Error) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(raised) = e.downcast_ref::<Raised>() {
            return raised.0.clone();
        }
        cause = e.source();
    }
    let what = error.detail().map_or_else(|| error.kind().to_string(), |d| format!("{}: {d}", error.kind()));
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}

fn open(text: &str, fuel: u64) -> Result<Template, String> {
    if text.len() > MAX_SOURCE {
        return Err(format!("longer than {MAX_SOURCE} bytes"));
    }
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.map_err(|e| explain(&e))?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_debug(false);
    env.set_fuel(Some(fuel));
    python::install(&mut env);
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", |format: &str| strftime_now(format));
    env.add_template_owned(NAME, source::rewrite(text)).map_err(|e| explain(&e))?;
    Ok(Template(Arc::new(env)))
}

/// Refuses to grow over its limit.
struct Bounded {
    text: Vec<u8>,
    max: usize,
}

impl Write for Bounded {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.len() > self.max - self.text.len() {
            return Err(io::Error::other("the text is too long"));
        }
        self.text.extend_from_slice(data);
        Ok(data.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn render(env: &Environment, json: &[u8], max: usize) -> Result<Vec<u8>, String> {
    let context: Value = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    let mut out = Bounded { text: Vec::new(), max };
    let main = env.get_template(NAME).map_err(|e| explain(&e))?;
    main.render_captured_to(context, &mut out).map_err(|e| explain(&e))?;
    Ok(out.text)
}

/// Runs `f` on a stack of its own, so that no depth of nesting reaches the end of the caller's, and
/// waits only so long: fuel bounds the steps, but a step on lazily sliced lists may itself be slow.
/// A thread given up on still ends by its fuel.
fn apart<T: Send + 'static>(f: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    let (send, receive) = mpsc::channel();
    std::thread::Builder::new()
        .stack_size(STACK)
        .spawn(move || send.send(guard(f)))
        .map_err(|e| format!("no thread for the template: {e}"))?;
    receive.recv_timeout(PATIENCE).unwrap_or_else(|e| match e {
        RecvTimeoutError::Timeout => Err(format!("not done after {} seconds", PATIENCE.as_secs())),
        RecvTimeoutError::Disconnected => Err("internal error".into()),
    })
}

/// # Safety
/// As textkit.h says, for this and every function below.
#[no_mangle]
pub unsafe extern "C" fn tk_template_open(
    source: *const c_char,
    len: usize,
    fuel: u64,
    err: *mut c_char,
    err_size: usize,
) -> *mut Template {
    let source = utf8(source, len).map(String::from);
    Sink(err, err_size).object(guard(|| apart(move || open(&source?, fuel))))
}

#[no_mangle]
pub unsafe extern "C" fn tk_template_close(template: *mut Template) {
    if !template.is_null() {
        let _ = guard(|| {
            drop(Box::from_raw(template));
            Ok(())
        });
    }
}

#[no_mangle]
pub unsafe extern "C" fn tk_template_render(
    template: &Template,
    json: *const c_char,
    len: usize,
    max: usize,
    out: *mut *mut c_char,
    out_len: *mut usize,
    err: *mut c_char,
    err_size: usize,
) -> i32 {
    (*out, *out_len) = (std::ptr::null_mut(), 0);
    let (env, json) = (template.0.clone(), bytes(json.cast(), len).to_vec());
    Sink(err, err_size).status(guard(|| {
        let text = apart(move || render(&env, &json, max))?;
        give(&text, 1, out.cast(), out_len)
    }))
}
