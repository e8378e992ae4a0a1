//! [`Bus`]: what a port to a real controller needs of the bus that the controller sits on, and
//! [`DmaWindow`]: the addresses that the controller can reach memory by.
//!
//! Registers and doorbells are memory of the controller (NVMe section 3.1, base address register
//! 0). Memory that is registered with such a port is pinned and mapped for the controller at the
//! address that the registration has, so that an I/O virtual address is what the controller's
//! I/O memory management unit translates, and no command pays for a translation of ours.
//!
//! A controller without such a unit in front of it goes to physical addresses, which a region has one per
//! page, if it has any: then commands name pages by [`AddressSpace::bus_address`](crate::AddressSpace::bus_address).

use std::sync::Arc;
use std::{fmt, io};

use clock::Waker;

use crate::{Iova, PAGE_BYTES, SharedRegion};

/// Where a controller finds a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DmaReach {
    /// At the address of its registration, in one piece.
    Contiguous,
    /// At these addresses, one for each of its pages, which begin with its first byte.
    Paged(Box<[u64]>),
    /// Nowhere: what is there must be copied to where it can be found.
    Unreachable,
}

/// Whose a controller is, as far as its bus knows. It never becomes better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerOwnership {
    /// This process's.
    Owned,
    /// To be let go: the system wants it back, or its bus has failed. It is to be stopped first.
    ReleaseRequested,
    /// Not this process's any more: its memory was taken from it, and its registers may be another's.
    Lost,
}

/// The bus of a real controller: pins memory for it, and brings its interrupts.
pub trait DmaBus: fmt::Debug + Send + Sync {
    /// Makes all of a region readable and writable for the controller, from `at` on, in whole
    /// pages, if it can, and says where the controller finds it. It stays so until the bus lets go of
    /// the controller.
    ///
    /// # Errors
    /// What the operating system says: no memory that may be locked, pages that cannot be pinned.
    fn map(&self, at: Iova, region: &SharedRegion) -> io::Result<DmaReach>;

    /// Whether [`map`](Bus::map) says anything but [`DmaReach::Contiguous`].
    fn is_paged(&self) -> bool {
        false
    }

    /// Makes a zeroed region that the controller can reach once it is mapped. One of 2 MiB at most that is
    /// reached by pages is in one piece for it.
    ///
    /// # Errors
    /// What the operating system says; [`advice`](DmaBus::remediation) has what to do about it.
    fn allocate(&self, len: usize) -> io::Result<Arc<SharedRegion>> {
        SharedRegion::anonymous(len)
    }

    /// What to do when there is no memory of the kind that this bus needs, for people; may be empty.
    fn remediation(&self) -> &'static str {
        ""
    }

    /// Interrupt vectors that [`connect`](DmaBus::bind_vector) takes, 0 to this minus 1; 0 for a controller
    /// whose completions must be looked for.
    fn vectors(&self) -> u16;

    /// Has interrupts of `vector` wake this runner from now on, and no other.
    ///
    /// # Errors
    /// What the operating system says; the vector wakes nobody then.
    fn bind_vector(&self, vector: u16, waker: &Waker) -> io::Result<()>;

    /// Whose the controller is now: asked a few times a second, and while it is waited for.
    fn ownership(&self) -> ControllerOwnership {
        ControllerOwnership::Owned
    }
}

/// A controller's doorbells: where they are behind its base address register, and how far apart
/// (NVMe sections 3.1.1, CAP.DSTRD, 3.1.24 and 3.1.25).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoorbellLayout {
    pub(crate) base: usize,
    pub(crate) stride: usize,
}

impl DoorbellLayout {
    /// Offset of the first doorbell of a real controller.
    pub const BASE: usize = 0x1000;

    /// Doorbells with a stride of `4 << dstrd` bytes, behind the registers of a controller.
    pub const fn from_dstrd(dstrd: u8) -> DoorbellLayout {
        DoorbellLayout { base: DoorbellLayout::BASE, stride: 4 << (dstrd & 0xf) }
    }

    /// Those of a port without registers of hardware.
    pub(crate) const EMULATED: DoorbellLayout =
        DoorbellLayout { base: 0, stride: crate::DOORBELL_STRIDE };

    /// Offset of a submission queue's tail doorbell.
    pub(crate) const fn submission(self, qid: u16) -> usize {
        self.base + 2 * qid as usize * self.stride
    }

