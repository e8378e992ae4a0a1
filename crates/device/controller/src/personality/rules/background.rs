//! [`BackgroundTimers`]: when a drive tries its background rules although it needs no space, and when its
//! periodic rules are due.
//!
//! An idle drive tries the background rules of its applications after [`idle_poll`] without a command,
//! and again after the same time once a line that they chose is relocated. It stops when they choose
//! none, until the next command or periodic rule: nothing else changes what they decide from.
//!
//! [`idle_poll`]: super::config::DriveRulesConfig::idle_poll

use ftl::{ChosenLine, Ftl};
use rules::{AppId, RuleEngine, RuleId};
use time::Nanos;

use super::DriveRules;
use super::durable;
use super::ftl_facts::FtlFacts;
use super::stations::EngineWork;
use crate::controller::{Controller, Personality};
use crate::faults::injection;

/// A periodic rule.
#[derive(Clone, Copy, Debug)]
struct PeriodicRule {
    rule: RuleId,
    period: Nanos,
    due: Nanos,
}

/// The times at which rules run that no command and no need of space begins.
#[derive(Clone, Debug)]
pub(super) struct BackgroundTimers {
    idle_poll: Option<Nanos>,
    /// Time of the next try of the background rules.
    poll_at: Option<Nanos>,
    /// Inputs of the engine at the last look: the drive was idle since if there are no more.
    inputs: u64,
    periodic: Vec<PeriodicRule>,
    /// Time of the next rule.
    next_at: Nanos,
    /// Whether a command must [wake](BackgroundTimers::wake) the tries of background rules.
    is_asleep: bool,
}

impl BackgroundTimers {
    /// Creates the timers of a program that was installed at `now`.
    pub(super) fn new(
        engine: &RuleEngine,
        idle_poll: Option<Nanos>,
        now: Nanos,
    ) -> BackgroundTimers {
        let timer = |(rule, period_ns): (RuleId, u64)| {
            let period = Nanos(period_ns);
            PeriodicRule { rule, period, due: now + period }
        };
        let periodic = engine.periodic_rules().map(timer).collect();
        let (next_at, is_asleep) = (Nanos::MAX, false);
        let mut timers =
            BackgroundTimers { idle_poll, poll_at: None, inputs: 0, periodic, next_at, is_asleep };
        timers.update();
        timers
    }

    /// Sets the time of the next rule, and whether the tries of background rules are asleep.
    fn update(&mut self) {
        let periodic = self.periodic.iter().map(|timer| timer.due);
        self.next_at = self.poll_at.into_iter().chain(periodic).min().unwrap_or(Nanos::MAX);
        self.is_asleep = self.idle_poll.is_some() && self.poll_at.is_none();
    }

    /// Whether a command must [wake](BackgroundTimers::wake) the tries of background rules.
    #[inline(always)]
    pub(super) fn is_asleep(&self) -> bool {
        self.is_asleep
    }

    /// Has the background rules tried once the drive has been idle from `now` on.
    pub(super) fn wake(&mut self, now: Nanos) {
        if self.poll_at.is_none() {
            self.poll_at = self.idle_poll.map(|idle| now + idle);
            self.update();
        }
    }

    /// Sets the number of inputs at the last look to zero, as those of the statistics.
    pub(super) fn reset_inputs(&mut self) {
        self.inputs = 0;
    }

    /// Returns the time of the next rule.
    #[inline]
    pub(super) fn next_at(&self) -> Nanos {
        self.next_at
    }

    /// Returns a periodic rule that is due. Periods that have passed without it are skipped.
    fn pop_periodic(&mut self, now: Nanos) -> Option<RuleId> {
        let timer = self.periodic.iter_mut().find(|timer| timer.due <= now)?;
        let passed = (now.0 - timer.due.0) / timer.period.0.max(1);
        timer.due = Nanos(timer.due.0.saturating_add((passed + 1) * timer.period.0.max(1)));
        let rule = timer.rule;
        self.update();
        Some(rule)
    }

    /// Returns whether a try of the background rules is due, and ends it.
    fn pop_poll(&mut self, now: Nanos) -> bool {
        let is_due = self.poll_at.take_if(|at| *at <= now).is_some();
        self.update();
        is_due
    }
}

