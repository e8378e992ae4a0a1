//! `sluice sim`: scenarios in virtual time.
//!
//! | file | noun |
//! |---|---|
//! | [`outcome`](Outcome) | what a run of one scenario found |
//! | [`json`](to_json) | fio's result format, with Sluice's own section beside it |
//! | [`way`](to_way) | the same for the report |
//! | [`layer`](LayerCounts) | what the block layer has done |
//! | `layer_trace` | the block layer's events, for blkparse and for Perfetto |
//! | `spans` | the drive's busy times as a Perfetto trace |

mod json;
mod layer;
mod layer_trace;
mod outcome;
mod spans;
mod way;

use std::path::{Path, PathBuf};

use block::Group;
use block::trace::blktrace::WriteError;
use clock::{Component, Nanos, VirtualRunner};
use workload::{Host, HostCosts, JobError, JobSpec};

pub use json::to_json;
pub use layer::{CoreCounts, DispatchCounts, LayerCounts, StagingCounts};
pub use outcome::{DriveOutcome, Outcome};
pub use way::to_way;

use crate::scenario::{JobTable, Scenario};
use crate::stack::steady::SteadyResult;
use crate::stack::{ShardCounts, Stack, StackDevice, StackError, precondition, take_turns};
use layer_trace::LayerTrace;
use spans::SpanTrace;

/// Where a run stands, for a progress bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stage {
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
    /// Write a Perfetto trace here.
    pub trace: Option<PathBuf>,
    /// Write what happens to each request in the block layer into this folder, for blkparse.
    pub blktrace: Option<PathBuf>,
    /// Told now and then where the run stands.
    pub progress: Option<&'a mut dyn FnMut(Stage)>,
}

