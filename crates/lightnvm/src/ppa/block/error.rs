//! What goes wrong with a virtual block, in sectors of the block and addresses of the drive.

use std::ops::Range;

use nvme::{Address, ChunkState, Status};

use crate::OcssdError;
use crate::ppa::error::format_addresses;
use crate::ppa::{AddressError, BufferRangeError, PpaError, Rejected};
use crate::vector::MemoryError;

/// A chunk of a block that takes no more writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedChunk {
    /// Its place in the block.
    pub index: usize,
    /// Its first sector.
    pub chunk: Address,
    /// How the write ended that failed first, or what the drive said of it when it was opened.
    pub status: Status,
}

/// Sectors that were taken and are not on the drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwrittenSectors {
    /// The chunks that failed.
    pub chunks: Vec<FailedChunk>,
    /// Sectors of the block that are not on the drive, in ascending ranges. The block holds them in
    /// memory, where they can be read, and [`replace`](super::VirtualBlock::replace) writes them.
    pub missing: Vec<Range<u64>>,
    /// Sectors of this append that the block has taken. The rest is to be appended again.
    pub accepted: u64,
}

/// Sectors that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncorrectableSectors {
    /// Sectors of the block, in ascending ranges. All others of the call have been read.
    pub sectors: Vec<Range<u64>>,
    /// Where they are on the drive.
    pub addresses: Vec<Address>,
    /// How the first command that failed ended.
    pub status: Status,
}

/// `3-5, 9 and 2 more`
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

/// What goes wrong with a virtual block.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// A block of no chunks.
    #[error("a virtual block has at least one chunk")]
    NoChunks,
    /// More chunks than the drive lets be open at a time.
    #[error("a block of {chunks} chunks is written in all of them, but the drive has {limit} open")]
    TooManyOpen {
        /// Chunks given.
        chunks: usize,
        /// Open chunks at most.
        limit: u32,
    },
    /// A chunk is given twice.
    #[error("chunk {chunk} is in the block twice")]
    DuplicateChunk {
        /// Its first sector.
        chunk: Address,
    },
    /// A chunk is not free.
    #[error("chunk {chunk} is {state:?}, but a block begins with free chunks: erase it first")]
    NotFree {
        /// Its first sector.
        chunk: Address,
        /// Its state.
        state: ChunkState,
    },
    /// A chunk is smaller than the others.
    #[error("chunk {chunk} has {sectors} sectors, not the {expected} of the drive's geometry")]
    ShortChunk {
        /// Its first sector.
        chunk: Address,
        /// Sectors it has.
        sectors: u32,
        /// Sectors of the others.
        expected: u32,
    },
    /// Not enough free chunks.
    #[error("{wanted} free chunks are wanted, and there are {free}")]
    NoFreeChunks {
        /// Chunks wanted.
        wanted: usize,
        /// Chunks free.
        free: usize,
    },
    /// Bytes that are not whole sectors.
    #[error("{bytes} {what} bytes are not a multiple of {each}")]
    PartialSector {
        /// Data, or out-of-band.
        what: &'static str,
        /// Bytes given.
        bytes: usize,
        /// Bytes of a sector's part.
        each: u32,
    },
    /// Not as many out-of-band bytes as the data has sectors.
    #[error("{given} out-of-band bytes for {sectors} sectors, which have {each} each")]
    OobLength {
        /// Bytes given.
        given: usize,
        /// Sectors of the data.
        sectors: u64,
        /// Bytes of a sector.
        each: u32,
    },
    /// More than there is room for; nothing was taken.
    #[error("{wanted} sectors do not fit: {remaining} are left")]
    Full {
        /// Sectors to append.
        wanted: u64,
        /// Room.
        remaining: u64,
    },
    /// Past what is written.
    #[error("sectors {first}..+{count} of a block of {len}")]
    PastEnd {
        /// First sector.
        first: u64,
        /// Sectors.
        count: u64,
        /// Sectors written.
        len: u64,
    },
    /// A chunk has failed: the block takes no more until it is replaced or erased.
    #[error(
        "chunk {}: {}; replace it to go on: {} of the block's sectors are not on the drive ({})",
        format_chunks(&.0.chunks), first_status(&.0.chunks),
        .0.missing.iter().map(|r| r.end - r.start).sum::<u64>(), format_ranges(&.0.missing)
    )]
    Unwritten(UnwrittenSectors),
    /// The block was found with something written behind its end, or unreadable at it: it can be
    /// read, copied and erased, but not written.
    #[error("the block was not closed in order: read or copy its {len} sectors, and erase it")]
    Sealed {
        /// Sectors written.
        len: u64,
    },
    /// Sectors that cannot be read until more is written behind them, found by
    /// [`open`](super::VirtualBlock::open). [`pad`](super::VirtualBlock::pad) helps.
    #[error("sectors {} cannot be read before their paired pages are written: pad the block", format_ranges(.0))]
    NotYetReadable(Vec<Range<u64>>),
    /// Sectors that the drive cannot return.
    #[error("sectors {} at {}: {}", format_ranges(&.0.sectors), format_addresses(&.0.addresses), .0.status)]
    Uncorrectable(UncorrectableSectors),
    /// Chunks that could not be erased.
    #[error("chunks {} could not be erased: {}", format_chunks(.0), first_status(.0))]
    NotErased(Vec<FailedChunk>),
    /// No such chunk in the block.
    #[error("chunk {index} of a block of {chunks}")]
    NoSuchChunk {
        /// Its place.
        index: usize,
        /// Chunks of the block.
        chunks: usize,
    },
    /// Sectors that were to be written anew, and are neither on the drive nor in memory.
    #[error("sectors {} of the failed chunk are lost: erase the block", format_ranges(.0))]
    DataLost(Vec<Range<u64>>),
    /// The replacement failed, too; the block is as before.
    #[error("replacement {chunk} failed, too: {status}; try another")]
    ReplacementFailed {
        /// Its first sector.
        chunk: Address,
        /// How its write ended.
        status: Status,
    },
    /// Blocks with different write units or on different drives.
    #[error("the blocks are on drives of different geometry")]
    OtherDrive,
    /// A vector failed otherwise.
    #[error(transparent)]
    Ppa(#[from] PpaError),
}

impl From<OcssdError> for BlockError {
    fn from(error: OcssdError) -> BlockError {
        BlockError::Ppa(error.into())
    }
}

impl From<AddressError> for BlockError {
    fn from(error: AddressError) -> BlockError {
        BlockError::Ppa(error.into())
    }
}

impl From<Rejected> for BlockError {
    fn from(error: Rejected) -> BlockError {
        BlockError::Ppa(error.into())
    }
}

impl From<MemoryError> for BlockError {
    fn from(error: MemoryError) -> BlockError {
        BlockError::Ppa(error.into())
    }
}

impl From<BufferRangeError> for BlockError {
    fn from(error: BufferRangeError) -> BlockError {
        BlockError::Ppa(error.into())
    }
}
