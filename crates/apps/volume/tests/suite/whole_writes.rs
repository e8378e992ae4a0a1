//! Random writes and power cuts on devices with atomic writes: no aligned write of a power of two of
//! bytes up to the volume's limit is torn. Without atomic writes the same test finds torn writes.
//!
//! A file is a row of sectors of 512 bytes, each with a number that no other write has.

// guarantee: B-102

use std::sync::Arc;

use block::AtomicLimits;
use mem::{Iova, SharedRegion};
use rng::Rng;
use testkit::atomicity::{AtomicityModel, AtomicityViolation};
use testkit::oracle::run_seeds;
use time::Nanos;
use volume::{
    FormatOptions, FsckOptions, Ino, Mount, OpResult, Options, RequestBuffer, Time, Volume,
    VolumeOp, VolumeRequest, format, fsck,
};

use crate::oracle::harness::{DeviceComponent, DriveHarness, Harness, MountComponent, RamHarness};

const SECTOR: u64 = 512;
/// Sectors of a file.
const SECTORS: u64 = 512;
const FILES: usize = 3;
/// Bytes of a request's data.
const DATA: usize = 128 << 10;

/// Counts of events of a case.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    cuts: u64,
    torn: u64,
    whole_writes: u64,
    /// Parts of writes that had to be journaled to be kept whole.
    journaled: u64,
    recovered: u64,
}

/// A change of a file in flight, or a sync: the last change that it makes durable.
#[derive(Clone, Copy, Debug)]
enum FileOp {
    Change,
    Sync { order: u64 },
}

struct Case<H: Harness> {
    harness: H,
    rng: Rng,
    volume: Option<Box<Volume<H::Device>>>,
    region: Option<(Arc<SharedRegion>, Iova)>,
    files: Vec<Ino>,
    models: Vec<AtomicityModel>,
    /// The order of the last change of each file that has completed.
    completed: Vec<u64>,
    sizes: Vec<u64>,
    /// By request: a change of each file, then a sync of each.
    in_flight: [Option<FileOp>; 2 * FILES],
    /// Bytes of the longest write that must be whole.
    unit: u64,
    /// Whether torn writes are counted.
    may_tear: bool,
    options: Options,
    value: u64,
    seen: Seen,
}

impl<H: Harness> Case<H> {
    fn new(seed: u64, mut harness: H, shape: &FormatOptions, may_tear: bool) -> Case<H> {
        let mut rng = Rng::new(seed);
        let mut device = harness.attach();
        format(&mut device, shape, |d| harness.step(&mut DeviceComponent(d))).unwrap();
        let options = Options {
            cache_pages: 64 + rng.below(200) as u32,
            dirty_expire: Nanos::from_micros(200 + rng.below(5_000)),
            discard: rng.chance(0.7),
            ..Options::default()
        };
        let mut case = Case {
            harness,
            rng,
            volume: None,
            region: None,
            files: Vec::new(),
            models: vec![AtomicityModel::new(SECTORS as usize); FILES],
            completed: vec![0; FILES],
            sizes: vec![0; FILES],
            in_flight: [None; 2 * FILES],
            unit: 16384,
            may_tear,
            options,
            value: 0,
            seen: Seen::default(),
        };
        case.mount(device);
        for file in 0..FILES {
            let op = VolumeOp::Create {
                dir: Ino::ROOT,
                name: volume::Name::new(format!("{file}")).unwrap(),
                access: volume::InodePermissions::default(),
                exclusive: true,
                open: false,
            };
            let Ok(OpResult::Inode(ino)) = case.run_now(op) else { panic!("a file") };
            case.files.push(ino);
        }
        assert_eq!(case.run_now(VolumeOp::SyncAll), Ok(OpResult::Done));
        let max = case.volume.as_ref().unwrap().atomic_write_bytes_max();
        if max > 0 {
            case.unit = max.into();
        }
        assert_eq!(max == 0, may_tear);
        case
    }

