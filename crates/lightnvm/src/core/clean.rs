//! Erasing between two owners: which dirty chunk is next, and what becomes of it. One at a time on a
//! parallel unit, lazily: where clean chunks run short, where somebody waits, or everywhere on units
//! that are about to be somebody's.

use super::pool::{Pool, STRAY};
use super::{PuSet, Record, TableError};

/// How an erase ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erased {
    /// The chunk is erased.
    Clean,
    /// The chunk is bad.
    Bad,
    /// Nobody knows: it stays dirty.
    Unknown,
}

impl Pool {
    /// Wants every dirty chunk of these units erased, from now until none is left.
    pub fn clean_all(&mut self, pus: &PuSet) {
        for pu in pus.iter() {
            if let Some(lists) = self.pus.get_mut(pu.0 as usize) {
                lists.clean_all = !lists.dirty.is_empty() || lists.erasing.is_some();
            }
        }
    }

    /// Whether no unit of these has a dirty chunk.
    pub fn is_clean(&self, pus: &PuSet) -> bool {
        pus.iter().all(|pu| self.free_on(pu.0).1 == 0)
    }

    /// The next chunk to be erased; [`erase_done`](Pool::erase_done) says how that ended.
    pub fn next_erase(&mut self) -> Option<u32> {
        let low = 2 * self.config.batch_chunks as usize;
        let due = self.pus.iter_mut().find(|lists| {
            let short = lists.wanted || lists.clean_all || lists.free.len() < low;
            lists.erasing.is_none() && !lists.dirty.is_empty() && short
        })?;
        let (_, chunk) = due.dirty.pop_first()?;
        due.erasing = Some(chunk);
        Some(chunk)
    }

    /// An erase has ended.
    ///
    /// # Errors
    /// [`TableError::Impossible`] for a chunk that was not being erased.
    pub fn erase_done(&mut self, chunk: u32, how: Erased) -> Result<(), TableError> {
        let pu = self.table.pu_of(chunk) as usize;
        let erasing = self.pus.get_mut(pu).filter(|lists| lists.erasing == Some(chunk));
        let Some(lists) = erasing else {
            let what = format!("chunk {chunk} was erased without being asked for");
            return Err(TableError::Impossible { what });
        };
        lists.erasing = None;
        match how {
            Erased::Clean => {
                self.wear.erased(chunk);
                self.stats.erased += 1;
                self.make(Record::Cleaned { chunks: vec![chunk] })?;
                self.put_back(chunk, true);
            }
            Erased::Bad => {
                self.stats.retired += 1;
                self.make(Record::Retired { chunks: vec![chunk] })?;
                self.flags[chunk as usize] &= !STRAY;
            }
            Erased::Unknown => self.put_back(chunk, false),
        }
        let lists = &mut self.pus[pu];
        lists.wanted &= lists.free.is_empty() && !lists.dirty.is_empty();
        lists.clean_all &= !lists.dirty.is_empty();
        Ok(())
    }
}
