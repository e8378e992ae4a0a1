//! Open file descriptions (POSIX 3.258): what `dup` and `fork` share.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use volume::Ino;

/// Linux `O_*` flags used here; the same on all supported architectures unless noted.
pub(crate) mod flags {
    pub(crate) const ACCESS: u64 = 3;
    pub(crate) const WRITE_ONLY: u64 = 1;
    pub(crate) const CREATE: u64 = 0o100;
    pub(crate) const EXCLUSIVE: u64 = 0o200;
    pub(crate) const TRUNCATE: u64 = 0o1000;
    pub(crate) const APPEND: u64 = 0o2000;
    pub(crate) const NONBLOCK: u64 = 0o4000;
    /// `O_SYNC`, which includes `O_DSYNC`.
    pub(crate) const SYNC: u64 = 0o4010000;
    /// `O_DIRECTORY` and `O_DIRECT` differ between x86-64 and aarch64.
    #[cfg(target_arch = "aarch64")]
    pub(crate) const DIRECTORY: u64 = 0o40000;
    #[cfg(not(target_arch = "aarch64"))]
    pub(crate) const DIRECTORY: u64 = 0o200000;
    #[cfg(target_arch = "aarch64")]
    pub(crate) const DIRECT: u64 = 0o200000;
    #[cfg(not(target_arch = "aarch64"))]
    pub(crate) const DIRECT: u64 = 0o40000;
    pub(crate) const NO_ACCESS_TIME: u64 = 0o1000000;
    /// Flags that `F_SETFL` changes.
    pub(crate) const SETTABLE: u64 = APPEND | NONBLOCK | DIRECT | NO_ACCESS_TIME;
    /// Flags that only affect the open.
    pub(crate) const OPENING: u64 = CREATE | EXCLUSIVE | TRUNCATE | 0o400 | 0o2000000;
}

/// An open file or directory.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) ino: Ino,
    pub(crate) directory: bool,
    pub(crate) flags: u64,
    pub(crate) offset: u64,
    /// A call that uses the offset is in flight; others wait for it.
    pub(crate) busy: bool,
    /// Posted writes in flight.
    pub(crate) posted_writes: u32,
    /// Error of a posted write, as in a reply; reported by the next sync.
    pub(crate) posted_write_error: Option<i64>,
    /// The kernel has reported a hangup meanwhile, so the last descriptor may be closed.
    pub(crate) hung_up: bool,
    /// It represents a mapping, not a descriptor.
    pub(crate) is_mapping: bool,
    /// The service's end of the socket; closed when the last copy of the other end is.
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

    /// Returns whether an operation in flight uses it.
    pub(crate) fn is_used(&self) -> bool {
        self.busy || self.posted_writes > 0
    }

    /// Returns whether all descriptors have been closed.
    pub(crate) fn is_closed(&self) -> bool {
        let mut end = [PollFd::new(&self.peer, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // On EINTR or an error, the check is repeated when the last process ends.
        poll(&mut end, Some(&now)).is_ok() && end[0].revents().contains(PollFlags::HUP)
    }
}

/// All open files, by the number of their socket.
pub(crate) type OpenFiles = BTreeMap<u64, OpenFile>;
