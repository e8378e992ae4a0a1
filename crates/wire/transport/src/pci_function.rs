//! [`PciFunction`]: a device with registers and an interrupt line, as its host sees it.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use event::Waker;

use mem::{AddressSpace, SharedRegion};

/// A device without NVMe queues. It has a register bank (the mapping of a PCI function's base
/// address register), the memory that the device may access, and one interrupt line. Host and
/// device share it; neither calls the other (ARCHITECTURE.md, R1).
///
/// The bank is plain memory. Registers with write-1-to-set or write-1-to-clear bits are written
/// with [`set_bits`](PciFunction::set_bits) and [`clear_bits`](PciFunction::clear_bits), which
/// apply the device's logic to the word at once. All other effects of a write happen when the
/// device is polled, which [`wake_device`](PciFunction::wake_device) ensures.
#[derive(Debug)]
pub struct PciFunction {
    registers: Arc<SharedRegion>,
    memory: AddressSpace,
    device_waker: OnceLock<Waker>,
    /// The wakers of the users of the interrupt line, by user.
    interrupt_wakers: Mutex<Vec<(u32, Waker)>>,
}

impl PciFunction {
    /// Creates a function with `register_bytes` bytes of registers, all zero.
    ///
    /// # Errors
    /// The error that `mmap(2)` returns; `InvalidInput` for no registers.
    pub fn new(register_bytes: usize) -> io::Result<Arc<PciFunction>> {
        Ok(Arc::new(PciFunction {
            registers: SharedRegion::anonymous(register_bytes)?,
            memory: AddressSpace::default(),
            device_waker: OnceLock::new(),
            interrupt_wakers: Mutex::default(),
        }))
    }

    /// Returns the memory that the device may access.
    pub fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    /// Returns the size of the registers in bytes.
    pub fn register_bytes(&self) -> usize {
        self.registers.len()
    }

    /// Returns the register at `offset`.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 4, or out of range: offsets never come from the other side.
    #[inline]
    pub fn register(&self, offset: usize) -> &AtomicU32 {
        self.registers.atomic_u32(offset)
    }

    /// Reads a register with acquire order: earlier writes of the other side are visible
    /// afterwards.
    #[inline]
    pub fn read(&self, offset: usize) -> u32 {
        self.register(offset).load(Ordering::Acquire)
    }

    /// Writes a register with release order: earlier writes are visible to a reader of the value.
    #[inline]
    pub fn write(&self, offset: usize, value: u32) {
        self.register(offset).store(value, Ordering::Release);
    }

    /// Sets bits of a register and returns its previous value.
    #[inline]
    pub fn set_bits(&self, offset: usize, bits: u32) -> u32 {
        self.register(offset).fetch_or(bits, Ordering::AcqRel)
    }

    /// Clears bits of a register and returns its previous value.
    #[inline]
    pub fn clear_bits(&self, offset: usize, bits: u32) -> u32 {
        self.register(offset).fetch_and(!bits, Ordering::AcqRel)
    }

    /// Sets the waker of the runner that polls the device. Later calls have no effect.
    pub fn set_device_waker(&self, waker: Waker) {
        let _ = self.device_waker.set(waker);
    }

    /// Wakes the device's runner if it is parked. The host calls it after it has written registers.
    #[inline]
    pub fn wake_device(&self) {
        if let Some(waker) = self.device_waker.get() {
            waker.wake();
        }
    }

    /// Sets the waker of a user of the interrupt line instead of the user's previous one, and wakes
    /// it once, because the line may have been raised before. The line wakes all of its users.
    pub fn set_interrupt_waker(&self, user: u32, waker: Waker) {
        let mut wakers = self.interrupt_wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.retain(|(other, _)| *other != user);
        waker.wake();
        wakers.push((user, waker));
    }

    /// Raises the interrupt line.
    #[inline]
    pub fn raise_interrupt(&self) {
        let wakers = self.interrupt_wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.iter().for_each(|(_, waker)| waker.wake());
    }
}

#[cfg(test)]
mod tests {
    use event::Parker;
    use time::Nanos;

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
        function.set_interrupt_waker(0, parker.waker());
        parker.park(&[], Nanos::MAX).unwrap();
    }

    #[test]
    fn an_interrupt_wakes_all_users_of_the_line_by_their_last_waker() {
        let function = PciFunction::new(4096).unwrap();
        let [first, second, old] = std::array::from_fn(|_| Parker::new().unwrap());
        function.set_interrupt_waker(0, first.waker());
        function.set_interrupt_waker(1, old.waker());
        function.set_interrupt_waker(1, second.waker());
        for parker in [&first, &second, &old] {
            parker.prepare();
        }
        function.raise_interrupt();
        first.park(&[], Nanos::MAX).unwrap();
        second.park(&[], Nanos::MAX).unwrap();
        let begin = std::time::Instant::now();
        old.park(&[], Nanos::from_millis(20)).unwrap();
        assert!(begin.elapsed().as_millis() >= 20, "a waker that was replaced is not called");
    }
}
