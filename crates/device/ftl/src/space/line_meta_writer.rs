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
use crate::ftl::{GC, HOST, STREAM_COUNT};
use crate::space::line_meta::{LineFooter, LineHeader, LineIdentity, footer_unit_location};
use crate::space::lines::Footer;
use crate::{BufferEntry, CapacityPlan, FlashBackend, Ftl, OpToken, WriteUnit};

/// Write units of metadata under way, at least and at most: as many as the last metadata of a line, because
/// what is in front of it leaves the write buffer only when all of it is written.
const WRITES_RANGE: [usize; 2] = [4, 64];
/// Write units of victims' metadata that are read at once.
pub(crate) const VICTIM_READS_MAX: usize = 4;

/// A write unit of metadata under way.
#[derive(Clone, Copy, Debug)]
struct MetaWrite {
    line: u32,
    chunk: u32,
    sector: u32,
}

/// A line whose last write units are being written.
#[derive(Clone, Debug)]
struct FooterJob {
    line: u32,
    /// The last metadata; empty if contents are not kept.
    bytes: Vec<u8>,
    /// Write units begun.
    next: u32,
    outstanding: u32,
    /// All of it has gone well so far; else padding is written.
    valid: bool,
}

/// Lines' metadata on its way.
#[derive(Clone, Debug)]
pub(crate) struct LineMetaWriter {
    writes: Box<[Option<MetaWrite>]>,
    footer_jobs: Vec<FooterJob>,
    /// By stream, the line opened last: its opening number and first chunk.
    previous: [Option<(u64, u32)>; STREAM_COUNT],
}

impl LineMetaWriter {
    /// Nothing under way, in lines of this layout.
    pub(crate) fn new(layout: &CapacityPlan) -> LineMetaWriter {
        let writes = (LineFooter::units(layout) as usize).clamp(WRITES_RANGE[0], WRITES_RANGE[1]);
        LineMetaWriter {
            writes: vec![None; writes].into(),
            footer_jobs: Vec::new(),
            previous: [None; STREAM_COUNT],
        }
    }

    /// Metadata programs in flight: chunk and first sector.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = (u32, u32)> {
        self.writes.iter().flatten().map(|w| (w.chunk, w.sector))
    }

    /// Lines whose footers are being written, and the programs in flight of each footer.
    pub(crate) fn footers_in_flight(&self) -> impl Iterator<Item = (u32, u32)> {
        self.footer_jobs.iter().map(|f| (f.line, f.outstanding))
    }

    /// Whether nothing is to be written.
    pub(crate) fn is_idle(&self) -> bool {
        self.footer_jobs.is_empty() && self.writes.iter().all(Option::is_none)
    }

    /// A line was opened: the one before it in its stream.
    pub(crate) fn replace_previous(
        &mut self,
        stream: usize,
        line: (u64, u32),
    ) -> Option<(u64, u32)> {
        self.previous[stream].replace(line)
    }

    fn free_slot(&self) -> Option<usize> {
        self.writes.iter().position(Option::is_none)
    }
}

impl Ftl {
    /// Slots for metadata of lines, to be written and to be read.
    pub(crate) fn metadata_slots(&self) -> u32 {
        let reads = if self.mapping.has_p2l() { 0 } else { VICTIM_READS_MAX };
        let writes = self.space.line_meta_writer.writes.len();
        if self.env.plan.line_metadata_units == 0 {
            0
        } else {
            (writes + reads) as u32 * self.env.geometry.ws_opt
        }
    }

    fn first_metadata_slot(&self) -> u32 {
        let rings = self.buffer.ring(HOST).capacity() + self.buffer.ring(GC).capacity();
        rings + self.env.geometry.ws_opt + self.mapping.slots()
    }

    /// The slots that a victim's metadata is read into.
    pub(crate) fn metadata_read_slot(&self, read: usize) -> u32 {
        self.first_metadata_slot()
            + (self.space.line_meta_writer.writes.len() + read) as u32 * self.env.geometry.ws_opt
    }

    fn write_metadata(
        &mut self,
        now: Nanos,
        at: usize,
        write: MetaWrite,
        bytes: Option<(u64, &[u8])>,
        flash: &mut impl FlashBackend,
    ) {
        let MetaWrite { line, chunk, sector } = write;
        let unit = self.env.geometry.ws_opt;
        let first_slot = self.first_metadata_slot() + at as u32 * unit;
        let mut sectors =
            bytes.map_or(&[][..], |(_, b)| b).chunks(self.env.geometry.sector_bytes as usize);
        for slot in first_slot..first_slot + unit {
            flash.write_slot(slot, sectors.next().unwrap_or_default());
        }
        self.space.line_meta_writer.writes[at] = Some(write);
        self.space.lines.lines[line as usize].programs_in_flight += 1;
        self.space.programs.start(self.env.geometry.pu_of(chunk));
        self.stats.programs += 1;
        match bytes {
            Some(_) => self.stats.metadata += u64::from(unit),
            None => self.stats.padding += u64::from(unit),
        }
        let entries = &[BufferEntry::PADDING; 64][..unit as usize];
        let (metadata, sequence) = (bytes.is_some(), bytes.map_or(0, |(opening, _)| opening));
        let unit = WriteUnit { chunk, sector, first_slot, sequence, entries, metadata };
        flash.program(now, OpToken::new(OpKind::Meta, at as u32), unit);
    }

    fn identity_of(&self, line: u32) -> LineIdentity {
        let l = &self.space.lines.lines[line as usize];
        LineIdentity { owner: self.env.plan.journal_owner, stream: l.stream, open_seq: l.open_seq }
    }

