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
#[derive(Clone, Copy, Debug)]
pub struct IdlePolicy {
    /// Time without progress after which the runner parks.
    pub spin_time: Nanos,
    /// Time before a deadline at which the runner wakes, to spin until the deadline. It covers the
    /// wake-up latency of the machine, which `sluice calibrate` measures.
    pub wake_margin: Nanos,
}

impl Default for IdlePolicy {
    fn default() -> IdlePolicy {
        IdlePolicy { spin_time: Nanos::from_micros(50), wake_margin: Nanos::from_micros(100) }
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
        let mut idle_since = None;
        while !self.stop.load(Ordering::Relaxed) {
            let now = self.clock.now();
            if component.poll(now) {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert(now);
            let margin = now + self.idle.wake_margin;
            if now.since(since) < self.idle.spin_time || component.deadline() <= margin {
                std::hint::spin_loop();
                continue;
            }
            self.parker.prepare();
            if component.poll(self.clock.now()) || self.stop.load(Ordering::Relaxed) {
                self.parker.unpark();
                idle_since = None;
                continue;
            }
            let deadline = component.deadline();
            let timeout = if deadline == Nanos::MAX {
                Nanos::MAX
            } else {
                deadline.since(self.clock.now() + self.idle.wake_margin)
            };
            self.parker.park(&[], timeout)?;
            idle_since = None;
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
