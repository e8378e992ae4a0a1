//! Each kind of output waits until the sync before it is durable.

// guarantee: B-125

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use exec::program::ProgramError;
use time::Nanos;

use crate::programs::sanitizes;

use super::harness::{Ended, Gate, Speculating, compile, new_device, recovered};

/// Runs a program whose device completes nothing until its output or its exit waits. Nothing has come out
/// then. Returns the end of the program, after the device has gone on.
fn waits(gate: Gate, program: &Path, at: &Path, kind: &str, other: &str) -> Ended {
    let pause = |_: &mut Command, control: &super::harness::DeviceControl| {
        control.pause();
    };
    let arguments = [kind, other];
    let mut running = Speculating::start(new_device(1), gate, at, program, &arguments, pause);
    running.until(kind, |running| {
        running.supervisor.acknowledged() > 0 && running.supervisor.waiting() > 0
    });
    assert_eq!(running.supervisor.durable(), 0, "{kind}");
    assert!(!running.has_output(), "{kind}: output before the sync is durable");
    assert_eq!(
        running.child.try_wait().unwrap(),
        None,
        "{kind}: an exit before the sync is durable"
    );
    running.control.resume();
    running.end()
}

#[test]
fn every_kind_of_output_waits_for_the_syncs_before_it() {
    Gate::all_installed().into_iter().for_each(every_kind_waits);
}

fn every_kind_waits(gate: Gate) {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("outputs", dir.path());
    let at = dir.path().canonicalize().unwrap().join("at");
    let other = dir.path().join("other");
    let (says, is_silent) = ("out\n", "");
    let kinds = [
        ("write", says),
        ("printf", says),
        ("raw", says),
        ("writev", says),
        ("signal", says),
        ("vfork", says),
        ("spawn", says),
        ("exec", says),
        ("child", says),
        ("thread", says),
        ("rights", says),
        ("file", says),
        ("unlink", says),
        ("kill", says),
        ("close", is_silent),
        ("unlock", is_silent),
        ("writer", is_silent),
        ("readers", says),
        ("dup2", is_silent),
        ("o_dsync", says),
        ("msync", says),
        ("sync", says),
        ("syncfs", says),
    ];
    for (kind, wanted) in kinds {
        if kind == "unlink" {
            std::fs::write(&other, "other").unwrap();
        } else {
            let _ = std::fs::remove_file(&other);
        }
        let Ended { status, output, service, device } =
            waits(gate, &program, &at, kind, other.to_str().unwrap());
        let stats = service.unwrap().speculation;
        assert_eq!(status.code(), Some(0), "{kind}: {status}");
        assert_eq!(String::from_utf8_lossy(&output), wanted, "{kind}");
        assert!(stats.barriers >= 1 && stats.waited >= 1 && stats.failed == 0, "{kind}: {stats:?}");
        // A close of a file that was only read does not wait.
        assert!(kind != "readers" || stats.stopped >= 50 && stats.waited == 1, "{stats:?}");
        assert!(stats.wait_max <= stats.wait_total && stats.wait_max.0 > 0, "{kind}: {stats:?}");
        assert_eq!(other.exists(), kind == "file", "{kind}");
        let synced = if kind == "msync" { "mapped" } else { "synced" };
        let contents = recovered(device, "file").0.unwrap();
        assert!(contents.starts_with(synced.as_bytes()), "{kind}");
    }
    for kind in ["exit", "raw_exit"] {
        let ended = waits(gate, &program, &at, kind, "");
        assert_eq!(ended.status.code(), Some(7), "{kind}: {}", ended.status);
    }
    let ended = waits(gate, &program, &at, "abort", "");
    assert_eq!(ended.status.signal(), Some(6), "{}", ended.status);
}

/// Builds the Go program of these tests, of its own system calls only, for a build mode.
fn build_go(mode: &str, dir: &Path) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/speculation");
    let program = dir.join(mode);
    let mut go = Command::new("go");
    go.args(["build", "-buildmode", mode, "-o"]).arg(&program).arg(folder.join("after_sync.go"));
    go.env("CGO_ENABLED", "0").env("GOFLAGS", "").env("GOTOOLCHAIN", "local");
    let out = go.env("GOCACHE", dir.join("cache")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

/// Go programs have no C library, or do not use it. As the program they are refused; as descendants of
/// it, their output waits.
#[test]
fn a_go_program_is_refused_and_its_output_waits_as_a_descendant() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("outputs", dir.path());
    let at = dir.path().canonicalize().unwrap().join("at");
    let [fixed, dynamic] = ["exe", "pie"].map(|mode| build_go(mode, dir.path()));
    let refused = |path: &Path| exec::program::find(path.to_str().unwrap(), "").unwrap_err();
    assert!(matches!(refused(&fixed), ProgramError::Static { path } if path == fixed));
    assert!(matches!(refused(&dynamic), ProgramError::Go { path } if path == dynamic));
    // A library with the sanitizer needs a runtime in the program, which Go programs do not have.
    let dynamic = if sanitizes() { fixed.clone() } else { dynamic };
    for (gate, go) in Gate::all_installed().into_iter().zip([fixed, dynamic]) {
        let ended = waits(gate, &program, &at, "go", go.to_str().unwrap());
        assert_eq!(ended.status.code(), Some(0), "{gate:?}: {}", ended.status);
        assert_eq!(String::from_utf8_lossy(&ended.output), "out\n", "{gate:?}");
    }
}

#[test]
fn a_sync_that_no_output_follows_is_durable_after_the_commit_interval() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("outputs", dir.path());
    let at = dir.path().canonicalize().unwrap().join("at");
    for gate in Gate::all_installed() {
        let interval = Nanos::from_millis(20);
        let device = new_device(1);
        let mut running =
            Speculating::with_interval(interval, device, gate, &at, &program, &["idle"], |_, _| ());
        running.until("durable", |running| running.supervisor.durable() > 0);
        assert_eq!((running.supervisor.waiting(), running.supervisor.buffered()), (0, 0));
        running.child.kill().unwrap();
        let ended = running.end();
        assert_eq!(ended.service.unwrap().speculation.waited, 0, "{gate:?}");
    }
}

/// Without the filter, the output of a program comes before the data is durable. So the test
/// above fails without the gate.
#[test]
fn without_the_gate_output_does_not_wait() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("outputs", dir.path());
    let at = dir.path().canonicalize().unwrap().join("at");
    let mut running = Speculating::start(
        new_device(1),
        Gate::Removed,
        &at,
        &program,
        &["write"],
        |_, control| {
            control.pause();
        },
    );
    running.await_output();
    assert_eq!((running.supervisor.acknowledged(), running.supervisor.durable()), (1, 0));
    running.control.resume();
    let ended = running.end();
    assert!(ended.status.success() && ended.output == b"out\n", "{}", ended.status);
}
