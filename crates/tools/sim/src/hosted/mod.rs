//! Runs jobs on a modeled machine (`[host] machine`): the host's software takes processor time.
//!
//! Each queue of a path is used by one thread of the machine, which runs the jobs of that queue: job
//! `i` on queue `i` modulo the number of queues, as without a machine. The thread polls, and waits
//! by the path's method of completion when there is nothing to do. The thread of a shard also polls
//! while others need the shard.

mod context;
mod outcome;
mod queue;
#[cfg(test)]
mod tests;
mod wait;

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use block::notify::CompletionPolicy;
use block::{BlockDevice, Group};
use event::Waker;
use machine::{Device, Engine, EngineConfig, EngineError, TaskClass, TaskId, TaskSpec};
use scenario::{HostMachine, PathConfig, PathSpec, Scenario};
use stack::{
    CoreQueues, EmulatedDevice, JobTarget, SimulatedDevice, StackBlockLayer, target_layers,
};
use time::{Component, Nanos};
use workload::{IoCpuCosts, JobPart, JobRunner, JobSpec, RunError, RunResult};

use context::SharedQueueHandler;
pub use outcome::MachineOutcome;
use queue::HostedQueue;
use wait::{InterruptMask, ThreadWait};

use crate::SimOptions;
use crate::sim_run::SimRun;

/// A scenario that cannot run on a modeled machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineRejection {
    /// Jobs on keys or on parallel units.
    #[error("path {path}: on a modelled machine jobs access blocks, not keys or parallel units")]
    NotBlocks {
        /// Name of the path.
        path: String,
    },
    /// Jobs that wait for others (`stonewall`).
    #[error(
        "job {job}: on a modelled machine jobs run on threads of their own: remove `stonewall`"
    )]
    Stonewall {
        /// Name of the job.
        job: String,
    },
    /// Several jobs that verify data: each thread would have a record of its own.
    #[error("job {job}: on a modelled machine only a single job can `verify`")]
    Verify {
        /// Name of the job.
        job: String,
    },
    /// Jobs of different groups on one queue.
    #[error(
        "path {path}: jobs of different groups share a queue: give the path as many cores as jobs"
    )]
    Groups {
        /// Name of the path.
        path: String,
    },
    /// Threads that sleep until an interrupt, on a machine without its costs.
    #[error(
        "path {path}: the sheet of {machine} lacks the table `interrupts` or `threads`, which \
         {completion} needs"
    )]
    NoInterruptCosts {
        /// Name of the path.
        path: String,
        /// Name of the machine.
        machine: String,
        /// The key and its value.
        completion: String,
    },
    /// Threads that share cores, on a machine without the costs of switches.
    #[error(
        "the sheet of {machine} has no table `threads`, and {threads} threads share {cores} cores"
    )]
    NoThreadCosts {
        /// Name of the machine.
        machine: String,
        /// Number of threads.
        threads: usize,
        /// Number of hardware threads.
        cores: usize,
    },
    /// Settings change during the run.
    #[error("[[at]] and [[fault]] have no effect on a modelled machine: remove them, or `machine`")]
    Changes,
    /// Requests are to be followed.
    #[error("requests on a modelled machine are not traced: remove `machine`, or {option}")]
    Trace {
        /// Option of the command line.
        option: &'static str,
    },
}

