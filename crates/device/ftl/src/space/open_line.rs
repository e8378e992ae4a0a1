//! [`OpenLine`]: a line that is being written, and the choice of the chunk for the next write unit.

use crate::FlashGeometry;
use crate::check::{Subject, Violation, require_eq};
use crate::durability::journal::Lsn;
use crate::ids::{LineId, ToIndex, ToU32, WriteSeq};
use crate::space::line_meta::data_end;
use crate::space::lines::{Footer, LineTable};
use crate::space::programs::ProgramsInFlight;
use nvme::{ChunkId, PuId};
use serde::{Deserialize, Serialize};

/// Position for a ring without units that wait for a footer.
pub(crate) const NO_RETAINED_UNIT: u64 = u64::MAX;

/// Index for a parallel unit on which a line has no member.
const NO_MEMBER: u16 = u16::MAX;

/// A chunk of an open line.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) chunk: ChunkId,
    pub(crate) pu: PuId,
    /// Next sector to be mapped; `end` when it takes no more.
    pub(crate) next: u32,
    /// End of the data: the chunk's size, or the start of the footer.
    pub(crate) end: u32,
    /// Start of the tail, whose units can be read only when the footer behind them is written;
    /// `end` if there is none.
    footer_bound_from: u32,
}

impl Member {
    /// Write units of its tail that can still be mapped.
    fn footer_bound_remaining(&self, shape: &FlashGeometry) -> u32 {
        (self.end - self.next.max(self.footer_bound_from).min(self.end)) / shape.ws_opt
    }
}

/// A chunk that takes write units, from this sector on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WritableChunk {
    pub(crate) chunk: ChunkId,
    pub(crate) next: u32,
}

/// Identity of a line in the header of the line opened after it in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PreviousLine {
    pub(crate) open_seq: WriteSeq,
    pub(crate) first_chunk: ChunkId,
}

/// A line that is being written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OpenLine {
    pub(crate) line: LineId,
    pub(crate) members: Vec<Member>,
    /// Index of the member on each parallel unit, [`NO_MEMBER`] if there is none; `None` if several
    /// members are on one parallel unit.
    member_of_pu: Option<Vec<u16>>,
    cursor: usize,
    /// Write units that can still be placed; and those of them in the tails of chunks that end with
    /// a footer. A unit in a tail retains its slots of the write buffer until the line is full. So
    /// tails are begun only when the rest of the line is sure to find slots besides, or no other
    /// units remain. A chunk ahead of the others may get a tail unit for each older one that must
    /// become readable.
    pub(crate) free_units: u32,
    footer_bound_units: u32,
    /// By ring, the first unit in a tail. Later units find slots only within the ring's length
    /// behind it. [`NO_RETAINED_UNIT`] if there is none.
    pub(crate) retained: [u64; 2],
    /// Position of the journal's record of its opening. It takes units only when that is durable.
    pub(crate) recorded_lsn: Lsn,
    /// Whether the header is still to be written, in front of the data in the first chunk.
    pub(crate) header_due: bool,
    /// The line opened before it in its stream.
    pub(crate) previous: Option<PreviousLine>,
}

/// The unit of a ring to be placed, and the number of units from there on that find slots besides those
/// that lines with begun tails need. Negative if a chunk is too far ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacementBudget {
    pub(crate) ring: usize,
    pub(crate) unit: u64,
    pub(crate) units_to_spare: i64,
}

impl OpenLine {
    /// Creates a line over chunks with write pointers of their own.
    pub(crate) fn new(
        shape: &FlashGeometry,
        line: LineId,
        chunks: impl IntoIterator<Item = WritableChunk>,
    ) -> OpenLine {
        let member = |WritableChunk { chunk, next }| Member {
            chunk,
            pu: shape.pu_of(chunk),
            next,
            end: shape.sectors_per_chunk,
            footer_bound_from: shape.sectors_per_chunk,
        };
        let members: Vec<Member> = chunks.into_iter().map(member).collect();
        let room = members.iter().map(|m| (m.end - m.next) / shape.ws_opt);
        OpenLine {
            member_of_pu: index_by_pu(shape, &members),
            line,
            footer_bound_units: 0,
            retained: [NO_RETAINED_UNIT; 2],
            free_units: room.sum(),
            // The header is written to the first chunk first.
            cursor: usize::from(members.len() > 1),
            members,
            recorded_lsn: Lsn(0),
            header_due: false,
            previous: None,
        }
    }

