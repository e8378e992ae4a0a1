//! [`Requests`]: which requests are outstanding, and where their data is.

use block::Payload;

use super::spread::Spread;

/// An outstanding request.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The caller's name for it.
    tag: u64,
    data: Payload,
    spread: Spread,
    outstanding: bool,
}

/// A fixed number of requests, each named by its place in the table.
#[derive(Debug)]
pub(crate) struct Requests {
    slots: Box<[Slot]>,
    free: Vec<u32>,
}

impl Requests {
    /// Room for `count` requests.
    pub(crate) fn new(count: u32) -> Requests {
        let (data, spread) = (Payload::BitBucket, Spread::NONE);
        let blank = Slot { tag: 0, data, spread, outstanding: false };
        Requests { slots: vec![blank; count as usize].into(), free: (0..count).rev().collect() }
    }

    /// Requests outstanding.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a request and returns its place; `None` if all are in use.
    #[inline]
    pub(crate) fn put(&mut self, tag: u64, data: Payload, spread: Spread) -> Option<u64> {
        let place = self.free.pop()?;
        self.slots[place as usize] = Slot { tag, data, spread, outstanding: true };
        Some(place.into())
    }

    /// Where the data of the request at `place` is, and how it is spread.
    #[inline]
    pub(crate) fn data(&self, place: u64) -> (Payload, Spread) {
        let slot = &self.slots[place as usize];
        (slot.data, slot.spread)
    }

    /// Ends the request at `place` and returns the caller's name for it.
    #[inline]
    pub(crate) fn end(&mut self, place: u64) -> u64 {
        let slot = &mut self.slots[place as usize];
        debug_assert!(slot.outstanding, "request {place} ends twice");
        slot.outstanding = false;
        self.free.push(place as u32);
        slot.tag
    }

    /// Ends any outstanding request.
    pub(crate) fn end_any(&mut self) -> Option<u64> {
        let place = self.slots.iter().position(|s| s.outstanding)?;
        Some(self.end(place as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_ends_once_and_a_full_table_says_so() {
        let mut requests = Requests::new(2);
        let a = requests.put(70, Payload::BitBucket, Spread::NONE).unwrap();
        let b = requests.put(71, Payload::At(ring::Iova(4096)), Spread::NONE).unwrap();
        assert_eq!(requests.put(72, Payload::BitBucket, Spread::NONE), None);
        assert_eq!(requests.data(b).0, Payload::At(ring::Iova(4096)));
        assert_eq!((requests.end(a), requests.outstanding()), (70, 1));
        assert!(requests.put(72, Payload::BitBucket, Spread::NONE).is_some());
        assert_eq!([requests.end_any(), requests.end_any()], [Some(72), Some(71)]);
        assert_eq!(requests.end_any(), None);
    }
}
