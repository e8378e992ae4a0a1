//! MariaDB with `innodb_doublewrite=OFF` and PostgreSQL with `full_page_writes=off` on a drive with
//! atomic writes, with repeated cuts of power. After each cut the server recovers, and its own
//! checks of tables, indexes and checksums pass. Every transaction is there completely or not at
//! all, and all acknowledged ones are there. On the same drive without atomic writes some cuts
//! damage pages.
//!
//! `SLUICE_CUTS` sets the number of cuts, `SLUICE_SEED` the moments.

// guarantee: D-60

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rng::Rng;
use rustix::process::Signal;

use super::engine::{Engine, Server};
use super::harness::{CrashHarness, Cut, Repeat, Running, TEST_TIMEOUT, seed};
use super::library::text;

/// Rows of the table that is updated: several times as much as the server's buffers.
const ROWS: u32 = 16_000;
/// Connections; each updates rows of its own, and numbers its transactions.
const CLIENTS: u32 = 4;
/// Rows that a transaction updates.
const UPDATES: u64 = 20;
/// Rows of a client in `history`, at most.
const HISTORY: u64 = 100;

/// Time to program a write unit while clients write: the database waits for the drive, so that a
/// cut finds pages that are being written.
const PROGRAM_SLOW: &str = "2ms";
/// Time to program a write unit while the database is created and checked.
const PROGRAM_FAST: &str = "20us";

/// A drive with write units of one and a half pages of the database, a small volatile write buffer,
/// and one parallel unit, so that units are programmed one after the other.
fn drive(engine: Engine, atomic: bool, program: &str) -> String {
    let page_bytes = engine.page_bytes() / 2;
    format!(
        "[drive]\npreset = \"femu-default\"\ncell = \"tlc\"\none_shot = true\natomic = {atomic}\n\
         data = \"file\"\npath = \"drive.img\"\n\
         timing = {{ read = \"10us\", program = \"{program}\", erase = \"200us\" }}\n\
         write_buffer = {{ kind = \"volatile\", size = \"512k\" }}\n\
         [drive.geometry]\nchannels = 1\npus = 1\nplanes = 1\nchunks = {}\npages = 96\n\
         page_bytes = {page_bytes}\n",
        (6 << 20) / page_bytes
    )
}

/// The content of a row whose last writer has a number.
fn pad(id: &str, number: &str) -> String {
    format!("repeat(md5(concat({id}, ':', {number})), 12)")
}

/// Returns the statements that make the tables.
fn tables(engine: Engine) -> String {
    let numbers = engine.numbers(ROWS);
    let clients = engine.numbers(CLIENTS);
    let pad = pad("seq", "0");
    format!(
        "CREATE TABLE accounts (id INT PRIMARY KEY, n INT NOT NULL, pad VARCHAR(400) NOT NULL);\n\
         CREATE TABLE history (client INT, n INT, pad VARCHAR(400) NOT NULL, PRIMARY KEY (client, n));\n\
         CREATE TABLE done (client INT PRIMARY KEY, n INT NOT NULL);\n\
         CREATE INDEX accounts_n ON accounts (n);\n\
         INSERT INTO accounts SELECT seq, 0, {pad} FROM {numbers};\n\
         INSERT INTO done SELECT seq - 1, 0 FROM {clients};\nSELECT 'made', 0;\n"
    )
}

/// Returns the rows that a transaction of a client updates.
fn updated_rows(seed: u64, client: u32, number: u64) -> BTreeSet<u32> {
    let mut rng = Rng::new(seed ^ (u64::from(client) << 48) ^ number);
    let row = |_| 1 + client + CLIENTS * rng.below(u64::from(ROWS / CLIENTS)) as u32;
    (0..UPDATES).map(row).collect()
}

/// Returns a transaction of a client, which reports its number when it is committed.
fn transaction(seed: u64, client: u32, number: u64) -> String {
    let rows: Vec<String> = updated_rows(seed, client, number).iter().map(u32::to_string).collect();
    let (rows, n) = (rows.join(", "), number.to_string());
    let old = number.saturating_sub(HISTORY);
    format!(
        "BEGIN;\nUPDATE accounts SET n = {n}, pad = {} WHERE id IN ({rows});\n\
         INSERT INTO history VALUES ({client}, {n}, {});\n\
         DELETE FROM history WHERE client = {client} AND n = {old};\n\
         UPDATE done SET n = {n} WHERE client = {client};\nCOMMIT;\nSELECT 'done', {n};\n",
        pad("id", &n),
        pad(&client.to_string(), &n)
    )
}

