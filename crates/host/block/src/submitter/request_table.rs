//! [`RequestTable`]: the submitter's table of its outstanding requests.
//!
//! The submitter's core owns the table; only the index of an entry travels through the block layer.
//!
//! Invariant: every added request is returned by [`RequestTable::complete`] exactly once, whether
//! it was merged, split, or followed by a flush.

use nvme::Status;
use time::Nanos;

use crate::account::SubmitterStats;
use crate::{Completion, Op, Request};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct RequestEntry {
    /// The caller's tag of the request.
    caller_tag: u64,
    since: Nanos,
    sectors: u32,
    /// The next request that the same command carries; for a free entry, the next free one.
    next: u32,
    /// The split request that this fragment belongs to.
    parent: u32,
    /// Outstanding fragments of a split request; an unfinished split counts as one more.
    splits_remaining: u32,
    /// The first error of a fragment.
    status: Status,
    op: Op,
    used: bool,
    /// Whether a flush must follow before the request completes, because the device has no force
    /// unit access.
    flush_after: bool,
}

const FREE: RequestEntry = RequestEntry {
    caller_tag: 0,
    since: Nanos::ZERO,
    sectors: 0,
    next: NONE,
    parent: NONE,
    splits_remaining: 0,
    status: Status::SUCCESS,
    op: Op::Read,
    used: false,
    flush_after: false,
};

/// The table of a submitter's requests. It has a fixed size; adding to a full table fails.
#[derive(Debug)]
pub(crate) struct RequestTable {
    entries: Box<[RequestEntry]>,
    free: u32,
    /// The caller's outstanding requests; `limit` is their maximum. The other entries are for
    /// fragments.
    active: u32,
    limit: u32,
}

/// The result of completing a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionRoute {
    /// All requests that completed with the command were returned.
    Completed,
    /// A flush must follow; it completes under this entry's id.
    FlushFirst(u32),
    /// There is no such entry.
    Spurious,
}

impl RequestTable {
    /// Creates a table for `limit` requests of the caller and `pieces` fragments.
    pub(crate) fn new(limit: u32, pieces: u32) -> RequestTable {
        let count = limit.saturating_add(pieces);
        let mut entries = vec![FREE; count as usize];
        for (i, entry) in entries.iter_mut().enumerate() {
            entry.next = if i as u32 + 1 == count { NONE } else { i as u32 + 1 };
        }
        let free = if count == 0 { NONE } else { 0 };
        RequestTable { entries: entries.into(), free, active: 0, limit }
    }

    /// Returns the number of the caller's outstanding requests.
    #[inline]
    pub(crate) fn active(&self) -> u32 {
        self.active
    }

    /// Adds a request and returns its id; `None` if the table is full.
    #[inline]
    pub(crate) fn add(&mut self, request: &Request, now: Nanos) -> Option<u32> {
        let Request { op, sectors, tag, .. } = *request;
        if self.active == self.limit {
            return None;
        }
        let id = self.alloc(RequestEntry { caller_tag: tag, since: now, sectors, op, ..FREE })?;
        self.active += 1;
        Some(id)
    }

    /// Adds a fragment of the request `parent` and returns its id; `None` if the table is full.
    pub(crate) fn add_split(&mut self, parent: u32, sectors: u32) -> Option<u32> {
        let RequestEntry { op, since, .. } = *self.entries.get(parent as usize)?;
        let id = self.alloc(RequestEntry { since, sectors, op, parent, ..FREE })?;
        self.entries[parent as usize].splits_remaining += 1;
        Some(id)
    }

    #[inline]
    fn alloc(&mut self, entry: RequestEntry) -> Option<u32> {
        let id = self.free;
        let place = self.entries.get_mut(id as usize)?;
        self.free = place.next;
        *place = RequestEntry { next: NONE, used: true, ..entry };
        Some(id)
    }

    #[inline]
    fn free(&mut self, id: u32) {
        let entry = &mut self.entries[id as usize];
        entry.used = false;
        entry.next = self.free;
        self.active -= u32::from(entry.parent == NONE);
        self.free = id;
    }

    /// Marks the request as being split into fragments.
    pub(crate) fn begin_split(&mut self, id: u32) {
        self.entries[id as usize].splits_remaining = 1;
    }

    /// Marks the request as followed by a flush.
    pub(crate) fn flush_after(&mut self, id: u32) {
        self.entries[id as usize].flush_after = true;
    }

    /// Records that the command of `head` also carries `id` and all requests merged into `id`.
    pub(crate) fn chain(&mut self, head: u32, id: u32) {
        let mut last = id;
        while self.entries[last as usize].next != NONE {
            last = self.entries[last as usize].next;
        }
        self.entries[last as usize].next = self.entries[head as usize].next;
        self.entries[head as usize].next = id;
    }

    /// Completes the command of `id` if it carries only that request, and returns the completion.
    ///
    /// Returns `None` for a merged request, a fragment, or a request followed by a flush. Nothing
    /// has changed then, and the caller uses [`complete`](RequestTable::complete).
    #[inline(always)]
    pub(crate) fn complete_single(
        &mut self,
        id: u32,
        status: Status,
        result: u64,
        now: Nanos,
        stats: &SubmitterStats,
    ) -> Option<Completion> {
        let entry = self.entries.get(id as usize)?;
        let single = entry.used & !entry.flush_after & (entry.next & entry.parent == NONE);
        if !single {
            return None;
        }
        let (op, sectors, since, tag) = (entry.op, entry.sectors, entry.since, entry.caller_tag);
        self.free(id);
        stats.complete(op, true, sectors, since, now);
        Some(Completion { tag, status, result })
    }

