//! `as` casts to integers, which truncate and change signs silently.

use super::Violation;
use crate::config::LintConfig;
use crate::lexer::TokenKind;
use crate::syntax::INTEGERS;
use crate::workspace::Workspace;

/// `as` casts to integers in the crates of `integer_casts.crates`, also inside of macros.
pub fn integer_casts(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in &workspace.rust {
        if !config.integer_casts.crates.contains(&file.crate_name) {
            continue;
        }
        for pair in file.lexed.tokens.windows(2) {
            let [keyword, target] = pair else { continue };
            let target_type = &file.text[target.span.clone()];
            let is_cast = keyword.kind == TokenKind::Ident
                && &file.text[keyword.span.clone()] == "as"
                && INTEGERS.contains(&target_type);
            if is_cast && !file.is_test_code(keyword.line) {
                found.push(Violation {
                    key: file.crate_name.clone(),
                    path: file.path.clone(),
                    line: keyword.line,
                    weight: 1,
                    message: format!("`as {target_type}`: use a newtype's conversion, or `from`"),
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
    fn casts_to_integers_are_found() {
        let source = "use a as b;\nfn c() { d as u32;\nassert!(e as usize == f as f64 as i8);\n}
            // g as u8\n#[cfg(test)] mod tests { fn h() { i as u8; } }";
        let sources = [
            ("crates/device/ftl/src/lib.rs", source),
            ("crates/device/ftl/tests/x.rs", "fn c() { d as u32; }"),
            ("crates/device/media/src/lib.rs", "fn c() { d as u32; }"),
        ];
        let found = run_on(integer_casts, &sources, |_| {});
        let lines = [2, 3, 3].map(|line| format!("ftl crates/device/ftl/src/lib.rs:{line} 1"));
        assert_eq!(found, lines);
    }
}
