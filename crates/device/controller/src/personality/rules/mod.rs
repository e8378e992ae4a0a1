//! Rules of a drive that manages its flash: they decide about its commands and its victims, and the
//! FTL executes that (ARCHITECTURE.md, "Rules in the drive").
//!
//! Invariant: an input of the engine runs to its end before the next one begins, unless its rules fetch
//! a sector ([`RuleFetches`]). The time that it takes comes after that ([`EngineStations`]).

pub(crate) mod admin;
mod background;
pub(crate) mod commands;
pub(crate) mod config;
pub(crate) mod durable;
pub(crate) mod fetches;
pub(crate) mod installation;
pub(crate) mod misses;
pub(crate) mod named;
pub(crate) mod output;
pub(crate) mod sectors;
mod stations;
pub(crate) mod tables;
pub(crate) mod upload;

use ftl::{ChosenLine, FtlFacts, VictimDecision, VictimLines};
use nvme::Status;
use rules::{
    AppId, DriveFacts, EngineOptions, EngineTotals, OpMask, RuleAction, RuleCounters, RuleEngine,
    RuleFeature, RuleInput, RuleStep, RuleTimers, RuleVerdict, VerifiedProgram,
};
use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::command::table::Command;
use crate::controller::Personality;
use crate::personality::spaces::SpaceId;
use crate::{DriveConfig, DriveError, DriveRulesError};
use config::DriveRulesConfig;
use durable::DurableTables;
use fetches::{RULE_CONTEXTS, RuleFetchStats, RuleFetches, WaitingInput};
use misses::{RuleMissRecord, RuleMisses};
use named::RuleEvents;
use stations::{EngineStations, EngineWork};
use upload::RuleUpload;

/// Operations after which a rule pauses. The drive resumes it at once.
const PAUSE_OPS: u64 = 1 << 20;

/// Counters of the rules of a drive. Those of inputs and of times begin with
/// [`Controller::reset_stats`](crate::Controller::reset_stats); those of classes of misses and of
/// installations with the drive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveRuleStats {
    /// Each rule, in the order of the program.
    pub rules: Vec<NamedRuleStats>,
    /// Each application, in the order of the program.
    #[serde(default)]
    pub apps: Vec<AppRuleStats>,
    /// Inputs of commands: a command, or a range of a trim or of a copy.
    pub inputs: u64,
    /// Commands that no rule matched.
    pub misses: u64,
    /// Each class of them.
    pub missed: Vec<RuleMissRecord>,
    /// Programs that replaced another one.
    pub installations: u64,
    /// Operations of all inputs and polls, the matching of rules included.
    pub ops: u64,
    /// Polls of background rules for a victim.
    pub polls: u64,
    /// Polls of background rules by an idle drive.
    pub idle_polls: u64,
    /// Runs of periodic rules.
    pub periodic: u64,
    /// Victims that a rule chose.
    pub victims: u64,
    /// Lines that were relocated although no space was needed, because a background rule or a periodic
    /// rule chose them.
    pub relocated: u64,
    /// Victims of the FTL's policy, because the host waited for space and no rule chose one.
    pub policy_victims: u64,
    /// Time in which engines worked.
    pub engine_busy: Nanos,
    /// Sectors of writes that rules placed in the stream `hot`.
    pub hot_sectors: u64,
    /// Sectors that rules read.
    pub sectors: RuleFetchStats,
}

impl DriveRuleStats {
    /// Creates the counters of rules with these applications: the sums of theirs, and no others.
    pub fn of_apps(apps: Vec<AppRuleStats>) -> DriveRuleStats {
        let mut stats = DriveRuleStats::default();
        for app in &apps {
            stats.inputs += app.inputs;
            stats.misses += app.misses;
            stats.ops += app.ops;
            stats.polls += app.polls;
            stats.idle_polls += app.idle_polls;
            stats.periodic += app.periodic;
            stats.victims += app.victims;
            stats.relocated += app.relocated;
            stats.policy_victims += app.policy_victims;
            stats.hot_sectors += app.hot_sectors;
        }
        DriveRuleStats { apps, ..stats }
    }
}

/// Counters of an application; each is a part of the sum in [`DriveRuleStats`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppRuleStats {
    /// Name of the application.
    pub name: String,
    /// Inputs of its commands.
    pub inputs: u64,
    /// Its commands that no rule matched.
    pub misses: u64,
    /// Operations of its inputs and polls.
    pub ops: u64,
    /// Polls of its background rules for a victim.
    pub polls: u64,
    /// Polls of its background rules by an idle drive.
    pub idle_polls: u64,
    /// Runs of its periodic rules.
    pub periodic: u64,
    /// Victims that its rules chose.
    pub victims: u64,
    /// Lines that were relocated although no space was needed.
    pub relocated: u64,
    /// Victims of the policy of its FTL, because the host waited for space and no rule chose one.
    pub policy_victims: u64,
    /// Sectors of writes that its rules placed in the stream `hot`.
    pub hot_sectors: u64,
}

