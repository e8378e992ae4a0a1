//! [`CompletionPoller`]: a thread that polls one or several queues for other threads (the I/O completion
//! thread of [NVMeDirect16 §3.2]).
//!
//! Between polls the thread sleeps: for a fixed time, or until enough requests should have
//! completed while the device still has enough work (module `adaptive_period`). It disables timer
//! slack ([`event::disable_timer_slack`]) and measures its wakeup latency. For periods shorter than
//! that, it polls continuously and yields its core between polls. With nothing in flight it sleeps
//! until a submission.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use event::{Parker, RealClock, Waker};
use time::Nanos;

use crate::scheduled::GroupedSubmit;
use crate::{DirectError, SharedQueue};

/// Minimum of the bound on one wakeup-latency sample, in nanoseconds.
const WAKEUP_LATENCY_STEP_MIN: u64 = 10_000;

/// Sleep between two polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollPeriod {
    /// Busy-polls while requests are in flight.
    Busy,
    /// Sleeps for this time, plus the wakeup latency.
    Fixed(Nanos),
    /// Sleeps until as many requests should have completed as can be resubmitted before the device
    /// becomes idle.
    Dynamic {
        /// Initial estimate of the wakeup latency; the thread measures it from then on.
        wakeup_latency: Nanos,
        /// Maximum sleep while requests are in flight.
        sleep_max: Nanos,
    },
}

/// Configuration of a poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerConfig {
    /// Sleep between two polls.
    pub period: PollPeriod,
}

impl Default for PollerConfig {
    fn default() -> PollerConfig {
        let (late, most) = (Nanos::from_micros(60), Nanos::from_millis(1));
        PollerConfig { period: PollPeriod::Dynamic { wakeup_latency: late, sleep_max: most } }
    }
}

/// Counters of a poller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollerStats {
    /// Polls, each of all queues.
    pub polls: u64,
    /// Completions found.
    pub completions: u64,
    /// Sleeps with requests in flight.
    pub sleeps: u64,
    /// CPU time of the thread.
    pub cpu_time: Nanos,
}

/// A queue as the thread sees it.
trait PolledQueue: Send {
    fn poll_all(&self, now: Nanos) -> usize;
    fn next_poll(&self, hint: Nanos) -> Option<Nanos>;
    fn is_same(&self, other: *const ()) -> bool;
}

impl<D: GroupedSubmit + Send + 'static> PolledQueue for SharedQueue<D> {
    fn poll_all(&self, now: Nanos) -> usize {
        SharedQueue::poll_all(self, now)
    }

    fn next_poll(&self, hint: Nanos) -> Option<Nanos> {
        SharedQueue::next_poll(self, hint)
    }

    fn is_same(&self, other: *const ()) -> bool {
        self.as_ptr() == other
    }
}

#[derive(Default)]
struct PollerShared {
    queues: Mutex<Vec<Box<dyn PolledQueue>>>,
    stop: AtomicBool,
    /// The application's estimate of the latency, if it gave one.
    hint: AtomicU64,
    polls: AtomicU64,
    completions: AtomicU64,
    sleeps: AtomicU64,
    cpu_nanos: AtomicU64,
}

