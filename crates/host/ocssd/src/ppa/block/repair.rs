//! Erasing a block, and replacing a failed chunk.

use std::collections::VecDeque;
use std::ops::Range;

use nvme::{Address, ChunkState, Status};

use super::{BlockChunk, BlockError, FailedChunk, VirtualBlock, merge};
use crate::OpenChannelSsd;
use crate::ppa::{BlockingSession, PpaError, RequestId, VectorOptions};

/// Number of sectors relocated at a time.
const RELOCATE_BATCH_SECTORS: u32 = 1024;

impl VirtualBlock {
    /// Erases all chunks that are not free, in parallel. The block is then empty, with its read
    /// cursor at the start. A power cut may leave some chunks erased and others not; the owner then
    /// [opens](VirtualBlock::open) the block and erases it again.
    ///
    /// # Errors
    /// [`BlockError::NotErased`] names the chunks whose erase failed, which are bad. The block is
    /// empty nevertheless, and writable once they are replaced.
    pub fn erase(&mut self, io: &mut BlockingSession<'_>) -> Result<(), BlockError> {
        self.wait_all(io)?;
        let used = |m: &BlockChunk| m.sectors_written > 0 || m.closed || m.failure.is_some();
        let mut flying: VecDeque<(usize, RequestId)> = VecDeque::new();
        let mut outcome: Vec<(usize, Status)> = Vec::new();
        // One vector per chunk: a drive that rejects one chunk of a vector erases none of it.
        for index in (0..self.members.len()).filter(|i| used(&self.members[*i])) {
            let ppa = self.space.ppa(self.members[index].first)?;
            let ticket = loop {
                match io.session().reset(&[ppa]) {
                    Ok(ticket) => break ticket,
                    Err(refused) => match flying.pop_front().filter(|_| refused.reason.is_busy()) {
                        Some((index, ticket)) => outcome.push((index, io.wait(ticket)?.status)),
                        None => return Err(refused.into()),
                    },
                }
            };
            flying.push_back((index, ticket));
        }
        for (index, ticket) in flying {
            outcome.push((index, io.wait(ticket)?.status));
        }
        for (index, status) in &outcome {
            let m = &mut self.members[*index];
            *m = BlockChunk::new(m.first);
            if !status.is_success() {
                (m.closed, m.failure) = (true, Some(*status));
            } else {
                self.stats.erased += 1;
            }
        }
        (self.units_submitted, self.tail_sectors, self.read_cursor, self.sealed) = (0, 0, 0, false);
        self.unit_buffers.clear();
        self.torn.clear();
        let failed: Vec<FailedChunk> = self.failed_chunks();
        if failed.is_empty() { Ok(()) } else { Err(BlockError::NotErased(failed)) }
    }

    /// Replaces the `index`-th chunk, failed or not, by a free chunk. Data on the old chunk is
    /// copied, and data that is only in memory is written. Returns the old chunk, which the block
    /// does not access any more.
    ///
    /// The block changes only after all data is on the new chunk. The owner then stores the new
    /// [`chunks`](VirtualBlock::chunks), and releases the old one afterwards.
    ///
    /// # Errors
    /// [`BlockError::NoSuchChunk`], [`BlockError::DuplicateChunk`], [`BlockError::NotFree`],
    /// [`BlockError::Sealed`]; [`BlockError::Uncorrectable`] and [`BlockError::DataLost`] if the
    /// old chunk's data is unavailable; [`BlockError::ReplacementFailed`] if the new chunk fails.
    /// The block is unchanged; the new chunk may have been written.
    pub fn replace(
        &mut self,
        ssd: &mut OpenChannelSsd,
        io: &mut BlockingSession<'_>,
        index: usize,
        with: Address,
    ) -> Result<Address, BlockError> {
        self.wait_all(io)?;
        if self.sealed {
            return Err(BlockError::Sealed { len: self.len() });
        }
        let chunks = self.members.len();
        let old = *self.members.get(index).ok_or(BlockError::NoSuchChunk { index, chunks })?;
        let info = VirtualBlock::query_chunks(ssd, io, &[with])?.remove(0);
        let with = info.address;
        if self.members.iter().any(|m| m.first == with) {
            return Err(BlockError::DuplicateChunk { chunk: with });
        }
        if info.state != ChunkState::Free {
            return Err(BlockError::NotFree { chunk: with, state: info.state });
        }
        let rows = self.rows_of(index, self.units_submitted) as u32;
        let mut fresh = BlockChunk::new(with);
        let mut lost: Vec<Range<u64>> = Vec::new();
        let mut row = 0;
        while row < rows {
            let mut end = row;
            while end < rows && self.is_readable(index, (end + 1) * self.unit_sectors - 1) {
                end += 1;
            }
            if end > row {
                self.relocate_rows(
                    io,
                    index,
                    with,
                    row * self.unit_sectors..end * self.unit_sectors,
                )?;
                self.stats.relocated += u64::from((end - row) * self.unit_sectors);
            } else {
                let unit = u64::from(row) * self.width() + index as u64;
                if !self.rewrite_unit(io, unit, with, row * self.unit_sectors)? {
                    lost.push(self.sectors_of(
                        index,
                        row * self.unit_sectors,
                        (row + 1) * self.unit_sectors,
                    ));
                    return Err(BlockError::DataLost(lost));
                }
                end += 1;
            }
            fresh.sectors_written = end * self.unit_sectors;
            row = end;
        }
        self.buffer_unpaired_rows(io, index, rows)?;
        self.members[index] = fresh;
        self.stats.replaced += 1;
        Ok(old.first)
    }

