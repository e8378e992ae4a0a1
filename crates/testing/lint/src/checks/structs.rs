//! Sizes of types: fields of structs with methods, and files over which a type's methods are spread.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use crate::config::LintConfig;
use crate::syntax::{InherentImpl, TypeDef};
use crate::workspace::{RustFile, Workspace};

/// A type of a crate with its inherent `impl` blocks.
struct Type<'a> {
    file: &'a RustFile,
    definition: &'a TypeDef,
    impls: Vec<(&'a RustFile, &'a InherentImpl)>,
}

/// Types outside of tests. An `impl` block belongs to the type of its name whose file is nearest.
fn types(workspace: &Workspace) -> Vec<Type<'_>> {
    let code = || workspace.rust.iter().filter(|f| !f.is_test_tree && !f.syntax.is_test);
    let mut types = Vec::new();
    let mut by_name: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for file in code() {
        let definitions = file.syntax.types.iter().filter(|t| !t.is_test && !t.is_local);
        for definition in definitions {
            let key = (file.crate_name.as_str(), definition.name.as_str());
            by_name.entry(key).or_default().push(types.len());
            types.push(Type { file, definition, impls: Vec::new() });
        }
    }
    for file in code() {
        for block in file.syntax.impls.iter().filter(|block| !block.is_test) {
            let key = (file.crate_name.as_str(), block.type_name.as_str());
            let candidates = by_name.get(&key).map_or(&[][..], Vec::as_slice);
            let nearest = candidates
                .iter()
                .max_by_key(|&&index| nearness(&types[index].file.path, &file.path));
            if let Some(&index) = nearest {
                types[index].impls.push((file, block));
            }
        }
    }
    types
}

/// Length of the common start of two paths in folders; the largest for the same file.
fn nearness(a: &str, b: &str) -> usize {
    if a == b {
        return usize::MAX;
    }
    // A module `x.rs` is as near to `x/y.rs` as `x/mod.rs` is.
    let parts = |path: &str| -> Vec<String> {
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        path.split('/').map(str::to_owned).collect()
    };
    parts(a).iter().zip(parts(b)).take_while(|(a, b)| **a == *b).count()
}

/// `crate::Type`, or with the file's name if the crate has several types of the name.
fn key_of(types: &[Type<'_>], this: &Type<'_>) -> String {
    let crate_name = &this.file.crate_name;
    let name = &this.definition.name;
    let namesakes =
        types.iter().filter(|t| t.file.crate_name == *crate_name && t.definition.name == *name);
    if namesakes.count() == 1 {
        return format!("{crate_name}::{name}");
    }
    let path = this.file.path.trim_end_matches(".rs").trim_end_matches("/mod");
    let module = path.split_once("/src/").map_or("", |(_, module)| module).replace('/', "::");
    format!("{crate_name}::{module}::{name}")
}

/// Structs with methods and too many fields.
pub fn struct_fields(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let limit = config.limits.struct_fields;
    let settings = &config.struct_fields;
    let types = types(workspace);
    let mut found = Vec::new();
    for this in &types {
        let definition = this.definition;
        let count = definition.fields.len() as u64;
        let is_exempt = definition.is_repr_c
            || settings.exempt_suffixes.iter().any(|suffix| definition.name.ends_with(suffix))
            || settings.exempt_derives.iter().any(|name| definition.derives.contains(name));
        let has_behavior =
            this.impls.iter().flat_map(|(_, block)| &block.methods).any(|m| m.takes_self);
        if count > limit && has_behavior && !is_exempt {
            found.push(Violation {
                key: key_of(&types, this),
                path: this.file.path.clone(),
                line: definition.line,
                weight: count,
                message: format!(
                    "struct {} has methods and {count} fields (limit {limit}): \
                     group fields into parts with invariants of their own",
                    definition.name
                ),
            });
        }
    }
    found
}

/// Types whose inherent `impl` blocks are in too many files.
pub fn impl_files(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let limit = config.limits.impl_files;
    let exempt = &config.impl_files.exempt_folders;
    let types = types(workspace);
    let mut found = Vec::new();
    for this in &types {
        let is_counted =
            |path: &str| !path.split('/').any(|folder| exempt.iter().any(|name| name == folder));
        let paths = this.impls.iter().map(|(file, _)| file.path.as_str());
        let files: BTreeSet<_> = paths.filter(|path| is_counted(path)).collect();
        let count = files.len() as u64;
        if count > limit {
            found.push(Violation {
                key: key_of(&types, this),
                path: this.file.path.clone(),
                line: this.definition.line,
                weight: count,
                message: format!(
                    "{} has inherent `impl` blocks in {count} files (limit {limit}): \
                     move methods to the parts that they are about",
                    this.definition.name
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

    const LARGE: &str = "struct A { b: u8, c: u8 }\nimpl A { fn d(&self) {} }\n";

    fn fields_of(source: &str) -> Vec<String> {
        let sources = [("crates/a/src/lib.rs", source)];
        run_on(struct_fields, &sources, |config| config.limits.struct_fields = 1)
    }

    #[test]
    fn a_struct_with_methods_and_many_fields_is_found() {
        assert_eq!(fields_of(LARGE), ["a::A crates/a/src/lib.rs:1 2"]);
    }

    #[test]
    fn structs_without_behavior_are_exempt() {
        let data = "struct A { b: u8, c: u8 }\nimpl A { fn new() {} }";
        let config = "struct AConfig { b: u8, c: u8 }\nimpl AConfig { fn d(&self) {} }";
        for source in [
            data.to_owned(),
            config.to_owned(),
            format!("#[repr(C)] {LARGE}"),
            format!("#[derive(Clone, serde::Deserialize)] {LARGE}"),
            format!("#[cfg(test)] mod tests {{ {LARGE} }}"),
        ] {
            assert!(fields_of(&source).is_empty(), "{source}");
        }
    }

    #[test]
    fn a_method_in_another_file_is_behavior() {
        let sources = [
            ("crates/a/src/b.rs", "struct A { b: u8, c: u8 }"),
            ("crates/a/src/b/c.rs", "impl A { fn d(self) {} }"),
            ("crates/a/src/e.rs", "struct A { b: u8, c: u8 }"),
        ];
        let found = run_on(struct_fields, &sources, |config| config.limits.struct_fields = 1);
        assert_eq!(found, ["a::b::A crates/a/src/b.rs:1 2"]);
    }

    #[test]
    fn a_type_in_many_files_is_found() {
        let sources = [
            ("crates/a/src/lib.rs", "struct A;\nimpl A {}\nimpl A {}\n"),
            ("crates/a/src/b.rs", "impl A {}"),
            ("crates/a/src/c.rs", "#[cfg(test)] impl A {}"),
            ("crates/a/src/pipeline/d.rs", "impl A {}"),
            ("crates/a/src/e.rs", "impl Clone for A {}"),
        ];
        let found = run_on(impl_files, &sources, |config| config.limits.impl_files = 1);
        assert_eq!(found, ["a::A crates/a/src/lib.rs:1 2"]);
    }
}
