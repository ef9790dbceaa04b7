//! Regular expressions of ECMA-262 (JSON Schema's dialect, and Berth's) in the syntax of the regex crate. What the two
//! read differently is rewritten; what cannot be matched by an automaton is refused.

use std::iter::Peekable;
use std::str::Chars;

const DIGIT: &str = "0-9";
const WORD: &str = "0-9A-Za-z_";
const SPACE: &str = r"\x09-\x0D \u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}";

struct Translator<'a> {
    rest: Peekable<Chars<'a>>,
    at: usize, // characters read
    out: String,
}

enum Item {
    Char(char),
    Class(String),
}

fn escape_char(c: char) -> String {
    match c {
        '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' | '#' | '&' | '-' | '~' | '/' => {
            format!("\\{c}")
        }
        c if c.is_control() => format!("\\x{{{:x}}}", c as u32),
        c => c.to_string(),
    }
}

/// A pattern that matches just `text`.
pub fn escape(text: &str) -> String {
    text.chars().map(escape_char).collect()
}

impl Translator<'_> {
    fn next(&mut self) -> Option<char> {
        self.at += 1;
        self.rest.next()
    }

    fn fail<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("character {}: {what}", self.at))
    }

    fn hex(&mut self, digits: usize) -> Result<u32, String> {
        let mut value = 0;
        for _ in 0..digits {
            match self.next().and_then(|c| c.to_digit(16)) {
                Some(digit) => value = value * 16 + digit,
                None => return self.fail("a hexadecimal digit is missing"),
            }
        }
        Ok(value)
    }

    /// After \u.
    fn unicode(&mut self) -> Result<char, String> {
        let mut code = 0;
        if self.rest.peek() == Some(&'{') {
            self.next();
            while let Some(digit) = self.rest.peek().and_then(|c| c.to_digit(16)) {
                code = (code * 16 + digit).min(0x110000);
                self.next();
            }
            if self.next() != Some('}') {
                return self.fail("} is missing after \\u{");
            }
        } else {
            code = self.hex(4)?;
            if (0xD800..0xDC00).contains(&code) && self.rest.peek() == Some(&'\\') {
                self.next();
                if self.next() != Some('u') {
                    return self.fail("a surrogate alone is no character");
                }
                let low = self.hex(4)?;
                if !(0xDC00..0xE000).contains(&low) {
                    return self.fail("a surrogate alone is no character");
                }
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            }
        }
        char::from_u32(code).map_or_else(|| self.fail("no such character"), Ok)
    }

    /// After a backslash, in a class or not.
    fn escaped(&mut self, in_class: bool) -> Result<Item, String> {
        let Some(c) = self.next() else { return self.fail("nothing follows the backslash") };
        Ok(match c {
            'd' => Item::Class(format!("[{DIGIT}]")),
            'D' => Item::Class(format!("[^{DIGIT}]")),
            'w' => Item::Class(format!("[{WORD}]")),
            'W' => Item::Class(format!("[^{WORD}]")),
            's' => Item::Class(format!("[{SPACE}]")),
            'S' => Item::Class(format!("[^{SPACE}]")),
            't' => Item::Char('\t'),
            'n' => Item::Char('\n'),
            'r' => Item::Char('\r'),
            'f' => Item::Char('\x0C'),
            'v' => Item::Char('\x0B'),
            'b' if in_class => Item::Char('\x08'),
            '0' if !self.rest.peek().is_some_and(char::is_ascii_digit) => Item::Char('\0'),
            'x' => {
                let code = self.hex(2)?;
                Item::Char(char::from_u32(code).unwrap())
            }
            'u' => Item::Char(self.unicode()?),
            'c' => match self.next() {
                Some(c) if c.is_ascii_alphabetic() => Item::Char((c as u8 % 32) as char),
                _ => return self.fail("a letter is missing after \\c"),
            },
            'p' | 'P' => Item::Class(self.property(c)?),
            'b' | 'B' => return self.fail("\\b and \\B (word boundaries) are not supported"),
            '0'..='9' | 'k' => return self.fail("references to groups are not supported"),
            c if c.is_ascii_alphabetic() => return self.fail(&format!("\\{c} is no escape")),
            c => Item::Char(c),
        })
    }

    fn property(&mut self, letter: char) -> Result<String, String> {
        let mut name = String::new();
        if self.next() != Some('{') {
            return self.fail("{ is missing after \\p");
        }
        loop {
            match self.next() {
                Some('}') => return Ok(format!("\\{letter}{{{name}}}")),
                Some(c) if c.is_ascii_alphanumeric() || c == '_' || c == '=' => name.push(c),
                _ => return self.fail("} is missing after \\p{"),
            }
        }
    }

    fn class_item(&mut self) -> Result<Item, String> {
        match self.next() {
            None => self.fail("] is missing"),
            Some('\\') => self.escaped(true),
            Some(c) => Ok(Item::Char(c)),
        }
    }

    /// After [.
    fn class(&mut self) -> Result<(), String> {
        let negated = self.rest.peek() == Some(&'^');
        if negated {
            self.next();
        }
        let mut items = String::new();
        while self.rest.peek() != Some(&']') {
            match self.class_item()? {
                Item::Class(class) => items.push_str(&class),
                Item::Char(first) => {
                    items.push_str(&escape_char(first));
                    let mut ahead = self.rest.clone();
                    if ahead.next() != Some('-') || matches!(ahead.next(), Some(']') | None) {
                        continue;
                    }
                    self.next();
                    match self.class_item()? {
                        Item::Char(last) if last >= first => items.push_str(&format!("-{}", escape_char(last))),
                        _ => return self.fail("a range ends before it begins"),
                    }
                }
            }
        }
        self.next();
        match (items.is_empty(), negated) {
            (true, false) => return self.fail("[] matches nothing"),
            (true, true) => self.out.push_str("(?s:.)"),
            (false, _) => self.out.push_str(&format!("[{}{items}]", if negated { "^" } else { "" })),
        }
        Ok(())
    }

    /// After (.
    fn group(&mut self) -> Result<(), String> {
        self.out.push_str("(?:");
        if self.rest.peek() != Some(&'?') {
            return Ok(());
        }
        self.next();
        match self.next() {
            Some(':') => Ok(()),
            Some('=' | '!') => self.fail("lookahead is not supported"),
            Some('<') if matches!(self.rest.peek(), Some('=' | '!')) => self.fail("lookbehind is not supported"),
            Some('<') => loop {
                match self.next() {
                    Some('>') => return Ok(()),
                    Some(c) if c.is_alphanumeric() || c == '_' || c == '$' => {}
                    _ => return self.fail("> is missing after the group's name"),
                }
            },
            _ => self.fail("groups with flags are not supported"),
        }
    }

    /// After {: the rest of a quantifier, or nothing if there is no quantifier.
    fn quantifier(&mut self) -> Option<String> {
        let body: String = self.rest.clone().take_while(|&c| c != '}').take(24).collect();
        let mut parts = body.split(',');
        let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let first = number(parts.next()?);
        let second = parts.next().map_or(true, |part| part.is_empty() || number(part));
        if !first || !second || parts.next().is_some() || self.rest.clone().nth(body.chars().count()) != Some('}') {
            return None;
        }
        for _ in 0..=body.chars().count() {
            self.next();
        }
        Some(format!("{{{body}}}"))
    }

    fn run(mut self) -> Result<String, String> {
        while let Some(c) = self.next() {
            match c {
                '\\' => match self.escaped(false)? {
                    Item::Char(c) => self.out.push_str(&escape_char(c)),
                    Item::Class(class) => self.out.push_str(&class),
                },
                '[' => self.class()?,
                '(' => self.group()?,
                '.' => self.out.push_str(r"[^\n\r\u{2028}\u{2029}]"),
                '{' => match self.quantifier() {
                    Some(quantifier) => self.out.push_str(&quantifier),
                    None => self.out.push_str("\\{"),
                },
                '*' | '+' | '?' | '|' | ')' | '^' | '$' => self.out.push(c),
                c => self.out.push_str(&escape_char(c)),
            }
        }
        Ok(self.out)
    }
}

