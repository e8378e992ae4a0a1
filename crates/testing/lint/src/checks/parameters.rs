//! Parameters of tuple types, and addresses and identities that are primitive integers: named types say which
//! value is which.

use super::Violation;
use crate::config::LintConfig;
use crate::syntax::IntegerParameter;
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

/// Integer parameters of visible functions, in the crates of `integer_parameters.crates`, that the name shows to be
/// an address or an identity: the name, or its last word, or the word before `_id`, is one of
/// `integer_parameters.words`.
pub fn integer_parameters(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let config = &config.integer_parameters;
    let mut found = Vec::new();
    for file in workspace.rust.iter().filter(|f| !f.is_test_tree && !f.syntax.is_test) {
        if !config.crates.contains(&file.crate_name) {
            continue;
        }
        let visible = |p: &&IntegerParameter| p.is_visible && !p.is_test;
        for parameter in file.syntax.integer_parameters.iter().filter(visible) {
            let name = parameter.name.strip_suffix("_id").unwrap_or(&parameter.name);
            let last = name.rsplit('_').next().unwrap_or(name);
            if !config.words.iter().any(|word| word == last) {
                continue;
            }
            found.push(Violation {
                key: file.crate_name.clone(),
                path: file.path.clone(),
                line: parameter.line,
                weight: 1,
                message: format!(
                    "`{}` of {} is an integer: use the type of the address or identity",
                    parameter.name, parameter.function
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

    #[test]
    fn integers_that_are_addresses_or_identities_are_found() {
        let source = "pub fn a(chunk: u32, sectors: u32) {}
            pub(crate) fn c(&self, first_lba: Option<u64>, chunk: ChunkId) {}
            fn private(pu: u32) {}
            impl A { pub fn g(&mut self, line_id: &u32, lines: usize) {} }
            pub fn unit(chunks: &[u32], chunk_size: u32, unit: Unit) {}
            #[cfg(test)] mod tests { pub fn r(pu: u8) {} }";
        let sources = [
            ("crates/device/ftl/src/lib.rs", source),
            ("crates/device/controller/src/lib.rs", "pub fn a(chunk: u32) {}"),
        ];
        let found = run_on(integer_parameters, &sources, |_| {});
        let lines = [1, 2, 4].map(|line| format!("ftl crates/device/ftl/src/lib.rs:{line} 1"));
        assert_eq!(found, lines);
    }
}
