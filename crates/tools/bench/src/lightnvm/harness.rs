//! [`LightnvmHarness`]: a drive with a block device on it, on which jobs run in virtual time.
//!
//! It consists of the components of `sluice sim` and persists between runs, so that each run starts
//! from the state of the previous one. Guarantees: time advances from run to run. Equal scenarios,
//! jobs and seeds give equal results (ARCHITECTURE.md, R3). A failed request is an error and never
//! a result.

use std::path::Path;

use block::BlockDevice;
use scenario::{DriveSpec, Scenario};
use stack::{CoreQueues, RunObserver, Stack, co_simulate};
use time::{Nanos, VirtualRunner};
use workload::{IoCpuCosts, JobRunner, JobSpec, RunResult};

use super::super::BenchError;
use super::setup;

/// Seed of all random numbers.
const SEED: u64 = 1;

/// A drive, the block device on it, and virtual time.
#[derive(Debug)]
pub struct LightnvmHarness {
    /// The drive and the device.
    pub stack: Stack,
    /// Specification of the drive from the scenario.
    pub spec: DriveSpec,
    runner: VirtualRunner,
    /// The host's costs per request, from `[host]`.
    costs: IoCpuCosts,
}

impl LightnvmHarness {
    /// Powers on the drive of a scenario's text.
    ///
    /// # Errors
    /// If the scenario is invalid, or if the stack cannot be built.
    pub fn new(scenario: &str) -> Result<LightnvmHarness, BenchError> {
        let mut scenario = Scenario::parse(Path::new("bench"), scenario).map_err(setup)?;
        let plan = scenario.drives.remove(0);
        let stack = Stack::build(&plan, None).map_err(setup)?;
        let costs = IoCpuCosts {
            submit: scenario.host.submit_cost.unwrap_or_default(),
            complete: scenario.host.complete_cost.unwrap_or_default(),
        };
        Ok(LightnvmHarness { stack, spec: plan, runner: VirtualRunner::new(), costs })
    }

    /// Returns the current time.
    pub fn now(&self) -> Nanos {
        self.runner.now()
    }

    /// Processes all events that are due by `until`.
    ///
    /// # Errors
    /// If an unexpected request completes.
    pub fn run_until(&mut self, until: Nanos) -> Result<(), BenchError> {
        let LightnvmHarness { stack, runner, .. } = self;
        runner.run_until_time(&mut [&mut stack.device, &mut stack.drive], until);
        if stack.device.reap().is_some() { Err(BenchError::Thread("a rest")) } else { Ok(()) }
    }

