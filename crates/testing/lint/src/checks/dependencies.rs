//! Crates that reach the command line's dependencies, which a library should not bring to its users.
//!
//! The graph is read from the manifests of the workspace: normal dependencies with default features, as
//! `cargo tree --edges normal` shows them. Dependencies of packages from the registry are not followed.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::Violation;
use crate::config::LintConfig;
use crate::workspace::Workspace;

/// A `Cargo.toml`, as far as it is needed.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "kebab-case")]
struct Manifest {
    package: Option<PackageTable>,
    workspace: Option<WorkspaceTable>,
    features: BTreeMap<String, Vec<String>>,
    dependencies: BTreeMap<String, Dependency>,
    target: BTreeMap<String, TargetTable>,
}

#[derive(Deserialize)]
struct PackageTable {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WorkspaceTable {
    dependencies: BTreeMap<String, Dependency>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TargetTable {
    dependencies: BTreeMap<String, Dependency>,
}

#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum Dependency {
    Version(#[allow(dead_code)] String),
    Table(DependencyTable),
}

#[derive(Deserialize, Clone, Default)]
#[serde(default, rename_all = "kebab-case")]
struct DependencyTable {
    workspace: bool,
    package: Option<String>,
    optional: bool,
    default_features: Option<bool>,
    features: Vec<String>,
}

/// A dependency with the settings of the workspace filled in.
struct Edge {
    alias: String,
    package: String,
    optional: bool,
    features: Vec<String>,
}

/// A package of the workspace.
struct Package {
    /// Path of the manifest.
    path: String,
    features: BTreeMap<String, Vec<String>>,
    edges: Vec<Edge>,
}

/// Crates whose normal dependencies reach a package of `cli_dependencies.packages`.
pub fn cli_dependencies(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let settings = &config.cli_dependencies;
    let mut found = Vec::new();
    let packages = match read(workspace) {
        Ok(packages) => packages,
        Err((path, message)) => {
            return vec![Violation { key: path.clone(), path, line: 1, weight: 1, message }];
        }
    };
    for (name, package) in &packages {
        let folder = package.path.rsplit('/').nth(1).unwrap_or("");
        if settings.allow.iter().any(|allowed| allowed == folder) {
            continue;
        }
        let reached = reach(name, &packages);
        let banned: Vec<_> = settings
            .packages
            .iter()
            .filter_map(|b| Some(chain(b, reached.get(b)?, &reached)))
            .collect();
        if !banned.is_empty() {
            found.push(Violation {
                key: folder.to_owned(),
                path: package.path.clone(),
                line: 1,
                weight: 1,
                message: format!("libraries must not reach {}", banned.join(" or ")),
            });
        }
    }
    found
}

/// The packages by name, or the path and message of a manifest that is not valid.
fn read(workspace: &Workspace) -> Result<BTreeMap<String, Package>, (String, String)> {
    let parse = |path: &str, text: &str| {
        toml::from_str::<Manifest>(text).map_err(|error| (path.to_owned(), error.to_string()))
    };
    let root = match workspace.toml.get("Cargo.toml") {
        Some(text) => parse("Cargo.toml", text)?.workspace.unwrap_or_default(),
        None => WorkspaceTable::default(),
    };
    let mut packages = BTreeMap::new();
    for (path, text) in &workspace.toml {
        if !path.starts_with("crates/") || !path.ends_with("/Cargo.toml") {
            continue;
        }
        let manifest = parse(path, text)?;
        let Some(package) = manifest.package else { continue };
        let targets = manifest.target.into_values().flat_map(|target| target.dependencies);
        let edges = manifest.dependencies.into_iter().chain(targets);
        let edges = edges.map(|(alias, dependency)| edge(alias, dependency, &root)).collect();
        let entry = Package { path: path.clone(), features: manifest.features, edges };
        packages.insert(package.name, entry);
    }
    Ok(packages)
}

fn edge(alias: String, dependency: Dependency, root: &WorkspaceTable) -> Edge {
    let table = |dependency: &Dependency| match dependency {
        Dependency::Version(_) => DependencyTable::default(),
        Dependency::Table(table) => table.clone(),
    };
    let own = table(&dependency);
    let is_shared = own.workspace;
    let shared =
        root.dependencies.get(&alias).filter(|_| own.workspace).map(table).unwrap_or_default();
    let mut features = [shared.features, own.features].concat();
    let has_defaults = match own.default_features {
        // A crate can add the default features that the workspace leaves out, but not leave them out.
        own if is_shared => shared.default_features != Some(false) || own == Some(true),
        own => own != Some(false),
    };
    if has_defaults {
        features.push("default".to_owned());
    }
    let package = own.package.or(shared.package).unwrap_or_else(|| alias.clone());
    Edge { alias, package, optional: own.optional, features }
}

/// The packages that `start` reaches, each with the one that brought it.
fn reach(start: &str, packages: &BTreeMap<String, Package>) -> BTreeMap<String, String> {
    let mut brought = BTreeMap::from([(start.to_owned(), String::new())]);
    let mut features = BTreeSet::from([(start.to_owned(), "default".to_owned())]);
    loop {
        let size = (brought.len(), features.len());
        for name in brought.keys().cloned().collect::<Vec<_>>() {
            if let Some(package) = packages.get(&name) {
                expand(&name, package, &mut brought, &mut features);
            }
        }
        if size == (brought.len(), features.len()) {
            return brought;
        }
    }
}

/// Adds what a package's dependencies and enabled features bring.
fn expand(
    name: &str,
    package: &Package,
    brought: &mut BTreeMap<String, String>,
    features: &mut BTreeSet<(String, String)>,
) {
    let enabled = |features: &BTreeSet<(String, String)>| -> Vec<String> {
        features.iter().filter(|(owner, _)| owner == name).map(|(_, f)| f.clone()).collect()
    };
    let mut used: BTreeSet<&str> = package
        .edges
        .iter()
        .filter(|edge| !edge.optional)
        .map(|edge| edge.alias.as_str())
        .collect();
    let edge_of = |alias: &str| package.edges.iter().find(|edge| edge.alias == alias);
    for feature in enabled(features) {
        // A feature that is not listed is an optional dependency.
        let implicit = [format!("dep:{feature}")];
        let listed = package.features.get(&feature);
        for value in listed.map_or(&implicit[..], Vec::as_slice) {
            if let Some(alias) = value.strip_prefix("dep:") {
                used.extend(edge_of(alias).map(|edge| edge.alias.as_str()));
            } else if let Some((alias, feature)) = value.split_once('/') {
                let weak = alias.strip_suffix('?');
                let Some(edge) = edge_of(weak.unwrap_or(alias)) else { continue };
                if weak.is_none() {
                    used.insert(&edge.alias);
                }
                if weak.is_none() || brought.contains_key(&edge.package) {
                    features.insert((edge.package.clone(), feature.to_owned()));
                }
            } else {
                features.insert((name.to_owned(), value.clone()));
            }
        }
    }
    for edge in used.into_iter().filter_map(edge_of) {
        brought.entry(edge.package.clone()).or_insert_with(|| name.to_owned());
        let added = edge.features.iter().map(|feature| (edge.package.clone(), feature.clone()));
        features.extend(added);
    }
}

/// The way to a package, as `a → b → clap`.
fn chain(package: &str, by: &str, brought: &BTreeMap<String, String>) -> String {
    let mut names = vec![package];
    let mut next = by;
    while !next.is_empty() {
        names.push(next);
        next = brought.get(next).map_or("", String::as_str);
    }
    names.reverse();
    names.join(" → ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_on;

    const ROOT: &str =
        "[workspace.dependencies]\nopen = { path = \"x\", package = \"s-open\" }\nclap = \"4\"\n";

    fn run(manifests: &[(&str, &str)]) -> Vec<String> {
        let texts: Vec<_> = manifests
            .iter()
            .map(|(name, text)| {
                (
                    format!("crates/{name}/Cargo.toml"),
                    format!("[package]\nname = \"s-{name}\"\n{text}"),
                )
            })
            .collect();
        let sources: Vec<_> = [("Cargo.toml", ROOT)]
            .into_iter()
            .chain(texts.iter().map(|(path, text)| (path.as_str(), text.as_str())))
            .collect();
        let found = run_on(cli_dependencies, &sources, |_| {});
        found.into_iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn transitive_dependencies_are_found() {
        let found = run(&[
            ("capi", "[dependencies]\nopen.workspace = true\n"),
            ("open", "[target.'cfg(unix)'.dependencies]\nclap.workspace = true\n"),
            ("rng", "[dev-dependencies]\nclap.workspace = true\n[dependencies]\nserde = \"1\"\n"),
            ("cli", "[dependencies]\nclap.workspace = true\n"),
        ]);
        assert_eq!(found, ["capi", "open"]);
    }

    #[test]
    fn optional_dependencies_count_when_a_feature_enables_them() {
        let open = "[features]\ndefault = [\"scenario\"]\nscenario = [\"dep:clap\"]\n
            [dependencies]\nclap = { workspace = true, optional = true }\n";
        let plain = "[dependencies]\nopen = { package = \"s-open\", default-features = false }\n";
        let enabled = "[dependencies]\nopen = { package = \"s-open\", default-features = false, features = [\"scenario\"] }\n";
        assert_eq!(run(&[("a", plain), ("open", open)]), ["open"]);
        assert_eq!(run(&[("a", enabled), ("open", open)]), ["a", "open"]);
        assert_eq!(run(&[("a", enabled), ("b", plain), ("open", open)]), ["a", "open"]);
    }
}
