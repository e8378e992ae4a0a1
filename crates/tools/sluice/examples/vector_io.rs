//! Vector commands: physical addresses of an open-channel drive, without a target.
//!
//! `cargo run -p sluice-ssd --example vector_io`; `crates/host/ocssd/examples` has more examples.

use std::error::Error;
use std::path::Path;

use sluice::controller::Controller;
use sluice::ocssd::OpenChannelSsd;
use sluice::ocssd::ppa::{Address, Ppa, Session, SessionConfig, VectorOptions};
use sluice::scenario::Scenario;
use sluice::time::{Component, Nanos, VirtualRunner};

const SCENARIO: &str = r#"
[drive]
preset = "ocssd-mlc-128pu-small"
geometry = { channels = 4, pus = 2, chunks = 8, pages = 32 }
data = "memory"
"#;

/// Maximum number of polls of the drive per command.
const POLLS_MAX: u64 = 1_000_000;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let scenario = Scenario::parse(Path::new("example.toml"), SCENARIO)?;
    let mut drive = Controller::new(scenario.drives[0].config.clone())?;
    let port = drive.attach()?;
    let mut runner = VirtualRunner::new();
    let mut progress = || {
        runner.step(&mut [&mut drive as &mut dyn Component], Nanos::MAX);
    };
    let mut ssd = OpenChannelSsd::attach(port, &mut progress, POLLS_MAX)?;
    let mut session = Session::open(&mut ssd, SessionConfig::default(), &mut progress)?;
    let (space, geometry) = (ssd.space(), *ssd.geometry());

    // ANCHOR: vector
    // Chunk 0 of every parallel unit: one write unit per parallel unit in turn, until the chunks
    // are full.
    let mut ppas: Vec<Ppa> = Vec::new();
    for sector in (0..geometry.sectors).step_by(geometry.ws_opt as usize) {
        for pu in space.striped() {
            let first = Address { sector, ..space.pu_address(pu)? };
            ppas.extend(space.extent(first, geometry.ws_opt)?);
        }
    }
    let mut io = session.blocking(&mut progress);
    let mut buffer = io.buffers().allocate(ppas.len() as u32)?;
    for sector in 0..buffer.sectors() {
        buffer.write(sector, &vec![sector as u8; geometry.sector_bytes as usize])?;
    }
    let buffer = io.write(&ppas, buffer, VectorOptions::default())?;
    drop(buffer);
    // ANCHOR_END: vector

    // A vector may have any sectors of written chunks, in any order.
    let some: Vec<usize> = (0..64).map(|i| i * 7_919 % ppas.len()).collect();
    let addresses: Vec<Ppa> = some.iter().map(|i| ppas[*i]).collect();
    let buffer = io.buffers().allocate(addresses.len() as u32)?;
    let buffer = io.read(&addresses, buffer, VectorOptions::default())?;
    let mut back = vec![0; geometry.sector_bytes as usize];
    for (i, written) in some.iter().enumerate() {
        buffer.read(i as u32, &mut back)?;
        assert!(back.iter().all(|byte| *byte == *written as u8), "sector {written}");
    }
    let stats = session.stats();
    assert_eq!(stats.vectors, 2);
    println!("{} sectors written, 64 read: 2 vectors, {} commands", ppas.len(), stats.commands);
    Ok(())
}
