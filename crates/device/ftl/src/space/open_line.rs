//! [`OpenLine`]: a line that is being written, and the choice of the chunk for the next write unit.

use crate::FlashGeometry;
use crate::check::{Subject, Violation, require_eq};
use crate::durability::journal::Lsn;
use crate::ftl::RINGS;
use crate::ids::{LineId, ToIndex, ToU32, WriteSeq};
use crate::space::line_meta::data_end;
use crate::space::lines::{Footer, LineTable};
use crate::space::programs::ProgramsInFlight;
use collections::BitSet;
use nvme::{ChunkId, PuId};
use serde::{Deserialize, Serialize};

/// Position for a ring without units that wait for a footer.
pub(crate) const NO_RETAINED_UNIT: u64 = u64::MAX;

/// Index for a position in striping order at which a line has no member.
const NO_MEMBER: u16 = u16::MAX;

/// Number of members up to which all of them are looked at for the next write unit.
const FEW_MEMBERS: usize = 8;

/// A chunk of an open line.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) chunk: ChunkId,
    pub(crate) pu: PuId,
    /// Position of its parallel unit in striping order.
    stripe_position: u32,
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
    /// `None` if there are few members, or if they are not in striping order.
    by_position: Option<MemberPositions>,
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
    pub(crate) retained: [u64; RINGS.len()],
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
            stripe_position: shape.stripe_position(shape.pu_of(chunk)),
            next,
            end: shape.sectors_per_chunk,
            footer_bound_from: shape.sectors_per_chunk,
        };
        let members: Vec<Member> = chunks.into_iter().map(member).collect();
        let room = members.iter().map(|m| (m.end - m.next) / shape.ws_opt);
        OpenLine {
            by_position: MemberPositions::new(shape, &members),
            line,
            footer_bound_units: 0,
            retained: [NO_RETAINED_UNIT; RINGS.len()],
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
        for at in 0..self.members.len() {
            self.set_writable(at, self.members[at].next < self.members[at].end);
        }
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
        let at = match &self.by_position {
            // The members are in the order of the positions, so that the first is the next one.
            Some(by_position) => {
                let from = self.members[self.cursor].stripe_position.index();
                let free = programs.free_pus().common_cyclic(&by_position.writable, from);
                let mut free = free.map(|position| usize::from(by_position.members[position]));
                free.find(|at| *at < n && takes(*at))?
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
        if member.next >= member.end {
            self.set_writable(at, false);
        }
    }

    /// Records whether a member takes write units.
    #[inline]
    fn set_writable(&mut self, at: usize, is_writable: bool) {
        if let Some(by_position) = &mut self.by_position {
            let position = self.members[at].stripe_position.index();
            match is_writable {
                true => by_position.writable.insert(position),
                false => by_position.writable.remove(position),
            };
        }
    }

    /// Checks the counters of free write units, and the set of members that take some.
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
        for member in &self.members {
            let is_writable = member.next < member.end;
            let position = member.stripe_position.index();
            let by_position = self.by_position.as_ref();
            let found = by_position.map_or(is_writable, |by| by.writable.contains(position));
            require_eq!(Space, "a member that takes write units", subject, is_writable, found);
        }
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
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            if member.chunk == chunk && member.next < member.end {
                self.free_units -= (member.end - member.next) / shape.ws_opt;
                member.next = member.end;
                self.set_writable(at, false);
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
        self.retained = [NO_RETAINED_UNIT; RINGS.len()];
        for at in 0..self.members.len() {
            let member = &mut self.members[at];
            if !lines.chunk(member.chunk).bad {
                self.free_units += (shape.sectors_per_chunk - member.end) / shape.ws_opt;
                (member.end, member.footer_bound_from) =
                    (shape.sectors_per_chunk, shape.sectors_per_chunk);
                let is_writable = member.next < member.end;
                self.set_writable(at, is_writable);
            }
        }
        self.count_footer_bound(shape);
    }
}

/// The members of an open line by their positions in striping order.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MemberPositions {
    /// Index of the member at each position, [`NO_MEMBER`] if there is none.
    members: Vec<u16>,
    /// Positions of the members that take write units.
    writable: BitSet,
}

