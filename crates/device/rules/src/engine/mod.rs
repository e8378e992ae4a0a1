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
mod decision;
mod installed;
mod interpret;
mod matching;
mod symbolic;
mod tables;

use crate::ids::{AppId, ContextId, RuleId, TableId};
use crate::program::{CodeRange, RuleTrigger};
use crate::verify::VerifiedProgram;

pub use action::{
    DriveFacts, LineFacts, PlacementStream, RuleAction, RuleAddress, RuleInput, RuleStatus,
    RuleStep, RuleVerdict, TableChange,
};
use context::{Context, InputKind, InputOrigin, InputStart};
use installed::InstalledRules;
use interpret::RuleMachine;
use matching::MatchBegin;
use tables::TableState;
pub(crate) use tables::{durable_bytes, table_bytes};

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

/// Sums over all inputs that an engine has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineTotals {
    /// Inputs, polls of background rules included.
    pub inputs: u64,
    /// Operations, the matching of rules included.
    pub ops: u64,
}

impl EngineTotals {
    #[inline]
    fn add_input(&mut self, ops: u64) {
        self.inputs += 1;
        self.ops += ops;
    }
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
    installed: InstalledRules,
    contexts: Vec<Context>,
    free: Vec<ContextId>,
    counters: Vec<RuleCounters>,
    /// Sums without those of direct decisions.
    totals: EngineTotals,
    /// The sums of each application; empty if there is one.
    app_totals: Box<[EngineTotals]>,
    /// Operations of the input that ended last.
    ended_ops: u64,
    pause_ops: u64,
}

