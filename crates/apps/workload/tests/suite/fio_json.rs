//! The JSON has the keys of real fio 3.33, in its order. `fio-3.33-keys.txt` was made from
//! `fio --output-format=json` (3.33, Debian 12) with a mixed job that verifies, flushes and has a
//! description: every path through the output, with percentiles and job options left open.

use crate::common;

use std::collections::BTreeSet;

use common::{Ram, run};
use serde_json::Value;
use sluice_workload::to_fio_json;
use time::Nanos;

/// Returns the paths through objects and arrays. Keys that depend on the job are replaced by `*`.
fn paths(value: &Value, prefix: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                let open = ["percentile", "job options", "global options"];
                let key = if open.iter().any(|o| prefix.ends_with(o)) { "*" } else { key };
                let path = format!("{prefix}/{key}");
                if !out.contains(&path) {
                    out.push(path.clone());
                }
                paths(inner, &path, out);
            }
        }
        Value::Array(items) => items.iter().for_each(|i| paths(i, prefix, out)),
        _ => {}
    }
}

const JOB: &str = "[global]\nsize=1m\n[j]\nrw=randrw\nfsync=4\nverify=crc32c\ncontinue_on_error=all\ndescription=hello\n";

fn json() -> Value {
    to_fio_json(&run(Ram::new(1024, Nanos::from_micros(70)), JOB).0, 1_795_296_522_213)
}

#[test]
fn keys_and_their_order_are_those_of_real_fio() {
    let mut ours = Vec::new();
    paths(&json(), "", &mut ours);
    let theirs: Vec<&str> = include_str!("../fio-3.33-keys.txt").lines().collect();
    let extra: BTreeSet<&str> = ours.iter().map(String::as_str).collect();
    let missing: Vec<_> = theirs.iter().filter(|k| !extra.contains(**k)).collect();
    assert_eq!(missing, Vec::<&&str>::new(), "keys of fio that are missing");
    // fio omits `disk_util` for engines without a disk; readers accept an empty one.
    ours.retain(|k| k != "/disk_util");
    assert_eq!(ours, theirs);
}

#[test]
fn values_agree_with_each_other() {
    let json = json();
    assert_eq!(json["fio version"], "fio-3.33");
    assert_eq!(json["time"], "Sat Nov 21 21:28:42 2026");
    let job = &json["jobs"][0];
    let read = &job["read"];
    assert_eq!(read["total_ios"], read["clat_ns"]["N"]);
    assert_eq!(read["io_bytes"].as_u64().unwrap(), read["total_ios"].as_u64().unwrap() * 4096);
    assert_eq!(read["clat_ns"]["percentile"]["99.000000"], 70_000);
    for table in ["latency_ns", "latency_us", "latency_ms"] {
        let sum: f64 = job[table].as_object().unwrap().values().map(|v| v.as_f64().unwrap()).sum();
        assert_eq!(sum, if table == "latency_us" { 100.0 } else { 0.0 });
    }
    let levels = job["iodepth_level"].as_object().unwrap();
    assert!((levels.values().map(|v| v.as_f64().unwrap()).sum::<f64>() - 100.0).abs() < 1e-3);
    assert_eq!(job["job options"]["verify"], "crc32c");
}

#[test]
fn half_second_samples_of_a_steady_job_are_steady() {
    let text = "[j]\nrw=randread\ntime_based\nruntime=4\nramp_time=1\niodepth=7";
    let (result, _) = run(Ram::new(1024, Nanos::from_micros(70)), text);
    let read = &to_fio_json(&result, 0)["jobs"][0]["read"];
    assert!(read["iops_samples"].as_u64().unwrap() >= 6, "{read}");
    for key in ["iops_min", "iops_max", "iops_mean", "iops"] {
        assert!((read[key].as_f64().unwrap() - 100_000.0).abs() < 500.0, "{key}: {read}");
    }
    assert!(read["bw_agg"].as_f64().unwrap() > 99.0);
}

#[test]
fn no_result_is_ever_infinite() {
    for job in [
        "rw=read\nruntime=1us",
        "rw=read\nramp_time=1h",
        "rw=write\nnumber_ios=1",
        "rw=randtrim\nrate_iops=1\nruntime=1ms",
    ] {
        let (result, _) = run(Ram::new(64, Nanos::from_micros(70)), &format!("[j]\n{job}"));
        let text = to_fio_json(&result, 0).to_string();
        assert!(
            !text.contains("null") && !text.contains("NaN") && !text.contains(":inf"),
            "{text}"
        );
        for d in &result.jobs[0].directions {
            assert!(d.iops().is_finite() && d.bandwidth().is_finite());
        }
    }
}

/// Compares with the counts of fio 3.33 (`ioengine=null`, `size=1m`) for the same options: requests
/// and bytes read, written and trimmed, and flushes.
#[test]
fn requests_are_as_many_as_fio_issues() {
    let mib = 1 << 20;
    let (whole, none) = ((256, mib), (0, 0));
    for (options, [read, write, trim], syncs) in [
        ("rw=trimwrite", [none, whole, whole], 0),
        ("rw=randtrimwrite", [none, whole, whole], 0),
        ("rw=read\nsize=10k", [(2, 8192), none, none], 0),
        ("rw=read\nio_size=10k", [(3, 12288), none, none], 0),
        ("rw=read\nio_size=3m", [(768, 3 * mib), none, none], 0),
        ("rw=randwrite\nverify=crc32c", [whole, whole, none], 0),
        ("rw=write\nfsync=10\nend_fsync=1", [none, whole, none], 25),
        ("rw=read\nnumber_ios=10", [(10, 40960), none, none], 0),
    ] {
        let text = format!("[j]\nsize=1m\n{options}");
        let (result, _) = run(Ram::new(1024, Nanos::from_micros(70)), &text);
        let job = &to_fio_json(&result, 0)["jobs"][0];
        for (direction, (ios, bytes)) in [("read", read), ("write", write), ("trim", trim)] {
            assert_eq!(job[direction]["total_ios"], ios, "{options}: {direction}");
            assert_eq!(job[direction]["io_bytes"], bytes, "{options}: {direction}");
        }
        assert_eq!(job["sync"]["total_ios"], syncs, "{options}");
    }
}
