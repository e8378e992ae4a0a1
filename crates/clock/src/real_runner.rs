//! [`RealRunner`]: real time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Component, Nanos, Parker, RealClock, Waker};

/// When a runner stops spinning.
///
/// Waking from sleep costs tens of microseconds, more than most devices' latency, so a runner
/// spins through short waits and sleeps through long ones.
#[derive(Clone, Copy, Debug)]
pub struct IdlePolicy {
    /// Spin this long without any move before sleeping.
    pub spin_time: Nanos,
    /// Wake this much before a deadline and spin the rest: how late a sleeper wakes on the
    /// machine (`sluice calibrate` measures it).
    pub wake_margin: Nanos,
}

impl Default for IdlePolicy {
    fn default() -> IdlePolicy {
        IdlePolicy { spin_time: Nanos::from_micros(50), wake_margin: Nanos::from_micros(100) }
    }
}

/// Polls components on one thread: spins while there is work, sleeps when there is none.
#[derive(Debug)]
pub struct RealRunner {
    clock: RealClock,
    idle: IdlePolicy,
    parker: Parker,
    stop: Arc<AtomicBool>,
}

impl RealRunner {
    /// A runner on `clock`; runners that share drives and queues share a clock.
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

    /// What others call after they gave a component of this runner work.
    pub fn waker(&self) -> Waker {
        self.parker.waker()
    }

    /// A handle that ends [`run`](RealRunner::run) from another thread.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle { stop: self.stop.clone(), waker: self.waker() }
    }

    /// Polls `component` until stopped.
    ///
    /// # Errors
    /// What [`Parker::park`] returns.
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

/// Ends a [`RealRunner::run`] from another thread.
#[derive(Clone, Debug)]
pub struct StopHandle {
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl StopHandle {
    /// Asks the runner to return; it does so after the poll it is in.
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
