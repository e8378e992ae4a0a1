//! Ordered barriers: requests that complete at once, and order all later changes after all earlier
//! ones.
//!
//! # Guarantee
//!
//! Let barriers be numbered from 1 on. After a power cut there is a number `k`, not below the last
//! durable barrier that was reported, such that a recovery finds
//!
//! - every change that completed before barrier `k`, of data and of metadata, and
//! - no change that was requested after barrier `k + 1`.
//!
//! Changes between barriers `k` and `k + 1` may be found in part and in any order, as changes
//! without a sync always may. This is what a write-ahead log needs. A record of the log, then a
//! barrier, then the pages that it describes: no page is found without the record.
//!
//! # How
//!
//! All changes made now have the *epoch* `issued + 1`, the number of the next barrier. Two rules
//! keep the order:
//!
//! 1. **In place.** Contents of an epoch `e` are written in place only when barrier `e - 1` is
//!    durable ([`BarrierOrder::permits_in_place`]), because a recovery finds them at once. New
//!    blocks are an exception ([`Core::is_new_block`]): a recovery finds them with the record of
//!    their extent, which is a change of epoch `e`.
//! 2. **Transactions.** A transaction with changes made after a *pending* barrier is closed only
//!    when it covers all barriers acknowledged so far: all their blocks are in place, and flushed
//!    before the transaction is written, or their data is in the transaction. A transaction is
//!    atomic, so its later changes come with everything earlier.
//!
//! A barrier is pending until a transaction covers it ([`Core::poll_barriers`]). As transactions
//! are written one at a time, all barriers that arrive during a write share the next transaction.
//! So do all barriers within [`Options::barrier_delay`](crate::Options::barrier_delay), unless a
//! request waits for one, or two thirds of what one transaction can journal have changed.
//! The running transaction is never split: a block that changed before *and* after a barrier is
//! journaled with its newest contents, together with all other changes up to that point. So no old
//! contents are kept. A checkpoint changes nothing: its superblock waits for the transactions whose
//! changes the snapshot may contain.
//!
//! # Path of a write and a barrier
//!
//! A write copies its data into pages, which get the current epoch. A barrier counts the dirty pages
//! (*before* it), completes, and increments the epoch. If they are few, space for them is
//! reserved in the journal, and the next transaction has their data: one durable write. Otherwise
//! they are written in place first. A page that changes while a barrier is pending is *after* it,
//! and waits in memory. When the transaction is durable, so are the barriers, and rule 1 permits the
//! next epoch.
//!
//! # Limits
//!
//! Pages after a pending barrier may have to be journaled by the transaction that covers it. They
//! are at most [`Core::captures_max`], and each change reserves their bytes, and those of the records
//! of the pages before, in the running transaction ([`Core::ensure_change_space`]). Requests beyond
//! that wait until the barrier is covered (`Stats::barrier_waits`); barriers never wait. On volumes
//! with segments (`whole_writes`), pages before a barrier may need a transaction themselves. If they
//! are too many to be journaled, all changes wait until they are in place.
//!
//! # Errors
//!
//! If the data of a pending barrier cannot be written, the volume is aborted, as if its journal could
//! not be written: the barrier and all later ones fail, and nothing later becomes durable.
//!
//! [`BarrierOrder::permits_in_place`]: crate::parts::barrier_order::BarrierOrder::permits_in_place

use std::ops::Range;

use crate::metadata::extents::{BlockMapping, FileExtent};
use crate::metadata::tree::InodeNode;
use crate::on_media::layout::BLOCK;
use crate::on_media::record::{DATA_BYTES, INODE_BYTES};
use crate::parts::barrier_order::{BarrierCommit, BarrierOrder, BlocksBefore};
use crate::parts::page_cache::{BarrierSide, ByteRange, FileBlock, Page};
use crate::pipeline::page_lookup::bytes_within;
use crate::pipeline::{Core, OpStep, StepResult};
use crate::{Error, Ino, OpResult};

/// Bytes that a journaled block adds to a transaction.
const CAPTURE_BYTES: usize = BLOCK + DATA_BYTES + INODE_BYTES;
/// Searches for new blocks while the blocks of a transaction change.
const NEW_BLOCK_STEPS: usize = 8;
/// Blocks to be written in place that one look at the dirty pages finds.
const IN_PLACE_BATCH: usize = 256;

impl Core {
    /// Returns the sequence of barriers.
    pub(crate) fn barrier_order(&self) -> &BarrierOrder {
        &self.barriers.ordered
    }

