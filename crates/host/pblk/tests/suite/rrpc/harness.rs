//! A drive with a device L2P, `rrpc` on it, and values that fill sectors.

use std::sync::Arc;

use block::{BlockDevice, Completion, Payload, Request};
use controller::{
    Controller, ControllerConfig, DriveConfig, NullConfig, OpenChannelConfig, PersonalityKind,
    PuScheduling, WriteBuffer,
};
use driver::{ControllerHandle, ControllerInfo};
use ftl::FtlConfig;
use media::{CellType, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};
use mem::{Iova, SharedRegion};
use nvme::{Address, ChunkDescriptor, DeviceL2pLog, Status, VendorExtensions};
use pblk::{DeviceL2pEntries, DriveQueue, Rrpc, RrpcError};
use time::{Component, Nanos};

pub(crate) const SECTOR: usize = 512;
const BYTES: usize = 4096 * SECTOR;
/// Offset of the second buffer.
const SECOND: usize = 4000 * SECTOR;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) channels: u32,
    pub(crate) pus: u32,
    pub(crate) chunks: u32,
    pub(crate) pages: u32,
    pub(crate) sectors: u32,
    pub(crate) pair: u32,
}

pub(crate) fn config(shape: Shape, dual_map: bool) -> DriveConfig {
    let Shape { channels, pus, chunks, pages, sectors, pair } = shape;
    let geometry = NandGeometry {
        channels,
        pus,
        planes: 1,
        chunks,
        pages,
        page_bytes: sectors * SECTOR as u32,
        sector_bytes: SECTOR as u32,
        oob_bytes: 16,
    };
    let micros = Nanos::from_micros;
    let nand = NandConfig {
        geometry,
        cell: CellType::Mlc,
        one_shot: false,
        paired_page_distance: pair,
        timing: NandTiming::uniform(micros(50), micros(500), micros(3_000), 400_000_000),
        errors: ErrorModel::default(),
        data: DataStore::Memory,
        seed: 1,
    };
    DriveConfig {
        open_channel: OpenChannelConfig { device_l2p: dual_map, ..OpenChannelConfig::default() },
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
        transfers: controller::TransferConfig::default(),
        name: "rrpc".into(),
        personality: PersonalityKind::OpenChannel,
        media: MediaConfig::Nand(nand),
        controller: ControllerConfig::default(),
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        cache_program: true,
        write_buffer: WriteBuffer::None,
        ftl: FtlConfig::default(),
        null: NullConfig::default(),
    }
}

/// Runs the drive, or advances the time to its next event.
pub(crate) fn run_drive(drive: &mut Controller, now: &mut Nanos) {
    if !drive.poll(*now) && drive.deadline() < Nanos::MAX {
        *now = (*now).max(drive.deadline());
    }
}

/// Payload of the panic in the progress when power is cut during an open.
struct PowerCut;

pub(crate) type Map = (Vec<Option<Address>>, DeviceL2pLog);
pub(crate) type Attached = (ControllerInfo, Vec<ChunkDescriptor>, Option<Map>, DriveQueue);

pub(crate) struct Bench {
    pub(crate) drive: Controller,
    pub(crate) rrpc: Option<Rrpc>,
    pub(crate) now: Nanos,
    pub(crate) depth: u16,
    memory: Arc<SharedRegion>,
    at: Iova,
    completed: Vec<Completion>,
    /// Tags in the order of completion.
    pub(crate) order: Vec<u64>,
    /// Whether the last flush was submitted after tag 1 had completed.
    pub(crate) flush_covered_trim: bool,
}

impl Bench {
    pub(crate) fn new(config: DriveConfig) -> Bench {
        Bench {
            drive: Controller::new(config).unwrap(),
            rrpc: None,
            now: Nanos(0),
            depth: 256,
            memory: SharedRegion::anonymous(BYTES).unwrap(),
            at: Iova(0),
            completed: Vec::new(),
            order: Vec::new(),
            flush_covered_trim: false,
        }
    }

