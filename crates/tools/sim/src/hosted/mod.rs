//! Runs jobs on a modeled machine (`[host] machine`): the host's software takes processor time.
//!
//! Each queue of a path is used by one thread of the machine, which runs the jobs of that queue: job
//! `i` on queue `i` modulo the number of queues, as without a machine. The thread polls, and waits
//! by the path's method of completion when there is nothing to do. The thread of a shard also polls
//! while others need the shard.
//!
//! Samples, changes, faults and traces are those of a [`RunWatcher`], which stands outside of the
//! machine; threads and the rest of the run tell each other through ports.

mod context;
mod direct;
mod outcome;
mod port;
mod program;
mod queue;
mod stage_peers;
#[cfg(test)]
mod tests;
mod wait;
mod watch;

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use block::notify::CompletionPolicy;
use block::{BlockDevice, Group};
use event::Waker;
use machine::{Engine, EngineConfig, EngineError, TaskClass, TaskId, TaskSpec};
use scenario::{HostMachine, PathConfig, PathSpec};
use stack::{CoreQueues, JobTarget, target_layers};
use time::{Component, Nanos};
use tracepoint::EventOrigin;
use workload::{
    IoCpuCosts, JobDevice, JobPart, JobRunner, JobSpec, JobStages, KeyValueDevice, ParallelUnits,
    RunError, RunResult,
};

use context::SharedQueueHandler;
use direct::{DirectDevice, DirectHost};
pub use outcome::MachineOutcome;
pub(super) use port::{HostChangeError, HostedPath};
use port::{PROGRESS_MAX, ThreadPort};
pub use program::ProcessOutcome;
pub(super) use program::ProcessRun;
use program::Program;
use queue::HostedQueue;
use stage_peers::StagePeers;
use wait::{InterruptMask, ThreadWait};
use watch::{HostedDevice, HostedTasks, RunWatcher, SharedDevice};

use crate::RunParts;
use crate::sim_run::SimRun;

/// A scenario that cannot run on a modeled machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineRejection {
    /// The machine that runs the program, whose numbers nothing has given.
    #[error(
        "{file}: the numbers of machine = \"this\" are not known here: `sluice sim` and `sluice sweep` \
         measure them; elsewhere set `machine` to the file that `sluice calibrate --sheet` writes"
    )]
    NotMeasured {
        /// Path of the scenario.
        file: String,
    },
    /// Jobs that verify data on several queues: each thread would have a record of its own.
    #[error("job {job}: on a modelled machine jobs that `verify` need a path with one queue")]
    Verify {
        /// Name of the job.
        job: String,
    },
    /// Processes that would share a thread with others: each works on its own.
    #[error(
        "path {path} has {queues} queue{}, and {jobs} jobs and processes: give each process a queue or a \
         path of its own", if *queues == 1 { "" } else { "s" }
    )]
    SharedThread {
        /// Name of the path.
        path: String,
        /// Number of its queues.
        queues: usize,
        /// Number of its jobs and processes.
        jobs: usize,
    },
    /// A process on a hardware thread that the machine does not have, or that it cannot share.
    #[error(
        "a process is on hardware thread {core}: {machine} has {cores}, and needs the table `threads` for \
         processes that share one"
    )]
    Core {
        /// The hardware thread.
        core: u16,
        /// Name of the machine.
        machine: String,
        /// Number of hardware threads.
        cores: usize,
    },
    /// A process on keys or parallel units.
    #[error("process {process}: its path has no logical blocks")]
    ProcessWithoutBlocks {
        /// Name of the process.
        process: String,
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
        /// The key that needs them.
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
    /// The process that each job is, with clones counted one by one; empty if none is.
    pub(super) processes: Vec<Option<ProcessRun>>,
    /// Number of the first log.
    pub(super) first_log: usize,
    /// How the threads notice completions.
    pub(super) completion: CompletionPolicy,
}

impl HostedJobs {
    /// Returns the name of the first process.
    fn first_process(&self) -> Option<String> {
        let names = self.specs.iter().flat_map(|spec| (0..spec.numjobs).map(|_| &spec.name));
        let mut named = names.zip(&self.processes);
        named.find(|(_, process)| process.is_some()).map(|(name, _)| name.clone())
    }

    fn job_count(&self) -> usize {
        self.specs.iter().map(|spec| spec.numjobs as usize).sum()
    }
}

/// Checks what a machine refuses before anything is built.
///
/// # Errors
/// [`MachineRejection`].
pub(super) fn check(host: &HostMachine, paths: &[PathSpec]) -> Result<(), MachineRejection> {
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
    Ok(())
}

