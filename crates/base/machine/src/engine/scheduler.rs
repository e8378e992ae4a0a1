//! The scheduler: which task has a core. The rules are those of the crate's first page.

use time::Nanos;

use super::core::Level;
use super::event_queue::{EngineEvent, EventOrder};
use super::task::{TaskClass, TaskId, TaskState};
use super::world::World;
use crate::core_times::CoreState;

/// Constants of Linux's CFS for one core (`kernel/sched/fair.c`, Linux 3.10): the period in which
/// every thread runs once, the least slice, and the lead at which a wake-up interrupts. For `n`
/// cores they are larger by the factor 1 + log2(n), at most 4.
const PERIOD: Nanos = Nanos::from_millis(6);
const SLICE_MIN: Nanos = Nanos::from_micros(750);
const WAKEUP_LEAD: Nanos = Nanos::from_millis(1);
const CORES_FACTOR_MAX: u64 = 4;

impl World {
    /// Returns the factor of the constants.
    fn cores_factor(&self) -> u64 {
        (1 + u64::from(self.cores.len().ilog2())).min(CORES_FACTOR_MAX)
    }

    /// Wakes a task: from a core, or from a device without `from`.
    pub(crate) fn wake(&mut self, id: TaskId, from: Option<usize>) {
        let task = self.task(id);
        if task.state != TaskState::Parked {
            task.is_notified = task.state != TaskState::Ended;
            return;
        }
        let (is_handler, target) = (task.class().is_handler(), self.choose_core(id));
        let delay = self.config.costs.remote_wake;
        let is_remote = from.is_some_and(|from| from != target) && !is_handler;
        if is_remote && self.cores[target].current().is_none() {
            self.counts.remote_wakes += 1;
            if delay > Nanos::ZERO {
                self.task(id).state =
                    TaskState::Ready { remaining: Nanos::ZERO, as_state: CoreState::Idle };
                self.task(id).core = target;
                let at = self.now + delay;
                return self.events.push(at, EventOrder::Normal, EngineEvent::Wake { task: id });
            }
        }
        self.make_ready(id, target);
    }

    /// Returns the core on which a task that is woken will run.
    fn choose_core(&mut self, id: TaskId) -> usize {
        let task = &self.tasks[id.index()];
        if let Some(core) = task.spec.core {
            return core;
        }
        let last = task.core;
        if task.stays {
            return last;
        }
        let is_idle = |core: &usize| {
            let core = &self.cores[*core];
            core.current().is_none() && core.ready.is_empty(Level::Thread)
        };
        if is_idle(&last) {
            return last;
        }
        let machine = self.config.machine;
        let socket = machine.socket(self.physical(last));
        let of_socket =
            (0..self.cores.len()).filter(|core| machine.socket(core % machine.cores()) == socket);
        of_socket.into_iter().find(is_idle).unwrap_or(last)
    }

    /// Makes a task ready on a core.
    pub(crate) fn make_ready(&mut self, id: TaskId, core: usize) {
        let floor = self.update_floor(core);
        let earliest = floor - Nanos(PERIOD.0 * self.cores_factor() / 2);
        let task = &mut self.tasks[id.index()];
        task.core = core;
        task.virtual_time = task.virtual_time.max(earliest);
        task.state = TaskState::Ready { remaining: Nanos::ZERO, as_state: CoreState::Idle };
        let class = task.class();
        if class == TaskClass::HardInterrupt {
            self.counts.interrupts += 1;
        }
        self.cores[core].ready.push(id, &self.tasks[id.index()], false);
        match self.cores[core].current() {
            None => self.dispatch(core),
            Some(current) => {
                let level = Level::of(class);
                // A thread competes with the thread that handlers may have interrupted.
                let rival = match level {
                    Level::Thread => self.cores[core].contexts[Level::Thread as usize],
                    Level::Soft | Level::Hard => Some(current),
                };
                match rival.is_some_and(|rival| self.is_more_urgent(id, rival)) {
                    true => self.preempt(core, level),
                    false => self.schedule_slice_end(core),
                }
            }
        }
    }

    /// Brings the least time of a core's fair threads up to now, and returns it.
    fn update_floor(&mut self, core: usize) -> Nanos {
        let it = &self.cores[core];
        let [thread, soft, hard] = it.contexts;
        let ran = match (it.state, soft, hard) {
            (CoreState::Idle, ..) | (_, Some(_), _) | (_, _, Some(_)) => Nanos::ZERO,
            _ => self.now.since(it.since),
        };
        let running = thread
            .map(|id| &self.tasks[id.index()])
            .filter(|task| task.class() == TaskClass::Fair)
            .map(|task| task.virtual_time + ran);
        let least = running.into_iter().chain(it.ready.least_fair_time()).min();
        let it = &mut self.cores[core];
        it.floor_time = it.floor_time.max(least.unwrap_or(Nanos::ZERO));
        it.floor_time
    }

