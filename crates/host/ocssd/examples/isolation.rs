//! The experiment of [LightNVM17 §5.5]: 4 KB random reads at queue depth 1 beside 64 KB writes at
//! queue depth 1, on separate and on the same parallel units.
//!
//! `cargo run -p sluice-ocssd --example isolation`

mod common;

use std::error::Error;

use ocssd::OpenChannelSsd;
use ocssd::ppa::{Address, PuId, Session, SessionConfig, VectorOptions};
use time::{Component, Nanos};

const READS: usize = 2_000;

/// Returns the latencies of reads from `readers` while `writers` are written, in ascending order.
fn measure(readers: &[PuId], writers: &[PuId]) -> Result<Vec<Nanos>, Box<dyn Error>> {
    let mut bench = common::Bench::new()?;
    let port = bench.drive().attach()?;
    let mut ssd = OpenChannelSsd::attach(port, &mut || bench.turn(), 1_000_000)?;
    let config = SessionConfig { queue_depth: 1, vectors: 1, ..SessionConfig::default() };
    let mut reads = Session::open(&mut ssd, config, &mut || bench.turn())?;
    let mut writes = Session::open(&mut ssd, config, &mut || bench.turn())?;
    let (space, g) = (ssd.space(), *ssd.geometry());
    let units = g.sectors / 16 * (g.chunks - 1);

    let mut source = Vec::new();
    for pu in readers {
        source.extend(space.extent(space.pu_address(*pu)?, g.sectors)?);
    }
    let mut progress = || bench.turn();
    let mut io = reads.blocking(&mut progress);
    let buffer = io.buffers().allocate(source.len() as u32)?;
    drop(io.write(&source, buffer, VectorOptions::default())?);

    let (mut latencies, mut since, mut written) = (Vec::new(), None, 0u32);
    while latencies.len() < READS {
        if reads.outstanding() == 0 {
            let ppa = source[latencies.len() * 7_919 % source.len()];
            let buffer = reads.buffers().allocate(1)?;
            reads.read(&[ppa], buffer, VectorOptions::default())?;
            since = Some(bench.now);
        }
        let (pu, unit) = (written as usize % writers.len(), written / writers.len() as u32);
        if writes.outstanding() == 0 && unit < units {
            let (chunk, sector) = (1 + unit * 16 / g.sectors, unit * 16 % g.sectors);
            let first = Address { chunk, sector, ..space.pu_address(writers[pu])? };
            let ppas: Vec<_> = space.extent(first, 16)?.collect();
            let buffer = writes.buffers().allocate(16)?;
            writes.write(&ppas, buffer, VectorOptions::default())?;
            written += 1;
        }
        reads.poll(bench.now);
        writes.poll(bench.now);
        let (read, write) = (reads.reap(), writes.reap());
        if let (Some(ended), Some(start)) = (&read, since) {
            assert!(ended.is_success());
            latencies.push(bench.now.since(start));
        }
        if read.is_none() && write.is_none() {
            bench.turn();
        }
    }
    latencies.sort_unstable();
    Ok(latencies)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let (first, second): (Vec<PuId>, Vec<PuId>) =
        ((0..8).map(PuId).collect(), (8..16).map(PuId).collect());
    for (name, writers) in [("PUs of their own", &second), ("the same PUs", &first)] {
        let l = measure(&first, writers)?;
        let at = |p: f64| l[(l.len() as f64 * p) as usize];
        println!("{name:>16}: p50 {}  p99 {}  max {}", at(0.5), at(0.99), at(0.9999));
    }
    Ok(())
}
