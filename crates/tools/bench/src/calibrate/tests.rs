//! Tests of the verdict's arithmetic and of the output format; no timing is asserted.

use std::path::Path;

use scenario::Scenario;
use serde_json::Value;
use sim::analytic::ClosedFormLimits;
use time::Nanos;

use super::verdict::{CommandCosts, DataPath, DriveDemand, Finding, assess, costs, demands, judge};
use super::{
    CommandCpu, CopyCosts, DriveCost, DriveVerdict, Feasibility, MachineCosts, MeasuredDrive,
    QueueCosts, RoundTrip, SocketCosts, ThreadCosts, drive_run, report,
};
use crate::{Quantiles, RunLength};

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

fn cpu(drive: u64, host: u64) -> CommandCpu {
    CommandCpu { drive: Nanos(drive), host: Nanos(host) }
}

/// Returns the cost of a drive whose commands cost its thread this much.
fn measured(drive: u64) -> DriveCost {
    DriveCost::Measured(MeasuredDrive { reads: cpu(drive, 0), writes: cpu(drive, 0) })
}

fn unknown() -> DriveCost {
    DriveCost::Unknown { reason: "it is not here".into() }
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
    let per_command =
        |cpus, way, drive, host| costs(&machine(cpus), cpu(drive, host), way).per_command.0;
    assert_eq!(per_command(2, DataPath::InProcess, 20, 0), 50, "the slower of host and drive");
    assert_eq!(per_command(2, DataPath::InProcess, 300, 0), 300);
    assert_eq!(per_command(2, DataPath::InProcess, 300, 900), 900, "a target on the host");
    assert_eq!(per_command(1, DataPath::InProcess, 300, 0), 350);
    assert_eq!(per_command(1, DataPath::InProcess, 300, 900), 1_200);
    assert_eq!(
        per_command(2, DataPath::Nbd, 300, 0),
        4_350,
        "client, server and drive on two CPUs"
    );
    assert_eq!(per_command(3, DataPath::Nbd, 300, 0), 4_050);
    assert_eq!(costs(&machine(1), cpu(0, 0), DataPath::Nbd).round_trip.0, 55_000 + 200);
}

#[test]
fn a_drive_that_was_not_run_is_never_kept_up_with() {
    let two = scenario(
        "[[drive]]\nname = \"a\"\npreset = \"femu-default\"\n\
         [[drive]]\nname = \"b\"\npreset = \"nvme-null\"\n",
    );
    let verdicts = judge(&two, &machine(2), &[unknown(), unknown()]);
    for verdict in &verdicts {
        for way in [DataPath::InProcess, DataPath::Nbd] {
            assert_eq!(verdict.feasibility(way), Some(Feasibility::Unknown), "{verdict:?}");
        }
        assert!(verdict.notes.iter().any(|n| n.contains("was not run, because it is not here")));
    }
    // A machine that is too slow for a drive without a model is too slow for the drive.
    let mut slow = machine(2);
    slow.queue.echo = Nanos::from_millis(10);
    let verdicts = judge(&two, &slow, &[unknown(), unknown()]);
    assert_eq!(verdicts[0].feasibility(DataPath::InProcess), Some(Feasibility::No));
    let value = report::json(&slow, Some((&two, &[unknown(), unknown()], &verdicts)));
    assert_eq!(value["scenario"]["drives"][0]["command_cost"]["unknown"], "it is not here");
}

