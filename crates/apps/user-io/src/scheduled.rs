//! [`Scheduled`]: a scheduler in front of a device ([NVMeDirect16 §3.1]).
//!
//! The schedulers are those of the block layer ([`block::sched`]): arrival order, deadlines,
//! latency targets, shares, classes, each optionally behind rate limits. A scheduler can choose
//! only among requests that wait here, so the number of requests in the device is limited.

use block::sched::{SchedError, Scheduler, Scheduling};
use block::{
    BlockDevice, Completion, Group, Limits, QueueFull, Request, StagedRequest, Submitter,
    WaitResult,
};
use collections::Slab;
use time::{Component, Nanos};

/// Configuration of a scheduled device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledConfig {
    /// The scheduler and the rate limits.
    pub scheduling: Scheduling,
    /// Maximum number of requests in the device.
    pub device_depth: u16,
    /// Maximum number of outstanding requests.
    pub depth: u32,
}

impl Default for ScheduledConfig {
    fn default() -> ScheduledConfig {
        ScheduledConfig { scheduling: Scheduling::default(), device_depth: 32, depth: 4096 }
    }
}

/// A device that distinguishes groups of requests.
pub trait GroupedSubmit: BlockDevice {
    /// Submits a request of a group, as [`submit`](BlockDevice::submit) does.
    ///
    /// # Errors
    /// [`QueueFull`].
    fn submit_for(&mut self, now: Nanos, group: Group, request: Request) -> Result<(), QueueFull>;
}

impl<D: GroupedSubmit + ?Sized> GroupedSubmit for Box<D> {
    fn submit_for(&mut self, now: Nanos, group: Group, request: Request) -> Result<(), QueueFull> {
        (**self).submit_for(now, group, request)
    }
}

#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    staged: StagedRequest,
    /// The caller's tag.
    tag: u64,
    /// Time at which the device accepted the request.
    sent: Nanos,
}

/// A scheduler in front of a device.
#[derive(Debug)]
pub struct Scheduled<D> {
    device: D,
    scheduler: Box<dyn Scheduler>,
    /// Indexed by the tag given to the device.
    requests: Slab<PendingRequest>,
    limits: Limits,
    device_depth: u32,
    in_device: u32,
    /// Time of the last poll, at which completions are found.
    now: Nanos,
}

impl<D: BlockDevice> Scheduled<D> {
    /// Puts a scheduler in front of `device`.
    ///
    /// # Errors
    /// [`SchedError`].
    pub fn new(device: D, config: &ScheduledConfig) -> Result<Scheduled<D>, SchedError> {
        let deep = u32::from(config.device_depth).min(device.limits().queue_depth);
        let scheduler = config.scheduling.build(deep as u16)?;
        let limits = Limits { queue_depth: config.depth.max(1), ..*device.limits() };
        Ok(Scheduled {
            device,
            scheduler,
            requests: Slab::new(),
            limits,
            device_depth: deep,
            in_device: 0,
            now: Nanos::ZERO,
        })
    }

    /// Returns the number of requests that wait.
    pub fn queued(&self) -> usize {
        self.scheduler.len()
    }

    /// Returns the number of requests in the device.
    pub fn in_device(&self) -> u32 {
        self.in_device
    }

    /// Returns the device below.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Returns when the next waiting request may be dispatched.
    fn scheduler_deadline(&self) -> Nanos {
        match self.in_device < self.device_depth {
            true => self.scheduler.deadline(),
            false => Nanos::MAX,
        }
    }

    fn send(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        while self.in_device < self.device_depth {
            let Some(staged) = self.scheduler.dispatch(now) else { break };
            let waiting = &mut self.requests[staged.request.tag as u32];
            (waiting.staged, waiting.sent) = (staged, now);
            if self.device.submit(now, staged.request).is_err() {
                self.scheduler.requeue(now, staged);
                break;
            }
            self.in_device += 1;
            moved = true;
        }
        moved
    }
}

impl<D: BlockDevice> GroupedSubmit for Scheduled<D> {
    fn submit_for(&mut self, now: Nanos, group: Group, request: Request) -> Result<(), QueueFull> {
        let outstanding = self.requests.in_use();
        if outstanding >= self.limits.queue_depth as usize {
            return Err(QueueFull);
        }
        let slot = self.requests.next_free().unwrap_or(self.requests.len() as u32);
        let staged = StagedRequest {
            request: Request { tag: slot.into(), ..request },
            since: now,
            submitter: Submitter(0),
            group,
            merged: 1,
            requeues: 0,
        };
        let waiting = PendingRequest { staged, tag: request.tag, sent: now };
        self.requests.insert(waiting);
        self.scheduler.insert(now, staged);
        Ok(())
    }
}

impl<D: BlockDevice> BlockDevice for Scheduled<D> {
    block::delegate_block_device!(self => self.device; memory, set_waker, can_wake, enable_sharing,
        can_wait, visit_layers);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        self.submit_for(now, Group(0), request)
    }

    fn reap(&mut self) -> Option<Completion> {
        let completion = self.device.reap()?;
        // The device returns the tag that it was given.
        let PendingRequest { staged, tag, sent } = self.requests[completion.tag as u32];
        self.scheduler.completed(self.now, &staged, self.now.since(sent));
        self.in_device -= 1;
        self.requests.release(completion.tag as u32);
        Some(Completion { tag, ..completion })
    }

    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        self.now = now;
        self.send(now);
        if self.in_device == 0 {
            // Nothing is in flight below, so there is nothing to sleep for.
            return WaitResult::Unsupported;
        }
        let until = self.scheduler_deadline().min(until);
        self.device.wait_for_event(now, until)
    }
}

impl<D: BlockDevice> Component for Scheduled<D> {
    fn poll(&mut self, now: Nanos) -> bool {
        self.now = now;
        // A slot freed by a completion is used at the next poll, which follows its reaping.
        self.send(now) | self.device.poll(now)
    }

    fn deadline(&self) -> Nanos {
        self.scheduler_deadline().min(self.device.deadline())
    }
}
