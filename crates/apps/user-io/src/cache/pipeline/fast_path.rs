//! Reads that complete at once: the most frequent request, and therefore the cheapest path.
//!
//! Guarantee: a fast read has the same effect, in the same order to all other requests, as one that
//! goes through the request table. It overtakes neither a request that waits for a frame nor a
//! bypass request.

use block::{BlockDevice, Completion, Op, Request};
use nvme::Status;

use crate::cache::Cache;
use crate::cache::copy::{self, CopyDirection, RequestBytes};
use crate::cache::frames::FrameState;

impl<D: BlockDevice> Cache<D> {
    /// Completes a read of one readable block by copying it, without a request-table entry. Returns
    /// `None` for every other request.
    #[inline]
    pub(in crate::cache) fn try_fast_read(&mut self, request: &Request) -> Option<Completion> {
        if request.op != Op::Read || !self.geometry.is_single_block(request) {
            return None;
        }
        let block = self.geometry.block_of(request.lba);
        if self.bypass.is_active() || self.waiters.has_stalled_requests() {
            return None;
        }
        let frame = self.blocks.find_with_hint(block)?;
        let (FrameState::Clean | FrameState::Dirty | FrameState::Writing) =
            self.blocks.frames.get(frame).state
        else {
            return None;
        };
        self.stats.hits += 1;
        self.blocks.frames.touch(frame);
        let copied = copy::copy(
            &self.memory,
            CopyDirection::CacheToRequest,
            self.blocks.bytes(frame, self.geometry.offset_in_block(request.lba)),
            RequestBytes { data: request.data, offset: 0 },
            (request.sectors * self.geometry.limits().sector_bytes) as usize,
        );
        self.read_ahead(block, block + 1);
        let status = copied.err().unwrap_or(Status::SUCCESS);
        Some(Completion { tag: request.tag, status, result: 0 })
    }
}
