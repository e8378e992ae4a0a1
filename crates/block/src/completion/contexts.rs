//! [`Contexts`]: the threads that stand in for a kernel's contexts.
//!
//! | context | stands for | does |
//! |---|---|---|
//! | hard interrupt | the handler (HIOPS figure 2, *b* and *h*) | fetches; the rest as the strategy has it |
//! | soft interrupt | a bottom half (*d*) | post-processes, wakes |
//! | interrupt thread | a threaded interrupt (*i*) | fetches, post-processes, wakes |
//! | queue run | a background queue run (*f*) | issues what found no tag |
//! | poll thread | HIOPS section 3.3, poll based I/O | as the handler, by a timer |
//! | watch | the block layer's timeout timer | looks for commands that take too long |
//!
//! Real threads with real wake-ups, because what the paper removes is the cost of scheduling them.
//! All are started with the set-up; those that a strategy does not use sleep. What pre-empts in a
//! kernel pre-empts here, under `SCHED_FIFO` where that is permitted: the handler before the soft
//! interrupt and the interrupt thread, these before ordinary threads; the queue run, the poll thread
//! and the watch are ordinary threads, as Linux's are.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clock::{Nanos, Waker};
use driver::{HardwareQueue, InterruptContext, InterruptOptions};

use super::interrupt_line::InterruptSource;
use super::reaper::CompletionReaper;
use super::shared::{CompletionShared, Wakers};
use super::stats::{ContextCounters, ContextKind, ContextStats};
use super::timer::TimerContext;
use crate::queue::RunScope;
use crate::{SubmitterStats, Timeouts};

/// Where contexts run, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The CPU that all contexts are pinned to; anywhere if `None`.
    pub cpu: Option<usize>,
    /// Whether the interrupt's contexts run under `SCHED_FIFO`, where the process may.
    pub realtime: bool,
}

/// Priorities under `SCHED_FIFO`: Linux's interrupt threads have 50.
const HARD_IRQ_PRIORITY: u8 = 60;
const SOFT_IRQ_PRIORITY: u8 = 55;
const IRQ_THREAD_PRIORITY: u8 = 50;

/// Contexts that have ends of the block layers.
pub(super) const REAPER_COUNT: u16 = 5;

#[derive(Debug)]
enum ContextThread {
    Woken(InterruptContext),
    Timed(TimerContext),
}

/// What a context counts, besides how long it runs.
#[derive(Debug, Default)]
struct ContextStatSources {
    counters: Arc<ContextCounters>,
    /// Of its ends.
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

/// The running contexts; dropping them stops them.
#[derive(Debug)]
pub(super) struct Contexts {
    contexts: Vec<Context>,
}

/// What contexts are made with.
struct ContextBuilder<'a, Q: HardwareQueue> {
    shared: &'a Arc<CompletionShared<Q>>,
    placement: Placement,
    contexts: Vec<Context>,
}

impl<Q: HardwareQueue> ContextBuilder<'_, Q> {
    /// Starts a context that runs `upcall` when it is woken; `counts` are those of its collector.
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

    /// Starts a context that does `work` by a timer.
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
    /// Starts all contexts. `sweeper` is the watch's collector, which whoever changes the strategy
    /// uses too.
    ///
    /// # Errors
    /// No thread, no eventfd, or a CPU that a thread may not run on.
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
        // Made once.
        let _ = common.wakers.set(Wakers { hard, soft, irq_thread, queue_run, poll, watch });
        match &common.source {
            InterruptSource::SharedLine(it) => it.connect(line),
            InterruptSource::PerQueue => lock(sweeper).connect(&line),
        }
        let mut contexts = maker.contexts;
        contexts.rotate_right(1);
        Ok(Contexts { contexts })
    }

    /// What each has done.
    pub(super) fn stats(&self) -> Vec<ContextStats> {
        self.contexts.iter().map(Context::stats).collect()
    }

    /// Forgets how long runs were.
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

/// One run of the hard interrupt's handler: what is pending when it begins. If more is pending when
/// it ends, it is raised again, as a controller's interrupt would be.
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

/// Does what the handler leaves to it, until nothing is pending.
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

/// Starts what is staged.
fn queue_run<Q: HardwareQueue + 'static>(
    maker: &mut ContextBuilder<'_, Q>,
    mut collector: CompletionReaper<Q>,
) -> io::Result<Waker> {
    let common = maker.shared.clone();
    let counts = ContextStatSources::from_reaper(&collector);
    maker.spawn_woken(ContextKind::QueueRun, None, counts, move || {
        let now = common.clock.now();
        collector.run_members(&common, now, common.all_members(), RunScope::RUN);
        // Requests that a device which is gone does not take.
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

/// The watch looks this often within the time that a command has, and at most and least so often.
const WATCH_CHECKS_PER_TIMEOUT: u64 = 4;
const WATCH_PERIOD_MAX: Nanos = Nanos::from_millis(500);
const WATCH_PERIOD_MIN: Nanos = Nanos::from_millis(1);

/// How often the watch looks by itself.
pub(super) fn watch_period(timeouts: Timeouts) -> Nanos {
    Nanos(timeouts.command.min(timeouts.abort).0 / WATCH_CHECKS_PER_TIMEOUT)
        .clamp(WATCH_PERIOD_MIN, WATCH_PERIOD_MAX)
}

/// Whoever comes by looks for commands that take too long, and moves a reset on. The watch does it
/// where nobody comes: when a member has work and nothing has ended between two looks, or when it was
/// reminded.
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
