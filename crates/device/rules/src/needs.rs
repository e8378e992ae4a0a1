//! [`RuleNeed`]: what a program needs of the drive beyond commands, host data and tables. A drive
//! compares it with what it executes, before it installs the program.

use std::fmt;

use crate::engine::PlacementStream;
use crate::ids::AppId;
use crate::instruction::{HeaderRegister, Instruction, RuleOp};
use crate::program::{CodeRange, OpMask, RuleDeclaration, RuleLocation, RuleTrigger, TableKind};
use crate::verify::VerifiedProgram;

/// Something that a drive executes for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleFeature {
    /// Several applications.
    Apps,
    /// Applications that share parallel units.
    SharedUnits,
    /// Writes that are placed in a stream.
    Place(PlacementStream),
    /// Valid data that is moved to a stream.
    Move(PlacementStream),
    /// Sectors that a rule reads.
    Fetch,
    /// Events for the host.
    Post,
    /// Physical names of sectors.
    Names,
    /// Tags in out-of-band bytes.
    Tags,
    /// Tables whose changes are journaled.
    DurableTables,
    /// Periodic rules.
    Periodic,
    /// Rules for moved sectors.
    Moved,
}

impl fmt::Display for RuleFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |stream: &PlacementStream| {
            let known = PlacementStream::ALL.iter().find(|(other, _)| other == stream);
            known.map_or("", |(_, name)| name)
        };
        match self {
            RuleFeature::Apps => write!(f, "several applications"),
            RuleFeature::SharedUnits => write!(f, "applications that share parallel units"),
            RuleFeature::Place(stream) => write!(f, "writes in the stream `{}`", name(stream)),
            RuleFeature::Move(stream) => {
                write!(f, "valid data that moves to the stream `{}`", name(stream))
            }
            RuleFeature::Fetch => write!(f, "sectors that a rule reads"),
            RuleFeature::Post => write!(f, "events for the host"),
            RuleFeature::Names => write!(f, "physical names of sectors"),
            RuleFeature::Tags => write!(f, "tags of sectors"),
            RuleFeature::DurableTables => write!(f, "durable tables of integers"),
            RuleFeature::Periodic => write!(f, "periodic rules"),
            RuleFeature::Moved => write!(f, "rules for moved sectors"),
        }
    }
}

/// A feature that a program needs, with the first part that needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleNeed {
    /// The feature.
    pub feature: RuleFeature,
    /// Name of the rule, the table or the application.
    pub part: String,
    /// Where the rule is in its source; unknown for a table and an application.
    pub location: RuleLocation,
}

impl VerifiedProgram {
    /// Returns the features that the program needs, each once.
    pub fn needs(&self) -> Vec<RuleNeed> {
        let program = self.program();
        let mut needs: Vec<RuleNeed> = Vec::new();
        let mut add = |feature, part: &str, location| {
            if needs.iter().all(|need| need.feature != feature) {
                needs.push(RuleNeed { feature, part: part.to_owned(), location });
            }
        };
        if let Some(second) = program.apps.get(1) {
            add(RuleFeature::Apps, &second.name, RuleLocation::default());
        }
        if let Some(thin) = program.apps.iter().find(|app| app.is_thin()) {
            add(RuleFeature::SharedUnits, &thin.name, RuleLocation::default());
        }
        for table in &program.tables {
            if table.is_durable && table.kind != TableKind::Address {
                add(RuleFeature::DurableTables, &table.name, RuleLocation::default());
            }
        }
        for rule in &program.rules {
            match rule.trigger {
                RuleTrigger::Every { .. } => add(RuleFeature::Periodic, &rule.name, rule.location),
                RuleTrigger::Moved => add(RuleFeature::Moved, &rule.name, rule.location),
                RuleTrigger::Command | RuleTrigger::Background => {}
            }
            for CodeRange { start, len } in [rule.condition, rule.action] {
                let code = &program.code[start as usize..(start + len) as usize];
                for feature in code.iter().filter_map(feature_of) {
                    add(feature, &rule.name, rule.location);
                }
            }
        }
        needs
    }
}

impl VerifiedProgram {
    /// Returns the operations of commands of an application that may fetch sectors: those with a rule
    /// that does, and those that a rule may match again as another operation if any rule fetches.
    pub fn fetching_ops(&self, app: AppId) -> OpMask {
        let program = self.program();
        let has = |rule: &RuleDeclaration, op: RuleOp| {
            [rule.condition, rule.action].iter().any(|CodeRange { start, len }| {
                let code = &program.code[*start as usize..(start + len) as usize];
                code.iter().any(|instruction| instruction.op == op)
            })
        };
        let fetches_any = program.rules.iter().any(|rule| has(rule, RuleOp::Fetch));
        let rules = program.rules.iter().filter(|rule| {
            let is_own = rule.app == app && rule.trigger == RuleTrigger::Command;
            is_own && (has(rule, RuleOp::Fetch) || fetches_any && has(rule, RuleOp::Again))
        });
        rules.fold(OpMask::NONE, |mask, rule| OpMask(mask.0 | rule.ops.0))
    }
}

/// Returns the feature that an instruction needs.
fn feature_of(instruction: &Instruction) -> Option<RuleFeature> {
    let stream = PlacementStream::from_code(instruction.imm);
    match instruction.op {
        RuleOp::NextAddress => Some(RuleFeature::Place(stream)),
        RuleOp::MoveValid | RuleOp::MoveValidUpTo => Some(RuleFeature::Move(stream)),
        RuleOp::Fetch | RuleOp::Emit => Some(RuleFeature::Fetch),
        RuleOp::Post => Some(RuleFeature::Post),
        RuleOp::NamedAddress => Some(RuleFeature::Names),
        op if op.result().is_some() && instruction.d == HeaderRegister::Tag as u8 => {
            Some(RuleFeature::Tags)
        }
        _ => None,
    }
}