    /// Reserves `meta` write units for metadata: the first of the first chunk, and the last ones of
    /// the line.
    pub(crate) fn reserve_metadata(&mut self, shape: &FlashGeometry, meta: u32) {
        let count = self.members.len().to_u32();
        for (place, member) in (0..).zip(&mut self.members) {
            member.end = data_end(shape, count, meta - 1, place);
            let pairs = shape.pair_units() * shape.ws_opt;
            let ends_early = member.end < shape.sectors_per_chunk;
            member.footer_bound_from =
                member.end.saturating_sub(if ends_early { pairs } else { 0 });
        }
        self.members[0].next = shape.ws_opt;
        self.header_due = true;
        self.free_units -= meta;
        self.count_footer_bound(shape);
    }

    /// Maps the next write unit, of `from`: round robin over the members whose parallel unit takes a
    /// program and need not be avoided, of the first `width` that are not full.
    pub(crate) fn allocate(
        &mut self,
        shape: &FlashGeometry,
        from: PlacementBudget,
        width: u32,
        programs: &ProgramsInFlight,
        avoid: impl Fn(PuId) -> bool,
    ) -> Option<(ChunkId, u32)> {
        if self.free_units == 0 {
            return None;
        }
        let fits = self.retained[from.ring] != NO_RETAINED_UNIT
            || i64::from(self.free_units) <= from.units_to_spare;
        let with_tails = fits || self.free_units <= self.footer_bound_units;
        let n = self.window(width, with_tails);
        if self.cursor >= n {
            self.cursor = 0;
        }
        let takes = |at: usize| {
            let member = &self.members[at];
            let end = if with_tails { member.end } else { member.footer_bound_from };
            member.next < end && !(self.header_due && at == 0) && !avoid(member.pu)
        };
        let at = match &self.member_of_pu {
            // Usually the next member will do, or few parallel units take a program.
            Some(member_of) => {
                let is_next = |at: &usize| programs.has_slot(self.members[*at].pu) && takes(*at);
                Some(self.cursor).filter(is_next).or_else(|| {
                    let free = programs.free_pus().iter();
                    let free = free.map(|pu| usize::from(member_of[pu]));
                    let free = free.filter(|at| *at < n && takes(*at));
                    // The number of steps from the cursor on.
                    free.min_by_key(|at| if *at >= self.cursor { *at } else { at + n })
                })?
            }
            None => {
                let mut places = (self.cursor..n).chain(0..self.cursor);
                places.find(|at| programs.has_slot(self.members[*at].pu) && takes(*at))?
            }
        };
        let placed = (self.members[at].chunk, self.members[at].next);
        self.advance(shape, from, at);
        self.cursor = if at + 1 == n { 0 } else { at + 1 };
        Some(placed)
    }

    /// Members up to the `width`-th that takes a write unit now.
    #[inline]
    fn window(&self, width: u32, with_tails: bool) -> usize {
        let all = self.members.len();
        if width.index() >= all {
            return all;
        }
        let takes = |at: &usize| {
            let m = &self.members[*at];
            m.next < if with_tails { m.end } else { m.footer_bound_from }
                && !(self.header_due && *at == 0)
        };
        let mut open = (0..all).filter(takes);
        width.checked_sub(1).map_or(0, |before| open.nth(before.index()).map_or(all, |m| m + 1))
    }

    /// Places a unit of `from` on a member's next write unit.
    #[inline]
    fn advance(&mut self, shape: &FlashGeometry, from: PlacementBudget, at: usize) {
        let member = &mut self.members[at];
        if member.next >= member.footer_bound_from {
            self.footer_bound_units -= 1;
            self.retained[from.ring] = self.retained[from.ring].min(from.unit);
        }
        member.next += shape.ws_opt;
        self.free_units -= 1;
    }

    /// Checks the counters of free write units.
    pub(crate) fn check(&self, geometry: &FlashGeometry) -> Result<(), Violation> {
        let subject = Subject::Line(self.line);
        let left: u32 = self.members.iter().map(|m| (m.end - m.next) / geometry.ws_opt).sum();
        require_eq!(Space, "free units of an open line", subject, left, self.free_units);
        let tails: u32 = self.members.iter().map(|m| m.footer_bound_remaining(geometry)).sum();
        require_eq!(
            Space,
            "free units in front of a footer",
            subject,
            tails,
            self.footer_bound_units
        );
        Ok(())
    }

