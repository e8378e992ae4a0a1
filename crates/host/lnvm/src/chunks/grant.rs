//! [`ChunkAllocator::acquire`] and [`ChunkAllocator::release`]: chunks of sharing targets. The
//! media manager rate-limits the blocks that a target gets, and thus its performance relative to
//! others on shared parallel units, without inspecting I/Os [Thesis15 ch. 6 §4.2].
//!
//! Chunks are granted in batches, because a grant must be durable before it is used. The first
//! chunk of a batch is acquired at once; the others are *granted, unacquired* chunks of the target
//! on that parallel unit. If free chunks are scarce, batches are small, and unacquired chunks are
//! reclaimed for other targets.

use time::Nanos;

use crate::chunks::allocator::{ACQUIRED, ERASED, GrantBatch};
use crate::{
    ChunkAllocator, ChunkUse, DataTemperature, PuId, Sharing, TableError, TableRecord, TargetId,
};

/// Why a target cannot acquire a chunk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// The target does not exist, or is not open.
    #[error("target {target} is not open")]
    NotOpen {
        /// The target.
        target: TargetId,
    },
    /// The target owns its units exclusively, with all their chunks.
    #[error("target {name} owns its parallel units {pus} exclusively, with all their chunks")]
    Exclusive {
        /// Name of the target.
        name: String,
        /// Its units.
        pus: String,
    },
    /// The parallel unit does not belong to the target.
    #[error("target {name} does not have parallel unit {pu}: it has {pus}")]
    NotTargetPu {
        /// Name of the target.
        name: String,
        /// Its units.
        pus: String,
        /// The requested unit.
        pu: u32,
    },
    /// The target owns its maximum number of chunks.
    #[error("target {target} owns {max_chunks} chunks, its maximum")]
    ChunkLimit {
        /// The target.
        target: TargetId,
        /// Its limit.
        max_chunks: u32,
    },
    /// The target exceeds its rate limit.
    #[error("target {target} may acquire the next chunk at {} ns", until.0)]
    RateLimited {
        /// The target.
        target: TargetId,
        /// Earliest time for a retry.
        until: Nanos,
    },
    /// The grant is not durable yet, or a chunk is being erased: retry after a poll.
    #[error("a chunk on parallel unit {pu} is being prepared for target {target}: retry")]
    Pending {
        /// The target.
        target: TargetId,
        /// The unit.
        pu: u32,
    },
    /// All chunks of the parallel unit have owners.
    #[error("parallel unit {pu} has no free chunk for target {target}")]
    Full {
        /// The target.
        target: TargetId,
        /// The unit.
        pu: u32,
    },
    /// The partition table accepts no changes.
    #[error("the partition table cannot be written: {0}")]
    Table(String),
}

impl AcquireError {
    /// Returns whether a retry after a poll, or later, may succeed without a release by another
    /// target.
    pub fn is_temporary(&self) -> bool {
        matches!(self, AcquireError::Pending { .. } | AcquireError::RateLimited { .. })
    }
}

/// Why a chunk cannot be released or retired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// The chunk does not belong to the target, or was not acquired.
    #[error("chunk {chunk} is {state:?} with owner {owner:?}: target {target} did not acquire it")]
    NotAcquired {
        /// The chunk.
        chunk: u32,
        /// The target that releases it.
        target: TargetId,
        /// State of the chunk.
        state: Option<ChunkUse>,
        /// Owner of the chunk.
        owner: Option<TargetId>,
    },
    /// The target owns its units exclusively.
    #[error("target {target} owns its parallel units exclusively and cannot release chunk {chunk}")]
    Exclusive {
        /// The chunk.
        chunk: u32,
        /// The target that releases it.
        target: TargetId,
    },
    /// The partition table accepts no changes.
    #[error(transparent)]
    Table(#[from] TableError),
}

