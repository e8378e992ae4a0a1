//! [`InodeState`]: the volatile state of an inode of an open volume: users, buffered data, and transactions.

use std::collections::BTreeMap;

use crate::parts::page_cache::PageId;

/// The part of an inode that is not recorded.
#[derive(Debug, Default)]
pub(crate) struct InodeState {
    /// Number of opens.
    pub(crate) open_count: u32,
    /// Operations in flight that pin it.
    pub(crate) ref_count: u32,
    /// Slot of the operation that changes it; at most one at a time.
    pub(crate) writer: Option<u32>,
    /// Reads and writes in flight on the device.
    pub(crate) io_in_flight: u32,
    /// The writer removes blocks and waits for I/O in flight; no new I/O starts.
    pub(crate) io_blocked: bool,
    /// Its blocks in the page cache.
    pub(crate) pages: BTreeMap<u32, PageId>,
    /// Pages that differ from the device, or are being written.
    pub(crate) dirty: BlockSet,
    /// Blocks with journaled bytes that are not in place.
    pub(crate) journaled: BlockSet,
    /// It is in the queue of dirty inodes by age.
    pub(crate) in_dirty_queue: bool,
    /// It is in the writeback queue.
    pub(crate) in_writeback_queue: bool,
    /// A request waits for its writes: if they are few, they are written with FUA.
    pub(crate) urgent: bool,
    /// A write failed and has not been requested again since.
    pub(crate) writeback_paused: bool,
    /// Number of failed writes.
    pub(crate) errors: u64,
    /// It is in the running transaction.
    pub(crate) in_txn: bool,
    /// The last transaction that changes it.
    pub(crate) txn: u64,
    /// The last transaction without which its data could not be read.
    pub(crate) data_txn: u64,
    /// Sequence number of the last data write without FUA.
    pub(crate) unflushed_seq: u64,
    /// It has no name and no users, and is queued for removal.
    pub(crate) is_orphan: bool,
}

impl InodeState {
    /// Returns whether all its data is in place.
    pub(crate) fn is_in_place(&self) -> bool {
        self.dirty.is_empty() && self.journaled.is_empty()
    }
}

/// A sorted set of blocks. It keeps its memory when emptied, so that repeated writes do not
/// allocate.
#[derive(Debug, Default)]
pub(crate) struct BlockSet(Vec<u32>);

impl BlockSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns all blocks.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, u32> {
        self.0.iter()
    }

    /// Returns the blocks from a block on.
    pub(crate) fn range_from(&self, block: u32) -> std::slice::Iter<'_, u32> {
        let at = self.0.partition_point(|b| *b < block);
        self.0[at..].iter()
    }

    pub(crate) fn insert(&mut self, block: u32) {
        // Most blocks are appended.
        if self.0.last().is_none_or(|last| *last < block) {
            self.0.push(block);
        } else if let Err(at) = self.0.binary_search(&block) {
            self.0.insert(at, block);
        }
    }

    pub(crate) fn remove(&mut self, block: u32) {
        if let Ok(at) = self.0.binary_search(&block) {
            self.0.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn blocks_are_a_set_in_order() {
        for seed in 0..20 {
            let mut rng = rng::Rng::new(seed);
            let (mut blocks, mut model) = (BlockSet::default(), BTreeSet::new());
            for _ in 0..500 {
                let block = rng.below(40) as u32;
                if rng.chance(0.6) {
                    blocks.insert(block);
                    model.insert(block);
                } else {
                    blocks.remove(block);
                    model.remove(&block);
                }
                assert!(blocks.iter().eq(model.iter()), "seed {seed}");
                assert!(blocks.range_from(block).eq(model.range(block..)), "seed {seed}");
                assert_eq!((blocks.len(), blocks.is_empty()), (model.len(), model.is_empty()));
            }
        }
    }
}
