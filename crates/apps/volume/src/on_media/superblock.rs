//! [`Superblock`]: identity and layout of a volume, its current snapshot and journal position, and its owner. The
//! byte map is in `docs/format/volume.md`.

use collections::{HeaderError, Reader, Seal, SealedHeader, put_at};

use crate::VolumeLayout;

/// The version written and supported.
pub const VERSION: u32 = 1;

/// Bytes of a superblock.
pub(crate) const SUPERBLOCK_BYTES: usize = 512;
const HEADER: SealedHeader = SealedHeader {
    magic: *b"SLUICVOL",
    version: VERSION,
    version_bytes: 4,
    seal: Seal::of_bytes_before(SUPERBLOCK_BYTES - 4),
};
const FLAG_IN_USE: u32 = 1;
/// Incompatible feature: the journal may have file data.
const FEATURE_DATA_JOURNAL: u32 = 1;
/// Incompatible feature: files get their blocks in units of several blocks.
const FEATURE_UNITS: u32 = 2;

/// Owner of a volume, as supplied by the caller. The volume only compares owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Id of the boot: owners of another boot have ended.
    pub boot: u128,
    /// Process id in that boot.
    pub process: u64,
}

/// The first sector of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Layout of the volume.
    pub layout: VolumeLayout,
    /// Unique id of the volume.
    pub uuid: u128,
    /// Label, padded with zeros.
    pub label: [u8; 32],
    /// Generation: the copy with the larger one is newer.
    pub generation: u64,
    /// Number of writable mounts.
    pub epoch: u64,
    /// The current snapshot area.
    pub snapshot_area: u32,
    /// Segments of the snapshot.
    pub segments: u32,
    /// Number of the snapshot.
    pub snapshot: u64,
    /// Number of the journal sector at which recovery starts.
    pub journal_seq: u64,
    /// The first transaction there.
    pub journal_txn: u64,
    /// The process that has the volume open for writing, or was killed while it had.
    pub owner: Option<Owner>,
    /// Whether the journal may have file data: while the volume is in use, until a clean close. A
    /// reader that does not support such records refuses the volume.
    pub data_in_journal: bool,
}

/// A decoded sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodedSuperblock {
    Superblock(Superblock),
    /// Another version, or unknown features.
    Newer {
        version: u32,
        features: u32,
    },
    /// A superblock's magic, but damaged.
    Damaged,
    /// Anything else.
    NotASuperblock,
}