impl ChunkAllocator {
    /// Acquires a chunk of parallel unit `pu` for a target; for hot data, the least worn free one.
    ///
    /// # Errors
    /// [`AcquireError`]. After `Pending`, a retry succeeds once the records made so far are durable
    /// and pending erases are complete.
    pub fn acquire(
        &mut self,
        now: Nanos,
        target: TargetId,
        pu: u32,
        heat: DataTemperature,
    ) -> Result<u32, AcquireError> {
        let (Some(entry), Some(holder)) = (self.table.target(target), self.target_holdings(target))
        else {
            return Err(AcquireError::NotOpen { target });
        };
        if holder.open_count == 0 {
            return Err(AcquireError::NotOpen { target });
        }
        let (name, pus) = (&entry.spec.name, &entry.spec.pus);
        if !pus.contains(PuId(pu)) {
            return Err(AcquireError::NotTargetPu { name: name.clone(), pus: pus.to_string(), pu });
        }
        if entry.spec.sharing == Sharing::Exclusive {
            return Err(AcquireError::Exclusive { name: name.clone(), pus: pus.to_string() });
        }
        if let Some(max_chunks) = holder.limits.max_chunks.filter(|max| holder.acquired >= *max) {
            self.stats.denied_chunk_limit += 1;
            return Err(AcquireError::ChunkLimit { target, max_chunks });
        }
        let until = holder.quota.allowed_at(now);
        if until > now {
            self.stats.denied_rate += 1;
            return Err(AcquireError::RateLimited { target, until });
        }
        if let Some(chunk) = self.pop_unacquired(target, pu, heat) {
            self.chunk_flags[chunk as usize] = ACQUIRED;
            self.stats.acquired += 1;
            if let Some(holder) = self.target_holdings_mut(target) {
                holder.acquired += 1;
                holder.quota.consume(now);
            }
            return Ok(chunk);
        }
        let waits = self.target_holdings(target).is_some_and(|h| h.pending_pus.contains(&pu));
        if !waits {
            self.begin_grant(target, pu, heat)?;
        }
        Err(AcquireError::Pending { target, pu })
    }

    /// Pops the best unacquired chunk of a target on a parallel unit.
    fn pop_unacquired(&mut self, target: TargetId, pu: u32, heat: DataTemperature) -> Option<u32> {
        let index = self.holdings.binary_search_by_key(&target, |h| h.id).ok()?;
        let stash = self.holdings[index].granted_unacquired.get(&pu)?;
        let order = |chunk: &&u32| (self.wear_key(**chunk), **chunk);
        let chosen = match heat {
            DataTemperature::Hot => *stash.iter().min_by_key(order)?,
            DataTemperature::Cold => *stash.iter().max_by_key(order)?,
        };
        let stash = self.holdings[index].granted_unacquired.get_mut(&pu)?;
        stash.retain(|chunk| *chunk != chosen);
        Some(chosen)
    }

    /// Starts to grant a batch.
    fn begin_grant(
        &mut self,
        target: TargetId,
        pu: u32,
        heat: DataTemperature,
    ) -> Result<(), AcquireError> {
        let refused = |error: TableError| AcquireError::Table(error.to_string());
        let free = self.pu_lists.get(pu as usize).map_or(0, |lists| lists.free.len() as u32);
        if free == 0 && !self.reclaim_on_pu(target, pu).map_err(refused)? {
            let Some(lists) = self.pu_lists.get_mut(pu as usize) else {
                return Err(AcquireError::Full { target, pu });
            };
            if lists.dirty.is_empty() && lists.erasing.is_none() {
                self.stats.denied_full += 1;
                return Err(AcquireError::Full { target, pu });
            }
            lists.needs_erased = true;
            return Ok(());
        }
        if self.remaining_chunks(target) == 0 && !self.reclaim_from(target, pu).map_err(refused)? {
            // All unacquired chunks are in grants on other units that are not durable yet.
            return Ok(());
        }
        let count =
            self.config.batch_chunks.min((free / 8).max(1)).min(self.remaining_chunks(target));
        let mut chunks: Vec<u32> = (0..count).filter_map(|_| self.pop_free(pu, heat)).collect();
        chunks.sort_unstable();
        self.apply_record(TableRecord::Granted { target, chunks: chunks.clone() })
            .map_err(refused)?;
        self.stats.batches += 1;
        self.records_awaited = self.records_made;
        for chunk in &chunks {
            self.chunk_flags[*chunk as usize] = ERASED;
        }
        let after = self.records_made;
        if let Some(holder) = self.target_holdings_mut(target) {
            holder.owned += chunks.len() as u32;
            holder.pending_pus.insert(pu);
        }
        self.batches.push_back(GrantBatch { durable_after: after, target, pu, chunks });
        Ok(())
    }

    /// Returns the number of further chunks that a target may own.
    fn remaining_chunks(&self, target: TargetId) -> u32 {
        let Some(holder) = self.target_holdings(target) else { return 0 };
        holder.limits.max_chunks.unwrap_or(u32::MAX).saturating_sub(holder.owned)
    }

