//! [`Queue`]: one core's end of the block layer.
//!
//! Submit many, poll, reap many. With a staging queue and a hardware queue of its own nothing on the
//! way takes a lock, an atomic read-modify-write or a line that another core writes to; what is
//! shared is locked once per batch, never per request (SYSTOR'13 sections 3.2 and 5.2).
//!
//! ```text
//! submit → plug (merge, cut) → staging (merge, schedule) → dispatch (tag, bind, issue) → hardware
//! reap ← ready ← own completions, or those that another core steered here ← dispatch (fetch)
//! ```

use std::sync::Arc;
use std::{fmt, io};

use clock::{Component, Nanos, Parker, Waker};
use driver::HardwareQueue;
use ring::AddressSpace;

use crate::hctx::DispatchQueue;
use crate::ownership::OwnedOrLocked;
use crate::run_queue::{complete_or_steer, flush_plug, reap_hw, run_staging};
use crate::staging::Staging;
use crate::steer::Receiver;
use crate::submit_ctx::{PLUG_MAX, SubmitContext};
use crate::sync::{Lock, Platform};
use crate::trace::Tracer;
use crate::{
    BlockDevice, Completion, DispatchStats, Group, Limits, Native, QueueFull, Request,
    StagedRequest, StagingStats, Submitter, SubmitterStats,
};

/// A dispatch queue that several cores use.
pub(crate) type LockedDispatch<Q, P> = Arc<<P as Platform>::Lock<DispatchQueue<Q>>>;

/// How a core gets from its requests to the hardware.
#[expect(clippy::large_enum_variant, reason = "a box would cost the owned way a load")]
pub(crate) enum QueuePath<Q: HardwareQueue, P: Platform> {
    /// `sq`: one lock around everything.
    SingleQueue(Arc<P::Lock<SharedQueue<Q>>>),
    /// `mq`: staging and dispatch each owned, or shared by some.
    MultiQueue { staging: OwnedOrLocked<Staging, P>, dispatch: OwnedOrLocked<DispatchQueue<Q>, P> },
}

/// A staging queue and the one dispatch queue it leads to.
pub(crate) struct SharedQueue<Q> {
    pub(crate) staging: Staging,
    pub(crate) dispatch: DispatchQueue<Q>,
}

/// One core's end of the block layer: a block device, owned by whoever submits to it.
///
/// Dropping it gives up its requests: those that the hardware has are carried out, those that wait
/// in a staging queue shared with others are too, and nobody hears of them any more. Memory that the
/// device may touch stays registered.
pub struct Queue<Q: HardwareQueue, P: Platform = Native> {
    pub(crate) ctx: SubmitContext,
    pub(crate) path: QueuePath<Q, P>,
    /// Dispatch queues of other cores on which this one's requests may be, because they share its
    /// staging queue: it looks after them too, so that nobody depends on others' polling.
    pub(crate) sibling_dispatch: Box<[LockedDispatch<Q, P>]>,
    /// Completions that other cores found, by dispatch queue; empty if nobody else looks.
    pub(crate) receivers: Box<[Receiver]>,
    pub(crate) memory: AddressSpace,
    /// No scheduler, no merging, nothing shared: requests go straight to the hardware.
    pub(crate) direct: bool,
    pub(crate) staging_stats: Arc<StagingStats>,
    pub(crate) dispatch_stats: Arc<DispatchStats>,
    /// When the shared parts of the way next need a poll.
    pub(crate) due: Nanos,
    /// Whether requests were left waiting for room when this last turned the shared parts.
    pub(crate) waiting: bool,
    pub(crate) parker: Option<Parker>,
}

impl<Q: HardwareQueue, P: Platform> fmt::Debug for Queue<Q, P> {
    /// Without the parts that others may hold locked.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("local", &self.ctx).finish_non_exhaustive()
    }
}

/// What a look at the shared part of the way is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunReason {
    /// There are requests to bring down.
    Requests,
    /// Only to see whether something has ended.
    Poll,
}

