//! [`LineMetaWriter`]: writes the metadata of lines [LightNVM17 §4.2.2]: the header when a line
//! takes its first unit, and the footer when the line is full.
//!
//! * Metadata uses write units of slots of its own, so that it waits for no ring. A ring waits for
//!   it only because of the media: the first unit of a chunk is programmed before the second.
//! * The footer is written when every program of the line has completed, so that it describes what
//!   is on the media. If a chunk has failed by then or fails meanwhile, padding replaces the
//!   footer: the paired pages of earlier units must be programmed [LightNVM17 §4.2.3], and the line
//!   is reclaimed next.
//! * A parallel unit has at most one footer program in flight, so that it always has capacity for
//!   host data besides. The footer has priority; otherwise a busy drive would never close a line.

use crate::CapacityPlan;
use crate::durability::journal::Lsn;
use crate::env::Env;
use crate::ftl::STREAM_COUNT;
use crate::ids::{LineId, ToIndex, ToU32, WriteSeq};
use crate::space::Space;
use crate::space::line_meta::{LineFooter, LineHeader, footer_unit_location};
use crate::space::lines::Footer;
use crate::space::open_line::PreviousLine;
use nvme::ChunkId;
use serde::{Deserialize, Serialize};

/// Minimum and maximum number of metadata write units in flight: as many as a footer has, because
/// the units in front of it leave the write buffer only when all of it is written.
const WRITES_RANGE: [usize; 2] = [4, 64];
/// Maximum number of write units of victims' metadata read at a time.
pub(crate) const VICTIM_READS_MAX: usize = 4;

/// A write unit of metadata in flight.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct MetaWrite {
    pub(crate) line: LineId,
    pub(crate) chunk: ChunkId,
    pub(crate) sector: u32,
}

/// A line whose footer is being written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FooterJob {
    line: LineId,
    /// The footer; empty if the flash keeps no contents.
    bytes: Vec<u8>,
    /// Write units started.
    next: u32,
    outstanding: u32,
    /// Whether all programs so far succeeded; otherwise padding is written instead.
    valid: bool,
}

/// The metadata writes of all lines.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LineMetaWriter {
    writes: Box<[Option<MetaWrite>]>,
    footer_jobs: Vec<FooterJob>,
    /// By stream, the line opened last.
    previous: [Option<PreviousLine>; STREAM_COUNT],
}

impl LineMetaWriter {
    /// Creates the state without writes in flight.
    pub(crate) fn new(layout: &CapacityPlan) -> LineMetaWriter {
        let writes = (LineFooter::units(layout).index()).clamp(WRITES_RANGE[0], WRITES_RANGE[1]);
        LineMetaWriter {
            writes: vec![None; writes].into(),
            footer_jobs: Vec::new(),
            previous: [None; STREAM_COUNT],
        }
    }

    /// Metadata programs in flight: chunk and first sector.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = (ChunkId, u32)> {
        self.writes.iter().flatten().map(|w| (w.chunk, w.sector))
    }

    /// Lines whose footers are being written, and the programs in flight of each footer.
    pub(crate) fn footers_in_flight(&self) -> impl Iterator<Item = (LineId, u32)> {
        self.footer_jobs.iter().map(|f| (f.line, f.outstanding))
    }

    /// Whether nothing is to be written.
    pub(crate) fn is_idle(&self) -> bool {
        self.footer_jobs.is_empty() && self.writes.iter().all(Option::is_none)
    }

    /// Records that a line was opened. Returns the line opened before it in its stream.
    pub(super) fn replace_previous(
        &mut self,
        stream: usize,
        line: PreviousLine,
    ) -> Option<PreviousLine> {
        self.previous[stream].replace(line)
    }

    /// Returns the number of write units of slots for metadata writes.
    pub(crate) fn write_units(&self) -> u32 {
        self.writes.len().to_u32()
    }

    /// Whether footers are being written.
    pub(crate) fn has_footers(&self) -> bool {
        !self.footer_jobs.is_empty()
    }

    /// The number of footers that are being written.
    pub(crate) fn footer_count(&self) -> usize {
        self.footer_jobs.len()
    }

    fn free_index(&self) -> Option<usize> {
        self.writes.iter().position(Option::is_none)
    }
}

/// A write unit of metadata to be programmed from the memory with this index.
#[derive(Clone, Debug)]
pub(crate) struct MetaUnit {
    pub(crate) index: usize,
    pub(crate) write: MetaWrite,
    /// The opening sequence number of the line, and the bytes; `None` for padding.
    pub(crate) contents: Option<MetaContents>,
}

/// The contents of a write unit of metadata.
#[derive(Clone, Debug)]
pub(crate) struct MetaContents {
    pub(crate) open_seq: WriteSeq,
    pub(crate) bytes: Vec<u8>,
}

impl FooterJob {
    /// The line.
    pub(crate) fn line(&self) -> LineId {
        self.line
    }
}

impl Space {
    /// Sets whether flash keeps data, so that the P2L of a closed line can be read back from it.
    #[inline]
    pub(crate) fn set_stores_data(&mut self, stores_data: bool) {
        self.lines.reload_p2l = stores_data;
    }

