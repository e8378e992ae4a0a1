//! [`QueueBinding`]: a handle's access to a queue, and [`QueueOwner`], which owns the queue while no
//! handle is bound to it.
//!
//! A queue that is not shared is moved into its only handle and returned when the handle is
//! destroyed (ARCHITECTURE.md, R4: no lock on its path). A shared queue attaches several handles.

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{BlockDevice, Completion, Group, Limits, QueueFull, Request, WaitResult};
use event::Waker;
use mem::AddressSpace;
use time::{Component, Nanos};
use user_io::{GroupedSubmit, QueueHandle, QueueStats, SharedQueue};

use crate::device::device_ref::DeviceRef;
use crate::error::CallError;
use crate::queue::kind::QueueKind;

/// State of a queue.
#[derive(Debug)]
pub(crate) enum BindingState {
    /// No handle is bound to the queue.
    Idle(Box<QueueKind>),
    /// The only handle of the queue owns it.
    Bound,
    /// Handles attach to the queue.
    Shared(SharedQueue<QueueKind>),
}

/// Owner of a queue.
#[derive(Debug)]
pub(crate) struct QueueOwner {
    pub(crate) device: user_io::IoDevice,
    pub(crate) device_ref: Arc<DeviceRef>,
    /// Whether the queue has a scheduler, which distinguishes groups.
    pub(crate) has_groups: bool,
    state: Mutex<OwnerState>,
}

#[derive(Debug)]
pub(crate) struct OwnerState {
    pub(crate) queue: BindingState,
    /// Number of handles bound to the queue.
    pub(crate) handles: u32,
    /// Address of the poller that watches the queue.
    pub(crate) watched: Option<usize>,
}

