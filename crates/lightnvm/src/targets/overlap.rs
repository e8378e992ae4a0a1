//! [`OverlapSerializer`]: a device in front of another, in which a request that overlaps one in flight waits for
//! it: reads for writes, writes for reads and writes (thesis chapter 6, section 4.3; what the sector
//! target needs because a sector moves while it is read, and its users because a device promises no
//! order).
//!
//! Owns the device, the names of requests, and a hash of the ranges in flight. Guarantees: requests
//! that overlap, of which not both read, take effect in the order in which they were submitted; nobody
//! is overtaken for ever, because a request that waits is waited for, too; every request ends exactly
//! once. Nothing is allocated per request. Flushes, and requests that the device will refuse, pass.
//!
//! Ranges are found by [`GRANULE_SHIFT`] sectors: a short request is in the bucket of each granule that it
//! touches, and of two that share several only the first counts; long requests, of which there are
//! few, are looked at one by one.

use std::collections::VecDeque;

use block::{BlockDevice, Completion, Limits, Op, QueueFull, Request};
use clock::{Component, Nanos, Waker};
use nvme::Status;
use ring::AddressSpace;

/// Sectors that are looked up together: 2 to this power.
const GRANULE_SHIFT: u32 = 6;
/// Granules of a short request at most.
const SHORT_GRANULES_MAX: usize = 4;
const NIL: u32 = u32::MAX;

/// How often requests overlapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverlapStats {
    /// Requests whose ranges were tracked.
    pub tracked: u64,
    /// Requests that had to wait for others.
    pub waited: u64,
    /// For how many others, in all.
    pub overlaps: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OverlapState {
    Free,
    /// With the device, and nobody waits for it.
    Untracked,
    Waiting,
    InFlight,
}

#[derive(Clone, Copy, Debug)]
struct OverlapSlot {
    request: Request,
    state: OverlapState,
    order: u64,
    /// Requests that it waits for.
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

/// A place in a bucket's list: the `i`-th granule of a short request is its slot times [`SHORT`] plus
/// `i`. Long requests are in a list of their own, with their first place.
#[derive(Clone, Copy, Debug)]
struct BucketLink {
    granule: u64,
    prev: u32,
    next: u32,
}

/// Requests that overlap take effect in the order in which they were submitted.
#[derive(Debug)]
pub struct OverlapSerializer<D> {
    device: D,
    slots: Box<[OverlapSlot]>,
    free: Vec<u32>,
    links: Box<[BucketLink]>,
    /// First places of each list; the last list is the long requests'.
    list_heads: Box<[u32]>,
    ready: VecDeque<u32>,
    order: u64,
    stats: OverlapStats,
}

impl<D: BlockDevice> OverlapSerializer<D> {
    /// Takes over the state of `other`, which has nothing outstanding, by `adopt` that of its device. Returns
    /// whether it could.
    pub(crate) fn clone_state_from(
        &mut self,
        other: &OverlapSerializer<D>,
        adopt: impl FnOnce(&mut D, &D) -> bool,
    ) -> bool {
        if !self.is_empty() || !other.is_empty() || !adopt(&mut self.device, &other.device) {
            return false;
        }
        self.order = other.order;
        self.stats = other.stats;
        true
    }

    /// Puts itself in front of a device that has nothing outstanding.
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
            slots: vec![blank; depth as usize].into(),
            free: (0..depth).rev().collect(),
            links: vec![link; depth as usize * SHORT_GRANULES_MAX].into(),
            list_heads: vec![NIL; buckets + 1].into(),
            ready: VecDeque::with_capacity(depth as usize),
            order: 0,
            stats: OverlapStats::default(),
        }
    }

    /// The device behind.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device below, for what is no request.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Counters.
    pub fn stats(&self) -> &OverlapStats {
        &self.stats
    }

    /// Whether no request is outstanding, here or behind.
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Gives the device up to `end`, which returns what is left of it and a completion of every request
    /// that it had; those that had not reached it are completed with
    /// [`Status::ABORTED_SQ_DELETED`].
    pub fn close<R>(mut self, end: impl FnOnce(D) -> (R, Vec<Completion>)) -> (R, Vec<Completion>) {
        let mut completions: Vec<Completion> = std::iter::from_fn(|| self.reap()).collect();
        let (rest, ended) = end(self.device);
        for done in ended {
            if let Some(slot) = self.slots.get_mut(done.tag as usize) {
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

    /// The list of a granule.
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

    /// Calls `with` for every tracked request but `of` itself that conflicts with it, once.
    #[inline]
    fn for_each_conflict(&mut self, of: u32, mut with: impl FnMut(&mut OverlapSlot, u32)) {
        let slot = self.slots[of as usize];
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
                let other = &mut self.slots[id as usize];
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
            let other = &mut self.slots[id as usize];
            if id != of && other.conflicts_with(&slot) {
                with(other, id);
            }
        }
    }

    /// Puts a request into its lists, or takes it out of them.
    #[inline]
    fn update_lists(&mut self, id: u32, is_in: bool) {
        let (slot, base) = (self.slots[id as usize], id * SHORT_GRANULES_MAX as u32);
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

    /// A tracked request has ended: those that waited for it wait for one less.
    fn unblock_waiters(&mut self, id: u32) {
        self.update_lists(id, false);
        let order = self.slots[id as usize].order;
        // Taken out, so that the closure may use it.
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

    /// Whether a request's range is to be tracked.
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
            let request = Request { tag: id.into(), ..self.slots[id as usize].request };
            if self.device.submit(now, request).is_err() {
                break;
            }
            self.slots[id as usize].state = OverlapState::InFlight;
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
    fn limits(&self) -> &Limits {
        self.device.limits()
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        let Some(&id) = self.free.last() else { return Err(QueueFull) };
        let (name, tag) = (u64::from(id), request.tag);
        tracepoint::trace_at(now, || tracepoint::Event::TargetAlias { alias: name, tag });
        if !self.is_tracked(&request) {
            self.device.submit(now, Request { tag: id.into(), ..request })?;
            self.free.pop();
            let slot = &mut self.slots[id as usize];
            (slot.request, slot.state) = (request, OverlapState::Untracked);
            return Ok(());
        }
        let end = request.lba + u64::from(request.sectors);
        let granules = ((end - 1) >> GRANULE_SHIFT) - (request.lba >> GRANULE_SHIFT) + 1;
        self.order += 1;
        self.slots[id as usize] = OverlapSlot {
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
                self.slots[id as usize].state = OverlapState::Free;
                return Err(busy);
            }
        } else {
            let slot = &mut self.slots[id as usize];
            (slot.state, slot.blockers) = (OverlapState::Waiting, blockers);
            self.stats.waited += 1;
            self.stats.overlaps += u64::from(blockers);
        }
        self.free.pop();
        self.stats.tracked += 1;
        self.update_lists(id, true);
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        let done = self.device.reap()?;
        let id = done.tag as u32;
        let OverlapSlot { request, state, .. } = self.slots[id as usize];
        if state == OverlapState::InFlight {
            self.unblock_waiters(id);
        }
        self.slots[id as usize].state = OverlapState::Free;
        self.free.push(id);
        Some(Completion { tag: request.tag, ..done })
    }

    fn memory(&self) -> &AddressSpace {
        self.device.memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        self.device.set_waker(waker);
    }
}

#[cfg(test)]
mod tests;
