//! [`CliError`]: the error of a command. Errors of a scenario or a job file are shown with their
//! line and a caret under it.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode,
    SourceSpan,
};

use rules_lang::RuleSourceError;
use scenario::ScenarioError;
use scenario::format::{printable, printable_lines};
use workload::JobError;

/// Error of a command.
#[derive(Debug)]
pub enum CliError {
    /// The scenario is invalid.
    Scenario(ScenarioError),
    /// A job is invalid.
    Job(JobError),
    /// A rule program is invalid.
    Rules(Box<RuleSourceError>),
    /// Another part of the user's request is invalid.
    Usage(String),
    /// The request was valid, but failed.
    Other(String),
    /// A measured result is outside of its bound, and not an expected miss.
    Bounds(String),
    /// SIGINT interrupted the run.
    Interrupted(String),
}

impl From<ScenarioError> for CliError {
    fn from(error: ScenarioError) -> CliError {
        CliError::Scenario(error)
    }
}

impl CliError {
    /// Returns the exit code: 2 for an invalid request, 1 for a failure, 3 for a result outside of its
    /// bound, and 130 for an interrupted run.
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Scenario(_) | CliError::Job(_) | CliError::Rules(_) | CliError::Usage(_) => 2,
            CliError::Other(_) => 1,
            CliError::Bounds(_) => 3,
            CliError::Interrupted(_) => 130,
        }
    }

    /// Returns the message for standard error.
    pub fn render(&self) -> String {
        match self {
            CliError::Scenario(ScenarioError::Invalid(invalid)) => SourceDiagnostic {
                path: &invalid.path,
                line: invalid.line,
                column: invalid.column,
                span: invalid.span.clone(),
                source: named_source(&invalid.path, &invalid.text),
                title: invalid.problem.to_string(),
                help: invalid.problem.help(),
            }
            .render(),
            CliError::Job(JobError::Invalid(invalid)) if !invalid.location.text.is_empty() => {
                SourceDiagnostic {
                    path: &invalid.location.path,
                    line: invalid.location.line,
                    column: invalid.location.column,
                    span: invalid.location.span.clone(),
                    source: named_source(&invalid.location.path, &invalid.location.text),
                    title: invalid.problem.title(),
                    help: invalid.problem.help(),
                }
                .render()
            }
            CliError::Rules(invalid) => SourceDiagnostic {
                path: &invalid.path,
                line: invalid.line,
                column: invalid.column,
                span: invalid.span.clone(),
                source: named_source(&invalid.path, &invalid.text),
                title: invalid.problem.to_string(),
                help: invalid.problem.help(),
            }
            .render(),
            CliError::Scenario(error) => {
                format!("error: {}\n", printable_lines(&error.to_string()))
            }
            CliError::Job(error) => format!("error: {}\n", printable_lines(&error.to_string())),
            CliError::Usage(message) | CliError::Other(message) | CliError::Bounds(message) => {
                format!("error: {}\n", printable_lines(message))
            }
            CliError::Interrupted(message) => format!("{}\n", printable_lines(message)),
        }
    }
}

/// A problem at a location of a text, in the form that miette renders.
#[derive(Debug)]
struct SourceDiagnostic<'e> {
    path: &'e Path,
    line: usize,
    column: usize,
    span: Range<usize>,
    source: NamedSource<String>,
    title: String,
    help: Option<String>,
}

impl fmt::Display for SourceDiagnostic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable_lines(&self.title))
    }
}

impl std::error::Error for SourceDiagnostic<'_> {}

impl Diagnostic for SourceDiagnostic<'_> {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let help = self.help.as_deref();
        help.map(|help| Box::new(printable_lines(help).into_owned()) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = SourceSpan::new(self.span.start.into(), self.span.len());
        let label = LabeledSpan::new_primary_with_span(Some("here".into()), span);
        Some(Box::new(std::iter::once(label)))
    }
}

/// Replaces control characters that a terminal would execute; the text keeps its length and its
/// offsets.
fn without_controls(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c,
        c if c.is_control() && c.len_utf8() == 1 => '?',
        c if c.is_control() => '\u{b7}',
        c => c,
    };
    text.chars().map(shown).collect()
}

fn named_source(path: &Path, text: &str) -> NamedSource<String> {
    let mut text = without_controls(text);
    if !text.ends_with('\n') {
        // A caret can be one position past the end.
        text.push('\n');
    }
    NamedSource::new(printable(&path.display().to_string()), text)
}

impl SourceDiagnostic<'_> {
    fn render(&self) -> String {
        let colours = std::io::IsTerminal::is_terminal(&std::io::stderr())
            && std::env::var_os("NO_COLOR").is_none();
        let theme =
            if colours { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let handler = GraphicalReportHandler::new_themed(theme).with_width(100).with_links(false);
        let name = self.path.display().to_string();
        let place = format!("{}:{}:{}", printable(&name), self.line, self.column);
        let mut out = format!("{place}: error\n");
        match handler.render_report(&mut out, self) {
            Ok(()) => out,
            Err(_) => format!("error: {place}: {}\n", printable_lines(&self.title)),
        }
    }
}
