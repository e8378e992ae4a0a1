//! Preconditioning: brings a drive to the state after filling and overwriting it, with zero-latency
//! media.
//!
//! The requests take the complete path through the device, the queue pair and the drive's own code;
//! only the media has zero latency. The result is exactly the state that these requests would have
//! left.
//!
//! [Steady state](super::steady_state) also depends on throughput, which needs media latency. The
//! rounds that determine it belong to the last job, which continues with full media latency. They
//! leave the drive active, as \[SNIAPTS\] requires: the run follows without a pause.

mod direct_queue;
pub(super) mod marker;
mod saved_stack;
pub(super) mod state_cache;
pub(super) mod state_file;
pub(super) mod state_key;
pub mod steady_state;
mod steady_writes;
#[cfg(test)]
mod tests;
mod write_batches;

use std::path::Path;
use std::time::Instant;

use block::{BlockDevice, Limits, Raw};
use controller::Controller;
use ftl::{CapacityPlan, FtlConfig, FtlStats};
use rng::Rng;
use scenario::{Amount, DriveSpec, Fill, Overwrite, Precondition, Until};
use time::{Component, Nanos, VirtualRunner};
use workload::units::Size;
use workload::{IoCpuCosts, IoFailure, JobRunner, JobSpec, RunError, WriteStream};

use direct_queue::DirectQueue;
use marker::image;
use saved_stack::SavedStack;
use state_cache::{StateCache, StateUse};
use state_key::StateKey;
use steady_state::{Round, SteadyResult};
use steady_writes::SteadyWrites;
use write_batches::{WriteBatches, WriteEnd};

use super::co_simulate::{RunObserver, co_simulate};
use super::{CoreQueues, SimulatedDevice, Stack, StackError, StackHost, target_layers};

/// Number of polls between two updates of the monitor; around the start and end of rounds it is
/// updated at every poll.
const STRIDE: u32 = 64;
/// Minimum change of the reported progress.
const STEP: f64 = 0.001;

/// Brings a stack to the state that `what` describes, starting at an instant of `runner`.
/// `progress` is called with values from 0 to 1 that never decrease.
///
/// The result of [`Until`] is stored in the stack. Steady state that was not reached is not an
/// error.
///
/// # Errors
/// [`StackError::PreconditionMisfit`] if a job does not fit the drive, [`StackError::Precondition`]
/// if a write fails.
pub fn precondition(
    stack: Stack,
    what: &Precondition,
    runner: &mut VirtualRunner,
    seed: u64,
    progress: &mut dyn FnMut(f64),
) -> Result<Stack, StackError> {
    let (mut drive, mut host) = stack.split();
    let name = drive.config().name.clone();
    let mut progress = |part| {
        progress(part);
        true
    };
    precondition_host(&name, &mut drive, &mut host, what, runner, seed, &mut progress)?;
    Ok(Stack::join(drive, host))
}

/// Brings a stack to the state that `what` describes, as [`precondition`](precondition()) does, or
/// to the state that is kept in its folder of states. `plan` is that of the stack.
///
/// # Errors
/// As [`precondition`](precondition()), and [`StackError::State`] if a file is refused.
pub fn precondition_stack(
    stack: Stack,
    plan: &DriveSpec,
    what: &Precondition,
    runner: &mut VirtualRunner,
    seed: u64,
    progress: &mut dyn FnMut(f64),
) -> Result<(Stack, Option<StateUse>), StackError> {
    let (mut drive, mut host) = stack.split();
    let mut progress = |part| {
        progress(part);
        true
    };
    let (drive_at, host_at) = (&mut drive, &mut host);
    let used = precondition_or_load(plan, drive_at, host_at, what, runner, seed, &mut progress)?;
    Ok((Stack::join(drive, host), used))
}

