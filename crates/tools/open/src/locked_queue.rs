//! [`LockedQueue`]: the queue of a target with rules, which other threads reach between two calls of its
//! owner, and also while the owner does not poll it.
//!
//! A target that a program opened has no thread of its own: handles poll its queue. So a call that waited
//! for the owner (`share_server::OwnerChannel`) would wait for ever if its own thread has the handle.
//! Queues of other targets have no lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use block::{BlockDevice, Limits};
use event::RealClock;
use mem::AddressSpace;
use share_server::{OwnerStopped, RuleControl};
use stack::{CoreQueue, TargetAccess, target_layers, target_rule_control};
use time::Component;

type SharedDevice = Mutex<Box<dyn CoreQueue>>;

/// A queue whose calls take a lock.
#[derive(Debug)]
struct LockedQueue {
    device: Arc<SharedDevice>,
    limits: Limits,
    memory: AddressSpace,
}

/// The access to a queue. It does not keep the queue open.
#[derive(Debug)]
struct QueueAccess(Weak<SharedDevice>);

/// A target with rules of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleTarget {
    /// The name of its drive.
    pub(super) drive: String,
    /// Its index among the targets of a set; `None` for the only target.
    pub(super) only: Option<usize>,
}

/// A target with rules, and the access to the queue that it is behind.
#[derive(Debug)]
pub(super) struct LockedTarget {
    drive: String,
    access: QueueAccess,
    /// Its index among the targets behind the queue.
    only: Option<usize>,
}

fn lock(device: &SharedDevice) -> MutexGuard<'_, Box<dyn CoreQueue>> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a lock to each queue that one of these targets is behind. Returns the access to the targets.
pub(super) fn lock_rule_targets(
    queues: &mut Vec<Box<dyn CoreQueue>>,
    targets: &[RuleTarget],
) -> Vec<LockedTarget> {
    let (mut locked, mut first) = (Vec::new(), 0);
    let all = std::mem::take(queues).into_iter().map(|mut device| {
        let own = first..first + target_layers::target_count(&mut device);
        first = own.end;
        let is_here = |target: &&RuleTarget| match target.only {
            Some(only) => own.contains(&only),
            None => !own.is_empty(),
        };
        let mut here = targets.iter().filter(is_here).peekable();
        if here.peek().is_none() {
            return device;
        }
        let (limits, memory) = (*device.limits(), device.memory().clone());
        let device = Arc::new(Mutex::new(device));
        locked.extend(here.map(|target| LockedTarget {
            drive: target.drive.clone(),
            access: QueueAccess(Arc::downgrade(&device)),
            only: target.only.map(|only| only - own.start),
        }));
        Box::new(LockedQueue { device, limits, memory }) as Box<dyn CoreQueue>
    });
    *queues = all.collect();
    locked
}

impl LockedTarget {
    /// Returns the name of the drive, and the access to the rules. `clock` is that of the device.
    pub(super) fn into_control(self, clock: RealClock) -> (String, RuleControl) {
        (self.drive, target_rule_control(self.access, self.only, clock))
    }
}

impl TargetAccess for QueueAccess {
    fn with_device<T: Send + 'static>(
        &self,
        visit: impl FnOnce(&mut dyn BlockDevice) -> T + Send + 'static,
    ) -> Result<T, OwnerStopped> {
        let device = self.0.upgrade().ok_or(OwnerStopped)?;
        let result = visit(&mut *lock(&device));
        Ok(result)
    }
}

impl LockedQueue {
    fn device(&self) -> MutexGuard<'_, Box<dyn CoreQueue>> {
        lock(&self.device)
    }
}

impl CoreQueue for LockedQueue {}

impl BlockDevice for LockedQueue {
    block::delegate_block_device!(self => self.device(); submit, reap, set_waker, can_wake,
        enable_sharing, can_wait, wait_for_event, visit_layers);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }
}

impl Component for LockedQueue {
    block::delegate_block_device!(self => self.device(); poll, deadline);
}
