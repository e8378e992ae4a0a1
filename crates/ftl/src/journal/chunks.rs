//! [`Pool`]: the reserved chunks, what each is used for, and which is taken next.
//!
//! A chunk holds frames of one generation and one copy only, so that it can be erased when that
//! generation is no longer needed and nothing else goes with it.

use super::JournalError;
use crate::Shape;

/// What a chunk is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Erased.
    Free,
    /// Holds frames of this generation and copy.
    Held { generation: u64, lane: usize },
    /// To be erased.
    Stale,
    /// Being erased.
    Erasing,
    /// Never used again.
    Retired,
}

/// A reserved chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) chunk: u32,
    pub(crate) pu: u32,
    pub(crate) used: Use,
    /// What it holds may contradict what is written next: nothing is programmed anywhere before it
    /// is erased.
    pub(crate) unknown: bool,
    /// Programs under way.
    pub(crate) programs: u32,
    /// A program failed in it: it is erased once more, so that nothing in it is mistaken for something
    /// newer, and never written again.
    pub(super) failed: bool,
    /// When it became free, in the order of all such events.
    freed: u64,
}

/// All reserved chunks.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) slots: Vec<Slot>,
    events: u64,
    unknown: u32,
}

impl Pool {
    /// The chunks with these numbers; all free.
    pub(crate) fn new(
        shape: &Shape,
        chunks: impl Iterator<Item = u32>,
    ) -> Result<Pool, JournalError> {
        let mut slots: Vec<Slot> = Vec::new();
        for chunk in chunks {
            let times = 1 + slots.iter().filter(|s| s.chunk == chunk).count() as u32;
            if chunk >= shape.total_chunks() || times > 1 {
                let chunks = shape.total_chunks();
                return Err(JournalError::Chunk { chunk, times, chunks });
            }
            slots.push(Slot {
                chunk,
                pu: shape.pu_of(chunk),
                used: Use::Free,
                unknown: false,
                programs: 0,
                failed: false,
                freed: 0,
            });
        }
        Ok(Pool { slots, events: 0, unknown: 0 })
    }

    fn count(&self, which: impl Fn(Use) -> bool) -> u32 {
        self.slots.iter().filter(|s| which(s.used)).count() as u32
    }

    /// Chunks that can be used, now or later.
    pub(crate) fn good(&self) -> u32 {
        self.slots.iter().filter(|s| s.used != Use::Retired && !s.failed).count() as u32
    }

    /// Chunks that are retired.
    pub(crate) fn retired(&self) -> u32 {
        self.count(|u| u == Use::Retired)
    }

    /// Chunks that hold nothing that is needed.
    pub(crate) fn spare(&self) -> u32 {
        let spare = |s: &&Slot| matches!(s.used, Use::Free | Use::Stale | Use::Erasing);
        self.slots.iter().filter(|s| !s.failed).filter(spare).count() as u32
    }

    /// Chunks that will be free if their erase does not fail.
    pub(crate) fn on_their_way(&self) -> bool {
        self.slots.iter().any(|s| !s.failed && matches!(s.used, Use::Stale | Use::Erasing))
    }

    /// Chunks that hold frames of a generation; of one copy, or of both.
    pub(crate) fn held(&self, of: u64, copy: Option<usize>) -> u32 {
        self.count(|u| {
            matches!(u, Use::Held { generation, lane }
                if generation == of && copy.is_none_or(|c| c == lane))
        })
    }

    /// Whether chunks must be erased before anything is programmed.
    pub(crate) fn holds_back(&self) -> bool {
        self.unknown > 0
    }

    /// Marks a chunk as one that may contradict what is written next.
    pub(crate) fn distrust(&mut self, slot: usize) {
        self.slots[slot].used = Use::Stale;
        self.slots[slot].unknown = true;
        self.unknown += 1;
    }

    /// Takes a free chunk for a copy of a generation: on another parallel unit than all of the other
    /// copy, or else than what the other copy is being written to (`beside`), if there is such a
    /// chunk; then the one that has been free longest.
    pub(crate) fn take(
        &mut self,
        generation: u64,
        lane: usize,
        beside: Option<usize>,
    ) -> Option<usize> {
        let other = Use::Held { generation, lane: 1 - lane };
        let beside = beside.map(|slot| self.slots[slot].pu);
        let conflict = |pu: u32| {
            if beside == Some(pu) {
                2
            } else {
                u32::from(self.slots.iter().any(|s| s.used == other && s.pu == pu))
            }
        };
        let free = self.slots.iter().enumerate().filter(|(_, s)| s.used == Use::Free);
        let (slot, _) = free.min_by_key(|(_, s)| (conflict(s.pu), s.freed))?;
        self.slots[slot].used = Use::Held { generation, lane };
        Some(slot)
    }

