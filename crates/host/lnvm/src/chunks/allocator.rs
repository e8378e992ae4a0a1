//! [`ChunkAllocator`]: the chunks of a drive and their owners, in memory: a [`Table`] and its
//! derived state.
//!
//! The allocator issues no commands and reads no clock. It emits changes as [`TableRecord`]s, which
//! the caller makes durable in order, and chunks to be erased one by one
//! ([`next_erase`](ChunkAllocator::next_erase)).
//!
//! Invariants:
//!
//! - A chunk has at most one owner, in memory and in every prefix of the records.
//! - A target acquires a chunk only once the record that grants it is durable. After a power cut, a
//!   target's data is therefore never in a chunk with another owner. The order of a release is the
//!   opposite: if power is cut before its record is durable, the last owner may own the chunk
//!   again. A target must not need a chunk that it releases.
//! - A chunk that had another owner is erased before it is acquired. The record of the erase
//!   follows the erase.
//! - A chunk without owner that holds data is *orphaned*: it is neither granted nor erased. No
//!   sequence of records and power cuts produces such chunks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nvme::ChunkDescriptor;

use crate::{
    ChunkQuota, ChunkUse, DataTemperature, QuotaLimits, Sharing, Table, TableError, TableRecord,
    TargetEntry, TargetId, WearPolicy, WearTable,
};

/// Configuration of the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkAllocatorConfig {
    /// Order in which free chunks are allocated.
    pub policy: WearPolicy,
    /// Number of chunks granted at a time per parallel unit, at least 1: each batch is one journal
    /// write.
    pub batch_chunks: u32,
}

impl Default for ChunkAllocatorConfig {
    fn default() -> ChunkAllocatorConfig {
        ChunkAllocatorConfig { policy: WearPolicy::Leveling, batch_chunks: 4 }
    }
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkAllocatorStats {
    /// Chunks acquired.
    pub acquired: u64,
    /// Chunks released.
    pub released: u64,
    /// Grant batches: journal writes that targets had to wait for.
    pub batches: u64,
    /// Chunks granted and reclaimed unused, because another unit or target needed one.
    pub reclaimed: u64,
    /// Requests denied by a chunk limit.
    pub denied_chunk_limit: u64,
    /// Requests denied by a rate limit.
    pub denied_rate: u64,
    /// Requests denied because a parallel unit had no free chunk.
    pub denied_full: u64,
    /// Chunks erased between two owners.
    pub erased: u64,
    /// Chunks retired.
    pub retired: u64,
}

/// Flag: acquired by its owner, which may have written it.
pub(super) const ACQUIRED: u8 = 1 << 0;
/// Flag: known to be erased.
pub(super) const ERASED: u8 = 1 << 1;
/// Flag: without owner, but holds data.
pub(super) const ORPHANED: u8 = 1 << 2;

/// The chunks of a parallel unit without owner, in allocation order.
#[derive(Clone, Debug, Default)]
pub(super) struct PuFreeList {
    pub(super) free: BTreeSet<(u32, u32)>,
    pub(super) dirty: BTreeSet<(u32, u32)>,
    /// Chunk whose erase is in progress.
    pub(super) erasing: Option<u32>,
    /// Whether all dirty chunks are to be erased.
    pub(super) erase_all_dirty: bool,
    /// Whether a target waits for an erased chunk.
    pub(super) needs_erased: bool,
}

/// Run-time state of a target.
#[derive(Clone, Debug)]
pub(super) struct TargetHoldings {
    pub(super) id: TargetId,
    pub(super) open_count: u32,
    pub(super) limits: QuotaLimits,
    pub(super) quota: ChunkQuota,
    /// Number of chunks that it owns, without bad ones.
    pub(super) owned: u32,
    /// Number of owned chunks that were acquired.
    pub(super) acquired: u32,
    /// By parallel unit: chunks durably granted and not acquired.
    pub(super) granted_unacquired: BTreeMap<u32, Vec<u32>>,
    /// Parallel units with a grant batch that is not durable yet.
    pub(super) pending_pus: BTreeSet<u32>,
}

/// A grant batch, durable once `durable_after` records are.
#[derive(Clone, Debug)]
pub(super) struct GrantBatch {
    pub(super) durable_after: u64,
    pub(super) target: TargetId,
    pub(super) pu: u32,
    pub(super) chunks: Vec<u32>,
}

/// The chunks of a drive and their owners.
#[derive(Clone, Debug)]
pub struct ChunkAllocator {
    pub(super) table: Table,
    pub(super) config: ChunkAllocatorConfig,
    pub(super) wear: WearTable,
    pub(super) pu_lists: Vec<PuFreeList>,
    pub(super) chunk_flags: Vec<u8>,
    /// By ascending id.
    pub(super) holdings: Vec<TargetHoldings>,
    pub(super) batches: VecDeque<GrantBatch>,
    /// Records that were not popped yet.
    pending_records: VecDeque<TableRecord>,
    /// Number of records ever made.
    pub(super) records_made: u64,
    /// Number of leading records whose durability a caller awaits.
    pub(super) records_awaited: u64,
    pub(super) stats: ChunkAllocatorStats,
}

/// The chunks of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Number of chunks that it owns, without bad ones.
    pub owned: u32,
    /// Number of owned chunks that it acquired; an exclusive target has acquired all.
    pub acquired: u32,
    /// Number of its chunks that became bad.
    pub bad: u32,
    /// How many times it is open.
    pub open_count: u32,
}

