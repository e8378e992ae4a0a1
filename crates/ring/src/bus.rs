//! [`Bus`]: what a port to a real controller needs of the bus that the controller sits on, and
//! [`BusWindow`]: the addresses that the controller can reach memory by.
//!
//! Registers and doorbells are memory of the controller (NVMe section 3.1, base address register
//! 0). Memory that is registered with such a port is pinned and mapped for the controller at the
//! address that the registration has, so that an I/O virtual address is what the controller's
//! I/O memory management unit translates, and no command pays for a translation of ours.
//!
//! A controller without such a unit in front of it goes to physical addresses, which a region has one per
//! page, if it has any: then commands name pages by [`AddressSpace::wire`](crate::AddressSpace::wire).

use std::sync::Arc;
use std::{fmt, io};

use clock::Waker;

use crate::{Iova, PAGE, Region};

/// Where a controller finds a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// At the address of its registration, in one piece.
    Mapped,
    /// At these addresses, one for each of its pages, which begin with its first byte.
    Pages(Box<[u64]>),
    /// Nowhere: what is there must be copied to where it can be found.
    Nowhere,
}

/// Whose a controller is, as far as its bus knows. It never becomes better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// This process's.
    Ours,
    /// To be let go: the system wants it back, or its bus has failed. It is to be stopped first.
    CalledBack,
    /// Not this process's any more: its memory was taken from it, and its registers may be another's.
    Lost,
}

/// The bus of a real controller: pins memory for it, and brings its interrupts.
pub trait Bus: fmt::Debug + Send + Sync {
    /// Makes all of a region readable and writable for the controller, from `at` on, in whole
    /// pages, if it can, and says where the controller finds it. It stays so until the bus lets go of
    /// the controller.
    ///
    /// # Errors
    /// What the operating system says: no memory that may be locked, pages that cannot be pinned.
    fn map(&self, at: Iova, region: &Region) -> io::Result<Reach>;

    /// Whether [`map`](Bus::map) says anything but [`Reach::Mapped`].
    fn is_by_pages(&self) -> bool {
        false
    }

    /// Makes a zeroed region that the controller can reach once it is mapped. One of 2 MiB at most that is
    /// reached by pages is in one piece for it.
    ///
    /// # Errors
    /// What the operating system says; [`advice`](Bus::advice) has what to do about it.
    fn provide(&self, len: usize) -> io::Result<Arc<Region>> {
        Region::anonymous(len)
    }

    /// What to do when there is no memory of the kind that this bus needs, for people; may be empty.
    fn advice(&self) -> &'static str {
        ""
    }

    /// Interrupt vectors that [`connect`](Bus::connect) takes, 0 to this minus 1; 0 for a controller
    /// whose completions must be looked for.
    fn vectors(&self) -> u16;

    /// Has interrupts of `vector` wake this runner from now on, and no other.
    ///
    /// # Errors
    /// What the operating system says; the vector wakes nobody then.
    fn connect(&self, vector: u16, waker: &Waker) -> io::Result<()>;

    /// Whose the controller is now: asked a few times a second, and while it is waited for.
    fn hold(&self) -> Hold {
        Hold::Ours
    }
}

/// A controller's doorbells: where they are behind its base address register, and how far apart
/// (NVMe sections 3.1.1, CAP.DSTRD, 3.1.24 and 3.1.25).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbells {
    pub(crate) base: usize,
    pub(crate) stride: usize,
}

impl Doorbells {
    /// Offset of the first doorbell of a real controller.
    pub const BASE: usize = 0x1000;

    /// Doorbells with a stride of `4 << dstrd` bytes, behind the registers of a controller.
    pub const fn of_controller(dstrd: u8) -> Doorbells {
        Doorbells { base: Doorbells::BASE, stride: 4 << (dstrd & 0xf) }
    }

    /// Those of a port without registers of hardware.
    pub(crate) const OURS: Doorbells = Doorbells { base: 0, stride: crate::DOORBELL_STRIDE };

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
    pub fn queues_within(self, bytes: usize) -> u16 {
        let queues = bytes.saturating_sub(self.base) / (2 * self.stride);
        queues.min(crate::MAX_QUEUES.into()) as u16
    }
}

/// The addresses by which a controller can reach memory, cut into places of one size: a
/// registration takes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusWindow {
    pub(crate) first: u64,
    pub(crate) shift: u32,
    pub(crate) places: usize,
}

