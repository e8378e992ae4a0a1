//! [`SimulatedDrive`]: one drive with its host in virtual time, and the CPU time that jobs on it take.

use std::path::Path;

use scenario::Scenario;
use stack::{RunObserver, Stack, co_simulate, precondition};
use time::VirtualRunner;
use workload::{IoCpuCosts, JobRunner, JobSpec};

use super::super::{BenchError, Samples};

/// Seed of preconditioning and jobs.
const SEED: u64 = 1;

/// Shape of a drive: MQSim's default with other numbers of parallel units, chunks and pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct DriveShape {
    pub(super) channels: u32,
    /// Parallel units per channel.
    pub(super) pus: u32,
    /// Chunks per plane.
    pub(super) chunks: u32,
    /// Pages per chunk and plane.
    pub(super) pages: u32,
    /// Parallel units that are written at a time; 0 for all.
    pub(super) active_pus: u32,
    /// Size of the write buffer in MiB.
    pub(super) write_buffer: u32,
}

impl DriveShape {
    /// Returns the keys of a section `[drive]`.
    pub(super) fn keys(&self) -> String {
        let DriveShape { channels, pus, chunks, pages, active_pus, write_buffer } = self;
        format!(
            "preset = \"mqsim-default\"\ndata = \"none\"\n\
             geometry = {{ channels = {channels}, pus = {pus}, chunks = {chunks}, pages = {pages} }}\n\
             write_buffer = {{ size = \"{write_buffer}M\" }}\n\
             ftl = {{ active_pus = {active_pus} }}\n"
        )
    }
}

/// Requests of the jobs that are measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobLoad {
    /// `randread` or `randwrite`.
    pub(super) rw: &'static str,
    pub(super) jobs: u32,
    /// Outstanding requests of each job.
    pub(super) depth: u32,
    /// Requests of all jobs.
    pub(super) ios: u64,
}

impl JobLoad {
    /// Returns the job options, as fio names them. All jobs together transfer [`JobLoad::ios`] requests.
    pub(super) fn options(&self) -> [(&'static str, String); 6] {
        let bytes = (self.ios / u64::from(self.jobs)).max(1) * 4096;
        [
            ("rw", self.rw.to_owned()),
            ("bs", "4k".to_owned()),
            ("iodepth", self.depth.to_string()),
            ("numjobs", self.jobs.to_string()),
            ("norandommap", "1".to_owned()),
            ("io_size", bytes.to_string()),
        ]
    }
}

/// Cost of a load.
#[derive(Clone, Debug)]
pub(super) struct SimulationCost {
    /// CPU time per request, in nanoseconds.
    pub(super) per_io: Samples,
    /// CPU time per sector that was read, or programmed for the host or for garbage collection, in
    /// nanoseconds.
    pub(super) per_sector: Samples,
    /// Programmed sectors per written sector.
    pub(super) write_amplification: Option<f64>,
}

/// A drive with its host.
pub(super) struct SimulatedDrive {
    stack: Stack,
    runner: VirtualRunner,
}

impl SimulatedDrive {
    /// Builds a drive and fills it sequentially.
    pub(super) fn filled(shape: &DriveShape) -> Result<SimulatedDrive, BenchError> {
        let scenario = scenario(shape, "fill = \"sequential\"")?;
        let stack = Stack::build(&scenario.drives[0], None).map_err(setup)?;
        let mut runner = VirtualRunner::new();
        let what = &scenario.precondition;
        let stack = precondition(stack, what, &mut runner, SEED, &mut |_| {}).map_err(setup)?;
        Ok(SimulatedDrive { stack, runner })
    }

    /// Overwrites a share of the drive at random, with zero-latency media.
    pub(super) fn overwritten(
        self,
        shape: &DriveShape,
        share: f64,
    ) -> Result<SimulatedDrive, BenchError> {
        let scenario = scenario(shape, &format!("overwrite = \"random {share}x\""))?;
        let what = &scenario.precondition;
        let SimulatedDrive { stack, mut runner } = self;
        let stack = precondition(stack, what, &mut runner, SEED, &mut |_| {}).map_err(setup)?;
        Ok(SimulatedDrive { stack, runner })
    }

    /// Runs the load `samples` times, after a quarter of it as warm-up, and measures the CPU time of this thread.
    pub(super) fn measure(
        &mut self,
        load: JobLoad,
        samples: usize,
    ) -> Result<SimulationCost, BenchError> {
        self.run(JobLoad { ios: load.ios / 4, ..load }, 0)?;
        let (mut per_io, mut per_sector) = (Vec::new(), Vec::new());
        let before = self.stack.ftl_stats();
        for sample in 1..=samples {
            let counted = self.stack.ftl_stats();
            let (ios, nanos) = self.run(load, sample as u64)?;
            let amplification = self.amplification_since(counted).unwrap_or(1.0);
            per_io.push(nanos / ios as f64);
            per_sector.push(nanos / ios as f64 / amplification);
        }
        let samples = |values| {
            Samples::new(values).ok_or_else(|| BenchError::Setup("no requests".to_owned()))
        };
        Ok(SimulationCost {
            per_io: samples(per_io)?,
            per_sector: samples(per_sector)?,
            write_amplification: self.amplification_since(before),
        })
    }

    fn amplification_since(&mut self, before: Option<ftl::FtlStats>) -> Option<f64> {
        self.stack.ftl_stats()?.since(&before?).write_amplification()
    }

    /// Runs a load once. Returns the number of requests, and the CPU time in nanoseconds.
    fn run(&mut self, load: JobLoad, seed: u64) -> Result<(u64, f64), BenchError> {
        let options = load.options();
        let pairs =
            options.iter().zip(1..).map(|((key, value), line)| (*key, value.as_str(), line));
        let (job, _) = JobSpec::from_pairs("load", Path::new("bench"), pairs).map_err(setup)?;
        let costs = IoCpuCosts::default();
        let Stack { device, drive, .. } = &mut self.stack;
        let mut host = JobRunner::new(device, vec![job], costs, SEED + seed).map_err(setup)?;
        let begun = event::thread_cpu_time();
        co_simulate(&mut self.runner, &mut host, drive, RunObserver::new(&mut |_, _, _| true));
        let nanos = event::thread_cpu_time().since(begun).0 as f64;
        let result = host.finish().map_err(setup)?;
        let ios = result.jobs.iter().map(|job| job.requests.completed).sum();
        Ok((ios, nanos))
    }
}

fn scenario(shape: &DriveShape, state: &str) -> Result<Scenario, BenchError> {
    let text = format!("[drive]\n{}[precondition]\n{state}\n", shape.keys());
    Scenario::parse(Path::new("bench"), &text).map_err(setup)
}

pub(super) fn setup(error: impl std::error::Error) -> BenchError {
    BenchError::Setup(error.to_string())
}
