//! Random commands with failures and power cuts against an oracle, through a driver's queue pair in
//! virtual time. For every sector, the oracle knows the possible values after a power cut
//! (ARCHITECTURE.md, R7).
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-controller --test
//! suite oracle::`. `SLUICE_CASES` sets the number of seeds.

// guarantee: D-01, D-08, D-40, D-56

mod atomic_writes;
mod block_commands;
mod case;
mod configs;
mod durable_tables;
mod fetching_rules;
mod host_file;
mod rules;
mod sector;

use block_commands::CheckCounts;
use case::{Blocks, Case, Medium};
use testkit::oracle::run_seeds;

/// Seeds that found a bug: space was exhausted although spare chunks remained.
const REGRESSIONS: [u64; 1] = [4149];

/// The numbers of all seeds.
#[derive(Debug, Default)]
struct Sums {
    /// Lines reclaimed.
    reclaimed: u64,
    /// Power cuts.
    cuts: u64,
    /// Units that were changed in part.
    partial_units: u64,
}

/// Runs seeds and reports the failing one.
fn run(medium: Medium, blocks: Blocks, cases: u64) -> Sums {
    let replay = "cargo test -p sluice-controller --test suite oracle::";
    let run = run_seeds(cases, &REGRESSIONS, replay, |seed| {
        let mut case = Case::new(seed, medium, blocks);
        case.run();
        (case.reclaimed, case.cuts, case.partial_units)
    });
    run.results.iter().fold(Sums::default(), |sums, (reclaimed, cuts, partial_units)| Sums {
        reclaimed: sums.reclaimed + reclaimed,
        cuts: sums.cuts + cuts,
        partial_units: sums.partial_units + partial_units,
    })
}

#[test]
fn everything_flushed_survives_power_cuts_and_nothing_else_appears() {
    let sums = run(Medium::Memory, Blocks::Units, 1_000);
    assert!(sums.reclaimed > 0, "garbage collection never ran");
    assert!(sums.cuts > 0, "power was never cut");
}

// guarantee: B-83

/// Compare, Verify and Copy see the values of the oracle, and marks of Write Uncorrectable are as
/// durable as values.
#[test]
fn blocks_are_checked_marked_and_copied_as_the_oracle_says() {
    let replay = "cargo test -p sluice-controller --test suite oracle::";
    for (medium, blocks, cases) in [
        (Medium::Memory, Blocks::Units, 250),
        (Medium::Memory, Blocks::Parts, 100),
        (Medium::Image, Blocks::Units, 30),
        (Medium::CrashedHost { durable: true }, Blocks::Units, 10),
    ] {
        let run = run_seeds(cases, &[], replay, |seed| {
            let mut case = Case::with_block_commands(seed, medium, blocks);
            case.run();
            (case.cuts, case.block_commands.map(|own| own.counts).unwrap_or_default())
        });
        let sum = |of: fn(&(u64, CheckCounts)) -> u64| run.results.iter().map(of).sum::<u64>();
        let cuts = sum(|(cuts, _)| *cuts);
        let (mismatches, copies) = (sum(|(_, c)| c.mismatches), sum(|(_, c)| c.copies));
        let unreadable = sum(|(_, c)| c.unreadable);
        assert!(cuts > 0 && mismatches > 0 && copies > 0, "{cuts} {mismatches} {copies}");
        assert_eq!(unreadable > 0, blocks == Blocks::Units, "{unreadable} unreadable");
    }
}

// guarantee: B-116

#[test]
fn everything_flushed_survives_power_cuts_of_a_drive_with_rules() {
    let replay = "cargo test -p sluice-controller --test suite oracle::";
    for (medium, cases) in [(Medium::Memory, 300), (Medium::Image, 30)] {
        let run = run_seeds(cases, &REGRESSIONS, replay, |seed| {
            let mut case = Case::with_rules(seed, medium);
            case.run();
            let rules = case.drive().stats().rules.expect("a drive with rules");
            (case.cuts, rules.inputs, rules.victims)
        });
        let sum = |of: fn(&(u64, u64, u64)) -> u64| run.results.iter().map(of).sum::<u64>();
        let (cuts, inputs, victims) = (sum(|r| r.0), sum(|r| r.1), sum(|r| r.2));
        assert!(cuts > 0 && inputs > 0, "{cuts} cuts, {inputs} inputs");
        assert!(medium == Medium::Image || victims > 0, "no rule chose a victim");
    }
}

// guarantee: B-128

#[test]
fn everything_flushed_survives_power_cuts_in_either_stream_of_a_drive_with_rules() {
    let replay = "cargo test -p sluice-controller --test suite oracle::";
    let run = run_seeds(300, &[], replay, |seed| {
        let mut case = Case::with_hot_rules(seed, Medium::Memory);
        case.run();
        (case.cuts, case.reclaimed, case.hot_sectors)
    });
    let sum = |of: fn(&(u64, u64, u64)) -> u64| run.results.iter().map(of).sum::<u64>();
    let (cuts, reclaimed, hot) = (sum(|r| r.0), sum(|r| r.1), sum(|r| r.2));
    assert!(cuts > 0 && reclaimed > 0 && hot > 0, "{cuts} cuts, {reclaimed} lines, {hot} sectors");
}

#[test]
fn everything_flushed_is_in_the_image_of_a_killed_process() {
    let sums = run(Medium::Image, Blocks::Units, 100);
    assert!(sums.cuts > 0, "no drive process was killed");
}

// guarantee: B-79

/// Commands change blocks of the same units at the same time, and the blocks beside them keep their
/// values: also after power cuts.
#[test]
fn parts_of_units_are_changed_and_nothing_beside_them() {
    let sums = run(Medium::Memory, Blocks::Parts, 500);
    assert!(sums.reclaimed > 0, "garbage collection never ran");
    assert!(sums.cuts > 0, "power was never cut");
    assert!(sums.partial_units > 0, "no command changed a part of a unit");
}

#[test]
fn parts_of_units_are_in_the_image_of_a_killed_process() {
    let sums = run(Medium::Image, Blocks::Parts, 50);
    assert!(sums.cuts > 0 && sums.partial_units > 0, "{sums:?}");
}

#[test]
fn everything_flushed_to_the_host_survives_its_crash() {
    let replay = "cargo test -p sluice-controller --test suite oracle::";
    let run = run_seeds(50, &[], replay, |seed| {
        let mut case = Case::new(seed, Medium::CrashedHost { durable: true }, Blocks::Units);
        case.run();
        (case.reclaimed, case.host_file.as_ref().map_or(0, |file| file.syncs()))
    });
    assert!(run.results.iter().any(|(reclaimed, _)| *reclaimed > 0), "no line was reclaimed");
    assert!(run.results.iter().any(|(_, syncs)| *syncs > 20), "no flush reached the device");
}

#[test]
fn without_flushes_to_the_host_its_crash_loses_flushed_data() {
    let lost = (0..20).filter(|seed| {
        let crash =
            || Case::new(*seed, Medium::CrashedHost { durable: false }, Blocks::Units).run();
        std::panic::catch_unwind(crash).is_err()
    });
    assert!(lost.count() > 0, "no seed lost anything: the crash does not lose what it should");
}
