//! [`BlockLayer`]: the queues between a number of cores and a driver's hardware queues ([SYSTOR13
//! §3.2]).
//!
//! `sq` and `mq` consist of the same parts and differ in ownership. A staging or dispatch queue
//! that one core uses is owned by that core's [`Queue`]. A queue that several cores use is behind a
//! lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use driver::{HardwareQueue, LowLevelDriver};
use time::Nanos;

use crate::account::{DiskStat, DispatchStats, StagingStats, SubmitterStats};
use crate::dispatch::Dispatch;
use crate::dispatch::queue::DispatchQueue;
use crate::ownership::OwnedOrLocked;
use crate::queue::{LockedDispatch, QueuePath, QueueStages};
use crate::staging::Staging;
use crate::steer;
use crate::submitter::context::{SPLIT_MAX, SubmitContext};
use crate::submitter::merge::Merger;
use crate::sync::{Lock, Platform};
use crate::{
    BlockError, BlockLayerConfig, Limits, Native, Queue, QueueModel, StagingScope, Submitter,
};

/// Maximum queue depth of a core; it bounds the memory of the request tables.
const QUEUE_DEPTH_MAX: u32 = 1 << 20;

/// The block layer of one device: its limits and counters. The queues themselves belong to the
/// cores.
#[derive(Clone, Debug)]
pub struct BlockLayer {
    limits: Limits,
    submitters: Vec<Arc<SubmitterStats>>,
    staging: Vec<Arc<StagingStats>>,
    dispatch: Vec<Arc<DispatchStats>>,
}

/// A block layer, and one queue per core.
pub type OpenedQueues<Q, P = Native> = (BlockLayer, Vec<Queue<Q, P>>);

impl BlockLayer {
    /// Opens a block layer on a device. Returns the layer and one queue per core.
    ///
    /// # Errors
    /// [`BlockError`].
    pub fn open<D: LowLevelDriver>(
        driver: &mut D,
        config: &BlockLayerConfig,
    ) -> Result<OpenedQueues<D::Queue>, BlockError> {
        BlockLayer::open_with_platform::<D, Native>(driver, config)
    }

