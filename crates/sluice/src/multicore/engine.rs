//! [`Engine`]: cores in virtual time.
//!
//! A heap of cores by their clocks; always the one furthest behind goes on, by one operation of its
//! tape. When its tape is played its program is asked for the next. What the layer's code changes
//! takes effect when a core's turn begins, and the turn takes its time afterwards. Turns begin in the
//! order in which they draw their tickets, near enough, so locks order them alike; but a completion
//! can be found while the turn that brings it still waits for its lock, which makes a latency too
//! short by one holder's time at most.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use clock::Nanos;

use super::Machine;
use super::access_log::{self, AccessOp, LineId};
use super::costs::CostModel;
use super::lines::{CoherenceDirectory, SnoopPolicy, Traffic};
use super::locks::TicketLock;

/// What cores run.
pub(crate) trait Program {
    /// Core `core` has done everything it was given, at `now`: writes down what it does next.
    fn step(&mut self, core: usize, now: Nanos, ops: &mut Vec<AccessOp>) -> EngineControl;
}

/// How the machine goes on after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineControl {
    /// As before.
    Continue,
    /// What was before does not count.
    StartCounting,
    /// No further.
    Stop,
}

/// A core and what it has yet to do.
#[derive(Debug, Default)]
struct Core {
    ops: Vec<AccessOp>,
    next: usize,
}

/// A machine that runs.
#[derive(Debug)]
pub(crate) struct Engine {
    cores: Vec<Core>,
    /// By time, then by core.
    run_queue: BinaryHeap<Reverse<(u64, usize)>>,
    directory: CoherenceDirectory,
    locks: Vec<TicketLock>,
    /// The first line that code touches: those before are the locks'.
    first_line: u32,
}

impl Engine {
    /// A machine whose first `active` cores run, and whose locks are those made since the last
    /// [`tape::reset`]. Core `n` starts `n` times `stagger` late.
    pub(crate) fn new(
        machine: Machine,
        costs: CostModel,
        snoops: SnoopPolicy,
        active: usize,
        stagger: Nanos,
    ) -> Engine {
        let locks = (0..access_log::lock_count() as u32)
            .map(|n| TicketLock::new(LineId(2 * n), LineId(2 * n + 1)))
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

    /// What lines have done since counting began.
    pub(crate) fn traffic(&self) -> Traffic {
        self.directory.traffic()
    }

    /// Runs until the program says that it is enough.
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
                // A program that does nothing must not stop the clock.
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

    /// Plays one operation; returns when it is done, or `None` if the core waits for a lock.
    fn play(&mut self, core: usize, op: AccessOp, now: u64) -> Option<u64> {
        let line = |line: LineId| LineId(line.0 + self.first_line);
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

    /// Every core does the same over and over, `left` times together.
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

    /// Nanoseconds per round of all cores together.
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
        near(time((1, 2), 2, 0, &[AccessOp::Write(LineId(0))]), 54.0);
        near(time((2, 1), 2, 0, &[AccessOp::Write(LineId(0))]), 150.0);
        // Round and round: 0 to 3 on a board, 4 on the other; the home is with 0.
        let round = 3.0 * 150.0 + 2.0 * 202.0;
        near(time((5, 1), 5, 0, &[AccessOp::Write(LineId(0))]), round / 5.0);
    }

    #[test]
    fn cores_without_common_lines_do_not_wait() {
        near(time((8, 10), 80, 0, &[AccessOp::Compute(Nanos(800))]), 10.0);
        near(time((1, 1), 1, 0, &[AccessOp::Write(LineId(0))]), 2.0);
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

    /// With n - 1 waiters a handover is: the release (54), and their reads (51 each), which the next
    /// release waits for where the work inside is shorter.
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
