//! Tuple-typed parameters: named types say which value is which.

use super::Violation;
use crate::config::LintConfig;
use crate::workspace::Workspace;

/// Parameters of visible functions that are tuples, references to tuples, or slices or arrays of tuples.
pub fn tuple_parameters(workspace: &Workspace, _: &LintConfig) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in workspace.rust.iter().filter(|f| !f.is_test_tree && !f.syntax.is_test) {
        for parameter in file.syntax.tuple_parameters.iter().filter(|p| p.is_visible && !p.is_test)
        {
            found.push(Violation {
                key: file.crate_name.clone(),
                path: file.path.clone(),
                line: parameter.line,
                weight: 1,
                message: format!(
                    "{} has a parameter of a tuple type: use a struct or newtypes",
                    parameter.function
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
    fn tuples_of_visible_functions_are_found() {
        let source = "pub fn a(b: (u8, u8)) {}
            pub(crate) fn c(d: &mut (u8, u8), e: &[(u8, u8)]) {}
            fn private(f: (u8, u8)) {}
            impl A { pub fn g(&self, h: [(u8, u8); 2]) {} }
            pub trait I { fn j(k: (u8, u8)); }
            trait Private { fn l(m: (u8, u8)); }
            impl I for A { fn j(k: (u8, u8)) {} }
            pub fn unit(n: (), (o, p): Pair, q: Option<(u8, u8)>) {}
            #[cfg(test)] mod tests { pub fn r(s: (u8, u8)) {} }";
        let found = run_on(tuple_parameters, &[("crates/a/src/lib.rs", source)], |_| {});
        let lines = [1, 2, 2, 4, 5].map(|line| format!("a crates/a/src/lib.rs:{line} 1"));
        assert_eq!(found, lines);
    }
}
