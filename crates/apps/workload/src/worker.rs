//! [`JobThread`]: one job or one clone of it, with a virtual CPU and a slot per outstanding
//! request.
//!
//! The CPU does one thing at a time: it first processes completions, then submits. A request that
//! it starts to submit reaches the device after the cost of submission; completions that arrive
//! meanwhile wait. A running job does not allocate.

use std::collections::VecDeque;
use std::sync::Arc;

use block::{BlockDevice, Limits, Payload, Request};
use clock::Nanos;
use nvme::Status;
use ring::{Iova, SharedRegion};
use rng::Rng;
use tracepoint::{Event, RequestOp};

use crate::error::RunError;
use crate::io_range::{IoRange, io_range, largest_block};
use crate::job::{Direction, JobSpec};
use crate::job_log::JobLogs;
use crate::job_runner::IoCpuCosts;
use crate::latency_recorder::{LatencyRecorder, Timestamps};
use crate::result::{ErrorCause, IoFailure};
use crate::source::{IoKind, IssueDecision, NextIo, Source};
use crate::verify::VerifyState;

mod depth_search;
mod finish;
mod io_slot;
mod payload;

use depth_search::{DepthSearch, SearchStep};
use io_slot::{EMPTY_SLOT, IoSlot};
pub(crate) use io_slot::{SLOT_BYTES, initial_slot_count};

/// State that all threads of a runner share.
#[derive(Debug)]
pub(crate) struct RunContext {
    pub(crate) limits: Limits,
    pub(crate) costs: IoCpuCosts,
    pub(crate) verify_state: Option<VerifyState>,
    pub(crate) buffers: Option<VerifyBuffers>,
    /// Whether a request could not be submitted to the device.
    pub(crate) submit_failed: bool,
    /// Start of the run.
    pub(crate) epoch: Nanos,
}

/// Registered memory for the payloads of verifying jobs.
#[derive(Debug)]
pub(crate) struct VerifyBuffers {
    pub(crate) region: Arc<SharedRegion>,
    pub(crate) base: Iova,
    /// Scratch buffer of one sector.
    pub(crate) scratch: Vec<u8>,
}

/// Result of a [`JobThread::step`].
pub(crate) struct StepResult {
    pub(crate) made_progress: bool,
    /// Time at which the thread must run again even if nothing completes.
    pub(crate) ready_at: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for its stage, then for its start delay.
    Waiting,
    Running,
    /// Executes the flush of `end_fsync`.
    EndFlush,
    /// Reads the written sectors back, from this sector on.
    ReadBack {
        next: u64,
    },
    Done,
}

/// Returns the tag of the request in a slot of job `index`;
/// [`job_index_of_tag`](crate::job_runner::job_index_of_tag) is the inverse.
#[inline]
fn tag(index: u64, slot: u32) -> u64 {
    index << 32 | u64::from(slot)
}

fn request_op(kind: IoKind) -> RequestOp {
    match kind {
        IoKind::Transfer(Direction::Read) => RequestOp::Read,
        IoKind::Transfer(Direction::Write) => RequestOp::Write,
        IoKind::Transfer(Direction::Trim) => RequestOp::Trim,
        IoKind::Flush => RequestOp::Flush,
    }
}

#[derive(Debug)]
pub(crate) struct JobThread {
    spec: JobSpec,
    /// State of the random number generator at the start of each loop.
    rng: Rng,
    loops_remaining: u32,
    stage: u32,
    group: u32,
    io_range: IoRange,
    source: Source,
    phase: Phase,
    slots: Vec<IoSlot>,
    free: Vec<u32>,
    /// Maximum number of slots.
    depth: usize,
    search: Option<Box<DepthSearch>>,
    outstanding: u32,
    /// Slots of completed requests that wait for the CPU.
    completed_slots: VecDeque<u32>,
    /// Slots of completed trims whose writes are to be issued.
    trimmed_slots: VecDeque<u32>,
    /// Slot of a request that reaches the device at the slot's `issued` time.
    pending: Option<u32>,
    is_blocked: bool,
    cpu_free: Nanos,
    cpu_busy: Nanos,
    started: Nanos,
    end_time: Nanos,
    main_end: Nanos,
    ended_at: Nanos,
    /// Start of the current loop, or of the measurement if that was later.
    loop_started: Nanos,
    /// Time of reading back in all loops.
    read_back_time: Nanos,
    /// Whether the main phase issues no more requests: at its end, after a failure, or after a call
    /// of `stop`.
    is_stopping: bool,
    aborted: bool,
    has_think_time: bool,
    issued_since_think: u64,
    think_until: Nanos,
    /// Bytes of payload per slot, and offset of the first slot's payload.
    slot_bytes: u64,
    buffer_offset: u64,
    /// Expected content of each sector of each slot's read, for verifying jobs.
    expected: Vec<u32>,
    recorder: LatencyRecorder,
}

