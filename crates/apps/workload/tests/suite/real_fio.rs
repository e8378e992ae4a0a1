//! Comparison of replays and logs with those of fio 3.33 on the same files.

use crate::common;

use std::path::Path;
use std::process::Command;

use common::{Ram, jobs, run_to_end};
use serde_json::Value;
use sluice_workload::{IoCpuCosts, JobRunner, to_fio_json};
use time::Nanos;

fn fio(dir: &Path, options: &[&str]) -> String {
    let mut fio = Command::new("timeout");
    fio.args(["60", "fio", "--name=j"]).args(options).current_dir(dir);
    let output = fio.output().expect("`timeout` of coreutils runs");
    assert!(
        output.status.success(),
        "fio, of `apt-get install fio` or `make test-packages`: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the requests that fio issues for a log, in order: offset, length, and fio's number of
/// the direction.
fn issued_by_fio(dir: &Path, log: &str, options: &[&str]) -> Vec<(u64, u64, u64)> {
    let log = format!("--read_iolog={log}");
    let text = fio(dir, &[&[log.as_str(), "--ioengine=null", "--debug=io"], options].concat());
    let value = |line: &str, key: &str| {
        let (_, rest) = line.split_once(key)?;
        let text = rest.split(',').next()?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    };
    let lines = text.lines().filter(|line| line.contains(" prep: "));
    lines
        .map(|line| {
            let all = [value(line, "off="), value(line, "len="), value(line, "ddir=")];
            let [Some(offset), Some(length), Some(direction)] = all else { panic!("{line}") };
            (offset, length, direction)
        })
        .collect()
}

/// Returns the requests that Sluice issues for the same log, and its results.
fn issued_here(dir: &Path, log: &str, options: &str) -> (Vec<(u64, u64, u64)>, Value) {
    let text = format!("[j]\nread_iolog={}\n{options}", dir.join(log).display());
    let ram = Ram::new(16384, Nanos::from_micros(100));
    let mut host = JobRunner::new(ram, jobs(&text), IoCpuCosts::default(), 1).unwrap();
    run_to_end(&mut host);
    let log = std::mem::take(&mut host.device_mut().log);
    let issued = log.iter().map(|(_, r)| {
        let direction = match r.op {
            block::Op::Read => 0,
            block::Op::Write => 1,
            block::Op::Flush => 3,
            other => panic!("{other:?}"),
        };
        (r.lba * 4096, u64::from(r.sectors) * 4096, direction)
    });
    (issued.collect(), to_fio_json(&host.finish().unwrap(), 0))
}

/// Returns the levels of `iodepth_level` that a job reached.
fn levels(result: &Value) -> Vec<String> {
    let levels = result["jobs"][0]["iodepth_level"].as_object().unwrap();
    let reached = levels.iter().filter(|(_, share)| share.as_f64().unwrap() > 0.0);
    reached.map(|(level, _)| level.clone()).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap()
}

#[test]
fn a_log_is_replayed_as_fio_replays_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::File::create(dir.join("dev")).unwrap().set_len(64 << 20).unwrap();
    let requests = |stamp: &dyn Fn(u64) -> String| -> String {
        let line = |i: u64| match i % 5 {
            3 => format!("{}dev write {} 8192\n", stamp(i), i * 32768),
            _ => format!("{}dev read {} 4096\n", stamp(i), i * 32768),
        };
        (0..60).map(line).collect()
    };
    let v2 = format!(
        "fio version 2 iolog\ndev add\ndev open\n{}dev close\n",
        requests(&|_| String::new())
    );
    let v3 = requests(&|i| format!("{} ", 1000 + i * 50));
    let v3 = format!("fio version 3 iolog\n1000 dev add\n1000 dev open\n{v3}9000 dev close\n");
    let odd = v2.replace(" 32768 4096", " 33000 4096").replace(" 65536 4096", " 69632 4096");
    for (name, text) in [("v2.log", &v2), ("v3.log", &v3), ("odd.log", &odd)] {
        std::fs::write(dir.join(name), text).unwrap();
    }
    for (log, options) in [
        ("v2.log", &[][..]),
        ("v2.log", &["replay_no_stall=1"][..]),
        ("v2.log", &["replay_align=65536"][..]),
        ("v2.log", &["replay_scale=4", "replay_align=4096"][..]),
        ("v2.log", &["loops=3", "number_ios=5", "size=8k"][..]),
        ("v3.log", &[][..]),
        ("v3.log", &["replay_no_stall=1"][..]),
        ("v3.log", &["replay_time_scale=200"][..]),
        ("odd.log", &["replay_align=4096"][..]),
    ] {
        let for_fio: Vec<String> = options.iter().map(|o| format!("--{o}")).collect();
        let for_fio: Vec<&str> = for_fio.iter().map(String::as_str).collect();
        let theirs = issued_by_fio(dir, log, &for_fio);
        let (ours, _) = issued_here(dir, log, &options.join("\n"));
        assert_eq!(ours, theirs, "{log} {options:?}");
        assert_eq!(ours.len(), 60, "{log} {options:?}");
    }
    // A log without times is replayed at the depth of the job.
    for depth in [1, 4] {
        let option = format!("--iodepth={depth}");
        let options = ["--read_iolog=v2.log", "--ioengine=libaio", &option, "--output-format=json"];
        let theirs = levels(&json(&fio(dir, &options)));
        let (_, ours) = issued_here(dir, "v2.log", &format!("iodepth={depth}"));
        assert_eq!(levels(&ours), theirs, "iodepth={depth}");
        let (_, default) = issued_here(dir, "v2.log", "");
        assert!(depth > 1 || levels(&default) == theirs);
    }
}

/// Times of a version 3 log are microseconds from its first stamp that is not zero, scaled.
#[test]
fn a_log_with_times_takes_as_long_as_in_fio() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::File::create(dir.join("dev")).unwrap().set_len(1 << 20).unwrap();
    for (log, first, millis) in [("early.log", 100_000, 500), ("late.log", 0, 300)] {
        let text = format!(
            "fio version 3 iolog\n{first} dev add\n{first} dev open\n300000 dev read 0 4096\n\
             600000 dev read 4096 4096\n600000 dev close\n"
        );
        std::fs::write(dir.join(log), text).unwrap();
        for scale in [100, 300] {
            let (log, option) =
                (format!("--read_iolog={log}"), format!("--replay_time_scale={scale}"));
            let options = [log.as_str(), &option, "--ioengine=psync", "--output-format=json"];
            let theirs = json(&fio(dir, &options))["jobs"][0]["read"]["runtime"].as_f64().unwrap();
            let (_, ours) = issued_here(
                dir,
                &log["--read_iolog=".len()..],
                &format!("replay_time_scale={scale}"),
            );
            let ours = ours["jobs"][0]["read"]["runtime"].as_f64().unwrap();
            // A request takes 100 us here. fio is never early, and a busy machine makes it late.
            let expected = f64::from(millis) * 100.0 / f64::from(scale);
            assert!((ours - expected).abs() <= 1.0, "{log}: {ours}");
            assert!(theirs + 1.0 >= expected, "{log}: {theirs}");
        }
    }
}

