//! [`Sharded::open`]: opens a drive as one block device with one handle per core.

use std::sync::Arc;

use block::{AtomicLimits, BlockDevice, Limits};
use driver::{ControllerInfo, OpenChannelInfo, QueuePair};
use ftl::{CapacityError, CapacityPlan, ChunkReport, FlashGeometry, FtlConfig, FtlStats};
use nvme::{ChunkDescriptor, ChunkId, Geometry};
use transport::Port;

use super::super::open::{ReportedChunks, check_geometry, parse_chunk_descriptor};
use super::super::{DriveQueue, Pblk, PblkError, QUEUE_DEPTH, REQUEST_SECTORS_MAX};
use super::ShardedError;
use super::config::{ShardMap, ShardedConfig};
use super::core_channel::mesh;
use super::events::SUPERBLOCK_SHARD;
use super::handle::ShardHandle;
use super::stripes::Stripes;
use super::superblock::{
    LOCATIONS, ShardSuperblock, SuperblockLocation, SuperblockMaintainer, SuperblockOpener,
    UnshardedJournal, superblock_chunks,
};
use ocssd::vector::{Addresses, VectorQueue};

/// Prefix of the instance ids of shards, which distinguishes them from those of other FTLs.
const SHARD_NAME_PREFIX: u32 = 0x73 << 24;

/// A sharded block device before its handles are given to the cores, or after they were returned.
#[derive(Debug)]
pub struct Sharded {
    shards: Vec<ShardHandle>,
}

/// Returns the instance id of a shard in its journal.
fn shard_name(shard: u32, stripes: &Stripes) -> u32 {
    let shift = stripes.sectors().trailing_zeros();
    SHARD_NAME_PREFIX | shard << 16 | (stripes.shards() - 1) << 8 | shift
}

impl Sharded {
    /// Opens the drive that `info` describes, through `port`.
    ///
    /// - `queues` are queue pairs of the drive without outstanding commands, one per shard; the
    ///   device owns them from now on.
    /// - `chunks`, `progress` and `keeps_data` are as for [`Pblk::open`].
    /// - Payloads are registered once, with the port, for all queue pairs.
    ///
    /// On a new drive, a superblock with the number of shards and the stripe size is written. A
    /// drive with another superblock is rejected. A drive that does not store contents has no
    /// superblock.
    ///
    /// # Errors
    /// [`ShardedError`]. Opening can be interrupted at any time and repeated.
    pub fn open(
        info: &ControllerInfo,
        chunks: &[ChunkDescriptor],
        queues: Vec<QueuePair>,
        port: Arc<Port>,
        config: ShardedConfig,
        progress: &mut dyn FnMut(),
        keeps_data: bool,
    ) -> Result<Sharded, ShardedError> {
        let OpenChannelInfo { geometry, format, .. } = info
            .open_channel
            .ok_or_else(|| PblkError::NotOpenChannel { serial: info.serial.clone() })?;
        check_geometry(info, &geometry, keeps_data)?;
        let stripes = config.stripes(geometry.sector_bytes)?;
        if queues.len() != config.shards as usize {
            return Err(ShardedError::Queues { queues: queues.len(), shards: config.shards });
        }
        let shape = FlashGeometry::from_geometry(&geometry);
        let share = ShardMap::new(shape, config.shards)?;
        let addresses = Addresses::new(shape, geometry, format);
        let mut queues = queues.into_iter();
        let mut first = queues.next();
        let mut keeper = None;
        if keeps_data && let Some(queue) = first.take() {
            let mut queue = VectorQueue::new(queue, port.clone(), info).map_err(PblkError::from)?;
            keeper = Some(open_superblock(
                &mut queue, &addresses, chunks, &share, &config, &stripes, progress,
            )?);
            first = Some(queue.into_queue());
        }
        let mut shards: Vec<Pblk> = Vec::with_capacity(config.shards as usize);
        for (shard, queue) in (0..).zip(first.into_iter().chain(queues)) {
            let owned = |chunk: ChunkId| share.shard_of(chunk) == Some(shard);
            let config = shard_config(shard, &config.ftl, &share, &stripes)?;
            let way = DriveQueue { queue, port: port.clone() };
            let pblk = Pblk::open_on(info, chunks, &owned, way, config, progress, keeps_data);
            shards.push(pblk.map_err(|source| ShardedError::Shard { shard, source })?);
        }
        if let (Some(first), Some(keeper)) = (shards.get_mut(SUPERBLOCK_SHARD as usize), keeper) {
            first.set_superblock_maintainer(keeper);
        }
        let smallest = shards.iter().map(|s| s.ftl().sectors()).min().unwrap_or(0);
        let limits = Limits {
            sector_bytes: geometry.sector_bytes,
            sectors: device_sectors(smallest, &stripes)?,
            max_sectors: REQUEST_SECTORS_MAX,
            optimal_sectors: geometry.ws_opt.min(stripes.sectors()),
            // A shard accepts the fragments of every core's requests.
            queue_depth: QUEUE_DEPTH / config.shards,
            volatile_cache: true,
            atomic: AtomicLimits::NONE,
        };
        // Requests are divided at stripes.
        let whole = shards.first().map_or(AtomicLimits::NONE, |shard| shard.limits().atomic);
        let limits = Limits { atomic: whole.divided_at(stripes.sectors()), ..limits };
        let ends = mesh(config.shards, limits.queue_depth);
        let handles = (0..).zip(shards).zip(ends).map(|((shard, pblk), ends)| {
            let handle = ShardHandle::new(shard, pblk, stripes, share, limits, ends);
            handle.map_err(|e| ShardedError::Shard { shard, source: e.into() })
        });
        Ok(Sharded { shards: handles.collect::<Result<_, _>>()? })
    }

