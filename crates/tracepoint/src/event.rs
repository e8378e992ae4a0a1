//! [`Event`]: one fact about a request, a command or a flash operation.
//!
//! Numbers are those that each layer uses itself: tags of jobs, entries of tables, command identifiers.
//! An event that introduces a number also says which number of the layer above it belongs to, so that
//! a reader can follow a request down to the flash and back.

use clock::Nanos;

/// An event and where it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Virtual or real time.
    pub at: Nanos,
    /// The drive whose host side or controller reported it, as given to [`enter`](crate::enter).
    pub drive: u16,
    /// The target on the host that reported it, as given to [`set_target`](crate::set_target); 0 for
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

/// The operation of a parallel unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ArrayOp {
    /// Array read of a page.
    Read,
    /// Program of a write unit.
    Program,
    /// Erase of a chunk.
    Erase,
}

/// The part of the FTL, or of the drive, that a flash operation is for.
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
}

/// A station of the controller that commands pass through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StageKind {
    /// Fetch and decode of the submission entry.
    Fetch,
    /// Data transfer between host and controller.
    Dma,
    /// Posting of the completion entry.
    Completion,
    /// The latency and bandwidth of the null personality.
    Null,
    /// The cells of phase-change memory.
    PcmArray,
    /// The channel of phase-change memory.
    PcmChannel,
}

/// The state in which an FTL does not admit the write at the head of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Admission {
    /// Writes are admitted as they come.
    Open,
    /// Every slot of the write buffer is in use.
    BufferFull,
    /// The rate limiter holds host writes back until GC has freed space.
    GcLimiter,
    /// A page of the L2P map is not in memory.
    MapPage,
}

/// Progress of a flash operation's part on its parallel unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PuOpStep {
    /// A program's data starts to move to the cache register.
    Staging,
    /// All of the program's data is in the cache register.
    Staged,
    /// The array starts, or resumes after a suspension.
    ArrayBegins,
    /// The array has finished, and the part needs it no more.
    ArrayEnds,
    /// The part is done.
    Done,
}

/// One fact. Fields named `tag` are those of the job (`job << 32 | slot`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are numbers of the layer that the event names")]
pub enum Event {
    /// A job gave its device the last part of a request, which it had decided on at `wanted` and could
    /// give from `ready` on.
    RequestIssued {
        tag: u64,
        op: RequestOp,
        lba: u64,
        sectors: u32,
        intended_at: Nanos,
        ready: Nanos,
    },
    /// The device has completed all parts of a request.
    RequestCompleted { tag: u64 },
    /// The job has handled the completion; `at` may be later than the instant of the event. Results
    /// count what is `measured`: what ended well, not wanted in the ramp.
    RequestReaped { tag: u64, at: Nanos, measured: bool },

    /// The block layer has taken a request: entry `id` of `submitter`'s table.
    LayerQueued { submitter: u16, id: u32, tag: u64 },
    /// Entry `id` was merged into entry `head`.
    LayerMerged { submitter: u16, head: u32, id: u32 },
    /// Entry `id` is a piece of entry `parent`.
    LayerSplit { submitter: u16, parent: u32, id: u32 },
    /// The next [`CommandSubmitted`](Event::CommandSubmitted) carries entry `id`.
    LayerIssued { submitter: u16, id: u32 },

    /// A target on the host calls a request, or each part of it, `name` from here on.
    TargetAlias { alias: u64, tag: u64 },

    /// A host-managed FTL has taken a request: entry `place` of its table; `tag` is the job's, or the
    /// name that a [`TargetAlias`](Event::TargetAlias) gave it.
    TargetRequest { index: u64, tag: u64 },
    /// A host-managed FTL has asked for a flash operation, which the command with `user` carries;
    /// `request` is the entry that it is for, and `lba` the first sector that is written, if there is one.
    TargetOp { user: u64, cause: Cause, request: Option<u64>, lba: Option<u64> },
    /// The next [`CommandSubmitted`](Event::CommandSubmitted) carries the operation with `user`.
    TargetIssued { user: u64 },
    /// The host-managed FTL has heard of the end of the command with `user`.
    TargetOpCompleted { user: u64 },

    /// The driver has put a command into a submission queue.
    CommandSubmitted { qid: u16, cid: u16, user: u64 },
    /// The controller has taken a command off a submission queue; `id` is its entry of the drive's table.
    CommandFetched { id: u32, qid: u16, cid: u16 },
    /// A command passes a station: it is served from `start` to `end`.
    CommandStage { id: u32, stage: StageKind, start: Nanos, end: Nanos },
    /// The personality has begun the command.
    CommandStarted { id: u32 },
    /// The personality has ended the command.
    CommandCompleted { id: u32 },
    /// The completion entry is posted.
    CommandPosted { id: u32 },

    /// An FTL has queued a write or trim. Tags of a drive's own FTL are entries of the drive's table of
    /// commands, those of a host-managed FTL are entries of the target's.
    FtlQueued { tag: u64 },
    /// All sectors of it are in the write buffer; with `durable` its completion waits for the flash.
    FtlAdmitted { tag: u64, durable: bool },
    /// A flush waits for everything before it.
    FtlFlush { tag: u64 },
    /// A read waits for a page of the L2P map.
    FtlMapWait { tag: u64 },
    /// An FTL has ended a request.
    FtlCompleted { tag: u64 },
    /// The state of admission, whenever an FTL has looked at its queue.
    FtlAdmission { state: Admission },
    /// A drive's FTL programs a write unit of `chunk` whose first data is of sector `lba`.
    FtlProgram { chunk: u32, lba: Option<u64> },
    /// Garbage collection has taken a victim with so many valid sectors.
    GcBegins { line: u32, valid: u32 },
    /// The line's valid sectors are durable elsewhere, and its chunks are erased next.
    GcEnds { line: u32 },
    /// The FTL has begun to write a checkpoint.
    CheckpointBegins,
    /// The checkpoint is durable.
    CheckpointEnds,

    /// A part of a flash operation has arrived at its parallel unit. `command` is the command that it
    /// is for; without one the drive's FTL wants it for `cause`.
    PuOpQueued { pu_op: u32, pu: u32, chunk: u32, op: ArrayOp, cause: Cause, command: Option<u32> },
    /// A part has made progress.
    PuOpProgress { pu_op: u32, step: PuOpStep },
    /// The array was busy with a part from `start` to `end`.
    ArrayBusy { pu_op: u32, pu: u32, op: ArrayOp, start: Nanos, end: Nanos },
    /// A channel carries data of a part from `start` to `end`.
    ChannelBusy { pu_op: u32, channel: u32, start: Nanos, end: Nanos },
}
