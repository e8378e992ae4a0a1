//! Documents are found from the README or from the book's contents.

use std::collections::{BTreeMap, BTreeSet};

use crate::checks::Violation;
use crate::config::LintConfig;
use crate::markdown;
use crate::workspace::{Document, Workspace, follow};

/// Documents to which no chain of links and includes leads from one of `reachable.start`.
pub fn reachable(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let documents: BTreeMap<_, _> =
        workspace.documents.iter().map(|document| (document.path.as_str(), document)).collect();
    let mut found = BTreeSet::new();
    let mut left = config.reachable.start.clone();
    while let Some(path) = left.pop() {
        let path = without_symlinks(&path, workspace);
        let Some(document) = documents.get(path.as_str()) else { continue };
        if found.insert(path) {
            left.extend(targets(document));
        }
    }
    let is_checked = |path: &str| config.reachable.folders.iter().any(|f| path.starts_with(f));
    let lost =
        workspace.documents.iter().filter(|d| is_checked(&d.path) && !found.contains(&d.path));
    lost.map(|document| Violation {
        key: document.path.clone(),
        path: document.path.clone(),
        line: 1,
        weight: 1,
        message: format!("no link leads here from {}", config.reachable.start.join(" or ")),
    })
    .collect()
}

/// Paths that a document links to, or includes as `{{#include PATH}}`.
fn targets(document: &Document) -> Vec<String> {
    let links = markdown::links(document).into_iter().map(|link| link.target);
    let includes = document.text.split("{{#include ").skip(1);
    let includes = includes.filter_map(|rest| rest.split(['}', ':']).next().map(str::to_owned));
    let file = |target: String| target.split('#').next().unwrap_or_default().to_owned();
    let paths = links.chain(includes).map(file).filter(|target| !target.contains("://"));
    paths.filter_map(|target| follow(&document.path, &target)).collect()
}

/// The path of a file whose folder may be a symbolic link.
fn without_symlinks(path: &str, workspace: &Workspace) -> String {
    let folders = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    for end in folders {
        if let Some(target) = workspace.symlinks.get(&path[..end]) {
            return format!("{target}{}", &path[end..]);
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_on;

    #[test]
    fn documents_without_a_link_are_found() {
        let sources = [
            ("README.md", "[a](docs/a.md#b) [c](https://x.org/docs/d.md)"),
            ("docs/a.md", "{{#include e.md}}"),
            ("docs/d.md", "[d](d.md)"),
            ("docs/e.md", ""),
            ("crates/x/README.md", ""),
        ];
        let found = run_on(reachable, &sources, |config| {
            config.reachable.start = vec!["README.md".into()];
            config.reachable.folders = vec!["docs/".into()];
        });
        assert_eq!(found, ["docs/d.md docs/d.md:1 1"]);
    }

    #[test]
    fn folders_may_be_symbolic_links() {
        let mut workspace = Workspace::default();
        workspace.symlinks.insert("docs/book/capi".into(), "docs/capi".into());
        assert_eq!(without_symlinks("docs/book/capi/a.md", &workspace), "docs/capi/a.md");
        assert_eq!(without_symlinks("docs/book/a.md", &workspace), "docs/book/a.md");
    }
}
