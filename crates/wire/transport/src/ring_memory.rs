//! [`RingMemory`]: the memory of one ring, checked once.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::{InvalidDoorbell, Port};
use mem::{Iova, NotRegistered, PAGE_BYTES, WordArray};

/// A ring of entries of `WORDS` words.
#[derive(Debug)]
pub(crate) struct RingMemory<const WORDS: usize> {
    pub(crate) port: Arc<Port>,
    entries: WordArray<WORDS>,
    /// The addresses of the ring.
    pub(crate) range: Range<Iova>,
    pub(crate) depth: u16,
    pub(crate) qid: u16,
}

impl<const WORDS: usize> RingMemory<WORDS> {
    /// Opens the ring of queue `qid` at `at`, which must be page aligned ([NVMe1.4 §5.3]:
    /// contiguous memory, offset 0) and hold at least two entries.
    pub(crate) fn open(
        port: &Arc<Port>,
        qid: u16,
        at: Iova,
        depth: u16,
    ) -> Result<Self, NotRegistered> {
        let bytes = u64::from(depth) * 8 * WORDS as u64;
        if !at.0.is_multiple_of(PAGE_BYTES as u64) || depth < 2 {
            return Err(NotRegistered { iova: at, len: bytes });
        }
        let buffer = port.memory().find(at, bytes)?;
        if port.memory().contiguous_bus_address(at, bytes).is_none() {
            return Err(NotRegistered { iova: at, len: bytes });
        }
        let entries = WordArray::new(buffer.region.clone(), buffer.offset, depth.into());
        Ok(RingMemory { port: port.clone(), entries, range: at..at.offset(bytes), depth, qid })
    }

    /// Returns the index after `index`.
    #[inline]
    pub(crate) fn next_index(&self, index: u16) -> u16 {
        if index + 1 == self.depth { 0 } else { index + 1 }
    }

    /// Returns the words of an entry.
    #[inline]
    pub(crate) fn entry(&self, index: u16) -> &[AtomicU64; WORDS] {
        self.entries.get(index.into())
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