impl RuleEngine {
    /// Allocates the contexts and tables of a program. Tables have zeros, or no keys.
    pub fn install(verified: VerifiedProgram, options: EngineOptions) -> RuleEngine {
        let program = verified.program();
        let context = || Context::new(options.sector_bytes);
        RuleEngine {
            tables: program.tables.iter().map(TableState::new).collect(),
            durable: program.tables.iter().map(|table| table.is_durable).collect(),
            installed: InstalledRules::new(&verified),
            contexts: (0..options.contexts).map(|_| context()).collect(),
            free: (0..options.contexts).rev().map(ContextId::new).collect(),
            counters: vec![RuleCounters::default(); program.rules.len()],
            totals: EngineTotals::default(),
            app_totals: match program.apps.len() {
                0 | 1 => Box::default(),
                apps => vec![EngineTotals::default(); apps].into_boxed_slice(),
            },
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
    pub fn counters(&self) -> Vec<RuleCounters> {
        let mut counters = self.counters.clone();
        for decision in self.installed.decisions() {
            decision.count(decision.commands, &mut counters);
        }
        counters
    }

    /// Returns the sums over all inputs that have ended.
    pub fn totals(&self) -> EngineTotals {
        let mut totals = self.totals;
        for decision in self.installed.decisions() {
            totals.inputs += decision.commands;
            totals.ops += decision.commands * decision.ops;
        }
        totals
    }

    /// Returns the sums over the inputs of an application that have ended.
    pub fn app_totals(&self, app: AppId) -> EngineTotals {
        if self.app_totals.is_empty() {
            return self.totals();
        }
        let mut totals = self.app_totals.get(app.index()).copied().unwrap_or_default();
        for decision in self.installed.decisions_of(app) {
            totals.inputs += decision.commands;
            totals.ops += decision.commands * decision.ops;
        }
        totals
    }

    /// Adds an input that has ended to the sums.
    #[inline]
    fn add_input(&mut self, app: AppId, ops: u64) {
        self.totals.add_input(ops);
        if let Some(totals) = self.app_totals.get_mut(app.index()) {
            totals.add_input(ops);
        }
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

    /// Decides about a command of an application, if its rule has the drive execute all such commands as
    /// they are: reads at their own block, and writes that are mapped there, in the stream of the host.
    /// Returns whether that is so; else nothing has changed, and the command must
    /// [begin](RuleEngine::begin_command).
    #[inline(always)]
    pub fn decide_unchanged(&mut self, app: AppId, input: &RuleInput) -> bool {
        let Some(entry) = self.installed.command_mut(app, input.op) else { return false };
        let Some(tree) = &mut entry.direct else { return false };
        let Some(decision) = tree.find(input) else { return false };
        let is_unchanged = decision.is_unchanged(input, entry.map_len);
        if is_unchanged {
            self.ended_ops = decision.ops;
            decision.commands += 1;
        }
        is_unchanged
    }

    /// Decides about a command, if its end needs no execution of a rule.
    fn decide(&mut self, app: AppId, input: &RuleInput) -> Option<RuleVerdict> {
        let entry = self.installed.command_mut(app, input.op)?;
        let decision = entry.direct.as_mut()?.find(input)?;
        if let Some(verdict) = decision.verdict(input, entry.map_len) {
            self.ended_ops = decision.ops;
            decision.commands += 1;
            return Some(verdict);
        }
        self.ended_ops = decision.fault_ops();
        decision.count_fault(&mut self.counters);
        self.add_input(app, self.ended_ops);
        let status = RuleStatus::IndexOutOfRange;
        Some(RuleVerdict::Complete { status, value: 0 })
    }

    /// Matches a command of an application. Returns `None` if all contexts are in use and the command
    /// needs one: the drive retries after another input is done.
    #[inline]
    pub fn begin_command<F: DriveFacts + ?Sized>(
        &mut self,
        app: AppId,
        input: &RuleInput,
        facts: &F,
    ) -> Option<RuleStep> {
        match self.decide(app, input) {
            Some(verdict) => Some(RuleStep::Done(verdict)),
            None => self.match_command(app, input, facts),
        }
    }

    /// Tries the rules for a command.
    fn match_command<F: DriveFacts + ?Sized>(
        &mut self,
        app: AppId,
        input: &RuleInput,
        facts: &F,
    ) -> Option<RuleStep> {
        let id = *self.free.last()?;
        let start = self.installed.command(app, input.op).map(|entry| {
            let origin = InputOrigin { kind: InputKind::Command, app, map_len: entry.map_len };
            let (list, stated, pause_at) = (entry.list, entry.stated, self.pause_ops);
            InputStart { origin, list, stated, pause_at }
        });
        let none = || self.start_of(InputKind::Command, app, CodeRange::default(), 0);
        let start = start.unwrap_or_else(none);
        let context = &mut self.contexts[id.index()];
        context.begin(start);
        context.set_header(input);
        Some(self.begin(id, facts))
    }

    /// Returns the begin of an input of an application.
    fn start_of(&self, kind: InputKind, app: AppId, list: CodeRange, stated: u64) -> InputStart {
        let origin = InputOrigin { kind, app, map_len: self.installed.map_len(app) };
        InputStart { origin, list, stated, pause_at: self.pause_ops }
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
        let start = self.start_of(InputKind::Background, app, list, stated);
        let context = &mut self.contexts[id.index()];
        context.begin(start);
        context.set_no_header();
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
        let start = self.start_of(InputKind::Periodic, app, CodeRange::default(), stated);
        let context = &mut self.contexts[id.index()];
        context.begin(start);
        context.set_no_header();
        context.candidates.current = self.installed.position(rule);
        context.exec.used = 1;
        self.free.pop();
        Some(self.run(id, MatchBegin::Rule, facts))
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
        let start = self.start_of(InputKind::Moved, app, list, stated);
        let context = &mut self.contexts[id.index()];
        context.begin(start);
        context.set_header(input);
        Some(self.begin(id, facts))
    }

    #[inline]
    fn begin<F: DriveFacts + ?Sized>(&mut self, id: ContextId, facts: &F) -> RuleStep {
        self.free.pop();
        self.run(id, MatchBegin::Next, facts)
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

    /// As [`resume_with`](RuleEngine::resume_with). A whole sector is exchanged with the memory of an
    /// earlier one instead of being copied: the contents of `sector` are undefined afterwards.
    ///
    /// # Panics
    /// As `resume_with`.
    pub fn resume_with_sector<F: DriveFacts + ?Sized>(
        &mut self,
        id: ContextId,
        sector: &mut Box<[u8]>,
        facts: &F,
    ) -> RuleStep {
        let context = &mut self.contexts[id.index()];
        if sector.len() != context.page.len() {
            return self.resume_with(id, sector, facts);
        }
        assert!(context.fetches, "{id} does not wait for bytes");
        context.fetches = false;
        context.page_len = sector.len();
        std::mem::swap(&mut context.page, sector);
        self.resume_action(id, facts)
    }

    fn resume_action<F: DriveFacts + ?Sized>(&mut self, id: ContextId, facts: &F) -> RuleStep {
        let context = &mut self.contexts[id.index()];
        assert!(context.origin.kind != InputKind::Free, "{id} is free");
        context.exec.pause_at = context.exec.used + self.pause_ops;
        self.run(id, MatchBegin::Action, facts)
    }

    /// Ends an input whose action the drive could not execute, such as a fetch of a bad sector. The
    /// operations that it used are in the [sums](RuleEngine::totals).
    ///
    /// # Panics
    /// If the context is free.
    pub fn cancel(&mut self, id: ContextId) {
        let context = &mut self.contexts[id.index()];
        assert!(context.origin.kind != InputKind::Free, "{id} is free");
        context.origin.kind = InputKind::Free;
        let (app, used) = (context.origin.app, context.exec.used);
        self.add_input(app, used);
        self.free.push(id);
    }

    /// Returns the operations that an input has used so far, the matching of rules included.
    pub fn used_ops(&self, id: ContextId) -> u64 {
        self.contexts[id.index()].exec.used
    }

    /// Returns the fetched bytes of an input.
    pub fn fetched(&self, id: ContextId) -> &[u8] {
        let context = &self.contexts[id.index()];
        &context.page[..context.page_len]
    }

    /// Runs the rules of an input until they end or act.
    #[inline]
    fn run<F: DriveFacts + ?Sized>(
        &mut self,
        id: ContextId,
        begin: MatchBegin,
        facts: &F,
    ) -> RuleStep {
        let context = &mut self.contexts[id.index()];
        let program = self.verified.program();
        let machine = RuleMachine {
            code: &program.code,
            layouts: &program.layouts,
            rules: &self.installed,
            durable: &self.durable,
            tables: &mut self.tables,
            counters: &mut self.counters,
            id,
            origin: context.origin,
            candidates: &mut context.candidates,
            exec: &mut context.exec,
            registers: &mut context.registers,
            page: &context.page[..context.page_len],
            facts,
            step: RuleStep::Done(RuleVerdict::Finished),
        };
        let step = machine.run(begin);
        match &step {
            RuleStep::Do(_, action) => {
                context.fetches = matches!(action, RuleAction::Fetch { .. });
            }
            RuleStep::Done(_) => {
                let (used, stated) = (context.exec.used, context.stated);
                assert!(used <= stated, "an input used {used} operations, stated were {stated}");
                context.origin.kind = InputKind::Free;
                let app = context.origin.app;
                self.ended_ops = used;
                self.add_input(app, used);
                self.free.push(id);
            }
        }
        step
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

    /// Returns whether a set or a map has a key.
    ///
    /// # Errors
    /// [`RuleTableError`] if the application has no such set or map.
    pub fn contains(&self, app: AppId, table: TableId, key: u64) -> Result<bool, RuleTableError> {
        let declared = self.verified.program().tables.get(table.index());
        declared.filter(|declared| declared.app == app).ok_or(RuleTableError::Unknown)?;
        let state = &self.tables[table.index()];
        if state.is_hash() { Ok(state.has_key(key)) } else { Err(RuleTableError::OtherKind) }
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

    /// Calls `part` with the parts of the image of the durable tables, an offset and bytes each, that a
    /// change has changed: the image has all durable tables in the order of their declarations, and
    /// [`durable_bytes`](crate::RuleProgram::durable_bytes) bytes. The bytes are those of now.
    pub fn image_of(&self, change: &TableChange, mut part: impl FnMut(u64, &[u8])) {
        let (at, tables) = (change.table.index(), &self.verified.program().tables);
        let before = durable_bytes(&tables[..at]);
        self.tables[at].image_of(change.key, |offset, bytes| part(before + offset as u64, bytes));
    }

    /// Gives the durable tables the contents of an image, whose bytes behind the tables are ignored. If it
    /// is not an image of these tables, returns `false`, and all durable tables have zeros, or no keys.
    pub fn load_image(&mut self, image: &[u8]) -> bool {
        let declared = &self.verified.program().tables;
        let mut rest = image;
        let mut is_valid = true;
        for (table, declared) in self.tables.iter_mut().zip(declared) {
            let bytes = durable_bytes(std::slice::from_ref(declared));
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            if !declared.is_durable || bytes == 0 {
                continue;
            }
            let Some((own, behind)) = rest.split_at_checked(bytes) else {
                is_valid = false;
                break;
            };
            is_valid &= table.load_image(own);
            rest = behind;
        }
        if !is_valid {
            self.clear_durable();
        }
        is_valid
    }

    /// Sets all durable tables to zeros, or removes their keys.
    pub fn clear_durable(&mut self) {
        let tables = self.tables.iter_mut().zip(&self.durable);
        tables.filter(|(_, is_durable)| **is_durable).for_each(|(table, _)| table.clear());
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
        let used =
            self.contexts.iter().filter(|context| context.origin.kind != InputKind::Free).count();
        assert_eq!(used + self.free.len(), self.contexts.len(), "contexts");
        for id in &self.free {
            assert!(
                self.contexts[id.index()].origin.kind == InputKind::Free,
                "{id} is in use and free"
            );
        }
    }
}
