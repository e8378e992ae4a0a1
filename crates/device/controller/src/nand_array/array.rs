//! The array of a parallel unit: executes one operation at a time, chosen by the scheduling policy.
//!
//! A read leaves its page in the page register until the array's next operation. With cache read
//! (ONFI 4.0 §5.20, READ CACHE), the page moves on to the cache register, and the array may read
//! again while the channel drains that register. In the meantime only reads start, and programs if
//! reads have a register of their own. Read data is therefore still on the media when its owner is
//! notified, and the cache register is free for program data.

use media::{ChunkId, UnitInChunk};
use time::Nanos;
use tracepoint::{Event as Tracepoint, PuOpStep};

use super::{ArrayEvent, NandArray};
use crate::nand_array::operation::{NandOpKind, PuOp, PuOpId};
use crate::nand_array::pu::{ActiveOp, ArrayPhase, NO_PU_OP};

impl NandArray {
    /// Starts the next work of a parallel unit if its array is idle.
    #[inline]
    pub(super) fn dispatch(&mut self, now: Nanos, pu: u32) {
        if self.pus[pu as usize].array.active.is_none() {
            self.dispatch_idle(now, pu);
        }
    }

    #[inline(never)]
    fn dispatch_idle(&mut self, now: Nanos, pu: u32) {
        loop {
            let unit = &mut self.pus[pu as usize];
            if unit.array.active.is_some() {
                return;
            }
            if let Some(part) = unit.reads.pop_front() {
                self.start_read(now, pu, part);
            } else if unit.cache.outgoing != NO_PU_OP
                && !unit.can_start_during_transfer(
                    self.ops.pu_ops(),
                    self.config.transfers.dedicated_read_register,
                )
            {
                return;
            } else if let Some(suspended) = unit.array.suspended.take() {
                self.run_array(now, pu, suspended.pu_op, suspended.remaining);
            } else if unit.cache.staged != NO_PU_OP {
                if !unit.cache.staged_ready {
                    return;
                }
                let part = std::mem::replace(&mut unit.cache.staged, NO_PU_OP);
                self.start_program(now, pu, part);
            } else if let Some(part) = unit.queue.pop_front() {
                match self.ops.pu_op(part).kind {
                    NandOpKind::Read => self.start_read(now, pu, part),
                    NandOpKind::Program => self.stage(now, pu, part),
                    NandOpKind::Erase => self.start_erase(now, pu, part),
                }
            } else {
                return;
            }
        }
    }

    pub(super) fn start_read(&mut self, now: Nanos, pu: u32, id: u32) {
        let part = *self.ops.pu_op(id);
        let needed = if self.config.read_retries == 0 { 0 } else { self.retries_needed(&part) };
        let unit = &mut self.pus[pu as usize];
        let held = unit
            .find_in_register(part.chunk, part.page, part.planes)
            .filter(|_| self.config.page_register);
        if let Some(retries) = held.filter(|r| *r >= needed || part.hints.limited_retry) {
            unit.register_hits += 1;
            self.ops.pu_op_mut(id).retries = retries;
            return self.on_read_done(now, pu, id);
        }
        let retries = if part.hints.limited_retry { 0 } else { needed };
        unit.load_register(part.chunk, part.page, part.planes, retries);
        if retries > 0 {
            self.counters.read_retries_made += u64::from(retries);
            self.ops.pu_op_mut(id).retries = retries;
        }
        let time = self.array_time(&part) * (u64::from(part.array_ops_left) + u64::from(retries));
        self.run_array(now, pu, id, time);
    }

    fn start_program(&mut self, now: Nanos, pu: u32, id: u32) {
        let part = *self.ops.pu_op(id);
        self.pus[pu as usize].invalidate_register();
        self.nand.set_time(now);
        if let Err(e) = self.nand.begin_program(ChunkId(part.chunk), UnitInChunk(part.page)) {
            self.media_events.on_op_failed(&self.nand, ChunkId(part.chunk), &e);
            return self.complete_pu_op(
                pu,
                id,
                u64::MAX >> (64 - u32::from(part.count)),
                e.status(),
            );
        }
        let time = self.array_time(&part);
        self.run_array(now, pu, id, time);
        self.stage_ahead(now, pu);
    }

