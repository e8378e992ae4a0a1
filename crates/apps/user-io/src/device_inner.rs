//! [`DeviceInner`]: the state that an [`IoDevice`](crate::IoDevice), its queues and their handles share, and the
//! [`Backend`] behind it.

use std::any::Any;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::notify::CompletionPolicy;
use block::{BlockDevice, Features, Limits, Raw};
use driver::pci::PciDriver;
use driver::{
    ControllerGeneration, ControllerHandle, ControllerInfo, DriverError, Null, NvmeQueue,
    Passthrough, PersistentRegion, QueuePair, Uring, UringQueue,
};
use event::{RealClock, Waker};
use mem::AddressSpace;
use time::{Component, Nanos};
use transport::Port;

use crate::buffer::{Buffer, Pool};
use crate::queue::{HardwareQueueKind, LeasedQueue};
use crate::remote::{RemoteDevice, RemoteQueue};
use crate::supervised::{NO_TIMEOUT, SupervisedQueue};
use crate::{DeviceKind, DirectError, NoRegionReason, QueueConfig, RemovalReason};

/// Timeout for the requests outstanding on a target's queue when the queue is returned.
const TARGET_DRAIN_TIMEOUT: Nanos = Nanos::from_millis(5000);

/// Interval of presence checks of a real controller without outstanding requests.
pub(crate) const PRESENCE_CHECK_INTERVAL: Nanos = Nanos::from_millis(500);

/// The backend that provides a device's queues.
#[derive(Debug)]
pub(crate) enum Backend {
    Null(Null),
    File(Box<Uring>),
    Passthrough(Box<Passthrough>),
    Drive(NvmeBackend),
    Target(TargetBackend),
}

#[derive(Debug)]
pub(crate) struct NvmeBackend {
    pub(crate) controller: Arc<Mutex<ControllerHandle>>,
    pub(crate) info: ControllerInfo,
    /// Held while a queue is created: the interrupt vector is the queue id.
    queue_creation: Mutex<()>,
    /// Runs while an admin command is outstanding.
    progress: fn(),
    interrupts: bool,
    lives: ControllerGeneration,
    /// Time of the next presence check of a real controller, in nanoseconds of the device's clock.
    next_presence_check: AtomicU64,
}

/// Block devices that are leased as queues.
pub(crate) struct TargetBackend {
    idle_queues: Mutex<Vec<Box<dyn BlockDevice + Send>>>,
    /// Number of queues that are not leased.
    idle_count: AtomicUsize,
    pub(crate) queues: usize,
    /// Whether unleased queues must be polled.
    polls_idle: bool,
    /// Number of leases so far.
    leases: AtomicU64,
    /// The wakers of leased queues by lease, if unleased queues must be polled.
    sleepers: Mutex<Vec<(u64, Waker)>>,
}

impl std::fmt::Debug for TargetBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TargetWay").field("queues", &self.queues).finish_non_exhaustive()
    }
}

/// Keeps the other side alive, such as the thread of a drive; dropped last.
pub(crate) struct KeepAlive(
    #[allow(dead_code, reason = "kept for its drop")] Box<dyn Any + Send + Sync>,
);

impl KeepAlive {
    pub(crate) fn new(kept: impl Any + Send + Sync) -> KeepAlive {
        KeepAlive(Box::new(kept))
    }
}

impl std::fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keeper")
    }
}

#[derive(Debug)]
pub(crate) struct DeviceInner {
    pub(crate) name: String,
    pub(crate) kind: DeviceKind,
    pub(crate) limits: Limits,
    pub(crate) features: Features,
    pub(crate) memory: AddressSpace,
    pub(crate) clock: RealClock,
    pub(crate) pool: Arc<Pool>,
    pub(crate) backend: Backend,
    /// The connection, if the drive is in another process.
    pub(crate) remote: Option<RemoteDevice>,
    /// Timeout of a command on a real controller, after which it is aborted.
    pub(crate) timeout: Nanos,
    /// Kernel driver of a real controller.
    pub(crate) bound_driver: Option<PciDriver>,
    /// The persistent memory region of the drive.
    pub(crate) region: Result<PersistentRegion, NoRegionReason>,
    /// How completions are noticed, if the scenario of the device says so.
    pub(crate) completion: Option<CompletionPolicy>,
    pub(crate) _keep_alive: Option<KeepAlive>,
}

/// The waiter id of a queue pair is its queue id with this bit; other waiter ids count from 0.
const PAIR_WAITER_BIT: u64 = 1 << 63;

fn waiter_of(pair: &QueuePair) -> u64 {
    PAIR_WAITER_BIT | u64::from(pair.qid())
}

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs while an admin command is outstanding on a drive that has a thread of its own.
pub(crate) fn yield_to_drive() {
    std::thread::yield_now();
}

