//! Phrases that comments and documents must not contain.

use std::collections::HashMap;

use crate::checks::Violation;
use crate::config::{BannedPhrase, LintConfig};
use crate::text_block::{ProseWord, TextBlock, text_blocks};
use crate::workspace::Workspace;

/// Banned phrases in comments and Markdown, and banned first words of doc comments.
///
/// Upper and lower case are the same. A phrase may contain line breaks, but no punctuation.
pub fn banned_prose(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let mut by_first_word: HashMap<&str, Vec<(&BannedPhrase, Vec<&str>)>> = HashMap::new();
    for phrase in &config.banned.phrases {
        let words: Vec<_> = phrase.text.split(' ').collect();
        by_first_word.entry(words[0]).or_default().push((phrase, words));
    }
    let mut found = Vec::new();
    for block in text_blocks(workspace) {
        if config.banned_prose.except.iter().any(|start| block.path.starts_with(start)) {
            continue;
        }
        let words = block.words();
        let lower: Vec<_> =
            words.iter().map(|word| block.text[word.span.clone()].to_lowercase()).collect();
        for index in 0..words.len() {
            let candidates =
                by_first_word.get(lower[index].as_str()).map_or(&[][..], Vec::as_slice);
            for (phrase, expected) in candidates {
                if is_at(&words, &lower, index, expected) {
                    found.push(report(&block, &words[index], phrase, "write"));
                }
            }
        }
        for opening in config.banned.openings.iter().filter(|_| block.is_doc_comment) {
            let expected: Vec<_> = opening.text.split(' ').collect();
            let is_first =
                words.first().is_some_and(|w| block.text[..w.span.start].trim().is_empty());
            if is_first && is_at(&words, &lower, 0, &expected) {
                found.push(report(&block, &words[0], opening, "begin the doc comment with"));
            }
        }
    }
    found
}

/// Whether the expected words are at `index`, with nothing but white space in between.
fn is_at(words: &[ProseWord], lower: &[String], index: usize, expected: &[&str]) -> bool {
    let end = index + expected.len();
    end <= words.len()
        && lower[index..end].iter().zip(expected).all(|(word, expected)| word == expected)
        && words[index + 1..end].iter().all(|word| word.follows_directly)
}

fn report(block: &TextBlock, word: &ProseWord, phrase: &BannedPhrase, advice: &str) -> Violation {
    Violation {
        key: block.owner.clone(),
        path: block.path.clone(),
        line: block.line_at(word.span.start),
        weight: 1,
        message: format!("instead of \"{}\" {advice} {}", phrase.text, phrase.instead),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_on;

    #[test]
    fn banned_phrases_are_found() {
        let source = "/// Reads a page, of\n/// which a part is kept.\nfn a() {} // Whoever asks.\n
            const B: &str = \"nobody\"; // `nobody`\n// of, which\n/* x\n * somebody\n */\n";
        let sources = [
            ("crates/a/src/lib.rs", source),
            ("docs/b.md", "A\n\nof\n\nwhich nobody.\n```\nnobody\n```\n"),
            ("docs/glossary.md", "nobody"),
        ];
        let found = run_on(banned_prose, &sources, |_| {});
        assert_eq!(
            found,
            [
                "a crates/a/src/lib.rs:1 1",
                "a crates/a/src/lib.rs:3 1",
                "a crates/a/src/lib.rs:8 1",
                "docs docs/b.md:5 1"
            ]
        );
    }

    #[test]
    fn banned_openings_of_doc_comments_are_found() {
        let source =
            "//! Of a page.\n\n/// The same, to change it.\nfn a() {}\n/// `What` x.\nfn b() {}
            // What is not documentation.\n/// Says what x is. What y is.\nfn c() {}";
        let found = run_on(banned_prose, &[("crates/a/src/lib.rs", source)], |_| {});
        assert_eq!(found, ["a crates/a/src/lib.rs:1 1", "a crates/a/src/lib.rs:3 1"]);
    }
}
