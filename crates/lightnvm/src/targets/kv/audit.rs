//! [`Kv::audit`]: whether what is kept about chunks agrees with the index.

use std::collections::BTreeMap;

use super::Kv;
use super::chunks::Use;

impl Kv {
    /// Compares what is counted with what it is counted of: live bytes of every chunk, older records,
    /// tombstones, whole chunks. Looks at everything; for tests.
    ///
    /// # Errors
    /// What does not agree.
    pub fn audit(&self) -> Result<(), String> {
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        let (mut keys, mut tombstones, mut wholes) = (0, 0, 0);
        for (key, entry) in self.index.all() {
            let current = &entry.current;
            keys += u64::from(current.exists());
            tombstones += u64::from(!current.exists());
            wholes += current.parts().len() as u32;
            for (i, piece) in current.pieces().iter().enumerate() {
                let bytes = current.record_bytes(key.len(), i);
                *live.entry(piece.chunk).or_default() += u64::from(bytes);
                let chunk = self.chunks.get(piece.chunk);
                let cleaned = matches!(chunk.usage, Use::Cleaning | Use::Failing);
                if !chunk.records.contains(&(piece.offset, bytes)) && !cleaned {
                    return Err(format!("{key:?}: {piece:?} is not a record of {chunk:?}"));
                }
            }
            for part in current.parts().iter().filter(|p| p.chunk != u32::MAX) {
                if self.chunks.get(part.chunk).usage != Use::Whole {
                    let chunk = self.chunks.get(part.chunk);
                    return Err(format!("{key:?}: {part:?} is no whole chunk: {chunk:?}"));
                }
            }
        }
        if (keys, tombstones) != (self.index.keys, self.tombstones) {
            let (k, t) = (self.index.keys, self.tombstones);
            return Err(format!("{keys} keys, {tombstones} tombstones, counted {k}, {t}"));
        }
        if self.unfinished > 0 {
            return Ok(());
        }
        let mut all = 0;
        for (chunk, c) in self.chunks.all() {
            let sum = live.remove(&chunk).unwrap_or(0);
            all += sum;
            if sum != u64::from(c.live) {
                return Err(format!("chunk {chunk} has {sum} live bytes: {c:?}"));
            }
        }
        let free = self.chunks.all().filter(|(_, c)| c.usage == Use::Free).count() as u32;
        let good = self.chunks.all();
        let good = good.filter(|(_, c)| !matches!(c.usage, Use::Foreign | Use::Retired));
        let good = good.count() as u32;
        let counted =
            (self.chunks.live, self.wholes_held, self.chunks.free_count, self.chunks.good);
        if (all, wholes, free, good) != counted || self.reserved != 0 {
            let found = (all, wholes, free, good);
            return Err(format!("{found:?} counted as {counted:?}, {} reserved", self.reserved));
        }
        let packed = self.chunks.all().filter(|(_, c)| {
            matches!(c.usage, Use::Open | Use::Closed | Use::Failing | Use::Cleaning)
        });
        let packed = packed.count() as u32;
        if packed != self.chunks.packed {
            return Err(format!("{packed} packed chunks, counted {}", self.chunks.packed));
        }
        Ok(())
    }

    /// What it is doing, for messages of tests.
    pub fn debug_state(&self) -> String {
        let uses = [
            Use::Free,
            Use::Open,
            Use::Closed,
            Use::Whole,
            Use::Failing,
            Use::Cleaning,
            Use::Dead,
            Use::Retired,
        ];
        let count = |u| self.chunks.all().filter(|(_, c)| c.usage == u).count();
        let uses: Vec<String> = uses.iter().map(|u| format!("{u:?} {}", count(*u))).collect();
        let least = self.chunks.all().filter(|(_, c)| c.usage == Use::Closed);
        let least = least.map(|(_, c)| c.live).min();
        format!(
            "{} on the drive; line {:?}, to begin {:?}, orphans {:?}, tails {:?}, streaming {:?}, \
             waiters {:?}, readers {:?}, failing {:?}, dead {}, read {}, erasing {}, cleaners {:?}, \
             chunks {}, least live {least:?}, {:?}, {:?}",
            self.queue.outstanding(),
            self.line,
            self.to_begin,
            self.wholes.orphans,
            self.tails,
            self.streaming,
            self.waiters,
            self.readers,
            self.failing,
            self.dead.len(),
            self.read_dead.len(),
            self.erasing.len(),
            self.cleaners,
            uses.join(", "),
            self.order,
            self.streams,
        )
    }
}
