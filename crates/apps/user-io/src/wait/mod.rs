//! [`WaitMode`]: how a handle waits for a completion ([NVMeDirect16 §3.1]).
//!
//! Busy-polling has the lowest latency and occupies a core. An interrupt costs tens of microseconds
//! and no core. Hybrid polling sleeps through the first part of the expected latency and busy-polls
//! through the rest. The expected latency is the recent mean of requests of the same kind and size.

pub(crate) mod adaptive_period;
pub(crate) mod poller;

use std::collections::VecDeque;

use block::notify::{CompletionMethod, CompletionPolicy, POLL_INTERVAL_MAX};
use block::{Completion, Op, Request};
use event::Parker;
use time::Nanos;

use crate::DirectError;

/// How a handle waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitMode {
    /// Busy-polls.
    #[default]
    Poll,
    /// Sleeps until the device wakes it. Needs a queue with interrupts.
    Interrupt,
    /// Sleeps for a part of the expected latency, then busy-polls.
    Hybrid(HybridPolling),
    /// Sleeps between two polls: the time, above zero and at most a second.
    Interval(Nanos),
}

impl From<CompletionPolicy> for WaitMode {
    /// Returns how a handle waits for completions that are noticed by `policy`.
    fn from(policy: CompletionPolicy) -> WaitMode {
        match (policy.method, policy.poll_interval) {
            (CompletionMethod::Poll, None) => WaitMode::Poll,
            (CompletionMethod::Poll, Some(interval)) => WaitMode::Interval(interval),
            // The handler of the block layer wakes the handle, or the vector of its own queue does.
            (CompletionMethod::Interrupt | CompletionMethod::Lazy | CompletionMethod::Coop, _) => {
                WaitMode::Interrupt
            }
            (CompletionMethod::Hybrid, _) => WaitMode::Hybrid(HybridPolling::default()),
        }
    }
}

/// The part of the expected latency that is slept through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HybridPolling {
    /// Percent of the expected latency after which busy-polling begins, 1 to 99.
    pub sleep_percent: u8,
    /// Wakeup latency of this machine (`sluice calibrate`). Busy-polling begins that much earlier,
    /// and shorter sleeps are skipped.
    pub wakeup_latency: Nanos,
}

impl Default for HybridPolling {
    fn default() -> HybridPolling {
        HybridPolling { sleep_percent: 50, wakeup_latency: Nanos::from_micros(60) }
    }
}

impl WaitMode {
    pub(crate) fn check(self) -> Result<(), DirectError> {
        match self {
            WaitMode::Hybrid(HybridPolling { sleep_percent, .. })
                if !(1..=99).contains(&sleep_percent) =>
            {
                let value = sleep_percent.into();
                let allowed = "1 to 99 percent of the expected time";
                Err(DirectError::Config { key: "sleep_percent", value, allowed })
            }
            WaitMode::Interval(interval)
                if interval == Nanos::ZERO || interval > POLL_INTERVAL_MAX =>
            {
                let allowed = "1 ns to 1 s between two polls";
                Err(DirectError::Config { key: "interval", value: interval.0, allowed })
            }
            _ => Ok(()),
        }
    }
}

/// Size classes: up to 1, 2, 4 … sectors.
const SIZE_CLASSES: usize = 12;
/// Reads, writes, and others.
const OP_CLASSES: usize = 3;

/// Recent latency by kind and size: a mean in which each sample has a weight of one eighth.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatencyEstimator {
    means: [[Nanos; SIZE_CLASSES]; OP_CLASSES],
}

fn class(op: Op, sectors: u32) -> (usize, usize) {
    let kind = match op {
        Op::Read => 0,
        Op::Write => 1,
        _ => 2,
    };
    let size = sectors.max(1).next_power_of_two().trailing_zeros() as usize;
    (kind, size.min(SIZE_CLASSES - 1))
}

impl LatencyEstimator {
    /// Returns the expected latency; zero if unknown.
    pub(crate) fn estimate(&self, op: Op, sectors: u32) -> Nanos {
        let (kind, size) = class(op, sectors);
        self.means[kind][size]
    }

    pub(crate) fn record(&mut self, op: Op, sectors: u32, time: Nanos) {
        let (kind, size) = class(op, sectors);
        let mean = &mut self.means[kind][size];
        *mean = match *mean {
            Nanos::ZERO => time,
            old => Nanos(old.0 - old.0 / 8 + time.0 / 8),
        };
    }
}

/// A request in flight, for the estimate.
#[derive(Clone, Copy, Debug)]
struct InFlightRequest {
    tag: u64,
    op: Op,
    sectors: u32,
    submitted_at: Nanos,
    expected: Nanos,
}

