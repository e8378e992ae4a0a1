//! A drive in virtual time, with its flash managed by one of several FTLs, and a model of the
//! contents of every sector.

use std::sync::Arc;

use block::{BlockDevice, Completion, Payload, Raw, Request};
use controller::{
    Controller, ControllerConfig, DriveConfig, MediaScrubConfig, NullConfig, OpenChannelConfig,
    PersonalityKind, PuScheduling, WriteBuffer,
};
use driver::ControllerHandle;
use ftl::{FtlConfig, FtlStats};
use lnvm::ScrubConfig;
use media::{CellType, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};
use mem::{AddressSpace, Iova, SharedRegion};
use nvme::Status;
use pblk::{DeviceL2pEntries, DriveQueue, PblkHealth, Rrpc, ShardHandle, Sharded, ShardedConfig};
use time::{Component, Nanos};

const SECTOR: usize = 512;
const POLL_LIMIT: u64 = 1_000_000;

/// The FTL that manages the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Shards(u32),
    Rrpc,
    Drive,
}

impl Kind {
    /// Returns the number of FTLs.
    pub(crate) fn layers(self) -> u64 {
        if let Kind::Shards(n) = self { n.into() } else { 1 }
    }
}

/// Maintenance done by the FTL.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MaintenanceCounts {
    pub(crate) events: u64,
    pub(crate) ignored: u64,
    pub(crate) relocations: u64,
    pub(crate) sectors_read: u64,
}

/// The device, and its cores.
enum Any {
    Shards(Vec<ShardHandle>),
    Rrpc(Box<Rrpc>),
    Raw(Box<Raw>),
}

macro_rules! each {
    ($self:ident, $d:ident => $e:expr) => {
        match $self {
            Any::Shards(all) => match &mut all[0] {
                $d => $e,
            },
            Any::Rrpc($d) => $e,
            Any::Raw($d) => $e,
        }
    };
}

impl Any {
    fn poll(&mut self, now: Nanos) -> bool {
        match self {
            Any::Shards(all) => all.iter_mut().fold(false, |moved, h| h.poll(now) | moved),
            Any::Rrpc(d) => d.poll(now),
            Any::Raw(d) => d.poll(now),
        }
    }

    fn deadline(&self) -> Nanos {
        match self {
            Any::Shards(all) => all.iter().map(Component::deadline).min().unwrap(),
            Any::Rrpc(d) => d.deadline(),
            Any::Raw(d) => d.deadline(),
        }
    }

    fn submit(&mut self, now: Nanos, request: Request) {
        each!(self, d => d.submit(now, request)).unwrap();
    }

    fn reap(&mut self) -> Option<Completion> {
        each!(self, d => d.reap())
    }

    fn memory(&mut self) -> AddressSpace {
        each!(self, d => d.memory().clone())
    }

    fn sectors(&mut self) -> u64 {
        each!(self, d => d.limits().sectors)
    }
}

pub(crate) struct Harness {
    kind: Kind,
    drive: Option<Controller>,
    device: Any,
    pub(crate) now: Nanos,
    memory: Arc<SharedRegion>,
    at: Iova,
    pub(crate) model: Vec<u64>,
    scrub: Option<ScrubConfig>,
    subscribed: bool,
}

/// 2 × 2 parallel units with 40 chunks of 64 sectors, in units of 8.
fn config(kind: Kind, errors: ErrorModel, seed: u64, patrol: Option<ScrubConfig>) -> DriveConfig {
    let geometry = NandGeometry {
        channels: 2,
        pus: 2,
        planes: 2,
        chunks: 40,
        pages: 8,
        page_bytes: 4 * SECTOR as u32,
        sector_bytes: SECTOR as u32,
        oob_bytes: 16,
    };
    let micros = Nanos::from_micros;
    let nand = NandConfig {
        geometry,
        cell: CellType::Mlc,
        one_shot: false,
        paired_page_distance: 2,
        timing: NandTiming::uniform(micros(50), micros(500), micros(3_000), 400_000_000),
        errors,
        data: DataStore::Memory,
        seed,
    };
    let own = patrol.map(|p| MediaScrubConfig {
        sectors_per_sec: p.sectors_per_sec,
        pass_interval_min: p.repeat_after,
    });
    let drives = kind == Kind::Drive;
    DriveConfig {
        open_channel: OpenChannelConfig {
            device_l2p: kind == Kind::Rrpc,
            ..OpenChannelConfig::default()
        },
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
        transfers: controller::TransferConfig::default(),
        name: "ageing".into(),
        personality: if drives { PersonalityKind::Block } else { PersonalityKind::OpenChannel },
        media: MediaConfig::Nand(nand),
        controller: ControllerConfig {
            scrub: own.filter(|_| drives),
            ..ControllerConfig::default()
        },
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        cache_program: true,
        write_buffer: WriteBuffer::None,
        ftl: FtlConfig { over_provisioning: 0.3, ..DriveConfig::default_ftl() },
        null: NullConfig::default(),
    }
}

