//! [`Event`]: one step of a request, a command or a flash operation.
//!
//! Identifiers are those that each layer uses: tags of jobs, table entries, command identifiers. An
//! event that introduces an identifier also names the one of the layer above, so that a reader can
//! follow a request down to the flash and back.

use serde::{Deserialize, Serialize};
use time::Nanos;

/// An event with its time, drive, path and target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Time of the event, virtual or real.
    pub at: Nanos,
    /// The drive whose host side or controller emitted it, as set with
    /// [`set_drive`](crate::set_drive).
    pub drive: u16,
    /// The path whose host side emitted it, as set with [`set_path`](crate::set_path); 0 for the
    /// controller. Tags and table entries of the host are unique on their path only.
    pub path: u16,
    /// The host-side target that emitted it, as set with [`set_target`](crate::set_target); 0 for
    /// the drive.
    pub target: u16,
    /// The event.
    pub event: Event,
}

/// The operation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestOp {
    /// Data to the host.
    Read,
    /// Data to the drive.
    Write,
    /// Deallocation.
    Trim,
    /// Flush of the volatile write cache.
    Flush,
}

/// The array operation of a parallel unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ArrayOp {
    /// Array read of a page.
    Read,
    /// Program of a write unit.
    Program,
    /// Erase of a chunk.
    Erase,
}

/// The purpose of a flash operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Data of the host.
    Host,
    /// Garbage collection: relocation of valid sectors, erase of victims.
    Gc,
    /// Pages of the L2P map.
    Map,
    /// Metadata of lines.
    Metadata,
    /// The journal of the FTL.
    Journal,
    /// Reads that check whether data is still readable.
    Scrub,
    /// Erases and programs of Sanitize.
    Sanitize,
}

/// A stage of the controller that commands pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StageKind {
    /// Fetch and decode of the submission entry.
    Fetch,
    /// Data transfer between host and controller.
    Dma,
    /// Posting of the completion entry.
    Completion,
    /// The engines of a drive's rules.
    Rules,
    /// The latency and bandwidth of the null personality.
    Null,
    /// The cells of phase-change memory.
    PcmArray,
    /// The channel of phase-change memory.
    PcmChannel,
}

/// The reason for which an FTL does not admit the write at the head of its queue, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Admission {
    /// Writes are admitted immediately.
    Open,
    /// Every slot of the write buffer is in use.
    BufferFull,
    /// The rate limiter holds host writes back until GC has freed space.
    GcLimiter,
    /// A translation page is not in memory.
    MapPage,
}

/// A step of a flash operation on its parallel unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PuOpStep {
    /// The transfer of a program's data to the cache register starts.
    Staging,
    /// All of the program's data is in the cache register.
    Staged,
    /// The array starts, or resumes after a suspension.
    ArrayBegins,
    /// The array has finished, and the operation does not need it again.
    ArrayEnds,
    /// The operation on this parallel unit is complete.
    Done,
}

/// An event. Fields named `tag` are tags of a job (`job << 32 | slot`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are numbers of the layer that the event names")]
pub enum Event {
    /// A job submitted the last fragment of a request to its device. The request was planned for
    /// `wanted`, and could be submitted from `ready`.
    RequestIssued {
        tag: u64,
        op: RequestOp,
        lba: u64,
        sectors: u32,
        intended_at: Nanos,
        ready: Nanos,
    },
    /// The device completed all fragments of a request.
    RequestCompleted { tag: u64 },
    /// The job processed the completion; `at` may be later than the time of the event. Results
    /// count the request if `measured`: it succeeded, and was not planned in the ramp time.
    RequestReaped { tag: u64, at: Nanos, measured: bool },

