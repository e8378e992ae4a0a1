//! Statistics of a simulation, and of a running drive.
//!
//! `cargo run -p sluice-ssd --example statistics`

use std::error::Error;
use std::path::Path;

use sluice::open::{OpenOptions, open_scenario};
use sluice::scenario::Scenario;
use sluice::sim::{SimOptions, simulate};
use sluice::time::Nanos;
use sluice::user_io::{Handle, QueueConfig};

const SCENARIO: &str = r#"
[drive]
preset = "femu-default"
geometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }

[precondition]
fill = "sequential"
overwrite = "random 2x"

[[job]]
name = "writer"
rw = "randwrite"
bs = "4k"
io_size = "8m"
iodepth = 8
"#;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let scenario = Scenario::parse(Path::new("example.toml"), SCENARIO)?;

    // ANCHOR: simulated
    let outcome = simulate(&scenario, SimOptions::default())?;
    let (drive, path) = (&outcome.drives[0], &outcome.paths[0]);
    let written = &path.run.jobs[0].directions[1];
    println!("writes: mean {:.0} ns, p99 {}", written.clat.mean(), written.clat.percentile(99.0));
    // Counters exclude preconditioning, which has counters of its own.
    let ftl = path.ftl.as_ref().expect("the drive manages its flash");
    let amplification = ftl.write_amplification().expect("the job has written");
    println!("write amplification {amplification:.2}, {} lines reclaimed", ftl.lines_reclaimed);
    assert!(amplification > 1.0 && ftl.lines_reclaimed > 0);
    // Utilization of each parallel unit.
    let pus = &drive.drive.pus;
    assert_eq!(pus.len(), 8);
    assert!(pus.iter().all(|pu| pu.program > Nanos::ZERO));
    // Notes qualify the result.
    outcome.notes.iter().for_each(|note| println!("note: {}", note.text));
    // ANCHOR_END: simulated

    // ANCHOR: running
    let (device, view) = open_scenario(&scenario, None, &OpenOptions::default())?;
    let mut handle = Handle::new(&device, device.create_queue(QueueConfig::default())?)?;
    let data = device.buffer(4096)?;
    for lba in 0..100 {
        handle.read(lba, &data)?;
    }
    // The drive's thread answers within a fifth of a second.
    let mut seen = view.stats();
    while seen.as_ref().is_none_or(|stats| stats.reads < 100) {
        std::thread::sleep(std::time::Duration::from_millis(10));
        seen = view.stats();
    }
    let stats = seen.expect("the drive has answered");
    assert_eq!(stats.errors, 0);
    println!("{} reads; completions late by {} at the median", stats.reads, stats.late.p50);
    // ANCHOR_END: running
    Ok(())
}
