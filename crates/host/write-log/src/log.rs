//! [`WriteLog`]: the block device.

use std::any::Any;
use std::collections::VecDeque;

use block::{
    AtomicLimits, BlockDevice, Completion, Features, Limits, Op, Payload, QueueFull, Request,
    validate_request,
};
use collections::Slab;
use nvme::Status;
use time::{Component, Nanos};

use crate::append::{AppendItem, Appender};
use crate::destage::Destager;
use crate::format::{DeviceLabel, LabelState, LogHeader};
use crate::index::{SectorIndex, SectorRange};
use crate::log_opener::{LabelSector, LogContents};
use crate::passed::{PassedChange, PassedChanges};
use crate::ring::LogRing;
use crate::{LogMemory, WriteLogConfig, WriteLogError, WriteLogStats};

/// A block device over a device and a log in persistent memory. [`WriteLogOpening`] opens it.
///
/// Payloads are contiguous; extents cannot be queried. Tags of requests to the device are its own.
///
/// [`WriteLogOpening`]: crate::WriteLogOpening
#[derive(Debug)]
pub struct WriteLog<D, M> {
    pub(crate) device: D,
    pub(crate) config: WriteLogConfig,
    pub(crate) limits: Limits,
    pub(crate) ring: LogRing<M>,
    pub(crate) index: SectorIndex,
    pub(crate) appender: Appender,
    pub(crate) changes: PassedChanges,
    pub(crate) destager: Destager,
    pub(crate) requests: Slab<LoggedRequest>,
    pub(crate) stats: WriteLogStats,
    /// Requests of the device, and those that it has not taken; the index is the tag.
    parts: Slab<Option<SentPart>>,
    to_device: VecDeque<Request>,
    completed: VecDeque<Completion>,
    label: LabelSector,
    closing: Closing,
}

/// A request of the caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedRequest {
    pub(crate) request: Request,
    /// Number of device requests that have not completed.
    parts: u32,
    status: Status,
}

impl LoggedRequest {
    pub(crate) fn range(&self) -> SectorRange {
        SectorRange { lba: self.request.lba, sectors: self.request.sectors }
    }
}

/// The purpose of a request to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DevicePart {
    /// Reads sectors that are not logged.
    Read {
        /// The caller's request.
        request: u32,
    },
    /// Changes sectors.
    Change {
        /// The caller's request.
        request: u32,
    },
    /// Flushes for the caller.
    Flush {
        /// The caller's request.
        request: u32,
        /// Number of completed changes that it makes durable.
        changes: u64,
    },
    /// Writes a buffer of the destager.
    DestageWrite {
        /// Index of the buffer.
        buffer: usize,
    },
    /// Flushes what was destaged.
    DestageFlush {
        /// Number of completed changes that it makes durable.
        changes: u64,
    },
    /// Writes a label that says that the log is empty.
    LabelWrite,
    /// Flushes this label.
    LabelFlush,
}

/// A request to the device, and the power cuts that the log had handled when it was sent.
#[derive(Clone, Copy, Debug)]
struct SentPart {
    part: DevicePart,
    power_cuts: u64,
}

/// The end of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// The log takes writes.
    Open,
    /// The log is destaged.
    Destaging,
    /// The label is written.
    Labeling,
    /// The device has all data, and the memory has no log.
    Closed,
    /// The device failed.
    Failed(Status),
}

impl<D: BlockDevice, M: LogMemory> WriteLog<D, M> {
    pub(crate) fn new(
        device: D,
        config: WriteLogConfig,
        label: LabelSector,
        contents: LogContents<M>,
    ) -> Result<WriteLog<D, M>, WriteLogError> {
        let LogContents { ring, index, replayed } = contents;
        // After a power cut, replay may restore an older version of a part of a passed write.
        let limits = Limits { atomic: AtomicLimits::NONE, ..*device.limits() };
        let depth = limits.queue_depth as usize;
        Ok(WriteLog {
            destager: Destager::new(&device)?,
            limits: Limits { sectors: limits.sectors - 1, ..limits },
            device,
            config,
            ring,
            index,
            appender: Appender::default(),
            changes: PassedChanges::default(),
            requests: Slab::with_capacity(depth),
            stats: WriteLogStats { replayed_records: replayed, ..WriteLogStats::default() },
            parts: Slab::with_capacity(depth),
            to_device: VecDeque::with_capacity(depth),
            completed: VecDeque::with_capacity(depth),
            label,
            closing: Closing::Open,
        })
    }