/// The pattern in the syntax of the regex crate, without names of groups. The error says which character.
pub fn translate(pattern: &str) -> Result<String, String> {
    Translator { rest: pattern.chars().peekable(), at: 0, out: String::new() }.run()
}

/// The bytes that every match of a translated pattern has.
pub fn required_bytes(pattern: &str) -> [bool; 256] {
    let mut needs = [false; 256];
    if let Ok(hir) = regex_syntax::parse(pattern) {
        add_required(&hir, &mut needs);
    }
    needs
}

fn add_required(hir: &regex_syntax::hir::Hir, needs: &mut [bool; 256]) {
    use regex_syntax::hir::HirKind;
    match hir.kind() {
        HirKind::Literal(literal) => literal.0.iter().for_each(|&b| needs[b as usize] = true),
        HirKind::Repetition(repetition) if repetition.min > 0 => add_required(&repetition.sub, needs),
        HirKind::Capture(capture) => add_required(&capture.sub, needs),
        HirKind::Concat(parts) => parts.iter().for_each(|part| add_required(part, needs)),
        HirKind::Alternation(options) => {
            let mut common = [true; 256];
            for option in options {
                let mut own = [false; 256];
                add_required(option, &mut own);
                common.iter_mut().zip(own).for_each(|(all, one)| *all &= one);
            }
            needs.iter_mut().zip(common).for_each(|(a, b)| *a |= b);
        }
        _ => {}
    }
}
