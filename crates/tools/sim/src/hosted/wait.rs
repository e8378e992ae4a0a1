//! [`ThreadWait`]: how a thread of a path waits after a poll that found nothing, by the path's method
//! of completion.
//!
//! | method | the thread |
//! |---|---|
//! | `poll` | polls again; with an interval, sleeps until the next multiple of it |
//! | `interrupt` | sleeps until its queue's interrupt |
//! | `hybrid` | polls for [`HYBRID_POLL_TIME`] after the last request or completion, with the queue's interrupt masked, and then sleeps until an interrupt |
//! | `lazy`, `coop` | sleeps until the interrupt context has sent it completions |
//!
//! Every thread also wakes at the deadline of its jobs and of its queue, at which the block layer
//! aborts a command that the drive does not complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::Step;
use block::notify::{CompletionMethod, CompletionPolicy, HYBRID_POLL_TIME};
use machine::SpinStart;
use time::Nanos;

/// The interrupt of a queue as its thread sees it.
#[derive(Debug, Default)]
pub(super) struct InterruptMask {
    is_masked: AtomicBool,
}

impl InterruptMask {
    /// Returns whether the queue's interrupt starts no handler now.
    pub(super) fn is_masked(&self) -> bool {
        self.is_masked.load(Ordering::Relaxed)
    }

    /// Masks or unmasks the interrupt. Returns whether it was masked.
    fn set(&self, is_masked: bool) -> bool {
        self.is_masked.swap(is_masked, Ordering::Relaxed)
    }
}

/// The waiting of one thread.
#[derive(Debug)]
pub(super) struct ThreadWait {
    policy: CompletionPolicy,
    mask: Arc<InterruptMask>,
    /// Time of the last poll that found something.
    active_at: Nanos,
}

impl ThreadWait {
    pub(super) fn new(policy: CompletionPolicy, mask: Arc<InterruptMask>) -> ThreadWait {
        mask.set(policy.method == CompletionMethod::Hybrid);
        ThreadWait { policy, mask, active_at: Nanos::ZERO }
    }

    /// Records that a poll found something.
    pub(super) fn found(&mut self) {
        if self.policy.method == CompletionMethod::Hybrid {
            self.active_at = machine::now();
            self.mask.set(true);
        }
    }

    /// Waits after a poll, begun at `start`, that found nothing, until `until` at most.
    pub(super) fn wait(&mut self, start: SpinStart, until: Nanos) {
        match (self.policy.method, self.policy.poll_interval) {
            (CompletionMethod::Poll, None) => machine::spin_until(start, Step::Poll, until),
            (CompletionMethod::Poll, Some(interval)) => {
                machine::sleep_until_timer(next_tick(machine::now(), interval).min(until));
            }
            (CompletionMethod::Hybrid, _) => self.wait_hybrid(start, until),
            _ => machine::sleep_until(until),
        }
    }

    fn wait_hybrid(&mut self, start: SpinStart, until: Nanos) {
        let give_up = self.active_at + HYBRID_POLL_TIME;
        if machine::now() < give_up {
            return machine::spin_until(start, Step::Poll, until.min(give_up));
        }
        // A completion that arrived while the interrupt was masked has raised none: the thread polls
        // once more.
        if !self.mask.set(false) {
            machine::sleep_until(until);
        }
    }
}

/// Returns the first multiple of `interval` after `now`.
fn next_tick(now: Nanos, interval: Nanos) -> Nanos {
    let next = now.0.saturating_add(1);
    Nanos(next.checked_next_multiple_of(interval.0.max(1)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_tick_is_after_now() {
        let ticks = [0, 9, 10, 11].map(|now| next_tick(Nanos(now), Nanos(10)));
        assert_eq!(ticks, [10, 10, 20, 20].map(Nanos));
        assert_eq!(next_tick(Nanos(u64::MAX), Nanos(10)), Nanos::MAX);
    }
}
