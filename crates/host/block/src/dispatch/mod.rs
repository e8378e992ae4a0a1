//! [`Dispatch`]: a hardware queue and the requests in it.
//!
//! Requests are dispatched in FIFO order: their order is decided in the staging queue ([SYSTOR13
//! §3.2]). The number of tags bounds the queue; without a free tag a request stays in its staging
//! queue. The driver allocates the tag once, and it indexes both the request here and the command
//! in the driver.
//!
//! This module also handles faults. A command that the device rejected as busy is issued again. A
//! command that times out is aborted, and if the abort fails the queue is reset. Commands that a
//! reset interrupted are issued again, up to the retry limit.
//!
//! Invariant: every started request is returned by [`Dispatch::fetch`] exactly once.

pub(crate) mod flush;
pub(crate) mod queue;
mod recovery;
pub(crate) mod tag_fairness;

use std::collections::VecDeque;
use std::sync::Arc;

use driver::{BindError, CompletionEvent, HardwareQueue, QueueState, Tag};
use nvme::Status;
use time::Nanos;
use tracepoint::Event as Tracepoint;

use crate::account::DispatchStats;
use crate::dispatch::flush::FlushMachine;
use crate::dispatch::tag_fairness::TagFairness;
use crate::submitter::io_hooks::IoHooks;
use crate::sync::{Platform, Step};
use crate::trace::Action;
use crate::{Group, Op, Payload, Request, StagedRequest, Submitter};

/// Command timeouts and the retry limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Time after which a command is aborted.
    pub command: Nanos,
    /// Time after an abort after which the queue is reset.
    pub abort: Nanos,
    /// Number of times that a request may be issued again, after resets or while the device was
    /// busy, before it fails.
    pub retries: u16,
}

impl Default for Timeouts {
    /// Returns the command timeout of Linux's NVMe driver, 30 s, with an abort timeout of 5 s and
    /// five retries.
    fn default() -> Timeouts {
        Timeouts { command: Nanos::from_secs(30), abort: Nanos::from_secs(5), retries: 5 }
    }
}

/// Delay before a busy device is tried again.
const BUSY_RETRY: Nanos = Nanos::from_micros(100);

/// The status of requests whose device has been removed.
pub const STATUS_REMOVED: Status = Status::NOT_READY.do_not_retry();

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReapedRequest {
    /// The submitter of the request.
    pub submitter: Submitter,
    /// The submitter's id of the request.
    pub id: u32,
    /// The status of the request.
    pub status: Status,
    /// The result of the command.
    pub result: u64,
}

impl ReapedRequest {
    #[inline]
    fn new(staged: &StagedRequest, status: Status, result: u64) -> ReapedRequest {
        let (submitter, id) = (staged.submitter, staged.request.tag as u32);
        ReapedRequest { submitter, id, status, result }
    }
}

/// A request that completed without a command of its own.
#[derive(Clone, Copy, Debug)]
struct EarlyCompletion {
    staged: StagedRequest,
    status: Status,
    device: Nanos,
}

/// The contents of an unused slot.
pub(crate) const EMPTY_SLOT: StagedRequest = StagedRequest {
    request: Request {
        op: Op::Flush,
        lba: 0,
        sectors: 0,
        data: Payload::BitBucket,
        fua: false,
        atomic: false,
        deallocate: false,
        tag: 0,
    },
    since: Nanos::ZERO,
    submitter: Submitter(0),
    group: Group(0),
    merged: 1,
    requeues: 0,
};

/// A hardware queue and the requests in it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Dispatch<Q> {
    index: u16,
    queue: Q,
    /// By tag: the request of the in-flight command.
    slots: Box<[StagedRequest]>,
    /// By tag: the time at which the command was aborted; zero if it was not.
    aborted: Box<[Nanos]>,
    /// Requests to issue again, before any new request.
    requeued: VecDeque<StagedRequest>,
    /// Requests that completed without the hardware.
    early_completions: VecDeque<EarlyCompletion>,
    flushes: FlushMachine,
    tag_fairness: Option<TagFairness>,
    timeouts: Timeouts,
    /// Whether the driver supports force unit access.
    fua: bool,
    /// Time of the next check for command timeouts.
    check_at: Nanos,
    /// Time at which a busy device is tried again.
    retry_at: Nanos,
    state: QueueState,
    stats: Arc<DispatchStats>,
}

