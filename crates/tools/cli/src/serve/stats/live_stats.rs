//! [`LiveStats`]: the statistics of a served path, or of a drive without one. They are printed as a
//! line while it is served, and as a summary and JSON at the end.

use std::fmt::Write as _;

use controller::{
    CommandTimes, DoorbellRecord, DoorbellToFetch, DoorbellWaitUnknown, DriveStats, Lateness,
    LatenessPart, LatenessRecord,
};
use ftl::FtlStats;
use media::MediaConfig;
use nbd::{Endpoint, NbdActivity, NbdStats};
use scenario::format::{bytes_decimal, count, duration};
use scenario::{DriveSpec, Scenario};
use serde_json::{Value, json};
use sim::{self, DriveOutcome, PathOutcome, SimOutcome, TargetCounts};
use stack::{BlockLayerCounts, ShardCounts};
use time::Nanos;
use workload::{IoCpuCosts, RunResult};

use super::interval;

/// Reading of a drive.
#[derive(Clone, Debug)]
pub struct DriveReading {
    /// Index in the scenario.
    pub index: usize,
    /// The drive.
    pub plan: DriveSpec,
    /// Counters of the drive, from all paths over it, without those of its FTL.
    pub stats: DriveStats,
    /// Counters and free lines of the drive's FTL since clients can connect, if several paths are
    /// over the drive.
    pub shared_ftl: Option<(FtlStats, f64)>,
}

/// Statistics of a served path, or of a drive without a path.
#[derive(Clone, Debug)]
pub struct LiveStats {
    /// Name of the path or of the drive.
    pub name: String,
    /// Its drives, in the order of the scenario.
    pub drives: Vec<DriveReading>,
    /// Endpoints that serve it.
    pub endpoints: Vec<Endpoint>,
    /// Time since clients can connect.
    pub elapsed: Nanos,
    /// Requests of NBD clients.
    pub nbd: NbdStats,
    /// Requests of NBD clients by the server of each core; `nbd` has the sums.
    pub nbd_by_core: Vec<NbdStats>,
    /// Counters of the FTL since clients can connect: in the host, or in drives that no other path is
    /// over.
    pub ftl: Option<FtlStats>,
    /// Free lines of the FTL.
    pub free_lines: Option<f64>,
    /// Counters of the block layer; `None` without one.
    pub block_layer: Option<BlockLayerCounts>,
    /// Counters of each shard of the target; empty without shards.
    pub shards: Vec<ShardCounts>,
    /// In-flight operations.
    pub activity: ActivityCounts,
}

/// In-flight operations of a served drive, and the distributions from which the status line
/// computes intervals.
#[derive(Clone, Debug)]
pub struct ActivityCounts {
    /// Activity of NBD clients.
    pub nbd: NbdActivity,
    /// Lateness of the drives' completions.
    pub late: Option<LatenessRecord>,
    /// Waits of the drives' doorbells, of those drives that measure them.
    pub doorbells: Option<DoorbellRecord>,
    /// Latencies of the drive's commands; `None` for a drive that is not shared.
    pub times: Option<CommandTimes>,
    /// Number of in-flight commands of the drives.
    pub outstanding: u64,
    /// Number of clients with queues of their own; `None` for a drive that is not shared.
    pub socket_clients: Option<u32>,
}

impl DriveReading {
    /// Returns the shortest time of any operation of the drive's media; `None` for media without
    /// timing.
    pub fn media_time_min(&self) -> Option<Nanos> {
        let shortest = |times: &[Nanos]| times.iter().copied().filter(|t| *t > Nanos::ZERO).min();
        match &self.plan.config.media {
            MediaConfig::Nand(nand) => {
                let t = &nand.timing;
                let bits = nand.cell.bits() as usize;
                let mut times = vec![t.erase];
                times.extend(t.read.iter().take(bits).chain(t.program.iter().take(bits)));
                shortest(&times)
            }
            MediaConfig::Pcm(pcm) => shortest(&[pcm.read, pcm.write]),
            MediaConfig::Null { .. } => shortest(&[self.plan.config.null.latency]),
        }
    }

