//! [`TraceReader`]: a streaming reader of block traces; it never loads a complete file. Files may be
//! compressed with gzip or zstd.
//!
//! | format | a line | source |
//! |---|---|---|
//! | fio iolog v2 | `file action [offset length]`, `wait` in microseconds | fio(1), "Trace file format v2" |
//! | fio iolog v3 | `microseconds file action [offset length]` | fio(1), "Trace file format v3" |
//! | MSR Cambridge | `timestamp,host,disk,Read\|Write,offset,size,response` in 100 ns ticks and bytes | \[MSR08\], README |
//! | MQSim ASCII | `arrival device sector sectors type`, in ns and 512-byte sectors; type 0 writes, 1 reads | MQSim's README, "Trace-based workload" |
//!
//! A version 2 iolog has no times: its requests follow each other at the job's `iodepth`, and a
//! `wait` delays the requests after it. All other formats are timed: a request is due at the time
//! of its line. Times never decrease: a line with an earlier timestamp than its predecessor is due
//! together with it. Times count from the first access of the file, in a version 3 iolog from the
//! first timestamp that is not 0.
//!
//! Requests that are not whole sectors of the device are refused, unless `replay_align` sets an
//! alignment. Every error names file and line. `docs/traces.md` compares this behavior with fio.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use time::Nanos;

use crate::job::{Direction, ReplayOptions};

mod formats;
mod input;

use input::TraceInput;

/// Maximum length of a line in bytes, with its end. The longest valid line has a path of 4 KiB.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// fio's iolog, version 2 or 3 as its first line says.
    Iolog,
    /// MSR Cambridge CSV.
    Msr,
    /// MQSim's ASCII format.
    Mqsim,
}

impl TraceFormat {
    /// All formats.
    pub const ALL: [TraceFormat; 3] = [TraceFormat::Iolog, TraceFormat::Msr, TraceFormat::Mqsim];

    /// Returns the keyword of the format in a job.
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
        /// Path of the file.
        path: PathBuf,
        /// Reason that the operating system gives.
        reason: String,
    },
    /// The first line does not belong to a known format.
    #[error(
        "{}:1: not a fio iolog (\"fio version 2 iolog\" or 3), MSR Cambridge or MQSim trace, plain or \
         compressed with gzip or zstd",
        path.display()
    )]
    UnknownFormat {
        /// Path of the file.
        path: PathBuf,
    },
    /// Compressed data that is damaged or ends early.
    #[error(
        "{}:{line}: the {compression} data is damaged or incomplete here or later: {reason}; allowed \
         are plain text and complete {compression} files, which `{compression} -t` verifies",
        path.display()
    )]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Number of the first line that cannot be read, from 1. The damage may be later, by as much
        /// as the decoder holds back.
        line: u64,
        /// Name of the compression.
        compression: &'static str,
        /// Reason that the decoder gives.
        reason: String,
    },
    /// A line that does not match the format.
    #[error("{}:{line}: {what}", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// Problem and remedy.
        what: String,
    },
    /// An access that does not consist of whole sectors of the device.
    #[error(
        "{}:{line}: bytes {offset}..+{bytes} are not whole sectors of {sector_bytes} bytes; \
         `replay_align={sector_bytes}` aligns offsets down and lengths up to whole sectors, and \
         counts how many",
        path.display()
    )]
    Unaligned {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// First byte, after `replay_scale` and `replay_align`.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
        /// Sector size of the device in bytes.
        sector_bytes: u64,
    },
    /// An access past the end of the device.
    #[error(
        "{}:{line}: bytes {offset}..+{bytes} are past the end of the device ({device_bytes} bytes); \
         `wrap=1` wraps them around, `replay_scale=N` divides offsets by N",
        path.display()
    )]
    PastEnd {
        /// Path of the file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
        /// Size of the device in bytes.
        device_bytes: u64,
    },
}

/// Action of a line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceAction {
    /// Transfers or trims data.
    Access(Direction),
    /// Makes earlier writes durable.
    Flush,
}

/// Time at which a request of a trace is due, after the time scale is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// This long after the start of the replay.
    At(Nanos),
    /// When the previous request has been issued, and this long after the end of the previous wait.
    /// The first wait counts from the start of the replay.
    After(Nanos),
}

/// One line of a trace, adjusted to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOp {
    /// Time at which the request is due.
    pub at: Due,
    /// Action of the request.
    pub action: TraceAction,
    /// First sector of the device.
    pub lba: u64,
    /// Number of sectors of the device; 0 for a flush.
    pub sectors: u32,
}

