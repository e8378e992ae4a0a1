//! [`Channel`], and what it carries: data of programs into cache registers, what has been read out
//! of registers.
//!
//! A channel carries one transfer at a time, in the order in which transfers become ready. The data
//! of a program goes into the unit's cache register first, which may overlap with the program before
//! it. What has been read leaves in one piece, or page by page ([`Transfers::by_page`]), from the page
//! register, which keeps the array, or from the cache register ([`Transfers::cache_read`]), which does not.
//! A cache register holds a program's data or what has been read, never both: a read that finds it
//! taken by a program leaves from the page register, unless reads have a register of their own
//! ([`Transfers::read_register`]).
//!
//! [`Transfers::by_page`]: crate::Transfers::by_page
//! [`Transfers::read_register`]: crate::Transfers::read_register
//! [`Transfers::cache_read`]: crate::Transfers::cache_read

use clock::Nanos;
use media::Psn;
use tracepoint::{Event as Tracepoint, PartStep};

use super::{Event, FlashArray};
use crate::PuPolicy;
use crate::operation::What;
use crate::pu::{Active, NONE, Phase};

/// A channel: free from this instant on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Channel {
    free: Nanos,
    /// Time spent transferring.
    pub(crate) busy: Nanos,
    /// Bytes of the last transfer and the time it took: most are alike, and divisions are slow.
    last: (u64, Nanos),
}

impl Channel {
    /// Forgets what it carries.
    pub(super) fn power_cut(&mut self) {
        self.free = Nanos::ZERO;
    }
}

impl FlashArray {
    /// Starts the transfer of the next program's data while the array is programming.
    pub(super) fn stage_ahead(&mut self, now: Nanos, pu: u32) {
        if !self.cache_program {
            return;
        }
        let unit = &self.pus[pu as usize];
        let programming = |part: u32| self.parts[part as usize].what == What::Program;
        let busy = unit.active.is_some_and(|a| programming(a.part))
            || unit.suspended.is_some_and(|(part, _)| programming(part));
        let Some(&next) = unit.queue.front() else { return };
        let free = unit.staged == NONE && (unit.outgoing == NONE || self.transfers.read_register);
        if busy && free && programming(next) {
            self.pus[pu as usize].queue.pop_front();
            self.stage(now, pu, next);
        }
    }

    /// Transfers a program's data into the cache register.
    pub(super) fn stage(&mut self, now: Nanos, pu: u32, part: u32) {
        let unit = &mut self.pus[pu as usize];
        unit.staged = part;
        unit.staged_ready = false;
        unit.staging = self.unit;
        self.trace_step(now, part, PartStep::Staging);
        self.stage_page(now, pu);
    }

    /// Transfers the next piece of a program's data: a page, so that others on the channel wait for
    /// a page and not for a multi-plane program; where reads go first, a sector, unless all go by page.
    pub(super) fn stage_page(&mut self, now: Nanos, pu: u32) {
        let piece = match self.policy {
            PuPolicy::ReadsFirst { .. } if !self.transfers.by_page => 1,
            _ => self.sectors_per_page,
        };
        while self.pus[pu as usize].staging > 0 {
            let sectors = self.pus[pu as usize].staging.min(piece);
            self.pus[pu as usize].staging -= sectors;
            let bytes = u64::from(sectors) * u64::from(self.sector_bytes);
            let end = self.transfer(now, pu, self.pus[pu as usize].staged, bytes);
            if end > now {
                self.timers.push(end, Event::Staged { pu });
                return;
            }
        }
        self.pus[pu as usize].staged_ready = true;
        self.trace_step(now, self.pus[pu as usize].staged, PartStep::Staged);
    }

    /// Reserves the channel for a transfer and says when it ends. Transfers become ready in the
    /// order of time, so that reserving on the spot serves them first come, first served.
    #[inline]
    fn transfer(&mut self, now: Nanos, pu: u32, part: u32, bytes: u64) -> Nanos {
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
        let end = channel.free;
        tracepoint::trace(|| Tracepoint::ChannelBusy { part, channel: number, start, end });
        end
    }

