//! pblk on an emulated drive in virtual time, with a model of the contents of every sector.

use std::sync::Arc;

use block::{BlockDevice, Payload, Request};
use controller::{
    Controller, ControllerConfig, DriveConfig, NullConfig, PersonalityKind, PuScheduling,
    WriteBuffer,
};
use driver::ControllerHandle;
use ftl::FtlConfig;
use lnvm::ScrubConfig;
use media::{CellType, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};
use mem::{Iova, SharedRegion};
use nvme::{ChunkId, Status};
use pblk::{DriveQueue, Pblk, PblkError};
use rng::Rng;
use time::{Component, Nanos};

pub(crate) const SECTOR: usize = 512;
/// Maximum number of sectors of a request.
pub(crate) const LONGEST: u32 = 300;
const POLL_LIMIT: u64 = 1_000_000;

/// Channels, PUs per channel, planes, chunks, pages, sectors per page, pair distance in pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape(pub u32, pub u32, pub u32, pub u32, pub u32, pub u32, pub u32);

/// Default: 2 × 2 parallel units, chunks of 64 sectors in units of 8.
pub(crate) const USUAL: Shape = Shape(2, 2, 2, 40, 8, 4, 2);

/// Without paired pages, where the drive may copy.
pub(crate) const UNPAIRED: Shape = Shape(2, 2, 2, 40, 8, 4, 0);

/// Garbage collection by copies inside of the drive.
pub(crate) fn copying() -> FtlConfig {
    FtlConfig { vector_copy: true, ..FtlConfig::default() }
}

