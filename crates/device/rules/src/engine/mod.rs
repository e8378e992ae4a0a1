//! [`RuleEngine`]: matches inputs with the rules of a verified program.
//!
//! An input runs in a context, until its rules end or the drive must act. Contexts and tables are
//! allocated by [`RuleEngine::install`]. Between two actions an input runs alone: rules of other
//! inputs see a table before or after it, never between.
//!
//! A condition that faults (an index past the end) is false. An action that faults ends its input with
//! a status; state that it changed before stays changed.

mod action;
mod context;
mod interpret;
mod tables;

use crate::ids::{AppId, ContextId, RuleId, TableId};
use crate::instruction::HeaderRegister;
use crate::program::{CodeRange, RuleTrigger, TableKind};
use crate::verify::VerifiedProgram;

pub use action::{
    DriveFacts, LineFacts, PlacementStream, RuleAction, RuleAddress, RuleInput, RuleStatus,
    RuleStep, RuleVerdict, TableChange,
};
use context::{Context, InputKind};
use interpret::{CodeEnd, RuleMachine};
use tables::TableState;
pub(crate) use tables::table_bytes;

/// Sizes of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Inputs at a time.
    pub contexts: u16,
    /// Bytes of a sector: those that a fetch returns.
    pub sector_bytes: usize,
    /// Operations after which a loop pauses, so that the drive can do other work.
    pub pause_ops: u64,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions { contexts: 256, sector_bytes: 4096, pause_ops: 4096 }
    }
}

/// Counters of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounters {
    /// Inputs that it matched.
    pub matches: u64,
    /// Inputs that it ended with a fault.
    pub faults: u64,
    /// Operations that it used.
    pub ops: u64,
}

/// A table that cannot do what the caller requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleTableError {
    /// The application has no such table.
    #[error("the application has no such table")]
    Unknown,
    /// The table is of another kind.
    #[error("the table is of another kind")]
    OtherKind,
    /// The index or the key is too large.
    #[error("the index or the key is past the end of the table")]
    OutOfRange,
    /// The table has no space for the key.
    #[error("the table is full: remove keys, or install it with a larger capacity")]
    Full,
}

/// The engine of one installed program.
#[derive(Clone, Debug)]
pub struct RuleEngine {
    verified: VerifiedProgram,
    tables: Vec<TableState>,
    durable: Vec<bool>,
    /// Addresses in the map of each application, and none for global rules.
    map_lens: Vec<u64>,
    contexts: Vec<Context>,
    free: Vec<ContextId>,
    counters: Vec<RuleCounters>,
    /// Operations of the input that ended last.
    ended_ops: u64,
    pause_ops: u64,
}

impl RuleEngine {
    /// Allocates the contexts and tables of a program. Tables have zeros, or no keys.
    pub fn install(verified: VerifiedProgram, options: EngineOptions) -> RuleEngine {
        let program = verified.program();
        let map_len = |app: AppId| {
            let map = |table: &&crate::TableDeclaration| {
                table.app == app && table.kind == TableKind::Address
            };
            program.tables.iter().find(map).map_or(0, |table| table.capacity)
        };
        let context = || Context::new(options.sector_bytes);
        RuleEngine {
            tables: program.tables.iter().map(TableState::new).collect(),
            durable: program.tables.iter().map(|table| table.is_durable).collect(),
            map_lens: (0..program.apps.len()).map(|app| map_len(AppId::from_index(app))).collect(),
            contexts: (0..options.contexts).map(|_| context()).collect(),
            free: (0..options.contexts).rev().map(ContextId::new).collect(),
            counters: vec![RuleCounters::default(); program.rules.len()],
            ended_ops: 0,
            pause_ops: options.pause_ops,
            verified,
        }
    }

    /// Returns the program.
    pub fn program(&self) -> &VerifiedProgram {
        &self.verified
    }

    /// Returns the counters of each rule.
    pub fn counters(&self) -> &[RuleCounters] {
        &self.counters
    }

    /// Returns the operations of the input that ended last, the matching of rules included; 0 before
    /// the first.
    #[inline]
    pub fn ended_ops(&self) -> u64 {
        self.ended_ops
    }

    /// Returns the number of inputs that can begin.
    pub fn free_contexts(&self) -> usize {
        self.free.len()
    }