    fn run_now(&mut self, op: VolumeOp) -> Result<OpResult, volume::Error> {
        let now = self.harness.now();
        let volume = self.volume.as_mut().unwrap();
        volume.submit(now, VolumeRequest { id: 99, op, time: Time(0) }).unwrap();
        loop {
            self.harness.step(volume);
            if let Some(done) = volume.reap() {
                return done.result;
            }
        }
    }

    fn mount(&mut self, mut device: H::Device) {
        loop {
            let report = fsck(&mut device, FsckOptions::default(), |d| {
                self.harness.step(&mut DeviceComponent(d))
            });
            let report = report.unwrap();
            assert!(report.is_clean(), "{:?}", report.problems);
            let mut opening = Mount::new(device, self.options).unwrap();
            let cut_after = if self.rng.chance(0.2) { self.rng.below(60) } else { u64::MAX };
            let mut steps = 0;
            let ready = loop {
                let mut ahead = MountComponent { mount: &mut opening, ready: None };
                self.harness.step(&mut ahead);
                steps += 1;
                assert!(steps < 1_000_000, "the mount does not complete");
                if ahead.ready.is_some() || steps >= cut_after {
                    break ahead.ready;
                }
            };
            if let Some(volume) = ready {
                self.seen.recovered += volume.stats().recovered_blocks;
                volume.check_invariants().unwrap();
                let region = volume.memory().allocate_registered(FILES * DATA).unwrap();
                (self.region, self.volume) = (Some(region), Some(volume));
                return;
            }
            self.harness.cut(opening.into_device().unwrap());
            device = self.harness.attach();
        }
    }

    fn step(&mut self) {
        let volume = self.volume.as_mut().unwrap();
        self.harness.step(volume);
        volume.check_invariants().unwrap();
        while let Some(done) = self.volume.as_mut().unwrap().reap() {
            let id = done.id as usize;
            let op = self.in_flight[id].take().unwrap();
            assert!(done.result.is_ok(), "{done:?}");
            let file = id % FILES;
            match op {
                FileOp::Change => self.completed[file] = self.models[file].last(),
                FileOp::Sync { order } => self.models[file].durable(order),
            }
        }
    }

    fn submit(&mut self) {
        let id = self.rng.below(2 * FILES as u64) as usize;
        if self.in_flight[id].is_some() {
            return;
        }
        let file = id % FILES;
        let ino = self.files[file];
        let (op, pending) = if id < FILES {
            (self.change(file, ino), FileOp::Change)
        } else {
            let sync = VolumeOp::Sync { ino, data_only: self.rng.chance(0.5) };
            (sync, FileOp::Sync { order: self.completed[file] })
        };
        let now = self.harness.now();
        let request = VolumeRequest { id: id as u64, op, time: Time(0) };
        self.volume.as_mut().unwrap().submit(now, request).unwrap();
        self.in_flight[id] = Some(pending);
    }

