//! [`MediaManagerError`]: errors of the media manager; [`TableError`]: invalid partition tables and
//! inconsistent changes. Errors about conflicts name both parties.

use ftl::journal::JournalError;
use nvme::{Address, Status};

use crate::{ReleaseError, TargetKind};
use ocssd::vector::MemoryError;

/// Why a partition table cannot be read, or a change cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The bytes have no magic of a partition table.
    #[error("the magic number of a partition table is missing")]
    NotATable,
    /// The format version is not supported.
    #[error("its version is {found}, but this program supports {known}")]
    Version {
        /// Version of the table.
        found: u16,
        /// Supported version.
        known: u16,
    },
    /// The checksum does not match.
    #[error("its CRC is {found:#010x}, but the CRC of its bytes is {computed:#010x}")]
    Checksum {
        /// Stored checksum.
        found: u32,
        /// Computed checksum.
        computed: u32,
    },
    /// The table is too short, too long, or contains an invalid value.
    #[error("its {bytes} bytes are truncated, or contain an invalid value")]
    Truncated {
        /// Length of the table.
        bytes: usize,
    },
    /// The table belongs to another drive.
    #[error("it belongs to another drive: {what} is {found}, but on this drive {wanted}")]
    GeometryMismatch {
        /// Name of the parameter.
        what: &'static str,
        /// Value in the table.
        found: u64,
        /// Value of the drive.
        wanted: u64,
    },
    /// A record cannot be decoded.
    #[error("record {record} after its snapshot is invalid ({bytes} bytes)")]
    Record {
        /// Index of the record, from 0.
        record: usize,
        /// Length of the record.
        bytes: usize,
    },
    /// A table or a change is inconsistent.
    #[error("{what}")]
    Inconsistent {
        /// The inconsistency.
        what: String,
    },
    /// A report has another number of chunks.
    #[error("the report has {given} chunks, but the drive has {chunks}")]
    ReportLength {
        /// Number of descriptors.
        given: usize,
        /// Number of chunks of the drive.
        chunks: usize,
    },
}

