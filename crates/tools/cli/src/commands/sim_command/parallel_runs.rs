//! [`run_all`]: runs scenarios on several threads, with the results of one run after the other.
//!
//! **Independence.** A run has its own thread, virtual clock and trace records (`tracepoint` keeps
//! them per thread), so that other runs do not change its results. Runs share preconditioned drives
//! only as copies.
//!
//! **Order.** Runs start in the order of the command line. A run that writes files (logs of jobs,
//! images with `--write-image`) has the machine alone: runs before it have ended without an error,
//! and runs after it find its files. So does a run whose memory did not suffice beside others.
//!
//! **Errors.** The error that is reported is that of the first scenario that failed, with the
//! results of the scenarios before it. Runs after it are stopped, and their results are dropped.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use scenario::Scenario;
use sim::{PreconditionCache, RunNeeds, SimError, SimOptions, SimOutcome, TraceOutput, simulate};
use workload::available_memory;

use super::run_bars::RunBars;
use crate::CliError;

/// Settings of all runs.
pub(super) struct RunSettings<'a> {
    /// Job files in addition to the scenarios' own jobs.
    pub(super) job_files: Vec<PathBuf>,
    pub(super) blktrace: Option<PathBuf>,
    /// Number of slowest requests to explain.
    pub(super) slowest: usize,
    /// Whether to measure where the processor time goes.
    pub(super) profile: bool,
    pub(super) write_image: bool,
    /// Maximum number of runs at a time.
    pub(super) at_a_time: NonZeroUsize,
    /// Whether the user has interrupted the command.
    pub(super) interrupt: &'a AtomicBool,
}

/// The results of all runs.
#[derive(Default)]
pub(super) struct RunResults {
    /// In the order of the scenarios; without those that were interrupted before their jobs began.
    pub(super) outcomes: Vec<SimOutcome>,
    /// The error of the first scenario that failed; the outcomes are those before it.
    pub(super) failed: Option<SimError>,
    /// Whether an interruption cut runs short.
    pub(super) is_interrupted: bool,
}

/// Runs all scenarios; `trace` is that of the only one.
///
/// # Errors
/// [`CliError`] if no thread can be started. Errors of runs are in the results.
pub(super) fn run_all(
    scenarios: &[Scenario],
    settings: &RunSettings<'_>,
    mut trace: Option<TraceOutput>,
) -> Result<RunResults, CliError> {
    let mut queue = RunQueue::new(needs(scenarios, settings), settings.at_a_time.get());
    let shared = SharedState {
        scenarios,
        settings,
        cache: PreconditionCache::new(scenarios),
        bars: RunBars::new(scenarios.len()),
        stop_from: AtomicUsize::new(usize::MAX),
    };
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        loop {
            while !settings.interrupt.load(Ordering::Relaxed)
                && let Some(index) = queue.start_next()
            {
                let (sender, shared, trace) = (sender.clone(), &shared, trace.take());
                let jobs_before = queue.jobs_before(index);
                let run = move || {
                    let run = || shared.run(index, jobs_before, trace);
                    // The receiver is gone only after a panic of another run.
                    let _ = sender.send((index, catch_unwind(AssertUnwindSafe(run))));
                };
                let name = format!("run {}", index + 1);
                if let Err(e) = thread::Builder::new().name(name).spawn_scoped(scope, run) {
                    shared.stop_from.store(0, Ordering::Relaxed);
                    return Err(CliError::Other(format!("cannot start a thread for a run: {e}")));
                }
            }
            if queue.running.is_empty() {
                return Ok(());
            }
            // This thread has a sender: there is always a message, or a run that will send one.
            match receiver.recv() {
                Ok((index, Ok(result))) => {
                    queue.finish(index, result);
                    shared.stop_from.store(queue.stop_from, Ordering::Relaxed);
                }
                Ok((_, Err(panic))) => {
                    shared.stop_from.store(0, Ordering::Relaxed);
                    resume_unwind(panic);
                }
                Err(_) => return Ok(()),
            }
        }
    })?;
    Ok(queue.into_results())
}

/// Returns the needs of each run; `None` if they are unknown because its jobs are invalid, or
/// irrelevant because runs are one after the other.
fn needs(scenarios: &[Scenario], settings: &RunSettings<'_>) -> Vec<Option<RunNeeds>> {
    let needs_of = |scenario: &Scenario| {
        RunNeeds::of_run(scenario, &settings.job_files, settings.write_image).ok()
    };
    match scenarios.len().min(settings.at_a_time.get()) {
        0 | 1 => vec![None; scenarios.len()],
        _ => scenarios.iter().map(needs_of).collect(),
    }
}