    /// Chooses a change of a file, and tells the model.
    fn change(&mut self, file: usize, ino: Ino) -> VolumeOp {
        let bytes = SECTORS * SECTOR;
        let size = self.sizes[file];
        let kind = self.rng.below(100);
        let shift = self.rng.below(u64::from((self.unit / 4096).ilog2()) + 1);
        let whole = 4096 << shift;
        let (from, len) = match kind {
            // Hot pages, any page, and the page at or behind the end.
            0..30 => (self.rng.below(4) * whole, whole),
            30..45 => (self.rng.below(bytes / whole) * whole, whole),
            45..62 => (size.min(bytes - whole) / whole * whole, whole),
            62..78 => {
                let len = SECTOR * (1 + self.rng.below(8));
                let at = if self.rng.chance(0.5) { size } else { self.rng.below(bytes) };
                (at.min(bytes - len) / SECTOR * SECTOR, len)
            }
            78..84 => {
                let len = SECTOR * (1 + self.rng.below(200));
                let align = if self.rng.chance(0.5) { 4096 } else { SECTOR };
                (self.rng.below(bytes - len) / align * align, len)
            }
            84..91 => {
                let to = self.rng.below(size / SECTOR + 20).min(SECTORS) * SECTOR;
                let zeros = vec![0; (SECTORS - to / SECTOR) as usize];
                self.models[file].change((to / SECTOR) as usize, &zeros, false);
                self.sizes[file] = to;
                return VolumeOp::Truncate { ino, size: to };
            }
            91..96 => {
                let (first, count) = (self.rng.below(SECTORS), 1 + self.rng.below(60));
                let count = count.min(SECTORS - first);
                self.models[file].change(first as usize, &vec![0; count as usize], false);
                return VolumeOp::Punch { ino, offset: first * SECTOR, len: count * SECTOR };
            }
            _ => {
                let offset = self.rng.below(bytes - 1);
                let len = 1 + self.rng.below(bytes - offset);
                let keep_size = self.rng.chance(0.5);
                if !keep_size {
                    self.sizes[file] = size.max(offset + len).next_multiple_of(SECTOR);
                }
                let end = (offset + len).next_multiple_of(SECTOR);
                return VolumeOp::Allocate { ino, offset, len: end - offset, keep_size };
            }
        };
        self.sizes[file] = size.max(from + len);
        let values: Vec<u64> = (1..=len / SECTOR).map(|i| self.value + i).collect();
        self.value += len / SECTOR;
        let is_whole = kind < 62;
        self.seen.whole_writes += u64::from(is_whole);
        self.models[file].change((from / SECTOR) as usize, &values, is_whole);
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes().repeat(64)).collect();
        let (region, at) = self.region.as_ref().unwrap();
        region.write(file * DATA, &data);
        let iova = at.offset((file * DATA) as u64);
        VolumeOp::Write { ino, offset: from, data: RequestBuffer { iova, len: len as u32 } }
    }

    fn cut(&mut self) {
        self.seen.cuts += 1;
        let volume = self.volume.take().unwrap();
        self.seen.journaled += volume.stats().whole_writes_journaled;
        self.harness.cut(volume.into_device());
        self.in_flight = [None; 2 * FILES];
        let device = self.harness.attach();
        self.mount(device);
        for file in 0..FILES {
            let ino = self.files[file];
            let found = self.contents(file, ino);
            match self.models[file].restart(&found) {
                Ok(()) => {}
                Err(AtomicityViolation::Torn { .. }) if self.may_tear => self.seen.torn += 1,
                Err(wrong) => panic!("file {file} after {} cuts: {wrong}", self.seen.cuts),
            }
            self.completed[file] = 0;
        }
    }

    fn contents(&mut self, file: usize, ino: Ino) -> Vec<Option<u64>> {
        let size = self.volume.as_ref().unwrap().stat(ino).unwrap().size;
        self.sizes[file] = size;
        let mut found = vec![Some(0); SECTORS as usize];
        let (mut at, mut sector) = (0, [0; SECTOR as usize]);
        while at < size {
            let len = (size - at).min(DATA as u64);
            let iova = self.region.as_ref().unwrap().1;
            let data = RequestBuffer { iova, len: len as u32 };
            let read = self.run_now(VolumeOp::Read { ino, offset: at, data });
            assert_eq!(read, Ok(OpResult::Bytes { offset: at, len: len as u32 }));
            let (region, _) = self.region.as_ref().unwrap();
            for i in 0..len / SECTOR {
                region.read((i * SECTOR) as usize, &mut sector);
                let value = u64::from_le_bytes(*sector.first_chunk().unwrap());
                assert!(sector.chunks(8).all(|word| word == &sector[..8]), "a sector is mixed");
                found[((at / SECTOR) + i) as usize] = Some(value);
            }
            at += len;
        }
        found
    }

    fn run(mut self) -> Seen {
        let eager = self.rng.below(10);
        for _ in 0..200 + self.rng.below(400) {
            self.submit();
            for _ in 0..self.rng.below(eager + 1) {
                if self.in_flight.iter().all(Option::is_none) && self.rng.chance(0.9) {
                    break;
                }
                self.step();
            }
            if self.rng.chance(0.02) {
                self.cut();
            }
        }
        self.cut();
        self.seen
    }
}

