//! [`Device`]: what was opened (`nvmed_open`), of which queues and memory are made.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use block::{Device as BlockDevice, Features, Limits, Raw};
use clock::{Nanos, RealClock};
use driver::pci::{OpenedController, PciDriver};
use driver::{Controller, DriveInfo, LowLevelDriver, Null, Passthrough, Uring, UringConfig};
use lightnvm::vector::VectorQueue;
use nvme::ChunkDescriptor;
use ring::AddressSpace;

use crate::buffer::{Buffer, Pool};
use crate::drive_queues::DriveQueues;
use crate::opened::{DriveWay, Keeper, Opened, TargetWay, Way, lock, pause};
use crate::queue::{Borrowed, Hardware, Queue};
use crate::served::Served;
use crate::{DirectError, Gone};

/// Entries of a queue, unless said otherwise.
const DEPTH: u16 = 256;

/// Who sleeps for a vector queue has its number and this bit; other queues count from 0.
const VECTOR_SLEEPER: u64 = 1 << 63;

/// How a queue is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Entries of the rings, 2 or more: one more than requests that may be outstanding. A file's
    /// queues are all as deep as it was opened with.
    pub depth: u16,
    /// Whether the device wakes who waits for completions (`Wait::Event`), if it can:
    /// [`Device::has_interrupts`].
    pub interrupts: bool,
}

impl Default for QueueConfig {
    fn default() -> QueueConfig {
        QueueConfig { depth: DEPTH, interrupts: true }
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
    Served,
    /// A real controller of this machine.
    Controller,
    /// A namespace of a controller that the kernel drives, by commands of our own.
    Passthrough,
}

/// An opened device. Clones are the same device; it closes when the last of them, its queues and
/// their handles are gone.
#[derive(Clone, Debug)]
pub struct Device {
    opened: Arc<Opened>,
}

impl Device {
    fn new(
        (name, kind): (String, DeviceKind),
        (limits, features): (Limits, Features),
        memory: AddressSpace,
        way: Way,
        (served, keeper): (Option<Served>, Option<Keeper>),
    ) -> Device {
        let pool = Pool::new(memory.clone());
        let clock = RealClock::start();
        let given_by = None;
        let opened = Opened {
            name,
            kind,
            limits,
            features,
            memory,
            clock,
            pool,
            way,
            served,
            timeout: Device::TIMEOUT,
            given_by,
            _keeper: keeper,
        };
        Device { opened: Arc::new(opened) }
    }

    /// A device that acknowledges at once and has no data: what is left is the cost of the layers
    /// above.
    pub fn null(limits: Limits) -> Device {
        let null = Null::new(limits, 0);
        let (facts, memory) = ((null.limits(), null.features()), null.memory().clone());
        Device::new(("null".into(), DeviceKind::Null), facts, memory, Way::Null(null), (None, None))
    }

    /// A file or block device of the host, through io_uring. `config.queues` and `config.depth` stand
    /// for every queue that is made of it; none is made yet.
    ///
    /// # Errors
    /// [`DirectError::File`].
    pub fn file(path: impl AsRef<Path>, config: UringConfig) -> Result<Device, DirectError> {
        let path = path.as_ref();
        let uring = Uring::open(path, config)?;
        let (facts, memory) = ((uring.limits(), uring.features()), uring.memory().clone());
        let name = (path.display().to_string(), DeviceKind::File);
        Ok(Device::new(name, facts, memory, Way::File(Box::new(uring)), (None, None)))
    }

    /// A namespace of a controller that the kernel drives, by its generic character device
    /// (`/dev/ng0n1`); otherwise as [`file`](Device::file).
    ///
    /// # Errors
    /// [`DirectError::File`].
    pub fn passthrough(path: impl AsRef<Path>, config: UringConfig) -> Result<Device, DirectError> {
        let path = path.as_ref();
        let namespace = Passthrough::open(path, config)?;
        let (facts, memory) =
            ((namespace.limits(), namespace.features()), namespace.memory().clone());
        let name = (path.display().to_string(), DeviceKind::Passthrough);
        Ok(Device::new(name, facts, memory, Way::Passthrough(Box::new(namespace)), (None, None)))
    }

    /// The drive that `controller` was brought up on. Whoever polls the drive is on another thread;
    /// `keeper` is dropped after everything that leads to it.
    ///
    /// An open-channel drive has queues for vector commands only ([`Device::vector_queue`]).
    pub fn drive(controller: Controller, keeper: impl Any + Send + Sync) -> Device {
        let name = (controller.info().serial.clone(), DeviceKind::Drive);
        Device::over(name, controller, (None, Some(Keeper::new(keeper))), pause)
    }