/// State that the threads of runs share.
struct SharedState<'a> {
    scenarios: &'a [Scenario],
    settings: &'a RunSettings<'a>,
    cache: PreconditionCache,
    bars: RunBars,
    /// Index from which on runs are stopped, because an earlier one has failed.
    stop_from: AtomicUsize,
}

impl SharedState<'_> {
    fn run(
        &self,
        index: usize,
        jobs_before: usize,
        trace: Option<TraceOutput>,
    ) -> Result<SimOutcome, SimError> {
        let scenario = &self.scenarios[index];
        let mut bar = self.bars.start(scenario, index);
        let stop = AtomicBool::new(false);
        let mut progress = |stage| {
            bar.update(stage);
            let is_stopped = self.settings.interrupt.load(Ordering::Relaxed)
                || index >= self.stop_from.load(Ordering::Relaxed);
            stop.store(is_stopped, Ordering::Relaxed);
        };
        let options = SimOptions {
            job_files: self.settings.job_files.clone(),
            jobs_before,
            trace,
            blktrace: self.settings.blktrace.clone(),
            slowest: self.settings.slowest,
            profile: self.settings.profile,
            write_image: self.settings.write_image,
            stop: Some(&stop),
            precondition_cache: Some(&self.cache),
            progress: Some(&mut progress),
        };
        simulate(scenario, options)
    }
}

/// Decides which run starts next.
struct RunQueue {
    /// Indices of runs to start.
    pending: BTreeSet<usize>,
    running: BTreeSet<usize>,
    needs: Vec<Option<RunNeeds>>,
    /// Whether a run has the machine alone.
    alone: Vec<bool>,
    ends: Vec<Option<Result<SimOutcome, SimError>>>,
    /// Maximum number of runs at a time.
    at_a_time: usize,
    /// Memory for all runs, in bytes; `None` if it is unknown.
    memory_bytes: Option<u64>,
    /// Index of the first failed run; the number of runs if none has failed.
    stop_from: usize,
}

impl RunQueue {
    fn new(needs: Vec<Option<RunNeeds>>, at_a_time: usize) -> RunQueue {
        let count = needs.len();
        RunQueue {
            pending: (0..count).collect(),
            running: BTreeSet::new(),
            alone: needs.iter().map(|needs| needs.is_none_or(|n| n.writes_files)).collect(),
            needs,
            ends: (0..count).map(|_| None).collect(),
            at_a_time,
            memory_bytes: available_memory(),
            stop_from: count,
        }
    }

    /// Returns the next run and counts it as running; `None` if no run can start now.
    fn start_next(&mut self) -> Option<usize> {
        let index = *self.pending.first()?;
        if !self.running.is_empty() && !self.can_join(index) {
            return None;
        }
        self.pending.remove(&index);
        self.running.insert(index);
        Some(index)
    }

    /// Returns whether a run can start beside the present ones.
    fn can_join(&self, index: usize) -> bool {
        let memory_of =
            |run: &usize| self.needs[*run].map_or(0, |RunNeeds { memory_bytes, .. }| memory_bytes);
        let needed =
            self.running.iter().map(memory_of).fold(memory_of(&index), u64::saturating_add);
        self.running.len() < self.at_a_time
            && !self.alone[index]
            && !self.running.iter().any(|run| self.alone[*run])
            && self.memory_bytes.is_none_or(|available| needed <= available)
    }

    /// Returns the number of jobs of the runs before `index`, which have ended or have known needs.
    fn jobs_before(&self, index: usize) -> usize {
        let jobs = |run: usize| match (&self.ends[run], &self.needs[run]) {
            (Some(Ok(outcome)), _) => outcome.paths.iter().map(|p| p.run.jobs.len()).sum(),
            (_, needs) => needs.map_or(0, |needs| needs.jobs),
        };
        (0..index).map(jobs).sum()
    }

    fn finish(&mut self, index: usize, end: Result<SimOutcome, SimError>) {
        self.running.remove(&index);
        match &end {
            Err(error) if error.lacks_memory() && !self.alone[index] => {
                // Other runs had the memory.
                self.alone[index] = true;
                self.pending.insert(index);
                return;
            }
            Err(error) if !error.is_stopped() => {
                self.stop_from = self.stop_from.min(index);
                self.pending.retain(|run| *run < index);
            }
            _ => {}
        }
        self.ends[index] = Some(end);
    }

