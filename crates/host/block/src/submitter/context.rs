//! [`SubmitContext`]: the state of one core's endpoint that no other core accesses.
//!
//! It holds the plug, the request table, completions that wait to be reaped, counters and I/O
//! hooks. No other core touches its cache lines.

use std::collections::VecDeque;
use std::sync::Arc;

use nvme::{MAX_BLOCKS, Status};
use time::Nanos;
use tracepoint::Event;

use crate::account::SubmitterStats;
use crate::device::validate_request;
use crate::dispatch::ReapedRequest;
use crate::submitter::io_hooks::{IoHooks, NO_QUEUE};
use crate::submitter::merge::{MergeSide, Merger};
use crate::submitter::plug::Plug;
use crate::submitter::request_table::{CompletionRoute, RequestTable};
use crate::trace::Action;
use crate::{
    Completion, Features, Group, Limits, Op, Payload, QueueFull, Request, StagedRequest, Submitter,
};

/// Number of entries in the request table for fragments of requests that are too long.
pub(crate) const SPLIT_MAX: u32 = 32;

/// A request that is being split: its remainder, and its entry.
#[derive(Clone, Copy, Debug)]
struct SplitInProgress {
    parent: u32,
    remaining: Request,
    group: Group,
    since: Nanos,
}

#[derive(Debug)]
pub(crate) struct SubmitContext {
    pub(crate) submitter: Submitter,
    pub(crate) group: Group,
    pub(crate) limits: Limits,
    features: Features,
    pub(crate) merger: Option<Merger>,
    requests: RequestTable,
    pub(crate) plug: Plug,
    splitting: VecDeque<SplitInProgress>,
    pub(crate) ready: VecDeque<Completion>,
    pub(crate) stats: Arc<SubmitterStats>,
    pub(crate) hooks: IoHooks,
    /// Whether no other core uses the staging or dispatch queue, and the scheduler needs no
    /// completions.
    pub(crate) owns_all: bool,
    /// The time of the last call that passed one.
    pub(crate) now: Nanos,
    /// Whether a request was completed here since the last poll, without the device.
    pub(crate) completed_early: bool,
    /// Submitters for which this core found completions, and which it must notify.
    pub(crate) notices: Vec<Submitter>,
}

impl SubmitContext {
    pub(crate) fn new(
        submitter: Submitter,
        limits: Limits,
        features: Features,
        merger: Option<Merger>,
    ) -> SubmitContext {
        let depth = limits.queue_depth;
        let requests = RequestTable::new(depth, SPLIT_MAX);
        SubmitContext {
            submitter,
            group: Group(0),
            limits,
            features,
            merger,
            requests,
            plug: Plug::new(),
            splitting: VecDeque::new(),
            ready: VecDeque::with_capacity(depth as usize),
            stats: Arc::default(),
            hooks: IoHooks { tracer: None, core: submitter.0 },
            owns_all: false,
            now: Nanos::ZERO,
            completed_early: false,
            notices: Vec::new(),
        }
    }

    /// Returns the number of the caller's requests that have not been reaped.
    pub(crate) fn outstanding(&self) -> u32 {
        self.requests.active()
    }

    /// Returns whether a request needs one entry and one command, without splitting or a later
    /// flush.
    #[inline(always)]
    pub(crate) fn is_plain(&self, request: &Request) -> bool {
        let Request { op, lba, sectors, fua, .. } = *request;
        let end = lba.wrapping_add(sectors.into());
        matches!(op, Op::Read | Op::Write)
            & !fua
            & (sectors.wrapping_sub(1) < self.limits.max_sectors)
            & (lba < end)
            & (end <= self.limits.sectors)
    }

    /// Allocates an entry for a [plain](SubmitContext::is_plain) request and returns its id.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing has changed.
    #[inline(always)]
    pub(crate) fn admit(&mut self, now: Nanos, request: &Request) -> Result<u32, QueueFull> {
        let Some(id) = self.requests.add(request, now) else {
            return Err(self.sleep(now, request));
        };
        self.stats.submit(now);
        self.trace_queued(now, id, request.tag);
        if self.hooks.is_enabled() {
            let staged = self.as_staged(id, request, now);
            self.hooks.record(Action::Queued, now, &staged, NO_QUEUE);
        }
        Ok(id)
    }

