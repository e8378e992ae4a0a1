//! [`VictimP2lRead`]: reads the P2L of a victim from the media when there is no reverse map in
//! memory [LightNVM17 §4.2.2, §4.2.4].
//!
//! It uses the line's footer if there is a readable one, otherwise the out-of-band bytes of all its
//! sectors. If those cannot be read either, the L2P says which logical sectors are in the line.
//! Their loss is then recorded, instead of erasing the line while it has valid sectors.

use nvme::PhysSector;
use serde::{Deserialize, Serialize};

use crate::Oob;
use crate::env::Env;
use crate::gc::Gc;
use crate::ids::{Lba, LineId, MapPageId, ToIndex, ToU32, WriteSeq};
use crate::space::line_meta::{LineFooter, P2lTable, footer_unit_location};
use crate::space::line_meta_writer::VICTIM_READS_MAX;
use crate::space::lines::{Footer, Line, LineTable};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum VictimP2lSource {
    /// The line's footer.
    Footer,
    /// Out-of-band bytes.
    Oob,
}

/// A step of reading a victim's P2L.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VictimP2lStep {
    /// Read the write unit from this physical sector on, as read number `at`.
    Read { at: usize, first_phys: PhysSector },
    /// Wait for a read to end.
    Wait,
    /// The line's footer is not valid: the out-of-band bytes are read instead.
    NoFooter,
    /// Some out-of-band bytes could not be read: the sectors that the L2P maps to the line are to be
    /// [recorded](VictimP2lRead::record_lba).
    SearchL2p,
    /// Everything has been read, from the footer or from out-of-band bytes.
    Complete { by_footer: bool },
}

/// A completed read of a write unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VictimReadDone {
    /// Whether it read the sectors of the footer; otherwise out-of-band bytes.
    pub(crate) is_footer: bool,
    pub(crate) first_phys: PhysSector,
    unit_index: u32,
    member: u32,
}

/// A read of one write unit in flight.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct VictimUnitRead {
    /// Index of the unit in the footer; otherwise the first sector.
    unit_index: u32,
    member: u32,
    first_phys: PhysSector,
}

/// The read of a victim's P2L; one victim at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VictimP2lRead {
    line: LineId,
    source: VictimP2lSource,
    /// The next write unit to read.
    next: u32,
    reads: [Option<VictimUnitRead>; VICTIM_READS_MAX],
    failed: bool,
    /// The translation page that is searched next for sectors of the line.
    next_page: MapPageId,
    bytes: Vec<u8>,
    p2l: Box<P2lTable>,
}

impl VictimP2lRead {
    /// Starts the read of a victim's P2L.
    pub(crate) fn new(env: &Env, id: LineId, line: &Line) -> VictimP2lRead {
        let is_footer = line.footer == Footer::Valid;
        let bytes = env.geometry.ws_opt.index() * env.geometry.sector_bytes.index();
        let units = LineFooter::units(&env.plan).index();
        VictimP2lRead {
            line: id,
            source: if is_footer { VictimP2lSource::Footer } else { VictimP2lSource::Oob },
            next: 0,
            reads: [None; VICTIM_READS_MAX],
            failed: false,
            next_page: MapPageId(0),
            bytes: vec![0; if is_footer { units * bytes } else { 0 }],
            p2l: Box::new(P2lTable::new(&env.geometry, line.chunks.len().to_u32(), WriteSeq(0))),
        }
    }

    /// The victim.
    pub(crate) fn line(&self) -> LineId {
        self.line
    }

    /// Reads in flight.
    pub(crate) fn outstanding(&self) -> u32 {
        self.reads.iter().flatten().count().to_u32()
    }

    /// Returns the next step of the read.
    pub(crate) fn step(&mut self, env: &Env, lines: &LineTable) -> VictimP2lStep {
        if let Some(at) = self.reads.iter().position(Option::is_none)
            && let Some(read) = self.next_read(env, lines)
        {
            self.reads[at] = Some(read);
            return VictimP2lStep::Read { at, first_phys: read.first_phys };
        }
        if self.outstanding() > 0 {
            return VictimP2lStep::Wait;
        }
        if self.source == VictimP2lSource::Oob {
            return if self.failed {
                VictimP2lStep::SearchL2p
            } else {
                VictimP2lStep::Complete { by_footer: false }
            };
        }
        let chunks = &lines.line(self.line).chunks;
        let footer =
            LineFooter::decode(&env.geometry, env.plan.journal.config.owner, chunks, &self.bytes);
        if let (Some(footer), false) = (footer, self.failed) {
            *self.p2l = footer.p2l;
            return VictimP2lStep::Complete { by_footer: true };
        }
        (self.source, self.next, self.failed) = (VictimP2lSource::Oob, 0, false);
        self.bytes = Vec::new();
        VictimP2lStep::NoFooter
    }