    fn into_results(self) -> RunResults {
        let mut results = RunResults::default();
        for end in self.ends {
            match end {
                Some(Ok(outcome)) => {
                    results.is_interrupted |= outcome.partial;
                    results.outcomes.push(outcome);
                }
                // A run that a failure stopped comes after that failure.
                None => results.is_interrupted = true,
                Some(Err(error)) if error.is_stopped() => results.is_interrupted = true,
                Some(Err(_)) if results.is_interrupted => {}
                Some(Err(error)) => {
                    results.failed = Some(error);
                    break;
                }
            }
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(jobs: usize, memory_bytes: u64, writes_files: bool) -> Option<RunNeeds> {
        Some(RunNeeds { jobs, memory_bytes, writes_files })
    }

    fn queue(needs: &[Option<RunNeeds>], at_a_time: usize) -> RunQueue {
        RunQueue { memory_bytes: Some(100), ..RunQueue::new(needs.to_vec(), at_a_time) }
    }

    /// Starts every run that can start.
    fn start_all(queue: &mut RunQueue) -> Vec<usize> {
        std::iter::from_fn(|| queue.start_next()).collect()
    }

    fn done(queue: &mut RunQueue, index: usize) {
        queue.finish(index, Ok(SimOutcome::default()));
    }

    fn failure() -> Result<SimOutcome, SimError> {
        Err(SimError::NoJobs { file: "x.toml".into() })
    }

    #[test]
    fn runs_start_in_order_up_to_the_limits_of_number_and_memory() {
        let small = needs(1, 10, false);
        let mut q = queue(&[small; 4], 3);
        assert_eq!(start_all(&mut q), [0, 1, 2]);
        done(&mut q, 1);
        assert_eq!(start_all(&mut q), [3]);
        let mut q = queue(&[needs(1, 60, false), needs(1, 60, false), small], 3);
        assert_eq!(start_all(&mut q), [0], "no run overtakes another");
        done(&mut q, 0);
        assert_eq!(start_all(&mut q), [1, 2]);
        let mut q = queue(&[needs(1, 1_000, false), small], 3);
        assert_eq!(start_all(&mut q), [0], "a run that needs more than there is fails by itself");
    }

    #[test]
    fn runs_that_write_files_or_have_unknown_needs_are_alone() {
        let plain = needs(2, 1, false);
        for alone in [needs(1, 1, true), None] {
            let mut q = queue(&[plain, alone, plain], 4);
            assert_eq!(start_all(&mut q), [0]);
            done(&mut q, 0);
            assert_eq!(start_all(&mut q), [1]);
            done(&mut q, 1);
            assert_eq!(start_all(&mut q), [2]);
        }
        assert_eq!(queue(&[plain, needs(3, 1, false), plain], 4).jobs_before(2), 5);
    }

    #[test]
    fn the_first_failure_in_order_is_reported_with_the_results_before_it() {
        let mut q = queue(&[needs(1, 1, false); 5], 3);
        assert_eq!(start_all(&mut q), [0, 1, 2]);
        q.finish(2, failure());
        assert_eq!((q.stop_from, q.pending.len()), (2, 0));
        q.finish(1, Err(SimError::NoJobs { file: "first.toml".into() }));
        done(&mut q, 0);
        let results = q.into_results();
        assert_eq!((results.outcomes.len(), results.is_interrupted), (1, false));
        assert!(results.failed.unwrap().to_string().contains("first.toml"));
    }

    #[test]
    fn an_interruption_keeps_results_and_wins_over_later_failures() {
        let mut q = queue(&[needs(1, 1, false); 4], 3);
        assert_eq!(start_all(&mut q), [0, 1, 2]);
        let name = "d".to_owned();
        q.finish(0, Err(SimError::Stack(stack::StackError::Stopped { name })));
        q.finish(1, Ok(SimOutcome { partial: true, ..SimOutcome::default() }));
        q.finish(2, failure());
        let results = q.into_results();
        assert_eq!((results.outcomes.len(), results.is_interrupted), (1, true));
        assert!(results.failed.is_none());
    }

    #[test]
    fn a_run_without_memory_beside_others_is_repeated_alone_once() {
        let mut q = queue(&[needs(1, 1, false); 3], 2);
        assert_eq!(start_all(&mut q), [0, 1]);
        let lacking = || {
            Err(SimError::Host(workload::RunError::TooLarge {
                job: "j".into(),
                jobs: 1,
                iodepth: 1,
                need_bytes: 2,
                available_bytes: 1,
                remedy: "`numjobs`",
            }))
        };
        q.finish(1, lacking());
        assert!(start_all(&mut q).is_empty(), "it waits until the others have ended");
        done(&mut q, 0);
        assert_eq!(start_all(&mut q), [1]);
        q.finish(1, lacking());
        assert!(q.into_results().failed.is_some());
    }
}