    /// How long a command of a real controller may take, unless something else is said.
    pub const TIMEOUT: Nanos = Nanos::from_millis(30_000);

    /// A real controller of this machine, called `name`. A command that takes longer than `timeout` is
    /// aborted; one that takes as long again after that, 5 seconds at most, has its queue reset.
    pub fn controller(name: String, opened: OpenedController, timeout: Nanos) -> Device {
        let OpenedController { controller, keeper, given_by } = opened;
        let name = (name, DeviceKind::Controller);
        let behind = (None, Some(Keeper::new(keeper)));
        let mut device = Device::over(name, controller, behind, driver::pci::pump);
        if let Some(opened) = Arc::get_mut(&mut device.opened) {
            (opened.given_by, opened.timeout) = (Some(given_by), timeout);
        }
        device
    }

    /// The same, of a drive in another process.
    pub(crate) fn of_server(name: String, controller: Controller, served: Served) -> Device {
        Device::over((name, DeviceKind::Served), controller, (Some(served), None), pause)
    }

    fn over(
        name: (String, DeviceKind),
        controller: Controller,
        behind: (Option<Served>, Option<Keeper>),
        pump: fn(),
    ) -> Device {
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
        let way = Way::Drive(DriveWay::new(controller, pump));
        Device::new(name, (limits, features), memory, way, behind)
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
    ) -> Result<Device, DirectError> {
        let Some(first) = queues.first() else {
            return Err(DirectError::NoQueueLeft { device: name, queues: 0 });
        };
        let (limits, memory) = (*first.limits(), first.memory().clone());
        let way = Way::Target(TargetWay::new(queues));
        let behind = (None, Some(Keeper::new(keeper)));
        let name = (name, DeviceKind::Target);
        Ok(Device::new(name, (limits, features), memory, way, behind))
    }

    /// Its name: a drive's serial number, or a path.
    pub fn name(&self) -> &str {
        &self.opened.name
    }

    /// Which kind it is.
    pub fn kind(&self) -> DeviceKind {
        self.opened.kind
    }

    /// Its size and what requests may be; `queue_depth` is that of the deepest queue.
    pub fn limits(&self) -> &Limits {
        &self.opened.limits
    }

    /// What it can do beside reads and writes.
    pub fn features(&self) -> Features {
        self.opened.features
    }

    /// Payloads begin on a multiple of this many bytes, a power of two; others are refused with
    /// [`nvme::Status::PRP_OFFSET_INVALID`].
    pub fn memory_alignment(&self) -> u32 {
        match &self.opened.way {
            Way::File(uring) => uring.memory_alignment(),
            Way::Null(_) | Way::Passthrough(_) | Way::Drive(_) | Way::Target(_) => 1,
        }
    }

    /// What the drive says about itself, if it is one.
    pub fn drive_info(&self) -> Option<&DriveInfo> {
        match &self.opened.way {
            Way::Drive(way) => Some(&way.info),
            Way::Passthrough(namespace) => Some(namespace.info()),
            _ => None,
        }
    }

    /// Whether the queues of a drive have their doorbells in memory; `None` where somebody else rings.
    pub fn has_shadow_doorbells(&self) -> Option<bool> {
        match &self.opened.way {
            Way::Drive(way) => Some(lock(&way.controller).has_shadow_doorbells()),
            _ => None,
        }
    }

    /// Why it is not there any more, if it is not: the server of a served device has gone, a real controller was
    /// pulled out, taken away, or has failed for good. A controller is looked at by its queues, while something
    /// is outstanding there, and by who asks here, both twice a second. To be asked by who submits vector
    /// commands, and gives them up then
    /// ([`VectorQueue::abandon`](lightnvm::vector::VectorQueue::abandon)).
    pub fn gone(&self) -> Option<Gone> {
        self.opened.gone()
    }

    /// The clock of its handles.
    pub fn clock(&self) -> RealClock {
        self.opened.clock
    }

    /// Where payloads must be registered: what a [`Buffer`] is, and what else is registered here.
    pub fn memory(&self) -> &AddressSpace {
        &self.opened.memory
    }

    /// `bytes` of registered memory, at least 1.
    ///
    /// # Errors
    /// [`DirectError::Memory`], [`DirectError::Register`].
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, DirectError> {
        self.opened.buffer(bytes)
    }

    /// Bytes that are registered for buffers, and bytes of them that nobody has.
    pub fn buffer_bytes(&self) -> (u64, u64) {
        self.opened.pool.bytes()
    }

