//! [`IntervalStats`] of a served path or drive: the difference of two readings, as a line and as JSON.
//! `sluice serve` and `sluice admin stats` print the same line.

use std::fmt::Write as _;

use controller::{DoorbellToFetch, DoorbellWaitUnknown, DriveStats, LatenessPart, LatenessRecord};
use ftl::FtlStats;
use nbd::LatencyCounts;
use scenario::format::{count, duration, rate};
use serde_json::{Value, json};
use share_proto::{
    DoorbellSummary, DoorbellUnknown, FtlCounts, IntervalStats, LatencySummary, RequestCounts,
};
use time::Nanos;

use super::LiveStats;

/// Returns the latency of the requests between two readings.
fn latency(now: &LatencyCounts, before: Option<&LatencyCounts>) -> Option<LatencySummary> {
    let ended = before.map_or_else(|| now.clone(), |before| now.since(before));
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|q| ended.quantile(q));
    Some(LatencySummary { p50: p50?, p99: p99?, max: max? })
}

/// Returns the latency of commands that the drive recorded.
fn command_latency(times: &LatenessRecord) -> Option<LatencySummary> {
    let times = times.read();
    let summary = LatencySummary { p50: times.p50, p99: times.p99, max: times.max };
    (times.count > 0).then_some(summary)
}

/// Returns waits of doorbells as a message has them.
fn doorbell_summary(waits: DoorbellToFetch) -> DoorbellSummary {
    DoorbellSummary::Unknown(match waits {
        DoorbellToFetch::Measured { waits, .. } => {
            let (p50, p99, max) = (waits.p50, waits.p99, waits.max);
            return DoorbellSummary::Measured(LatencySummary { p50, p99, max });
        }
        DoorbellToFetch::Unknown(DoorbellWaitUnknown::Ahci) => DoorbellUnknown::Ahci,
        DoorbellToFetch::Unknown(DoorbellWaitUnknown::RealDevice) => DoorbellUnknown::RealDevice,
        DoorbellToFetch::Unknown(
            DoorbellWaitUnknown::NoStamps(_) | DoorbellWaitUnknown::VirtualTime,
        ) => DoorbellUnknown::NoStamps,
    })
}

impl LiveStats {
    /// Returns the requests of clients since the server was created. Only the drive counts clients
    /// with queues of their own. The NBD server counts its requests before they are split into
    /// commands.
    fn requests(&self) -> RequestCounts {
        if self.activity.socket_clients.is_some() {
            let mut sum = RequestCounts::default();
            for DriveStats { reads, writes, others, bytes_read, bytes_written, errors, .. } in
                self.drives.iter().map(|drive| &drive.stats)
            {
                sum.reads += reads;
                sum.writes += writes;
                sum.others += others;
                sum.bytes_read += bytes_read;
                sum.bytes_written += bytes_written;
                sum.errors += errors;
            }
            return sum;
        }
        let n = &self.nbd;
        RequestCounts {
            reads: n.reads,
            writes: n.writes,
            others: n.trims + n.write_zeroes + n.flushes + n.block_statuses,
            bytes_read: n.bytes_read,
            bytes_written: n.bytes_written,
            errors: n.errors_device + n.errors_refused,
        }
    }

