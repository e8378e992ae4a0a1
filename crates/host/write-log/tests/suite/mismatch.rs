//! Logs that do not belong to their device, and damaged ones.

// guarantee: B-50

use testkit::volatile_device::VolatileDevice;
use write_log::{
    DeviceLabel, LabelState, LogIdentity, WriteLogConfig, WriteLogError, WriteLogOpening,
};

use crate::common::{
    Contents, FusedDevice, FusedMemory, IDENTITY, Parts, SECTOR, Sequential, config, parts_of,
    sector_of,
};

const SECTORS: u64 = 32;
const BYTES: usize = 8192;

/// Creates a log with durable writes of the values from 1 on to sectors 0, 2, 4 and so on.
fn log_with(writes: u64) -> Sequential {
    let log = Parts::new(SECTORS, BYTES, 1).open(config(BYTES)).unwrap();
    let mut log = Sequential::new(log);
    for i in 0..writes {
        assert!(log.write(2 * i, 1, i + 1, true).status.is_success());
    }
    log
}

fn contents_of(log: Sequential) -> Contents {
    parts_of(log.log).contents()
}

#[test]
fn a_log_smaller_than_the_largest_logged_write_is_refused() {
    let error = |bytes: usize, config: WriteLogConfig| {
        Parts::new(SECTORS, bytes.max(64), 1).try_open(config).unwrap_err()
    };
    let minimum = 128 + 2 * (64 + 2048);
    let found = error(minimum, config(minimum - 64));
    assert!(matches!(found, WriteLogError::TooSmall { minimum: m, .. } if m == minimum), "{found}");
    assert!(Parts::new(SECTORS, minimum, 1).try_open(config(minimum)).is_ok());
    // No write is larger than the device's longest request.
    let large = WriteLogConfig { write_bytes_max: u32::MAX, ..config(BYTES) };
    let found = error(BYTES, large);
    assert!(matches!(found, WriteLogError::TooSmall { minimum: 16_640, .. }), "{found}");
    for bytes in [0, 63, 8193, BYTES + 64] {
        let found = error(BYTES, config(bytes));
        assert!(matches!(found, WriteLogError::Size { memory: BYTES, .. }), "{found}");
    }
}

#[test]
fn a_device_that_cannot_have_a_label_is_refused() {
    let Parts { mut device, memory } = Parts::new(0, BYTES, 1);
    let found = WriteLogOpening::new(&mut device, memory, config(BYTES)).unwrap_err();
    assert!(matches!(found, WriteLogError::Device { sectors: 1, .. }), "{found}");
    let mut parts = Parts::new(SECTORS, BYTES, 1);
    parts.device.device.unreadable.insert(SECTORS);
    let found = parts.try_open(config(BYTES)).unwrap_err();
    assert!(matches!(found, WriteLogError::Label { operation: "read", .. }), "{found}");
    let mut parts = Parts::new(SECTORS, BYTES, 1);
    parts.device.device.unwritable.insert(SECTORS);
    let found = parts.try_open(config(BYTES)).unwrap_err();
    assert!(matches!(found, WriteLogError::Label { operation: "write", .. }), "{found}");
}

#[test]
fn data_in_the_last_sector_is_not_overwritten() {
    let contents = || {
        let mut contents = Parts::new(SECTORS, BYTES, 1).contents();
        contents.device[SECTORS as usize * SECTOR + 500] = 1;
        contents
    };
    let found = contents().try_open(config(BYTES)).unwrap_err();
    assert!(matches!(found, WriteLogError::LastSectorInUse { lba: SECTORS }), "{found}");
    let overwrite = WriteLogConfig { overwrite_last_sector: true, ..config(BYTES) };
    assert!(contents().try_open(overwrite).is_ok());
}

