//! [`ModeledTask`]: a thread or a handler on the modeled machine.

use collections::Histogram;
use platform::Layer;
use time::Nanos;

use crate::core_times::CoreState;

/// Index of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub(crate) u32);

impl TaskId {
    /// Returns the index, which counts the tasks of an engine in the order of their creation.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Context in which a task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskClass {
    /// A handler of a hard interrupt. It runs when it is [raised](crate::raise), once for each
    /// return from [`park`](crate::park).
    HardInterrupt,
    /// A soft interrupt.
    SoftInterrupt,
    /// A thread of a priority from 1 to 99, 99 first.
    Fifo {
        /// The priority.
        priority: u8,
    },
    /// A thread of equal share.
    Fair,
}

impl TaskClass {
    /// Returns whether the task serves others: the run does not wait for its end.
    pub(crate) const fn is_handler(self) -> bool {
        matches!(self, TaskClass::HardInterrupt | TaskClass::SoftInterrupt)
    }
}

/// Description of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSpec {
    /// Name in results and errors.
    pub name: String,
    /// Context.
    pub class: TaskClass,
    /// The only hardware thread on which the task runs. A handler has one.
    pub core: Option<usize>,
    /// Time at which a thread starts.
    pub start: Nanos,
}

impl TaskSpec {
    /// Returns a fair thread that starts at once on any core.
    pub fn thread(name: impl Into<String>) -> TaskSpec {
        TaskSpec { name: name.into(), class: TaskClass::Fair, core: None, start: Nanos::ZERO }
    }

    /// Returns this task on a core of its own.
    #[must_use]
    pub fn on(self, core: usize) -> TaskSpec {
        TaskSpec { core: Some(core), ..self }
    }
}

/// State of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskState {
    /// Waits to be woken.
    Parked,
    /// Could run: in the queue of a core, or interrupted. `remaining` is left of its present piece of
    /// work.
    Ready { remaining: Nanos, as_state: CoreState },
    /// The core switches to the task.
    Switching { remaining: Nanos, as_state: CoreState },
    /// Works until a time.
    Working { until: Nanos, as_state: CoreState },
    /// Waits for a lock, with interrupts off.
    WaitingForLock,
    /// Looks for something and finds nothing: in rounds of `round` since `since`, at the latest until
    /// `until`.
    Spinning { since: Nanos, round: Nanos, until: Nanos },
    /// Its code runs, which takes no time.
    Running,
    /// Has ended.
    Ended,
}

#[derive(Debug)]
pub(crate) struct ModeledTask {
    pub(crate) spec: TaskSpec,
    pub(crate) state: TaskState,
    /// Counts changes of the state that make scheduled events void.
    pub(crate) generation: u32,
    /// Core of the last or present run.
    pub(crate) core: usize,
    /// Layer whose work the task does.
    pub(crate) layer: Layer,
    /// Time on a core, as fair threads are compared by.
    pub(crate) virtual_time: Nanos,
    /// The time until which it is parked; [`Nanos::MAX`] for no limit.
    pub(crate) parked_until: Nanos,
    /// Time of the queued [`Deadline`](super::event_queue::EngineEvent::Deadline) event;
    /// [`Nanos::MAX`] for none.
    pub(crate) deadline_event: Nanos,
    /// Whether it was woken while it was not parked.
    pub(crate) is_notified: bool,
    /// A soft interrupt that continues as a thread until it waits.
    pub(crate) is_demoted: bool,
    /// Whether it continues on the hardware thread on which it went to sleep.
    pub(crate) stays: bool,
    /// Number of times that it was woken without having waited.
    pub(crate) rounds: u32,
    pub(crate) runs: RunTimes,
}

/// Times of the runs of a context, from the moment at which it has a core until it waits.
#[derive(Debug, Default)]
pub(crate) struct RunTimes {
    pub(crate) began: Nanos,
    pub(crate) ended: Histogram,
}

impl RunTimes {
    pub(crate) fn end(&mut self, now: Nanos) {
        self.ended.record(now.since(self.began));
    }
}

impl ModeledTask {
    pub(crate) fn new(spec: TaskSpec, core: usize) -> ModeledTask {
        ModeledTask {
            spec,
            state: TaskState::Parked,
            generation: 0,
            core,
            layer: Layer::Application,
            virtual_time: Nanos::ZERO,
            parked_until: Nanos::MAX,
            deadline_event: Nanos::MAX,
            is_notified: false,
            is_demoted: false,
            stays: false,
            rounds: 0,
            runs: RunTimes::default(),
        }
    }

    /// Returns the class, with a demoted soft interrupt as the thread that it is.
    pub(crate) fn class(&self) -> TaskClass {
        if self.is_demoted { TaskClass::Fair } else { self.spec.class }
    }

    /// Returns the state of the core while the task works.
    pub(crate) fn work_state(&self) -> CoreState {
        match self.class() {
            TaskClass::HardInterrupt => CoreState::Interrupt,
            TaskClass::SoftInterrupt => CoreState::SoftInterrupt,
            TaskClass::Fifo { .. } | TaskClass::Fair => CoreState::Work(self.layer),
        }
    }
}
