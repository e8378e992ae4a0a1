//! [`Engine`]: simulation of cores in virtual time.
//!
//! A heap orders the cores by their clocks. The core that is furthest behind executes the next
//! operation of its log; at the end of its log, the program supplies another. Changes by the
//! layer's code take effect at the start of a core's step, and the step takes its time afterwards.
//! Steps start in nearly the order in which they take their tickets, so locks order them alike.
//! However, a completion can be found while the step that posts it still waits for its lock. A
//! latency can therefore be too short by the time of one lock holder.

// guarantee: V-07

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use time::Nanos;

use super::Machine;
use super::access_log::{self, AccessOp, CacheLineId};
use super::costs::CostModel;
use super::lines::{CoherenceDirectory, SnoopPolicy, Traffic};
use super::locks::TicketLock;

/// The program of the cores.
pub(crate) trait Program {
    /// Appends the next operations of core `core`, which has executed all its operations at `now`.
    fn step(&mut self, core: usize, now: Nanos, ops: &mut Vec<AccessOp>) -> EngineControl;
}

/// Control of the machine after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineControl {
    /// Continue.
    Continue,
    /// Start counting; discard earlier counts.
    StartCounting,
    /// Stop.
    Stop,
}

/// A core and its remaining operations.
#[derive(Debug, Default)]
struct Core {
    ops: Vec<AccessOp>,
    next: usize,
}

/// A running machine.
#[derive(Debug)]
pub(crate) struct Engine {
    cores: Vec<Core>,
    /// Cores by time, then by index.
    run_queue: BinaryHeap<Reverse<(u64, usize)>>,
    directory: CoherenceDirectory,
    locks: Vec<TicketLock>,
    /// First line that code touches; the lines before it belong to locks.
    first_line: u32,
}

impl Engine {
    /// Returns a machine whose first `active` cores run. Its locks are those created since the last
    /// [`access_log::reset`](super::access_log::reset). Core `n` starts at `n` times `stagger`.
    pub(crate) fn new(
        machine: Machine,
        costs: CostModel,
        snoops: SnoopPolicy,
        active: usize,
        stagger: Nanos,
    ) -> Engine {
        let locks = (0..access_log::lock_count() as u32)
            .map(|n| TicketLock::new(CacheLineId(2 * n), CacheLineId(2 * n + 1)))
            .collect::<Vec<_>>();
        let active = active.min(machine.cores());
        Engine {
            cores: (0..active).map(|_| Core::default()).collect(),
            run_queue: (0..active).map(|n| Reverse((n as u64 * stagger.0, n))).collect(),
            directory: CoherenceDirectory::new(machine, costs, snoops),
            first_line: 2 * locks.len() as u32,
            locks,
        }
    }

    /// Returns the traffic of lines since counting started.
    pub(crate) fn traffic(&self) -> Traffic {
        self.directory.traffic()
    }

    /// Runs until the program stops it.
    pub(crate) fn run(&mut self, program: &mut impl Program) {
        while let Some(Reverse((now, index))) = self.run_queue.pop() {
            let core = &mut self.cores[index];
            let Some(op) = core.ops.get(core.next).copied() else {
                core.ops.clear();
                core.next = 0;
                match program.step(index, Nanos(now), &mut core.ops) {
                    EngineControl::Continue => {}
                    EngineControl::StartCounting => self.directory.reset_traffic(),
                    EngineControl::Stop => return,
                }
                // Time must advance even if a program does nothing.
                let at = if core.ops.is_empty() { now + 1 } else { now };
                self.run_queue.push(Reverse((at, index)));
                continue;
            };
            core.next += 1;
            if let Some(done) = self.play(index, op, now) {
                self.run_queue.push(Reverse((done, index)));
            }
        }
    }

