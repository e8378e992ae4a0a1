//! Handling of command timeouts, resets and removal in a dispatch queue.

use driver::{HardwareQueue, QueueState, Tag};
use nvme::Status;
use time::Nanos;

use super::{Dispatch, STATUS_REMOVED, Timeouts};
use crate::Op;
use crate::submitter::io_hooks::IoHooks;

impl<Q: HardwareQueue> Dispatch<Q> {
    /// Handles command timeouts, and reclaims commands after a reset.
    #[inline]
    pub(crate) fn service(&mut self, now: Nanos, notes: &mut IoHooks) -> bool {
        let mut moved = self.queue.poll(now);
        if now >= self.check_at || self.queue.state() != self.state {
            moved |= self.recover(now, notes);
        }
        if now >= self.retry_at {
            self.retry_at = Nanos::MAX;
            moved = true;
        }
        moved
    }

    #[cold]
    fn recover(&mut self, now: Nanos, notes: &mut IoHooks) -> bool {
        let before = std::mem::replace(&mut self.state, self.queue.state());
        match (before, self.state) {
            (QueueState::Resetting | QueueState::Removed, QueueState::Ready) => {
                self.reclaim_commands(now, notes);
            }
            (_, QueueState::Removed) => {
                self.reclaim_commands(now, notes);
                while let Some(staged) =
                    self.requeued.pop_front().or_else(|| self.flushes.pop_waiting())
                {
                    self.complete_early(staged, STATUS_REMOVED);
                }
            }
            (_, QueueState::Ready) => self.check_timeouts(now),
            (_, QueueState::Resetting) => self.check_at = Nanos::MAX,
        }
        true
    }

    /// Reclaims the commands that the hardware has forgotten after a reset. Requeues each request,
    /// or fails it if it has used up its retries.
    fn reclaim_commands(&mut self, now: Nanos, notes: &mut IoHooks) {
        self.check_at = Nanos::MAX;
        let bound: Vec<Tag> = self.queue.tags().bound_tags().map(|(tag, _)| tag).collect();
        for tag in bound {
            let Ok(command) = self.queue.detach_tag_cmd(tag) else { continue };
            let mut staged = self.slots[usize::from(tag.0)];
            self.release_tag(tag, staged.submitter);
            if self.state == QueueState::Ready && staged.requeues < self.timeouts.retries {
                staged.requeues += 1;
                self.requeue(now, staged, notes);
                continue;
            }
            let status =
                if self.state == QueueState::Removed { STATUS_REMOVED } else { Status::ABORTED };
            if staged.request.op == Op::Flush {
                self.complete_flush(status, Q::end_cmd(&command, now));
            } else {
                self.complete_early(staged, status);
            }
        }
    }

    /// Aborts commands that have timed out. Resets the queue if the abort has not completed them.
    fn check_timeouts(&mut self, now: Nanos) {
        let Timeouts { command, abort, .. } = self.timeouts;
        let bound: Vec<(Tag, Nanos)> = self.queue.tags().bound_tags().collect();
        let (mut next, mut reset) = (Nanos::MAX, false);
        for (tag, bound_at) in bound {
            let aborted = &mut self.aborted[usize::from(tag.0)];
            if *aborted != Nanos::ZERO {
                reset |= now >= *aborted + abort;
                next = next.min(*aborted + abort);
            } else if now >= bound_at + command {
                self.stats.timeouts.add(1);
                tracing::warn!(at = now.0, "a command timed out");
                *aborted = now.max(Nanos(1));
                next = next.min(now + abort);
                // The tag is bound, so the abort cannot fail.
                let _ = self.queue.abort_tag(tag, now);
            } else {
                next = next.min(bound_at + command);
            }
        }
        self.check_at = next;
        if reset {
            self.stats.resets.add(1);
            tracing::warn!(at = now.0, "the queue is reset: an abort timed out");
            self.queue.reset(now);
            // Record the reset even if it has finished by the next check.
            self.state = QueueState::Resetting;
            self.check_at = now;
        }
    }
}
