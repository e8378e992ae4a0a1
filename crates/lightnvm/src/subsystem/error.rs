//! [`MediaManagerError`]: why the subsystem refuses something; [`TableError`]: why bytes are no partition
//! table, or a change contradicts it. Where two parties are in each other's way both are named.

use ftl::journal::JournalError;
use nvme::{Address, Status};

use super::{ReleaseError, TargetKind};
use crate::vector::MemoryError;

/// Why a partition table cannot be read, or changed so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The bytes are something else.
    #[error("they do not begin as a partition table does")]
    NotATable,
    /// The table is of another version.
    #[error("it has version {found}, and this program reads {known}")]
    Version {
        /// Its version.
        found: u16,
        /// The version that is known.
        known: u16,
    },
    /// The table is damaged.
    #[error("it is damaged: its CRC is {found:#010x}, that of its bytes {computed:#010x}")]
    Checksum {
        /// The checksum that it has.
        found: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// The table ends too early, too late, or holds a number that it cannot.
    #[error("its {bytes} bytes are not those of a table")]
    Truncated {
        /// Its length.
        bytes: usize,
    },
    /// The table is of another drive.
    #[error("it is of another drive: its {what} are {found}, those of this drive {wanted}")]
    GeometryMismatch {
        /// The number.
        what: &'static str,
        /// What the table says.
        found: u64,
        /// What the drive says.
        wanted: u64,
    },
    /// A record cannot be read.
    #[error("record {record} after its snapshot is none ({bytes} bytes)")]
    Record {
        /// Its number, from 0.
        record: usize,
        /// Its length.
        bytes: usize,
    },
    /// Something contradicts something else.
    #[error("{what}")]
    Inconsistent {
        /// What contradicts what.
        what: String,
    },
    /// A report of another number of chunks.
    #[error("{given} chunks are reported of a drive that has {chunks}")]
    ReportLength {
        /// Descriptors given.
        given: usize,
        /// Chunks of the drive.
        chunks: usize,
    },
}

