//! [`Contexts`]: the threads that stand for a kernel's contexts.
//!
//! | context | stands for | work |
//! |---|---|---|
//! | hard interrupt | the handler ([HIOPS14 fig. 2], *b* and *h*) | fetches; the rest depends on the strategy |
//! | soft interrupt | a bottom half (*d*) | post-processes, wakes |
//! | interrupt thread | a threaded interrupt (*i*) | fetches, post-processes, wakes |
//! | queue run | a background queue run (*f*) | issues requests that found no tag |
//! | poll thread | poll-based I/O ([HIOPS14 §3.3]) | as the handler, on a timer |
//! | watch | the block layer's timeout timer | handles command timeouts |
//!
//! Contexts are threads with wake-ups of their own, because the paper removes the cost of scheduling
//! them. All are started when the set is opened; those that the strategy does not use sleep.
//!
//! Contexts that preempt others in a kernel run under `SCHED_FIFO` where that is permitted. The
//! handler has a higher priority than the soft interrupt and the interrupt thread, which precede
//! ordinary threads. The queue run, the poll thread and the watch are ordinary threads, as in
//! Linux.

use std::io;
use std::sync::Arc;

use driver::HardwareQueue;
use event::Waker;
use time::Nanos;

use super::context_host::{ContextHost, RunningContext};
use super::interrupt_line::InterruptSource;
use super::reaper::CompletionReaper;
use super::shared::{CompletionShared, Wakers};
use super::stats::{ContextCounters, ContextKind, ContextStats};
use crate::queue::RunScope;
use crate::sync::{Lock, ThreadPlatform};
use crate::{SubmitterStats, Timeouts};

/// Placement of the contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The CPU to which all contexts are pinned; `None` does not pin them.
    pub cpu: Option<usize>,
    /// Whether the interrupt contexts run under `SCHED_FIFO`, if the process is permitted to.
    pub realtime: bool,
}

/// Number of contexts that have endpoints of the block layers.
pub(super) const REAPER_COUNT: u16 = 5;

/// The counters of a context, besides its run times.
#[derive(Debug, Default)]
struct ContextStatSources {
    counters: Arc<ContextCounters>,
    /// Counters of its endpoints.
    submitters: Vec<Arc<SubmitterStats>>,
}

impl ContextStatSources {
    fn from_reaper<Q: HardwareQueue, P: ThreadPlatform>(
        collector: &CompletionReaper<Q, P>,
    ) -> ContextStatSources {
        let submitters = collector.queues().iter().map(|end| end.stats().clone()).collect();
        ContextStatSources { counters: collector.counters(), submitters }
    }
}

#[derive(Debug)]
struct Context {
    kind: ContextKind,
    running: Box<dyn RunningContext>,
    counts: ContextStatSources,
}

/// The running contexts; dropping this stops them.
#[derive(Debug)]
pub(super) struct Contexts {
    contexts: Vec<Context>,
}

/// The parameters with which contexts are created.
struct ContextBuilder<'a, Q: HardwareQueue, P: ThreadPlatform> {
    shared: &'a Arc<CompletionShared<Q, P>>,
    host: &'a mut dyn ContextHost<P>,
    contexts: Vec<Context>,
}

impl<Q: HardwareQueue, P: ThreadPlatform> ContextBuilder<'_, Q, P> {
    /// Starts a context that runs `upcall` when it is woken; `counts` are the counters of its
    /// reaper.
    fn spawn_woken(
        &mut self,
        kind: ContextKind,
        counts: ContextStatSources,
        upcall: impl FnMut() + Send + 'static,
    ) -> io::Result<Waker> {
        let (waker, running) = self.host.start_woken(kind, Box::new(upcall))?;
        self.contexts.push(Context { kind, running, counts });
        Ok(waker)
    }

    /// Starts a context that runs `work` on a timer.
    fn spawn_timed(
        &mut self,
        kind: ContextKind,
        counts: ContextStatSources,
        interval: impl Fn() -> Option<Nanos> + Send + 'static,
        work: impl FnMut() + Send + 'static,
    ) -> io::Result<P::Thread> {
        let (thread, running) = self.host.start_timed(kind, Box::new(interval), Box::new(work))?;
        self.contexts.push(Context { kind, running, counts });
        Ok(thread)
    }
}

