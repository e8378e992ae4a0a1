//! Three ways to wait for a completion: busy-polling, sleeping, and sleeping for part of the time.
//!
//! `cargo run -p sluice-ssd --example waiting`

use std::error::Error;
use std::path::Path;

use sluice::open::{OpenOptions, open_scenario};
use sluice::scenario::Scenario;
use sluice::time::Nanos;
use sluice::user_io::{Handle, HybridPolling, QueueConfig, WaitMode};

/// Every command takes 2 ms, so that the handle has to wait.
const SCENARIO: &str = r#"
[drive]
preset = "nvme-null"
capacity = "1G"
null = { latency = "2ms", bandwidth = 0 }
"#;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let scenario = Scenario::parse(Path::new("example.toml"), SCENARIO)?;
    let (device, _view) = open_scenario(&scenario, None, &OpenOptions::default())?;
    let data = device.buffer(device.limits().sector_bytes as usize)?;
    // ANCHOR: wait
    let hybrid = HybridPolling { sleep_percent: 50, wakeup_latency: Nanos::from_micros(60) };
    for wait in [WaitMode::Poll, WaitMode::Interrupt, WaitMode::Hybrid(hybrid)] {
        let queue = device.create_queue(QueueConfig { depth: 8, interrupts: true })?;
        let mut handle = Handle::new(&device, queue)?;
        handle.set_wait(wait)?;
        for lba in 0..10 {
            handle.read(lba, &data)?;
        }
        let (sleeps, slept) = handle.sleep_stats();
        println!("{wait:?}: {sleeps} sleeps, {slept} in all");
        // A busy-polling handle never sleeps; the others sleep for most of 20 ms, or for half of
        // it.
        assert_eq!(sleeps == 0, wait == WaitMode::Poll);
    }
    // ANCHOR_END: wait
    Ok(())
}
