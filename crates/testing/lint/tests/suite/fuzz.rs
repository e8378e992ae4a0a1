//! Every fuzz target is built and run by `scripts/fuzz`, and `cargo test` runs its body by seeds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sluice_lint::workspace::root;

#[derive(Deserialize)]
struct Manifest {
    bin: Vec<Binary>,
}

#[derive(Deserialize)]
struct Binary {
    name: String,
    path: String,
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn stem(path: &Path) -> String {
    path.file_stem().expect("a name").to_string_lossy().into_owned()
}

/// The files that a target has as modules.
fn modules(target: &Path) -> Vec<PathBuf> {
    let text = read(target);
    let paths =
        text.lines().filter_map(|line| line.strip_prefix("#[path = \"")?.strip_suffix("\"]"));
    paths.map(|path| target.parent().expect("a folder").join(path)).collect()
}

/// Whether a test of the module's crate has it as a module, too.
fn is_tested(module: &Path) -> bool {
    let folder = module.parent().expect("a folder");
    let (name, around) = match stem(module).as_str() {
        "mod" => (stem(folder), folder.parent().expect("a folder")),
        name => (name.to_owned(), folder),
    };
    let sources =
        files(around).into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let declares =
        |path: &PathBuf| read(path).lines().any(|line| line.ends_with(&format!("mod {name};")));
    module.components().any(|part| part.as_os_str() == "tests")
        && sources.into_iter().any(|p| declares(&p))
}

#[test]
fn every_target_is_built_and_run_and_tested() {
    let fuzz = root().join("fuzz");
    let manifest: Manifest = toml::from_str(&read(&fuzz.join("Cargo.toml"))).expect("TOML");
    let built: BTreeSet<_> = manifest.bin.iter().map(|bin| bin.name.clone()).collect();
    assert!(manifest.bin.iter().all(|bin| bin.path == format!("targets/{}.rs", bin.name)));
    let targets = files(&fuzz.join("targets"));
    let there: BTreeSet<_> = targets.iter().map(|path| stem(path)).collect();
    assert_eq!(built, there, "fuzz/Cargo.toml, fuzz/targets");
    let script = read(&root().join("scripts/fuzz"));
    let list = script.split_once("targets=(drive_ring").expect("the list").1;
    let list = list.split_once(')').expect("its end").0.split_whitespace().map(str::to_owned);
    let run: BTreeSet<_> = list.chain(["drive_ring".to_owned()]).collect();
    assert_eq!(run, built, "scripts/fuzz, fuzz/Cargo.toml");
    for target in targets {
        let modules = modules(&target);
        assert!(!modules.is_empty(), "{}: no body", target.display());
        for module in modules {
            assert!(is_tested(&module), "{}: no test has {}", target.display(), module.display());
        }
    }
}
