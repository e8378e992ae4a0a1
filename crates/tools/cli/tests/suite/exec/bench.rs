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

#[test]
fn a_run_that_is_killed_leaves_no_mount_no_device_and_no_process() {
    if !can_mount() {
        testkit::skip!("not root: no file system can be mounted");
        return;
    }
    let _built = Fixture::new(8 << 20);
    let mut bench = Command::new(SLUICE);
    bench.args(["bench", "exec", "--part", "redis"]).stdout(Stdio::null());
    let mut child = bench.spawn().unwrap();
    let directory = scratch(child.id());
    let begin = Instant::now();
    let patience = Duration::from_secs(60);
    // The socket exists once Redis runs, on the host or on a volume.
    while !directory.join("redis.sock").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the command ended before it was killed");
        assert!(begin.elapsed() < patience, "Redis does not start");
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
