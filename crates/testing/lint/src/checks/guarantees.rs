//! Guarantees and their tests: each guarantee names tests, and each of them carries
//! `// guarantee: ID`, or `# guarantee: ID` in Python.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Violation;
use crate::config::LintConfig;
use crate::lexer::TokenKind;
use crate::workspace::{Document, RustFile, Workspace};

#[derive(Deserialize)]
struct Specification {
    #[serde(default, alias = "guarantees")]
    guarantee: Vec<Guarantee>,
}

#[derive(Deserialize)]
struct Guarantee {
    id: String,
    /// `path` or `path::test_name`.
    #[serde(default)]
    tests: Vec<String>,
    /// A command that verifies it, of guarantees that no test can.
    run: Option<String>,
}

/// A comment `// guarantee: ID`.
struct Marker {
    id: String,
    path: String,
    line: usize,
    /// The function that the comment is above or in.
    function: Option<String>,
}

/// Guarantees without tests, tests without markers, and markers without guarantees.
///
/// Finds nothing while the file of guarantees does not exist.
pub fn guarantees(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let file = &config.guarantees.file;
    let Some(text) = workspace.toml.get(file) else { return Vec::new() };
    let violation = |path: &str, line: usize, message: String| Violation {
        key: "guarantees".into(),
        path: path.to_owned(),
        line,
        weight: 1,
        message,
    };
    let specification: Specification = match toml::from_str(text) {
        Ok(specification) => specification,
        Err(error) => return vec![violation(file, 1, error.to_string())],
    };
    let in_rust = workspace.rust.iter().flat_map(markers);
    let markers: Vec<_> = in_rust.chain(workspace.python.iter().flat_map(python_markers)).collect();
    let mut found = Vec::new();
    let mut listed: BTreeMap<&str, &Guarantee> = BTreeMap::new();
    for guarantee in &specification.guarantee {
        let id = guarantee.id.as_str();
        let line = line_of(text, id);
        if listed.insert(id, guarantee).is_some() {
            found.push(violation(file, line, format!("{id} is defined twice")));
        }
        if guarantee.tests.is_empty() && guarantee.run.is_none() {
            found.push(violation(file, line, format!("{id} has neither a test nor a command")));
        }
        for test in &guarantee.tests {
            if let Some(problem) = problem_of(id, test, &markers, workspace) {
                found.push(violation(file, line, format!("{id}: {problem}")));
            }
        }
    }
    for marker in &markers {
        let is_listed = listed
            .get(marker.id.as_str())
            .map(|guarantee| guarantee.tests.iter().any(|test| marker.is_for(test)));
        let problem = match is_listed {
            None => format!("{file} does not define {}", marker.id),
            Some(false) => format!("{file} does not list this test for {}", marker.id),
            Some(true) => continue,
        };
        found.push(violation(&marker.path, marker.line, problem));
    }
    found
}

/// Line of an identifier's definition.
fn line_of(text: &str, id: &str) -> usize {
    let quoted = format!("\"{id}\"");
    let is_definition = |line: &str| line.trim_start().starts_with("id") && line.contains(&quoted);
    text.lines().position(is_definition).map_or(1, |index| index + 1)
}

fn split(test: &str) -> (&str, Option<&str>) {
    match test.split_once("::") {
        // The last part is the function; modules may be in between.
        Some((path, name)) => (path, name.rsplit("::").next()),
        None => (test, None),
    }
}

impl Marker {
    fn is_for(&self, test: &str) -> bool {
        let (path, function) = split(test);
        self.path == path && (function.is_none() || function == self.function.as_deref())
    }
}

/// The problem of a guarantee's test, if it has one.
fn problem_of(id: &str, test: &str, markers: &[Marker], workspace: &Workspace) -> Option<String> {
    let (path, function) = split(test);
    if !workspace.paths.contains(path) {
        return Some(format!("{path} does not exist"));
    }
    let in_rust = workspace.rust.iter().find(|file| file.path == path);
    let in_python = workspace.python.iter().find(|file| file.path == path);
    let has_function = |function: &str| match (in_rust, in_python) {
        (Some(file), _) => Some(functions(file).any(|(_, name)| name == function)),
        (None, Some(file)) => Some(file.text.lines().any(|line| defined(line) == Some(function))),
        // Scripts and folders have no markers.
        (None, None) => None,
    };
    if !has_function(function.unwrap_or_default())?
        && let Some(function) = function
    {
        return Some(format!("{path} has no function {function}"));
    }
    let is_marked = markers.iter().any(|marker| marker.id == id && marker.is_for(test));
    (!is_marked).then(|| format!("{test} has no comment `// guarantee: {id}`"))
}

/// Functions of a file with the index of the token `fn`.
fn functions(file: &RustFile) -> impl Iterator<Item = (usize, &str)> {
    file.lexed.tokens.windows(2).enumerate().filter_map(|(index, pair)| {
        let is_function = pair[0].kind == TokenKind::Ident
            && &file.text[pair[0].span.clone()] == "fn"
            && pair[1].kind == TokenKind::Ident;
        is_function.then(|| (index, &file.text[pair[1].span.clone()]))
    })
}

/// The function that a line of Python defines.
fn defined(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let name = line.strip_prefix("async ").unwrap_or(line).strip_prefix("def ")?;
    name.split_once('(').map(|(name, _)| name.trim())
}

