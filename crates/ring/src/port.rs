//! [`Port`]: one host's connection to a drive.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use clock::Waker;

use crate::{AddressSpace, Iova, PAGE, Region, RegisterError};

/// Queue identifiers 0 (admin) to `MAX_QUEUES - 1`.
pub const MAX_QUEUES: u16 = 1025;

/// Bytes between doorbells (NVMe CAP.DSTRD = 4), so that no two share a cache line.
pub const DOORBELL_STRIDE: usize = 64;

/// Base address registers of a PCI function.
const BARS: usize = 6;

/// Entries of the admin queues.
pub(crate) const ADMIN_DEPTH: u16 = 64;

/// One host's connection to a drive: what a PCI function is to a real one. Both sides hold it; it
/// has the memory the drive may touch, the doorbells, where the admin queues are (NVMe's AQA, ASQ
/// and ACQ registers), and how each side wakes the other.
#[derive(Debug)]
pub struct Port {
    memory: AddressSpace,
    doorbells: Arc<Region>,
    /// Controller registers, at their NVMe offsets; those that nobody needs are zero.
    registers: Arc<Region>,
    bars: [OnceLock<Iova>; BARS],
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
            registers: Region::anonymous(PAGE)?,
            bars: Default::default(),
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

    /// The 32-bit controller register at `offset`, a multiple of 4 below 4096 (NVMe section 3.1).
    ///
    /// # Panics
    /// When there is no such register: offsets are the code's own, never the other side's.
    pub fn register(&self, offset: usize) -> u32 {
        self.registers.half_word(offset).load(Ordering::Acquire)
    }

    /// Sets a controller register, which is for the drive to do.
    ///
    /// # Panics
    /// As for [`register`](Port::register).
    pub fn set_register(&self, offset: usize, value: u32) {
        self.registers.half_word(offset).store(value, Ordering::Release);
    }

    /// Where the memory behind a base address register is, if there is some: memory of the drive
    /// that the host reaches into.
    pub fn bar(&self, number: u8) -> Option<Iova> {
        self.bars.get(usize::from(number))?.get().copied()
    }

    /// Says what memory is behind a base address register, which is for the drive to do, once.
    /// Later calls, and those for numbers over 5, are ignored.
    pub fn set_bar(&self, number: u8, at: Iova) {
        if let Some(bar) = self.bars.get(usize::from(number)) {
            let _ = bar.set(at);
        }
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
