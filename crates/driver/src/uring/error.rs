//! [`UringError`]: why a file or device cannot be used.

use std::io;
use std::path::PathBuf;

use super::UringConfig;

/// Why a file or device cannot be used through io_uring.
#[derive(Debug, thiserror::Error)]
pub enum UringError {
    /// A device has at least one queue.
    #[error("0 hardware queues: a device needs at least 1")]
    NoQueues,
    /// A system call takes at least one command along.
    #[error("a batch of 0 commands: nothing would be submitted")]
    NoBatch,
    /// The ring has no such depth.
    #[error("a queue depth of {depth}: io_uring has 1 to {}", UringConfig::DEPTH_MAX)]
    Depth {
        /// What was asked for.
        depth: u16,
    },
    /// The kernel takes no such vector.
    #[error("{segments} segments: the kernel takes {} at most", UringConfig::SEGMENTS_MAX)]
    Segments {
        /// What was asked for.
        segments: u16,
    },
    /// The sector size is not possible.
    #[error(
        "sectors of {asked} bytes: a power of two from 512 to 65536 is possible, and here a \
         multiple of {needed}"
    )]
    Sector {
        /// What was asked for.
        asked: u32,
        /// What the file or device transfers at least.
        needed: u32,
    },
    /// The transfer limit is not possible.
    #[error(
        "transfers of at most {bytes} bytes: it must be a multiple of the sector size, {sector}, \
         and at most {}",
        UringConfig::TRANSFER_BYTES_MAX
    )]
    Transfer {
        /// What was asked for.
        bytes: u32,
        /// Bytes per sector.
        sector: u32,
    },
    /// Two choices exclude each other.
    #[error("{0}")]
    Conflict(&'static str),
    /// The system does not open it.
    #[error("cannot open {path}: {source}{}", .hint)]
    Open {
        /// What.
        path: PathBuf,
        /// What else could be done.
        hint: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It has no sectors.
    #[error("{path} is {kind}, not a file or block device")]
    Kind {
        /// What.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// It has no sectors.
    #[error(
        "{path} is empty: make it as long as the device should be, for example with truncate -s"
    )]
    Empty {
        /// What.
        path: PathBuf,
    },
    /// The controller refuses a command, or says what cannot be used.
    #[error("{path}: {source}")]
    Nvme {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: crate::DriverError,
    },
    /// Its last sector is not whole.
    #[error("{path} has {bytes} bytes, which is not a multiple of the sector size, {sector}")]
    Size {
        /// What.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// Bytes per sector.
        sector: u32,
    },
    /// Something else uses the block device.
    #[error(
        "{path} is in use (mounted, or opened exclusively): unmount it, open it for reading only, \
         or open it without `exclusive`"
    )]
    InUse {
        /// What.
        path: PathBuf,
    },
    /// The file system has no direct I/O.
    #[error(
        "{path}: no direct I/O (O_DIRECT) here: open it with `direct` off, or put it on another \
         file system"
    )]
    NoDirect {
        /// What.
        path: PathBuf,
    },
    /// The device cannot be polled.
    #[error(
        "{path}: no polled completions here ({source}): give the device poll queues (module \
         parameter `poll_queues` of nvme or null_blk), or open it with polling off or where \
         supported"
    )]
    NoPolling {
        /// What.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The kernel makes no ring.
    #[error("io_uring: {source}{}", .hint)]
    Ring {
        /// What could be done about it.
        hint: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No memory.
    #[error("memory for a queue: {0}")]
    Memory(#[source] io::Error),
}

impl UringError {
    /// A ring that could not be made.
    pub(super) fn ring(source: io::Error) -> UringError {
        use rustix::io::Errno;
        let hint = match Errno::from_io_error(&source) {
            Some(Errno::NOSYS) => ": this kernel is built without it",
            Some(Errno::PERM | Errno::ACCESS) => {
                ": it may be forbidden by the sysctl kernel.io_uring_disabled, or by a container's \
                 seccomp filter"
            }
            Some(Errno::INVAL) => {
                ": this kernel is too old (Linux 5.19 is needed, 6.1 for deferred task work)"
            }
            Some(Errno::NOMEM) => {
                ": raise the limit on locked memory (ulimit -l), or use a smaller depth"
            }
            Some(Errno::MFILE | Errno::NFILE) => ": raise the limit on open files (ulimit -n)",
            _ => "",
        };
        UringError::Ring { hint, source }
    }
}
