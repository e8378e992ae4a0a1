//! [`Sharded::open`]: a drive as one block device with an owner per core.

use std::sync::Arc;

use block::Limits;
use driver::{DriveInfo, OpenChannel, QueuePair};
use ftl::{CapacityError, Found, FtlConfig, FtlStats, Layout, Shape};
use nvme::{ChunkDescriptor, Geometry};
use ring::Port;

use super::super::open::{Chunks, check_shape, find};
use super::super::{MAX_SECTORS, Pblk, PblkError, QUEUE_DEPTH};
use super::config::{ShardedConfig, Share};
use super::events::LABEL_SHARD;
use super::handle::ShardHandle;
use super::label::{Desk, Keeper, Label};
use super::links::mesh;
use super::stripes::Stripes;
use super::{ShardedError, label};
use crate::vector::{Addresses, VectorQueue};

/// Marks the names of shards among those of layers.
const NAME: u32 = 0x73 << 24;

/// A sharded block device that is not yet, or no more, in the hands of its cores.
#[derive(Debug)]
pub struct Sharded {
    handles: Vec<ShardHandle>,
}

/// A shard's name in its journal.
fn name(shard: u32, stripes: &Stripes) -> u32 {
    let shift = stripes.sectors().trailing_zeros();
    NAME | shard << 16 | (stripes.shards() - 1) << 8 | shift
}

impl Sharded {
    /// Opens the drive that `info` describes and `port` leads to. `queues` are as many of its queue
    /// pairs as there are shards, with nothing outstanding, which are the device's from now on;
    /// payloads are registered once, with the port, for all of them. `chunks`, `pump` and
    /// `keeps_data` are as for [`Pblk::open`].
    ///
    /// A new drive is labelled with the number of shards and the width of its stripes; one that
    /// is labelled otherwise is refused. A drive that keeps nothing has no label.
    ///
    /// # Errors
    /// [`ShardedError`]. Opening can be interrupted at any time and repeated.
    pub fn open(
        info: &DriveInfo,
        chunks: &[ChunkDescriptor],
        queues: Vec<QueuePair>,
        port: Arc<Port>,
        config: ShardedConfig,
        pump: &mut dyn FnMut(),
        keeps_data: bool,
    ) -> Result<Sharded, ShardedError> {
        let OpenChannel { geometry, format, .. } = info
            .open_channel
            .ok_or_else(|| PblkError::NotOpenChannel { serial: info.serial.clone() })?;
        check_shape(info, &geometry, keeps_data)?;
        let stripes = config.stripes(geometry.sector_bytes)?;
        if queues.len() != config.shards as usize {
            return Err(ShardedError::Queues { queues: queues.len(), shards: config.shards });
        }
        let shape = Shape::of(&geometry);
        let share = Share::new(shape, config.shards)?;
        let addresses = Addresses::new(shape, geometry, format);
        let mut queues = queues.into_iter();
        let mut first = queues.next();
        let mut keeper = None;
        if keeps_data && let Some(queue) = first.take() {
            let mut queue = VectorQueue::new(queue, port.clone(), info).map_err(PblkError::from)?;
            keeper =
                Some(labelled(&mut queue, &addresses, chunks, &share, &config, &stripes, pump)?);
            first = Some(queue.into_queue());
        }
        let mut shards: Vec<Pblk> = Vec::with_capacity(config.shards as usize);
        for (shard, queue) in (0..).zip(first.into_iter().chain(queues)) {
            let owned = |chunk: u32| share.shard_of(chunk) == Some(shard);
            let config = shard_config(shard, &config.ftl, &share, &stripes)?;
            let way = (queue, port.clone());
            let pblk = Pblk::open_on(info, chunks, &owned, way, config, pump, keeps_data);
            shards.push(pblk.map_err(|source| ShardedError::Shard { shard, source })?);
        }
        if let (Some(first), Some(keeper)) = (shards.get_mut(LABEL_SHARD as usize), keeper) {
            first.keep_label(keeper);
        }
        let smallest = shards.iter().map(|s| s.ftl().sectors()).min().unwrap_or(0);
        let limits = Limits {
            sector_bytes: geometry.sector_bytes,
            sectors: whole_stripes(smallest, &stripes)?,
            max_sectors: MAX_SECTORS,
            optimal_sectors: geometry.ws_opt.min(stripes.sectors()),
            // A shard has room for the parts of every core's requests.
            queue_depth: QUEUE_DEPTH / config.shards,
            volatile_cache: true,
        };
        let ends = mesh(config.shards, limits.queue_depth);
        let handles = (0..).zip(shards).zip(ends).map(|((shard, pblk), ends)| {
            let handle = ShardHandle::new(shard, pblk, (stripes, share), limits, ends);
            handle.map_err(|e| ShardedError::Shard { shard, source: e.into() })
        });
        Ok(Sharded { handles: handles.collect::<Result<_, _>>()? })
    }

    /// The cores' ends, for who polls them all in one place.
    pub fn handles(&mut self) -> &mut [ShardHandle] {
        &mut self.handles
    }

