//! [`Port`]: one host's connection to a drive.

use std::io;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use clock::Waker;

use crate::{AddressSpace, Iova, PAGE, Region, RegisterError};

/// Queue identifiers 0 (admin) to `MAX_QUEUES - 1`.
pub const MAX_QUEUES: u16 = 1025;

/// Bytes between doorbells (NVMe CAP.DSTRD = 4), so that no two share a cache line.
pub const DOORBELL_STRIDE: usize = 64;

/// Entries of the admin queues.
pub(crate) const ADMIN_DEPTH: u16 = 64;

/// One host's connection to a drive: what a PCI function is to a real one. Both sides hold it; it
/// has the memory the drive may touch, the doorbells, where the admin queues are (NVMe's AQA, ASQ
/// and ACQ registers), and how each side wakes the other.
#[derive(Debug)]
pub struct Port {
    memory: AddressSpace,
    doorbells: Arc<Region>,
    admin_sq: Iova,
    admin_cq: Iova,
    drive: OnceLock<Waker>,
    /// Read once for a batch of completions, and written to when a queue changes hands.
    vectors: Vec<RwLock<Option<Waker>>>,
}

impl Port {
    /// A port with its admin queues' memory and no I/O queues.
    ///
    /// # Errors
    /// What `mmap(2)` returns.
    pub fn new() -> io::Result<Arc<Port>> {
        let memory = AddressSpace::default();
        let queues = Region::anonymous(2 * PAGE)?;
        let base = memory.register(&queues).map_err(|e: RegisterError| io::Error::other(e))?;
        Ok(Arc::new(Port {
            memory,
            doorbells: Region::anonymous(2 * usize::from(MAX_QUEUES) * DOORBELL_STRIDE)?,
            admin_sq: base,
            admin_cq: base.offset(PAGE as u64),
            drive: OnceLock::new(),
            vectors: (0..MAX_QUEUES).map(|_| RwLock::default()).collect(),
        }))
    }

    /// The memory that the drive may touch for this host.
    pub fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    /// The region of the doorbells: submission tails at even strides, completion heads at odd.
    pub fn doorbells(&self) -> &Arc<Region> {
        &self.doorbells
    }

    /// Address and entries of the admin submission queue.
    pub fn admin_submission(&self) -> (Iova, u16) {
        (self.admin_sq, ADMIN_DEPTH)
    }

    /// Address and entries of the admin completion queue.
    pub fn admin_completion(&self) -> (Iova, u16) {
        (self.admin_cq, ADMIN_DEPTH)
    }

    /// Says how to wake the runner that polls the drive. Later calls are ignored.
    pub fn set_drive_waker(&self, waker: Waker) {
        let _ = self.drive.set(waker);
    }

    /// Says whom interrupt vector `vector` wakes from now on: what came before may have woken
    /// another. Vectors out of range are ignored.
    pub fn set_vector(&self, vector: u16, waker: Waker) {
        if let Some(slot) = self.vectors.get(usize::from(vector)) {
            *slot.write().unwrap_or_else(PoisonError::into_inner) = Some(waker);
        }
    }

    /// Wakes the drive's runner if it sleeps.
    #[inline]
    pub fn wake_drive(&self) {
        if let Some(waker) = self.drive.get() {
            waker.wake();
        }
    }

    /// Raises an interrupt vector.
    #[inline]
    pub fn interrupt(&self, vector: u16) {
        if let Some(slot) = self.vectors.get(usize::from(vector))
            && let Some(waker) = &*slot.read().unwrap_or_else(PoisonError::into_inner)
        {
            waker.wake();
        }
    }

    /// Offset of a submission queue's tail doorbell.
    #[inline]
    pub(crate) fn sq_doorbell(qid: u16) -> usize {
        2 * usize::from(qid) * DOORBELL_STRIDE
    }

    /// Offset of a completion queue's head doorbell.
    #[inline]
    pub(crate) fn cq_doorbell(qid: u16) -> usize {
        (2 * usize::from(qid) + 1) * DOORBELL_STRIDE
    }
}
