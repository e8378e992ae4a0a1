//! Lines: the unit of reclamation, one chunk on each active parallel unit; and the chunks they are
//! made of.

use std::collections::VecDeque;

use crate::journal::Position;
use crate::{Layout, Shape, VictimPolicy};

/// No line, no chunk, no unit.
pub(crate) const NONE: u32 = u32::MAX;

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
    pub(crate) chunks: Vec<u32>,
}

/// A chunk of an open line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) chunk: u32,
    pub(crate) pu: u32,
    /// Next sector to be mapped; the chunk's size when it takes no more.
    pub(crate) next: u32,
}

/// A line that is being written.
#[derive(Debug)]
pub(crate) struct OpenLine {
    pub(crate) line: u32,
    pub(crate) members: Vec<Member>,
    cursor: usize,
    /// Write units that can still be mapped.
    pub(crate) room: u32,
    /// Where the journal says that it was opened: only when that is durable it takes units.
    pub(crate) recorded: Position,
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
    /// How often it has been erased, as far as is known.
    pub(crate) erases: u32,
}

impl Chunk {
    fn free(erases: u32) -> Chunk {
        Chunk { persisted: 0, first: NONE, last: NONE, bad: false, erases }
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
    pu_cursor: u32,
    pub(crate) policy: Box<dyn VictimPolicy>,
    /// Closed lines with a failed chunk, taken before the policy's.
    pub(crate) hurt: VecDeque<u32>,
    /// Closed lines without a valid sector: they cost an erase and nothing else, whatever the policy.
    empty: VecDeque<u32>,
    closings: u64,
}

impl Lines {
    pub(crate) fn new(
        shape: Shape,
        layout: &Layout,
        policy: Box<dyn VictimPolicy>,
        levels: bool,
    ) -> Lines {
        let total = shape.total_chunks() as usize;
        Lines {
            shape,
            active: layout.active,
            lines: Vec::with_capacity(layout.lines as usize + 8),
            free_lines: Vec::new(),
            line_of: vec![NONE; total],
            chunks: vec![Chunk::free(0); total],
            free: vec![VecDeque::new(); shape.pus as usize],
            levels,
            free_chunks: 0,
            erasing: 0,
            pu_cursor: 0,
            policy,
            hurt: VecDeque::new(),
            empty: VecDeque::new(),
            closings: 0,
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
    }

    /// Learns how often each chunk has been erased.
    pub(crate) fn learn_wear(&mut self, erases: impl Fn(u32) -> u32) {
        for (number, chunk) in (0..).zip(&mut self.chunks) {
            chunk.erases = erases(number);
        }
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
    fn mean_wear(&self, line: u32) -> u32 {
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
                moves: 0,
                erasing: 0,
                after: 0,
                trimmed: false,
                stream: 0,
                newest: 0,
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
        line.moves = 0;
        line.after = 0;
        line.trimmed = false;
        line.newest = 0;
        line.chunks.clear();
        for &(chunk, _) in members {
            line.chunks.push(chunk);
            self.line_of[chunk as usize] = id;
        }
        id
    }

    /// Opens a line of a stream on the next parallel units in striping order that have a free chunk.
    pub(crate) fn open(&mut self, stream: u8) -> Option<OpenLine> {
        let mut members = Vec::with_capacity(self.active as usize);
        let pus = self.shape.pus;
        let mut tried = 0;
        while members.len() < self.active as usize && tried < pus {
            let pu = self.shape.striped_pu((self.pu_cursor + tried) % pus);
            if let Some(chunk) = self.free[pu as usize].pop_front() {
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
        self.lines[line as usize].stream = stream;
        Some(self.open_line(line, &members))
    }

    /// An open line over chunks with write pointers of their own.
    pub(crate) fn open_line(&self, line: u32, members: &[(u32, u32)]) -> OpenLine {
        let room = members.iter().map(|(_, next)| (self.shape.sectors - next) / self.shape.unit);
        OpenLine {
            line,
            room: room.sum(),
            members: members
                .iter()
                .map(|&(chunk, next)| Member { chunk, pu: self.shape.pu_of(chunk), next })
                .collect(),
            cursor: 0,
            recorded: Position(0),
        }
    }

    /// Closes a line if nothing more will be mapped and nothing is outstanding.
    pub(crate) fn close_if_done(&mut self, id: u32) {
        let line = &mut self.lines[id as usize];
        if line.state != LineState::Open || !line.full || line.programs > 0 {
            return;
        }
        line.state = LineState::Closed;
        if line.hurt {
            self.hurt.push_back(id);
        } else if line.valid == 0 {
            self.empty.push_back(id);
        } else {
            self.closings += 1;
            let (valid, sectors) = (line.valid, line.sectors);
            self.policy.worn(id, self.mean_wear(id));
            self.policy.closed(id, valid, sectors, self.closings);
        }
    }

    /// A sector of the line lost its logical sector: to a copy that ends at position `after` of the
    /// user's ring, or to a trim.
    #[inline]
    pub(crate) fn invalidate(&mut self, psn: u32, after: Option<u64>) {
        let id = self.line_of[self.shape.chunk_of(psn) as usize];
        let line = &mut self.lines[id as usize];
        line.valid -= 1;
        match after {
            Some(after) => line.after = after,
            None => line.trimmed = true,
        }
        if line.state == LineState::Closed && !line.hurt {
            if line.valid == 0 {
                self.policy.remove(id);
                self.empty.push_back(id);
            } else {
                self.policy.invalidated(id, line.valid);
            }
        }
    }

    /// Takes a closed line without a valid sector.
    pub(crate) fn take_empty(&mut self) -> Option<u32> {
        let id = self.empty.pop_front()?;
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
        if line.hurt {
            self.hurt.retain(|h| *h != id);
        } else if line.valid == 0 {
            self.empty.retain(|e| *e != id);
        } else {
            self.policy.remove(id);
        }
        self.lines[id as usize].state = LineState::Victim;
        Some(id)
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
            self.free[self.shape.pu_of(chunk) as usize].push_front(chunk);
            self.free_chunks += 1;
        }
        self.release(id);
    }

    /// The line's chunks are on their way back to the free lists.
    pub(crate) fn release(&mut self, id: u32) {
        let line = &mut self.lines[id as usize];
        debug_assert_eq!((line.programs, line.moves, line.erasing), (0, 0, 0));
        line.state = LineState::Free;
        line.chunks.clear();
        self.free_lines.push(id);
    }
}

impl OpenLine {
    /// Maps the next write unit: round robin over the members whose parallel unit `accepts`.
    pub(crate) fn place(
        &mut self,
        shape: &Shape,
        mut accepts: impl FnMut(u32) -> bool,
    ) -> Option<(u32, u32)> {
        if self.room == 0 {
            return None;
        }
        let n = self.members.len();
        for i in 0..n {
            let at = if self.cursor + i >= n { self.cursor + i - n } else { self.cursor + i };
            let member = &mut self.members[at];
            if member.next < shape.sectors && accepts(member.pu) {
                let placed = (member.chunk, member.next);
                member.next += shape.unit;
                self.room -= 1;
                self.cursor = if at + 1 == n { 0 } else { at + 1 };
                return Some(placed);
            }
        }
        None
    }

    /// Maps the next write unit of one chunk.
    pub(crate) fn take(&mut self, shape: &Shape, chunk: u32) -> Option<u32> {
        let open = |m: &&mut Member| m.chunk == chunk && m.next < shape.sectors;
        let member = self.members.iter_mut().find(open)?;
        let sector = member.next;
        member.next += shape.unit;
        self.room -= 1;
        Some(sector)
    }

    /// A chunk takes no more.
    pub(crate) fn abandon(&mut self, shape: &Shape, chunk: u32) {
        for member in &mut self.members {
            if member.chunk == chunk && member.next < shape.sectors {
                self.room -= (shape.sectors - member.next) / shape.unit;
                member.next = shape.sectors;
            }
        }
    }
}