/// Seeds that found errors: a file's new block in flight before a journaled one.
const REGRESSIONS: [u64; 1] = [1026];

fn run(cases: u64, name: &str, case: impl Fn(u64) -> Seen) -> Seen {
    let replay = format!("cargo test -p sluice-volume --test suite whole_writes::{name}");
    let run = run_seeds(cases, &REGRESSIONS, &replay, case);
    let all = run.results.into_iter().fold(Seen::default(), |a, b| Seen {
        cuts: a.cuts + b.cuts,
        torn: a.torn + b.torn,
        whole_writes: a.whole_writes + b.whole_writes,
        journaled: a.journaled + b.journaled,
        recovered: a.recovered + b.recovered,
    });
    println!("{name}: {all:?}");
    all
}

/// Blocks of a unit, of the device's longest atomic write and of its boundary.
fn shape(seed: u64) -> (u32, u32, u32) {
    [(2, 2, 0), (4, 4, 4), (4, 8, 8), (4, 7, 0), (8, 12, 0), (16, 16, 16), (16, 24, 0), (1, 1, 0)]
        [(seed / 2 % 8) as usize]
}

fn case_in_memory(seed: u64) -> Seen {
    let (unit, longest, boundary) = shape(seed);
    let block_sectors = if seed.is_multiple_of(2) { 8 } else { 1 };
    let atomic = AtomicLimits {
        sectors: longest.max(2 / block_sectors) * block_sectors,
        boundary_sectors: boundary * block_sectors,
    };
    let harness = RamHarness::with_atomic(seed, 2048, atomic);
    let shape = FormatOptions {
        uuid: seed.into(),
        journal_blocks: Some(if unit > 4 { 160 } else { 64 }),
        unit: Some(unit * 4096),
        ..FormatOptions::default()
    };
    Case::new(seed, harness, &shape, false).run()
}

#[test]
fn no_write_is_torn_on_a_device_that_loses_what_it_may() {
    let seen = run(600, "no_write_is_torn_on_a_device_that_loses_what_it_may", case_in_memory);
    let is_single = std::env::var_os("SLUICE_SEED").is_some();
    assert!(is_single || seen.journaled > 100 && seen.recovered > 100, "{seen:?}");
}

#[test]
fn writes_are_torn_on_a_device_without_atomic_writes() {
    let seen = run(40, "writes_are_torn_on_a_device_without_atomic_writes", |seed| {
        let harness = RamHarness::with_atomic(seed, 2048, AtomicLimits::NONE);
        let shape = FormatOptions {
            journal_blocks: Some(64),
            unit: Some(16384),
            ..FormatOptions::default()
        };
        Case::new(seed, harness, &shape, true).run()
    });
    assert!(seen.torn > 10, "{seen:?}");
}

fn case_on_drive(seed: u64, atomic_writes: bool) -> Seen {
    let unit = [8192, 16384, 32768, 65536][(seed / 2 % 4) as usize];
    let harness = DriveHarness::with_units(seed, unit, atomic_writes);
    let shape = FormatOptions {
        uuid: seed.into(),
        journal_blocks: Some(160),
        unit: (!atomic_writes).then_some(unit),
        ..FormatOptions::default()
    };
    Case::new(seed, harness, &shape, !atomic_writes).run()
}

#[test]
fn no_write_is_torn_on_an_emulated_drive_with_atomic_writes() {
    let seen = run(120, "no_write_is_torn_on_an_emulated_drive_with_atomic_writes", |seed| {
        case_on_drive(seed, true)
    });
    assert!(seen.cuts > 0, "{seen:?}");
}

#[test]
fn writes_are_torn_on_an_emulated_drive_without_atomic_writes() {
    let seen = run(30, "writes_are_torn_on_an_emulated_drive_without_atomic_writes", |seed| {
        case_on_drive(seed, false)
    });
    assert!(seen.torn > 0, "{seen:?}");
}
