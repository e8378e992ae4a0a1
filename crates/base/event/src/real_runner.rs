//! [`RealRunner`]: a runner in real time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use time::{Component, Nanos};

use crate::{Parker, RealClock, Waker};

/// The durations after which a runner parks and before which it wakes.
///
/// Waking a parked thread takes tens of microseconds, more than the latency of most devices. A
/// runner therefore spins through short waits and parks for long ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    /// Time without progress after which the runner parks.
    pub spin_time: Nanos,
    /// Time before a deadline at which the runner wakes, to spin until the deadline. It covers the
    /// wake-up latency of the machine, which `sluice calibrate` measures.
    pub wake_margin: Nanos,
    /// Maximum time that the runner is parked, for one that polls on a timer; [`Nanos::MAX`] for
    /// others.
    pub poll_interval: Nanos,
}

impl IdlePolicy {
    /// Parks as soon as there is nothing to do, for a machine with fewer cores than threads: a thread
    /// that spins keeps others from running. What is due is then late by the wake-up latency of the
    /// machine.
    pub const PARK: IdlePolicy =
        IdlePolicy { spin_time: Nanos::ZERO, wake_margin: Nanos::ZERO, poll_interval: Nanos::MAX };
}

impl Default for IdlePolicy {
    fn default() -> IdlePolicy {
        IdlePolicy {
            spin_time: Nanos::from_micros(50),
            wake_margin: Nanos::from_micros(100),
            poll_interval: Nanos::MAX,
        }
    }
}

/// The wait of a thread that polls, by an [`IdlePolicy`]: decides after each poll without progress
/// whether the thread polls again at once or parks.
#[derive(Clone, Copy, Debug)]
pub struct IdleWait {
    policy: IdlePolicy,
    /// Time of the first poll without progress.
    since: Option<Nanos>,
}

impl IdleWait {
    /// Creates the state of a thread that has work.
    pub fn new(policy: IdlePolicy) -> IdleWait {
        IdleWait { policy, since: None }
    }

    /// Records progress, or the end of a sleep: the next spin has its whole time.
    #[inline]
    pub fn reset(&mut self) {
        self.since = None;
    }

    /// Returns whether to poll again at once after a poll at `now` without progress: during the spin
    /// time, and shortly before the deadline.
    #[inline]
    pub fn must_spin(&mut self, now: Nanos, deadline: impl FnOnce() -> Nanos) -> bool {
        let since = *self.since.get_or_insert(now);
        now.since(since) < self.policy.spin_time || deadline() <= now + self.policy.wake_margin
    }

    /// Returns the time to park for at `now`; [`Nanos::MAX`] without a deadline.
    pub fn park_timeout(&self, now: Nanos, deadline: Nanos) -> Nanos {
        let until_deadline = match deadline {
            Nanos::MAX => Nanos::MAX,
            _ => deadline.since(now + self.policy.wake_margin),
        };
        until_deadline.min(self.policy.poll_interval)
    }
}

/// Polls components on one thread: spins while there is work, and parks when there is none.
#[derive(Debug)]
pub struct RealRunner {
    clock: RealClock,
    idle: IdlePolicy,
    parker: Parker,
    stop: Arc<AtomicBool>,
}

impl RealRunner {
    /// Creates a runner on `clock`; runners that share drives and queues share a clock.
    ///
    /// # Errors
    /// See [`Parker::new`].
    pub fn new(clock: RealClock, idle: IdlePolicy) -> io::Result<RealRunner> {
        Ok(RealRunner {
            clock,
            idle,
            parker: Parker::new()?,
            stop: Arc::new(AtomicBool::new(false)),
        })
    }

    /// Returns the waker that other threads call after they have given a component of this runner
    /// work.
    pub fn waker(&self) -> Waker {
        self.parker.waker()
    }

