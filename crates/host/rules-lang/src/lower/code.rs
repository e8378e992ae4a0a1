//! [`RuleCode`]: the instructions of a part of a rule while they are made, with its variables and
//! registers.
//!
//! A variable has a register until its block ends. Values within a statement have the registers above
//! those of variables.

use std::collections::HashMap;

use rules::{
    AppId, HeaderRegister, Instruction, LayoutId, REGISTERS, RuleOp, RuleTrigger, TableId,
};

use crate::ast::{Bytes, SourceName};
use crate::error::{Problem, RuleSourceProblem};

use super::condition::Matching;
use super::{Declarations, Lowered};

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    Int,
    Bool,
    Address,
    Line,
}

impl ValueType {
    pub(super) fn describe(self) -> &'static str {
        match self {
            ValueType::Int => "a number",
            ValueType::Bool => "a truth value",
            ValueType::Address => "an address",
            ValueType::Line => "a line",
        }
    }

    /// Returns the instruction that copies a value.
    pub(super) fn copy(self) -> RuleOp {
        match self {
            ValueType::Int => RuleOp::MoveInt,
            ValueType::Bool => RuleOp::MoveBool,
            ValueType::Address => RuleOp::MoveAddress,
            ValueType::Line => RuleOp::MoveLine,
        }
    }
}

/// A value in a register.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleValue {
    pub(super) register: u8,
    pub(super) of: ValueType,
}

/// The meaning of a name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Variable {
    Value(RuleValue),
    /// A sector that was fetched by a loop; the number of the fetch.
    Sector(u32),
    /// A record of the fetched bytes: its layout, the register of its index, the number of the fetch.
    Record {
        layout: LayoutId,
        index: u8,
        fetch: u32,
    },
    /// The line that `best line` considers.
    Line(u8),
}

pub(super) struct RuleCode<'a> {
    pub(super) declared: &'a Declarations<'a>,
    pub(super) app: AppId,
    pub(super) trigger: RuleTrigger,
    pub(super) code: Vec<Instruction>,
    next_register: u8,
    scopes: Vec<HashMap<String, Variable>>,
    /// Number of the last fetch.
    pub(super) fetch: u32,
    /// The address of `header.addr`, and whether it has a value on all paths.
    pub(super) address: Option<u8>,
    pub(super) has_address: bool,
    pub(super) loop_depth: u8,
}

/// A block's registers and variables, to restore.
pub(super) struct BlockStart {
    next_register: u8,
    has_address: bool,
}

