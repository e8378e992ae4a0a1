//! [`InodeState`]: the volatile state of an inode of an open volume: users, I/O, pages, writeback and
//! transactions.

use std::collections::BTreeMap;

use crate::invariants::{VolumeViolation, require};
use crate::parts::page_cache::PageId;
use crate::parts::requests::OpSlot;
use crate::{Error, Ino};

/// The part of an inode that is not recorded.
#[derive(Debug, Default)]
pub(crate) struct InodeState {
    pub(crate) users: InodeUsers,
    pub(crate) io: InodeIo,
    pub(crate) pages: FilePages,
    pub(crate) writeback: InodeWriteback,
    pub(crate) txns: InodeTxns,
}

impl InodeState {
    pub(crate) fn check_invariants(&self, ino: Ino) -> Result<(), VolumeViolation> {
        self.users.check_invariants(ino)?;
        self.pages.check_invariants(ino)
    }
}

/// Users of an inode: it is removed only without any.
#[derive(Debug, Default)]
pub(crate) struct InodeUsers {
    /// Number of opens.
    opens: u32,
    /// Requests in flight that pin it.
    pins: u32,
    /// The request that changes it; at most one at a time.
    writer: Option<OpSlot>,
    /// It has no name and no users, and is queued for removal.
    is_orphan: bool,
}

impl InodeUsers {
    pub(crate) fn open(&mut self) {
        self.opens += 1;
    }

    pub(crate) fn close(&mut self) -> Result<(), Error> {
        self.opens = self.opens.checked_sub(1).ok_or(Error::Invalid("it is not open"))?;
        Ok(())
    }

    pub(crate) fn close_all(&mut self) {
        self.opens = 0;
    }

    pub(crate) fn pin(&mut self) {
        self.pins += 1;
    }

    /// Ends the use by a request. Returns whether it was the writer.
    pub(crate) fn unpin(&mut self, slot: OpSlot) -> bool {
        self.pins = self.pins.checked_sub(1).expect("inodes: a request ends that pinned no inode");
        let is_writer = self.writer == Some(slot);
        if is_writer {
            self.writer = None;
        }
        is_writer
    }

    /// Makes a request the writer; returns `false` while there is another one.
    pub(crate) fn begin_change(&mut self, slot: OpSlot) -> bool {
        *self.writer.get_or_insert(slot) == slot
    }

    pub(crate) fn is_used(&self) -> bool {
        self.opens > 0 || self.pins > 0
    }

    /// Returns whether the inode, which has no name, must be queued for removal now.
    pub(crate) fn become_orphan(&mut self) -> bool {
        !self.is_used() && !std::mem::replace(&mut self.is_orphan, true)
    }

    /// Cancels the removal.
    pub(crate) fn cancel_removal(&mut self) {
        self.is_orphan = false;
    }

    pub(crate) fn is_orphan(&self) -> bool {
        self.is_orphan
    }

    /// Returns the number of requests that pin it.
    pub(crate) fn pins(&self) -> u32 {
        self.pins
    }

    pub(crate) fn writer(&self) -> Option<OpSlot> {
        self.writer
    }

    fn check_invariants(&self, ino: Ino) -> Result<(), VolumeViolation> {
        require!(
            self.writer.is_none() || self.pins > 0,
            Inodes,
            "a writer pins its file",
            ino,
            "at least one pin",
            self.pins
        );
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_pins(&mut self) {
        self.pins += 1;
    }
}

/// I/O of an inode on the device.
#[derive(Debug, Default)]
pub(crate) struct InodeIo {
    /// Reads and writes in flight.
    in_flight: u32,
    /// The writer removes blocks and waits for I/O in flight; no new I/O starts.
    is_blocked: bool,
}

impl InodeIo {
    pub(crate) fn begin(&mut self) {
        self.in_flight += 1;
    }

