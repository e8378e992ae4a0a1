//! [`Live`]: what is known of an inode only while the volume is open: who uses it, what is buffered of
//! it, and which transactions its changes are in.

use std::collections::BTreeMap;

use crate::page_cache::PageId;

/// The part of an inode that is not recorded.
#[derive(Debug, Default)]
pub(crate) struct InodeState {
    /// How often it is open.
    pub(crate) open_count: u32,
    /// Operations that are under way on it.
    pub(crate) ref_count: u32,
    /// The operation that changes it, by slot. One at a time.
    pub(crate) writer: Option<u32>,
    /// Reads and writes at the device.
    pub(crate) io_in_flight: u32,
    /// The writer takes blocks away, and waits for those to end: none begin.
    pub(crate) io_blocked: bool,
    /// Its blocks in memory.
    pub(crate) pages: BTreeMap<u32, PageId>,
    /// Blocks of these that are not on the device as they are in memory, or on their way there.
    pub(crate) dirty: BlockSet,
    /// Those of which the journal has bytes that are not in place.
    pub(crate) journaled: BlockSet,
    /// It is among the inodes that will be written when they are old enough.
    pub(crate) in_dirty_queue: bool,
    /// It is among those that are being written.
    pub(crate) in_writeback_queue: bool,
    /// Its writes are waited for: they go out durable, if they are few.
    pub(crate) urgent: bool,
    /// A write has failed, and nobody has asked again since.
    pub(crate) writeback_paused: bool,
    /// Writes that failed.
    pub(crate) errors: u64,
    /// It is among the running transaction's inodes.
    pub(crate) in_txn: bool,
    /// The last transaction with a change of it.
    pub(crate) txn: u64,
    /// The last transaction without which its data could not be read.
    pub(crate) data_txn: u64,
    /// The last write of its data that was not durable by itself, by number.
    pub(crate) unflushed_seq: u64,
    /// It has no name, and nobody has it open: it is among those that will go.
    pub(crate) is_orphan: bool,
}

impl InodeState {
    /// Whether everything of it is in place.
    pub(crate) fn is_in_place(&self) -> bool {
        self.dirty.is_empty() && self.journaled.is_empty()
    }
}

/// Blocks in order. Its memory stays when they go: what is written again and again takes none.
#[derive(Debug, Default)]
pub(crate) struct BlockSet(Vec<u32>);

impl BlockSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, u32> {
        self.0.iter()
    }

    /// Those from a block on.
    pub(crate) fn range_from(&self, block: u32) -> std::slice::Iter<'_, u32> {
        let at = self.0.partition_point(|b| *b < block);
        self.0[at..].iter()
    }

    pub(crate) fn insert(&mut self, block: u32) {
        // Most are appended.
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
