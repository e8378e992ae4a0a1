//! Lines: the unit of reclamation, one chunk on each active parallel unit; and the chunks they are
//! made of.

use std::collections::VecDeque;

use crate::ftl::{COLD, PAGES};
use crate::journal::Position;
use crate::line_meta::{LineList, data_end};
use crate::{ChunkChange, FtlConfig, Layout, ReverseMapKind, Shape, VictimPolicy};

/// No unit of a ring waits for last metadata.
pub(crate) const NOT_HELD: u64 = u64::MAX;

/// No line, no chunk, no unit.
pub(crate) const NONE: u32 = u32::MAX;

/// No physical sector, because it is not known any more where a logical one was.
pub(crate) const LOST: u32 = u32::MAX - 1;

/// Where a line is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineState {
    /// Not in use.
    Free,
    /// Being written, or programs of it are outstanding.
    Open,
    /// Fully written: the victim policy knows it.
    Closed,
    /// Its valid sectors are being found and read.
    Victim,
    /// All have been read; some are not durable elsewhere yet.
    Draining,
}

/// Where a line is with its last metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// It has none, and gets none.
    None,
    /// Its last write units are kept for it.
    Kept,
    /// They are being written, with it or with padding.
    Writing,
    /// It is on the media.
    Whole,
}

#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) state: LineState,
    /// Sectors that a logical sector points at.
    pub(crate) valid: u32,
    /// Sectors it holds when full.
    pub(crate) sectors: u32,
    /// Program operations outstanding.
    pub(crate) programs: u32,
    /// Whether nothing more will be mapped into it.
    pub(crate) full: bool,
    /// A chunk of it failed: it is to be reclaimed first.
    pub(crate) hurt: bool,
    /// Its data is to be moved, whoever needs space.
    pub(crate) refresh: bool,
    /// How many lines had been closed before.
    pub(crate) closed_at: u64,
    /// Moved sectors that are not durable elsewhere yet.
    pub(crate) moves: u32,
    /// Chunks being erased.
    pub(crate) erasing: u32,
    /// Position of the user's ring that must be durable before the line is erased: some sector was
    /// overwritten from there, and until the new copy is durable this is the one that counts.
    pub(crate) after: u64,
    /// A sector was trimmed: the trim must be durable before the line is erased.
    pub(crate) trimmed: bool,
    /// Which stream it takes.
    pub(crate) stream: u8,
    /// The largest number of a unit in it.
    pub(crate) newest: u64,
    /// The number of the next write unit when it was opened.
    pub(crate) opening: u64,
    pub(crate) last: Last,
    /// What was written in it: while it is written, if it gets last metadata or there is no reverse
    /// map in memory; while it is reclaimed, if there is none.
    pub(crate) list: Option<Box<LineList>>,
    pub(crate) chunks: Vec<u32>,
}

impl Line {
    /// A sector has become outdated that counts until that is durable: up to position `after` of the users'
    /// ring, or a trim.
    #[inline]
    pub(crate) fn outlives(&mut self, after: Option<u64>) {
        match after {
            Some(after) => self.after = after,
            None => self.trimmed = true,
        }
    }

    /// The valid sectors that the victim policy is told of. Those of a line of map pages, which are soon
    /// written again, weigh four times as much: to wait for that is cheaper than to move them.
    fn weight(&self) -> u32 {
        if usize::from(self.stream) != PAGES {
            return self.valid;
        }
        self.valid.saturating_mul(4).min(self.sectors.saturating_sub(1)).max(self.valid)
    }
}

/// A chunk of an open line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) chunk: u32,
    pub(crate) pu: u32,
    /// Next sector to be mapped; `end` when it takes no more.
    pub(crate) next: u32,
    /// Where data ends: at the chunk's size, or before the last metadata.
    pub(crate) end: u32,
    /// Where its tail begins: units from there on can be read only when the last metadata behind them is
    /// written. `end` if there is none.
    tail: u32,
}

