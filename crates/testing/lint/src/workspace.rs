//! The files that the checks read.
//!
//! Paths are relative to the repository and use `/`. Build products and hidden folders are not read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::lexer::{Lexed, lex};
use crate::syntax::FileSyntax;

/// A Rust source file.
#[derive(Clone, Debug)]
pub struct RustFile {
    /// Path in the repository.
    pub path: String,
    /// Folder name of the file's crate.
    pub crate_name: String,
    /// Whether the file is part of a test tree: outside of `src`, such as `tests`, `benches`, `examples`.
    pub is_test_tree: bool,
    /// The source.
    pub text: String,
    /// Tokens and comments.
    pub lexed: Lexed,
    /// Definitions, methods and parameters.
    pub syntax: FileSyntax,
}

impl RustFile {
    fn new(path: String, text: String) -> Result<Self, String> {
        let syntax = FileSyntax::extract(&text).map_err(|error| format!("{path}: {error}"))?;
        let (crate_name, is_test_tree) = owner_of(&path);
        let lexed = lex(&text);
        Ok(Self { path, crate_name, is_test_tree, text, lexed, syntax })
    }

    /// Whether the code on a line is compiled only for tests, benches or examples.
    pub fn is_test_code(&self, line: usize) -> bool {
        self.is_test_tree || self.syntax.is_test_line(line)
    }

    /// Lines of the file.
    pub fn line_count(&self) -> usize {
        self.text.lines().count()
    }
}

/// A Markdown or Python file.
#[derive(Clone, Debug)]
pub struct Document {
    /// Path in the repository.
    pub path: String,
    /// The source.
    pub text: String,
}

/// All files that the checks read.
#[derive(Clone, Debug, Default)]
pub struct Workspace {
    /// Rust sources of all crates and fuzz targets.
    pub rust: Vec<RustFile>,
    /// Markdown files.
    pub documents: Vec<Document>,
    /// Python sources of the package.
    pub python: Vec<Document>,
    /// TOML files by path.
    pub toml: BTreeMap<String, String>,
    /// Every file and folder, for links.
    pub paths: BTreeSet<String>,
    /// Symbolic links and the paths that they lead to.
    pub symlinks: BTreeMap<String, String>,
}

/// The crate's folder name, and whether the file is outside of its `src`.
fn owner_of(path: &str) -> (String, bool) {
    let mut owner = "";
    let mut folders: Vec<_> = path.split('/').collect();
    folders.pop();
    for folder in folders {
        match folder {
            "src" => return (owner.to_owned(), false),
            "tests" | "benches" | "examples" => break,
            "targets" if owner == "fuzz" => break,
            _ => owner = folder,
        }
    }
    (owner.to_owned(), true)
}

/// The repository's root: the nearest folder above this crate whose `Cargo.toml` has a workspace.
pub fn root() -> PathBuf {
    let start = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_root = |folder: &&Path| {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml"));
        manifest.is_ok_and(|text| text.lines().any(|line| line == "[workspace]"))
    };
    start.ancestors().find(is_root).unwrap_or_else(|| panic!("no workspace above {start:?}")).into()
}

/// The path that a relative link of a file leads to, or `None` if it leaves the repository.
///
/// A link that begins with `/` is relative to the repository.
pub fn follow(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = match link.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => from.split('/').collect(),
    };
    if !link.starts_with('/') {
        parts.pop();
    }
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

impl Workspace {
    /// Reads the repository at `root`.
    ///
    /// Fails with the path of a file that cannot be read or parsed.
    pub fn load(root: &Path) -> Result<Self, String> {
        let mut sources = Vec::new();
        let mut paths = BTreeSet::new();
        walk(root, "", &mut sources, &mut paths)?;
        let mut workspace = Self::build(sources, paths)?;
        for path in &workspace.paths {
            if let Ok(target) = std::fs::read_link(root.join(path))
                && let Some(target) = target.to_str().and_then(|target| follow(path, target))
            {
                workspace.symlinks.insert(path.clone(), target);
            }
        }
        Ok(workspace)
    }

    /// Builds a workspace from sources in memory.
    ///
    /// Fails with the path of a file that cannot be parsed.
    #[cfg(test)]
    pub(crate) fn from_sources(sources: &[(&str, &str)]) -> Result<Self, String> {
        let mut paths = BTreeSet::new();
        for (path, _) in sources {
            let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
            paths.extend(ends.map(|end| path[..end].to_owned()));
        }
        let owned = sources.iter().map(|&(path, text)| (path.to_owned(), text.to_owned()));
        Self::build(owned.collect(), paths)
    }

    fn build(sources: Vec<(String, String)>, paths: BTreeSet<String>) -> Result<Self, String> {
        let mut workspace = Self { paths, ..Self::default() };
        let mut rust = Vec::new();
        for (path, text) in sources {
            if path.ends_with(".rs") {
                rust.push((path, text));
            } else if path.ends_with(".toml") {
                workspace.toml.insert(path, text);
            } else if path.ends_with(".py") {
                workspace.python.push(Document { path, text });
            } else {
                workspace.documents.push(Document { path, text });
            }
        }
        workspace.rust = parse(rust)?;
        workspace.mark_test_modules();
        Ok(workspace)
    }

