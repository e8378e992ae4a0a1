//! [`Appender`]: changes that wait for their record, and the batch of records that is being stored
//! and persisted.
//!
//! A batch has all changes that wait when it begins, as far as they fit. Its time is that of the
//! stores to its lines and of one persist, if one of its requests must be durable.

use std::collections::VecDeque;

use block::{BlockDevice, Payload};
use nvme::Status;
use time::Nanos;

use crate::LogMemory;
use crate::format::LogRecordKind;
use crate::log::WriteLog;
use crate::passed::Superseded;

/// A request that needs a record, or that needs records to be persistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendItem {
    /// A write to log.
    Write {
        /// The caller's request.
        request: u32,
    },
    /// A durable passed change, which hides logged versions.
    Superseded {
        /// The caller's request.
        request: u32,
        /// The versions.
        superseded: Superseded,
    },
    /// A flush.
    Flush {
        /// The caller's request.
        request: u32,
        /// The first so many passed changes are durable on the device.
        changes: u64,
    },
}

/// The changes that wait, and the batch.
#[derive(Debug, Default)]
pub(crate) struct Appender {
    queue: VecDeque<AppendItem>,
    /// The changes of the batch; empty if there is none.
    batch: Vec<AppendItem>,
    /// When the batch ends, or the last one did.
    busy_until: Nanos,
    is_persist: bool,
    /// Whether the first change waits for space.
    needs_space: bool,
}

impl Appender {
    pub(crate) fn push(&mut self, item: AppendItem) {
        self.queue.push_back(item);
    }

    /// Returns whether a change waits for space in the log.
    pub(crate) fn needs_space(&self) -> bool {
        self.needs_space
    }

    /// Ends the batch after a loss of power: its writes are stored again. Returns the requests that
    /// fail.
    pub(crate) fn on_power_cut(&mut self) -> Vec<u32> {
        let mut failed = Vec::new();
        let mut writes = VecDeque::new();
        for item in self.batch.drain(..).chain(self.queue.drain(..)) {
            match item {
                AppendItem::Write { .. } => writes.push_back(item),
                AppendItem::Superseded { request, .. } | AppendItem::Flush { request, .. } => {
                    failed.push(request);
                }
            }
        }
        self.queue = writes;
        self.needs_space = false;
        failed
    }

    /// Adds time that the host spends on the log, before the next batch.
    pub(crate) fn add_time(&mut self, now: Nanos, time: Nanos) {
        self.busy_until = Nanos(self.busy_until.max(now).0.saturating_add(time.0));
    }

    pub(crate) fn deadline(&self) -> Nanos {
        match () {
            () if !self.batch.is_empty() => self.busy_until,
            () if self.queue.is_empty() || self.needs_space => Nanos::MAX,
            () => Nanos::ZERO,
        }
    }
}

impl<D: BlockDevice, M: LogMemory> WriteLog<D, M> {
    /// Ends the batch if its time has passed, and begins the next one. Returns whether it did.
    pub(crate) fn append_step(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        loop {
            let is_active = !self.appender.batch.is_empty();
            if is_active && now < self.appender.busy_until {
                return moved;
            }
            let stepped = if is_active { self.end_batch() } else { self.begin_batch(now) };
            if !stepped {
                return moved;
            }
            moved = true;
        }
    }

    /// Stores the records of the changes that wait. Returns whether there was one.
    fn begin_batch(&mut self, now: Nanos) -> bool {
        let (mut lines, mut is_persist, mut hidden) = (0, false, None);
        while let Some(item) = self.appender.queue.front().copied() {
            let bytes = self.item_bytes(&item);
            if bytes > self.ring.free_bytes() {
                if !self.appender.batch.is_empty() {
                    break;
                }
                return self.wait_for_space(item);
            }
            self.appender.queue.pop_front();
            self.appender.batch.push(item);
            match item {
                AppendItem::Write { request } => {
                    lines += self.append_write(request);
                    is_persist |= self.must_be_durable(&self.requests[request].request);
                }
                AppendItem::Superseded { superseded, .. } => {
                    lines += self.append_superseded(superseded);
                    is_persist = true;
                }
                AppendItem::Flush { changes, .. } => {
                    // An earlier flush of the batch may have hidden them.
                    if hidden < Some(changes) {
                        let all: Vec<Superseded> = self.changes.superseded(changes).collect();
                        lines += all.into_iter().map(|s| self.append_superseded(s)).sum::<u64>();
                        hidden = Some(changes);
                    }
                    is_persist |= !self.ring.is_persistent();
                }
            }
        }
        if self.appender.batch.is_empty() {
            return false;
        }
        self.appender.needs_space = false;
        self.appender.is_persist = is_persist;
        self.stats.lines += lines;
        let persist = if is_persist { self.config.persist } else { Nanos::ZERO };
        let time = self.config.store.0.saturating_mul(lines).saturating_add(persist.0);
        self.appender.add_time(now, Nanos(time));
        true
    }

