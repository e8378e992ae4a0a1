//! [`LineScan`]: reads what lines say was written in them, one line after the other and round about
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
use crate::line_meta::{LastMeta, place_of_last};
use crate::lines::{Last, LineState};
use crate::{Flash, Ftl, Oob, OpId, ReadTarget};

/// Write units that are read at a time.
const READS: usize = 4;
/// How often one is read before it is given up.
const TRIES: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The last metadata.
    Last,
    /// Out-of-band bytes.
    Oob,
}

/// A write unit that is being read, or will be again.
#[derive(Clone, Copy, Debug)]
struct UnitRead {
    /// Which of the last metadata.
    piece: u32,
    first_psn: u32,
    tries: u32,
    under_way: bool,
}

/// The line that is being looked at.
#[derive(Clone, Debug)]
struct Look {
    source: Source,
    next: u32,
    reads: [Option<UnitRead>; READS],
    /// The last metadata could not be read.
    failed: bool,
    /// What could not be read otherwise, and nothing names, is in units with numbers up to this one.
    blind: u64,
    /// The line is being erased: what was read of it is not there.
    gone: bool,
    bytes: Vec<u8>,
}

/// Where the scan is.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineScan {
    /// The line that is looked at now or next.
    at: u32,
    look: Option<Look>,
}

impl LineScan {
    /// Slots that it reads into.
    pub(crate) fn slots(unit: u32) -> u32 {
        READS as u32 * unit
    }

    /// The first line of which nothing has been looked at yet.
    pub(crate) fn ahead(&self) -> u32 {
        self.at + u32::from(self.look.is_some())
    }

    /// A line is about to be erased.
    pub(crate) fn leave(&mut self, line: u32) {
        if let Some(look) = self.look.as_mut().filter(|_| self.at == line) {
            look.gone = true;
        }
    }

    /// A line has been looked at. Returns which is next, and whether that is the first one again.
    pub(crate) fn turn(&mut self, lines: u32) -> (u32, bool) {
        self.look = None;
        self.at += 1;
        let wraps = self.at >= lines;
        self.at = if wraps { 0 } else { self.at };
        (self.at, wraps)
    }
}

impl Ftl {
    /// Looks at the line whose turn it is. Returns whether that has ended.
    pub(crate) fn look_at_line(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        if self.scan().look.is_none() && !self.begin_look() {
            return true;
        }
        self.go_on_looking(now, flash)
    }

    fn scan(&mut self) -> &mut LineScan {
        &mut self.salvage.scan
    }

    /// Begins to look at the line; `false` if nothing is to be read of it.
    fn begin_look(&mut self) -> bool {
        let Some(line) = self.lines.lines.get(self.salvage.scan.at as usize) else { return false };
        if matches!(line.state, LineState::Free | LineState::Draining) {
            return false;
        }
        if let Some(list) = &line.list {
            for (place, &chunk) in (0..).zip(&line.chunks) {
                let first = self.shape.first_psn(chunk);
                for sector in 0..self.lines.chunks[chunk as usize].persisted {
                    if let Some(oob) = list.oob(place, sector) {
                        self.salvage.found(&self.map, &self.shape, first + sector, oob);
                    }
                }
            }
            return false;
        }
        let source = if line.last == Last::Whole { Source::Last } else { Source::Oob };
        let unit_bytes = self.shape.unit as usize * self.shape.sector_bytes as usize;
        let bytes = match source {
            Source::Last => vec![0; LastMeta::units(&self.layout) as usize * unit_bytes],
            Source::Oob => Vec::new(),
        };
        let reads = [None; READS];
        self.scan().look =
            Some(Look { source, next: 0, reads, failed: false, blind: 0, gone: false, bytes });
        true
    }

    /// Reads as much of the line as there are slots for. Returns whether all of it has been.
    fn go_on_looking(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        let Some(mut look) = self.scan().look.take() else { return true };
        let hurries = self.fetches.awaits_salvage() || self.checkpoint.is_wanted();
        let idle = self.reads_under_way() == 0;
        loop {
            let mut under_way = look.reads.iter().flatten().filter(|r| r.under_way).count();
            let most = if hurries { READS } else { usize::from(idle || under_way > 0) };
            for at in 0..READS {
                // One that failed goes again.
                let read = match look.reads[at] {
                    _ if under_way >= most => break,
                    Some(read) if read.under_way => continue,
                    Some(_) if look.gone => {
                        look.reads[at] = None;
                        continue;
                    }
                    Some(read) => read,
                    None => match self.next_look(&mut look) {
                        Some(read) => read,
                        None => continue,
                    },
                };
                under_way += 1;
                look.reads[at] = Some(UnitRead { tries: read.tries + 1, under_way: true, ..read });
                self.read_for_scan(now, at as u32, read.first_psn, flash);
            }
            let more = look.reads.iter().any(Option::is_some) || self.has_more(&mut look);
            if more {
                self.scan().look = Some(look);
                return false;
            }
            if look.gone || look.source == Source::Last && self.learn_from_last(&look) {
                return true;
            }
            if look.source == Source::Oob {
                if look.blind > 0 {
                    let line = self.lines.lines.get(self.salvage.scan.at as usize);
                    let (opening, newest) = line.map_or((0, u64::MAX), |l| (l.opening, l.newest));
                    self.salvage.cannot_look(opening, newest.min(look.blind));
                }
                return true;
            }
            // As if it had none.
            (look.source, look.next) = (Source::Oob, 0);
        }
    }

