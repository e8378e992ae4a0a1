//! What `sluice calibrate` prints: a table, lines for a scenario, the verdict; and the same as JSON.

use std::fmt::Write as _;

use clock::Nanos;
use serde_json::{Value, json};

use super::verdict::Way;
use super::{Answer, HostCosts, Machine, ModelCost, ModelSource, Trip, Verdict};
use crate::bench::{Quantiles, aligned};
use crate::scenario::Scenario;
use crate::text::duration;

/// A scenario and what was found of its drives.
pub type Judged<'a> = (&'a Scenario, &'a [Verdict]);

/// Everything for a terminal.
pub fn text(machine: &Machine, judged: Option<Judged<'_>>, model: ModelCost) -> String {
    let mut out = format!("this machine, {} CPUs\n\n", machine.cpus);
    if let Some(load) = machine.load.filter(|_| machine.is_busy()) {
        let _ = writeln!(
            out,
            "It is busy with other programs (load average {load:.1}): alone it costs less.\n"
        );
    }
    out.push_str(&table(machine));
    out.push_str("\nfor a scenario, through a queue pair in process\n\n");
    out.push_str(&host_lines(machine.in_process()));
    out.push_str("\nfor a scenario, through NBD on a Unix socket\n\n");
    out.push_str(&host_lines(machine.through_nbd()));
    if let Some((scenario, verdicts)) = judged {
        for verdict in verdicts {
            out.push('\n');
            out.push_str(&verdict_text(scenario, verdict, model));
        }
    }
    out
}

/// The `[host]` section to paste into a scenario.
pub fn host_lines(host: HostCosts) -> String {
    format!("[host]\nsubmit = \"{}ns\"\ncomplete = \"{}ns\"\n", host.submit.0, host.complete.0)
}

/// Rows of the table: a name, and a single cost or quantiles of it.
fn rows(machine: &Machine) -> Vec<(String, Cost)> {
    let Machine { threads, queue, copies, socket, .. } = machine;
    let mut rows: Vec<(String, Cost)> = [
        ("read the clock", Cost::Mean(threads.clock_read)),
        ("submit: request to doorbell", Cost::Each(queue.submit)),
        ("complete: find and take a completion", Cost::Each(queue.complete)),
        ("poll of an idle queue", Cost::Mean(queue.idle_poll)),
        ("round trip to an echo drive", Cost::Each(queue.round_trip)),
        ("per command, 32 outstanding", Cost::Mean(queue.pipelined)),
        ("per command on the echo drive's thread", Cost::Mean(queue.echo)),
        ("wake a parked thread", Cost::Each(threads.wake)),
        ("  of that, the waking thread's call", Cost::Each(threads.wake_call)),
        ("nanosleep ends late by", Cost::Each(threads.sleep_late)),
        ("a parked thread's deadline, late by", Cost::Each(threads.park_late)),
        ("copy 4 KiB, cached", Cost::Mean(copies.cached)),
        ("copy 4 KiB, cold", Cost::Mean(copies.cold)),
        ("longest time a spinning thread was not run", Cost::Most(threads.stall)),
    ]
    .map(|(name, cost)| (name.to_owned(), cost))
    .to_vec();
    let mut trip = |server: &str, trip: &Trip| {
        rows.push((format!("NBD round trip, server {server}"), Cost::Each(trip.round_trip)));
        rows.push(("  submit: write to server".into(), Cost::Each(trip.submit)));
        rows.push(("  complete: server to reader".into(), Cost::Each(trip.complete)));
    };
    if let Some(awake) = &socket.awake {
        trip("awake", awake);
    }
    trip("asleep", &socket.asleep);
    rows.push(("NBD per request, 32 outstanding".into(), Cost::Mean(socket.pipelined)));
    rows
}

/// One row's numbers.
#[derive(Clone, Copy, Debug)]
enum Cost {
    /// Of many together, or one that hardly varies.
    Mean(Nanos),
    /// Of single events.
    Each(Quantiles),
    /// The largest of all.
    Most(Nanos),
}

fn table(machine: &Machine) -> String {
    let mut lines = vec![["cost", "median", "99th", "most"].map(str::to_owned)];
    let shown = |n: Nanos| duration(n.0);
    for (name, cost) in rows(machine) {
        let [p50, p99, max] = match cost {
            Cost::Mean(mean) => [shown(mean), String::new(), String::new()],
            Cost::Each(q) => [shown(q.p50), shown(q.p99), shown(q.max)],
            Cost::Most(max) => [String::new(), String::new(), shown(max)],
        };
        lines.push([name, p50, p99, max]);
    }
    aligned(&lines, [false, true, true, true])
}

