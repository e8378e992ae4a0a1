//! [`JobLogs`]: fio's logs over time, such as `write_lat_log`, in the format of fio 3.33.
//!
//! | file | value |
//! |---|---|
//! | `NAME_slat.N.log`, `NAME_clat.N.log`, `NAME_lat.N.log` | nanoseconds |
//! | `NAME_bw.N.log` | KiB/s of a window; for one request, its bytes by its latency, in 1000 bytes/s |
//! | `NAME_iops.N.log` | requests per second of a window; 1 for one request |
//!
//! The files are opened before the run and written through a buffer during it. The first error
//! stops all writing and is reported at the end of the run.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use time::Nanos;

use crate::error::RunError;
use crate::job::{Direction, JobSpec, LogSpec};
use crate::results::latency_recorder::Timestamps;

/// Size of the buffer of a file, in bytes.
const BUFFER: usize = 1 << 16;

/// A completed request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogEntry {
    pub(crate) direction: Direction,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) times: Timestamps,
}

/// The value that a file logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogKind {
    Slat,
    Clat,
    Lat,
    Bandwidth,
    Iops,
}

impl LogKind {
    fn suffix(self) -> &'static str {
        match self {
            LogKind::Slat => "slat",
            LogKind::Clat => "clat",
            LogKind::Lat => "lat",
            LogKind::Bandwidth => "bw",
            LogKind::Iops => "iops",
        }
    }

    fn is_latency(self) -> bool {
        matches!(self, LogKind::Slat | LogKind::Clat | LogKind::Lat)
    }

    /// Returns the logged value of one request.
    fn value(self, entry: &LogEntry) -> u64 {
        let Timestamps { wanted, issued, completed } = entry.times;
        match self {
            LogKind::Slat => issued.since(wanted).0,
            LogKind::Clat => completed.since(issued).0,
            LogKind::Lat => completed.since(wanted).0,
            LogKind::Iops => 1,
            LogKind::Bandwidth => {
                let nanos = u128::from(completed.since(wanted).0.max(1));
                (u128::from(entry.bytes) * 1_000_000 / nanos) as u64
            }
        }
    }
}

/// Sums over the requests of one direction in a window.
#[derive(Clone, Copy, Debug, Default)]
struct WindowSum {
    count: u64,
    bytes: u64,
    sum: u128,
    max: u64,
}

impl WindowSum {
    fn add(&mut self, value: u64, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }
}

#[derive(Debug)]
struct LogFile {
    kind: LogKind,
    path: PathBuf,
    file: BufWriter<File>,
    sums: [WindowSum; 3],
}

impl LogFile {
    fn create(
        name: &str,
        kind: LogKind,
        index: usize,
    ) -> Result<LogFile, (PathBuf, std::io::Error)> {
        let path = PathBuf::from(format!("{name}_{}.{index}.log", kind.suffix()));
        match File::create(&path) {
            Ok(file) => {
                let file = BufWriter::with_capacity(BUFFER, file);
                Ok(LogFile { kind, path, file, sums: [WindowSum::default(); 3] })
            }
            Err(e) => Err((path, e)),
        }
    }

    /// Writes one line per direction for the window of length `length` that ends at `at`.
    fn close_window(&mut self, at: Nanos, length: Nanos, spec: &LogSpec) -> std::io::Result<()> {
        for direction in Direction::ALL {
            let sum = std::mem::take(&mut self.sums[direction as usize]);
            if sum.count == 0 {
                continue;
            }
            let per_second =
                |amount: u64| (u128::from(amount) * 1_000_000_000 / u128::from(length.0)) as u64;
            let value = match self.kind {
                LogKind::Bandwidth => per_second(sum.bytes) / 1024,
                LogKind::Iops => per_second(sum.count),
                _ if spec.max_value => sum.max,
                _ => (sum.sum / u128::from(sum.count)) as u64,
            };
            self.line(at, value, direction, 0, spec.offset.then_some(0))?;
        }
        Ok(())
    }

    fn line(
        &mut self,
        at: Nanos,
        value: u64,
        direction: Direction,
        bytes: u64,
        offset: Option<u64>,
    ) -> std::io::Result<()> {
        let (ms, direction) = (at.0 / 1_000_000, direction as u8);
        match offset {
            Some(offset) => {
                writeln!(self.file, "{ms}, {value}, {direction}, {bytes}, {offset}, 0")
            }
            None => writeln!(self.file, "{ms}, {value}, {direction}, {bytes}, 0"),
        }
    }
}

