//! Formats of strings, as regular expressions.

use super::regex_format;
use super::texts::Text;
use std::collections::HashMap;
use std::sync::LazyLock;

static REGEX: LazyLock<String> = LazyLock::new(regex_format::pattern);
const DATE: &str = concat!(
    r"(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    r"|(?:(?:[0-9][1-9]|[1-9]0)(?:0[48]|[2468][048]|[13579][26])|00(?:0[48]|[2468][048]|[13579][26])",
    r"|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
);
const TIME: &str =
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// Six digits at most, so that the whole fits every language's type of durations.
const DURATION: &str =
    concat!(r"P(?:N{1,6}W|(?:N{1,6}Y(?:N{1,6}M(?:N{1,6}D)?)?|N{1,6}M(?:N{1,6}D)?|N{1,6}D)(?:T(?:TIME))?|T(?:TIME))");
const DURATION_TIME: &str = "N{1,6}H(?:N{1,6}M(?:N{1,6}S)?)?|N{1,6}M(?:N{1,6}S)?|N{1,6}S";
/// Formats that say what a string is for, and not how it looks.
pub const FREE_FORMATS: [&str; 2] = ["binary", "password"];

/// Most characters of a host's name.
const MAX_HOST: u64 = 253;

/// RFC 6901.
const POINTER: &str = "(?:/(?:[^~/]|~[01])*)*";
/// RFC 3986. P is a character of a path, N one without a colon, H one of a host.
const URI: &str = r"^[A-Za-z][A-Za-z0-9+.-]*:(?://AUTHORITY(?:/P*)*|/?(?:P+(?:/P*)*)?)TAIL$";
const URI_REFERENCE: &str = concat!(
    r"^(?:[A-Za-z][A-Za-z0-9+.-]*:(?://AUTHORITY(?:/P*)*|/?(?:P+(?:/P*)*)?)|//AUTHORITY(?:/P*)*|/(?:P+(?:/P*)*)?",
    r"|(?:N+(?:/P*)*)?)TAIL$"
);
/// RFC 6570. V is a variable with its modifier.
const URI_TEMPLATE: &str = "^(?:[^\\x00-\\x20\"'<>\\\\^`{|}%]|%X{2}|\\{[+#./;?&=,!@|]?V(?:,V)*\\})*$";
const PARTS: [(&str, &str); 7] = [
    ("AUTHORITY", r"(?:(?:H|:)*@)?(?:H*|\[ADDRESS\])(?::[0-9]*)?"),
    ("TAIL", r"(?:\?(?:P|[/?Q])*)?(?:#(?:P|[/?])*)?"),
    ("V", "(?:[A-Za-z0-9_]|%X{2})(?:\\.?(?:[A-Za-z0-9_]|%X{2}))*(?::[1-9][0-9]{0,3}|\\*)?"),
    ("P", "(?:N|:)"),
    ("N", "(?:H|@)"),
    ("H", "(?:[a-zA-Z0-9._~!$&'()*+,;=U-]|%X{2})"),
    ("X", "[0-9a-fA-F]"),
];
/// RFC 3987: what an IRI may have besides, and what only its query may.
const IRI_CHARACTERS: [&str; 4] =
    [r"\x{a0}-\x{d7ff}", r"\x{f900}-\x{fdcf}", r"\x{fdf0}-\x{ffef}", r"\x{e1000}-\x{efffd}"];
const IRI_PRIVATE: &str = r"\x{e000}-\x{f8ff}\x{f0000}-\x{ffffd}\x{100000}-\x{10fffd}";

/// The pattern with the parts that its capital letters name. U and Q are characters beyond those of a URI.
fn with_parts(pattern: &str, characters: &str, private: &str) -> String {
    let text = PARTS.iter().fold(pattern.to_string(), |text, (name, part)| text.replace(name, part));
    let text = text.replace("ADDRESS", &ipv6());
    text.replace('U', characters).replace('Q', private)
}

fn iri(pattern: &str) -> String {
    let mut characters = IRI_CHARACTERS.concat();
    for plane in 1..14 {
        characters.push_str(&format!(r"\x{{{plane:x}0000}}-\x{{{plane:x}fffd}}"));
    }
    with_parts(pattern, &characters, IRI_PRIVATE)
}

/// RFC 5321, without quoted local parts and addresses in brackets.
const EMAIL: &str = r"^A+(?:\.A+)*@LABEL(?:\.LABEL)*$";
const EMAIL_CHARACTER: &str = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]";
/// RFC 1123.
const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
/// Without those that begin with xn--, which encode other characters.
const HOST_LABEL: &str = concat!(
    "(?:[a-wyzA-WYZ0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?|[xX](?:[a-mo-zA-MO-Z0-9](?:[a-zA-Z0-9-]{0,60}[a-zA-Z0-9])?",
    "|-[a-zA-Z0-9-]{0,60}[a-zA-Z0-9]|[nN](?:[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,59}[a-zA-Z0-9])?",
    "|-[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,58}[a-zA-Z0-9])?)?)?)"
);
/// RFC 5891: hyphens are not both the third and the fourth character. L is a letter or a digit.
const IDN_LABEL: &str = "(?:[L](?:[L-]?[L])?|[L][L-]{2}[L]|[L][L-](?:[L][L-]|-[L])[L-]{0,MOST}[L])";
/// Letters that are valid by themselves, next to each other and at either end: Latin, Greek, Cyrillic, Japanese, Chinese
/// and Korean ones. A label of 12 is short enough when it is encoded.
const IDN_LETTERS: &str = concat!(
    r"a-z0-9\x{df}-\x{f6}\x{f8}-\x{ff}\x{3ac}-\x{3ce}\x{430}-\x{45f}\x{3041}-\x{3096}\x{30a1}-\x{30fa}",
    r"\x{4e00}-\x{9fa5}\x{ac00}-\x{d7a3}"
);
const MAX_IDN: usize = 12;
const MAX_LABEL: usize = 63;
/// RFC 6531, without spaces and what is not seen.
const IDN_EMAIL_CHARACTER: &str = concat!(
    r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~\x{a1}-\x{ac}\x{ae}-\x{167f}\x{1681}-\x{1fff}\x{2070}-\x{2fff}\x{3001}-\x{d7ff}",
    r"\x{f900}-\x{fdcf}\x{fdf0}-\x{fdff}\x{1f300}-\x{1faff}\x{20000}-\x{2fffd}-]"
);
const IPV4: &str =
    r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

