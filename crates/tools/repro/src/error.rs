//! [`ReproError`].

use std::io;
use std::path::PathBuf;

/// Error of reading, measuring or recording a figure.
#[derive(Debug, thiserror::Error)]
pub enum ReproError {
    /// A file or a folder cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A figure's file is invalid.
    #[error("{}: {problem}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The problem, with its line where it is a single one.
        problem: String,
    },
    /// There is no such figure.
    #[error("there is no figure `{name}`{hint}")]
    Unknown {
        /// Name as given.
        name: String,
        /// The nearest names, or how to list all.
        hint: String,
    },
    /// The folder has no figures.
    #[error("{} has no figures: `--dir` names the folder `repro` of the source code", .0.display())]
    NoFigures(PathBuf),
    /// A command of a figure failed.
    #[error("`{command}` failed: {problem}")]
    Command {
        /// The command.
        command: String,
        /// Its exit status and the end of its standard error.
        problem: String,
    },
    /// A command of a figure failed because what it asks for cannot be.
    #[error("`{command}` failed: {problem}")]
    Usage {
        /// The command.
        command: String,
        /// Its exit status and the end of its standard error.
        problem: String,
    },
    /// A line is no row of results.
    #[error("{origin}, line {line}: {problem}")]
    Row {
        /// Command or file that the line is from.
        origin: String,
        /// Line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
    /// The results lack a row of a figure.
    #[error("{figure}: the results lack \"{case}\", {metric}")]
    Missing {
        /// The figure.
        figure: String,
        /// Case of the row.
        case: String,
        /// Metric of the row.
        metric: String,
    },
    /// Recorded rows differ from those that have been measured.
    #[error("{figure}: {count} of the recorded rows differ; the first: {first}")]
    Differs {
        /// The figure.
        figure: String,
        /// How many rows differ.
        count: usize,
        /// The first of them, as recorded and as measured.
        first: String,
    },
    /// A figure has no recorded results.
    #[error("{0} has no recorded results: `sluice repro run {0}` measures them")]
    NotRecorded(String),
}
