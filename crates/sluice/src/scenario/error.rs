//! [`ScenarioError`]: what is wrong with a scenario, where, and what is allowed instead (rule R8).

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvme::GeometryError;

use super::capacity::CapacityError;
use super::source::Source;
use crate::format::printable;

/// Why a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file could not be read.
    #[error("{}: {source}", shown_path(path))]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file says something that cannot be.
    #[error("{0}")]
    Invalid(Box<InvalidScenario>),
}

/// A problem at a place in a scenario.
///
/// Displays as `file:line:column: message; help`, so that it is complete without its source text.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidScenario {
    /// The file, as it was named.
    pub path: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Bytes of the text that the problem is about.
    pub span: Range<usize>,
    /// The whole text of the file.
    pub text: Arc<str>,
    /// What is wrong.
    pub problem: ProblemKind,
}

/// What is wrong at that place.
#[derive(Clone, Debug, PartialEq)]
pub enum ProblemKind {
    /// Not TOML.
    Syntax {
        /// What the parser said.
        message: String,
    },
    /// A key that means nothing here.
    UnknownKey {
        /// The section.
        section: String,
        /// The key.
        key: String,
        /// The key that was probably meant.
        nearest: Option<String>,
        /// The key of another section that has what was probably meant, and what it is.
        elsewhere: Option<String>,
        /// Every key of the section.
        allowed: Vec<String>,
    },
    /// A key that is needed.
    MissingKey {
        /// The section.
        section: String,
        /// The key.
        key: &'static str,
        /// Why, or what it may be.
        help: String,
    },
    /// A value of another type or form.
    WrongType {
        /// The key with its section.
        key: String,
        /// What it is.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// A value that is not among those allowed.
    NotAllowed {
        /// The key with its section.
        key: String,
        /// The value.
        value: String,
        /// The value that was probably meant, if it is one of a list.
        nearest: Option<String>,
        /// What it may be.
        allowed: String,
    },
    /// A value that a later version will know.
    NotYetSupported {
        /// The key with its section.
        key: String,
        /// The value.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// A shape that no drive can have.
    Geometry(GeometryError),
    /// A medium that cannot host its translation layer.
    Capacity(CapacityError),
    /// Choices that exclude each other.
    Conflict {
        /// What they are.
        message: String,
        /// What to do.
        help: String,
    },
}

/// A path for a terminal.
fn shown_path(path: &Path) -> String {
    printable(&path.to_string_lossy()).into_owned()
}

impl ScenarioError {
    pub(super) fn new(source: &Source, span: Range<usize>, problem: ProblemKind) -> ScenarioError {
        let (line, column) = source.line_column(span.start);
        ScenarioError::Invalid(Box::new(InvalidScenario {
            path: source.path.clone(),
            line,
            column,
            span,
            text: source.text.clone(),
            problem,
        }))
    }

    /// The problem and its place; `None` when the file could not even be read.
    pub fn invalid(&self) -> Option<&InvalidScenario> {
        match self {
            ScenarioError::Invalid(invalid) => Some(invalid),
            ScenarioError::Read { .. } => None,
        }
    }
}

impl ProblemKind {
    /// What to write instead.
    pub fn help(&self) -> Option<String> {
        match self {
            ProblemKind::UnknownKey { nearest, elsewhere, allowed, .. } => {
                let list = format!("allowed: {}", allowed.join(", "));
                Some(match (nearest, elsewhere) {
                    (Some(nearest), _) => format!("did you mean `{nearest}`? {list}"),
                    (None, Some(elsewhere)) => format!("did you mean {elsewhere}? {list}"),
                    (None, None) => list,
                })
            }
            ProblemKind::MissingKey { help, .. } | ProblemKind::Conflict { help, .. } => {
                Some(help.clone())
            }
            ProblemKind::WrongType { expected, .. } => Some(format!("expected {expected}")),
            ProblemKind::NotAllowed { nearest: Some(nearest), allowed, .. } => {
                Some(format!("did you mean {nearest}? allowed: {allowed}"))
            }
            ProblemKind::NotAllowed { allowed, .. }
            | ProblemKind::NotYetSupported { allowed, .. } => Some(format!("allowed: {allowed}")),
            ProblemKind::Capacity(e) => Some(e.help()),
            ProblemKind::Syntax { .. } | ProblemKind::Geometry(_) => None,
        }
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProblemKind::Syntax { message } => write!(f, "not valid TOML: {}", printable(message)),
            ProblemKind::UnknownKey { section, key, .. } => {
                write!(f, "{section} has no key `{key}`")
            }
            ProblemKind::MissingKey { section, key, .. } => write!(f, "{section} needs `{key}`"),
            ProblemKind::WrongType { key, found, .. } => write!(f, "`{key}` cannot be {found}"),
            ProblemKind::NotAllowed { key, value, .. } => write!(f, "`{key}` cannot be {value}"),
            ProblemKind::NotYetSupported { key, value, .. } => {
                write!(f, "`{key}` = {value} is not available yet")
            }
            ProblemKind::Geometry(e) => write!(f, "impossible geometry: {e}"),
            ProblemKind::Capacity(e) => write!(f, "{e}"),
            ProblemKind::Conflict { message, .. } => write!(f, "{message}"),
        }
    }
}

impl fmt::Display for InvalidScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", shown_path(&self.path), self.line, self.column, self.problem)?;
        match self.problem.help() {
            Some(help) => write!(f, "; {help}"),
            None => Ok(()),
        }
    }
}
