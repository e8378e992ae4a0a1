//! Opens a drive that a scenario describes, writes a sector and reads it back, in real time.
//!
//! `cargo run -p sluice-ssd --example open_scenario`

use std::error::Error;
use std::path::Path;

use sluice::open::{OpenOptions, open_scenario};
use sluice::scenario::Scenario;
use sluice::user_io::{Handle, QueueConfig};

// ANCHOR: scenario
const SCENARIO: &str = r#"
[drive]
preset = "femu-default"
geometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }
"#;
// ANCHOR_END: scenario

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // ANCHOR: open
    let scenario = Scenario::parse(Path::new("example.toml"), SCENARIO)?;
    // The drive runs on a thread of its own until the device is dropped.
    let (device, _view) = open_scenario(&scenario, None, &OpenOptions::default())?;
    let queue = device.create_queue(QueueConfig::default())?;
    let mut handle = Handle::new(&device, queue)?;
    // ANCHOR_END: open

    // ANCHOR: io
    let sector_bytes = device.limits().sector_bytes as usize;
    let data = device.buffer(sector_bytes)?; // memory that the drive may access
    data.fill(0, sector_bytes, 7);
    handle.write(0, &data, false)?;
    handle.flush()?;

    data.fill(0, sector_bytes, 0);
    handle.read(0, &data)?;
    let mut back = vec![0; sector_bytes];
    data.read(0, &mut back);
    assert!(back.iter().all(|byte| *byte == 7));
    // ANCHOR_END: io
    println!(
        "{} sectors of {sector_bytes} bytes; sector 0 holds what was written",
        device.limits().sectors
    );
    Ok(())
}
