//! [`NbdStats`]: counters of an export. Each server has its own and is their only writer, so an update is a load
//! and a store, without a locked instruction (ARCHITECTURE.md, R9). Any thread may read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use time::Nanos;

use crate::latency::{LatencyCounter, LatencyCounts};
use crate::protocol::command::CommandAction;

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the server was created, and two current levels.
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

        impl NbdStats {
            /// Returns the sums with the counters of another server.
            fn plus(self, other: NbdStats) -> NbdStats {
                NbdStats { $($name: self.$name.wrapping_add(other.$name),)* }
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
    /// Clients dropped for a protocol violation or a timeout.
    clients_dropped,
    /// Clients that disconnected without `NBD_CMD_DISC` or `NBD_OPT_ABORT`.
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
    /// Bytes that successful writes wrote.
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
    /// Number of times that a client waited for payload memory.
    memory_waits,
    /// Bytes of payload memory in use now.
    memory_bytes,
}

/// Queue depth and latencies.
#[derive(Debug, Default)]
pub(super) struct Activity {
    in_flight: Count,
    /// Time of the last change, and the time integral of the depth until then.
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

    /// Records the arrival of a request.
    #[inline]
    pub(super) fn begin(&self, now: Nanos) {
        self.change(now, 1);
    }

    /// Records the completion of the request that arrived at `since`.
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

/// Queue depth and latencies since the server was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NbdActivity {
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests in flight, integrated over time, in nanoseconds. Wraps around.
    pub depth_nanos: u64,
    /// Latency of reads, from complete arrival until the reply is ready to be sent.
    pub reads: LatencyCounts,
    /// Latency of writes, measured as `reads`.
    pub writes: LatencyCounts,
}

/// A counter with a single writer.
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

/// Reads the counters of a running export from any thread.
#[derive(Clone, Debug)]
pub struct NbdStatsReader {
    /// Counters of each server.
    servers: Arc<[Arc<Counters>]>,
}

impl NbdStatsReader {
    pub(super) fn new(servers: &[Arc<Counters>]) -> NbdStatsReader {
        NbdStatsReader { servers: servers.into() }
    }

    /// Returns a snapshot, summed over the servers. Counters are read one by one, so related
    /// counters may differ slightly.
    pub fn snapshot(&self) -> NbdStats {
        self.servers.iter().map(|one| one.read()).fold(NbdStats::default(), NbdStats::plus)
    }

    /// Returns a snapshot of each server, in the order of the devices.
    pub fn snapshots(&self) -> Vec<NbdStats> {
        self.servers.iter().map(|one| one.read()).collect()
    }

    /// Returns queue depth and latencies at `now`, a time of the servers' clock, summed over the
    /// servers. Counters are read one by one, as for [`snapshot`](NbdStatsReader::snapshot).
    pub fn activity(&self, now: Nanos) -> NbdActivity {
        let mut sum = NbdActivity::default();
        for Counters { activity, .. } in self.servers.iter().map(|one| &**one) {
            let (in_flight, changed) = (activity.in_flight.get(), activity.changed.get());
            let open = in_flight.wrapping_mul(now.0.saturating_sub(changed));
            sum.in_flight = sum.in_flight.wrapping_add(in_flight);
            let depth_nanos = activity.depth_nanos.get().wrapping_add(open);
            sum.depth_nanos = sum.depth_nanos.wrapping_add(depth_nanos);
            sum.reads = activity.reads.read().plus(&sum.reads);
            sum.writes = activity.writes.read().plus(&sum.writes);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_integrated_over_time() {
        let servers: [Arc<Counters>; 1] = Default::default();
        let reader = NbdStatsReader::new(&servers);
        let activity = &servers[0].activity;
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

    #[test]
    fn an_export_has_the_sums_of_its_servers() {
        let servers: [Arc<Counters>; 3] = Default::default();
        let reader = NbdStatsReader::new(&servers);
        for (n, server) in (1..).zip(&servers) {
            server.writes.add(n);
            server.connections_open.set(10 * n);
            server.activity.begin(Nanos(1_000));
            server.activity.begin(Nanos(1_000));
            server.activity.end(Nanos(2_000), CommandAction::Write, Nanos(1_000));
        }
        let sum = reader.snapshot();
        assert_eq!((sum.writes, sum.connections_open, sum.reads), (6, 60, 0));
        let writes: Vec<u64> = reader.snapshots().iter().map(|one| one.writes).collect();
        assert_eq!(writes, [1, 2, 3]);
        let now = reader.activity(Nanos(3_000));
        assert_eq!((now.in_flight, now.depth_nanos), (3, 3 * (2 * 1_000 + 1_000)));
        assert_eq!((now.reads.count(), now.writes.count()), (0, 3));
    }
}
