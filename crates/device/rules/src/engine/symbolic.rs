//! [`SymbolicCommand`]: follows the rules for commands without an input, when a program is installed.
//!
//! Values are sums of a header register and a constant, comparisons of such sums, and addresses. A jump
//! or a match on a comparison is followed both ways. Anything else, such as a table or a loop, needs
//! execution: then there is no [`DecisionTree`], and the engine executes all of these commands.

use crate::ids::RuleId;
use crate::instruction::{HeaderRegister, Instruction, REGISTERS, RuleOp};
use crate::program::{CodeRange, InputOp, RuleProgram};

use super::action::{PackedAddress, PlacementStream, RuleStatus, RuleVerdict};
use super::decision::{
    Comparison, DecisionNode, DecisionTree, DirectDecision, DirectEnd, HeaderSum, HeaderTest,
    TriedRule,
};
use super::interpret::NONE;

/// Nodes of a tree. A command with more ends is executed.
const NODES_MAX: usize = 64;
/// Comparisons and rules on a path.
const DEPTH_MAX: u32 = 16;
/// Instructions that are followed for the commands with an operation.
const STEPS_MAX: u32 = 4096;

/// A value that is known when the program is installed.
#[derive(Clone, Copy, Debug)]
enum SymbolicValue {
    Int(HeaderSum),
    Bool(bool),
    /// A comparison, or its opposite.
    Test {
        test: HeaderTest,
        is_negated: bool,
    },
    /// The next address of a stream, in its packed form.
    Next(PackedAddress),
    /// Where the block is.
    Mapped,
}

/// Everything that is known at an instruction.
#[derive(Clone)]
struct SymbolicState {
    registers: [Option<SymbolicValue>; REGISTERS],
    /// The block at which the map is used. Another one needs execution.
    block: Option<HeaderSum>,
    /// Operations since the first use of the map.
    ops_behind_fault: u64,
    /// The address that is stored at the block.
    stored: Option<PackedAddress>,
    ops: u64,
    tried: Vec<TriedRule>,
    depth: u32,
}

impl SymbolicState {
    fn new() -> SymbolicState {
        let mut registers = [None; REGISTERS];
        for (value, register) in registers.iter_mut().zip(HeaderRegister::ALL) {
            *value = Some(SymbolicValue::Int(HeaderSum::header(register)));
        }
        SymbolicState {
            registers,
            block: None,
            ops_behind_fault: 0,
            stored: None,
            ops: 0,
            tried: Vec::new(),
            depth: 0,
        }
    }

    fn get(&self, register: u8) -> Option<SymbolicValue> {
        self.registers[usize::from(register)]
    }

    fn int(&self, register: u8) -> Option<HeaderSum> {
        match self.get(register)? {
            SymbolicValue::Int(sum) => Some(sum),
            _ => None,
        }
    }

    /// Counts the operations of an instruction of the rule that is tried.
    fn spend(&mut self, cost: u16) {
        let cost = u64::from(cost);
        self.ops += cost;
        if self.block.is_some() {
            self.ops_behind_fault += cost;
        }
        if let Some(last) = self.tried.last_mut() {
            last.ops += cost;
        }
    }

    /// Uses the map at a block. The first use faults if the block is past the end, and later ones of
    /// the same block do not.
    fn use_block(&mut self, register: u8) -> Option<()> {
        let block = self.int(register)?;
        (*self.block.get_or_insert(block) == block).then_some(())
    }

    fn store(&mut self, i: &Instruction) -> Option<()> {
        self.use_block(i.a)?;
        match self.get(i.b)? {
            SymbolicValue::Next(address) => self.stored = Some(address),
            _ => return None,
        }
        Some(())
    }

    fn test(&self, comparison: Comparison, a: u8, b: u8) -> Option<SymbolicValue> {
        let test = HeaderTest { comparison, a: self.int(a)?, b: self.int(b)? };
        Some(SymbolicValue::Test { test, is_negated: false })
    }

