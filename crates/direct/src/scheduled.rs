//! [`Scheduled`]: a scheduler in front of a device (NVMeDirect section 3.1).
//!
//! The schedulers are the block layer's ([`block::sched`]): in order of arrival, deadlines, latency
//! targets, shares, classes, and rates before any of them. They have something to choose from only
//! while requests wait here and not in the device: so many go down at a time, and no more.

use block::sched::{SchedError, Scheduler, Scheduling};
use block::{
    BlockDevice, Completion, Group, Limits, QueueFull, Request, StagedRequest, Submitter,
    WaitResult,
};
use clock::{Component, Nanos, Waker};
use ring::AddressSpace;

/// How requests wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledConfig {
    /// The scheduler, and rates.
    pub scheduling: Scheduling,
    /// Requests that the device has at a time.
    pub device_depth: u16,
    /// Requests outstanding in all.
    pub depth: u32,
}

impl Default for ScheduledConfig {
    fn default() -> ScheduledConfig {
        ScheduledConfig { scheduling: Scheduling::default(), device_depth: 32, depth: 4096 }
    }
}

/// A device whose requests belong to groups that are treated differently.
pub trait GroupedSubmit: BlockDevice {
    /// As [`submit`](Device::submit), for a group.
    ///
    /// # Errors
    /// [`Busy`].
    fn submit_for(&mut self, now: Nanos, group: Group, request: Request) -> Result<(), QueueFull>;
}

#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    staged: StagedRequest,
    /// The caller's tag.
    tag: u64,
    /// When the device got it.
    sent: Nanos,
}

/// A scheduler in front of a device.
#[derive(Debug)]
pub struct Scheduled<D> {
    device: D,
    scheduler: Box<dyn Scheduler>,
    /// Under the tag that the device has.
    requests: Vec<PendingRequest>,
    free: Vec<u32>,
    limits: Limits,
    device_depth: u32,
    in_device: u32,
    /// When the last poll was: completions are found by it.
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
            requests: Vec::new(),
            free: Vec::new(),
            limits,
            device_depth: deep,
            in_device: 0,
            now: Nanos::ZERO,
        })
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        self.scheduler.len()
    }

    /// Requests that the device has.
    pub fn in_device(&self) -> u32 {
        self.in_device
    }

    /// What it is in front of.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// When something that waits may go down.
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
            let waiting = &mut self.requests[staged.request.tag as usize];
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
        let outstanding = self.requests.len() - self.free.len();
        if outstanding >= self.limits.queue_depth as usize {
            return Err(QueueFull);
        }
        let slot = self.free.pop().unwrap_or(self.requests.len() as u32);
        let staged = StagedRequest {
            request: Request { tag: slot.into(), ..request },
            since: now,
            submitter: Submitter(0),
            group,
            merged: 1,
            requeues: 0,
        };
        let waiting = PendingRequest { staged, tag: request.tag, sent: now };
        match self.requests.get_mut(slot as usize) {
            Some(place) => *place = waiting,
            None => self.requests.push(waiting),
        }
        self.scheduler.insert(now, staged);
        Ok(())
    }
}

impl<D: BlockDevice> BlockDevice for Scheduled<D> {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        self.submit_for(now, Group(0), request)
    }

    fn reap(&mut self) -> Option<Completion> {
        let completion = self.device.reap()?;
        // The device returns what it was given.
        let PendingRequest { staged, tag, sent } = self.requests[completion.tag as usize];
        self.scheduler.completed(self.now, &staged, self.now.since(sent));
        self.in_device -= 1;
        self.free.push(completion.tag as u32);
        Some(Completion { tag, ..completion })
    }

    fn memory(&self) -> &AddressSpace {
        self.device.memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        self.device.set_waker(waker);
    }

    fn enable_sharing(&mut self) {
        self.device.enable_sharing();
    }

    fn can_wake(&self) -> bool {
        self.device.can_wake()
    }

    fn can_wait(&self) -> bool {
        self.device.can_wait()
    }

    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        self.now = now;
        self.send(now);
        if self.in_device == 0 {
            // There is nothing below to sleep for.
            return WaitResult::Unsupported;
        }
        let until = self.scheduler_deadline().min(until);
        self.device.wait_for_event(now, until)
    }
}

impl<D: BlockDevice> Component for Scheduled<D> {
    fn poll(&mut self, now: Nanos) -> bool {
        self.now = now;
        // What a completion made room for goes with the next poll, which follows its reaping.
        self.send(now) | self.device.poll(now)
    }

    fn deadline(&self) -> Nanos {
        self.scheduler_deadline().min(self.device.deadline())
    }
}
