//! [`Reading`]: what a served drive has done until now: as a line while it is served, as a summary
//! and as JSON at the end.

use std::fmt::Write as _;

use ::serve::nbd::{Endpoint, NbdActivity, NbdStats};
use clock::Nanos;
use drive::{CommandTimes, DriveStats, LatenessRecord};
use ftl::FtlStats;
use media::MediaConfig;
use serde_json::{Value, json};
use workload::{IoCpuCosts, RunResult};

use super::interval;
use crate::format::{bytes_decimal, count, duration};
use crate::scenario::{DriveSpec, Scenario};
use crate::sim::{self, BlockLayerCounts, DriveOutcome, SimOutcome};
use crate::stack::ShardCounts;

/// What a served drive has done until now.
#[derive(Clone, Debug)]
pub struct LiveStats {
    /// The drive.
    pub plan: DriveSpec,
    /// Where it is served.
    pub endpoints: Vec<Endpoint>,
    /// Since it was there for clients.
    pub elapsed: Nanos,
    /// What clients asked for.
    pub nbd: NbdStats,
    /// What the drive did; its translation layer is in `ftl`.
    pub drive: DriveStats,
    /// What the translation layer did since the drive was there for clients, on whichever side it
    /// runs.
    pub ftl: Option<FtlStats>,
    /// Free lines of the translation layer.
    pub free_lines: Option<f64>,
    /// What the block layer did; `None` without one.
    pub block_layer: Option<BlockLayerCounts>,
    /// What each shard of its target did; none without shards.
    pub shards: Vec<ShardCounts>,
    /// What is under way.
    pub activity: ActivityCounts,
}

/// What is under way at a served drive, and the distributions of which the status line has intervals.
#[derive(Clone, Debug)]
pub struct ActivityCounts {
    /// Of NBD's clients.
    pub nbd: NbdActivity,
    /// How late the drive's completions were.
    pub late: LatenessRecord,
    /// How long the drive's commands took; `None` of a drive that is not shared.
    pub times: Option<CommandTimes>,
    /// Commands under way at the drive.
    pub outstanding: u64,
    /// Clients with queues of their own; `None` of a drive that is not shared.
    pub socket_clients: Option<u32>,
}

impl LiveStats {
    /// The shortest time that the drive's media take for anything; `None` for media that take none.
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

    /// Whether completions were about as late as the model said they would be: no more than one in a
    /// hundred later than the shortest time that the media take (rule R6).
    pub fn has_kept_up(&self) -> bool {
        self.media_time_min().is_none_or(|shortest| self.drive.late.p99 <= shortest)
    }

    /// One line: what happened since the reading `before`, or since the start, and where the drive
    /// stands.
    pub fn status_line(&self, before: Option<&LiveStats>) -> String {
        interval::status_line(&self.plan.config.name, &self.interval(before))
    }

    /// Everything, for people.
    pub fn summary(&self) -> String {
        let n = &self.nbd;
        let mut out = format!(
            "{}: served for {}, {} connections, {} dropped\n",
            self.plan.config.name,
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
        let late = &self.drive.late;
        let [p50, p99, max] = [late.p50, late.p99, late.max].map(|n| duration(n.0));
        let _ = writeln!(
            out,
            "  lateness  late_p50 {p50}, late_p99 {p99}, late_max {max}, of {} commands",
            count(late.count)
        );
        if let (false, Some(shortest)) = (self.has_kept_up(), self.media_time_min()) {
            let _ = writeln!(
                out,
                "  The emulator could not keep up: one command in a hundred was over {p99} late, and \
                 the media's shortest operation takes {}. Latencies that clients saw are this \
                 machine's, not the drive's (`sluice calibrate` says what it can keep up with).",
                duration(shortest.0)
            );
        }
        out
    }

    fn outcome(&self) -> DriveOutcome {
        let shape = match &self.plan.config.media {
            MediaConfig::Nand(n) => Some((n.geometry.channels, n.geometry.pus)),
            MediaConfig::Pcm(p) => Some((p.channels, p.pus)),
            MediaConfig::Null { .. } => None,
        };
        DriveOutcome {
            explanation: None,
            name: self.plan.config.name.clone(),
            run: RunResult { seed: 0, elapsed: self.elapsed, jobs: Vec::new() },
            drive: self.drive.clone(),
            ftl: self.ftl,
            free_lines: self.free_lines,
            geometry: shape,
            capacity: self.plan.capacity,
            block_layer: self.block_layer.clone(),
            shards: self.shards.clone(),
            ..DriveOutcome::default()
        }
    }

    fn nbd_json(&self) -> Value {
        let n = &self.nbd;
        json!({
            "endpoints": self.endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>(),
            "connections": n.connections,
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

/// The drives of a scenario as `sluice sim` writes them, in the `sluice` section, with what their
/// servers did beside it.
pub fn to_json(scenario: &Scenario, readings: &[LiveStats]) -> Value {
    let elapsed = readings.iter().map(|r| r.elapsed).max().unwrap_or(Nanos::ZERO);
    let outcome = SimOutcome {
        title: scenario.title.clone(),
        question: scenario.question.clone(),
        parameters: sim::parameters(scenario),
        text: scenario.text.clone(),
        seed: scenario.seed,
        elapsed,
        costs: IoCpuCosts::default(),
        ignored: Vec::new(),
        drives: readings.iter().map(LiveStats::outcome).collect(),
        ..SimOutcome::default()
    };
    let mut section = sim::to_json(&outcome)["sluice"].take();
    section["clock"] = "real".into();
    if let Value::Object(section) = &mut section {
        // Of jobs, of which there are none: clients keep their own results.
        for key in ["host", "ignored_options", "failures"] {
            section.remove(key);
        }
    }
    for (i, reading) in readings.iter().enumerate() {
        let drive = &mut section["drives"][i];
        drive["elapsed_ns"] = reading.elapsed.0.into();
        drive["nbd"] = reading.nbd_json();
        drive["lateness_ns"]["media_time_min"] = reading.media_time_min().map(|t| t.0).into();
        drive["lateness_ns"]["kept_up"] = reading.has_kept_up().into();
    }
    json!({ "sluice": section })
}
