//! [`Error`]: why an operation failed; [`VolumeOpenError`]: why a volume cannot be used.

use nvme::Status;

use crate::{FsckProblem, Owner};

/// Why an operation failed. It had no effect, unless a byte count says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name or the inode does not exist.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists already.
    #[error("the name exists already")]
    Exists,
    /// A component of the path, or the target, is not a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The target is a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// No block is free.
    #[error("no space left on the volume")]
    NoSpace,
    /// Inodes, names and extents use all space for metadata.
    #[error("no space left for metadata: too many files, names or extents")]
    NoMetadataSpace,
    /// A name of more than 255 bytes.
    #[error("a name has 255 bytes at most")]
    NameTooLong,
    /// The request is invalid otherwise; the text says why.
    #[error("{0}")]
    Invalid(&'static str),
    /// The offset or size is beyond 16 TiB.
    #[error("larger than a file can be")]
    TooLarge,
    /// The data is not in registered memory.
    #[error("the data is not in registered memory")]
    BadAddress,
    /// The root cannot be removed or renamed.
    #[error("the root directory cannot be removed or renamed")]
    Root,
    /// The volume accepts no changes: it was opened read-only, is being closed, or its journal
    /// could not be written.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The device failed.
    #[error("the device failed: {status}")]
    Io {
        /// Status of the device.
        status: Status,
    },
    /// A barrier did not become durable, because the device failed. Later ones fail as well, and
    /// the volume accepts no more changes.
    #[error("barrier {barrier} cannot become durable: the device failed: {status}")]
    Barrier {
        /// The first barrier that is not durable.
        barrier: u64,
        /// Status of the device.
        status: Status,
    },
}

impl Error {
    /// Returns the Linux error number (`errno.h`).
    pub fn errno(self) -> i32 {
        match self {
            Error::NotFound => 2,
            Error::Io { .. } | Error::Barrier { .. } => 5,
            Error::BadAddress => 14,
            Error::Root => 16,
            Error::Exists => 17,
            Error::NotDirectory => 20,
            Error::IsDirectory => 21,
            Error::Invalid(_) => 22,
            Error::TooLarge => 27,
            Error::NoSpace | Error::NoMetadataSpace => 28,
            Error::ReadOnly => 30,
            Error::NameTooLong => 36,
            Error::NotEmpty => 39,
        }
    }
}

/// Why a volume cannot be made or opened. Nothing was written, unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeOpenError {
    /// The device has no superblock.
    #[error("this is not a volume: it has no superblock")]
    NotAVolume,
    /// The volume has a later version, or unknown features.
    #[error(
        "the volume has version {version} and features {features:#x}; version {known} is known"
    )]
    Newer {
        /// Its version.
        version: u32,
        /// Unknown features.
        features: u32,
        /// The supported version.
        known: u32,
    },
    /// The size or the sectors of the device differ from those for which the volume was made.
    #[error(
        "the volume was made for {blocks} blocks of 4096 bytes and sectors of {sector_bytes}; the \
         device has {device_blocks} and {device_sector_bytes}"
    )]
    OtherDevice {
        /// Blocks of the volume.
        blocks: u64,
        /// Bytes per sector, of the volume.
        sector_bytes: u32,
        /// Whole blocks of the device.
        device_blocks: u64,
        /// Bytes per sector, of the device.
        device_sector_bytes: u32,
    },
    /// A process of this boot uses the volume, or was killed while using it.
    #[error(
        "the volume is in use by process {} of this boot; if that is gone, take it over, or let fsck \
         clear the mark",
        owner.process
    )]
    InUse {
        /// The owner.
        owner: Owner,
    },
    /// The metadata is damaged.
    #[error("the volume is damaged: {first} ({count} findings; fsck has them all)")]
    Damaged {
        /// The first problem found.
        first: FsckProblem,
        /// Number of problems.
        count: usize,
    },
    /// The device has a volume already.
    #[error("there is a volume on the device; it is overwritten only on demand")]
    HasVolume,
    /// The device or the options are unsuitable.
    #[error("{what}")]
    Unfit {
        /// The reason.
        what: String,
    },
    /// The device failed.
    #[error("the device failed at byte {offset}: {status}")]
    Io {
        /// Byte offset on the device.
        offset: u64,
        /// Status of the device.
        status: Status,
    },
    /// No memory for buffers.
    #[error(transparent)]
    Memory(#[from] mem::RegisterError),
}
