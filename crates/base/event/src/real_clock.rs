//! [`RealClock`]: monotonic wall time.

use std::time::{Duration, Instant};

use time::Nanos;

/// Monotonic time since the clock was created, or from the instant it was created with. Copies
/// agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct RealClock {
    start: Instant,
}

impl RealClock {
    /// Creates a clock that starts now at zero.
    pub fn start() -> RealClock {
        RealClock { start: Instant::now() }
    }

    /// Creates a clock whose present time is `at`, to continue from virtual time.
    pub fn starting_at(at: Nanos) -> RealClock {
        let now = Instant::now();
        // If the system cannot represent an instant that long ago, the clock starts at 0.
        RealClock { start: now.checked_sub(Duration::from_nanos(at.0)).unwrap_or(now) }
    }

    /// Returns the time since the start. Takes about 20 ns on x86-64 (vDSO).
    #[inline]
    pub fn now(&self) -> Nanos {
        Nanos(self.start.elapsed().as_nanos() as u64)
    }
}

/// Returns the CPU time of the calling thread, which excludes other load on the machine; zero if the
/// system has no such clock.
pub fn thread_cpu_time() -> Nanos {
    // Not `rustix::time`, which reads the vDSO and crashes under valgrind.
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map_or(Nanos::ZERO, |time| Nanos(Duration::from(time).as_nanos() as u64))
}

/// Minimizes the timer slack of the calling thread, so that its timed sleeps end as exactly as the
/// kernel can (prctl(2), `PR_SET_TIMERSLACK`). By default Linux delays them by up to 50 us to wake
/// several sleepers at once. Threads that the thread creates inherit the setting. On failure the
/// slack does not change.
pub fn disable_timer_slack() {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_sleeps_are_asked_for_by_the_thread_that_sleeps() {
        let slack = || rustix::thread::current_timer_slack().unwrap();
        let others = slack();
        let exact = std::thread::spawn(move || {
            disable_timer_slack();
            slack()
        });
        assert_eq!(exact.join().unwrap(), 1);
        assert_eq!(slack(), others, "others' sleeps are their own");
    }

    #[test]
    fn goes_on_from_an_instant() {
        let at = Nanos::from_secs(3600);
        let clock = RealClock::starting_at(at);
        let now = clock.now();
        assert!(now >= at && now.since(at) < Nanos::from_secs(60), "{now:?}");
        assert!(clock.now() >= now);
    }

    #[test]
    fn never_runs_backwards() {
        let clock = RealClock::start();
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
