//! [`Host`]: the software above a block device: runs jobs on it, in virtual or in real time.
//!
//! A component like any other (rule R2): it knows the time only from `poll`. Jobs share the device
//! as threads of one program would; each is a virtual CPU that submits and completes one request at
//! a time, at the costs given.

use block::{Completion, Device, Limits};
use clock::{Component, Nanos};
use ring::PAGE;
use rng::Rng;
use tracepoint::Event;

use crate::area::area;
use crate::error::HostError;
use crate::job::JobSpec;
use crate::log::JobLogs;
use crate::memory;
use crate::ready::ReadyTimes;
use crate::result::RunResult;
use crate::source::Source;
use crate::verify::Ledger;
use crate::worker::{Buffers, Shared, Worker};

/// What it costs a job's CPU to submit a request, and to handle its completion. In real time the
/// costs are real, and these are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCosts {
    /// Per submission.
    pub submit: Nanos,
    /// Per completion.
    pub complete: Nanos,
}

/// Polls at one instant before a run that needs time to pass is declared stuck.
const MAX_POLLS_AT_ONE_INSTANT: u64 = 1 << 16;

/// The job of the request that a [`Host`] gave this tag: its place among the jobs, clones counted one
/// by one.
#[inline]
pub const fn job_of_tag(tag: u64) -> usize {
    (tag >> 32) as usize
}

/// Checks `jobs` against a device of these limits, before it is brought to its state for them: memory,
/// sizes and offsets, folders of logs, and every line of a trace that the job's `runtime` can reach.
///
/// # Errors
/// Those of [`Host::new`], of [`Host::open_logs`] and of the replay itself.
pub fn check_jobs(jobs: &[JobSpec], limits: &Limits) -> Result<(), HostError> {
    memory::check(jobs, limits, memory::available_memory())?;
    for spec in jobs {
        JobLogs::check(spec)?;
        for clone in [0, spec.numjobs.saturating_sub(1)] {
            let area = area(spec, clone, limits)
                .map_err(|what| HostError::Misfit { job: spec.name.clone(), what })?;
            let source = Source::new(spec, area, limits, &Rng::new(0))?;
            if let (Source::Replay(replay), 0) = (source, clone) {
                let until = spec.runtime.map_or(Nanos::MAX, |time| time + spec.ramp_time);
                let checked = replay.reader.check(until);
                checked.map_err(|source| HostError::Trace { job: spec.name.clone(), source })?;
            }
        }
    }
    Ok(())
}

/// Runs jobs on a device.
#[derive(Debug)]
pub struct Host<D> {
    device: D,
    shared: Shared,
    workers: Vec<Worker>,
    /// When each worker wants to run even if nothing completes.
    ready: ReadyTimes,
    /// The earliest of `ready`.
    earliest: Nanos,
    /// Where the next round over the workers starts: at the first that got nothing for lack of
    /// room, so that jobs take turns at a full device.
    first: usize,
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
    error: Option<HostError>,
    seed: u64,
}

