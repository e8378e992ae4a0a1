//! Type names that several crates define: a reader who finds one needs to know which it is.

use std::collections::BTreeMap;

use super::Violation;
use crate::config::LintConfig;
use crate::syntax::TypeDef;
use crate::workspace::{RustFile, Workspace};

/// Names of structs, enums and traits that two or more crates define outside of tests.
///
/// Private types count only if `duplicate_types.private` is set.
pub fn duplicate_types(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let mut names: BTreeMap<&str, BTreeMap<&str, (&RustFile, &TypeDef)>> = BTreeMap::new();
    for file in workspace.rust.iter().filter(|f| !f.is_test_tree && !f.syntax.is_test) {
        let definitions = file.syntax.types.iter().filter(|t| {
            !t.is_test && !t.is_local && (t.is_visible || config.duplicate_types.private)
        });
        for definition in definitions {
            let crates = names.entry(&definition.name).or_default();
            crates.entry(&file.crate_name).or_insert((file, definition));
        }
    }
    let mut found = Vec::new();
    for (name, crates) in names {
        if crates.len() < 2 || config.duplicate_types.allow.iter().any(|allowed| allowed == name) {
            continue;
        }
        let all: Vec<_> = crates.keys().copied().collect();
        for (file, definition) in crates.values() {
            found.push(Violation {
                key: name.to_owned(),
                path: file.path.clone(),
                line: definition.line,
                weight: 1,
                message: format!(
                    "{} {name} is defined in {}: choose specific names, or allow it in lint.toml",
                    definition.keyword,
                    all.join(", ")
                ),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_on;

    #[test]
    fn names_of_two_crates_are_found() {
        let sources = [
            ("crates/a/src/lib.rs", "struct A;\npub trait B {}\nenum C {}\nfn f() { struct D; }"),
            ("crates/b/src/lib.rs", "mod x { pub(crate) enum A {} }\nstruct D;"),
            ("crates/b/src/y.rs", "#[cfg(test)] struct B;\nstruct C;"),
            ("crates/b/tests/z.rs", "struct B;"),
        ];
        let run = |private| {
            run_on(duplicate_types, &sources, |config| {
                config.duplicate_types.allow = vec!["C".into()];
                config.duplicate_types.private = private;
            })
        };
        let found = run(true);
        assert_eq!(found, ["A crates/a/src/lib.rs:1 1", "A crates/b/src/lib.rs:1 1"]);
        assert!(run(false).is_empty(), "A is private in crate a");
    }
}
