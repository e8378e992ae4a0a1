//! [`InstalledRules`]: the rules of a program in the order in which they are tried, and how each kind
//! of input begins.

use crate::ids::{AppId, RuleId};
use crate::program::{CodeRange, InputOp, TableKind};
use crate::verify::VerifiedProgram;

use super::decision::{CommandRules, DirectDecision};
use super::symbolic::SymbolicCommand;

/// A rule, as far as the engine reads it for each input.
#[derive(Clone, Copy, Debug)]
pub(super) struct InstalledRule {
    pub(super) rule: RuleId,
    pub(super) hops: u8,
    pub(super) condition: CodeRange,
    pub(super) action: CodeRange,
}

/// The rules of a program.
#[derive(Clone, Debug)]
pub(super) struct InstalledRules {
    /// The lists of the program's index; behind them, all rules by their number.
    rules: Box<[InstalledRule]>,
    /// Where the rules by their number begin.
    by_number: u32,
    /// For each application and operation, how its commands begin.
    commands: Box<[CommandRules]>,
    /// Addresses in the map of each application.
    map_lens: Box<[u64]>,
}

impl InstalledRules {
    pub(super) fn new(verified: &VerifiedProgram) -> InstalledRules {
        let (program, index) = (verified.program(), verified.index());
        let map_len = |app: AppId| {
            let map = |table: &&crate::TableDeclaration| {
                table.app == app && table.kind == TableKind::Address
            };
            program.tables.iter().find(map).map_or(0, |table| table.capacity)
        };
        let installed = |rule: RuleId| {
            let declared = &program.rules[rule.index()];
            let (hops, condition, action) = (declared.hops, declared.condition, declared.action);
            InstalledRule { rule, hops, condition, action }
        };
        let numbers = (0..program.rules.len()).map(RuleId::from_index);
        let apps = (0..program.apps.len()).map(AppId::from_index);
        let map_lens: Box<[u64]> = apps.clone().map(map_len).collect();
        let entry = |app: AppId, code: usize| {
            let list = index.command(app, code as u64).unwrap_or_default();
            let op = InputOp::from_code(code as u64);
            let stated = op.map_or(0, |op| verified.command_cost(app, op));
            let direct = op.and_then(|op| SymbolicCommand::decide(program, index.rules(list), op));
            for decision in direct.iter().flat_map(|tree| tree.decisions()) {
                let ops = decision.ops;
                assert!(ops <= stated, "a command uses {ops} operations, stated are {stated}");
            }
            CommandRules { list, stated, map_len: map_lens[app.index()], direct }
        };
        InstalledRules {
            rules: index.order.iter().copied().chain(numbers).map(installed).collect(),
            by_number: index.order.len() as u32,
            commands: apps
                .flat_map(|app| (0..InputOp::CODES).map(move |code| (app, code)))
                .map(|(app, code)| entry(app, code))
                .collect(),
            map_lens,
        }
    }

    /// Returns how commands of an application with an operation begin.
    #[inline]
    pub(super) fn command(&self, app: AppId, op: InputOp) -> Option<&CommandRules> {
        self.commands.get(app.index() * InputOp::CODES + op as usize)
    }

    /// Returns the rules for commands of an application with the operation of a code.
    pub(super) fn command_list(&self, app: AppId, code: u64) -> CodeRange {
        let entry = self.commands.get(app.index() * InputOp::CODES + code as usize);
        entry.map_or(CodeRange::default(), |entry| entry.list)
    }

    /// Returns the entry of [`command`](InstalledRules::command), to count a command.
    #[inline]
    pub(super) fn command_mut(&mut self, app: AppId, op: InputOp) -> Option<&mut CommandRules> {
        self.commands.get_mut(app.index() * InputOp::CODES + op as usize)
    }

    /// Returns all direct decisions.
    pub(super) fn decisions(&self) -> impl Iterator<Item = &DirectDecision> {
        self.commands.iter().filter_map(|rules| rules.direct.as_ref()).flat_map(|d| d.decisions())
    }

    /// Returns the direct decisions about commands of an application.
    pub(super) fn decisions_of(&self, app: AppId) -> impl Iterator<Item = &DirectDecision> {
        let commands = self.commands.chunks(InputOp::CODES).nth(app.index()).unwrap_or_default();
        commands.iter().filter_map(|rules| rules.direct.as_ref()).flat_map(|d| d.decisions())
    }

    /// Returns the rule at a position in the order of rules.
    #[inline]
    pub(super) fn at(&self, position: u32) -> &InstalledRule {
        &self.rules[position as usize]
    }

    /// Returns the position of a rule outside of all lists.
    pub(super) fn position(&self, rule: RuleId) -> u32 {
        self.by_number + u32::from(rule.get())
    }

    /// Returns the number of addresses in the map of an application; 0 for global rules.
    pub(super) fn map_len(&self, app: AppId) -> u64 {
        self.map_lens.get(app.index()).copied().unwrap_or(0)
    }
}
