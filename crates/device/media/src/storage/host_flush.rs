//! [`HostFlush`]: the result of flushes of an image to the host's stable storage.
//!
//! Invariant: after a failed flush no later one succeeds. The kernel drops pages that it could not
//! write, so that a later `fdatasync(2)` would succeed without them.

use std::io;
use std::time::Instant;

use rustix::io::Errno;
use time::Nanos;

use crate::HostFlushStats;

/// The results of the flushes of an image.
#[derive(Debug, Default)]
pub(crate) struct HostFlush {
    failed: Option<i32>,
    /// Whether the next flush is to fail.
    fail_next: bool,
    stats: HostFlushStats,
}

impl HostFlush {
    /// Returns the error of an earlier flush.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        let Some(errno) = self.failed else { return Ok(()) };
        self.stats.failures += 1;
        Err(io::Error::from_raw_os_error(errno))
    }

    /// Runs a flush that has something to write.
    pub(crate) fn run(&mut self, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.check()?;
        let begun = Instant::now();
        let done = match std::mem::take(&mut self.fail_next) {
            true => Err(Errno::IO.into()),
            false => flush(),
        };
        self.stats.time += Nanos(begun.elapsed().as_nanos() as u64);
        self.stats.flushes += 1;
        if let Err(error) = &done {
            self.stats.failures += 1;
            self.failed = Some(errno_of(error));
        }
        done
    }

    pub(crate) fn fail_next(&mut self) {
        self.fail_next = true;
    }

    pub(crate) fn stats(&self) -> HostFlushStats {
        self.stats
    }
}

/// Returns the operating system's number of an error.
pub(crate) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}
