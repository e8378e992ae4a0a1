//! [`BarrierOrder`]: the sequence of a volume's ordered barriers, from acknowledged to durable.
//!
//! Barrier `n` covers every change made before it was acknowledged. A change made now is covered by
//! the next barrier, `issued + 1`; that number is the change's *epoch*.

use time::Nanos;

use crate::invariants::{VolumeViolation, require};

/// The barriers being made durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BarrierCommit {
    /// The transaction that must be durable.
    pub(crate) txn: u64,
    /// The write without FUA that must be flushed.
    pub(crate) write_seq: u64,
}

/// How the blocks that changed before the oldest pending barrier become durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BlocksBefore {
    /// They will be journaled, and space is reserved for that.
    #[default]
    Journaled,
    /// They are written in place first. At most this many of them add records of extents.
    InPlace { records: usize },
}

/// Sequence numbers of barriers.
#[derive(Debug, Default)]
pub(crate) struct BarrierOrder {
    /// The last barrier acknowledged.
    issued: u64,
    /// The last barrier whose changes are in place or in a closed transaction.
    covered: u64,
    /// The last durable barrier.
    durable: u64,
    /// The last barrier that must become durable without delay.
    requested: u64,
    /// When the oldest pending barrier was acknowledged.
    pending_since: Nanos,
    /// Makes the barriers up to `covered` durable.
    commit: Option<BarrierCommit>,
    before: BlocksBefore,
    /// The running transaction has changes made after a barrier that is not covered.
    has_later_changes: bool,
    /// A request has to wait, in its current step, until a barrier is covered.
    is_blocking: bool,
}

impl BarrierOrder {
    /// Returns the last barrier acknowledged.
    pub(crate) fn issued(&self) -> u64 {
        self.issued
    }

    /// Returns the last durable barrier.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns whether every barrier is durable.
    pub(crate) fn is_idle(&self) -> bool {
        self.durable == self.issued
    }

    /// Returns whether some barrier is not covered.
    pub(crate) fn is_pending(&self) -> bool {
        self.issued > self.covered
    }

    /// Acknowledges a barrier, and returns its number.
    pub(crate) fn issue(&mut self, now: Nanos) -> u64 {
        if !self.is_pending() {
            self.pending_since = now;
        }
        self.issued += 1;
        self.issued
    }

    /// Has the barriers up to this one become durable without delay.
    pub(crate) fn request(&mut self, barrier: u64) {
        self.requested = self.requested.max(barrier.min(self.issued));
    }

    /// Has all barriers become durable without delay.
    pub(crate) fn request_all(&mut self) {
        self.requested = self.issued;
    }

    /// Returns whether a pending barrier must become durable without delay.
    pub(crate) fn is_requested(&self) -> bool {
        self.requested > self.covered
    }

    /// Returns when pending barriers must become durable, if they may wait for `delay`.
    pub(crate) fn deadline(&self, delay: Nanos) -> Nanos {
        if self.is_pending() { self.pending_since + delay } else { Nanos::MAX }
    }

    /// Returns whether contents of an epoch may be written over what a recovery finds.
    pub(crate) fn permits_in_place(&self, epoch: u64) -> bool {
        epoch <= self.durable + 1
    }

    /// Sets how the blocks that changed before the oldest pending barrier become durable.
    pub(crate) fn set_before(&mut self, before: BlocksBefore) {
        self.before = before;
    }

    /// Returns how the blocks that changed before the oldest pending barrier become durable.
    pub(crate) fn before(&self) -> BlocksBefore {
        self.before
    }

    /// Returns whether they will be journaled.
    pub(crate) fn captures(&self) -> bool {
        self.before == BlocksBefore::Journaled
    }

    /// Records that the running transaction has a change made now.
    pub(crate) fn record_change(&mut self) {
        self.has_later_changes |= self.is_pending();
    }

    /// Records that the running transaction has contents of an epoch.
    pub(crate) fn record_contents(&mut self, epoch: u64) {
        self.has_later_changes |= epoch > self.covered + 1;
    }

    /// Returns whether the running transaction must not be closed before it covers all barriers.
    pub(crate) fn has_later_changes(&self) -> bool {
        self.has_later_changes
    }

    /// Records that a request has to wait until a barrier is covered.
    pub(crate) fn block(&mut self) {
        self.is_blocking = true;
        self.request_all();
    }

    /// Returns whether a request has to wait, since the last [`unblock`](BarrierOrder::unblock).
    pub(crate) fn is_blocking(&self) -> bool {
        self.is_blocking
    }

    pub(crate) fn unblock(&mut self) {
        self.is_blocking = false;
    }

    /// Returns what makes the barriers up to the last covered one durable.
    pub(crate) fn commit(&self) -> Option<BarrierCommit> {
        self.commit
    }

    /// Records that all barriers are covered, and durable with `commit`.
    pub(crate) fn cover(&mut self, commit: BarrierCommit) {
        assert!(
            self.commit.is_none(),
            "barriers: {} is covered before {} is durable",
            self.issued,
            self.covered
        );
        self.covered = self.issued;
        self.commit = Some(commit);
        self.has_later_changes = false;
    }

    /// Records that the barriers up to the last covered one are durable.
    pub(crate) fn end_commit(&mut self) {
        self.commit = None;
        self.durable = self.covered;
    }

    pub(crate) fn check_invariants(&self) -> Result<(), VolumeViolation> {
        require!(
            self.durable <= self.covered && self.covered <= self.issued,
            Barriers,
            "barriers are acknowledged, covered and durable in this order",
            format_args!("barrier {}", self.issued),
            self.issued,
            (self.covered, self.durable)
        );
        require!(
            self.requested <= self.issued,
            Barriers,
            "a barrier is acknowledged before it is requested",
            format_args!("barrier {}", self.requested),
            self.issued,
            self.requested
        );
        require!(
            self.commit.is_some() == (self.durable < self.covered),
            Barriers,
            "a covered barrier is being made durable",
            format_args!("barrier {}", self.covered),
            self.covered,
            self.durable
        );
        require!(
            self.is_pending() || !self.has_later_changes,
            Barriers,
            "only a pending barrier has later changes",
            format_args!("barrier {}", self.issued),
            false,
            self.has_later_changes
        );
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_durable(&mut self) {
        self.durable = self.issued + 1;
    }
}
