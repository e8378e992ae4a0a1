//! Power cuts: every completed write that was not freed can be read by its name, or by the name that a move
//! gave it.
//!
//! Replay a seed with `SLUICE_SEED=n cargo test -p sluice-ftl --test suite named::power_cuts::NAME`.

// guarantee: D-66

use std::collections::{BTreeMap, BTreeSet};

use ftl::{
    FtlConfig, GcReadPriority, MovedSector, OwnerChange, SectorName, SectorNameError,
    VictimPolicyKind,
};
use rng::Rng;
use time::Nanos;

use super::{HostSector, NamedHost, named_config, small};
use crate::common::check;

/// A host that knows more than its index.
struct Oracle {
    host: NamedHost,
    rng: Rng,
    /// The last tag. Each write has a tag of its own, so that a tag says which version it is.
    tags: u64,
    /// The value of each tag.
    values: BTreeMap<u64, u64>,
    /// Names that have been freed, or been replaced by moves, with their tags.
    former: BTreeMap<SectorName, u64>,
    /// Moves that are not confirmed, and the probability that one is confirmed at a time.
    unconfirmed: Vec<MovedSector>,
    confirm: f64,
    /// Confirmed moves since the last power cut, each a change of the owner's state. Without a state, none.
    confirmed: Vec<MovedSector>,
    counts: Counts,
}

/// Bytes of the owner's state: the number of moves that it has confirmed.
const OWNER_BYTES: u32 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    moves: u64,
    found: u64,
    reported_again: u64,
    /// Confirmed moves whose change of the owner's state was lost.
    lost_changes: u64,
    freed_again: u64,
    program_failures: u64,
}

impl Oracle {
    fn new(config: FtlConfig, seed: u64, confirm: f64) -> Oracle {
        let mut host = NamedHost::new(small(), config, true, seed);
        host.confirms = false;
        if seed % 2 == 1 {
            host.flash.reorder(seed);
        }
        Oracle {
            host,
            rng: Rng::new(seed),
            tags: 0,
            values: BTreeMap::new(),
            former: BTreeMap::new(),
            unconfirmed: Vec::new(),
            confirm,
            confirmed: Vec::new(),
            counts: Counts::default(),
        }
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
            if used < capacity || self.rng.chance(0.9) {
                self.submit();
            }
        }
        self.host.ftl.kick(Nanos(0), &mut self.host.flash);
        self.take_reports();
        for _ in 0..self.rng.below(30) {
            if self.host.flash.outstanding() > 0 {
                self.host.flash.step(&mut self.host.ftl);
            }
            if self.rng.chance(0.5) {
                self.take_reports();
            }
        }
    }

    /// Takes reports, and confirms some moves in any order.
    fn take_reports(&mut self) {
        let from = self.host.moves.len();
        self.host.take_reports();
        for moved in &self.host.moves[from..] {
            self.former.insert(moved.old, moved.tag);
            self.unconfirmed.push(*moved);
        }
        while !self.unconfirmed.is_empty() && self.rng.chance(self.confirm) {
            let at = self.rng.below(self.unconfirmed.len() as u64) as usize;
            let moved = self.unconfirmed.swap_remove(at);
            if self.host.config.owner_bytes > 0 {
                self.confirmed.push(moved);
                self.set_confirmed(self.confirmed.len() as u64);
            }
            self.host.confirm(moved.old);
        }
    }

    /// Changes the owner's state.
    fn set_confirmed(&mut self, count: u64) {
        let mut change = OwnerChange::default();
        change.put(0, &count.to_le_bytes());
        self.host.ftl.change_owner_state(&change);
    }

    /// A move is reported again after a power cut if the owner's state lacks the change that was made
    /// before its confirmation.
    fn check_confirmed(&mut self, reported: &[MovedSector]) {
        let Ok(state) = self.host.ftl.owner_state().try_into() else { return };
        let durable = u64::from_le_bytes(state) as usize;
        let live = self.host.sectors.values().map(|sector| sector.tag).collect::<BTreeSet<_>>();
        let lost = self.confirmed.drain(..).skip(durable);
        for moved in lost.filter(|moved| live.contains(&moved.tag)) {
            self.counts.lost_changes += 1;
            assert!(reported.iter().any(|again| again.old == moved.old), "{moved:?}");
        }
        self.set_confirmed(0);
    }

    /// Cuts power, and compares what the recovery finds with the index.
    fn cut(&mut self) {
        self.counts.moves += self.host.ftl.named_stats().unwrap().moves;
        self.counts.program_failures += self.host.ftl.stats().program_failures;
        self.host.cut();
        check(&self.host.ftl);
        // A move that was reported and not confirmed is reported again.
        let reported = self.host.take_recovered_moves();
        let found = self.host.take_found();
        self.check_confirmed(&reported);
        for moved in std::mem::take(&mut self.unconfirmed) {
            assert!(reported.iter().any(|again| again.old == moved.old), "{moved:?}");
        }
        // Each version is found once.
        let tags = found.values().collect::<BTreeSet<_>>();
        assert_eq!(tags.len(), found.len(), "{found:?}");
        self.counts.found += found.len() as u64;
        self.counts.reported_again += reported.len() as u64;
        for moved in &reported {
            self.former.insert(moved.old, moved.tag);
        }
        self.unconfirmed = reported;
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
            self.counts.freed_again += 1;
        }
        self.check_former();
        check(&self.host.ftl);
    }

    /// A former name leads to an error, or to its own data while its move is not confirmed.
    fn check_former(&mut self) {
        for (name, tag) in self.former.clone() {
            if self.host.sectors.contains_key(&name) {
                continue;
            }
            let value = self.values[&tag];
            match self.host.read(name, tag) {
                Ok(read) => {
                    // The move may not have been reported before the read.
                    let confirm = std::mem::replace(&mut self.confirm, 0.0);
                    self.take_reports();
                    self.confirm = confirm;
                    let is_unconfirmed = self.unconfirmed.iter().any(|moved| moved.old == name);
                    assert!(is_unconfirmed, "{name:?} is a former name");
                    assert_eq!(read, Ok(value));
                }
                Err(
                    SectorNameError::Stale
                    | SectorNameError::NotValid
                    | SectorNameError::NeverWritten,
                ) => {}
                Err(other) => panic!("{other:?} of {name:?}"),
            }
        }
    }

    fn finish(mut self) -> Counts {
        self.confirm = 1.0;
        self.take_reports();
        self.host.confirms = true;
        self.host.settle();
        self.host.verify();
        self.counts
    }
}

