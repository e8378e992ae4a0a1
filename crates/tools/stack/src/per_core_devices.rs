//! [`PerCoreDevices`]: the queues of several cores as one device.
//!
//! Job `i` submits on core `i` modulo the number of cores; its index is in the tag
//! ([`workload::job_index_of_tag`]). In virtual time all cores are polled here, in order, until
//! none makes progress. Thus the number of polls does not influence results.

use block::{BlockDevice, Completion, Limits};
use event::Waker;
use mem::AddressSpace;
use time::{Component, Nanos};

/// The queue of each core; at least one.
#[derive(Debug)]
pub(super) struct PerCoreDevices<D> {
    devices: Box<[D]>,
    /// A completion that the last poll found and that has not been reaped.
    pending_completion: Option<Completion>,
    /// Index of the core to poll first. The core that finds completions is the first to reuse their
    /// tags, so the index rotates.
    first_polled: usize,
    /// Time of the last rotation.
    rotated_at: Nanos,
    /// Limits, which are the same for every core.
    limits: Limits,
}

impl<D: BlockDevice> PerCoreDevices<D> {
    /// Returns the combined device, or `None` if `ends` is empty.
    pub(super) fn new(ends: Vec<D>) -> Option<PerCoreDevices<D>> {
        let limits = *ends.first()?.limits();
        Some(PerCoreDevices {
            devices: ends.into(),
            pending_completion: None,
            first_polled: 0,
            rotated_at: Nanos::ZERO,
            limits,
        })
    }

    /// Returns each core's queue, in order.
    pub(super) fn all(&self) -> &[D] {
        &self.devices
    }

    /// Returns mutable access to each core's queue, in order.
    pub(super) fn all_mut(&mut self) -> &mut [D] {
        &mut self.devices
    }

    /// Returns the queues, for use on separate cores. Nothing may be outstanding.
    pub(super) fn into_all(self) -> Vec<D> {
        self.devices.into()
    }

    /// Returns the queue of the core that a job is assigned to.
    #[inline]
    pub(super) fn for_job(&mut self, job: usize) -> &mut D {
        let core = job % self.devices.len();
        &mut self.devices[core]
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn memory(&self) -> &AddressSpace {
        self.devices[0].memory()
    }

    pub(super) fn set_waker(&mut self, waker: &Waker) {
        for end in &mut self.devices {
            end.set_waker(waker.clone());
        }
    }

    #[inline]
    fn reap_any(&mut self) -> Option<Completion> {
        self.devices.iter_mut().find_map(BlockDevice::reap)
    }

    #[inline]
    pub(super) fn reap(&mut self) -> Option<Completion> {
        match self.pending_completion.take() {
            Some(completion) => Some(completion),
            None => self.reap_any(),
        }
    }
}

impl<D: BlockDevice> Component for PerCoreDevices<D> {
    /// Polls every core until none makes progress. A completion found by one core may belong to
    /// another, and may free a tag for another or start its next request.
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        loop {
            let mut again = false;
            let (before, from) = self.devices.split_at_mut(self.first_polled);
            for end in from.iter_mut().chain(before) {
                again |= end.poll(now);
            }
            if !again {
                break;
            }
            moved = true;
        }
        // Rotate once per instant at which something happens.
        if moved && now > self.rotated_at {
            self.rotated_at = now;
            self.first_polled = (self.first_polled + 1) % self.devices.len();
        }
        if self.pending_completion.is_none() {
            self.pending_completion = self.reap_any();
            moved |= self.pending_completion.is_some();
        }
        moved
    }

    /// Returns `Nanos::ZERO` if a completion has not been reaped: a target completes some requests
    /// itself, without an event of the drive.
    #[inline]
    fn deadline(&self) -> Nanos {
        if self.pending_completion.is_some() {
            return Nanos::ZERO;
        }
        self.devices.iter().map(Component::deadline).min().unwrap_or(Nanos::MAX)
    }
}
