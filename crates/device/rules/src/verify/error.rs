//! [`VerifyError`]: why a program is not accepted.

use std::fmt;

use crate::program::{ProgramLimits, RuleLocation};

/// A rule on the path with the worst-case cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostStep {
    /// Name of the rule.
    pub rule: String,
    /// Where it begins in its source.
    pub location: RuleLocation,
    /// Operations of the rule on the path.
    pub ops: u64,
}

/// A program that is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// More of something than any program may have.
    #[error("the program has {count} {part}, more than {limit}")]
    Limit {
        /// The part.
        part: &'static str,
        /// Its number.
        count: u64,
        /// The limit.
        limit: u64,
    },
    /// Two of a kind have one name.
    #[error("two {part} have the name {name}")]
    DuplicateName {
        /// The part.
        part: &'static str,
        /// The name.
        name: String,
    },
    /// The units of an application are not on the drive.
    #[error("application {app} has parallel units {first} to {last}, and the drive has {units}")]
    Units {
        /// The application.
        app: String,
        /// Its first unit.
        first: u32,
        /// Its last unit.
        last: u32,
        /// Units of the drive.
        units: u32,
    },
    /// Two applications share a unit, and one of them has units that the other one does not have.
    #[error(
        "applications {first} and {second} share parallel units, but not all of them: declare the same \
         units for both, or disjoint ones"
    )]
    SharedUnits {
        /// An application.
        first: String,
        /// The other application.
        second: String,
    },
    /// The quota of an application is impossible, or missing.
    #[error("the quota of application {app}: {problem}")]
    Quota {
        /// The application.
        app: String,
        /// The problem.
        problem: &'static str,
    },
    /// The application may not be used, or has other units than granted.
    #[error("application {app} with parallel units {first} to {last} is not granted")]
    AppNotGranted {
        /// The application.
        app: String,
        /// Its first unit.
        first: u32,
        /// Its last unit.
        last: u32,
    },
    /// The application has more logical sectors than its units.
    #[error("application {app} has {sectors} sectors, and its parallel units have {available}")]
    Sectors {
        /// The application.
        app: String,
        /// Its logical sectors.
        sectors: u64,
        /// Sectors of its units.
        available: u64,
    },
    /// A record layout is impossible.
    #[error("record {record}: {problem}")]
    Record {
        /// The record.
        record: String,
        /// The problem.
        problem: &'static str,
    },
    /// A table is impossible.
    #[error("table {table}: {problem}")]
    Table {
        /// The table.
        table: String,
        /// The problem.
        problem: &'static str,
    },
    /// The tables need more memory than granted.
    #[error("the tables need {needed} bytes, and {granted} are granted; the largest is {largest}")]
    TableMemory {
        /// Bytes of all tables.
        needed: u64,
        /// Bytes granted.
        granted: u64,
        /// The largest table.
        largest: String,
    },
    /// A global rule without a grant.
    #[error("rule {rule} is global, and global rules are not granted")]
    GlobalNotGranted {
        /// The rule.
        rule: String,
        /// Where it begins.
        location: RuleLocation,
    },
    /// A rule is about lines or names of sectors, and its application shares its parallel units.
    #[error(
        "rule {rule} is about lines or names of sectors, and its application shares its parallel units: \
         lines have data of others, too, and the drive's policy collects them"
    )]
    SharedLines {
        /// The rule.
        rule: String,
        /// Where it begins.
        location: RuleLocation,
    },
    /// A priority on the wrong side of the border between applications and the global policy.
    #[error(
        "rule {rule} has priority {priority}; those of applications are below {}, and those of global rules are not",
        ProgramLimits::MAX.global_priority
    )]
    Priority {
        /// The rule.
        rule: String,
        /// Where it begins.
        location: RuleLocation,
        /// Its priority.
        priority: u32,
    },
    /// Two rules of equal priority can match one input.
    #[error(
        "rules {first} and {second} both have priority {priority} and can match the same input"
    )]
    Ambiguous {
        /// A rule.
        first: String,
        /// The other rule.
        second: String,
        /// Where the other rule begins.
        location: RuleLocation,
        /// Their priority.
        priority: u32,
    },
    /// A rule is not accepted.
    #[error("rule {rule}, instruction {instruction}: {problem}")]
    Rule {
        /// The rule.
        rule: String,
        /// Where it begins.
        location: RuleLocation,
        /// Index of the instruction in the program.
        instruction: u32,
        /// The problem.
        problem: RuleProblem,
    },
    /// An input may cost more than granted.
    #[error("{input} may need {cost} operations, more than {budget}: {}", path(steps, *hops))]
    Cost {
        /// The input: an operation of an application, or a trigger.
        input: String,
        /// Operations in the worst case.
        cost: u64,
        /// Operations granted.
        budget: u64,
        /// Rules on the path, in order; the path is repeated for each hop.
        steps: Vec<CostStep>,
        /// Hops of the input.
        hops: u8,
    },
}

