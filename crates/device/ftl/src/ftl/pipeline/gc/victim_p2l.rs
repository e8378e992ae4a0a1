//! The P2L of a victim comes from flash. The rules are in [`victim_p2l`](crate::gc::victim_p2l).

use crate::ReadAddress;
use nvme::PhysSector;

use time::Nanos;

use crate::flash::OpKind;
use crate::gc::victim_p2l::{VictimP2lRead, VictimP2lStep};
use crate::ids::{LbaRun, LineId, ToIndex, ToU32};
use crate::mapping::cache::fetch::{FetchOutcome, FetchReason};
use crate::{FlashBackend, Ftl, L2pEntry, Oob, OpToken, ReadDest};

impl Ftl {
    /// Returns whether the P2L of a victim is in memory; starts to read it if not.
    pub(super) fn victim_p2l_ready(
        &mut self,
        now: Nanos,
        line: LineId,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let l = self.space.table().line(line);
        // Reads of the victim end before it is erased, even if nothing in it is valid by then.
        let empty = l.valid_sectors == 0 && !self.gc.is_reading_p2l();
        let known = l.p2l.is_some() || self.gc.has_victim_p2l();
        if self.mapping.has_p2l() || known || empty || self.mapping.is_named() {
            return true;
        }
        if !self.gc.is_reading_p2l() {
            self.gc.return_p2l_read(Box::new(VictimP2lRead::new(&self.env, line, l)));
        }
        self.step_victim_p2l(now, flash);
        self.gc.has_victim_p2l()
    }

    /// Starts as many reads as there are free slots, and takes the P2L when all have completed.
    fn step_victim_p2l(&mut self, now: Nanos, flash: &mut impl FlashBackend) {
        let Some(mut reading) = self.gc.take_p2l_read() else { return };
        let by_footer = loop {
            match reading.step(&self.env, self.space.table()) {
                VictimP2lStep::Read { at, first_phys } => {
                    self.read_victim_unit(now, at, first_phys, flash);
                }
                VictimP2lStep::Wait => return self.gc.return_p2l_read(reading),
                VictimP2lStep::NoFooter => self.space.drop_footer(reading.line()),
                VictimP2lStep::SearchL2p => {
                    if !self.recover_p2l_from_l2p(now, &mut reading, flash) {
                        return self.gc.return_p2l_read(reading);
                    }
                    break false;
                }
                VictimP2lStep::Complete { by_footer } => break by_footer,
            }
        };
        self.stats.victims_read_by_metadata += u64::from(by_footer);
        self.stats.victims_read_by_oob += u64::from(!by_footer);
        self.gc.complete_p2l_read(*reading);
    }

    fn read_victim_unit(
        &mut self,
        now: Nanos,
        at: usize,
        first_phys: PhysSector,
        flash: &mut impl FlashBackend,
    ) {
        let (first_slot, unit) = (self.metadata_read_slot(at), self.env.geometry.ws_opt.index());
        let addresses = ReadAddress::unit(first_phys, first_slot);
        let op = OpToken::new(OpKind::Meta, at.to_u32());
        flash.read(now, op, &addresses[..unit], ReadDest::Buffer);
    }

    /// Reports the end of a read of a victim's metadata. Call [`kick`](Ftl::kick) afterwards.
    pub(crate) fn metadata_read_done(
        &mut self,
        at: u32,
        failed: u64,
        flash: &mut impl FlashBackend,
    ) {
        let first_slot = self.metadata_read_slot(at.index());
        let unit = self.env.geometry.ws_opt;
        let any_failed = (0..unit).any(|i| failed >> i & 1 != 0);
        let read = self.gc.victim_read_done(at, any_failed);
        for i in (0..unit).filter(|i| failed >> i & 1 == 0) {
            let (phys, slot) = (read.first_phys + i, first_slot + i);
            if read.is_footer {
                flash.sync_slot(phys, slot);
                flash.read_slot(slot, self.gc.victim_footer_bytes(&self.env, read, i));
            } else {
                let mut bytes = [0; Oob::BYTES];
                flash.read_slot_oob(phys, slot, &mut bytes);
                self.gc.import_victim_oob(&self.env, read, phys, Oob::decode(&bytes));
            }
        }
    }

    /// Records the sectors that the L2P maps to a line with unreadable P2L. Fetches translation
    /// pages that are not in frames, one after the other. Returns whether all have been searched.
    #[cold]
    fn recover_p2l_from_l2p(
        &mut self,
        now: Nanos,
        reading: &mut VictimP2lRead,
        flash: &mut impl FlashBackend,
    ) -> bool {
        while let Some(page) = reading.next_page(&self.env) {
            if !self.mapping.is_known_empty(&self.env, page) {
                if self.request_page(now, page, FetchReason::Modify, flash)
                    != FetchOutcome::Resident
                {
                    return false;
                }
                self.search_l2p(self.env.sectors_of_page(page), reading);
            }
            reading.page_searched();
        }
        self.search_l2p(
            LbaRun { first: self.env.plan.host_end(), sectors: self.env.plan.map_pages },
            reading,
        );
        true
    }

    fn search_l2p(&self, sectors: LbaRun, reading: &mut VictimP2lRead) {
        let lines = self.space.table();
        for lba in sectors.iter() {
            let L2pEntry::Flash(phys) = self.mapping.get(lba) else { continue };
            let chunk = self.env.geometry.chunk_of(phys);
            if lines.line_of(chunk) == reading.line() {
                let member = lines.chunk(chunk).member_index;
                reading.record_lba(member, self.env.geometry.sector_in_chunk(phys), lba);
            }
        }
    }
}
