//! [`Poller`]: a thread that looks for completions on others' behalf, of one queue or of several
//! (NVMeDirect section 3.2: the I/O completion thread).
//!
//! Between two looks it sleeps: a fixed time, or until enough should have ended for a look to be worth it
//! while the device still has enough to do ([`crate::pace`]). It asks the kernel not to wake it later than
//! it must ([`clock::sleep_exactly`]) and measures how late that is; what is shorter is not slept through:
//! it looks all the time then, but lets others have its core in between. With nothing on its way it
//! sleeps until somebody submits.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use clock::{Nanos, Parker, RealClock, Waker};

use crate::scheduled::Grouped;
use crate::{DirectError, SharedQueue};

/// The least that a sleep may be found to be late at once, in nanoseconds.
const LATE_STEP: u64 = 10_000;

/// How long the thread sleeps between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// Not at all, while something is on its way.
    Busy,
    /// So long, and longer by how late it wakes.
    Fixed(Nanos),
    /// Until as much of what is on its way should have ended as can be submitted again before the device
    /// has nothing to do.
    Dynamic {
        /// How late a sleeper wakes on this machine, at first: it measures that itself.
        late: Nanos,
        /// The longest sleep while something is on its way.
        most: Nanos,
    },
}

/// How a poller is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerConfig {
    /// How long it sleeps.
    pub period: Period,
}

impl Default for PollerConfig {
    fn default() -> PollerConfig {
        let (late, most) = (Nanos::from_micros(60), Nanos::from_millis(1));
        PollerConfig { period: Period::Dynamic { late, most } }
    }
}

/// What a poller has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollerStats {
    /// Looks, each at all queues.
    pub looks: u64,
    /// Completions found.
    pub completions: u64,
    /// Sleeps with something on its way.
    pub naps: u64,
    /// Time that the thread has had a core.
    pub cpu: Nanos,
}

/// A queue as the thread sees it.
trait Watched: Send {
    fn turn(&self, now: Nanos) -> usize;
    fn due(&self, hint: Nanos) -> Option<Nanos>;
    fn same(&self, other: *const ()) -> bool;
}

impl<D: Grouped + Send + 'static> Watched for SharedQueue<D> {
    fn turn(&self, now: Nanos) -> usize {
        SharedQueue::turn(self, now)
    }

    fn due(&self, hint: Nanos) -> Option<Nanos> {
        SharedQueue::due(self, hint)
    }

    fn same(&self, other: *const ()) -> bool {
        self.address() == other
    }
}

#[derive(Default)]
struct Shared {
    queues: Mutex<Vec<Box<dyn Watched>>>,
    stop: AtomicBool,
    /// A time that the application expects its requests to take, if it knows better.
    hint: AtomicU64,
    looks: AtomicU64,
    completions: AtomicU64,
    naps: AtomicU64,
    cpu: AtomicU64,
}

/// A thread that looks for completions. It ends when it is dropped; queues that it watched are looked at
/// by their seats again.
pub struct Poller {
    shared: Arc<Shared>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Poller {
    /// Starts the thread; `clock` is that of the device whose queues it is given.
    ///
    /// # Errors
    /// [`DirectError::Config`] for a period of zero or of more than a second; [`DirectError::Memory`]
    /// without a thread or a descriptor to be had.
    pub fn start(clock: RealClock, config: PollerConfig) -> Result<Poller, DirectError> {
        let longest = match config.period {
            Period::Busy => Nanos(1),
            Period::Fixed(period) => period,
            Period::Dynamic { most, .. } => most,
        };
        if longest == Nanos::ZERO || longest > Nanos::from_millis(1000) {
            let (key, allowed) = ("period", "up to a second, and more than nothing");
            return Err(DirectError::Config { key, value: longest.0, allowed });
        }
        let none = |source: io::Error| DirectError::Memory { bytes: 0, source };
        let parker = Parker::new().map_err(none)?;
        let waker = parker.waker();
        let shared = Arc::new(Shared::default());
        let late = match config.period {
            Period::Dynamic { late, .. } => Cell::new(late),
            _ => Cell::default(),
        };
        let look = Look { shared: shared.clone(), parker, clock, period: config.period, late };
        let thread = std::thread::Builder::new().name("completions".into());
        let thread = thread.spawn(move || look.run()).map_err(none)?;
        Ok(Poller { shared, waker, thread: Some(thread) })
    }

    /// Watches a queue from now on. Its seats wait for [`Wait::Event`](crate::Wait::Event): the thread
    /// wakes them. A queue is watched by one poller at most: the last that was asked.
    pub fn watch<D: Grouped + Send + 'static>(&self, queue: &SharedQueue<D>) {
        let mut queues = self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|q| !q.same(queue.address()));
        queue.watch(Some(self.waker.clone()));
        queues.push(Box::new(queue.clone()));
        drop(queues);
        self.waker.wake();
    }

    /// Watches a queue no more.
    pub fn forget<D: Grouped + Send + 'static>(&self, queue: &SharedQueue<D>) {
        let mut queues = self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let before = queues.len();
        queues.retain(|q| !q.same(queue.address()));
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
            looks: of(&self.shared.looks),
            completions: of(&self.shared.completions),
            naps: of(&self.shared.naps),
            cpu: Nanos(of(&self.shared.cpu)),
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread.
struct Look {
    shared: Arc<Shared>,
    parker: Parker,
    clock: RealClock,
    period: Period,
    /// How much longer than asked for its sleeps take: a mean that forgets an eighth with each.
    late: Cell<Nanos>,
}

impl Look {
    fn run(self) {
        clock::sleep_exactly();
        while !self.shared.stop.load(Ordering::Relaxed) {
            if let Some(next) = self.look() {
                self.nap(next);
                continue;
            }
            // Nothing is on its way: somebody submits, or all is over.
            self.parker.prepare();
            if self.shared.stop.load(Ordering::Relaxed) || self.look().is_some() {
                self.parker.unpark();
                continue;
            }
            self.note_cpu();
            let _ = self.parker.park(&[], Nanos::MAX);
        }
        self.note_cpu();
    }

    /// Looks at all queues. Returns when the next look is due, if something is on its way.
    fn look(&self) -> Option<Nanos> {
        let hint = Nanos(self.shared.hint.load(Ordering::Relaxed));
        let queues = self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        let mut next = None;
        let mut found = 0;
        for queue in queues.iter() {
            found += queue.turn(now) as u64;
            if let Some(due) = queue.due(hint) {
                next = Some(next.map_or(due, |next: Nanos| next.min(due)));
            }
        }
        let looks = self.shared.looks.fetch_add(1, Ordering::Relaxed);
        self.shared.completions.fetch_add(found, Ordering::Relaxed);
        if looks.is_multiple_of(1024) {
            self.note_cpu();
        }
        next
    }

    fn nap(&self, next: Nanos) {
        let begin = self.clock.now();
        let time = match self.period {
            Period::Busy => return std::hint::spin_loop(),
            Period::Fixed(period) => period,
            Period::Dynamic { most, .. } => next.since(begin + self.late.get()).min(most),
        };
        if time == Nanos::ZERO {
            // Whoever is to submit may need this core.
            return std::thread::yield_now();
        }
        self.shared.naps.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_nanos(time.0));
        let (late, old) = (self.clock.now().since(begin + time), self.late.get());
        // One that was kept from its core for long says little of the next.
        let late = late.0.min(4 * old.0 + LATE_STEP);
        self.late.set(Nanos(old.0 - old.0 / 8 + late / 8));
    }

    fn note_cpu(&self) {
        self.shared.cpu.store(clock::thread_cpu().0, Ordering::Relaxed);
    }
}
