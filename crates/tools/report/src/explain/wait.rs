//! [`Wait`]: a part of a request's latency, with its reason.

use std::fmt;

use time::Nanos;
use tracepoint::{ArrayOp, Cause, StageKind};

/// The user of a resource while a request waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceUser {
    /// Purpose of the operation.
    pub cause: Cause,
    /// Job whose request it served; `None` for background work, and for buffered writes, which mix
    /// the data of jobs.
    pub job: Option<u32>,
}

/// Reason of a wait. [`WaitKind::code`] is its name in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitKind {
    /// The job's CPU: earlier completions and submissions, and the cost of this submission.
    HostSubmit,
    /// The device accepted no further request, or a write to the same sectors was in flight.
    DeviceFull,
    /// The block layer: plug, scheduler, or no free tag.
    BlockLayer,
    /// The target on the host, before its FTL: an overlapping request, or another core.
    Target,
    /// From the doorbell to the fetch of the command.
    SubmissionQueue,
    /// A station of the controller was busy with other commands.
    StationBusy(StageKind),
    /// A station of the controller served the command.
    Station(StageKind),
    /// A page of the L2P map was read from the flash, or no frame was free.
    MapPage,
    /// An earlier change of a unit that the command changes in part, or reads of other units of the
    /// command.
    UnitChange,
    /// All slots of the write buffer were in use.
    WriteBufferFull,
    /// The rate limiter delayed the write until GC had freed space.
    GcLimiter,
    /// Buffered data waited until its write unit was complete and had a location on the flash.
    Placement,
    /// The array of the parallel unit was busy.
    PuBusy(ArrayOp, ResourceUser),
    /// The page register of the parallel unit was busy: data of an earlier read waited for the
    /// channel or was being transferred.
    RegisterBusy(ResourceUser),
    /// The parallel unit was reserved for a program whose data was being transferred over the
    /// channel.
    ProgramDataInTransfer,
    /// The array executed the request's own operation.
    Array(ArrayOp),
    /// The request's own program or erase was suspended for reads.
    Suspended,
    /// The channel transferred other data.
    ChannelBusy(ResourceUser),
    /// The channel transferred the request's own data.
    Transfer,
    /// Flushed data was on the flash, but the FTL waited for other work: earlier flushes, map
    /// pages, the journal.
    Durability,
    /// From the completion of the command until the job reaped it.
    CompletionQueue,
    /// The job's CPU: earlier work, and the cost of this completion.
    HostComplete,
    /// No tracepoint explains the time.
    Unexplained,
}

fn op_name(op: ArrayOp) -> &'static str {
    match op {
        ArrayOp::Read => "read",
        ArrayOp::Program => "program",
        ArrayOp::Erase => "erase",
    }
}

/// Returns the name of a cause in JSON and in traces.
pub fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Host => "host",
        Cause::Gc => "gc",
        Cause::Map => "map",
        Cause::Metadata => "metadata",
        Cause::Journal => "journal",
        Cause::Scrub => "scrub",
        Cause::Sanitize => "sanitize",
    }
}

fn station_name(station: StageKind) -> &'static str {
    match station {
        StageKind::Fetch => "fetch",
        StageKind::Dma => "dma",
        StageKind::Completion => "complete",
        StageKind::Rules => "rules",
        StageKind::Null => "null",
        StageKind::PcmArray => "pcm_array",
        StageKind::PcmChannel => "pcm_channel",
    }
}

impl WaitKind {
    /// Returns the reason without the job, to add up waits of many requests.
    #[must_use]
    pub fn without_job(self) -> WaitKind {
        let anonymous = |user: ResourceUser| ResourceUser { job: None, ..user };
        match self {
            WaitKind::PuBusy(op, user) => WaitKind::PuBusy(op, anonymous(user)),
            WaitKind::RegisterBusy(user) => WaitKind::RegisterBusy(anonymous(user)),
            WaitKind::ChannelBusy(user) => WaitKind::ChannelBusy(anonymous(user)),
            other => other,
        }
    }

    /// Returns the job that used the resource, if known.
    pub fn job(self) -> Option<u32> {
        match self {
            WaitKind::PuBusy(_, user)
            | WaitKind::RegisterBusy(user)
            | WaitKind::ChannelBusy(user) => user.job,
            _ => None,
        }
    }

