//! RocksDB's `db_bench` writes keys in order, and syncs its log with each. After a cut the database
//! has the first keys, up to one that was acknowledged or in flight.
//!
//! Each round has its own database; that of the previous round must be unchanged.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use rng::Rng;

use super::harness::{CrashHarness, Cut, Repeat, moment, seed};
use super::library::text;

/// Small buffers, so that tables are written and compacted continuously.
const BENCH: &str = "--benchmarks=fillseq --sync=1 --stats_interval=1 --num=1000000 --compression_type=none \
    --write_buffer_size=65536 --target_file_size_base=65536 --max_bytes_for_level_base=262144 \
    --level0_file_num_compaction_trigger=2 --max_background_jobs=2 --value_size=";

/// Returns a command that checks a database and prints its keys.
fn check_and_dump(database: &str) -> String {
    format!("ldb --db={database} checkconsistency && ldb --db={database} scan --hex --no_value")
}

/// Checks that the keys of a database are the first ones, and returns their number.
fn keys(harness: &CrashHarness, database: &str) -> u64 {
    let out = harness.run(&["sh", "-c", &check_and_dump(database)]);
    let (said, wrong) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{said}{wrong}");
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("OK"), "the check of the database: {wrong}");
    let mut count = 0;
    for line in lines {
        // Keys of `db_bench`: the number in big-endian order, padded with the character `0`.
        assert_eq!(line, format!("0x{count:016X}3030303030303030"), "a key is missing");
        count += 1;
    }
    count
}

/// Returns the number of acknowledged writes of a line `… thread 0: (1,COUNT) ops and …`.
fn acknowledged(line: &str) -> Option<u64> {
    line.split_once("thread 0: (")?.1.split_once(')')?.0.split_once(',')?.1.parse().ok()
}

/// Runs `db_bench`, cuts, and recovers, `count` times.
fn cuts(cut: Cut, count: u64, default_seed: u64) {
    cuts_with(|| CrashHarness::new(cut), count, default_seed);
}

/// Runs the program with this harness, cuts, and recovers, `count` times.
pub(crate) fn cuts_with(harness: impl FnOnce() -> CrashHarness, count: u64, default_seed: u64) {
    if !testkit::has_programs!(&["db_bench", "ldb"]) {
        return;
    }
    let seed = seed(default_seed);
    let _repeat = Repeat(seed);
    let mut rng = Rng::new(seed);
    let mut harness = harness();
    let cut = harness.cut;
    let mut before: Option<(String, u64)> = None;
    for round in 0..count {
        let (database, value_bytes) = (format!("{}/db{round}", harness.at()), 20 + rng.below(3000));
        let until = 20 + rng.below(200);
        let script = format!("exec db_bench --db={database} {BENCH}{value_bytes} 2>&1");
        let mut running = harness.start(&["sh", "-c", &script], Stdio::null());
        let (mut done, mut is_cut, mut said) = (0, false, Vec::new());
        let mut lines = BufReader::new(running.stdout());
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
            match acknowledged(&text(&line)) {
                // An incomplete line is ignored.
                Some(count) if line.ends_with(b"\n") => done = count,
                _ => said.push(text(&line)),
            }
            line.clear();
            if done >= until && !is_cut {
                moment(&mut rng);
                running.cut();
                is_cut = true;
            }
        }
        assert!(
            is_cut,
            "db_bench ended before the cut: {}{}",
            said.concat(),
            running.stderr_text()
        );
        running.wait_all();
        // `db_bench` counts an operation before it checks for an error, and stops at the first
        // error.
        if said.iter().any(|line| line.contains("put error")) {
            assert!(matches!(cut, Cut::Service | Cut::Server), "{}", said.concat());
            done -= 1;
        }
        harness.restart();
        harness.run_with_cut(&["sh", "-c", &check_and_dump(&database)], "", &mut rng);
        let there = keys(&harness, &database);
        assert!(there >= done, "{done} keys were acknowledged, {there} recovered");
        assert!(
            there <= done + 1,
            "at most one key was in flight: {done} keys were acknowledged, {there} recovered"
        );
        if let Some((database, count)) = before.replace((database, there)) {
            // Reading a database takes as long as a cut.
            if round % 4 == 1 {
                assert_eq!(keys(&harness, &database), count, "the database of the previous round");
            }
            let out = harness.run(&["rm", "-r", &database]);
            assert!(out.status.success(), "{}", text(&out.stderr));
        }
    }
}

#[test]
fn survives_kills_of_the_program() {
    cuts(Cut::Program, 10, 31);
}

#[test]
fn survives_kills_of_the_service() {
    cuts(Cut::Service, 10, 32);
}

#[test]
fn survives_kills_of_the_drive_s_server() {
    cuts(Cut::Server, 10, 33);
}

#[test]
fn survives_cuts_of_power() {
    cuts(Cut::Power, 10, 34);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn survives_many_kills_of_the_program() {
    cuts(Cut::Program, 200, 35);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn survives_many_kills_of_the_service() {
    cuts(Cut::Service, 200, 36);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn survives_many_kills_of_the_drive_s_server() {
    cuts(Cut::Server, 200, 37);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn survives_many_cuts_of_power() {
    cuts(Cut::Power, 200, 38);
}
