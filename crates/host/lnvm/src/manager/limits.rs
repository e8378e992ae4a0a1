//! [`MediaManager::set_limits`]: another chunk quota of a target, while it is open or not.
//!
//! The new limits are a record of the partition table: after a power cut the target has the old ones
//! or the new ones. `pblk`, `rrpc` and `kv` compute their capacity from the chunks that they have
//! acquired at their first open, so that their limits can change only before.

use crate::{
    ChunkUse, MediaManager, MediaManagerError, PuId, PuSet, QuotaLimits, Sharing, TargetEntry,
};

impl MediaManager {
    /// Changes all limits of a target that shares its parallel units. On return they are durable.
    ///
    /// An open `ppa` that has acquired more chunks than its new maximum keeps them, and acquires none
    /// until it has released enough.
    ///
    /// # Errors
    /// [`MediaManagerError`]. A rejected request changes nothing on the media. After
    /// [`MediaManagerError::Journal`], [`MediaManagerError::Command`] or
    /// [`MediaManagerError::Timeout`] the target has the old or the new limits.
    pub fn set_limits(
        &mut self,
        name: &str,
        limits: QuotaLimits,
        progress: &mut dyn FnMut(),
    ) -> Result<(), MediaManagerError> {
        let target = self.target(name)?;
        if target.spec.limits == limits {
            return Ok(());
        }
        let id = target.id;
        self.check_limits(target, limits)?;
        self.make_writable(progress)?;
        self.allocator.set_limits(id, limits).map_err(|source| self.damaged_error(source))?;
        self.has_new_work = true;
        self.flush_records(progress)
    }

    fn check_limits(
        &self,
        target: &TargetEntry,
        limits: QuotaLimits,
    ) -> Result<(), MediaManagerError> {
        let (drive, name) = (self.serial.clone(), target.spec.name.clone());
        self.check_limit_options(&target.spec, limits)?;
        let held = self.holdings(target.id);
        let chunks = held.owned + held.bad;
        if target.spec.has_fixed_chunks() && chunks > 0 {
            let kind = target.spec.kind;
            return Err(MediaManagerError::FixedChunks { drive, name, kind, chunks });
        }
        let grows = |wanted: &u32| target.spec.limits.max_chunks.is_none_or(|max| *wanted > max);
        if let Some(wanted) = limits.max_chunks.filter(grows) {
            self.check_sum(target, wanted)?;
        }
        self.failure().map_or(Ok(()), |_| Err(MediaManagerError::ReadOnly { drive }))
    }

    /// Checks that a target finds as many chunks as it may own, and that all targets that share
    /// parallel units do.
    fn check_sum(&self, target: &TargetEntry, wanted: u32) -> Result<(), MediaManagerError> {
        let shares = |t: &&TargetEntry| t.spec.sharing == Sharing::Shared;
        let sharing = || self.table().targets().iter().filter(shares);
        let other = sharing().filter(|t| t.id != target.id);
        let limit = |t: &TargetEntry| t.spec.limits.max_chunks.unwrap_or(self.holdings(t.id).owned);
        let others: u64 = other.map(|t| u64::from(limit(t))).sum();
        let all: PuSet = sharing().flat_map(|t| t.spec.pus.iter()).collect();
        for (others, pus) in [(0, &target.spec.pus), (others, &all)] {
            let chunks = self.good_chunks(pus);
            if others + u64::from(wanted) > chunks {
                let (drive, name) = (self.serial.clone(), target.spec.name.clone());
                let pus = pus.to_string();
                return Err(MediaManagerError::LimitBeyondDrive {
                    drive,
                    name,
                    wanted,
                    others,
                    pus,
                    chunks,
                });
            }
        }
        Ok(())
    }

    /// Returns the number of chunks of parallel units that targets may own.
    fn good_chunks(&self, pus: &PuSet) -> u64 {
        let table = self.table();
        let is_good = |state| matches!(state, ChunkUse::Free | ChunkUse::Owned | ChunkUse::Dirty);
        let chunks = (0..).zip(table.chunks()).filter(|(_, entry)| is_good(entry.state));
        chunks.filter(|(chunk, _)| pus.contains(PuId(table.pu_of(*chunk)))).count() as u64
    }
}
