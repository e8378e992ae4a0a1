//! The calls of the code of a task. Outside of a task they have no effect.

use platform::{Layer, Step};
use time::Nanos;

use super::EngineError;
use super::event_queue::EventOrder;
use super::task::{TaskClass, TaskId, TaskState};
use super::world::{self, World, whole_rounds};
use crate::back_end;
use crate::core_times::CoreState;
use crate::memory::LockId;

/// Number of rounds after which a soft interrupt continues as a thread (Linux's
/// `MAX_SOFTIRQ_RESTART`), and time after which it does (`MAX_SOFTIRQ_TIME`).
const SOFT_ROUNDS_MAX: u32 = 10;
const SOFT_TIME_MAX: Nanos = Nanos::from_millis(2);

/// Number of calls at one instant after which a task is stuck.
const CALLS_AT_NOW_MAX: u32 = 1 << 24;

/// Calls `use_it` with the state of the engine and the running task, and suspends the task if it
/// returns so.
#[inline]
fn in_task(use_it: impl FnOnce(&mut World, TaskId) -> bool) {
    let must_suspend = world::with(|world| match world.running {
        Some(task) => use_it(world, task),
        None => false,
    });
    if must_suspend == Some(true) {
        back_end::suspend();
    }
}

/// Returns the present time.
pub fn now() -> Nanos {
    world::with(|world| world.now).unwrap_or(Nanos::ZERO)
}

/// Returns the calling task.
pub fn current() -> Option<TaskId> {
    world::with(|world| world.running).flatten()
}

/// Sets whether the calling task, when it is woken, continues on the hardware thread on which it
/// went to sleep.
pub(crate) fn stay(on: bool) {
    in_task(|world, id| {
        world.task(id).stays = on;
        false
    });
}

/// Returns the hardware thread on which the calling task runs.
pub fn this_core() -> Option<usize> {
    world::with(|world| Some(world.tasks[world.running?.index()].core)).flatten()
}

/// Executes a step `count` times.
pub fn work(step: Step, count: u32) {
    in_task(|world, id| {
        let core = world.task(id).core;
        world.task(id).layer = step.layer();
        // The commands are in the queue, and the device may take them from now on.
        world.devices.has_doorbell |= step == Step::Issue && count > 0;
        let picos = world.config.costs.steps.picos(step) * u64::from(count);
        let it = &mut world.cores[core];
        let picos = it.picos + picos;
        it.picos = picos % 1000;
        let time = Nanos(picos / 1000);
        match step {
            // The other hardware thread of the core does not slow a wait for a device.
            Step::ReadRegister => world.charge(id, time),
            _ => world.charge_work(id, time),
        }
    });
}

/// Computes for `time` in a layer.
pub fn compute(layer: Layer, time: Nanos) {
    in_task(|world, id| {
        world.task(id).layer = layer;
        world.charge_work(id, time)
    });
}

/// Accesses memory that other cores may have written.
pub(crate) fn touch(address: usize, bytes: usize, write: bool) {
    in_task(|world, id| {
        let (core, now) = (world.task(id).core, world.now);
        let end = world.memory.touch(core, address, bytes, write, now.0);
        world.charge_transfer(id, Nanos(end))
    });
}

/// Acquires a lock, with interrupts off.
pub(crate) fn acquire(lock: LockId) {
    // An interrupt that is due comes before the lock.
    in_task(|world, id| world.charge(id, Nanos::ZERO));
    in_task(|world, id| {
        let (core, now) = (world.task(id).core, world.now);
        world.cores[core].locks += 1;
        let (lock, lines) = world.memory.lock(lock);
        let end = lock.draw(lines, core, now.0);
        world.charge_transfer(id, Nanos(end))
    });
    in_task(|world, id| {
        let (core, now) = (world.task(id).core, world.now);
        let (lock, lines) = world.memory.lock(lock);
        match lock.enter(lines, core, now.0) {
            Some(end) => world.charge_transfer(id, Nanos(end)),
            None => {
                world.enter_state(core, CoreState::LockWait);
                world.task(id).state = TaskState::WaitingForLock;
                true
            }
        }
    });
}

/// Acquires a lock unless another core holds it or waits for it; returns whether it did.
pub(crate) fn try_acquire(lock: LockId) -> bool {
    let mut is_taken = false;
    in_task(|world, id| {
        let (core, now) = (world.task(id).core, world.now);
        let (lock, lines) = world.memory.lock(lock);
        is_taken = lock.is_taken();
        if !is_taken {
            return false;
        }
        let end = lock.probe(lines, core, now.0);
        world.charge_transfer(id, Nanos(end))
    });
    if !is_taken {
        acquire(lock);
    }
    !is_taken
}

