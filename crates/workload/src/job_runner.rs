//! [`Host`]: the software above a block device: runs jobs on it, in virtual or in real time.
//!
//! A component like any other (rule R2): it knows the time only from `poll`. Jobs share the device
//! as threads of one program would; each is a virtual CPU that submits and completes one request at
//! a time, at the costs given.

use block::{BlockDevice, Completion, Limits};
use clock::{Component, Nanos};
use ring::PAGE_BYTES;
use rng::Rng;
use tracepoint::Event;

use crate::error::RunError;
use crate::io_range::io_range;
use crate::job::JobSpec;
use crate::job_log::JobLogs;
use crate::memory;
use crate::ready_times::ReadyTimes;
use crate::result::RunResult;
use crate::source::Source;
use crate::verify::VerifyState;
use crate::worker::{JobThread, RunContext, VerifyBuffers};

/// What it costs a job's CPU to submit a request, and to handle its completion. In real time the
/// costs are real, and these are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCpuCosts {
    /// Per submission.
    pub submit: Nanos,
    /// Per completion.
    pub complete: Nanos,
}

/// Polls at one instant before a run that needs time to pass is declared stuck.
const POLLS_PER_INSTANT_MAX: u64 = 1 << 16;

/// The job of the request that a [`Host`] gave this tag: its place among the jobs, clones counted one
/// by one.
#[inline]
pub const fn job_index_of_tag(tag: u64) -> usize {
    (tag >> 32) as usize
}

/// Checks `jobs` against a device of these limits, before it is brought to its state for them: memory,
/// sizes and offsets, folders of logs, and every line of a trace that the job's `runtime` can reach.
///
/// # Errors
/// Those of [`Host::new`], of [`Host::open_logs`] and of the replay itself.
pub fn check_jobs(jobs: &[JobSpec], limits: &Limits) -> Result<(), RunError> {
    memory::check(jobs, limits, memory::available_memory())?;
    for spec in jobs {
        JobLogs::check(spec)?;
        for clone in [0, spec.numjobs.saturating_sub(1)] {
            let area = io_range(spec, clone, limits)
                .map_err(|what| RunError::DeviceMismatch { job: spec.name.clone(), what })?;
            let source = Source::new(spec, area, limits, &Rng::new(0))?;
            if let (Source::Replay(replay), 0) = (source, clone) {
                let until = spec.runtime.map_or(Nanos::MAX, |time| time + spec.ramp_time);
                let checked = replay.reader.check(until);
                checked.map_err(|source| RunError::Trace { job: spec.name.clone(), source })?;
            }
        }
    }
    Ok(())
}

/// Runs jobs on a device.
#[derive(Debug)]
pub struct JobRunner<D> {
    device: D,
    context: RunContext,
    threads: Vec<JobThread>,
    /// When each worker wants to run even if nothing completes.
    ready_times: ReadyTimes,
    /// The earliest of `ready`.
    earliest: Nanos,
    /// Where the next round over the workers starts: at the first that got nothing for lack of
    /// room, so that jobs take turns at a full device.
    first_worker: usize,
    /// Workers that wait for room in the device, or for another's write to the same sectors.
    refused: Vec<u32>,
    /// Something moved since then.
    retry: bool,
    /// Jobs before a `stonewall` are one stage; stages run one after the other.
    stage: u32,
    started: Option<Nanos>,
    now: Nanos,
    polls_at_now: u64,
    unfinished: usize,
    error: Option<RunError>,
    seed: u64,
}

