//! [`Shards`]: the ends of a pblk in shards, one per core, as one device (LightNVM paper section 4.2.1):
//! jobs are dealt to them ([`Ends`]). What a request touches of other cores' shards goes there through
//! their rings.

use block::{BlockDevice, Completion, Limits, QueueFull, Request};
use clock::{Component, Nanos, Waker};
use driver::{ControllerHandle, DriverError};
use ftl::FtlStats;
use lightnvm::subsystem::ScrubConfig;
use lightnvm::{
    PblkHealth, ShardHandle, ShardStats, Sharded, ShardedConfig, ShardedError, SuperblockHealth,
};
use ring::AddressSpace;
use workload::job_index_of_tag;

use super::per_core_devices::PerCoreDevices;

/// What a shard and its core have done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShardCounts {
    /// Of the shard's translation layer.
    pub ftl: FtlStats,
    /// Its free lines.
    pub free_lines: f64,
    /// What passed between its core and the others.
    pub core: ShardStats,
    /// What was heard of its media, and done about it.
    pub health: PblkHealth,
    /// How the label of the device is, of the shard that looks after it.
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

    /// What happened since an earlier reading; `free_lines` is that of now, `health` and `label` what
    /// there was since the device was opened.
    #[must_use]
    pub fn since(&self, earlier: &ShardCounts) -> ShardCounts {
        let (now, then) = (self.core, earlier.core);
        let core = ShardStats {
            requests: now.requests - then.requests,
            split: now.split - then.split,
            local: now.local - then.local,
            sent: now.sent - then.sent,
            served: now.served - then.served,
            aborted: now.aborted - then.aborted,
        };
        ShardCounts { ftl: self.ftl.since(&earlier.ftl), core, ..*self }
    }
}

/// All cores of a sharded device.
#[derive(Debug)]
pub struct Shards {
    handles: PerCoreDevices<ShardHandle>,
}

/// Why a drive cannot be opened in shards.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenShardsError {
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Shards(#[from] ShardedError),
}

impl Shards {
    /// Opens pblk in shards on the drive that `controller` leads to, with queue pairs of so many
    /// entries, each of which raises an interrupt vector of its own if that is wanted.
    pub(super) fn open(
        controller: &mut ControllerHandle,
        config: ShardedConfig,
        (depth, interrupts): (u16, bool),
        pump: &mut dyn FnMut(),
        keeps_data: bool,
    ) -> Result<Shards, OpenShardsError> {
        let granted = u32::from(controller.info().io_queues);
        if config.shards > granted {
            let (queues, shards) = (granted as usize, config.shards);
            return Err(ShardedError::Queues { queues, shards }.into());
        }
        let mut queues = Vec::with_capacity(config.shards as usize);
        for _ in 0..config.shards {
            let vector = controller.next_qid().filter(|_| interrupts);
            queues.push(controller.create_queue_pair(depth, vector, pump)?);
        }
        let info = controller.info().clone();
        let all = info.open_channel.map_or(0, |oc| oc.geometry.total_chunks());
        let chunks = controller.chunks(0, all, pump)?;
        let port = controller.port().clone();
        let opened = Sharded::open(&info, &chunks, queues, port, config, pump, keeps_data)?;
        let none = ShardedError::Shards { shards: config.shards, max: granted };
        Ok(Shards { handles: PerCoreDevices::new(opened.into_shards()).ok_or(none)? })
    }

    /// Each core's end, in order.
    pub fn handles(&self) -> &[ShardHandle] {
        self.handles.all()
    }

    /// The same, to change them.
    pub fn handles_mut(&mut self) -> &mut [ShardHandle] {
        self.handles.all_mut()
    }

    /// The cores' ends, for cores of their own. Nothing may be outstanding.
    pub fn into_handles(self) -> Vec<ShardHandle> {
        self.handles.into_all()
    }

    /// What each shard has done.
    pub fn counts(&self) -> Vec<ShardCounts> {
        self.handles().iter().map(ShardCounts::from_handle).collect()
    }

    /// Counters of all translation layers together.
    pub fn ftl_stats(&self) -> FtlStats {
        let all = self.handles().iter().map(|h| *h.pblk().stats());
        all.fold(FtlStats::default(), |sum, stats| sum.plus(&stats))
    }

    /// Free lines of all shards.
    pub fn free_lines(&self) -> f64 {
        self.handles().iter().map(|h| h.pblk().ftl().free_lines()).sum()
    }

    /// Looks after cold data at this rate, all shards together.
    pub(super) fn set_scrub(&mut self, config: ScrubConfig) {
        let shards = self.handles().len().max(1) as u32;
        let sectors_per_sec = config.sectors_per_sec.div_ceil(shards);
        for handle in self.handles_mut() {
            handle.set_scrub(ScrubConfig { sectors_per_sec, ..config });
        }
    }

    /// Asks every shard for a checkpoint.
    pub fn checkpoint(&mut self) {
        self.handles_mut().iter_mut().for_each(ShardHandle::checkpoint);
    }

    /// Whether a shard is making one.
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
