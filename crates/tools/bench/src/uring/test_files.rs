//! Objects to read: [`ScratchFile`], and [`LoopDevice`] over it. Both are removed when dropped.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rng::Rng;
use rustix::fs::OFlags;

/// A file of incompressible data, on a file system with direct I/O.
#[derive(Debug)]
pub(crate) struct ScratchFile {
    path: PathBuf,
}

impl ScratchFile {
    /// Creates a file in the temporary directory, or in the current one if the former has no direct
    /// I/O.
    ///
    /// # Errors
    /// If neither has direct I/O or enough space.
    pub(crate) fn new(bytes: u64) -> io::Result<ScratchFile> {
        let name = format!("sluice-bench-uring-{}-{bytes}", std::process::id());
        let mut refused = None;
        for directory in [std::env::temp_dir(), PathBuf::from(".")] {
            let file = ScratchFile { path: directory.join(&name) };
            match file.fill(bytes) {
                Ok(()) => return Ok(file),
                Err(error) => refused = Some(error),
            }
        }
        let why = refused.map_or_else(String::new, |error| error.to_string());
        Err(io::Error::other(format!(
            "no file for direct I/O in the temporary or the current directory: {why}"
        )))
    }

    fn fill(&self, bytes: u64) -> io::Result<()> {
        let mut file = File::create(&self.path)?;
        let mut rng = Rng::new(bytes);
        let mut chunk = vec![0; 1 << 20];
        let mut left = bytes;
        while left > 0 {
            for word in chunk.chunks_exact_mut(8) {
                word.copy_from_slice(&rng.next_u64().to_le_bytes());
            }
            let count = left.min(chunk.len() as u64);
            file.write_all(&chunk[..count as usize])?;
            left -= count;
        }
        file.sync_all()?;
        let direct = OFlags::DIRECT.bits() as i32;
        OpenOptions::new().read(true).custom_flags(direct).open(&self.path).map(drop)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A loop device with direct I/O.
#[derive(Debug)]
pub(super) struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Creates a device over a file; only the superuser may create one.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) fn new(file: &Path) -> io::Result<LoopDevice> {
        if !rustix::process::geteuid().is_root() {
            return Err(io::Error::other("only the superuser may make one"));
        }
        let out = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on"])
            .arg(file)
            .output()?;
        if !out.status.success() {
            let why = String::from_utf8_lossy(&out.stderr);
            return Err(io::Error::other(why.trim().to_owned()));
        }
        let path = String::from_utf8_lossy(&out.stdout);
        Ok(LoopDevice { path: path.trim().into() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}
