//! [`Queue`]: one core's endpoint of the block layer.
//!
//! The submitter submits in batches, polls, and reaps in batches.
//!
//! Concurrency: a core with its own staging queue and hardware queue takes no lock on the path of a
//! request. It executes no atomic read-modify-write and touches no cache line that another core
//! writes. A shared queue is locked once per batch, never per request ([SYSTOR13 §3.2], [SYSTOR13
//! §5.2]).
//!
//! ```text
//! submit → plug (merge, split) → staging (merge, schedule) → dispatch (tag, bind, issue) → hardware
//! reap ← ready ← own completions, or those that another core steered here ← dispatch (fetch)
//! ```

use std::any::Any;
use std::sync::Arc;
use std::{fmt, io};

use driver::HardwareQueue;
use event::{Parker, Waker};
use mem::AddressSpace;
use time::{Component, Nanos};

use crate::dispatch::queue::DispatchQueue;
use crate::notify::CompletionHandler;
use crate::ownership::OwnedOrLocked;
use crate::run_queue::{
    complete_or_steer, flush_plug, leave_slot, plug_in_slot, reap_hw, run_staging, start_plugged,
};
use crate::staging::Staging;
use crate::steer::Receiver;
use crate::submitter::context::SubmitContext;
use crate::sync::{Lock, Platform, Step};
use crate::trace::Tracer;
use crate::{
    BlockDevice, Completion, DispatchStats, Group, Limits, Native, QueueFull, Request,
    StagedRequest, StagingStats, Submitter, SubmitterStats,
};

/// A dispatch queue that several cores use.
pub(crate) type LockedDispatch<Q, P> = Arc<<P as Platform>::Lock<DispatchQueue<Q>>>;

/// The path of a core's requests to the hardware.
#[expect(clippy::large_enum_variant, reason = "a box would cost the owned path a load")]
pub(crate) enum QueuePath<Q: HardwareQueue, P: Platform> {
    /// `sq`: one lock around both queues.
    SingleQueue(Arc<P::Lock<QueueStages<Q>>>),
    /// `mq`: the staging queue and the dispatch queue are each owned by the core or shared.
    MultiQueue { staging: OwnedOrLocked<Staging, P>, dispatch: OwnedOrLocked<DispatchQueue<Q>, P> },
}

/// A staging queue and the dispatch queue that it feeds.
pub(crate) struct QueueStages<Q> {
    pub(crate) staging: Staging,
    pub(crate) dispatch: DispatchQueue<Q>,
}

/// One core's endpoint of the block layer: a block device, owned by its submitter.
///
/// Dropping a queue abandons its requests. Requests in the hardware, and those in a shared staging
/// queue, are still executed, but their completions are dropped. Memory that the device may access
/// stays registered.
pub struct Queue<Q: HardwareQueue, P: Platform = Native> {
    pub(crate) ctx: SubmitContext,
    pub(crate) path: QueuePath<Q, P>,
    /// Dispatch queues of other cores that share this core's staging queue and may have its
    /// requests. This core services them too, so that its requests do not depend on other cores'
    /// polling.
    pub(crate) sibling_dispatch: Box<[LockedDispatch<Q, P>]>,
    /// Completions that other cores found, by dispatch queue. Empty if no other core reaps for this
    /// one.
    pub(crate) receivers: Box<[Receiver]>,
    pub(crate) memory: AddressSpace,
    pub(crate) staging_stats: Arc<StagingStats>,
    pub(crate) dispatch_stats: Arc<DispatchStats>,
    /// The deadline of the staging queue and the dispatch queue.
    pub(crate) due: Nanos,
    /// Whether requests were waiting for a tag at the end of the last run.
    pub(crate) waiting: bool,
    pub(crate) parker: Option<Parker>,
    /// Whether this core is the first user of its dispatch queue.
    pub(crate) shows_hardware: bool,
    /// Whether the core sleeps: it has a waker.
    pub(crate) has_waker: bool,
    /// The interrupt context that fetches completions of this core.
    pub(crate) handler: Option<Arc<CompletionHandler>>,
}

impl<Q: HardwareQueue, P: Platform> fmt::Debug for Queue<Q, P> {
    /// Formats the queue without the parts that other cores may have locked.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("local", &self.ctx).finish_non_exhaustive()
    }
}