/// Counts of the adjustments of a trace's requests to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceAdjustments {
    /// Number of requests whose offset or length `replay_align` changed.
    pub aligned_requests: u64,
    /// Bytes of the requests in the trace, without skipped requests.
    pub bytes_requested: u64,
    /// Bytes of the requests as issued, in whole sectors.
    pub bytes_issued: u64,
    /// Number of requests that wrapped around the end of the device (`wrap`).
    pub wrapped: u64,
    /// Number of requests to other devices (`trace_device`) and of kinds that `replay_skip` lists.
    pub skipped: u64,
}

impl TraceAdjustments {
    /// Adds the counts of another replay.
    pub fn merge(&mut self, other: &TraceAdjustments) {
        self.aligned_requests += other.aligned_requests;
        self.bytes_requested += other.bytes_requested;
        self.bytes_issued += other.bytes_issued;
        self.wrapped += other.wrapped;
        self.skipped += other.skipped;
    }
}

/// A line as written, with offset and length in bytes.
struct RawOp {
    at: Due,
    action: TraceAction,
    offset: u64,
    bytes: u64,
}

/// The lines of a file that are not empty.
#[derive(Debug)]
struct LineReader {
    lines: BufReader<TraceInput>,
    path: PathBuf,
    /// Size of the file in bytes.
    bytes: u64,
    /// Number of the current line, from 1.
    line: u64,
    /// The current line.
    text: String,
    /// Whether the current line has been read, but not returned by `advance`.
    is_peeked: bool,
}

impl LineReader {
    /// Opens a file.
    fn open(path: PathBuf) -> Result<LineReader, TraceError> {
        let (input, bytes) = TraceInput::open(&path).map_err(|e| unreadable(&path, &e))?;
        let lines = BufReader::new(input);
        Ok(LineReader { lines, path, bytes, line: 0, text: String::new(), is_peeked: false })
    }

    /// Reads the next line that is not empty into `text`; returns `false` at the end.
    fn advance(&mut self) -> Result<bool, TraceError> {
        loop {
            if !std::mem::take(&mut self.is_peeked) {
                self.read_line()?;
            }
            if self.text.is_empty() {
                return Ok(false);
            }
            if !self.text.trim().is_empty() {
                return Ok(true);
            }
        }
    }

    /// Returns the first line without consuming it.
    fn peek(&mut self) -> Result<&str, TraceError> {
        self.read_line()?;
        self.is_peeked = true;
        Ok(&self.text)
    }

    /// Reads the next line with its end into `text`, which is empty after the last.
    fn read_line(&mut self) -> Result<(), TraceError> {
        let mut bytes = std::mem::take(&mut self.text).into_bytes();
        bytes.clear();
        let mut line = (&mut self.lines).take(LINE_BYTES_MAX as u64 + 1);
        line.read_until(b'\n', &mut bytes).map_err(|e| self.failed(&e))?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.line += 1;
        if bytes.len() > LINE_BYTES_MAX {
            return Err(self.error(format!("a line of more than {LINE_BYTES_MAX} bytes")));
        }
        self.text =
            String::from_utf8(bytes).map_err(|_| self.error("not UTF-8 text".to_owned()))?;
        Ok(())
    }

    /// Returns the error of a file that cannot be read or decompressed after the current line.
    fn failed(&self, error: &std::io::Error) -> TraceError {
        match self.lines.get_ref().compression() {
            Some(compression) => TraceError::Damaged {
                path: self.path.clone(),
                line: self.line + 1,
                compression,
                reason: error.to_string(),
            },
            None => unreadable(&self.path, error),
        }
    }

    /// Returns the part of the file that has been read, from 0 to 1.
    fn progress(&self) -> f64 {
        let input = self.lines.get_ref();
        // Compressed bytes cannot be told for each line.
        let ahead = match input.compression() {
            Some(_) => 0,
            None => self.lines.buffer().len() as u64,
        };
        let read = input.file_bytes_read().saturating_sub(ahead);
        (read as f64 / (self.bytes as f64).max(1.0)).min(1.0)
    }

    /// Returns the error of the current line.
    fn error(&self, what: String) -> TraceError {
        TraceError::Line { path: self.path.clone(), line: self.line, what }
    }
}

/// Reads a trace line by line.
#[derive(Debug)]
pub struct TraceReader {
    input: LineReader,
    format: TraceFormat,
    /// Version of an iolog.
    version: u8,
    replay: ReplayOptions,
    sector_bytes: u64,
    sectors: u64,
    /// The file or device of a trace with only one.
    device_filter: Option<String>,
    /// Origin of the trace's times, in the unit of the format.
    epoch: Option<u64>,
    /// Sum of an iolog's waits since its last request, in nanoseconds.
    wait_ns: u64,
    last: Nanos,
    adjustments: TraceAdjustments,
}

