//! Tests with units of several smallest writes, which a power cut or a failure can leave partly
//! written. The emulated drives have no such units, so the geometry is changed here.

// guarantee: D-34

use controller::{
    Controller, ControllerConfig, DriveConfig, NullConfig, PersonalityKind, PuScheduling,
    WriteBuffer,
};
use media::{
    CellType, ChunkId, DataStore, ErrorModel, InjectedFault, MediaConfig, NandConfig, NandGeometry,
    NandTiming, UnitInChunk,
};
use nvme::{Address, PuId};
use rng::Rng;
use time::{Component, Nanos};

use super::{PadMode, VirtualBlock, VirtualBlockError};
use crate::OpenChannelSsd;
use crate::ppa::{Session, SessionConfig};

const SECTOR: usize = 512;
/// Smallest writes of 2 sectors, units of 6, chunks of 36.
const UNIT: u32 = 6;

struct Bench {
    drive: Controller,
    now: Nanos,
    pumps_remaining: u64,
}

impl Bench {
    fn progress(&mut self) {
        if self.pumps_remaining > 0 {
            self.pumps_remaining -= 1;
            if !self.drive.poll(self.now) && self.drive.deadline() < Nanos::MAX {
                self.now = self.now.max(self.drive.deadline());
            }
        }
    }

    fn attach(&mut self) -> (OpenChannelSsd, Session) {
        let port = self.drive.attach().unwrap();
        let mut ssd = OpenChannelSsd::attach(port, &mut || self.progress(), 2_000).unwrap();
        ssd.set_ws_opt(UNIT);
        let session = Session::open(&mut ssd, SessionConfig::default(), &mut || self.progress());
        (ssd, session.unwrap())
    }
}

fn drive(seed: u64) -> Controller {
    let nand = NandConfig {
        geometry: NandGeometry {
            channels: 2,
            pus: 2,
            planes: 1,
            chunks: 6,
            pages: 18,
            page_bytes: 1024,
            sector_bytes: 512,
            oob_bytes: 0,
        },
        cell: CellType::Mlc,
        one_shot: false,
        paired_page_distance: (seed % 5) as u32,
        timing: NandTiming::uniform(Nanos(50), Nanos(500), Nanos(3_000), 0),
        errors: ErrorModel::default(),
        data: DataStore::Memory,
        seed,
    };
    let config = DriveConfig {
        open_channel: controller::OpenChannelConfig::default(),
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
        name: "units".into(),
        personality: PersonalityKind::OpenChannel,
        media: MediaConfig::Nand(nand),
        controller: ControllerConfig::default(),
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        cache_program: true,
        transfers: controller::TransferConfig::default(),
        write_buffer: WriteBuffer::None,
        ftl: ftl::FtlConfig::default(),
        null: NullConfig::default(),
    };
    Controller::new(config).unwrap()
}

fn data(values: std::ops::Range<u64>) -> Vec<u8> {
    values.flat_map(|v| [v.to_le_bytes(); SECTOR / 8].concat()).collect()
}

fn at(pu: u32, chunk: u32) -> Address {
    Address { group: pu % 2, pu: pu / 2, chunk, sector: 0 }
}

#[test]
fn half_written_units_are_neither_dropped_nor_invented() {
    let (mut sealed, mut replaced) = (0, 0);
    for seed in 0..800 {
        let mut rng = Rng::new(seed);
        let mut bench = Bench { drive: drive(seed), now: Nanos::ZERO, pumps_remaining: u64::MAX };
        let (mut ssd, mut session) = bench.attach();
        let chunks: Vec<Address> = (0..1 + rng.below(4) as u32).map(|pu| at(pu, 0)).collect();
        if rng.chance(0.5) {
            let chunk = bench.drive.nand_mut().unwrap().layout().chunk(PuId(0), 0);
            let unit = rng.below(18) as u32;
            bench
                .drive
                .nand_mut()
                .unwrap()
                .inject(InjectedFault::Program { chunk, unit: UnitInChunk(unit) })
                .unwrap();
            let spare = ChunkId(chunk.0 + 1);
            bench
                .drive
                .nand_mut()
                .unwrap()
                .inject(InjectedFault::Program { chunk: spare, unit: UnitInChunk(unit) })
                .unwrap();
        }
        let mut progress = || bench.progress();
        let mut io = session.blocking(&mut progress);
        let mut block = VirtualBlock::create(&mut ssd, &mut io, &chunks).unwrap();
        let (mut durable, mut spare) = (0, 1);
        let cut_step = rng.below(8);
        for step in 0..30 {
            if step == cut_step {
                bench.pumps_remaining = rng.below(60);
            }
            let mut progress = || bench.progress();
            let mut io = session.blocking(&mut progress);
            let n = rng.below(30).min(block.remaining_sectors());
            let first = block.len();
            match block.append(&mut io, &data(first..first + n)) {
                Ok(_) => durable = block.durable(),
                Err(VirtualBlockError::Unwritten(e)) => {
                    durable = block.durable();
                    assert!(e.missing.iter().all(|r| r.start >= durable));
                    while spare < 6 {
                        match block.replace(&mut ssd, &mut io, 0, at(0, spare)) {
                            Err(VirtualBlockError::ReplacementFailed { .. }) => spare += 1,
                            Err(_) => break,
                            Ok(_) => {
                                replaced += 1;
                                break;
                            }
                        }
                    }
                }
                Err(_) => {}
            }
            if bench.pumps_remaining == 0 {
                break;
            }
            let mut progress = || bench.progress();
            let mut io = session.blocking(&mut progress);
            let mut all = vec![0; block.len() as usize * SECTOR];
            match block.read(&mut io, 0, &mut all) {
                Ok(()) => assert!(all == data(0..block.len()), "seed {seed}"),
                Err(e) => assert!(bench.pumps_remaining == 0, "seed {seed}: {e}"),
            }
        }
        let (chunks, len) = (block.chunks(), block.len());
        drop(session);
        let drive = bench.drive.power_cut().power_on().unwrap();
        let mut bench = Bench { drive, now: bench.now, pumps_remaining: u64::MAX };
        let (mut ssd, mut session) = bench.attach();
        let mut progress = || bench.progress();
        let mut io = session.blocking(&mut progress);
        let (mut block, found) = VirtualBlock::open(&mut ssd, &mut io, &chunks).unwrap();
        assert!(found.intact >= durable && found.sectors <= len, "seed {seed}: {found:?}");
        sealed += u32::from(found.sealed);
        let padded = match block.pad(&mut io, PadMode::Readable) {
            Err(VirtualBlockError::Unwritten(_)) => false,
            other => other.map(|_| true).unwrap(),
        };
        let hidden = found.unpaired.first().filter(|_| !padded).map_or(found.intact, |r| r.start);
        let readable = hidden.min(found.intact);
        let mut all = vec![0; readable as usize * SECTOR];
        block.read(&mut io, 0, &mut all).unwrap();
        assert!(all == data(0..readable), "seed {seed}");
    }
    assert!(sealed > 50 && replaced > 50, "{sealed} {replaced}");
}
