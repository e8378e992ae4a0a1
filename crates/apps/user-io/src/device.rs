//! [`IoDevice`]: an opened device (`nvmed_open`), from which queues and memory are made.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use block::notify::CompletionPolicy;
use block::{BlockDevice, Features, Limits, Raw};
use driver::pci::{OpenedController, PciDriver};
use driver::{
    ControllerHandle, ControllerInfo, LowLevelDriver, Null, Passthrough, PersistentRegion, Uring,
    UringConfig,
};
use event::RealClock;
use mem::AddressSpace;
use nvme::ChunkDescriptor;
use ocssd::vector::VectorQueue;
use time::Nanos;

use crate::buffer::{Buffer, Pool};
use crate::device_inner::{
    Backend, DeviceInner, KeepAlive, NvmeBackend, TargetBackend, lock, yield_to_drive,
};
use crate::queue::{HardwareQueueKind, Queue};
use crate::queue_factory::QueueFactory;
use crate::remote::RemoteDevice;
use crate::{DirectError, NoRegionReason, RemovalReason};

/// Default number of entries of a queue.
const QUEUE_DEPTH_DEFAULT: u16 = 256;

/// Configuration of a device that consists of the queues of host software
/// ([`IoDevice::target`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetConfig {
    /// Features of every queue.
    pub features: Features,
    /// Whether a queue needs polls of the others to make progress, as the shards of a `pblk` do.
    /// Pollers then also poll the queues that are not leased, and handles do not sleep until all
    /// are leased.
    pub polls_idle_queues: bool,
}

/// Configuration of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Entries of the rings, at least 2: one more than the number of outstanding requests. Queues
    /// of a file have the depth with which the file was opened.
    pub depth: u16,
    /// Whether completions wake a sleeping handle (`WaitMode::Interrupt`), if the device can:
    /// [`IoDevice::has_interrupts`].
    pub interrupts: bool,
}

impl Default for QueueConfig {
    fn default() -> QueueConfig {
        QueueConfig { depth: QUEUE_DEPTH_DEFAULT, interrupts: true }
    }
}

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Completes every request at once, without data.
    Null,
    /// A file or block device of the operating system.
    File,
    /// An emulated drive on the other side of a port.
    Drive,
    /// A target that manages the flash of an emulated drive.
    Target,
    /// A partition of a drive in another process.
    Remote,
    /// A real controller, driven by this process.
    Controller,
    /// A namespace of a controller with a kernel driver, through NVMe passthrough commands.
    Passthrough,
}

/// An opened device. Clones refer to the same device. It closes when the last clone, its queues and
/// their handles are dropped.
#[derive(Clone, Debug)]
pub struct IoDevice {
    inner: Arc<DeviceInner>,
}

impl IoDevice {
    fn new(
        (name, kind): (String, DeviceKind),
        (limits, features): (Limits, Features),
        memory: AddressSpace,
        way: Backend,
        (served, keeper): (Option<RemoteDevice>, Option<KeepAlive>),
    ) -> IoDevice {
        let pool = Pool::new(memory.clone());
        let clock = RealClock::start();
        let given_by = None;
        let opened = DeviceInner {
            name,
            kind,
            limits,
            features,
            memory,
            clock,
            pool,
            backend: way,
            remote: served,
            timeout: IoDevice::COMMAND_TIMEOUT_DEFAULT,
            bound_driver: given_by,
            region: Err(NoRegionReason::NoRegion),
            completion: None,
            _keep_alive: keeper,
        };
        IoDevice { inner: Arc::new(opened) }
    }

    /// Creates a device that completes at once and has no data: it measures the cost of the layers
    /// above.
    pub fn null(limits: Limits) -> IoDevice {
        let null = Null::new(limits, 0);
        let (facts, memory) = ((null.limits(), null.features()), null.memory().clone());
        IoDevice::new(
            ("null".into(), DeviceKind::Null),
            facts,
            memory,
            Backend::Null(null),
            (None, None),
        )
    }

    /// Opens a file or block device of the operating system, through io_uring. `config.queues` and
    /// `config.depth` apply to every queue made later; no queue is made yet.
    ///
    /// # Errors
    /// [`DirectError::File`].
    pub fn file(path: impl AsRef<Path>, config: UringConfig) -> Result<IoDevice, DirectError> {
        let path = path.as_ref();
        let uring = Uring::open(path, config)?;
        let (facts, memory) = ((uring.limits(), uring.features()), uring.memory().clone());
        let name = (path.display().to_string(), DeviceKind::File);
        Ok(IoDevice::new(name, facts, memory, Backend::File(Box::new(uring)), (None, None)))
    }

