//! [`PortLimits`]: the limits of a host in another process; `RemoteNotify`: the sockets and parked
//! flags by which the two sides of such a port wake each other.
//!
//! | direction | parked flags | location |
//! |---|---|---|
//! | host wakes drive | one | the drive's published memory, which the host can only read |
//! | drive wakes host | one per interrupt vector | behind the doorbells, where the host can write |
//!
//! Each flag belongs to a pair of sockets ([`event::RemoteWaker`]). A host that writes invalid
//! flags costs the drive's side one system call per batch of completions, which does not block.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event::{RemoteWaker, Waker};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use mem::{PAGE_BYTES, RegistrationLimits, SharedRegion};

use crate::{DoorbellLayout, MAX_QUEUES, SharedParkedFlag};

/// The drive resources that a host in another process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLimits {
    /// Interrupt vectors, at most [`PortLimits::MAX_VECTORS`]: each needs a descriptor on either
    /// side.
    pub vectors: u16,
    /// Maximum number of memory regions that it may register.
    pub regions: usize,
    /// Maximum total size of the regions in bytes; the memory may be charged to the drive's
    /// process.
    pub bytes: u64,
}

impl PortLimits {
    /// Maximum number of interrupt vectors: their descriptors are sent in one message (`unix(7)`:
    /// 253).
    pub const MAX_VECTORS: u16 = 128;

    /// Returns the limits of the address space.
    pub(crate) fn registration(self) -> RegistrationLimits {
        RegistrationLimits { regions: self.regions, bytes: self.bytes }
    }
}

impl Default for PortLimits {
    /// Returns limits of 16 vectors, 64 regions and 256 MiB.
    fn default() -> PortLimits {
        let RegistrationLimits { regions, bytes } = RegistrationLimits::default();
        PortLimits { vectors: 16, regions, bytes }
    }
}

/// Offset of the drive's parked flag: on the page after the controller registers.
pub(crate) const DRIVE_PARKED_OFFSET: usize = PAGE_BYTES;
/// Offset of the word that is 1 if the drive requests stamps of doorbells.
pub(crate) const STAMPS_REQUESTED_OFFSET: usize = DRIVE_PARKED_OFFSET + FLAG_STRIDE;
/// Offset of the costs of the persistent memory region, two numbers of 64 bits: of a cache line stored,
/// and of a persist, in nanoseconds.
pub(crate) const REGION_COSTS_OFFSET: usize = STAMPS_REQUESTED_OFFSET + FLAG_STRIDE;
/// Size in bytes of the memory that the drive publishes.
pub(crate) const PUBLISHED_BYTES: usize = 2 * PAGE_BYTES;
/// Distance between two flags, so that no two share a cache line.
const FLAG_STRIDE: usize = 64;

/// Returns the offset, behind the doorbells, of the parked flag of interrupt vector `vector`.
pub(crate) fn host_parked_offset(doorbells: DoorbellLayout, vector: u16) -> usize {
    doorbells.submission(MAX_QUEUES) + usize::from(vector) * FLAG_STRIDE
}

/// The sockets of one side of a port.
#[derive(Debug)]
pub(crate) struct RemoteNotify {
    /// The socket of the drive's runner.
    pub(crate) drive: Arc<OwnedFd>,
    /// The sockets of the host's runners, by interrupt vector.
    pub(crate) vectors: Vec<Arc<OwnedFd>>,
    /// The wakers of this side's runners: one on the drive's side, one per vector on the host's
    /// side.
    remote_wakers: Vec<Mutex<Option<RemoteWaker>>>,
}

impl RemoteNotify {
    /// Creates one side, which listens on `listening` sockets.
    pub(crate) fn new(drive: OwnedFd, vectors: Vec<OwnedFd>, listening: usize) -> RemoteNotify {
        RemoteNotify {
            drive: Arc::new(drive),
            vectors: vectors.into_iter().map(Arc::new).collect(),
            remote_wakers: (0..listening).map(|_| Mutex::default()).collect(),
        }
    }

    fn lock_remote_waker(&self, at: usize) -> MutexGuard<'_, Option<RemoteWaker>> {
        self.remote_wakers[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds the drive's socket to a runner.
    pub(crate) fn bind_drive_waker(
        &self,
        waker: &Waker,
        shown: &Arc<SharedRegion>,
    ) -> io::Result<()> {
        let mut linked = self.lock_remote_waker(0);
        if linked.is_none() {
            let flag = SharedParkedFlag::new(shown, DRIVE_PARKED_OFFSET);
            *linked = Some(waker.add_remote(self.drive.clone(), Box::new(flag))?);
        }
        Ok(())
    }

    /// Binds a vector's socket to a runner, replacing an earlier one. The flag of the vector is at this
    /// offset of this memory.
    pub(crate) fn bind_host_waker(
        &self,
        vector: u16,
        waker: &Waker,
        doorbells: &Arc<SharedRegion>,
        flag_at: usize,
    ) -> io::Result<()> {
        let Some(wire) = self.vectors.get(usize::from(vector)) else {
            return Ok(());
        };
        let mut linked = self.lock_remote_waker(usize::from(vector));
        // Unbind first: a socket has one listener.
        *linked = None;
        let flag = SharedParkedFlag::new(doorbells, flag_at);
        *linked = Some(waker.add_remote(wire.clone(), Box::new(flag))?);
        // Earlier completions did not find the flag set.
        waker.wake();
        Ok(())
    }
}

impl RemoteNotify {
    /// Stops listening, and tells the other side.
    pub(crate) fn close(&self) {
        for at in 0..self.remote_wakers.len() {
            *self.lock_remote_waker(at) = None;
        }
        for wire in std::iter::once(&self.drive).chain(&self.vectors) {
            // The peer may already be gone.
            let _ = rustix::net::shutdown(wire, rustix::net::Shutdown::Both);
        }
    }
}

/// Creates a pair of connected sockets: this side's end and the other's.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}
