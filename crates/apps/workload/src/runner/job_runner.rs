//! [`JobRunner`]: runs jobs on a device, in virtual or in real time.
//!
//! The runner is a component (ARCHITECTURE.md, R2) and knows the time only from `poll`. Jobs share
//! the device as the threads of one program do. Each job is a virtual CPU that submits and
//! completes one request at a time, at the configured cost.

use std::sync::Arc;

use block::{Completion, Limits};
use collections::MinTree;
use mem::PAGE_BYTES;
use rng::Rng;
use time::{Component, Nanos};
use tracepoint::Event;

use crate::device::{Addressing, DeviceSpace, JobDevice, JobLimits};
use crate::error::RunError;
use crate::io_range::io_range;
use crate::job::JobSpec;
use crate::results::job_log::JobLogs;
use crate::results::result::RunResult;
use crate::runner::chunk_states::ChunkStates;
use crate::runner::memory;
use crate::runner::pattern::GivenRanks;
use crate::runner::source::RequestSource;
use crate::runner::stages::JobStages;
use crate::runner::verify::VerifyState;
use crate::runner::worker::{JobThread, PayloadMemory, RunContext};

/// CPU time that a job needs to submit a request and to process its completion. In real time these
/// costs occur by themselves, and both values are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCpuCosts {
    /// CPU time per submission.
    pub submit: Nanos,
    /// CPU time per completion.
    pub complete: Nanos,
}

/// The jobs of one of several threads: every `threads`-th one from the `first`, with clones counted
/// one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPart {
    /// Index of the thread.
    pub first: u64,
    /// Number of threads.
    pub threads: u64,
}

impl JobPart {
    /// All jobs.
    pub const ALL: JobPart = JobPart { first: 0, threads: 1 };

    fn contains(self, index: u64) -> bool {
        index % self.threads.max(1) == self.first
    }

    /// Returns the index over all jobs of the job with this position in the part.
    #[inline]
    fn index_of(self, position: usize) -> u64 {
        self.first + position as u64 * self.threads
    }

    /// Returns the position in the part of the job with this index over all jobs.
    #[inline]
    fn position_of(self, index: usize) -> usize {
        match self.threads {
            0 | 1 => index,
            threads => index / threads as usize,
        }
    }
}

/// Maximum number of polls at one instant. A run that needs time to pass fails with
/// [`RunError::TimeStalled`] after it.
const POLLS_PER_INSTANT_MAX: u64 = 1 << 16;

/// Returns the index of the job that issued the request with this tag. The index counts clones one
/// by one.
#[inline]
pub const fn job_index_of_tag(tag: u64) -> usize {
    (tag >> 32) as usize
}

/// Checks `jobs` against a block device with these limits, before the device is preconditioned.
///
/// # Errors
/// As [`check_jobs_on`].
pub fn check_jobs(jobs: &[JobSpec], limits: &Limits) -> Result<(), RunError> {
    check_jobs_on(jobs, &JobLimits::Blocks(*limits))
}

/// Checks `jobs` against a device with these limits, before the device is preconditioned.
///
/// The check covers addressing, memory, sizes, offsets, directories of logs, and every trace line
/// that the job's `runtime` can reach.
///
/// # Errors
/// The errors of [`JobRunner::new`], of [`JobRunner::open_logs`] and of the replay.
pub fn check_jobs_on(jobs: &[JobSpec], limits: &JobLimits) -> Result<(), RunError> {
    let units = limits.units().cloned();
    let limits = &unit_limits(jobs, limits)?;
    memory::check(jobs, limits, memory::available_memory())?;
    let device = DeviceSpace { sectors: limits, units: units.as_ref() };
    for spec in jobs {
        JobLogs::check(spec)?;
        for clone in [0, spec.numjobs.saturating_sub(1)] {
            let area = io_range(spec, clone, limits)
                .map_err(|what| RunError::DeviceMismatch { job: spec.name.clone(), what })?;
            let source = RequestSource::new(spec, clone, area, device, &Rng::new(0))?;
            if let (RequestSource::Replay(replay), 0) = (source, clone) {
                let until =
                    spec.schedule.runtime.map_or(Nanos::MAX, |time| time + spec.schedule.ramp_time);
                let checked = replay.reader.check(until);
                checked.map_err(|source| RunError::Trace { job: spec.name.clone(), source })?;
            }
        }
    }
    Ok(())
}