/// Error of a run on a modeled machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineRunError {
    /// The machine cannot run the scenario.
    #[error(transparent)]
    Refused(#[from] MachineRejection),
    /// The machine failed.
    #[error("the modelled machine: {0}")]
    Engine(#[from] EngineError),
    /// An interrupt of a queue cannot be set up.
    #[error("the interrupt of a queue: {0}")]
    Waker(#[from] io::Error),
    /// A thread ended without the results of its jobs.
    #[error("the modelled machine lost the results of {0}")]
    Lost(String),
}

/// The jobs of a path that run on the machine.
pub(super) struct HostedJobs {
    /// Index of the path.
    pub(super) path: usize,
    pub(super) specs: Vec<JobSpec>,
    /// Group of each job, with clones counted one by one.
    pub(super) groups: Vec<Group>,
    pub(super) seed: u64,
    /// Number of the first log.
    pub(super) first_log: usize,
    /// How the threads notice completions.
    pub(super) completion: CompletionPolicy,
}

impl HostedJobs {
    fn job_count(&self) -> usize {
        self.specs.iter().map(|spec| spec.numjobs as usize).sum()
    }
}

/// Checks what a machine refuses before anything is built.
///
/// # Errors
/// [`MachineRejection`].
pub(super) fn check(
    scenario: &Scenario,
    host: &HostMachine,
    paths: &[PathSpec],
    options: &SimOptions<'_>,
) -> Result<(), MachineRejection> {
    for path in paths {
        let policy = completion(&path.config);
        if policy != CompletionPolicy::default()
            && !(host.model.has_interrupt_costs() && host.model.has_thread_costs())
        {
            let (path, machine) = (path.name.clone(), host.model.name().to_owned());
            let completion = match policy.poll_interval {
                Some(_) => "poll_interval".to_owned(),
                None => format!("completion = \"{}\"", policy.method.word()),
            };
            return Err(MachineRejection::NoInterruptCosts { path, machine, completion });
        }
    }
    if !scenario.changes.is_empty() {
        return Err(MachineRejection::Changes);
    }
    let traces = [
        (options.trace.is_some(), "--trace"),
        (options.blktrace.is_some(), "--blktrace"),
        (options.slowest > 0, "--slowest"),
    ];
    match traces.into_iter().find(|(is_set, _)| *is_set) {
        Some((_, option)) => Err(MachineRejection::Trace { option }),
        None => Ok(()),
    }
}

/// Checks the jobs of a path.
///
/// # Errors
/// [`MachineRejection`].
pub(super) fn check_jobs(path: &str, specs: &[JobSpec]) -> Result<(), MachineRejection> {
    if let Some(job) = specs.iter().skip(1).find(|job| job.schedule.stonewall) {
        return Err(MachineRejection::Stonewall { job: job.name.clone() });
    }
    let count: u32 = specs.iter().map(|spec| spec.numjobs).sum();
    if let Some(job) = specs.iter().find(|job| job.integrity.verify && count > 1) {
        return Err(MachineRejection::Verify { job: job.name.clone() });
    }
    if specs.iter().any(|job| job.addressing() != workload::Addressing::Blocks) {
        return Err(MachineRejection::NotBlocks { path: path.to_owned() });
    }
    Ok(())
}

/// Returns how the threads of a path notice completions.
pub(super) fn completion(config: &PathConfig) -> CompletionPolicy {
    config.completion.unwrap_or_default()
}

/// A device of the run on the machine.
struct HostedDevice(Arc<Mutex<EmulatedDevice>>);

impl HostedDevice {
    fn with<R>(&self, use_it: impl FnOnce(&mut EmulatedDevice) -> R) -> R {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Device for HostedDevice {
    fn poll(&mut self, now: Nanos) -> bool {
        self.with(|device| device.poll(now))
    }

    fn deadline(&self) -> Nanos {
        self.with(|device| device.deadline())
    }

    fn posted(&self) -> u64 {
        self.with(|device| device.posted())
    }
}

/// The result of the thread of a queue.
type ThreadResult = (CoreQueues, Result<RunResult, RunError>);

/// A path whose jobs run on the machine: the counters of its block layer, and the result of each
/// queue's thread.
pub(super) type HostedPath = (Option<StackBlockLayer>, Vec<Arc<Mutex<Option<ThreadResult>>>>);

/// State that the threads of a path share.
struct PathPeers {
    /// Number of threads with jobs that have not ended.
    running: AtomicU32,
    /// Whether a thread may find what another did: they share hardware queues, or are shards.
    share: bool,
    /// Whether the requests of a thread need the others to poll their queues, as shards do.
    serve_others: bool,
}

/// One thread of a path.
struct PathThread {
    work: ThreadWork,
    result: Arc<Mutex<Option<ThreadResult>>>,
    /// Progress of its jobs in thousandths.
    progress: Arc<AtomicU32>,
    peers: Arc<PathPeers>,
    wait: ThreadWait,
}

/// The jobs of a thread, or its queue alone.
enum ThreadWork {
    Jobs(Box<JobRunner<HostedQueue>>),
    /// A queue without jobs, which other threads need.
    Queue(Box<HostedQueue>),
}

/// Number of rounds between two reports of progress.
const PROGRESS_ROUNDS: u32 = 256;

impl PathThread {
    fn run(self) {
        let PathThread { work, result, progress, peers, mut wait } = self;
        let (mut queue, jobs) = match work {
            ThreadWork::Queue(queue) => (*queue, Ok(RunResult::default())),
            ThreadWork::Jobs(runner) => {
                let ended = run_jobs(*runner, &peers, &mut wait, &progress);
                peers.running.fetch_sub(1, Ordering::Relaxed);
                machine::notify();
                ended
            }
        };
        progress.store(1000, Ordering::Relaxed);
        while peers.serve_others && peers.running.load(Ordering::Relaxed) > 0 {
            let spin = machine::begin_spin();
            match queue.poll(machine::now()) {
                true => {
                    wait.found();
                    machine::notify();
                }
                false => wait.wait(spin, queue.deadline()),
            }
        }
        let returned = Some((queue.into_device(), jobs));
        *result.lock().unwrap_or_else(PoisonError::into_inner) = returned;
    }
}

/// Runs the jobs of a thread. Returns its queue and their results.
fn run_jobs(
    mut runner: JobRunner<HostedQueue>,
    peers: &PathPeers,
    wait: &mut ThreadWait,
    progress: &AtomicU32,
) -> (HostedQueue, Result<RunResult, RunError>) {
    let (mut rounds, mut is_stopped) = (0u32, false);
    while !runner.is_done() {
        if !is_stopped && machine::is_stopping() {
            is_stopped = true;
            runner.stop();
        }
        let spin = machine::begin_spin();
        let moved = runner.poll(machine::now());
        if moved {
            wait.found();
            if peers.share {
                machine::notify();
            }
        }
        rounds += 1;
        if rounds.is_multiple_of(PROGRESS_ROUNDS) {
            progress.store((1000.0 * runner.progress()) as u32, Ordering::Relaxed);
        }
        if !moved && !runner.is_done() {
            wait.wait(spin, runner.deadline());
        }
    }
    runner.finish_with_device()
}

/// Runs the jobs of all paths on the machine from `start` on. Puts devices, paths and results back
/// into `run`. Returns the outcome, and the time at the end.
///
/// # Errors
/// [`MachineRunError`], and the errors of [`JobRunner`].
pub(super) fn run(
    run: &mut SimRun,
    host: &HostMachine,
    jobs: Vec<HostedJobs>,
    start: Nanos,
    tick: &mut dyn FnMut(Nanos, f64) -> bool,
) -> Result<(MachineOutcome, Nanos), crate::SimError> {
    let config = EngineConfig { start, ..host.model.engine_config() };
    let mut engine = Engine::new(config).map_err(MachineRunError::from)?;
    let devices: Vec<_> =
        run.devices.drain(..).map(|device| Arc::new(Mutex::new(device))).collect();
    for device in &devices {
        engine.add_device(Box::new(HostedDevice(device.clone())));
    }
    let kernel = host.kernel.request_cost();
    let (mut threads, mut contexts) = (Vec::new(), Vec::new());
    for of_path in &jobs {
        let path = &mut run.paths[of_path.path];
        path.poll_all_members();
        let name = path.name.clone();
        let Some(JobTarget::Blocks(mut device)) = path.idle.take() else {
            return Err(MachineRunError::from(MachineRejection::NotBlocks { path: name }).into());
        };
        let layer = device.take_block_layer();
        let has_target = target_layers::ftl_snapshot(&mut device).is_some();
        let cell = Arc::new(OnceLock::new());
        let context = match &layer {
            Some(layer) => {
                let raise = raising(cell.clone(), Arc::default()).map_err(MachineRunError::from)?;
                SharedQueueHandler::take(&mut device, layer, raise)
            }
            None => None,
        };
        if let Some(context) = &context {
            contexts.push((name.clone(), context.clone(), cell));
        }
        // Threads with queues of their own find nothing that others did.
        let own_queues = layer.as_ref().map(|layer| {
            let counters = layer.counters();
            counters.staging().len().min(counters.dispatch().len())
        });
        let queues = device.split();
        let count = queues.len();
        let share = match own_queues {
            Some(own_queues) => own_queues < count,
            None => has_target && count > 1,
        };
        let with_jobs = count.min(of_path.job_count());
        let peers = Arc::new(PathPeers {
            running: AtomicU32::new(with_jobs as u32),
            share,
            serve_others: count > 1 && layer.is_none() && has_target,
        });
        let mut results = Vec::with_capacity(count);
        for (index, mut queue) in queues.into_iter().enumerate() {
            let (cell, mask) = (Arc::new(OnceLock::new()), Arc::<InterruptMask>::default());
            let wakes = match context {
                Some(_) => Some(Wakes::Thread(cell.clone())),
                None if of_path.completion.method.uses_interrupts() => {
                    Some(Wakes::Handler(cell.clone()))
                }
                None => None,
            };
            if let Some(wakes) = &wakes {
                queue.set_waker(wakes.waker(&mask).map_err(MachineRunError::from)?);
            }
            let result = Arc::new(Mutex::new(None));
            results.push(result.clone());
            let taken = context.as_ref().map(|context| context.taken.clone());
            let queue = HostedQueue::new(queue, kernel).with_taken(taken);
            let work =
                thread_work(queue, index, count, of_path).map_err(|error| error.of_path(&name))?;
            if let (ThreadWork::Queue(_), false) = (&work, peers.serve_others) {
                let ThreadWork::Queue(queue) = work else { continue };
                let returned = Some((queue.into_device(), Ok(RunResult::default())));
                *result.lock().unwrap_or_else(PoisonError::into_inner) = returned;
                continue;
            }
            let progress = Arc::new(AtomicU32::new(0));
            let (peers, part) = (peers.clone(), progress.clone());
            let wait = ThreadWait::new(of_path.completion, mask);
            let thread = PathThread { work, result, progress, peers, wait };
            threads.push((format!("{name}: queue {index}"), thread, part, wakes));
        }
        path.hosted = Some((layer, results));
    }
    let (count, cores) = (threads.len(), host.model.hardware_threads());
    if count > cores && !host.model.has_thread_costs() {
        let machine = host.model.name().to_owned();
        let rejection = MachineRejection::NoThreadCosts { machine, threads: count, cores };
        return Err(MachineRunError::from(rejection).into());
    }
    let mut progress = Vec::with_capacity(count);
    for (name, context, cell) in &contexts {
        // Its endpoint has no thread, so that the interrupt goes to the first hardware thread.
        let spec = interrupt_of(name, 0);
        let context = context.clone();
        let handler = engine.spawn(spec, move || context.run()).map_err(MachineRunError::from)?;
        // The cell is empty until here.
        let _ = cell.set(handler);
    }
    for (index, (name, thread, part, wakes)) in threads.into_iter().enumerate() {
        progress.push(part);
        // A thread per hardware thread while there are enough; else the machine places them.
        let spec = TaskSpec::thread(name.clone());
        let spec = if count <= cores { spec.on(index) } else { spec };
        let thread = engine.spawn(spec, move || thread.run()).map_err(MachineRunError::from)?;
        // The cells are empty until here.
        match wakes {
            Some(Wakes::Handler(cell)) => {
                let spec = interrupt_of(&name, index % cores);
                let handler = engine.spawn(spec, move || wake_at_interrupts(thread));
                let _ = cell.set(handler.map_err(MachineRunError::from)?);
            }
            Some(Wakes::Thread(cell)) => {
                let _ = cell.set(thread);
            }
            None => {}
        }
    }
    let report = engine.run_with(&mut |now| {
        let least = progress.iter().map(|part| part.load(Ordering::Relaxed)).min();
        tick(now, f64::from(least.unwrap_or(1000)) / 1000.0)
    });
    contexts.iter().for_each(|(_, context, _)| context.end());
    let report = report.map_err(MachineRunError::from)?;
    drop(engine);
    for (device, name) in devices.into_iter().zip(0..) {
        let device = Arc::into_inner(device)
            .ok_or_else(|| MachineRunError::Lost(format!("device {name}")))?;
        run.devices.push(device.into_inner().unwrap_or_else(PoisonError::into_inner));
    }
    let mut requests = 0;
    for of_path in &jobs {
        requests += join_path(run, of_path)?;
    }
    let ended = report.ended;
    let model = (*host.model).clone();
    Ok((MachineOutcome::new(model, host.kernel, report, requests), ended))
}

/// The task that the waker of a queue starts, once it is in its cell.
enum Wakes {
    /// The handler of the queue's interrupt.
    Handler(Arc<OnceLock<TaskId>>),
    /// The thread, which an interrupt context wakes.
    Thread(Arc<OnceLock<TaskId>>),
}

impl Wakes {
    fn waker(&self, mask: &Arc<InterruptMask>) -> io::Result<Waker> {
        match self {
            Wakes::Handler(cell) => raising(cell.clone(), mask.clone()),
            Wakes::Thread(cell) => context::waking(cell.clone()),
        }
    }
}

/// Returns the interrupt of a queue or path on a hardware thread.
fn interrupt_of(name: &str, core: usize) -> TaskSpec {
    let name = format!("{name}: interrupt");
    TaskSpec { class: TaskClass::HardInterrupt, ..TaskSpec::thread(name).on(core) }
}

/// Returns a waker that raises the interrupt of the handler in `cell`, unless it is masked.
fn raising(cell: Arc<OnceLock<TaskId>>, mask: Arc<InterruptMask>) -> io::Result<Waker> {
    Waker::calling(move || {
        if let Some(handler) = cell.get()
            && !mask.is_masked()
        {
            machine::raise(*handler);
        }
    })
}

/// The handler of a queue's interrupt: wakes the queue's thread, which finishes its requests itself.
fn wake_at_interrupts(thread: TaskId) {
    loop {
        machine::unpark(thread);
        machine::park();
    }
}

/// Returns the work of the thread of queue `index` of `count`.
fn thread_work(
    mut queue: HostedQueue,
    index: usize,
    count: usize,
    of_path: &HostedJobs,
) -> Result<ThreadWork, ThreadError> {
    let of_queue = (index..of_path.job_count()).step_by(count);
    let group_of = |job: usize| of_path.groups.get(job).copied().unwrap_or_default();
    let groups: Vec<Group> = of_queue.map(group_of).collect();
    if groups.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(ThreadError::Groups);
    }
    let Some(group) = groups.first() else {
        return Ok(ThreadWork::Queue(Box::new(queue)));
    };
    queue.set_group(*group);
    let part = JobPart { first: index as u64, threads: count as u64 };
    let specs = of_path.specs.clone();
    let costs = IoCpuCosts::default();
    let mut runner = JobRunner::with_part(queue, specs, costs, of_path.seed, part)?;
    runner.open_logs_of(of_path.first_log, part)?;
    Ok(ThreadWork::Jobs(Box::new(runner)))
}

/// Error of the work of a thread.
enum ThreadError {
    /// Its jobs are of different groups.
    Groups,
    /// Its jobs cannot be prepared.
    Jobs(RunError),
}

impl From<RunError> for ThreadError {
    fn from(error: RunError) -> ThreadError {
        ThreadError::Jobs(error)
    }
}

impl ThreadError {
    fn of_path(self, path: &str) -> crate::SimError {
        match self {
            ThreadError::Groups => {
                let path = path.to_owned();
                MachineRunError::from(MachineRejection::Groups { path }).into()
            }
            ThreadError::Jobs(error) => error.into(),
        }
    }
}

/// Joins the queues of a path and the results of its jobs. Returns the number of requests.
fn join_path(run: &mut SimRun, of_path: &HostedJobs) -> Result<u64, crate::SimError> {
    let path = &mut run.paths[of_path.path];
    let lost = || MachineRunError::Lost(format!("path {}", of_path.path));
    let (layer, results) = path.hosted.take().ok_or_else(lost)?;
    let (mut devices, mut of_threads) = (Vec::new(), Vec::new());
    for result in results {
        let result = Arc::into_inner(result).ok_or_else(lost)?;
        let result = result.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (device, result) = result.ok_or_else(lost)?;
        devices.push(device);
        of_threads.push(result?.jobs.into_iter());
    }
    let mut device = CoreQueues::join(devices).ok_or_else(lost)?;
    device.restore_block_layer(layer);
    path.idle = Some(JobTarget::Blocks(device));
    let count = of_threads.len();
    let jobs: Vec<_> =
        (0..of_path.job_count()).filter_map(|job| of_threads[job % count].next()).collect();
    let requests = jobs.iter().map(|job| job.requests.completed).sum();
    let elapsed = jobs.iter().map(|job| job.ended).max().unwrap_or(Nanos::ZERO);
    path.result = Some(RunResult { seed: of_path.seed, elapsed, jobs });
    Ok(requests)
}
