//! Random concurrent requests from several cores on one sharded device, with failures and power
//! cuts at any command, compared with an oracle that keeps the possible values of every sector.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-pblk
//! sharded::oracle`. `SLUICE_CASES` sets the number of seeds, `SLUICE_FIRST` the first one.

// guarantee: B-17

use std::any::Any;
use std::sync::Arc;

use crate::open_pblk::OpenPblk;
use block::{
    BlockDevice, BlockLayer, BlockLayerConfig, DeviceDriver, Extent, ExtentState, Features, Op,
    Payload, QueueModel, QueueTopology, Request, StagingScope,
};
use event::Waker;
use ftl::FtlConfig;
use mem::{Iova, SharedRegion};
use nvme::Status;
use pblk::{PblkError, ShardHandle, ShardStats, ShardedConfig, ShardedError};
use rng::Rng;
use testkit::open_channel_drive::{MockOpenChannelDrive, geometry};
use testkit::oracle::{Change, DeviceModel, SearchOrder, run_seeds};
use time::{Component, Nanos};

const SECTOR: usize = 512;
/// Maximum number of sectors of a request, and of outstanding requests.
const LONGEST: u64 = 120;
const BUFFERS: usize = 12;
/// Steps with progress between checks of the invariants. A check scans each core's tables of 4096
/// requests and its map; after every step it takes over 16 times the CPU time of the test.
const CHECK_MOVES: u64 = 64;

#[derive(Clone, Debug)]
enum Kind {
    Change { change: Change, durable: bool },
    Read { expected: Vec<Option<u64>> },
    Flush { marks: Vec<u64> },
}

#[derive(Clone, Debug)]
struct Outstanding {
    lba: u64,
    sectors: u32,
    kind: Kind,
}

/// The layer that the cores submit to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Above {
    /// Each core to its shard.
    Shards,
    /// `sq`, with the shards as its hardware queue.
    SingleQueue { cores: u16 },
    /// `mq`, with up to one hardware queue per shard.
    MultiQueue { cores: u16, staging: StagingScope },
}

impl Above {
    /// Opens the layer above the shards; returns a device per core.
    fn open(self, shards: Vec<ShardHandle>) -> Vec<Box<dyn BlockDevice>> {
        let (queue_model, cores, queues) = match self {
            Above::Shards => return shards.into_iter().map(|s| Box::new(s) as Box<_>).collect(),
            Above::SingleQueue { cores } => (QueueModel::SingleQueue, cores, 1),
            Above::MultiQueue { cores, staging } => {
                (QueueModel::MultiQueue { staging }, cores, shards.len().min(cores.into()))
            }
        };
        let topology = QueueTopology::flat(cores);
        let config = BlockLayerConfig { queue_model, topology, ..BlockLayerConfig::default() };
        let total = shards.len();
        let mut shards = shards.into_iter();
        let size = |queue: usize| (queue + 1) * total / queues - queue * total / queues;
        let devices = (0..queues).map(|i| ShardGroup(shards.by_ref().take(size(i)).collect()));
        let features = Features {
            segments: 0,
            fua: true,
            discard: true,
            write_zeroes: true,
            extents: true,
            atomic: driver::AtomicLimits::NONE,
        };
        let mut driver = DeviceDriver::new(devices.collect(), features).unwrap();
        let (_, ends) = BlockLayer::open(&mut driver, &config).unwrap();
        ends.into_iter().map(|end| Box::new(end) as Box<dyn BlockDevice>).collect()
    }
}

/// Shards that one hardware queue polls. It submits to the first.
#[derive(Debug)]
struct ShardGroup(Vec<ShardHandle>);

impl Component for ShardGroup {
    fn poll(&mut self, now: Nanos) -> bool {
        self.0.iter_mut().fold(false, |moved, shard| shard.poll(now) | moved)
    }

    fn deadline(&self) -> Nanos {
        self.0.iter().map(Component::deadline).min().unwrap()
    }
}

