//! [`PayloadPool`]: the registered memory for payloads. It is bounded; requests that find it empty wait in
//! arrival order, so that a long request is not starved.
//!
//! There are three size classes by request length, each a buddy allocator of pages, so that short
//! requests do not wait for a slow client's long transfer. Memory of the first class is held only
//! while a request is in the device: small payloads wait for slow clients in the receive buffer
//! before, and in the send queue after. Small requests therefore never wait for another client's
//! socket.

use std::collections::VecDeque;
use std::sync::Arc;

use mem::{Iova, PAGE_BYTES, SharedRegion};

/// Longest request of the first class.
pub(super) const SMALL_BYTES_MAX: u32 = 64 << 10;
/// Longest request of the second class; the third has the rest.
pub(super) const MEDIUM_BYTES_MAX: u32 = 1 << 20;
/// Number of size classes, and quarters of the pool in each.
pub(super) const SIZE_CLASSES: usize = 3;
const CLASS_QUARTERS: [usize; SIZE_CLASSES] = [1, 1, 2];

/// A block of the pool. It must be returned by [`PayloadPool::free`]; it is deliberately not
/// `Clone`.
#[derive(Debug)]
#[must_use = "a buffer that is dropped is lost to the pool"]
pub(super) struct PayloadBuffer {
    size_class: usize,
    page: u32,
    order: u8,
}

/// The payload memory and its wait queues (`W` identifies a waiter).
#[derive(Debug)]
pub(super) struct PayloadPool<W> {
    region: Arc<SharedRegion>,
    base: Iova,
    quarter_bytes: usize,
    classes: [SizeClass<W>; SIZE_CLASSES],
}

#[derive(Debug)]
struct SizeClass<W> {
    buddy: Buddy,
    waiters: VecDeque<(W, u32)>,
}

impl<W: Copy> PayloadPool<W> {
    /// Returns the bytes of a quarter for a configured `pool_bytes`: a power of two, at least 1
    /// MiB.
    pub(super) fn quarter_bytes(pool_bytes: usize) -> usize {
        let quarter = (pool_bytes / 4).clamp(MEDIUM_BYTES_MAX as usize, 1 << 30);
        1 << quarter.ilog2()
    }

    /// Creates a pool in `region`, which is registered at `base` and has four times
    /// [`quarter_bytes`](PayloadPool::quarter_bytes) bytes.
    pub(super) fn new(region: Arc<SharedRegion>, base: Iova) -> PayloadPool<W> {
        let quarter_bytes = region.len() / 4;
        let classes = CLASS_QUARTERS.map(|quarters| SizeClass {
            buddy: Buddy::new(quarters * quarter_bytes / PAGE_BYTES),
            waiters: VecDeque::new(),
        });
        PayloadPool { region, base, quarter_bytes, classes }
    }

    /// Returns the size class of a request of `len` bytes.
    pub(super) fn size_class_for(len: u32) -> usize {
        usize::from(len > SMALL_BYTES_MAX) + usize::from(len > MEDIUM_BYTES_MAX)
    }

    /// Allocates a buffer of `len` bytes. Returns `None` if memory is short or another request
    /// waits for it.
    pub(super) fn alloc(&mut self, len: u32) -> Option<PayloadBuffer> {
        let area = Self::size_class_for(len);
        if !self.classes[area].waiters.is_empty() {
            return None;
        }
        self.allocate_from(area, len)
    }

    fn allocate_from(&mut self, area: usize, len: u32) -> Option<PayloadBuffer> {
        let pages = (len as usize).div_ceil(PAGE_BYTES).max(1).next_power_of_two();
        let order = pages.ilog2() as u8;
        let page = self.classes[area].buddy.alloc(order)?;
        Some(PayloadBuffer { size_class: area, page, order })
    }

