//! Sets `SLUICE_STATE_BUILD`: a digest of the sources that decide the state of a preconditioned
//! drive. A package without these sources is identified by its version alone.

use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Folders of crates, and crates, relative to this one.
const SOURCES: [&str; 6] =
    ["../../base", "../../wire", "../../device", "../../host", "../../apps/workload", "."];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = Vec::new();
    let found = SOURCES.iter().try_for_each(|folder| collect(Path::new(folder), &mut files));
    let build = found.and_then(|()| digest(files)).map_or(String::new(), |d| format!("{d:016x}"));
    println!("cargo::rustc-env=SLUICE_STATE_BUILD={build}");
}

/// Adds the sources in the `src` folders at or below a folder.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let sources = folder.join("src");
    if sources.is_dir() {
        println!("cargo::rerun-if-changed={}", sources.display());
        return collect_all(&sources, files);
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        }
    }
    Ok(())
}

fn collect_all(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect_all(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

fn digest(mut files: Vec<PathBuf>) -> io::Result<u64> {
    files.sort();
    let mut hasher = DefaultHasher::new();
    for path in files {
        let bytes = fs::read(&path)?;
        hasher.write(path.to_string_lossy().as_bytes());
        hasher.write_usize(bytes.len());
        hasher.write(&bytes);
    }
    Ok(hasher.finish())
}