impl BlockDevice for ShardGroup {
    block::delegate_block_device!(self => self.0[0]; limits, submit, reap, memory, can_wake);
    block::answer_block_device!(enable_sharing: {}, can_wait: false);

    fn set_waker(&mut self, waker: Waker) {
        self.0.iter_mut().for_each(|shard| shard.set_waker(waker.clone()));
    }

    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any)) {
        self.0.iter_mut().for_each(|shard| shard.visit_layers(visit));
    }
}

/// Calls `visit` with each shard, through the layer above.
fn for_each_shard(cores: &mut [Box<dyn BlockDevice>], mut visit: impl FnMut(&mut ShardHandle)) {
    for core in cores {
        core.visit_layers(&mut |layer| {
            if let Some(shard) = layer.downcast_mut() {
                visit(shard);
            }
        });
    }
}

struct Case {
    drive: MockOpenChannelDrive,
    above: Above,
    cores: Vec<Box<dyn BlockDevice>>,
    config: ShardedConfig,
    depth: u16,
    memory: Arc<SharedRegion>,
    at: Iova,
    oracle: DeviceModel,
    outstanding: Vec<Option<Outstanding>>,
    rng: Rng,
    failing: bool,
    cuts: u64,
    moves: u64,
    total: ShardStats,
}

impl Case {
    fn new(seed: u64, above: Above) -> Case {
        let mut rng = Rng::new(seed);
        let shards = 1 + rng.below(4) as u32;
        let (channels, pus) = (1 + rng.below(3) as u32, 1 + rng.below(3) as u32);
        let unit = [1, 2, 4][rng.below(3) as usize];
        let units = 4 + rng.below(6) as u32;
        let pair = [0, 0, 1, 2, 3][rng.below(5) as usize].min(units - 1) * unit;
        // Each shard has as many chunks as a single one would need.
        let share = if (channels * pus).is_multiple_of(shards) { 1 } else { shards };
        let chunks = (36 + rng.below(12) as u32) * share;
        let geometry = geometry(channels, pus, chunks, unit * units, unit, pair);
        let ftl = FtlConfig {
            over_provisioning: 0.1 + rng.f64() * 0.4,
            hot_cold: rng.chance(0.5),
            checkpoint_sectors: [0, 1, 200][rng.below(3) as usize],
            ..FtlConfig::default()
        };
        let config = ShardedConfig { shards, stripe_sectors: 1 << rng.below(4), ftl };
        let mut drive = MockOpenChannelDrive::new(geometry, true, seed ^ 0xf1a5);
        drive.options.reads_first = rng.chance(0.5);
        drive.options.mdts_sectors = [4, 16, 64][rng.below(3) as usize];
        for _ in 0..rng.below(3) {
            drive.spoil(rng.below(geometry.total_chunks()) as u32);
        }
        let failing = rng.chance(0.2);
        let depth = [4, 16, 256][rng.below(3) as usize];
        let memory = SharedRegion::anonymous(BUFFERS * LONGEST as usize * SECTOR).unwrap();
        let mut case = Case {
            drive,
            above,
            cores: Vec::new(),
            config,
            depth,
            memory,
            at: Iova(0),
            oracle: DeviceModel::new(0, SearchOrder::NewestFirst),
            outstanding: vec![None; BUFFERS],
            rng,
            failing,
            cuts: 0,
            moves: 0,
            total: ShardStats::default(),
        };
        case.open_after_cuts();
        let sectors = case.cores[0].limits().sectors;
        case.oracle = DeviceModel::new(sectors, SearchOrder::NewestFirst);
        if failing {
            (case.drive.faults.program_fail, case.drive.faults.erase_fail) = (0.001, 0.003);
        }
        case
    }

