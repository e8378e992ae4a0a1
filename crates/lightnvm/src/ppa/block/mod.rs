//! [`VirtualBlock`]: an append-only run of chunks over any parallel units (what liblightnvm calls
//! `nvm_vblk`; LightNVM paper sections 3.1 and 5.5).
//!
//! | file | noun |
//! |---|---|
//! | `append` | the write cursor: append, pad |
//! | `read` | sectors anywhere, and the read cursor |
//! | `open` | found again after a restart or a power cut |
//! | `repair` | erase; a chunk that failed, replaced |
//! | `copy` | one block to the end of another |
//! | `slots` | write units in memory |
//! | [`error`](BlockError) | what goes wrong |
//!
//! # Layout
//!
//! The block's sectors go over its chunks in *units* of `ws_opt`, in the order of the chunks given;
//! a unit of every chunk is a *row*:
//!
//! ```text
//! chunk:   0      1      2
//! row 0    unit 0 unit 1 unit 2        sector s is in unit s / ws_opt,
//! row 1    unit 3 unit 4 unit 5        unit u is in chunk u mod 3, row u / 3
//! ```
//!
//! Nothing else is kept on the drive: the write pointers of the chunks say where the block ends.
//! Whoever owns the block remembers [`chunks`](VirtualBlock::chunks), in their order.
//!
//! # What is in memory
//!
//! A unit that is not full yet, and every unit that the drive has but cannot return before its paired
//! pages are written (`mw_cunits`), so that **everything appended can be read at any time**:
//! `ceil(mw_cunits / ws_opt) + 2` rows of registered memory, the buffer of the paper's section 4.2.1.
//! What the drive can return is read from the drive. After [`open`](VirtualBlock::open) the memory is
//! gone, and such sectors are [refused](BlockError::NotYetReadable) until more is appended or the
//! block is padded.
//!
//! # When a program fails
//!
//! [`append`](VirtualBlock::append) says which sectors are not on the drive
//! ([`BlockError::Unwritten`]); the block keeps them in memory and takes no more.
//! [`replace`](VirtualBlock::replace) moves what the failed chunk holds to a fresh one, writes what is
//! missing, and the block goes on. The owner records the new list of chunks before it relies on
//! what is appended after that.

mod append;
mod copy;
mod error;
mod open;
mod read;
mod repair;
#[cfg(test)]
mod tests;
mod unit_buffers;

use std::collections::VecDeque;
use std::ops::Range;

use nvme::{Address, ChunkState, Ppa, Status};

pub use copy::CopyReport;
pub use error::{BlockError, FailedChunk, UncorrectableSectors, UnwrittenSectors};
pub use open::RecoveryReport;
pub use read::BlockReader;
use unit_buffers::UnitBuffers;

use super::{BlockingSession, FreeChunks, PpaSpace, RequestId};
use crate::{ChunkInfo, OpenChannelSsd};

/// How far a block is padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadMode {
    /// To the end of the write unit: everything appended is on the drive, and survives a power cut.
    Unit,
    /// Until everything appended can be read from the drive: also by who opens the block anew.
    Readable,
    /// To the end of the block: its chunks are closed.
    End,
}

/// What a block has done since it was created or opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockStats {
    /// Sectors appended.
    pub appended: u64,
    /// Sectors of padding.
    pub padded: u64,
    /// Sectors read from the drive.
    pub read: u64,
    /// Sectors read from memory, since the drive could not return them.
    pub read_from_memory: u64,
    /// Sectors that could not be read.
    pub uncorrectable: u64,
    /// Write units that failed.
    pub failed_units: u64,
    /// Chunks replaced.
    pub replaced: u64,
    /// Sectors moved from failed chunks to their replacements.
    pub relocated: u64,
    /// Chunks erased.
    pub erased: u64,
}

/// A chunk of the block.
#[derive(Clone, Copy, Debug)]
struct BlockChunk {
    first: Address,
    /// Sectors on the drive, from its start.
    sectors_written: u32,
    /// The drive writes no more of it, so that what it has can be read.
    closed: bool,
    /// How its first write that failed ended.
    failure: Option<Status>,
}

impl BlockChunk {
    fn new(first: Address) -> BlockChunk {
        BlockChunk { first, sectors_written: 0, closed: false, failure: None }
    }
}

/// A unit on its way to the drive.
#[derive(Clone, Copy, Debug)]
struct InFlightUnit {
    request: RequestId,
    unit: u64,
}

