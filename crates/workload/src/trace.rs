//! [`TraceReader`]: block traces, read as they are replayed, never as a whole.
//!
//! | format | a line | source |
//! |---|---|---|
//! | fio iolog v2 | `file action [offset length]`, `wait` in microseconds | fio(1), "Trace file format v2" |
//! | fio iolog v3 | `microseconds file action [offset length]` | fio(1), "Trace file format v3" |
//! | MSR Cambridge | `timestamp,host,disk,Read\|Write,offset,size,response` in 100 ns ticks and bytes | SNIA IOTTA 388, README |
//! | MQSim ASCII | `arrival device sector sectors type`, in ns and 512-byte sectors; type 0 writes, 1 reads | MQSim's README, "Trace-based workload" |
//!
//! A version 2 iolog has no times: its requests follow each other at the job's `iodepth`, and a `wait`
//! delays those after it. All other formats are timed: a request is due when its line says. Times
//! never run backwards: a line stamped earlier than the one before it arrives with that one. Times
//! count from the first access of the file, in a version 3 iolog from the first stamp that is not 0.
//!
//! Requests that are not whole sectors of the device are refused, unless `replay_align` says how to
//! align them. Every error names file and line; `docs/traces.md` compares all of this with fio.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use clock::Nanos;

use crate::job::{Direction, Replay};

mod formats;

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// fio's own, version 2 or 3 as its first line says.
    Iolog,
    /// MSR Cambridge CSV.
    Msr,
    /// MQSim's ASCII format.
    Mqsim,
}

impl TraceFormat {
    /// All of them.
    pub const ALL: [TraceFormat; 3] = [TraceFormat::Iolog, TraceFormat::Msr, TraceFormat::Mqsim];

    /// Its word in a job.
    pub fn name(self) -> &'static str {
        match self {
            TraceFormat::Iolog => "iolog",
            TraceFormat::Msr => "msr",
            TraceFormat::Mqsim => "mqsim",
        }
    }
}

/// A trace that cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The first line belongs to no known format.
    #[error(
        "{}:1: not a fio iolog (\"fio version 2 iolog\" or 3), MSR Cambridge or MQSim trace",
        path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A line that is not of the format.
    #[error("{}:{line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// An access that is not in whole sectors of the device.
    #[error(
        "{}:{line}: bytes {offset}..+{bytes} are not whole sectors of {sector_bytes} bytes; \
         `replay_align={sector_bytes}` aligns offsets down and lengths up to whole sectors, and \
         counts how many",
        path.display()
    )]
    Unaligned {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// First byte, `replay_scale` and `replay_align` applied.
        offset: u64,
        /// Bytes.
        bytes: u64,
        /// Bytes per sector of the device.
        sector_bytes: u64,
    },
    /// An access past the end of the device.
    #[error(
        "{}:{line}: bytes {offset}..+{bytes} are past the end of the device ({device_bytes} bytes); \
         `wrap=1` wraps them around, `replay_scale=N` divides offsets by N",
        path.display()
    )]
    PastEnd {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        bytes: u64,
        /// Bytes of the device.
        device_bytes: u64,
    },
}

/// What a line of a trace does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceAction {
    /// Moves or trims data.
    Access(Direction),
    /// Makes what was written durable.
    Flush,
}

/// When a request of a trace is due, time scale applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// This long after the replay's start.
    At(Nanos),
    /// When the request before it has been issued, and this long after the previous wait ended (the
    /// replay's start if there was none).
    After(Nanos),
}

/// One line of a trace, fitted to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOp {
    /// When.
    pub at: Due,
    /// What.
    pub action: TraceAction,
    /// First sector of the device.
    pub lba: u64,
    /// Sectors of the device; 0 for a flush.
    pub sectors: u32,
}

/// How requests of a trace had to be changed to fit the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceAdjustments {
    /// Requests whose offset or length `replay_align` has changed.
    pub aligned_requests: u64,
    /// Bytes that the requests of the trace ask for, those left out excluded.
    pub bytes_requested: u64,
    /// Bytes of the requests that were made of them, in whole sectors.
    pub bytes_issued: u64,
    /// Requests wrapped around the end of the device (`wrap`).
    pub wrapped: u64,
    /// Requests to other devices (`trace_device`) and of kinds that `replay_skip` names.
    pub skipped: u64,
}

impl TraceAdjustments {
    /// Adds another replay's numbers to these.
    pub fn merge(&mut self, other: &TraceAdjustments) {
        self.aligned_requests += other.aligned_requests;
        self.bytes_requested += other.bytes_requested;
        self.bytes_issued += other.bytes_issued;
        self.wrapped += other.wrapped;
        self.skipped += other.skipped;
    }
}

/// A line as written: offset and length in bytes.
struct RawOp {
    at: Due,
    action: TraceAction,
    offset: u64,
    bytes: u64,
}

