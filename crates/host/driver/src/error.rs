//! [`DriverError`]: errors of initialization and of admin commands, with the command and the queue.

use mem::{NotRegistered, RegisterError};
use nvme::{GeometryError, Status};

/// The reason why a drive cannot be initialized, or an admin command failed.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The drive completed a command with an error.
    #[error("{command} failed on queue {queue}: {status}")]
    Command {
        /// The command.
        command: &'static str,
        /// The queue that the command is about; 0 for the admin queue.
        queue: u16,
        /// The status.
        status: Status,
    },
    /// The drive did not answer in time. The controller sends no further admin command before the
    /// answer, because the drive may still write to this command's buffer.
    #[error("{command} on queue {queue} was not answered within {polls} polls")]
    Timeout {
        /// The command.
        command: &'static str,
        /// The queue that the command is about; 0 for the admin queue.
        queue: u16,
        /// Number of polls.
        polls: u64,
    },
    /// An earlier admin command timed out and has no answer yet, or the controller is being reset.
    #[error(
        "{command} was not sent: the drive left an earlier admin command unanswered, or is being reset"
    )]
    Unresponsive {
        /// The command.
        command: &'static str,
    },
    /// The admin queue is full although no command is outstanding: the drive misreports its head.
    #[error("{command} was not sent: the admin queue is full")]
    AdminQueueFull {
        /// The command.
        command: &'static str,
    },
    /// All I/O queues that the drive has, or has granted, are in use.
    #[error("all {granted} I/O queue pairs that the drive grants are in use")]
    NoFreeQueue {
        /// Number of I/O queue pairs granted.
        granted: u16,
    },
    /// The queue depth is not supported.
    #[error("a queue of {depth} entries: {allowed}")]
    Depth {
        /// Number of entries requested.
        depth: u16,
        /// The supported range.
        allowed: &'static str,
    },
    /// The queue pair does not belong to this controller.
    #[error("queue {queue} does not belong to this controller")]
    ForeignQueue {
        /// The queue.
        queue: u16,
    },
    /// The drive reports something impossible.
    #[error("the drive reports {what}")]
    Implausible {
        /// The drive's report.
        what: String,
    },
    /// The drive has no active namespace.
    #[error("the drive has no active namespace")]
    NoNamespace,
    /// The drive has no active namespace with this identifier.
    #[error("the drive has no active namespace {nsid}")]
    NoSuchNamespace {
        /// The namespace.
        nsid: u32,
    },
    /// The drive reports an impossible geometry.
    #[error("the drive's geometry: {0}")]
    Geometry(#[from] GeometryError),
    /// The drive does not report chunks, or not as many.
    #[error(
        "chunks {first}..+{count} of {chunks} on the drive (0: it is not an open-channel drive)"
    )]
    NoSuchChunks {
        /// First chunk requested.
        first: u64,
        /// Number of chunks requested.
        count: u64,
        /// Number of chunks of the drive.
        chunks: u64,
    },
    /// The drive does not support the feature.
    #[error("the drive has no {what}")]
    Unsupported {
        /// The feature.
        what: &'static str,
    },
    /// Media events were polled without a subscription.
    #[error("there is no event subscription: call subscribe_events or request_event first")]
    NotSubscribed,
    /// A controller with registers did not finish a step of initialization or shutdown in time.
    #[error("the controller did not {step} within {} ms", waited.0 / 1_000_000)]
    InitTimeout {
        /// The step.
        step: &'static str,
        /// Time waited.
        waited: time::Nanos,
    },
    /// A controller with registers reports a fatal failure (CSTS.CFS).
    #[error("the controller reports a fatal failure")]
    Failed,
    /// A controller with registers has left the bus, was released, or did not recover from a reset.
    #[error("the controller has been removed")]
    Removed,
    /// The namespace has metadata, for which the kernel requires a separate buffer.
    #[error(
        "namespace {nsid} has {bytes} bytes of metadata per sector, which passthrough does not support: \
         open its controller (`vfio:`), or format it without metadata (`nvme format`)"
    )]
    Metadata {
        /// The namespace.
        nsid: u32,
        /// Metadata bytes per sector.
        bytes: u32,
    },
    /// Memory for a queue or a buffer cannot be allocated or registered.
    #[error("registering memory: {0}")]
    Register(#[from] RegisterError),
    /// The memory of a ring is not registered.
    #[error("the memory of a ring: {0}")]
    Ring(#[from] NotRegistered),
}

impl DriverError {
    /// Returns the drive's status, if it completed the command.
    pub fn status(&self) -> Option<Status> {
        match self {
            DriverError::Command { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Returns whether the drive does not answer.
    pub fn is_unresponsive(&self) -> bool {
        matches!(self, DriverError::Timeout { .. } | DriverError::Unresponsive { .. })
    }
}