/// Brings a drive and its host to the state that `what` describes, as
/// [`precondition`](precondition()) does. With a folder of states, they start from the state that is
/// kept there, and a state that takes long enough is kept. `plan` is that of the drive.
///
/// Kept are the states of NVMe drives at time zero, with at most a pblk or an rrpc on the whole
/// drive. Drives with an image keep their state there. Steady state depends on what happened before.
///
/// # Errors
/// As [`precondition`](precondition()), and [`StackError::State`] if a file is refused.
pub(super) fn precondition_or_load(
    plan: &DriveSpec,
    drive: &mut Controller,
    host: &mut StackHost,
    what: &Precondition,
    runner: &mut VirtualRunner,
    seed: u64,
    progress: &mut dyn FnMut(f64) -> bool,
) -> Result<Option<StateUse>, StackError> {
    let name = &plan.config.name;
    let folder = what.states.as_ref().filter(|_| {
        !what.is_none()
            && what.until.is_none()
            && runner.now() == Nanos::ZERO
            && image(plan).is_none()
            // Hosts of several namespaces precondition parts of the drive.
            && plan.config.controller.namespaces.is_default()
    });
    let Some(folder) = folder else {
        precondition_host(name, drive, host, what, runner, seed, progress)?;
        return Ok(None);
    };
    let (states, key) = (StateCache(folder), StateKey::new(plan, what, seed));
    let refused = |source| StackError::State { name: name.clone(), source };
    if let Some((path, now)) = states.load(&key, drive, &mut host.device).map_err(refused)? {
        runner.advance_to(now);
        tracing::info!(drive = name, path = %path.display(), "starts from a kept state");
        return match progress(1.0) {
            true => Ok(Some(StateUse::Loaded(path))),
            false => Err(StackError::Stopped { name: name.clone() }),
        };
    }
    let started = Instant::now();
    precondition_host(name, drive, host, what, runner, seed, progress)?;
    if started.elapsed() < folder.worth {
        return Ok(None);
    }
    let kept = match SavedStack::new(drive, &host.device, runner.now()) {
        Some(state) => {
            states.keep(&key, &state).unwrap_or_else(|error| StateUse::NotKept(error.to_string()))
        }
        None => StateUse::NotKept("it is not complete without its host".to_owned()),
    };
    tracing::info!(drive = name, state = ?kept, "preconditioned");
    Ok(Some(kept))
}