    /// Opens a block layer as [`open`](BlockLayer::open) does, on another platform than this
    /// machine's threads.
    ///
    /// # Errors
    /// [`BlockError`].
    pub fn open_with_platform<D: LowLevelDriver, P: Platform>(
        driver: &mut D,
        config: &BlockLayerConfig,
    ) -> Result<OpenedQueues<D::Queue, P>, BlockError> {
        let plan = QueueMap::new(driver, config)?;
        let limits = Limits { queue_depth: config.queue_depth, ..driver.limits() };
        let features = driver.features();
        let mut layer = BlockLayer {
            limits,
            submitters: Vec::new(),
            staging: Vec::new(),
            dispatch: Vec::new(),
        };

        // For each hardware queue in use: its dispatch queue, and a completion mailbox to each
        // core.
        let mut receivers: Vec<Vec<steer::Receiver>> = Vec::new();
        receivers.resize_with(plan.cores(), Vec::new);
        let mut dispatch = BTreeMap::new();
        for (queue, users) in plan.cores_by_queue(|core| core.queue) {
            let hardware = driver
                .take_queue(queue)
                .ok_or(BlockError::QueueTaken { queue, queues: driver.queues() })?;
            let alone = users.len() == 1;
            let compete = !alone && plan.cores[usize::from(users[0])].staging_is_own;
            let shares = (compete && !plan.single).then_some(plan.cores() as u16);
            let part = Dispatch::new(queue, hardware, config.timeouts, features.fua, shares);
            layer.dispatch.push(part.stats());
            let mut senders = Vec::new();
            let reach = plan.cores_reaching(&users);
            if reach.len() > 1 {
                senders.resize_with(plan.cores(), || None);
                for user in reach {
                    let (sender, receiver) = steer::completion_mailbox(
                        Submitter(user as u16),
                        (config.queue_depth + SPLIT_MAX) as usize,
                    );
                    senders[user] = Some(sender);
                    receivers[user].push(receiver);
                }
            }
            dispatch.insert(queue, (alone, DispatchQueue::new(part, senders)));
        }

        // The staging queues, and each core's path through its staging and dispatch queue.
        let mut ways: Vec<Option<QueuePath<D::Queue, P>>> = Vec::new();
        ways.resize_with(plan.cores(), || None);
        let plain = config.scheduler.is_plain();
        let mut staging_of = vec![0; plan.cores()];
        let mut foreign_of: Vec<Vec<u16>> = vec![Vec::new(); plan.cores()];
        let mut shared_dispatch: BTreeMap<u16, LockedDispatch<D::Queue, P>> = BTreeMap::new();
        for (_, users) in plan.cores_by_queue(|core| core.staging) {
            let first = plan.cores[usize::from(users[0])];
            let depth = driver.limits().queue_depth.min(u16::MAX.into()) as u16;
            let staging = Staging::new(config.scheduler.build(depth)?, plain);
            for user in &users {
                staging_of[usize::from(*user)] = layer.staging.len();
            }
            layer.staging.push(staging.stats());
            if plan.single {
                if let Some((_, shared)) = dispatch.remove(&first.queue) {
                    let path = Arc::new(P::Lock::new(QueueStages {
                        staging,
                        dispatch: shared.with_one_staging(),
                    }));
                    for user in users {
                        ways[usize::from(user)] = Some(QueuePath::SingleQueue(path.clone()));
                    }
                }
                continue;
            }
            let mut held: Vec<OwnedOrLocked<Staging, P>> = if users.len() == 1 {
                vec![OwnedOrLocked::Owned(staging)]
            } else {
                let lock = Arc::new(P::Lock::new(staging));
                users.iter().map(|_| OwnedOrLocked::Locked(lock.clone())).collect()
            };
            // One staging queue feeds several dispatch queues: any core may start any core's
            // requests on its own dispatch queue. So each core services all of these dispatch
            // queues.
            let below: BTreeSet<u16> =
                users.iter().map(|user| plan.cores[usize::from(*user)].queue).collect();
            let alone_below = below.len() == 1;
            for user in &users {
                let own = plan.cores[usize::from(*user)].queue;
                foreign_of[usize::from(*user)] =
                    below.iter().copied().filter(|q| *q != own).collect::<Vec<_>>();
            }
            for user in users {
                let queue = plan.cores[usize::from(user)].queue;
                let dispatch = match dispatch.remove(&queue) {
                    Some((true, shared)) if alone_below => OwnedOrLocked::Owned(shared),
                    Some((_, shared)) => {
                        let lock = Arc::new(P::Lock::new(shared));
                        shared_dispatch.insert(queue, lock.clone());
                        OwnedOrLocked::Locked(lock)
                    }
                    None => match shared_dispatch.get(&queue) {
                        Some(lock) => OwnedOrLocked::Locked(lock.clone()),
                        None => {
                            return Err(BlockError::QueueTaken { queue, queues: driver.queues() });
                        }
                    },
                };
                let Some(staging) = held.pop() else { continue };
                ways[usize::from(user)] = Some(QueuePath::MultiQueue { staging, dispatch });
            }
        }

        let users_of = plan.cores_by_queue(|core| core.queue);
        let indices: Vec<u16> = users_of.keys().copied().collect();
        let mut queues = Vec::with_capacity(plan.cores());
        for (core, (way, receivers)) in std::iter::zip(ways, receivers).enumerate() {
            let queue = plan.cores[core].queue;
            let Some(way) = way else {
                return Err(BlockError::QueueTaken { queue, queues: driver.queues() });
            };
            let merger = if config.merge {
                let requests = config.queue_depth + SPLIT_MAX;
                Some(Merger::new(&limits, &features, requests, driver.memory())?)
            } else {
                None
            };
            let owned = matches!(
                way,
                QueuePath::MultiQueue {
                    staging: OwnedOrLocked::Owned(_),
                    dispatch: OwnedOrLocked::Owned(_)
                }
            );
            let mut local = SubmitContext::new(Submitter(core as u16), limits, features, merger);
            local.owns_all = owned && plain && receivers.is_empty();
            layer.submitters.push(local.stats.clone());
            let at = indices.iter().position(|index| *index == queue).unwrap_or_default();
            let locked = |queue: &u16| shared_dispatch.get(queue).cloned();
            queues.push(Queue {
                ctx: local,
                path: way,
                sibling_dispatch: foreign_of[core].iter().filter_map(locked).collect(),
                receivers: receivers.into(),
                memory: driver.memory().clone(),
                staging_stats: layer.staging[staging_of[core]].clone(),
                dispatch_stats: layer.dispatch[at].clone(),
                due: Nanos::MAX,
                waiting: false,
                parker: None,
                shows_hardware: users_of[&queue].first() == Some(&(core as u16)),
                has_waker: false,
                handler: None,
            });
        }
        Ok((layer, queues))
    }