    fn start_erase(&mut self, now: Nanos, pu: u32, id: u32) {
        let part = *self.ops.pu_op(id);
        self.pus[pu as usize].invalidate_register();
        if let Err(e) = self.nand.begin_erase(ChunkId(part.chunk)) {
            self.media_events.on_op_failed(&self.nand, ChunkId(part.chunk), &e);
            return self.complete_pu_op(pu, id, 1, e.status());
        }
        let time = self.array_time(&part);
        self.run_array(now, pu, id, time);
    }

    /// Returns the time of one array operation of a parallel-unit operation.
    #[inline]
    pub(super) fn array_time(&self, part: &PuOp) -> Nanos {
        let config = self.nand.config();
        let time = match part.kind {
            NandOpKind::Read => config.timing.read[config.page_type(part.page)],
            NandOpKind::Program if config.one_shot => config.timing.program[0],
            NandOpKind::Program => config.timing.program[config.page_type(part.page)],
            NandOpKind::Erase => config.timing.erase,
        };
        if self.slow_dies.is_empty() { time } else { self.slowed(part, time) }
    }

    /// Returns the time of an operation on a die that may be slow.
    #[cold]
    fn slowed(&self, part: &PuOp, time: Nanos) -> Nanos {
        let pu = self.nand.layout().pu_of(ChunkId(part.chunk));
        match self.slow_dies.iter().find(|(slow, _)| *slow == pu) {
            Some((_, factor)) => Nanos((time.0 as f64 * factor) as u64),
            None => time,
        }
    }

    fn run_array(&mut self, now: Nanos, pu: u32, id: u32, time: Nanos) {
        let time = if self.zero_latency { Nanos::ZERO } else { time };
        let unit = &mut self.pus[pu as usize];
        unit.array.active = Some(ActiveOp { pu_op: id, phase: ArrayPhase::Array });
        (unit.array.start, unit.array.end) = (now, now + time);
        let (ends, epoch) = (unit.array.end, unit.array.epoch);
        self.timers.push(ends, ArrayEvent::ArrayDone { pu, epoch });
        self.trace_step(now, id, PuOpStep::ArrayBegins);
    }

    /// Accounts for a busy interval whose end is past or certain.
    #[inline]
    pub(super) fn record_array_busy(&mut self, pu: u32, of: PuOpId, start: Nanos, end: Nanos) {
        let time = end.since(start);
        self.pus[pu as usize].add_busy(of.kind, time);
        tracepoint::trace(|| Tracepoint::ArrayBusy {
            pu_op: of.id,
            pu,
            op: of.kind.into(),
            start,
            end,
        });
    }

    pub(super) fn on_array_done(&mut self, now: Nanos, pu: u32) {
        let Some(active) = self.pus[pu as usize].array.active else { return };
        let part = *self.ops.pu_op(active.pu_op);
        let began = self.pus[pu as usize].array.start;
        let ended = PuOpId { id: active.pu_op, kind: part.kind };
        self.record_array_busy(pu, ended, began, now);
        let chunk = ChunkId(part.chunk);
        let result = match part.kind {
            NandOpKind::Read => return self.on_read_done(now, pu, active.pu_op),
            // Continue with the next planes; waiting reads may go first.
            _ if part.array_ops_left > 1 => return self.next_array_op(pu, active.pu_op),
            NandOpKind::Program => self.nand.complete_program(chunk, UnitInChunk(part.page)),
            NandOpKind::Erase => self.nand.complete_erase(chunk),
        };
        self.pus[pu as usize].array.active = None;
        self.trace_step(now, active.pu_op, PuOpStep::ArrayEnds);
        match result {
            Ok(()) => {
                if part.kind == NandOpKind::Erase {
                    self.media_events.on_erased(chunk);
                }
                self.complete_pu_op(pu, active.pu_op, 0, nvme::Status::SUCCESS);
            }
            Err(e) => {
                self.media_events.on_op_failed(&self.nand, chunk, &e);
                let all = u64::MAX >> (64 - u32::from(part.count));
                self.complete_pu_op(pu, active.pu_op, all, e.status());
            }
        }
    }
}