/// Wait mode and estimates of a handle.
#[derive(Debug)]
pub(crate) struct WaitState {
    mode: WaitMode,
    parker: Parker,
    estimator: LatencyEstimator,
    /// With hybrid polling: requests in flight, oldest first.
    in_flight: VecDeque<InFlightRequest>,
    /// Total time slept.
    pub(crate) slept: Nanos,
    pub(crate) sleeps: u64,
}

impl WaitState {
    pub(crate) fn new(parker: Parker) -> WaitState {
        WaitState {
            mode: WaitMode::Poll,
            parker,
            estimator: LatencyEstimator::default(),
            in_flight: VecDeque::new(),
            slept: Nanos::ZERO,
            sleeps: 0,
        }
    }

    pub(crate) fn set_mode(&mut self, wait: WaitMode) {
        self.mode = wait;
        self.in_flight.clear();
    }

    pub(crate) fn parker(&self) -> &Parker {
        &self.parker
    }

    /// Records a submission.
    #[inline]
    pub(crate) fn on_submit(&mut self, now: Nanos, request: &Request) {
        if matches!(self.mode, WaitMode::Hybrid(_)) {
            let Request { op, sectors, tag, .. } = *request;
            let expected = now + self.estimator.estimate(op, sectors);
            self.in_flight.push_back(InFlightRequest {
                tag,
                op,
                sectors,
                submitted_at: now,
                expected,
            });
        }
    }

    /// Returns whether completion times are needed; otherwise the clock is not read.
    #[inline]
    pub(crate) fn needs_completion_times(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Records a completion.
    #[inline]
    pub(crate) fn on_complete(&mut self, now: Nanos, completion: &Completion) {
        // Most requests complete in submission order.
        if let Some(at) = self.in_flight.iter().position(|f| f.tag == completion.tag)
            && let Some(InFlightRequest { op, sectors, submitted_at: since, .. }) =
                self.in_flight.remove(at)
        {
            self.estimator.record(op, sectors, now.since(since));
        }
    }

    /// Waits in the configured mode after a poll without completions, until `deadline` at most.
    /// `look` polls once more before a sleep.
    pub(crate) fn pause(
        &mut self,
        now: impl Fn() -> Nanos,
        deadline: Nanos,
        look: impl FnOnce() -> bool,
    ) {
        let until = match self.mode {
            WaitMode::Poll => return std::hint::spin_loop(),
            WaitMode::Interrupt => deadline,
            WaitMode::Interval(interval) => deadline.min(now() + interval),
            WaitMode::Hybrid(HybridPolling { sleep_percent, wakeup_latency: late }) => {
                let Some(first) = self.in_flight.iter().min_by_key(|f| f.expected) else {
                    return std::hint::spin_loop();
                };
                let whole = first.expected.since(first.submitted_at).0;
                let sleep = whole / 100 * u64::from(sleep_percent);
                let until = Nanos((first.submitted_at.0 + sleep).saturating_sub(late.0));
                until.min(deadline)
            }
        };
        let begin = now();
        if until <= begin {
            return std::hint::spin_loop();
        }
        self.parker.prepare();
        if look() {
            return self.parker.unpark();
        }
        let timeout = if until == Nanos::MAX { Nanos::MAX } else { until.since(now()) };
        // EINTR counts as a wakeup; `ppoll` cannot fail otherwise for a valid descriptor.
        let _ = self.parker.park(&[], timeout);
        self.slept += now().since(begin);
        self.sleeps += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_requests_take_is_learnt_by_kind_and_size() {
        let mut expected = LatencyEstimator::default();
        let read = |expected: &LatencyEstimator, sectors| expected.estimate(Op::Read, sectors);
        assert_eq!(read(&expected, 8), Nanos::ZERO, "nothing is known");
        for _ in 0..100 {
            expected.record(Op::Read, 8, Nanos(80_000));
            expected.record(Op::Write, 8, Nanos(10_000));
        }
        assert!(read(&expected, 5).0.abs_diff(80_000) < 100, "of the same class");
        assert_eq!(read(&expected, 1), Nanos::ZERO);
        for _ in 0..40 {
            expected.record(Op::Read, 8, Nanos(40_000));
        }
        assert!(read(&expected, 8).0.abs_diff(40_000) < 1_000, "it forgets");
        assert_eq!(class(Op::Flush, 0), (2, 0));
        assert_eq!(class(Op::Read, u32::MAX >> 1), (0, SIZE_CLASSES - 1));
    }
}