    /// Opens the drive, possibly in several attempts with power cuts.
    fn open_after_cuts(&mut self) {
        for _ in 0..self.rng.below(3) {
            self.drive.faults.cut_after = Some(self.drive.stats.fetched + self.rng.below(40));
            match self.drive.open_sharded(self.config, self.depth) {
                Ok(_)
                | Err(ShardedError::Drive(PblkError::Command {
                    status: Status::POWER_LOSS, ..
                }))
                | Err(ShardedError::Shard {
                    source: PblkError::Command { status: Status::POWER_LOSS, .. },
                    ..
                }) => {}
                Err(e) => panic!("{e}"),
            }
            self.drive.cut_power();
        }
        let sharded = self.drive.open_sharded(self.config, self.depth).expect("it opens");
        self.cores = self.above.open(sharded.into_shards());
        self.at = self.cores[0].memory().register(&self.memory).unwrap();
    }

    fn describe(&mut self) -> String {
        let mut states = Vec::new();
        for_each_shard(&mut self.cores, |c| {
            let ftl = c.pblk().ftl();
            states.push(format!("{:?} {:?} {}", c.stats(), ftl.stats(), ftl.debug_state()));
        });
        let Case { failing, cuts, config, above, .. } = self;
        format!("(failing {failing}, {cuts} cuts, {config:?}, {above:?}, {states:#?})")
    }

    /// Runs polls of the cores in any order, completions, and steps of the drive.
    fn step(&mut self, steps: u64) {
        let mut moved = false;
        let first = self.rng.below(self.cores.len() as u64) as usize;
        for i in 0..self.cores.len() {
            let core = (first + i) % self.cores.len();
            if !self.rng.chance(0.8) && steps > 0 && self.cores.len() > 1 {
                moved = true;
                continue;
            }
            moved |= self.cores[core].poll(Nanos(0));
            while let Some(done) = self.cores[core].reap() {
                let ended = self.outstanding[done.tag as usize].take().expect("outstanding");
                self.on_complete(done.tag as usize, ended, done.status);
                moved = true;
            }
        }
        moved |= self.drive.fetch();
        for _ in 0..steps {
            moved |= self.drive.step();
        }
        self.moves += u64::from(moved);
        if moved && self.moves.is_multiple_of(CHECK_MOVES) {
            self.check();
        }
        if !moved && steps > 0 && self.outstanding.iter().any(Option::is_some) {
            let again = self.cores.iter_mut().fold(false, |m, c| c.poll(Nanos(0)) | m);
            assert!(again, "stuck: {}", self.describe());
        }
    }