    /// Returns the result of an instruction without effects.
    fn value(&mut self, i: &Instruction) -> Option<SymbolicValue> {
        let number = |offset| HeaderSum { register: None, offset };
        Some(match i.op {
            RuleOp::Const => SymbolicValue::Int(number(i.imm)),
            RuleOp::ConstBool => SymbolicValue::Bool(i.imm != 0),
            RuleOp::MoveInt | RuleOp::MoveBool | RuleOp::MoveAddress => self.get(i.a)?,
            RuleOp::Add => SymbolicValue::Int(self.int(i.a)?.plus(self.int(i.b)?)?),
            RuleOp::Sub => SymbolicValue::Int(self.int(i.a)?.minus(self.int(i.b)?)?),
            RuleOp::Eq => self.test(Comparison::Eq, i.a, i.b)?,
            RuleOp::Ne => self.test(Comparison::Ne, i.a, i.b)?,
            RuleOp::Lt => self.test(Comparison::Lt, i.a, i.b)?,
            RuleOp::Le => self.test(Comparison::Le, i.a, i.b)?,
            RuleOp::LtSigned => self.test(Comparison::LtSigned, i.a, i.b)?,
            RuleOp::IsNoneInt => {
                let (comparison, a) = (Comparison::Eq, self.int(i.a)?);
                let test = HeaderTest { comparison, a, b: number(NONE) };
                SymbolicValue::Test { test, is_negated: false }
            }
            RuleOp::Not => match self.get(i.a)? {
                SymbolicValue::Bool(value) => SymbolicValue::Bool(!value),
                SymbolicValue::Test { test, is_negated } => {
                    SymbolicValue::Test { test, is_negated: !is_negated }
                }
                _ => return None,
            },
            RuleOp::NextAddress => SymbolicValue::Next(PackedAddress::next(i.imm)),
            RuleOp::MapLoad => {
                self.use_block(i.a)?;
                self.stored.map_or(SymbolicValue::Mapped, SymbolicValue::Next)
            }
            _ => return None,
        })
    }

    /// Returns the end of a command with an operation that is submitted at an address.
    fn submit(&self, origin: InputOp, address: SymbolicValue) -> Option<DirectEnd> {
        match (origin, address) {
            (InputOp::Write, SymbolicValue::Next(address)) => {
                let (stream, is_mapped) = (address.stream()?, self.stored.is_some());
                let is_placed = self.stored.is_none_or(|stored| stored == address);
                is_placed.then_some(DirectEnd::Place { stream, is_mapped })
            }
            (InputOp::Write | InputOp::Trim | InputOp::Flush, _) => None,
            (_, SymbolicValue::Mapped) => self.stored.is_none().then_some(DirectEnd::Read),
            _ => None,
        }
    }
}

/// Where the code of a rule goes on.
#[derive(Clone, Copy, Debug)]
struct CodePosition {
    /// Index in the list of rules.
    at: usize,
    is_condition: bool,
    pc: usize,
}

/// Commands of an application with an operation.
pub(super) struct SymbolicCommand<'a> {
    program: &'a RuleProgram,
    list: &'a [RuleId],
    op: InputOp,
    nodes: Vec<DecisionNode>,
    steps: u32,
}

