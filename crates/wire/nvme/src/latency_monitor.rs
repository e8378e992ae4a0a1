//! [`LatencyMonitorLog`] and [`LatencyMonitorFeature`]: the latency monitor of data center drives
//! [OCP2.0 §4.8.9, §4.15.4].

// guarantee: D-57

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::wire::wire;

/// Identifier of the latency monitor's log page.
pub const LATENCY_MONITOR: u8 = 0xc3;
/// Buckets of the latency monitor.
pub const LATENCY_BUCKETS: usize = 4;

/// The kinds of commands that the latency monitor counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitoredKind {
    /// Reads.
    Read = 0,
    /// Writes.
    Write = 1,
    /// Deallocations: Dataset Management.
    Deallocate = 2,
}

impl MonitoredKind {
    /// All kinds, in the order of the bits of a bucket.
    pub const ALL: [MonitoredKind; 3] =
        [MonitoredKind::Read, MonitoredKind::Write, MonitoredKind::Deallocate];
}

/// The counters of one bucket, 16 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct LatencyBucketCounters {
    /// Reserved (bytes 3:0).
    pub reserved: U32,
    /// Deallocations (bytes 7:4).
    pub deallocates: U32,
    /// Writes (bytes 11:8).
    pub writes: U32,
    /// Reads (bytes 15:12).
    pub reads: U32,
}

/// A half of the log page: the buckets that count now, or those of the last full period.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct LatencyMonitorBuckets {
    /// Counters of buckets 0 to 3 (bytes 63:0).
    pub counters: [LatencyBucketCounters; LATENCY_BUCKETS],
    /// Time stamps in milliseconds, of bucket 3 first, and of deallocations, writes and reads in
    /// this order; all ones without one (bytes 159:64).
    pub stamps: [[U64; 3]; LATENCY_BUCKETS],
    /// Measured latencies in milliseconds, in the order of the stamps (bytes 183:160).
    pub latencies: [[U16; 3]; LATENCY_BUCKETS],
    /// Units of the stamps, a bit for each kind and bucket: 0 since power-on (bytes 185:184).
    pub stamp_units: U16,
    /// Reserved (bytes 207:186).
    pub reserved: [u8; 22],
}

/// Log page C3h, 512 bytes [OCP2.0 §4.8.9].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct LatencyMonitorLog {
    /// Status of the feature (byte 0), bits [`ENABLED`](LatencyMonitorLog::ENABLED) and following.
    pub status: u8,
    /// Reserved (byte 1).
    pub reserved1: u8,
    /// Age of the active buckets in units of 5 minutes (bytes 3:2).
    pub timer: U16,
    /// Value of the timer at which the active buckets become the static ones (bytes 5:4).
    pub timer_threshold: U16,
    /// Thresholds A to D, in units of 5 ms, less one (bytes 9:6).
    pub thresholds: [u8; LATENCY_BUCKETS],
    /// Mode of stamps and latencies, a bit for each kind and bucket (bytes 11:10).
    pub modes: U16,
    /// Minimum time between two stamps, in units of 100 ms (byte 12).
    pub window: u8,
    /// Reserved (bytes 31:13).
    pub reserved13: [u8; 19],
    /// The active buckets (bytes 239:32).
    pub active: LatencyMonitorBuckets,
    /// The static buckets (bytes 447:240).
    pub frozen: LatencyMonitorBuckets,
    /// Debug log: trigger enable, measured latency, stamp, pointer, trigger source, stamp units
    /// (bytes 464:448).
    pub debug: [u8; 17],
    /// Reserved (bytes 493:465).
    pub reserved465: [u8; 29],
    /// Version of the page (bytes 495:494).
    pub page_version: U16,
    /// Identifier of the page's format (bytes 511:496).
    pub guid: [u8; 16],
}

wire!(LatencyMonitorLog, 512);

impl LatencyMonitorBuckets {
    /// The value of a stamp that does not exist.
    pub const NO_STAMP: u64 = u64::MAX;

    /// Returns buckets that have counted nothing.
    pub fn new() -> LatencyMonitorBuckets {
        let mut buckets = LatencyMonitorBuckets::new_zeroed();
        buckets.stamps = [[LatencyMonitorBuckets::NO_STAMP.into(); 3]; LATENCY_BUCKETS];
        buckets
    }

