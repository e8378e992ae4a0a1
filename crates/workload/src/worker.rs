//! [`Worker`]: one job, or one clone of it: a virtual CPU, and a slot per outstanding request.
//!
//! The CPU does one thing at a time: it handles what has completed, then submits. What it decides
//! to submit at one instant reaches the device when the cost of submitting has passed; completions
//! that arrive meanwhile wait. Nothing is allocated once the job runs.

use std::collections::VecDeque;
use std::sync::Arc;

use block::{Device, Limits, Payload, Request};
use clock::Nanos;
use nvme::Status;
use ring::{Iova, Region};
use rng::Rng;
use tracepoint::{Event, RequestOp};

use crate::area::{Area, area, largest_block};
use crate::error::HostError;
use crate::host::HostCosts;
use crate::job::{Direction, JobSpec};
use crate::log::JobLogs;
use crate::recorder::{Recorder, Times};
use crate::result::{Cause, Failure};
use crate::source::{Kind, Next, Source, Wanted};
use crate::verify::Ledger;

mod depth;
mod ending;
mod payload;
mod slots;

use depth::{DepthSearch, Verdict};
use slots::{EMPTY, Slot};
pub(crate) use slots::{SLOT_BYTES, slots_reserved};

/// What all workers of a host share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) costs: HostCosts,
    pub(crate) ledger: Option<Ledger>,
    pub(crate) buffers: Option<Buffers>,
    /// Set when a request could not be given to the device.
    pub(crate) refused: bool,
    /// When the run started.
    pub(crate) epoch: Nanos,
}

/// Registered memory for payloads of verifying jobs.
#[derive(Debug)]
pub(crate) struct Buffers {
    pub(crate) region: Arc<Region>,
    pub(crate) base: Iova,
    /// One sector.
    pub(crate) scratch: Vec<u8>,
}

/// What a [`Worker::run`] did.
pub(crate) struct Ran {
    pub(crate) moved: bool,
    /// When to run it again even if nothing completes.
    pub(crate) ready_at: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for its stage, then for its start delay.
    Waiting,
    Running,
    /// The flush of `end_fsync`.
    EndFlush,
    /// Reads back what was written, from this sector on.
    ReadBack {
        next: u64,
    },
    Done,
}

/// The tag of the request in a slot of job `index`; [`job_of_tag`](crate::host::job_of_tag) undoes it.
#[inline]
fn tag(index: u64, slot: u32) -> u64 {
    index << 32 | u64::from(slot)
}

fn op_of(kind: Kind) -> RequestOp {
    match kind {
        Kind::Move(Direction::Read) => RequestOp::Read,
        Kind::Move(Direction::Write) => RequestOp::Write,
        Kind::Move(Direction::Trim) => RequestOp::Trim,
        Kind::Flush => RequestOp::Flush,
    }
}

#[derive(Debug)]
pub(crate) struct Worker {
    spec: JobSpec,
    /// The generator that each loop begins with.
    rng: Rng,
    loops_left: u32,
    stage: u32,
    group: u32,
    area: Area,
    source: Source,
    phase: Phase,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that there may be.
    depth: usize,
    search: Option<Box<DepthSearch>>,
    outstanding: u32,
    /// Completed, waiting for the CPU.
    arrived: VecDeque<u32>,
    /// Trimmed, to be written.
    chained: VecDeque<u32>,
    /// On its way to the device from the slot's `issued` on.
    pending: Option<u32>,
    refused: bool,
    cpu_free: Nanos,
    cpu_busy: Nanos,
    started: Nanos,
    ends: Nanos,
    main_ended: Nanos,
    ended: Nanos,
    /// When the present loop started, or the measuring if that was later.
    loop_started: Nanos,
    /// Time that reading back took, in all loops.
    read_back_time: Nanos,
    /// No more of the main phase: its end, a failure, or the user's wish.
    stopping: bool,
    aborted: bool,
    thinks: bool,
    issued_since_think: u64,
    think_until: Nanos,
    /// Bytes of payload per slot, and where the slots' payloads start.
    slot_bytes: u64,
    buffers_at: u64,
    /// What each sector of each slot's read should hold, for verifying jobs.
    expected: Vec<u32>,
    recorder: Recorder,
}

