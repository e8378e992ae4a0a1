//! Reads that complete at once: the most frequent request, and therefore the cheapest path.
//!
//! Guarantee: a fast read has the same effect, in the same order to all other requests, as one that
//! goes through the request table. It overtakes neither a request that waits for a frame nor a
//! bypass request.

use block::{BlockDevice, Completion, Op, Request};
use nvme::Status;

use crate::cache::Cache;
use crate::cache::copy::{self, CopyDirection};
use crate::cache::frames::FrameState;

impl<D: BlockDevice> Cache<D> {
    /// Completes a read of one readable block by copying it, without a request-table entry. Returns
    /// `None` for every other request.
    #[inline]
    pub(in crate::cache) fn try_fast_read(&mut self, request: &Request) -> Option<Completion> {
        let unit = self.single_block(request)?;
        if self.bypass.is_some() || !self.stalled.is_empty() {
            return None;
        }
        let frame = self.tree.get_with_hint(unit)?;
        let (FrameState::Clean | FrameState::Dirty | FrameState::Writing) =
            self.frames.get(frame).state
        else {
            return None;
        };
        self.stats.hits += 1;
        self.frames.touch(frame);
        let bytes = self.limits.sector_bytes;
        let at = (request.lba & u64::from(self.block_sectors - 1)) as u32 * bytes;
        let (region, base) = self.buffer.region();
        let there = base + self.frame_offset(frame) + at as usize;
        let len = (request.sectors * bytes) as usize;
        let copied = copy::copy(
            &self.memory,
            CopyDirection::CacheToRequest,
            (region, there),
            (request.data, 0),
            len,
        );
        self.read_ahead(unit, unit + 1);
        let status = copied.err().unwrap_or(Status::SUCCESS);
        Some(Completion { tag: request.tag, status, result: 0 })
    }

    /// Returns the block of a read that lies in a single block.
    #[inline]
    fn single_block(&self, request: &Request) -> Option<u64> {
        let within = (request.lba & u64::from(self.block_sectors - 1)) + u64::from(request.sectors);
        let only = request.op == Op::Read && within <= u64::from(self.block_sectors);
        only.then_some(request.lba >> self.block_shift)
    }
}
