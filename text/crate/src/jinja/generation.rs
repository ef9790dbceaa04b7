//! `{% generation %}` blocks, by which transformers marks what the model wrote. They render as what is within them.

/// The source with `with` blocks in their place, whose assignments end with them too. Comments, raw blocks and texts
/// stay as they are, except that `{% raw %}` keeps the newline after it, as in jinja2.
pub fn replace_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = match rest.as_bytes().get(1) {
            Some(b'#') => rest.find("#}").map(|at| at + 2),
            Some(b'%') => end_of_tag(rest, "%}"),
            Some(b'{') => end_of_tag(rest, "}}"),
            _ => Some(1),
        };
        let Some(end) = end else { break };
        let (tag, after) = rest.split_at(end);
        let name = if tag.starts_with("{%") { name_of(tag) } else { "" };
        match name {
            "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            "raw" => {
                let keeps_newline = !tag.ends_with("-%}") && !tag.ends_with("+%}");
                out.push_str(&tag[..tag.len() - 2]);
                out.push_str(if keeps_newline { "+%}" } else { "%}" });
                let length = length_of_raw(after);
                out.push_str(&after[..length]);
                rest = &after[length..];
                continue;
            }
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}

/// `{%- name -%}`: what is between the signs.
fn name_of(tag: &str) -> &str {
    let inner = tag.get(2..tag.len().saturating_sub(2)).unwrap_or_default();
    inner.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace())
}

/// Behind the first `close` that is in no text.
fn end_of_tag(tag: &str, close: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    let mut depth = 0;
    for (at, c) in tag.char_indices().skip(2) {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '{') => depth += 1,
            (None, '}') if depth > 0 => depth -= 1,
            (None, _) if tag[at..].starts_with(close) => return Some(at + 2),
            _ => {}
        }
    }
    None
}

/// Up to the tag that ends a raw block.
fn length_of_raw(text: &str) -> usize {
    let ends = text.match_indices("{%").find(|(at, _)| {
        let end = text[*at..].find("%}").map_or(text.len(), |length| at + length + 2);
        name_of(&text[*at..end]) == "endraw"
    });
    ends.map_or(text.len(), |(at, _)| at)
}
