//! [`LogMemory`]: the memory of a log.

use driver::PersistentRegion;
use mem::PersistentMemory;

/// Memory that keeps what was persisted when power is cut. Ranges are inside of the memory.
#[allow(clippy::len_without_is_empty, reason = "the memory of a log is never empty")]
pub trait LogMemory {
    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// Copies bytes out.
    fn read(&self, offset: usize, into: &mut [u8]);

    /// Stores bytes, which are not persistent yet.
    fn store(&self, offset: usize, data: &[u8]);

    /// Makes the lines that contain the range persistent.
    ///
    /// # Errors
    /// [`MemoryRemoved`] if the memory was removed: it is not known what is persistent.
    fn persist(&self, offset: usize, bytes: usize) -> Result<(), MemoryRemoved>;

    /// Returns a number that grows when the memory loses its power while the log is open.
    fn power_cuts(&self) -> u64;
}

/// The memory of a log was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the persistent memory of the log was removed")]
pub struct MemoryRemoved;

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

    fn persist(&self, offset: usize, bytes: usize) -> Result<(), MemoryRemoved> {
        self.persist(offset, bytes);
        Ok(())
    }

    fn power_cuts(&self) -> u64 {
        self.power_cuts()
    }
}

/// The persistent memory region of a drive. Its costs are spent by the calling thread if it has a
/// clock; otherwise the settings of the log have them.
impl LogMemory for PersistentRegion {
    fn len(&self) -> usize {
        self.bytes() as usize
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.memory().read(offset, into);
    }

    fn store(&self, offset: usize, data: &[u8]) {
        // The persist of the lines fails if the region was removed.
        let _ = self.store(offset as u64, data);
    }

    fn persist(&self, offset: usize, bytes: usize) -> Result<(), MemoryRemoved> {
        self.persist(offset as u64, bytes as u64).map(|_| ()).map_err(|_| MemoryRemoved)
    }

    fn power_cuts(&self) -> u64 {
        self.memory().power_cuts()
    }
}