impl TraceReader {
    /// Opens the trace of `replay` for a device with `sectors` sectors of `sector_bytes` bytes.
    ///
    /// # Errors
    /// [`TraceError`] if the file cannot be read or its format is unknown.
    pub fn open(
        replay: &ReplayOptions,
        sector_bytes: u32,
        sectors: u64,
    ) -> Result<TraceReader, TraceError> {
        let mut input = LineReader::open(replay.path.clone())?;
        let told = match input.peek() {
            Ok(first) => detect_format(first),
            // Not a line of text.
            Err(TraceError::Line { .. }) => None,
            Err(error) => return Err(error),
        };
        let (format, version) = match (replay.format, told) {
            (Some(TraceFormat::Iolog) | None, Some((TraceFormat::Iolog, v))) => {
                (TraceFormat::Iolog, v)
            }
            (Some(TraceFormat::Iolog), _) => {
                return Err(TraceError::Line {
                    path: input.path,
                    line: 1,
                    what: "expected \"fio version 2 iolog\" or \"fio version 3 iolog\"".to_owned(),
                });
            }
            (Some(format), _) => (format, 0),
            (None, Some((format, _))) => (format, 0),
            (None, None) => return Err(TraceError::UnknownFormat { path: input.path }),
        };
        let mut reader = TraceReader {
            input,
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
            reader.input.advance()?;
        }
        Ok(reader)
    }

    /// Returns the counts of adjustments so far.
    pub fn adjustments(&self) -> TraceAdjustments {
        self.adjustments
    }

    /// Returns the part of the file that has been read, from 0 to 1.
    pub fn progress(&self) -> f64 {
        self.input.progress()
    }

    /// Reads the trace up to `until` after the start of the replay, to find lines that cannot be
    /// replayed.
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

    /// Returns whether the trace has times for its requests; a version 2 iolog has none.
    pub fn is_timed(&self) -> bool {
        self.format != TraceFormat::Iolog || self.version == 3
    }

    /// Returns the next access, or `None` at the end of the trace.
    ///
    /// # Errors
    /// [`TraceError`]; the trace ends there.
    pub fn next_op(&mut self) -> Result<Option<TraceOp>, TraceError> {
        while self.input.advance()? {
            let text = std::mem::take(&mut self.input.text);
            let raw = match self.format {
                TraceFormat::Iolog => self.iolog(&text),
                TraceFormat::Msr => self.msr(&text),
                TraceFormat::Mqsim => self.mqsim(&text),
            };
            self.input.text = text;
            match raw {
                Ok(Some(raw)) if self.replay.skip.contains(raw.action) => {
                    self.adjustments.skipped += 1
                }
                Ok(Some(raw)) => return self.fit_to_device(&raw).map(Some),
                Ok(None) => {}
                Err(what) => return Err(self.input.error(what)),
            }
        }
        Ok(None)
    }

    /// Returns whether the access goes to the device that `trace_device` selects.
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

    /// Checks that the trace has only one device. Accesses to several devices are never mixed
    /// silently.
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

    /// Converts an access to sectors of the device and to the time of the replay.
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
            return Err(self.input.error("an access of 0 bytes".to_owned()));
        }
        let (offset, bytes) = self.align(raw)?;
        let past_end = || TraceError::PastEnd {
            path: self.input.path.clone(),
            line: self.input.line,
            offset,
            bytes,
            device_bytes: self.sectors.saturating_mul(self.sector_bytes),
        };
        let end = offset.checked_add(bytes).ok_or_else(past_end)?;
        let mut lba = offset / self.sector_bytes;
        let sectors = u32::try_from(bytes / self.sector_bytes)
            .map_err(|_| self.input.error(format!("an access of {bytes} bytes is too long")))?;
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

    /// Returns offset and length in whole sectors.
    ///
    /// The offset is divided by `replay_scale` and rounded down to a multiple of `replay_align`.
    /// With `replay_align`, the length is rounded up.
    fn align(&mut self, raw: &RawOp) -> Result<(u64, u64), TraceError> {
        let (sector, align) = (self.sector_bytes, self.replay.align);
        let scaled = raw.offset / self.replay.scale.max(1);
        // The alignment and the sector size are powers of two.
        let offset = if align > 0 { scaled & !(align - 1) } else { scaled };
        let bytes = if align > 0 { raw.bytes.next_multiple_of(sector) } else { raw.bytes };
        if !offset.is_multiple_of(sector) || !bytes.is_multiple_of(sector) {
            return Err(TraceError::Unaligned {
                path: self.input.path.clone(),
                line: self.input.line,
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

/// Returns the format of a trace with this first line, and its version.
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
