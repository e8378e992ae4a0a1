//! [`NandArray`]: the timing model of parallel units and channels (ARCHITECTURE.md describes the
//! time model).
//!
//! An *operation* is one request of an owner, which receives one completion. A read is split into
//! parallel-unit operations ([`PuOp`]), one per page and parallel unit. This module accepts, queues
//! and completes operations. `array` models the array of a parallel unit, `transfer` the channels,
//! and `hints` the hints of vector commands [LightNVM17 §3.3].

use std::collections::VecDeque;

use clock::{Nanos, TimerQueue};
use media::{ChunkIndex, Nand, PhysSector};
use nvme::VectorHints;
use tracepoint::{Cause, Event as Tracepoint, PuOpStep};

use crate::media_events::MediaEventLog;
use crate::operation::{AddressList, Op, PuOp, SectorAddress};
pub(crate) use crate::operation::{NandOpKind, OpCompletion, OpOwner};
use crate::pu::Pu;
use crate::{DriveConfig, PuScheduling, SuspendConfig, TransferConfig};

mod array;
mod hints;
mod transfer;

use transfer::Channel;

#[derive(Clone, Copy, Debug)]
enum ArrayEvent {
    /// The array operation of this epoch is complete.
    ArrayDone { pu: u32, epoch: u32 },
    /// A segment of read data has left its register.
    SegmentOut { pu: u32 },
    /// Program data has arrived in the cache register.
    Staged { pu: u32 },
    /// The running operation is suspended, and the array is free for a read.
    Suspended { pu: u32, epoch: u32 },
}

#[derive(Clone, Debug)]
pub(crate) struct NandArray {
    pub(crate) nand: Nand,
    pub(crate) pus: Vec<Pu>,
    pub(crate) channels: Vec<Channel>,
    ops: Vec<Op>,
    last_op: u32,
    free_ops: Vec<u32>,
    pu_ops: Vec<PuOp>,
    free_pu_ops: Vec<u32>,
    timers: TimerQueue<ArrayEvent>,
    completions: VecDeque<OpCompletion>,
    scheduling: PuScheduling,
    /// Costs of suspension on a read's hint, if the drive supports it.
    suspend_on_hint: Option<SuspendConfig>,
    /// Maximum number of read retries.
    read_retries: u32,
    /// Read retries made.
    pub(crate) read_retries_made: u64,
    /// Reads that were not retried because of a hint.
    pub(crate) retries_forgone: u64,
    /// Suspensions of programs and erases.
    pub(crate) suspensions: u64,
    /// Events detected by operations.
    pub(crate) media_events: MediaEventLog,
    page_register: bool,
    cache_program: bool,
    transfers: TransferConfig,
    pus_per_channel: u32,
    planes: u32,
    stripe: u32,
    sectors_per_page: u32,
    write_unit: u32,
    sector_bytes: u32,
    /// All operations take no time, for preconditioning.
    pub(crate) zero_latency: bool,
}

impl NandArray {
    pub(crate) fn new(nand: Nand, config: &DriveConfig) -> NandArray {
        let g = nand.config().geometry;
        let pus = g.total_pus() as usize;
        NandArray {
            pus: vec![Pu::default(); pus],
            channels: vec![Channel::default(); g.channels as usize],
            ops: Vec::new(),
            last_op: 0,
            free_ops: Vec::new(),
            pu_ops: Vec::new(),
            free_pu_ops: Vec::new(),
            timers: TimerQueue::with_capacity(4 * pus),
            completions: VecDeque::with_capacity(64),
            scheduling: config.pu_scheduling,
            suspend_on_hint: config.open_channel.suspend_on_hint,
            read_retries: nand.config().errors.read_retries,
            read_retries_made: 0,
            retries_forgone: 0,
            suspensions: 0,
            media_events: MediaEventLog::new(&nand, config.personality),
            page_register: config.page_register,
            cache_program: config.cache_program,
            transfers: config.transfers,
            pus_per_channel: g.pus,
            planes: g.planes,
            stripe: g.sectors_per_stripe(),
            sectors_per_page: g.sectors_per_page(),
            write_unit: nand.config().write_unit(),
            sector_bytes: g.sector_bytes,
            zero_latency: false,
            nand,
        }
    }

