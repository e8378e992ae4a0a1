//! [`VirtualRunner`]: a runner in virtual time.

use crate::{Component, Nanos};

/// Polls components until none makes progress, then advances time to their earliest deadline.
///
/// The components are polled in the given order, so that a run depends only on its inputs
/// (ARCHITECTURE.md, R3).
#[derive(Clone, Debug, Default)]
pub struct VirtualRunner {
    now: Nanos,
}

/// The error for a deadlock: no component can make progress, but the condition of the caller does
/// not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// Time of the last progress.
    pub at: Nanos,
}

impl std::fmt::Display for Deadlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "nothing is left to happen after {}, but work is still outstanding", self.at)
    }
}

impl std::error::Error for Deadlock {}

impl VirtualRunner {
    /// Creates a runner at time zero.
    pub fn new() -> VirtualRunner {
        VirtualRunner::default()
    }

    /// Returns the present time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Advances the present time to `to`, for a caller that polls by itself. Time never goes back.
    #[inline]
    pub fn advance_to(&mut self, to: Nanos) {
        self.now = self.now.max(to);
    }

    /// Polls every component until none makes progress, without advancing time.
    pub fn run_until_idle(&mut self, components: &mut [&mut dyn Component]) {
        loop {
            let mut moved = false;
            for c in components.iter_mut() {
                moved |= c.poll(self.now);
            }
            if !moved {
                return;
            }
        }
    }

    /// Runs all work at the present time, then advances to the next deadline if it is not after
    /// `limit`. Returns whether time advanced.
    pub fn step(&mut self, components: &mut [&mut dyn Component], limit: Nanos) -> bool {
        self.run_until_idle(components);
        let next = components.iter().map(|c| c.deadline()).min().unwrap_or(Nanos::MAX);
        if next == Nanos::MAX || next > limit {
            return false;
        }
        // A deadline in the past means "as soon as time advances".
        self.now = self.now.max(next);
        true
    }

    /// Runs until `done` holds at an instant without further progress.
    ///
    /// # Errors
    /// [`Deadlock`] if no component has a deadline and `done` does not hold.
    pub fn run_until(
        &mut self,
        components: &mut [&mut dyn Component],
        mut done: impl FnMut() -> bool,
    ) -> Result<Nanos, Deadlock> {
        loop {
            let jumped = self.step(components, Nanos::MAX);
            if done() {
                return Ok(self.now);
            }
            if !jumped {
                return Err(Deadlock { at: self.now });
            }
        }
    }

    /// Runs until the time `until`, which is then the present time.
    pub fn run_until_time(&mut self, components: &mut [&mut dyn Component], until: Nanos) {
        while self.step(components, until) {}
        self.now = self.now.max(until);
        self.run_until_idle(components);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks `left` times, at intervals of `every`.
    struct Ticker {
        every: Nanos,
        next: Nanos,
        remaining: u32,
        seen: Vec<Nanos>,
    }

    impl Component for Ticker {
        fn poll(&mut self, now: Nanos) -> bool {
            if self.remaining == 0 || now < self.next {
                return false;
            }
            self.seen.push(now);
            self.remaining -= 1;
            self.next = now + self.every;
            true
        }
        fn deadline(&self) -> Nanos {
            if self.remaining == 0 { Nanos::MAX } else { self.next }
        }
    }

    fn ticker(every: u64, left: u32) -> Ticker {
        Ticker { every: Nanos(every), next: Nanos(every), remaining: left, seen: Vec::new() }
    }

    #[test]
    fn jumps_from_deadline_to_deadline() {
        let (mut a, mut b) = (ticker(10, 3), ticker(15, 2));
        let mut runner = VirtualRunner::new();
        runner.run_until_time(&mut [&mut a, &mut b], Nanos(100));
        assert_eq!(a.seen, [Nanos(10), Nanos(20), Nanos(30)]);
        assert_eq!(b.seen, [Nanos(15), Nanos(30)]);
        assert_eq!(runner.now(), Nanos(100));
    }

    #[test]
    fn a_run_that_cannot_end_says_so() {
        let mut a = ticker(10, 1);
        let stalled = VirtualRunner::new().run_until(&mut [&mut a], || false).unwrap_err();
        assert_eq!(stalled, Deadlock { at: Nanos(10) });
        assert!(stalled.to_string().contains("10ns"));
    }
}
