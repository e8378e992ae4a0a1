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

use super::collector::Collector;
use super::common::{Common, Wakers};
use super::line::Source;
use super::stats::{ContextKind, ContextStats, Tally};
use super::timer::TimerContext;
use crate::queue::Scope;
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
const HARD: u8 = 60;
const SOFT: u8 = 55;
const THREAD: u8 = 50;

/// Contexts that have ends of the block layers.
pub(super) const ENDS: u16 = 5;

#[derive(Debug)]
enum Thread {
    Woken(InterruptContext),
    Timed(TimerContext),
}

/// What a context counts, besides how long it runs.
#[derive(Debug, Default)]
struct Counts {
    tally: Arc<Tally>,
    /// Of its ends.
    ends: Vec<Arc<SubmitterStats>>,
}

impl Counts {
    fn of<Q: HardwareQueue>(collector: &Collector<Q>) -> Counts {
        let ends = collector.ends().iter().map(|end| end.stats().clone()).collect();
        Counts { tally: collector.tally(), ends }
    }
}

#[derive(Debug)]
struct Context {
    kind: ContextKind,
    thread: Thread,
    counts: Counts,
}

/// The running contexts; dropping them stops them.
#[derive(Debug)]
pub(super) struct Contexts {
    contexts: Vec<Context>,
}

/// What contexts are made with.
struct Maker<'a, Q: HardwareQueue> {
    common: &'a Arc<Common<Q>>,
    placement: Placement,
    made: Vec<Context>,
}

impl<Q: HardwareQueue> Maker<'_, Q> {
    /// Starts a context that runs `upcall` when it is woken; `counts` are those of its collector.
    fn woken(
        &mut self,
        kind: ContextKind,
        priority: Option<u8>,
        counts: Counts,
        upcall: impl FnMut() + Send + 'static,
    ) -> io::Result<Waker> {
        let priority = priority.filter(|_| self.placement.realtime);
        let options = InterruptOptions { cpu: self.placement.cpu, priority };
        let context = InterruptContext::start(options, upcall)?;
        let waker = context.waker();
        self.made.push(Context { kind, thread: Thread::Woken(context), counts });
        Ok(waker)
    }

    /// Starts a context that does `work` by a timer.
    fn timed(
        &mut self,
        kind: ContextKind,
        counts: Counts,
        interval: impl Fn() -> Option<Nanos> + Send + 'static,
        work: impl FnMut() + Send + 'static,
    ) -> io::Result<std::thread::Thread> {
        let name = if kind == ContextKind::Poll { "poll" } else { "watch" };
        let context = TimerContext::start(name, self.placement.cpu, interval, work)?;
        let thread = context.thread().cloned();
        self.made.push(Context { kind, thread: Thread::Timed(context), counts });
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
        common: &Arc<Common<Q>>,
        collectors: [Collector<Q>; ENDS as usize - 1],
        sweeper: &Arc<Mutex<Collector<Q>>>,
        placement: Placement,
    ) -> io::Result<Contexts> {
        let [hard, thread, run, poll] = collectors;
        let mut maker = Maker { common, placement, made: Vec::new() };
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
            Source::Line(it) => it.connect(line),
            Source::Queues => lock(sweeper).connect(&line),
        }
        let mut contexts = maker.made;
        contexts.rotate_right(1);
        Ok(Contexts { contexts })
    }

    /// What each has done.
    pub(super) fn stats(&self) -> Vec<ContextStats> {
        self.contexts.iter().map(Context::stats).collect()
    }

    /// Forgets how long runs were.
    pub(super) fn reset_runs(&self) {
        for context in &self.contexts {
            match &context.thread {
                Thread::Woken(thread) => thread.reset_stats(),
                Thread::Timed(thread) => thread.reset_runs(),
            }
        }
    }
}

