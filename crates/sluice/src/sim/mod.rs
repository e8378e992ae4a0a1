//! `sluice sim`: scenarios in virtual time.
//!
//! | file | noun |
//! |---|---|
//! | [`outcome`](Outcome) | what a run of one scenario found |
//! | [`preconditioned`](PreconditionCache) | states of drives that several scenarios begin with |
//! | [`json`](to_json) | fio's result format, with Sluice's own section beside it |
//! | [`way`](to_variant) | the same for the report |
//! | [`layer`](BlockLayerCounts) | what the block layer has done |
//! | `block_layer_trace` | the block layer's events, for blkparse and for Perfetto |
//! | [`stories`](Explanation) | why requests took as long as they did |
//! | `spans` | requests and the drive's busy times as a Perfetto trace |
//! | [`notes`](Note) | what must be known of a result |
//! | [`over_time`](FtlTimeSeries) | the translation layer at equal distances of virtual time |
//! | `parameters` | the scenario with defaults and presets resolved |
//! | [`error`](SimError) | why a run could not be done |
//! | `lane` | a drive with its jobs, during the run |
//! | `recording` | what is written down meanwhile |
//! | `close` | brings a drive's image to rest |

mod block_layer;
mod block_layer_trace;
mod drive_run;
mod error;
mod explanations;
mod flush;
mod json;
mod notes;
mod outcome;
mod parameters;
mod precondition_cache;
mod recording;
mod report_variant;
mod spans;
mod time_series;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use block::{BlockDevice, Group};
use clock::{Component, Nanos, VirtualRunner};
use workload::{IoCpuCosts, JobRunner, JobSource, JobSpec};

pub use block_layer::{BlockLayerCounts, CoreCounts, DispatchCounts, StagingCounts};
pub use error::SimError;
pub use explanations::Explanation;
pub use json::{SCHEMA, to_json, to_text};
pub use notes::{Note, NoteCode};
pub use outcome::{DriveOutcome, SimOutcome};
pub(crate) use parameters::parameters;
pub use precondition_cache::PreconditionCache;
pub use report_variant::to_variant;
pub use time_series::{FtlInterval, FtlSample, FtlTimeSeries, Timeline};

use crate::scenario::{JobTable, Scenario};
use crate::serve::{PreconditionMarker, image, is_fresh, stores_data, with_overlay};
use crate::stack::{RunObserver, Stack, StackDevice, co_simulate, precondition};
use drive_run::{DriveRun, ftl_snapshot};
use recording::Recording;
use time_series::Sampler;

/// Where a run stands, for a progress bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SimStage {
    /// Bringing the drives to their state; from 0 to 1.
    Preconditioning(f64),
    /// Running the jobs; from 0 to 1.
    Running(f64),
}

/// How a scenario is run.
#[derive(Default)]
pub struct SimOptions<'a> {
    /// Jobs beside the scenario's own.
    pub job_files: Vec<PathBuf>,
    /// Jobs of the runs before this one: the logs of this one's jobs (`write_lat_log`) are numbered
    /// after theirs, so that no run overwrites the logs of another.
    pub jobs_before: usize,
    /// Write a Perfetto trace here.
    pub trace: Option<TraceOutput>,
    /// Write what happens to each request in the block layer into this folder, for blkparse.
    pub blktrace: Option<PathBuf>,
    /// Explain this many of the slowest requests of each drive, and where the time of all of them went;
    /// 0 for none.
    pub slowest: usize,
    /// Change the drives' images, which are else only read: what is written stays in memory.
    pub write_image: bool,
    /// Ends the jobs when it becomes true; the outcome is what there is until then.
    pub stop: Option<&'a AtomicBool>,
    /// States of drives that scenarios share.
    pub precondition_cache: Option<&'a mut PreconditionCache>,
    /// Told now and then where the run stands.
    pub progress: Option<&'a mut dyn FnMut(SimStage)>,
}

/// A file that a trace is written to.
#[derive(Debug)]
pub struct TraceOutput {
    /// What it is called in messages.
    pub name: PathBuf,
    /// The file, or another thing that can be written to; written from where it stands.
    pub file: File,
    /// Whether it is emptied before.
    pub truncate: bool,
}

impl TraceOutput {
    /// Makes the file, or empties it.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(path: &Path) -> std::io::Result<TraceOutput> {
        Ok(TraceOutput { name: path.to_path_buf(), file: File::create(path)?, truncate: false })
    }
}

/// The jobs of one drive.
#[derive(Clone, Default)]
struct DriveJobs {
    specs: Vec<JobSpec>,
    /// Of each job, clones counted one by one.
    groups: Vec<Group>,
}

impl DriveJobs {
    fn push(&mut self, spec: JobSpec, group: Group) {
        self.groups.extend((0..spec.numjobs).map(|_| group));
        self.specs.push(spec);
    }
}

