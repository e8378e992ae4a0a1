//! [`PblkRequestTable`]: the outstanding requests and their data.

use block::Payload;
use collections::Slab;

use super::stripe_layout::StripeMap;

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
}
