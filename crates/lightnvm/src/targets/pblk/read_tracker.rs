//! [`Waits`]: on which parallel units users' reads are under way, so that garbage collection can keep
//! away from them ([`ftl::GcReadPriority::PerPu`]).
//!
//! Guarantee: a read counts on each of its parallel units from [`begin`](Waits::begin) to
//! [`end`](PuReadTracker::complete), in however many commands it goes out. Nothing is allocated once the table has
//! grown to the load.

use ftl::FlashGeometry;
use nvme::MAX_VECTOR_ADDRESSES;

/// The parallel units of one read, one after the other; neighbours in the list of addresses that share
/// one count once.
#[derive(Clone, Copy, Debug)]
struct TrackedRead {
    count: u8,
    pus: [u32; MAX_VECTOR_ADDRESSES as usize],
}

#[derive(Debug)]
pub(crate) struct PuReadTracker {
    shape: FlashGeometry,
    reads_per_pu: Box<[u32]>,
    reads: Vec<TrackedRead>,
    free: Vec<u32>,
}

impl PuReadTracker {
    pub(crate) fn new(shape: FlashGeometry) -> PuReadTracker {
        let reads_per_pu = vec![0; shape.pus as usize].into();
        PuReadTracker { shape, reads_per_pu, reads: Vec::new(), free: Vec::new() }
    }

    /// A read of these physical sectors, 64 at most, is under way. Returns its name.
    #[inline]
    pub(crate) fn begin(&mut self, addresses: &[(u32, u32)]) -> u32 {
        let id = self.free.pop().unwrap_or_else(|| {
            self.reads.push(TrackedRead { count: 0, pus: [0; MAX_VECTOR_ADDRESSES as usize] });
            (self.reads.len() - 1) as u32
        });
        let read = &mut self.reads[id as usize];
        read.count = 0;
        for &(psn, _) in addresses {
            let pu = self.shape.pu_of(self.shape.chunk_of(psn));
            let count = usize::from(read.count);
            if count > 0 && read.pus[count - 1] == pu {
                continue;
            }
            // A read has no more addresses than there is room for.
            let Some(slot) = read.pus.get_mut(count) else { break };
            *slot = pu;
            read.count += 1;
            self.reads_per_pu[pu as usize] += 1;
        }
        id
    }

    /// The read is done.
    #[inline]
    pub(crate) fn complete(&mut self, id: u32) {
        let read = &self.reads[id as usize];
        for pu in &read.pus[..usize::from(read.count)] {
            self.reads_per_pu[*pu as usize] -= 1;
        }
        self.free.push(id);
    }

    /// Reads under way on a parallel unit; 0 for one that there is not.
    #[inline]
    pub(crate) fn reads_on(&self, pu: u32) -> u32 {
        self.reads_per_pu.get(pu as usize).copied().unwrap_or(0)
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
        let on = |waits: &PuReadTracker| [0, 1, 2, 3, 4].map(|pu| waits.reads_on(pu));
        // 64 sectors on each parallel unit.
        let a = waits.begin(&[(0, 0), (1, 1), (64, 2), (65, 3), (2, 4)]);
        assert_eq!(on(&waits), [2, 1, 0, 0, 0]);
        let all: Vec<(u32, u32)> = (0..64).map(|i| (i % 4 * 64, i)).collect();
        let b = waits.begin(&all);
        assert_eq!(on(&waits), [18, 17, 16, 16, 0]);
        waits.complete(a);
        assert_eq!(on(&waits), [16, 16, 16, 16, 0]);
        assert_eq!(waits.begin(&[(255, 0)]), a, "used again");
        waits.complete(b);
        assert_eq!(on(&waits), [0, 0, 0, 1, 0]);
    }
}
