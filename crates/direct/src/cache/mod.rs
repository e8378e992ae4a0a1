//! [`Cache`]: a block cache in front of a device (NVMeDirect section 3.1).
//!
//! | file | noun |
//! |---|---|
//! | `mod` | the cache, and the way of a request through it |
//! | `config` | what it is told, and what it has done |
//! | `radix` | from a unit to its frame; dirty units in order |
//! | `frames` | the memory, and which of it is used again |
//! | `hit` | reads that are over at once |
//! | `fill` | units on their way from the device; read-ahead |
//! | `waiting` | requests that wait for a frame |
//! | `back` | dirty units on their way to the device; flushes |
//! | `past` | requests that go past the frames |
//! | `ops` | commands to the device |
//! | `data` | bytes between frames and requests |
//!
//! # A request
//!
//! Sectors are kept in units of 4 KB (or a sector, if that is larger). A read copies what is there and
//! waits for what is not; a write changes the frame, once what was in it is there if it covers only part
//! of it, and completes: at once ([`WriteMode::Back`]) or when the device has it
//! ([`WriteMode::Through`], force unit access). A unit on its way to the device is not changed until it
//! is there.
//!
//! A flush waits for everything that was dirty when it came, then flushes the device. Discards, zeroes
//! and queries for extents wait for everything before them, and everything after them waits.
//!
//! # What goes wrong
//!
//! A unit that cannot be read fails the requests that want it, and no others. One that cannot be
//! written stays in the cache: it is read from there, the next flush says so, and the one after that
//! tries again. When nothing but such units is left to make room, writes fail with the device's status.
//! What was not flushed is lost with the cache.

mod back;
mod config;
mod data;
mod fill;
mod frames;
mod hit;
mod ops;
mod past;
mod radix;
mod waiting;

use std::collections::VecDeque;

use block::{Busy, Completion, Device, Limits, Op, Request, Rest, refusal};
use clock::{Component, Nanos, Waker};
use nvme::Status;
use ring::AddressSpace;

use back::Back;
pub use config::{CacheConfig, CacheStats, Replace, WriteMode};
use data::Way;
use fill::Ahead;
use frames::{Frames, State};
use ops::{For, Ops, RUN, bare};
use radix::Radix;
use waiting::Waiting;

use crate::{Buffer, DirectError};

/// Commands to the device at a time.
const OPS: u32 = 64;

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Io {
    request: Request,
    /// The next unit that has not begun, and the one behind its last.
    next: u64,
    end: u64,
    /// Units that have not ended; and 1 while some have not begun.
    left: u32,
    status: Status,
    result: u64,
}

/// What became of one unit of a request.
enum Touched {
    Done,
    Waits,
    /// There is no frame.
    Stall,
}

/// A cache in front of a device.
#[derive(Debug)]
pub struct Cache<D> {
    device: D,
    config: CacheConfig,
    limits: Limits,
    memory: AddressSpace,
    unit_bytes: u32,
    /// A power of two, and of which.
    unit_sectors: u32,
    unit_shift: u32,
    /// Units of one command.
    run: usize,
    buffer: Buffer,
    frames: Frames,
    tree: Radix,
    ios: Vec<Io>,
    free_ios: Vec<u32>,
    waiting: Vec<Waiting>,
    free_waiting: Vec<u32>,
    ops: Ops,
    /// Frames that are to be filled, with their units, in the order in which they were asked for.
    to_fill: VecDeque<(u64, u32)>,
    /// Commands that the device has not taken.
    to_send: VecDeque<u32>,
    /// Requests that wait for a frame.
    stalled: VecDeque<u32>,
    back: Back,
    /// The request that goes past the frames, and whether the device has it.
    past: Option<(u32, bool)>,
    /// Requests behind it.
    queued: VecDeque<u32>,
    ahead: Ahead,
    ready: VecDeque<Completion>,
    stats: CacheStats,
}

impl<D: Device> Cache<D> {
    /// Puts a cache in front of `device`, which is made of queues of `opened`.
    ///
    /// # Errors
    /// [`DirectError::Config`], and no memory.
    pub fn new(
        opened: &crate::Device,
        device: D,
        config: CacheConfig,
    ) -> Result<Cache<D>, DirectError> {
        let limits = *device.limits();
        let unit_bytes = limits.sector_bytes.max(CacheConfig::UNIT_BYTES);
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
        let run = segments.min(RUN).min((limits.max_sectors / unit_sectors) as usize);
        let units = limits.sectors.div_ceil(unit_sectors.into());
        let buffer = opened.buffer(count as usize * unit_bytes as usize)?;
        let tables = opened.buffer(Ops::table_bytes(OPS))?;
        Ok(Cache {
            memory: device.memory().clone(),
            limits: Limits { queue_depth: config.depth, volatile_cache: true, ..limits },
            device,
            config,
            unit_bytes,
            unit_sectors,
            unit_shift: unit_sectors.trailing_zeros(),
            run,
            buffer,
            frames: Frames::new(count, config.replace),
            tree: Radix::new(units),
            ios: Vec::new(),
            free_ios: Vec::new(),
            waiting: Vec::new(),
            free_waiting: Vec::new(),
            ops: Ops::new(OPS, tables),
            to_fill: VecDeque::new(),
            to_send: VecDeque::new(),
            stalled: VecDeque::new(),
            back: Back::new(count, config.write),
            past: None,
            queued: VecDeque::new(),
            ahead: Ahead::default(),
            ready: VecDeque::new(),
            stats: CacheStats::default(),
        })
    }

