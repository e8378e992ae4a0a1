//! [`Failure`]: why a command failed. Errors of a scenario or a job file are shown with the line they are about and
//! a caret under it.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode,
    SourceSpan,
};

use workload::JobError;

use crate::scenario::ScenarioError;
use crate::text::{printable, printable_lines};

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The scenario is wrong.
    Scenario(ScenarioError),
    /// A job is wrong.
    Job(JobError),
    /// Something else in what was asked is wrong.
    Usage(String),
    /// It was asked well, and still went wrong.
    Other(String),
    /// It was interrupted by SIGINT.
    Interrupted(String),
}

impl From<ScenarioError> for Failure {
    fn from(error: ScenarioError) -> Failure {
        Failure::Scenario(error)
    }
}

impl Failure {
    /// 2 when what was asked is wrong, 1 when it went wrong, 130 when it was interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Scenario(_) | Failure::Job(_) | Failure::Usage(_) => 2,
            Failure::Other(_) => 1,
            Failure::Interrupted(_) => 130,
        }
    }

    /// The message for standard error.
    pub fn render(&self) -> String {
        match self {
            Failure::Scenario(ScenarioError::Invalid(invalid)) => Shown {
                path: &invalid.path,
                line: invalid.line,
                column: invalid.column,
                span: invalid.span.clone(),
                source: text_of(&invalid.path, &invalid.text),
                title: invalid.problem.to_string(),
                help: invalid.problem.help(),
            }
            .render(),
            Failure::Job(JobError::Invalid(invalid)) if !invalid.at.text.is_empty() => Shown {
                path: &invalid.at.path,
                line: invalid.at.line,
                column: invalid.at.column,
                span: invalid.at.span.clone(),
                source: text_of(&invalid.at.path, &invalid.at.text),
                title: invalid.problem.title(),
                help: invalid.problem.help(),
            }
            .render(),
            Failure::Scenario(error) => {
                format!("error: {}\n", printable_lines(&error.to_string()))
            }
            Failure::Job(error) => format!("error: {}\n", printable_lines(&error.to_string())),
            Failure::Usage(message) | Failure::Other(message) => {
                format!("error: {}\n", printable_lines(message))
            }
            Failure::Interrupted(message) => format!("{}\n", printable_lines(message)),
        }
    }
}

/// A problem at a place of a text, as miette shows it.
#[derive(Debug)]
struct Shown<'e> {
    path: &'e Path,
    line: usize,
    column: usize,
    span: Range<usize>,
    source: NamedSource<String>,
    title: String,
    help: Option<String>,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable_lines(&self.title))
    }
}

impl std::error::Error for Shown<'_> {}

impl Diagnostic for Shown<'_> {
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

/// A text of as many bytes, each where it was, without control characters that a terminal acts on.
fn without_controls(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c,
        c if c.is_control() && c.len_utf8() == 1 => '?',
        c if c.is_control() => '\u{b7}',
        c => c,
    };
    text.chars().map(shown).collect()
}

fn text_of(path: &Path, text: &str) -> NamedSource<String> {
    let mut text = without_controls(text);
    if !text.ends_with('\n') {
        // A caret can stand one past the end.
        text.push('\n');
    }
    NamedSource::new(printable(&path.display().to_string()), text)
}

impl Shown<'_> {
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
