//! [`NandArray`]: the timing model of parallel units and channels (ARCHITECTURE.md describes the
//! time model).
//!
//! An *operation* is one request of an owner, which receives one completion. A read is split into
//! parallel-unit operations ([`PuOp`]), one per page and parallel unit. This module accepts, queues
//! and completes operations. `array` models the array of a parallel unit, `transfer` the channels,
//! and `hints` the hints of vector commands [LightNVM17 §3.3].

pub(crate) mod operation;
pub(crate) mod pu;

use media::{ChunkId, Nand, PhysSector, PuId};
use nvme::VectorHints;
use serde::{Deserialize, Serialize};
use time::{Nanos, TimerQueue};
use tracepoint::{Cause, Event as Tracepoint, PuOpStep};

use crate::check::{DriveCheck, DrivePart, DriveViolation};
use crate::media_health::events::MediaEventLog;
pub(crate) use crate::nand_array::operation::{NandOpCompletion, NandOpKind, OpOwner};
use crate::nand_array::operation::{PuOp, SectorAddress};
use crate::nand_array::pu::Pu;
use crate::{DriveConfig, PuScheduling, SuspendConfig, TransferConfig};

mod array;
mod hints;
mod op_table;
mod transfer;

use op_table::OpTable;
use transfer::Channel;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
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

/// The geometry and the policies of an array.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct ArrayConfig {
    scheduling: PuScheduling,
    /// Costs of suspension on a read's hint, if the drive supports it.
    suspend_on_hint: Option<SuspendConfig>,
    /// Maximum number of read retries.
    read_retries: u32,
    page_register: bool,
    cache_program: bool,
    transfers: TransferConfig,
    pus_per_channel: u32,
    planes: u32,
    stripe: u32,
    sectors_per_page: u32,
    write_unit: u32,
    sector_bytes: u32,
}

impl ArrayConfig {
    fn new(nand: &Nand, config: &DriveConfig) -> ArrayConfig {
        let g = nand.config().geometry;
        ArrayConfig {
            scheduling: config.pu_scheduling,
            suspend_on_hint: config.open_channel.suspend_on_hint,
            read_retries: nand.config().errors.read_retries,
            page_register: config.page_register,
            cache_program: config.cache_program,
            transfers: config.transfers,
            pus_per_channel: g.pus,
            planes: g.planes,
            stripe: g.sectors_per_stripe(),
            sectors_per_page: g.sectors_per_page(),
            write_unit: nand.config().write_unit(),
            sector_bytes: g.sector_bytes,
        }
    }
}

/// Counters of an array.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ArrayCounters {
    /// Read retries made.
    pub(crate) read_retries_made: u64,
    /// Reads that were not retried because of a hint.
    pub(crate) retries_forgone: u64,
    /// Suspensions of programs and erases.
    pub(crate) suspensions: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NandArray {
    pub(crate) nand: Nand,
    pub(crate) pus: Vec<Pu>,
    pub(crate) channels: Vec<Channel>,
    ops: OpTable,
    timers: TimerQueue<ArrayEvent>,
    /// Completed operations whose owners have not been notified.
    completions: Vec<u32>,
    config: ArrayConfig,
    pub(crate) counters: ArrayCounters,
    /// Events detected by operations.
    pub(crate) media_events: MediaEventLog,
    /// All operations take no time, for preconditioning.
    pub(crate) zero_latency: bool,
    /// Parallel units whose array operations take longer, each with the factor.
    slow_dies: Vec<(PuId, f64)>,
}

impl NandArray {
    pub(crate) fn new(nand: Nand, config: &DriveConfig) -> NandArray {
        let g = nand.config().geometry;
        let pus = g.total_pus() as usize;
        NandArray {
            pus: vec![Pu::default(); pus],
            channels: vec![Channel::default(); g.channels as usize],
            ops: OpTable::default(),
            timers: TimerQueue::with_capacity(4 * pus),
            completions: Vec::with_capacity(64),
            config: ArrayConfig::new(&nand, config),
            counters: ArrayCounters::default(),
            media_events: MediaEventLog::new(&nand, config.personality),
            zero_latency: false,
            slow_dies: Vec::new(),
            nand,
        }
    }

    /// Has array operations of a parallel unit that start from now on take `factor` times as long.
    /// Returns `false`, and changes nothing, if they take longer already.
    pub(crate) fn set_slow_die(&mut self, pu: PuId, factor: f64) -> bool {
        let is_fast = self.slow_dies.iter().all(|(slow, _)| *slow != pu);
        if is_fast {
            self.slow_dies.push((pu, factor));
        }
        is_fast
    }

