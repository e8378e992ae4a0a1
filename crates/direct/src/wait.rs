//! [`Wait`]: how a handle spends the time until a completion (NVMeDirect section 3.1).
//!
//! Polling has the least latency and takes a core; being woken takes tens of microseconds and no core.
//! Hybrid polling sleeps through the part of the expected time in which nothing can have come, and
//! polls through the rest: what it expects is what requests of the same kind and size took lately.

use std::collections::VecDeque;

use block::{Completion, Op, Request};
use clock::{Nanos, Parker};

use crate::DirectError;

/// How a handle waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitMode {
    /// It looks all the time.
    #[default]
    Poll,
    /// It sleeps until the device says so. Of a queue with interrupts.
    Interrupt,
    /// It sleeps for part of the expected time, and looks all the time then.
    Hybrid(Hybrid),
}

/// How much of the expected time is slept through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hybrid {
    /// Percent of the expected time after which looking begins, 1 to 99.
    pub sleep_percent: u8,
    /// How late a sleeper wakes on this machine (`sluice calibrate`): looking begins that much earlier,
    /// and what is shorter is not slept through.
    pub wakeup_latency: Nanos,
}

impl Default for Hybrid {
    fn default() -> Hybrid {
        Hybrid { sleep_percent: 50, wakeup_latency: Nanos::from_micros(60) }
    }
}

impl WaitMode {
    pub(crate) fn check(self) -> Result<(), DirectError> {
        match self {
            WaitMode::Hybrid(Hybrid { sleep_percent, .. })
                if !(1..=99).contains(&sleep_percent) =>
            {
                let value = sleep_percent.into();
                let allowed = "1 to 99 percent of the expected time";
                Err(DirectError::Config { key: "sleep_percent", value, allowed })
            }
            _ => Ok(()),
        }
    }
}

/// Classes of size: of up to 1, 2, 4 … sectors.
const SIZE_CLASSES: usize = 12;
/// Reads, writes, and the rest.
const OP_CLASSES: usize = 3;

/// What requests took lately, by kind and size: a mean that forgets an eighth with each.
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
    /// What such a request is expected to take; nothing if it is not known.
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

/// What is on its way, as far as somebody who sleeps must know it.
#[derive(Clone, Copy, Debug)]
struct InFlightRequest {
    tag: u64,
    op: Op,
    sectors: u32,
    submitted_at: Nanos,
    expected: Nanos,
}

/// How a handle waits, and what it has learnt.
#[derive(Debug)]
pub(crate) struct WaitState {
    mode: WaitMode,
    parker: Parker,
    estimator: LatencyEstimator,
    /// With hybrid waiting: what is on its way, oldest first.
    in_flight: VecDeque<InFlightRequest>,
    /// Time slept.
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

    /// A request is on its way.
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

    /// Whether it must be told when requests end: nobody else pays for a look at the clock.
    #[inline]
    pub(crate) fn needs_completion_times(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// A request has ended.
    #[inline]
    pub(crate) fn on_complete(&mut self, now: Nanos, completion: &Completion) {
        // Most end in the order in which they began.
        if let Some(at) = self.in_flight.iter().position(|f| f.tag == completion.tag)
            && let Some(InFlightRequest { op, sectors, submitted_at: since, .. }) =
                self.in_flight.remove(at)
        {
            self.estimator.record(op, sectors, now.since(since));
        }
    }

    /// Nothing has come: waits as it was told, `look` being one more look for what came meanwhile.
    /// Sleeps until `deadline` at most.
    pub(crate) fn pause(
        &mut self,
        now: impl Fn() -> Nanos,
        deadline: Nanos,
        look: impl FnOnce() -> bool,
    ) {
        let until = match self.mode {
            WaitMode::Poll => return std::hint::spin_loop(),
            WaitMode::Interrupt => deadline,
            WaitMode::Hybrid(Hybrid { sleep_percent, wakeup_latency: late }) => {
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
        // An interruption is a wake-up; there is no other failure for a valid descriptor.
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
