//! Tries the rules for an input, and runs the action of the one that applies.
//!
//! One loop runs conditions and actions, so that an input enters the interpreter once per step.

use crate::instruction::HeaderRegister;
use crate::program::InputOp;

use super::action::{DriveFacts, RuleStatus, RuleStep, RuleVerdict};
use super::context::InputKind;
use super::installed::InstalledRule;
use super::interpret::{CodeEnd, RuleMachine};

/// Where the rules of an input begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatchBegin {
    /// With the next candidate.
    Next,
    /// With the rule of the context, which is no candidate.
    Rule,
    /// In the action of the context's rule, at the context's instruction.
    Action,
}

/// A part of a rule that runs.
#[derive(Clone, Copy, Debug)]
struct RunningPart {
    rule: InstalledRule,
    is_condition: bool,
    /// The first instruction.
    pc: u32,
}

impl<F: DriveFacts + ?Sized> RuleMachine<'_, F> {
    /// Runs rules until the input has a step.
    #[inline]
    pub(super) fn run(mut self, begin: MatchBegin) -> RuleStep {
        self.run_rules(begin);
        self.step
    }

    #[inline(never)]
    fn run_rules(&mut self, begin: MatchBegin) {
        // In a register, not in the context.
        let mut used = self.exec.used;
        let first = match begin {
            MatchBegin::Next => self.next_rule(&mut used),
            MatchBegin::Rule => Some(self.condition()),
            MatchBegin::Action => {
                let rule = *self.rules.at(self.candidates.current);
                Some(RunningPart { rule, is_condition: false, pc: self.exec.pc })
            }
        };
        if let Some(first) = first {
            self.run_parts(first, &mut used);
        }
        self.exec.used = used;
    }

    /// Runs parts of rules until the input has a step.
    #[inline(always)]
    fn run_parts(&mut self, first: RunningPart, used: &mut u64) {
        let mut part = first;
        loop {
            let RunningPart { rule, is_condition, pc } = part;
            // Conditions are short, and have no state to resume: they do not pause.
            let (range, pause_at) = match is_condition {
                true => (rule.condition, u64::MAX),
                false => (rule.action, self.exec.pause_at),
            };
            let code = &self.code[range.start as usize..][..range.len as usize];
            let before = *used;
            let end = self.execute(code, pc, pause_at, used);
            self.counters[rule.rule.index()].ops += *used - before;
            let next = match end {
                CodeEnd::Step => return,
                CodeEnd::Matched(true) => Some(self.action(rule)),
                // A condition that faults is false.
                CodeEnd::Matched(false) | CodeEnd::Continue => self.next_rule(used),
                CodeEnd::Fault(_) if is_condition => self.next_rule(used),
                CodeEnd::Again if self.candidates.hops < rule.hops => {
                    self.match_again();
                    self.next_rule(used)
                }
                CodeEnd::Again => return self.fault(&rule, RuleStatus::HopLimit),
                CodeEnd::Fault(status) => return self.fault(&rule, status),
            };
            match next {
                Some(next) => part = next,
                None => return,
            }
        }
    }

    /// Begins the next candidate. If there is none, the input is finished.
    #[inline(always)]
    fn next_rule(&mut self, used: &mut u64) -> Option<RunningPart> {
        let candidates = &mut *self.candidates;
        if candidates.next == candidates.end {
            self.step = RuleStep::Done(self.unmatched());
            return None;
        }
        candidates.current = candidates.next;
        candidates.next += 1;
        *used += 1;
        Some(self.condition())
    }

    /// Begins the condition of the context's rule, or the action of one without a condition.
    #[inline(always)]
    fn condition(&mut self) -> RunningPart {
        let rule = *self.rules.at(self.candidates.current);
        match rule.condition.len {
            0 => self.action(rule),
            _ => RunningPart { rule, is_condition: true, pc: 0 },
        }
    }

    /// Begins the action of a rule that applies.
    #[inline(always)]
    fn action(&mut self, rule: InstalledRule) -> RunningPart {
        self.counters[rule.rule.index()].matches += 1;
        RunningPart { rule, is_condition: false, pc: 0 }
    }

    /// Matches the changed input from the first rule on.
    fn match_again(&mut self) {
        self.candidates.hops += 1;
        self.exec.map_change = None;
        let op = self.registers[HeaderRegister::Op as usize];
        self.candidates.restart(self.rules.command_list(self.origin.app, op));
    }

    /// Ends the input, because an action faulted.
    fn fault(&mut self, rule: &InstalledRule, status: RuleStatus) {
        self.counters[rule.rule.index()].faults += 1;
        self.complete(status, 0);
    }

    /// Returns the verdict on an input that no rule decides about.
    fn unmatched(&self) -> RuleVerdict {
        if self.origin.kind != InputKind::Command {
            return RuleVerdict::Finished;
        }
        let passes = |op: InputOp| op.passes_through() && op as u64 == self.exec.origin;
        match [InputOp::Trim, InputOp::Flush].into_iter().any(passes) {
            true => RuleVerdict::PassThrough,
            false => RuleVerdict::Miss,
        }
    }
}