impl Superblock {
    /// Encodes the superblock.
    pub(crate) fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut out = [0; SUPERBLOCK_BYTES];
        let VolumeLayout { sector_bytes, blocks, snapshot_blocks, journal_blocks, unit_blocks } =
            self.layout;
        let owner = self.owner.unwrap_or_default();
        let flags = if self.owner.is_some() { FLAG_IN_USE } else { 0 };
        HEADER.begin(&mut out);
        let mut features = if self.data_in_journal { FEATURE_DATA_JOURNAL } else { 0 };
        if unit_blocks > 1 {
            features |= FEATURE_UNITS;
            put_at(&mut out, 104, &unit_blocks.to_le_bytes());
        }
        put_at(&mut out, 12, &features.to_le_bytes());
        put_at(&mut out, 20, &sector_bytes.to_le_bytes());
        put_at(&mut out, 24, &self.uuid.to_le_bytes());
        put_at(&mut out, 40, &blocks.to_le_bytes());
        put_at(&mut out, 44, &snapshot_blocks.to_le_bytes());
        put_at(&mut out, 48, &journal_blocks.to_le_bytes());
        put_at(&mut out, 52, &flags.to_le_bytes());
        put_at(&mut out, 56, &self.generation.to_le_bytes());
        put_at(&mut out, 64, &self.epoch.to_le_bytes());
        put_at(&mut out, 72, &self.snapshot_area.to_le_bytes());
        put_at(&mut out, 76, &self.segments.to_le_bytes());
        put_at(&mut out, 80, &self.snapshot.to_le_bytes());
        put_at(&mut out, 88, &self.journal_seq.to_le_bytes());
        put_at(&mut out, 96, &self.journal_txn.to_le_bytes());
        put_at(&mut out, 112, &owner.boot.to_le_bytes());
        put_at(&mut out, 128, &owner.process.to_le_bytes());
        put_at(&mut out, 136, &self.label);
        HEADER.seal.store(&mut out);
        out
    }

    /// Decodes a sector.
    pub(crate) fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> DecodedSuperblock {
        match HEADER.check_seal_first(bytes) {
            Err(HeaderError::Magic) => return DecodedSuperblock::NotASuperblock,
            Err(HeaderError::Truncated | HeaderError::Seal(_)) => {
                return DecodedSuperblock::Damaged;
            }
            // Another version is reported with its features.
            Ok(()) | Err(HeaderError::Version(_)) => {}
        }
        Superblock::decode_fields(Reader::new(&bytes[8..])).unwrap_or(DecodedSuperblock::Damaged)
    }

    fn decode_fields(mut f: Reader<'_>) -> Option<DecodedSuperblock> {
        let (version, features, _) = (f.u32()?, f.u32()?, f.u32()?);
        if version != VERSION || features & !(FEATURE_DATA_JOURNAL | FEATURE_UNITS) != 0 {
            return Some(DecodedSuperblock::Newer { version, features });
        }
        let sector_bytes = f.u32()?;
        let uuid = f.u128()?;
        let (blocks, snapshot_blocks, journal_blocks) = (f.u32()?, f.u32()?, f.u32()?);
        let flags = f.u32()?;
        let (generation, epoch) = (f.u64()?, f.u64()?);
        let (area, pieces, snapshot) = (f.u32()?, f.u32()?, f.u64()?);
        let (journal_seq, journal_txn) = (f.u64()?, f.u64()?);
        let (unit, _) = (f.u32()?, f.u32()?);
        let has_units = features & FEATURE_UNITS != 0;
        let unit_blocks = if has_units { unit } else { 1 };
        let layout =
            VolumeLayout { sector_bytes, blocks, snapshot_blocks, journal_blocks, unit_blocks };
        let owner = Owner { boot: f.u128()?, process: f.u64()? };
        let label = f.bytes(32)?.try_into().ok()?;
        let owner = (flags & FLAG_IN_USE != 0).then_some(owner);
        let all = Superblock {
            layout,
            uuid,
            label,
            generation,
            epoch,
            snapshot_area: area,
            segments: pieces,
            snapshot,
            journal_seq,
            journal_txn,
            owner,
            data_in_journal: features & FEATURE_DATA_JOURNAL != 0,
        };
        Some(if layout.is_plausible() && has_units == (unit_blocks > 1) && area < 2 {
            DecodedSuperblock::Superblock(all)
        } else {
            DecodedSuperblock::Damaged
        })
    }

    /// Returns the label as text.
    pub fn label(&self) -> String {
        let end = self.label.iter().position(|b| *b == 0).unwrap_or(self.label.len());
        String::from_utf8_lossy(&self.label[..end]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Superblock {
        Superblock {
            layout: VolumeLayout {
                sector_bytes: 512,
                blocks: 5000,
                snapshot_blocks: 100,
                journal_blocks: 40,
                unit_blocks: 4,
            },
            uuid: 77,
            label: *b"0123456789abcdef0123456789abcdef",
            generation: 3,
            epoch: 4,
            snapshot_area: 1,
            segments: 5,
            snapshot: 6,
            journal_seq: 7,
            journal_txn: 8,
            owner: Some(Owner { boot: 9, process: 10 }),
            data_in_journal: true,
        }
    }

    #[test]
    fn a_superblock_comes_back_and_any_changed_byte_is_seen() {
        for owner in [None, some().owner] {
            let block = Superblock { owner, data_in_journal: owner.is_some(), ..some() };
            let bytes = block.encode();
            assert_eq!(Superblock::decode(&bytes), DecodedSuperblock::Superblock(block));
            for at in 0..bytes.len() {
                let mut bytes = bytes;
                bytes[at] ^= 1 << (at % 8);
                let found = Superblock::decode(&bytes);
                let seen = if at < 8 {
                    DecodedSuperblock::NotASuperblock
                } else {
                    DecodedSuperblock::Damaged
                };
                assert_eq!(found, seen, "byte {at}");
            }
        }
    }

    #[test]
    fn other_versions_and_unknown_features_are_told_apart_from_damage() {
        for (at, newer) in [
            (8, DecodedSuperblock::Newer { version: 9, features: 3 }),
            (12, DecodedSuperblock::Newer { version: 1, features: 9 }),
            (15, DecodedSuperblock::Newer { version: 1, features: 9 << 24 | 3 }),
        ] {
            let mut bytes = some().encode();
            bytes[at] = 9;
            HEADER.seal.store(&mut bytes);
            assert_eq!(Superblock::decode(&bytes), newer);
        }
    }
}
