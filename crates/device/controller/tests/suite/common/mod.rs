//! Drives in virtual time for tests: a base configuration, host initialization, and runs.
#![allow(dead_code, unreachable_pub, reason = "not every test uses all of it")]

pub mod open_channel_host;

use std::path::Path;

use block::Raw;
use controller::{
    Controller, ControllerConfig, DriveConfig, NullConfig, OpenChannelConfig, PersonalityKind,
    PuScheduling, WriteBuffer,
};
use driver::ControllerHandle;
use ftl::FtlConfig;
use media::{CellType, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};
use time::{Component, Nanos, VirtualRunner};
use workload::{IoCpuCosts, JobRunner, JobSpec, RunResult};

/// A small SLC drive: 4 channels of 4 PUs, 4 KiB pages of one sector.
pub fn nand() -> NandConfig {
    NandConfig {
        geometry: NandGeometry {
            channels: 4,
            pus: 4,
            planes: 1,
            chunks: 64,
            pages: 64,
            page_bytes: 4096,
            sector_bytes: 4096,
            oob_bytes: 16,
        },
        cell: CellType::Slc,
        one_shot: false,
        paired_page_distance: 0,
        timing: NandTiming::uniform(
            Nanos::from_micros(50),
            Nanos::from_micros(500),
            Nanos::from_millis(3),
            400_000_000,
        ),
        errors: ErrorModel::default(),
        data: DataStore::None,
        seed: 1,
    }
}

pub fn drive(nand: NandConfig) -> DriveConfig {
    DriveConfig {
        name: "test".into(),
        personality: PersonalityKind::Block,
        media: MediaConfig::Nand(nand),
        controller: ControllerConfig::default(),
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        cache_program: true,
        transfers: controller::TransferConfig::default(),
        write_buffer: WriteBuffer::Volatile { bytes: 0 },
        // The closed forms count only data.
        ftl: FtlConfig { over_provisioning: 0.28, ..DriveConfig::default_ftl() },
        null: NullConfig::default(),
        open_channel: OpenChannelConfig::default(),
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
    }
}

/// Initializes a host on a drive, without advancing time.
pub fn attach(drive: &mut Controller) -> (ControllerHandle, std::sync::Arc<transport::Port>) {
    let port = drive.attach().unwrap();
    let controller = ControllerHandle::connect(
        port.clone(),
        &mut || {
            drive.poll(Nanos::ZERO);
        },
        1_000_000,
    );
    (controller.unwrap(), port)
}

pub fn raw(drive: &mut Controller, depth: u16) -> Raw {
    let (mut controller, port) = attach(drive);
    let queue = controller
        .create_queue_pair(depth, None, &mut || {
            drive.poll(Nanos::ZERO);
        })
        .unwrap();
    Raw::from_pair(controller.info(), queue, port).unwrap()
}

pub fn job(pairs: &[(&str, &str)]) -> JobSpec {
    let pairs = pairs.iter().enumerate().map(|(i, (k, v))| (*k, *v, i + 1));
    JobSpec::from_pairs("job", Path::new("test"), pairs).unwrap().0
}

/// Runs jobs to completion on a drive, from `runner`'s time.
pub fn run(drive: &mut Controller, runner: &mut VirtualRunner, jobs: Vec<JobSpec>) -> RunResult {
    let raw = raw(drive, 1024);
    let mut host = JobRunner::new(raw, jobs, IoCpuCosts::default(), 1).unwrap();
    while !host.is_done() {
        assert!(runner.step(&mut [&mut host, drive], Nanos::MAX) || host.is_done(), "stalled");
    }
    host.finish().unwrap()
}

/// Fills a drive and overwrites it `overwrites` times at random, without advancing time.
pub fn precondition(drive: &mut Controller, runner: &mut VirtualRunner, overwrites: f64) {
    drive.set_zero_latency(true);
    let mut jobs = vec![job(&[("rw", "write"), ("bs", "256k"), ("iodepth", "4")])];
    if overwrites > 0.0 {
        let bytes = (drive.sectors() as f64 * 4096.0 * overwrites) as u64 / 4096 * 4096;
        jobs.push(job(&[
            ("rw", "randwrite"),
            ("bs", "4k"),
            ("iodepth", "64"),
            ("norandommap", "1"),
            ("stonewall", "1"),
            ("io_size", &bytes.to_string()),
        ]));
    }
    run(drive, runner, jobs);
    drive.set_zero_latency(false);
    drive.reset_stats();
}
