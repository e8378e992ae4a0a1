//! Types, definite assignment, jumps and costs of one part of a rule, in one pass forward and one
//! backward.
//!
//! A forward pass has the types of the registers at every instruction. A register has a type at a
//! join only if it has that type on all paths. A register that a loop's body writes with another type
//! has none at the begin of the body, so that the back edge needs no second pass.

use crate::ids::{AppId, LayoutId, TableId};
use crate::instruction::{
    HeaderRegister, Instruction, LOOP_DEPTH_MAX, REGISTERS, RegisterType, RuleOp,
};
use crate::program::{InputOp, RuleProgram, RuleTrigger, TableKind};

use super::error::RuleProblem;

/// A part of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RulePart {
    Condition,
    Action,
}

/// Facts about a verified part.
#[derive(Clone, Debug, Default)]
pub(super) struct PartSummary {
    /// Operations in the worst case.
    pub(super) cost: u64,
    /// Whether it may go on with the next rule.
    pub(super) continues: bool,
    /// Whether it may match the input again.
    pub(super) repeats: bool,
    /// Operations that it gives to the input.
    pub(super) new_ops: u16,
}

/// A problem at an instruction of the part.
pub(super) struct PartError {
    pub(super) at: usize,
    pub(super) problem: RuleProblem,
}

/// Types of all registers: a bit per register and type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Types([u64; 4]);

impl Types {
    fn header() -> Types {
        let mut types = Types::default();
        types.0[RegisterType::Int as usize] = (1 << HeaderRegister::COUNT) - 1;
        types
    }

    fn has(&self, register: u8, of: RegisterType) -> bool {
        self.0[of as usize] >> register & 1 == 1
    }

    fn set(&mut self, register: u8, of: RegisterType) {
        for types in &mut self.0 {
            *types &= !(1 << register);
        }
        self.0[of as usize] |= 1 << register;
    }

    /// Removes the registers that are written with another type.
    fn forget(&mut self, written: &Types) {
        let all = written.0.iter().fold(0, |all, types| all | types);
        for (types, kept) in self.0.iter_mut().zip(&written.0) {
            let others: u64 = all & !kept;
            *types &= !others;
        }
        // Written with two types: neither is certain.
        for i in 0..self.0.len() {
            for j in 0..i {
                let both = written.0[i] & written.0[j];
                self.0[i] &= !both;
                self.0[j] &= !both;
            }
        }
    }

    fn meet(&mut self, other: &Types) {
        for (types, other) in self.0.iter_mut().zip(&other.0) {
            *types &= other;
        }
    }
}

/// A loop: its first instruction and its `LoopEnd`.
#[derive(Clone, Copy, Debug)]
struct LoopSpan {
    begin: usize,
    end: usize,
    parent: Option<usize>,
}

/// The structure of loops in a part.
struct Loops {
    spans: Vec<LoopSpan>,
    /// Innermost loop of each instruction; `Loop` belongs to the loop around it.
    owners: Vec<Option<usize>>,
}

impl Loops {
    fn find(code: &[Instruction]) -> Result<Loops, PartError> {
        let mut found = Loops { spans: Vec::new(), owners: Vec::with_capacity(code.len()) };
        let mut open: Vec<usize> = Vec::new();
        for (at, i) in code.iter().enumerate() {
            let error = PartError { at, problem: RuleProblem::LoopForm };
            found.owners.push(open.last().copied());
            match i.op {
                RuleOp::Loop => {
                    let (after, parent) = (i.high() as usize, open.last().copied());
                    let is_closed = after > at + 1
                        && code
                            .get(after - 1)
                            .is_some_and(|end| end.op == RuleOp::LoopEnd && end.imm == at as u64);
                    if !is_closed || open.len() >= LOOP_DEPTH_MAX || usize::from(i.c) != open.len()
                    {
                        return Err(error);
                    }
                    open.push(found.spans.len());
                    found.spans.push(LoopSpan { begin: at, end: after - 1, parent });
                }
                RuleOp::LoopEnd => {
                    let Some(span) = open.pop().map(|index| found.spans[index]) else {
                        return Err(error);
                    };
                    if span.end != at || usize::from(i.c) != open.len() {
                        return Err(error);
                    }
                }
                _ => {}
            }
        }
        match open.last() {
            Some(index) => {
                let at = found.spans[*index].begin;
                Err(PartError { at, problem: RuleProblem::LoopForm })
            }
            None => Ok(found),
        }
    }

