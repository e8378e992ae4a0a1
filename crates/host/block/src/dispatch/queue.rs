//! [`DispatchQueue`]: a dispatch queue and its completion mailboxes to the cores that use it.

use driver::HardwareQueue;
use event::Waker;

use crate::Submitter;
use crate::dispatch::{Dispatch, ReapedRequest};
use crate::steer::Sender;
use crate::sync::Platform;

/// The endpoint of one core.
#[derive(Debug)]
struct CoreEndpoint {
    sender: Option<Sender>,
    /// The waker of the core.
    waker: Option<Waker>,
    /// Whether the core must be woken: it was sent a completion, or a tag that it waits for has
    /// become free.
    wake: bool,
    /// Whether the core has requests that found no tag.
    starving: bool,
    /// Whether the core is notified through [`drain_notices`](DispatchQueue::drain_notices) instead
    /// of its waker.
    uses_notices: bool,
    /// Whether the core sleeps on this queue. Other cores may only share a staging queue with one
    /// that does.
    sleeps_here: bool,
}

/// A dispatch queue and the cores that use it. A queue with one owner has no mailboxes.
#[derive(Debug)]
pub(crate) struct DispatchQueue<Q> {
    pub(crate) dispatch: Dispatch<Q>,
    /// Endpoints by submitter.
    cores: Box<[CoreEndpoint]>,
    /// Submitters whose `wake` is set, each once; the capacity suffices for all.
    to_wake: Vec<Submitter>,
    any_starving: bool,
    /// Submitters that use notices and have been sent a completion.
    notices: Vec<Submitter>,
    /// Whether all users share one staging queue, so that the core that frees a tag starts every
    /// user's requests.
    one_staging: bool,
    /// The submitter whose waker the hardware has.
    waker_owner: Option<Submitter>,
}

impl<Q: HardwareQueue> DispatchQueue<Q> {
    /// Creates a queue. `senders` is indexed by submitter, with `None` for submitters that do not
    /// use the queue; it is empty if there is only one user.
    pub(crate) fn new(dispatch: Dispatch<Q>, senders: Vec<Option<Sender>>) -> DispatchQueue<Q> {
        let cores: Box<[CoreEndpoint]> = senders
            .into_iter()
            .map(|sender| CoreEndpoint {
                sender,
                waker: None,
                wake: false,
                starving: false,
                uses_notices: false,
                sleeps_here: false,
            })
            .collect();
        let to_wake = Vec::with_capacity(cores.len());
        let notices = Vec::new();
        DispatchQueue {
            dispatch,
            cores,
            to_wake,
            any_starving: false,
            notices,
            one_staging: false,
            waker_owner: None,
        }
    }

    /// Returns the queue, marked as shared by cores that use one staging queue under the same lock.
    pub(crate) fn with_one_staging(self) -> DispatchQueue<Q> {
        DispatchQueue { one_staging: true, ..self }
    }

    /// Makes completions sent to `submitter` notices of the sender instead of wake-ups.
    pub(crate) fn enable_notices(&mut self, submitter: Submitter) {
        if let Some(core) = self.cores.get_mut(usize::from(submitter.0)) {
            core.uses_notices = true;
        }
    }

    /// Moves the submitters that use notices and have been sent a completion into `into`.
    #[inline]
    pub(crate) fn drain_notices(&mut self, into: &mut Vec<Submitter>) {
        if self.notices.is_empty() {
            return;
        }
        for submitter in &self.notices {
            if let Some(core) = self.cores.get_mut(usize::from(submitter.0)) {
                core.wake = false;
            }
        }
        into.append(&mut self.notices);
    }

    /// Sends the completion of a request to its submitter.
    pub(crate) fn steer<P: Platform>(&mut self, ended: &ReapedRequest) {
        let stats = self.dispatch.stats_ref();
        let core = self.cores.get_mut(usize::from(ended.submitter.0));
        match core.and_then(|core| Some((core.sender.as_mut()?, &mut core.wake, core.uses_notices)))
        {
            Some((sender, wake, reports)) if !sender.is_closed() => {
                P::wrote(wake);
                P::wrote(&self.to_wake);
                sender.send::<P>(ended);
                stats.steered.add(1);
                if !std::mem::replace(wake, true) {
                    let told = if reports { &mut self.notices } else { &mut self.to_wake };
                    told.push(ended.submitter);
                    P::wrote(told.as_slice());
                }
            }
            _ => stats.orphans.add(1),
        }
        self.wake_starved::<P>();
    }

    /// Marks the cores that found no tag to be woken, because tags have become free.
    #[inline]
    pub(crate) fn wake_starved<P: Platform>(&mut self) {
        if !self.any_starving {
            return;
        }
        self.any_starving = false;
        for (index, core) in self.cores.iter_mut().enumerate() {
            P::wrote(&core.wake);
            if std::mem::take(&mut core.starving) && !std::mem::replace(&mut core.wake, true) {
                self.to_wake.push(Submitter(index as u16));
            }
        }
    }

    /// Records that a submitter's requests have found no tag.
    #[inline]
    pub(crate) fn mark_starved<P: Platform>(&mut self, submitter: Submitter) {
        if self.one_staging {
            return;
        }
        if let Some(core) = self.cores.get_mut(usize::from(submitter.0)) {
            P::wrote(&core.wake);
            core.starving = true;
            self.any_starving = true;
        }
    }

    /// Wakes the marked cores.
    #[inline]
    pub(crate) fn wake(&mut self) {
        for submitter in self.to_wake.drain(..) {
            if let Some(core) = self.cores.get_mut(usize::from(submitter.0)) {
                core.wake = false;
                if let Some(waker) = &core.waker {
                    waker.wake();
                }
            }
        }
    }

    /// Sets the waker of a submitter that may find completions of others here.
    pub(crate) fn set_steered_waker(&mut self, submitter: Submitter, waker: Waker) {
        if let Some(core) = self.cores.get_mut(usize::from(submitter.0)) {
            core.waker = Some(waker);
        }
    }

    /// Sets the waker of a submitter. The hardware gets the waker of the first submitter that calls
    /// this; that one finds all completions and wakes their submitters.
    pub(crate) fn set_waker(&mut self, submitter: Submitter, waker: Waker) {
        if let Some(core) = self.cores.get_mut(usize::from(submitter.0)) {
            core.waker = Some(waker.clone());
            core.sleeps_here = true;
        }
        if self.waker_owner.is_none_or(|s| s == submitter) {
            self.dispatch.queue_mut().set_waker(waker);
            self.waker_owner = Some(submitter);
        }
    }

    /// Removes a submitter. If the hardware has its waker, the hardware gets the waker of another
    /// user.
    pub(crate) fn remove_submitter(&mut self, submitter: Submitter) {
        self.dispatch.remove_submitter(submitter);
        if let Some(core) = self.cores.get_mut(usize::from(submitter.0)) {
            (core.starving, core.sleeps_here, core.waker) = (false, false, None);
        }
        if self.waker_owner == Some(submitter) {
            self.waker_owner = None;
            let mut others = self.cores.iter().enumerate().filter(|(_, core)| core.sleeps_here);
            let next = others.find_map(|(i, core)| Some((i, core.waker.clone()?)));
            if let Some((next, waker)) = next {
                self.set_waker(Submitter(next as u16), waker.clone());
                // The new owner may sleep although there are completions, which have woken the
                // removed submitter.
                waker.wake();
            }
        }
    }
}
