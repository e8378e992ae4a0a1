//! Counters of threads and contexts.

use driver::IrqRunHistogram;
use time::Nanos;

use super::hybrid::HybridStats;
use super::shared::DeliveryCounts;
use crate::Counter;

/// Counters of one thread's requests. The thread writes them, or the holder of its slot's lock; any
/// thread may read them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct WaiterStats {
    /// Requests started.
    pub started: Counter,
    /// Requests completed.
    pub requests: Counter,
    /// Requests that their thread abandoned.
    pub abandoned: Counter,
    /// Requests that completed with an error.
    pub failed: Counter,
    /// Bytes read or written.
    pub bytes: Counter,
    /// Sum of the latencies, from start to completion.
    latency: Counter,
    longest: Counter,
    /// Requests that another thread or a context post-processed.
    pub finished_by_others: Counter,
    /// Number of times that the thread went to sleep.
    pub sleeps: Counter,
    /// Other threads that this thread woke.
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

    /// Returns the number of requests started and neither completed nor abandoned.
    pub fn in_flight(&self) -> u32 {
        let over = self.requests.get() + self.abandoned.get();
        self.started.get().saturating_sub(over) as u32
    }

    /// Returns the sum of the latencies, from start to completion.
    pub fn latency(&self) -> Nanos {
        Nanos(self.latency.get())
    }

    /// Returns the largest latency, from start to completion.
    pub fn longest(&self) -> Nanos {
        Nanos(self.longest.get())
    }
}

/// Sums of the counters of all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaiterTotals {
    /// Requests completed.
    pub requests: u64,
    /// Requests that completed with an error.
    pub failed: u64,
    /// Bytes read or written.
    pub bytes: u64,
    /// Sum of the latencies, from start to completion.
    pub latency: Nanos,
    /// Largest latency, from start to completion.
    pub longest: Nanos,
    /// Requests that another thread or a context post-processed.
    pub finished_by_others: u64,
    /// Number of times that a thread went to sleep.
    pub sleeps: u64,
    /// Threads woken by other threads.
    pub woken: u64,
    /// Completions of other threads' requests that threads found, before a context did.
    pub stolen: u64,
    /// Requests of other threads that threads issued.
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

/// The kind of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContextKind {
    /// The hard interrupt handler.
    HardIrq,
    /// The soft interrupt.
    SoftIrq,
    /// The interrupt thread.
    IrqThread,
    /// The background queue run.
    QueueRun,
    /// The poll thread.
    Poll,
    /// The watch, which handles command timeouts.
    Watch,
}

/// Counters of a context besides its run times.
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

/// Counters of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextStats {
    /// Kind of the context.
    pub kind: ContextKind,
    /// Whether it runs under `SCHED_FIFO`.
    pub realtime: bool,
    /// Run times by its CPU clock.
    pub cpu: IrqRunHistogram,
    /// Run times by wall clock.
    pub wall: IrqRunHistogram,
    /// Completions found.
    pub found: u64,
    /// Requests issued.
    pub issued: u64,
    /// Requests post-processed.
    pub finished: u64,
    /// Threads woken.
    pub woken: u64,
}

impl ContextStats {
    /// Returns the number of completions found per run.
    pub fn found_per_run(&self) -> f64 {
        self.found as f64 / self.wall.count.max(1) as f64
    }
}

/// Counters of threads and contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletionStats {
    /// Sums over the threads.
    pub waiters: WaiterTotals,
    /// Counters of every context.
    pub contexts: Vec<ContextStats>,
    /// Counters of hybrid notification, if the strategy is hybrid.
    pub hybrid: Option<HybridStats>,
}

impl CompletionStats {
    /// Returns the counters of one context.
    pub fn context(&self, kind: ContextKind) -> Option<&ContextStats> {
        self.contexts.iter().find(|context| context.kind == kind)
    }
}
