//! `sluice bench exec`: its output, and that it leaves nothing behind, however it ends.

// guarantee: D-19

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::fixture::{Fixture, SLUICE, text};

/// Only root can mount.
fn can_mount() -> bool {
    rustix::process::geteuid().is_root()
}

fn scratch(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("sluice-bench-exec-{process}"))
}

/// Returns whether a loop device uses a file of the directory, or a process was started with its
/// name.
fn is_used(directory: &Path) -> bool {
    let name = directory.to_str().unwrap();
    let files = |of: &str, file: &str| -> Vec<Vec<u8>> {
        let entries = Path::new(of).read_dir().unwrap().flatten();
        entries.filter_map(|entry| std::fs::read(entry.path().join(file)).ok()).collect()
    };
    let all = [files("/sys/block", "loop/backing_file"), files("/proc", "cmdline")].concat();
    all.iter().any(|bytes| String::from_utf8_lossy(bytes).contains(name))
}

#[test]
fn programs_are_measured_both_ways_and_nothing_stays() {
    let _built = Fixture::new(8 << 20);
    let mut bench = Command::new(SLUICE);
    bench.args(["bench", "exec", "--json", "--quick", "--part", "redis,sqlite,rocksdb"]);
    let child = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let directory = scratch(child.id());
    let out = child.wait_with_output().unwrap();
    let said = text(&out.stderr);
    if !can_mount() {
        assert!(!out.status.success() && said.contains("superuser"), "{said}");
        testkit::skip!("not root: no file system can be mounted");
        return;
    }
    // Exit code 3: a result is outside its bound, as on a busy machine.
    assert!(matches!(out.status.code(), Some(0 | 3)), "{said}");
    let lines: Vec<Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let programs = [
        "redis, YCSB A, 10 clients, appendfsync always",
        "redis, YCSB A, 10 clients, appendfsync everysec",
        "sqlite, a transaction per insert, journal delete",
        "sqlite, a transaction per insert, journal wal",
        "rocksdb, fill with a sync per write",
        "rocksdb, fill",
        "rocksdb, 2 threads read while 1 writes 4 MB/s",
    ];
    for program in programs {
        for below in ["drive without timing", "drive consumer-nvme", "host file"] {
            let case = format!("{program}, {below}, sluice exec");
            let rows = || lines.iter().filter(|l| l["case"] == case.as_str());
            let rate = rows().find(|l| l["metric"] == "throughput").expect(&case);
            assert!(rate["ratio"].as_f64().unwrap() > 0.0, "{rate}");
            let kernel = rate["reference"]["what"].as_str().unwrap();
            assert!(kernel.starts_with("ext4 on a loop device"), "{kernel}");
            assert_eq!(kernel.contains("no emulated drive"), below == "host file");
            assert_eq!(rate["verdict"].is_string(), program.ends_with("always"), "{rate}");
            assert_eq!(rows().filter(|l| l["metric"] == "throughput_spread").count(), 1);
        }
    }
    assert!(!directory.exists() && !is_used(&directory));
}

/// Rows of programs that do not sync, that speculate, that wait, and that wait in the kernel; no timing
/// is asserted.
#[test]
fn programs_are_measured_without_syncs_speculating_and_waiting() {
    if !testkit::has_programs!(&["db_bench", "sqlite3", "redis-server"]) {
        return;
    }
    let _built = Fixture::new(8 << 20);
    let mut bench = Command::new(SLUICE);
    bench.args(["bench", "speculate", "--json", "--quick", "--part", "exec"]);
    let out = bench.output().unwrap();
    let said = text(&out.stderr);
    if !can_mount() {
        assert!(!out.status.success() && said.contains("superuser"), "{said}");
        testkit::skip!("not root: no file system can be mounted");
        return;
    }
    // Exit code 3: a result is outside its bound, as on a busy machine.
    assert!(matches!(out.status.code(), Some(0 | 3)), "{said}");
    let lines: Vec<Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let programs = [
        "sqlite, a transaction per insert, journal wal",
        "rocksdb, fill with a sync per write",
        "redis, YCSB A, 10 clients, appendfsync always",
    ];
    for program in programs {
        for mode in ["not syncing", "speculating", "waiting", "waiting in the kernel"] {
            let case = format!("{program}, {mode}");
            let is_rate = |l: &&Value| l["case"] == case.as_str() && l["metric"] == "throughput";
            let rate = lines.iter().find(is_rate).expect(&case);
            assert!(rate["value"].as_f64().unwrap() > 0.0, "{rate}");
            let is_bounded = mode == "speculating" && !program.starts_with("redis");
            assert_eq!(rate["verdict"].is_string(), is_bounded, "{rate}");
        }
    }
    let always = "redis, YCSB A, 10 clients, appendfsync always";
    for case in ["speculating with an outbox", "drive pcm, speculating with an outbox"] {
        let case = format!("{always}, {case}");
        let is_rate = |l: &&Value| l["case"] == case.as_str() && l["metric"] == "throughput";
        let outbox = lines.iter().find(is_rate).expect(&case);
        assert!(outbox["verdict"].is_string(), "{outbox}");
    }
    let idle = "redis, YCSB A, 10 clients, appendfsync everysec, speculating";
    let idle = lines.iter().find(|l| l["case"] == idle && l["metric"] == "throughput").expect(idle);
    assert_eq!(idle["reference"]["what"], "waiting", "{idle}");
}