    /// Returns the bytes of the records of a change.
    fn item_bytes(&self, item: &AppendItem) -> u64 {
        let hides = LogRecordKind::Superseded { bound: 0 };
        match *item {
            AppendItem::Write { request } => {
                let sectors = self.requests[request].request.sectors;
                self.ring.record_bytes(LogRecordKind::Data, sectors)
            }
            AppendItem::Superseded { .. } => self.ring.record_bytes(hides, 0),
            AppendItem::Flush { changes, .. } => {
                let records = self.changes.superseded(changes).count() as u64;
                records * self.ring.record_bytes(hides, 0)
            }
        }
    }

    /// Handles a change that does not fit. It waits for destaging, unless the device fails writes:
    /// then a write passes to the device, and other requests fail.
    fn wait_for_space(&mut self, item: AppendItem) -> bool {
        let Some(status) = self.destager.failure() else {
            self.stats.space_waits += u64::from(!self.appender.needs_space);
            self.appender.needs_space = true;
            return false;
        };
        self.appender.queue.pop_front();
        self.appender.needs_space = false;
        match item {
            AppendItem::Write { request } => self.pass(request),
            AppendItem::Superseded { request, .. } | AppendItem::Flush { request, .. } => {
                self.complete(request, status);
            }
        }
        true
    }

    /// Stores the record of a write, and points the index to it. Returns the number of lines.
    fn append_write(&mut self, index: u32) -> u64 {
        let (request, range) = (self.requests[index].request, self.requests[index].range());
        let memory = self.device.memory();
        let lines = self.ring.append(LogRecordKind::Data, range, |data| match request.data {
            // `submit` has checked the payload, and registrations are never withdrawn.
            Payload::Contiguous(from) => {
                let read = memory.read(from, data);
                debug_assert!(read.is_ok());
            }
            Payload::BitBucket | Payload::Scattered { .. } => data.fill(0),
        });
        let data_bytes = u64::from(range.sectors) * u64::from(self.ring.sector_bytes());
        let mut position = self.ring.tail() - data_bytes;
        for lba in range.lba..range.end() {
            self.index.set(lba, position);
            position += u64::from(self.ring.sector_bytes());
        }
        self.stats.logged_writes += 1;
        self.stats.logged_sectors += u64::from(range.sectors);
        lines
    }

    fn append_superseded(&mut self, superseded: Superseded) -> u64 {
        self.stats.superseded_records += 1;
        let Superseded { range, bound, .. } = superseded;
        self.ring.append(LogRecordKind::Superseded { bound }, range, |_| {})
    }

    /// Persists the batch, if a request must be durable, and completes its requests.
    fn end_batch(&mut self) -> bool {
        if self.appender.is_persist {
            self.ring.persist();
            self.stats.persists += 1;
        }
        if self.handle_power_cut() {
            return true;
        }
        let status = if self.ring.is_lost() { Status::INTERNAL } else { Status::SUCCESS };
        let mut batch = std::mem::take(&mut self.appender.batch);
        for item in batch.drain(..) {
            let request = match item {
                AppendItem::Write { request } => request,
                AppendItem::Superseded { request, superseded } => {
                    self.changes.hide(superseded);
                    request
                }
                AppendItem::Flush { request, changes } => {
                    self.changes.hide_first(changes);
                    request
                }
            };
            self.complete(request, status);
        }
        self.appender.batch = batch;
        true
    }
}
