//! [`Failure`]: why a command failed. Errors of a scenario are shown with the line they are about and
//! a caret under it.

use std::fmt;

use miette::{
    Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource, SourceCode,
    SourceSpan,
};

use crate::scenario::{Invalid, ScenarioError};
use crate::text::escaped;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The scenario is wrong.
    Scenario(ScenarioError),
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
            Failure::Scenario(_) | Failure::Usage(_) => 2,
            Failure::Other(_) => 1,
        }
    }

    /// The message for standard error.
    pub fn render(&self) -> String {
        match self {
            Failure::Scenario(ScenarioError::Invalid(invalid)) => render(invalid),
            Failure::Scenario(error) => format!("error: {error}\n"),
            Failure::Usage(message) | Failure::Other(message) => format!("error: {message}\n"),
        }
    }
}

/// A scenario's error as miette shows it.
#[derive(Debug)]
struct Shown<'e> {
    invalid: &'e Invalid,
    source: NamedSource<String>,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.invalid.problem)
    }
}

impl std::error::Error for Shown<'_> {}

impl Diagnostic for Shown<'_> {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.invalid.problem.help().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = SourceSpan::new(self.invalid.span.start.into(), self.invalid.span.len());
        let label = LabeledSpan::new_primary_with_span(Some("here".into()), span);
        Some(Box::new(std::iter::once(label)))
    }
}

fn render(invalid: &Invalid) -> String {
    // One for one, so that places stay where they are.
    let harmless = |c: char| match c {
        '\n' | '\t' | '\r' => c,
        c if c.is_ascii_control() => '?',
        c => c,
    };
    let mut text: String = invalid.text.chars().map(harmless).collect();
    // Of two bytes each.
    text = text.replace(|c: char| c.is_control() && !c.is_ascii(), "??");
    if !text.ends_with('\n') {
        // A caret can stand one past the end.
        text.push('\n');
    }
    let name = escaped(&invalid.path.to_string_lossy()).into_owned();
    let shown = Shown { invalid, source: NamedSource::new(&name, text) };
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr())
        && std::env::var_os("NO_COLOR").is_none();
    let theme = if colours { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let handler = GraphicalReportHandler::new_themed(theme).with_width(100).with_links(false);
    let mut out = format!("{name}:{}:{}: error\n", invalid.line, invalid.column);
    match handler.render_report(&mut out, &shown) {
        Ok(()) => out,
        Err(_) => format!("error: {invalid}\n"),
    }
}
