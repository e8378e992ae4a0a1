//! [`Placement`]: the choice of the location of the next write unit, in open lines.

use crate::durability::journal::Lsn;
use crate::env::Env;
use crate::ftl::STREAM_COUNT;
use crate::ids::{LineId, ToIndex, ToU32, WriteSeq};
use crate::space::Space;
use crate::space::active_pus::WIDTH_UNLIMITED;
use crate::space::lines::LineTable;
use crate::space::open_line::{Member, NO_RETAINED_UNIT, OpenLine, PlacementBudget, PreviousLine};
use nvme::{ChunkId, PuId};

/// The location of a write unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) line: LineId,
    pub(crate) chunk: ChunkId,
    /// The first sector in the chunk.
    pub(crate) sector: u32,
}

/// A location in a stream's open lines, or the number of write units that fit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenLineSpace {
    pub(crate) placed: Option<Placement>,
    pub(crate) free_units: u32,
}

/// The first unit of a ring that waits for a footer in an open line, and the free units of the
/// lines with such units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetainedUnits {
    pub(crate) first: u64,
    pub(crate) free_units: i64,
}

/// An open line that can be finished early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FinishCandidate {
    pub(crate) stream: usize,
    pub(crate) index: usize,
    pub(crate) free_units: u32,
    /// Whether the line takes units: its record is durable, and its header written.
    pub(crate) takes_units: bool,
    /// Whether a chunk of it is bad.
    pub(crate) has_bad_chunk: bool,
}

/// A step of finishing a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinishStep {
    /// No line is being finished, or its padding is in flight.
    Wait,
    /// The line is full.
    Full,
    /// Program padding here.
    Pad(Placement),
}

/// Padding belongs to no ring, and waits for no footer.
const PADDING: PlacementBudget =
    PlacementBudget { ring: crate::ftl::HOST, unit: NO_RETAINED_UNIT, units_to_spare: 0 };

impl Space {
    /// Returns the number of chunks of a stream's open lines that may be written now.
    #[inline]
    pub(crate) fn stripe_width(&self, configured: u32) -> u32 {
        if self.active_pus == configured { WIDTH_UNLIMITED } else { self.active_pus }
    }

    /// Open lines of a stream.
    pub(crate) fn open_lines(&self, stream: usize) -> &[OpenLine] {
        &self.open_lines[stream]
    }

    /// Returns the open chunks.
    pub(crate) fn open_members(&self) -> impl Iterator<Item = &Member> {
        self.open_lines.iter().flatten().flat_map(|open| &open.members)
    }

    /// The units of a ring that wait for footers.
    pub(crate) fn retained_units(&self, env: &Env, ring: usize) -> RetainedUnits {
        let mut retained = RetainedUnits { first: NO_RETAINED_UNIT, free_units: 0 };
        if env.plan.line_metadata_units == 0 {
            return retained;
        }
        let lines = self.open_lines.iter().flatten();
        for open in lines.filter(|o| o.retained[ring] != NO_RETAINED_UNIT) {
            retained.first = retained.first.min(open.retained[ring]);
            retained.free_units += i64::from(open.free_units);
        }
        retained
    }

    /// Places a unit on this chunk, which is in an open line of one of the streams.
    pub(crate) fn place_on_chunk(
        &mut self,
        env: &Env,
        from: PlacementBudget,
        streams: [usize; 4],
        chunk: ChunkId,
    ) -> Option<Placement> {
        let free = self.programs.has_slot(env.geometry.pu_of(chunk));
        let at = self.lines.chunk(chunk).member_index.index();
        for stream in streams.into_iter().filter(|_| free) {
            let mut open = self.open_lines[stream].iter_mut();
            let placed =
                open.find_map(|o| Some((o.line, o.allocate_at(&env.geometry, from, chunk, at)?)));
            if let Some((line, sector)) = placed {
                self.open_units -= 1;
                self.retire_full(stream);
                return Some(Placement { line, chunk, sector });
            }
        }
        None
    }

