//! [`OverlapSerializer`]: delays requests that overlap one in flight: reads wait for writes, and
//! writes wait for reads and writes [Thesis15 ch. 6 §4.3]. The sector target needs this because a
//! sector may be relocated while it is read; submitters may need it because a device guarantees no
//! order.
//!
//! Owns the device, the table of requests, and a hash of the ranges in flight.
//!
//! Invariants: requests that overlap, except two reads, take effect in the order of submission. No
//! request starves, because later requests also wait for waiting ones. Every request completes
//! exactly once. Requests cause no allocation. Flushes, and requests that the device will reject,
//! pass.
//!
//! Ranges are hashed by granules of `1 <<` [`GRANULE_SHIFT`] sectors. A short request is in the
//! bucket of each of its granules; if two requests share several, only the first one counts. Long
//! requests, which are few, are searched linearly.

use std::collections::VecDeque;

use block::{BlockDevice, Completion, Op, QueueFull, Request};
use collections::Slab;
use nvme::Status;
use serde::{Deserialize, Serialize};
use time::{Component, Nanos};

/// Log2 of the sectors per granule.
const GRANULE_SHIFT: u32 = 6;
/// Maximum number of granules of a short request.
const SHORT_GRANULES_MAX: usize = 4;
const NIL: u32 = u32::MAX;

/// Counters of overlapping requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlapStats {
    /// Requests whose ranges were tracked.
    pub tracked: u64,
    /// Requests that waited for others.
    pub waited: u64,
    /// Number of requests that they waited for, in total.
    pub overlaps: u64,
}

/// The state of a serializer without outstanding requests: the number of requests so far, and the
/// counters.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SavedOrder(u64, OverlapStats);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OverlapState {
    Free,
    /// In flight at the device, but without a range that others wait for.
    Untracked,
    Waiting,
    InFlight,
}

#[derive(Clone, Copy, Debug)]
struct OverlapSlot {
    request: Request,
    state: OverlapState,
    order: u64,
    /// Number of requests that it waits for.
    blockers: u32,
    end_lba: u64,
    is_read: bool,
    is_long: bool,
}

impl OverlapSlot {
    fn conflicts_with(&self, other: &OverlapSlot) -> bool {
        let overlap = self.request.lba < other.end_lba && other.request.lba < self.end_lba;
        overlap && !(self.is_read && other.is_read)
    }

    fn first_granule(&self) -> u64 {
        self.request.lba >> GRANULE_SHIFT
    }

    fn last_granule(&self) -> u64 {
        (self.end_lba - 1) >> GRANULE_SHIFT
    }
}

/// A link of a bucket list. The `i`-th granule of a short request has the index of its slot times
/// [`SHORT_GRANULES_MAX`] plus `i`. Long requests are in a separate list, with their first link.
#[derive(Clone, Copy, Debug)]
struct BucketLink {
    granule: u64,
    prev: u32,
    next: u32,
}

/// Makes requests that overlap take effect in the order of submission.
#[derive(Debug)]
pub struct OverlapSerializer<D> {
    device: D,
    slots: Slab<OverlapSlot>,
    links: Box<[BucketLink]>,
    /// First link of each list; the last list is that of long requests.
    list_heads: Box<[u32]>,
    ready: VecDeque<u32>,
    order: u64,
    stats: OverlapStats,
}

impl<D: BlockDevice> OverlapSerializer<D> {
    /// Returns the device and the serializer's own state, to be copied or saved; `None` while
    /// requests are outstanding.
    pub(crate) fn state_to_save(&self) -> Option<(&D, SavedOrder)> {
        self.is_empty().then_some((&self.device, SavedOrder(self.order, self.stats)))
    }

    /// Takes over the state of another serializer; `restore` restores the device. Returns whether
    /// both succeeded.
    pub(crate) fn restore(
        &mut self,
        SavedOrder(order, stats): SavedOrder,
        restore: impl FnOnce(&mut D) -> bool,
    ) -> bool {
        if !self.is_empty() || !restore(&mut self.device) {
            return false;
        }
        (self.order, self.stats) = (order, stats);
        true
    }