impl JobThread {
    pub(crate) fn new(
        mut spec: JobSpec,
        clone: u32,
        stage: u32,
        group: u32,
        limits: &Limits,
        rng: Rng,
    ) -> Result<JobThread, RunError> {
        let area = io_range(&spec, clone, limits)
            .map_err(|what| RunError::DeviceMismatch { job: spec.name.clone(), what })?;
        let source = Source::new(&spec, area, limits, &rng)?;
        let uses = match &source {
            Source::Replay(replay) => {
                spec.iodepth.get_or_insert(replay.default_depth());
                [true; 3]
            }
            Source::Generated(_) => spec.access.uses,
        };
        let depth = spec.depth();
        let reserved = initial_slot_count(&spec, limits) as usize;
        let mut slots = Vec::with_capacity(reserved);
        let mut free = Vec::with_capacity(reserved);
        if spec.verify {
            slots.resize(depth as usize, EMPTY_SLOT);
            free.extend((0..depth).rev());
        }
        let slot_bytes = if spec.verify { largest_block(&spec) } else { 0 };
        let slot_sectors = slot_bytes / u64::from(limits.sector_bytes);
        Ok(JobThread {
            rng,
            loops_remaining: spec.loops.saturating_sub(1),
            stage,
            group,
            io_range: area,
            source,
            phase: Phase::Waiting,
            slots,
            free,
            depth: depth as usize,
            search: spec.latency_target.map(|t| Box::new(DepthSearch::new(t, depth))),
            outstanding: 0,
            completed_slots: VecDeque::with_capacity(reserved),
            trimmed_slots: VecDeque::with_capacity(reserved),
            pending: None,
            is_blocked: false,
            cpu_free: Nanos::ZERO,
            cpu_busy: Nanos::ZERO,
            started: Nanos::ZERO,
            end_time: Nanos::MAX,
            main_end: Nanos::ZERO,
            ended_at: Nanos::ZERO,
            loop_started: Nanos::ZERO,
            read_back_time: Nanos::ZERO,
            is_stopping: false,
            aborted: false,
            has_think_time: spec.thinktime > Nanos::ZERO,
            issued_since_think: 0,
            think_until: Nanos::ZERO,
            slot_bytes,
            buffer_offset: 0,
            expected: vec![0; (slot_sectors * u64::from(depth)) as usize],
            recorder: LatencyRecorder::new(uses),
            spec,
        })
    }

    /// Opens the logs of the job; `index` is its index among all jobs and clones, from 1.
    pub(crate) fn open_logs(&mut self, index: usize) -> Result<(), RunError> {
        if let Some(logs) = JobLogs::create(&self.spec, index)? {
            self.recorder.set_logs(logs);
        }
        Ok(())
    }

    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    pub(crate) fn stage(&self) -> u32 {
        self.stage
    }

    pub(crate) fn has_verify(&self) -> bool {
        self.spec.verify
    }

    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    #[inline]
    pub(crate) fn cpu_free(&self) -> Nanos {
        self.cpu_free
    }

    /// Returns whether the job runs until a time, independent of its requests.
    pub(crate) fn is_time_bound(&self) -> bool {
        self.phase == Phase::Running && self.spec.time_based
    }

    /// Starts the stage of the job; returns the time at which the thread must run.
    pub(crate) fn start(&mut self, now: Nanos) -> Nanos {
        self.started = now + self.spec.startdelay;
        self.started
    }

    /// Stops the job early.
    pub(crate) fn stop(&mut self, now: Nanos) {
        (self.is_stopping, self.loops_remaining) = (true, 0);
        self.spec.do_verify = false;
        if self.phase == Phase::Waiting {
            (self.phase, self.ended_at) = (Phase::Done, now);
        }
    }