    /// Returns the parameters for opening a target.
    pub(crate) fn attach(&mut self) -> Attached {
        let port = self.drive.attach().unwrap();
        let (drive, now) = (&mut self.drive, &mut self.now);
        let mut progress = || run_drive(drive, now);
        let mut c = ControllerHandle::connect(port.clone(), &mut progress, 100_000).unwrap();
        let open_channel = c.info().open_channel.unwrap();
        let all = open_channel.geometry.total_chunks();
        let chunks = c.chunks(0, all, &mut progress).unwrap();
        let has = open_channel.extensions.has(VendorExtensions::DEVICE_L2P);
        let entries = open_channel.extensions.l2p_entries.get();
        let map = has.then(|| {
            let places = c.dual_map(0, entries, &mut progress).unwrap();
            (places, c.map_totals(&mut progress).unwrap())
        });
        let queue = c.create_queue_pair(self.depth, None, &mut progress).unwrap();
        (c.info().clone(), chunks, map, DriveQueue { queue, port })
    }

    pub(crate) fn try_open(&mut self, config: FtlConfig) -> Result<(), RrpcError> {
        let (info, chunks, map, parts) = self.attach();
        let (drive, now) = (&mut self.drive, &mut self.now);
        let mut progress = || run_drive(drive, now);
        let (places, totals) = map.unwrap();
        let map = DeviceL2pEntries { entries: &places, totals };
        let rrpc = Rrpc::open(&info, &chunks, map, parts, config, &mut progress)?;
        self.at = rrpc.memory().register(&self.memory).unwrap();
        self.rrpc = Some(rrpc);
        Ok(())
    }

    pub(crate) fn open(&mut self, config: FtlConfig) {
        self.try_open(config).unwrap();
    }