impl Worker {
    pub(crate) fn new(
        mut spec: JobSpec,
        clone: u32,
        stage: u32,
        group: u32,
        limits: &Limits,
        rng: Rng,
    ) -> Result<Worker, HostError> {
        let area = area(&spec, clone, limits)
            .map_err(|what| HostError::Misfit { job: spec.name.clone(), what })?;
        let source = Source::new(&spec, area, limits, &rng)?;
        let uses = match &source {
            Source::Replay(replay) => {
                spec.iodepth.get_or_insert(replay.default_depth());
                [true; 3]
            }
            Source::Generated(_) => spec.access.uses,
        };
        let depth = spec.depth();
        let reserved = slots_reserved(&spec, limits) as usize;
        let mut slots = Vec::with_capacity(reserved);
        let mut free = Vec::with_capacity(reserved);
        if spec.verify {
            slots.resize(depth as usize, EMPTY);
            free.extend((0..depth).rev());
        }
        let slot_bytes = if spec.verify { largest_block(&spec) } else { 0 };
        let slot_sectors = slot_bytes / u64::from(limits.sector_bytes);
        Ok(Worker {
            rng,
            loops_left: spec.loops.saturating_sub(1),
            stage,
            group,
            area,
            source,
            phase: Phase::Waiting,
            slots,
            free,
            depth: depth as usize,
            search: spec.latency_target.map(|t| Box::new(DepthSearch::new(t, depth))),
            outstanding: 0,
            arrived: VecDeque::with_capacity(reserved),
            chained: VecDeque::with_capacity(reserved),
            pending: None,
            refused: false,
            cpu_free: Nanos::ZERO,
            cpu_busy: Nanos::ZERO,
            started: Nanos::ZERO,
            ends: Nanos::MAX,
            main_ended: Nanos::ZERO,
            ended: Nanos::ZERO,
            loop_started: Nanos::ZERO,
            read_back_time: Nanos::ZERO,
            stopping: false,
            aborted: false,
            thinks: spec.thinktime > Nanos::ZERO,
            issued_since_think: 0,
            think_until: Nanos::ZERO,
            slot_bytes,
            buffers_at: 0,
            expected: vec![0; (slot_sectors * u64::from(depth)) as usize],
            recorder: Recorder::new(uses),
            spec,
        })
    }