    /// Opens a namespace of a controller with a kernel driver by its generic character device
    /// (`/dev/ng0n1`). Otherwise as [`file`](IoDevice::file).
    ///
    /// # Errors
    /// [`DirectError::File`].
    pub fn passthrough(
        path: impl AsRef<Path>,
        config: UringConfig,
    ) -> Result<IoDevice, DirectError> {
        let path = path.as_ref();
        let namespace = Passthrough::open(path, config)?;
        let (facts, memory) =
            ((namespace.limits(), namespace.features()), namespace.memory().clone());
        let name = (path.display().to_string(), DeviceKind::Passthrough);
        Ok(IoDevice::new(
            name,
            facts,
            memory,
            Backend::Passthrough(Box::new(namespace)),
            (None, None),
        ))
    }

    /// Wraps the drive behind an initialized `controller`. Another thread polls the drive. `keeper`
    /// is dropped after everything that refers to the drive.
    ///
    /// An open-channel drive has vector queues only ([`IoDevice::vector_queue`]).
    pub fn drive(controller: ControllerHandle, keeper: impl Any + Send + Sync) -> IoDevice {
        let name = (controller.info().serial.clone(), DeviceKind::Drive);
        IoDevice::with_controller(
            name,
            controller,
            (None, Some(KeepAlive::new(keeper))),
            yield_to_drive,
        )
    }

    /// Default timeout of a command on a real controller.
    pub const COMMAND_TIMEOUT_DEFAULT: Nanos = Nanos::from_millis(30_000);

    /// Wraps a real controller of this machine, named `name`. A command that exceeds `timeout` is
    /// aborted. If it is outstanding for as long again (5 seconds at most), its queue is reset.
    pub fn controller(name: String, opened: OpenedController, timeout: Nanos) -> IoDevice {
        let OpenedController { controller, guard: keeper, kernel_driver: given_by } = opened;
        let name = (name, DeviceKind::Controller);
        let behind = (None, Some(KeepAlive::new(keeper)));
        let mut device = IoDevice::with_controller(name, controller, behind, driver::pci::progress);
        if let Some(opened) = Arc::get_mut(&mut device.inner) {
            (opened.bound_driver, opened.timeout) = (Some(given_by), timeout);
        }
        device
    }

    /// Wraps a drive in another process.
    pub(crate) fn from_remote(
        name: String,
        controller: ControllerHandle,
        served: RemoteDevice,
    ) -> IoDevice {
        IoDevice::with_controller(
            (name, DeviceKind::Remote),
            controller,
            (Some(served), None),
            yield_to_drive,
        )
    }

    fn with_controller(
        name: (String, DeviceKind),
        controller: ControllerHandle,
        behind: (Option<RemoteDevice>, Option<KeepAlive>),
        progress: fn(),
    ) -> IoDevice {
        let info = controller.info().clone();
        let memory = controller.port().memory().clone();
        let region = match (controller.persistent_region(), &behind) {
            (Some(region), _) => Ok(region),
            (None, (Some(_), _)) => Err(NoRegionReason::Partition),
            (None, (None, _)) => Err(NoRegionReason::NoRegion),
        };
        let limits = Limits {
            sector_bytes: info.sector_bytes,
            sectors: info.sectors,
            max_sectors: info.max_sectors,
            optimal_sectors: info.optimal_sectors,
            queue_depth: match info.max_outstanding {
                0 => u32::from(u16::MAX),
                n => n.into(),
            }
            .min(controller.max_entries() - 1),
            volatile_cache: info.volatile_cache,
            atomic: info.features.atomic,
        };
        let features = match info.open_channel {
            Some(_) => Features::default(),
            None => info.features,
        };
        let way = Backend::Drive(NvmeBackend::new(controller, progress));
        IoDevice::new(name, (limits, features), memory, way, behind).with_region(region)
    }

    /// Wraps the queues of host software over a drive: of a target on host-managed flash, or of a
    /// block layer. They are block devices over the same sectors, leased one by one. `keeper` is
    /// dropped with the device.
    ///
    /// # Errors
    /// [`DirectError::NoQueueLeft`] if `queues` is empty.
    pub fn target(
        name: String,
        queues: Vec<Box<dyn BlockDevice + Send>>,
        config: TargetConfig,
        keeper: impl Any + Send + Sync,
    ) -> Result<IoDevice, DirectError> {
        let Some(first) = queues.first() else {
            return Err(DirectError::NoQueueLeft { device: name, queues: 0 });
        };
        let (limits, memory) = (*first.limits(), first.memory().clone());
        let way = Backend::Target(TargetBackend::new(queues, config.polls_idle_queues));
        let behind = (None, Some(KeepAlive::new(keeper)));
        let name = (name, DeviceKind::Target);
        Ok(IoDevice::new(name, (limits, config.features), memory, way, behind))
    }