    /// Returns a handle that stops [`run`](RealRunner::run) from another thread.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle { stop: self.stop.clone(), waker: self.waker() }
    }

    /// Polls `component` until stopped.
    ///
    /// # Errors
    /// The error that [`Parker::park`] returns.
    pub fn run(&self, component: &mut dyn Component) -> io::Result<()> {
        let mut wait = IdleWait::new(self.idle);
        while !self.stop.load(Ordering::Relaxed) {
            let now = self.clock.now();
            if component.poll(now) {
                wait.reset();
                continue;
            }
            if wait.must_spin(now, || component.deadline()) {
                std::hint::spin_loop();
                continue;
            }
            self.parker.prepare();
            if component.poll(self.clock.now()) || self.stop.load(Ordering::Relaxed) {
                self.parker.unpark();
                wait.reset();
                continue;
            }
            let timeout = wait.park_timeout(self.clock.now(), component.deadline());
            self.parker.park(&[], timeout)?;
            wait.reset();
        }
        Ok(())
    }
}

/// Stops a [`RealRunner::run`] from another thread.
#[derive(Clone, Debug)]
pub struct StopHandle {
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl StopHandle {
    /// Asks the runner to return after its current poll.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Once {
        at: Nanos,
        fired: Arc<AtomicBool>,
    }

    impl Component for Once {
        fn poll(&mut self, now: Nanos) -> bool {
            if now < self.at || self.fired.load(Ordering::Relaxed) {
                return false;
            }
            self.fired.store(true, Ordering::Release);
            true
        }
        fn deadline(&self) -> Nanos {
            if self.fired.load(Ordering::Relaxed) { Nanos::MAX } else { self.at }
        }
    }

    #[test]
    fn a_wait_spins_for_its_time_and_before_the_deadline() {
        let (spin_time, wake_margin) = (Nanos(50), Nanos(100));
        let idle = IdlePolicy { spin_time, wake_margin, ..IdlePolicy::default() };
        let mut wait = IdleWait::new(idle);
        let never = || Nanos::MAX;
        assert!(wait.must_spin(Nanos(1_000), never) && wait.must_spin(Nanos(1_049), never));
        assert!(!wait.must_spin(Nanos(1_050), never), "the spin time is over");
        assert!(!wait.must_spin(Nanos(1_050), || Nanos(1_151)));
        assert!(wait.must_spin(Nanos(1_050), || Nanos(1_150)), "a wake-up would be late");
        wait.reset();
        assert!(wait.must_spin(Nanos(2_000), never), "a new spin");
        assert_eq!(wait.park_timeout(Nanos(2_000), Nanos::MAX), Nanos::MAX);
        assert_eq!(wait.park_timeout(Nanos(2_000), Nanos(2_300)), Nanos(200));
        assert_eq!(wait.park_timeout(Nanos(2_000), Nanos(2_010)), Nanos::ZERO);
        let timer = IdleWait::new(IdlePolicy { poll_interval: Nanos(150), ..idle });
        assert_eq!(timer.park_timeout(Nanos(2_000), Nanos::MAX), Nanos(150));
        assert_eq!(timer.park_timeout(Nanos(2_000), Nanos(2_200)), Nanos(100));
        let mut parks = IdleWait::new(IdlePolicy::PARK);
        assert!(!parks.must_spin(Nanos(2_000), || Nanos(2_001)), "also shortly before a deadline");
        assert_eq!(parks.park_timeout(Nanos(2_000), Nanos(2_001)), Nanos(1));
    }

    #[test]
    fn wakes_for_a_deadline_and_stops_when_told() {
        let clock = RealClock::start();
        let runner = RealRunner::new(clock, IdlePolicy::default()).unwrap();
        let stopper = runner.stop_handle();
        let fired = Arc::new(AtomicBool::new(false));
        let mut once = Once { at: Nanos::from_millis(3), fired: fired.clone() };
        let thread = std::thread::spawn(move || runner.run(&mut once));
        while !fired.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert!(clock.now() >= Nanos::from_millis(3), "never early");
        stopper.stop();
        thread.join().unwrap().unwrap();
    }
}