/// Releases a lock.
pub(crate) fn release(lock: LockId) {
    in_task(|world, id| {
        let (core, now) = (world.task(id).core, world.now);
        let (lock, lines) = world.memory.lock(lock);
        let (end, next) = lock.leave(lines, core, now.0);
        if let Some((waiter, at)) = next
            && let Some(waiter) = world.cores[waiter].current()
        {
            let at = Nanos(at);
            world.task(waiter).state =
                TaskState::Working { until: at, as_state: CoreState::LockWait };
            world.resume_at(waiter, at, EventOrder::Normal);
        }
        world.charge_transfer(id, Nanos(end))
    });
    in_task(|world, id| {
        let core = world.task(id).core;
        world.cores[core].locks = world.cores[core].locks.saturating_sub(1);
        world.charge_work(id, Nanos::ZERO)
    });
}

/// Has every device polled before time advances: the task has written to a doorbell.
pub fn doorbell() {
    world::with(|world| world.devices.has_doorbell = true);
}

/// A point in the sequence of what devices and tasks did, before a task looked at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinStart(u64);

/// Begins a look, which [`spin_until`] ends if it finds nothing.
pub fn begin_spin() -> SpinStart {
    SpinStart(world::with(|world| world.spinners.notifications).unwrap_or(0))
}

/// Looks for something by a step, and finds nothing since `start`. The task continues at the end of a
/// look: the first after a device or another task did something, or that is not before `until`.
pub fn spin_until(start: SpinStart, step: Step, until: Nanos) {
    in_task(|world, id| {
        let (core, now) = (world.task(id).core, world.now);
        let round = Nanos(world.config.costs.steps.picos(step) / 1000);
        world.task(id).layer = step.layer();
        if world.check_limits(id, Nanos::ZERO) || world.yield_core(id, Nanos::ZERO, CoreState::Spin)
        {
            return true;
        }
        let is_short = world.config.exact_spins || world.spinners.notifications != start.0;
        let until = match is_short {
            true => now + round.max(Nanos(1)),
            false => whole_rounds(now, round, until),
        };
        let state = match world.task(id).class() {
            TaskClass::Fifo { .. } | TaskClass::Fair => CoreState::Spin,
            TaskClass::HardInterrupt | TaskClass::SoftInterrupt => world.task(id).work_state(),
        };
        world.enter_state(core, state);
        world.task(id).state = TaskState::Spinning { since: now, round, until };
        world.spinners.tasks.push(id);
        match is_short {
            true => world.resume_at(id, until, EventOrder::Spin),
            false => world.set_deadline(id, until, EventOrder::Spin),
        }
        true
    });
}

/// Waits until the task is [woken](unpark). Returns at once if that happened since the last wait.
pub fn park() {
    let is_interrupt = world::with(|world| {
        let class = world.running.map(|id| world.task(id).class());
        class == Some(TaskClass::HardInterrupt)
    });
    let exit = |world: &mut World| world.config.costs.interrupt_exit;
    if is_interrupt == Some(true) {
        in_task(|world, id| {
            let exit = exit(world);
            world.charge_work(id, exit)
        });
    }
    in_task(|world, id| {
        if std::mem::take(&mut world.task(id).is_notified) {
            world.task(id).rounds += 1;
            return match world.task(id).class() {
                // It came while the handler left.
                TaskClass::HardInterrupt => {
                    world.counts.interrupts += 1;
                    let entry = world.config.costs.interrupt_entry;
                    world.charge_work(id, entry)
                }
                _ => world.check_limits(id, Nanos::ZERO),
            };
        }
        world.task(id).parked_until = Nanos::MAX;
        world.leave_core(id, TaskState::Parked);
        true
    });
}

/// Waits until a time, or until the task is [woken](unpark).
pub fn sleep_until(at: Nanos) {
    in_task(|world, id| {
        if std::mem::take(&mut world.task(id).is_notified) || at <= world.now {
            return false;
        }
        world.task(id).parked_until = at;
        world.leave_core(id, TaskState::Parked);
        world.set_deadline(id, at, EventOrder::Normal);
        true
    });
}