    /// Opens the job's logs; `index` is its place among all jobs and clones, from 1.
    pub(crate) fn open_logs(&mut self, index: usize) -> Result<(), HostError> {
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

    pub(crate) fn verifies(&self) -> bool {
        self.spec.verify
    }

    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    #[inline]
    pub(crate) fn cpu_free(&self) -> Nanos {
        self.cpu_free
    }

    /// Whether the job runs until a time, whatever it has done.
    pub(crate) fn ends_by_time_only(&self) -> bool {
        self.phase == Phase::Running && self.spec.time_based
    }

    /// The job's stage begins; returns when to run it.
    pub(crate) fn start(&mut self, now: Nanos) -> Nanos {
        self.started = now + self.spec.startdelay;
        self.started
    }

    /// Ends the job early.
    pub(crate) fn stop(&mut self, now: Nanos) {
        (self.stopping, self.loops_left) = (true, 0);
        self.spec.do_verify = false;
        if self.phase == Phase::Waiting {
            (self.phase, self.ended) = (Phase::Done, now);
        }
    }

    fn begin(&mut self, epoch: Nanos) {
        self.phase = Phase::Running;
        let measure_from = self.started + self.spec.ramp_time;
        self.ends = self.spec.runtime.map_or(Nanos::MAX, |r| measure_from + r);
        self.recorder.start(epoch, measure_from);
        self.loop_started = measure_from;
        self.source.start(self.started);
        if let Some(search) = &mut self.search {
            search.start(measure_from);
        }
    }

    /// A part of the request in `slot` has completed.
    ///
    /// # Errors
    /// When there is no such request.
    #[inline]
    pub(crate) fn arrive(&mut self, slot: u32, status: Status) -> Result<(), ()> {
        let Some(s) = self.slots.get_mut(slot as usize).filter(|s| s.parts > 0) else {
            return Err(());
        };
        s.parts -= 1;
        if !status.is_success() && s.status.is_success() {
            s.status = status;
        }
        if s.parts == 0 && self.pending != Some(slot) {
            self.arrived.push_back(slot);
        }
        Ok(())
    }

    /// Does everything that can be done now.
    #[inline]
    pub(crate) fn run<D: Device>(
        &mut self,
        now: Nanos,
        index: u64,
        device: &mut D,
        shared: &mut Shared,
    ) -> Result<Ran, HostError> {
        if self.phase == Phase::Waiting {
            if now < self.started {
                return Ok(Ran { moved: false, ready_at: self.started });
            }
            self.begin(shared.epoch);
        }
        let mut moved = false;
        loop {
            if let Some(slot) = self.pending {
                let issue_at = self.slots[slot as usize].issued;
                if issue_at > now {
                    return Ok(Ran { moved, ready_at: issue_at });
                }
                if self.send(now, index, slot, device, shared) {
                    self.refused = false;
                    moved = true;
                } else if self.arrived.is_empty() {
                    (self.refused, shared.refused) = (true, true);
                    return Ok(Ran { moved, ready_at: Nanos::MAX });
                } else {
                    // What has completed may be what is in the way.
                    self.slots[slot as usize].issued = self.handle_arrived(now, index, shared);
                    moved = true;
                    continue;
                }
            }
            if self.cpu_free > now {
                return Ok(Ran { moved, ready_at: self.cpu_free });
            }
            moved |= !self.arrived.is_empty();
            let at = self.handle_arrived(now, index, shared);
            match self.next(at, shared)? {
                Some(Next::Now(wanted)) => {
                    self.prepare(wanted, at, shared.costs.submit);
                    moved = true;
                }
                Some(Next::At(then)) => {
                    return Ok(Ran { moved, ready_at: then });
                }
                // Only a completion, or the end of handling one, changes anything.
                Some(Next::End) | None => {
                    let ready_at = if at > now { at } else { Nanos::MAX };
                    return Ok(Ran { moved, ready_at });
                }
            }
        }
    }

    /// The CPU handles everything that has completed; returns when it is done.
    #[inline]
    fn handle_arrived(&mut self, now: Nanos, index: u64, shared: &mut Shared) -> Nanos {
        let mut at = now;
        while let Some(slot) = self.arrived.pop_front() {
            at += shared.costs.complete;
            self.cpu_busy += shared.costs.complete;
            self.handle(slot, at, shared);
            tracepoint::trace_at(now, || {
                let ended = &self.slots[slot as usize];
                let measured =
                    ended.status.is_success() && ended.wanted >= self.recorder.measure_from();
                Event::RequestEnded { tag: tag(index, slot), at, measured }
            });
        }
        self.cpu_free = at;
        at
    }

    /// What to issue at `at`; `None` while something outstanding is waited for, or for good.
    #[inline]
    fn next(&mut self, at: Nanos, shared: &mut Shared) -> Result<Option<Next>, HostError> {
        loop {
            match self.phase {
                Phase::Running => {
                    if at >= self.ends {
                        (self.stopping, self.loops_left) = (true, 0);
                    }
                    if self.stopping {
                        self.drop_chained();
                        if self.outstanding > 0 {
                            return Ok(None);
                        }
                        self.end_main(at);
                        continue;
                    }
                    if self.thinks {
                        if self.issued_since_think >= self.spec.thinktime_blocks {
                            return Ok(None);
                        }
                        if at < self.think_until {
                            return Ok(Some(Next::At(self.think_until.min(self.ends))));
                        }
                    }
                    if let Some(&slot) = self.chained.front() {
                        let Slot { what: Wanted { lba, sectors, .. }, .. } =
                            self.slots[slot as usize];
                        let kind = Kind::Move(Direction::Write);
                        return Ok(Some(Next::Now(Wanted { kind, lba, sectors })));
                    }
                    if !self.has_slot() || !self.search_allows(at) {
                        return Ok(None);
                    }
                    let next = self.source.next(at);
                    let job = &self.spec.name;
                    let next =
                        next.map_err(|source| HostError::Trace { job: job.clone(), source })?;
                    match next {
                        // Trims that are still outstanding bring writes.
                        Next::End if self.spec.access.is_trim_write() && self.outstanding > 0 => {
                            return Ok(None);
                        }
                        Next::End => self.stopping = true,
                        Next::At(then) => return Ok(Some(Next::At(then.min(self.ends)))),
                        Next::Now(wanted) => return Ok(Some(Next::Now(wanted))),
                    }
                }
                Phase::EndFlush => {
                    self.phase = self.read_back();
                    let wanted = Wanted { kind: Kind::Flush, lba: 0, sectors: 0 };
                    return Ok(Some(Next::Now(wanted)));
                }
                Phase::ReadBack { next } => {
                    if !self.has_slot() {
                        return Ok(None);
                    }
                    match self.written_from(next, shared) {
                        Some((lba, sectors)) if !self.aborted && self.spec.do_verify => {
                            self.phase = Phase::ReadBack { next: lba + u64::from(sectors) };
                            let kind = Kind::Move(Direction::Read);
                            return Ok(Some(Next::Now(Wanted { kind, lba, sectors })));
                        }
                        _ if self.outstanding > 0 => return Ok(None),
                        _ => {
                            self.close_read_back(at);
                            if self.loops_left > 0 {
                                self.begin_loop(at, shared)?;
                            } else {
                                (self.phase, self.ended) = (Phase::Done, at);
                            }
                        }
                    }
                }
                Phase::Waiting | Phase::Done => return Ok(None),
            }
        }
    }

    /// Trims whose writes will not be issued any more.
    fn drop_chained(&mut self) {
        while let Some(slot) = self.chained.pop_front() {
            self.free.push(slot);
        }
    }

    /// Gives `wanted` a slot; it reaches the device when the CPU has paid for it.
    #[inline]
    fn prepare(&mut self, wanted: Wanted, at: Nanos, cost: Nanos) {
        let chained = self.chained.pop_front();
        let Some(slot) = chained.or_else(|| self.take_slot()) else {
            return;
        };
        let mut wanted_at = at;
        match &mut self.source {
            Source::Generated(g) if chained.is_some() => g.follow(wanted.sectors),
            Source::Generated(_) => {}
            Source::Replay(r) => {
                if let Some(due) = r.due.take() {
                    self.recorder.delayed += u64::from(due < at);
                    wanted_at = due;
                }
            }
        }
        self.slots[slot as usize] =
            Slot { wanted: wanted_at, issued: at + cost, what: wanted, ..EMPTY };
        self.pending = Some(slot);
        self.cpu_free = at + cost;
        self.cpu_busy += cost;
        self.outstanding += 1;
        self.issued_since_think += 1;
    }

    /// Gives the pending request to the device, in parts if it is longer than the device takes.
    /// `false` when the device, or a write to the same sectors, is in the way.
    #[inline]
    fn send<D: Device>(
        &mut self,
        now: Nanos,
        index: u64,
        slot: u32,
        device: &mut D,
        shared: &mut Shared,
    ) -> bool {
        if shared.ledger.is_some() && !self.ready_to_send(slot, shared) {
            return false;
        }
        let tag = tag(index, slot);
        let s = &mut self.slots[slot as usize];
        let Wanted { kind, lba, sectors } = s.what;
        loop {
            let part = (sectors - s.sent).min(shared.limits.max_sectors);
            let data = match &shared.buffers {
                Some(buffers) if self.slot_bytes > 0 => {
                    let skip = u64::from(s.sent) * u64::from(shared.limits.sector_bytes);
                    let at = self.buffers_at + u64::from(slot) * self.slot_bytes + skip;
                    Payload::At(buffers.base.offset(at))
                }
                _ => Payload::BitBucket,
            };
            let at = lba + u64::from(s.sent);
            let request = match kind {
                Kind::Move(Direction::Read) => Request::read(at, part, data, tag),
                Kind::Move(Direction::Write) => Request::write(at, part, data, tag),
                Kind::Move(Direction::Trim) => Request::discard(at, part, tag),
                Kind::Flush => Request::flush(tag),
            };
            if device.submit(now, request).is_err() {
                return false;
            }
            s.sent += part;
            s.parts += 1;
            if s.sent == sectors {
                break;
            }
        }
        let (wanted, ready) = (s.wanted, s.issued);
        tracepoint::trace_at(now, || {
            let op = op_of(kind);
            Event::RequestIssued { tag, op, lba, sectors, wanted, ready }
        });
        s.issued = now;
        self.pending = None;
        self.recorder.issue(self.outstanding);
        true
    }

    /// The CPU handles a completion; it is done at `at`.
    #[inline]
    fn handle(&mut self, slot: u32, at: Nanos, shared: &mut Shared) {
        let s = self.slots[slot as usize];
        let Wanted { kind, lba, sectors } = s.what;
        self.outstanding -= 1;
        let times = Times { wanted: s.wanted, issued: s.issued, completed: at };
        let success = s.status.is_success();
        if shared.ledger.is_some() {
            self.settle(slot, at, shared);
        }
        match kind {
            _ if !success => {
                let what = match kind {
                    Kind::Move(direction) => direction.name(),
                    Kind::Flush => "sync",
                };
                self.recorder.fail(Failure {
                    what,
                    lba,
                    sectors,
                    at,
                    cause: Cause::Status(s.status),
                });
                let tolerance = self.spec.continue_on_error;
                let read = kind == Kind::Move(Direction::Read);
                self.abort_unless(if read { tolerance.read } else { tolerance.write });
            }
            Kind::Move(direction) => {
                let sector = u64::from(shared.limits.sector_bytes);
                self.recorder.complete(direction, lba * sector, u64::from(sectors) * sector, times);
                if self.search.is_some() {
                    self.try_depth(at, times);
                }
            }
            // As in fio, the flush at the end is not among the job's.
            Kind::Flush => self.recorder.complete_sync(times, self.phase == Phase::Running),
        }
        let follows = kind == Kind::Move(Direction::Trim) && self.spec.access.is_trim_write();
        if follows && success && self.spec.replay.is_none() {
            self.chained.push_back(slot);
        } else {
            self.free.push(slot);
        }
        if self.thinks
            && self.outstanding == 0
            && self.issued_since_think >= self.spec.thinktime_blocks
        {
            self.issued_since_think = 0;
            self.think_until = at + self.spec.thinktime;
        }
    }

    fn abort_unless(&mut self, tolerated: bool) {
        if !tolerated {
            (self.aborted, self.stopping, self.loops_left) = (true, true, 0);
        }
    }

    /// Whether a search for a depth lets another request out at `at`.
    #[inline]
    fn search_allows(&mut self, at: Nanos) -> bool {
        let outstanding = self.outstanding;
        self.search.as_mut().is_none_or(|search| search.may_issue(at, outstanding))
    }

    /// Tells the search for a depth of a completed request.
    fn try_depth(&mut self, at: Nanos, times: Times) {
        let measured = self.phase == Phase::Running && times.wanted >= self.recorder.measure_from();
        let Some(search) = self.search.as_mut().filter(|_| measured && !self.stopping) else {
            return;
        };
        match search.complete(at, times.completed.since(times.wanted)) {
            Verdict::GoOn => {}
            Verdict::Settled => {
                self.recorder.restart(at);
                self.loop_started = at;
            }
            Verdict::Done => (self.stopping, self.loops_left) = (true, 0),
        }
    }
}
