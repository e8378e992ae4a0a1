//! An open-channel drive whose flash is managed by pblk on the host: a block device that keeps its
//! data when it is closed and opened again.
//!
//! `cargo run -p sluice-ssd --example pblk`

use std::error::Error;

use sluice::open::{OpenOptions, open_scenario};
use sluice::scenario::Scenario;
use sluice::user_io::{DeviceKind, Handle, IoDevice, QueueConfig};

// ANCHOR: scenario
const SCENARIO: &str = r#"
[drive]
preset = "femu-default"
cell = "mlc"
paired_page_distance = 2                      # a page is readable two pages later
geometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }
personality = "open-channel"           # the drive exposes physical addresses
data = "file"
path = "drive.img"

[target]
kind = "pblk"                          # the host's FTL makes a block device of it
"#;
// ANCHOR_END: scenario

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    // Paths in a scenario are relative to the scenario's folder.
    let scenario = Scenario::parse(&folder.path().join("pblk.toml"), SCENARIO)?;
    let open = || -> Result<IoDevice, Box<dyn Error>> {
        Ok(open_scenario(&scenario, None, &OpenOptions::default())?.0)
    };

    let device = open()?;
    assert_eq!(device.kind(), DeviceKind::Target);
    let sector_bytes = device.limits().sector_bytes as usize;
    let mut handle = Handle::new(&device, device.create_queue(QueueConfig::default())?)?;
    let data = device.buffer(sector_bytes)?;
    for round in 1..=2u8 {
        for lba in 0..100u8 {
            data.fill(0, sector_bytes, lba ^ round);
            handle.write(lba.into(), &data, false)?;
        }
    }
    handle.flush()?;
    // Closing flushes, writes a checkpoint of the map, and syncs the image.
    drop((handle, data, device));

    let device = open()?; // recovery: the checkpoint, and the lines that were open
    let mut handle = Handle::new(&device, device.create_queue(QueueConfig::default())?)?;
    let data = device.buffer(sector_bytes)?;
    let mut back = vec![0; sector_bytes];
    for lba in 0..100u8 {
        handle.read(lba.into(), &data)?;
        data.read(0, &mut back);
        assert!(back.iter().all(|byte| *byte == lba ^ 2), "sector {lba}");
    }
    println!("100 sectors, written twice, are there after the device was closed and opened");
    Ok(())
}
