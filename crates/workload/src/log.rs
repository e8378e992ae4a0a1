//! [`JobLogs`]: fio's logs over time, `write_lat_log` and its like, in the format of fio 3.33.
//!
//! | file | value |
//! |---|---|
//! | `NAME_slat.N.log`, `NAME_clat.N.log`, `NAME_lat.N.log` | nanoseconds |
//! | `NAME_bw.N.log` | KiB/s of a window; of one request its bytes per its latency, in 1000 bytes/s |
//! | `NAME_iops.N.log` | requests per second of a window; 1 for one request |
//!
//! Files are opened before the run, and written through a buffer while it goes on. The first error
//! ends writing, and is reported when the run ends.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clock::Nanos;

use crate::error::HostError;
use crate::job::{Direction, JobSpec, LogSpec};
use crate::recorder::Times;

/// Bytes of a file's buffer.
const BUFFER: usize = 1 << 16;

/// A request that has completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) direction: Direction,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) times: Times,
}

/// The value that a file logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Slat,
    Clat,
    Lat,
    Bandwidth,
    Iops,
}

impl Kind {
    fn suffix(self) -> &'static str {
        match self {
            Kind::Slat => "slat",
            Kind::Clat => "clat",
            Kind::Lat => "lat",
            Kind::Bandwidth => "bw",
            Kind::Iops => "iops",
        }
    }

    fn is_latency(self) -> bool {
        matches!(self, Kind::Slat | Kind::Clat | Kind::Lat)
    }

    /// The value of one request.
    fn of(self, entry: &Entry) -> u64 {
        let Times { wanted, issued, completed } = entry.times;
        match self {
            Kind::Slat => issued.since(wanted).0,
            Kind::Clat => completed.since(issued).0,
            Kind::Lat => completed.since(wanted).0,
            Kind::Iops => 1,
            Kind::Bandwidth => {
                let nanos = u128::from(completed.since(wanted).0.max(1));
                (u128::from(entry.bytes) * 1_000_000 / nanos) as u64
            }
        }
    }
}

/// Requests of one direction in a window.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    bytes: u64,
    sum: u128,
    max: u64,
}

impl Sum {
    fn add(&mut self, value: u64, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }
}

#[derive(Debug)]
struct Log {
    kind: Kind,
    path: PathBuf,
    file: BufWriter<File>,
    sums: [Sum; 3],
}

impl Log {
    fn create(name: &str, kind: Kind, index: usize) -> Result<Log, (PathBuf, std::io::Error)> {
        let path = PathBuf::from(format!("{name}_{}.{index}.log", kind.suffix()));
        match File::create(&path) {
            Ok(file) => {
                let file = BufWriter::with_capacity(BUFFER, file);
                Ok(Log { kind, path, file, sums: [Sum::default(); 3] })
            }
            Err(e) => Err((path, e)),
        }
    }

    /// One line per direction of the window that ends at `at`, `length` long.
    fn close_window(&mut self, at: Nanos, length: Nanos, spec: &LogSpec) -> std::io::Result<()> {
        for direction in Direction::ALL {
            let sum = std::mem::take(&mut self.sums[direction as usize]);
            if sum.count == 0 {
                continue;
            }
            let per_second =
                |amount: u64| (u128::from(amount) * 1_000_000_000 / u128::from(length.0)) as u64;
            let value = match self.kind {
                Kind::Bandwidth => per_second(sum.bytes) / 1024,
                Kind::Iops => per_second(sum.count),
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
    logs: Vec<Log>,
    /// When the present window ends, on the clock that starts with the job.
    window_ends: Nanos,
    error: Option<(PathBuf, std::io::Error)>,
}

impl JobLogs {
    /// Creates the files of `spec`, relative to the current folder; `index` is the job's place among
    /// all jobs and clones, from 1. `None` for a job without logs.
    pub(crate) fn create(spec: &JobSpec, index: usize) -> Result<Option<JobLogs>, HostError> {
        let wanted = [
            (Kind::Slat, &spec.logs.lat),
            (Kind::Clat, &spec.logs.lat),
            (Kind::Lat, &spec.logs.lat),
            (Kind::Bandwidth, &spec.logs.bw),
            (Kind::Iops, &spec.logs.iops),
        ];
        let mut logs = Vec::new();
        for (kind, name) in wanted {
            let Some(name) = name else { continue };
            let name = if name.is_empty() { &spec.name } else { name };
            let log = Log::create(name, kind, index);
            logs.push(log.map_err(|(path, e)| failed(&spec.name, &path, &e))?);
        }
        let window_ends = spec.logs.window;
        let (job, spec) = (spec.name.clone(), spec.logs.clone());
        let logs = JobLogs { job, spec, logs, window_ends, error: None };
        Ok((!logs.logs.is_empty()).then_some(logs))
    }

    /// Whether the folders of a job's logs are there.
    pub(crate) fn check(spec: &JobSpec) -> Result<(), HostError> {
        for name in [&spec.logs.lat, &spec.logs.bw, &spec.logs.iops].into_iter().flatten() {
            let name = Path::new(if name.is_empty() { &spec.name } else { name });
            let folder = name.parent().filter(|folder| !folder.as_os_str().is_empty());
            let Some(folder) = folder else { continue };
            let found = std::fs::metadata(folder).and_then(|found| match found.is_dir() {
                true => Ok(()),
                false => Err(std::io::ErrorKind::NotADirectory.into()),
            });
            found.map_err(|e| failed(&spec.name, folder, &e))?;
        }
        Ok(())
    }

    /// A request completed `at` after the job started to measure.
    pub(crate) fn record(&mut self, at: Nanos, entry: Entry) {
        if self.error.is_some() {
            return;
        }
        let windows = self.spec.window > Nanos::ZERO;
        if windows && at >= self.window_ends {
            self.advance(at);
        }
        for log in &mut self.logs {
            let value = log.kind.of(&entry);
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

    /// Closes the window that has passed at `at`, and goes to the one that has not.
    fn advance(&mut self, at: Nanos) {
        for log in &mut self.logs {
            if let Err(e) = log.close_window(self.window_ends, self.spec.window, &self.spec) {
                self.error = Some((log.path.clone(), e));
            }
        }
        let windows = at.0 / self.spec.window.0 + 1;
        self.window_ends = self.spec.window * windows;
    }

    /// Writes what is left; the job has ended `at` after it started to measure.
    pub(crate) fn finish(&mut self, at: Nanos) -> Result<(), HostError> {
        if self.spec.window > Nanos::ZERO && self.error.is_none() {
            if at >= self.window_ends {
                self.advance(at);
            }
            let length = at.since(self.window_ends.since(self.spec.window));
            for log in self.logs.iter_mut().filter(|log| log.kind.is_latency()) {
                // A last window that is not whole: rates over it would mislead.
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
            Some((path, e)) => Err(failed(&self.job, path, e)),
            None => Ok(()),
        }
    }
}

fn failed(job: &str, path: &Path, e: &std::io::Error) -> HostError {
    HostError::Log { job: job.to_owned(), path: path.to_owned(), reason: e.to_string() }
}
