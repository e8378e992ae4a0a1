//! Random concurrent requests, with failures and power cuts, compared with an oracle that keeps the
//! possible values of every sector.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-pblk
//! single_shard::oracle`. `SLUICE_CASES` sets the number of seeds, `SLUICE_FIRST` the first one.

// guarantee: D-01

use std::sync::Arc;

use crate::open_pblk::OpenPblk;
use block::{BlockDevice, Payload, Request};
use ftl::{
    CapacityPlan, FlashGeometry, FtlConfig, GcReadPriority, LineMetadata, P2lLocation,
    RateLimiterKind, VictimPolicyKind,
};
use mem::{Iova, SharedRegion};
use nvme::{Geometry, Status};
use pblk::{Pblk, PblkError};
use rng::Rng;
use testkit::open_channel_drive::{MockOpenChannelDrive, geometry};
use time::{Component, Nanos};

const SECTOR: usize = 512;
/// Maximum number of sectors of a request, and of outstanding requests.
const LONGEST: u64 = 150;
const BUFFERS: usize = 12;

/// A value of a sector, with its position in the order of all writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    order: u64,
    /// 0 stands for zeros.
    value: u64,
}

/// The possible contents of one sector.
#[derive(Clone, Debug)]
struct Sector {
    /// Contents while power is on; `None` after a failure that left them undefined.
    now: Option<Written>,
    /// Possible contents after a power cut, oldest first.
    possible: Vec<Written>,
}

impl Sector {
    fn new(value: u64) -> Sector {
        let written = Written { order: 0, value };
        Sector { now: Some(written), possible: vec![written] }
    }

    /// Excludes all contents older than `order`.
    fn durable_from(&mut self, order: u64) {
        self.possible.retain(|w| w.order >= order);
    }
}

#[derive(Clone, Debug)]
enum Kind {
    /// A write, a trim or zeros: order and value of the first sector; further sectors have
    /// consecutive ones.
    Change {
        order: u64,
        value: u64,
        durable: bool,
    },
    Read {
        expected: Vec<Option<Written>>,
    },
    /// For every sector, the order that must be durable.
    Flush {
        marks: Vec<u64>,
    },
}

#[derive(Clone, Debug)]
struct Outstanding {
    buffer: usize,
    lba: u64,
    sectors: u32,
    kind: Kind,
}

struct Case {
    drive: MockOpenChannelDrive,
    pblk: Pblk,
    config: FtlConfig,
    depth: u16,
    memory: Arc<SharedRegion>,
    at: Iova,
    oracle: Vec<Sector>,
    outstanding: Vec<Option<Outstanding>>,
    rng: Rng,
    order: u64,
    value: u64,
    failing: bool,
    reclaimed: u64,
    cuts: u64,
}

fn fill(memory: &SharedRegion, at: usize, value: u64) {
    for i in 0..SECTOR / 8 {
        let word = if value == 0 { 0 } else { value | (i as u64) << 48 };
        memory.write(at + i * 8, &word.to_le_bytes());
    }
}

/// Returns the value that fills a sector.
fn value_of(memory: &SharedRegion, at: usize) -> u64 {
    let mut bytes = [0; SECTOR];
    memory.read(at, &mut bytes);
    let (words, _) = bytes.as_chunks::<8>();
    let value = u64::from_le_bytes(words[0]);
    for (i, word) in words.iter().enumerate() {
        let expected = if value == 0 { 0 } else { value | (i as u64) << 48 };
        assert_eq!(u64::from_le_bytes(*word), expected, "a sector that is mixed from several");
    }
    value
}

/// Enables line metadata if lines have space for it.
fn with_metadata(config: FtlConfig, geometry: &Geometry) -> FtlConfig {
    let on = FtlConfig { line_metadata: LineMetadata::On, ..config };
    let (shape, total) = (FlashGeometry::from_geometry(geometry), geometry.total_chunks() as u32);
    if CapacityPlan::new(&shape, &on, total, total).is_ok() { on } else { config }
}

