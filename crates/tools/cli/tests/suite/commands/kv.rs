//! `sluice kv bench`: output and exit codes. The measurements are as short as possible, and no
//! timing of this machine is asserted.

use std::process::{Command, Output};

use serde_json::Value;

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn rows(args: &[&str]) -> Vec<Value> {
    let out = sluice(args);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let lines = text(&out.stdout);
    lines.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
}

fn value(rows: &[Value], case: &str, metric: &str) -> f64 {
    let row = rows.iter().find(|r| r["case"] == case && r["metric"] == metric);
    let row = row.unwrap_or_else(|| panic!("{case}, {metric}: {rows:#?}"));
    assert_eq!(row["bench"], "kv");
    row["value"].as_f64().expect("a number")
}

#[test]
fn every_workload_has_its_operations_in_virtual_time() {
    for (workload, kinds) in [
        ("a", &["read", "update"][..]),
        ("B", &["read", "update"]),
        ("c", &["read"]),
        ("d", &["read", "insert"]),
        ("e", &["scan", "insert"]),
        ("f", &["read", "read-modify-write"]),
    ] {
        let args = ["kv", "bench", "--workload", workload, "--quick", "--json"];
        let found = rows(&args);
        let name = workload.to_lowercase();
        let case = format!("ycsb {name}, 20000 records, QD 32, virtual time");
        assert!(value(&found, &case, "operations_per_second") > 1_000.0);
        for kind in kinds {
            let case = format!("{case}, {kind}");
            let [p50, p99, max] = ["latency_p50", "latency_p99", "latency_max"]
                .map(|metric| value(&found, &case, metric));
            // Puts go to memory, which takes no virtual time.
            let waits = *kind != "insert" && *kind != "update";
            let ordered = p50 <= p99 && p99 <= max;
            assert!(ordered && (max > 0.0 || !waits), "{case}: {p50} {p99} {max}");
        }
        let latencies = found.iter().filter(|r| r["metric"] == "latency_p50").count();
        assert_eq!(latencies, kinds.len(), "{found:#?}");
        if name == "a" {
            // Results in virtual time are identical in every run.
            assert_eq!(found, rows(&args));
            let wa = value(&found, &case, "write_amplification");
            assert!((1.0..3.0).contains(&wa), "{wa}");
        }
    }
}

#[test]
fn workloads_run_in_real_time_too() {
    let found = rows(&[
        "kv",
        "bench",
        "--workload",
        "a",
        "--real",
        "--records",
        "2000",
        "--operations",
        "500",
        "--json",
        "--depth",
        "8",
        "--value-bytes",
        "300",
    ]);
    let case = "ycsb a, 2000 records, QD 8, real time";
    assert!(value(&found, case, "operations_per_second") > 0.0);
}

#[test]
fn values_of_a_chunk_are_compared_with_pblk_and_with_the_thesis() {
    let found = rows(&["kv", "bench", "--workload", "puts", "--quick", "--json"]);
    let filling = "puts of 1.00 MB, kv, filling, virtual time";
    let overwriting = "puts of 1.00 MB, kv, overwriting at random, virtual time";
    // Without garbage collection, both are limited by the drive. With so few values, many are
    // overwritten while they are still being written, and kv writes versions of the same key one
    // after the other.
    for (case, least) in [(filling, 0.8), (overwriting, 0.3)] {
        let row = found.iter().find(|r| r["case"] == case).expect(case);
        let ratio = row["ratio"].as_f64().expect("a ratio to pblk's");
        assert!(ratio > least, "{case}: {ratio}");
    }
    let thesis: Vec<&Value> =
        found.iter().filter(|r| r["reference"]["what"] == "thesis, table 4").collect();
    assert_eq!(thesis.len(), 8, "{found:#?}");
}

#[test]
fn what_is_asked_wrongly_is_said_with_what_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let block = scenario("block.toml", "[drive]\npreset = \"mqsim-default-small\"\n");
    let none =
        scenario("none.toml", "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ndata = \"none\"\n");
    for (args, code, says) in [
        (&["kv", "bench", "--workload", "g"][..], 2, "a to f, puts, all"),
        (&["kv", "bench", "--records", "0"], 2, "0"),
        (&["kv", "bench", "missing.toml"], 2, "missing.toml"),
        (&["kv", "bench", "--workload", "c", "--quick", &block], 1, "open-channel"),
        (&["kv", "bench", "--workload", "c", "--quick", &none], 1, "stores no contents"),
        (
            &["kv", "bench", "--workload", "c", "--quick", "--over-provisioning", "0.01"],
            1,
            "over_provisioning is 0.01",
        ),
    ] {
        let out = sluice(args);
        let message = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {message}");
        assert!(message.contains(says), "{args:?}: {message}");
    }
}