/// Returns the limits of a device in the units that jobs address: sectors, or records.
///
/// # Errors
/// [`RunError::WrongAddressing`] if a job is addressed otherwise than the device,
/// [`RunError::DeviceMismatch`] if its values are larger than the device allows,
/// [`RunError::TwoWriters`].
fn unit_limits(jobs: &[JobSpec], limits: &JobLimits) -> Result<Limits, RunError> {
    let device = limits.addressing();
    if let Some(job) = jobs.iter().find(|job| job.addressing() != device) {
        return Err(RunError::WrongAddressing {
            job: job.name.clone(),
            job_addressing: job.addressing(),
            device_addressing: device,
        });
    }
    let keys = match limits {
        JobLimits::Blocks(limits) => return Ok(*limits),
        JobLimits::Keys(limits) => limits,
        JobLimits::Units(limits) => {
            limits.check(jobs)?;
            return Ok(Limits {
                sector_bytes: limits.geometry.sector_bytes,
                sectors: limits.sectors(),
                max_sectors: limits.sectors_max,
                optimal_sectors: limits.geometry.ws_opt,
                queue_depth: limits.queue_depth,
                volatile_cache: false,
                atomic: block::AtomicLimits::NONE,
            });
        }
    };
    if let Some(job) = jobs.iter().find(|job| job.value_bytes() > keys.value_bytes_max) {
        let (bytes, most) = (job.value_bytes(), keys.value_bytes_max);
        let what = format!("its values of {bytes} bytes exceed the device's {most} bytes (`bs`)");
        return Err(RunError::DeviceMismatch { job: job.name.clone(), what });
    }
    let records =
        jobs.iter().filter_map(|job| Some(job.keys?.addressed_records(job.numjobs))).max();
    Ok(Limits {
        // The size of a value is that of each job.
        sector_bytes: 1,
        sectors: records.unwrap_or(0),
        max_sectors: u32::MAX,
        optimal_sectors: 1,
        queue_depth: keys.queue_depth,
        volatile_cache: true,
        atomic: block::AtomicLimits::NONE,
    })
}

/// Runs jobs on a device.
#[derive(Debug)]
pub struct JobRunner<D> {
    device: D,
    context: RunContext,
    threads: Vec<JobThread>,
    /// Time at which each job thread must run even if nothing completes.
    ready_times: MinTree<Nanos>,
    /// Minimum of `ready_times`.
    earliest: Nanos,
    /// Index of the job thread at which the next iteration starts. It is the first thread that the
    /// device rejected for lack of capacity, so that jobs share a full device fairly.
    first_worker: usize,
    /// Job threads that wait for capacity of the device, or for another thread's write to the same
    /// sectors.
    refused: Vec<u32>,
    /// Whether a job thread made progress in the last poll, so that blocked threads retry.
    retry: bool,
    /// Current stage. The jobs before a `stonewall` form one stage; stages run one after the other.
    stage: u32,
    started: Option<Nanos>,
    now: Nanos,
    polls_at_now: u64,
    unfinished: usize,
    error: Option<RunError>,
    seed: u64,
}

impl<D: JobDevice> JobRunner<D> {
    /// Prepares `jobs` on `device`. `seed` seeds all random numbers, unless a job has a `randseed`.
    ///
    /// # Errors
    /// [`RunError`] if a job does not fit the device or is addressed otherwise
    /// ([`RunError::WrongAddressing`]), or if a trace cannot be opened.
    pub fn new(
        device: D,
        jobs: Vec<JobSpec>,
        costs: IoCpuCosts,
        seed: u64,
    ) -> Result<JobRunner<D>, RunError> {
        JobRunner::with_part(device, jobs, costs, seed, JobPart::ALL)
    }