fn label_of(letters: &str, most: usize) -> String {
    IDN_LABEL.replace("MOST", &(most - 5).to_string()).replace('L', letters)
}

fn ascii_label() -> String {
    label_of("a-zA-Z0-9", MAX_LABEL)
}

fn idn_label() -> String {
    format!("(?:{}|{})", ascii_label(), label_of(IDN_LETTERS, MAX_IDN))
}

/// Three labels are short enough when they are encoded, whatever their letters.
fn idn_host() -> String {
    format!("^(?:{ascii}(?:\\.{ascii})*|{any}(?:\\.{any}){{0,2}})$", ascii = ascii_label(), any = idn_label())
}

/// RFC 4291: eight groups. One run of them may be left out, and the last two may be an IPv4 address.
fn ipv6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let mut options = vec![format!("(?:{group}:){{7}}{group}"), format!("(?:{group}:){{6}}{IPV4}")];
    for before in 0..=7usize {
        let left = if before == 0 { String::new() } else { format!("(?:{group}:){{{}}}{group}", before - 1) };
        let after = 7 - before;
        let right = match after {
            0 => String::new(),
            after => format!("(?:{group}(?::{group}){{0,{}}})?", after - 1),
        };
        options.push(format!("{left}::{right}"));
        if after >= 2 {
            options.push(format!("{left}::(?:{group}:){{0,{}}}{IPV4}", after - 2));
        }
    }
    format!("(?:{})", options.join("|"))
}

/// Formats that have more strings than their patterns, with patterns for what has all of them.
const WIDER: [(&str, &str); 14] = [
    ("email", "@"),
    ("idn-email", "@"),
    ("hostname", "^[A-Za-z0-9.-]*$"),
    ("idn-hostname", "^"),
    ("uri", ":"),
    ("iri", ":"),
    ("uri-reference", "^"),
    ("iri-reference", "^"),
    ("uri-template", "^"),
    ("regex", "^"),
    ("date", "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"),
    ("date-time", "^[0-9]{4}-[0-9]{2}-[0-9]{2}[^0-9]"),
    ("time", "^[0-9]{2}:[0-9]{2}:[0-9]{2}"),
    ("duration", "^P"),
];
static WIDER_PATTERNS: LazyLock<HashMap<String, &str>> =
    LazyLock::new(|| WIDER.iter().filter_map(|&(name, wider)| Some((format_pattern(name)?, wider))).collect());

impl Text {
    /// A set that has all strings of its formats, also those that are not written.
    pub fn wider(&self) -> Text {
        let wider = |pattern: &String| WIDER_PATTERNS.get(pattern).map_or(pattern.clone(), |wider| wider.to_string());
        Text { fits: self.fits.iter().map(wider).collect(), ..self.clone() }
    }
}

/// Most characters of a string of a format.
pub fn format_most(name: &str) -> Option<u64> {
    matches!(name, "hostname" | "idn-hostname").then_some(MAX_HOST)
}

/// The patterns of formats. Every day exists.
pub fn format_pattern(name: &str) -> Option<String> {
    match name {
        "email" => Some(EMAIL.replace("A+", &format!("{EMAIL_CHARACTER}+")).replace("LABEL", LABEL)),
        "idn-email" => Some(EMAIL.replace("A+", &format!("{IDN_EMAIL_CHARACTER}+")).replace("LABEL", &idn_label())),
        "hostname" => Some(format!("^{HOST_LABEL}(?:\\.{HOST_LABEL})*$")),
        "idn-hostname" => Some(idn_host()),
        "ipv4" => Some(format!("^{IPV4}$")),
        "ipv6" => Some(format!("^{}$", ipv6())),
        "uri" => Some(with_parts(URI, "", "")),
        "uri-reference" => Some(with_parts(URI_REFERENCE, "", "")),
        "uri-template" => Some(with_parts(URI_TEMPLATE, "", "")),
        "iri" => Some(iri(URI)),
        "iri-reference" => Some(iri(URI_REFERENCE)),
        "regex" => Some(REGEX.clone()),
        "uuid" => Some("^H{8}-H{4}-H{4}-H{4}-H{12}$".replace('H', "[0-9a-fA-F]")),
        "date" => Some(format!("^{DATE}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{DATE}T{TIME}$")),
        "duration" => Some(format!("^{}$", DURATION.replace("TIME", DURATION_TIME).replace('N', "[0-9]"))),
        "json-pointer" => Some(format!("^{POINTER}$")),
        "relative-json-pointer" => Some(format!("^(?:0|[1-9][0-9]*)(?:#|{POINTER})$")),
        "uuid1" | "uuid3" | "uuid4" | "uuid5" | "uuid6" | "uuid7" | "uuid8" => {
            let (hex, version) = ("[0-9a-fA-F]", &name[4..]);
            Some(format!("^{hex}{{8}}-{hex}{{4}}-{version}{hex}{{3}}-[89abAB]{hex}{{3}}-{hex}{{12}}$"))
        }
        _ => None,
    }
}
