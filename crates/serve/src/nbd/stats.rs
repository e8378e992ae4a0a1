//! [`NbdStats`]: what an export did. The server's thread is the only writer, so a count is a load
//! and a store, never a locked instruction (rule R9); anyone may read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clock::Nanos;

use super::command::CommandAction;
use super::latency::{LatencyCounter, LatencyCounts};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the server was made, and two levels of now.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct NbdStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Count,)*
            pub(super) activity: Activity,
        }

        impl Counters {
            fn read(&self) -> NbdStats {
                NbdStats { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

stats! {
    /// Connections accepted.
    connections,
    /// Connections closed at once because there were too many.
    connections_refused,
    /// Connections open now.
    connections_open,
    /// Clients dropped: they broke the protocol, or took too long.
    clients_dropped,
    /// Clients that went without saying so (no `NBD_CMD_DISC`, no `NBD_OPT_ABORT`).
    clients_vanished,
    /// Reads that reached the device.
    reads,
    /// Writes that reached the device.
    writes,
    /// Flushes that reached the device.
    flushes,
    /// Trims that reached the device.
    trims,
    /// Write-zeroes requests that reached the device.
    write_zeroes,
    /// Block-status requests that reached the device.
    block_statuses,
    /// Bytes that successful reads returned.
    bytes_read,
    /// Bytes that successful writes brought.
    bytes_written,
    /// Bytes of successful trims.
    bytes_trimmed,
    /// Bytes of successful write-zeroes requests.
    bytes_zeroed,
    /// Requests refused before they reached the device: range, alignment, flags, read-only.
    errors_refused,
    /// Requests that the device failed.
    errors_device,
    /// Requests whose client was gone when they completed.
    replies_discarded,
    /// Times a client waited for payload memory.
    memory_waits,
    /// Bytes of payload memory in use now.
    memory_bytes,
}

/// How many requests were under way, and how long they took.
#[derive(Debug, Default)]
pub(super) struct Activity {
    in_flight: Count,
    /// When that changed last, and the time integral of it until then.
    changed: Count,
    depth_nanos: Count,
    reads: LatencyCounter,
    writes: LatencyCounter,
}

impl Activity {
    #[inline]
    fn change(&self, now: Nanos, by: u64) {
        let (in_flight, changed) = (self.in_flight.get(), self.changed.get());
        self.depth_nanos.add(in_flight.wrapping_mul(now.0.saturating_sub(changed)));
        self.changed.set(now.0.max(changed));
        self.in_flight.set(in_flight.wrapping_add(by));
    }

    /// A request came.
    #[inline]
    pub(super) fn begin(&self, now: Nanos) {
        self.change(now, 1);
    }

    /// The request that came at `since` has ended.
    #[inline]
    pub(super) fn end(&self, now: Nanos, action: CommandAction, since: Nanos) {
        self.change(now, u64::MAX);
        match action {
            CommandAction::Read => self.reads.record(now.since(since)),
            CommandAction::Write => self.writes.record(now.since(since)),
            _ => {}
        }
    }
}

/// How many requests were under way, and how long they took, since the server was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NbdActivity {
    /// Requests under way now.
    pub in_flight: u64,
    /// Requests under way, integrated over time: nanoseconds. Wraps around.
    pub depth_nanos: u64,
    /// How long reads took, from when they had come in to when their answer was ready to be sent.
    pub reads: LatencyCounts,
    /// How long writes took, likewise.
    pub writes: LatencyCounts,
}

/// One counter, written by one thread.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, n: u64) {
        self.set(self.0.load(Ordering::Relaxed).wrapping_add(n));
    }

    pub(super) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reads a running server's counts from any thread.
#[derive(Clone, Debug)]
pub struct NbdStatsReader {
    counters: Arc<Counters>,
}

impl NbdStatsReader {
    pub(super) fn new(counters: &Arc<Counters>) -> NbdStatsReader {
        NbdStatsReader { counters: counters.clone() }
    }

    /// A snapshot. Counts are read one by one: of two that move together, one may be ahead.
    pub fn snapshot(&self) -> NbdStats {
        self.counters.read()
    }

    /// What is under way at `now`, of the server's clock, and how long requests took. Read count by
    /// count as [`snapshot`](NbdStatsReader::snapshot) is.
    pub fn activity(&self, now: Nanos) -> NbdActivity {
        let activity = &self.counters.activity;
        let (in_flight, changed) = (activity.in_flight.get(), activity.changed.get());
        let open = in_flight.wrapping_mul(now.0.saturating_sub(changed));
        NbdActivity {
            in_flight,
            depth_nanos: activity.depth_nanos.get().wrapping_add(open),
            reads: activity.reads.read(),
            writes: activity.writes.read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_integrated_over_time() {
        let counters = Arc::<Counters>::default();
        let reader = NbdStatsReader::new(&counters);
        let activity = &counters.activity;
        activity.begin(Nanos(1_000));
        activity.begin(Nanos(1_500));
        assert_eq!(reader.activity(Nanos(2_000)).depth_nanos, 500 + 2 * 500);
        activity.end(Nanos(3_000), CommandAction::Write, Nanos(1_000));
        activity.end(Nanos(4_000), CommandAction::Flush, Nanos(1_500));
        let now = reader.activity(Nanos(9_000));
        assert_eq!((now.in_flight, now.depth_nanos), (0, 500 + 2 * 1_500 + 1_000));
        assert_eq!((now.reads.count(), now.writes.count()), (0, 1));
        assert!(now.writes.quantile(0.5).unwrap() >= Nanos(2_000));
    }
}