    /// The array has read a part, or its page was in the register: checks it, and sends it over the
    /// channel as soon as a register of its own is free.
    pub(super) fn read_done(&mut self, now: Nanos, pu: u32, id: u32) {
        self.nand.tell_time(now);
        self.trace_step(now, id, PartStep::ArrayEnds);
        self.check(id);
        let unit = &mut self.pus[pu as usize];
        let taken = unit.staged != NONE && !self.transfers.read_register;
        if !self.transfers.cache_read || taken {
            unit.active = Some(Active { part: id, phase: Phase::Out });
            self.send_out(now, pu, id);
        } else if unit.outgoing != NONE {
            unit.active = Some(Active { part: id, phase: Phase::Held });
            (unit.began, unit.ends) = (now, now);
        } else {
            (unit.active, unit.outgoing) = (None, id);
            self.send_out(now, pu, id);
        }
    }

    /// Notes which sectors of a read cannot be had.
    fn check(&mut self, id: u32) {
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
    }

    /// Begins to send a part over the channel.
    fn send_out(&mut self, now: Nanos, pu: u32, id: u32) {
        self.pus[pu as usize].sending = self.parts[id as usize].count;
        self.send_piece(now, pu);
    }

    /// Sends the next piece of what leaves a parallel unit's registers; nothing is left when the last
    /// one has arrived.
    pub(super) fn send_piece(&mut self, now: Nanos, pu: u32) {
        let unit = &self.pus[pu as usize];
        let (id, held) = match unit.active {
            _ if unit.outgoing != NONE => (unit.outgoing, false),
            Some(Active { part, phase: Phase::Out }) => (part, true),
            _ => return,
        };
        while self.pus[pu as usize].sending > 0 {
            let sectors = self.next_piece(pu, id);
            self.pus[pu as usize].sending -= sectors;
            let bytes = u64::from(sectors) * u64::from(self.sector_bytes);
            let end = self.transfer(now, pu, id, bytes);
            if end > now {
                if held {
                    self.pus[pu as usize].account(What::Read, end.since(now));
                }
                self.timers.push(end, Event::Out { pu });
                return;
            }
        }
        self.sent(now, pu);
    }

    /// Sectors that leave without others in between: all of a part, or those of its next page.
    #[inline]
    fn next_piece(&self, pu: u32, id: u32) -> u8 {
        let left = self.pus[pu as usize].sending;
        if !self.transfers.by_page {
            return left;
        }
        let part = &self.parts[id as usize];
        let end = usize::from(part.first) + usize::from(part.count);
        let rest = &self.ops[part.op as usize].addresses.get()[end - usize::from(left)..end];
        // Chunks begin at a multiple of the sectors of a page.
        let page = |address: &(u32, u32)| address.0 / self.sectors_per_page;
        rest.iter().take_while(|a| page(a) == page(&rest[0])).count() as u8
    }

    /// All of a part has left: its register is free, for what the array holds first.
    fn sent(&mut self, now: Nanos, pu: u32) {
        let unit = &mut self.pus[pu as usize];
        if unit.outgoing == NONE {
            if let Some(active) = unit.active.take() {
                self.end_part(active.part, 0, nvme::Status::SUCCESS);
            }
            return;
        }
        let gone = std::mem::replace(&mut unit.outgoing, NONE);
        let next = unit.active.filter(|a| a.phase == Phase::Held);
        let began = unit.began;
        self.end_part(gone, 0, nvme::Status::SUCCESS);
        if let Some(Active { part, .. }) = next {
            let unit = &mut self.pus[pu as usize];
            unit.account(What::Read, now.since(began));
            (unit.active, unit.outgoing) = (None, part);
            self.send_out(now, pu, part);
        } else {
            self.stage_ahead(now, pu);
        }
    }
}