/// Waits as [`sleep_until`] does, on a timer: if the time comes, its interrupt takes the core's time
/// before the task continues.
pub fn sleep_until_timer(at: Nanos) {
    if at <= now() {
        return;
    }
    sleep_until(at);
    in_task(|world, id| {
        if world.now < at {
            // Woken before.
            return false;
        }
        world.counts.interrupts += 1;
        let costs = &world.config.costs;
        let time = costs.interrupt_entry + costs.interrupt_exit;
        world.charge_as(id, time, CoreState::Interrupt)
    });
}

/// Wakes a task; without an effect on one that has ended.
pub fn unpark(task: TaskId) {
    world::with(|world| {
        let from = world.running.map(|id| world.task(id).core);
        world.wake(task, from);
        world.on_notification();
    });
}

/// Raises the interrupt of a handler: of a device, from its [`poll`](super::Device::poll), which
/// must not wait for the handler's effects.
pub fn raise(handler: TaskId) {
    world::with(|world| world.devices.raised.push(handler));
}

/// Has tasks that look find what the calling task did, at the end of their next look.
pub fn notify() {
    world::with(World::on_notification);
}

/// Has tasks that ask [`is_stopping`] end.
pub fn stop() {
    world::with(|world| {
        world.is_stopping = true;
        world.on_notification();
    });
}

/// Returns whether the tasks are to end.
pub fn is_stopping() -> bool {
    world::with(|world| world.is_stopping).unwrap_or(true)
}

/// Starts the measurement: the times of the hardware threads, counters and traffic begin anew.
pub fn begin_measurement() {
    in_task(|world, _| {
        world.begin_measurement();
        false
    });
}

impl World {
    /// Charges work to the running task. Returns whether the task must be suspended.
    #[inline]
    fn charge_work(&mut self, id: TaskId, time: Nanos) -> bool {
        let core = self.task(id).core;
        let time = match self.sibling_works(core) {
            true => Nanos(time.0 * u64::from(self.config.costs.smt_percent) / 100),
            false => time,
        };
        self.charge(id, time)
    }

    /// Charges a transfer that ends at `end`.
    #[inline]
    fn charge_transfer(&mut self, id: TaskId, end: Nanos) -> bool {
        let time = end.since(self.now);
        self.charge(id, time)
    }

    fn sibling_works(&self, core: usize) -> bool {
        let cores = self.config.machine.cores();
        if self.cores.len() == cores {
            return false;
        }
        let sibling = if core < cores { core + cores } else { core - cores };
        !matches!(self.cores[sibling].state, CoreState::Idle)
    }

    #[inline]
    fn charge(&mut self, id: TaskId, time: Nanos) -> bool {
        let as_state = self.task(id).work_state();
        self.charge_as(id, time, as_state)
    }

    /// Charges time that the core spends in a state. Returns whether the task must be suspended.
    #[inline]
    fn charge_as(&mut self, id: TaskId, time: Nanos, as_state: CoreState) -> bool {
        if self.check_limits(id, time) || self.yield_core(id, time, as_state) {
            return true;
        }
        if time == Nanos::ZERO {
            return false;
        }
        let (core, until) = (self.task(id).core, self.now + time);
        self.enter_state(core, as_state);
        let next =
            self.events.next_time().min(self.devices.deadline).min(self.watched.instants.next());
        if until < next && !self.devices.has_doorbell {
            self.advance_to(until);
            self.enter_state(core, as_state);
            return false;
        }
        self.task(id).state = TaskState::Working { until, as_state };
        self.resume_at(id, until, EventOrder::Normal);
        true
    }

    /// Returns whether the task has lost its core or failed: a soft interrupt that has had its
    /// share, a handler that does not end, a task without progress.
    fn check_limits(&mut self, id: TaskId, remaining: Nanos) -> bool {
        let now = self.now;
        self.calls_at_now += 1;
        let (stuck, limit) = (self.calls_at_now > CALLS_AT_NOW_MAX, self.config.handler_limit);
        let task = &self.tasks[id.index()];
        let ran = now.since(task.runs.began);
        if stuck || task.class().is_handler() && ran > limit {
            let task = task.spec.name.clone();
            self.fail(EngineError::Stuck { task, at: now, ran });
            return true;
        }
        let is_over = task.rounds >= SOFT_ROUNDS_MAX || ran >= SOFT_TIME_MAX;
        if task.class() == TaskClass::SoftInterrupt && is_over && self.cores[task.core].locks == 0 {
            self.demote(id, remaining);
            return true;
        }
        false
    }
}
