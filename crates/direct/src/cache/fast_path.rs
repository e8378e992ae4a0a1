//! Reads that are over at once: what most requests to a cache are, and what has to be cheap.
//!
//! Guarantee: a hit does what the way through the table of requests would do, in the same order to
//! everybody else: nothing overtakes a request that waits for a frame, or one that goes past the frames.

use block::{BlockDevice, Completion, Op, Request};
use nvme::Status;

use super::Cache;
use super::copy::{self, CopyDirection};
use super::frames::FrameState;

impl<D: BlockDevice> Cache<D> {
    /// A read that is in one unit whose frame can be read: copied and ended at once, without a place among
    /// those under way. `None` for every other request.
    #[inline]
    pub(super) fn try_fast_read(&mut self, request: &Request) -> Option<Completion> {
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

    /// The unit that a read is in, if it is in one.
    #[inline]
    fn single_block(&self, request: &Request) -> Option<u64> {
        let within = (request.lba & u64::from(self.block_sectors - 1)) + u64::from(request.sectors);
        let only = request.op == Op::Read && within <= u64::from(self.block_sectors);
        only.then_some(request.lba >> self.block_shift)
    }
}
