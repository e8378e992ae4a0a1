//! [`ModeledCore`]: one hardware thread: what runs on it, what waits for it, and its time.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};

use time::Nanos;

use super::task::{ModeledTask, TaskClass, TaskId};
use crate::core_times::{CoreState, CoreTimes};

/// Contexts by urgency. A context interrupts those below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Thread,
    Soft,
    Hard,
}

impl Level {
    /// All levels, most urgent first.
    pub(crate) const DESCENDING: [Level; 3] = [Level::Hard, Level::Soft, Level::Thread];

    pub(crate) fn of(class: TaskClass) -> Level {
        match class {
            TaskClass::HardInterrupt => Level::Hard,
            TaskClass::SoftInterrupt => Level::Soft,
            TaskClass::Fifo { .. } | TaskClass::Fair => Level::Thread,
        }
    }
}

/// The tasks that wait for a core.
#[derive(Debug, Default)]
pub(crate) struct ReadyTasks {
    handlers: [VecDeque<TaskId>; 2],
    /// By priority, then in the sequence in which they became ready.
    fifo: BTreeSet<(Reverse<u8>, u64, TaskId)>,
    /// By time on a core.
    fair: BTreeSet<(Nanos, u64, TaskId)>,
    sequence: u64,
}

impl ReadyTasks {
    /// Inserts a task. `in_front` puts a FIFO thread in front of those of its priority.
    pub(crate) fn push(&mut self, id: TaskId, task: &ModeledTask, in_front: bool) {
        self.sequence += 1;
        match task.class() {
            TaskClass::HardInterrupt => self.handlers[1].push_back(id),
            TaskClass::SoftInterrupt => self.handlers[0].push_back(id),
            TaskClass::Fifo { priority } => {
                let sequence = if in_front { 0 } else { self.sequence };
                self.fifo.insert((Reverse(priority), sequence, id));
            }
            TaskClass::Fair => {
                self.fair.insert((task.virtual_time, self.sequence, id));
            }
        }
    }

    /// Removes and returns the first task of a level.
    pub(crate) fn pop(&mut self, level: Level) -> Option<TaskId> {
        match level {
            Level::Hard => self.handlers[1].pop_front(),
            Level::Soft => self.handlers[0].pop_front(),
            Level::Thread => {
                let fifo = self.fifo.pop_first().map(|(.., id)| id);
                fifo.or_else(|| self.fair.pop_first().map(|(.., id)| id))
            }
        }
    }

    pub(crate) fn is_empty(&self, level: Level) -> bool {
        match level {
            Level::Hard => self.handlers[1].is_empty(),
            Level::Soft => self.handlers[0].is_empty(),
            Level::Thread => self.fifo.is_empty() && self.fair.is_empty(),
        }
    }

    /// Returns the least time of the fair threads.
    pub(crate) fn least_fair_time(&self) -> Option<Nanos> {
        self.fair.first().map(|(time, ..)| *time)
    }

    /// Returns the number of fair threads.
    pub(crate) fn fair_count(&self) -> usize {
        self.fair.len()
    }
}

#[derive(Debug, Default)]
pub(crate) struct ModeledCore {
    /// The tasks that have the core, by level; those below the highest are interrupted.
    pub(crate) contexts: [Option<TaskId>; 3],
    pub(crate) ready: ReadyTasks,
    /// The thread that had the core last.
    pub(crate) last_thread: Option<TaskId>,
    /// Number of locks that the present context holds or waits for, with interrupts off.
    pub(crate) locks: u32,
    /// Whether the core must choose again as soon as it may.
    pub(crate) must_reschedule: bool,
    pub(crate) state: CoreState,
    /// The time up to which `times` counts.
    pub(crate) since: Nanos,
    pub(crate) times: CoreTimes,
    /// Work that is less than a nanosecond, in picoseconds.
    pub(crate) picos: u64,
    /// Counts changes of the thread, which make a scheduled end of its slice void.
    pub(crate) slice_generation: u32,
    /// Whether the end of the present thread's slice is scheduled.
    pub(crate) has_slice_end: bool,
    /// When the present thread got the core.
    pub(crate) thread_since: Nanos,
    /// The least time of fair threads so far; a thread that wakes up does not get behind it by more
    /// than half of the period.
    pub(crate) floor_time: Nanos,
}

impl ModeledCore {
    /// Returns the context that runs.
    pub(crate) fn current(&self) -> Option<TaskId> {
        Level::DESCENDING.into_iter().find_map(|level| self.contexts[level as usize])
    }
}
