//! Erase, and a chunk that failed, replaced.

use std::collections::VecDeque;
use std::ops::Range;

use nvme::{Address, ChunkState, Status};

use super::{BlockError, FailedChunk, Member, VirtualBlock, merge};
use crate::Ssd;
use crate::ppa::{Blocking, Options, PpaError, Ticket};

/// Sectors moved at a time.
const BATCH: u32 = 1024;

impl VirtualBlock {
    /// Erases the chunks that are not free, all in parallel; the block is empty then, and its read
    /// cursor at the start. Power that is cut meanwhile leaves some erased and others not: what
    /// [`open`](VirtualBlock::open) finds then is to be erased again.
    ///
    /// # Errors
    /// [`BlockError::NotErased`] names the chunks that were not: they have gone bad. The block is
    /// empty all the same, and can be written when they have been replaced.
    pub fn erase(&mut self, io: &mut Blocking<'_>) -> Result<(), BlockError> {
        self.settle(io)?;
        let used = |m: &Member| m.done > 0 || m.closed || m.failure.is_some();
        let mut flying: VecDeque<(usize, Ticket)> = VecDeque::new();
        let mut outcome: Vec<(usize, Status)> = Vec::new();
        // One vector each: a drive that refuses one chunk of a vector erases none of it.
        for index in (0..self.members.len()).filter(|i| used(&self.members[*i])) {
            let ppa = self.space.ppa(self.members[index].first)?;
            let ticket = loop {
                match io.session().reset(&[ppa]) {
                    Ok(ticket) => break ticket,
                    Err(refused) => {
                        match flying.pop_front().filter(|_| refused.because.is_busy()) {
                            Some((index, ticket)) => outcome.push((index, io.wait(ticket)?.status)),
                            None => return Err(refused.into()),
                        }
                    }
                }
            };
            flying.push_back((index, ticket));
        }
        for (index, ticket) in flying {
            outcome.push((index, io.wait(ticket)?.status));
        }
        for (index, status) in &outcome {
            let m = &mut self.members[*index];
            *m = Member::fresh(m.first);
            if !status.is_success() {
                (m.closed, m.failure) = (true, Some(*status));
            } else {
                self.stats.erased += 1;
            }
        }
        (self.assigned, self.tail, self.read_cursor, self.sealed) = (0, 0, 0, false);
        self.slots.clear();
        self.torn.clear();
        let failed: Vec<FailedChunk> = self.failed_chunks();
        if failed.is_empty() { Ok(()) } else { Err(BlockError::NotErased(failed)) }
    }

    /// Puts a free chunk in the place of the `index`-th, failed or not: what that has on the drive is
    /// moved to it, and what is in memory only is written to it. Returns the chunk that is out, which
    /// the block does not touch any more.
    ///
    /// Nothing of the block changes before everything is there; the owner records the new
    /// [`chunks`](VirtualBlock::chunks) next, and then lets the old one go.
    ///
    /// # Errors
    /// [`BlockError::NoSuchChunk`], [`BlockError::Twice`], [`BlockError::NotFree`],
    /// [`BlockError::Sealed`]; [`BlockError::Unreadable`] and [`BlockError::Lost`] when the old
    /// chunk's data cannot be had; [`BlockError::Replacement`] when the new one fails, too. The block
    /// is as before; the new chunk may have been written.
    pub fn replace(
        &mut self,
        ssd: &mut Ssd,
        io: &mut Blocking<'_>,
        index: usize,
        with: Address,
    ) -> Result<Address, BlockError> {
        self.settle(io)?;
        if self.sealed {
            return Err(BlockError::Sealed { len: self.len() });
        }
        let chunks = self.members.len();
        let old = *self.members.get(index).ok_or(BlockError::NoSuchChunk { index, chunks })?;
        let info = VirtualBlock::look(ssd, io, &[with])?.remove(0);
        let with = info.address;
        if self.members.iter().any(|m| m.first == with) {
            return Err(BlockError::Twice { chunk: with });
        }
        if info.state != ChunkState::Free {
            return Err(BlockError::NotFree { chunk: with, state: info.state });
        }
        let rows = self.rows_of(index, self.assigned) as u32;
        let mut fresh = Member::fresh(with);
        let mut lost: Vec<Range<u64>> = Vec::new();
        let mut row = 0;
        while row < rows {
            let mut end = row;
            while end < rows && self.is_readable(index, (end + 1) * self.unit - 1) {
                end += 1;
            }
            if end > row {
                self.move_rows(io, index, with, row * self.unit..end * self.unit)?;
                self.stats.moved += u64::from((end - row) * self.unit);
            } else {
                let unit = u64::from(row) * self.width() + index as u64;
                if !self.write_again(io, unit, with, row * self.unit)? {
                    lost.push(self.sectors_of(index, row * self.unit, (row + 1) * self.unit));
                    return Err(BlockError::Lost(lost));
                }
                end += 1;
            }
            fresh.done = end * self.unit;
            row = end;
        }
        self.keep_unpaired(io, index, rows)?;
        self.members[index] = fresh;
        self.stats.replaced += 1;
        Ok(old.first)
    }