    /// Whether a jump from `from` may go to `to`: not into a loop.
    fn can_jump(&self, from: usize, to: usize) -> bool {
        let mut around = self.owners[from];
        loop {
            if around == self.owners[to] {
                return true;
            }
            match around {
                Some(index) => around = self.spans[index].parent,
                None => return false,
            }
        }
    }
}

/// Returns the operations of an instruction.
pub(super) fn cost_of(program: &RuleProgram, i: &Instruction) -> u16 {
    match i.op {
        RuleOp::SearchLast => {
            let layout = program.layouts.get(i.low() as usize);
            let count = layout.and_then(|l| l.fields.get(i.high() as usize)).map_or(0, |f| f.count);
            3 + (u32::BITS - count.leading_zeros()) as u16
        }
        RuleOp::TableContains | RuleOp::TableInsert | RuleOp::TableRemove => 4,
        RuleOp::TableLoad | RuleOp::TableStore => {
            match program.tables.get(i.imm as usize).map(|table| table.kind) {
                Some(TableKind::Map { .. }) => 4,
                _ => 1,
            }
        }
        // A copy of up to a page.
        RuleOp::Emit => 4,
        _ => 1,
    }
}

/// Verifies parts of rules.
pub(super) struct RulePartCheck<'a> {
    pub(super) program: &'a RuleProgram,
    pub(super) app: AppId,
    pub(super) trigger: RuleTrigger,
    pub(super) part: RulePart,
    pub(super) code: &'a [Instruction],
}