    /// Marks files of modules that a `#[cfg(test)] mod name;` declares, and of modules below them.
    fn mark_test_modules(&mut self) {
        let mut files = BTreeSet::new();
        let mut folders = Vec::new();
        for file in &self.rust {
            let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
            let is_root = matches!(name, "lib.rs" | "main.rs" | "mod.rs");
            let children = if is_root {
                folder.to_owned()
            } else {
                format!("{folder}/{}", name.trim_end_matches(".rs"))
            };
            for module in &file.syntax.test_modules {
                match &module.path {
                    Some(path) => files.insert(format!("{folder}/{path}")),
                    None => files.insert(format!("{children}/{}.rs", module.name)),
                };
                folders.push(format!("{children}/{}/", module.name));
            }
        }
        for file in &mut self.rust {
            let below = folders.iter().any(|folder| file.path.starts_with(folder));
            file.syntax.is_test |= below || files.contains(&file.path);
        }
    }
}

/// Parses files on all cores. Spans stay within their thread; [`FileSyntax`] does not contain any.
fn parse(sources: Vec<(String, String)>) -> Result<Vec<RustFile>, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(sources.len());
    let mut shares: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, source) in sources.into_iter().enumerate() {
        shares[index % threads].push(source);
    }
    let parse_share = |share: Vec<(String, String)>| -> Result<Vec<RustFile>, String> {
        share.into_iter().map(|(path, text)| RustFile::new(path, text)).collect()
    };
    let mut files = std::thread::scope(|scope| {
        let workers: Vec<_> =
            shares.into_iter().map(|share| scope.spawn(move || parse_share(share))).collect();
        let mut files = Vec::new();
        for worker in workers {
            files.extend(worker.join().map_err(|_| "the parser panicked".to_owned())??);
        }
        Ok::<_, String>(files)
    })?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn walk(
    root: &Path,
    folder: &str,
    sources: &mut Vec<(String, String)>,
    paths: &mut BTreeSet<String>,
) -> Result<(), String> {
    let error = |path: &str, error: std::io::Error| format!("{path}: {error}");
    let entries = std::fs::read_dir(root.join(folder)).map_err(|e| error(folder, e))?;
    for entry in entries {
        let entry = entry.map_err(|e| error(folder, e))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        let kind = entry.file_type().map_err(|e| error(&path, e))?;
        if kind.is_dir() {
            let is_output = name == "target" || name.starts_with("target-") || path == "worktrees";
            if !is_output && name != ".git" {
                walk(root, &path, sources, paths)?;
                paths.insert(path);
            }
        } else {
            if kind.is_file() && is_read(&path) {
                let text =
                    std::fs::read_to_string(root.join(&path)).map_err(|e| error(&path, e))?;
                sources.push((path.clone(), text));
            }
            // The book links to documents through links to their folders.
            if kind.is_symlink()
                && let Ok(entries) = std::fs::read_dir(root.join(&path))
            {
                let names = entries.flatten().map(|entry| entry.file_name());
                paths.extend(names.map(|name| format!("{path}/{}", name.to_string_lossy())));
            }
            paths.insert(path);
        }
    }
    Ok(())
}

/// Whether a file's text is needed.
fn is_read(path: &str) -> bool {
    let is_code = ["crates/", "fuzz/", "python/"].iter().any(|folder| path.starts_with(folder));
    let is_source = path.ends_with(".rs") || path.ends_with(".py");
    path.ends_with(".md") || path.ends_with(".toml") || (is_code && is_source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_the_folder_above_src_or_tests() {
        let owner = |path| owner_of(path);
        assert_eq!(owner("crates/device/ftl/src/journal/lane.rs"), ("ftl".into(), false));
        assert_eq!(owner("crates/base/rng/tests/samples/mod.rs"), ("rng".into(), true));
        assert_eq!(owner("crates/frontends/capi/build.rs"), ("capi".into(), true));
        assert_eq!(owner("fuzz/targets/socket.rs"), ("fuzz".into(), true));
    }

    #[test]
    fn files_of_test_modules_are_test_code() {
        let workspace = Workspace::from_sources(&[
            ("crates/a/src/lib.rs", "#[cfg(test)] mod tests; mod b;"),
            ("crates/a/src/tests.rs", "mod c;"),
            ("crates/a/src/tests/c.rs", ""),
            ("crates/a/src/b.rs", "#[cfg(all(test, not(loom)))] #[path = \"x.rs\"] mod d;"),
            ("crates/a/src/x.rs", ""),
        ])
        .unwrap();
        let test: Vec<_> = workspace.rust.iter().filter(|f| f.syntax.is_test).collect();
        let paths: Vec<_> = test.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(
            paths,
            ["crates/a/src/tests.rs", "crates/a/src/tests/c.rs", "crates/a/src/x.rs"]
        );
    }
}
