//! The checks on the repository itself, one test per check.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sluice_lint::checks::CHECKS;
use sluice_lint::config::LintConfig;
use sluice_lint::ratchet::{self, Update};
use sluice_lint::workspace::{Workspace, root};

fn repository() -> &'static (Workspace, LintConfig) {
    static REPOSITORY: OnceLock<(Workspace, LintConfig)> = OnceLock::new();
    REPOSITORY.get_or_init(|| {
        let workspace = Workspace::load(&root()).unwrap_or_else(|error| panic!("{error}"));
        (workspace, LintConfig::load().unwrap_or_else(|error| panic!("{error}")))
    })
}

fn ratchets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ratchets.toml")
}

fn enforce(name: &str) {
    let (workspace, config) = repository();
    let check = CHECKS.iter().find(|check| check.name == name).expect("the check exists");
    if let Err(message) =
        ratchet::enforce(check, workspace, config, &ratchets(), Update::from_env())
    {
        panic!("\n{message}");
    }
}

macro_rules! tests {
    ($($name:ident)*) => {
        const TESTED: &[&str] = &[$(stringify!($name)),*];
        $(#[test] fn $name() { enforce(stringify!($name)); })*
    };
}

tests! {
    struct_fields
    impl_files
    folder_files
    file_lines
    tuple_parameters
    integer_parameters
    part_fields
    part_invariants
    duplicate_types
    banned_identifiers
    banned_prose
    citations
    guarantees
    links
    paths
    reachable
    examples
    integer_casts
    cli_dependencies
    skipped_tests
}

#[test]
fn every_check_has_a_test() {
    let names: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
    assert_eq!(TESTED, names);
}

#[test]
fn every_ratchet_has_a_check() {
    let ratchets = ratchet::load(&ratchets()).unwrap_or_else(|error| panic!("{error}"));
    for name in ratchets.keys() {
        assert!(TESTED.contains(&name.as_str()), "ratchets.toml has [{name}], which is no check");
    }
}
