//! [`Label`]: what says on the media how a drive is sharded, and who writes it.
//!
//! Which chunk belongs to which shard, and which sector, follows from the number of shards and the
//! width of a stripe, so that these are on the media where they can be found without knowing them:
//! in two of the first four chunks in striping order, which belong to no shard. The byte map is
//! `docs/format/shards.md`. Flash forgets, so the label is written anew from time to time, as a new
//! *generation*: the newest one counts.
//!
//! | file | noun |
//! |---|---|
//! | `scribe` | [`SuperblockWriter`]: what is in each place, and which command comes next |
//! | `sheet` | [`SuperblockBuffer`]: the memory that labels are written from and read into |
//! | `desk` | [`SuperblockOpener`]: the label when the device is opened |
//! | `keeper` | [`SuperblockMaintainer`]: the label while the device is used |
//!
//! Guarantees: no shard writes anything before a label is on the media; while nothing but labels is
//! written the drive is as good as new, so that a power cut at any moment leaves a drive that
//! opens; from then on a place is erased only while another one holds a label that was read, whatever
//! generation it is of.

mod buffer;
mod maintainer;
mod opener;
mod writer;

pub use maintainer::SuperblockHealth;
pub(crate) use maintainer::SuperblockMaintainer;
pub(crate) use opener::SuperblockOpener;

use ftl::FlashGeometry;

use super::SuperblockError;

/// Chunks that may hold the label.
pub(crate) const LOCATIONS: usize = 4;
/// Copies that are written.
const COPIES: usize = 2;

const MAGIC: [u8; 8] = *b"SLUICSHD";
/// The version that is written; the one before it had no generation.
const VERSION: u16 = 2;
const FIRST_VERSION: u16 = 1;
const SUPERBLOCK_BYTES: usize = 32;
const CRC_AT: usize = 16;
const GENERATION_AT: usize = 20;
const SECOND_CRC_AT: usize = 28;

/// How a drive is sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardSuperblock {
    pub(crate) shards: u16,
    pub(crate) stripe_sectors: u32,
}

/// A label and its generation; those of the first version have 0.
type ReadSuperblock = (ShardSuperblock, u64);

/// The chunks that may hold the label: the first in striping order. `None` if there are too few.
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

    /// `None` if the bytes are no label.
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
        // What version 1 wrote, whatever follows.
        let mut first = [0; SUPERBLOCK_BYTES];
        first[..16].copy_from_slice(b"SLUICSHD\x01\0\x02\0\x40\0\0\0");
        let crc = crc32c::crc32c(&first[..16]);
        first[16..20].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(ShardSuperblock::decode(&first), Some(Ok((label, 0))));
        first[16] ^= 1;
        assert_eq!(ShardSuperblock::decode(&first), None);
    }
}
