//! [`TargetRuleKeys`]: the rules of `[target] kind = "rules"`, keys of the target.

use media::{MediaConfig, NandConfig};
use pblk::{TargetRulesConfig, TargetRulesError};
use rules::{RuleLimits, RuleLocation, VerifiedProgram};
use rules_lang::CompileOptions;

use super::{NotExecuted, ProgramKeys};
use crate::capacity::Capacity;
use crate::error::ProblemKind;
use crate::section::{Result, Section};
use crate::source::SourceSpan;
use crate::target::RulesTarget;

/// Keys of `[drive.rules]` that a target does not have, with the reasons.
const DRIVE_KEYS: [(&str, &str); 5] = [
    ("engines", "the host runs one input of a target after the other"),
    ("op", "the engine runs on the host, whose time is its own"),
    ("miss_timeout", "a request without a rule ends at once"),
    ("parked", "a request without a rule ends at once"),
    ("durable_memory", "a target has no durable tables"),
];

/// Keys that only a target with rules has.
const RULE_KEYS: [&str; 6] =
    ["program", "template", "ops", "table_memory", "idle_poll", "hot_stream"];

/// The rules of a target.
#[derive(Clone, Debug)]
pub(crate) struct TargetRuleKeys {
    program: ProgramKeys,
}

impl TargetRuleKeys {
    /// Reads the keys of a target of kind `rules`.
    pub(crate) fn read(target: &mut Section<'_>) -> Result<TargetRuleKeys> {
        if let Some((key, span)) = target.first_of(&DRIVE_KEYS.map(|(key, _)| key)) {
            let reason = DRIVE_KEYS.iter().find(|(other, _)| *other == key).map_or("", |r| r.1);
            let message = format!("`{key}` is for the rules of a drive: {reason}");
            let help = format!("remove `{key}`");
            return Err(span.error(ProblemKind::Conflict { message, help }));
        }
        Ok(TargetRuleKeys { program: ProgramKeys::read(target)? })
    }

    /// Refuses the keys on a target of another kind; if the target is disabled, ignores them.
    pub(crate) fn refuse(target: &mut Section<'_>, is_disabled: bool) -> Result<()> {
        if is_disabled {
            RULE_KEYS.iter().for_each(|key| drop(target.get(key)));
        }
        match target.first_of(&RULE_KEYS) {
            Some((key, span)) if !is_disabled => {
                let message = format!("`{key}` is a key of a target with rules");
                let help = format!("set kind = \"rules\", or remove `{key}`");
                Err(span.error(ProblemKind::Conflict { message, help }))
            }
            _ => Ok(()),
        }
    }

    /// Whether the target has the stream `hot`.
    pub(crate) fn has_hot_stream(&self) -> bool {
        self.program.hot_stream
    }

    /// Compiles the program of a target on a drive with these media, whose capacity is known. `at` is the
    /// kind of the target.
    pub(crate) fn finish(
        &self,
        target: &mut RulesTarget,
        media: &MediaConfig,
        capacity: Option<&Capacity>,
        at: &SourceSpan,
    ) -> Result<()> {
        let MediaConfig::Nand(nand) = media else {
            return Err(at.error(ProblemKind::Conflict {
                message: "rules decide about flash, and the media are none".into(),
                help: "set media = \"nand\", or another target".into(),
            }));
        };
        let sector_bytes = u64::from(nand.geometry.sector_bytes.max(1));
        let capacity = capacity.map(|c| c.logical_bytes() / sector_bytes);
        target.rules = self.compile(target, nand, capacity)?;
        Ok(())
    }

    fn compile(
        &self,
        target: &RulesTarget,
        nand: &NandConfig,
        capacity: Option<u64>,
    ) -> Result<TargetRulesConfig> {
        let ProgramKeys { ops, table_bytes, idle_poll, .. } = self.program;
        let config = TargetRulesConfig { program: Vec::new(), ops, table_bytes, idle_poll };
        let (geometry, ftl) = (nand.host_geometry(), &target.ftl);
        let RuleLimits { grant, sector_bytes, lines } = config.limits(&geometry, ftl.active_pus);
        let options = CompileOptions { grant, sector_bytes, lines };
        let last_unit = nand.geometry.total_pus().saturating_sub(1);
        let check = |verified: &VerifiedProgram| {
            TargetRulesConfig::check_executable(verified, &geometry, ftl, capacity)
                .map_err(not_executed)
        };
        let program = self.program.compile(last_unit, ftl, &options, check)?;
        Ok(TargetRulesConfig { program, ..config })
    }
}

/// Returns the error of a program that a target does not execute.
fn not_executed(error: TargetRulesError) -> NotExecuted {
    let help = match &error {
        TargetRulesError::NotExecuted { .. } => "docs/rules.md has what a target executes",
        TargetRulesError::NoHotStream(_) => "set hot_stream = true, or place it in host",
        _ => "change the program, or the target",
    };
    let message = error.to_string();
    let location = match error {
        TargetRulesError::NotExecuted { need, .. } | TargetRulesError::NoHotStream(need) => {
            need.location
        }
        _ => RuleLocation::default(),
    };
    NotExecuted { message, help, location }
}
