//! [`RulesBuilder`]: `personality = "rules"` and the section `[drive.rules]`. A program is compiled and
//! verified when the scenario is read, for the drive that it is for.

use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use controller::{
    DriveConfig, DriveRulesConfig, DriveRulesError, DriveRulesLimits, RuleMissConfig,
    check_executable,
};
use ftl::FtlConfig;
use media::{MediaConfig, NandConfig};
use rules_lang::{CompileOptions, RuleSourceError, RuleTemplate, compile};
use time::Nanos;

use crate::capacity::Capacity;
use crate::error::{InvalidScenario, ProblemKind, ScenarioError};
use crate::ranges::{IDLE_POLL, STEP_TIME};
use crate::section::{Keyword, Result, Section, Value};
use crate::source::SourceSpan;

/// Bytes of a program at most, and one more: the compiler refuses longer ones.
const SOURCE_BYTES_READ: u64 = (1 << 20) + 1;

/// Commands of a submission queue that are parked at most.
const PARKED: RangeInclusive<u32> = 0..=65_536;

/// Where the text of a program is.
#[derive(Clone, Debug)]
enum ProgramText {
    File { path: PathBuf, bytes: Vec<u8> },
    Template(RuleTemplate),
}

/// The keys of `[drive.rules]`.
#[derive(Clone, Debug)]
struct RuleKeys {
    text: ProgramText,
    /// The key of the program, for errors about the whole program.
    text_span: SourceSpan,
    engines: u32,
    op: Nanos,
    ops: u64,
    table_bytes: u64,
    /// Bytes that the journal of the FTL keeps for durable tables.
    durable_bytes: u32,
    misses: RuleMissConfig,
    idle_poll: Option<Nanos>,
    hot_stream: bool,
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
        let file = s.get("program").map(|v| Ok((read_program(&v)?, v))).transpose()?;
        let template = s.get("template").map(|v| Ok((read_template(&v)?, v))).transpose()?;
        let (text, at) = match (file, template) {
            (Some(text), None) | (None, Some(text)) => text,
            (Some(_), Some((_, at))) => {
                return Err(
                    at.conflict("`program` and `template` are both programs", "remove one of them")
                );
            }
            (None, None) => {
                let names = RuleTemplate::ALL.map(RuleTemplate::name).join(", ");
                let help = format!("name a file, or set `template` to one of {names}");
                return Err(s.missing("program", help));
            }
        };
        let mut keys = RuleKeys {
            text,
            text_span: at.source_span(),
            engines: 1,
            op: Nanos::ZERO,
            ops: 4096,
            table_bytes: 64 << 20,
            durable_bytes: 0,
            misses: RuleMissConfig::default(),
            idle_poll: None,
            hot_stream: false,
        };
        let engines = 1..=u32::from(DriveRulesConfig::ENGINES_MAX);
        s.set("engines", &mut keys.engines, |v| v.u32_in(&engines))?;
        s.set("op", &mut keys.op, |v| v.duration_in(&STEP_TIME))?;
        s.set("ops", &mut keys.ops, |v| v.u64())?;
        s.set("table_memory", &mut keys.table_bytes, |v| v.size())?;
        if let Some(value) = s.get("durable_memory") {
            keys.durable_bytes = value.size_u32()?;
        }
        s.set("miss_timeout", &mut keys.misses.timeout, |v| v.duration_in(&STEP_TIME))?;
        s.set("parked", &mut keys.misses.parked_max, |v| v.u32_in(&PARKED))?;
        if let Some(value) = s.get("idle_poll") {
            keys.idle_poll = Some(value.duration_in(&IDLE_POLL)?);
        }
        s.set("hot_stream", &mut keys.hot_stream, |v| v.boolean())?;
        s.finish()?;
        Ok(keys)
    }

    /// Returns the text of the program, and its name in messages.
    fn source(&self, nand: &NandConfig, ftl: &FtlConfig) -> (PathBuf, Vec<u8>) {
        match &self.text {
            ProgramText::File { path, bytes } => (path.clone(), bytes.clone()),
            ProgramText::Template(template) => {
                // The application has at least the sectors of the drive.
                let spare_ppm = (ftl.over_provisioning.clamp(0.0, 10.0) * 1e6).floor() as u32;
                let last_unit = nand.geometry.total_pus().saturating_sub(1);
                let path = Path::new("template").join(template.name());
                (path, template.source(last_unit, spare_ppm).into_bytes())
            }
        }
    }
}

