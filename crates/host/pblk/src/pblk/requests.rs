//! [`PblkRequestTable`]: the outstanding requests and their data.

use block::Payload;
use collections::Slab;

use super::stripe_layout::StripeMap;
use crate::invariants::{PblkViolation, require, require_eq};

/// An outstanding request.
#[derive(Clone, Copy, Debug)]
struct OutstandingRequest {
    /// Tag that the submitter gave it.
    tag: u64,
    data: Payload,
    stripe_map: StripeMap,
    outstanding: bool,
}

/// A table of fixed capacity; a request is identified by its index.
#[derive(Debug)]
pub(crate) struct PblkRequestTable {
    slots: Slab<OutstandingRequest>,
}

impl PblkRequestTable {
    /// Creates a table for `count` requests.
    pub(crate) fn new(count: u32) -> PblkRequestTable {
        let (data, spread) = (Payload::BitBucket, StripeMap::CONTIGUOUS);
        let blank = OutstandingRequest { tag: 0, data, stripe_map: spread, outstanding: false };
        PblkRequestTable { slots: Slab::with_free(vec![blank; count as usize]) }
    }

    /// Returns the number of outstanding requests.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        self.slots.in_use()
    }

    /// Adds a request and returns its index; `None` if the table is full.
    #[inline]
    pub(crate) fn insert(&mut self, tag: u64, data: Payload, spread: StripeMap) -> Option<u64> {
        let place = self.slots.take()?;
        self.slots[place] = OutstandingRequest { tag, data, stripe_map: spread, outstanding: true };
        Some(place.into())
    }

    /// Returns the data pointer of the request at `place`, and its layout in memory.
    #[inline]
    pub(crate) fn payload(&self, place: u64) -> (Payload, StripeMap) {
        let slot = &self.slots[place as u32];
        (slot.data, slot.stripe_map)
    }

    /// Removes the request at `place` and returns its tag.
    #[inline]
    pub(crate) fn remove(&mut self, place: u64) -> u64 {
        let slot = &mut self.slots[place as u32];
        debug_assert!(slot.outstanding, "request {place} ends twice");
        slot.outstanding = false;
        let tag = slot.tag;
        self.slots.release(place as u32);
        tag
    }

    /// Removes any outstanding request and returns its tag.
    pub(crate) fn remove_any(&mut self) -> Option<u64> {
        let place = self.slots.iter().position(|s| s.outstanding)?;
        Some(self.remove(place as u64))
    }

    /// Returns whether the request at `place` is outstanding.
    pub(crate) fn is_outstanding(&self, place: u64) -> bool {
        let slot = u32::try_from(place).ok().and_then(|place| self.slots.get(place));
        slot.is_some_and(|slot| slot.outstanding)
    }

    /// Returns the tags of the outstanding requests.
    pub(crate) fn tags(&self) -> impl Iterator<Item = u64> + '_ {
        self.slots.iter().filter(|slot| slot.outstanding).map(|slot| slot.tag)
    }

    /// Compares the requests with the free places.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check_invariants(&self) -> Result<(), PblkViolation> {
        for place in self.slots.free_indices() {
            let (subject, slot) = (format_args!("request {place}"), &self.slots[*place]);
            require!(
                !slot.outstanding,
                Requests,
                "a free place has no request",
                subject,
                false,
                slot
            );
        }
        let mut outstanding = 0;
        for slot in self.slots.iter().filter(|slot| slot.outstanding) {
            outstanding += 1;
            require!(
                !matches!(slot.data, Payload::Scattered { .. }),
                Requests,
                "the data of a request is contiguous",
                format_args!("tag {}", slot.tag),
                "no scattered data",
                slot.data
            );
        }
        let name = "a request has one place";
        require_eq!(Requests, name, "all requests", outstanding, self.slots.in_use());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_ends_once_and_a_full_table_says_so() {
        let mut requests = PblkRequestTable::new(2);
        let a = requests.insert(70, Payload::BitBucket, StripeMap::CONTIGUOUS).unwrap();
        let b = requests
            .insert(71, Payload::Contiguous(mem::Iova(4096)), StripeMap::CONTIGUOUS)
            .unwrap();
        assert_eq!(requests.insert(72, Payload::BitBucket, StripeMap::CONTIGUOUS), None);
        assert_eq!(requests.payload(b).0, Payload::Contiguous(mem::Iova(4096)));
        assert_eq!((requests.remove(a), requests.outstanding()), (70, 1));
        assert!(requests.insert(72, Payload::BitBucket, StripeMap::CONTIGUOUS).is_some());
        assert_eq!([requests.remove_any(), requests.remove_any()], [Some(72), Some(71)]);
        assert_eq!(requests.remove_any(), None);
    }

    #[test]
    fn a_lost_request_is_reported() {
        let mut requests = PblkRequestTable::new(2);
        let place = requests.insert(70, Payload::BitBucket, StripeMap::CONTIGUOUS).unwrap();
        assert_eq!(requests.check_invariants(), Ok(()));
        requests.slots[place as u32].outstanding = false;
        let broken = requests.check_invariants().expect_err("a lost request").to_string();
        let text = "a request has one place is broken for all requests: expected 0, found 1";
        assert_eq!(broken, format!("requests: {text}"));
    }
}