/// Places are cut no smaller than this, 16 MiB: rings and arenas of buffers fit.
const LEAST_SHIFT: u32 = 24;
/// And a window has at least this many, if it can: queues and arenas take one each.
const WANTED_PLACES: u64 = 256;

impl BusWindow {
    /// The places of the largest of `ranges` (first and last address); `None` when none has room
    /// for a registration. Addresses below 1 MiB are left alone: a zeroed entry is an error.
    pub fn largest(ranges: &[(u64, u64)]) -> Option<BusWindow> {
        let size = |(first, last): (u64, u64)| last.saturating_sub(first);
        let usable = ranges.iter().map(|(first, last)| ((*first).max(1 << 20), *last));
        let (first, last) = usable.max_by_key(|range| size(*range))?;
        // The largest places of which there are enough, or the smallest.
        (LEAST_SHIFT..=40).rev().find_map(|shift| {
            let aligned = first.checked_next_multiple_of(1 << shift)?;
            let places = last.checked_sub(aligned)?.saturating_add(1) >> shift;
            let wanted = if shift == LEAST_SHIFT { 1 } else { WANTED_PLACES };
            (places >= wanted).then_some(BusWindow {
                first: aligned,
                shift,
                places: places.min(crate::AddressSpace::CAPACITY as u64) as usize,
            })
        })
    }

    /// Bytes of one registration at most.
    pub fn place_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// Registrations at most.
    pub fn places(&self) -> usize {
        self.places
    }
}

/// Bytes of a region in whole pages: what is mapped for a controller.
pub(crate) fn pages(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

impl Region {
    /// Where the region is in this process and how many bytes it has, in whole pages: what a bus
    /// is told that maps it.
    pub fn whole_pages(&self) -> (*mut u8, usize) {
        (self.base(), pages(self.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_cut_from_what_controllers_can_reach() {
        // 39 bits, with the interrupt range left out, as Intel's units have it.
        let narrow = [(0, 0xfedf_ffff), (0xfef0_0000, (1 << 39) - 1)];
        let window = BusWindow::largest(&narrow).unwrap();
        assert_eq!((window.first, window.shift), (1 << 32, 30));
        assert_eq!(window.places(), 508);
        // 48 bits.
        let wide = [(0, 0xfedf_ffff), (0xfef0_0000, (1 << 48) - 1)];
        let window = BusWindow::largest(&wide).unwrap();
        assert_eq!((window.first, window.shift, window.places()), (1 << 39, 39, 511));
        // 57 bits and more: places are as large as registrations can be.
        let window = BusWindow::largest(&[(0, u64::MAX)]).unwrap();
        assert_eq!((window.first, window.shift, window.places()), (1 << 40, 40, 1024));
        // 32 bits.
        let window = BusWindow::largest(&narrow[..1]).unwrap();
        assert_eq!((window.first, window.shift, window.places()), (1 << 24, 24, 253));
        for none in [&[][..], &[(0, 1 << 20)], &[(5, 4)], &[(0, (1 << 24) - 1)]] {
            assert_eq!(BusWindow::largest(none), None, "{none:?}");
        }
        for ranges in [&narrow[..], &wide, &narrow[..1]] {
            let window = BusWindow::largest(ranges).unwrap();
            let end = window.first + ((window.places as u64) << window.shift) - 1;
            assert!(ranges.iter().any(|r| r.0 <= window.first && end <= r.1), "{window:?}");
        }
    }

    #[test]
    fn doorbells_are_where_the_specification_puts_them() {
        let tight = Doorbells::of_controller(0);
        assert_eq!((tight.submission(0), tight.completion(0)), (0x1000, 0x1004));
        assert_eq!((tight.submission(3), tight.completion(3)), (0x1018, 0x101c));
        let far = Doorbells::of_controller(4);
        assert_eq!((far.submission(1), far.completion(1)), (0x1080, 0x10c0));
        assert_eq!(tight.queues_within(0x2000), 512);
        assert_eq!(tight.queues_within(0x1000), 0);
        assert_eq!(tight.queues_within(16), 0);
        assert_eq!(tight.queues_within(1 << 20), crate::MAX_QUEUES);
        assert_eq!(Doorbells::OURS.completion(1), 3 * crate::DOORBELL_STRIDE);
    }
}
