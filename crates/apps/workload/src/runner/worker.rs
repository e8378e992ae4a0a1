//! [`JobThread`]: one job or one clone of it, with a virtual CPU and a slot per outstanding
//! request.
//!
//! The CPU does one thing at a time: it first processes completions, then submits. A request that
//! it starts to submit reaches the device after the cost of submission; completions that arrive
//! meanwhile wait. A running job does not allocate.

use std::sync::Arc;

use block::{Limits, Payload, Request};
use mem::{Iova, SharedRegion};
use nvme::Status;
use rng::Rng;
use time::Nanos;
use tracepoint::{Event, RequestOp};

use crate::device::{Addressing, DeviceSpace, JobDevice, JobOperation};
use crate::error::RunError;
use crate::io_range::{IoRange, io_range};
use crate::job::{Direction, JobSpec};
use crate::results::job_log::JobLogs;
use crate::results::latency_recorder::{LatencyRecorder, Timestamps};
use crate::results::result::{ErrorCause, IoFailure};
use crate::runner::chunk_states::ChunkStates;
use crate::runner::job_runner::{IoCpuCosts, JobPart};
use crate::runner::pattern::GivenRanks;
use crate::runner::source::{IoKind, IssueDecision, NextIo, RequestSource};
use crate::runner::stages::JobStages;
use crate::runner::verify::VerifyState;

mod depth_search;
mod finish;
mod io_slot;
mod job_times;
mod payload;
mod records;
mod think_time;
mod vectors;

use depth_search::DepthSearch;
use io_slot::{EMPTY_SLOT, IoSlot, IoSlots};
pub(crate) use io_slot::{SLOT_BYTES, initial_slot_count};
use job_times::JobTimes;
use payload::Payloads;
use think_time::ThinkTime;

/// State that all threads of a runner share.
#[derive(Debug)]
pub(crate) struct RunContext {
    pub(crate) limits: Limits,
    pub(crate) costs: IoCpuCosts,
    /// The jobs of the runner, of those that tags count.
    pub(crate) part: JobPart,
    /// The stages of the jobs of all threads, if there are several threads.
    pub(crate) stages: Option<Arc<JobStages>>,
    pub(crate) verify_state: Option<VerifyState>,
    pub(crate) buffers: Option<PayloadMemory>,
    /// The chunks of parallel units.
    pub(crate) chunks: Option<Box<ChunkStates>>,
    /// Whether completed requests have steps besides their accounting: data is verified, or they
    /// are operations on records or on parallel units.
    pub(crate) has_completion_steps: bool,
    /// Whether a request could not be submitted to the device.
    pub(crate) submit_failed: bool,
    /// Start of the run.
    pub(crate) epoch: Nanos,
}

/// Registered memory for the payloads of jobs.
#[derive(Debug)]
pub(crate) struct PayloadMemory {
    pub(crate) region: Arc<SharedRegion>,
    pub(crate) base: Iova,
    /// Scratch buffer of one sector or value.
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
/// [`job_index_of_tag`](crate::runner::job_runner::job_index_of_tag) is the inverse.
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
    stage: u32,
    group: u32,
    io_range: IoRange,
    source: RequestSource,
    phase: Phase,
    slots: IoSlots,
    search: Option<Box<DepthSearch>>,
    cpu: JobCpu,
    times: JobTimes,
    ending: Ending,
    think: ThinkTime,
    payloads: Payloads,
    recorder: LatencyRecorder,
}

/// The virtual CPU of a job.
#[derive(Debug, Default)]
struct JobCpu {
    /// Time at which it is idle again.
    free_at: Nanos,
    /// Total busy time.
    busy: Nanos,
}

impl JobCpu {
    /// Occupies the CPU from `at` on. Returns the end.
    #[inline]
    fn run(&mut self, at: Nanos, cost: Nanos) -> Nanos {
        self.busy += cost;
        self.free_at = at + cost;
        self.free_at
    }
}

/// How a job ends.
#[derive(Debug)]
struct Ending {
    loops_remaining: u32,
    /// Whether the main phase issues no more requests: at its end, after a failure, or after a call
    /// of `stop`.
    is_stopping: bool,
    aborted: bool,
}

impl Ending {
    /// Ends the main phase, and with it the job.
    fn stop(&mut self) {
        (self.is_stopping, self.loops_remaining) = (true, 0);
    }

    /// Ends the job after a failure.
    fn abort(&mut self) {
        self.aborted = true;
        self.stop();
    }