    /// Queues for a buffer of `len` bytes, which [`pop_granted`](PayloadPool::pop_granted) returns.
    pub(super) fn wait(&mut self, who: W, len: u32) {
        self.classes[Self::size_class_for(len)].waiters.push_back((who, len));
    }

    /// Allocates a buffer for the longest waiter of a class, if there is enough memory. Removes
    /// waiters that are no longer `alive`.
    pub(super) fn pop_granted(&mut self, alive: impl Fn(W) -> bool) -> Option<(W, PayloadBuffer)> {
        for area in 0..self.classes.len() {
            while let Some(&(who, len)) = self.classes[area].waiters.front() {
                if !alive(who) {
                    self.classes[area].waiters.pop_front();
                    continue;
                }
                let Some(buffer) = self.allocate_from(area, len) else {
                    break;
                };
                self.classes[area].waiters.pop_front();
                return Some((who, buffer));
            }
        }
        None
    }

    /// Returns whether a request waits.
    pub(super) fn has_waiters(&self) -> bool {
        self.classes.iter().any(|a| !a.waiters.is_empty())
    }

    /// Frees a buffer.
    pub(super) fn free(&mut self, buffer: PayloadBuffer) {
        self.classes[buffer.size_class].buddy.free(buffer.page, buffer.order);
    }

    /// Returns the bytes in use.
    pub(super) fn in_use(&self) -> u64 {
        self.classes.iter().map(|a| a.buddy.used_pages as u64 * PAGE_BYTES as u64).sum()
    }

    fn offset(&self, buffer: &PayloadBuffer) -> usize {
        let quarters: usize = CLASS_QUARTERS[..buffer.size_class].iter().sum();
        quarters * self.quarter_bytes + buffer.page as usize * PAGE_BYTES
    }

    /// Returns the buffer's address for the device.
    pub(super) fn iova(&self, buffer: &PayloadBuffer) -> Iova {
        self.base.offset(self.offset(buffer) as u64)
    }

    /// Copies bytes into the buffer.
    pub(super) fn write(&self, buffer: &PayloadBuffer, at: usize, from: &[u8]) {
        debug_assert!(at + from.len() <= PAGE_BYTES << buffer.order, "within the buffer");
        self.region.write(self.offset(buffer) + at, from);
    }

    /// Copies bytes out of the buffer.
    pub(super) fn read(&self, buffer: &PayloadBuffer, at: usize, into: &mut [u8]) {
        debug_assert!(at + into.len() <= PAGE_BYTES << buffer.order, "within the buffer");
        self.region.read(self.offset(buffer) + at, into);
    }
}

impl PayloadBuffer {
    /// Returns the bytes of the pool that the buffer occupies.
    pub(super) fn footprint(&self) -> usize {
        PAGE_BYTES << self.order
    }

    /// Returns the size class.
    pub(super) fn size_class(&self) -> usize {
        self.size_class
    }
}

const ORDERS: usize = 20;
const NOT_FREE: u8 = u8::MAX;

/// A buddy allocator of pages: a free block of order `o` is `1 << o` pages, aligned to its size.
/// Freed blocks are reused last in, first out, so that short requests stay in cached memory.
#[derive(Debug)]
struct Buddy {
    /// Free blocks by order.
    free: [Vec<u32>; ORDERS],
    /// Per page: the order of the free block that starts there, or [`NOT_FREE`].
    order: Vec<u8>,
    /// Per page that starts a free block: its index in `free[order]`.
    free_index: Vec<u32>,
    used_pages: usize,
}

impl Buddy {
    /// Creates an allocator; `pages` must be a power of two.
    fn new(pages: usize) -> Buddy {
        assert!(pages.is_power_of_two() && pages.ilog2() < ORDERS as u32, "checked at start");
        let mut buddy = Buddy {
            free: std::array::from_fn(|_| Vec::new()),
            order: vec![NOT_FREE; pages],
            free_index: vec![0; pages],
            used_pages: 0,
        };
        buddy.push(0, pages.ilog2() as u8);
        buddy
    }