/// A thread that polls for completions. Dropping it stops the thread; its queues are then polled by
/// their handles.
pub struct CompletionPoller {
    shared: Arc<PollerShared>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for CompletionPoller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl CompletionPoller {
    /// Starts the thread. `clock` is the clock of the device to which the queues belong.
    ///
    /// # Errors
    /// [`DirectError::Config`] for a period of zero or of more than a second;
    /// [`DirectError::Memory`] if no thread or descriptor can be created.
    pub fn start(clock: RealClock, config: PollerConfig) -> Result<CompletionPoller, DirectError> {
        let longest = match config.period {
            PollPeriod::Busy => Nanos(1),
            PollPeriod::Fixed(period) => period,
            PollPeriod::Dynamic { sleep_max: most, .. } => most,
        };
        if longest == Nanos::ZERO || longest > Nanos::from_millis(1000) {
            let (key, allowed) = ("period", "up to a second, and more than nothing");
            return Err(DirectError::Config { key, value: longest.0, allowed });
        }
        let none = |source: io::Error| DirectError::Memory { bytes: 0, source };
        let parker = Parker::new().map_err(none)?;
        let waker = parker.waker();
        let shared = Arc::new(PollerShared::default());
        let late = match config.period {
            PollPeriod::Dynamic { wakeup_latency: late, .. } => Cell::new(late),
            _ => Cell::default(),
        };
        let look = PollerThread {
            shared: shared.clone(),
            parker,
            clock,
            period: config.period,
            wakeup_latency: late,
        };
        let thread = std::thread::Builder::new().name("completions".into());
        let thread = thread.spawn(move || look.run()).map_err(none)?;
        Ok(CompletionPoller { shared, waker, thread: Some(thread) })
    }

    /// Starts to poll a queue. Its handles wait with
    /// [`WaitMode::Interrupt`](crate::WaitMode::Interrupt), and the thread wakes them. At most one
    /// poller polls a queue: the last one on which this was called.
    pub fn watch<D: GroupedSubmit + Send + 'static>(&self, queue: &SharedQueue<D>) {
        let mut queues = self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|q| !q.is_same(queue.as_ptr()));
        queue.watch(Some(self.waker.clone()));
        queues.push(Box::new(queue.clone()));
        drop(queues);
        self.waker.wake();
    }

    /// Stops polling a queue.
    pub fn unwatch<D: GroupedSubmit + Send + 'static>(&self, queue: &SharedQueue<D>) {
        let mut queues = self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let before = queues.len();
        queues.retain(|q| !q.is_same(queue.as_ptr()));
        if queues.len() < before {
            queue.watch(None);
        }
    }

    /// Sets the expected latency of requests, which overrides the measured one; zero removes it.
    /// Applies to a dynamic period only.
    pub fn hint(&self, time: Nanos) {
        self.shared.hint.store(time.0, Ordering::Relaxed);
    }

    /// Returns the counters.
    pub fn stats(&self) -> PollerStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PollerStats {
            polls: of(&self.shared.polls),
            completions: of(&self.shared.completions),
            sleeps: of(&self.shared.sleeps),
            cpu_time: Nanos(of(&self.shared.cpu_nanos)),
        }
    }
}

impl Drop for CompletionPoller {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// State of the thread.
struct PollerThread {
    shared: Arc<PollerShared>,
    parker: Parker,
    clock: RealClock,
    period: PollPeriod,
    /// Mean wakeup latency, with a weight of one eighth for each new sample.
    wakeup_latency: Cell<Nanos>,
}

impl PollerThread {
    fn run(self) {
        event::disable_timer_slack();
        while !self.shared.stop.load(Ordering::Relaxed) {
            if let Some(next) = self.poll_queues() {
                self.sleep(next);
                continue;
            }
            // Nothing is in flight: sleep until a submission or the stop.
            self.parker.prepare();
            if self.shared.stop.load(Ordering::Relaxed) || self.poll_queues().is_some() {
                self.parker.unpark();
                continue;
            }
            self.record_cpu_time();
            let _ = self.parker.park(&[], Nanos::MAX);
        }
        self.record_cpu_time();
    }

    /// Polls all queues. Returns when the next poll is due, or `None` if nothing is in flight.
    fn poll_queues(&self) -> Option<Nanos> {
        let hint = Nanos(self.shared.hint.load(Ordering::Relaxed));
        let queues = self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let mut next = None;
        let mut found = 0;
        for queue in queues.iter() {
            found += queue.poll_all(now) as u64;
            if let Some(due) = queue.next_poll(hint) {
                next = Some(next.map_or(due, |next: Nanos| next.min(due)));
            }
        }
        let looks = self.shared.polls.fetch_add(1, Ordering::Relaxed);
        self.shared.completions.fetch_add(found, Ordering::Relaxed);
        if looks.is_multiple_of(1024) {
            self.record_cpu_time();
        }
        next
    }

    fn sleep(&self, next: Nanos) {
        let begin = self.clock.now();
        let time = match self.period {
            PollPeriod::Busy => return std::hint::spin_loop(),
            PollPeriod::Fixed(period) => period,
            PollPeriod::Dynamic { sleep_max: most, .. } => {
                next.since(begin + self.wakeup_latency.get()).min(most)
            }
        };
        if time == Nanos::ZERO {
            // A submitting thread may need this core.
            return std::thread::yield_now();
        }
        self.shared.sleeps.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_nanos(time.0));
        let (late, old) = (self.clock.now().since(begin + time), self.wakeup_latency.get());
        // Bound the sample: a thread that was preempted for long says little about the next wakeup.
        let late = late.0.min(4 * old.0 + WAKEUP_LATENCY_STEP_MIN);
        self.wakeup_latency.set(Nanos(old.0 - old.0 / 8 + late / 8));
    }

    fn record_cpu_time(&self) {
        self.shared.cpu_nanos.store(event::thread_cpu_time().0, Ordering::Relaxed);
    }
}
