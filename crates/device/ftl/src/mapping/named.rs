//! [`NamedSectors`]: which sectors are valid, for an FTL whose sectors have names instead of logical
//! addresses. It takes the place of the map: the name of a valid sector is its location.
//!
//! A sector is valid from the end of its program until it is freed, or until a copy of it is on the media. A
//! copy has a new name. The old sector can be read until the owner of the names has confirmed the move, and
//! its line is not erased before. A line with copies is erased after the lines of their sources: otherwise
//! the sources would be valid after a power cut, beside later copies.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use collections::BitSet;
use nvme::{ChunkId, PhysSector};
use serde::{Deserialize, Serialize};

use crate::env::Env;
use crate::ids::{LineId, ToIndex, WriteSeq};
use crate::names::NameFormat;
use crate::{
    FoundName, MovedSector, NamedSectorStats, NamedWrite, SectorAddressing, SectorName,
    SectorNameError,
};

/// A host read of a named sector from the media.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct NamedRead {
    pub(crate) phys: PhysSector,
    /// The tag that the sector must have.
    pub(crate) tag: u64,
}

/// A move, until its old sector is released.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Move {
    new: SectorName,
    is_confirmed: bool,
}

/// The moves of the sectors of a line.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct LineMoves {
    /// Those whose old sectors are not released.
    kept: u32,
    /// Those that are not confirmed.
    unconfirmed: u32,
}

/// A confirmed move, whose old sector is released when these changes of the owner's state are durable.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct ConfirmedMove {
    from: PhysSector,
    line: LineId,
    owner_changes: u64,
}

/// Moves whose old sectors are not released.
///
/// Invariant: the moves of a line are counted in `by_line`; lines that wait have moves.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct MoveLog {
    /// By the old locations.
    moves: BTreeMap<PhysSector, Move>,
    by_line: BTreeMap<LineId, LineMoves>,
    /// Drained lines that only these moves keep from being erased, since the owner has been told of them.
    waiting: BTreeSet<LineId>,
    /// Such lines about which the owner has not been told.
    drained: BTreeSet<LineId>,
    /// By line with copies, the lines of their sources that are not erased. They are erased before.
    sources: BTreeMap<LineId, BTreeSet<LineId>>,
    /// Drained lines that wait for the erase of lines of sources.
    blocked: BTreeSet<LineId>,
    /// Such lines that wait no more.
    unblocked: VecDeque<LineId>,
    /// In the order of their confirmations.
    confirmed: VecDeque<ConfirmedMove>,
    /// Moves that the owner of the names has not taken.
    reports: VecDeque<MovedSector>,
    /// Lines at most.
    lines_max: usize,
    /// Whether the owner confirms no move before the host has done something.
    is_stuck: bool,
}

/// Valid sectors and their names. One bit per physical sector, and eight bytes per chunk.
///
/// Invariants: the valid sectors are counted; they are in chunks with an epoch; `used` counts the valid
/// sectors, the queued writes, and those in the write buffer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NamedSectors {
    format: NameFormat,
    valid: BitSet,
    valid_count: u64,
    /// By chunk; 0 while no data was written to it since its erase.
    epochs: Box<[WriteSeq]>,
    /// Sectors that the host has written or is writing, and has not freed.
    used: u64,
    /// The host's tags of the queued writes, in their order.
    queued_tags: VecDeque<u64>,
    /// Names that the owner of the names has not taken.
    written: VecDeque<NamedWrite>,
    moves: MoveLog,
    lost: VecDeque<SectorName>,
    /// By index of a host read.
    reads: BTreeMap<u32, NamedRead>,
    /// Valid sectors that the recovery found, until they are taken.
    found: Vec<FoundName>,
    /// Whether no unit gets a sequence number before a snapshot is durable.
    awaits_snapshot: bool,
    pub(crate) stats: NamedSectorStats,
}