/// Rows of figures 6 and 7 of the LightNVM paper; no timing is asserted, except for an upper limit
/// of the flash.
#[test]
fn databases_are_measured_on_pblk_and_on_an_nvme_ssd() {
    if !testkit::has_programs!(&["db_bench", "mariadb", "sysbench"]) {
        return;
    }
    let _built = Fixture::new(8 << 20);
    let mut bench = Command::new(SLUICE);
    bench.args(["bench", "exec", "--json", "--quick", "--part", "nosql,sql"]);
    let child = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let directory = scratch(child.id());
    let out = child.wait_with_output().unwrap();
    assert!(matches!(out.status.code(), Some(0 | 3)), "{}", text(&out.stderr));
    let lines: Vec<Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = |case: &str, metric: &str| {
        let mut found = lines.iter().filter(|l| l["case"] == case && l["metric"] == metric);
        let row = found.next().unwrap_or_else(|| panic!("{case}: {metric}"));
        assert!(found.next().is_none(), "duplicate row {case}: {metric}");
        row
    };
    let nosql = ["throughput", "latency_p95", "latency_p99", "latency_p99_9"];
    let sql = ["throughput", "latency_mean", "latency_p95", "latency_max"];
    let mut rows = 0;
    for drive in ["drive-managed NVMe SSD", "pblk, 128 active PUs", "pblk, 4 active PUs"] {
        for (load, metrics) in [
            ("nosql, sequential writes with sync", nosql),
            ("nosql, random reads", nosql),
            ("nosql, random reads while 16 MB/s are written", nosql),
            ("sql, OLTP, reads and writes", sql),
            ("sql, OLTP, writes", sql),
            ("sql, OLAP, aggregates over 10000 rows", sql),
        ] {
            for metric in metrics {
                let row = row(&format!("{load}, {drive}"), metric);
                assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
                let is_of_paper = load.ends_with("with sync") && metric == "throughput";
                let compared = is_of_paper || drive.starts_with("pblk");
                assert_eq!(row["ratio"].is_number(), compared, "{row}");
                assert_eq!(row["reference"]["what"] == "paper", is_of_paper, "{row}");
                let is_bounded = is_of_paper && drive.ends_with("4 active PUs");
                assert_eq!(row["verdict"].is_string(), is_bounded, "{row}");
                rows += 1;
            }
        }
        for load in ["reads and writes", "writes"] {
            let case = format!("sql, OLTP, {load}, {drive}");
            assert!(row(&case, "syncs")["value"].as_f64().unwrap() > 0.0);
            assert_eq!(row(&case, "syncs_per_gb")["reference"]["what"], "paper");
        }
        row(&format!("sql, OLAP, aggregates over 10000 rows, {drive}"), "syncs");
        row(&format!("nosql, random reads while 16 MB/s are written, {drive}"), "write_throughput");
        rows += 6;
    }
    assert_eq!(lines.len(), rows);
    assert!(!directory.exists() && !is_used(&directory));
}

// guarantee: B-111

/// No timing is asserted.
#[test]
fn programs_on_a_log_are_compared_with_a_drive_without_timing() {
    if !testkit::has_programs!(&["redis-server", "sqlite3", "db_bench"]) {
        return;
    }
    let _built = Fixture::new(8 << 20);
    let mut bench = Command::new(SLUICE);
    bench.args(["bench", "exec", "--json", "--quick", "--part", "log"]);
    let out = bench.output().unwrap();
    assert!(matches!(out.status.code(), Some(0 | 3)), "{}", text(&out.stderr));
    let lines: Vec<Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut rows = lines.iter();
    for program in [
        "redis, YCSB A, 10 clients, appendfsync always",
        "sqlite, a transaction per insert, journal delete",
        "sqlite, a transaction per insert, journal wal",
        "rocksdb, fill with a sync per write",
    ] {
        for drive in
            ["drive without timing", "volatile consumer-nvme with a log", "volatile consumer-nvme"]
        {
            let row = rows.next().expect(program);
            assert_eq!(row["case"], format!("{program}, {drive}"));
            assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
            assert_eq!(row["ratio"].is_number(), drive != "drive without timing", "{row}");
            assert_eq!(row["verdict"].is_string(), drive.ends_with("log"), "{row}");
        }
    }
    assert_eq!(rows.next(), None);
}

