//! [`P2lReader`]: reads the P2L information of lines, one line after the other, cyclically
//! [LightNVM17 §4.2.2].
//!
//! The contents of an open line are known in memory if it has a table there. Otherwise they are in
//! the line footer, or in the out-of-band bytes of all its sectors. Guarantees: the consumer gets
//! everything in a line, or is told that a part could not be read; a line that is erased meanwhile
//! contributes nothing. The reader needs slots of its own and nothing else (no frame, no space, no
//! journal), so that it always completes. It reads [`READS`] write units at a time if a request
//! waits, otherwise one, and that only while no host read is in flight.

use std::collections::BTreeSet;

use nvme::PhysSector;
use serde::{Deserialize, Serialize};

use crate::Oob;
use crate::env::Env;
use crate::ids::{LineId, ToIndex, ToU32, WriteSeq};
use crate::mapping::l2p::L2p;
use crate::mapping::p2l::P2l;
use crate::space::line_meta::{LineFooter, footer_unit_location};
use crate::space::lines::{Footer, LineState, LineTable};

/// Write units that are read at a time.
const READS_MAX: usize = 4;
/// Read attempts before a unit counts as unreadable.
const READ_ATTEMPTS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum P2lSource {
    /// The line's footer.
    Footer,
    /// Out-of-band bytes.
    Oob,
}

/// A step of the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineScanStep {
    /// Read the write unit from this physical sector on, as read number `at`.
    Read { at: u32, first_phys: PhysSector },
    /// Wait for a read to end.
    Wait,
    /// The line has been read, or needs no reads.
    Done,
    /// The line has been read, except for sectors in units with sequence numbers up to `newest` that
    /// no metadata describes. It was opened at `opening`.
    Unreadable { opening: WriteSeq, newest: WriteSeq },
}

/// A completed read of a write unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanRead {
    /// Whether it read the sectors of the footer; otherwise out-of-band bytes.
    pub(crate) is_footer: bool,
    pub(crate) first_phys: PhysSector,
    /// The index of the unit in the footer.
    unit_index: u32,
}

/// The maps as the scan reads them.
#[derive(Clone, Copy)]
pub(super) struct ScanMaps<'a> {
    pub(super) l2p: &'a L2p,
    pub(super) p2l: &'a P2l,
    /// Sectors that the recovery could not read.
    pub(super) unreadable: &'a BTreeSet<PhysSector>,
}

impl ScanMaps<'_> {
    /// Returns whether memory describes an unreadable sector, or the recovery could not read it
    /// either.
    fn accounts_for(&self, env: &Env, phys: PhysSector) -> bool {
        self.p2l.get(phys).is_some()
            || self.unreadable.contains(&phys)
            || env.plan.pages().any(|page| self.l2p.is_mapped_to(env.plan.page_sector(page), phys))
    }
}

/// A write unit that is being read, or will be again.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct UnitRead {
    /// Index of the unit in the footer.
    unit_index: u32,
    first_phys: PhysSector,
    attempts: u32,
    in_flight: bool,
}

/// The read of one line.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct LineRead {
    source: P2lSource,
    next: u32,
    reads: [Option<UnitRead>; READS_MAX],
    /// Whether the footer could not be read.
    failed: bool,
    /// Unreadable units that nothing describes have sequence numbers up to this one.
    unknown_below_seq: WriteSeq,
    /// Whether the line is being erased, so that its reads are ignored.
    erased: bool,
    bytes: Vec<u8>,
}

/// Position of the scan.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct P2lReader {
    /// The line read now or next.
    line: LineId,
    current: Option<LineRead>,
}

impl P2lReader {
    /// Returns the number of slots that it reads into.
    pub(crate) fn slots(ws_opt: u32) -> u32 {
        READS_MAX.to_u32() * ws_opt
    }

    /// Returns the first line that the reader has not read.
    pub(super) fn next_line(&self) -> LineId {
        LineId::from_index(self.line.index() + usize::from(self.current.is_some()))
    }

    /// Records that a line is about to be erased.
    pub(super) fn invalidate_line(&mut self, line: LineId) {
        if let Some(look) = self.current.as_mut().filter(|_| self.line == line) {
            look.erased = true;
        }
    }

    /// Ends the read of a line. Returns the next one, and whether it is the first one again.
    pub(super) fn advance(&mut self, lines: usize) -> (LineId, bool) {
        self.current = None;
        let next = self.line.index() + 1;
        let wraps = next >= lines;
        self.line = LineId::from_index(if wraps { 0 } else { next });
        (self.line, wraps)
    }