/// Why a run could not be done.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// A stack could not be built or preconditioned.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// A job is wrong.
    #[error(transparent)]
    Job(#[from] JobError),
    /// Jobs do not fit the device, or the run cannot be trusted.
    #[error(transparent)]
    Host(#[from] workload::HostError),
    /// There is nothing to run.
    #[error("{file}: no jobs: give the scenario a [[job]], job_files, or a job file beside it")]
    NoJobs {
        /// The scenario.
        file: PathBuf,
    },
    /// The trace cannot be written.
    #[error("cannot write the trace to {path}: {source}")]
    Trace {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The block layer's trace cannot be written.
    #[error("cannot write the block layer's trace to {dir}: {source}")]
    Blktrace {
        /// Where.
        dir: PathBuf,
        /// Why.
        #[source]
        source: WriteError,
    },
    /// There is nothing to trace.
    #[error("{file}: `raw` has no block layer to trace: set path.block = \"sq\" or \"mq\"")]
    NoLayer {
        /// The scenario.
        file: PathBuf,
    },
}

impl SimError {
    /// Whether what was asked is at fault, and not the run.
    pub fn is_usage(&self) -> bool {
        match self {
            SimError::Job(_) | SimError::NoJobs { .. } | SimError::NoLayer { .. } => true,
            SimError::Host(e) => {
                matches!(e, workload::HostError::Misfit { .. } | workload::HostError::NoJobs)
            }
            SimError::Stack(e) => e.is_usage(),
            SimError::Trace { .. } | SimError::Blktrace { .. } => false,
        }
    }
}

/// The jobs of one drive.
#[derive(Clone, Default)]
struct Jobs {
    specs: Vec<JobSpec>,
    /// Of each job, clones counted one by one.
    groups: Vec<Group>,
}

impl Jobs {
    fn push(&mut self, spec: JobSpec, group: Group) {
        self.groups.extend((0..spec.numjobs).map(|_| group));
        self.specs.push(spec);
    }
}

/// The jobs of each drive of a scenario, and the options that have no meaning here.
fn jobs(scenario: &Scenario, files: &[PathBuf]) -> Result<(Vec<Jobs>, Vec<String>), SimError> {
    let mut per_drive = vec![Jobs::default(); scenario.drives.len()];
    let mut ignored = Vec::new();
    for table in &scenario.jobs {
        let (spec, unused) = spec_of(table, &scenario.file)?;
        ignored.extend(unused);
        let drive = table.drive.as_ref().map_or(0, |(name, _)| {
            scenario.drives.iter().position(|d| d.config.name == *name).unwrap_or(0)
        });
        per_drive[drive].push(spec, table.group);
    }
    let named = scenario.job_files.iter().map(|(path, _)| path);
    for file in named.chain(files) {
        let parsed = workload::parse_job_file(file)?;
        ignored.extend(parsed.ignored);
        // A job file knows no drives: every drive runs it.
        for jobs in &mut per_drive {
            for spec in &parsed.jobs {
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

fn spec_of(table: &JobTable, file: &Path) -> Result<(JobSpec, Vec<String>), JobError> {
    let pairs = table.pairs.iter().map(|(k, v, line)| (k.as_str(), v.as_str(), *line));
    JobSpec::from_pairs(&table.name, file, pairs)
}

/// A drive with its jobs, during the run.
struct Lane {
    name: String,
    drive: drive::Drive,
    host: Option<Host<StackDevice>>,
    /// The device of a drive without jobs.
    idle: Option<StackDevice>,
    ftl_before: Option<ftl::FtlStats>,
    shards_before: Vec<ShardCounts>,
    steady: Option<SteadyResult>,
}

impl Component for Lane {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let host = self.host.as_mut().is_some_and(|h| h.poll(now));
        let drive = self.drive.poll(now);
        host | drive
    }
    #[inline]
    fn deadline(&self) -> Nanos {
        let host = self.host.as_ref().map_or(Nanos::MAX, Component::deadline);
        host.min(self.drive.deadline())
    }
}

impl Lane {
    fn done(&self) -> bool {
        self.host.as_ref().is_none_or(Host::done)
    }

    fn device(&self) -> Option<&StackDevice> {
        self.host.as_ref().map(Host::device).or(self.idle.as_ref())
    }

    fn device_mut(&mut self) -> Option<&mut StackDevice> {
        match &mut self.host {
            Some(host) => Some(host.device_mut()),
            None => self.idle.as_mut(),
        }
    }

    /// Counters and free lines of the translation layer, on whichever side it runs.
    fn ftl_view(&self) -> Option<(ftl::FtlStats, f64)> {
        let host = self.device().and_then(StackDevice::ftl_view);
        host.or_else(|| self.drive.ftl().map(|f| (*f.stats(), f.free_lines())))
    }
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
pub fn simulate(scenario: &Scenario, mut options: SimOptions<'_>) -> Result<Outcome, SimError> {
    let (mut per_drive, ignored) = jobs(scenario, &options.job_files)?;
    let costs = HostCosts {
        submit: scenario.host.submit.unwrap_or_default(),
        complete: scenario.host.complete.unwrap_or_default(),
    };
    let mut runner = VirtualRunner::new();
    let mut lanes = Vec::new();
    let count = scenario.drives.len() as f64;
    for (i, plan) in scenario.drives.iter().enumerate() {
        let stack = Stack::build(plan, None)?;
        let mut tell = |part: f64| {
            if let Some(progress) = &mut options.progress {
                progress(Stage::Preconditioning((i as f64 + part) / count));
            }
        };
        let what = &scenario.precondition;
        let stack = precondition(stack, what, &mut runner, scenario.seed, &mut tell)?;
        let stack = match &scenario.path.layer {
            Some(layer) => stack.layered(layer, runner.now(), false)?,
            None => stack,
        };
        let ftl_before = stack.ftl_stats();
        let shards_before = stack.device.shard_counts();
        let Stack { drive, mut device, steady, .. } = stack;
        let Jobs { specs, groups } = std::mem::take(&mut per_drive[i]);
        if let Some(cores) = device.cores_mut() {
            cores.set_groups(groups);
        }
        let (mut host, mut idle) = (None, None);
        if specs.is_empty() {
            idle = Some(device);
        } else {
            host = Some(Host::new(device, specs, costs, scenario.seed.wrapping_add(i as u64))?);
        }
        let name = plan.config.name.clone();
        lanes.push(Lane { name, drive, host, idle, ftl_before, shards_before, steady });
    }
    let mut recording = Recording::start(scenario, &options, &mut lanes)?;
    let started = runner.now();
    run(&mut runner, &mut lanes, &mut recording, &mut options)?;
    let untraced = recording.finish(&mut lanes)?;
    let elapsed = runner.now().since(started);
    let mut drives = Vec::new();
    for lane in lanes {
        drives.push(DriveOutcome::of(lane, runner.now(), elapsed)?);
    }
    let outcome = Outcome::new(scenario, drives, elapsed, costs, ignored);
    Ok(Outcome { untraced, ..outcome })
}

/// What is written down while the jobs run.
struct Recording {
    spans: Option<SpanTrace>,
    layer: Option<LayerTrace>,
}

impl Recording {
    fn start(
        scenario: &Scenario,
        options: &SimOptions<'_>,
        lanes: &mut [Lane],
    ) -> Result<Recording, SimError> {
        let dir = options.blktrace.as_deref();
        if dir.is_some() && scenario.path.layer.is_none() {
            return Err(SimError::NoLayer { file: scenario.file.clone() });
        }
        let mut spans = match &options.trace {
            Some(path) => Some(SpanTrace::create(path, scenario, lanes)?),
            None => None,
        };
        let layer = LayerTrace::create(dir, spans.as_mut().map(SpanTrace::file), lanes)?;
        Ok(Recording { spans, layer })
    }

    fn is_off(&self) -> bool {
        self.spans.is_none() && self.layer.is_none()
    }

    fn is_pressed(&self, lanes: &mut [Lane]) -> bool {
        self.layer.as_ref().is_some_and(|layer| layer.is_pressed(lanes))
    }

    fn collect(&mut self, now: Nanos, lanes: &mut [Lane]) -> Result<(), SimError> {
        if let Some(layer) = &mut self.layer {
            layer.collect(self.spans.as_mut().map(SpanTrace::file), lanes)?;
        }
        self.spans.as_mut().map_or(Ok(()), |spans| spans.collect(now, lanes))
    }

    /// Completes the files; returns how many events are missing in them.
    fn finish(self, lanes: &mut [Lane]) -> Result<u64, SimError> {
        let dropped = self.layer.map_or(Ok(0), |layer| layer.finish(lanes))?;
        self.spans.map_or(Ok(()), SpanTrace::finish)?;
        Ok(dropped)
    }
}

fn run(
    runner: &mut VirtualRunner,
    lanes: &mut [Lane],
    recording: &mut Recording,
    options: &mut SimOptions<'_>,
) -> Result<(), SimError> {
    if let ([Lane { host: Some(host), drive, .. }], true) = (&mut *lanes, recording.is_off()) {
        take_turns(runner, host, drive, &mut |_, host, _| {
            if let Some(progress) = &mut options.progress {
                progress(Stage::Running(host.progress()));
            }
            true
        });
        // What cannot go on names itself when the host is finished.
        return Ok(());
    }
    let mut steps = 0u32;
    loop {
        let jumped = if let [one] = &mut *lanes {
            runner.step(&mut [one], Nanos::MAX)
        } else {
            let mut all: Vec<&mut dyn Component> =
                lanes.iter_mut().map(|l| l as &mut dyn Component).collect();
            runner.step(&mut all, Nanos::MAX)
        };
        if lanes.iter().all(Lane::done) || !jumped {
            // What cannot go on names itself when the hosts are finished.
            break;
        }
        steps += 1;
        if steps == STRIDE || recording.is_pressed(lanes) {
            steps = 0;
            recording.collect(runner.now(), lanes)?;
            if let Some(progress) = &mut options.progress {
                let hosts = lanes.iter().filter_map(|l| l.host.as_ref());
                progress(Stage::Running(hosts.map(Host::progress).fold(1.0, f64::min)));
            }
        }
    }
    recording.collect(runner.now(), lanes)
}