    /// Returns the error of a barrier that is not durable on an aborted volume.
    fn check_barriers(&self) -> Result<(), Error> {
        let barrier = self.barriers.ordered.durable() + 1;
        match self.lifecycle.aborted() {
            Some(status) => Err(Error::Barrier { barrier, status }),
            None => Ok(()),
        }
    }

    /// Acknowledges a barrier that covers all completed requests, and returns its number.
    pub(crate) fn issue_barrier(&mut self) -> Result<u64, Error> {
        self.check_barriers()?;
        let was_pending = self.barriers.ordered.is_pending();
        let barrier = self.barriers.ordered.issue(self.now);
        self.page_cache.set_epoch(barrier + 1);
        if !was_pending {
            self.count_pages_before_barrier();
        }
        self.stats.barriers += 1;
        self.made_progress = true;
        Ok(barrier)
    }

    pub(super) fn await_barrier(&mut self, barrier: u64) -> StepResult {
        if barrier > self.barriers.ordered.issued() {
            return Err(Error::Invalid("a barrier that was not acknowledged"));
        }
        if barrier <= self.barriers.ordered.durable() {
            return Ok(OpStep::Done(OpResult::Done));
        }
        self.check_barriers()?;
        self.barriers.ordered.request(barrier);
        Ok(OpStep::Wait)
    }

    /// Has the barriers up to this one become durable without delay.
    pub(crate) fn request_barrier(&mut self, barrier: u64) {
        self.barriers.ordered.request(barrier);
    }

    /// Returns whether barriers are being made durable, or will be without a request or a wait.
    pub(crate) fn is_covering_barriers(&self) -> bool {
        let order = &self.barriers.ordered;
        let is_working = order.commit().is_some() || order.is_pending() && self.is_cover_due();
        is_working && self.lifecycle.aborted().is_none()
    }

    /// Returns whether the pending barriers must be covered now: they are requested or old, the
    /// running transaction must be closed, or two thirds of what one can journal have changed.
    fn is_cover_due(&self) -> bool {
        let order = &self.barriers.ordered;
        order.is_requested()
            || order.deadline(self.options.barrier_delay) <= self.now
            || self.lifecycle.is_closing()
            || 3 * self.captured_pages() >= 2 * self.captures_max()
            || self.log.is_close_due(self.now, self.options.dirty_expire)
    }

    /// Counts the dirty pages before the only pending barrier, and decides whether to journal them.
    fn count_pages_before_barrier(&mut self) {
        self.page_cache.begin_counting();
        self.writeback.record_event();
        for ino in self.writeback.by_age() {
            let Some(node) = self.tree.find_mut(ino) else { continue };
            if !node.state.pages.dirty().is_empty() {
                node.state.writeback.resume();
            }
            for block in node.state.pages.dirty().iter() {
                if let Some(id) = node.state.pages.get(*block) {
                    self.page_cache.count_before(id);
                }
            }
        }
        let before = self.page_cache.barrier_pages().before;
        let journaled = self.page_cache.journaled_len();
        let captures = before <= self.captures_max()
            && journaled + before <= self.journaled_blocks_max()
            && self.log.ensure_space(before * CAPTURE_BYTES, before as u64, journaled);
        if captures {
            return self.barriers.ordered.set_before(BlocksBefore::Journaled);
        }
        // An overwrite in place adds no record.
        let adds_record = |(at, page): &(FileBlock, &Page)| {
            let mapping = self.tree.existing(at.ino).extents.find(at.block);
            let is_written =
                matches!(mapping, BlockMapping::Extent(FileExtent { written: true, .. }));
            page.dirty && (!is_written || page.journaled_txn > 0)
        };
        let records = self.dirty_pages().filter(adds_record).count();
        self.barriers.ordered.set_before(BlocksBefore::InPlace { records });
        self.stats.barrier_in_place_blocks += before as u64;
    }

    /// Returns the maximum number of blocks that one transaction journals for barriers.
    fn captures_max(&self) -> usize {
        self.journaled_blocks_max().min(self.log.txn_bytes_max() / 4 * 3 / CAPTURE_BYTES)
    }

    /// Returns the pages that must be journaled before a pending barrier is covered.
    fn captured_pages(&self) -> usize {
        let pages = self.page_cache.barrier_pages();
        pages.after + if self.barriers.ordered.captures() { pages.before } else { 0 }
    }