    /// Returns the counter of a bucket.
    pub fn counter(&self, bucket: usize, kind: MonitoredKind) -> u32 {
        let counters = &self.counters[bucket];
        match kind {
            MonitoredKind::Read => counters.reads.get(),
            MonitoredKind::Write => counters.writes.get(),
            MonitoredKind::Deallocate => counters.deallocates.get(),
        }
    }

    /// Counts a command in a bucket. A counter stays at its maximum.
    pub fn count(&mut self, bucket: usize, kind: MonitoredKind) {
        let counters = &mut self.counters[bucket];
        let counter = match kind {
            MonitoredKind::Read => &mut counters.reads,
            MonitoredKind::Write => &mut counters.writes,
            MonitoredKind::Deallocate => &mut counters.deallocates,
        };
        *counter = counter.get().saturating_add(1).into();
    }

    /// Returns the stamp and the measured latency of a bucket, both in milliseconds; `None` before
    /// the first.
    pub fn stamp(&self, bucket: usize, kind: MonitoredKind) -> Option<(u64, u16)> {
        let (row, column) = (LATENCY_BUCKETS - 1 - bucket, 2 - kind as usize);
        let stamp = self.stamps[row][column].get();
        (stamp != LatencyMonitorBuckets::NO_STAMP)
            .then(|| (stamp, self.latencies[row][column].get()))
    }

    /// Sets the stamp and the measured latency of a bucket.
    pub fn set_stamp(&mut self, bucket: usize, kind: MonitoredKind, stamp: u64, latency: u16) {
        let (row, column) = (LATENCY_BUCKETS - 1 - bucket, 2 - kind as usize);
        self.stamps[row][column] = stamp.into();
        self.latencies[row][column] = latency.into();
    }
}

impl Default for LatencyMonitorBuckets {
    fn default() -> LatencyMonitorBuckets {
        LatencyMonitorBuckets::new()
    }
}

impl LatencyMonitorLog {
    /// The monitor is enabled.
    pub const ENABLED: u8 = 1 << 0;
    /// Mode 1 of stamps is supported.
    pub const MODE_1: u8 = 1 << 1;
    /// Measured latencies are supported.
    pub const MEASURED: u8 = 1 << 2;
    /// The value of `guid`.
    pub const GUID: [u8; 16] = 0x85d4_5e58_d4e6_4370_9c6c_84d0_8cc0_7a92_u128.to_le_bytes();

    /// Returns a page of a monitor that is not enabled, with its version and identifier.
    pub fn new() -> LatencyMonitorLog {
        LatencyMonitorLog {
            status: LatencyMonitorLog::MODE_1 | LatencyMonitorLog::MEASURED,
            active: LatencyMonitorBuckets::new(),
            frozen: LatencyMonitorBuckets::new(),
            page_version: 1.into(),
            guid: LatencyMonitorLog::GUID,
            ..LatencyMonitorLog::new_zeroed()
        }
    }
}

impl Default for LatencyMonitorLog {
    fn default() -> LatencyMonitorLog {
        LatencyMonitorLog::new()
    }
}

/// The data of Set Features and Get Features with the identifier
/// [`feature::LATENCY_MONITOR`](crate::feature::LATENCY_MONITOR): the first 13 of 4096 bytes
/// [OCP2.0 §4.15.4].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct LatencyMonitorFeature {
    /// Age in units of 5 minutes at which the active buckets become the static ones; 0 for never
    /// (bytes 1:0).
    pub timer_threshold: U16,
    /// Thresholds A to D, in units of 5 ms, less one (bytes 5:2).
    pub thresholds: [u8; LATENCY_BUCKETS],
    /// Mode of stamps and latencies, a bit for each kind and bucket: 0 for the first command in a
    /// bucket, 1 for the slowest (bytes 7:6).
    pub modes: U16,
    /// Minimum time between two stamps, in units of 100 ms (byte 8).
    pub window: u8,
    /// Triggers of the debug log, a bit for each kind and bucket (bytes 10:9).
    pub debug_triggers: U16,
    /// 1 to discard the debug log (byte 11).
    pub discard_debug_log: u8,
    /// 1 to enable the monitor, 0 to disable it (byte 12).
    pub enable: u8,
}

wire!(LatencyMonitorFeature, 13);