/// The state of an application.
#[derive(Clone, Debug, Default)]
struct AppState {
    /// The space that it has alone, and whose victims its rules choose.
    space: Option<SpaceId>,
    polled: Option<PolledVictim>,
    /// The counters that the engine does not have, and those of engines of earlier programs.
    stats: AppRuleStats,
    /// Counters of the engine when the statistics were reset.
    before: EngineTotals,
}

impl AppState {
    /// Returns the inputs of its commands: those of the engine, without the polls and the periodic rules.
    fn command_inputs(&self, totals: EngineTotals) -> u64 {
        let AppRuleStats { inputs, polls, idle_polls, periodic, .. } = self.stats;
        inputs + totals.inputs - self.before.inputs - polls - idle_polls - periodic
    }
}

/// Counters of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedRuleStats {
    /// Name of the rule.
    pub name: String,
    /// Inputs that it matched.
    pub matches: u64,
    /// Inputs that it ended with a fault.
    pub faults: u64,
    /// Operations that it used.
    pub ops: u64,
}

/// The work of an engine on an input, up to its end or the next sector that its rules fetch.
#[derive(Clone, Copy, Debug)]
struct EngineStage {
    /// `None` if the rules wait for a sector.
    verdict: Option<RuleVerdict>,
    /// Operations of the stage.
    ops: u64,
}

/// A victim that the FTL of an application learns of when an engine has chosen it.
#[derive(Clone, Copy, Debug)]
struct PolledVictim {
    due: Nanos,
    chosen: Option<ChosenLine>,
}

/// The rules of a drive.
#[derive(Debug)]
pub(crate) struct DriveRules {
    engine: RuleEngine,
    op: Nanos,
    /// Whether the ends of commands that are known at installation take no time, and are those of all
    /// commands: the drive has one application.
    decides_directly: bool,
    stations: EngineStations,
    apps: Vec<AppState>,
    background: RuleTimers,
    /// The number of the program.
    program: u32,
    misses: RuleMisses,
    fetches: RuleFetches,
    upload: RuleUpload,
    durable: DurableTables,
    pub(crate) events: RuleEvents,
    /// Whether the search of a victim has entered an engine since the controller has looked.
    has_polled: bool,
    /// Programs that replaced another one.
    installations: u64,
    /// Counters of the engine's rules when the statistics were reset.
    rules_before: Vec<RuleCounters>,
}

impl DriveRules {
    /// Installs the rules of a drive, if it has any.
    ///
    /// # Errors
    /// [`DriveError::Rules`] if the program is not accepted.
    pub(crate) fn install(
        config: &DriveConfig,
        personality: &Personality,
    ) -> Result<Option<Box<DriveRules>>, DriveError> {
        let Some(settings) = &config.rules else { return Ok(None) };
        let (media::MediaConfig::Nand(nand), Personality::Block(drive)) =
            (&config.media, personality)
        else {
            return Ok(None);
        };
        let verified = settings.verified(nand, &config.ftl, &drive.capacities())?;
        let spaces = drive.spaces.apps().map(|app| drive.spaces.sole_space(app));
        let apps: Vec<_> = spaces.map(|space| AppState { space, ..AppState::default() }).collect();
        let rules_before = vec![Default::default(); verified.program().rules.len()];
        let events = RuleEvents::new(&verified, apps.len());
        let sector_bytes = config.sector_bytes() as usize;
        let fetches = RuleFetches::new(fetching_ops(&verified), sector_bytes);
        let engine = DriveRules::engine(verified, config);
        Ok(Some(Box::new(DriveRules {
            background: RuleTimers::new(&engine, settings.idle_poll, Nanos::ZERO),
            fetches,
            engine,
            op: settings.op,
            decides_directly: settings.op == Nanos::ZERO && apps.len() == 1,
            stations: EngineStations::new(settings.engines),
            apps,
            program: 0,
            misses: RuleMisses::new(settings.misses),
            upload: RuleUpload::default(),
            durable: DurableTables::new(&settings.program, 0),
            events,
            has_polled: false,
            installations: 0,
            rules_before,
        })))
    }