    /// Returns whether the running transaction has space for this many more bytes and journaled
    /// blocks of a change, besides what a pending barrier needs. If not, requests a commit.
    pub(super) fn ensure_change_space(&mut self, bytes: usize, sectors: u64) -> bool {
        let journaled = self.page_cache.journaled_len();
        if !self.barriers.ordered.is_pending() {
            return self.log.ensure_space(bytes, sectors, journaled);
        }
        let before = self.page_cache.barrier_pages().before;
        let (in_place, records) = match self.barriers.ordered.before() {
            BlocksBefore::Journaled => (0, 0),
            BlocksBefore::InPlace { records } => (before, records.min(before)),
        };
        // Blocks of a segment may need a transaction before they are written in place.
        let is_deferred = in_place > 0 && self.has_segments();
        let captured = self.captured_pages();
        let reserved = records * self.log.extent_record_bytes() + captured * CAPTURE_BYTES;
        let fits = !is_deferred
            && self.log.ensure_space(bytes + reserved, sectors + captured as u64, journaled);
        if !fits {
            self.barriers.ordered.block();
        }
        fits
    }

    /// Returns whether there is journal space for the records of an extent to be written in place.
    /// For blocks before a barrier, the changes after it have left that space.
    pub(super) fn ensure_writeback_space(&mut self) -> bool {
        let is_reserved = self.barriers.ordered.has_later_changes();
        let bytes = self.log.extent_record_bytes();
        is_reserved || self.log.ensure_space(bytes, 0, self.page_cache.journaled_len())
    }

    /// Returns whether pages of blocks may change now, in spite of a pending barrier.
    pub(super) fn can_change_blocks(&mut self, ino: Ino, blocks: Range<u32>) -> bool {
        if !self.barriers.ordered.is_pending() {
            return true;
        }
        let captures = self.barriers.ordered.captures();
        let is_counted = |page: &Page| match page.order.side {
            BarrierSide::None => false,
            BarrierSide::Before => captures,
            BarrierSide::After => true,
        };
        let is_new = |block: &u32| {
            let page = self.find_page(ino, *block).map(|id| self.page_cache.get(id));
            !page.is_some_and(|page| page.dirty && is_counted(page))
        };
        let new = blocks.filter(is_new).count();
        if new == 0 {
            return true;
        }
        let all = self.captured_pages() + new;
        if all > self.captures_max()
            || self.page_cache.journaled_len() + all > self.journaled_blocks_max()
        {
            self.barriers.ordered.block();
            // Requests that wait for data that cannot be written get the error themselves.
            let _ = self.force_writeback();
            return false;
        }
        self.ensure_change_space(new * CAPTURE_BYTES, new as u64)
    }

    /// Records barriers that have become durable.
    #[cold]
    pub(super) fn end_barriers(&mut self) {
        if let Some(BarrierCommit { txn, write_seq }) = self.barriers.ordered.commit()
            && self.log.require_durable(txn)
            && self.barriers.require_flushed(write_seq)
        {
            self.barriers.ordered.end_commit();
            self.writeback.record_event();
            self.made_progress = true;
        }
    }

    /// Advances the barriers that are not durable.
    #[cold]
    pub(super) fn poll_barriers(&mut self) {
        self.end_barriers();
        let order = &self.barriers.ordered;
        if !order.is_pending() {
            return;
        }
        if !self.is_cover_due() {
            return self.write_new_blocks();
        }
        if self.barriers.ordered.commit().is_some() {
            return;
        }
        let order = &self.barriers.ordered;
        if !order.captures() && self.page_cache.barrier_pages().before > 0 {
            self.write_before_barrier();
            return;
        }
        if self.log.is_commit_idle() {
            self.cover_barriers();
        }
    }

    /// Writes pages before the oldest pending barrier in place, as far as buffers permit. Does not
    /// wait for requests that will remove the blocks, because these may wait for the barrier.
    fn write_before_barrier(&mut self) {
        if !self.staging.is_exhausted() {
            self.write_selected(|_, _, page| page.order.side == BarrierSide::Before);
        }
    }

    /// Writes new blocks in place, in some steps on the way to a transaction that covers the pending
    /// barriers: it need not journal them. The last block of a file is not among them, because it
    /// often changes again.
    fn write_new_blocks(&mut self) {
        let step = (self.captures_max() / NEW_BLOCK_STEPS).max(1);
        let is_far = self.captured_pages() < self.barriers.searched_blocks + step;
        if is_far || self.has_segments() || self.staging.is_exhausted() {
            return;
        }
        self.write_selected(|core, at, page| {
            let node = core.tree.existing(at.ino);
            let is_open = !node.state.io.is_blocked() && !node.state.writeback.is_paused();
            is_open && core.is_new_block(node, at.block, page)
        });
        if !self.staging.is_exhausted() {
            self.barriers.searched_blocks = self.captured_pages();
        }
    }

