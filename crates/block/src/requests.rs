//! [`Requests`]: what a submitter remembers of its requests until they have completed.
//!
//! Owned by the submitter's core; what travels through the layer is only an entry's number.
//! Guarantee: every request added comes out of [`Requests::end`] exactly once, whole, whether it was
//! merged with others, cut into pieces, or followed by a flush.

use clock::Nanos;
use nvme::Status;

use crate::account::SubmitterStats;
use crate::{Completion, Op, Request};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The caller's name for the request.
    caller: u64,
    since: Nanos,
    sectors: u32,
    /// The next request that the same command carries; of a free entry, the next free one.
    next: u32,
    /// The request that this is a piece of.
    parent: u32,
    /// Pieces that have not ended, for a request that was cut; the cutting itself counts as one.
    pieces: u32,
    /// The worst that a piece came to.
    status: Status,
    op: Op,
    used: bool,
    /// The device has no force unit access: a flush follows before the request has completed.
    flush_after: bool,
}

const FREE: Entry = Entry {
    caller: 0,
    since: Nanos::ZERO,
    sectors: 0,
    next: NONE,
    parent: NONE,
    pieces: 0,
    status: Status::SUCCESS,
    op: Op::Read,
    used: false,
    flush_after: false,
};

/// The table of a submitter's requests. It does not grow: a full table pushes back.
#[derive(Debug)]
pub(crate) struct Requests {
    entries: Box<[Entry]>,
    free: u32,
    /// Requests of the caller, and how many there may be; the other entries are for pieces.
    callers: u32,
    limit: u32,
}

/// What ending a command led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// What was complete was handed out.
    Done,
    /// The device must flush first: the flush ends under this entry's number.
    FlushFirst(u32),
    /// There is no such entry.
    Stray,
}

impl Requests {
    /// Room for `limit` requests of the caller, and `pieces` pieces of requests.
    pub(crate) fn new(limit: u32, pieces: u32) -> Requests {
        let count = limit.saturating_add(pieces);
        let mut entries = vec![FREE; count as usize];
        for (i, entry) in entries.iter_mut().enumerate() {
            entry.next = if i as u32 + 1 == count { NONE } else { i as u32 + 1 };
        }
        let free = if count == 0 { NONE } else { 0 };
        Requests { entries: entries.into(), free, callers: 0, limit }
    }

    /// Requests of the caller that have not ended.
    #[inline]
    pub(crate) fn callers(&self) -> u32 {
        self.callers
    }

    /// Adds a request; `None` if there is no room.
    #[inline]
    pub(crate) fn add(&mut self, request: &Request, now: Nanos) -> Option<u32> {
        let Request { op, sectors, tag, .. } = *request;
        if self.callers == self.limit {
            return None;
        }
        let id = self.take(Entry { caller: tag, since: now, sectors, op, ..FREE })?;
        self.callers += 1;
        Some(id)
    }

    /// Adds a piece of the request `parent`, which counts it.
    pub(crate) fn add_piece(&mut self, parent: u32, sectors: u32) -> Option<u32> {
        let Entry { op, since, .. } = *self.entries.get(parent as usize)?;
        let id = self.take(Entry { since, sectors, op, parent, ..FREE })?;
        self.entries[parent as usize].pieces += 1;
        Some(id)
    }

    #[inline]
    fn take(&mut self, entry: Entry) -> Option<u32> {
        let id = self.free;
        let place = self.entries.get_mut(id as usize)?;
        self.free = place.next;
        *place = Entry { next: NONE, used: true, ..entry };
        Some(id)
    }

    #[inline]
    fn put(&mut self, id: u32) {
        let entry = &mut self.entries[id as usize];
        entry.used = false;
        entry.next = self.free;
        self.callers -= u32::from(entry.parent == NONE);
        self.free = id;
    }

