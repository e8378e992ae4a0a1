//! [`TargetRules`]: rules of a target on the host. They decide about its requests and its victims, and the
//! FTL of the target executes that: the software rule engine of [Thesis15 ch. 7].
//!
//! The engine and the facts that rules decide from are those of a drive with rules. Invariant: an input
//! runs to its end before the next one begins, so that one context is enough.

mod config;
pub(super) mod requests;

use ftl::{ChosenLine, FtlFacts, VictimDecision, VictimLines};
use rules::{
    AppId, EngineOptions, InputOp, RuleAction, RuleCounters, RuleEngine, RuleId, RuleInput,
    RuleStep, RuleTimers, RuleVerdict, VerifiedProgram,
};
use time::Nanos;

pub use config::{TargetRulesConfig, TargetRulesError};

/// The application of all requests. A target has one.
const APP: AppId = AppId::new(0);

/// Operations after which a rule pauses. The target resumes it at once.
const PAUSE_OPS: u64 = 1 << 20;

/// Counters of the rules of a target, since its program was installed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetRuleStats {
    /// Each rule, in the order of the program.
    pub rules: Vec<NamedTargetRule>,
    /// Name of its only application.
    pub app: String,
    /// Requests that were inputs.
    pub inputs: u64,
    /// Requests that no rule matched, of each operation that has some.
    pub missed: Vec<TargetRuleMisses>,
    /// Operations of all inputs and polls, the matching of rules included.
    pub ops: u64,
    /// Polls of background rules for a victim.
    pub polls: u64,
    /// Polls of background rules by an idle target.
    pub idle_polls: u64,
    /// Runs of periodic rules.
    pub periodic: u64,
    /// Victims that a rule chose.
    pub victims: u64,
    /// Victims of the FTL's policy, because the host waited for space and no rule chose one.
    pub policy_victims: u64,
    /// Lines that were relocated although no space was needed, because a background rule or a periodic
    /// rule chose them.
    pub relocated: u64,
    /// Sectors of writes that rules placed in the stream `hot`.
    pub hot_sectors: u64,
}

/// Counters of a rule of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedTargetRule {
    /// Name of the rule.
    pub name: String,
    /// Its counters.
    pub counters: RuleCounters,
}

/// Requests of an operation that no rule matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetRuleMisses {
    /// The operation.
    pub op: InputOp,
    /// Requests.
    pub misses: u64,
    /// First sector of the last one.
    pub lba: u64,
    /// Sectors of the last one.
    pub sectors: u64,
}

impl TargetRuleStats {
    /// Returns the requests that no rule matched.
    pub fn miss_count(&self) -> u64 {
        self.missed.iter().map(|missed| missed.misses).sum()
    }

    /// Returns the difference to an earlier reading of the same program.
    #[must_use]
    pub fn since(&self, earlier: &TargetRuleStats) -> TargetRuleStats {
        let rules = self.rules.iter().enumerate().map(|(at, rule)| {
            let before = earlier.rules.get(at).map_or(RuleCounters::default(), |r| r.counters);
            let counters = RuleCounters {
                matches: rule.counters.matches - before.matches,
                faults: rule.counters.faults - before.faults,
                ops: rule.counters.ops - before.ops,
            };
            NamedTargetRule { name: rule.name.clone(), counters }
        });
        let missed = self.missed.iter().map(|missed| {
            let before = earlier.missed.iter().find(|before| before.op == missed.op);
            let misses = missed.misses - before.map_or(0, |before| before.misses);
            TargetRuleMisses { misses, ..*missed }
        });
        TargetRuleStats {
            rules: rules.collect(),
            app: self.app.clone(),
            inputs: self.inputs - earlier.inputs,
            missed: missed.filter(|missed| missed.misses > 0).collect(),
            ops: self.ops - earlier.ops,
            polls: self.polls - earlier.polls,
            idle_polls: self.idle_polls - earlier.idle_polls,
            periodic: self.periodic - earlier.periodic,
            victims: self.victims - earlier.victims,
            policy_victims: self.policy_victims - earlier.policy_victims,
            relocated: self.relocated - earlier.relocated,
            hot_sectors: self.hot_sectors - earlier.hot_sectors,
        }
    }
}

/// The rules of a target.
#[derive(Debug)]
pub(crate) struct TargetRules {
    engine: RuleEngine,
    timers: RuleTimers,
    /// The settings, without the program.
    settings: TargetRulesConfig,
    /// The counters that the engine does not have.
    stats: TargetRuleStats,
}

