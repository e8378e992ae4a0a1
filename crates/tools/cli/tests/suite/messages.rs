//! Messages for a new user's mistakes: each names the error and the remedy.

use crate::served;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use served::*;

fn sluice(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_sluice")]).args(args).current_dir(dir);
    command.stdin(Stdio::null()).output().unwrap()
}

/// Runs a command; returns the exit code and standard error.
fn refused(dir: &Path, args: &[&str]) -> (i32, String) {
    let output = sluice(dir, args);
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn check(dir: &Path, cases: &[(&[&str], i32, &[&str])]) {
    for (args, code, parts) in cases {
        let (found, told) = refused(dir, args);
        assert_eq!(found, *code, "{args:?}: {told}");
        for part in *parts {
            assert!(told.contains(part), "{args:?}: `{part}` is not in {told}");
        }
    }
}

#[test]
fn serving_says_what_is_missing_before_anything_takes_its_time() {
    let dir = tempfile::tempdir().unwrap();
    // The preconditioning of this drive takes longer than the test waits, so the errors must come
    // first.
    let slow =
        DRIVE.to_owned() + "[precondition]\nfill = \"sequential\"\noverwrite = \"random 900x\"\n";
    std::fs::write(dir.path().join("d.toml"), slow).unwrap();
    std::fs::write(dir.path().join("plain"), "x").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("tcp:{}", listener.local_addr().unwrap());
    let nbd = ["serve", "d.toml", "--nbd", "unix:s"];
    check(
        dir.path(),
        &[
            (&["serve", "d.toml"], 2, &["--nbd unix:PATH", "--socket PATH"]),
            (&["serve", "d.toml", "--nbd", "tcp:0.0.0.0:0"], 2, &["--allow-remote", "127.0.0.1"]),
            (&["serve", "d.toml", "--nbd", &taken], 1, &[&taken, "already serves"]),
            (&["serve", "d.toml", "--nbd", "unix:plain"], 1, &["plain exists and is not a socket"]),
            (&["serve", "d.toml", "--nbd", "unix:no/s"], 1, &["unix:no/s", "No such file"]),
            (&[&nbd[..], &nbd[2..]].concat(), 2, &["unix:s is given twice"]),
            (&[&nbd[..], &["--socket", "s"]].concat(), 2, &["unix:s is given twice"]),
            (&[&nbd[..], &["--json", "no/x"]].concat(), 1, &["cannot write no/x"]),
            (&[&nbd[..], &["--json", "."]].concat(), 1, &["cannot write .", "directory"]),
            (&[&nbd[..], &["--seed", "-1"]].concat(), 2, &["invalid value '-1' for '--seed"]),
            (&["serve", "d.toml", "--admin-socket", "a"], 2, &["--nbd"]),
        ],
    );
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "refused commands must not create files: {left:?}");
}

#[test]
fn who_has_a_drive_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let share = dir.path().join("share.sock");
    let more = ["--socket", share.to_str().unwrap()];
    let server = Server::launch(dir.path(), &in_file(DRIVE), &more).wait_ready();
    let url = format!("sluice://{}", share.display());
    let start = Instant::now();
    while !share.exists() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    let holder =
        ["scenario.toml", "is in use by another process or drive: process ", "sluice serve "];
    let path = dir.path().join("scenario.toml");
    let scenario = path.to_str().unwrap();
    for command in [&["device", "info"][..], &["volume", "info"]] {
        let (code, told) = refused(dir.path(), &[command, &[scenario]].concat());
        assert_eq!(code, 1);
        assert!(holder[1..].iter().all(|part| told.contains(part)), "{told}");
    }
    check(
        dir.path(),
        &[(&["device", "info", &url], 1, &["drive0/rest is served over NBD", "[[partition]]"])],
    );
    server.stop();
}

#[test]
fn words_that_are_nearly_right_have_the_right_one_beside_them() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("j.fio"), "[j]\nrw=read\n").unwrap();
    check(
        dir.path(),
        &[
            (&["drive", "show", "--preset", "femu-defalt"], 2, &["'femu-default'", "similar"]),
            (
                &["serve", "j.fio", "--nbd", "unix:j"],
                2,
                &["a scenario is a .toml", "`sluice sim`", "j.fio"],
            ),
            (
                &["target", "create", "d.toml", "--name", "a", "--type", "pblkk", "--pus", "0"],
                2,
                &["`pblkk` is not a kind of target: there are pblk, rrpc"],
            ),
            (&["target", "info", "d.toml", "a"], 2, &["--name <TARGET>"]),
            (&["serv"], 2, &["'serve'"]),
            (&["admin", "--socket", "s", "stat"], 2, &["'stats'"]),
        ],
    );
}

