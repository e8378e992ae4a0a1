//! [`Collector`]: a context's ends of the members' block layers.
//!
//! A context submits nothing. It has ends like everybody who does, and uses them to do its part of
//! what is shared: fetch what has ended, start what is staged, or both.

use std::sync::Arc;

use clock::{Nanos, Waker};
use driver::HardwareQueue;

use super::common::Common;
use super::desk::{News, take_news};
use super::stats::Tally;
use crate::queue::Scope;
use crate::{Device, Queue};

/// A context's ends.
pub(super) struct Collector<Q: HardwareQueue> {
    /// By member.
    ends: Box<[Queue<Q>]>,
    news: Vec<News>,
    tally: Arc<Tally>,
}

impl<Q: HardwareQueue> Collector<Q> {
    pub(super) fn new(ends: Box<[Queue<Q>]>) -> Collector<Q> {
        Collector { ends, news: Vec::new(), tally: Arc::default() }
    }

    pub(super) fn tally(&self) -> Arc<Tally> {
        self.tally.clone()
    }

    /// The ends, for their counters.
    pub(super) fn ends(&self) -> &[Queue<Q>] {
        &self.ends
    }

    /// Does the work in `scope` at each of `members`. Returns whether requests are left that wait
    /// for somebody to start them.
    pub(super) fn work(
        &mut self,
        common: &Common<Q>,
        now: Nanos,
        members: u64,
        scope: Scope,
    ) -> bool {
        let (mut left, mut waiting, mut due) = (members, false, Nanos::MAX);
        while left != 0 {
            let member = left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(end) = self.ends.get_mut(member) else { break };
            end.work(now, scope);
            waiting |= end.waiting;
            due = due.min(end.due);
            take_news(member, end, &mut self.news);
        }
        common.remind(now, due);
        waiting
    }

    /// Fetches what has ended of `members` and sees to those who wait for it, as the strategy has it;
    /// starts what is staged, or leaves that to the background run of the queue.
    pub(super) fn collect(&mut self, common: &Common<Q>, now: Nanos, members: u64) {
        let non_blocking = common.behaviour().non_blocking();
        let scope = if non_blocking { Scope::ALL } else { Scope::COLLECT };
        let waiting = self.work(common, now, members, scope);
        if waiting
            && !non_blocking
            && let Some(wakers) = common.wakers.get()
        {
            wakers.queue_run.wake();
        }
        self.deliver(common, now);
    }

    /// Sees to those who got something.
    pub(super) fn deliver(&mut self, common: &Common<Q>, now: Nanos) {
        self.tally.add(common.deliver(now, &mut self.news));
    }

    /// Hardware queues with lines of their own raise that of `waker`.
    pub(super) fn connect(&mut self, waker: &Waker) {
        for end in &mut self.ends {
            end.set_waker(waker.clone());
        }
    }
}
