//! Runs a scenario in virtual time, and reads its results from Rust and from JSON.
//!
//! `cargo run -p sluice-ssd --example simulate`

use std::error::Error;
use std::path::Path;

use sluice::scenario::Scenario;
use sluice::sim::{SimOptions, simulate, to_json, to_text};

const SCENARIO: &str = r#"
[drive]
preset = "femu-default"
geometry.chunks = 16

[precondition]
fill = "sequential"

[[job]]
name = "readers"
rw = "randread"
bs = "4k"
size = "4m"
"#;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // ANCHOR: run
    let scenario = Scenario::parse(Path::new("example.toml"), SCENARIO)?;
    let outcome = simulate(&scenario, SimOptions::default())?;

    let read = &outcome.paths[0].run.jobs[0].directions[0];
    assert_eq!(read.ios, 1024);
    // 40 us in the array; on this drive, a channel transfer takes no time.
    assert_eq!(read.clat.mean(), 40_000.0);
    // ANCHOR_END: run

    // ANCHOR: json
    // fio's result format, with a `sluice` section beside it.
    let json = to_json(&outcome);
    let iops = json["jobs"][0]["read"]["iops"].as_f64().unwrap_or_default();
    assert_eq!(iops.round(), 25_000.0);

    // Equal scenarios and seeds give identical results.
    let again = simulate(&scenario, SimOptions::default())?;
    assert_eq!(to_text(&json), to_text(&to_json(&again)));
    // ANCHOR_END: json
    println!("{iops:.0} reads per second, in {} of virtual time", outcome.elapsed);
    Ok(())
}
