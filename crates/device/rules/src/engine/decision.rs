//! [`CommandRules`]: how the commands of an application begin, and [`DirectDecision`]: the end of those
//! that need no execution.
//!
//! A rule without a condition that is the first of its list matches every command. Its action may only
//! place, read or complete, with values that are sums of a header register and a constant. Then its
//! end is computed when the program is installed, and a command evaluates the sums. Verdicts, faults,
//! counters and operations are those that the instructions would have had.

use crate::ids::RuleId;
use crate::instruction::{HeaderRegister, Instruction, REGISTERS, RuleOp};
use crate::program::{CodeRange, InputOp, RuleDeclaration};

use super::action::{
    PackedAddress, PlacementStream, RuleAddress, RuleInput, RuleStatus, RuleVerdict,
};

/// The rules of an application's commands with an operation.
#[derive(Clone, Debug)]
pub(super) struct CommandRules {
    /// The rules, in the order in which they are tried.
    pub(super) list: CodeRange,
    /// Operations in the worst case.
    pub(super) stated: u64,
    /// Addresses of the application's map.
    pub(super) map_len: u64,
    /// The end of all these commands, if it needs no execution.
    pub(super) direct: Option<DirectDecision>,
    /// Commands that ended so, without a fault.
    pub(super) decided: u64,
}

/// A header register plus a constant; only the constant without a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeaderSum {
    register: Option<HeaderRegister>,
    offset: u64,
}

impl HeaderRegister {
    /// Returns the value at the begin of a command.
    #[inline]
    fn of(self, input: &RuleInput) -> u64 {
        match self {
            HeaderRegister::Op => input.op as u64,
            HeaderRegister::Lba => input.lba,
            HeaderRegister::Sectors => input.sectors,
            HeaderRegister::Arg0 => input.arg0,
            HeaderRegister::Arg1 => input.arg1,
            HeaderRegister::Tag => input.tag,
            HeaderRegister::Buffer => input.buffer_bytes,
        }
    }
}

impl HeaderSum {
    /// The value of a register when a command begins.
    const fn header(register: HeaderRegister) -> HeaderSum {
        HeaderSum { register: Some(register), offset: 0 }
    }

    /// Returns the sum.
    #[inline]
    fn of(self, input: &RuleInput) -> u64 {
        self.register.map_or(0, |register| register.of(input)).wrapping_add(self.offset)
    }

    fn plus(self, other: HeaderSum) -> Option<HeaderSum> {
        let register = match (self.register, other.register) {
            (register, None) | (None, register) => register,
            _ => return None,
        };
        Some(HeaderSum { register, offset: self.offset.wrapping_add(other.offset) })
    }

    /// Returns the difference to a constant.
    fn minus(self, other: HeaderSum) -> Option<HeaderSum> {
        let offset = other.offset.wrapping_neg();
        other.register.is_none().then_some(())?;
        self.plus(HeaderSum { register: None, offset })
    }
}

/// How a direct decision ends.
#[derive(Clone, Copy, Debug)]
enum DirectEnd {
    Place {
        stream: PlacementStream,
        /// Whether the sectors are mapped at the block.
        is_mapped: bool,
    },
    /// The data that the block has is read.
    Read,
    Complete(RuleStatus),
}

/// Whether sectors from a block on are in a map.
#[inline(always)]
fn is_in_map(lba: u64, sectors: u64, map_len: u64) -> bool {
    lba.checked_add(sectors).is_some_and(|end| end <= map_len)
}

/// The end of commands that a rule decides about without execution.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectDecision {
    pub(super) rule: RuleId,
    /// Operations, the matching of the rule included.
    ops: u32,
    /// Operations if the block is past the end of the map.
    fault_ops: u32,
    /// The block at which the map is used, if it is.
    block: Option<HeaderSum>,
    end: DirectEnd,
    /// Whether the drive executes a command as it is, if its block is in the map: at its own block, with
    /// its own tag, and in the stream of the host if it is a write.
    is_unchanged: bool,
    /// The tag, or the value of a completed command.
    value: HeaderSum,
}

impl DirectDecision {
    /// Returns the decision about commands with an operation whose first rule is `rule`, if it is known.
    pub(super) fn new(
        rule: RuleId,
        declared: &RuleDeclaration,
        code: &[Instruction],
        op: InputOp,
    ) -> Option<DirectDecision> {
        let CodeRange { start, len } = declared.action;
        let action = &code[start as usize..(start + len) as usize];
        let is_always = declared.condition.len == 0;
        is_always.then(|| SymbolicAction::new(rule, op).run(action)).flatten()
    }

    /// Returns the most operations of a command.
    pub(super) fn ops_max(&self) -> u64 {
        self.ops.max(self.fault_ops).into()
    }

    /// Returns the operations of a command that does not fault, the matching of the rule included.
    pub(super) fn ops(&self) -> u64 {
        self.ops.into()
    }

    /// Returns the operations of a command that faults, the matching of the rule included.
    pub(super) fn fault_ops(&self) -> u64 {
        self.fault_ops.into()
    }

    /// Whether the drive executes a command as it is. The map of its application has `map_len`
    /// addresses.
    #[inline(always)]
    pub(super) fn is_unchanged(&self, input: &RuleInput, map_len: u64) -> bool {
        self.is_unchanged && is_in_map(input.lba, input.sectors, map_len)
    }

