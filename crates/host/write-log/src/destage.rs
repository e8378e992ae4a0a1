//! [`Destager`]: writes the latest versions of logged sectors to the device.
//!
//! A round covers the records from the head to the tail at its start. It writes each sector whose
//! latest version is in one of them, through buffers of the device's address space, flushes the
//! device, and advances the head. A round begins when half of the log has records, when a change
//! waits for space, when no request arrived for a time, or when the log is closed.

use std::sync::Arc;

use block::{BlockDevice, Payload, Request};
use mem::{Iova, SharedRegion};
use nvme::Status;
use time::Nanos;

use crate::format::LogRecordKind;
use crate::index::SectorRange;
use crate::log::{DevicePart, WriteLog};
use crate::{LogMemory, WriteLogError};

/// Number of buffers, and so of destage writes in flight.
const BUFFERS: usize = 8;
/// Maximum bytes of a destage write.
const BUFFER_BYTES_MAX: u64 = 128 << 10;

#[derive(Debug)]
struct DestageBuffer {
    region: Arc<SharedRegion>,
    at: Iova,
    /// Sectors of the write in flight.
    range: Option<SectorRange>,
}

/// The sectors of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DestageRound {
    /// The head after the round.
    target: u64,
    /// Index of the next record, counted from the head.
    record: usize,
    /// The next sector of this record.
    sector: u32,
    is_flushing: bool,
    /// Whether the memory lost its power: the round ends without an effect.
    is_aborted: bool,
    /// The first error.
    failure: Option<Status>,
}

/// The buffers, and the round.
#[derive(Debug)]
pub(crate) struct Destager {
    buffers: Box<[DestageBuffer]>,
    buffer_sectors: u32,
    /// One sector.
    sector: Vec<u8>,
    round: Option<DestageRound>,
    /// The error of the last round.
    failure: Option<Status>,
    next_attempt: Nanos,
    last_request: Nanos,
}

impl Destager {
    pub(crate) fn new<D: BlockDevice>(device: &D) -> Result<Destager, WriteLogError> {
        let limits = device.limits();
        let sector_bytes = u64::from(limits.sector_bytes);
        let buffer_sectors = (BUFFER_BYTES_MAX / sector_bytes).clamp(1, limits.max_sectors.into());
        let bytes = (buffer_sectors * sector_bytes) as usize;
        let buffer = |_| {
            let (region, at) = device.memory().allocate_registered(bytes)?;
            Ok(DestageBuffer { region, at, range: None })
        };
        let buffers: Result<Box<[DestageBuffer]>, WriteLogError> =
            (0..BUFFERS).map(buffer).collect();
        Ok(Destager {
            buffers: buffers?,
            buffer_sectors: buffer_sectors as u32,
            sector: vec![0; limits.sector_bytes as usize],
            round: None,
            failure: None,
            next_attempt: Nanos::ZERO,
            last_request: Nanos::ZERO,
        })
    }

    /// Returns whether one of the sectors is being written.
    pub(crate) fn overlaps(&self, range: SectorRange) -> bool {
        self.buffers.iter().any(|buffer| buffer.range.is_some_and(|other| other.overlaps(range)))
    }

    pub(crate) fn is_active(&self) -> bool {
        self.round.is_some()
    }

    /// Returns the error of the last round, if it failed.
    pub(crate) fn failure(&self) -> Option<Status> {
        self.failure
    }

    pub(crate) fn forget_failure(&mut self) {
        self.failure = None;
    }

    /// Returns a buffer of one sector.
    pub(crate) fn sector_buffer(&mut self) -> &mut [u8] {
        &mut self.sector
    }

    pub(crate) fn on_request(&mut self, now: Nanos) {
        self.last_request = now;
    }

    /// Ends the write of a buffer.
    pub(crate) fn on_write(&mut self, buffer: usize, status: Status) {
        self.buffers[buffer].range = None;
        if let Some(round) = &mut self.round
            && !status.is_success()
        {
            round.failure = round.failure.or(Some(status));
        }
    }

    /// Ends the round without an effect, after its requests.
    pub(crate) fn on_power_cut(&mut self) {
        if let Some(round) = &mut self.round {
            round.is_aborted = true;
            round.failure = round.failure.or(Some(Status::POWER_LOSS));
        }
    }

    fn has_writes(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.range.is_some())
    }
}

impl<D: BlockDevice, M: LogMemory> WriteLog<D, M> {
    /// Returns when the next round begins.
    fn next_round(&self) -> Nanos {
        let (used, destager) = (self.ring.used_bytes(), &self.destager);
        if used == 0 {
            return Nanos::MAX;
        }
        let is_urgent =
            used > self.ring.ring_bytes() / 2 || self.appender.needs_space() || self.is_closing();
        let idle = Nanos(destager.last_request.0.saturating_add(self.config.idle.0));
        let begin = if is_urgent { Nanos::ZERO } else { idle };
        if destager.failure.is_some() { begin.max(destager.next_attempt) } else { begin }
    }

    pub(crate) fn destage_deadline(&self) -> Nanos {
        if self.destager.round.is_some() { Nanos::MAX } else { self.next_round() }
    }

