//! Errors of a virtual block, in sectors of the block and addresses of the drive.

use std::ops::Range;

use nvme::{Address, ChunkState, Status};

use crate::OcssdError;
use crate::ppa::error::format_addresses;
use crate::ppa::{AddressError, BufferRangeError, PpaError, Rejected};
use crate::vector::MemoryError;

/// A chunk of a block that accepts no more writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedChunk {
    /// Index of the chunk in the block.
    pub index: usize,
    /// First sector of the chunk.
    pub chunk: Address,
    /// Status of the first failed write, or the state that the drive reported when the block was
    /// opened.
    pub status: Status,
}

/// Sectors that were accepted but are not on the drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwrittenSectors {
    /// The failed chunks.
    pub chunks: Vec<FailedChunk>,
    /// Sectors of the block that are not on the drive, in ascending ranges. The block keeps them in
    /// memory, where they are readable; [`replace`](super::VirtualBlock::replace) writes them.
    pub missing: Vec<Range<u64>>,
    /// Number of sectors of this append that the block accepted. The caller appends the others
    /// again.
    pub accepted: u64,
}

/// Sectors that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncorrectableSectors {
    /// Sectors of the block, in ascending ranges. All other sectors of the call were read.
    pub sectors: Vec<Range<u64>>,
    /// Their addresses on the drive.
    pub addresses: Vec<Address>,
    /// Status of the first failed command.
    pub status: Status,
}

/// Formats ranges, as in `3-5, 9 and 2 more`.
fn format_ranges(ranges: &[Range<u64>]) -> String {
    let one = |r: &Range<u64>| match r.end - r.start {
        1 => r.start.to_string(),
        _ => format!("{}-{}", r.start, r.end - 1),
    };
    let named: Vec<String> = ranges.iter().take(4).map(one).collect();
    match ranges.len().saturating_sub(4) {
        0 => named.join(", "),
        more => format!("{} and {more} more ranges", named.join(", ")),
    }
}

fn format_chunks(failed: &[FailedChunk]) -> String {
    let addresses: Vec<Address> = failed.iter().map(|f| f.chunk).collect();
    format_addresses(&addresses)
}

fn first_status(failed: &[FailedChunk]) -> Status {
    failed.first().map_or(Status::SUCCESS, |f| f.status)
}