impl Contexts {
    /// Starts all contexts. `sweeper` is the reaper of the watch, which a change of strategy also
    /// uses.
    ///
    /// # Errors
    /// A thread or an eventfd cannot be created, or a thread may not run on the CPU.
    pub(super) fn start<Q: HardwareQueue + 'static, P: ThreadPlatform>(
        common: &Arc<CompletionShared<Q, P>>,
        collectors: [CompletionReaper<Q, P>; REAPER_COUNT as usize - 1],
        sweeper: &Arc<P::Lock<CompletionReaper<Q, P>>>,
        host: &mut dyn ContextHost<P>,
    ) -> io::Result<Contexts> {
        let [hard, thread, run, poll] = collectors;
        let mut maker = ContextBuilder { shared: common, host, contexts: Vec::new() };
        let soft = soft_irq(&mut maker)?;
        let irq_thread = irq_thread(&mut maker, thread)?;
        let queue_run = queue_run(&mut maker, run)?;
        let poll = poll_thread(&mut maker, poll)?;
        let watch = watch(&mut maker, sweeper)?;
        let hard = hard_irq(&mut maker, hard)?;
        let line = hard.clone();
        // This function is called once per set, so the cell is empty.
        let _ = common.wakers.set(Wakers { hard, soft, irq_thread, queue_run, poll, watch });
        match &common.source {
            InterruptSource::SharedLine(it) => it.connect(line),
            InterruptSource::PerQueue => sweeper.lock().connect(&line),
        }
        let mut contexts = maker.contexts;
        contexts.rotate_right(1);
        Ok(Contexts { contexts })
    }

    /// Returns the counters of each context.
    pub(super) fn stats(&self) -> Vec<ContextStats> {
        self.contexts.iter().map(Context::stats).collect()
    }

    /// Clears the run time histograms.
    pub(super) fn reset_run_stats(&self) {
        for context in &self.contexts {
            context.running.reset_runs();
        }
    }
}

impl Context {
    fn stats(&self) -> ContextStats {
        let (cpu, wall) = self.running.runs();
        ContextStats {
            kind: self.kind,
            realtime: self.running.is_realtime(),
            cpu,
            wall,
            found: self.counts.submitters.iter().map(|stats| stats.reaped_for_others.get()).sum(),
            issued: self.counts.submitters.iter().map(|stats| stats.issued_for_others.get()).sum(),
            finished: self.counts.counters.finished.get(),
            woken: self.counts.counters.woken.get(),
        }
    }
}

fn hard_irq<Q: HardwareQueue + 'static, P: ThreadPlatform>(
    maker: &mut ContextBuilder<'_, Q, P>,
    mut collector: CompletionReaper<Q, P>,
) -> io::Result<Waker> {
    let common = maker.shared.clone();
    let counts = ContextStatSources::from_reaper(&collector);
    maker.spawn_woken(ContextKind::HardIrq, counts, move || handle_irq(&common, &mut collector))
}

/// Runs the hard interrupt handler once, for the members that are pending at its start. If more are
/// pending at its end, the handler raises itself again, as a controller's interrupt would.
fn handle_irq<Q: HardwareQueue, P: ThreadPlatform>(
    common: &CompletionShared<Q, P>,
    collector: &mut CompletionReaper<Q, P>,
) {
    let behaviour = common.flags();
    let Some(wakers) = common.wakers.get() else { return };
    if behaviour.is_polling() {
        return;
    }
    if behaviour.is_threaded() {
        wakers.irq_thread.wake();
        return;
    }
    let now = P::now();
    let members = common.source.acknowledge(common.all_members());
    collector.reap(common, now, members);
    common.govern(now);
    if common.source.needs_reraise() {
        wakers.hard.wake();
    }
}

fn soft_irq<Q: HardwareQueue + 'static, P: ThreadPlatform>(
    maker: &mut ContextBuilder<'_, Q, P>,
) -> io::Result<Waker> {
    let common = maker.shared.clone();
    let counts = ContextStatSources::default();
    let tally = counts.counters.clone();
    let mut news = Vec::new();
    maker.spawn_woken(ContextKind::SoftIrq, counts, move || {
        common.take_soft_irq_notices(&mut news);
        let delivered = common.post_process_all(P::now(), &mut news);
        tally.add(delivered);
    })
}