    /// Reads the last rows of a chunk into memory if they are readable on the old chunk but not yet
    /// on the new one.
    fn buffer_unpaired_rows(
        &mut self,
        io: &mut BlockingSession<'_>,
        index: usize,
        rows: u32,
    ) -> Result<(), BlockError> {
        if rows * self.unit_sectors == self.space.geometry().sectors {
            return Ok(());
        }
        let pair_rows = self.pair_rows as u32;
        for row in rows.saturating_sub(pair_rows)..rows {
            let unit = u64::from(row) * self.width() + index as u64;
            if self.unit_buffers.get(unit).is_some() {
                continue;
            }
            let first = Address { sector: row * self.unit_sectors, ..self.members[index].first };
            let ppas: Vec<_> = self.space.extent(first, self.unit_sectors)?.collect();
            let buffer = io.buffers().allocate(self.unit_sectors)?;
            let read = match io.read(&ppas, buffer, VectorOptions::default()) {
                Err(PpaError::Vector(e)) => {
                    return Err(self.uncorrectable_error(index, first.sector, &e));
                }
                read => read?,
            };
            self.unit_buffers.insert(unit, read);
        }
        Ok(())
    }

    /// Copies readable sectors of a chunk to the corresponding sectors of another chunk.
    fn relocate_rows(
        &mut self,
        io: &mut BlockingSession<'_>,
        index: usize,
        with: Address,
        sectors: Range<u32>,
    ) -> Result<(), BlockError> {
        let step = (RELOCATE_BATCH_SECTORS / self.unit_sectors).max(1) * self.unit_sectors;
        let from = self.members[index].first;
        let mut at = sectors.start;
        while at < sectors.end {
            let count = step.min(sectors.end - at);
            let of = |chunk: Address| -> Result<Vec<_>, BlockError> {
                Ok(self.space.extent(Address { sector: at, ..chunk }, count)?.collect())
            };
            let (source, target) = (of(from)?, of(with)?);
            let copied = if io.session().can_copy() { io.copy(&source, &target) } else { Ok(()) };
            if let Err(PpaError::Vector(e)) = &copied
                && is_source_error(e.status)
            {
                // The status of the copy does not name the failed sources.
                return Err(match io.check(&source) {
                    Err(PpaError::Vector(exact)) => self.uncorrectable_error(index, at, &exact),
                    Ok(()) => self.uncorrectable_error(index, at, e),
                    Err(other) => other.into(),
                });
            }
            if !io.session().can_copy() {
                let buffer = io.buffers().allocate(count)?;
                let buffer = match io.read(&source, buffer, VectorOptions::default()) {
                    Err(PpaError::Vector(e)) => return Err(self.uncorrectable_error(index, at, &e)),
                    read => read?,
                };
                replacement_result(
                    with,
                    io.write(&target, buffer, VectorOptions::default()).map(drop),
                )?;
            } else {
                replacement_result(with, copied)?;
            }
            at += count;
        }
        Ok(())
    }

    /// Returns the error for unreadable sectors of a chunk, starting at its sector `at`.
    fn uncorrectable_error(
        &self,
        index: usize,
        at: u32,
        e: &crate::ppa::VectorError,
    ) -> BlockError {
        let mut sectors = Vec::new();
        for i in e.failed.iter() {
            merge(&mut sectors, self.sectors_of(index, at + i, at + i + 1));
        }
        let (addresses, status) = (e.addresses.clone(), e.status);
        BlockError::Uncorrectable(super::UncorrectableSectors { sectors, addresses, status })
    }

    /// Writes a buffered unit to the corresponding location of another chunk. Returns `false` if
    /// the unit is not in memory.
    fn rewrite_unit(
        &mut self,
        io: &mut BlockingSession<'_>,
        unit: u64,
        with: Address,
        sector: u32,
    ) -> Result<bool, BlockError> {
        let target: Vec<_> =
            self.space.extent(Address { sector, ..with }, self.unit_sectors)?.collect();
        let Some(buffer) = self.unit_buffers.take_for_write(unit) else { return Ok(false) };
        let ticket = match io.session().write(&target, buffer, VectorOptions::default()) {
            Ok(ticket) => ticket,
            Err(mut refused) => {
                self.unit_buffers.return_buffer(unit, refused.buffer.take());
                return Err(refused.into());
            }
        };
        let mut ended = io.wait(ticket)?;
        self.unit_buffers.return_buffer(unit, ended.buffer.take());
        if ended.is_success() {
            return Ok(true);
        }
        Err(BlockError::ReplacementFailed { chunk: with, status: ended.status })
    }
}

/// Returns whether a copy failed because its sources could not be read.
pub(super) fn is_source_error(status: Status) -> bool {
    status.is(Status::UNRECOVERED_READ) || status.is(Status::UNWRITTEN)
}

/// Converts a failed write to a replacement chunk.
fn replacement_result(with: Address, written: Result<(), PpaError>) -> Result<(), BlockError> {
    match written {
        Err(PpaError::Vector(e)) => {
            Err(BlockError::ReplacementFailed { chunk: with, status: e.status })
        }
        other => Ok(other?),
    }
}
