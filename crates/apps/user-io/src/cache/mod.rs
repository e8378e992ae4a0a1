//! [`Cache`]: a block cache in front of a device ([NVMeDirect16 §3.1]).
//!
//! # Requests
//!
//! Sectors are cached in blocks of 4 KB, or of one sector if that is larger. A read copies cached
//! blocks and waits for the others. A write changes the frame; if it covers a block partially, the
//! block is filled first. A write completes at once ([`WritePolicy::WriteBack`]), or when the
//! device has completed it ([`WritePolicy::WriteThrough`], force unit access). A block that is
//! being written to the device is not changed until that write completes.
//!
//! A flush waits for everything that was dirty when it arrived, then flushes the device. Discards,
//! write zeroes and extent queries wait for all earlier requests, and all later requests wait for
//! them.
//!
//! # Errors
//!
//! - A block that cannot be read fails the requests that need it, and no others.
//! - A block that cannot be written stays in the cache, where reads find it. The next flush reports
//!   the error, and the flush after that retries the write.
//! - If only such blocks are left to evict, writes fail with the device's status.
//!
//! Data that was not flushed is lost when the cache is dropped.

mod blocks;
mod config;
mod copy;
mod dirty_blocks;
mod frame_waiters;
mod frames;
mod geometry;
mod invariants;
mod ops;
mod pipeline;
mod radix;
mod readahead;
mod requests;

use std::collections::VecDeque;

use block::{
    BlockDevice, Completion, Limits, Op, QueueFull, Request, WaitResult, validate_request,
};
use mem::AddressSpace;
use nvme::Status;
use time::{Component, Nanos};

use blocks::CachedBlocks;
pub use config::{CacheConfig, CacheStats, EvictionPolicy, WritePolicy};
use copy::CopyDirection;
use dirty_blocks::{SingleRetry, Writeback};
use frame_waiters::{FrameWaiters, RequestBlock};
use frames::{BlockFrame, FrameState};
use geometry::BlockGeometry;
pub use invariants::{CachePart, CacheViolation};
use ops::{DeviceOps, FrameSegment, OP_FRAMES_MAX, OpPurpose, request_without_data};
use pipeline::bypass::BypassQueue;
use readahead::Readahead;
use requests::{CacheRequest, CacheRequestId, CacheRequests};

use crate::DirectError;

/// Maximum number of commands in flight on the device.
const DEVICE_OPS_MAX: u32 = 64;

/// Outcome of the access to one block of a request.
enum BlockAccess {
    Done,
    Waiting,
    /// No frame is available.
    NoFrame,
}

/// A block cache in front of a device.
#[derive(Debug)]
pub struct Cache<D> {
    device: D,
    config: CacheConfig,
    memory: AddressSpace,
    geometry: BlockGeometry,
    blocks: CachedBlocks,
    requests: CacheRequests,
    waiters: FrameWaiters,
    ops: DeviceOps,
    writeback: Writeback,
    bypass: BypassQueue,
    readahead: Readahead,
    ready: VecDeque<Completion>,
    stats: CacheStats,
}

impl<D: BlockDevice> Cache<D> {
    /// Creates a cache in front of `device`, whose queues belong to `opened`.
    ///
    /// # Errors
    /// [`DirectError::Config`] for an invalid configuration; [`DirectError::Memory`] without
    /// memory.
    pub fn new(
        opened: &crate::IoDevice,
        device: D,
        config: CacheConfig,
    ) -> Result<Cache<D>, DirectError> {
        let segments = usize::from(opened.features().segments);
        let geometry = BlockGeometry::new(device.limits(), &config, segments)?;
        let (count, block_bytes) = (geometry.frames(), geometry.block_bytes());
        let buffer = opened.buffer(count as usize * block_bytes as usize)?;
        let tables = opened.buffer(DeviceOps::table_bytes(DEVICE_OPS_MAX))?;
        let blocks = geometry.blocks();
        Ok(Cache {
            memory: device.memory().clone(),
            device,
            config,
            geometry,
            blocks: CachedBlocks::new(buffer, block_bytes, count, config.eviction, blocks),
            requests: CacheRequests::default(),
            waiters: FrameWaiters::default(),
            ops: DeviceOps::new(DEVICE_OPS_MAX, tables),
            writeback: Writeback::new(count, config.write_policy),
            bypass: BypassQueue::default(),
            readahead: Readahead::default(),
            ready: VecDeque::new(),
            stats: CacheStats::default(),
        })
    }