pub(crate) fn config(shape: Shape, errors: ErrorModel, seed: u64) -> DriveConfig {
    let Shape(channels, pus, planes, chunks, pages, sectors, pair_distance) = shape;
    let geometry = NandGeometry {
        channels,
        pus,
        planes,
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
        paired_page_distance: pair_distance,
        timing: NandTiming::uniform(micros(50), micros(500), micros(3_000), 400_000_000),
        errors,
        data: DataStore::Memory,
        seed,
    };
    DriveConfig {
        open_channel: controller::OpenChannelConfig::default(),
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
        transfers: controller::TransferConfig::default(),
        name: "real".into(),
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

/// Opens pblk on the chunks of a drive for which `owned` returns true.
pub(crate) fn open(
    drive: &mut Controller,
    now: &mut Nanos,
    config: FtlConfig,
    owned: &dyn Fn(ChunkId) -> bool,
) -> Result<Pblk, PblkError> {
    Ok(open_subscribed(drive, now, config, owned)?.0)
}

/// Opens pblk as [`open`] does, and also returns the admin queue.
fn open_subscribed(
    drive: &mut Controller,
    now: &mut Nanos,
    config: FtlConfig,
    owned: &dyn Fn(ChunkId) -> bool,
) -> Result<(Pblk, ControllerHandle), PblkError> {
    let port = drive.attach().unwrap();
    let mut progress = || {
        if !drive.poll(*now) && drive.deadline() < Nanos::MAX {
            *now = (*now).max(drive.deadline());
        }
    };
    let mut controller =
        ControllerHandle::connect(port.clone(), &mut progress, POLL_LIMIT).unwrap();
    let queue = controller.create_queue_pair(256, None, &mut progress).unwrap();
    let info = controller.info().clone();
    let total = info.open_channel.unwrap().geometry.total_chunks();
    let chunks = controller.chunks(0, total, &mut progress).unwrap();
    let parts = DriveQueue { queue, port };
    let pblk = Pblk::open_on(&info, &chunks, owned, parts, config, &mut progress, true)?;
    Ok((pblk, controller))
}

/// pblk on a drive, and a model: the value that fills each sector, 0 if unmapped.
pub(crate) struct Bench {
    pub drive: Option<Controller>,
    pub pblk: Pblk,
    pub config: FtlConfig,
    pub now: Nanos,
    memory: Arc<SharedRegion>,
    at: Iova,
    pub model: Vec<u64>,
    pub rng: Rng,
    value: u64,
    /// `Some` if the device is subscribed to media events, with its scrub configuration, if any.
    subscription: Option<Option<ScrubConfig>>,
}

impl Bench {
    pub(crate) fn new(drive: DriveConfig, config: FtlConfig) -> Bench {
        Bench::on(Controller::new(drive).unwrap(), config).unwrap()
    }

    pub(crate) fn on(mut drive: Controller, config: FtlConfig) -> Result<Bench, PblkError> {
        let mut now = Nanos::ZERO;
        let pblk = open(&mut drive, &mut now, config, &|_| true)?;
        let memory = SharedRegion::anonymous(LONGEST as usize * SECTOR).unwrap();
        let at = pblk.memory().register(&memory).unwrap();
        let model = vec![0; pblk.limits().sectors as usize];
        let rng = Rng::new(1);
        Ok(Bench {
            drive: Some(drive),
            pblk,
            config,
            now,
            memory,
            at,
            model,
            rng,
            value: 0,
            subscription: None,
        })
    }

    /// Creates a bench whose device is subscribed to media events and may scrub.
    pub(crate) fn subscribed(
        drive: DriveConfig,
        ftl: FtlConfig,
        patrol: Option<ScrubConfig>,
    ) -> Bench {
        let mut bench = Bench::new(drive, ftl);
        bench.subscription = Some(patrol);
        let drive = bench.drive.take().unwrap();
        bench.reopen(drive).unwrap();
        bench
    }

    /// Advances the time to `end`.
    pub(crate) fn wait_until(&mut self, end: Nanos) {
        loop {
            let moved = self.pblk.poll(self.now);
            let drive = self.drive.as_mut().unwrap();
            if drive.poll(self.now) || moved {
                continue;
            }
            let next = drive.deadline().min(self.pblk.deadline());
            if next >= end {
                self.now = self.now.max(end);
                return;
            }
            self.now = self.now.max(next);
        }
    }

    pub(crate) fn sectors(&self) -> u64 {
        self.model.len() as u64
    }

    pub(crate) fn drive(&mut self) -> &mut Controller {
        self.drive.as_mut().unwrap()
    }

    pub(crate) fn run(&mut self, request: Request) -> Status {
        self.run_with(request, &mut |_, _| {})
    }

    /// Runs a request, and calls `each` before every poll with the number of polls so far.
    fn run_with(&mut self, request: Request, each: &mut dyn FnMut(&mut Bench, u64)) -> Status {
        self.pblk.submit(self.now, request).unwrap();
        for polls in 0..POLL_LIMIT {
            each(self, polls);
            self.pblk.poll(self.now);
            if let Some(done) = self.pblk.reap() {
                return done.status;
            }
            let drive = self.drive.as_mut().unwrap();
            if !drive.poll(self.now) && drive.deadline() < Nanos::MAX {
                self.now = self.now.max(drive.deadline());
            }
        }
        panic!("{request:?} never ends: {}", self.pblk.ftl().debug_state());
    }

    /// Writes new values; the model is updated on success.
    pub(crate) fn write(&mut self, lba: u64, sectors: u32) -> Status {
        self.write_with(lba, sectors, &mut |_, _| {})
    }

    /// Writes new values, and calls `each` before every poll with the number of polls so far.
    pub(crate) fn write_with(
        &mut self,
        lba: u64,
        sectors: u32,
        each: &mut dyn FnMut(&mut Bench, u64),
    ) -> Status {
        for i in 0..sectors {
            let bytes = (self.value + 1 + u64::from(i)).to_le_bytes();
            for word in 0..SECTOR / 8 {
                self.memory.write(i as usize * SECTOR + word * 8, &bytes);
            }
        }
        let status =
            self.run_with(Request::write(lba, sectors, Payload::Contiguous(self.at), 1), each);
        if status.is_success() {
            for i in 0..u64::from(sectors) {
                self.model[(lba + i) as usize] = self.value + 1 + i;
            }
        }
        self.value += u64::from(sectors);
        status
    }

    pub(crate) fn discard(&mut self, lba: u64, sectors: u32) -> Status {
        let status = self.run(Request::discard(lba, sectors, 1));
        if status.is_success() {
            self.model[lba as usize..][..sectors as usize].fill(0);
        }
        status
    }

    pub(crate) fn flush(&mut self) -> Status {
        self.run(Request::flush(1))
    }

    /// Flushes, and calls `each` before every poll with the number of polls so far.
    pub(crate) fn flush_with(&mut self, each: &mut dyn FnMut(&mut Bench, u64)) -> Status {
        self.run_with(Request::flush(1), each)
    }

    /// Writes a checkpoint.
    pub(crate) fn checkpoint(&mut self) {
        self.checkpoint_with(&mut |_, _| {});
    }

    /// Writes a checkpoint, and calls `each` before every poll with the number of polls so far.
    pub(crate) fn checkpoint_with(&mut self, each: &mut dyn FnMut(&mut Bench, u64)) {
        self.pblk.checkpoint();
        for polls in 0..POLL_LIMIT {
            each(self, polls);
            self.pblk.poll(self.now);
            let drive = self.drive.as_mut().unwrap();
            if !drive.poll(self.now) && drive.deadline() < Nanos::MAX {
                self.now = self.now.max(drive.deadline());
            }
            if !self.pblk.ftl().is_checkpointing() {
                return;
            }
        }
        panic!("the checkpoint never ends: {}", self.pblk.ftl().debug_state());
    }

    /// Returns the value of a sector, or the status of its read.
    pub(crate) fn read(&mut self, lba: u64) -> Result<u64, Status> {
        self.read_with(lba, &mut |_, _| {})
    }

    /// Reads a sector, and calls `each` before every poll with the number of polls so far.
    pub(crate) fn read_with(
        &mut self,
        lba: u64,
        each: &mut dyn FnMut(&mut Bench, u64),
    ) -> Result<u64, Status> {
        self.memory.fill(0, SECTOR, 0xee);
        let status = self.run_with(Request::read(lba, 1, Payload::Contiguous(self.at), 1), each);
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
                Ok(value) => assert_eq!(value, self.model[lba as usize], "sector {lba}"),
                Err(status) => {
                    assert!(status.is_media_error(), "sector {lba}: {status}");
                    lost.push(lba);
                }
            }
        }
        lost
    }

    /// Writes random ranges until `sectors` were written, or a write fails.
    pub(crate) fn churn(&mut self, sectors: u64) -> Status {
        let mut written = 0;
        while written < sectors {
            let n = 1 + self.rng.below(16.min(self.sectors())) as u32;
            let lba = self.rng.below(self.sectors() - u64::from(n) + 1);
            let status = self.write(lba, n);
            if !status.is_success() {
                // The write may have been accepted in part.
                for lba in lba..lba + u64::from(n) {
                    if let Ok(value) = self.read(lba) {
                        self.model[lba as usize] = value;
                    }
                }
                return status;
            }
            written += u64::from(n);
        }
        Status::SUCCESS
    }

    /// Cuts the power, and opens the device again.
    pub(crate) fn power_cycle(&mut self) -> Result<(), PblkError> {
        let drive = self.drive.take().unwrap().power_cut().power_on().unwrap();
        self.reopen(drive)
    }

    /// Switches to a device on a part of another drive.
    pub(crate) fn reopen_on(&mut self, mut drive: Controller, owned: impl Fn(ChunkId) -> bool) {
        self.pblk = open(&mut drive, &mut self.now, self.config, &owned).unwrap();
        self.drive = Some(drive);
        self.at = self.pblk.memory().register(&self.memory).unwrap();
        self.model = vec![0; self.pblk.limits().sectors as usize];
    }

    pub(crate) fn reopen(&mut self, mut drive: Controller) -> Result<(), PblkError> {
        let opened = open_subscribed(&mut drive, &mut self.now, self.config, &|_| true);
        self.drive = Some(drive);
        let (pblk, controller) = opened?;
        self.pblk = pblk;
        if let Some(patrol) = self.subscription {
            self.pblk
                .subscribe_events(Box::new(controller))
                .expect("a drive that tells of its media");
            if let Some(patrol) = patrol {
                self.pblk.set_scrub(patrol);
            }
        }
        self.at = self.pblk.memory().register(&self.memory).unwrap();
        assert_eq!(self.pblk.limits().sectors, self.sectors(), "the capacity stays");
        Ok(())
    }
}
