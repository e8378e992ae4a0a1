//! Rule programs of drives and targets. [`ProgramKeys`]: the keys that both have, and the compiler. A
//! program is compiled and verified when the scenario is read, for the drive that it is for.

pub(crate) mod drive_rules;
pub(crate) mod target_rules;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use ftl::FtlConfig;
use rules::{RuleLocation, VerifiedProgram};
use rules_lang::{CompileOptions, RuleSourceError, RuleTemplate, compile};
use time::Nanos;

use crate::error::{InvalidScenario, ProblemKind, ScenarioError};
use crate::ranges::IDLE_POLL;
use crate::section::{Keyword, Result, Section, Value};
use crate::source::SourceSpan;

/// Bytes of a program at most, and one more: the compiler refuses longer ones.
const SOURCE_BYTES_READ: u64 = (1 << 20) + 1;

/// Where the text of a program is.
#[derive(Clone, Debug)]
enum ProgramText {
    File { path: PathBuf, bytes: Vec<u8> },
    Template(RuleTemplate),
}

/// The keys of a program and of its memory.
#[derive(Clone, Debug)]
struct ProgramKeys {
    text: ProgramText,
    /// The key of the program, for errors about the whole program.
    text_span: SourceSpan,
    ops: u64,
    table_bytes: u64,
    idle_poll: Option<Nanos>,
    hot_stream: bool,
}

/// The reason for which a verified program is not executed.
struct NotExecuted {
    message: String,
    help: &'static str,
    /// Where the program needs it; unknown for a reason that concerns all of it.
    location: RuleLocation,
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

impl ProgramKeys {
    fn read(s: &mut Section<'_>) -> Result<ProgramKeys> {
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
        let mut keys = ProgramKeys {
            text,
            text_span: at.source_span(),
            ops: 4096,
            table_bytes: 64 << 20,
            idle_poll: None,
            hot_stream: false,
        };
        s.set("ops", &mut keys.ops, |v| v.u64())?;
        s.set("table_memory", &mut keys.table_bytes, |v| v.size())?;
        if let Some(value) = s.get("idle_poll") {
            keys.idle_poll = Some(value.duration_in(&IDLE_POLL)?);
        }
        s.set("hot_stream", &mut keys.hot_stream, |v| v.boolean())?;
        Ok(keys)
    }

    /// Returns the text of the program, and its name in messages, for a drive whose last parallel unit
    /// is `last_unit`.
    fn source(&self, last_unit: u32, ftl: &FtlConfig) -> (PathBuf, Vec<u8>) {
        match &self.text {
            ProgramText::File { path, bytes } => (path.clone(), bytes.clone()),
            ProgramText::Template(template) => {
                // The application has at least the sectors of the device.
                let spare_ppm = (ftl.over_provisioning.clamp(0.0, 10.0) * 1e6).floor() as u32;
                let path = Path::new("template").join(template.name());
                (path, template.source(last_unit, spare_ppm).into_bytes())
            }
        }
    }

    /// Compiles and verifies the program. `check` tells whether it is executed. Returns its encoded form.
    fn compile(
        &self,
        last_unit: u32,
        ftl: &FtlConfig,
        options: &CompileOptions,
        check: impl FnOnce(&VerifiedProgram) -> std::result::Result<(), NotExecuted>,
    ) -> Result<Vec<u8>> {
        let (path, text) = self.source(last_unit, ftl);
        let compiled = compile(&path, &text, options).map_err(|error| program_error(*error))?;
        let verified = compiled.verify(&options.grant).map_err(|error| program_error(*error))?;
        match check(&verified) {
            Ok(()) => Ok(verified.program().encode()),
            Err(reason) => Err(self.not_executable(&path, &text, reason)),
        }
    }

    /// Returns the error of a program that is not executed: at its rule, or at the key.
    fn not_executable(&self, path: &Path, text: &[u8], reason: NotExecuted) -> ScenarioError {
        let NotExecuted { message, help, location } = reason;
        let problem = ProblemKind::Conflict { message, help: help.into() };
        let text = String::from_utf8_lossy(text);
        let (line, column) = (location.line as usize, location.column as usize);
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