    /// Prepares a part of `jobs`, as [`new`](JobRunner::new) does for all: for one of several threads,
    /// each with a device of its own. The jobs are those of `new`, to the last random number.
    ///
    /// # Errors
    /// As [`new`](JobRunner::new); [`RunError::NoJobs`] if the part has none.
    pub fn with_part(
        device: D,
        jobs: Vec<JobSpec>,
        costs: IoCpuCosts,
        seed: u64,
        part: JobPart,
    ) -> Result<JobRunner<D>, RunError> {
        if jobs.is_empty() {
            return Err(RunError::NoJobs);
        }
        let device_limits = device.limits();
        let (limits, units) = (unit_limits(&jobs, &device_limits)?, device_limits.units());
        memory::check(&jobs, &limits, memory::available_memory())?;
        let mut workers = Vec::new();
        let (mut stage, mut group, mut index) = (0, 0, 0);
        for (i, spec) in jobs.into_iter().enumerate() {
            stage += u32::from(spec.schedule.stonewall && i > 0);
            group += u32::from((spec.schedule.stonewall || spec.report.new_group) && i > 0);
            for clone in 0..spec.numjobs {
                let is_of_part = part.contains(index);
                index += 1;
                if !is_of_part {
                    continue;
                }
                let index = index - 1;
                let rng = match spec.pattern.randseed {
                    Some(own) => Rng::new(own).fork(u64::from(clone)),
                    None => Rng::new(seed).fork(index),
                };
                let limits = DeviceSpace { sectors: &limits, units };
                workers.push(JobThread::new(spec.clone(), clone, stage, group, limits, rng)?);
            }
        }
        if workers.is_empty() {
            return Err(RunError::NoJobs);
        }
        let is_keyed = device.addressing() == Addressing::Keys;
        let chunks = units.map(|units| Box::new(ChunkStates::new(units, device.chunks())));
        let ledger = if workers.iter().any(JobThread::has_verify) {
            let ledger = match is_keyed {
                true => VerifyState::of_records(limits.sectors),
                false => VerifyState::new(limits.sectors),
            };
            Some(ledger.map_err(|e| RunError::Memory(e.to_string()))?)
        } else {
            None
        };
        let buffers = match ledger.is_some() || is_keyed {
            true => Some(map_buffers(&device, &mut workers)?),
            false => None,
        };
        let shared = RunContext {
            limits,
            costs,
            part,
            stages: None,
            has_completion_steps: ledger.is_some() || is_keyed || chunks.is_some(),
            verify_state: ledger,
            buffers,
            chunks,
            submit_failed: false,
            epoch: Nanos::ZERO,
        };
        let count = workers.len();
        Ok(JobRunner {
            device,
            context: shared,
            ready_times: MinTree::with_len(count, Nanos::MAX),
            earliest: Nanos::MAX,
            first_worker: 0,
            refused: Vec::with_capacity(count),
            retry: false,
            stage: 0,
            started: None,
            now: Nanos::ZERO,
            polls_at_now: 0,
            unfinished: count,
            threads: workers,
            error: None,
            seed,
        })
    }

    /// Makes a job access the blocks of `ranks` before those that it draws; its amount counts both.
    /// It draws others than a job with the same seed that begins with its own. The most popular
    /// block of a job has rank 0; under a uniform distribution a rank is the number of a block.
    ///
    /// # Panics
    /// If there is no job `index`, or it generates no blocks (replays, and jobs on keys or parallel
    /// units); and when it runs, if a rank is not below the number of its blocks.
    pub fn access_first(
        &mut self,
        index: usize,
        ranks: impl Iterator<Item = u64> + Send + 'static,
    ) {
        self.threads[index].access_first(GivenRanks(Box::new(ranks)));
    }

    /// Makes the jobs wait for those of other threads that are before a `stonewall`, and the others
    /// for them. `stages` are those of all jobs, and each thread of the jobs has them.
    pub fn share_stages(&mut self, stages: Arc<JobStages>) {
        self.context.stages = Some(stages);
    }

    /// Opens the logs of all jobs that write any (`write_lat_log` and similar options).
    ///
    /// The logs are numbered from `first`, with clones counted one by one; fio starts at 1. Returns
    /// the number after the last one.
    ///
    /// # Errors
    /// [`RunError::Log`] if a file cannot be created.
    pub fn open_logs(&mut self, first: usize) -> Result<usize, RunError> {
        self.open_logs_of(first, JobPart::ALL)?;
        Ok(first + self.threads.len())
    }

    /// Opens the logs of the jobs of a part, as [`open_logs`](JobRunner::open_logs) does for all.
    /// `first` is the number of the first job of all.
    ///
    /// # Errors
    /// [`RunError::Log`] if a file cannot be created.
    pub fn open_logs_of(&mut self, first: usize, part: JobPart) -> Result<(), RunError> {
        for (i, worker) in (0..).zip(&mut self.threads) {
            worker.open_logs(first + (part.first + i * part.threads) as usize)?;
        }
        Ok(())
    }

