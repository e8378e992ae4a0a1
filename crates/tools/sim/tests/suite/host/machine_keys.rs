//! Jobs on keys on a modeled machine: the work of a key-value target takes time.

use serde_json::Value;

use super::machine::{OPEN_CHANNEL, assert_sums, run};

const MACHINE: &str = "[host]\nmachine = \"i7-4770\"\n";

/// Nanoseconds of an instruction, and of a line of the last-level cache, of that machine.
const INSTRUCTION: f64 = 0.6 / 3.4;
const LINE: f64 = 11.0;

/// A job of YCSB on 2,000 records.
fn job(ycsb: &str, operations: u32, depth: u32) -> String {
    format!(
        "[[job]]\nname = \"{ycsb}\"\npath = \"p\"\nycsb = \"{ycsb}\"\nrecordcount = 2000\n\
         operationcount = {operations}\niodepth = {depth}\nstonewall = true\nbs = 1000\n"
    )
}

/// Loads the records and runs jobs, on a host and a target of all parallel units.
fn keys(host: &str, jobs: &str) -> Value {
    keys_on("0-7", host, jobs)
}

fn keys_on(pus: &str, host: &str, jobs: &str) -> Value {
    let drive = OPEN_CHANNEL.replace("geometry.chunks", "data = \"memory\"\ngeometry.chunks");
    let kv = format!(
        "[[target]]\nname = \"kv\"\nkind = \"kv\"\npus = \"{pus}\"\n\
         [[path]]\nname = \"p\"\nover = \"kv\"\n"
    );
    run(&format!(
        "{drive}{kv}{host}{}{jobs}",
        job("load", 1, 4).replace("operationcount = 1\n", "")
    ))
}

/// Returns the time of a layer in all requests of a run.
fn total(result: &Value, layer: &str) -> f64 {
    let jobs = result["jobs"].as_array().unwrap().iter();
    let requests: u64 = jobs
        .flat_map(|job| ["read", "write"].map(|op| job[op]["total_ios"].as_u64().unwrap()))
        .sum();
    let machine = &result["sluice"]["machine"];
    assert_sums(machine);
    machine["ns_per_request"][layer].as_f64().unwrap() * requests as f64
}

// guarantee: V-08
#[test]
fn keys_on_a_machine_on_which_nothing_takes_time_have_the_results_of_no_machine() {
    for (ycsb, depth) in [("a", 1), ("a", 16), ("c", 8), ("e", 4), ("f", 4)] {
        let jobs = format!("{}verify = \"crc32c\"\n", job(ycsb, 2000, depth));
        let [mut without, mut with] =
            ["", "[host]\nmachine = \"free-1.toml\"\n"].map(|host| keys(host, &jobs));
        // It depends on which of several operations of one instant is counted first.
        for result in [&mut without, &mut with] {
            let jobs = result["jobs"].as_array_mut().unwrap();
            jobs.iter_mut()
                .for_each(|job| drop(job.as_object_mut().unwrap().remove("iodepth_level")));
        }
        assert!(without["jobs"] == with["jobs"], "{ycsb} {depth}");
        assert_eq!(without["sluice"]["failures"], serde_json::json!([]), "{ycsb} {depth}");
    }
}

#[test]
fn a_read_of_a_key_takes_the_steps_of_the_target() {
    let [load, reads] = ["", &job("c", 1000, 1)].map(|jobs| keys(MACHINE, jobs));
    let each = |layer| (total(&reads, layer) - total(&load, layer)) / 1000.0;
    // A look-up, a pass over 16 lines, and a poll that finds something for a value in a buffer, two
    // for one on flash. The units of the load are still being programmed: their completions take
    // polls, too.
    let passes = 16.0 * (29.0 * INSTRUCTION + LINE);
    let turn = 650.0 * INSTRUCTION;
    let buffered = 2320.0 * INSTRUCTION + turn + passes;
    let target = each("target");
    assert!((buffered..buffered + 1.5 * turn).contains(&target), "{target}, {buffered}");
    // At most a command for each read, and those that program the units of the load.
    let driver = each("driver");
    assert!((20.0..320.0 * INSTRUCTION).contains(&driver), "{driver}");
    let kernel = keys(&format!("{MACHINE}kernel = \"linux-3.10\"\n"), "");
    assert_eq!(kernel["sluice"]["machine"]["ns_per_request"]["kernel"], 975.0);
}

#[test]
fn updates_of_keys_take_time_and_more_with_compaction() {
    let updates = |operations| keys_on("0", MACHINE, &job("a", operations, 8));
    let (few, many) = (updates(1000), updates(120_000));
    assert_eq!(few, updates(1000));
    let relocated = |result: &Value| {
        result["sluice"]["paths"][0]["key_value"]["relocated_bytes"].as_u64().unwrap()
    };
    assert_eq!(relocated(&few), 0, "{}", few["sluice"]["paths"][0]);
    assert!(relocated(&many) > 0);
    let each = |result: &Value| result["sluice"]["machine"]["ns_per_request"]["target"].as_f64();
    assert!(each(&few).unwrap() > 2320.0 * INSTRUCTION);
    let store = 3990.0 * INSTRUCTION;
    assert!(each(&many).unwrap() > each(&few).unwrap(), "{:?} {:?}", each(&many), each(&few));
    assert!(total(&few, "target") > 2500.0 * store);
}
