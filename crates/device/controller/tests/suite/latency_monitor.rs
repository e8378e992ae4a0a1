//! The latency monitor: its settings, its counters, and its log page.

// guarantee: D-57

use crate::common;
use crate::health::Host;

use block::{Payload, Request};
use common::{drive, nand};
use controller::{Controller, DriveConfig, DriveError, LatencyMonitorStats, WriteBuffer};
use media::{DataStore, NandConfig};
use nvme::{
    AdminCommand, FeatureSelect, LATENCY_MONITOR, LatencyMonitorFeature, LatencyMonitorLog,
    MonitoredKind, Status, feature,
};
use time::Nanos;

/// Reads take 7 ms and writes 25 ms.
fn slow() -> DriveConfig {
    let mut nand = NandConfig { data: DataStore::Memory, ..nand() };
    (nand.geometry.channels, nand.geometry.pus) = (1, 2);
    (nand.geometry.chunks, nand.geometry.pages) = (24, 16);
    nand.timing.read = [Nanos::from_millis(7); 4];
    nand.timing.program = [Nanos::from_millis(25); 4];
    DriveConfig { write_buffer: WriteBuffer::None, ..drive(nand) }
}

/// Thresholds of 5, 10, 20 and 40 ms.
fn settings() -> LatencyMonitorFeature {
    LatencyMonitorFeature {
        thresholds: [0, 1, 3, 7],
        timer_threshold: 1.into(),
        window: 0,
        enable: 1,
        ..LatencyMonitorFeature::DEFAULT
    }
}

impl Host {
    fn run(&mut self, command: AdminCommand) -> Status {
        self.admin.now = self.admin.now.max(self.io.runner.now());
        self.admin.run(&mut self.io.drive, command).status
    }

    fn set(&mut self, settings: LatencyMonitorFeature, save: bool) -> Status {
        self.admin.memory.write(0, &settings.to_bytes());
        self.run(AdminCommand::SetFeatures { fid: feature::LATENCY_MONITOR, save, value: 0 })
    }

    fn get(&mut self, select: FeatureSelect) -> LatencyMonitorFeature {
        let fid = feature::LATENCY_MONITOR;
        let command = AdminCommand::GetFeatures { fid, select, member: 0 };
        assert_eq!(self.run(command), Status::SUCCESS);
        let mut bytes = [0; LatencyMonitorFeature::BYTES];
        self.admin.memory.read(0, &mut bytes);
        LatencyMonitorFeature::from_bytes(bytes)
    }

    fn log(&mut self) -> LatencyMonitorLog {
        LatencyMonitorLog::from_bytes(self.log_page(LATENCY_MONITOR, u32::MAX))
    }

    fn stats(&self) -> LatencyMonitorStats {
        self.io.drive.stats().latency_monitor.expect("the monitor is enabled")
    }

    /// Two writes, three reads of other parallel units, and a trim.
    fn work(&mut self) {
        for lba in 0..2 {
            assert_eq!(self.io.write(lba), Status::SUCCESS);
        }
        for lba in [0, 1, 0] {
            let read = Request::read(lba, 1, Payload::BitBucket, 0);
            assert_eq!(self.io.run(read), Status::SUCCESS);
        }
        assert_eq!(self.io.run(Request::discard(5, 1, 0)), Status::SUCCESS);
    }
}

