//! [`CompletionReaper`]: a context's endpoints of the members' block layers.
//!
//! A context submits no requests. It uses its endpoints for work on the shared queues: to fetch
//! completions, to start staged requests, or both.

use std::sync::Arc;

use driver::HardwareQueue;
use event::Waker;
use time::Nanos;

use super::shared::CompletionShared;
use super::stats::ContextCounters;
use super::waiter_slot::{CompletionNotice, drain_notices};
use crate::queue::RunScope;
use crate::sync::{Step, ThreadPlatform};
use crate::{BlockDevice, Queue};

/// The endpoints of a context.
pub(super) struct CompletionReaper<Q: HardwareQueue, P: ThreadPlatform> {
    /// Endpoints by member.
    queues: Box<[Queue<Q, P>]>,
    notices: Vec<CompletionNotice>,
    counters: Arc<ContextCounters>,
}

impl<Q: HardwareQueue, P: ThreadPlatform> CompletionReaper<Q, P> {
    pub(super) fn new(queues: Box<[Queue<Q, P>]>) -> CompletionReaper<Q, P> {
        CompletionReaper { queues, notices: Vec::new(), counters: Arc::default() }
    }

    pub(super) fn counters(&self) -> Arc<ContextCounters> {
        self.counters.clone()
    }

    /// Returns the endpoints, for their counters.
    pub(super) fn queues(&self) -> &[Queue<Q, P>] {
        &self.queues
    }

    /// Does the work in `scope` for each of `members`. Returns whether requests remain that wait to
    /// be started.
    pub(super) fn run_members(
        &mut self,
        common: &CompletionShared<Q, P>,
        now: Nanos,
        members: u64,
        scope: RunScope,
    ) -> bool {
        let (mut left, mut waiting, mut due) = (members, false, Nanos::MAX);
        while left != 0 {
            let member = left.trailing_zeros() as usize;
            left &= left - 1;
            let Some(end) = self.queues.get_mut(member) else { break };
            P::work(Step::Handle, 1);
            end.run_scope(now, scope);
            waiting |= end.waiting;
            due = due.min(end.due);
            drain_notices(member, end, &mut self.notices);
        }
        common.schedule_watch(now, due);
        waiting
    }

    /// Fetches completions of `members` and delivers them as the strategy says. Starts staged
    /// requests, or leaves that to the background queue run.
    pub(super) fn reap(&mut self, common: &CompletionShared<Q, P>, now: Nanos, members: u64) {
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

    /// Delivers the collected notices to their waiters.
    pub(super) fn deliver(&mut self, common: &CompletionShared<Q, P>, now: Nanos) {
        self.counters.add(common.deliver(now, &mut self.notices));
    }

    /// Makes hardware queues with their own lines wake `waker`.
    pub(super) fn connect(&mut self, waker: &Waker) {
        for end in &mut self.queues {
            end.set_waker(waker.clone());
        }
    }
}
