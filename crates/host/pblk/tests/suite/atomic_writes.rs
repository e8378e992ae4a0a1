//! Atomic writes of one pblk, of a pblk in shards, and of a set over several: writes of all lengths and
//! alignments are in flight when power is cut, also in recovery, with failing programs. No write within
//! the limits that the device reports may be torn.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-pblk
//! atomic_writes::`. `SLUICE_CASES` sets the number of seeds.

// guarantee: D-62

use std::sync::Arc;

use crate::open_pblk::OpenPblk;
use block::{BlockDevice, Payload, Request, Stripe};
use ftl::FtlConfig;
use mem::{AddressSpace, Iova, SharedRegion};
use nvme::Status;
use pblk::{Pblk, PblkError, ShardHandle, ShardedConfig, ShardedError};
use rng::Rng;
use testkit::atomicity::{AtomicityModel, AtomicityViolation};
use testkit::open_channel_drive::{MockOpenChannelDrive, geometry};
use testkit::oracle::run_seeds;
use time::Nanos;

const SECTOR: usize = 512;
const SLOTS: usize = 12;
/// Maximum number of sectors of a request.
const SECTORS_MAX: u64 = 16;
/// Power cuts of a seed.
const CUTS: u64 = 30;
const NOW: Nanos = Nanos(0);

/// The device under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Single,
    /// Number of shards, and stripe in sectors.
    Shards(u32, u32),
    /// Number of members, and stripe in sectors.
    Set(usize, u32),
}

/// A request in flight: its first sector, number of sectors, and position in the order of all changes.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    lba: u64,
    sectors: u64,
    order: u64,
}

struct Case {
    layout: Layout,
    config: FtlConfig,
    drives: Vec<MockOpenChannelDrive>,
    /// One, or one per shard.
    devices: Vec<Box<dyn BlockDevice>>,
    memory: Arc<SharedRegion>,
    at: Iova,
    model: AtomicityModel,
    /// By slot.
    in_flight: Vec<Option<InFlight>>,
    rng: Rng,
    value: u64,
    cuts: u64,
    /// Writes of several sectors that must be whole.
    whole: u64,
    torn: u64,
    /// Whether a request failed because too many chunks have: then the case ends.
    is_full: bool,
}

/// The error of an opening in which power is cut is ignored.
fn only_power_loss(error: &PblkError) {
    assert!(matches!(error, PblkError::Command { status: Status::POWER_LOSS, .. }), "{error}");
}

impl Case {
    fn new(seed: u64, layout: Layout, atomic_writes: bool) -> Case {
        let mut rng = Rng::new(seed ^ 0xa70_31c);
        let unit = [2, 4, 6][rng.below(3) as usize];
        let (channels, pus) = (1 + rng.below(2) as u32, 1 + rng.below(2) as u32);
        let units = 6 + rng.below(6) as u32;
        let pair = [0, 0, 1, 2][rng.below(4) as usize] * unit;
        let config = FtlConfig {
            over_provisioning: 0.2 + rng.f64() * 0.4,
            hot_cold: rng.chance(0.5),
            checkpoint_sectors: [0, 50, 200][rng.below(3) as usize],
            atomic_writes,
            ..FtlConfig::default()
        };
        let (count, shards) = match layout {
            Layout::Single => (1, 1),
            Layout::Shards(shards, _) => (1, shards),
            Layout::Set(members, _) => (members, 1),
        };
        let chunks = (36 + rng.below(12) as u32) * shards;
        let geometry = geometry(channels, pus, chunks, unit * units, unit, pair);
        let fails = rng.chance(0.4);
        let mut drive = |index: u64| {
            let mut drive = MockOpenChannelDrive::new(geometry, true, seed ^ index << 32 ^ 0xf1a5);
            drive.options.reads_first = rng.chance(0.5);
            drive.faults.program_fail = if fails { 0.003 } else { 0.0 };
            drive
        };
        let drives = (0..count as u64).map(&mut drive).collect();
        let memory = SharedRegion::anonymous(SLOTS * SECTORS_MAX as usize * SECTOR).unwrap();
        let mut case = Case {
            layout,
            config,
            drives,
            devices: Vec::new(),
            memory,
            at: Iova(0),
            model: AtomicityModel::new(0),
            in_flight: vec![None; SLOTS],
            rng,
            value: 0,
            cuts: 0,
            whole: 0,
            torn: 0,
            is_full: false,
        };
        case.open();
        case.model = AtomicityModel::new(case.devices[0].limits().sectors as usize);
        case
    }

