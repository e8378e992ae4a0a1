//! [`ChunkReplacement`]: replaces a failed chunk of a block.

use std::ops::Range;

use nvme::{Address, Status};

use super::{BlockChunk, VirtualBlock, VirtualBlockError, merge};
use crate::ppa::{BlockingSession, PpaError, VectorOptions};

/// Number of sectors relocated at a time.
const RELOCATE_BATCH_SECTORS: u32 = 1024;

/// The replacement of a block's chunk by a free one.
pub(super) struct ChunkReplacement<'a, 'p> {
    pub(super) block: &'a mut VirtualBlock,
    pub(super) io: &'a mut BlockingSession<'p>,
    /// Index of the old chunk.
    pub(super) index: usize,
    /// First sector of the new chunk.
    pub(super) with: Address,
}

impl ChunkReplacement<'_, '_> {
    /// Moves the data of the old chunk, and makes the new chunk a member.
    pub(super) fn run(mut self) -> Result<(), VirtualBlockError> {
        let rows = self.block.rows_of(self.index, self.block.units_submitted) as u32;
        let mut fresh = BlockChunk::new(self.with);
        let mut lost: Vec<Range<u64>> = Vec::new();
        let mut row = 0;
        while row < rows {
            let mut end = row;
            while end < rows
                && self.block.is_readable(self.index, (end + 1) * self.block.unit_sectors - 1)
            {
                end += 1;
            }
            if end > row {
                self.relocate_rows(row * self.block.unit_sectors..end * self.block.unit_sectors)?;
                self.block.stats.relocated += u64::from((end - row) * self.block.unit_sectors);
            } else {
                let unit = u64::from(row) * self.block.width() + self.index as u64;
                if !self.rewrite_unit(unit, row * self.block.unit_sectors)? {
                    lost.push(self.block.sectors_of(
                        self.index,
                        row * self.block.unit_sectors,
                        (row + 1) * self.block.unit_sectors,
                    ));
                    return Err(VirtualBlockError::DataLost(lost));
                }
                end += 1;
            }
            fresh.sectors_written = end * self.block.unit_sectors;
            row = end;
        }
        self.buffer_unpaired_rows(rows)?;
        self.block.members[self.index] = fresh;
        Ok(())
    }

    /// Reads the last rows of a chunk into memory if they are readable on the old chunk but not yet
    /// on the new one.
    fn buffer_unpaired_rows(&mut self, rows: u32) -> Result<(), VirtualBlockError> {
        if rows * self.block.unit_sectors == self.block.space.geometry().sectors {
            return Ok(());
        }
        let pair_rows = self.block.pair_rows as u32;
        for row in rows.saturating_sub(pair_rows)..rows {
            let unit = u64::from(row) * self.block.width() + self.index as u64;
            if self.block.unit_buffers.get(unit).is_some() {
                continue;
            }
            let first = Address {
                sector: row * self.block.unit_sectors,
                ..self.block.members[self.index].first
            };
            let ppas: Vec<_> = self.block.space.extent(first, self.block.unit_sectors)?.collect();
            let buffer = self.io.buffers().allocate(self.block.unit_sectors)?;
            let read = match self.io.read(&ppas, buffer, VectorOptions::default()) {
                Err(PpaError::Vector(e)) => {
                    return Err(self.uncorrectable_error(first.sector, &e));
                }
                read => read?,
            };
            self.block.unit_buffers.insert(unit, read);
        }
        Ok(())
    }

    /// Copies readable sectors of a chunk to the corresponding sectors of another chunk.
    fn relocate_rows(&mut self, sectors: Range<u32>) -> Result<(), VirtualBlockError> {
        let step =
            (RELOCATE_BATCH_SECTORS / self.block.unit_sectors).max(1) * self.block.unit_sectors;
        let from = self.block.members[self.index].first;
        let mut at = sectors.start;
        while at < sectors.end {
            let count = step.min(sectors.end - at);
            let of = |chunk: Address| -> Result<Vec<_>, VirtualBlockError> {
                Ok(self.block.space.extent(Address { sector: at, ..chunk }, count)?.collect())
            };
            let (source, target) = (of(from)?, of(self.with)?);
            let copied =
                if self.io.session().can_copy() { self.io.copy(&source, &target) } else { Ok(()) };
            if let Err(PpaError::Vector(e)) = &copied
                && is_source_error(e.status)
            {
                // The status of the copy does not name the failed sources.
                return Err(match self.io.check(&source) {
                    Err(PpaError::Vector(exact)) => self.uncorrectable_error(at, &exact),
                    Ok(()) => self.uncorrectable_error(at, e),
                    Err(other) => other.into(),
                });
            }
            if !self.io.session().can_copy() {
                let buffer = self.io.buffers().allocate(count)?;
                let buffer = match self.io.read(&source, buffer, VectorOptions::default()) {
                    Err(PpaError::Vector(e)) => return Err(self.uncorrectable_error(at, &e)),
                    read => read?,
                };
                replacement_result(
                    self.with,
                    self.io.write(&target, buffer, VectorOptions::default()).map(drop),
                )?;
            } else {
                replacement_result(self.with, copied)?;
            }
            at += count;
        }
        Ok(())
    }

    /// Returns the error for unreadable sectors of a chunk, starting at its sector `at`.
    fn uncorrectable_error(&self, at: u32, e: &crate::ppa::VectorError) -> VirtualBlockError {
        let mut sectors = Vec::new();
        for i in e.failed.iter() {
            merge(&mut sectors, self.block.sectors_of(self.index, at + i, at + i + 1));
        }
        let (addresses, status) = (e.addresses.clone(), e.status);
        VirtualBlockError::Uncorrectable(super::UncorrectableSectors { sectors, addresses, status })
    }

    /// Writes a buffered unit to the corresponding location of another chunk. Returns `false` if
    /// the unit is not in memory.
    fn rewrite_unit(&mut self, unit: u64, sector: u32) -> Result<bool, VirtualBlockError> {
        let target: Vec<_> = self
            .block
            .space
            .extent(Address { sector, ..self.with }, self.block.unit_sectors)?
            .collect();
        let Some(buffer) = self.block.unit_buffers.take_for_write(unit) else { return Ok(false) };
        let ticket = match self.io.session().write(&target, buffer, VectorOptions::default()) {
            Ok(ticket) => ticket,
            Err(mut refused) => {
                self.block.unit_buffers.return_buffer(unit, refused.buffer.take());
                return Err(refused.into());
            }
        };
        let mut ended = self.io.wait(ticket)?;
        self.block.unit_buffers.return_buffer(unit, ended.buffer.take());
        if ended.is_success() {
            return Ok(true);
        }
        Err(VirtualBlockError::ReplacementFailed { chunk: self.with, status: ended.status })
    }
}

/// Returns whether a copy failed because its sources could not be read.
pub(super) fn is_source_error(status: Status) -> bool {
    status.is(Status::UNRECOVERED_READ) || status.is(Status::UNWRITTEN)
}

/// Converts a failed write to a replacement chunk.
fn replacement_result(
    with: Address,
    written: Result<(), PpaError>,
) -> Result<(), VirtualBlockError> {
    match written {
        Err(PpaError::Vector(e)) => {
            Err(VirtualBlockError::ReplacementFailed { chunk: with, status: e.status })
        }
        other => Ok(other?),
    }
}