impl NamedSectors {
    /// Creates the state without valid sectors; `None` if sectors have logical addresses.
    pub(super) fn new(env: &Env) -> Option<NamedSectors> {
        let SectorAddressing::Named { unconfirmed_lines_max } = env.config.addressing else {
            return None;
        };
        let moves = MoveLog { lines_max: unconfirmed_lines_max.index(), ..MoveLog::default() };
        Some(NamedSectors {
            format: NameFormat::new(&env.geometry),
            valid: BitSet::new(env.geometry.total_sectors().index()),
            valid_count: 0,
            epochs: vec![WriteSeq(0); env.geometry.total_chunks().index()].into(),
            used: 0,
            queued_tags: VecDeque::new(),
            written: VecDeque::new(),
            moves,
            lost: VecDeque::new(),
            reads: BTreeMap::new(),
            found: Vec::new(),
            awaits_snapshot: false,
            stats: NamedSectorStats::default(),
        })
    }

    /// Returns the first sequence number that no name can have.
    pub(crate) fn epoch_end(&self) -> WriteSeq {
        self.format.epoch_end()
    }

    /// Whether a sector is valid.
    #[inline]
    pub(crate) fn is_valid(&self, phys: PhysSector) -> bool {
        self.valid.contains(phys.index())
    }

    /// The number of valid sectors.
    pub(crate) fn valid_count(&self) -> u64 {
        self.valid_count
    }

