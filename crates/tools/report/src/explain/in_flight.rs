//! In-flight commands and flash operations, with the data of their tracepoints.

use std::rc::Rc;

use time::Nanos;
use tracepoint::{Admission, ArrayOp, Cause, StageKind};

/// A request of a job: its tag, which is unique on its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PathTag {
    pub(super) path: u16,
    pub(super) tag: u64,
}

/// An FTL of a drive or above it: the path and the queue of one in the host, or [`DRIVE_FTL`].
pub(super) type FtlId = (u16, u16);

/// The FTL of the drive itself.
pub(super) const DRIVE_FTL: FtlId = (0, 0);

/// An entry of the block layer of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LayerEntryId {
    pub(super) path: u16,
    pub(super) submitter: u16,
    pub(super) id: u32,
}

/// Origin of a command or flash operation: a request or background work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Origin {
    /// Unknown: an admin command, or a command issued before the recording started.
    #[default]
    Unknown,
    /// A job's request.
    Request(PathTag),
    /// An entry of the block layer's table.
    BlockLayer(LayerEntryId),
    /// A host FTL: for an entry of its table, or for its background work.
    Target { ftl: FtlId, cause: Cause, request: Option<u64>, lba: Option<u64> },
}

/// The part of a flash operation on one parallel unit, from its arrival to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct TracedPuOp {
    /// Serial number; the indices of the drive's table are reused.
    pub(super) serial: u64,
    pub(super) pu: u32,
    pub(super) chunk: u32,
    pub(super) op: ArrayOp,
    pub(super) cause: Cause,
    /// Job whose request it serves, in the numbering of the drive.
    pub(super) job: Option<u32>,
    /// Serial number of that request.
    pub(super) request: Option<u64>,
    pub(super) lba: Option<u64>,
    pub(super) command: Option<u32>,
    pub(super) queued: Nanos,
    pub(super) staging: Option<Nanos>,
    pub(super) staged: Option<Nanos>,
    pub(super) array_begins: Option<Nanos>,
    pub(super) array_ends: Option<Nanos>,
    pub(super) ended: Nanos,
    pub(super) channel: u32,
}

/// A visit of a station of the controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct StationVisit {
    pub(super) station: StageKind,
    pub(super) start: Nanos,
    pub(super) end: Nanos,
}

/// The last operation to complete among those that a request waited for.
#[derive(Clone, Debug)]
pub(super) enum Critical {
    PuOp(TracedPuOp),
    Command(Rc<TracedCommand>),
}

impl Critical {
    /// Returns whether it is a program.
    pub(super) fn is_program(&self) -> bool {
        let part = match self {
            Critical::PuOp(part) => Some(part),
            Critical::Command(command) => command.last_pu_op.as_ref(),
        };
        part.is_some_and(|part| part.op == ArrayOp::Program)
    }

    /// Returns the time at which it was queued.
    pub(super) fn queued_at(&self) -> Nanos {
        match self {
            Critical::PuOp(part) => part.queued,
            Critical::Command(command) => command.submitted,
        }
    }
}

/// A request at an FTL in the drive or in the host.
#[derive(Clone, Debug, Default)]
pub(super) struct FtlRequest {
    pub(super) began: Nanos,
    /// Writes and trims: the time at which all of it was admitted, and whether it waits for the
    /// flash afterwards.
    pub(super) admitted: Option<(Nanos, bool)>,
    /// The program whose completion freed a slot of the write buffer.
    pub(super) slot_freed_by: Option<Critical>,
    /// Time at which the last part of a write or trim was queued.
    pub(super) queued: Option<Nanos>,
    pub(super) is_flush: bool,
    pub(super) waited_for_map: bool,
    pub(super) ended: Nanos,
    /// The operation whose completion completed the request.
    pub(super) critical: Option<Critical>,
}

/// A command, from its submission to its completion entry.
#[derive(Clone, Debug, Default)]
pub(super) struct TracedCommand {
    pub(super) origin: Origin,
    pub(super) user_data: u64,
    pub(super) submitted: Nanos,
    pub(super) fetched: Nanos,
    pub(super) started: Nanos,
    pub(super) ended: Nanos,
    pub(super) posted: Nanos,
    pub(super) visits: Vec<StationVisit>,
    /// Its part of a flash operation that completed last.
    pub(super) last_pu_op: Option<TracedPuOp>,
    /// The command as a request of the drive's own FTL.
    pub(super) ftl: Option<FtlRequest>,
}

/// A change of the admission state.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdmissionChange {
    pub(super) at: Nanos,
    pub(super) state: Admission,
}
