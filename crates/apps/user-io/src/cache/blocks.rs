//! [`CachedBlocks`]: the blocks of the cache, their frames, and the frames' memory.

use mem::Iova;

use super::EvictionPolicy;
use super::copy::FrameBytes;
use super::frames::{AllocatedFrame, BlockFrame, CacheFrames, FrameState};
use super::invariants::{CacheViolation, require_eq};
use super::radix::Radix;
use crate::Buffer;

/// All cached blocks.
#[derive(Debug)]
pub(super) struct CachedBlocks {
    buffer: Buffer,
    block_bytes: usize,
    pub(super) frames: CacheFrames,
    tree: Radix,
}

impl CachedBlocks {
    /// Creates an empty cache of blocks below `blocks`, with as many frames as the buffer holds.
    pub(super) fn new(
        buffer: Buffer,
        block_bytes: u32,
        frames: u32,
        eviction: EvictionPolicy,
        blocks: u64,
    ) -> CachedBlocks {
        CachedBlocks {
            buffer,
            block_bytes: block_bytes as usize,
            frames: CacheFrames::new(frames, eviction),
            tree: Radix::new(blocks),
        }
    }

    /// Returns the frame of a block.
    #[inline]
    pub(super) fn find(&self, block: u64) -> Option<u32> {
        self.tree.get(block)
    }

    /// Returns the frame of a block, and remembers its leaf for accesses to neighboring blocks.
    #[inline]
    pub(super) fn find_with_hint(&mut self, block: u64) -> Option<u32> {
        self.tree.get_with_hint(block)
    }

    /// Allocates a frame for an uncached block.
    pub(super) fn allocate(&mut self, block: u64) -> Option<AllocatedFrame> {
        let allocated = self.frames.allocate()?;
        if let Some(evicted) = allocated.evicted_block {
            self.tree.remove(evicted);
        }
        self.frames.get_mut(allocated.frame).block = block;
        self.tree.insert(block, allocated.frame);
        Some(allocated)
    }

    /// Removes a clean block, and frees its frame.
    pub(super) fn remove(&mut self, at: BlockFrame) {
        self.tree.remove(at.block);
        self.frames.set_state(at.frame, FrameState::Free);
    }

    /// Makes [`next_dirty`](CachedBlocks::next_dirty) find a block.
    pub(super) fn set_dirty(&mut self, block: u64) {
        self.tree.set_dirty(block);
    }

    pub(super) fn set_clean(&mut self, block: u64) {
        self.tree.set_clean(block);
    }

    /// Returns the first dirty block at or after `from`, without those whose write failed.
    pub(super) fn next_dirty(&self, from: u64) -> Option<BlockFrame> {
        self.tree.next_dirty(from)
    }

    /// Returns the memory of a frame from a byte on.
    #[inline]
    pub(super) fn bytes(&self, frame: u32, offset: usize) -> FrameBytes<'_> {
        let (region, base) = self.buffer.region();
        FrameBytes { region, offset: base + frame as usize * self.block_bytes + offset }
    }

    /// Returns the device address of a frame.
    #[inline]
    pub(super) fn iova(&self, frame: u32) -> Iova {
        self.buffer.iova().offset(u64::from(frame) * self.block_bytes as u64)
    }

    /// Zeroes bytes of a frame.
    pub(super) fn zero(&mut self, frame: u32, offset: usize, bytes: usize) {
        self.buffer.fill(frame as usize * self.block_bytes + offset, bytes, 0);
    }

    pub(super) fn check_invariants(&self) -> Result<(), CacheViolation> {
        self.frames.check_invariants()?;
        let mut used = 0;
        for frame in 0..self.frames.count() {
            let f = self.frames.get(frame);
            if f.state == FrameState::Free {
                continue;
            }
            used += 1;
            let subject = format_args!("block {}", f.block);
            require_eq!(Blocks, "the frame of a block", subject, Some(frame), self.find(f.block));
            let is_dirty = f.state == FrameState::Dirty && !f.failed;
            let found = self.next_dirty(f.block).is_some_and(|next| next.block == f.block);
            require_eq!(Blocks, "dirty blocks are found by writeback", subject, is_dirty, found);
        }
        require_eq!(Blocks, "a used frame has a block", "all frames", used, self.tree.len());
        Ok(())
    }
}
