//! SQLite under a TPC-C-like load, in the modes whose commits are durable according to its manual.
//! After a cut the database must equal one on the host that has executed the same transactions, up
//! to one that was committed or in flight. SQLite's integrity check and TPC-C's consistency
//! conditions must hold.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdout, Command, Stdio};

use rng::Rng;

use super::harness::{CrashHarness, Cut, Repeat, moment, seed};
use super::library::text;
use super::tpcc;

/// Journal mode of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Journal {
    /// A rollback journal, in one of its three modes.
    Rollback,
    /// A write-ahead log used by one process, which keeps the index in its memory.
    Wal,
    /// A write-ahead log with SQLite's default: the index is in a file that is mapped and shared.
    SharedWal,
}

/// Returns the pragmas of a journal mode. The cache has few pages, so that uncommitted ones are
/// written; the log is checkpointed often.
fn modes(journal: Journal, rng: &mut Rng) -> &'static str {
    // With DELETE, only EXTRA syncs the directory after the journal is unlinked.
    let rollback = [
        "PRAGMA journal_mode = DELETE; PRAGMA synchronous = EXTRA; PRAGMA cache_size = 10;",
        "PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = FULL; PRAGMA cache_size = 10;",
        "PRAGMA journal_mode = PERSIST; PRAGMA synchronous = FULL; PRAGMA cache_size = 10;",
    ];
    match journal {
        Journal::Rollback => rollback[rng.below(3) as usize],
        Journal::Wal => {
            "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; \
             PRAGMA cache_size = 10; PRAGMA wal_autocheckpoint = 30;"
        }
        Journal::SharedWal => {
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = 10; \
             PRAGMA wal_autocheckpoint = 30;"
        }
    }
}

/// Returns queries for the contents: `tables|n`, SQLite's check, TPC-C's, `last|n|count`, and a
/// hash of the database.
fn questions() -> String {
    format!(
        "SELECT 'tables', count(*) FROM sqlite_master; PRAGMA integrity_check;\n{}\
         SELECT 'last', max(n), count(*) FROM done;\n.sha3sum\n",
        tpcc::CONDITIONS
    )
}

/// Returns the next line; `None` if the program has ended.
fn line(from: &mut BufReader<ChildStdout>) -> Option<String> {
    let mut line = String::new();
    match from.read_line(&mut line) {
        Ok(_) if line.ends_with('\n') => Some(line.trim_end().to_owned()),
        _ => None,
    }
}

/// Contents according to the database itself.
#[derive(Debug, PartialEq, Eq)]
struct Contents {
    last: u64,
    hash: String,
}

/// Reads the results of [`questions`]. Fails if SQLite's check does, or if a transaction is
/// missing.
fn contents(next: &mut dyn FnMut() -> Option<String>) -> Contents {
    let mut next = || next().expect("SQLite answers");
    while !next().starts_with("tables|") {}
    assert_eq!(next(), "ok", "SQLite's integrity check");
    let last = next();
    let (number, count) = last.strip_prefix("last|").expect(&last).split_once('|').unwrap();
    let (last, count): (u64, u64) = (number.parse().unwrap(), count.parse().unwrap());
    assert_eq!(count, last + 1, "a transaction is missing");
    Contents { last, hash: next() }
}

/// A database on the host without cuts, for comparison.
struct Reference {
    path: String,
    seed: u64,
    /// Last transaction of the database; `None` without tables.
    last: Option<u64>,
}

impl Reference {
    /// Returns the contents after all transactions up to `until`.
    fn contents_at(&mut self, until: u64) -> Contents {
        let mut sql = String::from("PRAGMA synchronous = OFF;\n");
        if self.last.is_none() {
            sql += &tpcc::begin(self.seed);
        }
        for number in self.last.map_or(1, |last| last + 1)..=until {
            sql += &tpcc::transaction(self.seed, number);
        }
        self.last = Some(until);
        sql += &questions();
        let mut child = Command::new("sqlite3")
            .args(["-batch", "-bail", &self.path])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || stdin.write_all(sql.as_bytes()).unwrap());
        let out = child.wait_with_output().unwrap();
        writer.join().unwrap();
        let said = text(&out.stdout);
        let mut lines = said.lines().map(str::to_owned);
        contents(&mut || lines.next())
    }
}

/// The SQLite shell, with line-buffered output.
const SHELL: [&str; 5] = ["stdbuf", "-oL", "sqlite3", "-batch", "-bail"];

