//! [`IntervalStats`]: what a served drive has done in an interval, and where it stands at its end: the
//! numbers of the status line of `sluice serve`, and of `sluice admin stats`.

use clock::Nanos;

use super::codec::{Reader, Writer};

/// Durations that ended in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencySummary {
    /// Median.
    pub p50: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
    /// Largest.
    pub max: Nanos,
}

/// Requests that ended in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Trims, writes of zeros, flushes and whatever else clients asked for.
    pub others: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// A translation layer's counts over an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FtlInterval {
    /// Sectors that users wrote.
    pub host_sectors: u64,
    /// Sectors programmed: users', moved ones, padding and metadata.
    pub programmed_sectors: u64,
    /// Sectors that garbage collection moved.
    pub gc_sectors: u64,
    /// Chunks erased.
    pub erases: u64,
    /// Free lines at the end of the interval, in thousandths.
    pub free_lines_milli: u64,
}

/// A drive's counts and latencies over an interval, and its state at the end of the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntervalStats {
    /// Length of the interval.
    pub interval: Nanos,
    /// From when clients could connect to the end of the interval.
    pub uptime: Nanos,
    /// Requests that ended.
    pub requests: RequestCounts,
    /// Latency of reads; `None` if none ended. Of a drive served over NBD alone: from when the server
    /// received the request to when it answered. Of a drive whose clients have queues of their own:
    /// from when the drive fetched the command to when it posted the completion.
    pub read_latency: Option<LatencySummary>,
    /// Latency of writes, likewise.
    pub write_latency: Option<LatencySummary>,
    /// Requests under way at the end of the interval.
    pub queue_depth: u64,
    /// Mean number of requests under way over the interval, in thousandths.
    pub queue_depth_mean_milli: u64,
    /// The translation layer, on whichever side it is; `None` for drives without one.
    pub ftl: Option<FtlInterval>,
    /// How late the drive's completions were (real time behind the model's).
    pub lateness: LatencySummary,
    /// NBD clients connected at the end of the interval.
    pub nbd_clients: u32,
    /// Clients with queues of their own at the end of the interval.
    pub socket_clients: u32,
}

impl FtlInterval {
    /// Sectors programmed for each that users wrote; `None` if they wrote none.
    pub fn write_amplification(&self) -> Option<f64> {
        let user = self.host_sectors;
        (user > 0).then(|| self.programmed_sectors as f64 / user as f64)
    }
}

impl IntervalStats {
    /// Number of the layout below.
    const LAYOUT_VERSION: u32 = 1;
    /// Bytes in a message, without the drive's name.
    pub(super) const WIRE_BYTES: usize = 8 + 24 * 8 + 8;

    pub(super) fn encode(&self, w: &mut Writer<'_>) {
        w.u32(IntervalStats::LAYOUT_VERSION).zeros(4);
        w.u64(self.interval.0).u64(self.uptime.0);
        let n = &self.requests;
        w.u64(n.reads).u64(n.writes).u64(n.others);
        w.u64(n.bytes_read).u64(n.bytes_written).u64(n.errors);
        for latency in [self.read_latency, self.write_latency] {
            w.option(latency.map(|l| l.p50.0));
            w.option(latency.map(|l| l.p99.0)).option(latency.map(|l| l.max.0));
        }
        w.u64(self.queue_depth).u64(self.queue_depth_mean_milli);
        let ftl = self.ftl.unwrap_or_default();
        w.u64(ftl.host_sectors).u64(ftl.programmed_sectors);
        w.u64(ftl.gc_sectors).u64(ftl.erases).option(self.ftl.map(|f| f.free_lines_milli));
        w.u64(self.lateness.p50.0).u64(self.lateness.p99.0).u64(self.lateness.max.0);
        w.u32(self.nbd_clients).u32(self.socket_clients);
    }

    /// `None` for another layout, for latencies of which only a part is there, and for counts of a
    /// translation layer that is not.
    pub(super) fn decode(r: &mut Reader<'_>) -> Option<IntervalStats> {
        if r.u32()? != IntervalStats::LAYOUT_VERSION {
            return None;
        }
        r.zeros::<4>()?;
        let (interval, uptime) = (Nanos(r.u64()?), Nanos(r.u64()?));
        let requests = RequestCounts {
            reads: r.u64()?,
            writes: r.u64()?,
            others: r.u64()?,
            bytes_read: r.u64()?,
            bytes_written: r.u64()?,
            errors: r.u64()?,
        };
        let mut latency = || match (r.option()?, r.option()?, r.option()?) {
            (Some(p50), Some(p99), Some(max)) => {
                Some(Some(LatencySummary { p50: Nanos(p50), p99: Nanos(p99), max: Nanos(max) }))
            }
            (None, None, None) => Some(None),
            _ => None,
        };
        let (read_latency, write_latency) = (latency()?, latency()?);
        let (queue_depth, queue_depth_mean_milli) = (r.u64()?, r.u64()?);
        let (user_sectors, programmed_sectors) = (r.u64()?, r.u64()?);
        let (gc_moves, erases) = (r.u64()?, r.u64()?);
        let ftl = match r.option()? {
            Some(free_lines_milli) => Some(FtlInterval {
                host_sectors: user_sectors,
                programmed_sectors,
                gc_sectors: gc_moves,
                erases,
                free_lines_milli,
            }),
            None if [user_sectors, programmed_sectors, gc_moves, erases] == [0; 4] => None,
            None => return None,
        };
        Some(IntervalStats {
            interval,
            uptime,
            requests,
            read_latency,
            write_latency,
            queue_depth,
            queue_depth_mean_milli,
            ftl,
            lateness: LatencySummary {
                p50: Nanos(r.u64()?),
                p99: Nanos(r.u64()?),
                max: Nanos(r.u64()?),
            },
            nbd_clients: r.u32()?,
            socket_clients: r.u32()?,
        })
    }
}
