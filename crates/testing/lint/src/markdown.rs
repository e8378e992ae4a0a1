//! Links and anchors of Markdown documents.

use std::collections::{BTreeMap, BTreeSet};

use crate::text_block::document_block;
use crate::workspace::Document;

/// A link of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentLink {
    /// Where it leads, as written.
    pub target: String,
    /// Line, from 1.
    pub line: usize,
}

/// Inline links, images, reference definitions, and `href` and `src` attributes.
pub fn links(document: &Document) -> Vec<DocumentLink> {
    let block = document_block(document);
    let text = block.text.as_str();
    let mut found = Vec::new();
    let mut add = |target: &str, at: usize| {
        if !target.is_empty() {
            found.push(DocumentLink { target: target.to_owned(), line: block.line_at(at) });
        }
    };
    for (at, opening) in text.match_indices("](") {
        add(inline_target(&text[at + opening.len()..]), at);
    }
    for attribute in ["href=\"", "src=\""] {
        for (at, _) in text.match_indices(attribute) {
            let value = &text[at + attribute.len()..];
            add(value.split('"').next().unwrap_or(""), at);
        }
    }
    let mut offset = 0;
    for line in text.split('\n') {
        let definition = line.trim_start();
        if line.len() - definition.len() < 4
            && definition.starts_with('[')
            && !definition.starts_with("[^")
            && let Some((_, target)) = definition.split_once("]:")
            && let mut words = target.split_whitespace()
            && let Some(target) = words.next()
            // Prose may begin with a citation and a colon; after a target there is a title or nothing.
            && words.next().is_none_or(|title| title.starts_with(['"', '\'', '(']))
        {
            add(target.trim_start_matches('<').trim_end_matches('>'), offset);
        }
        offset += line.len() + 1;
    }
    found
}

/// The target of an inline link, without its title.
fn inline_target(text: &str) -> &str {
    if let Some(bracketed) = text.strip_prefix('<') {
        return bracketed.split('>').next().unwrap_or("");
    }
    let mut depth = 0;
    let end = text.find(|c: char| match c {
        '(' => {
            depth += 1;
            false
        }
        ')' => {
            depth -= 1;
            depth < 0
        }
        _ => c.is_whitespace(),
    });
    &text[..end.unwrap_or(text.len())]
}

/// The anchors of a document: its headings, as GitHub and mdBook name them, and explicit identifiers.
pub fn anchors(document: &Document) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let blanked = document_block(document).text;
    for (line, visible) in document.text.lines().zip(blanked.lines()) {
        for attribute in ["id=\"", "name=\""] {
            for (at, _) in visible.match_indices(attribute) {
                let value = &visible[at + attribute.len()..];
                anchors.extend(value.split('"').next().map(str::to_owned));
            }
        }
        let level = visible.bytes().take_while(|&b| b == b'#').count();
        if !(1..=6).contains(&level) || !visible[level..].starts_with(' ') {
            continue;
        }
        let mut heading = line[level..].trim().trim_end_matches('#').trim();
        if let Some((text, identifier)) = heading.split_once("{#") {
            heading = text.trim();
            anchors.insert(identifier.trim_end_matches('}').to_owned());
        }
        let slug = slug(heading);
        let count = seen.entry(slug.clone()).or_default();
        anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    anchors
}

/// The anchor of a heading.
fn slug(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    // Of `[text](target)` the anchor contains the text.
    while let Some(at) = rest.find("](") {
        let target = inline_target(&rest[at + 2..]);
        text.push_str(&rest[..at]);
        rest = rest[at + 2 + target.len()..].trim_start_matches(')');
    }
    text.push_str(rest);
    let kept = text.chars().filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(text: &str) -> Document {
        Document { path: "a.md".into(), text: text.into() }
    }

    #[test]
    fn links_of_all_forms_are_found() {
        let text = "[a](b.md#c \"d\") ![e](<f g.svg>) `[h](i)`\n[j]: k.md\n<a href=\"l\">\n```\n[m](n)\n```\n";
        let found: Vec<_> =
            links(&document(text)).into_iter().map(|l| (l.target, l.line)).collect();
        let expected =
            [("b.md#c", 1), ("f g.svg", 1), ("l", 3), ("k.md", 2)].map(|(t, l)| (t.to_owned(), l));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_target_may_contain_parentheses() {
        assert_eq!(inline_target("a(b).md) c)"), "a(b).md");
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text =
            "# A `b` & c!\n## Same\n## Same\n```\n# no\n```\n## See [x](y.md) {#own}\n<a id=\"z\">";
        let found: Vec<_> = anchors(&document(text)).into_iter().collect();
        assert_eq!(found, ["a-b--c", "own", "same", "same-1", "see-x", "z"]);
    }
}