/// The reason for a run of the staging queue and the dispatch queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunReason {
    /// There are requests to dispatch: wait for the lock.
    Requests,
    /// Only look for completions: skip the run if another core holds the lock.
    Poll,
}

/// The work of a run besides flushing the core's plug. The completion strategies divide this work
/// among contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunScope {
    /// Whether the run fetches completions and steers them to their submitters.
    pub(crate) reap: bool,
    /// Whether the run starts staged requests of all submitters.
    pub(crate) run: bool,
}

impl RunScope {
    pub(crate) const ALL: RunScope = RunScope { reap: true, run: true };
    pub(crate) const REAP: RunScope = RunScope { reap: true, run: false };
    pub(crate) const RUN: RunScope = RunScope { reap: false, run: true };
}

impl<Q: HardwareQueue, P: Platform> Queue<Q, P> {
    /// Returns the index of this submitter.
    pub fn submitter(&self) -> Submitter {
        self.ctx.submitter
    }

    /// Sets the group of later requests (limits, weights).
    pub fn set_group(&mut self, group: Group) {
        self.ctx.group = group;
    }

    /// Returns the counters of this submitter. Any thread may read them at any time.
    pub fn stats(&self) -> &Arc<SubmitterStats> {
        &self.ctx.stats
    }

    /// Returns the counters of the staging queue, summed over its users.
    pub fn staging_stats(&self) -> &Arc<StagingStats> {
        &self.staging_stats
    }

    /// Returns the counters of the dispatch queue, summed over its users.
    pub fn dispatch_stats(&self) -> &Arc<DispatchStats> {
        &self.dispatch_stats
    }

    /// Starts tracing. Drops and counts events beyond `limit` until the buffer is drained.
    pub fn trace(&mut self, limit: usize) {
        self.ctx.hooks.tracer = Some(Tracer::on_platform::<P>(limit));
    }

    /// Returns the tracer, if tracing has been started.
    pub fn tracer(&mut self) -> Option<&mut Tracer> {
        self.ctx.hooks.tracer.as_mut()
    }

    /// Sets the interrupt context of a shared hardware queue, which has another endpoint of it. The
    /// context runs until the last queue that has it is dropped.
    pub fn set_handler(&mut self, handler: Arc<CompletionHandler>) {
        self.handler = Some(handler);
    }

    /// Returns whether the interrupt context fetches the completions at `now`. It does not know of
    /// work that falls due by this core's last run.
    #[inline]
    fn leaves_completions(&self, now: Nanos) -> bool {
        now < self.due && self.handler.as_ref().is_some_and(|handler| handler.fetches_alone())
    }

    /// Returns the number of requests that are submitted and not completed. With an owned hardware
    /// queue, a completed request counts until it is reaped.
    pub fn outstanding(&self) -> u32 {
        self.ctx.outstanding()
    }

    /// Sleeps until there may be a completion, for at most `timeout`. Returns at once if there is a
    /// completion. The caller polls afterwards.
    ///
    /// # Errors
    /// The error of creating an eventfd or of sleeping on it.
    pub fn sleep(&mut self, now: Nanos, timeout: Nanos) -> io::Result<()> {
        self.parker()?;
        // `parker()` has created it.
        let Some(parker) = self.parker.take() else { return Ok(()) };
        parker.prepare();
        let slept = if self.poll(now) || !self.ctx.ready.is_empty() {
            parker.unpark();
            Ok(())
        } else {
            parker.park(&[], timeout.min(self.deadline().since(now)))
        };
        self.parker = Some(parker);
        slept
    }

    /// Returns the parker with which [`sleep`](Queue::sleep) sleeps, and creates it at the first
    /// call.
    ///
    /// Its eventfd is for a caller that sleeps in its own `epoll`. The caller prepares the parker,
    /// polls once more, and sleeps if the poll made no progress.
    ///
    /// # Errors
    /// The error of creating an eventfd.
    pub fn parker(&mut self) -> io::Result<&Parker> {
        if self.parker.is_none() {
            let parker = Parker::new()?;
            self.set_waker(parker.waker());
            self.parker = Some(parker);
        }
        self.parker.as_ref().ok_or_else(|| io::Error::other("no parker"))
    }

    /// Calls `use_it` with the staging queue and the dispatch queue. Returns `None` if `reason` is
    /// [`RunReason::Poll`] and another core holds a lock.
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
                let QueueStages { staging, dispatch } = &mut *path;
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