    /// Returns the features of a log over a device with `features`: payloads are contiguous, and
    /// extents cannot be queried.
    pub fn features(features: Features) -> Features {
        Features { segments: 0, extents: false, ..features }
    }

    /// Returns the counts.
    pub fn stats(&self) -> WriteLogStats {
        self.stats
    }

    /// Returns the bytes of the log that have records.
    pub fn used_bytes(&self) -> u64 {
        self.ring.used_bytes()
    }

    /// Begins to close the log: it is destaged, then the device's label says that the log is empty,
    /// then the log's header is erased. From the call on, writes pass to the device. The caller polls
    /// until [`close_result`](WriteLog::close_result) has a result. After an error it may call this
    /// again; the log keeps the data.
    pub fn close(&mut self) {
        if matches!(self.closing, Closing::Open | Closing::Failed(_)) {
            self.closing = Closing::Destaging;
            self.destager.forget_failure();
        }
    }

    /// Returns how the closing ended: `Err` with the status of the device's error. `None` while it has
    /// not ended, or has not begun.
    pub fn close_result(&self) -> Option<Result<(), Status>> {
        match self.closing {
            Closing::Closed => Some(Ok(())),
            Closing::Failed(status) => Some(Err(status)),
            _ => None,
        }
    }

    /// Replaces the device by one that wraps it and has the same memory. No request may be
    /// outstanding.
    #[must_use]
    pub fn with_device(self, wrap: impl FnOnce(D) -> D) -> WriteLog<D, M> {
        WriteLog { device: wrap(self.device), ..self }
    }

    /// Returns the device and the memory. Requests that have not completed are lost.
    pub fn into_parts(self) -> (D, M) {
        (self.device, self.ring.into_memory())
    }

