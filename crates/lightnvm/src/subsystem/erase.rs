//! Erasing between two owners: which dirty chunk is next, and what becomes of it. One at a time on a
//! parallel unit, lazily: where clean chunks run short, where somebody waits, or everywhere on units
//! that are about to be somebody's.

use super::chunk_allocator::{ChunkAllocator, ORPHANED};
use super::{PuSet, TableError, TableRecord};

/// How an erase ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EraseOutcome {
    /// The chunk is erased.
    Erased,
    /// The chunk is bad.
    Bad,
    /// Nobody knows: it stays dirty.
    Unknown,
}

impl ChunkAllocator {
    /// Wants every dirty chunk of these units erased, from now until none is left.
    pub fn erase_all_dirty(&mut self, pus: &PuSet) {
        for pu in pus.iter() {
            if let Some(lists) = self.pu_lists.get_mut(pu.0 as usize) {
                lists.erase_all_dirty = !lists.dirty.is_empty() || lists.erasing.is_some();
            }
        }
    }

    /// Whether no unit of these has a dirty chunk.
    pub fn is_erased(&self, pus: &PuSet) -> bool {
        pus.iter().all(|pu| self.free_counts(pu.0).1 == 0)
    }

    /// The next chunk to be erased; [`erase_done`](Pool::erase_done) says how that ended.
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

    /// An erase has ended.
    ///
    /// # Errors
    /// [`TableError::Inconsistent`] for a chunk that was not being erased.
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
