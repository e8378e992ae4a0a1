//! Flushes to the host's stable storage: which completions wait for them, what their failure does,
//! and which drives cannot have them. `oracle.rs` crashes the host.

// guarantee: D-56

use std::path::Path;

use block::{Payload, Request};
use controller::{
    CmbConfig, Controller, DriveConfig, DriveError, OpenChannelConfig, PersonalityKind, WriteBuffer,
};
use media::{DataStore, InjectedFault, MediaConfig, NandConfig, PcmConfig};
use nvme::{AdminCommand, Status, feature};
use time::Nanos;

use crate::common::open_channel_host::{OpenChannelHost, open_channel};
use crate::common::{drive, nand};
use crate::full::Host;
use crate::ppa::events::RawHost;

fn small(data: DataStore) -> NandConfig {
    let mut nand = NandConfig { data, ..nand() };
    (nand.geometry.channels, nand.geometry.pus) = (1, 2);
    (nand.geometry.chunks, nand.geometry.pages) = (24, 16);
    nand
}

fn durable(folder: &Path) -> DriveConfig {
    drive(small(DataStore::DurableFile(folder.join("image"))))
}

fn flushes(drive: &Controller) -> u64 {
    drive.stats().host_flush.expect("flushes reach the host").flushes
}

fn fua(lba: u64) -> Request {
    Request { fua: true, ..Request::write(lba, 1, Payload::BitBucket, 0) }
}

#[test]
fn flushes_and_fua_reach_the_host_and_other_writes_do_not() {
    for write_buffer in [
        WriteBuffer::None,
        WriteBuffer::Volatile { bytes: 1 << 16 },
        WriteBuffer::PowerLossProtected { bytes: 1 << 16 },
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut h = Host::new(DriveConfig { write_buffer, ..durable(folder.path()) });
        assert_eq!(flushes(&h.drive), 0);
        for lba in 0..8 {
            assert_eq!(h.write(lba), Status::SUCCESS);
        }
        assert_eq!(flushes(&h.drive), 0, "{write_buffer:?}: plain writes");
        assert_eq!(h.run(Request::flush(0)), Status::SUCCESS);
        assert_eq!(flushes(&h.drive), 1, "{write_buffer:?}: a flush");
        assert_eq!(h.run(Request::flush(0)), Status::SUCCESS);
        assert_eq!(flushes(&h.drive), 1, "{write_buffer:?}: nothing is left to write");
        assert_eq!(h.run(fua(3)), Status::SUCCESS);
        assert_eq!(flushes(&h.drive), 2, "{write_buffer:?}: FUA");
        let stats = h.drive.stats().host_flush.unwrap();
        assert!(stats.time > Nanos::ZERO && stats.failures == 0, "{stats:?}");
        h.drive.shut_down().unwrap();
        // The image of a drive that was shut down is one of any drive.
        let path = folder.path().join("image");
        let len = path.metadata().unwrap().len();
        let mut h = Host::new(drive(small(DataStore::File(path.clone()))));
        assert_eq!(h.write(9), Status::SUCCESS);
        assert_eq!(h.run(Request::flush(0)), Status::SUCCESS);
        assert_eq!(h.drive.stats().host_flush, None);
        h.drive.shut_down().unwrap();
        assert_eq!(path.metadata().unwrap().len(), len);
    }
}

#[test]
fn every_write_reaches_the_host_while_the_cache_is_disabled() {
    let folder = tempfile::tempdir().unwrap();
    let mut h =
        Host::new(DriveConfig { write_buffer: WriteBuffer::None, ..durable(folder.path()) });
    let mut admin = RawHost::new(&mut h.drive);
    let cache =
        AdminCommand::SetFeatures { fid: feature::VOLATILE_WRITE_CACHE, value: 0, save: false };
    assert_eq!(admin.run(&mut h.drive, cache).status, Status::SUCCESS);
    for (i, request) in
        [Request::write(0, 1, Payload::BitBucket, 0), Request::write_zeroes(1, 1, false, 0)]
            .into_iter()
            .enumerate()
    {
        assert_eq!(h.run(request), Status::SUCCESS);
        assert_eq!(flushes(&h.drive), i as u64 + 1, "{request:?}");
    }
}

