//! [`DmaMapper`]: makes registered memory accessible to a real controller; [`DmaWindow`]: the
//! addresses at which the controller can access memory.
//!
//! Memory registered with the address space of such a controller is pinned, and mapped for the
//! controller at the address of the registration. The I/O memory management unit (IOMMU) translates
//! I/O virtual addresses, so no command needs a translation in software.
//!
//! A controller without an IOMMU uses physical addresses. A region has one per page, if it has any;
//! then commands name pages by [`AddressSpace::bus_address`].

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::{fmt, io};

use crate::{AddressSpace, Iova, PAGE_BYTES, SharedRegion};

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

/// The part of a real controller's bus that pins and maps memory for it.
pub trait DmaMapper: fmt::Debug + Send + Sync {
    /// Maps a whole region, in whole pages, for reads and writes of the controller from address
    /// `at`, and returns how the controller can access it. The mapping lasts until the bus releases
    /// the controller.
    ///
    /// # Errors
    /// The error of the operating system: the limit of locked memory, or pages that cannot be
    /// pinned.
    fn map(&self, at: Iova, region: &SharedRegion) -> io::Result<DmaReach>;

    /// Whether [`map`](DmaMapper::map) may return anything but [`DmaReach::Contiguous`].
    fn is_paged(&self) -> bool {
        false
    }

    /// Allocates a zeroed region that the controller can access once it is mapped. If regions are
    /// accessed by pages, a region of up to 2 MiB is physically contiguous.
    ///
    /// # Errors
    /// The error of the operating system; [`remediation`](DmaMapper::remediation) describes the
    /// remedy.
    fn allocate(&self, len: usize) -> io::Result<Arc<SharedRegion>> {
        SharedRegion::anonymous(len)
    }

    /// Returns advice for the user if the memory that this bus needs is not available; may be
    /// empty.
    fn remediation(&self) -> &'static str {
        ""
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
    /// Divides the largest of `ranges` of addresses into spans; `None` if no range has space for a
    /// registration. Addresses below 1 MiB are excluded, so that a zeroed entry is an error.
    pub fn largest_range(ranges: &[RangeInclusive<u64>]) -> Option<DmaWindow> {
        let size = |(first, last): (u64, u64)| last.saturating_sub(first);
        let usable = ranges.iter().map(|range| ((*range.start()).max(1 << 20), *range.end()));
        let (first, last) = usable.max_by_key(|range| size(*range))?;
        // The largest span size that gives enough spans, or the smallest size.
        (SPAN_SHIFT_MIN..=40).rev().find_map(|shift| {
            let aligned = first.checked_next_multiple_of(1 << shift)?;
            let places = last.checked_sub(aligned)?.saturating_add(1) >> shift;
            let wanted = if shift == SPAN_SHIFT_MIN { 1 } else { SPANS_WANTED };
            (places >= wanted).then_some(DmaWindow {
                first: aligned,
                shift,
                spans: places.min(AddressSpace::CAPACITY as u64) as usize,
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
fn round_up_to_pages(len: usize) -> usize {
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
        let narrow = [0..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1];
        let window = DmaWindow::largest_range(&narrow).unwrap();
        assert_eq!((window.first, window.shift), (1 << 32, 30));
        assert_eq!(window.span_count(), 508);
        // 48 bits.
        let wide = [0..=0xfedf_ffff, 0xfef0_0000..=(1 << 48) - 1];
        let window = DmaWindow::largest_range(&wide).unwrap();
        assert_eq!((window.first, window.shift, window.span_count()), (1 << 39, 39, 511));
        // 57 bits and more: spans reach the maximum size of a registration.
        let window = DmaWindow::largest_range(&[0..=u64::MAX]).unwrap();
        assert_eq!((window.first, window.shift, window.span_count()), (1 << 40, 40, 1024));
        // 32 bits.
        let window = DmaWindow::largest_range(&narrow[..1]).unwrap();
        assert_eq!((window.first, window.shift, window.span_count()), (1 << 24, 24, 253));
        let reversed = RangeInclusive::new(5, 4);
        for none in [&[][..], &[0..=1 << 20], &[reversed], &[0..=(1 << 24) - 1]] {
            assert_eq!(DmaWindow::largest_range(none), None, "{none:?}");
        }
        for ranges in [&narrow[..], &wide, &narrow[..1]] {
            let window = DmaWindow::largest_range(ranges).unwrap();
            let end = window.first + ((window.spans as u64) << window.shift) - 1;
            assert!(
                ranges.iter().any(|r| r.contains(&window.first) && r.contains(&end)),
                "{window:?}"
            );
        }
    }
}