fn read_program(value: &Value<'_>) -> Result<ProgramText> {
    let path = value.resolve(value.string()?);
    let mut bytes = Vec::new();
    let read =
        File::open(&path).and_then(|file| file.take(SOURCE_BYTES_READ).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(ProgramText::File { path, bytes }),
        Err(error) => Err(value.conflict(
            format!("{}: {error}", path.display()),
            "name a rule program, relative to the scenario",
        )),
    }
}

fn read_template(value: &Value<'_>) -> Result<ProgramText> {
    let names = RuleTemplate::ALL.map(|template| Keyword(template.name(), template));
    value.choice(&names).map(ProgramText::Template)
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
        self.keys.as_ref().is_some_and(|(keys, _)| keys.hot_stream)
    }

    /// Returns the bytes that the journal of the FTL keeps for durable tables, which are part of its capacity.
    pub(crate) fn owner_bytes(&self) -> u32 {
        self.keys.as_ref().map_or(0, |(keys, _)| keys.durable_bytes)
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
    fn compile(
        &self,
        nand: &NandConfig,
        ftl: &FtlConfig,
        capacity: Option<u64>,
    ) -> Result<DriveRulesConfig> {
        let mut config = DriveRulesConfig {
            program: Vec::new(),
            engines: self.engines as u16,
            op: self.op,
            ops: self.ops,
            table_bytes: self.table_bytes,
            misses: self.misses,
            idle_poll: self.idle_poll,
        };
        let DriveRulesLimits { grant, sector_bytes, lines } = config.limits(nand, ftl.active_pus);
        let options = CompileOptions { grant, sector_bytes, lines };
        let (path, text) = self.source(nand, ftl);
        let compiled = compile(&path, &text, &options).map_err(|error| program_error(*error))?;
        let verified = compiled.verify(&options.grant).map_err(|error| program_error(*error))?;
        // The capacity is that of a drive with one application.
        let capacity = capacity.filter(|_| verified.program().apps.len() == 1);
        if let Err(error) = check_executable(&verified, nand, ftl, capacity.as_slice()) {
            return Err(self.not_executable(&path, &text, error));
        }
        config.program = verified.program().encode();
        Ok(config)
    }

    /// Returns the error of a program that the drive does not execute: at its rule, or at the key.
    fn not_executable(&self, path: &Path, text: &[u8], error: DriveRulesError) -> ScenarioError {
        let help = match &error {
            DriveRulesError::NotExecuted(_) => "docs/rules.md has what a drive executes",
            DriveRulesError::NoHotStream(_) => "set rules.hot_stream = true, or place it in host",
            DriveRulesError::DurableTables { .. } => {
                "`durable_memory` of `rules` takes space of the drive, and cannot be changed later"
            }
            _ => "change the program, or the drive",
        };
        let problem = ProblemKind::Conflict { message: error.to_string(), help: help.into() };
        let (DriveRulesError::NotExecuted(need) | DriveRulesError::NoHotStream(need)) = &error
        else {
            return self.text_span.error(problem);
        };
        let text = String::from_utf8_lossy(text);
        let (line, column) = (need.location.line as usize, need.location.column as usize);
        let lines = text.split_inclusive('\n').take(line.saturating_sub(1));
        let start = lines.map(str::len).sum::<usize>();
        let in_line = text[start..].char_indices().nth(column.saturating_sub(1));
        if line == 0 {
            return self.text_span.error(problem);
        }
        let start = start + in_line.map_or(0, |(at, _)| at);
        let span = start..start + text[start..].find(char::is_whitespace).unwrap_or(0);
        let (path, text) = (path.to_owned(), text.as_ref().into());
        let invalid = InvalidScenario { path, line, column, span, text, problem };
        ScenarioError::Invalid(Box::new(invalid))
    }
}

/// Returns an error of a program, with its location there.
fn program_error(error: RuleSourceError) -> ScenarioError {
    let help = error.problem.help().unwrap_or_else(|| "docs/rules.md has the language".into());
    let problem = ProblemKind::Conflict { message: error.problem.to_string(), help };
    let RuleSourceError { path, line, column, span, text, .. } = error;
    ScenarioError::Invalid(Box::new(InvalidScenario { path, line, column, span, text, problem }))
}
