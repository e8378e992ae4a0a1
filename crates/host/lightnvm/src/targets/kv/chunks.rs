//! [`KvChunks`]: the chunks of a target, their roles, and the free lists.

use std::collections::VecDeque;

use ftl::FlashGeometry;

/// The role of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkRole {
    /// Not owned by this target.
    Foreign,
    /// Erased.
    Free,
    /// Open for records.
    Open,
    /// Contains records and accepts no more.
    Closed,
    /// A whole chunk of a value, written or being written.
    LargeValue,
    /// A program failed: live records are to be relocated, then the chunk is retired.
    Failing,
    /// Being compacted.
    Compacting,
    /// Contains no current data: to be erased.
    Obsolete,
    /// Never used again.
    Retired,
}

/// A chunk.
#[derive(Clone, Debug)]
pub(crate) struct KvChunk {
    pub(crate) role: ChunkRole,
    /// Bytes of live records.
    pub(crate) live_bytes: u32,
    /// Stamp, which increases with every chunk opened for records.
    pub(crate) stamp: u64,
    /// Reads in flight, which defer the erase; and records of values being written, which also
    /// defer compaction.
    pub(crate) readers: u32,
    pub(crate) unfinished_records: u32,
    /// Offset and length of every record, in order.
    pub(crate) records: Vec<(u32, u32)>,
}

/// All chunks of the drive.
#[derive(Debug)]
pub(crate) struct KvChunks {
    table: Box<[KvChunk]>,
    shape: FlashGeometry,
    /// By parallel unit, longest free first.
    free: Box<[VecDeque<u32>]>,
    pub(crate) free_count: u32,
    /// Index of the parallel unit of the next allocation.
    next_pu: u32,
    /// Number of this target's chunks that are not retired.
    pub(crate) good_count: u32,
    /// Number of chunks with records, in any state.
    pub(crate) packed_count: u32,
    /// Bytes of live records in all chunks.
    pub(crate) live_bytes: u64,
}

impl KvChunks {
    /// Creates the table, with all chunks foreign.
    pub(crate) fn new(shape: FlashGeometry) -> KvChunks {
        let blank = KvChunk {
            role: ChunkRole::Foreign,
            live_bytes: 0,
            stamp: 0,
            readers: 0,
            unfinished_records: 0,
            records: Vec::new(),
        };
        KvChunks {
            table: vec![blank; shape.total_chunks() as usize].into(),
            free: (0..shape.pus).map(|_| VecDeque::new()).collect(),
            free_count: 0,
            next_pu: 0,
            good_count: 0,
            packed_count: 0,
            live_bytes: 0,
            shape,
        }
    }

