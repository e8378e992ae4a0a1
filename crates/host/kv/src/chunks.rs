//! [`KvChunks`]: the chunks of a target, their roles, and the free lists.
//!
//! The counts of chunks and of live bytes change with the roles and records that they count, so only
//! this module changes either.

use std::collections::{BTreeMap, VecDeque};

use nvme::{ChunkId, FlashGeometry, PuId};

use super::check::{KvPart, KvSubject, KvViolation, PartCheck};

/// The role of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvChunkRole {
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

impl KvChunkRole {
    /// Returns whether a chunk of this role contains records or may receive them.
    fn is_packed(self) -> bool {
        use KvChunkRole::{Closed, Compacting, Failing, Open};
        matches!(self, Open | Closed | Failing | Compacting)
    }
}

/// A record in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordSpan {
    /// Offset in the chunk.
    pub(crate) offset: u32,
    /// Length, header included.
    pub(crate) bytes: u32,
}

impl RecordSpan {
    /// Returns the offset of the first byte after the record.
    pub(crate) fn end(&self) -> u32 {
        self.offset + self.bytes
    }
}

/// A chunk found at power-on.
#[derive(Debug)]
pub(crate) struct RecoveredContents {
    pub(crate) role: KvChunkRole,
    pub(crate) live_bytes: u32,
    pub(crate) stamp: u64,
    pub(crate) records: Vec<RecordSpan>,
}

/// A chunk.
#[derive(Clone, Debug)]
pub(crate) struct KvChunk {
    role: KvChunkRole,
    /// Bytes of live records.
    live_bytes: u32,
    /// Stamp, which increases with every chunk opened for records.
    stamp: u64,
    /// Reads in flight, which defer the erase; and records of values being written, which also
    /// defer compaction.
    readers: u32,
    unfinished_records: u32,
    /// Every record, in order of offset.
    records: Vec<RecordSpan>,
}

impl KvChunk {
    /// Returns the role.
    #[inline]
    pub(crate) fn role(&self) -> KvChunkRole {
        self.role
    }

    /// Returns the bytes of live records.
    pub(crate) fn live_bytes(&self) -> u32 {
        self.live_bytes
    }

    /// Returns the number of reads in flight.
    #[inline]
    pub(crate) fn readers(&self) -> u32 {
        self.readers
    }

    /// Returns the number of records of values being written.
    pub(crate) fn unfinished_records(&self) -> u32 {
        self.unfinished_records
    }

    /// Returns every record, in order of offset.
    pub(crate) fn records(&self) -> &[RecordSpan] {
        &self.records
    }
}

/// All chunks of the drive.
#[derive(Debug)]
pub(crate) struct KvChunks {
    table: Box<[KvChunk]>,
    shape: FlashGeometry,
    /// By parallel unit, longest free first.
    free: Box<[VecDeque<u32>]>,
    free_count: u32,
    /// Index of the parallel unit of the next allocation.
    next_pu: u32,
    /// Number of this target's chunks that are not retired.
    good_count: u32,
    /// Number of chunks with records, in any state.
    packed_count: u32,
    /// Bytes of live records in all chunks.
    live_bytes: u64,
}

