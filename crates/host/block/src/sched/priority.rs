//! [`Priority`]: strict priority classes with aging.
//!
//! The first class with a waiting request is served next; a class gets what higher classes leave. A
//! request that has waited for `prio_aging_expire` is dispatched next whatever its class, the
//! longest waiting one first. Within a class requests go in arrival order. [NVMeDirect16 §4.3]
//! raises the priority of one thread's requests in this way.

use time::Nanos;

use super::Scheduler;
use super::error::SchedError;
use super::fifo::FifoQueue;
use crate::{Group, StagedRequest};

/// Number of classes.
pub const CLASSES: u8 = 8;

/// Parameters of [`Priority`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityConfig {
    /// Classes of groups, from 0, the highest, to [`CLASSES`] - 1.
    pub classes: Vec<(Group, u8)>,
    /// Class of all other groups.
    pub default_class: u8,
    /// Maximum time that a request waits for requests of higher classes.
    pub prio_aging_expire: Nanos,
}

impl Default for PriorityConfig {
    fn default() -> PriorityConfig {
        let patience = Nanos::from_millis(100);
        PriorityConfig {
            classes: Vec::new(),
            default_class: CLASSES / 2,
            prio_aging_expire: patience,
        }
    }
}

impl PriorityConfig {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`SchedError::Class`], [`SchedError::TwoClasses`], and [`SchedError::Zero`] for an aging
    /// time of 0.
    pub fn validate(&self) -> Result<(), SchedError> {
        super::error::within("patience", self.prio_aging_expire.0, u64::MAX)?;
        let of = |class: u8| (class < CLASSES).then_some(()).ok_or(SchedError::Class { class });
        of(self.default_class)?;
        for (index, (group, class)) in self.classes.iter().enumerate() {
            of(*class)?;
            if self.classes[..index].iter().any(|(other, _)| other == group) {
                return Err(SchedError::TwoClasses { group: group.0 });
            }
        }
        Ok(())
    }
}

/// A scheduler with priority classes.
#[derive(Debug)]
pub struct Priority {
    /// Class by group; groups beyond the table have the default class.
    class_of: Vec<u8>,
    default_class: u8,
    prio_aging_expire: Nanos,
    waiting: [FifoQueue; CLASSES as usize],
    queued: usize,
}

impl Priority {
    /// Creates an empty scheduler.
    ///
    /// # Errors
    /// Those of [`PriorityConfig::validate`].
    pub fn new(config: &PriorityConfig) -> Result<Priority, SchedError> {
        config.validate()?;
        let groups = config.classes.iter().map(|(g, _)| usize::from(g.0) + 1).max().unwrap_or(0);
        let mut class_of = vec![config.default_class; groups];
        for (group, class) in &config.classes {
            class_of[usize::from(group.0)] = *class;
        }
        let (default_class, patience) = (config.default_class, config.prio_aging_expire);
        let waiting = std::array::from_fn(|_| FifoQueue::new());
        Ok(Priority { class_of, default_class, prio_aging_expire: patience, waiting, queued: 0 })
    }

    fn class(&self, staged: &StagedRequest) -> usize {
        self.class_of.get(usize::from(staged.group.0)).copied().unwrap_or(self.default_class).into()
    }

    /// Returns the class whose first request expired the longest ago, if any has expired.
    fn expired_class(&self, now: Nanos) -> Option<usize> {
        let first = |class: &FifoQueue| class.front().map(|staged| staged.since);
        let oldest = (0..).zip(&self.waiting).filter_map(|(class, w)| Some((first(w)?, class)));
        let (since, class) = oldest.min()?;
        (now.since(since) >= self.prio_aging_expire).then_some(class)
    }
}

impl Scheduler for Priority {
    fn insert(&mut self, _: Nanos, staged: StagedRequest) {
        self.waiting[self.class(&staged)].push_back(staged);
        self.queued += 1;
    }

    fn requeue(&mut self, _: Nanos, staged: StagedRequest) {
        self.waiting[self.class(&staged)].push_front(staged);
        self.queued += 1;
    }

    fn dispatch(&mut self, now: Nanos) -> Option<StagedRequest> {
        if self.queued == 0 {
            return None;
        }
        let best = || self.waiting.iter().position(|class| !class.is_empty());
        let class = self.expired_class(now).or_else(best)?;
        let staged = self.waiting[class].pop_front()?;
        self.queued -= 1;
        Some(staged)
    }

    fn len(&self) -> usize {
        self.queued
    }

    fn find_merge(
        &mut self,
        newcomer: &StagedRequest,
        visit: &mut dyn FnMut(&mut StagedRequest) -> bool,
    ) -> bool {
        let class = self.class(newcomer);
        self.waiting[class].find_merge(newcomer, visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Payload, Request, Submitter};

    fn staged(group: u16, since: u64, tag: u64) -> StagedRequest {
        StagedRequest {
            request: Request::read(10 * tag, 1, Payload::BitBucket, tag),
            since: Nanos(since),
            submitter: Submitter(0),
            group: Group(group),
            merged: 1,
            requeues: 0,
        }
    }

    fn scheduler() -> Priority {
        let classes = vec![(Group(1), 0), (Group(2), 7)];
        let patience = Nanos(100);
        Priority::new(&PriorityConfig {
            classes,
            prio_aging_expire: patience,
            ..PriorityConfig::default()
        })
        .unwrap()
    }

    #[test]
    fn the_best_class_goes_first_and_within_it_who_came_first() {
        let mut s = scheduler();
        for (tag, group) in [2, 0, 1, 2, 9, 1].into_iter().enumerate() {
            s.insert(Nanos(0), staged(group, 0, tag as u64));
        }
        let first = s.dispatch(Nanos(5)).unwrap();
        assert_eq!(first.request.tag, 2);
        s.requeue(Nanos(5), first);
        let order: Vec<u64> =
            std::iter::from_fn(|| s.dispatch(Nanos(6))).map(|staged| staged.request.tag).collect();
        assert_eq!(order, [2, 5, 1, 4, 0, 3], "group 9 is in the default class, as 0 is");
        assert!(s.is_empty());
    }

    #[test]
    fn requests_do_not_wait_past_the_aging_expire() {
        let mut s = scheduler();
        s.insert(Nanos(0), staged(2, 0, 0));
        let mut served_at = None;
        for now in 0..200 {
            s.insert(Nanos(now), staged(1, now, 1 + now));
            if s.dispatch(Nanos(now)).unwrap().request.tag == 0 {
                served_at = Some(now);
                break;
            }
        }
        assert_eq!(served_at, Some(100));
    }

    #[test]
    fn classes_that_cannot_be_are_refused() {
        let error = |classes, default_class| {
            PriorityConfig { classes, default_class, prio_aging_expire: Nanos(1) }
                .validate()
                .unwrap_err()
        };
        assert_eq!(error(vec![(Group(1), 8)], 0), SchedError::Class { class: 8 });
        assert_eq!(error(vec![], 9), SchedError::Class { class: 9 });
        let twice = vec![(Group(1), 1), (Group(1), 2)];
        assert_eq!(error(twice, 0), SchedError::TwoClasses { group: 1 });
        let none = PriorityConfig { prio_aging_expire: Nanos::ZERO, ..PriorityConfig::default() };
        assert!(matches!(none.validate(), Err(SchedError::Zero { .. })));
    }
}
