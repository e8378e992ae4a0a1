//! [`P2lReader`]: reads what lines say was written in them, one line after the other and round about
//! (LightNVM paper section 4.2.2: the map is recovered by scanning the metadata of blocks).
//!
//! Of a line that is being written it is known in memory if it has a list there; else its last metadata
//! says it, or the out-of-band bytes of all of it. Guarantees: everything in a line is given to who scans,
//! or the scan is told that there is something that it could not read; a line that is erased meanwhile
//! says nothing any more. It needs slots of its own and nothing else, no frame, no space and no journal,
//! so that it ends whoever waits for it. [`READS`] write units are read at a time if somebody waits, else
//! one, and that only while no user's read is under way.

use clock::Nanos;

use crate::flash::OpKind;
use crate::space::line_meta::{LineFooter, footer_unit_location};
use crate::space::lines::{Footer, LineState};
use crate::{FlashBackend, Ftl, Oob, OpToken, ReadDest};

/// Write units that are read at a time.
const READS_MAX: usize = 4;
/// How often one is read before it is given up.
const READ_ATTEMPTS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum P2lSource {
    /// The last metadata.
    Footer,
    /// Out-of-band bytes.
    Oob,
}

/// A write unit that is being read, or will be again.
#[derive(Clone, Copy, Debug)]
struct UnitRead {
    /// Which of the last metadata.
    unit_index: u32,
    first_psn: u32,
    attempts: u32,
    in_flight: bool,
}

/// The line that is being looked at.
#[derive(Clone, Debug)]
struct LineRead {
    source: P2lSource,
    next: u32,
    reads: [Option<UnitRead>; READS_MAX],
    /// The last metadata could not be read.
    failed: bool,
    /// What could not be read otherwise, and nothing names, is in units with numbers up to this one.
    unknown_below_seq: u64,
    /// The line is being erased: what was read of it is not there.
    erased: bool,
    bytes: Vec<u8>,
}

/// Where the scan is.
#[derive(Clone, Debug, Default)]
pub(crate) struct P2lReader {
    /// The line that is looked at now or next.
    line: u32,
    current: Option<LineRead>,
}

impl P2lReader {
    /// Slots that it reads into.
    pub(crate) fn slots(unit: u32) -> u32 {
        READS_MAX as u32 * unit
    }

    /// The first line of which nothing has been looked at yet.
    pub(crate) fn next_line(&self) -> u32 {
        self.line + u32::from(self.current.is_some())
    }

    /// A line is about to be erased.
    pub(crate) fn invalidate_line(&mut self, line: u32) {
        if let Some(look) = self.current.as_mut().filter(|_| self.line == line) {
            look.erased = true;
        }
    }

    /// A line has been looked at. Returns which is next, and whether that is the first one again.
    pub(crate) fn advance(&mut self, lines: u32) -> (u32, bool) {
        self.current = None;
        self.line += 1;
        let wraps = self.line >= lines;
        self.line = if wraps { 0 } else { self.line };
        (self.line, wraps)
    }
}

impl Ftl {
    /// Looks at the line whose turn it is. Returns whether that has ended.
    pub(crate) fn read_line_p2l(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        if self.p2l_reader().current.is_none() && !self.start_line_read() {
            return true;
        }
        self.step_line_read(now, flash)
    }

    fn p2l_reader(&mut self) -> &mut P2lReader {
        &mut self.mapping.page_rebuild.reader
    }

    /// Begins to look at the line; `false` if nothing is to be read of it.
    fn start_line_read(&mut self) -> bool {
        let Some(line) = self.space.lines.lines.get(self.mapping.page_rebuild.reader.line as usize)
        else {
            return false;
        };
        if matches!(line.state, LineState::Free | LineState::Draining) {
            return false;
        }
        if let Some(list) = &line.p2l {
            for (place, &chunk) in (0..).zip(&line.chunks) {
                let first = self.env.geometry.first_sector_of(chunk);
                for sector in 0..self.space.lines.chunks[chunk as usize].write_pointer {
                    if let Some(oob) = list.oob(place, sector) {
                        self.mapping.page_rebuild.add_copy(
                            &self.mapping.l2p,
                            &self.env.geometry,
                            first + sector,
                            oob,
                        );
                    }
                }
            }
            return false;
        }
        let source = if line.footer == Footer::Valid { P2lSource::Footer } else { P2lSource::Oob };
        let unit_bytes =
            self.env.geometry.ws_opt as usize * self.env.geometry.sector_bytes as usize;
        let bytes = match source {
            P2lSource::Footer => vec![0; LineFooter::units(&self.env.plan) as usize * unit_bytes],
            P2lSource::Oob => Vec::new(),
        };
        let reads = [None; READS_MAX];
        self.p2l_reader().current = Some(LineRead {
            source,
            next: 0,
            reads,
            failed: false,
            unknown_below_seq: 0,
            erased: false,
            bytes,
        });
        true
    }

