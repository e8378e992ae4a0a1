//! Random operations with power cuts at any event, against a model of files. After a cut,
//! everything synced is there with its name; everything else is old or new, sector by sector; no
//! data of other files appears; and `fsck` finds no problem.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-volume --test
//! suite oracle::`. `SLUICE_CASES` sets the number of seeds.

// guarantee: D-11

mod case;
pub(crate) mod harness;
mod mix;
mod model;

use block::AtomicLimits;
use case::Case;
use harness::{DriveHarness, RamHarness};
use mix::{Mix, Seen};
use testkit::oracle::run_seeds;

fn run(cases: u64, name: &str, case: impl Fn(u64) -> Seen) -> Seen {
    let replay = format!("cargo test -p sluice-volume --test suite oracle::{name}");
    let run = run_seeds(cases, &[], &replay, case);
    let all = run.results.into_iter().fold(Seen::default(), Seen::plus);
    println!("{name}: {all:?}");
    all
}

#[test]
fn everything_synced_survives_on_a_device_that_loses_what_it_may() {
    let seen = run(600, "everything_synced_survives_on_a_device_that_loses", |seed| {
        Case::new(seed, RamHarness::new(seed), Mix::All).run()
    });
    assert!(seen.cuts > 0, "power was never cut");
}

#[test]
fn small_synced_writes_survive_on_a_device_that_loses_what_it_may() {
    let seen = run(900, "small_synced_writes_survive_on_a_device_that_loses", |seed| {
        Case::new(seed, RamHarness::new(seed), Mix::Small).run()
    });
    assert!(std::env::var_os("SLUICE_SEED").is_some() || seen.is_dense(), "{seen:?}");
}

/// Volumes with units of two or four blocks.
#[test]
fn everything_synced_survives_with_units() {
    let atomic = |seed: u64| {
        let block_sectors = if seed.is_multiple_of(2) { 8 } else { 1 };
        AtomicLimits { sectors: 4 * block_sectors, boundary_sectors: 0 }
    };
    for (cases, mix) in [(300, Mix::All), (400, Mix::Small)] {
        let seen = run(cases, "everything_synced_survives_with_units", |seed| {
            let harness = RamHarness::with_atomic(seed, 1024, atomic(seed));
            Case::new(seed, harness, mix).run()
        });
        assert!(seen.cuts > 0, "power was never cut");
    }
}

#[test]
fn everything_synced_survives_on_an_emulated_drive() {
    let seen = run(100, "everything_synced_survives_on_an_emulated_drive", |seed| {
        Case::new(seed, DriveHarness::new(seed), Mix::All).run()
    });
    assert!(seen.cuts > 0, "power was never cut");
}

#[test]
fn small_synced_writes_survive_on_an_emulated_drive() {
    let seen = run(100, "small_synced_writes_survive_on_an_emulated_drive", |seed| {
        Case::new(seed, DriveHarness::new(seed), Mix::Small).run()
    });
    assert!(std::env::var_os("SLUICE_SEED").is_some() || seen.is_dense(), "{seen:?}");
}
