//! [`QueueBinding`]: a handle's access to a queue, and [`QueueOwner`], which owns the queue while no
//! handle is bound to it.
//!
//! A queue that is not shared is moved into its only handle and returned when the handle is
//! destroyed (ARCHITECTURE.md, R4: no lock on its path). A shared queue attaches several handles.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{BlockDevice, Completion, Group, QueueFull, Request};
use time::{Component, Nanos};
use user_io::{QueueStats, SharedQueue};

use crate::device::device_ref::DeviceRef;
use crate::error::CallError;
use crate::queue::kind::QueueStack;

/// State of a queue.
#[derive(Debug)]
pub(crate) enum BindingState {
    /// No handle is bound to the queue.
    Idle(Box<dyn QueueStack>),
    /// The only handle of the queue owns it.
    Bound,
    /// Handles attach to the queue.
    Shared(SharedQueue<Box<dyn QueueStack>>),
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
        queue: Box<dyn QueueStack>,
        has_groups: bool,
        shared: bool,
    ) -> QueueOwner {
        let queue = match shared {
            true => BindingState::Shared(SharedQueue::new(queue)),
            false => BindingState::Idle(queue),
        };
        let state = Mutex::new(OwnerState { queue, handles: 0, watched: None });
        QueueOwner { device, device_ref, has_groups, state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, OwnerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

macro_rules! dispatch {
    ($self:ident, $queue:ident => $call:expr) => {
        match $self {
            QueueBinding { queue: Some($queue), .. } => $call,
            QueueBinding { queue: None, .. } => unreachable!("binding: used after it was dropped"),
        }
    };
}

/// A handle's access to a queue.
#[derive(Debug)]
pub(crate) struct QueueBinding {
    /// `None` after it was dropped.
    queue: Option<Box<dyn QueueStack>>,
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
        let queue = match std::mem::replace(&mut state.queue, BindingState::Bound) {
            BindingState::Idle(queue) => queue,
            BindingState::Shared(queue) => {
                let handle = queue.attach_group(group);
                state.queue = BindingState::Shared(queue);
                Box::new(handle)
            }
            BindingState::Bound => {
                return Err(CallError::InUse(
                    "the queue is bound to a handle: create it with SLUICE_QUEUE_SHARED for several",
                ));
            }
        };
        state.handles += 1;
        Ok(QueueBinding {
            queue: Some(queue),
            owner: home.clone(),
            group,
            outstanding: Arc::default(),
        })
    }

    /// Returns the counters of the queue; for a shared queue, those of all its handles.
    pub(crate) fn stats(&self) -> QueueStats {
        dispatch!(self, queue => queue.stats())
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
        // Dropping the handle of a shared queue takes the queue's lock; no holder of that lock waits for
        // this one.
        let queue = self.queue.take();
        if let (BindingState::Bound, Some(queue)) = (&state.queue, queue) {
            state.queue = BindingState::Idle(queue);
        }
    }
}

impl Component for QueueBinding {
    block::delegate_block_device!(self => dispatch!; poll, deadline);
}

impl BlockDevice for QueueBinding {
    block::delegate_block_device!(self => dispatch!; limits, memory, set_waker, can_wake, enable_sharing,
        can_wait, wait_for_event, visit_layers);

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        dispatch!(self, queue => queue.submit_for(now, self.group, request))?;
        self.change_outstanding(1);
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        let completion = dispatch!(self, queue => queue.reap())?;
        self.change_outstanding(-1);
        Some(completion)
    }
}
