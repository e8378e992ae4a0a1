//! Random concurrent requests that overlap, with failures and power cuts, compared with an oracle
//! that keeps the possible values of every sector.

// guarantee: D-43

use block::{BlockDevice, Op, Request};
use ftl::{
    FtlConfig, GcReadPriority, LineMetadata, P2lLocation, RateLimiterKind, VictimPolicyKind,
};
use media::{ChunkId, InjectedFault, PhysSector};
use nvme::Status;
use pblk::Rrpc;
use rng::Rng;
use testkit::oracle::{Change, DeviceModel, SearchOrder, run_seeds};

use super::harness::{Bench, SECTOR, Shape, config};

const LONGEST: u64 = 150;
const BUFFERS: usize = 12;
/// Steps with progress between checks of the invariants. A check scans the lists of overlapping
/// requests and the map; after every step it takes 23 times the CPU time of the test.
const CHECK_MOVES: u64 = 128;

#[derive(Clone, Debug)]
enum Kind {
    Change { change: Change, durable: bool },
    Read,
    Flush { marks: Vec<u64> },
}

#[derive(Clone, Debug)]
struct Outstanding {
    lba: u64,
    sectors: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    cuts: u64,
    reclaimed: u64,
    waited: u64,
    trims_sent: u64,
    failures: u64,
    lost: u64,
}

