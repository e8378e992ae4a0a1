//! [`Pool`]: the registered memory that payloads live in. Bounded; whoever finds it empty waits its
//! turn, first come first served, so that a long request is not overtaken forever.
//!
//! Three areas by length of request, each a buddy allocator of pages, so that nobody waits for a
//! client that dawdles over a longer transfer. Memory of the first is held only while a request is
//! with the device: such payloads wait for slow clients elsewhere, in the inbox before and in the
//! outbox after. So small requests never wait for somebody else's socket.

use std::collections::VecDeque;
use std::sync::Arc;

use ring::{Iova, PAGE, Region};

/// Longest request of the first area.
pub(super) const SMALL_BYTES_MAX: u32 = 64 << 10;
/// Longest request of the second; the third has the rest.
pub(super) const MEDIUM_BYTES_MAX: u32 = 1 << 20;
/// How many areas there are, and how many quarters of the pool are in each.
pub(super) const AREAS: usize = 3;
const QUARTERS: [usize; AREAS] = [1, 1, 2];

/// A piece of the pool. It goes back through [`Pool::free`]; it is deliberately not `Clone`.
#[derive(Debug)]
#[must_use = "a buffer that is dropped is lost to the pool"]
pub(super) struct Buffer {
    area: usize,
    page: u32,
    order: u8,
}

/// The payload memory, and who waits for it (`W` names a waiter).
#[derive(Debug)]
pub(super) struct Pool<W> {
    region: Arc<Region>,
    base: Iova,
    quarter_bytes: usize,
    areas: [Area<W>; AREAS],
}

#[derive(Debug)]
struct Area<W> {
    buddy: Buddy,
    waiting: VecDeque<(W, u32)>,
}

impl<W: Copy> Pool<W> {
    /// Bytes of a quarter for a wish for `pool_bytes` in all: a power of two, at least 1 MiB.
    pub(super) fn quarter_bytes(pool_bytes: usize) -> usize {
        let quarter = (pool_bytes / 4).clamp(MEDIUM_BYTES_MAX as usize, 1 << 30);
        1 << quarter.ilog2()
    }

    /// A pool in `region`, which is registered at `base` and of four times
    /// [`quarter_bytes`](Pool::quarter_bytes) bytes.
    pub(super) fn new(region: Arc<Region>, base: Iova) -> Pool<W> {
        let quarter_bytes = region.len() / 4;
        let areas = QUARTERS.map(|quarters| Area {
            buddy: Buddy::new(quarters * quarter_bytes / PAGE),
            waiting: VecDeque::new(),
        });
        Pool { region, base, quarter_bytes, areas }
    }

    /// The area for a request of `len` bytes.
    pub(super) fn area_of(len: u32) -> usize {
        usize::from(len > SMALL_BYTES_MAX) + usize::from(len > MEDIUM_BYTES_MAX)
    }

    /// A buffer of `len` bytes, unless there is none or somebody waits for one already.
    pub(super) fn alloc(&mut self, len: u32) -> Option<Buffer> {
        let area = Self::area_of(len);
        if !self.areas[area].waiting.is_empty() {
            return None;
        }
        self.take(area, len)
    }

    fn take(&mut self, area: usize, len: u32) -> Option<Buffer> {
        let pages = (len as usize).div_ceil(PAGE).max(1).next_power_of_two();
        let order = pages.ilog2() as u8;
        let page = self.areas[area].buddy.alloc(order)?;
        Some(Buffer { area, page, order })
    }

    /// Queues for a buffer of `len` bytes, to be had from [`next_granted`](Pool::next_granted).
    pub(super) fn wait(&mut self, who: W, len: u32) {
        self.areas[Self::area_of(len)].waiting.push_back((who, len));
    }

    /// A buffer for whoever waits longest, if there is enough memory by now. Waiters that are no
    /// longer `alive` lose their place.
    pub(super) fn next_granted(&mut self, alive: impl Fn(W) -> bool) -> Option<(W, Buffer)> {
        for area in 0..self.areas.len() {
            while let Some(&(who, len)) = self.areas[area].waiting.front() {
                if !alive(who) {
                    self.areas[area].waiting.pop_front();
                    continue;
                }
                let Some(buffer) = self.take(area, len) else {
                    break;
                };
                self.areas[area].waiting.pop_front();
                return Some((who, buffer));
            }
        }
        None
    }

    /// Whether anybody waits.
    pub(super) fn is_short(&self) -> bool {
        self.areas.iter().any(|a| !a.waiting.is_empty())
    }