#[test]
fn messages_about_volumes_name_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("v.img");
    std::fs::File::create(&file).unwrap().set_len(64 << 20).unwrap();
    std::fs::write(dir.path().join("plain"), "x").unwrap();
    assert!(sluice(dir.path(), &["volume", "format", "v.img"]).status.success());
    check(
        dir.path(),
        &[
            (&["volume", "format", "v.img"], 1, &["v.img is left as it is", "--force"]),
            (&["volume", "format", "nowhere"], 1, &["truncate -s 1G nowhere"]),
            (&["volume", "put", "v.img", "plain", "/"], 2, &["name the file on the volume"]),
            (&["volume", "put", "v.img", "plain", ""], 2, &["name the file on the volume"]),
            (&["volume", "put", "v.img", "plain", "/a/b"], 1, &["/a: no such", "directory"]),
            (&["volume", "put", "v.img", "nowhere", "/b"], 1, &["cannot read nowhere"]),
        ],
    );
    assert!(sluice(dir.path(), &["volume", "put", "v.img", "plain", "/b"]).status.success());
    check(
        dir.path(),
        &[
            (&["volume", "get", "v.img", "/b", "no/x"], 1, &["cannot write no/x"]),
            (&["volume", "get", "v.img", "/b", "/dev/full"], 1, &["/dev/full", "disk is full"]),
        ],
    );
}

#[test]
fn benches_refuse_what_cannot_be_before_they_begin() {
    let dir = tempfile::tempdir().unwrap();
    let kv = ["kv", "bench", "--quick", "--workload", "a"];
    check(
        dir.path(),
        &[
            (
                &[&kv[..], &["--value-bytes", "999999999999"]].concat(),
                1,
                &["cannot measure: 20000 records of 999999999999 bytes", "--records"],
            ),
            (&[&kv[..], &["--records", "99999999999"]].concat(), 1, &["do not fit on a drive"]),
            (
                &[&kv[..], &["--over-provisioning", "-1"]].concat(),
                1,
                &["cannot measure: over_provisioning is -1; allowed: 0.05"],
            ),
            (&["calibrate", "--quick", "--json", "no/x"], 1, &["cannot write no/x"]),
        ],
    );
}

#[test]
fn a_full_disk_does_not_suppress_the_results() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("d.toml"), DRIVE).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["serve", "d.toml", "--nbd", "unix:s", "--json", "/dev/full"]);
    command.current_dir(dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let start = Instant::now();
    while !dir.path().join("s").exists() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(200));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("cannot write /dev/full") && err.contains("disk is full"), "{err}");
    assert!(out.contains("drive0: served for"), "the summary must still be printed: {out}");
}

#[test]
fn a_hosts_disk_that_is_full_is_told_from_the_drive() {
    if !rustix::process::geteuid().is_root() {
        testkit::skip!("not root: no file system can be mounted");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=8M tmpfs {0} && printf '%s' '{1}' > {0}/d.toml && \
         exec {2} serve {0}/d.toml --nbd unix:{3}/s --stats 1 --json {3}/out.json",
        small.display(),
        in_file(DRIVE),
        env!("CARGO_BIN_EXE_sluice"),
        dir.path().display()
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while !dir.path().join("s").exists() {
        if child.try_wait().unwrap().is_some() {
            testkit::skip!("this system does not let a file system be mounted");
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut fio = program("fio", "fio");
    fio.args(["--name=job", "--ioengine=nbd", "--rw=write", "--bs=64k", "--size=40m"]);
    let uri = format!("--uri=nbd+unix:///?socket={}/s", dir.path().display());
    let failed = fio.arg(uri).current_dir(dir.path()).output().unwrap();
    assert!(!failed.status.success(), "the write must fail, because the image does not fit");
    // Long enough for a status line.
    std::thread::sleep(Duration::from_millis(1_500));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let told = "the host's file system under the image";
    assert!(err.lines().any(|line| line.starts_with("drive0: ") && line.contains(told)), "{err}");
    // Acknowledged data may be on the media all the same; if it is not, the error gives the reason.
    if !output.status.success() {
        let end = err.lines().last().unwrap();
        assert!(
            end.starts_with("error: drive drive0") && end.contains("drive.img is full"),
            "{err}"
        );
    }
    assert!(out.contains("drive0: served for"), "{out}");
    let json = std::fs::read_to_string(dir.path().join("out.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(number(&json["sluice"]["drives"][0], "/nbd/errors_device") > 0, "{json}");
}
