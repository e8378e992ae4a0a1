//! The superblock of a sharded device: its format, writer, opener and maintainer.
//!
//! The assignment of chunks and sectors to shards follows from the number of shards and the stripe
//! size. The superblock stores both where they can be found without knowing them: in two of the
//! first four chunks in striping order, which belong to no shard. The byte map is
//! `docs/format/shards.md`. Because flash loses data in time, the superblock is rewritten
//! periodically as a new *generation*; the newest one is valid.
//!
//! Invariants:
//! - No shard writes before a superblock is on the media.
//! - While the drive contains only superblocks, it counts as new, so that a drive opens after a
//!   power cut at any time.
//! - Afterwards a location is erased only while another one holds a superblock that was read back,
//!   of any generation.

mod buffer;
mod maintainer;
mod opener;
mod unsharded;
mod writer;

pub use maintainer::SuperblockHealth;
pub(crate) use maintainer::SuperblockMaintainer;
pub(crate) use opener::{SuperblockLocation, SuperblockOpener};
pub(crate) use unsharded::UnshardedJournal;

use collections::{Seal, put_at, u16_at, u32_at, u64_at};
use nvme::{ChunkId, FlashGeometry};

use super::SuperblockError;

/// Number of chunks that may hold the superblock.
pub(crate) const LOCATIONS: usize = 4;
/// Number of copies that are written.
const COPIES: usize = 2;

const MAGIC: [u8; 8] = *b"SLUICSHD";
/// Current format version; version 1 has no generation.
const VERSION: u16 = 2;
const FIRST_VERSION: u16 = 1;
const SUPERBLOCK_BYTES: usize = 32;
const SEAL: Seal = Seal::of_bytes_before(16);
const GENERATION_AT: usize = 20;
const SECOND_SEAL: Seal = Seal::of_bytes_before(28);

/// The layout of a sharded device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardSuperblock {
    pub(crate) shards: u16,
    pub(crate) stripe_sectors: u32,
}

/// A superblock and its generation; version 1 has generation 0.
type ReadSuperblock = (ShardSuperblock, u64);

/// Returns all chunks in striping order: the first of each parallel unit, then the second, and so
/// on.
fn striped_chunks(shape: &FlashGeometry) -> impl Iterator<Item = ChunkId> {
    let pus = || (0..shape.pus).map(|i| shape.striped_pu(i));
    (0..shape.chunks_per_pu).flat_map(move |n| pus().map(move |pu| shape.chunk_on(pu, n)))
}

/// Returns the locations of the superblock: the first chunks in striping order. `None` if there are
/// too few chunks.
pub(crate) fn superblock_chunks(shape: &FlashGeometry) -> Option<[ChunkId; LOCATIONS]> {
    let mut all = striped_chunks(shape);
    let mut places = [ChunkId::default(); LOCATIONS];
    for place in &mut places {
        *place = all.next()?;
    }
    Some(places)
}

impl ShardSuperblock {
    fn encode(self, generation: u64) -> [u8; SUPERBLOCK_BYTES] {
        let mut out = [0; SUPERBLOCK_BYTES];
        put_at(&mut out, 0, &MAGIC);
        put_at(&mut out, 8, &VERSION.to_le_bytes());
        put_at(&mut out, 10, &self.shards.to_le_bytes());
        put_at(&mut out, 12, &self.stripe_sectors.to_le_bytes());
        SEAL.store(&mut out);
        put_at(&mut out, GENERATION_AT, &generation.to_le_bytes());
        SECOND_SEAL.store(&mut out);
        out
    }

    /// Decodes a superblock; `None` if the bytes are not one.
    fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> Option<Result<ReadSuperblock, SuperblockError>> {
        if !bytes.starts_with(&MAGIC) || !SEAL.is_intact(bytes) {
            return None;
        }
        let label =
            ShardSuperblock { shards: u16_at(bytes, 10)?, stripe_sectors: u32_at(bytes, 12)? };
        match u16_at(bytes, 8)? {
            FIRST_VERSION => Some(Ok((label, 0))),
            VERSION if !SECOND_SEAL.is_intact(bytes) => None,
            VERSION => Some(Ok((label, u64_at(bytes, GENERATION_AT)?))),
            found => Some(Err(SuperblockError::Version { found, known: VERSION })),
        }
    }

    fn check(self, wanted: ShardSuperblock) -> Result<(), SuperblockError> {
        if self == wanted {
            return Ok(());
        }
        Err(SuperblockError::LayoutMismatch {
            shards: self.shards.into(),
            stripe_sectors: self.stripe_sectors,
            wanted_shards: wanted.shards.into(),
            wanted_stripe_sectors: wanted.stripe_sectors,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_survives_the_media_and_nothing_else_is_one() {
        let label = ShardSuperblock { shards: 7, stripe_sectors: 1 << 16 };
        let bytes = label.encode(u64::MAX - 1);
        assert_eq!(ShardSuperblock::decode(&bytes), Some(Ok((label, u64::MAX - 1))));
        for bit in 0..SUPERBLOCK_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ShardSuperblock::decode(&damaged), None, "bit {bit}");
        }
        let mut newer = bytes;
        newer[8] = 3;
        SEAL.store(&mut newer);
        let refused = ShardSuperblock::decode(&newer);
        assert_eq!(refused, Some(Err(SuperblockError::Version { found: 3, known: 2 })));
    }

    #[test]
    fn the_byte_map_stays_and_the_first_version_is_read() {
        let label = ShardSuperblock { shards: 2, stripe_sectors: 64 };
        let bytes = label.encode(0x0102);
        assert_eq!(&bytes[..16], b"SLUICSHD\x02\0\x02\0\x40\0\0\0");
        assert_eq!(bytes[20..28], [2, 1, 0, 0, 0, 0, 0, 0]);
        // Version 1, with arbitrary bytes after its end.
        let mut first = [0; SUPERBLOCK_BYTES];
        first[..16].copy_from_slice(b"SLUICSHD\x01\0\x02\0\x40\0\0\0");
        SEAL.store(&mut first);
        assert_eq!(ShardSuperblock::decode(&first), Some(Ok((label, 0))));
        first[16] ^= 1;
        assert_eq!(ShardSuperblock::decode(&first), None);
    }
}