    /// Returns the limit of lateness, and of waits of doorbells: a tenth of the shortest time of a
    /// media operation; `None` for media without timing.
    pub fn lateness_limit(&self) -> Option<Nanos> {
        self.media_time_min().map(|shortest| Nanos(shortest.0 / 10))
    }

    /// Returns whether the drive was on time: of its completions, and of its doorbells as far as
    /// their waits are known, at most one in a hundred was later than the
    /// [limit](DriveReading::lateness_limit) (ARCHITECTURE.md, R6).
    pub fn has_kept_up(&self) -> bool {
        self.lateness_limit().is_none_or(|limit| self.stats.is_on_time(limit))
    }

    fn outcome(&self) -> DriveOutcome {
        let shape = match &self.plan.config.media {
            MediaConfig::Nand(n) => Some((n.geometry.channels, n.geometry.pus)),
            MediaConfig::Pcm(p) => Some((p.channels, p.pus)),
            MediaConfig::Null { .. } => None,
        };
        DriveOutcome {
            name: self.plan.config.name.clone(),
            drive: self.stats.clone(),
            geometry: shape,
            shared_ftl: self.shared_ftl,
            ..DriveOutcome::default()
        }
    }
}

/// Appends a line with the parts of a lateness, if the machine has one.
fn write_parts(out: &mut String, late: &Lateness, prefix: &str) {
    if late.machine.max > Nanos::ZERO {
        let [own, own_max, machine, machine_max] =
            [late.own.p99, late.own.max, late.machine.p99, late.machine.max].map(|n| duration(n.0));
        let _ = writeln!(
            out,
            "            of it own: {prefix}p99 {own}, {prefix}max {own_max}; while the machine did \
             not run the drive's thread: {prefix}p99 {machine}, {prefix}max {machine_max}",
        );
    }
}

impl LiveStats {
    /// Returns the lateness of the drives' completions.
    fn lateness(&self) -> Lateness {
        self.activity.late.as_ref().map(LatenessRecord::read).unwrap_or_default()
    }

    /// Returns the waits of the drives' doorbells.
    pub fn doorbell_to_fetch(&self) -> DoorbellToFetch {
        let known = self.activity.doorbells.as_ref().map(DoorbellRecord::read);
        // Drives that do not measure them say why.
        let drive = self.drives.first().map(|drive| drive.stats.doorbell_to_fetch);
        let none = DoorbellToFetch::Unknown(DoorbellWaitUnknown::RealDevice);
        known.or(drive).unwrap_or(none)
    }

    /// Returns one line: the activity since the reading `before`, or since the start, and the
    /// current state of the drive.
    pub fn status_line(&self, before: Option<&LiveStats>) -> String {
        interval::status_line(&self.name, &self.interval(before))
    }

