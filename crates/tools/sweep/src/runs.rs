//! [`run_all`] and [`run_each`]: run scenarios on several threads, with the results of one run after
//! the other.
//!
//! **Independence.** A run has its own thread, virtual clock and trace records (`tracepoint` keeps
//! them per thread), so that other runs do not change its results. Runs share preconditioned drives
//! only as copies.
//!
//! **Order.** Runs start in the order of the command line. A run that writes files (logs of jobs,
//! images with `--write-image`) has the machine alone: runs before it have ended without an error,
//! and runs after it find its files. So does a run whose memory did not suffice beside others.
//!
//! **Errors.** [`run_each`] runs every scenario, also after errors. With [`run_all`] the error that is
//! reported is that of the first scenario that failed, with the results of the scenarios before it.
//! Runs after it are stopped, and their results are dropped.

use std::any::Any;
use std::collections::BTreeSet;
use std::io;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use scenario::Scenario;
use sim::{
    PreconditionCache, RunNeeds, SimError, SimOptions, SimOutcome, SimStage, TraceOutput, simulate,
};
use workload::available_memory;

/// Settings of all runs.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// Job files in addition to the scenarios' own jobs.
    pub job_files: Vec<PathBuf>,
    /// Directory for the block layer's events; with one scenario only.
    pub blktrace: Option<PathBuf>,
    /// Number of slowest requests to explain.
    pub slowest: usize,
    /// Whether to measure where the processor time goes.
    pub profile: bool,
    /// Whether to modify the drives' images.
    pub write_image: bool,
    /// Maximum number of runs at a time.
    pub at_a_time: NonZeroUsize,
    /// Ends the runs when it becomes true.
    pub interrupt: Arc<AtomicBool>,
}

impl RunSettings {
    /// Returns the settings of runs without further outputs.
    pub fn new(
        job_files: Vec<PathBuf>,
        at_a_time: NonZeroUsize,
        interrupt: Arc<AtomicBool>,
    ) -> RunSettings {
        RunSettings {
            job_files,
            blktrace: None,
            slowest: 0,
            profile: false,
            write_image: false,
            at_a_time,
            interrupt,
        }
    }
}

/// Receives the progress of one run, on the thread of the run.
pub type StageObserver = Box<dyn FnMut(SimStage)>;

/// Makes the observer of each run, which has this index.
pub type ObserveRun = dyn Fn(&Scenario, usize) -> StageObserver + Sync;

/// The end of a run.
#[derive(Debug)]
pub enum RunEnd {
    /// Its outcome, which is partial if the run was interrupted.
    Done(Box<SimOutcome>),
    /// Its error.
    Failed(SimError),
    /// The message of a broken invariant.
    Broken(String),
}

/// The results of all runs.
#[derive(Debug, Default)]
pub struct RunResults {
    /// In the order of the scenarios; without those that were interrupted before their jobs began.
    pub outcomes: Vec<SimOutcome>,
    /// The error of the first scenario that failed; the outcomes are those before it.
    pub failed: Option<SimError>,
    /// Whether an interruption cut runs short.
    pub is_interrupted: bool,
}

/// Runs all scenarios up to the first failure; `trace` is that of the only one.
///
/// # Errors
/// The error of the operating system if no thread can be started. Errors of runs are in the results.
pub fn run_all(
    scenarios: &[Scenario],
    settings: &RunSettings,
    observe: &ObserveRun,
    trace: Option<TraceOutput>,
) -> io::Result<RunResults> {
    let mut ends: Vec<Option<Result<SimOutcome, SimError>>> =
        scenarios.iter().map(|_| None).collect();
    let queue = RunQueue::new(needs(scenarios, settings), settings.at_a_time.get());
    run_queue(queue, scenarios, settings, observe, trace, &mut |index, end| {
        ends[index] = Some(end.unwrap_or_else(|panic| resume_unwind(panic)));
        ControlFlow::Continue(())
    })?;
    Ok(results(ends))
}

/// Runs all scenarios, also after failures. Calls `on_end` with the index of each run that has ended,
/// on the calling thread; if it breaks, the runs end as if interrupted. Runs that are not started
/// because of an interruption have no end.
///
/// # Errors
/// As [`run_all`].
pub fn run_each(
    scenarios: &[Scenario],
    settings: &RunSettings,
    observe: &ObserveRun,
    on_end: &mut dyn FnMut(usize, RunEnd) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut queue = RunQueue::new(needs(scenarios, settings), settings.at_a_time.get());
    queue.continues = true;
    run_queue(queue, scenarios, settings, observe, None, &mut |index, end| {
        let end = match end {
            Ok(Ok(outcome)) => RunEnd::Done(Box::new(outcome)),
            Ok(Err(error)) => RunEnd::Failed(error),
            Err(panic) => RunEnd::Broken(panic_message(&*panic)),
        };
        on_end(index, end)
    })
}

/// Returns the message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("internal error: {}", text.unwrap_or("without a message"))
}

/// The end of a run's thread: its result, or its panic.
type ThreadEnd = thread::Result<Result<SimOutcome, SimError>>;

