//! Tests of the verdict's arithmetic and of the output format; no timing is asserted.

use std::path::Path;

use scenario::Scenario;
use serde_json::Value;
use sim::analytic::ClosedFormLimits;
use time::Nanos;

use super::verdict::{CommandCosts, DataPath, DriveDemand, Finding, assess, costs, demands, judge};
use super::{
    CopyCosts, DriveVerdict, Feasibility, MachineCosts, ModelCost, ModelSource, QueueCosts,
    RoundTrip, SocketCosts, ThreadCosts, report,
};
use crate::Quantiles;

fn quantiles(p50: u64) -> Quantiles {
    Quantiles { p50: Nanos(p50), p99: Nanos(2 * p50), max: Nanos(10 * p50) }
}

fn round_trip(submit: u64, complete: u64) -> RoundTrip {
    RoundTrip {
        submit: quantiles(submit),
        complete: quantiles(complete),
        round_trip: quantiles(submit + complete),
    }
}

/// Returns a machine with round numbers.
fn machine(cpus: usize) -> MachineCosts {
    MachineCosts {
        cpus,
        load: Some(0.1),
        threads: ThreadCosts {
            clock_read: Nanos(20),
            wake: quantiles(20_000),
            wake_call: quantiles(5_000),
            sleep_late: quantiles(60_000),
            park_late: quantiles(40_000),
            stall: Nanos::from_millis(3),
            observed: Nanos::from_millis(500),
        },
        queue: QueueCosts {
            submit: quantiles(30),
            complete: quantiles(40),
            idle_poll: Nanos(5),
            round_trip: quantiles(200),
            pipelined: Nanos(50),
            echo: Nanos(10),
        },
        copies: CopyCosts { cached: Nanos(60), cold: Nanos(400) },
        socket: SocketCosts {
            awake: (cpus > 1).then(|| round_trip(2_000, 15_000)),
            asleep: round_trip(25_000, 30_000),
            pipelined: Nanos(4_000),
        },
    }
}

fn model(per_command: u64) -> ModelCost {
    ModelCost { per_command: Nanos(per_command), source: ModelSource::Drive }
}

fn scenario(text: &str) -> Scenario {
    Scenario::parse(Path::new("s.toml"), text).unwrap()
}

fn demand(iops: Option<f64>, latency: u64) -> DriveDemand {
    DriveDemand { kind: "reads", bytes: 4096, iops, latency: Nanos(latency) }
}

fn feasibility(iops: Option<f64>, latency: u64, per_command: u64, way: u64) -> Feasibility {
    let costs = CommandCosts { per_command: Nanos(per_command), round_trip: Nanos(way) };
    assess(&demand(iops, latency), &costs).0
}

#[test]
fn a_machine_keeps_up_until_four_fifths_of_its_rate() {
    // 1 us per command: 800,000 of 1,000,000 IOPS are usable.
    assert_eq!(feasibility(Some(800_000.0), 100_000, 1_000, 0), Feasibility::Yes);
    // Little's law: 800,000 x 100 us = 80; with a round trip of 20 us, it is 96.
    assert_eq!(feasibility(Some(800_001.0), 100_000, 1_000, 0), Feasibility::UpToDepth(80));
    assert_eq!(feasibility(Some(800_001.0), 100_000, 1_000, 20_000), Feasibility::UpToDepth(96));
    assert_eq!(feasibility(None, 100_000, 1_000, 0), Feasibility::UpToDepth(80));
    // The drive takes 1 us per command; at most one command per 1.25 us may be demanded of the
    // machine.
    assert_eq!(feasibility(Some(5e6), 1_000, 1_000, 0), Feasibility::No);
    assert_eq!(feasibility(Some(5e6), 1_000, 1_000, 250), Feasibility::UpToDepth(1));
    // Any machine keeps up with a drive that takes no time.
    assert_eq!(feasibility(None, 0, 1_000, 0), Feasibility::Yes);
    // Costs of zero must not cause a division by zero.
    assert_eq!(feasibility(Some(1e6), 0, 0, 0), Feasibility::Yes);
}

#[test]
fn the_worse_answer_counts() {
    use Feasibility::{No, UpToDepth, Yes};
    assert_eq!(Yes.worse(Yes), Yes);
    assert_eq!(Yes.worse(UpToDepth(3)), UpToDepth(3));
    assert_eq!(UpToDepth(9).worse(UpToDepth(3)), UpToDepth(3));
    assert_eq!(UpToDepth(9).worse(No), No);
    assert_eq!(No.worse(Yes), No);
}

#[test]
fn costs_add_up_where_cpus_are_few() {
    let none = scenario("[drive]\npreset = \"mqsim-default-small\"\ndata = \"none\"\n");
    let plan = &none.drives[0];
    let per_command =
        |cpus, way, model_ns| costs(plan, &machine(cpus), model(model_ns), way, 4096).per_command.0;
    assert_eq!(per_command(2, DataPath::InProcess, 20), 50, "the slower of host and drive");
    assert_eq!(per_command(2, DataPath::InProcess, 300), 300);
    assert_eq!(per_command(1, DataPath::InProcess, 300), 350);
    assert_eq!(per_command(2, DataPath::Nbd, 300), 4_350, "client, server and drive on two CPUs");
    assert_eq!(per_command(3, DataPath::Nbd, 300), 4_050);
    let memory = scenario("[drive]\npreset = \"mqsim-default-small\"\ndata = \"memory\"\n");
    let kept = costs(&memory.drives[0], &machine(2), model(300), DataPath::InProcess, 8192);
    assert_eq!(kept.per_command.0, 300 + 2 * 400, "data that is kept is copied");
    assert_eq!(costs(plan, &machine(1), model(0), DataPath::Nbd, 4096).round_trip.0, 55_000 + 200);
}