    /// Returns the complete statistics, for people.
    pub fn summary(&self) -> String {
        let n = &self.nbd;
        let mut out = format!(
            "{}: served for {}, {} connections, {} dropped\n",
            self.name,
            duration(self.elapsed.0),
            count(n.connections),
            count(n.clients_dropped),
        );
        let _ = writeln!(
            out,
            "  requests  {} reads ({}), {} writes ({}), {} trims, {} zeroes, {} flushes, {} failed, \
             {} refused",
            count(n.reads),
            bytes_decimal(n.bytes_read),
            count(n.writes),
            bytes_decimal(n.bytes_written),
            count(n.trims),
            count(n.write_zeroes),
            count(n.flushes),
            count(n.errors_device),
            count(n.errors_refused),
        );
        if self.nbd_by_core.len() > 1 {
            let each = self.connections_by_core();
            let (fewest, most) = (each.iter().min(), each.iter().max());
            let [fewest, most] = [fewest, most].map(|n| count(n.copied().unwrap_or(0)));
            let _ =
                writeln!(out, "  cores     {}, {fewest} to {most} connections each", each.len());
        }
        if let Some(ftl) = &self.ftl {
            let wa = ftl.write_amplification().map_or("none".into(), |wa| format!("{wa:.2}"));
            let _ = writeln!(
                out,
                "  flash     write amplification {wa}, {} sectors moved by GC, {} erases, {:.0} free \
                 lines",
                count(ftl.gc_relocations),
                count(ftl.erases),
                self.free_lines.unwrap_or(0.0),
            );
        }
        if let Some(layer) = &self.block_layer {
            let _ = writeln!(out, "  {}", layer.summary_line());
        }
        let late = self.lateness();
        let [p50, p99, max] = [late.p50, late.p99, late.max].map(|n| duration(n.0));
        let _ = writeln!(
            out,
            "  lateness  late_p50 {p50}, late_p99 {p99}, late_max {max}, of {} commands",
            count(late.count)
        );
        write_parts(&mut out, &late, "late_");
        match self.doorbell_to_fetch() {
            DoorbellToFetch::Measured { waits, unmeasured } => {
                let [p50, p99, max] = [waits.p50, waits.p99, waits.max].map(|n| duration(n.0));
                let _ = write!(
                    out,
                    "  doorbells p50 {p50}, p99 {p99}, max {max} from doorbell to fetch, of {}",
                    count(waits.count)
                );
                if unmeasured.not_trusted > 0 {
                    let _ = write!(out, "; {} not trusted", count(unmeasured.not_trusted));
                }
                out.push('\n');
                write_parts(&mut out, &waits, "");
            }
            DoorbellToFetch::Unknown(reason) => {
                let _ =
                    writeln!(out, "  doorbells time from doorbell to fetch not known: {reason}");
            }
        }
        for drive in self.drives.iter().filter(|drive| !drive.has_kept_up()) {
            let (Some(shortest), Some(limit)) = (drive.media_time_min(), drive.lateness_limit())
            else {
                continue;
            };
            let late = [
                (Some(drive.stats.late.p99), "command", "late"),
                (drive.stats.doorbell_wait_p99(), "doorbell", "old when the drive fetched"),
            ];
            let late = late.map(|(p99, event, how)| {
                let p99 = p99.filter(|p99| *p99 > limit)?;
                Some(format!("one {event} in a hundred was over {} {how}", duration(p99.0)))
            });
            let late: Vec<String> = late.into_iter().flatten().collect();
            let _ = writeln!(
                out,
                "  The emulator could not keep up: {}, and a tenth of the media's shortest operation, \
                 {}, is {}. Latencies that clients saw are this machine's, not the drive's \
                 (`sluice calibrate` says what it can keep up with).",
                late.join(", "),
                duration(shortest.0),
                duration(limit.0)
            );
        }
        out
    }

    /// Returns the outcome of the path; `drives` are the drives of all readings, in order.
    fn path_outcome(&self, drives: &[&DriveReading]) -> PathOutcome {
        let place = |own: &DriveReading| drives.iter().position(|drive| drive.index == own.index);
        PathOutcome {
            name: self.name.clone(),
            drives: self.drives.iter().filter_map(place).collect(),
            run: RunResult { seed: 0, elapsed: self.elapsed, jobs: Vec::new() },
            ftl: self.ftl,
            free_lines: self.free_lines,
            capacity: match &self.drives[..] {
                [only] => only.plan.capacity,
                _ => None,
            },
            block_layer: self.block_layer.clone(),
            targets: TargetCounts { shards: self.shards.clone(), ..TargetCounts::default() },
            ..PathOutcome::default()
        }
    }

    /// Returns the connections that the server of each core had.
    fn connections_by_core(&self) -> Vec<u64> {
        self.nbd_by_core.iter().map(|core| core.connections).collect()
    }