    fn push(&mut self, page: u32, order: u8) {
        let list = &mut self.free[usize::from(order)];
        self.order[page as usize] = order;
        self.free_index[page as usize] = list.len() as u32;
        list.push(page);
    }

    fn remove(&mut self, page: u32, order: u8) {
        let list = &mut self.free[usize::from(order)];
        let place = self.free_index[page as usize];
        list.swap_remove(place as usize);
        if let Some(moved) = list.get(place as usize) {
            self.free_index[*moved as usize] = place;
        }
        self.order[page as usize] = NOT_FREE;
    }

    fn alloc(&mut self, order: u8) -> Option<u32> {
        let from = (usize::from(order)..ORDERS).find(|o| !self.free[*o].is_empty())?;
        let page = *self.free[from].last()?;
        self.remove(page, from as u8);
        for o in (usize::from(order)..from).rev() {
            self.push(page + (1 << o), o as u8);
        }
        self.used_pages += 1 << order;
        Some(page)
    }

    fn free(&mut self, mut page: u32, mut order: u8) {
        debug_assert_eq!(self.order[page as usize], NOT_FREE, "freed twice");
        self.used_pages -= 1 << order;
        loop {
            let buddy = page ^ (1 << order);
            if self.order.get(buddy as usize) != Some(&order) {
                break;
            }
            self.remove(buddy, order);
            page &= !(1 << order);
            order += 1;
        }
        self.push(page, order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mem::AddressSpace;

    fn pool(bytes: usize) -> PayloadPool<u32> {
        let space = AddressSpace::default();
        let region = SharedRegion::anonymous(4 * PayloadPool::<u32>::quarter_bytes(bytes)).unwrap();
        let base = space.register(&region).unwrap();
        PayloadPool::new(region, base)
    }

    #[test]
    fn a_long_request_waits_in_order_and_is_not_overtaken() {
        let mut pool = pool(64 << 20);
        let first = pool.alloc(20 << 20).unwrap();
        assert!(pool.alloc(2 << 20).is_none(), "the area is one 32 MiB block, rounded up");
        pool.wait(1, 32 << 20);
        pool.wait(2, 2 << 20);
        assert!(pool.pop_granted(|_| true).is_none());
        assert!(pool.alloc(4096).is_some(), "small requests have their own area");
        pool.free(first);
        assert!(pool.alloc(2 << 20).is_none(), "others were here before");
        let (who, buffer) = pool.pop_granted(|_| true).unwrap();
        assert_eq!(who, 1);
        pool.free(buffer);
        pool.wait(3, 2 << 20);
        let (who, buffer) = pool.pop_granted(|w| w != 2).unwrap();
        assert_eq!(who, 3, "who left has no place");
        pool.free(buffer);
        assert!(!pool.has_waiters());
    }

    proptest::proptest! {
        #[test]
        fn buffers_never_overlap_and_all_memory_comes_back(
            ops in proptest::collection::vec((0u8..9, proptest::prelude::any::<bool>()), 1..400)
        ) {
            let mut buddy = Buddy::new(256);
            let mut live: Vec<(u32, u8)> = Vec::new();
            for (order, alloc) in ops {
                if alloc {
                    if let Some(page) = buddy.alloc(order) {
                        let end = page + (1 << order);
                        proptest::prop_assert!(end <= 256);
                        for (p, o) in &live {
                            proptest::prop_assert!(end <= *p || p + (1 << o) <= page);
                        }
                        live.push((page, order));
                    }
                } else if !live.is_empty() {
                    let (page, order) = live.swap_remove(usize::from(order) % live.len());
                    buddy.free(page, order);
                }
            }
            for (page, order) in live {
                buddy.free(page, order);
            }
            proptest::prop_assert_eq!(buddy.used_pages, 0);
            proptest::prop_assert!(buddy.alloc(8).is_some());
        }
    }
}
