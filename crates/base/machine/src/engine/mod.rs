//! [`Engine`]: runs tasks on modeled hardware threads.

pub(crate) mod calls;
mod core;
mod event_queue;
mod scheduler;
mod task;
#[cfg(test)]
mod tests;
mod watch;
pub(crate) mod world;

use std::fmt;

use collections::Histogram;
use time::Nanos;

use self::event_queue::{EngineEvent, EventOrder};
use self::task::{ModeledTask, TaskState};
pub use self::task::{TaskClass, TaskId, TaskSpec};
pub use self::watch::{CoreSegment, EngineWatcher};
use self::watch::{SEGMENTS_MAX, WatchInstants};
use self::world::World;
use crate::back_end::{BackEnd, Resumed, TaskContext};
use crate::core_times::CoreTimes;
use crate::costs::Costs;
use crate::lines::{SnoopPolicy, Traffic};
use crate::topology::{CORES_MAX, Machine};

/// A device of the machine: hardware, which takes no processor time.
pub trait Device: Send {
    /// Does what is due at `now`. Returns whether there was progress.
    fn poll(&mut self, now: Nanos) -> bool;

    /// Returns the time of the next poll; [`Nanos::MAX`] if only a doorbell creates work.
    fn deadline(&self) -> Nanos;

    /// Returns a number that changes with everything that a task can find.
    fn posted(&self) -> u64;
}

/// Configuration of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Sockets and cores.
    pub machine: Machine,
    /// Number of hardware threads per core, 1 or 2. Thread `n` of the first ones and thread `n` plus
    /// the number of cores share a core.
    pub threads_per_core: u8,
    /// Times.
    pub costs: Costs,
    /// Policy for requests of cache lines.
    pub snoops: SnoopPolicy,
    /// Means by which tasks run.
    pub back_end: BackEnd,
    /// Whether each look is executed.
    pub exact_spins: bool,
    /// Stack of a task in bytes.
    pub stack_bytes: usize,
    /// Longest run of a handler.
    pub handler_limit: Nanos,
    /// Time at which the engine starts.
    pub start: Nanos,
    /// Whether a watcher gets the [segments](CoreSegment) of each hardware thread.
    pub records_segments: bool,
}

impl EngineConfig {
    /// Returns the configuration of a machine with these costs.
    pub fn new(machine: Machine, costs: Costs) -> EngineConfig {
        EngineConfig {
            machine,
            threads_per_core: 1,
            costs,
            snoops: SnoopPolicy::Home,
            back_end: BackEnd::Coroutines,
            exact_spins: false,
            stack_bytes: 1 << 20,
            handler_limit: Nanos::from_secs(1),
            start: Nanos::ZERO,
            records_segments: false,
        }
    }

    /// Returns the number of hardware threads.
    pub fn hardware_threads(&self) -> usize {
        self.machine.cores() * usize::from(self.threads_per_core)
    }
}

/// Error of an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The number of hardware threads per core is neither 1 nor 2, or there are too many in all.
    #[error("{threads} hardware threads per core on {machine}: 1 or 2, and {CORES_MAX} in all")]
    HardwareThreads {
        /// Threads per core.
        threads: u8,
        /// The machine.
        machine: Machine,
    },
    /// A cost is impossible.
    #[error(
        "work beside another hardware thread takes {percent} % of the time alone: at least 100"
    )]
    SmtFactor {
        /// The value.
        percent: u32,
    },
    /// A task is bound to a core that the machine does not have, or a handler to none.
    #[error("task `{task}` is bound to core {core:?}, of {cores}")]
    Core {
        /// Name of the task.
        task: String,
        /// Its core.
        core: Option<usize>,
        /// Number of hardware threads.
        cores: usize,
    },
    /// A priority is not from 1 to 99.
    #[error("task `{task}` has priority {priority}: 1 to 99")]
    Priority {
        /// Name of the task.
        task: String,
        /// The priority.
        priority: u8,
    },
    /// There is no memory or thread for a task.
    #[error("task `{task}` cannot be started: {what}")]
    Spawn {
        /// Name of the task.
        task: String,
        /// Missing resource.
        what: String,
    },
    /// A task panicked.
    #[error("task `{task}` panicked: {message}")]
    Panicked {
        /// Name of the task.
        task: String,
        /// The message.
        message: String,
    },
    /// The stack of a task is too small.
    #[error("task `{task}` needs more than {bytes} bytes of stack")]
    StackOverflow {
        /// Name of the task.
        task: String,
        /// Size of its stack.
        bytes: usize,
    },
    /// A handler does not end, or a task makes calls without end at one instant.
    #[error("task `{task}` does not end: at {at} it has run for {ran}")]
    Stuck {
        /// Name of the task.
        task: String,
        /// Time.
        at: Nanos,
        /// Length of its run.
        ran: Nanos,
    },
    /// Threads wait for what will not happen.
    #[error("nothing is left to happen after {at}, but these threads wait: {}", tasks.join(", "))]
    Deadlock {
        /// Time of the last event.
        at: Nanos,
        /// Names of the threads, at most ten.
        tasks: Vec<String>,
    },
}

