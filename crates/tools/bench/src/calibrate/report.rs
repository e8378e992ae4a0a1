//! Output of `sluice calibrate`: a table, lines for a scenario, and the verdict; also as JSON.

use std::fmt::Write as _;

use scenario::Scenario;
use scenario::format::duration;
use serde_json::{Value, json};
use time::Nanos;

use super::verdict::DataPath;
use super::{
    CommandCpu, DriveCost, DriveVerdict, Feasibility, HostCpuCosts, MachineCosts, RoundTrip,
};
use crate::{Quantiles, aligned};

/// A scenario, the costs of its drives, and the verdicts on them.
pub type ScenarioVerdict<'a> = (&'a Scenario, &'a [DriveCost], &'a [DriveVerdict]);

/// Returns the complete output for a terminal.
pub fn text(machine: &MachineCosts, judged: Option<ScenarioVerdict<'_>>) -> String {
    let mut out = format!("this machine, {} CPUs\n\n", machine.cpus);
    if let Some(load) = machine.load.filter(|_| machine.is_busy()) {
        let _ = writeln!(
            out,
            "It is busy with other programs (load average {load:.1}): alone it costs less.\n"
        );
    }
    out.push_str(&table(machine));
    out.push_str("\nfor a scenario, through a queue pair in process\n\n");
    let wake = machine.threads.wake.p50;
    out.push_str(&host_lines(machine.in_process(), wake));
    out.push_str("\nfor a scenario, through NBD on a Unix socket\n\n");
    out.push_str(&host_lines(machine.through_nbd(), wake));
    if let Some((scenario, costs, verdicts)) = judged {
        for (verdict, cost) in verdicts.iter().zip(costs) {
            out.push('\n');
            out.push_str(&verdict_text(scenario, verdict, cost));
        }
    }
    out
}

/// Returns the `[host]` section to paste into a scenario. `wake` is the time until a parked thread
/// runs, which is what an interrupt starts here.
pub fn host_lines(host: HostCpuCosts, wake: Nanos) -> String {
    format!(
        "[host]\nsubmit_cost = \"{}ns\"\ncomplete_cost = \"{}ns\"\ninterrupt_cost = \"{}ns\"\n",
        host.submit.0, host.complete.0, wake.0
    )
}

/// Returns the rows of the table, each with a single cost or quantiles.
fn rows(machine: &MachineCosts) -> Vec<(String, CostValue)> {
    let MachineCosts { threads, queue, copies, socket, .. } = machine;
    let mut rows: Vec<(String, CostValue)> = [
        ("read the clock", CostValue::Mean(threads.clock_read)),
        ("submit: request to doorbell", CostValue::Quantiles(queue.submit)),
        ("complete: find and take a completion", CostValue::Quantiles(queue.complete)),
        ("poll of an idle queue", CostValue::Mean(queue.idle_poll)),
        ("round trip to an echo drive", CostValue::Quantiles(queue.round_trip)),
        ("per command, 32 outstanding", CostValue::Mean(queue.pipelined)),
        ("per command on the echo drive's thread", CostValue::Mean(queue.echo)),
        ("wake a parked thread", CostValue::Quantiles(threads.wake)),
        ("  of that, the waking thread's call", CostValue::Quantiles(threads.wake_call)),
        ("nanosleep ends late by", CostValue::Quantiles(threads.sleep_late)),
        ("a parked thread's deadline, late by", CostValue::Quantiles(threads.park_late)),
        ("copy 4 KiB, cached", CostValue::Mean(copies.cached)),
        ("copy 4 KiB, cold", CostValue::Mean(copies.cold)),
        ("longest time a spinning thread was not run", CostValue::Max(threads.stall)),
    ]
    .map(|(name, cost)| (name.to_owned(), cost))
    .to_vec();
    let mut trip = |server: &str, trip: &RoundTrip| {
        rows.push((
            format!("NBD round trip, server {server}"),
            CostValue::Quantiles(trip.round_trip),
        ));
        rows.push(("  submit: write to server".into(), CostValue::Quantiles(trip.submit)));
        rows.push(("  complete: server to reader".into(), CostValue::Quantiles(trip.complete)));
    };
    if let Some(awake) = &socket.awake {
        trip("awake", awake);
    }
    trip("asleep", &socket.asleep);
    rows.push(("NBD per request, 32 outstanding".into(), CostValue::Mean(socket.pipelined)));
    rows
}

/// Values of a row.
#[derive(Clone, Copy, Debug)]
enum CostValue {
    /// Mean over many events, or a cost that hardly varies.
    Mean(Nanos),
    /// Quantiles of single events.
    Quantiles(Quantiles),
    /// Maximum of all events.
    Max(Nanos),
}

fn table(machine: &MachineCosts) -> String {
    let mut lines = vec![["cost", "median", "99th", "most"].map(str::to_owned)];
    let shown = |n: Nanos| duration(n.0);
    for (name, cost) in rows(machine) {
        let [p50, p99, max] = match cost {
            CostValue::Mean(mean) => [shown(mean), String::new(), String::new()],
            CostValue::Quantiles(q) => [shown(q.p50), shown(q.p99), shown(q.max)],
            CostValue::Max(max) => [String::new(), String::new(), shown(max)],
        };
        lines.push([name, p50, p99, max]);
    }
    aligned(&lines, [false, true, true, true])
}

