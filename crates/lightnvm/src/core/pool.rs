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
    ChunkUse, Heat, Limits, Ration, Record, Sharing, Table, TableError, Target, TargetId, Wear,
    WearPolicy,
};

/// How chunks are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Which chunk first.
    pub policy: WearPolicy,
    /// Chunks granted at a time on one parallel unit, at least 1: one write of the journal for so
    /// many.
    pub batch_chunks: u32,
}

impl Default for PoolConfig {
    fn default() -> PoolConfig {
        PoolConfig { policy: WearPolicy::Levelling, batch_chunks: 4 }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Chunks handed out.
    pub acquired: u64,
    /// Chunks that came back.
    pub released: u64,
    /// Batches of chunks granted: journal writes that targets had to wait for.
    pub batches: u64,
    /// Chunks granted and taken back unused, because another unit or target needed one.
    pub taken_back: u64,
    /// Requests denied because of a limit on chunks held.
    pub denied_max: u64,
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
pub(super) const HANDED: u8 = 1 << 0;
/// Known to be erased.
pub(super) const CLEAN: u8 = 1 << 1;
/// Nobody's, and holds data.
pub(super) const STRAY: u8 = 1 << 2;

/// The chunks of a parallel unit that are nobody's, by what decides which is next.
#[derive(Clone, Debug, Default)]
pub(super) struct PuPool {
    pub(super) free: BTreeSet<(u32, u32)>,
    pub(super) dirty: BTreeSet<(u32, u32)>,
    /// The chunk being erased.
    pub(super) erasing: Option<u32>,
    /// Whether all dirty chunks are to be erased.
    pub(super) clean_all: bool,
    /// Whether somebody waits for a clean chunk.
    pub(super) wanted: bool,
}

/// A target at run time.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) id: TargetId,
    pub(super) opens: u32,
    pub(super) limits: Limits,
    pub(super) ration: Ration,
    /// Chunks that are its own, those that are bad not counted.
    pub(super) owned: u32,
    /// Of these, how many were handed out.
    pub(super) handed: u32,
    /// By parallel unit, chunks that are its own, durably, and not handed out.
    pub(super) stash: BTreeMap<u32, Vec<u32>>,
    /// Parallel units for which a batch is being made durable.
    pub(super) waiting: BTreeSet<u32>,
}

/// A batch that is durable once `after` records are.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) after: u64,
    pub(super) target: TargetId,
    pub(super) pu: u32,
    pub(super) chunks: Vec<u32>,
}

/// The chunks of a drive, and who has them.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(super) table: Table,
    pub(super) config: PoolConfig,
    pub(super) wear: Wear,
    pub(super) pus: Vec<PuPool>,
    pub(super) flags: Vec<u8>,
    /// By ascending id.
    pub(super) holders: Vec<Holder>,
    pub(super) batches: VecDeque<Batch>,
    /// Records not taken yet.
    outbox: VecDeque<Record>,
    /// Records ever made.
    pub(super) made: u64,
    /// How many of them somebody waits for.
    pub(super) awaited: u64,
    pub(super) stats: PoolStats,
}

/// Chunks of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Chunks that are its own, those that are bad not counted.
    pub owned: u32,
    /// Of these, how many it was handed: all of an exclusive target's.
    pub handed: u32,
    /// Chunks of it that went bad.
    pub bad: u32,
    /// How often it is open.
    pub opens: u32,
}

impl Pool {
    /// The pool of a table and a report of all chunks, in the order of their numbers, that is not
    /// older. Chunks found offline are retired, chunks that were erased before power was cut are
    /// clean. `rated_cycles` is what a wear index of 255 stands for.
    ///
    /// # Errors
    /// [`TableError::Report`] if the report is of another number of chunks.
    pub fn new(
        table: Table,
        report: &[ChunkDescriptor],
        rated_cycles: u32,
        config: PoolConfig,
    ) -> Result<Pool, TableError> {
        let chunks = table.chunks().len();
        if report.len() != chunks {
            return Err(TableError::Report { given: report.len(), chunks });
        }
        let mut pool = Pool {
            pus: vec![PuPool::default(); table.pus() as usize],
            flags: vec![0; chunks],
            holders: table.targets().iter().map(Holder::new).collect(),
            batches: VecDeque::new(),
            outbox: VecDeque::new(),
            made: 0,
            awaited: 0,
            wear: Wear::of(report, rated_cycles),
            stats: PoolStats::default(),
            config: PoolConfig { batch_chunks: config.batch_chunks.max(1), ..config },
            table,
        };
        pool.reconcile(report)?;
        Ok(pool)
    }

