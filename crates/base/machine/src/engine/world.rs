//! [`World`]: the state of an engine that its tasks access: the thread-local variable in which it is
//! while the engine runs.

use std::cell::RefCell;

use time::Nanos;

use super::core::ModeledCore;
use super::event_queue::{EngineEvent, EventOrder, EventQueue};
use super::task::{ModeledTask, TaskId, TaskState};
use super::watch::{CoreSegment, SegmentRecorder, WatchInstants, Watched};
use super::{Device, EngineConfig, EngineError};
use crate::core_times::CoreState;
use crate::lines::CoherenceDirectory;
use crate::memory::SharedMemory;

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EventCounts {
    pub(crate) switches: u64,
    pub(crate) interrupts: u64,
    pub(crate) remote_wakes: u64,
    /// Start of the measurement.
    pub(crate) since: Nanos,
}

/// Tasks that look for something.
#[derive(Debug, Default)]
pub(crate) struct Spinners {
    pub(crate) tasks: Vec<TaskId>,
    /// Number of times that a device or a task did something that they may find.
    pub(crate) notifications: u64,
}

/// The devices.
#[derive(Default)]
pub(crate) struct Devices {
    pub(crate) list: Vec<Box<dyn Device>>,
    /// Earliest deadline of all.
    pub(crate) deadline: Nanos,
    /// Whether a task has done something that a device must see at this instant.
    pub(crate) has_doorbell: bool,
    /// Handlers whose interrupts a device has raised in its poll.
    pub(crate) raised: Vec<TaskId>,
}

pub(crate) struct World {
    pub(crate) now: Nanos,
    pub(crate) config: EngineConfig,
    pub(crate) events: EventQueue,
    pub(crate) cores: Vec<ModeledCore>,
    pub(crate) tasks: Vec<ModeledTask>,
    pub(crate) devices: Devices,
    pub(crate) memory: SharedMemory,
    /// The task whose code runs.
    pub(crate) running: Option<TaskId>,
    pub(crate) spinners: Spinners,
    pub(crate) counts: EventCounts,
    pub(crate) watched: Watched,
    pub(crate) error: Option<EngineError>,
    pub(crate) is_stopping: bool,
    /// Number of threads that have not ended.
    pub(crate) threads_left: usize,
    /// Number of calls at this instant, of tasks that take no time.
    pub(crate) calls_at_now: u32,
}

thread_local! {
    static WORLD: RefCell<Option<Box<World>>> = const { RefCell::new(None) };
}

/// Makes `world` that of this thread.
pub(crate) fn put(world: Box<World>) {
    WORLD.set(Some(world));
}

/// Removes the world of this thread.
pub(crate) fn take() -> Option<Box<World>> {
    WORLD.take()
}

/// Calls `use_it` with the world of this thread; returns `None` without one.
#[inline]
pub(crate) fn with<R>(use_it: impl FnOnce(&mut World) -> R) -> Option<R> {
    WORLD.with_borrow_mut(|world| world.as_deref_mut().map(use_it))
}

impl World {
    pub(crate) fn new(config: EngineConfig) -> World {
        let directory = CoherenceDirectory::new(config.machine, config.costs.lines, config.snoops);
        let mut cores = Vec::new();
        let idle = || ModeledCore { since: config.start, ..ModeledCore::default() };
        cores.resize_with(config.hardware_threads(), idle);
        let segments = config.records_segments.then(|| SegmentRecorder::new(cores.len()));
        World {
            now: config.start,
            events: EventQueue::default(),
            cores,
            tasks: Vec::new(),
            devices: Devices { deadline: Nanos::MAX, ..Devices::default() },
            memory: SharedMemory::new(directory),
            running: None,
            spinners: Spinners::default(),
            counts: EventCounts { since: config.start, ..EventCounts::default() },
            watched: Watched { instants: WatchInstants::NONE, segments },
            error: None,
            is_stopping: false,
            threads_left: 0,
            calls_at_now: 0,
            config,
        }
    }

    pub(crate) fn task(&mut self, id: TaskId) -> &mut ModeledTask {
        &mut self.tasks[id.index()]
    }

    /// Returns the core of a hardware thread, which its siblings share.
    pub(crate) fn physical(&self, core: usize) -> usize {
        core % self.config.machine.cores()
    }

