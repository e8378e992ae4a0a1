//! [`VirtualBlock::copy_to`]: appends one block to another.
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

use nvme::{Address, MAX_VECTOR_ADDRESSES, Ppa};

use super::repair::is_source_error;
use super::{BlockError, InFlightUnit, VirtualBlock, merge};
use crate::ppa::{BlockingSession, RequestCompletion, RequestId, VectorOptions};

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

impl VirtualBlock {
    /// Appends all sectors of this block to `other`, out-of-band bytes included. Unreadable sectors
    /// do not stop the copy.
    ///
    /// # Errors
    /// - Nothing was copied: [`BlockError::Full`], [`BlockError::Sealed`],
    ///   [`BlockError::OtherDrive`], [`BlockError::NotYetReadable`].
    /// - A program failed on the target: [`BlockError::Unwritten`]. The target keeps the sectors
    ///   that it accepted and can be repaired; the others are not copied.
    pub fn copy_to(
        &mut self,
        io: &mut BlockingSession<'_>,
        other: &mut VirtualBlock,
    ) -> Result<CopyReport, BlockError> {
        if self.space != other.space || self.space != *io.space() {
            return Err(BlockError::OtherDrive);
        }
        self.wait_all(io)?;
        other.wait_all(io)?;
        other.check_writable(0)?;
        let early = self.not_yet_readable(0..self.len());
        if !early.is_empty() {
            return Err(BlockError::NotYetReadable(early));
        }
        if self.len() > other.remaining_sectors() {
            return Err(BlockError::Full {
                wanted: self.len(),
                remaining: other.remaining_sectors(),
            });
        }
        let mut copied = CopyReport::default();
        let start = other.units_submitted;
        let by_drive = other.tail_sectors == 0
            && io.session().can_copy()
            && self.unit_sectors <= MAX_VECTOR_ADDRESSES.into();
        let mut outcome = self.copy_units(io, other, by_drive, &mut copied);
        if let Err(BlockError::Unwritten(e)) = &mut outcome {
            e.accepted = copied.sectors;
            if by_drive {
                self.buffer_unpaired(io, other, start, &mut copied)?;
            }
        }
        outcome.map(|()| copied)
    }

    fn copy_units(
        &mut self,
        io: &mut BlockingSession<'_>,
        other: &mut VirtualBlock,
        by_drive: bool,
        copied: &mut CopyReport,
    ) -> Result<(), BlockError> {
        let (start, end) = (other.units_submitted, other.units_submitted + self.units_submitted);
        let mut unit = 0;
        while unit < self.units_submitted {
            let fits = |u: u64| {
                by_drive && self.is_unit_readable(u) && other.is_readable_at(start + u, end)
            };
            let drive = fits(unit);
            // One row of the target for a copy by the drive; all units that its chunks may have in
            // flight for a copy by the host.
            let most = if drive { other.width() } else { 2 * other.width() };
            let most = (unit + most).min(self.units_submitted);
            let run = (unit..most).take_while(|u| fits(*u) == drive).count() as u64;
            if drive {
                other.wait_all(io)?;
                other.check_writable(0)?;
                self.copy_by_drive(io, other, unit..unit + run, copied)?;
            } else {
                self.copy_by_host(io, other, unit..unit + run, copied)?;
            }
            unit += run;
        }
        if self.tail_sectors > 0 {
            self.copy_by_host(io, other, unit..unit + 1, copied)?;
        }
        other.wait_all(io)?;
        other.check_writable(0)
    }

    /// Returns whether a unit is readable from media once `units` of the block are written.
    fn is_readable_at(&self, unit: u64, units: u64) -> bool {
        let rows = self.rows_of(self.locate_unit(unit).0, units);
        let full = u64::from(self.space.geometry().sectors / self.unit_sectors);
        unit / self.width() + self.pair_rows < rows || rows == full
    }

    /// Reads the data and out-of-band bytes of units; the last one may be partly filled. Unreadable
    /// sectors are zeros.
    fn read_units(
        &mut self,
        io: &mut BlockingSession<'_>,
        units: Range<u64>,
        copied: &mut CopyReport,
    ) -> Result<(Vec<u8>, Vec<u8>), BlockError> {
        let g = *self.space.geometry();
        let first = units.start * self.unit_sectors();
        let count = (units.end * self.unit_sectors()).min(self.len()) - first;
        let mut data = vec![0; count as usize * g.sector_bytes as usize];
        let mut oob = vec![0; count as usize * g.oob_bytes as usize];
        match self.read_with_oob(io, first, &mut data, &mut oob) {
            Err(BlockError::Uncorrectable(u)) => {
                u.sectors.into_iter().for_each(|r| merge(&mut copied.uncorrectable, r));
            }
            read => read?,
        }
        Ok((data, oob))
    }