    fn nbd_json(&self) -> Value {
        let n = &self.nbd;
        json!({
            "endpoints": self.endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>(),
            "connections": n.connections,
            "connections_by_core": self.connections_by_core(),
            "connections_refused": n.connections_refused,
            "connections_open": n.connections_open,
            "clients_dropped": n.clients_dropped,
            "clients_vanished": n.clients_vanished,
            "reads": n.reads,
            "writes": n.writes,
            "flushes": n.flushes,
            "trims": n.trims,
            "write_zeroes": n.write_zeroes,
            "block_statuses": n.block_statuses,
            "bytes_read": n.bytes_read,
            "bytes_written": n.bytes_written,
            "bytes_trimmed": n.bytes_trimmed,
            "bytes_zeroed": n.bytes_zeroed,
            "errors_device": n.errors_device,
            "errors_refused": n.errors_refused,
            "replies_discarded": n.replies_discarded,
        })
    }
}

/// Returns the drives and paths of a scenario as in the `sluice` section of `sluice sim`, with the
/// statistics of their servers. Those are in the drives if the scenario names no paths.
pub fn to_json(scenario: &Scenario, readings: &[LiveStats]) -> Value {
    let elapsed = readings.iter().map(|r| r.elapsed).max().unwrap_or(Nanos::ZERO);
    let is_composed = !scenario.composition.is_empty();
    let mut drives: Vec<&DriveReading> =
        readings.iter().flat_map(|reading| &reading.drives).collect();
    drives.sort_by_key(|drive| drive.index);
    drives.dedup_by_key(|drive| drive.index);
    let has_path = |reading: &&LiveStats| !is_composed || !reading.endpoints.is_empty();
    let paths: Vec<&LiveStats> = readings.iter().filter(has_path).collect();
    let outcome = SimOutcome {
        title: scenario.title.clone(),
        question: scenario.question.clone(),
        parameters: sim::parameters(scenario),
        text: scenario.text.clone(),
        seed: scenario.seed,
        elapsed,
        costs: IoCpuCosts::default(),
        ignored: Vec::new(),
        drives: drives.iter().map(|drive| drive.outcome()).collect(),
        paths: paths.iter().map(|reading| reading.path_outcome(&drives)).collect(),
        is_composed,
        ..SimOutcome::default()
    };
    let mut section = sim::to_json(&outcome)["sluice"].take();
    section["clock"] = "real".into();
    if let Value::Object(section) = &mut section {
        // These keys belong to jobs, which do not exist here: clients keep their own results.
        for key in ["host", "ignored_options", "failures"] {
            section.remove(key);
        }
    }
    let of_paths = if is_composed { "paths" } else { "drives" };
    for (i, reading) in paths.iter().enumerate() {
        let path = &mut section[of_paths][i];
        path["elapsed_ns"] = reading.elapsed.0.into();
        path["nbd"] = reading.nbd_json();
    }
    for (i, drive) in drives.iter().enumerate() {
        let section = &mut section["drives"][i];
        if drive.plan.is_real() {
            // Its commands are those of the clients, and no model is late.
            if let Value::Object(section) = section {
                section.remove("commands");
                section.remove("lateness_ns");
            }
            continue;
        }
        if let Some(flush) = &drive.stats.host_flush {
            section["host_flush"]["time_ns"] = flush.time.0.into();
        }
        let lateness = &mut section["lateness_ns"];
        lateness["media_time_min"] = drive.media_time_min().map(|t| t.0).into();
        lateness["limit"] = drive.lateness_limit().map(|t| t.0).into();
        lateness["kept_up"] = drive.has_kept_up().into();
        let late = &drive.stats.late;
        for (part, LatenessPart { p50, p99, max }) in [("machine", late.machine), ("own", late.own)]
        {
            lateness[part] = json!({ "late_p50": p50.0, "late_p99": p99.0, "late_max": max.0 });
        }
    }
    json!({ "sluice": section })
}