    /// Replaces wake-ups by notices. From now on a core that finds completions of this submitter
    /// lists it in its [`notices`](Queue::notices), and does not call its waker.
    pub(crate) fn enable_notices(&mut self) {
        let submitter = self.ctx.submitter;
        self.with_path(RunReason::Requests, |_, _, shared| shared.enable_notices(submitter));
    }

    /// Returns the submitters for which this queue has found completions. The caller that drains
    /// the list notifies them.
    pub(crate) fn notices(&mut self) -> &mut Vec<Submitter> {
        &mut self.ctx.notices
    }

    /// Runs `scope` of the work on the shared queues; waits for the locks.
    pub(crate) fn run_scope(&mut self, now: Nanos, scope: RunScope) -> bool {
        self.run_queue(now, RunReason::Requests, scope)
    }

    /// Runs all work on the shared queues, unless another core holds a lock.
    pub(crate) fn try_run(&mut self, now: Nanos) -> bool {
        self.run_queue(now, RunReason::Poll, RunScope::ALL)
    }

    /// Receives completions that other cores found, without running the shared queues.
    pub(crate) fn receive_only(&mut self, now: Nanos) -> bool {
        self.ctx.now = now;
        self.receive(now)
    }

    /// Dispatches requests and reaps completions.
    fn run_queue(&mut self, now: Nanos, reason: RunReason, scope: RunScope) -> bool {
        self.ctx.now = now;
        P::work(Step::Run, 1);
        let turned = self.with_path(reason, |local, staging, shared| {
            P::read(staging);
            let mut moved = flush_plug::<Q, P>(local, staging, shared, now);
            moved |= shared.dispatch.service(now, &mut local.hooks);
            // Completions on an owned queue stay there until they are reaped, unless requests wait
            // for their tags.
            if scope.reap && (!local.owns_all || !staging.is_empty()) {
                moved |= reap_hw::<Q, P>(local, staging, shared, now);
            }
            if scope.run {
                moved |= run_staging::<Q, P>(local, staging, shared, now);
            }
            moved |= shared.dispatch.issue::<P>();
            P::work(Step::Settle, 1);
            // The hardware reports no event for these completions.
            if shared.dispatch.has_early_completions() {
                moved |= reap_hw::<Q, P>(local, staging, shared, now);
            }
            let waiting = shared.dispatch.record_load(!staging.is_empty());
            shared.wake();
            shared.drain_notices(&mut local.notices);
            (moved, due(staging, shared), waiting)
        });
        // The lock holder may have looked before the latest completion arrived, and may have woken
        // this core for it. So this core must look again before it sleeps.
        let Some((moved, due, waiting)) = turned else { return true };
        (self.due, self.waiting) = (due, waiting);
        moved
    }