    /// Returns whether a task that becomes ready interrupts the one that runs.
    fn is_more_urgent(&self, id: TaskId, current: TaskId) -> bool {
        let [new, old] = [id, current].map(|id| &self.tasks[id.index()]);
        let [new_level, old_level] = [new, old].map(|task| Level::of(task.class()));
        if new_level != old_level {
            return new_level > old_level;
        }
        match (new.class(), old.class()) {
            (TaskClass::Fifo { priority }, TaskClass::Fifo { priority: running }) => {
                priority > running
            }
            (TaskClass::Fifo { .. }, TaskClass::Fair) => true,
            (TaskClass::Fair, TaskClass::Fair) => {
                let ran = self.now.since(self.cores[old.core].since);
                let lead = Nanos(WAKEUP_LEAD.0 * self.cores_factor());
                old.virtual_time + ran > new.virtual_time + lead
            }
            _ => false,
        }
    }

    /// Has the core choose again for a task of `level`, now or when it may.
    fn preempt(&mut self, core: usize, level: Level) {
        if level == Level::Thread {
            self.cores[core].must_reschedule = true;
        }
        // The code that runs is asked at its next call.
        let current = self.cores[core].current();
        if self.must_choose(core) && current != self.running {
            self.interrupt_current(core);
            self.dispatch(core);
        }
    }

    /// Returns whether something more urgent than the context that runs waits for a core, and the
    /// core may change to it.
    fn must_choose(&self, core: usize) -> bool {
        let it = &self.cores[core];
        let [thread, soft, hard] = it.contexts.map(|context| context.is_some());
        if it.locks > 0 || hard {
            return false;
        }
        !it.ready.is_empty(Level::Hard)
            || !soft && !it.ready.is_empty(Level::Soft)
            || !soft && thread && it.must_reschedule
    }

    /// Stops the context that runs; it continues later with the rest of its work.
    fn interrupt_current(&mut self, core: usize) {
        self.enter_state(core, CoreState::Idle);
        let Some(id) = self.cores[core].current() else { return };
        let now = self.now;
        let work_state = self.tasks[id.index()].work_state();
        let task = self.task(id);
        task.generation += 1;
        task.state = match task.state {
            TaskState::Working { until, as_state } => {
                TaskState::Ready { remaining: until.since(now), as_state }
            }
            TaskState::Switching { remaining, as_state } => {
                TaskState::Ready { remaining, as_state }
            }
            ready @ TaskState::Ready { .. } => ready,
            _ => TaskState::Ready { remaining: Nanos::ZERO, as_state: work_state },
        };
        self.spinners.tasks.retain(|spinner| *spinner != id);
    }

    /// Gives the core to the most urgent task. The context that ran is stopped, or has left.
    pub(crate) fn dispatch(&mut self, core: usize) {
        for level in Level::DESCENDING {
            let at = level as usize;
            let reschedule = level == Level::Thread
                && std::mem::take(&mut self.cores[core].must_reschedule)
                && !self.cores[core].ready.is_empty(level);
            if let Some(id) = self.cores[core].contexts[at] {
                if !reschedule {
                    return self.continue_task(core, id);
                }
                // The thread competes again.
                self.cores[core].contexts[at] = None;
                self.cores[core].ready.push(id, &self.tasks[id.index()], true);
            }
            if let Some(id) = self.cores[core].ready.pop(level) {
                self.cores[core].contexts[at] = Some(id);
                return self.start_task(core, id, level);
            }
        }
        self.enter_state(core, CoreState::Idle);
    }

    /// Continues an interrupted context.
    fn continue_task(&mut self, core: usize, id: TaskId) {
        let TaskState::Ready { remaining, as_state } = self.task(id).state else { return };
        self.begin_work(core, id, remaining, as_state);
    }

    fn begin_work(&mut self, core: usize, id: TaskId, remaining: Nanos, as_state: CoreState) {
        let until = self.now + remaining;
        self.enter_state(core, as_state);
        self.task(id).state = TaskState::Working { until, as_state };
        self.resume_at(id, until, EventOrder::Normal);
    }

