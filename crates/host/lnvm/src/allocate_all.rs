//! [`MediaManager::allocate_all`]: allocates all chunks of a target that shares its parallel units.
//!
//! `pblk`, `rrpc` and `kv` derive their capacity from their chunks, so these must not change. Such
//! targets acquire the maximum on first open, keep it
//! ([`NewTarget::has_fixed_chunks`](super::NewTarget::has_fixed_chunks)), and acquire no chunks
//! later. The allocation can be interrupted at any time and repeated: chunks granted before stay
//! granted.

use super::{AcquireError, DataTemperature, MediaManager, MediaManagerError, TargetId};

/// Maximum number of attempts per chunk: a grant and an erase take one iteration each.
const ACQUIRE_POLL_LIMIT: u32 = 1000;

impl MediaManager {
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
        // Granted by an earlier, interrupted call, but not acquired.
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

    /// Acquires one chunk, and waits until it is ready.
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
            // At least one iteration, and until no operation is in flight.
            let mut turned = false;
            self.poll_until(pump, |s| std::mem::replace(&mut turned, true) && s.is_quiescent())?;
        }
        Err(self.timeout_error())
    }
}
