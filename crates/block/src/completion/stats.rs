//! What threads and contexts have done.

use clock::Nanos;
use driver::IrqRunHistogram;

use super::hybrid::HybridStats;
use super::shared::DeliveryCounts;
use crate::Counter;

/// What one thread's requests have come to. Written under its desk's lock, or by the thread; anybody
/// may read it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct WaiterStats {
    /// Requests started.
    pub started: Counter,
    /// Requests finished.
    pub requests: Counter,
    /// Requests that their thread gave up.
    pub abandoned: Counter,
    /// Of them without success.
    pub failed: Counter,
    /// Bytes read or written.
    pub bytes: Counter,
    /// From start to finish, summed.
    latency: Counter,
    longest: Counter,
    /// Of the requests, those that somebody else post-processed.
    pub finished_by_others: Counter,
    /// Times that the thread went to sleep.
    pub sleeps: Counter,
    /// Other threads that it woke.
    pub woken: Counter,
}

impl WaiterStats {
    #[inline]
    pub(super) fn complete(&self, bytes: u64, latency: Nanos, success: bool) {
        self.requests.add(1);
        self.failed.add((!success).into());
        self.bytes.add(bytes);
        self.latency.add(latency.0);
        if latency.0 > self.longest.get() {
            self.longest.set(latency.0);
        }
    }

    /// Requests started, and neither finished nor given up.
    pub fn in_flight(&self) -> u32 {
        let over = self.requests.get() + self.abandoned.get();
        self.started.get().saturating_sub(over) as u32
    }

    /// From start to finish, summed over the requests.
    pub fn latency(&self) -> Nanos {
        Nanos(self.latency.get())
    }

    /// The longest from start to finish.
    pub fn longest(&self) -> Nanos {
        Nanos(self.longest.get())
    }
}

/// What all threads have done together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaiterTotals {
    /// Requests finished.
    pub requests: u64,
    /// Of them without success.
    pub failed: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// From start to finish, summed.
    pub latency: Nanos,
    /// The longest from start to finish.
    pub longest: Nanos,
    /// Requests that somebody else post-processed.
    pub finished_by_others: u64,
    /// Times that a thread went to sleep.
    pub sleeps: u64,
    /// Threads woken by other threads.
    pub woken: u64,
    /// Completions of others' requests that threads found: stolen from the contexts.
    pub stolen: u64,
    /// Others' requests that threads gave to the hardware.
    pub issued_for_others: u64,
}

impl WaiterTotals {
    pub(super) fn add(&mut self, stats: &WaiterStats) {
        self.requests += stats.requests.get();
        self.failed += stats.failed.get();
        self.bytes += stats.bytes.get();
        self.latency += stats.latency();
        self.longest = self.longest.max(stats.longest());
        self.finished_by_others += stats.finished_by_others.get();
        self.sleeps += stats.sleeps.get();
        self.woken += stats.woken.get();
    }
}

/// Which context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContextKind {
    /// The hard interrupt's handler.
    HardIrq,
    /// The soft interrupt.
    SoftIrq,
    /// The interrupt thread.
    IrqThread,
    /// The background run of the queue.
    QueueRun,
    /// The poll thread.
    Poll,
    /// The watch for commands that take too long.
    Watch,
}

/// What a context has done besides its runs.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct ContextCounters {
    pub(super) finished: Counter,
    pub(super) woken: Counter,
}

impl ContextCounters {
    #[inline]
    pub(super) fn add(&self, delivered: DeliveryCounts) {
        self.finished.add(delivered.finished);
        self.woken.add(delivered.woken);
    }
}

/// What a context has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextStats {
    /// Which.
    pub kind: ContextKind,
    /// Whether it runs under `SCHED_FIFO`.
    pub realtime: bool,
    /// Its runs, by its own CPU clock.
    pub cpu: IrqRunHistogram,
    /// Its runs, by wall clock.
    pub wall: IrqRunHistogram,
    /// Completions that it found.
    pub found: u64,
    /// Requests that it gave to the hardware.
    pub issued: u64,
    /// Requests that it post-processed.
    pub finished: u64,
    /// Threads that it woke.
    pub woken: u64,
}

impl ContextStats {
    /// Completions found per run.
    pub fn found_per_run(&self) -> f64 {
        self.found as f64 / self.wall.count.max(1) as f64
    }
}

/// What threads and contexts have done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionStats {
    /// The threads together.
    pub waiters: WaiterTotals,
    /// Every context.
    pub contexts: Vec<ContextStats>,
    /// Of a hybrid strategy.
    pub hybrid: Option<HybridStats>,
}

impl CompletionStats {
    /// What one context has done.
    pub fn context(&self, kind: ContextKind) -> Option<&ContextStats> {
        self.contexts.iter().find(|context| context.kind == kind)
    }
}
