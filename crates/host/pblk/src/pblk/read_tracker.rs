//! [`PuReadTracker`]: counts host reads in flight per parallel unit, so that garbage collection can
//! avoid these units ([`ftl::GcReadPriority::PerPu`]).
//!
//! Invariant: a read counts on each of its parallel units from [`begin`](PuReadTracker::begin) to
//! [`complete`](PuReadTracker::complete), however many commands it takes. The table allocates
//! nothing once it has grown to the load.

use collections::Slab;
use nvme::{FlashGeometry, MAX_VECTOR_ADDRESSES, PhysSector, PuId};

use crate::invariants::{PblkViolation, require_eq};

/// The parallel units of one read, in order. Consecutive addresses on one unit count once.
#[derive(Clone, Copy, Debug)]
struct TrackedRead {
    count: u8,
    pus: [PuId; MAX_VECTOR_ADDRESSES as usize],
}

#[derive(Debug)]
pub(crate) struct PuReadTracker {
    shape: FlashGeometry,
    reads_per_pu: Box<[u32]>,
    reads: Slab<TrackedRead>,
}

impl PuReadTracker {
    pub(crate) fn new(shape: FlashGeometry) -> PuReadTracker {
        let reads_per_pu = vec![0; shape.pus as usize].into();
        PuReadTracker { shape, reads_per_pu, reads: Slab::new() }
    }

    /// Adds a read of at most 64 physical sectors. Returns its id.
    #[inline]
    pub(crate) fn begin(&mut self, sectors: impl Iterator<Item = PhysSector>) -> u32 {
        let id = self.reads.take_or_push(|| TrackedRead {
            count: 0,
            pus: [PuId(0); MAX_VECTOR_ADDRESSES as usize],
        });
        let read = &mut self.reads[id];
        read.count = 0;
        for phys in sectors {
            let pu = self.shape.pu_of(self.shape.chunk_of(phys));
            let count = usize::from(read.count);
            if count > 0 && read.pus[count - 1] == pu {
                continue;
            }
            // A read has at most as many addresses as the array.
            let Some(slot) = read.pus.get_mut(count) else { break };
            *slot = pu;
            read.count += 1;
            self.reads_per_pu[pu.index()] += 1;
        }
        id
    }

    /// Removes a completed read.
    #[inline]
    pub(crate) fn complete(&mut self, id: u32) {
        let read = &self.reads[id];
        for pu in &read.pus[..usize::from(read.count)] {
            self.reads_per_pu[pu.index()] -= 1;
        }
        self.reads.release(id);
    }

    /// Returns the number of reads in flight on a parallel unit; 0 for a unit that does not exist.
    #[inline]
    pub(crate) fn reads_on(&self, pu: PuId) -> u32 {
        self.reads_per_pu.get(pu.index()).copied().unwrap_or(0)
    }

    /// Returns the number of reads in flight.
    pub(crate) fn reads(&self) -> usize {
        self.reads.in_use()
    }

    /// Compares the counts with the reads in flight.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check_invariants(&self) -> Result<(), PblkViolation> {
        let mut counted = vec![0; self.reads_per_pu.len()];
        let usage = self.reads.usage();
        let in_flight = self.reads.iter().zip(&usage).filter(|(_, is_in_use)| **is_in_use);
        for (read, _) in in_flight {
            let pus = &read.pus[..usize::from(read.count)];
            pus.iter().for_each(|pu| counted[pu.index()] += 1);
        }
        for (pu, (expected, found)) in counted.into_iter().zip(&self.reads_per_pu).enumerate() {
            let subject = format_args!("parallel unit {pu}");
            require_eq!(ReadTracker, "reads in flight are counted", subject, expected, *found);
        }
        let in_use = usage.into_iter().filter(|is_in_use| *is_in_use).count();
        require_eq!(ReadTracker, "a place is free once", "all places", in_use, self.reads());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nvme::Geometry;

    use super::*;

    #[test]
    fn a_read_counts_on_its_units_until_it_ends() {
        let shape = FlashGeometry::from_geometry(&Geometry {
            groups: 2,
            pus: 2,
            chunks: 4,
            sectors: 16,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 4,
            ws_opt: 4,
            mw_cunits: 0,
        });
        let mut waits = PuReadTracker::new(shape);
        let on = |waits: &PuReadTracker| [0, 1, 2, 3, 4].map(|pu| waits.reads_on(PuId(pu)));
        // Each parallel unit has 64 sectors.
        let a = waits.begin([0, 1, 64, 65, 2].map(PhysSector).into_iter());
        assert_eq!(on(&waits), [2, 1, 0, 0, 0]);
        let b = waits.begin((0..64).map(|i| PhysSector(i % 4 * 64)));
        assert_eq!(on(&waits), [18, 17, 16, 16, 0]);
        waits.complete(a);
        assert_eq!(on(&waits), [16, 16, 16, 16, 0]);
        assert_eq!(waits.begin(std::iter::once(PhysSector(255))), a, "used again");
        assert_eq!(waits.check_invariants(), Ok(()));
        waits.complete(b);
        assert_eq!(on(&waits), [0, 0, 0, 1, 0]);
        waits.reads_per_pu[1] += 1;
        let broken = waits.check_invariants().expect_err("a read that is not in flight");
        assert_eq!(
            broken.to_string(),
            "read tracker: reads in flight are counted is broken for parallel unit 1: expected 0, \
             found 1"
        );
    }
}
