//! Compares the checked-in files with generated ones: `include/sluice.h` with the sources,
//! `docs/capi` with the headers.
//!
//! `UPDATE=1 cargo test --package sluice-capi` regenerates both.

use crate::pages;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn update() -> bool {
    std::env::var("UPDATE").is_ok_and(|value| value == "1")
}

/// Compares a file with its expected contents, or overwrites it with them.
fn same(path: &Path, wanted: &str) {
    if update() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    if found != wanted {
        let at = found.lines().zip(wanted.lines()).take_while(|(a, b)| a == b).count();
        panic!(
            "{} is not what is made of the sources, from line {} on: run UPDATE=1 cargo test \
             --package sluice-capi\n  there: {:?}\n  made:  {:?}",
            path.display(),
            at + 1,
            found.lines().nth(at),
            wanted.lines().nth(at)
        );
    }
}

fn header() -> String {
    let config = cbindgen::Config::from_file(here().join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new()
        .with_config(config)
        .with_src(here().join("src/lib.rs"))
        .generate()
        .unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    String::from_utf8(text).unwrap()
}

/// Returns the exported calls, by searching the sources for exported symbols.
fn exported() -> Vec<String> {
    let (mut names, mut folders) = (Vec::new(), vec![here().join("src")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(path).unwrap();
            for (at, _) in text.match_indices("#[unsafe(no_mangle)]") {
                let rest = &text[at..];
                let name = rest.split("extern \"C\" fn ").nth(1).unwrap();
                names.push(name.split('(').next().unwrap().to_owned());
            }
        }
    }
    names.sort();
    names
}

#[test]
fn the_header_and_its_pages_are_those_of_the_sources() {
    let header = header();
    same(&here().join("include/sluice.h"), &header);

    let calls = pages::calls(&header);
    let mut wanted = exported();
    wanted.push("sluice_open".into());
    wanted.sort();
    let mut found: Vec<_> = calls.iter().map(|call| call.name.clone()).collect();
    found.sort();
    assert_eq!(found, wanted, "every call is in the header, and documented");

    let compat = std::fs::read_to_string(here().join("include/nvmed_compat.h")).unwrap();
    let mut made: BTreeMap<String, String> = pages::of_header(&header);
    made.extend(pages::of_compat(&compat));
    let index = pages::index(&header, &compat);
    made.insert("README.md".into(), index);

    let folder = here().join("../../../docs/capi");
    if update() {
        let _ = std::fs::remove_dir_all(&folder);
    }
    for (name, text) in &made {
        same(&folder.join(name), text);
    }
    let mut there: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    there.sort();
    assert_eq!(there, made.into_keys().collect::<Vec<_>>(), "each page documents an existing call");
}

#[test]
fn every_call_says_what_it_returns_and_who_may_call_it() {
    for call in pages::calls(&header()) {
        let void = call.prototype.starts_with("void ");
        assert!(
            void || call.text.contains("# Returns"),
            "{} does not say what it returns",
            call.name
        );
        assert!(call.text.contains("# Threads"), "{} does not say who may call it", call.name);
        let arguments = call.prototype.split_once('(').unwrap().1;
        for argument in arguments.trim_end_matches([')', ';']).split(',') {
            let name = argument.trim().rsplit([' ', '*']).next().unwrap();
            if name != "void" {
                let said = call.text.contains(&format!("@param {name} "));
                assert!(said, "{} does not say what `{name}` is", call.name);
            }
        }
    }
}
