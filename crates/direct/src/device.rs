//! [`Device`]: what was opened (`nvmed_open`), of which queues and memory are made.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use block::{BlockDevice, Features, Limits, Raw};
use clock::{Nanos, RealClock};
use driver::pci::{OpenedController, PciDriver};
use driver::{
    ControllerHandle, ControllerInfo, LowLevelDriver, Null, Passthrough, Uring, UringConfig,
};
use lightnvm::vector::VectorQueue;
use nvme::ChunkDescriptor;
use ring::AddressSpace;

use crate::buffer::{Buffer, Pool};
use crate::device_inner::{
    Backend, DeviceInner, KeepAlive, NvmeBackend, TargetBackend, lock, yield_to_drive,
};
use crate::queue::{HardwareQueueKind, LeasedQueue, Queue};
use crate::queue_factory::QueueFactory;
use crate::remote::RemoteDevice;
use crate::{DirectError, RemovalReason};

/// Entries of a queue, unless said otherwise.
const QUEUE_DEPTH_DEFAULT: u16 = 256;

/// Who sleeps for a vector queue has its number and this bit; other queues count from 0.
const VECTOR_WAITER_BIT: u64 = 1 << 63;

/// How a queue is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Entries of the rings, 2 or more: one more than requests that may be outstanding. A file's
    /// queues are all as deep as it was opened with.
    pub depth: u16,
    /// Whether the device wakes who waits for completions (`WaitMode::Interrupt`), if it can:
    /// [`Device::has_interrupts`].
    pub interrupts: bool,
}

impl Default for QueueConfig {
    fn default() -> QueueConfig {
        QueueConfig { depth: QUEUE_DEPTH_DEFAULT, interrupts: true }
    }
}

/// Which kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Acknowledges everything at once, without data.
    Null,
    /// A file or block device of the host.
    File,
    /// A drive on the other side of a port.
    Drive,
    /// A target that manages the flash of such a drive.
    Target,
    /// A part of a drive in another process.
    Remote,
    /// A real controller of this machine.
    Controller,
    /// A namespace of a controller that the kernel drives, by commands of our own.
    Passthrough,
}

