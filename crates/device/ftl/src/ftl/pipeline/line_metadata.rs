//! Writes the headers and footers of lines. The rules are in
//! [`line_meta_writer`](crate::space::line_meta_writer).

use nvme::Status;
use time::Nanos;

use crate::flash::OpKind;
use crate::ids::{SlotId, ToIndex, ToU32, WriteSeq};
use crate::space::line_meta_writer::{MetaUnit, MetaWrite, VICTIM_READS_MAX};
use crate::{FlashBackend, Ftl, OpToken, WriteUnit};

impl Ftl {
    /// Returns the number of slots for line metadata, written and read.
    pub(crate) fn metadata_slots(&self) -> u32 {
        let reads = if self.mapping.has_p2l() { 0 } else { VICTIM_READS_MAX.to_u32() };
        if self.env.plan.line_metadata_units == 0 {
            0
        } else {
            (self.space.metadata().write_units() + reads) * self.env.geometry.ws_opt
        }
    }

    fn first_metadata_slot(&self) -> SlotId {
        SlotId(self.buffer.capacity() + self.env.geometry.ws_opt + self.mapping.slots())
    }

    /// Returns the slot that this read of a victim's metadata uses.
    pub(crate) fn metadata_read_slot(&self, read: usize) -> SlotId {
        let units = self.space.metadata().write_units() + read.to_u32();
        self.first_metadata_slot() + units * self.env.geometry.ws_opt
    }

    fn write_metadata(&mut self, now: Nanos, unit: &MetaUnit, flash: &mut impl FlashBackend) {
        let MetaUnit { index: at, write, contents } = unit;
        let MetaWrite { chunk, sector, .. } = *write;
        let units = self.env.geometry.ws_opt;
        let first_slot = self.first_metadata_slot() + at.to_u32() * units;
        let bytes = contents.as_ref().map_or(&[][..], |c| &c.bytes);
        let mut sectors = bytes.chunks(self.env.geometry.sector_bytes.index());
        for slot in first_slot.run(units) {
            flash.write_slot(slot, sectors.next().unwrap_or_default());
        }
        self.space.metadata_started(&self.env, *at, *write);
        self.stats.programs += 1;
        match contents {
            Some(_) => self.stats.metadata += u64::from(units),
            None => self.stats.padding += u64::from(units),
        }
        let sequence = contents.as_ref().map_or(WriteSeq(0), |c| c.open_seq);
        let metadata = contents.is_some();
        let unit = WriteUnit::without_sectors(chunk, sector, first_slot, units);
        let unit = WriteUnit { sequence, metadata, ..unit };
        flash.program(now, OpToken::new(OpKind::Meta, at.to_u32()), unit);
    }

    /// Writes the headers of open lines that may take units.
    pub(super) fn write_headers(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        self.space.set_stores_data(flash.stores_data());
        if self.env.plan.line_metadata_units == 0 {
            return false;
        }
        let mut moved = false;
        let recorded = self.durability.journal().durable();
        while let Some(unit) = self.space.next_header(&self.env, recorded) {
            self.write_metadata(now, &unit, flash);
            moved = true;
        }
        moved
    }

    /// Writes the footers of lines that are full.
    #[inline(always)]
    pub(super) fn write_footers(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        self.space.has_footer_work() && self.step_footers(now, flash)
    }

    #[inline(never)]
    fn step_footers(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        self.space.begin_footers(&self.env, flash.stores_data());
        let (mut moved, mut at) = (false, 0);
        while at < self.space.metadata().footer_count() {
            let mut job = self.space.take_footer(at);
            while let Some(unit) = self.space.next_footer_unit(&self.env, &mut job) {
                self.write_metadata(now, &unit, flash);
                moved = true;
            }
            let line = job.line();
            match self.space.return_footer(&self.env, at, job) {
                None => at += 1,
                Some(valid) => {
                    self.stats.lines_without_metadata += u64::from(!valid);
                    self.close_if_done(line);
                    moved = true;
                }
            }
        }
        moved
    }

    /// Reports the end of a program of line metadata.
    pub(super) fn metadata_program_done(&mut self, index: u32, status: Status) {
        let MetaWrite { line, chunk, sector } = self.space.metadata_done(&self.env, index);
        if status.is_success() {
            self.space.on_programmed(chunk, sector + self.env.geometry.ws_opt);
        } else {
            self.program_failed(chunk);
        }
        self.space.footer_unit_done(line, status.is_success());
        self.release_readable_units(chunk);
        self.buffer.advance_watermarks();
        self.close_if_done(line);
    }
}