/// Runs SQLite, cuts, and recovers, `count` times.
fn cuts(cut: Cut, journal: Journal, count: u64, default_seed: u64) {
    cuts_with(|| CrashHarness::new(cut), journal, count, default_seed);
}

/// Runs SQLite with this harness, cuts, and recovers, `count` times.
pub(crate) fn cuts_with(
    harness: impl FnOnce() -> CrashHarness,
    journal: Journal,
    count: u64,
    default_seed: u64,
) {
    if !testkit::has_programs!(&["sqlite3", "stdbuf"]) {
        return;
    }
    let seed = seed(default_seed);
    let _repeat = Repeat(seed);
    let mut rng = Rng::new(seed);
    let mut harness = harness();
    let cut = harness.cut;
    let database = harness.at() + "/tpcc.db";
    let mut reference = Reference { path: harness.path("reference.db"), seed, last: None };
    // Numbers of the last transaction committed and of the last one sent; `None` before there are
    // tables.
    let (mut committed, mut sent) = (None, 0);
    for round in 0..=count {
        let modes = modes(journal, &mut rng);
        let shell: Vec<&str> = SHELL.into_iter().chain([&database[..]]).collect();
        let look = format!("{modes}\nPRAGMA integrity_check; PRAGMA incremental_vacuum;\n");
        harness.run_with_cut(&shell, &look, &mut rng);
        let mut running = harness.start(&shell, Stdio::piped());
        let mut stdin = running.stdin();
        let mut stdout = BufReader::new(running.stdout());
        writeln!(stdin, "{modes}\nSELECT 'tables', count(*) FROM sqlite_master;").unwrap();
        let tables = loop {
            let line = line(&mut stdout).unwrap_or_else(|| panic!("{}", running.stderr_text()));
            if let Some(count) = line.strip_prefix("tables|") {
                break count.to_owned();
            }
        };
        if tables == "0" {
            assert_eq!(committed, None, "the database has lost its tables");
            stdin.write_all(tpcc::begin(seed).as_bytes()).unwrap();
            while line(&mut stdout).unwrap_or_else(|| panic!("{}", running.stderr_text()))
                != "done|0"
            {}
        }
        stdin.write_all(questions().as_bytes()).unwrap();
        let found = contents(&mut || line(&mut stdout));
        let (least, most) = (committed.unwrap_or(0), sent);
        let last = found.last;
        assert!(
            last >= least,
            "{journal:?}: {least} transactions were committed, {last} recovered"
        );
        assert!(last <= most, "{most} transactions were sent, {last} recovered");
        assert_eq!(
            found,
            reference.contents_at(last),
            "{journal:?}: the contents differ from the reference after {last} transactions"
        );
        if round == count {
            drop(stdin);
            running.wait_all();
            break;
        }
        (committed, sent) = (Some(last), last);
        let (until, window) = (last + 3 + rng.below(40), 1 + rng.below(3));
        let mut is_cut = false;
        loop {
            while sent - committed.unwrap_or(0) < if is_cut { 1 } else { window } {
                sent += 1;
                // A killed program does not read this any more.
                let _ = stdin.write_all(tpcc::transaction(seed, sent).as_bytes());
            }
            let Some(line) = line(&mut stdout) else { break };
            if let Some(number) = line.strip_prefix("done|") {
                committed = Some(number.parse().unwrap());
            }
            if committed.is_some_and(|n| n >= until) && !is_cut {
                moment(&mut rng);
                running.cut();
                is_cut = true;
                // With a shared index, SQLite takes a lock, which fails while another process holds
                // it, and SQLite retries for ten seconds. The test waits for that in one round of
                // ten; no write reaches the volume any more.
                let asks_long = (cut, journal) == (Cut::Service, Journal::SharedWal);
                if asks_long && !round.is_multiple_of(10) {
                    moment(&mut rng);
                    running.kill().unwrap();
                }
            }
        }
        assert!(is_cut, "SQLite ended before the cut: {}", running.stderr_text());
        drop(stdin);
        running.wait_all();
        harness.restart();
    }
}

#[test]
fn a_rollback_journal_survives_kills_of_the_program() {
    cuts(Cut::Program, Journal::Rollback, 10, 11);
}

#[test]
fn a_rollback_journal_survives_kills_of_the_service() {
    cuts(Cut::Service, Journal::Rollback, 10, 12);
}

