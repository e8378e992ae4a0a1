//! Commands and flash operations under way: the facts that tracepoints gave about each.

use std::rc::Rc;

use clock::Nanos;
use tracepoint::{Admission, ArrayOp, Cause, StageKind};

/// The request, or the background work, that a command or a flash operation is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Origin {
    /// Not known: an admin command, or one from before the recording.
    #[default]
    Unknown,
    /// A job's request, by its tag.
    Request(u64),
    /// An entry of the block layer's table.
    BlockLayer { submitter: u16, id: u32 },
    /// A host-managed FTL, on queue `qid`: for an entry of its table, or for itself.
    Target { qid: u16, cause: Cause, request: Option<u64>, lba: Option<u64> },
}

/// A part of a flash operation on its parallel unit, from its arrival to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct PuOp {
    /// The serial number; numbers of the drive's table are used again.
    pub(super) serial: u64,
    pub(super) pu: u32,
    pub(super) chunk: u32,
    pub(super) op: ArrayOp,
    pub(super) cause: Cause,
    /// The job whose request it is for.
    pub(super) job: Option<u32>,
    /// The serial number of that request.
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

/// A stay at a station of the controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct StationVisit {
    pub(super) station: StageKind,
    pub(super) start: Nanos,
    pub(super) end: Nanos,
}

/// The operation that ended last of those that a request waited for.
#[derive(Clone, Debug)]
pub(super) enum Critical {
    PuOp(PuOp),
    Command(Rc<Command>),
}

impl Critical {
    /// Whether it is a program.
    pub(super) fn is_program(&self) -> bool {
        let part = match self {
            Critical::PuOp(part) => Some(part),
            Critical::Command(command) => command.last_pu_op.as_ref(),
        };
        part.is_some_and(|part| part.op == ArrayOp::Program)
    }

    /// When it was asked for.
    pub(super) fn queued_at(&self) -> Nanos {
        match self {
            Critical::PuOp(part) => part.queued,
            Critical::Command(command) => command.submitted,
        }
    }
}

/// A request at an FTL, on whichever side it runs.
#[derive(Clone, Debug, Default)]
pub(super) struct FtlRequest {
    pub(super) began: Nanos,
    /// Writes and trims: when all of it was admitted, and whether it waits for the flash then.
    pub(super) admitted: Option<(Nanos, bool)>,
    /// The program whose end made room in the write buffer.
    pub(super) slot_freed_by: Option<Critical>,
    pub(super) is_queued: bool,
    pub(super) is_flush: bool,
    pub(super) waited_for_map: bool,
    pub(super) ended: Nanos,
    /// The operation whose end let it end.
    pub(super) critical: Option<Critical>,
}

/// A command, from its submission to its completion entry.
#[derive(Clone, Debug, Default)]
pub(super) struct Command {
    pub(super) origin: Origin,
    pub(super) user_data: u64,
    pub(super) submitted: Nanos,
    pub(super) fetched: Nanos,
    pub(super) started: Nanos,
    pub(super) ended: Nanos,
    pub(super) posted: Nanos,
    pub(super) visits: Vec<StationVisit>,
    /// The part of it that ended last.
    pub(super) last_pu_op: Option<PuOp>,
    /// As a request of the drive's own FTL.
    pub(super) ftl: Option<FtlRequest>,
}

/// A change of the state of admission.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdmissionChange {
    pub(super) at: Nanos,
    pub(super) state: Admission,
}
