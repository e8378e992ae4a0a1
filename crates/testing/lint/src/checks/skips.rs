//! Tests that are skipped: they say so through one helper, so that a run can count and forbid them.

use super::Violation;
use crate::config::LintConfig;
use crate::lexer::TokenKind;
use crate::workspace::Workspace;

/// `println!` and `eprintln!` in test code whose arguments contain a string with "skip".
pub fn skipped_tests(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in &workspace.rust {
        if config.skipped_tests.helper_crates.contains(&file.crate_name) {
            continue;
        }
        let tokens = &file.lexed.tokens;
        for (index, token) in tokens.iter().enumerate() {
            let is_print = token.kind == TokenKind::Ident
                && matches!(&file.text[token.span.clone()], "println" | "eprintln");
            if !is_print || !file.is_test_code(token.line) {
                continue;
            }
            // The format string is the first string after `println!(`.
            let format = tokens[index..].iter().take(4).find(|t| t.kind == TokenKind::Str);
            let text = format.map_or("", |t| &file.text[t.span.clone()]);
            if text.to_lowercase().contains("skip") {
                found.push(Violation {
                    key: file.crate_name.clone(),
                    path: file.path.clone(),
                    line: token.line,
                    weight: 1,
                    message: "prints that a test is skipped: use the helper of the test kit".into(),
                });
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
    fn printed_skips_are_found() {
        let print = "fn a() {\n eprintln!(\"SKIPPED: {b}\"); println!(\"c\");\n}";
        let sources = [
            ("crates/a/tests/b.rs", print),
            ("crates/a/src/lib.rs", print),
            ("crates/testing/testkit/tests/c.rs", print),
        ];
        assert_eq!(run_on(skipped_tests, &sources, |_| {}), ["a crates/a/tests/b.rs:2 1"]);
    }
}