    #[inline]
    pub(crate) fn get(&self, chunk: u32) -> &KvChunk {
        &self.table[chunk as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, chunk: u32) -> &mut KvChunk {
        &mut self.table[chunk as usize]
    }

    /// Returns whether a chunk index belongs to this target.
    pub(crate) fn is_owned(&self, chunk: u32) -> bool {
        self.table.get(chunk as usize).is_some_and(|c| c.role != ChunkRole::Foreign)
    }

    /// Sets the role of a chunk of this target at power-on.
    pub(crate) fn set_role(&mut self, chunk: u32, usage: ChunkRole) {
        self.get_mut(chunk).role = usage;
        self.good_count += u32::from(usage != ChunkRole::Retired);
        self.packed_count +=
            u32::from(matches!(usage, ChunkRole::Open | ChunkRole::Closed | ChunkRole::Failing));
        if usage == ChunkRole::Free {
            self.free[self.shape.pu_of(chunk) as usize].push_back(chunk);
            self.free_count += 1;
        }
    }

    /// Allocates a free chunk from the next parallel unit in striping order that has one.
    pub(crate) fn allocate(&mut self, usage: ChunkRole) -> Option<u32> {
        if self.free_count == 0 {
            return None;
        }
        for _ in 0..self.shape.pus {
            let pu = self.shape.striped_pu(self.next_pu);
            self.next_pu = (self.next_pu + 1) % self.shape.pus;
            if let Some(chunk) = self.free[pu as usize].pop_front() {
                self.free_count -= 1;
                self.packed_count += u32::from(usage == ChunkRole::Open);
                self.get_mut(chunk).role = usage;
                return Some(chunk);
            }
        }
        None
    }

    /// Returns an erased chunk to the free list.
    pub(crate) fn release(&mut self, chunk: u32) {
        debug_assert_eq!(self.get(chunk).live_bytes, 0, "chunk {chunk} is erased while it is live");
        self.get_mut(chunk).role = ChunkRole::Free;
        self.free[self.shape.pu_of(chunk) as usize].push_back(chunk);
        self.free_count += 1;
    }

    /// Retires a chunk.
    pub(crate) fn retire(&mut self, chunk: u32) {
        if self.get(chunk).role != ChunkRole::Retired {
            self.get_mut(chunk).role = ChunkRole::Retired;
            self.good_count -= 1;
        }
    }

    /// Adds a live record to a chunk's count.
    #[inline]
    pub(crate) fn add_live(&mut self, chunk: u32, bytes: u32) {
        self.get_mut(chunk).live_bytes += bytes;
        self.live_bytes += u64::from(bytes);
    }

    /// Removes a record that became garbage from a chunk's count.
    #[inline]
    pub(crate) fn sub_live(&mut self, chunk: u32, bytes: u32) {
        debug_assert!(self.get(chunk).live_bytes >= bytes, "chunk {chunk}: {bytes}");
        self.get_mut(chunk).live_bytes -= bytes;
        self.live_bytes -= u64::from(bytes);
    }

    /// Returns the closed chunk with the fewest live bytes, if fewer than `below`. Of several, the
    /// one opened first is taken, so that old records of deleted keys, and their tombstones, are
    /// reclaimed. Scans all chunks; it is called once per compacted chunk.
    pub(crate) fn victim(&self, below: u32) -> Option<u32> {
        let candidates = (0..)
            .zip(&self.table)
            .filter(|(_, c)| c.role == ChunkRole::Closed && c.unfinished_records == 0);
        let (chunk, least) = candidates.min_by_key(|(_, c)| (c.live_bytes, c.stamp))?;
        (least.live_bytes < below).then_some(chunk)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &KvChunk)> {
        (0..).zip(&self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::Geometry;

    #[test]
    fn chunks_are_taken_in_turn_from_parallel_units_on_different_channels() {
        let geometry = Geometry {
            groups: 2,
            pus: 2,
            chunks: 4,
            sectors: 32,
            sector_bytes: 512,
            oob_bytes: 16,
            ws_min: 4,
            ws_opt: 4,
            mw_cunits: 0,
        };
        let shape = FlashGeometry::from_geometry(&geometry);
        let mut chunks = KvChunks::new(shape);
        for chunk in 0..16 {
            chunks.set_role(chunk, if chunk == 5 { ChunkRole::Retired } else { ChunkRole::Free });
        }
        assert_eq!((chunks.good_count, chunks.free_count), (15, 15));
        let pus: Vec<u32> =
            (0..8).map(|_| shape.pu_of(chunks.allocate(ChunkRole::Open).unwrap())).collect();
        assert_eq!(pus, [0, 2, 1, 3, 0, 2, 1, 3]);
        let all: Vec<u32> = std::iter::from_fn(|| chunks.allocate(ChunkRole::LargeValue)).collect();
        assert_eq!((all.len(), chunks.free_count, chunks.packed_count), (7, 0, 8));
        chunks.release(all[0]);
        assert_eq!(chunks.allocate(ChunkRole::Open), Some(all[0]));
        for (chunk, live) in [(0, 100), (8, 50), (4, 70)] {
            chunks.get_mut(chunk).role = ChunkRole::Closed;
            chunks.add_live(chunk, live);
        }
        assert_eq!(chunks.victim(1000), Some(8));
        chunks.get_mut(8).unfinished_records = 1;
        assert_eq!((chunks.victim(1000), chunks.victim(70)), (Some(4), None));
    }
}
