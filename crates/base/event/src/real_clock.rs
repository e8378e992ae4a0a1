//! [`RealClock`]: monotonic wall time.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use time::Nanos;

/// Returns the present reading of `CLOCK_MONOTONIC` (clock_gettime(2)) in nanoseconds. It is the
/// same for all processes of a machine that are in one time namespace. Takes about 20 ns on x86-64
/// (vDSO).
#[inline]
pub fn monotonic_now() -> u64 {
    // Linux has this clock always.
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC);
    time.map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Monotonic time since the clock was created, or from the instant it was created with. Copies
/// agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct RealClock {
    /// The reading of `CLOCK_MONOTONIC` at which this clock is zero, modulo 2^64.
    start: u64,
}

impl RealClock {
    /// Creates a clock that starts now at zero.
    pub fn start() -> RealClock {
        RealClock { start: monotonic_now() }
    }

    /// Creates a clock whose present time is `at`, to continue from virtual time.
    pub fn starting_at(at: Nanos) -> RealClock {
        RealClock { start: monotonic_now().wrapping_sub(at.0) }
    }

    /// Returns the time since the start. Takes about 20 ns on x86-64 (vDSO).
    #[inline]
    pub fn now(&self) -> Nanos {
        self.at_reading(monotonic_now())
    }

    /// Returns the time of this clock at a reading of [`monotonic_now`]; zero for one before its
    /// start, and for one over 2^63 ns after it.
    #[inline]
    pub fn at_reading(&self, monotonic: u64) -> Nanos {
        Nanos(monotonic.wrapping_sub(self.start).cast_signed().max(0).cast_unsigned())
    }
}

/// Returns the CPU time of the calling thread, which excludes other load on the machine; zero if the
/// system has no such clock.
pub fn thread_cpu_time() -> Nanos {
    // Not `rustix::time`, which reads the vDSO and crashes under valgrind.
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
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
    fn all_clocks_are_readings_of_one() {
        let at = Nanos::from_secs(1 << 32);
        let (first, second) = (RealClock::start(), RealClock::starting_at(at));
        let reading = monotonic_now();
        let times = [first, second].map(|clock| clock.at_reading(reading));
        assert!(times[0] < Nanos::from_secs(60) && times[1].since(at) < Nanos::from_secs(60));
        assert_eq!(first.at_reading(reading + 5), times[0] + Nanos(5));
        assert_eq!(first.at_reading(first.start.wrapping_sub(1)), Nanos::ZERO);
        assert_eq!(first.at_reading(first.start.wrapping_add(1 << 63)), Nanos::ZERO);
        let wrapped = RealClock { start: u64::MAX - 4 };
        assert_eq!(wrapped.at_reading(5), Nanos(10));
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
