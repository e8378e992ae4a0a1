//! Attaches to an open-channel drive and prints its geometry, address format, speed, chunks, and
//! one sector's address in its three forms.
//!
//! `cargo run -p sluice-ocssd --example geometry`

mod common;

use std::error::Error;

use ocssd::OpenChannelSsd;
use ocssd::ppa::{Address, PuSet};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut bench = common::Bench::new()?;
    let port = bench.drive().attach()?;
    let mut progress = || bench.turn();
    let mut ssd = OpenChannelSsd::attach(port, &mut progress, 1_000_000)?;

    let (g, space) = (*ssd.geometry(), ssd.space());
    println!("{} {}: {} B", ssd.info().product.model, ssd.info().serial, g.total_bytes());
    println!(
        "  {} channels x {} PUs x {} chunks x {} sectors",
        g.groups, g.pus, g.chunks, g.sectors
    );
    println!("  write {} sectors at least, {} at best", g.ws_min, g.ws_opt);
    println!("  readable when {} more follow; {} B out of band", g.mw_cunits, g.oob_bytes);
    println!("  addresses: {}", space.format());
    let p = ssd.performance();
    println!("  read {}, write {}, reset {} (typical)", p.read.0, p.write.0, p.reset.0);

    let address = Address { group: 2, pu: 1, chunk: 7, sector: 100 };
    let (ppa, flat) = (space.ppa(address)?, space.flat(address)?);
    println!("sector {address} is {:#x} to the drive, and number {}", ppa.0, flat.0);
    assert_eq!(space.flat_of(ppa)?, flat);

    let pus: PuSet = "0-3,8".parse()?;
    let chunks = ssd.chunks_on_pus(&pus, &mut progress)?;
    let worn = chunks.iter().map(|c| c.wear_index).max().unwrap_or(0);
    println!("PUs {pus}: {} chunks, wear at most {worn} of 255", chunks.len());
    Ok(())
}