impl TargetBackend {
    pub(crate) fn new(queues: Vec<Box<dyn BlockDevice + Send>>, polls_idle: bool) -> TargetBackend {
        let idle_count = AtomicUsize::new(queues.len());
        let (count, idle_queues) = (queues.len(), Mutex::new(queues));
        let (leases, sleepers) = (AtomicU64::new(0), Mutex::default());
        TargetBackend { queues: count, idle_count, idle_queues, polls_idle, leases, sleepers }
    }

    /// Leases a queue of `device`, which has this backend.
    pub(crate) fn lease(&self, device: &Arc<DeviceInner>) -> Option<LeasedQueue> {
        let mut left = lock(&self.idle_queues);
        let target = left.pop();
        self.idle_count.store(left.len(), Ordering::Relaxed);
        let lease = self.leases.fetch_add(1, Ordering::Relaxed);
        let device = device.clone();
        target.map(|target| LeasedQueue { target, outstanding: 0, lease, device })
    }

    fn set_sleeper(&self, lease: u64, waker: Option<Waker>) {
        if self.polls_idle {
            let mut sleepers = lock(&self.sleepers);
            sleepers.retain(|(other, _)| *other != lease);
            sleepers.extend(waker.map(|waker| (lease, waker)));
        }
    }
}

impl NvmeBackend {
    /// Creates the backend for `controller`; `progress` runs while an admin command is outstanding.
    pub(crate) fn new(controller: ControllerHandle, progress: fn()) -> NvmeBackend {
        let (info, lives) = (controller.info().clone(), controller.generation());
        let interrupts = controller.port().has_interrupts();
        let controller = Arc::new(Mutex::new(controller));
        let (queue_creation, next_presence_check) = (Mutex::default(), AtomicU64::new(0));
        NvmeBackend {
            controller,
            info,
            queue_creation,
            progress,
            interrupts,
            lives,
            next_presence_check,
        }
    }

    pub(crate) fn has_interrupts(&self) -> bool {
        self.interrupts
    }

    pub(crate) fn create_queue_pair(
        &self,
        config: QueueConfig,
        progress: &mut dyn FnMut(),
    ) -> Result<QueuePair, DriverError> {
        let _making = lock(&self.queue_creation);
        lock(&self.controller).reclaim(progress)?;
        let vector = self.interrupt_vector(config);
        lock(&self.controller).create_queue_pair(config.depth, vector, progress)
    }

    /// Returns whether a real controller was removed. Checks at most twice a second.
    fn is_removed(&self, now: Nanos) -> bool {
        if !self.lives.is_removed() && now.0 >= self.next_presence_check.load(Ordering::Relaxed) {
            self.next_presence_check.store((now + PRESENCE_CHECK_INTERVAL).0, Ordering::Relaxed);
            // If the lock is taken, its holder waits for an admin command and checks presence
            // itself.
            if let Ok(mut controller) = self.controller.try_lock() {
                controller.is_removed();
            }
        }
        self.lives.is_removed()
    }

    /// Returns the interrupt vector of the next queue, which equals its queue id.
    fn interrupt_vector(&self, config: QueueConfig) -> Option<u16> {
        let interrupts = config.interrupts && self.has_interrupts();
        interrupts.then(|| lock(&self.controller).next_qid()).flatten()
    }

    pub(crate) fn create_queue(
        &self,
        config: QueueConfig,
        progress: &mut dyn FnMut(),
    ) -> Result<NvmeQueue, DirectError> {
        let _making = lock(&self.queue_creation);
        lock(&self.controller).reclaim(progress)?;
        let vector = self.interrupt_vector(config);
        Ok(NvmeQueue::open(&self.controller, config.depth, vector, progress)?)
    }
}

