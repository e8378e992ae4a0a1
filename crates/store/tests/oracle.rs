//! Random operations with power cuts at any event against a model of files: after a cut everything that
//! was synced is there, with its name; everything else is old or new, sector by sector; nothing of other
//! files appears; and `fsck` finds nothing.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-store --test oracle`.
//! `SLUICE_CASES` sets how many seeds are tried.

mod common;
mod oracle {
    pub(crate) mod bed;
    pub(crate) mod case;
    pub(crate) mod model;
}

use oracle::bed::{DriveBed, RamBed};
use oracle::case::Case;

fn run(cases: u64, name: &str, case: impl Fn(u64) -> u64 + std::panic::RefUnwindSafe) -> u64 {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let seeds = match number("SLUICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SLUICE_CASES").unwrap_or(cases),
    };
    let mut cuts = 0;
    for seed in seeds {
        match std::panic::catch_unwind(|| case(seed)) {
            Ok(n) => cuts += n,
            Err(panic) => {
                eprintln!(
                    "seed {seed} fails; replay it with SLUICE_SEED={seed} cargo test -p \
                     sluice-store --test oracle {name}"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{name}: {cuts} power cuts");
    cuts
}

#[test]
fn everything_synced_survives_on_a_device_that_loses_what_it_may() {
    let cuts = run(600, "everything_synced_survives_on_a_device_that_loses", |seed| {
        Case::new(seed, RamBed::new(seed)).run()
    });
    assert!(cuts > 0, "power was never cut");
}

#[test]
fn everything_synced_survives_on_an_emulated_drive() {
    let cuts = run(100, "everything_synced_survives_on_an_emulated_drive", |seed| {
        Case::new(seed, DriveBed::new(seed)).run()
    });
    assert!(cuts > 0, "power was never cut");
}
