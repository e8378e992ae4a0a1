//! [`Output`]: a file for results. It is opened before the run, so that a long run does not fail at
//! its end with "no such file or directory". Its contents are preserved until the results replace
//! them. `-` is standard output.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use sim::TraceOutput;

use super::CliError;

/// Name that stands for standard output.
const STANDARD_OUTPUT: &str = "-";

/// A file or standard output, opened for writing.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    file: File,
    is_standard: bool,
    /// Whether the file did not exist before; it is removed again if nothing is written.
    is_new: bool,
}

/// Returns whether a path stands for standard output.
pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == STANDARD_OUTPUT
}

impl Output {
    /// Opens `path` without changing it.
    ///
    /// # Errors
    /// The error of the operating system, with the path.
    pub(crate) fn open(path: &Path) -> Result<Output, CliError> {
        let failed = |e| cannot_write(path, &e);
        if is_standard(path) {
            let handle = io::stdout().as_fd().try_clone_to_owned().map_err(failed)?;
            let (path, file) = (path.to_path_buf(), File::from(handle));
            return Ok(Output { path, file, is_standard: true, is_new: false });
        }
        let is_new = !path.exists();
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(path).map_err(failed)?;
        Ok(Output { path: path.to_path_buf(), file, is_standard: false, is_new })
    }

    /// Replaces the contents by `text`.
    ///
    /// # Errors
    /// The error of the operating system; the message says if the disk is full. A closed pipe on
    /// standard output is not an error.
    pub(crate) fn write(&mut self, text: &str) -> Result<(), CliError> {
        self.is_new = false;
        let written = (|| {
            if self.is_replaced()? {
                self.file.set_len(0)?;
                self.file.rewind()?;
            }
            self.file.write_all(text.as_bytes())
        })();
        match written {
            Err(e) if self.is_standard && e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(|e| cannot_write(&self.path, &e)),
        }
    }

    /// Returns the output of a trace; it is truncated when the jobs start.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) fn trace(&self) -> Result<TraceOutput, CliError> {
        let failed = |e| cannot_write(&self.path, &e);
        let file = self.file.try_clone().map_err(failed)?;
        let truncate = self.is_replaced().map_err(failed)?;
        Ok(TraceOutput { name: self.path.clone(), file, truncate })
    }

    /// Returns whether the output has contents to replace. Pipes and terminals have none.
    /// Redirected standard output is not replaced because it may follow the output of another
    /// program.
    fn is_replaced(&self) -> io::Result<bool> {
        Ok(!self.is_standard && self.file.metadata()?.is_file())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let is_empty = || self.file.metadata().is_ok_and(|m| m.is_file() && m.len() == 0);
        if self.is_new && is_empty() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> CliError {
    let name = if is_standard(path) { "standard output".into() } else { path.to_string_lossy() };
    CliError::Other(match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("cannot write {name}: its disk is full ({error}): free some space there")
        }
        _ => format!("cannot write {name}: {error}"),
    })
}