    /// Emits a tracepoint for a request that got an entry.
    #[inline(always)]
    fn trace_queued(&self, now: Nanos, id: u32, tag: u64) {
        let submitter = self.submitter.0;
        tracepoint::trace_at(now, || Event::LayerQueued { submitter, id, tag });
    }

    #[cold]
    fn sleep(&mut self, now: Nanos, request: &Request) -> QueueFull {
        self.stats.sleeps.add(1);
        let staged = self.as_staged(0, request, now);
        self.hooks.record(Action::Sleep, now, &staged, NO_QUEUE);
        QueueFull
    }

    /// Admits any request. Returns `None` if the request has been completed here or will be split.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing has changed.
    #[cold]
    pub(crate) fn admit_slow(
        &mut self,
        now: Nanos,
        request: &Request,
    ) -> Result<Option<StagedRequest>, QueueFull> {
        if let Some(status) = validate_request(&self.limits, u32::MAX, request) {
            return self.complete_early(request.tag, status);
        }
        if request.op == Op::Flush && !self.limits.volatile_cache {
            return self.complete_early(request.tag, Status::SUCCESS);
        }
        let long = request.sectors > self.max_split_sectors(request.op);
        if long && matches!(request.data, Payload::Scattered { .. }) {
            return self.complete_early(request.tag, Status::INVALID_FIELD);
        }
        let Some(id) = self.requests.add(request, now) else {
            return Err(self.sleep(now, request));
        };
        self.stats.submit(now);
        self.trace_queued(now, id, request.tag);
        let mut staged = self.as_staged(id, request, now);
        self.hooks.record(Action::Queued, now, &staged, NO_QUEUE);
        if request.fua && !(self.limits.volatile_cache && self.features.fua) {
            // Without a volatile cache every write is durable. Without force unit access a flush
            // follows the write.
            staged.request.fua = self.limits.volatile_cache;
            if self.limits.volatile_cache {
                self.requests.flush_after(id);
            }
        }
        if long {
            self.stats.splits.add(1);
            self.requests.begin_split(id);
            self.splitting.push_back(SplitInProgress {
                parent: id,
                remaining: staged.request,
                group: self.group,
                since: now,
            });
            return Ok(None);
        }
        Ok(Some(staged))
    }

    #[inline(always)]
    pub(crate) fn as_staged(&self, id: u32, request: &Request, since: Nanos) -> StagedRequest {
        StagedRequest {
            request: Request { tag: id.into(), ..*request },
            since,
            submitter: self.submitter,
            group: self.group,
            merged: 1,
            requeues: 0,
        }
    }

    /// Returns the maximum number of sectors of one command.
    #[inline]
    fn max_split_sectors(&self, op: Op) -> u32 {
        match op {
            Op::Read | Op::Write => self.limits.max_sectors,
            // The block count of the command has 16 bits.
            Op::WriteZeroes => MAX_BLOCKS,
            Op::Discard | Op::Flush | Op::Extents => u32::MAX,
        }
    }

    #[cold]
    fn complete_early(
        &mut self,
        tag: u64,
        status: Status,
    ) -> Result<Option<StagedRequest>, QueueFull> {
        // Memory stays bounded if the submitter does not reap.
        if self.ready.len() >= self.limits.queue_depth as usize {
            return Err(QueueFull);
        }
        self.stats.completed_early.add(1);
        self.ready.push_back(Completion { tag, status, result: 0 });
        self.completed_early = true;
        Ok(None)
    }

    /// Adds a request to the plug, or merges it with the last request in the plug. Linux also
    /// compares a stream's next request with its last.
    #[inline(always)]
    pub(crate) fn plug(&mut self, now: Nanos, id: u32, request: &Request) {
        let adjacent = self
            .plug
            .requests
            .last()
            .is_some_and(|last| self.merger.is_some() & last.is_adjacent(request));
        if adjacent | self.hooks.is_enabled() {
            let staged = self.as_staged(id, request, now);
            self.plug_slow(now, &staged);
            return;
        }
        // Construct the request in place: a copy directly after the caller's stores would stall on
        // them.
        self.plug.requests.push(self.as_staged(id, request, now));
    }

    #[inline(never)]
    pub(crate) fn plug_slow(&mut self, now: Nanos, staged: &StagedRequest) {
        if let (Some(merger), Some(last)) = (&self.merger, self.plug.requests.last_mut())
            && let Some(side) = merger.merge(last, staged)
        {
            let head = last.request.tag as u32;
            self.on_merged(now, staged, side, head);
            return;
        }
        self.hooks.record(Action::GotRequest, now, staged, NO_QUEUE);
        if self.plug.is_empty() {
            self.hooks.record(Action::Plug, now, staged, NO_QUEUE);
        }
        self.plug.requests.push(*staged);
    }

