//! [`DmaBus`]: the interface between a port and the bus of a real controller.
//!
//! Registers and doorbells are in the controller's memory (base address register 0) [NVMe1.4 §3.1].
//! The bus maps registered memory for the controller ([`DmaMapper`]).

use std::io;

use event::Waker;
use mem::DmaMapper;

/// The ownership of a controller, as its bus reports it. It never improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerOwnership {
    /// This process owns the controller.
    Owned,
    /// The process must release the controller, after stopping it: the system requests it, or the
    /// bus has failed.
    ReleaseRequested,
    /// The controller is lost: its DMA mappings are gone, and its registers may belong to another
    /// process.
    Lost,
}

/// The bus of a real controller: pins memory for it, and delivers its interrupts.
pub trait DmaBus: DmaMapper {
    /// Returns the number of interrupt vectors for [`bind_vector`](DmaBus::bind_vector); 0 if the
    /// controller must be polled.
    fn vectors(&self) -> u16;

    /// Binds interrupts of `vector` to a runner, replacing an earlier one.
    ///
    /// # Errors
    /// The error of the operating system; then the vector wakes no runner.
    fn bind_vector(&self, vector: u16, waker: &Waker) -> io::Result<()>;

    /// Returns the ownership of the controller. Drivers call it a few times per second, and while
    /// they wait.
    fn ownership(&self) -> ControllerOwnership {
        ControllerOwnership::Owned
    }
}

/// The doorbell layout of a controller: their offset behind its base address register, and their
/// stride [NVMe1.4 §3.1.1, CAP.DSTRD, §3.1.24, §3.1.25].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorbellLayout {
    pub(crate) base: usize,
    pub(crate) stride: usize,
}

impl DoorbellLayout {
    /// Offset of a real controller's first doorbell.
    pub const BASE: usize = 0x1000;

    /// Returns the layout with a stride of `4 << dstrd` bytes, behind the controller registers.
    pub const fn from_dstrd(dstrd: u8) -> DoorbellLayout {
        DoorbellLayout { base: DoorbellLayout::BASE, stride: 4 << (dstrd & 0xf) }
    }

    /// The layout of an emulated controller without registers.
    pub(crate) const EMULATED: DoorbellLayout =
        DoorbellLayout { base: 0, stride: crate::DOORBELL_STRIDE };

    /// Returns the layout of an emulated controller: with registers, as a real one's.
    pub(crate) const fn of_emulated(has_registers: bool) -> DoorbellLayout {
        if has_registers {
            DoorbellLayout::from_dstrd(crate::port::DOORBELL_DSTRD)
        } else {
            DoorbellLayout::EMULATED
        }
    }

    /// Returns the offset of a submission queue's tail doorbell.
    pub(crate) const fn submission(self, qid: u16) -> usize {
        self.base + 2 * qid as usize * self.stride
    }

    /// Returns the offset of a completion queue's head doorbell.
    pub(crate) const fn completion(self, qid: u16) -> usize {
        self.base + (2 * qid as usize + 1) * self.stride
    }

    /// Returns the number of queues, admin queue included, whose doorbells fit in `bytes` bytes of
    /// the base address register.
    pub fn max_queues_for_bar(self, bytes: usize) -> u16 {
        let queues = bytes.saturating_sub(self.base) / (2 * self.stride);
        queues.min(crate::MAX_QUEUES.into()) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_are_where_the_specification_puts_them() {
        let tight = DoorbellLayout::from_dstrd(0);
        assert_eq!((tight.submission(0), tight.completion(0)), (0x1000, 0x1004));
        assert_eq!((tight.submission(3), tight.completion(3)), (0x1018, 0x101c));
        let far = DoorbellLayout::from_dstrd(4);
        assert_eq!((far.submission(1), far.completion(1)), (0x1080, 0x10c0));
        assert_eq!(tight.max_queues_for_bar(0x2000), 512);
        assert_eq!(tight.max_queues_for_bar(0x1000), 0);
        assert_eq!(tight.max_queues_for_bar(16), 0);
        assert_eq!(tight.max_queues_for_bar(1 << 20), crate::MAX_QUEUES);
        assert_eq!(DoorbellLayout::EMULATED.completion(1), 3 * crate::DOORBELL_STRIDE);
    }
}