    /// Continues the read of the current line, and passes the sectors found to `add`. With `hurries`
    /// several units are read at a time; otherwise one, and only if the host is `idle`.
    pub(super) fn step(
        &mut self,
        env: &Env,
        lines: &LineTable,
        maps: ScanMaps<'_>,
        hurries: bool,
        idle: bool,
        add: &mut impl FnMut(PhysSector, Oob),
    ) -> LineScanStep {
        if self.current.is_none() && !self.start_line(env, lines, add) {
            return LineScanStep::Done;
        }
        let Some(mut look) = self.current.take() else { return LineScanStep::Done };
        loop {
            let under_way = look.reads.iter().flatten().filter(|r| r.in_flight).count();
            let most = if hurries { READS_MAX } else { usize::from(idle || under_way > 0) };
            for at in 0..READS_MAX {
                // A read that failed is repeated.
                let read = match look.reads[at] {
                    _ if under_way >= most => break,
                    Some(read) if read.in_flight => continue,
                    Some(_) if look.erased => {
                        look.reads[at] = None;
                        continue;
                    }
                    Some(read) => read,
                    None => match self.next_unit(env, lines, maps, &mut look) {
                        Some(read) => read,
                        None => continue,
                    },
                };
                look.reads[at] =
                    Some(UnitRead { attempts: read.attempts + 1, in_flight: true, ..read });
                self.current = Some(look);
                return LineScanStep::Read { at: at.to_u32(), first_phys: read.first_phys };
            }
            let more = look.reads.iter().any(Option::is_some)
                || self.has_more(env, lines, maps, &mut look);
            if more {
                self.current = Some(look);
                return LineScanStep::Wait;
            }
            if look.erased
                || look.source == P2lSource::Footer && self.parse_footer(env, lines, &look, add)
            {
                return LineScanStep::Done;
            }
            if look.source == P2lSource::Oob {
                if look.unknown_below_seq == WriteSeq(0) {
                    return LineScanStep::Done;
                }
                let line = lines.get(self.line);
                let (opening, newest) =
                    line.map_or((WriteSeq(0), WriteSeq::MAX), |l| (l.open_seq, l.max_seq));
                let newest = newest.min(look.unknown_below_seq);
                return LineScanStep::Unreadable { opening, newest };
            }
            // As if the line had no footer.
            (look.source, look.next) = (P2lSource::Oob, 0);
        }
    }

    /// Starts the read of the line; `false` if it needs no reads.
    fn start_line(
        &mut self,
        env: &Env,
        lines: &LineTable,
        add: &mut impl FnMut(PhysSector, Oob),
    ) -> bool {
        let Some(line) = lines.get(self.line) else { return false };
        if matches!(line.state, LineState::Free | LineState::Draining) {
            return false;
        }
        if let Some(list) = &line.p2l {
            for (place, &chunk) in (0..).zip(&line.chunks) {
                let first = env.geometry.first_sector_of(chunk);
                for sector in 0..lines.chunk(chunk).write_pointer {
                    if let Some(oob) = list.oob(place, sector) {
                        add(first + sector, oob);
                    }
                }
            }
            return false;
        }
        let source = if line.footer == Footer::Valid { P2lSource::Footer } else { P2lSource::Oob };
        let unit_bytes = env.geometry.ws_opt.index() * env.geometry.sector_bytes.index();
        let bytes = match source {
            P2lSource::Footer => vec![0; LineFooter::units(&env.plan).index() * unit_bytes],
            P2lSource::Oob => Vec::new(),
        };
        self.current = Some(LineRead {
            source,
            next: 0,
            reads: [None; READS_MAX],
            failed: false,
            unknown_below_seq: WriteSeq(0),
            erased: false,
            bytes,
        });
        true
    }

    /// Whether there is more to be read of a line.
    fn has_more(
        &self,
        env: &Env,
        lines: &LineTable,
        maps: ScanMaps<'_>,
        look: &mut LineRead,
    ) -> bool {
        let next = look.next;
        let more = self.next_unit(env, lines, maps, look).is_some();
        if more {
            look.next = next;
        }
        more
    }

