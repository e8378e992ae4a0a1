//! [`AhciInterrupt`]: the controller's one interrupt line, and what the ports of a controller share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clock::Waker;
use ring::PciFunction;
use sata::hba::{self, ghc};
use sata::{PORTS_MAX, port};

/// What the queues of a controller and its interrupt service share.
#[derive(Debug)]
pub(super) struct HbaShared {
    pub(super) function: Arc<PciFunction>,
    /// By port: error bits of PxIS that were acknowledged and that the port has not seen yet, in the
    /// lower half; the upper half counts how often the port has forgotten them, so that what was
    /// read from PxIS before is not filed after.
    errors: [AtomicU64; PORTS_MAX],
}

/// One in the upper half.
const ERROR_EPOCH_ONE: u64 = 1 << 32;

impl HbaShared {
    pub(super) fn new(function: Arc<PciFunction>) -> HbaShared {
        HbaShared { function, errors: [const { AtomicU64::new(0) }; PORTS_MAX] }
    }

    /// Clears PxIS of `ports` and then their bits of IS, in this order (AHCI 1.3.1 section 10.7):
    /// what happens in between sets the bit of IS once more.
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
        // What the controller would do by itself at once, it does when it looks: set a bit again
        // that was cleared too early, or raise the line for the ports that are left.
        if left != 0 || self.is_still_pending(ports) {
            self.function.wake_device();
        }
    }

    /// Whether one of `ports` has reason to set its bit of IS.
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

    /// Files error bits that were read when the port's word was `known`. PxIS.PCS and PRCS show
    /// PxSERR and go with it (AHCI 1.3.1 section 3.3.5).
    #[cold]
    fn latch_errors(&self, index: usize, known: u64, bits: u32) {
        let errors = &self.errors[index];
        // A failure leaves the word as the port made it: the bits are old.
        let _ = errors.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            (now / ERROR_EPOCH_ONE == known / ERROR_EPOCH_ONE).then_some(now | u64::from(bits))
        });
        let changes = port::serr::DIAG_N | port::serr::DIAG_X;
        self.function.clear_bits(hba::port(index, port::SERR), changes);
    }

    /// Error bits of a port that were acknowledged since the last call.
    #[inline]
    pub(super) fn drain_errors(&self, index: u8) -> u32 {
        let errors = &self.errors[usize::from(index) % PORTS_MAX];
        if errors.load(Ordering::Relaxed) as u32 == 0 {
            return 0;
        }
        errors.fetch_and(!(ERROR_EPOCH_ONE - 1), Ordering::AcqRel) as u32
    }

    /// Forgets the error bits of a port, which has cleared PxIS, and those that somebody has read
    /// but not filed.
    pub(super) fn clear_errors(&self, index: u8) {
        let errors = &self.errors[usize::from(index) % PORTS_MAX];
        errors.fetch_add(ERROR_EPOCH_ONE, Ordering::AcqRel);
        errors.fetch_and(!(ERROR_EPOCH_ONE - 1), Ordering::AcqRel);
    }
}

/// The controller's interrupt, as its service routine sees it: any number of clones, from any
/// thread, without lock.
///
/// The controller raises the line when a port's bit appears in IS and interrupts are enabled. It
/// does so once per appearance, so a service routine goes on until nothing is
/// [`pending`](AhciInterrupt::pending):
///
/// 1. `ports = pending()`
/// 2. `acknowledge(ports)`
/// 3. [`fetch_event`](crate::HardwareQueue::fetch_event) of these ports until there is none.
///
/// Acknowledging first means that what ends during step 3 raises the line again at worst, and is
/// never missed.
#[derive(Clone, Debug)]
pub struct AhciInterrupt {
    shared: Arc<HbaShared>,
}

impl AhciInterrupt {
    pub(super) fn new(shared: Arc<HbaShared>) -> AhciInterrupt {
        AhciInterrupt { shared }
    }

    /// The ports that have something to say, one bit each, by port number
    /// ([`AhciPort::port`](super::AhciPort::port)). Does not depend on the mask.
    #[inline]
    pub fn pending(&self) -> u32 {
        self.shared.function.read(hba::IS)
    }

    /// Takes the interrupts of `ports` back. Errors among them are kept for the port, which finds
    /// them with its next look.
    #[inline]
    pub fn acknowledge(&self, ports: u32) {
        self.shared.acknowledge(ports);
    }

    /// Disables the controller's interrupts (GHC.IE), for who polls.
    pub fn mask(&self) {
        self.shared.function.clear_bits(hba::GHC, ghc::IE);
    }

    /// Enables them. What is pending raises the line at once.
    pub fn unmask(&self) {
        self.shared.function.set_bits(hba::GHC, ghc::IE);
        self.shared.function.wake_device();
    }

    /// Whether they are disabled.
    pub fn is_masked(&self) -> bool {
        self.shared.function.read(hba::GHC) & ghc::IE == 0
    }

    /// Says whom the line wakes, and wakes it once. There is one line: later calls, and
    /// [`set_waker`](crate::HardwareQueue::set_waker) of any port after it, are ignored.
    pub fn set_line(&self, waker: Waker) {
        self.shared.function.set_interrupt_waker(waker);
    }
}
