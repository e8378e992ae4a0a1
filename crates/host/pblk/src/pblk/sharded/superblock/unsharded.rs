//! [`UnshardedJournal`]: where a pblk without shards has its journal, and how its frames begin.
//!
//! Such a pblk owns the whole drive, and its journal begins in the chunks of the superblock. The
//! byte map of a frame is `docs/format/journal.md`.

use collections::{Seal, SealedHeader, u32_at};
use ftl::{CapacityPlan, FtlConfig};
use nvme::{ChunkDescriptor, FlashGeometry};

use super::super::super::open::parse_chunk_descriptor;
use super::{LOCATIONS, SuperblockLocation, striped_chunks};

/// Bytes of the header of a frame.
pub(super) const FRAME_HEADER_BYTES: usize = 48;
/// Offset of the owner in a frame.
const OWNER_AT: usize = 12;
const HEADER: SealedHeader = SealedHeader {
    magic: *b"SLUICJNL",
    version: 1,
    version_bytes: 2,
    seal: Seal::of_bytes_before(FRAME_HEADER_BYTES - 4),
};

/// The journal that a pblk without shards has on this drive.
#[derive(Debug)]
pub(crate) struct UnshardedJournal {
    /// Its chunks, as the drive reports them.
    pub(super) chunks: Vec<SuperblockLocation>,
    /// Its owner in every frame.
    owner: u32,
}

impl UnshardedJournal {
    /// Returns the journal of a pblk with this configuration; `None` if the drive cannot hold one.
    pub(crate) fn new(
        shape: &FlashGeometry,
        chunks: &[ChunkDescriptor],
        config: &FtlConfig,
    ) -> Option<UnshardedJournal> {
        let all = shape.total_chunks();
        // The journal does not depend on bad chunks.
        let config = FtlConfig { active_pus: 0, instance_id: 0, ..*config };
        let journal = CapacityPlan::new(shape, &config, all, all).ok()?.journal;
        // With other `active_pus` its number of chunks is another one, but the first are the same.
        let reserved = striped_chunks(shape).take(LOCATIONS.max(journal.chunks as usize));
        let found = reserved.filter_map(|chunk| {
            let descriptor = chunks.get(chunk.index())?;
            let report = parse_chunk_descriptor(descriptor, shape.sectors_per_chunk).ok()?;
            Some(SuperblockLocation { chunk, report })
        });
        Some(UnshardedJournal { chunks: found.collect(), owner: journal.config.owner })
    }

    /// Returns whether a write unit that begins with `bytes` is a frame of this journal.
    pub(super) fn owns(&self, bytes: &[u8; FRAME_HEADER_BYTES]) -> bool {
        HEADER.check_seal_first(bytes).is_ok() && u32_at(bytes, OWNER_AT) == Some(self.owner)
    }
}