/// Returns how the threads of a path notice completions.
pub(super) fn completion(config: &PathConfig) -> CompletionPolicy {
    config.completion.unwrap_or_default()
}

/// State that the threads of a path share.
struct PathPeers {
    /// Number of threads with jobs that have not ended.
    running: AtomicU32,
    /// Whether a thread may find what another did: they share hardware queues, or are shards.
    share: bool,
    /// Whether the requests of a thread need the others to poll their queues, as shards do.
    serve_others: bool,
    /// The stages of their jobs, if some wait for those of other threads.
    stages: Option<StagePeers>,
}

/// One thread of a path.
struct PathThread {
    work: ThreadWork,
    port: Arc<ThreadPort>,
    peers: Arc<PathPeers>,
    wait: ThreadWait,
}

/// The jobs of a thread, or its queue alone.
enum ThreadWork {
    Jobs(Box<JobRunner<HostedQueue>>),
    /// Jobs on parallel units.
    UnitJobs(Box<JobRunner<DirectHost<ParallelUnits>>>),
    /// Jobs on keys.
    KeyJobs(Box<JobRunner<DirectHost<KeyValueDevice>>>),
    /// A queue without jobs, which other threads need.
    Queue(Box<HostedQueue>),
}

/// Number of rounds between two reports of progress.
const PROGRESS_ROUNDS: u32 = 256;

impl PathThread {
    fn run(self) {
        let PathThread { work, port, peers, mut wait } = self;
        let (mut queue, jobs) = match work {
            ThreadWork::Queue(queue) => (*queue, Ok(RunResult::default())),
            ThreadWork::UnitJobs(runner) => {
                let (units, jobs) = run_jobs(*runner, &peers, &mut wait, &port.progress);
                return port.end((units.into_target(), jobs));
            }
            ThreadWork::KeyJobs(runner) => {
                let (keys, jobs) = run_jobs(*runner, &peers, &mut wait, &port.progress);
                return port.end((keys.into_target(), jobs));
            }
            ThreadWork::Jobs(runner) => {
                let ended = run_jobs(*runner, &peers, &mut wait, &port.progress);
                peers.running.fetch_sub(1, Ordering::Relaxed);
                machine::notify();
                ended
            }
        };
        port.progress.store(PROGRESS_MAX, Ordering::Relaxed);
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
        port.end((JobTarget::Blocks(queue.into_device()), jobs));
    }
}

/// Runs the jobs of a thread. Returns its queue and their results.
fn run_jobs<D: JobDevice>(
    mut runner: JobRunner<D>,
    peers: &PathPeers,
    wait: &mut ThreadWait,
    progress: &AtomicU32,
) -> (D, Result<RunResult, RunError>) {
    let (mut rounds, mut is_stopped) = (0u32, false);
    let unfinished = || peers.stages.as_ref().map(StagePeers::unfinished);
    while !runner.is_done() {
        if !is_stopped && machine::is_stopping() {
            is_stopped = true;
            runner.stop();
        }
        let (spin, before) = (machine::begin_spin(), unfinished());
        let moved = runner.poll(machine::now());
        if moved {
            wait.found();
            if peers.share {
                machine::notify();
            }
        }
        if before != unfinished() {
            peers.stages.iter().for_each(StagePeers::wake_all);
        }
        rounds += 1;
        if rounds.is_multiple_of(PROGRESS_ROUNDS) {
            let thousandths = f64::from(PROGRESS_MAX) * runner.progress();
            progress.store(thousandths as u32, Ordering::Relaxed);
        }
        if !moved && !runner.is_done() {
            wait.wait(spin, runner.deadline());
        }
    }
    runner.finish_with_device()
}