    /// Returns the counters.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }

    /// Returns the number of blocks that are newer than the device's.
    pub fn dirty(&self) -> u32 {
        self.writeback.dirty()
    }

    /// Returns the device below the cache.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device below the cache, mutably.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Returns the device. Data that was not flushed is lost.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Completes one part of a request.
    fn complete_part(&mut self, id: CacheRequestId, status: Status) {
        if let Some(completion) = self.requests.complete_part(id, status) {
            self.ready.push_back(completion);
        }
    }

    fn start(&mut self, id: CacheRequestId) {
        match self.requests.get(id).request.op {
            Op::Read | Op::Write => {
                if self.waiters.has_stalled_requests() || !self.advance(id) {
                    self.stats.stalls += 1;
                    self.waiters.push_stalled(id);
                }
            }
            Op::Flush => self.flush(id),
            Op::Discard | Op::WriteZeroes | Op::Extents => self.bypass.begin(id),
        }
    }

    /// Starts the remaining blocks of a request. Returns `false` if a block found no frame.
    fn advance(&mut self, id: CacheRequestId) -> bool {
        loop {
            let CacheRequest { next_block, end_block, request, .. } = *self.requests.get(id);
            if next_block == end_block {
                if request.op == Op::Read {
                    self.read_ahead(self.geometry.block_of(request.lba), end_block);
                }
                self.complete_part(id, Status::SUCCESS);
                return true;
            }
            let is_waiting =
                match self.access_block(RequestBlock { request: id, block: next_block }) {
                    BlockAccess::Done => false,
                    BlockAccess::Waiting => true,
                    BlockAccess::NoFrame => return false,
                };
            self.requests.start_block(id, is_waiting);
        }
    }

    /// Executes one block of a request, or queues the request on the block's frame.
    fn access_block(&mut self, at: RequestBlock) -> BlockAccess {
        let block = at.block;
        let request = self.requests.get(at.request).request;
        let frame = self.blocks.find(block);
        let state = frame.map(|f| self.blocks.frames.get(f).state);
        match (request.op, frame, state) {
            (
                Op::Read,
                Some(frame),
                Some(FrameState::Clean | FrameState::Dirty | FrameState::Writing),
            ) => {
                self.stats.hits += 1;
                self.blocks.frames.touch(frame);
                self.copy(at, &request, frame, CopyDirection::CacheToRequest);
                BlockAccess::Done
            }
            (Op::Write, Some(frame), Some(FrameState::Clean | FrameState::Dirty)) => {
                if state == Some(FrameState::Clean) && self.writeback.is_full() {
                    return BlockAccess::NoFrame;
                }
                self.stats.hits += 1;
                self.blocks.frames.touch(frame);
                self.write(at, &request, frame)
            }
            (_, Some(frame), _) => {
                self.stats.misses += u64::from(state == Some(FrameState::Filling));
                self.wait_for_frame(frame, at, false);
                BlockAccess::Waiting
            }
            (op, None, _) => {
                if op == Op::Write && self.writeback.is_full() {
                    return BlockAccess::NoFrame;
                }
                let Some(frame) = self.allocate_frame(block) else { return BlockAccess::NoFrame };
                self.stats.misses += 1;
                let bytes = self.geometry.overlap(&request, block).bytes;
                let whole = bytes as u32 == self.geometry.bytes_in_block(block);
                if op == Op::Write && whole {
                    self.blocks.frames.set_state(frame, FrameState::Clean);
                    return self.write(at, &request, frame);
                }
                self.blocks.frames.set_state(frame, FrameState::Filling);
                self.ops.push_fill(BlockFrame { block, frame });
                self.wait_for_frame(frame, at, false);
                BlockAccess::Waiting
            }
        }
    }

    /// Allocates a frame for an uncached block.
    fn allocate_frame(&mut self, block: u64) -> Option<u32> {
        let allocated = self.blocks.allocate(block)?;
        self.stats.evictions += u64::from(allocated.evicted_block.is_some());
        Some(allocated.frame)
    }

    fn copy(&mut self, at: RequestBlock, request: &Request, frame: u32, way: CopyDirection) {
        let overlap = self.geometry.overlap(request, at.block);
        let there = self.blocks.bytes(frame, overlap.block_offset);
        let data = overlap.data(request);
        if let Err(status) = copy::copy(&self.memory, way, there, data, overlap.bytes) {
            self.requests.fail(at.request, status);
        }
    }

