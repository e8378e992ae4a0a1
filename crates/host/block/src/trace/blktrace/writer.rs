//! [`BlktraceWriter`]: writes events of the block layer to one file per core.
//!
//! Guarantees: in each file times never decrease, and sequence numbers are consecutive from 1. All
//! processes are named before the first event. A call with an event that cannot be written returns
//! an error and writes nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use nvme::{Status, StatusType};
use time::Nanos;

use super::traced_device::UNIT_BYTES;
use super::{BlktraceRecord, Category, DeviceNumber, RecordBody, TracedDevice};
use crate::Submitter;
use crate::trace::{Action, TraceEvent};

/// The reason why a trace cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// blkparse would not find files whose names begin with the device's name.
    #[error(
        "`{name}` cannot be a device's name in a trace: it is empty, or has `/` or `.blktrace.`"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The device number exceeds the width of its fields.
    #[error("device number {}:{} has more than 12 or 20 bits", number.major, number.minor)]
    Number {
        /// The number.
        number: DeviceNumber,
    },
    /// The sector size is not a multiple of the format's.
    #[error("sectors of {sector_bytes} bytes: a trace needs a multiple of {UNIT_BYTES}")]
    SectorBytes {
        /// Sector size in bytes.
        sector_bytes: u32,
    },
    /// A submitter has two processes.
    #[error("submitter {} has two processes", submitter.0)]
    TwoProcesses {
        /// The submitter.
        submitter: Submitter,
    },
    /// The process name does not fit.
    #[error("`{comm}` cannot be a process's name in a trace: at most 15 bytes, none of them 0")]
    Comm {
        /// The name.
        comm: String,
    },
    /// The number of writers differs from the number of cores.
    #[error("{writers} writers for {cores} cores")]
    Writers {
        /// Number of writers.
        writers: usize,
        /// Number of cores.
        cores: u16,
    },
    /// blkparse would take a file of another trace as part of this one.
    #[error("{} belongs to another trace with the same name and more cores: remove it", path.display())]
    Stale {
        /// Path of the file.
        path: PathBuf,
    },
    /// The core does not exist.
    #[error("events of core {core}, but there are {cores} cores")]
    UnknownCore {
        /// The core.
        core: u16,
        /// Number of cores.
        cores: u16,
    },
    /// An event belongs to another core than the call.
    #[error("an event of core {found} among those of core {core}")]
    OtherCore {
        /// The core of the call.
        core: u16,
        /// The core of the event.
        found: u16,
    },
    /// The submitter has no process.
    #[error("submitter {} has no process", submitter.0)]
    UnknownSubmitter {
        /// The submitter.
        submitter: Submitter,
    },
    /// An event is earlier than one already in the file.
    #[error("an event of core {core} at {} ns, after one at {} ns was written", at.0, last.0)]
    Backwards {
        /// The core.
        core: u16,
        /// Time of the event.
        at: Nanos,
        /// Time of the last event in the file.
        last: Nanos,
    },
    /// A file cannot be written. It may end inside a record.
    #[error("cannot write the trace of core {core}")]
    Io {
        /// The core.
        core: u16,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Counts of a finished trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterSummary {
    /// Number of events.
    pub events: u64,
    /// Number of events whose position or length exceeds the format (64 bits of 512-byte sectors,
    /// 32 bits of bytes) and was clamped.
    pub clamped: u64,
}

/// Writes `NAME.blktrace.0`, `NAME.blktrace.1`, …
///
/// Times in the files are later than those of the events by [`origin`](BlktraceWriter::origin).
/// Records that name processes precede the first event, and blkparse takes time 0 as "not known
/// yet".
#[derive(Debug)]
pub struct BlktraceWriter<W: Write> {
    cores: Vec<CoreFile<W>>,
    device: DeviceNumber,
    /// Sectors of the format per sector of the device.
    units: u32,
    /// Process numbers by submitter.
    pids: Vec<Option<u32>>,
    origin: Nanos,
    summary: WriterSummary,
    /// Scratch buffers: encoded records, and events to be sorted.
    buffer: Vec<u8>,
    sorted: Vec<TraceEvent>,
}

#[derive(Debug)]
struct CoreFile<W> {
    out: W,
    sequence: u32,
    last: Nanos,
}

impl BlktraceWriter<BufWriter<File>> {
    /// Creates or truncates the files in `dir`.
    ///
    /// # Errors
    /// [`WriteError`]: a description that the format cannot hold, files of an earlier trace with
    /// more cores, or an I/O error.
    pub fn create(dir: &Path, traced: &TracedDevice) -> Result<Self, WriteError> {
        traced.check()?;
        let path = |core: u32| dir.join(format!("{}.blktrace.{core}", traced.name));
        let stale = path(traced.cores.into());
        if stale.exists() {
            return Err(WriteError::Stale { path: stale });
        }
        let mut writers = Vec::new();
        for core in 0..traced.cores {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).open(path(core.into()));
            writers.push(BufWriter::new(file.map_err(|source| WriteError::Io { core, source })?));
        }
        BlktraceWriter::new(writers, traced)
    }
}

