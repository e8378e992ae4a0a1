//! Events of the real block layer: a workload on an emulated drive, in virtual time.

use block::sched::Scheduling;
use block::trace::TraceEvent;
use block::{
    BlockDevice, BlockLayer, BlockLayerConfig, Features, Limits, Op, Payload, Queue, QueueModel,
    QueueTopology, Request,
};
use controller::{
    Controller, ControllerConfig, DriveConfig, NullConfig, PersonalityKind, PuScheduling,
    WriteBuffer,
};
use driver::{ControllerHandle, LowLevelDriver, NvmeDevice, NvmeQueue};
use media::MediaConfig;
use mem::AddressSpace;
use time::{Component, Nanos};

use super::source::{CORES, Dice};

/// Hardware queues; the last two cores share one.
const QUEUES: u16 = 2;

/// Concurrent requests have no sector in common, because btt identifies them by their sectors.
const STRIDE: u64 = 1024;

/// An emulated drive whose commands have at most this many sectors, and that receives flushes.
struct Narrow(NvmeDevice, u32);

impl LowLevelDriver for Narrow {
    type Queue = NvmeQueue;
    fn limits(&self) -> Limits {
        Limits { max_sectors: self.1, volatile_cache: true, ..self.0.limits() }
    }
    fn features(&self) -> Features {
        self.0.features()
    }
    fn queues(&self) -> u16 {
        self.0.queues()
    }
    fn memory(&self) -> &AddressSpace {
        self.0.memory()
    }
    fn take_queue(&mut self, index: u16) -> Option<NvmeQueue> {
        self.0.take_queue(index)
    }
}

fn drive() -> Controller {
    Controller::new(DriveConfig {
        name: "traced".into(),
        personality: PersonalityKind::Null,
        media: MediaConfig::Null { bytes: 1 << 40, sector_bytes: super::SECTOR_BYTES },
        controller: ControllerConfig::default(),
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        cache_program: false,
        transfers: controller::TransferConfig::default(),
        write_buffer: WriteBuffer::None,
        ftl: DriveConfig::default_ftl(),
        null: NullConfig { latency: Nanos::from_micros(20), bytes_per_sec: 0 },
        open_channel: controller::OpenChannelConfig::default(),
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
    })
    .unwrap()
}

/// The cores and their drive. Time passes between any two polls, so that the order of events is
/// defined.
struct LayerHarness {
    drive: Controller,
    queues: Vec<Queue<NvmeQueue>>,
    now: u64,
    dice: Dice,
    outstanding: usize,
}

impl LayerHarness {
    fn new(layout: QueueModel, scheduler: &str, longest: u32) -> LayerHarness {
        let mut drive = drive();
        let port = drive.attach().unwrap();
        let progress = &mut || {
            drive.poll(Nanos::ZERO);
        };
        let controller = ControllerHandle::connect(port, progress, 1_000_000).unwrap();
        let emulated = NvmeDevice::open(controller, QUEUES, 9, false, progress).unwrap();
        let scheduler = Scheduling { scheduler: scheduler.parse().unwrap(), limits: None };
        let topology = QueueTopology::flat(CORES);
        let config = BlockLayerConfig {
            queue_model: layout,
            topology,
            scheduler,
            queue_depth: 64,
            ..BlockLayerConfig::default()
        };
        let mut device = Narrow(emulated, longest);
        let (_, mut queues) = BlockLayer::open(&mut device, &config).unwrap();
        queues.iter_mut().for_each(|queue| queue.trace(1 << 16));
        LayerHarness { drive, queues, now: 1_000, dice: Dice(9), outstanding: 0 }
    }

    fn poll(&mut self) {
        for queue in &mut self.queues {
            self.now += 200 + self.dice.below(3_000);
            self.drive.poll(Nanos(self.now));
            queue.poll(Nanos(self.now));
            while let Some(completion) = queue.reap() {
                assert!(completion.status.is_success());
                self.outstanding -= 1;
            }
        }
    }
}

/// Returns the events of each core; commands have at most `longest` sectors.
pub(crate) fn events(
    layout: QueueModel,
    scheduler: &str,
    longest: u32,
) -> Vec<(u16, Vec<TraceEvent>)> {
    let mut harness = LayerHarness::new(layout, scheduler, longest);
    let (mut place, mut tag) = (0, 0);
    for _ in 0..300 {
        for core in 0..usize::from(CORES) {
            let requests = if harness.dice.below(2) == 0 { harness.dice.below(9) } else { 0 };
            let mut lba = place;
            for _ in 0..requests {
                harness.now += 100 + harness.dice.below(300);
                tag += 1;
                if harness.dice.below(2) == 0 {
                    place += STRIDE;
                    lba = place;
                }
                let sectors = 1 + harness.dice.below(8) as u32;
                let mut request = match harness.dice.below(24) {
                    0 => Request::flush(tag),
                    1 => Request::discard(lba, 100 + sectors, tag),
                    2 => Request::write_zeroes(lba, sectors, true, tag),
                    3..9 => Request::write(lba, sectors, Payload::BitBucket, tag),
                    9 => Request::read(lba, 60 + sectors, Payload::BitBucket, tag),
                    _ => Request::read(lba, sectors, Payload::BitBucket, tag),
                };
                request.fua = request.op == Op::Write && harness.dice.below(6) == 0;
                if harness.queues[core].submit(Nanos(harness.now), request).is_ok() {
                    harness.outstanding += 1;
                    lba += u64::from(request.sectors);
                }
            }
            place += STRIDE;
        }
        harness.poll();
    }
    for _ in 0..100_000 {
        if harness.outstanding == 0 {
            break;
        }
        harness.poll();
    }
    assert_eq!(harness.outstanding, 0, "requests that did not complete");
    let trace = |queue: &mut Queue<_>| {
        let tracer = queue.tracer().unwrap();
        assert_eq!(tracer.dropped(), 0);
        tracer.drain()
    };
    (0..CORES).zip(harness.queues.iter_mut().map(trace)).collect()
}
