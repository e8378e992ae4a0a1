//! Random concurrent mutations, with failures and power cuts, compared with a
//! `std::collections::BTreeMap` of the versions that each key may have.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-kv
//! oracle`. `SLUICE_CASES` sets the number of seeds, `SLUICE_FIRST` the first one.

// guarantee: D-49

mod case;
mod model;

use case::{Case, Counts};
use testkit::oracle::run_seeds;

/// Regression seeds, which fail without: relocation of a batch as one from a failing chunk;
/// tombstones that count older records; seals after torn units, and deferred erases; memory for
/// failed chunks; counting the copy that a relocation leaves behind.
const REGRESSIONS: [u64; 5] = [1, 24, 185, 228, 1272];

#[test]
fn what_is_durable_survives_and_nothing_else_appears() {
    let run = run_seeds(300, &REGRESSIONS, "cargo test -p sluice-kv oracle", |seed| {
        let mut case = Case::new(seed);
        case.run();
        case.counts
    });
    let mut all = Counts::default();
    for counts in &run.results {
        all.add(counts);
    }
    println!("{all:?}");
    let Counts {
        cuts,
        compacted,
        relocated: moved,
        large_value_chunks: wholes,
        batches,
        tombstones_dropped: tombstones_gone,
        full,
        failures,
    } = all;
    let seen = [cuts, compacted, moved, wholes, batches, tombstones_gone, full, failures];
    assert!(run.is_single || seen.iter().all(|n| *n > 0), "not everything happened: {all:?}");
}
