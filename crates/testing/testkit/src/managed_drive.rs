//! [`ManagedDrive`]: an emulated open-channel drive in virtual time, for a media manager: power-on,
//! power cuts, inspection.

use std::cell::{Cell as StdCell, RefCell};
use std::path::Path;

use controller::{
    Controller, ControllerConfig, DriveConfig, NullConfig, OpenChannelConfig, PersonalityKind,
    PuScheduling, WriteBuffer,
};
use driver::{ControllerHandle, ControllerInfo};
use ftl::FtlConfig;
use lnvm::{
    MediaManager, MediaManagerConfig, MediaManagerError, NewTarget, PuSet, QuotaLimits, Sharing,
    TargetKind, TargetOptions, Uid,
};
use media::{
    CellType, ChunkId, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming,
    UnitInChunk,
};
use nvme::{ChunkDescriptor, HealthLog};
use ocssd::vector::VectorQueue;
use time::{Component, Nanos};

/// Bytes of a sector.
pub const SECTOR: usize = 512;

/// Returns a geometry with pages of four sectors.
pub fn geometry(channels: u32, pus: u32, chunks: u32, pages: u32) -> NandGeometry {
    NandGeometry {
        channels,
        pus,
        planes: 1,
        chunks,
        pages,
        page_bytes: 4 * SECTOR as u32,
        sector_bytes: SECTOR as u32,
        oob_bytes: 16,
    }
}

/// A drive in memory, or in an image.
pub fn config(geometry: NandGeometry, pair_distance: u32, image: Option<&Path>) -> DriveConfig {
    let timing = NandTiming::uniform(
        Nanos::from_micros(50),
        Nanos::from_micros(500),
        Nanos::from_millis(3),
        400_000_000,
    );
    let nand = NandConfig {
        geometry,
        cell: if pair_distance > 0 { CellType::Mlc } else { CellType::Slc },
        one_shot: false,
        paired_page_distance: pair_distance,
        timing,
        errors: ErrorModel::default(),
        data: image.map_or(DataStore::Memory, |path| DataStore::File(path.into())),
        seed: 1,
    };
    DriveConfig {
        transfers: controller::TransferConfig::default(),
        name: "oc0".into(),
        personality: PersonalityKind::OpenChannel,
        media: MediaConfig::Nand(nand),
        controller: ControllerConfig::default(),
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        cache_program: true,
        write_buffer: WriteBuffer::Volatile { bytes: 0 },
        ftl: FtlConfig::default(),
        null: NullConfig::default(),
        open_channel: OpenChannelConfig::default(),
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
    }
}

/// Returns the error model of a drive with NAND, to change it.
pub fn errors(config: &mut DriveConfig) -> &mut ErrorModel {
    match &mut config.media {
        MediaConfig::Nand(nand) => &mut nand.errors,
        _ => unreachable!("it is NAND"),
    }
}

/// A drive with power.
pub struct ManagedDrive {
    /// The drive.
    pub drive: RefCell<Controller>,
    /// The virtual time.
    pub now: StdCell<Nanos>,
    /// Number of progress calls until the power is cut. From then on the drive completes nothing.
    pub left: StdCell<u64>,
    /// The properties that the host read when it connected.
    pub info: ControllerInfo,
    /// The chunk report of that time.
    pub report: Vec<ChunkDescriptor>,
    /// The health log of that time.
    pub health: HealthLog,
    controller: RefCell<ControllerHandle>,
}

/// A number of progress calls that is never used up.
pub const FOREVER: u64 = u64::MAX;

impl ManagedDrive {
    /// Switches a new drive on.
    pub fn new(config: DriveConfig) -> ManagedDrive {
        ManagedDrive::over(Controller::new(config).unwrap())
    }

    /// Connects to a drive that is on.
    pub fn over(mut drive: Controller) -> ManagedDrive {
        let port = drive.attach().unwrap();
        let mut progress = || {
            drive.poll(Nanos::ZERO);
        };
        let mut controller = ControllerHandle::connect(port, &mut progress, 1000).unwrap();
        let total = controller.info().open_channel.map_or(0, |oc| oc.geometry.total_chunks());
        let report = controller.chunks(0, total, &mut progress).unwrap();
        let health = controller.health(&mut progress).unwrap();
        ManagedDrive {
            info: controller.info().clone(),
            report,
            health,
            drive: RefCell::new(drive),
            now: StdCell::new(Nanos::ZERO),
            left: StdCell::new(FOREVER),
            controller: RefCell::new(controller),
        }
    }

    /// Creates a queue for vector commands.
    pub fn queue(&self, depth: u16) -> VectorQueue {
        let mut controller = self.controller.borrow_mut();
        let mut progress = || {
            self.drive.borrow_mut().poll(Nanos::ZERO);
        };
        let queue = controller.create_queue_pair(depth, None, &mut progress).unwrap();
        VectorQueue::new(queue, controller.port().clone(), controller.info()).unwrap()
    }