    /// Members that are not full.
    pub(crate) fn writable_members(&self) -> u32 {
        self.members.iter().filter(|m| m.next < m.end).count().to_u32()
    }

    /// Maps the next write unit of one chunk, of `from`.
    pub(crate) fn allocate_on(
        &mut self,
        shape: &FlashGeometry,
        from: PlacementBudget,
        chunk: ChunkId,
    ) -> Option<u32> {
        let at = self.members.iter().position(|m| m.chunk == chunk)?;
        self.allocate_at(shape, from, chunk, at)
    }

    /// Takes the next write unit of the member with this index if it is the given chunk.
    #[inline]
    pub(crate) fn allocate_at(
        &mut self,
        shape: &FlashGeometry,
        from: PlacementBudget,
        chunk: ChunkId,
        place: usize,
    ) -> Option<u32> {
        let mut places = self.members.iter().enumerate();
        debug_assert!(places.all(|(i, m)| m.chunk != chunk || i == place), "{chunk}");
        let open = |m: &&Member| m.chunk == chunk && m.next < m.end;
        let sector = self.members.get(place).filter(open)?.next;
        if self.header_due && place == 0 {
            return None;
        }
        self.advance(shape, from, place);
        Some(sector)
    }

    /// Records that a chunk takes no more units.
    pub(crate) fn close_member(&mut self, shape: &FlashGeometry, chunk: ChunkId) {
        for member in &mut self.members {
            if member.chunk == chunk && member.next < member.end {
                self.free_units -= (member.end - member.next) / shape.ws_opt;
                member.next = member.end;
            }
        }
        self.count_footer_bound(shape);
    }

    fn count_footer_bound(&mut self, shape: &FlashGeometry) {
        self.footer_bound_units =
            self.members.iter().map(|m| m.footer_bound_remaining(shape)).sum();
    }

    /// Returns whether a chunk takes no more data and waits for the footer, that is, for the other
    /// chunks.
    pub(crate) fn is_blocked_on_footer(&self, shape: &FlashGeometry, chunk: ChunkId) -> bool {
        let waits =
            |m: &Member| m.chunk == chunk && m.next == m.end && m.end < shape.sectors_per_chunk;
        self.free_units > 0 && self.members.iter().any(waits)
    }

    /// Returns another writable chunk for which `will_do` holds.
    pub(crate) fn other_writable_chunk(
        &self,
        will_do: impl Fn(ChunkId) -> bool,
    ) -> Option<ChunkId> {
        let members = self.members.iter().skip(usize::from(self.header_due));
        members.filter(|m| m.next < m.end).map(|m| m.chunk).find(|chunk| will_do(*chunk))
    }

    /// Releases the write units that are reserved for the footer to data.
    pub(crate) fn release_footer(&mut self, shape: &FlashGeometry, lines: &mut LineTable) {
        let line = &mut lines.lines[self.line.index()];
        line.footer = Footer::Absent;
        line.sectors += lines.metadata_units.saturating_sub(1) * shape.ws_opt;
        self.retained = [NO_RETAINED_UNIT; 2];
        for member in &mut self.members {
            if !lines.chunk(member.chunk).bad {
                self.free_units += (shape.sectors_per_chunk - member.end) / shape.ws_opt;
                (member.end, member.footer_bound_from) =
                    (shape.sectors_per_chunk, shape.sectors_per_chunk);
            }
        }
        self.count_footer_bound(shape);
    }
}

/// Returns the index of the member on each parallel unit; `None` if one has several members.
fn index_by_pu(shape: &FlashGeometry, members: &[Member]) -> Option<Vec<u16>> {
    let mut member_of = vec![NO_MEMBER; shape.pus.index()];
    for (at, member) in (0..NO_MEMBER).zip(members) {
        let of_pu = &mut member_of[member.pu.index()];
        if *of_pu != NO_MEMBER {
            return None;
        }
        *of_pu = at;
    }
    (members.len() <= usize::from(NO_MEMBER)).then_some(member_of)
}