#[test]
fn a_log_of_another_device_is_refused() {
    let first = contents_of(log_with(3));
    let new = Parts::new(SECTORS, BYTES, 1).contents();
    let mixed = Contents { device: new.device, memory: first.memory.clone() };
    let found = mixed.try_open(config(BYTES)).unwrap_err();
    assert!(matches!(found, WriteLogError::OtherDevice { log: IDENTITY, device: None }), "{found}");
    let other = LogIdentity([9; 16]);
    let config_of_other = WriteLogConfig { identity: other, ..config(BYTES) };
    let second = Parts::new(SECTORS, BYTES, 1).open(config_of_other).unwrap();
    let second = parts_of(second).contents();
    let mixed = Contents { device: second.device.clone(), memory: first.memory.clone() };
    let found = mixed.try_open(config(BYTES)).unwrap_err();
    assert!(
        matches!(found, WriteLogError::OtherDevice { log: IDENTITY, device } if device == Some(other)),
        "{found}"
    );
    // The other log has no records, and the device's log has data elsewhere.
    let mixed = Contents { device: first.device.clone(), memory: second.memory };
    let found = mixed.try_open(config(BYTES)).unwrap_err();
    assert!(
        matches!(found, WriteLogError::OtherDevice { log, device: Some(IDENTITY) } if log == other),
        "{found}"
    );
    assert!(first.try_open(config(BYTES)).is_ok(), "both are unharmed");
}

#[test]
fn a_device_whose_log_may_have_data_is_refused_without_it() {
    let contents = contents_of(log_with(3));
    let blank = Contents { memory: vec![0; BYTES], ..contents.clone() };
    let found = blank.try_open(config(BYTES)).unwrap_err();
    assert!(matches!(found, WriteLogError::LogMissing { identity: IDENTITY, .. }), "{found}");
    // A program without a log asks the label.
    let last = |contents: &Contents| {
        DeviceLabel::decode(&contents.device[SECTORS as usize * SECTOR..]).unwrap().unwrap()
    };
    let label = last(&contents);
    assert_eq!((label.state, label.identity), (LabelState::Attached, IDENTITY));
    assert!(matches!(label.check_without_log(), Err(WriteLogError::LogMissing { .. })));
    // After a close it may be used without, and with a new log of another size.
    let closed = log_with(3).close().contents();
    let label = last(&closed);
    assert_eq!(label.state, LabelState::Clean);
    assert!(label.check_without_log().is_ok());
    for i in 0..3 {
        let at = 2 * i * SECTOR;
        assert_eq!(closed.device[at..at + SECTOR], sector_of(i as u64 + 1), "sector {}", 2 * i);
    }
    let other_size = Contents { memory: vec![0; 6400], ..closed.clone() };
    let mut log = Sequential::new(other_size.try_open(config(6400)).unwrap());
    assert_eq!(log.read(2), 2);
    // The memory has no log any more.
    assert!(Contents { device: contents.device, ..closed }.try_open(config(BYTES)).is_err());
}

#[test]
fn an_older_copy_of_the_log_or_of_the_device_is_refused() {
    let old = contents_of(log_with(3));
    let mut log = Sequential::new(old.try_open(config(BYTES)).unwrap());
    assert_eq!(log.log.stats().replayed_records, 3);
    assert!(log.write(5, 1, 50, true).status.is_success());
    let new = contents_of(log);
    let mixed = Contents { device: new.device.clone(), memory: old.memory.clone() };
    let found = mixed.try_open(config(BYTES)).unwrap_err();
    assert!(matches!(found, WriteLogError::OldLog { log: 1, device: 2 }), "{found}");
    let mixed = Contents { device: old.device.clone(), memory: new.memory.clone() };
    let found = mixed.try_open(config(BYTES)).unwrap_err();
    assert!(matches!(found, WriteLogError::OldDevice { log: 2, device: 1 }), "{found}");
    // A device that was closed since.
    let closed = Sequential::new(new.try_open(config(BYTES)).unwrap()).close().contents();
    for memory in [old.memory, new.memory] {
        let mixed = Contents { device: closed.device.clone(), memory };
        let found = mixed.try_open(config(BYTES)).unwrap_err();
        assert!(matches!(found, WriteLogError::OldLog { device: 3, .. }), "{found}");
    }
}