    /// Wraps a device without outstanding requests.
    pub fn new(device: D) -> OverlapSerializer<D> {
        let depth = device.limits().queue_depth.max(1);
        let blank = OverlapSlot {
            request: Request::flush(0),
            state: OverlapState::Free,
            order: 0,
            blockers: 0,
            end_lba: 0,
            is_read: false,
            is_long: false,
        };
        let link = BucketLink { granule: 0, prev: NIL, next: NIL };
        let buckets = (2 * depth as usize).next_power_of_two();
        OverlapSerializer {
            device,
            slots: Slab::with_free(vec![blank; depth as usize]),
            links: vec![link; depth as usize * SHORT_GRANULES_MAX].into(),
            list_heads: vec![NIL; buckets + 1].into(),
            ready: VecDeque::with_capacity(depth as usize),
            order: 0,
            stats: OverlapStats::default(),
        }
    }

    /// Returns the device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device, for operations other than requests.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Returns the counters.
    pub fn stats(&self) -> &OverlapStats {
        &self.stats
    }

    /// Returns whether no request is outstanding, waiting or at the device.
    pub fn is_empty(&self) -> bool {
        self.slots.in_use() == 0
    }

    /// Closes the device with `end`, which returns its remains and a completion for every request
    /// that it had. Requests that had not reached the device complete with
    /// [`Status::ABORTED_SQ_DELETED`].
    pub fn close<R>(mut self, end: impl FnOnce(D) -> (R, Vec<Completion>)) -> (R, Vec<Completion>) {
        let mut completions: Vec<Completion> = std::iter::from_fn(|| self.reap()).collect();
        let (rest, ended) = end(self.device);
        for done in ended {
            if let Some(slot) = u32::try_from(done.tag).ok().and_then(|id| self.slots.get_mut(id)) {
                slot.state = OverlapState::Free;
                completions.push(Completion { tag: slot.request.tag, ..done });
            }
        }
        let left = self.slots.iter().filter(|s| s.state != OverlapState::Free);
        completions.extend(left.map(|s| Completion {
            tag: s.request.tag,
            status: Status::ABORTED_SQ_DELETED,
            result: 0,
        }));
        (rest, completions)
    }

    /// Returns the list of a granule.
    #[inline]
    fn bucket(&self, granule: u64) -> usize {
        let hash = granule.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        hash as usize & (self.list_heads.len() - 2)
    }

    fn long_list(&self) -> usize {
        self.list_heads.len() - 1
    }

    #[inline]
    fn link(&mut self, list: usize, place: u32, granule: u64) {
        let after = self.list_heads[list];
        self.links[place as usize] = BucketLink { granule, prev: NIL, next: after };
        if after != NIL {
            self.links[after as usize].prev = place;
        }
        self.list_heads[list] = place;
    }

    #[inline]
    fn unlink(&mut self, list: usize, place: u32) {
        let BucketLink { prev: before, next: after, .. } = self.links[place as usize];
        match before {
            NIL => self.list_heads[list] = after,
            before => self.links[before as usize].next = after,
        }
        if after != NIL {
            self.links[after as usize].prev = before;
        }
    }

    /// Calls `with` once for every tracked request, other than `of`, that conflicts with it.
    #[inline]
    fn for_each_conflict(&mut self, of: u32, mut with: impl FnMut(&mut OverlapSlot, u32)) {
        let slot = self.slots[of];
        if slot.is_long {
            for (id, other) in (0..).zip(&mut self.slots) {
                let tracked = matches!(other.state, OverlapState::Waiting | OverlapState::InFlight);
                if tracked && id != of && other.conflicts_with(&slot) {
                    with(other, id);
                }
            }
            return;
        }
        for granule in slot.first_granule()..=slot.last_granule() {
            let mut at = self.list_heads[self.bucket(granule)];
            while at != NIL {
                let (link, id) = (self.links[at as usize], at / SHORT_GRANULES_MAX as u32);
                at = link.next;
                let other = &mut self.slots[id];
                let first = slot.first_granule().max(other.first_granule());
                if link.granule == granule
                    && first == granule
                    && id != of
                    && other.conflicts_with(&slot)
                {
                    with(other, id);
                }
            }
        }
        let mut at = self.list_heads[self.long_list()];
        while at != NIL {
            let id = at / SHORT_GRANULES_MAX as u32;
            at = self.links[at as usize].next;
            let other = &mut self.slots[id];
            if id != of && other.conflicts_with(&slot) {
                with(other, id);
            }
        }
    }

