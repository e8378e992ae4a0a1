//! A lexer for Rust source that keeps comments.
//!
//! The lint reads comments and tokens inside of macros, and `syn` provides neither. Tokens borrow nothing:
//! they are byte ranges of the source.

use std::ops::Range;

/// Kind of a [`Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// An identifier or a keyword, without `r#`.
    Ident,
    /// A string literal of any kind, with its quotes.
    Str,
    /// A number, a character literal or a lifetime.
    Other,
    /// One character of punctuation.
    Punct,
}

/// A token outside of comments.
#[derive(Clone, Debug)]
pub struct Token {
    /// Kind of the token.
    pub kind: TokenKind,
    /// Bytes of the source.
    pub span: Range<usize>,
    /// Line of the first byte, from 1.
    pub line: usize,
}

/// Kind of a [`Comment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommentKind {
    /// `//` or `/* */`.
    Plain,
    /// `///` or `/** */`.
    OuterDoc,
    /// `//!` or `/*! */`.
    InnerDoc,
}

/// One comment: a line comment is one line, a block comment may have several.
#[derive(Clone, Debug)]
pub struct Comment {
    /// Kind of the comment.
    pub kind: CommentKind,
    /// Bytes between the comment's markers.
    pub text: Range<usize>,
    /// Line of the first byte, from 1.
    pub line: usize,
    /// Whether code precedes the comment on its line.
    pub is_trailing: bool,
    /// Whether the comment has the form `/* */`.
    pub is_block: bool,
}

/// Tokens and comments of one source file, in order.
#[derive(Clone, Debug, Default)]
pub struct Lexed {
    /// All tokens outside of comments.
    pub tokens: Vec<Token>,
    /// All comments.
    pub comments: Vec<Comment>,
}

struct Lexer<'a> {
    source: &'a [u8],
    at: usize,
    line: usize,
    /// Line of the last token.
    token_line: usize,
    out: Lexed,
}

/// Splits Rust source into tokens and comments. Malformed source yields some tokens and no error.
pub fn lex(source: &str) -> Lexed {
    let mut lexer =
        Lexer { source: source.as_bytes(), at: 0, line: 1, token_line: 0, out: Lexed::default() };
    while lexer.at < lexer.source.len() {
        lexer.step();
    }
    lexer.out
}