impl LatencyMonitorFeature {
    /// Bytes of data that the commands transfer.
    pub const DATA_BYTES: usize = 4096;
    /// The settings of a drive at power-on, as nvme-cli has them, and disabled.
    pub const DEFAULT: LatencyMonitorFeature = LatencyMonitorFeature {
        timer_threshold: U16::new(0x07e0),
        thresholds: [0x05, 0x13, 0x1e, 0x2e],
        modes: U16::new(0x0fff),
        window: 0x0a,
        debug_triggers: U16::ZERO,
        discard_debug_log: 0,
        enable: 0,
    };

    /// Returns whether a kind of command has mode 1 in a bucket.
    pub fn is_mode_1(&self, bucket: usize, kind: MonitoredKind) -> bool {
        self.modes.get() >> (3 * bucket + kind as usize) & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// The offsets are those that nvme-cli reads.
    #[test]
    fn the_layout_of_the_page_is_that_of_the_specification() {
        type Log = LatencyMonitorLog;
        type Buckets = LatencyMonitorBuckets;
        let (active, frozen) = (offset_of!(Log, active), offset_of!(Log, frozen));
        for (at, byte) in [
            (offset_of!(Log, status), 0),
            (offset_of!(Log, timer), 2),
            (offset_of!(Log, timer_threshold), 4),
            (offset_of!(Log, thresholds), 6),
            (offset_of!(Log, modes), 0x0a),
            (offset_of!(Log, window), 0x0c),
            (active, 0x20),
            (active + offset_of!(Buckets, stamps), 0x60),
            (active + offset_of!(Buckets, latencies), 0xc0),
            (active + offset_of!(Buckets, stamp_units), 0xd8),
            (frozen, 0xf0),
            (frozen + offset_of!(Buckets, stamps), 0x130),
            (frozen + offset_of!(Buckets, latencies), 0x190),
            (frozen + offset_of!(Buckets, stamp_units), 0x1a8),
            (offset_of!(Log, debug), 0x1c0),
            (offset_of!(Log, reserved465), 0x1d1),
            (offset_of!(Log, page_version), 0x1ee),
            (offset_of!(Log, guid), 0x1f0),
        ] {
            assert_eq!(at, byte);
        }
        let guid = [
            0x92, 0x7a, 0xc0, 0x8c, 0xd0, 0x84, 0x6c, 0x9c, 0x70, 0x43, 0xe6, 0xd4, 0x58, 0x5e,
            0xd4, 0x85,
        ];
        assert_eq!(LatencyMonitorLog::new().to_bytes()[496..], guid);
    }

    #[test]
    fn each_counter_and_stamp_has_its_place() {
        // Of bucket 1: counters from 0x30 on, stamps and latencies in row 2.
        for (kind, counter, stamp, latency) in [
            (MonitoredKind::Read, 0x3c, 0xa0, 0xd0),
            (MonitoredKind::Write, 0x38, 0x98, 0xce),
            (MonitoredKind::Deallocate, 0x34, 0x90, 0xcc),
        ] {
            let mut log = LatencyMonitorLog::new();
            assert_eq!(log.active.stamp(1, kind), None);
            log.active.count(1, kind);
            log.active.set_stamp(1, kind, 0x0102, 0x0304);
            assert_eq!(log.active.counter(1, kind), 1);
            assert_eq!(log.active.stamp(1, kind), Some((0x0102, 0x0304)));
            let (bytes, empty) = (log.to_bytes(), LatencyMonitorLog::new().to_bytes());
            let changed: Vec<_> = (0..512).filter(|i| bytes[*i] != empty[*i]).collect();
            let stamp: Vec<_> = (stamp..stamp + 8).collect();
            assert_eq!(changed, [&[counter], &stamp[..], &[latency, latency + 1]].concat());
        }
    }

    #[test]
    fn the_layout_of_the_feature_is_that_of_the_specification() {
        let bytes = [0xe0, 0x07, 5, 0x13, 0x1e, 0x2e, 0xff, 0x0f, 0x0a, 0, 0, 0, 0];
        assert_eq!(LatencyMonitorFeature::DEFAULT.to_bytes(), bytes);
        let modes = U16::new(1 << 4);
        let feature = LatencyMonitorFeature { modes, ..LatencyMonitorFeature::DEFAULT };
        for bucket in 0..LATENCY_BUCKETS {
            for kind in MonitoredKind::ALL {
                let is_set = bucket == 1 && kind == MonitoredKind::Write;
                assert_eq!(feature.is_mode_1(bucket, kind), is_set);
            }
        }
    }
}
