//! [`RunStore`]: finished runs in a folder, one file each, under the digest of their inputs.
//!
//! **Concurrency.** A file is written under another name and renamed, so that a reader finds a
//! complete run or none. Two programs may use one store; a run that both compute has equal bytes.
//!
//! **Format.** `docs/format/sweep-store.md`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use sim::to_text;
use twox_hash::XxHash3_128;

use crate::RunKey;

/// First line of the file that marks a folder as a store.
const FORMAT: &str = "sluice sweep store 1";
/// Name of that file.
const MARK: &str = "SLUICE_STORE";

/// Makes the names of files that are being written unique in this process.
static WRITES: AtomicU64 = AtomicU64::new(0);

/// Error of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder is a store of another version.
    #[error(
        "{}: the store has the format \"{found}\", and this program has \"{FORMAT}\": use another \
         folder, or remove this one",
        path.display()
    )]
    Version {
        /// Path of the folder.
        path: PathBuf,
        /// Its format.
        found: String,
    },
    /// The folder has other files than those of a store.
    #[error("{}: the folder has files and is no store: use another, or an empty one", path.display())]
    NoStore {
        /// Path of the folder.
        path: PathBuf,
    },
    /// The disk is full.
    #[error(
        "cannot write {}: its disk is full ({source}): free some space there, and run the command \
         again; the runs before are kept",
        path.display()
    )]
    Full {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A file or the folder cannot be accessed.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

impl StoreError {
    fn new(path: &Path, source: io::Error) -> StoreError {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                StoreError::Full { path, source }
            }
            _ => StoreError::Io { path, source },
        }
    }
}

/// A run in a store.
#[derive(Debug, PartialEq)]
pub enum Stored {
    /// The run, as `sluice sim --json` prints it.
    Run(Value),
    /// There is none.
    Missing,
    /// The file is damaged.
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Problem of the file.
        problem: &'static str,
    },
}

/// Finished runs in a folder.
#[derive(Clone, Debug)]
pub struct RunStore {
    folder: PathBuf,
}

impl RunStore {
    /// Opens the store in a folder; an empty folder and one that does not exist become a store.
    ///
    /// # Errors
    /// [`StoreError`] for a store of another version, a folder with other files, and errors of the
    /// operating system.
    pub fn open(folder: &Path) -> Result<RunStore, StoreError> {
        let failed = |source| StoreError::new(folder, source);
        fs::create_dir_all(folder).map_err(failed)?;
        let mark = folder.join(MARK);
        let store = RunStore { folder: folder.to_path_buf() };
        match fs::read_to_string(&mark) {
            Ok(text) if text.trim_end() == FORMAT => Ok(store),
            Ok(text) => {
                let found: String =
                    text.lines().next().unwrap_or_default().chars().take(80).collect();
                Err(StoreError::Version { path: folder.to_path_buf(), found })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Another program may be making this store.
                let is_foreign = |entry: io::Result<fs::DirEntry>| {
                    entry.map(|e| !e.file_name().to_string_lossy().starts_with(MARK))
                };
                for entry in fs::read_dir(folder).map_err(failed)? {
                    if is_foreign(entry).map_err(failed)? && !mark.exists() {
                        return Err(StoreError::NoStore { path: folder.to_path_buf() });
                    }
                }
                write_atomic(&mark, format!("{FORMAT}\n").as_bytes())?;
                Ok(store)
            }
            Err(error) => Err(StoreError::new(&mark, error)),
        }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a run's file.
    pub fn path(&self, key: &RunKey) -> PathBuf {
        self.folder.join(key.file_name())
    }

    /// Reads a run. A file that is not exactly a run of these inputs is damaged.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the file cannot be read.
    pub fn get(&self, key: &RunKey) -> Result<Stored, StoreError> {
        let path = self.path(key);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Stored::Missing),
            Err(error) => return Err(StoreError::new(&path, error)),
        };
        let damaged = |problem| Ok(Stored::Damaged { path: path.clone(), problem });
        let Ok(mut file) = serde_json::from_slice::<Value>(&bytes) else {
            return damaged("it is no complete JSON");
        };
        if file["inputs"].as_str() != Some(key.text()) {
            return damaged("it is a run of other inputs than its name says");
        }
        let run = file["run"].take();
        if file["run_digest"].as_str() != Some(&digest(&to_text(&run))) {
            return damaged("the run is not the one that was stored");
        }
        Ok(Stored::Run(run))
    }

    /// Writes a run.
    ///
    /// # Errors
    /// [`StoreError::Full`] if the disk is full, [`StoreError::Io`] for other errors. There is then no
    /// part of the file.
    pub fn put(&self, key: &RunKey, run: &Value) -> Result<(), StoreError> {
        let file = json!({
            "inputs": key.text(),
            "run": run,
            "run_digest": digest(&to_text(run)),
        });
        write_atomic(&self.path(key), to_text(&file).as_bytes())
    }
}

fn digest(text: &str) -> String {
    format!("{:032x}", XxHash3_128::oneshot(text.as_bytes()))
}

