//! Citations: by key, as in `[NVMe2.0 §3.3.1]`, and the bibliography defines every key.

use std::collections::BTreeSet;

use crate::checks::Violation;
use crate::config::LintConfig;
use crate::text_block::{TextBlock, text_blocks};
use crate::workspace::Workspace;

/// Citations without a key, and keys that the bibliography does not define.
pub fn citations(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let bibliography =
        workspace.documents.iter().find(|document| document.path == config.citations.bibliography);
    let keys = bibliography.map(|document| defined_keys(&document.text)).unwrap_or_default();
    let mut found = Vec::new();
    for block in text_blocks(workspace) {
        for (at, message) in problems(&block, &keys, workspace) {
            found.push(Violation {
                key: block.owner.clone(),
                path: block.path.clone(),
                line: block.line_at(at),
                weight: 1,
                message,
            });
        }
    }
    found
}

/// The keys that a bibliography defines: the first word of a heading, list item, table row or paragraph,
/// whatever markup is around it, and the identifiers of anchors.
fn defined_keys(text: &str) -> BTreeSet<&str> {
    let mut keys = BTreeSet::new();
    for line in text.lines() {
        let start = line.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        keys.extend(key_at(start));
        for (at, marker) in line.match_indices("id=\"") {
            keys.extend(key_at(&line[at + marker.len()..]));
        }
    }
    keys
}

/// The citation key at the start of a text: letters, and digits that may contain dots.
///
/// A year has two digits and a version has a dot, so that `[u8]` and `[T1]` are no keys.
fn key_at(text: &str) -> Option<&str> {
    let letters = text.find(|c: char| !c.is_ascii_alphabetic())?;
    let rest = &text[letters..];
    let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let number = rest[..digits].trim_end_matches('.');
    let is_key = letters >= 2
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && (number.len() == 2 || number.contains('.'))
        && !rest[digits..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let is_rust_type = ["U8", "U16", "U32", "U64", "I8", "I16", "I32", "I64"]
        .iter()
        .any(|end| text[..letters + number.len()].ends_with(end));
    (is_key && !is_rust_type).then(|| &text[..letters + number.len()])
}

/// Problems of a block with their offsets.
fn problems(
    block: &TextBlock,
    keys: &BTreeSet<&str>,
    workspace: &Workspace,
) -> Vec<(usize, String)> {
    let text = &block.text;
    let mut found = Vec::new();
    for (at, _) in text.match_indices('[') {
        let inside = text[at + 1..].split(']').next().unwrap_or("");
        let is_link = text[at + 1 + inside.len()..].starts_with("](");
        if is_link || inside.contains('[') {
            continue;
        }
        for key in inside.split([';', ',']).filter_map(|part| key_at(part.trim_start())) {
            if !keys.contains(key) {
                found.push((at, format!("[{key}] is not in the bibliography")));
            }
        }
    }
    let words = block.words();
    let word = |index: usize| words.get(index).map_or("", |w| &text[w.span.clone()]);
    for (index, this) in words.iter().enumerate() {
        let next_follows = words.get(index + 1).is_some_and(|next| next.follows_directly);
        let next = if next_follows { word(index + 1) } else { "" };
        let at = this.span.start;
        match word(index) {
            "the" | "The" if matches!(next, "thesis" | "thesis's") => {
                found.push((at, "\"the thesis\": cite it by its key, as [Thesis15 §4.2]".into()));
            }
            "rule" | "rules" | "Rule" | "Rules" if is_rule(next) => {
                found
                    .push((at, format!("rule {next}: name a principle that is in the repository")));
            }
            "DESIGN" if !is_file(text, this.span.end, workspace) => {
                found.push((at, "DESIGN: name a document that is in the repository".into()));
            }
            _ => {}
        }
    }
    found
}

fn is_rule(word: &str) -> bool {
    let number = word.strip_prefix('R').unwrap_or("");
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

/// Whether `DESIGN` is followed by `.md`, and the repository has such a file.
fn is_file(text: &str, end: usize, workspace: &Workspace) -> bool {
    text[end..].starts_with(".md")
        && workspace.documents.iter().any(|d| d.path.rsplit('/').next() == Some("DESIGN.md"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_on;

    #[test]
    fn citations_that_nothing_defines_are_found() {
        let source =
            "// The thesis, the\n// thesis, rule R1, rules R2 and R3, R4.\n// DESIGN part 3.\n
            // [FAST17 §3] [OC20; NVMe2.0 §1.2] [AtomicU64] [u8] [T1] [x](y) [SYSTOR13](z)\n";
        let bibliography = "## FAST17\n| **[NVMe2.0]** | NVM Express |\nSee [HIOPS14].\n";
        let sources = [("crates/a/src/lib.rs", source), ("docs/bibliography.md", bibliography)];
        let found = run_on(citations, &sources, |_| {});
        let lines = [5, 1, 1, 2, 2, 3].map(|line| format!("a crates/a/src/lib.rs:{line} 1"));
        let mut expected: Vec<_> = lines.into();
        expected.push("docs docs/bibliography.md:3 1".into());
        let mut found = found;
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn without_a_bibliography_no_key_is_defined() {
        let sources = [("crates/a/src/lib.rs", "// [FAST17]")];
        assert_eq!(run_on(citations, &sources, |_| {}), ["a crates/a/src/lib.rs:1 1"]);
    }

    #[test]
    fn keys_have_letters_and_a_year_or_version() {
        let keys = ["FAST17", "OC20 §3", "NVMe2.0", "NVMeDirect16.", "Thesis15, x"].map(key_at);
        let expected = ["FAST17", "OC20", "NVMe2.0", "NVMeDirect16", "Thesis15"].map(Some);
        assert_eq!(keys, expected);
        assert_eq!(["u8", "T1", "AtomicU64", "x17", "PM1733", "A17b"].map(key_at), [None; 6]);
    }
}