impl KvChunks {
    /// Creates the table, with all chunks foreign.
    pub(crate) fn new(shape: FlashGeometry) -> KvChunks {
        let blank = KvChunk {
            role: KvChunkRole::Foreign,
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
    fn get_mut(&mut self, chunk: u32) -> &mut KvChunk {
        &mut self.table[chunk as usize]
    }

    /// Returns the number of free chunks.
    #[inline]
    pub(crate) fn free_count(&self) -> u32 {
        self.free_count
    }

    /// Returns the number of this target's chunks that are not retired.
    #[inline]
    pub(crate) fn good_count(&self) -> u32 {
        self.good_count
    }

    /// Returns the number of chunks with records, in any state.
    pub(crate) fn packed_count(&self) -> u32 {
        self.packed_count
    }

    /// Returns the bytes of live records in all chunks.
    #[inline]
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Returns whether a chunk index belongs to this target.
    pub(crate) fn is_owned(&self, chunk: u32) -> bool {
        self.table.get(chunk as usize).is_some_and(|c| c.role != KvChunkRole::Foreign)
    }

    /// Sets the contents of a chunk of this target at power-on.
    pub(crate) fn set_recovered(&mut self, chunk: u32, contents: RecoveredContents) {
        let RecoveredContents { role, live_bytes, stamp, mut records } = contents;
        // Those of other roles are garbage that is not compacted.
        records.truncate(if role.is_packed() { records.len() } else { 0 });
        records.sort_unstable();
        self.good_count += u32::from(role != KvChunkRole::Retired);
        self.packed_count += u32::from(role.is_packed());
        self.live_bytes += u64::from(live_bytes);
        let pu = self.shape.pu_of(ChunkId(chunk)).index();
        if role == KvChunkRole::Free {
            self.free[pu].push_back(chunk);
            self.free_count += 1;
        }
        let c = self.get_mut(chunk);
        (c.role, c.live_bytes, c.stamp, c.records) = (role, live_bytes, stamp, records);
    }

    /// Allocates a free chunk from the next parallel unit in striping order that has one.
    pub(crate) fn allocate(&mut self, usage: KvChunkRole) -> Option<u32> {
        if self.free_count == 0 {
            return None;
        }
        for _ in 0..self.shape.pus {
            let pu = self.shape.striped_pu(self.next_pu);
            self.next_pu = (self.next_pu + 1) % self.shape.pus;
            if let Some(chunk) = self.free[pu.index()].pop_front() {
                self.free_count -= 1;
                self.packed_count += u32::from(usage.is_packed());
                self.get_mut(chunk).role = usage;
                return Some(chunk);
            }
        }
        None
    }

    /// Sets the stamp of a chunk that is opened for records.
    pub(crate) fn set_stamp(&mut self, chunk: u32, stamp: u64) {
        self.get_mut(chunk).stamp = stamp;
    }

    /// Changes the role of a chunk that contains records to another role for records.
    fn change_packed_role(&mut self, chunk: u32, to: KvChunkRole) {
        let c = self.get_mut(chunk);
        assert!(c.role.is_packed(), "chunk {chunk} is to be {to:?} and has no records: {c:?}");
        c.role = to;
    }

    /// Closes an open chunk that is full.
    pub(crate) fn close(&mut self, chunk: u32) {
        self.change_packed_role(chunk, KvChunkRole::Closed);
    }

    /// Marks an open chunk whose program failed: it is to be evacuated and retired.
    pub(crate) fn fail(&mut self, chunk: u32) {
        self.change_packed_role(chunk, KvChunkRole::Failing);
    }

    /// Marks a closed chunk as being compacted.
    pub(crate) fn begin_compaction(&mut self, chunk: u32) {
        self.change_packed_role(chunk, KvChunkRole::Compacting);
    }

    /// Marks a chunk without current data as obsolete, and forgets its records.
    pub(crate) fn mark_obsolete(&mut self, chunk: u32) {
        let c = self.get_mut(chunk);
        assert!(
            c.live_bytes == 0 && c.unfinished_records == 0,
            "chunk {chunk} becomes obsolete with live records: {c:?}"
        );
        let was_packed = c.role.is_packed();
        (c.role, c.records) = (KvChunkRole::Obsolete, Vec::new());
        self.packed_count -= u32::from(was_packed);
    }

    /// Returns an erased chunk to the free list.
    pub(crate) fn release(&mut self, chunk: u32) {
        let c = self.get_mut(chunk);
        assert_eq!(c.live_bytes, 0, "chunk {chunk} is erased with live records");
        c.role = KvChunkRole::Free;
        self.free[self.shape.pu_of(ChunkId(chunk)).index()].push_back(chunk);
        self.free_count += 1;
    }

    /// Retires a chunk without live records, and forgets its records.
    pub(crate) fn retire(&mut self, chunk: u32) {
        let c = self.get_mut(chunk);
        assert_eq!(c.live_bytes, 0, "chunk {chunk} is retired with live records");
        let old = std::mem::replace(&mut c.role, KvChunkRole::Retired);
        c.records = Vec::new();
        self.packed_count -= u32::from(old.is_packed());
        self.good_count -= u32::from(old != KvChunkRole::Retired);
    }

    /// Adds a live record.
    #[inline]
    pub(crate) fn add_record(&mut self, chunk: u32, record: RecordSpan) {
        self.get_mut(chunk).records.push(record);
        self.add_live(chunk, record.bytes);
    }

    /// Counts a record of a value that is being written.
    pub(crate) fn begin_unfinished(&mut self, chunk: u32) {
        self.get_mut(chunk).unfinished_records += 1;
    }

    /// Ends the count of a record of a value that is complete, aborted or elsewhere.
    pub(crate) fn end_unfinished(&mut self, chunk: u32) {
        let c = self.get_mut(chunk);
        assert!(c.unfinished_records > 0, "chunk {chunk} has no unfinished record: {c:?}");
        c.unfinished_records -= 1;
    }

    /// Removes a record of a value whose write is aborted. It is not counted as an older record of
    /// the key.
    pub(crate) fn remove_unfinished(&mut self, chunk: u32, record: RecordSpan) {
        self.sub_live(chunk, record.bytes);
        self.end_unfinished(chunk);
        self.get_mut(chunk).records.retain(|r| r.offset != record.offset);
    }

    /// Defers the erase of a chunk until [`end_read`](KvChunks::end_read).
    pub(crate) fn begin_read(&mut self, chunk: u32) {
        self.get_mut(chunk).readers += 1;
    }

    /// Ends a read.
    pub(crate) fn end_read(&mut self, chunk: u32) {
        let c = self.get_mut(chunk);
        assert!(c.readers > 0, "chunk {chunk} has no reader: {c:?}");
        c.readers -= 1;
    }

    /// Adds a live record to a chunk's count.
    #[inline]
    fn add_live(&mut self, chunk: u32, bytes: u32) {
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
            .filter(|(_, c)| c.role == KvChunkRole::Closed && c.unfinished_records == 0);
        let (chunk, least) = candidates.min_by_key(|(_, c)| (c.live_bytes, c.stamp))?;
        (least.live_bytes < below).then_some(chunk)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &KvChunk)> {
        (0..).zip(&self.table)
    }

    /// Recomputes the counts and the free lists. Takes time proportional to the number of chunks;
    /// for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(&self) -> Result<(), KvViolation> {
        let check = PartCheck(KvPart::Space);
        let mut listed = BTreeMap::new();
        for (pu, list) in (0..).zip(&self.free) {
            for &chunk in list {
                let subject = || KvSubject::Chunk(chunk);
                check.equal(
                    "a free chunk is listed once",
                    subject(),
                    None,
                    listed.insert(chunk, pu),
                )?;
                check.equal(
                    "a free chunk is in the list of its parallel unit",
                    subject(),
                    self.shape.pu_of(ChunkId(chunk)),
                    PuId(pu),
                )?;
            }
        }
        let (mut live_bytes, mut good, mut packed) = (0, 0, 0);
        for (chunk, c) in self.iter() {
            live_bytes += u64::from(c.live_bytes);
            good += u32::from(!matches!(c.role, KvChunkRole::Foreign | KvChunkRole::Retired));
            packed += u32::from(c.role.is_packed());
            let subject = || KvSubject::Chunk(chunk);
            check.equal(
                "free chunks are listed",
                subject(),
                c.role == KvChunkRole::Free,
                listed.contains_key(&chunk),
            )?;
            let sum: u64 = c.records.iter().map(|r| u64::from(r.bytes)).sum();
            check.require(
                u64::from(c.live_bytes) <= sum,
                "live bytes are bytes of records",
                subject(),
                format_args!("at most {sum}"),
                c.live_bytes,
            )?;
            let ascending = c.records.is_sorted_by(|a, b| a.end() <= b.offset);
            check.require(
                ascending,
                "records are in order and do not overlap",
                subject(),
                "ascending offsets",
                &c.records,
            )?;
            check.require(
                c.role.is_packed() || c.records.is_empty() && c.unfinished_records == 0,
                "only chunks for records have records",
                subject(),
                "no record",
                c,
            )?;
        }
        check.equal(
            "free, good and packed chunks, and live bytes, are counted",
            KvSubject::Part,
            (listed.len() as u32, good, packed, live_bytes),
            (self.free_count, self.good_count, self.packed_count, self.live_bytes),
        )
    }

    /// Lists a chunk that is in use as free.
    #[cfg(test)]
    pub(crate) fn break_free_list(&mut self) {
        let used = self.table.iter().position(|c| c.role == KvChunkRole::Open);
        let chunk = used.expect("an open chunk") as u32;
        self.free[self.shape.pu_of(ChunkId(chunk)).index()].push_back(chunk);
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
            let role = if chunk == 5 { KvChunkRole::Retired } else { KvChunkRole::Free };
            let contents = RecoveredContents { role, live_bytes: 0, stamp: 0, records: Vec::new() };
            chunks.set_recovered(chunk, contents);
        }
        assert_eq!((chunks.good_count, chunks.free_count), (15, 15));
        let pus: Vec<u32> = (0..8)
            .map(|_| shape.pu_of(ChunkId(chunks.allocate(KvChunkRole::Open).unwrap())).get())
            .collect();
        assert_eq!(pus, [0, 2, 1, 3, 0, 2, 1, 3]);
        let all: Vec<u32> =
            std::iter::from_fn(|| chunks.allocate(KvChunkRole::LargeValue)).collect();
        assert_eq!((all.len(), chunks.free_count, chunks.packed_count), (7, 0, 8));
        chunks.release(all[0]);
        assert_eq!(chunks.allocate(KvChunkRole::Open), Some(all[0]));
        for (chunk, live) in [(0, 100), (8, 50), (4, 70)] {
            chunks.close(chunk);
            chunks.add_record(chunk, RecordSpan { offset: 0, bytes: live });
        }
        assert_eq!(chunks.victim(1000), Some(8));
        chunks.begin_unfinished(8);
        assert_eq!((chunks.victim(1000), chunks.victim(70)), (Some(4), None));
        assert_eq!(chunks.check_invariants(), Ok(()));
    }
}
