//! [`VirtualBlock`]: an append-only sequence of sectors over chunks of any parallel units
//! (`nvm_vblk` of liblightnvm; [LightNVM17 §3.1, §5.5]).
//!
//! # Layout
//!
//! The block's sectors are striped over its chunks in *units* of `ws_opt` sectors, in the order in
//! which the chunks were given. A *row* consists of one unit of every chunk:
//!
//! ```text
//! chunk:   0      1      2
//! row 0    unit 0 unit 1 unit 2        sector s is in unit s / ws_opt,
//! row 1    unit 3 unit 4 unit 5        unit u is in chunk u mod 3, row u / 3
//! ```
//!
//! No metadata is stored on the drive: the end of the block follows from the write pointers of the
//! chunks. The owner of the block stores [`chunks`](VirtualBlock::chunks), in order.
//!
//! # Data in memory
//!
//! **All appended sectors can be read at any time.** To this end the block keeps in memory the unit
//! being filled, and every unit that is on the drive but not readable until its paired pages are
//! written (`mw_cunits`). The memory is a registered buffer of `ceil(mw_cunits / ws_opt) + 2` rows,
//! as in [LightNVM17 §4.2.1].
//!
//! Readable units are read from the drive. After [`open`](VirtualBlock::open) the buffer is empty;
//! sectors that are not readable then [are rejected](VirtualBlockError::NotYetReadable) until more is
//! appended or the block is padded.
//!
//! # Program failures
//!
//! [`append`](VirtualBlock::append) reports the sectors that are not on the drive
//! ([`VirtualBlockError::Unwritten`]). The block keeps them in memory and accepts no writes.
//! [`replace`](VirtualBlock::replace) copies the failed chunk's data to a new chunk and writes the
//! missing sectors; then the block is writable again. The owner must store the new list of chunks
//! before it relies on data appended afterwards.

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

use copy::BlockCopy;
pub use copy::CopyReport;
pub use error::{FailedChunk, UncorrectableSectors, UnwrittenSectors, VirtualBlockError};
pub use open::RecoveryReport;
pub use read::BlockReader;
use repair::ChunkReplacement;
use unit_buffers::UnitBuffers;

use super::{BlockingSession, FreeChunkPool, PpaSpace, RequestId};
use crate::{OpenChannelSsd, ReportedChunk};

/// Extent of padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadMode {
    /// To the end of the write unit: everything appended is on the drive and survives a power cut.
    Unit,
    /// Until everything appended is readable from the drive, also after the block is reopened.
    Readable,
    /// To the end of the block: all chunks are closed.
    End,
}

/// Counters of a block since it was created or opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockStats {
    /// Sectors appended.
    pub appended: u64,
    /// Sectors of padding.
    pub padded: u64,
    /// Sectors read from the drive.
    pub read: u64,
    /// Sectors read from memory, because they were not readable from the drive.
    pub read_from_memory: u64,
    /// Sectors that could not be read.
    pub uncorrectable: u64,
    /// Write units that failed.
    pub failed_units: u64,
    /// Chunks replaced.
    pub replaced: u64,
    /// Sectors relocated from failed chunks to their replacements.
    pub relocated: u64,
    /// Chunks erased.
    pub erased: u64,
}

/// A chunk of the block.
#[derive(Clone, Copy, Debug)]
struct BlockChunk {
    first: Address,
    /// Number of sectors on the drive, from the chunk's start.
    sectors_written: u32,
    /// Whether the chunk is closed, so that all its written sectors are readable.
    closed: bool,
    /// Status of the first failed write, if any.
    failure: Option<Status>,
}

impl BlockChunk {
    fn new(first: Address) -> BlockChunk {
        BlockChunk { first, sectors_written: 0, closed: false, failure: None }
    }
}

/// A unit whose write is in flight.
#[derive(Clone, Copy, Debug)]
struct InFlightUnit {
    request: RequestId,
    unit: u64,
}