    pub(crate) fn end(&mut self) {
        self.in_flight =
            self.in_flight.checked_sub(1).expect("inodes: I/O ends, and none is in flight");
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Blocks new I/O, and returns whether none is in flight.
    pub(crate) fn quiesce(&mut self) -> bool {
        self.is_blocked = true;
        self.is_idle()
    }

    pub(crate) fn unblock(&mut self) {
        self.is_blocked = false;
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }
}

/// Blocks of a file in the page cache.
#[derive(Debug, Default)]
pub(crate) struct FilePages {
    pages: BTreeMap<u32, PageId>,
    /// Blocks whose pages differ from the device, or are being written.
    dirty: BlockSet,
    /// Blocks with journaled bytes that are not in place.
    journaled: BlockSet,
}

impl FilePages {
    pub(crate) fn get(&self, block: u32) -> Option<PageId> {
        self.pages.get(&block).copied()
    }

    /// Returns the first cached block from a block on.
    pub(crate) fn next_cached(&self, block: u32) -> Option<u32> {
        self.pages.range(block..).next().map(|(block, _)| *block)
    }

    pub(crate) fn insert(&mut self, block: u32, page: PageId) {
        let before = self.pages.insert(block, page);
        debug_assert!(before.is_none(), "pages: block {block} has {before:?} and {page:?}");
    }

    /// Removes a block with clean contents.
    pub(crate) fn remove(&mut self, block: u32) {
        let page = self.pages.remove(&block);
        debug_assert!(page.is_some(), "pages: block {block} is evicted, and is not cached");
    }

    /// Removes the first cached block of `from..to`, whatever its contents.
    pub(crate) fn pop_range(&mut self, from: u32, to: u32) -> Option<PageId> {
        let (&block, &page) = self.pages.range(from..to).next()?;
        self.pages.remove(&block);
        self.dirty.remove(block);
        self.journaled.remove(block);
        Some(page)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, PageId)> + '_ {
        self.pages.iter().map(|(block, page)| (*block, *page))
    }

    /// Returns whether all data is in place.
    pub(crate) fn is_in_place(&self) -> bool {
        self.dirty.is_empty() && self.journaled.is_empty()
    }

    /// Returns the blocks that differ from the device, or are being written.
    pub(crate) fn dirty(&self) -> &BlockSet {
        &self.dirty
    }

    /// Returns the blocks with journaled bytes that are not in place.
    pub(crate) fn journaled(&self) -> &BlockSet {
        &self.journaled
    }

    pub(crate) fn mark_dirty(&mut self, block: u32) {
        self.dirty.insert(block);
    }

    /// Records that the changes of a block are in the journal.
    pub(crate) fn mark_journaled(&mut self, block: u32) {
        self.dirty.remove(block);
        self.journaled.insert(block);
    }

    /// Records that a block was written in place; `is_dirty` if it changed meanwhile.
    pub(crate) fn mark_written(&mut self, block: u32, is_dirty: bool) {
        self.journaled.remove(block);
        if !is_dirty {
            self.dirty.remove(block);
        }
    }

    fn check_invariants(&self, ino: Ino) -> Result<(), VolumeViolation> {
        for block in self.dirty.iter().chain(self.journaled.iter()) {
            require!(
                self.pages.contains_key(block),
                Pages,
                "data that is not in place is cached",
                format_args!("{ino}, block {block}"),
                "a page",
                "none"
            );
        }
        Ok(())
    }
}

/// Writeback of an inode's pages.
#[derive(Debug, Default)]
pub(crate) struct InodeWriteback {
    /// It is in the queue of inodes by age.
    is_aging: bool,
    /// It is in the queue of inodes to be written now.
    is_due: bool,
    /// A request waits for its writes: if they are few, they are written with FUA.
    is_urgent: bool,
    /// A write failed and has not been requested again since.
    is_paused: bool,
    /// Number of failed writes.
    errors: u64,
    /// The events of the volume ([`WritebackQueue`](crate::parts::writeback_queue::WritebackQueue))
    /// before the last search through all its dirty and journaled blocks.
    searched: Option<u64>,
}

impl InodeWriteback {
    /// Returns whether the inode must be queued by age.
    pub(crate) fn begin_aging(&mut self) -> bool {
        !std::mem::replace(&mut self.is_aging, true)
    }