impl<Q: HardwareQueue> Dispatch<Q> {
    /// Creates the dispatch queue of the hardware queue `index`. If `submitters` is given, they
    /// share its tags fairly.
    pub(crate) fn new(
        index: u16,
        queue: Q,
        timeouts: Timeouts,
        fua: bool,
        submitters: Option<u16>,
    ) -> Dispatch<Q> {
        let tags = usize::from(queue.tags().count());
        let tag_fairness = submitters.map(TagFairness::new);
        Dispatch {
            index,
            slots: vec![EMPTY_SLOT; tags].into(),
            aborted: vec![Nanos::ZERO; tags].into(),
            requeued: VecDeque::with_capacity(tags),
            early_completions: VecDeque::with_capacity(tags),
            flushes: FlushMachine::default(),
            tag_fairness,
            timeouts,
            fua,
            check_at: Nanos::MAX,
            retry_at: Nanos::MAX,
            state: queue.state(),
            stats: Arc::default(),
            queue,
        }
    }

    pub(crate) fn stats(&self) -> Arc<DispatchStats> {
        self.stats.clone()
    }

    #[inline]
    pub(crate) fn stats_ref(&self) -> &DispatchStats {
        &self.stats
    }

    pub(crate) fn queue_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// Starts a request: binds it to a tag. The next [`issue`](Dispatch::issue) gives it to the
    /// hardware.
    ///
    /// Returns `false` if no tag is available, and leaves the request to the caller.
    #[inline(always)]
    pub(crate) fn start<P: Platform>(
        &mut self,
        now: Nanos,
        staged: &StagedRequest,
        notes: &mut IoHooks,
    ) -> bool {
        if staged.request.op == Op::Flush || self.state != QueueState::Ready {
            return self.start_slow::<P>(now, staged, notes);
        }
        self.bind::<P>(now, staged, notes)
    }

    #[cold]
    fn start_slow<P: Platform>(
        &mut self,
        now: Nanos,
        staged: &StagedRequest,
        notes: &mut IoHooks,
    ) -> bool {
        match self.state {
            QueueState::Removed => self.complete_early(*staged, STATUS_REMOVED),
            QueueState::Resetting if staged.request.op != Op::Flush => return false,
            _ => {
                self.flushes.add(*staged);
                self.start_flush::<P>(now, notes);
            }
        }
        true
    }

    fn start_flush<P: Platform>(&mut self, now: Nanos, notes: &mut IoHooks) {
        if self.state == QueueState::Ready
            && let Some(flush) = self.flushes.next()
        {
            // A rejected flush completes like one that the device has answered.
            let before = self.early_completions.len();
            if !self.bind::<P>(now, &flush, notes) {
                return;
            }
            let joined = self.flushes.begin();
            self.stats.flushes_joined.add(joined);
            if self.early_completions.len() > before
                && let Some(refused) = self.early_completions.pop_back()
            {
                self.complete_flush(refused.status, refused.device);
            }
        }
    }

    fn complete_flush(&mut self, status: Status, device: Nanos) {
        while let Some(staged) = self.flushes.pop_completed() {
            self.early_completions.push_back(EarlyCompletion { staged, status, device });
        }
    }

    /// Starts a request other than a flush, which `write` writes directly into its slot. Otherwise
    /// like [`start`](Dispatch::start).
    #[inline(always)]
    pub(crate) fn start_in_place<P: Platform>(
        &mut self,
        now: Nanos,
        submitter: Submitter,
        notes: &mut IoHooks,
        write: impl FnOnce(&mut StagedRequest),
    ) -> bool {
        if self.state != QueueState::Ready {
            return false;
        }
        let Some(tag) = self.alloc_tag::<P>(submitter) else { return false };
        write(&mut self.slots[usize::from(tag.0)]);
        self.bind_slot::<P>(now, tag, notes)
    }

