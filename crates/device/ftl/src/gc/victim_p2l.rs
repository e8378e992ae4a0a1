//! [`Reading`]: what was written in a victim, read back from the media when there is no reverse map in
//! memory (LightNVM paper section 4.2.4: garbage collection looks up "the reverse map" of the block it
//! reclaims; section 4.2.2 says where that is).
//!
//! The line's last metadata, if it has any that can be read; else the out-of-band bytes of all its
//! sectors. If those cannot be read either, the map says which logical sectors are in the line: then
//! what is lost is known to be lost, instead of the line being erased below its readers.

use std::ops::Range;

use clock::Nanos;

use crate::flash::OpKind;
use crate::mapping::cache::fetch::{FetchOutcome, FetchReason};
use crate::mapping::translation_page::TranslationPage;
use crate::space::line_meta::{LineFooter, P2lTable, footer_unit_location};
use crate::space::line_meta_writer::VICTIM_READS_MAX;
use crate::space::lines::Footer;
use crate::{CapacityPlan, FlashBackend, Ftl, L2pEntry, Oob, OpToken, ReadDest};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VictimP2lSource {
    /// The last metadata.
    Footer,
    /// Out-of-band bytes.
    Oob,
}

/// A read of one write unit under way.
#[derive(Clone, Copy, Debug)]
struct VictimUnitRead {
    /// Which of the last metadata; the first sector otherwise.
    unit_index: u32,
    member: u32,
    first_psn: u32,
}

/// The list of a victim that is being read; of one at a time.
#[derive(Clone, Debug)]
pub(crate) struct VictimP2lRead {
    line: u32,
    source: VictimP2lSource,
    /// The next write unit to read.
    next: u32,
    reads: [Option<VictimUnitRead>; VICTIM_READS_MAX],
    failed: bool,
    /// Pages of the map that have been asked what they know of the line.
    pages_searched: u32,
    bytes: Vec<u8>,
    p2l: Box<P2lTable>,
}

impl VictimP2lRead {
    pub(crate) fn outstanding(&self) -> u32 {
        self.reads.iter().flatten().count() as u32
    }
}

impl Ftl {
    /// Whether it is known what was written in a victim; begins to read it if not.
    pub(crate) fn victim_p2l_ready(
        &mut self,
        now: Nanos,
        line: u32,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let l = &self.space.lines.lines[line as usize];
        // What is being read of it ends before it is erased, even if nothing of it is valid by then.
        let empty = l.valid_sectors == 0 && self.gc.p2l_read.is_none();
        let known = l.p2l.is_some() || self.gc.victim_p2l.is_some();
        if self.mapping.has_p2l() || known || empty {
            return true;
        }
        if self.gc.p2l_read.is_none() {
            let members = l.chunks.len() as u32;
            let source = if l.footer == Footer::Valid {
                VictimP2lSource::Footer
            } else {
                VictimP2lSource::Oob
            };
            let bytes = self.env.geometry.ws_opt as usize * self.env.geometry.sector_bytes as usize;
            let pieces = LineFooter::units(&self.env.plan) as usize;
            self.gc.p2l_read = Some(Box::new(VictimP2lRead {
                line,
                source,
                next: 0,
                reads: [None; VICTIM_READS_MAX],
                failed: false,
                pages_searched: 0,
                bytes: vec![0; if source == VictimP2lSource::Footer { pieces * bytes } else { 0 }],
                p2l: Box::new(P2lTable::new(&self.env.geometry, members, 0)),
            }));
        }
        self.step_victim_p2l(now, flash);
        self.gc.victim_p2l.is_some()
    }

    /// Starts as many reads as there are slots for, and ends with the list when all have ended.
    fn step_victim_p2l(&mut self, now: Nanos, flash: &mut impl FlashBackend) {
        let Some(mut reading) = self.gc.p2l_read.take() else { return };
        loop {
            while let Some(at) = reading.reads.iter().position(Option::is_none) {
                let Some(read) = self.next_victim_read(&mut reading) else { break };
                reading.reads[at] = Some(read);
                let first_slot = self.metadata_read_slot(at);
                let mut addresses = [(0, 0); 64];
                let unit = self.env.geometry.ws_opt as usize;
                for (i, address) in (0..).zip(&mut addresses[..unit]) {
                    *address = (read.first_psn + i, first_slot + i);
                }
                let op = OpToken::new(OpKind::Meta, at as u32);
                flash.read(now, op, &addresses[..unit], ReadDest::Buffer);
            }
            if reading.outstanding() > 0 {
                self.gc.p2l_read = Some(reading);
                return;
            }
            if reading.source == VictimP2lSource::Oob {
                break;
            }
            let chunks = &self.space.lines.lines[reading.line as usize].chunks;
            let last = LineFooter::decode(
                &self.env.geometry,
                self.env.plan.journal_owner,
                chunks,
                &reading.bytes,
            );
            if let (Some(last), false) = (last, reading.failed) {
                *reading.p2l = last.p2l;
                self.stats.victims_read_by_metadata += 1;
                self.gc.victim_p2l = Some(reading.p2l);
                return;
            }
            self.space.lines.lines[reading.line as usize].footer = Footer::Absent;
            (reading.source, reading.next, reading.failed) = (VictimP2lSource::Oob, 0, false);
            reading.bytes = Vec::new();
        }
        if reading.failed && !self.recover_p2l_from_l2p(now, &mut reading, flash) {
            self.gc.p2l_read = Some(reading);
            return;
        }
        self.stats.victims_read_by_oob += 1;
        self.gc.victim_p2l = Some(reading.p2l);
    }