    fn begin(&mut self, epoch: Nanos) {
        self.phase = Phase::Running;
        let measure_from = self.started + self.spec.ramp_time;
        self.end_time = self.spec.runtime.map_or(Nanos::MAX, |r| measure_from + r);
        self.recorder.start(epoch, measure_from);
        self.loop_started = measure_from;
        self.source.start(self.started);
        if let Some(search) = &mut self.search {
            search.start(measure_from);
        }
    }

    /// Processes the completion of a fragment of the request in `slot`.
    ///
    /// # Errors
    /// `Err(())` if there is no such request.
    #[inline]
    pub(crate) fn on_completion(&mut self, slot: u32, status: Status) -> Result<(), ()> {
        let Some(s) = self.slots.get_mut(slot as usize).filter(|s| s.fragments > 0) else {
            return Err(());
        };
        s.fragments -= 1;
        if !status.is_success() && s.status.is_success() {
            s.status = status;
        }
        if s.fragments == 0 && self.pending != Some(slot) {
            self.completed_slots.push_back(slot);
        }
        Ok(())
    }

    /// Does all the work that is possible at this time.
    #[inline]
    pub(crate) fn step<D: BlockDevice>(
        &mut self,
        now: Nanos,
        index: u64,
        device: &mut D,
        shared: &mut RunContext,
    ) -> Result<StepResult, RunError> {
        if self.phase == Phase::Waiting {
            if now < self.started {
                return Ok(StepResult { made_progress: false, ready_at: self.started });
            }
            self.begin(shared.epoch);
        }
        let mut moved = false;
        loop {
            if let Some(slot) = self.pending {
                let issue_at = self.slots[slot as usize].issued;
                if issue_at > now {
                    return Ok(StepResult { made_progress: moved, ready_at: issue_at });
                }
                if self.send(now, index, slot, device, shared) {
                    self.is_blocked = false;
                    moved = true;
                } else if self.completed_slots.is_empty() {
                    (self.is_blocked, shared.submit_failed) = (true, true);
                    return Ok(StepResult { made_progress: moved, ready_at: Nanos::MAX });
                } else {
                    // The completed requests may be those that block the submission.
                    self.slots[slot as usize].issued = self.handle_completed(now, index, shared);
                    moved = true;
                    continue;
                }
            }
            if self.cpu_free > now {
                return Ok(StepResult { made_progress: moved, ready_at: self.cpu_free });
            }
            moved |= !self.completed_slots.is_empty();
            let at = self.handle_completed(now, index, shared);
            match self.next(at, shared)? {
                Some(IssueDecision::Now(wanted)) => {
                    self.prepare(wanted, at, shared.costs.submit);
                    moved = true;
                }
                Some(IssueDecision::WaitUntil(then)) => {
                    return Ok(StepResult { made_progress: moved, ready_at: then });
                }
                // Only a completion, or the end of its processing, can change the state.
                Some(IssueDecision::End) | None => {
                    let ready_at = if at > now { at } else { Nanos::MAX };
                    return Ok(StepResult { made_progress: moved, ready_at });
                }
            }
        }
    }

    /// Processes all completions on the CPU; returns the time at which the CPU is idle again.
    #[inline]
    fn handle_completed(&mut self, now: Nanos, index: u64, shared: &mut RunContext) -> Nanos {
        let mut at = now;
        while let Some(slot) = self.completed_slots.pop_front() {
            at += shared.costs.complete;
            self.cpu_busy += shared.costs.complete;
            self.handle(slot, at, shared);
            tracepoint::trace_at(now, || {
                let ended = &self.slots[slot as usize];
                let measured =
                    ended.status.is_success() && ended.wanted >= self.recorder.measure_from();
                Event::RequestReaped { tag: tag(index, slot), at, measured }
            });
        }
        self.cpu_free = at;
        at
    }

