//! [`ThreadPlatform`]: how threads of a platform wait and are woken, and their clock.

use std::fmt::Debug;
use std::sync::OnceLock;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use time::Nanos;

use crate::{Native, Platform};

/// A platform with threads that wait, and a clock.
pub trait ThreadPlatform: Platform {
    /// A thread, as others wake it.
    type Thread: Clone + Debug + Send + Sync + 'static;

    /// The CPUs on which a thread may run.
    type Cpus: Debug;

    /// Returns the calling thread.
    fn current() -> Self::Thread;

    /// Returns the CPUs on which the calling thread may run now.
    fn cpus() -> Self::Cpus;

    /// Wakes a thread, or makes its next wait return at once.
    fn unpark(thread: &Self::Thread);

    /// Waits until the calling thread is woken, for at most `limit` ([`Nanos::MAX`]: no limit).
    /// Spurious returns are possible. With `stays`, the thread continues on the CPU where it went to
    /// sleep, if that is possible, and may run on these afterwards.
    fn park(limit: Nanos, stays: Option<&Self::Cpus>);

    /// Returns the time since an instant that is the same for all threads.
    fn now() -> Nanos;
}

impl ThreadPlatform for Native {
    type Thread = Thread;

    /// `None` if there is one, or if the system does not tell.
    type Cpus = Option<CpuSet>;

    fn current() -> Thread {
        thread::current()
    }

    fn cpus() -> Option<CpuSet> {
        sched_getaffinity(None).ok().filter(|set| set.count() > 1)
    }

    #[inline]
    fn unpark(thread: &Thread) {
        thread.unpark();
    }

    fn park(limit: Nanos, stays: Option<&Option<CpuSet>>) {
        // A failure only costs cache hits.
        let bound = stays.and_then(Option::as_ref).filter(|_| {
            let mut here = CpuSet::new();
            here.set(sched_getcpu());
            sched_setaffinity(None, &here).is_ok()
        });
        match limit {
            Nanos::MAX => thread::park(),
            Nanos(limit) => thread::park_timeout(Duration::from_nanos(limit)),
        }
        if let Some(cpus) = bound {
            let _ = sched_setaffinity(None, cpus);
        }
    }

    #[inline]
    fn now() -> Nanos {
        static START: OnceLock<Instant> = OnceLock::new();
        Nanos(START.get_or_init(Instant::now).elapsed().as_nanos() as u64)
    }
}