    /// The next write unit that is to be read, if there is one.
    fn next_victim_read(&self, reading: &mut VictimP2lRead) -> Option<VictimUnitRead> {
        let chunks = &self.space.lines.lines[reading.line as usize].chunks;
        let members = chunks.len() as u32;
        loop {
            let piece = reading.next;
            let (member, sector) = match reading.source {
                VictimP2lSource::Footer => {
                    let units = LineFooter::units(&self.env.plan);
                    if piece == units {
                        return None;
                    }
                    footer_unit_location(&self.env.geometry, members, units, piece)
                }
                VictimP2lSource::Oob => {
                    let (member, row) = (piece % members, piece / members);
                    if row * self.env.geometry.ws_opt >= self.env.geometry.sectors_per_chunk {
                        return None;
                    }
                    (member, row * self.env.geometry.ws_opt)
                }
            };
            reading.next += 1;
            let chunk = chunks[member as usize];
            // Of a line that is being written, what waits for its pair is in the write buffer still.
            let c = &self.space.lines.chunks[chunk as usize];
            if sector + self.env.geometry.ws_opt <= c.readable_end(&self.env.geometry) {
                let first_psn = self.env.geometry.first_sector_of(chunk) + sector;
                return Some(VictimUnitRead { unit_index: piece, member, first_psn });
            }
            // Last metadata is whole, or there is none.
            reading.failed |= reading.source == VictimP2lSource::Footer;
        }
    }

    /// A read of a victim's metadata has ended. [`kick`](Ftl::kick) afterwards.
    pub(crate) fn metadata_read_done(
        &mut self,
        at: u32,
        failed: u64,
        flash: &mut impl FlashBackend,
    ) {
        let first_slot = self.metadata_read_slot(at as usize);
        let reading = self.gc.p2l_read.as_mut();
        let reading = reading.unwrap_or_else(|| panic!("no victim's metadata is being read"));
        let read = reading.reads.get_mut(at as usize).and_then(Option::take);
        let read =
            read.unwrap_or_else(|| panic!("no read {at} of a victim's metadata is in flight"));
        let VictimUnitRead { unit_index: piece, member, first_psn } = read;
        let (unit, size) = (self.env.geometry.ws_opt, self.env.geometry.sector_bytes as usize);
        for i in 0..unit {
            let (psn, slot) = (first_psn + i, first_slot + i);
            if failed >> i & 1 != 0 {
                reading.failed = true;
                continue;
            }
            match reading.source {
                VictimP2lSource::Footer => {
                    flash.sync_slot(psn, slot);
                    let at = (piece * unit + i) as usize * size;
                    flash.read_slot(slot, &mut reading.bytes[at..at + size]);
                }
                VictimP2lSource::Oob => {
                    let mut bytes = [0; Oob::BYTES];
                    flash.read_slot_oob(psn, slot, &mut bytes);
                    let sector = psn % self.env.geometry.sectors_per_chunk;
                    if let Some(lba) = Oob::decode(&bytes).and_then(|oob| oob.lba) {
                        reading.p2l.record_lba(member, sector, lba);
                    }
                }
            }
        }
    }

    /// Finds what points into a line of which something cannot be read. Pages of the map that are not in
    /// frames are brought there, one after the other; returns whether all have been asked.
    #[cold]
    fn recover_p2l_from_l2p(
        &mut self,
        now: Nanos,
        reading: &mut VictimP2lRead,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let CapacityPlan { logical, map_pages: meta, .. } = self.env.plan;
        let count = TranslationPage::entries_per_page(&self.env.geometry);
        while reading.pages_searched < meta {
            let page = reading.pages_searched;
            if !self.mapping.is_known_empty(&self.env, page) {
                if self.request_page(now, page, FetchReason::Modify, flash)
                    != FetchOutcome::Resident
                {
                    return false;
                }
                let first = page * count;
                self.search_l2p(first..logical.min(first + count), reading);
            }
            reading.pages_searched += 1;
        }
        self.search_l2p(logical..logical + meta, reading);
        true
    }

    fn search_l2p(&self, sectors: Range<u32>, reading: &mut VictimP2lRead) {
        for lba in sectors {
            let L2pEntry::Flash(psn) = self.mapping.get(lba) else { continue };
            let chunk = self.env.geometry.chunk_of(psn);
            if self.space.lines.line_of[chunk as usize] == reading.line {
                let member = self.space.lines.chunks[chunk as usize].member_index;
                reading.p2l.record_lba(member, psn % self.env.geometry.sectors_per_chunk, lba);
            }
        }
    }
}