    /// Returns the limits of the device; `queue_depth` is the depth of each core.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the counters of `/sys/block/*/stat` at `now`, summed over all submitters.
    pub fn stat(&self, now: Nanos) -> DiskStat {
        let of = |stats: &Arc<SubmitterStats>| stats.stat(now, self.limits.sector_bytes);
        self.submitters.iter().map(of).fold(DiskStat::default(), |sum, one| sum.plus(&one))
    }

    /// Returns the counters of each submitter.
    pub fn submitters(&self) -> &[Arc<SubmitterStats>] {
        &self.submitters
    }

    /// Returns the counters of each staging queue.
    pub fn staging(&self) -> &[Arc<StagingStats>] {
        &self.staging
    }

    /// Returns the counters of each dispatch queue.
    pub fn dispatch(&self) -> &[Arc<DispatchStats>] {
        &self.dispatch
    }
}

/// The queues that a core uses.
#[derive(Clone, Copy, Debug)]
struct CoreQueues {
    staging: u16,
    queue: u16,
    staging_is_own: bool,
}

/// The queues that every core uses.
#[derive(Debug)]
struct QueueMap {
    cores: Vec<CoreQueues>,
    single: bool,
}

impl QueueMap {
    fn new<D: LowLevelDriver>(
        driver: &D,
        config: &BlockLayerConfig,
    ) -> Result<QueueMap, BlockError> {
        let BlockLayerConfig { queue_model: layout, topology, queue_depth, .. } = *config;
        let limits = driver.limits();
        let count = topology.count();
        if count == 0 || count > u16::MAX.into() {
            let (sockets, cores) = (topology.sockets, topology.cores);
            return Err(BlockError::Topology { sockets, cores });
        }
        if queue_depth == 0 || queue_depth > QUEUE_DEPTH_MAX {
            return Err(BlockError::Depth(queue_depth));
        }
        let powers = limits.sector_bytes.is_power_of_two() && limits.sector_bytes >= 512;
        let bytes = u64::from(limits.max_sectors) * u64::from(limits.sector_bytes);
        if !powers || limits.sectors == 0 || bytes == 0 || bytes > u32::MAX.into() {
            return Err(BlockError::Limits(limits));
        }
        config.scheduler.validate()?;
        let queues = driver.queues();
        if queues == 0 {
            return Err(BlockError::NoQueues);
        }
        let single = layout == QueueModel::SingleQueue;
        let mut cores = Vec::with_capacity(count as usize);
        for software in 0..count as u16 {
            let queue = if single { 0 } else { driver.map_queue(software, count as u16) };
            if queue >= queues {
                return Err(BlockError::Mapping { software, mapped: queue, queues });
            }
            let per = match layout {
                QueueModel::SingleQueue => StagingScope::Device,
                QueueModel::MultiQueue { staging } => staging,
            };
            let (staging, staging_is_own) = match per {
                StagingScope::Core => (software, true),
                StagingScope::Socket => (software / topology.cores, topology.cores == 1),
                StagingScope::Device => (0, count == 1),
            };
            cores.push(CoreQueues { staging, queue, staging_is_own });
        }
        let plan = QueueMap { cores, single };
        let queues = plan.cores_by_queue(|core| core.staging).len();
        if let Some(what) = config.scheduler.per_submitter_policy()
            && queues > 1
        {
            return Err(BlockError::SeparateStaging { what, queues });
        }
        Ok(plan)
    }

    fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Returns the cores whose requests can reach a dispatch queue with these users. They share a
    /// staging queue with one of the users.
    fn cores_reaching(&self, users: &[u16]) -> Vec<usize> {
        let staging: BTreeSet<u16> =
            users.iter().map(|user| self.cores[usize::from(*user)].staging).collect();
        let comes = |core: &CoreQueues| staging.contains(&core.staging);
        (0..self.cores.len()).filter(|core| comes(&self.cores[*core])).collect()
    }

    /// Groups the cores by the queue that `what` returns, in order.
    fn cores_by_queue(&self, what: impl Fn(&CoreQueues) -> u16) -> BTreeMap<u16, Vec<u16>> {
        let mut users: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
        for (core, uses) in self.cores.iter().enumerate() {
            users.entry(what(uses)).or_default().push(core as u16);
        }
        users
    }
}

impl<Q: HardwareQueue, P: Platform> Drop for Queue<Q, P> {
    fn drop(&mut self) {
        let submitter = self.ctx.submitter;
        match &mut self.path {
            QueuePath::SingleQueue(lock) => lock.lock().dispatch.remove_submitter(submitter),
            QueuePath::MultiQueue { dispatch, .. } => {
                dispatch.with(|shared| shared.remove_submitter(submitter))
            }
        }
    }
}
