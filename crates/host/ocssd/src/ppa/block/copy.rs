//! [`BlockCopy`]: appends one block to another.
//!
//! The drive copies the units that it can read now and that will be readable from the target, one
//! row of the target at a time. The drive programs after it has read, so a chunk takes one copy at
//! a time.
//!
//! Other units are copied through host memory, where the target keeps them until they are readable
//! (see the [module](super)). That applies to all units if the drive does not support copy, or if
//! the target's last unit is partly filled. Each unit is a command of its own, because a copy with
//! an unreadable source writes nothing.

use std::collections::VecDeque;
use std::ops::Range;

use nvme::MAX_VECTOR_ADDRESSES;

use super::repair::is_source_error;
use super::{VirtualBlock, VirtualBlockError, merge};
use crate::ppa::{BlockingSession, RequestCompletion, RequestId};

/// Result of [`VirtualBlock::copy_to`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Sectors appended to the target.
    pub sectors: u64,
    /// Sectors appended to the target that the drive copied.
    pub sectors_by_drive: u64,
    /// Sectors of the source block that could not be read. They are zeros in the target.
    pub uncorrectable: Vec<Range<u64>>,
}

/// A copy of all sectors of a block to the end of another.
pub(super) struct BlockCopy<'a, 'p> {
    source: &'a mut VirtualBlock,
    target: &'a mut VirtualBlock,
    io: &'a mut BlockingSession<'p>,
    copied: CopyReport,
}

impl<'a, 'p> BlockCopy<'a, 'p> {
    /// Creates a copy between two blocks without units in flight.
    pub(super) fn new(
        source: &'a mut VirtualBlock,
        target: &'a mut VirtualBlock,
        io: &'a mut BlockingSession<'p>,
    ) -> BlockCopy<'a, 'p> {
        BlockCopy { source, target, io, copied: CopyReport::default() }
    }

    /// Copies. After a failed program, the units that the drive copied are readable nevertheless.
    pub(super) fn run(mut self) -> Result<CopyReport, VirtualBlockError> {
        let start = self.target.units_submitted;
        let by_drive = self.target.tail_sectors == 0
            && self.io.session().can_copy()
            && self.source.unit_sectors <= MAX_VECTOR_ADDRESSES.into();
        let mut outcome = self.copy_units(by_drive);
        if let Err(VirtualBlockError::Unwritten(e)) = &mut outcome {
            e.accepted = self.copied.sectors;
            if by_drive {
                self.buffer_unpaired(start)?;
            }
        }
        outcome.map(|()| self.copied)
    }

    fn copy_units(&mut self, by_drive: bool) -> Result<(), VirtualBlockError> {
        let (start, end) = (
            self.target.units_submitted,
            self.target.units_submitted + self.source.units_submitted,
        );
        let mut unit = 0;
        while unit < self.source.units_submitted {
            let fits = |u: u64| {
                by_drive
                    && self.source.is_unit_readable(u)
                    && self.target.is_readable_at(start + u, end)
            };
            let drive = fits(unit);
            // One row of the target for a copy by the drive; all units that its chunks may have in
            // flight for a copy by the host.
            let most = if drive { self.target.width() } else { 2 * self.target.width() };
            let most = (unit + most).min(self.source.units_submitted);
            let run = (unit..most).take_while(|u| fits(*u) == drive).count() as u64;
            if drive {
                self.target.wait_all(self.io)?;
                self.target.check_writable(0)?;
                self.copy_by_drive(unit..unit + run)?;
            } else {
                self.copy_by_host(unit..unit + run)?;
            }
            unit += run;
        }
        if self.source.tail_sectors > 0 {
            self.copy_by_host(unit..unit + 1)?;
        }
        self.target.wait_all(self.io)?;
        self.target.check_writable(0)
    }