/// Places the P2L on the media, in two of three cases in which lines have space for metadata.
fn with_reverse_map(config: FtlConfig, geometry: &Geometry, seed: u64) -> FtlConfig {
    let media = FtlConfig { p2l_location: P2lLocation::Media, ..config };
    let (shape, total) = (FlashGeometry::from_geometry(geometry), geometry.total_chunks() as u32);
    match CapacityPlan::new(&shape, &media, total, total) {
        Ok(_) if !seed.is_multiple_of(3) => media,
        _ => config,
    }
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut rng = Rng::new(seed);
        let (channels, pus) = (1 + rng.below(3) as u32, 1 + rng.below(3) as u32);
        let unit = [1, 2, 4, 6][rng.below(4) as usize];
        let units = 4 + rng.below(8) as u32;
        let pair = [0, 0, 1, 2, 3][rng.below(5) as usize].min(units - 1) * unit;
        let chunks = 24 + rng.below(16) as u32;
        // Larger chunks have space for line metadata.
        let large = if seed % 3 == 1 { 3 } else { 1 };
        let mut geometry = geometry(channels, pus, chunks, unit * units * large, unit, pair);
        geometry.oob_bytes = [16, 16, 24, 64][rng.below(4) as usize];
        let policies =
            [VictimPolicyKind::Greedy, VictimPolicyKind::CostBenefit, VictimPolicyKind::Fifo];
        let config = FtlConfig {
            over_provisioning: 0.07 + rng.f64() * 0.5,
            active_pus: rng.below(u64::from(channels * pus) + 1) as u32,
            victim_policy: policies[rng.below(3) as usize],
            hot_cold: rng.chance(0.5),
            gc_low_watermark_lines: 1 + rng.below(2) as u32,
            gc_high_watermark_lines: 1 + rng.below(3) as u32,
            write_buffer_sectors: 0,
            checkpoint_sectors: [0, 1, 200, 1_000][rng.below(4) as usize],
            gc_queue_depth_units: rng.below(20) as u32,
            // Such a small map is completely in memory, but its pages are read from the drive after
            // a power cut. Regression seeds are not changed.
            map_cache_sectors: if seed % 3 == 1 && !REGRESSIONS.contains(&seed) {
                1 << 20
            } else {
                0
            },
            instance_id: 0,
            dynamic_wear_leveling: seed.is_multiple_of(2),
            line_metadata: LineMetadata::Off,
            p2l_location: P2lLocation::Memory,
            static_wear_leveling: [0, 1, 3][seed as usize % 3],
            rate_limiter: if seed % 5 < 2 {
                RateLimiterKind::PID
            } else {
                RateLimiterKind::Proportional
            },
            gc_read_priority: [GcReadPriority::Off, GcReadPriority::PerPu, GcReadPriority::Global]
                [(seed % 3) as usize],
        };
        let config = if seed % 8 == 7 { config } else { with_metadata(config, &geometry) };
        let config = with_reverse_map(config, &geometry, seed);
        let mut drive = MockOpenChannelDrive::new(geometry, true, seed ^ 0xf1a5);
        drive.options.reads_first = rng.chance(0.5);
        drive.options.mdts_sectors = [6, 16, 64][rng.below(3) as usize];
        for _ in 0..rng.below(3) {
            drive.spoil(rng.below(geometry.total_chunks()) as u32);
        }
        let failing = rng.chance(0.3);
        if failing {
            (drive.faults.program_fail, drive.faults.erase_fail) = (0.002, 0.005);
        }
        // With a shallow queue, commands are deferred.
        let depth = [4, 16, 256][rng.below(3) as usize];
        let pblk = drive.open(config, depth).expect("a geometry that fits");
        let memory = SharedRegion::anonymous(BUFFERS * LONGEST as usize * SECTOR).unwrap();
        let at = pblk.memory().register(&memory).unwrap();
        let oracle = vec![Sector::new(0); pblk.limits().sectors as usize];
        Case {
            drive,
            pblk,
            config,
            depth,
            memory,
            at,
            oracle,
            outstanding: vec![None; BUFFERS],
            rng,
            order: 0,
            value: 0,
            failing,
            reclaimed: 0,
            cuts: 0,
        }
    }

    /// Returns the state, for panic messages.
    fn describe(&self) -> String {
        let (ftl, failing, cuts) = (self.pblk.ftl(), self.failing, self.cuts);
        format!(
            "(failing {failing}, {cuts} power cuts, {:?}, {:?}, {:?}, {:?}, {})",
            self.drive.geometry,
            self.config,
            ftl.capacity_plan(),
            ftl.stats(),
            ftl.debug_state()
        )
    }

    fn offset(&self, buffer: usize) -> usize {
        buffer * LONGEST as usize * SECTOR
    }

    fn range(&mut self) -> (u64, u32) {
        let all = self.oracle.len() as u64;
        let longest = if self.rng.chance(0.05) { LONGEST } else { 12 };
        let n = 1 + self.rng.below(longest.min(all));
        // Half of all requests access an eighth of the sectors.
        let span = if self.rng.chance(0.5) { all / 8 } else { all }.max(n);
        (self.rng.below(span - n + 1), n as u32)
    }

    /// Runs a poll, some steps of the drive, and completions.
    fn step(&mut self, steps: u64) {
        let mut moved = self.pblk.poll(Nanos(0));
        while let Some(done) = self.pblk.reap() {
            let ended = self.outstanding[done.tag as usize].take().expect("outstanding");
            self.on_complete(ended, done.status);
            moved = true;
        }
        moved |= self.drive.fetch();
        for _ in 0..steps {
            moved |= self.drive.step();
        }
        if !moved && steps > 0 && self.outstanding.iter().any(Option::is_some) {
            // If nothing completes, the device itself must report pending work.
            assert!(self.pblk.poll(Nanos(0)), "stuck: {}", self.describe());
        }
    }

    fn wait_for(&mut self, mut until: impl FnMut(&Case) -> bool) {
        for _ in 0..1_000_000 {
            if until(self) {
                return;
            }
            self.step(1);
        }
        panic!("never ends: {}", self.describe());
    }

    fn submit(&mut self, lba: u64, sectors: u32, kind: Kind, request: impl Fn(Payload) -> Request) {
        self.wait_for(|c| c.outstanding.iter().any(Option::is_none));
        let buffer = self.outstanding.iter().position(Option::is_none).unwrap();
        let offset = self.offset(buffer);
        let mut data = Payload::Contiguous(self.at.offset(offset as u64));
        if let Kind::Change { value, .. } = kind {
            for i in 0..u64::from(sectors) {
                let value = if value == 0 { 0 } else { value + i };
                fill(&self.memory, offset + i as usize * SECTOR, value);
            }
        } else {
            self.memory.fill(offset, sectors as usize * SECTOR, 0xee);
        }
        let request = Request { tag: buffer as u64, ..request(data) };
        if request.op == block::Op::Flush {
            data = Payload::BitBucket;
        }
        self.outstanding[buffer] = Some(Outstanding { buffer, lba, sectors, kind });
        self.pblk.submit(Nanos(0), Request { data, ..request }).expect("room for a request");
    }

    /// Waits until no outstanding request touches a range, except reads for a read.
    fn wait_for_range(&mut self, lba: u64, sectors: u32, reading: bool) {
        let end = lba + u64::from(sectors);
        let touches = move |o: &Outstanding| {
            let harmless = reading && matches!(o.kind, Kind::Read { .. })
                || matches!(o.kind, Kind::Flush { .. });
            !harmless && o.lba < end && lba < o.lba + u64::from(o.sectors)
        };
        self.wait_for(|c| !c.outstanding.iter().flatten().any(touches));
    }

    fn change(&mut self) {
        let (lba, n) = self.range();
        self.wait_for_range(lba, n, false);
        let order = self.order + 1;
        self.order += u64::from(n);
        let what = self.rng.below(100);
        let zeros = what < 20;
        let value = if zeros { 0 } else { self.value + 1 };
        self.value += if zeros { 0 } else { u64::from(n) };
        for (i, sector) in (0..).zip(&mut self.oracle[lba as usize..][..n as usize]) {
            let value = if zeros { 0 } else { value + i };
            sector.possible.push(Written { order: order + i, value });
        }
        let may_unmap = what < 15;
        let durable = what >= 10 && !may_unmap && self.rng.chance(0.1);
        let kind = Kind::Change { order, value, durable };
        self.submit(lba, n, kind, |data| match what {
            0..10 => Request::discard(lba, n, 0),
            10..20 => Request { fua: durable, ..Request::write_zeroes(lba, n, may_unmap, 0) },
            _ => Request { fua: durable, ..Request::write(lba, n, data, 0) },
        });
    }

    fn read(&mut self, lba: u64, n: u32) {
        self.wait_for_range(lba, n, true);
        let expected = self.oracle[lba as usize..][..n as usize].iter().map(|s| s.now).collect();
        self.submit(lba, n, Kind::Read { expected }, |data| Request::read(lba, n, data, 0));
    }

    fn flush(&mut self) {
        // After a failure, the flush may cover any of the possible values.
        let mark = |s: &Sector| s.now.map_or(0, |w| w.order);
        let marks = self.oracle.iter().map(mark).collect();
        self.submit(0, 0, Kind::Flush { marks }, |_| Request::flush(0));
    }

    fn on_complete(&mut self, ended: Outstanding, status: Status) {
        let Outstanding { buffer, lba, sectors, kind } = ended;
        let full = self.failing && status.is(Status::CAPACITY_EXCEEDED);
        let possible = status.is_success() || full;
        assert!(possible, "{status} for {kind:?} {}", self.describe());
        let offset = self.offset(buffer);
        let range = lba as usize..lba as usize + sectors as usize;
        match kind {
            Kind::Change { order, value, durable } => {
                for (i, sector) in (0..).zip(&mut self.oracle[range]) {
                    let value = if value == 0 { 0 } else { value + i };
                    let written = Written { order: order + i, value };
                    sector.now = status.is_success().then_some(written);
                    if status.is_success() && durable {
                        sector.durable_from(written.order);
                    }
                }
            }
            Kind::Read { expected } => {
                for (i, (sector, expected)) in
                    self.oracle[range].iter_mut().zip(expected).enumerate()
                {
                    let value = value_of(&self.memory, offset + i * SECTOR);
                    match expected {
                        Some(expected) => {
                            assert_eq!(value, expected.value, "sector {}", lba as usize + i);
                        }
                        None => {
                            let found = sector.possible.iter().find(|w| w.value == value);
                            let known = found.is_some();
                            let copies = || self.drive.copies((lba + i as u64) as u32);
                            let lba = lba + i as u64;
                            assert!(known, "sector {lba} is {value}: {sector:?}{}", copies());
                            sector.now = found.copied();
                        }
                    }
                }
            }
            Kind::Flush { marks } if status.is_success() => {
                for (sector, mark) in self.oracle.iter_mut().zip(marks) {
                    sector.durable_from(mark);
                }
            }
            Kind::Flush { .. } => {}
        }
    }

    fn cut_power(&mut self) {
        self.cuts += 1;
        self.reclaimed += self.pblk.stats().lines_reclaimed;
        self.drive.cut_power();
        self.outstanding.fill(None);
        // Recoveries may be interrupted as well.
        for _ in 0..self.rng.below(3) {
            self.drive.faults.cut_after = Some(self.drive.stats.fetched + self.rng.below(40));
            match self.drive.open(self.config, self.depth) {
                Ok(_) | Err(PblkError::Command { status: Status::POWER_LOSS, .. }) => {}
                Err(e) => panic!("{e}"),
            }
            self.drive.cut_power();
        }
        self.pblk = self.drive.open(self.config, self.depth).expect("a recovery");
        self.at = self.pblk.memory().register(&self.memory).unwrap();
        assert_eq!(self.pblk.limits().sectors, self.oracle.len() as u64, "the capacity stays");
        for sector in &mut self.oracle {
            sector.now = None;
        }
        let sectors = self.oracle.len() as u64;
        for lba in (0..sectors).step_by(50) {
            self.read(lba, 50.min(sectors - lba) as u32);
        }
        self.wait_for(|c| c.outstanding.iter().all(Option::is_none));
        for sector in &mut self.oracle {
            // The recovered value is on the media.
            *sector = Sector::new(sector.now.expect("read").value);
        }
    }

    fn run(&mut self) {
        let requests = 200 + self.rng.below(1_200);
        // A separate generator, so that older seeds keep their meaning.
        let mut controls = Rng::new(requests ^ u64::from(self.config.checkpoint_sectors));
        for _ in 0..requests {
            if controls.chance(0.02) {
                let most = self.pblk.ftl().capacity_plan().active_pus;
                let asked = controls.below(u64::from(most) + 2) as u32;
                assert_eq!(self.pblk.set_active_pus(asked).is_ok(), asked <= most);
            }
            match self.rng.below(1000) {
                0..650 => self.change(),
                650..690 => self.flush(),
                690..996 => {
                    let (lba, n) = self.range();
                    self.read(lba, n);
                }
                _ => self.cut_power(),
            }
            if self.rng.chance(0.6) {
                let steps = self.rng.below(8);
                self.step(steps);
            }
        }
        self.flush();
        self.wait_for(|c| c.outstanding.iter().all(Option::is_none));
        // If the map is written after every sector, map pages and GC relocations can cause each
        // other on fewer parallel units than the reserves were computed for.
        self.pblk.set_active_pus(0).unwrap();
        for _ in 0..10_000 {
            self.step(1);
        }
        assert!(self.pblk.is_idle() || self.failing, "{}", self.pblk.ftl().debug_state());
        assert_eq!(self.pblk.queue().spurious_completions(), 0);
        self.cut_power();
        self.reclaimed += self.pblk.stats().lines_reclaimed;
    }
}