    /// Makes a queue.
    ///
    /// # Errors
    /// [`DirectError`]: none left, or refused.
    pub fn create_queue(&self, config: QueueConfig) -> Result<Queue, DirectError> {
        let opened = &self.opened;
        let mut interrupts = true;
        let hardware = match &opened.way {
            Way::Null(null) => Hardware::Null(Raw::new(null.make_queue(), opened.limits)),
            Way::File(uring) => {
                Hardware::File(Box::new(Raw::new(uring.make_queue()?, opened.limits)))
            }
            Way::Passthrough(namespace) => {
                let queue = namespace.make_queue()?;
                Hardware::Passthrough(Box::new(Raw::new(queue, opened.limits)))
            }
            Way::Drive(way) => {
                interrupts = config.interrupts && way.has_interrupts();
                opened.drive_queue(way, config)?
            }
            Way::Target(way) => {
                let none =
                    || DirectError::NoQueueLeft { device: opened.name.clone(), queues: way.queues };
                let target = way.take().ok_or_else(none)?;
                Hardware::Target(Borrowed { target, outstanding: 0 })
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
            Hardware::Null(raw) => *raw.limits(),
            Hardware::Drive(raw) => *raw.limits(),
            Hardware::File(raw) => *raw.limits(),
            Hardware::Passthrough(raw) => *raw.limits(),
            Hardware::Target(queue) => *queue.target.limits(),
            Hardware::Served(served) => *served.limits(),
            Hardware::Controller(watched) => *watched.limits(),
            Hardware::Gone => opened.limits,
        };
        Ok(queue)
    }

    /// Whether its queues can wake who waits: not those of a controller that is driven by way of
    /// `uio_pci_generic`.
    pub fn has_interrupts(&self) -> bool {
        match &self.opened.way {
            Way::Drive(way) => way.has_interrupts(),
            _ => true,
        }
    }

    /// Which driver of the kernel has given a real controller to this process.
    pub fn given_by(&self) -> Option<PciDriver> {
        self.opened.given_by
    }

    /// Makes `count` hardware queues for layers that are put on a drive as a kernel does it
    /// ([`block::BlockLayer`], [`block::completion::Blocking`]), wherever the drive is.
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] on anything but a drive; [`DirectError::NoInterrupts`] for interrupts that
    /// the drive does not have; [`DirectError`] for a queue that is refused, or for `count` of zero.
    pub fn drive_queues(
        &self,
        count: u16,
        config: QueueConfig,
    ) -> Result<DriveQueues, DirectError> {
        let opened = &self.opened;
        let Way::Drive(way) = &opened.way else {
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
        let queues = (0..count).map(|_| opened.awaiting(|pump| way.queue(config, pump)));
        DriveQueues::new(opened.clone(), queues.collect::<Result<_, _>>()?)
    }

    /// Makes a queue for vector commands: reads, writes, resets and copies of physical addresses.
    ///
    /// # Errors
    /// [`DirectError::NoVector`] on anything but an open-channel drive; no queue or memory left.
    pub fn vector_queue(&self, config: QueueConfig) -> Result<VectorQueue, DirectError> {
        let refused = || DirectError::NoVector { device: self.opened.name.clone() };
        let Way::Drive(way) = &self.opened.way else { return Err(refused()) };
        if way.info.open_channel.is_none() {
            return Err(refused());
        }
        let pair = self.opened.awaiting(|pump| way.pair(config, pump).map_err(Into::into))?;
        let port = lock(&way.controller).port().clone();
        self.opened.awaiting(|_| Ok(VectorQueue::new(pair, port, &way.info)?))
    }

    /// Says whom completions of a vector queue with interrupts wake from now on, and the end of a served
    /// device's server.
    ///
    /// # Errors
    /// [`DirectError::Memory`]: no file descriptor left.
    pub fn wake_vector_queue(
        &self,
        queue: &VectorQueue,
        waker: clock::Waker,
    ) -> Result<(), DirectError> {
        if let Some(served) = &self.opened.served {
            let sleeper = VECTOR_SLEEPER | u64::from(queue.queue().qid());
            served.session.life().set_sleeper(sleeper, Some(waker.clone()));
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
        let Way::Drive(way) = &self.opened.way else {
            return Err(DirectError::NoVector { device: self.opened.name.clone() });
        };
        self.opened.awaiting(|pump| Ok(lock(&way.controller).chunks(first, count, pump)?))
    }

    /// Destroys a queue of [`vector_queue`](Device::vector_queue). Commands that are outstanding are
    /// given up.
    pub fn destroy_vector_queue(&self, queue: VectorQueue) {
        if let Some(served) = &self.opened.served {
            let sleeper = VECTOR_SLEEPER | u64::from(queue.queue().qid());
            served.session.life().set_sleeper(sleeper, None);
        }
        self.opened.delete(queue.into_queue());
    }

    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }
}