    /// Returns the time of the next event.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        if self.completions.is_empty() { self.timers.next_at() } else { Nanos::ZERO }
    }

    /// Whether no operation is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.free_ops.len() == self.ops.len() && self.completions.is_empty()
    }

    /// Returns the number of operations that wait or run on a parallel unit.
    pub(crate) fn depth(&self, pu: u32) -> usize {
        self.pus[pu as usize].depth()
    }

    /// Returns the addresses of an operation that has just completed.
    #[inline]
    pub(crate) fn addresses(&self, op: u32) -> &[SectorAddress] {
        self.ops[op as usize].addresses.get()
    }

    fn new_op(&mut self, owner: OpOwner, what: NandOpKind) -> u32 {
        let blank = |op: &mut Op| {
            (op.owner, op.kind, op.pu_ops_left, op.failed) = (owner, what, 0, 0);
            (op.status, op.addresses.count, op.unit) = (nvme::Status::SUCCESS, 0, 0);
        };
        self.last_op = match self.free_ops.pop() {
            Some(id) => {
                blank(&mut self.ops[id as usize]);
                id
            }
            None => {
                self.ops.push(Op {
                    owner,
                    kind: what,
                    unit: 0,
                    pu_ops_left: 0,
                    failed: 0,
                    status: nvme::Status::SUCCESS,
                    addresses: AddressList::default(),
                });
                (self.ops.len() - 1) as u32
            }
        };
        self.last_op
    }

    fn new_pu_op(&mut self, part: PuOp) -> u32 {
        self.ops[part.op as usize].pu_ops_left += 1;
        match self.free_pu_ops.pop() {
            Some(id) => {
                self.pu_ops[id as usize] = part;
                id
            }
            None => {
                self.pu_ops.push(part);
                (self.pu_ops.len() - 1) as u32
            }
        }
    }

    /// Reads up to 64 sectors. Adjacent list entries on one page are read by one array operation.
    #[inline]
    pub(crate) fn read(
        &mut self,
        now: Nanos,
        owner: OpOwner,
        hints: VectorHints,
        mut addresses: impl ExactSizeIterator<Item = SectorAddress> + Clone,
    ) {
        let op = self.new_op(owner, NandOpKind::Read);
        let slot = &mut self.ops[op as usize];
        slot.addresses.set(addresses.clone());
        // A parallel-unit operation may complete at once, if its page is in the register. The extra
        // count keeps the operation open until all have started.
        slot.pu_ops_left = 1;
        let (mut first, mut next) = (0, addresses.next());
        while let Some(address) = next {
            let (chunk, sector) = self.nand.layout().split(PhysSector(address.psn));
            let page = sector / self.stripe;
            let page_start = address.psn - sector % self.stripe;
            let (mut planes, mut count) = (0u64, 0);
            while let Some(address) = next.filter(|a| a.psn.wrapping_sub(page_start) < self.stripe)
            {
                planes |= 1 << ((address.psn - page_start) / self.sectors_per_page);
                count += 1;
                next = addresses.next();
            }
            let part = PuOp {
                op,
                kind: NandOpKind::Read,
                chunk: chunk.0,
                page,
                planes,
                first,
                count,
                hints,
                array_ops_left: self.array_op_count(hints, planes.count_ones()),
                retries: 0,
                suspensions: 0,
            };
            self.submit(now, part);
            first += count;
        }
        self.on_pu_op_complete(op);
    }

    /// Programs one write unit of a chunk; its data must be staged on the media.
    pub(crate) fn program(
        &mut self,
        now: Nanos,
        owner: OpOwner,
        hints: VectorHints,
        chunk: u32,
        sector: u32,
    ) {
        let op = self.new_op(owner, NandOpKind::Program);
        let part = PuOp {
            op,
            kind: NandOpKind::Program,
            chunk,
            page: sector / self.write_unit,
            planes: 0,
            first: 0,
            count: self.write_unit.min(64) as u8,
            hints,
            array_ops_left: self.array_op_count(hints, self.planes),
            retries: 0,
            suspensions: 0,
        };
        self.submit(now, part);
    }

    /// Erases a chunk.
    pub(crate) fn erase(&mut self, now: Nanos, owner: OpOwner, hints: VectorHints, chunk: u32) {
        let op = self.new_op(owner, NandOpKind::Erase);
        let part = PuOp {
            op,
            kind: NandOpKind::Erase,
            chunk,
            page: 0,
            planes: 0,
            first: 0,
            count: 1,
            hints,
            array_ops_left: self.array_op_count(hints, self.planes),
            retries: 0,
            suspensions: 0,
        };
        self.submit(now, part);
    }

    /// Completes an operation that could not start with a failure.
    pub(crate) fn fail(&mut self, owner: OpOwner, what: NandOpKind, status: nvme::Status) {
        let op = self.new_op(owner, what);
        self.completions.push_back(OpCompletion {
            owner,
            op,
            kind: what,
            unit: 0,
            failed: u64::MAX,
            status,
        });
    }

    /// Sets the unit of the operation started or failed last, for an owner that starts several.
    pub(crate) fn set_last_unit(&mut self, unit: u32) {
        self.ops[self.last_op as usize].unit = unit;
        for done in self.completions.iter_mut().filter(|d| d.op == self.last_op) {
            done.unit = unit;
        }
    }

    fn submit(&mut self, now: Nanos, part: PuOp) {
        let pu = self.nand.layout().pu_of(ChunkIndex(part.chunk));
        let reads_first = !matches!(self.scheduling, PuScheduling::Fifo);
        let id = self.new_pu_op(part);
        tracepoint::trace_at(now, || self.queued_tracepoint(id, pu));
        let hinted = part.hints.suspend;
        if matches!(self.ops[part.op as usize].owner, OpOwner::FtlForCommand(..)) {
            self.pus[pu as usize].host_reads += 1;
        }
        if part.kind == NandOpKind::Read && (reads_first || hinted && self.can_overtake(pu)) {
            self.pus[pu as usize].reads.push_back(id);
            self.suspend(now, pu, hinted);
        } else {
            self.pus[pu as usize].queue.push_back(id);
            self.stage_ahead(now, pu);
        }
        self.dispatch(now, pu);
    }

    /// Returns the tracepoint of a parallel-unit operation that was queued.
    fn queued_tracepoint(&self, id: u32, pu: u32) -> Tracepoint {
        let part = &self.pu_ops[id as usize];
        let (cause, command) = match self.ops[part.op as usize].owner {
            OpOwner::Ftl(op) => (op.cause(), None),
            OpOwner::FtlForCommand(op, command) => (op.cause(), Some(command)),
            OpOwner::Command(command) => (Cause::Host, Some(command)),
            OpOwner::Scrub => (Cause::Scrub, None),
        };
        let (chunk, op) = (part.chunk, part.kind.into());
        Tracepoint::PuOpQueued { pu_op: id, pu, chunk, op, cause, command }
    }

    /// Emits the tracepoint of a parallel-unit operation's step.
    #[inline(always)]
    fn trace_step(&self, now: Nanos, part: u32, step: PuOpStep) {
        tracepoint::trace_at(now, || Tracepoint::PuOpProgress { pu_op: part, step });
    }

    fn complete_pu_op(&mut self, id: u32, failed: u64, status: nvme::Status) {
        tracepoint::trace(|| Tracepoint::PuOpProgress { pu_op: id, step: PuOpStep::Done });
        let part = self.pu_ops[id as usize];
        self.free_pu_ops.push(id);
        let op = &mut self.ops[part.op as usize];
        op.failed |= failed << part.first;
        if op.status.is_success() {
            op.status = status;
        }
        if matches!(op.owner, OpOwner::FtlForCommand(..)) {
            let pu = self.nand.layout().pu_of(ChunkIndex(part.chunk));
            self.pus[pu as usize].host_reads -= 1;
        }
        self.on_pu_op_complete(part.op);
    }

    #[inline]
    fn on_pu_op_complete(&mut self, id: u32) {
        let op = &mut self.ops[id as usize];
        op.pu_ops_left -= 1;
        if op.pu_ops_left == 0 {
            self.completions.push_back(OpCompletion {
                owner: op.owner,
                op: id,
                kind: op.kind,
                unit: op.unit,
                failed: op.failed,
                status: op.status,
            });
        }
    }

    /// Processes the events that are due by `now`, at their own times, until an operation
    /// completes. Returns its completion and time.
    #[inline]
    pub(crate) fn next_completion(&mut self, now: Nanos) -> Option<(Nanos, OpCompletion)> {
        let mut at = now;
        loop {
            if let Some(done) = self.completions.pop_front() {
                // The operation stays readable until its slot is reused.
                self.free_ops.push(done.op);
                return Some((at, done));
            }
            let (due, event) = self.timers.pop_due(now)?;
            at = due;
            self.handle_event(due, event);
        }
    }

    fn handle_event(&mut self, at: Nanos, event: ArrayEvent) {
        tracepoint::set_time(at);
        let pu = match event {
            ArrayEvent::ArrayDone { pu, epoch } => {
                if self.pus[pu as usize].epoch != epoch {
                    // The event is stale: the operation was suspended since.
                    return;
                }
                self.on_array_done(at, pu);
                pu
            }
            ArrayEvent::SegmentOut { pu } => {
                self.send_segment(at, pu);
                pu
            }
            ArrayEvent::Staged { pu } => {
                self.stage_page(at, pu);
                pu
            }
            ArrayEvent::Suspended { pu, epoch } => {
                if self.pus[pu as usize].epoch != epoch {
                    return;
                }
                self.pus[pu as usize].active = None;
                pu
            }
        };
        self.dispatch(at, pu);
    }

    /// Discards all operations in flight, at a power cut.
    pub(crate) fn power_cut(&mut self) {
        for pu in &mut self.pus {
            pu.power_cut();
        }
        for channel in &mut self.channels {
            channel.power_cut();
        }
        self.ops.clear();
        self.free_ops.clear();
        self.pu_ops.clear();
        self.free_pu_ops.clear();
        self.timers.clear();
        self.completions.clear();
        self.nand.power_cut();
    }
}