    /// Has array operations of a parallel unit take their own times again.
    pub(crate) fn end_slow_die(&mut self, pu: PuId) {
        self.slow_dies.retain(|(slow, _)| *slow != pu);
    }

    /// Returns the time of the next event.
    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        if self.completions.is_empty() { self.timers.next_at() } else { Nanos::ZERO }
    }

    /// Whether no operation is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.ops.is_idle() && self.completions.is_empty()
    }

    /// Returns the addresses of an operation that has just completed.
    #[inline]
    pub(crate) fn addresses(&self, op: u32) -> &[SectorAddress] {
        self.ops.op(op).addresses.get()
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
        let op = self.ops.begin(owner, NandOpKind::Read);
        let slot = self.ops.op_mut(op);
        slot.addresses.set(addresses.clone());
        // A parallel-unit operation may complete at once, if its page is in the register. The extra
        // count keeps the operation open until all have started.
        slot.pu_ops_left = 1;
        let (mut first, mut next) = (0, addresses.next());
        while let Some(address) = next {
            let (chunk, sector) = self.nand.layout().split(address.phys);
            let page = sector / self.config.stripe;
            let page_start = PhysSector(address.phys.get() - sector % self.config.stripe);
            let (mut planes, mut count) = (0u64, 0);
            while let Some(address) =
                next.filter(|a| a.phys.get().wrapping_sub(page_start.get()) < self.config.stripe)
            {
                planes |= 1 << ((address.phys - page_start) / self.config.sectors_per_page);
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
        let op = self.ops.begin(owner, NandOpKind::Program);
        let part = PuOp {
            op,
            kind: NandOpKind::Program,
            chunk,
            page: sector / self.config.write_unit,
            planes: 0,
            first: 0,
            count: self.config.write_unit.min(64) as u8,
            hints,
            array_ops_left: self.array_op_count(hints, self.config.planes),
            retries: 0,
            suspensions: 0,
        };
        self.submit(now, part);
    }

    /// Erases a chunk.
    pub(crate) fn erase(&mut self, now: Nanos, owner: OpOwner, hints: VectorHints, chunk: u32) {
        let op = self.ops.begin(owner, NandOpKind::Erase);
        let part = PuOp {
            op,
            kind: NandOpKind::Erase,
            chunk,
            page: 0,
            planes: 0,
            first: 0,
            count: 1,
            hints,
            array_ops_left: self.array_op_count(hints, self.config.planes),
            retries: 0,
            suspensions: 0,
        };
        self.submit(now, part);
    }

    /// Completes an operation that could not start with a failure.
    pub(crate) fn fail(&mut self, owner: OpOwner, what: NandOpKind, status: nvme::Status) {
        let id = self.ops.begin(owner, what);
        let op = self.ops.op_mut(id);
        (op.failed, op.status) = (u64::MAX, status);
        self.completions.push(id);
    }

    /// Sets the unit of the operation started or failed last, for an owner that starts several.
    pub(crate) fn set_last_unit(&mut self, unit: u32) {
        let last = self.ops.last();
        self.ops.op_mut(last).unit = unit;
    }

    fn submit(&mut self, now: Nanos, part: PuOp) {
        let pu = self.nand.layout().pu_of(ChunkId(part.chunk)).get();
        let reads_first = !matches!(self.config.scheduling, PuScheduling::Fifo);
        let id = self.ops.begin_pu_op(part);
        tracepoint::trace_at(now, || self.queued_tracepoint(id, pu));
        let hinted = part.hints.suspend;
        let is_host_read = matches!(self.ops.op(part.op).owner, OpOwner::FtlForCommand(..));
        self.pus[pu as usize].host_reads += u32::from(is_host_read);
        if part.kind == NandOpKind::Program && self.pus[pu as usize].is_idle() {
            // It goes from the queue to the register at once.
            self.stage(now, pu, id);
        } else if part.kind == NandOpKind::Read && (reads_first || hinted && self.can_overtake(pu))
        {
            let unit = &mut self.pus[pu as usize];
            if unit.array.active.is_none() && unit.reads.is_empty() {
                self.start_read(now, pu, id);
            } else {
                unit.reads.push_back(id);
                self.suspend(now, pu, hinted);
            }
        } else {
            self.pus[pu as usize].queue.push_back(id);
            self.stage_ahead(now, pu);
        }
        self.dispatch(now, pu);
    }

    /// Returns the tracepoint of a parallel-unit operation that was queued.
    fn queued_tracepoint(&self, id: u32, pu: u32) -> Tracepoint {
        let part = self.ops.pu_op(id);
        let (cause, command) = match self.ops.op(part.op).owner {
            OpOwner::Ftl(op) => (op.cause(), None),
            OpOwner::FtlForCommand(op, tag) => (op.cause(), Some(tag.command)),
            OpOwner::Command(command) => (Cause::Host, Some(command)),
            OpOwner::Scrub => (Cause::Scrub, None),
            OpOwner::Sanitize(_) => (Cause::Sanitize, None),
        };
        let (chunk, op) = (part.chunk, part.kind.into());
        Tracepoint::PuOpQueued { pu_op: id, pu, chunk, op, cause, command }
    }

    /// Emits the tracepoint of a parallel-unit operation's step.
    #[inline(always)]
    fn trace_step(&self, now: Nanos, part: u32, step: PuOpStep) {
        tracepoint::trace_at(now, || Tracepoint::PuOpProgress { pu_op: part, step });
    }

    /// Completes a part of an operation on a parallel unit.
    #[inline]
    fn complete_pu_op(&mut self, pu: u32, id: u32, failed: u64, status: nvme::Status) {
        tracepoint::trace(|| Tracepoint::PuOpProgress { pu_op: id, step: PuOpStep::Done });
        let PuOp { op: number, first, .. } = *self.ops.end_pu_op(id);
        let op = self.ops.op_mut(number);
        op.failed |= failed << first;
        if op.status.is_success() {
            op.status = status;
        }
        if matches!(op.owner, OpOwner::FtlForCommand(..)) {
            self.pus[pu as usize].host_reads -= 1;
        }
        self.on_pu_op_complete(number);
    }

    #[inline]
    fn on_pu_op_complete(&mut self, id: u32) {
        let op = self.ops.op_mut(id);
        op.pu_ops_left -= 1;
        if op.pu_ops_left == 0 {
            self.completions.push(id);
        }
    }

    /// Processes the events that are due by `limit`, at their own times, until an operation
    /// completes or the media report an event. Returns the time of the last one; `limit` if there
    /// was none.
    #[inline(never)]
    pub(crate) fn advance(&mut self, limit: Nanos) -> Nanos {
        let mut at = limit;
        while self.completions.is_empty()
            && let Some((due, event)) = self.timers.pop_due(limit)
        {
            at = due;
            self.handle_event(due, event);
            if self.media_events.has_pending() {
                break;
            }
        }
        at
    }

    /// Removes and returns the next completion.
    #[inline]
    pub(crate) fn pop_completion(&mut self) -> Option<NandOpCompletion> {
        // Hardly ever more than one.
        let id = match self.completions.as_slice() {
            [] => return None,
            [_] => self.completions.pop()?,
            _ => self.completions.remove(0),
        };
        // The operation stays readable until its slot is reused.
        self.ops.end(id);
        let op = self.ops.op(id);
        Some(NandOpCompletion {
            owner: op.owner,
            op: id,
            kind: op.kind,
            unit: op.unit,
            failed: op.failed,
            status: op.status,
        })
    }

    fn handle_event(&mut self, at: Nanos, event: ArrayEvent) {
        tracepoint::set_time(at);
        let pu = match event {
            ArrayEvent::ArrayDone { pu, epoch } => {
                if self.pus[pu as usize].array.epoch != epoch {
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
                if self.pus[pu as usize].array.epoch != epoch {
                    return;
                }
                self.pus[pu as usize].array.active = None;
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
        self.timers.clear();
        self.completions.clear();
        self.nand.power_cut();
    }

    /// Compares the parallel units with the operations in flight; for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(&self) -> Result<(), DriveViolation> {
        let mut placed: Vec<u32> = Vec::new();
        for (pu, unit) in (0..).zip(&self.pus) {
            unit.check_invariants(pu)?;
            placed.extend(unit.pu_ops());
            let host_reads = unit.pu_ops().filter(|id| {
                let owner = self.ops.op(self.ops.pu_op(*id).op).owner;
                matches!(owner, OpOwner::FtlForCommand(..))
            });
            let check =
                DriveCheck { part: DrivePart::NandArray, subject: "parallel unit", index: pu };
            let host_reads = host_reads.count() as u32;
            check.equal("reads for host commands are counted", host_reads, unit.host_reads)?;
        }
        self.ops.check_invariants(placed, self.completions.iter().copied())
    }

    /// Frees a part of an operation that is in flight.
    #[cfg(test)]
    pub(crate) fn break_free_list(&mut self) {
        self.ops.break_free_list();
    }
}
