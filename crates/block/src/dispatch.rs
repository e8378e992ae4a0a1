//! [`Dispatch`]: a hardware queue and the requests that it has.
//!
//! First in, first out: once a request is here its order is settled (SYSTOR'13 section 3.2). Bounded
//! by the hardware's tags: without a free one, requests stay where they came from. The tag is the
//! index of the request here and of the command in the driver, generated once.
//!
//! What goes wrong is settled here too: a busy device gets its command again, a command that takes
//! too long is aborted, then the queue is reset, and commands that were under way are issued again
//! until they have failed too often. Guarantee: every request that was started comes out of
//! [`Dispatch::fetch`] exactly once.

mod recovery;

use std::collections::VecDeque;
use std::sync::Arc;

use clock::Nanos;
use driver::{BindError, Event, HardwareQueue, QueueState, Tag};
use nvme::Status;
use tracepoint::Event as Tracepoint;

use crate::account::DispatchStats;
use crate::flush::FlushMachine;
use crate::io_hooks::IoHooks;
use crate::sync::Platform;
use crate::tag_fairness::TagFairness;
use crate::trace::Action;
use crate::{Group, Op, Payload, Request, StagedRequest, Submitter};

/// How long commands may take, and what happens then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// A command that takes longer is aborted.
    pub command: Nanos,
    /// If the abort has not ended it after this long, the queue is reset.
    pub abort: Nanos,
    /// How often a request may be issued again, after resets or because the device was busy, before
    /// it fails.
    pub retries: u16,
}

impl Default for Timeouts {
    /// Linux's for NVMe: 30 seconds; five retries.
    fn default() -> Timeouts {
        Timeouts { command: Nanos::from_secs(30), abort: Nanos::from_secs(5), retries: 5 }
    }
}

/// A device that was too busy is asked again after this long.
const BUSY_RETRY: Nanos = Nanos::from_micros(100);

/// The status of requests whose device is gone.
pub const STATUS_REMOVED: Status = Status::NOT_READY.do_not_retry();

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletedRequest {
    /// Whose it is.
    pub submitter: Submitter,
    /// The submitter's name for it.
    pub id: u32,
    /// How it ended.
    pub status: Status,
    /// What it returned.
    pub result: u64,
}

impl CompletedRequest {
    #[inline]
    fn new(staged: &StagedRequest, status: Status, result: u64) -> CompletedRequest {
        let (submitter, id) = (staged.submitter, staged.request.tag as u32);
        CompletedRequest { submitter, id, status, result }
    }
}

/// A request that ended without the device, or with others.
#[derive(Clone, Copy, Debug)]
struct EarlyCompletion {
    staged: StagedRequest,
    status: Status,
    device: Nanos,
}

/// What is in a slot that nothing has been put into.
pub(crate) const EMPTY_SLOT: StagedRequest = StagedRequest {
    request: Request {
        op: Op::Flush,
        lba: 0,
        sectors: 0,
        data: Payload::BitBucket,
        fua: false,
        deallocate: false,
        tag: 0,
    },
    since: Nanos::ZERO,
    submitter: Submitter(0),
    group: Group(0),
    merged: 1,
    requeues: 0,
};

/// A hardware queue and what it has.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Dispatch<Q> {
    index: u16,
    queue: Q,
    /// By tag: the request of the command under way.
    slots: Box<[StagedRequest]>,
    /// By tag: when its command was aborted; zero if it was not.
    aborted: Box<[Nanos]>,
    /// Go before anything new.
    requeued: VecDeque<StagedRequest>,
    /// Ended without the device.
    early_completions: VecDeque<EarlyCompletion>,
    flushes: FlushMachine,
    tag_fairness: Option<TagFairness>,
    timeouts: Timeouts,
    /// Whether the driver has force unit access.
    fua: bool,
    /// When commands are next looked at for taking too long.
    check_at: Nanos,
    /// When a busy device is next asked.
    retry_at: Nanos,
    state: QueueState,
    stats: Arc<DispatchStats>,
}

impl<Q: HardwareQueue> Dispatch<Q> {
    /// The hardware queue number `index`. With `submitters`, these share its tags fairly.
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

    /// Starts a request: binds it to a tag, to be issued with the next [`issue`](Dispatch::issue).
    ///
    /// Returns whether it has it: not if there is no tag for it now.
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
            // A refusal ends the flush like an answer of the device.
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

    /// Starts a request that is no flush and is written straight to where it stays, by `write`;
    /// otherwise as [`start`](Dispatch::start).
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

    /// A tag for a request of `submitter`, if there is one for it now.
    #[inline(always)]
    fn alloc_tag<P: Platform>(&mut self, submitter: Submitter) -> Option<Tag> {
        let depth = self.queue.tags().count();
        let exhausted =
            self.tag_fairness.as_ref().is_some_and(|s| s.is_over_share(submitter, depth));
        let tag = if exhausted { None } else { self.queue.tags_mut().take() };
        let Some(tag) = tag else {
            self.on_no_tag(submitter);
            return None;
        };
        self.report_cache_lines::<P>(tag);
        P::wrote(&self.slots[usize::from(tag.0)]);
        Some(tag)
    }

