//! A drive that the test polls, and data that identifies its sector.
#![allow(unreachable_pub, reason = "shared by the files of this test")]

use controller::{
    Controller, ControllerConfig, DriveConfig, NullConfig, PersonalityKind, PuScheduling,
    WriteBuffer,
};
use ftl::FtlConfig;
use media::{CellType, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};
use ocssd::OpenChannelSsd;
use ocssd::ppa::{Address, Ppa, PpaSpace, Session, SessionConfig};
use time::{Component, Nanos};

pub const SECTOR: usize = 512;
pub const OOB: usize = 16;
/// Number of polls without progress after which a drive counts as failed.
pub const POLL_LIMIT: u64 = 3_000;

/// Channels, PUs per channel, planes, chunks, pages, sectors per page, pair distance in pages.
#[derive(Clone, Copy, Debug)]
pub struct Shape(pub u32, pub u32, pub u32, pub u32, pub u32, pub u32, pub u32);

/// Three channels of five PUs with seven chunks of 24 sectors: every field of the address format
/// has a hole. A unit has 4 sectors and becomes readable after two further units.
pub const ODD: Shape = Shape(3, 5, 2, 7, 6, 2, 2);

pub fn config(shape: Shape) -> DriveConfig {
    let Shape(channels, pus, planes, chunks, pages, sectors, pair_distance) = shape;
    let geometry = NandGeometry {
        channels,
        pus,
        planes,
        chunks,
        pages,
        page_bytes: sectors * SECTOR as u32,
        sector_bytes: SECTOR as u32,
        oob_bytes: OOB as u32,
    };
    let nand = NandConfig {
        geometry,
        cell: CellType::Mlc,
        one_shot: false,
        paired_page_distance: pair_distance,
        timing: NandTiming::uniform(
            Nanos::from_micros(50),
            Nanos::from_micros(500),
            Nanos::from_millis(3),
            400_000_000,
        ),
        errors: ErrorModel::default(),
        data: DataStore::Memory,
        seed: 1,
    };
    DriveConfig {
        open_channel: controller::OpenChannelConfig::default(),
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
        name: "ppa".into(),
        personality: PersonalityKind::OpenChannel,
        media: MediaConfig::Nand(nand),
        controller: ControllerConfig::default(),
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        cache_program: true,
        transfers: controller::TransferConfig::default(),
        write_buffer: WriteBuffer::None,
        ftl: FtlConfig::default(),
        null: NullConfig::default(),
    }
}

/// A drive whose power can be cut.
#[derive(Debug)]
pub struct Bench {
    drive: Option<Controller>,
    pub now: Nanos,
    /// Number of progress calls until the power is cut.
    pub cut_after: Option<u64>,
    pub turns: u64,
}

impl Bench {
    pub fn new(config: DriveConfig) -> Bench {
        let drive = Controller::new(config).unwrap();
        Bench { drive: Some(drive), now: Nanos::ZERO, cut_after: None, turns: 0 }
    }

    pub fn drive(&mut self) -> &mut Controller {
        self.drive.as_mut().unwrap()
    }

    pub fn nand(&mut self) -> &mut media::Nand {
        self.drive().nand_mut().unwrap()
    }

    pub fn is_dead(&self) -> bool {
        self.cut_after.is_some_and(|n| self.turns >= n)
    }

    /// Runs the drive, or advances the time to its next event.
    pub fn turn(&mut self) {
        if self.is_dead() {
            return;
        }
        self.turns += 1;
        let drive = self.drive.as_mut().unwrap();
        if !drive.poll(self.now) && drive.deadline() < Nanos::MAX {
            self.now = self.now.max(drive.deadline());
        }
    }

    /// Cuts the power and restores it.
    pub fn power_cycle(&mut self) {
        let off = self.drive.take().unwrap().power_cut();
        self.drive = Some(off.power_on().unwrap());
        self.cut_after = None;
    }

    pub fn attach(&mut self) -> OpenChannelSsd {
        let port = self.drive().attach().unwrap();
        OpenChannelSsd::attach(port, &mut || self.turn(), POLL_LIMIT).unwrap()
    }

    pub fn session(&mut self, ssd: &mut OpenChannelSsd, queue_depth: u16, vectors: u16) -> Session {
        let config = SessionConfig { queue_depth, vectors, ..SessionConfig::default() };
        Session::open(ssd, config, &mut || self.turn()).unwrap()
    }
}

/// Creates an attached drive with a session.
pub fn open(shape: Shape, queue_depth: u16) -> (Bench, OpenChannelSsd, Session) {
    let mut bench = Bench::new(config(shape));
    let mut ssd = bench.attach();
    let session = bench.session(&mut ssd, queue_depth, 256);
    (bench, ssd, session)
}

pub fn at(group: u32, pu: u32, chunk: u32, sector: u32) -> Address {
    Address { group, pu, chunk, sector }
}

pub fn run(space: &PpaSpace, first: Address, count: u32) -> Vec<Ppa> {
    space.extent(first, count).unwrap().collect()
}

/// Returns the data of a sector with this value.
pub fn data(value: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if value > 0 {
        for (i, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = (value << 16 | i as u64).to_le_bytes();
        }
    }
    bytes
}

/// Returns the out-of-band bytes of a sector with this value.
pub fn oob(value: u64) -> [u8; OOB] {
    let mut bytes = [0; OOB];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    bytes[8..].copy_from_slice(&(!value).to_le_bytes());
    if value == 0 { [0; OOB] } else { bytes }
}

pub fn all_data(values: impl IntoIterator<Item = u64>) -> Vec<u8> {
    values.into_iter().flat_map(data).collect()
}

pub fn all_oob(values: impl IntoIterator<Item = u64>) -> Vec<u8> {
    values.into_iter().flat_map(oob).collect()
}
