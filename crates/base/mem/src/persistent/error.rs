//! [`PersistentMemoryError`].

use std::io;

use super::PersistentMemory;
use crate::SharedMemoryError;

/// The reason for which persistent memory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PersistentMemoryError {
    /// The size is 0, or no multiple of a cache line, or exceeds the address space.
    #[error(
        "persistent memory of {bytes} bytes: the size must be a positive multiple of {line}",
        line = PersistentMemory::LINE_BYTES
    )]
    Size {
        /// The size in bytes.
        bytes: u64,
    },
    /// The file has another size.
    #[error("the file of the persistent memory has {found} bytes, not {expected}")]
    OtherSize {
        /// Size of the file in bytes.
        found: u64,
        /// Expected size in bytes.
        expected: u64,
    },
    /// Another process uses the file.
    #[error("another process uses the file of the persistent memory")]
    InUse,
    /// The file cannot be mapped with `MAP_SYNC`.
    #[error(
        "the file is not on persistent memory (its file system refuses MAP_SYNC): use a file on a \
         file system that is mounted with -o dax"
    )]
    NotDax,
    /// The processor has no instruction by which a program writes back cache lines.
    #[error("this processor has no instruction (clwb, clflushopt, clflush) to persist cache lines")]
    NoWriteBack,
    /// The images of another process differ in size.
    #[error("the images of the persistent memory have {visible} and {persistent} bytes")]
    Images {
        /// Size of the visible image in bytes.
        visible: usize,
        /// Size of the persistent image in bytes.
        persistent: usize,
    },
    /// Memory of another process cannot be mapped.
    #[error(transparent)]
    Shared(#[from] SharedMemoryError),
    /// The operating system refuses the file or the mapping.
    #[error("persistent memory: {0}")]
    Io(#[from] io::Error),
}
