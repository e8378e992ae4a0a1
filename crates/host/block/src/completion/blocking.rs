//! [`Blocking`]: a set of drives, the threads that wait for them, and the contexts in between.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use driver::{HardwareQueue, LowLevelDriver};
use mem::{Iova, PAGE_BYTES, RegisterError, SharedRegion};

use super::context_host::{ContextHost, NativeContexts};
use super::contexts::{Contexts, Placement, REAPER_COUNT, watch_period};
use super::interrupt_line::InterruptSource;
use super::member::StripeMember;
use super::reaper::CompletionReaper;
use super::shared::{CompletionShared, SetShape};
use super::stats::{CompletionStats, WaiterTotals};
use super::strategy::{Strategy, StrategyError};
use super::waiter::BlockingQueue;
use super::waiter_slot::{SlotResources, WaiterSlot};
use crate::StripeLayout;
use crate::sync::{Lock, Native, ThreadPlatform};
use crate::{
    BlockError, BlockLayer, BlockLayerConfig, Queue, QueueModel, QueueTopology, SubmitterStats,
    Timeouts,
};

/// Maximum number of members of a set: one bit each.
const MEMBERS_MAX: usize = 64;

/// Configuration of a set of drives for waiting threads.
#[derive(Clone, Debug)]
pub struct BlockingConfig {
    /// Number of threads that wait.
    pub threads: u16,
    /// Maximum size of a request, in bytes.
    pub request_bytes: u32,
    /// Size of a stripe, in bytes.
    pub stripe_bytes: u32,
    /// The initial strategy.
    pub strategy: Strategy,
    /// Placement of the contexts.
    pub placement: Placement,
    /// Command timeouts and the retry limit.
    pub timeouts: Timeouts,
}

impl Default for BlockingConfig {
    /// Returns the configuration of [HIOPS14 §4]: 128 threads and stripes of 128 KB, with requests
    /// of up to 64 KB.
    fn default() -> BlockingConfig {
        BlockingConfig {
            threads: 128,
            request_bytes: 64 << 10,
            stripe_bytes: 128 << 10,
            strategy: Strategy::HIOPS_IRQ,
            placement: Placement::default(),
            timeouts: Timeouts::default(),
        }
    }
}

/// The reason why a set of drives cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BlockingError {
    /// The strategy is invalid.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// The block layer of a member cannot be opened.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The set has no member, or too many.
    #[error("a set of {0} drives: it must have 1 to {MEMBERS_MAX}")]
    Members(usize),
    /// There is no thread, or there are too many.
    #[error("{0} threads: 1 to {most}", most = u16::MAX - REAPER_COUNT)]
    Threads(u16),
    /// The members cannot be striped.
    #[error(
        "stripes of {stripe_bytes} bytes over members of {sectors} sectors of {sector_bytes} bytes: \
         whole sectors, at least one stripe per member, and members with the same sectors"
    )]
    Stripe {
        /// Size of a stripe, in bytes.
        stripe_bytes: u32,
        /// Sectors of the smallest member.
        sectors: u64,
        /// Sector size of the first member, in bytes.
        sector_bytes: u32,
    },
    /// The maximum request size is less than a sector, or more than 1 GiB.
    #[error("requests of up to {0} bytes: one sector at least, 1 GiB at most")]
    RequestBytes(u32),
    /// Memory for slots and buffers cannot be allocated.
    #[error("memory for requests: {0}")]
    Memory(#[source] io::Error),
    /// Memory for requests cannot be registered.
    #[error("registering memory for requests: {0}")]
    Register(#[from] RegisterError),
    /// A context cannot be started.
    #[error("starting the contexts: {0}")]
    Context(#[source] io::Error),
}

/// A set of drives for threads that wait for their requests. Dropping it stops the contexts;
/// threads that still wait poll for themselves from then on.
pub struct Blocking<Q: HardwareQueue, P: ThreadPlatform = Native> {
    shared: Arc<CompletionShared<Q, P>>,
    strategy: Strategy,
    contexts: Option<Contexts>,
    watch_reaper: Arc<P::Lock<CompletionReaper<Q, P>>>,
    layers: Vec<BlockLayer>,
    /// Counters of the threads' endpoints.
    submitters: Vec<Arc<SubmitterStats>>,
}

impl<Q: HardwareQueue, P: ThreadPlatform> std::fmt::Debug for Blocking<Q, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocking").field("strategy", &self.strategy).finish_non_exhaustive()
    }
}