    /// Opens the target, but cuts the power after `turns` steps of the drive, unless it is open by
    /// then.
    pub(crate) fn open_cut(&mut self, config: FtlConfig, turns: u64) {
        let (info, chunks, map, parts) = self.attach();
        let (drive, now) = (&mut self.drive, &mut self.now);
        let mut left = turns;
        let mut progress = || {
            if left == 0 {
                std::panic::resume_unwind(Box::new(PowerCut));
            }
            left -= 1;
            run_drive(drive, now);
        };
        let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (places, totals) = map.unwrap();
            let map = DeviceL2pEntries { entries: &places, totals };
            Rrpc::open(&info, &chunks, map, parts, config, &mut progress).map(|_| ())
        }));
        match opened {
            Ok(done) => done.unwrap(),
            Err(panic) if panic.is::<PowerCut>() => {}
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    pub(crate) fn power_cycle(&mut self) {
        self.rrpc = None;
        self.completed.clear();
        let old = std::mem::replace(
            &mut self.drive,
            Controller::new(config(super::SMALL, false)).unwrap(),
        );
        self.drive = old.power_cut().power_on().unwrap();
    }

    pub(crate) fn rrpc(&self) -> &Rrpc {
        self.rrpc.as_ref().unwrap()
    }

    /// Runs one iteration of all parts. Returns whether there was progress.
    pub(crate) fn step(&mut self) -> bool {
        let rrpc = self.rrpc.as_mut().unwrap();
        let mut moved = rrpc.poll(self.now);
        while let Some(done) = rrpc.reap() {
            self.order.push(done.tag);
            self.completed.push(done);
            moved = true;
        }
        moved |= self.drive.poll(self.now);
        if !moved && self.drive.deadline() < Nanos::MAX {
            self.now = self.now.max(self.drive.deadline());
            moved = true;
        }
        moved
    }

    pub(crate) fn steps(&mut self, n: u64) {
        for _ in 0..n {
            self.step();
        }
    }

    pub(crate) fn send(&mut self, request: Request) {
        if request.op == block::Op::Flush {
            self.flush_covered_trim = self.is_complete(1);
        }
        let now = self.now;
        self.rrpc.as_mut().unwrap().submit(now, request).unwrap();
    }

    pub(crate) fn is_complete(&self, tag: u64) -> bool {
        self.completed.iter().any(|c| c.tag == tag)
    }

    pub(crate) fn drain_completed(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.completed)
    }

    pub(crate) fn run_until_complete(&mut self, tag: u64) -> Status {
        for _ in 0..2_000_000 {
            if let Some(done) = self.completed.iter().find(|c| c.tag == tag) {
                return done.status;
            }
            self.step();
        }
        panic!("request {tag} never ends: {}", self.rrpc().ftl().debug_state());
    }

    fn run(&mut self, request: Request) -> Status {
        self.send(Request { tag: u64::MAX, ..request });
        let status = self.run_until_complete(u64::MAX);
        self.completed.retain(|c| c.tag != u64::MAX);
        status
    }

    pub(crate) fn payload(&self) -> Payload {
        Payload::Contiguous(self.at)
    }

    pub(crate) fn payload_at(&self, offset: usize) -> Payload {
        Payload::Contiguous(self.at.offset(offset as u64))
    }

    pub(crate) fn second(&self) -> Payload {
        self.payload_at(SECOND)
    }

    pub(crate) fn second_value(&self) -> u64 {
        self.value_at(SECOND)
    }

    /// Fills sectors of the memory, starting at a byte, with consecutive values; 0 stands for
    /// zeros.
    pub(crate) fn put(&self, offset: usize, sectors: u32, value: u64) {
        for i in 0..sectors as usize {
            let value = if value == 0 { 0 } else { value + i as u64 };
            for word in 0..SECTOR / 8 {
                let bits = if value == 0 { 0 } else { value | (word as u64) << 48 };
                self.memory.write(offset + i * SECTOR + word * 8, &bits.to_le_bytes());
            }
        }
    }

    pub(crate) fn scribble(&self, offset: usize, sectors: u32) {
        self.memory.fill(offset, sectors as usize * SECTOR, 0xee);
    }

    pub(crate) fn value_at(&self, offset: usize) -> u64 {
        let mut bytes = [0; SECTOR];
        self.memory.read(offset, &mut bytes);
        let (words, _) = bytes.as_chunks::<8>();
        let value = u64::from_le_bytes(words[0]);
        for (i, word) in words.iter().enumerate() {
            let expected = if value == 0 { 0 } else { value | (i as u64) << 48 };
            assert_eq!(u64::from_le_bytes(*word), expected, "a sector that is mixed from several");
        }
        value
    }

    pub(crate) fn write(&mut self, lba: u64, sectors: u32, value: u64) {
        self.put(0, sectors, value);
        let status = self.run(Request::write(lba, sectors, self.payload(), 0));
        assert!(status.is_success(), "{status}");
    }

    pub(crate) fn discard(&mut self, lba: u64, sectors: u32) {
        assert!(self.run(Request::discard(lba, sectors, 0)).is_success());
    }

    pub(crate) fn flush(&mut self) {
        let status = self.run(Request::flush(0));
        assert!(status.is_success(), "{status}");
    }

    pub(crate) fn read(&mut self, lba: u64) -> Result<u64, Status> {
        self.scribble(0, 1);
        match self.run(Request::read(lba, 1, self.payload(), 0)) {
            status if status.is_success() => Ok(self.value_at(0)),
            status => Err(status),
        }
    }

    /// Returns the location of a sector in the device L2P, as a sector index. Attaches again; the
    /// target continues.
    pub(crate) fn mapped_sector(&mut self, lba: u64) -> u32 {
        let (info, _, map, _) = self.attach();
        let geometry = info.open_channel.unwrap().geometry;
        geometry.flat(map.unwrap().0[lba as usize].unwrap()) as u32
    }
}