    /// Reads as much of the line as there are slots for. Returns whether all of it has been.
    fn step_line_read(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let Some(mut look) = self.p2l_reader().current.take() else { return true };
        let hurries =
            self.mapping.fetches.has_rebuild_waiters() || self.durability.checkpoint.is_wanted();
        let idle = self.host_reads_in_flight() == 0;
        loop {
            let mut under_way = look.reads.iter().flatten().filter(|r| r.in_flight).count();
            let most = if hurries { READS_MAX } else { usize::from(idle || under_way > 0) };
            for at in 0..READS_MAX {
                // One that failed goes again.
                let read = match look.reads[at] {
                    _ if under_way >= most => break,
                    Some(read) if read.in_flight => continue,
                    Some(_) if look.erased => {
                        look.reads[at] = None;
                        continue;
                    }
                    Some(read) => read,
                    None => match self.next_unit_read(&mut look) {
                        Some(read) => read,
                        None => continue,
                    },
                };
                under_way += 1;
                look.reads[at] =
                    Some(UnitRead { attempts: read.attempts + 1, in_flight: true, ..read });
                self.read_for_scan(now, at as u32, read.first_psn, flash);
            }
            let more = look.reads.iter().any(Option::is_some) || self.has_more(&mut look);
            if more {
                self.p2l_reader().current = Some(look);
                return false;
            }
            if look.erased || look.source == P2lSource::Footer && self.parse_footer(&look) {
                return true;
            }
            if look.source == P2lSource::Oob {
                if look.unknown_below_seq > 0 {
                    let line =
                        self.space.lines.lines.get(self.mapping.page_rebuild.reader.line as usize);
                    let (opening, newest) = line.map_or((0, u64::MAX), |l| (l.open_seq, l.max_seq));
                    self.mapping
                        .page_rebuild
                        .note_unreadable(opening, newest.min(look.unknown_below_seq));
                }
                return true;
            }
            // As if it had none.
            (look.source, look.next) = (P2lSource::Oob, 0);
        }
    }

    /// Whether something in memory says what is in a sector that cannot be read, or recovery had none of it.
    fn is_accounted(&self, psn: u32) -> bool {
        let logical = self.env.plan.logical;
        self.mapping.p2l.get(psn).is_some()
            || self.mapping.page_rebuild.was_unreadable(psn)
            || (logical..logical + self.env.plan.map_pages)
                .any(|page| self.mapping.l2p.is_mapped_to(page, psn))
    }

    fn read_for_scan(
        &mut self,
        now: Nanos,
        at: u32,
        first_psn: u32,
        flash: &mut impl FlashBackend,
    ) {
        let (unit, first_slot) = (
            self.env.geometry.ws_opt,
            self.mapping.fetches.scan_slot(at * self.env.geometry.ws_opt),
        );
        let mut addresses = [(0, 0); 64];
        for (i, address) in (0..).zip(&mut addresses[..unit as usize]) {
            *address = (first_psn + i, first_slot + i);
        }
        self.stats.rebuild_reads += u64::from(unit);
        let op = OpToken::new(OpKind::MapRead, self.mapping.fetches.scan_op(at));
        flash.read(now, op, &addresses[..unit as usize], ReadDest::Buffer);
    }

    /// Whether there is more to be read of a line.
    fn has_more(&self, look: &mut LineRead) -> bool {
        let next = look.next;
        let more = self.next_unit_read(look).is_some();
        if more {
            look.next = next;
        }
        more
    }