#[test]
fn a_rollback_journal_survives_kills_of_the_drive_s_server() {
    cuts(Cut::Server, Journal::Rollback, 10, 13);
}

#[test]
fn a_rollback_journal_survives_cuts_of_power() {
    cuts(Cut::Power, Journal::Rollback, 10, 14);
}

#[test]
fn a_write_ahead_log_survives_kills_of_the_program() {
    cuts(Cut::Program, Journal::Wal, 10, 15);
}

#[test]
fn a_write_ahead_log_survives_kills_of_the_service() {
    cuts(Cut::Service, Journal::Wal, 10, 16);
}

#[test]
fn a_write_ahead_log_survives_kills_of_the_drive_s_server() {
    cuts(Cut::Server, Journal::Wal, 10, 17);
}

#[test]
fn a_write_ahead_log_survives_cuts_of_power() {
    cuts(Cut::Power, Journal::Wal, 10, 18);
}

#[test]
fn a_shared_write_ahead_log_survives_kills_of_the_program() {
    cuts(Cut::Program, Journal::SharedWal, 10, 28);
}

#[test]
fn a_shared_write_ahead_log_survives_kills_of_the_service() {
    cuts(Cut::Service, Journal::SharedWal, 10, 29);
}

#[test]
fn a_shared_write_ahead_log_survives_kills_of_the_drive_s_server() {
    cuts(Cut::Server, Journal::SharedWal, 10, 30);
}

#[test]
fn a_shared_write_ahead_log_survives_cuts_of_power() {
    cuts(Cut::Power, Journal::SharedWal, 10, 31);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn a_rollback_journal_survives_many_kills_of_the_program() {
    cuts(Cut::Program, Journal::Rollback, 200, 20);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn a_rollback_journal_survives_many_kills_of_the_service() {
    cuts(Cut::Service, Journal::Rollback, 200, 21);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn a_rollback_journal_survives_many_kills_of_the_drive_s_server() {
    cuts(Cut::Server, Journal::Rollback, 200, 22);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn a_rollback_journal_survives_many_cuts_of_power() {
    cuts(Cut::Power, Journal::Rollback, 200, 23);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn a_write_ahead_log_survives_many_kills_of_the_program() {
    cuts(Cut::Program, Journal::Wal, 200, 24);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn a_write_ahead_log_survives_many_kills_of_the_service() {
    cuts(Cut::Service, Journal::Wal, 200, 25);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn a_write_ahead_log_survives_many_kills_of_the_drive_s_server() {
    cuts(Cut::Server, Journal::Wal, 200, 26);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn a_write_ahead_log_survives_many_cuts_of_power() {
    cuts(Cut::Power, Journal::Wal, 200, 27);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn a_shared_write_ahead_log_survives_many_kills_of_the_program() {
    cuts(Cut::Program, Journal::SharedWal, 200, 32);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn a_shared_write_ahead_log_survives_many_kills_of_the_service() {
    cuts(Cut::Service, Journal::SharedWal, 200, 33);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn a_shared_write_ahead_log_survives_many_kills_of_the_drive_s_server() {
    cuts(Cut::Server, Journal::SharedWal, 200, 34);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn a_shared_write_ahead_log_survives_many_cuts_of_power() {
    cuts(Cut::Power, Journal::SharedWal, 200, 35);
}

/// Without cuts: a database gives the same results on a volume as in a directory of the host.
#[test]
fn a_load_like_tpc_c_is_as_on_the_host() {
    if !testkit::has_programs!(&["sqlite3"]) {
        return;
    }
    let harness = CrashHarness::new(Cut::Power);
    let (database, seed) = (harness.at() + "/tpcc.db", seed(19));
    let _repeat = Repeat(seed);
    let mut sql = tpcc::begin(seed);
    (1..=400).for_each(|number| sql += &tpcc::transaction(seed, number));
    sql += &questions();
    let file = harness.path("script.sql");
    std::fs::write(&file, sql).unwrap();
    let script = |database: &str| format!("sqlite3 -batch -bail {database} < {file}");
    let wanted =
        Command::new("sh").args(["-c", &script(&harness.path("host.db"))]).output().unwrap();
    let got = harness.run(&["sh", "-c", &script(&database)]);
    assert!(got.status.success(), "{}", text(&got.stderr));
    assert_eq!(text(&got.stdout), text(&wanted.stdout));
    let said = text(&got.stdout);
    let mut lines = said.lines().map(str::to_owned);
    assert_eq!(contents(&mut || lines.next()).last, 400);
}
