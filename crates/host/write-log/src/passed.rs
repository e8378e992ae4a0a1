//! [`PassedChanges`]: writes, discards and Write Zeroes requests that the device executes, and the
//! logged versions that they supersede.

use std::collections::VecDeque;

use crate::index::{SectorIndex, SectorRange};

/// A change that the device executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassedChange {
    pub(crate) range: SectorRange,
    /// Tail of the log when the device got the change. Later records are newer.
    pub(crate) bound: u64,
    /// Index of the caller's request.
    pub(crate) request: u32,
}

/// Logged versions of sectors before `bound` that a completed change has superseded, and that a
/// replay would find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superseded {
    pub(crate) range: SectorRange,
    pub(crate) bound: u64,
    /// Number of the change in the order of completion, from 1 on.
    pub(crate) number: u64,
}

/// The changes that passed to the device.
#[derive(Debug, Default)]
pub(crate) struct PassedChanges {
    in_flight: Vec<PassedChange>,
    /// Requests that wait for a destage write of one of their sectors.
    blocked: VecDeque<u32>,
    /// Changes that have completed, also with an error.
    completed: u64,
    /// Changes that a flush has made durable: the first ones.
    flushed: u64,
    superseded: Vec<Superseded>,
}

impl PassedChanges {
    /// Returns whether a change of one of the sectors is in flight.
    pub(crate) fn overlaps(&self, range: SectorRange) -> bool {
        self.in_flight.iter().any(|change| change.range.overlaps(range))
    }

    pub(crate) fn begin(&mut self, change: PassedChange) {
        self.in_flight.push(change);
    }

    pub(crate) fn block(&mut self, request: u32) {
        self.blocked.push_back(request);
    }

    /// Removes and returns the requests that were blocked.
    pub(crate) fn take_blocked(&mut self) -> VecDeque<u32> {
        std::mem::take(&mut self.blocked)
    }

    /// Completes the change of a request. If it succeeded, the index forgets the versions before it,
    /// and the result has them if a replay would find one. `logged` are the ranges of all records.
    pub(crate) fn complete(
        &mut self,
        request: u32,
        is_success: bool,
        index: &mut SectorIndex,
        logged: impl Iterator<Item = SectorRange>,
    ) -> Option<Superseded> {
        let at = self.in_flight.iter().position(|change| change.request == request);
        let at = at.unwrap_or_else(|| panic!("request {request} is no change in flight"));
        let PassedChange { range, bound, .. } = self.in_flight.swap_remove(at);
        // A change that failed may be on the device, and needs a flush if a read has found it.
        self.completed += 1;
        if !is_success {
            return None;
        }
        // An earlier change may have removed a version that a replay would find.
        let mut is_found = self.superseded.iter().any(|other| other.range.overlaps(range));
        is_found |= index.remove_range_before(range, bound, logged);
        let superseded = Superseded { range, bound, number: self.completed };
        // Repeated changes of one range need one record.
        let has_equal = |other: &Superseded| other.range.contains(range) && other.bound == bound;
        if is_found && !self.superseded.iter().any(has_equal) {
            self.superseded.push(superseded);
        }
        is_found.then_some(superseded)
    }

    pub(crate) fn completed(&self) -> u64 {
        self.completed
    }

    /// Returns how many changes are durable.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed
    }

    /// Records that a flush has made the first `changes` durable.
    pub(crate) fn set_flushed(&mut self, changes: u64) {
        self.flushed = self.flushed.max(changes);
    }

    /// Returns the superseded versions of the first `changes`.
    pub(crate) fn superseded(&self, changes: u64) -> impl Iterator<Item = Superseded> + '_ {
        self.superseded.iter().copied().filter(move |superseded| superseded.number <= changes)
    }

    /// Forgets the superseded versions of the first `changes`, which persistent records hide.
    pub(crate) fn hide_first(&mut self, changes: u64) {
        self.superseded.retain(|superseded| superseded.number > changes);
    }

    /// Forgets superseded versions that a persistent record hides.
    pub(crate) fn hide(&mut self, hidden: Superseded) {
        let is_hidden =
            |other: &Superseded| hidden.range.contains(other.range) && other.bound <= hidden.bound;
        self.superseded.retain(|other| !is_hidden(other));
    }

    /// Forgets superseded versions, which a replay has found.
    pub(crate) fn on_power_cut(&mut self) {
        self.superseded.clear();
    }

    /// Forgets superseded versions that are before the head of the log.
    pub(crate) fn advance_head(&mut self, head: u64) {
        self.superseded.retain(|superseded| superseded.bound > head);
    }
}