    /// Executes one operation; returns the time of its end, or `None` if the core waits for a lock.
    fn play(&mut self, core: usize, op: AccessOp, now: u64) -> Option<u64> {
        let line = |line: CacheLineId| CacheLineId(line.0 + self.first_line);
        match op {
            AccessOp::Compute(time) => Some(now + time.0),
            AccessOp::Read(at) => Some(self.directory.touch(core, line(at), false, now)),
            AccessOp::Write(at) => Some(self.directory.touch(core, line(at), true, now)),
            AccessOp::Draw(id) => {
                let lock = &mut self.locks[id.0 as usize];
                access_log::set_taken(id, true);
                Some(lock.draw(&mut self.directory, core, now))
            }
            AccessOp::Enter(id) => self.locks[id.0 as usize].enter(&mut self.directory, core, now),
            AccessOp::Probe(id) => {
                Some(self.locks[id.0 as usize].probe(&mut self.directory, core, now))
            }
            AccessOp::Leave(id) => {
                let lock = &mut self.locks[id.0 as usize];
                let (done, next) = lock.leave(&mut self.directory, core, now);
                access_log::set_taken(id, lock.is_taken());
                if let Some((waiter, at)) = next {
                    self.run_queue.push(Reverse((at, waiter)));
                }
                Some(done)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multicore::access_log::LockId;

    /// A program in which every core repeats its operations, `remaining` times in total.
    struct RepeatedOps {
        ops: Vec<AccessOp>,
        remaining: u64,
        ended: Nanos,
    }

    impl Program for RepeatedOps {
        fn step(&mut self, _core: usize, now: Nanos, ops: &mut Vec<AccessOp>) -> EngineControl {
            ops.extend(&self.ops);
            self.ended = now;
            self.remaining -= 1;
            if self.remaining > 0 { EngineControl::Continue } else { EngineControl::Stop }
        }
    }

    /// Returns the time in nanoseconds per iteration of all cores.
    fn time(machine: (u16, u16), active: usize, locks: u32, ops: &[AccessOp]) -> f64 {
        access_log::reset();
        for _ in 0..locks {
            access_log::new_lock();
        }
        let machine = Machine::new(machine.0, machine.1).unwrap();
        let mut engine =
            Engine::new(machine, CostModel::GIVEN, SnoopPolicy::Home, active, Nanos(1));
        let rounds = 10_000;
        let mut same = RepeatedOps { ops: ops.to_vec(), remaining: rounds, ended: Nanos::ZERO };
        engine.run(&mut same);
        same.ended.0 as f64 / rounds as f64
    }

    fn near(value: f64, wanted: f64) {
        assert!((value / wanted - 1.0).abs() < 0.01, "{value}, not {wanted}");
    }

    #[test]
    fn two_cores_at_one_line_do_one_write_per_transfer() {
        near(time((1, 2), 2, 0, &[AccessOp::Write(CacheLineId(0))]), 54.0);
        near(time((2, 1), 2, 0, &[AccessOp::Write(CacheLineId(0))]), 150.0);
        // The line circulates over cores 0 to 3 on one board and 4 on the other; its home is with
        // core 0.
        let round = 3.0 * 150.0 + 2.0 * 202.0;
        near(time((5, 1), 5, 0, &[AccessOp::Write(CacheLineId(0))]), round / 5.0);
    }

    #[test]
    fn cores_without_common_lines_do_not_wait() {
        near(time((8, 10), 80, 0, &[AccessOp::Compute(Nanos(800))]), 10.0);
        near(time((1, 1), 1, 0, &[AccessOp::Write(CacheLineId(0))]), 2.0);
    }

    #[test]
    fn an_uncontended_lock_costs_hits() {
        let lock = LockId(0);
        let ops = [
            AccessOp::Draw(lock),
            AccessOp::Enter(lock),
            AccessOp::Compute(Nanos(100)),
            AccessOp::Leave(lock),
        ];
        near(time((1, 1), 1, 1, &ops), 106.0);
    }

    /// With n - 1 waiters a handover consists of the release (54) and their reads (51 each). The
    /// next release waits for the reads if the critical section is shorter.
    #[test]
    fn handing_a_lock_over_takes_longer_the_more_wait() {
        let lock = LockId(0);
        let ops = [AccessOp::Draw(lock), AccessOp::Enter(lock), AccessOp::Leave(lock)];
        for cores in [4, 8, 16] {
            let waiters = f64::from(cores) - 1.0;
            let took = time((1, cores as u16), cores as usize, 1, &ops);
            let wanted = 54.0 + 51.0 * waiters;
            assert!((took / wanted - 1.0).abs() < 0.15, "{cores}: {took}, not {wanted}");
        }
    }
}