impl<D: Device> Host<D> {
    /// Prepares `jobs` on `device`. `seed` names everything that is drawn, unless a job has a
    /// `randseed`.
    ///
    /// # Errors
    /// [`HostError`]: what does not fit the device, or a trace that cannot be opened.
    pub fn new(
        device: D,
        jobs: Vec<JobSpec>,
        costs: HostCosts,
        seed: u64,
    ) -> Result<Host<D>, HostError> {
        if jobs.is_empty() {
            return Err(HostError::NoJobs);
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
                workers.push(Worker::new(spec.clone(), clone, stage, group, &limits, rng)?);
            }
        }
        let verifying = workers.iter().any(Worker::verifies);
        let (ledger, buffers) = if verifying {
            let memory = |e: &dyn std::fmt::Display| HostError::Memory(e.to_string());
            let ledger = Ledger::new(limits.sectors).map_err(|e| memory(&e))?;
            (Some(ledger), Some(map_buffers(&device, &mut workers)?))
        } else {
            (None, None)
        };
        let shared = Shared { limits, costs, ledger, buffers, refused: false, epoch: Nanos::ZERO };
        let count = workers.len();
        Ok(Host {
            device,
            shared,
            ready: ReadyTimes::new(count),
            earliest: Nanos::MAX,
            first: 0,
            refused: Vec::with_capacity(count),
            retry: false,
            stage: 0,
            started: None,
            now: Nanos::ZERO,
            polls_at_now: 0,
            unfinished: count,
            workers,
            error: None,
            seed,
        })
    }

    /// Opens the logs of the jobs that write any (`write_lat_log` and its like). They are numbered
    /// from `first`, clones counted one by one; fio's first is 1. Returns the number after the last.
    ///
    /// # Errors
    /// [`HostError::Log`] when a file cannot be created.
    pub fn open_logs(&mut self, first: usize) -> Result<usize, HostError> {
        for (i, worker) in self.workers.iter_mut().enumerate() {
            worker.open_logs(first + i)?;
        }
        Ok(first + self.workers.len())
    }

    /// Whether every job has ended, or the run has failed; [`finish`](Host::finish) says which.
    pub fn done(&self) -> bool {
        self.unfinished == 0 || self.error.is_some()
    }

    /// How much of the jobs is done, of 1: by time or by bytes, whichever is further.
    pub fn progress(&self) -> f64 {
        if self.workers.is_empty() {
            return 1.0;
        }
        let sum: f64 = self.workers.iter().map(|w| w.progress(self.now)).sum();
        sum / self.workers.len() as f64
    }

    /// Ends the jobs early: nothing more is issued, what is outstanding completes, and results are
    /// those up to here.
    pub fn stop(&mut self) {
        self.stage = u32::MAX;
        for (i, worker) in self.workers.iter_mut().enumerate() {
            worker.stop(self.now);
            self.ready.set(i, Nanos::ZERO);
        }
        self.earliest = Nanos::ZERO;
    }

    /// The names of the jobs, clones counted one by one: in the order of [`job_of_tag`].
    pub fn job_names(&self) -> impl Iterator<Item = &str> {
        self.workers.iter().map(Worker::name)
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
    /// [`HostError`] when the run has not ended, has failed, or when requests are not accounted
    /// for. Requests that failed are results, not errors: see
    /// [`RunResult::failures`](crate::RunResult::failures).
    pub fn finish(mut self) -> Result<RunResult, HostError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        for worker in &mut self.workers {
            worker.account()?;
            worker.finish_logs()?;
        }
        let started = self.started.unwrap_or(self.now);
        let jobs: Vec<_> = self.workers.into_iter().map(|w| w.into_result(started)).collect();
        let ended = jobs.iter().map(|j| j.ended).max().unwrap_or(Nanos::ZERO);
        Ok(RunResult { seed: self.seed, elapsed: ended, jobs })
    }

    /// Starts every job of the present stage.
    fn start_stage(&mut self, now: Nanos) {
        for (i, worker) in self.workers.iter_mut().enumerate() {
            if worker.stage() == self.stage {
                let at = worker.start(now);
                self.ready.set(i, at);
                self.earliest = self.earliest.min(at);
            }
        }
    }

    /// Starts the next stage once all before it have ended.
    fn next_stage(&mut self, now: Nanos) {
        while self.unfinished > 0
            && self.workers.iter().all(|w| w.stage() > self.stage || w.is_done())
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
            let (job, slot) = (job_of_tag(tag), tag as u32);
            let Some(worker) = self.workers.get_mut(job) else {
                self.error = Some(HostError::StrayCompletion { tag, status });
                return true;
            };
            match worker.arrive(slot, status) {
                Ok(()) => {
                    tracepoint::trace_at(now, || Event::RequestArrived { tag });
                    let at = worker.cpu_free().max(now);
                    self.ready.lower(job, at);
                    self.earliest = self.earliest.min(at);
                }
                Err(()) => {
                    self.error = Some(HostError::StrayCompletion { tag, status });
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
        let start = self.first;
        let (mut from, mut end) = (start, self.workers.len());
        loop {
            let Some(i) = self.ready.next(from, end, now) else {
                if end == start || start == 0 {
                    break;
                }
                (from, end) = (0, start);
                continue;
            };
            from = i + 1;
            let worker = &mut self.workers[i];
            self.shared.refused = false;
            let issued = worker.issued();
            match worker.run(now, i as u64, &mut self.device, &mut self.shared) {
                Ok(run) => {
                    moved |= run.moved;
                    self.ready.set(i, run.ready_at);
                }
                Err(e) => {
                    self.error = Some(e);
                    return true;
                }
            }
            if self.shared.refused {
                self.refused.push(i as u32);
                if worker.issued() == issued {
                    first.get_or_insert(i);
                }
            }
            finished += usize::from(worker.is_done());
        }
        if let Some(first) = first {
            self.first = first;
        }
        self.earliest = self.ready.earliest();
        if finished > 0 {
            self.unfinished = self.workers.iter().filter(|w| !w.is_done()).count();
            self.next_stage(now);
        }
        moved
    }

    /// A device and a host that take no time at all would never reach the end of a runtime.
    #[cold]
    fn stuck(&mut self, now: Nanos) {
        if let Some(job) = self.workers.iter().find(|w| w.ends_by_time_only()) {
            self.error = Some(HostError::TimeStandsStill { at: now, job: job.name().to_owned() });
        }
        self.polls_at_now = 0;
    }
}

/// One region for the payloads of all verifying jobs, each slot on pages of its own.
fn map_buffers<D: Device>(device: &D, workers: &mut [Worker]) -> Result<Buffers, HostError> {
    let mut total = 0u64;
    for worker in workers.iter_mut() {
        total += worker.place_buffers(total);
    }
    let len = (total as usize).max(PAGE);
    // Memory that the device can reach, if that is in another process.
    let provided = device.memory().provide(len);
    let (region, base) = provided.map_err(|e| HostError::Memory(e.to_string()))?;
    Ok(Buffers { region, base, scratch: vec![0; device.limits().sector_bytes as usize] })
}

impl<D: Device> Component for Host<D> {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        if self.error.is_some() {
            return false;
        }
        if self.started.is_none() {
            self.started = Some(now);
            self.shared.epoch = now;
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
                if self.workers[i as usize].is_refused() {
                    self.ready.set(i as usize, Nanos::ZERO);
                    self.earliest = Nanos::ZERO;
                }
            }
        }
        if self.earliest <= now && self.run(now) {
            moved = true;
            self.retry = true;
            self.polls_at_now += 1;
            if self.polls_at_now > MAX_POLLS_AT_ONE_INSTANT {
                self.stuck(now);
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
