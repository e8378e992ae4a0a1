//! [`CoreQueues`]: the block device of the host, as one queue per core. Threads that each own a core
//! take it apart ([`split`](CoreQueues::split)).
//!
//! A queue is a queue pair of the drive, a target or a shard of it, or a core's queue of a block
//! layer. A call is dispatched to it dynamically once; everything beneath is monomorphic.
//!
//! Job `i` submits on core `i` modulo the number of cores; its index is in the tag
//! ([`workload::job_index_of_tag`]). In virtual time all cores are polled here, in order, until
//! none makes progress. Thus the number of polls does not influence results.

use std::any::Any;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use block::notify::{
    CompletionHandler, CompletionMethod, CompletionPolicy, NotifiedDriver, NotifiedQueue,
    NotifyConfig, NotifyStats,
};
use block::trace::Tracer;
use block::{
    BlockDevice, BlockError, BlockLayer, Completion, DeviceQueue, Features, Group, Limits, Native,
    Platform, Queue, QueueFull, QueueModel, Raw, Request, WaitResult,
};
use driver::{HardwareQueue, LowLevelDriver};
use event::{RealClock, Waker};
use machine::Modeled;
use mem::AddressSpace;
use pblk::{Pblk, Rrpc, ShardHandle};
use scenario::BlockLayerSpec;
use time::{Component, Nanos};
use workload::job_index_of_tag;

/// The queue of one core.
pub trait CoreQueue: BlockDevice + Any + Debug + Send {
    /// Returns the queue as one of a block layer; `None` for others.
    fn block_layer_queue(&mut self) -> Option<&mut dyn BlockLayerQueue> {
        None
    }
}

impl<Q: HardwareQueue + Debug + 'static> CoreQueue for Raw<Q> {}
impl CoreQueue for Pblk {}
impl CoreQueue for Rrpc {}
impl CoreQueue for ShardHandle {}

impl<Q: HardwareQueue + 'static, P: Platform> CoreQueue for Queue<Q, P> {
    fn block_layer_queue(&mut self) -> Option<&mut dyn BlockLayerQueue> {
        Some(self)
    }
}

/// The interface of a core's queue of a block layer, in addition to that of a block device.
pub trait BlockLayerQueue {
    /// Sets the group of later requests.
    fn set_group(&mut self, group: Group);

    /// Starts tracing. Drops and counts events beyond `limit` until the buffer is drained.
    fn trace(&mut self, limit: usize);

    /// Returns the tracer, if tracing has been started.
    fn tracer(&mut self) -> Option<&mut Tracer>;

    /// Sets the interrupt context that fetches completions.
    fn set_handler(&mut self, handler: Arc<CompletionHandler>);
}

impl<Q: HardwareQueue, P: Platform> BlockLayerQueue for Queue<Q, P> {
    fn set_group(&mut self, group: Group) {
        Queue::set_group(self, group);
    }

    fn trace(&mut self, limit: usize) {
        Queue::trace(self, limit);
    }

    fn tracer(&mut self) -> Option<&mut Tracer> {
        Queue::tracer(self)
    }

    fn set_handler(&mut self, handler: Arc<CompletionHandler>) {
        Queue::set_handler(self, handler);
    }
}

/// How the completions of the hardware queues of a path are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    /// In virtual time, with these delays.
    Virtual(NotifyConfig),
    /// In virtual time on modeled cores, by contexts that the modeled machine runs.
    Modeled(CompletionPolicy),
    /// In real time, by interrupts and threads. `None` is the default of the program that submits.
    Real(Option<CompletionPolicy>),
}

impl Notification {
    /// Returns whether hardware queues raise interrupt vectors.
    pub(super) fn uses_interrupts(self) -> bool {
        match self {
            Notification::Real(_) => true,
            Notification::Modeled(policy) => policy.method.uses_interrupts(),
            Notification::Virtual(_) => false,
        }
    }

    /// Returns the method of the interrupt context that a block layer has beside its cores, in real
    /// time and on modeled cores.
    fn handler(self, plan: &BlockLayerSpec) -> Option<CompletionMethod> {
        match (self, plan.layout) {
            (Notification::Real(policy), QueueModel::SingleQueue) => {
                policy.map(|policy| policy.method).filter(|method| method.uses_handler())
            }
            // With `interrupt` each modeled thread has a handler of its own, which wakes it.
            (Notification::Modeled(policy), QueueModel::SingleQueue) => {
                Some(policy.method).filter(|method| method.needs_handler())
            }
            _ => None,
        }
    }
}

