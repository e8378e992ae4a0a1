//! [`verify`]: checks a program against a grant.
//!
//! Everything that the engine relies on is checked here, whatever the sender checked before: units,
//! tables and their memory, permissions, types and definite assignment of registers, jumps, loops,
//! unique matches, and costs. What depends on values is checked when it runs: indices, the fetched
//! bytes, full tables, hops, and the host's buffer.

mod error;
mod flow;

use crate::engine::table_bytes;
use crate::grant::RuleGrant;
use crate::ids::{AppId, RuleId};
use crate::instruction::RuleOp;
use crate::program::{
    AppDeclaration, CodeRange, InputOp, OpMask, ProgramLimits, RuleDeclaration, RuleProgram,
    RuleTrigger, TableKind,
};

pub use error::{CostStep, RuleProblem, VerifyError};
use flow::{PartError, PartSummary, RulePart, RulePartCheck};

/// A program that was verified. Only [`verify`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedProgram {
    program: RuleProgram,
    index: RuleIndex,
    costs: StatedCosts,
}

/// Rules in the order in which they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleIndex {
    /// Rules of all lists.
    pub(crate) order: Vec<RuleId>,
    /// For each application and operation, the list of command rules.
    commands: Vec<CodeRange>,
    /// For each application the list of background rules; behind the last, those of global rules.
    background: Vec<CodeRange>,
    /// For each application, the list of rules for moved sectors.
    moved: Vec<CodeRange>,
}

/// Worst-case costs, in operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct StatedCosts {
    /// Condition and action of each rule.
    rules: Vec<u64>,
    /// Commands, for each application and operation.
    commands: Vec<u64>,
    /// Polls of background rules.
    background: Vec<u64>,
    /// Moved sectors.
    moved: Vec<u64>,
}

impl RuleIndex {
    fn build(program: &RuleProgram) -> RuleIndex {
        let mut by_priority: Vec<RuleId> =
            (0..program.rules.len()).map(RuleId::from_index).collect();
        by_priority.sort_by_key(|rule| std::cmp::Reverse(program.rules[rule.index()].priority));
        let mut index = RuleIndex {
            order: Vec::new(),
            commands: Vec::new(),
            background: Vec::new(),
            moved: Vec::new(),
        };
        let mut list = |is_in: &dyn Fn(&RuleDeclaration) -> bool| {
            let start = index.order.len() as u32;
            let rules = by_priority.iter().filter(|id| is_in(&program.rules[id.index()]));
            index.order.extend(rules.copied());
            CodeRange { start, len: index.order.len() as u32 - start }
        };
        let apps = || (0..program.apps.len()).map(AppId::from_index);
        for app in apps() {
            for code in 0..InputOp::CODES {
                index.commands.push(list(&|rule: &RuleDeclaration| {
                    rule.app == app
                        && rule.trigger == RuleTrigger::Command
                        && rule.ops.0 >> code & 1 == 1
                }));
            }
        }
        for app in apps().chain([AppId::GLOBAL]) {
            index.background.push(list(&|rule: &RuleDeclaration| {
                rule.app == app && rule.trigger == RuleTrigger::Background
            }));
        }
        for app in apps() {
            index.moved.push(list(&|rule: &RuleDeclaration| {
                rule.app == app && rule.trigger == RuleTrigger::Moved
            }));
        }
        index
    }

    pub(crate) fn command(&self, app: AppId, op: u64) -> Option<CodeRange> {
        self.commands.get(app.index() * InputOp::CODES + op as usize).copied()
    }

    /// Returns the background rules of an application, or the global ones.
    pub(crate) fn background(&self, app: AppId) -> Option<CodeRange> {
        self.background.get(background_slot(app, self.background.len())).copied()
    }

    pub(crate) fn moved(&self, app: AppId) -> Option<CodeRange> {
        self.moved.get(app.index()).copied()
    }

