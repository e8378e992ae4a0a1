//! [`Pool`]: the chunks of a drive and who has them, in memory: a [`Table`] and what follows from it.
//!
//! Pure: it issues no command and reads no clock. Changes come out of it as [`Record`]s, to be made
//! durable in their order; chunks to be erased come out one by one ([`next_erase`](Pool::next_erase)).
//!
//! Guarantees:
//!
//! * A chunk has one owner at most, in memory and in every prefix of the records.
//! * A chunk is handed out only when the record that grants it is durable: what a target writes can
//!   never be in a chunk that is somebody else's after a power cut. The opposite order holds for
//!   what is returned: a chunk may come back to its last owner if power is cut before the record is
//!   durable, so who releases a chunk must not need it.
//! * A chunk that anybody else had is erased before it is handed out. The record that says that it is
//!   clean follows the erase.
//! * A chunk that is nobody's but holds data (which no sequence of records and power cuts leaves
//!   behind) is a *stray*: never handed out, never erased.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nvme::ChunkDescriptor;

use super::{
    ChunkQuota, ChunkUse, DataTemperature, QuotaLimits, Sharing, Table, TableError, TableRecord,
    Target, TargetId, Wear, WearPolicy,
};

/// How chunks are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkAllocatorConfig {
    /// Which chunk first.
    pub policy: WearPolicy,
    /// Chunks granted at a time on one parallel unit, at least 1: one write of the journal for so
    /// many.
    pub batch_chunks: u32,
}

impl Default for ChunkAllocatorConfig {
    fn default() -> ChunkAllocatorConfig {
        ChunkAllocatorConfig { policy: WearPolicy::Leveling, batch_chunks: 4 }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkAllocatorStats {
    /// Chunks handed out.
    pub acquired: u64,
    /// Chunks that came back.
    pub released: u64,
    /// Batches of chunks granted: journal writes that targets had to wait for.
    pub batches: u64,
    /// Chunks granted and taken back unused, because another unit or target needed one.
    pub reclaimed: u64,
    /// Requests denied because of a limit on chunks held.
    pub denied_chunk_limit: u64,
    /// Requests denied because of a rate.
    pub denied_rate: u64,
    /// Requests denied because a parallel unit was full.
    pub denied_full: u64,
    /// Chunks erased between two owners.
    pub erased: u64,
    /// Chunks retired.
    pub retired: u64,
}

/// Handed out to its owner, who may have written it.
pub(super) const ACQUIRED: u8 = 1 << 0;
/// Known to be erased.
pub(super) const ERASED: u8 = 1 << 1;
/// Nobody's, and holds data.
pub(super) const ORPHANED: u8 = 1 << 2;

/// The chunks of a parallel unit that are nobody's, by what decides which is next.
#[derive(Clone, Debug, Default)]
pub(super) struct PuFreeList {
    pub(super) free: BTreeSet<(u32, u32)>,
    pub(super) dirty: BTreeSet<(u32, u32)>,
    /// The chunk being erased.
    pub(super) erasing: Option<u32>,
    /// Whether all dirty chunks are to be erased.
    pub(super) erase_all_dirty: bool,
    /// Whether somebody waits for a clean chunk.
    pub(super) needs_erased: bool,
}

/// A target at run time.
#[derive(Clone, Debug)]
pub(super) struct TargetHoldings {
    pub(super) id: TargetId,
    pub(super) open_count: u32,
    pub(super) limits: QuotaLimits,
    pub(super) quota: ChunkQuota,
    /// Chunks that are its own, those that are bad not counted.
    pub(super) owned: u32,
    /// Of these, how many were handed out.
    pub(super) acquired: u32,
    /// By parallel unit, chunks that are its own, durably, and not handed out.
    pub(super) granted_unacquired: BTreeMap<u32, Vec<u32>>,
    /// Parallel units for which a batch is being made durable.
    pub(super) pending_pus: BTreeSet<u32>,
}

/// A batch that is durable once `after` records are.
#[derive(Clone, Debug)]
pub(super) struct GrantBatch {
    pub(super) durable_after: u64,
    pub(super) target: TargetId,
    pub(super) pu: u32,
    pub(super) chunks: Vec<u32>,
}

/// The chunks of a drive, and who has them.
#[derive(Clone, Debug)]
pub struct ChunkAllocator {
    pub(super) table: Table,
    pub(super) config: ChunkAllocatorConfig,
    pub(super) wear: Wear,
    pub(super) pu_lists: Vec<PuFreeList>,
    pub(super) chunk_flags: Vec<u8>,
    /// By ascending id.
    pub(super) holdings: Vec<TargetHoldings>,
    pub(super) batches: VecDeque<GrantBatch>,
    /// Records not taken yet.
    pending_records: VecDeque<TableRecord>,
    /// Records ever made.
    pub(super) records_made: u64,
    /// How many of them somebody waits for.
    pub(super) records_awaited: u64,
    pub(super) stats: ChunkAllocatorStats,
}

/// Chunks of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Chunks that are its own, those that are bad not counted.
    pub owned: u32,
    /// Of these, how many it was handed: all of an exclusive target's.
    pub acquired: u32,
    /// Chunks of it that went bad.
    pub bad: u32,
    /// How often it is open.
    pub open_count: u32,
}

impl ChunkAllocator {
    /// The pool of a table and a report of all chunks, in the order of their numbers, that is not
    /// older. Chunks found offline are retired, chunks that were erased before power was cut are
    /// clean. `rated_cycles` is what a wear index of 255 stands for.
    ///
    /// # Errors
    /// [`TableError::ReportLength`] if the report is of another number of chunks.
    pub fn new(
        table: Table,
        report: &[ChunkDescriptor],
        rated_cycles: u32,
        config: ChunkAllocatorConfig,
    ) -> Result<ChunkAllocator, TableError> {
        let chunks = table.chunks().len();
        if report.len() != chunks {
            return Err(TableError::ReportLength { given: report.len(), chunks });
        }
        let mut pool = ChunkAllocator {
            pu_lists: vec![PuFreeList::default(); table.pus() as usize],
            chunk_flags: vec![0; chunks],
            holdings: table.targets().iter().map(TargetHoldings::new).collect(),
            batches: VecDeque::new(),
            pending_records: VecDeque::new(),
            records_made: 0,
            records_awaited: 0,
            wear: Wear::from_report(report, rated_cycles),
            stats: ChunkAllocatorStats::default(),
            config: ChunkAllocatorConfig { batch_chunks: config.batch_chunks.max(1), ..config },
            table,
        };
        pool.reconcile(report)?;
        Ok(pool)
    }