#[test]
fn a_log_of_another_size_or_version_is_refused() {
    let contents = contents_of(log_with(2));
    let found = contents.try_open(config(6400)).unwrap_err();
    assert!(
        matches!(
            found,
            WriteLogError::OtherGeometry { found_bytes: 8192, expected_bytes: 6400, .. }
        ),
        "{found}"
    );
    let seal = |bytes: &mut [u8]| {
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    };
    let mut other = contents.clone();
    other.memory[8] = 2;
    seal(&mut other.memory[..64]);
    let found = other.try_open(config(BYTES)).unwrap_err();
    assert!(matches!(found, WriteLogError::Version { found: 2, expected: 1, .. }), "{found}");
    let mut other = contents.clone();
    let label = &mut other.device[SECTORS as usize * SECTOR..];
    label[8] = 2;
    seal(&mut label[..64]);
    let found = other.try_open(config(BYTES)).unwrap_err();
    assert!(matches!(found, WriteLogError::Version { found: 2, expected: 1, .. }), "{found}");
}

/// The log is refused, or all acknowledged writes are there. A flip in the last record cannot be
/// told from a write that power interrupted: then the sector is old.
#[test]
fn no_flipped_bit_changes_data() {
    const WRITES: u64 = 4;
    let contents = contents_of(log_with(WRITES));
    let record = 64 + SECTOR;
    let end = 128 + WRITES as usize * record;
    let (mut refused, mut intact, mut interrupted) = (0, 0, 0);
    for bit in 0..end * 8 {
        let (byte, mask) = (bit / 8, 1 << (bit % 8));
        let mut flipped = contents.clone();
        flipped.memory[byte] ^= mask;
        let log = match flipped.try_open(config(BYTES)) {
            Ok(log) => log,
            Err(error) => {
                assert!(matches!(error, WriteLogError::Damaged { .. }), "bit {bit}: {error}");
                assert!((128..end - record).contains(&byte), "bit {bit}: {error}");
                refused += 1;
                continue;
            }
        };
        let mut log = Sequential::new(log);
        let is_last = byte >= end - record;
        for i in 0..WRITES {
            let found = log.read(2 * i);
            let is_old = is_last && i == WRITES - 1;
            assert_eq!(found, if is_old { 0 } else { i + 1 }, "bit {bit}, sector {}", 2 * i);
        }
        assert!(byte < 128 || is_last, "bit {bit} is not noticed");
        if is_last { interrupted += 1 } else { intact += 1 }
    }
    let bits = |bytes: usize| bytes * 8;
    assert_eq!((refused, intact, interrupted), (bits(3 * record), bits(128), bits(record)));
    // Both copies of the header: the device says that there is a log.
    let mut flipped = contents;
    flipped.memory[20] ^= 1;
    flipped.memory[84] ^= 1;
    let found = flipped.try_open(config(BYTES)).unwrap_err();
    assert!(matches!(found, WriteLogError::LogMissing { .. }), "{found}");
}

#[test]
fn a_flipped_bit_of_the_label_is_refused() {
    let contents = contents_of(log_with(2));
    let label = SECTORS as usize * SECTOR;
    for bit in 0..DeviceLabel::BYTES * 8 {
        let mut flipped = contents.clone();
        flipped.device[label + bit / 8] ^= 1 << (bit % 8);
        let found = flipped.try_open(config(BYTES)).unwrap_err();
        assert!(matches!(found, WriteLogError::OtherDevice { device: None, .. }), "{found}");
    }
}

#[test]
fn the_opening_needs_power_only_once() {
    // The types of the parts, for a program that opens a log without the harness.
    let Parts { device, memory } = Parts::new(SECTORS, BYTES, 1);
    let opening: WriteLogOpening<FusedDevice, FusedMemory> =
        WriteLogOpening::new(device, memory, config(BYTES)).unwrap();
    assert!(opening.deadline() == time::Nanos::ZERO, "nothing was submitted");
    let (device, _) = opening.into_parts();
    let VolatileDevice { taken, .. } = device.device;
    assert!(taken.is_empty());
}