    /// Takes a buffer back.
    pub(super) fn free(&mut self, buffer: Buffer) {
        self.areas[buffer.area].buddy.free(buffer.page, buffer.order);
    }

    /// Bytes that are handed out.
    pub(super) fn in_use(&self) -> u64 {
        self.areas.iter().map(|a| a.buddy.used_pages as u64 * PAGE as u64).sum()
    }

    fn offset(&self, buffer: &Buffer) -> usize {
        let quarters: usize = QUARTERS[..buffer.area].iter().sum();
        quarters * self.quarter_bytes + buffer.page as usize * PAGE
    }

    /// Where the drive finds the buffer.
    pub(super) fn iova(&self, buffer: &Buffer) -> Iova {
        self.base.offset(self.offset(buffer) as u64)
    }

    /// Copies bytes into the buffer.
    pub(super) fn write(&self, buffer: &Buffer, at: usize, from: &[u8]) {
        debug_assert!(at + from.len() <= PAGE << buffer.order, "within the buffer");
        self.region.write(self.offset(buffer) + at, from);
    }

    /// Copies bytes out of the buffer.
    pub(super) fn read(&self, buffer: &Buffer, at: usize, into: &mut [u8]) {
        debug_assert!(at + into.len() <= PAGE << buffer.order, "within the buffer");
        self.region.read(self.offset(buffer) + at, into);
    }
}

impl Buffer {
    /// Bytes of the pool that the buffer takes up.
    pub(super) fn footprint(&self) -> usize {
        PAGE << self.order
    }

    /// The area that it is of.
    pub(super) fn area(&self) -> usize {
        self.area
    }
}

const ORDERS: usize = 20;
const NOT_FREE: u8 = u8::MAX;

/// A buddy allocator of pages: a free block of order `o` is `1 << o` pages, aligned to its size.
/// Freed blocks are reused last in, first out, so that short requests keep to memory that the
/// caches know.
#[derive(Debug)]
struct Buddy {
    /// Free blocks by order.
    free: [Vec<u32>; ORDERS],
    /// Per page: the order of the free block that starts there, or [`NOT_FREE`].
    order: Vec<u8>,
    /// Per page that starts a free block: its place in `free[order]`.
    place: Vec<u32>,
    used_pages: usize,
}

impl Buddy {
    /// `pages` must be a power of two.
    fn new(pages: usize) -> Buddy {
        assert!(pages.is_power_of_two() && pages.ilog2() < ORDERS as u32, "checked at start");
        let mut buddy = Buddy {
            free: std::array::from_fn(|_| Vec::new()),
            order: vec![NOT_FREE; pages],
            place: vec![0; pages],
            used_pages: 0,
        };
        buddy.push(0, pages.ilog2() as u8);
        buddy
    }

    fn push(&mut self, page: u32, order: u8) {
        let list = &mut self.free[usize::from(order)];
        self.order[page as usize] = order;
        self.place[page as usize] = list.len() as u32;
        list.push(page);
    }

    fn remove(&mut self, page: u32, order: u8) {
        let list = &mut self.free[usize::from(order)];
        let place = self.place[page as usize];
        list.swap_remove(place as usize);
        if let Some(moved) = list.get(place as usize) {
            self.place[*moved as usize] = place;
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
    use ring::AddressSpace;

    fn pool(bytes: usize) -> Pool<u32> {
        let space = AddressSpace::default();
        let region = Region::anonymous(4 * Pool::<u32>::quarter_bytes(bytes)).unwrap();
        let base = space.register(&region).unwrap();
        Pool::new(region, base)
    }

    #[test]
    fn a_long_request_waits_for_its_turn_and_is_not_overtaken() {
        let mut pool = pool(64 << 20);
        let first = pool.alloc(20 << 20).unwrap();
        assert!(pool.alloc(2 << 20).is_none(), "the area is one 32 MiB block, rounded up");
        pool.wait(1, 32 << 20);
        pool.wait(2, 2 << 20);
        assert!(pool.next_granted(|_| true).is_none());
        assert!(pool.alloc(4096).is_some(), "small requests have their own area");
        pool.free(first);
        assert!(pool.alloc(2 << 20).is_none(), "others were here before");
        let (who, buffer) = pool.next_granted(|_| true).unwrap();
        assert_eq!(who, 1);
        pool.free(buffer);
        pool.wait(3, 2 << 20);
        let (who, buffer) = pool.next_granted(|w| w != 2).unwrap();
        assert_eq!(who, 3, "who left has no place");
        pool.free(buffer);
        assert!(!pool.is_short());
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
