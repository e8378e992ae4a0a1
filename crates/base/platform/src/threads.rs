//! [`ThreadPlatform`]: how threads of a platform wait and are woken, and their clock.

use std::cell::OnceCell;
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

    /// Returns the calling thread.
    fn current() -> Self::Thread;

    /// Wakes a thread, or makes its next wait return at once.
    fn unpark(thread: &Self::Thread);

    /// Waits until the calling thread is woken, for at most `limit` ([`Nanos::MAX`]: no limit).
    /// Spurious returns are possible. If `stays`, the thread continues on the CPU where it went to
    /// sleep, if that is possible.
    fn park(limit: Nanos, stays: bool);

    /// Returns the time since an instant that is the same for all threads.
    fn now() -> Nanos;
}

thread_local! {
    /// CPUs on which the thread may run, if there are several.
    static ALLOWED: OnceCell<Option<CpuSet>> = const { OnceCell::new() };
}

impl ThreadPlatform for Native {
    type Thread = Thread;

    fn current() -> Thread {
        thread::current()
    }

    #[inline]
    fn unpark(thread: &Thread) {
        thread.unpark();
    }

    fn park(limit: Nanos, stays: bool) {
        let allowed = || sched_getaffinity(None).ok().filter(|set| set.count() > 1);
        let allowed = if stays { ALLOWED.with(|set| *set.get_or_init(allowed)) } else { None };
        // A failure only costs cache hits.
        let is_bound = allowed.is_some() && {
            let mut here = CpuSet::new();
            here.set(sched_getcpu());
            sched_setaffinity(None, &here).is_ok()
        };
        match limit {
            Nanos::MAX => thread::park(),
            Nanos(limit) => thread::park_timeout(Duration::from_nanos(limit)),
        }
        if is_bound && let Some(allowed) = &allowed {
            let _ = sched_setaffinity(None, allowed);
        }
    }

    #[inline]
    fn now() -> Nanos {
        static START: OnceLock<Instant> = OnceLock::new();
        Nanos(START.get_or_init(Instant::now).elapsed().as_nanos() as u64)
    }
}