    /// What decides which of two free chunks is next.
    pub(super) fn key(&self, chunk: u32) -> u32 {
        match self.config.policy {
            WearPolicy::Levelling => self.wear.cycles(chunk),
            WearPolicy::FirstFree => 0,
        }
    }

    /// Applies a record and puts it out.
    pub(super) fn make(&mut self, record: Record) -> Result<(), TableError> {
        self.table.apply(&record)?;
        self.outbox.push_back(record);
        self.made += 1;
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
    pub fn stats(&self) -> &PoolStats {
        &self.stats
    }

    /// The next record to be made durable, in order.
    pub fn take_record(&mut self) -> Option<Record> {
        self.outbox.pop_front()
    }

    /// That record, without taking it.
    pub fn first_record(&self) -> Option<&Record> {
        self.outbox.front()
    }

    /// Records that were made and not taken.
    pub fn untaken(&self) -> usize {
        self.outbox.len()
    }

    /// Records ever made.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// How many records somebody waits for: as long as fewer are durable, they are urgent.
    pub fn awaited(&self) -> u64 {
        self.awaited
    }

    /// Somebody waits for everything made so far.
    pub fn await_all(&mut self) {
        self.awaited = self.made;
    }

    /// The first `records` ever made are durable.
    pub fn durable(&mut self, records: u64) {
        while let Some(batch) = self.batches.pop_front_if(|b| b.after <= records) {
            if let Some(holder) = self.holder_mut(batch.target) {
                holder.waiting.remove(&batch.pu);
                holder.stash.entry(batch.pu).or_default().extend(batch.chunks);
            }
        }
    }

    pub(super) fn holder(&self, id: TargetId) -> Option<&Holder> {
        self.holders.binary_search_by_key(&id, |h| h.id).ok().map(|i| &self.holders[i])
    }

    pub(super) fn holder_mut(&mut self, id: TargetId) -> Option<&mut Holder> {
        self.holders.binary_search_by_key(&id, |h| h.id).ok().map(|i| &mut self.holders[i])
    }

    /// What a target has.
    pub fn holding(&self, id: TargetId) -> Holding {
        let bad = |c: &&super::ChunkEntry| c.state == ChunkUse::GrownBad && c.owner == Some(id);
        let bad = self.table.chunks().iter().filter(bad).count() as u32;
        match self.holder(id) {
            Some(Holder { owned, handed, opens, .. }) => {
                Holding { owned: *owned, handed: *handed, bad, opens: *opens }
            }
            None => Holding::default(),
        }
    }

    /// Chunks that are nobody's but hold data.
    pub fn strays(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.flags).filter(|(_, f)| **f & STRAY != 0).map(|(chunk, _)| chunk)
    }