    fn write(&mut self, at: RequestBlock, request: &Request, frame: u32) -> BlockAccess {
        self.copy(at, request, frame, CopyDirection::RequestToCache);
        self.mark_dirty(frame, request.fua);
        if request.fua || self.config.write_policy == WritePolicy::WriteThrough {
            self.wait_for_frame(frame, at, true);
            return BlockAccess::Waiting;
        }
        BlockAccess::Done
    }

    /// Builds a command for contiguous blocks; a slot must be available.
    fn issue(&mut self, what: OpPurpose, op: Op, run: &[BlockFrame], fua: bool) {
        let (geometry, blocks) = (&self.geometry, &self.blocks);
        let first = run[0].block;
        let sectors = run.iter().map(|at| geometry.sectors_in_block(at.block)).sum();
        let request = request_without_data(op, geometry.first_lba(first), sectors, fua);
        let segments = run.iter().map(|at| FrameSegment {
            frame: at.frame,
            iova: blocks.iova(at.frame),
            bytes: geometry.bytes_in_block(at.block),
        });
        self.ops.push_blocks(what, first, request, segments);
    }

    /// Submits queued commands until the device is full.
    fn send(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(request) = self.ops.next_to_send() {
            if self.device.submit(now, request).is_err() {
                break;
            }
            self.ops.pop_to_send();
            moved = true;
        }
        moved
    }

    /// Handles the completion of a command.
    fn on_op_complete(&mut self, completion: Completion) {
        let op = self.ops.release(completion.tag);
        if op.purpose == OpPurpose::Write {
            self.writeback.end_write_command();
        }
        if !completion.status.is_success() && op.count > 1 {
            // One bad block may have failed the whole command: retry the blocks one by one.
            for block in op.blocks() {
                self.writeback.push_single_retry(SingleRetry { purpose: op.purpose, block });
            }
            return;
        }
        match op.purpose {
            OpPurpose::Fill => {
                for at in op.blocks() {
                    self.on_fill_complete(at, completion.status);
                }
            }
            OpPurpose::Write => {
                for at in op.blocks() {
                    self.on_block_written(at, completion.status);
                }
            }
            OpPurpose::Bypass { request } => self.on_bypass_complete(request, completion),
        }
    }

    /// Processes completions of the device and issues new commands. Returns whether it made
    /// progress.
    fn step(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(completion) = self.device.reap() {
            self.on_op_complete(completion);
            moved = true;
        }
        moved |= self.resume_waiters();
        moved |= self.send_bypass();
        moved |= self.fill() | self.write_back();
        moved | self.send(now)
    }
}

impl<D: BlockDevice> BlockDevice for Cache<D> {
    block::delegate_block_device!(self => self.device; set_waker, can_wake, enable_sharing, can_wait,
        visit_layers);

    fn limits(&self) -> &Limits {
        self.geometry.limits()
    }

    #[inline]
    fn submit(&mut self, _: Nanos, request: Request) -> Result<(), QueueFull> {
        if self.requests.len() + self.ready.len() >= self.config.depth as usize {
            return Err(QueueFull);
        }
        if let Some(status) = validate_request(self.limits(), self.limits().max_sectors, &request) {
            self.ready.push_back(Completion { tag: request.tag, status, result: 0 });
            return Ok(());
        }
        if let Some(completion) = self.try_fast_read(&request) {
            self.ready.push_back(completion);
            return Ok(());
        }
        let first = self.geometry.block_of(request.lba);
        let id = self.requests.insert(request, first, self.geometry.end_block(&request));
        if self.bypass.is_active() {
            self.bypass.push_behind(id);
        } else {
            self.start(id);
        }
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        self.ready.pop_front()
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        if !self.device.can_wait() {
            return WaitResult::Unsupported;
        }
        // Sleep only when all work that does not need the device is done.
        while self.ready.is_empty() {
            if !self.step(now) {
                return self.device.wait_for_event(now, until);
            }
        }
        WaitResult::Unsupported
    }
}

impl<D: BlockDevice> Component for Cache<D> {
    fn poll(&mut self, now: Nanos) -> bool {
        let moved = self.step(now) | self.device.poll(now);
        moved || !self.ready.is_empty()
    }

    fn deadline(&self) -> Nanos {
        self.device.deadline()
    }
}
