//! [`TargetQueue`]: a queue of a target. It returns to its [`TargetQueues`] when it is dropped, so
//! that the target can be flushed and closed when its drive is closed.
//!
//! Guarantee: requests that an application left outstanding are counted, and close waits for them.

use std::sync::{Arc, Mutex, PoisonError};

use block::{BlockDevice, Completion, Limits, QueueFull, Request};
use controller::Controller;
use event::{RealClock, Waker};
use mem::AddressSpace;
use nvme::Status;
use pblk::ShardHandle;
use stack::{DriveThreadState, StackDevice};
use time::{Component, Nanos};

use super::CloseError;

/// Maximum time for outstanding requests and for the last flush at close.
const CLOSE_TIMEOUT: Nanos = Nanos::from_millis(60_000);

/// A target that can write a checkpoint of its map, so that its next recovery has nothing to scan.
pub(super) trait Checkpointable: BlockDevice + Send + 'static {
    fn start_checkpoint(&mut self);
    fn has_pending_checkpoint(&self) -> bool;
}

impl Checkpointable for StackDevice {
    fn start_checkpoint(&mut self) {
        self.begin_checkpoint();
    }

    fn has_pending_checkpoint(&self) -> bool {
        self.is_checkpointing()
    }
}

impl Checkpointable for ShardHandle {
    fn start_checkpoint(&mut self) {
        self.checkpoint();
    }

    fn has_pending_checkpoint(&self) -> bool {
        self.pblk().ftl().is_checkpointing()
    }
}

impl<D: Checkpointable> Checkpointable for Box<D> {
    fn start_checkpoint(&mut self) {
        (**self).start_checkpoint();
    }

    fn has_pending_checkpoint(&self) -> bool {
        (**self).has_pending_checkpoint()
    }
}

/// Queues that have been returned, each with the number of its outstanding requests.
#[derive(Debug)]
pub(super) struct TargetQueues<D> {
    returned: Mutex<Vec<(D, u64)>>,
}

/// A queue of a target.
#[derive(Debug)]
pub(super) struct TargetQueue<D> {
    /// The queue's device; `None` after it was dropped.
    device: Option<D>,
    limits: Limits,
    memory: AddressSpace,
    outstanding: u64,
    queues: Arc<TargetQueues<D>>,
}

impl<D: Checkpointable> TargetQueues<D> {
    /// Wraps the queues of a target as devices; returns them and the place to which they return.
    pub(super) fn from_devices(
        devices: Vec<D>,
    ) -> (Arc<TargetQueues<D>>, Vec<Box<dyn BlockDevice + Send>>) {
        let ends = Arc::new(TargetQueues { returned: Mutex::default() });
        let queues = devices.into_iter().map(|device| {
            let (limits, memory) = (*device.limits(), device.memory().clone());
            let ends = ends.clone();
            let end =
                TargetQueue { device: Some(device), limits, memory, outstanding: 0, queues: ends };
            Box::new(end) as Box<dyn BlockDevice + Send>
        });
        let queues = queues.collect();
        (ends, queues)
    }

    /// Waits for outstanding requests and flushes the target. If the drive stores data, the target
    /// then writes a checkpoint, which takes no time. All queues must have been returned.
    ///
    /// # Errors
    /// [`CloseError::Outstanding`], [`CloseError::Flush`].
    pub(super) fn close(
        &self,
        live: &mut DriveThreadState,
        clock: RealClock,
    ) -> Result<(), CloseError> {
        let drive = live.drive.config().name.clone();
        let mut back =
            std::mem::take(&mut *self.returned.lock().unwrap_or_else(PoisonError::into_inner));
        let until = clock.now() + CLOSE_TIMEOUT;
        let mut last = None;
        let mut settle = |back: &mut Vec<(D, u64)>, live: &mut DriveThreadState| {
            while back.iter().any(|(_, left)| *left > 0) {
                let now = clock.now();
                if now > until {
                    let outstanding = back.iter().map(|(_, left)| left).sum();
                    return Err(CloseError::Outstanding { drive: drive.clone(), outstanding });
                }
                for (device, left) in back.iter_mut() {
                    device.poll(now);
                    while let Some(done) = device.reap() {
                        last = Some(done.status);
                        *left = left.saturating_sub(1);
                    }
                }
                live.poll(now);
            }
            Ok(last)
        };
        settle(&mut back, live)?;
        if let Some((device, left)) = back.first_mut()
            && device.submit(clock.now(), Request::flush(0)).is_ok()
        {
            *left += 1;
        }
        let status = settle(&mut back, live)?.unwrap_or(Status::SUCCESS);
        if !status.is_success() {
            return Err(CloseError::Flush { drive, status });
        }
        if live.drive.stores_data() {
            back.iter_mut().for_each(|(device, _)| device.start_checkpoint());
            live.drive.set_zero_latency(true);
            run_checkpoints(&mut back, &mut live.drive, clock.now());
            live.drive.set_zero_latency(false);
        }
        Ok(())
    }
}

/// Polls until no checkpoint is in progress or nothing can make progress. Earlier operations
/// complete at their due times: the time advances to them without waiting.
fn run_checkpoints<D: Checkpointable>(
    ends: &mut [(D, u64)],
    drive: &mut Controller,
    mut now: Nanos,
) {
    while ends.iter().any(|(device, _)| device.has_pending_checkpoint()) {
        let mut moved = false;
        for (device, _) in ends.iter_mut() {
            moved |= device.poll(now);
        }
        if drive.poll(now) | moved {
            continue;
        }
        match drive.deadline() {
            due if due > now && due < Nanos::MAX => now = due,
            _ => return,
        }
    }
}

impl<D> Drop for TargetQueue<D> {
    fn drop(&mut self) {
        if let Some(device) = self.device.take() {
            let mut back = self.queues.returned.lock().unwrap_or_else(PoisonError::into_inner);
            back.push((device, self.outstanding));
        }
    }
}

impl<D: Checkpointable> BlockDevice for TargetQueue<D> {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        self.device.as_mut().ok_or(QueueFull)?.submit(now, request)?;
        self.outstanding += 1;
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        let completion = self.device.as_mut()?.reap()?;
        self.outstanding = self.outstanding.saturating_sub(1);
        Some(completion)
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn set_waker(&mut self, waker: Waker) {
        if let Some(device) = &mut self.device {
            device.set_waker(waker);
        }
    }
}

impl<D: Checkpointable> Component for TargetQueue<D> {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        self.device.as_mut().is_some_and(|device| device.poll(now))
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.device.as_ref().map_or(Nanos::MAX, Component::deadline)
    }
}
