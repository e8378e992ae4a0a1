//! [`StateCache`]: a folder of states of preconditioned drives.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use controller::Controller;
use scenario::StateFolder;
use time::Nanos;

use super::saved_stack::SavedStack;
use super::state_file::{self, StateError};
use super::state_key::StateKey;
use crate::CoreQueues;

/// How a drive came to its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateUse {
    /// It started from this file.
    Loaded(PathBuf),
    /// It was preconditioned, and its state was kept in this file, of this size in bytes.
    Kept(PathBuf, u64),
    /// It was preconditioned, and its state was not kept, for this reason.
    NotKept(String),
}

/// Where the states of preconditioned drives are kept, one file per state, named by its
/// [key](StateKey). Several processes may share the folder.
///
/// The size of the folder is limited: the states that were not used for the longest time are
/// removed for a new one. A state that was removed while a run starts from it stays readable for
/// that run.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateCache<'a>(pub(super) &'a StateFolder);

/// Extension of states.
const EXTENSION: &str = "state";
/// Extension of files that are being written.
const PART_EXTENSION: &str = "part";

impl StateCache<'_> {
    /// Gives the state with this key to a drive and its host. Returns the path of its file and the
    /// time that the state had reached, or `None` if there is none.
    ///
    /// # Errors
    /// [`StateError`]; the drive and the host are not changed, and neither is the file.
    pub(super) fn load(
        self,
        key: &StateKey,
        drive: &mut Controller,
        device: &mut CoreQueues,
    ) -> Result<Option<(PathBuf, Nanos)>, StateError> {
        let path = self.0.path.join(key.file_name());
        // A folder that cannot be read has no states; keeping one will say why.
        let Ok(file) = File::open(&path) else { return Ok(None) };
        let restored = state_file::read(&file, &path, key, |state| state.restore(drive, device))?;
        let Some(now) = restored else {
            let why = "it does not fit the drive".to_owned();
            return Err(StateError::Damaged { path, why });
        };
        // The time of the last use. In a folder that cannot be written nothing is removed either.
        let _ = file.set_modified(SystemTime::now());
        Ok(Some((path, now)))
    }

    /// Keeps a state, unless there is a file of this key.
    ///
    /// # Errors
    /// [`StateError`]; then no file is left behind.
    pub(super) fn keep(
        self,
        key: &StateKey,
        state: &SavedStack<'_>,
    ) -> Result<StateUse, StateError> {
        let path = self.0.path.join(key.file_name());
        // Another process may have been faster.
        if path.exists() {
            return Ok(StateUse::Loaded(path));
        }
        fs::create_dir_all(&self.0.path).map_err(StateError::io("creating", &self.0.path))?;
        self.remove_abandoned();
        let part = PartFile::create(&self.0.path, key)?;
        let bytes = state_file::write(&part.file, &part.path, key, state, self.0.bytes_max)?;
        self.evict_for(bytes)?;
        fs::rename(&part.path, &path).map_err(StateError::io("renaming", &part.path))?;
        Ok(StateUse::Kept(path, bytes))
    }

    /// Returns the files with an extension; none if the folder cannot be read.
    fn files(self, extension: &'static str) -> impl Iterator<Item = PathBuf> + use<> {
        let entries = fs::read_dir(&self.0.path).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(move |path| path.extension().is_some_and(|found| found == extension))
    }

    /// Removes the least recently used states until another one of `bytes` bytes fits.
    fn evict_for(self, bytes: u64) -> Result<(), StateError> {
        let mut states: Vec<(SystemTime, PathBuf, u64)> = self
            .files(EXTENSION)
            .filter_map(|path| {
                let found = path.metadata().ok()?;
                Some((found.modified().ok()?, path, found.len()))
            })
            .collect();
        states.sort();
        let mut total = states.iter().map(|(_, _, bytes)| bytes).sum::<u64>() + bytes;
        for (_, path, bytes) in states {
            if total <= self.0.bytes_max {
                break;
            }
            match fs::remove_file(&path) {
                // Another process may have removed it.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(StateError::io("removing", &path)(error));
                }
                _ => total -= bytes,
            }
        }
        Ok(())
    }

    /// Removes files that processes began to write and did not live to complete.
    fn remove_abandoned(self) {
        for path in self.files(PART_EXTENSION) {
            let Ok(file) = OpenOptions::new().write(true).open(&path) else { continue };
            // An empty one may be about to be locked.
            let is_empty = file.metadata().is_ok_and(|found| found.len() == 0);
            if !is_empty && !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// A file that is being written, and removed if it was not renamed. It is locked, so that other
/// processes do not take it for an abandoned one.
#[derive(Debug)]
struct PartFile {
    file: File,
    path: PathBuf,
}

impl PartFile {
    fn create(folder: &Path, key: &StateKey) -> Result<PartFile, StateError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let name = format!("{:032x}.{process}.{count}.{PART_EXTENSION}", key.digest());
        let path = folder.join(name);
        let file = File::create_new(&path).map_err(StateError::io("creating", &path))?;
        let part = PartFile { file, path };
        part.file.lock().map_err(StateError::io("locking", &part.path))?;
        Ok(part)
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        // It is gone if it was renamed.
        let _ = fs::remove_file(&self.path);
    }
}