    /// Returns the request to issue at `at`, or `None` if the thread waits for an outstanding
    /// request or has no more requests.
    #[inline]
    fn next(
        &mut self,
        at: Nanos,
        shared: &mut RunContext,
    ) -> Result<Option<IssueDecision>, RunError> {
        loop {
            match self.phase {
                Phase::Running => {
                    if at >= self.end_time {
                        (self.is_stopping, self.loops_remaining) = (true, 0);
                    }
                    if self.is_stopping {
                        self.drop_chained();
                        if self.outstanding > 0 {
                            return Ok(None);
                        }
                        self.finish_main(at);
                        continue;
                    }
                    if self.has_think_time {
                        if self.issued_since_think >= self.spec.thinktime_blocks {
                            return Ok(None);
                        }
                        if at < self.think_until {
                            return Ok(Some(IssueDecision::WaitUntil(
                                self.think_until.min(self.end_time),
                            )));
                        }
                    }
                    if let Some(&slot) = self.trimmed_slots.front() {
                        let IoSlot { io: NextIo { lba, sectors, .. }, .. } =
                            self.slots[slot as usize];
                        let kind = IoKind::Transfer(Direction::Write);
                        return Ok(Some(IssueDecision::Now(NextIo { kind, lba, sectors })));
                    }
                    if !self.has_slot() || !self.can_issue_in_search(at) {
                        return Ok(None);
                    }
                    let next = self.source.next(at);
                    let job = &self.spec.name;
                    let next =
                        next.map_err(|source| RunError::Trace { job: job.clone(), source })?;
                    match next {
                        // Trims that are still outstanding will be followed by writes.
                        IssueDecision::End
                            if self.spec.access.is_trim_write() && self.outstanding > 0 =>
                        {
                            return Ok(None);
                        }
                        IssueDecision::End => self.is_stopping = true,
                        IssueDecision::WaitUntil(then) => {
                            return Ok(Some(IssueDecision::WaitUntil(then.min(self.end_time))));
                        }
                        IssueDecision::Now(wanted) => return Ok(Some(IssueDecision::Now(wanted))),
                    }
                }
                Phase::EndFlush => {
                    self.phase = self.read_back_phase();
                    let wanted = NextIo { kind: IoKind::Flush, lba: 0, sectors: 0 };
                    return Ok(Some(IssueDecision::Now(wanted)));
                }
                Phase::ReadBack { next } => {
                    if !self.has_slot() {
                        return Ok(None);
                    }
                    match self.next_written_range(next, shared) {
                        Some((lba, sectors)) if !self.aborted && self.spec.do_verify => {
                            self.phase = Phase::ReadBack { next: lba + u64::from(sectors) };
                            let kind = IoKind::Transfer(Direction::Read);
                            return Ok(Some(IssueDecision::Now(NextIo { kind, lba, sectors })));
                        }
                        _ if self.outstanding > 0 => return Ok(None),
                        _ => {
                            self.finish_read_back(at);
                            if self.loops_remaining > 0 {
                                self.begin_loop(at, shared)?;
                            } else {
                                (self.phase, self.ended_at) = (Phase::Done, at);
                            }
                        }
                    }
                }
                Phase::Waiting | Phase::Done => return Ok(None),
            }
        }
    }

    /// Drops the trims whose writes will not be issued any more.
    fn drop_chained(&mut self) {
        while let Some(slot) = self.trimmed_slots.pop_front() {
            self.free.push(slot);
        }
    }

    /// Allocates a slot for `wanted`; it reaches the device after the CPU time of its submission.
    #[inline]
    fn prepare(&mut self, wanted: NextIo, at: Nanos, cost: Nanos) {
        let chained = self.trimmed_slots.pop_front();
        let Some(slot) = chained.or_else(|| self.allocate_slot()) else {
            return;
        };
        let mut wanted_at = at;
        match &mut self.source {
            Source::Generated(g) if chained.is_some() => g.write_after_trim(wanted.sectors),
            Source::Generated(_) => {}
            Source::Replay(r) => {
                if let Some(due) = r.due.take() {
                    self.recorder.delayed += u64::from(due < at);
                    wanted_at = due;
                }
            }
        }
        self.slots[slot as usize] =
            IoSlot { wanted: wanted_at, issued: at + cost, io: wanted, ..EMPTY_SLOT };
        self.pending = Some(slot);
        self.cpu_free = at + cost;
        self.cpu_busy += cost;
        self.outstanding += 1;
        self.issued_since_think += 1;
    }

