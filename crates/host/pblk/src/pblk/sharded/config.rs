//! [`ShardedConfig`]: number of shards and stripe size. [`ShardMap`]: which chunks belong to which
//! shard.

use ftl::{FlashGeometry, FtlConfig};
use nvme::{ChunkId, PuId};

use super::ShardedError;
use super::stripes::Stripes;
use super::superblock::{LOCATIONS, superblock_chunks};

/// Maximum number of shards: the shards of a request are bits of a `u32`.
pub(crate) const SHARDS_MAX: u32 = 32;
/// Maximum stripe size in sectors.
const STRIPE_SECTORS_MAX: u32 = 1 << 16;
/// Default stripe size in bytes, large enough that most requests stay on one shard.
const STRIPE_BYTES_DEFAULT: u32 = 256 << 10;

/// Configuration of a device that consists of several independent FTLs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShardedConfig {
    /// Number of shards, 1 to 32: one for each core that writes.
    pub shards: u32,
    /// Stripe size in sectors, a power of two up to 65536; 0 selects 256 KB.
    pub stripe_sectors: u32,
    /// Configuration of each shard. `active_pus` counts the shard's own parallel units (0: all of
    /// them); `write_buffer_sectors` and `map_cache_sectors` are per shard. `instance_id` is
    /// ignored; each shard has its own.
    pub ftl: FtlConfig,
}

impl ShardedConfig {
    /// Maximum number of shards.
    pub const SHARDS_MAX: u32 = SHARDS_MAX;

    /// Returns a configuration of `shards` shards with defaults.
    pub fn new(shards: u32) -> ShardedConfig {
        ShardedConfig { shards, stripe_sectors: 0, ftl: FtlConfig::default() }
    }

    /// Returns the striping of this configuration on sectors of `sector_bytes`.
    pub(crate) fn stripes(&self, sector_bytes: u32) -> Result<Stripes, ShardedError> {
        if !(1..=SHARDS_MAX).contains(&self.shards) {
            return Err(ShardedError::Shards { shards: self.shards, max: SHARDS_MAX });
        }
        let auto = (STRIPE_BYTES_DEFAULT / sector_bytes.max(1)).max(1);
        let auto = if auto.is_power_of_two() { auto } else { auto.next_power_of_two() / 2 };
        let sectors = if self.stripe_sectors == 0 { auto } else { self.stripe_sectors };
        if !sectors.is_power_of_two() || sectors > STRIPE_SECTORS_MAX {
            return Err(ShardedError::Stripe { sectors, max: STRIPE_SECTORS_MAX });
        }
        Ok(Stripes::new(self.shards, sectors.trailing_zeros() as u8))
    }
}

/// Assigns chunks to shards. If parallel units divide evenly, each shard has whole parallel units,
/// so that shards do not wait for each other's programs and erases. Otherwise each shard has a
/// range of the chunks of every parallel unit.
///
/// The chunks of the superblock belong to no shard. The assignment depends only on the geometry and
/// the number of shards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardMap {
    shape: FlashGeometry,
    shards: u32,
    superblock: [ChunkId; LOCATIONS],
}

impl ShardMap {
    pub(crate) fn new(shape: FlashGeometry, shards: u32) -> Result<ShardMap, ShardedError> {
        let label = superblock_chunks(&shape).ok_or(ShardedError::TooFewChunks {
            shards,
            chunks: shape.total_chunks(),
            needed: LOCATIONS as u32 + shards,
        })?;
        let share = ShardMap { shape, shards, superblock: label };
        if !share.is_by_pu() && shape.chunks_per_pu < shards || shape.total_chunks() < shards {
            let (chunks, needed) = (shape.total_chunks(), shards * shape.pus + LOCATIONS as u32);
            return Err(ShardedError::TooFewChunks { shards, chunks, needed });
        }
        Ok(share)
    }

    fn is_by_pu(&self) -> bool {
        self.shape.pus.is_multiple_of(self.shards)
    }

    /// Returns the number of parallel units on which each shard has chunks.
    pub(crate) fn pus(&self) -> u32 {
        if self.is_by_pu() { self.shape.pus / self.shards } else { self.shape.pus }
    }

    /// Returns whether a chunk is reserved for the superblock.
    pub(crate) fn is_superblock(&self, chunk: ChunkId) -> bool {
        self.superblock.contains(&chunk)
    }

