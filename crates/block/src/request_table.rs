//! [`Requests`]: what a submitter remembers of its requests until they have completed.
//!
//! Owned by the submitter's core; what travels through the layer is only an entry's number.
//! Guarantee: every request added comes out of [`RequestTable::complete`] exactly once, whole, whether it was
//! merged with others, cut into pieces, or followed by a flush.

use clock::Nanos;
use nvme::Status;

use crate::account::SubmitterStats;
use crate::{Completion, Op, Request};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct RequestEntry {
    /// The caller's name for the request.
    caller_tag: u64,
    since: Nanos,
    sectors: u32,
    /// The next request that the same command carries; of a free entry, the next free one.
    next: u32,
    /// The request that this is a piece of.
    parent: u32,
    /// Pieces that have not ended, for a request that was cut; the cutting itself counts as one.
    splits_remaining: u32,
    /// The worst that a piece came to.
    status: Status,
    op: Op,
    used: bool,
    /// The device has no force unit access: a flush follows before the request has completed.
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

/// The table of a submitter's requests. It does not grow: a full table pushes back.
#[derive(Debug)]
pub(crate) struct RequestTable {
    entries: Box<[RequestEntry]>,
    free: u32,
    /// Requests of the caller, and how many there may be; the other entries are for pieces.
    active: u32,
    limit: u32,
}

/// What ending a command led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionRoute {
    /// What was complete was handed out.
    Completed,
    /// The device must flush first: the flush ends under this entry's number.
    FlushFirst(u32),
    /// There is no such entry.
    Spurious,
}

impl RequestTable {
    /// Room for `limit` requests of the caller, and `pieces` pieces of requests.
    pub(crate) fn new(limit: u32, pieces: u32) -> RequestTable {
        let count = limit.saturating_add(pieces);
        let mut entries = vec![FREE; count as usize];
        for (i, entry) in entries.iter_mut().enumerate() {
            entry.next = if i as u32 + 1 == count { NONE } else { i as u32 + 1 };
        }
        let free = if count == 0 { NONE } else { 0 };
        RequestTable { entries: entries.into(), free, active: 0, limit }
    }

    /// Requests of the caller that have not ended.
    #[inline]
    pub(crate) fn active(&self) -> u32 {
        self.active
    }

    /// Adds a request; `None` if there is no room.
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

    /// Adds a piece of the request `parent`, which counts it.
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

    /// Says that the request is about to be cut into pieces.
    pub(crate) fn begin_split(&mut self, id: u32) {
        self.entries[id as usize].splits_remaining = 1;
    }

    /// Says that a flush must follow the request.
    pub(crate) fn flush_after(&mut self, id: u32) {
        self.entries[id as usize].flush_after = true;
    }

    /// Says that the command of `head` carries `id` too, and all that `id`'s would have carried.
    pub(crate) fn chain(&mut self, head: u32, id: u32) {
        let mut last = id;
        while self.entries[last as usize].next != NONE {
            last = self.entries[last as usize].next;
        }
        self.entries[last as usize].next = self.entries[head as usize].next;
        self.entries[head as usize].next = id;
    }

    /// The command of `id` ended and carried nothing but `id`: its completion. `None` if it is not
    /// as simple as that; nothing has changed then, and [`end`](RequestTable::complete) has the answer.
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

    /// The command of `id` ended: hands out every request that has completed with it.
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

    /// A piece of `parent`, or its cutting, has ended.
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