    /// Sets how completions are noticed: the wait mode of the handles that are created later. Only
    /// for a device without queues and clones.
    #[must_use]
    pub fn with_completion(mut self, policy: Option<CompletionPolicy>) -> IoDevice {
        if let Some(opened) = Arc::get_mut(&mut self.inner) {
            opened.completion = policy;
        }
        self
    }

    /// Sets the persistent memory region of the drive behind the device, or the reason for which this
    /// process has none. Only for a device without queues and clones.
    #[must_use]
    pub fn with_region(mut self, region: Result<PersistentRegion, NoRegionReason>) -> IoDevice {
        if let Some(opened) = Arc::get_mut(&mut self.inner) {
            opened.region = region.map(|region| region.in_real_time(opened.clock));
        }
        self
    }

    /// Returns the persistent memory region of the drive. Stores and persists take the time that the
    /// drive is configured with: the calling thread spins.
    ///
    /// # Errors
    /// [`DirectError::NoRegion`].
    pub fn persistent_region(&self) -> Result<&PersistentRegion, DirectError> {
        let device = &self.inner;
        device.region.as_ref().map_err(|reason| DirectError::NoRegion {
            device: device.name.clone(),
            reason: *reason,
        })
    }

    /// Returns how completions are noticed, if the scenario of the device says so.
    pub fn completion(&self) -> Option<CompletionPolicy> {
        self.inner.completion
    }

    /// Returns the name: a drive's serial number, or a path.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the kind of the device.
    pub fn kind(&self) -> DeviceKind {
        self.inner.kind
    }

    /// Returns the size and the limits of requests; `queue_depth` is that of the deepest queue.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Returns the optional operations that the device supports.
    pub fn features(&self) -> Features {
        self.inner.features
    }

    /// Returns the alignment of payloads in bytes, a power of two. Requests with other payloads
    /// fail with [`nvme::Status::PRP_OFFSET_INVALID`].
    pub fn memory_alignment(&self) -> u32 {
        match &self.inner.backend {
            Backend::File(uring) => uring.memory_alignment(),
            Backend::Null(_) | Backend::Passthrough(_) | Backend::Drive(_) | Backend::Target(_) => {
                1
            }
        }
    }

    /// Returns the identify data of a drive; `None` for other devices.
    pub fn drive_info(&self) -> Option<&ControllerInfo> {
        match &self.inner.backend {
            Backend::Drive(way) => Some(&way.info),
            Backend::Passthrough(namespace) => Some(namespace.info()),
            _ => None,
        }
    }

    /// Returns whether the queues of a drive use shadow doorbells; `None` if this process does not
    /// ring the doorbells.
    pub fn has_shadow_doorbells(&self) -> Option<bool> {
        match &self.inner.backend {
            Backend::Drive(way) => Some(lock(&way.controller).has_shadow_doorbells()),
            _ => None,
        }
    }

    /// Returns why the device was removed, or `None` while it is present. Reasons: the server of a
    /// remote device has disconnected; a real controller was unplugged, unbound, or has failed
    /// permanently.
    ///
    /// Queues check a controller while requests are outstanding, and this call checks it too, both
    /// twice a second. Submitters of vector commands must ask here, and abandon their commands on
    /// removal ([`VectorQueue::abandon`](ocssd::vector::VectorQueue::abandon)).
    pub fn removal_reason(&self) -> Option<RemovalReason> {
        self.inner.removal_reason()
    }

    /// Returns the clock of the device's handles.
    pub fn clock(&self) -> RealClock {
        self.inner.clock
    }

    /// Returns the address space in which payloads must be registered. Every [`Buffer`] is.
    pub fn memory(&self) -> &AddressSpace {
        &self.inner.memory
    }

    /// Allocates `bytes` of registered memory, at least 1.
    ///
    /// # Errors
    /// [`DirectError::Memory`], [`DirectError::Register`].
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, DirectError> {
        self.inner.buffer(bytes)
    }

    /// Returns the bytes registered for buffers, and how many of them are free.
    pub fn buffer_bytes(&self) -> (u64, u64) {
        self.inner.pool.bytes()
    }

    /// Creates a queue.
    ///
    /// # Errors
    /// [`DirectError`] if no queue is left, or the device refuses it.
    pub fn create_queue(&self, config: QueueConfig) -> Result<Queue, DirectError> {
        let opened = &self.inner;
        let mut interrupts = true;
        let hardware = match &opened.backend {
            Backend::Null(null) => {
                HardwareQueueKind::Null(Raw::new(null.create_queue(), opened.limits))
            }
            Backend::File(uring) => {
                HardwareQueueKind::Other(Box::new(Raw::new(uring.create_queue()?, opened.limits)))
            }
            Backend::Passthrough(namespace) => {
                let queue = namespace.create_queue()?;
                HardwareQueueKind::Other(Box::new(Raw::new(queue, opened.limits)))
            }
            Backend::Drive(way) => {
                interrupts = config.interrupts && way.has_interrupts();
                opened.create_drive_queue(way, config)?
            }
            Backend::Target(way) => {
                let none =
                    || DirectError::NoQueueLeft { device: opened.name.clone(), queues: way.queues };
                HardwareQueueKind::Target(way.lease(opened).ok_or_else(none)?)
            }
        };
        Ok(Queue { hardware, device: opened.clone(), interrupts })
    }