    /// Returns the handles, for a caller that polls all of them.
    pub fn shards_mut(&mut self) -> &mut [ShardHandle] {
        &mut self.shards
    }

    /// Returns the handles, one for each core. All of them must be polled for the device to make
    /// progress.
    pub fn into_shards(self) -> Vec<ShardHandle> {
        self.shards
    }

    /// Returns the sums of the counters of all shards.
    pub fn stats(&self) -> FtlStats {
        let all = self.shards.iter().map(|h| *h.pblk().stats());
        all.fold(FtlStats::default(), |sum, stats| sum.plus(&stats))
    }
}

/// Returns the FTL configuration of a shard.
fn shard_config(
    shard: u32,
    ftl: &FtlConfig,
    share: &ShardMap,
    stripes: &Stripes,
) -> Result<FtlConfig, ShardedError> {
    let (active, pus) = (ftl.active_pus, share.pus());
    if active > pus {
        let source = PblkError::Ftl(CapacityError::TooManyActive { active, pus }.into());
        return Err(ShardedError::Shard { shard, source });
    }
    let active_pus = if active == 0 { pus } else { active };
    Ok(FtlConfig { active_pus, instance_id: shard_name(shard, stripes), ..*ftl })
}

impl ShardedConfig {
    /// Returns the capacity plan of every shard and the sectors of the device, on a drive with this
    /// geometry. `bad` is the unusable share of its chunks, 0 to 1.
    ///
    /// # Errors
    /// Those of [`Sharded::open`] on a new drive.
    pub fn layouts(
        &self,
        geometry: &Geometry,
        bad: f64,
    ) -> Result<(Vec<CapacityPlan>, u64), ShardedError> {
        let stripes = self.stripes(geometry.sector_bytes)?;
        let shape = FlashGeometry::from_geometry(geometry);
        let share = ShardMap::new(shape, self.shards)?;
        let mut layouts = Vec::with_capacity(self.shards as usize);
        for shard in 0..self.shards {
            let own =
                (0..shape.total_chunks()).filter(|c| share.shard_of(ChunkId(*c)) == Some(shard));
            let own = own.count() as u32;
            let counted = (f64::from(own) * (1.0 - bad)) as u32;
            let config = shard_config(shard, &self.ftl, &share, &stripes)?;
            let layout = CapacityPlan::new(&shape, &config, own, counted).map_err(|e| {
                let source = PblkError::Ftl(e.into());
                ShardedError::Shard { shard, source }
            })?;
            layouts.push(layout);
        }
        let smallest = layouts.iter().map(|l| u64::from(l.logical)).min().unwrap_or(0);
        Ok((layouts, device_sectors(smallest, &stripes)?))
    }
}

