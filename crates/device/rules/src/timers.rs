//! [`RuleTimers`]: when background rules are tried although no space is needed, and when periodic
//! rules are due.
//!
//! An idle drive or target tries the background rules of its application after `idle_poll` without a
//! command, and again after the same time once a line that they chose is relocated. It stops when they
//! choose none, until the next command or periodic rule: nothing else changes what they decide from.

use time::Nanos;

use crate::engine::RuleEngine;
use crate::ids::RuleId;

/// A periodic rule.
#[derive(Clone, Copy, Debug)]
struct PeriodicRule {
    rule: RuleId,
    period: Nanos,
    due: Nanos,
}

/// The times at which rules run that no command and no need of space begins.
#[derive(Clone, Debug)]
pub struct RuleTimers {
    idle_poll: Option<Nanos>,
    /// Time of the next try of the background rules.
    poll_at: Option<Nanos>,
    /// Inputs of commands at the last due try: the drive was idle since if there are no more.
    inputs: u64,
    periodic: Vec<PeriodicRule>,
    /// Time of the next rule.
    next_at: Nanos,
}

impl RuleTimers {
    /// Creates the timers of a program that was installed at `now`.
    pub fn new(engine: &RuleEngine, idle_poll: Option<Nanos>, now: Nanos) -> RuleTimers {
        let timer = |(rule, period_ns): (RuleId, u64)| {
            let period = Nanos(period_ns);
            PeriodicRule { rule, period, due: now + period }
        };
        let periodic = engine.periodic_rules().map(timer).collect();
        let next_at = Nanos::MAX;
        let mut timers = RuleTimers { idle_poll, poll_at: None, inputs: 0, periodic, next_at };
        timers.update();
        timers
    }

    /// Sets the time of the next rule.
    fn update(&mut self) {
        let periodic = self.periodic.iter().map(|timer| timer.due);
        self.next_at = self.poll_at.into_iter().chain(periodic).min().unwrap_or(Nanos::MAX);
    }

    /// Whether a command must [wake](RuleTimers::wake) the tries of background rules.
    #[inline(always)]
    pub fn is_asleep(&self) -> bool {
        self.idle_poll.is_some() && self.poll_at.is_none()
    }

    /// Has the background rules tried once the drive has been idle from `now` on.
    pub fn wake(&mut self, now: Nanos) {
        if self.poll_at.is_none() {
            self.poll_at = self.idle_poll.map(|idle| now + idle);
            self.update();
        }
    }

    /// Sets the number of inputs at the last due try to zero, as that of the statistics.
    pub fn reset_inputs(&mut self) {
        self.inputs = 0;
    }

    /// Records the number of inputs at a due try. Returns whether commands came since the last one.
    pub fn record_inputs(&mut self, inputs: u64) -> bool {
        std::mem::replace(&mut self.inputs, inputs) != inputs
    }

    /// Returns the time of the next rule.
    #[inline]
    pub fn next_at(&self) -> Nanos {
        self.next_at
    }

    /// Returns a periodic rule that is due. Periods that have passed without it are skipped.
    pub fn pop_periodic(&mut self, now: Nanos) -> Option<RuleId> {
        let timer = self.periodic.iter_mut().find(|timer| timer.due <= now)?;
        let passed = (now.0 - timer.due.0) / timer.period.0.max(1);
        timer.due = Nanos(timer.due.0.saturating_add((passed + 1) * timer.period.0.max(1)));
        let rule = timer.rule;
        self.update();
        Some(rule)
    }

    /// Returns whether a try of the background rules is due, and ends it.
    pub fn pop_poll(&mut self, now: Nanos) -> bool {
        let is_due = self.poll_at.take_if(|at| *at <= now).is_some();
        self.update();
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timers(periods: &[u64]) -> RuleTimers {
        let timer = |(at, period): (usize, &u64)| PeriodicRule {
            rule: RuleId::from_index(at),
            period: Nanos(*period),
            due: Nanos(*period),
        };
        let periodic = periods.iter().enumerate().map(timer).collect();
        let (idle_poll, next_at) = (Some(Nanos(7)), Nanos::MAX);
        let mut timers = RuleTimers { idle_poll, poll_at: None, inputs: 0, periodic, next_at };
        timers.update();
        timers
    }

    #[test]
    fn periods_that_have_passed_are_skipped() {
        let mut timers = timers(&[10, 25]);
        assert_eq!((timers.next_at(), timers.pop_periodic(Nanos(9))), (Nanos(10), None));
        assert_eq!(timers.pop_periodic(Nanos(10)), Some(RuleId::from_index(0)));
        assert_eq!(timers.next_at(), Nanos(20));
        // Both are due, each once.
        let due: Vec<RuleId> = std::iter::from_fn(|| timers.pop_periodic(Nanos(57))).collect();
        assert_eq!(due, [0, 1].map(RuleId::from_index));
        assert_eq!(timers.next_at(), Nanos(60));
        assert_eq!(timers.pop_periodic(Nanos(75)), Some(RuleId::from_index(0)));
        assert_eq!(timers.pop_periodic(Nanos(75)), Some(RuleId::from_index(1)));
        assert_eq!(timers.next_at(), Nanos(80));
    }

    #[test]
    fn a_try_is_due_once_after_it_was_woken() {
        let mut timers = timers(&[]);
        assert!(timers.is_asleep() && !timers.pop_poll(Nanos(100)));
        timers.wake(Nanos(100));
        timers.wake(Nanos(105));
        assert!(!timers.is_asleep());
        assert_eq!((timers.next_at(), timers.pop_poll(Nanos(106))), (Nanos(107), false));
        assert!(timers.pop_poll(Nanos(107)) && timers.is_asleep());
        assert_eq!(timers.next_at(), Nanos::MAX);
        // Without `idle_poll` there is none.
        timers.idle_poll = None;
        timers.wake(Nanos(200));
        assert_eq!((timers.is_asleep(), timers.next_at()), (false, Nanos::MAX));
    }
}
