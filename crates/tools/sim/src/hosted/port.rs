//! [`HostedPath`]: a path whose queues belong to threads of a machine, as the rest of the run sees
//! it.
//!
//! A thread owns its queue while it runs. It publishes what others want to know in its
//! [`ThreadPort`], and takes changes of settings from there, each at the end of a poll: a change of
//! a layer in the host takes place when the thread next runs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use block::sched::{GroupChange, SchedError};
use block::trace::TraceEvent;
use block::{BlockDevice, Group, Staging};
use ftl::{ControlChange, ControlError, FtlStats};
use machine::TaskId;
use stack::{CoreQueues, JobTarget, StackBlockLayer, target_layers};
use time::Nanos;
use workload::{RunError, RunResult};

/// The device of a thread and the results of its jobs.
pub(super) type ThreadResult = (JobTarget, Result<RunResult, RunError>);

/// Progress of a thread that has ended.
pub(super) const PROGRESS_MAX: u32 = 1000;

/// A change of a layer in the host.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HostChange {
    /// A setting of the FTL of one of the queue's targets, or of all.
    Ftl { only: Option<usize>, change: ControlChange },
    /// The weight or a rate of a group of the block layer.
    Group { group: Group, change: GroupChange },
}

impl HostChange {
    fn apply(self, device: &mut CoreQueues, now: Nanos) -> Result<(), HostChangeError> {
        match self {
            HostChange::Ftl { only, change } => {
                target_layers::apply_change(device, only, &change).map_err(HostChangeError::from)
            }
            HostChange::Group { group, change } => {
                target_layers::change_group(device, now, group, change)
                    .map_err(HostChangeError::from)
            }
        }
    }
}