/// What is done at the shared part of the way, besides bringing down what the core has plugged.
/// The completion strategies divide it among contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunScope {
    /// What has ended is fetched, and sent to those who wait for it.
    pub(crate) reap: bool,
    /// Staged requests are started, whoever submitted them.
    pub(crate) run: bool,
}

impl RunScope {
    pub(crate) const ALL: RunScope = RunScope { reap: true, run: true };
    pub(crate) const REAP: RunScope = RunScope { reap: true, run: false };
    pub(crate) const RUN: RunScope = RunScope { reap: false, run: true };
}

impl<Q: HardwareQueue, P: Platform> Queue<Q, P> {
    /// Which submitter this is.
    pub fn submitter(&self) -> Submitter {
        self.ctx.submitter
    }

    /// For which group later requests are (limits, weights).
    pub fn set_group(&mut self, group: Group) {
        self.ctx.group = group;
    }

    /// What this submitter has done. Anybody may read it while it goes on.
    pub fn stats(&self) -> &Arc<SubmitterStats> {
        &self.ctx.stats
    }

    /// What the staging queue behind this has done, for all who use it.
    pub fn staging_stats(&self) -> &Arc<StagingStats> {
        &self.staging_stats
    }

    /// What the dispatch queue behind this has done, for all who use it.
    pub fn dispatch_stats(&self) -> &Arc<DispatchStats> {
        &self.dispatch_stats
    }

    /// From now on what happens is written down, `limit` events until they are taken.
    pub fn trace(&mut self, limit: usize) {
        self.ctx.hooks.tracer = Some(Tracer::new(limit));
    }

    /// What was written down.
    pub fn tracer(&mut self) -> Option<&mut Tracer> {
        self.ctx.hooks.tracer.as_mut()
    }

    /// Requests submitted and not completed. On a hardware queue of one's own what has ended counts
    /// until it is reaped.
    pub fn outstanding(&self) -> u32 {
        self.ctx.outstanding()
    }

    /// Submits requests in order until the queue is full; returns how many it took.
    #[inline]
    pub fn submit_many(&mut self, now: Nanos, requests: &[Request]) -> usize {
        let full = requests.iter().position(|request| self.submit(now, *request).is_err());
        full.unwrap_or(requests.len())
    }

    /// Takes as many completions as there are, and as `into` has room for; returns how many.
    #[inline]
    pub fn reap_many(&mut self, into: &mut [Completion]) -> usize {
        let mut reaped = 0;
        for place in into {
            let Some(completion) = self.reap() else { break };
            *place = completion;
            reaped += 1;
        }
        reaped
    }

    /// Sleeps until there may be a completion, or for `timeout`. Returns at once if there is one.
    /// The caller polls afterwards.
    ///
    /// # Errors
    /// What making or sleeping on an eventfd returns.
    pub fn sleep(&mut self, now: Nanos, timeout: Nanos) -> io::Result<()> {
        self.parker()?;
        // Made above.
        let Some(parker) = self.parker.take() else { return Ok(()) };
        parker.prepare();
        let slept = if self.poll(now) || !self.ctx.ready.is_empty() {
            parker.unpark();
            Ok(())
        } else {
            // Nobody wakes this for what ends on another core's queue if that core has gone.
            let foreign = !self.sibling_dispatch.is_empty() && self.ctx.outstanding() > 0;
            let most = if foreign { SIBLING_POLL_PERIOD } else { Nanos::MAX };
            parker.park(&[], timeout.min(self.deadline().since(now)).min(most))
        };
        self.parker = Some(parker);
        slept
    }

    /// Makes the parker with which this sleeps, if there is none. Its eventfd is for a caller that
    /// sleeps in its own `epoll`: prepare it, poll once more, and sleep if nothing moved.
    ///
    /// # Errors
    /// What making an eventfd returns.
    pub fn parker(&mut self) -> io::Result<&Parker> {
        if self.parker.is_none() {
            let parker = Parker::new()?;
            self.set_waker(parker.waker());
            self.parker = Some(parker);
        }
        self.parker.as_ref().ok_or_else(|| io::Error::other("no parker"))
    }

