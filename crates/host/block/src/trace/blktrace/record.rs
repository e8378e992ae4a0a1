//! [`BlktraceRecord`]: one record of a blktrace file.
//!
//! The layout is that of `struct blk_io_trace`, `enum blktrace_act` and `enum blktrace_notify` in
//! `linux/blktrace_api.h`.
//!
//! Invariant: decoding an encoded record returns an equal record.

use time::Nanos;

use super::Category;
use crate::Op;

/// Length of a record before its payload, in bytes.
pub const RECORD_BYTES: usize = 48;

/// The magic number: the upper 24 bits of a record's first word.
pub const MAGIC: u32 = 0x6561_7400;

/// The version: the lower 8 bits of a record's first word.
pub const VERSION: u8 = 7;

/// Width of the minor number in a device number, in bits.
const MINOR_BITS: u32 = 20;

/// Bit of the action code: a 64-bit control group identifier precedes the payload.
const CGROUP: u16 = 1 << 8;

/// The number of a block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// Major number, 12 bits.
    pub major: u16,
    /// Minor number, 20 bits.
    pub minor: u32,
}

impl DeviceNumber {
    pub(super) const fn is_valid(self) -> bool {
        self.major < 1 << (32 - MINOR_BITS) && self.minor < 1 << MINOR_BITS
    }

    const fn encode(self) -> u32 {
        (self.major as u32) << MINOR_BITS | self.minor
    }

    const fn decode(bits: u32) -> DeviceNumber {
        DeviceNumber { major: (bits >> MINOR_BITS) as u16, minor: bits & ((1 << MINOR_BITS) - 1) }
    }
}

/// The action of a record, with its payload. Letters are those of [`Action`](crate::trace::Action).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordBody {
    /// Q: `Queued`.
    Queued,
    /// M: `BackMerge`.
    BackMerge,
    /// F: `FrontMerge`.
    FrontMerge,
    /// G: `GotRequest`.
    GotRequest,
    /// S: `Sleep`.
    Sleep,
    /// R: `Requeued`.
    Requeued,
    /// D: `Issued`.
    Issued,
    /// C: `Completed`.
    Completed,
    /// P: `Plug`.
    Plug,
    /// U: `Unplug`.
    Unplug {
        /// Number of requests in the batch.
        requests: u64,
        /// Whether a timer unplugged the batch (blkparse's UT). Only a kernel sets this.
        timer: bool,
    },
    /// I: `Inserted`.
    Inserted,
    /// X: `Split`; the record's sectors are those of the fragment.
    Split {
        /// First sector after the fragment, in units of 512 bytes.
        rest: u64,
    },
    /// A: remapped from another device. Only in traces of a kernel.
    Remapped {
        /// Source device.
        from: DeviceNumber,
        /// Destination device.
        to: DeviceNumber,
        /// Sector on the source device, in units of 512 bytes.
        sector: u64,
    },
    /// The name of the record's process.
    Process(String),
    /// Wall clock time at the record's time.
    Timestamp {
        /// Seconds since 1970.
        seconds: u32,
        /// Nanoseconds within the second.
        nanos: u32,
    },
    /// Text for the reader of the trace.
    Message(String),
    /// Any other action.
    Other {
        /// Action code.
        code: u16,
        /// Payload.
        payload: Vec<u8>,
    },
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlktraceRecord {
    /// Sequence number among the records of its core.
    pub sequence: u32,
    /// Time of the event.
    pub time: Nanos,
    /// First sector, in units of 512 bytes.
    pub sector: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// Action and payload.
    pub body: RecordBody,
    /// Categories.
    pub categories: Category,
    /// Process that submitted the request.
    pub pid: u32,
    /// The device.
    pub device: DeviceNumber,
    /// The core.
    pub cpu: u32,
    /// Error number: 0, or an error number of Linux, negative in two's complement.
    pub error: u16,
    /// Control group of the request, if the kernel recorded it.
    pub cgroup: Option<u64>,
}

/// The fixed part of a record, decoded: it determines how the payload is read.
pub(super) struct BlktraceHeader {
    record: BlktraceRecord,
    code: u16,
    pub(super) payload_bytes: usize,
}

/// Action codes (`__BLK_TA_*`).
const QUEUE: u16 = 1;
const BACK_MERGE: u16 = 2;
const FRONT_MERGE: u16 = 3;
const GET_REQUEST: u16 = 4;
const SLEEP: u16 = 5;
const REQUEUE: u16 = 6;
const ISSUE: u16 = 7;
const COMPLETE: u16 = 8;
const PLUG: u16 = 9;
const UNPLUG: u16 = 10;
const UNPLUG_TIMER: u16 = 11;
const INSERT: u16 = 12;
const SPLIT: u16 = 13;
const REMAP: u16 = 15;