    /// Returns the next write unit to read, if any.
    fn next_unit(
        &self,
        env: &Env,
        lines: &LineTable,
        maps: ScanMaps<'_>,
        look: &mut LineRead,
    ) -> Option<UnitRead> {
        let geometry = &env.geometry;
        let line = lines.get(self.line)?;
        let members = line.chunks.len().to_u32();
        while !look.erased {
            let piece = look.next;
            let (member, sector) = match look.source {
                P2lSource::Footer => {
                    let units = LineFooter::units(&env.plan);
                    if piece >= units || members == 0 {
                        return None;
                    }
                    footer_unit_location(geometry, members, units, piece)
                }
                P2lSource::Oob => {
                    let row = piece.checked_div(members)?;
                    if row * geometry.ws_opt >= geometry.sectors_per_chunk {
                        return None;
                    }
                    (piece % members, row * geometry.ws_opt)
                }
            };
            look.next += 1;
            let chunk = *line.chunks.get(member.index())?;
            // A unit that waits for its paired page is in the write buffer, and its
            // translation page in a frame.
            let c = lines.chunk(chunk);
            let written = sector + geometry.ws_opt <= c.readable_end(geometry);
            let first_phys = geometry.first_sector_of(chunk) + sector;
            if written && !c.offline {
                return Some(UnitRead {
                    unit_index: piece,
                    first_phys,
                    attempts: 0,
                    in_flight: false,
                });
            }
            look.failed |= look.source == P2lSource::Footer;
            if written && look.unknown_below_seq < WriteSeq::MAX {
                let mut unit = first_phys.run(geometry.ws_opt);
                if !unit.all(|phys| maps.accounts_for(env, phys)) {
                    look.unknown_below_seq = WriteSeq::MAX;
                }
            }
        }
        None
    }

    /// Records that a read ended; `None` if the unit is read again or not needed any more.
    ///
    /// # Panics
    /// If no such read is in flight.
    pub(super) fn read_done(&mut self, at: u32, failed: u64) -> Option<ScanRead> {
        let look = self.current.as_mut().unwrap_or_else(|| panic!("no line is being read"));
        let read = look.reads.get_mut(at.index()).and_then(Option::take);
        let read = read.filter(|read| read.in_flight);
        let read = read.unwrap_or_else(|| panic!("no read {at} of a line is in flight"));
        if failed != 0 && read.attempts < READ_ATTEMPTS {
            look.reads[at.index()] = Some(UnitRead { in_flight: false, ..read });
            return None;
        }
        if look.erased {
            return None;
        }
        let is_footer = look.source == P2lSource::Footer;
        look.failed |= is_footer && failed != 0;
        let UnitRead { first_phys, unit_index, .. } = read;
        Some(ScanRead { is_footer, first_phys, unit_index })
    }

    /// Returns the memory for the `i`-th sector of a unit of the footer.
    pub(super) fn footer_bytes(&mut self, env: &Env, read: ScanRead, i: u32) -> &mut [u8] {
        let size = env.geometry.sector_bytes.index();
        let at = (read.unit_index * env.geometry.ws_opt + i).index() * size;
        let look = self.current.as_mut().expect("the line of the read is being read");
        &mut look.bytes[at..at + size]
    }

    /// Imports the out-of-band bytes of a unit. The sectors with a bit in `failed` could not be
    /// read.
    pub(super) fn import_oobs(
        &mut self,
        env: &Env,
        maps: ScanMaps<'_>,
        read: ScanRead,
        failed: u64,
        oobs: &[Option<Oob>],
        add: &mut impl FnMut(PhysSector, Oob),
    ) {
        // All sectors of a unit have one sequence number.
        let mut number = None;
        for (phys, oob) in read.first_phys.ascending().zip(oobs) {
            if let Some(oob) = *oob {
                number = number.or(oob.lba.map(|_| oob.sequence));
                add(phys, oob);
            }
        }
        let Some(look) = &mut self.current else { return };
        let number = number.unwrap_or(WriteSeq::MAX);
        for i in (0..oobs.len().to_u32()).filter(|i| failed >> i & 1 != 0) {
            if look.unknown_below_seq < number && !maps.accounts_for(env, read.first_phys + i) {
                look.unknown_below_seq = number;
            }
        }
    }

    /// Imports the entries of the line's footer; `false` if it is not valid.
    fn parse_footer(
        &self,
        env: &Env,
        lines: &LineTable,
        look: &LineRead,
        add: &mut impl FnMut(PhysSector, Oob),
    ) -> bool {
        let Some(line) = lines.get(self.line) else { return true };
        let owner = env.plan.journal.config.owner;
        let last = LineFooter::decode(&env.geometry, owner, &line.chunks, &look.bytes);
        let Some(last) = last.filter(|_| !look.failed) else { return false };
        for (member, &chunk) in (0..).zip(&line.chunks) {
            let first = env.geometry.first_sector_of(chunk);
            for sector in 0..env.geometry.sectors_per_chunk {
                if let Some(oob) = last.p2l.oob(member, sector) {
                    add(first + sector, oob);
                }
            }
        }
        true
    }
}
