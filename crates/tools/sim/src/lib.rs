//! Simulation of scenarios in virtual time, for `sluice sim`.
//!
//! [`simulate`] runs one scenario and returns a [`SimOutcome`]. [`to_json`] prints it in fio's
//! format, and [`to_variant`] converts it for the report.

#![forbid(unsafe_code)]

pub mod analytic;
mod error;
mod hosted;
mod outcome;
mod output;
mod precondition_cache;
mod profile;
mod recording;
mod run_needs;
mod sim_run;
mod timed_changes;

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use block::Group;
use block::notify::CompletionMethod;
use lnvm::TargetKind;
use scenario::choice::{Impossible, SIMULATION};
use scenario::{Beneath, DriveSpec, HostMachine, JobTable, PathSpec, ProcessSpec, Scenario};
use stack::{
    BuildOptions, CoreQueues, EmulatedDevice, JobTarget, Notification, PreconditionMarker,
    RunObserver, StackBuilder, StackError, StateUse, co_simulate, image, is_fresh, stores_data,
    target_layers,
};
use time::{Component, Nanos, VirtualRunner};
use workload::{Addressing, IoCpuCosts, JobRunner, JobSource, JobSpec, RunResult};

pub use error::SimError;
pub use hosted::{MachineOutcome, MachineRejection, MachineRunError, ProcessOutcome};
pub use outcome::{
    DriveOutcome, PathOutcome, RunDiagnostics, SataOutcome, SimOutcome, TargetCounts,
};
pub use output::json::to_json;
pub use output::json_schema::{JsonSchema, SCHEMA};
pub use output::json_text::to_text;
pub use output::parameters::{parameters, rate_limiter, victim_policy};
pub use output::report_variant::to_variant;
pub use output::result_notes::{Note, NoteCode};
pub use precondition_cache::PreconditionCache;
pub use profile::{LayerSamples, ProfileError, SimLayer, SimProfile};
pub use recording::explanations::Explanation;
pub use recording::time_series::{FtlInterval, FtlSample, FtlTimeSeries, Timeline};
pub use run_needs::RunNeeds;
pub use stack::{BlockLayerCounts, CoreCounts, DispatchCounts, StagingCounts};