/// Codes of notify records (`__BLK_TN_*`).
const PROCESS: u16 = 0;
const TIMESTAMP: u16 = 1;
const MESSAGE: u16 = 2;

/// Length of a process name with its NUL, in bytes.
pub(super) const COMM_BYTES: usize = 16;

impl BlktraceRecord {
    /// Returns the operation; `None` for plugging, notify records and pass-through commands. Write
    /// Zeroes is returned as [`Op::Write`].
    pub fn op(&self) -> Option<Op> {
        let c = self.categories;
        let plug = matches!(self.body, RecordBody::Plug | RecordBody::Unplug { .. });
        if plug || c.contains(Category::NOTIFY) || c.contains(Category::PC) {
            None
        } else if c.contains(Category::DISCARD) {
            Some(Op::Discard)
        } else if c.contains(Category::FLUSH) && self.bytes == 0 {
            Some(Op::Flush)
        } else if c.contains(Category::WRITE) {
            Some(Op::Write)
        } else {
            Some(Op::Read)
        }
    }

    /// Appends the record to `out`, little endian. Truncates a payload that exceeds the 16-bit
    /// length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&(MAGIC | u32::from(VERSION)).to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.time.0.to_le_bytes());
        out.extend_from_slice(&self.sector.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        let code = self.body.code() | if self.cgroup.is_some() { CGROUP } else { 0 };
        let action = u32::from(self.categories.0) << 16 | u32::from(code);
        out.extend_from_slice(&action.to_le_bytes());
        out.extend_from_slice(&self.pid.to_le_bytes());
        out.extend_from_slice(&self.device.encode().to_le_bytes());
        out.extend_from_slice(&self.cpu.to_le_bytes());
        out.extend_from_slice(&self.error.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        if let Some(cgroup) = self.cgroup {
            out.extend_from_slice(&cgroup.to_le_bytes());
        }
        self.body.encode(out);
        out.truncate(start + RECORD_BYTES + usize::from(u16::MAX));
        let payload = (out.len() - start - RECORD_BYTES) as u16;
        out[start + 46..start + 48].copy_from_slice(&payload.to_le_bytes());
    }
}

impl RecordBody {
    fn code(&self) -> u16 {
        match self {
            RecordBody::Queued => QUEUE,
            RecordBody::BackMerge => BACK_MERGE,
            RecordBody::FrontMerge => FRONT_MERGE,
            RecordBody::GotRequest => GET_REQUEST,
            RecordBody::Sleep => SLEEP,
            RecordBody::Requeued => REQUEUE,
            RecordBody::Issued => ISSUE,
            RecordBody::Completed => COMPLETE,
            RecordBody::Plug => PLUG,
            RecordBody::Unplug { timer: false, .. } => UNPLUG,
            RecordBody::Unplug { timer: true, .. } => UNPLUG_TIMER,
            RecordBody::Inserted => INSERT,
            RecordBody::Split { .. } => SPLIT,
            RecordBody::Remapped { .. } => REMAP,
            RecordBody::Process(_) => PROCESS,
            RecordBody::Timestamp { .. } => TIMESTAMP,
            RecordBody::Message(_) => MESSAGE,
            RecordBody::Other { code, .. } => *code,
        }
    }

    /// Appends the payload. Payloads of actions are big endian; those of notify records have the
    /// byte order of the record.
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            RecordBody::Queued
            | RecordBody::BackMerge
            | RecordBody::FrontMerge
            | RecordBody::GotRequest
            | RecordBody::Sleep
            | RecordBody::Requeued
            | RecordBody::Issued
            | RecordBody::Completed
            | RecordBody::Plug
            | RecordBody::Inserted => {}
            RecordBody::Unplug { requests, .. } => out.extend_from_slice(&requests.to_be_bytes()),
            RecordBody::Split { rest } => out.extend_from_slice(&rest.to_be_bytes()),
            RecordBody::Remapped { from, to, sector } => {
                out.extend_from_slice(&from.encode().to_be_bytes());
                out.extend_from_slice(&to.encode().to_be_bytes());
                out.extend_from_slice(&sector.to_be_bytes());
            }
            RecordBody::Process(name) => {
                let mut comm = [0; COMM_BYTES];
                let length = name.len().min(COMM_BYTES - 1);
                comm[..length].copy_from_slice(&name.as_bytes()[..length]);
                out.extend_from_slice(&comm);
            }
            RecordBody::Timestamp { seconds, nanos } => {
                out.extend_from_slice(&seconds.to_le_bytes());
                out.extend_from_slice(&nanos.to_le_bytes());
            }
            RecordBody::Message(text) => out.extend_from_slice(text.as_bytes()),
            RecordBody::Other { payload, .. } => out.extend_from_slice(payload),
        }
    }
}

