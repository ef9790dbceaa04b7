//! Formats of strings, as regular expressions.

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

/// RFC 6901.
const POINTER: &str = "(?:/(?:[^~/]|~[01])*)*";
/// RFC 3986, without addresses in brackets. P is a character of a path, N one without a colon, H one of a host.
const URI_REFERENCE: &str = concat!(
    r"^(?:[A-Za-z][A-Za-z0-9+.-]*:(?://AUTHORITY(?:/P*)*|/?(?:P+(?:/P*)*)?)|//AUTHORITY(?:/P*)*|/(?:P+(?:/P*)*)?",
    r"|(?:N+(?:/P*)*)?)(?:\?(?:P|[/?])*)?(?:#(?:P|[/?])*)?$"
);
/// RFC 6570. V is a variable with its modifier.
const URI_TEMPLATE: &str = "^(?:[^\\x00-\\x20\"'<>\\\\^`{|}%]|%X{2}|\\{[+#./;?&=,!@|]?V(?:,V)*\\})*$";
const PARTS: [(&str, &str); 6] = [
    ("AUTHORITY", "(?:(?:H|:)*@)?H*(?::[0-9]*)?"),
    ("V", "(?:[A-Za-z0-9_]|%X{2})(?:\\.?(?:[A-Za-z0-9_]|%X{2}))*(?::[1-9][0-9]{0,3}|\\*)?"),
    ("P", "(?:N|:)"),
    ("N", "(?:H|@)"),
    ("H", "(?:[a-zA-Z0-9._~!$&'()*+,;=-]|%X{2})"),
    ("X", "[0-9a-fA-F]"),
];

/// The pattern with the parts that its capital letters name.
fn with_parts(pattern: &str) -> String {
    PARTS.iter().fold(pattern.to_string(), |text, (name, part)| text.replace(name, part))
}

/// RFC 5321, without quoted local parts and addresses in brackets.
const EMAIL: &str = r"^A+(?:\.A+)*@LABEL(?:\.LABEL)*$";
const EMAIL_CHARACTER: &str = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]";
/// RFC 1123.
const LABEL: &str = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
const IPV4: &str =
    r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
/// RFC 3986, with a scheme.
const URI: &str =
    r"^[A-Za-z][A-Za-z0-9+.-]*:(?://AUTHORITY(?:/P*)*|/?(?:P+(?:/P*)*)?)(?:\?(?:P|[/?])*)?(?:#(?:P|[/?])*)?$";

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
    format!("^(?:{})$", options.join("|"))
}

/// The patterns of formats. Every day exists.
pub fn format_pattern(name: &str) -> Option<String> {
    match name {
        "email" => Some(EMAIL.replace("A+", &format!("{EMAIL_CHARACTER}+")).replace("LABEL", LABEL)),
        "hostname" => Some(format!("^{LABEL}(?:\\.{LABEL})*$")),
        "ipv4" => Some(format!("^{IPV4}$")),
        "ipv6" => Some(ipv6()),
        "uri" => Some(with_parts(URI)),
        "uuid" => Some("^H{8}-H{4}-H{4}-H{4}-H{12}$".replace('H', "[0-9a-fA-F]")),
        "date" => Some(format!("^{DATE}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{DATE}T{TIME}$")),
        "duration" => Some(format!("^{}$", DURATION.replace("TIME", DURATION_TIME).replace('N', "[0-9]"))),
        "json-pointer" => Some(format!("^{POINTER}$")),
        "relative-json-pointer" => Some(format!("^(?:0|[1-9][0-9]*)(?:#|{POINTER})$")),
        "uri-reference" => Some(with_parts(URI_REFERENCE)),
        "uri-template" => Some(with_parts(URI_TEMPLATE)),
        "uuid1" | "uuid3" | "uuid4" | "uuid5" | "uuid6" | "uuid7" | "uuid8" => {
            let (hex, version) = ("[0-9a-fA-F]", &name[4..]);
            Some(format!("^{hex}{{8}}-{hex}{{4}}-{version}{hex}{{3}}-[89abAB]{hex}{{3}}-{hex}{{12}}$"))
        }
        _ => None,
    }
}
