//! [`Ends`]: what each of several cores has of one device, as one device.
//!
//! Whoever submits is dealt to a core: job `i` to core `i` modulo the cores, by the part of the tag
//! that names it ([`workload::job_index_of_tag`]). In virtual time all cores are here, and take turns in
//! their order until none moves, so that how often somebody looks changes no result.

use block::{BlockDevice, Completion, Limits};
use clock::{Component, Nanos, Waker};
use ring::AddressSpace;

/// At least one end.
#[derive(Debug)]
pub(super) struct PerCoreDevices<D> {
    devices: Box<[D]>,
    /// A completion that the last poll found, if it has not been reaped.
    pending_completion: Option<Completion>,
    /// Which core is polled first: whoever finds completions is the first to use the tags that they
    /// free, so all take turns at it.
    first_polled: usize,
    /// When that last changed.
    rotated_at: Nanos,
    /// Of every core the same.
    limits: Limits,
}

impl<D: BlockDevice> PerCoreDevices<D> {
    /// `None` if there is none.
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

    /// Each core's, in order.
    pub(super) fn all(&self) -> &[D] {
        &self.devices
    }

    /// The same, to change them.
    pub(super) fn all_mut(&mut self) -> &mut [D] {
        &mut self.devices
    }

    /// The same, for cores of their own. Nothing may be outstanding.
    pub(super) fn into_all(self) -> Vec<D> {
        self.devices.into()
    }

    /// That of the core which a job is dealt to.
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
    /// Polls every core until none moves: a completion that one has found may be another's, and so
    /// may the tag that it frees, or what it has sent.
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
        // Once per instant at which something happens.
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

    /// A completion that nobody has reaped is due at once: a layer answers some requests itself,
    /// and then no drive calls for attention.
    #[inline]
    fn deadline(&self) -> Nanos {
        if self.pending_completion.is_some() {
            return Nanos::ZERO;
        }
        self.devices.iter().map(Component::deadline).min().unwrap_or(Nanos::MAX)
    }
}
