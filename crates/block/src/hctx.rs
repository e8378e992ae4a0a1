//! [`Shared`]: a dispatch queue, and the ways from it to the cores that use it.

use clock::Waker;
use driver::HardwareQueue;

use crate::Submitter;
use crate::dispatch::{CompletedRequest, Dispatch};
use crate::steer::Sender;
use crate::sync::Platform;

/// The way to one core.
#[derive(Debug)]
struct CoreEndpoint {
    sender: Option<Sender>,
    /// It must be woken: something was sent to it, or a tag has become free that it waits for.
    wake: bool,
    /// It has requests that found no tag.
    starving: bool,
    /// Who finds its completions tells it, not its waker.
    uses_notices: bool,
    /// It sleeps on this queue. Others may only share a staging queue with one who does.
    sleeps_here: bool,
}

/// A dispatch queue and the cores that use it; a core that owns it has no way to go.
#[derive(Debug)]
pub(crate) struct DispatchQueue<Q> {
    pub(crate) dispatch: Dispatch<Q>,
    /// By submitter.
    cores: Box<[CoreEndpoint]>,
    /// Those whose `wake` is set, each once: there is room for all.
    to_wake: Vec<Submitter>,
    any_starving: bool,
    /// Cores that report and have got something.
    notices: Vec<Submitter>,
    /// All share one staging queue: whoever frees a tag starts everybody's requests.
    one_staging: bool,
    /// Whose waker the hardware has.
    waker_owner: Option<Submitter>,
}

impl<Q: HardwareQueue> DispatchQueue<Q> {
    /// `senders` by submitter; none where a submitter does not use the queue, and empty if there is
    /// one user only.
    pub(crate) fn new(dispatch: Dispatch<Q>, senders: Vec<Option<Sender>>) -> DispatchQueue<Q> {
        let cores: Box<[CoreEndpoint]> = senders
            .into_iter()
            .map(|sender| CoreEndpoint {
                sender,
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

    /// The same, for cores that share one staging queue under the same lock.
    pub(crate) fn with_one_staging(self) -> DispatchQueue<Q> {
        DispatchQueue { one_staging: true, ..self }
    }

    /// What is sent to a submitter becomes news of who sends it.
    pub(crate) fn enable_notices(&mut self, submitter: Submitter) {
        if let Some(core) = self.cores.get_mut(usize::from(submitter.0)) {
            core.uses_notices = true;
        }
    }

    /// Hands over who has got something, of those who report.
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

    /// Sends the end of a request to its submitter.
    pub(crate) fn steer<P: Platform>(&mut self, ended: &CompletedRequest) {
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

    /// Tags have become free: whoever found none is to look again.
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

    /// A submitter's requests have found no tag.
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

    /// Wakes the cores that have something to do.
    #[inline]
    pub(crate) fn wake(&mut self) {
        for submitter in self.to_wake.drain(..) {
            if let Some(core) = self.cores.get_mut(usize::from(submitter.0)) {
                core.wake = false;
                if let Some(waker) = core.sender.as_ref().and_then(Sender::waker) {
                    waker.wake();
                }
            }
        }
    }

    /// Whom the hardware wakes: the first submitter who asks. It finds everybody's completions, and
    /// wakes their submitters.
    pub(crate) fn set_waker(&mut self, submitter: Submitter, waker: Waker) {
        if let Some(core) = self.cores.get_mut(usize::from(submitter.0)) {
            core.sleeps_here = true;
        }
        if self.waker_owner.is_none_or(|s| s == submitter) {
            self.dispatch.queue_mut().set_waker(waker);
            self.waker_owner = Some(submitter);
        }
    }

    /// A submitter is gone: if the hardware wakes it, it wakes another one from now on.
    pub(crate) fn remove_submitter(&mut self, submitter: Submitter) {
        self.dispatch.remove_submitter(submitter);
        if let Some(core) = self.cores.get_mut(usize::from(submitter.0)) {
            (core.starving, core.sleeps_here) = (false, false);
        }
        if self.waker_owner == Some(submitter) {
            self.waker_owner = None;
            let mut others = self.cores.iter().enumerate().filter(|(_, core)| core.sleeps_here);
            let next =
                others.find_map(|(i, core)| Some((i, core.sender.as_ref()?.waker()?.clone())));
            if let Some((next, waker)) = next {
                self.set_waker(Submitter(next as u16), waker.clone());
                // It may sleep on completions that have woken the one who left.
                waker.wake();
            }
        }
    }
}