// guarantee: B-113

/// No bound is asserted: the runs are short.
#[test]
fn databases_are_measured_with_and_without_their_second_write() {
    if !testkit::has_programs!(&["mariadbd", "mariadb", "sysbench", "pg_ctlcluster", "pgbench"]) {
        return;
    }
    let _built = Fixture::new(8 << 20);
    let mut bench = Command::new(SLUICE);
    bench.args(["bench", "exec", "--json", "--quick", "--part", "atomic"]);
    let child = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let directory = scratch(child.id());
    let out = child.wait_with_output().unwrap();
    assert!(matches!(out.status.code(), Some(0 | 3)), "{}", text(&out.stderr));
    let lines: Vec<Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut rows = lines.iter();
    for (load, option) in [
        ("mariadb, sysbench oltp_write_only", "innodb_doublewrite"),
        ("postgresql, sysbench oltp_write_only", "full_page_writes"),
        ("postgresql, pgbench simple-update", "full_page_writes"),
    ] {
        for (metric, unit) in [("throughput", "1/s"), ("bytes_per_transaction", "B")] {
            for value in ["on", "off"] {
                let row = rows.next().expect(load);
                assert_eq!(row["case"], format!("{load}, {option} {value}"));
                assert_eq!((&row["metric"], &row["unit"]), (&metric.into(), &unit.into()), "{row}");
                assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
                assert_eq!(row["verdict"].is_string(), value == "off", "{row}");
                if value == "off" {
                    assert_eq!(row["reference"]["what"], format!("{option} on"));
                }
            }
        }
    }
    assert_eq!(rows.next(), None);
    assert!(!directory.exists() && !is_used(&directory));
}

#[test]
fn a_missing_program_is_reported_with_its_package() {
    for (part, present, package) in [
        ("nosql", &["setpriv"][..], "rocksdb-tools"),
        ("sql", &["setpriv", "mariadbd"], "mariadb-server"),
        ("sql", &["setpriv", "mariadbd", "mariadb-install-db"], "mariadb-client"),
        (
            "sql",
            &["setpriv", "mariadbd", "mariadb-install-db", "mariadb", "mariadb-admin"],
            "sysbench",
        ),
        (
            "atomic",
            &["setpriv", "mariadbd", "mariadb-install-db", "mariadb", "mariadb-admin", "sysbench"],
            "postgresql",
        ),
    ] {
        let path = tempfile::tempdir().unwrap();
        for program in present {
            std::fs::write(path.path().join(program), "").unwrap();
        }
        let mut bench = Command::new(SLUICE);
        bench.args(["bench", "exec", "--quick", "--part", part]).env("PATH", path.path());
        let out = bench.output().unwrap();
        let said = text(&out.stderr);
        assert!(!out.status.success() && said.contains(package), "{part}: {said}");
        assert!(out.stdout.is_empty());
    }
}

#[test]
fn a_run_that_is_killed_leaves_no_mount_no_device_and_no_process() {
    if !can_mount() {
        testkit::skip!("not root: no file system can be mounted");
        return;
    }
    // The socket exists once Redis runs, on the host or on a volume.
    killed_run_leaves_nothing("redis", "redis.sock");
}

#[test]
fn a_killed_run_on_new_volumes_leaves_no_process() {
    if !testkit::has_programs!(&["mariadb", "sysbench"]) {
        return;
    }
    killed_run_leaves_nothing("sql", "sql.sock");
}

#[test]
fn a_killed_run_on_an_image_leaves_no_process() {
    if !testkit::has_programs!(&["mariadbd", "mariadb", "sysbench", "pg_ctlcluster", "pgbench"]) {
        return;
    }
    killed_run_leaves_nothing("atomic", "sockets/socket");
}

/// Kills a run when a file exists in its directory.
fn killed_run_leaves_nothing(part: &str, file: &str) {
    let _built = Fixture::new(8 << 20);
    let mut bench = Command::new(SLUICE);
    bench.args(["bench", "exec", "--part", part]).stdout(Stdio::null());
    let mut child = bench.spawn().unwrap();
    let directory = scratch(child.id());
    let begin = Instant::now();
    let patience = Duration::from_secs(60);
    while !directory.join(file).exists() {
        assert!(child.try_wait().unwrap().is_none(), "the command ended before it was killed");
        assert!(begin.elapsed() < patience, "the program does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(is_used(&directory));
    child.kill().unwrap();
    child.wait().unwrap();
    let begin = Instant::now();
    while is_used(&directory) {
        assert!(begin.elapsed() < patience, "a loop device or a process remains");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The next run removes the directory, but that run may belong to another test.
    let _ = std::fs::remove_dir_all(&directory);
}