fn run_queue(
    mut queue: RunQueue,
    scenarios: &[Scenario],
    settings: &RunSettings,
    observe: &ObserveRun,
    mut trace: Option<TraceOutput>,
    on_end: &mut dyn FnMut(usize, ThreadEnd) -> ControlFlow<()>,
) -> io::Result<()> {
    let shared = SharedState {
        scenarios,
        settings,
        observe,
        cache: PreconditionCache::new(scenarios),
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
                    return Err(e);
                }
            }
            if queue.running.is_empty() {
                return Ok(());
            }
            // This thread has a sender: there is always a message, or a run that will send one.
            let Ok((index, end)) = receiver.recv() else { return Ok(()) };
            let end = match end {
                Ok(result) => queue.finish(index, result).map(Ok),
                Err(panic) => {
                    queue.running.remove(&index);
                    if !queue.continues {
                        queue.stop_from = 0;
                    }
                    Some(Err(panic))
                }
            };
            shared.stop_from.store(queue.stop_from, Ordering::Relaxed);
            if let Some(end) = end
                && on_end(index, end).is_break()
            {
                queue.pending.clear();
                queue.stop_from = 0;
                shared.stop_from.store(0, Ordering::Relaxed);
            }
        }
    })
}

/// Returns the results of all runs; runs without an end were interrupted.
fn results(ends: Vec<Option<Result<SimOutcome, SimError>>>) -> RunResults {
    let mut results = RunResults::default();
    for end in ends {
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

/// Returns the needs of each run; `None` if they are unknown because its jobs are invalid, or
/// irrelevant because runs are one after the other.
fn needs(scenarios: &[Scenario], settings: &RunSettings) -> Vec<Option<RunNeeds>> {
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
    settings: &'a RunSettings,
    observe: &'a ObserveRun,
    cache: PreconditionCache,
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
        let mut observer = (self.observe)(scenario, index);
        let stop = AtomicBool::new(false);
        let mut progress = |stage| {
            observer(stage);
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
    /// Number of jobs of each run that has an outcome.
    jobs: Vec<Option<usize>>,
    /// Whether runs start after a failure.
    continues: bool,
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
            jobs: vec![None; count],
            continues: false,
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
        let jobs = |run: usize| {
            self.jobs[run].unwrap_or_else(|| self.needs[run].map_or(0, |needs| needs.jobs))
        };
        (0..index).map(jobs).sum()
    }

    /// Counts a run as ended and returns its result; `None` if it is repeated alone.
    fn finish(
        &mut self,
        index: usize,
        end: Result<SimOutcome, SimError>,
    ) -> Option<Result<SimOutcome, SimError>> {
        self.running.remove(&index);
        match &end {
            Err(error) if error.lacks_memory() && !self.alone[index] => {
                // Other runs had the memory.
                self.alone[index] = true;
                self.pending.insert(index);
                return None;
            }
            Err(error) if !error.is_stopped() && !self.continues => {
                self.stop_from = self.stop_from.min(index);
                self.pending.retain(|run| *run < index);
            }
            Err(_) => {}
            Ok(outcome) => {
                self.jobs[index] = Some(outcome.paths.iter().map(|p| p.run.jobs.len()).sum());
            }
        }
        Some(end)
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
        assert!(queue.finish(index, Ok(SimOutcome::default())).is_some());
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
        let mut ends = [(); 5].map(|()| None);
        ends[2] = q.finish(2, failure());
        assert_eq!((q.stop_from, q.pending.len()), (2, 0));
        ends[1] = q.finish(1, Err(SimError::NoJobs { file: "first.toml".into() }));
        ends[0] = q.finish(0, Ok(SimOutcome::default()));
        let results = results(ends.into());
        assert_eq!((results.outcomes.len(), results.is_interrupted), (1, false));
        assert!(results.failed.unwrap().to_string().contains("first.toml"));
    }

    #[test]
    fn an_interruption_keeps_results_and_wins_over_later_failures() {
        let mut q = queue(&[needs(1, 1, false); 4], 3);
        assert_eq!(start_all(&mut q), [0, 1, 2]);
        let name = "d".to_owned();
        let mut ends = [(); 4].map(|()| None);
        ends[0] = q.finish(0, Err(SimError::Stack(stack::StackError::Stopped { name })));
        ends[1] = q.finish(1, Ok(SimOutcome { partial: true, ..SimOutcome::default() }));
        ends[2] = q.finish(2, failure());
        let results = results(ends.into());
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
        assert!(q.finish(1, lacking()).is_none());
        assert!(start_all(&mut q).is_empty(), "it waits until the others have ended");
        done(&mut q, 0);
        assert_eq!(start_all(&mut q), [1]);
        assert!(matches!(q.finish(1, lacking()), Some(Err(_))));
    }

    #[test]
    fn a_failure_ends_nothing_if_runs_continue() {
        let mut q = queue(&[needs(1, 1, false); 4], 2);
        q.continues = true;
        assert_eq!(start_all(&mut q), [0, 1]);
        assert!(q.finish(0, failure()).is_some());
        assert_eq!(start_all(&mut q), [2]);
        assert_eq!(q.stop_from, 4);
    }

    #[test]
    fn a_broken_invariant_has_its_message() {
        let message = |panic: Box<dyn Any + Send>| panic_message(&*panic);
        assert_eq!(message(Box::new("text")), "internal error: text");
        assert_eq!(message(Box::new("text".to_owned())), "internal error: text");
        assert_eq!(message(Box::new(1)), "internal error: without a message");
    }
}
