//! [`SataDisk`]: a SATA drive: its stored sectors, service times and injected errors.

use std::ops::Range;

use ahci::Identify;
use ahci::ata::QueuedErrorLog;
use time::Nanos;

use super::config::AhciConfigError;
use super::storage::SectorStore;
use super::{SataDriveConfig, SataDriveStats};

/// Sectors whose reads or writes fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectedSectorError {
    /// The range of sectors.
    pub sectors: Range<u64>,
    /// Reads of them fail.
    pub reads: bool,
    /// Writes of them fail.
    pub writes: bool,
}

#[derive(Debug)]
pub(super) struct SataDisk {
    pub(super) config: SataDriveConfig,
    pub(super) sectors: SectorStore,
    pub(super) stats: SataDriveStats,
    pub(super) injected_errors: Vec<InjectedSectorError>,
    /// The log of a failed queued command; until the host reads it, the drive accepts only that
    /// read.
    pub(super) queued_error: Option<QueuedErrorLog>,
    /// Times at which the processor, each flash unit and the link become free.
    processor_free_at: Nanos,
    units_free_at: Vec<Nanos>,
    link_free_at: Nanos,
    /// Time at which the whole cache is on flash.
    cache_drained_at: Nanos,
    /// Whether commands take no time.
    pub(super) zero_latency: bool,
}

impl SataDisk {
    pub(super) fn new(config: &SataDriveConfig) -> Result<SataDisk, AhciConfigError> {
        Ok(SataDisk {
            sectors: SectorStore::new(config)?,
            config: config.clone(),
            stats: SataDriveStats::default(),
            injected_errors: Vec::new(),
            queued_error: None,
            processor_free_at: Nanos::ZERO,
            units_free_at: vec![Nanos::ZERO; config.units as usize],
            link_free_at: Nanos::ZERO,
            cache_drained_at: Nanos::ZERO,
            zero_latency: false,
        })
    }

    pub(super) fn identify(&self) -> Identify {
        let SataDriveConfig { serial, firmware, model, sectors, sector_bytes, .. } = &self.config;
        Identify {
            serial: serial.clone(),
            firmware: firmware.clone(),
            model: model.clone(),
            sectors: *sectors,
            sector_bytes: *sector_bytes,
            queue_depth: self.config.queue_depth,
            queuing: true,
            write_cache: self.config.cache_bytes > 0,
            trim: true,
            trim_blocks: 8,
            trim_zeroes: true,
        }
    }

    /// Returns the bytes of a range of sectors; `None` if it exceeds the drive.
    #[inline]
    pub(super) fn byte_range(&self, lba: u64, sectors: u32) -> Option<Range<u64>> {
        let end = lba.checked_add(sectors.into()).filter(|end| *end <= self.config.sectors)?;
        let each = u64::from(self.config.sector_bytes);
        Some(lba * each..end * each)
    }

    /// Returns the first sector of the range that fails.
    #[inline]
    pub(super) fn first_injected_error(&self, lba: u64, sectors: u32, write: bool) -> Option<u64> {
        let end = lba + u64::from(sectors);
        self.injected_errors
            .iter()
            .filter(|fault| if write { fault.writes } else { fault.reads })
            .filter(|fault| fault.sectors.start < end && lba < fault.sectors.end)
            .map(|fault| fault.sectors.start.max(lba))
            .min()
    }

    #[inline]
    fn process(&mut self, now: Nanos, command: Nanos, bytes: u64) -> Nanos {
        if self.zero_latency {
            return now;
        }
        let time = command + Nanos::transfer(bytes, self.config.processor_bytes_per_sec);
        self.processor_free_at = self.processor_free_at.max(now) + time;
        self.processor_free_at
    }

    /// Returns the time at which a read that starts at `now` has these bytes of the drive.
    #[inline]
    pub(super) fn read_ready(&mut self, now: Nanos, bytes: Range<u64>) -> Nanos {
        if self.zero_latency {
            return now;
        }
        let command = self.config.read_command;
        let start = self.process(now, command, bytes.end - bytes.start);
        let each = u64::from(self.config.unit_bytes);
        let mut ready = start;
        for page in bytes.start / each..bytes.end.div_ceil(each) {
            let count = self.units_free_at.len() as u64;
            if let Some(unit) = self.units_free_at.get_mut((page % count) as usize) {
                *unit = start.max(*unit) + self.config.array_read;
                ready = ready.max(*unit);
            }
        }
        ready
    }

    /// Reserves the link for `bytes` bytes and returns the end of the transfer.
    #[inline]
    pub(super) fn transfer(&mut self, now: Nanos, bytes: u64) -> Nanos {
        if self.zero_latency {
            return now;
        }
        let time =
            self.config.link_command + Nanos::transfer(bytes, self.config.link_bytes_per_sec);
        self.stats.link_busy += time;
        self.link_free_at = self.link_free_at.max(now) + time;
        self.link_free_at
    }

    /// Returns the completion time of a write whose data arrived at `now`: when the cache has space
    /// for it, or when it is on flash if it must be durable.
    #[inline]
    pub(super) fn write_ready(&mut self, now: Nanos, bytes: u64, durable: bool) -> Nanos {
        if self.zero_latency {
            return now;
        }
        let taken = self.process(now, self.config.write_command, bytes);
        let rate = self.config.drain_bytes_per_sec;
        self.cache_drained_at = self.cache_drained_at.max(taken) + Nanos::transfer(bytes, rate);
        let cache = Nanos::transfer(self.config.cache_bytes, rate);
        if durable || self.config.cache_bytes == 0 {
            self.cache_drained_at
        } else {
            taken.max(self.cache_drained_at - cache)
        }
    }

    /// Returns the completion time of a flush that starts at `now`.
    pub(super) fn flush_ready(&self, now: Nanos) -> Nanos {
        match self.zero_latency {
            true => now,
            false => self.cache_drained_at.max(now) + self.config.flush_time,
        }
    }

    /// Returns the completion time of a command that starts at `now` and takes `time`.
    pub(super) fn ready_after(&self, now: Nanos, time: Nanos) -> Nanos {
        if self.zero_latency { now } else { now + time }
    }

    /// Drops the drive's commands; their reads and writes are not undone.
    pub(super) fn abort_commands(&mut self, now: Nanos) {
        self.processor_free_at = now;
        self.units_free_at.fill(now);
        self.link_free_at = now;
    }
}