fn verdict_text(scenario: &Scenario, verdict: &DriveVerdict, cost: &DriveCost) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "does it keep up with drive \"{}\" of {} in real time?\n",
        verdict.drive,
        scenario.file.display()
    );
    if let DriveCost::Measured(measured) = cost {
        let shown = |cpu: CommandCpu| {
            format!(
                "{} on the drive's thread, {} on the host's",
                duration(cpu.drive.0),
                duration(cpu.host.0)
            )
        };
        let _ = writeln!(out, "a read costs {}", shown(measured.reads));
        let _ = writeln!(out, "a write costs {}\n", shown(measured.writes));
    }
    for way in [DataPath::InProcess, DataPath::Nbd] {
        let Some(answer) = verdict.feasibility(way) else { continue };
        let (name, _) = path_names(way);
        let _ = writeln!(out, "{name}: {answer}");
        for finding in verdict.findings.iter().filter(|f| f.path == way) {
            let _ = writeln!(
                out,
                "  {}, {} each: {}. {}.",
                finding.demand.kind,
                scenario::format::bytes_binary(finding.demand.bytes),
                finding.feasibility,
                capitalize(&finding.reason)
            );
        }
    }
    if !verdict.notes.is_empty() {
        out.push_str("\nto know\n");
        for note in &verdict.notes {
            let _ = writeln!(out, "  - {}.", capitalize(note));
        }
    }
    out
}

fn capitalize(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

/// Returns the name of a path for people, and the one for programs.
fn path_names(way: DataPath) -> (&'static str, &'static str) {
    match way {
        DataPath::InProcess => ("through a queue pair in process", "in_process"),
        DataPath::Nbd => ("through NBD", "nbd"),
    }
}

/// Returns the complete output as JSON, with all times in nanoseconds.
pub fn json(machine: &MachineCosts, judged: Option<ScenarioVerdict<'_>>) -> Value {
    let MachineCosts { cpus, load, threads, queue, copies, socket } = machine;
    let trip = |trip: &RoundTrip| {
        json!({
            "submit_ns": quantiles(trip.submit),
            "complete_ns": quantiles(trip.complete),
            "round_trip_ns": quantiles(trip.round_trip),
        })
    };
    let host = |h: HostCpuCosts| json!({ "submit_ns": h.submit.0, "complete_ns": h.complete.0 });
    let mut value = json!({
        "cpus": cpus,
        "load_average": load,
        "clock_read_ns": threads.clock_read.0,
        "queue": {
            "submit_ns": quantiles(queue.submit),
            "complete_ns": quantiles(queue.complete),
            "idle_poll_ns": queue.idle_poll.0,
            "round_trip_ns": quantiles(queue.round_trip),
            "pipelined_ns": queue.pipelined.0,
            "echo_ns": queue.echo.0,
        },
        "threads": {
            "wake_ns": quantiles(threads.wake),
            "wake_call_ns": quantiles(threads.wake_call),
            "sleep_late_ns": quantiles(threads.sleep_late),
            "park_late_ns": quantiles(threads.park_late),
            "stall_max_ns": threads.stall.0,
            "watched_ns": threads.observed.0,
        },
        "copy_4k": { "cached_ns": copies.cached.0, "cold_ns": copies.cold.0 },
        "nbd": {
            "awake": socket.awake.as_ref().map(trip),
            "asleep": trip(&socket.asleep),
            "pipelined_ns": socket.pipelined.0,
        },
        "host": { "in_process": host(machine.in_process()), "nbd": host(machine.through_nbd()) },
    });
    if let Some((scenario, costs, verdicts)) = judged {
        let drives = verdicts.iter().zip(costs);
        value["scenario"] = json!({
            "file": scenario.file.display().to_string(),
            "drives": drives.map(|(verdict, cost)| verdict_json(verdict, cost)).collect::<Vec<_>>(),
        });
    }
    value
}

fn quantiles(q: Quantiles) -> Value {
    json!({ "p50": q.p50.0, "p99": q.p99.0, "max": q.max.0 })
}

fn feasibility_json(answer: Feasibility) -> Value {
    match answer {
        Feasibility::Yes => json!({ "keeps_up": "yes" }),
        Feasibility::UpToDepth(depth) => json!({ "keeps_up": "up_to_depth", "depth": depth }),
        Feasibility::Unknown => json!({ "keeps_up": "unknown" }),
        Feasibility::No => json!({ "keeps_up": "no" }),
    }
}

fn cost_json(cost: &DriveCost) -> Value {
    let cpu = |c: CommandCpu| json!({ "drive_ns": c.drive.0, "host_ns": c.host.0 });
    match cost {
        DriveCost::Measured(measured) => {
            json!({ "read": cpu(measured.reads), "write": cpu(measured.writes) })
        }
        DriveCost::Unknown { reason } => json!({ "unknown": reason }),
    }
}

fn verdict_json(verdict: &DriveVerdict, cost: &DriveCost) -> Value {
    let findings = verdict.findings.iter().map(|f| {
        let mut value = feasibility_json(f.feasibility);
        value["way"] = path_names(f.path).1.into();
        value["what"] = f.demand.kind.into();
        value["bytes"] = f.demand.bytes.into();
        // Absent if nothing limits the drive.
        value["drive_iops_max"] = f.demand.iops.filter(|i| i.is_finite()).map(f64::round).into();
        value["drive_latency_ns"] = f.demand.latency.0.into();
        value["machine_iops_usable"] = f.costs.usable_iops().round().into();
        value["machine_ns_per_command"] = f.costs.per_command.0.into();
        value["reason"] = f.reason.as_str().into();
        value
    });
    let mut value = json!({
        "name": verdict.drive,
        "command_cost": cost_json(cost),
        "findings": findings.collect::<Vec<_>>(),
        "notes": verdict.notes,
    });
    for way in [DataPath::InProcess, DataPath::Nbd] {
        if let Some(answer) = verdict.feasibility(way) {
            value[path_names(way).1] = feasibility_json(answer);
        }
    }
    value
}