    pub(crate) fn rules(&self, list: CodeRange) -> &[RuleId] {
        &self.order[list.start as usize..(list.start + list.len) as usize]
    }
}

/// Returns where a list of background rules is; that of global rules is the last.
fn background_slot(app: AppId, lists: usize) -> usize {
    match app {
        AppId::GLOBAL => lists - 1,
        app if app.index() + 1 < lists => app.index(),
        _ => lists,
    }
}

impl VerifiedProgram {
    /// Returns the program.
    pub fn program(&self) -> &RuleProgram {
        &self.program
    }

    pub(crate) fn index(&self) -> &RuleIndex {
        &self.index
    }

    /// Returns the rules that a command is matched with, in order.
    pub fn command_rules(&self, app: AppId, op: InputOp) -> &[RuleId] {
        self.index.command(app, op as u64).map_or(&[], |list| self.index.rules(list))
    }

    /// Returns the background rules of an application or of [`AppId::GLOBAL`], in order.
    pub fn background_rules(&self, app: AppId) -> &[RuleId] {
        self.index.background(app).map_or(&[], |list| self.index.rules(list))
    }

    /// Returns the rules that a moved sector is matched with, in order.
    pub fn moved_rules(&self, app: AppId) -> &[RuleId] {
        self.index.moved(app).map_or(&[], |list| self.index.rules(list))
    }

    /// Returns the operations of a command in the worst case, all hops included.
    pub fn command_cost(&self, app: AppId, op: InputOp) -> u64 {
        let at = app.index() * InputOp::CODES + op as usize;
        self.costs.commands.get(at).copied().unwrap_or(0)
    }

    /// Returns the operations of a poll of background rules in the worst case.
    pub fn background_cost(&self, app: AppId) -> u64 {
        let costs = &self.costs.background;
        costs.get(background_slot(app, costs.len())).copied().unwrap_or(0)
    }

    /// Returns the operations of a moved sector in the worst case.
    pub fn moved_cost(&self, app: AppId) -> u64 {
        self.costs.moved.get(app.index()).copied().unwrap_or(0)
    }

    /// Returns the operations of a rule in the worst case: its condition and its action, once.
    pub fn rule_cost(&self, rule: RuleId) -> u64 {
        self.costs.rules.get(rule.index()).copied().unwrap_or(0)
    }

    /// Returns the bytes that a table takes in the engine.
    pub fn table_bytes(&self, table: crate::TableId) -> u64 {
        self.program.tables.get(table.index()).map_or(0, table_bytes)
    }
}

/// Verifies a program: it does nothing that the grant does not allow.
///
/// # Errors
/// [`VerifyError`] with the first problem.
pub fn verify(mut program: RuleProgram, grant: &RuleGrant) -> Result<VerifiedProgram, VerifyError> {
    limits(&program)?;
    names(&program)?;
    apps(&program, grant)?;
    records(&program)?;
    tables(&program, grant)?;
    let mut summaries = Vec::with_capacity(program.rules.len());
    for rule in &program.rules {
        summaries.push(RuleSummary::of(&program, rule, grant)?);
    }
    let index = RuleIndex::build(&program);
    unique_matches(&program, &index)?;
    let costs = Costs { program: &program, index: &index, rules: &summaries, grant }.state()?;
    for at in 0..program.code.len() {
        let cost = flow::cost_of(&program, &program.code[at]);
        program.code[at].cost = cost;
    }
    Ok(VerifiedProgram { program, index, costs })
}

fn limits(program: &RuleProgram) -> Result<(), VerifyError> {
    let max = ProgramLimits::MAX;
    for (part, count, limit) in [
        ("applications", program.apps.len(), max.apps),
        ("record layouts", program.layouts.len(), max.layouts),
        ("tables", program.tables.len(), max.tables),
        ("rules", program.rules.len(), max.rules),
        ("instructions", program.code.len(), max.instructions),
    ] {
        if count > limit {
            let (count, limit) = (count as u64, limit as u64);
            return Err(VerifyError::Limit { part, count, limit });
        }
    }
    Ok(())
}

