//! The array of a parallel unit: one operation at a time, the next one chosen by the unit's policy.
//!
//! A read leaves its page in the page register until the array does something else. With cache read
//! (ONFI 4.0 section 5.20, READ CACHE) it moves on to the cache register, and the array may read
//! again while the channel empties that. Nothing but a read begins meanwhile, or a program where reads
//! have a register of their own: what leaves is still on the media when its owner hears of it, and the
//! cache register is free for a program's data.

use clock::Nanos;
use media::ChunkId;
use tracepoint::{Event as Tracepoint, PartStep};

use super::{Event, FlashArray};
use crate::operation::{Part, What};
use crate::pu::{Active, NONE, Phase};

impl FlashArray {
    /// Gives an idle parallel unit its next work.
    pub(super) fn dispatch(&mut self, now: Nanos, pu: u32) {
        loop {
            let unit = &mut self.pus[pu as usize];
            if unit.active.is_some() {
                return;
            }
            if let Some(part) = unit.reads.pop_front() {
                self.start_read(now, pu, part);
            } else if unit.outgoing != NONE
                && !unit.begins_meanwhile(&self.parts, self.transfers.read_register)
            {
                return;
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
            self.parts[id as usize].retries = retries;
            return self.read_done(now, pu, id);
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
        self.nand.tell_time(now);
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
    pub(super) fn array_time(&self, part: &Part) -> Nanos {
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
        let (ends, epoch) = (unit.ends, unit.epoch);
        self.timers.push(ends, Event::Array { pu, epoch });
        self.trace_step(now, id, PartStep::ArrayBegins);
    }

    /// Accounts for a stretch of time that has ended, or is certain to end then.
    #[inline]
    pub(super) fn array_was_busy(
        &mut self,
        pu: u32,
        (part, what): (u32, What),
        start: Nanos,
        end: Nanos,
    ) {
        let time = end.since(start);
        self.pus[pu as usize].account(what, time);
        tracepoint::trace(|| Tracepoint::ArrayBusy { part, pu, op: what.into(), start, end });
    }

    pub(super) fn array_done(&mut self, now: Nanos, pu: u32) {
        let Some(active) = self.pus[pu as usize].active else { return };
        let part = self.parts[active.part as usize];
        let began = self.pus[pu as usize].began;
        self.array_was_busy(pu, (active.part, part.what), began, now);
        let chunk = ChunkId(part.chunk);
        let result = match part.what {
            What::Read => return self.read_done(now, pu, active.part),
            // The next planes; reads that wait go in between.
            _ if part.rounds > 1 => return self.next_round(pu, active.part),
            What::Program => self.nand.end_program(chunk, part.page),
            What::Erase => self.nand.end_erase(chunk),
        };
        self.pus[pu as usize].active = None;
        self.trace_step(now, active.part, PartStep::ArrayEnds);
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
}
