//! [`EngineWatcher`]: what watches a machine, and changes it, from outside of its tasks.

use time::Nanos;

use super::task::TaskId;
use crate::core_times::CoreState;

/// A stretch of time in which a hardware thread was in one state for one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreSegment {
    /// Index of the hardware thread.
    pub core: usize,
    /// The task that had the hardware thread.
    pub task: TaskId,
    /// The state; never [`CoreState::Idle`].
    pub state: CoreState,
    /// Start.
    pub from: Nanos,
    /// End, later than the start.
    pub to: Nanos,
}

/// Watches a machine while it runs. No method takes virtual time.
///
/// In [`at`](EngineWatcher::at), devices may be changed, which then [ring](crate::doorbell) and
/// [notify](crate::notify), and tasks may be [woken](crate::unpark).
pub trait EngineWatcher {
    /// Is called at intervals with the present time. If it returns `false`, the tasks are asked to
    /// [stop](crate::stop).
    fn tick(&mut self, now: Nanos) -> bool;

    /// Returns the next instant at which to [observe](EngineWatcher::at) the machine;
    /// [`Nanos::MAX`] for none. A machine on which nothing is left to happen is not observed.
    fn next_observation(&self) -> Nanos {
        Nanos::MAX
    }

    /// Returns the next instant at which to [change](EngineWatcher::at) the machine;
    /// [`Nanos::MAX`] for none.
    fn next_change(&self) -> Nanos {
        Nanos::MAX
    }

    /// Is called at these instants, when everything before `now` has happened, and nothing at it.
    /// Afterwards the instants are later than `now`.
    fn at(&mut self, _now: Nanos) {}

    /// Returns whether to call [`enter_task`](EngineWatcher::enter_task) and
    /// [`leave_task`](EngineWatcher::leave_task); it does not change during the run.
    fn follows_tasks(&self) -> bool {
        false
    }

    /// Is called before the code of a task continues.
    fn enter_task(&mut self, _task: TaskId, _now: Nanos) {}

    /// Is called when the code of a task has stopped.
    fn leave_task(&mut self, _task: TaskId) {}

    /// Takes the segments of [`EngineConfig::records_segments`](crate::EngineConfig), in order for
    /// each hardware thread. Each is given once.
    fn segments(&mut self, _segments: &[CoreSegment]) {}
}

impl<F: FnMut(Nanos) -> bool> EngineWatcher for F {
    fn tick(&mut self, now: Nanos) -> bool {
        self(now)
    }
}

/// Number of recorded segments after which they are given to the watcher.
pub(crate) const SEGMENTS_MAX: usize = 1 << 14;

/// The next instants of a watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchInstants {
    pub(crate) observation: Nanos,
    pub(crate) change: Nanos,
}

/// The watcher, as far as the engine knows it.
#[derive(Debug)]
pub(crate) struct Watched {
    /// Its next instants.
    pub(crate) instants: WatchInstants,
    /// The segments for it; `None` if they are not recorded.
    pub(crate) segments: Option<SegmentRecorder>,
}

impl WatchInstants {
    pub(crate) const NONE: WatchInstants =
        WatchInstants { observation: Nanos::MAX, change: Nanos::MAX };

    pub(crate) fn of(watcher: &dyn EngineWatcher) -> WatchInstants {
        WatchInstants { observation: watcher.next_observation(), change: watcher.next_change() }
    }

    /// Returns the earlier of both.
    #[inline]
    pub(crate) fn next(self) -> Nanos {
        self.observation.min(self.change)
    }

    /// Returns the instant that is due before or at `next`, the time of the machine's next event.
    #[inline]
    pub(crate) fn due(self, next: Nanos) -> Option<Nanos> {
        let due = if next == Nanos::MAX { self.change } else { self.next() };
        (due <= next && due < Nanos::MAX).then_some(due)
    }
}

/// The segments that have been recorded and not been given to the watcher.
#[derive(Debug)]
pub(crate) struct SegmentRecorder {
    /// The last segment of each hardware thread, which may go on.
    open: Vec<Option<CoreSegment>>,
    pub(crate) ended: Vec<CoreSegment>,
}

impl SegmentRecorder {
    pub(crate) fn new(cores: usize) -> SegmentRecorder {
        SegmentRecorder { open: vec![None; cores], ended: Vec::with_capacity(SEGMENTS_MAX) }
    }

    /// Records a segment; one that continues the last one of its hardware thread becomes a part of
    /// that.
    pub(crate) fn record(&mut self, segment: CoreSegment) {
        let open = &mut self.open[segment.core];
        if let Some(last) = open
            && (last.task, last.state, last.to) == (segment.task, segment.state, segment.from)
        {
            last.to = segment.to;
            return;
        }
        self.ended.extend(open.replace(segment));
    }

    /// Ends the open segments.
    pub(crate) fn finish(&mut self) {
        let mut open: Vec<CoreSegment> = self.open.iter_mut().filter_map(Option::take).collect();
        open.sort_by_key(|segment| segment.to);
        self.ended.append(&mut open);
    }
}

#[cfg(test)]
mod tests {
    use platform::{Layer, Lock, Step};

    use super::*;
    use crate::{
        BackEnd, CoreTimes, Costs, Engine, EngineConfig, EngineReport, LineCosts, Machine,
        ModeledLock, StepCosts, TaskClass, TaskSpec, compute, now, sleep_until, unpark, work,
    };

    #[derive(Default)]
    struct Watcher {
        every: Option<Nanos>,
        observed: Vec<Nanos>,
        change_at: Option<Nanos>,
        wakes: Option<TaskId>,
        segments: Vec<CoreSegment>,
        entered: Vec<TaskId>,
    }

    impl EngineWatcher for Watcher {
        fn tick(&mut self, _: Nanos) -> bool {
            true
        }