    /// Begins or continues a round. Returns whether it made progress.
    pub(crate) fn destage_step(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        if self.destager.round.is_none() {
            if now < self.next_round() {
                return false;
            }
            let (target, failure) = (self.ring.tail(), None);
            let round = DestageRound {
                target,
                record: 0,
                sector: 0,
                is_flushing: false,
                is_aborted: false,
                failure,
            };
            self.destager.round = Some(round);
            moved = true;
        }
        let is_written = self.send_destage_writes(&mut moved);
        let has_writes = self.destager.has_writes();
        let changes = self.changes.completed();
        let Some(round) = &mut self.destager.round else { return moved };
        if has_writes || round.is_flushing {
            return moved;
        }
        if let Some(status) = round.failure {
            self.fail_round(now, status);
            return true;
        }
        if is_written {
            round.is_flushing = true;
            self.send(DevicePart::DestageFlush { changes }, Request::flush(0));
            return true;
        }
        moved
    }

    /// Fills free buffers and sends them. Returns whether all sectors of the round were sent.
    fn send_destage_writes(&mut self, moved: &mut bool) -> bool {
        loop {
            let Some(round) = self.destager.round.filter(|round| !round.is_flushing) else {
                return false;
            };
            let free = self.destager.buffers.iter().position(|buffer| buffer.range.is_none());
            let Some(buffer) = free.filter(|_| round.failure.is_none()) else { return false };
            let filled = self.fill_buffer(buffer);
            // Then the buffer may have lost sectors.
            if self.handle_power_cut() {
                *moved = true;
                return false;
            }
            let Some(range) = filled else {
                let round = self.destager.round.as_ref();
                let next = round.and_then(|round| self.ring.record(round.record));
                return next.is_none_or(|record| record.position >= self.round_target());
            };
            let at = Payload::Contiguous(self.destager.buffers[buffer].at);
            self.destager.buffers[buffer].range = Some(range);
            self.stats.destaged_sectors += u64::from(range.sectors);
            let write = Request::write(range.lba, range.sectors, at, 0);
            self.send(DevicePart::DestageWrite { buffer }, write);
            *moved = true;
        }
    }

    fn round_target(&self) -> u64 {
        self.destager.round.map_or(0, |round| round.target)
    }

    /// Copies the next consecutive sectors of the round to a buffer. Returns `None` at the end of the
    /// round, or if a passed change of the next sector is in flight.
    fn fill_buffer(&mut self, buffer: usize) -> Option<SectorRange> {
        let sector_bytes = self.ring.sector_bytes();
        let mut filled: Option<SectorRange> = None;
        let mut round = self.destager.round?;
        while let Some(record) = self.ring.record(round.record).copied() {
            let is_end = record.position >= round.target;
            if is_end || record.kind != LogRecordKind::Data || round.sector == record.range.sectors
            {
                if is_end {
                    break;
                }
                (round.record, round.sector) = (round.record + 1, 0);
                continue;
            }
            let lba = record.range.lba + u64::from(round.sector);
            let offset = u64::from(round.sector) * u64::from(sector_bytes);
            let position = record.data_position() + offset;
            if self.index.get(lba) == Some(position) {
                let sectors = filled.map_or(0, |range| range.sectors);
                let is_next = filled.is_none_or(|range| range.end() == lba);
                let is_changing = self.changes.overlaps(SectorRange { lba, sectors: 1 });
                if !is_next || is_changing || sectors == self.destager.buffer_sectors {
                    break;
                }
                self.ring.read(position, &mut self.destager.sector);
                let at = sectors as usize * sector_bytes as usize;
                self.destager.buffers[buffer].region.write(at, &self.destager.sector);
                let lba = filled.map_or(lba, |range| range.lba);
                filled = Some(SectorRange { lba, sectors: sectors + 1 });
            }
            round.sector += 1;
        }
        self.destager.round = Some(round);
        filled
    }

    /// Ends a round: the device has all sectors of its records.
    pub(crate) fn on_destage_flush(&mut self, now: Nanos, changes: u64, status: Status) {
        if !status.is_success() || self.handle_power_cut() {
            return self.fail_round(now, status);
        }
        self.changes.set_flushed(changes);
        // A version that was not written, because a later record has the sector, may be durable. The
        // later one must be, before the head moves on.
        let mut time = Nanos::ZERO;
        if !self.ring.is_persistent() {
            self.ring.persist();
            self.stats.persists += 1;
            time = self.config.persist;
        }
        let target = self.round_target();
        let (ring, index) = (&mut self.ring, &mut self.index);
        let sector_bytes = u64::from(ring.sector_bytes());
        ring.advance_head(target, |record| {
            if record.kind == LogRecordKind::Data {
                let mut position = record.data_position();
                for lba in record.range.lba..record.range.end() {
                    index.remove_version(lba, position);
                    position += sector_bytes;
                }
            }
        });
        self.changes.advance_head(target);
        // Two copies of the header.
        let header = self.config.store.0.saturating_add(self.config.persist.0).saturating_mul(2);
        self.appender.add_time(now, Nanos(time.0.saturating_add(header)));
        self.destager.failure = None;
        self.destager.round = None;
    }

    fn fail_round(&mut self, now: Nanos, status: Status) {
        if self.destager.round.take().is_some_and(|round| round.is_aborted) {
            return;
        }
        self.stats.failed_destages += 1;
        tracing::warn!(?status, "the device fails to take sectors from its log");
        self.destager.failure = Some(status);
        self.destager.next_attempt = Nanos(now.0.saturating_add(self.config.retry.0));
    }
}