    /// The valid sectors, in order.
    pub(crate) fn valid_sectors(&self) -> impl Iterator<Item = PhysSector> + '_ {
        std::iter::successors(self.valid.next_at(0), |at| self.valid.next_at(at + 1))
            .map(|at| PhysSector(crate::ids::ToU32::to_u32(at)))
    }

    /// The epoch of a chunk; 0 for none.
    pub(crate) fn epoch_of(&self, chunk: ChunkId) -> WriteSeq {
        self.epochs[chunk.index()]
    }

    /// Sectors that the host has written or is writing, and has not freed.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Returns the name of a sector of a chunk.
    fn name_of(&self, env: &Env, phys: PhysSector) -> SectorName {
        self.format.name(phys, self.epochs[env.geometry.chunk_of(phys).index()])
    }

    /// Returns the location of a name whose chunk has not been erased since.
    fn unerased(&self, env: &Env, name: SectorName) -> Result<PhysSector, SectorNameError> {
        let phys = self.format.sector(name)?;
        match self.epochs[env.geometry.chunk_of(phys).index()] {
            WriteSeq(0) => Err(SectorNameError::NeverWritten),
            epoch if epoch != self.format.epoch(name) => Err(SectorNameError::Stale),
            _ => Ok(phys),
        }
    }

    /// Returns the location of the valid sector with a name, or that its moves lead to.
    ///
    /// # Errors
    /// [`SectorNameError`].
    pub(crate) fn find_valid(
        &self,
        env: &Env,
        name: SectorName,
    ) -> Result<PhysSector, SectorNameError> {
        let mut phys = self.unerased(env, name)?;
        // Each move leads to another chunk, and no two moves to one sector.
        while !self.is_valid(phys) {
            let moved = self.moves.moves.get(&phys).ok_or(SectorNameError::NotValid)?;
            phys = self.unerased(env, moved.new)?;
        }
        Ok(phys)
    }

    /// Returns a location from which the sector with a name can be read: as
    /// [`find_valid`](NamedSectors::find_valid), but the old one if the copy was moved on, and that move
    /// confirmed.
    ///
    /// # Errors
    /// [`SectorNameError`].
    pub(crate) fn find_readable(
        &self,
        env: &Env,
        name: SectorName,
    ) -> Result<PhysSector, SectorNameError> {
        match self.find_valid(env, name) {
            Err(SectorNameError::Stale | SectorNameError::NeverWritten) => {
                let phys = self.unerased(env, name)?;
                let is_kept = self.moves.moves.contains_key(&phys);
                if is_kept { Ok(phys) } else { Err(SectorNameError::Stale) }
            }
            found => found,
        }
    }

    /// Records that a write is queued.
    pub(crate) fn queue_write(&mut self, tag: u64) {
        self.queued_tags.push_back(tag);
        self.used += 1;
    }

    /// Removes the host's tag of the oldest queued write, which is admitted.
    pub(crate) fn admit_write(&mut self) -> u64 {
        self.queued_tags.pop_front().unwrap_or_default()
    }

    /// Removes the oldest queued write, which has failed.
    pub(crate) fn fail_write(&mut self) {
        self.queued_tags.pop_front();
        self.used -= 1;
    }

    /// Writes that are queued.
    pub(crate) fn queued(&self) -> usize {
        self.queued_tags.len()
    }

    /// Records that a unit with this sequence number is programmed in a chunk.
    pub(crate) fn record_program(&mut self, chunk: ChunkId, sequence: WriteSeq) {
        let epoch = &mut self.epochs[chunk.index()];
        if *epoch == WriteSeq(0) {
            *epoch = sequence;
        }
    }

    /// Records that the sector of a write is on the media that has failed for want of space.
    pub(crate) fn publish_abandoned(&mut self) {
        self.used -= 1;
    }

    /// Records that the sector of a write request is on the media.
    pub(crate) fn publish(&mut self, env: &Env, request: u64, phys: PhysSector) {
        self.valid_count += u64::from(self.valid.insert(phys.index()));
        self.stats.writes += 1;
        let name = self.name_of(env, phys);
        self.written.push_back(NamedWrite { request, name });
    }

    /// Records that the copy of a valid sector, at `to`, is on the media. `line` is the line of the sector
    /// so far.
    pub(crate) fn publish_move(
        &mut self,
        env: &Env,
        from: PhysSector,
        to: PhysSector,
        tag: u64,
        line: LineId,
    ) {
        self.valid.remove(from.index());
        self.valid.insert(to.index());
        self.stats.moves += 1;
        self.add_move(env, from, to, tag, line);
    }

    /// Adds a move that is to be confirmed.
    fn add_move(&mut self, env: &Env, from: PhysSector, to: PhysSector, tag: u64, line: LineId) {
        let (old, new) = (self.name_of(env, from), self.name_of(env, to));
        self.moves.moves.insert(from, Move { new, is_confirmed: false });
        let counts = self.moves.by_line.entry(line).or_default();
        (counts.kept, counts.unconfirmed) = (counts.kept + 1, counts.unconfirmed + 1);
        self.moves.reports.push_back(MovedSector { old, new, tag });
    }

    /// Records that a valid sector is freed.
    pub(crate) fn free(&mut self, phys: PhysSector) {
        self.valid_count -= u64::from(self.valid.remove(phys.index()));
        self.used -= 1;
        self.stats.frees += 1;
    }

    /// Records that a valid sector cannot be read.
    pub(crate) fn lose(&mut self, env: &Env, phys: PhysSector) {
        let name = self.name_of(env, phys);
        self.valid_count -= u64::from(self.valid.remove(phys.index()));
        self.used -= 1;
        self.stats.lost += 1;
        self.lost.push_back(name);
    }

    /// Confirms a move. Returns the old location.
    ///
    /// # Errors
    /// [`SectorNameError`].
    pub(crate) fn confirm(
        &mut self,
        env: &Env,
        old: SectorName,
    ) -> Result<PhysSector, SectorNameError> {
        let phys = self.unerased(env, old)?;
        let moved = self.moves.moves.get_mut(&phys).filter(|moved| !moved.is_confirmed);
        moved.ok_or(SectorNameError::NotMoved)?.is_confirmed = true;
        self.stats.confirmed_moves += 1;
        self.moves.is_stuck = false;
        Ok(phys)
    }

    /// Releases the old sector of a confirmed move when `owner_changes` changes of the owner's state are
    /// durable.
    pub(crate) fn release_after(&mut self, from: PhysSector, line: LineId, owner_changes: u64) {
        if let Some(counts) = self.moves.by_line.get_mut(&line) {
            counts.unconfirmed -= 1;
        }
        self.moves.confirmed.push_back(ConfirmedMove { from, line, owner_changes });
    }

    /// Releases the old sector of the move that was confirmed first, if `is_durable` says that the changes
    /// of the owner's state before it are. Returns its line.
    pub(crate) fn release_next(&mut self, is_durable: impl Fn(u64) -> bool) -> Option<LineId> {
        let next = self.moves.confirmed.pop_front_if(|next| is_durable(next.owner_changes))?;
        self.moves.moves.remove(&next.from);
        if let Some(counts) = self.moves.by_line.get_mut(&next.line) {
            counts.kept -= 1;
            if counts.kept == 0 {
                self.moves.by_line.remove(&next.line);
            }
        }
        Some(next.line)
    }

    /// Sectors of a line that are kept because they were moved.
    pub(crate) fn kept_in(&self, line: LineId) -> u32 {
        self.moves.by_line.get(&line).map_or(0, |counts| counts.kept)
    }

    /// Whether all moves of a line are confirmed.
    pub(crate) fn is_confirmed(&self, line: LineId) -> bool {
        self.moves.by_line.get(&line).is_none_or(|counts| counts.unconfirmed == 0)
    }

    /// Lines that are kept because of their moves.
    pub(crate) fn kept_lines(&self) -> usize {
        self.moves.by_line.len()
    }

    /// Records that the owner confirms no move before the host has done something.
    pub(crate) fn set_stuck(&mut self) {
        self.moves.is_stuck = true;
    }

    /// Records that a line has the copy of a sector of another one.
    pub(crate) fn add_source(&mut self, line: LineId, source: LineId) {
        self.moves.sources.entry(line).or_default().insert(source);
    }

    /// Has a drained line wait for the erase of the lines of its sources, if there are any. Returns whether
    /// it begins to wait.
    pub(crate) fn block(&mut self, line: LineId) -> bool {
        self.moves.sources.contains_key(&line) && self.moves.blocked.insert(line)
    }

    /// Whether a drained line waits for the erase of others, or has waited and is erased next.
    pub(crate) fn is_blocked(&self, line: LineId) -> bool {
        self.moves.blocked.contains(&line) || self.moves.unblocked.contains(&line)
    }

    /// Records that a line is erased.
    pub(crate) fn line_erased(&mut self, erased: LineId) {
        let MoveLog { sources, blocked, unblocked, .. } = &mut self.moves;
        sources.retain(|line, of_line| {
            of_line.remove(&erased);
            if of_line.is_empty() && blocked.remove(line) {
                unblocked.push_back(*line);
            }
            !of_line.is_empty()
        });
    }

    /// Removes and returns a drained line that waits for the erase of others no more.
    pub(crate) fn pop_unblocked(&mut self) -> Option<LineId> {
        self.moves.unblocked.pop_front()
    }

    /// Records that only moves keep a drained line, about which the owner may not have been told.
    pub(crate) fn add_drained(&mut self, line: LineId) {
        if !self.moves.waiting.contains(&line) {
            self.moves.drained.insert(line);
        }
    }

    /// Whether the owner may not have been told that only moves keep a drained line.
    pub(crate) fn is_drained(&self, line: LineId) -> bool {
        self.moves.drained.contains(&line)
    }

    /// Takes the drained lines if the owner has been told of all moves.
    pub(crate) fn take_told(&mut self) -> BTreeSet<LineId> {
        match self.moves.reports.is_empty() {
            true => std::mem::take(&mut self.moves.drained),
            false => BTreeSet::new(),
        }
    }

    /// Whether as many lines as permitted are kept because of their moves.
    pub(crate) fn has_kept_max(&self) -> bool {
        self.moves.by_line.len() + self.moves.blocked.len() >= self.moves.lines_max
    }

    /// Records that only moves keep a drained line. Returns whether that is new.
    pub(crate) fn start_waiting(&mut self, line: LineId) -> bool {
        self.moves.waiting.insert(line)
    }

    /// Records that a line is kept by no move any more, or not only. Returns whether one did.
    pub(crate) fn stop_waiting(&mut self, line: LineId) -> bool {
        self.moves.drained.remove(&line);
        self.moves.waiting.remove(&line)
    }

    /// Whether only moves keep a drained line.
    pub(crate) fn is_waiting(&self, line: LineId) -> bool {
        self.moves.waiting.contains(&line)
    }

    /// Whether moves keep drained lines, and will be confirmed without the host.
    pub(crate) fn awaits_owner(&self) -> bool {
        let has_waiting = !self.moves.waiting.is_empty() || !self.moves.drained.is_empty();
        has_waiting && !self.moves.is_stuck
    }

    /// Records that a chunk is erased.
    pub(crate) fn forget_chunk(&mut self, chunk: ChunkId) {
        self.epochs[chunk.index()] = WriteSeq(0);
    }

    /// Adds a host read from the media.
    pub(crate) fn begin_read(&mut self, index: u32, read: NamedRead) {
        self.reads.insert(index, read);
    }

    /// Removes a host read from the media.
    pub(crate) fn end_read(&mut self, index: u32) -> Option<NamedRead> {
        self.reads.remove(&index)
    }

    /// Removes and returns the name of the write that was completed first.
    pub(crate) fn pop_written(&mut self) -> Option<NamedWrite> {
        self.written.pop_front()
    }

    /// Removes and returns the oldest move that has not been taken.
    pub(crate) fn pop_moved(&mut self) -> Option<MovedSector> {
        self.moves.reports.pop_front()
    }

    /// Removes and returns the name of a sector that was lost.
    pub(crate) fn pop_lost(&mut self) -> Option<SectorName> {
        self.lost.pop_front()
    }

    /// Takes the names that the recovery found.
    pub(crate) fn take_found(&mut self) -> Vec<FoundName> {
        std::mem::take(&mut self.found)
    }

    /// Whether no unit gets a sequence number before a snapshot is durable.
    #[inline]
    pub(crate) fn awaits_snapshot(&self) -> bool {
        self.awaits_snapshot
    }

    /// Records that the snapshot after the recovery is durable.
    pub(crate) fn end_snapshot_wait(&mut self) {
        self.awaits_snapshot = false;
    }

    /// Imports the epochs of the chunks and the valid sectors with their tags. The first unit waits for a
    /// snapshot.
    pub(crate) fn import(&mut self, env: &Env, epochs: Vec<WriteSeq>, valid: &[TaggedSector]) {
        self.epochs = epochs.into();
        self.awaits_snapshot = true;
        for sector in valid {
            self.valid_count += u64::from(self.valid.insert(sector.phys.index()));
            let name = self.name_of(env, sector.phys);
            self.found.push(FoundName { name, tag: sector.tag });
        }
        self.used = self.valid_count;
    }

    /// Imports a move that was on the media, and whose source has not been erased.
    pub(crate) fn import_move(&mut self, env: &Env, moved: TaggedMove, line: LineId, to: LineId) {
        self.add_source(to, line);
        self.add_move(env, moved.from, moved.to, moved.tag, line);
    }

    /// Old locations that are kept because of their moves.
    pub(crate) fn kept(&self) -> impl Iterator<Item = PhysSector> + '_ {
        self.moves.moves.keys().copied()
    }

    /// Breaks the count of valid sectors.
    #[cfg(test)]
    pub(crate) fn break_count(&mut self) {
        self.valid_count += 1;
    }

    /// Breaks the count of the moves of a line.
    #[cfg(test)]
    pub(crate) fn break_kept(&mut self, line: LineId) {
        self.moves.by_line.entry(line).or_default().kept += 1;
    }

    /// Breaks the count of used sectors.
    #[cfg(test)]
    pub(crate) fn break_used(&mut self) {
        self.used += 1;
    }
}

/// A sector with its tag, as a recovery finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaggedSector {
    pub(crate) phys: PhysSector,
    pub(crate) tag: u64,
}

/// A move, as a recovery finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaggedMove {
    pub(crate) from: PhysSector,
    pub(crate) to: PhysSector,
    pub(crate) tag: u64,
}