/// Brings a drive and one of its hosts to the state that `what` describes, as
/// [`precondition`](precondition()) does. `name` is that of the drive. `progress` returns whether
/// to continue.
///
/// # Errors
/// As [`precondition`](precondition()), and [`StackError::Stopped`] if `progress` returns `false`.
pub(super) fn precondition_host<C: SimulatedDevice>(
    name: &str,
    drive: &mut C,
    host: &mut StackHost,
    what: &Precondition,
    runner: &mut VirtualRunner,
    seed: u64,
    progress: &mut dyn FnMut(f64) -> bool,
) -> Result<(), StackError> {
    let device = &mut host.device;
    let name = name.to_owned();
    let failed = |message: String| StackError::Precondition { name: name.clone(), message };
    let misfit = |message: String| StackError::PreconditionMisfit { name: name.clone(), message };
    let ftl = target_layers::ftl_plan(device)
        .or_else(|| drive.ftl().map(|ftl| (*ftl.config(), *ftl.capacity_plan())));
    let unit_bytes = drive.ftl().map(|ftl| ftl.geometry().sector_bytes);
    let limits = unit_limits(device.limits(), unit_bytes);
    let bytes = u64::from(device.limits().sector_bytes) * device.limits().sectors;
    let is_part = |ftl: &ftl::Ftl| {
        target_layers::ftl_plan(device).is_none()
            && bytes < ftl.sectors() * u64::from(ftl.geometry().sector_bytes)
    };
    if what.sampled && drive.ftl().is_some_and(is_part) {
        let message = "`steady = \"sampled\"` draws the state of a drive with one namespace";
        return Err(misfit(message.to_owned()));
    }
    let plan = PreconditionPlan::new(what, &limits, ftl, seed).map_err(misfit)?;
    if plan.jobs.is_empty() {
        host.steady = None;
        return Ok(());
    }
    tracing::info!(drive = name, jobs = plan.jobs.len(), "preconditioning begins");
    drive.set_zero_latency(true);
    let mut watch = PreconditionMonitor::new(&plan, what.until);
    let stride = if watch.rounds.is_some() { 1 } else { STRIDE };
    let (mut shown, mut stopped) = (0.0f64, false);
    let mut report = |part: f64| {
        if part >= shown + STEP {
            shown = part;
            stopped = !progress(part);
        }
        !stopped
    };
    let is_direct = device.only::<Raw>().is_some() && plan.takes_direct_writes(&limits);
    let blocks = device.limits().sectors;
    let direct = drive.direct_writes().filter(|d| is_direct && d.sectors() == blocks);
    let result = if let Some(drive) = direct {
        let result =
            write_directly(plan, drive, limits, runner, seed, |part| report(watch.part(part)));
        result.map_err(|e| misfit(e.to_string()))?
    } else {
        let mut jobs = plan.start(&mut *device, seed).map_err(|e| misfit(e.to_string()))?;
        let mut tell = |runner: &mut VirtualRunner, host: &mut JobRunner<_>, drive: &mut C| {
            report(watch.update(runner.now(), host, drive))
        };
        co_simulate(runner, &mut jobs, drive, RunObserver::new(&mut tell).with_interval(stride));
        first_failure(jobs)
    };
    if stopped {
        return Err(StackError::Stopped { name });
    }
    if let Some(failure) = result.map_err(failed)? {
        let ftl = target_layers::ftl_snapshot(device).map(|(stats, _)| stats);
        let worn = ftl.or_else(|| drive.ftl().map(|ftl| *ftl.stats()));
        let why = worn.filter(|f| f.program_failures + f.erase_failures > 0).map(|f| {
            format!(
                "; {} programs and {} erases have failed before, and {} chunks are retired",
                f.program_failures, f.erase_failures, f.retired_chunks
            )
        });
        return Err(failed(failure.to_string() + &why.unwrap_or_default()));
    }
    drive.set_zero_latency(false);
    drive.reset_stats();
    if !progress(1.0) {
        return Err(StackError::Stopped { name });
    }
    host.steady = watch.rounds.map(|rounds| rounds.result);
    Ok(())
}

/// Runs the jobs of a plan on a drive that takes their writes without commands. `tell` is called with
/// their progress, and returns whether to continue. Returns the first failed write, or a description
/// of a run that did not end.
///
/// # Errors
/// Those of jobs that do not fit the drive.
fn write_directly(
    plan: PreconditionPlan,
    drive: &mut Controller,
    limits: Limits,
    runner: &mut VirtualRunner,
    seed: u64,
    mut tell: impl FnMut(f64) -> bool,
) -> Result<Result<Option<IoFailure>, String>, RunError> {
    let Some(mut streams) = WriteStream::of_jobs(&plan.jobs, &limits, seed)? else {
        let mut jobs = plan.start(DirectQueue::new(drive, limits), seed)?;
        run_directly(runner, &mut jobs, tell);
        return Ok(first_failure(jobs));
    };
    if let (Some(first), Some(writes)) = (streams.first_mut(), plan.drawn) {
        first.access_first(writes);
    }
    Ok(match WriteBatches::new(streams).run(runner, drive, &mut tell) {
        WriteEnd::Done | WriteEnd::Stopped => Ok(None),
        WriteEnd::Failed(failure) => Ok(Some(failure)),
        WriteEnd::Stalled { job, outstanding } => {
            let job = plan.jobs[job].name.clone();
            Err(RunError::NotFinished { job, outstanding }.to_string())
        }
    })
}

/// Returns the first failed request of jobs, or a description of a run that did not end.
fn first_failure<D: workload::JobDevice>(jobs: JobRunner<D>) -> Result<Option<IoFailure>, String> {
    let result = jobs.finish().map_err(|e| e.to_string())?;
    Ok(result.failures().next().map(|(_, failure)| *failure))
}