    /// Places a unit on the first of these chunks that takes one and is in an open line of the stream.
    pub(crate) fn place_on_trailing_chunk(
        &mut self,
        env: &Env,
        from: PlacementBudget,
        stream: usize,
        mut chunks: impl Iterator<Item = ChunkId>,
    ) -> Option<Placement> {
        let free = |chunk: &ChunkId| {
            let open = self.open_lines[stream].iter().flat_map(|o| &o.members);
            self.programs.has_slot(env.geometry.pu_of(*chunk))
                && open.filter(|m| m.next < m.end).any(|m| m.chunk == *chunk)
        };
        let chunk = chunks.find(free)?;
        let mut open = self.open_lines[stream].iter_mut();
        let (line, sector) =
            open.find_map(|o| Some((o.line, o.allocate_on(&env.geometry, from, chunk)?)))?;
        self.open_units -= 1;
        self.retire_full(stream);
        Some(Placement { line, chunk, sector })
    }

    /// Places a unit on a line that holds units of the ring.
    pub(crate) fn place_on_retained_line(
        &mut self,
        env: &Env,
        from: PlacementBudget,
    ) -> Option<Placement> {
        let (width, busy) = (self.stripe_width(env.plan.active_pus), &self.programs);
        for stream in 0..STREAM_COUNT {
            let lines = self.open_lines[stream].iter_mut();
            for open in lines.filter(|o| o.retained[from.ring] != NO_RETAINED_UNIT) {
                let placed = open.allocate(&env.geometry, from, width, busy, |_| false);
                if let Some((chunk, sector)) = placed {
                    let line = open.line;
                    self.open_units -= 1;
                    self.retire_full(stream);
                    return Some(Placement { line, chunk, sector });
                }
            }
        }
        None
    }

    /// Places a unit on one of a stream's open lines whose records are durable up to `recorded`, on a
    /// parallel unit that it need not `avoid`.
    pub(crate) fn place_on_open_line(
        &mut self,
        env: &Env,
        from: PlacementBudget,
        stream: usize,
        recorded: Lsn,
        avoid: impl Fn(PuId) -> bool,
    ) -> OpenLineSpace {
        let mut room = 0;
        let mut width = self.stripe_width(env.plan.active_pus);
        let busy = &self.programs;
        for open in self.open_lines[stream].iter_mut().take(2) {
            if open.recorded_lsn > recorded || width == 0 {
                room += open.free_units;
                continue;
            }
            let placed = open.allocate(&env.geometry, from, width, busy, &avoid);
            if let Some((chunk, sector)) = placed {
                let (line, is_full) = (open.line, open.free_units == 0);
                self.open_units -= 1;
                if is_full {
                    self.retire_full(stream);
                }
                return OpenLineSpace {
                    placed: Some(Placement { line, chunk, sector }),
                    free_units: 0,
                };
            }
            room += open.free_units;
            if width != WIDTH_UNLIMITED {
                width = width.saturating_sub(open.writable_members());
            }
        }
        OpenLineSpace { placed: None, free_units: room }
    }

    /// Opens a line of a stream; it takes units when it is [added](Space::add_open_line).
    pub(crate) fn open_line(&mut self, stream: usize, next_seq: WriteSeq) -> Option<OpenLine> {
        self.lines.open(stream as u8, next_seq)
    }

    /// Adds an open line whose record in the journal is at `recorded`; `None` if the journal does
    /// not record lines.
    pub(crate) fn add_open_line(
        &mut self,
        stream: usize,
        mut open: OpenLine,
        recorded: Option<Lsn>,
    ) {
        if let Some(recorded) = recorded {
            open.recorded_lsn = recorded;
            let open_seq = self.lines.line(open.line).open_seq;
            let named = PreviousLine { open_seq, first_chunk: open.members[0].chunk };
            open.previous = self.line_meta_writer.replace_previous(stream, named);
        }
        self.open_units += open.free_units;
        self.open_lines[stream].push(open);
    }

    /// Frees the chunks of a line that was opened and is not used.
    pub(crate) fn cancel_open(&mut self, open: &OpenLine) {
        self.lines.cancel_open(open.line);
    }

    /// Removes open lines that take no more units; they close when their programs have ended.
    fn retire_full(&mut self, stream: usize) {
        let lines: &mut LineTable = &mut self.lines;
        self.open_lines[stream].retain(|open| {
            if open.free_units == 0 {
                lines.lines[open.line.index()].fully_mapped = true;
            }
            open.free_units > 0
        });
    }