    /// Allocates a tag for a request other than a flush, which `write` writes directly into its slot.
    /// Returns `None` if no tag is available, which is not counted: the caller tries again later.
    ///
    /// The request waits in the slot until [`start_slot`](Dispatch::start_slot) starts it or
    /// [`free_slot`](Dispatch::free_slot) removes it. Only for a queue with one submitter.
    #[inline(always)]
    pub(crate) fn reserve_slot<P: Platform>(
        &mut self,
        write: impl FnOnce(&mut StagedRequest),
    ) -> Option<Tag> {
        let mut tag = [Tag::default()];
        if self.state != QueueState::Ready || self.queue.get_free_tags(&mut tag) == 0 {
            return None;
        }
        let [tag] = tag;
        self.report_cache_lines::<P>(tag);
        let slot = &mut self.slots[usize::from(tag.0)];
        P::wrote(slot);
        write(slot);
        Some(tag)
    }

    /// Returns the request in the slot of `tag`.
    #[inline(always)]
    pub(crate) fn slot(&self, tag: Tag) -> &StagedRequest {
        &self.slots[usize::from(tag.0)]
    }

    /// Starts the request in a reserved slot. Returns `false` if the hardware did not take it; then
    /// the tag is free, and the request stays in the slot until the tag is used again.
    #[inline(always)]
    pub(crate) fn start_slot<P: Platform>(
        &mut self,
        now: Nanos,
        tag: Tag,
        notes: &mut IoHooks,
    ) -> bool {
        self.bind_slot::<P>(now, tag, notes)
    }

    /// Frees a reserved slot, and returns its request.
    pub(crate) fn free_slot(&mut self, tag: Tag) -> StagedRequest {
        // The tag is reserved, so the release cannot fail.
        let _ = self.queue.release_tags(&[tag]);
        self.slots[usize::from(tag.0)]
    }

    #[inline(always)]
    fn bind<P: Platform>(
        &mut self,
        now: Nanos,
        staged: &StagedRequest,
        notes: &mut IoHooks,
    ) -> bool {
        let Some(tag) = self.alloc_tag::<P>(staged.submitter) else { return false };
        self.slots[usize::from(tag.0)] = *staged;
        self.bind_slot::<P>(now, tag, notes)
    }

    /// Allocates a tag for a request of `submitter`, if one is available to it.
    #[inline(always)]
    fn alloc_tag<P: Platform>(&mut self, submitter: Submitter) -> Option<Tag> {
        let depth = self.queue.tags().count();
        let exhausted =
            self.tag_fairness.as_ref().is_some_and(|s| s.is_over_share(submitter, depth));
        let mut tag = [Tag::default()];
        if exhausted || self.queue.get_free_tags(&mut tag) == 0 {
            self.on_no_tag(submitter);
            return None;
        }
        let [tag] = tag;
        self.report_cache_lines::<P>(tag);
        P::wrote(&self.slots[usize::from(tag.0)]);
        Some(tag)
    }

    /// Binds the request in the slot of `tag` to that tag.
    #[inline(always)]
    fn bind_slot<P: Platform>(&mut self, now: Nanos, tag: Tag, notes: &mut IoHooks) -> bool {
        P::work(Step::Start, 1);
        let staged = &self.slots[usize::from(tag.0)];
        tracepoint::trace_at(now, || {
            let (submitter, id) = (staged.submitter.0, staged.request.tag as u32);
            Tracepoint::LayerIssued { submitter, id }
        });
        let bound = if staged.request.fua && !self.fua {
            // The submitter sends a flush afterwards.
            self.queue.bind_tag_cmd(tag, &Request { fua: false, ..staged.request }, now)
        } else {
            self.queue.bind_tag_cmd(tag, &staged.request, now)
        };
        if let Err(error) = bound {
            return self.on_bind_error(now, tag, error);
        }
        if let Some(shares) = &mut self.tag_fairness {
            P::wrote(&shares.active);
            P::wrote(&shares.taken[usize::from(staged.submitter.0)]);
            shares.record_alloc(staged.submitter);
        }
        notes.record(Action::Issued, now, staged, self.index);
        self.stats.issued.add(1);
        let bound = self.queue.tags().bound();
        self.stats.depth.count(bound.into());
        if bound == 1 {
            P::wrote(&self.check_at);
            self.check_at = now + self.timeouts.command;
        }
        true
    }

