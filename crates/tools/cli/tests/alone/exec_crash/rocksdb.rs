//! RocksDB's `db_bench`, writing keys one after the other and syncing its log with each: what is there after a cut are the first
//! keys up to one that was acknowledged or under way.
//!
//! Each round has a database of its own; that of the round before must be as it was.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use rng::Rng;

use super::harness::{CrashHarness, Cut, Repeat, moment, seed};
use super::library::text;

/// Small buffers, so that tables are written and merged all the time.
const BENCH: &str = "--benchmarks=fillseq --sync=1 --stats_interval=1 --num=1000000 --compression_type=none \
    --write_buffer_size=65536 --target_file_size_base=65536 --max_bytes_for_level_base=262144 \
    --level0_file_num_compaction_trigger=2 --max_background_jobs=2 --value_size=";

/// Checks a database, and prints its keys.
fn check_and_dump(database: &str) -> String {
    format!("ldb --db={database} checkconsistency && ldb --db={database} scan --hex --no_value")
}

/// Keys of a database, which are the first ones; how many.
fn keys(harness: &CrashHarness, database: &str) -> u64 {
    let out = harness.run(&["sh", "-c", &check_and_dump(database)]);
    let (said, wrong) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{said}{wrong}");
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("OK"), "the check of the database: {wrong}");
    let mut count = 0;
    for line in lines {
        // `db_bench`'s keys: the number with its highest byte first, filled up with zeros as text.
        assert_eq!(line, format!("0x{count:016X}3030303030303030"), "a key is missing");
        count += 1;
    }
    count
}

/// How many writes are acknowledged by a line: `… thread 0: (1,COUNT) ops and …`.
fn acknowledged(line: &str) -> Option<u64> {
    line.split_once("thread 0: (")?.1.split_once(')')?.0.split_once(',')?.1.parse().ok()
}

/// Runs, is cut, and runs again, so many times.
fn cuts(cut: Cut, count: u64, default_seed: u64) {
    if !testkit::has_programs!(&["db_bench", "ldb"]) {
        return;
    }
    let seed = seed(default_seed);
    let _repeat = Repeat(seed);
    let mut rng = Rng::new(seed);
    let mut harness = CrashHarness::new(cut);
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
                // A line that was cut off says nothing.
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
        assert!(is_cut, "it has ended: {}{}", said.concat(), running.stderr_text());
        running.wait_all();
        // `db_bench` counts an operation before it looks whether it has failed, and fails with the first.
        if said.iter().any(|line| line.contains("put error")) {
            assert!(matches!(cut, Cut::Service | Cut::Server), "{}", said.concat());
            done -= 1;
        }
        harness.restart();
        harness.run_with_cut(&["sh", "-c", &check_and_dump(&database)], "", &mut rng);
        let there = keys(&harness, &database);
        assert!(there >= done, "{done} were acknowledged, {there} are there");
        assert!(
            there <= done + 1,
            "one was under way: {done} were acknowledged, {there} are there"
        );
        if let Some((database, count)) = before.replace((database, there)) {
            // A look costs as much as a cut.
            if round % 4 == 1 {
                assert_eq!(keys(&harness, &database), count, "the database of the round before");
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
