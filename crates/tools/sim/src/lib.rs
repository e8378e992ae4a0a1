//! Simulation of scenarios in virtual time, for `sluice sim`.
//!
//! [`simulate`] runs one scenario and returns a [`SimOutcome`]. [`to_json`] prints it in fio's
//! format, and [`to_variant`] converts it for the report.

#![forbid(unsafe_code)]

pub mod analytic;
mod drive_run;
mod error;
mod flush;
mod outcome;
mod output;
mod precondition_cache;
mod recording;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use block::{BlockDevice, Group};
use scenario::{JobTable, Scenario};
use stack::{
    CoreQueues, PreconditionMarker, RunObserver, Stack, co_simulate, image, is_fresh, precondition,
    stores_data, target_layers, with_overlay,
};
use time::{Component, Nanos, VirtualRunner};
use workload::{IoCpuCosts, JobRunner, JobSource, JobSpec};

pub use error::SimError;
pub use outcome::{DriveOutcome, SimOutcome};
pub use output::json::{to_json, to_text};
pub use output::json_schema::{JsonSchema, SCHEMA};
pub use output::parameters::parameters;
pub use output::report_variant::to_variant;
pub use output::result_notes::{Note, NoteCode};
pub use precondition_cache::PreconditionCache;
pub use recording::explanations::Explanation;
pub use recording::time_series::{FtlInterval, FtlSample, FtlTimeSeries, Timeline};
pub use stack::{BlockLayerCounts, CoreCounts, DispatchCounts, StagingCounts};

use drive_run::{DriveRun, drive_ftl_snapshot};
use recording::Recording;
use recording::time_series::Sampler;

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SimStage {
    /// Preconditioning of the drives; from 0 to 1.
    Preconditioning(f64),
    /// Execution of the jobs; from 0 to 1.
    Running(f64),
}

/// Options of a run.
#[derive(Default)]
pub struct SimOptions<'a> {
    /// Job files in addition to the scenario's own jobs.
    pub job_files: Vec<PathBuf>,
    /// Number of jobs in earlier runs. Logs of this run's jobs (`write_lat_log`) are numbered after
    /// theirs, so that no run overwrites the logs of another.
    pub jobs_before: usize,
    /// Perfetto trace to write.
    pub trace: Option<TraceOutput>,
    /// Directory for the block layer's events of each request, in blkparse's format.
    pub blktrace: Option<PathBuf>,
    /// Number of slowest requests of each drive to explain, with breakdowns of all requests; 0 for
    /// none.
    pub slowest: usize,
    /// Whether to modify the drives' images. Otherwise images are only read, and writes stay in
    /// memory.
    pub write_image: bool,
    /// Stops the jobs when it becomes true; the outcome covers the time until then.
    pub stop: Option<&'a AtomicBool>,
    /// Preconditioned drives that scenarios share.
    pub precondition_cache: Option<&'a mut PreconditionCache>,
    /// Called at intervals with the progress of the run.
    pub progress: Option<&'a mut dyn FnMut(SimStage)>,
}

/// A file that a trace is written to.
#[derive(Debug)]
pub struct TraceOutput {
    /// Name of the file in messages.
    pub name: PathBuf,
    /// The file or another writable object; writing starts at its current position.
    pub file: File,
    /// Whether the file is truncated first.
    pub truncate: bool,
}

impl TraceOutput {
    /// Creates or truncates the file.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn create(path: &Path) -> std::io::Result<TraceOutput> {
        Ok(TraceOutput { name: path.to_path_buf(), file: File::create(path)?, truncate: false })
    }
}

/// The jobs of one drive.
#[derive(Clone, Default)]
struct DriveJobs {
    specs: Vec<JobSpec>,
    /// Group of each job, with clones counted one by one.
    groups: Vec<Group>,
}

impl DriveJobs {
    fn push(&mut self, spec: JobSpec, group: Group) {
        self.groups.extend((0..spec.numjobs).map(|_| group));
        self.specs.push(spec);
    }
}

