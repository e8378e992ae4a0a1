//! [`Rig`]: a controller and what makes it go.

use std::sync::{Arc, Mutex};

use block::{Device, Raw};
use clock::{Component, Nanos, RealClock};
use drive::{
    ControllerConfig, Drive, DriveConfig, NullConfig, OpenChannelConfig, PersonalityKind, PuPolicy,
    Transfers, WriteBuffer,
};
use driver::pci::{
    self, ControllerKeeper, OpenedController, PciAddress, PciDriver, PciError, PciSystem,
};
use driver::{AttachOptions, Controller, DriveInfo, EmulatedQueue};
use ftl::FtlConfig;
use media::{Cell, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};
use ring::AddressSpace;
use sluice::open::Target;

use crate::load::{Facts, Place};

/// A controller that has been brought up.
pub(crate) struct Rig {
    pub(crate) controller: Arc<Mutex<Controller>>,
    pub(crate) info: DriveInfo,
    pub(crate) port: Arc<ring::Port>,
    pub(crate) world: World,
    /// Of a real controller; last.
    _keeper: Option<ControllerKeeper>,
}

/// What makes the other side go, and tells the time.
pub(crate) enum World {
    Emulated { drive: Box<Drive>, now: Nanos },
    Real(RealClock),
}

impl World {
    /// Lets the other side make progress, and says what time it is.
    pub(crate) fn pump(&mut self) -> Nanos {
        match self {
            World::Emulated { drive, now } => {
                *now += Nanos::from_micros(20);
                drive.poll(*now);
                *now
            }
            World::Real(clock) => {
                std::thread::yield_now();
                clock.now()
            }
        }
    }

    /// What runs while an admin command is unanswered.
    pub(crate) fn admin_pump(&mut self) {
        self.pump();
        if matches!(self, World::Real(_)) {
            pci::pump();
        }
    }

    pub(crate) fn is_real(&self) -> bool {
        matches!(self, World::Real(_))
    }
}

fn config(sector_bytes: u32) -> DriveConfig {
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
        cell: Cell::Slc,
        one_shot: false,
        pair_distance: 0,
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
        controller: ControllerConfig { doorbell_buffer: true, ..ControllerConfig::default() },
        pu_policy: PuPolicy::Fifo,
        page_register: false,
        cache_program: true,
        transfers: Transfers::default(),
        write_buffer: WriteBuffer::Volatile { bytes: 1 << 20 },
        ftl: FtlConfig { over_provisioning: 0.28, ..FtlConfig::default() },
        null: NullConfig::default(),
        open_channel: OpenChannelConfig::default(),
    }
}

/// How the controller is named that `SLUICE_CONTROLLER` has: `vfio:ADDRESS` or `uio:ADDRESS?unsafe=1`.
pub(crate) fn target() -> String {
    std::env::var("SLUICE_CONTROLLER").expect("SLUICE_CONTROLLER names a controller")
}

/// Its address, and who gives it to this process.
pub(crate) fn named() -> (PciAddress, PciDriver) {
    match target().parse() {
        Ok(Target::Controller { address, by, .. }) => (address, by),
        other => panic!("{other:?}"),
    }
}

/// Opens it.
pub(crate) fn open_real(options: AttachOptions) -> Result<OpenedController, PciError> {
    let system = PciSystem::default();
    match named() {
        (address, PciDriver::VfioPci) => pci::open_controller(&system, address, options),
        (address, PciDriver::UioPciGeneric) => {
            pci::open_controller_without_iommu(&system, address, options)
        }
    }
}

impl Rig {
    /// A drive of this process, in virtual time.
    pub(crate) fn emulated(sector_bytes: u32, options: AttachOptions) -> Rig {
        let mut drive = Drive::new(config(sector_bytes)).unwrap();
        let port = drive.attach().unwrap();
        let mut world = World::Emulated { drive: Box::new(drive), now: Nanos::ZERO };
        let pump = &mut || world.admin_pump();
        let controller = Controller::attach_with(port, options, pump, 1_000_000).unwrap();
        Rig::new(controller, world, None)
    }

    /// The controller that `SLUICE_CONTROLLER` names.
    pub(crate) fn real(options: AttachOptions) -> Rig {
        let opened = open_real(options).unwrap();
        Rig::new(opened.controller, World::Real(RealClock::start()), Some(opened.keeper))
    }

    fn new(controller: Controller, world: World, keeper: Option<ControllerKeeper>) -> Rig {
        let (info, port) = (controller.info().clone(), controller.port().clone());
        let controller = Arc::new(Mutex::new(controller));
        Rig { controller, info, port, world, _keeper: keeper }
    }

    /// A queue of its own interrupt vector, where there are any.
    pub(crate) fn queue(&mut self, depth: u16) -> Result<EmulatedQueue, driver::EmulatedError> {
        let next = self.controller.lock().unwrap().next_queue();
        let vector = next.filter(|_| self.port.has_interrupts());
        let world = &mut self.world;
        EmulatedQueue::open(&self.controller, depth, vector, &mut || world.admin_pump())
    }

    /// Gives a queue back that has nothing outstanding.
    pub(crate) fn close(&mut self, queue: EmulatedQueue) {
        let world = &mut self.world;
        let back = &mut |_| panic!("nothing was outstanding");
        queue.close(back, &mut || world.admin_pump()).unwrap();
    }

    /// What needs the controller and its progress.
    pub(crate) fn admin<T>(
        &mut self,
        what: impl FnOnce(&mut Controller, &mut dyn FnMut()) -> T,
    ) -> T {
        let world = &mut self.world;
        what(&mut self.controller.lock().unwrap(), &mut || world.admin_pump())
    }

    /// Fewer rounds where the processor is emulated, too.
    pub(crate) fn rounds(&self, rounds: usize) -> usize {
        if self.world.is_real() { rounds / 2 } else { rounds }
    }
}

impl Place for Rig {
    type Queue = Raw<EmulatedQueue>;

    fn facts(&self) -> Facts {
        Facts {
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

    fn queue(&mut self, depth: u16) -> Raw<EmulatedQueue> {
        let queue = Rig::queue(self, depth).unwrap();
        let limits = queue.limits();
        Raw::new(queue, limits)
    }

    fn close(&mut self, mut queue: Raw<EmulatedQueue>) {
        assert!(queue.reap().is_none());
        Rig::close(self, queue.into_queue().0);
    }

    fn pump(&mut self) -> Nanos {
        self.world.pump()
    }
}
