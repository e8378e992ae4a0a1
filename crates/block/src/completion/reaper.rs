//! [`CompletionReaper`]: a context's ends of the members' block layers.
//!
//! A context submits nothing. It has ends like everybody who does, and uses them to do its part of
//! what is shared: fetch what has ended, start what is staged, or both.

use std::sync::Arc;

use clock::{Nanos, Waker};
use driver::HardwareQueue;

use super::shared::CompletionShared;
use super::stats::ContextCounters;
use super::waiter_slot::{CompletionNotice, drain_notices};
use crate::queue::RunScope;
use crate::{BlockDevice, Queue};

/// A context's ends.
pub(super) struct CompletionReaper<Q: HardwareQueue> {
    /// By member.
    queues: Box<[Queue<Q>]>,
    notices: Vec<CompletionNotice>,
    counters: Arc<ContextCounters>,
}

impl<Q: HardwareQueue> CompletionReaper<Q> {
    pub(super) fn new(queues: Box<[Queue<Q>]>) -> CompletionReaper<Q> {
        CompletionReaper { queues, notices: Vec::new(), counters: Arc::default() }
    }

    pub(super) fn counters(&self) -> Arc<ContextCounters> {
        self.counters.clone()
    }

    /// The ends, for their counters.
    pub(super) fn queues(&self) -> &[Queue<Q>] {
        &self.queues
    }

    /// Does the work in `scope` at each of `members`. Returns whether requests are left that wait
    /// for somebody to start them.
    pub(super) fn run_members(
        &mut self,
        common: &CompletionShared<Q>,
        now: Nanos,
        members: u64,
        scope: RunScope,
    ) -> bool {
        let (mut left, mut waiting, mut due) = (members, false, Nanos::MAX);
        while left != 0 {
            let member = left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(end) = self.queues.get_mut(member) else { break };
            end.run_scope(now, scope);
            waiting |= end.waiting;
            due = due.min(end.due);
            drain_notices(member, end, &mut self.notices);
        }
        common.schedule_watch(now, due);
        waiting
    }

    /// Fetches what has ended of `members` and sees to those who wait for it, as the strategy has it;
    /// starts what is staged, or leaves that to the background run of the queue.
    pub(super) fn reap(&mut self, common: &CompletionShared<Q>, now: Nanos, members: u64) {
        let non_blocking = common.flags().is_non_blocking();
        let scope = if non_blocking { RunScope::ALL } else { RunScope::REAP };
        let waiting = self.run_members(common, now, members, scope);
        if waiting
            && !non_blocking
            && let Some(wakers) = common.wakers.get()
        {
            wakers.queue_run.wake();
        }
        self.deliver(common, now);
    }

    /// Sees to those who got something.
    pub(super) fn deliver(&mut self, common: &CompletionShared<Q>, now: Nanos) {
        self.counters.add(common.deliver(now, &mut self.notices));
    }

    /// Hardware queues with lines of their own raise that of `waker`.
    pub(super) fn connect(&mut self, waker: &Waker) {
        for end in &mut self.queues {
            end.set_waker(waker.clone());
        }
    }
}