    /// Starts the next loop.
    fn begin_loop(&mut self) {
        self.loops_remaining -= 1;
        self.is_stopping = false;
    }
}

impl JobThread {
    pub(crate) fn new(
        mut spec: JobSpec,
        clone: u32,
        stage: u32,
        group: u32,
        limits: DeviceSpace<'_>,
        rng: Rng,
    ) -> Result<JobThread, RunError> {
        let area = io_range(&spec, clone, limits.sectors)
            .map_err(|what| RunError::DeviceMismatch { job: spec.name.clone(), what })?;
        spec.set_ycsb_directions();
        let source = RequestSource::new(&spec, clone, area, limits, &rng)?;
        let uses = match &source {
            RequestSource::Replay(replay) => {
                spec.iodepth.get_or_insert(replay.default_depth());
                [true; 3]
            }
            RequestSource::Generated(_) | RequestSource::Keys(_) => spec.pattern.access.uses,
            // A writer resets chunks.
            RequestSource::Units(_) => {
                let [reads, writes, _] = spec.pattern.access.uses;
                [reads, writes, writes]
            }
        };
        let depth = spec.depth();
        let reserved = initial_slot_count(&spec, limits.sectors) as usize;
        let slot_bytes = spec.payload_bytes();
        let slot_sectors = match spec.addressing() {
            Addressing::Blocks | Addressing::Units => {
                slot_bytes / u64::from(limits.sectors.sector_bytes)
            }
            Addressing::Keys => 1,
        };
        Ok(JobThread {
            rng,
            stage,
            group,
            io_range: area,
            source,
            phase: Phase::Waiting,
            slots: IoSlots::new(depth, reserved, spec.has_payloads()),
            search: spec.latency_target.map(|t| Box::new(DepthSearch::new(t, depth))),
            cpu: JobCpu::default(),
            times: JobTimes::default(),
            ending: Ending {
                loops_remaining: spec.schedule.loops.saturating_sub(1),
                is_stopping: false,
                aborted: false,
            },
            think: ThinkTime::new(spec.pace.thinktime, spec.pace.thinktime_blocks),
            payloads: Payloads::new(slot_bytes, slot_sectors, depth),
            recorder: LatencyRecorder::new(uses),
            spec,
        })
    }

