//! [`CommandRules`]: how the commands of an application begin, and [`DecisionTree`]: the ends of those
//! that need no execution.
//!
//! When a program is installed, [`SymbolicCommand`](super::symbolic::SymbolicCommand) follows its rules
//! without an input. Where they only compare, place, read and complete, with sums of a header register
//! and a constant, commands evaluate the comparisons and sums. Verdicts, faults, counters and
//! operations are those that the instructions would have had.

use crate::ids::RuleId;
use crate::instruction::HeaderRegister;
use crate::program::CodeRange;

use super::RuleCounters;
use super::action::{PlacementStream, RuleAddress, RuleInput, RuleStatus, RuleVerdict};

/// The rules of an application's commands with an operation.
#[derive(Clone, Debug)]
pub(super) struct CommandRules {
    /// The rules, in the order in which they are tried.
    pub(super) list: CodeRange,
    /// Operations in the worst case.
    pub(super) stated: u64,
    /// Addresses of the application's map.
    pub(super) map_len: u64,
    /// The ends of all these commands, if they need no execution.
    pub(super) direct: Option<DecisionTree>,
}

/// A header register plus a constant; only the constant without a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeaderSum {
    pub(super) register: Option<HeaderRegister>,
    pub(super) offset: u64,
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
    pub(super) const fn header(register: HeaderRegister) -> HeaderSum {
        HeaderSum { register: Some(register), offset: 0 }
    }

    /// Returns the sum.
    #[inline]
    fn of(self, input: &RuleInput) -> u64 {
        self.register.map_or(0, |register| register.of(input)).wrapping_add(self.offset)
    }

    pub(super) fn plus(self, other: HeaderSum) -> Option<HeaderSum> {
        let register = match (self.register, other.register) {
            (register, None) | (None, register) => register,
            _ => return None,
        };
        Some(HeaderSum { register, offset: self.offset.wrapping_add(other.offset) })
    }

    /// Returns the difference to a constant.
    pub(super) fn minus(self, other: HeaderSum) -> Option<HeaderSum> {
        let offset = other.offset.wrapping_neg();
        other.register.is_none().then_some(())?;
        self.plus(HeaderSum { register: None, offset })
    }
}

/// A comparison of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    /// Less than, both with a sign.
    LtSigned,
}

/// A comparison of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeaderTest {
    pub(super) comparison: Comparison,
    pub(super) a: HeaderSum,
    pub(super) b: HeaderSum,
}

impl HeaderTest {
    #[inline]
    fn is_true(&self, input: &RuleInput) -> bool {
        let (a, b) = (self.a.of(input), self.b.of(input));
        match self.comparison {
            Comparison::Eq => a == b,
            Comparison::Ne => a != b,
            Comparison::Lt => a < b,
            Comparison::Le => a <= b,
            Comparison::LtSigned => (a as i64) < b as i64,
        }
    }
}

/// How a direct decision ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum DirectEnd {
    Place {
        stream: PlacementStream,
        /// Whether the sectors are mapped at the block.
        is_mapped: bool,
    },
    /// The data that the block has is read.
    Read,
    Complete(RuleStatus),
    /// No rule decides.
    Unmatched(RuleVerdict),
}

/// A rule that is tried before a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct TriedRule {
    pub(super) rule: RuleId,
    pub(super) is_matched: bool,
    /// Operations of its condition and its action; of the last rule those up to the end.
    pub(super) ops: u64,
}

/// The end of commands that rules decide about without execution.
#[derive(Clone, Debug)]
pub(super) struct DirectDecision {
    /// The rules that are tried, the one that decides last.
    pub(super) tried: Box<[TriedRule]>,
    /// Operations, the matching of rules included.
    pub(super) ops: u64,
    /// Operations of the last rule that follow the first use of the map, which may fault.
    pub(super) ops_behind_fault: u64,
    /// The block at which the map is used, if it is.
    pub(super) block: Option<HeaderSum>,
    pub(super) end: DirectEnd,
    /// Whether the drive executes a command as it is, if its block is in the map: at its own block, with
    /// its own tag, and in the stream of the host if it is a write.
    pub(super) is_unchanged: bool,
    /// The tag, or the value of a completed command.
    pub(super) value: HeaderSum,
    /// Commands that ended so, without a fault.
    pub(super) commands: u64,
}

/// Whether sectors from a block on are in a map.
#[inline(always)]
fn is_in_map(lba: u64, sectors: u64, map_len: u64) -> bool {
    lba.checked_add(sectors).is_some_and(|end| end <= map_len)
}

impl DirectDecision {
    /// Whether the drive executes a command as it is. The map of its application has `map_len`
    /// addresses.
    #[inline(always)]
    pub(super) fn is_unchanged(&self, input: &RuleInput, map_len: u64) -> bool {
        self.is_unchanged && is_in_map(input.lba, input.sectors, map_len)
    }

    /// Returns the operations of a command that faults, the matching of rules included.
    pub(super) fn fault_ops(&self) -> u64 {
        self.ops - self.ops_behind_fault
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
            DirectEnd::Unmatched(verdict) => verdict,
        })
    }

    /// Adds a number of these commands, without a fault, to the counters of rules.
    pub(super) fn count(&self, commands: u64, counters: &mut [RuleCounters]) {
        for tried in &self.tried {
            let counters = &mut counters[tried.rule.index()];
            counters.matches += commands * u64::from(tried.is_matched);
            counters.ops += commands * tried.ops;
        }
    }

    /// Adds a command that faults to the counters of rules.
    pub(super) fn count_fault(&self, counters: &mut [RuleCounters]) {
        self.count(1, counters);
        if let Some(last) = self.tried.last() {
            let counters = &mut counters[last.rule.index()];
            counters.faults += 1;
            counters.ops -= self.ops_behind_fault;
        }
    }
}

/// A step of a decision.
#[derive(Clone, Debug)]
pub(super) enum DecisionNode {
    /// Goes on with a node, by its index.
    Test {
        test: HeaderTest,
        if_true: u16,
        if_false: u16,
    },
    End(DirectDecision),
}

/// The ends of commands that rules decide about without execution, behind comparisons.
///
/// Invariant: the nodes that a test goes on with come before it, and the first node of a command is the
/// last one.
#[derive(Clone, Debug)]
pub(super) struct DecisionTree {
    nodes: Box<[DecisionNode]>,
}

impl DecisionTree {
    /// Creates a tree of nodes in their order.
    pub(super) fn new(nodes: Vec<DecisionNode>) -> Option<DecisionTree> {
        (!nodes.is_empty()).then(|| DecisionTree { nodes: nodes.into() })
    }

    /// Returns the decision about a command.
    #[inline(always)]
    pub(super) fn find(&mut self, input: &RuleInput) -> Option<&mut DirectDecision> {
        let mut at = self.nodes.len().wrapping_sub(1);
        while let Some(DecisionNode::Test { test, if_true, if_false }) = self.nodes.get(at) {
            at = usize::from(if test.is_true(input) { *if_true } else { *if_false });
        }
        match self.nodes.get_mut(at) {
            Some(DecisionNode::End(decision)) => Some(decision),
            _ => None,
        }
    }

    /// Returns all decisions.
    pub(super) fn decisions(&self) -> impl Iterator<Item = &DirectDecision> {
        self.nodes.iter().filter_map(|node| match node {
            DecisionNode::End(decision) => Some(decision),
            DecisionNode::Test { .. } => None,
        })
    }
}
