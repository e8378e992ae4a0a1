//! [`Reading`]: what a served drive has done until now: as a line while it is served, as a summary
//! and as JSON at the end.

use std::fmt::Write as _;

use ::serve::nbd::{Endpoint, NbdStats};
use clock::Nanos;
use drive::DriveStats;
use ftl::FtlStats;
use media::MediaConfig;
use serde_json::{Value, json};
use workload::{HostCosts, RunResult};

use crate::scenario::{DrivePlan, Scenario};
use crate::sim::{self, DriveOutcome, LayerCounts, Outcome};
use crate::stack::ShardCounts;
use crate::text::{bytes_decimal, count, duration, rate};

/// What a served drive has done until now.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The drive.
    pub plan: DrivePlan,
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
    pub layer: Option<LayerCounts>,
    /// What each shard of its target did; none without shards.
    pub shards: Vec<ShardCounts>,
}

impl Reading {
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
    pub fn kept_up(&self) -> bool {
        self.media_time_min().is_none_or(|shortest| self.drive.late.p99 <= shortest)
    }

    fn requests(&self) -> u64 {
        let n = &self.nbd;
        n.reads + n.writes + n.trims + n.write_zeroes
    }

    /// One line: what happened since the reading `before`, or since the start, and where the drive
    /// stands.
    pub fn line(&self, before: Option<&Reading>) -> String {
        let zero = NbdStats::default();
        let old = before.map_or(&zero, |b| &b.nbd);
        let seconds = self.elapsed.since(before.map_or(Nanos::ZERO, |b| b.elapsed)).0 as f64 / 1e9;
        let per_second = |now: u64, then: u64| (now - then) as f64 / seconds.max(1e-9);
        let mut line = format!(
            "{}: {} IOPS, read {}, write {}",
            self.plan.config.name,
            count(per_second(self.requests(), before.map_or(0, Reading::requests)) as u64),
            rate(per_second(self.nbd.bytes_read, old.bytes_read)),
            rate(per_second(self.nbd.bytes_written, old.bytes_written)),
        );
        if let Some(ftl) = &self.ftl {
            if let Some(wa) = ftl.write_amplification() {
                let _ = write!(line, ", WA {wa:.2}");
            }
            if let Some(free) = self.free_lines {
                let _ = write!(line, ", {free:.0} free lines");
            }
            let _ = write!(line, ", {} erases", count(ftl.erases));
        }
        let late = &self.drive.late;
        let [p50, p99, max] = [late.p50, late.p99, late.max].map(|n| duration(n.0));
        let clients = self.nbd.connections_open;
        let _ = write!(line, ", late {p50} / {p99} / {max}, {clients} clients");
        line
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
                count(ftl.gc_moves),
                count(ftl.erases),
                self.free_lines.unwrap_or(0.0),
            );
        }
        if let Some(layer) = &self.layer {
            let _ = writeln!(out, "  {}", layer.line());
        }
        let late = &self.drive.late;
        let [p50, p99, max] = [late.p50, late.p99, late.max].map(|n| duration(n.0));
        let _ = writeln!(
            out,
            "  lateness  late_p50 {p50}, late_p99 {p99}, late_max {max}, of {} commands",
            count(late.count)
        );
        if let (false, Some(shortest)) = (self.kept_up(), self.media_time_min()) {
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
            name: self.plan.config.name.clone(),
            run: RunResult { seed: 0, elapsed: self.elapsed, jobs: Vec::new() },
            drive: self.drive.clone(),
            ftl: self.ftl,
            free_lines: self.free_lines,
            shape,
            capacity: self.plan.capacity,
            layer: self.layer.clone(),
            shards: self.shards.clone(),
            steady: None,
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
pub fn to_json(scenario: &Scenario, readings: &[Reading]) -> Value {
    let elapsed = readings.iter().map(|r| r.elapsed).max().unwrap_or(Nanos::ZERO);
    let outcome = Outcome {
        title: scenario.title.clone(),
        text: scenario.text.clone(),
        seed: scenario.seed,
        elapsed,
        costs: HostCosts::default(),
        ignored: Vec::new(),
        untraced: 0,
        drives: readings.iter().map(Reading::outcome).collect(),
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
        drive["lateness_ns"]["kept_up"] = reading.kept_up().into();
    }
    json!({ "sluice": section })
}