/// Checks that no two applications, records, tables or rules have one name.
fn names(program: &RuleProgram) -> Result<(), VerifyError> {
    fn unique<'a>(
        part: &'static str,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<(), VerifyError> {
        let mut names: Vec<&str> = names.map(String::as_str).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(VerifyError::DuplicateName { part, name: pair[0].to_owned() }),
            None => Ok(()),
        }
    }
    unique("applications", program.apps.iter().map(|app| &app.name))?;
    unique("records", program.layouts.iter().map(|layout| &layout.name))?;
    unique("tables", program.tables.iter().map(|table| &table.name))?;
    unique("rules", program.rules.iter().map(|rule| &rule.name))
}

fn apps(program: &RuleProgram, grant: &RuleGrant) -> Result<(), VerifyError> {
    for (at, app) in program.apps.iter().enumerate() {
        let (name, first, last) = (|| app.name.clone(), app.first_unit, app.last_unit);
        if first > last || last >= grant.units {
            return Err(VerifyError::Units { app: name(), first, last, units: grant.units });
        }
        let is_granted = grant.apps.as_ref().is_none_or(|granted| {
            let own = granted.iter().find(|granted| granted.name == app.name);
            own.is_some_and(|own| own.first_unit <= first && last <= own.last_unit)
        });
        if !is_granted {
            return Err(VerifyError::AppNotGranted { app: name(), first, last });
        }
        let available = grant.unit_sectors.saturating_mul(u64::from(last - first) + 1);
        let available = app.quota_of(available);
        if app.sectors > available {
            let sectors = app.sectors;
            return Err(VerifyError::Sectors { app: name(), sectors, available });
        }
        let shares = |other: &&AppDeclaration| other.first_unit <= last && first <= other.last_unit;
        let differs =
            |other: &&AppDeclaration| (other.first_unit, other.last_unit) != (first, last);
        if let Some(other) = program.apps[..at].iter().filter(shares).find(differs) {
            return Err(VerifyError::SharedUnits { first: other.name.clone(), second: name() });
        }
    }
    program.apps.iter().try_for_each(|app| {
        let problem = quota_problem(app, &program.apps);
        problem.map_or(Ok(()), |problem| Err(VerifyError::Quota { app: app.name.clone(), problem }))
    })
}

/// Returns the problem with the quota of an application among others, which share all of their units with it
/// or none.
fn quota_problem(app: &AppDeclaration, apps: &[AppDeclaration]) -> Option<&'static str> {
    let sharing = || apps.iter().filter(|other| other.first_unit == app.first_unit);
    let whole = u64::from(AppDeclaration::WHOLE_PPM);
    match (app.is_thin(), sharing().count()) {
        (false, 1) => None,
        (false, _) => Some("others share its parallel units: it needs a quota"),
        (true, 1) => {
            Some("no other application has its parallel units: all of their space is its own")
        }
        (true, _) if app.quota_ppm < AppDeclaration::QUOTA_PPM_MIN => Some("it is below 0.001"),
        (true, _) => {
            let sum: u64 = sharing().map(|other| u64::from(other.quota_ppm)).sum();
            (sum > whole).then_some("the quotas of its parallel units exceed 1")
        }
    }
}

fn records(program: &RuleProgram) -> Result<(), VerifyError> {
    for layout in &program.layouts {
        let error = |problem| VerifyError::Record { record: layout.name.clone(), problem };
        if layout.bytes == 0 || layout.bytes > ProgramLimits::MAX.record_bytes {
            return Err(error("it must have 1 to 65536 bytes"));
        }
        if layout.fields.len() > ProgramLimits::MAX.fields {
            return Err(error("it has more than 64 fields"));
        }
        for field in &layout.fields {
            let end = u64::from(field.count) * field.width.bytes() + u64::from(field.offset);
            if field.count == 0 || end > u64::from(layout.bytes) {
                return Err(error("a field has no elements, or ends behind the record"));
            }
        }
    }
    Ok(())
}