/// Why the subsystem refuses something. Unless it says otherwise nothing has changed, on the media or
/// off it.
#[derive(Debug, thiserror::Error)]
pub enum MediaManagerError {
    /// The drive manages its flash itself.
    #[error(
        "drive {drive} is not open-channel: it manages its own flash, and there is nothing to \
             share out"
    )]
    NotOpenChannel {
        /// The drive.
        drive: String,
    },
    /// The drive's shape has no place for a partition table.
    #[error("drive {drive} has no place for a partition table: {why}")]
    NoTableWindow {
        /// The drive.
        drive: String,
        /// Why.
        why: String,
    },
    /// The drive has no partition table.
    #[error("drive {drive} has no partition table: no target was ever made on it")]
    Blank {
        /// The drive.
        drive: String,
    },
    /// The drive has no partition table, but data.
    #[error(
        "drive {drive} has no partition table, but {chunks} chunks with data, the first at \
             {first}: it is in use without one; reset those chunks if they are not needed"
    )]
    NotBlank {
        /// The drive.
        drive: String,
        /// Chunks that are neither free nor bad.
        chunks: u32,
        /// The first of them.
        first: Address,
    },
    /// The chunks where a partition table would be hold something else.
    #[error("drive {drive} has something else where its partition table would be: {source}")]
    Foreign {
        /// The drive.
        drive: String,
        /// What was found.
        #[source]
        source: JournalError,
    },
    /// There was a partition table, and it cannot be read.
    #[error("the partition table of drive {drive}, on chunks {chunks}, is damaged: {source}")]
    TableDamaged {
        /// The drive.
        drive: String,
        /// Where the table is.
        chunks: String,
        /// What is wrong with it.
        #[source]
        source: TableError,
    },
    /// There was a partition table, and none of it, or not all, is left.
    #[error("the partition table of drive {drive}, on chunks {chunks}, is lost: {why}")]
    TableLost {
        /// The drive.
        drive: String,
        /// Where the table is.
        chunks: String,
        /// What is missing.
        why: String,
    },
    /// A text that is no name.
    #[error(
        "`{name}` cannot be the name of a target: 1 to 32 letters, digits, `-`, `_` and `.`, \
             the first a letter or digit"
    )]
    InvalidName {
        /// The text.
        name: String,
    },
    /// The name is taken.
    #[error("drive {drive} has a target {name} already ({kind} on parallel units {pus})")]
    TargetExists {
        /// The drive.
        drive: String,
        /// The name.
        name: String,
        /// What has it.
        kind: TargetKind,
        /// Its parallel units.
        pus: String,
    },
    /// There is no such target.
    #[error("drive {drive} has no target {name}; it has {known}")]
    UnknownTarget {
        /// The drive.
        drive: String,
        /// The name asked for.
        name: String,
        /// The names there are, for people.
        known: String,
    },
    /// Two targets want the same parallel units.
    #[error("target {new} cannot have parallel units {common} of drive {drive}: target {other} has \
             them{}", if *.exclusive { ", and does not share" } else { ", and shares them only with \
             targets that share" })]
    PuOverlap {
        /// The drive.
        drive: String,
        /// The target to be made.
        new: String,
        /// The target that is there.
        other: String,
        /// The units of both.
        common: String,
        /// Whether the one that is there has its units for itself.
        exclusive: bool,
    },
    /// Parallel units that the drive does not have.
    #[error("target {name} cannot have parallel units {pus}: drive {drive} has 0-{last}")]
    NoSuchUnits {
        /// The drive.
        drive: String,
        /// The target to be made.
        name: String,
        /// The units asked for.
        pus: String,
        /// The last unit of the drive.
        last: u32,
    },
    /// An option that means nothing to this target.
    #[error("target {name} is of kind {kind}, which takes no {option}")]
    NoSuchOption {
        /// The target to be made.
        name: String,
        /// Its kind.
        kind: TargetKind,
        /// The option.
        option: &'static str,
    },
    /// An option with a value that it cannot have.
    #[error("target {name}: {what} is {value}, but {allowed}")]
    InvalidOption {
        /// The target to be made.
        name: String,
        /// The option.
        what: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// More targets than a table holds.
    #[error("drive {drive} has {targets} targets: there is no room for {name}")]
    TooManyTargets {
        /// The drive.
        drive: String,
        /// The target to be made.
        name: String,
        /// Targets that there are.
        targets: usize,
    },
    /// All chunks of the units are bad, reserved or strays.
    #[error(
        "target {name} would own nothing: no chunk of parallel units {pus} of drive {drive} is \
             free"
    )]
    NoFreeChunks {
        /// The drive.
        drive: String,
        /// The target to be made.
        name: String,
        /// Its units.
        pus: String,
    },
    /// A target that takes all of its chunks at once was not told how many those are.
    #[error(
        "target {name} of drive {drive} shares its parallel units and is of kind {kind}: it takes all \
         of its chunks when it is first opened, and so needs --max-chunks when it is made, and no \
         --chunks-per-second"
    )]
    MissingChunkLimit {
        /// The drive.
        drive: String,
        /// The target.
        name: String,
        /// Its kind.
        kind: TargetKind,
    },
    /// There are not as many chunks left as a target is to have.
    #[error(
        "target {name} of drive {drive} is to have {wanted} more chunks of parallel units {pus}, but \
         {free} are left; others have the rest: {others}"
    )]
    TooFewChunks {
        /// The drive.
        drive: String,
        /// The target.
        name: String,
        /// Its units.
        pus: String,
        /// Chunks that it lacks.
        wanted: u32,
        /// Chunks that are nobody's.
        free: u32,
        /// Who shares these units, for people.
        others: String,
    },
    /// The target is open.
    #[error(
        "target {name} of drive {drive} cannot be removed: it is open {opens} times in this \
             process"
    )]
    InUse {
        /// The drive.
        drive: String,
        /// The target.
        name: String,
        /// How often it is open.
        opens: u32,
    },
    /// The drive was opened to be looked at only.
    #[error("drive {drive} was opened to be looked at: its partition table cannot be changed")]
    ReadOnly {
        /// The drive.
        drive: String,
    },
    /// A chunk cannot be given back.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The journal that holds the table takes nothing more. Changes made since it last did may be
    /// lost.
    #[error("the partition table of drive {drive} cannot be written: {source}")]
    Journal {
        /// The drive.
        drive: String,
        /// Why.
        #[source]
        source: JournalError,
    },
    /// The drive refused a command.
    #[error("drive {drive}: {command} at {address} failed: {status}")]
    Command {
        /// The drive.
        drive: String,
        /// The command.
        command: &'static str,
        /// Its address.
        address: Address,
        /// The drive's answer.
        status: Status,
    },
    /// The drive did not answer. What was being changed may be changed or not.
    #[error("drive {drive}: {outstanding} commands were not answered within {polls} polls")]
    Timeout {
        /// The drive.
        drive: String,
        /// Commands outstanding.
        outstanding: u16,
        /// How often the drive was polled in vain.
        polls: u64,
    },
    /// No memory that the drive may touch.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl MediaManagerError {
    /// Whether what was asked is wrong, rather than that something went wrong.
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
                | MediaManagerError::MissingChunkLimit { .. }
                | MediaManagerError::TooFewChunks { .. }
                | MediaManagerError::InUse { .. }
        )
    }
}