    /// Reclaims an unacquired chunk on `pu` from the target that has most of them there, other than
    /// `asking`. Returns whether there was one.
    fn reclaim_on_pu(&mut self, asking: TargetId, pu: u32) -> Result<bool, TableError> {
        let size = |h: &&crate::chunks::allocator::TargetHoldings| {
            h.granted_unacquired.get(&pu).map_or(0, Vec::len)
        };
        let others = self.holdings.iter().filter(|h| h.id != asking);
        let largest = others.filter(|h| size(h) > 0).max_by_key(size).map(|h| h.id);
        largest.map_or(Ok(false), |other| self.reclaim_unacquired(other, pu))
    }

    /// Reclaims an unacquired chunk of the target itself on another unit. Returns whether there was
    /// one.
    fn reclaim_from(&mut self, target: TargetId, pu: u32) -> Result<bool, TableError> {
        let Some(holder) = self.target_holdings(target) else { return Ok(false) };
        let other =
            holder.granted_unacquired.iter().find(|(p, stash)| **p != pu && !stash.is_empty());
        other.map(|(p, _)| *p).map_or(Ok(false), |other| self.reclaim_unacquired(target, other))
    }

    /// Reclaims unacquired chunks of a target until it owns no more than its maximum.
    pub(super) fn reclaim_above_limit(&mut self, target: TargetId) -> Result<(), TableError> {
        while let Some(holder) = self.target_holdings(target)
            && holder.limits.max_chunks.is_some_and(|max| holder.owned > max)
            && let Some((pu, _)) =
                holder.granted_unacquired.iter().find(|(_, chunks)| !chunks.is_empty())
        {
            let pu = *pu;
            self.reclaim_unacquired(target, pu)?;
        }
        Ok(())
    }

    fn reclaim_unacquired(&mut self, target: TargetId, pu: u32) -> Result<bool, TableError> {
        let Some(chunk) = self.pop_unacquired(target, pu, DataTemperature::Cold) else {
            return Ok(false);
        };
        self.apply_record(TableRecord::Returned { target, chunks: vec![chunk], erased: true })?;
        self.stats.reclaimed += 1;
        if let Some(holder) = self.target_holdings_mut(target) {
            holder.owned -= 1;
        }
        self.requeue(chunk, true);
        Ok(true)
    }

    /// Checks that a target has acquired a chunk.
    fn check_acquired(&self, target: TargetId, chunk: u32) -> Result<(), ReleaseError> {
        let entry = self.table.chunks().get(chunk as usize);
        let held = entry.is_some_and(|e| e.state == ChunkUse::Owned && e.owner == Some(target))
            && self.chunk_flags[chunk as usize] & ACQUIRED != 0;
        if held {
            return Ok(());
        }
        let (state, owner) = (entry.map(|e| e.state), entry.and_then(|e| e.owner));
        Err(ReleaseError::NotAcquired { chunk, target, state, owner })
    }

    /// Releases a chunk of a sharing target. `clean` says that the target has erased it since its
    /// last write. After a power cut the target may own the chunk again.
    ///
    /// # Errors
    /// [`ReleaseError`]; nothing changes.
    pub fn release(
        &mut self,
        target: TargetId,
        chunk: u32,
        clean: bool,
    ) -> Result<(), ReleaseError> {
        self.check_acquired(target, chunk)?;
        if self.table.target(target).is_some_and(|t| t.spec.sharing == Sharing::Exclusive) {
            return Err(ReleaseError::Exclusive { chunk, target });
        }
        self.apply_record(TableRecord::Returned { target, chunks: vec![chunk], erased: clean })?;
        if let Some(holder) = self.target_holdings_mut(target) {
            holder.owned -= 1;
            holder.acquired -= 1;
        }
        self.stats.released += 1;
        if clean {
            self.wear.record_erase(chunk);
        }
        self.requeue(chunk, clean);
        Ok(())
    }

    /// Retires a chunk that its owner found to be bad; it is not granted again.
    ///
    /// # Errors
    /// [`ReleaseError`]; nothing changes.
    pub fn retire(&mut self, target: TargetId, chunk: u32) -> Result<(), ReleaseError> {
        self.check_acquired(target, chunk)?;
        self.apply_record(TableRecord::Retired { chunks: vec![chunk] })?;
        if let Some(holder) = self.target_holdings_mut(target) {
            holder.owned -= 1;
            holder.acquired -= 1;
        }
        self.chunk_flags[chunk as usize] = 0;
        self.stats.retired += 1;
        Ok(())
    }
}