impl MemberPositions {
    /// Returns `None` if there are few members, or if they are not in striping order, from any position
    /// on and around.
    fn new(shape: &FlashGeometry, members: &[Member]) -> Option<MemberPositions> {
        if members.len() <= FEW_MEMBERS || members.len() > usize::from(NO_MEMBER) {
            return None;
        }
        let following = members.iter().cycle().skip(1);
        let turns = members.iter().zip(following);
        if turns.filter(|(m, next)| m.stripe_position >= next.stripe_position).count() > 1 {
            return None;
        }
        let pus = shape.pus.index();
        let mut by_position =
            MemberPositions { members: vec![NO_MEMBER; pus], writable: BitSet::new(pus) };
        for (at, member) in (0..NO_MEMBER).zip(members) {
            let position = member.stripe_position.index();
            by_position.members[position] = at;
            if member.next < member.end {
                by_position.writable.insert(position);
            }
        }
        Some(by_position)
    }
}

#[cfg(test)]
mod tests {
    use nvme::Geometry;
    use rng::Rng;

    use super::*;

    const META_UNITS: u32 = 3;

    fn shape() -> FlashGeometry {
        FlashGeometry::from_geometry(&Geometry {
            groups: 4,
            pus: 5,
            chunks: 2,
            sectors: 64,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 4,
            ws_opt: 4,
            mw_cunits: 8,
        })
    }

    /// The members of `shape`, in striping order from the third parallel unit on.
    fn members(shape: &FlashGeometry) -> impl Iterator<Item = WritableChunk> {
        let position = |i| shape.striped_pu((i + 3) % shape.pus);
        (0..shape.pus)
            .map(position)
            .map(|pu| WritableChunk { chunk: ChunkId(pu.get() * shape.chunks_per_pu), next: 0 })
    }

    #[test]
    fn members_are_found_by_position_as_they_are_one_by_one() {
        let shape = &shape();
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut indexed = OpenLine::new(shape, LineId::from_index(0), members(shape));
            if rng.below(2) == 0 {
                indexed.reserve_metadata(shape, META_UNITS);
                indexed.header_due = rng.below(2) == 0;
            }
            assert!(indexed.by_position.is_some());
            let mut searched = OpenLine { by_position: None, ..indexed.clone() };
            let mut programs = ProgramsInFlight::new(shape);
            let mut in_flight: Vec<PuId> = Vec::new();
            let mut placed = 0;
            for unit in 0..2_000 {
                indexed.check(shape).unwrap();
                if rng.below(40) == 0 {
                    let chunk = indexed.members[rng.below(20) as usize].chunk;
                    indexed.close_member(shape, chunk);
                    searched.close_member(shape, chunk);
                }
                if !in_flight.is_empty() && rng.below(3) == 0 {
                    let at = rng.below(in_flight.len() as u64) as usize;
                    programs.complete(in_flight.swap_remove(at));
                }
                let units_to_spare = rng.below(400) as i64 - 100;
                let from = PlacementBudget { ring: 0, unit, units_to_spare };
                let width = 1 + rng.below(25) as u32;
                let avoided = PuId(rng.below(40) as u32);
                let place = |line: &mut OpenLine| {
                    line.allocate(shape, from, width, &programs, |pu| pu == avoided)
                };
                let found = place(&mut indexed);
                assert_eq!(found, place(&mut searched), "seed {seed}, unit {unit}");
                if let Some((chunk, _)) = found {
                    programs.start(shape.pu_of(chunk));
                    in_flight.push(shape.pu_of(chunk));
                    placed += 1;
                }
            }
            assert!(placed > 10, "seed {seed}: {placed} units have a place");
        }
    }

    #[test]
    fn few_members_and_those_in_another_order_have_no_index() {
        let shape = &shape();
        assert!(
            OpenLine::new(shape, LineId::from_index(0), members(shape).skip(3))
                .by_position
                .is_some()
        );
        let few = OpenLine::new(shape, LineId::from_index(0), members(shape).take(FEW_MEMBERS));
        assert!(few.by_position.is_none());
        let mut order: Vec<WritableChunk> = members(shape).collect();
        order.swap(4, 9);
        assert!(OpenLine::new(shape, LineId::from_index(0), order).by_position.is_none());
        let twice = members(shape).chain(members(shape));
        assert!(OpenLine::new(shape, LineId::from_index(0), twice).by_position.is_none());
    }
}
