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
//! | [`limit`](Limited) | rates per group, before any of them |
//! | `fifo`, `sweep`, `flow` | what they keep requests in: by arrival, by sectors, by submitter |
//! | `slack` | when a queue gives memory back |
//! | `latency`, [`bucket`](Rate) | latencies against a target; tokens at a rate |

mod bucket;
mod config;
mod deadline;
mod error;
mod fair;
mod fifo;
mod flow;
mod kyber;
mod latency;
mod limit;
mod none;
mod priority;
mod slack;
mod sweep;

pub use bucket::Rate;
pub use config::{SchedulerConfig, Scheduling};
pub use deadline::{Deadline, DeadlineConfig};
pub use error::SchedError;
pub use fair::{Fair, FairBy, FairConfig};
pub use kyber::{Kyber, KyberConfig, PerDomain};
pub use limit::{DirectionLimits, GroupLimits, Limited, LimitsConfig};
pub use none::NoneScheduler;
pub use priority::{CLASSES, Priority, PriorityConfig};

use clock::Nanos;

use crate::Staged;

/// Decides which staged request goes next.
pub trait Scheduler: Send + std::fmt::Debug {
    /// Takes a request.
    fn insert(&mut self, now: Nanos, staged: Staged);

    /// Takes back, to the front, a request that [`next`](Scheduler::next) gave and the hardware did
    /// not take: it is among those given next, and counts as never given.
    fn put_back(&mut self, now: Nanos, staged: Staged);

    /// The request to dispatch at `now`; `None` if there is none, or none may go yet.
    fn next(&mut self, now: Nanos) -> Option<Staged>;

    /// A request that `next` gave has completed at `now`, after `device` at the device.
    fn completed(&mut self, now: Nanos, staged: &Staged, device: Nanos) {
        let _ = (now, staged, device);
    }

    /// When [`next`](Scheduler::next), which gives nothing now, may give something although nothing
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
        newcomer: &Staged,
        visit: &mut dyn FnMut(&mut Staged) -> bool,
    ) -> bool {
        let _ = (newcomer, visit);
        false
    }
}

impl Scheduler for Box<dyn Scheduler> {
    fn insert(&mut self, now: Nanos, staged: Staged) {
        (**self).insert(now, staged);
    }

    fn put_back(&mut self, now: Nanos, staged: Staged) {
        (**self).put_back(now, staged);
    }

    fn next(&mut self, now: Nanos) -> Option<Staged> {
        (**self).next(now)
    }

    fn completed(&mut self, now: Nanos, staged: &Staged, device: Nanos) {
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
        newcomer: &Staged,
        visit: &mut dyn FnMut(&mut Staged) -> bool,
    ) -> bool {
        (**self).find_merge(newcomer, visit)
    }
}