impl<W: Write> BlktraceWriter<W> {
    /// Creates a writer to `writers`, one per core.
    ///
    /// # Errors
    /// As [`create`](BlktraceWriter::create).
    pub fn new(writers: Vec<W>, traced: &TracedDevice) -> Result<BlktraceWriter<W>, WriteError> {
        let pids = traced.check()?;
        if writers.len() != usize::from(traced.cores) {
            return Err(WriteError::Writers { writers: writers.len(), cores: traced.cores });
        }
        let core = |out| CoreFile { out, sequence: 0, last: Nanos::ZERO };
        let mut writer = BlktraceWriter {
            cores: writers.into_iter().map(core).collect(),
            device: traced.number,
            units: traced.sector_bytes / UNIT_BYTES,
            pids,
            origin: Nanos(traced.processes.len() as u64 + 2),
            summary: WriterSummary::default(),
            buffer: Vec::new(),
            sorted: Vec::new(),
        };
        writer.write_preamble(traced)?;
        Ok(writer)
    }

    /// Returns the offset of times in the files.
    pub fn origin(&self) -> Nanos {
        self.origin
    }

    /// Writes events of one core, from one or several [`Tracer`](crate::trace::Tracer)s. Sorts them
    /// by time first, if necessary.
    ///
    /// # Errors
    /// [`WriteError`]: events of another core or of a submitter without a process, events earlier
    /// than those of an earlier call, or an I/O error.
    pub fn write(&mut self, core: u16, events: &[TraceEvent]) -> Result<(), WriteError> {
        let cores = self.cores.len() as u16;
        let Some(file) = self.cores.get(usize::from(core)) else {
            return Err(WriteError::UnknownCore { core, cores });
        };
        let mut sorted = std::mem::take(&mut self.sorted);
        sorted.clear();
        sorted.extend_from_slice(events);
        sorted.sort_by_key(|e| e.at);
        self.buffer.clear();
        let (mut written, mut sequence, last) = (self.summary, file.sequence, file.last);
        for event in &sorted {
            if event.core != core {
                return Err(WriteError::OtherCore { core, found: event.core });
            }
            if event.at < last {
                return Err(WriteError::Backwards { core, at: event.at, last });
            }
            sequence = sequence.wrapping_add(1);
            let mut record = self.record(event, sequence)?;
            written.events += 1;
            written.clamped += u64::from(self.set_extent(event, &mut record));
            record.encode(&mut self.buffer);
        }
        let file = &mut self.cores[usize::from(core)];
        file.out.write_all(&self.buffer).map_err(|source| WriteError::Io { core, source })?;
        file.sequence = sequence;
        file.last = sorted.last().map_or(last, |e| e.at);
        self.summary = written;
        self.sorted = sorted;
        Ok(())
    }

