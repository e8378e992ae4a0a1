//! The kernel's path: [`Fuse`] exposes an NBD export as a file, [`Ext4Mount`] is ext4 on a loop device
//! over a file.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::child_process::{ChildProcess, command_dying_with_parent, run_to_end};
use crate::BenchError;

/// Number of attempts to unmount before the kernel is asked to do it lazily.
const UNMOUNT_ATTEMPTS: u32 = 100;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

fn unmount(at: &Path) {
    for _ in 0..UNMOUNT_ATTEMPTS {
        let out = Command::new("umount").arg(at).output();
        if out.is_ok_and(|out| out.status.success()) {
            return;
        }
        std::thread::sleep(PAUSE);
    }
    // Current users keep the mount, and no other process sees it.
    let _ = Command::new("umount").arg("--lazy").arg(at).output();
}

/// A file system with one file: the export of an NBD server.
#[derive(Debug)]
pub(super) struct Fuse {
    at: PathBuf,
    child: ChildProcess,
}

impl Fuse {
    /// Mounts the export.
    ///
    /// # Errors
    /// If FUSE is not available or the server refuses; the message has the program's output.
    pub(super) fn new(socket: &Path, at: PathBuf) -> Result<Fuse, BenchError> {
        std::fs::create_dir(&at)?;
        let mut command = command_dying_with_parent("nbdfuse");
        let mut companion = ChildProcess::start(command.arg(&at).arg("--unix").arg(socket))?;
        let file = at.join("nbd");
        companion.wait_until(|| file.exists())?;
        Ok(Fuse { at, child: companion })
    }

    /// Returns the path of the file.
    pub(super) fn file(&self) -> PathBuf {
        self.at.join("nbd")
    }

    /// Returns the process that serves it.
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
pub(super) struct Ext4Mount {
    at: PathBuf,
}

impl Ext4Mount {
    /// Creates ext4 on a file and mounts it. The loop device bypasses the page cache and is removed
    /// with the mount.
    ///
    /// # Errors
    /// If one of the steps fails; the message has the program's output.
    pub(super) fn new(file: &Path, at: PathBuf) -> Result<Ext4Mount, BenchError> {
        std::fs::create_dir(&at)?;
        let attach = ["--find", "--show", "--direct-io=on", "--sector-size", "4096"];
        let out = run_to_end(Command::new("losetup").args(attach).arg(file))?;
        let device = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        // Initialize everything now rather than during the measurement.
        let now = ["-q", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
        let mounted = run_to_end(Command::new("mkfs.ext4").args(now).arg(&device))
            .and_then(|_| run_to_end(Command::new("mount").args(["-t", "ext4", &device]).arg(&at)));
        // For a device in use, this requests removal after its last use.
        let detached = run_to_end(Command::new("losetup").args(["--detach", &device]));
        let mount = mounted.map(|_| Ext4Mount { at })?;
        detached.map(|_| mount)
    }
}

impl Drop for Ext4Mount {
    fn drop(&mut self) {
        unmount(&self.at);
    }
}