    /// Services the dispatch queues of other cores that may have requests of this core. Skips those
    /// that are locked.
    fn run_siblings(&mut self, now: Nanos) -> bool {
        let QueuePath::MultiQueue { staging, .. } = &mut self.path else { return false };
        let (local, foreign) = (&mut self.ctx, &self.sibling_dispatch);
        let (mut moved, mut due) = (false, Nanos::MAX);
        for lock in foreign {
            // Lock order: staging queue first, then dispatch queue.
            let looked = staging.try_with(|staging| {
                let mut shared = lock.try_lock()?;
                let shared = &mut *shared;
                let mut moved = shared.dispatch.service(now, &mut local.hooks);
                moved |= reap_hw::<Q, P>(local, staging, shared, now);
                shared.dispatch.start_requeued::<P>(now, &mut local.hooks);
                moved |= shared.dispatch.issue::<P>();
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

    /// Receives completions that other cores found.
    #[inline]
    fn receive(&mut self, now: Nanos) -> bool {
        let (mut moved, mut flushes) = (false, false);
        for receiver in &mut self.receivers {
            while let Some(ended) = receiver.receive::<P>() {
                moved = true;
                if let Some(flush) = self.ctx.complete(now, &ended) {
                    self.ctx.plug.requests.push(flush);
                    flushes = true;
                }
            }
        }
        if flushes {
            self.run_queue(now, RunReason::Requests, RunScope::ALL);
        }
        moved
    }

    /// Returns whether an owned path has nothing to do but issue the started commands.
    #[inline(always)]
    fn is_quiescent(&self, now: Nanos) -> bool {
        let QueuePath::MultiQueue {
            staging: OwnedOrLocked::Owned(staging),
            dispatch: OwnedOrLocked::Owned(shared),
        } = &self.path
        else {
            return false;
        };
        !Q::MUST_POLL
            && staging.is_empty()
            && self.ctx.plug.is_empty()
            && shared.dispatch.is_quiescent()
            && !self.ctx.is_splitting()
            && now < self.due
    }

    #[inline(always)]
    fn issue(&mut self) -> bool {
        match &mut self.path {
            QueuePath::MultiQueue { dispatch: OwnedOrLocked::Owned(shared), .. } => {
                shared.dispatch.issue::<P>()
            }
            _ => false,
        }
    }

    /// Starts the plugged request that waits in a slot, and issues all started commands.
    #[inline(always)]
    fn run_plugged(&mut self, now: Nanos) -> bool {
        let QueuePath::MultiQueue {
            staging: OwnedOrLocked::Owned(staging),
            dispatch: OwnedOrLocked::Owned(shared),
        } = &mut self.path
        else {
            return false;
        };
        let is_started = start_plugged::<Q, P>(&mut self.ctx, staging, shared, now) == Some(true);
        // As `is_quiescent`: the list of the plug is empty while a request waits in a slot.
        let is_quiescent = !Q::MUST_POLL
            && is_started
            && staging.is_empty()
            && shared.dispatch.is_quiescent()
            && !shared.dispatch.has_changed_state()
            && !self.ctx.is_splitting()
            && now < self.due;
        if !is_quiescent {
            self.run_queue(now, RunReason::Requests, RunScope::ALL);
            return true;
        }
        self.ctx.plug.flush_slots();
        shared.dispatch.issue::<P>();
        shared.dispatch.set_load(false);
        (self.waiting, self.due) = (false, shared.dispatch.deadline());
        true
    }

    /// Moves the plugged request that waits in a slot to where any other can be merged with it.
    #[inline(always)]
    fn leave_slot(&mut self) {
        if self.ctx.plug.slot().is_some()
            && let QueuePath::MultiQueue { dispatch: OwnedOrLocked::Owned(shared), .. } =
                &mut self.path
        {
            leave_slot(&mut self.ctx, shared);
        }
    }

    /// Submits a request that is not plain.
    #[cold]
    fn submit_slow(&mut self, now: Nanos, request: &Request) -> Result<(), QueueFull> {
        self.leave_slot();
        if let Some(staged) = self.ctx.admit_slow(now, request)? {
            self.ctx.plug_slow(now, &staged);
            if self.ctx.plug.is_full() {
                self.run_queue(now, RunReason::Requests, RunScope::ALL);
            }
        }
        Ok(())
    }

    /// Adds an admitted request to the list of plugged requests.
    #[inline(always)]
    fn submit_to_plug(&mut self, now: Nanos, id: u32, request: &Request) -> Result<(), QueueFull> {
        self.leave_slot();
        self.ctx.plug(now, id, request);
        if self.ctx.plug.is_full() {
            self.run_queue(now, RunReason::Requests, RunScope::ALL);
        }
        Ok(())
    }

    /// Fetches and returns the next completion from the hardware. Only for a path that no other
    /// core uses.
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

/// Returns the deadline of a staging queue and its dispatch queue.
///
/// While the hardware queue has no free tag, the scheduler's deadline does not count: an expired
/// request is dispatched with the next completion. In virtual time a runner with a deadline in the
/// past would never reach that completion.
fn due<Q: HardwareQueue>(staging: &Staging, shared: &DispatchQueue<Q>) -> Nanos {
    let staged = if shared.dispatch.can_start() { staging.deadline() } else { Nanos::MAX };
    staged.min(shared.dispatch.deadline())
}

/// Maximum sleep of a core whose completions another core may have to find. That core may have gone,
/// or may do something else.
const SHARED_POLL_PERIOD: Nanos = Nanos::from_millis(1);

impl<Q: HardwareQueue, P: Platform> Component for Queue<Q, P> {
    /// Dispatches submitted requests as far as there are tags, and looks for completions.
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        P::work(Step::Poll, 1);
        let mut moved = std::mem::take(&mut self.ctx.completed_early);
        self.ctx.now = now;
        if !self.ctx.owns_all {
            moved |= self.receive(now);
            let idle = self.ctx.plug.is_empty() && !self.ctx.is_splitting();
            let reason = if idle { RunReason::Poll } else { RunReason::Requests };
            let scope = match self.leaves_completions(now) {
                true if idle => return moved,
                true => RunScope::RUN,
                false => RunScope::ALL,
            };
            moved |= self.run_queue(now, reason, scope);
            if !self.sibling_dispatch.is_empty() && self.ctx.outstanding() > 0 {
                moved |= self.run_siblings(now);
                moved |= self.receive(now);
            }
            return moved;
        }
        moved |= if self.ctx.plug.slot().is_some() {
            self.run_plugged(now)
        } else if self.is_quiescent(now) {
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

    /// Returns zero while a completion waits to be reaped: a device beneath may complete requests
    /// without an event that would follow.
    fn deadline(&self) -> Nanos {
        if !self.ctx.ready.is_empty() {
            return Nanos::ZERO;
        }
        match &self.path {
            QueuePath::MultiQueue {
                staging: OwnedOrLocked::Owned(staging),
                dispatch: OwnedOrLocked::Owned(shared),
            } => due(staging, shared),
            // The deadline of the last run under the lock.
            _ if self.has_waker && self.handler.is_none() && self.ctx.outstanding() > 0 => {
                self.due.min(self.ctx.now + SHARED_POLL_PERIOD)
            }
            _ => self.due,
        }
    }
}

impl<Q: HardwareQueue, P: Platform> BlockDevice for Queue<Q, P> {
    crate::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false);

    /// Visits what is beneath the hardware queue, if this core is the first of its users.
    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any)) {
        if self.shows_hardware {
            let changed = self.with_path(RunReason::Requests, |_, staging, shared| {
                visit(staging);
                shared.dispatch.queue_mut().visit_layers(visit);
                staging.take_changed().then(|| due(staging, shared))
            });
            self.due = self.due.min(changed.flatten().unwrap_or(Nanos::MAX));
        }
    }

    fn limits(&self) -> &Limits {
        &self.ctx.limits
    }

    #[inline(always)]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        P::work(Step::Submit, 1);
        let local = &mut self.ctx;
        local.now = now;
        if !local.is_plain(&request) {
            return self.submit_slow(now, &request);
        }
        let id = local.admit(now, &request)?;
        if local.owns_all
            // On a modeled machine a traced request must do the work of one that is not.
            && (P::OBSERVES || !local.hooks.is_enabled())
            && let QueuePath::MultiQueue {
                staging: OwnedOrLocked::Owned(staging),
                dispatch: OwnedOrLocked::Owned(shared),
            } = &mut self.path
            && staging.can_bypass_scheduler()
        {
            if local.merger.is_some() {
                if local.plug.requests.is_empty()
                    && plug_in_slot::<Q, P>(local, staging, shared, now, id, &request)
                {
                    if local.plug.is_full() {
                        self.run_queue(now, RunReason::Requests, RunScope::ALL);
                    }
                    return Ok(());
                }
                return self.submit_to_plug(now, id, &request);
            }
            let (submitter, group) = (local.submitter, local.group);
            let write = |slot: &mut StagedRequest| {
                let request = Request { tag: id.into(), ..request };
                *slot =
                    StagedRequest { request, since: now, submitter, group, merged: 1, requeues: 0 };
            };
            let notes = &mut local.hooks;
            if shared.dispatch.start_in_place::<P>(now, submitter, notes, write) {
                staging.bypassed();
                // With other commands in flight, `due` is already set, and the next run updates it.
                if self.due == Nanos::MAX {
                    self.due = shared.dispatch.deadline();
                }
                return Ok(());
            }
        }
        self.submit_to_plug(now, id, &request)
    }

    #[inline(always)]
    fn reap(&mut self) -> Option<Completion> {
        let completion = if !self.ctx.ready.is_empty() {
            self.ctx.ready.pop_front()
        } else if self.ctx.owns_all {
            self.fetch_owned()
        } else if self.receive(self.ctx.now) {
            self.ctx.ready.pop_front()
        } else {
            None
        };
        P::work(Step::Reap, completion.is_some().into());
        completion
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    /// Sets the waker for completions, including those that another core finds.
    fn set_waker(&mut self, waker: Waker) {
        let submitter = self.ctx.submitter;
        for foreign in &self.sibling_dispatch {
            foreign.lock().set_steered_waker(submitter, waker.clone());
        }
        self.has_waker = true;
        self.with_path(RunReason::Requests, |_, _, shared| shared.set_waker(submitter, waker));
    }
}
