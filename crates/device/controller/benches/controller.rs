//! Nanoseconds per simulated I/O, end to end in virtual time: a workload, a raw device, a driver's
//! queue pair, and a drive that stores no data. The drive has the shape and timing of MQSim's
//! default one, with fewer blocks so that it is ready in seconds.
//!
//! `SLUICE_BLOCKS` sets the blocks per plane (MQSim: 2048).

#[path = "../tests/suite/common/mod.rs"]
mod common;

use controller::{Controller, DriveConfig, PuScheduling};
use divan::Bencher;
use divan::counter::ItemsCount;
use ftl::FtlConfig;
use media::{CellType, NandConfig, NandGeometry, NandTiming};
use time::{Nanos, VirtualRunner};
use workload::{IoCpuCosts, JobRunner};

fn main() {
    divan::main();
}

fn config(blocks: u32) -> DriveConfig {
    let timing = NandTiming::uniform(
        Nanos::from_micros(75),
        Nanos::from_micros(750),
        Nanos::from_micros(3_800),
        333_000_000,
    );
    let geometry = NandGeometry {
        channels: 8,
        pus: 8,
        planes: 2,
        chunks: blocks,
        pages: 256,
        page_bytes: 8192,
        sector_bytes: 4096,
        oob_bytes: 16,
    };
    DriveConfig {
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        ftl: FtlConfig { over_provisioning: 0.07, ..DriveConfig::default_ftl() },
        ..common::drive(NandConfig { geometry, timing, cell: CellType::Slc, ..common::nand() })
    }
}

/// An endless job on a full drive that was overwritten a given number of times.
struct Run {
    drive: Controller,
    host: JobRunner<block::Raw>,
    runner: VirtualRunner,
}

impl Run {
    fn new(rw: &str, blocks: u32, overwrites: f64) -> Run {
        let blocks =
            std::env::var("SLUICE_BLOCKS").ok().and_then(|s| s.parse().ok()).unwrap_or(blocks);
        let mut runner = VirtualRunner::new();
        let config = config(blocks);
        let mut drive = Controller::new(config).unwrap();
        common::precondition(&mut drive, &mut runner, overwrites);
        let pairs = [
            ("rw", rw),
            ("bs", "4k"),
            ("iodepth", "64"),
            ("norandommap", "1"),
            ("runtime", "100000s"),
            ("time_based", "1"),
        ];
        let raw = common::raw(&mut drive, 1024);
        let host =
            JobRunner::new(raw, vec![common::job(&pairs)], IoCpuCosts::default(), 1).unwrap();
        Run { drive, host, runner }
    }

    fn advance(&mut self, time: Nanos) {
        let until = self.runner.now() + time;
        self.runner.run_until_time(&mut [&mut self.host, &mut self.drive], until);
    }

    fn commands_done(&self) -> u64 {
        let stats = self.drive.stats();
        stats.reads + stats.writes
    }

    /// Measures intervals of `time` of simulated time.
    fn measure(mut self, bencher: Bencher<'_, '_>, time: Nanos) {
        self.advance(time * 20);
        let before = self.commands_done();
        self.advance(time * 20);
        let each = (self.commands_done() - before) / 20;
        bencher.counter(ItemsCount::new(each)).bench_local(|| self.advance(time));
    }
}

#[divan::bench(sample_count = 30, sample_size = 1)]
fn random_read_qd64(bencher: Bencher<'_, '_>) {
    Run::new("randread", 256, 0.0).measure(bencher, Nanos::from_millis(100));
}

#[divan::bench(sample_count = 30, sample_size = 1)]
fn random_overwrite_qd64(bencher: Bencher<'_, '_>) {
    Run::new("randwrite", 64, 1.5).measure(bencher, Nanos::from_millis(1_000));
}
