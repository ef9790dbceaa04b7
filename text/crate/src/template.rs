//! Chat templates: minijinja set up to render what transformers renders with jinja2 (utils/chat_template_utils.py):
//! trim_blocks, lstrip_blocks, break and continue, Python's string methods and printing, tojson without HTML escapes,
//! raise_exception, strftime_now, and `generation` blocks, which only mark text.

use crate::pyformat::{self, JsonStyle};
use crate::{guard, text, Bytes};
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};

const NAME: &str = "chat_template";
/// Instructions of one rendering: a conversation of a thousand messages takes under a million. Templates are the
/// operator's files, so this is against mistakes; clients give only variables.
const FUEL: u64 = 10_000_000;
const MAX_OUTPUT_BYTES: usize = 64 << 20;
const MAX_RECURSION: usize = 100;

pub struct Template {
    environment: Environment<'static>,
}

fn tojson(value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::InvalidOperation, "Undefined is not JSON serializable"));
    }
    let json = serde_json::to_value(&value)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("cannot serialize to JSON: {e}")))?;
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        None => None,
        Some(v) if v.is_none() => None,
        Some(v) if v.kind() == ValueKind::Number => Some(" ".repeat(usize::try_from(v).unwrap_or(0).min(64))),
        Some(v) => Some(v.to_string()),
    };
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        _ if indent.is_some() => (",".to_string(), ": ".to_string()),
        _ => (", ".to_string(), ": ".to_string()),
    };
    let style = JsonStyle {
        indent,
        item_separator,
        key_separator,
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    Ok(Value::from(pyformat::json(&json, &style)))
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime_now(format: String) -> Result<String, Error> {
    use std::fmt::Write;
    let mut out = String::new();
    write!(out, "{}", chrono::Local::now().format(&format))
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: bad format {format:?}")))?;
    Ok(out)
}

fn format_python(out: &mut Output, _: &State, value: &Value) -> Result<(), Error> {
    out.write_str(&pyformat::str(value)).map_err(Error::from)
}

/// `{% generation %}` and `{% endgeneration %}` as blocks that change nothing.
fn without_generation_blocks(source: &str) -> String {
    let mut out = String::new();
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // Behind the first two characters: in `{%}` none of the three belongs to both.
        let Some(length) = rest[start + 2..].find("%}").map(|body| body + 2) else { break };
        let tag = &rest[start..start + length + 2];
        let body = tag[2..tag.len() - 2].trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        out.push_str(&rest[..start]);
        match body {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[start + length + 2..];
    }
    out + rest
}

impl Template {
    fn new(source: &str) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(format_python);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_RECURSION);
        environment.add_filter("tojson", tojson);
        environment.add_filter("string", |value: Value| pyformat::str(&value));
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_template_owned(NAME, without_generation_blocks(source))?;
        Ok(Template { environment })
    }

    fn render(&self, context: &serde_json::Value) -> Result<String, Error> {
        let mut out = Limited(Vec::new());
        let template = self.environment.get_template(NAME)?;
        template.render_captured_to(Value::from_serialize(context), &mut out)?;
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
