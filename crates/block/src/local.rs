//! [`Local`]: what one core's end of the layer has to itself.
//!
//! The plug, the table of requests, completions that wait to be reaped, counters and notes: no other
//! core touches these lines.

use std::collections::VecDeque;
use std::sync::Arc;

use clock::Nanos;
use nvme::{MAX_BLOCKS, Status};
use tracepoint::Event;

use crate::account::SubmitterStats;
use crate::device::refusal;
use crate::dispatch::Ended;
use crate::merge::{Merger, Side};
use crate::notes::{NO_QUEUE, Notes};
use crate::requests::{Outcome, Requests};
use crate::trace::Action;
use crate::{Busy, Completion, Features, Group, Limits, Op, Payload, Request, Staged, Submitter};

/// Requests held back for others to merge with, at most (Linux's plug holds 32 per device).
pub(crate) const PLUG: usize = 32;

/// Entries of the table for pieces of requests that are too long.
pub(crate) const PIECES: u32 = 32;

/// A request that is being cut: the rest of it, and its entry.
#[derive(Clone, Copy, Debug)]
struct Cutting {
    parent: u32,
    rest: Request,
    group: Group,
    since: Nanos,
}

#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) submitter: Submitter,
    pub(crate) group: Group,
    pub(crate) limits: Limits,
    features: Features,
    pub(crate) merger: Option<Merger>,
    requests: Requests,
    pub(crate) plug: Vec<Staged>,
    cutting: VecDeque<Cutting>,
    pub(crate) ready: VecDeque<Completion>,
    pub(crate) stats: Arc<SubmitterStats>,
    pub(crate) notes: Notes,
    /// Nobody else uses the staging or dispatch queue, and no scheduler wants to hear of completions.
    pub(crate) owns_all: bool,
    /// The time of the last call that had one.
    pub(crate) now: Nanos,
    /// A request was answered here since the last poll.
    pub(crate) answered_now: bool,
    /// Submitters for whom this core found completions, and whom it must tell.
    pub(crate) news: Vec<Submitter>,
}

impl Local {
    pub(crate) fn new(
        submitter: Submitter,
        limits: Limits,
        features: Features,
        merger: Option<Merger>,
    ) -> Local {
        let depth = limits.queue_depth;
        let requests = Requests::new(depth, PIECES);
        Local {
            submitter,
            group: Group(0),
            limits,
            features,
            merger,
            requests,
            plug: Vec::with_capacity(PLUG),
            cutting: VecDeque::new(),
            ready: VecDeque::with_capacity(depth as usize),
            stats: Arc::default(),
            notes: Notes { tracer: None, core: submitter.0 },
            owns_all: false,
            now: Nanos::ZERO,
            answered_now: false,
            news: Vec::new(),
        }
    }

    /// Requests of the caller that have not been reaped.
    pub(crate) fn outstanding(&self) -> u32 {
        self.requests.callers()
    }

    /// Whether a request needs nothing but a place and a command of its own.
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

    /// Gives a [plain](Local::is_plain) request a place, and returns its name.
    ///
    /// # Errors
    /// [`Busy`]; nothing has changed.
    #[inline(always)]
    pub(crate) fn admit(&mut self, now: Nanos, request: &Request) -> Result<u32, Busy> {
        let Some(id) = self.requests.add(request, now) else {
            return Err(self.sleep(now, request));
        };
        self.stats.submit(now);
        self.trace_queued(now, id, request.tag);
        if self.notes.is_on() {
            let staged = self.as_staged(id, request, now);
            self.notes.note(Action::Queued, now, &staged, NO_QUEUE);
        }
        Ok(id)
    }

    /// Reports a request that got a place.
    #[inline(always)]
    fn trace_queued(&self, now: Nanos, id: u32, tag: u64) {
        let submitter = self.submitter.0;
        tracepoint::trace_at(now, || Event::LayerQueued { submitter, id, tag });
    }