    /// Says that the request is about to be cut into pieces.
    pub(crate) fn cut(&mut self, id: u32) {
        self.entries[id as usize].pieces = 1;
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
    /// as simple as that; nothing has changed then, and [`end`](Requests::end) has the answer.
    #[inline(always)]
    pub(crate) fn end_single(
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
        let (op, sectors, since, tag) = (entry.op, entry.sectors, entry.since, entry.caller);
        self.put(id);
        stats.complete(op, true, sectors, since, now);
        Some(Completion { tag, status, result })
    }

    /// The command of `id` ended: hands out every request that has completed with it.
    #[inline]
    pub(crate) fn end(
        &mut self,
        id: u32,
        status: Status,
        result: u64,
        now: Nanos,
        stats: &SubmitterStats,
        out: &mut impl FnMut(Completion),
    ) -> Outcome {
        let Some(head) = self.entries.get_mut(id as usize).filter(|e| e.used) else {
            return Outcome::Stray;
        };
        if head.flush_after && status.is_success() {
            head.flush_after = false;
            return Outcome::FlushFirst(id);
        }
        let (mut at, mut first, mut outcome) = (id, true, Outcome::Done);
        while at != NONE {
            let entry = self.entries[at as usize];
            self.put(at);
            if entry.parent == NONE {
                stats.complete(entry.op, first, entry.sectors, entry.since, now);
                out(Completion { tag: entry.caller, status, result });
            } else {
                let ended = self.end_piece(entry.parent, status, now, stats, out);
                if ended != Outcome::Done {
                    outcome = ended;
                }
            }
            (at, first) = (entry.next, false);
        }
        outcome
    }

    /// A piece of `parent`, or its cutting, has ended.
    pub(crate) fn end_piece(
        &mut self,
        parent: u32,
        status: Status,
        now: Nanos,
        stats: &SubmitterStats,
        out: &mut impl FnMut(Completion),
    ) -> Outcome {
        let entry = &mut self.entries[parent as usize];
        if entry.status.is_success() {
            entry.status = status;
        }
        entry.pieces -= 1;
        if entry.pieces > 0 {
            return Outcome::Done;
        }
        if entry.flush_after && entry.status.is_success() {
            entry.flush_after = false;
            return Outcome::FlushFirst(parent);
        }
        let Entry { caller, op, sectors, since, status, .. } = *entry;
        self.put(parent);
        stats.complete(op, true, sectors, since, now);
        out(Completion { tag: caller, status, result: 0 });
        Outcome::Done
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
        let mut requests = Requests::new(4, 2);
        let mut out = Vec::new();
        let ids: Vec<u32> =
            (0..3).map(|t| requests.add(&read(10 + t, 1), Nanos(t)).unwrap()).collect();
        requests.chain(ids[1], ids[2]);
        requests.chain(ids[0], ids[1]);
        let parent = requests.add(&read(20, 9), Nanos(3)).unwrap();
        requests.cut(parent);
        let pieces = [4, 5].map(|s| requests.add_piece(parent, s).unwrap());
        assert_eq!(requests.add_piece(parent, 1), None);
        assert_eq!(requests.add(&read(99, 1), Nanos(3)), None);
        let mut end = |requests: &mut Requests, id, status| {
            requests.end(id, status, 0, Nanos(9), &stats, &mut |c| out.push((c.tag, c.status)))
        };
        assert_eq!(end(&mut requests, pieces[1], Status::UNRECOVERED_READ), Outcome::Done);
        assert_eq!(end(&mut requests, ids[0], Status::SUCCESS), Outcome::Done);
        assert_eq!(end(&mut requests, ids[0], Status::SUCCESS), Outcome::Stray, "twice");
        assert_eq!(end(&mut requests, 77, Status::SUCCESS), Outcome::Stray, "never");
        assert_eq!(end(&mut requests, pieces[0], Status::SUCCESS), Outcome::Done);
        requests.end_piece(parent, Status::SUCCESS, Nanos(9), &stats, &mut |c| {
            out.push((c.tag, c.status));
        });
        out.sort_by_key(|(tag, _)| *tag);
        let ok = Status::SUCCESS;
        assert_eq!(out, [(10, ok), (11, ok), (12, ok), (20, Status::UNRECOVERED_READ)]);
        assert_eq!(requests.callers(), 0);
        let reads = stats.stat(Nanos(9), 512).reads();
        assert_eq!((reads.ios, reads.sectors), (2, 12), "one command of three, and one cut in two");
    }

    #[test]
    fn a_flush_comes_before_completion_where_the_device_has_no_fua() {
        let stats = SubmitterStats::default();
        let mut requests = Requests::new(1, 0);
        let id = requests.add(&read(5, 1), Nanos(0)).unwrap();
        requests.flush_after(id);
        let mut count = 0;
        let mut end = |status| requests.end(id, status, 0, Nanos(1), &stats, &mut |_| count += 1);
        assert_eq!(end(Status::SUCCESS), Outcome::FlushFirst(id));
        assert_eq!(end(Status::SUCCESS), Outcome::Done);
        assert_eq!(count, 1);
    }
}