    /// Checks the invariants of every shard, also with requests and commands in flight.
    fn check(&mut self) {
        let mut broken = None;
        for_each_shard(&mut self.cores, |core| {
            let shard = core.check_invariants().map_err(|e| format!("{e:?}"));
            let ftl = core.pblk().ftl().check_invariants().map_err(|e| format!("{e:?}"));
            broken = broken.take().or(shard.and(ftl).err());
        });
        assert!(broken.is_none(), "{broken:?} {}", self.describe());
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

    fn offset(buffer: usize) -> usize {
        buffer * LONGEST as usize * SECTOR
    }

    fn submit(&mut self, lba: u64, sectors: u32, kind: Kind, request: Request) {
        self.wait_for(|c| c.outstanding.iter().any(Option::is_none));
        let buffer = self.outstanding.iter().position(Option::is_none).unwrap();
        let offset = Case::offset(buffer);
        for i in 0..sectors as usize {
            let word = match kind {
                Kind::Change { change, .. } if change.first.value > 0 => {
                    change.first.value + i as u64
                }
                _ => 0xeeee_eeee_eeee,
            };
            for at in (0..SECTOR).step_by(8) {
                self.memory.write(offset + i * SECTOR + at, &word.to_le_bytes());
            }
        }
        let data = match request.op {
            Op::Read | Op::Write => Payload::Contiguous(self.at.offset(offset as u64)),
            _ => Payload::BitBucket,
        };
        self.outstanding[buffer] = Some(Outstanding { lba, sectors, kind });
        let core = self.rng.below(self.cores.len() as u64) as usize;
        let request = Request { tag: buffer as u64, data, ..request };
        self.cores[core].submit(Nanos(0), request).expect("room for a request");
    }

    /// Returns a range that no outstanding request touches, except reads for a read.
    fn range(&mut self, reading: bool) -> (u64, u32) {
        let all = self.oracle.sector_count();
        let longest = if self.rng.chance(0.1) { LONGEST } else { 12 };
        let n = 1 + self.rng.below(longest.min(all));
        let span = if self.rng.chance(0.5) { all / 8 } else { all }.max(n);
        let lba = self.rng.below(span - n + 1);
        let touches = move |o: &Outstanding| {
            let harmless = reading && matches!(o.kind, Kind::Read { .. })
                || matches!(o.kind, Kind::Flush { .. });
            !harmless && o.lba < lba + n && lba < o.lba + u64::from(o.sectors)
        };
        self.wait_for(|c| !c.outstanding.iter().flatten().any(touches));
        (lba, n as u32)
    }

    fn change(&mut self) {
        let (lba, n) = self.range(false);
        let what = self.rng.below(100);
        let value = if what < 20 { 0 } else { self.oracle.next_order() };
        let change = self.oracle.send(lba, n, value);
        let durable = what >= 15 && self.rng.chance(0.1);
        let request = match what {
            0..10 => Request::discard(lba, n, 0),
            10..15 => Request::write_zeroes(lba, n, true, 0),
            15..20 => Request::write_zeroes(lba, n, false, 0),
            _ => Request::write(lba, n, Payload::BitBucket, 0),
        };
        let kind = Kind::Change { change, durable };
        self.submit(lba, n, kind, Request { fua: durable, ..request });
    }

    fn read(&mut self, lba: u64, n: u32) {
        let expected = self.oracle.expected(lba, n);
        let request = Request::read(lba, n, Payload::BitBucket, 0);
        self.submit(lba, n, Kind::Read { expected }, request);
    }

    fn flush(&mut self) {
        // Changes in flight are not covered.
        let mut marks = self.oracle.flush_marks();
        for o in self.outstanding.iter().flatten() {
            if let Kind::Change { .. } = o.kind {
                marks[o.lba as usize..][..o.sectors as usize].fill(0);
            }
        }
        self.submit(0, 0, Kind::Flush { marks }, Request::flush(0));
    }

    fn on_complete(&mut self, buffer: usize, ended: Outstanding, status: Status) {
        let Outstanding { lba, kind, .. } = ended;
        let full = self.failing && status.is(Status::CAPACITY_EXCEEDED);
        assert!(status.is_success() || full, "{status} for {kind:?} {}", self.describe());
        match kind {
            Kind::Change { change, durable } => {
                self.oracle.complete(change, status.is_success(), durable);
            }
            Kind::Read { expected } => {
                for (i, expected) in expected.into_iter().enumerate() {
                    let at = Case::offset(buffer) + i * SECTOR;
                    let mut bytes = [0; SECTOR];
                    self.memory.read(at, &mut bytes);
                    let (words, _) = bytes.as_chunks::<8>();
                    let value = u64::from_le_bytes(words[0]);
                    assert!(words.iter().all(|w| *w == words[0]), "a sector of several");
                    let lba = lba + i as u64;
                    let result = self.oracle.observe(lba, value, expected);
                    result.unwrap_or_else(|wrong| panic!("sector {lba} {wrong}"));
                }
            }
            Kind::Flush { marks } if status.is_success() => self.oracle.flushed(&marks),
            Kind::Flush { .. } => {}
        }
    }

    fn count(&mut self) {
        for_each_shard(&mut self.cores, |core| self.total = self.total.plus(core.stats()));
    }

    fn cut_power(&mut self) {
        self.cuts += 1;
        self.check();
        self.count();
        self.drive.cut_power();
        self.outstanding.fill(None);
        self.open_after_cuts();
        self.check();
        let sectors = self.oracle.sector_count();
        assert_eq!(self.cores[0].limits().sectors, sectors, "the capacity stays");
        self.oracle.cut_power();
        for lba in (0..sectors).step_by(50) {
            self.read(lba, 50.min(sectors - lba) as u32);
        }
        self.wait_for(|c| c.outstanding.iter().all(Option::is_none));
        assert_eq!(self.oracle.settle(), 0, "every sector is read");
    }

    /// Checks that the extents of the whole device show the holes.
    fn extents(&mut self) {
        self.wait_for(|c| c.outstanding.iter().all(Option::is_none));
        let (mut lba, all) = (0, self.oracle.sector_count());
        while lba < all {
            let request = Request::extents(lba, (all - lba) as u32, self.at, 0);
            let core = self.rng.below(self.cores.len() as u64) as usize;
            self.cores[core].submit(Nanos(0), request).unwrap();
            let done = loop {
                for core in &mut self.cores {
                    core.poll(Nanos(0));
                }
                self.drive.fetch();
                self.drive.step();
                if let Some(done) = self.cores[core].reap() {
                    break done;
                }
            };
            assert!(done.status.is_success() && done.result > 0);
            for i in 0..done.result as usize {
                let mut bytes = [0; Extent::BYTES];
                self.memory.read(i * Extent::BYTES, &mut bytes);
                let extent = Extent::decode(bytes);
                assert_eq!(extent.lba, lba, "adjacent");
                for sector in self.oracle.range(lba, extent.sectors) {
                    let hole = extent.state == ExtentState::Unmapped;
                    assert!(
                        !hole || sector.now().is_none_or(|w| w.value == 0),
                        "{extent:?} {sector:?}"
                    );
                }
                lba += u64::from(extent.sectors);
            }
        }
        assert_eq!(lba, all);
    }

    fn run(&mut self) {
        for _ in 0..100 + self.rng.below(700) {
            match self.rng.below(1000) {
                0..640 => self.change(),
                640..690 => self.flush(),
                690..992 => {
                    let (lba, n) = self.range(true);
                    self.read(lba, n);
                }
                992..995 => self.extents(),
                _ => self.cut_power(),
            }
            if self.rng.chance(0.6) {
                let steps = self.rng.below(8);
                self.step(steps);
            }
        }
        self.flush();
        self.wait_for(|c| c.outstanding.iter().all(Option::is_none));
        for _ in 0..10_000 {
            self.step(1);
        }
        let mut idle = true;
        for_each_shard(&mut self.cores, |core| idle &= core.is_idle());
        assert!(idle || self.failing, "{}", self.describe());
        self.cut_power();
        self.count();
        let total = self.total;
        assert_eq!(total.aborted, 0);
        assert_eq!(self.config.shards > 1, total.sent > 0, "{total:?}");
    }
}

fn run_oracle(seeds: u64, above: impl Fn(u64) -> Above) {
    let run = run_seeds(seeds, &[], "cargo test -p sluice-pblk sharded::oracle", |seed| {
        let mut case = Case::new(seed, above(seed));
        case.run();
        (case.cuts, case.total)
    });
    let (mut cuts, mut total, count) = (0, ShardStats::default(), run.results.len() as u64);
    for (n, stats) in &run.results {
        (cuts, total) = (cuts + n, total.plus(stats));
    }
    println!("{count} cases, {cuts} power cuts, {total:?}");
    let crossed = total.split > 0 && total.sent > 0 && total.served > 0;
    assert!(count == 1 || cuts > count && crossed, "{cuts} {total:?}");
}

#[test]
fn everything_flushed_survives_on_every_shard() {
    run_oracle(100, |_| Above::Shards);
}

#[test]
fn everything_flushed_survives_beneath_a_block_layer() {
    run_oracle(60, |seed| {
        let cores = 1 + (seed / 2 % 4) as u16;
        let staging = [StagingScope::Core, StagingScope::Device][(seed / 8 % 2) as usize];
        match seed % 2 {
            0 => Above::SingleQueue { cores },
            _ => Above::MultiQueue { cores, staging },
        }
    });
}