fn tables(program: &RuleProgram, grant: &RuleGrant) -> Result<(), VerifyError> {
    let mut needed = 0u64;
    for (at, table) in program.tables.iter().enumerate() {
        let error = |problem| Err(VerifyError::Table { table: table.name.clone(), problem });
        let app = program.apps.get(table.app.index());
        if app.is_none() && (table.app != AppId::GLOBAL || !grant.allows_global) {
            return error("its application does not exist");
        }
        if table.capacity == 0 || table.capacity > 1 << 48 {
            return error("it must have 1 to 2^48 elements");
        }
        if table.kind == TableKind::Address {
            if app.is_none_or(|app| table.capacity > app.sectors) {
                return error("it has more addresses than its application has sectors");
            }
            if !table.is_durable {
                return error("a table of addresses is the drive's map, and must be durable");
            }
            let is_other = |other: &crate::TableDeclaration| {
                other.app == table.app && other.kind == table.kind
            };
            if program.tables[..at].iter().any(is_other) {
                return error("its application has another table of addresses");
            }
        }
        needed = needed.saturating_add(table_bytes(table));
    }
    if needed > grant.table_bytes {
        let largest = program.tables.iter().max_by_key(|table| table_bytes(table));
        let largest = largest.map(|table| table.name.clone()).unwrap_or_default();
        return Err(VerifyError::TableMemory { needed, granted: grant.table_bytes, largest });
    }
    Ok(())
}

/// Facts about a verified rule.
#[derive(Clone, Debug)]
struct RuleSummary {
    condition: u64,
    action: PartSummary,
}

impl RuleSummary {
    fn of(
        program: &RuleProgram,
        rule: &RuleDeclaration,
        grant: &RuleGrant,
    ) -> Result<RuleSummary, VerifyError> {
        let location = rule.location;
        let error = |instruction: u32, problem| VerifyError::Rule {
            rule: rule.name.clone(),
            location,
            instruction,
            problem,
        };
        let is_global = rule.app == AppId::GLOBAL;
        if !is_global && rule.app.index() >= program.apps.len() {
            return Err(error(rule.action.start, RuleProblem::UnknownApp));
        }
        if is_global && !grant.allows_global {
            return Err(VerifyError::GlobalNotGranted { rule: rule.name.clone(), location });
        }
        if is_global != (rule.priority >= ProgramLimits::MAX.global_priority) {
            let (rule, priority) = (rule.name.clone(), rule.priority);
            return Err(VerifyError::Priority { rule, location, priority });
        }
        let (is_command, has_ops) =
            (rule.trigger == RuleTrigger::Command, rule.ops != OpMask::NONE);
        let is_polled = matches!(rule.trigger, RuleTrigger::Background | RuleTrigger::Every { .. });
        let is_formed = is_command == has_ops
            && rule.ops.0 & !OpMask::all().0 == 0
            && rule.action.len > 0
            && (is_polled || !is_global)
            && rule.trigger != RuleTrigger::Every { period_ns: 0 };
        if !is_formed {
            return Err(error(rule.action.start, RuleProblem::Form));
        }
        if rule.hops > ProgramLimits::MAX.hops {
            return Err(error(rule.action.start, RuleProblem::Hops));
        }
        let part = |range: CodeRange, part| {
            let end = range.start.checked_add(range.len);
            let code = end.and_then(|end| program.code.get(range.start as usize..end as usize));
            let code = code.ok_or(error(range.start, RuleProblem::CodeRange))?;
            let (app, trigger) = (rule.app, rule.trigger);
            let check = RulePartCheck { program, app, trigger, part, code };
            check.run().map_err(|PartError { at, problem }| error(range.start + at as u32, problem))
        };
        let condition = match rule.condition.len {
            0 => 0,
            _ => part(rule.condition, RulePart::Condition)?.cost,
        };
        let action = part(rule.action, RulePart::Action)?;
        if uses_shared_lines(program, rule) {
            return Err(VerifyError::SharedLines { rule: rule.name.clone(), location });
        }
        Ok(RuleSummary { condition, action })
    }