impl Member {
    /// Write units of its tail that can still be mapped.
    fn left_in_tail(&self, shape: &Shape) -> u32 {
        (self.end - self.next.max(self.tail).min(self.end)) / shape.unit
    }
}

/// A line that is being written.
#[derive(Debug)]
pub(crate) struct OpenLine {
    pub(crate) line: u32,
    pub(crate) members: Vec<Member>,
    cursor: usize,
    /// Write units that can still be mapped; and those of them in tails of chunks that end with last
    /// metadata. What is in a tail keeps its slots of the write buffer until all of the line is full, so
    /// tails are begun when the rest of the line is sure to find slots beside it, or when nothing else is
    /// left. A chunk that has run ahead of the others by more can be given a unit of its tail for each
    /// older one that must be readable.
    pub(crate) room: u32,
    tails: u32,
    /// By ring, the first unit of it in a tail: what comes after that one finds slots only as far as the
    /// ring reaches. [`NOT_HELD`] if there is none.
    pub(crate) held: [u64; 2],
    /// Where the journal says that it was opened: only when that is durable it takes units.
    pub(crate) recorded: Position,
    /// Its first metadata is still to be written, in front of everything in the first chunk.
    pub(crate) first: bool,
    /// The line opened before it in its stream: its opening number and first chunk.
    pub(crate) previous: Option<(u64, u32)>,
}

/// The unit of a ring that is to be placed, and how many of the ring find slots from there on beside what
/// lines need whose tails were begun. Negative if a chunk ran so far ahead that it is too few.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) ring: usize,
    pub(crate) unit: u64,
    pub(crate) unclaimed: i64,
}

/// Per chunk, what is known beside its line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    /// Sectors programmed.
    pub(crate) persisted: u32,
    /// Units programmed or in flight whose slots are still held, oldest first: a list through the
    /// rings' units.
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// A program failed, or the chunk is known to be bad: retire it instead of erasing it.
    pub(crate) bad: bool,
    /// It has gone: nothing more can be written to it, and perhaps not be read.
    pub(crate) offline: bool,
    /// Something in it could not be read.
    pub(crate) suspect: bool,
    /// How often it has been erased, as far as is known.
    pub(crate) erases: u32,
    /// Its place among its line's chunks.
    pub(crate) place: u32,
}

