//! Virtual and real time agree at the speed of NAND: one job runs on one drive in both, with garbage
//! collection. In virtual time the host costs what `sluice calibrate` measures on this machine.
//!
//! Drive and host run on one thread. A busy machine does not run it at times. Virtual time then has
//! the same gaps: nothing is polled in them. Requests whose completions were late by over a tenth of
//! tR are not judged. All others must take as long in both, on average. Nothing is repeated: whether
//! a completion is late does not depend on how long its request took.

// guarantee: B-82

use std::path::Path;

use controller::{Controller, DoorbellToFetch, OnTimeCommands};
use event::{RealClock, ThreadUse};
use scenario::Scenario;
use sluice_bench::RunLength;
use sluice_bench::calibrate::{HostCpuCosts, MachineCosts};
use stack::{DriveThreadState, SnapshotCell, Stack, precondition};
use time::{Component, Nanos, VirtualRunner};
use workload::{IoCpuCosts, JobRunner, JobSpec};

/// NAND with one plane, whose spare space is used up: overwrites cause collection.
const DRIVE: &str = "[drive]\npreset = \"femu-default\"\ndata = \"none\"\n\
     geometry = { channels = 4, pus = 2, chunks = 40, pages = 64 }\n\
     timing = { read = \"50us\", program = \"500us\", erase = \"3ms\" }\n\
     [precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n";

const READ: Nanos = Nanos::from_micros(50);

/// A tenth of tR.
const LATE_MAX: Nanos = Nanos(READ.0 / 10);

/// Duration of the jobs.
const RUNTIME: &str = "6s";

/// The largest difference, as a share of the virtual figure.
const BOUND: f64 = 0.05;

/// Least number of requests of a direction that are judged.
const JUDGED_MIN: u64 = 1_000;

/// Results of a run.
#[derive(Debug)]
struct Outcome {
    commands: OnTimeCommands,
    /// Sectors that collection moved.
    moved: u64,
    doorbells: DoorbellToFetch,
}

fn prepared() -> Stack {
    let scenario = Scenario::parse(Path::new("agreement"), DRIVE).unwrap();
    let stack = Stack::build(&scenario.drives[0], None).unwrap();
    let mut runner = VirtualRunner::new();
    precondition(stack, &scenario.precondition, &mut runner, 1, &mut |_| {}).unwrap()
}

/// Nine reads per write, four outstanding.
fn job() -> JobSpec {
    let pairs = [
        ("rw", "randrw"),
        ("rwmixread", "90"),
        ("bs", "4k"),
        ("iodepth", "4"),
        ("norandommap", "1"),
        ("time_based", "1"),
        ("runtime", RUNTIME),
    ];
    let pairs = pairs.iter().enumerate().map(|(i, (k, v))| (*k, *v, i + 1));
    JobSpec::from_pairs("mixed", Path::new("agreement"), pairs).unwrap().0
}

fn outcome(drive: &Controller, moved_before: u64) -> Outcome {
    let stats = drive.stats();
    Outcome {
        commands: drive.command_times().unwrap().on_time,
        moved: stats.ftl.unwrap().gc_relocations - moved_before,
        doorbells: stats.doorbell_to_fetch,
    }
}

/// A time in which the machine did not run the thread: its begin and its end.
type Gap = (Nanos, Nanos);

fn in_virtual_time(costs: HostCpuCosts, gaps: &[Gap]) -> Outcome {
    let Stack { mut drive, device, .. } = prepared();
    drive.record_on_time_commands(LATE_MAX);
    let moved = drive.stats().ftl.unwrap().gc_relocations;
    let costs = IoCpuCosts { submit: costs.submit, complete: costs.complete };
    let mut host = JobRunner::new(device, vec![job()], costs, 1).unwrap();
    let (mut now, mut gaps) = (Nanos::ZERO, gaps.iter().peekable());
    while !host.is_done() {
        while host.poll(now) | drive.poll(now) {}
        now = now.max(host.deadline().min(drive.deadline()));
        while let Some((_, to)) = gaps.next_if(|(from, _)| *from < now) {
            now = now.max(*to);
        }
    }
    host.finish().unwrap();
    outcome(&drive, moved)
}

/// Runs drive and host on one thread, which polls without pause. Returns the gaps, too.
fn in_real_time() -> (Outcome, Vec<Gap>) {
    let Stack { mut drive, device, port, .. } = prepared();
    drive.record_on_time_commands(LATE_MAX);
    let moved = drive.stats().ftl.unwrap().gc_relocations;
    let mut host = JobRunner::new(device, vec![job()], IoCpuCosts::default(), 1).unwrap();
    port.set_drive_polled_by_host();
    let (mut gaps, mut last) = (Vec::new(), Nanos::ZERO);
    let clock = RealClock::start();
    let mut live = DriveThreadState::new(drive, clock, SnapshotCell::new(), ThreadUse::Shared);
    while !host.is_done() {
        let now = clock.now();
        if now.since(last) > LATE_MAX {
            gaps.push((last, now));
        }
        last = now;
        host.poll(now);
        live.poll(now);
    }
    host.finish().unwrap();
    (outcome(live.drive.nvme().unwrap(), moved), gaps)
}

#[test]
fn requests_that_were_not_late_take_as_long_as_in_virtual_time() {
    let costs = MachineCosts::measure(RunLength::Full).unwrap().in_process();
    let (real, gaps) = in_real_time();
    let virtual_run = in_virtual_time(costs, &gaps);
    let stopped: u64 = gaps.iter().map(|(from, to)| to.since(*from).0).sum();
    println!("{costs:?}; {} gaps, {} in all", gaps.len(), Nanos(stopped));
    println!("virtual: {virtual_run:?}\nreal: {real:?}");
    assert!(matches!(virtual_run.doorbells, DoorbellToFetch::Unknown(_)));
    assert!(virtual_run.moved > 1_000, "collection runs: {virtual_run:?}");
    let judged = real.commands.reads.count.min(real.commands.writes.count);
    if judged < JUDGED_MIN {
        testkit::skip!("{judged} requests were not late, {JUDGED_MIN} are needed: {real:?}");
        return;
    }
    assert!(real.moved > 1_000, "collection runs: {real:?}");
    assert!(matches!(real.doorbells, DoorbellToFetch::Measured { .. }), "{real:?}");
    for (what, found, expected) in [
        ("reads", real.commands.reads, virtual_run.commands.reads),
        ("writes", real.commands.writes, virtual_run.commands.writes),
    ] {
        let (found, expected) = (found.mean_ns().unwrap(), expected.mean_ns().unwrap());
        let apart = found / expected - 1.0;
        println!("{what}: {found:.0} ns and {expected:.0} ns in virtual time, {apart:+.3}");
        assert!(apart.abs() <= BOUND, "{what}: {found:.0} ns, {expected:.0} ns in virtual time");
    }
}