    /// Whether something in memory says what is in a sector that cannot be read, or recovery had none of it.
    fn is_named(&self, psn: u32) -> bool {
        let logical = self.layout.logical;
        self.reverse.get(psn).is_some()
            || self.salvage.was_unreadable(psn)
            || (logical..logical + self.layout.meta).any(|page| self.map.points_at(page, psn))
    }

    fn read_for_scan(&mut self, now: Nanos, at: u32, first_psn: u32, flash: &mut impl Flash) {
        let (unit, first_slot) = (self.shape.unit, self.fetches.scan_slot(at * self.shape.unit));
        let mut addresses = [(0, 0); 64];
        for (i, address) in (0..).zip(&mut addresses[..unit as usize]) {
            *address = (first_psn + i, first_slot + i);
        }
        self.stats.rebuild_reads += u64::from(unit);
        let op = OpId::new(OpKind::MapRead, self.fetches.scan_op(at));
        flash.read(now, op, &addresses[..unit as usize], ReadTarget::Slots);
    }

    /// Whether there is more to be read of a line.
    fn has_more(&self, look: &mut Look) -> bool {
        let next = look.next;
        let more = self.next_look(look).is_some();
        if more {
            look.next = next;
        }
        more
    }

    /// The next write unit that is to be read, if there is one.
    fn next_look(&self, look: &mut Look) -> Option<UnitRead> {
        let line = self.lines.lines.get(self.salvage.scan.at as usize)?;
        let members = line.chunks.len() as u32;
        while !look.gone {
            let piece = look.next;
            let (member, sector) = match look.source {
                Source::Last => {
                    let units = LastMeta::units(&self.layout);
                    if piece >= units || members == 0 {
                        return None;
                    }
                    place_of_last(&self.shape, members, units, piece)
                }
                Source::Oob => {
                    let row = piece.checked_div(members)?;
                    if row * self.shape.unit >= self.shape.sectors {
                        return None;
                    }
                    (piece % members, row * self.shape.unit)
                }
            };
            look.next += 1;
            let chunk = *line.chunks.get(member as usize)?;
            // What waits for its pair is in the write buffer, and its page of the map in a frame.
            let c = &self.lines.chunks[chunk as usize];
            let written = sector + self.shape.unit <= c.readable(&self.shape);
            let first_psn = self.shape.first_psn(chunk) + sector;
            if written && !c.offline {
                return Some(UnitRead { piece, first_psn, tries: 0, under_way: false });
            }
            look.failed |= look.source == Source::Last;
            if written && look.blind < u64::MAX {
                let mut unit = first_psn..first_psn + self.shape.unit;
                look.blind = if unit.all(|psn| self.is_named(psn)) { look.blind } else { u64::MAX };
            }
        }
        None
    }

    /// A read for the scan has ended. [`kick`](Ftl::kick) afterwards.
    pub(crate) fn scan_read_done(&mut self, at: u32, failed: u64, flash: &mut impl Flash) {
        let first_slot = self.fetches.scan_slot(at * self.shape.unit);
        let Some(mut look) = self.scan().look.take() else { return };
        if let Some(read) = look.reads.get_mut(at as usize).and_then(Option::take) {
            if failed != 0 && read.tries < TRIES {
                look.reads[at as usize] = Some(UnitRead { under_way: false, ..read });
            } else if !look.gone {
                self.take_unit(&mut look, read, first_slot, failed, flash);
            }
        }
        self.scan().look = Some(look);
    }

    /// Takes what was read of a write unit.
    fn take_unit(
        &mut self,
        look: &mut Look,
        read: UnitRead,
        first_slot: u32,
        failed: u64,
        flash: &mut impl Flash,
    ) {
        let (unit, size) = (self.shape.unit, self.shape.sector_bytes as usize);
        // All of a unit has one number.
        let mut number = None;
        for i in (0..unit).filter(|i| failed >> i & 1 == 0) {
            let (psn, slot) = (read.first_psn + i, first_slot + i);
            match look.source {
                Source::Last => {
                    flash.moved(psn, slot);
                    let at = (read.piece * unit + i) as usize * size;
                    flash.load(slot, &mut look.bytes[at..at + size]);
                }
                Source::Oob => {
                    let mut bytes = [0; Oob::BYTES];
                    flash.load_oob(psn, slot, &mut bytes);
                    if let Some(oob) = Oob::decode(&bytes) {
                        number = number.or(oob.lba.map(|_| oob.sequence));
                        self.salvage.found(&self.map, &self.shape, psn, oob);
                    }
                }
            }
        }
        look.failed |= look.source == Source::Last && failed != 0;
        let number = number.unwrap_or(u64::MAX);
        for i in (0..unit).filter(|i| failed >> i & 1 != 0) {
            if look.source == Source::Oob
                && look.blind < number
                && !self.is_named(read.first_psn + i)
            {
                look.blind = number;
            }
        }
    }

    /// Takes what the last metadata of the line says; `false` if it is not whole.
    fn learn_from_last(&mut self, look: &Look) -> bool {
        let Some(line) = self.lines.lines.get(self.salvage.scan.at as usize) else { return true };
        let owner = self.layout.owner;
        let last = LastMeta::decode(&self.shape, owner, &line.chunks, &look.bytes);
        let Some(last) = last.filter(|_| !look.failed) else { return false };
        for (member, &chunk) in (0..).zip(&line.chunks) {
            let first = self.shape.first_psn(chunk);
            for sector in 0..self.shape.sectors {
                if let Some(oob) = last.list.oob(member, sector) {
                    self.salvage.found(&self.map, &self.shape, first + sector, oob);
                }
            }
        }
        true
    }
}