    /// Adds the time in the core's state to its times, and changes its state.
    pub(crate) fn enter_state(&mut self, core: usize, state: CoreState) {
        if self.watched.segments.is_some() {
            self.record_segment(core);
        }
        let now = self.now;
        let it = &mut self.cores[core];
        let time = now.since(it.since);
        it.times.add(it.state, time);
        let was_idle = it.state == CoreState::Idle;
        (it.state, it.since) = (state, now);
        if !was_idle
            && let Some(thread) = it.contexts[0]
            && it.contexts[1].is_none()
            && it.contexts[2].is_none()
        {
            let thread = &mut self.tasks[thread.index()];
            thread.virtual_time += time;
        }
    }

    /// Records the segment of a core that ends now.
    #[cold]
    fn record_segment(&mut self, core: usize) {
        let it = &self.cores[core];
        let (state, from, to) = (it.state, it.since, self.now);
        if let (Some(task), Some(segments)) = (it.current(), &mut self.watched.segments)
            && state != CoreState::Idle
            && from < to
        {
            segments.record(CoreSegment { core, task, state, from, to });
        }
    }

    /// Schedules the end of the present piece of a task.
    pub(crate) fn resume_at(&mut self, id: TaskId, at: Nanos, order: EventOrder) {
        let task = self.task(id);
        task.generation += 1;
        let generation = task.generation;
        self.events.push(at, order, EngineEvent::Resume { task: id, generation });
    }

    /// Has a task examined at `until`, at which it stops spinning or sleeping. A task has one such
    /// event: an earlier one is repeated when it comes.
    pub(crate) fn set_deadline(&mut self, id: TaskId, until: Nanos, order: EventOrder) {
        if until < self.task(id).deadline_event {
            self.task(id).deadline_event = until;
            self.events.push(until, order, EngineEvent::Deadline { task: id });
        }
    }

    /// Examines a task at a deadline. Returns whether its code runs now.
    pub(crate) fn on_deadline(&mut self, id: TaskId) -> bool {
        let now = self.now;
        if self.task(id).deadline_event > now {
            // A later event was replaced by an earlier one, which has come already.
            return false;
        }
        self.task(id).deadline_event = Nanos::MAX;
        match self.task(id).state {
            TaskState::Spinning { until, .. } if until <= now => {
                self.task(id).generation += 1;
                return self.end_segment(id);
            }
            TaskState::Spinning { until, .. } if until < Nanos::MAX => {
                self.set_deadline(id, until, EventOrder::Spin);
            }
            TaskState::Parked => {
                let until = self.task(id).parked_until;
                if until <= now {
                    self.wake(id, None);
                } else if until < Nanos::MAX {
                    self.set_deadline(id, until, EventOrder::Normal);
                }
            }
            _ => {}
        }
        false
    }

    /// Wakes the tasks that look: something happened that they may find.
    pub(crate) fn on_notification(&mut self) {
        self.spinners.notifications += 1;
        let now = self.now;
        for index in 0..self.spinners.tasks.len() {
            let id = self.spinners.tasks[index];
            let TaskState::Spinning { since, round, until } = self.task(id).state else { continue };
            let at = whole_rounds(since, round, now);
            if at < until {
                self.task(id).state = TaskState::Spinning { since, round, until: at };
                self.resume_at(id, at, EventOrder::Spin);
            }
        }
    }

    /// Advances to `at`, which is not before the present time.
    #[inline]
    pub(crate) fn advance_to(&mut self, at: Nanos) {
        if at > self.now {
            self.now = at;
            self.calls_at_now = 0;
        }
    }

    /// Records the first error.
    pub(crate) fn fail(&mut self, error: EngineError) {
        self.error.get_or_insert(error);
    }
}

/// Returns the first end of a round that is not before `at`: rounds begin at `since`, and at least
/// one is done. Rounds that take no time end at any instant.
pub(crate) fn whole_rounds(since: Nanos, round: Nanos, at: Nanos) -> Nanos {
    if at == Nanos::MAX {
        return Nanos::MAX;
    }
    if round == Nanos::ZERO {
        return at.max(since);
    }
    let rounds = at.since(since).0.div_ceil(round.0).max(1);
    Nanos(since.0.saturating_add(rounds.saturating_mul(round.0)))
}
