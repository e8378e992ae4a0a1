//! [`Reclaim`]: obsolete chunks, from the end of their use to the completion of their erase.

use std::collections::{BTreeMap, VecDeque};

use super::buffer::streams::AppendStreams;
use super::check::{KvPart, KvSubject, KvViolation, PartCheck};
use super::chunks::{KvChunkRole, KvChunks};
use super::device::KvDevice;
use super::format::key::Key;

/// A chunk without current data.
#[derive(Debug)]
struct ObsoleteChunk {
    chunk: u32,
    /// All units with smaller sequence numbers must be durable before the erase.
    unit_seq: u64,
    /// Keys of the value records in it, once per record.
    keys: Vec<Key>,
}

/// Obsolete chunks. Each is in one of three stages.
#[derive(Debug, Default)]
pub(crate) struct Reclaim {
    /// Chunks that wait for units to become durable, in the order of their sequence numbers.
    awaiting_durability: VecDeque<ObsoleteChunk>,
    /// Chunks that wait for readers, or for the queue.
    awaiting_erase: Vec<ObsoleteChunk>,
    /// Chunks whose erase is in flight.
    erasing: BTreeMap<u32, ObsoleteChunk>,
}

impl Reclaim {
    /// Adds an obsolete chunk, with the keys of the value records in it. It is erased after all
    /// units below `unit_seq` are durable.
    pub(crate) fn add(&mut self, chunk: u32, unit_seq: u64, keys: Vec<Key>) {
        self.awaiting_durability.push_back(ObsoleteChunk { chunk, unit_seq, keys });
    }

    /// Returns the number of chunks.
    pub(crate) fn len(&self) -> usize {
        self.awaiting_durability.len() + self.awaiting_erase.len() + self.erasing.len()
    }

    /// Advances the chunks whose units are durable. Returns whether there were any.
    pub(crate) fn advance_durable(&mut self, streams: &AppendStreams) -> bool {
        let mut moved = false;
        while let Some(dead) =
            self.awaiting_durability.pop_front_if(|d| streams.is_durable_below(d.unit_seq))
        {
            self.awaiting_erase.push(dead);
            moved = true;
        }
        moved
    }

    /// Submits erases of the chunks without readers, until the queue is full.
    pub(crate) fn submit_erases(&mut self, chunks: &KvChunks, device: &mut KvDevice) {
        let mut i = 0;
        while let Some(dead) = self.awaiting_erase.get(i) {
            let chunk = dead.chunk;
            if chunks.get(chunk).readers() > 0 {
                i += 1;
                continue;
            }
            if !device.erase(chunk) {
                return;
            }
            let dead = self.awaiting_erase.swap_remove(i);
            self.erasing.insert(chunk, dead);
        }
    }

    /// Handles the completion of an erase. Returns the keys of the value records that were in the
    /// chunk.
    pub(crate) fn on_erase_complete(&mut self, chunk: u32) -> Vec<Key> {
        let dead = self.erasing.remove(&chunk);
        dead.unwrap_or_else(|| panic!("an erase of chunk {chunk}, with none in flight")).keys
    }

    /// Makes all chunks wait at least for the units below `unit_seq`.
    pub(crate) fn wait_at_least_for(&mut self, unit_seq: u64) {
        for dead in &mut self.awaiting_durability {
            dead.unit_seq = dead.unit_seq.max(unit_seq);
        }
    }

    /// Returns the sequence number below which all units must be durable for the last chunk.
    pub(crate) fn last_unit_seq(&self) -> Option<u64> {
        self.awaiting_durability.back().map(|d| d.unit_seq)
    }

    /// Returns whether a chunk waits only for readers or the queue.
    pub(crate) fn is_awaiting_erase(&self) -> bool {
        !self.awaiting_erase.is_empty()
    }

    /// Compares the stages with the roles of the chunks; for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(&self, chunks: &KvChunks) -> Result<(), KvViolation> {
        let check = PartCheck(KvPart::Reclaim);
        let staged = self.awaiting_durability.iter().chain(&self.awaiting_erase);
        let mut staged: Vec<u32> = staged.chain(self.erasing.values()).map(|d| d.chunk).collect();
        staged.sort_unstable();
        let obsolete = chunks.iter().filter(|(_, c)| c.role() == KvChunkRole::Obsolete);
        let obsolete: Vec<u32> = obsolete.map(|(chunk, _)| chunk).collect();
        check.equal("an obsolete chunk is in one stage", KvSubject::Part, obsolete, staged)?;
        let seqs: Vec<u64> = self.awaiting_durability.iter().map(|d| d.unit_seq).collect();
        check.require(
            seqs.is_sorted(),
            "chunks wait in the order of the units",
            KvSubject::Part,
            "ascending sequence numbers",
            &seqs,
        )?;
        for chunk in self.erasing.keys() {
            check.equal(
                "a chunk being erased has no readers",
                KvSubject::Chunk(*chunk),
                0,
                chunks.get(*chunk).readers(),
            )?;
        }
        Ok(())
    }

    /// Adds a chunk that is not obsolete.
    #[cfg(test)]
    pub(crate) fn break_stage(&mut self) {
        self.add(0, 0, Vec::new());
    }
}

impl std::fmt::Display for Reclaim {
    /// Counts the chunks of every stage.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Reclaim { awaiting_durability, awaiting_erase, erasing } = self;
        let (durability, erase) = (awaiting_durability.len(), awaiting_erase.len());
        write!(f, "{durability} for durability, {erase} for readers, {} erased", erasing.len())
    }
}
