//! [`CompletionPoller`]: a thread that looks for completions on others' behalf, of one queue or of several
//! (NVMeDirect section 3.2: the I/O completion thread).
//!
//! Between two looks it sleeps: a fixed time, or until enough should have ended for a look to be worth it
//! while the device still has enough to do ([`crate::pace`]). It asks the kernel not to wake it later than
//! it must ([`clock::disable_timer_slack`]) and measures how late that is; what is shorter is not slept through:
//! it looks all the time then, but lets others have its core in between. With nothing on its way it
//! sleeps until somebody submits.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use clock::{Nanos, Parker, RealClock, Waker};

use crate::scheduled::GroupedSubmit;
use crate::{DirectError, SharedQueue};

/// The least that a sleep may be found to be late at once, in nanoseconds.
const WAKEUP_LATENCY_STEP_MIN: u64 = 10_000;

/// How long the thread sleeps between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollPeriod {
    /// Not at all, while something is on its way.
    Busy,
    /// So long, and longer by how late it wakes.
    Fixed(Nanos),
    /// Until as much of what is on its way should have ended as can be submitted again before the device
    /// has nothing to do.
    Dynamic {
        /// How late a sleeper wakes on this machine, at first: it measures that itself.
        wakeup_latency: Nanos,
        /// The longest sleep while something is on its way.
        sleep_max: Nanos,
    },
}

/// How a poller is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerConfig {
    /// How long it sleeps.
    pub period: PollPeriod,
}

impl Default for PollerConfig {
    fn default() -> PollerConfig {
        let (late, most) = (Nanos::from_micros(60), Nanos::from_millis(1));
        PollerConfig { period: PollPeriod::Dynamic { wakeup_latency: late, sleep_max: most } }
    }
}

/// What a poller has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollerStats {
    /// Looks, each at all queues.
    pub polls: u64,
    /// Completions found.
    pub completions: u64,
    /// Sleeps with something on its way.
    pub sleeps: u64,
    /// Time that the thread has had a core.
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
    /// A time that the application expects its requests to take, if it knows better.
    hint: AtomicU64,
    polls: AtomicU64,
    completions: AtomicU64,
    sleeps: AtomicU64,
    cpu_nanos: AtomicU64,
}

/// A thread that looks for completions. It ends when it is dropped; queues that it watched are looked at
/// by their seats again.
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
    /// Starts the thread; `clock` is that of the device whose queues it is given.
    ///
    /// # Errors
    /// [`DirectError::Config`] for a period of zero or of more than a second; [`DirectError::Memory`]
    /// without a thread or a descriptor to be had.
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

    /// Watches a queue from now on. Its seats wait for [`WaitMode::Interrupt`](crate::WaitMode::Interrupt): the thread
    /// wakes them. A queue is watched by one poller at most: the last that was asked.
    pub fn watch<D: GroupedSubmit + Send + 'static>(&self, queue: &SharedQueue<D>) {
        let mut queues = self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|q| !q.is_same(queue.as_ptr()));
        queue.watch(Some(self.waker.clone()));
        queues.push(Box::new(queue.clone()));
        drop(queues);
        self.waker.wake();
    }

    /// Watches a queue no more.
    pub fn unwatch<D: GroupedSubmit + Send + 'static>(&self, queue: &SharedQueue<D>) {
        let mut queues = self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let before = queues.len();
        queues.retain(|q| !q.is_same(queue.as_ptr()));
        if queues.len() < before {
            queue.watch(None);
        }
    }

    /// Says how long requests take, for who knows better than what has been seen; zero takes it back.
    /// Only with a dynamic period.
    pub fn hint(&self, time: Nanos) {
        self.shared.hint.store(time.0, Ordering::Relaxed);
    }

    /// Counters.
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

/// The thread.
struct PollerThread {
    shared: Arc<PollerShared>,
    parker: Parker,
    clock: RealClock,
    period: PollPeriod,
    /// How much longer than asked for its sleeps take: a mean that forgets an eighth with each.
    wakeup_latency: Cell<Nanos>,
}

impl PollerThread {
    fn run(self) {
        clock::disable_timer_slack();
        while !self.shared.stop.load(Ordering::Relaxed) {
            if let Some(next) = self.poll_queues() {
                self.sleep(next);
                continue;
            }
            // Nothing is on its way: somebody submits, or all is over.
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

    /// Looks at all queues. Returns when the next look is due, if something is on its way.
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
            // Whoever is to submit may need this core.
            return std::thread::yield_now();
        }
        self.shared.sleeps.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_nanos(time.0));
        let (late, old) = (self.clock.now().since(begin + time), self.wakeup_latency.get());
        // One that was kept from its core for long says little of the next.
        let late = late.0.min(4 * old.0 + WAKEUP_LATENCY_STEP_MIN);
        self.wakeup_latency.set(Nanos(old.0 - old.0 / 8 + late / 8));
    }

    fn record_cpu_time(&self) {
        self.shared.cpu_nanos.store(clock::thread_cpu_time().0, Ordering::Relaxed);
    }
}