/// Runs the jobs of all paths on the machine from `start` on, and what else happens in the run. Puts
/// devices, paths and results back into `run`. Returns the outcome, and the time at the end.
///
/// # Errors
/// [`MachineRunError`], and the errors of [`JobRunner`] and of what else happens.
pub(super) fn run(
    run: &mut SimRun,
    host: &HostMachine,
    jobs: Vec<HostedJobs>,
    start: Nanos,
    parts: RunParts<'_, '_>,
    tick: &mut dyn FnMut(Nanos, f64) -> bool,
) -> Result<(MachineOutcome, Nanos), crate::SimError> {
    let records_segments = parts.recording.has_spans();
    let kernel = host.kernel.request_costs(&host.model);
    let config = EngineConfig { start, records_segments, ..host.model.engine_config(kernel) };
    let mut engine = Engine::new(config).map_err(MachineRunError::from)?;
    let mut devices = Vec::with_capacity(run.devices.len());
    for (index, device) in run.devices.drain(..).enumerate() {
        let device = SharedDevice::new(device);
        let drive = run.drives.iter().position(|drive| drive.device == index).unwrap_or(0) as u16;
        engine.add_device(Box::new(HostedDevice { device: device.clone(), drive }));
        devices.push(device);
    }
    let mut ready = ReadyTasks::default();
    for of_path in &jobs {
        split_path(run, of_path, host, &mut ready)?;
    }
    let (tasks, contexts) = spawn(&mut engine, host, ready)?;
    let mut watcher = RunWatcher { run, devices, tasks, parts, tick, error: None };
    let report = engine.run_with(&mut watcher);
    contexts.iter().for_each(SharedQueueHandler::end);
    let RunWatcher { run, devices, parts, error, .. } = watcher;
    // An error of the rest of the run is the cause of those of the machine.
    if let Some(error) = error {
        return Err(error);
    }
    let report = report.map_err(MachineRunError::from)?;
    drop(engine);
    for (device, name) in devices.iter().zip(0..) {
        let lost = || MachineRunError::Lost(format!("device {name}"));
        run.devices.push(device.take().ok_or_else(lost)?);
    }
    let ended = report.ended;
    parts.recording.collect_hosted(run)?;
    parts.changes.check_hosted(run)?;
    let mut requests = 0;
    for of_path in &jobs {
        requests += join_path(run, of_path)?;
    }
    parts.recording.collect(ended, run)?;
    let model = (*host.model).clone();
    let outcomes = |of_path: &HostedJobs| {
        let processes = of_path.processes.iter();
        processes.map(|process| process.as_ref().map(ProcessRun::outcome)).collect()
    };
    let processes =
        jobs.iter().map(|of_path| (run.paths[of_path.path].name.clone(), outcomes(of_path)));
    let processes = processes.collect();
    Ok((MachineOutcome::new(model, host.kernel, report, requests, processes), ended))
}

/// A thread that is to run, with its name and the origin of its events, and what its queue wakes.
struct ReadyThread {
    name: String,
    origin: EventOrigin,
    thread: PathThread,
    wakes: Option<Wakes>,
    /// Its hardware thread; `None` for one that has no other thread, as long as there are any.
    core: Option<u16>,
}

/// The interrupt context of a path that is to run, and the cell of its handler.
struct ReadyContext {
    name: String,
    origin: EventOrigin,
    context: SharedQueueHandler,
    handler: Arc<OnceLock<TaskId>>,
}