    /// Binds the request in its slot to the tag that was taken for it.
    #[inline(always)]
    fn bind_slot<P: Platform>(&mut self, now: Nanos, tag: Tag, notes: &mut IoHooks) -> bool {
        let staged = &self.slots[usize::from(tag.0)];
        tracepoint::trace_at(now, || {
            let (submitter, id) = (staged.submitter.0, staged.request.tag as u32);
            Tracepoint::LayerIssued { submitter, id }
        });
        let bound = if staged.request.fua && !self.fua {
            // The submitter flushes afterwards.
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

    /// Reports what binding or ending the command of `tag` writes to, but for its slot.
    #[inline]
    fn report_cache_lines<P: Platform>(&self, tag: Tag) {
        if P::OBSERVES {
            P::wrote(&self.queue);
            self.queue.report_cache_lines(tag, &mut |memory| P::wrote(memory));
            // The counts of every command are one line; the rarer ones and small depths the next.
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

    /// A submitter is gone, and does not wait for a tag any more.
    pub(crate) fn remove_submitter(&mut self, submitter: Submitter) {
        if let Some(shares) = &mut self.tag_fairness {
            shares.remove_submitter(submitter);
        }
    }

    #[cold]
    fn on_bind_error(&mut self, now: Nanos, tag: Tag, error: BindError) -> bool {
        let staged = self.slots[usize::from(tag.0)];
        // Taken by the caller, so it can be given back.
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

    /// Gives the hardware everything started since the last call.
    #[inline]
    pub(crate) fn issue(&mut self) -> bool {
        let issued = self.queue.issue_tags();
        self.stats.issue_batches.add(issued.into());
        issued
    }

    /// The next request that has ended.
    ///
    /// `tell` hears of the request as it was dispatched, and how long the device had it.
    #[inline(always)]
    pub(crate) fn fetch<P: Platform>(
        &mut self,
        now: Nanos,
        notes: &mut IoHooks,
        mut tell: impl FnMut(&StagedRequest, Nanos),
    ) -> Option<CompletedRequest> {
        if !self.early_completions.is_empty() {
            return self.fetch_early(now, notes, tell);
        }
        loop {
            P::read(&self.queue);
            let Event { tag, status, result } = self.queue.fetch_event()?;
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
            let ended = CompletedRequest::new(slot, status, result);
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
    ) -> Option<CompletedRequest> {
        let EarlyCompletion { staged, status, device } = self.early_completions.pop_front()?;
        notes.record_completion(Action::Completed, now, &staged, self.index, status);
        tell(&staged, device);
        Some(CompletedRequest::new(&staged, status, 0))
    }

    #[inline]
    fn release_tag(&mut self, tag: Tag, submitter: Submitter) {
        // Detached by the caller, so it can be given back.
        let _ = self.queue.release_tags(&[tag]);
        if let Some(shares) = &mut self.tag_fairness {
            shares.record_free(submitter);
        }
        if self.aborted[usize::from(tag.0)] != Nanos::ZERO {
            self.aborted[usize::from(tag.0)] = Nanos::ZERO;
        }
    }

    /// Flushes, and what did not succeed.
    #[cold]
    fn fetch_slow(
        &mut self,
        now: Nanos,
        mut staged: StagedRequest,
        status: Status,
        device: Nanos,
        notes: &mut IoHooks,
        tell: &mut dyn FnMut(&StagedRequest, Nanos),
    ) -> Option<CompletedRequest> {
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
        Some(CompletedRequest::new(&staged, status, 0))
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

    /// Starts what must be issued again. Nothing new may go before it; returns whether nothing is
    /// left.
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

    /// Whether nothing waits to be issued again, or to be handed out.
    #[inline]
    pub(crate) fn is_quiescent(&self) -> bool {
        self.requeued.is_empty() & self.early_completions.is_empty()
            && self.flushes.next().is_none()
    }

    /// Whether a request that is started now might find room.
    #[inline]
    pub(crate) fn can_start(&self) -> bool {
        self.queue.tags().free() > 0 && self.retry_at == Nanos::MAX
            || self.state == QueueState::Removed
    }

    /// Counts how full it is, and says whether requests wait for somebody to start them; `staged` if
    /// there are such that it has not seen.
    #[inline]
    pub(crate) fn record_load(&self, staged: bool) -> bool {
        let waiting = staged || !self.requeued.is_empty() || self.flushes.next().is_some();
        self.stats.in_flight.set(self.queue.tags().bound().into());
        self.stats.waiting.set(waiting.into());
        waiting
    }

    /// Whether something has ended without the hardware, which will say nothing of it.
    #[inline]
    pub(crate) fn has_early_completions(&self) -> bool {
        !self.early_completions.is_empty()
    }

    /// When [`tend`](Dispatch::service) must be called.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        let check = if self.queue.tags().bound() > 0 { self.check_at } else { Nanos::MAX };
        check.min(self.retry_at).min(self.queue.deadline())
    }
}
