//! [`Metadata`]: writes what lines say of themselves (LightNVM paper section 4.2.2), first when a line
//! takes its first unit, and last when nothing else goes into it.
//!
//! * It goes through write units of slots of its own, so that it waits for no ring, and none for it
//!   but where the media has it so: the first unit of a chunk is programmed before the second.
//! * The last metadata is written when every program of the line has ended, so that what it says is
//!   what is on the media. If a chunk has failed by then or fails meanwhile, padding takes its place:
//!   the paired pages of what was written before must be programmed (section 4.2.3), and the line is
//!   reclaimed next.
//! * A parallel unit has one program of last metadata under way at most, so that there is always a
//!   place for users' data beside it; that one goes first, or a busy drive would never close a line.

use clock::Nanos;
use nvme::Status;

use crate::flash::OpKind;
use crate::ftl::{GC, STREAMS, USER};
use crate::line_meta::{FirstMeta, LastMeta, LineName, place_of_last};
use crate::lines::Last;
use crate::program::PROGRAMS_PER_PU;
use crate::{Entry, Flash, Ftl, Layout, OpId, WriteUnit};

/// Write units of metadata under way, at least and at most: as many as the last metadata of a line, because
/// what is in front of it leaves the write buffer only when all of it is written.
const WRITES: [usize; 2] = [4, 64];
/// Write units of victims' metadata that are read at once.
pub(crate) const READS: usize = 4;

/// A write unit of metadata under way.
#[derive(Clone, Copy, Debug)]
struct Write {
    line: u32,
    chunk: u32,
    sector: u32,
}

/// A line whose last write units are being written.
#[derive(Clone, Debug)]
struct Finish {
    line: u32,
    /// The last metadata; empty if contents are not kept.
    bytes: Vec<u8>,
    /// Write units begun.
    next: u32,
    outstanding: u32,
    /// All of it has gone well so far; else padding is written.
    whole: bool,
}

/// Lines' metadata on its way.
#[derive(Clone, Debug)]
pub(crate) struct Metadata {
    writes: Box<[Option<Write>]>,
    finishing: Vec<Finish>,
    /// By stream, the line opened last: its opening number and first chunk.
    previous: [Option<(u64, u32)>; STREAMS],
}

impl Metadata {
    /// Nothing under way, in lines of this layout.
    pub(crate) fn new(layout: &Layout) -> Metadata {
        let writes = (LastMeta::units(layout) as usize).clamp(WRITES[0], WRITES[1]);
        Metadata {
            writes: vec![None; writes].into(),
            finishing: Vec::new(),
            previous: [None; STREAMS],
        }
    }

    /// Whether nothing is to be written.
    pub(crate) fn is_idle(&self) -> bool {
        self.finishing.is_empty() && self.writes.iter().all(Option::is_none)
    }

    /// A line was opened: the one before it in its stream.
    pub(crate) fn follow(&mut self, stream: usize, line: (u64, u32)) -> Option<(u64, u32)> {
        self.previous[stream].replace(line)
    }

    fn free(&self) -> Option<usize> {
        self.writes.iter().position(Option::is_none)
    }
}

impl Ftl {
    /// Slots for metadata of lines, to be written and to be read.
    pub(crate) fn metadata_slots(&self) -> u32 {
        let reads = if self.reverse.is_in_memory() { 0 } else { READS };
        let writes = self.metadata.writes.len();
        if self.layout.line_meta == 0 { 0 } else { (writes + reads) as u32 * self.shape.unit }
    }

    fn first_metadata_slot(&self) -> u32 {
        let rings = self.rings[USER].capacity() + self.rings[GC].capacity();
        rings + self.shape.unit + self.fetches.slots()
    }

    /// The slots that a victim's metadata is read into.
    pub(crate) fn metadata_read_slot(&self, read: usize) -> u32 {
        self.first_metadata_slot() + (self.metadata.writes.len() + read) as u32 * self.shape.unit
    }

    fn write_metadata(
        &mut self,
        now: Nanos,
        at: usize,
        write: Write,
        bytes: Option<(u64, &[u8])>,
        flash: &mut impl Flash,
    ) {
        let Write { line, chunk, sector } = write;
        let unit = self.shape.unit;
        let first_slot = self.first_metadata_slot() + at as u32 * unit;
        let mut sectors =
            bytes.map_or(&[][..], |(_, b)| b).chunks(self.shape.sector_bytes as usize);
        for slot in first_slot..first_slot + unit {
            flash.store(slot, sectors.next().unwrap_or_default());
        }
        self.metadata.writes[at] = Some(write);
        self.lines.lines[line as usize].programs += 1;
        self.programs_on[self.shape.pu_of(chunk) as usize] += 1;
        self.programs += 1;
        self.stats.programs += 1;
        match bytes {
            Some(_) => self.stats.metadata += u64::from(unit),
            None => self.stats.padding += u64::from(unit),
        }
        let entries = &[Entry::PADDING; 64][..unit as usize];
        let (metadata, sequence) = (bytes.is_some(), bytes.map_or(0, |(opening, _)| opening));
        let unit = WriteUnit { chunk, sector, first_slot, sequence, entries, metadata };
        flash.program(now, OpId::new(OpKind::Meta, at as u32), unit);
    }

    fn name_of(&self, line: u32) -> LineName {
        let l = &self.lines.lines[line as usize];
        LineName { owner: self.layout.owner, stream: l.stream, opening: l.opening }
    }

