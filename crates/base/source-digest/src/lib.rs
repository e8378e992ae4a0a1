//! [`source_digest`]: identifies the sources that decide a result, in the build script of the crate
//! that stores it.

#![forbid(unsafe_code)]

use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Returns the digest of all files in the `src` folders at or below these folders, 16 hexadecimal
/// digits, and has cargo run the build script again when they change.
///
/// A published package lacks the folders of other packages: the digest is empty, and the package's
/// version identifies its sources.
pub fn source_digest(folders: &[&str]) -> String {
    let mut files = Vec::new();
    let found = folders.iter().try_for_each(|folder| collect(Path::new(folder), &mut files));
    found.and_then(|()| digest(files)).map_or(String::new(), |digest| format!("{digest:016x}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_of_a_source_changes_the_digest() {
        let folder = tempfile::tempdir().unwrap();
        let sources = folder.path().join("part/src/deep");
        fs::create_dir_all(&sources).unwrap();
        fs::write(sources.join("a.rs"), "1").unwrap();
        let of_all = || source_digest(&[folder.path().to_str().unwrap()]);
        let first = of_all();
        assert_eq!((first.len(), of_all()), (16, first.clone()));
        fs::write(folder.path().join("part/README"), "x").unwrap();
        assert_eq!(of_all(), first, "it is no source");
        fs::write(sources.join("a.rs"), "2").unwrap();
        let second = of_all();
        assert_ne!(second, first);
        fs::rename(sources.join("a.rs"), sources.join("b.rs")).unwrap();
        assert_ne!(of_all(), second);
    }

    #[test]
    fn without_the_sources_the_digest_is_empty() {
        assert_eq!(source_digest(&["/nonexistent"]), "");
    }
}