/// Returns the jobs of each drive of a scenario, and the job options without effect.
fn jobs(scenario: &Scenario, files: &[PathBuf]) -> Result<(Vec<DriveJobs>, Vec<String>), SimError> {
    let mut per_drive = vec![DriveJobs::default(); scenario.drives.len()];
    let mut ignored = Vec::new();
    let source = JobSource::new(&scenario.file, scenario.text.clone());
    for table in &scenario.jobs {
        let (spec, unused) = table.spec(&source)?;
        ignored.extend(unused);
        let drive = table.drive.as_ref().map_or(0, |(name, _)| {
            scenario.drives.iter().position(|d| d.config.name == *name).unwrap_or(0)
        });
        if spec.integrity.verify && !stores_data(&scenario.drives[drive]) {
            return Err(verify_without_data(scenario, table, drive));
        }
        per_drive[drive].push(spec, table.group);
    }
    let named = scenario.job_files.iter().map(|(path, _)| path);
    for file in named.chain(files) {
        let parsed = workload::parse_job_file(file)?;
        ignored.extend(parsed.ignored);
        // A job file does not name drives: every drive runs it.
        for (jobs, plan) in per_drive.iter_mut().zip(&scenario.drives) {
            for spec in &parsed.jobs {
                if spec.integrity.verify && !stores_data(plan) {
                    let (job, drive) = (spec.name.clone(), plan.config.name.clone());
                    return Err(SimError::VerifyWithoutData { job, drive });
                }
                jobs.push(spec.clone(), Group(0));
            }
        }
    }
    if per_drive.iter().all(|jobs| jobs.specs.is_empty()) {
        return Err(SimError::NoJobs { file: scenario.file.clone() });
    }
    ignored.sort();
    ignored.dedup();
    Ok((per_drive, ignored))
}

/// Returns the error of a job that cannot verify, with its location.
fn verify_without_data(scenario: &Scenario, table: &JobTable, drive: usize) -> SimError {
    let line = table.pairs.iter().find(|(key, _, _)| key == "verify").map_or(table.line, |p| p.2);
    let drive = &scenario.drives[drive].config.name;
    let message = format!("job {} verifies, and drive {drive} keeps no data to verify", table.name);
    let help = "set data = \"memory\" or \"file\" in the drive, or remove `verify`".into();
    scenario.conflict_in_line(line, message, help).into()
}

/// Number of steps between two updates of progress and trace.
const STRIDE: u32 = 1024;

