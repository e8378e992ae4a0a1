//! [`Opened`]: what a [`Device`](crate::Device), its queues and their handles keep open together, and the
//! [`Way`] to what is on the other side.

use std::any::Any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Device as BlockDevice, Features, Limits, Raw};
use clock::{Nanos, RealClock};
use driver::pci::PciDriver;
use driver::{
    Controller, DriveInfo, DriverError, EmulatedQueue, Lives, Null, Passthrough, QueuePair, Uring,
    UringQueue,
};
use ring::AddressSpace;

use crate::buffer::{Buffer, Pool};
use crate::queue::{Borrowed, Hardware};
use crate::served::{Served, ServedQueue};
use crate::watched::Watched;
use crate::{DeviceKind, DirectError, Gone, QueueConfig};

/// How long what is outstanding at a target's queue may take when the queue is given back.
const PATIENCE: Nanos = Nanos::from_millis(5000);

/// How often a real controller that nobody waits for is looked at.
const LOOK: Nanos = Nanos::from_millis(500);

/// What a device's queues are made of.
#[derive(Debug)]
pub(crate) enum Way {
    Null(Null),
    File(Box<Uring>),
    Passthrough(Box<Passthrough>),
    Drive(DriveWay),
    Target(TargetWay),
}

#[derive(Debug)]
pub(crate) struct DriveWay {
    pub(crate) controller: Arc<Mutex<Controller>>,
    pub(crate) info: DriveInfo,
    /// Held while a queue is made: its number is its interrupt vector's.
    making: Mutex<()>,
    /// What runs while the drive has not answered an admin command.
    pump: fn(),
    interrupts: bool,
    lives: Lives,
    /// Of a real controller: when somebody looks next whether it is there, in nanoseconds of the device's
    /// clock.
    look_at: AtomicU64,
}

/// Block devices that are handed out as queues, and come back.
pub(crate) struct TargetWay {
    left: Mutex<Vec<Box<dyn BlockDevice + Send>>>,
    /// How many of them nobody has.
    idle: AtomicUsize,
    pub(crate) queues: usize,
}

impl std::fmt::Debug for TargetWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TargetWay").field("queues", &self.queues).finish_non_exhaustive()
    }
}

/// Keeps what is on the other side alive, such as the thread of a drive; dropped last.
pub(crate) struct Keeper(
    #[allow(dead_code, reason = "kept for its drop")] Box<dyn Any + Send + Sync>,
);

impl Keeper {
    pub(crate) fn new(kept: impl Any + Send + Sync) -> Keeper {
        Keeper(Box::new(kept))
    }
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keeper")
    }
}

#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) name: String,
    pub(crate) kind: DeviceKind,
    pub(crate) limits: Limits,
    pub(crate) features: Features,
    pub(crate) memory: AddressSpace,
    pub(crate) clock: RealClock,
    pub(crate) pool: Arc<Pool>,
    pub(crate) way: Way,
    /// Where it came from, if its drive is in another process.
    pub(crate) served: Option<Served>,
    /// How long a command of a real controller may take before it is aborted.
    pub(crate) timeout: Nanos,
    /// Of a real controller.
    pub(crate) given_by: Option<PciDriver>,
    pub(crate) _keeper: Option<Keeper>,
}

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What runs while a drive has not answered an admin command: it has a thread of its own.
pub(crate) fn pause() {
    std::thread::yield_now();
}

impl TargetWay {
    pub(crate) fn new(queues: Vec<Box<dyn BlockDevice + Send>>) -> TargetWay {
        let idle = AtomicUsize::new(queues.len());
        TargetWay { queues: queues.len(), idle, left: Mutex::new(queues) }
    }

    pub(crate) fn take(&self) -> Option<Box<dyn BlockDevice + Send>> {
        let mut left = lock(&self.left);
        let target = left.pop();
        self.idle.store(left.len(), Ordering::Relaxed);
        target
    }
}

impl DriveWay {
    /// The way to the drive of `controller`; `pump` runs while that has not answered an admin command.
    pub(crate) fn new(controller: Controller, pump: fn()) -> DriveWay {
        let (info, lives) = (controller.info().clone(), controller.lives());
        let interrupts = controller.port().has_interrupts();
        let controller = Arc::new(Mutex::new(controller));
        let (making, look_at) = (Mutex::default(), AtomicU64::new(0));
        DriveWay { controller, info, making, pump, interrupts, lives, look_at }
    }

    pub(crate) fn has_interrupts(&self) -> bool {
        self.interrupts
    }

    pub(crate) fn pair(
        &self,
        config: QueueConfig,
        pump: &mut dyn FnMut(),
    ) -> Result<QueuePair, DriverError> {
        let _making = lock(&self.making);
        lock(&self.controller).reclaim(pump)?;
        let vector = self.vector(config);
        lock(&self.controller).create_queue_pair(config.depth, vector, pump)
    }

    /// Whether a real controller is gone: as its queues have found, and who asks here, a few times a second.
    fn is_gone(&self, now: Nanos) -> bool {
        if !self.lives.is_over() && now.0 >= self.look_at.load(Ordering::Relaxed) {
            self.look_at.store((now + LOOK).0, Ordering::Relaxed);
            // Who has it waits for an answer, and looks meanwhile.
            if let Ok(mut controller) = self.controller.try_lock() {
                controller.is_gone();
            }
        }
        self.lives.is_over()
    }