impl RulePartCheck<'_> {
    pub(super) fn run(&self) -> Result<PartSummary, PartError> {
        let loops = Loops::find(self.code)?;
        self.types(&loops)?;
        let mut summary = PartSummary { cost: self.cost(&loops), ..PartSummary::default() };
        for i in self.code {
            match i.op {
                RuleOp::Continue => summary.continues = true,
                RuleOp::Again => summary.repeats = true,
                RuleOp::SetOp => summary.new_ops |= 1 << i.imm,
                _ => {}
            }
        }
        Ok(summary)
    }

    /// Follows the types of registers through the code.
    fn types(&self, loops: &Loops) -> Result<(), PartError> {
        let has_header = matches!(self.trigger, RuleTrigger::Command | RuleTrigger::Moved);
        let mut joins: Vec<Option<Types>> = vec![None; self.code.len() + 1];
        let mut next = Some(if has_header { Types::header() } else { Types::default() });
        let mut open_loops = loops.spans.iter();
        for (at, i) in self.code.iter().enumerate() {
            let error = |problem| PartError { at, problem };
            let mut types = match (next, joins[at]) {
                (Some(mut types), Some(joined)) => {
                    types.meet(&joined);
                    types
                }
                (Some(types), None) | (None, Some(types)) => types,
                (None, None) => return Err(error(RuleProblem::Unreachable)),
            };
            self.instruction(i, &types).map_err(error)?;
            let mut join = |to: usize, types: Types| {
                if to <= at || to >= self.code.len() || !loops.can_jump(at, to) {
                    return Err(error(RuleProblem::Jump));
                }
                match &mut joins[to] {
                    Some(joined) => joined.meet(&types),
                    empty => *empty = Some(types),
                }
                Ok(())
            };
            let target = usize::try_from(i.imm).unwrap_or(usize::MAX);
            match i.op {
                RuleOp::Jump => join(target, types)?,
                RuleOp::JumpIfNot => join(target, types)?,
                RuleOp::Loop => {
                    let span = open_loops.next().ok_or(error(RuleProblem::LoopForm))?;
                    if span.end + 1 >= self.code.len() {
                        return Err(error(RuleProblem::NoEnd));
                    }
                    join(span.end + 1, types)?;
                    let mut written = Types::default();
                    for inner in &self.code[at..span.end] {
                        // The code of the body is not checked yet.
                        if let Some(result) = inner.op.result()
                            && usize::from(inner.d) < REGISTERS
                        {
                            written.0[result as usize] |= 1 << inner.d;
                        }
                    }
                    types.forget(&written);
                }
                _ => {}
            }
            if let Some(result) = i.op.result() {
                types.set(i.d, result);
            }
            let is_last = i.op.is_terminal() || i.op == RuleOp::Jump;
            if !is_last && at + 1 == self.code.len() {
                return Err(error(RuleProblem::NoEnd));
            }
            next = (!is_last).then_some(types);
        }
        Ok(())
    }

    /// Checks one instruction: registers, tables, layouts, constants and permissions.
    fn instruction(&self, i: &Instruction, types: &Types) -> Result<(), RuleProblem> {
        let is_condition = self.part == RulePart::Condition;
        let is_in_part = match self.part {
            RulePart::Condition => !i.op.is_effect(),
            RulePart::Action => i.op != RuleOp::Match,
        };
        if !is_in_part {
            return Err(RuleProblem::Part);
        }
        for (register, of) in [i.a, i.b, i.c].into_iter().zip(i.op.operands()) {
            let Some(of) = of else { continue };
            if usize::from(register) >= REGISTERS {
                return Err(RuleProblem::Register(register));
            }
            if !types.has(register, of) {
                return Err(RuleProblem::Operand(register));
            }
        }
        if let Some(result) = i.op.result() {
            if usize::from(i.d) >= REGISTERS {
                return Err(RuleProblem::Register(i.d));
            }
            if usize::from(i.d) < HeaderRegister::COUNT {
                let is_writable = HeaderRegister::WRITABLE >> i.d & 1 == 1;
                if !is_writable || is_condition || result != RegisterType::Int {
                    return Err(RuleProblem::ReadOnly(i.d));
                }
            }
        }
        self.trigger(i.op)?;
        self.constant(i)
    }

    /// Checks that an operation fits what triggers the rule.
    fn trigger(&self, op: RuleOp) -> Result<(), RuleProblem> {
        let is_allowed = match op {
            RuleOp::SetOp
            | RuleOp::Fetch
            | RuleOp::Emit
            | RuleOp::Submit
            | RuleOp::Again
            | RuleOp::FieldLoad
            | RuleOp::SearchLast
            | RuleOp::MapStore => self.trigger == RuleTrigger::Command,
            RuleOp::Complete => {
                matches!(self.trigger, RuleTrigger::Command | RuleTrigger::Moved)
            }
            RuleOp::End => self.trigger != RuleTrigger::Command,
            RuleOp::MoveValid | RuleOp::MoveValidUpTo | RuleOp::Erase => {
                matches!(self.trigger, RuleTrigger::Background | RuleTrigger::Every { .. })
            }
            _ => true,
        };
        if is_allowed { Ok(()) } else { Err(RuleProblem::Trigger) }
    }

    fn table(&self, imm: u64, is_kind: fn(TableKind) -> bool) -> Result<(), RuleProblem> {
        let index = u8::try_from(imm).map_err(|_| RuleProblem::Table)?;
        let table = self.program.tables.get(TableId::new(index).index());
        let table = table.filter(|table| is_kind(table.kind)).ok_or(RuleProblem::Table)?;
        if table.app != self.app {
            return Err(RuleProblem::ForeignTable);
        }
        Ok(())
    }

    /// Checks tables, layouts and other constants.
    fn constant(&self, i: &Instruction) -> Result<(), RuleProblem> {
        let below = |limit: u64| if i.imm < limit { Ok(()) } else { Err(RuleProblem::Constant) };
        match i.op {
            RuleOp::TableLoad | RuleOp::TableStore => self
                .table(i.imm, |kind| matches!(kind, TableKind::Array(_) | TableKind::Map { .. })),
            RuleOp::TableContains | RuleOp::TableFree | RuleOp::TableRemove => {
                self.table(i.imm, |kind| matches!(kind, TableKind::Set(_) | TableKind::Map { .. }))
            }
            RuleOp::TableInsert => self.table(i.imm, |kind| matches!(kind, TableKind::Set(_))),
            RuleOp::MapLoad | RuleOp::MapStore => {
                let own = |t: &&crate::TableDeclaration| {
                    t.kind == TableKind::Address && t.app == self.app
                };
                self.program.tables.iter().find(own).map(drop).ok_or(RuleProblem::Table)
            }
            RuleOp::FieldLoad | RuleOp::SearchLast => {
                let layout = self.program.layouts.get(i.low() as usize);
                let field = layout.and_then(|layout| layout.fields.get(i.high() as usize));
                field.map(drop).ok_or(RuleProblem::Layout)
            }
            RuleOp::Emit => {
                let index = u8::try_from(i.imm).map_err(|_| RuleProblem::Layout)?;
                let layout = self.program.layouts.get(LayoutId::new(index).index());
                layout.map(drop).ok_or(RuleProblem::Layout)
            }
            RuleOp::NextAddress | RuleOp::MoveValid | RuleOp::MoveValidUpTo => {
                below(crate::PlacementStream::ALL.len() as u64)
            }
            RuleOp::LineFact => below(4),
            RuleOp::Complete => below(crate::RuleStatus::USER_COUNT),
            RuleOp::Post => below(1 << 16),
            // The command has no data that a changed operation could write.
            RuleOp::SetOp => match InputOp::from_code(i.imm) {
                None | Some(InputOp::Write) => Err(RuleProblem::Constant),
                Some(_) => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Returns the worst-case cost: the longest path, with the body of each loop as often as its bound
    /// allows.
    fn cost(&self, loops: &Loops) -> u64 {
        let code = self.code;
        // Cost from an instruction until the path leaves the innermost loop around it.
        let mut worst = vec![0u64; code.len()];
        // Where paths leave each loop.
        let mut exits: Vec<Vec<usize>> = vec![Vec::new(); loops.spans.len()];
        let mut inner = loops.spans.len();
        for (at, i) in code.iter().enumerate().rev() {
            let owner = loops.owners[at];
            let after = |to: usize, exits: &mut Vec<Vec<usize>>| match owner {
                Some(index) if loops.owners[to] != owner => {
                    exits[index].push(to);
                    0
                }
                _ => worst[to],
            };
            let rest = match i.op {
                RuleOp::Jump => after(i.imm as usize, &mut exits),
                RuleOp::JumpIfNot => {
                    after(i.imm as usize, &mut exits).max(after(at + 1, &mut exits))
                }
                RuleOp::LoopEnd => 0,
                RuleOp::Loop => {
                    // Loops are found in the order of their begins.
                    inner -= 1;
                    let mut left = std::mem::take(&mut exits[inner]);
                    left.push(loops.spans[inner].end + 1);
                    left.sort_unstable();
                    left.dedup();
                    let behind = left.iter().map(|to| after(*to, &mut exits)).max().unwrap_or(0);
                    let body = worst[at + 1].saturating_mul(u64::from(i.low()));
                    body.saturating_add(behind)
                }
                op if op.is_terminal() => 0,
                _ => after(at + 1, &mut exits),
            };
            worst[at] = rest.saturating_add(u64::from(cost_of(self.program, i)));
        }
        worst.first().copied().unwrap_or(0)
    }
}
