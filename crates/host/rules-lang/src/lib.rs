//! The language of a drive's rules (`docs/rules.md`): [`compile`] parses a source and lowers it to the
//! verified form of the crate `sluice-rules`.
//!
//! A source is checked twice: here with locations, and by [`rules::verify`] on the form that the drive
//! receives. The drive trusts only the second check.

#![forbid(unsafe_code)]

mod ast;
mod error;
mod lower;
mod parser;
mod templates;
mod token;

use std::path::Path;

use rules::{RuleGrant, RuleProgram, VerifiedProgram, VerifyError};

pub use error::{RuleSourceError, RuleSourceProblem};
pub use templates::RuleTemplate;

use ast::{Bytes, Source};
use error::{Problem, RuleSourceLines};

/// Bytes of a source at most.
const SOURCE_BYTES_MAX: usize = 1 << 20;

/// The drive and the grant that a source is compiled for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// Rights of the program; the drive has its own.
    pub grant: RuleGrant,
    /// Bytes of a sector.
    pub sector_bytes: u32,
    /// Lines of an application at most: the bound of `best line`.
    pub lines: u32,
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions { grant: RuleGrant::default(), sector_bytes: 4096, lines: 4096 }
    }
}

/// A compiled source, with the locations of its declarations.
#[derive(Clone, Debug)]
pub struct CompiledRules {
    program: RuleProgram,
    lines: RuleSourceLines,
    apps: Vec<Bytes>,
    records: Vec<Bytes>,
    tables: Vec<Bytes>,
    rules: Vec<Bytes>,
}

/// Compiles a source. `path` is for messages.
///
/// # Errors
/// [`RuleSourceError`] with the first problem and its location.
pub fn compile(
    path: &Path,
    bytes: &[u8],
    options: &CompileOptions,
) -> Result<CompiledRules, Box<RuleSourceError>> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let lossy = String::from_utf8_lossy(bytes);
            let span = error.valid_up_to()..error.valid_up_to();
            let problem = Problem::new(&span, RuleSourceProblem::NotUtf8);
            return Err(Box::new(RuleSourceLines::new(path, &lossy).error(problem)));
        }
    };
    let lines = RuleSourceLines::new(path, text);
    if text.len() > SOURCE_BYTES_MAX {
        return Err(Box::new(lines.error(Problem::new(&(0..0), RuleSourceProblem::TooLong))));
    }
    let compiled = parser::parse(text)
        .and_then(|source| Ok((lower::program(&source, &lines, options)?, source)));
    match compiled {
        Ok((program, source)) => Ok(CompiledRules::new(program, lines, &source)),
        Err(problem) => Err(Box::new(lines.error(problem))),
    }
}

/// Compiles and verifies a source.
///
/// # Errors
/// [`RuleSourceError`] with the first problem and its location.
pub fn check(
    path: &Path,
    bytes: &[u8],
    options: &CompileOptions,
) -> Result<VerifiedProgram, Box<RuleSourceError>> {
    compile(path, bytes, options)?.verify(&options.grant)
}

impl CompiledRules {
    fn new(program: RuleProgram, lines: RuleSourceLines, source: &Source) -> CompiledRules {
        CompiledRules {
            program,
            lines,
            apps: source.apps.iter().map(|item| item.name.span.clone()).collect(),
            records: source.records.iter().map(|item| item.name.span.clone()).collect(),
            tables: source.tables.iter().map(|item| item.name.span.clone()).collect(),
            rules: source.rules.iter().map(|item| item.name.span.clone()).collect(),
        }
    }

    /// Returns the program; it is not verified.
    pub fn program(&self) -> &RuleProgram {
        &self.program
    }

    /// Verifies the program, as the drive does.
    ///
    /// # Errors
    /// [`RuleSourceError`] at the declaration that the problem is about.
    pub fn verify(&self, grant: &RuleGrant) -> Result<VerifiedProgram, Box<RuleSourceError>> {
        rules::verify(self.program.clone(), grant).map_err(|error| {
            let span = self.span_of(&error);
            let problem = RuleSourceProblem::Verify(Box::new(error));
            Box::new(self.lines.error(Problem { span, problem }))
        })
    }

    /// Returns the name that an error is about.
    fn span_of(&self, error: &VerifyError) -> Bytes {
        let program = &self.program;
        let app = |name: &String| {
            let at = program.apps.iter().position(|app| app.name == *name);
            at.map(|at| self.apps[at].clone())
        };
        let table = |name: &String| {
            let at = program.tables.iter().position(|table| table.name == *name);
            at.map(|at| self.tables[at].clone())
        };
        let found = match error {
            VerifyError::Units { app: name, .. }
            | VerifyError::AppNotGranted { app: name, .. }
            | VerifyError::Sectors { app: name, .. }
            | VerifyError::Quota { app: name, .. }
            | VerifyError::SharedUnits { second: name, .. } => app(name),
            VerifyError::Table { table: name, .. } => table(name),
            VerifyError::TableMemory { largest: name, .. } => table(name),
            VerifyError::Record { record, .. } => {
                let at = program.layouts.iter().position(|layout| layout.name == *record);
                at.map(|at| self.records[at].clone())
            }
            error => error.location().and_then(|location| {
                let at = program.rules.iter().position(|rule| rule.location == location);
                at.map(|at| self.rules[at].clone())
            }),
        };
        found.unwrap_or(0..0)
    }
}
