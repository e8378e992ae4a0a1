//! Creating and removing targets ([`MediaManager::create`], [`MediaManager::remove`]); and for a
//! target that shares its parallel units, allocating all its chunks
//! ([`MediaManager::allocate_all`]) and changing its limits, while it is open or not
//! ([`MediaManager::set_limits`]).
//!
//! All checks precede the first write.
//!
//! A new target gets erased chunks only: dirty chunks on the units of an exclusive target are
//! erased first, and a sharing target never acquires a dirty chunk. A target that was removed and
//! recreated, even with the old name and units, therefore never finds the old target's data. (A
//! target that recovers its mapping from its chunks would take that data for its own.)
//!
//! `pblk`, `rrpc` and `kv` derive their capacity from their chunks, so these must not change. Such
//! targets acquire the maximum on first open, keep it
//! ([`NewTarget::has_fixed_chunks`](crate::NewTarget::has_fixed_chunks)), and acquire no chunks
//! later, so that their limits can change only before. The allocation can be interrupted at any
//! time and repeated: chunks granted before stay granted.

use rng::Rng;

use super::registration::random_uid;
use crate::{
    AcquireError, ChunkUse, DataTemperature, MediaManager, MediaManagerError, NewTarget, PuId,
    PuSet, QuotaLimits, Sharing, TARGETS_MAX, TargetEntry, TargetId, is_name,
};

/// Maximum over-provisioning, as a multiple of the capacity.
const OVER_PROVISIONING_MAX: f64 = 100.0;

/// Maximum number of attempts per chunk: a grant and an erase take one iteration each.
const ACQUIRE_POLL_LIMIT: u32 = 1000;

impl MediaManager {
    /// Creates a target. The first target of a blank drive also creates its partition table. On
    /// return the target is durable.
    ///
    /// # Errors
    /// [`MediaManagerError`]. A rejected request changes nothing on the media. After
    /// [`MediaManagerError::Journal`], [`MediaManagerError::Command`] or
    /// [`MediaManagerError::Timeout`] the target may or may not exist.
    pub fn create(
        &mut self,
        new: NewTarget,
        progress: &mut dyn FnMut(),
    ) -> Result<TargetId, MediaManagerError> {
        self.check(&new)?;
        self.make_writable(progress)?;
        let exclusive = new.sharing == Sharing::Exclusive;
        if exclusive {
            self.allocator.erase_all_dirty(&new.pus);
            self.has_new_work = true;
            self.poll_until(progress, |s| s.allocator.is_erased(&new.pus))?;
        }
        let id = self.table().next_id();
        let rng = Rng::new(self.config.seed).fork(self.table().uid().0 as u64);
        let uid = random_uid(&mut rng.fork(id.0.into()));
        let created_at = self.table().sequence();
        let target = TargetEntry { id, uid, spec: new, created_at };
        self.allocator.create(target).map_err(|source| self.damaged_error(source))?;
        self.flush_records(progress)?;
        Ok(id)
    }

    /// Removes a target. On return its chunks have no owner; they are erased before they are
    /// granted again. With `factory` they are erased now, and the journal of the partition table
    /// keeps no trace of the target.
    ///
    /// After a power cut the target exists completely or not at all; with `factory`, the remaining
    /// chunks are erased later.
    ///
    /// # Errors
    /// [`MediaManagerError::UnknownTarget`] and [`MediaManagerError::InUse`] change nothing on the
    /// media. After [`MediaManagerError::Journal`], [`MediaManagerError::Command`] or
    /// [`MediaManagerError::Timeout`] the target may or may not exist.
    pub fn remove(
        &mut self,
        name: &str,
        factory: bool,
        progress: &mut dyn FnMut(),
    ) -> Result<(), MediaManagerError> {
        let target = self.target(name)?;
        let (id, pus) = (target.id, target.spec.pus.clone());
        let opens = self.holdings(id).open_count;
        if opens > 0 {
            let (drive, name) = (self.serial.clone(), name.to_owned());
            return Err(MediaManagerError::InUse { drive, name, opens });
        }
        self.make_writable(progress)?;
        let held: Vec<u32> = self.table().owned_by(id).collect();
        self.allocator.remove(id).map_err(|source| self.damaged_error(source))?;
        self.has_new_work = true;
        held.into_iter().for_each(|chunk| self.on_chunk_erased(chunk));
        self.flush_records(progress)?;
        if factory {
            self.allocator.erase_all_dirty(&pus);
            self.has_new_work = true;
            self.poll_until(progress, |s| s.allocator.is_erased(&pus))?;
            self.poll_until(progress, |s| {
                s.journal().is_none_or(|j| !j.is_snapshot_in_progress())
            })?;
            self.take_snapshot();
            let made = self.allocator.records_made();
            self.poll_until(progress, |s| s.durable_records() >= made && s.is_quiescent())?;
        }
        Ok(())
    }

