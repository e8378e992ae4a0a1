//! [`NamespaceRequest`]: a change of the namespaces of a drive for an administrator without queues;
//! [`NamespaceReply`]: its result; [`NamespaceError`]: the reason for which it fails.
//!
//! A request executes what Namespace Management and Namespace Attachment of a host execute
//! ([`management`](crate::namespaces::management)).

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use nvme::Status;

use crate::namespaces::layout::NAMESPACES_MAX;

/// A change of the namespaces of a drive that manages its own flash, to be made by
/// [`Controller::change_namespaces`](crate::Controller::change_namespaces).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceRequest {
    /// Creates a namespace, which has the smallest free identifier and is not attached.
    Create {
        /// Size in bytes, rounded up to whole blocks; `None` for the whole unallocated capacity.
        bytes: Option<u64>,
    },
    /// Deletes a namespace with its contents.
    Delete {
        /// Namespace identifier; `None` for all namespaces.
        nsid: Option<u32>,
    },
    /// Attaches a namespace, so that hosts can address it.
    Attach {
        /// Namespace identifier.
        nsid: u32,
    },
    /// Detaches a namespace. Its contents stay.
    Detach {
        /// Namespace identifier.
        nsid: u32,
    },
}

/// The reason for which namespaces are not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceError {
    /// The drive has no namespaces that could change.
    #[error("the drive has one namespace: only a drive with its own FTL on flash has several")]
    NotManaged,
    /// No such namespace.
    #[error("the drive has no namespace {nsid}; it has: {present}")]
    Unknown {
        /// The requested namespace.
        nsid: u32,
        /// The namespaces of the drive.
        present: String,
    },
    /// The unallocated capacity is too small.
    #[error("the namespace needs {needed_bytes} bytes, and {unallocated_bytes} are unallocated")]
    Capacity {
        /// Capacity that the namespace needs: a whole number of granules.
        needed_bytes: u64,
        /// Capacity that no namespace has.
        unallocated_bytes: u64,
    },
    /// A namespace without blocks.
    #[error("a namespace has at least one block")]
    Empty,
    /// No identifier is free.
    #[error("the drive has {NAMESPACES_MAX} namespaces, and cannot have more")]
    TooMany,
    /// The namespace is attached already.
    #[error("namespace {nsid} is attached already")]
    Attached {
        /// The namespace.
        nsid: u32,
    },
    /// The namespace is not attached.
    #[error("namespace {nsid} is not attached")]
    NotAttached {
        /// The namespace.
        nsid: u32,
    },
    /// The drive refuses the change at this time, or it failed.
    #[error("the drive ends it with \"{status}\"")]
    Refused {
        /// The status with which a command of a host would end.
        status: Status,
    },
    /// The drive has not ended the change within the time that the caller waited.
    #[error("the drive has not ended it within {seconds} s, and goes on")]
    Unfinished {
        /// The time.
        seconds: u64,
    },
    /// The drive was shut down before the end of the change.
    #[error("the drive was shut down before the end of the change")]
    Stopped,
}

/// The end of a request: the identifier of a created namespace, 0 of other requests.
type RequestEnd = Result<u32, Status>;

/// The drive's side of a [`NamespaceReply`].
#[derive(Clone, Debug)]
pub(crate) struct NamespaceReplySender(Sender<RequestEnd>);

impl NamespaceReplySender {
    /// Ends the request.
    pub(crate) fn send(&self, end: RequestEnd) {
        // The requester may have stopped waiting.
        let _ = self.0.send(end);
    }
}

/// The result of a [`NamespaceRequest`], which the drive sends when it has executed the request.
#[derive(Debug)]
pub struct NamespaceReply(Receiver<RequestEnd>);

impl NamespaceReply {
    /// Returns a reply that the drive has not sent.
    pub(crate) fn new() -> (NamespaceReplySender, NamespaceReply) {
        let (sender, receiver) = channel();
        (NamespaceReplySender(sender), NamespaceReply(receiver))
    }

    /// Returns the result if the request has ended: the identifier of a created namespace, 0 of other
    /// requests. The result is returned once.
    ///
    /// # Errors
    /// [`NamespaceError::Unfinished`] if it has not ended; [`NamespaceError::Refused`] if it has
    /// failed.
    pub fn result(&self) -> Result<u32, NamespaceError> {
        self.wait(Duration::ZERO)
    }

    /// Waits for the end of the request, up to `timeout`, on another thread than the drive's. Returns
    /// what [`result`](NamespaceReply::result) returns.
    ///
    /// # Errors
    /// As for [`result`](NamespaceReply::result); [`NamespaceError::Stopped`] if the drive was shut
    /// down meanwhile.
    pub fn wait(&self, timeout: Duration) -> Result<u32, NamespaceError> {
        match self.0.recv_timeout(timeout) {
            Ok(end) => end.map_err(|status| NamespaceError::Refused { status }),
            Err(RecvTimeoutError::Timeout) => {
                Err(NamespaceError::Unfinished { seconds: timeout.as_secs() })
            }
            Err(RecvTimeoutError::Disconnected) => Err(NamespaceError::Stopped),
        }
    }
}