    /// Returns the activity since the reading `before` of the drive, or since it is served, and its
    /// current state.
    pub fn interval(&self, before: Option<&LiveStats>) -> IntervalStats {
        let length = self.elapsed.since(before.map_or(Nanos::ZERO, |b| b.elapsed));
        let (now, old) = (self.requests(), before.map(LiveStats::requests).unwrap_or_default());
        let requests = RequestCounts {
            reads: now.reads.saturating_sub(old.reads),
            writes: now.writes.saturating_sub(old.writes),
            others: now.others.saturating_sub(old.others),
            bytes_read: now.bytes_read.saturating_sub(old.bytes_read),
            bytes_written: now.bytes_written.saturating_sub(old.bytes_written),
            errors: now.errors.saturating_sub(old.errors),
        };
        let (live, then) = (&self.activity, before.map(|b| &b.activity));
        let shared = live.socket_clients.is_some();
        // For a shared drive, the commands of all clients; otherwise the requests of NBD.
        let commands = live.times.as_ref().filter(|_| shared).map(|times| {
            let before = then.and_then(|t| t.times.as_ref());
            before.map_or_else(|| times.clone(), |before| times.since(before))
        });
        let depth = match &commands {
            Some(commands) => commands.total.0,
            None => live.nbd.depth_nanos.wrapping_sub(then.map_or(0, |t| t.nbd.depth_nanos)),
        };
        let (read_latency, write_latency) = match &commands {
            Some(commands) => (command_latency(&commands.reads), command_latency(&commands.writes)),
            None => (
                latency(&live.nbd.reads, then.map(|t| &t.nbd.reads)),
                latency(&live.nbd.writes, then.map(|t| &t.nbd.writes)),
            ),
        };
        let mean = (u128::from(depth) * 1_000 / u128::from(length.0.max(1))) as u64;
        let ftl = self.ftl.map(|ftl| {
            let ftl = match before.and_then(|b| b.ftl) {
                Some(before) => ftl.since(&before),
                None => ftl,
            };
            let FtlStats {
                host_writes: user_writes,
                gc_relocations: gc_moves,
                padding,
                metadata,
                erases,
                ..
            } = ftl;
            FtlCounts {
                host_sectors: user_writes,
                programmed_sectors: user_writes + gc_moves + padding + metadata,
                gc_sectors: gc_moves,
                erases,
                free_lines_milli: (self.free_lines.unwrap_or(0.0).max(0.0) * 1_000.0) as u64,
            }
        });
        let before = then.and_then(|then| then.late.as_ref());
        let late = live.late.as_ref().map(|late| match before {
            Some(before) => late.since(before).read(),
            None => late.read(),
        });
        let late = late.unwrap_or_default();
        let part = |LatenessPart { p50, p99, max }| LatencySummary { p50, p99, max };
        let doorbells = match (&live.doorbells, then.and_then(|then| then.doorbells.as_ref())) {
            (Some(now), Some(before)) => now.since(before).read(),
            _ => self.doorbell_to_fetch(),
        };
        IntervalStats {
            interval: length,
            uptime: self.elapsed,
            requests,
            read_latency,
            write_latency,
            queue_depth: if shared { live.outstanding } else { live.nbd.in_flight },
            queue_depth_mean_milli: mean,
            ftl,
            lateness: LatencySummary { p50: late.p50, p99: late.p99, max: late.max },
            lateness_machine: part(late.machine),
            lateness_own: part(late.own),
            doorbell_to_fetch: doorbell_summary(doorbells),
            nbd_clients: u32::try_from(self.nbd.connections_open).unwrap_or(u32::MAX),
            socket_clients: live.socket_clients.unwrap_or(0),
        }
    }
}

fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

fn per_second(count: u64, interval: Nanos) -> f64 {
    count as f64 / seconds(interval).max(1e-9)
}

/// Formats a number of clients: `1 NBD client`, `2 NBD clients`.
fn clients(number: u32, kind: &str) -> String {
    format!("{number} {kind} client{}", if number == 1 { "" } else { "s" })
}

/// Returns one line about a drive, for people.
pub fn status_line(drive: &str, stats: &IntervalStats) -> String {
    let (n, t) = (&stats.requests, stats.interval);
    let iops = |n: u64| count(per_second(n, t).round() as u64);
    let mut line = format!("{drive}: {} IOPS", iops(n.reads + n.writes + n.others));
    let directions = [
        ("read", n.reads, n.bytes_read, stats.read_latency),
        ("write", n.writes, n.bytes_written, stats.write_latency),
    ];
    for (what, requests, bytes, latency) in directions {
        let _ = write!(line, ", {what} {} IOPS {}", iops(requests), rate(per_second(bytes, t)));
        if let Some(l) = latency {
            let _ = write!(line, " p50 {} p99 {}", duration(l.p50.0), duration(l.p99.0));
        }
    }
    let depth = stats.queue_depth_mean_milli;
    let _ = write!(line, ", queue depth {:.1}", depth as f64 / 1e3);
    if let Some(ftl) = &stats.ftl {
        let wa = ftl.write_amplification().map_or("-".into(), |wa| format!("{wa:.2}"));
        let _ = write!(
            line,
            ", WA {wa}, GC moved {} sectors, {} erases, {:.0} free lines",
            count(ftl.gc_sectors),
            count(ftl.erases),
            ftl.free_lines_milli as f64 / 1e3
        );
    }
    if n.errors > 0 {
        let _ = write!(line, ", {} failed", count(n.errors));
    }
    let [p50, p99, max] =
        [stats.lateness.p50, stats.lateness.p99, stats.lateness.max].map(|n| duration(n.0));
    let _ = write!(line, ", late p50 {p50} p99 {p99} max {max}");
    if stats.lateness_machine.max > Nanos::ZERO {
        let own = [stats.lateness_own.p99, stats.lateness_own.max].map(|n| duration(n.0));
        let [p99, max] = own;
        let _ = write!(line, " (own p99 {p99} max {max})");
    }
    if let DoorbellSummary::Measured(waits) = stats.doorbell_to_fetch {
        let [p50, p99, max] = [waits.p50, waits.p99, waits.max].map(|n| duration(n.0));
        let _ = write!(line, ", doorbell to fetch p50 {p50} p99 {p99} max {max}");
    }
    let _ = write!(line, ", {}", clients(stats.nbd_clients, "NBD"));
    if stats.socket_clients > 0 {
        let _ = write!(line, ", {}", clients(stats.socket_clients, "socket"));
    }
    line
}