    /// The next write unit that is to be read, if there is one.
    fn next_unit_read(&self, look: &mut LineRead) -> Option<UnitRead> {
        let line = self.space.lines.lines.get(self.mapping.page_rebuild.reader.line as usize)?;
        let members = line.chunks.len() as u32;
        while !look.erased {
            let piece = look.next;
            let (member, sector) = match look.source {
                P2lSource::Footer => {
                    let units = LineFooter::units(&self.env.plan);
                    if piece >= units || members == 0 {
                        return None;
                    }
                    footer_unit_location(&self.env.geometry, members, units, piece)
                }
                P2lSource::Oob => {
                    let row = piece.checked_div(members)?;
                    if row * self.env.geometry.ws_opt >= self.env.geometry.sectors_per_chunk {
                        return None;
                    }
                    (piece % members, row * self.env.geometry.ws_opt)
                }
            };
            look.next += 1;
            let chunk = *line.chunks.get(member as usize)?;
            // What waits for its pair is in the write buffer, and its page of the map in a frame.
            let c = &self.space.lines.chunks[chunk as usize];
            let written = sector + self.env.geometry.ws_opt <= c.readable_end(&self.env.geometry);
            let first_psn = self.env.geometry.first_sector_of(chunk) + sector;
            if written && !c.offline {
                return Some(UnitRead {
                    unit_index: piece,
                    first_psn,
                    attempts: 0,
                    in_flight: false,
                });
            }
            look.failed |= look.source == P2lSource::Footer;
            if written && look.unknown_below_seq < u64::MAX {
                let mut unit = first_psn..first_psn + self.env.geometry.ws_opt;
                look.unknown_below_seq = if unit.all(|psn| self.is_accounted(psn)) {
                    look.unknown_below_seq
                } else {
                    u64::MAX
                };
            }
        }
        None
    }

    /// A read for the scan has ended. [`kick`](Ftl::kick) afterwards.
    pub(crate) fn scan_read_done(&mut self, at: u32, failed: u64, flash: &mut impl FlashBackend) {
        let first_slot = self.mapping.fetches.scan_slot(at * self.env.geometry.ws_opt);
        let look = self.p2l_reader().current.take();
        let mut look = look.unwrap_or_else(|| panic!("no line is being read"));
        let read = look.reads.get_mut(at as usize).and_then(Option::take);
        let read = read.filter(|read| read.in_flight);
        let read = read.unwrap_or_else(|| panic!("no read {at} of a line is in flight"));
        if failed != 0 && read.attempts < READ_ATTEMPTS {
            look.reads[at as usize] = Some(UnitRead { in_flight: false, ..read });
        } else if !look.erased {
            self.parse_unit(&mut look, read, first_slot, failed, flash);
        }
        self.p2l_reader().current = Some(look);
    }

    /// Takes what was read of a write unit.
    fn parse_unit(
        &mut self,
        look: &mut LineRead,
        read: UnitRead,
        first_slot: u32,
        failed: u64,
        flash: &mut impl FlashBackend,
    ) {
        let (unit, size) = (self.env.geometry.ws_opt, self.env.geometry.sector_bytes as usize);
        // All of a unit has one number.
        let mut number = None;
        for i in (0..unit).filter(|i| failed >> i & 1 == 0) {
            let (psn, slot) = (read.first_psn + i, first_slot + i);
            match look.source {
                P2lSource::Footer => {
                    flash.sync_slot(psn, slot);
                    let at = (read.unit_index * unit + i) as usize * size;
                    flash.read_slot(slot, &mut look.bytes[at..at + size]);
                }
                P2lSource::Oob => {
                    let mut bytes = [0; Oob::BYTES];
                    flash.read_slot_oob(psn, slot, &mut bytes);
                    if let Some(oob) = Oob::decode(&bytes) {
                        number = number.or(oob.lba.map(|_| oob.sequence));
                        self.mapping.page_rebuild.add_copy(
                            &self.mapping.l2p,
                            &self.env.geometry,
                            psn,
                            oob,
                        );
                    }
                }
            }
        }
        look.failed |= look.source == P2lSource::Footer && failed != 0;
        let number = number.unwrap_or(u64::MAX);
        for i in (0..unit).filter(|i| failed >> i & 1 != 0) {
            if look.source == P2lSource::Oob
                && look.unknown_below_seq < number
                && !self.is_accounted(read.first_psn + i)
            {
                look.unknown_below_seq = number;
            }
        }
    }

    /// Takes what the last metadata of the line says; `false` if it is not whole.
    fn parse_footer(&mut self, look: &LineRead) -> bool {
        let Some(line) = self.space.lines.lines.get(self.mapping.page_rebuild.reader.line as usize)
        else {
            return true;
        };
        let owner = self.env.plan.journal_owner;
        let last = LineFooter::decode(&self.env.geometry, owner, &line.chunks, &look.bytes);
        let Some(last) = last.filter(|_| !look.failed) else { return false };
        for (member, &chunk) in (0..).zip(&line.chunks) {
            let first = self.env.geometry.first_sector_of(chunk);
            for sector in 0..self.env.geometry.sectors_per_chunk {
                if let Some(oob) = last.p2l.oob(member, sector) {
                    self.mapping.page_rebuild.add_copy(
                        &self.mapping.l2p,
                        &self.env.geometry,
                        first + sector,
                        oob,
                    );
                }
            }
        }
        true
    }
}
