//! Counters of each submitter, staging queue and dispatch queue; a superset of `/sys/block/*/stat`.
//!
//! Concurrency: every counter has one writer at a time, its owner or the holder of its owner's
//! lock. Counting is therefore a load and a store, and any thread may read at any time. A reader
//! sums the totals of a device, so that cores share no counter ([SYSTOR13 §3.2.3], [SYSTOR13
//! §5.2]).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use time::Nanos;

use crate::Op;

/// A counter with one writer at a time and any number of readers.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `more`. Only the counter's writer may call this.
    #[inline]
    pub(crate) fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Returns the count.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// Number of buckets of a depth histogram. Bucket 0 counts depth 1; bucket `i` counts depths
/// `2^(i-1)+1` to `2^i`.
pub const DEPTH_BUCKETS: usize = 17;

/// A histogram of the depth of a queue, recorded whenever a request is added.
#[derive(Debug, Default)]
pub struct DepthHistogram([Counter; DEPTH_BUCKETS]);

impl DepthHistogram {
    /// Counts a depth of 1 or more.
    #[inline]
    pub(crate) fn count(&self, depth: u64) {
        let bucket = (u64::BITS - depth.saturating_sub(1).leading_zeros()) as usize;
        self.0[bucket.min(DEPTH_BUCKETS - 1)].add(1);
    }

    /// Returns the count of each bucket.
    pub fn get(&self) -> [u64; DEPTH_BUCKETS] {
        std::array::from_fn(|i| self.0[i].get())
    }
}

/// Counters of one kind of request.
#[derive(Debug, Default)]
struct OpCounters {
    ios: Counter,
    merges: Counter,
    sectors: Counter,
    nanos: Counter,
}

/// Counters of one submitter.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct SubmitterStats {
    kinds: [OpCounters; 4],
    submitted: Counter,
    completed: Counter,
    /// Time at which the submitter last became busy, plus one; 0 while it is idle.
    busy_since: Counter,
    busy_nanos: Counter,
    /// Number of in-flight requests at each submission, including the submitted one.
    pub depth: DepthHistogram,
    /// Requests refused because the request table was full (blktrace's S).
    pub sleeps: Counter,
    /// Requests that were split.
    pub splits: Counter,
    /// Requests completed without the device: out of range, too long, or a flush without a volatile
    /// cache.
    pub completed_early: Counter,
    /// Completions of requests that were not in flight: device faults, dropped.
    pub spurious: Counter,
    /// Completions of other submitters' requests that this submitter found.
    pub reaped_for_others: Counter,
    /// Requests of other submitters that this submitter started.
    pub issued_for_others: Counter,
}

/// Returns the index of the request kind, in the order of `/sys/block/*/stat`.
#[inline]
fn op_kind(op: Op) -> usize {
    match op {
        Op::Read | Op::Extents => 0,
        Op::Write => 1,
        Op::Discard | Op::WriteZeroes => 2,
        Op::Flush => 3,
    }
}

impl SubmitterStats {
    #[inline]
    pub(crate) fn submit(&self, now: Nanos) {
        let in_flight = self.in_flight();
        if in_flight == 0 {
            self.busy_since.set(now.0 + 1);
        }
        self.submitted.add(1);
        self.depth.count(in_flight + 1);
    }

    #[inline]
    pub(crate) fn merge(&self, op: Op) {
        self.kinds[op_kind(op)].merges.add(1);
    }

    /// Counts a completed request. `counts` is false for a request that was merged into another
    /// one, which counts for both.
    #[inline]
    pub(crate) fn complete(&self, op: Op, counts: bool, sectors: u32, since: Nanos, now: Nanos) {
        let kind = &self.kinds[op_kind(op)];
        kind.ios.add(counts.into());
        kind.sectors.add(sectors.into());
        kind.nanos.add(now.since(since).0);
        self.completed.add(1);
        if self.in_flight() == 0 {
            self.busy_nanos.add((now.0 + 1).saturating_sub(self.busy_since.get()));
            self.busy_since.set(0);
        }
    }

    /// Returns the number of requests that are submitted and not completed.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.submitted.get().wrapping_sub(self.completed.get())
    }

    /// Returns the counters as `/sys/block/*/stat` reports them, at `now`.
    pub fn stat(&self, now: Nanos, sector_bytes: u32) -> DiskStat {
        let busy_since = self.busy_since.get();
        let open = if busy_since == 0 { 0 } else { (now.0 + 1).saturating_sub(busy_since) };
        let kinds = std::array::from_fn(|i| OpStats {
            ios: self.kinds[i].ios.get(),
            merges: self.kinds[i].merges.get(),
            sectors: self.kinds[i].sectors.get() * u64::from(sector_bytes) / 512,
            ticks: Nanos(self.kinds[i].nanos.get()),
        });
        DiskStat {
            kinds,
            in_flight: self.in_flight(),
            io_ticks: Nanos(self.busy_nanos.get() + open),
        }
    }
}

/// Counters of one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpStats {
    /// Requests completed. A split request counts once; a request that was merged into another does
    /// not count.
    pub ios: u64,
    /// Requests merged into others.
    pub merges: u64,
    /// Sectors of 512 bytes, independent of the device's sector size.
    pub sectors: u64,
    /// Time from submission to completion, summed over the requests.
    pub ticks: Nanos,
}