/// Runs the rules that are due at `now`.
#[cold]
pub(super) fn run_due(controller: &mut Controller, now: Nanos) {
    while let Some(rules) = &mut controller.commands.rules
        && let Some(rule) = rules.background.pop_periodic(now)
    {
        run_periodic(controller, now, rule);
    }
    let is_due = |rules: &mut Box<DriveRules>| rules.background.pop_poll(now);
    if controller.commands.rules.as_mut().is_some_and(is_due) {
        poll_if_idle(controller, now);
    }
}

/// Runs a periodic rule. The line that it chooses is relocated.
fn run_periodic(controller: &mut Controller, now: Nanos, rule: RuleId) {
    let outstanding = controller.commands.outstanding();
    let Personality::Block(drive) = &controller.personality else { return };
    let Some(rules) = &mut controller.commands.rules else { return };
    let app = rules.engine.program().program().rules[rule.index()].app;
    let facts = FtlFacts::new(drive.spaces.of(app), rules.is_idle(outstanding, 0));
    let mut chosen = None;
    match rules.engine.begin_periodic(rule, &facts) {
        Some(step) => rules.run(step, &facts, &mut chosen),
        None => unreachable!("the context is free between two inputs"),
    };
    rules.stats.periodic += 1;
    rules.background.wake(now);
    durable::record(controller);
    leave(controller, now, app, chosen);
}

/// Tries the background rules of a drive that has been idle, and relocates the line that those of each
/// application choose.
fn poll_if_idle(controller: &mut Controller, now: Nanos) {
    let outstanding = controller.commands.outstanding();
    let Personality::Block(drive) = &controller.personality else { return };
    let Some(rules) = &mut controller.commands.rules else { return };
    let inputs = rules.command_inputs();
    let had_inputs = std::mem::replace(&mut rules.background.inputs, inputs) != inputs;
    let is_relocating = drive.spaces.all().any(Ftl::is_relocating);
    if had_inputs || !rules.is_idle(outstanding, 0) || is_relocating {
        return rules.background.wake(now);
    }
    for app in drive.spaces.apps() {
        poll(controller, now, app);
    }
}

/// Tries the background rules of an application, and relocates the line that they choose.
fn poll(controller: &mut Controller, now: Nanos, app: AppId) {
    let Personality::Block(drive) = &controller.personality else { return };
    let Some(rules) = &mut controller.commands.rules else { return };
    let facts = FtlFacts::new(drive.spaces.of(app), true);
    let mut chosen = None;
    match rules.engine.begin_background(app, &facts) {
        Some(step) => rules.run(step, &facts, &mut chosen),
        None => unreachable!("the context is free between two inputs"),
    };
    rules.stats.idle_polls += 1;
    if chosen.is_some() {
        rules.background.wake(now);
    }
    durable::record(controller);
    leave(controller, now, app, chosen);
}

/// Relocates the line that a rule of an application chose, once the engine has taken its time.
fn leave(controller: &mut Controller, now: Nanos, app: AppId, chosen: Option<ChosenLine>) {
    let zero_latency = controller.zero_latency;
    let Some(rules) = &mut controller.commands.rules else { return };
    let work = chosen.map_or(EngineWork::Nothing, |chosen| EngineWork::Relocate(app, chosen));
    match rules.time_of(rules.engine.ended_ops()) {
        time if time > Nanos::ZERO && !zero_latency => {
            rules.stations.enqueue(now, time, work);
            injection::update_interrupt(controller);
        }
        _ => super::commands::execute(controller, now, work),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timers(periods: &[u64]) -> BackgroundTimers {
        let timer = |(at, period): (usize, &u64)| PeriodicRule {
            rule: RuleId::from_index(at),
            period: Nanos(*period),
            due: Nanos(*period),
        };
        let periodic = periods.iter().enumerate().map(timer).collect();
        let (idle_poll, next_at, is_asleep) = (Some(Nanos(7)), Nanos::MAX, false);
        let mut timers =
            BackgroundTimers { idle_poll, poll_at: None, inputs: 0, periodic, next_at, is_asleep };
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
