//! Drives that run their own events up to an instant in one call, as simulations do
//! ([`Controller::run_before`]).

// guarantee: B-76

use crate::common;

use common::{drive, job, nand, precondition, raw};
use controller::{Controller, DriveConfig, MediaScrubConfig, PuScheduling, SuspendConfig};
use controller::{TransferConfig, WriteBuffer};
use media::{CellType, ErrorModel, NandConfig};
use time::{Component, Nanos, VirtualRunner};
use workload::{IoCpuCosts, JobRunner, JobSpec, RunResult};

/// Drives with collection of garbage, with stages before and behind the flash, and with media events.
fn drives() -> Vec<DriveConfig> {
    let mut small = nand();
    small.geometry.chunks = 24;
    let plain = drive(small.clone());
    let mut staged = drive(NandConfig { cell: CellType::Mlc, ..small.clone() });
    staged.pu_scheduling = PuScheduling::ReadPriority {
        suspend: Some(SuspendConfig {
            suspend: Nanos(5_000),
            resume: Nanos(7_000),
            max_per_operation: 3,
        }),
    };
    staged.page_register = true;
    staged.transfers = TransferConfig { cache_read: true, by_page: true, ..staged.transfers };
    staged.controller.fetch_latency = Nanos(1_100);
    staged.controller.completion_latency = Nanos(900);
    staged.controller.dma_bytes_per_sec = 1_000_000_000;
    staged.write_buffer = WriteBuffer::PowerLossProtected { bytes: 1 << 20 };
    let errors = ErrorModel {
        rber: 1e-3,
        ecc_bits: 40,
        read_retries: 4,
        program_fail: 1e-4,
        disturb_reads: 2_000,
        ..ErrorModel::default()
    };
    let mut weak = drive(NandConfig { errors, ..small });
    weak.controller.scrub =
        Some(MediaScrubConfig { sectors_per_sec: 5_000, pass_interval_min: Nanos::from_millis(1) });
    weak.pu_scheduling = PuScheduling::ReadPriority { suspend: None };
    vec![plain, staged, weak]
}

fn jobs() -> Vec<JobSpec> {
    let mixed = [
        ("rw", "randrw"),
        ("rwmixread", "60"),
        ("bssplit", "4k/70:12k/30"),
        ("iodepth", "24"),
        ("norandommap", "1"),
        ("continue_on_error", "all"),
        ("fsync", "50"),
        ("io_size", "6m"),
    ];
    vec![job(&mixed), job(&[("rw", "randread"), ("bs", "4k"), ("number_ios", "300")])]
}

fn new_host(drive: &mut Controller) -> JobRunner<block::Raw> {
    precondition(drive, &mut VirtualRunner::new(), 1.2);
    JobRunner::new(raw(drive, 256), jobs(), IoCpuCosts::default(), 7).unwrap()
}

/// Returns the results and counters of a drive that is polled at each of its deadlines.
fn polled(config: DriveConfig) -> (RunResult, String) {
    let mut drive = Controller::new(config).unwrap();
    let mut host = new_host(&mut drive);
    let mut runner = VirtualRunner::new();
    while !host.is_done() {
        let moves = runner.step(&mut [&mut host, &mut drive], Nanos::MAX);
        assert!(moves || host.is_done(), "stalled");
    }
    (host.finish().unwrap(), format!("{:?}", drive.stats()))
}

/// Returns those of a drive that runs up to the host's deadlines, at most `span` at a time.
fn run_ahead(config: DriveConfig, span: Nanos) -> (RunResult, String) {
    let mut drive = Controller::new(config).unwrap();
    let mut host = new_host(&mut drive);
    let mut now = Nanos::ZERO;
    loop {
        while host.poll(now) | drive.poll(now) {}
        if host.is_done() {
            break;
        }
        let (wanted, posted) = (host.deadline(), drive.posted());
        let mut limit = now + span;
        now = loop {
            let due = drive.run_before(limit.min(wanted));
            if drive.posted() != posted {
                assert!(due < limit.min(wanted), "{due} is not before the limit");
                break due;
            }
            assert!(due >= limit.min(wanted), "{due} is before the limit");
            if due >= wanted {
                break wanted;
            }
            limit = due + span;
        };
        assert!(now < Nanos::MAX, "stalled");
    }
    (host.finish().unwrap(), format!("{:?}", drive.stats()))
}

#[test]
fn a_drive_that_runs_ahead_has_the_results_of_one_that_is_polled() {
    for (number, config) in drives().into_iter().enumerate() {
        let (exact, stats) = polled(config.clone());
        assert!(exact.jobs.iter().all(|job| job.requests.completed > 299), "{number}");
        for span in [Nanos(1), Nanos(33_333), Nanos::MAX] {
            let (ahead, counters) = run_ahead(config.clone(), span);
            assert_eq!(counters, stats, "drive {number}, {span} at a time");
            assert_eq!(format!("{ahead:?}"), format!("{exact:?}"), "drive {number}, {span}");
        }
    }
}