/// The logs of one job.
#[derive(Debug)]
pub(crate) struct JobLogs {
    job: String,
    spec: LogSpec,
    logs: Vec<LogFile>,
    /// End of the current window, on a clock that starts with the job.
    window_end: Nanos,
    error: Option<(PathBuf, std::io::Error)>,
}

impl JobLogs {
    /// Creates the files of `spec` relative to the current directory.
    ///
    /// `index` is the index of the job among all jobs and clones, from 1. Returns `None` for a job
    /// without logs.
    pub(crate) fn create(spec: &JobSpec, index: usize) -> Result<Option<JobLogs>, RunError> {
        let wanted = [
            (LogKind::Slat, &spec.report.logs.lat),
            (LogKind::Clat, &spec.report.logs.lat),
            (LogKind::Lat, &spec.report.logs.lat),
            (LogKind::Bandwidth, &spec.report.logs.bw),
            (LogKind::Iops, &spec.report.logs.iops),
        ];
        let mut logs = Vec::new();
        for (kind, name) in wanted {
            let Some(name) = name else { continue };
            let name = if name.is_empty() { &spec.name } else { name };
            let log = LogFile::create(name, kind, index);
            logs.push(log.map_err(|(path, e)| log_error(&spec.name, &path, &e))?);
        }
        let window_ends = spec.report.logs.window;
        let (job, spec) = (spec.name.clone(), spec.report.logs.clone());
        let logs = JobLogs { job, spec, logs, window_end: window_ends, error: None };
        Ok((!logs.logs.is_empty()).then_some(logs))
    }

    /// Checks that the directories of a job's logs exist.
    pub(crate) fn check(spec: &JobSpec) -> Result<(), RunError> {
        for name in [&spec.report.logs.lat, &spec.report.logs.bw, &spec.report.logs.iops]
            .into_iter()
            .flatten()
        {
            let name = Path::new(if name.is_empty() { &spec.name } else { name });
            let folder = name.parent().filter(|folder| !folder.as_os_str().is_empty());
            let Some(folder) = folder else { continue };
            let found = std::fs::metadata(folder).and_then(|found| match found.is_dir() {
                true => Ok(()),
                false => Err(std::io::ErrorKind::NotADirectory.into()),
            });
            found.map_err(|e| log_error(&spec.name, folder, &e))?;
        }
        Ok(())
    }

    /// Logs a request that completed `at` after the job started to measure.
    pub(crate) fn record(&mut self, at: Nanos, entry: LogEntry) {
        if self.error.is_some() {
            return;
        }
        let windows = self.spec.window > Nanos::ZERO;
        if windows && at >= self.window_end {
            self.advance(at);
        }
        for log in &mut self.logs {
            let value = log.kind.value(&entry);
            if windows {
                log.sums[entry.direction as usize].add(value, entry.bytes);
                continue;
            }
            let offset = self.spec.offset.then_some(entry.offset);
            if let Err(e) = log.line(at, value, entry.direction, entry.bytes, offset) {
                self.error = Some((log.path.clone(), e));
                return;
            }
        }
    }

    /// Closes the windows that end by `at` and opens the next one.
    fn advance(&mut self, at: Nanos) {
        for log in &mut self.logs {
            if let Err(e) = log.close_window(self.window_end, self.spec.window, &self.spec) {
                self.error = Some((log.path.clone(), e));
            }
        }
        let windows = at.0 / self.spec.window.0 + 1;
        self.window_end = self.spec.window * windows;
    }

    /// Writes the remaining data of a job that ended `at` after it started to measure.
    pub(crate) fn finish(&mut self, at: Nanos) -> Result<(), RunError> {
        if self.spec.window > Nanos::ZERO && self.error.is_none() {
            if at >= self.window_end {
                self.advance(at);
            }
            let length = at.since(self.window_end.since(self.spec.window));
            for log in self.logs.iter_mut().filter(|log| log.kind.is_latency()) {
                // The last window may be incomplete; rates over it would mislead.
                if let Err(e) = log.close_window(at, length, &self.spec) {
                    self.error = Some((log.path.clone(), e));
                }
            }
        }
        for log in &mut self.logs {
            if let Err(e) = log.file.flush() {
                self.error.get_or_insert((log.path.clone(), e));
            }
        }
        match &self.error {
            Some((path, e)) => Err(log_error(&self.job, path, e)),
            None => Ok(()),
        }
    }
}

fn log_error(job: &str, path: &Path, e: &std::io::Error) -> RunError {
    RunError::Log { job: job.to_owned(), path: path.to_owned(), reason: e.to_string() }
}
