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
}

impl From<ScenarioError> for Failure {
    fn from(error: ScenarioError) -> Failure {
        Failure::Scenario(error)
    }
}

impl Failure {
    /// 2 when what was asked is wrong, 1 when it went wrong.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Scenario(_) | Failure::Job(_) | Failure::Usage(_) => 2,
            Failure::Other(_) => 1,
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
            Failure::Scenario(error) => format!("error: {error}\n"),
            Failure::Job(error) => format!("error: {error}\n"),
            Failure::Usage(message) | Failure::Other(message) => format!("error: {message}\n"),
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
        f.write_str(&self.title)
    }
}

impl std::error::Error for Shown<'_> {}

impl Diagnostic for Shown<'_> {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
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

fn text_of(path: &Path, text: &str) -> NamedSource<String> {
    let mut text = text.to_owned();
    if !text.ends_with('\n') {
        // A caret can stand one past the end.
        text.push('\n');
    }
    NamedSource::new(path.display().to_string(), text)
}

impl Shown<'_> {
    fn render(&self) -> String {
        let colours = std::io::IsTerminal::is_terminal(&std::io::stderr())
            && std::env::var_os("NO_COLOR").is_none();
        let theme =
            if colours { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let handler = GraphicalReportHandler::new_themed(theme).with_width(100).with_links(false);
        let place = format!("{}:{}:{}", self.path.display(), self.line, self.column);
        let mut out = format!("{place}: error\n");
        match handler.render_report(&mut out, self) {
            Ok(()) => out,
            Err(_) => format!("error: {place}: {}\n", self.title),
        }
    }
}
