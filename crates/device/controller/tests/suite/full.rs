//! Drives at their limits: no free space, no spare chunks, a failed die, an invalid image.

use crate::common;

use block::{BlockDevice, Payload, Raw, Request};
use common::{drive, nand};
use controller::{Controller, DriveConfig, DriveError};
use media::{ChunkId, ChunkState, DataStore, InjectedFault, MediaConfig, NandConfig, UnitInChunk};
use nvme::{PuId, Status};
use time::{Nanos, VirtualRunner};

fn small(data: DataStore) -> DriveConfig {
    let mut nand = NandConfig { data, ..nand() };
    (nand.geometry.channels, nand.geometry.pus) = (2, 2);
    (nand.geometry.chunks, nand.geometry.pages) = (24, 16);
    drive(nand)
}

/// A host with an I/O queue.
pub(crate) struct Host {
    pub(crate) drive: Controller,
    raw: Raw,
    pub(crate) runner: VirtualRunner,
}

impl Host {
    pub(crate) fn new(config: DriveConfig) -> Host {
        let mut drive = Controller::new(config).unwrap();
        let raw = common::raw(&mut drive, 64);
        Host { drive, raw, runner: VirtualRunner::new() }
    }

    pub(crate) fn run(&mut self, request: Request) -> Status {
        self.raw.submit(self.runner.now(), request).unwrap();
        loop {
            let moved = self.runner.step(&mut [&mut self.raw, &mut self.drive], Nanos::MAX);
            if let Some(done) = self.raw.reap() {
                return done.status;
            }
            assert!(moved, "{request:?} does not complete");
        }
    }

    pub(crate) fn write(&mut self, lba: u64) -> Status {
        self.run(Request::write(lba, 1, Payload::BitBucket, 0))
    }

    fn read(&mut self, lba: u64) -> Status {
        self.run(Request::read(lba, 1, Payload::BitBucket, 0))
    }
}

#[test]
fn a_drive_without_spare_refuses_writes_until_it_is_trimmed() {
    let mut h = Host::new(small(DataStore::None));
    let sectors = h.drive.sectors();
    for lba in 0..sectors {
        assert_eq!(h.write(lba), Status::SUCCESS);
    }
    // Every chunk fails while it is written, until none is left. The first two of each parallel
    // unit hold the journal and do not fail.
    let mut lba = 0;
    let refused = loop {
        let nand = h.drive.nand_mut().unwrap();
        let unit = nand.config().write_unit();
        let open = nand.chunks().find(|(c, i)| i.state == ChunkState::Open && c.0 % 24 > 1);
        if let Some((chunk, info)) = open {
            let unit = info.write_pointer / unit;
            nand.inject(InjectedFault::Program { chunk, unit: UnitInChunk(unit) }).unwrap();
        }
        let status = h.write(lba % sectors);
        lba += 7;
        if !status.is_success() {
            break status;
        }
        assert!(lba < 100_000, "the drive does not become full");
    };
    assert!(refused.is(Status::WRITE_PROTECTED), "{refused}");
    assert!(h.drive.stats().ftl.unwrap().retired_chunks > 0);
    for lba in 0..sectors {
        assert_eq!(h.read(lba), Status::SUCCESS, "sector {lba} can still be read");
    }
    assert!(h.write(1).is(Status::WRITE_PROTECTED));
    // Free space: trim half of all sectors.
    assert_eq!(h.run(Request::discard(0, sectors as u32 / 2, 0)), Status::SUCCESS);
    for lba in 0..sectors / 8 {
        assert_eq!(h.write(lba), Status::SUCCESS, "sector {lba} after the trim");
        assert_eq!(h.read(lba), Status::SUCCESS);
    }
    assert_eq!(h.run(Request::flush(0)), Status::SUCCESS);
    for lba in sectors / 2..sectors {
        assert_eq!(h.read(lba), Status::SUCCESS);
    }
}

#[test]
fn a_die_takes_its_data_with_it_and_nothing_else() {
    let mut h = Host::new(small(DataStore::Memory));
    let sectors = h.drive.sectors();
    for lba in 0..sectors {
        assert_eq!(h.write(lba), Status::SUCCESS);
    }
    assert_eq!(h.run(Request::flush(0)), Status::SUCCESS);
    let nand = h.drive.nand_mut().unwrap();
    nand.inject(InjectedFault::DieFailure { pu: PuId(2) }).unwrap();
    let mut lost = 0;
    for lba in 0..sectors {
        match h.read(lba) {
            Status::SUCCESS => {}
            status => {
                assert_eq!(status, Status::UNRECOVERED_READ);
                lost += 1;
            }
        }
    }
    // Lines are striped over all four dies.
    assert!((sectors / 5..sectors / 3).contains(&lost), "{lost} of {sectors} sectors are lost");
    // Sectors that are written again are readable.
    for lba in 0..sectors / 4 {
        assert_eq!(h.write(lba), Status::SUCCESS);
        assert_eq!(h.read(lba), Status::SUCCESS, "sector {lba}");
    }
}

#[test]
fn unreadable_sectors_fail_alone() {
    let mut h = Host::new(small(DataStore::Memory));
    for lba in 0..64 {
        assert_eq!(h.write(lba), Status::SUCCESS);
    }
    assert_eq!(h.run(Request::flush(0)), Status::SUCCESS);
    let nand = h.drive.nand_mut().unwrap();
    // The first chunks belong to the journal.
    let written = nand.chunks().filter(|(_, info)| info.write_pointer > 2).last().unwrap().0;
    let phys = nand.layout().phys(written, 1);
    nand.inject(InjectedFault::Uncorrectable { phys }).unwrap();
    let failed = (0..64).filter(|lba| h.read(*lba) == Status::UNRECOVERED_READ).count();
    assert_eq!(failed, 1);
    assert!(
        h.drive
            .nand_mut()
            .unwrap()
            .inject(InjectedFault::ChunkBad { chunk: ChunkId(9_999) })
            .is_err()
    );
}

#[test]
fn an_image_of_something_else_is_refused_and_unharmed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let config = small(DataStore::File(path.clone()));
    let mut h = Host::new(config.clone());
    assert_eq!(h.write(5), Status::SUCCESS);
    h.drive.shut_down().unwrap();
    let before = std::fs::read(&path).unwrap();
    let mut other = config.clone();
    let MediaConfig::Nand(nand) = &mut other.media else { unreachable!() };
    nand.geometry.pages *= 2;
    assert!(matches!(Controller::new(other).unwrap_err(), DriveError::Media(_)));
    assert!(std::fs::read(&path).unwrap() == before, "the refused file must not change");
    assert_eq!(Host::new(config.clone()).read(5), Status::SUCCESS);
    // A file that is not an image.
    std::fs::write(&path, b"not an image, but somebody's file").unwrap();
    assert!(matches!(Controller::new(config).unwrap_err(), DriveError::Media(_)));
    assert_eq!(std::fs::read(&path).unwrap(), b"not an image, but somebody's file");
}