    /// Gives the core to a task of its queue.
    fn start_task(&mut self, core: usize, id: TaskId, level: Level) {
        let costs = self.config.costs;
        let now = self.now;
        let TaskState::Ready { remaining, as_state } = self.task(id).state else { return };
        let as_state = match as_state {
            CoreState::Idle => self.tasks[id.index()].work_state(),
            state => state,
        };
        let (cost, state) = match level {
            Level::Hard => (costs.interrupt_entry, CoreState::Interrupt),
            Level::Soft => (Nanos::ZERO, CoreState::SoftInterrupt),
            Level::Thread if self.cores[core].last_thread == Some(id) => {
                (Nanos::ZERO, CoreState::Switch)
            }
            Level::Thread => {
                self.counts.switches += 1;
                (costs.switch, CoreState::Switch)
            }
        };
        self.task(id).runs.began = now;
        if level == Level::Thread {
            let virtual_time = self.task(id).virtual_time;
            let it = &mut self.cores[core];
            it.last_thread = Some(id);
            it.thread_since = now;
            it.slice_generation += 1;
            it.has_slice_end = false;
            it.floor_time = it.floor_time.max(virtual_time);
            self.schedule_slice_end(core);
        }
        if cost == Nanos::ZERO {
            return self.begin_work(core, id, remaining, as_state);
        }
        self.enter_state(core, state);
        self.task(id).state = TaskState::Switching { remaining, as_state };
        self.resume_at(id, now + cost, EventOrder::Normal);
    }

    /// Continues a task to which the core has switched. Returns whether its code runs now.
    pub(crate) fn end_segment(&mut self, id: TaskId) -> bool {
        let core = self.task(id).core;
        if let TaskState::Switching { remaining, as_state } = self.task(id).state
            && remaining > Nanos::ZERO
        {
            self.begin_work(core, id, remaining, as_state);
            return false;
        }
        let state = self.cores[core].state;
        self.enter_state(core, state);
        self.spinners.tasks.retain(|spinner| *spinner != id);
        self.task(id).state = TaskState::Running;
        true
    }

    /// Schedules the end of the slice of a core's fair thread, if another one waits.
    fn schedule_slice_end(&mut self, core: usize) {
        let factor = self.cores_factor();
        let it = &self.cores[core];
        let Some(thread) = it.contexts[Level::Thread as usize] else { return };
        let waiting = it.ready.fair_count() as u64;
        if it.has_slice_end || waiting == 0 || self.tasks[thread.index()].class() != TaskClass::Fair
        {
            return;
        }
        let slice = Nanos((PERIOD.0 * factor / (waiting + 1)).max(SLICE_MIN.0 * factor));
        let at = (it.thread_since + slice).max(self.now);
        let generation = it.slice_generation;
        self.cores[core].has_slice_end = true;
        self.events.push(at, EventOrder::Normal, EngineEvent::Slice { core, generation });
    }

    /// Ends the slice of a core's thread.
    pub(crate) fn end_slice(&mut self, core: usize, generation: u32) {
        let it = &mut self.cores[core];
        if it.slice_generation != generation {
            return;
        }
        it.has_slice_end = false;
        if it.ready.is_empty(Level::Thread) {
            return;
        }
        self.preempt(core, Level::Thread);
    }

    /// The running task leaves its core with a new state; the core goes on.
    pub(crate) fn leave_core(&mut self, id: TaskId, state: TaskState) {
        let now = self.now;
        let task = self.task(id);
        let (core, level) = (task.core, Level::of(task.class()));
        task.runs.end(now);
        task.state = state;
        task.rounds = 0;
        task.is_demoted = false;
        self.enter_state(core, CoreState::Idle);
        self.cores[core].contexts[level as usize] = None;
        if level == Level::Thread && state == TaskState::Ended {
            self.cores[core].last_thread = None;
        }
        self.dispatch(core);
    }

    /// The running task gives its core to a more urgent one, if it must. It continues later with
    /// `remaining` work.
    pub(crate) fn yield_core(&mut self, id: TaskId, remaining: Nanos, as_state: CoreState) -> bool {
        let core = self.task(id).core;
        if !self.must_choose(core) {
            return false;
        }
        self.task(id).state = TaskState::Ready { remaining, as_state };
        self.enter_state(core, CoreState::Idle);
        self.dispatch(core);
        true
    }

    /// A soft interrupt that has had its share continues as a thread.
    pub(crate) fn demote(&mut self, id: TaskId, remaining: Nanos) {
        let core = self.task(id).core;
        self.enter_state(core, CoreState::Idle);
        self.cores[core].contexts[Level::Soft as usize] = None;
        let floor = self.update_floor(core);
        let task = self.task(id);
        task.is_demoted = true;
        task.virtual_time = task.virtual_time.max(floor);
        task.state = TaskState::Ready { remaining, as_state: task.work_state() };
        self.cores[core].ready.push(id, &self.tasks[id.index()], false);
        self.cores[core].must_reschedule = true;
        self.dispatch(core);
    }
}
