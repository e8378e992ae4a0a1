//! [`UringError`]: errors of opening a file or device.

use std::io;
use std::path::PathBuf;

use super::UringConfig;

/// The reason why a file or device cannot be used through io_uring.
#[derive(Debug, thiserror::Error)]
pub enum UringError {
    /// The number of hardware queues is 0.
    #[error("0 hardware queues: a device needs at least 1")]
    NoQueues,
    /// The number of commands per system call is 0.
    #[error("`submit_batch` is 0: it must be at least 1")]
    NoBatch,
    /// The queue depth is not supported.
    #[error("a queue depth of {depth}: io_uring has 1 to {}", UringConfig::DEPTH_MAX)]
    Depth {
        /// The configured depth.
        depth: u16,
    },
    /// The number of segments exceeds the kernel's maximum.
    #[error("{segments} segments: the kernel takes {} at most", UringConfig::SEGMENTS_MAX)]
    Segments {
        /// The configured number of segments.
        segments: u16,
    },
    /// The sector size is not supported.
    #[error(
        "sectors of {asked} bytes: a power of two from 512 to 65536 is possible, and here a \
         multiple of {needed}"
    )]
    Sector {
        /// The configured size.
        asked: u32,
        /// The minimum transfer of the file or device.
        needed: u32,
    },
    /// The transfer limit is not supported.
    #[error(
        "transfers of at most {bytes} bytes: it must be a multiple of the sector size, {sector}, \
         and at most {}",
        UringConfig::TRANSFER_BYTES_MAX
    )]
    Transfer {
        /// The configured limit.
        bytes: u32,
        /// Sector size in bytes.
        sector: u32,
    },
    /// Two options exclude each other.
    #[error("{0}")]
    Conflict(&'static str),
    /// The file or device cannot be opened.
    #[error("cannot open {path}: {source}{}", .hint)]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// The remedy.
        hint: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The path is neither a file nor a block device.
    #[error("{path} is {kind}, not a file or block device")]
    Kind {
        /// Path of the file.
        path: PathBuf,
        /// Type of the file.
        kind: &'static str,
    },
    /// The file is empty.
    #[error(
        "{path} is empty: make it as long as the device should be, for example with truncate -s"
    )]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// The controller failed a command, or its description is not usable.
    #[error("{path}: {source}")]
    Nvme {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        #[source]
        source: crate::DriverError,
    },
    /// The size is not a multiple of the sector size.
    #[error("{path} has {bytes} bytes, which is not a multiple of the sector size, {sector}")]
    Size {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file in bytes.
        bytes: u64,
        /// Sector size in bytes.
        sector: u32,
    },
    /// The block device is in use.
    #[error(
        "{path} is in use (mounted, or opened exclusively): unmount it, open it for reading only, \
         or open it without `exclusive`"
    )]
    InUse {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file system does not support direct I/O.
    #[error(
        "{path}: no direct I/O (O_DIRECT) here: open it with `direct` off, or put it on another \
         file system"
    )]
    NoDirect {
        /// Path of the file.
        path: PathBuf,
    },
    /// The device does not support polling.
    #[error(
        "{path}: no polled completions here ({source}): give the device poll queues (module \
         parameter `poll_queues` of nvme or null_blk), or open it with polling off or where \
         supported"
    )]
    NoPolling {
        /// Path of the file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The kernel cannot create a ring.
    #[error("io_uring: {source}{}", .hint)]
    Ring {
        /// The remedy.
        hint: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Memory cannot be allocated.
    #[error("memory for a queue: {0}")]
    Memory(#[source] io::Error),
}

impl UringError {
    /// Converts the error of creating a ring.
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
