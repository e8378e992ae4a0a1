//! The checks, by concern. Each is a function from the workspace and the settings to violations.

use std::fmt;

use crate::config::LintConfig;
use crate::workspace::Workspace;

pub mod casts;
pub mod dependencies;
pub mod documents;
pub mod examples;
pub mod guarantees;
pub mod identifiers;
pub mod layout;
pub mod parameters;
pub mod parts;
pub mod skips;
pub mod structs;
pub mod type_names;

/// A place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The ratchet's entry: a crate, file, folder or type.
    pub key: String,
    /// Path in the repository.
    pub path: String,
    /// Line, from 1.
    pub line: usize,
    /// Amount that is added to the entry: a size where the check limits a size, and else 1.
    pub weight: u64,
    /// The problem and its remedy.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A check.
pub struct Check {
    /// Name of the check's table in `ratchets.toml`, and of its test.
    pub name: &'static str,
    /// Description of the quantity that an entry counts.
    pub purpose: &'static str,
    /// Finds the violations.
    pub run: fn(&Workspace, &LintConfig) -> Vec<Violation>,
}

/// All checks.
pub const CHECKS: &[Check] = &[
    Check {
        name: "struct_fields",
        purpose: "Fields of each struct that has methods and too many fields.",
        run: structs::struct_fields,
    },
    Check {
        name: "impl_files",
        purpose: "Files with inherent `impl` blocks of each type that has too many of them.",
        run: structs::impl_files,
    },
    Check {
        name: "folder_files",
        purpose: "Source files directly in each folder that has too many of them.",
        run: layout::folder_files,
    },
    Check {
        name: "file_lines",
        purpose: "Lines of each source file that is too long.",
        run: layout::file_lines,
    },
    Check {
        name: "tuple_parameters",
        purpose: "Parameters of tuple types in visible functions, by crate.",
        run: parameters::tuple_parameters,
    },
    Check {
        name: "integer_parameters",
        purpose: "Integer parameters of visible functions that are addresses or identities, by crate.",
        run: parameters::integer_parameters,
    },
    Check {
        name: "part_fields",
        purpose: "Visible fields of parts of the FTL, by type.",
        run: parts::part_fields,
    },
    Check {
        name: "part_invariants",
        purpose: "Parts without `check_invariants`, by type.",
        run: parts::part_invariants,
    },
    Check {
        name: "duplicate_types",
        purpose: "Crates that define each type name that more than one defines.",
        run: type_names::duplicate_types,
    },
    Check {
        name: "banned_identifiers",
        purpose: "Definitions whose names contain a banned word, by crate.",
        run: identifiers::banned_identifiers,
    },
    Check {
        name: "banned_prose",
        purpose: "Banned phrases in comments, by crate, and in Markdown.",
        run: documents::prose::banned_prose,
    },
    Check {
        name: "citations",
        purpose: "Citations that the bibliography does not resolve, by crate, and in Markdown.",
        run: documents::citations::citations,
    },
    Check {
        name: "guarantees",
        purpose: "Guarantees without a test, and markers without a guarantee.",
        run: guarantees::guarantees,
    },
    Check { name: "links", purpose: "Broken links, by document.", run: documents::links::links },
    Check {
        name: "paths",
        purpose: "Files that documents name and that do not exist, by document.",
        run: documents::paths::paths,
    },
    Check {
        name: "reachable",
        purpose: "Documents that are not found from the README or the book.",
        run: documents::reachable::reachable,
    },
    Check {
        name: "examples",
        purpose: "Examples that no test runs, by crate.",
        run: examples::examples,
    },
    Check {
        name: "integer_casts",
        purpose: "`as` casts to integers, by crate.",
        run: casts::integer_casts,
    },
    Check {
        name: "cli_dependencies",
        purpose: "Crates that reach the command line's dependencies.",
        run: dependencies::cli_dependencies,
    },
    Check {
        name: "skipped_tests",
        purpose: "Tests that print that they are skipped, by crate.",
        run: skips::skipped_tests,
    },
];

/// Runs a check on sources in memory with the repository's settings, changed by `change`.
#[cfg(test)]
fn run_on(
    run: fn(&Workspace, &LintConfig) -> Vec<Violation>,
    sources: &[(&str, &str)],
    change: impl FnOnce(&mut LintConfig),
) -> Vec<String> {
    let workspace = Workspace::from_sources(sources).expect("the sources can be parsed");
    let mut config = LintConfig::load().expect("the settings are valid");
    change(&mut config);
    let show = |v: Violation| format!("{} {}:{} {}", v.key, v.path, v.line, v.weight);
    run(&workspace, &config).into_iter().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len());
    }
}