    fn cost(&self) -> u64 {
        self.condition.saturating_add(self.action.cost)
    }
}

/// Whether a rule, whose code is in the program, is about lines or names of sectors, and its application
/// shares its parallel units: lines have data of others, too.
fn uses_shared_lines(program: &RuleProgram, rule: &RuleDeclaration) -> bool {
    use RuleOp::{Erase, LineAt, LineFact, Lines, MoveValid, MoveValidUpTo, NamedAddress};
    if !program.apps.get(rule.app.index()).is_some_and(AppDeclaration::is_thin) {
        return false;
    }
    let parts = [rule.condition, rule.action];
    let mut code = parts.iter().flat_map(|part| part.start..part.start + part.len);
    let is_about_lines = |op| {
        matches!(op, Lines | LineAt | LineFact | MoveValid | MoveValidUpTo | Erase | NamedAddress)
    };
    matches!(rule.trigger, RuleTrigger::Background | RuleTrigger::Moved)
        || code.any(|at| is_about_lines(program.code[at as usize].op))
}

/// Refuses rules of equal priority in one list: it is not decided which of them matches. That their
/// conditions exclude each other is not considered.
fn unique_matches(program: &RuleProgram, index: &RuleIndex) -> Result<(), VerifyError> {
    let ambiguous = |pair: &[RuleId]| {
        let [first, second] = [pair[0], pair[1]].map(|id| &program.rules[id.index()]);
        (first.priority == second.priority).then(|| VerifyError::Ambiguous {
            first: first.name.clone(),
            second: second.name.clone(),
            location: second.location,
            priority: first.priority,
        })
    };
    for list in index.commands.iter().chain(&index.background).chain(&index.moved) {
        if let Some(error) = index.rules(*list).windows(2).find_map(ambiguous) {
            return Err(error);
        }
    }
    let mut periodic: Vec<RuleId> = (0..program.rules.len()).map(RuleId::from_index).collect();
    let rule = |id: &RuleId| &program.rules[id.index()];
    periodic.retain(|id| matches!(rule(id).trigger, RuleTrigger::Every { .. }));
    periodic.sort_by_key(|id| (rule(id).app, rule(id).priority));
    let same_app = |pair: &&[RuleId]| rule(&pair[0]).app == rule(&pair[1]).app;
    match periodic.windows(2).filter(same_app).find_map(ambiguous) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Computes worst-case costs and compares them with the grant.
struct Costs<'a> {
    program: &'a RuleProgram,
    index: &'a RuleIndex,
    rules: &'a [RuleSummary],
    grant: &'a RuleGrant,
}