    /// Returns whether every job has ended or the run has failed; [`finish`](JobRunner::finish)
    /// returns which.
    pub fn is_done(&self) -> bool {
        self.unfinished == 0 || self.error.is_some()
    }

    /// Returns the progress of the jobs from 0 to 1, by time or by bytes, whichever is further.
    pub fn progress(&self) -> f64 {
        if self.threads.is_empty() {
            return 1.0;
        }
        let sum: f64 = self.threads.iter().map(|w| w.progress(self.now)).sum();
        sum / self.threads.len() as f64
    }

    /// Stops the jobs early. They issue no more requests, and outstanding requests complete. The
    /// results cover the time until then.
    pub fn stop(&mut self) {
        self.stage = u32::MAX;
        for (i, worker) in self.threads.iter_mut().enumerate() {
            worker.stop(self.now);
            self.ready_times.set(i, Nanos::ZERO);
        }
        self.earliest = Nanos::ZERO;
    }

    /// Returns the names of the jobs in the order of [`job_index_of_tag`], with clones counted one
    /// by one.
    pub fn job_names(&self) -> impl Iterator<Item = &str> {
        self.threads.iter().map(JobThread::name)
    }

    /// Returns the device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns mutable access to the device, for its control functions. The caller must not submit
    /// requests: their completions would be spurious here.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Returns the results.
    ///
    /// # Errors
    /// [`RunError`] if the run has not ended, has failed, or does not account for all requests.
    /// Failed requests are results, not errors: see
    /// [`RunResult::failures`](crate::RunResult::failures).
    pub fn finish(self) -> Result<RunResult, RunError> {
        self.finish_with_device().1
    }

    /// Returns the device, for example for jobs that follow, and the results.
    ///
    /// # Errors
    /// As [`finish`](JobRunner::finish).
    pub fn finish_with_device(mut self) -> (D, Result<RunResult, RunError>) {
        if let Some(error) = self.error {
            return (self.device, Err(error));
        }
        for worker in &mut self.threads {
            if let Err(error) = worker.check_accounting().and_then(|()| worker.finish_logs()) {
                return (self.device, Err(error));
            }
        }
        let started = self.started.unwrap_or(self.now);
        let jobs: Vec<_> = self.threads.into_iter().map(|w| w.into_result(started)).collect();
        let ended = jobs.iter().map(|j| j.ended).max().unwrap_or(Nanos::ZERO);
        (self.device, Ok(RunResult { seed: self.seed, elapsed: ended, jobs }))
    }

    /// Starts every job of the current stage.
    fn start_stage(&mut self, now: Nanos) {
        for (i, worker) in self.threads.iter_mut().enumerate() {
            if worker.stage() == self.stage {
                let at = worker.start(now);
                self.ready_times.set(i, at);
                self.earliest = self.earliest.min(at);
            }
        }
    }

    /// Starts the next stage if all jobs of the stages before it have ended.
    fn next_stage(&mut self, now: Nanos) {
        while self.unfinished > 0
            && self.stage < u32::MAX
            && self.threads.iter().all(|w| w.stage() > self.stage || w.is_done())
            && self.context.stages.as_ref().is_none_or(|stages| stages.has_ended(self.stage))
        {
            self.stage += 1;
            self.start_stage(now);
        }
    }

    #[inline]
    fn reap(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some(Completion { tag, status, result }) = self.device.reap() {
            any = true;
            let (job, slot) = (job_index_of_tag(tag), tag as u32);
            let job = self.context.part.position_of(job);
            let Some(worker) = self.threads.get_mut(job) else {
                self.error = Some(RunError::SpuriousCompletion { tag, status });
                return true;
            };
            if self.device.addressing() == Addressing::Keys {
                worker.on_records_found(slot, status, result);
            }
            match worker.on_completion(slot, status) {
                Ok(()) => {
                    tracepoint::trace_at(now, || Event::RequestCompleted { tag });
                    let at = worker.cpu_free().max(now);
                    self.ready_times.lower(job, at);
                    self.earliest = self.earliest.min(at);
                }
                Err(()) => {
                    self.error = Some(RunError::SpuriousCompletion { tag, status });
                    return true;
                }
            }
        }
        any
    }