    fn copy_by_host(
        &mut self,
        io: &mut BlockingSession<'_>,
        other: &mut VirtualBlock,
        units: Range<u64>,
        copied: &mut CopyReport,
    ) -> Result<(), BlockError> {
        let (data, oob) = self.read_units(io, units, copied)?;
        let before = other.len();
        let appended = other.append_with_oob(io, &data, &oob);
        copied.sectors += other.len() - before;
        appended.map(drop)
    }

    /// Lets the drive copy units to the end of `other`, each to another chunk.
    fn copy_by_drive(
        &mut self,
        io: &mut BlockingSession<'_>,
        other: &mut VirtualBlock,
        units: Range<u64>,
        copied: &mut CopyReport,
    ) -> Result<(), BlockError> {
        let to = other.units_submitted;
        let mut flying: VecDeque<RequestId> = VecDeque::new();
        let mut ended: Vec<RequestCompletion> = Vec::new();
        let mut unit = units.start;
        while unit < units.end {
            let (source, target) =
                (self.unit_ppas(unit)?, other.unit_ppas(to + unit - units.start)?);
            match io.session().copy(&source, &target) {
                Ok(ticket) => {
                    flying.push_back(ticket);
                    unit += 1;
                }
                Err(refused) => match flying.pop_front().filter(|_| refused.reason.is_busy()) {
                    Some(ticket) => ended.push(io.wait(ticket)?),
                    None => return Err(refused.into()),
                },
            }
        }
        for ticket in flying {
            ended.push(io.wait(ticket)?);
        }
        // From here on these units belong to the target, on the drive or in memory.
        let sectors = (units.end - units.start) * self.unit_sectors();
        other.units_submitted += units.end - units.start;
        other.stats.appended += sectors;
        copied.sectors += sectors;
        let mut brought = Vec::new();
        for (from, ended) in units.clone().zip(&ended) {
            let unit = to + from - units.start;
            if ended.is_success() {
                other.on_unit_complete(unit, ended);
                copied.sectors_by_drive += self.unit_sectors();
                continue;
            }
            if !is_source_error(ended.status) {
                other.on_unit_complete(unit, ended);
            }
            brought.push((from, unit));
        }
        for (from, unit) in brought {
            self.buffer_unit(io, other, from, unit, copied)?;
            other.write_unit(io, unit)?;
            other.wait_all(io)?;
        }
        Ok(())
    }

    /// Reads a unit of this block into the memory of `other`, as its unit `unit`.
    fn buffer_unit(
        &mut self,
        io: &mut BlockingSession<'_>,
        other: &mut VirtualBlock,
        from: u64,
        unit: u64,
        copied: &mut CopyReport,
    ) -> Result<(), BlockError> {
        let (data, oob) = self.read_units(io, from..from + 1, copied)?;
        other.unit_buffers.claim(unit, other.unit_sectors, io.buffers())?;
        if let Some(buffer) = other.unit_buffers.get_mut(unit) {
            buffer.write(0, &data)?;
            buffer.write_oob(0, &oob)?;
        }
        Ok(())
    }

    /// Reads into the memory of `other` those units, from its unit `start` on, that came from this
    /// block and are not readable from the target yet.
    fn buffer_unpaired(
        &mut self,
        io: &mut BlockingSession<'_>,
        other: &mut VirtualBlock,
        start: u64,
        copied: &mut CopyReport,
    ) -> Result<(), BlockError> {
        let since = other.units_submitted.saturating_sub(other.unit_buffers.len()).max(start);
        for unit in since..other.units_submitted {
            if !other.is_unit_readable(unit) && other.unit_buffers.get(unit).is_none() {
                self.buffer_unit(io, other, unit - start, unit, copied)?;
            }
        }
        Ok(())
    }

    /// Writes a buffered unit to its location, if its chunk still accepts it.
    fn write_unit(&mut self, io: &mut BlockingSession<'_>, unit: u64) -> Result<(), BlockError> {
        let (index, first) = self.locate_unit(unit);
        let m = &self.members[index];
        if m.failure.is_some() || m.sectors_written != first {
            return Ok(());
        }
        let ppas = self.unit_ppas(unit)?;
        let Some(buffer) = self.unit_buffers.take_for_write(unit) else { return Ok(()) };
        match io.session().write(&ppas, buffer, VectorOptions::default()) {
            Ok(ticket) => {
                self.in_flight.push_back(InFlightUnit { request: ticket, unit });
                Ok(())
            }
            Err(mut refused) => {
                self.unit_buffers.return_buffer(unit, refused.buffer.take());
                Err(refused.into())
            }
        }
    }

    /// Returns the device addresses of a unit.
    fn unit_ppas(&self, unit: u64) -> Result<Vec<Ppa>, BlockError> {
        let (index, sector) = self.locate_unit(unit);
        let first = Address { sector, ..self.members[index].first };
        Ok(self.space.extent(first, self.unit_sectors)?.collect())
    }
}