    /// Uses both parts of the way. `None` if it is only to look and somebody else is there.
    #[inline]
    fn with_path<R>(
        &mut self,
        reason: RunReason,
        use_it: impl FnOnce(&mut SubmitContext, &mut Staging, &mut DispatchQueue<Q>) -> R,
    ) -> Option<R> {
        let local = &mut self.ctx;
        match &mut self.path {
            QueuePath::SingleQueue(lock) => {
                let mut path = match reason {
                    RunReason::Requests => lock.lock(),
                    RunReason::Poll => lock.try_lock()?,
                };
                let SharedQueue { staging, dispatch } = &mut *path;
                Some(use_it(local, staging, dispatch))
            }
            QueuePath::MultiQueue { staging, dispatch } => match reason {
                RunReason::Requests => {
                    Some(staging.with(|s| dispatch.with(|d| use_it(local, s, d))))
                }
                RunReason::Poll => {
                    staging.try_with(|s| dispatch.try_with(|d| use_it(local, s, d)))?
                }
            },
        }
    }

    /// From now on completions that others find for this submitter wake nobody: whoever finds them
    /// has them among its [`news`](Queue::notices) and sees to it.
    pub(crate) fn enable_notices(&mut self) {
        let submitter = self.ctx.submitter;
        self.with_path(RunReason::Requests, |_, _, shared| shared.enable_notices(submitter));
    }

    /// Submitters for whom this has found completions; whoever takes them out sees to them.
    pub(crate) fn notices(&mut self) -> &mut Vec<Submitter> {
        &mut self.ctx.notices
    }

    /// Does the shared part of the work in `scope`, after having waited for others.
    pub(crate) fn run_scope(&mut self, now: Nanos, scope: RunScope) -> bool {
        self.run_queue(now, RunReason::Requests, scope)
    }

    /// Does all of the shared part of the work unless somebody else is there.
    pub(crate) fn try_run(&mut self, now: Nanos) -> bool {
        self.run_queue(now, RunReason::Poll, RunScope::ALL)
    }

    /// Takes in what others found, and looks no further.
    pub(crate) fn receive_only(&mut self, now: Nanos) -> bool {
        self.ctx.now = now;
        self.receive(now)
    }

    /// Brings requests down and completions up.
    fn run_queue(&mut self, now: Nanos, reason: RunReason, scope: RunScope) -> bool {
        self.ctx.now = now;
        let turned = self.with_path(reason, |local, staging, shared| {
            P::read(staging);
            let mut moved = flush_plug::<Q, P>(local, staging, shared, now);
            moved |= shared.dispatch.service(now, &mut local.hooks);
            // What has ended on an owned queue stays there until it is reaped, unless its tags are
            // wanted.
            if scope.reap && (!local.owns_all || !staging.is_empty()) {
                moved |= reap_hw::<Q, P>(local, staging, shared, now);
            }
            if scope.run {
                moved |= run_staging::<Q, P>(local, staging, shared, now);
            }
            moved |= shared.dispatch.issue();
            // The hardware will not say that these have ended.
            if shared.dispatch.has_early_completions() {
                moved |= reap_hw::<Q, P>(local, staging, shared, now);
            }
            let waiting = shared.dispatch.record_load(!staging.is_empty());
            shared.wake();
            shared.drain_notices(&mut local.notices);
            (moved, due(staging, shared), waiting)
        });
        // Who is there may have looked before what there is to see came, and may have woken this
        // core to see it: it must look again before it sleeps.
        let Some((moved, due, waiting)) = turned else { return true };
        (self.due, self.waiting) = (due, waiting);
        moved
    }

