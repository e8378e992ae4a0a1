//! [`DriverError`]: what went wrong, with which command, on which queue.

use nvme::{GeometryError, Status};
use ring::{NotRegistered, RegisterError};

/// Why a drive could not be brought up, or an admin command not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The drive refused a command.
    #[error("{command} failed on queue {queue}: {status}")]
    Command {
        /// The command.
        command: &'static str,
        /// The queue that the command is about; 0 for the admin queue.
        queue: u16,
        /// The drive's answer.
        status: Status,
    },
    /// The drive did not answer. The controller takes no further admin command until it has: the drive
    /// may still write to the memory of this one.
    #[error("{command} on queue {queue} was not answered within {polls} polls")]
    Timeout {
        /// The command.
        command: &'static str,
        /// The queue that the command is about; 0 for the admin queue.
        queue: u16,
        /// How often it was asked.
        polls: u64,
    },
    /// An earlier admin command timed out and is unanswered still, or the controller is being reset.
    #[error(
        "{command} was not sent: the drive left an earlier admin command unanswered, or is being reset"
    )]
    Unresponsive {
        /// The command.
        command: &'static str,
    },
    /// The admin queue takes no entry although nothing is outstanding: the drive misreports how far
    /// it has read.
    #[error("{command} was not sent: the admin queue is full")]
    AdminQueueFull {
        /// The command.
        command: &'static str,
    },
    /// All I/O queues that the drive has, or that it granted, are in use.
    #[error("all {granted} I/O queue pairs that the drive grants are in use")]
    NoFreeQueue {
        /// I/O queue pairs granted.
        granted: u16,
    },
    /// A queue cannot have this many entries.
    #[error("a queue of {depth} entries: {allowed}")]
    Depth {
        /// Entries asked for.
        depth: u16,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A queue pair that is not one of this controller's.
    #[error("queue {queue} does not belong to this controller")]
    ForeignQueue {
        /// The queue.
        queue: u16,
    },
    /// The drive describes itself as something that cannot be.
    #[error("the drive says {what}")]
    Implausible {
        /// What it says.
        what: String,
    },
    /// The drive has no active namespace.
    #[error("the drive has no active namespace")]
    NoNamespace,
    /// The drive has other namespaces, but not this one.
    #[error("the drive has no active namespace {nsid}")]
    NoSuchNamespace {
        /// The namespace.
        nsid: u32,
    },
    /// The drive's geometry cannot be.
    #[error("the drive's geometry: {0}")]
    Geometry(#[from] GeometryError),
    /// The drive has no chunks to tell of, or not this many.
    #[error(
        "chunks {first}..+{count} of {chunks} on the drive (0: it is not an open-channel drive)"
    )]
    NoSuchChunks {
        /// First chunk asked for.
        first: u64,
        /// Chunks asked for.
        count: u64,
        /// Chunks of the drive.
        chunks: u64,
    },
    /// The drive does not have what was asked for.
    #[error("the drive has no {what}")]
    Unsupported {
        /// What it does not have.
        what: &'static str,
    },
    /// Media events were polled for and are not watched.
    #[error("media events are not watched, or no longer: watch_events comes first")]
    NotSubscribed,
    /// A real controller does not do in its time what it was told by its registers.
    #[error("the controller did not {step} within {} ms", waited.0 / 1_000_000)]
    InitTimeout {
        /// What it was told.
        step: &'static str,
        /// How long it was waited for.
        waited: clock::Nanos,
    },
    /// A real controller says that it has failed (CSTS.CFS).
    #[error("the controller reports a fatal failure")]
    Failed,
    /// A real controller has left the bus, or was taken away, or has not come back from a reset.
    #[error("the controller is gone")]
    Removed,
    /// The namespace keeps metadata beside its sectors that the kernel wants to be given.
    #[error(
        "namespace {nsid} keeps {bytes} bytes of metadata per sector, which the kernel leaves to who passes \
         commands: open its controller (`vfio:`), or `nvme format` it without"
    )]
    Metadata {
        /// The namespace.
        nsid: u32,
        /// Bytes per sector.
        bytes: u32,
    },
    /// No memory for a queue or a buffer, or no registration left for it.
    #[error("registering memory: {0}")]
    Register(#[from] RegisterError),
    /// The memory of a ring is not registered.
    #[error("memory of a ring: {0}")]
    Ring(#[from] NotRegistered),
}

impl DriverError {
    /// The drive's answer, if it gave one.
    pub fn status(&self) -> Option<Status> {
        match self {
            DriverError::Command { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the drive does not answer.
    pub fn is_unresponsive(&self) -> bool {
        matches!(self, DriverError::Timeout { .. } | DriverError::Unresponsive { .. })
    }
}