/// The markers of a Python file: above a function or its decorators, or in it.
fn python_markers(file: &Document) -> Vec<Marker> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(ids) = line.trim_start().strip_prefix("# guarantee:") else { continue };
        let is_above = !line.starts_with(' ');
        let function = match is_above {
            true => lines[index..].iter().find_map(|line| defined(line)),
            false => lines[..index].iter().rev().find_map(|line| defined(line)),
        };
        found.extend(ids.split(',').map(|id| Marker {
            id: id.trim().to_owned(),
            path: file.path.clone(),
            line: index + 1,
            function: function.map(str::to_owned),
        }));
    }
    found
}

/// The markers of a file. A marker may name several guarantees, separated by commas.
fn markers(file: &RustFile) -> Vec<Marker> {
    let mut found = Vec::new();
    for comment in &file.lexed.comments {
        let text = file.text[comment.text.clone()].trim();
        let Some(ids) = text.strip_prefix("guarantee:") else { continue };
        let function = function_at(file, comment.text.start);
        found.extend(ids.split(',').map(|id| Marker {
            id: id.trim().to_owned(),
            path: file.path.clone(),
            line: comment.line,
            function: function.clone(),
        }));
    }
    found
}

/// The function above which a byte is, with only attributes and qualifiers in between, or in which it is.
fn function_at(file: &RustFile, offset: usize) -> Option<String> {
    let tokens = &file.lexed.tokens;
    let text = |index: usize| tokens.get(index).map_or("", |token| &file.text[token.span.clone()]);
    let mut index = tokens.partition_point(|token| token.span.start < offset);
    let first = index;
    while text(index) == "#" {
        let mut depth = 0;
        while index < tokens.len() {
            index += 1;
            match text(index) {
                "[" => depth += 1,
                "]" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
        index += 1;
    }
    while matches!(text(index), "pub" | "async" | "const" | "unsafe" | "(" | ")" | "crate") {
        index += 1;
    }
    if text(index) == "fn" {
        return Some(text(index + 1).to_owned());
    }
    functions(file).take_while(|&(at, _)| at < first).last().map(|(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_on;

    const TEST: &str = "// guarantee: D-01\n#[test]\nfn a() {}\n\n#[test]\nfn b() {\n    // guarantee: D-02, D-09\n}\n";

    fn run(specification: &str) -> Vec<String> {
        let sources = [
            ("crates/a/tests/t.rs", TEST),
            ("scripts/x.toml", ""),
            ("spec/guarantees.toml", specification),
        ];
        run_on(guarantees, &sources, |_| {})
    }

    #[test]
    fn without_the_file_nothing_is_found() {
        assert!(run_on(guarantees, &[("crates/a/tests/t.rs", TEST)], |_| {}).is_empty());
    }

    #[test]
    fn both_directions_are_checked() {
        let found = run("[[guarantee]]\nid = \"D-01\"\ntests = [\"crates/a/tests/t.rs::a\"]\n
            [[guarantee]]\nid = \"D-02\"\ntests = [\"crates/a/tests/t.rs\", \"scripts/x.toml\"]\n");
        assert_eq!(found, ["guarantees crates/a/tests/t.rs:7 1"]);
    }

    #[test]
    fn tests_that_do_not_exist_or_have_no_marker_are_found() {
        let found = run("[[guarantee]]\nid = \"D-01\"\ntests = [\"crates/a/tests/t.rs::b\"]\n
            [[guarantee]]\nid = \"D-02\"\ntests = [\"crates/a/tests/t.rs::c\", \"crates/z.rs\"]\n
            [[guarantee]]\nid = \"D-09\"\ntests = []\n");
        assert_eq!(
            found,
            [
                "guarantees spec/guarantees.toml:2 1",
                "guarantees spec/guarantees.toml:6 1",
                "guarantees spec/guarantees.toml:6 1",
                "guarantees spec/guarantees.toml:10 1",
                "guarantees crates/a/tests/t.rs:1 1",
                "guarantees crates/a/tests/t.rs:7 1",
                "guarantees crates/a/tests/t.rs:7 1",
            ]
        );
    }

    #[test]
    fn tests_in_python_have_markers_too() {
        let test = "# guarantee: D-01\n@parametrize(1)\ndef test_a():\n    pass\n\ndef test_b():\n    # guarantee: D-02\n    pass\n";
        let run = |specification: &str| {
            let sources = [("python/tests/t.py", test), ("spec/guarantees.toml", specification)];
            run_on(guarantees, &sources, |_| {})
        };
        let entry = |id: &str, test: &str| {
            format!("[[guarantee]]\nid = \"{id}\"\ntests = [\"python/tests/t.py{test}\"]\n")
        };
        assert!(run(&(entry("D-01", "::test_a") + &entry("D-02", "::test_b"))).is_empty());
        assert!(run(&(entry("D-01", "") + &entry("D-02", ""))).is_empty());
        let swapped = run(&(entry("D-01", "::test_b") + &entry("D-02", "::test_a")));
        assert_eq!(swapped.len(), 4, "two tests without markers, two markers without guarantees");
        let missing = run(&(entry("D-01", "::test_c") + &entry("D-02", "")));
        assert_eq!(missing.len(), 2, "no such function, and a marker without a guarantee");
    }
}
