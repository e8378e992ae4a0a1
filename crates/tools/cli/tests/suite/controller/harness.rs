//! [`ControllerHarness`]: a controller, and the drive behind it.

use std::sync::{Arc, Mutex};

use block::{BlockDevice, Raw};
use controller::{
    Controller, ControllerConfig, DriveConfig, NullConfig, OpenChannelConfig, PersonalityKind,
    PuScheduling, RegisterConfig, RegisterStats, TransferConfig, WriteBuffer,
};
use driver::pci::{
    self, ControllerGuard, OpenedController, PciAddress, PciDriver, PciError, SysfsPci,
};
use driver::{ConnectOptions, ControllerHandle, ControllerInfo, DriverError, NvmeQueue};
use event::RealClock;
use ftl::FtlConfig;
use media::{CellType, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};
use mem::AddressSpace;
use open::Target;
use time::{Component, Nanos};

use super::load::{DeviceProperties, QueueProvider};

/// Time between polls of an emulated drive.
pub(crate) const EMULATED_STEP: Nanos = Nanos::from_micros(20);

/// An initialized controller.
pub(crate) struct ControllerHarness {
    pub(crate) controller: Arc<Mutex<ControllerHandle>>,
    pub(crate) info: ControllerInfo,
    pub(crate) port: Arc<transport::Port>,
    pub(crate) world: DriveSide,
    /// Guard of a real controller. Dropped last.
    _guard: Option<ControllerGuard>,
}

/// The device side, which executes commands and has the clock.
pub(crate) enum DriveSide {
    Emulated { drive: Box<Controller>, now: Nanos },
    Real(RealClock),
}

impl DriveSide {
    /// Lets the device side make progress, and returns the time.
    pub(crate) fn progress(&mut self) -> Nanos {
        match self {
            DriveSide::Emulated { drive, now } => {
                *now += EMULATED_STEP;
                drive.poll(*now);
                *now
            }
            DriveSide::Real(clock) => {
                std::thread::yield_now();
                clock.now()
            }
        }
    }

    /// Makes progress while an admin command is outstanding.
    pub(crate) fn admin_progress(&mut self) {
        self.progress();
        if matches!(self, DriveSide::Real(_)) {
            pci::progress();
        }
    }

    pub(crate) fn is_real(&self) -> bool {
        matches!(self, DriveSide::Real(_))
    }
}

/// Returns the configuration of a small drive.
pub(crate) fn config(sector_bytes: u32, registers: Option<RegisterConfig>) -> DriveConfig {
    let nand = NandConfig {
        geometry: NandGeometry {
            channels: 2,
            pus: 4,
            planes: 1,
            chunks: 64,
            pages: 64,
            page_bytes: 4096,
            sector_bytes,
            oob_bytes: 16,
        },
        cell: CellType::Slc,
        one_shot: false,
        paired_page_distance: 0,
        timing: NandTiming::uniform(
            Nanos::from_micros(20),
            Nanos::from_micros(50),
            Nanos::from_micros(100),
            0,
        ),
        errors: ErrorModel::default(),
        data: DataStore::Memory,
        seed: 1,
    };
    DriveConfig {
        name: "suite".into(),
        personality: PersonalityKind::Block,
        media: MediaConfig::Nand(nand),
        controller: ControllerConfig {
            doorbell_buffer: true,
            registers,
            ..ControllerConfig::default()
        },
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        cache_program: true,
        transfers: TransferConfig::default(),
        write_buffer: WriteBuffer::Volatile { bytes: 1 << 20 },
        ftl: FtlConfig { over_provisioning: 0.28, ..FtlConfig::default() },
        null: NullConfig::default(),
        open_channel: OpenChannelConfig::default(),
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
    }
}

/// Returns the name of the controller from `SLUICE_CONTROLLER`: `vfio:ADDRESS` or
/// `uio:ADDRESS?unsafe=1`.
pub(crate) fn target() -> String {
    std::env::var("SLUICE_CONTROLLER").expect("SLUICE_CONTROLLER names a controller")
}

/// Returns the address of the controller, and the kernel driver that passes it to this process.
pub(crate) fn named() -> (PciAddress, PciDriver) {
    match target().parse() {
        Ok(Target::Controller { address, by, .. }) => (address, by),
        other => panic!("{other:?}"),
    }
}

/// Opens the real controller.
pub(crate) fn open_real(options: ConnectOptions) -> Result<OpenedController, PciError> {
    let system = SysfsPci::default();
    match named() {
        (address, PciDriver::VfioPci) => pci::open_controller(&system, address, options),
        (address, PciDriver::UioPciGeneric) => {
            pci::open_controller_without_iommu(&system, address, options)
        }
    }
}

