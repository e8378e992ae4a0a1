//! Open file descriptions (POSIX 3.258): what `dup` and `fork` share.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use store::Ino;

/// `O_*` of Linux that have a meaning here; the same on all architectures that Sluice runs on.
pub(crate) mod flags {
    pub(crate) const ACCESS: u64 = 3;
    pub(crate) const WRITE_ONLY: u64 = 1;
    pub(crate) const CREATE: u64 = 0o100;
    pub(crate) const EXCLUSIVE: u64 = 0o200;
    pub(crate) const TRUNCATE: u64 = 0o1000;
    pub(crate) const APPEND: u64 = 0o2000;
    pub(crate) const NONBLOCK: u64 = 0o4000;
    /// `O_SYNC`, of which `O_DSYNC` is a part.
    pub(crate) const SYNC: u64 = 0o4010000;
    /// x86-64 has `O_DIRECTORY` and `O_DIRECT` elsewhere than aarch64.
    #[cfg(target_arch = "aarch64")]
    pub(crate) const DIRECTORY: u64 = 0o40000;
    #[cfg(not(target_arch = "aarch64"))]
    pub(crate) const DIRECTORY: u64 = 0o200000;
    #[cfg(target_arch = "aarch64")]
    pub(crate) const DIRECT: u64 = 0o200000;
    #[cfg(not(target_arch = "aarch64"))]
    pub(crate) const DIRECT: u64 = 0o40000;
    pub(crate) const NO_ACCESS_TIME: u64 = 0o1000000;
    /// Those that `F_SETFL` changes.
    pub(crate) const SETTABLE: u64 = APPEND | NONBLOCK | DIRECT | NO_ACCESS_TIME;
    /// Those that only say how to open.
    pub(crate) const OPENING: u64 = CREATE | EXCLUSIVE | TRUNCATE | 0o400 | 0o2000000;
}

/// An open file or directory.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) ino: Ino,
    pub(crate) directory: bool,
    pub(crate) flags: u64,
    pub(crate) offset: u64,
    /// A call that uses the offset is under way; others wait for it.
    pub(crate) busy: bool,
    /// Writes under way that nobody waits for.
    pub(crate) posted_writes: u32,
    /// What went wrong with one, as an answer has it: the next sync's.
    pub(crate) posted_write_error: Option<i64>,
    /// The kernel has said meanwhile that what stands for it may be closed.
    pub(crate) hung_up: bool,
    /// It stands for a mapping, not for a descriptor.
    pub(crate) is_mapping: bool,
    /// The other end of what stands for it; closed when its last copy is.
    pub(crate) peer: UnixStream,
}

impl OpenFile {
    pub(crate) fn new(ino: Ino, flags: u64, peer: UnixStream) -> OpenFile {
        let (directory, busy, hung_up, is_mapping) = (false, false, false, false);
        let (offset, posted_writes, posted_write_error) = (0, 0, None);
        OpenFile {
            ino,
            directory,
            flags,
            offset,
            busy,
            posted_writes,
            posted_write_error,
            hung_up,
            is_mapping,
            peer,
        }
    }

    pub(crate) fn readable(&self) -> bool {
        self.flags & flags::ACCESS != flags::WRITE_ONLY
    }

    pub(crate) fn writable(&self) -> bool {
        !self.directory && self.flags & flags::ACCESS != 0
    }

    /// Whether something that is under way needs it.
    pub(crate) fn is_used(&self) -> bool {
        self.busy || self.posted_writes > 0
    }

    /// Whether what stands for it has been closed everywhere.
    pub(crate) fn is_closed(&self) -> bool {
        let mut end = [PollFd::new(&self.peer, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Interrupted or refused: it is looked at again when the last process ends.
        poll(&mut end, Some(&now)).is_ok() && end[0].revents().contains(PollFlags::HUP)
    }
}

/// All of them, by the number of the socket that stands for each.
pub(crate) type OpenFiles = BTreeMap<u64, OpenFile>;
