//! [`TicketLock`]: a spin lock in virtual time.
//!
//! A waiter takes a ticket and reads the line with the served ticket repeatedly. Serving the next
//! ticket invalidates that line for all waiters. Each waiter reads it again, and these reads are
//! served one at a time, so a handover takes longer with more waiters (\[Locks12\], section 3). The
//! next holder continues when its own read is served; its position among the reads is random. The
//! next ticket and the served ticket are on separate lines. This is better than the lock of Linux
//! 3.10, where taking a ticket also disturbs the waiters.

use std::collections::VecDeque;

use crate::lines::{CacheLineId, CoherenceDirectory};

/// A lock.
#[derive(Debug)]
pub(crate) struct TicketLock {
    tickets: CacheLineId,
    serving: CacheLineId,
    locked: bool,
    /// Number of cores that have taken a ticket and not left.
    ticket_holders: usize,
    /// Waiting cores, in the order of their tickets.
    waiters: VecDeque<usize>,
    handovers: u64,
}

impl TicketLock {
    pub(crate) fn new(tickets: CacheLineId, serving: CacheLineId) -> TicketLock {
        let waiters = VecDeque::new();
        TicketLock { tickets, serving, locked: false, ticket_holders: 0, waiters, handovers: 0 }
    }

    /// Returns whether a core holds the lock or waits for it.
    pub(crate) fn is_taken(&self) -> bool {
        self.ticket_holders > 0
    }

    /// Takes a ticket; returns the time at which the core has it.
    pub(crate) fn draw(&mut self, lines: &mut CoherenceDirectory, core: usize, now: u64) -> u64 {
        self.ticket_holders += 1;
        lines.touch(core, self.tickets, true, now)
    }

    /// Reads the served ticket; returns the time at which the core holds the lock, or `None` if it
    /// waits.
    pub(crate) fn enter(
        &mut self,
        lines: &mut CoherenceDirectory,
        core: usize,
        now: u64,
    ) -> Option<u64> {
        let read = lines.touch(core, self.serving, false, now);
        if self.locked {
            self.waiters.push_back(core);
            return None;
        }
        self.locked = true;
        Some(read)
    }

    /// Probes the lock; returns the time at which the core has the answer.
    pub(crate) fn probe(&self, lines: &mut CoherenceDirectory, core: usize, now: u64) -> u64 {
        lines.touch(core, self.serving, false, now)
    }

    /// Serves the next ticket; returns the end of the operation, and the next holder with the time
    /// from which it holds the lock.
    pub(crate) fn leave(
        &mut self,
        lines: &mut CoherenceDirectory,
        core: usize,
        now: u64,
    ) -> (u64, Option<(usize, u64)>) {
        self.ticket_holders -= 1;
        let done = lines.touch(core, self.serving, true, now);
        if self.waiters.is_empty() {
            self.locked = false;
            return (done, None);
        }
        self.handovers += 1;
        let count = self.waiters.len();
        let first = (splitmix64(self.handovers) % count as u64) as usize;
        let mut next = done;
        for place in 0..count {
            let index = (first + place) % count;
            let read = lines.touch(self.waiters[index], self.serving, false, done);
            if index == 0 {
                next = read;
            }
        }
        (done, self.waiters.pop_front().map(|waiter| (waiter, next)))
    }
}

/// Returns SplitMix64's output function of `value` \[SplitMix14\], which looks random.
pub(crate) fn splitmix64(value: u64) -> u64 {
    let value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}