/// An opened device. Clones are the same device; it closes when the last of them, its queues and
/// their handles are gone.
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
            _keep_alive: keeper,
        };
        IoDevice { inner: Arc::new(opened) }
    }

    /// A device that acknowledges at once and has no data: what is left is the cost of the layers
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

    /// A file or block device of the host, through io_uring. `config.queues` and `config.depth` stand
    /// for every queue that is made of it; none is made yet.
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

    /// A namespace of a controller that the kernel drives, by its generic character device
    /// (`/dev/ng0n1`); otherwise as [`file`](Device::file).
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

    /// The drive that `controller` was brought up on. Whoever polls the drive is on another thread;
    /// `keeper` is dropped after everything that leads to it.
    ///
    /// An open-channel drive has queues for vector commands only ([`Device::vector_queue`]).
    pub fn drive(controller: ControllerHandle, keeper: impl Any + Send + Sync) -> IoDevice {
        let name = (controller.info().serial.clone(), DeviceKind::Drive);
        IoDevice::with_controller(
            name,
            controller,
            (None, Some(KeepAlive::new(keeper))),
            yield_to_drive,
        )
    }

    /// How long a command of a real controller may take, unless something else is said.
    pub const COMMAND_TIMEOUT_DEFAULT: Nanos = Nanos::from_millis(30_000);

    /// A real controller of this machine, called `name`. A command that takes longer than `timeout` is
    /// aborted; one that takes as long again after that, 5 seconds at most, has its queue reset.
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

    /// The same, of a drive in another process.
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
        pump: fn(),
    ) -> IoDevice {
        let info = controller.info().clone();
        let memory = controller.port().memory().clone();
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
        };
        let features = match info.open_channel {
            Some(_) => Features::default(),
            None => info.features,
        };
        let way = Backend::Drive(NvmeBackend::new(controller, pump));
        IoDevice::new(name, (limits, features), memory, way, behind)
    }

    /// A target on host-managed flash: its `queues` are block devices that are handed out one by one,
    /// and all lead to the same sectors. Each may need the others' polls: those that nobody has are
    /// polled by whoever polls one, and until all are handed out nobody sleeps.
    ///
    /// # Errors
    /// [`DirectError::NoQueueLeft`] without any.
    pub fn target(
        name: String,
        queues: Vec<Box<dyn BlockDevice + Send>>,
        features: Features,
        keeper: impl Any + Send + Sync,
    ) -> Result<IoDevice, DirectError> {
        let Some(first) = queues.first() else {
            return Err(DirectError::NoQueueLeft { device: name, queues: 0 });
        };
        let (limits, memory) = (*first.limits(), first.memory().clone());
        let way = Backend::Target(TargetBackend::new(queues));
        let behind = (None, Some(KeepAlive::new(keeper)));
        let name = (name, DeviceKind::Target);
        Ok(IoDevice::new(name, (limits, features), memory, way, behind))
    }

    /// Its name: a drive's serial number, or a path.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Which kind it is.
    pub fn kind(&self) -> DeviceKind {
        self.inner.kind
    }

    /// Its size and what requests may be; `queue_depth` is that of the deepest queue.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// What it can do beside reads and writes.
    pub fn features(&self) -> Features {
        self.inner.features
    }

    /// Payloads begin on a multiple of this many bytes, a power of two; others are refused with
    /// [`nvme::Status::PRP_OFFSET_INVALID`].
    pub fn memory_alignment(&self) -> u32 {
        match &self.inner.backend {
            Backend::File(uring) => uring.memory_alignment(),
            Backend::Null(_) | Backend::Passthrough(_) | Backend::Drive(_) | Backend::Target(_) => {
                1
            }
        }
    }

    /// What the drive says about itself, if it is one.
    pub fn drive_info(&self) -> Option<&ControllerInfo> {
        match &self.inner.backend {
            Backend::Drive(way) => Some(&way.info),
            Backend::Passthrough(namespace) => Some(namespace.info()),
            _ => None,
        }
    }

    /// Whether the queues of a drive have their doorbells in memory; `None` where somebody else rings.
    pub fn has_shadow_doorbells(&self) -> Option<bool> {
        match &self.inner.backend {
            Backend::Drive(way) => Some(lock(&way.controller).has_shadow_doorbells()),
            _ => None,
        }
    }

    /// Why it is not there any more, if it is not: the server of a served device has gone, a real controller was
    /// pulled out, taken away, or has failed for good. A controller is looked at by its queues, while something
    /// is outstanding there, and by who asks here, both twice a second. To be asked by who submits vector
    /// commands, and gives them up then
    /// ([`VectorQueue::abandon`](lightnvm::vector::VectorQueue::abandon)).
    pub fn removal_reason(&self) -> Option<RemovalReason> {
        self.inner.removal_reason()
    }

    /// The clock of its handles.
    pub fn clock(&self) -> RealClock {
        self.inner.clock
    }

    /// Where payloads must be registered: what a [`Buffer`] is, and what else is registered here.
    pub fn memory(&self) -> &AddressSpace {
        &self.inner.memory
    }

    /// `bytes` of registered memory, at least 1.
    ///
    /// # Errors
    /// [`DirectError::Memory`], [`DirectError::Register`].
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, DirectError> {
        self.inner.buffer(bytes)
    }

    /// Bytes that are registered for buffers, and bytes of them that nobody has.
    pub fn buffer_bytes(&self) -> (u64, u64) {
        self.inner.pool.bytes()
    }

    /// Makes a queue.
    ///
    /// # Errors
    /// [`DirectError`]: none left, or refused.
    pub fn create_queue(&self, config: QueueConfig) -> Result<Queue, DirectError> {
        let opened = &self.inner;
        let mut interrupts = true;
        let hardware = match &opened.backend {
            Backend::Null(null) => {
                HardwareQueueKind::Null(Raw::new(null.create_queue(), opened.limits))
            }
            Backend::File(uring) => {
                HardwareQueueKind::File(Box::new(Raw::new(uring.create_queue()?, opened.limits)))
            }
            Backend::Passthrough(namespace) => {
                let queue = namespace.create_queue()?;
                HardwareQueueKind::Passthrough(Box::new(Raw::new(queue, opened.limits)))
            }
            Backend::Drive(way) => {
                interrupts = config.interrupts && way.has_interrupts();
                opened.create_drive_queue(way, config)?
            }
            Backend::Target(way) => {
                let none =
                    || DirectError::NoQueueLeft { device: opened.name.clone(), queues: way.queues };
                let target = way.lease().ok_or_else(none)?;
                HardwareQueueKind::Target(LeasedQueue { target, outstanding: 0 })
            }
        };
        let mut queue = Queue {
            hardware,
            limits: opened.limits,
            memory: opened.memory.clone(),
            device: opened.clone(),
            interrupts,
        };
        queue.limits = match &queue.hardware {
            HardwareQueueKind::Null(raw) => *raw.limits(),
            HardwareQueueKind::Drive(raw) => *raw.limits(),
            HardwareQueueKind::File(raw) => *raw.limits(),
            HardwareQueueKind::Passthrough(raw) => *raw.limits(),
            HardwareQueueKind::Target(queue) => *queue.target.limits(),
            HardwareQueueKind::Remote(served) => *served.limits(),
            HardwareQueueKind::Controller(watched) => *watched.limits(),
            HardwareQueueKind::Closed => opened.limits,
        };
        Ok(queue)
    }

    /// Whether its queues can wake who waits: not those of a controller that is driven by way of
    /// `uio_pci_generic`.
    pub fn has_interrupts(&self) -> bool {
        match &self.inner.backend {
            Backend::Drive(way) => way.has_interrupts(),
            _ => true,
        }
    }

    /// Which driver of the kernel has given a real controller to this process.
    pub fn bound_driver(&self) -> Option<PciDriver> {
        self.inner.bound_driver
    }

    /// Makes `count` hardware queues for layers that are put on a drive as a kernel does it
    /// ([`block::BlockLayer`], [`block::completion::Blocking`]), wherever the drive is.
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] on anything but a drive; [`DirectError::NoInterrupts`] for interrupts that
    /// the drive does not have; [`DirectError`] for a queue that is refused, or for `count` of zero.
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
        let queues =
            (0..count).map(|_| opened.wait_for_admin(|pump| way.create_queue(config, pump)));
        QueueFactory::new(opened.clone(), queues.collect::<Result<_, _>>()?)
    }

    /// Makes a queue for vector commands: reads, writes, resets and copies of physical addresses.
    ///
    /// # Errors
    /// [`DirectError::NoVector`] on anything but an open-channel drive; no queue or memory left.
    pub fn vector_queue(&self, config: QueueConfig) -> Result<VectorQueue, DirectError> {
        let refused = || DirectError::NoVector { device: self.inner.name.clone() };
        let Backend::Drive(way) = &self.inner.backend else { return Err(refused()) };
        if way.info.open_channel.is_none() {
            return Err(refused());
        }
        let pair = self
            .inner
            .wait_for_admin(|pump| way.create_queue_pair(config, pump).map_err(Into::into))?;
        let port = lock(&way.controller).port().clone();
        self.inner.wait_for_admin(|_| Ok(VectorQueue::new(pair, port, &way.info)?))
    }

    /// Says whom completions of a vector queue with interrupts wake from now on, and the end of a served
    /// device's server.
    ///
    /// # Errors
    /// [`DirectError::Memory`]: no file descriptor left.
    pub fn set_vector_waker(
        &self,
        queue: &VectorQueue,
        waker: clock::Waker,
    ) -> Result<(), DirectError> {
        if let Some(served) = &self.inner.remote {
            let sleeper = VECTOR_WAITER_BIT | u64::from(queue.queue().qid());
            served.session.liveness().set_waker(sleeper, Some(waker.clone()));
        }
        if let Some(vector) = queue.queue().vector() {
            let set = queue.port().set_vector(vector, waker);
            set.map_err(|source| DirectError::Memory { bytes: 0, source })?;
        }
        Ok(())
    }

    /// What an open-channel drive says of `count` chunks from the `first` on, in the order of their
    /// addresses (chunk within parallel unit within group); to a host with a part of the drive, of all
    /// chunks as well.
    ///
    /// # Errors
    /// [`DirectError::NoVector`]; [`DirectError::Drive`] for chunks that are not there, or a drive that
    /// does not answer.
    pub fn chunks(&self, first: u64, count: u64) -> Result<Vec<ChunkDescriptor>, DirectError> {
        let Backend::Drive(way) = &self.inner.backend else {
            return Err(DirectError::NoVector { device: self.inner.name.clone() });
        };
        self.inner.wait_for_admin(|pump| Ok(lock(&way.controller).chunks(first, count, pump)?))
    }

    /// Destroys a queue of [`vector_queue`](Device::vector_queue). Commands that are outstanding are
    /// given up.
    pub fn destroy_vector_queue(&self, queue: VectorQueue) {
        if let Some(served) = &self.inner.remote {
            let sleeper = VECTOR_WAITER_BIT | u64::from(queue.queue().qid());
            served.session.liveness().set_waker(sleeper, None);
        }
        self.inner.delete_queue_pair(queue.into_queue());
    }

    pub(crate) fn inner(&self) -> &Arc<DeviceInner> {
        &self.inner
    }
}