/// The jobs of each drive of a scenario, and the options that have no meaning here.
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
        if spec.verify && !stores_data(&scenario.drives[drive]) {
            return Err(verify_without_data(scenario, table, drive));
        }
        per_drive[drive].push(spec, table.group);
    }
    let named = scenario.job_files.iter().map(|(path, _)| path);
    for file in named.chain(files) {
        let parsed = workload::parse_job_file(file)?;
        ignored.extend(parsed.ignored);
        // A job file knows no drives: every drive runs it.
        for (jobs, plan) in per_drive.iter_mut().zip(&scenario.drives) {
            for spec in &parsed.jobs {
                if spec.verify && !stores_data(plan) {
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

/// Why a job of the scenario cannot verify, with its place.
fn verify_without_data(scenario: &Scenario, table: &JobTable, drive: usize) -> SimError {
    let line = table.pairs.iter().find(|(key, _, _)| key == "verify").map_or(table.line, |p| p.2);
    let drive = &scenario.drives[drive].config.name;
    let message = format!("job {} verifies, and drive {drive} keeps no data to verify", table.name);
    let help = "set data = \"memory\" or \"file\" in the drive, or remove `verify`".into();
    scenario.conflict_in_line(line, message, help).into()
}

/// Steps between two looks at progress and trace.
const STRIDE: u32 = 1024;

/// Runs a scenario in virtual time. The same scenario and seed give the same outcome, whatever the
/// machine (rule R3).
///
/// ```
/// use std::path::Path;
/// use sluice::scenario::Scenario;
/// use sluice::sim::{SimOptions, simulate};
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
/// // 40 us in the array, and a channel that takes no time.
/// assert_eq!(read.clat.mean(), 40_000.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`SimError`]. Failed requests are no error: they are in the outcome.
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
    // fio knows no drives: logs are numbered as the jobs of all of them.
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
                // An image that was made is not finished, and keeps its mark.
                let mark = mark.filter(|_| image(plan).is_none_or(|image| !image.exists()));
                mark.map_or(Ok(()), PreconditionMarker::remove).map_err(failed)?;
                return Err(error.into());
            }
        };
        // Before the drive is brought to its state, which may take long.
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
            // Its contents are somebody's data.
            false => {
                from_images.push(plan.config.name.as_str());
                stack
            }
        };
        mark.map_or(Ok(()), PreconditionMarker::remove).map_err(failed)?;
        let stack = match &scenario.path.block_layer {
            Some(layer) => stack.with_block_layer(layer, runner.now(), false)?,
            None => stack,
        };
        let ftl_before = stack.ftl_stats();
        let media_before = stack.drive.stats().media;
        let shards_before = stack.device.shard_counts();
        let Stack { drive, mut device, steady, .. } = stack;
        let DriveJobs { specs, groups } = std::mem::take(&mut per_drive[i]);
        if let Some(cores) = device.block_layer_mut() {
            cores.set_groups(groups);
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
    let mut sampler = Sampler::start(started, &lanes);
    let partial = run(&mut runner, &mut lanes, &mut recording, &mut sampler, &mut options)?;
    let (untraced, explanations) = recording.finish(&mut lanes)?;
    let elapsed = runner.now().since(started);
    let over_time = sampler.finish(runner.now(), |i| lanes[i].ftl_snapshot());
    let mut drives = Vec::new();
    for (lane, over_time) in lanes.into_iter().zip(over_time) {
        drives.push(DriveOutcome::from_run(lane, over_time, runner.now(), elapsed)?);
    }
    // A trace makes them, too, and may not change results.
    if options.slowest > 0 {
        for (drive, explanation) in drives.iter_mut().zip(explanations) {
            drive.explanation = Some(explanation);
        }
    }
    let outcome = SimOutcome::new(scenario, drives, elapsed, costs, ignored);
    let mut outcome = SimOutcome { partial, untraced_events: untraced, ..outcome };
    outcome.notes = notes::notes(scenario, &outcome, &from_images);
    Ok(outcome)
}

/// Runs the jobs; returns whether they were stopped before their end.
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
                        host: &mut JobRunner<StackDevice>,
                        _: &mut drive::Controller| {
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
        let mut sample = |at: Nanos, host: &JobRunner<StackDevice>, drive: &drive::Controller| {
            sampler.sample(at, |_| ftl_snapshot(Some(host.device()), drive));
            sampler.next()
        };
        let first = sample(runner.now(), host, drive);
        let watcher = RunObserver::new(&mut tell).with_sampling(first, &mut sample);
        co_simulate(runner, host, drive, watcher);
        recording.explain();
        // What cannot go on names itself when the host is finished.
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
        // Time does not go on after the last job.
        if lanes.iter().all(DriveRun::is_done) || next == Nanos::MAX {
            // What cannot go on names itself when the hosts are finished.
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
