//! [`JobError`]: what is wrong with a job description, where, and what would be right; and
//! [`RunError`]: what is wrong with a run.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvme::Status;

use crate::parse::option_tables;
use crate::trace::TraceError;
use crate::units;

/// A text that job options come from: a job file, or a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSource {
    path: PathBuf,
    text: Arc<str>,
}

impl JobSource {
    /// The text of the file at `path`; empty for options that come from no text.
    pub fn new(path: &Path, text: impl Into<Arc<str>>) -> JobSource {
        JobSource { path: path.to_owned(), text: text.into() }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The place of the bytes `span` of the text.
    pub(crate) fn location(&self, span: Range<usize>) -> SourceLocation {
        let before = self.text.get(..span.start).unwrap_or("");
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        SourceLocation {
            path: self.path.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            span,
            text: self.text.clone(),
        }
    }
}

/// Where a word of a job description is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLocation {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// Bytes of the text that the problem is about.
    pub span: Range<usize>,
    /// The whole text; empty for options that come from no text.
    pub text: Arc<str>,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

/// A job description that cannot be run as written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum JobError {
    /// The file cannot be read.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Something in it is wrong.
    #[error("{}: {}{}", .0.location, .0.problem, suggestion(&.0.problem))]
    Invalid(Box<InvalidJob>),
    /// No job at all.
    #[error("{}: no jobs; a job is a section such as `[reader]`", path.display())]
    NoJobs {
        /// The file.
        path: PathBuf,
    },
}

/// A problem at a place of a job description.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidJob {
    /// Where.
    pub location: SourceLocation,
    /// The problem.
    pub problem: JobProblem,
}

/// A problem of a job description.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum JobProblem {
    /// Neither a section, nor an option, nor a comment.
    #[error("{what}")]
    Syntax {
        /// The problem, in words.
        what: String,
    },
    /// An option that is neither supported nor known.
    #[error("option `{option}` is not supported")]
    UnknownOption {
        /// The option.
        option: String,
        /// The option with the most similar name, if one is similar.
        nearest: Option<&'static str>,
    },
    /// An option of fio that is refused.
    #[error("option `{option}` is not supported: {why}")]
    Refused {
        /// The option.
        option: String,
        /// Why.
        why: &'static str,
    },
    /// An option with a value it cannot have.
    #[error("`{option}={value}`: expected {allowed}")]
    BadValue {
        /// The option.
        option: String,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: String,
        /// The allowed word that is most similar, if one is similar.
        nearest: Option<&'static str>,
    },
    /// Options that do not go together.
    #[error("job `{job}`: {what}")]
    Conflict {
        /// The job.
        job: String,
        /// What is wrong, and what would be right.
        what: String,
    },
}

impl JobProblem {
    /// The problem at `at`.
    pub(crate) fn into_error(self, at: SourceLocation) -> JobError {
        JobError::Invalid(Box::new(InvalidJob { location: at, problem: self }))
    }

    fn nearest(&self) -> Option<&'static str> {
        match self {
            JobProblem::UnknownOption { nearest, .. } | JobProblem::BadValue { nearest, .. } => {
                *nearest
            }
            _ => None,
        }
    }

    /// The remedy: the word that was probably meant, and everything that is allowed.
    pub fn help(&self) -> Option<String> {
        let allowed = match self {
            JobProblem::UnknownOption { .. } => {
                format!("allowed: {}", option_tables::supported_names().join(", "))
            }
            JobProblem::BadValue { allowed, .. } => format!("expected {allowed}"),
            JobProblem::Refused { .. } => {
                "docs/fio.md lists all words of fio: supported, without effect, refused".to_owned()
            }
            JobProblem::Syntax { .. } | JobProblem::Conflict { .. } => return None,
        };
        Some(match self.nearest() {
            Some(nearest) => format!("did you mean `{nearest}`? {allowed}"),
            None => allowed,
        })
    }

    /// The problem in one line, without what its [`help`](JobProblem::help) repeats.
    pub fn title(&self) -> String {
        match self {
            JobProblem::BadValue { option, value, .. } => {
                format!("`{option}` cannot be `{value}`")
            }
            other => other.to_string(),
        }
    }
}

fn suggestion(problem: &JobProblem) -> String {
    problem.nearest().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default()
}

/// A run that cannot start, or whose results must not be believed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A job does not fit the device.
    #[error("job `{job}`: {what}")]
    DeviceMismatch {
        /// The job.
        job: String,
        /// What does not fit, with the numbers of both sides.
        what: String,
    },
    /// There is nothing to run.
    #[error("no jobs to run")]
    NoJobs,
    /// Memory for payloads could not be had.
    #[error("no memory for the payloads of verifying jobs: {0}")]
    Memory(String),
    /// The jobs need more memory than there is.
    #[error(
        "the jobs need {} of memory, most of it for job `{job}` ({jobs} x iodepth {iodepth}), and \
         {} are available; lower {remedy}",
        units::format_bytes(*.need_bytes),
        units::format_bytes(*.available_bytes)
    )]
    TooLarge {
        /// The job that needs most.
        job: String,
        /// Its clones.
        jobs: u32,
        /// Its depth.
        iodepth: u32,
        /// Bytes that all jobs need.
        need_bytes: u64,
        /// Bytes that the machine has to give.
        available_bytes: u64,
        /// Options to lower, in words.
        remedy: &'static str,
    },
    /// A log cannot be written.
    #[error("job `{job}`: cannot write {}: {reason}", path.display())]
    Log {
        /// The job.
        job: String,
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A trace cannot be replayed.
    #[error("job `{job}`: {source}")]
    Trace {
        /// The job.
        job: String,
        /// Why.
        source: TraceError,
    },
    /// The device completed what was not outstanding.
    #[error("the device completed tag {tag:#x} ({status}), which is not outstanding")]
    SpuriousCompletion {
        /// The tag.
        tag: u64,
        /// The status it came with.
        status: Status,
    },
    /// Requests were neither completed nor failed.
    #[error(
        "job `{job}`: {issued} requests issued, but {completed} completed and {failed} failed; \
         the device lost {lost}",
        lost = issued - completed - failed
    )]
    Unaccounted {
        /// The job.
        job: String,
        /// Requests given to the device.
        issued: u64,
        /// Requests that succeeded.
        completed: u64,
        /// Requests that failed.
        failed: u64,
    },
    /// [`finish`](crate::Host::finish) came before the end.
    #[error("the run has not ended: job `{job}` has {outstanding} requests outstanding")]
    NotFinished {
        /// A job that goes on.
        job: String,
        /// Its outstanding requests.
        outstanding: u64,
    },
    /// Device and host take no time at all, so a job that waits for time to pass never ends.
    #[error(
        "time stands still at {at}: the device completes instantly, and job `{job}` ends only when \
         time passes; give the device or the host a cost, or the job a size instead of a runtime"
    )]
    TimeStalled {
        /// The instant.
        at: clock::Nanos,
        /// The job.
        job: String,
    },
}
