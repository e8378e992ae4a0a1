//! A power cut and recovery: flushed data survives, and every other sector is old or new.
//!
//! `cargo run -p sluice-ssd --example power_cut`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use sluice::block::{BlockDevice, Payload, Raw, Request};
use sluice::controller::Controller;
use sluice::driver::ControllerHandle;
use sluice::mem::{Iova, SharedRegion};
use sluice::scenario::Scenario;
use sluice::time::{Component, Nanos, VirtualRunner};

// ANCHOR: scenario
const SCENARIO: &str = r#"
[drive]
preset = "femu-default"
geometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }
write_buffer = { kind = "volatile", size = "1M" }   # lost when power is cut
"#;
// ANCHOR_END: scenario

/// Maximum number of polls of the drive per admin command.
const POLLS_MAX: u64 = 1_000_000;
const SECTORS: u64 = 64;
const ROUNDS: u32 = 20;

/// The host's side of one power cycle: a queue, and memory that the drive may access.
struct Host {
    raw: Raw,
    memory: Arc<SharedRegion>,
    at: Iova,
    sector_bytes: usize,
}

impl Host {
    /// Attaches to a powered drive.
    fn attach(drive: &mut Controller) -> Result<Host, Box<dyn Error>> {
        let port = drive.attach()?;
        let mut progress = || {
            drive.poll(Nanos::ZERO);
        };
        let mut controller = ControllerHandle::connect(port.clone(), &mut progress, POLLS_MAX)?;
        let queue = controller.create_queue_pair(128, None, &mut progress)?;
        let raw = Raw::from_pair(controller.info(), queue, port.clone())?;
        let sector_bytes = raw.limits().sector_bytes as usize;
        let memory = SharedRegion::anonymous(SECTORS as usize * sector_bytes)?;
        let at = port.memory().register(&memory)?;
        Ok(Host { raw, memory, at, sector_bytes })
    }

    fn payload(&self, lba: u64) -> Payload {
        Payload::Contiguous(self.at.offset(lba * self.sector_bytes as u64))
    }

    /// Submits writes of `byte` to all sectors, without waiting for them.
    fn submit_writes(&mut self, now: Nanos, byte: u8) -> Result<(), Box<dyn Error>> {
        self.memory.fill(0, SECTORS as usize * self.sector_bytes, byte);
        for lba in 0..SECTORS {
            let payload = self.payload(lba);
            self.raw.submit(now, Request::write(lba, 1, payload, lba))?;
        }
        Ok(())
    }

    /// Advances virtual time until `count` requests have completed.
    fn complete(&mut self, runner: &mut VirtualRunner, drive: &mut Controller, count: u64) {
        for _ in 0..count {
            let completion = loop {
                if let Some(completion) = self.raw.reap() {
                    break completion;
                }
                runner.step(&mut [&mut self.raw, drive], Nanos::MAX);
            };
            assert!(completion.status.is_success(), "{}", completion.status);
        }
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let scenario = Scenario::parse(Path::new("example.toml"), SCENARIO)?;
    let mut newer = 0;
    // ANCHOR: cut
    // Each round cuts the power a little later.
    for steps in 0..ROUNDS {
        let mut drive = Controller::new(scenario.drives[0].config.clone())?;
        let mut runner = VirtualRunner::new();
        let mut host = Host::attach(&mut drive)?;
        host.submit_writes(runner.now(), 1)?;
        host.complete(&mut runner, &mut drive, SECTORS);
        host.raw.submit(runner.now(), Request::flush(0))?;
        host.complete(&mut runner, &mut drive, 1);

        host.submit_writes(runner.now(), 2)?; // never flushed
        for _ in 0..steps {
            runner.step(&mut [&mut host.raw, &mut drive], Nanos::MAX);
        }
        let off = drive.power_cut();
        let mut drive = off.power_on()?; // the FTL recovers its map from the media
        // ANCHOR_END: cut

        // ANCHOR: check
        let mut runner = VirtualRunner::new();
        let mut host = Host::attach(&mut drive)?;
        for lba in 0..SECTORS {
            let payload = host.payload(lba);
            host.raw.submit(runner.now(), Request::read(lba, 1, payload, lba))?;
        }
        host.complete(&mut runner, &mut drive, SECTORS);
        for lba in 0..SECTORS as usize {
            let mut back = vec![0; host.sector_bytes];
            host.memory.read(lba * host.sector_bytes, &mut back);
            let first = back[0];
            assert!(
                first == 1 || first == 2,
                "a sector must have the flushed contents or newer ones"
            );
            assert!(back.iter().all(|byte| *byte == first), "a sector must not be torn");
            newer += u64::from(first == 2);
        }
        // ANCHOR_END: check
    }
    let all = u64::from(ROUNDS) * SECTORS;
    println!("{ROUNDS} power cuts, nothing lost; {newer} of {all} sectors had the newer contents");
    assert!(0 < newer && newer < all, "power was cut before, between and after the writes");
    Ok(())
}
