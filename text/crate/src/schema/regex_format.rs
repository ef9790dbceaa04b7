//! The strings of the format `regex`: regular expressions of ECMA-262, with its flag u, that Python's `re` reads too. So
//! nothing is escaped without need, and groups have no names. Groups nest up to a fixed depth.
//!
//! The pattern of each depth holds that of the depth below once, so that it grows by as much for each.

/// Groups within groups.
const DEPTH: usize = 4;
/// Groups within a look-ahead. They hold no other look-ahead.
const DEPTH_AHEAD: usize = 1;

const HEX: &str = "[0-9a-fA-F]";
/// Outside of classes.
const CHARACTER: &str = r"[^\^$\\.*+?()\[\]{}|]";
const ESCAPE: &str = r"\\(?:[dDwWsSnrtfv]|[\^$\\.*+?()\[\]{}|/]|x[0-9a-fA-F]{2}|uUNIT)";
const ESCAPE_IN_CLASS: &str = r"\\(?:[dDwWsSnrtfvb]|[\^$\\.*+?()\[\]{}|/-]|x[0-9a-fA-F]{2}|uUNIT)";
/// Four digits that are not half of a pair.
const UNIT: &str = "(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})";
/// What may be escaped in a class.
const SPECIAL: &str = r"^$\.*+?()[]{}|/-";
/// A range of characters ends in a later part than it begins. Within a part of ASCII, it may also be one of two in order.
const ASCII_PARTS: [(char, char); 7] =
    [(' ', '/'), ('0', '9'), (':', '@'), ('A', 'Z'), ('[', '`'), ('a', 'z'), ('{', '~')];
const PARTS: [u32; 17] = [
    0x80, 0xC0, 0xE0, 0x100, 0x370, 0x3A0, 0x3C0, 0x400, 0x420, 0x440, 0x600, 0x640, 0x3040, 0x3070, 0x30A0, 0x30D0,
    0x4E00,
];

/// Characters as the pattern's classes have them. They are in order.
fn spelled(all: impl Iterator<Item = char>) -> String {
    let spell = |c: char| if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\x{{{:x}}}", c as u32) };
    let mut runs: Vec<(char, char)> = vec![];
    for c in all {
        match runs.last_mut() {
            Some(run) if run.1 as u32 + 1 == c as u32 => run.1 = c,
            _ => runs.push((c, c)),
        }
    }
    let run = |(first, last)| if first == last { spell(first) } else { format!("{}-{}", spell(first), spell(last)) };
    runs.into_iter().map(run).collect()
}

/// The characters from one to another, as an expression's class has them: plain, or after a backslash.
fn spellings(first: char, last: char, is_first: bool) -> Vec<String> {
    let is_plain = |c: &char| !(r"]\-".contains(*c) || (is_first && *c == '^'));
    let mut plain = spelled((first..=last.min('~')).filter(is_plain));
    if last > '~' {
        plain.push_str(&format!(r"\x{{{:x}}}-\x{{10ffff}}", (first as u32).max(0x80)));
    }
    let mut options = vec![];
    options.extend((!plain.is_empty()).then(|| format!("[{plain}]")));
    let escaped = spelled((first..=last.min('~')).filter(|c| SPECIAL.contains(*c)));
    options.extend((!escaped.is_empty()).then(|| format!(r"\\[{escaped}]")));
    options
}

fn either(options: &[String]) -> String {
    match options {
        [one] => one.clone(),
        all => format!("(?:{})", all.join("|")),
    }
}

/// Ranges within a class, whose ends are in order. Within groups, they are fewer.
fn ranges(is_full: bool) -> String {
    let above = format!(r"\\u{}", high_units());
    let mut options = vec![];
    for (i, &(first, last)) in ASCII_PARTS.iter().enumerate() {
        let within = if is_full || first == '0' { first..last } else { first..char::from(first as u8 + 1) };
        for c in within {
            let later = either(&spellings(c, last, false));
            options.extend(spellings(c, c, true).iter().map(|text| format!("{text}-{later}")));
        }
        let next = ASCII_PARTS.get(i + 1).map_or('\u{80}', |part| part.0);
        let mut later = spellings(next, char::MAX, false);
        later.extend(is_full.then(|| above.clone()));
        options.push(format!("{}-{}", either(&spellings(first, last, true)), either(&later)));
    }
    let parts = if is_full { &PARTS[..] } else { &PARTS[PARTS.len() - 1..] };
    for (&first, &next) in [0x80].iter().chain(parts).zip(parts) {
        if first < next {
            options.push(format!(r"[\x{{{first:x}}}-\x{{{:x}}}]-[\x{{{next:x}}}-\x{{10ffff}}]", next - 1));
        }
    }
    options.push(r"[\x{4e00}-\x{8fff}]-[\x{9000}-\x{10ffff}]|[\x{ac00}-\x{bfff}]-[\x{c000}-\x{d7ff}]".to_string());
    if is_full {
        options.extend(ranges_of_codes(&above));
    }
    either(&options)
}

