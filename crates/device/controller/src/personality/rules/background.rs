//! Background rules of a drive that needs no space, and periodic rules, when [`rules::RuleTimers`] says
//! that they are due. An idle drive tries the background rules of all its applications.

use ftl::{ChosenLine, Ftl, FtlFacts};
use rules::{AppId, RuleId};
use time::Nanos;

use super::stations::EngineWork;
use super::{DriveRules, durable, named};
use crate::controller::{Controller, Personality};
use crate::faults::injection;

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
    let facts =
        FtlFacts::new(drive.spaces.of(drive.spaces.space_of(app)), rules.is_idle(outstanding, 0));
    let mut chosen = None;
    match rules.engine.begin_periodic(rule, &facts) {
        Some(step) => rules.run(app, step, &facts, &mut chosen),
        None => unreachable!("the context is free between two inputs"),
    };
    rules.count(app, |app| app.periodic += 1);
    rules.background.wake(now);
    durable::record(controller);
    named::follow_rules(controller, now);
    leave(controller, now, app, chosen);
}

/// Tries the background rules of a drive that has been idle, and relocates the line that those of each
/// application choose.
fn poll_if_idle(controller: &mut Controller, now: Nanos) {
    let outstanding = controller.commands.outstanding();
    let Personality::Block(drive) = &controller.personality else { return };
    let Some(rules) = &mut controller.commands.rules else { return };
    let inputs = rules.command_inputs();
    let had_inputs = rules.background.record_inputs(inputs);
    let is_relocating = drive.spaces.all().any(Ftl::is_relocating);
    if had_inputs || !rules.is_idle(outstanding, 0) || is_relocating {
        return rules.background.wake(now);
    }
    // An application that shares its space has no background rules.
    let with_lines = |app: &AppId| drive.spaces.sole_space(*app).is_some();
    let apps: Vec<AppId> = drive.spaces.apps().filter(with_lines).collect();
    for app in apps {
        poll(controller, now, app);
    }
}

/// Tries the background rules of an application, and relocates the line that they choose.
fn poll(controller: &mut Controller, now: Nanos, app: AppId) {
    let Personality::Block(drive) = &controller.personality else { return };
    let Some(rules) = &mut controller.commands.rules else { return };
    let facts = FtlFacts::new(drive.spaces.of(drive.spaces.space_of(app)), true);
    let mut chosen = None;
    match rules.engine.begin_background(app, &facts) {
        Some(step) => rules.run(app, step, &facts, &mut chosen),
        None => unreachable!("the context is free between two inputs"),
    };
    rules.count(app, |app| app.idle_polls += 1);
    if chosen.is_some() {
        rules.background.wake(now);
    }
    durable::record(controller);
    named::follow_rules(controller, now);
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