    /// Returns whether queues can wake sleeping handles. Those of a controller bound to
    /// `uio_pci_generic` cannot.
    pub fn has_interrupts(&self) -> bool {
        match &self.inner.backend {
            Backend::Drive(way) => way.has_interrupts(),
            _ => true,
        }
    }

    /// Returns the kernel driver through which this process accesses a real controller.
    pub fn bound_driver(&self) -> Option<PciDriver> {
        self.inner.bound_driver
    }

    /// Creates a factory of `count` hardware queues, for layers that use a drive as a kernel does
    /// ([`block::BlockLayer`], [`block::completion::Blocking`]), wherever the drive is.
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] if the device is not a drive; [`DirectError::NoInterrupts`] if
    /// interrupts are requested and the drive has none; [`DirectError`] if a queue is refused, or
    /// `count` is 0.
    pub fn queue_factory(
        &self,
        count: u16,
        config: QueueConfig,
    ) -> Result<QueueFactory, DirectError> {
        let opened = &self.inner;
        let Backend::Drive(way) = &opened.backend else {
            return Err(DirectError::NoDrive { device: opened.name.clone() });
        };
        if config.interrupts && !way.has_interrupts() {
            let what = format!("queues of {} with interrupts", opened.name);
            return Err(DirectError::NoInterrupts { what });
        }
        if count == 0 {
            return Err(DirectError::Config {
                key: "count",
                value: 0,
                allowed: "one queue or more",
            });
        }
        let queues = (0..count)
            .map(|_| opened.wait_for_admin(|progress| way.create_queue(config, progress)));
        QueueFactory::new(opened.clone(), queues.collect::<Result<_, _>>()?)
    }

    /// Creates a queue for vector commands: read, write, reset and copy of physical addresses.
    ///
    /// # Errors
    /// [`DirectError::NoVector`] if the device is not an open-channel drive; an error if no queue
    /// or memory is left.
    pub fn vector_queue(&self, config: QueueConfig) -> Result<VectorQueue, DirectError> {
        let refused = || DirectError::NoVector { device: self.inner.name.clone() };
        let Backend::Drive(way) = &self.inner.backend else { return Err(refused()) };
        if way.info.open_channel.is_none() {
            return Err(refused());
        }
        let pair = self.inner.wait_for_admin(|progress| {
            way.create_queue_pair(config, progress).map_err(Into::into)
        })?;
        let port = lock(&way.controller).port().clone();
        self.inner.wait_for_admin(|_| Ok(VectorQueue::new(pair, port, &way.info)?))
    }

    /// Sets the waker of a vector queue with interrupts. Completions wake it, and so does the end
    /// of a remote device's server.
    ///
    /// # Errors
    /// [`DirectError::Memory`] if no file descriptor is left.
    pub fn set_vector_waker(
        &self,
        queue: &VectorQueue,
        waker: event::Waker,
    ) -> Result<(), DirectError> {
        let set = self.inner.set_queue_pair_waker(queue.queue(), queue.port(), waker);
        set.map_err(|source| DirectError::Memory { bytes: 0, source })
    }

    /// Returns the descriptors of `count` chunks of an open-channel drive, starting at `first`.
    /// They are in address order (chunk within parallel unit within group). The client of a
    /// partition sees all chunks of the drive, too.
    ///
    /// # Errors
    /// [`DirectError::NoVector`] if the device is not an open-channel drive; [`DirectError::Drive`]
    /// for chunks out of range, or if the drive does not answer.
    pub fn chunks(&self, first: u64, count: u64) -> Result<Vec<ChunkDescriptor>, DirectError> {
        let Backend::Drive(way) = &self.inner.backend else {
            return Err(DirectError::NoVector { device: self.inner.name.clone() });
        };
        self.inner
            .wait_for_admin(|progress| Ok(lock(&way.controller).chunks(first, count, progress)?))
    }

    /// Deletes a queue of [`vector_queue`](IoDevice::vector_queue). Outstanding commands are
    /// abandoned.
    pub fn destroy_vector_queue(&self, queue: VectorQueue) {
        self.inner.delete_queue_pair(queue.into_queue());
    }

    pub(crate) fn inner(&self) -> &Arc<DeviceInner> {
        &self.inner
    }
}
