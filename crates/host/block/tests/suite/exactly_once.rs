//! Every request completes exactly once, on the core that submitted it, with the right data,
//! whatever the device does. `SLUICE_SEED=n` replays one case, `SLUICE_CASES=n` runs that many.

// guarantee: B-01

use crate::common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::{Chaos, Faults, SECTOR, World};
use driver::{Features, HardwareQueue, Limits, LowLevelDriver};
use mem::{Iova, SharedRegion};
use nvme::Status;
use rng::Rng;
use sluice_block::sched::{SchedulerConfig, Scheduling};
use sluice_block::{
    BlockDevice, BlockLayer, BlockLayerConfig, DeviceDriver, Op, Payload, Queue, QueueModel,
    QueueTopology, Raw, Request, STATUS_REMOVED, StagingScope, Timeouts,
};
use time::{Component, Nanos};

/// Number of sectors that belong to each core.
const OWN: u64 = 64;

struct Core<Q: HardwareQueue> {
    queue: Queue<Q>,
    base: u64,
    region: Arc<SharedRegion>,
    at: Iova,
    /// Expected contents of each sector of the core; `None` after a failed write.
    model: Vec<Option<u8>>,
    outstanding: BTreeMap<u64, Request>,
    next_tag: u64,
    completed: u64,
    failed: u64,
}

impl<Q: HardwareQueue> Core<Q> {
    fn new(index: usize, queue: Queue<Q>) -> Core<Q> {
        let region = SharedRegion::anonymous(1 << 20).unwrap();
        let at = queue.memory().register(&region).unwrap();
        Core {
            queue,
            base: index as u64 * OWN,
            region,
            at,
            model: vec![Some(0); OWN as usize],
            outstanding: BTreeMap::new(),
            next_tag: (index as u64) << 32,
            completed: 0,
            failed: 0,
        }
    }

    /// Returns the memory offset of a request: in half of the cases adjacent to the previous one.
    fn memory_offset(&self, tag: u64) -> usize {
        (tag as usize % 20) * (OWN as usize * SECTOR as usize) + (tag as usize % 2) * 1024
    }

    fn overlaps(&self, lba: u64, sectors: u64) -> bool {
        self.outstanding.values().any(|r| {
            let end = r.lba + u64::from(r.sectors);
            r.op != Op::Flush && lba < end && r.lba < lba + sectors
        })
    }

    fn submit(&mut self, now: Nanos, rng: &mut Rng) {
        let tag = self.next_tag;
        // Memory is reused after twenty tags.
        let oldest = self.outstanding.keys().next().copied().unwrap_or(tag);
        if tag - oldest >= 19 {
            return;
        }
        let sectors = if rng.below(8) == 0 { 1 + rng.below(40) } else { 1 + rng.below(3) };
        // Often directly after the previous request, so that they merge.
        let last = self.outstanding.values().rfind(|r| r.op != Op::Flush);
        let follow = last.map(|r| r.lba + u64::from(r.sectors));
        let lba = match follow {
            Some(end) if rng.below(2) == 0 && end + sectors <= self.base + OWN => end,
            _ => self.base + rng.below(OWN - sectors + 1),
        };
        let at = Payload::Contiguous(self.at.offset(self.memory_offset(tag) as u64));
        let sectors = sectors as u32;
        let mut request = match rng.below(20) {
            0 => Request::flush(tag),
            1 => Request::discard(lba, sectors, tag),
            2 => Request::write_zeroes(lba, sectors, true, tag),
            3..10 => Request::write(lba, sectors, at, tag),
            _ => Request::read(lba, sectors, at, tag),
        };
        request.fua = request.op == Op::Write && rng.below(5) == 0;
        if request.op != Op::Flush && self.overlaps(lba, sectors.into()) {
            return;
        }
        let bytes = sectors as usize * SECTOR as usize;
        if request.op == Op::Write {
            self.region.fill(self.memory_offset(tag), bytes, tag as u8 | 1);
        } else {
            self.region.fill(self.memory_offset(tag), bytes, 0xee);
        }
        if self.queue.submit(now, request).is_ok() {
            self.outstanding.insert(tag, request);
            self.next_tag += 1;
        }
    }

    fn reap(&mut self) {
        while let Some(completion) = self.queue.reap() {
            let request = self.outstanding.remove(&completion.tag);
            let request = request.expect("a request completes once, on the core that submitted it");
            self.completed += 1;
            self.check(&request, completion.status);
        }
    }

