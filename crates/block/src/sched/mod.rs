//! Schedulers: which staged request goes to the hardware next.
//!
//! One per staging queue, and only there: once a request is in a dispatch queue its order is settled
//! (SYSTOR'13 section 3.2.1). A scheduler owns the requests that it holds; it reads no clock and
//! allocates only to grow.
//!
//! | file | noun |
//! |---|---|
//! | [`config`](Scheduling) | which scheduler, and the limits before it |
//! | [`error`](SchedError) | why a configuration is refused |
//! | [`none`](NoneScheduler) | in order of arrival |
//! | [`deadline`](Deadline) | in order of sectors, but nobody waits past their time |
//! | [`kyber`](Kyber) | reads and writes by the latencies that the device shows |
//! | [`fair`](Fair) | a share for every submitter or group, by weight |
//! | [`priority`](Priority) | classes, the best one first |
//! | [`limit`](Throttled) | rates per group, before any of them |
//! | `fifo`, `sweep`, `flow` | what they keep requests in: by arrival, by sectors, by submitter |
//! | `slack` | when a queue gives memory back |
//! | `latency`, [`bucket`](Rate) | latencies against a target; tokens at a rate |

mod config;
mod deadline;
mod error;
mod fair;
mod fifo;
mod flow;
mod kyber;
mod latency;
mod none;
mod priority;
mod shrink;
mod sorted;
mod throttle;
mod token_bucket;

pub use config::{SchedulerConfig, Scheduling};
pub use deadline::{Deadline, DeadlineConfig};
pub use error::SchedError;
pub use fair::{Fair, FairBy, FairConfig};
pub use kyber::{Kyber, KyberConfig, PerDomain};
pub use none::NoneScheduler;
pub use priority::{CLASSES, Priority, PriorityConfig};
pub use throttle::{DirectionThrottle, GroupThrottle, ThrottleConfig, Throttled};
pub use token_bucket::RateLimit;

use clock::Nanos;

use crate::StagedRequest;

/// Decides which staged request goes next.
pub trait Scheduler: Send + std::fmt::Debug {
    /// Takes a request.
    fn insert(&mut self, now: Nanos, staged: StagedRequest);

    /// Takes back, to the front, a request that [`next`](Scheduler::dispatch) gave and the hardware did
    /// not take: it is among those given next, and counts as never given.
    fn requeue(&mut self, now: Nanos, staged: StagedRequest);

    /// The request to dispatch at `now`; `None` if there is none, or none may go yet.
    fn dispatch(&mut self, now: Nanos) -> Option<StagedRequest>;

    /// A request that `next` gave has completed at `now`, after `device` at the device.
    fn completed(&mut self, now: Nanos, staged: &StagedRequest, device: Nanos) {
        let _ = (now, staged, device);
    }

    /// When [`next`](Scheduler::dispatch), which gives nothing now, may give something although nothing
    /// was inserted or completed; [`Nanos::MAX`] if never.
    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }

    /// Requests held.
    fn len(&self) -> usize;

    /// Whether no request is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `visit` with requests held that `newcomer` might be merged with, most promising first,
    /// until it answers `true`; returns whether it did. What `visit` changes about a request is its
    /// `request`'s place and length, and `merged`.
    fn find_merge(
        &mut self,
        newcomer: &StagedRequest,
        visit: &mut dyn FnMut(&mut StagedRequest) -> bool,
    ) -> bool {
        let _ = (newcomer, visit);
        false
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
}