    /// Writes the first metadata of open lines that may take units.
    pub(crate) fn begin_lines(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        self.lines.reads_lists = flash.keeps_data();
        if self.layout.line_meta == 0 {
            return false;
        }
        let mut moved = false;
        for stream in 0..STREAMS {
            for i in 0..self.open[stream].len() {
                let open = &self.open[stream][i];
                if !open.first || open.recorded > self.journal.durable() {
                    continue;
                }
                let (line, chunk, pu) = (open.line, open.members[0].chunk, open.members[0].pu);
                let Some(at) = self.metadata.free() else { return moved };
                if self.programs_on[pu as usize] >= PROGRAMS_PER_PU {
                    continue;
                }
                let name = self.name_of(line);
                let members = open.members.iter().map(|m| m.chunk).collect();
                let first = FirstMeta { name, previous: open.previous, members };
                self.open[stream][i].first = false;
                let write = Write { line, chunk, sector: 0 };
                let bytes = first.encode();
                self.write_metadata(now, at, write, Some((name.opening, &bytes)), flash);
                moved = true;
            }
        }
        moved
    }

    /// Writes the last metadata of lines that are full.
    #[inline(always)]
    pub(crate) fn finish_lines(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        let none = self.lines.due.is_empty() && self.metadata.finishing.is_empty();
        !none && self.go_on_finishing(now, flash)
    }

    #[inline(never)]
    fn go_on_finishing(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        while let Some(line) = self.lines.due.pop_front() {
            let name = self.name_of(line);
            let l = &self.lines.lines[line as usize];
            let bytes = match &l.list {
                _ if l.hurt => None,
                Some(list) if flash.keeps_data() => LastMeta::encode(name, &l.chunks, list),
                _ => Some(Vec::new()),
            };
            let whole = bytes.is_some();
            let bytes = bytes.unwrap_or_default();
            self.metadata.finishing.push(Finish { line, bytes, next: 0, outstanding: 0, whole });
        }
        let mut moved = false;
        let mut at = 0;
        while at < self.metadata.finishing.len() {
            let mut finish = self.metadata.finishing.swap_remove(at);
            moved |= self.go_on_with_last(now, &mut finish, flash);
            if finish.outstanding > 0 || finish.next < LastMeta::units(&self.layout) {
                self.metadata.finishing.push(finish);
                let last = self.metadata.finishing.len() - 1;
                self.metadata.finishing.swap(at, last);
                at += 1;
                continue;
            }
            let l = &mut self.lines.lines[finish.line as usize];
            l.last = if finish.whole { Last::Whole } else { Last::None };
            self.stats.lines_without_metadata += u64::from(!finish.whole);
            self.lines.close_if_done(finish.line);
            moved = true;
        }
        moved
    }

    /// Starts as many of a line's last write units as are taken.
    fn go_on_with_last(&mut self, now: Nanos, finish: &mut Finish, flash: &mut impl Flash) -> bool {
        let (units, mut moved) = (LastMeta::units(&self.layout), false);
        let bytes_per_unit = self.shape.unit as usize * self.shape.sector_bytes as usize;
        while finish.next < units {
            let line = finish.line;
            let members = &self.lines.lines[line as usize].chunks;
            let (place, sector) =
                place_of_last(&self.shape, members.len() as u32, units, finish.next);
            let chunk = members[place as usize];
            if self.lines.chunks[chunk as usize].bad {
                (finish.whole, finish.next) = (false, finish.next + 1);
                continue;
            }
            let pu = self.shape.pu_of(chunk);
            let Some(at) = self.metadata.free() else { break };
            let has_one = self.metadata.writes.iter().flatten();
            let has_one = has_one.map(|w| self.shape.pu_of(w.chunk)).any(|p| p == pu);
            if has_one || self.programs_on[pu as usize] >= PROGRAMS_PER_PU {
                break;
            }
            let first = finish.next as usize * bytes_per_unit;
            let rest = finish.bytes.get(first..).unwrap_or_default();
            let piece = &rest[..rest.len().min(bytes_per_unit)];
            let opening = self.lines.lines[line as usize].opening;
            let bytes = finish.whole.then_some((opening, piece));
            self.write_metadata(now, at, Write { line, chunk, sector }, bytes, flash);
            (finish.next, finish.outstanding) = (finish.next + 1, finish.outstanding + 1);
            moved = true;
        }
        moved
    }

    /// A program of metadata has ended.
    pub(crate) fn metadata_program_done(&mut self, at: u32, status: Status) {
        let write = self.metadata.writes.get_mut(at as usize).and_then(Option::take);
        let Some(Write { line, chunk, sector }) = write else { return };
        self.lines.lines[line as usize].programs -= 1;
        self.programs_on[self.shape.pu_of(chunk) as usize] -= 1;
        self.programs -= 1;
        self.blocked = [false; STREAMS];
        if status.is_success() {
            self.lines.chunks[chunk as usize].programmed(sector + self.shape.unit);
        } else {
            self.program_failed(chunk);
        }
        if let Some(finish) = self.metadata.finishing.iter_mut().find(|f| f.line == line) {
            finish.outstanding -= 1;
            finish.whole &= status.is_success();
        }
        self.release_readable(chunk);
        self.rings[USER].settle();
        self.rings[GC].settle();
        self.lines.close_if_done(line);
    }
}