/// The byte order of a file: that of the traced machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    /// Returns the byte order of a file with this first word, if it has the magic number.
    pub(super) fn from_magic(word: [u8; 4]) -> Option<ByteOrder> {
        [ByteOrder::Little, ByteOrder::Big].into_iter().find(|o| o.u32(word) & !0xff == MAGIC)
    }

    pub(super) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            ByteOrder::Little => u32::from_le_bytes(bytes),
            ByteOrder::Big => u32::from_be_bytes(bytes),
        }
    }

    fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            ByteOrder::Little => u16::from_le_bytes(bytes),
            ByteOrder::Big => u16::from_be_bytes(bytes),
        }
    }

    fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            ByteOrder::Little => u64::from_le_bytes(bytes),
            ByteOrder::Big => u64::from_be_bytes(bytes),
        }
    }
}

/// Returns `N` bytes from `at`. The callers' offsets are constants inside their arrays.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

impl BlktraceHeader {
    pub(super) fn decode(bytes: &[u8; RECORD_BYTES], order: ByteOrder) -> BlktraceHeader {
        let action = order.u32(field(bytes, 28));
        let record = BlktraceRecord {
            sequence: order.u32(field(bytes, 4)),
            time: Nanos(order.u64(field(bytes, 8))),
            sector: order.u64(field(bytes, 16)),
            bytes: order.u32(field(bytes, 24)),
            body: RecordBody::Other { code: 0, payload: Vec::new() },
            categories: Category((action >> 16) as u16),
            pid: order.u32(field(bytes, 32)),
            device: DeviceNumber::decode(order.u32(field(bytes, 36))),
            cpu: order.u32(field(bytes, 40)),
            error: order.u16(field(bytes, 44)),
            cgroup: None,
        };
        let payload_bytes = order.u16(field(bytes, 46)).into();
        BlktraceHeader { record, code: action as u16, payload_bytes }
    }

    /// Returns the record with its payload; `None` if the payload does not match the action.
    pub(super) fn with_payload(self, payload: &[u8], order: ByteOrder) -> Option<BlktraceRecord> {
        let BlktraceHeader { mut record, code, .. } = self;
        let mut payload = payload;
        if code & CGROUP != 0 {
            let (cgroup, rest) = payload.split_first_chunk()?;
            record.cgroup = Some(order.u64(*cgroup));
            payload = rest;
        }
        let code = code & !CGROUP;
        record.body = if record.categories.contains(Category::NOTIFY) {
            RecordBody::from_notify(code, payload, order)?
        } else {
            RecordBody::from_action(code, payload)?
        };
        Some(record)
    }
}

impl RecordBody {
    fn from_notify(code: u16, payload: &[u8], order: ByteOrder) -> Option<RecordBody> {
        Some(match code {
            PROCESS => {
                let name = payload.split(|b| *b == 0).next().unwrap_or_default();
                RecordBody::Process(String::from_utf8_lossy(name).into_owned())
            }
            TIMESTAMP => {
                let bytes: [u8; 8] = payload.try_into().ok()?;
                let (seconds, nanos) = (order.u32(field(&bytes, 0)), order.u32(field(&bytes, 4)));
                RecordBody::Timestamp { seconds, nanos }
            }
            MESSAGE => RecordBody::Message(String::from_utf8_lossy(payload).into_owned()),
            _ => RecordBody::Other { code, payload: payload.to_vec() },
        })
    }

    /// Decodes an action. Drops the payload of an action that has none by definition (such as the
    /// bytes of a pass-through command).
    fn from_action(code: u16, payload: &[u8]) -> Option<RecordBody> {
        let number = || Some(u64::from_be_bytes(payload.try_into().ok()?));
        Some(match code {
            QUEUE => RecordBody::Queued,
            BACK_MERGE => RecordBody::BackMerge,
            FRONT_MERGE => RecordBody::FrontMerge,
            GET_REQUEST => RecordBody::GotRequest,
            SLEEP => RecordBody::Sleep,
            REQUEUE => RecordBody::Requeued,
            ISSUE => RecordBody::Issued,
            COMPLETE => RecordBody::Completed,
            PLUG => RecordBody::Plug,
            INSERT => RecordBody::Inserted,
            UNPLUG | UNPLUG_TIMER => {
                RecordBody::Unplug { requests: number()?, timer: code == UNPLUG_TIMER }
            }
            SPLIT => RecordBody::Split { rest: number()? },
            REMAP => {
                let bytes: [u8; 16] = payload.try_into().ok()?;
                RecordBody::Remapped {
                    from: DeviceNumber::decode(u32::from_be_bytes(field(&bytes, 0))),
                    to: DeviceNumber::decode(u32::from_be_bytes(field(&bytes, 4))),
                    sector: u64::from_be_bytes(field(&bytes, 8)),
                }
            }
            _ => RecordBody::Other { code, payload: payload.to_vec() },
        })
    }
}