/// The block layer of a stack.
#[derive(Debug)]
pub struct StackBlockLayer {
    kind: &'static str,
    counters: BlockLayer,
    /// Group of each job; jobs without an entry are in group 0.
    groups: Vec<Group>,
}

impl StackBlockLayer {
    /// Returns the queue model, `"sq"` or `"mq"`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the block layer, for its counters.
    pub fn counters(&self) -> &BlockLayer {
        &self.counters
    }

    /// Sets the group of each job, with clones counted one by one.
    pub fn set_groups(&mut self, groups: Vec<Group>) {
        self.groups = groups;
    }
}

/// The queue of each core, at least one, as one block device.
#[derive(Debug)]
pub struct CoreQueues {
    queues: Box<[Box<dyn CoreQueue>]>,
    features: Features,
    block_layer: Option<StackBlockLayer>,
    /// A completion that the last poll found and that has not been reaped. Used with several
    /// queues.
    pending_completion: Option<Completion>,
    /// Index of the core to poll first. The core that finds completions is the first to reuse their
    /// tags, so the index rotates.
    first_polled: usize,
    /// Time of the last rotation.
    rotated_at: Nanos,
    /// The endpoint of the interrupt context, until that starts.
    handler: Option<(CompletionMethod, Box<dyn CoreQueue>)>,
}

impl CoreQueues {
    /// Returns a device with one queue.
    pub fn single(queue: impl CoreQueue, features: Features) -> CoreQueues {
        CoreQueues::from_boxes(Box::new([Box::new(queue)]), features)
    }

    /// Returns the device of several cores; `None` if `queues` is empty. Every queue has these
    /// features.
    pub fn new<Q: CoreQueue>(queues: Vec<Q>, features: Features) -> Option<CoreQueues> {
        let boxed = |queue| Box::new(queue) as Box<dyn CoreQueue>;
        let queues: Box<[_]> = queues.into_iter().map(boxed).collect();
        (!queues.is_empty()).then(|| CoreQueues::from_boxes(queues, features))
    }

    /// Returns the device with the block layer whose queues it has. `kind` is the queue model.
    #[must_use]
    fn with_block_layer(self, kind: &'static str, counters: BlockLayer) -> CoreQueues {
        let layer = StackBlockLayer { kind, counters, groups: Vec::new() };
        CoreQueues { block_layer: Some(layer), ..self }
    }

    fn from_boxes(queues: Box<[Box<dyn CoreQueue>]>, features: Features) -> CoreQueues {
        CoreQueues {
            queues,
            features,
            block_layer: None,
            pending_completion: None,
            first_polled: 0,
            rotated_at: Nanos::ZERO,
            handler: None,
        }
    }

    /// Opens the block layer `plan` on a driver, with the interrupt context of `notification`, if it
    /// needs one.
    ///
    /// # Errors
    /// [`BlockError`].
    pub(super) fn open_layer<D: LowLevelDriver>(
        driver: D,
        plan: &BlockLayerSpec,
        notification: Notification,
    ) -> Result<CoreQueues, BlockError>
    where
        D::Queue: 'static,
    {
        match notification {
            Notification::Virtual(config) if !config.is_immediate() => {
                let mut driver = NotifiedDriver::new(driver, config);
                CoreQueues::open_layer_on::<_, Native>(&mut driver, plan, None)
            }
            Notification::Modeled(_) => {
                let (mut driver, handler) = (driver, notification.handler(plan));
                CoreQueues::open_layer_on::<_, Modeled>(&mut driver, plan, handler)
            }
            other => {
                let mut driver = driver;
                CoreQueues::open_layer_on::<_, Native>(&mut driver, plan, other.handler(plan))
            }
        }
    }

    fn open_layer_on<D: LowLevelDriver, P: Platform>(
        driver: &mut D,
        plan: &BlockLayerSpec,
        handler: Option<CompletionMethod>,
    ) -> Result<CoreQueues, BlockError>
    where
        D::Queue: 'static,
    {
        let features = driver.features();
        let mut config = plan.config(driver.limits().sector_bytes);
        // `sq` has one socket. The context has an endpoint like a core.
        config.topology.cores += u16::from(handler.is_some());
        let (layer, mut queues) = BlockLayer::open_with_platform::<D, P>(driver, &config)?;
        let spare = handler.and_then(|method| Some((method, queues.pop()?)));
        let device = CoreQueues::new(queues, features).ok_or(BlockError::NoQueues)?;
        let handler = spare.map(|(method, queue)| (method, Box::new(queue) as Box<dyn CoreQueue>));
        Ok(CoreQueues { handler, ..device }.with_block_layer(plan.name(), layer))
    }