fn verdict_text(scenario: &Scenario, verdict: &Verdict, model: ModelCost) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "does it keep up with drive \"{}\" of {} in real time?\n",
        verdict.drive,
        scenario.file.display()
    );
    for way in [Way::InProcess, Way::Nbd] {
        let Some(answer) = verdict.answer(way) else { continue };
        let (name, _) = way_words(way);
        let estimate = match (answer, model.source) {
            (Answer::Yes | Answer::UpToDepth(_), ModelSource::Echo) => ", the drive's model aside",
            _ => "",
        };
        let _ = writeln!(out, "{name}: {answer}{estimate}");
        for finding in verdict.findings.iter().filter(|f| f.way == way) {
            let _ = writeln!(
                out,
                "  {}, {} each: {}. {}.",
                finding.demand.what,
                crate::text::bytes_binary(finding.demand.bytes),
                finding.answer,
                capital(&finding.reason)
            );
        }
    }
    if !verdict.notes.is_empty() {
        out.push_str("\nto know\n");
        for note in &verdict.notes {
            let _ = writeln!(out, "  - {}.", capital(note));
        }
    }
    out
}

fn capital(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars.next().map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

/// A way for people, and for programs.
fn way_words(way: Way) -> (&'static str, &'static str) {
    match way {
        Way::InProcess => ("through a queue pair in process", "in_process"),
        Way::Nbd => ("through NBD", "nbd"),
    }
}

/// Everything as JSON; all times in nanoseconds.
pub fn json(machine: &Machine, judged: Option<Judged<'_>>, model: ModelCost) -> Value {
    let Machine { cpus, load, threads, queue, copies, socket } = machine;
    let trip = |trip: &Trip| {
        json!({
            "submit_ns": quantiles(trip.submit),
            "complete_ns": quantiles(trip.complete),
            "round_trip_ns": quantiles(trip.round_trip),
        })
    };
    let host = |h: HostCosts| json!({ "submit_ns": h.submit.0, "complete_ns": h.complete.0 });
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
            "watched_ns": threads.watched.0,
        },
        "copy_4k": { "cached_ns": copies.cached.0, "cold_ns": copies.cold.0 },
        "nbd": {
            "awake": socket.awake.as_ref().map(trip),
            "asleep": trip(&socket.asleep),
            "pipelined_ns": socket.pipelined.0,
        },
        "host": { "in_process": host(machine.in_process()), "nbd": host(machine.through_nbd()) },
    });
    if let Some((scenario, verdicts)) = judged {
        let source = match model.source {
            ModelSource::Echo => "echo",
            ModelSource::Drive => "drive",
        };
        value["scenario"] = json!({
            "file": scenario.file.display().to_string(),
            "model_cost": { "per_command_ns": model.per_command.0, "source": source },
            "drives": verdicts.iter().map(verdict_json).collect::<Vec<_>>(),
        });
    }
    value
}

fn quantiles(q: Quantiles) -> Value {
    json!({ "p50": q.p50.0, "p99": q.p99.0, "max": q.max.0 })
}

fn answer_json(answer: Answer) -> Value {
    match answer {
        Answer::Yes => json!({ "keeps_up": "yes" }),
        Answer::UpToDepth(depth) => json!({ "keeps_up": "up_to_depth", "depth": depth }),
        Answer::No => json!({ "keeps_up": "no" }),
    }
}

fn verdict_json(verdict: &Verdict) -> Value {
    let findings = verdict.findings.iter().map(|f| {
        let mut value = answer_json(f.answer);
        value["way"] = way_words(f.way).1.into();
        value["what"] = f.demand.what.into();
        value["bytes"] = f.demand.bytes.into();
        // Absent where nothing limits the drive.
        value["drive_iops_max"] = f.demand.iops.filter(|i| i.is_finite()).map(f64::round).into();
        value["drive_latency_ns"] = f.demand.latency.0.into();
        value["machine_iops_usable"] = f.costs.usable_iops().round().into();
        value["machine_ns_per_command"] = f.costs.per_command.0.into();
        value["reason"] = f.reason.as_str().into();
        value
    });
    let mut value = json!({
        "name": verdict.drive,
        "findings": findings.collect::<Vec<_>>(),
        "notes": verdict.notes,
    });
    for way in [Way::InProcess, Way::Nbd] {
        if let Some(answer) = verdict.answer(way) {
            value[way_words(way).1] = answer_json(answer);
        }
    }
    value
}
