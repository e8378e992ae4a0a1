//! Write amplification of a drive whose sectors have names, compared with a page-mapped drive whose rules
//! choose the same victims.

// guarantee: B-104

use controller::{Controller, DriveConfig};
use nvme::{NamedCommand, Sqe, Status};
use rng::Rng;

use super::super::harness::demo_on;
use super::{NamedSector, NamingHost, base, nand_of};
use crate::hostile::host::Host;

/// Sectors that are written at a time.
const BATCH: u64 = 16;
/// Times that all sectors are replaced: until the drive is in its steady state, and while it is measured.
const ROUNDS: (u64, u64) = (4, 12);

/// Returns a drive with these rules, of twice the size of those of the other tests.
fn larger(rules: &str) -> DriveConfig {
    let mut config = base();
    nand_of(&mut config).geometry.chunks = 24;
    demo_on(config, rules)
}

/// Replaces random sectors of `live` with `write_batch`, which gets the sectors of a batch. Returns the write
/// amplification.
fn amplification(
    drive: &mut Controller,
    live: u64,
    seed: u64,
    mut write_batch: impl FnMut(&mut Controller, &[u64]),
) -> f64 {
    let mut rng = Rng::new(seed);
    let written = |drive: &Controller| {
        let stats = drive.application_ftl(0).expect("an FTL").stats();
        (stats.host_writes, stats.gc_relocations)
    };
    for first in (0..live).step_by(BATCH as usize) {
        write_batch(drive, &(first..(first + BATCH).min(live)).collect::<Vec<_>>());
    }
    let mut before = written(drive);
    for batch in 0..live * ROUNDS.1 / BATCH {
        if batch == live * ROUNDS.0 / BATCH {
            before = written(drive);
        }
        let mut sectors = Vec::new();
        while sectors.len() < BATCH as usize {
            let sector = rng.below(live);
            if !sectors.contains(&sector) {
                sectors.push(sector);
            }
        }
        write_batch(drive, &sectors);
    }
    let after = written(drive);
    let (host, moved) = (after.0 - before.0, after.1 - before.1);
    (host + moved) as f64 / host as f64
}

fn submit_all(host: &mut Host, drive: &mut Controller, commands: &[Sqe]) -> Vec<u64> {
    let first = host.cid.wrapping_add(1);
    for sqe in commands {
        let mut sqe = *sqe;
        sqe.set_sgl(host.block(0, 4096));
        host.submit(sqe);
    }
    host.drain(drive);
    let mut results = vec![0; commands.len()];
    for _ in commands {
        let cqe = host.reap().expect("the command completes");
        assert_eq!(cqe.status, Status::SUCCESS);
        results[usize::from(cqe.cid.wrapping_sub(first))] = cqe.result;
    }
    results
}

fn named(live: u64, seed: u64) -> f64 {
    let mut drive = Controller::new(larger("nameless.rules")).unwrap();
    let mut host = NamingHost::new(Host::with_queue(&mut drive));
    amplification(&mut drive, live, seed, |drive, sectors| {
        host.take_moves(drive, true);
        for sector in sectors {
            if host.sectors.contains_key(sector) {
                host.free(drive, *sector);
            }
        }
        let writes: Vec<_> = sectors.iter().map(|s| NamedCommand::write(*s).to_sqe(1)).collect();
        let names = submit_all(&mut host.host, drive, &writes);
        let named = names.into_iter().map(|name| NamedSector { name, value: 0 });
        host.sectors.extend(sectors.iter().copied().zip(named));
    })
}

fn mapped(live: u64, seed: u64) -> f64 {
    let mut drive = Controller::new(larger("page.rules")).unwrap();
    let mut host = Host::with_queue(&mut drive);
    amplification(&mut drive, live, seed, |drive, sectors| {
        let writes: Vec<_> = sectors.iter().map(|s| Sqe::write(1, *s, 1, false)).collect();
        submit_all(&mut host, drive, &writes);
    })
}

/// The bound is 1.03 times the page-mapped drive (the map's own writes are not counted).
#[test]
fn names_cost_no_write_amplification() {
    let live = Controller::new(larger("page.rules")).unwrap().sectors() * 19 / 20;
    let mean = |run: fn(u64, u64) -> f64| (0..3).map(|seed| run(live, seed)).sum::<f64>() / 3.0;
    let (named, mapped) = (mean(named), mean(mapped));
    println!("{live} sectors, write amplification with names {named:.3}, with a map {mapped:.3}");
    assert!(mapped > 1.5, "{mapped}");
    assert!(named <= 1.03 * mapped, "{named} and {mapped}");
}
