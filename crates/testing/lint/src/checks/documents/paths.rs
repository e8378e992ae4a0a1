//! Files that documents name exist.

use std::collections::BTreeMap;

use crate::checks::Violation;
use crate::config::LintConfig;
use crate::workspace::{Document, Workspace};

/// Folders of the repository's root; a path that begins with one is relative to the root.
const ROOTS: [&str; 8] = ["crates", "demo", "docs", "fuzz", "python", "scripts", "spec", ".ci"];
/// Folders of a crate; a path with one behind a crate's name is relative to the crate's folder.
const CRATE_FOLDERS: [&str; 4] = ["src", "tests", "benches", "examples"];

/// Paths in code spans of Markdown that do not exist. `a/{b,c}.rs` names two files.
pub fn paths(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let crates = crate_folders(workspace);
    let mut found = Vec::new();
    for document in &workspace.documents {
        if config.paths.except.contains(&document.path) {
            continue;
        }
        for (span, line) in code_spans(document) {
            let (path, _) = span.split_once("::").unwrap_or((&span, ""));
            for path in expanded(path) {
                let Some(resolved) = resolved(&path, &crates) else { continue };
                if !workspace.paths.contains(resolved.trim_end_matches('/')) {
                    found.push(Violation {
                        key: document.path.clone(),
                        path: document.path.clone(),
                        line,
                        weight: 1,
                        message: format!("{path} does not exist"),
                    });
                }
            }
        }
    }
    found
}

/// Folders of crates by name.
fn crate_folders(workspace: &Workspace) -> BTreeMap<&str, &str> {
    let manifests = workspace.toml.keys().filter_map(|path| path.strip_suffix("/Cargo.toml"));
    let named = manifests.map(|folder| (folder.rsplit('/').next().unwrap_or(folder), folder));
    named.filter(|(_, folder)| folder.starts_with("crates/")).collect()
}

/// The path in the repository of what looks like one.
fn resolved(path: &str, crates: &BTreeMap<&str, &str>) -> Option<String> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let (first, rest) = path.split_once('/')?;
    if !path.chars().all(is_path)
        || path.chars().any(|c| c.is_ascii_uppercase())
        || path.contains("..")
    {
        return None;
    }
    if ROOTS.contains(&first) {
        return Some(path.to_owned());
    }
    let folder = rest.split('/').next().unwrap_or(rest);
    let is_in_crate = CRATE_FOLDERS.contains(&folder);
    is_in_crate.then(|| format!("{}/{rest}", crates.get(first).copied().unwrap_or(first)))
}

/// The paths that a path with alternatives in braces stands for.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let Some((inner, after)) = rest.split_once('}') else { return vec![path.to_owned()] };
    let alternatives = inner.split(',').map(|one| format!("{before}{}{after}", one.trim()));
    alternatives.flat_map(|one| expanded(&one)).collect()
}

/// Code spans outside of code blocks, with their lines. A span may continue on the next line.
fn code_spans(document: &Document) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut open: Option<(String, usize)> = None;
    let mut is_block = false;
    for (index, line) in document.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_block = !is_block;
            open = None;
            continue;
        }
        if is_block {
            continue;
        }
        if line.trim().is_empty() {
            open = None;
        }
        for (number, part) in line.split('`').enumerate() {
            if number > 0 {
                match open.take() {
                    Some(span) => found.push(span),
                    None => open = Some((String::new(), index + 1)),
                }
            }
            if let Some((text, _)) = &mut open {
                text.push_str(part.trim());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_on;

    #[test]
    fn paths_that_do_not_exist_are_found() {
        let text = "`crates/x/a/src/{b,c}.rs` and `a/src/b.rs::test`\n`a/src/d.rs`, `e/src/f.rs`\n\
            `docs/g\nh.md` `and/or` `docs/NAME.md`\n```\n`docs/i.md`\n```\n`scripts/`";
        let sources = [
            ("docs/j.md", text),
            ("crates/x/a/Cargo.toml", ""),
            ("crates/x/a/src/b.rs", ""),
            ("scripts/k.md", ""),
        ];
        let found = run_on(paths, &sources, |_| {});
        let lines = [1, 2, 2, 3].map(|line| format!("docs/j.md docs/j.md:{line} 1"));
        assert_eq!(found, lines);
    }
}
