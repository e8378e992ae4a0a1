//! [`TimerContext`]: a thread that does periodic work.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use driver::{IrqRunHistogram, IrqRunRecorder};
use event::{RealClock, thread_cpu_time};
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};
use time::Nanos;

/// A running thread; dropping it stops and joins the thread.
#[derive(Debug)]
pub(super) struct TimerContext {
    shared: Arc<TimerState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct TimerState {
    stop: AtomicBool,
    cpu: IrqRunRecorder,
    wall: IrqRunRecorder,
}

impl TimerContext {
    /// Starts a thread called `name`, on `cpu` if given, that repeatedly sleeps for `interval` and
    /// then runs `work`. While there is no interval it sleeps until it is unparked.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub(super) fn start(
        name: &str,
        cpu: Option<usize>,
        interval: impl Fn() -> Option<Nanos> + Send + 'static,
        mut work: impl FnMut() + Send + 'static,
    ) -> io::Result<TimerContext> {
        let shared = Arc::new(TimerState {
            stop: AtomicBool::new(false),
            cpu: IrqRunRecorder::new(),
            wall: IrqRunRecorder::new(),
        });
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            if let Some(cpu) = cpu.filter(|cpu| *cpu < CpuSet::MAX_CPU) {
                let mut set = CpuSet::new();
                set.set(cpu);
                // A failure only costs precision.
                let _ = sched_setaffinity(None, &set);
            }
            // By default the kernel adds up to 50 us to every sleep.
            let _ = set_current_timer_slack(NonZeroU64::new(1));
            theirs.serve(&interval, &mut work);
        })?;
        Ok(TimerContext { shared, thread: Some(thread) })
    }

    /// Returns the thread, to be unparked when there is an interval.
    pub(super) fn thread(&self) -> Option<&Thread> {
        self.thread.as_ref().map(JoinHandle::thread)
    }

    /// Returns the run times, by the thread's CPU clock and by wall clock.
    pub(super) fn runs(&self) -> (IrqRunHistogram, IrqRunHistogram) {
        (self.shared.cpu.read(), self.shared.wall.read())
    }

    pub(super) fn reset_run_stats(&self) {
        self.shared.cpu.reset();
        self.shared.wall.reset();
    }
}

impl TimerState {
    fn serve(&self, interval: &impl Fn() -> Option<Nanos>, work: &mut impl FnMut()) {
        let clock = RealClock::start();
        while !self.stop.load(Ordering::Acquire) {
            let Some(Nanos(interval)) = interval() else {
                std::thread::park();
                continue;
            };
            std::thread::park_timeout(Duration::from_nanos(interval));
            let (wall, cpu) = (clock.now(), thread_cpu_time());
            work();
            self.cpu.record(thread_cpu_time().since(cpu));
            self.wall.record(clock.now().since(wall));
        }
    }
}

impl Drop for TimerContext {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread has reported a panic of `work` itself.
            let _ = thread.join();
        }
    }
}
