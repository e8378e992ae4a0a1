//! Schedulers: the order in which staged requests are dispatched.
//!
//! Each staging queue has a scheduler; dispatch queues have none, because the order of a request is
//! final there ([SYSTOR13 §3.2.1]). A scheduler owns the requests that it holds. It reads no clock,
//! and allocates memory only to grow.

mod config;
mod deadline;
mod error;
mod fair;
mod fifo;
mod flow;
mod group_change;
mod kyber;
mod latency;
mod none;
mod priority;
mod shrink;
mod sorted;
mod throttle;

pub use config::{SchedulerConfig, Scheduling};
pub use deadline::{Deadline, DeadlineConfig};
pub use error::SchedError;
pub use fair::{Fair, FairBy, FairConfig};
pub use group_change::{GroupChange, LimitKind};
pub use kyber::{Kyber, KyberConfig, PerDomain};
pub use none::NoneScheduler;
pub use priority::{CLASSES, Priority, PriorityConfig};
pub use throttle::{DirectionThrottle, GroupThrottle, RateLimit, ThrottleConfig, Throttled};

use time::Nanos;

use crate::{Group, StagedRequest};

/// Decides the order in which staged requests are dispatched.
pub trait Scheduler: Send + std::fmt::Debug {
    /// Inserts a request.
    fn insert(&mut self, now: Nanos, staged: StagedRequest);

    /// Requeues, at the front, a request that [`dispatch`](Scheduler::dispatch) returned and the
    /// hardware did not take. The request is among the next to be dispatched and counts as never
    /// dispatched.
    fn requeue(&mut self, now: Nanos, staged: StagedRequest);

    /// Removes and returns the request to dispatch at `now`; `None` if there is none, or none may
    /// be dispatched yet.
    fn dispatch(&mut self, now: Nanos) -> Option<StagedRequest>;

    /// Records that a dispatched request has completed at `now`, after the time `device` in the
    /// device.
    fn completed(&mut self, now: Nanos, staged: &StagedRequest, device: Nanos) {
        let _ = (now, staged, device);
    }

    /// Returns when [`dispatch`](Scheduler::dispatch), which returns `None` now, may return a
    /// request without a further insertion or completion; [`Nanos::MAX`] if never.
    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }

    /// Returns the number of requests held.
    fn len(&self) -> usize;

    /// Returns whether no request is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `visit` with held requests that `newcomer` might be merged with, most promising first,
    /// until it returns `true`. Returns whether it did.
    ///
    /// `visit` may change the LBA, length and data of a held request, and `merged`.
    fn find_merge(
        &mut self,
        newcomer: &StagedRequest,
        visit: &mut dyn FnMut(&mut StagedRequest) -> bool,
    ) -> bool {
        let _ = (newcomer, visit);
        false
    }

    /// Changes a group's weight or rate from `now` on, also for the requests held.
    ///
    /// # Errors
    /// [`SchedError::NoWeights`] and [`SchedError::NoLimit`] if the scheduler has no such setting,
    /// and those of the value. Nothing has changed then.
    fn change_group(
        &mut self,
        now: Nanos,
        group: Group,
        change: GroupChange,
    ) -> Result<(), SchedError> {
        let _ = now;
        Err(change.unsupported(group))
    }
}

impl Scheduler for Box<dyn Scheduler> {
    fn insert(&mut self, now: Nanos, staged: StagedRequest) {
        (**self).insert(now, staged);
    }

    fn requeue(&mut self, now: Nanos, staged: StagedRequest) {
        (**self).requeue(now, staged);
    }

    fn dispatch(&mut self, now: Nanos) -> Option<StagedRequest> {
        (**self).dispatch(now)
    }

    fn completed(&mut self, now: Nanos, staged: &StagedRequest, device: Nanos) {
        (**self).completed(now, staged, device);
    }

    fn deadline(&self) -> Nanos {
        (**self).deadline()
    }

    fn len(&self) -> usize {
        (**self).len()
    }

    fn is_empty(&self) -> bool {
        (**self).is_empty()
    }

    fn find_merge(
        &mut self,
        newcomer: &StagedRequest,
        visit: &mut dyn FnMut(&mut StagedRequest) -> bool,
    ) -> bool {
        (**self).find_merge(newcomer, visit)
    }

    fn change_group(
        &mut self,
        now: Nanos,
        group: Group,
        change: GroupChange,
    ) -> Result<(), SchedError> {
        (**self).change_group(now, group, change)
    }
}