/// Runs a scenario in virtual time. The outcome depends only on the scenario and the seed, on every
/// machine (ARCHITECTURE.md, R3).
///
/// ```
/// use std::path::Path;
/// use scenario::Scenario;
/// use sluice_sim::{SimOptions, simulate};
///
/// let text = r#"
/// [drive]
/// preset = "femu-default"
/// geometry.chunks = 16
///
/// [precondition]
/// fill = "sequential"
///
/// [[job]]
/// name = "readers"
/// rw = "randread"
/// bs = "4k"
/// size = "4m"
/// "#;
/// let scenario = Scenario::parse(Path::new("example.toml"), text)?;
/// let outcome = simulate(&scenario, SimOptions::default())?;
/// let read = &outcome.drives[0].run.jobs[0].directions[0];
/// assert_eq!(read.ios, 1024);
/// // 40 us array read; this preset's channel takes no time.
/// assert_eq!(read.clat.mean(), 40_000.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`SimError`]. Failed requests are not errors: they are in the outcome.
pub fn simulate(scenario: &Scenario, mut options: SimOptions<'_>) -> Result<SimOutcome, SimError> {
    let (mut per_drive, ignored) = jobs(scenario, &options.job_files)?;
    if options.blktrace.is_some() && scenario.path.block_layer.is_none() {
        return Err(SimError::NoBlockLayer { file: scenario.file.clone() });
    }
    let costs = IoCpuCosts {
        submit: scenario.host.submit_cost.unwrap_or_default(),
        complete: scenario.host.complete_cost.unwrap_or_default(),
    };
    let mut runner = VirtualRunner::new();
    let mut lanes = Vec::new();
    let count = scenario.drives.len() as f64;
    let mut from_images = Vec::new();
    // fio has no drives: logs are numbered over the jobs of all drives.
    let mut next_log = options.jobs_before + 1;
    for (i, plan) in scenario.drives.iter().enumerate() {
        let keeps_image = options.write_image && image(plan).is_some();
        let fresh = is_fresh(plan);
        let failed =
            |source| SimError::PreconditionMarker { drive: plan.config.name.clone(), source };
        let mark = (keeps_image && fresh)
            .then(|| PreconditionMarker::set(plan))
            .transpose()
            .map_err(failed)?;
        let now = runner.now();
        let shared = options.precondition_cache.as_mut().filter(|_| fresh);
        let shared = shared.and_then(|states| states.take(scenario, plan, now));
        let is_shared = shared.is_some();
        let stack = match (shared, options.write_image) {
            (Some(stack), _) => Ok(stack),
            (None, true) => Stack::build(plan, None),
            (None, false) => Stack::build(&with_overlay(plan), None),
        };
        let (stack, mark) = match (stack, mark) {
            (Ok(stack), mark) => (stack, mark),
            (Err(error), mark) => {
                // A newly created image is incomplete until the end, and keeps its marker until
                // then.
                let mark = mark.filter(|_| image(plan).is_none_or(|image| !image.exists()));
                mark.map_or(Ok(()), PreconditionMarker::remove).map_err(failed)?;
                return Err(error.into());
            }
        };
        // Check the jobs before preconditioning, which may take long.
        workload::check_jobs(&per_drive[i].specs, stack.device.limits())?;
        let mut tell = |part: f64| {
            if let Some(progress) = &mut options.progress {
                progress(SimStage::Preconditioning((i as f64 + part) / count));
            }
        };
        let what = &scenario.precondition;
        let stack = match fresh {
            true if is_shared => stack,
            true => {
                let stack = precondition(stack, what, &mut runner, scenario.seed, &mut tell)?;
                if let Some(states) = &mut options.precondition_cache {
                    states.insert(scenario, plan, &stack, runner.now());
                }
                stack
            }
            // Never precondition an image that holds a user's data.
            false => {
                from_images.push(plan.config.name.as_str());
                stack
            }
        };
        mark.map_or(Ok(()), PreconditionMarker::remove).map_err(failed)?;
        let mut stack = match &scenario.path.block_layer {
            Some(layer) => stack.with_block_layer(layer, runner.now(), false)?,
            None => stack,
        };
        let ftl_before = stack.ftl_stats();
        let media_before = stack.drive.stats().media;
        let shards_before = target_layers::shard_counts(&mut stack.device);
        let Stack { drive, mut device, steady, .. } = stack;
        let DriveJobs { specs, groups } = std::mem::take(&mut per_drive[i]);
        if let Some(layer) = device.block_layer_mut() {
            layer.set_groups(groups);
        }
        let (mut host, mut idle) = (None, None);
        if specs.is_empty() {
            idle = Some(device);
        } else {
            let seed = scenario.seed.wrapping_add(i as u64);
            let mut with_jobs = JobRunner::new(device, specs, costs, seed)?;
            next_log = with_jobs.open_logs(next_log)?;
            host = Some(with_jobs);
        }
        let name = plan.config.name.clone();
        lanes.push(DriveRun {
            index: i as u16,
            name,
            drive,
            host,
            idle,
            ftl_before,
            media_before,
            shards_before,
            persist_image: keeps_image,
            steady,
        });
    }
    let mut recording = Recording::start(scenario, &mut options, &mut lanes)?;
    let started = runner.now();
    let mut sampler = Sampler::start(started, &mut lanes);
    let partial = run(&mut runner, &mut lanes, &mut recording, &mut sampler, &mut options)?;
    let (untraced, explanations) = recording.finish(&mut lanes)?;
    let elapsed = runner.now().since(started);
    let over_time = sampler.finish(runner.now(), |i| lanes[i].ftl_snapshot());
    let mut drives = Vec::new();
    for (lane, over_time) in lanes.into_iter().zip(over_time) {
        drives.push(DriveOutcome::from_run(lane, over_time, runner.now(), elapsed)?);
    }
    // A trace also needs explanations, but must not change the results.
    if options.slowest > 0 {
        for (drive, explanation) in drives.iter_mut().zip(explanations) {
            drive.explanation = Some(explanation);
        }
    }
    let outcome = SimOutcome::new(scenario, drives, elapsed, costs, ignored);
    let mut outcome = SimOutcome { partial, untraced_events: untraced, ..outcome };
    outcome.notes = output::result_notes::notes(scenario, &outcome, &from_images);
    Ok(outcome)
}