    /// Each queue has an interrupt vector of its own: that of its number.
    fn vector(&self, config: QueueConfig) -> Option<u16> {
        let interrupts = config.interrupts && self.has_interrupts();
        interrupts.then(|| lock(&self.controller).next_queue()).flatten()
    }

    pub(crate) fn queue(
        &self,
        config: QueueConfig,
        pump: &mut dyn FnMut(),
    ) -> Result<EmulatedQueue, DirectError> {
        let _making = lock(&self.making);
        lock(&self.controller).reclaim(pump)?;
        let vector = self.vector(config);
        Ok(EmulatedQueue::open(&self.controller, config.depth, vector, pump)?)
    }
}

impl Opened {
    /// A file's queue for several threads, where those that are made otherwise are for one.
    pub(crate) fn shared_file_queue(&self) -> Option<UringQueue> {
        match &self.way {
            Way::File(uring) if uring.is_of_one_thread() => uring.make_shared_queue().ok(),
            _ => None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    pub(crate) fn buffer(&self, bytes: usize) -> Result<Buffer, DirectError> {
        let taken = self.pool.take(bytes);
        match &self.served {
            None => taken,
            Some(served) => taken.map_err(|error| served.explain(error)),
        }
    }

    pub(crate) fn served(&self) -> Option<&Served> {
        self.served.as_ref()
    }

    /// Why it is not there any more, if it is not.
    pub(crate) fn gone(&self) -> Option<Gone> {
        match (&self.served, &self.way) {
            (Some(served), _) => served.session.life().why(),
            (None, Way::Drive(way)) if self.kind == DeviceKind::Controller => {
                way.is_gone(self.clock.now()).then_some(Gone::Removed)
            }
            _ => None,
        }
    }

    /// What has to wait for the drive's answers.
    pub(crate) fn awaiting<T>(
        &self,
        what: impl FnOnce(&mut dyn FnMut()) -> Result<T, DirectError>,
    ) -> Result<T, DirectError> {
        match &self.served {
            None => what(&mut self.pump()),
            Some(served) => what(&mut served.pump()).map_err(|error| served.explain(error)),
        }
    }

    /// What runs while the drive has not answered an admin command.
    pub(crate) fn pump(&self) -> fn() {
        match &self.way {
            Way::Drive(way) => way.pump,
            _ => pause,
        }
    }

    pub(crate) fn drive_queue(
        &self,
        way: &DriveWay,
        config: QueueConfig,
    ) -> Result<Hardware, DirectError> {
        let queue = self.awaiting(|pump| way.queue(config, pump))?;
        Ok(match &self.served {
            Some(served) => {
                let life = served.session.life().clone();
                Hardware::Served(Box::new(ServedQueue::new(queue, life)))
            }
            None if self.kind == DeviceKind::Controller => {
                let limits = queue.limits();
                Hardware::Controller(Box::new(Watched::new(queue, limits, self.timeout)))
            }
            None => {
                let limits = queue.limits();
                Hardware::Drive(Raw::new(queue, limits))
            }
        })
    }

    /// Gives a queue back to a drive in another process.
    pub(crate) fn close_served(&self, queue: &mut ServedQueue) {
        if let Some(served) = &self.served {
            queue.close(&mut served.pump());
        }
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

    /// Gives a queue pair for vector commands back to its drive. One that does not answer keeps its
    /// number and its rings.
    pub(crate) fn delete(&self, pair: QueuePair) {
        if let Way::Drive(way) = &self.way {
            let _ = self.awaiting(|pump| {
                Ok(lock(&way.controller).delete_queue_pair(pair, &mut |_| {}, pump)?)
            });
        }
    }

    /// Takes a target's queue back, when what is outstanding there has ended; one where it does not end is
    /// not handed out again.
    pub(crate) fn put_target(&self, mut borrowed: Borrowed) {
        let Way::Target(way) = &self.way else { return };
        let until = self.clock.now() + PATIENCE;
        while borrowed.outstanding > 0 {
            let now = self.clock.now();
            if now > until {
                return;
            }
            borrowed.poll(now);
            if self.has_idle_targets() {
                self.poll_idle_targets(now);
            }
            while borrowed.reap().is_some() {}
        }
        let mut left = lock(&way.left);
        left.push(borrowed.target);
        way.idle.store(left.len(), Ordering::Relaxed);
    }

    /// Whether a target has queues that nobody has; with all of them handed out, one load.
    #[inline]
    pub(crate) fn has_idle_targets(&self) -> bool {
        match &self.way {
            Way::Target(way) => way.idle.load(Ordering::Relaxed) > 0,
            _ => false,
        }
    }

    /// Polls the queues of a target that nobody has, unless somebody does so now.
    #[cold]
    pub(crate) fn poll_idle_targets(&self, now: Nanos) -> bool {
        let Way::Target(way) = &self.way else { return false };
        let Ok(mut left) = way.left.try_lock() else { return false };
        let mut moved = false;
        for target in left.iter_mut() {
            moved |= target.poll(now);
        }
        moved
    }
}