    /// Reports to the platform the cache lines that binding or completing the command of `tag`
    /// writes, except its slot.
    #[inline]
    fn report_cache_lines<P: Platform>(&self, tag: Tag) {
        if P::OBSERVES {
            P::wrote(&self.queue);
            self.queue.report_cache_lines(tag, &mut |memory| P::wrote(memory));
            // The counters of every command share one cache line; the rarer counters and small
            // depths are in the next.
            P::wrote(&self.stats.issued);
            P::wrote(&self.stats.steered);
        }
    }

    #[inline(never)]
    fn on_no_tag(&mut self, submitter: Submitter) {
        self.stats.no_tag.add(1);
        if let Some(shares) = &mut self.tag_fairness {
            shares.mark_waiting(submitter);
        }
    }

    /// Removes a submitter, which no longer waits for a tag.
    pub(crate) fn remove_submitter(&mut self, submitter: Submitter) {
        if let Some(shares) = &mut self.tag_fairness {
            shares.remove_submitter(submitter);
        }
    }

    #[cold]
    fn on_bind_error(&mut self, now: Nanos, tag: Tag, error: BindError) -> bool {
        let staged = self.slots[usize::from(tag.0)];
        // The caller has allocated the tag, so the release cannot fail.
        let _ = self.queue.release_tags(&[tag]);
        match error {
            BindError::Refused(status) => {
                self.complete_early(staged, status);
                true
            }
            BindError::Busy | BindError::Tag(_) => {
                self.stats.busy.add(1);
                self.retry_at = now + BUSY_RETRY;
                false
            }
        }
    }

    fn complete_early(&mut self, staged: StagedRequest, status: Status) {
        self.early_completions.push_back(EarlyCompletion { staged, status, device: Nanos::ZERO });
    }

    /// Issues all commands that were started since the last call. Returns whether there were any.
    #[inline]
    pub(crate) fn issue<P: Platform>(&mut self) -> bool {
        let issued = self.queue.issue_tags();
        P::work(Step::Issue, issued.into());
        self.stats.issue_batches.add(issued.into());
        issued
    }

    /// Fetches and returns the next completed request.
    ///
    /// Calls `tell` with the request as it was dispatched and its time in the device.
    #[inline(always)]
    pub(crate) fn fetch<P: Platform>(
        &mut self,
        now: Nanos,
        notes: &mut IoHooks,
        mut tell: impl FnMut(&StagedRequest, Nanos),
    ) -> Option<ReapedRequest> {
        if !self.early_completions.is_empty() {
            return self.fetch_early(now, notes, tell);
        }
        loop {
            P::read(&self.queue);
            let CompletionEvent { tag, status, result } = self.queue.fetch_event()?;
            P::work(Step::Fetch, 1);
            let Ok(command) = self.queue.detach_tag_cmd(tag) else {
                self.stats.spurious.add(1);
                continue;
            };
            self.report_cache_lines::<P>(tag);
            let slot = &self.slots[usize::from(tag.0)];
            P::read(slot);
            if P::OBSERVES
                && let Some(shares) = &self.tag_fairness
            {
                P::wrote(&shares.active);
                P::wrote(&shares.taken[usize::from(slot.submitter.0)]);
            }
            let device = Q::end_cmd(&command, now);
            self.stats.completed.add(1);
            if slot.request.op == Op::Flush || !status.is_success() {
                let staged = *slot;
                self.release_tag(tag, staged.submitter);
                match self.fetch_slow(now, staged, status, device, notes, &mut tell) {
                    Some(ended) => return Some(ended),
                    None => continue,
                }
            }
            notes.record_completion(Action::Completed, now, slot, self.index, status);
            tell(slot, device);
            let ended = ReapedRequest::new(slot, status, result);
            self.release_tag(tag, ended.submitter);
            return Some(ended);
        }
    }

    #[cold]
    fn fetch_early(
        &mut self,
        now: Nanos,
        notes: &mut IoHooks,
        mut tell: impl FnMut(&StagedRequest, Nanos),
    ) -> Option<ReapedRequest> {
        let EarlyCompletion { staged, status, device } = self.early_completions.pop_front()?;
        notes.record_completion(Action::Completed, now, &staged, self.index, status);
        tell(&staged, device);
        Some(ReapedRequest::new(&staged, status, 0))
    }

