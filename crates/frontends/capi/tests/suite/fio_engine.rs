//! The installed fio with the engine built by `scripts/fio-engine`.
//!
//! Ignored by default (`make test-fio`, `make test-long` run them), because they download fio's
//! source package. Without it the tests are skipped.

// guarantee: S-15

use crate::serving;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::NamedTempFile;

use serving::{Server, serve_if_asked};

/// Returns the engine. `None` if there is no fio source to build it against; the calling test is
/// then skipped.
fn engine() -> Option<&'static Path> {
    static ENGINE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let build = || {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/fio-engine");
        let archive = std::env::current_exe().unwrap().with_file_name("libsluice_c.a");
        let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fio-engine/libfio_sluice.so");
        let made = Command::new(script).arg(archive).arg(&output).output().unwrap();
        let says = String::from_utf8_lossy(&made.stderr).into_owned();
        match made.status.code() {
            Some(0) => Ok(output),
            Some(77) => Err(says.lines().last().unwrap_or("no reason").to_owned()),
            code => panic!("scripts/fio-engine: {code:?}\n{says}"),
        }
    };
    match ENGINE.get_or_init(build) {
        Ok(path) => Some(path),
        Err(why) => {
            testkit::skip!("{why}");
            None
        }
    }
}

fn fio(engine: &Path, arguments: &[&str]) -> Output {
    let mut fio = Command::new("timeout");
    fio.args(["120", "fio", "--name=job", "--output-format=json"]);
    fio.arg(format!("--ioengine=external:{}", engine.display()));
    fio.args(arguments).current_dir(env!("CARGO_TARGET_TMPDIR")).output().unwrap()
}

/// Runs fio, which must succeed, and returns the results of its jobs.
fn jobs(engine: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = fio(engine, arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    let says = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "fio {arguments:?}: {text}\n{says}");
    let json = text.find('{').map(|at| &text[at..]).expect("JSON");
    let result: Value = serde_json::from_str(json).expect("JSON");
    let jobs = result["jobs"].as_array().expect("jobs").clone();
    assert!(jobs.iter().all(|job| job["error"] == 0), "{json}");
    jobs
}

fn total(jobs: &[Value], kind: &str) -> u64 {
    jobs.iter().map(|job| job[kind]["total_ios"].as_u64().expect("a count")).sum()
}

fn file(bytes: u64) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(bytes).unwrap();
    file
}

#[test]
#[ignore = "fetches fio's source package: make test-fio"]
fn the_null_device_in_every_way_that_fio_can_wait() {
    let Some(engine) = engine() else { return };
    let common = ["--sluice_device=null:1g", "--rw=randrw", "--bs=4k", "--io_size=64m"];
    for more in [
        &["--iodepth=1"][..],
        &["--iodepth=32", "--iodepth_batch=8", "--iodepth_batch_complete_min=4"],
        &["--iodepth=2000", "--sluice_wait=hybrid"],
        &["--iodepth=8", "--thread", "--numjobs=3"],
        &["--iodepth=8", "--numjobs=3", "--sluice_wait=event"],
    ] {
        let jobs = jobs(engine, &[&common[..], more].concat());
        let count = total(&jobs, "read") + total(&jobs, "write");
        assert_eq!(count, 16_384 * jobs.len() as u64, "{more:?}");
    }
}