    /// Waits until all records made so far are durable.
    fn flush_records(&mut self, progress: &mut dyn FnMut()) -> Result<(), MediaManagerError> {
        let made = self.allocator.records_made();
        self.poll_until(progress, |s| s.durable_records() >= made)
    }

    /// Checks whether a target can be created.
    ///
    /// # Errors
    /// The errors with which [`create`](MediaManager::create) would reject it.
    pub fn check(&self, new: &NewTarget) -> Result<(), MediaManagerError> {
        let NewTarget { name, kind, pus, sharing, options, limits } = new;
        let (drive, name) = (self.serial.clone(), name.clone());
        if !is_name(&name) {
            return Err(MediaManagerError::InvalidName { name });
        }
        if let Some(other) = self.table().target_by_name(&name) {
            let (kind, pus) = (other.spec.kind, other.spec.pus.to_string());
            return Err(MediaManagerError::TargetExists { drive, name, kind, pus });
        }
        let total = self.table().pus();
        if pus.is_empty() || pus.last() >= Some(PuId(total)) {
            let pus = if pus.is_empty() { "none".into() } else { pus.to_string() };
            return Err(MediaManagerError::NoSuchUnits { drive, name, pus, last: total - 1 });
        }
        if let Some((other, common)) = self.table().overlap(new) {
            let exclusive = other.spec.sharing == Sharing::Exclusive;
            let (other, common) = (other.spec.name.clone(), common.to_string());
            return Err(MediaManagerError::PuOverlap {
                drive,
                new: name,
                other,
                common,
                exclusive,
            });
        }
        if let Some(option) = options.given_names().next().filter(|_| !kind.is_block()) {
            return Err(MediaManagerError::NoSuchOption { name, kind: *kind, option });
        }
        let option = |what, value: String, allowed: String| {
            Err(MediaManagerError::InvalidOption { name: name.clone(), what, value, allowed })
        };
        if let Some(op) = options.over_provisioning
            && !(op.is_finite() && (0.0..=OVER_PROVISIONING_MAX).contains(&op))
        {
            let allowed = format!("it can be 0 to {OVER_PROVISIONING_MAX}");
            return option("over-provisioning", op.to_string(), allowed);
        }
        if let Some(active) = options.active_pus.filter(|n| u64::from(*n) > pus.len()) {
            let allowed = format!("it has {} of them ({pus})", pus.len());
            return option("active parallel units", active.to_string(), allowed);
        }
        self.check_limit_options(new, *limits)?;
        let targets = self.table().targets().len();
        if targets >= TARGETS_MAX {
            return Err(MediaManagerError::TooManyTargets { drive, name, targets });
        }
        let any = pus
            .iter()
            .map(|pu| self.allocator.free_counts(pu.0))
            .any(|(free, dirty)| free + dirty > 0);
        if *sharing == Sharing::Exclusive && !any {
            return Err(MediaManagerError::NoFreeChunks { drive, name, pus: pus.to_string() });
        }
        self.failure().map_or(Ok(()), |_| Err(MediaManagerError::ReadOnly { drive }))
    }

    /// Changes all limits of a target that shares its parallel units. On return they are durable.
    ///
    /// An open `ppa` that has acquired more chunks than its new maximum keeps them, and acquires
    /// none until it has released enough.
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

    /// Checks limits that a target is created with or gets.
    fn check_limit_options(
        &self,
        target: &NewTarget,
        limits: QuotaLimits,
    ) -> Result<(), MediaManagerError> {
        let refused = |value: &str, allowed: &str| {
            let (name, what) = (target.name.clone(), "limit");
            let (value, allowed) = (value.to_owned(), allowed.to_owned());
            Err(MediaManagerError::InvalidOption { name, what, value, allowed })
        };
        if target.sharing == Sharing::Exclusive && !limits.is_unlimited() {
            return refused("given", "only targets that share parallel units have quotas");
        }
        if limits.max_chunks == Some(0) {
            return refused("0 chunks", "it needs one at least");
        }
        if limits.rate.is_some() && target.has_fixed_chunks() {
            let (drive, name, kind) = (self.serial.clone(), target.name.clone(), target.kind);
            return Err(MediaManagerError::RateOfFixedChunks { drive, name, kind });
        }
        Ok(())
    }