#[test]
fn the_counters_of_the_page_are_those_of_the_statistics() {
    let mut h = Host::new(slow());
    h.work();
    let log = h.log();
    assert_eq!(log.status, LatencyMonitorLog::MODE_1 | LatencyMonitorLog::MEASURED);
    assert_eq!(log.active.counter(0, MonitoredKind::Read), 0, "it is not enabled");
    assert!(h.io.drive.stats().latency_monitor.is_none());

    assert_eq!(h.set(settings(), false), Status::SUCCESS);
    let begun = h.io.runner.now();
    h.work();
    let (log, stats) = (h.log(), h.stats());
    assert_eq!(log.status & LatencyMonitorLog::ENABLED, LatencyMonitorLog::ENABLED);
    assert_eq!((log.thresholds, log.timer_threshold.get(), log.window), ([0, 1, 3, 7], 1, 0));
    assert_eq!(stats.thresholds, [5, 10, 20, 40].map(Nanos::from_millis));
    assert_eq!((stats.reads, stats.writes), ([3, 0, 0, 0], [0, 0, 2, 0]));
    assert_eq!(stats.deallocates, [0; 4], "a trim is faster than 5 ms");
    for bucket in 0..4 {
        for (kind, counts) in
            MonitoredKind::ALL.into_iter().zip([stats.reads, stats.writes, stats.deallocates])
        {
            assert_eq!(u64::from(log.active.counter(bucket, kind)), counts[bucket]);
            assert_eq!(log.active.stamp(bucket, kind).is_some(), counts[bucket] > 0);
        }
    }
    let (stamp, latency) = log.active.stamp(2, MonitoredKind::Write).unwrap();
    assert!(stamp > begun.0 / 1_000_000 && (25..30).contains(&latency), "{stamp} {latency}");
    assert_eq!(log.active.stamp(0, MonitoredKind::Read).unwrap().1, 7);

    // After five minutes the active buckets are the static ones.
    h.admin.now = h.io.runner.now() + Nanos(310_000_000_000);
    let later = h.log();
    assert_eq!(later.frozen, log.active);
    assert_eq!((later.active, later.timer.get()), (LatencyMonitorLog::new().active, 0));
    assert_eq!(h.stats(), stats, "the statistics are sums");
    h.admin.now += Nanos(700_000_000_000);
    assert_eq!(h.log().frozen, LatencyMonitorLog::new().frozen);

    // New settings start anew.
    assert_eq!(h.set(settings(), false), Status::SUCCESS);
    assert_eq!(h.stats().reads, [0; 4]);
    let disabled = LatencyMonitorFeature { enable: 0, ..settings() };
    assert_eq!(h.set(disabled, false), Status::SUCCESS);
    assert!(h.io.drive.stats().latency_monitor.is_none());
    assert_eq!(h.log().thresholds, [0, 1, 3, 7]);
}

#[test]
fn settings_that_the_monitor_cannot_have_are_refused() {
    let mut h = Host::new(slow());
    let good = settings();
    let status = h.set(good, true);
    assert_eq!(status, Status::FEATURE_NOT_SAVEABLE);
    for bad in [
        LatencyMonitorFeature { thresholds: [3, 2, 4, 5], ..good },
        LatencyMonitorFeature { thresholds: [3, 3, 4, 5], ..good },
        LatencyMonitorFeature { modes: 0x1000.into(), ..good },
        LatencyMonitorFeature { debug_triggers: 1.into(), ..good },
        LatencyMonitorFeature { discard_debug_log: 2, ..good },
        LatencyMonitorFeature { enable: 2, ..good },
    ] {
        assert_eq!(h.set(bad, false), Status::INVALID_FIELD.do_not_retry(), "{bad:?}");
        assert_eq!(h.get(FeatureSelect::Current), LatencyMonitorFeature::DEFAULT);
    }
    assert_eq!(
        h.set(LatencyMonitorFeature { discard_debug_log: 1, ..good }, false),
        Status::SUCCESS
    );
    assert_eq!(h.get(FeatureSelect::Current), good);
    assert_eq!(h.get(FeatureSelect::Default), LatencyMonitorFeature::DEFAULT);
    let (lid, nsid) = (LATENCY_MONITOR, 1);
    let log = AdminCommand::GetLogPage { lid, nsid, bytes: 512, offset: 0, retain: false };
    assert_eq!(h.run(log), Status::INVALID_NAMESPACE);
}

#[test]
fn a_drive_enables_the_monitor_at_power_on() {
    let mut config = slow();
    config.controller.latency_monitor = Some([5, 10, 20, 40].map(Nanos::from_millis));
    let mut h = Host::new(config.clone());
    h.work();
    // The first write to the new drive waits for the header of its line.
    assert_eq!((h.stats().reads, h.stats().writes), ([3, 0, 0, 0], [0, 0, 1, 1]));
    let log = h.log();
    assert_eq!(log.thresholds, [0, 1, 3, 7]);
    assert_eq!([2, 3].map(|bucket| log.active.counter(bucket, MonitoredKind::Write)), [1, 1]);
    for thresholds in [[5, 10, 20, 1_285], [0, 10, 20, 40], [5, 12, 20, 40], [20, 10, 30, 40]] {
        config.controller.latency_monitor = Some(thresholds.map(Nanos::from_millis));
        let refused = Controller::new(config.clone()).unwrap_err();
        assert!(matches!(&refused, DriveError::Config { what, .. } if what.contains("monitor")));
    }
}
