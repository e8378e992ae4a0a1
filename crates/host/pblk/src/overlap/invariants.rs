//! Invariants of [`OverlapSerializer`].

use std::collections::BTreeSet;

use super::{BucketLink, NIL, OverlapSerializer, OverlapState, SHORT_GRANULES_MAX};
use crate::invariants::{PblkViolation, require, require_eq};

impl<D: block::BlockDevice> OverlapSerializer<D> {
    /// Checks the requests, their lists, and what they wait for; not the device. May be called
    /// between any two calls of the device's methods. Takes time proportional to the queue depth
    /// and to the square of the outstanding requests; for tests.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), PblkViolation> {
        for id in self.slots.free_indices() {
            let (subject, state) = (format_args!("request {id}"), self.slots[*id].state);
            let name = "a free slot has no request";
            require_eq!(Overlaps, name, subject, OverlapState::Free, state);
        }
        let in_use = self.slots.iter().filter(|slot| slot.state != OverlapState::Free).count();
        require_eq!(Overlaps, "a request has one slot", "all", in_use, self.slots.in_use());
        let tracked = [OverlapState::Waiting, OverlapState::InFlight];
        let tracked: Vec<u32> = self.in_state(tracked).collect();
        self.check_blockers(&tracked)?;
        self.check_lists(&tracked)
    }

    /// Returns the slots of the requests that the device has.
    pub(crate) fn at_device(&self) -> impl Iterator<Item = u32> + '_ {
        self.in_state([OverlapState::Untracked, OverlapState::InFlight])
    }

    fn in_state(&self, states: [OverlapState; 2]) -> impl Iterator<Item = u32> + '_ {
        let found = (0..).zip(&self.slots).filter(move |(_, slot)| states.contains(&slot.state));
        found.map(|(id, _)| id)
    }

    /// Compares what each request waits for with the ranges of earlier requests.
    fn check_blockers(&self, tracked: &[u32]) -> Result<(), PblkViolation> {
        let mut unblocked = BTreeSet::new();
        for &id in tracked {
            let slot = &self.slots[id];
            let earlier = tracked.iter().filter(|other| {
                let other = &self.slots[**other];
                other.order < slot.order && other.conflicts_with(slot)
            });
            let subject = format_args!("request {id}");
            let blockers = earlier.count() as u32;
            require_eq!(Overlaps, "earlier overlapping requests", subject, blockers, slot.blockers);
            require!(
                slot.state == OverlapState::Waiting || blockers == 0,
                Overlaps,
                "a request in flight overlaps no earlier one",
                subject,
                0,
                blockers
            );
            if slot.state == OverlapState::Waiting && blockers == 0 {
                unblocked.insert(id);
            }
        }
        let (listed, ready): (_, BTreeSet<u32>) =
            (self.ready.len(), self.ready.iter().copied().collect());
        require_eq!(Overlaps, "a request is ready once", "all", ready.len(), listed);
        require_eq!(Overlaps, "unblocked requests are ready", "all", unblocked, ready);
        Ok(())
    }

    /// Compares the links of the lists with the granules of the tracked requests.
    fn check_lists(&self, tracked: &[u32]) -> Result<(), PblkViolation> {
        let mut expected = BTreeSet::new();
        for &id in tracked {
            let (slot, base) = (&self.slots[id], id * SHORT_GRANULES_MAX as u32);
            if slot.is_long {
                expected.insert((self.long_list(), base, 0));
                continue;
            }
            for (place, granule) in (base..).zip(slot.first_granule()..=slot.last_granule()) {
                expected.insert((self.bucket(granule), place, granule));
            }
        }
        let mut found = BTreeSet::new();
        for (list, &head) in self.list_heads.iter().enumerate() {
            let (mut before, mut at) = (NIL, head);
            while at != NIL {
                let BucketLink { granule, prev, next } = self.links[at as usize];
                let subject = format_args!("link {at}");
                require_eq!(Overlaps, "a link names the one before", subject, before, prev);
                let is_new = found.insert((list, at, granule));
                require!(is_new, Overlaps, "a list ends", format_args!("list {list}"), NIL, at);
                (before, at) = (at, next);
            }
        }
        require_eq!(Overlaps, "granules of requests are listed", "all", expected, found);
        Ok(())
    }
}
