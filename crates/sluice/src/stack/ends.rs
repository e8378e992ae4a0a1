//! [`Ends`]: what each of several cores has of one device, as one device.
//!
//! Whoever submits is dealt to a core: job `i` to core `i` modulo the cores, by the part of the tag
//! that names it ([`workload::job_of_tag`]). In virtual time all cores are here, and take turns in
//! their order until none moves, so that how often somebody looks changes no result.

use block::{Completion, Device, Limits};
use clock::{Component, Nanos, Waker};
use ring::AddressSpace;

/// At least one end.
#[derive(Debug)]
pub(super) struct Ends<D> {
    ends: Box<[D]>,
    /// A completion that the last poll found, if it has not been reaped.
    found: Option<Completion>,
    /// Which core is polled first: whoever finds completions is the first to use the tags that they
    /// free, so all take turns at it.
    first: usize,
    /// When that last changed.
    turned: Nanos,
    /// Of every core the same.
    limits: Limits,
}

impl<D: Device> Ends<D> {
    /// `None` if there is none.
    pub(super) fn new(ends: Vec<D>) -> Option<Ends<D>> {
        let limits = *ends.first()?.limits();
        Some(Ends { ends: ends.into(), found: None, first: 0, turned: Nanos::ZERO, limits })
    }

    /// Each core's, in order.
    pub(super) fn all(&self) -> &[D] {
        &self.ends
    }

    /// The same, to change them.
    pub(super) fn all_mut(&mut self) -> &mut [D] {
        &mut self.ends
    }

    /// The same, for cores of their own. Nothing may be outstanding.
    pub(super) fn into_all(self) -> Vec<D> {
        self.ends.into()
    }

    /// That of the core which a job is dealt to.
    #[inline]
    pub(super) fn of_job(&mut self, job: usize) -> &mut D {
        let core = job % self.ends.len();
        &mut self.ends[core]
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn memory(&self) -> &AddressSpace {
        self.ends[0].memory()
    }

    pub(super) fn set_waker(&mut self, waker: &Waker) {
        for end in &mut self.ends {
            end.set_waker(waker.clone());
        }
    }

    #[inline]
    fn take(&mut self) -> Option<Completion> {
        self.ends.iter_mut().find_map(Device::reap)
    }

    #[inline]
    pub(super) fn reap(&mut self) -> Option<Completion> {
        match self.found.take() {
            Some(completion) => Some(completion),
            None => self.take(),
        }
    }
}

impl<D: Device> Component for Ends<D> {
    /// Polls every core until none moves: a completion that one has found may be another's, and so
    /// may the tag that it frees, or what it has sent.
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        loop {
            let mut again = false;
            let (before, from) = self.ends.split_at_mut(self.first);
            for end in from.iter_mut().chain(before) {
                again |= end.poll(now);
            }
            if !again {
                break;
            }
            moved = true;
        }
        // Once per instant at which something happens.
        if moved && now > self.turned {
            self.turned = now;
            self.first = (self.first + 1) % self.ends.len();
        }
        if self.found.is_none() {
            self.found = self.take();
            moved |= self.found.is_some();
        }
        moved
    }

    /// A completion that nobody has reaped is due at once: a layer answers some requests itself,
    /// and then no drive calls for attention.
    #[inline]
    fn deadline(&self) -> Nanos {
        if self.found.is_some() {
            return Nanos::ZERO;
        }
        self.ends.iter().map(Component::deadline).min().unwrap_or(Nanos::MAX)
    }
}
