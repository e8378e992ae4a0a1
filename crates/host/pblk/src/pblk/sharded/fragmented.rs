//! [`ParentRequests`]: requests with fragments in flight.
//!
//! Invariant: a request completes once, after all its fragments, with the worst of their statuses.

use collections::Slab;
use nvme::Status;

use crate::invariants::{PblkViolation, require, require_eq};

/// A request of this core.
#[derive(Clone, Copy, Debug)]
struct ParentRequest {
    /// Tag that the submitter gave it.
    tag: u64,
    /// Bit mask of the shards whose fragments have not completed.
    pending_shards: u32,
    status: Status,
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletedRequest {
    pub(crate) tag: u64,
    pub(crate) status: Status,
}

/// A table of fixed capacity; a request is identified by its index.
#[derive(Debug)]
pub(crate) struct ParentRequests {
    requests: Slab<ParentRequest>,
}

/// Returns the worse of two statuses. An error is worse than success. Of two errors, the one with
/// the larger status code type, then the larger status code, is worse. A media error is thus not
/// hidden by a lesser error, and the result does not depend on the order of the shards.
#[inline]
fn worse(a: Status, b: Status) -> Status {
    if a.is_success() || !b.is_success() && b.to_bits() & 0x7ff > a.to_bits() & 0x7ff {
        b
    } else {
        a
    }
}

impl ParentRequests {
    pub(crate) fn new(count: u32) -> ParentRequests {
        let blank = ParentRequest { tag: 0, pending_shards: 0, status: Status::SUCCESS };
        ParentRequests { requests: Slab::with_free(vec![blank; count as usize]) }
    }

    /// Returns the number of outstanding requests.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.in_use()
    }

    /// Returns the index that the next request gets; `None` if the table is full.
    #[inline]
    pub(crate) fn next_slot(&self) -> Option<u32> {
        self.requests.next_free()
    }

    /// Adds a request that waits for the shards in the mask `waiting`.
    #[inline]
    pub(crate) fn insert(&mut self, tag: u64, waiting: u32) {
        if let Some(place) = self.requests.take() {
            self.requests[place] =
                ParentRequest { tag, pending_shards: waiting, status: Status::SUCCESS };
        }
    }

    /// Completes the fragment of a shard. Returns the request if this was its last fragment; `None`
    /// also for a fragment that is not pending.
    #[inline]
    pub(crate) fn complete_fragment(
        &mut self,
        place: u32,
        shard: u32,
        status: Status,
    ) -> Option<CompletedRequest> {
        let parent = self.requests.get_mut(place)?;
        if parent.pending_shards & 1 << shard == 0 {
            return None;
        }
        parent.pending_shards &= !(1 << shard);
        parent.status = worse(parent.status, status);
        if parent.pending_shards != 0 {
            return None;
        }
        let completed = CompletedRequest { tag: parent.tag, status: parent.status };
        self.requests.release(place);
        Some(completed)
    }

    /// Returns the index of a request that waits for a shard.
    pub(crate) fn pending_on(&self, shard: u32) -> Option<u32> {
        let place = self.requests.iter().position(|p| p.pending_shards & 1 << shard != 0)?;
        Some(place as u32)
    }

    /// Returns the index of every outstanding request, and the mask of the shards that it waits
    /// for.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let all = (0..).zip(&self.requests).map(|(place, p)| (place, p.pending_shards));
        all.filter(|(_, waiting)| *waiting != 0)
    }

    /// Returns whether the request at `place` is outstanding.
    pub(crate) fn is_outstanding(&self, place: u32) -> bool {
        self.requests.get(place).is_some_and(|parent| parent.pending_shards != 0)
    }

    /// Compares the requests with the free places; `shards` is the number of shards.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check_invariants(&self, shards: u32) -> Result<(), PblkViolation> {
        for place in self.requests.free_indices() {
            let waiting = self.requests[*place].pending_shards;
            let subject = format_args!("request {place}");
            require_eq!(Fragments, "a free place has no fragments", subject, 0, waiting);
        }
        for (place, waiting) in self.pending() {
            let (subject, has_shards) =
                (format_args!("request {place}"), u64::from(waiting) >> shards == 0);
            require!(has_shards, Fragments, "a fragment has a shard", subject, shards, waiting);
        }
        let (name, requests) = ("a request ends with its last fragment", self.pending().count());
        require_eq!(Fragments, name, "all requests", requests, self.outstanding());
        Ok(())
    }

    /// Removes any outstanding request, with its pending fragments, and returns its tag.
    pub(crate) fn remove_any(&mut self) -> Option<u64> {
        let place = self.requests.iter().position(|p| p.pending_shards != 0)? as u32;
        self.requests[place].pending_shards = 0;
        self.requests.release(place);
        Some(self.requests[place].tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_completes_once_with_its_last_fragment_and_the_worst_status() {
        let mut parents = ParentRequests::new(2);
        let a = parents.next_slot().unwrap();
        parents.insert(7, 0b101);
        let b = parents.next_slot().unwrap();
        parents.insert(8, 0b1);
        assert_eq!((parents.next_slot(), parents.outstanding()), (None, 2));
        assert_eq!(parents.complete_fragment(a, 2, Status::UNRECOVERED_READ), None);
        assert_eq!(
            parents.complete_fragment(a, 2, Status::SUCCESS),
            None,
            "not waited for any more"
        );
        assert_eq!(parents.complete_fragment(a, 31, Status::SUCCESS), None);
        assert_eq!(parents.pending_on(0), Some(a.min(b)));
        let whole = parents.complete_fragment(a, 0, Status::CAPACITY_EXCEEDED);
        assert_eq!(whole, Some(CompletedRequest { tag: 7, status: Status::UNRECOVERED_READ }));
        assert_eq!(parents.remove_any(), Some(8));
        assert_eq!((parents.remove_any(), parents.outstanding()), (None, 0));
        assert_eq!(parents.complete_fragment(u32::MAX, 0, Status::SUCCESS), None);
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

    #[test]
    fn a_fragment_without_a_request_or_a_shard_is_reported() {
        let mut parents = ParentRequests::new(2);
        let place = parents.next_slot().unwrap();
        parents.insert(7, 0b101);
        assert_eq!(parents.check_invariants(3), Ok(()));
        let broken = parents.check_invariants(2).expect_err("a shard that does not exist");
        assert_eq!(broken.invariant, "a fragment has a shard");
        parents.requests.release(place);
        let broken = parents.check_invariants(3).expect_err("a free place");
        let text = "a free place has no fragments is broken for request 0: expected 0, found 5";
        assert_eq!(broken.to_string(), format!("fragments: {text}"));
    }
}