/// Returns one JSON object about a drive, for programs. Values that were not measured are null.
pub fn to_json(drive: &str, stats: &IntervalStats) -> Value {
    let (n, t) = (&stats.requests, stats.interval);
    let latency = |l: LatencySummary| json!({ "p50": l.p50.0, "p99": l.p99.0, "max": l.max.0 });
    json!({
        "drive": drive,
        "uptime_s": seconds(stats.uptime),
        "interval_s": seconds(t),
        "iops": per_second(n.reads + n.writes + n.others, t),
        "reads": n.reads,
        "writes": n.writes,
        "others": n.others,
        "read_bytes_per_sec": per_second(n.bytes_read, t),
        "write_bytes_per_sec": per_second(n.bytes_written, t),
        "errors": n.errors,
        "read_latency_ns": stats.read_latency.map(latency),
        "write_latency_ns": stats.write_latency.map(latency),
        "queue_depth": stats.queue_depth,
        "queue_depth_mean": stats.queue_depth_mean_milli as f64 / 1e3,
        "write_amplification": stats.ftl.and_then(|ftl| ftl.write_amplification()),
        "gc_sectors_moved": stats.ftl.map(|ftl| ftl.gc_sectors),
        "erases": stats.ftl.map(|ftl| ftl.erases),
        "free_lines": stats.ftl.map(|ftl| ftl.free_lines_milli as f64 / 1e3),
        "late_ns": latency(stats.lateness),
        "late_machine_ns": latency(stats.lateness_machine),
        "late_own_ns": latency(stats.lateness_own),
        "doorbell_to_fetch_ns": match stats.doorbell_to_fetch {
            DoorbellSummary::Measured(waits) => latency(waits),
            DoorbellSummary::Unknown(reason) => json!({ "unknown": match reason {
                DoorbellUnknown::NoStamps => "no-stamps",
                DoorbellUnknown::Ahci => "ahci",
                DoorbellUnknown::RealDevice => "real-device",
            } }),
        },
        "nbd_clients": stats.nbd_clients,
        "socket_clients": stats.socket_clients,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats() -> IntervalStats {
        let requests = RequestCounts {
            reads: 8_000,
            writes: 4_000,
            others: 8,
            bytes_read: 32_000_000,
            bytes_written: 16_000_000,
            errors: 0,
        };
        let latency = |p50, p99| {
            let [p50, p99, max] = [p50, p99, 2 * p99].map(Nanos::from_micros);
            LatencySummary { p50, p99, max }
        };
        IntervalStats {
            interval: Nanos(2_000_000_000),
            uptime: Nanos(60_000_000_000),
            requests,
            read_latency: Some(latency(80, 210)),
            write_latency: None,
            queue_depth: 3,
            queue_depth_mean_milli: 1_250,
            ftl: Some(FtlCounts {
                host_sectors: 4_000,
                programmed_sectors: 8_400,
                gc_sectors: 4_321,
                erases: 12,
                free_lines_milli: 40_500,
            }),
            lateness: latency(1, 3),
            lateness_machine: latency(0, 2),
            lateness_own: latency(1, 1),
            doorbell_to_fetch: DoorbellSummary::Measured(latency(2, 5)),
            nbd_clients: 1,
            socket_clients: 2,
        }
    }

    #[test]
    fn a_line_names_its_numbers() {
        assert_eq!(
            status_line("d", &stats()),
            "d: 6,004 IOPS, read 4,000 IOPS 16 MB/s p50 80 us p99 210 us, write 2,000 IOPS 8 MB/s, \
             queue depth 1.2, WA 2.10, GC moved 4,321 sectors, 12 erases, 40 free lines, late p50 1 us \
             p99 3 us max 6 us (own p99 1 us max 2 us), doorbell to fetch p50 2 us p99 5 us max 10 us, \
             1 NBD client, 2 socket clients"
        );
        let nothing = status_line("d", &IntervalStats::default());
        assert!(!nothing.contains("NaN") && !nothing.contains("inf"), "{nothing}");
        assert!(!nothing.contains("WA") && nothing.ends_with("0 NBD clients"), "{nothing}");
    }

    #[test]
    fn json_has_null_for_what_was_not_measured() {
        let value = to_json("d", &stats());
        assert_eq!(value["iops"], 6_004.0);
        assert_eq!(value["read_latency_ns"]["p99"], 210_000);
        assert_eq!(value["late_machine_ns"]["max"], 4_000);
        assert_eq!(value["late_own_ns"]["max"], 2_000);
        assert_eq!(value["doorbell_to_fetch_ns"]["p99"], 5_000);
        assert!(value["write_latency_ns"].is_null());
        assert_eq!(
            (&value["write_amplification"], &value["free_lines"]),
            (&2.1.into(), &40.5.into())
        );
        let bare = to_json("d", &IntervalStats::default());
        assert!(bare["write_amplification"].is_null() && bare["free_lines"].is_null(), "{bare}");
        assert_eq!(bare["iops"], 0.0);
        assert_eq!(bare["doorbell_to_fetch_ns"]["unknown"], "no-stamps");
    }
}