    fn engine(verified: VerifiedProgram, config: &DriveConfig) -> RuleEngine {
        let sector_bytes = config.sector_bytes() as usize;
        let contexts = 1 + if fetches_any(&verified) { RULE_CONTEXTS } else { 0 };
        let options = EngineOptions { contexts, sector_bytes, pause_ops: PAUSE_OPS };
        RuleEngine::install(verified, options)
    }

    /// Replaces the program by the installation with this number. Its tables have zeros, or no keys.
    fn replace(
        &mut self,
        now: Nanos,
        installation: u64,
        verified: VerifiedProgram,
        settings: &DriveRulesConfig,
        config: &DriveConfig,
    ) {
        self.fetches.replace(fetching_ops(&verified), &mut self.engine);
        for (app, state) in self.apps.iter_mut().enumerate() {
            let totals = self.engine.app_totals(AppId::from_index(app));
            state.stats.inputs += totals.inputs - state.before.inputs;
            state.stats.ops += totals.ops - state.before.ops;
            (state.before, state.polled) = (EngineTotals::default(), None);
        }
        self.rules_before = vec![Default::default(); verified.program().rules.len()];
        self.events.replace(&verified);
        self.engine = DriveRules::engine(verified, config);
        self.background = RuleTimers::new(&self.engine, settings.idle_poll, now);
        self.background.wake(now);
        self.durable = DurableTables::new(&settings.program, installation);
        self.program = self.program.wrapping_add(1);
        self.installations += 1;
    }

