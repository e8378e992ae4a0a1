//! [`SweepError`]: the errors of a sweep; those of one setting name the text that set it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use scenario::{ProblemKind, ScenarioError};
use sim::SimError;
use workload::JobProblem;

use crate::{SetOrigin, StoreError};

/// Error of a sweep.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A setting is invalid.
    #[error(transparent)]
    Set(#[from] SetError),
    /// The values of a point exclude each other, or a value and the rest of the scenario do.
    #[error("{}, with {values}: {message}{}", file.display(), help_text(help))]
    Combination {
        /// Path of the scenario.
        file: PathBuf,
        /// The values of the point.
        values: String,
        /// The problem.
        message: String,
        /// The remedy.
        help: Option<String>,
    },
    /// The scenario is invalid without any setting.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The jobs are invalid without any setting.
    #[error(transparent)]
    Run(#[from] SimError),
    /// A sweep file is invalid.
    #[error("{}:{line}: {problem}", path.display())]
    File {
        /// Path of the file as given.
        path: PathBuf,
        /// Line of the problem, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
    /// A sweep file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The sweep has no run.
    #[error("the sweep is empty: give it values or seeds")]
    Empty,
    /// The sweep has too many runs.
    #[error(
        "the sweep has {runs} runs, and at most {max} are possible: give it fewer values or seeds"
    )]
    TooMany {
        /// Number of runs.
        runs: u128,
        /// Largest number of runs.
        max: usize,
    },
    /// A list of seeds has another form.
    #[error(
        "the seeds cannot be `{text}`: expected a number of seeds such as 40, or a range such as 0..40"
    )]
    Seeds {
        /// The text.
        text: String,
    },
    /// The seed is set twice.
    #[error("the seeds are given, and `seed` is set as well: remove one of them")]
    SeedsAndSet,
    /// A run depends on more than a store can identify, or does more than a store can repeat.
    #[error("{}: {reason}", file.display())]
    NotStorable {
        /// Path of the scenario.
        file: PathBuf,
        /// The reason, with a remedy.
        reason: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No thread can be started.
    #[error("cannot start a thread for a run: {0}")]
    Thread(#[source] io::Error),
}

/// A setting that is invalid.
#[derive(Clone, Debug, PartialEq)]
pub struct SetError {
    /// The text that set it.
    pub origin: SetOrigin,
    /// The problem.
    pub problem: SetProblem,
}

/// Problem of a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum SetProblem {
    /// The name of the key has another form.
    KeySyntax {
        /// The name.
        key: String,
    },
    /// The setting has no value.
    NoValue,
    /// One of several values is empty.
    EmptyValue,
    /// A value occurs twice.
    RepeatedValue {
        /// The value.
        value: String,
    },
    /// The key is set twice.
    RepeatedKey {
        /// The key.
        key: String,
    },
    /// The setting has several values where one is for all points of a sweep.
    SeveralValues {
        /// The key.
        key: String,
    },
    /// The sweep itself sets the key, or a part of it.
    OfSweep {
        /// The key.
        key: String,
        /// The key of the sweep, and the text that sets it.
        by: String,
    },
    /// The key is a list of sections, and not a value.
    Section {
        /// The key.
        key: String,
    },
    /// A part of the key is a value, and has no keys.
    NoSection {
        /// The key.
        key: String,
        /// The part that has no keys.
        part: String,
    },
    /// The key does not say which one of several sections.
    Element {
        /// The sections.
        section: String,
        /// The part that should name one.
        part: String,
        /// The names.
        names: Vec<String>,
    },
    /// The scenario refuses the key or the value.
    Scenario {
        /// The key and the value.
        assignment: String,
        /// The problem.
        problem: Box<ProblemKind>,
    },
    /// The jobs refuse the key or the value.
    Job {
        /// The key and the value.
        assignment: String,
        /// The problem.
        problem: Box<JobProblem>,
    },
}

impl SetProblem {
    /// Returns the remedy.
    pub fn help(&self) -> Option<String> {
        match self {
            SetProblem::KeySyntax { .. } => Some(
                "a key is its section and its name, such as target.active_pus; put other characters \
                 than letters, digits, `-` and `_` in quotes"
                    .into(),
            ),
            SetProblem::NoValue | SetProblem::EmptyValue => {
                Some("expected key=value, or key=value,value; an empty string is \"\"".into())
            }
            SetProblem::RepeatedValue { .. } | SetProblem::RepeatedKey { .. } => {
                Some("remove one".into())
            }
            SetProblem::SeveralValues { key } => {
                Some(format!("give one of them, or make `{key}` a key of the sweep in its file"))
            }
            SetProblem::OfSweep { .. } => {
                Some("remove it, or change the values in the file of the sweep".into())
            }
            SetProblem::Section { key } => Some(format!("set the keys in it, such as {key}.name")),
            SetProblem::NoSection { .. } => None,
            SetProblem::Element { section, part, names } => {
                let distance = |name: &&String| strsim::levenshtein(part, name);
                let nearest = names.iter().min_by_key(distance).filter(|n| distance(n) <= 2);
                let hint = nearest.map_or_else(String::new, |n| format!("did you mean `{n}`? "));
                let names = names.join(", ");
                Some(format!("{hint}write {section}.NAME with one of: {names}; or {section}.* for all"))
            }
            SetProblem::Scenario { problem, .. } => problem.help(),
            SetProblem::Job { problem, .. } => problem.help(),
        }
    }
}

impl fmt::Display for SetProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetProblem::KeySyntax { key } => write!(f, "`{key}` is no name of a key"),
            SetProblem::NoValue => write!(f, "it has no value"),
            SetProblem::EmptyValue => write!(f, "one of its values is empty"),
            SetProblem::RepeatedValue { value } => write!(f, "the value {value} occurs twice"),
            SetProblem::RepeatedKey { key } => write!(f, "`{key}` is set twice"),
            SetProblem::SeveralValues { key } => write!(f, "`{key}` has several values"),
            SetProblem::OfSweep { key, by } => write!(f, "`{key}` is set by the sweep: {by}"),
            SetProblem::Section { key } => write!(f, "`{key}` is a list of sections"),
            SetProblem::NoSection { key, part } => {
                write!(f, "`{key}` does not exist: `{part}` has no keys in this scenario")
            }
            SetProblem::Element { section, part, .. } => {
                write!(f, "the scenario has several `{section}`, and none is called `{part}`")
            }
            SetProblem::Scenario { assignment, problem } => write!(f, "{assignment}: {problem}"),
            SetProblem::Job { assignment, problem } => {
                write!(f, "{assignment}: {}", problem.title())
            }
        }
    }
}

impl fmt::Display for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}{}", self.origin, self.problem, help_text(&self.problem.help()))
    }
}

impl std::error::Error for SetError {}

fn help_text(help: &Option<String>) -> String {
    help.as_ref().map_or_else(String::new, |help| format!("; {help}"))
}