    fn check(&mut self, request: &Request, status: Status) {
        let first = (request.lba - self.base.min(request.lba)) as usize;
        let own = first..first + request.sectors as usize;
        if !status.is_success() {
            self.failed += 1;
            let expected =
                [Status::UNRECOVERED_READ, Status::ABORTED, Status::NOT_READY, STATUS_REMOVED];
            assert!(expected.contains(&status), "{status}");
            if !matches!(request.op, Op::Read | Op::Flush) {
                self.model[own].fill(None);
            }
            return;
        }
        match request.op {
            Op::Write => self.model[own].fill(Some(request.tag as u8 | 1)),
            Op::Discard | Op::WriteZeroes => self.model[own].fill(Some(0)),
            Op::Read => {
                let mut bytes = vec![0; request.sectors as usize * SECTOR as usize];
                self.region.read(self.memory_offset(request.tag), &mut bytes);
                for (sector, want) in bytes.chunks(SECTOR as usize).zip(&self.model[own]) {
                    if let Some(want) = want {
                        assert!(
                            sector.iter().all(|b| b == want),
                            "{request:?}: {want}, found {}",
                            sector[0]
                        );
                    }
                }
            }
            Op::Flush | Op::Extents => {}
        }
    }
}

/// The device beneath the block layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beneath {
    /// The faulty device.
    Chaos,
    /// Block devices over the queues of a device without lost commands and without removal: those
    /// have no timeouts.
    Devices,
}

fn case(seed: u64, beneath: Beneath) {
    let mut rng = Rng::new(seed);
    let mut pick = |n: u64| rng.below(n);
    let cores = [1, 2, 3, 8][pick(4) as usize];
    let queues = [1, 2, cores][pick(3) as usize].min(cores);
    let layout = match pick(4) {
        0 => QueueModel::SingleQueue,
        1 => QueueModel::MultiQueue { staging: StagingScope::Device },
        2 => QueueModel::MultiQueue { staging: StagingScope::Socket },
        _ => QueueModel::MultiQueue { staging: StagingScope::Core },
    };
    let topology = if cores % 2 == 0 && pick(2) == 0 {
        QueueTopology { sockets: 2, cores: cores as u16 / 2 }
    } else {
        QueueTopology::flat(cores as u16)
    };
    let limits = Limits {
        sector_bytes: SECTOR,
        sectors: cores * OWN,
        max_sectors: [3, 8, 32][pick(3) as usize],
        optimal_sectors: 1,
        queue_depth: [1, 2, 7, 32][pick(4) as usize],
        volatile_cache: pick(2) == 0,
        atomic: driver::AtomicLimits::NONE,
    };
    let features = Features {
        segments: [1, 3, 16][pick(3) as usize],
        fua: pick(2) == 0,
        discard: true,
        write_zeroes: true,
        extents: false,
        atomic: driver::AtomicLimits::NONE,
    };
    let scheduler = ["none", "deadline", "kyber", "fair"][pick(4) as usize];
    let scheduler: SchedulerConfig = scheduler.parse().unwrap();
    let scheduler = Scheduling { scheduler, limits: None };
    let ms = Nanos::from_millis;
    let config = BlockLayerConfig {
        queue_model: layout,
        topology,
        scheduler,
        merge: pick(3) > 0,
        queue_depth: [1, 5, 64][pick(3) as usize],
        timeouts: Timeouts { command: ms(1), abort: ms(1), retries: 1 + pick(4) as u16 },
    };
    let mut chaos = Chaos::new(limits, features, queues as u16, seed);
    let world = chaos.world.clone();
    if pick(3) > 0 {
        world.lock().unwrap().faults = Faults {
            busy: pick(200),
            not_ready: pick(100),
            failed: pick(20),
            lost: pick(20),
            twice: pick(20),
            spurious: pick(50),
            abortable: pick(1000),
        };
    }
    let mut remove_at = (pick(6) == 0).then(|| 200 + pick(400));
    if beneath == Beneath::Devices {
        remove_at = None;
        world.lock().unwrap().faults.lost = 0;
    }
    if std::env::var("SLUICE_SEED").is_ok() {
        eprintln!("{config:?}, {limits:?}, {features:?}, {:?}", world.lock().unwrap().faults);
    }
    let run = CaseRun { config, world, limits, features, remove_at };
    match beneath {
        Beneath::Chaos => run.on(&mut chaos, rng),
        Beneath::Devices => {
            let devices = (0..chaos.queues())
                .map(|queue| Raw::new(chaos.take_queue(queue).unwrap(), limits))
                .collect();
            run.on(&mut DeviceDriver::new(devices, features).unwrap(), rng);
        }
    }
}