impl SymbolicCommand<'_> {
    /// Returns the ends of commands with an operation, for which a list of rules is tried; `None` if they
    /// need execution.
    pub(super) fn decide(
        program: &RuleProgram,
        list: &[RuleId],
        op: InputOp,
    ) -> Option<DecisionTree> {
        let mut command = SymbolicCommand { program, list, op, nodes: Vec::new(), steps: 0 };
        command.try_rule(SymbolicState::new(), 0)?;
        DecisionTree::new(command.nodes)
    }

    fn push(&mut self, node: DecisionNode) -> Option<u16> {
        if self.nodes.len() == NODES_MAX {
            return None;
        }
        self.nodes.push(node);
        u16::try_from(self.nodes.len() - 1).ok()
    }

    /// Tries the rule at an index of the list. Returns the first node.
    fn try_rule(&mut self, mut state: SymbolicState, at: usize) -> Option<u16> {
        let Some(rule) = self.list.get(at) else {
            let verdict = match self.op.passes_through() {
                true => RuleVerdict::PassThrough,
                false => RuleVerdict::Miss,
            };
            let nothing = HeaderSum { register: None, offset: 0 };
            return self.end(state, DirectEnd::Unmatched(verdict), nothing);
        };
        state.depth += 1;
        // Matching costs an operation, which is none of the rule.
        state.ops += 1;
        state.tried.push(TriedRule { rule: *rule, is_matched: false, ops: 0 });
        match self.program.rules[rule.index()].condition.len {
            0 => self.act(state, at),
            _ => self.follow(state, CodePosition { at, is_condition: true, pc: 0 }),
        }
    }

    /// Begins the action of the rule at an index of the list.
    fn act(&mut self, mut state: SymbolicState, at: usize) -> Option<u16> {
        if let Some(last) = state.tried.last_mut() {
            last.is_matched = true;
        }
        self.follow(state, CodePosition { at, is_condition: false, pc: 0 })
    }

    /// Follows the code of a part to the ends of the command.
    fn follow(&mut self, mut state: SymbolicState, from: CodePosition) -> Option<u16> {
        let rule = &self.program.rules[self.list[from.at].index()];
        let CodeRange { start, len } = if from.is_condition { rule.condition } else { rule.action };
        let code = &self.program.code[start as usize..(start + len) as usize];
        let (CodePosition { at, mut pc, .. }, op) = (from, self.op);
        loop {
            self.steps += 1;
            if self.steps > STEPS_MAX || state.depth > DEPTH_MAX {
                return None;
            }
            let i = &code[pc];
            state.spend(i.cost);
            pc += 1;
            match i.op {
                RuleOp::Jump => pc = i.imm as usize,
                RuleOp::JumpIfNot => match state.get(i.a)? {
                    SymbolicValue::Bool(true) => {}
                    SymbolicValue::Bool(false) => pc = i.imm as usize,
                    value => {
                        let to = i.imm as usize;
                        return self.branch(
                            state,
                            value,
                            |this, state| this.follow(state, CodePosition { pc, ..from }),
                            |this, state| this.follow(state, CodePosition { pc: to, ..from }),
                        );
                    }
                },
                RuleOp::Match => match state.get(i.a)? {
                    SymbolicValue::Bool(true) => return self.act(state, at),
                    SymbolicValue::Bool(false) => return self.try_rule(state, at + 1),
                    value => {
                        return self.branch(
                            state,
                            value,
                            |this, state| this.act(state, at),
                            |this, state| this.try_rule(state, at + 1),
                        );
                    }
                },
                // The change of the map, or its fault, is that of this rule.
                RuleOp::Continue if state.block.is_none() => return self.try_rule(state, at + 1),
                // A condition that faults is false.
                RuleOp::MapLoad if from.is_condition => return None,
                RuleOp::MapStore => state.store(i)?,
                RuleOp::Submit => {
                    let end = state.submit(op, state.get(i.a)?)?;
                    let tag = state.int(HeaderRegister::Tag as u8)?;
                    return self.end(state, end, tag);
                }
                RuleOp::Complete => {
                    let (status, value) = (RuleStatus::from_code(i.imm), state.int(i.a)?);
                    return self.end(state, DirectEnd::Complete(status), value);
                }
                _ => state.registers[usize::from(i.d)] = Some(state.value(i)?),
            }
        }
    }

    /// Follows both ways of a comparison. Returns its node.
    fn branch(
        &mut self,
        mut state: SymbolicState,
        value: SymbolicValue,
        if_true: impl Fn(&mut Self, SymbolicState) -> Option<u16>,
        if_false: impl Fn(&mut Self, SymbolicState) -> Option<u16>,
    ) -> Option<u16> {
        let SymbolicValue::Test { test, is_negated } = value else { return None };
        state.depth += 1;
        let [mut yes, mut no] = [if_true(self, state.clone())?, if_false(self, state)?];
        if is_negated {
            std::mem::swap(&mut yes, &mut no);
        }
        self.push(DecisionNode::Test { test, if_true: yes, if_false: no })
    }

    fn end(&mut self, state: SymbolicState, end: DirectEnd, value: HeaderSum) -> Option<u16> {
        let is_at_block = match end {
            DirectEnd::Place { stream, is_mapped } => stream == PlacementStream::Host && is_mapped,
            DirectEnd::Read => true,
            DirectEnd::Complete(_) | DirectEnd::Unmatched(_) => false,
        };
        let is_unchanged = is_at_block
            && state.block == Some(HeaderSum::header(HeaderRegister::Lba))
            && value == HeaderSum::header(HeaderRegister::Tag);
        self.push(DecisionNode::End(DirectDecision {
            tried: state.tried.into(),
            ops: state.ops,
            ops_behind_fault: state.ops_behind_fault,
            block: state.block,
            end,
            is_unchanged,
            value,
            commands: 0,
        }))
    }
}
