//! [`Limits`]: what the host of a port whose ends are in two processes may take; and the wires of
//! such a port, by which either side wakes the other.
//!
//! | who wakes | flag of the sleeper | where |
//! |---|---|---|
//! | host wakes drive | one | the drive's memory, which the host can only read |
//! | drive wakes host | one per interrupt vector | behind the doorbells: the host's to write |
//!
//! Each goes with a pair of sockets ([`clock::Link`]). A host that writes nonsense into its flags
//! costs the drive's side one system call per batch of completions, which does not block.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clock::{RemoteWaker, Waker};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::{MAX_QUEUES, PAGE_BYTES, SharedParkedFlag, SharedRegion};

/// What a host in another process may take of the drive's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLimits {
    /// Interrupt vectors, [`Limits::MAX_VECTORS`] at most: each is a descriptor on either side.
    pub vectors: u16,
    /// Regions of memory that it may register.
    pub regions: usize,
    /// Bytes of them together: the memory may be charged to the drive's process.
    pub bytes: u64,
}

impl PortLimits {
    /// Interrupt vectors at most: their descriptors travel in one message (`unix(7)`: 253).
    pub const MAX_VECTORS: u16 = 128;
}

impl Default for PortLimits {
    /// 16 vectors and 256 MiB in 64 regions.
    fn default() -> PortLimits {
        PortLimits { vectors: 16, regions: 64, bytes: 256 << 20 }
    }
}

/// Where the drive shows that it sleeps: on the page after the controller registers.
pub(crate) const DRIVE_PARKED_OFFSET: usize = PAGE_BYTES;
/// Bytes that the drive shows to the host.
pub(crate) const PUBLISHED_BYTES: usize = 2 * PAGE_BYTES;
/// Between two flags, so that no two share a cache line.
const FLAG_STRIDE: usize = 64;

/// Where, behind the doorbells, the sleeper of interrupt vector `vector` shows that it sleeps.
pub(crate) fn host_parked_offset(vector: u16) -> usize {
    2 * usize::from(MAX_QUEUES) * crate::DOORBELL_STRIDE + usize::from(vector) * FLAG_STRIDE
}

/// The sockets of one side.
#[derive(Debug)]
pub(crate) struct RemoteNotify {
    /// To the other side's runner, or from it.
    pub(crate) drive: Arc<OwnedFd>,
    /// By interrupt vector.
    pub(crate) vectors: Vec<Arc<OwnedFd>>,
    /// What wakes this side's runners: one for the drive's, one per vector for the host's.
    remote_wakers: Vec<Mutex<Option<RemoteWaker>>>,
}

impl RemoteNotify {
    /// One side's wires, of which it listens to `listening`.
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

    /// From now on, what comes through the drive's wire wakes this runner.
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

    /// From now on, what comes through a vector's wire wakes this runner, and no other.
    pub(crate) fn bind_host_waker(
        &self,
        vector: u16,
        waker: &Waker,
        doorbells: &Arc<SharedRegion>,
    ) -> io::Result<()> {
        let Some(wire) = self.vectors.get(usize::from(vector)) else {
            return Ok(());
        };
        let mut linked = self.lock_remote_waker(usize::from(vector));
        // First: a socket has one listener.
        *linked = None;
        let flag = SharedParkedFlag::new(doorbells, host_parked_offset(vector));
        *linked = Some(waker.add_remote(wire.clone(), Box::new(flag))?);
        // What the drive has completed before did not find the flag up.
        waker.wake();
        Ok(())
    }
}

impl RemoteNotify {
    /// Nobody listens any more, and whoever does at the other end is told.
    pub(crate) fn close(&self) {
        for at in 0..self.remote_wakers.len() {
            *self.lock_remote_waker(at) = None;
        }
        for wire in std::iter::once(&self.drive).chain(&self.vectors) {
            // A peer that is gone need not be told.
            let _ = rustix::net::shutdown(wire, rustix::net::Shutdown::Both);
        }
    }
}

/// A wire: this side's end and the other's.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}
