//! Where protection information is kept: write buffer, flash, image, saved states.

use controller::{CorruptedPart, DriveConfig, WriteBuffer};
use media::{DataStore, MediaConfig};
use nvme::{ProtectionInfo, Status};

use super::harness::{Bench, CHECKS, config};

fn in_image(path: &std::path::Path, protected: bool) -> DriveConfig {
    let mut config = config(512);
    let MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
    nand.data = DataStore::File(path.into());
    if !protected {
        config.protection = None;
    }
    config
}

#[test]
fn information_survives_power_cuts_with_its_data() {
    let protected_buffer = WriteBuffer::PowerLossProtected { bytes: 1 << 18 };
    for write_buffer in [WriteBuffer::Volatile { bytes: 0 }, protected_buffer] {
        let mut b = Bench::new(DriveConfig { write_buffer, ..config(512) });
        b.write(0, 100, 1);
        if write_buffer != protected_buffer {
            b.flush();
        }
        let mut b = b.restart();
        assert_eq!(b.read_as(0, 100, CHECKS, 0), Ok((1..101).collect()));
        assert_eq!(b.info(99), b.info_of(100, 0, 99));
        b.corrupt(50, CorruptedPart::Data);
        let mut b = b.restart();
        assert_eq!(b.read(0, 100), Err(Status::GUARD_CHECK));
        assert_eq!(b.newest_error(), (Status::GUARD_CHECK, 48));
    }
}

/// An image has information for the blocks that a drive with protection information wrote.
#[test]
fn an_image_is_opened_with_and_without_protection_information() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let mut b = Bench::new(in_image(&path, true));
    b.write(0, 16, 1);
    b.flush();
    b.corrupt(3, CorruptedPart::Data);
    b.drive.shut_down().unwrap();
    // The plain drive returns the wrong data, and writes blocks without information.
    let mut b = Bench::new(in_image(&path, false));
    assert_eq!(b.read_as(3, 1, 0, 0), Ok(vec![4 ^ 0x5a]));
    b.write(16, 8, 50);
    b.flush();
    b.drive.shut_down().unwrap();
    let mut b = Bench::new(in_image(&path, true));
    assert_eq!(b.read(3, 1), Err(Status::GUARD_CHECK));
    assert_eq!(b.read_as(8, 16, CHECKS, 0), { Ok((9..17).chain(50..58).collect::<Vec<u8>>()) });
    assert_eq!((b.info(7), b.info(8)), (b.info_of(16, 0, 15), ProtectionInfo::UNCHECKED));
}

/// A change of one block reads, modifies and writes its sector: wrong neighbors stay wrong.
#[test]
fn a_change_of_a_neighbor_does_not_protect_wrong_data() {
    let mut b = Bench::new(config(512));
    b.write(0, 8, 1);
    b.flush();
    b.corrupt(0, CorruptedPart::Data);
    b.write(4, 1, 99);
    for on_flash in [false, true] {
        if on_flash {
            b.flush();
        }
        assert_eq!(b.read(4, 1), Ok(vec![99]));
        for wrong in [0, 3, 5, 7] {
            assert_eq!(b.read(wrong, 1), Err(Status::GUARD_CHECK), "block {wrong}");
        }
    }
    assert_eq!(b.errors().guard, 8);
}