    pub(crate) fn end_aging(&mut self) {
        self.is_aging = false;
    }

    /// Records a search through its dirty and journaled blocks after this many events, and that those
    /// that were ready are being written.
    pub(crate) fn end_search(&mut self, events: u64) {
        self.searched = Some(events);
    }

    /// Returns whether such a search would find no block.
    pub(crate) fn was_searched(&self, events: u64) -> bool {
        self.searched == Some(events)
    }

    /// Requests writeback; returns whether the inode must be queued as due.
    pub(crate) fn request(&mut self, is_urgent: bool) -> bool {
        self.is_urgent |= is_urgent;
        !std::mem::replace(&mut self.is_due, true)
    }

    /// Ends writeback that was due.
    pub(crate) fn end(&mut self) {
        (self.is_due, self.is_urgent) = (false, false);
    }

    /// Records a failed write: no write is started before the next request.
    pub(crate) fn record_error(&mut self) {
        (self.is_paused, self.is_urgent) = (true, false);
        self.errors += 1;
    }

    pub(crate) fn resume(&mut self) {
        self.is_paused = false;
    }

    pub(crate) fn is_aging(&self) -> bool {
        self.is_aging
    }

    pub(crate) fn is_due(&self) -> bool {
        self.is_due
    }

    pub(crate) fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Returns the number of failed writes.
    pub(crate) fn errors(&self) -> u64 {
        self.errors
    }
}

/// Transactions and writes that must be durable for an inode to be durable.
#[derive(Debug, Default)]
pub(crate) struct InodeTxns {
    /// It is in the running transaction.
    is_in_running: bool,
    /// The last transaction that changes it.
    last: u64,
    /// The last transaction without which its data could not be read.
    last_for_data: u64,
    /// Sequence number of the last data write without FUA.
    unflushed_seq: u64,
    /// Sequence number of the last such write with parts of writes to be kept whole.
    unflushed_whole_seq: u64,
    /// The last transaction that removed blocks which the file keeps without contents.
    last_emptied: u64,
}

impl InodeTxns {
    /// Records a change in the running transaction; `for_data` if the data could not be read
    /// without it. Returns whether the inode must be added to the transaction.
    pub(crate) fn change(&mut self, txn: u64, for_data: bool) -> bool {
        self.last = txn;
        if for_data {
            self.last_for_data = txn;
        }
        !std::mem::replace(&mut self.is_in_running, true)
    }

    /// Records that the running transaction was closed.
    pub(crate) fn close(&mut self) {
        self.is_in_running = false;
    }

    pub(crate) fn is_in_running(&self) -> bool {
        self.is_in_running
    }

    /// Returns the last transaction that changes the inode, or its data only.
    pub(crate) fn last(&self, data_only: bool) -> u64 {
        if data_only { self.last_for_data } else { self.last }
    }

    /// Records that the running transaction `txn` makes blocks of the file read as zeros, and the
    /// file keeps them.
    pub(crate) fn record_emptied(&mut self, txn: u64) {
        self.last_emptied = txn;
    }

    /// Returns the last transaction that removed blocks which the file keeps without contents.
    pub(crate) fn last_emptied(&self) -> u64 {
        self.last_emptied
    }

    /// Records a data write without FUA; `is_whole` if it has parts of writes to be kept whole.
    pub(crate) fn record_write(&mut self, write_seq: u64, is_whole: bool) {
        self.unflushed_seq = write_seq;
        if is_whole {
            self.unflushed_whole_seq = write_seq;
        }
    }

    pub(crate) fn unflushed_whole_seq(&self) -> u64 {
        self.unflushed_whole_seq
    }

    pub(crate) fn unflushed_seq(&self) -> u64 {
        self.unflushed_seq
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