/// Writes a file under another name and renames it.
fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let number = WRITES.fetch_add(1, Ordering::Relaxed);
    let suffix = format!(".{}-{number}.part", std::process::id());
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    write_through(path, Path::new(&name), bytes)
}

/// Writes a file as `part` and renames it to `path`.
fn write_through(path: &Path, part: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let written = (|| {
        let mut file = File::create(part)?;
        file.write_all(bytes)?;
        drop(file);
        fs::rename(part, path)
    })();
    written.map_err(|error| {
        // The error of the write is the one to report.
        let _ = fs::remove_file(part);
        StoreError::new(path, error)
    })
}

#[cfg(test)]
mod tests {
    use scenario::Scenario;

    use super::*;

    fn key(seed: u64) -> RunKey {
        let text = format!(
            "seed = {seed}\n[drive]\npreset = \"femu-default\"\n[[job]]\nrw = \"read\"\nsize = \"1m\"\n"
        );
        let scenario = Scenario::parse(Path::new("a.toml"), &text).unwrap();
        RunKey::new(&scenario, &[]).unwrap()
    }

    fn sorted(mut names: [String; 2]) -> Vec<String> {
        names.sort();
        names.to_vec()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    // guarantee: B-58
    #[test]
    fn a_run_is_found_by_its_inputs_only() {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::open(folder.path()).unwrap();
        let run = json!({ "a": [0.1, 1.0 / 3.0, 5e-324, 123_456_789.123_456_78] });
        assert_eq!(store.get(&key(1)).unwrap(), Stored::Missing);
        store.put(&key(1), &run).unwrap();
        let Stored::Run(found) = store.get(&key(1)).unwrap() else { panic!("it is there") };
        assert_eq!(to_text(&found), to_text(&run));
        assert_eq!(store.get(&key(2)).unwrap(), Stored::Missing);
        assert_eq!(names(folder.path()), sorted([key(1).file_name(), MARK.into()]));
        // A file under the name of another run is not that run.
        fs::copy(store.path(&key(1)), store.path(&key(2))).unwrap();
        assert!(matches!(store.get(&key(2)).unwrap(), Stored::Damaged { .. }));
    }

    // guarantee: B-58
    #[test]
    fn a_damaged_file_is_never_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::open(folder.path()).unwrap();
        let run = json!({ "iops": 100, "bytes": 4096 });
        store.put(&key(1), &run).unwrap();
        let path = store.path(&key(1));
        let whole = fs::read(&path).unwrap();
        for cut in [0, 1, whole.len() / 2, whole.len() - 3] {
            fs::write(&path, &whole[..cut]).unwrap();
            let Stored::Damaged { path: named, .. } = store.get(&key(1)).unwrap() else {
                panic!("{cut} bytes are no run")
            };
            assert_eq!(named, path);
        }
        let text = String::from_utf8(whole).unwrap();
        for (old, new) in [("100", "101"), ("4096", "4096.5"), ("seed: 1", "seed: 3")] {
            assert!(text.contains(old), "{old}");
            fs::write(&path, text.replace(old, new)).unwrap();
            assert!(matches!(store.get(&key(1)).unwrap(), Stored::Damaged { .. }), "{old}");
        }
        store.put(&key(1), &run).unwrap();
        assert_eq!(store.get(&key(1)).unwrap(), Stored::Run(run));
    }

    #[test]
    fn a_store_of_another_version_and_a_folder_of_other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(MARK), "sluice sweep store 9\n").unwrap();
        let error = RunStore::open(folder.path()).unwrap_err();
        assert!(matches!(&error, StoreError::Version { found, .. } if found.ends_with('9')));
        assert!(error.to_string().starts_with(&folder.path().display().to_string()), "{error}");
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("thesis.tex"), "x").unwrap();
        assert!(matches!(RunStore::open(other.path()), Err(StoreError::NoStore { .. })));
        assert_eq!(names(other.path()), ["thesis.tex"]);
    }

    #[test]
    fn a_full_disk_is_named_and_leaves_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::open(folder.path()).unwrap();
        store.put(&key(1), &json!(1)).unwrap();
        let (path, part) = (store.path(&key(2)), folder.path().join("part"));
        std::os::unix::fs::symlink("/dev/full", &part).unwrap();
        let error = write_through(&path, &part, b"x").unwrap_err();
        assert!(
            matches!(&error, StoreError::Full { path: named, .. } if *named == path),
            "{error}"
        );
        assert_eq!(names(folder.path()), sorted([key(1).file_name(), MARK.into()]));
        assert_eq!(store.get(&key(1)).unwrap(), Stored::Run(json!(1)));
    }

    #[test]
    fn stores_on_several_threads_write_one_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let store = RunStore::open(&folder.path().join("new")).unwrap();
                    for seed in 0..20 {
                        store.put(&key(seed), &json!({ "seed": seed })).unwrap();
                        let found = store.get(&key(seed)).unwrap();
                        assert_eq!(found, Stored::Run(json!({ "seed": seed })));
                    }
                });
            }
        });
        assert_eq!(names(&folder.path().join("new")).len(), 21, "no part remains");
    }
}