    /// The chunks that a target was handed and has not released, ascending.
    pub fn handed_to(&self, id: TargetId) -> impl Iterator<Item = u32> + '_ {
        self.table.owned_by(id).filter(|chunk| self.flags[*chunk as usize] & HANDED != 0)
    }

    /// Adds a target, which gets every free chunk of its units if it does not share. On units of an
    /// exclusive target nothing may be dirty.
    ///
    /// # Errors
    /// [`TableError::Impossible`] if the table cannot have it; nothing has changed then.
    pub fn create(&mut self, target: Target) -> Result<(), TableError> {
        let mut chunks = Vec::new();
        if target.spec.sharing == Sharing::Exclusive {
            let pus = || target.spec.pus.iter().filter_map(|pu| self.pus.get(pu.0 as usize));
            if pus().any(|lists| !lists.dirty.is_empty() || lists.erasing.is_some()) {
                let name = &target.spec.name;
                let what = format!("chunks of target {name} are dirty: they must be erased first");
                return Err(TableError::Impossible { what });
            }
            chunks.extend(pus().flat_map(|lists| lists.free.iter().map(|(_, chunk)| *chunk)));
            chunks.sort_unstable();
        }
        let (holder, pus) = (Holder::new(&target), target.spec.pus.clone());
        self.make(Record::Created { target: Box::new(target), chunks: chunks.clone() })?;
        if !chunks.is_empty() {
            for pu in pus.iter() {
                self.pus[pu.0 as usize].free.clear();
            }
        }
        let count = chunks.len() as u32;
        for chunk in chunks {
            self.flags[chunk as usize] = HANDED | CLEAN;
        }
        self.holders.push(Holder { owned: count, handed: count, ..holder });
        self.awaited = self.made;
        Ok(())
    }

    /// Takes a target away, which must not be open. What it wrote becomes dirty, the rest free.
    ///
    /// # Errors
    /// [`TableError::Impossible`] if it is not there or is open; nothing has changed then.
    pub fn remove(&mut self, id: TargetId) -> Result<(), TableError> {
        let opens = self.holder(id).map(|h| h.opens);
        if opens != Some(0) {
            let what = format!("target {id} cannot be removed: it is open {opens:?} times");
            return Err(TableError::Impossible { what });
        }
        let chunks: Vec<u32> = self.table.owned_by(id).collect();
        let clean = |chunk: &u32| {
            let flags = self.flags[*chunk as usize];
            flags & CLEAN != 0 || flags & HANDED == 0
        };
        let (clean, dirty): (Vec<u32>, Vec<u32>) = chunks.into_iter().partition(clean);
        if !clean.is_empty() {
            let chunks = clean.clone();
            self.make(Record::Returned { target: id, chunks, clean: true })?;
        }
        self.make(Record::Removed { target: id })?;
        self.holders.retain(|h| h.id != id);
        self.batches.retain(|b| b.target != id);
        for (chunks, is_clean) in [(clean, true), (dirty, false)] {
            for chunk in chunks {
                self.put_back(chunk, is_clean);
            }
        }
        self.awaited = self.made;
        Ok(())
    }

    /// Puts a chunk that is nobody's any more into its list.
    pub(super) fn put_back(&mut self, chunk: u32, clean: bool) {
        self.flags[chunk as usize] = 0;
        let (key, pu) = (self.key(chunk), self.table.pu_of(chunk));
        let lists = &mut self.pus[pu as usize];
        if clean {
            lists.free.insert((key, chunk))
        } else {
            lists.dirty.insert((key, chunk))
        };
    }

    /// A target is opened: from now on it may have written whatever it was handed.
    pub fn open(&mut self, id: TargetId) {
        let handed: Vec<u32> = self.handed_to(id).collect();
        if let Some(holder) = self.holder_mut(id) {
            holder.opens += 1;
            handed.into_iter().for_each(|chunk| self.flags[chunk as usize] &= !CLEAN);
        }
    }

    /// A target is closed, as often as it was opened. What it was handed stays its own.
    pub fn close(&mut self, id: TargetId) {
        if let Some(holder) = self.holder_mut(id) {
            holder.opens = holder.opens.saturating_sub(1);
        }
    }

    /// Chunks that may be handed out on a parallel unit: clean ones, and dirty ones.
    pub fn free_on(&self, pu: u32) -> (u32, u32) {
        self.pus.get(pu as usize).map_or((0, 0), |lists| {
            let dirty = lists.dirty.len() + usize::from(lists.erasing.is_some());
            (lists.free.len() as u32, dirty as u32)
        })
    }

    /// The wear of the oldest good chunk of a parallel unit, in cycles.
    pub fn oldest_on(&self, pu: u32) -> u32 {
        let per_pu = self.table.chunks_per_pu();
        let good = |chunk: &u32| {
            let state = self.table.chunks().get(*chunk as usize).map(|c| c.state);
            matches!(state, Some(ChunkUse::Free | ChunkUse::Owned | ChunkUse::Dirty))
        };
        let chunks = (pu * per_pu..(pu + 1) * per_pu).filter(good);
        chunks.map(|chunk| self.wear.cycles(chunk)).max().unwrap_or(0)
    }

    /// A chunk's heat decides from which end of the free list it comes.
    pub(super) fn pick(&mut self, pu: u32, heat: Heat) -> Option<u32> {
        let levelling = self.config.policy == WearPolicy::Levelling;
        let free = &mut self.pus.get_mut(pu as usize)?.free;
        let picked = match heat {
            Heat::Cold if levelling => free.pop_last(),
            _ => free.pop_first(),
        };
        picked.map(|(_, chunk)| chunk)
    }
}

impl Holder {
    fn new(target: &Target) -> Holder {
        let limits = target.spec.limits;
        Holder {
            id: target.id,
            opens: 0,
            limits,
            ration: Ration::new(&limits),
            owned: 0,
            handed: 0,
            stash: BTreeMap::new(),
            waiting: BTreeSet::new(),
        }
    }
}
