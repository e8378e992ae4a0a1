//! [`MediaManager::allocate_all`]: all chunks of a target that shares its parallel units, at once.
//!
//! `pblk`, `rrpc` and `kv` work out from their chunks what they can hold, which must not change: they
//! take as many as they may when they are first opened, keep them
//! ([`NewTarget::has_fixed_chunks`](super::NewTarget::has_fixed_chunks)), and never ask again. It can be cut at
//! any time and repeated: what was granted by then stays the target's.

use super::{AcquireError, DataTemperature, MediaManager, MediaManagerError, TargetId};

/// How often a chunk is asked for: a grant and an erase take a turn each.
const ACQUIRE_POLL_LIMIT: u32 = 1000;

impl MediaManager {
    /// Gives an open target that shares its units the chunks that it may own and does not yet, evenly
    /// over its parallel units. Nothing to do for one that has them, or its units for itself. Returns
    /// how many it was given; when this returns they are durably its own.
    ///
    /// # Errors
    /// [`MediaManagerError::MissingChunkLimit`], [`MediaManagerError::TooFewChunks`], and [`MediaManagerError::ReadOnly`] for a target
    /// that is not there or not open: nothing has changed on the media. Else what keeps the table from
    /// being written.
    pub fn allocate_all(
        &mut self,
        id: TargetId,
        pump: &mut dyn FnMut(),
    ) -> Result<u32, MediaManagerError> {
        let drive = self.serial.clone();
        let Some(spec) = self.table().target(id).map(|t| t.spec.clone()) else {
            return Err(MediaManagerError::ReadOnly { drive });
        };
        if spec.sharing == super::Sharing::Exclusive {
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
        // Granted to this one by a call that was cut, and not handed out.
        let stashed = held.owned.saturating_sub(held.acquired);
        let too_few = |s: &MediaManager, wanted: u32, free: u32| {
            let shares = |t: &&super::Target| {
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
        self.make_writable(pump)?;
        let mut pus: Vec<u32> = spec.pus.iter().map(|pu| pu.0).collect();
        let (mut given, mut at) = (0, 0);
        while given < wanted && !pus.is_empty() {
            at %= pus.len();
            match self.acquire_blocking(id, pus[at], pump)? {
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

    /// Acquires one chunk, however long it takes to be made ready.
    fn acquire_blocking(
        &mut self,
        id: TargetId,
        pu: u32,
        pump: &mut dyn FnMut(),
    ) -> Result<Result<u32, AcquireError>, MediaManagerError> {
        for _ in 0..ACQUIRE_POLL_LIMIT {
            match self.acquire(self.now, id, pu, DataTemperature::Hot) {
                Err(AcquireError::Pending { .. }) => {}
                answer => return Ok(answer),
            }
            // One turn at least, and until nothing is under way.
            let mut turned = false;
            self.poll_until(pump, |s| std::mem::replace(&mut turned, true) && s.is_quiescent())?;
        }
        Err(self.timeout_error())
    }
}
