//! Vectors of any length over all parallel units: one vector is written and read synchronously;
//! then random reads run at queue depth 32, with polling.
//!
//! `cargo run -p sluice-ocssd --example vector_io`

mod common;

use std::error::Error;

use ocssd::OpenChannelSsd;
use ocssd::ppa::{Address, Ppa, Session, SessionConfig, VectorOptions};
use time::Component;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut bench = common::Bench::new()?;
    let port = bench.drive().attach()?;
    let mut ssd = OpenChannelSsd::attach(port, &mut || bench.turn(), 1_000_000)?;
    let mut session = Session::open(&mut ssd, SessionConfig::default(), &mut || bench.turn())?;
    let (space, g) = (ssd.space(), *ssd.geometry());

    // Chunk 0 of every PU, one unit of each PU after the other.
    let mut ppas: Vec<Ppa> = Vec::new();
    for sector in (0..g.sectors).step_by(g.ws_opt as usize) {
        for pu in space.striped() {
            let first = Address { sector, ..space.pu_address(pu)? };
            ppas.extend(space.extent(first, g.ws_opt)?);
        }
    }
    let started = bench.now;
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let mut buffer = io.buffers().allocate(ppas.len() as u32)?;
    for sector in 0..buffer.sectors() {
        buffer.write(sector, &vec![sector as u8; g.sector_bytes as usize])?;
        buffer.write_oob(sector, &[sector as u8; 16])?;
    }
    let buffer = io.write(&ppas, buffer, VectorOptions::default())?;
    let took = bench.now.since(started);
    let bytes = ppas.len() as f64 * f64::from(g.sector_bytes);
    println!(
        "{} sectors written in {took}: {:.0} MB/s",
        ppas.len(),
        bytes / took.as_secs_f64() / 1e6
    );
    drop(buffer);

    // A prime step visits sectors of the whole drive.
    let (mut next, mut done, started) = (0, 0, bench.now);
    while done < 5_000 {
        while session.outstanding() < 32 && next < 5_000 {
            let ppa = ppas[next * 7_919 % ppas.len()];
            let buffer = session.buffers().allocate(1)?;
            session.read(&[ppa], buffer, VectorOptions::default().without_oob())?;
            next += 1;
        }
        session.poll(bench.now);
        while let Some(ended) = session.reap() {
            if !ended.is_success() {
                return Err(format!("{}: {}", ended.request, ended.status).into());
            }
            done += 1;
        }
        bench.turn();
    }
    let took = bench.now.since(started);
    println!("{done} random reads in {took}: {:.0} IOPS", f64::from(done) / took.as_secs_f64());
    let stats = session.stats();
    println!("{} vectors took {} commands", stats.vectors, stats.commands);
    session.close(&mut ssd, &mut || bench.turn())?;
    Ok(())
}