    /// Brings the last rows of a chunk into memory, which can be read where they are and cannot where
    /// they have gone.
    fn keep_unpaired(
        &mut self,
        io: &mut Blocking<'_>,
        index: usize,
        rows: u32,
    ) -> Result<(), BlockError> {
        if rows * self.unit == self.space.geometry().sectors {
            return Ok(());
        }
        let pair_rows = self.pair_rows as u32;
        for row in rows.saturating_sub(pair_rows)..rows {
            let unit = u64::from(row) * self.width() + index as u64;
            if self.slots.get(unit).is_some() {
                continue;
            }
            let first = Address { sector: row * self.unit, ..self.members[index].first };
            let ppas: Vec<_> = self.space.run(first, self.unit)?.collect();
            let buffer = io.buffers().take(self.unit)?;
            let read = match io.read(&ppas, buffer, Options::default()) {
                Err(PpaError::Vector(e)) => return Err(self.unreadable(index, first.sector, &e)),
                read => read?,
            };
            self.slots.keep(unit, read);
        }
        Ok(())
    }

    /// Moves sectors of a chunk that the drive can return to the same place of another.
    fn move_rows(
        &mut self,
        io: &mut Blocking<'_>,
        index: usize,
        with: Address,
        sectors: Range<u32>,
    ) -> Result<(), BlockError> {
        let step = (BATCH / self.unit).max(1) * self.unit;
        let from = self.members[index].first;
        let mut at = sectors.start;
        while at < sectors.end {
            let count = step.min(sectors.end - at);
            let of = |chunk: Address| -> Result<Vec<_>, BlockError> {
                Ok(self.space.run(Address { sector: at, ..chunk }, count)?.collect())
            };
            let (source, target) = (of(from)?, of(with)?);
            let copied = if io.session().copies() { io.copy(&source, &target) } else { Ok(()) };
            if let Err(PpaError::Vector(e)) = &copied
                && is_source_error(e.status)
            {
                // The copy does not say which.
                return Err(match io.check(&source) {
                    Err(PpaError::Vector(exact)) => self.unreadable(index, at, &exact),
                    Ok(()) => self.unreadable(index, at, e),
                    Err(other) => other.into(),
                });
            }
            if !io.session().copies() {
                let buffer = io.buffers().take(count)?;
                let buffer = match io.read(&source, buffer, Options::default()) {
                    Err(PpaError::Vector(e)) => return Err(self.unreadable(index, at, &e)),
                    read => read?,
                };
                replaced(with, io.write(&target, buffer, Options::default()).map(drop))?;
            } else {
                replaced(with, copied)?;
            }
            at += count;
        }
        Ok(())
    }

    /// Sectors of a chunk that could not be read, from its sector `at` on.
    fn unreadable(&self, index: usize, at: u32, e: &crate::ppa::VectorError) -> BlockError {
        let mut sectors = Vec::new();
        for i in e.failed.iter() {
            merge(&mut sectors, self.sectors_of(index, at + i, at + i + 1));
        }
        let (addresses, status) = (e.addresses.clone(), e.status);
        BlockError::Unreadable(super::Unreadable { sectors, addresses, status })
    }

    /// Writes a unit that is in memory to a place of another chunk. Returns `false` if it is not.
    fn write_again(
        &mut self,
        io: &mut Blocking<'_>,
        unit: u64,
        with: Address,
        sector: u32,
    ) -> Result<bool, BlockError> {
        let target: Vec<_> = self.space.run(Address { sector, ..with }, self.unit)?.collect();
        let Some(buffer) = self.slots.send(unit) else { return Ok(false) };
        let ticket = match io.session().write(&target, buffer, Options::default()) {
            Ok(ticket) => ticket,
            Err(mut refused) => {
                self.slots.back(unit, refused.buffer.take());
                return Err(refused.into());
            }
        };
        let mut ended = io.wait(ticket)?;
        self.slots.back(unit, ended.buffer.take());
        if ended.is_success() {
            return Ok(true);
        }
        Err(BlockError::Replacement { chunk: with, status: ended.status })
    }
}

/// Whether a copy ended so because its sources could not be read.
pub(super) fn is_source_error(status: Status) -> bool {
    status.is(Status::UNRECOVERED_READ) || status.is(Status::UNWRITTEN)
}

/// Failed addresses of a write to a replacement.
fn replaced(with: Address, written: Result<(), PpaError>) -> Result<(), BlockError> {
    match written {
        Err(PpaError::Vector(e)) => Err(BlockError::Replacement { chunk: with, status: e.status }),
        other => Ok(other?),
    }
}