/// Regression seeds: flushed data lost with buffered data that overwrote it, a lack of space
/// despite spare capacity, and GC that never ended.
const REGRESSIONS: [u64; 8] = [649, 1070, 3560, 4458, 5674, 6208, 6282, 13361];

#[test]
fn everything_flushed_survives_and_nothing_else_appears() {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let seeds = match number("SLUICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("SLUICE_FIRST").unwrap_or(0);
            first..first + number("SLUICE_CASES").unwrap_or(150)
        }
    };
    let alone = seeds.end - seeds.start == 1;
    let regressions: &[u64] = if alone { &[] } else { &REGRESSIONS };
    let (mut reclaimed, mut cuts, mut scattered) = (0, 0, 0);
    for seed in regressions.iter().copied().chain(seeds) {
        let result = std::panic::catch_unwind(|| {
            let mut case = Case::new(seed);
            case.run();
            (case.reclaimed, case.cuts, case.drive.stats.scattered)
        });
        match result {
            Ok(counts) => {
                reclaimed += counts.0;
                cuts += counts.1;
                scattered += counts.2;
            }
            Err(panic) => {
                eprintln!(
                    "seed {seed} fails; replay it with SLUICE_SEED={seed} cargo test -p \
                     sluice-pblk single_shard::oracle"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(alone || reclaimed > 0 && cuts > 0 && scattered > 0, "{reclaimed} {cuts} {scattered}");
}
