//! [`LogMemory`]: the memory of a log.

use mem::PersistentMemory;

/// Memory that keeps what was persisted when power is cut. Ranges are inside of the memory.
pub trait LogMemory {
    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "the memory of a log is never empty")]
    fn len(&self) -> usize;

    /// Copies bytes out.
    fn read(&self, offset: usize, into: &mut [u8]);

    /// Stores bytes, which are not persistent yet.
    fn store(&self, offset: usize, data: &[u8]);

    /// Makes the lines that contain the range persistent.
    fn persist(&self, offset: usize, bytes: usize);
}

impl LogMemory for PersistentMemory {
    fn len(&self) -> usize {
        self.len()
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.read(offset, into);
    }

    fn store(&self, offset: usize, data: &[u8]) {
        self.store(offset, data);
    }

    fn persist(&self, offset: usize, bytes: usize) {
        self.persist(offset, bytes);
    }
}