    /// Accesses the blocks of `ranks` before its own.
    ///
    /// # Panics
    /// If the job generates no blocks.
    pub(super) fn access_first(&mut self, ranks: GivenRanks) {
        match &mut self.source {
            RequestSource::Generated(generated) => generated.access_first(ranks),
            other => panic!("ranks of blocks for {other:?}"),
        }
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
        self.spec.integrity.verify
    }

    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.slots.is_blocked()
    }

    #[inline]
    pub(crate) fn cpu_free(&self) -> Nanos {
        self.cpu.free_at
    }

    /// Returns whether the job runs until a time, independent of its requests.
    pub(crate) fn is_time_bound(&self) -> bool {
        self.phase == Phase::Running && self.spec.schedule.time_based
    }

    /// Starts the stage of the job; returns the time at which the thread must run.
    pub(crate) fn start(&mut self, now: Nanos) -> Nanos {
        self.times.start(now + self.spec.schedule.startdelay)
    }

    /// Stops the job early.
    pub(crate) fn stop(&mut self, now: Nanos) {
        self.ending.stop();
        self.spec.integrity.do_verify = false;
        if self.phase == Phase::Waiting {
            self.end(now);
        }
    }

    /// Ends the job.
    fn end(&mut self, at: Nanos) {
        self.phase = Phase::Done;
        self.times.end(at);
    }

    fn begin(&mut self, epoch: Nanos) {
        self.phase = Phase::Running;
        let measure_from =
            self.times.measure_from(self.spec.schedule.ramp_time, self.spec.schedule.runtime);
        self.recorder.start(epoch, measure_from);
        self.source.start(self.times.started());
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
        self.slots.on_completion(slot, status)
    }

    /// Does all the work that is possible at this time.
    #[inline]
    pub(crate) fn step<D: JobDevice>(
        &mut self,
        now: Nanos,
        index: u64,
        device: &mut D,
        shared: &mut RunContext,
    ) -> Result<StepResult, RunError> {
        if self.phase == Phase::Waiting {
            if now < self.times.started() {
                return Ok(StepResult { made_progress: false, ready_at: self.times.started() });
            }
            self.begin(shared.epoch);
        }
        let mut moved = false;
        let mut now = now;
        loop {
            now = device.time_after(now);
            if let Some(slot) = self.slots.pending() {
                let issue_at = self.slots.get(slot).issued;
                if issue_at > now {
                    return Ok(StepResult { made_progress: moved, ready_at: issue_at });
                }
                if self.send(now, index, slot, device, shared) {
                    moved = true;
                } else if !self.slots.has_completed() {
                    self.slots.set_blocked();
                    shared.submit_failed = true;
                    return Ok(StepResult { made_progress: moved, ready_at: Nanos::MAX });
                } else {
                    // The completed requests may be those that block the submission.
                    let issue_at = self.handle_completed(now, index, shared);
                    self.slots.get_mut(slot).issued = issue_at;
                    moved = true;
                    continue;
                }
            }
            if self.cpu.free_at > now {
                return Ok(StepResult { made_progress: moved, ready_at: self.cpu.free_at });
            }
            let mut at = now;
            if self.slots.has_completed() {
                at = self.handle_completed(now, index, shared);
                moved = true;
            }
            match self.next(at, shared)? {
                Some(IssueDecision::Now(wanted)) => {
                    self.prepare(wanted, at, shared.costs.submit);
                    moved = true;
                }
                Some(IssueDecision::WaitUntil(then)) => {
                    return Ok(StepResult { made_progress: moved, ready_at: then });
                }
                // Only a completion, or the end of its processing, can change the state.
                Some(IssueDecision::End | IssueDecision::WaitForCompletion) | None => {
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
        self.cpu.free_at = now;
        while let Some(slot) = self.slots.pop_completed() {
            at = self.cpu.run(at, shared.costs.complete);
            self.handle(slot, at, shared);
            tracepoint::trace_at(now, || {
                let ended = self.slots.get(slot);
                let measured =
                    ended.status.is_success() && ended.wanted >= self.recorder.measure_from();
                Event::RequestReaped { tag: tag(index, slot), at, measured }
            });
        }
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
                    if at >= self.times.end_time() {
                        self.ending.stop();
                    }
                    if self.ending.is_stopping {
                        self.slots.drop_trimmed();
                        if self.slots.outstanding() > 0 {
                            return Ok(None);
                        }
                        self.finish_main(at);
                        continue;
                    }
                    match self.think.issue_at(at) {
                        Some(then) if at >= then => {}
                        Some(then) => {
                            return Ok(Some(IssueDecision::WaitUntil(
                                then.min(self.times.end_time()),
                            )));
                        }
                        None => return Ok(None),
                    }
                    if let Some(NextIo { lba, sectors, .. }) = self.slots.front_trimmed() {
                        let kind = IoKind::Transfer(Direction::Write);
                        return Ok(Some(IssueDecision::Now(NextIo { kind, lba, sectors })));
                    }
                    if !self.slots.has_free() || !self.can_issue_in_search(at) {
                        return Ok(None);
                    }
                    let next = self.source.next(at, &mut shared.chunks);
                    let next = next.map_err(|error| error.of_job(&self.spec.name))?;
                    match next {
                        // Trims that are still outstanding will be followed by writes.
                        IssueDecision::End
                            if self.spec.pattern.access.is_trim_write()
                                && self.slots.outstanding() > 0 =>
                        {
                            return Ok(None);
                        }
                        IssueDecision::End => self.ending.is_stopping = true,
                        IssueDecision::WaitForCompletion => return Ok(None),
                        IssueDecision::WaitUntil(then) => {
                            let then = then.min(self.times.end_time());
                            return Ok(Some(IssueDecision::WaitUntil(then)));
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
                    if !self.slots.has_free() {
                        return Ok(None);
                    }
                    match self.next_written_range(next, shared) {
                        Some((lba, sectors))
                            if !self.ending.aborted && self.spec.integrity.do_verify =>
                        {
                            self.phase = Phase::ReadBack { next: lba + u64::from(sectors) };
                            if let Some(chunks) = &mut shared.chunks {
                                chunks.begin_read(lba);
                            }
                            let kind = IoKind::Transfer(Direction::Read);
                            return Ok(Some(IssueDecision::Now(NextIo { kind, lba, sectors })));
                        }
                        _ if self.slots.outstanding() > 0 => return Ok(None),
                        _ => {
                            self.finish_read_back(at);
                            if self.ending.loops_remaining > 0 {
                                self.begin_loop(at, shared)?;
                            } else {
                                self.end(at);
                            }
                        }
                    }
                }
                Phase::Waiting | Phase::Done => return Ok(None),
            }
        }
    }

    /// Allocates a slot for `wanted`; it reaches the device after the CPU time of its submission.
    #[inline]
    fn prepare(&mut self, wanted: NextIo, at: Nanos, cost: Nanos) {
        let chained = self.slots.pop_trimmed();
        let Some(slot) = chained.or_else(|| self.slots.allocate()) else {
            return;
        };
        let mut wanted_at = at;
        match &mut self.source {
            RequestSource::Generated(g) if chained.is_some() => g.write_after_trim(wanted.sectors),
            RequestSource::Generated(_) => {}
            // Units have their state by chunk, not by slot.
            RequestSource::Units(_) => {}
            RequestSource::Replay(_) | RequestSource::Keys(_) => {
                wanted_at = self.prepare_not_generated(slot, chained.is_some(), at);
            }
        }
        let issued = self.cpu.run(at, cost);
        self.slots.prepare(slot, IoSlot { wanted: wanted_at, issued, io: wanted, ..EMPTY_SLOT });
        self.think.on_issue();
    }

    /// Submits the pending request to the device, in fragments if it exceeds the device's maximum
    /// length. Returns `false` if the device or a write to the same sectors blocks it.
    #[inline]
    fn send<D: JobDevice>(
        &mut self,
        now: Nanos,
        index: u64,
        slot: u32,
        device: &mut D,
        shared: &mut RunContext,
    ) -> bool {
        if device.addressing() == Addressing::Keys {
            return self.send_record(now, index, slot, device, shared);
        }
        let units = device.addressing() == Addressing::Units;
        if units && !shared.can_send_vector(self.slots.get(slot).io) {
            return false;
        }
        if shared.verify_state.is_some() && !self.prepare_payload(slot, shared) {
            return false;
        }
        let tag = tag(index, slot);
        let s = self.slots.get_mut(slot);
        let NextIo { kind, lba, sectors } = s.io;
        loop {
            let part = match kind {
                // One command resets a chunk.
                IoKind::Transfer(Direction::Trim) if units => sectors,
                _ => (sectors - s.sectors_submitted).min(shared.limits.max_sectors),
            };
            let data = match &shared.buffers {
                Some(buffers) if self.payloads.has_buffers() => {
                    let skip =
                        u64::from(s.sectors_submitted) * u64::from(shared.limits.sector_bytes);
                    Payload::Contiguous(buffers.base.offset(self.payloads.offset(slot) + skip))
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
            if device.submit(now, JobOperation::Block(request)).is_err() {
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
        self.slots.end_pending();
        self.recorder.issue(self.slots.outstanding());
        true
    }

    /// Processes a completion on the CPU until `at`.
    #[inline]
    fn handle(&mut self, slot: u32, at: Nanos, shared: &mut RunContext) {
        let s = *self.slots.get(slot);
        let NextIo { kind, lba, sectors } = s.io;
        self.slots.end_outstanding();
        let times = Timestamps { wanted: s.wanted, issued: s.issued, completed: at };
        let success = s.status.is_success();
        if shared.has_completion_steps {
            self.finish_steps(slot, at, shared);
        }
        match kind {
            _ if !success => {
                let what = match kind {
                    IoKind::Transfer(direction) => direction.name(),
                    IoKind::Flush => "sync",
                };
                self.recorder.fail(IoFailure {
                    op: what,
                    addressing: self.spec.addressing(),
                    lba,
                    sectors,
                    at,
                    cause: ErrorCause::Status(s.status),
                });
                let tolerance = self.spec.integrity.continue_on_error;
                let read = kind == IoKind::Transfer(Direction::Read);
                self.abort_unless(if read { tolerance.read } else { tolerance.write });
            }
            IoKind::Transfer(direction) => {
                let unit = self.io_range.unit_bytes;
                self.recorder.complete(direction, lba * unit, u64::from(sectors) * unit, times);
                if self.search.is_some() {
                    self.record_search_latency(at, times);
                }
            }
            // As in fio, the flush at the end does not count among the job's requests.
            IoKind::Flush => self.recorder.complete_sync(times, self.phase == Phase::Running),
        }
        let follows =
            kind == IoKind::Transfer(Direction::Trim) && self.spec.pattern.access.is_trim_write();
        if follows && success && self.spec.replay.is_none() {
            self.slots.keep_trimmed(slot);
        } else {
            self.slots.release(slot);
        }
        self.think.on_completion(at, self.slots.outstanding());
    }

    fn abort_unless(&mut self, tolerated: bool) {
        if !tolerated {
            self.ending.abort();
        }
    }
}
