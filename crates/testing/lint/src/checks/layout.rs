//! Sizes of folders and files.

use std::collections::BTreeMap;

use super::Violation;
use crate::config::LintConfig;
use crate::workspace::Workspace;

/// Folders below a crate's `src` or `tests` with too many source files.
pub fn folder_files(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let mut folders: BTreeMap<&str, u64> = BTreeMap::new();
    for file in &workspace.rust {
        let is_counted = file.path.contains("/src/") || file.path.contains("/tests/");
        if let Some((folder, _)) = file.path.rsplit_once('/')
            && is_counted
        {
            *folders.entry(folder).or_default() += 1;
        }
    }
    let limit = config.limits.folder_files;
    let too_full = folders.into_iter().filter(|&(_, count)| count > limit);
    let report = |(folder, count): (&str, u64)| Violation {
        key: folder.to_owned(),
        path: folder.to_owned(),
        line: 1,
        weight: count,
        message: format!(
            "{count} source files in one folder (limit {limit}): group them by concept"
        ),
    };
    too_full.map(report).collect()
}

/// Source files with too many lines.
pub fn file_lines(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let limit = config.limits.file_lines;
    let sizes = workspace.rust.iter().map(|file| (file, file.line_count() as u64));
    let too_long = sizes.filter(|&(_, lines)| lines > limit);
    too_long
        .map(|(file, lines)| Violation {
            key: file.path.clone(),
            path: file.path.clone(),
            line: 1,
            weight: lines,
            message: format!("{lines} lines (limit {limit}): split the file by concept"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_on;

    #[test]
    fn a_folder_with_too_many_files_is_found() {
        let sources = [
            ("crates/a/src/lib.rs", ""),
            ("crates/a/src/b.rs", ""),
            ("crates/a/src/c/d.rs", ""),
            ("crates/a/benches/e.rs", ""),
            ("crates/a/benches/f.rs", ""),
        ];
        let found = run_on(folder_files, &sources, |config| config.limits.folder_files = 1);
        assert_eq!(found, ["crates/a/src crates/a/src:1 2"]);
    }

    #[test]
    fn a_long_file_is_found() {
        let sources = [("crates/a/src/lib.rs", "//\n//\n//\n"), ("crates/a/src/b.rs", "//\n//\n")];
        let found = run_on(file_lines, &sources, |config| config.limits.file_lines = 2);
        assert_eq!(found, ["crates/a/src/lib.rs crates/a/src/lib.rs:1 3"]);
    }
}
