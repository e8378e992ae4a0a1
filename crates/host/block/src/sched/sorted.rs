//! [`SectorSorted`]: requests in arrival order and in sector order.
//!
//! Entries are in one table, linked as a list (arrival) and as a treap (sectors) \[Treap96\], so
//! that no memory is allocated per request. Priorities are a hash of the arrival order: the same
//! requests always make the same tree. Requests with the same first sector stay in arrival order.

use time::Nanos;

use super::shrink::{CAPACITY_MIN, ShrinkPolicy};
use crate::StagedRequest;

/// No entry.
const NIL: u32 = u32::MAX;
/// Number of requests before a new one that are tried for a back merge. Without overlapping
/// requests only the nearest can match, and a request that begins too far away cannot.
const MERGE_WINDOW: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct SortedEntry {
    staged: StagedRequest,
    /// Time at which the request expires.
    expires: Nanos,
    /// Position in arrival order.
    serial: u64,
    /// Treap priority: a parent's is not less than its children's.
    priority: u32,
    /// Neighbours in arrival order; `newer` also links free entries.
    older: u32,
    newer: u32,
    /// Children in sector order.
    left: u32,
    right: u32,
}

impl SortedEntry {
    /// Returns the key in sector order.
    #[inline]
    fn key(&self) -> (u64, u64) {
        (self.staged.request.lba, self.serial)
    }
}

/// The link to a subtree.
#[derive(Clone, Copy)]
enum Hook {
    Root,
    Left(u32),
    Right(u32),
}

/// Requests in arrival order and in sector order.
#[derive(Debug)]
pub(super) struct SectorSorted {
    entries: Vec<SortedEntry>,
    free: u32,
    root: u32,
    oldest: u32,
    newest: u32,
    len: usize,
    arrivals: u64,
    /// Length of the longest request since the queue was last empty, in sectors.
    request_sectors_max: u32,
    shrink_policy: ShrinkPolicy,
}

impl SectorSorted {
    pub(super) fn new() -> SectorSorted {
        SectorSorted::with_capacity(0)
    }