    /// Starts the interrupt context, if the completion method of the device needs one. `clock` is
    /// that of the threads that submit. Nothing may be outstanding.
    ///
    /// # Errors
    /// The thread or its eventfd cannot be created.
    pub fn start_handler(&mut self, clock: RealClock) -> io::Result<()> {
        let Some((method, endpoint)) = self.handler.take() else { return Ok(()) };
        let handler = Arc::new(CompletionHandler::start(endpoint, method, clock)?);
        for queue in self.block_layer_queues() {
            queue.set_handler(handler.clone());
        }
        Ok(())
    }

    /// Returns the interrupt context that a modeled machine runs, and its endpoint; `None` if the
    /// completion method needs none. The queues leave completions to it from now on. Nothing may be
    /// outstanding.
    pub fn take_handler(&mut self) -> Option<(Arc<CompletionHandler>, CoreQueues)> {
        let (method, endpoint) = self.handler.take()?;
        let handler = Arc::new(CompletionHandler::elsewhere(method));
        for queue in self.block_layer_queues() {
            queue.set_handler(handler.clone());
        }
        Some((handler, CoreQueues::from_boxes(Box::new([endpoint]), self.features)))
    }

    /// Returns a device without a block layer whose completions are noticed as `notification` says.
    /// In real time threads do that, so that the device is the same.
    pub(super) fn with_notification(self, notification: Notification) -> CoreQueues {
        let config = match notification {
            Notification::Virtual(config) if !config.is_immediate() => config,
            _ => return self,
        };
        let features = self.features;
        let queues = self.split().into_iter().map(|device| {
            let limits = *device.limits();
            let queue = NotifiedQueue::new(DeviceQueue::new(device), config);
            Box::new(Raw::new(queue, limits)) as Box<dyn CoreQueue>
        });
        CoreQueues::from_boxes(queues.collect(), features)
    }

    /// Returns the counters of notifications in virtual time, summed over the hardware queues;
    /// `None` if completions arrive without delay.
    pub fn notify_stats(&mut self) -> Option<NotifyStats> {
        let mut sum = None::<NotifyStats>;
        self.visit_layers(&mut |layer: &mut dyn Any| {
            if let Some(stats) = layer.downcast_ref::<NotifyStats>() {
                sum.get_or_insert_default().add(stats);
            }
        });
        sum
    }

    /// Distributes the queues over the hardware queues of a block layer: `count` devices of
    /// neighbouring queues, fewer if there are fewer queues. A device polls all of its queues, and
    /// submits to the first.
    pub(super) fn into_hardware_queues(self, count: u16) -> Vec<CoreQueues> {
        let (features, total) = (self.features, self.queues.len());
        let count = usize::from(count).clamp(1, total);
        let mut queues = Vec::from(self.queues).into_iter();
        let sizes = (0..count).map(|i| (i + 1) * total / count - i * total / count);
        let group = |size| CoreQueues::from_boxes(queues.by_ref().take(size).collect(), features);
        sizes.map(group).collect()
    }

    /// Returns the features of the queues besides contiguous reads and writes.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Returns the queues, for use on separate cores. Nothing may be outstanding.
    pub fn into_queues(self) -> Vec<Box<dyn CoreQueue>> {
        self.queues.into()
    }

    /// Returns each queue as a device of its own, in order, for threads that each own one. The
    /// block layer's counters stay with the caller of [`block_layer`](CoreQueues::block_layer).
    /// Nothing may be outstanding.
    pub fn split(self) -> Vec<CoreQueues> {
        let count = self.queues.len() as u16;
        self.into_hardware_queues(count)
    }

    /// Removes the counters of the block layer, before [`split`](CoreQueues::split).
    pub fn take_block_layer(&mut self) -> Option<StackBlockLayer> {
        self.block_layer.take()
    }

    /// Puts the counters of the block layer back, after [`join`](CoreQueues::join).
    pub fn restore_block_layer(&mut self, layer: Option<StackBlockLayer>) {
        self.block_layer = layer;
    }

    /// Returns one device with the queues of all, in order, after [`split`](CoreQueues::split);
    /// `None` without a device. It has no block layer's counters. Nothing may be outstanding.
    pub fn join(devices: Vec<CoreQueues>) -> Option<CoreQueues> {
        let features = devices.first()?.features;
        let queues = devices.into_iter().flat_map(|device| Vec::from(device.queues)).collect();
        Some(CoreQueues::from_boxes(queues, features))
    }