use hosted::{HostedJobs, ProcessRun};
use profile::SimProfiler;
use recording::Recording;
use recording::time_series::Sampler;
use sim_run::{PathJobRunner, PathRun, SimRun, drive_ftl_snapshot};
use timed_changes::TimedChanges;

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SimStage {
    /// Preconditioning of the drives; from 0 to 1.
    Preconditioning(f64),
    /// Execution of the jobs. The first report is their start, and the last one their end.
    Running {
        /// Progress from 0 to 1.
        part: f64,
        /// Virtual time since the jobs began.
        elapsed: Nanos,
    },
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
    /// Number of slowest requests of each path to explain, with breakdowns of all requests; 0 for
    /// none.
    pub slowest: usize,
    /// Whether to measure where the processor time goes.
    pub profile: bool,
    /// Whether to modify the drives' images. Otherwise images are only read, and writes stay in
    /// memory.
    pub write_image: bool,
    /// Stops the run when it becomes true, at the next call of `progress`. If the jobs have begun,
    /// the outcome covers the time until then; else [`StackError::Stopped`] is returned.
    pub stop: Option<&'a AtomicBool>,
    /// Preconditioned drives that scenarios share, also on different threads.
    pub precondition_cache: Option<&'a PreconditionCache>,
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

/// The jobs of one path.
#[derive(Clone, Default)]
struct PathJobs {
    specs: Vec<JobSpec>,
    /// Group of each job, with clones counted one by one.
    groups: Vec<Group>,
    /// The process that each job is, with clones counted one by one.
    processes: Vec<Option<ProcessRun>>,
}

impl PathJobs {
    fn push(&mut self, spec: JobSpec, group: Group, process: Option<ProcessSpec>) {
        self.groups.extend((0..spec.numjobs).map(|_| group));
        self.processes.extend((0..spec.numjobs).map(|_| process.map(ProcessRun::new)));
        self.specs.push(spec);
    }
}

/// Returns the jobs of each path of a scenario, and the job options without effect.
fn jobs(
    scenario: &Scenario,
    paths: &[PathSpec],
    files: &[PathBuf],
) -> Result<(Vec<PathJobs>, Vec<String>), SimError> {
    let mut per_path = vec![PathJobs::default(); paths.len()];
    let mut ignored = Vec::new();
    let source = JobSource::new(&scenario.file, scenario.text.clone());
    // The name of the drive beneath a path that keeps no data.
    let without_data = |path: usize| {
        let members = scenario.members(paths[path].over).into_iter();
        let mut drives = members.map(|member| &scenario.drives[scenario.drive_of(member)]);
        drives.find(|plan| !stores_data(plan)).map(|plan| plan.config.name.as_str())
    };
    let indices: HashMap<&str, usize> =
        paths.iter().enumerate().map(|(i, path)| (path.name.as_str(), i)).collect();
    for table in &scenario.jobs {
        let (spec, unused) = table.spec(&source)?;
        ignored.extend(unused);
        // Without names, a path is called as its drive.
        let name = table.path.as_ref().or(table.drive.as_ref());
        let path = name.and_then(|(name, _)| indices.get(name.as_str()).copied()).unwrap_or(0);
        if let (true, Some(drive)) = (spec.integrity.verify, without_data(path)) {
            return Err(verify_without_data(scenario, table, drive));
        }
        per_path[path].push(spec, table.group, table.process);
    }
    let named = scenario.job_files.iter().map(|(path, _)| path);
    for file in named.chain(files) {
        let parsed = workload::parse_job_file(file)?;
        ignored.extend(parsed.ignored);
        // A job file names neither drives nor paths: every path runs it.
        for (path, jobs) in per_path.iter_mut().enumerate() {
            for spec in &parsed.jobs {
                if let (true, Some(drive)) = (spec.integrity.verify, without_data(path)) {
                    let (job, drive) = (spec.name.clone(), drive.to_owned());
                    return Err(SimError::VerifyWithoutData { job, drive });
                }
                jobs.push(spec.clone(), Group(0), None);
            }
        }
    }
    if per_path.iter().all(|jobs| jobs.specs.is_empty()) {
        return Err(SimError::NoJobs { file: scenario.file.clone() });
    }
    for (path, jobs) in paths.iter().zip(&per_path) {
        let on_blocks = |job: &JobSpec| job.addressing() == Addressing::Blocks;
        let may_lack_blocks = scenario.has_units(path.over) || scenario.has_names(path.over);
        if may_lack_blocks && jobs.specs.iter().any(on_blocks) {
            scenario.check_block_path(path)?;
        }
    }
    ignored.sort();
    ignored.dedup();
    Ok((per_path, ignored))
}

/// Returns the error of a job that cannot verify, with its location.
fn verify_without_data(scenario: &Scenario, table: &JobTable, drive: &str) -> SimError {
    let line = table.pairs.iter().find(|(key, _, _)| key == "verify").map_or(table.line, |p| p.2);
    let message = format!("job {} verifies, and drive {drive} keeps no data to verify", table.name);
    let help = "set data = \"memory\" or \"file\" in the drive, or remove `verify`".into();
    scenario.conflict_in_line(line, message, help).into()
}

/// Interrupt vector of a host's queue pairs; vector 0 belongs to the admin queue.
const HOST_VECTOR: u16 = 1;

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
/// let read = &outcome.paths[0].run.jobs[0].directions[0];
/// assert_eq!(read.ios, 1024);
/// // 40 us array read; this preset's channel takes no time.
/// assert_eq!(read.clat.mean(), 40_000.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`SimError`]. Failed requests are not errors: they are in the outcome.
pub fn simulate(scenario: &Scenario, mut options: SimOptions<'_>) -> Result<SimOutcome, SimError> {
    for plan in &scenario.drives {
        Impossible::check_virtual(plan, SIMULATION)
            .and_then(|()| Impossible::check_virtual_memory(plan, SIMULATION))
            .map_err(StackError::from)?;
    }
    let paths = scenario.paths();
    let (per_path, ignored) = jobs(scenario, &paths, &options.job_files)?;
    if options.blktrace.is_some() && paths.iter().all(|path| path.config.block_layer.is_none()) {
        return Err(SimError::NoBlockLayer { file: scenario.file.clone() });
    }
    if scenario.host.this_machine.is_some() {
        let file = scenario.file.display().to_string();
        return Err(MachineRunError::from(MachineRejection::NotMeasured { file }).into());
    }
    let machine = scenario.host.machine.as_ref();
    if let Some(machine) = machine {
        hosted::check(machine, &paths).map_err(MachineRunError::from)?;
    }
    let is_followed = can_follow(scenario, &paths);
    if !is_followed && options.trace.is_some() {
        return Err(SimError::NotFollowed { file: scenario.file.clone() });
    }
    let costs = IoCpuCosts {
        submit: scenario.host.submit_cost.unwrap_or_default(),
        complete: scenario.host.complete_cost.unwrap_or_default(),
    };
    let mut profiler = if options.profile { Some(SimProfiler::start()?) } else { None };
    let mut runner = VirtualRunner::new();
    let (mut run, images, hosted_jobs) =
        prepare(scenario, per_path, costs, &mut runner, &mut options)?;
    let mut recording = Recording::start(scenario, &mut options, is_followed, &mut run)?;
    let started = runner.now();
    let mut sampler = Sampler::start(started, &mut run);
    let mut changes = TimedChanges::start(scenario, started, &mut run)?;
    let parts =
        RunParts { recording: &mut recording, sampler: &mut sampler, changes: &mut changes };
    if let Some(profiler) = &mut profiler {
        profiler.begin_jobs();
    }
    let (partial, machine) = match machine {
        Some(machine) => {
            execute_on_machine(machine, hosted_jobs, &mut runner, &mut run, parts, &mut options)?
        }
        None => (execute(&mut runner, &mut run, parts, &mut options)?, None),
    };
    let profile = profiler.map(SimProfiler::finish);
    if !partial {
        changes.finish(runner.now())?;
    }
    let (untraced, explanations) = recording.finish(&mut run)?;
    let (now, elapsed) = (runner.now(), runner.now().since(started));
    let over_time = sampler.finish(now, |i| run.ftl_snapshot(i));
    let mut outcomes: Vec<PathOutcome> = over_time
        .into_iter()
        .enumerate()
        .map(|(path, over_time)| PathOutcome::counters(&mut run, path, over_time, now))
        .collect();
    let drives = (0..run.drives.len()).map(|i| DriveOutcome::from_run(&run, i, started)).collect();
    for path in 0..run.paths.len() {
        if run.paths[path].drives.iter().any(|drive| images.persist[*drive]) {
            run.flush(path, now);
        }
    }
    let SimRun { paths: ended, devices: running, drives: named, polls, .. } = run;
    for (outcome, path) in outcomes.iter_mut().zip(ended) {
        outcome.run = match path.host {
            Some(host) => host.finish()?,
            None => path.result.unwrap_or(RunResult { elapsed, ..RunResult::default() }),
        };
        // Here the host's side ends: it must not refer to the drive any more.
    }
    for (index, device) in running.into_iter().enumerate() {
        let mut persisted = named.iter().zip(&images.persist).filter(|(_, persists)| **persists);
        if let Some((drive, _)) = persisted.find(|(drive, _)| drive.device == index) {
            let drive = drive.name.clone();
            device.shut_down().map_err(|source| SimError::Image { drive, source })?;
        }
    }
    // A trace also needs explanations, but must not change the results.
    if options.slowest > 0 {
        for (path, explanation) in outcomes.iter_mut().zip(explanations) {
            path.explanation = Some(explanation);
        }
    }
    let outcome = SimOutcome::new(scenario, drives, outcomes, elapsed, costs, ignored);
    let untraced_events = untraced;
    let diagnostics = RunDiagnostics { states: images.states, profile, machine, polls };
    let mut outcome = SimOutcome { partial, untraced_events, diagnostics, ..outcome };
    outcome.notes = output::result_notes::notes(scenario, &outcome, &images.from_image);
    if options.slowest > 0 && !is_followed {
        outcome.notes.push(Note::not_followed());
    }
    Ok(outcome)
}

/// Returns whether requests can be followed to the flash: every path has block requests, to one
/// drive. A SATA drive has no flash to follow them to.
fn can_follow(scenario: &Scenario, paths: &[PathSpec]) -> bool {
    let has_blocks = |path: &PathSpec| {
        let is_set = matches!(path.over, Beneath::Set(_));
        let has_keys = scenario.kind_of(path.over) == Some(TargetKind::Kv);
        !is_set && !has_keys && !scenario.has_units(path.over)
    };
    let has_sata = scenario.sata_drives().next().is_some();
    // Requests of a log have no events of their own.
    let has_log = paths.iter().any(|path| path.config.log.is_some());
    !has_sata && !has_log && paths.iter().all(has_blocks)
}

/// Use of the drives' images by the run.
struct Images {
    /// By drive: whether its contents must be on its image at the end.
    persist: Vec<bool>,
    /// Names of the drives that start from an image.
    from_image: Vec<String>,
    /// How drives came to their states, by name.
    states: Vec<(String, StateUse)>,
}

/// Builds the drives and paths of a scenario, preconditions them and prepares the jobs.
fn prepare(
    scenario: &Scenario,
    per_path: Vec<PathJobs>,
    costs: IoCpuCosts,
    runner: &mut VirtualRunner,
    options: &mut SimOptions<'_>,
) -> Result<(SimRun, Images, Vec<HostedJobs>), SimError> {
    let plans = &scenario.drives;
    let fresh: Vec<bool> = plans.iter().map(is_fresh).collect();
    let keeps = |plan: &&DriveSpec| options.write_image && image(plan).is_some();
    let mut images = Images {
        states: Vec::new(),
        persist: plans.iter().map(|plan| keeps(&plan)).collect(),
        // Never precondition an image that holds a user's data.
        from_image: plans
            .iter()
            .zip(&fresh)
            .filter(|(_, fresh)| !**fresh)
            .map(|(plan, _)| plan.config.name.clone())
            .collect(),
    };
    let mut marks = Vec::new();
    for ((plan, fresh), persists) in plans.iter().zip(&fresh).zip(&images.persist) {
        if *fresh && *persists {
            let mark = PreconditionMarker::set(plan).map_err(|source| {
                SimError::PreconditionMarker { drive: plan.config.name.clone(), source }
            })?;
            marks.push((plan, mark));
        }
    }
    let remove = |marks: Vec<(&DriveSpec, PreconditionMarker)>| {
        marks.into_iter().try_for_each(|(plan, mark)| {
            mark.remove().map_err(|source| SimError::PreconditionMarker {
                drive: plan.config.name.clone(),
                source,
            })
        })
    };
    let cache = options.precondition_cache;
    let cached = scenario.composition.is_empty();
    let mut shared = vec![false; plans.len()];
    // The drive raises the interrupts of hosts that sleep.
    let sleeps = scenario.host.machine.is_some()
        && scenario
            .paths()
            .iter()
            .any(|path| hosted::completion(&path.config).method.uses_interrupts());
    let vector = sleeps.then_some(HOST_VECTOR);
    let build = BuildOptions { vector, write_images: options.write_image, parallel_units: true };
    let mut reuse = |plan: &DriveSpec| {
        let index = plans.iter().position(|p| p.config.name == plan.config.name)?;
        let cache = cache.filter(|_| cached && fresh[index])?;
        let stack = cache.take(scenario, plan, Nanos::ZERO);
        shared[index] = stack.is_some();
        stack
    };
    let (mut builder, mut open) = match StackBuilder::open(scenario, build, &mut reuse) {
        Ok(built) => built,
        Err(error) => {
            // A newly created image is incomplete until the end, and keeps its marker until then.
            marks.retain(|(plan, _)| image(plan).is_none_or(|image| !image.exists()));
            remove(marks)?;
            return Err(error.into());
        }
    };
    runner.advance_to(builder.ready_at());
    // Check the jobs before preconditioning, which may take long.
    for (path, jobs) in open.iter().zip(&per_path) {
        workload::check_jobs_on(&jobs.specs, &path.limits()?)?;
    }
    let count = open.len() as f64;
    let mut paths = Vec::with_capacity(open.len());
    for (index, (mut path, jobs)) in open.drain(..).zip(per_path).enumerate() {
        let mut tell = |part: f64| {
            if let Some(progress) = &mut options.progress {
                progress(SimStage::Preconditioning((index as f64 + part) / count));
            }
            !options.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
        };
        let what = &scenario.precondition;
        let needs = |drive: usize| fresh[drive] && !shared[drive];
        path.precondition(&mut builder, what, needs, runner, scenario.seed, &mut tell)?;
        if let Some(cache) = cache.filter(|_| cached && needs(index)) {
            let plan = &plans[index];
            let copy = || path.duplicate(&builder, plan).ok().flatten();
            cache.insert(scenario, plan, runner.now(), copy);
        }
        let mut costs = costs;
        let path = path.finish(&mut builder, runner.now(), |config| {
            let notify = config.notification(&scenario.host);
            if notify.policy.method == CompletionMethod::Interrupt {
                // The handler finishes requests instead of the jobs.
                costs.complete = Nanos::ZERO;
            }
            match scenario.host.machine {
                Some(_) => Notification::Modeled(hosted::completion(config)),
                None => Notification::Virtual(notify),
            }
        })?;
        paths.push((PathRun::new(path), jobs, costs));
    }
    remove(marks)?;
    // fio has no drives: logs are numbered over the jobs of all paths.
    let mut next_log = options.jobs_before + 1;
    let mut ready = Vec::with_capacity(paths.len());
    let mut hosted_jobs = Vec::new();
    let path_specs = scenario.paths();
    for (index, (mut path, jobs, costs)) in paths.into_iter().enumerate() {
        let PathJobs { specs, groups, processes } = jobs;
        let seed = scenario.seed.wrapping_add(index as u64);
        if scenario.host.machine.is_some() {
            if !specs.is_empty() {
                let clones = |spec: &JobSpec| vec![spec.name.clone(); spec.numjobs as usize];
                path.hosted_names = specs.iter().flat_map(clones).collect();
                let first_log = next_log;
                next_log += groups.len();
                let completion = hosted::completion(&path_specs[index].config);
                let processes = match processes.iter().any(Option::is_some) {
                    true => processes,
                    false => Vec::new(),
                };
                hosted_jobs.push(HostedJobs {
                    path: index,
                    specs,
                    groups,
                    seed,
                    processes,
                    first_log,
                    completion,
                });
            }
            ready.push(path);
            continue;
        }
        if let (Some(mut device), false) = (path.idle.take(), specs.is_empty()) {
            if let JobTarget::Blocks(device) = &mut device
                && let Some(layer) = device.block_layer_mut()
            {
                layer.set_groups(groups);
            }
            let mut host = PathJobRunner::new(device, specs, costs, seed)?;
            next_log = host.open_logs(next_log)?;
            path.host = Some(host);
        }
        ready.push(path);
    }
    images.states = builder.state_uses().to_vec();
    let (devices, device_of) = builder.into_devices();
    let drives = plans.iter().map(|plan| plan.config.name.clone()).zip(device_of);
    Ok((SimRun::new(devices, drives, ready), images, hosted_jobs))
}

/// The records, samples and changes of a run.
struct RunParts<'r, 's> {
    recording: &'r mut Recording,
    sampler: &'r mut Sampler,
    changes: &'r mut TimedChanges<'s>,
}

/// Runs the jobs; returns whether they were stopped early.
fn execute(
    runner: &mut VirtualRunner,
    run: &mut SimRun,
    parts: RunParts<'_, '_>,
    options: &mut SimOptions<'_>,
) -> Result<bool, SimError> {
    let RunParts { recording, sampler, changes } = parts;
    let asked = options.stop;
    let asked = || asked.is_some_and(|stop| stop.load(Ordering::Relaxed));
    let mut stopped = false;
    let started = runner.now();
    emit_running(options, 0.0, Nanos::ZERO);
    if let (
        [PathRun { host: Some(PathJobRunner::Blocks(host)), .. }],
        [EmulatedDevice::Nvme(drive)],
        true,
    ) = (&mut run.paths[..], &mut run.devices[..], recording.is_coarse() && changes.is_empty())
    {
        tracepoint::set_path(0, 0);
        let mut tell = |runner: &mut VirtualRunner,
                        host: &mut JobRunner<CoreQueues>,
                        _: &mut controller::Controller| {
            recording.explain();
            emit_running(options, host.progress(), runner.now().since(started));
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
        emit_running(options, host.progress(), runner.now().since(started));
        recording.explain();
        // `JobRunner::finish` reports the job that cannot continue.
        return Ok(stopped);
    }
    changes.apply(runner.now(), run)?;
    let mut steps = 0u32;
    loop {
        runner.run_until_idle(&mut [run]);
        let next = run.deadline().min(changes.deadline());
        // Time does not advance after the last job.
        if run.is_done() || next == Nanos::MAX {
            // `JobRunner::finish` reports the job that cannot continue.
            break;
        }
        if sampler.next() <= next {
            sampler.sample(next, |i| run.ftl_snapshot(i));
        }
        runner.advance_to(next);
        changes.apply(next, run)?;
        steps += 1;
        if steps == STRIDE || recording.is_buffer_low(run) {
            steps = 0;
            recording.collect(runner.now(), run)?;
            emit_running(options, run.progress(), runner.now().since(started));
            if !stopped && asked() {
                stopped = true;
                run.hosts().for_each(PathJobRunner::stop);
                run.wake_all();
            }
        }
    }
    emit_running(options, run.progress(), runner.now().since(started));
    recording.collect(runner.now(), run)?;
    Ok(stopped)
}

/// Runs the jobs on a modeled machine; returns whether they were stopped early, and what the machine
/// did.
fn execute_on_machine(
    machine: &HostMachine,
    jobs: Vec<HostedJobs>,
    runner: &mut VirtualRunner,
    run: &mut SimRun,
    parts: RunParts<'_, '_>,
    options: &mut SimOptions<'_>,
) -> Result<(bool, Option<MachineOutcome>), SimError> {
    let started = runner.now();
    // Changes at the start come before the threads.
    parts.changes.apply(started, run)?;
    emit_running(options, 0.0, Nanos::ZERO);
    let stop = options.stop;
    let mut stopped = false;
    let mut tick = |now: Nanos, part: f64| {
        emit_running(options, part, now.since(started));
        stopped |= stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        !stopped
    };
    let (outcome, ended) = hosted::run(run, machine, jobs, started, parts, &mut tick)?;
    runner.advance_to(ended);
    emit_running(options, 1.0, ended.since(started));
    Ok((stopped, Some(outcome)))
}

/// Reports the progress of the jobs.
fn emit_running(options: &mut SimOptions<'_>, part: f64, elapsed: Nanos) {
    if let Some(progress) = &mut options.progress {
        progress(SimStage::Running { part, elapsed });
    }
}