    /// Completes the command of `id`, and passes the completion of every request that has completed
    /// with it to `out`.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        id: u32,
        status: Status,
        result: u64,
        now: Nanos,
        stats: &SubmitterStats,
        out: &mut impl FnMut(Completion),
    ) -> CompletionRoute {
        let Some(head) = self.entries.get_mut(id as usize).filter(|e| e.used) else {
            return CompletionRoute::Spurious;
        };
        if head.flush_after && status.is_success() {
            head.flush_after = false;
            return CompletionRoute::FlushFirst(id);
        }
        let (mut at, mut first, mut outcome) = (id, true, CompletionRoute::Completed);
        while at != NONE {
            let entry = self.entries[at as usize];
            self.free(at);
            if entry.parent == NONE {
                stats.complete(entry.op, first, entry.sectors, entry.since, now);
                out(Completion { tag: entry.caller_tag, status, result });
            } else {
                let ended = self.complete_split(entry.parent, status, now, stats, out);
                if ended != CompletionRoute::Completed {
                    outcome = ended;
                }
            }
            (at, first) = (entry.next, false);
        }
        outcome
    }

    /// Completes a fragment of `parent`, or the split itself.
    pub(crate) fn complete_split(
        &mut self,
        parent: u32,
        status: Status,
        now: Nanos,
        stats: &SubmitterStats,
        out: &mut impl FnMut(Completion),
    ) -> CompletionRoute {
        let entry = &mut self.entries[parent as usize];
        if entry.status.is_success() {
            entry.status = status;
        }
        entry.splits_remaining -= 1;
        if entry.splits_remaining > 0 {
            return CompletionRoute::Completed;
        }
        if entry.flush_after && entry.status.is_success() {
            entry.flush_after = false;
            return CompletionRoute::FlushFirst(parent);
        }
        let RequestEntry { caller_tag: caller, op, sectors, since, status, .. } = *entry;
        self.free(parent);
        stats.complete(op, true, sectors, since, now);
        out(Completion { tag: caller, status, result: 0 });
        CompletionRoute::Completed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Payload;

    fn read(tag: u64, sectors: u32) -> Request {
        Request::read(0, sectors, Payload::BitBucket, tag)
    }

    #[test]
    fn merged_and_cut_requests_come_out_once_and_whole() {
        let stats = SubmitterStats::default();
        let mut requests = RequestTable::new(4, 2);
        let mut out = Vec::new();
        let ids: Vec<u32> =
            (0..3).map(|t| requests.add(&read(10 + t, 1), Nanos(t)).unwrap()).collect();
        requests.chain(ids[1], ids[2]);
        requests.chain(ids[0], ids[1]);
        let parent = requests.add(&read(20, 9), Nanos(3)).unwrap();
        requests.begin_split(parent);
        let pieces = [4, 5].map(|s| requests.add_split(parent, s).unwrap());
        assert_eq!(requests.add_split(parent, 1), None);
        assert_eq!(requests.add(&read(99, 1), Nanos(3)), None);
        let mut end = |requests: &mut RequestTable, id, status| {
            requests.complete(id, status, 0, Nanos(9), &stats, &mut |c| out.push((c.tag, c.status)))
        };
        assert_eq!(
            end(&mut requests, pieces[1], Status::UNRECOVERED_READ),
            CompletionRoute::Completed
        );
        assert_eq!(end(&mut requests, ids[0], Status::SUCCESS), CompletionRoute::Completed);
        assert_eq!(end(&mut requests, ids[0], Status::SUCCESS), CompletionRoute::Spurious, "twice");
        assert_eq!(end(&mut requests, 77, Status::SUCCESS), CompletionRoute::Spurious, "never");
        assert_eq!(end(&mut requests, pieces[0], Status::SUCCESS), CompletionRoute::Completed);
        requests.complete_split(parent, Status::SUCCESS, Nanos(9), &stats, &mut |c| {
            out.push((c.tag, c.status));
        });
        out.sort_by_key(|(tag, _)| *tag);
        let ok = Status::SUCCESS;
        assert_eq!(out, [(10, ok), (11, ok), (12, ok), (20, Status::UNRECOVERED_READ)]);
        assert_eq!(requests.active(), 0);
        let reads = stats.stat(Nanos(9), 512).reads();
        assert_eq!((reads.ios, reads.sectors), (2, 12), "one command of three, and one cut in two");
    }

    #[test]
    fn a_flush_comes_before_completion_where_the_device_has_no_fua() {
        let stats = SubmitterStats::default();
        let mut requests = RequestTable::new(1, 0);
        let id = requests.add(&read(5, 1), Nanos(0)).unwrap();
        requests.flush_after(id);
        let mut count = 0;
        let mut end =
            |status| requests.complete(id, status, 0, Nanos(1), &stats, &mut |_| count += 1);
        assert_eq!(end(Status::SUCCESS), CompletionRoute::FlushFirst(id));
        assert_eq!(end(Status::SUCCESS), CompletionRoute::Completed);
        assert_eq!(count, 1);
    }
}