impl<Q: HardwareQueue + 'static> Blocking<Q> {
    /// Opens a set of `members`, whose interrupts come from `source`. Returns it with a queue for
    /// each thread.
    ///
    /// Each member gets a single-queue block layer with one lock around both queues, and an
    /// endpoint for each thread and each context.
    ///
    /// # Errors
    /// [`BlockingError`].
    pub fn open(
        members: Vec<StripeMember<Q>>,
        source: InterruptSource,
        config: &BlockingConfig,
    ) -> Result<(Blocking<Q>, Vec<BlockingQueue<Q>>), BlockingError> {
        let mut contexts = NativeContexts { placement: config.placement };
        Blocking::open_on(members, source, config, &mut contexts)
    }
}

/// A set of drives on a platform, and a queue for each thread.
pub type OpenedSet<Q, P> = (Blocking<Q, P>, Vec<BlockingQueue<Q, P>>);

impl<Q: HardwareQueue + 'static, P: ThreadPlatform> Blocking<Q, P> {
    /// Opens a set as [`open`](Blocking::open) does, on a platform whose contexts `host` starts. It
    /// ignores [`BlockingConfig::placement`].
    ///
    /// # Errors
    /// [`BlockingError`].
    pub fn open_on(
        members: Vec<StripeMember<Q>>,
        source: InterruptSource,
        config: &BlockingConfig,
        host: &mut dyn ContextHost<P>,
    ) -> Result<OpenedSet<Q, P>, BlockingError> {
        let BlockingConfig { threads, strategy, timeouts, .. } = *config;
        strategy.validate()?;
        if threads == 0 || threads > u16::MAX - REAPER_COUNT {
            return Err(BlockingError::Threads(threads));
        }
        let plan = StripePlan::new(&members, config)?;
        let (mut layers, mut ends) = (Vec::new(), Vec::new());
        let bytes = plan.slot_bytes * usize::from(threads);
        // One region for all members, in shared memory if a member is in another process.
        let bounce = match members.iter().any(|m| m.memory().needs_shared()) {
            true => SharedRegion::memfd(bytes),
            false => SharedRegion::anonymous(bytes),
        };
        let bounce = bounce.map_err(BlockingError::Memory)?;
        let mut names = Vec::new();
        for mut member in members {
            names.push(member.memory().register(&bounce)?);
            let (layer, queues) =
                BlockLayer::open_with_platform(&mut member, &plan.layer_config(config))?;
            layers.push(layer);
            ends.push(queues.into_iter());
        }
        // Regroup the endpoints from by member to by submitter.
        let mut next =
            || -> Vec<Queue<Q, P>> { ends.iter_mut().filter_map(Iterator::next).collect() };
        let (mut desks, mut submitters) = (Vec::new(), Vec::new());
        for thread in 0..usize::from(threads) {
            let mut queues = next();
            for queue in &mut queues {
                queue.enable_notices();
                submitters.push(queue.stats().clone());
            }
            let slot = plan.slot_bytes * thread;
            let names: Box<[Iova]> = names.iter().map(|name| name.offset(slot as u64)).collect();
            let buffer = SharedRegion::anonymous(plan.slot_bytes).map_err(BlockingError::Memory)?;
            desks.push(WaiterSlot::new(SlotResources {
                queues,
                bounce: bounce.clone(),
                slot_offset: slot,
                slot_iovas: names,
                buffer,
                striped: plan.striped,
                sector_bytes: plan.sector_bytes,
            }));
        }
        let collectors = std::array::from_fn(|_| CompletionReaper::new(next().into()));
        let sweeper = Arc::new(P::Lock::new(CompletionReaper::new(next().into())));
        let dispatch = layers.iter().flat_map(BlockLayer::dispatch).cloned().collect();
        let shape = SetShape {
            striped: plan.striped,
            sector_bytes: plan.sector_bytes,
            request_bytes: config.request_bytes,
            watch_period: watch_period(timeouts),
        };
        let common = Arc::new(CompletionShared::new(shape, source, desks.into(), dispatch));
        let contexts =
            Contexts::start(&common, collectors, &sweeper, host).map_err(BlockingError::Context)?;
        common.apply_strategy(&strategy);
        let queues = (0..threads).map(|index| BlockingQueue::new(common.clone(), index)).collect();
        let contexts = Some(contexts);
        Ok((
            Blocking {
                shared: common,
                strategy,
                contexts,
                watch_reaper: sweeper,
                layers,
                submitters,
            },
            queues,
        ))
    }

    /// Returns the current strategy.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// Returns the stripe layout of the members.
    pub fn striped(&self) -> StripeLayout {
        self.shared.shape.striped
    }

    /// Returns the sector size in bytes.
    pub fn sector_bytes(&self) -> u32 {
        self.shared.shape.sector_bytes
    }

    /// Returns the block layer of each member.
    pub fn layers(&self) -> &[BlockLayer] {
        &self.layers
    }

    /// Changes the strategy. Requests in flight complete once, under the old or the new strategy.
    ///
    /// # Errors
    /// [`StrategyError`]; the strategy has not changed.
    pub fn set_strategy(&mut self, strategy: Strategy) -> Result<(), StrategyError> {
        strategy.validate()?;
        self.shared.apply_strategy(&strategy);
        self.strategy = strategy;
        self.reap_all();
        Ok(())
    }

    /// Reaps all completions and wakes every thread: after a change of strategy, no context is
    /// responsible for work that the old one left unfinished.
    fn reap_all(&self) {
        self.watch_reaper.lock().reap(&self.shared, P::now(), self.shared.all_members());
        for desk in &self.shared.waiter_slots {
            desk.wake();
        }
    }

    /// Returns the counters of threads and contexts.
    pub fn stats(&self) -> CompletionStats {
        let mut waiters = WaiterTotals::default();
        for desk in &self.shared.waiter_slots {
            waiters.add(desk.stats());
        }
        waiters.stolen = self.submitters.iter().map(|stats| stats.reaped_for_others.get()).sum();
        waiters.issued_for_others =
            self.submitters.iter().map(|stats| stats.issued_for_others.get()).sum();
        let contexts = self.contexts.as_ref().map_or_else(Vec::new, Contexts::stats);
        CompletionStats { waiters, contexts, hybrid: self.shared.hybrid(P::now()) }
    }

    /// Clears the histograms of the contexts' run times. Counters continue.
    pub fn reset_run_stats(&self) {
        if let Some(contexts) = &self.contexts {
            contexts.reset_run_stats();
        }
    }
}