impl DeviceInner {
    /// Creates a file's queue for several threads, if its ordinary queues are single-issuer.
    pub(crate) fn shared_file_queue(&self) -> Option<UringQueue> {
        match &self.backend {
            Backend::File(uring) if uring.is_single_issuer() => uring.create_shared_queue().ok(),
            _ => None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.backend
    }

    pub(crate) fn buffer(&self, bytes: usize) -> Result<Buffer, DirectError> {
        let taken = self.pool.allocate(bytes);
        match &self.remote {
            None => taken,
            Some(served) => taken.map_err(|error| served.explain(error)),
        }
    }

    pub(crate) fn remote(&self) -> Option<&RemoteDevice> {
        self.remote.as_ref()
    }

    /// Returns why the device was removed, or `None` while it is present.
    pub(crate) fn removal_reason(&self) -> Option<RemovalReason> {
        match (&self.remote, &self.backend) {
            (Some(served), _) => served.session.liveness().removal_reason(),
            (None, Backend::Drive(way)) if self.kind == DeviceKind::Controller => {
                way.is_removed(self.clock.now()).then_some(RemovalReason::Removed)
            }
            _ => None,
        }
    }

    /// Runs an operation that waits for admin completions of the drive.
    pub(crate) fn wait_for_admin<T>(
        &self,
        what: impl FnOnce(&mut dyn FnMut()) -> Result<T, DirectError>,
    ) -> Result<T, DirectError> {
        match &self.remote {
            None => what(&mut self.progress()),
            Some(served) => {
                what(&mut served.admin_progress()).map_err(|error| served.explain(error))
            }
        }
    }

    /// Returns the function that runs while an admin command is outstanding.
    pub(crate) fn progress(&self) -> fn() {
        match &self.backend {
            Backend::Drive(way) => way.progress,
            _ => yield_to_drive,
        }
    }

    pub(crate) fn create_drive_queue(
        &self,
        way: &NvmeBackend,
        config: QueueConfig,
    ) -> Result<HardwareQueueKind, DirectError> {
        let queue = self.wait_for_admin(|progress| way.create_queue(config, progress))?;
        let limits = queue.limits();
        let has_registers = lock(&way.controller).port().has_registers();
        Ok(match &self.remote {
            Some(served) => {
                let life = served.session.liveness().clone();
                HardwareQueueKind::Other(match has_registers {
                    true => {
                        let queue = SupervisedQueue::new(queue, limits, NO_TIMEOUT);
                        Box::new(RemoteQueue::new(queue, life))
                    }
                    false => Box::new(RemoteQueue::new(Raw::new(queue, limits), life)),
                })
            }
            None if has_registers => {
                let is_real = self.kind == DeviceKind::Controller;
                let timeout = if is_real { self.timeout } else { NO_TIMEOUT };
                HardwareQueueKind::Other(Box::new(SupervisedQueue::new(queue, limits, timeout)))
            }
            None => HardwareQueueKind::Drive(Raw::new(queue, limits)),
        })
    }

    pub(crate) fn features(&self) -> Features {
        self.features
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    /// Sets the waker of the owner of a queue pair. Completions wake it, if the pair has an interrupt
    /// vector, and so does the end of a served drive.
    ///
    /// # Errors
    /// That of the operating system, if no file descriptor is left.
    pub(crate) fn set_queue_pair_waker(
        &self,
        pair: &QueuePair,
        port: &Port,
        waker: Waker,
    ) -> io::Result<()> {
        if let Some(served) = &self.remote {
            served.session.liveness().set_waker(waiter_of(pair), Some(waker.clone()));
        }
        pair.vector().map_or(Ok(()), |vector| port.set_vector(vector, waker))
    }

    /// Deletes a queue pair for vector commands or for commands to rules, and forgets the waker of its
    /// owner. If the drive does not answer, the queue id and the rings stay allocated.
    pub(crate) fn delete_queue_pair(&self, pair: QueuePair) {
        if let Some(served) = &self.remote {
            served.session.liveness().set_waker(waiter_of(&pair), None);
        }
        if let Backend::Drive(way) = &self.backend {
            let _ = self.wait_for_admin(|progress| {
                Ok(lock(&way.controller).delete_queue_pair(pair, &mut |_| {}, progress)?)
            });
        }
    }

    /// Takes back a target's queue after its outstanding requests have completed. If they do not
    /// complete within the timeout, the queue is not leased again.
    pub(crate) fn return_target_queue(&self, mut leased: LeasedQueue) {
        let Backend::Target(way) = &self.backend else { return };
        let until = self.clock.now() + TARGET_DRAIN_TIMEOUT;
        while leased.outstanding > 0 {
            let now = self.clock.now();
            if now > until {
                return;
            }
            leased.poll(now);
            while leased.reap().is_some() {}
        }
        way.set_sleeper(leased.lease, None);
        let mut left = lock(&way.idle_queues);
        left.push(leased.target);
        way.idle_count.store(left.len(), Ordering::Relaxed);
        drop(left);
        // The owners of the other queues must poll this one from now on.
        lock(&way.sleepers).iter().for_each(|(_, waker)| waker.wake());
    }

    /// Sets the waker of the owner of a leased queue.
    pub(crate) fn set_sleeper(&self, lease: u64, waker: Waker) {
        if let Backend::Target(way) = &self.backend {
            way.set_sleeper(lease, Some(waker));
        }
    }

    /// Returns whether a target has unleased queues to poll; a single load if all are leased.
    #[inline]
    pub(crate) fn has_idle_targets(&self) -> bool {
        match &self.backend {
            Backend::Target(way) => way.polls_idle && way.idle_count.load(Ordering::Relaxed) > 0,
            _ => false,
        }
    }

    /// Polls the unleased queues of a target, unless another thread is doing so.
    #[cold]
    pub(crate) fn poll_idle_targets(&self, now: Nanos) -> bool {
        let Backend::Target(way) = &self.backend else { return false };
        let Ok(mut left) = way.idle_queues.try_lock() else { return false };
        let mut moved = false;
        for target in left.iter_mut() {
            moved |= target.poll(now);
        }
        moved
    }
}
