//! [`Parents`]: requests whose parts are under way.
//!
//! Guarantee: a request ends once, when all its parts have, with the worst of their statuses.

use nvme::Status;

/// A request of this core.
#[derive(Clone, Copy, Debug)]
struct Parent {
    /// The caller's name for it.
    tag: u64,
    /// Shards that have not answered, as bits.
    waiting: u32,
    status: Status,
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) tag: u64,
    pub(crate) status: Status,
}

/// A fixed number of requests, each named by its place.
#[derive(Debug)]
pub(crate) struct Parents {
    all: Box<[Parent]>,
    free: Vec<u32>,
}

/// The worse of two statuses: whichever is no success; of two errors that of the later status code
/// type, and in it the larger code, so that a media error is not hidden by a lesser one, and the
/// answer does not depend on which shard was first.
#[inline]
fn worse(a: Status, b: Status) -> Status {
    if a.is_success() || !b.is_success() && b.to_bits() & 0x7ff > a.to_bits() & 0x7ff {
        b
    } else {
        a
    }
}

impl Parents {
    pub(crate) fn new(count: u32) -> Parents {
        let blank = Parent { tag: 0, waiting: 0, status: Status::SUCCESS };
        Parents { all: vec![blank; count as usize].into(), free: (0..count).rev().collect() }
    }

    /// Requests outstanding.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// The place that the next request will have; `None` if all are in use.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Takes a request that waits for these shards.
    #[inline]
    pub(crate) fn put(&mut self, tag: u64, waiting: u32) {
        if let Some(place) = self.free.pop() {
            self.all[place as usize] = Parent { tag, waiting, status: Status::SUCCESS };
        }
    }

    /// A shard has ended its part. Returns the request if that was the last one; nothing for a part
    /// that is not waited for.
    #[inline]
    pub(crate) fn end(&mut self, place: u32, shard: u32, status: Status) -> Option<Whole> {
        let parent = self.all.get_mut(place as usize)?;
        if parent.waiting & 1 << shard == 0 {
            return None;
        }
        parent.waiting &= !(1 << shard);
        parent.status = worse(parent.status, status);
        if parent.waiting != 0 {
            return None;
        }
        self.free.push(place);
        Some(Whole { tag: parent.tag, status: parent.status })
    }

    /// A place that waits for a shard.
    pub(crate) fn waits_for(&self, shard: u32) -> Option<u32> {
        let place = self.all.iter().position(|p| p.waiting & 1 << shard != 0)?;
        Some(place as u32)
    }

    /// Ends any outstanding request, whatever it waits for.
    pub(crate) fn end_any(&mut self) -> Option<u64> {
        let place = self.all.iter().position(|p| p.waiting != 0)?;
        self.all[place].waiting = 0;
        self.free.push(place as u32);
        Some(self.all[place].tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_once_with_its_last_part_and_the_worst_status() {
        let mut parents = Parents::new(2);
        let a = parents.next().unwrap();
        parents.put(7, 0b101);
        let b = parents.next().unwrap();
        parents.put(8, 0b1);
        assert_eq!((parents.next(), parents.outstanding()), (None, 2));
        assert_eq!(parents.end(a, 2, Status::UNRECOVERED_READ), None);
        assert_eq!(parents.end(a, 2, Status::SUCCESS), None, "not waited for any more");
        assert_eq!(parents.end(a, 31, Status::SUCCESS), None);
        assert_eq!(parents.waits_for(0), Some(a.min(b)));
        let whole = parents.end(a, 0, Status::CAPACITY_EXCEEDED);
        assert_eq!(whole, Some(Whole { tag: 7, status: Status::UNRECOVERED_READ }));
        assert_eq!(parents.end_any(), Some(8));
        assert_eq!((parents.end_any(), parents.outstanding()), (None, 0));
        assert_eq!(parents.end(u32::MAX, 0, Status::SUCCESS), None);
    }

    #[test]
    fn the_worse_status_does_not_depend_on_the_order() {
        let all = [Status::SUCCESS, Status::CAPACITY_EXCEEDED, Status::UNRECOVERED_READ];
        for a in all {
            for b in all {
                assert_eq!(worse(a, b), worse(b, a));
            }
        }
        assert_eq!(worse(all[0], all[1]), all[1]);
        assert_eq!(worse(all[1], all[2]), all[2]);
    }
}
