//! [`BarrierQueue`]: flushes and erases that wait for earlier writes to be durable.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::check::{Subject, Violation, require, require_eq};
use crate::ids::{LineId, SlotId, ToIndex, ToU32, WriteSeq};

/// Owner of a barrier.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum BarrierOwner {
    /// The host request with this tag.
    Host(u64),
    /// The write with this tag of a sector with a name, in this slot of the write buffer.
    Named(u64, SlotId),
    /// The erase of this drained line. It never has the write buffer padded by itself.
    Erase(LineId),
}

impl BarrierOwner {
    /// Returns the tag of the host request.
    pub(crate) fn host_tag(self) -> Option<u64> {
        match self {
            BarrierOwner::Host(tag) | BarrierOwner::Named(tag, _) => Some(tag),
            BarrierOwner::Erase(_) => None,
        }
    }
}

/// Whether a barrier needs translation pages to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum TrimDep {
    /// No, or they have been written.
    None,
    /// The pages of all earlier trims, when the barrier's position is durable.
    All,
    /// The pages of all earlier trims, once every unit with a smaller sequence number is durable:
    /// such a unit may hold trimmed sectors, and a translation page supersedes only units older than
    /// all those in flight.
    AfterSeq(WriteSeq),
}

/// A wait for everything in front of a position of the host's rings to be durable.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Barrier {
    pub(crate) position: u64,
    pub(crate) owner: BarrierOwner,
    pub(crate) trim_dep: TrimDep,
    /// Sectors trimmed before.
    pub(crate) trim_epoch: u64,
    /// Changes of the owner's state that must be durable; 0 for none.
    pub(crate) owner_changes: u64,
}

/// A flush that has passed its barrier, and does not complete yet.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct DeferredFlush {
    pub(crate) tag: u64,
    /// As in its barrier.
    pub(crate) owner_changes: u64,
}

/// Barriers in the order of their positions, and flushes that only wait until lost sectors are recorded, or
/// the owner's state is durable.
///
/// Invariants: positions ascend; the number of host requests counts those in both lists.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BarrierQueue {
    queue: VecDeque<Barrier>,
    deferred: VecDeque<DeferredFlush>,
    host_requests: u32,
}

impl BarrierQueue {
    #[inline]
    pub(crate) fn add(&mut self, barrier: Barrier) {
        self.host_requests += u32::from(barrier.owner.host_tag().is_some());
        self.queue.push_back(barrier);
    }

    /// Returns the barrier with the smallest position.
    #[inline]
    pub(crate) fn front(&self) -> Option<Barrier> {
        self.queue.front().copied()
    }

    /// Replaces the first barrier's dependency on trims.
    pub(crate) fn set_front_dep(&mut self, trim_dep: TrimDep) {
        self.queue[0].trim_dep = trim_dep;
    }

    /// Removes the first barrier.
    #[inline]
    pub(crate) fn pop(&mut self) {
        let popped = self.queue.pop_front();
        let is_host = popped.is_some_and(|barrier| barrier.owner.host_tag().is_some());
        self.host_requests -= u32::from(is_host);
    }

    /// Removes the last barrier of a host request, and returns its owner.
    pub(crate) fn pop_last_host(&mut self) -> Option<BarrierOwner> {
        let last = self.queue.iter().rposition(|barrier| barrier.owner.host_tag().is_some())?;
        self.host_requests -= 1;
        self.queue.remove(last).map(|barrier| barrier.owner)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether host requests wait, at barriers or deferred.
    #[inline]
    pub(crate) fn has_host_requests(&self) -> bool {
        self.host_requests > 0
    }

    /// Whether host requests wait at barriers.
    #[inline]
    pub(crate) fn has_host_barriers(&self) -> bool {
        self.host_requests.index() > self.deferred.len()
    }

    /// Defers the completion of a host request that has passed its barrier.
    pub(crate) fn defer(&mut self, flush: DeferredFlush) {
        self.deferred.push_back(flush);
        self.host_requests += 1;
    }

    /// Returns the oldest deferred request.
    #[inline]
    pub(crate) fn front_deferred(&self) -> Option<DeferredFlush> {
        self.deferred.front().copied()
    }

    /// Removes the oldest deferred request, and returns its tag.
    pub(crate) fn pop_deferred(&mut self) -> Option<u64> {
        let flush = self.deferred.pop_front()?;
        self.host_requests -= 1;
        Some(flush.tag)
    }

    /// Checks the invariants; returns the lines that wait to be erased. `head` is the position of the host's rings,
    /// `trim_epoch` the number of sectors trimmed so far.
    pub(crate) fn check(&self, head: u64, trim_epoch: u64) -> Result<Vec<LineId>, Violation> {
        let (mut host, mut position, mut lines) = (0, 0, Vec::new());
        for (i, barrier) in (0..).zip(&self.queue) {
            let subject = Subject::Index(i);
            require!(
                (position..=head).contains(&barrier.position),
                Durability,
                "barriers are in order of their positions",
                subject,
                format_args!("{position} to {head}"),
                barrier.position
            );
            require!(
                barrier.trim_epoch <= trim_epoch,
                Durability,
                "a barrier waits for trims that have been",
                subject,
                format_args!("at most {trim_epoch}"),
                barrier.trim_epoch
            );
            position = barrier.position;
            match barrier.owner {
                BarrierOwner::Host(_) | BarrierOwner::Named(..) => host += 1,
                BarrierOwner::Erase(line) => lines.push(line),
            }
        }
        require_eq!(
            Durability,
            "requests that wait for durability",
            Subject::Part,
            host + self.deferred.len().to_u32(),
            self.host_requests
        );
        Ok(lines)
    }

    /// Breaks the count of host requests.
    #[cfg(test)]
    pub(crate) fn break_host_requests(&mut self) {
        self.host_requests += 1;
    }
}