    /// What decides which of two free chunks is next.
    pub(super) fn wear_key(&self, chunk: u32) -> u32 {
        match self.config.policy {
            WearPolicy::Leveling => self.wear.cycles(chunk),
            WearPolicy::FirstFree => 0,
        }
    }

    /// Applies a record and puts it out.
    pub(super) fn apply_record(&mut self, record: TableRecord) -> Result<(), TableError> {
        self.table.apply(&record)?;
        self.pending_records.push_back(record);
        self.records_made += 1;
        Ok(())
    }

    /// The table as it is in memory, which may be ahead of what is durable.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The wear of the chunks.
    pub fn wear(&self) -> &Wear {
        &self.wear
    }

    /// What was done.
    pub fn stats(&self) -> &ChunkAllocatorStats {
        &self.stats
    }

    /// The next record to be made durable, in order.
    pub fn pop_record(&mut self) -> Option<TableRecord> {
        self.pending_records.pop_front()
    }

    /// That record, without taking it.
    pub fn peek_record(&self) -> Option<&TableRecord> {
        self.pending_records.front()
    }

    /// Records that were made and not taken.
    pub fn pending_record_count(&self) -> usize {
        self.pending_records.len()
    }

    /// Records ever made.
    pub fn records_made(&self) -> u64 {
        self.records_made
    }

    /// How many records somebody waits for: as long as fewer are durable, they are urgent.
    pub fn records_awaited(&self) -> u64 {
        self.records_awaited
    }