/// A block layer with faults beneath it.
struct CaseRun {
    config: BlockLayerConfig,
    world: Arc<Mutex<World>>,
    limits: Limits,
    features: Features,
    remove_at: Option<u64>,
}

impl CaseRun {
    fn on<D: LowLevelDriver>(self, driver: &mut D, mut rng: Rng) {
        let CaseRun { config, world, limits, features, remove_at } = self;
        let opened = BlockLayer::open(driver, &config);
        let (layer, ends) = match opened {
            Ok(opened) => opened,
            Err(sluice_block::BlockError::SeparateStaging { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        let mut cores: Vec<Core<_>> =
            ends.into_iter().enumerate().map(|(i, q)| Core::new(i, q)).collect();
        for core in &mut cores {
            core.queue.trace(1 << 16);
        }
        let mut now = Nanos(1);
        for round in 0..800 {
            if remove_at == Some(round) {
                world.lock().unwrap().removed = true;
            }
            for core in &mut cores {
                for _ in 0..rng.below(4) {
                    core.submit(now, &mut rng);
                }
                // In each iteration, some cores do not poll.
                if rng.below(4) > 0 {
                    core.queue.poll(now);
                }
                if rng.below(3) > 0 {
                    core.reap();
                }
            }
            now += Nanos(rng.below(30_000));
            world.lock().unwrap().now = now;
        }
        // No fault lasts forever: commands are aborted, reset and retried a limited number of times.
        for _ in 0..20_000 {
            let mut moved = false;
            for core in &mut cores {
                moved |= core.queue.poll(now);
                core.reap();
            }
            if cores.iter().all(|c| c.outstanding.is_empty()) {
                break;
            }
            if !moved {
                let next = cores.iter().map(|c| c.queue.deadline()).min().unwrap();
                now = if next == Nanos::MAX || next <= now { now + Nanos(10_000) } else { next };
                world.lock().unwrap().now = now;
            }
        }
        for core in &mut cores {
            if std::env::var("SLUICE_SEED").is_ok() && !core.outstanding.is_empty() {
                for event in core.queue.tracer().into_iter().flat_map(|t| t.events()) {
                    eprintln!("{event:?}");
                }
            }
            assert!(
                core.outstanding.is_empty(),
                "at {now}: {:?}\n{:?}\n{:?}",
                core.outstanding,
                core.queue.dispatch_stats(),
                core.queue.deadline()
            );
            assert_eq!((core.queue.outstanding(), core.queue.stats().in_flight()), (0, 0));
            assert_eq!(core.queue.stats().spurious.get(), 0);
        }
        let world = world.lock().unwrap();
        assert!(world.longest <= limits.max_sectors, "{} sectors in one command", world.longest);
        assert!(world.segments <= features.segments.max(1), "{} segments", world.segments);
        let completed: u64 = cores.iter().map(|c| c.completed).sum();
        let faultless = world.faults.busy + world.faults.lost + world.faults.failed == 0;
        if remove_at.is_none() && faultless {
            let failed: u64 = cores.iter().map(|c| c.failed).sum();
            assert_eq!((failed, world.resets), (0, 0));
        }
        let stat = layer.stat(now);
        let merges = stat.reads().merges + stat.writes().merges + stat.discards().merges;
        let ios = stat.reads().ios + stat.writes().ios + stat.discards().ios + stat.flushes().ios;
        let answered: u64 = layer.submitters().iter().map(|s| s.completed_early.get()).sum();
        // A merged fragment of a long request counts as merged, and its request as completed.
        let splits: u64 = layer.submitters().iter().map(|s| s.splits.get()).sum();
        let counted = ios + merges + answered;
        assert!(counted == completed || splits > 0 && counted > completed, "{counted}: {stat}");
        if !config.merge {
            assert_eq!(merges, 0);
        }
        let issued: u64 = layer.dispatch().iter().map(|d| d.issued.get()).sum();
        assert_eq!(issued, world.commands);
    }
}

fn cases(beneath: Beneath, cases: u64) {
    if let Ok(seed) = std::env::var("SLUICE_SEED") {
        return case(seed.parse().expect("SLUICE_SEED is a number"), beneath);
    }
    let cases = std::env::var("SLUICE_CASES").map_or(cases, |n| n.parse().unwrap());
    for seed in 0..cases {
        let result = std::panic::catch_unwind(|| case(seed, beneath));
        assert!(result.is_ok(), "the case fails; replay it with SLUICE_SEED={seed}");
    }
}

#[test]
fn every_request_completes_once_on_its_core_with_its_data() {
    cases(Beneath::Chaos, 600);
}

#[test]
fn every_request_completes_once_over_block_devices() {
    cases(Beneath::Devices, 300);
}
