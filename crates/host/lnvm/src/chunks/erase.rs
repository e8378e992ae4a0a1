//! Erasing chunks between two owners. One erase is in progress per parallel unit. Dirty chunks are
//! erased only if erased chunks run short, if a target waits for one, or if their units are about
//! to get an exclusive owner.

use crate::chunks::allocator::{ChunkAllocator, ORPHANED};
use crate::{PuSet, TableError, TableRecord};

/// Outcome of an erase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EraseOutcome {
    /// The chunk is erased.
    Erased,
    /// The chunk is bad.
    Bad,
    /// Unknown; the chunk stays dirty.
    Unknown,
}

impl ChunkAllocator {
    /// Requests the erase of every dirty chunk of these units.
    pub fn erase_all_dirty(&mut self, pus: &PuSet) {
        for pu in pus.iter() {
            if let Some(lists) = self.pu_lists.get_mut(pu.0 as usize) {
                lists.erase_all_dirty = !lists.dirty.is_empty() || lists.erasing.is_some();
            }
        }
    }

    /// Returns whether none of these units has a dirty chunk.
    pub fn is_erased(&self, pus: &PuSet) -> bool {
        pus.iter().all(|pu| self.free_counts(pu.0).1 == 0)
    }

    /// Returns the next chunk to erase; the caller reports the result by
    /// [`erase_done`](ChunkAllocator::erase_done).
    pub fn next_erase(&mut self) -> Option<u32> {
        let low = 2 * self.config.batch_chunks as usize;
        let due = self.pu_lists.iter_mut().find(|lists| {
            let short = lists.needs_erased || lists.erase_all_dirty || lists.free.len() < low;
            lists.erasing.is_none() && !lists.dirty.is_empty() && short
        })?;
        let (_, chunk) = due.dirty.pop_first()?;
        due.erasing = Some(chunk);
        Some(chunk)
    }

    /// Handles the outcome of an erase.
    ///
    /// # Errors
    /// [`TableError::Inconsistent`] for a chunk whose erase was not in progress.
    pub fn erase_done(&mut self, chunk: u32, how: EraseOutcome) -> Result<(), TableError> {
        let pu = self.table.pu_of(chunk) as usize;
        let erasing = self.pu_lists.get_mut(pu).filter(|lists| lists.erasing == Some(chunk));
        let Some(lists) = erasing else {
            let what = format!("chunk {chunk} was erased without being asked for");
            return Err(TableError::Inconsistent { what });
        };
        lists.erasing = None;
        match how {
            EraseOutcome::Erased => {
                self.wear.record_erase(chunk);
                self.stats.erased += 1;
                self.apply_record(TableRecord::Erased { chunks: vec![chunk] })?;
                self.requeue(chunk, true);
            }
            EraseOutcome::Bad => {
                self.stats.retired += 1;
                self.apply_record(TableRecord::Retired { chunks: vec![chunk] })?;
                self.chunk_flags[chunk as usize] &= !ORPHANED;
            }
            EraseOutcome::Unknown => self.requeue(chunk, false),
        }
        let lists = &mut self.pu_lists[pu];
        lists.needs_erased &= lists.free.is_empty() && !lists.dirty.is_empty();
        lists.erase_all_dirty &= !lists.dirty.is_empty();
        Ok(())
    }
}
