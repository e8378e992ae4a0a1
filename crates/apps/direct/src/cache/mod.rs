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

mod config;
mod copy;
mod frames;
mod ops;
mod pipeline;
mod radix;

use std::collections::VecDeque;

use block::{
    BlockDevice, Completion, Limits, Op, QueueFull, Request, WaitResult, validate_request,
};
use clock::{Component, Nanos};
use nvme::Status;
use ring::AddressSpace;

pub use config::{CacheConfig, CacheStats, EvictionPolicy, WritePolicy};
use copy::CopyDirection;
use frames::{FrameState, Frames};
use ops::{DeviceOps, OP_FRAMES_MAX, OpPurpose, request_without_data};
use pipeline::fill::Readahead;
use pipeline::waiters::FrameWaiter;
use pipeline::writeback::Writeback;
use radix::Radix;

use crate::{Buffer, DirectError};

/// Maximum number of commands in flight on the device.
const DEVICE_OPS_MAX: u32 = 64;

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct CacheRequest {
    request: Request,
    /// The next block to start, and the end of the range.
    next_block: u64,
    end_block: u64,
    /// Blocks that have not completed, plus 1 while some have not started.
    remaining: u32,
    status: Status,
    result: u64,
}

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
    limits: Limits,
    memory: AddressSpace,
    block_bytes: u32,
    /// Sectors per block, a power of two, and its logarithm.
    block_sectors: u32,
    block_shift: u32,
    /// Maximum number of blocks in one command.
    op_blocks_max: usize,
    buffer: Buffer,
    frames: Frames,
    tree: Radix,
    ios: Vec<CacheRequest>,
    free_ios: Vec<u32>,
    waiters: Vec<FrameWaiter>,
    free_waiters: Vec<u32>,
    ops: DeviceOps,
    /// Frames to be filled and their blocks, in the order of the requests.
    to_fill: VecDeque<(u64, u32)>,
    /// Commands that the device has not accepted yet.
    to_send: VecDeque<u32>,
    /// Requests that wait for a frame.
    stalled: VecDeque<u32>,
    writeback: Writeback,
    /// The bypass request, and whether it was sent to the device.
    bypass: Option<(u32, bool)>,
    /// Requests queued behind the bypass request.
    behind_bypass: VecDeque<u32>,
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
        let limits = *device.limits();
        let unit_bytes = limits.sector_bytes.max(CacheConfig::BLOCK_BYTES);
        let unit_sectors = unit_bytes / limits.sector_bytes;
        if !unit_sectors.is_power_of_two() {
            let (key, value) = ("sector_bytes", limits.sector_bytes.into());
            let allowed = "sectors of which a power of two are a unit of the cache";
            return Err(DirectError::Config { key, value, allowed });
        }
        let count = config.frames(unit_bytes)?;
        if limits.max_sectors < unit_sectors {
            let (key, value) = ("max_sectors", limits.max_sectors.into());
            let allowed = "a unit of the cache in one transfer at least";
            return Err(DirectError::Config { key, value, allowed });
        }
        let segments = usize::from(opened.features().segments).max(1);
        let run = segments.min(OP_FRAMES_MAX).min((limits.max_sectors / unit_sectors) as usize);
        let units = limits.sectors.div_ceil(unit_sectors.into());
        let buffer = opened.buffer(count as usize * unit_bytes as usize)?;
        let tables = opened.buffer(DeviceOps::table_bytes(DEVICE_OPS_MAX))?;
        Ok(Cache {
            memory: device.memory().clone(),
            limits: Limits { queue_depth: config.depth, volatile_cache: true, ..limits },
            device,
            config,
            block_bytes: unit_bytes,
            block_sectors: unit_sectors,
            block_shift: unit_sectors.trailing_zeros(),
            op_blocks_max: run,
            buffer,
            frames: Frames::new(count, config.eviction),
            tree: Radix::new(units),
            ios: Vec::new(),
            free_ios: Vec::new(),
            waiters: Vec::new(),
            free_waiters: Vec::new(),
            ops: DeviceOps::new(DEVICE_OPS_MAX, tables),
            to_fill: VecDeque::new(),
            to_send: VecDeque::new(),
            stalled: VecDeque::new(),
            writeback: Writeback::new(count, config.write_policy),
            bypass: None,
            behind_bypass: VecDeque::new(),
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

    /// Returns the number of sectors of a block; the last block of the device may be shorter.
    fn sectors_in_block(&self, unit: u64) -> u32 {
        let first = unit * u64::from(self.block_sectors);
        u64::from(self.block_sectors).min(self.limits.sectors - first) as u32
    }

    fn frame_offset(&self, frame: u32) -> usize {
        frame as usize * self.block_bytes as usize
    }

    fn new_io(&mut self, request: Request) -> u32 {
        let sectors = u64::from(self.block_sectors);
        let next = request.lba / sectors;
        let end = (request.lba + u64::from(request.sectors)).div_ceil(sectors);
        let io = CacheRequest {
            request,
            next_block: next,
            end_block: end,
            remaining: 1,
            status: Status::SUCCESS,
            result: 0,
        };
        match self.free_ios.pop() {
            Some(slot) => {
                self.ios[slot as usize] = io;
                slot
            }
            None => {
                self.ios.push(io);
                (self.ios.len() - 1) as u32
            }
        }
    }

    /// Returns the number of requests in flight.
    fn in_flight(&self) -> usize {
        self.ios.len() - self.free_ios.len()
    }

    /// Completes one part of a request; the first error becomes the request's status.
    fn complete_part(&mut self, id: u32, status: Status) {
        let io = &mut self.ios[id as usize];
        if io.status.is_success() {
            io.status = status;
        }
        io.remaining -= 1;
        if io.remaining == 0 {
            let CacheRequest { request, status, result, .. } = *io;
            self.ready.push_back(Completion { tag: request.tag, status, result });
            self.free_ios.push(id);
        }
    }

    fn start(&mut self, id: u32) {
        match self.ios[id as usize].request.op {
            Op::Read | Op::Write => {
                if !self.stalled.is_empty() || !self.advance(id) {
                    self.stats.stalls += 1;
                    self.stalled.push_back(id);
                }
            }
            Op::Flush => self.flush(id),
            Op::Discard | Op::WriteZeroes | Op::Extents => self.bypass = Some((id, false)),
        }
    }

    /// Starts the remaining blocks of a request. Returns `false` if a block found no frame.
    fn advance(&mut self, id: u32) -> bool {
        loop {
            let CacheRequest { next_block: next, end_block: end, request, .. } =
                self.ios[id as usize];
            if next == end {
                if request.op == Op::Read {
                    self.read_ahead(request.lba / u64::from(self.block_sectors), end);
                }
                self.complete_part(id, Status::SUCCESS);
                return true;
            }
            match self.access_block(id, next) {
                BlockAccess::Done => {}
                BlockAccess::Waiting => self.ios[id as usize].remaining += 1,
                BlockAccess::NoFrame => return false,
            }
            self.ios[id as usize].next_block += 1;
        }
    }

    /// Returns the overlap of a request and a block: offset and length in the block, and offset in
    /// the data.
    fn overlap(&self, request: &Request, unit: u64) -> (usize, usize, u64) {
        let bytes = u64::from(self.limits.sector_bytes);
        let (begin, end) =
            (request.lba * bytes, (request.lba + u64::from(request.sectors)) * bytes);
        let unit_begin = unit * u64::from(self.block_bytes);
        let (from, to) = (begin.max(unit_begin), end.min(unit_begin + u64::from(self.block_bytes)));
        ((from - unit_begin) as usize, (to - from) as usize, from - begin)
    }

    /// Executes one block of a request, or queues the request on the block's frame.
    fn access_block(&mut self, id: u32, unit: u64) -> BlockAccess {
        let request = self.ios[id as usize].request;
        let frame = self.tree.get(unit);
        let state = frame.map(|f| self.frames.get(f).state);
        match (request.op, frame, state) {
            (
                Op::Read,
                Some(frame),
                Some(FrameState::Clean | FrameState::Dirty | FrameState::Writing),
            ) => {
                self.stats.hits += 1;
                self.frames.touch(frame);
                self.copy(id, &request, unit, frame, CopyDirection::CacheToRequest);
                BlockAccess::Done
            }
            (Op::Write, Some(frame), Some(FrameState::Clean | FrameState::Dirty)) => {
                if state == Some(FrameState::Clean) && self.writeback.is_full() {
                    return BlockAccess::NoFrame;
                }
                self.stats.hits += 1;
                self.frames.touch(frame);
                self.write(id, &request, unit, frame)
            }
            (_, Some(frame), _) => {
                self.stats.misses += u64::from(state == Some(FrameState::Filling));
                self.wait_for_frame(frame, id, unit, false);
                BlockAccess::Waiting
            }
            (op, None, _) => {
                if op == Op::Write && self.writeback.is_full() {
                    return BlockAccess::NoFrame;
                }
                let Some(frame) = self.allocate_frame(unit) else { return BlockAccess::NoFrame };
                self.stats.misses += 1;
                let (_, bytes, _) = self.overlap(&request, unit);
                let whole = bytes as u32 == self.sectors_in_block(unit) * self.limits.sector_bytes;
                if op == Op::Write && whole {
                    self.frames.set_state(frame, FrameState::Clean);
                    return self.write(id, &request, unit, frame);
                }
                self.frames.set_state(frame, FrameState::Filling);
                self.to_fill.push_back((unit, frame));
                self.wait_for_frame(frame, id, unit, false);
                BlockAccess::Waiting
            }
        }
    }

    /// Allocates a frame for an uncached block.
    fn allocate_frame(&mut self, unit: u64) -> Option<u32> {
        let (frame, given_up) = self.frames.allocate()?;
        if let Some(old) = given_up {
            self.tree.remove(old);
            self.stats.evictions += 1;
        }
        self.frames.get_mut(frame).block = unit;
        self.tree.insert(unit, frame);
        Some(frame)
    }

    fn copy(&mut self, id: u32, request: &Request, unit: u64, frame: u32, way: CopyDirection) {
        let (at, bytes, offset) = self.overlap(request, unit);
        let there = self.frame_offset(frame) + at;
        let (region, base) = self.buffer.region();
        let data = (request.data, offset);
        if let Err(status) = copy::copy(&self.memory, way, (region, base + there), data, bytes) {
            let io = &mut self.ios[id as usize];
            if io.status.is_success() {
                io.status = status;
            }
        }
    }

    fn write(&mut self, id: u32, request: &Request, unit: u64, frame: u32) -> BlockAccess {
        self.copy(id, request, unit, frame, CopyDirection::RequestToCache);
        self.mark_dirty(frame, request.fua);
        if request.fua || self.config.write_policy == WritePolicy::WriteThrough {
            self.wait_for_frame(frame, id, unit, true);
            return BlockAccess::Waiting;
        }
        BlockAccess::Done
    }

    /// Builds a command for contiguous blocks; a slot must be available.
    fn issue(&mut self, what: OpPurpose, op: Op, run: &[(u64, u32)], fua: bool) {
        let first = run[0].0;
        let sectors = run.iter().map(|(unit, _)| self.sectors_in_block(*unit)).sum();
        let request = request_without_data(op, first * u64::from(self.block_sectors), sectors, fua);
        let (base, unit_bytes) = (self.buffer.iova(), u64::from(self.block_bytes));
        let (limits, unit_sectors) = (self.limits, u64::from(self.block_sectors));
        let pieces = run.iter().map(|&(unit, frame)| {
            let sectors = unit_sectors.min(limits.sectors - unit * unit_sectors) as u32;
            (frame, base.offset(u64::from(frame) * unit_bytes), sectors * limits.sector_bytes)
        });
        if let Some(op) = self.ops.push_blocks(what, first, request, pieces) {
            self.to_send.push_back(op);
        }
    }

    /// Submits queued commands until the device is full.
    fn send(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(op) = self.to_send.front() {
            if self.device.submit(now, self.ops.get(*op).request).is_err() {
                break;
            }
            self.to_send.pop_front();
            moved = true;
        }
        moved
    }

    /// Handles the completion of a command.
    fn on_op_complete(&mut self, completion: Completion) {
        // The device returns the tag that it was given.
        let op = self.ops.release(completion.tag as u32);
        let run = op.frames[..usize::from(op.count)].iter().enumerate();
        let run = run.map(|(i, frame)| (op.first_block + i as u64, *frame));
        if !completion.status.is_success() && op.count > 1 {
            // One bad block may have failed the whole command: retry the blocks one by one.
            if op.purpose == OpPurpose::Write {
                self.on_write_complete();
            }
            for unit in run {
                self.writeback.push_single_retry((op.purpose, unit));
            }
            return;
        }
        match op.purpose {
            OpPurpose::Fill => {
                for (unit, frame) in run {
                    self.on_fill_complete(unit, frame, completion.status);
                }
            }
            OpPurpose::Write => {
                self.on_write_complete();
                for (unit, frame) in run {
                    self.on_block_written(unit, frame, completion.status);
                }
            }
            OpPurpose::Bypass { io } => self.on_bypass_complete(io, completion),
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
    block::delegate_block_device!(self => self.device; set_waker, can_wake, enable_sharing, can_wait);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, _: Nanos, request: Request) -> Result<(), QueueFull> {
        if self.in_flight() + self.ready.len() >= self.config.depth as usize {
            return Err(QueueFull);
        }
        if let Some(status) = validate_request(&self.limits, self.limits.max_sectors, &request) {
            self.ready.push_back(Completion { tag: request.tag, status, result: 0 });
            return Ok(());
        }
        if let Some(completion) = self.try_fast_read(&request) {
            self.ready.push_back(completion);
            return Ok(());
        }
        let id = self.new_io(request);
        if self.bypass.is_some() {
            self.behind_bypass.push_back(id);
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
