//! Lines: the unit of reclamation, one chunk on each active parallel unit.

use std::collections::VecDeque;

use crate::chunk::Chunk;
use crate::ftl::{COLD, PAGES};
use crate::line_meta::LineList;
use crate::open_line::OpenLine;
use crate::{ChunkChange, FtlConfig, Layout, ReverseMapKind, Shape, VictimPolicy};

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

#[derive(Clone, Debug)]
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
    pub(crate) meta: u32,
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
        let mut open = OpenLine::over(&self.shape, line, &members);
        if with_meta {
            let l = &mut self.lines[line as usize];
            l.last = Last::Kept;
            l.sectors -= self.meta * self.shape.unit;
            open.keep_for_metadata(&self.shape, self.meta);
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
