//! Programs from elsewhere on a volume: the shell of SQLite, and Redis, if they are installed (`make test` sees to it).

use crate::stage::{Stage, text};

#[test]
fn sqlite_commits_and_recovers_on_a_volume() {
    let stage = Stage::new(32 << 20);
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

/// Appends, a background rewrite by a forked child, a snapshot, and a restart that reads both.
#[test]
fn redis_rewrites_in_the_background_and_starts_again() {
    let stage = Stage::new(64 << 20);
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
