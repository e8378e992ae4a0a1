//! Installed programs on a volume: the shell of SQLite, and Redis (`make test` installs them).

// guarantee: D-16, B-37

use super::fixture::{Fixture, text};

#[test]
fn sqlite_commits_and_recovers_on_a_volume() {
    let stage = Fixture::new(32 << 20);
    let db = stage.path("at") + "/test.db";
    let fill = "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT); WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL \
                SELECT x + 1 FROM c WHERE x < 5000) INSERT INTO t SELECT x, hex(randomblob(20)) FROM c; \
                CREATE INDEX i ON t(b); DELETE FROM t WHERE a % 3 = 0;";
    let out = stage.exec(&["sqlite3", &db, fill]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let check = "PRAGMA integrity_check; SELECT count(*) FROM t; BEGIN; DELETE FROM t; ROLLBACK; \
                 SELECT count(*) FROM t; VACUUM; PRAGMA integrity_check;";
    let out = stage.exec(&["sqlite3", &db, check]);
    assert_eq!(text(&out.stdout), "ok\n3334\n3334\nok\n", "{}", text(&out.stderr));
    stage.is_clean();
}

/// A write-ahead log with SQLite's default, whose index several processes map and share: two
/// processes write while a third reads, and one is killed in a transaction, which SQLite rolls
/// back.
#[test]
fn sqlite_processes_share_a_write_ahead_log_on_a_volume() {
    let stage = Fixture::new(64 << 20);
    let db = stage.path("at") + "/test.db";
    let writer = |who: u32| -> String {
        let inserts: String = (0..150)
            .map(|n| format!("INSERT INTO t VALUES({who}, {n}, hex(randomblob(400)));\n"))
            .collect();
        let file = stage.path(&format!("writer-{who}.sql"));
        std::fs::write(
            &file,
            format!("PRAGMA busy_timeout = 100000; PRAGMA wal_autocheckpoint = 20;\n{inserts}"),
        )
        .unwrap();
        format!("sqlite3 -batch -bail {db} < {file} > /dev/null")
    };
    let script = format!(
        "set -e; sqlite3 {db} 'PRAGMA journal_mode = WAL; CREATE TABLE t(who, n, b);'; \
         {one} & a=$!; {two} & b=$!; \
         while kill -0 $a 2> /dev/null || kill -0 $b 2> /dev/null; do \
           sqlite3 -batch {db} 'PRAGMA busy_timeout = 100000; SELECT count(*) FROM (SELECT max(n) + 1 <> count(*) AS x \
             FROM t GROUP BY who) WHERE x;' | grep -vx 100000 | grep -qx 0; \
         done; wait $a; wait $b; \
         mkfifo {fifo}; sqlite3 -batch {db} < {fifo} > {fifo}.out & c=$!; exec 7> {fifo}; \
         echo 'PRAGMA busy_timeout = 100000; BEGIN IMMEDIATE; DELETE FROM t;' >&7; \
         until test \"$(sqlite3 -batch {db} 'BEGIN IMMEDIATE; ROLLBACK;' 2>&1)\"; do sleep 0.02; done; \
         kill -9 $c; wait $c || true; exec 7>&-; \
         sqlite3 {db} 'PRAGMA busy_timeout = 100000; PRAGMA integrity_check; SELECT who, count(*), max(n) FROM t GROUP BY who;'",
        one = writer(1),
        two = writer(2),
        fifo = stage.path("fifo"),
    );
    let out = stage.exec(&["bash", "-c", &script]);
    let said = format!("{}{}", text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{said}");
    assert_eq!(text(&out.stdout), "wal\n100000\nok\n1|150|149\n2|150|149\n", "{said}");
    assert!(!said.contains("sluice exec:"), "{said}");
    stage.is_clean();
    // Another run recovers the remaining log.
    let check = "PRAGMA integrity_check; PRAGMA journal_mode; SELECT count(*) FROM t;";
    let out = stage.exec(&["sqlite3", &db, check]);
    assert_eq!(text(&out.stdout), "ok\nwal\n300\n", "{}", text(&out.stderr));
    stage.is_clean();
}

/// A program on the drive of a scenario, whose file service waits by each method of completion.
#[test]
fn a_program_runs_by_every_method_of_completion() {
    let drive = "[drive]\npreset = \"femu-default\"\ndata = \"file\"\npath = \"drive.img\"\n\
        geometry = { channels = 2, pus = 4, chunks = 64, pages = 64 }\n\
        timing = { read = \"10us\", program = \"50us\", erase = \"100us\" }\n[path]\n";
    for keys in [
        "completion = \"poll\"\n",
        "poll_interval = \"200us\"\n",
        "completion = \"interrupt\"\n",
        "completion = \"hybrid\"\nqueue_model = \"mq\"\n",
        "completion = \"lazy\"\nqueue_model = \"sq\"\n",
        "completion = \"coop\"\nqueue_model = \"sq\"\n",
        "completion = \"interrupt\"\nqueue_model = \"sq\"\n",
    ] {
        let stage = Fixture::on_scenario(&format!("{drive}{keys}"));
        let db = stage.path("at") + "/test.db";
        let fill = "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT); WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL \
                    SELECT x + 1 FROM c WHERE x < 500) INSERT INTO t SELECT x, hex(randomblob(200)) FROM c;";
        let out = stage.exec(&["sqlite3", &db, fill]);
        assert!(out.status.success(), "{keys}: {}", text(&out.stderr));
        let check = "PRAGMA integrity_check; SELECT count(*) FROM t;";
        let out = stage.exec(&["sqlite3", &db, check]);
        assert_eq!(text(&out.stdout), "ok\n500\n", "{keys}: {}", text(&out.stderr));
        stage.is_clean();
    }
}

/// A SATA drive keeps its data in memory: the volume is created with the program, and ends with it.
#[test]
fn a_program_runs_on_a_sata_drive_of_a_scenario() {
    let drive =
        |name: &str| format!("[[drive]]\nname = \"{name}\"\nkind = \"ahci\"\ncapacity = \"64M\"\n");
    let set = drive("a") + &drive("b") + "[[set]]\nname = \"ab\"\nmembers = [\"a\", \"b\"]\n";
    for text in [
        drive("a"),
        format!("{}[path]\nqueue_model = \"sq\"\ncompletion = \"interrupt\"\n", drive("a")),
        format!("{set}[path]\nqueue_model = \"mq\"\n"),
    ] {
        let stage = Fixture::unformatted(&text);
        let db = stage.path("at") + "/test.db";
        let script = format!(
            "set -e; sqlite3 {db} 'CREATE TABLE t(a, b); WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL \
             SELECT x + 1 FROM c WHERE x < 500) INSERT INTO t SELECT x, hex(randomblob(200)) FROM c;'; \
             sqlite3 {db} 'PRAGMA integrity_check; SELECT count(*) FROM t;'"
        );
        let mut command = stage.command_with(&["--format"], &["bash", "-c", &script]);
        for _ in 0..2 {
            let out = command.output().unwrap();
            let told = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.stdout, b"ok\n500\n", "{text}: {told}");
        }
        let out = stage.exec(&["true"]);
        let told = String::from_utf8(out.stderr).unwrap();
        assert!(!out.status.success() && told.contains("no superblock"), "{told}");
    }
}

/// `--format` overwrites no volume.
#[test]
fn a_volume_is_not_created_over_another() {
    let stage = Fixture::new(32 << 20);
    let out = stage.command_with(&["--format"], &["true"]).output().unwrap();
    let told = String::from_utf8(out.stderr).unwrap();
    assert!(!out.status.success() && told.contains("is left as it is"), "{told}");
    stage.is_clean();
}

/// Appends, a background rewrite by a forked child, a snapshot, and a restart that reads both.
#[test]
fn redis_rewrites_in_the_background_and_starts_again() {
    let stage = Fixture::new(64 << 20);
    let (at, socket) = (stage.path("at"), stage.path("redis.sock"));
    let ask = format!("redis-cli -s {socket}");
    let start = format!(
        "redis-server --port 0 --unixsocket {socket} --dir {at} --appendonly yes --appendfsync always \
         --daemonize no --save '' > {log} 2>&1 & for i in $(seq 300); do {ask} ping 2>/dev/null | \
         grep -q PONG && break; sleep 0.02; done",
        log = stage.path("log")
    );
    let settled = "for i in $(seq 300); do {ask} info persistence | grep -q \
                   'aof_rewrite_in_progress:0' && break; sleep 0.05; done"
        .replace("{ask}", &ask);
    let first = format!(
        "{start}; {ask} eval \"for i=1,2000 do redis.call('set', 'key'..i, string.rep('v', 100)) end\" 0; \
         {ask} bgrewriteaof; {settled}; {ask} incrby n 41 ; {ask} incr n; {ask} save; \
         {ask} info persistence | grep aof_last_bgrewrite_status; {ask} shutdown nosave; wait; ls {at}"
    );
    let out = stage.exec(&["bash", "-c", &first]);
    let (said, log) = (text(&out.stdout), std::fs::read_to_string(stage.path("log")));
    assert!(said.contains("aof_last_bgrewrite_status:ok"), "{said}{}{log:?}", text(&out.stderr));
    assert!(said.contains("dump.rdb") && said.contains("appendonlydir"), "{said}");
    stage.is_clean();
    let second =
        format!("{start}; {ask} dbsize; {ask} get n; {ask} strlen key2000; {ask} shutdown; wait");
    let out = stage.exec(&["bash", "-c", &second]);
    let log = std::fs::read_to_string(stage.path("log"));
    assert_eq!(text(&out.stdout), "2001\n42\n100\n", "{}{log:?}", text(&out.stderr));
    stage.is_clean();
}