/// Runs jobs on a drive that takes their writes without commands, until they are done, no event
/// remains, or `tell`, called with the progress of the jobs, returns `false`.
fn run_directly(
    runner: &mut VirtualRunner,
    jobs: &mut JobRunner<DirectQueue<'_>>,
    mut tell: impl FnMut(f64) -> bool,
) {
    let mut polls = 0u32;
    loop {
        let moved = jobs.poll(runner.now());
        polls += 1;
        if jobs.is_done() || polls.is_multiple_of(STRIDE) && !tell(jobs.progress()) {
            return;
        }
        if !moved {
            let next = jobs.deadline();
            if next == Nanos::MAX {
                return;
            }
            runner.advance_to(next);
        }
    }
}

/// Returns the limits of a device in the units that the FTL of its drive maps, so that
/// preconditioning writes whole units.
fn unit_limits(limits: &Limits, unit_bytes: Option<u32>) -> Limits {
    let blocks = unit_bytes.map_or(1, |bytes| (bytes / limits.sector_bytes.max(1)).max(1));
    Limits {
        sector_bytes: limits.sector_bytes * blocks,
        sectors: limits.sectors / u64::from(blocks),
        optimal_sectors: (limits.optimal_sectors / blocks).max(1),
        max_sectors: (limits.max_sectors / blocks).max(1),
        ..*limits
    }
}

/// The jobs of a preconditioning in order, and the number of bytes that each transfers.
struct PreconditionPlan {
    jobs: Vec<JobSpec>,
    bytes: Vec<u64>,
    /// Bytes of the last job before its rounds begin, and bytes per round.
    before_rounds: u64,
    round: u64,
    /// The writes with which the only job begins, if its steady state is drawn.
    drawn: Option<SteadyWrites>,
}

impl PreconditionPlan {
    /// Returns the jobs for a device with these limits. `ftl` is the FTL below it, or the sum of the
    /// FTLs of its shards.
    fn new(
        what: &Precondition,
        limits: &Limits,
        ftl: Option<(FtlConfig, CapacityPlan)>,
        seed: u64,
    ) -> Result<PreconditionPlan, String> {
        let mut plan = PreconditionPlan {
            jobs: Vec::new(),
            bytes: Vec::new(),
            before_rounds: 0,
            round: 0,
            drawn: None,
        };
        if what.sampled {
            let (config, capacity) = ftl.ok_or(
                "`steady = \"sampled\"` needs garbage collection by an FTL, of the drive or of a target",
            )?;
            plan.draw(what, limits, &config, &capacity, seed)?;
            return Ok(plan);
        }
        let sector = u64::from(limits.sector_bytes);
        let capacity = limits.sectors * sector;
        if what.fill == Fill::Sequential {
            let block = u64::from(limits.optimal_sectors.max(64)) * sector;
            let rest = capacity % block;
            if rest < capacity {
                let block = block.to_string();
                let pairs = [("rw", "write"), ("bs", block.as_str()), ("iodepth", "8")];
                plan.push("fill", &pairs, capacity - rest)?;
            }
            if rest > 0 {
                let (offset, size) = ((capacity - rest).to_string(), rest.to_string());
                let pairs = [
                    ("rw", "write"),
                    ("bs", size.as_str()),
                    ("offset", offset.as_str()),
                    ("stonewall", "1"),
                ];
                plan.push("fill", &pairs, rest)?;
            }
        }
        let whole = |bytes: f64| (bytes / sector as f64) as u64 * sector;
        let random = [Overwrite { amount: Amount::Times(0.0), words: Vec::new() }];
        let overwrites = match (&what.overwrite[..], what.until) {
            ([], Some(_)) => &random[..],
            (overwrites, _) => overwrites,
        };
        for (i, overwrite) in overwrites.iter().enumerate() {
            let bytes = match overwrite.amount {
                Amount::Times(times) => whole(capacity as f64 * times),
                Amount::Bytes(bytes) => whole(bytes as f64),
            };
            let mut total = bytes;
            if let (true, Some(until)) = (i + 1 == overwrites.len(), what.until) {
                plan.round = whole(capacity as f64 * until.round).max(sector);
                plan.before_rounds = bytes;
                // Rounds end at an update, slightly late: allow for one more round than the
                // maximum.
                let rounds = u64::from(until.rounds_max) + 1;
                total = total.saturating_add(plan.round.saturating_mul(rounds));
            }
            if total == 0 {
                continue;
            }
            plan.push_overwrite(&overwrite.words, sector, total)?;
        }
        Ok(plan)
    }