    fn with_capacity(room: usize) -> SectorSorted {
        SectorSorted {
            entries: Vec::with_capacity(room),
            free: NIL,
            root: NIL,
            oldest: NIL,
            newest: NIL,
            len: 0,
            arrivals: 0,
            request_sectors_max: 0,
            shrink_policy: ShrinkPolicy::new(),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Inserts a request that expires at `expires`.
    pub(super) fn push(&mut self, staged: StagedRequest, expires: Nanos) {
        let serial = self.arrivals;
        self.arrivals += 1;
        let priority = mix(serial);
        let entry = SortedEntry {
            staged,
            expires,
            serial,
            priority,
            older: self.newest,
            newer: NIL,
            left: NIL,
            right: NIL,
        };
        let at = self.free;
        let at = if at == NIL {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        } else {
            self.free = self[at].newer;
            self[at] = entry;
            at
        };
        match self.newest {
            NIL => self.oldest = at,
            newest => self[newest].newer = at,
        }
        self.newest = at;
        self.request_sectors_max =
            if self.len == 0 { 0 } else { self.request_sectors_max }.max(staged.request.sectors);
        self.len += 1;
        self.link(at);
    }

    /// Returns when the oldest request expires.
    #[inline]
    pub(super) fn oldest_expires(&self) -> Option<Nanos> {
        (self.oldest != NIL).then(|| self[self.oldest].expires)
    }

    /// Removes and returns the oldest request.
    pub(super) fn pop_oldest(&mut self) -> Option<StagedRequest> {
        (self.oldest != NIL).then(|| self.remove(self.oldest))
    }

    /// Removes and returns the first request at or after sector `lba`.
    pub(super) fn pop_from(&mut self, lba: u64) -> Option<StagedRequest> {
        let at = self.first_from((lba, 0));
        (at != NIL).then(|| self.remove(at))
    }

    /// Implements [`Scheduler::find_merge`](super::Scheduler::find_merge): tries requests that end
    /// where the new one begins, then, if `front`, those that begin where it ends.
    pub(super) fn find_merge(
        &mut self,
        newcomer: &StagedRequest,
        front: bool,
        visit: &mut dyn FnMut(&mut StagedRequest) -> bool,
    ) -> bool {
        let (start, end, op) = (newcomer.request.lba, newcomer.end(), newcomer.request.op);
        let mut before = (start, 0);
        for _ in 0..MERGE_WINDOW {
            let at = self.last_before(before);
            if at == NIL {
                break;
            }
            before = self[at].key();
            if before.0.saturating_add(self.request_sectors_max.into()) < start {
                break;
            }
            let held = &self[at].staged;
            if held.end() == start && held.request.op == op && self.visit_entry(at, visit) {
                return true;
            }
        }
        let mut from = (end, 0);
        for _ in 0..if front { MERGE_WINDOW } else { 0 } {
            let at = self.first_from(from);
            if at == NIL || self[at].staged.request.lba != end {
                break;
            }
            from = (end, self[at].serial + 1);
            if self[at].staged.request.op == op && self.visit_entry(at, visit) {
                return true;
            }
        }
        false
    }

    /// Calls `visit` with an entry, which may change it, and moves the entry to its new position.
    fn visit_entry(&mut self, at: u32, visit: &mut dyn FnMut(&mut StagedRequest) -> bool) -> bool {
        let mut staged = self[at].staged;
        let merged = visit(&mut staged);
        self.request_sectors_max = self.request_sectors_max.max(staged.request.sectors);
        if staged.request.lba == self[at].staged.request.lba {
            self[at].staged = staged;
        } else {
            self.unlink(at);
            self[at].staged = staged;
            self.link(at);
        }
        merged
    }

    fn remove(&mut self, at: u32) -> StagedRequest {
        let shrink = self.shrink_policy.on_take(self.len, self.entries.capacity());
        self.unlink(at);
        let SortedEntry { staged, older, newer, .. } = self[at];
        match older {
            NIL => self.oldest = newer,
            older => self[older].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            newer => self[newer].older = older,
        }
        self[at].newer = self.free;
        self.free = at;
        self.len -= 1;
        if let Some(room) = shrink {
            self.shrink(room);
        }
        staged
    }

    /// Moves all entries into a table with a capacity of `room`. Serial numbers restart; only their
    /// order counts.
    fn shrink(&mut self, room: usize) {
        let mut smaller = SectorSorted::with_capacity(room.max(self.len).max(CAPACITY_MIN));
        let mut at = self.oldest;
        while at != NIL {
            let SortedEntry { staged, expires, newer, .. } = self[at];
            smaller.push(staged, expires);
            at = newer;
        }
        *self = smaller;
    }

    #[inline]
    fn child(&self, hook: Hook) -> u32 {
        match hook {
            Hook::Root => self.root,
            Hook::Left(of) => self[of].left,
            Hook::Right(of) => self[of].right,
        }
    }

    #[inline]
    fn set_child(&mut self, hook: Hook, at: u32) {
        match hook {
            Hook::Root => self.root = at,
            Hook::Left(of) => self[of].left = at,
            Hook::Right(of) => self[of].right = at,
        }
    }

    /// Inserts an entry into the tree. It descends to where no entry has a greater priority, and
    /// splits the subtree there into its children.
    fn link(&mut self, new: u32) {
        let (key, priority) = (self[new].key(), self[new].priority);
        let mut hook = Hook::Root;
        let mut at = self.root;
        while at != NIL && self[at].priority >= priority {
            hook = if key < self[at].key() { Hook::Left(at) } else { Hook::Right(at) };
            at = self.child(hook);
        }
        self.set_child(hook, new);
        let (mut lower, mut higher) = (Hook::Left(new), Hook::Right(new));
        while at != NIL {
            if self[at].key() < key {
                self.set_child(lower, at);
                lower = Hook::Right(at);
                at = self.child(lower);
            } else {
                self.set_child(higher, at);
                higher = Hook::Left(at);
                at = self.child(higher);
            }
        }
        self.set_child(lower, NIL);
        self.set_child(higher, NIL);
    }

    /// Removes an entry from the tree and joins its subtrees in its place.
    fn unlink(&mut self, gone: u32) {
        let key = self[gone].key();
        let mut hook = Hook::Root;
        let mut at = self.root;
        while at != gone {
            debug_assert!(at != NIL, "an entry that is held is in the tree");
            hook = if key < self[at].key() { Hook::Left(at) } else { Hook::Right(at) };
            at = self.child(hook);
        }
        let (mut lower, mut higher) = (self[gone].left, self[gone].right);
        loop {
            if lower == NIL || higher == NIL {
                self.set_child(hook, if lower == NIL { higher } else { lower });
                return;
            }
            if self[lower].priority >= self[higher].priority {
                self.set_child(hook, lower);
                hook = Hook::Right(lower);
                lower = self.child(hook);
            } else {
                self.set_child(hook, higher);
                hook = Hook::Left(higher);
                higher = self.child(hook);
            }
        }
    }

    /// Returns the first entry at or after `key`.
    fn first_from(&self, key: (u64, u64)) -> u32 {
        let (mut at, mut found) = (self.root, NIL);
        while at != NIL {
            if self[at].key() < key {
                at = self[at].right;
            } else {
                found = at;
                at = self[at].left;
            }
        }
        found
    }

    /// Returns the last entry before `key`.
    fn last_before(&self, key: (u64, u64)) -> u32 {
        let (mut at, mut found) = (self.root, NIL);
        while at != NIL {
            if self[at].key() < key {
                found = at;
                at = self[at].right;
            } else {
                at = self[at].left;
            }
        }
        found
    }
}

impl std::ops::Index<u32> for SectorSorted {
    type Output = SortedEntry;
    #[inline]
    fn index(&self, at: u32) -> &SortedEntry {
        &self.entries[at as usize]
    }
}

impl std::ops::IndexMut<u32> for SectorSorted {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut SortedEntry {
        &mut self.entries[at as usize]
    }
}

/// Returns a hash of `serial` (the finalizer of splitmix64, \[SplitMix14\]).
#[inline]
fn mix(serial: u64) -> u32 {
    let z = serial.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 32) as u32
}

#[cfg(test)]
mod tests;