        fn next_observation(&self) -> Nanos {
            let last = self.observed.last().copied().unwrap_or(Nanos::ZERO);
            self.every.map_or(Nanos::MAX, |every| last + every)
        }

        fn next_change(&self) -> Nanos {
            self.change_at.unwrap_or(Nanos::MAX)
        }

        fn at(&mut self, now: Nanos) {
            if self.change_at.is_some_and(|at| at <= now) {
                self.change_at = None;
                self.wakes.into_iter().for_each(unpark);
            } else {
                self.observed.push(now);
            }
        }

        fn follows_tasks(&self) -> bool {
            true
        }

        fn enter_task(&mut self, task: TaskId, _: Nanos) {
            self.entered.push(task);
        }

        fn leave_task(&mut self, task: TaskId) {
            assert_eq!(self.entered.last(), Some(&task));
        }

        fn segments(&mut self, segments: &[CoreSegment]) {
            self.segments.extend_from_slice(segments);
        }
    }

    /// Runs five threads that compute, sleep and share a lock on two cores, and an interrupt.
    fn run(back_end: BackEnd, records_segments: bool, watcher: &mut Watcher) -> EngineReport {
        let steps = Step::ALL
            .into_iter()
            .fold(StepCosts::default(), |steps, step| steps.with(step, 100_500));
        let costs = Costs {
            lines: LineCosts::WESTMERE_EX,
            steps,
            switch: Nanos(1_000),
            interrupt_entry: Nanos(300),
            interrupt_exit: Nanos(200),
            remote_wake: Nanos(700),
            smt_percent: 100,
        };
        let machine = Machine::new(1, 2).unwrap();
        let config = EngineConfig::new(machine, costs);
        let config = EngineConfig { back_end, records_segments, ..config };
        let mut engine = Engine::new(config).unwrap();
        let lock = std::sync::Arc::new(ModeledLock::new(0));
        let spec = TaskSpec { class: TaskClass::HardInterrupt, ..TaskSpec::thread("interrupt") };
        let handler = engine
            .spawn(spec.on(0), || {
                loop {
                    compute(Layer::Driver, Nanos(400));
                    crate::park();
                }
            })
            .unwrap();
        for index in 0..5 {
            let lock = lock.clone();
            let body = move || {
                for round in 0..100 {
                    work(Step::Submit, 3);
                    {
                        let mut rounds = lock.lock();
                        compute(Layer::Block, Nanos(600));
                        *rounds += 1;
                    }
                    compute(Layer::Application, Nanos(1_700 + 90 * index));
                    if round % 7 == index {
                        unpark(handler);
                        sleep_until(now() + Nanos(2_000));
                    }
                }
            };
            engine.spawn(TaskSpec::thread(format!("thread {index}")), body).unwrap();
        }
        engine.run_with(watcher).unwrap()
    }

    /// Sums the segments of each core by state, after checking that they do not overlap.
    fn sums(segments: &[CoreSegment]) -> Vec<CoreTimes> {
        let (mut times, mut until) = (vec![CoreTimes::default(); 2], [Nanos::ZERO; 2]);
        for segment in segments {
            assert!(segment.from >= until[segment.core] && segment.to > segment.from);
            until[segment.core] = segment.to;
            times[segment.core].add(segment.state, segment.to - segment.from);
        }
        times
    }

    // guarantee: V-10
    #[test]
    fn segments_are_the_times_of_the_hardware_threads() {
        let mut watcher = Watcher::default();
        let report = run(BackEnd::Coroutines, true, &mut watcher);
        let mut sums = sums(&watcher.segments);
        for (sum, times) in sums.iter_mut().zip(&report.core_times) {
            sum.add(CoreState::Idle, times.time(CoreState::Idle));
        }
        assert_eq!(sums, report.core_times);
        let states: std::collections::BTreeSet<_> =
            watcher.segments.iter().map(|segment| segment.state).collect();
        assert!(states.contains(&CoreState::LockWait) && states.contains(&CoreState::Interrupt));
        // A handler has no segments of threads.
        let handler = watcher.segments.iter().filter(|segment| segment.task.index() == 0);
        assert!(handler.into_iter().all(|segment| segment.state == CoreState::Interrupt));
        let mut threads = Watcher::default();
        assert_eq!(run(BackEnd::Threads, true, &mut threads), report);
        assert_eq!(threads.segments, watcher.segments);
        assert_eq!(threads.entered, watcher.entered);
    }

    #[test]
    fn a_watcher_is_called_between_events_and_changes_nothing() {
        let alone = run(BackEnd::Coroutines, false, &mut Watcher::default());
        let mut watcher = Watcher { every: Some(Nanos(777)), ..Watcher::default() };
        assert_eq!(run(BackEnd::Coroutines, true, &mut watcher), alone);
        let instants: Vec<Nanos> = (1..=alone.ended.0 / 777).map(|n| Nanos(n * 777)).collect();
        assert!(instants.len() > 100);
        assert_eq!(watcher.observed, instants);
    }

    #[test]
    fn a_change_may_end_a_wait_without_another_event() {
        let config = EngineConfig::new(Machine::new(1, 1).unwrap(), Costs::ZERO);
        let mut engine = Engine::new(config).unwrap();
        let task = engine.spawn(TaskSpec::thread("waits"), crate::park).unwrap();
        let mut watcher = Watcher {
            // Observations alone do not prolong a run.
            every: Some(Nanos(10)),
            change_at: Some(Nanos(5_000)),
            wakes: Some(task),
            ..Watcher::default()
        };
        assert_eq!(engine.run_with(&mut watcher).unwrap().ended, Nanos(5_000));
        assert_eq!(watcher.observed, [Nanos(5_000)]);
    }
}