    /// Somebody waits for everything made so far.
    pub fn await_all(&mut self) {
        self.records_awaited = self.records_made;
    }

    /// The first `records` ever made are durable.
    pub fn on_durable(&mut self, records: u64) {
        while let Some(batch) = self.batches.pop_front_if(|b| b.durable_after <= records) {
            if let Some(holder) = self.target_holdings_mut(batch.target) {
                holder.pending_pus.remove(&batch.pu);
                holder.granted_unacquired.entry(batch.pu).or_default().extend(batch.chunks);
            }
        }
    }

    pub(super) fn target_holdings(&self, id: TargetId) -> Option<&TargetHoldings> {
        self.holdings.binary_search_by_key(&id, |h| h.id).ok().map(|i| &self.holdings[i])
    }

    pub(super) fn target_holdings_mut(&mut self, id: TargetId) -> Option<&mut TargetHoldings> {
        self.holdings.binary_search_by_key(&id, |h| h.id).ok().map(|i| &mut self.holdings[i])
    }

    /// What a target has.
    pub fn holdings(&self, id: TargetId) -> Holdings {
        let bad = |c: &&super::ChunkEntry| c.state == ChunkUse::GrownBad && c.owner == Some(id);
        let bad = self.table.chunks().iter().filter(bad).count() as u32;
        match self.target_holdings(id) {
            Some(TargetHoldings { owned, acquired: handed, open_count: opens, .. }) => {
                Holdings { owned: *owned, acquired: *handed, bad, open_count: *opens }
            }
            None => Holdings::default(),
        }
    }

    /// Chunks that are nobody's but hold data.
    pub fn orphaned_chunks(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.chunk_flags).filter(|(_, f)| **f & ORPHANED != 0).map(|(chunk, _)| chunk)
    }