/// Runs the jobs; returns whether they were stopped early.
fn run(
    runner: &mut VirtualRunner,
    lanes: &mut [DriveRun],
    recording: &mut Recording,
    sampler: &mut Sampler,
    options: &mut SimOptions<'_>,
) -> Result<bool, SimError> {
    let asked = options.stop;
    let asked = || asked.is_some_and(|stop| stop.load(Ordering::Relaxed));
    let mut stopped = false;
    if let ([DriveRun { host: Some(host), drive, .. }], true) = (&mut *lanes, recording.is_coarse())
    {
        tracepoint::set_drive(0);
        let mut tell = |_: &mut VirtualRunner,
                        host: &mut JobRunner<CoreQueues>,
                        _: &mut controller::Controller| {
            recording.explain();
            if let Some(progress) = &mut options.progress {
                progress(SimStage::Running(host.progress()));
            }
            if !stopped && asked() {
                stopped = true;
                host.stop();
            }
            true
        };
        let mut sample =
            |at: Nanos, host: &mut JobRunner<CoreQueues>, drive: &controller::Controller| {
                sampler.sample(at, |_| {
                    let in_host = target_layers::ftl_snapshot(host.device_mut());
                    in_host.or_else(|| drive_ftl_snapshot(drive))
                });
                sampler.next()
            };
        let first = sample(runner.now(), host, drive);
        let watcher = RunObserver::new(&mut tell).with_sampling(first, &mut sample);
        co_simulate(runner, host, drive, watcher);
        recording.explain();
        // `JobRunner::finish` reports the job that cannot continue.
        return Ok(stopped);
    }
    let mut steps = 0u32;
    loop {
        let next = if let [one] = &mut *lanes {
            runner.run_until_idle(&mut [one]);
            one.deadline()
        } else {
            let mut all: Vec<&mut dyn Component> =
                lanes.iter_mut().map(|l| l as &mut dyn Component).collect();
            runner.run_until_idle(&mut all);
            all.iter().map(|l| l.deadline()).min().unwrap_or(Nanos::MAX)
        };
        // Time does not advance after the last job.
        if lanes.iter().all(DriveRun::is_done) || next == Nanos::MAX {
            // `JobRunner::finish` reports the job that cannot continue.
            break;
        }
        if sampler.next() <= next {
            sampler.sample(next, |i| lanes[i].ftl_snapshot());
        }
        runner.advance_to(next);
        steps += 1;
        if steps == STRIDE || recording.is_buffer_low(lanes) {
            steps = 0;
            recording.collect(runner.now(), lanes)?;
            if let Some(progress) = &mut options.progress {
                let hosts = lanes.iter().filter_map(|l| l.host.as_ref());
                progress(SimStage::Running(hosts.map(JobRunner::progress).fold(1.0, f64::min)));
            }
            if !stopped && asked() {
                stopped = true;
                lanes.iter_mut().filter_map(|l| l.host.as_mut()).for_each(JobRunner::stop);
            }
        }
    }
    recording.collect(runner.now(), lanes)?;
    Ok(stopped)
}
