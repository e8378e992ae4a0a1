//! Examples are run by tests.

use super::Violation;
use crate::config::LintConfig;
use crate::workspace::Workspace;

/// Files of `examples` folders that no test of their crate has as a module.
pub fn examples(workspace: &Workspace, _: &LintConfig) -> Vec<Violation> {
    let mut found = Vec::new();
    for example in &workspace.rust {
        let Some((folder, name)) = example.path.split_once("/examples/") else { continue };
        if name.contains('/') {
            continue;
        }
        let tests = format!("{folder}/tests/");
        let module = format!("examples/{name}\"]");
        let is_run = |path: &str, text: &str| path.starts_with(&tests) && text.contains(&module);
        if !workspace.rust.iter().any(|file| is_run(&file.path, &file.text)) {
            found.push(Violation {
                key: example.crate_name.clone(),
                path: example.path.clone(),
                line: 1,
                weight: 1,
                message: format!(
                    "no test in {tests} runs it: add `#[path = \"../examples/{name}\"]`"
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
    fn examples_without_a_test_are_found() {
        let sources = [
            ("crates/x/a/examples/b.rs", ""),
            ("crates/x/a/examples/c.rs", ""),
            ("crates/x/a/examples/common/mod.rs", ""),
            ("crates/x/a/tests/examples.rs", "#[path = \"../examples/b.rs\"] mod b;"),
            ("crates/x/d/tests/examples.rs", "#[path = \"../examples/c.rs\"] mod c;"),
        ];
        let found = run_on(examples, &sources, |_| {});
        assert_eq!(found, ["a crates/x/a/examples/c.rs:1 1"]);
    }
}