impl Harness {
    /// Creates a bed. `listens` says whether an FTL on the host subscribes to media events.
    pub(crate) fn new(
        kind: Kind,
        errors: ErrorModel,
        seed: u64,
        scrub: Option<ScrubConfig>,
        subscribed: bool,
    ) -> Harness {
        let mut drive = Controller::new(config(kind, errors, seed, scrub)).unwrap();
        let mut now = Nanos::ZERO;
        let mut device = open(kind, &mut drive, &mut now, scrub, subscribed);
        let memory = SharedRegion::anonymous(64 * SECTOR).unwrap();
        let at = device.memory().register(&memory).unwrap();
        let model = vec![0; device.sectors() as usize];
        Harness { kind, drive: Some(drive), device, now, memory, at, model, scrub, subscribed }
    }

    pub(crate) fn drive(&mut self) -> &mut Controller {
        self.drive.as_mut().unwrap()
    }

    pub(crate) fn handles(&mut self) -> &mut [ShardHandle] {
        match &mut self.device {
            Any::Shards(handles) => handles,
            _ => panic!("it has no shards"),
        }
    }

    pub(crate) fn sectors(&self) -> u64 {
        self.model.len() as u64
    }

    /// Runs one iteration of all parts. Returns whether there was progress.
    fn step(&mut self) -> bool {
        let moved = self.device.poll(self.now);
        self.drive.as_mut().unwrap().poll(self.now) | moved
    }

    /// Polls until there is no progress.
    pub(crate) fn run_until_idle(&mut self) {
        while self.step() {}
    }

    /// Advances the time to `end`.
    pub(crate) fn wait_until(&mut self, end: Nanos) {
        loop {
            if self.step() {
                continue;
            }
            let next = self.drive.as_ref().unwrap().deadline().min(self.device.deadline());
            if next >= end {
                self.now = self.now.max(end);
                return;
            }
            self.now = self.now.max(next);
        }
    }

    fn run(&mut self, request: Request) -> Status {
        self.device.submit(self.now, request);
        for _ in 0..POLL_LIMIT {
            let moved = self.device.poll(self.now);
            if let Some(done) = self.device.reap() {
                return done.status;
            }
            let drive = self.drive.as_mut().unwrap();
            if !drive.poll(self.now) && !moved && drive.deadline() < Nanos::MAX {
                self.now = self.now.max(drive.deadline());
            }
        }
        panic!("{:?}: {request:?} never ends", self.kind);
    }

    /// Writes all sectors, and flushes.
    pub(crate) fn fill(&mut self) {
        for lba in 0..self.sectors() {
            self.write(lba, lba + 1);
        }
        self.flush();
    }

    /// Writes a value to one sector.
    pub(crate) fn write(&mut self, lba: u64, value: u64) {
        for word in 0..SECTOR / 8 {
            self.memory.write(word * 8, &value.to_le_bytes());
        }
        let status = self.run(Request::write(lba, 1, Payload::Contiguous(self.at), 1));
        assert!(status.is_success(), "{:?}: {status}", self.kind);
        self.model[lba as usize] = value;
    }

    pub(crate) fn flush(&mut self) {
        let status = self.run(Request::flush(1));
        assert!(status.is_success(), "{:?}: {status}", self.kind);
    }

    pub(crate) fn read(&mut self, lba: u64) -> Result<u64, Status> {
        self.memory.fill(0, SECTOR, 0xee);
        let status = self.run(Request::read(lba, 1, Payload::Contiguous(self.at), 1));
        if !status.is_success() {
            return Err(status);
        }
        let mut bytes = [0; SECTOR];
        self.memory.read(0, &mut bytes);
        let (words, _) = bytes.as_chunks::<8>();
        assert!(words.iter().all(|w| *w == words[0]), "sector {lba} is mixed from several");
        Ok(u64::from_le_bytes(words[0]))
    }

    /// Returns the unreadable sectors; checks that all others have their expected contents.
    pub(crate) fn uncorrectable(&mut self) -> Vec<u64> {
        let mut lost = Vec::new();
        for lba in 0..self.sectors() {
            match self.read(lba) {
                Ok(value) => {
                    assert_eq!(value, self.model[lba as usize], "{:?}: sector {lba}", self.kind);
                }
                Err(status) => {
                    assert!(status.is_media_error(), "{:?}: sector {lba}: {status}", self.kind);
                    lost.push(lba);
                }
            }
        }
        lost
    }