    #[cold]
    fn sleep(&mut self, now: Nanos, request: &Request) -> Busy {
        self.stats.sleeps.add(1);
        let staged = self.as_staged(0, request, now);
        self.notes.note(Action::Sleep, now, &staged, NO_QUEUE);
        Busy
    }

    /// Gives any request a place; `None` if it was answered, or will be cut.
    ///
    /// # Errors
    /// [`Busy`]; nothing has changed.
    #[cold]
    pub(crate) fn admit_slowly(
        &mut self,
        now: Nanos,
        request: &Request,
    ) -> Result<Option<Staged>, Busy> {
        if let Some(status) = refusal(&self.limits, u32::MAX, request) {
            return self.answer(request.tag, status);
        }
        if request.op == Op::Flush && !self.limits.volatile_cache {
            return self.answer(request.tag, Status::SUCCESS);
        }
        let long = request.sectors > self.longest(request.op);
        if long && matches!(request.data, Payload::Scattered { .. }) {
            return self.answer(request.tag, Status::INVALID_FIELD);
        }
        let Some(id) = self.requests.add(request, now) else {
            return Err(self.sleep(now, request));
        };
        self.stats.submit(now);
        self.trace_queued(now, id, request.tag);
        let mut staged = self.as_staged(id, request, now);
        self.notes.note(Action::Queued, now, &staged, NO_QUEUE);
        if request.fua && !(self.limits.volatile_cache && self.features.fua) {
            // Without a cache every write is durable; without force unit access a flush follows.
            staged.request.fua = self.limits.volatile_cache;
            if self.limits.volatile_cache {
                self.requests.flush_after(id);
            }
        }
        if long {
            self.stats.splits.add(1);
            self.requests.cut(id);
            self.cutting.push_back(Cutting {
                parent: id,
                rest: staged.request,
                group: self.group,
                since: now,
            });
            return Ok(None);
        }
        Ok(Some(staged))
    }

    #[inline(always)]
    pub(crate) fn as_staged(&self, id: u32, request: &Request, since: Nanos) -> Staged {
        Staged {
            request: Request { tag: id.into(), ..*request },
            since,
            submitter: self.submitter,
            group: self.group,
            merged: 1,
            requeues: 0,
        }
    }

    /// Sectors of one command at most.
    #[inline]
    fn longest(&self, op: Op) -> u32 {
        match op {
            Op::Read | Op::Write => self.limits.max_sectors,
            // The command's count has 16 bits.
            Op::WriteZeroes => MAX_BLOCKS,
            Op::Discard | Op::Flush | Op::Extents => u32::MAX,
        }
    }

    #[cold]
    fn answer(&mut self, tag: u64, status: Status) -> Result<Option<Staged>, Busy> {
        // Memory stays bounded when nobody reaps.
        if self.ready.len() >= self.limits.queue_depth as usize {
            return Err(Busy);
        }
        self.stats.answered.add(1);
        self.ready.push_back(Completion { tag, status, result: 0 });
        self.answered_now = true;
        Ok(None)
    }

    /// Puts a request into the plug, or merges it with the last one that is there (as Linux does: a
    /// stream's next request is compared with its last).
    #[inline(always)]
    pub(crate) fn plug(&mut self, now: Nanos, id: u32, request: &Request) {
        let adjacent = self.plug.last().is_some_and(|last| {
            let end = request.lba.wrapping_add(request.sectors.into());
            self.merger.is_some() & ((last.end() == request.lba) | (last.request.lba == end))
        });
        if adjacent | self.notes.is_on() {
            let staged = self.as_staged(id, request, now);
            self.plug_slowly(now, &staged);
            return;
        }
        // Written where it stays: a copy right after the caller has written it would wait for that.
        self.plug.push(self.as_staged(id, request, now));
    }

    #[inline(never)]
    pub(crate) fn plug_slowly(&mut self, now: Nanos, staged: &Staged) {
        if let (Some(merger), Some(last)) = (&self.merger, self.plug.last_mut())
            && let Some(side) = merger.merge(last, staged)
        {
            let head = last.request.tag as u32;
            self.merged(now, staged, side, head);
            return;
        }
        self.notes.note(Action::GotRequest, now, staged, NO_QUEUE);
        if self.plug.is_empty() {
            self.notes.note(Action::Plug, now, staged, NO_QUEUE);
        }
        self.plug.push(*staged);
    }

