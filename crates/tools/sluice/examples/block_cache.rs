//! A block cache between an application and a drive: hits, write-back, a flush.
//!
//! `cargo run -p sluice-ssd --example block_cache`

use std::error::Error;
use std::path::Path;

use sluice::open::{OpenOptions, open_scenario};
use sluice::scenario::Scenario;
use sluice::user_io::{Cache, CacheConfig, Handle, QueueConfig};

const SCENARIO: &str = r#"
[drive]
preset = "femu-default"
geometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }
"#;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let scenario = Scenario::parse(Path::new("example.toml"), SCENARIO)?;
    let (device, _view) = open_scenario(&scenario, None, &OpenOptions::default())?;
    // ANCHOR: stack
    // Devices nest: a cache is a block device over a queue, and a handle takes either.
    let queue = device.create_queue(QueueConfig::default())?;
    let config = CacheConfig { bytes: 1 << 20, read_ahead: 0, ..CacheConfig::default() };
    let cache = Cache::new(&device, queue, config)?;
    let mut handle = Handle::new(&device, cache)?;
    // ANCHOR_END: stack

    let data = device.buffer(device.limits().sector_bytes as usize)?;
    for lba in 0..32 {
        handle.write(lba, &data, false)?; // completes in the cache
    }
    assert!(handle.device().dirty() > 0, "write-back: some blocks are only in the cache");
    handle.flush()?;
    assert_eq!(handle.device().dirty(), 0);

    for _ in 0..10 {
        for lba in 0..32 {
            handle.read(lba, &data)?;
        }
    }
    let stats = handle.device().stats();
    assert_eq!(stats.fills, 0, "all reads hit cached blocks");
    assert!(stats.hits >= 320);
    println!(
        "{} hits, {} misses, {} blocks written by {} commands",
        stats.hits, stats.misses, stats.written, stats.write_commands
    );
    Ok(())
}
