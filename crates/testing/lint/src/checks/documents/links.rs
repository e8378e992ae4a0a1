//! Relative links of documents resolve.

use std::collections::{BTreeMap, BTreeSet};

use crate::checks::Violation;
use crate::config::LintConfig;
use crate::markdown;
use crate::workspace::{Document, Workspace, follow};

/// Relative links whose file or anchor does not exist.
pub fn links(workspace: &Workspace, _: &LintConfig) -> Vec<Violation> {
    let anchors: BTreeMap<_, _> =
        workspace.documents.iter().map(|d| (d.path.as_str(), markdown::anchors(d))).collect();
    let mut found = Vec::new();
    for document in &workspace.documents {
        for link in markdown::links(document) {
            if let Err(problem) = resolve(document, &link.target, workspace, &anchors) {
                found.push(Violation {
                    key: document.path.clone(),
                    path: document.path.clone(),
                    line: link.line,
                    weight: 1,
                    message: format!("link to {}: {problem}", link.target),
                });
            }
        }
    }
    found
}

fn resolve(
    document: &Document,
    target: &str,
    workspace: &Workspace,
    anchors: &BTreeMap<&str, BTreeSet<String>>,
) -> Result<(), String> {
    let scheme = target.split([':', '/', '#']).next().unwrap_or("");
    if target.starts_with("//") || target[scheme.len()..].starts_with(':') {
        return Ok(());
    }
    let (file, anchor) = match target.split_once('#') {
        Some((file, anchor)) => (file, Some(anchor)),
        None => (target, None),
    };
    let path = if file.is_empty() {
        document.path.clone()
    } else {
        let path = follow(&document.path, &file.replace("%20", " "))
            .ok_or("leads out of the repository")?;
        if !path.is_empty() && !workspace.paths.contains(&path) {
            return Err(format!("{path} does not exist"));
        }
        path
    };
    match (anchor, anchors.get(path.as_str())) {
        (Some(anchor), Some(known)) if !known.contains(anchor) => {
            Err(format!("{path} has no heading #{anchor}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_on;

    #[test]
    fn broken_links_are_found() {
        let text = "[a](b.md) [c](b.md#d) [e](#f) [g](../README.md) [h](../scripts/)\n\
            [i](https://x.org/y) [j](mailto:k@l) [m](/docs/b.md)\n\
            [n](o.md)\n[p](b.md#q)\n[r](../../s.md)\n[t](#u)\n# F\n";
        let sources =
            [("docs/a.md", text), ("docs/b.md", "## D"), ("README.md", ""), ("scripts/x.md", "")];
        let found = run_on(links, &sources, |_| {});
        let lines = [3, 4, 5, 6].map(|line| format!("docs/a.md docs/a.md:{line} 1"));
        assert_eq!(found, lines);
    }
}