impl QueueOwner {
    pub(crate) fn new(
        device: user_io::IoDevice,
        device_ref: Arc<DeviceRef>,
        floor: QueueKind,
        shared: bool,
    ) -> QueueOwner {
        let has_groups = matches!(floor, QueueKind::Scheduled(_));
        let place = match shared {
            true => BindingState::Shared(SharedQueue::new(floor)),
            false => BindingState::Idle(Box::new(floor)),
        };
        let state = Mutex::new(OwnerState { queue: place, handles: 0, watched: None });
        QueueOwner { device, device_ref, has_groups, state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, OwnerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum BoundQueue {
    Exclusive(Box<QueueKind>),
    Shared(QueueHandle<QueueKind>),
    /// The queue was returned to its owner.
    Released,
}

/// A handle's access to a queue.
#[derive(Debug)]
pub(crate) struct QueueBinding {
    queue: BoundQueue,
    owner: Arc<QueueOwner>,
    group: Group,
    /// Number of this handle's requests on the queue; written by the handle's thread only.
    outstanding: Arc<AtomicU32>,
}

impl QueueBinding {
    /// Takes an exclusive queue from its owner, or attaches to a shared one.
    pub(crate) fn bind(home: &Arc<QueueOwner>, group: Group) -> Result<QueueBinding, CallError> {
        if group != Group(0) && !home.has_groups {
            let allowed =
                "0, or a queue that was created with a scheduler, which tells groups apart";
            let value = group.0.into();
            return Err(CallError::Value { what: "group", value, allowed });
        }
        let mut state = home.state();
        let way = match std::mem::replace(&mut state.queue, BindingState::Bound) {
            BindingState::Idle(floor) => BoundQueue::Exclusive(floor),
            BindingState::Shared(queue) => {
                let seat = queue.attach_group(group);
                state.queue = BindingState::Shared(queue);
                BoundQueue::Shared(seat)
            }
            BindingState::Bound => {
                return Err(CallError::InUse(
                    "the queue is bound to a handle: create it with SLUICE_QUEUE_SHARED for several",
                ));
            }
        };
        state.handles += 1;
        Ok(QueueBinding { queue: way, owner: home.clone(), group, outstanding: Arc::default() })
    }

    /// Returns the counters of the queue; for a shared queue, those of all its handles.
    pub(crate) fn stats(&self) -> QueueStats {
        match &self.queue {
            BoundQueue::Exclusive(floor) => floor.stats(),
            BoundQueue::Shared(seat) => seat.with_device(QueueKind::stats),
            BoundQueue::Released => QueueStats::default(),
        }
    }

    pub(crate) fn outstanding(&self) -> &Arc<AtomicU32> {
        &self.outstanding
    }

    #[inline]
    fn change_outstanding(&self, change: i32) {
        let now = self.outstanding.load(Ordering::Relaxed);
        self.outstanding.store(now.wrapping_add_signed(change), Ordering::Relaxed);
    }
}

impl Drop for QueueBinding {
    fn drop(&mut self) {
        let mut state = self.owner.state();
        state.handles -= 1;
        match std::mem::replace(&mut self.queue, BoundQueue::Released) {
            BoundQueue::Exclusive(floor) => state.queue = BindingState::Idle(floor),
            // Dropping takes the queue's lock; no holder of that lock waits for this one.
            BoundQueue::Shared(seat) => drop(seat),
            BoundQueue::Released => {}
        }
    }
}

impl Component for QueueBinding {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        match &mut self.queue {
            BoundQueue::Exclusive(floor) => floor.poll(now),
            BoundQueue::Shared(seat) => seat.poll(now),
            BoundQueue::Released => false,
        }
    }

    fn deadline(&self) -> Nanos {
        match &self.queue {
            BoundQueue::Exclusive(floor) => floor.deadline(),
            BoundQueue::Shared(seat) => seat.deadline(),
            BoundQueue::Released => Nanos::MAX,
        }
    }
}

impl BlockDevice for QueueBinding {
    #[inline]
    fn limits(&self) -> &Limits {
        match &self.queue {
            BoundQueue::Exclusive(floor) => floor.limits(),
            BoundQueue::Shared(seat) => seat.limits(),
            BoundQueue::Released => self.owner.device.limits(),
        }
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        match &mut self.queue {
            BoundQueue::Exclusive(floor) => floor.submit_for(now, self.group, request)?,
            BoundQueue::Shared(seat) => seat.submit(now, request)?,
            BoundQueue::Released => return Err(QueueFull),
        }
        self.change_outstanding(1);
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        let completion = match &mut self.queue {
            BoundQueue::Exclusive(floor) => floor.reap(),
            BoundQueue::Shared(seat) => seat.reap(),
            BoundQueue::Released => None,
        }?;
        self.change_outstanding(-1);
        Some(completion)
    }

    fn memory(&self) -> &AddressSpace {
        self.owner.device.memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        match &mut self.queue {
            BoundQueue::Exclusive(floor) => floor.set_waker(waker),
            BoundQueue::Shared(seat) => seat.set_waker(waker),
            BoundQueue::Released => {}
        }
    }

    fn can_wake(&self) -> bool {
        match &self.queue {
            BoundQueue::Exclusive(floor) => floor.can_wake(),
            BoundQueue::Shared(seat) => seat.can_wake(),
            BoundQueue::Released => false,
        }
    }

    fn enable_sharing(&mut self) {
        match &mut self.queue {
            BoundQueue::Exclusive(floor) => floor.enable_sharing(),
            BoundQueue::Shared(seat) => seat.enable_sharing(),
            BoundQueue::Released => {}
        }
    }

    fn can_wait(&self) -> bool {
        match &self.queue {
            BoundQueue::Exclusive(floor) => floor.can_wait(),
            BoundQueue::Shared(seat) => seat.can_wait(),
            BoundQueue::Released => false,
        }
    }

    #[inline]
    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        match &mut self.queue {
            BoundQueue::Exclusive(floor) => floor.wait_for_event(now, until),
            BoundQueue::Shared(seat) => seat.wait_for_event(now, until),
            BoundQueue::Released => WaitResult::Unsupported,
        }
    }

    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any)) {
        match &mut self.queue {
            BoundQueue::Exclusive(floor) => floor.visit_layers(visit),
            BoundQueue::Shared(seat) => seat.visit_layers(visit),
            BoundQueue::Released => {}
        }
    }
}
