//! Parts of a composition: their fields are private, and each can check its invariants.

use super::Violation;
use crate::config::LintConfig;
use crate::workspace::Workspace;

/// Visible fields of the types that `part_fields.types` lists.
pub fn part_fields(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let settings = &config.part_fields;
    let mut found = Vec::new();
    for file in &workspace.rust {
        if file.is_test_tree || !settings.crates.contains(&file.crate_name) {
            continue;
        }
        let parts = file.syntax.types.iter().filter(|t| settings.types.contains(&t.name));
        for part in parts {
            for field in part.fields.iter().filter(|field| field.is_visible) {
                found.push(Violation {
                    key: part.name.clone(),
                    path: file.path.clone(),
                    line: field.line,
                    weight: 1,
                    message: format!("field {} of {} is not private", field.name, part.name),
                });
            }
        }
    }
    found
}

/// Types of `part_invariants.types` that do not exist or have no `check_invariants` method.
pub fn part_invariants(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let mut found = Vec::new();
    for entry in &config.part_invariants.types {
        let (owner, name) = match entry.rsplit_once("::") {
            Some((owner, name)) => (Some(owner), name),
            None => (None, entry.as_str()),
        };
        let code = || workspace.rust.iter().filter(|file| !file.is_test_tree);
        let files = || code().filter(|f| owner.is_none_or(|owner| f.crate_name == owner));
        let blocks =
            files().flat_map(|f| &f.syntax.impls).filter(|b| b.type_name == name && !b.is_test);
        let has_method = blocks.flat_map(|b| &b.methods).any(|m| m.name == "check_invariants");
        if has_method {
            continue;
        }
        let mut definitions =
            files().flat_map(|f| f.syntax.types.iter().map(move |definition| (f, definition)));
        let (path, line, message) = match definitions.find(|(_, d)| d.name == name && !d.is_test) {
            Some((file, definition)) => {
                (file.path.clone(), definition.line, format!("{entry} has no `check_invariants`"))
            }
            None => {
                let message = format!("`part_invariants` lists {entry}, which is not defined");
                ("crates/testing/lint/lint.toml".to_owned(), 1, message)
            }
        };
        found.push(Violation { key: entry.clone(), path, line, weight: 1, message });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_on;

    #[test]
    fn visible_fields_of_parts_are_found() {
        let source = "pub struct Ftl {\n a: u8,\n pub(crate) b: u8,\n pub(super) c: u8,\n}
            pub struct Other { pub d: u8 }";
        let found = run_on(part_fields, &[("crates/device/ftl/src/ftl.rs", source)], |_| {});
        assert_eq!(
            found,
            ["Ftl crates/device/ftl/src/ftl.rs:3 1", "Ftl crates/device/ftl/src/ftl.rs:4 1"]
        );
    }

    #[test]
    fn parts_without_invariants_are_found() {
        let sources = [
            (
                "crates/a/src/lib.rs",
                "struct A;\nstruct B;\nimpl A { fn check_invariants(&self) {} }",
            ),
            ("crates/c/src/lib.rs", "struct A;\n"),
        ];
        let found = run_on(part_invariants, &sources, |config| {
            config.part_invariants.types = ["A", "c::A", "B", "C"].map(str::to_owned).into();
        });
        assert_eq!(
            found,
            [
                "c::A crates/c/src/lib.rs:1 1",
                "B crates/a/src/lib.rs:2 1",
                "C crates/testing/lint/lint.toml:1 1"
            ]
        );
    }
}
