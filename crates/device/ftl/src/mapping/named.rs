//! [`NamedSectors`]: which sectors are valid, for an FTL whose sectors have names instead of logical
//! addresses. It takes the place of the map: the name of a valid sector is its location.
//!
//! A sector is valid from the end of its program until it is freed, or until a copy of it is on the media. A
//! copy has a new name. The old sector can be read until the owner of the names has confirmed the move, and
//! its line is not erased before.

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

/// Moves that have not been confirmed.
///
/// Invariant: the moves of a line are counted in `by_line`; lines that wait have moves.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct MoveLog {
    /// The new names, by the old locations.
    new_names: BTreeMap<PhysSector, SectorName>,
    /// By line, the number of its sectors with unconfirmed moves.
    by_line: BTreeMap<LineId, u32>,
    /// Drained lines that only unconfirmed moves keep from being erased.
    waiting: BTreeSet<LineId>,
    /// Moves that the owner of the names has not taken.
    reports: VecDeque<MovedSector>,
    lines_max: usize,
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

    /// Returns the location of the valid sector with a name, or that its unconfirmed moves lead to.
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
            let new = self.moves.new_names.get(&phys).ok_or(SectorNameError::NotValid)?;
            phys = self.unerased(env, *new)?;
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
                let is_kept = self.moves.new_names.contains_key(&phys);
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
        self.moves.new_names.insert(from, new);
        *self.moves.by_line.entry(line).or_default() += 1;
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
        self.moves.new_names.remove(&phys).ok_or(SectorNameError::NotMoved)?;
        self.stats.confirmed_moves += 1;
        Ok(phys)
    }

    /// Counts a confirmed move of a sector of a line.
    pub(crate) fn count_confirmed(&mut self, line: LineId) {
        if let Some(count) = self.moves.by_line.get_mut(&line) {
            *count -= 1;
            if *count == 0 {
                self.moves.by_line.remove(&line);
            }
        }
    }

    /// Sectors of a line with unconfirmed moves.
    pub(crate) fn unconfirmed_in(&self, line: LineId) -> u32 {
        self.moves.by_line.get(&line).copied().unwrap_or(0)
    }

    /// Lines with unconfirmed moves.
    pub(crate) fn unconfirmed_lines(&self) -> usize {
        self.moves.by_line.len()
    }

    /// Whether as many lines as permitted have unconfirmed moves.
    pub(crate) fn has_unconfirmed_max(&self) -> bool {
        self.moves.by_line.len() >= self.moves.lines_max
    }

    /// Records that only unconfirmed moves keep a drained line. Returns whether that is new.
    pub(crate) fn start_waiting(&mut self, line: LineId) -> bool {
        self.moves.waiting.insert(line)
    }

    /// Records that no unconfirmed move keeps a line any more. Returns whether one did.
    pub(crate) fn stop_waiting(&mut self, line: LineId) -> bool {
        self.moves.waiting.remove(&line)
    }

    /// Whether only unconfirmed moves keep a drained line.
    pub(crate) fn is_waiting(&self, line: LineId) -> bool {
        self.moves.waiting.contains(&line)
    }

    /// Whether unconfirmed moves keep drained lines.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.moves.waiting.is_empty()
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
    pub(crate) fn import_move(&mut self, env: &Env, moved: TaggedMove, line: LineId) {
        self.add_move(env, moved.from, moved.to, moved.tag, line);
    }

    /// Old locations whose moves are not confirmed.
    pub(crate) fn unconfirmed(&self) -> impl Iterator<Item = PhysSector> + '_ {
        self.moves.new_names.keys().copied()
    }

    /// Breaks the count of valid sectors.
    #[cfg(test)]
    pub(crate) fn break_count(&mut self) {
        self.valid_count += 1;
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