    /// Returns the periodic rules with their periods in nanoseconds. The drive begins them.
    pub fn periodic_rules(&self) -> impl Iterator<Item = (RuleId, u64)> + '_ {
        let rules = self.verified.program().rules.iter().enumerate();
        rules.filter_map(|(at, rule)| match rule.trigger {
            RuleTrigger::Every { period_ns } => Some((RuleId::from_index(at), period_ns)),
            _ => None,
        })
    }

    /// Matches a command of an application. Returns `None` if all contexts are in use: the drive
    /// retries after another input is done.
    #[inline]
    pub fn begin_command<F: DriveFacts + ?Sized>(
        &mut self,
        app: AppId,
        input: &RuleInput,
        facts: &F,
    ) -> Option<RuleStep> {
        let id = *self.free.last()?;
        let list = self.verified.index().command(app, input.op as u64).unwrap_or_default();
        let stated = self.verified.command_cost(app, input.op);
        let context = &mut self.contexts[id.index()];
        context.begin(InputKind::Command, app, list, stated);
        context.set_header(input);
        Some(self.begin(id, facts))
    }

    /// Matches the background rules of an application, or of [`AppId::GLOBAL`], once. Returns `None`
    /// if all contexts are in use.
    pub fn begin_background<F: DriveFacts + ?Sized>(
        &mut self,
        app: AppId,
        facts: &F,
    ) -> Option<RuleStep> {
        let id = *self.free.last()?;
        let list = self.verified.index().background(app).unwrap_or_default();
        let stated = self.verified.background_cost(app);
        self.contexts[id.index()].begin(InputKind::Background, app, list, stated);
        Some(self.begin(id, facts))
    }

    /// Runs a periodic rule. Returns `None` if all contexts are in use.
    pub fn begin_periodic<F: DriveFacts + ?Sized>(
        &mut self,
        rule: RuleId,
        facts: &F,
    ) -> Option<RuleStep> {
        let id = *self.free.last()?;
        let declared = self.verified.program().rules.get(rule.index())?;
        let (app, stated) = (declared.app, self.verified.rule_cost(rule) + 1);
        let context = &mut self.contexts[id.index()];
        context.begin(InputKind::Periodic, app, CodeRange::default(), stated);
        context.candidates.rule = rule;
        context.exec.used = 1;
        context.exec.pause_at = self.pause_ops;
        self.free.pop();
        match self.matches(id, rule, facts) {
            true => {
                self.start_action(id, rule);
                Some(self.run_action(id, facts))
            }
            false => Some(self.finish(id, RuleVerdict::Finished)),
        }
    }

    /// Matches the rules for moved sectors: `input` has the old name, the new name and the tag.
    /// Returns `None` if all contexts are in use.
    ///
    /// The drive keeps the old copy readable unless the verdict is [`RuleVerdict::Finished`] or
    /// completes with [`RuleStatus::Ok`].
    pub fn begin_moved<F: DriveFacts + ?Sized>(
        &mut self,
        app: AppId,
        input: &RuleInput,
        facts: &F,
    ) -> Option<RuleStep> {
        let id = *self.free.last()?;
        let list = self.verified.index().moved(app).unwrap_or_default();
        let stated = self.verified.moved_cost(app);
        let context = &mut self.contexts[id.index()];
        context.begin(InputKind::Moved, app, list, stated);
        context.set_header(input);
        Some(self.begin(id, facts))
    }

    #[inline]
    fn begin<F: DriveFacts + ?Sized>(&mut self, id: ContextId, facts: &F) -> RuleStep {
        self.free.pop();
        self.contexts[id.index()].exec.pause_at = self.pause_ops;
        self.match_next(id, facts)
    }

    /// Resumes a rule after its action was executed.
    ///
    /// # Panics
    /// If the context is free, or waits for fetched bytes.
    pub fn resume<F: DriveFacts + ?Sized>(&mut self, id: ContextId, facts: &F) -> RuleStep {
        assert!(!self.contexts[id.index()].fetches, "{id} waits for bytes");
        self.resume_action(id, facts)
    }

    /// Resumes a rule with the bytes that it fetched; those behind a sector are ignored.
    ///
    /// # Panics
    /// If the context is free, or does not wait for bytes.
    pub fn resume_with<F: DriveFacts + ?Sized>(
        &mut self,
        id: ContextId,
        bytes: &[u8],
        facts: &F,
    ) -> RuleStep {
        let context = &mut self.contexts[id.index()];
        assert!(context.fetches, "{id} does not wait for bytes");
        context.fetches = false;
        context.page_len = bytes.len().min(context.page.len());
        context.page[..context.page_len].copy_from_slice(&bytes[..context.page_len]);
        self.resume_action(id, facts)
    }

    fn resume_action<F: DriveFacts + ?Sized>(&mut self, id: ContextId, facts: &F) -> RuleStep {
        let context = &mut self.contexts[id.index()];
        assert!(context.kind != InputKind::Free, "{id} is free");
        context.exec.pause_at = context.exec.used + self.pause_ops;
        self.run_action(id, facts)
    }

    /// Ends an input whose action the drive could not execute, such as a fetch of a bad sector.
    ///
    /// # Panics
    /// If the context is free.
    pub fn cancel(&mut self, id: ContextId) {
        let context = &mut self.contexts[id.index()];
        assert!(context.kind != InputKind::Free, "{id} is free");
        context.kind = InputKind::Free;
        self.free.push(id);
    }

    /// Returns the fetched bytes of an input.
    pub fn fetched(&self, id: ContextId) -> &[u8] {
        let context = &self.contexts[id.index()];
        &context.page[..context.page_len]
    }

    /// Tries rules from the next candidate on.
    #[inline]
    fn match_next<F: DriveFacts + ?Sized>(&mut self, id: ContextId, facts: &F) -> RuleStep {
        loop {
            let context = &mut self.contexts[id.index()];
            let candidates = &mut context.candidates;
            if candidates.next == candidates.end {
                let verdict = Self::unmatched(context);
                return self.finish(id, verdict);
            }
            let rule = self.verified.index().order[candidates.next as usize];
            candidates.next += 1;
            candidates.rule = rule;
            context.exec.used += 1;
            if self.matches(id, rule, facts) {
                self.start_action(id, rule);
                return self.run_action(id, facts);
            }
        }
    }

    fn unmatched(context: &Context) -> RuleVerdict {
        if context.kind != InputKind::Command {
            return RuleVerdict::Finished;
        }
        let passes = |op: crate::InputOp| op.passes_through() && op as u64 == context.exec.origin;
        match [crate::InputOp::Trim, crate::InputOp::Flush].into_iter().any(passes) {
            true => RuleVerdict::PassThrough,
            false => RuleVerdict::Miss,
        }
    }

    /// Whether a rule's condition is true.
    #[inline]
    fn matches<F: DriveFacts + ?Sized>(&mut self, id: ContextId, rule: RuleId, facts: &F) -> bool {
        let condition = self.verified.program().rules[rule.index()].condition;
        if condition.len == 0 {
            return true;
        }
        let context = &mut self.contexts[id.index()];
        let pause_at = context.exec.pause_at;
        (context.exec.pc, context.exec.part_start) = (condition.start, condition.start);
        // Conditions are short, and have no state to resume.
        context.exec.pause_at = u64::MAX;
        let used = context.exec.used;
        let flow = self.run_code(id, facts);
        let exec = &mut self.contexts[id.index()].exec;
        exec.pause_at = pause_at;
        self.counters[rule.index()].ops += exec.used - used;
        matches!(flow, CodeEnd::Matched(true))
    }

    #[inline]
    fn start_action(&mut self, id: ContextId, rule: RuleId) {
        let action = self.verified.program().rules[rule.index()].action;
        let context = &mut self.contexts[id.index()];
        (context.exec.pc, context.exec.part_start) = (action.start, action.start);
        self.counters[rule.index()].matches += 1;
    }

    /// Runs the code of a context until it ends, acts or faults.
    #[inline]
    fn run_code<F: DriveFacts + ?Sized>(&mut self, id: ContextId, facts: &F) -> CodeEnd {
        let context = &mut self.contexts[id.index()];
        let program = self.verified.program();
        RuleMachine {
            code: &program.code,
            layouts: &program.layouts,
            durable: &self.durable,
            tables: &mut self.tables,
            map_len: self.map_lens.get(context.app.index()).copied().unwrap_or(0),
            app: context.app,
            exec: &mut context.exec,
            registers: &mut context.registers,
            page: &context.page[..context.page_len],
            facts,
        }
        .run()
    }

    /// Runs the action of a context's rule.
    #[inline]
    fn run_action<F: DriveFacts + ?Sized>(&mut self, id: ContextId, facts: &F) -> RuleStep {
        let used = self.contexts[id.index()].exec.used;
        let flow = self.run_code(id, facts);
        let context = &mut self.contexts[id.index()];
        let rule = context.candidates.rule;
        let counters = &mut self.counters[rule.index()];
        counters.ops += context.exec.used - used;
        match flow {
            CodeEnd::Act(action) => {
                context.fetches = matches!(action, RuleAction::Fetch { .. });
                RuleStep::Do(id, action)
            }
            CodeEnd::Verdict(verdict) => self.finish(id, verdict),
            CodeEnd::Continue => self.match_next(id, facts),
            CodeEnd::Again => {
                if context.candidates.hops >= self.verified.program().rules[rule.index()].hops {
                    counters.faults += 1;
                    return self.fault(id, RuleStatus::HopLimit);
                }
                context.candidates.hops += 1;
                context.exec.map_change = None;
                let op = context.registers[HeaderRegister::Op as usize];
                let list = self.verified.index().command(context.app, op).unwrap_or_default();
                context.candidates.restart(list);
                self.match_next(id, facts)
            }
            CodeEnd::Fault(status) => {
                counters.faults += 1;
                self.fault(id, status)
            }
            CodeEnd::Matched(_) => unreachable!("an action has no match"),
        }
    }

    fn fault(&mut self, id: ContextId, status: RuleStatus) -> RuleStep {
        self.finish(id, RuleVerdict::Complete { status, value: 0 })
    }

    #[inline]
    fn finish(&mut self, id: ContextId, verdict: RuleVerdict) -> RuleStep {
        let context = &mut self.contexts[id.index()];
        let (used, stated) = (context.exec.used, context.stated);
        assert!(used <= stated, "an input used {used} operations, stated were {stated}");
        context.kind = InputKind::Free;
        self.ended_ops = used;
        self.free.push(id);
        RuleStep::Done(verdict)
    }

    fn own_table(&mut self, app: AppId, table: TableId) -> Result<&mut TableState, RuleTableError> {
        let declared = self.verified.program().tables.get(table.index());
        match declared.filter(|declared| declared.app == app) {
            Some(_) => Ok(&mut self.tables[table.index()]),
            None => Err(RuleTableError::Unknown),
        }
    }

    /// Returns an element of an array, or the value of a key of a map: 0 if it is absent.
    ///
    /// # Errors
    /// [`RuleTableError`] if the application has no such table or the index is too large.
    pub fn load(&self, app: AppId, table: TableId, key: u64) -> Result<u64, RuleTableError> {
        let declared = self.verified.program().tables.get(table.index());
        declared.filter(|declared| declared.app == app).ok_or(RuleTableError::Unknown)?;
        self.tables[table.index()].load(key).ok_or(RuleTableError::OutOfRange)
    }

    /// Stores an element of an array, or the value of a key of a map. Returns the change of a durable
    /// table, which the drive records.
    ///
    /// # Errors
    /// [`RuleTableError`] if the application has no such table, the index or the key is too large, or
    /// the table is full.
    pub fn store(
        &mut self,
        app: AppId,
        table: TableId,
        key: u64,
        value: u64,
    ) -> Result<Option<TableChange>, RuleTableError> {
        let is_durable = self.durable.get(table.index()).copied().unwrap_or(false);
        let state = self.own_table(app, table)?;
        let changed = state.store(key, value)?;
        let value = Some(state.stored(value));
        Ok((changed && is_durable).then_some(TableChange { table, key, value }))
    }

    /// Adds a key to a set, as [`store`](RuleEngine::store) does to a map.
    ///
    /// # Errors
    /// As [`store`](RuleEngine::store).
    pub fn insert(
        &mut self,
        app: AppId,
        table: TableId,
        key: u64,
    ) -> Result<Option<TableChange>, RuleTableError> {
        if !self.own_table(app, table)?.is_hash() {
            return Err(RuleTableError::OtherKind);
        }
        self.store(app, table, key, 0)
    }

    /// Removes a key of a set or a map. Returns the change of a durable table.
    ///
    /// # Errors
    /// [`RuleTableError`] if the application has no such set or map.
    pub fn remove(
        &mut self,
        app: AppId,
        table: TableId,
        key: u64,
    ) -> Result<Option<TableChange>, RuleTableError> {
        let is_durable = self.durable.get(table.index()).copied().unwrap_or(false);
        let state = self.own_table(app, table)?;
        if !state.is_hash() {
            return Err(RuleTableError::OtherKind);
        }
        let changed = state.remove(key);
        Ok((changed && is_durable).then_some(TableChange { table, key, value: None }))
    }

    /// Applies a journaled change, as the drive does when it recovers. A change that does not fit the
    /// installed tables is ignored.
    pub fn restore(&mut self, change: &TableChange) {
        let at = change.table.index();
        if !self.durable.get(at).copied().unwrap_or(false) {
            return;
        }
        match change.value {
            // A change that the table cannot take was never made by it.
            Some(value) => drop(self.tables[at].store(change.key, value)),
            None => drop(self.tables[at].remove(change.key)),
        }
    }

    /// Sets all tables that are not durable to zeros, or removes their keys, as a power cut does.
    pub fn clear_volatile(&mut self) {
        let tables = self.tables.iter_mut().zip(&self.durable);
        tables.filter(|(_, is_durable)| !**is_durable).for_each(|(table, _)| table.clear());
    }

    /// Checks the engine's invariants.
    ///
    /// # Panics
    /// If a context is neither free nor in use.
    pub fn check_invariants(&self) {
        let used = self.contexts.iter().filter(|context| context.kind != InputKind::Free).count();
        assert_eq!(used + self.free.len(), self.contexts.len(), "contexts");
        for id in &self.free {
            assert!(self.contexts[id.index()].kind == InputKind::Free, "{id} is in use and free");
        }
    }
}
