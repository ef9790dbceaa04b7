//! Chat templates: minijinja set up to render what transformers renders with jinja2 (utils/chat_template_utils.py). It
//! has trim_blocks, lstrip_blocks, break and continue, Python's string methods and printing, tojson without HTML
//! escapes, raise_exception, strftime_now, and `generation` blocks, which only mark text.

use crate::jinja::texts::escape;
use crate::jinja::{filters, generation, globals, methods, tests};
use crate::pyformat;
use crate::{guard, text, Bytes};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};

const NAME: &str = "chat_template";
/// Instructions of one rendering: a conversation of a thousand messages takes under a million. Templates are the
/// operator's files, so this is against mistakes; clients give only variables.
const FUEL: u64 = 10_000_000;
const MAX_OUTPUT_BYTES: usize = 64 << 20;
const MAX_RECURSION: usize = 500; // a call of a macro takes 4 of it; jinja2 stops near 1,000 of Python's calls

pub struct Template {
    environment: Environment<'static>,
}

fn format_python(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let text = pyformat::str(value);
    let escapes = !matches!(state.auto_escape(), AutoEscape::None) && !value.is_safe();
    out.write_str(if escapes { escape(&text) } else { text }.as_str()).map_err(Error::from)
}

impl Template {
    fn new(source: &str) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(methods::call);
        environment.set_formatter(format_python);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_RECURSION);
        filters::add(&mut environment);
        tests::add(&mut environment);
        globals::add(&mut environment);
        let source = source.replace("\r\n", "\n").replace('\r', "\n"); // as jinja2 reads it
        environment.add_template_owned(NAME, generation::replace_blocks(&source))?;
        Ok(Template { environment })
    }

    fn render(&self, context: &serde_json::Value) -> Result<String, Error> {
        let mut out = Limited(Vec::new());
        let template = self.environment.get_template(NAME)?;
        template.render_captured_to(Value::from(Serde(context)), &mut out)?;
        String::from_utf8(out.0).map_err(|_| Error::new(ErrorKind::InvalidOperation, "the output is not UTF-8"))
    }
}

/// Refuses to grow over MAX_OUTPUT_BYTES.
struct Limited(Vec<u8>);

impl std::io::Write for Limited {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + data.len() > MAX_OUTPUT_BYTES {
            return Err(std::io::Error::other(format!("the output is over {MAX_OUTPUT_BYTES} bytes")));
        }
        self.0.extend_from_slice(data);
        Ok(data.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The message alone where the template raised one; else what went wrong and where.
fn describe(error: Error) -> String {
    let place = error.line().map_or(String::new(), |line| format!(" (line {line} of the template)"));
    format!("{}{place}", error.detail().map_or_else(|| error.kind().to_string(), str::to_string))
}

/// # Safety
/// `source` points to `len` bytes; `out` and `error` to writable places.
#[no_mangle]
pub unsafe extern "C" fn berth_template_load(
    source: *const u8,
    len: usize,
    out: *mut *mut Template,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let template = Template::new(text(source, len)?).map_err(describe)?;
        Ok(Box::into_raw(Box::new(template)))
    })
}

/// # Safety
/// `template` came from `berth_template_load` and is freed once.
#[no_mangle]
pub unsafe extern "C" fn berth_template_free(template: *mut Template) {
    drop(Box::from_raw(template));
}

/// `context`: a JSON object of the template's variables.
///
/// # Safety
/// As `berth_template_load`; `template` is alive.
#[no_mangle]
pub unsafe extern "C" fn berth_template_render(
    template: *const Template,
    context: *const u8,
    len: usize,
    out: *mut Bytes,
    error: *mut Bytes,
) -> i32 {
    guard(out, error, || {
        let context: serde_json::Value =
            serde_json::from_str(text(context, len)?).map_err(|e| format!("variables: {e}"))?;
        Ok((*template).render(&context).map_err(describe)?.into())
    })
}