impl ChunkAllocator {
    /// Creates an allocator from a table and a report of all chunks, in index order, that is not
    /// older than the table. Offline chunks are retired. Dirty chunks that were erased before a
    /// power cut become free. `rated_cycles` corresponds to a wear index of 255.
    ///
    /// # Errors
    /// [`TableError::ReportLength`] if the report has another number of chunks.
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
            wear: WearTable::from_report(report, rated_cycles),
            stats: ChunkAllocatorStats::default(),
            config: ChunkAllocatorConfig { batch_chunks: config.batch_chunks.max(1), ..config },
            table,
        };
        pool.reconcile(report)?;
        Ok(pool)
    }

    /// Returns the key by which free chunks are ordered.
    pub(super) fn wear_key(&self, chunk: u32) -> u32 {
        match self.config.policy {
            WearPolicy::Leveling => self.wear.cycles(chunk),
            WearPolicy::FirstFree => 0,
        }
    }

    /// Applies a record and queues it for the caller.
    pub(super) fn apply_record(&mut self, record: TableRecord) -> Result<(), TableError> {
        self.table.apply(&record)?;
        self.pending_records.push_back(record);
        self.records_made += 1;
        Ok(())
    }

    /// Returns the table in memory, which may be ahead of the durable one.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the wear of the chunks.
    pub fn wear(&self) -> &WearTable {
        &self.wear
    }

    /// Returns the counters.
    pub fn stats(&self) -> &ChunkAllocatorStats {
        &self.stats
    }

    /// Pops the next record to be made durable, in order.
    pub fn pop_record(&mut self) -> Option<TableRecord> {
        self.pending_records.pop_front()
    }

    /// Returns the next record to be made durable.
    pub fn peek_record(&self) -> Option<&TableRecord> {
        self.pending_records.front()
    }

    /// Returns the number of records that were not popped.
    pub fn pending_record_count(&self) -> usize {
        self.pending_records.len()
    }

    /// Returns the number of records ever made.
    pub fn records_made(&self) -> u64 {
        self.records_made
    }

    /// Returns the number of leading records whose durability a caller awaits. Until that many are
    /// durable, writing them is urgent.
    pub fn records_awaited(&self) -> u64 {
        self.records_awaited
    }

    /// Awaits the durability of all records made so far.
    pub fn await_all(&mut self) {
        self.records_awaited = self.records_made;
    }

    /// Handles that the first `records` ever made are durable.
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

    /// Returns the chunk counts of a target.
    pub fn holdings(&self, id: TargetId) -> Holdings {
        let bad = |c: &&crate::ChunkEntry| c.state == ChunkUse::GrownBad && c.owner == Some(id);
        let bad = self.table.chunks().iter().filter(bad).count() as u32;
        match self.target_holdings(id) {
            Some(TargetHoldings { owned, acquired: handed, open_count: opens, .. }) => {
                Holdings { owned: *owned, acquired: *handed, bad, open_count: *opens }
            }
            None => Holdings::default(),
        }
    }

    /// Returns the chunks that have no owner but hold data.
    pub fn orphaned_chunks(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.chunk_flags).filter(|(_, f)| **f & ORPHANED != 0).map(|(chunk, _)| chunk)
    }

    /// Returns the chunks that a target acquired and did not release, ascending.
    pub fn acquired_by(&self, id: TargetId) -> impl Iterator<Item = u32> + '_ {
        self.table.owned_by(id).filter(|chunk| self.chunk_flags[*chunk as usize] & ACQUIRED != 0)
    }

    /// Adds a target. An exclusive target gets every free chunk of its units, which may have no
    /// dirty chunk.
    ///
    /// # Errors
    /// [`TableError::Inconsistent`] if the table cannot hold it; nothing changes.
    pub fn create(&mut self, target: TargetEntry) -> Result<(), TableError> {
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
        tracing::info!(target_name = %target.spec.name, chunks = chunks.len(), "target created");
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

    /// Removes a target that is not open. Chunks that it may have written become dirty, the others
    /// free.
    ///
    /// # Errors
    /// [`TableError::Inconsistent`] if it does not exist or is open; nothing changes.
    pub fn remove(&mut self, id: TargetId) -> Result<(), TableError> {
        let opens = self.target_holdings(id).map(|h| h.open_count);
        if opens != Some(0) {
            let what = format!("target {id} cannot be removed: it is open {opens:?} times");
            return Err(TableError::Inconsistent { what });
        }
        let chunks: Vec<u32> = self.table.owned_by(id).collect();
        tracing::info!(target_id = %id, chunks = chunks.len(), "target removed");
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

    /// Changes the limits of a sharing target. A target that has acquired more chunks than its new
    /// maximum keeps them, and acquires none until it has released enough. Of the chunks that it
    /// has not acquired, those above the maximum become free. A new rate begins with its whole
    /// burst.
    ///
    /// # Errors
    /// [`TableError::Inconsistent`] if it does not exist or owns its units exclusively; nothing
    /// changes.
    pub fn set_limits(&mut self, id: TargetId, limits: QuotaLimits) -> Result<(), TableError> {
        self.apply_record(TableRecord::Limited { target: id, limits })?;
        if let Some(holder) = self.target_holdings_mut(id) {
            if holder.limits.rate != limits.rate {
                holder.quota = ChunkQuota::new(&limits);
            }
            holder.limits = limits;
        }
        self.reclaim_above_limit(id)?;
        self.records_awaited = self.records_made;
        Ok(())
    }

    /// Returns a chunk without owner to the free or dirty list.
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

    /// Opens a target. From now on it may have written all chunks that it acquired.
    pub fn open(&mut self, id: TargetId) {
        let handed: Vec<u32> = self.acquired_by(id).collect();
        if let Some(holder) = self.target_holdings_mut(id) {
            holder.open_count += 1;
            handed.into_iter().for_each(|chunk| self.chunk_flags[chunk as usize] &= !ERASED);
        }
    }

    /// Closes a target once. Acquired chunks stay acquired.
    pub fn close(&mut self, id: TargetId) {
        if let Some(holder) = self.target_holdings_mut(id) {
            holder.open_count = holder.open_count.saturating_sub(1);
        }
    }

    /// Returns the number of free and of dirty chunks of a parallel unit.
    pub fn free_counts(&self, pu: u32) -> (u32, u32) {
        self.pu_lists.get(pu as usize).map_or((0, 0), |lists| {
            let dirty = lists.dirty.len() + usize::from(lists.erasing.is_some());
            (lists.free.len() as u32, dirty as u32)
        })
    }

    /// Returns the wear of the most worn good chunk of a parallel unit, in cycles.
    pub fn cycles_max_on(&self, pu: u32) -> u32 {
        let per_pu = self.table.chunks_per_pu();
        let good = |chunk: &u32| {
            let state = self.table.chunks().get(*chunk as usize).map(|c| c.state);
            matches!(state, Some(ChunkUse::Free | ChunkUse::Owned | ChunkUse::Dirty))
        };
        let chunks = (pu * per_pu..(pu + 1) * per_pu).filter(good);
        chunks.map(|chunk| self.wear.cycles(chunk)).max().unwrap_or(0)
    }

    /// Pops a chunk from the end of the free list that suits the data temperature.
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
    fn new(target: &TargetEntry) -> TargetHoldings {
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