    /// Starts the jobs on a device.
    fn start<D: workload::JobDevice>(self, device: D, seed: u64) -> Result<JobRunner<D>, RunError> {
        let mut jobs = JobRunner::new(device, self.jobs, IoCpuCosts::default(), seed)?;
        if let Some(writes) = self.drawn {
            jobs.access_first(0, writes);
        }
        Ok(jobs)
    }

    /// Whether the jobs could run without commands: they only write, whole units of the FTL, and
    /// nothing measures the time. `limits` are those in units.
    fn takes_direct_writes(&self, limits: &Limits) -> bool {
        let unit = u64::from(limits.sector_bytes);
        let only_writes = |job: &JobSpec| {
            job.pattern.access.uses == [false, true, false]
                && job.integrity.fsync == 0
                && job.pattern.block_sizes[1].iter().all(|(bytes, _)| bytes.is_multiple_of(unit))
                && matches!(job.range.offset, Size::Bytes(bytes) if bytes.is_multiple_of(unit))
        };
        self.round == 0 && self.jobs.iter().all(only_writes)
    }

    /// Adds the job that leaves the drive in the steady state of the overwrites.
    fn draw(
        &mut self,
        what: &Precondition,
        limits: &Limits,
        config: &FtlConfig,
        capacity: &CapacityPlan,
        seed: u64,
    ) -> Result<(), String> {
        let sector = u64::from(limits.sector_bytes);
        let words = what.overwrite.first().map_or(&[][..], |overwrite| &overwrite.words);
        self.push_overwrite(words, sector, limits.sectors * sector)?;
        let job = &self.jobs[0];
        let block = job.pattern.block_sizes[1].first().map_or(sector, |(bytes, _)| *bytes);
        if !block.is_multiple_of(sector) {
            return Err(format!(
                "`steady = \"sampled\"` writes whole sectors of {sector} bytes, and not blocks of {block}"
            ));
        }
        let (block_sectors, blocks) = ((block / sector) as u32, limits.sectors * sector / block);
        let rng = Rng::new(job.pattern.randseed.unwrap_or(seed));
        let drawn = SteadyWrites::draw(config, capacity, job, blocks, block_sectors, &rng)?;
        let (writes, written) = drawn;
        self.jobs[0].range.io_size = Some(Size::Bytes(written * block));
        self.bytes[0] = written * block;
        self.drawn = Some(writes);
        Ok(())
    }

    /// Adds a job of random writes of a sector, unless `words` say otherwise, that writes `bytes`.
    fn push_overwrite(
        &mut self,
        words: &[(String, String)],
        sector: u64,
        bytes: u64,
    ) -> Result<(), String> {
        let (size, amount) = (sector.to_string(), bytes.to_string());
        let defaults = [
            ("rw", "randwrite"),
            ("bs", size.as_str()),
            ("iodepth", "64"),
            ("norandommap", "1"),
            ("stonewall", "1"),
            ("io_size", amount.as_str()),
        ];
        let given = words.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let pairs: Vec<(&str, &str)> = defaults.into_iter().chain(given).collect();
        self.push("overwrite", &pairs, bytes)
    }