    /// Returns whether the log is being destaged because it is closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing == Closing::Destaging
    }

    /// Returns whether a completed request must be durable.
    pub(crate) fn must_be_durable(&self, request: &Request) -> bool {
        request.fua || !self.limits.volatile_cache
    }

    /// Queues a request to the device.
    pub(crate) fn send(&mut self, part: DevicePart, request: Request) {
        let power_cuts = self.ring.power_cuts();
        let tag = self.parts.insert(Some(SentPart { part, power_cuts })).into();
        self.to_device.push_back(Request { tag, ..request });
    }

    /// Completes a request of the caller.
    pub(crate) fn complete(&mut self, index: u32, status: Status) {
        let tag = self.requests[index].request.tag;
        self.requests.release(index);
        self.completed.push_back(Completion { tag, status, result: 0 });
    }

    /// Sends a change to the device, unless one of its sectors is being destaged.
    pub(crate) fn pass(&mut self, index: u32) {
        let range = self.requests[index].range();
        if self.destager.overlaps(range) {
            self.changes.block(index);
            return;
        }
        self.stats.passed_changes += 1;
        self.changes.begin(PassedChange { range, bound: self.ring.tail(), request: index });
        self.send(DevicePart::Change { request: index }, self.requests[index].request);
    }

    /// Reads logged runs from the log, and sends the others to the device.
    fn read(&mut self, index: u32) {
        self.copy_logged(index);
        // Then the copies may have lost sectors.
        while self.handle_power_cut() {
            self.copy_logged(index);
        }
        self.read_from_device(index);
    }

    /// Copies the logged sectors of a read.
    fn copy_logged(&mut self, index: u32) {
        let Request { lba, sectors, data, .. } = self.requests[index].request;
        for sector in 0..u64::from(sectors) {
            if let Some(position) = self.index.get(lba + sector) {
                let payload = advance(data, sector * u64::from(self.limits.sector_bytes));
                self.stats.read_sectors += 1;
                self.copy_sector(position, payload);
            }
        }
    }

    /// Sends the runs of a read that are not logged to the device.
    fn read_from_device(&mut self, index: u32) {
        let Request { lba, sectors, data, .. } = self.requests[index].request;
        let sector_bytes = self.limits.sector_bytes;
        let mut sector = 0;
        while sector < sectors {
            let first = sector;
            let payload = advance(data, u64::from(first) * u64::from(sector_bytes));
            if self.index.get(lba + u64::from(sector)).is_some() {
                sector += 1;
                continue;
            }
            while sector < sectors && self.index.get(lba + u64::from(sector)).is_none() {
                sector += 1;
            }
            self.requests[index].parts += 1;
            let (lba, sectors) = (lba + u64::from(first), sector - first);
            let part = Request { lba, sectors, data: payload, ..self.requests[index].request };
            self.send(DevicePart::Read { request: index }, part);
        }
        if self.requests[index].parts == 0 {
            self.complete(index, Status::SUCCESS);
        }
    }

    /// Copies a sector from the log to a payload.
    fn copy_sector(&mut self, position: u64, payload: Payload) {
        let Payload::Contiguous(to) = payload else { return };
        let sector = self.destager.sector_buffer();
        self.ring.read(position, sector);
        // `submit` has checked the payload, and registrations are never withdrawn.
        let written = self.device.memory().write(to, sector);
        debug_assert!(written.is_ok());
    }

    /// Makes completed changes durable: those of the device by a flush, those of the log by a
    /// persist.
    fn flush(&mut self, index: u32) {
        let (completed, flushed) = (self.changes.completed(), self.changes.flushed());
        if completed > flushed {
            self.stats.device_flushes += 1;
            let part = DevicePart::Flush { request: index, changes: completed };
            self.send(part, Request::flush(0));
        } else {
            self.stats.absorbed_flushes += 1;
            self.appender.push(AppendItem::Flush { request: index, changes: flushed });
        }
    }

    fn on_completion(&mut self, now: Nanos, completion: Completion) {
        let Completion { tag, mut status, .. } = completion;
        let slot = u32::try_from(tag).ok().and_then(|tag| self.parts.get_mut(tag));
        let Some(SentPart { part, power_cuts }) = slot.and_then(Option::take) else {
            // A device completes each request once; another tag would be a defect of it.
            debug_assert!(false, "the device completed tag {tag:#x}, which it does not have");
            return;
        };
        self.parts.release(tag as u32);
        if power_cuts != self.ring.power_cuts() && status.is_success() {
            // The device may have lost a change since, and the records that it needs are lost. A read
            // may have missed sectors that the replay has found in the log.
            status = Status::POWER_LOSS;
        }
        match part {
            DevicePart::Read { request } => {
                let read = &mut self.requests[request];
                read.parts -= 1;
                if read.status.is_success() {
                    read.status = status;
                }
                let LoggedRequest { parts, status, .. } = *read;
                if parts == 0 {
                    self.complete(request, status);
                }
            }
            DevicePart::Change { request } => self.on_change(request, status),
            DevicePart::Flush { request, changes } if status.is_success() => {
                self.changes.set_flushed(changes);
                self.appender.push(AppendItem::Flush { request, changes });
            }
            DevicePart::Flush { request, .. } => self.complete(request, status),
            DevicePart::DestageWrite { buffer } => {
                self.destager.on_write(buffer, status);
                for blocked in self.changes.take_blocked() {
                    self.pass(blocked);
                }
            }
            DevicePart::DestageFlush { changes } => self.on_destage_flush(now, changes, status),
            DevicePart::LabelWrite if status.is_success() => {
                self.send(DevicePart::LabelFlush, Request::flush(0));
            }
            DevicePart::LabelFlush if status.is_success() => {
                self.ring.erase_header();
                self.closing = Closing::Closed;
            }
            DevicePart::LabelWrite | DevicePart::LabelFlush => {
                self.closing = Closing::Failed(status);
            }
        }
    }

    /// Ends the requests that the device has not got, after a loss of power.
    pub(crate) fn fail_unsent(&mut self) {
        for Request { tag, .. } in std::mem::take(&mut self.to_device) {
            self.on_completion(
                Nanos::ZERO,
                Completion { tag, status: Status::POWER_LOSS, result: 0 },
            );
        }
    }

    /// Completes a passed change. If it is durable, and a replay would find an older version, a
    /// record that hides this version comes first.
    fn on_change(&mut self, index: u32, status: Status) {
        let (ring, sectors) = (&self.ring, &mut self.index);
        let logged = ring.logged_ranges();
        let superseded = self.changes.complete(index, status.is_success(), sectors, logged);
        match superseded {
            Some(superseded) if self.must_be_durable(&self.requests[index].request) => {
                self.appender.push(AppendItem::Superseded { request: index, superseded });
            }
            _ => self.complete(index, status),
        }
    }

    /// Continues the closing. Returns whether it made progress.
    fn close_step(&mut self) -> bool {
        if self.closing != Closing::Destaging {
            return false;
        }
        if let Some(status) = self.destager.failure() {
            self.closing = Closing::Failed(status);
            return true;
        }
        if self.ring.used_bytes() > 0 || self.requests.in_use() > 0 || self.destager.is_active() {
            return false;
        }
        let LogHeader { identity, generation, .. } = *self.ring.header();
        let label = DeviceLabel { state: LabelState::Clean, identity, generation };
        let write = self.label.write_request(label, 0);
        self.send(DevicePart::LabelWrite, write);
        self.closing = Closing::Labeling;
        true
    }

    /// Submits requests that the device takes. Returns whether it took one.
    fn submit_to_device(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(request) = self.to_device.front() {
            if self.device.submit(now, *request).is_err() {
                break;
            }
            self.to_device.pop_front();
            moved = true;
        }
        moved
    }

    /// Returns the status with which the log rejects a request; `None` for a valid one.
    fn validate(&self, request: &Request) -> Option<Status> {
        let is_transfer = matches!(request.op, Op::Read | Op::Write);
        match (request.op, request.data) {
            (Op::Extents, _) => return Some(Status::INVALID_OPCODE),
            (_, Payload::Scattered { .. }) if is_transfer => return Some(Status::INVALID_FIELD),
            _ => {}
        }
        let invalid = validate_request(&self.limits, self.limits.max_sectors, request);
        invalid.or_else(|| match request.data {
            Payload::Contiguous(at) if is_transfer => {
                let bytes = u64::from(request.sectors) * u64::from(self.limits.sector_bytes);
                let found = self.device.memory().find(at, bytes);
                found.is_err().then_some(Status::DATA_TRANSFER_ERROR)
            }
            _ => None,
        })
    }
}