struct Case {
    bench: Bench,
    config: FtlConfig,
    chunks: u32,
    oracle: DeviceModel,
    outstanding: Vec<Option<Outstanding>>,
    rng: Rng,
    value: u64,
    /// Programs, erases and chunks fail; sectors become unreadable.
    failing: bool,
    lossy: bool,
    moves: u64,
    counts: Counts,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut rng = Rng::new(seed);
        let pages = 2 * (2 + rng.below(5) as u32);
        let shape = Shape {
            channels: 1 + rng.below(3) as u32,
            pus: 1 + rng.below(3) as u32,
            chunks: 24 + rng.below(16) as u32,
            pages,
            sectors: [1, 2, 4, 6][rng.below(4) as usize],
            pair: (rng.below(4) as u32).min(pages - 1),
        };
        let policies =
            [VictimPolicyKind::CostWear, VictimPolicyKind::CostWear, VictimPolicyKind::Greedy];
        let ftl = FtlConfig {
            over_provisioning: 0.1 + rng.f64() * 0.5,
            active_pus: rng.below(u64::from(shape.channels * shape.pus) + 1) as u32,
            victim_policy: policies[rng.below(3) as usize],
            hot_cold: rng.chance(0.5),
            hot_stream: false,
            gc_low_watermark_lines: 1 + rng.below(2) as u32,
            gc_high_watermark_lines: 1 + rng.below(3) as u32,
            write_buffer_sectors: 0,
            // It determines the number of sequence numbers reserved at a time.
            checkpoint_sectors: [0, 1, 200, 1_000][rng.below(4) as usize],
            gc_queue_depth_units: rng.below(20) as u32,
            map_cache_sectors: 0,
            instance_id: 0,
            dynamic_wear_leveling: rng.chance(0.7),
            // No effect: the drive has the map.
            line_metadata: if !seed.is_multiple_of(2) {
                LineMetadata::Off
            } else {
                LineMetadata::Auto
            },
            p2l_location: P2lLocation::Memory,
            static_wear_leveling: [0, 1, 4][seed as usize % 3],
            rate_limiter: if seed % 5 < 2 {
                RateLimiterKind::PID
            } else {
                RateLimiterKind::Proportional
            },
            gc_read_priority: [GcReadPriority::Off, GcReadPriority::PerPu, GcReadPriority::Global]
                [(seed % 3) as usize],
            vector_copy: false,
            atomic_writes: false,
            owner_bytes: 0,
            addressing: ftl::SectorAddressing::Logical,
        };
        let mut bench = Bench::new(config(shape, true));
        bench.depth = [4, 16, 256][rng.below(3) as usize];
        bench.open(ftl);
        let sectors = bench.rrpc().limits().sectors;
        let oracle = DeviceModel::new(sectors, SearchOrder::NewestFirst);
        let failing = rng.chance(0.35);
        Case {
            bench,
            config: ftl,
            chunks: shape.channels * shape.pus * shape.chunks,
            oracle,
            outstanding: vec![None; BUFFERS],
            value: 0,
            lossy: failing && rng.chance(0.5),
            failing,
            rng,
            moves: 0,
            counts: Counts::default(),
        }
    }

    fn offset(buffer: usize) -> usize {
        buffer * LONGEST as usize * SECTOR
    }

    fn step(&mut self, steps: u64) {
        for _ in 0..steps {
            let moved = self.bench.step();
            self.moves += u64::from(moved);
            if moved && self.moves.is_multiple_of(CHECK_MOVES) {
                self.check();
            }
        }
        for done in self.bench.drain_completed() {
            let ended = self.outstanding[done.tag as usize].take().expect("outstanding");
            self.on_complete(done.tag as usize, ended, done.status);
        }
    }

    /// Checks the invariants, also with requests and commands in flight.
    fn check(&self) {
        let rrpc = self.bench.rrpc();
        assert_eq!(rrpc.check_invariants(), Ok(()));
        assert_eq!(rrpc.ftl().check_invariants(), Ok(()));
    }

    fn wait_for(&mut self, mut until: impl FnMut(&Case) -> bool) {
        for _ in 0..1_000_000 {
            if until(self) {
                return;
            }
            self.step(1);
        }
        let (now, next) = (self.bench.now, time::Component::deadline(&self.bench.drive));
        let on_queue = self.bench.rrpc().queue().outstanding();
        let state = self.bench.rrpc().ftl().debug_state();
        panic!(
            "never ends: at {now:?}, drive due at {next:?}, {on_queue} commands outstanding, {:?}: \
             {state} {:?}",
            self.config.victim_policy, self.outstanding
        );
    }

    fn range(&mut self) -> (u64, u32) {
        let all = self.oracle.sector_count();
        let longest = if self.rng.chance(0.05) { LONGEST } else { 12 };
        let n = 1 + self.rng.below(longest.min(all));
        let span = if self.rng.chance(0.5) { all / 8 } else { all }.max(n);
        (self.rng.below(span - n + 1), n as u32)
    }

    fn submit(&mut self, lba: u64, sectors: u32, kind: Kind, request: Request) {
        self.wait_for(|c| c.outstanding.iter().any(Option::is_none));
        let buffer = self.outstanding.iter().position(Option::is_none).unwrap();
        match kind {
            Kind::Change { change, .. } => {
                self.bench.put(Case::offset(buffer), sectors, change.first.value);
            }
            Kind::Read => self.bench.scribble(Case::offset(buffer), sectors),
            Kind::Flush { .. } => {}
        }
        let mut request = Request { tag: buffer as u64, ..request };
        if matches!(request.op, Op::Read | Op::Write) {
            request.data = self.bench.payload_at(Case::offset(buffer));
        }
        self.outstanding[buffer] = Some(Outstanding { lba, sectors, kind });
        self.bench.send(request);
    }

    fn change(&mut self) {
        // Waits for a free entry first, so that the order of submission matches the order of
        // values.
        self.wait_for(|c| c.outstanding.iter().any(Option::is_none));
        let (lba, n) = self.range();
        let what = self.rng.below(100);
        let zeros = what < 25;
        let value = if zeros { 0 } else { self.value + 1 };
        self.value += if zeros { 0 } else { u64::from(n) };
        let change = self.oracle.send(lba, n, value);
        let may_unmap = what < 20;
        let durable = !may_unmap && self.rng.chance(0.1);
        let nowhere = self.bench.payload();
        let request = match what {
            0..15 => Request::discard(lba, n, 0),
            15..25 => Request { fua: durable, ..Request::write_zeroes(lba, n, may_unmap, 0) },
            _ => Request { fua: durable, ..Request::write(lba, n, nowhere, 0) },
        };
        self.submit(lba, n, Kind::Change { change, durable }, request);
    }

    fn read(&mut self, lba: u64, n: u32) {
        let nowhere = self.bench.payload();
        self.submit(lba, n, Kind::Read, Request::read(lba, n, nowhere, 0));
    }

    fn flush(&mut self) {
        self.wait_for(|c| c.outstanding.iter().any(Option::is_none));
        let marks = self.oracle.flush_marks();
        self.submit(0, 0, Kind::Flush { marks }, Request::flush(0));
    }

    fn on_complete(&mut self, buffer: usize, ended: Outstanding, status: Status) {
        let Outstanding { lba, sectors, kind } = ended;
        let full = self.failing && status.is(Status::CAPACITY_EXCEEDED);
        let lost = self.lossy && matches!(kind, Kind::Read) && status.is_media_error();
        assert!(status.is_success() || full || lost, "{status} for {kind:?} {:?}", self.config);
        match kind {
            Kind::Change { change, durable } => {
                self.oracle.complete(change, status.is_success(), durable);
            }
            Kind::Read if lost => self.counts.lost += 1,
            Kind::Read => {
                // The current values: earlier requests have completed, later ones have not started.
                for (i, expected) in self.oracle.expected(lba, sectors).into_iter().enumerate() {
                    let value = self.bench.value_at(Case::offset(buffer) + i * SECTOR);
                    let lba = lba + i as u64;
                    let result = self.oracle.observe(lba, value, expected);
                    result.unwrap_or_else(|wrong| panic!("sector {lba} {wrong}"));
                }
            }
            Kind::Flush { marks } if status.is_success() => self.oracle.flushed(&marks),
            Kind::Flush { .. } => {}
        }
    }

    fn fail(&mut self) {
        let chunk = ChunkId(self.rng.below(self.chunks.into()) as u32);
        let what = self.rng.below(10);
        let sectors = self.bench.drive.nand_mut().unwrap().layout().sector_count();
        let phys = PhysSector(self.rng.below(sectors.into()) as u32);
        let lossy = self.lossy;
        let nand = self.bench.drive.nand_mut().unwrap();
        self.counts.failures += 1;
        match what {
            0..5 => nand.inject(InjectedFault::NextProgram).unwrap(),
            5..7 => nand.inject(InjectedFault::NextErase).unwrap(),
            7..9 if lossy => nand.inject(InjectedFault::Uncorrectable { phys }).unwrap(),
            9 if lossy => nand.inject(InjectedFault::ChunkBad { chunk }).unwrap(),
            _ => {}
        }
    }

    fn record_counts(&mut self) {
        let rrpc = self.bench.rrpc();
        self.counts.reclaimed += rrpc.stats().lines_reclaimed;
        self.counts.waited += rrpc.overlap_stats().waited;
        self.counts.trims_sent += rrpc.stats().trims_synced;
        assert_eq!(rrpc.queue().spurious_completions(), 0);
        assert_eq!(rrpc.stats().metadata, 0);
    }

    fn cut_power(&mut self) {
        self.counts.cuts += 1;
        self.check();
        self.record_counts();
        self.bench.power_cycle();
        self.outstanding.fill(None);
        // Recoveries may be interrupted as well.
        for _ in 0..self.rng.below(3) {
            let turns = self.rng.below(60);
            self.bench.open_cut(self.config, turns);
            self.bench.power_cycle();
        }
        self.bench.try_open(self.config).unwrap_or_else(|e| panic!("{e}"));
        self.check();
        let sectors = self.oracle.sector_count();
        assert_eq!(self.bench.rrpc().limits().sectors, sectors, "the capacity stays");
        self.oracle.cut_power();
        let step = if self.lossy { 1 } else { 50 };
        for lba in (0..sectors).step_by(step) {
            self.read(lba, (step as u64).min(sectors - lba) as u32);
        }
        self.wait_for(|c| c.outstanding.iter().all(Option::is_none));
        let unread = self.oracle.settle();
        assert!(self.lossy || unread == 0, "{unread} sectors are not read");
    }

    fn run(&mut self) {
        for _ in 0..200 + self.rng.below(1_000) {
            match self.rng.below(1000) {
                0..640 => self.change(),
                640..690 => self.flush(),
                690..990 => {
                    let (lba, n) = self.range();
                    self.read(lba, n);
                }
                990..996 if self.failing => self.fail(),
                990..996 => {}
                _ => self.cut_power(),
            }
            if self.rng.chance(0.6) {
                let steps = self.rng.below(12);
                self.step(steps);
            }
        }
        self.flush();
        self.wait_for(|c| c.outstanding.iter().all(Option::is_none));
        for _ in 0..3_000 {
            self.step(1);
        }
        assert!(self.bench.rrpc().is_idle() || self.failing);
        self.cut_power();
        self.record_counts();
    }
}

#[test]
fn everything_flushed_survives_and_nothing_else_appears() {
    let replay = "cargo test -p sluice-pblk rrpc::oracle";
    let run = run_seeds(100, &[], replay, |seed| {
        let mut case = Case::new(seed);
        case.run();
        case.counts
    });
    let mut all = Counts::default();
    for c in &run.results {
        all.cuts += c.cuts;
        all.reclaimed += c.reclaimed;
        all.waited += c.waited;
        all.trims_sent += c.trims_sent;
        all.failures += c.failures;
        all.lost += c.lost;
    }
    println!("{all:?}");
    let each = [all.cuts, all.reclaimed, all.waited, all.trims_sent, all.failures, all.lost];
    assert!(run.is_single || each.iter().all(|n| *n > 0), "{all:?}");
    assert!(Rrpc::config().dynamic_wear_leveling);
}