    fn push(&mut self, name: &str, pairs: &[(&str, &str)], bytes: u64) -> Result<(), String> {
        let pairs = pairs.iter().enumerate().map(|(i, (key, value))| (*key, *value, i + 1));
        let spec = JobSpec::from_pairs(name, Path::new("[precondition]"), pairs);
        self.jobs.push(spec.map_err(|e| e.to_string())?.0);
        self.bytes.push(bytes);
        Ok(())
    }
}

/// Monitors the progress of a preconditioning.
struct PreconditionMonitor {
    /// Bytes of each job.
    bytes: Vec<u64>,
    rounds: Option<SteadyRounds>,
}

impl PreconditionMonitor {
    fn new(plan: &PreconditionPlan, until: Option<Until>) -> PreconditionMonitor {
        let rounds = until.map(|until| SteadyRounds {
            begin: plan.before_rounds,
            round: plan.round,
            rounds_max: until.rounds_max,
            last: None,
            result: SteadyResult::default(),
        });
        PreconditionMonitor { bytes: plan.bytes.clone(), rounds }
    }

    /// Updates the monitor from the job runner; returns the progress from 0 to 1.
    fn update(
        &mut self,
        now: Nanos,
        host: &mut JobRunner<&mut CoreQueues>,
        drive: &mut impl SimulatedDevice,
    ) -> f64 {
        let (jobs, present) = self.present(host.progress());
        if let Some(rounds) = &mut self.rounds
            && jobs + 1 == self.bytes.len()
        {
            rounds.update(now, present.round() as u64, host, drive);
        }
        self.part(host.progress())
    }

    /// Returns the number of jobs that are done, and the bytes of the next one, at a progress of the
    /// jobs from 0 to 1. They run one after the other.
    fn present(&self, progress: f64) -> (usize, f64) {
        let done = progress * self.bytes.len() as f64;
        let (jobs, part) = (done as usize, done.fract());
        (jobs, self.bytes.get(jobs).map_or(0.0, |bytes| *bytes as f64 * part))
    }

    /// Returns the share of the bytes at a progress of the jobs, both from 0 to 1.
    fn part(&self, progress: f64) -> f64 {
        let (jobs, present) = self.present(progress);
        let moved = self.bytes.iter().take(jobs).sum::<u64>() as f64 + present;
        moved / self.bytes.iter().sum::<u64>().max(1) as f64
    }
}

/// Rounds until steady state.
struct SteadyRounds {
    /// Bytes of the last job after which the rounds begin.
    begin: u64,
    round: u64,
    rounds_max: u32,
    /// Bytes, instant and FTL counters at the start of the current round.
    last: Option<(u64, Nanos, Option<FtlStats>)>,
    result: SteadyResult,
}

impl SteadyRounds {
    fn update(
        &mut self,
        now: Nanos,
        bytes: u64,
        host: &mut JobRunner<&mut CoreQueues>,
        drive: &mut impl SimulatedDevice,
    ) {
        if bytes < self.begin || self.is_finished() {
            return;
        }
        let in_host = target_layers::ftl_snapshot(host.device_mut()).map(|(stats, _)| stats);
        let ftl = in_host.or_else(|| drive.ftl().map(|ftl| *ftl.stats()));
        let Some((from, began, before)) = self.last else {
            self.last = Some((bytes, now, ftl));
            drive.set_zero_latency(false);
            return;
        };
        if bytes - from < self.round {
            return;
        }
        let after = ftl;
        let counted = after.zip(before).map(|(after, before)| after.since(&before));
        self.result.push(Round {
            bytes: bytes - from,
            elapsed: now.since(began),
            write_amplification: counted.and_then(|c| c.write_amplification()),
            lines_reclaimed: counted.map(|c| c.lines_reclaimed),
        });
        self.last = Some((bytes, now, after));
        if self.is_finished() {
            host.stop();
        }
    }

    fn is_finished(&self) -> bool {
        self.result.reached || self.result.rounds.len() as u64 >= self.rounds_max.into()
    }
}
