//! `sluice admin stats`, which shows the activity of a served drive from outside the server, and
//! the status line of the server itself.

use crate::served;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use served::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn admin_socket(dir: &Path) -> PathBuf {
    dir.join("admin.sock")
}

/// Starts a server with an admin socket, and waits until it answers.
fn serve(dir: &Path, scenario: &str, more: &[&str]) -> Server {
    let socket = admin_socket(dir);
    let args = [&["--admin-socket", socket.to_str().unwrap()], more].concat();
    let server = Server::launch(dir, scenario, &args);
    let start = Instant::now();
    while !server.stdout().contains("answering `sluice admin stats` at") {
        assert!(start.elapsed() < TEST_TIMEOUT, "{}", server.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    server
}

fn sluice(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(args);
    command
}

fn stats(dir: &Path, more: &[&str]) -> Command {
    let mut command = sluice(&["admin", "--socket"]);
    command.arg(admin_socket(dir)).arg("stats").args(more);
    command
}

/// A running `sluice admin stats --follow`, killed when dropped.
struct Follower {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Follower {
    fn start(dir: &Path) -> Follower {
        let mut command = stats(dir, &["--follow", "--json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Follower { child, out }
    }

    /// Returns the next line; `None` at the end.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        let parsed = serde_json::from_str(&line);
        (!line.is_empty()).then(|| parsed.unwrap_or_else(|e| panic!("{e}: {line}")))
    }

    /// Waits until the command has ended by itself. Returns its exit code and messages.
    fn finish(mut self) -> (Option<i32>, String) {
        while self.next().is_some() {}
        let status = self.child.wait().unwrap();
        let mut told = String::new();
        std::io::Read::read_to_string(self.child.stderr.as_mut().unwrap(), &mut told).unwrap();
        (status.code(), told)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn error_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn what_is_followed_is_what_happens_in_each_interval() {
    for scenario in [DRIVE.to_owned(), pblk(), shards()] {
        let dir = tempfile::tempdir().unwrap();
        let server = serve(dir.path(), &scenario, &[]);
        // Writes before the first interval are in none of the reported intervals.
        fio_ok(&server, &["--rw=write", "--bs=64k", "--size=16m"]);
        let mut follower = Follower::start(dir.path());
        let first = follower.next().unwrap();
        assert_eq!((&first["drive"], &first["writes"]), (&"drive0".into(), &0.into()), "{first}");
        let length = first["interval_s"].as_f64().unwrap();
        assert!(length >= 0.9 && length < first["uptime_s"].as_f64().unwrap(), "{first}");
        assert!(first["write_latency_ns"].is_null() && first["queue_depth"] == 0, "{first}");
        let job =
            "--rw=randrw --bs=4k --iodepth=8 --norandommap --size=32m --time_based --runtime=30";
        let mut load = fio(&server, &job.split_whitespace().collect::<Vec<_>>());
        let mut load = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let busy = |value: &Value| {
            value["reads"].as_u64().unwrap() > 100 && value["writes"].as_u64().unwrap() > 100
        };
        let start = Instant::now();
        let seen = loop {
            let value = follower.next().unwrap();
            if busy(&value) {
                break value;
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "{value}");
        };
        assert_eq!((&seen["nbd_clients"], &seen["socket_clients"]), (&1.into(), &0.into()));
        for kind in ["read", "write"] {
            let latency = &seen[format!("{kind}_latency_ns")];
            let [p50, p99, max] = ["p50", "p99", "max"].map(|q| latency[q].as_u64().unwrap());
            assert!(p50 <= p99 && p99 <= max && max > 0, "{seen}");
        }
        assert!(seen["queue_depth"].as_u64().unwrap() <= 8, "{seen}");
        let mean = seen["queue_depth_mean"].as_f64().unwrap();
        assert!(mean > 0.0 && mean <= 8.1, "{seen}");
        assert!(seen["write_amplification"].as_f64().unwrap() >= 1.0, "{seen}");
        assert!(seen["free_lines"].as_f64().unwrap() > 0.0, "{seen}");
        // Without --follow, the command prints totals since the server's start.
        let output = stats(dir.path(), &["--json"]).output().unwrap();
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(all["writes"].as_u64().unwrap() >= 256 + seen["writes"].as_u64().unwrap(), "{all}");
        server.stop();
        assert_eq!(follower.finish(), (Some(0), String::new()), "--follow ends with the server");
        let _ = load.wait();
    }
}

#[test]
fn following_ends_with_a_signal_and_with_a_server_that_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), DRIVE, &[]);
    let mut follower = Follower::start(dir.path());
    assert!(follower.next().is_some());
    kill_process(Pid::from_child(&follower.child), Signal::INT).unwrap();
    assert_eq!(follower.finish(), (Some(0), String::new()));
    let mut follower = Follower::start(dir.path());
    assert!(follower.next().is_some());
    server.kill();
    let (code, error) = follower.finish();
    assert_eq!(code, Some(1));
    assert!(error.contains("the server is gone"), "{error}");
}

#[test]
fn the_status_line_names_its_numbers_and_is_about_its_interval() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), DRIVE, &["--stats", "1"]);
    fio_ok(&server, &["--rw=randwrite", "--bs=4k", "--size=8m", "--iodepth=4"]);
    let lines = || {
        let text = server.stderr();
        let lines = text.lines().filter(|line| line.starts_with("drive0: "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let start = Instant::now();
    // Waits for a line that reports the writes, and for a later one without writes.
    let idle = |line: &String| line.contains("drive0: 0 IOPS");
    while !lines().iter().skip_while(|line| idle(line)).any(idle) {
        assert!(start.elapsed() < TEST_TIMEOUT, "{:#?}", lines());
        std::thread::sleep(Duration::from_millis(50));
    }
    let busy = lines().into_iter().find(|line| !idle(line)).unwrap();
    for part in
        [", write ", " p50 ", " p99 ", "queue depth ", "WA ", "GC moved ", "free lines", "late p50"]
    {
        assert!(busy.contains(part), "{part}: {busy}");
    }
    let last = lines().into_iter().skip_while(idle).find(idle).unwrap();
    assert!(last.contains("write 0 IOPS 0 B/s, queue depth 0.0, WA -"), "{last}");
    assert!(last.contains("late p50 0 ns p99 0 ns max 0 ns, 0 NBD clients"), "{last}");
    server.stop();
}

#[test]
fn who_cannot_be_asked_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let ask = |socket: &Path| {
        let output = sluice(&["admin", "--socket"]).arg(socket).arg("stats").output().unwrap();
        (output.status.code(), error_text(&output))
    };
    let nowhere = dir.path().join("nowhere.sock");
    let (code, text) = ask(&nowhere);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("nowhere.sock") && text.contains("`sluice serve"), "{text}");
    assert!(text.contains("--admin-socket"), "{text}");
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let (_, text) = ask(&file);
    assert!(text.contains("is not a socket"), "{text}");
    // The NBD socket answers with the NBD protocol.
    let server = serve(dir.path(), DRIVE, &[]);
    let (_, text) = ask(&server.socket);
    assert!(text.contains("NBD") && text.contains("--admin-socket"), "{text}");
    // No partition is shared at an admin socket, and --interval requires --follow.
    let list = sluice(&["admin", "--socket"]).arg(admin_socket(dir.path())).arg("list").output();
    assert!(error_text(&list.unwrap()).starts_with("partitions\n  none\n"));
    let output = stats(dir.path(), &["--interval", "2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error_text(&output).contains("--follow"), "{}", error_text(&output));
    let output = stats(dir.path(), &["--follow", "--interval", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    server.stop();
}