    /// Opens the devices, possibly after attempts in which power is cut.
    fn open(&mut self) {
        for _ in 0..self.rng.below(3) {
            for drive in &mut self.drives {
                drive.faults.cut_after = Some(drive.stats.fetched + self.rng.below(40));
            }
            self.try_open();
            self.drives.iter_mut().for_each(MockOpenChannelDrive::cut_power);
        }
        assert!(self.try_open(), "it opens");
    }

    fn try_open(&mut self) -> bool {
        // All members use the memory of one host.
        let space = AddressSpace::default();
        self.drives.iter_mut().for_each(|drive| drive.options.space = Some(space.clone()));
        self.at = space.register(&self.memory).unwrap();
        let one = |drive: &mut MockOpenChannelDrive, config| drive.open(config, 64);
        self.devices = match self.layout {
            Layout::Single => match one(&mut self.drives[0], self.config) {
                Ok(pblk) => vec![Box::new(pblk)],
                Err(error) => return Case::is_cut(&error),
            },
            Layout::Set(_, stripe) => {
                let opened = self.drives.iter_mut().map(|drive| one(drive, self.config));
                match opened.collect::<Result<Vec<Pblk>, _>>() {
                    Ok(members) => vec![Box::new(Stripe::new(members, stripe).unwrap())],
                    Err(error) => return Case::is_cut(&error),
                }
            }
            Layout::Shards(shards, stripe_sectors) => {
                let config = ShardedConfig { shards, stripe_sectors, ftl: self.config };
                match self.drives[0].open_sharded(config, 64) {
                    Ok(opened) => {
                        let boxed = |shard: ShardHandle| Box::new(shard) as Box<dyn BlockDevice>;
                        opened.into_shards().into_iter().map(boxed).collect()
                    }
                    Err(ShardedError::Drive(error) | ShardedError::Shard { source: error, .. }) => {
                        return Case::is_cut(&error);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        };
        true
    }

    /// Returns false: the device did not open because power was cut.
    fn is_cut(error: &PblkError) -> bool {
        only_power_loss(error);
        false
    }

    fn step(&mut self) {
        for index in 0..self.devices.len() {
            self.devices[index].poll(NOW);
            while let Some(done) = self.devices[index].reap() {
                let ended = self.in_flight[done.tag as usize].take().expect("it is in flight");
                let status = done.status;
                assert!(status.is_success() || status.is(Status::CAPACITY_EXCEEDED), "{status}");
                if !status.is_success() {
                    self.is_full = true;
                } else if ended.sectors == 0 {
                    self.model.durable(ended.order);
                }
            }
        }
        for drive in &mut self.drives {
            drive.fetch();
            drive.step();
        }
    }

    fn wait_for(&mut self, until: impl Fn(&Case) -> bool) {
        for _ in 0..1_000_000 {
            if until(self) {
                return;
            }
            self.step();
        }
        panic!("requests do not complete: {:?} {:?}", self.layout, self.config);
    }

    fn submit(&mut self, slot: usize, request: Request, in_flight: InFlight) {
        self.in_flight[slot] = Some(in_flight);
        let core = self.rng.below(self.devices.len() as u64) as usize;
        let request = Request { tag: slot as u64, ..request };
        self.devices[core].submit(NOW, request).expect("room for a request");
    }

    fn payload(&self, slot: usize) -> Payload {
        Payload::Contiguous(self.at.offset((slot * SECTORS_MAX as usize * SECTOR) as u64))
    }

    fn write(&mut self) {
        self.wait_for(|case| case.in_flight.iter().any(Option::is_none));
        let Some(slot) = self.in_flight.iter().position(Option::is_none) else { return };
        let limits = *self.devices[0].limits();
        if self.rng.chance(0.04) {
            // Only changes that have completed are covered.
            let orders = self.in_flight.iter().flatten().map(|other| other.order);
            let order = orders.min().map_or(self.model.last(), |order| order - 1);
            let flush = InFlight { lba: 0, sectors: 0, order: order.max(1) };
            if order > 0 {
                self.submit(slot, Request::flush(0), flush);
            }
            return;
        }
        let unit = u64::from(self.drives[0].geometry.ws_opt);
        let longest = if self.rng.chance(0.1) { SECTORS_MAX } else { unit };
        let sectors = 1 + self.rng.below(longest);
        let span = limits.sectors / if self.rng.chance(0.5) { 8 } else { 1 };
        let lba = self.rng.below(span.max(2 * SECTORS_MAX) - sectors);
        let end = lba + sectors;
        // The device may execute writes in any order.
        let overlaps = |other: &InFlight| lba < other.lba + other.sectors && other.lba < end;
        if self.in_flight.iter().flatten().any(overlaps) {
            return;
        }
        let values: Vec<u64> = (1..=sectors).map(|i| self.value + i).collect();
        self.value += sectors;
        for (i, value) in values.iter().enumerate() {
            let at = (slot * SECTORS_MAX as usize + i) * SECTOR;
            self.memory.write(at, &value.to_le_bytes());
        }
        let is_atomic = match self.config.atomic_writes {
            true => limits.atomic.allows(lba, sectors as u32),
            false => sectors <= unit,
        };
        self.whole += u64::from(is_atomic && sectors > 1);
        let order = self.model.change(lba as usize, &values, is_atomic);
        let write = Request::write(lba, sectors as u32, self.payload(slot), 0);
        let atomic = self.config.atomic_writes && is_atomic && self.rng.chance(0.5);
        self.submit(slot, Request { atomic, ..write }, InFlight { lba, sectors, order });
    }

    /// Reads all sectors.
    fn found(&mut self) -> Vec<Option<u64>> {
        let (sectors, mut found) = (self.devices[0].limits().sectors, Vec::new());
        for lba in (0..sectors).step_by(SECTORS_MAX as usize) {
            let count = (sectors - lba).min(SECTORS_MAX);
            let read = Request::read(lba, count as u32, self.payload(0), 0);
            self.submit(0, read, InFlight { lba, sectors: count, order: 0 });
            self.wait_for(|case| case.in_flight[0].is_none());
            for i in 0..count as usize {
                let mut bytes = [0; 8];
                self.memory.read(i * SECTOR, &mut bytes);
                found.push(Some(u64::from_le_bytes(bytes)));
            }
        }
        found
    }

    fn cut_power(&mut self) {
        self.cuts += 1;
        self.drives.iter_mut().for_each(MockOpenChannelDrive::cut_power);
        self.in_flight.fill(None);
        self.open();
        let found = self.found();
        match self.model.restart(&found) {
            Ok(()) => {}
            Err(AtomicityViolation::Torn { .. }) if !self.config.atomic_writes => self.torn += 1,
            Err(wrong) => panic!("{wrong}; {:?} {:?}", self.layout, self.config),
        }
    }

    fn run(&mut self) {
        for _ in 0..CUTS {
            for _ in 0..1 + self.rng.below(80) {
                self.write();
                for _ in 0..self.rng.below(5) {
                    self.step();
                }
            }
            if self.is_full {
                return;
            }
            self.cut_power();
        }
    }
}

/// Runs seeds; returns the number of torn writes.
fn run(seeds: u64, atomic_writes: bool, layout: impl Fn(u64) -> Layout) -> u64 {
    let run = run_seeds(seeds, &[], "cargo test -p sluice-pblk atomic_writes::", |seed| {
        let mut case = Case::new(seed, layout(seed), atomic_writes);
        case.run();
        (case.cuts, case.whole, case.torn)
    });
    let sum = |of: fn(&(u64, u64, u64)) -> u64| run.results.iter().map(of).sum::<u64>();
    let (cuts, whole, torn) = (sum(|r| r.0), sum(|r| r.1), sum(|r| r.2));
    println!("{cuts} power cuts, {whole} writes that must be whole, {torn} torn");
    let is_usual = !run.is_single && std::env::var_os("SLUICE_CASES").is_none();
    let is_enough = cuts >= seeds * CUTS * 9 / 10 && whole > 5 * cuts;
    assert!(is_enough || !is_usual, "{cuts} {whole}");
    torn
}

fn shards(seed: u64) -> Layout {
    Layout::Shards(2 + (seed % 3) as u32, [2, 4, 8, 16][(seed / 3 % 4) as usize])
}

fn set(seed: u64) -> Layout {
    Layout::Set(2 + (seed % 2) as usize, [3, 4, 8, 16][(seed / 2 % 4) as usize])
}

#[test]
fn a_pblk_tears_no_atomic_write() {
    run(70, true, |_| Layout::Single);
    assert!(run(15, false, |_| Layout::Single) > 5);
}

#[test]
fn shards_tear_no_write_within_their_stripes() {
    run(70, true, shards);
    assert!(run(15, false, shards) > 5);
}

#[test]
fn a_set_tears_no_write_within_its_stripes() {
    run(70, true, set);
    assert!(run(15, false, set) > 5);
}
