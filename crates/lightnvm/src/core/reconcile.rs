//! Reports: what a drive says of its chunks against what the table says of them, when a drive is
//! opened ([`Pool::new`]) and later ([`Pool::refresh`]).
//!
//! | the table | the report | then |
//! |---|---|---|
//! | free, owned, dirty | offline | retired |
//! | dirty | free | clean: it was erased, and power cut before that was recorded |
//! | dirty | closed early | retired: a program has failed in it |
//! | free | open, closed | a stray |
//! | owned, of a `ppa` that shares | free | not handed out, or erased by its owner: in its stash |
//! | owned, of others | free | handed out |
//! | owned | open, closed | handed out |

use nvme::{ChunkDescriptor, ChunkState};

use super::pool::{CLEAN, HANDED, STRAY};
use super::{ChunkUse, Pool, Record, TableError};

impl Pool {
    /// Lets table and report agree.
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
                // A program has failed in it: nobody else shall find out when another does.
                ChunkUse::Dirty if failed => bad.push(chunk),
                ChunkUse::Dirty if state == ChunkState::Free => clean.push(chunk),
                _ => {}
            }
            self.flags[chunk as usize] = match (entry.state, state) {
                (ChunkUse::Owned, ChunkState::Free) => CLEAN,
                (ChunkUse::Owned, _) => HANDED,
                (ChunkUse::Free, ChunkState::Open | ChunkState::Closed) => STRAY,
                _ => 0,
            };
        }
        for chunks in [&bad, &clean] {
            chunks.iter().for_each(|chunk| self.flags[*chunk as usize] = 0);
        }
        if !bad.is_empty() {
            self.stats.retired += bad.len() as u64;
            self.make(Record::Retired { chunks: bad })?;
        }
        if !clean.is_empty() {
            self.make(Record::Cleaned { chunks: clean })?;
        }
        for chunk in 0..self.flags.len() as u32 {
            let entry = self.table.chunks()[chunk as usize];
            let (key, pu) = (self.key(chunk), self.table.pu_of(chunk));
            let lists = &mut self.pus[pu as usize];
            let flags = &mut self.flags[chunk as usize];
            match (entry.state, entry.owner) {
                (ChunkUse::Free, _) if *flags & STRAY == 0 => {
                    lists.free.insert((key, chunk));
                }
                (ChunkUse::Dirty, _) => {
                    lists.dirty.insert((key, chunk));
                }
                (ChunkUse::Owned, Some(owner)) => {
                    if self.table.target(owner).is_some_and(|t| t.spec.keeps_chunks()) {
                        *flags |= HANDED;
                    }
                    let handed = *flags & HANDED != 0;
                    if let Ok(i) = self.holders.binary_search_by_key(&owner, |h| h.id) {
                        let holder = &mut self.holders[i];
                        holder.owned += 1;
                        holder.handed += u32::from(handed);
                        if !handed {
                            holder.stash.entry(pu).or_default().push(chunk);
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes a newer report of all chunks: their wear, and those that went bad.
    ///
    /// # Errors
    /// [`TableError::Report`] if the report is of another number of chunks.
    pub fn refresh(&mut self, report: &[ChunkDescriptor]) -> Result<(), TableError> {
        let chunks = self.flags.len();
        if report.len() != chunks {
            return Err(TableError::Report { given: report.len(), chunks });
        }
        self.wear.refresh(report);
        let mut bad = Vec::new();
        for (chunk, (entry, d)) in (0..).zip(self.table.chunks().iter().zip(report)) {
            let in_use = matches!(entry.state, ChunkUse::Free | ChunkUse::Owned | ChunkUse::Dirty);
            // What is being erased, or granted, ends as it does.
            let busy = self.pus[self.table.pu_of(chunk) as usize].erasing == Some(chunk)
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
                (self.table.pu_of(*chunk), self.flags[*chunk as usize] & HANDED != 0);
            if let (ChunkUse::Owned, Some(holder)) =
                (entry.state, entry.owner.and_then(|owner| self.holder_mut(owner)))
            {
                holder.owned -= 1;
                holder.handed -= u32::from(handed);
                if let Some(stash) = holder.stash.get_mut(&pu) {
                    stash.retain(|c| c != chunk);
                }
            }
            self.flags[*chunk as usize] = 0;
        }
        if !bad.is_empty() {
            self.stats.retired += bad.len() as u64;
            self.make(Record::Retired { chunks: bad })?;
        }
        for pu in 0..self.pus.len() {
            for free in [true, false] {
                let lists = &mut self.pus[pu];
                let old = std::mem::take(if free { &mut lists.free } else { &mut lists.dirty });
                let still = |(_, chunk): &(u32, u32)| {
                    self.table.chunks()[*chunk as usize].state != ChunkUse::GrownBad
                };
                let new = old.into_iter().filter(still).map(|(_, c)| (self.key(c), c)).collect();
                let lists = &mut self.pus[pu];
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