    /// Returns the number of the application of this name.
    ///
    /// # Errors
    /// [`DriveRulesError::UnknownApp`].
    pub(crate) fn application(&self, name: &str) -> Result<u32, DriveRulesError> {
        let apps = &self.engine.program().program().apps;
        let found = apps.iter().position(|app| app.name == name);
        found.map(|at| at as u32).ok_or_else(|| {
            let names = apps.iter().map(|app| app.name.as_str()).collect::<Vec<_>>().join(", ");
            DriveRulesError::UnknownApp { app: name.to_owned(), names }
        })
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> DriveRuleStats {
        let declared = &self.engine.program().program().rules;
        let counters = self.engine.counters().into_iter().zip(&self.rules_before);
        let named = declared.iter().zip(counters).map(|(rule, (now, before))| NamedRuleStats {
            name: rule.name.clone(),
            matches: now.matches - before.matches,
            faults: now.faults - before.faults,
            ops: now.ops - before.ops,
        });
        DriveRuleStats {
            rules: named.collect(),
            missed: self.misses.records(),
            installations: self.installations,
            engine_busy: self.stations.busy,
            sectors: self.fetches.stats,
            ..DriveRuleStats::of_apps(self.app_stats())
        }
    }

    /// Returns the counters of each application.
    fn app_stats(&self) -> Vec<AppRuleStats> {
        let declared = self.engine.program().program().apps.iter().enumerate();
        let counted = declared.zip(&self.apps).map(|((at, app), state)| {
            let totals = self.engine.app_totals(AppId::from_index(at));
            AppRuleStats {
                name: app.name.clone(),
                inputs: state.command_inputs(totals),
                ops: state.stats.ops + totals.ops - state.before.ops,
                ..state.stats.clone()
            }
        });
        counted.collect()
    }

    /// Adds to the counters of an application.
    fn count(&mut self, app: AppId, add: impl FnOnce(&mut AppRuleStats)) {
        if let Some(app) = self.apps.get_mut(app.index()) {
            add(&mut app.stats);
        }
    }

    /// Returns the inputs of commands.
    fn command_inputs(&self) -> u64 {
        let apps = self.apps.iter().enumerate();
        apps.map(|(at, app)| app.command_inputs(self.engine.app_totals(AppId::from_index(at))))
            .sum()
    }

    /// Resets the counters.
    pub(crate) fn reset_stats(&mut self) {
        (self.stations.busy, self.fetches.stats) = (Nanos::ZERO, RuleFetchStats::default());
        self.rules_before = self.engine.counters();
        for (app, state) in self.apps.iter_mut().enumerate() {
            state.stats = AppRuleStats::default();
            state.before = self.engine.app_totals(AppId::from_index(app));
        }
        // The counter from which the timers see that the drive is idle begins with zero, too.
        self.background.reset_inputs();
    }

    /// Whether the drive has something to do for rules after the FTL has worked: engines take time, rules
    /// wait for sectors, or there are events for hosts.
    pub(crate) fn follows_ftl(&self) -> bool {
        self.op > Nanos::ZERO || self.fetches.is_used() || self.events.are_used()
    }

    /// Returns whether the search of a victim has entered an engine since the last call.
    pub(crate) fn take_polled(&mut self) -> bool {
        std::mem::take(&mut self.has_polled)
    }

    /// Returns the time at which the next input leaves its engine, a parked command ends, or a rule is
    /// due.
    pub(crate) fn next_at(&self) -> Nanos {
        self.stations.next_at().min(self.misses.next_at()).min(self.background.next_at())
    }

    /// Whether a drive with `outstanding` commands does nothing for a host, but for `own` commands.
    pub(crate) fn is_idle(&self, outstanding: usize, own: usize) -> bool {
        outstanding <= own + self.misses.len()
    }

    /// Loses what a power cut loses: volatile tables, and the inputs in the engines.
    pub(crate) fn power_cut(&mut self) {
        self.engine.clear_volatile();
        self.stations.clear();
        self.fetches.power_cut(&mut self.engine);
        self.misses.power_cut();
        self.upload.clear();
        self.apps.iter_mut().for_each(|app| app.polled = None);
        self.events.power_cut();
    }

    /// Returns the time of operations.
    #[inline]
    fn time_of(&self, ops: u64) -> Nanos {
        Nanos(self.op.0.saturating_mul(ops))
    }

    /// Runs the input of an application's command, whose rules fetch nothing, to its end.
    #[inline]
    fn decide(&mut self, app: AppId, input: &RuleInput, facts: &FtlFacts<'_>) -> RuleVerdict {
        match self.engine.begin_command(app, input, facts) {
            Some(RuleStep::Done(verdict)) => verdict,
            Some(step) => self.run(app, step, facts, &mut None),
            None => unreachable!("a context is free for inputs that fetch nothing"),
        }
    }

    /// Resumes the rules of a command with the sector that they waited for.
    fn resume_fetched(&mut self, id: u32, facts: &dyn DriveFacts) -> Option<RuleStep> {
        let (context, sector) = self.fetches.take_sector(id)?;
        Some(self.engine.resume_with_sector(context, sector, facts))
    }

    /// Runs a command's input to its end, or until its rules fetch a sector.
    fn run_command(
        &mut self,
        input: WaitingInput,
        mut step: RuleStep,
        command: &mut Command,
        facts: &dyn DriveFacts,
    ) -> EngineStage {
        let before = self.fetches.ops_before(input.id);
        loop {
            let (context, action) = match step {
                RuleStep::Done(verdict) => {
                    self.fetches.decided(input.id);
                    let ops = self.engine.ended_ops() - before;
                    return EngineStage { verdict: Some(verdict), ops };
                }
                RuleStep::Do(context, action) => (context, action),
            };
            match action {
                RuleAction::Fetch { lba } => {
                    let ops = self.engine.used_ops(context);
                    self.fetches.suspend(input, command, context, lba, ops);
                    return EngineStage { verdict: None, ops: ops - before };
                }
                RuleAction::Emit { offset, bytes } => {
                    self.fetches.stats.emitted_bytes += bytes.len() as u64;
                    output::emit(command, offset, &self.engine.fetched(context)[bytes]);
                }
                RuleAction::Journal(change) => self.durable.push(change),
                RuleAction::Post { kind, values } => self.events.post(command.app, kind, values),
                RuleAction::Pause => {}
                RuleAction::MoveValid { .. } | RuleAction::Erase { .. } => {
                    unreachable!("a program with {action:?} for commands is not installed")
                }
            }
            step = self.engine.resume(context, facts);
        }
    }

    /// Returns the block of a sector that is read for the rules of a command, and the memory for it.
    pub(crate) fn fetched_sector_mut(
        &mut self,
        command: u32,
        place: u16,
    ) -> Option<(u64, &mut [u8])> {
        self.fetches.sector_mut(command, place)
    }

    /// Whether rules whose sectors are read may go on, or inputs wait for a context.
    #[inline]
    pub(crate) fn has_steps(&self) -> bool {
        self.fetches.has_steps()
    }

    /// Returns the block of a sector that is read for the rules of a command.
    pub(crate) fn fetched_block(&self, command: u32, place: u16) -> Option<u64> {
        self.fetches.block(command, place)
    }

    /// Records that a sector for the rules of a command fails a check with this status.
    pub(crate) fn fail_fetch(&mut self, command: u32, place: u16, status: Status) {
        self.fetches.fail(command, place, status);
    }

    /// Records the end of a read for the rules of a command.
    pub(crate) fn fetch_done(&mut self, command: u32, place: u16, status: Status) {
        self.fetches.read_done(command, place, status);
    }

    /// Runs an application's input that fetches nothing to its end. The line of the first `move valid` is chosen.
    fn run(
        &mut self,
        app: AppId,
        mut step: RuleStep,
        facts: &FtlFacts<'_>,
        chosen: &mut Option<ChosenLine>,
    ) -> RuleVerdict {
        loop {
            let (context, action) = match step {
                RuleStep::Done(verdict) => return verdict,
                RuleStep::Do(context, action) => (context, action),
            };
            match action {
                RuleAction::MoveValid { line, stream, units } => {
                    chosen.get_or_insert(ChosenLine::of_rule(line, stream, units));
                }
                // The FTL erases its victims.
                RuleAction::Erase { .. } | RuleAction::Pause => {}
                RuleAction::Journal(change) => self.durable.push(change),
                RuleAction::Post { kind, values } => self.events.post(app, kind, values),
                RuleAction::Fetch { .. } | RuleAction::Emit { .. } => {
                    unreachable!("a program with {action:?} is not installed")
                }
            }
            step = self.engine.resume(context, facts);
        }
    }

    /// Chooses the victim of a space's FTL, which needs free lines, of a drive with `outstanding`
    /// commands. `is_timed` tells whether the engine takes time.
    #[cold]
    pub(crate) fn choose_victim(
        &mut self,
        now: Nanos,
        space: SpaceId,
        outstanding: usize,
        is_timed: bool,
        lines: &VictimLines<'_>,
    ) -> VictimDecision {
        let app = self.apps.iter().position(|app| app.space == Some(space));
        let Some(app) = app.map(AppId::from_index) else { return VictimDecision::Policy };
        let chosen = match self.apps[app.index()].polled.take() {
            Some(polled) if is_timed && polled.due > now => {
                self.apps[app.index()].polled = Some(polled);
                return VictimDecision::None;
            }
            Some(polled) => polled.chosen,
            None => {
                let is_idle = self.is_idle(outstanding, 0);
                let chosen = self.poll(app, &FtlFacts::of_lines(lines, is_idle));
                let time = self.time_of(self.engine.ended_ops());
                if is_timed && time > Nanos::ZERO {
                    let due = self.stations.enqueue(now, time, EngineWork::Victim).end;
                    self.apps[app.index()].polled = Some(PolledVictim { due, chosen });
                    self.has_polled = true;
                    return VictimDecision::None;
                }
                chosen
            }
        };
        let decision = lines.decision_of_rules(chosen);
        match decision {
            VictimDecision::Line(_) => {
                self.count(app, |app| app.victims += 1);
            }
            VictimDecision::Policy => {
                self.count(app, |app| app.policy_victims += 1);
            }
            VictimDecision::None => {}
        }
        decision
    }

    /// Runs the background rules of an application once. Returns the line that they choose.
    fn poll(&mut self, app: AppId, facts: &FtlFacts<'_>) -> Option<ChosenLine> {
        self.count(app, |app| app.polls += 1);
        let mut chosen = None;
        match self.engine.begin_background(app, facts as &dyn DriveFacts) {
            Some(step) => self.run(app, step, facts, &mut chosen),
            None => unreachable!("the context is free between two inputs"),
        };
        chosen
    }

    /// Checks the invariants of the engine.
    ///
    /// # Panics
    /// If one does not hold.
    pub(crate) fn check_invariants(&self) {
        self.engine.check_invariants();
        self.misses.check_invariants();
        self.fetches.check_invariants();
        let contexts = if fetches_any(self.engine.program()) { RULE_CONTEXTS } else { 0 };
        let in_use = self.fetches.in_use();
        assert_eq!(self.engine.free_contexts() + in_use, 1 + usize::from(contexts), "contexts");
    }
}

/// Returns the operations of each application whose rules may fetch a sector.
fn fetching_ops(verified: &VerifiedProgram) -> Vec<OpMask> {
    let apps = (0..verified.program().apps.len()).map(AppId::from_index);
    apps.map(|app| verified.fetching_ops(app)).collect()
}

/// Whether a program is for a drive whose sectors have names.
pub fn needs_names(verified: &VerifiedProgram) -> bool {
    let is_named =
        |feature| matches!(feature, RuleFeature::Names | RuleFeature::Tags | RuleFeature::Moved);
    verified.needs().iter().any(|need| is_named(need.feature))
}

/// Whether the rules of any application may fetch a sector.
fn fetches_any(verified: &VerifiedProgram) -> bool {
    fetching_ops(verified).iter().any(|ops| *ops != OpMask::NONE)
}
