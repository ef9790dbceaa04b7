//! Formats of strings, as regular expressions.

/// Formats that llguidance enforces as they are.
pub const FORMATS: [&str; 6] = ["email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
const DATE: &str = concat!(
    r"(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    r"|(?:(?:[0-9][1-9]|[1-9]0)(?:0[48]|[2468][048]|[13579][26])|00(?:0[48]|[2468][048]|[13579][26])",
    r"|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
);
const TIME: &str = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// Six digits at most, so that the whole fits every language's type of durations.
const DURATION: &str = concat!(
    r"P(?:N{1,6}W|(?:N{1,6}Y(?:N{1,6}M(?:N{1,6}D)?)?|N{1,6}M(?:N{1,6}D)?|N{1,6}D)(?:T(?:TIME))?|T(?:TIME))"
);
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

/// The patterns of formats that llguidance does not have, or that Berth reads more strictly: every day exists.
pub fn own_format(name: &str) -> Option<String> {
    match name {
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