impl Context {
    fn stats(&self) -> ContextStats {
        let (realtime, (cpu, wall)) = match &self.thread {
            Thread::Woken(thread) => {
                let stats = thread.stats();
                (thread.is_realtime(), (stats.cpu, stats.wall))
            }
            Thread::Timed(thread) => (false, thread.runs()),
        };
        ContextStats {
            kind: self.kind,
            realtime,
            cpu,
            wall,
            found: self.counts.ends.iter().map(|stats| stats.found.get()).sum(),
            issued: self.counts.ends.iter().map(|stats| stats.carried.get()).sum(),
            finished: self.counts.tally.finished.get(),
            woken: self.counts.tally.woken.get(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hard_irq<Q: HardwareQueue + 'static>(
    maker: &mut Maker<'_, Q>,
    mut collector: Collector<Q>,
) -> io::Result<Waker> {
    let common = maker.common.clone();
    let counts = Counts::of(&collector);
    maker.woken(ContextKind::HardIrq, Some(HARD), counts, move || handle(&common, &mut collector))
}

/// One run of the hard interrupt's handler: what is pending when it begins. If more is pending when
/// it ends, it is raised again, as a controller's interrupt would be.
fn handle<Q: HardwareQueue>(common: &Common<Q>, collector: &mut Collector<Q>) {
    let behaviour = common.behaviour();
    let Some(wakers) = common.wakers.get() else { return };
    if behaviour.polling() {
        return;
    }
    if behaviour.threaded() {
        wakers.irq_thread.wake();
        return;
    }
    let now = common.clock.now();
    let members = common.source.take(common.all());
    collector.collect(common, now, members);
    common.govern(now);
    if common.source.is_raised_again() {
        wakers.hard.wake();
    }
}

fn soft_irq<Q: HardwareQueue + 'static>(maker: &mut Maker<'_, Q>) -> io::Result<Waker> {
    let common = maker.common.clone();
    let counts = Counts::default();
    let tally = counts.tally.clone();
    let mut news = Vec::new();
    maker.woken(ContextKind::SoftIrq, Some(SOFT), counts, move || {
        std::mem::swap(&mut news, &mut *common.mail());
        let delivered = common.finish_all(common.clock.now(), &mut news);
        tally.add(delivered);
    })
}

/// Does what the handler leaves to it, until nothing is pending.
fn irq_thread<Q: HardwareQueue + 'static>(
    maker: &mut Maker<'_, Q>,
    mut collector: Collector<Q>,
) -> io::Result<Waker> {
    let common = maker.common.clone();
    let counts = Counts::of(&collector);
    maker.woken(ContextKind::IrqThread, Some(THREAD), counts, move || {
        loop {
            let members = common.source.take(common.all());
            collector.collect(&common, common.clock.now(), members);
            if !common.source.is_raised_again() {
                return;
            }
        }
    })
}

/// Starts what is staged.
fn queue_run<Q: HardwareQueue + 'static>(
    maker: &mut Maker<'_, Q>,
    mut collector: Collector<Q>,
) -> io::Result<Waker> {
    let common = maker.common.clone();
    let counts = Counts::of(&collector);
    maker.woken(ContextKind::QueueRun, None, counts, move || {
        let now = common.clock.now();
        collector.work(&common, now, common.all(), Scope::RUN);
        // Requests that a device which is gone does not take.
        collector.deliver(&common, now);
    })
}

fn poll_thread<Q: HardwareQueue + 'static>(
    maker: &mut Maker<'_, Q>,
    mut collector: Collector<Q>,
) -> io::Result<std::thread::Thread> {
    let (common, theirs) = (maker.common.clone(), maker.common.clone());
    let counts = Counts::of(&collector);
    maker.timed(
        ContextKind::Poll,
        counts,
        move || theirs.poll_interval(),
        move || {
            let now = common.clock.now();
            let members = common.source.take(common.all());
            collector.collect(&common, now, members);
            common.govern(now);
        },
    )
}

/// The watch looks this often within the time that a command has, and at most and least so often.
const LOOKS: u64 = 4;
const SELDOM: Nanos = Nanos::from_millis(500);
const OFTEN: Nanos = Nanos::from_millis(1);

/// How often the watch looks by itself.
pub(super) fn watch_period(timeouts: Timeouts) -> Nanos {
    Nanos(timeouts.command.min(timeouts.abort).0 / LOOKS).clamp(OFTEN, SELDOM)
}

/// Whoever comes by looks for commands that take too long, and moves a reset on. The watch does it
/// where nobody comes: when a member has work and nothing has ended between two looks, or when it was
/// reminded.
fn watch<Q: HardwareQueue + 'static>(
    maker: &mut Maker<'_, Q>,
    sweeper: &Arc<Mutex<Collector<Q>>>,
) -> io::Result<std::thread::Thread> {
    let (common, theirs, sweeper) = (maker.common.clone(), maker.common.clone(), sweeper.clone());
    let counts = Counts::of(&lock(&sweeper));
    let mut ended = vec![u64::MAX; common.dispatch.len()];
    maker.timed(
        ContextKind::Watch,
        counts,
        move || Some(theirs.watch_interval()),
        move || {
            let now = common.clock.now();
            let mut stalled = false;
            for (stats, before) in common.dispatch.iter().zip(&mut ended) {
                let busy = stats.under_way.get() + stats.waiting.get() > 0;
                let count = stats.ended.get();
                stalled |= busy && std::mem::replace(before, count) == count;
            }
            if common.take_reminder(now) || stalled {
                lock(&sweeper).collect(&common, now, common.all());
            }
        },
    )
}
