//! Errors of job descriptions ([`JobError`]: the problem, its location and the remedy) and of runs
//! ([`RunError`]).

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvme::Status;
use ocssd::ppa::PuSet;

use crate::device::Addressing;
use crate::parse::option_tables;
use crate::runner::unit_source::UnitSourceError;
use crate::trace::TraceError;
use crate::units;

/// A text that job options come from: a job file or a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSource {
    path: PathBuf,
    text: Arc<str>,
}

impl JobSource {
    /// Returns the source with the text of the file at `path`. The text is empty for options that
    /// do not come from a text.
    pub fn new(path: &Path, text: impl Into<Arc<str>>) -> JobSource {
        JobSource { path: path.to_owned(), text: text.into() }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the text of the file.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the location of the bytes `span` of the text.
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

/// Location of a word in a job description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLocation {
    /// Path of the file.
    pub path: PathBuf,
    /// Line number, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Byte range in the text that the problem is about.
    pub span: Range<usize>,
    /// The complete text; empty for options that do not come from a text.
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
        /// Path of the file.
        path: PathBuf,
        /// Reason that the operating system gives.
        reason: String,
    },
    /// The file has an invalid line or option.
    #[error("{}: {}{}", .0.location, .0.problem, suggestion(&.0.problem))]
    Invalid(Box<InvalidJob>),
    /// The file defines no jobs.
    #[error("{}: no jobs; a job is a section such as `[reader]`", path.display())]
    NoJobs {
        /// Path of the file.
        path: PathBuf,
    },
}

/// A problem at a location of a job description.
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidJob {
    /// Location of the problem.
    pub location: SourceLocation,
    /// The problem.
    pub problem: JobProblem,
}

/// A problem of a job description.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum JobProblem {
    /// A line that is neither a section, nor an option, nor a comment.
    #[error("{what}")]
    Syntax {
        /// Description of the problem.
        what: String,
    },
    /// An option that neither Sluice nor fio has.
    #[error("option `{option}` is not supported")]
    UnknownOption {
        /// The option.
        option: String,
        /// The option with the most similar name, if one is similar.
        nearest: Option<&'static str>,
    },
    /// An option of fio that Sluice refuses.
    #[error("option `{option}` is not supported: {why}")]
    Refused {
        /// The option.
        option: String,
        /// Reason for the refusal.
        why: &'static str,
    },
    /// An option with an invalid value.
    #[error("`{option}={value}`: expected {allowed}")]
    BadValue {
        /// The option.
        option: String,
        /// The value as written.
        value: String,
        /// Description of the allowed values.
        allowed: String,
        /// The allowed keyword that is most similar, if one is similar.
        nearest: Option<&'static str>,
    },
    /// Options that conflict with each other.
    #[error("job `{job}`: {what}")]
    Conflict {
        /// Name of the job.
        job: String,
        /// Problem and remedy.
        what: String,
    },
}

impl JobProblem {
    /// Returns the error for this problem at the location `at`.
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

    /// Returns the remedy: the keyword that was probably meant, and all allowed values.
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

    /// Returns the problem in one line, without the text that [`help`](JobProblem::help) returns.
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

/// A run that cannot start, or whose results are invalid.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A job does not fit the device.
    #[error("job `{job}`: {what}")]
    DeviceMismatch {
        /// Name of the job.
        job: String,
        /// The mismatch, with the values of the job and of the device.
        what: String,
    },
    /// A job is addressed otherwise than the device.
    #[error(
        "job `{job}` is addressed by {job_addressing}, but the device by {device_addressing}; \
         allowed on it are {}",
        .device_addressing.options()
    )]
    WrongAddressing {
        /// Name of the job.
        job: String,
        /// Addressing of the job.
        job_addressing: Addressing,
        /// Addressing of the device.
        device_addressing: Addressing,
    },
    /// Two jobs, or two clones of one, write to the same parallel units at the same time.
    #[error(
        "job `{job}` and job `{other}` both write to the parallel units {pus}: a write pointer has one \
         owner; give each job `pus` of its own, `numjobs` 1, or a `stonewall` between them"
    )]
    TwoWriters {
        /// Name of the job.
        job: String,
        /// Name of the earlier job.
        other: String,
        /// The common parallel units.
        pus: PuSet,
    },
    /// A job on parallel units cannot continue.
    #[error("job `{job}` stops: {source}")]
    Units {
        /// Name of the job.
        job: String,
        /// Cause of the error.
        #[source]
        source: UnitSourceError,
    },
    /// The run has no jobs.
    #[error("no jobs to run")]
    NoJobs,
    /// Memory for payloads cannot be allocated.
    #[error("no memory for the payloads of jobs: {0}")]
    Memory(String),
    /// The jobs need more memory than is available.
    #[error(
        "the jobs need {} of memory, most of it for job `{job}` ({jobs} x iodepth {iodepth}), and \
         {} are available; lower {remedy}",
        units::format_bytes(*.need_bytes),
        units::format_bytes(*.available_bytes)
    )]
    TooLarge {
        /// Name of the job that needs the most memory.
        job: String,
        /// Number of its clones (`numjobs`).
        jobs: u32,
        /// Its `iodepth`.
        iodepth: u32,
        /// Memory that all jobs need, in bytes.
        need_bytes: u64,
        /// Memory that the machine can provide, in bytes.
        available_bytes: u64,
        /// Options to lower, as text for the message.
        remedy: &'static str,
    },
    /// A log cannot be written.
    #[error("job `{job}`: cannot write {}: {reason}", path.display())]
    Log {
        /// Name of the job.
        job: String,
        /// Path of the log.
        path: PathBuf,
        /// Reason that the operating system gives.
        reason: String,
    },
    /// A trace cannot be replayed.
    #[error("job `{job}`: {source}")]
    Trace {
        /// Name of the job.
        job: String,
        /// Error of the trace reader.
        source: TraceError,
    },
    /// The device completed a tag that was not outstanding.
    #[error("the device completed tag {tag:#x} ({status}), which is not outstanding")]
    SpuriousCompletion {
        /// The tag.
        tag: u64,
        /// Status of the completion.
        status: Status,
    },
    /// Requests neither completed nor failed before the job ended.
    #[error(
        "job `{job}`: {issued} requests issued, but {completed} completed and {failed} failed; \
         the device lost {lost}",
        lost = issued - completed - failed
    )]
    Unaccounted {
        /// Name of the job.
        job: String,
        /// Requests submitted to the device.
        issued: u64,
        /// Requests that succeeded.
        completed: u64,
        /// Requests that failed.
        failed: u64,
    },
    /// [`finish`](crate::JobRunner::finish) was called before the run ended.
    #[error("the run has not ended: job `{job}` has {outstanding} requests outstanding")]
    NotFinished {
        /// Name of a job that still runs.
        job: String,
        /// Number of its outstanding requests.
        outstanding: u64,
    },
    /// Neither device nor host consumes time, so a job that ends at a time never ends.
    #[error(
        "time stands still at {at}: the device completes instantly, and job `{job}` ends only when \
         time passes; give the device or the host a cost, or the job a size instead of a runtime"
    )]
    TimeStalled {
        /// The instant at which the run stalled.
        at: time::Nanos,
        /// Name of a job that waits for time to pass.
        job: String,
    },
}
