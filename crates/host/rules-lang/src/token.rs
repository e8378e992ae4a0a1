//! Words, numbers and symbols of a source, with their bytes.

use std::ops::Range;

use crate::error::{Problem, RuleSourceProblem};

/// A token's kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SourceTokenKind {
    Word(String),
    /// Digits, with a fraction and a unit as written.
    Number(String),
    Symbol(&'static str),
    End,
}

/// A token.
#[derive(Clone, Debug)]
pub(crate) struct SourceToken {
    pub(crate) kind: SourceTokenKind,
    pub(crate) span: Range<usize>,
}

impl SourceTokenKind {
    pub(crate) fn describe(&self) -> String {
        match self {
            SourceTokenKind::Word(text) | SourceTokenKind::Number(text) => format!("`{text}`"),
            SourceTokenKind::Symbol(text) => format!("`{text}`"),
            SourceTokenKind::End => "the end of the source".into(),
        }
    }
}

/// Symbols, the longest first.
const SYMBOLS: [&str; 31] = [
    "..", "==", "!=", "<=", ">=", "<<", ">>", "<", ">", "=", "+", "-", "*", "/", "%", "&", "|",
    "^", "(", ")", "[", "]", "{", "}", ",", ";", ":", ".", "!", "~", "@",
];

/// Splits a source into tokens. The last is [`SourceTokenKind::End`].
pub(crate) fn tokens(text: &str) -> Result<Vec<SourceToken>, Problem> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        let run = |from: usize, is_part: fn(u8) -> bool| {
            from + bytes[from..].iter().take_while(|byte| is_part(**byte)).count()
        };
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if byte.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        if byte == b'#' {
            at = run(at, |byte| byte != b'\n');
            continue;
        }
        let kind = if byte.is_ascii_digit() {
            at = run(at, is_word);
            let is_fraction =
                bytes.get(at) == Some(&b'.') && bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
            if is_fraction {
                at = run(at + 1, is_word);
            }
            SourceTokenKind::Number(text[start..at].to_owned())
        } else if is_word(byte) {
            at = run(at, is_word);
            SourceTokenKind::Word(text[start..at].to_owned())
        } else if let Some(symbol) = SYMBOLS.iter().find(|s| text[start..].starts_with(**s)) {
            at += symbol.len();
            SourceTokenKind::Symbol(symbol)
        } else {
            let c = text[start..].chars().next().unwrap_or('\0');
            let span = start..start + c.len_utf8();
            return Err(Problem::new(&span, RuleSourceProblem::Character(c)));
        };
        found.push(SourceToken { kind, span: start..at });
    }
    found.push(SourceToken { kind: SourceTokenKind::End, span: text.len()..text.len() });
    Ok(found)
}
