//! [`PciFunction`]: a device with registers, as its host sees it.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use clock::Waker;

use crate::{AddressSpace, SharedRegion};

/// A device that is not spoken to through NVMe queues: a bank of registers (what a base address
/// register of a PCI function maps), the memory that the device may touch, and one interrupt line.
/// Both sides hold it; neither calls the other (rule R1).
///
/// The bank is memory without logic of its own. A register whose bits are set or cleared by writing
/// ones is written with [`set`](PciFunction::set_bits) and [`clear`](PciFunction::clear_bits), which do to the
/// word at once what the device's logic would do; everything else that a write causes happens when
/// the device looks, which [`wake_device`](PciFunction::wake_device) makes it do.
#[derive(Debug)]
pub struct PciFunction {
    registers: Arc<SharedRegion>,
    memory: AddressSpace,
    device_waker: OnceLock<Waker>,
    interrupt_waker: OnceLock<Waker>,
}

impl PciFunction {
    /// A function with `register_bytes` bytes of registers, all zero.
    ///
    /// # Errors
    /// What `mmap(2)` returns; `InvalidInput` for no registers.
    pub fn new(register_bytes: usize) -> io::Result<Arc<PciFunction>> {
        Ok(Arc::new(PciFunction {
            registers: SharedRegion::anonymous(register_bytes)?,
            memory: AddressSpace::default(),
            device_waker: OnceLock::new(),
            interrupt_waker: OnceLock::new(),
        }))
    }

    /// The memory that the device may touch.
    pub fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    /// Bytes of registers.
    pub fn register_bytes(&self) -> usize {
        self.registers.len()
    }

    /// The register at `offset`.
    ///
    /// # Panics
    /// When `offset` is not a multiple of 4, or out of range: offsets are the code's own, never the
    /// other side's.
    #[inline]
    pub fn register(&self, offset: usize) -> &AtomicU32 {
        self.registers.atomic_u32(offset)
    }

    /// Reads a register; what the other side did before it wrote the value is visible afterwards.
    #[inline]
    pub fn read(&self, offset: usize) -> u32 {
        self.register(offset).load(Ordering::Acquire)
    }

    /// Writes a register; what was done before is visible to who reads the value.
    #[inline]
    pub fn write(&self, offset: usize, value: u32) {
        self.register(offset).store(value, Ordering::Release);
    }

    /// Sets bits of a register and returns what it was.
    #[inline]
    pub fn set_bits(&self, offset: usize, bits: u32) -> u32 {
        self.register(offset).fetch_or(bits, Ordering::AcqRel)
    }

    /// Clears bits of a register and returns what it was.
    #[inline]
    pub fn clear_bits(&self, offset: usize, bits: u32) -> u32 {
        self.register(offset).fetch_and(!bits, Ordering::AcqRel)
    }

    /// Says how to wake the runner that polls the device. Later calls are ignored.
    pub fn set_device_waker(&self, waker: Waker) {
        let _ = self.device_waker.set(waker);
    }

    /// Wakes the device's runner if it sleeps: to be called after writing registers.
    #[inline]
    pub fn wake_device(&self) {
        if let Some(waker) = self.device_waker.get() {
            waker.wake();
        }
    }

    /// Says whom the interrupt line wakes, and wakes it once: the line may have been raised before.
    /// Later calls are ignored.
    pub fn set_interrupt_waker(&self, waker: Waker) {
        if let Ok(()) = self.interrupt_waker.set(waker)
            && let Some(waker) = self.interrupt_waker.get()
        {
            waker.wake();
        }
    }

    /// Raises the interrupt line.
    #[inline]
    pub fn raise_interrupt(&self) {
        if let Some(waker) = self.interrupt_waker.get() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use clock::{Nanos, Parker};

    use super::*;

    #[test]
    fn bits_are_set_and_cleared_by_ones() {
        let function = PciFunction::new(64).unwrap();
        assert_eq!(function.set_bits(8, 0b1100), 0);
        assert_eq!(function.clear_bits(8, 0b0100), 0b1100);
        assert_eq!(function.read(8), 0b1000);
        function.write(8, 7);
        assert_eq!(function.read(8), 7);
        assert_eq!(function.register_bytes(), 64);
        assert!(PciFunction::new(0).is_err());
    }

    #[test]
    fn a_line_that_was_raised_before_it_had_a_waker_is_not_lost() {
        let function = PciFunction::new(4).unwrap();
        function.raise_interrupt();
        let parker = Parker::new().unwrap();
        parker.prepare();
        function.set_interrupt_waker(parker.waker());
        parker.park(&[], Nanos::MAX).unwrap();
    }
}
