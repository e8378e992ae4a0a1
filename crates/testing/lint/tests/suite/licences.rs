//! Every package that is built has a licence that `deny.toml` allows, and comes from a registry or this repository:
//! of what `cargo deny check` says, the part that needs neither that program nor a network. Advisories need both.

use std::collections::BTreeSet;
use std::process::Command;

use serde::Deserialize;
use sluice_lint::workspace::root;

#[derive(Deserialize)]
struct Deny {
    graph: Graph,
    licenses: Licenses,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

fn deny() -> Deny {
    let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
    toml::from_str(&text).unwrap_or_else(|e| panic!("deny.toml: {e}"))
}

/// Packages that are built for a target, of the lock file, without a network.
fn packages(manifest: &str, target: &str) -> Vec<Package> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--offline", "--locked", "--format-version=1", "--filter-platform"]);
    let output = cargo.arg(target).arg("--manifest-path").arg(root().join(manifest)).output();
    let output = output.expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Metadata = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata.packages
}

/// Whether an SPDX expression can be met by allowed licences.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    // Some packages still have the `/` of before SPDX for `OR`.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (is_met, rest) = any_of(&words, allowed);
    is_met && rest.is_empty()
}

fn any_of<'w>(words: &'w [&'w str], allowed: &BTreeSet<String>) -> (bool, &'w [&'w str]) {
    let (mut is_met, mut rest) = all_of(words, allowed);
    while let ["OR", tail @ ..] = rest {
        let (also, after) = all_of(tail, allowed);
        (is_met, rest) = (is_met | also, after);
    }
    (is_met, rest)
}

fn all_of<'w>(words: &'w [&'w str], allowed: &BTreeSet<String>) -> (bool, &'w [&'w str]) {
    let (mut is_met, mut rest) = one_of(words, allowed);
    while let ["AND", tail @ ..] = rest {
        let (also, after) = one_of(tail, allowed);
        (is_met, rest) = (is_met & also, after);
    }
    (is_met, rest)
}

fn one_of<'w>(words: &'w [&'w str], allowed: &BTreeSet<String>) -> (bool, &'w [&'w str]) {
    match words {
        ["(", tail @ ..] => match any_of(tail, allowed) {
            (is_met, [")", rest @ ..]) => (is_met, rest),
            (_, rest) => (false, rest),
        },
        [license, "WITH", exception, rest @ ..] => {
            (allowed.contains(&format!("{license} WITH {exception}")), rest)
        }
        [license, rest @ ..] => (allowed.contains(*license), rest),
        [] => (false, words),
    }
}

#[test]
fn every_package_has_an_allowed_licence() {
    let deny = deny();
    let mut wrong = BTreeSet::new();
    for Package { name, version, license, .. } in packages("Cargo.toml", &deny.graph.targets[0]) {
        let license = license.unwrap_or_else(|| "no licence".into());
        if !is_allowed(&license, &deny.licenses.allow) {
            wrong.insert(format!("{name} {version}: {license}"));
        }
    }
    assert!(wrong.is_empty(), "deny.toml does not allow: {wrong:#?}");
}

#[test]
fn every_package_is_of_this_repository_or_of_the_registry() {
    let registry = "registry+https://github.com/rust-lang/crates.io-index";
    for Package { name, source, .. } in packages("Cargo.toml", &deny().graph.targets[0]) {
        let is_known = source.as_deref().is_none_or(|source| source == registry);
        assert!(is_known, "{name} is from {source:?}");
    }
}

#[test]
fn expressions_are_met_as_spdx_says() {
    let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
    for (expression, is_met) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("MIT/GPL-3.0", true),
        ("(MIT OR GPL-3.0) AND Apache-2.0", true),
        ("(MIT OR GPL-3.0) AND GPL-3.0", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
        ("Apache-2.0 WITH Classpath-exception", false),
        ("(MIT", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), is_met, "{expression}");
    }
}
