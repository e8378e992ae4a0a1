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
mod writer;

pub use maintainer::SuperblockHealth;
pub(crate) use maintainer::SuperblockMaintainer;
pub(crate) use opener::{SuperblockLocation, SuperblockOpener};

use ftl::FlashGeometry;

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
const CRC_AT: usize = 16;
const GENERATION_AT: usize = 20;
const SECOND_CRC_AT: usize = 28;

/// The layout of a sharded device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardSuperblock {
    pub(crate) shards: u16,
    pub(crate) stripe_sectors: u32,
}

/// A superblock and its generation; version 1 has generation 0.
type ReadSuperblock = (ShardSuperblock, u64);

/// Returns the locations of the superblock: the first chunks in striping order. `None` if there are
/// too few chunks.
pub(crate) fn superblock_chunks(shape: &FlashGeometry) -> Option<[u32; LOCATIONS]> {
    let pus = || (0..shape.pus).map(|i| shape.striped_pu(i));
    let mut all =
        (0..shape.chunks_per_pu).flat_map(|n| pus().map(move |pu| pu * shape.chunks_per_pu + n));
    let mut places = [0; LOCATIONS];
    for place in &mut places {
        *place = all.next()?;
    }
    Some(places)
}

impl ShardSuperblock {
    fn encode(self, generation: u64) -> [u8; SUPERBLOCK_BYTES] {
        let mut out = [0; SUPERBLOCK_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[10..12].copy_from_slice(&self.shards.to_le_bytes());
        out[12..16].copy_from_slice(&self.stripe_sectors.to_le_bytes());
        let crc = crc32c::crc32c(&out[..CRC_AT]);
        out[CRC_AT..GENERATION_AT].copy_from_slice(&crc.to_le_bytes());
        out[GENERATION_AT..SECOND_CRC_AT].copy_from_slice(&generation.to_le_bytes());
        let crc = crc32c::crc32c(&out[..SECOND_CRC_AT]);
        out[SECOND_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a superblock; `None` if the bytes are not one.
    fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> Option<Result<ReadSuperblock, SuperblockError>> {
        let [m @ .., v0, v1, s0, s1, t0, t1, t2, t3] = *bytes.first_chunk::<CRC_AT>()?;
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        if m != MAGIC || word(CRC_AT)? != crc32c::crc32c(&bytes[..CRC_AT]) {
            return None;
        }
        let shards = u16::from_le_bytes([s0, s1]);
        let label =
            ShardSuperblock { shards, stripe_sectors: u32::from_le_bytes([t0, t1, t2, t3]) };
        match u16::from_le_bytes([v0, v1]) {
            FIRST_VERSION => Some(Ok((label, 0))),
            VERSION if word(SECOND_CRC_AT)? != crc32c::crc32c(&bytes[..SECOND_CRC_AT]) => None,
            VERSION => {
                let generation = u64::from_le_bytes(*bytes.get(GENERATION_AT..)?.first_chunk()?);
                Some(Ok((label, generation)))
            }
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
        let crc = crc32c::crc32c(&newer[..CRC_AT]);
        newer[CRC_AT..GENERATION_AT].copy_from_slice(&crc.to_le_bytes());
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
        let crc = crc32c::crc32c(&first[..16]);
        first[16..20].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(ShardSuperblock::decode(&first), Some(Ok((label, 0))));
        first[16] ^= 1;
        assert_eq!(ShardSuperblock::decode(&first), None);
    }
}