    /// Inserts a request into its lists, or removes it.
    #[inline]
    fn update_lists(&mut self, id: u32, is_in: bool) {
        let (slot, base) = (self.slots[id], id * SHORT_GRANULES_MAX as u32);
        if slot.is_long {
            let list = self.long_list();
            return if is_in { self.link(list, base, 0) } else { self.unlink(list, base) };
        }
        for (place, granule) in (base..).zip(slot.first_granule()..=slot.last_granule()) {
            let list = self.bucket(granule);
            if is_in {
                self.link(list, place, granule);
            } else {
                self.unlink(list, place);
            }
        }
    }

    /// Handles the completion of a tracked request: unblocks the requests that waited for it.
    fn unblock_waiters(&mut self, id: u32) {
        self.update_lists(id, false);
        let order = self.slots[id].order;
        // Moved out, because the closure needs it.
        let mut ready = std::mem::take(&mut self.ready);
        self.for_each_conflict(id, |other, id| {
            if other.state == OverlapState::Waiting && other.order > order {
                other.blockers -= 1;
                if other.blockers == 0 {
                    ready.push_back(id);
                }
            }
        });
        self.ready = ready;
    }

    /// Returns whether the range of a request is tracked.
    fn is_tracked(&self, request: &Request) -> bool {
        let end = request.lba.checked_add(request.sectors.into());
        let in_range = end.is_some_and(|end| end <= self.device.limits().sectors);
        request.op != Op::Flush && request.sectors > 0 && in_range
    }
}

impl<D: BlockDevice> Component for OverlapSerializer<D> {
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(&id) = self.ready.front() {
            let request = Request { tag: id.into(), ..self.slots[id].request };
            if self.device.submit(now, request).is_err() {
                break;
            }
            self.slots[id].state = OverlapState::InFlight;
            self.ready.pop_front();
            moved = true;
        }
        self.device.poll(now) || moved
    }

    fn deadline(&self) -> Nanos {
        if self.ready.is_empty() { self.device.deadline() } else { Nanos::ZERO }
    }
}

impl<D: BlockDevice> BlockDevice for OverlapSerializer<D> {
    block::delegate_block_device!(self => self.device; limits, memory, set_waker, can_wake,
        enable_sharing, visit_layers);
    // The wait queue of this layer is not known to the device below.
    block::answer_block_device!(can_wait: false);

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        let Some(id) = self.slots.next_free() else { return Err(QueueFull) };
        let (name, tag) = (u64::from(id), request.tag);
        tracepoint::trace_at(now, || tracepoint::Event::TargetAlias { alias: name, tag });
        if !self.is_tracked(&request) {
            self.device.submit(now, Request { tag: id.into(), ..request })?;
            self.slots.take();
            let slot = &mut self.slots[id];
            (slot.request, slot.state) = (request, OverlapState::Untracked);
            return Ok(());
        }
        let end = request.lba + u64::from(request.sectors);
        let granules = ((end - 1) >> GRANULE_SHIFT) - (request.lba >> GRANULE_SHIFT) + 1;
        self.order += 1;
        self.slots[id] = OverlapSlot {
            request,
            state: OverlapState::InFlight,
            order: self.order,
            blockers: 0,
            end_lba: end,
            is_read: matches!(request.op, Op::Read | Op::Extents),
            is_long: granules > SHORT_GRANULES_MAX as u64,
        };
        let mut blockers = 0;
        self.for_each_conflict(id, |_, _| blockers += 1);
        if blockers == 0 {
            let passed = self.device.submit(now, Request { tag: id.into(), ..request });
            if let Err(busy) = passed {
                self.slots[id].state = OverlapState::Free;
                return Err(busy);
            }
        } else {
            let slot = &mut self.slots[id];
            (slot.state, slot.blockers) = (OverlapState::Waiting, blockers);
            self.stats.waited += 1;
            self.stats.overlaps += u64::from(blockers);
        }
        self.slots.take();
        self.stats.tracked += 1;
        self.update_lists(id, true);
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        let done = self.device.reap()?;
        let id = done.tag as u32;
        let OverlapSlot { request, state, .. } = self.slots[id];
        if state == OverlapState::InFlight {
            self.unblock_waiters(id);
        }
        self.slots[id].state = OverlapState::Free;
        self.slots.release(id);
        Some(Completion { tag: request.tag, ..done })
    }
}

mod invariants;
#[cfg(test)]
mod tests;