#[test]
fn a_failed_flush_fails_its_command_and_all_later_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut h = Host::new(durable(folder.path()));
    assert_eq!(h.write(0), Status::SUCCESS);
    h.drive.nand_mut().unwrap().inject(InjectedFault::HostFlush).unwrap();
    for _ in 0..3 {
        assert_eq!(h.run(Request::flush(0)), Status::WRITE_FAULT);
        assert_eq!(h.run(fua(1)), Status::WRITE_FAULT);
    }
    assert_eq!(h.write(2), Status::SUCCESS, "a write promises nothing");
    assert_eq!(h.drive.stats().host_flush.unwrap().failures, 6);
    assert!(h.drive.shut_down().is_err());
}

#[test]
fn every_completed_change_of_an_open_channel_drive_is_on_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = open_channel(small(DataStore::Memory));
    let MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
    nand.data = DataStore::DurableFile(folder.path().join("image"));
    let mut h = OpenChannelHost::new(config);
    let ppa = h.ppa(0, 0, 0, 0);
    assert_eq!(h.write(&[ppa]).status, Status::SUCCESS);
    assert_eq!(flushes(&h.drive), 1);
    assert_eq!(h.read(&[ppa]).status, Status::SUCCESS);
    assert_eq!(flushes(&h.drive), 1);
    assert_eq!(h.reset(&[ppa]).status, Status::SUCCESS);
    assert_eq!(flushes(&h.drive), 2);
    h.drive.nand_mut().unwrap().inject(InjectedFault::HostFlush).unwrap();
    assert_eq!(h.write(&[ppa]).status, Status::WRITE_FAULT);
}

fn pcm(folder: &Path, sector_bytes: u32) -> DriveConfig {
    let media = MediaConfig::Pcm(PcmConfig {
        channels: 1,
        pus: 2,
        bytes: 1 << 20,
        sector_bytes,
        read: Nanos(100),
        write: Nanos(500),
        channel_bytes_per_sec: 0,
        data: DataStore::DurableFile(folder.join("image")),
    });
    DriveConfig { media, write_buffer: WriteBuffer::None, ..drive(nand()) }
}

#[test]
fn phase_change_memory_reaches_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let mut h = Host::new(pcm(folder.path(), 4096));
    assert_eq!(h.write(0), Status::SUCCESS);
    assert_eq!(h.run(Request::write_zeroes(1, 1, false, 0)), Status::SUCCESS);
    assert_eq!(flushes(&h.drive), 0);
    assert_eq!(h.run(Request::flush(0)), Status::SUCCESS);
    assert_eq!(h.run(Request::flush(0)), Status::SUCCESS);
    assert_eq!(flushes(&h.drive), 1);
    let zeroes = Request { fua: true, ..Request::write_zeroes(2, 1, false, 0) };
    assert_eq!(h.run(zeroes), Status::SUCCESS);
    assert_eq!(flushes(&h.drive), 2);
}

#[test]
fn drives_with_state_that_a_flush_does_not_cover_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let block = durable(folder.path());
    let mut staged = block.clone();
    staged.controller.cmb = Some(CmbConfig { bytes: 4096, protected: true });
    let mapped = DriveConfig {
        personality: PersonalityKind::OpenChannel,
        open_channel: OpenChannelConfig { device_l2p: true, ..OpenChannelConfig::default() },
        ..block
    };
    for (config, what) in [
        (staged, "controller memory buffer"),
        (mapped, "device L2P"),
        (pcm(folder.path(), 8192), "larger than a page"),
    ] {
        let error = Controller::new(config).unwrap_err();
        assert!(
            matches!(&error, DriveError::Config { what: w, .. } if w.contains(what)),
            "{error}"
        );
    }
    assert!(!folder.path().join("image").exists());
}
