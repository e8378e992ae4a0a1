//! Prose: comments and Markdown, without code.
//!
//! Adjacent comment lines become one [`TextBlock`], so that a phrase is found across a line break. Code
//! spans and code blocks are blanked, and lines keep their positions.

use std::ops::Range;

use crate::lexer::{Comment, CommentKind};
use crate::workspace::{Document, RustFile, Workspace};

/// A piece of prose.
#[derive(Clone, Debug)]
pub struct TextBlock {
    /// Path in the repository.
    pub path: String,
    /// Crate of a comment; `docs` for Markdown.
    pub owner: String,
    /// Line of the text's first line, from 1.
    pub line: usize,
    /// The prose. Line `n` of the text is line `line + n` of the file.
    pub text: String,
    /// Whether the block is a doc comment.
    pub is_doc_comment: bool,
}

/// A word of a text block.
#[derive(Clone, Debug)]
pub struct ProseWord {
    /// Bytes of the block's text.
    pub span: Range<usize>,
    /// Whether only white space, and no empty line, separates it from the previous word.
    pub follows_directly: bool,
}

/// All comments and documents.
pub fn text_blocks(workspace: &Workspace) -> Vec<TextBlock> {
    let comments = workspace.rust.iter().flat_map(comment_blocks);
    comments.chain(workspace.documents.iter().map(document_block)).collect()
}

/// The text blocks of a file's comments.
pub fn comment_blocks(file: &RustFile) -> Vec<TextBlock> {
    let mut groups: Vec<Vec<&Comment>> = Vec::new();
    for comment in &file.lexed.comments {
        let joins = groups.last().and_then(|group| group.last()).is_some_and(|last| {
            !comment.is_block
                && !last.is_block
                && !comment.is_trailing
                && !last.is_trailing
                && last.kind == comment.kind
                && last.line + 1 == comment.line
        });
        match groups.last_mut() {
            Some(group) if joins => group.push(comment),
            _ => groups.push(vec![comment]),
        }
    }
    let to_block = |group: Vec<&Comment>| {
        let lines = group.iter().flat_map(|c| file.text[c.text.clone()].split('\n').map(strip));
        TextBlock {
            path: file.path.clone(),
            owner: file.crate_name.clone(),
            line: group[0].line,
            text: blank_code(lines),
            is_doc_comment: group[0].kind != CommentKind::Plain,
        }
    };
    groups.into_iter().map(to_block).collect()
}

/// The text block of a whole document.
pub fn document_block(document: &Document) -> TextBlock {
    TextBlock {
        path: document.path.clone(),
        owner: "docs".to_owned(),
        line: 1,
        text: blank_code(document.text.split('\n')),
        is_doc_comment: false,
    }
}

/// Removes the `*` at the start of a line of a block comment.
fn strip(line: &str) -> &str {
    line.trim_start().strip_prefix("* ").unwrap_or(line)
}

/// Joins lines and blanks code blocks and code spans.
fn blank_code<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    let mut fence: Option<&str> = None;
    for line in lines {
        let start = line.trim_start();
        let marker = ["```", "~~~"].into_iter().find(|marker| start.starts_with(marker));
        match (fence, marker) {
            (None, Some(marker)) => fence = Some(marker),
            (Some(open), Some(marker)) if open == marker => fence = None,
            (None, None) => text.push_str(line.trim_end()),
            _ => {}
        }
        text.push('\n');
    }
    blank_spans(&text)
}

/// Replaces code spans by `` ` `` characters. A span ends at the latest with its paragraph.
fn blank_spans(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('`') {
        let ticks = rest[start..].bytes().take_while(|&b| b == b'`').count();
        let (before, from) = rest.split_at(start);
        out.push_str(before);
        let body = &from[ticks..];
        let paragraph = body.find("\n\n").unwrap_or(body.len());
        match find_run(&body[..paragraph], ticks) {
            Some(end) => {
                let span = &from[..ticks + end + ticks];
                out.extend(span.chars().map(|c| if c == '\n' { c } else { '`' }));
                rest = &from[span.len()..];
            }
            None => {
                out.push_str(&from[..ticks]);
                rest = body;
            }
        }
    }
    out.push_str(rest);
    out
}

/// WordPosition of a run of exactly `ticks` backticks.
fn find_run(text: &str, ticks: usize) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = text[at..].find('`') {
        let start = at + found;
        let len = text[start..].bytes().take_while(|&b| b == b'`').count();
        if len == ticks {
            return Some(start);
        }
        at = start + len;
    }
    None
}

impl TextBlock {
    /// Line of the file in which a byte of the text is.
    pub fn line_at(&self, offset: usize) -> usize {
        self.line + self.text.as_bytes()[..offset].iter().filter(|&&b| b == b'\n').count()
    }

    /// The words of the text. An apostrophe or underscore is part of a word.
    pub fn words(&self) -> Vec<ProseWord> {
        let mut words: Vec<ProseWord> = Vec::new();
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '\'');
        let mut start = None;
        for (at, c) in self.text.char_indices().chain([(self.text.len(), ' ')]) {
            match start {
                None if is_part(c) => start = Some(at),
                Some(from) if !is_part(c) => {
                    let gap = words.last().map_or("", |last| &self.text[last.span.end..from]);
                    let follows_directly = !words.is_empty()
                        && gap.chars().all(char::is_whitespace)
                        && gap.matches('\n').count() < 2;
                    words.push(ProseWord { span: from..at, follows_directly });
                    start = None;
                }
                _ => {}
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks_in(source: &str) -> Vec<TextBlock> {
        let workspace = Workspace::from_sources(&[("crates/a/src/lib.rs", source)]).unwrap();
        text_blocks(&workspace)
    }

    #[test]
    fn adjacent_lines_are_one_block() {
        let found = blocks_in("//! a\n//! b\n\n// c\n// d\nfn f() {} // e\n// f\n");
        let texts: Vec<_> = found.iter().map(|p| (p.line, p.text.as_str())).collect();
        assert_eq!(texts, [(1, " a\n b\n"), (4, " c\n d\n"), (6, " e\n"), (7, " f\n")]);
    }

    #[test]
    fn code_is_blanked_and_lines_stay() {
        let found =
            blocks_in("/// a `b c` d\n/// ```\n/// e\n/// ```\n/// ``f ` g`` h\nfn f() {}\n");
        assert_eq!(found[0].text, " a ````` d\n\n\n\n ````````` h\n");
        assert_eq!(found[0].line_at(found[0].text.find('h').unwrap()), 5);
    }

    #[test]
    fn words_know_what_separates_them() {
        let found = blocks_in("// don't a_b,\n// c\n//\n// d\n");
        let words = found[0].words();
        let texts: Vec<_> = words.iter().map(|w| &found[0].text[w.span.clone()]).collect();
        assert_eq!(texts, ["don't", "a_b", "c", "d"]);
        let direct: Vec<_> = words.iter().map(|w| w.follows_directly).collect();
        assert_eq!(direct, [false, true, false, false]);
    }
}