/// Digits of \u that stand for a character above ASCII.
fn high_units() -> String {
    format!("(?:00[89a-fA-F]{HEX}|0[1-9a-fA-F]{HEX}{{2}}|[1-9abcefABCEF]{HEX}{{3}}|[dD][0-7]{HEX}{{2}})")
}

/// The hexadecimal digits from one to another.
fn hex(first: u32, last: u32) -> String {
    let spell = |letters: &str| spelled(letters.chars().skip(first as usize).take((last - first) as usize + 1));
    let (lower, upper) = (spell("0123456789abcdef"), spell("0123456789ABCDEF"));
    if lower == upper {
        return format!("[{lower}]");
    }
    format!(
        "[{upper}{}]",
        spelled(('a'..='f').skip(first.max(10) as usize - 10).take((last - first.max(10)) as usize + 1))
    )
}

/// Ranges of \x and \u. The ends are told apart by the first digit that differs.
fn ranges_of_codes(above: &str) -> Vec<String> {
    let mut options = vec![];
    let mut add = |prefix: &str, rest: usize| {
        for digit in 1..16 {
            let (low, high, tail) = (hex(digit - 1, digit - 1), hex(digit, 15), HEX.repeat(rest));
            options.push(format!(r"\\{prefix}{low}{tail}-\\{prefix}{high}{tail}"));
        }
    };
    [("x", 1), ("u0", 2)].into_iter().for_each(|(prefix, rest)| add(prefix, rest));
    for digit in (1..13).chain([14, 15]) {
        let pairs = if digit < 14 { format!("|[dD][0-7]{HEX}{{2}}") } else { String::new() };
        let first = if digit == 14 { "[dD][0-7]".to_string() } else { format!("{}{HEX}", hex(digit - 1, digit - 1)) };
        let later = format!("(?:{}{HEX}{{3}}|{}{HEX}{{3}}{pairs})", hex(digit.min(12), 12), hex(digit.max(14), 15));
        let later = if digit < 13 { later } else { format!("{}{HEX}{{3}}", hex(digit, 15)) };
        options.push(format!(r"\\u{first}{HEX}{{2}}-\\u{later}"));
    }
    options.push(format!(r"\\x[01]{HEX}-{}", either(&spellings(' ', char::MAX, false))));
    options.push(format!(r"\\x[0-7]{HEX}-(?:[\x{{80}}-\x{{10ffff}}]|{above})"));
    options
}

/// A class. A hyphen outside of ranges stands first, last, or after a range.
fn class(is_full: bool) -> String {
    let one = format!(r"(?:[^\^\]\\\x{{2d}}]|{ESCAPE_IN_CLASS}|{}-?)", ranges(is_full));
    format!(r"\[\^?(?:-|-?(?:{one}\^*)+-?)\]").replace("UNIT", UNIT)
}

/// How often something comes. The least number is not over the greatest.
fn quantifier() -> String {
    let mut counts = vec!["(?:0|[1-9][0-9]{0,3}),?".to_string()];
    counts.extend((0..=9).map(|digit| format!("{digit},[{digit}-9]")));
    counts.extend((1..9).map(|digit| format!("{digit}[0-9],[{}-9][0-9]", digit + 1)));
    counts.extend((1..9).map(|digit| format!("{digit}[0-9]{{2}},[{}-9][0-9]{{2}}", digit + 1)));
    counts.push("[0-9],[1-9][0-9]{1,3}|[1-9][0-9],[1-9][0-9]{2,3}|[1-9][0-9]{2},[1-9][0-9]{3}".to_string());
    format!(r"(?:[*+?]|\{{{}\}})\??", either(&counts))
}

/// The whole of the expressions with groups up to a depth. `outer` is used in place of `one` outside of all groups.
fn nested(depth: usize, outer: &str, one: &str, quantifier: &str, ahead: &str) -> String {
    let group = match depth {
        0 => String::new(),
        depth => format!(r"|\((?:\?:)?{}\)", nested(depth - 1, one, one, quantifier, "")),
    };
    format!(r"(?:[\^$|]|\\[bB]{ahead}|(?:{outer}{group})(?:{quantifier})?)*")
}

pub fn pattern() -> String {
    let plain = format!(r"{CHARACTER}|\.|{ESCAPE}").replace("UNIT", UNIT);
    let [full, one] = [true, false].map(|is_full| format!("{plain}|{}", class(is_full)));
    let quantifier = quantifier();
    let inner = nested(DEPTH_AHEAD, &one, &one, &quantifier, "");
    // Python needs to know how long a look-behind is.
    let ahead = format!(r"|\(\?[=!]{inner}\)|\(\?<[=!](?:{plain})*\)");
    format!("^{}$", nested(DEPTH, &full, &one, &quantifier, &ahead))
}
