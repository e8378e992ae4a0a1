//! [`JobError`]: what is wrong with a job description, where, and what would be right; and
//! [`HostError`]: what is wrong with a run.

use std::path::PathBuf;

use nvme::Status;

use crate::trace::TraceError;

/// Where a word of a job description is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
    /// Neither a section, nor an option, nor a comment.
    #[error("{at}: {what}")]
    Syntax {
        /// Where.
        at: Place,
        /// What is wrong.
        what: String,
    },
    /// An option that is not supported.
    #[error("{at}: option `{option}` is not supported{}", suggest(.nearest))]
    UnknownOption {
        /// Where.
        at: Place,
        /// The option.
        option: String,
        /// The supported option with the most similar name, if one is similar.
        nearest: Option<&'static str>,
    },
    /// An option with a value it cannot have.
    #[error("{at}: `{option}={value}`: expected {allowed}")]
    BadValue {
        /// Where.
        at: Place,
        /// The option.
        option: String,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// Options that do not go together.
    #[error("{at}: job `{job}`: {what}")]
    Conflict {
        /// Where the job starts.
        at: Place,
        /// The job.
        job: String,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// No job at all.
    #[error("{}: no jobs; a job is a section such as `[reader]`", path.display())]
    NoJobs {
        /// The file.
        path: PathBuf,
    },
}

fn suggest(nearest: &Option<&'static str>) -> String {
    nearest.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default()
}

/// A run that cannot start, or whose results must not be believed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A job does not fit the device.
    #[error("job `{job}`: {what}")]
    Misfit {
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
    StrayCompletion {
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
    NotDone {
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
    TimeStandsStill {
        /// The instant.
        at: clock::Nanos,
        /// The job.
        job: String,
    },
}
