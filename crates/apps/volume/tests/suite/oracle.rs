//! Random operations with power cuts at any event, against a model of files. After a cut,
//! everything synced is there with its name; everything else is old or new, sector by sector; no
//! data of other files appears; and `fsck` finds no problem. With barriers, the state found is that
//! at one of them, with some of the changes up to the next one.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-volume --test
//! suite oracle::`. `SLUICE_CASES` sets the number of seeds.

// guarantee: D-11
// guarantee: D-64

mod barriers;
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

/// Atomic writes of four blocks.
fn atomic(seed: u64) -> AtomicLimits {
    let block_sectors = if seed.is_multiple_of(2) { 8 } else { 1 };
    AtomicLimits { sectors: 4 * block_sectors, boundary_sectors: 0 }
}

/// Volumes with units of two or four blocks.
#[test]
fn everything_synced_survives_with_units() {
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

#[test]
fn a_recovery_finds_a_prefix_of_barriers() {
    let name = "a_recovery_finds_a_prefix_of_barriers";
    let seen = run(500, name, |seed| Case::new(seed, RamHarness::new(seed), Mix::Barriers).run());
    assert_barriers(&seen, 10_000);
}

#[test]
fn a_recovery_finds_a_prefix_of_barriers_with_units() {
    let name = "a_recovery_finds_a_prefix_of_barriers_with_units";
    let seen = run(350, name, |seed| {
        let harness = RamHarness::with_atomic(seed, 1024, atomic(seed));
        Case::new(seed, harness, Mix::Barriers).run()
    });
    assert_barriers(&seen, 6_000);
}

#[test]
fn a_recovery_finds_a_prefix_of_barriers_in_a_full_volume() {
    let name = "a_recovery_finds_a_prefix_of_barriers_in_a_full_volume";
    let seen = run(400, name, |seed| Case::new(seed, RamHarness::small(seed), Mix::Barriers).run());
    assert_barriers(&seen, 4_000);
    assert!(is_partial() || seen.no_space > seen.cuts / 10, "{seen:?}");
}

#[test]
fn a_recovery_finds_a_prefix_of_barriers_on_an_emulated_drive() {
    let name = "a_recovery_finds_a_prefix_of_barriers_on_an_emulated_drive";
    let seen = run(60, name, |seed| Case::new(seed, DriveHarness::new(seed), Mix::Barriers).run());
    assert_barriers(&seen, 600);
}

/// Returns whether the environment chooses the seeds.
fn is_partial() -> bool {
    ["SLUICE_SEED", "SLUICE_CASES"].iter().any(|name| std::env::var_os(name).is_some())
}

/// Checks that enough power cuts were made, and that every kind of event was frequent.
fn assert_barriers(seen: &Seen, cuts: u64) {
    let is_dense = seen.cuts >= cuts
        && seen.barriers > seen.cuts
        && 20 * seen.pending > seen.cuts
        && 100 * seen.several > seen.cuts
        && 100 * seen.waits > seen.cuts
        && seen.in_place > seen.cuts / 10
        && seen.journaled > seen.cuts / 10;
    assert!(is_partial() || is_dense, "{seen:?}");
}

/// The oracle finds a volume that does not keep the order: one that is not told of the barriers.
#[test]
fn without_order_a_recovery_finds_no_prefix() {
    let seen = run(50, "without_order_a_recovery_finds_no_prefix", |seed| {
        Case::new(seed, RamHarness::new(seed), Mix::Unordered).run()
    });
    assert!(is_partial() || 20 * seen.violations > seen.cuts, "{seen:?}");
}
