//! [`AhciInterrupt`]: the controller's interrupt line, and the state that its ports share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ahci::hba::{self, ghc};
use ahci::{PORTS_MAX, port};
use event::Waker;
use transport::PciFunction;

/// The user of the interrupt line that is no port.
const LINE: u32 = u32::MAX;

/// State shared by the queues of a controller and its interrupt handler.
#[derive(Debug)]
pub(super) struct HbaShared {
    pub(super) function: Arc<PciFunction>,
    /// Per port: the lower half has error bits of PxIS that were acknowledged and that the port has
    /// not handled. The upper half counts how often the port has cleared them, so that bits read
    /// from PxIS before are not stored afterwards.
    errors: [AtomicU64; PORTS_MAX],
}

/// The value 1 in the upper half.
const ERROR_EPOCH_ONE: u64 = 1 << 32;

impl HbaShared {
    pub(super) fn new(function: Arc<PciFunction>) -> HbaShared {
        HbaShared { function, errors: [const { AtomicU64::new(0) }; PORTS_MAX] }
    }

    /// Clears PxIS of `ports` and then their bits of IS, in this order ([AHCI1.3 §10.7]): an event
    /// in between sets the bit of IS again.
    #[inline]
    pub(super) fn acknowledge(&self, ports: u32) {
        let mut left = ports;
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            if hba::port(index + 1, 0) > self.function.register_bytes() {
                continue;
            }
            let register = hba::port(index, port::IS);
            let known = self.errors[index].load(Ordering::Acquire);
            let bits = self.function.read(register);
            if bits & port::is::ERRORS != 0 {
                self.latch_errors(index, known, bits & port::is::ERRORS);
            }
            self.function.clear_bits(register, bits);
        }
        let left = self.function.clear_bits(hba::IS, ports) & !ports;
        // Wake the emulated controller for work that hardware would do at once. It sets a bit again
        // that was cleared too early, or raises the line for the remaining ports.
        if left != 0 || self.is_still_pending(ports) {
            self.function.wake_device();
        }
    }

    /// Returns whether one of `ports` has a reason to set its bit of IS.
    #[inline]
    fn is_still_pending(&self, ports: u32) -> bool {
        let mut left = ports;
        let mut again = 0;
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            if hba::port(index + 1, 0) <= self.function.register_bytes() {
                let read = |register| self.function.read(hba::port(index, register));
                again |= read(port::IS) & read(port::IE);
            }
        }
        again != 0
    }

    /// Stores error bits that were read when the port's word was `known`. PxIS.PCS and PRCS reflect
    /// PxSERR and are cleared there ([AHCI1.3 §3.3.5]).
    #[cold]
    fn latch_errors(&self, index: usize, known: u64, bits: u32) {
        let errors = &self.errors[index];
        // On a failure the port has cleared the errors since: the bits are old.
        let _ = errors.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            (now / ERROR_EPOCH_ONE == known / ERROR_EPOCH_ONE).then_some(now | u64::from(bits))
        });
        let changes = port::serr::DIAG_N | port::serr::DIAG_X;
        self.function.clear_bits(hba::port(index, port::SERR), changes);
    }

    /// Removes and returns the error bits of a port that were acknowledged since the last call.
    #[inline]
    pub(super) fn drain_errors(&self, index: u8) -> u32 {
        let errors = &self.errors[usize::from(index) % PORTS_MAX];
        if errors.load(Ordering::Relaxed) as u32 == 0 {
            return 0;
        }
        errors.fetch_and(!(ERROR_EPOCH_ONE - 1), Ordering::AcqRel) as u32
    }

    /// Clears the error bits of a port that has cleared PxIS, and invalidates bits that an
    /// interrupt handler has read but not stored.
    pub(super) fn clear_errors(&self, index: u8) {
        let errors = &self.errors[usize::from(index) % PORTS_MAX];
        errors.fetch_add(ERROR_EPOCH_ONE, Ordering::AcqRel);
        errors.fetch_and(!(ERROR_EPOCH_ONE - 1), Ordering::AcqRel);
    }
}

/// The controller's interrupt, for its interrupt handler. It may be cloned and used from any thread
/// without a lock.
///
/// The controller raises the line when a port's bit appears in IS and interrupts are enabled, once
/// per appearance. An interrupt handler therefore repeats these steps until nothing is
/// [`pending`](AhciInterrupt::pending):
///
/// 1. `ports = pending()`
/// 2. `acknowledge(ports)`
/// 3. [`fetch_event`](crate::HardwareQueue::fetch_event) of these ports until there is none.
///
/// Because the handler acknowledges first, a completion during step 3 is never missed; at worst it
/// raises the line again.
#[derive(Clone, Debug)]
pub struct AhciInterrupt {
    shared: Arc<HbaShared>,
}

impl AhciInterrupt {
    pub(super) fn new(shared: Arc<HbaShared>) -> AhciInterrupt {
        AhciInterrupt { shared }
    }

    /// Returns the ports with pending interrupts, one bit each, by port number
    /// ([`AhciPort::port`](super::AhciPort::port)). Does not depend on the mask.
    #[inline]
    pub fn pending(&self) -> u32 {
        self.shared.function.read(hba::IS)
    }

    /// Acknowledges the interrupts of `ports`. Error bits are stored for the port, which handles
    /// them at its next poll.
    #[inline]
    pub fn acknowledge(&self, ports: u32) {
        self.shared.acknowledge(ports);
    }

    /// Disables the controller's interrupts (GHC.IE), for polling.
    pub fn mask(&self) {
        self.shared.function.clear_bits(hba::GHC, ghc::IE);
    }

    /// Enables the controller's interrupts. Pending ones raise the line at once.
    pub fn unmask(&self) {
        self.shared.function.set_bits(hba::GHC, ghc::IE);
        self.shared.function.wake_device();
    }

    /// Returns whether the controller's interrupts are disabled.
    pub fn is_masked(&self) -> bool {
        self.shared.function.read(hba::GHC) & ghc::IE == 0
    }

    /// Sets the waker of the line, and wakes it once. A later call replaces it. Ports may have
    /// wakers in addition ([`set_waker`](crate::HardwareQueue::set_waker)).
    pub fn set_line(&self, waker: Waker) {
        self.shared.function.set_interrupt_waker(LINE, waker);
    }
}
