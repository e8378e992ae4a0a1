//! [`DmaBus`]: the interface between a port and the bus of a real controller; [`DmaWindow`]: the
//! addresses at which the controller can access memory.
//!
//! Registers and doorbells are in the controller's memory (base address register 0) [NVMe1.4 §3.1].
//! Memory registered with such a port is pinned, and mapped for the controller at the address of
//! the registration. The I/O memory management unit (IOMMU) translates I/O virtual addresses, so no
//! command needs a translation in software.
//!
//! A controller without an IOMMU uses physical addresses. A region has one per page, if it has any;
//! then commands name pages by [`AddressSpace::bus_address`](crate::AddressSpace::bus_address).

use std::sync::Arc;
use std::{fmt, io};

use event::Waker;

use crate::{Iova, PAGE_BYTES, SharedRegion};

/// The addresses at which a controller can access a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DmaReach {
    /// At the address of its registration, contiguously.
    Contiguous,
    /// At these addresses, one for each page, starting with the page of the first byte.
    Paged(Box<[u64]>),
    /// Not accessible: data must be copied to accessible memory.
    Unreachable,
}

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
pub trait DmaBus: fmt::Debug + Send + Sync {
    /// Maps a whole region, in whole pages, for reads and writes of the controller from address
    /// `at`, and returns how the controller can access it. The mapping lasts until the bus releases
    /// the controller.
    ///
    /// # Errors
    /// The error of the operating system: the limit of locked memory, or pages that cannot be
    /// pinned.
    fn map(&self, at: Iova, region: &SharedRegion) -> io::Result<DmaReach>;

    /// Whether [`map`](DmaBus::map) may return anything but [`DmaReach::Contiguous`].
    fn is_paged(&self) -> bool {
        false
    }

    /// Allocates a zeroed region that the controller can access once it is mapped. If regions are
    /// accessed by pages, a region of up to 2 MiB is physically contiguous.
    ///
    /// # Errors
    /// The error of the operating system; [`remediation`](DmaBus::remediation) describes the
    /// remedy.
    fn allocate(&self, len: usize) -> io::Result<Arc<SharedRegion>> {
        SharedRegion::anonymous(len)
    }

    /// Returns advice for the user if the memory that this bus needs is not available; may be
    /// empty.
    fn remediation(&self) -> &'static str {
        ""
    }

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

    /// The layout of an emulated controller.
    pub(crate) const EMULATED: DoorbellLayout =
        DoorbellLayout { base: 0, stride: crate::DOORBELL_STRIDE };

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

/// The addresses at which a controller can access memory, divided into spans of equal size; each
/// registration uses one span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaWindow {
    pub(crate) first: u64,
    pub(crate) shift: u32,
    pub(crate) spans: usize,
}

/// Smallest span, 16 MiB: rings and buffer arenas fit.
const SPAN_SHIFT_MIN: u32 = 24;
/// Preferred minimum number of spans: each queue and arena uses one.
const SPANS_WANTED: u64 = 256;

impl DmaWindow {
    /// Divides the largest of `ranges` (first and last address) into spans; `None` if no range has
    /// space for a registration. Addresses below 1 MiB are excluded, so that a zeroed entry is an
    /// error.
    pub fn largest_range(ranges: &[(u64, u64)]) -> Option<DmaWindow> {
        let size = |(first, last): (u64, u64)| last.saturating_sub(first);
        let usable = ranges.iter().map(|(first, last)| ((*first).max(1 << 20), *last));
        let (first, last) = usable.max_by_key(|range| size(*range))?;
        // The largest span size that gives enough spans, or the smallest size.
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

    /// Returns the maximum size of a registration in bytes.
    pub fn span_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// Returns the maximum number of registrations.
    pub fn span_count(&self) -> usize {
        self.spans
    }
}

/// Rounds a length up to whole pages, which is what is mapped for a controller.
pub(crate) fn round_up_to_pages(len: usize) -> usize {
    len.next_multiple_of(PAGE_BYTES)
}

impl SharedRegion {
    /// Returns the address of the region in this process and its size in bytes, in whole pages, for
    /// a bus that maps it.
    pub fn whole_pages(&self) -> (*mut u8, usize) {
        (self.base(), round_up_to_pages(self.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_cut_from_what_controllers_can_reach() {
        // 39 bits without the interrupt range, as in Intel's IOMMUs.
        let narrow = [(0, 0xfedf_ffff), (0xfef0_0000, (1 << 39) - 1)];
        let window = DmaWindow::largest_range(&narrow).unwrap();
        assert_eq!((window.first, window.shift), (1 << 32, 30));
        assert_eq!(window.span_count(), 508);
        // 48 bits.
        let wide = [(0, 0xfedf_ffff), (0xfef0_0000, (1 << 48) - 1)];
        let window = DmaWindow::largest_range(&wide).unwrap();
        assert_eq!((window.first, window.shift, window.span_count()), (1 << 39, 39, 511));
        // 57 bits and more: spans reach the maximum size of a registration.
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
