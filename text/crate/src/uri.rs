//! References of URIs (RFC 3986), as far as schemas name each other by them.

/// The five parts of a URI reference, each without its delimiters.
struct Parts<'a> {
    scheme: Option<&'a str>,
    authority: Option<&'a str>,
    path: &'a str,
    query: Option<&'a str>,
}

/// `text` has no fragment.
fn split(text: &str) -> Parts<'_> {
    let (text, query) = text.split_once('?').map_or((text, None), |(before, after)| (before, Some(after)));
    let is_scheme = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    let scheme = text.split_once(':').filter(|(name, _)| is_scheme(name));
    let (scheme, text) = scheme.map_or((None, text), |(name, rest)| (Some(name), rest));
    let Some(rest) = text.strip_prefix("//") else { return Parts { scheme, authority: None, path: text, query } };
    let end = rest.find('/').unwrap_or(rest.len());
    Parts { scheme, authority: Some(&rest[..end]), path: &rest[end..], query }
}

/// Section 5.2.4.
fn remove_dots(path: &str) -> String {
    let mut out: Vec<&str> = vec![];
    let mut segments = path.split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                // The empty segment before the first slash stays.
                if segment == ".." && out.len() > usize::from(path.starts_with('/')) {
                    out.pop();
                }
                if is_last {
                    out.push("");
                }
            }
            _ => out.push(segment),
        }
    }
    out.join("/")
}

/// The URI that `reference` means beside `base` (section 5.2.2). Neither has a fragment. The result is absolute
/// where `base` is.
pub fn resolve(base: &str, reference: &str) -> String {
    let (base, own) = (split(base), split(reference));
    let (scheme, authority, path, query);
    if own.scheme.is_some() {
        (scheme, authority, path, query) = (own.scheme, own.authority, remove_dots(own.path), own.query);
    } else if own.authority.is_some() {
        (scheme, authority, path, query) = (base.scheme, own.authority, remove_dots(own.path), own.query);
    } else {
        (scheme, authority) = (base.scheme, base.authority);
        if own.path.is_empty() {
            (path, query) = (base.path.to_string(), own.query.or(base.query));
        } else {
            query = own.query;
            let folder = &base.path[..base.path.rfind('/').map_or(0, |slash| slash + 1)];
            path = remove_dots(&match own.path {
                absolute if absolute.starts_with('/') => absolute.to_string(),
                relative if base.path.is_empty() && authority.is_some() => format!("/{relative}"),
                relative => format!("{folder}{relative}"),
            });
        }
    }
    let scheme = scheme.map_or(String::new(), |name| format!("{}:", name.to_ascii_lowercase()));
    let authority = authority.map_or(String::new(), |name| format!("//{}", name.to_ascii_lowercase()));
    let query = query.map_or(String::new(), |text| format!("?{text}"));
    format!("{scheme}{authority}{path}{query}")
}

/// Without percent-encoding; None: it is not well formed.
pub fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = vec![];
    let mut rest = text.bytes();
    while let Some(b) = rest.next() {
        bytes.push(if b == b'%' {
            let digits = [rest.next()?, rest.next()?];
            u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
        } else {
            b
        });
    }
    String::from_utf8(bytes).ok()
}
