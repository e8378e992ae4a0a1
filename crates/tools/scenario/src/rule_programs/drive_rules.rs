//! [`RulesBuilder`]: `personality = "rules"` and the section `[drive.rules]`. A program is compiled and
//! verified when the scenario is read, for the drive that it is for.

use std::ops::RangeInclusive;

use controller::{
    DriveConfig, DriveRulesConfig, DriveRulesError, RuleMissConfig, check_executable, needs_names,
};
use ftl::FtlConfig;
use media::{MediaConfig, NandConfig};
use rules::{RuleLimits, RuleLocation, VerifiedProgram};
use rules_lang::CompileOptions;
use time::Nanos;

use super::{NotExecuted, ProgramKeys};
use crate::capacity::Capacity;
use crate::error::ProblemKind;
use crate::ranges::STEP_TIME;
use crate::section::{Result, Section, Value};
use crate::source::SourceSpan;

/// Commands of a submission queue that are parked at most.
const PARKED: RangeInclusive<u32> = 0..=65_536;

/// The keys of `[drive.rules]`.
#[derive(Clone, Debug)]
struct RuleKeys {
    program: ProgramKeys,
    engines: u32,
    op: Nanos,
    /// Bytes that the journal of the FTL keeps for durable tables.
    durable_bytes: u32,
    misses: RuleMissConfig,
}

/// Builder of the rules of a drive.
#[derive(Clone, Debug, Default)]
pub(crate) struct RulesBuilder {
    /// Whether the personality is `rules`.
    pub(crate) is_chosen: bool,
    keys: Option<(RuleKeys, SourceSpan)>,
}

impl RuleKeys {
    fn read(value: &Value<'_>) -> Result<RuleKeys> {
        let mut s = value.section()?;
        let program = ProgramKeys::read(&mut s)?;
        let mut keys = RuleKeys {
            program,
            engines: 1,
            op: Nanos::ZERO,
            durable_bytes: 0,
            misses: RuleMissConfig::default(),
        };
        let engines = 1..=u32::from(DriveRulesConfig::ENGINES_MAX);
        s.set("engines", &mut keys.engines, |v| v.u32_in(&engines))?;
        s.set("op", &mut keys.op, |v| v.duration_in(&STEP_TIME))?;
        if let Some(value) = s.get("durable_memory") {
            keys.durable_bytes = value.size_u32()?;
        }
        s.set("miss_timeout", &mut keys.misses.timeout, |v| v.duration_in(&STEP_TIME))?;
        s.set("parked", &mut keys.misses.parked_max, |v| v.u32_in(&PARKED))?;
        s.finish()?;
        Ok(keys)
    }
}

impl RulesBuilder {
    /// Reads the section `rules` of a drive.
    pub(crate) fn read(&mut self, drive: &mut Section<'_>) -> Result<()> {
        if let Some(value) = drive.get("rules") {
            self.keys = Some((RuleKeys::read(&value)?, value.source_span()));
        }
        Ok(())
    }

    /// Whether the drive has the stream `hot`.
    pub(crate) fn has_hot_stream(&self) -> bool {
        self.keys.as_ref().is_some_and(|(keys, _)| keys.program.hot_stream)
    }

    /// Returns the bytes that the journal of the FTL keeps for durable tables, which are part of its capacity.
    pub(crate) fn owner_bytes(&self) -> u32 {
        self.keys.as_ref().map_or(0, |(keys, _)| keys.durable_bytes)
    }

    /// Whether the sectors of a drive with these media have names. A program with errors has none: it is
    /// refused later.
    pub(crate) fn has_names(&self, media: &MediaConfig, ftl: &FtlConfig) -> bool {
        match (&self.keys, self.is_chosen, media) {
            (Some((keys, _)), true, MediaConfig::Nand(nand)) => keys.has_names(nand, ftl),
            _ => false,
        }
    }

