//! Random commands with failures and power cuts against an oracle, through a driver's queue pair in
//! virtual time. For every sector, the oracle knows the possible values after a power cut
//! (ARCHITECTURE.md, R7).
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-controller --test
//! suite oracle::`. `SLUICE_CASES` sets the number of seeds.

// guarantee: D-01, D-08, D-40, D-56

mod case;
mod host_file;
mod sector;

use case::{Case, Medium};
use testkit::oracle::run_seeds;

/// Seeds that found a bug: space was exhausted although spare chunks remained.
const REGRESSIONS: [u64; 1] = [4149];

/// Runs seeds and reports the failing one. Returns the lines reclaimed and the power cuts of all
/// seeds.
fn run(medium: Medium, cases: u64) -> (u64, u64) {
    let replay = "cargo test -p sluice-controller --test suite oracle::";
    let run = run_seeds(cases, &REGRESSIONS, replay, |seed| {
        let mut case = Case::new(seed, medium);
        case.run();
        (case.reclaimed, case.cuts)
    });
    run.results.iter().fold((0, 0), |sum, (reclaimed, cuts)| (sum.0 + reclaimed, sum.1 + cuts))
}

#[test]
fn everything_flushed_survives_power_cuts_and_nothing_else_appears() {
    let (reclaimed, cuts) = run(Medium::Memory, 1_000);
    assert!(reclaimed > 0, "garbage collection never ran");
    assert!(cuts > 0, "power was never cut");
}

#[test]
fn everything_flushed_is_in_the_image_of_a_killed_process() {
    let (_, cuts) = run(Medium::Image, 100);
    assert!(cuts > 0, "no drive process was killed");
}

#[test]
fn everything_flushed_to_the_host_survives_its_crash() {
    let replay = "cargo test -p sluice-controller --test suite oracle::";
    let run = run_seeds(50, &[], replay, |seed| {
        let mut case = Case::new(seed, Medium::CrashedHost { durable: true });
        case.run();
        (case.reclaimed, case.host_file.as_ref().map_or(0, |file| file.syncs()))
    });
    assert!(run.results.iter().any(|(reclaimed, _)| *reclaimed > 0), "no line was reclaimed");
    assert!(run.results.iter().any(|(_, syncs)| *syncs > 20), "no flush reached the device");
}

#[test]
fn without_flushes_to_the_host_its_crash_loses_flushed_data() {
    let lost = (0..20).filter(|seed| {
        let crash = || Case::new(*seed, Medium::CrashedHost { durable: false }).run();
        std::panic::catch_unwind(crash).is_err()
    });
    assert!(lost.count() > 0, "no seed lost anything: the crash does not lose what it should");
}
