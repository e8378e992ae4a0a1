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
//! Contexts are real threads with real wake-ups, because the paper removes the cost of scheduling
//! them. All are started when the set is opened; those that the strategy does not use sleep.
//!
//! Contexts that preempt others in a kernel run under `SCHED_FIFO` where that is permitted. The
//! handler has a higher priority than the soft interrupt and the interrupt thread, which precede
//! ordinary threads. The queue run, the poll thread and the watch are ordinary threads, as in
//! Linux.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use driver::{HardwareQueue, InterruptContext, InterruptOptions};
use event::Waker;
use time::Nanos;

use super::interrupt_line::InterruptSource;
use super::reaper::CompletionReaper;
use super::shared::{CompletionShared, Wakers};
use super::stats::{ContextCounters, ContextKind, ContextStats};
use super::timer::TimerContext;
use crate::queue::RunScope;
use crate::{SubmitterStats, Timeouts};

/// Placement of the contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The CPU to which all contexts are pinned; `None` does not pin them.
    pub cpu: Option<usize>,
    /// Whether the interrupt contexts run under `SCHED_FIFO`, if the process is permitted to.
    pub realtime: bool,
}

/// Priorities under `SCHED_FIFO`. Linux's interrupt threads have 50.
const HARD_IRQ_PRIORITY: u8 = 60;
const SOFT_IRQ_PRIORITY: u8 = 55;
const IRQ_THREAD_PRIORITY: u8 = 50;

/// Number of contexts that have endpoints of the block layers.
pub(super) const REAPER_COUNT: u16 = 5;

#[derive(Debug)]
enum ContextThread {
    Woken(InterruptContext),
    Timed(TimerContext),
}

/// The counters of a context, besides its run times.
#[derive(Debug, Default)]
struct ContextStatSources {
    counters: Arc<ContextCounters>,
    /// Counters of its endpoints.
    submitters: Vec<Arc<SubmitterStats>>,
}

impl ContextStatSources {
    fn from_reaper<Q: HardwareQueue>(collector: &CompletionReaper<Q>) -> ContextStatSources {
        let submitters = collector.queues().iter().map(|end| end.stats().clone()).collect();
        ContextStatSources { counters: collector.counters(), submitters }
    }
}

#[derive(Debug)]
struct Context {
    kind: ContextKind,
    thread: ContextThread,
    counts: ContextStatSources,
}

/// The running contexts; dropping this stops them.
#[derive(Debug)]
pub(super) struct Contexts {
    contexts: Vec<Context>,
}

/// The parameters with which contexts are created.
struct ContextBuilder<'a, Q: HardwareQueue> {
    shared: &'a Arc<CompletionShared<Q>>,
    placement: Placement,
    contexts: Vec<Context>,
}

impl<Q: HardwareQueue> ContextBuilder<'_, Q> {
    /// Starts a context that runs `upcall` when it is woken; `counts` are the counters of its
    /// reaper.
    fn spawn_woken(
        &mut self,
        kind: ContextKind,
        priority: Option<u8>,
        counts: ContextStatSources,
        upcall: impl FnMut() + Send + 'static,
    ) -> io::Result<Waker> {
        let priority = priority.filter(|_| self.placement.realtime);
        let options = InterruptOptions { cpu: self.placement.cpu, priority };
        let context = InterruptContext::start(options, upcall)?;
        let waker = context.waker();
        self.contexts.push(Context { kind, thread: ContextThread::Woken(context), counts });
        Ok(waker)
    }

    /// Starts a context that runs `work` on a timer.
    fn spawn_timed(
        &mut self,
        kind: ContextKind,
        counts: ContextStatSources,
        interval: impl Fn() -> Option<Nanos> + Send + 'static,
        work: impl FnMut() + Send + 'static,
    ) -> io::Result<std::thread::Thread> {
        let name = if kind == ContextKind::Poll { "poll" } else { "watch" };
        let context = TimerContext::start(name, self.placement.cpu, interval, work)?;
        let thread = context.thread().cloned();
        self.contexts.push(Context { kind, thread: ContextThread::Timed(context), counts });
        thread.ok_or_else(|| io::Error::other("a thread that ended at once"))
    }
}

impl Contexts {
    /// Starts all contexts. `sweeper` is the reaper of the watch, which a change of strategy also
    /// uses.
    ///
    /// # Errors
    /// A thread or an eventfd cannot be created, or a thread may not run on the CPU.
    pub(super) fn start<Q: HardwareQueue + 'static>(
        common: &Arc<CompletionShared<Q>>,
        collectors: [CompletionReaper<Q>; REAPER_COUNT as usize - 1],
        sweeper: &Arc<Mutex<CompletionReaper<Q>>>,
        placement: Placement,
    ) -> io::Result<Contexts> {
        let [hard, thread, run, poll] = collectors;
        let mut maker = ContextBuilder { shared: common, placement, contexts: Vec::new() };
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
            InterruptSource::PerQueue => lock(sweeper).connect(&line),
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
            match &context.thread {
                ContextThread::Woken(thread) => thread.reset_stats(),
                ContextThread::Timed(thread) => thread.reset_run_stats(),
            }
        }
    }
}