#[test]
#[ignore = "fetches fio's source package: make test-fio"]
fn a_file_is_verified_by_processes_and_by_threads() {
    let Some(engine) = engine() else { return };
    let file = file(32 << 20);
    let name = format!("--filename={}", file.path().display());
    let common = [
        name.as_str(),
        "--rw=randwrite",
        "--bs=4k",
        "--size=8m",
        "--offset_increment=8m",
        "--numjobs=4",
        "--verify=crc32c",
        "--verify_fatal=1",
    ];
    for more in [
        &["--iodepth=16"][..],
        &["--iodepth=16", "--thread", "--fsync=32"],
        &["--iodepth=200", "--thread", "--sluice_wait=event"],
        &["--iodepth=4", "--sluice_cache=1m", "--end_fsync=1"],
        &["--iodepth=4", "--sluice_buffered=1"],
    ] {
        let jobs = jobs(engine, &[&common[..], more].concat());
        assert_eq!((total(&jobs, "read"), total(&jobs, "write")), (8192, 8192), "{more:?}");
    }
    // fio's psync engine verifies what this engine has written.
    let mut check = Command::new("fio");
    check.args(["--name=job", "--ioengine=psync", "--verify_only", "--verify_fatal=1"]);
    check.args(common).args(["--output-format=terse"]);
    let checked = check.current_dir(env!("CARGO_TARGET_TMPDIR")).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// A scenario of a small drive with an image.
fn scenario(folder: &Path, keys: &str, rest: &str) -> String {
    let file = folder.join("drive.toml");
    let text = format!(
        "[drive]\nname = \"d0\"\npreset = \"femu-default\"\ncell = \"mlc\"\npaired_page_distance = 2\n\
         geometry = {{ channels = 2, pus = 4, chunks = 60, pages = 64 }}\n{keys}\
         data = \"file\"\npath = \"drive.img\"\n{rest}"
    );
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// A drive shared by fio's threads, with the FTL in the drive and on the host. The next fio process
/// finds the data of the previous one. Jobs in processes are refused.
#[test]
#[ignore = "fetches fio's source package: make test-fio"]
fn a_scenario_is_verified_by_threads_and_again_by_the_next_fio() {
    let Some(engine) = engine() else { return };
    let pblk = "[target]\nkind = \"pblk\"\nover_provisioning = 0.3\n";
    let open_channel = "personality = \"open-channel\"\n";
    for (keys, rest, more) in [
        ("", "", &[][..]),
        ("", "", &["--sluice_wait=event", "--fsync=16"]),
        (open_channel, pblk, &["--sluice_queues=2"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let what = scenario(folder.path(), keys, rest);
        let device = format!("--sluice_device={what}");
        let common = [
            device.as_str(),
            "--rw=randwrite",
            "--bs=4k",
            "--size=2m",
            "--offset_increment=2m",
            "--numjobs=2",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_fatal=1",
        ];
        let refused = fio(engine, &[&common[..], more].concat());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("use --thread"), "{said}");

        let threads = [&common[..], more, &["--thread"]].concat();
        let wrote = jobs(engine, &threads);
        assert_eq!((total(&wrote, "read"), total(&wrote, "write")), (1024, 1024), "{keys}{more:?}");
        let read = jobs(engine, &[&threads[..], &["--verify_only"]].concat());
        assert_eq!(total(&read, "read"), 1024, "{keys}{more:?}");
    }
}

/// The server process.
#[test]
fn child() {
    serve_if_asked();
}

/// Jobs that are threads share one connection, and jobs that are processes have one each. Both
/// write and verify, and the next fio and the other kind of job find the data. A further partition
/// in use at the same time does not interfere.
#[test]
#[ignore = "fetches fio's source package: make test-fio"]
fn a_served_drive_is_verified_by_processes_and_by_threads() {
    let Some(engine) = engine() else { return };
    let folder = tempfile::tempdir().unwrap();
    let shares = "[[partition]]\nname = \"left\"\nsize = \"16M\"\n\
                  [[partition]]\nname = \"right\"\nfirst = 4096\nsize = \"16M\"\n";
    let what = scenario(folder.path(), "", shares);
    let server = Server::start(testkit::test_path!(child), folder.path(), Path::new(&what), "left");
    let on = |partition| format!("--sluice_device={}", server.device(partition));
    let (left, right) = (on("left"), on("right"));
    let verify = ["--bs=4k", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1"];
    let four = ["--size=4m", "--offset_increment=4m", "--numjobs=4", "--rw=randwrite"];
    let on_left = [&[left.as_str()][..], &verify, &four].concat();
    let beside = std::thread::spawn({
        let right = right.clone();
        move || {
            jobs(engine, &[&[right.as_str(), "--size=16m", "--rw=randwrite"][..], &verify].concat())
        }
    });
    for more in [&[][..], &["--sluice_wait=event", "--fsync=32"], &["--thread"]] {
        let wrote = jobs(engine, &[&on_left[..], more].concat());
        assert_eq!((total(&wrote, "read"), total(&wrote, "write")), (4096, 4096), "{more:?}");
    }
    for more in [&[][..], &["--thread", "--sluice_wait=hybrid"]] {
        let read = jobs(engine, &[&on_left[..], more, &["--verify_only"]].concat());
        assert_eq!(total(&read, "read"), 4096, "{more:?}");
    }
    let wrote = beside.join().unwrap();
    assert_eq!((total(&wrote, "read"), total(&wrote, "write")), (4096, 4096));
    let mixed = [left.as_str(), "--rw=randrw", "--bs=4k", "--size=16m", "--iodepth=32"];
    let trims = [left.as_str(), "--rw=randtrim", "--bs=64k", "--size=16m", "--iodepth=8"];
    assert_eq!(total(&jobs(engine, &trims), "trim"), 256);
    let mixed = jobs(engine, &[&mixed[..], &["--numjobs=2"]].concat());
    assert_eq!(total(&mixed, "read") + total(&mixed, "write"), 8192);

    // A partition that does not exist is refused with a message.
    let nowhere = on("nowhere");
    let refused = fio(engine, &[&nowhere, "--rw=read", "--bs=4k"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("may not use nowhere"), "{said}");
    // fio waits for a stopped server only until its timeout.
    server.signal("STOP");
    let begin = Instant::now();
    let stopped = fio(engine, &[&left, "--rw=read", "--bs=4k", "--size=1m"]);
    let said = String::from_utf8_lossy(&stopped.stderr);
    assert!(!stopped.status.success() && said.contains("has not answered"), "{said}");
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    server.signal("CONT");
    let again = [&[right.as_str(), "--size=16m", "--rw=randwrite", "--verify_only"][..], &verify];
    assert_eq!(
        total(&jobs(engine, &again.concat()), "read"),
        4096,
        "the data is there after the server has resumed"
    );
}

#[test]
#[ignore = "fetches fio's source package: make test-fio"]
fn trims_and_flushes_are_counted_and_damage_is_found() {
    let Some(engine) = engine() else { return };
    let file = file(8 << 20);
    let name = format!("--filename={}", file.path().display());
    let trims = jobs(engine, &[&name, "--rw=randtrim", "--bs=4k", "--iodepth=8"]);
    assert_eq!(total(&trims, "trim"), 2048);
    let syncs = jobs(engine, &[&name, "--rw=write", "--bs=64k", "--fsync=4", "--iodepth=2"]);
    assert_eq!(total(&syncs, "write"), 128);
    assert!(total(&syncs, "sync") >= 31, "{}", total(&syncs, "sync"));

    let verify = ["--rw=write", "--bs=4k", "--verify=crc32c", "--verify_fatal=1", "--iodepth=8"];
    jobs(engine, &[&[name.as_str()][..], &verify, &["--do_verify=0"]].concat());
    let mut bytes = std::fs::read(file.path()).unwrap();
    bytes[5 << 20] ^= 1;
    std::fs::write(file.path(), bytes).unwrap();
    let found = fio(engine, &[&[name.as_str()][..], &verify, &["--verify_only"]].concat());
    assert!(!found.status.success(), "verification must find the flipped bit");
}

#[test]
#[ignore = "fetches fio's source package: make test-fio"]
fn what_cannot_be_is_refused_in_words() {
    let Some(engine) = engine() else { return };
    for (arguments, says) in [
        (&["--filename=/nonexistent/file", "--rw=read"][..], "/nonexistent/file: No such file"),
        (&["--sluice_device=null:x", "--rw=read"], "null:64G"),
        (&["--sluice_device=drive.toml", "--rw=read"], "--thread"),
        (&["--sluice_device=drive.toml#two", "--rw=read"], "--thread"),
        (&["--sluice_device=a.toml.d/drive.TOML#two", "--rw=read"], "--thread"),
        (&["--sluice_device=/nonexistent/a.toml", "--thread", "--rw=read"], "/nonexistent/a.toml"),
        (&["--filename=one:two", "--rw=read"], "one device"),
        (&["--sluice_device=null:1g", "--rw=read", "--bs=100"], "whole sectors of 512"),
        (&["--sluice_device=null:1g", "--rw=read", "--bs=4m"], "2048 at most"),
        (&["--sluice_device=null:1g", "--rw=read", "--sluice_cache=1k"], "64 units at least"),
        (&["--sluice_device=null:1g", "--rw=write", "--sluice_atomic=1"], "Invalid argument"),
    ] {
        let output = fio(engine, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(said.contains(says), "{arguments:?}: {said} does not say {says}");
    }
}
