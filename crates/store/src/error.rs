//! [`Error`]: why an operation failed; [`OpenError`]: why a volume cannot be used.

use nvme::Status;

use crate::{FsckProblem, Owner};

/// Why an operation failed. Nothing of it was done, unless a count of bytes says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such name, or no such inode any more.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("it exists")]
    Exists,
    /// Something on the way, or the thing itself, is no directory.
    #[error("not a directory")]
    NotDirectory,
    /// The thing is a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("the directory is not empty")]
    NotEmpty,
    /// No blocks left.
    #[error("no space left on the volume")]
    NoSpace,
    /// The inodes, names and extents of the volume take all of the space for metadata.
    #[error("no space left for metadata: too many files, names or extents")]
    NoMetadataSpace,
    /// A name of more than 255 bytes.
    #[error("a name has 255 bytes at most")]
    NameTooLong,
    /// Something else is wrong with the request; the words say what.
    #[error("{0}")]
    Invalid(&'static str),
    /// The offset or size is beyond 16 TiB.
    #[error("larger than a file can be")]
    TooLarge,
    /// The data is not in registered memory.
    #[error("the data is not in registered memory")]
    BadAddress,
    /// The root cannot be removed or renamed.
    #[error("the root stays")]
    Root,
    /// The volume takes no more changes: it was opened for reading, is being closed, or its journal could
    /// not be written.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The device failed.
    #[error("the device failed: {status}")]
    Io {
        /// What it said.
        status: Status,
    },
}

impl Error {
    /// The number that Linux programs know the error by (`errno.h`).
    pub fn errno(self) -> i32 {
        match self {
            Error::NotFound => 2,
            Error::Io { .. } => 5,
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

/// Why a volume cannot be made or opened. Nothing was written, except where it is said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no superblock.
    #[error("this is not a volume of files")]
    NotAVolume,
    /// A later version, or features that this one does not know.
    #[error(
        "the volume has version {version} and features {features:#x}; version {known} is known"
    )]
    Newer {
        /// Its version.
        version: u32,
        /// Features that are not known.
        features: u32,
        /// The version that is known.
        known: u32,
    },
    /// The device has another size, or other sectors, than the volume was made for.
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
    /// Somebody of this boot uses it, or was killed while using it.
    #[error(
        "the volume is in use by process {} of this boot; if that is gone, take it over, or let fsck \
         clear the mark",
        owner.process
    )]
    InUse {
        /// Who.
        owner: Owner,
    },
    /// The metadata is damaged: what was found first, and how much in all.
    #[error("the volume is damaged: {first} ({count} findings; fsck has them all)")]
    Damaged {
        /// The first.
        first: FsckProblem,
        /// How many.
        count: usize,
    },
    /// There is a volume already.
    #[error("there is a volume on the device; it is overwritten only on demand")]
    HasVolume,
    /// The device, or what was asked for, does not fit.
    #[error("{what}")]
    Unfit {
        /// Why.
        what: String,
    },
    /// The device failed.
    #[error("the device failed at byte {offset}: {status}")]
    Io {
        /// Where.
        offset: u64,
        /// What it said.
        status: Status,
    },
    /// No memory to be had for buffers.
    #[error(transparent)]
    Memory(#[from] ring::RegisterError),
}