/// Returns the number of sectors of a device whose smallest shard has `shard_sectors`.
fn device_sectors(shard_sectors: u64, stripes: &Stripes) -> Result<u64, ShardedError> {
    let stripe_sectors = stripes.sectors();
    let stripe = u64::from(stripe_sectors);
    if shard_sectors < stripe {
        return Err(ShardedError::StripeTooWide { stripe_sectors, shard_sectors });
    }
    Ok(shard_sectors / stripe * stripe * u64::from(stripes.shards()))
}

/// Checks or writes the superblock of the drive. Returns its maintainer.
fn open_superblock(
    queue: &mut VectorQueue,
    addresses: &Addresses,
    chunks: &[ChunkDescriptor],
    share: &ShardMap,
    config: &ShardedConfig,
    stripes: &Stripes,
    progress: &mut dyn FnMut(),
) -> Result<SuperblockMaintainer, ShardedError> {
    let others =
        ReportedChunks::from_descriptors(chunks, addresses, &|chunk| !share.is_superblock(chunk))?;
    let shape = addresses.shape();
    // A new layout is checked before its superblock is written; an existing layout is opened as it
    // is.
    for shard in 0..if others.written == 0 { stripes.shards() } else { 0 } {
        let owned = |chunk: ChunkId| share.shard_of(chunk) == Some(shard);
        let found = ReportedChunks::from_descriptors(chunks, addresses, &owned)?;
        let own = found.all.iter().filter(|f| **f != ChunkReport::NotOwned).count() as u32;
        let config = shard_config(shard, &config.ftl, share, stripes)?;
        let layout = CapacityPlan::new(shape, &config, own, found.usable).map_err(|e| {
            let source = PblkError::Ftl(e.into());
            ShardedError::Shard { shard, source }
        })?;
        device_sectors(layout.logical.into(), stripes)?;
    }
    let found = superblock_locations(shape, chunks, share.superblock_chunks());
    let wanted =
        ShardSuperblock { shards: stripes.shards() as u16, stripe_sectors: stripes.sectors() };
    let unsharded = UnshardedJournal::new(shape, chunks, &config.ftl);
    let opener = SuperblockOpener::new(wanted, queue, addresses, progress)?;
    opener.open(&found, others.written, unsharded.as_ref())
}

/// Returns the chunks that may hold the superblock, in the states that the drive reports.
fn superblock_locations(
    shape: &FlashGeometry,
    chunks: &[ChunkDescriptor],
    places: &[ChunkId; LOCATIONS],
) -> [SuperblockLocation; LOCATIONS] {
    places.map(|chunk| {
        // A chunk with an inconsistent descriptor has no superblock.
        let state = chunks
            .get(chunk.index())
            .and_then(|d| parse_chunk_descriptor(d, shape.sectors_per_chunk).ok());
        SuperblockLocation { chunk, report: state.unwrap_or(ChunkReport::Bad) }
    })
}

/// Returns the number of shards of a drive that a pblk without shards cannot be opened on; `None`
/// if the drive has no readable superblock. Nothing is written.
///
/// # Errors
/// [`PblkError::Command`] and [`PblkError::Timeout`].
pub(crate) fn find_shards(
    queue: &mut VectorQueue,
    addresses: &Addresses,
    chunks: &[ChunkDescriptor],
    progress: &mut dyn FnMut(),
) -> Result<Option<u32>, ShardedError> {
    let shape = addresses.shape();
    let Some(places) = superblock_chunks(shape) else { return Ok(None) };
    let found = superblock_locations(shape, chunks, &places);
    let none = ShardSuperblock { shards: 0, stripe_sectors: 0 };
    SuperblockOpener::new(none, queue, addresses, progress)?.find_shards(&found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_of_different_devices_have_different_names() {
        let mut names = std::collections::BTreeSet::new();
        let mut count = 0;
        for shards in 1..=32 {
            for shift in 0..=16 {
                let stripes = Stripes::new(shards, shift);
                names.extend((0..shards).map(|shard| shard_name(shard, &stripes)));
                count += shards as usize;
            }
        }
        assert_eq!(names.len(), count);
        assert!(!names.contains(&0), "a layer that is alone has none");
    }
}