/// Errors of the media manager. Unless stated otherwise, nothing was changed, neither in memory nor
/// on the media.
#[derive(Debug, thiserror::Error)]
pub enum MediaManagerError {
    /// The drive manages its own flash.
    #[error(
        "drive {drive} is not open-channel, it manages its own flash: targets need an \
             open-channel drive"
    )]
    NotOpenChannel {
        /// Serial number of the drive.
        drive: String,
    },
    /// The drive's geometry has no space for a partition table.
    #[error("drive {drive} has no space for a partition table: {why}")]
    NoTableWindow {
        /// Serial number of the drive.
        drive: String,
        /// Reason.
        why: String,
    },
    /// The drive has no partition table.
    #[error("drive {drive} has no partition table: no target was ever made on it")]
    Blank {
        /// Serial number of the drive.
        drive: String,
    },
    /// The drive has data, but no partition table.
    #[error(
        "drive {drive} has no partition table, but {chunks} chunks with data, the first at \
             {first}: it is in use without one; reset those chunks if they are not needed"
    )]
    NotBlank {
        /// Serial number of the drive.
        drive: String,
        /// Number of chunks that are neither free nor bad.
        chunks: u32,
        /// Address of the first of them.
        first: Address,
    },
    /// The chunks of the partition table hold other data.
    #[error("drive {drive} has other data on the chunks of its partition table: {source}")]
    Foreign {
        /// Serial number of the drive.
        drive: String,
        /// The error of the journal, which names the other data.
        #[source]
        source: JournalError,
    },
    /// The partition table exists but is damaged.
    #[error("the partition table of drive {drive}, on chunks {chunks}, is damaged: {source}")]
    TableDamaged {
        /// Serial number of the drive.
        drive: String,
        /// Chunks of the table.
        chunks: String,
        /// Cause.
        #[source]
        source: TableError,
    },
    /// The partition table existed, and is missing in whole or in part.
    #[error("the partition table of drive {drive}, on chunks {chunks}, is lost: {why}")]
    TableLost {
        /// Serial number of the drive.
        drive: String,
        /// Chunks of the table.
        chunks: String,
        /// The missing part.
        why: String,
    },
    /// The text is not a valid target name.
    #[error(
        "`{name}` cannot be the name of a target: 1 to 32 letters, digits, `-`, `_` and `.`, \
             the first a letter or digit"
    )]
    InvalidName {
        /// The text.
        name: String,
    },
    /// The name is in use.
    #[error("drive {drive} has a target {name} already ({kind} on parallel units {pus})")]
    TargetExists {
        /// Serial number of the drive.
        drive: String,
        /// The name.
        name: String,
        /// Kind of the existing target.
        kind: TargetKind,
        /// Parallel units of the existing target.
        pus: String,
    },
    /// The target does not exist.
    #[error("drive {drive} has no target {name}; it has {known}")]
    UnknownTarget {
        /// Serial number of the drive.
        drive: String,
        /// The requested name.
        name: String,
        /// The existing names, as text.
        known: String,
    },
    /// Two targets overlap on parallel units.
    #[error("target {new} cannot have parallel units {common} of drive {drive}: target {other} has \
             them{}", if *.exclusive { ", and does not share" } else { ", and shares them only with \
             targets that share" })]
    PuOverlap {
        /// Serial number of the drive.
        drive: String,
        /// Name of the new target.
        new: String,
        /// Name of the existing target.
        other: String,
        /// The common parallel units.
        common: String,
        /// Whether the existing target owns its units exclusively.
        exclusive: bool,
    },
    /// The drive does not have these parallel units.
    #[error("target {name} cannot have parallel units {pus}: drive {drive} has 0-{last}")]
    NoSuchUnits {
        /// Serial number of the drive.
        drive: String,
        /// Name of the new target.
        name: String,
        /// The requested units.
        pus: String,
        /// The last unit of the drive.
        last: u32,
    },
    /// The option does not apply to this kind of target.
    #[error("target {name} is of kind {kind}, which takes no {option}")]
    NoSuchOption {
        /// Name of the new target.
        name: String,
        /// Its kind.
        kind: TargetKind,
        /// The option.
        option: &'static str,
    },
    /// An option has an invalid value.
    #[error("target {name}: {what} is {value}, but {allowed}")]
    InvalidOption {
        /// Name of the new target.
        name: String,
        /// The option.
        what: &'static str,
        /// Its value.
        value: String,
        /// Allowed values.
        allowed: String,
    },
    /// The table has the maximum number of targets.
    #[error("drive {drive} has {targets} targets, the maximum: {name} cannot be created")]
    TooManyTargets {
        /// Serial number of the drive.
        drive: String,
        /// Name of the new target.
        name: String,
        /// Number of existing targets.
        targets: usize,
    },
    /// All chunks of the units are bad, reserved or orphaned.
    #[error(
        "target {name} would own no chunks: no chunk of parallel units {pus} of drive {drive} is \
             free"
    )]
    NoFreeChunks {
        /// Serial number of the drive.
        drive: String,
        /// Name of the new target.
        name: String,
        /// Its units.
        pus: String,
    },
    /// A rate for a target that allocates all its chunks at once, and could not be opened with it.
    #[error(
        "target {name} of drive {drive} would be of kind {kind}, which allocates all its chunks on \
         first open, and have a rate: only a ppa takes --chunks-per-second"
    )]
    RateOfFixedChunks {
        /// Serial number of the drive.
        drive: String,
        /// Name of the target.
        name: String,
        /// Its kind.
        kind: TargetKind,
    },
    /// A target that allocates all its chunks at once has no chunk limit.
    #[error(
        "target {name} of drive {drive} shares its parallel units and is of kind {kind}: it \
         allocates all its chunks on first open, so create it with --max-chunks and without \
         --chunks-per-second"
    )]
    MissingChunkLimit {
        /// Serial number of the drive.
        drive: String,
        /// Name of the target.
        name: String,
        /// Its kind.
        kind: TargetKind,
    },
    /// There are too few free chunks for a target.
    #[error(
        "target {name} of drive {drive} needs {wanted} more chunks of parallel units {pus}, but only \
         {free} are free; other targets on these units: {others}"
    )]
    TooFewChunks {
        /// Serial number of the drive.
        drive: String,
        /// Name of the target.
        name: String,
        /// Its units.
        pus: String,
        /// Number of chunks that it lacks.
        wanted: u32,
        /// Number of chunks without owner.
        free: u32,
        /// Targets that share these units, as text.
        others: String,
    },
    /// The target has all its chunks already, and computes its capacity from them.
    #[error(
        "target {name} of drive {drive} is of kind {kind} and has its {chunks} chunks, which decide \
         its capacity: its limits can change only before it is first opened"
    )]
    FixedChunks {
        /// Serial number of the drive.
        drive: String,
        /// Name of the target.
        name: String,
        /// Its kind.
        kind: TargetKind,
        /// Number of its chunks, bad ones included.
        chunks: u32,
    },
    /// The targets that share parallel units could own more chunks than there are.
    #[error(
        "target {name} of drive {drive} cannot have a limit of {wanted} chunks: the limits of other \
         targets add up to {others}, and parallel units {pus} have {chunks} good chunks"
    )]
    LimitBeyondDrive {
        /// Serial number of the drive.
        drive: String,
        /// Name of the target.
        name: String,
        /// The limit in chunks.
        wanted: u32,
        /// Sum of the limits of the other targets that share units; without a limit, the number of
        /// chunks that the target owns.
        others: u64,
        /// The parallel units.
        pus: String,
        /// Number of their chunks that are neither bad nor the partition table's.
        chunks: u64,
    },
    /// The target is open.
    #[error(
        "target {name} of drive {drive} cannot be removed: it is open {opens} times in this \
             process"
    )]
    InUse {
        /// Serial number of the drive.
        drive: String,
        /// Name of the target.
        name: String,
        /// How many times it is open.
        opens: u32,
    },
    /// The drive was opened read-only.
    #[error("drive {drive} was opened read-only: its partition table cannot be changed")]
    ReadOnly {
        /// Serial number of the drive.
        drive: String,
    },
    /// A chunk cannot be released.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The journal of the table accepts no writes. Changes since its last write may be lost.
    #[error("the partition table of drive {drive} cannot be written: {source}")]
    Journal {
        /// Serial number of the drive.
        drive: String,
        /// Cause.
        #[source]
        source: JournalError,
    },
    /// The drive failed a command.
    #[error("drive {drive}: {command} at {address} failed: {status}")]
    Command {
        /// Serial number of the drive.
        drive: String,
        /// Name of the command.
        command: &'static str,
        /// Its address.
        address: Address,
        /// Status of the command.
        status: Status,
    },
    /// The drive did not complete commands. The change in progress may or may not be durable.
    #[error("drive {drive}: {outstanding} commands did not complete within {polls} polls")]
    Timeout {
        /// Serial number of the drive.
        drive: String,
        /// Number of outstanding commands.
        outstanding: u16,
        /// Number of polls without a completion.
        polls: u64,
    },
    /// Memory for the drive cannot be provided.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl MediaManagerError {
    /// Returns whether the request was invalid, as opposed to a failure of the drive or its
    /// contents.
    pub fn is_usage_error(&self) -> bool {
        matches!(
            self,
            MediaManagerError::NotOpenChannel { .. }
                | MediaManagerError::Blank { .. }
                | MediaManagerError::InvalidName { .. }
                | MediaManagerError::TargetExists { .. }
                | MediaManagerError::UnknownTarget { .. }
                | MediaManagerError::PuOverlap { .. }
                | MediaManagerError::NoSuchUnits { .. }
                | MediaManagerError::NoSuchOption { .. }
                | MediaManagerError::InvalidOption { .. }
                | MediaManagerError::TooManyTargets { .. }
                | MediaManagerError::NoFreeChunks { .. }
                | MediaManagerError::RateOfFixedChunks { .. }
                | MediaManagerError::MissingChunkLimit { .. }
                | MediaManagerError::TooFewChunks { .. }
                | MediaManagerError::InUse { .. }
                | MediaManagerError::FixedChunks { .. }
                | MediaManagerError::LimitBeyondDrive { .. }
        )
    }
}