/// Returns the payload of a part that begins `bytes` after the payload's start.
pub(crate) fn advance(data: Payload, bytes: u64) -> Payload {
    match data {
        Payload::Contiguous(at) => Payload::Contiguous(at.offset(bytes)),
        // `submit` rejects scattered payloads.
        Payload::BitBucket | Payload::Scattered { .. } => data,
    }
}

impl<D: BlockDevice, M: LogMemory> WriteLog<D, M> {
    /// Moves every part once. Returns whether one made progress.
    fn step(&mut self, now: Nanos) -> bool {
        let mut moved = self.handle_power_cut() | self.submit_to_device(now);
        moved |= self.device.poll(now);
        moved |= self.handle_power_cut();
        while let Some(completion) = self.device.reap() {
            self.on_completion(now, completion);
            moved = true;
        }
        moved |= self.append_step(now);
        moved |= self.destage_step(now);
        moved |= self.close_step();
        self.submit_to_device(now) | moved
    }
}

impl<D: BlockDevice, M: LogMemory> Component for WriteLog<D, M> {
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        // The device issues what it got in a step in the next one.
        while self.step(now) {
            moved = true;
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        if !self.completed.is_empty() {
            return Nanos::ZERO;
        }
        self.device.deadline().min(self.appender.deadline()).min(self.destage_deadline())
    }
}

impl<D: BlockDevice, M: LogMemory> BlockDevice for WriteLog<D, M> {
    block::answer_block_device!(can_wait: false);
    block::delegate_block_device!(self => self.device; memory, set_waker, can_wake, enable_sharing);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        if self.requests.in_use() + self.completed.len() >= self.limits.queue_depth as usize {
            return Err(QueueFull);
        }
        if let Some(status) = self.validate(&request) {
            self.completed.push_back(Completion { tag: request.tag, status, result: 0 });
            return Ok(());
        }
        self.handle_power_cut();
        self.destager.on_request(now);
        let logged = LoggedRequest { request, parts: 0, status: Status::SUCCESS };
        let index = self.requests.insert(logged);
        let bytes = u64::from(request.sectors) * u64::from(self.limits.sector_bytes);
        let is_small = bytes <= self.config.write_bytes_max.into();
        match request.op {
            Op::Write if is_small && self.closing == Closing::Open => {
                self.appender.push(AppendItem::Write { request: index });
            }
            Op::Write | Op::Discard | Op::WriteZeroes => self.pass(index),
            Op::Flush => self.flush(index),
            Op::Read | Op::Extents => self.read(index),
        }
        self.submit_to_device(now);
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        self.completed.pop_front()
    }

    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any)) {
        visit(&mut self.stats);
        self.device.visit_layers(visit);
    }
}
