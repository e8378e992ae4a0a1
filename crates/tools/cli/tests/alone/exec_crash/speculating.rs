//! Cuts under programs that speculate: their syncs return at once, and what they have
//! reported as durable has waited.

// guarantee: B-119

use super::harness::{CrashHarness, Cut};
use super::sqlite::Journal;
use super::{redis, rocksdb, sqlite};

const CUTS: [Cut; 4] = [Cut::Program, Cut::Service, Cut::Server, Cut::Power];

/// Cuts of each kind with output that waits, with a seed for each.
fn each(count: u64, first_seed: u64, run: impl Fn(&dyn Fn() -> CrashHarness, u64, u64)) {
    each_with("wait", count, first_seed, run);
}

fn each_with(
    mode: &'static str,
    count: u64,
    first_seed: u64,
    run: impl Fn(&dyn Fn() -> CrashHarness, u64, u64),
) {
    for (cut, seed) in CUTS.into_iter().zip(first_seed..) {
        run(&|| CrashHarness::new(cut).speculating(mode), count, seed);
    }
}

fn sqlite_with(journal: Journal, count: u64, first_seed: u64) {
    each(count, first_seed, |harness, count, seed| {
        sqlite::cuts_with(harness, journal, count, seed);
    });
}

#[test]
fn redis_that_speculates_survives_cuts() {
    each(5, 119, |harness, count, seed| redis::cuts_with(harness, count, seed));
}

#[test]
fn redis_with_an_outbox_survives_cuts() {
    each_with("buffer", 5, 139, |harness, count, seed| redis::cuts_with(harness, count, seed));
}

#[test]
fn a_write_ahead_log_that_speculates_survives_cuts() {
    sqlite_with(Journal::Wal, 5, 123);
}

#[test]
fn a_rollback_journal_that_speculates_survives_cuts() {
    sqlite_with(Journal::Rollback, 3, 127);
}

#[test]
fn a_shared_write_ahead_log_that_speculates_survives_cuts() {
    sqlite_with(Journal::SharedWal, 3, 131);
}

#[test]
fn rocksdb_that_speculates_survives_cuts() {
    each(3, 135, |harness, count, seed| rocksdb::cuts_with(harness, count, seed));
}

#[test]
#[ignore = "200 cuts of each kind: make test-long"]
fn programs_that_speculate_survive_many_cuts() {
    for (mode, seed) in [("wait", 219), ("buffer", 239)] {
        each_with(mode, 200, seed, |harness, count, seed| redis::cuts_with(harness, count, seed));
    }
    for (journal, seed) in
        [(Journal::Wal, 223), (Journal::Rollback, 227), (Journal::SharedWal, 231)]
    {
        sqlite_with(journal, 200, seed);
    }
    each(200, 235, |harness, count, seed| rocksdb::cuts_with(harness, count, seed));
}
