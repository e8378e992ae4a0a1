//! [`Entries`]: the memory of one ring, found and checked once, and its doorbell.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{InvalidDoorbell, Iova, PAGE, Port, Region, Unregistered};

/// A ring of entries of `SIZE` bytes.
#[derive(Debug)]
pub(crate) struct Entries<const SIZE: usize> {
    pub(crate) port: Arc<Port>,
    pub(crate) region: Arc<Region>,
    base: usize,
    pub(crate) depth: u16,
    pub(crate) qid: u16,
    doorbells: (usize, usize),
}

impl<const SIZE: usize> Entries<SIZE> {
    /// The ring of queue `qid` at `at`, which must be page aligned (NVMe section 5.3: contiguous
    /// memory, offset 0) and hold at least two entries.
    pub(crate) fn open(
        port: &Arc<Port>,
        qid: u16,
        at: Iova,
        depth: u16,
    ) -> Result<Self, Unregistered> {
        let bytes = u64::from(depth) * SIZE as u64;
        if !at.0.is_multiple_of(PAGE as u64) || depth < 2 {
            return Err(Unregistered { iova: at, len: bytes });
        }
        let buffer = port.memory().find(at, bytes)?;
        if port.memory().wire_run(at, bytes).is_none() {
            return Err(Unregistered { iova: at, len: bytes });
        }
        let (region, base) = (buffer.region.clone(), buffer.offset);
        let doorbells = (port.sq_doorbell(qid), port.cq_doorbell(qid));
        Ok(Entries { port: port.clone(), region, base, depth, qid, doorbells })
    }

    /// The index after `index`.
    #[inline]
    pub(crate) fn next(&self, index: u16) -> u16 {
        if index + 1 == self.depth { 0 } else { index + 1 }
    }

    /// The words of an entry, of which there are `WORDS`.
    #[inline]
    pub(crate) fn entry<const WORDS: usize>(&self, index: u16) -> &[AtomicU64; WORDS] {
        const { assert!(8 * WORDS == SIZE) };
        self.region.words(self.base + usize::from(index) * SIZE)
    }

    /// Offset of the submission queue's tail doorbell.
    #[inline]
    pub(crate) fn sq_doorbell(&self) -> usize {
        self.doorbells.0
    }

    /// Offset of the completion queue's head doorbell.
    #[inline]
    pub(crate) fn cq_doorbell(&self) -> usize {
        self.doorbells.1
    }

    /// What the host has written to the doorbell at `offset`.
    ///
    /// # Errors
    /// [`InvalidDoorbell`] for a value outside of the ring.
    #[inline]
    pub(crate) fn doorbell(&self, offset: usize) -> Result<u16, InvalidDoorbell> {
        self.index(self.port.doorbells().half_word(offset).load(Ordering::Acquire))
    }

    /// The same of a value that was read.
    ///
    /// # Errors
    /// [`InvalidDoorbell`].
    #[inline]
    pub(crate) fn index(&self, value: u32) -> Result<u16, InvalidDoorbell> {
        match u16::try_from(value) {
            Ok(index) if index < self.depth => Ok(index),
            _ => Err(InvalidDoorbell { qid: self.qid, value, depth: self.depth }),
        }
    }
}
