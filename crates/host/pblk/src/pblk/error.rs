//! [`PblkError`]: reasons why a drive cannot be opened.

use ftl::{NewFtlError, RecoveryError};
use nvme::{Address, Status};

use ocssd::vector::{Addresses, MemoryError};

/// Why a drive cannot be opened as a block device.
#[derive(Debug, thiserror::Error)]
pub enum PblkError {
    /// The drive manages its own flash.
    #[error(
        "drive {serial} is not open-channel, it manages its own flash: open it as a block device"
    )]
    NotOpenChannel {
        /// Serial number of the drive.
        serial: String,
    },
    /// Garbage collection is to copy inside of a drive that cannot.
    #[error("vector_copy is on, but drive {serial} has no Vector Chunk Copy with metadata")]
    NoVectorCopy {
        /// Serial number of the drive.
        serial: String,
    },
    /// The drive's geometry exceeds what the FTL can address or write.
    #[error("{what} is {value}, but pblk needs {allowed}")]
    Shape {
        /// Name of the parameter.
        what: &'static str,
        /// Value that the drive reports.
        value: u64,
        /// Allowed values.
        allowed: String,
    },
    /// The out-of-band area is too small for recovery.
    #[error(
        "a sector has {oob_bytes} out-of-band bytes, but recovery needs {needed}: use a drive with \
         a larger out-of-band area"
    )]
    OobTooSmall {
        /// Out-of-band bytes per sector.
        oob_bytes: u32,
        /// Bytes needed.
        needed: u32,
    },
    /// The number of chunk descriptors differs from the number of chunks.
    #[error("{given} chunk descriptors for a drive of {chunks} chunks")]
    ChunkCount {
        /// Number of descriptors given.
        given: usize,
        /// Number of chunks of the drive.
        chunks: u64,
    },
    /// A chunk descriptor is inconsistent.
    #[error("chunk {chunk}: {what}")]
    Chunk {
        /// First sector of the chunk.
        chunk: Address,
        /// The inconsistency.
        what: String,
    },
    /// The drive has been written, but does not store contents.
    #[error(
        "{chunks} chunks are written, but the drive stores no contents to recover: reset them, or \
         use a drive with data = \"memory\" or \"file\""
    )]
    CannotRecover {
        /// Number of chunks that are not free.
        chunks: u32,
    },
    /// The data on the drive was not written by pblk.
    #[error(
        "none of {sectors} readable sectors, the first at {first}, was written by pblk: reset the \
         drive's chunks if what is there is not needed"
    )]
    ForeignData {
        /// Number of sectors that could be read.
        sectors: u64,
        /// Address of the first of them.
        first: Address,
    },
    /// The drive was written by a pblk in shards.
    #[error("the drive was written in {shards} shards: open it with as many, or reset its chunks")]
    Sharded {
        /// Number of shards.
        shards: u32,
    },
    /// The data on the drive was written with another layout.
    #[error(
        "sector {first} holds logical sector {lba}, but this configuration makes only {sectors}: \
         open the drive with the over_provisioning, active_pus and streams that it was written with"
    )]
    LayoutMismatch {
        /// Address of the physical sector.
        first: Address,
        /// Logical sector in its out-of-band bytes.
        lba: u32,
        /// Number of logical sectors of this configuration, map pages included.
        sectors: u32,
    },
    /// The flash cannot hold an FTL with this configuration.
    #[error(transparent)]
    Ftl(#[from] NewFtlError),
    /// The data on the drive does not match what this configuration wrote.
    #[error(transparent)]
    Recovery(RecoveryError),
    /// Memory for the write buffer or the address lists cannot be allocated.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The drive failed a command of recovery.
    #[error("recovery: {command} at {address} failed: {status}")]
    Command {
        /// Name of the command.
        command: &'static str,
        /// First address of the command.
        address: Address,
        /// Status of the command.
        status: Status,
    },
    /// The drive did not complete commands of recovery.
    #[error("recovery: {outstanding} commands did not complete within {polls} polls")]
    Timeout {
        /// Number of outstanding commands.
        outstanding: u16,
        /// Number of polls without a completion.
        polls: u64,
    },
}

impl PblkError {
    /// Returns whether recovery has found data that this configuration did not write. No command is
    /// outstanding then.
    pub(crate) fn is_of_other_data(&self) -> bool {
        matches!(
            self,
            PblkError::Recovery(_)
                | PblkError::ForeignData { .. }
                | PblkError::LayoutMismatch { .. }
        )
    }

    /// Converts an error of recovery; sector indexes become addresses of the drive.
    pub(crate) fn from_recovery(error: RecoveryError, addresses: &Addresses) -> PblkError {
        match error {
            RecoveryError::New(e) => PblkError::Ftl(e),
            RecoveryError::Foreign { sectors, first } => {
                PblkError::ForeignData { sectors, first: addresses.components(first) }
            }
            RecoveryError::OtherLayout { phys, lba, sectors } => PblkError::LayoutMismatch {
                first: addresses.components(phys),
                lba: lba.get(),
                sectors,
            },
            e => PblkError::Recovery(e),
        }
    }
}