/// An append-only sequence of sectors over several chunks.
#[derive(Debug)]
pub struct VirtualBlock {
    space: PpaSpace,
    members: Vec<BlockChunk>,
    /// Sectors per unit.
    unit_sectors: u32,
    /// Number of rows after which a unit becomes readable.
    pair_rows: u64,
    unit_buffers: UnitBuffers,
    /// Number of units submitted; the next unit is being filled.
    units_submitted: u64,
    /// Sectors in the unit being filled.
    tail_sectors: u32,
    /// Units in flight, in order of submission.
    in_flight: VecDeque<InFlightUnit>,
    sealed: bool,
    /// Sectors that were found torn: reading them fails even once their paired pages are written.
    torn: Vec<Range<u64>>,
    read_cursor: u64,
    /// Addresses of the current command.
    ppas: Vec<Ppa>,
    stats: BlockStats,
}

/// Appends a range to ascending ranges; merges it with the last one if they are adjacent.
fn merge(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        _ if next.is_empty() => {}
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

impl VirtualBlock {
    /// Creates a block of free chunks, given by the addresses of their first sectors, in this
    /// order.
    ///
    /// # Errors
    /// [`VirtualBlockError::NoChunks`], [`VirtualBlockError::DuplicateChunk`], [`VirtualBlockError::NotFree`],
    /// [`VirtualBlockError::ShortChunk`], [`VirtualBlockError::TooManyOpen`], and those of the drive.
    pub fn create(
        ssd: &mut OpenChannelSsd,
        io: &mut BlockingSession<'_>,
        chunks: &[Address],
    ) -> Result<VirtualBlock, VirtualBlockError> {
        let infos = VirtualBlock::query_chunks(ssd, io, chunks)?;
        if let Some(used) = infos.iter().find(|c| c.state != ChunkState::Free) {
            return Err(VirtualBlockError::NotFree { chunk: used.address, state: used.state });
        }
        let members = infos.iter().map(|c| BlockChunk::new(c.address)).collect();
        Ok(VirtualBlock::new(*io.space(), members))
    }

    /// Creates a block of `count` free chunks: the least worn ones, striped over the parallel units
    /// of `free`.
    ///
    /// # Errors
    /// [`VirtualBlockError::NoFreeChunks`], and those of [`create`](VirtualBlock::create).
    pub fn allocate(
        ssd: &mut OpenChannelSsd,
        io: &mut BlockingSession<'_>,
        free: &mut FreeChunkPool,
        count: usize,
    ) -> Result<VirtualBlock, VirtualBlockError> {
        let none = VirtualBlockError::NoFreeChunks { wanted: count, free: free.len() };
        let chunks = free.pop_many(count).ok_or(none)?;
        VirtualBlock::create(ssd, io, &chunks)
    }

    /// Returns the chunk information of the chunks of a block, after checking the list.
    fn query_chunks(
        ssd: &mut OpenChannelSsd,
        io: &mut BlockingSession<'_>,
        chunks: &[Address],
    ) -> Result<Vec<ReportedChunk>, VirtualBlockError> {
        if chunks.is_empty() {
            return Err(VirtualBlockError::NoChunks);
        }
        if ssd.space() != *io.space() {
            return Err(VirtualBlockError::OtherDrive);
        }
        let limit = io.session().max_open_chunks();
        if limit > 0 && chunks.len() > limit as usize {
            return Err(VirtualBlockError::TooManyOpen { chunks: chunks.len(), limit });
        }
        let space = ssd.space();
        let mut firsts = chunks.iter().map(|c| space.chunk(*c)).collect::<Result<Vec<_>, _>>()?;
        let whole = space.geometry().sectors;
        let mut infos = Vec::with_capacity(firsts.len());
        for first in &firsts {
            let info = ssd.chunk(*first, io.progress())?;
            if info.sectors != whole {
                let (chunk, sectors) = (info.address, info.sectors);
                return Err(VirtualBlockError::ShortChunk { chunk, sectors, expected: whole });
            }
            infos.push(info);
        }
        firsts.sort_unstable();
        match firsts.windows(2).find(|w| w[0] == w[1]) {
            Some(twice) => Err(VirtualBlockError::DuplicateChunk { chunk: twice[0] }),
            None => Ok(infos),
        }
    }

    fn new(space: PpaSpace, members: Vec<BlockChunk>) -> VirtualBlock {
        let g = space.geometry();
        let unit_sectors = g.ws_opt;
        // A full chunk is readable, whatever `mw_cunits` the drive reports.
        let pair_rows = u64::from(g.mw_cunits.div_ceil(unit_sectors).min(g.sectors / unit_sectors));
        // Two more rows, so that each chunk can have one write in flight while another unit is
        // filled.
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

    /// Returns the number of units of the block.
    fn total_units(&self) -> u64 {
        self.width() * u64::from(self.space.geometry().sectors / self.unit_sectors)
    }

    /// Returns the chunk index of a unit, and the unit's first sector in that chunk.
    fn locate_unit(&self, unit: u64) -> (usize, u32) {
        let (row, index) = (unit / self.width(), unit % self.width());
        (index as usize, row as u32 * self.unit_sectors)
    }

    /// Returns the number of a chunk's units among the first `units` of the block.
    fn rows_of(&self, index: usize, units: u64) -> u64 {
        (units + self.width() - 1 - index as u64) / self.width()
    }

    /// Converts sectors `from` to `to` of a chunk, which are within one unit, to sectors of the
    /// block.
    fn sectors_of(&self, index: usize, from: u32, to: u32) -> Range<u64> {
        let unit = u64::from(from / self.unit_sectors) * self.width() + index as u64;
        let start = unit * self.unit_sectors() + u64::from(from % self.unit_sectors);
        start..start + u64::from(to - from)
    }

    /// Returns whether a sector of a chunk is readable from the drive.
    fn is_readable(&self, index: usize, sector: u32) -> bool {
        let (m, g) = (&self.members[index], self.space.geometry());
        let whole = m.closed || m.sectors_written == g.sectors;
        sector < m.sectors_written
            && (whole || u64::from(sector) + u64::from(g.mw_cunits) < m.sectors_written.into())
    }

    /// Returns whether a whole unit is readable from the drive.
    fn is_unit_readable(&self, unit: u64) -> bool {
        let (index, first) = self.locate_unit(unit);
        self.is_readable(index, first + self.unit_sectors - 1)
    }

    /// Returns whether a unit is readable from media once `units` of the block are written.
    fn is_readable_at(&self, unit: u64, units: u64) -> bool {
        let rows = self.rows_of(self.locate_unit(unit).0, units);
        let full = u64::from(self.space.geometry().sectors / self.unit_sectors);
        unit / self.width() + self.pair_rows < rows || rows == full
    }

    /// Returns the device addresses of a unit.
    fn unit_ppas(&self, unit: u64) -> Result<Vec<Ppa>, VirtualBlockError> {
        let (index, sector) = self.locate_unit(unit);
        let first = Address { sector, ..self.members[index].first };
        Ok(self.space.extent(first, self.unit_sectors)?.collect())
    }

    /// Returns the number of sectors appended, padding included, which is the index of the next
    /// one.
    pub fn len(&self) -> u64 {
        self.units_submitted * self.unit_sectors() + u64::from(self.tail_sectors)
    }

    /// Returns whether nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the capacity in sectors.
    pub fn capacity(&self) -> u64 {
        self.total_units() * self.unit_sectors()
    }

    /// Returns the number of sectors that can still be appended.
    pub fn remaining_sectors(&self) -> u64 {
        if self.sealed { 0 } else { self.capacity() - self.len() }
    }

    /// Returns the number of leading sectors that are on the drive in whole units and survive a
    /// power cut.
    pub fn durable(&self) -> u64 {
        let on_drive = self.units_submitted * self.unit_sectors();
        // A partly written unit is not recovered.
        let whole = |r: &Range<u64>| r.start / self.unit_sectors() * self.unit_sectors();
        self.unwritten_ranges().first().map_or(on_drive, whole)
    }

    /// Returns the chunks in order. The owner needs this list to reopen the block.
    pub fn chunks(&self) -> Vec<Address> {
        self.members.iter().map(|m| m.first).collect()
    }

    /// Returns the failed chunks, which accept no more writes.
    pub fn failed_chunks(&self) -> Vec<FailedChunk> {
        let failed = |(index, m): (usize, &BlockChunk)| {
            m.failure.map(|status| FailedChunk { index, chunk: m.first, status })
        };
        self.members.iter().enumerate().filter_map(failed).collect()
    }

    /// Returns whether the block was not closed cleanly, so that it must be erased before it can be
    /// written.
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// Returns the drive's address space.
    pub fn space(&self) -> &PpaSpace {
        &self.space
    }

    /// Returns the counters.
    pub fn stats(&self) -> &BlockStats {
        &self.stats
    }

    /// Returns the address of a sector of the block, written or not.
    ///
    /// # Errors
    /// [`VirtualBlockError::PastEnd`] for a sector beyond the capacity.
    pub fn address(&self, sector: u64) -> Result<Address, VirtualBlockError> {
        if sector >= self.capacity() {
            let len = self.capacity();
            return Err(VirtualBlockError::PastEnd { first: sector, count: 1, len });
        }
        let (index, first) = self.locate_unit(sector / self.unit_sectors());
        let sector = first + (sector % self.unit_sectors()) as u32;
        Ok(Address { sector, ..self.members[index].first })
    }

    /// Returns the sectors that were accepted but are not on the drive, in ascending ranges,
    /// without the unit being filled.
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

    /// Replaces the `index`-th chunk, failed or not, by a free chunk. Data on the old chunk is
    /// copied, and data that is only in memory is written. Returns the old chunk, which the block
    /// does not access any more.
    ///
    /// The block changes only after all data is on the new chunk. The owner then stores the new
    /// [`chunks`](VirtualBlock::chunks), and releases the old one afterwards.
    ///
    /// # Errors
    /// [`VirtualBlockError::NoSuchChunk`], [`VirtualBlockError::DuplicateChunk`], [`VirtualBlockError::NotFree`],
    /// [`VirtualBlockError::Sealed`]; [`VirtualBlockError::Uncorrectable`] and [`VirtualBlockError::DataLost`] if the
    /// old chunk's data is unavailable; [`VirtualBlockError::ReplacementFailed`] if the new chunk fails.
    /// The block is unchanged; the new chunk may have been written.
    pub fn replace(
        &mut self,
        ssd: &mut OpenChannelSsd,
        io: &mut BlockingSession<'_>,
        index: usize,
        with: Address,
    ) -> Result<Address, VirtualBlockError> {
        self.wait_all(io)?;
        if self.sealed {
            return Err(VirtualBlockError::Sealed { len: self.len() });
        }
        let chunks = self.members.len();
        let old =
            *self.members.get(index).ok_or(VirtualBlockError::NoSuchChunk { index, chunks })?;
        let info = VirtualBlock::query_chunks(ssd, io, &[with])?.remove(0);
        let with = info.address;
        if self.members.iter().any(|m| m.first == with) {
            return Err(VirtualBlockError::DuplicateChunk { chunk: with });
        }
        if info.state != ChunkState::Free {
            return Err(VirtualBlockError::NotFree { chunk: with, state: info.state });
        }
        ChunkReplacement { block: self, io, index, with }.run()?;
        self.stats.replaced += 1;
        Ok(old.first)
    }

    /// Appends all sectors of this block to `other`, out-of-band bytes included. Unreadable sectors
    /// do not stop the copy.
    ///
    /// # Errors
    /// - Nothing was copied: [`VirtualBlockError::Full`], [`VirtualBlockError::Sealed`],
    ///   [`VirtualBlockError::OtherDrive`], [`VirtualBlockError::NotYetReadable`].
    /// - A program failed on the target: [`VirtualBlockError::Unwritten`]. The target keeps the sectors
    ///   that it accepted and can be repaired; the others are not copied.
    pub fn copy_to(
        &mut self,
        io: &mut BlockingSession<'_>,
        other: &mut VirtualBlock,
    ) -> Result<CopyReport, VirtualBlockError> {
        if self.space != other.space || self.space != *io.space() {
            return Err(VirtualBlockError::OtherDrive);
        }
        self.wait_all(io)?;
        other.wait_all(io)?;
        other.check_writable(0)?;
        let early = self.not_yet_readable(0..self.len());
        if !early.is_empty() {
            return Err(VirtualBlockError::NotYetReadable(early));
        }
        if self.len() > other.remaining_sectors() {
            return Err(VirtualBlockError::Full {
                wanted: self.len(),
                remaining: other.remaining_sectors(),
            });
        }
        BlockCopy::new(self, other, io).run()
    }
}