    /// Returns the next header to write: of an open line whose record is durable up to `recorded`,
    /// on a parallel unit that accepts a program.
    pub(crate) fn next_header(&mut self, env: &Env, recorded: Lsn) -> Option<MetaUnit> {
        for stream in 0..STREAM_COUNT {
            for i in 0..self.open_lines[stream].len() {
                let open = &self.open_lines[stream][i];
                if !open.header_due || open.recorded_lsn > recorded {
                    continue;
                }
                let (line, chunk, pu) = (open.line, open.members[0].chunk, open.members[0].pu);
                let index = self.line_meta_writer.free_index()?;
                if !self.programs.has_slot(pu) {
                    continue;
                }
                let identity = self.identity_of(env, line);
                let members = open.members.iter().map(|m| m.chunk).collect();
                let header = LineHeader { identity, previous: open.previous, members };
                self.open_lines[stream][i].header_due = false;
                let write = MetaWrite { line, chunk, sector: 0 };
                let contents = MetaContents { open_seq: identity.open_seq, bytes: header.encode() };
                return Some(MetaUnit { index, write, contents: Some(contents) });
            }
        }
        None
    }

    /// Whether footers are to be written, or being written.
    #[inline]
    pub(crate) fn has_footer_work(&self) -> bool {
        !self.lines.footer_due.is_empty() || self.line_meta_writer.has_footers()
    }

    /// Begins the footers of lines that are full.
    pub(crate) fn begin_footers(&mut self, env: &Env, stores_data: bool) {
        while let Some(line) = self.lines.footer_due.pop_front() {
            let identity = self.identity_of(env, line);
            let l = self.lines.line(line);
            let bytes = match &l.p2l {
                _ if l.degraded => None,
                Some(list) if stores_data => LineFooter::encode(identity, &l.chunks, list),
                _ => Some(Vec::new()),
            };
            let valid = bytes.is_some();
            let bytes = bytes.unwrap_or_default();
            let job = FooterJob { line, bytes, next: 0, outstanding: 0, valid };
            self.line_meta_writer.footer_jobs.push(job);
        }
    }

    /// Takes a footer job out of the list, to be returned or ended.
    pub(crate) fn take_footer(&mut self, at: usize) -> FooterJob {
        self.line_meta_writer.footer_jobs.swap_remove(at)
    }

    /// Returns a footer job to its place, unless it is complete. If it is, returns whether the line
    /// has a footer now.
    pub(crate) fn return_footer(&mut self, env: &Env, at: usize, job: FooterJob) -> Option<bool> {
        let jobs = &mut self.line_meta_writer.footer_jobs;
        if job.outstanding > 0 || job.next < LineFooter::units(&env.plan) {
            jobs.push(job);
            let last = jobs.len() - 1;
            jobs.swap(at, last);
            return None;
        }
        let l = &mut self.lines.lines[job.line.index()];
        l.footer = if job.valid { Footer::Valid } else { Footer::Absent };
        Some(job.valid)
    }

    /// Returns the next write unit of a footer to program, if a parallel unit and a slot are
    /// available.
    pub(crate) fn next_footer_unit(&mut self, env: &Env, job: &mut FooterJob) -> Option<MetaUnit> {
        let geometry = &env.geometry;
        let units = LineFooter::units(&env.plan);
        let bytes_per_unit = geometry.ws_opt.index() * geometry.sector_bytes.index();
        while job.next < units {
            let line = job.line;
            let members = &self.lines.line(line).chunks;
            let (place, sector) =
                footer_unit_location(geometry, members.len().to_u32(), units, job.next);
            let chunk = members[place.index()];
            if self.lines.chunk(chunk).bad {
                (job.valid, job.next) = (false, job.next + 1);
                continue;
            }
            let pu = geometry.pu_of(chunk);
            let index = self.line_meta_writer.free_index()?;
            let mut writes = self.line_meta_writer.writes.iter().flatten();
            let has_one = writes.any(|w| geometry.pu_of(w.chunk) == pu);
            if has_one || !self.programs.has_slot(pu) {
                return None;
            }
            let first = job.next.index() * bytes_per_unit;
            let rest = job.bytes.get(first..).unwrap_or_default();
            let bytes = rest[..rest.len().min(bytes_per_unit)].to_vec();
            let open_seq = self.lines.line(line).open_seq;
            let contents = job.valid.then_some(MetaContents { open_seq, bytes });
            (job.next, job.outstanding) = (job.next + 1, job.outstanding + 1);
            let write = MetaWrite { line, chunk, sector };
            return Some(MetaUnit { index, write, contents });
        }
        None
    }

    /// Records that the program of a write unit of metadata starts.
    pub(crate) fn metadata_started(&mut self, env: &Env, index: usize, write: MetaWrite) {
        self.line_meta_writer.writes[index] = Some(write);
        self.lines.hold_open(write.line);
        self.programs.start(env.geometry.pu_of(write.chunk));
    }

    /// Records that a program of metadata ended, and returns it.
    ///
    /// # Panics
    /// If it is not in flight.
    pub(crate) fn metadata_done(&mut self, env: &Env, index: u32) -> MetaWrite {
        let write = self.line_meta_writer.writes.get_mut(index.index()).and_then(Option::take);
        let write = write.unwrap_or_else(|| panic!("no metadata program {index} is in flight"));
        self.lines.program_ended(write.line);
        self.programs.complete(env.geometry.pu_of(write.chunk));
        write
    }

    /// Records the result of a program of a footer's write unit.
    pub(crate) fn footer_unit_done(&mut self, line: LineId, ok: bool) {
        let mut jobs = self.line_meta_writer.footer_jobs.iter_mut();
        if let Some(job) = jobs.find(|job| job.line == line) {
            job.outstanding -= 1;
            job.valid &= ok;
        }
    }
}