impl<D: BlockDevice> JobRunner<D> {
    /// Prepares `jobs` on `device`. `seed` names everything that is drawn, unless a job has a
    /// `randseed`.
    ///
    /// # Errors
    /// [`RunError`]: what does not fit the device, or a trace that cannot be opened.
    pub fn new(
        device: D,
        jobs: Vec<JobSpec>,
        costs: IoCpuCosts,
        seed: u64,
    ) -> Result<JobRunner<D>, RunError> {
        if jobs.is_empty() {
            return Err(RunError::NoJobs);
        }
        let limits = *device.limits();
        memory::check(&jobs, &limits, memory::available_memory())?;
        let mut workers = Vec::new();
        let (mut stage, mut group) = (0, 0);
        for (i, spec) in jobs.into_iter().enumerate() {
            stage += u32::from(spec.stonewall && i > 0);
            group += u32::from((spec.stonewall || spec.new_group) && i > 0);
            for clone in 0..spec.numjobs {
                let index = workers.len() as u64;
                let rng = match spec.randseed {
                    Some(own) => Rng::new(own).fork(u64::from(clone)),
                    None => Rng::new(seed).fork(index),
                };
                workers.push(JobThread::new(spec.clone(), clone, stage, group, &limits, rng)?);
            }
        }
        let verifying = workers.iter().any(JobThread::has_verify);
        let (ledger, buffers) = if verifying {
            let memory = |e: &dyn std::fmt::Display| RunError::Memory(e.to_string());
            let ledger = VerifyState::new(limits.sectors).map_err(|e| memory(&e))?;
            (Some(ledger), Some(map_buffers(&device, &mut workers)?))
        } else {
            (None, None)
        };
        let shared = RunContext {
            limits,
            costs,
            verify_state: ledger,
            buffers,
            submit_failed: false,
            epoch: Nanos::ZERO,
        };
        let count = workers.len();
        Ok(JobRunner {
            device,
            context: shared,
            ready_times: ReadyTimes::new(count),
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

    /// Opens the logs of the jobs that write any (`write_lat_log` and its like). They are numbered
    /// from `first`, clones counted one by one; fio's first is 1. Returns the number after the last.
    ///
    /// # Errors
    /// [`RunError::Log`] when a file cannot be created.
    pub fn open_logs(&mut self, first: usize) -> Result<usize, RunError> {
        for (i, worker) in self.threads.iter_mut().enumerate() {
            worker.open_logs(first + i)?;
        }
        Ok(first + self.threads.len())
    }

    /// Whether every job has ended, or the run has failed; [`finish`](Host::finish) says which.
    pub fn is_done(&self) -> bool {
        self.unfinished == 0 || self.error.is_some()
    }

    /// How much of the jobs is done, of 1: by time or by bytes, whichever is further.
    pub fn progress(&self) -> f64 {
        if self.threads.is_empty() {
            return 1.0;
        }
        let sum: f64 = self.threads.iter().map(|w| w.progress(self.now)).sum();
        sum / self.threads.len() as f64
    }

    /// Ends the jobs early: nothing more is issued, what is outstanding completes, and results are
    /// those up to here.
    pub fn stop(&mut self) {
        self.stage = u32::MAX;
        for (i, worker) in self.threads.iter_mut().enumerate() {
            worker.stop(self.now);
            self.ready_times.set(i, Nanos::ZERO);
        }
        self.earliest = Nanos::ZERO;
    }

    /// The names of the jobs, clones counted one by one: in the order of [`job_index_of_tag`].
    pub fn job_names(&self) -> impl Iterator<Item = &str> {
        self.threads.iter().map(JobThread::name)
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, for its own controls; requests of one's own would be stray completions here.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Takes the results.
    ///
    /// # Errors
    /// [`RunError`] when the run has not ended, has failed, or when requests are not accounted
    /// for. Requests that failed are results, not errors: see
    /// [`RunResult::failures`](crate::RunResult::failures).
    pub fn finish(mut self) -> Result<RunResult, RunError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        for worker in &mut self.threads {
            worker.check_accounting()?;
            worker.finish_logs()?;
        }
        let started = self.started.unwrap_or(self.now);
        let jobs: Vec<_> = self.threads.into_iter().map(|w| w.into_result(started)).collect();
        let ended = jobs.iter().map(|j| j.ended).max().unwrap_or(Nanos::ZERO);
        Ok(RunResult { seed: self.seed, elapsed: ended, jobs })
    }

    /// Starts every job of the present stage.
    fn start_stage(&mut self, now: Nanos) {
        for (i, worker) in self.threads.iter_mut().enumerate() {
            if worker.stage() == self.stage {
                let at = worker.start(now);
                self.ready_times.set(i, at);
                self.earliest = self.earliest.min(at);
            }
        }
    }

    /// Starts the next stage once all before it have ended.
    fn next_stage(&mut self, now: Nanos) {
        while self.unfinished > 0
            && self.threads.iter().all(|w| w.stage() > self.stage || w.is_done())
        {
            self.stage += 1;
            self.start_stage(now);
        }
    }

    #[inline]
    fn reap(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some(Completion { tag, status, .. }) = self.device.reap() {
            any = true;
            let (job, slot) = (job_index_of_tag(tag), tag as u32);
            let Some(worker) = self.threads.get_mut(job) else {
                self.error = Some(RunError::SpuriousCompletion { tag, status });
                return true;
            };
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

    /// Runs every worker that is ready, from `first` on and around.
    #[inline]
    fn run(&mut self, now: Nanos) -> bool {
        let (mut moved, mut finished, mut first) = (false, 0, None);
        let start = self.first_worker;
        let (mut from, mut end) = (start, self.threads.len());
        loop {
            let Some(i) = self.ready_times.next(from, end, now) else {
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
            match worker.step(now, i as u64, &mut self.device, &mut self.context) {
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
        self.earliest = self.ready_times.earliest();
        if finished > 0 {
            self.unfinished = self.threads.iter().filter(|w| !w.is_done()).count();
            self.next_stage(now);
        }
        moved
    }

    /// A device and a host that take no time at all would never reach the end of a runtime.
    #[cold]
    fn check_time_advances(&mut self, now: Nanos) {
        if let Some(job) = self.threads.iter().find(|w| w.is_time_bound()) {
            self.error = Some(RunError::TimeStalled { at: now, job: job.name().to_owned() });
        }
        self.polls_at_now = 0;
    }
}

/// One region for the payloads of all verifying jobs, each slot on pages of its own.
fn map_buffers<D: BlockDevice>(
    device: &D,
    workers: &mut [JobThread],
) -> Result<VerifyBuffers, RunError> {
    let mut total = 0u64;
    for worker in workers.iter_mut() {
        total += worker.assign_buffers(total);
    }
    let len = (total as usize).max(PAGE_BYTES);
    // Memory that the device can reach, if that is in another process.
    let provided = device.memory().allocate_registered(len);
    let (region, base) = provided.map_err(|e| RunError::Memory(e.to_string()))?;
    Ok(VerifyBuffers { region, base, scratch: vec![0; device.limits().sector_bytes as usize] })
}

impl<D: BlockDevice> Component for JobRunner<D> {
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
        tracepoint::set_time(now);
        let mut moved = self.device.poll(now);
        moved |= self.reap(now);
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
            // What was submitted goes to the drive in this round, not in the next.
            self.device.poll(now);
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