/// Does the work that the handler leaves to the interrupt thread, until nothing is pending.
fn irq_thread<Q: HardwareQueue + 'static, P: ThreadPlatform>(
    maker: &mut ContextBuilder<'_, Q, P>,
    mut collector: CompletionReaper<Q, P>,
) -> io::Result<Waker> {
    let common = maker.shared.clone();
    let counts = ContextStatSources::from_reaper(&collector);
    maker.spawn_woken(ContextKind::IrqThread, counts, move || {
        loop {
            let members = common.source.acknowledge(common.all_members());
            collector.reap(&common, P::now(), members);
            if !common.source.needs_reraise() {
                return;
            }
        }
    })
}

/// Starts staged requests.
fn queue_run<Q: HardwareQueue + 'static, P: ThreadPlatform>(
    maker: &mut ContextBuilder<'_, Q, P>,
    mut collector: CompletionReaper<Q, P>,
) -> io::Result<Waker> {
    let common = maker.shared.clone();
    let counts = ContextStatSources::from_reaper(&collector);
    maker.spawn_woken(ContextKind::QueueRun, counts, move || {
        let now = P::now();
        collector.run_members(&common, now, common.all_members(), RunScope::RUN);
        // Requests that a removed device rejects complete here.
        collector.deliver(&common, now);
    })
}

fn poll_thread<Q: HardwareQueue + 'static, P: ThreadPlatform>(
    maker: &mut ContextBuilder<'_, Q, P>,
    mut collector: CompletionReaper<Q, P>,
) -> io::Result<P::Thread> {
    let (common, theirs) = (maker.shared.clone(), maker.shared.clone());
    let counts = ContextStatSources::from_reaper(&collector);
    maker.spawn_timed(
        ContextKind::Poll,
        counts,
        move || theirs.poll_interval(),
        move || {
            let now = P::now();
            let members = common.source.acknowledge(common.all_members());
            collector.reap(&common, now, members);
            common.govern(now);
        },
    )
}

/// Number of periodic checks of the watch within the command timeout. The next two constants bound
/// the period.
const WATCH_CHECKS_PER_TIMEOUT: u64 = 4;
const WATCH_PERIOD_MAX: Nanos = Nanos::from_millis(500);
const WATCH_PERIOD_MIN: Nanos = Nanos::from_millis(1);

/// Returns the period of the watch.
pub(super) fn watch_period(timeouts: Timeouts) -> Nanos {
    Nanos(timeouts.command.min(timeouts.abort).0 / WATCH_CHECKS_PER_TIMEOUT)
        .clamp(WATCH_PERIOD_MIN, WATCH_PERIOD_MAX)
}

/// Handles command timeouts and advances resets. Any thread that runs a member's queues does this;
/// the watch does it if none runs. It acts when a member has work and no command has completed
/// between two checks, or when a deadline was scheduled.
fn watch<Q: HardwareQueue + 'static, P: ThreadPlatform>(
    maker: &mut ContextBuilder<'_, Q, P>,
    sweeper: &Arc<P::Lock<CompletionReaper<Q, P>>>,
) -> io::Result<P::Thread> {
    let (common, theirs, sweeper) = (maker.shared.clone(), maker.shared.clone(), sweeper.clone());
    let counts = ContextStatSources::from_reaper(&sweeper.lock());
    let mut ended = vec![u64::MAX; common.dispatch.len()];
    maker.spawn_timed(
        ContextKind::Watch,
        counts,
        move || Some(theirs.watch_interval()),
        move || {
            let now = P::now();
            let mut stalled = false;
            for (stats, before) in common.dispatch.iter().zip(&mut ended) {
                let busy = stats.in_flight.get() + stats.waiting.get() > 0;
                let count = stats.completed.get();
                stalled |= busy && std::mem::replace(before, count) == count;
            }
            if common.consume_watch_deadline(now) || stalled {
                sweeper.lock().reap(&common, now, common.all_members());
            }
        },
    )
}