    /// A request was merged into the one whose name is `head`.
    pub(crate) fn merged(&mut self, now: Nanos, staged: &Staged, side: Side, head: u32) {
        let (submitter, id) = (self.submitter.0, staged.request.tag as u32);
        self.requests.chain(head, id);
        tracepoint::trace_at(now, || Event::LayerMerged { submitter, head, id });
        self.stats.merge(staged.request.op);
        let action = match side {
            Side::Back => Action::BackMerge,
            Side::Front => Action::FrontMerge,
        };
        self.notes.note(action, now, staged, NO_QUEUE);
    }

    /// Whether there is a request to cut.
    #[inline]
    pub(crate) fn is_cutting(&self) -> bool {
        !self.cutting.is_empty()
    }

    /// Cuts long requests into pieces and plugs these, as far as there is room. Returns whether it
    /// cut any.
    pub(crate) fn cut(&mut self, now: Nanos) -> bool {
        let mut cut = false;
        while self.plug.len() < PLUG
            && let Some(Cutting { parent, rest, group, since }) = self.cutting.front().copied()
        {
            let sectors = rest.sectors.min(self.longest(rest.op));
            let Some(id) = self.requests.add_piece(parent, sectors) else { break };
            let submitter = self.submitter.0;
            tracepoint::trace_at(now, || Event::LayerSplit { submitter, parent, id });
            let piece = self.as_staged(id, &Request { sectors, ..rest }, since);
            let piece = Staged { group, ..piece };
            if sectors < rest.sectors {
                self.notes.note(Action::Split, now, &piece, NO_QUEUE);
            }
            self.notes.note(Action::GotRequest, now, &piece, NO_QUEUE);
            self.plug.push(piece);
            cut = true;
            let left = rest.sectors - sectors;
            if left > 0 {
                let bytes = u64::from(sectors) * u64::from(self.limits.sector_bytes);
                let data = match rest.data {
                    Payload::At(at) => Payload::At(at.offset(bytes)),
                    other => other,
                };
                let lba = rest.lba + u64::from(sectors);
                let rest = Request { lba, sectors: left, data, ..rest };
                if let Some(front) = self.cutting.front_mut() {
                    front.rest = rest;
                }
                continue;
            }
            self.cutting.pop_front();
            // The cutting itself has ended; the piece just made has not.
            self.requests.end_piece(parent, Status::SUCCESS, now, &self.stats, &mut |_| {});
        }
        cut
    }

    /// A request of this submitter has ended. Returns the flush that must follow it, if one must.
    #[inline]
    pub(crate) fn finish(&mut self, now: Nanos, ended: &Ended) -> Option<Staged> {
        let Ended { id, status, result, .. } = *ended;
        if let Some(completion) = self.requests.end_single(id, status, result, now, &self.stats) {
            self.ready.push_back(completion);
            return None;
        }
        self.finish_slowly(now, ended)
    }

    /// The completion of a request that has ended and that nothing is special about.
    #[inline(always)]
    pub(crate) fn finish_single(&mut self, now: Nanos, ended: &Ended) -> Option<Completion> {
        self.requests.end_single(ended.id, ended.status, ended.result, now, &self.stats)
    }

    #[cold]
    pub(crate) fn finish_slowly(&mut self, now: Nanos, ended: &Ended) -> Option<Staged> {
        let (ready, stats) = (&mut self.ready, &self.stats);
        let Ended { id, status, result, .. } = *ended;
        let outcome =
            self.requests.end(id, status, result, now, stats, &mut |c| ready.push_back(c));
        match outcome {
            Outcome::Done => None,
            Outcome::FlushFirst(id) => Some(self.as_staged(id, &Request::flush(0), now)),
            Outcome::Stray => {
                self.stats.strays.add(1);
                None
            }
        }
    }
}