    #[inline]
    fn release_tag(&mut self, tag: Tag, submitter: Submitter) {
        // The caller has detached the tag, so the release cannot fail.
        let _ = self.queue.release_tags(&[tag]);
        if let Some(shares) = &mut self.tag_fairness {
            shares.record_free(submitter);
        }
        if self.aborted[usize::from(tag.0)] != Nanos::ZERO {
            self.aborted[usize::from(tag.0)] = Nanos::ZERO;
        }
    }

    /// Handles completed flushes and failed commands.
    #[cold]
    fn fetch_slow(
        &mut self,
        now: Nanos,
        mut staged: StagedRequest,
        status: Status,
        device: Nanos,
        notes: &mut IoHooks,
        tell: &mut dyn FnMut(&StagedRequest, Nanos),
    ) -> Option<ReapedRequest> {
        if status.is(Status::NOT_READY)
            && !status.is_final()
            && staged.requeues < self.timeouts.retries
        {
            staged.requeues += 1;
            self.retry_at = now + BUSY_RETRY;
            self.requeue(now, staged, notes);
            return None;
        }
        if staged.request.op == Op::Flush {
            self.complete_flush(status, device);
            return self.fetch_early(now, notes, tell);
        }
        notes.record_completion(Action::Completed, now, &staged, self.index, status);
        tell(&staged, device);
        Some(ReapedRequest::new(&staged, status, 0))
    }

    fn requeue(&mut self, now: Nanos, staged: StagedRequest, notes: &mut IoHooks) {
        notes.record(Action::Requeued, now, &staged, self.index);
        self.stats.requeued.add(1);
        if staged.request.op == Op::Flush {
            self.flushes.requeue_all();
        } else {
            self.requeued.push_back(staged);
        }
    }

    /// Starts the requests that must be issued again, which go before new ones. Returns whether
    /// none is left.
    #[inline]
    pub(crate) fn start_requeued<P: Platform>(&mut self, now: Nanos, notes: &mut IoHooks) -> bool {
        if self.requeued.is_empty() && self.flushes.next().is_none() {
            return true;
        }
        if self.retry_at != Nanos::MAX && now < self.retry_at {
            return false;
        }
        self.retry_at = Nanos::MAX;
        self.start_flush::<P>(now, notes);
        while let Some(staged) = self.requeued.pop_front() {
            if !self.start::<P>(now, &staged, notes) {
                self.requeued.push_front(staged);
                return false;
            }
        }
        true
    }

    /// Returns whether no request waits to be issued again or to be returned.
    #[inline]
    pub(crate) fn is_quiescent(&self) -> bool {
        self.requeued.is_empty() & self.early_completions.is_empty()
            && self.flushes.next().is_none()
    }

    /// Returns whether the hardware queue is in another state than it was at the last
    /// [`service`](Dispatch::service).
    #[inline(always)]
    pub(crate) fn has_changed_state(&self) -> bool {
        self.queue.state() != self.state
    }

    /// Returns whether a request that is started now may get a tag.
    #[inline]
    pub(crate) fn can_start(&self) -> bool {
        self.queue.tags().free() > 0 && self.retry_at == Nanos::MAX
            || self.state == QueueState::Removed
    }

    /// Records the number of in-flight commands. Returns whether requests wait to be started;
    /// `staged` says whether the staging queue has any.
    #[inline]
    pub(crate) fn record_load(&self, staged: bool) -> bool {
        let waiting = staged || !self.requeued.is_empty() || self.flushes.next().is_some();
        self.set_load(waiting);
        waiting
    }

    /// Records the number of in-flight commands, and whether requests wait to be started.
    #[inline]
    pub(crate) fn set_load(&self, waiting: bool) {
        self.stats.in_flight.set(self.queue.tags().bound().into());
        self.stats.waiting.set(waiting.into());
    }

    /// Returns whether requests have completed without the hardware, which reports no event for
    /// them.
    #[inline]
    pub(crate) fn has_early_completions(&self) -> bool {
        !self.early_completions.is_empty()
    }

    /// Returns the time at which [`service`](Dispatch::service) must be called.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        let check = if self.queue.tags().bound() > 0 { self.check_at } else { Nanos::MAX };
        check.min(self.retry_at).min(self.queue.deadline())
    }
}
