//! [`Staging`]: the queue in which requests wait, are merged and are ordered before dispatch.
//!
//! Its length follows the submitted load; the scheduler decides the order ([SYSTOR13 §3.2],
//! software staging queues).

pub(crate) mod request;

use std::sync::Arc;

use time::Nanos;

use crate::account::StagingStats;
use crate::sched::{GroupChange, SchedError, Scheduler};
use crate::submitter::merge::{MergeSide, Merger};
use crate::{Group, Op, StagedRequest};

/// A staging queue. Visitors of layers
/// ([`BlockDevice::visit_layers`](crate::BlockDevice::visit_layers)) find it to change the settings
/// of its scheduler.
#[derive(Debug)]
#[repr(align(64))]
pub struct Staging {
    scheduler: Box<dyn Scheduler>,
    /// Whether requests may bypass the queue while it is empty, because the scheduler delays none.
    plain: bool,
    /// Number of requests in the scheduler.
    length: usize,
    /// Whether a change may have moved the scheduler's deadline.
    changed: bool,
    stats: Arc<StagingStats>,
}

impl Staging {
    pub(crate) fn new(scheduler: Box<dyn Scheduler>, plain: bool) -> Staging {
        Staging { scheduler, plain, length: 0, changed: false, stats: Arc::default() }
    }

    /// Changes a group's weight or rate, also for the requests held.
    ///
    /// # Errors
    /// Those of [`Scheduler::change_group`].
    pub fn change_group(
        &mut self,
        now: Nanos,
        group: Group,
        change: GroupChange,
    ) -> Result<(), SchedError> {
        self.scheduler.change_group(now, group, change)?;
        self.changed = true;
        Ok(())
    }

    /// Returns whether a setting was changed since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(crate) fn stats(&self) -> Arc<StagingStats> {
        self.stats.clone()
    }

    #[inline]
    pub(crate) fn stats_ref(&self) -> &StagingStats {
        &self.stats
    }

    /// Returns whether a request may go straight to the dispatch queue.
    #[inline]
    pub(crate) fn can_bypass_scheduler(&self) -> bool {
        self.plain && self.length == 0
    }

    #[inline]
    pub(crate) fn bypassed(&self) {
        self.stats.bypassed.add(1);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Inserts a request, or merges it with one in the queue. Returns `None` if it was inserted,
    /// otherwise the side of the merge and the id of the other request.
    pub(crate) fn insert(
        &mut self,
        now: Nanos,
        staged: StagedRequest,
        merger: Option<&Merger>,
    ) -> Option<(MergeSide, u32)> {
        if let Some(merger) = merger {
            let mut merged = None;
            self.scheduler.find_merge(&staged, &mut |other| {
                let head = other.request.tag as u32;
                merged = merger.merge(other, &staged).map(|side| (side, head));
                merged.is_some()
            });
            if merged.is_some() {
                self.stats.merged.add(1);
                return merged;
            }
        }
        self.scheduler.insert(now, staged);
        self.stats.inserted.add(1);
        self.length += 1;
        if self.length as u64 > self.stats.peak.get() {
            self.stats.peak.set(self.length as u64);
        }
        None
    }

    #[inline]
    pub(crate) fn dispatch(&mut self, now: Nanos) -> Option<StagedRequest> {
        let next = self.scheduler.dispatch(now)?;
        self.length -= 1;
        Some(next)
    }

    pub(crate) fn requeue(&mut self, now: Nanos, staged: StagedRequest) {
        self.scheduler.requeue(now, staged);
        self.length += 1;
    }

    /// Reports a completed request to the scheduler, if the scheduler needs completions.
    #[inline]
    pub(crate) fn completed(&mut self, now: Nanos, staged: &StagedRequest, device: Nanos) {
        // Flushes bypass the scheduler.
        if !self.plain && staged.request.op != Op::Flush {
            self.scheduler.completed(now, staged, device);
        }
    }

    #[inline]
    pub(crate) fn deadline(&self) -> Nanos {
        if self.length == 0 { Nanos::MAX } else { self.scheduler.deadline() }
    }
}