impl Costs<'_> {
    fn state(&self) -> Result<StatedCosts, VerifyError> {
        let background_ops = self.grant.background_ops;
        let mut stated = StatedCosts {
            rules: self.rules.iter().map(RuleSummary::cost).collect(),
            ..StatedCosts::default()
        };
        for (app, declared) in self.program.apps.iter().enumerate() {
            for code in 0..InputOp::CODES {
                let (cost, worst, hops) = self.command(AppId::from_index(app), code);
                if cost > self.grant.command_ops {
                    let op = InputOp::from_code(code as u64).map_or("", InputOp::name);
                    let input = format!("a {op} of {}", declared.name);
                    return Err(self.over(input, cost, self.grant.command_ops, worst, hops));
                }
                stated.commands.push(cost);
            }
        }
        let is_global = |at: usize| at == self.program.apps.len();
        for (at, list) in self.index.background.iter().enumerate() {
            let cost = self.pass(*list);
            if cost > background_ops {
                let name = if is_global(at) { "the drive" } else { &self.program.apps[at].name };
                let input = format!("a poll of {name}");
                return Err(self.over(input, cost, background_ops, *list, 0));
            }
            stated.background.push(cost);
        }
        for (declared, list) in self.program.apps.iter().zip(&self.index.moved) {
            let cost = self.pass(*list);
            if cost > background_ops {
                let input = format!("a moved sector of {}", declared.name);
                return Err(self.over(input, cost, background_ops, *list, 0));
            }
            stated.moved.push(cost);
        }
        for (rule, cost) in self.program.rules.iter().zip(&stated.rules) {
            let (cost, budget) = (cost.saturating_add(1), background_ops);
            if matches!(rule.trigger, RuleTrigger::Every { .. }) && cost > budget {
                let rule_name = rule.name.clone();
                let steps = vec![CostStep { rule: rule_name, location: rule.location, ops: cost }];
                let input = format!("periodic rule {}", rule.name);
                return Err(VerifyError::Cost { input, cost, budget, steps, hops: 0 });
            }
        }
        Ok(stated)
    }

    /// Returns the cost of matching a list once. Matching costs an operation for each rule.
    fn pass(&self, list: CodeRange) -> u64 {
        let mut behind = 0u64;
        for id in self.index.rules(list).iter().rev() {
            let rule = &self.rules[id.index()];
            let matched = match rule.action.continues {
                true => rule.action.cost.saturating_add(behind),
                false => rule.action.cost.max(behind),
            };
            behind = matched.saturating_add(rule.condition).saturating_add(1);
        }
        behind
    }

    /// Returns the cost of a command, the list with the costliest pass, and the number of hops: the
    /// first pass, and for each hop the costliest pass among the operations that the command can get.
    fn command(&self, app: AppId, code: usize) -> (u64, CodeRange, u8) {
        let list_of = |code: usize| self.index.command(app, code as u64).unwrap_or_default();
        let mut reachable = 1u16 << code;
        let hops = loop {
            let before = reachable;
            let (mut new_ops, mut hops) = (0, 0);
            for code in (0..InputOp::CODES).filter(|code| before >> code & 1 == 1) {
                for id in self.index.rules(list_of(code)) {
                    let action = &self.rules[id.index()].action;
                    // A rule before may have changed the operation.
                    new_ops |= action.new_ops;
                    if action.repeats {
                        hops = hops.max(self.program.rules[id.index()].hops);
                    }
                }
            }
            reachable |= new_ops;
            if reachable == before {
                break hops;
            }
        };
        let first = list_of(code);
        let passes = (0..InputOp::CODES).filter(|code| reachable >> code & 1 == 1).map(list_of);
        let worst = passes.max_by_key(|list| self.pass(*list)).unwrap_or_default();
        let again = self.pass(worst).saturating_mul(hops.into());
        let shown = if hops == 0 { first } else { worst };
        (self.pass(first).saturating_add(again), shown, hops)
    }

    fn over(
        &self,
        input: String,
        cost: u64,
        budget: u64,
        list: CodeRange,
        hops: u8,
    ) -> VerifyError {
        let mut steps = Vec::new();
        let CodeRange { start, len } = list;
        for (at, id) in self.index.rules(list).iter().enumerate() {
            let at = at as u32 + 1;
            let behind = self.pass(CodeRange { start: start + at, len: len - at });
            let (rule, summary) = (&self.program.rules[id.index()], &self.rules[id.index()]);
            let action = &summary.action;
            let is_last = !action.continues && action.cost >= behind;
            let matched = if is_last || action.continues { action.cost } else { 0 };
            let ops = summary.condition.saturating_add(matched).saturating_add(1);
            steps.push(CostStep { rule: rule.name.clone(), location: rule.location, ops });
            if is_last {
                break;
            }
        }
        VerifyError::Cost { input, cost, budget, steps, hops }
    }
}
