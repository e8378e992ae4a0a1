//! [`FlashArray`]: parallel units and channels in time (DESIGN: how time is modelled).
//!
//! A parallel unit runs one array operation at a time and takes the next one by its policy; a
//! channel carries one transfer at a time, in the order in which transfers become ready. The data
//! of a program goes into the unit's cache register first, which may overlap with the program before
//! it; a read leaves its page in the page register until the array does something else.
//!
//! An *operation* is what its owner asked for and hears of once: reads are split into *parts*, one
//! per page and parallel unit. What a command's hints change (LightNVM paper section 3.3) is in
//! `flash/hints.rs`: a part may take its planes in several *rounds*, reads may suspend, and may be
//! repeated.

use std::collections::VecDeque;

use clock::{Nanos, TimerQueue};
use media::{ChunkId, Nand, Psn};
use nvme::Hints;

use crate::notice::Notices;
use crate::operation::{Addresses, Op, Part};
pub(crate) use crate::operation::{OpDone, Owner, What};
use crate::pu::{Active, NONE, Phase, Pu};
use crate::trace::{Span, SpanKind, Trace};
use crate::{DriveConfig, PuPolicy, SuspendConfig};

mod hints;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The array operation of this epoch has ended.
    Array { pu: u32, epoch: u32 },
    /// Data has left the page register.
    Out { pu: u32 },
    /// Data has arrived in the cache register.
    Staged { pu: u32 },
    /// The array is free for a read.
    Suspended { pu: u32, epoch: u32 },
}

/// A channel: free from this instant on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Channel {
    free: Nanos,
    /// Time spent transferring.
    pub(crate) busy: Nanos,
    /// Bytes of the last transfer and the time it took: most are alike, and divisions are slow.
    last: (u64, Nanos),
}

#[derive(Debug)]
pub(crate) struct FlashArray {
    pub(crate) nand: Nand,
    pub(crate) pus: Vec<Pu>,
    pub(crate) channels: Vec<Channel>,
    ops: Vec<Op>,
    newest: u32,
    free_ops: Vec<u32>,
    parts: Vec<Part>,
    free_parts: Vec<u32>,
    timers: TimerQueue<Event>,
    done: VecDeque<OpDone>,
    policy: PuPolicy,
    /// What suspensions that only a hint asks for cost, if there are such.
    suspend_on_hint: Option<SuspendConfig>,
    /// Repetitions of a read at most.
    read_retries: u32,
    /// Repetitions there were.
    pub(crate) retried: u64,
    /// Reads that a hint kept from being repeated.
    pub(crate) retries_forgone: u64,
    /// Programs and erases that were suspended.
    pub(crate) suspensions: u64,
    /// What was learnt of the media.
    pub(crate) notices: Notices,
    page_register: bool,
    cache_program: bool,
    pus_per_channel: u32,
    planes: u32,
    stripe: u32,
    sectors_per_page: u32,
    unit: u32,
    sector_bytes: u32,
    /// All operations take no time: for preconditioning.
    pub(crate) instant: bool,
    pub(crate) trace: Trace,
}

impl FlashArray {
    pub(crate) fn new(nand: Nand, config: &DriveConfig) -> FlashArray {
        let g = nand.config().geometry;
        let pus = g.total_pus() as usize;
        FlashArray {
            pus: vec![Pu::default(); pus],
            channels: vec![Channel::default(); g.channels as usize],
            ops: Vec::new(),
            newest: 0,
            free_ops: Vec::new(),
            parts: Vec::new(),
            free_parts: Vec::new(),
            timers: TimerQueue::with_capacity(4 * pus),
            done: VecDeque::with_capacity(64),
            policy: config.pu_policy,
            suspend_on_hint: config.open_channel.suspend_on_hint,
            read_retries: nand.config().errors.read_retries,
            retried: 0,
            retries_forgone: 0,
            suspensions: 0,
            notices: Notices::of(&nand, config.personality),
            page_register: config.page_register,
            cache_program: config.cache_program,
            pus_per_channel: g.pus,
            planes: g.planes,
            stripe: g.sectors_per_stripe(),
            sectors_per_page: g.sectors_per_page(),
            unit: nand.config().write_unit(),
            sector_bytes: g.sector_bytes,
            instant: false,
            trace: Trace::default(),
            nand,
        }
    }