impl<Q: HardwareQueue, P: ThreadPlatform> Drop for Blocking<Q, P> {
    fn drop(&mut self) {
        drop(self.contexts.take());
        self.shared.closed.store(true, Ordering::Release);
        for desk in &self.shared.waiter_slots {
            desk.wake();
        }
    }
}

/// The dimensions derived from a set's configuration.
#[derive(Clone, Copy, Debug)]
struct StripePlan {
    striped: StripeLayout,
    sector_bytes: u32,
    /// Size of each thread's slot.
    slot_bytes: usize,
    /// Maximum number of fragments of one request on one member.
    depth: u32,
}

impl StripePlan {
    fn new<Q: HardwareQueue>(
        members: &[StripeMember<Q>],
        config: &BlockingConfig,
    ) -> Result<StripePlan, BlockingError> {
        let BlockingConfig { request_bytes, stripe_bytes, .. } = *config;
        let count = members.len();
        let [first, ..] = members else { return Err(BlockingError::Members(count)) };
        if count > MEMBERS_MAX {
            return Err(BlockingError::Members(count));
        }
        let sector_bytes = first.limits().sector_bytes;
        if sector_bytes == 0 || request_bytes < sector_bytes || request_bytes > 1 << 30 {
            return Err(BlockingError::RequestBytes(request_bytes));
        }
        let sectors = members.iter().map(|member| member.limits().sectors).min().unwrap_or(0);
        let alike = members.iter().all(|member| member.limits().sector_bytes == sector_bytes);
        let whole = alike && stripe_bytes.is_multiple_of(sector_bytes);
        let striped = StripeLayout::new(count as u16, sectors, stripe_bytes / sector_bytes);
        let striped = striped.filter(|_| whole).ok_or(BlockingError::Stripe {
            stripe_bytes,
            sectors,
            sector_bytes,
        })?;
        let parts = striped.fragments_max(request_bytes / sector_bytes);
        let depth = parts.div_ceil(count as u32).max(1);
        let slot_bytes = (request_bytes as usize).next_multiple_of(PAGE_BYTES);
        Ok(StripePlan { striped, sector_bytes, slot_bytes, depth })
    }

    fn layer_config(&self, config: &BlockingConfig) -> BlockLayerConfig {
        BlockLayerConfig {
            queue_model: QueueModel::SingleQueue,
            topology: QueueTopology::flat(config.threads + REAPER_COUNT),
            merge: false,
            queue_depth: self.depth,
            timeouts: config.timeouts,
            ..BlockLayerConfig::default()
        }
    }
}