    /// Compiles the rules of a drive. `at` is the personality of the drive, or its section.
    pub(crate) fn finish(
        &self,
        drive: &DriveConfig,
        capacity: Option<&Capacity>,
        at: &SourceSpan,
    ) -> Result<Option<DriveRulesConfig>> {
        let conflict = |at: &SourceSpan, message: &str, help: &str| {
            let (message, help) = (message.into(), help.into());
            Err(at.error(ProblemKind::Conflict { message, help }))
        };
        let (keys, nand) = match (&self.keys, self.is_chosen, &drive.media) {
            (None, false, _) => return Ok(None),
            (Some((_, section)), false, _) => {
                return conflict(
                    section,
                    "only a drive with rules has a rule program",
                    "set personality = \"rules\", or remove `rules`",
                );
            }
            (None, true, _) => {
                return conflict(
                    at,
                    "a drive with personality = \"rules\" has no rule program",
                    "name one: rules = { program = \"FILE\" }, or rules = { template = \"throughput\" }",
                );
            }
            (Some(_), true, MediaConfig::Pcm(_) | MediaConfig::Null { .. }) => {
                return conflict(
                    at,
                    "rules decide about flash, and the media are none",
                    "set media = \"nand\", or another personality",
                );
            }
            (Some((keys, _)), true, MediaConfig::Nand(nand)) => (keys, nand),
        };
        if !drive.controller.namespaces.is_default() {
            return conflict(
                at,
                "the application of a rule program has the whole drive, in one namespace",
                "remove `namespaces`, or set personality = \"block\"",
            );
        }
        if drive.lba_bytes.is_some() {
            return conflict(
                at,
                "rules decide about sectors of the map, and logical blocks are smaller",
                "remove `lba_bytes`, or set personality = \"block\"",
            );
        }
        let capacity = capacity.map(|c| c.logical_bytes() / u64::from(drive.sector_bytes().max(1)));
        keys.compile(nand, &drive.ftl, capacity).map(Some)
    }
}

impl RuleKeys {
    /// Returns the settings without a program.
    fn settings(&self) -> DriveRulesConfig {
        DriveRulesConfig {
            program: Vec::new(),
            engines: self.engines as u16,
            op: self.op,
            ops: self.program.ops,
            table_bytes: self.program.table_bytes,
            misses: self.misses,
            idle_poll: self.program.idle_poll,
        }
    }

    /// Returns the options of the compiler, and the last parallel unit.
    fn options(
        config: &DriveRulesConfig,
        nand: &NandConfig,
        ftl: &FtlConfig,
    ) -> (CompileOptions, u32) {
        let RuleLimits { grant, sector_bytes, lines } = config.limits(nand, ftl.active_pus);
        let last_unit = nand.geometry.total_pus().saturating_sub(1);
        (CompileOptions { grant, sector_bytes, lines }, last_unit)
    }

    fn has_names(&self, nand: &NandConfig, ftl: &FtlConfig) -> bool {
        let (options, last_unit) = RuleKeys::options(&self.settings(), nand, ftl);
        let mut is_named = false;
        let check = |verified: &VerifiedProgram| {
            is_named = needs_names(verified);
            Ok(())
        };
        // Its errors are those of `compile`.
        self.program.compile(last_unit, ftl, &options, check).is_ok() && is_named
    }

    fn compile(
        &self,
        nand: &NandConfig,
        ftl: &FtlConfig,
        capacity: Option<u64>,
    ) -> Result<DriveRulesConfig> {
        let mut config = self.settings();
        let (options, last_unit) = RuleKeys::options(&config, nand, ftl);
        let check = |verified: &VerifiedProgram| {
            // The capacity is that of a drive with one application.
            let capacity = capacity.filter(|_| verified.program().apps.len() == 1);
            check_executable(verified, nand, ftl, capacity.as_slice()).map_err(not_executed)
        };
        config.program = self.program.compile(last_unit, ftl, &options, check)?;
        Ok(config)
    }
}

/// Returns the error of a program that a drive does not execute.
fn not_executed(error: DriveRulesError) -> NotExecuted {
    let help = match &error {
        DriveRulesError::NotExecuted(_) => "docs/rules.md has what a drive executes",
        DriveRulesError::NoHotStream(_) => "set rules.hot_stream = true, or place it in host",
        DriveRulesError::DurableTables { .. } => {
            "`durable_memory` of `rules` takes space of the drive, and cannot be changed later"
        }
        _ => "change the program, or the drive",
    };
    let message = error.to_string();
    let location = match error {
        DriveRulesError::NotExecuted(need) | DriveRulesError::NoHotStream(need) => need.location,
        _ => RuleLocation::default(),
    };
    NotExecuted { message, help, location }
}