    /// Records that a request was merged into the request with the id `head`.
    pub(crate) fn on_merged(
        &mut self,
        now: Nanos,
        staged: &StagedRequest,
        side: MergeSide,
        head: u32,
    ) {
        let (submitter, id) = (self.submitter.0, staged.request.tag as u32);
        self.requests.chain(head, id);
        tracepoint::trace_at(now, || Event::LayerMerged { submitter, head, id });
        self.stats.merge(staged.request.op);
        let action = match side {
            MergeSide::Back => Action::BackMerge,
            MergeSide::Front => Action::FrontMerge,
        };
        self.hooks.record(action, now, staged, NO_QUEUE);
    }

    /// Returns whether a request is being split.
    #[inline]
    pub(crate) fn is_splitting(&self) -> bool {
        !self.splitting.is_empty()
    }

    /// Splits long requests into fragments and plugs these, as far as there are free entries.
    /// Returns whether it made any fragment.
    pub(crate) fn split(&mut self, now: Nanos) -> bool {
        let mut cut = false;
        while !self.plug.is_full()
            && let Some(SplitInProgress { parent, remaining: rest, group, since }) =
                self.splitting.front().copied()
        {
            let sectors = rest.sectors.min(self.max_split_sectors(rest.op));
            let Some(id) = self.requests.add_split(parent, sectors) else { break };
            let submitter = self.submitter.0;
            tracepoint::trace_at(now, || Event::LayerSplit { submitter, parent, id });
            let piece = self.as_staged(id, &Request { sectors, ..rest }, since);
            let piece = StagedRequest { group, ..piece };
            if sectors < rest.sectors {
                self.hooks.record(Action::Split, now, &piece, NO_QUEUE);
            }
            self.hooks.record(Action::GotRequest, now, &piece, NO_QUEUE);
            self.plug.requests.push(piece);
            cut = true;
            let left = rest.sectors - sectors;
            if left > 0 {
                let bytes = u64::from(sectors) * u64::from(self.limits.sector_bytes);
                let data = match rest.data {
                    Payload::Contiguous(at) => Payload::Contiguous(at.offset(bytes)),
                    other => other,
                };
                let lba = rest.lba + u64::from(sectors);
                let rest = Request { lba, sectors: left, data, ..rest };
                if let Some(front) = self.splitting.front_mut() {
                    front.remaining = rest;
                }
                continue;
            }
            self.splitting.pop_front();
            // The split itself is complete; the fragment just made is still outstanding, so the
            // parent cannot complete here.
            self.requests.complete_split(parent, Status::SUCCESS, now, &self.stats, &mut |_| {});
        }
        cut
    }

    /// Completes a request of this submitter. Returns the flush that must follow it, if any.
    #[inline]
    pub(crate) fn complete(&mut self, now: Nanos, ended: &ReapedRequest) -> Option<StagedRequest> {
        let ReapedRequest { id, status, result, .. } = *ended;
        if let Some(completion) =
            self.requests.complete_single(id, status, result, now, &self.stats)
        {
            self.ready.push_back(completion);
            return None;
        }
        self.complete_slow(now, ended)
    }

    /// Completes a request that is not merged, split or followed by a flush. Returns its
    /// completion.
    #[inline(always)]
    pub(crate) fn complete_single(
        &mut self,
        now: Nanos,
        ended: &ReapedRequest,
    ) -> Option<Completion> {
        self.requests.complete_single(ended.id, ended.status, ended.result, now, &self.stats)
    }

    #[cold]
    pub(crate) fn complete_slow(
        &mut self,
        now: Nanos,
        ended: &ReapedRequest,
    ) -> Option<StagedRequest> {
        let (ready, stats) = (&mut self.ready, &self.stats);
        let ReapedRequest { id, status, result, .. } = *ended;
        let outcome =
            self.requests.complete(id, status, result, now, stats, &mut |c| ready.push_back(c));
        match outcome {
            CompletionRoute::Completed => None,
            CompletionRoute::FlushFirst(id) => Some(self.as_staged(id, &Request::flush(0), now)),
            CompletionRoute::Spurious => {
                self.stats.spurious.add(1);
                None
            }
        }
    }
}
