//! [`TraceReader`]: block traces, read as they are replayed, never as a whole.
//!
//! | format | a line | source |
//! |---|---|---|
//! | fio iolog v2 | `file action [offset length]`, `wait` in microseconds | fio(1), "Trace file format v2" |
//! | fio iolog v3 | `microseconds file action [offset length]` | fio(1), "Trace file format v3" |
//! | MSR Cambridge | `timestamp,host,disk,Read\|Write,offset,size,response` in 100 ns ticks and bytes | SNIA IOTTA 388, README |
//! | MQSim ASCII | `arrival device sector sectors type`, in ns and 512-byte sectors; type 0 writes, 1 reads | MQSim's README, "Trace-based workload" |
//!
//! Every error names file and line. Times never run backwards: a line stamped earlier than the one
//! before it arrives with that one. MSR and MQSim times count from the first access of the file.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use clock::Nanos;

use crate::job::{Direction, Replay};

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
    /// An access past the end of the device.
    #[error(
        "{}:{line}: bytes {offset}..+{bytes} are past the end of the device ({device_bytes} bytes); \
         `wrap=1` wraps them around",
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

/// One line of a trace, fitted to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOp {
    /// When, after the replay's start, time scale applied.
    pub at: Nanos,
    /// What.
    pub action: TraceAction,
    /// First sector of the device.
    pub lba: u64,
    /// Sectors of the device; 0 for a flush.
    pub sectors: u32,
}

/// What had to be changed to fit a trace to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceFit {
    /// Accesses widened to whole sectors.
    pub widened: u64,
    /// Accesses wrapped around the end of the device.
    pub wrapped: u64,
    /// Accesses to other devices of the trace, left out as `trace_device` asks.
    pub left_out: u64,
}

/// A line as written: time in nanoseconds of the trace, offset and length in bytes.
struct Raw {
    at: u64,
    action: TraceAction,
    offset: u64,
    bytes: u64,
}