/// Reads a trace line by line.
#[derive(Debug)]
pub struct TraceReader {
    lines: BufReader<File>,
    /// Bytes of the file, and those of them that were read.
    bytes: u64,
    bytes_read: u64,
    path: PathBuf,
    line: u64,
    text: String,
    format: TraceFormat,
    /// The version of an iolog.
    version: u8,
    replay: Replay,
    sector_bytes: u64,
    sectors: u64,
    /// The file or device that a trace of one is about.
    device_filter: Option<String>,
    /// The time that the trace's times count from, in the format's unit.
    epoch: Option<u64>,
    /// Nanoseconds of an iolog's waits since its last request.
    wait_ns: u64,
    last: Nanos,
    adjustments: TraceAdjustments,
}

impl TraceReader {
    /// Opens the trace of `replay` for a device of `sectors` of `sector_bytes`.
    ///
    /// # Errors
    /// [`TraceError`] when the file cannot be read or its format is not known.
    pub fn open(
        replay: &Replay,
        sector_bytes: u32,
        sectors: u64,
    ) -> Result<TraceReader, TraceError> {
        let path = replay.path.clone();
        let unreadable = |e: std::io::Error| unreadable(&path, &e);
        let file = File::open(&path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        let mut lines = BufReader::new(file);
        let first = peek_line(&mut lines).map_err(unreadable)?;
        let told = detect_format(&first);
        let (format, version) = match (replay.format, told) {
            (Some(TraceFormat::Iolog) | None, Some((TraceFormat::Iolog, v))) => {
                (TraceFormat::Iolog, v)
            }
            (Some(TraceFormat::Iolog), _) => {
                return Err(TraceError::Line {
                    path,
                    line: 1,
                    what: "expected \"fio version 2 iolog\" or \"fio version 3 iolog\"".to_owned(),
                });
            }
            (Some(format), _) => (format, 0),
            (None, Some((format, _))) => (format, 0),
            (None, None) => return Err(TraceError::UnknownFormat { path }),
        };
        let mut reader = TraceReader {
            lines,
            bytes,
            bytes_read: 0,
            path,
            line: 0,
            text: String::new(),
            format,
            version,
            replay: replay.clone(),
            sector_bytes: u64::from(sector_bytes),
            sectors,
            device_filter: None,
            epoch: None,
            wait_ns: 0,
            last: Nanos::ZERO,
            adjustments: TraceAdjustments::default(),
        };
        if format == TraceFormat::Iolog {
            reader.advance()?;
        }
        Ok(reader)
    }

    /// How requests were changed so far.
    pub fn adjustments(&self) -> TraceAdjustments {
        self.adjustments
    }

    /// How much of the file has been read, of 1.
    pub fn progress(&self) -> f64 {
        (self.bytes_read as f64 / (self.bytes as f64).max(1.0)).min(1.0)
    }

    /// Reads the trace up to `until` after the replay's start, to find lines that cannot be replayed.
    ///
    /// # Errors
    /// As [`next_op`](TraceReader::next_op).
    pub fn check(mut self, until: Nanos) -> Result<(), TraceError> {
        while let Some(op) = self.next_op()? {
            if matches!(op.at, Due::At(time) if time > until) {
                break;
            }
        }
        Ok(())
    }

    /// Whether the trace says when its requests are due; a version 2 iolog does not.
    pub fn is_timed(&self) -> bool {
        self.format != TraceFormat::Iolog || self.version == 3
    }

    /// The next access, `None` at the end.
    ///
    /// # Errors
    /// [`TraceError`]; the trace ends there.
    pub fn next_op(&mut self) -> Result<Option<TraceOp>, TraceError> {
        while self.advance()? {
            let text = std::mem::take(&mut self.text);
            let raw = match self.format {
                TraceFormat::Iolog => self.iolog(&text),
                TraceFormat::Msr => self.msr(&text),
                TraceFormat::Mqsim => self.mqsim(&text),
            };
            self.text = text;
            match raw {
                Ok(Some(raw)) if self.replay.skip.contains(raw.action) => {
                    self.adjustments.skipped += 1
                }
                Ok(Some(raw)) => return self.fit_to_device(&raw).map(Some),
                Ok(None) => {}
                Err(what) => {
                    return Err(TraceError::Line {
                        path: self.path.clone(),
                        line: self.line,
                        what,
                    });
                }
            }
        }
        Ok(None)
    }

    /// Reads the next line that is not empty into `text`; `false` at the end.
    fn advance(&mut self) -> Result<bool, TraceError> {
        loop {
            self.text.clear();
            let read = self.lines.read_line(&mut self.text);
            let read = read.map_err(|e| unreadable(&self.path, &e))?;
            if read == 0 {
                return Ok(false);
            }
            self.bytes_read += read as u64;
            self.line += 1;
            if !self.text.trim().is_empty() {
                return Ok(true);
            }
        }
    }

    /// Whether the access is to the device that `trace_device` asks for.
    fn is_selected_device(&mut self, number: &str) -> Result<bool, String> {
        match self.replay.device {
            Some(wanted) => {
                let this = parse(number, "the device number")? == u64::from(wanted);
                self.adjustments.skipped += u64::from(!this);
                Ok(this)
            }
            None => self.matches_device(
                number,
                "device",
                "`trace_device=N` picks one, `replay_redirect=1` sends all to this device",
            ),
        }
    }

    /// Traces of several devices are never mixed silently.
    fn matches_device(&mut self, name: &str, kind: &str, remedy: &str) -> Result<bool, String> {
        match &self.device_filter {
            Some(only) if only == name || self.replay.redirect => Ok(true),
            Some(only) => Err(format!("a second {kind}, `{name}` after `{only}`; {remedy}")),
            None => {
                self.device_filter = Some(name.to_owned());
                Ok(true)
            }
        }
    }

    /// In sectors of the device, and in its time.
    fn fit_to_device(&mut self, raw: &RawOp) -> Result<TraceOp, TraceError> {
        let scaled = |time: Nanos| Nanos((time.0 as f64 * (100.0 / self.replay.time_scale)) as u64);
        let at = match raw.at {
            Due::After(wait) => Due::After(scaled(wait)),
            Due::At(time) => {
                self.last = self.last.max(scaled(time));
                Due::At(self.last)
            }
        };
        let op = TraceOp { at, action: raw.action, lba: 0, sectors: 0 };
        if raw.action == TraceAction::Flush {
            return Ok(op);
        }
        if raw.bytes == 0 {
            let what = "an access of 0 bytes".to_owned();
            return Err(TraceError::Line { path: self.path.clone(), line: self.line, what });
        }
        let (offset, bytes) = self.align(raw)?;
        let past_end = || TraceError::PastEnd {
            path: self.path.clone(),
            line: self.line,
            offset,
            bytes,
            device_bytes: self.sectors.saturating_mul(self.sector_bytes),
        };
        let end = offset.checked_add(bytes).ok_or_else(past_end)?;
        let mut lba = offset / self.sector_bytes;
        let sectors = u32::try_from(bytes / self.sector_bytes).map_err(|_| TraceError::Line {
            path: self.path.clone(),
            line: self.line,
            what: format!("an access of {bytes} bytes is too long"),
        })?;
        if end / self.sector_bytes > self.sectors {
            if !self.replay.wrap || u64::from(sectors) > self.sectors {
                return Err(past_end());
            }
            self.adjustments.wrapped += 1;
            lba = (lba % self.sectors).min(self.sectors - u64::from(sectors));
        }
        self.adjustments.bytes_requested += raw.bytes;
        self.adjustments.bytes_issued += bytes;
        Ok(TraceOp { lba, sectors, ..op })
    }

    /// Offset and length in whole sectors: the offset divided by `replay_scale`, then rounded down
    /// to a multiple of `replay_align`; with `replay_align` the length is rounded up.
    fn align(&mut self, raw: &RawOp) -> Result<(u64, u64), TraceError> {
        let (sector, align) = (self.sector_bytes, self.replay.align);
        let scaled = raw.offset / self.replay.scale.max(1);
        // Both are powers of two.
        let offset = if align > 0 { scaled & !(align - 1) } else { scaled };
        let bytes = if align > 0 { raw.bytes.next_multiple_of(sector) } else { raw.bytes };
        if !offset.is_multiple_of(sector) || !bytes.is_multiple_of(sector) {
            return Err(TraceError::Unaligned {
                path: self.path.clone(),
                line: self.line,
                offset,
                bytes,
                sector_bytes: sector,
            });
        }
        self.adjustments.aligned_requests += u64::from(offset != scaled || bytes != raw.bytes);
        Ok((offset, bytes))
    }
}

fn unreadable(path: &Path, e: &std::io::Error) -> TraceError {
    TraceError::Unreadable { path: path.to_owned(), reason: e.to_string() }
}

fn parse(text: &str, what: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("`{text}` is not {what}"))
}

/// What is buffered of the first line, without taking it.
fn peek_line(lines: &mut BufReader<File>) -> std::io::Result<String> {
    let buffered = lines.fill_buf()?;
    let end = buffered.iter().position(|b| *b == b'\n').unwrap_or(buffered.len().min(4096));
    Ok(String::from_utf8_lossy(&buffered[..end]).into_owned())
}

/// The format that a first line belongs to, and its version.
fn detect_format(first: &str) -> Option<(TraceFormat, u8)> {
    let first = first.trim();
    match first {
        "fio version 2 iolog" => return Some((TraceFormat::Iolog, 2)),
        "fio version 3 iolog" => return Some((TraceFormat::Iolog, 3)),
        _ => {}
    }
    let commas: Vec<&str> = first.split(',').map(str::trim).collect();
    if commas.len() >= 6 && ["read", "write"].contains(&commas[3].to_ascii_lowercase().as_str()) {
        return Some((TraceFormat::Msr, 0));
    }
    let words: Vec<&str> = first.split_whitespace().collect();
    let numeric = words.len() == 5 && words.iter().all(|w| w.parse::<u64>().is_ok());
    numeric.then_some((TraceFormat::Mqsim, 0))
}

#[cfg(test)]
mod tests;