    /// Offset of a completion queue's head doorbell.
    pub(crate) const fn completion(self, qid: u16) -> usize {
        self.base + (2 * qid as usize + 1) * self.stride
    }

    /// Queues, the admin queue included, whose doorbells are within `bytes` bytes of the base
    /// address register.
    pub fn max_queues_for_bar(self, bytes: usize) -> u16 {
        let queues = bytes.saturating_sub(self.base) / (2 * self.stride);
        queues.min(crate::MAX_QUEUES.into()) as u16
    }
}

/// The addresses by which a controller can reach memory, cut into places of one size: a
/// registration takes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaWindow {
    pub(crate) first: u64,
    pub(crate) shift: u32,
    pub(crate) spans: usize,
}

/// Places are cut no smaller than this, 16 MiB: rings and arenas of buffers fit.
const SPAN_SHIFT_MIN: u32 = 24;
/// And a window has at least this many, if it can: queues and arenas take one each.
const SPANS_WANTED: u64 = 256;

impl DmaWindow {
    /// The places of the largest of `ranges` (first and last address); `None` when none has room
    /// for a registration. Addresses below 1 MiB are left alone: a zeroed entry is an error.
    pub fn largest_range(ranges: &[(u64, u64)]) -> Option<DmaWindow> {
        let size = |(first, last): (u64, u64)| last.saturating_sub(first);
        let usable = ranges.iter().map(|(first, last)| ((*first).max(1 << 20), *last));
        let (first, last) = usable.max_by_key(|range| size(*range))?;
        // The largest places of which there are enough, or the smallest.
        (SPAN_SHIFT_MIN..=40).rev().find_map(|shift| {
            let aligned = first.checked_next_multiple_of(1 << shift)?;
            let places = last.checked_sub(aligned)?.saturating_add(1) >> shift;
            let wanted = if shift == SPAN_SHIFT_MIN { 1 } else { SPANS_WANTED };
            (places >= wanted).then_some(DmaWindow {
                first: aligned,
                shift,
                spans: places.min(crate::AddressSpace::CAPACITY as u64) as usize,
            })
        })
    }

    /// Bytes of one registration at most.
    pub fn span_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// Registrations at most.
    pub fn span_count(&self) -> usize {
        self.spans
    }
}

/// Bytes of a region in whole pages: what is mapped for a controller.
pub(crate) fn round_up_to_pages(len: usize) -> usize {
    len.next_multiple_of(PAGE_BYTES)
}

impl SharedRegion {
    /// Where the region is in this process and how many bytes it has, in whole pages: what a bus
    /// is told that maps it.
    pub fn whole_pages(&self) -> (*mut u8, usize) {
        (self.base(), round_up_to_pages(self.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_cut_from_what_controllers_can_reach() {
        // 39 bits, with the interrupt range left out, as Intel's units have it.
        let narrow = [(0, 0xfedf_ffff), (0xfef0_0000, (1 << 39) - 1)];
        let window = DmaWindow::largest_range(&narrow).unwrap();
        assert_eq!((window.first, window.shift), (1 << 32, 30));
        assert_eq!(window.span_count(), 508);
        // 48 bits.
        let wide = [(0, 0xfedf_ffff), (0xfef0_0000, (1 << 48) - 1)];
        let window = DmaWindow::largest_range(&wide).unwrap();
        assert_eq!((window.first, window.shift, window.span_count()), (1 << 39, 39, 511));
        // 57 bits and more: places are as large as registrations can be.
        let window = DmaWindow::largest_range(&[(0, u64::MAX)]).unwrap();
        assert_eq!((window.first, window.shift, window.span_count()), (1 << 40, 40, 1024));
        // 32 bits.
        let window = DmaWindow::largest_range(&narrow[..1]).unwrap();
        assert_eq!((window.first, window.shift, window.span_count()), (1 << 24, 24, 253));
        for none in [&[][..], &[(0, 1 << 20)], &[(5, 4)], &[(0, (1 << 24) - 1)]] {
            assert_eq!(DmaWindow::largest_range(none), None, "{none:?}");
        }
        for ranges in [&narrow[..], &wide, &narrow[..1]] {
            let window = DmaWindow::largest_range(ranges).unwrap();
            let end = window.first + ((window.spans as u64) << window.shift) - 1;
            assert!(ranges.iter().any(|r| r.0 <= window.first && end <= r.1), "{window:?}");
        }
    }

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
