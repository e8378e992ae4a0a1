//! [`NamespaceControl`]: the namespaces of a drive, read and changed on the thread that owns it.

use std::time::Duration;

use controller::{Controller, NamespaceError, NamespaceInfo, NamespaceRequest};
use event::RealClock;
use share_proto::{Code, NamespaceAction, NamespaceEntry, ProtocolError, ResourceName};

use super::owner_call::{OwnerChannel, OwnerStopped};

/// Timeout of a change, which waits for the commands in flight of the namespace.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(20);

/// Why the namespaces of a drive are neither read nor changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceControlError {
    /// The drive refuses the change, or it failed.
    #[error(transparent)]
    Refused(#[from] NamespaceError),
    /// The thread that owns the drive has ended, or does not answer.
    #[error(transparent)]
    Stopped(#[from] OwnerStopped),
}

/// The namespaces of a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceListing {
    /// The namespaces, in the order of their identifiers.
    pub namespaces: Vec<NamespaceInfo>,
    /// Capacity in bytes that no namespace has.
    pub unallocated_bytes: u64,
}

/// Access to the namespaces of a drive, for any thread but the one that owns it.
#[derive(Clone, Debug)]
pub struct NamespaceControl {
    owner: OwnerChannel<Controller>,
    clock: RealClock,
}

impl NamespaceControl {
    /// Creates the access to a drive, whose owner polls it in the time of `clock`.
    pub fn new(owner: OwnerChannel<Controller>, clock: RealClock) -> NamespaceControl {
        NamespaceControl { owner, clock }
    }

    /// Returns the namespaces.
    ///
    /// # Errors
    /// [`OwnerStopped`].
    pub fn list(&self) -> Result<NamespaceListing, OwnerStopped> {
        self.owner.call(|drive| NamespaceListing {
            namespaces: drive.namespaces(),
            unallocated_bytes: drive.unallocated_bytes(),
        })
    }

    /// Changes the namespaces, and waits for the end of the change. Returns the identifier of a
    /// created namespace, and 0 for other requests.
    ///
    /// # Errors
    /// [`NamespaceControlError`]. The change goes on after [`NamespaceError::Unfinished`], which is
    /// returned after 20 s; otherwise nothing has changed.
    pub fn change(&self, request: NamespaceRequest) -> Result<u32, NamespaceControlError> {
        let clock = self.clock;
        let reply =
            self.owner.call(move |drive| drive.change_namespaces(clock.now(), request))??;
        Ok(reply.wait(CHANGE_TIMEOUT)?)
    }
}

/// A drive, and the access to its namespaces.
#[derive(Clone, Debug)]
pub struct NamedNamespaces {
    /// Name of the drive.
    pub name: ResourceName,
    /// Its namespaces.
    pub control: NamespaceControl,
}

impl NamedNamespaces {
    /// Executes the request of a message.
    ///
    /// # Errors
    /// The reason for which nothing has changed, or for which the change is still under way.
    pub(super) fn change(&self, action: NamespaceAction) -> Result<u32, ProtocolError> {
        self.control.change(request_of(action)).map_err(|error| {
            let code = match error {
                NamespaceControlError::Refused(NamespaceError::Stopped)
                | NamespaceControlError::Stopped(_) => Code::Drive,
                NamespaceControlError::Refused(_) => Code::Namespace,
            };
            ProtocolError::new(code, format!("{}: {error}", self.name))
        })
    }

    /// Returns the entries of the namespaces, and the capacity in bytes that none of them has.
    ///
    /// # Errors
    /// [`Code::Drive`].
    pub(super) fn entries(&self) -> Result<(Vec<NamespaceEntry>, u64), ProtocolError> {
        let listing = self
            .control
            .list()
            .map_err(|error| ProtocolError::new(Code::Drive, format!("{}: {error}", self.name)))?;
        Ok((listing.namespaces.iter().map(entry_of).collect(), listing.unallocated_bytes))
    }
}

fn request_of(action: NamespaceAction) -> NamespaceRequest {
    match action {
        NamespaceAction::Create { bytes } => NamespaceRequest::Create { bytes },
        NamespaceAction::Delete(nsid) => NamespaceRequest::Delete { nsid },
        NamespaceAction::Attach(nsid) => NamespaceRequest::Attach { nsid },
        NamespaceAction::Detach(nsid) => NamespaceRequest::Detach { nsid },
    }
}

fn entry_of(info: &NamespaceInfo) -> NamespaceEntry {
    NamespaceEntry {
        nsid: info.nsid,
        is_attached: info.is_attached,
        block_bytes: info.block_bytes,
        blocks: info.blocks,
        used_blocks: info.used_blocks,
        allocated_bytes: info.allocated_bytes,
        nguid: info.nguid,
    }
}