/// The tasks that are to run.
#[derive(Default)]
struct ReadyTasks {
    threads: Vec<ReadyThread>,
    contexts: Vec<ReadyContext>,
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

/// Gives each queue of a path to a thread. Adds the threads that have something to do, and the
/// interrupt context of the path.
fn split_path(
    run: &mut SimRun,
    of_path: &HostedJobs,
    host: &HostMachine,
    ready: &mut ReadyTasks,
) -> Result<(), crate::SimError> {
    let path = &mut run.paths[of_path.path];
    path.poll_all_members();
    let name = path.name.clone();
    let (drive, number) = (path.drives[0] as u16, of_path.path as u16);
    let origin = EventOrigin { drive, path: number, target: 0 };
    if let (Some(process), Some(JobTarget::Units(_) | JobTarget::Keys(_))) =
        (of_path.first_process(), &path.idle)
    {
        let refused = MachineRejection::ProcessWithoutBlocks { process };
        return Err(MachineRunError::from(refused).into());
    }
    let mut device = match path.idle.take() {
        Some(JobTarget::Blocks(device)) => device,
        Some(JobTarget::Units(units)) => {
            let runner = direct_runner(units, of_path)?;
            let (hosted, thread) = direct_thread(ThreadWork::UnitJobs(runner));
            path.hosted = Some(hosted);
            let name = format!("{name}: units");
            ready.threads.push(ReadyThread { name, origin, thread, wakes: None, core: None });
            return Ok(());
        }
        Some(JobTarget::Keys(keys)) => {
            let runner = direct_runner(keys, of_path)?;
            let (hosted, thread) = direct_thread(ThreadWork::KeyJobs(runner));
            path.hosted = Some(hosted);
            let name = format!("{name}: keys");
            ready.threads.push(ReadyThread { name, origin, thread, wakes: None, core: None });
            return Ok(());
        }
        None => return Err(MachineRunError::Lost(format!("path {name}")).into()),
    };
    let layer = device.take_block_layer();
    let has_processes = !of_path.processes.is_empty();
    let has_target = target_layers::ftl_snapshot(&mut device).is_some();
    let handler = Arc::new(OnceLock::new());
    let context = match &layer {
        Some(layer) => {
            let raise = raising(handler.clone(), Arc::default()).map_err(MachineRunError::from)?;
            SharedQueueHandler::take(&mut device, layer, raise)
        }
        None => None,
    };
    let taken = context.as_ref().map(|context| context.taken.clone());
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
    if has_processes && of_path.job_count() > count {
        let (path, queues, jobs) = (name, count, of_path.job_count());
        let refused = MachineRejection::SharedThread { path, queues, jobs };
        return Err(MachineRunError::from(refused).into());
    }
    if let Some(job) = of_path.specs.iter().find(|job| job.integrity.verify && with_jobs > 1) {
        let job = job.name.clone();
        return Err(MachineRunError::from(MachineRejection::Verify { job }).into());
    }
    let peers = Arc::new(PathPeers {
        running: AtomicU32::new(with_jobs as u32),
        share,
        serve_others: count > 1 && layer.is_none() && has_target,
        stages: StagePeers::new(&of_path.specs, with_jobs),
    });
    let mut hosted = HostedPath::new(layer);
    for (index, mut queue) in queues.into_iter().enumerate() {
        let (cell, mask) = (Arc::new(OnceLock::new()), Arc::<InterruptMask>::default());
        let wakes = match context {
            Some(_) => Some(Wakes::Thread(cell)),
            None if of_path.completion.method.uses_interrupts() => Some(Wakes::Handler(cell)),
            None => None,
        };
        if let Some(wakes) = &wakes {
            queue.set_waker(wakes.waker(&mask).map_err(MachineRunError::from)?);
        }
        let port = hosted.add(&mut queue);
        let stages = peers.stages.as_ref().map(|stages| stages.add(&port));
        let mut queue = HostedQueue::new(queue, port.clone()).with_taken(taken.clone());
        let mut core = None;
        if let Some(Some(process)) = of_path.processes.get(index) {
            core = process.spec.core;
            let wait = ThreadWait::new(of_path.completion, mask.clone());
            queue = queue.with_program(Program::new(process.clone(), &host.model, wait));
        }
        let work = thread_work(queue, (index, count), of_path, stages)?;
        match work {
            ThreadWork::Queue(queue) if !peers.serve_others => {
                let device = JobTarget::Blocks(queue.into_device());
                port.end((device, Ok(RunResult::default())));
            }
            work => {
                let (peers, wait) = (peers.clone(), ThreadWait::new(of_path.completion, mask));
                ready.threads.push(ReadyThread {
                    name: format!("{name}: queue {index}"),
                    origin,
                    thread: PathThread { work, port, peers, wait },
                    wakes,
                    core,
                });
            }
        }
    }
    if let Some(context) = context {
        ready.contexts.push(ReadyContext { name, origin, context, handler });
    }
    path.hosted = Some(hosted);
    Ok(())
}

/// Prepares the jobs of a path without a block layer.
fn direct_runner<D: DirectDevice>(
    device: Box<D>,
    of_path: &HostedJobs,
) -> Result<Box<JobRunner<DirectHost<D>>>, RunError> {
    let (costs, specs) = (IoCpuCosts::default(), of_path.specs.clone());
    let mut runner = JobRunner::new(DirectHost::new(device), specs, costs, of_path.seed)?;
    runner.open_logs(of_path.first_log)?;
    Ok(Box::new(runner))
}

/// Returns such a path and its one thread, which polls.
fn direct_thread(work: ThreadWork) -> (HostedPath, PathThread) {
    let mut hosted = HostedPath::default();
    let port = hosted.add_direct();
    let peers = Arc::new(PathPeers {
        running: AtomicU32::new(1),
        share: false,
        serve_others: false,
        stages: None,
    });
    let wait = ThreadWait::new(CompletionPolicy::default(), Arc::default());
    (hosted, PathThread { work, port, peers, wait })
}

/// Creates the tasks of the threads, of their interrupts' handlers and of interrupt contexts.
fn spawn(
    engine: &mut Engine,
    host: &HostMachine,
    ready: ReadyTasks,
) -> Result<(HostedTasks, Vec<SharedQueueHandler>), MachineRunError> {
    let ReadyTasks { threads, contexts: ready_contexts } = ready;
    let (count, cores) = (threads.len(), host.model.hardware_threads());
    if count > cores && !host.model.has_thread_costs() {
        let machine = host.model.name().to_owned();
        return Err(MachineRejection::NoThreadCosts { machine, threads: count, cores }.into());
    }
    let pinned = threads.iter().filter_map(|thread| thread.core);
    let refused = |core: &u16| usize::from(*core) >= cores || !host.model.has_thread_costs();
    if let Some(core) = pinned.into_iter().find(refused) {
        let machine = host.model.name().to_owned();
        return Err(MachineRejection::Core { core, machine, cores }.into());
    }
    let (mut tasks, mut contexts) = (HostedTasks::default(), Vec::new());
    for ReadyContext { name, origin, context, handler } in ready_contexts {
        // Its endpoint has no thread, so that the interrupt goes to the first hardware thread.
        let spec = interrupt_of(&name, 0);
        tasks.push(spec.name.clone(), origin);
        contexts.push(context.clone());
        // The cell is empty until here.
        let _ = handler.set(engine.spawn(spec, move || context.run())?);
    }
    for (index, ready) in threads.into_iter().enumerate() {
        let ReadyThread { name, origin, thread, wakes, core } = ready;
        tasks.push(name.clone(), origin);
        // A thread per hardware thread while there are enough; else the machine places them.
        let spec = TaskSpec::thread(name.clone());
        let spec = match core {
            Some(core) => spec.on(core.into()),
            None if count <= cores => spec.on(index),
            None => spec,
        };
        let core = core.map_or(index % cores, usize::from);
        let port = thread.port.clone();
        let thread = engine.spawn(spec, move || thread.run())?;
        port.set_task(thread);
        // The cells are empty until here.
        match wakes {
            Some(Wakes::Handler(cell)) => {
                let spec = interrupt_of(&name, core);
                tasks.push(spec.name.clone(), origin);
                let _ = cell.set(engine.spawn(spec, move || wake_at_interrupts(thread))?);
            }
            Some(Wakes::Thread(cell)) => {
                let _ = cell.set(thread);
            }
            None => {}
        }
    }
    Ok((tasks, contexts))
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
    (index, count): (usize, usize),
    of_path: &HostedJobs,
    stages: Option<Arc<JobStages>>,
) -> Result<ThreadWork, RunError> {
    let mut of_queue = (index..of_path.job_count()).step_by(count).peekable();
    if of_queue.peek().is_none() {
        return Ok(ThreadWork::Queue(Box::new(queue)));
    }
    queue.set_groups(&of_path.groups, of_queue);
    let part = JobPart { first: index as u64, threads: count as u64 };
    let (costs, specs) = (IoCpuCosts::default(), of_path.specs.clone());
    let mut runner = JobRunner::with_part(queue, specs, costs, of_path.seed, part)?;
    stages.into_iter().for_each(|stages| runner.share_stages(stages));
    runner.open_logs_of(of_path.first_log, part)?;
    Ok(ThreadWork::Jobs(Box::new(runner)))
}

/// Joins the queues of a path and the results of its jobs. Returns the number of requests.
fn join_path(run: &mut SimRun, of_path: &HostedJobs) -> Result<u64, crate::SimError> {
    let path = &mut run.paths[of_path.path];
    let lost = || MachineRunError::Lost(format!("path {}", of_path.path));
    let (layer, results) = path.hosted.take().ok_or_else(lost)?.into_results();
    let (mut devices, mut of_threads) = (Vec::new(), Vec::new());
    for result in results {
        let (device, result) = result.ok_or_else(lost)?;
        of_threads.push(result?.jobs.into_iter());
        match device {
            JobTarget::Blocks(device) => devices.push(device),
            other => path.idle = Some(other),
        }
    }
    if let Some(mut device) = CoreQueues::join(devices) {
        device.restore_block_layer(layer);
        path.idle = Some(JobTarget::Blocks(device));
    }
    let count = of_threads.len();
    let jobs: Vec<_> =
        (0..of_path.job_count()).filter_map(|job| of_threads[job % count].next()).collect();
    let requests = jobs.iter().map(|job| job.requests.completed).sum();
    let elapsed = jobs.iter().map(|job| job.ended).max().unwrap_or(Nanos::ZERO);
    path.result = Some(RunResult { seed: of_path.seed, elapsed, jobs });
    Ok(requests)
}