impl TargetRules {
    /// Installs a program at `now`. Its tables have zeros, or no keys.
    pub(super) fn new(
        verified: VerifiedProgram,
        config: &TargetRulesConfig,
        sector_bytes: u32,
        now: Nanos,
    ) -> TargetRules {
        let sector_bytes = sector_bytes as usize;
        let options = EngineOptions { contexts: 1, sector_bytes, pause_ops: PAUSE_OPS };
        let engine = RuleEngine::install(verified, options);
        let timers = RuleTimers::new(&engine, config.idle_poll, now);
        let settings = TargetRulesConfig { program: Vec::new(), ..*config };
        TargetRules { engine, timers, settings, stats: TargetRuleStats::default() }
    }

    /// Returns the settings, without the program.
    pub(super) fn settings(&self) -> &TargetRulesConfig {
        &self.settings
    }

    /// Returns the engine.
    pub(super) fn engine_mut(&mut self) -> &mut RuleEngine {
        &mut self.engine
    }

    /// Returns the counters.
    pub(super) fn stats(&self) -> TargetRuleStats {
        let declared = &self.engine.program().program().rules;
        let rules = declared.iter().zip(self.engine.counters());
        let named = |(rule, counters): (&rules::RuleDeclaration, RuleCounters)| NamedTargetRule {
            name: rule.name.clone(),
            counters,
        };
        let app = self.engine.program().program().apps.first();
        TargetRuleStats {
            rules: rules.map(named).collect(),
            app: app.map(|app| app.name.clone()).unwrap_or_default(),
            inputs: self.request_inputs(),
            ops: self.engine.totals().ops,
            ..self.stats.clone()
        }
    }

    /// Returns the inputs of requests: those of the engine, without the polls and the periodic rules.
    fn request_inputs(&self) -> u64 {
        let own = self.stats.polls + self.stats.idle_polls + self.stats.periodic;
        self.engine.totals().inputs - own
    }

    /// Returns the time at which the next rule is due that no request begins.
    #[inline]
    pub(super) fn next_at(&self) -> Nanos {
        self.timers.next_at()
    }

    /// Records a request that no rule matched.
    #[cold]
    fn miss(&mut self, input: &RuleInput) {
        let RuleInput { op, lba, sectors, .. } = *input;
        match self.stats.missed.iter_mut().find(|missed| missed.op == op) {
            Some(missed) => {
                *missed = TargetRuleMisses { misses: missed.misses + 1, lba, sectors, ..*missed };
            }
            None => self.stats.missed.push(TargetRuleMisses { op, misses: 1, lba, sectors }),
        }
    }

    /// Runs the input of a request to its end.
    fn decide(&mut self, input: &RuleInput, facts: &FtlFacts<'_>) -> RuleVerdict {
        match self.engine.begin_command(APP, input, facts) {
            Some(step) => self.run(step, facts, &mut None),
            None => unreachable!("the context is free between two inputs"),
        }
    }

    /// Runs an input to its end. The line of the first `move valid` is chosen.
    fn run(
        &mut self,
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
                RuleAction::Journal(_)
                | RuleAction::Fetch { .. }
                | RuleAction::Emit { .. }
                | RuleAction::Post { .. } => {
                    unreachable!("a program with {action:?} is not installed")
                }
            }
            step = self.engine.resume(context, facts);
        }
    }

    /// Runs the background rules once. Returns the line that they choose.
    fn run_background(&mut self, facts: &FtlFacts<'_>) -> Option<ChosenLine> {
        let mut chosen = None;
        match self.engine.begin_background(APP, facts) {
            Some(step) => self.run(step, facts, &mut chosen),
            None => unreachable!("the context is free between two inputs"),
        };
        chosen
    }

    /// Runs a periodic rule. Returns the line that it chooses.
    fn run_periodic(&mut self, rule: RuleId, facts: &FtlFacts<'_>) -> Option<ChosenLine> {
        let mut chosen = None;
        match self.engine.begin_periodic(rule, facts) {
            Some(step) => self.run(step, facts, &mut chosen),
            None => unreachable!("the context is free between two inputs"),
        };
        chosen
    }

    /// Chooses the victim of the FTL, which needs space. `is_idle` tells whether no request is
    /// outstanding.
    #[cold]
    pub(super) fn choose_victim(
        &mut self,
        is_idle: bool,
        lines: &VictimLines<'_>,
    ) -> VictimDecision {
        self.stats.polls += 1;
        let chosen = self.run_background(&FtlFacts::of_lines(lines, is_idle));
        let decision = lines.decision_of_rules(chosen);
        match decision {
            VictimDecision::Line(_) => self.stats.victims += 1,
            VictimDecision::Policy => self.stats.policy_victims += 1,
            VictimDecision::None => {}
        }
        decision
    }

    /// Checks the invariants of the engine.
    ///
    /// # Panics
    /// If one does not hold.
    pub(super) fn check_invariants(&self) {
        self.engine.check_invariants();
        assert_eq!(self.engine.free_contexts(), 1, "the context is free between two inputs");
    }
}