    /// Returns the next write unit to read, if any.
    fn next_read(&mut self, env: &Env, lines: &LineTable) -> Option<VictimUnitRead> {
        let geometry = &env.geometry;
        let chunks = &lines.line(self.line).chunks;
        let members = chunks.len().to_u32();
        loop {
            let piece = self.next;
            let (member, sector) = match self.source {
                VictimP2lSource::Footer => {
                    let units = LineFooter::units(&env.plan);
                    if piece == units {
                        return None;
                    }
                    footer_unit_location(geometry, members, units, piece)
                }
                VictimP2lSource::Oob => {
                    let (member, row) = (piece % members, piece / members);
                    if row * geometry.ws_opt >= geometry.sectors_per_chunk {
                        return None;
                    }
                    (member, row * geometry.ws_opt)
                }
            };
            self.next += 1;
            let chunk = chunks[member.index()];
            // In an open line, a unit that waits for its paired page is in the write buffer.
            let c = lines.chunk(chunk);
            if sector + geometry.ws_opt <= c.readable_end(geometry) {
                let first_phys = geometry.first_sector_of(chunk) + sector;
                return Some(VictimUnitRead { unit_index: piece, member, first_phys });
            }
            // A footer is valid only if all of it can be read.
            self.failed |= self.source == VictimP2lSource::Footer;
        }
    }

    /// Returns the translation page to search next.
    pub(crate) fn next_page(&self, env: &Env) -> Option<MapPageId> {
        Some(self.next_page).filter(|page| page.get() < env.plan.map_pages)
    }

    /// Records that a translation page has been searched.
    pub(crate) fn page_searched(&mut self) {
        self.next_page += 1;
    }

    /// Records a logical sector at a sector of a member.
    pub(crate) fn record_lba(&mut self, member: u32, sector: u32, lba: Lba) {
        self.p2l.record_lba(member, sector, lba);
    }
}

impl Gc {
    /// Returns whether the P2L of the victim is in memory or being read.
    pub(crate) fn has_victim_p2l(&self) -> bool {
        self.victim_p2l.is_some()
    }

    /// Whether the P2L of the victim is being read.
    pub(crate) fn is_reading_p2l(&self) -> bool {
        self.p2l_read.is_some()
    }

    /// The P2L of the victim, if it was read.
    #[inline]
    pub(crate) fn victim_p2l(&self) -> Option<&P2lTable> {
        self.victim_p2l.as_deref()
    }

    /// Takes the read of the victim's P2L, to be returned or completed.
    pub(crate) fn take_p2l_read(&mut self) -> Option<Box<VictimP2lRead>> {
        self.p2l_read.take()
    }

    pub(crate) fn return_p2l_read(&mut self, read: Box<VictimP2lRead>) {
        self.p2l_read = Some(read);
    }

    /// Completes the read of the victim's P2L.
    pub(crate) fn complete_p2l_read(&mut self, read: VictimP2lRead) {
        self.victim_p2l = Some(read.p2l);
    }

    /// Records that a read of the victim's P2L has ended, with some sectors that could not be read.
    ///
    /// # Panics
    /// If it is not in flight.
    pub(crate) fn victim_read_done(&mut self, at: u32, failed: bool) -> VictimReadDone {
        let reading = self.p2l_read.as_mut();
        let reading = reading.unwrap_or_else(|| panic!("no victim's metadata is being read"));
        let read = reading.reads.get_mut(at.index()).and_then(Option::take);
        let read =
            read.unwrap_or_else(|| panic!("no read {at} of a victim's metadata is in flight"));
        reading.failed |= failed;
        let VictimUnitRead { unit_index, member, first_phys } = read;
        let is_footer = reading.source == VictimP2lSource::Footer;
        VictimReadDone { is_footer, first_phys, unit_index, member }
    }

    /// Returns the memory for the `i`-th sector of a unit of the victim's footer.
    pub(crate) fn victim_footer_bytes(
        &mut self,
        env: &Env,
        read: VictimReadDone,
        i: u32,
    ) -> &mut [u8] {
        let size = env.geometry.sector_bytes.index();
        let at = (read.unit_index * env.geometry.ws_opt + i).index() * size;
        let reading = self.p2l_read.as_mut().expect("the victim of the read is being read");
        &mut reading.bytes[at..at + size]
    }

    /// Imports the out-of-band bytes of a sector of a victim.
    pub(crate) fn import_victim_oob(
        &mut self,
        env: &Env,
        read: VictimReadDone,
        phys: PhysSector,
        oob: Option<Oob>,
    ) {
        if let (Some(lba), Some(reading)) = (oob.and_then(|oob| oob.lba), &mut self.p2l_read) {
            reading.record_lba(read.member, env.geometry.sector_in_chunk(phys), lba);
        }
    }
}
