//! Counts the instructions that rules add to the drive's turn.
//!
//! | case | instructions counted, per 4 KB command, 32 outstanding |
//! |---|---|
//! | `block-read`, `block-write` | all iterations of a drive that manages its flash, until it is idle |
//! | `rules-read`, `rules-write` | the same drive, whose commands `demo/rules/page.rules` decides about |
//! | `checked-read`, `checked-write` | as `rules-read` and `rules-write`, behind a rule that compares the block |
//! | `table-read`, `table-write` | as `rules-read` and `rules-write`, behind a rule that looks up a table |
//! | `timed-read`, `timed-write` | as `rules-read` and `rules-write`, with engines that take 1 ns per operation |
//!
//! The host's side is not counted. Reads are of a drive that was filled; writes go to an empty one,
//! which does not collect garbage. callgrind counts.
//!
//! | command | effect |
//! |---|---|
//! | `cargo bench --package sluice-controller --bench instructions` | counts, and fails if a bound is exceeded |
//! | the same with `-- run rules-read 1000` | runs as many batches without a counter, for timing |

#[path = "../tests/suite/common/mod.rs"]
mod common;

use std::path::Path;
use std::process::ExitCode;

use block::{BlockDevice as _, Payload, Raw, Request};
use controller::{Controller, DriveConfig, DriveRulesConfig, RuleMissConfig};
use media::{MediaConfig, NandConfig, NandGeometry};
use rng::Rng;
use rules_lang::{CompileOptions, check};
use testkit::instructions::{
    CountedCase, CountingMethod, DifferenceBound, Failed, InstructionBench, Marker,
};
use time::{Component, Nanos, VirtualRunner};

/// Commands of a batch.
const BATCH: u64 = 32;
const BATCHES: u64 = 16;
/// Batches before the counted ones, in which one-time work happens.
const WARM_UP_BATCHES: u64 = 8;

const fn case(name: &'static str, base: &'static str, bound: f64) -> CountedCase {
    CountedCase { name, base, bound, batch: BATCH }
}

/// Maximum instructions, for the workspace's own profile as `cargo bench` uses it: 5 % more than
/// counted.
const CASES: [CountedCase; 10] = [
    case("block-read", "", 2801.0),
    case("rules-read", "block-read", 2846.0),
    case("checked-read", "block-read", 2915.0),
    case("table-read", "block-read", 3720.0),
    case("timed-read", "block-read", 5350.0),
    case("block-write", "", 4201.0),
    case("rules-write", "block-write", 4243.0),
    case("checked-write", "block-write", 4312.0),
    case("table-write", "block-write", 5142.0),
    case("timed-write", "block-write", 7976.0),
];

const fn added(case: &'static str, base: &'static str, bound: f64) -> DifferenceBound {
    DifferenceBound { case, base, bound }
}

/// Maximum instructions that rules add to a command: at most 120 if they compare and place, and else 5 %
/// more than counted.
// guarantee: B-114
const DIFFERENCES: [DifferenceBound; 8] = [
    added("rules-read", "block-read", 120.0),
    added("rules-write", "block-write", 120.0),
    added("checked-read", "block-read", 120.0),
    added("checked-write", "block-write", 120.0),
    added("table-read", "block-read", 990.0),
    added("table-write", "block-write", 1030.0),
    added("timed-read", "block-read", 2630.0),
    added("timed-write", "block-write", 3875.0),
];

/// Returns a drive with the 64 parallel units that the program has.
fn config() -> DriveConfig {
    let geometry = NandGeometry { channels: 8, pus: 8, ..common::nand().geometry };
    common::drive(NandConfig { geometry, ..common::nand() })
}

/// `demo/rules/page.rules`: no command depends on a value.
const PAGE: &str = include_str!("../../../../demo/rules/page.rules");

/// A rule that is tried before those of [`PAGE`]: it compares the block of each command.
const CHECK: &str = "rule sealed priority 9 when channel.app == db and header.lba == 1000000000\n\
    do complete denied\n";