/// Errors of a virtual block.
#[derive(Debug, thiserror::Error)]
pub enum VirtualBlockError {
    /// The block has no chunks.
    #[error("a virtual block has at least one chunk")]
    NoChunks,
    /// The block has more chunks than the drive allows to be open.
    #[error("a block opens all its {chunks} chunks, but the drive allows {limit} open chunks")]
    TooManyOpen {
        /// Number of chunks.
        chunks: usize,
        /// Maximum number of open chunks.
        limit: u32,
    },
    /// A chunk occurs twice.
    #[error("chunk {chunk} is in the block twice")]
    DuplicateChunk {
        /// First sector of the chunk.
        chunk: Address,
    },
    /// A chunk is not free.
    #[error("chunk {chunk} is {state:?}, but a new block needs free chunks: erase it first")]
    NotFree {
        /// First sector of the chunk.
        chunk: Address,
        /// State of the chunk.
        state: ChunkState,
    },
    /// A chunk is smaller than the geometry says.
    #[error("chunk {chunk} has {sectors} sectors, not the {expected} of the drive's geometry")]
    ShortChunk {
        /// First sector of the chunk.
        chunk: Address,
        /// Sectors of the chunk.
        sectors: u32,
        /// Sectors according to the geometry.
        expected: u32,
    },
    /// There are too few free chunks.
    #[error("{wanted} free chunks are needed, but only {free} are available")]
    NoFreeChunks {
        /// Number of chunks requested.
        wanted: usize,
        /// Number of free chunks.
        free: usize,
    },
    /// The bytes are not whole sectors.
    #[error("{bytes} {what} bytes are not a multiple of {each}")]
    PartialSector {
        /// Data or out-of-band.
        what: &'static str,
        /// Number of bytes.
        bytes: usize,
        /// Bytes per sector.
        each: u32,
    },
    /// The out-of-band bytes do not match the number of sectors.
    #[error("{given} out-of-band bytes for {sectors} sectors, which have {each} each")]
    OobLength {
        /// Number of bytes.
        given: usize,
        /// Sectors of the data.
        sectors: u64,
        /// Out-of-band bytes per sector.
        each: u32,
    },
    /// The sectors exceed the remaining capacity; nothing was accepted.
    #[error("{wanted} sectors do not fit: {remaining} sectors remain")]
    Full {
        /// Number of sectors to append.
        wanted: u64,
        /// Remaining capacity in sectors.
        remaining: u64,
    },
    /// The range exceeds the sectors written.
    #[error("{count} sectors from {first} on exceed a block of {len}")]
    PastEnd {
        /// First sector.
        first: u64,
        /// Number of sectors.
        count: u64,
        /// Sectors written.
        len: u64,
    },
    /// A chunk has failed: the block accepts no writes until the chunk is replaced or the block is
    /// erased.
    #[error(
        "chunk {} failed: {}; {} of the block's sectors are not on the drive ({}): replace the chunk",
        format_chunks(&.0.chunks), first_status(&.0.chunks),
        .0.missing.iter().map(|r| r.end - r.start).sum::<u64>(), format_ranges(&.0.missing)
    )]
    Unwritten(UnwrittenSectors),
    /// When opened, the block had data after its end, or unreadable sectors at its end. It can be
    /// read, copied and erased, but not written.
    #[error("the block was not closed cleanly: read or copy its {len} sectors, and erase it")]
    Sealed {
        /// Sectors that are not readable until more is written after them, found by
        /// [`open`](super::VirtualBlock::open). [`pad`](super::VirtualBlock::pad) makes them
        /// readable.
        len: u64,
    },
    /// Sectors that are not readable until more is written after them, found by
    /// [`open`](super::VirtualBlock::open). [`pad`](super::VirtualBlock::pad) makes them readable.
    #[error("sectors {} are unreadable until their paired pages are written: pad the block", format_ranges(.0))]
    NotYetReadable(Vec<Range<u64>>),
    /// Sectors that the drive cannot read.
    #[error("sectors {} at {}: {}", format_ranges(&.0.sectors), format_addresses(&.0.addresses), .0.status)]
    Uncorrectable(UncorrectableSectors),
    /// Chunks that could not be erased.
    #[error("chunks {} could not be erased: {}", format_chunks(.0), first_status(.0))]
    NotErased(Vec<FailedChunk>),
    /// The block has no such chunk.
    #[error("chunk {index} does not exist: the block has {chunks} chunks")]
    NoSuchChunk {
        /// Index of the chunk.
        index: usize,
        /// Number of chunks of the block.
        chunks: usize,
    },
    /// Sectors that would have to be rewritten are neither on the drive nor in memory.
    #[error("sectors {} of the failed chunk are lost: erase the block", format_ranges(.0))]
    DataLost(Vec<Range<u64>>),
    /// The replacement chunk failed as well; the block is unchanged.
    #[error("replacement chunk {chunk} failed as well: {status}; try another one")]
    ReplacementFailed {
        /// First sector of the replacement.
        chunk: Address,
        /// Status of the failed write.
        status: Status,
    },
    /// The blocks have different write units or are on different drives.
    #[error("the blocks are on drives of different geometry")]
    OtherDrive,
    /// A vector failed for another reason.
    #[error(transparent)]
    Ppa(#[from] PpaError),
}

impl From<OcssdError> for VirtualBlockError {
    fn from(error: OcssdError) -> VirtualBlockError {
        VirtualBlockError::Ppa(error.into())
    }
}

impl From<AddressError> for VirtualBlockError {
    fn from(error: AddressError) -> VirtualBlockError {
        VirtualBlockError::Ppa(error.into())
    }
}

impl From<Rejected> for VirtualBlockError {
    fn from(error: Rejected) -> VirtualBlockError {
        VirtualBlockError::Ppa(error.into())
    }
}

impl From<MemoryError> for VirtualBlockError {
    fn from(error: MemoryError) -> VirtualBlockError {
        VirtualBlockError::Ppa(error.into())
    }
}

impl From<BufferRangeError> for VirtualBlockError {
    fn from(error: BufferRangeError) -> VirtualBlockError {
        VirtualBlockError::Ppa(error.into())
    }
}
