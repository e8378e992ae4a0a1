//! [`RingMemory`]: the memory of one ring, checked once, and its doorbell.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{InvalidDoorbell, Port};
use mem::{Iova, NotRegistered, PAGE_BYTES, SharedRegion};

/// A ring of entries of `SIZE` bytes.
#[derive(Debug)]
pub(crate) struct RingMemory<const SIZE: usize> {
    pub(crate) port: Arc<Port>,
    pub(crate) region: Arc<SharedRegion>,
    base: usize,
    pub(crate) depth: u16,
    pub(crate) qid: u16,
    doorbells: (usize, usize),
}

impl<const SIZE: usize> RingMemory<SIZE> {
    /// Opens the ring of queue `qid` at `at`, which must be page aligned ([NVMe1.4 §5.3]:
    /// contiguous memory, offset 0) and hold at least two entries.
    pub(crate) fn open(
        port: &Arc<Port>,
        qid: u16,
        at: Iova,
        depth: u16,
    ) -> Result<Self, NotRegistered> {
        let bytes = u64::from(depth) * SIZE as u64;
        if !at.0.is_multiple_of(PAGE_BYTES as u64) || depth < 2 {
            return Err(NotRegistered { iova: at, len: bytes });
        }
        let buffer = port.memory().find(at, bytes)?;
        if port.memory().contiguous_bus_address(at, bytes).is_none() {
            return Err(NotRegistered { iova: at, len: bytes });
        }
        let (region, base) = (buffer.region.clone(), buffer.offset);
        let doorbells = (port.sq_doorbell(qid), port.cq_doorbell(qid));
        Ok(RingMemory { port: port.clone(), region, base, depth, qid, doorbells })
    }

    /// Returns a number that identifies the port while it exists, the same on both sides.
    pub(crate) fn port_number(&self) -> u64 {
        Arc::as_ptr(&self.port) as u64
    }

    /// Returns the index after `index`.
    #[inline]
    pub(crate) fn next_index(&self, index: u16) -> u16 {
        if index + 1 == self.depth { 0 } else { index + 1 }
    }

    /// Returns the `WORDS` words of an entry.
    #[inline]
    pub(crate) fn entry<const WORDS: usize>(&self, index: u16) -> &[AtomicU64; WORDS] {
        const { assert!(8 * WORDS == SIZE) };
        self.region.atomic_u64_array(self.base + usize::from(index) * SIZE)
    }

    /// Returns the offset of the submission queue's tail doorbell.
    #[inline]
    pub(crate) fn sq_doorbell(&self) -> usize {
        self.doorbells.0
    }

    /// Returns the offset of the completion queue's head doorbell.
    #[inline]
    pub(crate) fn cq_doorbell(&self) -> usize {
        self.doorbells.1
    }

    /// Reads the value that the host has written to the doorbell at `offset`.
    ///
    /// # Errors
    /// [`InvalidDoorbell`] for a value outside the ring.
    #[inline]
    pub(crate) fn doorbell(&self, offset: usize) -> Result<u16, InvalidDoorbell> {
        self.check_index(self.port.doorbells().atomic_u32(offset).load(Ordering::Acquire))
    }

    /// Checks a doorbell value that was read.
    ///
    /// # Errors
    /// [`InvalidDoorbell`].
    #[inline]
    pub(crate) fn check_index(&self, value: u32) -> Result<u16, InvalidDoorbell> {
        match u16::try_from(value) {
            Ok(index) if index < self.depth => Ok(index),
            _ => Err(InvalidDoorbell { qid: self.qid, value, depth: self.depth }),
        }
    }
}