    /// Runs every job thread that is ready, once around from `first_worker`.
    #[inline]
    fn run(&mut self, now: Nanos) -> bool {
        let (mut moved, mut finished, mut first) = (false, 0, None);
        let start = self.first_worker;
        let (mut from, mut end) = (start, self.threads.len());
        loop {
            let Some(i) = self.ready_times.first_at_most(from, end, now) else {
                if end == start || start == 0 {
                    break;
                }
                (from, end) = (0, start);
                continue;
            };
            from = i + 1;
            let worker = &mut self.threads[i];
            self.context.submit_failed = false;
            let issued = worker.issued_count();
            match worker.step(
                now,
                self.context.part.index_of(i),
                &mut self.device,
                &mut self.context,
            ) {
                Ok(run) => {
                    moved |= run.made_progress;
                    self.ready_times.set(i, run.ready_at);
                }
                Err(e) => {
                    self.error = Some(e);
                    return true;
                }
            }
            if self.context.submit_failed {
                self.refused.push(i as u32);
                if worker.issued_count() == issued {
                    first.get_or_insert(i);
                }
            }
            finished += usize::from(worker.is_done());
        }
        if let Some(first) = first {
            self.first_worker = first;
        }
        self.earliest = self.ready_times.min();
        if finished > 0 {
            let before = self.unfinished;
            self.unfinished = self.threads.iter().filter(|w| !w.is_done()).count();
            if let Some(stages) = &self.context.stages {
                stages.end_jobs(self.stage, (before - self.unfinished) as u32);
            }
            self.next_stage(now);
        }
        moved
    }

    /// Fails the run if time does not advance. A device and a host that consume no time would never
    /// reach the end of a runtime.
    #[cold]
    fn check_time_advances(&mut self, now: Nanos) {
        if let Some(job) = self.threads.iter().find(|w| w.is_time_bound()) {
            self.error = Some(RunError::TimeStalled { at: now, job: job.name().to_owned() });
        }
        self.polls_at_now = 0;
    }
}

/// Maps one region for the payloads of all jobs that have any; each slot has pages of its own.
fn map_buffers<D: JobDevice>(
    device: &D,
    workers: &mut [JobThread],
) -> Result<PayloadMemory, RunError> {
    let mut total = 0u64;
    for worker in workers.iter_mut() {
        total += worker.assign_buffers(total);
    }
    let len = (total as usize).max(PAGE_BYTES);
    // A device in another process provides memory that it can access.
    let provided = device.memory().allocate_registered(len);
    let (region, base) = provided.map_err(|e| RunError::Memory(e.to_string()))?;
    if device.addressing() == Addressing::Keys {
        // Values that are not verified have this content.
        for (i, at) in (1..).zip((0..len).step_by(8)) {
            region.write(at, &u64::to_le_bytes(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(i)));
        }
    }
    let unit = workers.iter().map(JobThread::unit_bytes).max().unwrap_or(0);
    Ok(PayloadMemory { region, base, scratch: vec![0; unit as usize] })
}

impl<D: JobDevice> Component for JobRunner<D> {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        if self.error.is_some() {
            return false;
        }
        if self.started.is_none() {
            self.started = Some(now);
            self.context.epoch = now;
            if self.stage == 0 {
                self.start_stage(now);
            }
        }
        if now > self.now {
            self.now = now;
            self.polls_at_now = 0;
        }
        if self.context.stages.is_some() {
            self.next_stage(now);
        }
        tracepoint::set_time(now);
        let mut moved = self.device.poll(now);
        moved |= self.reap(now);
        let now = self.device.time_after(now);
        self.now = now;
        if !self.refused.is_empty() && (moved || self.retry) {
            self.retry = false;
            for i in self.refused.drain(..) {
                if self.threads[i as usize].is_blocked() {
                    self.ready_times.set(i as usize, Nanos::ZERO);
                    self.earliest = Nanos::ZERO;
                }
            }
        }
        if self.earliest <= now && self.run(now) {
            moved = true;
            self.retry = true;
            self.polls_at_now += 1;
            if self.polls_at_now > POLLS_PER_INSTANT_MAX {
                self.check_time_advances(now);
            }
            // Submits the new requests to the drive in this iteration rather than in the next one.
            self.device.poll(self.device.time_after(now));
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        if self.error.is_some() {
            return Nanos::MAX;
        }
        let own = if self.started.is_none() { Nanos::ZERO } else { self.earliest };
        own.min(self.device.deadline())
    }
}
