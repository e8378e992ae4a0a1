//! Paths with a log in the persistent memory region of their drive, from a scenario to its results.

// guarantee: B-50, B-77

use std::path::Path;

use scenario::Scenario;
use serde_json::Value;
use sluice_sim::{SimError, SimOptions, SimOutcome, TraceOutput, simulate, to_json};
use time::Nanos;

/// A drive whose flush waits for a program.
const DRIVE: &str = "[drive]\npreset = \"tlc-2020s-small\"\ndata = \"memory\"\n\
    geometry = { channels = 2, pus = 2, chunks = 24, pages = 48 }\n\
    write_buffer = { kind = \"volatile\", size = \"1M\" }\n\
    pmr = { size = \"4M\", store = \"9ns\", persist = \"430ns\" }\n";

fn simulated(text: &str) -> SimOutcome {
    let scenario =
        Scenario::parse(Path::new("test.toml"), text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn log_of(outcome: &SimOutcome) -> Value {
    to_json(outcome)["sluice"]["drives"][0]["log"].clone()
}

/// One job with 400 writes of 4 KiB, each followed by a flush.
const SYNCED: &str = "[[job]]\nname = \"w\"\nrw = \"randwrite\"\nbs = \"4k\"\nsize = \"4m\"\nio_size = \"1600k\"\nfsync = 1\n";

#[test]
fn a_durable_write_costs_submission_stores_and_a_persist() {
    let costs = "[host]\nsubmit_cost = \"1us\"\ncomplete_cost = \"500ns\"\n";
    let with = simulated(&format!("{DRIVE}{costs}[path]\nlog = \"4M\"\n{SYNCED}"));
    let without = simulated(&format!("{DRIVE}{costs}{SYNCED}"));
    let writes = 400;
    let (write, flush) = (1_000 + 65 * 9 + 500, 1_000 + 430 + 500);
    // The run ends before the job learns of its last completion.
    assert_eq!(with.elapsed, Nanos(writes * (write + flush) - 500));
    let factor = without.elapsed.0 / with.elapsed.0;
    assert!(factor >= 8, "{factor} times the rate");
    let log = log_of(&with);
    assert_eq!(log["logged_writes"], writes);
    assert_eq!(
        (&log["absorbed_flushes"], &log["device_flushes"]),
        (&log["logged_writes"], &0.into())
    );
    assert_eq!((&log["persists"], &log["lines"]), (&writes.into(), &(65 * writes).into()));
    assert_eq!(to_json(&with)["sluice"]["parameters"]["paths"][0]["log_bytes"], Value::Null);
    assert_eq!(to_json(&with)["sluice"]["parameters"]["path"]["log_bytes"], 4 << 20);
    assert!(log_of(&without).is_null());
}

#[test]
fn jobs_verify_their_data_through_the_log_on_every_path() {
    let jobs = "[[job]]\nname = \"small\"\nrw = \"randwrite\"\nbs = \"4k\"\nsize = \"2m\"\nio_size = \"8m\"\n\
        iodepth = 16\nfsync = 7\nverify = \"crc32c\"\n\
        [[job]]\nname = \"large\"\nrw = \"randwrite\"\nbs = \"128k\"\noffset = \"4m\"\nsize = \"2m\"\n\
        iodepth = 4\nfsync = 5\nverify = \"crc32c\"\n";
    let open_channel = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ndata = \"memory\"\n\
        pmr = { size = \"256k\", store = \"9ns\", persist = \"430ns\" }\n[target]\nkind = \"pblk\"\n";
    let drive = format!("{DRIVE}pmr.size = \"256k\"\n").replace(
        "pmr = { size = \"4M\", store = \"9ns\", persist = \"430ns\" }\npmr.size = \"256k\"\n",
        "pmr = { size = \"256k\", store = \"9ns\", persist = \"430ns\" }\n",
    );
    for (drive, path) in [
        (drive.as_str(), ""),
        (drive.as_str(), "queue_model = \"sq\"\ncores = 2\n"),
        (drive.as_str(), "queue_model = \"mq\"\ncores = 4\nscheduler = \"deadline\"\n"),
        (drive.as_str(), "completion = \"interrupt\"\n"),
        (drive.as_str(), "completion = \"interrupt\"\n[host]\ninterrupt_cost = \"2us\"\n"),
        (drive.as_str(), "queue_model = \"mq\"\ncores = 2\ncompletion = \"hybrid\"\n"),
        (open_channel, ""),
    ] {
        let text = format!("{drive}[path]\nlog = \"256k\"\n{path}{jobs}");
        let outcome = simulated(&text);
        assert_eq!(outcome.paths[0].run.failures().count(), 0, "{text}");
        let log = log_of(&outcome);
        let count = |key: &str| log[key].as_u64().unwrap();
        assert!(count("logged_writes") > 1_000 && count("passed_changes") > 10, "{path}: {log}");
        assert!(count("destaged_sectors") > 0 && count("space_waits") < 2_048, "{path}: {log}");
        assert_eq!(to_json(&simulated(&text)), to_json(&outcome), "a run repeats itself");
    }
}

#[test]
fn a_power_cut_of_the_drive_keeps_durable_writes() {
    let jobs = "[[job]]\nname = \"w\"\nrw = \"randwrite\"\nbs = \"4k\"\nsize = \"2m\"\nio_size = \"16m\"\n\
        iodepth = 8\nfsync = 3\n";
    let cuts: String = (1..6)
        .map(|i| format!("[[fault]]\nat = \"{}us\"\nkind = \"power-cut\"\n", 300 * i))
        .collect();
    let text = format!("{DRIVE}[path]\nlog = \"1M\"\n{jobs}{cuts}");
    let outcome = simulated(&text);
    let log = log_of(&outcome);
    assert!(log["power_cuts"].as_u64().unwrap() > 0, "{log}");
    assert!(log["replayed_records"].as_u64().unwrap() > 0, "{log}");
    assert_eq!(to_json(&simulated(&text)), to_json(&outcome), "a run repeats itself");
}

#[test]
fn requests_of_a_log_are_not_followed() {
    let text = format!("{DRIVE}[path]\nlog = \"1M\"\n{SYNCED}");
    let scenario = Scenario::parse(Path::new("test.toml"), &text).unwrap();
    let file = tempfile::tempfile().unwrap();
    let trace = TraceOutput { name: "trace".into(), file, truncate: false };
    let options = SimOptions { trace: Some(trace), ..SimOptions::default() };
    let error = simulate(&scenario, options).unwrap_err();
    assert!(matches!(error, SimError::NotFollowed { .. }), "{error}");
}
