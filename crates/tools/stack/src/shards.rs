//! [`Shards`]: the queues of a sharded pblk, one per core, as one device ([LightNVM17 §4.2.1]).
//!
//! [`PerCoreDevices`] assigns jobs to cores. A request for sectors of another core's shard goes to
//! that core through a ring between the two.

use block::{BlockDevice, Completion, Limits, QueueFull, Request};
use driver::{ControllerHandle, DriverError};
use event::Waker;
use ftl::FtlStats;
use lnvm::ScrubConfig;
use mem::AddressSpace;
use pblk::{
    PblkHealth, ShardHandle, ShardStats, Sharded, ShardedConfig, ShardedError, SuperblockHealth,
};
use time::{Component, Nanos};
use workload::job_index_of_tag;

use super::per_core_devices::PerCoreDevices;

/// Counters of a shard and its core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShardCounts {
    /// Counters of the shard's FTL.
    pub ftl: FtlStats,
    /// Free lines of the shard.
    pub free_lines: f64,
    /// Messages between the shard's core and other cores.
    pub core: ShardStats,
    /// Media events and the reactions to them.
    pub health: PblkHealth,
    /// State of the device's superblock, for the shard that maintains it.
    pub superblock: Option<SuperblockHealth>,
}

impl ShardCounts {
    fn from_handle(handle: &ShardHandle) -> ShardCounts {
        let ftl = handle.pblk().ftl();
        ShardCounts {
            ftl: *ftl.stats(),
            free_lines: ftl.free_lines(),
            core: *handle.stats(),
            health: handle.health(),
            superblock: handle.superblock_health(),
        }
    }

    /// Returns the difference to an earlier reading. `free_lines` is the current value; `health`
    /// and `superblock` count since the device was opened.
    #[must_use]
    pub fn since(&self, earlier: &ShardCounts) -> ShardCounts {
        ShardCounts {
            ftl: self.ftl.since(&earlier.ftl),
            core: self.core.since(&earlier.core),
            ..*self
        }
    }
}

/// All cores of a sharded device.
#[derive(Debug)]
pub struct Shards {
    handles: PerCoreDevices<ShardHandle>,
}

/// Error of opening a drive in shards.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenShardsError {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Shards(#[from] ShardedError),
}

/// The queue pairs of the shards.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuePairOptions {
    /// Entries of each queue.
    pub(super) depth: u16,
    /// Whether each queue pair has an interrupt vector.
    pub(super) interrupts: bool,
}

impl Shards {
    /// Opens a sharded pblk on the drive of `controller`. Each shard has a queue pair with the
    /// options `pairs`.
    pub(super) fn open(
        controller: &mut ControllerHandle,
        config: ShardedConfig,
        pairs: QueuePairOptions,
        progress: &mut dyn FnMut(),
        keeps_data: bool,
    ) -> Result<Shards, OpenShardsError> {
        let QueuePairOptions { depth, interrupts } = pairs;
        let granted = u32::from(controller.info().io_queues);
        if config.shards > granted {
            let (queues, shards) = (granted as usize, config.shards);
            return Err(ShardedError::Queues { queues, shards }.into());
        }
        let mut queues = Vec::with_capacity(config.shards as usize);
        for _ in 0..config.shards {
            let vector = controller.next_qid().filter(|_| interrupts);
            queues.push(controller.create_queue_pair(depth, vector, progress)?);
        }
        let info = controller.info().clone();
        let all = info.open_channel.map_or(0, |oc| oc.geometry.total_chunks());
        let chunks = controller.chunks(0, all, progress)?;
        let port = controller.port().clone();
        let opened = Sharded::open(&info, &chunks, queues, port, config, progress, keeps_data)?;
        let none = ShardedError::Shards { shards: config.shards, max: granted };
        Ok(Shards { handles: PerCoreDevices::new(opened.into_shards()).ok_or(none)? })
    }

    /// Returns each core's handle, in order.
    pub fn handles(&self) -> &[ShardHandle] {
        self.handles.all()
    }

    /// Returns mutable access to each core's handle, in order.
    pub fn handles_mut(&mut self) -> &mut [ShardHandle] {
        self.handles.all_mut()
    }

    /// Returns the handles, for use on separate cores. Nothing may be outstanding.
    pub fn into_handles(self) -> Vec<ShardHandle> {
        self.handles.into_all()
    }

    /// Returns the counters of each shard.
    pub fn counts(&self) -> Vec<ShardCounts> {
        self.handles().iter().map(ShardCounts::from_handle).collect()
    }

    /// Returns the counters of all FTLs, summed.
    pub fn ftl_stats(&self) -> FtlStats {
        let all = self.handles().iter().map(|h| *h.pblk().stats());
        all.fold(FtlStats::default(), |sum, stats| sum.plus(&stats))
    }

    /// Returns the free lines of all shards, summed.
    pub fn free_lines(&self) -> f64 {
        self.handles().iter().map(|h| h.pblk().ftl().free_lines()).sum()
    }

    /// Configures the scrub; its rate applies to all shards together.
    pub(super) fn set_scrub(&mut self, config: ScrubConfig) {
        let shards = self.handles().len().max(1) as u32;
        let sectors_per_sec = config.sectors_per_sec.div_ceil(shards);
        for handle in self.handles_mut() {
            handle.set_scrub(ScrubConfig { sectors_per_sec, ..config });
        }
    }

    /// Requests a checkpoint of every shard.
    pub fn checkpoint(&mut self) {
        self.handles_mut().iter_mut().for_each(ShardHandle::checkpoint);
    }

    /// Returns whether a checkpoint of any shard is in progress.
    pub fn is_checkpointing(&self) -> bool {
        self.handles().iter().any(|h| h.pblk().ftl().is_checkpointing())
    }
}

impl Component for Shards {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        self.handles.poll(now)
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.handles.deadline()
    }
}

impl BlockDevice for Shards {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false);

    fn limits(&self) -> &Limits {
        self.handles.limits()
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        self.handles.for_job(job_index_of_tag(request.tag)).submit(now, request)
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        self.handles.reap()
    }

    fn memory(&self) -> &AddressSpace {
        self.handles.memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        self.handles.set_waker(&waker);
    }
}