/// Returns queries for all rows that are as a transaction wrote them.
fn questions() -> String {
    let (row, entry) = (pad("id", "n"), pad("client", "n"));
    format!(
        "SELECT 'last', client, n FROM done ORDER BY client;\n\
         SELECT 'history', client, min(n), max(n), count(*) FROM history WHERE pad = {entry} \
         GROUP BY client ORDER BY client;\n\
         SELECT 'row', id, n FROM accounts WHERE pad = {row} ORDER BY id;\nSELECT 'end', 0;\n"
    )
}

/// A shell that is connected to the server. It ends when this is dropped.
struct Connection {
    child: std::process::Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Connection {
    fn new(server: &Server<'_>, database: &str) -> Connection {
        let mut shell = server.shell(database);
        let shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(server.errors());
        let mut child = shell.spawn().unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Connection { child, stdin, stdout }
    }

    /// Sends statements. A shell that has ended does not read them.
    fn send(&mut self, statements: &str) {
        let _ = self.stdin.as_mut().unwrap().write_all(statements.as_bytes());
    }

    /// Returns the columns of the next row; `None` if the shell has ended.
    fn row(&mut self) -> Option<Vec<String>> {
        let mut line = String::new();
        match self.stdout.read_line(&mut line) {
            Ok(_) if line.ends_with('\n') => {
                Some(line.trim_end().split('\t').map(str::to_owned).collect())
            }
            _ => None,
        }
    }

    /// Executes statements and returns the rows before that which begins with `end`.
    fn rows(&mut self, statements: &str, end: &str) -> Result<Vec<Vec<String>>, String> {
        self.send(statements);
        let mut rows = Vec::new();
        loop {
            match self.row() {
                None => return Err(format!("the shell ended after {} rows", rows.len())),
                Some(row) if row[0] == end => return Ok(rows),
                Some(row) => rows.push(row),
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Transactions of one client as it knows them.
#[derive(Clone, Debug)]
struct ClientRecord {
    /// Number of the last transaction that the server has acknowledged.
    acknowledged: u64,
    /// Number of the last transaction sent.
    sent: u64,
    /// Last writer of each row of the client, by the number of the row divided by [`CLIENTS`].
    writers: Vec<u64>,
}

impl ClientRecord {
    fn acknowledge(&mut self, seed: u64, client: u32, number: u64) {
        self.acknowledged = number;
        for row in updated_rows(seed, client, number) {
            self.writers[((row - 1) / CLIENTS) as usize] = number;
        }
    }
}

/// The transactions of all clients. The record is in the memory of the test, which no cut affects.
#[derive(Clone, Debug)]
struct Record {
    seed: u64,
    clients: Vec<ClientRecord>,
}

impl Record {
    fn new(seed: u64) -> Record {
        let writers = vec![0; (ROWS / CLIENTS) as usize];
        Record {
            seed,
            clients: vec![ClientRecord { acknowledged: 0, sent: 0, writers }; CLIENTS as usize],
        }
    }

    /// Returns the number of acknowledged transactions.
    fn acknowledged(&self) -> u64 {
        self.clients.iter().map(|client| client.acknowledged).sum()
    }

    /// Compares the rows of the database with the record. The database may have a transaction of
    /// each client that was sent and not acknowledged, completely. The record then has it, too.
    fn compare(&mut self, rows: &[Vec<String>]) -> Result<(), String> {
        let number = |text: &str| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
        let of = |kind: &'static str| rows.iter().filter(move |row| row[0] == kind);
        if of("last").count() != CLIENTS as usize {
            return Err("rows of `done` are missing".to_owned());
        }
        for (client, row) in (0u32..).zip(of("last")) {
            let last = number(&row[2])?;
            let record = &mut self.clients[client as usize];
            let (acknowledged, sent) = (record.acknowledged, record.sent);
            if last < acknowledged || last > sent {
                return Err(format!(
                    "client {client}: transaction {acknowledged} was acknowledged and {sent} sent, \
                     {last} is the last one"
                ));
            }
            for transaction in acknowledged + 1..=last {
                record.acknowledge(self.seed, client, transaction);
            }
            record.sent = last;
            let first = (last + 1).saturating_sub(HISTORY).max(1);
            let entries = if last == 0 { None } else { Some([first, last, last + 1 - first]) };
            let found = of("history").find(|row| row[1] == client.to_string());
            let found =
                found.map(|row| [&row[2], &row[3], &row[4]].map(|n| number(n).unwrap_or(0)));
            if found != entries {
                return Err(format!("client {client}: history {found:?}, expected {entries:?}"));
            }
        }
        if of("row").count() != ROWS as usize {
            return Err(format!("{} of {ROWS} rows are as they were written", of("row").count()));
        }
        for (id, row) in (1u32..).zip(of("row")) {
            let client = ((id - 1) % CLIENTS) as usize;
            let wanted = self.clients[client].writers[((id - 1) / CLIENTS) as usize];
            if (number(&row[1])?, number(&row[2])?) != (id.into(), wanted) {
                return Err(format!("row {id}: {row:?}, its last writer is {wanted}"));
            }
        }
        Ok(())
    }
}

/// Starts the server and waits until it answers.
fn start<'h>(server: &Server<'h>) -> Result<Running<'h>, String> {
    let words = server.serve();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut running = server.harness.start(&words, Stdio::null());
    let begun = Instant::now();
    while !server.is_ready() {
        if running.has_ended() || begun.elapsed() > TEST_TIMEOUT {
            let said = running.stderr_text();
            let _ = running.kill();
            running.wait_all();
            return Err(format!("the server does not start: {said}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(running)
}

/// Ends the server as an administrator does.
fn stop(running: Running<'_>) -> Result<(), String> {
    running.signal(Signal::TERM);
    let said = running.stderr_text();
    if running.status().success() { Ok(()) } else { Err(format!("the server failed: {said}")) }
}

/// Checks the database by its own means and by the record of the clients, and ends the server.
fn check<'h>(server: &Server<'h>, running: Running<'h>, record: &mut Record) -> Result<(), String> {
    let rows = Connection::new(server, "pages").rows(&questions(), "end");
    let rows =
        rows.map_err(|e| format!("{e}: {}: {}", server.error_text(), running.stderr_text()))?;
    record.compare(&rows)?;
    let out = server.check();
    let said = text(&out.stdout) + &text(&out.stderr);
    let is_wrong = |line: &str| line.starts_with("error") || line.starts_with("Error");
    if !out.status.success() || said.lines().any(is_wrong) {
        return Err(format!("the database's check: {said}"));
    }
    stop(running)?;
    let Some(words) = server.check_pages() else { return Ok(()) };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let out = server.harness.run(&words);
    if out.status.success() { Ok(()) } else { Err(format!("checksums: {}", text(&out.stderr))) }
}

/// Runs all clients until the server has acknowledged `count` transactions, and cuts power `delay`
/// later.
fn load_and_cut(
    server: &Server<'_>,
    mut running: Running<'_>,
    record: &mut Record,
    (count, delay): (u64, Duration),
) {
    let seed = record.seed;
    let is_over = AtomicBool::new(false);
    let acknowledged = AtomicU64::new(0);
    let (is_over, acknowledged) = (&is_over, &acknowledged);
    std::thread::scope(|scope| {
        for (client, record) in (0..).zip(&mut record.clients) {
            scope.spawn(move || {
                let mut connection = Connection::new(server, "pages");
                while !is_over.load(Ordering::Relaxed) {
                    let number = record.sent + 1;
                    record.sent = number;
                    connection.send(&transaction(seed, client, number));
                    match connection.row() {
                        Some(row) if row[0] == "done" && row[1] == number.to_string() => {}
                        None => break,
                        row => panic!("client {client}, transaction {number}: {row:?}"),
                    }
                    record.acknowledge(seed, client, number);
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        if let Some(statement) = server.engine.checkpoint() {
            scope.spawn(move || {
                let mut connection = Connection::new(server, "pages");
                let statement = format!("{statement}SELECT 'written', 0;\n");
                while !is_over.load(Ordering::Relaxed)
                    && connection.rows(&statement, "written").is_ok()
                {}
            });
        }
        let begun = Instant::now();
        while acknowledged.load(Ordering::Relaxed) < count {
            let hangs = running.has_ended() || begun.elapsed() > TEST_TIMEOUT;
            assert!(!hangs, "the server: {}", running.stderr_text());
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(delay);
        running.cut();
        is_over.store(true, Ordering::Relaxed);
        // Processes of PostgreSQL that wait for one that has ended keep their connections.
        running.wait_all();
    });
}

/// One server at a time: orphans of a server are found among the children of this process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Results of a number of cuts.
#[derive(Debug, Default)]
struct Outcome {
    /// Cuts after which a check failed, with what it said.
    damages: Vec<String>,
    transactions: u64,
}

/// Loads, cuts and recovers `cuts` times, and begins anew from an undamaged database after each cut
/// that damages it.
fn cut_repeatedly(engine: Engine, atomic: bool, cuts: u32, default_seed: u64) -> Option<Outcome> {
    if !testkit::has_programs!(engine.programs()) {
        return None;
    }
    let cuts = std::env::var("SLUICE_CUTS").map_or(cuts, |cuts| cuts.parse().unwrap());
    let _alone = alone();
    let seed = seed(default_seed);
    let _repeat = Repeat(seed);
    let mut rng = Rng::new(seed);
    let [slow, fast] = [PROGRAM_SLOW, PROGRAM_FAST].map(|program| drive(engine, atomic, program));
    let mut harness = CrashHarness::with_drive(Cut::Power, &fast);
    if engine.needs_sync_writes() {
        harness.set_sync_writes();
    }
    create(&Server::new(engine, &harness));
    harness.save_image();
    let new = Record::new(seed);
    let (mut record, mut outcome) = (new.clone(), Outcome::default());
    for _ in 0..cuts {
        harness.set_drive(&slow);
        let server = Server::new(engine, &harness);
        let moment = (10 + rng.below(50), Duration::from_micros(rng.below(20_000)));
        let before = record.acknowledged();
        load_and_cut(&server, start(&server).unwrap(), &mut record, moment);
        outcome.transactions += record.acknowledged() - before;
        harness.restart();
        if rng.chance(0.2) {
            cut_recovery(&Server::new(engine, &harness), Duration::from_micros(rng.below(800_000)));
            harness.restart();
        }
        harness.set_drive(&fast);
        let server = Server::new(engine, &harness);
        let checked = start(&server).and_then(|running| check(&server, running, &mut record));
        if let Err(damage) = checked {
            outcome.damages.push(damage);
            harness.restore_image();
            record = new.clone();
        }
    }
    eprintln!(
        "{engine:?}, atomic {atomic}: {} transactions, {} of {cuts} cuts did damage",
        outcome.transactions,
        outcome.damages.len()
    );
    Some(outcome)
}

/// Starts the server and cuts power while it recovers.
fn cut_recovery(server: &Server<'_>, time: Duration) {
    let words = server.serve();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut running = server.harness.start(&words, Stdio::null());
    std::thread::sleep(time);
    running.cut();
    running.wait_all();
}

/// Creates the database and its tables, and ends the server.
fn create(server: &Server<'_>) {
    let words = server.create();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let out = server.harness.run(&words);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let running = start(server).unwrap();
    let made = format!("{}SELECT 'made', 0;\n", server.engine.begin());
    Connection::new(server, "").rows(&made, "made").unwrap();
    Connection::new(server, "pages").rows(&tables(server.engine), "made").unwrap();
    stop(running).unwrap();
}

/// Asserts that no cut does damage on a drive with atomic writes.
fn survives(engine: Engine, cuts: u32, default_seed: u64) {
    let Some(outcome) = cut_repeatedly(engine, true, cuts, default_seed) else { return };
    assert_eq!(outcome.damages, Vec::<String>::new());
    assert!(outcome.transactions > u64::from(cuts), "{outcome:?}");
}

/// Asserts that some cuts do damage on the same drive without atomic writes.
fn is_damaged(engine: Engine, cuts: u32, default_seed: u64) {
    let Some(outcome) = cut_repeatedly(engine, false, cuts, default_seed) else { return };
    assert!(!outcome.damages.is_empty(), "no cut did damage: the test does not find torn pages");
}

#[test]
fn mariadb_without_doublewrite_survives_cuts_of_power() {
    survives(Engine::MariaDb, 5, 60);
}

#[test]
fn postgresql_without_full_page_writes_survives_cuts_of_power() {
    survives(Engine::PostgreSql, 5, 61);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn mariadb_without_doublewrite_survives_many_cuts_of_power() {
    survives(Engine::MariaDb, 200, 62);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn postgresql_without_full_page_writes_survives_many_cuts_of_power() {
    survives(Engine::PostgreSql, 200, 63);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn mariadb_without_doublewrite_is_damaged_without_atomic_writes() {
    is_damaged(Engine::MariaDb, 200, 64);
}

#[test]
#[ignore = "200 cuts: make test-long"]
fn postgresql_without_full_page_writes_is_damaged_without_atomic_writes() {
    is_damaged(Engine::PostgreSql, 200, 65);
}