impl Context {
    fn stats(&self) -> ContextStats {
        let (realtime, (cpu, wall)) = match &self.thread {
            ContextThread::Woken(thread) => {
                let stats = thread.stats();
                (thread.is_realtime(), (stats.cpu, stats.wall))
            }
            ContextThread::Timed(thread) => (false, thread.runs()),
        };
        ContextStats {
            kind: self.kind,
            realtime,
            cpu,
            wall,
            found: self.counts.submitters.iter().map(|stats| stats.reaped_for_others.get()).sum(),
            issued: self.counts.submitters.iter().map(|stats| stats.issued_for_others.get()).sum(),
            finished: self.counts.counters.finished.get(),
            woken: self.counts.counters.woken.get(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hard_irq<Q: HardwareQueue + 'static>(
    maker: &mut ContextBuilder<'_, Q>,
    mut collector: CompletionReaper<Q>,
) -> io::Result<Waker> {
    let common = maker.shared.clone();
    let counts = ContextStatSources::from_reaper(&collector);
    maker.spawn_woken(ContextKind::HardIrq, Some(HARD_IRQ_PRIORITY), counts, move || {
        handle_irq(&common, &mut collector)
    })
}

/// Runs the hard interrupt handler once, for the members that are pending at its start. If more are
/// pending at its end, the handler raises itself again, as a controller's interrupt would.
fn handle_irq<Q: HardwareQueue>(common: &CompletionShared<Q>, collector: &mut CompletionReaper<Q>) {
    let behaviour = common.flags();
    let Some(wakers) = common.wakers.get() else { return };
    if behaviour.is_polling() {
        return;
    }
    if behaviour.is_threaded() {
        wakers.irq_thread.wake();
        return;
    }
    let now = common.clock.now();
    let members = common.source.acknowledge(common.all_members());
    collector.reap(common, now, members);
    common.govern(now);
    if common.source.needs_reraise() {
        wakers.hard.wake();
    }
}

fn soft_irq<Q: HardwareQueue + 'static>(maker: &mut ContextBuilder<'_, Q>) -> io::Result<Waker> {
    let common = maker.shared.clone();
    let counts = ContextStatSources::default();
    let tally = counts.counters.clone();
    let mut news = Vec::new();
    maker.spawn_woken(ContextKind::SoftIrq, Some(SOFT_IRQ_PRIORITY), counts, move || {
        std::mem::swap(&mut news, &mut *common.lock_soft_irq_notices());
        let delivered = common.post_process_all(common.clock.now(), &mut news);
        tally.add(delivered);
    })
}

/// Does the work that the handler leaves to the interrupt thread, until nothing is pending.
fn irq_thread<Q: HardwareQueue + 'static>(
    maker: &mut ContextBuilder<'_, Q>,
    mut collector: CompletionReaper<Q>,
) -> io::Result<Waker> {
    let common = maker.shared.clone();
    let counts = ContextStatSources::from_reaper(&collector);
    maker.spawn_woken(ContextKind::IrqThread, Some(IRQ_THREAD_PRIORITY), counts, move || {
        loop {
            let members = common.source.acknowledge(common.all_members());
            collector.reap(&common, common.clock.now(), members);
            if !common.source.needs_reraise() {
                return;
            }
        }
    })
}

/// Starts staged requests.
fn queue_run<Q: HardwareQueue + 'static>(
    maker: &mut ContextBuilder<'_, Q>,
    mut collector: CompletionReaper<Q>,
) -> io::Result<Waker> {
    let common = maker.shared.clone();
    let counts = ContextStatSources::from_reaper(&collector);
    maker.spawn_woken(ContextKind::QueueRun, None, counts, move || {
        let now = common.clock.now();
        collector.run_members(&common, now, common.all_members(), RunScope::RUN);
        // Requests that a removed device rejects complete here.
        collector.deliver(&common, now);
    })
}

fn poll_thread<Q: HardwareQueue + 'static>(
    maker: &mut ContextBuilder<'_, Q>,
    mut collector: CompletionReaper<Q>,
) -> io::Result<std::thread::Thread> {
    let (common, theirs) = (maker.shared.clone(), maker.shared.clone());
    let counts = ContextStatSources::from_reaper(&collector);
    maker.spawn_timed(
        ContextKind::Poll,
        counts,
        move || theirs.poll_interval(),
        move || {
            let now = common.clock.now();
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
fn watch<Q: HardwareQueue + 'static>(
    maker: &mut ContextBuilder<'_, Q>,
    sweeper: &Arc<Mutex<CompletionReaper<Q>>>,
) -> io::Result<std::thread::Thread> {
    let (common, theirs, sweeper) = (maker.shared.clone(), maker.shared.clone(), sweeper.clone());
    let counts = ContextStatSources::from_reaper(&lock(&sweeper));
    let mut ended = vec![u64::MAX; common.dispatch.len()];
    maker.spawn_timed(
        ContextKind::Watch,
        counts,
        move || Some(theirs.watch_interval()),
        move || {
            let now = common.clock.now();
            let mut stalled = false;
            for (stats, before) in common.dispatch.iter().zip(&mut ended) {
                let busy = stats.in_flight.get() + stats.waiting.get() > 0;
                let count = stats.completed.get();
                stalled |= busy && std::mem::replace(before, count) == count;
            }
            if common.consume_watch_deadline(now) || stalled {
                lock(&sweeper).reap(&common, now, common.all_members());
            }
        },
    )
}