    /// Looks after the dispatch queues of other cores that may have requests of this one, as far as
    /// nobody else is there.
    fn run_siblings(&mut self, now: Nanos) -> bool {
        let QueuePath::MultiQueue { staging, .. } = &mut self.path else { return false };
        let (local, foreign) = (&mut self.ctx, &self.sibling_dispatch);
        let (mut moved, mut due) = (false, Nanos::MAX);
        for lock in foreign {
            // Staging first, as everywhere.
            let looked = staging.try_with(|staging| {
                let mut shared = lock.try_lock()?;
                let shared = &mut *shared;
                let mut moved = shared.dispatch.service(now, &mut local.hooks);
                moved |= reap_hw::<Q, P>(local, staging, shared, now);
                shared.dispatch.start_requeued::<P>(now, &mut local.hooks);
                moved |= shared.dispatch.issue();
                shared.wake();
                Some((moved, shared.dispatch.deadline()))
            });
            match looked.flatten() {
                Some((looked, at)) => (moved, due) = (moved | looked, due.min(at)),
                None => moved = true,
            }
        }
        self.due = self.due.min(due);
        moved
    }

    /// Takes in completions that other cores found.
    #[inline]
    fn receive(&mut self, now: Nanos) -> bool {
        let (mut moved, mut flushes) = (false, false);
        for receiver in &mut self.receivers {
            while let Some(ended) = receiver.receive::<P>() {
                moved = true;
                if let Some(flush) = self.ctx.complete(now, &ended) {
                    self.ctx.plug.push(flush);
                    flushes = true;
                }
            }
        }
        if flushes {
            self.run_queue(now, RunReason::Requests, RunScope::ALL);
        }
        moved
    }

    /// Whether an owned way needs nothing but to issue what was started.
    #[inline(always)]
    fn is_quiescent(&self, now: Nanos) -> bool {
        let QueuePath::MultiQueue {
            staging: OwnedOrLocked::Owned(staging),
            dispatch: OwnedOrLocked::Owned(shared),
        } = &self.path
        else {
            return false;
        };
        staging.is_empty()
            && self.ctx.plug.is_empty()
            && shared.dispatch.is_quiescent()
            && !self.ctx.is_splitting()
            && now < self.due
    }

    #[inline(always)]
    fn issue(&mut self) -> bool {
        match &mut self.path {
            QueuePath::MultiQueue { dispatch: OwnedOrLocked::Owned(shared), .. } => {
                shared.dispatch.issue()
            }
            _ => false,
        }
    }

    /// Submits a request that is not plain.
    #[cold]
    fn submit_slow(&mut self, now: Nanos, request: &Request) -> Result<(), QueueFull> {
        if let Some(staged) = self.ctx.admit_slow(now, request)? {
            self.ctx.plug_slow(now, &staged);
            if self.ctx.plug.len() == PLUG_MAX {
                self.run_queue(now, RunReason::Requests, RunScope::ALL);
            }
        }
        Ok(())
    }

    /// The completion of the next request that has ended, straight from the hardware; only where
    /// nobody else looks.
    #[inline(always)]
    fn fetch_owned(&mut self) -> Option<Completion> {
        let now = self.ctx.now;
        let QueuePath::MultiQueue {
            staging: OwnedOrLocked::Owned(staging),
            dispatch: OwnedOrLocked::Owned(shared),
        } = &mut self.path
        else {
            return None;
        };
        while self.ctx.ready.is_empty() {
            let ended = shared.dispatch.fetch::<P>(now, &mut self.ctx.hooks, |_, _| ())?;
            if let Some(completion) = self.ctx.complete_single(now, &ended) {
                return Some(completion);
            }
            complete_or_steer::<Q, P>(&mut self.ctx, staging, shared, now, &ended);
        }
        self.ctx.ready.pop_front()
    }
}