    /// The chunks that a target was handed and has not released, ascending.
    pub fn acquired_by(&self, id: TargetId) -> impl Iterator<Item = u32> + '_ {
        self.table.owned_by(id).filter(|chunk| self.chunk_flags[*chunk as usize] & ACQUIRED != 0)
    }

    /// Adds a target, which gets every free chunk of its units if it does not share. On units of an
    /// exclusive target nothing may be dirty.
    ///
    /// # Errors
    /// [`TableError::Inconsistent`] if the table cannot have it; nothing has changed then.
    pub fn create(&mut self, target: Target) -> Result<(), TableError> {
        let mut chunks = Vec::new();
        if target.spec.sharing == Sharing::Exclusive {
            let pus = || target.spec.pus.iter().filter_map(|pu| self.pu_lists.get(pu.0 as usize));
            if pus().any(|lists| !lists.dirty.is_empty() || lists.erasing.is_some()) {
                let name = &target.spec.name;
                let what = format!("chunks of target {name} are dirty: they must be erased first");
                return Err(TableError::Inconsistent { what });
            }
            chunks.extend(pus().flat_map(|lists| lists.free.iter().map(|(_, chunk)| *chunk)));
            chunks.sort_unstable();
        }
        let (holder, pus) = (TargetHoldings::new(&target), target.spec.pus.clone());
        self.apply_record(TableRecord::Created {
            target: Box::new(target),
            chunks: chunks.clone(),
        })?;
        if !chunks.is_empty() {
            for pu in pus.iter() {
                self.pu_lists[pu.0 as usize].free.clear();
            }
        }
        let count = chunks.len() as u32;
        for chunk in chunks {
            self.chunk_flags[chunk as usize] = ACQUIRED | ERASED;
        }
        self.holdings.push(TargetHoldings { owned: count, acquired: count, ..holder });
        self.records_awaited = self.records_made;
        Ok(())
    }

    /// Takes a target away, which must not be open. What it wrote becomes dirty, the rest free.
    ///
    /// # Errors
    /// [`TableError::Inconsistent`] if it is not there or is open; nothing has changed then.
    pub fn remove(&mut self, id: TargetId) -> Result<(), TableError> {
        let opens = self.target_holdings(id).map(|h| h.open_count);
        if opens != Some(0) {
            let what = format!("target {id} cannot be removed: it is open {opens:?} times");
            return Err(TableError::Inconsistent { what });
        }
        let chunks: Vec<u32> = self.table.owned_by(id).collect();
        let clean = |chunk: &u32| {
            let flags = self.chunk_flags[*chunk as usize];
            flags & ERASED != 0 || flags & ACQUIRED == 0
        };
        let (clean, dirty): (Vec<u32>, Vec<u32>) = chunks.into_iter().partition(clean);
        if !clean.is_empty() {
            let chunks = clean.clone();
            self.apply_record(TableRecord::Returned { target: id, chunks, erased: true })?;
        }
        self.apply_record(TableRecord::Removed { target: id })?;
        self.holdings.retain(|h| h.id != id);
        self.batches.retain(|b| b.target != id);
        for (chunks, is_clean) in [(clean, true), (dirty, false)] {
            for chunk in chunks {
                self.requeue(chunk, is_clean);
            }
        }
        self.records_awaited = self.records_made;
        Ok(())
    }

    /// Puts a chunk that is nobody's any more into its list.
    pub(super) fn requeue(&mut self, chunk: u32, clean: bool) {
        self.chunk_flags[chunk as usize] = 0;
        let (key, pu) = (self.wear_key(chunk), self.table.pu_of(chunk));
        let lists = &mut self.pu_lists[pu as usize];
        if clean {
            lists.free.insert((key, chunk))
        } else {
            lists.dirty.insert((key, chunk))
        };
    }

    /// A target is opened: from now on it may have written whatever it was handed.
    pub fn open(&mut self, id: TargetId) {
        let handed: Vec<u32> = self.acquired_by(id).collect();
        if let Some(holder) = self.target_holdings_mut(id) {
            holder.open_count += 1;
            handed.into_iter().for_each(|chunk| self.chunk_flags[chunk as usize] &= !ERASED);
        }
    }

    /// A target is closed, as often as it was opened. What it was handed stays its own.
    pub fn close(&mut self, id: TargetId) {
        if let Some(holder) = self.target_holdings_mut(id) {
            holder.open_count = holder.open_count.saturating_sub(1);
        }
    }

    /// Chunks that may be handed out on a parallel unit: clean ones, and dirty ones.
    pub fn free_counts(&self, pu: u32) -> (u32, u32) {
        self.pu_lists.get(pu as usize).map_or((0, 0), |lists| {
            let dirty = lists.dirty.len() + usize::from(lists.erasing.is_some());
            (lists.free.len() as u32, dirty as u32)
        })
    }

    /// The wear of the oldest good chunk of a parallel unit, in cycles.
    pub fn cycles_max_on(&self, pu: u32) -> u32 {
        let per_pu = self.table.chunks_per_pu();
        let good = |chunk: &u32| {
            let state = self.table.chunks().get(*chunk as usize).map(|c| c.state);
            matches!(state, Some(ChunkUse::Free | ChunkUse::Owned | ChunkUse::Dirty))
        };
        let chunks = (pu * per_pu..(pu + 1) * per_pu).filter(good);
        chunks.map(|chunk| self.wear.cycles(chunk)).max().unwrap_or(0)
    }

    /// A chunk's heat decides from which end of the free list it comes.
    pub(super) fn pop_free(&mut self, pu: u32, heat: DataTemperature) -> Option<u32> {
        let levelling = self.config.policy == WearPolicy::Leveling;
        let free = &mut self.pu_lists.get_mut(pu as usize)?.free;
        let picked = match heat {
            DataTemperature::Cold if levelling => free.pop_last(),
            _ => free.pop_first(),
        };
        picked.map(|(_, chunk)| chunk)
    }
}

impl TargetHoldings {
    fn new(target: &Target) -> TargetHoldings {
        let limits = target.spec.limits;
        TargetHoldings {
            id: target.id,
            open_count: 0,
            limits,
            quota: ChunkQuota::new(&limits),
            owned: 0,
            acquired: 0,
            granted_unacquired: BTreeMap::new(),
            pending_pus: BTreeSet::new(),
        }
    }
}