fn is_ident_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn is_ident_continue(byte: u8) -> bool {
    is_ident_start(byte) || byte.is_ascii_digit()
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.source.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn step(&mut self) {
        let byte = self.peek(0);
        if byte == b'\n' {
            self.line += 1;
            self.at += 1;
        } else if byte.is_ascii_whitespace() {
            self.at += 1;
        } else if byte == b'/' && self.peek(1) == b'/' {
            self.line_comment();
        } else if byte == b'/' && self.peek(1) == b'*' {
            self.block_comment();
        } else {
            self.token(byte);
        }
    }

    fn line_comment(&mut self) {
        let rest = &self.source[self.at..];
        let kind = match rest {
            [b'/', b'/', b'/', b'/', ..] => CommentKind::Plain,
            [b'/', b'/', b'/', ..] => CommentKind::OuterDoc,
            [b'/', b'/', b'!', ..] => CommentKind::InnerDoc,
            _ => CommentKind::Plain,
        };
        let marker = if kind == CommentKind::Plain { 2 } else { 3 };
        let len = rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        self.push_comment(kind, self.at + marker..self.at + len, false);
        self.at += len;
    }

    fn block_comment(&mut self) {
        let kind = match &self.source[self.at + 2..] {
            [b'*', b'*' | b'/', ..] => CommentKind::Plain,
            [b'*', ..] => CommentKind::OuterDoc,
            [b'!', ..] => CommentKind::InnerDoc,
            _ => CommentKind::Plain,
        };
        let start = self.at + if kind == CommentKind::Plain { 2 } else { 3 };
        let mut end = self.at + 2;
        let mut depth = 1;
        while depth > 0 && end < self.source.len() {
            match (self.source[end], self.source.get(end + 1)) {
                (b'*', Some(b'/')) => {
                    depth -= 1;
                    end += 2;
                }
                (b'/', Some(b'*')) => {
                    depth += 1;
                    end += 2;
                }
                _ => end += 1,
            }
        }
        let text_end = if depth == 0 { end - 2 } else { end };
        self.push_comment(kind, start..text_end.max(start), true);
        self.advance_to(end);
    }

    fn push_comment(&mut self, kind: CommentKind, text: Range<usize>, is_block: bool) {
        let is_trailing = self.token_line == self.line;
        let line = self.line;
        self.out.comments.push(Comment { kind, text, line, is_trailing, is_block });
    }

    /// Moves to `end` and counts the lines that were passed.
    fn advance_to(&mut self, end: usize) {
        let end = end.min(self.source.len());
        self.line += self.source[self.at..end].iter().filter(|&&b| b == b'\n').count();
        self.at = end;
    }

    fn token(&mut self, byte: u8) {
        let start = self.at;
        let line = self.line;
        let (kind, skipped) = if let Some(end) = self.string_end() {
            self.advance_to(end);
            (TokenKind::Str, 0)
        } else if byte == b'r' && self.peek(1) == b'#' && is_ident_start(self.peek(2)) {
            self.at += 2;
            self.ident();
            (TokenKind::Ident, 2)
        } else if is_ident_start(byte) {
            self.ident();
            (TokenKind::Ident, 0)
        } else if byte.is_ascii_digit() {
            self.ident();
            (TokenKind::Other, 0)
        } else if byte == b'\'' {
            self.quote();
            (TokenKind::Other, 0)
        } else {
            self.at += 1;
            (TokenKind::Punct, 0)
        };
        self.token_line = self.line;
        self.out.tokens.push(Token { kind, span: start + skipped..self.at, line });
    }

    fn ident(&mut self) {
        while is_ident_continue(self.peek(0)) {
            self.at += 1;
        }
    }

    /// End of the string literal that starts here, if one does.
    fn string_end(&self) -> Option<usize> {
        let mut at = self.at;
        if matches!(self.source[at], b'b' | b'c') {
            at += 1;
        }
        let is_raw = self.source.get(at) == Some(&b'r');
        at += usize::from(is_raw);
        let hashes = self.source[at..].iter().take_while(|&&b| b == b'#').count();
        if hashes > 0 && !is_raw {
            return None;
        }
        at += hashes;
        if self.source.get(at) != Some(&b'"') {
            return None;
        }
        at += 1;
        while at < self.source.len() {
            match self.source[at] {
                b'\\' if !is_raw => at += 1,
                b'"' if self.source[at + 1..].iter().take_while(|&&b| b == b'#').count()
                    >= hashes =>
                {
                    return Some(at + 1 + hashes);
                }
                _ => {}
            }
            at += 1;
        }
        Some(self.source.len())
    }

    /// A character literal or a lifetime.
    fn quote(&mut self) {
        let is_lifetime = is_ident_start(self.peek(1)) && {
            let mut len = 1;
            while is_ident_continue(self.peek(1 + len)) {
                len += 1;
            }
            self.peek(1 + len) != b'\''
        };
        self.at += 1;
        if is_lifetime {
            self.ident();
            return;
        }
        if self.peek(0) == b'\\' {
            self.at += 2;
        }
        while self.at < self.source.len() && self.peek(0) != b'\'' && self.peek(0) != b'\n' {
            self.at += 1;
        }
        if self.peek(0) == b'\'' {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idents(source: &str) -> Vec<&str> {
        let lexed = lex(source);
        let tokens = lexed.tokens.into_iter().filter(|t| t.kind == TokenKind::Ident);
        tokens.map(|t| &source[t.span]).collect()
    }

    #[test]
    fn strings_and_comments_contain_no_identifiers() {
        let source = "let a = \"b // c\"; // d\n/* e /* f */ g */ h(r#\"i \" j\"#, b\"k\", 'l', '\\'', '\"');";
        assert_eq!(idents(source), ["let", "a", "h"]);
    }

    #[test]
    fn a_lifetime_ends_at_its_name() {
        assert_eq!(idents("fn f<'a>(x: &'a str) -> char { 'x' }"), ["fn", "f", "x", "str", "char"]);
    }

    #[test]
    fn a_raw_identifier_has_no_prefix() {
        assert_eq!(idents("r#type rest"), ["type", "rest"]);
    }

    #[test]
    fn comments_have_kinds_and_lines() {
        let lexed = lex("//! a\n/// b\nfn f() {} // c\n\"x\ny\" /* d */\n//// e");
        let found: Vec<_> =
            lexed.comments.iter().map(|c| (c.kind, c.line, c.is_trailing)).collect();
        assert_eq!(
            found,
            [
                (CommentKind::InnerDoc, 1, false),
                (CommentKind::OuterDoc, 2, false),
                (CommentKind::Plain, 3, true),
                (CommentKind::Plain, 5, true),
                (CommentKind::Plain, 6, false),
            ]
        );
    }
}