    /// Returns the name in JSON: lower case, words joined by `_`.
    pub fn code(self) -> String {
        match self {
            WaitKind::HostSubmit => "host_submit".into(),
            WaitKind::DeviceFull => "device_full".into(),
            WaitKind::BlockLayer => "block_layer".into(),
            WaitKind::Target => "target".into(),
            WaitKind::SubmissionQueue => "submission_queue".into(),
            WaitKind::StationBusy(s) => format!("{}_busy", station_name(s)),
            WaitKind::Station(s) => station_name(s).into(),
            WaitKind::MapPage => "map_page".into(),
            WaitKind::UnitChange => "unit_change".into(),
            WaitKind::WriteBufferFull => "write_buffer_full".into(),
            WaitKind::GcLimiter => "gc_limiter".into(),
            WaitKind::Placement => "placement".into(),
            WaitKind::PuBusy(op, u) => format!("pu_{}_{}", op_name(op), cause_name(u.cause)),
            WaitKind::RegisterBusy(u) => format!("pu_register_{}", cause_name(u.cause)),
            WaitKind::ProgramDataInTransfer => "pu_program_data".into(),
            WaitKind::Array(op) => format!("array_{}", op_name(op)),
            WaitKind::Suspended => "suspended".into(),
            WaitKind::ChannelBusy(u) => format!("channel_{}", cause_name(u.cause)),
            WaitKind::Transfer => "transfer".into(),
            WaitKind::Durability => "durability".into(),
            WaitKind::CompletionQueue => "completion_queue".into(),
            WaitKind::HostComplete => "host_complete".into(),
            WaitKind::Unexplained => "unexplained".into(),
        }
    }
}

/// Returns a cause as a prefix of an operation's name.
fn cause_prefix(cause: Cause) -> &'static str {
    match cause {
        Cause::Host => "host",
        Cause::Gc => "GC",
        Cause::Map => "map",
        Cause::Metadata => "metadata",
        Cause::Journal => "journal",
        Cause::Scrub => "scrub",
        Cause::Sanitize => "sanitize",
    }
}

impl fmt::Display for WaitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            WaitKind::HostSubmit => write!(f, "host CPU, submission"),
            WaitKind::DeviceFull => write!(f, "device full"),
            WaitKind::BlockLayer => write!(f, "block layer"),
            WaitKind::Target => write!(f, "target on the host"),
            WaitKind::SubmissionQueue => write!(f, "submission queue"),
            WaitKind::StationBusy(StageKind::Fetch) => write!(f, "controller busy, fetch"),
            WaitKind::StationBusy(StageKind::Dma) => write!(f, "DMA busy"),
            WaitKind::StationBusy(StageKind::Completion) => {
                write!(f, "controller busy, completion")
            }
            WaitKind::StationBusy(StageKind::Rules) => write!(f, "rule engines busy"),
            WaitKind::StationBusy(StageKind::Null) => write!(f, "device busy"),
            WaitKind::StationBusy(StageKind::PcmArray) => write!(f, "PCM cells busy"),
            WaitKind::StationBusy(StageKind::PcmChannel) => write!(f, "channel busy"),
            WaitKind::Station(StageKind::Fetch) => write!(f, "fetch of the command"),
            WaitKind::Station(StageKind::Dma) => write!(f, "DMA"),
            WaitKind::Station(StageKind::Completion) => write!(f, "posting of the completion"),
            WaitKind::Station(StageKind::Rules) => write!(f, "rules of the drive"),
            WaitKind::Station(StageKind::Null) => write!(f, "device"),
            WaitKind::Station(StageKind::PcmArray) => write!(f, "PCM cells"),
            WaitKind::Station(StageKind::PcmChannel) => write!(f, "transfer over the channel"),
            WaitKind::MapPage => write!(f, "page of the L2P map"),
            WaitKind::UnitChange => write!(f, "earlier change of a unit"),
            WaitKind::WriteBufferFull => write!(f, "write buffer full"),
            WaitKind::GcLimiter => write!(f, "held back for GC"),
            WaitKind::Placement => write!(f, "write unit not full, or no place"),
            WaitKind::PuBusy(op, u) => {
                write!(f, "PU busy, {} {}", cause_prefix(u.cause), op_name(op))
            }
            WaitKind::RegisterBusy(u) => {
                write!(f, "PU busy, data of a {} read", cause_prefix(u.cause))
            }
            WaitKind::ProgramDataInTransfer => write!(f, "PU kept for a program's data"),
            WaitKind::Array(op) => write!(f, "array {}", op_name(op)),
            WaitKind::Suspended => write!(f, "suspended for reads"),
            WaitKind::ChannelBusy(u) => write!(f, "channel busy, {} data", cause_prefix(u.cause)),
            WaitKind::Transfer => write!(f, "transfer over the channel"),
            WaitKind::Durability => write!(f, "durability of earlier writes"),
            WaitKind::CompletionQueue => write!(f, "completion queue"),
            WaitKind::HostComplete => write!(f, "host CPU, completion"),
            WaitKind::Unexplained => write!(f, "unexplained"),
        }
    }
}

/// A part of a request's latency with one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The reason.
    pub kind: WaitKind,
    /// The parallel unit, if one is involved.
    pub pu: Option<u32>,
    /// Start of the wait, in time of the run.
    pub start: Nanos,
    /// Length of the wait.
    pub time: Nanos,
}
