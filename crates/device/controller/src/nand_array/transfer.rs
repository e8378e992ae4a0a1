//! [`Channel`]: transfers of program data into cache registers, and of read data out of registers.
//!
//! A channel carries one transfer at a time, in the order in which transfers become ready. Program
//! data goes into the cache register of the parallel unit first, which may overlap with the
//! previous program. Read data leaves in one piece, or page by page ([`TransferConfig::by_page`]).
//! It leaves from the page register, which occupies the array, or from the cache register
//! ([`TransferConfig::cache_read`]), which does not. A cache register holds either program data or
//! read data. If it holds program data, read data leaves from the page register, unless reads have
//! a register of their own ([`TransferConfig::dedicated_read_register`]).
//!
//! [`TransferConfig::by_page`]: crate::TransferConfig::by_page
//! [`TransferConfig::dedicated_read_register`]: crate::TransferConfig::dedicated_read_register
//! [`TransferConfig::cache_read`]: crate::TransferConfig::cache_read

use media::ChunkId;
use serde::{Deserialize, Serialize};
use time::Nanos;
use tracepoint::{Event as Tracepoint, PuOpStep};

use super::{ArrayEvent, NandArray};
use crate::PuScheduling;
use crate::nand_array::operation::{NandOpKind, PuOp, SectorAddress};
use crate::nand_array::pu::{ActiveOp, ArrayPhase, NO_PU_OP};

/// A channel; it is free from `free_at`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Channel {
    free_at: Nanos,
    /// Total transfer time.
    pub(crate) busy: Nanos,
    /// Size in bytes and duration of the last transfer: most are equal, and the cache avoids a
    /// division.
    last: (u64, Nanos),
}

impl Channel {
    /// Reserves the channel for a transfer and returns the end of the transfer. Transfers become
    /// ready in time order, so that immediate reservation is first come, first served.
    #[inline]
    fn reserve(&mut self, now: Nanos, bytes: u64, rate: u64) -> Nanos {
        if self.last.0 != bytes {
            self.last = (bytes, Nanos::transfer(bytes, rate));
        }
        let time = self.last.1;
        self.free_at = self.free_at.max(now) + time;
        self.busy += time;
        self.free_at
    }

    /// Discards its transfers, at a power cut.
    pub(super) fn power_cut(&mut self) {
        self.free_at = Nanos::ZERO;
    }
}

impl NandArray {
    /// Starts the transfer of the next program's data while the array is programming.
    pub(super) fn stage_ahead(&mut self, now: Nanos, pu: u32) {
        if !self.config.cache_program {
            return;
        }
        let unit = &self.pus[pu as usize];
        let programming = |part: u32| self.ops.pu_op(part).kind == NandOpKind::Program;
        let busy = unit.array.active.is_some_and(|a| programming(a.pu_op))
            || unit.array.suspended.is_some_and(|s| programming(s.pu_op));
        let Some(&next) = unit.queue.front() else { return };
        let free = unit.cache.staged == NO_PU_OP
            && (unit.cache.outgoing == NO_PU_OP || self.config.transfers.dedicated_read_register);
        if busy && free && programming(next) {
            self.pus[pu as usize].queue.pop_front();
            self.stage(now, pu, next);
        }
    }

    /// Starts the transfer of a program's data into the cache register.
    pub(super) fn stage(&mut self, now: Nanos, pu: u32, part: u32) {
        let unit = &mut self.pus[pu as usize];
        unit.cache.staged = part;
        unit.cache.staged_ready = false;
        unit.cache.staging = self.config.write_unit;
        self.trace_step(now, part, PuOpStep::Staging);
        self.stage_page(now, pu);
    }

    /// Transfers the next page of a program's data, so that other transfers wait for one page and
    /// not for a multi-plane program. If reads have priority, it transfers a sector, unless all
    /// transfers are by page.
    pub(super) fn stage_page(&mut self, now: Nanos, pu: u32) {
        let piece = match self.config.scheduling {
            PuScheduling::ReadPriority { .. } if !self.config.transfers.by_page => 1,
            _ => self.config.sectors_per_page,
        };
        let unit = &mut self.pus[pu as usize];
        let part = unit.cache.staged;
        let sectors = unit.cache.staging.min(piece);
        unit.cache.staging -= sectors;
        if sectors > 0 {
            let end = self.transfer(now, pu, part, sectors);
            if end > now {
                return self.timers.push(end, ArrayEvent::Staged { pu });
            }
            // A transfer takes no time.
            self.pus[pu as usize].cache.staging = 0;
        }
        self.pus[pu as usize].cache.staged_ready = true;
        self.trace_step(now, part, PuOpStep::Staged);
    }

    /// Reserves the parallel unit's channel for a transfer of sectors and returns the end of the
    /// transfer.
    #[inline]
    fn transfer(&mut self, now: Nanos, pu: u32, part: u32, sectors: u32) -> Nanos {
        let rate = self.nand.config().timing.channel_bytes_per_sec;
        if self.zero_latency || rate == 0 {
            return now;
        }
        let number = pu / self.config.pus_per_channel;
        let channel = &mut self.channels[number as usize];
        let start = channel.free_at.max(now);
        let bytes = u64::from(sectors) * u64::from(self.config.sector_bytes);
        let end = channel.reserve(now, bytes, rate);
        tracepoint::trace(|| Tracepoint::ChannelBusy { pu_op: part, channel: number, start, end });
        end
    }