/// An append-only run of chunks.
#[derive(Debug)]
pub struct VirtualBlock {
    space: PpaSpace,
    members: Vec<BlockChunk>,
    /// Sectors of a unit.
    unit_sectors: u32,
    /// Rows that must follow before a unit can be read.
    pair_rows: u64,
    unit_buffers: UnitBuffers,
    /// Units handed to the drive: the next one is being filled.
    units_submitted: u64,
    /// Sectors in the next one.
    tail_sectors: u32,
    /// Units on their way, in the order in which they went.
    in_flight: VecDeque<InFlightUnit>,
    sealed: bool,
    /// Sectors that were found torn: the drive says so, whether or not they have a pair.
    torn: Vec<Range<u64>>,
    read_cursor: u64,
    /// Addresses of the command at hand.
    ppas: Vec<Ppa>,
    stats: BlockStats,
}

/// Adds a range to ascending ranges, to the last of them if it begins where that ends.
fn merge(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        _ if next.is_empty() => {}
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

impl VirtualBlock {
    /// A block of free chunks, by the addresses of their first sectors and in this order.
    ///
    /// # Errors
    /// [`BlockError::NoChunks`], [`BlockError::DuplicateChunk`], [`BlockError::NotFree`],
    /// [`BlockError::ShortChunk`], [`BlockError::TooManyOpen`], and those of the drive.
    pub fn create(
        ssd: &mut OpenChannelSsd,
        io: &mut BlockingSession<'_>,
        chunks: &[Address],
    ) -> Result<VirtualBlock, BlockError> {
        let infos = VirtualBlock::query_chunks(ssd, io, chunks)?;
        if let Some(used) = infos.iter().find(|c| c.state != ChunkState::Free) {
            return Err(BlockError::NotFree { chunk: used.address, state: used.state });
        }
        let members = infos.iter().map(|c| BlockChunk::new(c.address)).collect();
        Ok(VirtualBlock::new(*io.space(), members))
    }

    /// A block of `count` free chunks, of lowest wear each and striped over the parallel units of
    /// `free`.
    ///
    /// # Errors
    /// [`BlockError::NoFreeChunks`], and those of [`create`](VirtualBlock::create).
    pub fn allocate(
        ssd: &mut OpenChannelSsd,
        io: &mut BlockingSession<'_>,
        free: &mut FreeChunks,
        count: usize,
    ) -> Result<VirtualBlock, BlockError> {
        let none = BlockError::NoFreeChunks { wanted: count, free: free.len() };
        let chunks = free.pop_many(count).ok_or(none)?;
        VirtualBlock::create(ssd, io, &chunks)
    }

    /// What the drive says of chunks that can be a block's.
    fn query_chunks(
        ssd: &mut OpenChannelSsd,
        io: &mut BlockingSession<'_>,
        chunks: &[Address],
    ) -> Result<Vec<ChunkInfo>, BlockError> {
        if chunks.is_empty() {
            return Err(BlockError::NoChunks);
        }
        if ssd.space() != *io.space() {
            return Err(BlockError::OtherDrive);
        }
        let limit = io.session().max_open_chunks();
        if limit > 0 && chunks.len() > limit as usize {
            return Err(BlockError::TooManyOpen { chunks: chunks.len(), limit });
        }
        let space = ssd.space();
        let mut firsts = chunks.iter().map(|c| space.chunk(*c)).collect::<Result<Vec<_>, _>>()?;
        let whole = space.geometry().sectors;
        let mut infos = Vec::with_capacity(firsts.len());
        for first in &firsts {
            let info = ssd.chunk(*first, io.pump())?;
            if info.sectors != whole {
                let (chunk, sectors) = (info.address, info.sectors);
                return Err(BlockError::ShortChunk { chunk, sectors, expected: whole });
            }
            infos.push(info);
        }
        firsts.sort_unstable();
        match firsts.windows(2).find(|w| w[0] == w[1]) {
            Some(twice) => Err(BlockError::DuplicateChunk { chunk: twice[0] }),
            None => Ok(infos),
        }
    }

    fn new(space: PpaSpace, members: Vec<BlockChunk>) -> VirtualBlock {
        let g = space.geometry();
        let unit_sectors = g.ws_opt;
        // A full chunk can be read, whatever a drive says.
        let pair_rows = u64::from(g.mw_cunits.div_ceil(unit_sectors).min(g.sectors / unit_sectors));
        // Two rows more, so that every chunk can have a write under way and another one filled.
        let unit_buffers = UnitBuffers::new(members.len() * (pair_rows as usize + 2));
        VirtualBlock {
            space,
            members,
            unit_sectors,
            pair_rows,
            unit_buffers,
            units_submitted: 0,
            tail_sectors: 0,
            in_flight: VecDeque::new(),
            sealed: false,
            torn: Vec::new(),
            read_cursor: 0,
            ppas: Vec::new(),
            stats: BlockStats::default(),
        }
    }

    fn width(&self) -> u64 {
        self.members.len() as u64
    }

    fn unit_sectors(&self) -> u64 {
        self.unit_sectors.into()
    }

    /// Units of the block.
    fn total_units(&self) -> u64 {
        self.width() * u64::from(self.space.geometry().sectors / self.unit_sectors)
    }

    /// The chunk that a unit is in, by its place, and its first sector there.
    fn locate_unit(&self, unit: u64) -> (usize, u32) {
        let (row, index) = (unit / self.width(), unit % self.width());
        (index as usize, row as u32 * self.unit_sectors)
    }

    /// Units of a chunk among the first `units` of the block.
    fn rows_of(&self, index: usize, units: u64) -> u64 {
        (units + self.width() - 1 - index as u64) / self.width()
    }

    /// Sectors of the block that a chunk's sectors from `from` to `to`, of one unit, are.
    fn sectors_of(&self, index: usize, from: u32, to: u32) -> Range<u64> {
        let unit = u64::from(from / self.unit_sectors) * self.width() + index as u64;
        let start = unit * self.unit_sectors() + u64::from(from % self.unit_sectors);
        start..start + u64::from(to - from)
    }

    /// Whether the drive can return a sector of a chunk.
    fn is_readable(&self, index: usize, sector: u32) -> bool {
        let (m, g) = (&self.members[index], self.space.geometry());
        let whole = m.closed || m.sectors_written == g.sectors;
        sector < m.sectors_written
            && (whole || u64::from(sector) + u64::from(g.mw_cunits) < m.sectors_written.into())
    }

    /// Whether the drive can return all of a unit.
    fn is_unit_readable(&self, unit: u64) -> bool {
        let (index, first) = self.locate_unit(unit);
        self.is_readable(index, first + self.unit_sectors - 1)
    }

    /// Sectors appended, padding included: where the next one goes.
    pub fn len(&self) -> u64 {
        self.units_submitted * self.unit_sectors() + u64::from(self.tail_sectors)
    }

    /// Whether nothing has been appended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sectors that fit.
    pub fn capacity(&self) -> u64 {
        self.total_units() * self.unit_sectors()
    }

    /// Sectors that can still be appended.
    pub fn remaining_sectors(&self) -> u64 {
        if self.sealed { 0 } else { self.capacity() - self.len() }
    }

    /// Sectors from the start that are on the drive in whole units, and survive a power cut.
    pub fn durable(&self) -> u64 {
        let on_drive = self.units_submitted * self.unit_sectors();
        // Half of a unit is not found again.
        let whole = |r: &Range<u64>| r.start / self.unit_sectors() * self.unit_sectors();
        self.unwritten_ranges().first().map_or(on_drive, whole)
    }

    /// Its chunks, in their order: what its owner remembers to open it again.
    pub fn chunks(&self) -> Vec<Address> {
        self.members.iter().map(|m| m.first).collect()
    }

    /// The chunks that take no more writes because one has failed.
    pub fn failed_chunks(&self) -> Vec<FailedChunk> {
        let failed = |(index, m): (usize, &BlockChunk)| {
            m.failure.map(|status| FailedChunk { index, chunk: m.first, status })
        };
        self.members.iter().enumerate().filter_map(failed).collect()
    }

    /// Whether it was found not closed in order, so that it cannot be written before it is erased.
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// The drive's address space.
    pub fn space(&self) -> &PpaSpace {
        &self.space
    }

    /// What it has done.
    pub fn stats(&self) -> &BlockStats {
        &self.stats
    }

    /// Where a sector of the block is, written or not.
    ///
    /// # Errors
    /// [`BlockError::PastEnd`] for a sector past its capacity.
    pub fn address(&self, sector: u64) -> Result<Address, BlockError> {
        if sector >= self.capacity() {
            let len = self.capacity();
            return Err(BlockError::PastEnd { first: sector, count: 1, len });
        }
        let (index, first) = self.locate_unit(sector / self.unit_sectors());
        let sector = first + (sector % self.unit_sectors()) as u32;
        Ok(Address { sector, ..self.members[index].first })
    }

    /// Sectors that were taken and are not on the drive, in ascending ranges; those of the unit that
    /// is not full yet aside.
    fn unwritten_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        for (index, m) in self.members.iter().enumerate() {
            let rows = self.rows_of(index, self.units_submitted) as u32;
            let mut from = m.sectors_written;
            while from < rows * self.unit_sectors {
                let end = (from / self.unit_sectors + 1) * self.unit_sectors;
                ranges.push(self.sectors_of(index, from, end));
                from = end;
            }
        }
        ranges.sort_unstable_by_key(|r| r.start);
        let mut merged = Vec::new();
        ranges.into_iter().for_each(|r| merge(&mut merged, r));
        merged
    }
}