/// Reads a trace line by line.
#[derive(Debug)]
pub struct TraceReader {
    lines: BufReader<File>,
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
    only: Option<String>,
    /// Time of the first access, for formats that count from an epoch.
    epoch: Option<u64>,
    /// Sum of an iolog's waits.
    waited: u64,
    last: Nanos,
    fit: TraceFit,
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
        let mut lines = BufReader::new(File::open(&path).map_err(unreadable)?);
        let first = peek_line(&mut lines).map_err(unreadable)?;
        let told = guess(&first);
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
            path,
            line: 0,
            text: String::new(),
            format,
            version,
            replay: replay.clone(),
            sector_bytes: u64::from(sector_bytes),
            sectors,
            only: None,
            epoch: None,
            waited: 0,
            last: Nanos::ZERO,
            fit: TraceFit::default(),
        };
        if format == TraceFormat::Iolog {
            reader.advance()?;
        }
        Ok(reader)
    }

    /// What had to be changed so far.
    pub fn fit(&self) -> TraceFit {
        self.fit
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
                Ok(Some(raw)) => return self.fitted(&raw).map(Some),
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
            if read.map_err(|e| unreadable(&self.path, &e))? == 0 {
                return Ok(false);
            }
            self.line += 1;
            if !self.text.trim().is_empty() {
                return Ok(true);
            }
        }
    }

    /// `None` for a line that is not an access.
    fn iolog(&mut self, text: &str) -> Result<Option<Raw>, String> {
        let mut words = text.split_whitespace();
        let mut word = |what: &str| words.next().ok_or(format!("{what} is missing"));
        let stamp = if self.version == 3 {
            let micros = parse(word("the timestamp")?, "the timestamp in microseconds")?;
            Some(micros.saturating_mul(1000))
        } else {
            None
        };
        let file = word("the file")?;
        let action = word("the action")?;
        let offset = words.next();
        let bytes = words.next();
        if let Some(extra) = words.next() {
            return Err(format!("`{extra}` after the length"));
        }
        let offset_of = || parse(offset.ok_or("the offset is missing")?, "the offset in bytes");
        let action = match action {
            "add" | "open" | "close" => return Ok(None),
            "wait" if self.version == 2 => {
                self.waited = self.waited.saturating_add(offset_of()?.saturating_mul(1000));
                return Ok(None);
            }
            "wait" => return Err("`wait` is not an action of version 3".to_owned()),
            "read" => TraceAction::Access(Direction::Read),
            "write" => TraceAction::Access(Direction::Write),
            "trim" => TraceAction::Access(Direction::Trim),
            "sync" | "datasync" => TraceAction::Flush,
            other => {
                return Err(format!(
                    "unknown action `{other}`: expected add, open, close, wait, read, write, trim, \
                     sync or datasync"
                ));
            }
        };
        if !self.same_device(file, "file", "`replay_redirect=1` sends all to this device")? {
            return Ok(None);
        }
        let at = stamp.unwrap_or(self.waited);
        if action == TraceAction::Flush {
            return Ok(Some(Raw { at, action, offset: 0, bytes: 0 }));
        }
        let bytes = parse(bytes.ok_or("the length is missing")?, "the length in bytes")?;
        Ok(Some(Raw { at, action, offset: offset_of()?, bytes }))
    }

    fn msr(&mut self, text: &str) -> Result<Option<Raw>, String> {
        let mut fields = text.trim().split(',').map(str::trim);
        let mut field = |what: &str| fields.next().ok_or(format!("{what} is missing"));
        let ticks = parse(field("the timestamp")?, "the timestamp in ticks of 100 ns")?;
        field("the host name")?;
        let disk = field("the disk number")?;
        let kind = field("the type")?;
        let offset = parse(field("the offset")?, "the offset in bytes")?;
        let bytes = parse(field("the size")?, "the size in bytes")?;
        let direction = if kind.eq_ignore_ascii_case("read") {
            Direction::Read
        } else if kind.eq_ignore_ascii_case("write") {
            Direction::Write
        } else {
            return Err(format!("unknown type `{kind}`: expected Read or Write"));
        };
        if !self.this_device(disk)? {
            return Ok(None);
        }
        let epoch = *self.epoch.get_or_insert(ticks);
        let at = ticks.saturating_sub(epoch).saturating_mul(100);
        Ok(Some(Raw { at, action: TraceAction::Access(direction), offset, bytes }))
    }

    fn mqsim(&mut self, text: &str) -> Result<Option<Raw>, String> {
        let mut words = text.split_whitespace();
        let mut word = |what: &str| words.next().ok_or(format!("{what} is missing"));
        let nanos = parse(word("the arrival time")?, "the arrival time in nanoseconds")?;
        let device = word("the device")?;
        let sector = parse(word("the sector")?, "the first sector")?;
        let sectors = parse(word("the size")?, "the size in sectors")?;
        let direction = match word("the type")? {
            "0" => Direction::Write,
            "1" => Direction::Read,
            other => {
                return Err(format!("unknown type `{other}`: expected 0 (write) or 1 (read)"));
            }
        };
        if let Some(extra) = words.next() {
            return Err(format!("`{extra}` after the type"));
        }
        if !self.this_device(device)? {
            return Ok(None);
        }
        let bytes = |n: u64| n.checked_mul(512).ok_or("a sector number over 2^55");
        let epoch = *self.epoch.get_or_insert(nanos);
        Ok(Some(Raw {
            at: nanos.saturating_sub(epoch),
            action: TraceAction::Access(direction),
            offset: bytes(sector)?,
            bytes: bytes(sectors)?,
        }))
    }

    /// Whether the access is to the device that `trace_device` asks for.
    fn this_device(&mut self, number: &str) -> Result<bool, String> {
        match self.replay.device {
            Some(wanted) => {
                let this = parse(number, "the device number")? == u64::from(wanted);
                self.fit.left_out += u64::from(!this);
                Ok(this)
            }
            None => self.same_device(
                number,
                "device",
                "`trace_device=N` picks one, `replay_redirect=1` sends all to this device",
            ),
        }
    }

    /// Traces of several devices are never mixed silently.
    fn same_device(&mut self, name: &str, kind: &str, remedy: &str) -> Result<bool, String> {
        match &self.only {
            Some(only) if only == name || self.replay.redirect => Ok(true),
            Some(only) => Err(format!("a second {kind}, `{name}` after `{only}`; {remedy}")),
            None => {
                self.only = Some(name.to_owned());
                Ok(true)
            }
        }
    }

    /// In sectors of the device, and in its time.
    fn fitted(&mut self, raw: &Raw) -> Result<TraceOp, TraceError> {
        let scaled = (raw.at as f64 * (100.0 / self.replay.time_scale)) as u64;
        self.last = self.last.max(Nanos(scaled));
        let op = TraceOp { at: self.last, action: raw.action, lba: 0, sectors: 0 };
        if raw.action == TraceAction::Flush {
            return Ok(op);
        }
        let bad =
            |what: String| TraceError::Line { path: self.path.clone(), line: self.line, what };
        let past_end = || TraceError::PastEnd {
            path: self.path.clone(),
            line: self.line,
            offset: raw.offset,
            bytes: raw.bytes,
            device_bytes: self.sectors.saturating_mul(self.sector_bytes),
        };
        if raw.bytes == 0 {
            return Err(bad("an access of 0 bytes".to_owned()));
        }
        let end = raw.offset.checked_add(raw.bytes).ok_or_else(past_end)?;
        let (mut lba, end_lba) = (raw.offset / self.sector_bytes, end.div_ceil(self.sector_bytes));
        let sectors = u32::try_from(end_lba - lba)
            .map_err(|_| bad(format!("an access of {} bytes is too long", raw.bytes)))?;
        let sector = self.sector_bytes;
        if !raw.offset.is_multiple_of(sector) || !end.is_multiple_of(sector) {
            self.fit.widened += 1;
        }
        if end_lba > self.sectors {
            if !self.replay.wrap || u64::from(sectors) > self.sectors {
                return Err(past_end());
            }
            self.fit.wrapped += 1;
            lba = (lba % self.sectors).min(self.sectors - u64::from(sectors));
        }
        Ok(TraceOp { lba, sectors, ..op })
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
fn guess(first: &str) -> Option<(TraceFormat, u8)> {
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