/// A layer in the host refuses a change.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum HostChangeError {
    /// An FTL.
    #[error(transparent)]
    Ftl(#[from] ControlError),
    /// The block layer.
    #[error(transparent)]
    Group(#[from] SchedError),
}

/// State through which a thread and the rest of the run communicate.
#[derive(Debug)]
pub(super) struct ThreadPort {
    /// Progress of its jobs in thousandths.
    pub(super) progress: AtomicU32,
    task: OnceLock<TaskId>,
    /// Start of the call of the queue whose events are not published yet; [`Nanos::MAX`] without.
    busy_since: AtomicU64,
    /// Whether the queue records events.
    traces: bool,
    has_changes: AtomicBool,
    shared: Mutex<PortState>,
    /// The queue and the results, from the end of the thread on.
    ended: Mutex<Option<ThreadResult>>,
}

#[derive(Debug, Default)]
struct PortState {
    /// Changes that the thread has not applied, with their lines in the scenario.
    changes: VecDeque<(usize, HostChange)>,
    /// The first change that was refused.
    refused: Option<(usize, HostChangeError)>,
    /// Counters and free lines of the targets of the queue.
    ftl: Option<(FtlStats, f64)>,
    /// Events of the block layer, in order.
    events: Vec<TraceEvent>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThreadPort {
    fn new(traces: bool) -> ThreadPort {
        ThreadPort {
            progress: AtomicU32::new(0),
            task: OnceLock::new(),
            busy_since: AtomicU64::new(Nanos::MAX.0),
            traces,
            has_changes: AtomicBool::new(false),
            shared: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    /// Sets the thread.
    pub(super) fn set_task(&self, task: TaskId) {
        // It is set once.
        let _ = self.task.set(task);
    }

    /// Ends the thread.
    pub(super) fn end(&self, result: ThreadResult) {
        self.progress.store(PROGRESS_MAX, Ordering::Relaxed);
        *lock(&self.ended) = Some(result);
    }

    /// Tells the start of a call of the queue.
    #[inline]
    pub(super) fn begin_call(&self, now: Nanos) {
        if self.traces {
            self.busy_since.fetch_min(now.0, Ordering::Relaxed);
        }
    }

    /// Publishes the events of the calls of the queue, which have returned.
    #[inline]
    pub(super) fn end_calls(&self, queue: &mut CoreQueues) {
        if !self.traces {
            return;
        }
        let mut shared = lock(&self.shared);
        for tracer in queue.block_layer_queues().filter_map(|queue| queue.tracer()) {
            shared.events.extend_from_slice(tracer.events());
            tracer.clear();
        }
        self.busy_since.store(Nanos::MAX.0, Ordering::Relaxed);
    }

    /// Publishes the counters of the queue's targets.
    pub(super) fn publish_ftl(&self, stats: FtlStats, free_lines: f64) {
        lock(&self.shared).ftl = Some((stats, free_lines));
    }

    /// Applies the changes that have come. Returns whether there were any.
    #[inline]
    pub(super) fn apply_changes(&self, queue: &mut CoreQueues, now: Nanos) -> bool {
        if !self.has_changes.load(Ordering::Relaxed) {
            return false;
        }
        self.has_changes.store(false, Ordering::Relaxed);
        while let Some((line, change)) = { lock(&self.shared).changes.pop_front() } {
            if let Err(error) = change.apply(queue, now) {
                lock(&self.shared).refused.get_or_insert((line, error));
            }
        }
        true
    }

    /// Has the thread apply a change; one that has ended has it applied here.
    fn change(&self, now: Nanos, line: usize, change: HostChange) -> Result<(), HostChangeError> {
        if let Some((JobTarget::Blocks(queue), _)) = &mut *lock(&self.ended) {
            return change.apply(queue, now);
        }
        lock(&self.shared).changes.push_back((line, change));
        self.has_changes.store(true, Ordering::Relaxed);
        self.wake();
        Ok(())
    }

    /// Wakes the thread.
    pub(super) fn wake(&self) {
        self.task.get().copied().into_iter().for_each(machine::unpark);
    }
}

/// A queue of a path, and what is known of it.
#[derive(Debug)]
struct HostedPort {
    port: Arc<ThreadPort>,
    /// Number of the targets that it shows.
    targets: usize,
    /// Whether it shows a staging queue of a block layer.
    has_staging: bool,
}

/// A path while its queues belong to threads.
#[derive(Debug, Default)]
pub(crate) struct HostedPath {
    layer: Option<StackBlockLayer>,
    ports: Vec<HostedPort>,
}

impl HostedPath {
    pub(super) fn new(layer: Option<StackBlockLayer>) -> HostedPath {
        HostedPath { layer, ports: Vec::new() }
    }

    /// Adds a queue. Returns its port.
    pub(super) fn add(&mut self, queue: &mut CoreQueues) -> Arc<ThreadPort> {
        let traces = queue.block_layer_queues().any(|queue| queue.tracer().is_some());
        let port = Arc::new(ThreadPort::new(traces));
        let mut has_staging = false;
        queue.visit_layers(&mut |layer| has_staging |= layer.is::<Staging>());
        let targets = target_layers::target_count(queue);
        self.ports.push(HostedPort { port: port.clone(), targets, has_staging });
        port
    }

    /// Adds a device without a block layer. Returns the port.
    pub(super) fn add_direct(&mut self) -> Arc<ThreadPort> {
        let port = Arc::new(ThreadPort::new(false));
        self.ports.push(HostedPort { port: port.clone(), targets: 0, has_staging: false });
        port
    }

    /// Returns the counters of the block layer, and what each thread ended with.
    pub(super) fn into_results(self) -> (Option<StackBlockLayer>, Vec<Option<ThreadResult>>) {
        let results = self.ports.iter().map(|HostedPort { port, .. }| lock(&port.ended).take());
        (self.layer, results.collect())
    }

    /// Returns the progress of the thread that is behind the others, in thousandths.
    pub(super) fn progress(&self) -> u32 {
        let parts = self.ports.iter().map(|it| it.port.progress.load(Ordering::Relaxed));
        parts.min().unwrap_or(PROGRESS_MAX)
    }

    /// Returns counters and free lines of the FTL in the host, as of the last polls that did
    /// something; `None` without one.
    pub(crate) fn ftl_snapshot(&self) -> Option<(FtlStats, f64)> {
        let each = self.ports.iter().filter_map(|it| lock(&it.port.shared).ftl);
        each.reduce(|(sum, lines), (stats, free)| (sum.plus(&stats), lines + free))
    }

    /// Changes a setting of the FTLs in the host, as
    /// [`apply_change`](target_layers::apply_change) does; `line` is that of the change.
    ///
    /// # Errors
    /// [`HostChangeError`], if the thread has ended; see [`refused`](HostedPath::refused).
    pub(crate) fn change_ftl(
        &self,
        now: Nanos,
        only: Option<usize>,
        change: ControlChange,
        line: usize,
    ) -> Result<(), HostChangeError> {
        let (mut first, mut is_found) = (0, false);
        for HostedPort { port, targets, .. } in &self.ports {
            let own = first..first + targets;
            first = own.end;
            let of_queue = match only {
                None if own.is_empty() => continue,
                None => None,
                Some(only) if own.contains(&only) => Some(only - own.start),
                Some(_) => continue,
            };
            is_found = true;
            port.change(now, line, HostChange::Ftl { only: of_queue, change })?;
        }
        if is_found { Ok(()) } else { Err(ControlError::NoFtl.into()) }
    }

    /// Changes a group in all staging queues, as [`change_group`](target_layers::change_group)
    /// does; `line` is that of the change.
    ///
    /// # Errors
    /// As [`change_ftl`](HostedPath::change_ftl).
    pub(crate) fn change_group(
        &self,
        now: Nanos,
        group: Group,
        change: GroupChange,
        line: usize,
    ) -> Result<(), HostChangeError> {
        let mut with_staging = self.ports.iter().filter(|it| it.has_staging).peekable();
        if with_staging.peek().is_none() {
            return Err(change.unsupported(group).into());
        }
        for HostedPort { port, .. } in with_staging {
            port.change(now, line, HostChange::Group { group, change })?;
        }
        Ok(())
    }

    /// Returns the line of the first change that a thread could not apply, and the reason.
    pub(crate) fn refused(&self) -> Option<(usize, HostChangeError)> {
        self.ports.iter().find_map(|it| lock(&it.port.shared).refused.clone())
    }

    /// Removes and returns the events of each queue that no later event can precede; those of a
    /// machine that has stopped are all.
    pub(crate) fn take_events(&self, has_stopped: bool) -> Vec<Vec<TraceEvent>> {
        let busy = self.ports.iter().map(|it| it.port.busy_since.load(Ordering::Relaxed));
        let horizon = if has_stopped { Nanos::MAX } else { busy.min().map_or(Nanos::MAX, Nanos) };
        let take = |HostedPort { port, .. }: &HostedPort| {
            let events = &mut lock(&port.shared).events;
            let count = events.partition_point(|event| event.at < horizon);
            events.drain(..count).collect()
        };
        self.ports.iter().map(take).collect()
    }
}