    /// Returns a current report of all chunks.
    pub fn fresh_report(&self) -> Vec<ChunkDescriptor> {
        let mut controller = self.controller.borrow_mut();
        let now = self.now.get();
        let mut progress = || {
            self.drive.borrow_mut().poll(now);
        };
        controller.chunks(0, self.report.len() as u64, &mut progress).unwrap()
    }

    /// Runs the drive by one event.
    pub fn progress(&self) {
        if self.left.get() == 0 {
            return;
        }
        if self.left.get() != FOREVER {
            self.left.set(self.left.get() - 1);
        }
        let mut drive = self.drive.borrow_mut();
        drive.poll(self.now.get());
        let next = drive.deadline();
        if next != Nanos::MAX {
            self.now.set(self.now.get().max(next));
        }
        drive.poll(self.now.get());
    }

    /// Returns whether the power is cut.
    pub fn is_cut(&self) -> bool {
        self.left.get() == 0
    }

    /// Registers the drive at a new media manager.
    ///
    /// # Errors
    /// Those of [`MediaManager::register`].
    pub fn register(&self, config: MediaManagerConfig) -> Result<MediaManager, MediaManagerError> {
        let (now, queue) = (self.now.get(), self.queue(64));
        MediaManager::register(&self.info, &self.report, queue, now, config, &mut || {
            self.progress()
        })
    }

    /// Opens the media manager of the drive.
    ///
    /// # Errors
    /// Those of [`MediaManager::open`].
    pub fn open(&self, config: MediaManagerConfig) -> Result<MediaManager, MediaManagerError> {
        let (now, queue) = (self.now.get(), self.queue(64));
        MediaManager::open(&self.info, &self.report, queue, now, config, &mut || self.progress())
    }

    /// Polls both sides until there is no progress.
    pub fn run(&self, subsystem: &mut MediaManager) {
        for _ in 0..100_000 {
            let moved = subsystem.poll(self.now.get());
            let before = self.now.get();
            self.progress();
            let idle = self.drive.borrow().is_idle();
            if self.is_cut() || !moved && idle && self.now.get() == before {
                return;
            }
        }
        panic!("it never ends");
    }

    /// Cuts the power and restores it.
    pub fn cut(self) -> ManagedDrive {
        let drive = self.drive.into_inner();
        ManagedDrive::over(drive.power_cut().power_on().unwrap())
    }

    /// Cuts the power without restoring it.
    pub fn into_off(self) -> controller::PoweredOffController {
        self.drive.into_inner().power_cut()
    }

    /// Shuts down cleanly.
    pub fn shut_down(self) {
        self.drive.into_inner().shut_down().unwrap();
    }

    /// Writes a whole chunk, with a mark of its writer, bypassing all queues. Returns whether it
    /// succeeded.
    pub fn write_chunk(&self, chunk: u32, by: Uid) -> bool {
        let mut drive = self.drive.borrow_mut();
        let nand = drive.nand_mut().unwrap();
        let (chunk, layout) = (ChunkId(chunk), *nand.layout());
        let mut bytes = [0; SECTOR];
        bytes[..16].copy_from_slice(&by.0.to_le_bytes());
        for unit in 0..layout.units_per_chunk() {
            let first = nand.layout().unit_start(chunk, UnitInChunk(unit));
            for sector in 0..layout.write_unit() {
                if nand.stage_bytes(first + sector, &bytes).is_err() {
                    return false;
                }
            }
            if nand.begin_program(chunk, UnitInChunk(unit)).is_err()
                || nand.complete_program(chunk, UnitInChunk(unit)).is_err()
            {
                return false;
            }
        }
        true
    }

    /// Returns the writer of a chunk's contents; `None` if the chunk is erased or unreadable.
    pub fn written_by(&self, chunk: u32) -> Option<Uid> {
        let mut drive = self.drive.borrow_mut();
        let nand = drive.nand_mut().unwrap();
        let first = nand.layout().unit_start(ChunkId(chunk), UnitInChunk(0));
        nand.check_read(first).ok()?;
        let mut bytes = [0; SECTOR];
        nand.read_bytes(first, &mut bytes);
        bytes.first_chunk().map(|uid| Uid(u128::from_le_bytes(*uid)))
    }

    /// Injects a fault of the media.
    pub fn inject(&self, fault: media::InjectedFault) {
        self.drive.borrow_mut().nand_mut().unwrap().inject(fault).unwrap();
    }
}

/// Returns the specification of a target for applications.
pub fn spec(name: &str, pus: &str, sharing: Sharing) -> NewTarget {
    NewTarget {
        name: name.into(),
        kind: TargetKind::Ppa,
        pus: pus.parse::<PuSet>().unwrap(),
        sharing,
        options: TargetOptions::default(),
        limits: QuotaLimits::default(),
    }
}

/// Returns a configuration with a small poll limit.
pub fn manager_config() -> MediaManagerConfig {
    MediaManagerConfig { poll_limit: 2000, ..MediaManagerConfig::default() }
}