    /// Returns the verdict on a command of an application whose map has `map_len` addresses; `None` if
    /// its block is past the end.
    #[inline]
    pub(super) fn verdict(&self, input: &RuleInput, map_len: u64) -> Option<RuleVerdict> {
        let lba = self.block.map_or(0, |block| block.of(input));
        if self.block.is_some() && !is_in_map(lba, input.sectors, map_len) {
            return None;
        }
        let value = self.value.of(input);
        Some(match self.end {
            DirectEnd::Place { stream, is_mapped } => {
                RuleVerdict::Place { stream, mapped: is_mapped.then_some(lba), tag: value }
            }
            DirectEnd::Read => {
                RuleVerdict::Read { address: RuleAddress::Mapped { lba }, tag: value }
            }
            DirectEnd::Complete(status) => RuleVerdict::Complete { status, value },
        })
    }
}

/// A value that is known when the program is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SymbolicValue {
    Int(HeaderSum),
    /// The next address of a stream, in its packed form.
    Next(PackedAddress),
    /// Where the block is.
    Mapped,
}

/// An action whose values are followed without an input.
struct SymbolicAction {
    registers: [Option<SymbolicValue>; REGISTERS],
    origin: InputOp,
    /// The block at which the map is used. Another one has no direct decision.
    block: Option<HeaderSum>,
    fault_ops: u64,
    /// The address that is stored at the block.
    stored: Option<PackedAddress>,
    ops: u64,
    rule: RuleId,
}

impl SymbolicAction {
    fn new(rule: RuleId, origin: InputOp) -> SymbolicAction {
        let mut registers = [None; REGISTERS];
        for (value, register) in registers.iter_mut().zip(HeaderRegister::ALL) {
            *value = Some(SymbolicValue::Int(HeaderSum::header(register)));
        }
        // Matching costs an operation.
        SymbolicAction { registers, origin, block: None, fault_ops: 0, stored: None, ops: 1, rule }
    }

    /// Returns the decision at the end of the action; `None` if it needs execution.
    fn run(mut self, code: &[Instruction]) -> Option<DirectDecision> {
        let mut pc = 0;
        loop {
            let i = &code[pc];
            self.ops += u64::from(i.cost);
            pc += 1;
            let value = match i.op {
                RuleOp::Jump => {
                    pc = i.imm as usize;
                    continue;
                }
                RuleOp::MapStore => {
                    self.store(i)?;
                    continue;
                }
                RuleOp::Submit => return self.submit(i),
                RuleOp::Complete => {
                    let end = DirectEnd::Complete(RuleStatus::from_code(i.imm));
                    return self.decision(end, self.int(i.a)?);
                }
                _ => self.value(i)?,
            };
            self.registers[usize::from(i.d)] = Some(value);
        }
    }

    fn int(&self, register: u8) -> Option<HeaderSum> {
        match self.registers[usize::from(register)] {
            Some(SymbolicValue::Int(sum)) => Some(sum),
            _ => None,
        }
    }

    /// Returns the result of an instruction without effects.
    fn value(&mut self, i: &Instruction) -> Option<SymbolicValue> {
        Some(match i.op {
            RuleOp::Const => SymbolicValue::Int(HeaderSum { register: None, offset: i.imm }),
            RuleOp::MoveInt | RuleOp::MoveAddress => self.registers[usize::from(i.a)]?,
            RuleOp::Add => SymbolicValue::Int(self.int(i.a)?.plus(self.int(i.b)?)?),
            RuleOp::Sub => SymbolicValue::Int(self.int(i.a)?.minus(self.int(i.b)?)?),
            RuleOp::NextAddress => SymbolicValue::Next(PackedAddress::next(i.imm)),
            RuleOp::MapLoad => {
                self.use_block(i.a)?;
                self.stored.map_or(SymbolicValue::Mapped, SymbolicValue::Next)
            }
            _ => return None,
        })
    }

    /// Uses the map at a block. The first use faults if the block is past the end, and later ones of
    /// the same block do not.
    fn use_block(&mut self, register: u8) -> Option<()> {
        let block = self.int(register)?;
        if self.block.is_none() {
            (self.block, self.fault_ops) = (Some(block), self.ops);
        }
        (self.block == Some(block)).then_some(())
    }

    fn store(&mut self, i: &Instruction) -> Option<()> {
        self.use_block(i.a)?;
        match self.registers[usize::from(i.b)]? {
            SymbolicValue::Next(address) => self.stored = Some(address),
            _ => return None,
        }
        Some(())
    }

    fn submit(&self, i: &Instruction) -> Option<DirectDecision> {
        let end = match (self.origin, self.registers[usize::from(i.a)]?) {
            (InputOp::Write, SymbolicValue::Next(address)) => {
                let is_mapped = self.stored.is_some();
                if self.stored.is_some_and(|stored| stored != address) {
                    return None;
                }
                DirectEnd::Place { stream: address.stream()?, is_mapped }
            }
            (InputOp::Write | InputOp::Trim | InputOp::Flush, _) => return None,
            (_, SymbolicValue::Mapped) if self.stored.is_none() => DirectEnd::Read,
            _ => return None,
        };
        self.decision(end, self.int(HeaderRegister::Tag as u8)?)
    }

    fn decision(&self, end: DirectEnd, value: HeaderSum) -> Option<DirectDecision> {
        let (ops, fault_ops) = (self.ops.try_into().ok()?, self.fault_ops.try_into().ok()?);
        let (rule, block) = (self.rule, self.block);
        let is_at_block = match end {
            DirectEnd::Place { stream, is_mapped } => stream == PlacementStream::Host && is_mapped,
            DirectEnd::Read => true,
            DirectEnd::Complete(_) => false,
        };
        let is_unchanged = is_at_block
            && block == Some(HeaderSum::header(HeaderRegister::Lba))
            && value == HeaderSum::header(HeaderRegister::Tag);
        Some(DirectDecision { rule, ops, fault_ops, block, end, is_unchanged, value })
    }
}
