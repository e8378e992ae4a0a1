//! [`Kv::check_invariants`]: compares the chunk counts with the index.

use std::collections::BTreeMap;

use super::Kv;
use super::chunks::ChunkRole;

impl Kv {
    /// Recomputes the counts from the index and compares them: live bytes of every chunk, older
    /// records, tombstones, whole chunks. Scans everything; for tests.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        let (mut keys, mut tombstones, mut wholes) = (0, 0, 0);
        for (key, entry) in self.index.iter() {
            let current = &entry.current;
            keys += u64::from(current.is_present());
            tombstones += u64::from(!current.is_present());
            wholes += current.chunk_extents().len() as u32;
            for (i, piece) in current.records().iter().enumerate() {
                let bytes = current.record_bytes(key.len(), i);
                *live.entry(piece.chunk).or_default() += u64::from(bytes);
                let chunk = self.chunks.get(piece.chunk);
                let cleaned = matches!(chunk.role, ChunkRole::Compacting | ChunkRole::Failing);
                if !chunk.records.contains(&(piece.offset, bytes)) && !cleaned {
                    return Err(format!("{key:?}: {piece:?} is not a record of {chunk:?}"));
                }
            }
            for part in current.chunk_extents().iter().filter(|p| p.chunk != u32::MAX) {
                if self.chunks.get(part.chunk).role != ChunkRole::LargeValue {
                    let chunk = self.chunks.get(part.chunk);
                    return Err(format!("{key:?}: {part:?} is no whole chunk: {chunk:?}"));
                }
            }
        }
        if (keys, tombstones) != (self.index.key_count, self.tombstones) {
            let (k, t) = (self.index.key_count, self.tombstones);
            return Err(format!("{keys} keys, {tombstones} tombstones, counted {k}, {t}"));
        }
        if self.unfinished_puts > 0 {
            return Ok(());
        }
        let mut all = 0;
        for (chunk, c) in self.chunks.iter() {
            let sum = live.remove(&chunk).unwrap_or(0);
            all += sum;
            if sum != u64::from(c.live_bytes) {
                return Err(format!("chunk {chunk} has {sum} live bytes: {c:?}"));
            }
        }
        let free = self.chunks.iter().filter(|(_, c)| c.role == ChunkRole::Free).count() as u32;
        let good = self.chunks.iter();
        let good = good.filter(|(_, c)| !matches!(c.role, ChunkRole::Foreign | ChunkRole::Retired));
        let good = good.count() as u32;
        let counted = (
            self.chunks.live_bytes,
            self.large_value_chunks,
            self.chunks.free_count,
            self.chunks.good_count,
        );
        if (all, wholes, free, good) != counted || self.reserved_bytes != 0 {
            let found = (all, wholes, free, good);
            return Err(format!(
                "{found:?} counted as {counted:?}, {} reserved",
                self.reserved_bytes
            ));
        }
        let packed = self.chunks.iter().filter(|(_, c)| {
            matches!(
                c.role,
                ChunkRole::Open | ChunkRole::Closed | ChunkRole::Failing | ChunkRole::Compacting
            )
        });
        let packed = packed.count() as u32;
        if packed != self.chunks.packed_count {
            return Err(format!("{packed} packed chunks, counted {}", self.chunks.packed_count));
        }
        Ok(())
    }

    /// Returns the state of the target, for messages of tests.
    pub fn debug_state(&self) -> String {
        let uses = [
            ChunkRole::Free,
            ChunkRole::Open,
            ChunkRole::Closed,
            ChunkRole::LargeValue,
            ChunkRole::Failing,
            ChunkRole::Compacting,
            ChunkRole::Obsolete,
            ChunkRole::Retired,
        ];
        let count = |u| self.chunks.iter().filter(|(_, c)| c.role == u).count();
        let uses: Vec<String> = uses.iter().map(|u| format!("{u:?} {}", count(*u))).collect();
        let least = self.chunks.iter().filter(|(_, c)| c.role == ChunkRole::Closed);
        let least = least.map(|(_, c)| c.live_bytes).min();
        format!(
            "{} on the drive; line {:?}, to begin {:?}, orphans {:?}, tails {:?}, streaming {:?}, \
             waiters {:?}, readers {:?}, failing {:?}, dead {}, read {}, erasing {}, cleaners {:?}, \
             chunks {}, least live {least:?}, {:?}, {:?}",
            self.queue.outstanding(),
            self.write_queue,
            self.large_value_queue,
            self.large_values.failed_writes,
            self.record_queue,
            self.appending,
            self.durability_waiters,
            self.read_queues,
            self.failing_chunks,
            self.obsolete.len(),
            self.obsolete_durable.len(),
            self.erasing.len(),
            self.compactors,
            uses.join(", "),
            self.durable_prefix,
            self.streams,
        )
    }
}