/// When something is to be done for a staging queue and its dispatch queue. While the hardware queue has no
/// tag left, the scheduler's deadline does not count: a request whose time has come goes with the next
/// completion, and a runner of virtual time that was given a deadline in the past would never reach it.
fn due<Q: HardwareQueue>(staging: &Staging, shared: &DispatchQueue<Q>) -> Nanos {
    let staged = if shared.dispatch.can_start() { staging.deadline() } else { Nanos::MAX };
    staged.min(shared.dispatch.deadline())
}

/// Sleep of a core whose requests may be on others' queues, at most.
const SIBLING_POLL_PERIOD: Nanos = Nanos::from_millis(1);

impl<Q: HardwareQueue, P: Platform> Component for Queue<Q, P> {
    /// Brings everything submitted to the hardware, as far as it has room, and finds what has
    /// completed.
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = std::mem::take(&mut self.ctx.completed_early);
        self.ctx.now = now;
        if !self.ctx.owns_all {
            moved |= self.receive(now);
            let idle = self.ctx.plug.is_empty() && !self.ctx.is_splitting();
            let reason = if idle { RunReason::Poll } else { RunReason::Requests };
            moved |= self.run_queue(now, reason, RunScope::ALL);
            if !self.sibling_dispatch.is_empty() && self.ctx.outstanding() > 0 {
                moved |= self.run_siblings(now);
                moved |= self.receive(now);
            }
            return moved;
        }
        moved |= if self.is_quiescent(now) {
            self.issue()
        } else {
            self.run_queue(now, RunReason::Requests, RunScope::ALL)
        };
        if self.ctx.ready.is_empty()
            && let Some(completion) = self.fetch_owned()
        {
            self.ctx.ready.push_front(completion);
            moved = true;
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        match &self.path {
            QueuePath::MultiQueue {
                staging: OwnedOrLocked::Owned(staging),
                dispatch: OwnedOrLocked::Owned(shared),
            } => due(staging, shared),
            // As it was when the lock was last held.
            _ => self.due,
        }
    }
}

impl<Q: HardwareQueue, P: Platform> BlockDevice for Queue<Q, P> {
    fn limits(&self) -> &Limits {
        &self.ctx.limits
    }

    #[inline(always)]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        let local = &mut self.ctx;
        local.now = now;
        if !local.is_plain(&request) {
            return self.submit_slow(now, &request);
        }
        let id = local.admit(now, &request)?;
        if self.direct
            && !local.hooks.is_enabled()
            && let QueuePath::MultiQueue {
                staging: OwnedOrLocked::Owned(staging),
                dispatch: OwnedOrLocked::Owned(shared),
            } = &mut self.path
            && staging.can_bypass_scheduler()
        {
            let (submitter, group) = (local.submitter, local.group);
            let write = |slot: &mut StagedRequest| {
                let request = Request { tag: id.into(), ..request };
                *slot =
                    StagedRequest { request, since: now, submitter, group, merged: 1, requeues: 0 };
            };
            let notes = &mut local.hooks;
            if shared.dispatch.start_in_place::<P>(now, submitter, notes, write) {
                staging.bypassed();
                // With something under way already, it is due when that is, and looks again then.
                if self.due == Nanos::MAX {
                    self.due = shared.dispatch.deadline();
                }
                return Ok(());
            }
        }
        local.plug(now, id, &request);
        if local.plug.len() == PLUG_MAX {
            self.run_queue(now, RunReason::Requests, RunScope::ALL);
        }
        Ok(())
    }

    #[inline(always)]
    fn reap(&mut self) -> Option<Completion> {
        if !self.ctx.ready.is_empty() {
            return self.ctx.ready.pop_front();
        }
        if self.ctx.owns_all {
            return self.fetch_owned();
        }
        if self.receive(self.ctx.now) { self.ctx.ready.pop_front() } else { None }
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    /// Whom completions wake: also those that another core finds.
    fn set_waker(&mut self, waker: Waker) {
        for receiver in &self.receivers {
            receiver.set_waker(waker.clone());
        }
        let submitter = self.ctx.submitter;
        self.with_path(RunReason::Requests, |_, _, shared| shared.set_waker(submitter, waker));
    }
}
