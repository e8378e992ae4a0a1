//! [`IntervalStats`]: the statistics of a served drive over an interval, as the status line of `sluice serve`
//! and `sluice admin stats` show them.

use collections::{PutBytes, Reader, SliceWriter};
use time::Nanos;

use crate::codec::{PutField, ReadField};

/// Latencies of the requests that completed in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencySummary {
    /// Median.
    pub p50: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
    /// Largest.
    pub max: Nanos,
}

/// Requests that completed in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Trims, write zeroes, flushes and all other requests.
    pub others: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// Counters of an FTL over an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FtlCounts {
    /// Sectors written by hosts.
    pub host_sectors: u64,
    /// Sectors programmed: host data, relocated sectors, padding and metadata.
    pub programmed_sectors: u64,
    /// Sectors relocated by garbage collection.
    pub gc_sectors: u64,
    /// Chunks erased.
    pub erases: u64,
    /// Free lines at the end of the interval, in thousandths.
    pub free_lines_milli: u64,
}

/// The reason for which waits of doorbells are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorbellUnknown {
    /// No doorbell had a stamp that could be used.
    #[default]
    NoStamps,
    /// The registers of an AHCI controller have no stamps.
    Ahci,
    /// The device is not emulated.
    RealDevice,
}

/// The time from a host's write of a doorbell to the poll in which the drive read it, over an
/// interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellSummary {
    /// It was measured.
    Measured(LatencySummary),
    /// It is not known.
    Unknown(DoorbellUnknown),
}

impl Default for DoorbellSummary {
    fn default() -> DoorbellSummary {
        DoorbellSummary::Unknown(DoorbellUnknown::default())
    }
}

impl DoorbellSummary {
    fn encode(&self, w: &mut SliceWriter<'_>) {
        let (times, code) = match self {
            DoorbellSummary::Measured(times) => (*times, 0),
            DoorbellSummary::Unknown(reason) => (LatencySummary::default(), *reason as u64 + 1),
        };
        w.put_u64(code).put_u64(times.p50.0).put_u64(times.p99.0).put_u64(times.max.0);
    }

    /// Decodes the summary. Returns `None` for an unknown reason, and for times with a reason.
    fn decode(r: &mut Reader<'_>) -> Option<DoorbellSummary> {
        let (code, p50, p99, max) = (r.u64()?, Nanos(r.u64()?), Nanos(r.u64()?), Nanos(r.u64()?));
        let times = LatencySummary { p50, p99, max };
        let reason = match code {
            0 => return Some(DoorbellSummary::Measured(times)),
            1 => DoorbellUnknown::NoStamps,
            2 => DoorbellUnknown::Ahci,
            3 => DoorbellUnknown::RealDevice,
            _ => return None,
        };
        (times == LatencySummary::default()).then_some(DoorbellSummary::Unknown(reason))
    }
}

/// Counters and latencies of a drive over an interval, and its state at the end of the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntervalStats {
    /// Length of the interval.
    pub interval: Nanos,
    /// Time from when clients could connect to the end of the interval.
    pub uptime: Nanos,
    /// Requests that completed.
    pub requests: RequestCounts,
    /// Latency of reads; `None` if none completed. For a drive served over NBD alone: from the
    /// arrival of the request at the server to its reply. For a drive whose clients have queues:
    /// from the fetch of the command by the drive to its completion entry.
    pub read_latency: Option<LatencySummary>,
    /// Latency of writes, measured as `read_latency`.
    pub write_latency: Option<LatencySummary>,
    /// Requests in flight at the end of the interval.
    pub queue_depth: u64,
    /// Mean number of requests in flight over the interval, in thousandths.
    pub queue_depth_mean_milli: u64,
    /// The FTL's counters, whether it runs in the drive or in the host; `None` without an FTL.
    pub ftl: Option<FtlCounts>,
    /// Lateness of the drive's completions: real time behind the model's time.
    pub lateness: LatencySummary,
    /// The part of each lateness in which the machine did not run the drive's thread.
    pub lateness_machine: LatencySummary,
    /// The rest of each lateness, which is the drive's own.
    pub lateness_own: LatencySummary,
    /// Waits of doorbells for the drive's thread.
    pub doorbell_to_fetch: DoorbellSummary,
    /// NBD clients connected at the end of the interval.
    pub nbd_clients: u32,
    /// Clients with queues of their own at the end of the interval.
    pub socket_clients: u32,
}

impl FtlCounts {
    /// Returns sectors programmed per sector that hosts wrote; `None` if they wrote none.
    pub fn write_amplification(&self) -> Option<f64> {
        let user = self.host_sectors;
        (user > 0).then(|| self.programmed_sectors as f64 / user as f64)
    }
}

impl IntervalStats {
    /// Version of the layout below.
    const LAYOUT_VERSION: u32 = 3;
    /// Bytes in a message, without the drive's name.
    pub(crate) const WIRE_BYTES: usize = 8 + 34 * 8 + 8;

    pub(crate) fn encode(&self, w: &mut SliceWriter<'_>) {
        w.put_u32(IntervalStats::LAYOUT_VERSION).put_zeros(4);
        w.put_u64(self.interval.0).put_u64(self.uptime.0);
        let n = &self.requests;
        w.put_u64(n.reads).put_u64(n.writes).put_u64(n.others);
        w.put_u64(n.bytes_read).put_u64(n.bytes_written).put_u64(n.errors);
        for latency in [self.read_latency, self.write_latency] {
            w.put_option(latency.map(|l| l.p50.0));
            w.put_option(latency.map(|l| l.p99.0)).put_option(latency.map(|l| l.max.0));
        }
        w.put_u64(self.queue_depth).put_u64(self.queue_depth_mean_milli);
        let ftl = self.ftl.unwrap_or_default();
        w.put_u64(ftl.host_sectors).put_u64(ftl.programmed_sectors);
        w.put_u64(ftl.gc_sectors)
            .put_u64(ftl.erases)
            .put_option(self.ftl.map(|f| f.free_lines_milli));
        for late in [self.lateness, self.lateness_machine, self.lateness_own] {
            w.put_u64(late.p50.0).put_u64(late.p99.0).put_u64(late.max.0);
        }
        self.doorbell_to_fetch.encode(w);
        w.put_u32(self.nbd_clients).put_u32(self.socket_clients);
    }

    /// Decodes the statistics. Returns `None` for another layout version, for incomplete latencies,
    /// for FTL counters without an FTL, and for invalid waits of doorbells.
    pub(crate) fn decode(r: &mut Reader<'_>) -> Option<IntervalStats> {
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
            Some(free_lines_milli) => Some(FtlCounts {
                host_sectors: user_sectors,
                programmed_sectors,
                gc_sectors: gc_moves,
                erases,
                free_lines_milli,
            }),
            None if [user_sectors, programmed_sectors, gc_moves, erases] == [0; 4] => None,
            None => return None,
        };
        let mut late = || {
            let (p50, p99, max) = (Nanos(r.u64()?), Nanos(r.u64()?), Nanos(r.u64()?));
            Some(LatencySummary { p50, p99, max })
        };
        let (lateness, lateness_machine, lateness_own) = (late()?, late()?, late()?);
        Some(IntervalStats {
            interval,
            uptime,
            requests,
            read_latency,
            write_latency,
            queue_depth,
            queue_depth_mean_milli,
            ftl,
            lateness,
            lateness_machine,
            lateness_own,
            doorbell_to_fetch: DoorbellSummary::decode(r)?,
            nbd_clients: r.u32()?,
            socket_clients: r.u32()?,
        })
    }
}