    /// Submits the pending request to the device, in fragments if it exceeds the device's maximum
    /// length. Returns `false` if the device or a write to the same sectors blocks it.
    #[inline]
    fn send<D: BlockDevice>(
        &mut self,
        now: Nanos,
        index: u64,
        slot: u32,
        device: &mut D,
        shared: &mut RunContext,
    ) -> bool {
        if shared.verify_state.is_some() && !self.prepare_payload(slot, shared) {
            return false;
        }
        let tag = tag(index, slot);
        let s = &mut self.slots[slot as usize];
        let NextIo { kind, lba, sectors } = s.io;
        loop {
            let part = (sectors - s.sectors_submitted).min(shared.limits.max_sectors);
            let data = match &shared.buffers {
                Some(buffers) if self.slot_bytes > 0 => {
                    let skip =
                        u64::from(s.sectors_submitted) * u64::from(shared.limits.sector_bytes);
                    let at = self.buffer_offset + u64::from(slot) * self.slot_bytes + skip;
                    Payload::Contiguous(buffers.base.offset(at))
                }
                _ => Payload::BitBucket,
            };
            let at = lba + u64::from(s.sectors_submitted);
            let request = match kind {
                IoKind::Transfer(Direction::Read) => Request::read(at, part, data, tag),
                IoKind::Transfer(Direction::Write) => Request::write(at, part, data, tag),
                IoKind::Transfer(Direction::Trim) => Request::discard(at, part, tag),
                IoKind::Flush => Request::flush(tag),
            };
            if device.submit(now, request).is_err() {
                return false;
            }
            s.sectors_submitted += part;
            s.fragments += 1;
            if s.sectors_submitted == sectors {
                break;
            }
        }
        let (wanted, ready) = (s.wanted, s.issued);
        tracepoint::trace_at(now, || {
            let op = request_op(kind);
            Event::RequestIssued { tag, op, lba, sectors, intended_at: wanted, ready }
        });
        s.issued = now;
        self.pending = None;
        self.recorder.issue(self.outstanding);
        true
    }

    /// Processes a completion on the CPU until `at`.
    #[inline]
    fn handle(&mut self, slot: u32, at: Nanos, shared: &mut RunContext) {
        let s = self.slots[slot as usize];
        let NextIo { kind, lba, sectors } = s.io;
        self.outstanding -= 1;
        let times = Timestamps { wanted: s.wanted, issued: s.issued, completed: at };
        let success = s.status.is_success();
        if shared.verify_state.is_some() {
            self.finish_verify(slot, at, shared);
        }
        match kind {
            _ if !success => {
                let what = match kind {
                    IoKind::Transfer(direction) => direction.name(),
                    IoKind::Flush => "sync",
                };
                self.recorder.fail(IoFailure {
                    op: what,
                    lba,
                    sectors,
                    at,
                    cause: ErrorCause::Status(s.status),
                });
                let tolerance = self.spec.continue_on_error;
                let read = kind == IoKind::Transfer(Direction::Read);
                self.abort_unless(if read { tolerance.read } else { tolerance.write });
            }
            IoKind::Transfer(direction) => {
                let sector = u64::from(shared.limits.sector_bytes);
                self.recorder.complete(direction, lba * sector, u64::from(sectors) * sector, times);
                if self.search.is_some() {
                    self.record_search_latency(at, times);
                }
            }
            // As in fio, the flush at the end does not count among the job's requests.
            IoKind::Flush => self.recorder.complete_sync(times, self.phase == Phase::Running),
        }
        let follows = kind == IoKind::Transfer(Direction::Trim) && self.spec.access.is_trim_write();
        if follows && success && self.spec.replay.is_none() {
            self.trimmed_slots.push_back(slot);
        } else {
            self.free.push(slot);
        }
        if self.has_think_time
            && self.outstanding == 0
            && self.issued_since_think >= self.spec.thinktime_blocks
        {
            self.issued_since_think = 0;
            self.think_until = at + self.spec.thinktime;
        }
    }

    fn abort_unless(&mut self, tolerated: bool) {
        if !tolerated {
            (self.aborted, self.is_stopping, self.loops_remaining) = (true, true, 0);
        }
    }

    /// Returns whether a search for a depth permits another request at `at`.
    #[inline]
    fn can_issue_in_search(&mut self, at: Nanos) -> bool {
        let outstanding = self.outstanding;
        self.search.as_mut().is_none_or(|search| search.can_issue(at, outstanding))
    }

    /// Reports a completed request to the search for a depth.
    fn record_search_latency(&mut self, at: Nanos, times: Timestamps) {
        let measured = self.phase == Phase::Running && times.wanted >= self.recorder.measure_from();
        let Some(search) = self.search.as_mut().filter(|_| measured && !self.is_stopping) else {
            return;
        };
        match search.complete(at, times.completed.since(times.wanted)) {
            SearchStep::Continue => {}
            SearchStep::Converged => {
                self.recorder.restart(at);
                self.loop_started = at;
            }
            SearchStep::Done => (self.is_stopping, self.loops_remaining) = (true, 0),
        }
    }
}