    /// Returns the only queue if it is of type `T`.
    ///
    /// # Errors
    /// The device.
    pub fn into_only<T: CoreQueue>(self) -> Result<Box<T>, Box<CoreQueues>> {
        if self.only::<T>().is_none() {
            return Err(Box::new(self));
        }
        let CoreQueues { queues, features, .. } = self;
        let mut queues = Vec::from(queues);
        match queues.pop().map(|one| (one as Box<dyn Any>).downcast()) {
            Some(Ok(one)) => Ok(one),
            // Unreachable after the check above.
            _ => Err(Box::new(CoreQueues::from_boxes(queues.into(), features))),
        }
    }

    /// Returns the number of queues.
    pub fn cores(&self) -> usize {
        self.queues.len()
    }

    /// Returns the only queue if it is of type `T`.
    pub fn only<T: CoreQueue>(&self) -> Option<&T> {
        match &*self.queues {
            [one] => (&**one as &dyn Any).downcast_ref(),
            _ => None,
        }
    }

    /// Returns mutable access to the only queue if it is of type `T`.
    pub fn only_mut<T: CoreQueue>(&mut self) -> Option<&mut T> {
        match &mut *self.queues {
            [one] => (&mut **one as &mut dyn Any).downcast_mut(),
            _ => None,
        }
    }

    /// Returns the block layer, if there is one.
    pub fn block_layer(&self) -> Option<&StackBlockLayer> {
        self.block_layer.as_ref()
    }

    /// Returns mutable access to the block layer, if there is one.
    pub fn block_layer_mut(&mut self) -> Option<&mut StackBlockLayer> {
        self.block_layer.as_mut()
    }

    /// Returns the queue of the block layer of each core, in order; nothing without a block layer.
    pub fn block_layer_queues(&mut self) -> impl Iterator<Item = &mut dyn BlockLayerQueue> {
        self.queues.iter_mut().filter_map(|queue| queue.block_layer_queue())
    }

    #[inline]
    fn reap_any(&mut self) -> Option<Completion> {
        self.queues.iter_mut().find_map(BlockDevice::reap)
    }

    /// Polls every core until none makes progress. A completion found by one core may belong to
    /// another, and may free a tag for another or start its next request.
    fn poll_all(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        loop {
            let mut again = false;
            let (before, from) = self.queues.split_at_mut(self.first_polled);
            for queue in from.iter_mut().chain(before) {
                again |= queue.poll(now);
            }
            if !again {
                break;
            }
            moved = true;
        }
        // Rotate once per instant at which something happens.
        if moved && now > self.rotated_at {
            self.rotated_at = now;
            self.first_polled = (self.first_polled + 1) % self.queues.len();
        }
        if self.pending_completion.is_none() {
            self.pending_completion = self.reap_any();
            moved |= self.pending_completion.is_some();
        }
        moved
    }
}

impl Component for CoreQueues {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        match &mut *self.queues {
            [one] => one.poll(now),
            _ => self.poll_all(now),
        }
    }

    /// Returns `Nanos::ZERO` if a completion has not been reaped: a target completes some requests
    /// itself, without an event of the drive.
    #[inline]
    fn deadline(&self) -> Nanos {
        match &*self.queues {
            [one] => one.deadline(),
            _ if self.pending_completion.is_some() => Nanos::ZERO,
            all => all.iter().map(Component::deadline).min().unwrap_or(Nanos::MAX),
        }
    }
}

impl BlockDevice for CoreQueues {
    fn limits(&self) -> &Limits {
        self.queues[0].limits()
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        if let ([one], None) = (&mut *self.queues, &self.block_layer) {
            return one.submit(now, request);
        }
        let job = job_index_of_tag(request.tag);
        let core = job % self.queues.len();
        let queue = &mut self.queues[core];
        if let Some(layer) = &self.block_layer
            && let Some(queue) = queue.block_layer_queue()
        {
            queue.set_group(layer.groups.get(job).copied().unwrap_or_default());
        }
        queue.submit(now, request)
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        match &mut *self.queues {
            [one] => one.reap(),
            _ => self.pending_completion.take().or_else(|| self.reap_any()),
        }
    }

    fn memory(&self) -> &AddressSpace {
        self.queues[0].memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        for queue in &mut self.queues {
            queue.set_waker(waker.clone());
        }
    }

    fn can_wake(&self) -> bool {
        self.queues.iter().all(BlockDevice::can_wake)
    }

    fn enable_sharing(&mut self) {
        self.queues.iter_mut().for_each(BlockDevice::enable_sharing);
    }

    fn can_wait(&self) -> bool {
        matches!(&*self.queues, [one] if one.can_wait())
    }

    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        match &mut *self.queues {
            [one] => one.wait_for_event(now, until),
            _ => WaitResult::Unsupported,
        }
    }

    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any)) {
        self.queues.iter_mut().for_each(|queue| queue.visit_layers(visit));
    }
}