    /// Writes buffered data and returns the counts.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn finish(mut self) -> Result<WriterSummary, WriteError> {
        for (core, file) in self.cores.iter_mut().enumerate() {
            file.out.flush().map_err(|source| WriteError::Io { core: core as u16, source })?;
        }
        Ok(self.summary)
    }

    /// Writes the records before the first event, all into the file of the first core, which
    /// blkparse reads first.
    fn write_preamble(&mut self, traced: &TracedDevice) -> Result<(), WriteError> {
        let Some(file) = self.cores.first_mut() else { return Ok(()) };
        let (seconds, nanos) = traced.started;
        let timestamp = (0, RecordBody::Timestamp { seconds, nanos });
        let named = traced.processes.iter().map(|p| (p.pid, RecordBody::Process(p.comm.clone())));
        for (pid, what) in std::iter::once(timestamp).chain(named) {
            file.sequence += 1;
            let record = BlktraceRecord {
                sequence: file.sequence,
                time: Nanos(file.sequence.into()),
                sector: 0,
                bytes: 0,
                body: what,
                categories: Category::NOTIFY,
                pid,
                device: self.device,
                cpu: 0,
                error: 0,
                cgroup: None,
            };
            record.encode(&mut self.buffer);
        }
        file.out.write_all(&self.buffer).map_err(|source| WriteError::Io { core: 0, source })
    }

    /// Returns the record of an event, without its position.
    fn record(&self, event: &TraceEvent, sequence: u32) -> Result<BlktraceRecord, WriteError> {
        let submitter = event.submitter;
        let pid = self.pids.get(usize::from(submitter.0)).copied().flatten();
        let what = match event.action {
            Action::Queued => RecordBody::Queued,
            Action::GotRequest => RecordBody::GotRequest,
            Action::Sleep => RecordBody::Sleep,
            Action::Plug => RecordBody::Plug,
            Action::Unplug => RecordBody::Unplug { requests: event.sectors.into(), timer: false },
            Action::BackMerge => RecordBody::BackMerge,
            Action::FrontMerge => RecordBody::FrontMerge,
            Action::Split => RecordBody::Split { rest: 0 },
            Action::Inserted => RecordBody::Inserted,
            Action::Issued => RecordBody::Issued,
            Action::Requeued => RecordBody::Requeued,
            Action::Completed => RecordBody::Completed,
        };
        Ok(BlktraceRecord {
            sequence,
            time: event.at + self.origin,
            sector: 0,
            bytes: 0,
            body: what,
            categories: Category::from_event(event.action, event.op, event.fua),
            pid: pid.ok_or(WriteError::UnknownSubmitter { submitter })?,
            device: self.device,
            cpu: event.core.into(),
            error: if event.action == Action::Completed { linux_errno(event.status) } else { 0 },
            cgroup: None,
        })
    }

    /// Sets the position and length in `record`; returns `true` if they were clamped. Plugging has
    /// no position, and a pass-through command has no length.
    fn set_extent(&self, event: &TraceEvent, record: &mut BlktraceRecord) -> bool {
        if matches!(event.action, Action::Plug | Action::Unplug) {
            return false;
        }
        let unit = |lba: u64| lba.checked_mul(self.units.into());
        let sector = unit(event.lba);
        record.sector = sector.unwrap_or(u64::MAX);
        if record.categories.contains(Category::PC) {
            return sector.is_none();
        }
        let sector_bytes = u64::from(self.units) * u64::from(UNIT_BYTES);
        let bytes = u64::from(event.sectors) * sector_bytes;
        // Clamp to whole sectors, so that programs that count them get no partial sector.
        let largest = u64::from(u32::MAX) / sector_bytes * sector_bytes;
        record.bytes = bytes.min(largest) as u32;
        let end = unit(event.lba.saturating_add(event.sectors.into()));
        if let RecordBody::Split { rest } = &mut record.body {
            *rest = end.unwrap_or(u64::MAX);
        }
        end.is_none() || bytes > largest
    }
}

/// Returns the error number that Linux's NVMe driver and block layer derive from a status,
/// negative, in two's complement; 0 for success.
fn linux_errno(status: Status) -> u16 {
    const EIO: i16 = 5;
    const ENOSPC: i16 = 28;
    const ENODATA: i16 = 61;
    const EOPNOTSUPP: i16 = 95;
    const EREMOTEIO: i16 = 121;
    let unsupported = [Status::INVALID_OPCODE, Status::INVALID_FIELD, Status::INVALID_NAMESPACE];
    let refused = [Status::LBA_OUT_OF_RANGE, Status::NOT_READY];
    let errno = if status.is_success() {
        0
    } else if unsupported.iter().any(|s| status.is(*s)) || status.is(Status::CONFLICTING_ATTRIBUTES)
    {
        EOPNOTSUPP
    } else if refused.iter().any(|s| status.is(*s)) {
        EREMOTEIO
    } else if status.is(Status::CAPACITY_EXCEEDED) {
        ENOSPC
    } else if status.kind() == StatusType::Media {
        ENODATA
    } else {
        EIO
    };
    (-errno) as u16
}
