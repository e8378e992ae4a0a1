//! [`DurabilityWaiters`]: requests that complete once units are durable.

use std::collections::VecDeque;

use super::buffer::streams::AppendStreams;
use super::check::{KvPart, KvSubject, KvViolation, PartCheck};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DurabilityWaiter {
    /// All units with smaller sequence numbers must be durable.
    unit_seq: u64,
    request: u32,
}

/// Requests in the order in which they complete.
#[derive(Debug, Default)]
pub(crate) struct DurabilityWaiters {
    waiters: VecDeque<DurabilityWaiter>,
}

impl DurabilityWaiters {
    /// Adds a request that waits for all units with smaller sequence numbers.
    pub(crate) fn add(&mut self, request: u32, unit_seq: u64) {
        // Most mutations have the largest sequence number so far.
        let before = self.waiters.iter().rposition(|w| w.unit_seq <= unit_seq);
        let at = before.map_or(0, |i| i + 1);
        self.waiters.insert(at, DurabilityWaiter { unit_seq, request });
    }

    /// Removes and returns the next request whose units are durable.
    #[inline]
    pub(crate) fn pop_durable(&mut self, streams: &AppendStreams) -> Option<u32> {
        let waiter = self.waiters.pop_front_if(|w| streams.is_durable_below(w.unit_seq))?;
        Some(waiter.request)
    }

    /// Returns the sequence number below which all units must be durable for the last request.
    #[inline]
    pub(crate) fn last_unit_seq(&self) -> Option<u64> {
        self.waiters.back().map(|w| w.unit_seq)
    }

    /// Makes all requests wait at least for the units below `unit_seq`.
    pub(crate) fn wait_at_least_for(&mut self, unit_seq: u64) {
        for waiter in &mut self.waiters {
            waiter.unit_seq = waiter.unit_seq.max(unit_seq);
        }
    }

    /// Removes and returns any request.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        self.waiters.pop_front().map(|w| w.request)
    }

    /// Returns the requests, in order.
    pub(crate) fn requests(&self) -> impl Iterator<Item = u32> {
        self.waiters.iter().map(|w| w.request)
    }

    /// Checks the order; for tests.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(&self, next_unit_seq: u64) -> Result<(), KvViolation> {
        let check = PartCheck(KvPart::Durability);
        for (i, waiter) in self.waiters.iter().enumerate() {
            let next = self.waiters.get(i + 1).map_or(next_unit_seq, |w| w.unit_seq);
            check.require(
                waiter.unit_seq <= next,
                "requests wait in the order of the units",
                KvSubject::Request(waiter.request),
                format_args!("at most {next}"),
                waiter.unit_seq,
            )?;
        }
        Ok(())
    }

    /// Lets a request wait for a unit that will never be.
    #[cfg(test)]
    pub(crate) fn break_order(&mut self) {
        self.add(0, u64::MAX);
    }
}