impl ControllerHarness {
    /// Creates a drive in this process, in virtual time. Its host initializes it by its registers,
    /// or connects directly.
    pub(crate) fn emulated(
        sector_bytes: u32,
        registers: Option<RegisterConfig>,
        options: ConnectOptions,
    ) -> ControllerHarness {
        let config = config(sector_bytes, registers);
        ControllerHarness::on_drive(Controller::new(config).unwrap(), options).unwrap()
    }

    /// Initializes a drive in this process, in virtual time.
    pub(crate) fn on_drive(
        mut drive: Controller,
        options: ConnectOptions,
    ) -> Result<ControllerHarness, DriverError> {
        let port = drive.attach().unwrap();
        let mut world = DriveSide::Emulated { drive: Box::new(drive), now: Nanos::ZERO };
        let progress = &mut || world.admin_progress();
        let controller = match port.has_registers() {
            true => ControllerHandle::connect_pci(port, options, progress, EMULATED_STEP)?,
            false => ControllerHandle::connect_with(port, options, progress, 1_000_000)?,
        };
        Ok(ControllerHarness::new(controller, world, None))
    }

    /// Opens the controller that `SLUICE_CONTROLLER` names.
    pub(crate) fn real(options: ConnectOptions) -> ControllerHarness {
        let opened = open_real(options).unwrap();
        ControllerHarness::new(
            opened.controller,
            DriveSide::Real(RealClock::start()),
            Some(opened.guard),
        )
    }

    fn new(
        controller: ControllerHandle,
        world: DriveSide,
        guard: Option<ControllerGuard>,
    ) -> ControllerHarness {
        let (info, port) = (controller.info().clone(), controller.port().clone());
        let controller = Arc::new(Mutex::new(controller));
        ControllerHarness { controller, info, port, world, _guard: guard }
    }

    /// Returns the emulated drive.
    pub(crate) fn drive(&mut self) -> &mut Controller {
        match &mut self.world {
            DriveSide::Emulated { drive, .. } => drive,
            DriveSide::Real(_) => panic!("a real controller"),
        }
    }

    /// Checks that a drive with registers became ready once and saw no doorbell of a queue that it
    /// does not have.
    pub(crate) fn check_registers(&mut self) {
        // All doorbells have been checked after as many polls.
        for _ in 0..200 {
            self.world.progress();
        }
        if let Some(stats) = self.drive().stats().registers {
            assert_eq!(stats, RegisterStats { starts: stats.starts, ..RegisterStats::default() });
            assert!(stats.starts > 0);
        }
    }

    /// Creates a queue with its own interrupt vector, if the controller has interrupts.
    pub(crate) fn queue(&mut self, depth: u16) -> Result<NvmeQueue, driver::NvmeDeviceError> {
        let next = self.controller.lock().unwrap().next_qid();
        let vector = next.filter(|_| self.port.has_interrupts());
        let world = &mut self.world;
        NvmeQueue::open(&self.controller, depth, vector, &mut || world.admin_progress())
    }

    /// Deletes a queue without outstanding requests.
    pub(crate) fn close(&mut self, queue: NvmeQueue) {
        let world = &mut self.world;
        let back = &mut |_| panic!("nothing was outstanding");
        queue.close(back, &mut || world.admin_progress()).unwrap();
    }

    /// Calls a function with the controller and its progress function.
    pub(crate) fn admin<T>(
        &mut self,
        what: impl FnOnce(&mut ControllerHandle, &mut dyn FnMut()) -> T,
    ) -> T {
        let world = &mut self.world;
        what(&mut self.controller.lock().unwrap(), &mut || world.admin_progress())
    }

    /// Returns a smaller number of rounds for a real controller, whose guest may also emulate the
    /// processor.
    pub(crate) fn rounds(&self, rounds: usize) -> usize {
        if self.world.is_real() { rounds / 2 } else { rounds }
    }
}

impl QueueProvider for ControllerHarness {
    type Queue = Raw<NvmeQueue>;

    fn properties(&self) -> DeviceProperties {
        DeviceProperties {
            sector_bytes: self.info.sector_bytes,
            sectors: self.info.sectors,
            max_sectors: self.info.max_sectors,
            features: self.info.features,
            alignment: 1,
            scattered: true,
            discards_are_zeros: !self.world.is_real(),
        }
    }

    fn memory(&self) -> AddressSpace {
        self.port.memory().clone()
    }

    fn queue(&mut self, depth: u16) -> Raw<NvmeQueue> {
        let queue = ControllerHarness::queue(self, depth).unwrap();
        let limits = queue.limits();
        Raw::new(queue, limits)
    }

    fn close(&mut self, mut queue: Raw<NvmeQueue>) {
        assert!(queue.reap().is_none());
        ControllerHarness::close(self, queue.into_queue().0);
    }

    fn progress(&mut self) -> Nanos {
        self.world.progress()
    }
}