/// The runs of a task on a core, each until it waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskReport {
    /// Name of the task.
    pub name: String,
    /// Times of all runs, with interruptions.
    pub runs: Histogram,
}

/// Results of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineReport {
    /// Time at the end.
    pub ended: Nanos,
    /// Time from the start of the measurement to the end.
    pub measured: Nanos,
    /// The times of each hardware thread over that time.
    pub core_times: Vec<CoreTimes>,
    /// Number of switches between threads.
    pub switches: u64,
    /// Number of interrupts.
    pub interrupts: u64,
    /// Number of wake-ups that were sent to another, idle core.
    pub remote_wakes: u64,
    /// Transfers of cache lines.
    pub traffic: Traffic,
    /// Runs of each task, since the start.
    pub tasks: Vec<TaskReport>,
}

/// The engine. See the crate's first page.
pub struct Engine {
    /// `None` while it runs.
    world: Option<Box<World>>,
    contexts: Vec<TaskContext>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("tasks", &self.contexts.len()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Returns an engine at its start.
    ///
    /// # Errors
    /// [`EngineError::HardwareThreads`], [`EngineError::SmtFactor`].
    pub fn new(config: EngineConfig) -> Result<Engine, EngineError> {
        let threads = config.threads_per_core;
        if !(1..=2).contains(&threads) || config.hardware_threads() > CORES_MAX as usize {
            return Err(EngineError::HardwareThreads { threads, machine: config.machine });
        }
        let percent = config.costs.smt_percent;
        if percent < 100 {
            return Err(EngineError::SmtFactor { percent });
        }
        Ok(Engine { world: Some(Box::new(World::new(config))), contexts: Vec::new() })
    }

    /// Adds a device.
    pub fn add_device(&mut self, device: Box<dyn Device>) {
        if let Some(world) = &mut self.world {
            world.devices.list.push(device);
            world.devices.has_doorbell = true;
        }
    }

    /// Adds a task. A thread begins at its start; a handler waits for its first interrupt before
    /// `body` begins.
    ///
    /// # Errors
    /// [`EngineError::Core`], [`EngineError::Priority`], [`EngineError::Spawn`].
    pub fn spawn(
        &mut self,
        spec: TaskSpec,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<TaskId, EngineError> {
        let Some(world) = &mut self.world else {
            return Err(EngineError::Spawn { task: spec.name, what: "the engine".to_owned() });
        };
        let cores = world.cores.len();
        let is_handler = spec.class.is_handler();
        if spec.core.is_some_and(|core| core >= cores) || is_handler && spec.core.is_none() {
            return Err(EngineError::Core { task: spec.name, core: spec.core, cores });
        }
        if let TaskClass::Fifo { priority } = spec.class
            && !(1..=99).contains(&priority)
        {
            return Err(EngineError::Priority { task: spec.name, priority });
        }
        let config = &world.config;
        let context =
            TaskContext::new(config.back_end, &spec.name, config.stack_bytes, Box::new(body))?;
        let id = TaskId(world.tasks.len() as u32);
        let core = spec.core.unwrap_or(id.index() % cores);
        if !is_handler {
            world.threads_left += 1;
            let start = EngineEvent::Start { task: id };
            let at = spec.start.max(world.now);
            world.events.push(at, EventOrder::Normal, start);
        }
        world.tasks.push(ModeledTask::new(spec, core));
        self.contexts.push(context);
        Ok(id)
    }

    /// Runs until every thread has ended. The engine can be run once; `None` if it was.
    ///
    /// # Errors
    /// [`EngineError`]. The memory of tasks that have not ended is then lost, because they may hold
    /// locks.
    pub fn run(&mut self) -> Result<EngineReport, EngineError> {
        self.run_with(&mut |_: Nanos| true)
    }

    /// Runs as [`run`](Engine::run) does, with a watcher.
    ///
    /// # Errors
    /// As [`run`](Engine::run).
    pub fn run_with(
        &mut self,
        watcher: &mut dyn EngineWatcher,
    ) -> Result<EngineReport, EngineError> {
        let Some(mut world) = self.world.take() else {
            return Err(EngineError::Deadlock { at: Nanos::ZERO, tasks: Vec::new() });
        };
        world.watched.instants = WatchInstants::of(watcher);
        let (follows, records) = (watcher.follows_tasks(), world.watched.segments.is_some());
        world::put(world);
        let mut actions = 0u32;
        loop {
            actions = actions.wrapping_add(1);
            if actions.is_multiple_of(TICK_ACTIONS) && !watcher.tick(calls::now()) {
                calls::stop();
            }
            match world::with(World::next_action).unwrap_or(Action::End) {
                Action::Continue => {}
                Action::PollDevices => poll_devices(),
                Action::Watch(now) => {
                    watcher.at(now);
                    let watched = WatchInstants::of(watcher);
                    world::with(|world| world.watched.instants = watched);
                }
                Action::Resume(id) if follows => {
                    watcher.enter_task(id, calls::now());
                    self.resume(id);
                    watcher.leave_task(id);
                }
                Action::Resume(id) => self.resume(id),
                Action::End => break,
            }
            if records {
                give_segments(watcher);
            }
        }
        let Some(mut world) = world::take() else {
            let message = "the state of the engine is lost".to_owned();
            return Err(EngineError::Panicked { task: String::new(), message });
        };
        let result = match world.error.take() {
            Some(error) => Err(error),
            None => Ok(world.report()),
        };
        if let Some(mut segments) = world.watched.segments.take() {
            segments.finish();
            watcher.segments(&segments.ended);
        }
        self.world = Some(world);
        result
    }

    fn resume(&mut self, id: TaskId) {
        let resumed = self.contexts[id.index()].resume();
        world::with(|world| {
            world.running = None;
            let name = |world: &World| world.tasks[id.index()].spec.name.clone();
            match resumed {
                Resumed::Suspended => return,
                Resumed::Ended => {}
                Resumed::Panicked(message) => {
                    let task = name(world);
                    return world.fail(EngineError::Panicked { task, message });
                }
                Resumed::StackOverflow => {
                    let (task, bytes) = (name(world), world.config.stack_bytes);
                    return world.fail(EngineError::StackOverflow { task, bytes });
                }
            }
            if !world.task(id).spec.class.is_handler() {
                world.threads_left -= 1;
            }
            world.leave_core(id, TaskState::Ended);
            world.on_notification();
        });
    }
}

/// Number of actions between two ticks.
const TICK_ACTIONS: u32 = 4096;

/// The next action of the engine.
enum Action {
    Continue,
    PollDevices,
    /// An instant of the watcher.
    Watch(Nanos),
    Resume(TaskId),
    End,
}

/// Gives recorded segments to the watcher if there are many.
fn give_segments(watcher: &mut dyn EngineWatcher) {
    let full = world::with(|world| match &mut world.watched.segments {
        Some(segments) if segments.ended.len() >= SEGMENTS_MAX => {
            std::mem::take(&mut segments.ended)
        }
        _ => Vec::new(),
    });
    if let Some(full) = full.filter(|full| !full.is_empty()) {
        watcher.segments(&full);
    }
}

/// Polls the devices until none makes progress. They are outside of the state of the engine
/// meanwhile, so that they can raise interrupts.
fn poll_devices() {
    let Some((now, mut devices)) = world::with(|world| {
        world.devices.has_doorbell = false;
        (world.now, std::mem::take(&mut world.devices.list))
    }) else {
        return;
    };
    let posted = |devices: &[Box<dyn Device>]| {
        devices.iter().fold(0u64, |sum, device| sum.wrapping_add(device.posted()))
    };
    let before = posted(&devices);
    while devices.iter_mut().fold(false, |moved, device| device.poll(now) | moved) {}
    let has_posted = posted(&devices) != before;
    let deadline = devices.iter().map(|device| device.deadline()).min().unwrap_or(Nanos::MAX);
    world::with(|world| {
        world.devices.list = devices;
        // A deadline in the past means "as soon as time advances".
        world.devices.deadline = deadline.max(now + Nanos(1));
        for handler in std::mem::take(&mut world.devices.raised) {
            world.wake(handler, None);
        }
        if has_posted {
            world.on_notification();
        }
    });
}

impl World {
    fn next_action(&mut self) -> Action {
        if self.error.is_some() || self.threads_left == 0 {
            return Action::End;
        }
        for handler in std::mem::take(&mut self.devices.raised) {
            self.wake(handler, None);
        }
        let next = self.events.next_time();
        // Devices see what all tasks did at an instant.
        if self.devices.has_doorbell && next > self.now {
            return Action::PollDevices;
        }
        if let Some(due) = self.watched.instants.due(next.min(self.devices.deadline)) {
            self.advance_to(due);
            return Action::Watch(self.now);
        }
        if self.devices.deadline <= next && self.devices.deadline < Nanos::MAX {
            self.advance_to(self.devices.deadline);
            return Action::PollDevices;
        }
        let Some((at, event)) = self.events.pop() else {
            let waiting = self
                .tasks
                .iter()
                .filter(|task| !task.spec.class.is_handler() && task.state != TaskState::Ended);
            let tasks = waiting.take(10).map(|task| task.spec.name.clone()).collect();
            self.fail(EngineError::Deadlock { at: self.now, tasks });
            return Action::End;
        };
        self.advance_to(at);
        match event {
            EngineEvent::Resume { task, generation } => {
                if self.task(task).generation == generation && self.end_segment(task) {
                    self.running = Some(task);
                    return Action::Resume(task);
                }
            }
            EngineEvent::Start { task } => self.wake(task, None),
            EngineEvent::Deadline { task } => {
                if self.on_deadline(task) {
                    self.running = Some(task);
                    return Action::Resume(task);
                }
            }
            EngineEvent::Wake { task } => {
                let core = self.task(task).core;
                self.make_ready(task, core);
            }
            EngineEvent::Slice { core, generation } => self.end_slice(core, generation),
        }
        Action::Continue
    }

    fn begin_measurement(&mut self) {
        for core in 0..self.cores.len() {
            let state = self.cores[core].state;
            self.enter_state(core, state);
            self.cores[core].times = CoreTimes::default();
        }
        self.counts = world::EventCounts { since: self.now, ..Default::default() };
        self.memory.directory.reset_traffic();
    }

    fn report(&mut self) -> EngineReport {
        for core in 0..self.cores.len() {
            let state = self.cores[core].state;
            self.enter_state(core, state);
        }
        let world::EventCounts { switches, interrupts, remote_wakes, since } = self.counts;
        let tasks = self.tasks.iter_mut().map(|task| TaskReport {
            name: task.spec.name.clone(),
            runs: std::mem::take(&mut task.runs.ended),
        });
        EngineReport {
            ended: self.now,
            measured: self.now.since(since),
            core_times: self.cores.iter().map(|core| core.times).collect(),
            switches,
            interrupts,
            remote_wakes,
            traffic: self.memory.directory.traffic(),
            tasks: tasks.collect(),
        }
    }
}