impl Chunk {
    fn free(erases: u32) -> Chunk {
        Chunk {
            persisted: 0,
            first: NONE,
            last: NONE,
            bad: false,
            offline: false,
            suspect: false,
            erases,
            place: 0,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Lines {
    shape: Shape,
    active: u32,
    pub(crate) lines: Vec<Line>,
    free_lines: Vec<u32>,
    pub(crate) line_of: Vec<u32>,
    pub(crate) chunks: Vec<Chunk>,
    /// Per parallel unit: the next one to be opened first. With wear levelling the least worn, and
    /// among equals the one that has been free longest; else that one.
    free: Vec<VecDeque<u32>>,
    levels: bool,
    free_chunks: u32,
    pub(crate) erasing: u32,
    /// How many sectors of a line are valid is not known of all: no line is closed before.
    pub(crate) counting: bool,
    pu_cursor: u32,
    pub(crate) policy: Box<dyn VictimPolicy>,
    /// Closed lines with a failed chunk, taken before the policy's.
    pub(crate) hurt: VecDeque<u32>,
    /// Closed lines without a valid sector: they cost an erase and nothing else, whatever the policy.
    empty: VecDeque<u32>,
    /// Write units of metadata in a full line; 0 if lines have none.
    meta: u32,
    /// Whether every line keeps a list while it is written, and whether a closed one is read back
    /// from the media when it is wanted again.
    lists: bool,
    pub(crate) reads_lists: bool,
    /// Open lines that are full and wait for their last metadata to be written.
    pub(crate) due: VecDeque<u32>,
    pub(crate) closings: u64,
    /// Closed lines that are to be refreshed, and such that were reclaimed meanwhile.
    pub(crate) refresh: VecDeque<u32>,
    /// Erases of the most worn chunk.
    pub(crate) most_worn: u32,
    /// Chunks that were closed and emptied, if somebody wants to know.
    pub(crate) changes: Option<VecDeque<ChunkChange>>,
}

impl Lines {
    pub(crate) fn new(shape: Shape, layout: &Layout, config: &FtlConfig) -> Lines {
        let total = shape.total_chunks() as usize;
        Lines {
            shape,
            active: layout.active,
            lines: Vec::with_capacity(layout.lines as usize + 8),
            free_lines: Vec::new(),
            line_of: vec![NONE; total],
            chunks: vec![Chunk::free(0); total],
            free: vec![VecDeque::new(); shape.pus as usize],
            levels: config.wear_levelling,
            free_chunks: 0,
            erasing: 0,
            counting: false,
            pu_cursor: 0,
            policy: config.victim_policy.build(),
            hurt: VecDeque::new(),
            empty: VecDeque::new(),
            closings: 0,
            meta: layout.line_meta,
            lists: config.reverse_map == ReverseMapKind::Media,
            reads_lists: false,
            due: VecDeque::new(),
            refresh: VecDeque::new(),
            most_worn: 0,
            changes: None,
        }
    }

    /// Chunks that can be opened now.
    pub(crate) fn free_chunks(&self) -> u32 {
        self.free_chunks
    }

    /// A chunk is erased and can be written.
    pub(crate) fn add_free(&mut self, chunk: u32) {
        self.line_of[chunk as usize] = NONE;
        let erases = self.chunks[chunk as usize].erases;
        self.chunks[chunk as usize] = Chunk::free(erases);
        let free = &mut self.free[self.shape.pu_of(chunk) as usize];
        let at = if self.levels {
            free.partition_point(|c| self.chunks[*c as usize].erases <= erases)
        } else {
            free.len()
        };
        free.insert(at, chunk);
        self.free_chunks += 1;
    }

    /// A chunk has been erased once more.
    pub(crate) fn wear(&mut self, chunk: u32) {
        let erases = &mut self.chunks[chunk as usize].erases;
        *erases = erases.saturating_add(1);
        self.most_worn = self.most_worn.max(*erases);
    }

    /// Learns how often each chunk has been erased.
    pub(crate) fn learn_wear(&mut self, erases: impl Fn(u32) -> u32) {
        for (number, chunk) in (0..).zip(&mut self.chunks) {
            chunk.erases = erases(number);
        }
        self.most_worn = self.chunks.iter().map(|c| c.erases).max().unwrap_or(0);
        if self.levels {
            for free in &mut self.free {
                let by_wear = |chunk: &u32| self.chunks[*chunk as usize].erases;
                free.make_contiguous().sort_by_key(by_wear);
            }
        }
        for id in 0..self.lines.len() as u32 {
            if self.lines[id as usize].state == LineState::Closed {
                self.policy.worn(id, self.mean_wear(id));
            }
        }
    }

    /// How often a line's chunks have been erased, on average.
    pub(crate) fn mean_wear(&self, line: u32) -> u32 {
        let chunks = &self.lines[line as usize].chunks;
        let sum: u64 = chunks.iter().map(|c| u64::from(self.chunks[*c as usize].erases)).sum();
        (sum / (chunks.len() as u64).max(1)) as u32
    }

    /// Makes a line of chunks, each with the next sector to write.
    pub(crate) fn adopt(&mut self, members: &[(u32, u32)], state: LineState) -> u32 {
        let id = self.free_lines.pop().unwrap_or_else(|| {
            self.lines.push(Line {
                state: LineState::Free,
                valid: 0,
                sectors: 0,
                programs: 0,
                full: false,
                hurt: false,
                refresh: false,
                closed_at: 0,
                moves: 0,
                erasing: 0,
                after: 0,
                trimmed: false,
                stream: 0,
                newest: 0,
                opening: 0,
                last: Last::None,
                list: None,
                chunks: Vec::new(),
            });
            (self.lines.len() - 1) as u32
        });
        let line = &mut self.lines[id as usize];
        line.state = state;
        line.valid = 0;
        line.sectors = members.len() as u32 * self.shape.sectors;
        line.full = state != LineState::Open;
        line.hurt = false;
        line.refresh = false;
        line.moves = 0;
        line.after = 0;
        line.trimmed = false;
        line.newest = 0;
        line.opening = 0;
        line.last = Last::None;
        line.list = None;
        line.chunks.clear();
        for (place, &(chunk, _)) in (0..).zip(members) {
            line.chunks.push(chunk);
            self.line_of[chunk as usize] = id;
            self.chunks[chunk as usize].place = place;
        }
        id
    }

    /// Takes the free chunk of a parallel unit that is next, or the most worn.
    fn take_free(&mut self, pu: u32, worn: bool) -> Option<u32> {
        let free = &mut self.free[pu as usize];
        if !worn {
            return free.pop_front();
        }
        let wear = |at: &usize| self.chunks[free[*at] as usize].erases;
        let most = (0..free.len()).max_by_key(wear)?;
        free.remove(most)
    }

    /// A free chunk has gone. Returns whether it was free.
    pub(crate) fn remove_free(&mut self, chunk: u32) -> bool {
        let free = &mut self.free[self.shape.pu_of(chunk) as usize];
        let Some(at) = free.iter().position(|c| *c == chunk) else { return false };
        free.remove(at);
        self.free_chunks -= 1;
        true
    }

    /// Opens a line of a stream on the next parallel units in striping order that have a free chunk, for
    /// cold data on the most worn of them; the next write unit's number is `opening`. Only a line of
    /// full width has metadata: the capacity counts it per so many chunks.
    pub(crate) fn open(&mut self, stream: u8, opening: u64) -> Option<OpenLine> {
        let mut members = Vec::with_capacity(self.active as usize);
        let pus = self.shape.pus;
        let mut tried = 0;
        while members.len() < self.active as usize && tried < pus {
            let pu = self.shape.striped_pu((self.pu_cursor + tried) % pus);
            if let Some(chunk) = self.take_free(pu, usize::from(stream) == COLD) {
                members.push((chunk, 0));
            }
            tried += 1;
        }
        if members.is_empty() {
            return None;
        }
        self.pu_cursor = (self.pu_cursor + tried) % pus;
        self.free_chunks -= members.len() as u32;
        let line = self.adopt(&members, LineState::Open);
        let count = members.len() as u32;
        let with_meta = self.meta > 0 && count == self.active;
        let l = &mut self.lines[line as usize];
        (l.stream, l.opening) = (stream, opening);
        if with_meta || self.lists {
            l.list = Some(Box::new(LineList::new(&self.shape, count, opening)));
        }
        let mut open = self.open_line(line, &members);
        if with_meta {
            let (l, last) = (&mut self.lines[line as usize], self.meta - 1);
            l.last = Last::Kept;
            l.sectors -= self.meta * self.shape.unit;
            for (place, member) in (0..).zip(&mut open.members) {
                member.end = data_end(&self.shape, count, last, place);
                let pairs = self.shape.pair_units() * self.shape.unit;
                let ends_early = member.end < self.shape.sectors;
                member.tail = member.end.saturating_sub(if ends_early { pairs } else { 0 });
            }
            open.members[0].next = self.shape.unit;
            open.first = true;
            open.room -= self.meta;
            open.count_tails(&self.shape);
        }
        Some(open)
    }

    /// Marks a line as one whose last metadata is on the media.
    pub(crate) fn has_last(&mut self, id: u32) {
        let line = &mut self.lines[id as usize];
        line.last = Last::Whole;
        line.sectors = line.sectors.saturating_sub(self.meta * self.shape.unit);
    }

    /// Drops what is in memory of a closed line and can be read back, or is never asked for.
    fn drop_list(&mut self, id: u32) {
        let line = &mut self.lines[id as usize];
        // A line with a failed chunk is reclaimed at once.
        if !self.lists || self.reads_lists && !line.hurt {
            line.list = None;
        }
    }

    /// An open line over chunks with write pointers of their own.
    pub(crate) fn open_line(&self, line: u32, members: &[(u32, u32)]) -> OpenLine {
        let room = members.iter().map(|(_, next)| (self.shape.sectors - next) / self.shape.unit);
        OpenLine {
            line,
            tails: 0,
            held: [NOT_HELD; 2],
            room: room.sum(),
            members: members
                .iter()
                .map(|&(chunk, next)| Member {
                    chunk,
                    pu: self.shape.pu_of(chunk),
                    next,
                    end: self.shape.sectors,
                    tail: self.shape.sectors,
                })
                .collect(),
            // The first metadata goes first into the first one.
            cursor: usize::from(members.len() > 1),
            recorded: Position(0),
            first: false,
            previous: None,
        }
    }

    /// Closes a line if nothing more will be mapped and nothing is outstanding.
    pub(crate) fn close_if_done(&mut self, id: u32) {
        let line = &mut self.lines[id as usize];
        if line.state != LineState::Open || !line.full || line.programs > 0 {
            return;
        }
        match line.last {
            Last::Kept => {
                line.last = Last::Writing;
                self.due.push_back(id);
                return;
            }
            Last::Writing => return,
            Last::None | Last::Whole => {}
        }
        if self.counting {
            return;
        }
        line.state = LineState::Closed;
        line.closed_at = self.closings;
        // Some may have been counted twice (see `revive`).
        line.valid = line.valid.min(line.sectors);
        if line.refresh {
            self.refresh.push_back(id);
        }
        self.tell_closed(id);
        self.drop_list(id);
        let line = &self.lines[id as usize];
        if line.hurt {
            self.hurt.push_back(id);
        } else if line.valid == 0 {
            self.empty.push_back(id);
        } else {
            self.closings += 1;
            let (valid, sectors) = (line.weight(), line.sectors);
            self.policy.worn(id, self.mean_wear(id));
            self.policy.closed(id, valid, sectors, self.closings);
        }
    }

    /// A sector of the line lost its logical sector: to a copy that ends at position `after` of the
    /// user's ring, or to a trim.
    #[inline]
    pub(crate) fn invalidate(&mut self, psn: u32, after: Option<u64>) {
        let id = self.line_of[self.shape.chunk_of(psn) as usize];
        // Of no line is what is in a bad chunk.
        let Some(line) = self.lines.get_mut(id as usize) else { return };
        line.valid -= 1;
        line.outlives(after);
        if line.state == LineState::Closed {
            self.lost_one(id);
        }
    }

    /// A closed line has one valid sector less.
    #[inline]
    pub(crate) fn lost_one(&mut self, id: u32) {
        let line = &self.lines[id as usize];
        if line.hurt {
            return;
        }
        if line.valid == 0 {
            self.policy.remove(id);
            self.empty.push_back(id);
        } else {
            self.policy.invalidated(id, line.weight());
        }
    }

    /// So many sectors of a line turn out to be valid; some of them may have been counted.
    pub(crate) fn revive(&mut self, id: u32, sectors: u32) {
        let Some(line) = self.lines.get_mut(id as usize) else { return };
        let before = line.valid;
        line.valid = before.saturating_add(sectors).min(line.sectors.max(before));
        if line.state != LineState::Closed || line.hurt {
            return;
        }
        let (valid, all, closed_at) = (line.weight(), line.sectors, line.closed_at);
        if before == 0 {
            self.empty.retain(|e| *e != id);
        } else {
            self.policy.remove(id);
        }
        self.policy.worn(id, self.mean_wear(id));
        self.policy.closed(id, valid, all, closed_at);
    }

    /// Whether there are closed lines without a valid sector.
    #[inline]
    pub(crate) fn has_empty(&self) -> bool {
        !self.empty.is_empty()
    }

    /// Takes a closed line without a valid sector that is not being looked through: what is read of it
    /// would be taken for what is in the next line of its name.
    pub(crate) fn take_empty(&mut self, scanned: Option<u32>) -> Option<u32> {
        let at = self.empty.iter().position(|id| Some(*id) != scanned)?;
        let id = self.empty.remove(at)?;
        self.lines[id as usize].state = LineState::Victim;
        Some(id)
    }

    /// Takes the closed line with the fewest valid sectors, if those are no more than `room`.
    pub(crate) fn take_emptiest(&mut self, room: u64) -> Option<u32> {
        let closed = (0..).zip(&self.lines).filter(|(_, l)| l.state == LineState::Closed);
        let (id, line) = closed.min_by_key(|(_, l)| l.valid)?;
        if u64::from(line.valid) > room {
            return None;
        }
        self.take_out(id);
        Some(id)
    }

    /// Makes a closed line a victim, wherever it waits.
    pub(crate) fn take_out(&mut self, id: u32) {
        let line = &mut self.lines[id as usize];
        line.state = LineState::Victim;
        if line.hurt {
            self.hurt.retain(|h| *h != id);
        } else if line.valid == 0 {
            self.empty.retain(|e| *e != id);
        } else {
            self.policy.remove(id);
        }
    }

    /// Takes the next victim that has valid sectors, or is to be retired.
    pub(crate) fn take_victim(&mut self) -> Option<u32> {
        let id = match self.hurt.pop_front() {
            Some(id) => id,
            None => self.policy.take(self.closings)?,
        };
        self.lines[id as usize].state = LineState::Victim;
        Some(id)
    }

    /// A line that was opened just now is not used: its chunks are free again.
    pub(crate) fn unopen(&mut self, id: u32) {
        let chunks = std::mem::take(&mut self.lines[id as usize].chunks);
        for chunk in chunks.into_iter().rev() {
            self.line_of[chunk as usize] = NONE;
            let erases = self.chunks[chunk as usize].erases;
            let free = &mut self.free[self.shape.pu_of(chunk) as usize];
            let less = |c: &u32| self.chunks[*c as usize].erases < erases;
            let at = if self.levels { free.partition_point(less) } else { 0 };
            free.insert(at, chunk);
            self.free_chunks += 1;
        }
        self.release(id);
    }

    /// The line's chunks are on their way back to the free lists.
    pub(crate) fn release(&mut self, id: u32) {
        let line = &mut self.lines[id as usize];
        debug_assert_eq!((line.programs, line.moves, line.erasing), (0, 0, 0));
        line.state = LineState::Free;
        line.list = None;
        line.chunks.clear();
        self.free_lines.push(id);
    }
}

impl OpenLine {
    /// Maps the next write unit, of `from`: round robin over the members whose parallel unit `accepts`, of
    /// the first `width` that are not full.
    pub(crate) fn place(
        &mut self,
        shape: &Shape,
        from: Claim,
        width: u32,
        mut accepts: impl FnMut(u32) -> bool,
    ) -> Option<(u32, u32)> {
        if self.room == 0 {
            return None;
        }
        let fits = self.held[from.ring] != NOT_HELD || i64::from(self.room) <= from.unclaimed;
        let with_tails = fits || self.room <= self.tails;
        let n = self.window(width, with_tails);
        if self.cursor >= n {
            self.cursor = 0;
        }
        for i in 0..n {
            let at = if self.cursor + i >= n { self.cursor + i - n } else { self.cursor + i };
            let member = &mut self.members[at];
            let end = if with_tails { member.end } else { member.tail };
            if member.next < end && !(self.first && at == 0) && accepts(member.pu) {
                let placed = (member.chunk, member.next);
                self.took(shape, from, at);
                self.cursor = if at + 1 == n { 0 } else { at + 1 };
                return Some(placed);
            }
        }
        None
    }

    /// Members up to the `width`-th that takes a write unit now.
    #[inline]
    fn window(&self, width: u32, with_tails: bool) -> usize {
        let all = self.members.len();
        if width as usize >= all {
            return all;
        }
        let takes = |at: &usize| {
            let m = &self.members[*at];
            m.next < if with_tails { m.end } else { m.tail } && !(self.first && *at == 0)
        };
        let mut open = (0..all).filter(takes);
        width.checked_sub(1).map_or(0, |before| open.nth(before as usize).map_or(all, |m| m + 1))
    }

    /// A member's next write unit is one of `from`.
    #[inline]
    fn took(&mut self, shape: &Shape, from: Claim, at: usize) {
        let member = &mut self.members[at];
        if member.next >= member.tail {
            self.tails -= 1;
            self.held[from.ring] = self.held[from.ring].min(from.unit);
        }
        member.next += shape.unit;
        self.room -= 1;
    }

    /// Members that are not full.
    pub(crate) fn takers(&self) -> u32 {
        self.members.iter().filter(|m| m.next < m.end).count() as u32
    }

    /// Maps the next write unit of one chunk, of `from`.
    pub(crate) fn take(&mut self, shape: &Shape, from: Claim, chunk: u32) -> Option<u32> {
        let at = self.members.iter().position(|m| m.chunk == chunk)?;
        self.take_at(shape, from, chunk, at)
    }

    /// The same of the chunk that has this place in its line, if that is this one.
    #[inline]
    pub(crate) fn take_at(
        &mut self,
        shape: &Shape,
        from: Claim,
        chunk: u32,
        place: usize,
    ) -> Option<u32> {
        let mut places = self.members.iter().enumerate();
        debug_assert!(places.all(|(i, m)| m.chunk != chunk || i == place), "chunk {chunk}");
        let open = |m: &&Member| m.chunk == chunk && m.next < m.end;
        let sector = self.members.get(place).filter(open)?.next;
        if self.first && place == 0 {
            return None;
        }
        self.took(shape, from, place);
        Some(sector)
    }

    /// A chunk takes no more.
    pub(crate) fn abandon(&mut self, shape: &Shape, chunk: u32) {
        for member in &mut self.members {
            if member.chunk == chunk && member.next < member.end {
                self.room -= (member.end - member.next) / shape.unit;
                member.next = member.end;
            }
        }
        self.count_tails(shape);
    }

    fn count_tails(&mut self, shape: &Shape) {
        self.tails = self.members.iter().map(|m| m.left_in_tail(shape)).sum();
    }

    /// Whether a chunk takes no more data and waits for the last metadata: that is, for the others.
    pub(crate) fn waits_on(&self, shape: &Shape, chunk: u32) -> bool {
        let waits = |m: &Member| m.chunk == chunk && m.next == m.end && m.end < shape.sectors;
        self.room > 0 && self.members.iter().any(waits)
    }

    /// A chunk that takes more, and is none of these.
    pub(crate) fn other_with_room(&self, not: &[u32]) -> Option<u32> {
        let members = self.members.iter().skip(usize::from(self.first));
        members.filter(|m| m.next < m.end).map(|m| m.chunk).find(|c| !not.contains(c))
    }

    /// Gives the write units that are kept for the last metadata to data.
    pub(crate) fn give_up_last(&mut self, shape: &Shape, lines: &mut Lines) {
        let line = &mut lines.lines[self.line as usize];
        line.last = Last::None;
        line.sectors += lines.meta.saturating_sub(1) * shape.unit;
        self.held = [NOT_HELD; 2];
        for member in &mut self.members {
            if !lines.chunks[member.chunk as usize].bad {
                self.room += (shape.sectors - member.end) / shape.unit;
                (member.end, member.tail) = (shape.sectors, shape.sectors);
            }
        }
        self.count_tails(shape);
    }
}