    /// Counters.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }

    /// Units that the device does not have.
    pub fn dirty(&self) -> u32 {
        self.back.dirty()
    }

    /// What it is in front of.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The same, to change it.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Gives the device back. What was not flushed is lost.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Sectors of a unit: the last one may be shorter.
    fn sectors_of(&self, unit: u64) -> u32 {
        let first = unit * u64::from(self.unit_sectors);
        u64::from(self.unit_sectors).min(self.limits.sectors - first) as u32
    }

    fn frame_offset(&self, frame: u32) -> usize {
        frame as usize * self.unit_bytes as usize
    }

    fn new_io(&mut self, request: Request) -> u32 {
        let sectors = u64::from(self.unit_sectors);
        let next = request.lba / sectors;
        let end = (request.lba + u64::from(request.sectors)).div_ceil(sectors);
        let io = Io { request, next, end, left: 1, status: Status::SUCCESS, result: 0 };
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

    /// Requests that have not ended.
    fn under_way(&self) -> usize {
        self.ios.len() - self.free_ios.len()
    }

    /// One thing less that a request waits for.
    fn less(&mut self, id: u32, status: Status) {
        let io = &mut self.ios[id as usize];
        if io.status.is_success() {
            io.status = status;
        }
        io.left -= 1;
        if io.left == 0 {
            let Io { request, status, result, .. } = *io;
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
            Op::Discard | Op::WriteZeroes | Op::Extents => self.past = Some((id, false)),
        }
    }

    /// Begins the rest of a request's units; `false` if there was no frame for one.
    fn advance(&mut self, id: u32) -> bool {
        loop {
            let Io { next, end, request, .. } = self.ios[id as usize];
            if next == end {
                if request.op == Op::Read {
                    self.read_ahead(request.lba / u64::from(self.unit_sectors), end);
                }
                self.less(id, Status::SUCCESS);
                return true;
            }
            match self.touch(id, next) {
                Touched::Done => {}
                Touched::Waits => self.ios[id as usize].left += 1,
                Touched::Stall => return false,
            }
            self.ios[id as usize].next += 1;
        }
    }

    /// Where a request and a unit meet: offset and bytes in the unit, offset in the data.
    fn overlap(&self, request: &Request, unit: u64) -> (usize, usize, u64) {
        let bytes = u64::from(self.limits.sector_bytes);
        let (begin, end) =
            (request.lba * bytes, (request.lba + u64::from(request.sectors)) * bytes);
        let unit_begin = unit * u64::from(self.unit_bytes);
        let (from, to) = (begin.max(unit_begin), end.min(unit_begin + u64::from(self.unit_bytes)));
        ((from - unit_begin) as usize, (to - from) as usize, from - begin)
    }

    /// Carries out one unit of a request, or has the request wait for it.
    fn touch(&mut self, id: u32, unit: u64) -> Touched {
        let request = self.ios[id as usize].request;
        let frame = self.tree.get(unit);
        let state = frame.map(|f| self.frames.get(f).state);
        match (request.op, frame, state) {
            (Op::Read, Some(frame), Some(State::Clean | State::Dirty | State::Writing)) => {
                self.stats.hits += 1;
                self.frames.touch(frame);
                self.copy(id, &request, unit, frame, Way::Out);
                Touched::Done
            }
            (Op::Write, Some(frame), Some(State::Clean | State::Dirty)) => {
                if state == Some(State::Clean) && self.back.is_full() {
                    return Touched::Stall;
                }
                self.stats.hits += 1;
                self.frames.touch(frame);
                self.write(id, &request, unit, frame)
            }
            (_, Some(frame), _) => {
                self.stats.misses += u64::from(state == Some(State::Filling));
                self.wait(frame, id, unit, false);
                Touched::Waits
            }
            (op, None, _) => {
                if op == Op::Write && self.back.is_full() {
                    return Touched::Stall;
                }
                let Some(frame) = self.take_frame(unit) else { return Touched::Stall };
                self.stats.misses += 1;
                let (_, bytes, _) = self.overlap(&request, unit);
                let whole = bytes as u32 == self.sectors_of(unit) * self.limits.sector_bytes;
                if op == Op::Write && whole {
                    self.frames.set(frame, State::Clean);
                    return self.write(id, &request, unit, frame);
                }
                self.frames.set(frame, State::Filling);
                self.to_fill.push_back((unit, frame));
                self.wait(frame, id, unit, false);
                Touched::Waits
            }
        }
    }

    /// A frame for a unit that has none.
    fn take_frame(&mut self, unit: u64) -> Option<u32> {
        let (frame, given_up) = self.frames.take()?;
        if let Some(old) = given_up {
            self.tree.remove(old);
            self.stats.evictions += 1;
        }
        self.frames.get_mut(frame).unit = unit;
        self.tree.insert(unit, frame);
        Some(frame)
    }

    fn copy(&mut self, id: u32, request: &Request, unit: u64, frame: u32, way: Way) {
        let (at, bytes, offset) = self.overlap(request, unit);
        let there = self.frame_offset(frame) + at;
        let (region, base) = self.buffer.region();
        let data = (request.data, offset);
        if let Err(status) = data::copy(&self.memory, way, (region, base + there), data, bytes) {
            let io = &mut self.ios[id as usize];
            if io.status.is_success() {
                io.status = status;
            }
        }
    }

    fn write(&mut self, id: u32, request: &Request, unit: u64, frame: u32) -> Touched {
        self.copy(id, request, unit, frame, Way::In);
        self.make_dirty(frame, request.fua);
        if request.fua || self.config.write == WriteMode::Through {
            self.wait(frame, id, unit, true);
            return Touched::Waits;
        }
        Touched::Done
    }

    /// A command for neighbouring units; there is room for it.
    fn issue(&mut self, what: For, op: Op, run: &[(u64, u32)], fua: bool) {
        let first = run[0].0;
        let sectors = run.iter().map(|(unit, _)| self.sectors_of(*unit)).sum();
        let request = bare(op, first * u64::from(self.unit_sectors), sectors, fua);
        let (base, unit_bytes) = (self.buffer.at(), u64::from(self.unit_bytes));
        let (limits, unit_sectors) = (self.limits, u64::from(self.unit_sectors));
        let pieces = run.iter().map(|&(unit, frame)| {
            let sectors = unit_sectors.min(limits.sectors - unit * unit_sectors) as u32;
            (frame, base.offset(u64::from(frame) * unit_bytes), sectors * limits.sector_bytes)
        });
        if let Some(op) = self.ops.run(what, first, request, pieces) {
            self.to_send.push_back(op);
        }
    }

    /// Gives the device what it takes.
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

    /// A command has ended.
    fn ended(&mut self, completion: Completion) {
        // The device returns what it was given.
        let op = self.ops.release(completion.tag as u32);
        let run = op.frames[..usize::from(op.count)].iter().enumerate();
        let run = run.map(|(i, frame)| (op.unit + i as u64, *frame));
        if !completion.status.is_success() && op.count > 1 {
            // One of them may be all that is wrong.
            if op.what == For::Write {
                self.write_ended();
            }
            for unit in run {
                self.back.alone((op.what, unit));
            }
            return;
        }
        match op.what {
            For::Fill => {
                for (unit, frame) in run {
                    self.filled(unit, frame, completion.status);
                }
            }
            For::Write => {
                self.write_ended();
                for (unit, frame) in run {
                    self.written(unit, frame, completion.status);
                }
            }
            For::Pass { io } => self.passed(io, completion),
        }
    }

    /// Takes what the device has ended, and gives it what is to be done. Returns whether anything moved.
    fn turn(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(completion) = self.device.reap() {
            self.ended(completion);
            moved = true;
        }
        moved |= self.resume();
        moved |= self.go_past();
        moved |= self.fill() | self.write_back();
        moved | self.send(now)
    }
}

impl<D: Device> Device for Cache<D> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, _: Nanos, request: Request) -> Result<(), Busy> {
        if self.under_way() + self.ready.len() >= self.config.depth as usize {
            return Err(Busy);
        }
        if let Some(status) = refusal(&self.limits, self.limits.max_sectors, &request) {
            self.ready.push_back(Completion { tag: request.tag, status, result: 0 });
            return Ok(());
        }
        if let Some(completion) = self.hit(&request) {
            self.ready.push_back(completion);
            return Ok(());
        }
        let id = self.new_io(request);
        if self.past.is_some() {
            self.queued.push_back(id);
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

    fn set_waker(&mut self, waker: Waker) {
        self.device.set_waker(waker);
    }

    fn share(&mut self) {
        self.device.share();
    }

    fn wakes(&self) -> bool {
        self.device.wakes()
    }

    fn rests(&self) -> bool {
        self.device.rests()
    }

    fn rest(&mut self, now: Nanos, until: Nanos) -> Rest {
        if !self.device.rests() {
            return Rest::Unable;
        }
        // A sleep is for when all that can be done without the device is done.
        while self.ready.is_empty() {
            if !self.turn(now) {
                return self.device.rest(now, until);
            }
        }
        Rest::Unable
    }
}

impl<D: Device> Component for Cache<D> {
    fn poll(&mut self, now: Nanos) -> bool {
        let moved = self.turn(now) | self.device.poll(now);
        moved || !self.ready.is_empty()
    }

    fn deadline(&self) -> Nanos {
        self.device.deadline()
    }
}
