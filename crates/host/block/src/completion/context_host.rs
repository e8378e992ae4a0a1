//! [`ContextHost`]: starts contexts, as threads of this machine ([`NativeContexts`]) or on a modeled
//! one.

use std::fmt::Debug;
use std::io;
use std::thread::Thread;

use driver::{InterruptContext, InterruptOptions, IrqRunHistogram};
use event::Waker;
use time::Nanos;

use super::contexts::Placement;
use super::stats::ContextKind;
use super::timer::TimerContext;
use crate::sync::{Native, ThreadPlatform};

/// The work of a context.
pub type ContextWork = Box<dyn FnMut() + Send>;

/// Returns the time until the next run of a context; `None` while it has nothing to do.
pub type ContextInterval = Box<dyn Fn() -> Option<Nanos> + Send>;

/// Starts contexts on a platform.
pub trait ContextHost<P: ThreadPlatform> {
    /// Starts a context that does `work` whenever the returned waker is woken: at least once after
    /// the last wake-up.
    ///
    /// # Errors
    /// There are no resources for it.
    fn start_woken(
        &mut self,
        kind: ContextKind,
        work: ContextWork,
    ) -> io::Result<(Waker, Box<dyn RunningContext>)>;

    /// Starts a context that repeatedly sleeps for `interval` and then does `work`. While there is
    /// no interval it sleeps until the returned thread is unparked.
    ///
    /// # Errors
    /// There are no resources for it.
    fn start_timed(
        &mut self,
        kind: ContextKind,
        interval: ContextInterval,
        work: ContextWork,
    ) -> io::Result<(P::Thread, Box<dyn RunningContext>)>;
}

/// A started context; dropping it stops it.
pub trait RunningContext: Debug + Send + Sync {
    /// Returns whether it runs before ordinary threads.
    fn is_realtime(&self) -> bool;

    /// Returns the times of its runs: on its CPU, and by wall clock.
    fn runs(&self) -> (IrqRunHistogram, IrqRunHistogram);

    /// Clears the times of its runs.
    fn reset_runs(&self);
}

/// Starts contexts as threads of this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct NativeContexts {
    pub(super) placement: Placement,
}

/// Priorities under `SCHED_FIFO`. Linux's interrupt threads have 50.
fn priority(kind: ContextKind) -> Option<u8> {
    match kind {
        ContextKind::HardIrq => Some(60),
        ContextKind::SoftIrq => Some(55),
        ContextKind::IrqThread => Some(50),
        ContextKind::QueueRun | ContextKind::Poll | ContextKind::Watch => None,
    }
}

impl ContextHost<Native> for NativeContexts {
    fn start_woken(
        &mut self,
        kind: ContextKind,
        work: ContextWork,
    ) -> io::Result<(Waker, Box<dyn RunningContext>)> {
        let Placement { cpu, realtime } = self.placement;
        let priority = priority(kind).filter(|_| realtime);
        let context = InterruptContext::start(InterruptOptions { cpu, priority }, work)?;
        Ok((context.waker(), Box::new(context)))
    }

    fn start_timed(
        &mut self,
        kind: ContextKind,
        interval: ContextInterval,
        work: ContextWork,
    ) -> io::Result<(Thread, Box<dyn RunningContext>)> {
        let name = if kind == ContextKind::Poll { "poll" } else { "watch" };
        let context = TimerContext::start(name, self.placement.cpu, interval, work)?;
        let thread = context.thread().cloned();
        let thread = thread.ok_or_else(|| io::Error::other("a thread that ended at once"))?;
        Ok((thread, Box::new(context)))
    }
}

impl RunningContext for InterruptContext {
    fn is_realtime(&self) -> bool {
        InterruptContext::is_realtime(self)
    }

    fn runs(&self) -> (IrqRunHistogram, IrqRunHistogram) {
        let stats = self.stats();
        (stats.cpu, stats.wall)
    }

    fn reset_runs(&self) {
        self.reset_stats();
    }
}

impl RunningContext for TimerContext {
    fn is_realtime(&self) -> bool {
        false
    }

    fn runs(&self) -> (IrqRunHistogram, IrqRunHistogram) {
        TimerContext::runs(self)
    }

    fn reset_runs(&self) {
        self.reset_run_stats();
    }
}