    pub(crate) fn ftl_stats(&self) -> FtlStats {
        match &self.device {
            Any::Shards(all) => {
                let all = all.iter().map(|h| *h.pblk().stats());
                all.fold(FtlStats::default(), |sum, stats| sum.plus(&stats))
            }
            Any::Rrpc(rrpc) => *rrpc.stats(),
            Any::Raw(_) => *self.drive.as_ref().unwrap().ftl().unwrap().stats(),
        }
    }

    pub(crate) fn maintenance_counts(&mut self) -> MaintenanceCounts {
        let of = |h: PblkHealth| {
            assert!(!h.subscription_refused && h.lost_events == 0, "{h:?}");
            MaintenanceCounts {
                events: h.events,
                ignored: h.ignored,
                relocations: h.relocations,
                sectors_read: h.scrub.sectors,
            }
        };
        match &self.device {
            Any::Shards(all) => {
                let all = all.iter().map(ShardHandle::health);
                of(all.fold(PblkHealth::default(), |sum, h| sum.plus(&h)))
            }
            Any::Rrpc(rrpc) => of(rrpc.health()),
            Any::Raw(_) => {
                let care = self.drive.as_ref().unwrap().stats().scrub;
                MaintenanceCounts {
                    events: care.media_events,
                    ignored: care.ignored,
                    relocations: care.refreshes,
                    sectors_read: care.sectors_read,
                }
            }
        }
    }

    /// Cuts the power, and opens the device again.
    pub(crate) fn power_cycle(&mut self) {
        let mut drive = self.drive.take().unwrap().power_cut().power_on().unwrap();
        self.device = open(self.kind, &mut drive, &mut self.now, self.scrub, self.subscribed);
        self.drive = Some(drive);
        self.at = self.device.memory().register(&self.memory).unwrap();
        assert_eq!(self.device.sectors(), self.sectors(), "the capacity stays");
    }
}

fn open(
    kind: Kind,
    drive: &mut Controller,
    now: &mut Nanos,
    patrol: Option<ScrubConfig>,
    listens: bool,
) -> Any {
    let port = drive.attach().unwrap();
    let mut progress = || {
        if !drive.poll(*now) && drive.deadline() < Nanos::MAX {
            *now = (*now).max(drive.deadline());
        }
    };
    let mut controller =
        ControllerHandle::connect(port.clone(), &mut progress, POLL_LIMIT).unwrap();
    let queues = if let Kind::Shards(n) = kind { n } else { 1 };
    let mut queues: Vec<_> = (0..queues)
        .map(|_| controller.create_queue_pair(256, None, &mut progress).unwrap())
        .collect();
    let info = controller.info().clone();
    let total = info.open_channel.map_or(0, |oc| oc.geometry.total_chunks());
    let chunks = controller.chunks(0, total, &mut progress).unwrap_or_default();
    let ftl = FtlConfig { over_provisioning: 0.3, ..FtlConfig::default() };
    match kind {
        Kind::Drive => {
            Any::Raw(Box::new(Raw::from_pair(&info, queues.remove(0), port.clone()).unwrap()))
        }
        Kind::Rrpc => {
            let entries = info.open_channel.unwrap().extensions.l2p_entries.get();
            let map = controller.dual_map(0, entries, &mut progress).unwrap();
            let totals = controller.map_totals(&mut progress).unwrap();
            let parts = DriveQueue { queue: queues.remove(0), port: port.clone() };
            let map = DeviceL2pEntries { entries: &map, totals };
            let config = FtlConfig { over_provisioning: 0.3, ..Rrpc::config() };
            let opened = Rrpc::open(&info, &chunks, map, parts, config, &mut progress);
            let mut rrpc = opened.unwrap();
            if listens {
                rrpc.subscribe_events(Box::new(controller)).unwrap();
            }
            if let Some(patrol) = patrol {
                rrpc.set_scrub(patrol);
            }
            Any::Rrpc(Box::new(rrpc))
        }
        Kind::Shards(shards) => {
            let config = ShardedConfig { stripe_sectors: 8, ftl, ..ShardedConfig::new(shards) };
            let opened =
                Sharded::open(&info, &chunks, queues, port.clone(), config, &mut progress, true);
            let mut handles = opened.unwrap().into_shards();
            if listens {
                // Whichever handle has the admin queue, every shard gets its events.
                handles.last_mut().unwrap().subscribe_events(Box::new(controller)).unwrap();
            }
            if let Some(patrol) = patrol {
                // The rate applies to each shard.
                handles.iter_mut().for_each(|handle| handle.set_scrub(patrol));
            }
            Any::Shards(handles)
        }
    }
}
