//! [`PblkError`]: why a drive cannot be opened.

use ftl::{NewFtlError, RecoveryError};
use nvme::{Address, Status};

use crate::vector::{Addresses, MemoryError};

/// Why a drive cannot be opened as a block device.
#[derive(Debug, thiserror::Error)]
pub enum PblkError {
    /// The drive manages its flash itself.
    #[error(
        "drive {serial} is not open-channel: it manages its own flash, use it as a block device \
         as it is"
    )]
    NotOpenChannel {
        /// The drive.
        serial: String,
    },
    /// The drive's shape is more than the translation layer can number or write.
    #[error("{what} is {value}, but pblk needs {allowed}")]
    Shape {
        /// What it is about.
        what: &'static str,
        /// What the drive says.
        value: u64,
        /// What would do.
        allowed: String,
    },
    /// The out-of-band area is too small to recover from.
    #[error(
        "a sector has {oob_bytes} out-of-band bytes, but {needed} are needed to find its data \
         again"
    )]
    OobTooSmall {
        /// Bytes that there are.
        oob_bytes: u32,
        /// Bytes needed.
        needed: u32,
    },
    /// Not as many chunk descriptors as chunks.
    #[error("{given} chunk descriptors for a drive of {chunks} chunks")]
    ChunkCount {
        /// Descriptors given.
        given: usize,
        /// Chunks of the drive.
        chunks: u64,
    },
    /// The drive says something of a chunk that cannot be.
    #[error("chunk {chunk}: {what}")]
    Chunk {
        /// Its first sector.
        chunk: Address,
        /// What cannot be.
        what: String,
    },
    /// The drive has been written, but its contents are not kept.
    #[error(
        "{chunks} chunks are written, but the drive keeps no data to recover them from: reset them, \
         or use a drive with data = \"memory\" or \"file\""
    )]
    CannotRecover {
        /// Chunks that are not free.
        chunks: u32,
    },
    /// What is on the drive was not written by pblk.
    #[error(
        "none of {sectors} readable sectors, the first at {first}, was written by pblk: reset the \
         drive's chunks if what is there is not needed"
    )]
    ForeignData {
        /// Sectors that could be read.
        sectors: u64,
        /// The first of them.
        first: Address,
    },
    /// What is on the drive was written with another layout.
    #[error(
        "sector {first} holds logical sector {lba}, but this configuration makes only {sectors}: \
         open the drive with the over_provisioning, active_pus and streams that it was written with"
    )]
    LayoutMismatch {
        /// The physical sector.
        first: Address,
        /// The logical sector in its out-of-band bytes.
        lba: u32,
        /// Logical sectors of this configuration, map pages included.
        sectors: u32,
    },
    /// The flash cannot host a translation layer with this configuration.
    #[error(transparent)]
    Ftl(#[from] NewFtlError),
    /// What is on the drive is not, or no more, what this configuration wrote.
    #[error(transparent)]
    Recovery(RecoveryError),
    /// No memory for the write buffer or the lists of addresses.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The drive refused a command of the recovery.
    #[error("recovery: {command} at {address} failed: {status}")]
    Command {
        /// The command.
        command: &'static str,
        /// Its first address.
        address: Address,
        /// The drive's answer.
        status: Status,
    },
    /// The drive did not answer.
    #[error("recovery: {outstanding} commands were not answered within {polls} polls")]
    Timeout {
        /// Commands outstanding.
        outstanding: u16,
        /// How often the drive was polled in vain.
        polls: u64,
    },
}

impl PblkError {
    /// An error of the recovery, with the drive's addresses.
    pub(crate) fn from_recovery(error: RecoveryError, addresses: &Addresses) -> PblkError {
        match error {
            RecoveryError::New(e) => PblkError::Ftl(e),
            RecoveryError::Foreign { sectors, first } => {
                PblkError::ForeignData { sectors, first: addresses.components(first) }
            }
            RecoveryError::OtherLayout { psn, lba, sectors } => {
                PblkError::LayoutMismatch { first: addresses.components(psn), lba, sectors }
            }
            e => PblkError::Recovery(e),
        }
    }
}