    /// Returns the chunks that may hold the superblock.
    pub(crate) fn superblock_chunks(&self) -> &[ChunkId; LOCATIONS] {
        &self.superblock
    }

    /// Returns whether a parallel unit has a chunk that may hold the superblock.
    pub(crate) fn has_superblock_on(&self, pu: PuId) -> bool {
        self.superblock.iter().any(|chunk| self.shape.pu_of(*chunk) == pu)
    }

    /// Returns the parallel unit of a chunk.
    pub(crate) fn pu_of(&self, chunk: ChunkId) -> PuId {
        self.shape.pu_of(chunk)
    }

    /// Returns whether a shard has chunks on a parallel unit.
    pub(crate) fn has_chunks_on(&self, shard: u32, pu: PuId) -> bool {
        self.shape.chunks_on(pu).any(|chunk| self.shard_of(chunk) == Some(shard))
    }

    /// Returns the shard that owns a chunk, or `None` for a chunk of the superblock.
    pub(crate) fn shard_of(&self, chunk: ChunkId) -> Option<u32> {
        if self.is_superblock(chunk) {
            return None;
        }
        let (pu, number) = (self.shape.pu_of(chunk), self.shape.index_on_pu(chunk));
        // Parallel units that are adjacent in striping order are on different channels, so each
        // shard's parallel units are spread over as many channels as possible.
        Some(if self.is_by_pu() {
            let per_channel = self.shape.pus / self.shape.channels;
            let striped = pu.get() % per_channel * self.shape.channels + pu.get() / per_channel;
            striped / self.pus()
        } else {
            (u64::from(number) * u64::from(self.shards) / u64::from(self.shape.chunks_per_pu))
                as u32
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::Geometry;

    fn shape(groups: u32, pus: u32, chunks: u32) -> FlashGeometry {
        FlashGeometry::from_geometry(&Geometry {
            groups,
            pus,
            chunks,
            sectors: 16,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 4,
            ws_opt: 4,
            mw_cunits: 8,
        })
    }

    #[test]
    fn every_chunk_has_one_owner_and_shares_are_equal() {
        for (groups, pus) in [(1, 1), (2, 2), (3, 1), (4, 2), (16, 8)] {
            for shards in [1, 2, 3, 4, 8] {
                let shape = shape(groups, pus, 40);
                let share = ShardMap::new(shape, shards).unwrap();
                let mut counts = vec![0u32; shards as usize];
                let mut units = vec![std::collections::BTreeSet::new(); shards as usize];
                for chunk in 0..shape.total_chunks() {
                    if let Some(shard) = share.shard_of(ChunkId(chunk)) {
                        counts[shard as usize] += 1;
                        units[shard as usize].insert(shape.pu_of(ChunkId(chunk)));
                    }
                }
                assert_eq!(counts.iter().sum::<u32>(), shape.total_chunks() - LOCATIONS as u32);
                let spread = counts.iter().max().unwrap() - counts.iter().min().unwrap();
                assert!(spread <= shape.pus + LOCATIONS as u32, "{counts:?}");
                assert!(units.iter().all(|u| u.len() as u32 == share.pus()), "{units:?}");
            }
        }
    }

    #[test]
    fn parallel_units_of_a_shard_are_on_several_channels() {
        let shape = shape(4, 2, 40);
        let share = ShardMap::new(shape, 2).unwrap();
        let of = |pu: u32| share.shard_of(ChunkId(pu * 40 + 20)).unwrap();
        assert_eq!((0..8).map(of).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for shards in [0, 33, u32::MAX] {
            let refused = ShardedConfig::new(shards).stripes(4096);
            assert!(matches!(refused, Err(ShardedError::Shards { .. })), "{refused:?}");
        }
        for stripe_sectors in [3, 1 << 17, u32::MAX] {
            let config = ShardedConfig { stripe_sectors, ..ShardedConfig::new(2) };
            assert!(matches!(config.stripes(4096), Err(ShardedError::Stripe { .. })));
        }
        assert_eq!(ShardedConfig::new(2).stripes(4096).unwrap().sectors(), 64);
        assert!(matches!(ShardMap::new(shape(1, 1, 3), 1), Err(ShardedError::TooFewChunks { .. })));
        assert!(matches!(ShardMap::new(shape(1, 3, 6), 7), Err(ShardedError::TooFewChunks { .. })));
    }
}