impl<'a> RuleCode<'a> {
    pub(super) fn new(declared: &'a Declarations<'a>, matching: &Matching<'_>) -> RuleCode<'a> {
        RuleCode {
            declared,
            app: matching.app,
            trigger: matching.trigger,
            code: Vec::new(),
            next_register: HeaderRegister::COUNT as u8,
            scopes: vec![HashMap::new()],
            fetch: 0,
            address: None,
            has_address: false,
            loop_depth: 0,
        }
    }

    pub(super) fn finish(self) -> Vec<Instruction> {
        self.code
    }

    pub(super) fn emit(&mut self, instruction: Instruction) -> usize {
        self.code.push(instruction);
        self.code.len() - 1
    }

    /// Sets the target of a jump to the next instruction.
    pub(super) fn land(&mut self, jump: usize) {
        self.code[jump].imm = self.code.len() as u64;
    }

    pub(super) fn register(&mut self, span: &Bytes) -> Lowered<u8> {
        let register = self.next_register;
        if usize::from(register) >= REGISTERS {
            return Err(Problem::new(span, RuleSourceProblem::Registers));
        }
        self.next_register += 1;
        Ok(register)
    }

    /// Returns the registers in use; [`release`](RuleCode::release) frees those that follow.
    pub(super) fn mark(&self) -> u8 {
        self.next_register
    }

    pub(super) fn release(&mut self, mark: u8) {
        self.next_register = mark;
    }

    /// Emits an instruction with a result in a new register.
    pub(super) fn value(
        &mut self,
        span: &Bytes,
        of: ValueType,
        instruction: Instruction,
    ) -> Lowered<RuleValue> {
        let register = self.register(span)?;
        self.emit(instruction.to(register));
        Ok(RuleValue { register, of })
    }

    /// Moves a value to a register. A value that the last instruction made is made there instead.
    pub(super) fn move_to(&mut self, register: u8, value: RuleValue) {
        let is_variable = value.register < self.first_temporary();
        match self.code.last_mut() {
            Some(last) if !is_variable && last.d == value.register && Self::has_result(last.op) => {
                last.d = register;
            }
            _ => {
                self.emit(Instruction::new(value.of.copy()).to(register).a(value.register));
            }
        }
    }

    /// Whether an instruction's result may be put into another register.
    fn has_result(op: RuleOp) -> bool {
        (op as u8) < RuleOp::Jump as u8
            && !matches!(
                op,
                RuleOp::MoveBool | RuleOp::MoveInt | RuleOp::MoveAddress | RuleOp::MoveLine
            )
    }

    /// Returns the first register that no variable has.
    fn first_temporary(&self) -> u8 {
        let of = |variable: &Variable| match variable {
            Variable::Value(value) => value.register,
            Variable::Record { index, .. } => *index,
            Variable::Line(register) => *register,
            Variable::Sector(_) => 0,
        };
        let registers = self.scopes.iter().flat_map(HashMap::values).map(of);
        let header = HeaderRegister::COUNT as u8 - 1;
        registers.chain(self.address).max().unwrap_or(header).max(header) + 1
    }

    pub(super) fn open(&mut self) -> BlockStart {
        self.scopes.push(HashMap::new());
        BlockStart { next_register: self.next_register, has_address: self.has_address }
    }

    pub(super) fn close(&mut self, start: &BlockStart) {
        self.scopes.pop();
        if self.address.is_none_or(|address| address < start.next_register) {
            self.next_register = start.next_register;
        }
    }

    /// Ends a block that may not have run: what it assigned is not certain.
    pub(super) fn restore_address(&mut self, start: &BlockStart) {
        self.has_address = start.has_address;
        self.address = self.address.filter(|address| *address < start.next_register);
    }

    pub(super) fn declare(&mut self, name: &SourceName, variable: Variable) -> Lowered<()> {
        let is_reserved = ["header", "channel", "line", "drive"].contains(&name.text.as_str());
        let is_app = self.declared.program.apps.iter().any(|app| app.name == name.text);
        let is_taken = is_reserved
            || is_app
            || self.declared.table_named(&name.text).is_some()
            || self.scopes.iter().any(|scope| scope.contains_key(&name.text));
        if is_taken {
            let (kind, name_text) = ("name", name.text.clone());
            let problem = RuleSourceProblem::Duplicate { kind, name: name_text };
            return Err(Problem::new(&name.span, problem));
        }
        self.insert_variable(name, variable);
        Ok(())
    }

    /// Declares a name that no source can declare.
    pub(super) fn insert_variable(&mut self, name: &SourceName, variable: Variable) {
        self.scopes.last_mut().expect("a block").insert(name.text.clone(), variable);
    }

    pub(super) fn lookup(&self, name: &str) -> Option<Variable> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name)).copied()
    }

    pub(super) fn unknown(&self, name: &SourceName, kind: &'static str) -> Problem {
        let variables = self.scopes.iter().flat_map(HashMap::keys).map(String::as_str);
        let tables = self.declared.program.tables.iter().map(|table| table.name.as_str());
        let mut known: Vec<&str> = variables.chain(tables).collect();
        known.sort_unstable();
        Problem::unknown(&name.span, kind, &name.text, known.into_iter())
    }

    /// Declares a record of the fetched bytes, or fails if a later fetch has replaced them.
    pub(super) fn record(&self, name: &SourceName) -> Lowered<Variable> {
        match self.lookup(&name.text) {
            Some(Variable::Record { fetch, .. } | Variable::Sector(fetch))
                if fetch != self.fetch =>
            {
                let problem = RuleSourceProblem::Replaced { record: name.text.clone() };
                Err(Problem::new(&name.span, problem))
            }
            Some(variable @ (Variable::Record { .. } | Variable::Sector(_))) => Ok(variable),
            _ => Err(self.unknown(name, "record")),
        }
    }

    /// Requires that an application is the rule's.
    pub(super) fn own(&self, app: AppId, span: &Bytes) -> Lowered<()> {
        if app == self.app {
            return Ok(());
        }
        let names = [self.app, app].map(|app| self.declared.app_name(app));
        let [app, other] = names;
        Err(Problem::new(span, RuleSourceProblem::Foreign { app, other }))
    }

    /// Returns a table of the rule's application.
    pub(super) fn own_table(&self, name: &SourceName) -> Lowered<TableId> {
        let table = self.declared.table_of(name)?;
        self.own(self.declared.program.tables[table.index()].app, &name.span)?;
        Ok(table)
    }

    /// Requires a trigger.
    pub(super) fn needs(
        &self,
        is_here: bool,
        span: &Bytes,
        part: &'static str,
        allowed: &'static str,
    ) -> Lowered<()> {
        if is_here {
            return Ok(());
        }
        Err(Problem::new(span, RuleSourceProblem::NotHere { part, allowed }))
    }

    pub(super) fn needs_command(&self, span: &Bytes, part: &'static str) -> Lowered<()> {
        let is_command = self.trigger == RuleTrigger::Command;
        self.needs(is_command, span, part, "rules for commands")
    }
}
