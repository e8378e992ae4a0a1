//! [`SourceLines`]: the source files of addresses of this process.

use std::path::PathBuf;
use std::{fs, io};

use addr2line::Loader;

/// The line tables of this process's executable.
pub struct SourceLines {
    loader: Loader,
    /// Path of the executable.
    path: PathBuf,
    /// The addresses at which it is mapped, and what is added to those of its line tables.
    mapped: Vec<(u64, u64)>,
    base: u64,
}

/// Reasons why there are no source lines.
#[derive(Debug, thiserror::Error)]
pub enum SourceLinesError {
    /// The executable cannot be read.
    #[error("reading the executable: {0}")]
    System(#[from] io::Error),
    /// Its line tables cannot be read.
    #[error("reading the line tables of {}: {why}", .path.display())]
    Tables {
        /// The executable.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// It was built without line tables, or they were removed.
    #[error("{} has no line tables: build it with debug = \"line-tables-only\"", .path.display())]
    NoTables {
        /// The executable.
        path: PathBuf,
    },
}

impl std::fmt::Debug for SourceLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceLines").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SourceLines {
    /// Opens the line tables of the executable.
    ///
    /// # Errors
    /// [`SourceLinesError`].
    pub fn open() -> Result<SourceLines, SourceLinesError> {
        let path = std::env::current_exe()?;
        let tables = |e: Box<dyn std::error::Error>| SourceLinesError::Tables {
            path: path.clone(),
            why: e.to_string(),
        };
        let loader = Loader::new("/proc/self/exe").map_err(tables)?;
        let maps = fs::read_to_string("/proc/self/maps")?;
        let mapped = mappings(&maps, &path.to_string_lossy());
        let base = mapped.iter().map(|(begin, _)| *begin).min().unwrap_or(0);
        let lines = SourceLines { loader, path, mapped, base };
        // This function itself must have a line.
        let own = SourceLines::open as *const () as u64;
        match lines.files_at(own).is_empty() {
            true => Err(SourceLinesError::NoTables { path: lines.path }),
            false => Ok(lines),
        }
    }

    /// Returns the source files of the functions at an address: the innermost inlined function
    /// first, and last the function that is called. Returns none for an address outside of the
    /// executable, or without a line.
    pub fn files_at(&self, address: u64) -> Vec<String> {
        if !self.mapped.iter().any(|(begin, end)| (*begin..*end).contains(&address)) {
            return Vec::new();
        }
        let Ok(mut frames) = self.loader.find_frames(address - self.base) else {
            return Vec::new();
        };
        let mut files = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            files.extend(frame.location.and_then(|at| at.file).map(str::to_owned));
        }
        files
    }
}

/// Returns the ranges of addresses at which a file is mapped, from the text of `/proc/self/maps`.
fn mappings(maps: &str, path: &str) -> Vec<(u64, u64)> {
    let range = |line: &str| {
        let (begin, end) = line.strip_suffix(path)?.split_whitespace().next()?.split_once('-')?;
        Some((u64::from_str_radix(begin, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    };
    maps.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_file_of_its_function() {
        let lines = SourceLines::open().unwrap();
        let files = lines.files_at(mappings as *const () as u64);
        assert!(files.last().is_some_and(|file| file.ends_with("source_lines.rs")), "{files:?}");
        assert!(lines.files_at(0).is_empty());
        assert!(lines.files_at(std::ptr::from_ref(&lines) as u64).is_empty());
    }

    #[test]
    fn mappings_are_those_of_the_file() {
        let maps = "1000-3000 r--p 00000000 fd:00 1   /bin/a\n3000-4000 r-xp 00002000 fd:00 1   /bin/a\n\
            5000-6000 rw-p 00000000 00:00 0 \n7000-8000 r-xp 00000000 fd:00 2   /bin/libb.so\n";
        assert_eq!(mappings(maps, "/bin/a"), [(0x1000, 0x3000), (0x3000, 0x4000)]);
        assert_eq!(mappings(maps, "/bin/other"), []);
    }
}
