//! Executes the code of a rule until it ends, acts or faults.
//!
//! Invariant: the code was verified, so that every register has a value of the needed type, every
//! jump is in the rule, and every table exists. Values are checked here.

use std::ops::Range;
use std::slice::Iter;

use crate::ids::{ContextId, RuleLine, TableId};
use crate::instruction::{HeaderRegister, Instruction, LOOP_DEPTH_MAX, REGISTERS, RuleOp};
use crate::program::{InputOp, RecordLayout};

use super::RuleCounters;
use super::action::{
    DriveFacts, LineFacts, PackedAddress, PlacementStream, RuleAction, RuleAddress, RuleStatus,
    RuleStep, RuleVerdict, TableChange,
};
use super::context::{Candidates, Execution, InputOrigin, LoopState};
use super::installed::InstalledRules;
use super::tables::TableState;

/// The integer and the line that mean *none*.
pub(super) const NONE: u64 = u64::MAX;

/// How the code of a part ended. It fits a register: the engine runs one for each condition and action.
#[derive(Clone, Copy, Debug)]
pub(super) enum CodeEnd {
    /// A condition's value.
    Matched(bool),
    /// The machine has the step of the input.
    Step,
    /// The next rule is tried.
    Continue,
    /// The changed input is matched from the first rule on.
    Again,
    /// A check of a value failed.
    Fault(RuleStatus),
}

/// Everything that the rules of an input can reach.
pub(super) struct RuleMachine<'a, F: ?Sized> {
    /// Instructions of all rules.
    pub(super) code: &'a [Instruction],
    pub(super) layouts: &'a [RecordLayout],
    pub(super) rules: &'a InstalledRules,
    pub(super) durable: &'a [bool],
    pub(super) tables: &'a mut [TableState],
    pub(super) counters: &'a mut [RuleCounters],
    pub(super) id: ContextId,
    pub(super) origin: InputOrigin,
    pub(super) candidates: &'a mut Candidates,
    pub(super) exec: &'a mut Execution,
    pub(super) registers: &'a mut [u64; REGISTERS],
    /// The fetched bytes.
    pub(super) page: &'a [u8],
    pub(super) facts: &'a F,
    /// The step of the input, once its rules have ended or act.
    pub(super) step: RuleStep,
}

/// Returns the value of a register.
macro_rules! get {
    ($m:expr, $r:expr) => {
        $m.registers[usize::from($r) % REGISTERS]
    };
}

/// Returns the value, or ends with a fault.
macro_rules! check {
    ($value:expr, $status:ident) => {
        match $value {
            Some(value) => value,
            None => return CodeEnd::Fault(RuleStatus::$status),
        }
    };
}