    /// Acquires the chunks that an open, sharing target may own and does not own yet, evenly over
    /// its parallel units. Does nothing for a target that has all its chunks, or that owns its
    /// units exclusively. Returns the number of acquired chunks, whose grants are durable.
    ///
    /// # Errors
    /// [`MediaManagerError::MissingChunkLimit`], [`MediaManagerError::TooFewChunks`], and
    /// [`MediaManagerError::ReadOnly`] for a target that does not exist or is not open; nothing
    /// changes on the media. Other errors report why the table cannot be written.
    pub fn allocate_all(
        &mut self,
        id: TargetId,
        progress: &mut dyn FnMut(),
    ) -> Result<u32, MediaManagerError> {
        let drive = self.serial.clone();
        let Some(spec) = self.table().target(id).map(|t| t.spec.clone()) else {
            return Err(MediaManagerError::ReadOnly { drive });
        };
        if spec.sharing == Sharing::Exclusive {
            return Ok(0);
        }
        let name = spec.name.clone();
        let (Some(max_chunks), None) = (spec.limits.max_chunks, spec.limits.rate) else {
            return Err(MediaManagerError::MissingChunkLimit { drive, name, kind: spec.kind });
        };
        let held = self.holdings(id);
        let wanted = max_chunks.saturating_sub(held.acquired + held.bad);
        let free = spec
            .pus
            .iter()
            .map(|pu| self.allocator.free_counts(pu.0))
            .fold(0, |n, (a, b)| n + a + b);
        // Granted by an earlier, interrupted call, but not acquired.
        let stashed = held.owned.saturating_sub(held.acquired);
        let too_few = |s: &MediaManager, wanted: u32, free: u32| {
            let shares = |t: &&TargetEntry| {
                t.id != id && !t.spec.pus.is_disjoint(&spec.pus) && s.holdings(t.id).owned > 0
            };
            let others = s.table().targets().iter().filter(shares);
            let others: Vec<String> = others
                .map(|t| format!("{} ({} chunks)", t.spec.name, s.holdings(t.id).owned))
                .collect();
            let others = if others.is_empty() { "none".into() } else { others.join(", ") };
            let (drive, name, pus) = (s.serial.clone(), spec.name.clone(), spec.pus.to_string());
            MediaManagerError::TooFewChunks { drive, name, pus, wanted, free, others }
        };
        if wanted == 0 {
            return Ok(0);
        }
        if free + stashed < wanted {
            return Err(too_few(self, wanted, free + stashed));
        }
        self.make_writable(progress)?;
        let mut pus: Vec<u32> = spec.pus.iter().map(|pu| pu.0).collect();
        let (mut given, mut at) = (0, 0);
        while given < wanted && !pus.is_empty() {
            at %= pus.len();
            match self.acquire_blocking(id, pus[at], progress)? {
                Ok(_) => {
                    given += 1;
                    at += 1;
                }
                Err(AcquireError::Full { .. }) => {
                    pus.remove(at);
                }
                Err(AcquireError::ChunkLimit { .. }) => break,
                Err(_) => return Err(MediaManagerError::ReadOnly { drive }),
            }
        }
        if given < wanted {
            return Err(too_few(self, wanted, given));
        }
        Ok(given)
    }

    /// Acquires one chunk, and waits until it is ready.
    fn acquire_blocking(
        &mut self,
        id: TargetId,
        pu: u32,
        progress: &mut dyn FnMut(),
    ) -> Result<Result<u32, AcquireError>, MediaManagerError> {
        for _ in 0..ACQUIRE_POLL_LIMIT {
            match self.acquire(self.now, id, pu, DataTemperature::Hot) {
                Err(AcquireError::Pending { .. }) => {}
                answer => return Ok(answer),
            }
            // At least one iteration, and until no operation is in flight.
            let mut turned = false;
            self.poll_until(progress, |s| {
                std::mem::replace(&mut turned, true) && s.is_quiescent()
            })?;
        }
        Err(self.timeout_error())
    }
}
