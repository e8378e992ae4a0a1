//! A host with its controller, and the runs of seeds.

use controller::{Controller, DriveConfig};
use driver::{ControllerHandle, MediaEvent};
use media::{DataStore, NandConfig};
use nvme::{ErrorEntry, Ppa, log_page};
use time::{Component, Nanos};

use crate::common::nand;
use crate::common::open_channel_host::{OpenChannelHost, open_channel};

pub(crate) const READ: Nanos = Nanos(50_000);
pub(crate) const PROGRAM: Nanos = Nanos(500_000);
pub(crate) const ERASE: Nanos = Nanos(3_000_000);
/// Transfer time of a 4 KiB sector at 400 MB/s.
pub(crate) const SECTOR: Nanos = Nanos(10_240);

/// One channel and one parallel unit with `planes` planes, with pages of one sector.
pub(crate) fn planes(planes: u32) -> NandConfig {
    let mut nand = nand();
    (nand.geometry.channels, nand.geometry.pus, nand.geometry.planes) = (1, 1, planes);
    nand
}

/// An open-channel drive over these media.
pub(crate) fn drive(nand: NandConfig) -> DriveConfig {
    DriveConfig { page_register: false, ..open_channel(nand) }
}

/// Returns the configuration of [`drive`], with the data in an image file.
pub(crate) fn on_image(nand: NandConfig, path: &std::path::Path) -> DriveConfig {
    let mut config = drive(nand);
    let media::MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
    nand.data = DataStore::File(path.into());
    config
}

pub(crate) struct Harness {
    pub(crate) open: OpenChannelHost,
    pub(crate) controller: ControllerHandle,
}

impl Harness {
    pub(crate) fn new(config: DriveConfig) -> Harness {
        Harness::from_drive(Controller::new(config).unwrap())
    }

    pub(crate) fn from_drive(mut drive: Controller) -> Harness {
        let (mut controller, port) = crate::common::attach(&mut drive);
        let mut progress = || {
            drive.poll(Nanos::ZERO);
        };
        let queue = controller.create_queue_pair(256, None, &mut progress).unwrap();
        let memory = mem::SharedRegion::anonymous(320 * mem::PAGE_BYTES).unwrap();
        let at = port.memory().register(&memory).unwrap();
        let info = controller.info().clone();
        let open = OpenChannelHost {
            drive,
            queue,
            port,
            info,
            memory,
            at,
            now: Nanos::ZERO,
            completed: vec![],
        };
        Harness { open, controller }
    }

    /// Returns the media events that the host receives.
    pub(crate) fn events(&mut self) -> Vec<MediaEvent> {
        let mut events = Vec::new();
        for _ in 0..8 {
            while let Some(event) = self.controller.poll_events().unwrap() {
                events.push(event);
            }
            self.open.drive.poll(self.open.now);
        }
        events
    }

    /// Returns the newest entry of the error log.
    pub(crate) fn last_error(&mut self) -> ErrorEntry {
        let mut bytes = [0; ErrorEntry::BYTES];
        let OpenChannelHost { drive, now, .. } = &mut self.open;
        let mut progress = || {
            drive.poll(*now);
        };
        self.controller.log_page(log_page::ERROR, 0, &mut bytes, &mut progress).unwrap();
        ErrorEntry::from_bytes(bytes)
    }

    /// Returns the addresses of one write unit of a chunk of the first parallel unit.
    pub(crate) fn unit(&self, chunk: u32, unit: u32) -> Vec<Ppa> {
        let size = self.open.open_channel().geometry.ws_min;
        (unit * size..(unit + 1) * size).map(|s| self.open.ppa(0, 0, chunk, s)).collect()
    }
}

/// Runs seeds and reports the failing one.
pub(crate) fn seeds(cases: u64, case: fn(u64)) {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let seeds = match number("SLUICE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SLUICE_CASES").unwrap_or(cases),
    };
    for seed in seeds {
        if let Err(panic) = std::panic::catch_unwind(|| case(seed)) {
            eprintln!(
                "seed {seed} fails; replay it with SLUICE_SEED={seed} cargo test -p sluice-controller \
                 --test suite ppa::"
            );
            std::panic::resume_unwind(panic);
        }
    }
}