#[test]
fn demands_are_the_closed_forms() {
    let scenario = scenario("[drive]\npreset = \"femu-default\"\n");
    let limits = ClosedFormLimits::from_spec(&scenario.drives[0]);
    let [reads, writes] = demands(&limits);
    assert_eq!(reads.iops, limits.random_read.as_ref().map(|l| l.iops()));
    assert_eq!(reads.latency, limits.read_latency);
    let written = writes.iops.unwrap() * writes.bytes as f64;
    let program = limits.program.as_ref().unwrap().bytes_per_sec();
    assert!((written - program).abs() < program * 1e-9);
}

#[test]
fn an_open_channel_drive_without_a_target_has_no_nbd_way() {
    let text = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\npersonality = \"open-channel\"\n";
    let [verdict] = judge(&scenario(text), &machine(2), model(100)).try_into().unwrap();
    assert_eq!(verdict.feasibility(DataPath::Nbd), None);
    assert!(verdict.feasibility(DataPath::InProcess).is_some());
    assert!(verdict.notes.iter().all(|n| !n.contains("NBD")));
}

#[test]
fn notes_come_with_their_cause() {
    let one = scenario("[drive]\npreset = \"mqsim-default-small\"\ndata = \"none\"\n");
    let note = |machine: &MachineCosts, model: ModelCost, part: &str| {
        judge(&one, machine, model)[0].notes.iter().any(|n| n.contains(part))
    };
    let mut slow = machine(2);
    assert!(!note(&slow, model(10), "wakes up to"));
    slow.threads.park_late = quantiles(80_000);
    assert!(note(&slow, model(10), "wakes up to 160 us late"));
    assert!(note(&slow, model(10), "was not run for 3 ms"));
    slow.threads.stall = Nanos(100);
    slow.threads.wake = quantiles(50);
    assert!(!note(&slow, model(10), "was not run"));
    assert!(!note(&slow, model(10), "until its thread is awake"));
    let echo = ModelCost { per_command: Nanos(10), source: ModelSource::Echo };
    assert!(note(&slow, echo, "upper bounds") && !note(&slow, model(10), "upper bounds"));
    let two = scenario(
        "[[drive]]\nname = \"a\"\npreset = \"pcm\"\n[[drive]]\nname = \"b\"\npreset = \"pcm\"\n",
    );
    let verdicts = judge(&two, &machine(2), model(10));
    assert!(verdicts.iter().all(|v| v.notes.iter().any(|n| n.starts_with("2 drives share"))));
}

#[test]
fn host_lines_are_a_section_of_a_scenario() {
    let machine = machine(2);
    for host in [machine.in_process(), machine.through_nbd()] {
        let lines = report::host_lines(host, machine.threads.wake.p50);
        let read = scenario(&format!("[drive]\npreset = \"pcm\"\n{lines}"));
        assert_eq!(
            (read.host.submit_cost, read.host.complete_cost),
            (Some(host.submit), Some(host.complete))
        );
        assert_eq!(read.host.interrupt_cost, Some(Nanos(20_000)));
    }
    assert_eq!(machine.through_nbd().submit, Nanos(2_030));
    assert_eq!(machine.through_nbd().complete, Nanos(15_040));
}

#[test]
fn json_has_no_number_that_is_none() {
    let scenario = scenario(
        "[[drive]]\nname = \"a\"\npreset = \"pcm\"\n\
         [[drive]]\nname = \"b\"\npreset = \"mqsim-default-small\"\n",
    );
    let mut verdicts = judge(&scenario, &machine(1), model(500));
    verdicts.push(DriveVerdict {
        drive: "unlimited".into(),
        findings: vec![Finding {
            path: DataPath::InProcess,
            demand: demand(None, 0),
            costs: CommandCosts { per_command: Nanos(0), round_trip: Nanos(0) },
            feasibility: Feasibility::Yes,
            reason: String::new(),
        }],
        notes: Vec::new(),
    });
    let value = report::json(&machine(1), Some((&scenario, &verdicts)), model(500));
    let drives = value["scenario"]["drives"].as_array().unwrap();
    assert_eq!(drives.len(), 3);
    assert_eq!(drives[2]["findings"][0]["drive_iops_max"], Value::Null, "nothing limits it");
    assert_eq!(value["host"]["nbd"]["submit_ns"], 25_030);
    assert_eq!(value["nbd"]["awake"], Value::Null, "on one CPU");
    for drive in &drives[..2] {
        for finding in drive["findings"].as_array().unwrap() {
            assert!(finding["drive_iops_max"].is_f64(), "{finding}");
            assert!(finding["machine_iops_usable"].is_f64(), "{finding}");
        }
    }
    let text = report::text(&machine(1), Some((&scenario, &verdicts)), model(500));
    for part in ["[host]", "server asleep", "through NBD", "drive \"b\" of s.toml"] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    assert!(!text.contains("inf") && !text.contains("NaN"), "{text}");
    assert!(!text.contains("server awake"));
    let busy = MachineCosts { load: Some(0.5), ..machine(1) };
    assert!(report::text(&busy, None, model(500)).contains("busy with other programs"));
    assert!(!text.contains("busy with other programs"));
}