    /// Writes the first metadata of open lines that may take units.
    pub(crate) fn write_headers(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        self.space.lines.reload_p2l = flash.stores_data();
        if self.env.plan.line_metadata_units == 0 {
            return false;
        }
        let mut moved = false;
        for stream in 0..STREAM_COUNT {
            for i in 0..self.space.open_lines[stream].len() {
                let open = &self.space.open_lines[stream][i];
                if !open.header_due || open.recorded_lsn > self.durability.journal().durable() {
                    continue;
                }
                let (line, chunk, pu) = (open.line, open.members[0].chunk, open.members[0].pu);
                let Some(at) = self.space.line_meta_writer.free_slot() else { return moved };
                if !self.space.programs.has_slot(pu) {
                    continue;
                }
                let name = self.identity_of(line);
                let members = open.members.iter().map(|m| m.chunk).collect();
                let first = LineHeader { identity: name, previous: open.previous, members };
                self.space.open_lines[stream][i].header_due = false;
                let write = MetaWrite { line, chunk, sector: 0 };
                let bytes = first.encode();
                self.write_metadata(now, at, write, Some((name.open_seq, &bytes)), flash);
                moved = true;
            }
        }
        moved
    }

    /// Writes the last metadata of lines that are full.
    #[inline(always)]
    pub(crate) fn write_footers(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let none = self.space.lines.footer_due.is_empty()
            && self.space.line_meta_writer.footer_jobs.is_empty();
        !none && self.step_footers(now, flash)
    }

    #[inline(never)]
    fn step_footers(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        while let Some(line) = self.space.lines.footer_due.pop_front() {
            let name = self.identity_of(line);
            let l = &self.space.lines.lines[line as usize];
            let bytes = match &l.p2l {
                _ if l.degraded => None,
                Some(list) if flash.stores_data() => LineFooter::encode(name, &l.chunks, list),
                _ => Some(Vec::new()),
            };
            let whole = bytes.is_some();
            let bytes = bytes.unwrap_or_default();
            self.space.line_meta_writer.footer_jobs.push(FooterJob {
                line,
                bytes,
                next: 0,
                outstanding: 0,
                valid: whole,
            });
        }
        let mut moved = false;
        let mut at = 0;
        while at < self.space.line_meta_writer.footer_jobs.len() {
            let mut finish = self.space.line_meta_writer.footer_jobs.swap_remove(at);
            moved |= self.step_footer(now, &mut finish, flash);
            if finish.outstanding > 0 || finish.next < LineFooter::units(&self.env.plan) {
                self.space.line_meta_writer.footer_jobs.push(finish);
                let last = self.space.line_meta_writer.footer_jobs.len() - 1;
                self.space.line_meta_writer.footer_jobs.swap(at, last);
                at += 1;
                continue;
            }
            let l = &mut self.space.lines.lines[finish.line as usize];
            l.footer = if finish.valid { Footer::Valid } else { Footer::Absent };
            self.stats.lines_without_metadata += u64::from(!finish.valid);
            self.close_if_done(finish.line);
            moved = true;
        }
        moved
    }

    /// Starts as many of a line's last write units as are taken.
    fn step_footer(
        &mut self,
        now: Nanos,
        finish: &mut FooterJob,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let (units, mut moved) = (LineFooter::units(&self.env.plan), false);
        let bytes_per_unit =
            self.env.geometry.ws_opt as usize * self.env.geometry.sector_bytes as usize;
        while finish.next < units {
            let line = finish.line;
            let members = &self.space.lines.lines[line as usize].chunks;
            let (place, sector) =
                footer_unit_location(&self.env.geometry, members.len() as u32, units, finish.next);
            let chunk = members[place as usize];
            if self.space.lines.chunks[chunk as usize].bad {
                (finish.valid, finish.next) = (false, finish.next + 1);
                continue;
            }
            let pu = self.env.geometry.pu_of(chunk);
            let Some(at) = self.space.line_meta_writer.free_slot() else { break };
            let has_one = self.space.line_meta_writer.writes.iter().flatten();
            let has_one = has_one.map(|w| self.env.geometry.pu_of(w.chunk)).any(|p| p == pu);
            if has_one || !self.space.programs.has_slot(pu) {
                break;
            }
            let first = finish.next as usize * bytes_per_unit;
            let rest = finish.bytes.get(first..).unwrap_or_default();
            let piece = &rest[..rest.len().min(bytes_per_unit)];
            let opening = self.space.lines.lines[line as usize].open_seq;
            let bytes = finish.valid.then_some((opening, piece));
            self.write_metadata(now, at, MetaWrite { line, chunk, sector }, bytes, flash);
            (finish.next, finish.outstanding) = (finish.next + 1, finish.outstanding + 1);
            moved = true;
        }
        moved
    }

    /// A program of metadata has ended.
    pub(crate) fn metadata_program_done(&mut self, at: u32, status: Status) {
        let write = self.space.line_meta_writer.writes.get_mut(at as usize).and_then(Option::take);
        let write = write.unwrap_or_else(|| panic!("no metadata program {at} is in flight"));
        let MetaWrite { line, chunk, sector } = write;
        self.space.lines.lines[line as usize].programs_in_flight -= 1;
        self.space.programs.complete(self.env.geometry.pu_of(chunk));
        if status.is_success() {
            self.space.lines.chunks[chunk as usize]
                .on_programmed(sector + self.env.geometry.ws_opt);
        } else {
            self.program_failed(chunk);
        }
        if let Some(finish) =
            self.space.line_meta_writer.footer_jobs.iter_mut().find(|f| f.line == line)
        {
            finish.outstanding -= 1;
            finish.valid &= status.is_success();
        }
        self.release_readable_units(chunk);
        self.buffer.advance_watermarks();
        self.close_if_done(line);
    }
}