    /// Writes the dirty pages that are selected in place, as far as buffers and the journal permit.
    fn write_selected(&mut self, is_selected: impl Fn(&Core, FileBlock, &Page) -> bool) {
        let mut blocks = std::mem::take(&mut self.barriers.barrier_blocks);
        let selected = self.dirty_pages().filter(|(at, page)| {
            let is_ready = page.dirty && !page.writing;
            is_ready && is_selected(self, *at, page)
        });
        blocks.extend(selected.map(|(at, _)| at).take(IN_PLACE_BATCH));
        for FileBlock { ino, block } in blocks.drain(..) {
            let page = self.find_page(ino, block).map(|id| self.page_cache.get(id));
            if page.is_none_or(|page| page.writing || !page.dirty) {
                continue;
            }
            if self.staging.is_exhausted() || !self.ensure_writeback_space() {
                break;
            }
            if self.has_segments() {
                self.write_in_place(ino, block);
            } else {
                self.write_extent(ino, block);
            }
        }
        self.barriers.barrier_blocks = blocks;
    }

    /// Returns whether a block before the last one of its file has no contents that a recovery
    /// could find, neither in place nor in the journal: it may be written in place in any epoch. The
    /// record that adds it to the file is a change of its epoch.
    pub(super) fn is_new_block(&self, node: &InodeNode, block: u32, page: &Page) -> bool {
        let is_written = || {
            let mapping = node.extents.find(block);
            matches!(mapping, BlockMapping::Extent(FileExtent { written: true, .. }))
        };
        let is_last = (u64::from(block) + 1) * BLOCK as u64 >= node.size;
        !is_last && page.journaled_txn == 0 && !is_written()
    }

    /// Returns the pages of files that differ from the device, or are being written.
    fn dirty_pages(&self) -> impl Iterator<Item = (FileBlock, &Page)> {
        self.writeback.by_age().flat_map(move |ino| {
            let pages = self.tree.find(ino).map(|node| &node.state.pages);
            let dirty = pages.into_iter().flat_map(|pages| {
                pages.dirty().iter().filter_map(|block| Some((*block, pages.get(*block)?)))
            });
            dirty.map(move |(block, id)| (FileBlock { ino, block }, self.page_cache.get(id)))
        })
    }

    /// Journals the blocks that pending barriers cover and that are not in place, and closes the
    /// transaction, unless some are being written.
    fn cover_barriers(&mut self) {
        let target = self.barriers.ordered.issued();
        let is_due = |page: &Page| page.dirty && page.order.first_epoch <= target;
        if self.dirty_pages().any(|(_, page)| page.is_sending() || page.writing && is_due(page)) {
            return;
        }
        let mut blocks = std::mem::take(&mut self.barriers.barrier_blocks);
        blocks.extend(self.dirty_pages().filter(|(_, page)| is_due(page)).map(|(at, _)| at));
        let journaled = self.stats.journaled_bytes;
        for FileBlock { ino, block } in blocks.iter().copied() {
            self.capture_block(ino, block);
        }
        self.stats.barrier_captured_bytes += self.stats.journaled_bytes - journaled;
        let mut last = None;
        for FileBlock { ino, .. } in blocks.drain(..) {
            if last.replace(ino) != Some(ino) {
                self.update_recorded_size(ino);
                self.add_written_inode(ino, true);
            }
        }
        self.barriers.barrier_blocks = blocks;
        let write_seq = self.barriers.write_seq();
        let txn = self.log.last_txn();
        if !self.log.is_empty() {
            self.close_txn();
        }
        self.barriers.ordered.cover(BarrierCommit { txn, write_seq });
        self.barriers.searched_blocks = 0;
        self.page_cache.end_counting();
        if 2 * self.page_cache.journaled_len() > self.journaled_blocks_max() {
            // Space for the next barriers. An error is of the requests that wait for the data.
            let _ = self.write_back_oldest();
        }
        self.stats.barrier_commits += 1;
        self.made_progress = true;
    }

    /// Journals a dirty block, with all blocks of its segment.
    fn capture_block(&mut self, ino: Ino, block: u32) {
        let id = self.find_page(ino, block).expect("pages: a changed block is cached");
        let page = self.page_cache.get(id);
        if !page.dirty {
            // It was journaled with another block of its segment.
            return;
        }
        let (blocks, range) = if page.whole.is_part {
            (self.segment(ino, block), ByteRange::ALL)
        } else {
            let end = bytes_within(self.tree.existing(ino).size, block) as usize;
            let range = self.journaled_range(page, end).unwrap_or(ByteRange::ALL);
            (block..block + 1, range)
        };
        for block in blocks {
            self.journal_block(ino, block, range);
            self.stats.barrier_captured_blocks += 1;
        }
    }
}