impl VerifyError {
    /// Returns where the error is in the source; `None` if it is not about a rule.
    pub fn location(&self) -> Option<RuleLocation> {
        match self {
            VerifyError::GlobalNotGranted { location, .. }
            | VerifyError::SharedLines { location, .. }
            | VerifyError::Priority { location, .. }
            | VerifyError::Ambiguous { location, .. }
            | VerifyError::Rule { location, .. } => Some(*location),
            VerifyError::Cost { steps, .. } => {
                steps.iter().max_by_key(|step| step.ops).map(|step| step.location)
            }
            _ => None,
        }
    }
}

fn path(steps: &[CostStep], hops: u8) -> String {
    let step = |s: &CostStep| {
        format!("{} (line {}, column {}): {}", s.rule, s.location.line, s.location.column, s.ops)
    };
    let steps = steps.iter().map(step).collect::<Vec<_>>().join(", then ");
    match hops {
        0 => steps,
        hops => format!("{steps}, with up to {hops} hops"),
    }
}

/// Why a rule is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleProblem {
    /// The application does not exist.
    UnknownApp,
    /// The code is not in the program.
    CodeRange,
    /// The rule has no action, or operations for a trigger that has none, or none for a command.
    Form,
    /// More hops than any rule may have.
    Hops,
    /// A register number is too large.
    Register(u8),
    /// A register has another type than the instruction needs, or no value.
    Operand(u8),
    /// The register is read-only.
    ReadOnly(u8),
    /// A jump does not go forward in the rule, or goes into a loop.
    Jump,
    /// A loop is not closed, or not at its depth, or too deep.
    LoopForm,
    /// No path leads to the instruction.
    Unreachable,
    /// A path runs past the end.
    NoEnd,
    /// The instruction is not allowed in a condition, or only there.
    Part,
    /// The instruction is not allowed with the rule's trigger.
    Trigger,
    /// A table that does not exist, or of another kind.
    Table,
    /// A table of another application.
    ForeignTable,
    /// A record layout or a field that does not exist.
    Layout,
    /// An unknown operation, stream, status or number of a line.
    Constant,
}

impl fmt::Display for RuleProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleProblem::Register(r) => return write!(f, "there is no register {r}"),
            RuleProblem::Operand(r) => {
                return write!(f, "register {r} has no value of the type that is needed");
            }
            RuleProblem::ReadOnly(r) => return write!(f, "register {r} cannot be changed"),
            _ => {}
        }
        f.write_str(match self {
            RuleProblem::UnknownApp => "the application does not exist",
            RuleProblem::CodeRange => "the code is not in the program",
            RuleProblem::Form => "a command rule needs operations, and every rule an action",
            RuleProblem::Hops => "more hops than 64",
            RuleProblem::Jump => "a jump goes backward, out of the rule, or into a loop",
            RuleProblem::LoopForm => "a loop is not closed, or is not at its depth",
            RuleProblem::Unreachable => "no path leads to the instruction",
            RuleProblem::NoEnd => "a path runs past the end of the rule",
            RuleProblem::Part => "the instruction is not allowed in this part of a rule",
            RuleProblem::Trigger => "the instruction is not allowed with the rule's trigger",
            RuleProblem::Table => "the table does not exist, or is of another kind",
            RuleProblem::ForeignTable => "the table is another application's",
            RuleProblem::Layout => "the record or the field does not exist",
            RuleProblem::Constant => "the constant is not known",
            RuleProblem::Register(_) | RuleProblem::Operand(_) | RuleProblem::ReadOnly(_) => "",
        })
    }
}