impl<F: DriveFacts + ?Sized> RuleMachine<'_, F> {
    /// Runs the code of a part from an instruction on, and adds its operations to those used. A loop
    /// pauses when `pause_at` operations are used.
    #[inline(always)]
    pub(super) fn execute(
        &mut self,
        code: &[Instruction],
        pc: u32,
        pause_at: u64,
        used: &mut u64,
    ) -> CodeEnd {
        let mut steps = code[pc as usize..].iter();
        loop {
            let Some(i) = steps.next() else { unreachable!("verified code ends in the part") };
            *used += u64::from(i.cost);
            let (a, b) = (get!(self, i.a), get!(self, i.b));
            let value = match i.op {
                RuleOp::Const => i.imm,
                RuleOp::ConstBool => u64::from(i.imm != 0),
                RuleOp::MoveInt | RuleOp::MoveBool | RuleOp::MoveAddress | RuleOp::MoveLine => a,
                RuleOp::Add => a.wrapping_add(b),
                RuleOp::Sub => a.wrapping_sub(b),
                RuleOp::Mul => a.wrapping_mul(b),
                RuleOp::Div => a.checked_div(b).unwrap_or(0),
                RuleOp::Rem => a.checked_rem(b).unwrap_or(0),
                RuleOp::And => a & b,
                RuleOp::Or => a | b,
                RuleOp::Xor => a ^ b,
                RuleOp::Shl => a << (b & 63),
                RuleOp::Shr => a >> (b & 63),
                RuleOp::Min => a.min(b),
                RuleOp::Max => a.max(b),
                RuleOp::Eq => u64::from(a == b),
                RuleOp::Ne => u64::from(a != b),
                RuleOp::Lt => u64::from(a < b),
                RuleOp::Le => u64::from(a <= b),
                RuleOp::LtSigned => u64::from((a as i64) < b as i64),
                RuleOp::Not => u64::from(a == 0),
                RuleOp::IsNoneInt | RuleOp::IsNoneLine => u64::from(a == NONE),
                RuleOp::Idle => u64::from(self.facts.is_idle(self.origin.app)),
                RuleOp::FreeLines => self.facts.free_lines(self.origin.app),
                RuleOp::WearMin => self.facts.wear_min(self.origin.app),
                RuleOp::WearMax => self.facts.wear_max(self.origin.app),
                RuleOp::Lines => self.facts.lines(self.origin.app),
                RuleOp::LineAt => self.line_at(a),
                RuleOp::NoLine => NONE,
                RuleOp::LineFact => check!(self.line_fact(a, i.imm), IndexOutOfRange),
                RuleOp::TableLoad => check!(self.tables[i.imm as usize].load(a), IndexOutOfRange),
                RuleOp::TableContains => u64::from(self.tables[i.imm as usize].has_key(a)),
                RuleOp::TableFree => self.tables[i.imm as usize].free(),
                RuleOp::MapLoad => check!(self.map_load(a), IndexOutOfRange),
                RuleOp::NextAddress => PackedAddress::next(i.imm).0,
                RuleOp::NamedAddress => check!(PackedAddress::named(a), BadAddress).0,
                RuleOp::FieldLoad => check!(self.field(i, a, b), IndexOutOfRange),
                RuleOp::SearchLast => {
                    check!(self.search(i, a, b, get!(self, i.c)), IndexOutOfRange)
                }
                RuleOp::Jump => {
                    steps = code[i.imm as usize..].iter();
                    continue;
                }
                RuleOp::JumpIfNot => {
                    if a == 0 {
                        steps = code[i.imm as usize..].iter();
                    }
                    continue;
                }
                RuleOp::Loop => {
                    let limit = a.min(i.low().into());
                    if limit == 0 {
                        steps = code[i.high() as usize..].iter();
                        continue;
                    }
                    self.exec.loops[usize::from(i.c) % LOOP_DEPTH_MAX] =
                        LoopState { count: 0, limit };
                    0
                }
                RuleOp::LoopEnd => {
                    let state = &mut self.exec.loops[usize::from(i.c) % LOOP_DEPTH_MAX];
                    state.count += 1;
                    if state.count < state.limit {
                        let count = state.count;
                        steps = code[i.imm as usize..].iter();
                        if let Some(begin) = steps.next() {
                            get!(self, begin.d) = count;
                        }
                        if *used >= pause_at {
                            return self.act(code, steps, RuleAction::Pause);
                        }
                    }
                    continue;
                }
                RuleOp::Match => return CodeEnd::Matched(a != 0),
                RuleOp::TableStore => match self.store(i.imm, a, b) {
                    Ok(None) => continue,
                    Ok(Some(change)) => return self.act(code, steps, RuleAction::Journal(change)),
                    Err(status) => return CodeEnd::Fault(status),
                },
                RuleOp::TableInsert => match self.store(i.imm, a, 0) {
                    Ok(None) => continue,
                    Ok(Some(change)) => return self.act(code, steps, RuleAction::Journal(change)),
                    Err(status) => return CodeEnd::Fault(status),
                },
                RuleOp::TableRemove => {
                    let table = i.imm as usize;
                    if self.tables[table].remove(a) && self.durable[table] {
                        let table = TableId::from_index(table);
                        let change = TableChange { table, key: a, value: None };
                        return self.act(code, steps, RuleAction::Journal(change));
                    }
                    continue;
                }
                RuleOp::MapStore => match self.map_store(a, b) {
                    Ok(()) => continue,
                    Err(status) => return CodeEnd::Fault(status),
                },
                RuleOp::SetOp => {
                    get!(self, HeaderRegister::Op as u8) = i.imm;
                    continue;
                }
                RuleOp::Fetch => return self.act(code, steps, RuleAction::Fetch { lba: a }),
                RuleOp::Emit => return self.emit(code, steps, i.imm, a),
                RuleOp::MoveValid | RuleOp::MoveValidUpTo => {
                    let Some(line) = line(a) else {
                        return self.verdict(RuleVerdict::Finished);
                    };
                    let stream = PlacementStream::from_code(i.imm);
                    let units = (i.op == RuleOp::MoveValidUpTo).then_some(b);
                    return self.act(code, steps, RuleAction::MoveValid { line, stream, units });
                }
                RuleOp::Erase => {
                    let Some(line) = line(a) else {
                        return self.verdict(RuleVerdict::Finished);
                    };
                    return self.act(code, steps, RuleAction::Erase { line });
                }
                RuleOp::Post => {
                    let values = [a, b, get!(self, i.c)];
                    return self.act(code, steps, RuleAction::Post { kind: i.imm as u16, values });
                }
                RuleOp::Submit => return self.submit(PackedAddress(a)),
                RuleOp::Complete => return self.complete(RuleStatus::from_code(i.imm), a),
                RuleOp::Continue => return CodeEnd::Continue,
                RuleOp::Again => return CodeEnd::Again,
                RuleOp::End => return self.verdict(RuleVerdict::Finished),
            };
            get!(self, i.d) = value;
        }
    }

    #[inline]
    fn act(
        &mut self,
        code: &[Instruction],
        steps: Iter<'_, Instruction>,
        action: RuleAction,
    ) -> CodeEnd {
        self.exec.pc = (code.len() - steps.len()) as u32;
        self.step = RuleStep::Do(self.id, action);
        CodeEnd::Step
    }

    #[inline]
    fn verdict(&mut self, verdict: RuleVerdict) -> CodeEnd {
        self.step = RuleStep::Done(verdict);
        CodeEnd::Step
    }

    #[inline]
    pub(super) fn complete(&mut self, status: RuleStatus, value: u64) -> CodeEnd {
        self.verdict(RuleVerdict::Complete { status, value })
    }

    fn line_at(&self, index: u64) -> u64 {
        match index < self.facts.lines(self.origin.app) {
            true => self.facts.line_at(self.origin.app, index).get().into(),
            false => NONE,
        }
    }

    fn line_fact(&self, value: u64, which: u64) -> Option<u64> {
        let LineFacts { sectors, valid, age, erases } =
            self.facts.line_facts(self.origin.app, line(value)?);
        Some(match which {
            0 => sectors,
            1 => valid,
            2 => age,
            _ => erases,
        })
    }

    /// Whether the input's sectors from a logical block on are in the map.
    #[inline]
    fn is_mapped(&self, lba: u64) -> bool {
        let sectors = get!(self, HeaderRegister::Sectors as u8);
        lba.checked_add(sectors).is_some_and(|end| end <= self.origin.map_len)
    }

    #[inline]
    fn map_load(&self, lba: u64) -> Option<u64> {
        if self.exec.map_change.is_some_and(|change| change.lba == lba) {
            return self.exec.map_change.map(|change| change.address.0);
        }
        self.is_mapped(lba).then(|| PackedAddress::mapped(lba).0)
    }

    #[inline]
    fn map_store(&mut self, lba: u64, address: u64) -> Result<(), RuleStatus> {
        let address = PackedAddress(address);
        if !self.is_mapped(lba) {
            return Err(RuleStatus::IndexOutOfRange);
        }
        if address.stream().is_none() {
            return Err(RuleStatus::BadAddress);
        }
        self.exec.map_change = Some(super::context::MapChange { lba, address });
        Ok(())
    }

    /// Stores in a table; returns the change if it must be journaled.
    #[inline]
    fn store(&mut self, at: u64, key: u64, value: u64) -> Result<Option<TableChange>, RuleStatus> {
        let at = at as usize;
        let table = &mut self.tables[at];
        if table.store(key, value)? && self.durable[at] {
            let value = Some(table.stored(value));
            return Ok(Some(TableChange { table: TableId::from_index(at), key, value }));
        }
        Ok(None)
    }

    /// Returns the bytes of a record.
    fn record(&self, layout: usize, record: u64) -> Option<Range<usize>> {
        let bytes = self.layouts[layout].bytes as usize;
        let start = usize::try_from(record).ok()?.checked_mul(bytes)?;
        let end = start.checked_add(bytes)?;
        (end <= self.page.len()).then_some(start..end)
    }

    fn field(&self, i: &Instruction, record: u64, element: u64) -> Option<u64> {
        let (layout, field) = (i.low() as usize, i.high() as usize);
        let bytes = self.record(layout, record)?;
        let field = &self.layouts[layout].fields[field];
        if element >= field.count.into() {
            return None;
        }
        let width = field.width.bytes() as usize;
        let start = bytes.start + field.offset as usize + element as usize * width;
        let mut word = [0; 8];
        word[..width].copy_from_slice(self.page.get(start..start + width)?);
        Some(u64::from_le_bytes(word))
    }

    /// Returns the index of the last element that is at most `key`, or [`NONE`].
    fn search(&self, i: &Instruction, count: u64, key: u64, record: u64) -> Option<u64> {
        let layout = &self.layouts[i.low() as usize];
        let count = count.min(layout.fields[i.high() as usize].count.into());
        self.record(i.low() as usize, record)?;
        // Elements below `low` are at most the key, and those from `high` on are larger.
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = (low + high) / 2;
            match self.field(i, record, middle)? <= key {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Some(low.checked_sub(1).unwrap_or(NONE))
    }

    fn emit(
        &mut self,
        code: &[Instruction],
        steps: Iter<'_, Instruction>,
        layout: u64,
        record: u64,
    ) -> CodeEnd {
        let bytes = check!(self.record(layout as usize, record), IndexOutOfRange);
        let (offset, len) = (self.exec.emitted, bytes.len() as u64);
        if offset + len > get!(self, HeaderRegister::Buffer as u8) {
            return self.complete(RuleStatus::OutputFull, offset);
        }
        self.exec.emitted += len;
        self.act(code, steps, RuleAction::Emit { offset, bytes })
    }

    #[inline]
    fn submit(&mut self, address: PackedAddress) -> CodeEnd {
        let tag = get!(self, HeaderRegister::Tag as u8);
        if self.exec.origin == InputOp::Write as u64 {
            let Some(stream) = address.stream() else {
                return CodeEnd::Fault(RuleStatus::BadAddress);
            };
            let mapped = match self.exec.map_change {
                None => None,
                Some(change) if change.address == address => Some(change.lba),
                Some(_) => return CodeEnd::Fault(RuleStatus::BadAddress),
            };
            return self.verdict(RuleVerdict::Place { stream, mapped, tag });
        }
        // A trim frees a sector with a name. The drive has the map, and unmaps logical blocks itself.
        let is_trim = self.exec.origin == InputOp::Trim as u64;
        let has_sector =
            self.exec.origin != InputOp::Flush as u64 && self.exec.map_change.is_none();
        let is_named = |address: &RuleAddress| matches!(address, RuleAddress::Named { .. });
        match address.source().filter(|address| has_sector && (!is_trim || is_named(address))) {
            Some(address) => self.verdict(RuleVerdict::Read { address, tag }),
            None => CodeEnd::Fault(RuleStatus::BadAddress),
        }
    }
}

#[inline]
fn line(value: u64) -> Option<RuleLine> {
    u32::try_from(value).ok().map(RuleLine::new)
}
