//! Golden results: scenarios with every target, layer and personality must keep their results in
//! virtual time when the code is refactored. `golden/hashes.txt` has hashes of the JSON, the
//! Perfetto trace and the blktrace files of each `golden/*.toml`, as far as it can be traced.
//!
//! `SLUICE_GOLDEN_UPDATE=1 cargo test -p sluice-cli --test suite golden` records new hashes, for an
//! intended change of results; its commit message says why the new results are right.

// guarantee: B-67

use crate::sim_folder;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sim_folder::Folder;

/// Returns a 64-bit FNV-1a hash, and the number of bytes.
fn hash(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}/{}", bytes.len())
}

/// Returns the names and contents of a folder's files, concatenated.
fn folder_bytes(folder: &Path) -> Vec<u8> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut bytes = Vec::new();
    for path in paths {
        bytes.extend(path.file_name().unwrap().as_encoded_bytes());
        bytes.extend(std::fs::read(&path).unwrap());
    }
    bytes
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Returns the hashes of one scenario's results.
fn results(scenario: &Path) -> String {
    let folder = Folder::new(&[]);
    // The hashes are of schema 2: their equality also shows that schema 3 only renames keys.
    let mut args = vec![scenario.to_str().unwrap(), "--json", "out.json", "--json-schema", "2"];
    let text = std::fs::read_to_string(scenario).unwrap();
    // A path over a set has no Perfetto trace, and only a block layer has a blktrace.
    let is_traced = !text.contains("\n[[set]]");
    let is_layered = ["\nblock = \"", "\nqueue_model = \""].iter().any(|key| text.contains(key));
    if is_traced {
        args.extend(["--trace", "out.trace"]);
    }
    if is_layered {
        args.extend(["--blktrace", "blktrace"]);
    }
    folder.run_to_end(&args, 0);
    let mut results = format!("json {}", hash(folder.read("out.json").as_bytes()));
    if is_traced {
        write!(results, " perfetto {}", hash(folder.read("out.trace").as_bytes())).unwrap();
    }
    if is_layered {
        write!(results, " blktrace {}", hash(&folder_bytes(&folder.path("blktrace")))).unwrap();
    }
    results
}

#[test]
fn results_are_as_recorded() {
    let mut scenarios: Vec<PathBuf> = std::fs::read_dir(golden())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    scenarios.sort();
    assert!(scenarios.len() >= 29, "{} scenarios", scenarios.len());
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(path) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
                    let results = results(path);
                    found.lock().unwrap().insert(name, results);
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    let file = golden().join("hashes.txt");
    if std::env::var_os("SLUICE_GOLDEN_UPDATE").is_some() {
        let mut text = String::new();
        for (name, results) in &found {
            writeln!(text, "{name} {results}").unwrap();
        }
        return std::fs::write(file, text).unwrap();
    }
    let recorded = std::fs::read_to_string(file).unwrap();
    let recorded: BTreeMap<&str, &str> =
        recorded.lines().map(|line| line.split_once(' ').expect("a name and hashes")).collect();
    let mut changed = String::new();
    for (name, results) in &found {
        if recorded.get(name.as_str()) != Some(&results.as_str()) {
            let before = recorded.get(name.as_str()).unwrap_or(&"nothing");
            writeln!(changed, "{name}\n  recorded {before}\n  found    {results}").unwrap();
        }
    }
    for name in recorded.keys().filter(|name| !found.contains_key(**name)) {
        writeln!(changed, "{name}: recorded, but there is no such scenario").unwrap();
    }
    assert!(changed.is_empty(), "results in virtual time have changed:\n{changed}");
}