#[test]
fn the_drive_of_the_scenario_is_run() {
    let small = "geometry = { channels = 2, pus = 2, chunks = 24, pages = 16 }\n";
    for (name, text) in [
        ("block", format!("[drive]\npreset = \"femu-default\"\n{small}")),
        (
            "pblk",
            format!(
                "[drive]\npreset = \"femu-default\"\npersonality = \"open-channel\"\n{small}\
                 [target]\nkind = \"pblk\"\n"
            ),
        ),
        ("pcm", "[drive]\npreset = \"pcm\"\n".to_owned()),
        ("null", "[drive]\npreset = \"nvme-null\"\n".to_owned()),
    ] {
        let cost = drive_run::measure(RunLength::Quick, &scenario(&text).drives[0], Nanos(20));
        let DriveCost::Measured(measured) = cost else { panic!("{name}: {cost:?}") };
        for cpu in [measured.reads, measured.writes] {
            assert!(cpu.drive > Nanos(1) && cpu.host > Nanos(1), "{name}: {measured:?}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let kept =
        format!("[drive]\npreset = \"femu-default\"\n{small}data = \"file\"\npath = {image:?}\n");
    let cost = drive_run::measure(RunLength::Quick, &scenario(&kept).drives[0], Nanos(20));
    assert!(matches!(cost, DriveCost::Measured(_)) && !image.exists(), "{cost:?}");
}

#[test]
fn a_drive_that_cannot_be_run_has_an_unknown_cost() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::write(&image, "no image").unwrap();
    let broken = format!("[drive]\npreset = \"femu-default\"\ndata = \"file\"\npath = {image:?}\n");
    for (text, part) in [
        (
            "[drive]\npreset = \"ocssd-mlc-128pu-small\"\npersonality = \"open-channel\"\n",
            "no target",
        ),
        ("[drive]\nkind = \"ahci\"\n", "ahci"),
        (&broken, "is not an image"),
    ] {
        let cost = drive_run::measure(RunLength::Quick, &scenario(text).drives[0], Nanos(20));
        let DriveCost::Unknown { reason } = cost else { panic!("{text}: {cost:?}") };
        assert!(reason.to_lowercase().contains(part), "{reason}");
    }
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
    let [verdict] = judge(&scenario(text), &machine(2), &[measured(100)]).try_into().unwrap();
    assert_eq!(verdict.feasibility(DataPath::Nbd), None);
    assert!(verdict.feasibility(DataPath::InProcess).is_some());
    assert!(verdict.notes.iter().all(|n| !n.contains("NBD")));
}

#[test]
fn notes_come_with_their_cause() {
    let one = scenario("[drive]\npreset = \"mqsim-default-small\"\ndata = \"none\"\n");
    let note = |machine: &MachineCosts, cost: DriveCost, part: &str| {
        judge(&one, machine, &[cost])[0].notes.iter().any(|n| n.contains(part))
    };
    let mut slow = machine(2);
    assert!(!note(&slow, measured(10), "wakes up to"));
    slow.threads.park_late = quantiles(80_000);
    assert!(note(&slow, measured(10), "wakes up to 160 us late"));
    assert!(note(&slow, measured(10), "was not run for 3 ms"));
    slow.threads.stall = Nanos(100);
    slow.threads.wake = quantiles(50);
    assert!(!note(&slow, measured(10), "was not run"));
    assert!(!note(&slow, measured(10), "until its thread is awake"));
    assert!(note(&slow, unknown(), "upper bounds") && !note(&slow, measured(10), "upper bounds"));
    let two = scenario(
        "[[drive]]\nname = \"a\"\npreset = \"pcm\"\n[[drive]]\nname = \"b\"\npreset = \"pcm\"\n",
    );
    let verdicts = judge(&two, &machine(2), &[measured(10), measured(10)]);
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
    let costs = [measured(500), measured(500), unknown()];
    let mut verdicts = judge(&scenario, &machine(1), &costs[..2]);
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
    let value = report::json(&machine(1), Some((&scenario, &costs, &verdicts)));
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
    let text = report::text(&machine(1), Some((&scenario, &costs, &verdicts)));
    for part in ["[host]", "server asleep", "through NBD", "drive \"b\" of s.toml"] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    assert!(!text.contains("inf") && !text.contains("NaN"), "{text}");
    assert!(!text.contains("server awake"));
    let busy = MachineCosts { load: Some(0.5), ..machine(1) };
    assert!(report::text(&busy, None).contains("busy with other programs"));
    assert!(!text.contains("busy with other programs"));
}
