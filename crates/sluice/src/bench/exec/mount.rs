//! The kernel's way: [`Fuse`] shows what an NBD server has as a file, [`Mount`] is ext4 on a loop device over a file.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::child_process::{ChildProcess, command_dying_with_parent, run_to_end};
use crate::bench::BenchError;

/// Times that an unmount is tried before it is left to the kernel.
const UNMOUNT_ATTEMPTS: u32 = 100;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(20);

fn unmount(at: &Path) {
    for _ in 0..UNMOUNT_ATTEMPTS {
        let out = Command::new("umount").arg(at).output();
        if out.is_ok_and(|out| out.status.success()) {
            return;
        }
        std::thread::sleep(PAUSE);
    }
    // What still uses it keeps it, and nobody else sees it.
    let _ = Command::new("umount").arg("--lazy").arg(at).output();
}

/// A file system with one file: what an NBD server has.
#[derive(Debug)]
pub(super) struct Fuse {
    at: PathBuf,
    child: ChildProcess,
}

impl Fuse {
    /// Mounts it.
    ///
    /// # Errors
    /// When there is no FUSE here or the server refuses; with what was said.
    pub(super) fn new(socket: &Path, at: PathBuf) -> Result<Fuse, BenchError> {
        std::fs::create_dir(&at)?;
        let mut command = command_dying_with_parent("nbdfuse");
        let mut companion = ChildProcess::start(command.arg(&at).arg("--unix").arg(socket))?;
        let file = at.join("nbd");
        companion.wait_until(|| file.exists())?;
        Ok(Fuse { at, child: companion })
    }

    /// The file.
    pub(super) fn file(&self) -> PathBuf {
        self.at.join("nbd")
    }

    /// The process that serves it.
    pub(super) fn process(&self) -> u32 {
        self.child.process()
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        unmount(&self.at);
    }
}

/// A mounted ext4.
#[derive(Debug)]
pub(super) struct Mount {
    at: PathBuf,
}

impl Mount {
    /// Makes ext4 of a file and mounts it. The loop device reads and writes past the page cache, and is gone
    /// when it is not mounted any more.
    ///
    /// # Errors
    /// When one of the steps fails; with what was said.
    pub(super) fn new(file: &Path, at: PathBuf) -> Result<Mount, BenchError> {
        std::fs::create_dir(&at)?;
        let attach = ["--find", "--show", "--direct-io=on", "--sector-size", "4096"];
        let out = run_to_end(Command::new("losetup").args(attach).arg(file))?;
        let device = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        // All of it now: nothing is to be initialized during the measurement.
        let now = ["-q", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        let mounted = run_to_end(Command::new("mkfs.ext4").args(now).arg(&device))
            .and_then(|_| run_to_end(Command::new("mount").args(["-t", "ext4", &device]).arg(&at)));
        // Of a device in use this only says that it is to go with the last use.
        let detached = run_to_end(Command::new("losetup").args(["--detach", &device]));
        let mount = mounted.map(|_| Mount { at })?;
        detached.map(|_| mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        unmount(&self.at);
    }
}