    /// Handles the end of an array read, or a hit in the page register. Checks the sectors, and
    /// transfers them as soon as a register is free.
    pub(super) fn on_read_done(&mut self, now: Nanos, pu: u32, id: u32) {
        self.nand.set_time(now);
        self.trace_step(now, id, PuOpStep::ArrayEnds);
        self.check_read(id);
        let unit = &mut self.pus[pu as usize];
        let taken = unit.cache.staged != NO_PU_OP && !self.config.transfers.dedicated_read_register;
        if !self.config.transfers.cache_read || taken {
            unit.array.active = Some(ActiveOp { pu_op: id, phase: ArrayPhase::DataOut });
            self.send_out(now, pu, id, true);
        } else if unit.cache.outgoing != NO_PU_OP {
            unit.array.active = Some(ActiveOp { pu_op: id, phase: ArrayPhase::InPageRegister });
            (unit.array.start, unit.array.end) = (now, now);
        } else {
            (unit.array.active, unit.cache.outgoing) = (None, id);
            self.send_out(now, pu, id, false);
        }
    }

    /// Marks the sectors of a read that are uncorrectable.
    fn check_read(&mut self, id: u32) {
        let PuOp { op, chunk, page, first, count, retries, .. } = *self.ops.pu_op(id);
        let page_end = (page + 1) * self.config.stripe;
        if self.nand.check_plain_reads(ChunkId(chunk), page_end, count.into()) {
            return;
        }
        let op = self.ops.op_mut(op);
        for i in first..first + count {
            let phys = op.addresses.get()[usize::from(i)].phys;
            match self.nand.check_read_within(phys, retries.into()) {
                Ok(info) => {
                    if info.high_ecc {
                        self.media_events.on_high_ecc(&self.nand, phys, info.retries > 0);
                    }
                }
                Err(e) => {
                    op.failed |= 1 << i;
                    if op.status.is_success() {
                        op.status = e.status();
                    }
                    let exhausted = u32::from(retries) >= self.config.read_retries;
                    self.media_events.on_read_failed(&self.nand, phys, &e, exhausted);
                }
            }
        }
    }

    /// Starts the transfer of read data over the channel. `held` says whether the data is in the page
    /// register, which the array needs.
    #[inline]
    fn send_out(&mut self, now: Nanos, pu: u32, id: u32, held: bool) {
        let count = self.ops.pu_op(id).count;
        self.send_next(now, pu, id, held, count);
    }

    /// Transfers the next segment of a parallel unit's read data; the transfer is complete when the
    /// last segment has arrived.
    pub(super) fn send_segment(&mut self, now: Nanos, pu: u32) {
        let unit = &self.pus[pu as usize];
        let (id, held) = match unit.array.active {
            _ if unit.cache.outgoing != NO_PU_OP => (unit.cache.outgoing, false),
            Some(ActiveOp { pu_op: part, phase: ArrayPhase::DataOut }) => (part, true),
            _ => return,
        };
        match unit.cache.sending {
            0 => self.on_sent(now, pu),
            left => self.send_next(now, pu, id, held, left),
        }
    }

    /// Transfers the next segment of the `left` sectors that remain.
    #[inline]
    fn send_next(&mut self, now: Nanos, pu: u32, id: u32, held: bool, left: u8) {
        let sectors = self.next_segment(left, id);
        let end = self.transfer(now, pu, id, sectors.into());
        let unit = &mut self.pus[pu as usize];
        if end > now {
            unit.cache.sending = left - sectors;
            if held {
                unit.add_busy(NandOpKind::Read, end.since(now));
            }
            self.timers.push(end, ArrayEvent::SegmentOut { pu });
        } else {
            // A transfer takes no time.
            unit.cache.sending = 0;
            self.on_sent(now, pu);
        }
    }

    /// Returns the number of sectors in the next segment: all `left` ones, or those of the next
    /// page.
    #[inline]
    fn next_segment(&self, left: u8, id: u32) -> u8 {
        if !self.config.transfers.by_page {
            return left;
        }
        let part = self.ops.pu_op(id);
        let end = usize::from(part.first) + usize::from(part.count);
        let rest = &self.ops.op(part.op).addresses.get()[end - usize::from(left)..end];
        // Chunks start at a multiple of the sectors per page.
        let page = |address: &SectorAddress| address.phys.get() / self.config.sectors_per_page;
        rest.iter().take_while(|a| page(a) == page(&rest[0])).count() as u8
    }

    /// Frees the register after a complete transfer, first for data that the array still holds.
    fn on_sent(&mut self, now: Nanos, pu: u32) {
        let unit = &mut self.pus[pu as usize];
        if unit.cache.outgoing == NO_PU_OP {
            if let Some(active) = unit.array.active.take() {
                self.complete_pu_op(pu, active.pu_op, 0, nvme::Status::SUCCESS);
            }
            return;
        }
        let gone = std::mem::replace(&mut unit.cache.outgoing, NO_PU_OP);
        let next = unit.array.active.filter(|a| a.phase == ArrayPhase::InPageRegister);
        let began = unit.array.start;
        self.complete_pu_op(pu, gone, 0, nvme::Status::SUCCESS);
        if let Some(ActiveOp { pu_op: part, .. }) = next {
            let unit = &mut self.pus[pu as usize];
            unit.add_busy(NandOpKind::Read, now.since(began));
            (unit.array.active, unit.cache.outgoing) = (None, part);
            self.send_out(now, pu, part, false);
        } else {
            self.stage_ahead(now, pu);
        }
    }
}