    /// When the next operation moves on.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        if self.done.is_empty() { self.timers.next_at() } else { Nanos::ZERO }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.free_ops.len() == self.ops.len() && self.done.is_empty()
    }

    /// Operations waiting or running on a parallel unit.
    pub(crate) fn depth(&self, pu: u32) -> usize {
        self.pus[pu as usize].depth()
    }

    /// The addresses of an operation that has just ended.
    #[inline]
    pub(crate) fn addresses(&self, op: u32) -> &[(u32, u32)] {
        self.ops[op as usize].addresses.get()
    }

    fn new_op(&mut self, owner: Owner, what: What) -> u32 {
        let blank = |op: &mut Op| {
            (op.owner, op.what, op.parts, op.failed) = (owner, what, 0, 0);
            (op.status, op.addresses.count, op.unit) = (nvme::Status::SUCCESS, 0, 0);
        };
        self.newest = match self.free_ops.pop() {
            Some(id) => {
                blank(&mut self.ops[id as usize]);
                id
            }
            None => {
                self.ops.push(Op {
                    owner,
                    what,
                    unit: 0,
                    parts: 0,
                    failed: 0,
                    status: nvme::Status::SUCCESS,
                    addresses: Addresses::default(),
                });
                (self.ops.len() - 1) as u32
            }
        };
        self.newest
    }

    fn new_part(&mut self, part: Part) -> u32 {
        self.ops[part.op as usize].parts += 1;
        match self.free_parts.pop() {
            Some(id) => {
                self.parts[id as usize] = part;
                id
            }
            None => {
                self.parts.push(part);
                (self.parts.len() - 1) as u32
            }
        }
    }

    /// Reads up to 64 sectors: physical sector and place. Neighbours in the list that are on one
    /// page are read together.
    pub(crate) fn read(
        &mut self,
        now: Nanos,
        owner: Owner,
        hints: Hints,
        addresses: &[(u32, u32)],
    ) {
        let op = self.new_op(owner, What::Read);
        let slot = &mut self.ops[op as usize];
        slot.addresses.set(addresses);
        // A part may end at once, if it finds its page in the register; the operation does not
        // before all parts have begun.
        slot.parts = 1;
        let mut i = 0;
        while i < addresses.len() {
            let (chunk, sector) = self.nand.layout().split(Psn(addresses[i].0));
            let page = sector / self.stripe;
            let first = i;
            let page_start = addresses[i].0 - sector % self.stripe;
            let mut planes = 0u64;
            while i < addresses.len() && addresses[i].0.wrapping_sub(page_start) < self.stripe {
                planes |= 1 << ((addresses[i].0 - page_start) / self.sectors_per_page);
                i += 1;
            }
            let count = (i - first) as u8;
            let part = Part {
                op,
                what: What::Read,
                chunk: chunk.0,
                page,
                planes,
                first: first as u8,
                count,
                hints,
                rounds: self.rounds(hints, planes.count_ones()),
                retries: 0,
                suspended: 0,
            };
            self.submit(now, part);
        }
        self.part_ended(op);
    }

    /// Programs one write unit of a chunk, whose data has been staged on the media.
    pub(crate) fn program(
        &mut self,
        now: Nanos,
        owner: Owner,
        hints: Hints,
        chunk: u32,
        sector: u32,
    ) {
        let op = self.new_op(owner, What::Program);
        let part = Part {
            op,
            what: What::Program,
            chunk,
            page: sector / self.unit,
            planes: 0,
            first: 0,
            count: self.unit.min(64) as u8,
            hints,
            rounds: self.rounds(hints, self.planes),
            retries: 0,
            suspended: 0,
        };
        self.submit(now, part);
    }

    /// Erases a chunk.
    pub(crate) fn erase(&mut self, now: Nanos, owner: Owner, hints: Hints, chunk: u32) {
        let op = self.new_op(owner, What::Erase);
        let part = Part {
            op,
            what: What::Erase,
            chunk,
            page: 0,
            planes: 0,
            first: 0,
            count: 1,
            hints,
            rounds: self.rounds(hints, self.planes),
            retries: 0,
            suspended: 0,
        };
        self.submit(now, part);
    }

    /// Reports an operation that could not even begin.
    pub(crate) fn fail(&mut self, owner: Owner, what: What, status: nvme::Status) {
        let op = self.new_op(owner, what);
        self.done.push_back(OpDone { owner, op, what, unit: 0, failed: u64::MAX, status });
    }

    /// Marks the operation that was started or failed last, for an owner that starts several.
    pub(crate) fn note_unit(&mut self, unit: u32) {
        self.ops[self.newest as usize].unit = unit;
        for done in self.done.iter_mut().filter(|d| d.op == self.newest) {
            done.unit = unit;
        }
    }

    fn submit(&mut self, now: Nanos, part: Part) {
        let pu = self.nand.layout().pu_of(ChunkId(part.chunk));
        let reads_first = !matches!(self.policy, PuPolicy::Fifo);
        let id = self.new_part(part);
        let hinted = part.hints.suspend;
        if part.what == What::Read && (reads_first || hinted && self.may_overtake(pu)) {
            self.pus[pu as usize].reads.push_back(id);
            self.suspend(now, pu, hinted);
        } else {
            self.pus[pu as usize].queue.push_back(id);
            self.stage_ahead(now, pu);
        }
        self.dispatch(now, pu);
    }

    /// Starts the transfer of the next program's data while the array is programming.
    fn stage_ahead(&mut self, now: Nanos, pu: u32) {
        if !self.cache_program {
            return;
        }
        let unit = &self.pus[pu as usize];
        let programming = |part: u32| self.parts[part as usize].what == What::Program;
        let busy = unit.active.is_some_and(|a| programming(a.part))
            || unit.suspended.is_some_and(|(part, _)| programming(part));
        let Some(&next) = unit.queue.front() else { return };
        if busy && unit.staged == NONE && programming(next) {
            self.pus[pu as usize].queue.pop_front();
            self.stage(now, pu, next);
        }
    }

    /// Transfers a program's data into the cache register.
    fn stage(&mut self, now: Nanos, pu: u32, part: u32) {
        let unit = &mut self.pus[pu as usize];
        unit.staged = part;
        unit.staged_ready = false;
        unit.staging = self.unit;
        self.stage_page(now, pu);
    }

    /// Transfers the next piece of a program's data: a page, so that others on the channel wait for
    /// a page and not for a multi-plane program; where reads go first, a sector.
    fn stage_page(&mut self, now: Nanos, pu: u32) {
        let piece = match self.policy {
            PuPolicy::Fifo => self.sectors_per_page,
            PuPolicy::ReadsFirst { .. } => 1,
        };
        while self.pus[pu as usize].staging > 0 {
            let sectors = self.pus[pu as usize].staging.min(piece);
            self.pus[pu as usize].staging -= sectors;
            let bytes = u64::from(sectors) * u64::from(self.sector_bytes);
            let end = self.transfer(now, pu, bytes);
            if end > now {
                self.timers.push(end, Event::Staged { pu });
                return;
            }
        }
        self.pus[pu as usize].staged_ready = true;
    }

    /// Reserves the channel for a transfer and says when it ends. Transfers become ready in the
    /// order of time, so that reserving on the spot serves them first come, first served.
    #[inline]
    fn transfer(&mut self, now: Nanos, pu: u32, bytes: u64) -> Nanos {
        let rate = self.nand.config().timing.channel_bytes_per_sec;
        if self.instant || rate == 0 {
            return now;
        }
        let number = pu / self.pus_per_channel;
        let channel = &mut self.channels[number as usize];
        if channel.last.0 != bytes {
            channel.last = (bytes, Nanos::transfer(bytes, rate));
        }
        let time = channel.last.1;
        let start = channel.free.max(now);
        channel.free = start + time;
        channel.busy += time;
        self.trace.span(Span { start, time, kind: SpanKind::Transfer, at: number });
        channel.free
    }

    /// Gives an idle parallel unit its next work.
    fn dispatch(&mut self, now: Nanos, pu: u32) {
        loop {
            let unit = &mut self.pus[pu as usize];
            if unit.active.is_some() {
                return;
            }
            if let Some(part) = unit.reads.pop_front() {
                self.start_read(now, pu, part);
            } else if let Some((part, remaining)) = unit.suspended.take() {
                self.run_array(now, pu, part, remaining);
            } else if unit.staged != NONE {
                if !unit.staged_ready {
                    return;
                }
                let part = std::mem::replace(&mut unit.staged, NONE);
                self.start_program(now, pu, part);
            } else if let Some(part) = unit.queue.pop_front() {
                match self.parts[part as usize].what {
                    What::Read => self.start_read(now, pu, part),
                    What::Program => self.stage(now, pu, part),
                    What::Erase => self.start_erase(now, pu, part),
                }
            } else {
                return;
            }
        }
    }

    fn start_read(&mut self, now: Nanos, pu: u32, id: u32) {
        let part = self.parts[id as usize];
        let needed = if self.read_retries == 0 { 0 } else { self.retries_needed(&part) };
        let unit = &mut self.pus[pu as usize];
        let held = unit.holds(part.chunk, part.page, part.planes).filter(|_| self.page_register);
        if let Some(retries) = held.filter(|r| *r >= needed || part.hints.limited_retry) {
            unit.register_hits += 1;
            unit.active = Some(Active { part: id, phase: Phase::Out });
            self.parts[id as usize].retries = retries;
            return self.send_out(now, pu, id);
        }
        let retries = if part.hints.limited_retry { 0 } else { needed };
        self.retried += u64::from(retries);
        self.parts[id as usize].retries = retries;
        self.pus[pu as usize].load(part.chunk, part.page, part.planes, retries);
        let time = self.array_time(&part) * (u64::from(part.rounds) + u64::from(retries));
        self.run_array(now, pu, id, time);
    }

    fn start_program(&mut self, now: Nanos, pu: u32, id: u32) {
        let part = self.parts[id as usize];
        self.pus[pu as usize].forget_register();
        if let Err(e) = self.nand.begin_program(ChunkId(part.chunk), part.page) {
            self.notices.failed(&self.nand, ChunkId(part.chunk), &e);
            return self.end_part(id, u64::MAX >> (64 - u32::from(part.count)), e.status());
        }
        let time = self.array_time(&part);
        self.run_array(now, pu, id, time);
        self.stage_ahead(now, pu);
    }

    fn start_erase(&mut self, now: Nanos, pu: u32, id: u32) {
        let part = self.parts[id as usize];
        self.pus[pu as usize].forget_register();
        if let Err(e) = self.nand.begin_erase(ChunkId(part.chunk)) {
            self.notices.failed(&self.nand, ChunkId(part.chunk), &e);
            return self.end_part(id, 1, e.status());
        }
        let time = self.array_time(&part);
        self.run_array(now, pu, id, time);
    }

    /// Time of one array operation of a part.
    #[inline]
    fn array_time(&self, part: &Part) -> Nanos {
        let config = self.nand.config();
        match part.what {
            What::Read => config.timing.read[config.page_type(part.page)],
            What::Program if config.one_shot => config.timing.program[0],
            What::Program => config.timing.program[config.page_type(part.page)],
            What::Erase => config.timing.erase,
        }
    }

    fn run_array(&mut self, now: Nanos, pu: u32, id: u32, time: Nanos) {
        let time = if self.instant { Nanos::ZERO } else { time };
        let unit = &mut self.pus[pu as usize];
        unit.active = Some(Active { part: id, phase: Phase::Array });
        (unit.began, unit.ends) = (now, now + time);
        let event = Event::Array { pu, epoch: unit.epoch };
        self.timers.push(unit.ends, event);
    }

    /// Accounts for a stretch of time that has ended, or is certain to end then.
    #[inline]
    fn array_was_busy(&mut self, pu: u32, what: What, start: Nanos, end: Nanos) {
        let time = end.since(start);
        self.pus[pu as usize].account(what, time);
        let kind = match what {
            What::Read => SpanKind::Read,
            What::Program => SpanKind::Program,
            What::Erase => SpanKind::Erase,
        };
        self.trace.span(Span { start, time, kind, at: pu });
    }

    /// Checks what has been read and sends it over the channel.
    fn send_out(&mut self, now: Nanos, pu: u32, id: u32) {
        let part = self.parts[id as usize];
        let op = &mut self.ops[part.op as usize];
        for i in part.first..part.first + part.count {
            let psn = Psn(op.addresses.get()[usize::from(i)].0);
            match self.nand.check_read_within(psn, part.retries.into()) {
                Ok(info) => {
                    if info.high_ecc {
                        self.notices.many_errors(&self.nand, psn, info.retries > 0);
                    }
                }
                Err(e) => {
                    op.failed |= 1 << i;
                    if op.status.is_success() {
                        op.status = e.status();
                    }
                    let exhausted = u32::from(part.retries) >= self.read_retries;
                    self.notices.unreadable(&self.nand, psn, &e, exhausted);
                }
            }
        }
        let bytes = u64::from(part.count) * u64::from(self.sector_bytes);
        let end = self.transfer(now, pu, bytes);
        if end == now {
            self.read_out(now, pu);
        } else {
            let time = end.since(now);
            self.pus[pu as usize].account(What::Read, time);
            self.timers.push(end, Event::Out { pu });
        }
    }

    fn read_out(&mut self, _now: Nanos, pu: u32) {
        if let Some(active) = self.pus[pu as usize].active.take() {
            self.end_part(active.part, 0, nvme::Status::SUCCESS);
        }
    }

    fn array_done(&mut self, now: Nanos, pu: u32) {
        let Some(active) = self.pus[pu as usize].active else { return };
        let part = self.parts[active.part as usize];
        self.array_was_busy(pu, part.what, self.pus[pu as usize].began, now);
        let chunk = ChunkId(part.chunk);
        let result = match part.what {
            What::Read => {
                self.pus[pu as usize].active =
                    Some(Active { part: active.part, phase: Phase::Out });
                return self.send_out(now, pu, active.part);
            }
            // The next planes; reads that wait go in between.
            _ if part.rounds > 1 => return self.next_round(pu, active.part),
            What::Program => self.nand.end_program(chunk, part.page),
            What::Erase => self.nand.end_erase(chunk),
        };
        self.pus[pu as usize].active = None;
        match result {
            Ok(()) => {
                if part.what == What::Erase {
                    self.notices.erased(chunk);
                }
                self.end_part(active.part, 0, nvme::Status::SUCCESS);
            }
            Err(e) => {
                self.notices.failed(&self.nand, chunk, &e);
                let all = u64::MAX >> (64 - u32::from(part.count));
                self.end_part(active.part, all, e.status());
            }
        }
    }

    fn end_part(&mut self, id: u32, failed: u64, status: nvme::Status) {
        let part = self.parts[id as usize];
        self.free_parts.push(id);
        let op = &mut self.ops[part.op as usize];
        op.failed |= failed << part.first;
        if op.status.is_success() {
            op.status = status;
        }
        self.part_ended(part.op);
    }

    #[inline]
    fn part_ended(&mut self, id: u32) {
        let op = &mut self.ops[id as usize];
        op.parts -= 1;
        if op.parts == 0 {
            self.done.push_back(OpDone {
                owner: op.owner,
                op: id,
                what: op.what,
                unit: op.unit,
                failed: op.failed,
                status: op.status,
            });
        }
    }

    /// Moves on whatever is due at `now`, at the time it was due, until an operation has ended;
    /// returns it with that time.
    #[inline]
    pub(crate) fn next_done(&mut self, now: Nanos) -> Option<(Nanos, OpDone)> {
        let mut at = now;
        loop {
            if let Some(done) = self.done.pop_front() {
                // The operation stays readable until its slot is taken again.
                self.free_ops.push(done.op);
                return Some((at, done));
            }
            let (due, event) = self.timers.pop_due(now)?;
            at = due;
            self.happen(due, event);
        }
    }

    fn happen(&mut self, at: Nanos, event: Event) {
        let pu = match event {
            Event::Array { pu, epoch } => {
                if self.pus[pu as usize].epoch != epoch {
                    // Suspended since.
                    return;
                }
                self.array_done(at, pu);
                pu
            }
            Event::Out { pu } => {
                self.read_out(at, pu);
                pu
            }
            Event::Staged { pu } => {
                self.stage_page(at, pu);
                pu
            }
            Event::Suspended { pu, epoch } => {
                if self.pus[pu as usize].epoch != epoch {
                    return;
                }
                self.pus[pu as usize].active = None;
                pu
            }
        };
        self.dispatch(at, pu);
    }

    /// Forgets everything under way: power is gone.
    pub(crate) fn power_cut(&mut self) {
        for pu in &mut self.pus {
            pu.power_cut();
        }
        for channel in &mut self.channels {
            channel.free = Nanos::ZERO;
        }
        self.ops.clear();
        self.free_ops.clear();
        self.parts.clear();
        self.free_parts.clear();
        self.timers.clear();
        self.done.clear();
        self.nand.power_cut();
    }
}