    /// Reads the data and out-of-band bytes of units; the last one may be partly filled. Unreadable
    /// sectors are zeros.
    fn read_units(&mut self, units: Range<u64>) -> Result<(Vec<u8>, Vec<u8>), VirtualBlockError> {
        let g = *self.source.space.geometry();
        let first = units.start * self.source.unit_sectors();
        let count = (units.end * self.source.unit_sectors()).min(self.source.len()) - first;
        let mut data = vec![0; count as usize * g.sector_bytes as usize];
        let mut oob = vec![0; count as usize * g.oob_bytes as usize];
        match self.source.read_with_oob(self.io, first, &mut data, &mut oob) {
            Err(VirtualBlockError::Uncorrectable(u)) => {
                u.sectors.into_iter().for_each(|r| merge(&mut self.copied.uncorrectable, r));
            }
            read => read?,
        }
        Ok((data, oob))
    }

    fn copy_by_host(&mut self, units: Range<u64>) -> Result<(), VirtualBlockError> {
        let (data, oob) = self.read_units(units)?;
        let before = self.target.len();
        let appended = self.target.append_with_oob(self.io, &data, &oob);
        self.copied.sectors += self.target.len() - before;
        appended.map(drop)
    }

    /// Lets the drive copy units to the end of `other`, each to another chunk.
    fn copy_by_drive(&mut self, units: Range<u64>) -> Result<(), VirtualBlockError> {
        let to = self.target.units_submitted;
        let mut flying: VecDeque<RequestId> = VecDeque::new();
        let mut ended: Vec<RequestCompletion> = Vec::new();
        let mut unit = units.start;
        while unit < units.end {
            let (source, target) =
                (self.source.unit_ppas(unit)?, self.target.unit_ppas(to + unit - units.start)?);
            match self.io.session().copy(&source, &target) {
                Ok(ticket) => {
                    flying.push_back(ticket);
                    unit += 1;
                }
                Err(refused) => match flying.pop_front().filter(|_| refused.reason.is_busy()) {
                    Some(ticket) => ended.push(self.io.wait(ticket)?),
                    None => return Err(refused.into()),
                },
            }
        }
        for ticket in flying {
            ended.push(self.io.wait(ticket)?);
        }
        // From here on these units belong to the target, on the drive or in memory.
        let sectors = (units.end - units.start) * self.source.unit_sectors();
        self.target.units_submitted += units.end - units.start;
        self.target.stats.appended += sectors;
        self.copied.sectors += sectors;
        let mut brought = Vec::new();
        for (from, ended) in units.clone().zip(&ended) {
            let unit = to + from - units.start;
            if ended.is_success() {
                self.target.on_unit_complete(unit, ended);
                self.copied.sectors_by_drive += self.source.unit_sectors();
                continue;
            }
            if !is_source_error(ended.status) {
                self.target.on_unit_complete(unit, ended);
            }
            brought.push((from, unit));
        }
        for (from, unit) in brought {
            self.buffer_unit(from, unit)?;
            self.target.write_unit(self.io, unit)?;
            self.target.wait_all(self.io)?;
        }
        Ok(())
    }

    /// Reads a unit of this block into the memory of `other`, as its unit `unit`.
    fn buffer_unit(&mut self, from: u64, unit: u64) -> Result<(), VirtualBlockError> {
        let (data, oob) = self.read_units(from..from + 1)?;
        self.target.unit_buffers.claim(unit, self.target.unit_sectors, self.io.buffers())?;
        if let Some(buffer) = self.target.unit_buffers.get_mut(unit) {
            buffer.write(0, &data)?;
            buffer.write_oob(0, &oob)?;
        }
        Ok(())
    }

    /// Reads into the memory of `other` those units, from its unit `start` on, that came from this
    /// block and are not readable from the target yet.
    fn buffer_unpaired(&mut self, start: u64) -> Result<(), VirtualBlockError> {
        let since =
            self.target.units_submitted.saturating_sub(self.target.unit_buffers.len()).max(start);
        for unit in since..self.target.units_submitted {
            if !self.target.is_unit_readable(unit) && self.target.unit_buffers.get(unit).is_none() {
                self.buffer_unit(unit - start, unit)?;
            }
        }
        Ok(())
    }
}
