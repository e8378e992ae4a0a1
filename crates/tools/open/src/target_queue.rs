//! [`TargetQueue`]: a queue of a target. It returns to its [`TargetQueues`] when it is dropped, so
//! that the target can be flushed and closed when its drives are closed.
//!
//! Guarantee: requests that an application left outstanding are counted, and close waits for them.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use block::{BlockDevice, Completion, Limits, QueueFull, Request};
use event::{RealClock, Waker};
use mem::AddressSpace;
use nvme::Status;
use stack::{CoreQueue, DriveThreadState, SimulatedDevice, target_layers};
use time::{Component, Nanos};

use super::CloseError;

/// Maximum time for outstanding requests and for the last flush at close.
const CLOSE_TIMEOUT: Nanos = Nanos::from_millis(60_000);

/// A queue, and the number of its outstanding requests.
type ReturnedQueue = (Box<dyn CoreQueue>, u64);

/// Queues that have been returned.
#[derive(Debug)]
pub(super) struct TargetQueues {
    returned: Mutex<Vec<ReturnedQueue>>,
}

/// A queue of a target.
#[derive(Debug)]
pub(super) struct TargetQueue {
    /// The queue's device; `None` after it was dropped.
    device: Option<Box<dyn CoreQueue>>,
    limits: Limits,
    memory: AddressSpace,
    outstanding: u64,
    queues: Arc<TargetQueues>,
}

impl TargetQueues {
    /// Wraps the queues of a target as devices; returns them and the place to which they return.
    pub(super) fn from_devices(
        devices: Vec<Box<dyn CoreQueue>>,
    ) -> (Arc<TargetQueues>, Vec<Box<dyn BlockDevice + Send>>) {
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
        live: &mut [DriveThreadState],
        clock: RealClock,
    ) -> Result<(), CloseError> {
        let drive = live.first().map(|live| live.drive.name().to_owned()).unwrap_or_default();
        let mut back =
            std::mem::take(&mut *self.returned.lock().unwrap_or_else(PoisonError::into_inner));
        let until = clock.now() + CLOSE_TIMEOUT;
        let mut last = None;
        let mut settle = |back: &mut Vec<ReturnedQueue>, live: &mut [DriveThreadState]| {
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
                live.iter_mut().for_each(|live| {
                    live.poll(now);
                });
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
        if live.iter().any(|live| live.drive.stores_data()) {
            back.iter_mut().for_each(|(device, _)| target_layers::begin_checkpoint(device));
            live.iter_mut().for_each(|live| live.drive.set_zero_latency(true));
            run_checkpoints(&mut back, live, clock.now());
            live.iter_mut().for_each(|live| live.drive.set_zero_latency(false));
        }
        Ok(())
    }
}

/// Polls until no checkpoint is in progress or nothing can make progress. Earlier operations
/// complete at their due times: the time advances to them without waiting.
fn run_checkpoints(ends: &mut [ReturnedQueue], drives: &mut [DriveThreadState], mut now: Nanos) {
    while ends.iter_mut().any(|(device, _)| target_layers::is_checkpointing(device)) {
        let mut moved = false;
        for (device, _) in ends.iter_mut() {
            moved |= device.poll(now);
        }
        for live in &mut *drives {
            moved |= live.drive.poll(now);
        }
        if moved {
            continue;
        }
        match drives.iter().map(|live| live.drive.deadline()).min().unwrap_or(Nanos::MAX) {
            due if due > now && due < Nanos::MAX => now = due,
            _ => return,
        }
    }
}

impl Drop for TargetQueue {
    fn drop(&mut self) {
        if let Some(device) = self.device.take() {
            let mut back = self.queues.returned.lock().unwrap_or_else(PoisonError::into_inner);
            back.push((device, self.outstanding));
        }
    }
}

impl BlockDevice for TargetQueue {
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

    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any)) {
        if let Some(device) = &mut self.device {
            device.visit_layers(visit);
        }
    }
}

impl Component for TargetQueue {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        self.device.as_mut().is_some_and(|device| device.poll(now))
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.device.as_ref().map_or(Nanos::MAX, Component::deadline)
    }
}