/// Returns the configuration of a seed.
fn config(seed: u64) -> FtlConfig {
    let mut rng = Rng::new(seed ^ 0x6e61_6d65);
    let policies =
        [VictimPolicyKind::Greedy, VictimPolicyKind::CostBenefit, VictimPolicyKind::Fifo];
    let priorities = [GcReadPriority::Off, GcReadPriority::PerPu, GcReadPriority::Global];
    FtlConfig {
        victim_policy: policies[rng.below(3) as usize],
        gc_read_priority: priorities[rng.below(3) as usize],
        hot_cold: rng.chance(0.5),
        active_pus: if rng.chance(0.5) { 2 } else { 0 },
        owner_bytes: if rng.chance(0.5) { OWNER_BYTES } else { 0 },
        static_wear_leveling: if rng.chance(0.5) { 2 } else { 0 },
        dynamic_wear_leveling: rng.chance(0.5),
        ..named_config(0.6)
    }
}

fn run(seed: u64, cuts: u32, confirm: f64, program_fail: f64) -> Counts {
    let mut oracle = Oracle::new(config(seed), seed, confirm);
    oracle.host.flash.program_fail = program_fail;
    let capacity = oracle.host.ftl.sectors() * 3 / 4;
    for _ in 0..cuts {
        for _ in 0..oracle.rng.below(60) {
            oracle.work(capacity);
        }
        oracle.cut();
    }
    oracle.finish()
}

/// Runs the seeds from `first` on, and returns the sum of their counts. `SLUICE_SEED` replaces them by one,
/// `SLUICE_CASES` sets their number. The counts of the usual seeds are at least `least`.
fn run_all(first: u64, confirm: f64, program_fail: f64, least: fn(&Counts) -> bool) {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let cases = number("SLUICE_CASES").unwrap_or(CASES);
    let seeds = match number("SLUICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + cases,
    };
    let is_usual = seeds == (first..first + CASES);
    let mut sum = Counts::default();
    for seed in seeds {
        println!("SLUICE_SEED={seed}");
        let counts = run(seed, 12, confirm, program_fail);
        sum.moves += counts.moves;
        sum.found += counts.found;
        sum.reported_again += counts.reported_again;
        sum.lost_changes += counts.lost_changes;
        sum.freed_again += counts.freed_again;
        sum.program_failures += counts.program_failures;
    }
    println!("{sum:?}");
    assert!(!is_usual || least(&sum), "{sum:?}");
}

/// Seeds of each test.
const CASES: u64 = 150;

#[test]
fn completed_writes_survive_power_cuts_by_their_names() {
    run_all(0, 1.0, 0.0, |sum| {
        sum.moves > 5_000 && sum.found > 10_000 && sum.freed_again > 100 && sum.lost_changes > 100
    });
}

#[test]
fn unconfirmed_moves_survive_power_cuts() {
    run_all(1_000, 0.4, 0.0, |sum| sum.moves > 2_000 && sum.reported_again > 500);
}

#[test]
fn names_survive_programs_that_fail_and_power_cuts() {
    run_all(2_000, 0.9, 0.002, |sum| sum.moves > 2_000 && sum.program_failures > 20);
}