/// A rule that is tried before those of [`PAGE`]: it looks up the block of each command.
const TABLE: &str = "table sealed: u8[4] volatile\n\
    rule refuse priority 9 when channel.app == db and sealed[header.lba % 4] == 1\n\
    do complete denied\n";

/// Returns that drive with a program that decides about its commands.
fn with_rules(source: &str, op: Nanos) -> Result<DriveConfig, Failed> {
    let base = config();
    let MediaConfig::Nand(nand) = &base.media else { return Err("not NAND".into()) };
    let settings = DriveRulesConfig {
        program: Vec::new(),
        engines: 1,
        op,
        ops: 4096,
        table_bytes: 1 << 20,
        misses: RuleMissConfig::default(),
        idle_poll: None,
    };
    let options = CompileOptions { grant: settings.grant(nand), ..CompileOptions::default() };
    let verified = check(Path::new("page.rules"), source.as_bytes(), &options)?;
    let program = verified.program().encode();
    Ok(DriveConfig { rules: Some(DriveRulesConfig { program, ..settings }), ..base })
}

/// Polls a drive until it is idle. Returns the time at which it is.
fn run_until_idle(drive: &mut Controller, mut now: Nanos) -> Nanos {
    loop {
        drive.poll(now);
        match drive.deadline() {
            Nanos::MAX => return now,
            deadline => now = now.max(deadline),
        }
    }
}

/// Runs batches of one-block commands. The marker is called before and after the drive's turns.
fn commands(
    config: DriveConfig,
    reads: bool,
    batches: u64,
    marker: &mut Marker,
) -> Result<(), Failed> {
    let mut drive = Controller::new(config)?;
    let mut runner = VirtualRunner::new();
    if reads {
        common::precondition(&mut drive, &mut runner, 0.0);
    }
    let mut raw: Raw = common::raw(&mut drive, 256);
    let (_memory, at) = raw.memory().allocate_registered((BATCH * 4096) as usize)?;
    let (mut rng, mut now) = (Rng::new(1), runner.now());
    let blocks = drive.sectors();
    for round in 0..WARM_UP_BATCHES + batches {
        let off = &mut Marker::Off;
        let marker = if round >= WARM_UP_BATCHES { &mut *marker } else { off };
        for tag in 0..BATCH {
            let (lba, data) = (rng.below(blocks), Payload::Contiguous(at.offset(tag * 4096)));
            // The drive has no data to return.
            let request = match reads {
                true => Request::read(lba, 1, Payload::BitBucket, tag),
                false => Request::write(lba, 1, data, tag),
            };
            raw.submit(now, request)?;
        }
        raw.poll(now);
        marker.mark()?;
        now = run_until_idle(&mut drive, now);
        marker.mark()?;
        raw.poll(now);
        let mut left = BATCH;
        while let Some(done) = raw.reap() {
            left -= 1;
            if !done.status.is_success() {
                return Err(format!("{done:?}").into());
            }
        }
        if left > 0 {
            return Err(format!("{left} commands are not complete").into());
        }
    }
    Ok(())
}

/// Runs a case in this process.
fn run(case: &str, batches: u64, marker: &mut Marker) -> Result<(), Failed> {
    let (drive, op) = case.split_once('-').ok_or("no such case")?;
    let config = match drive {
        "block" => config(),
        "rules" => with_rules(PAGE, Nanos::ZERO)?,
        "checked" => with_rules(&format!("{PAGE}{CHECK}"), Nanos::ZERO)?,
        "table" => with_rules(&format!("{PAGE}{TABLE}"), Nanos::ZERO)?,
        "timed" => with_rules(PAGE, Nanos(1))?,
        _ => return Err(format!("no such case: {case}").into()),
    };
    commands(config, op == "read", batches, marker)
}

fn main() -> ExitCode {
    InstructionBench {
        cases: &CASES,
        ratios: &[],
        differences: &DIFFERENCES,
        batches: BATCHES,
        method: CountingMethod::Callgrind,
        run,
    }
    .main()
}
