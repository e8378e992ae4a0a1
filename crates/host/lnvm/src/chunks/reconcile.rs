//! Reconciles the table with the drive's chunk report, when a drive is opened
//! ([`ChunkAllocator::new`]) and later ([`ChunkAllocator::refresh`]).
//!
//! | table | report | result |
//! |---|---|---|
//! | free, owned, dirty | offline | retired |
//! | dirty | free | free: it was erased, and power was cut before that was recorded |
//! | dirty | closed early | retired: a program has failed in it |
//! | free | open, closed | orphaned |
//! | owned by a sharing `ppa` target | free | not acquired, or erased by its owner: granted, unacquired |
//! | owned by another target | free | acquired |
//! | owned | open, closed | acquired |

use nvme::{ChunkDescriptor, ChunkState};

use crate::chunks::allocator::{ACQUIRED, ERASED, ORPHANED};
use crate::{ChunkAllocator, ChunkUse, TableError, TableRecord};

impl ChunkAllocator {
    /// Updates the table and the chunk flags from the report.
    pub(super) fn reconcile(&mut self, report: &[ChunkDescriptor]) -> Result<(), TableError> {
        let (mut bad, mut clean) = (Vec::new(), Vec::new());
        for (chunk, (entry, d)) in (0..).zip(self.table.chunks().iter().zip(report)) {
            let state = d.chunk_state().unwrap_or(ChunkState::Offline);
            let failed = state == ChunkState::Closed && d.wp < d.cnlb;
            match entry.state {
                ChunkUse::Free | ChunkUse::Owned | ChunkUse::Dirty
                    if state == ChunkState::Offline =>
                {
                    bad.push(chunk);
                }
                // A program has failed in it: it is retired before the next owner encounters the
                // failure.
                ChunkUse::Dirty if failed => bad.push(chunk),
                ChunkUse::Dirty if state == ChunkState::Free => clean.push(chunk),
                _ => {}
            }
            self.chunk_flags[chunk as usize] = match (entry.state, state) {
                (ChunkUse::Owned, ChunkState::Free) => ERASED,
                (ChunkUse::Owned, _) => ACQUIRED,
                (ChunkUse::Free, ChunkState::Open | ChunkState::Closed) => ORPHANED,
                _ => 0,
            };
        }
        for chunks in [&bad, &clean] {
            chunks.iter().for_each(|chunk| self.chunk_flags[*chunk as usize] = 0);
        }
        if !bad.is_empty() {
            self.stats.retired += bad.len() as u64;
            self.apply_record(TableRecord::Retired { chunks: bad })?;
        }
        if !clean.is_empty() {
            self.apply_record(TableRecord::Erased { chunks: clean })?;
        }
        for chunk in 0..self.chunk_flags.len() as u32 {
            let entry = self.table.chunks()[chunk as usize];
            let (key, pu) = (self.wear_key(chunk), self.table.pu_of(chunk));
            let lists = &mut self.pu_lists[pu as usize];
            let flags = &mut self.chunk_flags[chunk as usize];
            match (entry.state, entry.owner) {
                (ChunkUse::Free, _) if *flags & ORPHANED == 0 => {
                    lists.free.insert((key, chunk));
                }
                (ChunkUse::Dirty, _) => {
                    lists.dirty.insert((key, chunk));
                }
                (ChunkUse::Owned, Some(owner)) => {
                    if self.table.target(owner).is_some_and(|t| t.spec.has_fixed_chunks()) {
                        *flags |= ACQUIRED;
                    }
                    let handed = *flags & ACQUIRED != 0;
                    if let Ok(i) = self.holdings.binary_search_by_key(&owner, |h| h.id) {
                        let holder = &mut self.holdings[i];
                        holder.owned += 1;
                        holder.acquired += u32::from(handed);
                        if !handed {
                            holder.granted_unacquired.entry(pu).or_default().push(chunk);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Imports a newer report of all chunks: their wear, and those that became bad.
    ///
    /// # Errors
    /// [`TableError::ReportLength`] if the report has another number of chunks.
    pub fn refresh(&mut self, report: &[ChunkDescriptor]) -> Result<(), TableError> {
        let chunks = self.chunk_flags.len();
        if report.len() != chunks {
            return Err(TableError::ReportLength { given: report.len(), chunks });
        }
        self.wear.refresh(report);
        let mut bad = Vec::new();
        for (chunk, (entry, d)) in (0..).zip(self.table.chunks().iter().zip(report)) {
            let in_use = matches!(entry.state, ChunkUse::Free | ChunkUse::Owned | ChunkUse::Dirty);
            // Chunks with an erase or a grant in progress are updated by its completion.
            let busy = self.pu_lists[self.table.pu_of(chunk) as usize].erasing == Some(chunk)
                || self.batches.iter().any(|b| b.chunks.contains(&chunk));
            if in_use
                && !busy
                && d.chunk_state().unwrap_or(ChunkState::Offline) == ChunkState::Offline
            {
                bad.push(chunk);
            }
        }
        for chunk in &bad {
            let entry = self.table.chunks()[*chunk as usize];
            let (pu, handed) =
                (self.table.pu_of(*chunk), self.chunk_flags[*chunk as usize] & ACQUIRED != 0);
            if let (ChunkUse::Owned, Some(holder)) =
                (entry.state, entry.owner.and_then(|owner| self.target_holdings_mut(owner)))
            {
                holder.owned -= 1;
                holder.acquired -= u32::from(handed);
                if let Some(stash) = holder.granted_unacquired.get_mut(&pu) {
                    stash.retain(|c| c != chunk);
                }
            }
            self.chunk_flags[*chunk as usize] = 0;
        }
        if !bad.is_empty() {
            self.stats.retired += bad.len() as u64;
            self.apply_record(TableRecord::Retired { chunks: bad })?;
        }
        for pu in 0..self.pu_lists.len() {
            for free in [true, false] {
                let lists = &mut self.pu_lists[pu];
                let old = std::mem::take(if free { &mut lists.free } else { &mut lists.dirty });
                let still = |(_, chunk): &(u32, u32)| {
                    self.table.chunks()[*chunk as usize].state != ChunkUse::GrownBad
                };
                let new =
                    old.into_iter().filter(still).map(|(_, c)| (self.wear_key(c), c)).collect();
                let lists = &mut self.pu_lists[pu];
                if free {
                    lists.free = new
                } else {
                    lists.dirty = new
                };
            }
        }
        Ok(())
    }
}
