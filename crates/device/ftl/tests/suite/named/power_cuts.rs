//! Power cuts: every completed write that was not freed can be read by its name, or by the name that a move
//! gave it.

use std::collections::BTreeMap;

use ftl::{FtlConfig, NameError, SectorName};
use rng::Rng;
use time::Nanos;

use super::{HostSector, NamedHost, named_config, small};
use crate::common::check;

/// What the host knows besides its index.
struct Oracle {
    host: NamedHost,
    rng: Rng,
    /// The last tag. Each write has a tag of its own, so that a tag says which version it is.
    tags: u64,
    /// The value of each tag.
    values: BTreeMap<u64, u64>,
    /// Names that have been freed, or been replaced by moves, with their tags.
    former: BTreeMap<SectorName, u64>,
    found: u64,
}

impl Oracle {
    fn new(config: FtlConfig, seed: u64) -> Oracle {
        let mut host = NamedHost::new(small(), config, true, seed);
        if seed % 2 == 1 {
            host.flash.reorder(seed);
        }
        let (values, former) = (BTreeMap::new(), BTreeMap::new());
        Oracle { host, rng: Rng::new(seed), tags: 0, values, former, found: 0 }
    }

    fn submit(&mut self) {
        self.tags += 1;
        let sector = HostSector { tag: self.tags, value: self.rng.below(u64::MAX - 1) + 1 };
        self.values.insert(sector.tag, sector.value);
        self.host.submit(sector);
    }

    /// Frees and writes sectors, and executes some operations.
    fn work(&mut self, capacity: u64) {
        for _ in 0..self.rng.below(12) {
            let used = (self.host.sectors.len() + self.host.writing.len()) as u64;
            if used >= capacity && !self.host.sectors.is_empty() {
                let name = self.host.name_at(self.rng.below(u64::MAX));
                self.former.insert(name, self.host.sectors[&name].tag);
                self.host.free(name);
            }
            self.submit();
        }
        self.host.ftl.kick(Nanos(0), &mut self.host.flash);
        self.take_reports();
        for _ in 0..self.rng.below(30) {
            self.host.flash.step(&mut self.host.ftl);
            if self.rng.chance(0.5) {
                self.take_reports();
            }
        }
    }

    fn take_reports(&mut self) {
        let from = self.host.moves.len();
        self.host.take_reports();
        for moved in &self.host.moves[from..] {
            self.former.insert(moved.old, moved.tag);
        }
    }

    /// Cuts power, and compares what the recovery finds with the index.
    fn cut(&mut self) {
        self.host.cut();
        check(&self.host.ftl);
        // Moves that were reported, or that the cut kept from being reported.
        let unconfirmed = self.take_moves();
        let found: BTreeMap<SectorName, u64> =
            self.host.ftl.take_found_names().into_iter().map(|f| (f.name, f.tag)).collect();
        self.found += found.len() as u64;
        for (name, sector) in &self.host.sectors {
            assert_eq!(found.get(name), Some(&sector.tag), "{name:?} of {sector:?}");
        }
        self.host.verify();
        // All else that was found is what the host wrote once, with its data; the host frees it.
        let index = self.host.sectors.clone();
        for (name, tag) in found.iter().filter(|(name, _)| !index.contains_key(name)) {
            let value = self.values[tag];
            assert_eq!(self.host.read(*name, *tag), Ok(Ok(value)), "{name:?}, tag {tag}");
            self.host.ftl.free_named(*name).unwrap();
            self.former.insert(*name, *tag);
        }
        self.check_former(&unconfirmed);
        check(&self.host.ftl);
    }

    /// Takes the moves that the recovery reports, without confirming all of them.
    fn take_moves(&mut self) -> BTreeMap<SectorName, u64> {
        let from = self.host.moves.len();
        self.host.confirms = false;
        self.take_reports();
        self.host.confirms = true;
        self.host.moves[from..].iter().map(|moved| (moved.old, moved.tag)).collect()
    }

    /// A former name leads to an error, or to its own data.
    fn check_former(&mut self, unconfirmed: &BTreeMap<SectorName, u64>) {
        for (name, tag) in self.former.clone() {
            if self.host.sectors.contains_key(&name) {
                continue;
            }
            let value = self.values[&tag];
            match self.host.read(name, tag) {
                Ok(read) => {
                    assert!(unconfirmed.contains_key(&name), "{name:?} is a former name");
                    assert_eq!(read, Ok(value));
                }
                Err(NameError::Stale | NameError::NotValid | NameError::NeverWritten) => {}
                Err(other) => panic!("{other:?} of {name:?}"),
            }
        }
        for old in unconfirmed.keys() {
            self.host.ftl.confirm_move(*old).unwrap();
        }
        self.host.ftl.kick(Nanos(0), &mut self.host.flash);
    }
}

fn run(seed: u64, cuts: u32, program_fail: f64) -> (u64, u64) {
    let mut oracle = Oracle::new(named_config(0.6), seed);
    oracle.host.flash.program_fail = program_fail;
    let capacity = oracle.host.ftl.sectors() * 3 / 4;
    let mut moves = 0;
    for _ in 0..cuts {
        for _ in 0..oracle.rng.below(60) {
            oracle.work(capacity);
        }
        moves += oracle.host.ftl.named_stats().unwrap().moves;
        oracle.cut();
    }
    oracle.host.settle();
    oracle.host.verify();
    (moves, oracle.found)
}

#[test]
fn completed_writes_survive_power_cuts_by_their_names() {
    let (mut moves, mut found) = (0, 0);
    for seed in 0..24 {
        let (m, f) = run(seed, 12, 0.0);
        (moves, found) = (moves + m, found + f);
    }
    assert!(moves > 10_000 && found > 10_000, "{moves} moves, {found} found");
}