    /// Runs jobs and advances time.
    ///
    /// # Errors
    /// If a job is invalid, if a request fails, or if the FTL could not program or read flash, which
    /// no request shows.
    pub fn run(&mut self, jobs: &[BenchJob<'_>]) -> Result<RunResult, BenchError> {
        let before = self.stack.ftl_stats();
        let LightnvmHarness { stack: Stack { drive, device, .. }, runner, costs, .. } = self;
        let result = run_on(device, drive, runner, *costs, jobs)?;
        if let (Some(before), Some(after)) = (before, self.stack.ftl_stats()) {
            let added = after.since(&before);
            let (programs, sectors) = (added.program_failures, added.uncorrectable_sectors);
            if programs + sectors > 0 {
                return Err(setup(format_args!(
                    "{programs} programs failed, {sectors} sectors are lost"
                )));
            }
        }
        Ok(result)
    }

    /// Runs jobs on the device that `wrap` returns for the harness's device.
    ///
    /// # Errors
    /// As for [`run`](LightnvmHarness::run).
    pub fn run_wrapped<'s, D: BlockDevice>(
        &'s mut self,
        jobs: &[BenchJob<'_>],
        wrap: impl FnOnce(&'s mut CoreQueues) -> D,
    ) -> Result<RunResult, BenchError> {
        let LightnvmHarness { stack: Stack { drive, device, .. }, runner, costs, .. } = self;
        run_on(wrap(device), drive, runner, *costs, jobs)
    }

    /// Runs jobs without advancing time, to precondition the device.
    ///
    /// # Errors
    /// As for [`run`](LightnvmHarness::run).
    pub fn run_in_zero_time(&mut self, jobs: &[BenchJob<'_>]) -> Result<RunResult, BenchError> {
        let costs = std::mem::take(&mut self.costs);
        self.stack.drive.set_zero_latency(true);
        let result = self.run(jobs);
        self.stack.drive.set_zero_latency(false);
        self.costs = costs;
        self.stack.drive.reset_stats();
        result
    }
}

/// A job: its name, and fio's options in the form `key=value`.
#[derive(Clone, Copy, Debug)]
pub struct BenchJob<'a>(pub &'a str, pub &'a str);

fn run_on<D: BlockDevice>(
    device: D,
    drive: &mut ::controller::Controller,
    runner: &mut VirtualRunner,
    costs: IoCpuCosts,
    jobs: &[BenchJob<'_>],
) -> Result<RunResult, BenchError> {
    let specs = jobs.iter().map(|BenchJob(name, options)| {
        let pairs = options.split_whitespace().filter_map(|word| word.split_once('='));
        let pairs = pairs.enumerate().map(|(i, (key, value))| (key, value, i + 1));
        JobSpec::from_pairs(name, Path::new("bench"), pairs).map(|(spec, _)| spec)
    });
    let specs: Vec<JobSpec> = specs.collect::<Result<_, _>>().map_err(setup)?;
    let mut host = JobRunner::new(device, specs, costs, SEED).map_err(setup)?;
    co_simulate(runner, &mut host, drive, RunObserver::new(&mut |_, _, _| true));
    let result = host.finish().map_err(setup)?;
    if let Some((job, failure)) = result.failures().next() {
        return Err(setup(format_args!("job {job}: {failure}")));
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::Direction;

    #[test]
    fn time_goes_on_from_run_to_run_and_results_repeat() {
        let once = || {
            let text =
                "[drive]\npreset = \"femu-default\"\ngeometry.chunks = 16\ndata = \"none\"\n";
            let mut harness = LightnvmHarness::new(text).unwrap();
            harness
                .run_in_zero_time(&[BenchJob("fill", "rw=write bs=256k size=64m iodepth=8")])
                .unwrap();
            assert_eq!(harness.now(), Nanos::ZERO);
            let read = BenchJob("read", "rw=randread bs=4k size=64m number_ios=1000");
            harness.run(&[read]).unwrap();
            let between = harness.now();
            assert!(between > Nanos::ZERO);
            let result = harness.run(&[read]).unwrap();
            assert!(harness.now() > between);
            (result.jobs[0].direction(Direction::Read).lat.clone(), harness.now())
        };
        assert_eq!(once(), once());
    }

    #[test]
    fn the_hosts_costs_take_time_except_in_zero_time() {
        let text = "[host]\nsubmit_cost = \"2us\"\ncomplete_cost = \"1us\"\n\
                    [drive]\npreset = \"nvme-null\"\nnull = { latency = 0, bandwidth = 0 }\n";
        let mut harness = LightnvmHarness::new(text).unwrap();
        let writes = BenchJob("write", "rw=write bs=4k iodepth=1 number_ios=100");
        harness.run_in_zero_time(&[writes]).unwrap();
        assert_eq!(harness.now(), Nanos::ZERO);
        harness.run(&[writes]).unwrap();
        // The run ends when the last completion has been found.
        assert_eq!(harness.now(), Nanos::from_micros(100 * 2 + 99));
    }

    #[test]
    fn a_write_that_fits_the_write_buffer_takes_no_time() {
        let mut harness = LightnvmHarness::new(&super::super::drive::pblk("", "")).unwrap();
        let one_at_a_time = BenchJob("write", "rw=write bs=4k iodepth=1 number_ios=8");
        let result = harness.run(&[one_at_a_time]).unwrap();
        let write = result.jobs[0].direction(Direction::Write);
        assert_eq!((write.ios, write.lat.max()), (8, Nanos::ZERO));
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        assert!(LightnvmHarness::new("[drive]\npreset = \"nonsense\"\n").is_err());
        let mut harness = LightnvmHarness::new("[drive]\npreset = \"nvme-null\"\n").unwrap();
        assert!(harness.run(&[BenchJob("a", "rw=sideways")]).is_err());
        assert!(harness.run(&[BenchJob("a", "rw=read offset=100t")]).is_err());
    }
}