/// Returns the columns of a log's lines.
fn lines(dir: &Path, name: &str) -> Vec<Vec<u64>> {
    let text = std::fs::read_to_string(dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let number = |column: &str| column.parse().unwrap_or_else(|e| panic!("{name}: {column}: {e}"));
    text.lines().map(|line| line.split(", ").map(number).collect()).collect()
}

#[test]
fn logs_are_those_of_fio() {
    let [theirs, ours] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    std::fs::File::create(theirs.path().join("dev")).unwrap().set_len(1 << 20).unwrap();
    let all = ["write_lat_log=", "write_bw_log=", "write_iops_log="];
    for (name, options) in [
        ("each", &["rw=write", "size=32k", "bs=8k"][..]),
        ("offset", &["rw=read", "size=32k", "log_offset=1"][..]),
        (
            "window",
            &[
                "rw=randrw",
                "size=1m",
                "log_avg_msec=200",
                "time_based",
                "runtime=1",
                "rate_iops=500",
            ][..],
        ),
    ] {
        let mut for_fio = vec!["--filename=dev".to_owned(), "--ioengine=psync".to_owned()];
        let mut text = "[j]\n".to_owned();
        for option in options {
            for_fio.push(format!("--{option}"));
            text += &format!("{option}\n");
        }
        for option in all {
            for_fio.push(format!("--{option}{name}"));
            text += &format!("{option}{}\n", ours.path().join(name).display());
        }
        fio(theirs.path(), &for_fio.iter().map(String::as_str).collect::<Vec<_>>());
        let ram = Ram::new(256, Nanos::from_micros(100));
        let mut host = JobRunner::new(ram, jobs(&text), IoCpuCosts::default(), 1).unwrap();
        host.open_logs(1).unwrap();
        run_to_end(&mut host);
        host.finish().unwrap();
        // fio's synchronous engines leave the submission log empty.
        assert!(theirs.path().join(format!("{name}_slat.1.log")).exists());
        assert!(!lines(ours.path(), &format!("{name}_slat.1.log")).is_empty());
        for kind in ["clat", "lat", "bw", "iops"] {
            let file = format!("{name}_{kind}.1.log");
            let (theirs, ours) = (lines(theirs.path(), &file), lines(ours.path(), &file));
            assert!(!ours.is_empty(), "{file}");
            let columns = |lines: &[Vec<u64>]| -> Vec<usize> {
                let mut counts: Vec<usize> = lines.iter().map(Vec::len).collect();
                counts.dedup();
                counts
            };
            assert_eq!(columns(&ours), columns(&theirs), "{file}");
            if name != "window" {
                // All columns but time and value describe the request.
                let rest = |lines: &[Vec<u64>]| -> Vec<Vec<u64>> {
                    lines.iter().map(|line| line[2..].to_vec()).collect()
                };
                assert_eq!(rest(&ours), rest(&theirs), "{file}");
                continue;
            }
            // Lines have the time at which their window ends.
            let ends: Vec<u64> = ours.iter().map(|l| l[0]).filter(|ms| *ms < 900).collect();
            assert_eq!(ends, [200, 200, 400, 400, 600, 600, 800, 800], "{file}");
            assert!(theirs.len() >= 2, "{file}: {theirs:?}");
            assert!(ours.iter().chain(&theirs).all(|l| l[2] <= 1 && l[3] == 0), "{file}");
        }
        if name != "window" {
            continue;
        }
        // Requests of 4 KiB: bandwidth is in KiB/s, in both.
        for dir in [&theirs, &ours] {
            let mean = |kind: &str| {
                let lines = lines(dir.path(), &format!("window_{kind}.1.log"));
                lines.iter().map(|l| l[1] as f64).sum::<f64>() / lines.len() as f64
            };
            let ratio = mean("bw") / mean("iops");
            assert!((ratio - 4.0).abs() < 0.2, "{ratio}");
        }
    }
}
