//! [`ScenarioError`]: an error in a scenario, with its location and the allowed values
//! (ARCHITECTURE.md, R8).

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvme::GeometryError;

use super::capacity::DriveCapacityError;
use super::choice::Impossible;
use super::source::SourceText;
use crate::format::printable;

/// Error of a scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("{}: {source}", shown_path(path))]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The contents of the file are invalid.
    #[error("{0}")]
    Invalid(Box<InvalidScenario>),
}

/// A problem at a location of a scenario.
///
/// `Display` prints `file:line:column: message; help`, which is complete without the source text.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidScenario {
    /// Path of the file as given.
    pub path: PathBuf,
    /// Line number, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Byte range in the text that the problem is about.
    pub span: Range<usize>,
    /// Complete text of the file.
    pub text: Arc<str>,
    /// The problem.
    pub problem: ProblemKind,
}

/// A problem of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub enum ProblemKind {
    /// The text is not valid TOML.
    Syntax {
        /// Message of the parser.
        message: String,
    },
    /// The section does not have the key.
    UnknownKey {
        /// The section.
        section: String,
        /// The key.
        key: String,
        /// The most similar key of the section.
        nearest: Option<String>,
        /// The corresponding key of another section, and its meaning.
        elsewhere: Option<String>,
        /// All keys of the section.
        allowed: Vec<String>,
    },
    /// A required key is missing.
    MissingKey {
        /// The section.
        section: String,
        /// The key.
        key: &'static str,
        /// Reason, or the allowed values.
        help: String,
    },
    /// The value has the wrong type or form.
    WrongType {
        /// The key with its section.
        key: String,
        /// The type found.
        found: String,
        /// The type expected.
        expected: String,
    },
    /// The value is not among the allowed ones.
    NotAllowed {
        /// The key with its section.
        key: String,
        /// The value.
        value: String,
        /// The most similar allowed value, if the value is one of a list.
        nearest: Option<String>,
        /// Allowed values.
        allowed: String,
    },
    /// The geometry is impossible.
    Geometry(GeometryError),
    /// The medium cannot host its FTL.
    Capacity(DriveCapacityError),
    /// Settings exclude each other.
    Conflict {
        /// Description of the conflict.
        message: String,
        /// Remedy.
        help: String,
    },
}

impl From<Impossible> for ProblemKind {
    fn from(why: Impossible) -> ProblemKind {
        ProblemKind::Conflict { message: why.to_string(), help: why.help() }
    }
}

impl ProblemKind {
    /// Returns the problem of a target that must be in the partition table of a drive without an
    /// image.
    pub(super) fn forgotten_target(name: &str) -> ProblemKind {
        ProblemKind::Conflict {
            message: format!(
                "target {name} is to be in the drive's partition table, but the drive forgets it with \
                 every run"
            ),
            help: "set data = \"file\" and a path in the drive, and make the target with `sluice target \
                   create`; or remove `name`"
                .into(),
        }
    }
}

/// Formats a path for a terminal.
fn shown_path(path: &Path) -> String {
    printable(&path.to_string_lossy()).into_owned()
}

impl ScenarioError {
    pub(super) fn new(
        source: &SourceText,
        span: Range<usize>,
        problem: ProblemKind,
    ) -> ScenarioError {
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

    /// Returns the problem and its location; `None` if the file could not be read.
    pub fn invalid(&self) -> Option<&InvalidScenario> {
        match self {
            ScenarioError::Invalid(invalid) => Some(invalid),
            ScenarioError::Read { .. } => None,
        }
    }

    /// Returns the problem of an argument that was read like a scenario, without a location.
    pub fn problem_text(&self) -> String {
        let Some(invalid) = self.invalid() else { return self.to_string() };
        match invalid.problem.help() {
            Some(help) => format!("{}; {help}", invalid.problem),
            None => invalid.problem.to_string(),
        }
    }
}

impl ProblemKind {
    /// Returns the remedy.
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
            ProblemKind::NotAllowed { allowed, .. } => Some(format!("allowed: {allowed}")),
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