/// The contents of `/sys/block/*/stat` (kernel documentation `block/stat`). Its
/// [`Display`](fmt::Display) is that file's line: 17 numbers, times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStat {
    /// Reads, writes, discards, flushes.
    kinds: [OpStats; 4],
    /// In-flight requests.
    pub in_flight: u64,
    /// Time during which requests were in flight. A sum over submitters has the longest of their
    /// times.
    pub io_ticks: Nanos,
}

impl DiskStat {
    /// Returns the counters of reads and extent queries.
    pub fn reads(&self) -> OpStats {
        self.kinds[0]
    }

    /// Returns the counters of writes.
    pub fn writes(&self) -> OpStats {
        self.kinds[1]
    }

    /// Returns the counters of discards and Write Zeroes.
    pub fn discards(&self) -> OpStats {
        self.kinds[2]
    }

    /// Returns the counters of flushes.
    pub fn flushes(&self) -> OpStats {
        self.kinds[3]
    }

    /// Returns the time from submission to completion, summed over all requests except flushes.
    pub fn time_in_queue(&self) -> Nanos {
        Nanos(self.kinds[..3].iter().map(|k| k.ticks.0).sum())
    }

    /// Returns the sum with another submitter's counters.
    #[must_use]
    pub fn plus(&self, other: &DiskStat) -> DiskStat {
        let kinds = std::array::from_fn(|i| OpStats {
            ios: self.kinds[i].ios + other.kinds[i].ios,
            merges: self.kinds[i].merges + other.kinds[i].merges,
            sectors: self.kinds[i].sectors + other.kinds[i].sectors,
            ticks: self.kinds[i].ticks + other.kinds[i].ticks,
        });
        DiskStat {
            kinds,
            in_flight: self.in_flight + other.in_flight,
            io_ticks: self.io_ticks.max(other.io_ticks),
        }
    }
}

impl fmt::Display for DiskStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |t: Nanos| t.0 / 1_000_000;
        let [reads, writes, discards, flushes] = &self.kinds;
        for kind in [reads, writes] {
            write!(f, "{} {} {} {} ", kind.ios, kind.merges, kind.sectors, ms(kind.ticks))?;
        }
        write!(f, "{} {} {} ", self.in_flight, ms(self.io_ticks), ms(self.time_in_queue()))?;
        let d = discards;
        write!(f, "{} {} {} {} ", d.ios, d.merges, d.sectors, ms(d.ticks))?;
        write!(f, "{} {}", flushes.ios, ms(flushes.ticks))
    }
}

/// Counters of a staging queue.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct StagingStats {
    /// Requests inserted.
    pub inserted: Counter,
    /// Requests that bypassed the queue, because it was empty and a tag was free.
    pub bypassed: Counter,
    /// Requests merged into one in the queue.
    pub merged: Counter,
    /// Maximum number of requests in the queue.
    pub peak: Counter,
}

/// Counters of a dispatch queue.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct DispatchStats {
    /// Commands issued to the hardware.
    pub issued: Counter,
    /// Commands completed.
    pub completed: Counter,
    /// Batches in which commands were issued; a batch has one or more commands.
    pub issue_batches: Counter,
    /// Requests that found no free tag.
    pub no_tag: Counter,
    /// Commands that the device rejected as busy.
    pub busy: Counter,
    /// Commands that were requeued to be issued again.
    pub requeued: Counter,
    /// Commands that timed out.
    pub timeouts: Counter,
    /// Resets of the hardware queue.
    pub resets: Counter,
    /// Completions whose tag has no in-flight command: device faults, dropped.
    pub spurious: Counter,
    /// Completions steered to another core.
    pub steered: Counter,
    /// Completions whose submitter is gone.
    pub orphans: Counter,
    /// Flushes that joined another flush command.
    pub flushes_joined: Counter,
    /// In-flight commands at the last run.
    pub in_flight: Counter,
    /// Whether requests were waiting for a tag at the last run: 1 if so, else 0.
    pub waiting: Counter,
    /// Number of in-flight commands at each issue, including the issued one.
    pub depth: DepthHistogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_the_kernels_seventeen_fields() {
        let stats = SubmitterStats::default();
        let ms = Nanos::from_millis;
        stats.submit(ms(0));
        stats.submit(ms(1));
        stats.submit(ms(2));
        stats.merge(Op::Write);
        stats.complete(Op::Read, true, 8, ms(0), ms(4));
        stats.complete(Op::Write, true, 1, ms(1), ms(6));
        let stat = stats.stat(ms(10), 4096);
        assert_eq!(stat.to_string(), "1 0 64 4 1 1 8 5 1 10 9 0 0 0 0 0 0");
        assert_eq!(stat.to_string().split(' ').count(), 17);
        stats.complete(Op::Flush, true, 0, ms(2), ms(12));
        stats.submit(ms(20));
        stats.complete(Op::Discard, true, 2, ms(20), ms(21));
        let stat = stats.stat(ms(30), 512);
        assert_eq!((stat.in_flight, stat.io_ticks), (0, ms(13)));
        assert_eq!(stat.discards(), OpStats { ios: 1, merges: 0, sectors: 2, ticks: ms(1) });
        assert_eq!(stat.plus(&stat).reads().ios, 2);
    }

    #[test]
    fn depths_fall_into_powers_of_two() {
        let depths = DepthHistogram::default();
        for depth in [1, 2, 3, 4, 5, 32, 33, 1 << 40] {
            depths.count(depth);
        }
        let counts = depths.get();
        assert_eq!(&counts[..7], [1, 1, 2, 1, 0, 1, 1]);
        assert_eq!(counts[DEPTH_BUCKETS - 1], 1);
    }
}
