//! Power cuts of a drive whose sectors have names: completed writes that were not freed are found with
//! their data, and a name that the host knew leads to its data through the durable table of forwards.
//!
//! Replay a seed with `SLUICE_SEED=n cargo test -p sluice-controller --test suite named::power_cuts`.

// guarantee: D-67

use std::collections::BTreeMap;

use controller::Controller;
use mem::PAGE_BYTES;
use nvme::{NamedCommand, Status};
use rng::Rng;
use time::{Component, Nanos};

use super::{DATA_PAGES, NamedSector, NamingHost, check, config};
use crate::hostile::host::Host;

/// Seeds of the test.
const CASES: u64 = 60;
/// Power cuts of a seed.
const CUTS: u32 = 6;

#[derive(Debug, Default)]
struct Counts {
    moved: u64,
    cuts_in_flight: u64,
    /// Names of the time before a cut that led to their data behind it.
    forwarded: u64,
}

/// A host with several writes in flight.
struct Oracle {
    drive: Controller,
    host: NamingHost,
    /// Writes in flight: by command identifier the tag and the value.
    writing: BTreeMap<u16, (u64, u8)>,
    rng: Rng,
    counts: Counts,
}

impl Oracle {
    fn new(seed: u64) -> Oracle {
        let mut drive = Controller::new(config()).unwrap();
        let host = NamingHost::new(Host::with_queue(&mut drive));
        let (writing, rng) = (BTreeMap::new(), Rng::new(seed));
        Oracle { drive, host, writing, rng, counts: Counts::default() }
    }

    fn submit(&mut self) {
        let tag = self.host.next_tag;
        self.host.next_tag += 1;
        let page = tag as usize % DATA_PAGES;
        self.host.host.memory.fill(page * PAGE_BYTES, PAGE_BYTES, tag as u8);
        let mut sqe = NamedCommand::write(tag).to_sqe(1);
        sqe.set_sgl(self.host.host.block(page as u64, PAGE_BYTES as u32));
        let cid = self.host.host.submit(sqe);
        self.writing.insert(cid, (tag, tag as u8));
    }

    fn reap(&mut self) {
        while let Some(cqe) = self.host.host.reap() {
            let (tag, value) = self.writing.remove(&cqe.cid).expect("a write");
            assert_eq!(cqe.status, Status::SUCCESS);
            self.host.sectors.insert(tag, NamedSector { name: cqe.result, value });
        }
    }

    /// Runs the drive for some time.
    fn step(&mut self) {
        for _ in 0..self.rng.below(20) {
            while self.drive.poll(self.host.host.now) {}
            self.reap();
            match self.drive.deadline() {
                Nanos::MAX => return,
                at => self.host.host.now = self.host.host.now.max(at),
            }
        }
    }

    fn settle(&mut self) {
        self.host.host.drain(&mut self.drive);
        self.reap();
        assert!(self.writing.is_empty());
    }

    /// Replaces sectors with writes in flight, and takes moves.
    fn work(&mut self, live: u64) {
        for _ in 0..self.rng.below(150) {
            while (self.host.sectors.len() + self.writing.len()) as u64 >= live {
                self.settle();
                let tag = self.host.any(&mut self.rng);
                self.host.free(&mut self.drive, tag);
            }
            for _ in 0..1 + self.rng.below(DATA_PAGES as u64 / 2) {
                if (self.writing.len()) < DATA_PAGES / 2 {
                    self.submit();
                }
            }
            self.step();
            if self.rng.chance(0.3) {
                self.settle();
                let acknowledges = self.rng.chance(0.8);
                self.host.take_moves(&mut self.drive, acknowledges);
            }
        }
    }

    /// Cuts the power, while writes are in flight.
    fn cut(mut self) -> Oracle {
        while self.host.sectors.len() > 4 && self.writing.len() < 4 {
            let tag = self.host.any(&mut self.rng);
            self.settle();
            self.host.free(&mut self.drive, tag);
            (0..4).for_each(|_| self.submit());
            self.step();
        }
        self.counts.cuts_in_flight += u64::from(!self.writing.is_empty());
        let now = self.host.host.now;
        self.drive = self.drive.power_cut().power_on().unwrap();
        self.host.host = Host::with_queue(&mut self.drive);
        self.host.host.now = self.host.host.now.max(now);
        self.writing.clear();
        check(&self.drive);
        // The drive finds each sector of the host by the name that the host knew: its table forwards old names.
        for (tag, NamedSector { name, value }) in self.host.sectors.clone() {
            let found = self.host.read(&mut self.drive, name, tag);
            assert_eq!(found, Ok(value), "tag {tag}, name {name}");
            self.counts.forwarded += 1;
        }
        self.host.rebuild(&mut self.drive);
        // Moves that the drive reports again are older than what was found; others are new.
        for event in self.host.take_events(&mut self.drive) {
            let [old, new, tag] = event.values.map(|value| value.get());
            if let Some(sector) = self.host.sectors.get_mut(&tag)
                && sector.name == old
            {
                sector.name = new;
            }
            assert_eq!(self.host.acknowledge(&mut self.drive, old), Status::SUCCESS);
        }
        self.host.check(&mut self.drive);
        self
    }
}

fn run(seed: u64) -> Counts {
    let mut oracle = Oracle::new(seed);
    let live = oracle.drive.sectors() * (1 + seed % 3) / 4;
    oracle.host.fill(&mut oracle.drive, live);
    for _ in 0..CUTS {
        oracle.work(live);
        oracle = oracle.cut();
    }
    oracle.settle();
    oracle.host.take_moves(&mut oracle.drive, true);
    oracle.host.check(&mut oracle.drive);
    oracle.counts.moved = oracle.host.moved;
    oracle.counts
}

#[test]
fn names_and_data_survive_power_cuts() {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let seeds = match number("SLUICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SLUICE_CASES").unwrap_or(CASES),
    };
    let is_usual = seeds == (0..CASES);
    let mut sum = Counts::default();
    for seed in seeds {
        println!("SLUICE_SEED={seed}");
        let counts = run(seed);
        sum.moved += counts.moved;
        sum.cuts_in_flight += counts.cuts_in_flight;
        sum.forwarded += counts.forwarded;
    }
    println!("{sum:?}");
    assert!(!is_usual || sum.moved > 1_000 && sum.cuts_in_flight > 100, "{sum:?}");
}