    /// A chunk to erase.
    pub(crate) fn to_erase(&self) -> Option<usize> {
        self.slots.iter().position(|s| s.used == Use::Stale && s.programs == 0)
    }

    /// Lets go of chunks that are held for something; says whether there were any.
    pub(crate) fn release(&mut self, which: impl Fn(u64, usize) -> bool) -> bool {
        let mut any = false;
        for slot in &mut self.slots {
            if let Use::Held { generation, lane } = slot.used
                && which(generation, lane)
            {
                slot.used = Use::Stale;
                any = true;
            }
        }
        any
    }

    /// A program in a chunk has failed.
    pub(crate) fn program_failed(&mut self, slot: usize) {
        self.slots[slot].failed = true;
    }

    /// The erase of a chunk has ended: it is free, or retired if that or a program failed.
    pub(crate) fn erased(&mut self, slot: usize, ok: bool) {
        self.events += 1;
        let slot = &mut self.slots[slot];
        slot.used = if ok && !slot.failed { Use::Free } else { Use::Retired };
        slot.freed = self.events;
        self.unknown -= u32::from(slot.unknown);
        slot.unknown = false;
    }
}

#[cfg(test)]
mod tests {
    use nvme::Geometry;

    use super::*;

    fn shape() -> Shape {
        Shape::of(&Geometry {
            groups: 2,
            pus: 2,
            chunks: 10,
            sectors: 4,
            sector_bytes: 512,
            oob_bytes: 0,
            ws_min: 1,
            ws_opt: 1,
            mw_cunits: 0,
        })
    }

    #[test]
    fn copies_keep_to_different_parallel_units_as_long_as_they_can() {
        // Two chunks on each of three parallel units, and one on a fourth.
        let mut pool = Pool::new(&shape(), [0, 1, 10, 11, 20, 21, 30].into_iter()).unwrap();
        let mut beside = [None, None];
        for _ in 0..3 {
            for lane in [0, 1] {
                beside[lane] = pool.take(7, lane, beside[1 - lane]);
            }
        }
        let pus = |lane| {
            let held = Use::Held { generation: 7, lane };
            let mut pus: Vec<u32> =
                pool.slots.iter().filter(|s| s.used == held).map(|s| s.pu).collect();
            pus.dedup();
            pus
        };
        assert!(pus(0).iter().all(|pu| !pus(1).contains(pu)), "{:?} {:?}", pus(0), pus(1));
        assert_eq!(pool.spare(), 1);
        assert_eq!((pool.held(7, Some(0)), pool.held(7, None), pool.held(6, None)), (3, 6, 0));
    }

    #[test]
    fn one_parallel_unit_is_better_than_no_copy() {
        let mut pool = Pool::new(&shape(), [3, 4].into_iter()).unwrap();
        let first = pool.take(1, 0, None);
        assert_eq!((first, pool.take(1, 1, first)), (Some(0), Some(1)));
        assert_eq!(pool.take(1, 0, Some(1)), None);
    }

    #[test]
    fn chunks_in_which_a_program_or_an_erase_failed_are_not_taken_again() {
        let mut pool = Pool::new(&shape(), [0, 1, 2].into_iter()).unwrap();
        assert_eq!(pool.take(1, 0, None), Some(0));
        pool.program_failed(0);
        pool.release(|_, _| true);
        assert_eq!(pool.to_erase(), Some(0));
        pool.erased(0, true);
        assert_eq!((pool.take(2, 0, None), pool.take(2, 0, None)), (Some(1), Some(2)));
        pool.erased(1, false);
        assert_eq!((pool.good(), pool.retired(), pool.spare()), (1, 2, 0));
        pool.program_failed(2);
        assert_eq!((pool.good(), pool.retired(), pool.spare()), (0, 2, 0));
        assert_eq!(pool.take(3, 0, None), None);
    }

    #[test]
    fn what_is_not_trusted_holds_back_until_it_is_erased() {
        let mut pool = Pool::new(&shape(), [5, 6].into_iter()).unwrap();
        pool.distrust(1);
        assert!(pool.holds_back());
        pool.slots[1].programs = 1;
        assert_eq!(pool.to_erase(), None);
        pool.slots[1].programs = 0;
        assert_eq!(pool.to_erase(), Some(1));
        pool.erased(1, false);
        assert!(!pool.holds_back());
    }

    #[test]
    fn chunks_that_do_not_exist_or_come_twice_are_refused() {
        for (chunks, times) in [([1, 1], 2), ([1, 40], 1)] {
            let error = Pool::new(&shape(), chunks.into_iter()).unwrap_err();
            assert_eq!(error, JournalError::Chunk { chunk: chunks[1], times, chunks: 40 });
        }
    }
}