    /// The cores' ends, one for each; all of them must be polled for the device to go on.
    pub fn into_handles(self) -> Vec<ShardHandle> {
        self.handles
    }

    /// The counters of all shards together.
    pub fn stats(&self) -> FtlStats {
        let all = self.handles.iter().map(|h| *h.pblk().stats());
        all.fold(FtlStats::default(), |sum, stats| sum.plus(&stats))
    }
}

/// What a shard is opened with.
fn shard_config(
    shard: u32,
    ftl: &FtlConfig,
    share: &Share,
    stripes: &Stripes,
) -> Result<FtlConfig, ShardedError> {
    let (active, pus) = (ftl.active_pus, share.pus());
    if active > pus {
        let source = PblkError::Ftl(CapacityError::TooManyActive { active, pus }.into());
        return Err(ShardedError::Shard { shard, source });
    }
    let active_pus = if active == 0 { pus } else { active };
    Ok(FtlConfig { active_pus, name: name(shard, stripes), ..*ftl })
}

impl ShardedConfig {
    /// What every shard is laid out as on a drive of this geometry of whose chunks a share of `bad`,
    /// from 0 to 1, cannot be used; and the sectors of the device.
    ///
    /// # Errors
    /// As [`Sharded::open`] has for a drive that is new.
    pub fn layouts(
        &self,
        geometry: &Geometry,
        bad: f64,
    ) -> Result<(Vec<Layout>, u64), ShardedError> {
        let stripes = self.stripes(geometry.sector_bytes)?;
        let shape = Shape::of(geometry);
        let share = Share::new(shape, self.shards)?;
        let mut layouts = Vec::with_capacity(self.shards as usize);
        for shard in 0..self.shards {
            let own = (0..shape.total_chunks()).filter(|c| share.shard_of(*c) == Some(shard));
            let own = own.count() as u32;
            let counted = (f64::from(own) * (1.0 - bad)) as u32;
            let config = shard_config(shard, &self.ftl, &share, &stripes)?;
            let layout = Layout::of(&shape, &config, own, counted).map_err(|e| {
                let source = PblkError::Ftl(e.into());
                ShardedError::Shard { shard, source }
            })?;
            layouts.push(layout);
        }
        let smallest = layouts.iter().map(|l| u64::from(l.logical)).min().unwrap_or(0);
        Ok((layouts, whole_stripes(smallest, &stripes)?))
    }
}

/// Sectors of a device whose smallest shard has so many.
fn whole_stripes(shard_sectors: u64, stripes: &Stripes) -> Result<u64, ShardedError> {
    let stripe_sectors = stripes.sectors();
    let stripe = u64::from(stripe_sectors);
    if shard_sectors < stripe {
        return Err(ShardedError::StripeTooWide { stripe_sectors, shard_sectors });
    }
    Ok(shard_sectors / stripe * stripe * u64::from(stripes.shards()))
}

/// Sees to it that the drive is labelled as it is opened. Returns who looks after the label from then on.
fn labelled(
    queue: &mut VectorQueue,
    addresses: &Addresses,
    chunks: &[ChunkDescriptor],
    share: &Share,
    config: &ShardedConfig,
    stripes: &Stripes,
    pump: &mut dyn FnMut(),
) -> Result<Keeper, ShardedError> {
    let others = Chunks::of(chunks, addresses, &|chunk| !share.is_label(chunk))?;
    let shape = addresses.shape();
    // What a shard cannot be made of must not be labelled; what was made of it once can be.
    for shard in 0..if others.written == 0 { stripes.shards() } else { 0 } {
        let owned = |chunk: u32| share.shard_of(chunk) == Some(shard);
        let found = Chunks::of(chunks, addresses, &owned)?;
        let own = found.all.iter().filter(|f| **f != Found::Foreign).count() as u32;
        let config = shard_config(shard, &config.ftl, share, stripes)?;
        let layout = Layout::of(shape, &config, own, found.counted).map_err(|e| {
            let source = PblkError::Ftl(e.into());
            ShardedError::Shard { shard, source }
        })?;
        whole_stripes(layout.logical.into(), stripes)?;
    }
    let mut found = [(0, Found::Bad); label::PLACES];
    for (found, &chunk) in found.iter_mut().zip(share.label()) {
        // A descriptor that contradicts itself is that of a chunk without a label.
        let state = chunks.get(chunk as usize).and_then(|d| find(d, shape.sectors).ok());
        *found = (chunk, state.unwrap_or(Found::Bad));
    }
    let wanted = Label { shards: stripes.shards() as u16, stripe_sectors: stripes.sectors() };
    Desk::new(wanted, queue, addresses, pump)?.settle(&found, others.written)
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
                names.extend((0..shards).map(|shard| name(shard, &stripes)));
                count += shards as usize;
            }
        }
        assert_eq!(names.len(), count);
        assert!(!names.contains(&0), "a layer that is alone has none");
    }
}
