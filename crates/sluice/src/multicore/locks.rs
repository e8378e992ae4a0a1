//! [`TicketLock`]: a spin lock in virtual time.
//!
//! A waiter draws a ticket and reads the line with the ticket being served over and over. Serving the
//! next one takes that line from all of them; each reads it again, and these reads are served one at
//! a time, so handing the lock over takes longer the more wait (Boyd-Wickizer et al., 2012, section
//! 3). The waiter whose turn it is goes on once its own read was served, and its first is as likely
//! as any. Tickets and the one being served are on lines of their own, which is kinder than Linux
//! 3.10's lock, where drawing one disturbs the waiters too.

use std::collections::VecDeque;

use super::access_log::LineId;
use super::lines::CoherenceDirectory;

/// A lock.
#[derive(Debug)]
pub(crate) struct TicketLock {
    tickets: LineId,
    serving: LineId,
    held: bool,
    /// Those who have drawn a ticket and not left.
    ticket_holders: usize,
    /// In the order of their tickets.
    waiters: VecDeque<usize>,
    handovers: u64,
}

impl TicketLock {
    pub(crate) fn new(tickets: LineId, serving: LineId) -> TicketLock {
        let waiters = VecDeque::new();
        TicketLock { tickets, serving, held: false, ticket_holders: 0, waiters, handovers: 0 }
    }

    /// Whether somebody has it or waits for it.
    pub(crate) fn is_taken(&self) -> bool {
        self.ticket_holders > 0
    }

    /// Draws a ticket; returns when the core has it.
    pub(crate) fn draw(&mut self, lines: &mut CoherenceDirectory, core: usize, now: u64) -> u64 {
        self.ticket_holders += 1;
        lines.touch(core, self.tickets, true, now)
    }

    /// Reads which ticket is served; returns when the core has the lock, or `None` if it waits.
    pub(crate) fn enter(
        &mut self,
        lines: &mut CoherenceDirectory,
        core: usize,
        now: u64,
    ) -> Option<u64> {
        let read = lines.touch(core, self.serving, false, now);
        if self.held {
            self.waiters.push_back(core);
            return None;
        }
        self.held = true;
        Some(read)
    }

    /// Looks whether it is taken; returns when the core knows.
    pub(crate) fn probe(&self, lines: &mut CoherenceDirectory, core: usize, now: u64) -> u64 {
        lines.touch(core, self.serving, false, now)
    }

    /// Serves the next ticket; returns when that is done, and who has the lock from when on.
    pub(crate) fn leave(
        &mut self,
        lines: &mut CoherenceDirectory,
        core: usize,
        now: u64,
    ) -> (u64, Option<(usize, u64)>) {
        self.ticket_holders -= 1;
        let done = lines.touch(core, self.serving, true, now);
        if self.waiters.is_empty() {
            self.held = false;
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

/// A number that looks drawn: SplitMix64's output function.
pub(crate) fn splitmix64(value: u64) -> u64 {
    let value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}
