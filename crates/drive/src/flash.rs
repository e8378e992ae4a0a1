//! [`FlashArray`]: parallel units and channels in time (DESIGN: how time is modelled).
//!
//! An *operation* is what its owner asked for and hears of once: reads are split into *parts*, one
//! per page and parallel unit. Here operations come in, wait, and end.
//!
//! | file | noun |
//! |---|---|
//! | `flash/array.rs` | what a parallel unit's array does: one operation at a time, by its policy |
//! | `flash/transfer.rs` | what a channel carries between registers and controller |
//! | `flash/hints.rs` | what a command's hints change (LightNVM paper section 3.3) |

use std::collections::VecDeque;

use clock::{Nanos, TimerQueue};
use media::{ChunkId, Nand, Psn};
use nvme::Hints;
use tracepoint::{Cause, Event as Tracepoint, PartStep};

use crate::notice::Notices;
use crate::operation::{Addresses, Op, Part};
pub(crate) use crate::operation::{OpDone, Owner, What};
use crate::pu::Pu;
use crate::{DriveConfig, PuPolicy, SuspendConfig, Transfers};

mod array;
mod hints;
mod transfer;

use transfer::Channel;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The array operation of this epoch has ended.
    Array { pu: u32, epoch: u32 },
    /// A piece of what has been read has left its register.
    Out { pu: u32 },
    /// Data has arrived in the cache register.
    Staged { pu: u32 },
    /// The array is free for a read.
    Suspended { pu: u32, epoch: u32 },
}

#[derive(Clone, Debug)]
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
    transfers: Transfers,
    pus_per_channel: u32,
    planes: u32,
    stripe: u32,
    sectors_per_page: u32,
    unit: u32,
    sector_bytes: u32,
    /// All operations take no time: for preconditioning.
    pub(crate) instant: bool,
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
            transfers: config.transfers,
            pus_per_channel: g.pus,
            planes: g.planes,
            stripe: g.sectors_per_stripe(),
            sectors_per_page: g.sectors_per_page(),
            unit: nand.config().write_unit(),
            sector_bytes: g.sector_bytes,
            instant: false,
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
        tracepoint::trace_at(now, || self.queued(id, pu));
        let hinted = part.hints.suspend;
        if matches!(self.ops[part.op as usize].owner, Owner::User(..)) {
            self.pus[pu as usize].users_reads += 1;
        }
        if part.what == What::Read && (reads_first || hinted && self.may_overtake(pu)) {
            self.pus[pu as usize].reads.push_back(id);
            self.suspend(now, pu, hinted);
        } else {
            self.pus[pu as usize].queue.push_back(id);
            self.stage_ahead(now, pu);
        }
        self.dispatch(now, pu);
    }

    /// The tracepoint of a part that has come to its parallel unit.
    fn queued(&self, id: u32, pu: u32) -> Tracepoint {
        let part = &self.parts[id as usize];
        let (cause, command) = match self.ops[part.op as usize].owner {
            Owner::Ftl(op) => (op.cause(), None),
            Owner::User(op, command) => (op.cause(), Some(command)),
            Owner::Command(command) => (Cause::Host, Some(command)),
            Owner::Patrol => (Cause::Scrub, None),
        };
        let (chunk, op) = (part.chunk, part.what.into());
        Tracepoint::PartQueued { part: id, pu, chunk, op, cause, command }
    }

    /// Reports the progress of a part.
    #[inline(always)]
    fn trace_step(&self, now: Nanos, part: u32, step: PartStep) {
        tracepoint::trace_at(now, || Tracepoint::Part { part, step });
    }

    fn end_part(&mut self, id: u32, failed: u64, status: nvme::Status) {
        tracepoint::trace(|| Tracepoint::Part { part: id, step: PartStep::Ended });
        let part = self.parts[id as usize];
        self.free_parts.push(id);
        let op = &mut self.ops[part.op as usize];
        op.failed |= failed << part.first;
        if op.status.is_success() {
            op.status = status;
        }
        if matches!(op.owner, Owner::User(..)) {
            let pu = self.nand.layout().pu_of(ChunkId(part.chunk));
            self.pus[pu as usize].users_reads -= 1;
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
        tracepoint::set_time(at);
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
                self.send_piece(at, pu);
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
            channel.power_cut();
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