    /// The block layer accepted a request: entry `id` of `submitter`'s table.
    LayerQueued { submitter: u16, id: u32, tag: u64 },
    /// Entry `id` was merged into entry `head`.
    LayerMerged { submitter: u16, head: u32, id: u32 },
    /// Entry `id` is a fragment of entry `parent`.
    LayerSplit { submitter: u16, parent: u32, id: u32 },
    /// The next [`CommandSubmitted`](Event::CommandSubmitted) carries entry `id`.
    LayerIssued { submitter: u16, id: u32 },

    /// A host-side target names a request, or each fragment of it, `alias` from here on.
    TargetAlias { alias: u64, tag: u64 },

    /// A host-managed FTL accepted a request: entry `index` of its table. `tag` is that of the job,
    /// or the name that [`TargetAlias`](Event::TargetAlias) assigned.
    TargetRequest { index: u64, tag: u64 },
    /// A host-managed FTL requested a flash operation, which the command with `user` carries.
    /// `request` is the entry that caused it, and `lba` the first sector written, if any.
    TargetOp { user: u64, cause: Cause, request: Option<u64>, lba: Option<u64> },
    /// The next [`CommandSubmitted`](Event::CommandSubmitted) carries the operation with `user`.
    TargetIssued { user: u64 },
    /// The host-managed FTL processed the completion of the command with `user`.
    TargetOpCompleted { user: u64 },

    /// The driver wrote a command to a submission queue of `port`. Each port of a drive has its own
    /// queue identifiers.
    CommandSubmitted { port: u64, qid: u16, cid: u16, user: u64 },
    /// The controller fetched a command from a submission queue of `port`; `id` is its entry in the
    /// drive's table.
    CommandFetched { id: u32, port: u64, qid: u16, cid: u16 },
    /// A command passes a stage, which serves it from `start` to `end`.
    CommandStage { id: u32, stage: StageKind, start: Nanos, end: Nanos },
    /// The personality started the command.
    CommandStarted { id: u32 },
    /// The personality completed the command.
    CommandCompleted { id: u32 },
    /// The completion queue entry was posted.
    CommandPosted { id: u32 },

    /// An FTL queued a write or trim. The lower 32 bits of a tag of a drive's own FTL are the entry of
    /// the drive's command table, the upper ones a part of the command; tags of a host-managed FTL are
    /// entries of the target's.
    FtlQueued { tag: u64 },
    /// All sectors of the request are in the write buffer; if `durable`, its completion waits for
    /// the flash.
    FtlAdmitted { tag: u64, durable: bool },
    /// A flush waits for all earlier requests.
    FtlFlush { tag: u64 },
    /// A read waits for a translation page.
    FtlMapWait { tag: u64 },
    /// An FTL completed a request.
    FtlCompleted { tag: u64 },
    /// The state of admission, emitted whenever an FTL has checked its queue.
    FtlAdmission { state: Admission },
    /// A drive's FTL programs a write unit of `chunk`; its first data sector is `lba`.
    FtlProgram { chunk: u32, lba: Option<u64> },
    /// GC selected a victim with `valid` valid sectors.
    GcBegins { line: u32, valid: u32 },
    /// The valid sectors of the line are durable elsewhere; its chunks are erased next.
    GcEnds { line: u32 },
    /// The FTL started a checkpoint.
    CheckpointBegins,
    /// The checkpoint is durable.
    CheckpointEnds,

    /// A flash operation was queued on a parallel unit, for the command `command`, or for `cause`
    /// of the drive's FTL.
    PuOpQueued { pu_op: u32, pu: u32, chunk: u32, op: ArrayOp, cause: Cause, command: Option<u32> },
    /// A flash operation reached a step on its parallel unit.
    PuOpProgress { pu_op: u32, step: PuOpStep },
    /// The array was busy with an operation from `start` to `end`.
    ArrayBusy { pu_op: u32, pu: u32, op: ArrayOp, start: Nanos, end: Nanos },
    /// A channel transfers data of an operation from `start` to `end`.
    ChannelBusy { pu_op: u32, channel: u32, start: Nanos, end: Nanos },
}