    /// Records that a chunk of an open line takes no more units.
    pub(crate) fn close_open_chunk(&mut self, env: &Env, chunk: ChunkId) {
        for open in self.open_lines.iter_mut().flatten().chain(&mut self.finishing) {
            open.close_member(&env.geometry, chunk);
        }
        self.open_units = self.count_open_units();
        (0..STREAM_COUNT).for_each(|stream| self.retire_full(stream));
    }

    /// Finds a location for padding that makes the units of a chunk readable that wait for their
    /// paired page. Returns it, and whether the line loses its footer for it.
    pub(crate) fn place_pair_padding(
        &mut self,
        env: &Env,
        blocked: ChunkId,
    ) -> (Option<Placement>, bool) {
        let geometry = &env.geometry;
        let (mut chunk, mut drops_footer) = (blocked, false);
        let has = |o: &&mut OpenLine| o.members.iter().any(|m| m.chunk == blocked);
        let Some(open) = self.open_lines.iter_mut().flatten().find(has) else {
            return (None, false);
        };
        let line = open.line;
        if open.is_blocked_on_footer(geometry, chunk) {
            // The space of the footer comes when the other chunks are full. With little left in them they
            // are padded, else there will be no footer.
            if open.free_units <= open.members.len().to_u32() {
                let programs = &self.programs;
                let other = open.other_writable_chunk(|chunk| !programs.has_pad_on(chunk));
                let Some(other) = other else { return (None, false) };
                chunk = other;
            } else {
                open.release_footer(geometry, &mut self.lines);
                drops_footer = true;
            }
        }
        let placed = open.allocate_on(geometry, PADDING, chunk);
        self.open_units = self.count_open_units();
        let Some(sector) = placed else { return (None, drops_footer) };
        (0..STREAM_COUNT).for_each(|stream| self.retire_full(stream));
        (Some(Placement { line, chunk, sector }), drops_footer)
    }

    /// Whether a line is being finished.
    #[inline]
    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing.is_some()
    }

    /// Returns an open line that can be finished, if no other is being finished.
    pub(crate) fn finish_candidate(&self, line: LineId, recorded: Lsn) -> Option<FinishCandidate> {
        if self.finishing.is_some() {
            return None;
        }
        let is_it = |open: &OpenLine| open.line == line;
        let (stream, index) = (0..STREAM_COUNT)
            .find_map(|s| Some((s, self.open_lines[s].iter().position(is_it)?)))?;
        let open = &self.open_lines[stream][index];
        let bad = |m: &Member| self.lines.chunk(m.chunk).bad;
        Some(FinishCandidate {
            stream,
            index,
            free_units: open.free_units,
            takes_units: !open.header_due && open.recorded_lsn <= recorded,
            has_bad_chunk: open.members.iter().any(bad),
        })
    }

    /// Begins to finish an open line.
    pub(crate) fn begin_finish(&mut self, candidate: FinishCandidate) -> Vec<ChunkId> {
        let open = self.open_lines[candidate.stream].remove(candidate.index);
        let chunks = open.members.iter().map(|m| m.chunk).collect();
        self.open_units -= open.free_units;
        self.finishing = Some(open);
        chunks
    }

    /// Continues with the line that is being finished: one write unit at a time, the least written
    /// chunk first.
    pub(crate) fn step_finish(&mut self, env: &Env) -> FinishStep {
        let Some(open) = &mut self.finishing else { return FinishStep::Wait };
        if open.free_units == 0 {
            return FinishStep::Full;
        }
        if !self.programs.pads().is_empty() {
            return FinishStep::Wait;
        }
        let busy = &self.programs;
        let takes = |m: &&Member| m.next < m.end && busy.has_slot(m.pu);
        let takes = open.members.iter().filter(takes).min_by_key(|m| m.next);
        let Some(chunk) = takes.map(|m| m.chunk) else { return FinishStep::Wait };
        match open.allocate_on(&env.geometry, PADDING, chunk) {
            Some(sector) => FinishStep::Pad(Placement { line: open.line, chunk, sector }),
            None => FinishStep::Wait,
        }
    }

    /// Ends the finishing of a full line, and returns it. Its refresh is requested when it closes.
    pub(crate) fn end_finish(&mut self) -> Option<LineId> {
        let line = self.finishing.take()?.line;
        let l = &mut self.lines.lines[line.index()];
        l.fully_mapped = true;
        l.refresh_requested |= !l.degraded;
        Some(line)
    }
}
