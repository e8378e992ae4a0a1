//! Damaged, foreign and newer volumes, owners, and failing devices. They are distinguished, errors
//! are never silent, and a refused device is not written.

// guarantee: D-11

use crate::common;

use common::{Open, Ram, cut, formatted, open, pattern, tick, try_open};
use nvme::Status;
use volume::{
    BLOCK, Error, FormatOptions, FsckOptions, FsckProblem, Ino, Options, Owner, VolumeOp,
    VolumeOpenError, format, fsck,
};

const ROOT: Ino = Ino::ROOT;

fn run_fsck(ram: &mut Ram) -> Result<volume::FsckReport, VolumeOpenError> {
    fsck(ram, FsckOptions::default(), tick)
}

fn repair(ram: &mut Ram) -> Result<volume::FsckReport, VolumeOpenError> {
    fsck(ram, FsckOptions { repair: true, clear_owner: true }, tick)
}

/// Returns a small volume with data in its snapshot and in its journal, after a power cut.
fn sample(sector_bytes: u32) -> (Ram, Vec<(String, Vec<u8>)>) {
    let mut fs = open(formatted(sector_bytes, 256));
    let mut files = Vec::new();
    let dir = fs.make_directory(ROOT, "dir").unwrap();
    for i in 0..3 {
        let bytes = pattern(i, 5000);
        let file = fs.create(dir, &format!("old {i}")).unwrap();
        fs.write(file, 0, &bytes).unwrap();
        files.push((format!("dir/old {i}"), bytes));
    }
    let mut fs = open(fs.close().unwrap());
    for i in 3..5 {
        let bytes = pattern(i, 3000);
        let file = fs.create(ROOT, &format!("new {i}")).unwrap();
        fs.write(file, 0, &bytes).unwrap();
        fs.sync(file).unwrap();
        files.push((format!("new {i}"), bytes));
    }
    let mut ram = fs.into_volume().into_device();
    ram.settle();
    (ram, files)
}

fn check(fs: &mut Open, files: &[(String, Vec<u8>)]) {
    for (path, bytes) in files {
        let ino = fs.volume().lookup(ROOT, path).unwrap();
        assert_eq!(&fs.read_all(ino).unwrap(), bytes, "{path}");
    }
}

fn ram_from_image(image: &[u8], sector_bytes: u32) -> Ram {
    let mut ram = Ram::for_volume(sector_bytes, (image.len() / BLOCK) as u64);
    ram.durable.copy_from_slice(image);
    ram
}

#[test]
fn any_byte_of_metadata_that_changes_is_seen_or_does_not_matter() {
    for sector_bytes in [512, 4096] {
        let (mut ram, files) = sample(sector_bytes);
        let report = run_fsck(&mut ram).unwrap();
        assert!(report.is_clean() && report.transactions == 2, "{report:?}");
        let layout = report.superblock.layout;
        let image = ram.durable.clone();
        let metadata = (0..layout.data() as usize * BLOCK)
            .chain((layout.blocks as usize - 1) * BLOCK..image.len());
        let (mut refused, mut same) = (0, 0);
        // Damages every byte that is not zero, and a sample of the zero bytes.
        for at in metadata.filter(|at| image[*at] != 0 || at.is_multiple_of(1031)) {
            let mut damaged = image.clone();
            damaged[at] ^= 1 << (at % 8);
            let mut ram = ram_from_image(&damaged, sector_bytes);
            match try_open(ram_from_image(&damaged, sector_bytes), Options::default()) {
                Ok(mut fs) => {
                    check(&mut fs, &files);
                    same += 1;
                }
                Err(VolumeOpenError::Damaged { .. }) => {
                    refused += 1;
                    assert!(!run_fsck(&mut ram).unwrap().is_clean(), "byte {at}");
                    assert!(ram.untouched(), "byte {at}");
                    let report = repair(&mut ram).unwrap();
                    if report.repaired {
                        assert!(run_fsck(&mut ram).unwrap().is_clean(), "byte {at}");
                        let mut fs = open(ram);
                        // Everything before the damage is there.
                        check(&mut fs, &files[..3]);
                    } else {
                        assert!(report.problems.iter().any(|f| !f.is_repairable()));
                    }
                }
                Err(error) => panic!("byte {at}: {error}"),
            }
        }
        assert!(refused > 100 && same > 500, "{refused} refused, {same} had no effect");
    }
}

#[test]
fn a_damaged_superblock_is_made_anew_from_the_other() {
    for damaged in [0, 255 * BLOCK] {
        let (mut ram, files) = sample(512);
        ram.durable[damaged + 100] ^= 1;
        let report = run_fsck(&mut ram).unwrap();
        assert_eq!(report.problems, [FsckProblem::Superblock { offset: damaged as u64 }]);
        let mut fs = open(ram);
        check(&mut fs, &files);
        assert!(run_fsck(&mut fs.close().unwrap()).unwrap().problems.is_empty());
    }
    let (mut ram, _) = sample(512);
    for at in [100, 255 * BLOCK + 100] {
        ram.durable[at] ^= 1;
    }
    let error = try_open(ram, Options::default()).unwrap_err();
    assert!(matches!(
        error,
        VolumeOpenError::Damaged { first: FsckProblem::Superblock { .. }, .. }
    ));
}

#[test]
fn what_is_no_volume_newer_or_of_another_size_is_refused_and_not_touched() {
    let refused = |mut ram: Ram| {
        ram.taken.clear();
        let error = try_open(ram_from_image(&ram.durable, 512), Options::default()).unwrap_err();
        assert_eq!(run_fsck(&mut ram).unwrap_err(), error);
        assert_eq!(repair(&mut ram).unwrap_err(), error);
        assert!(ram.untouched());
        error
    };
    assert_eq!(refused(Ram::for_volume(512, 256)), VolumeOpenError::NotAVolume);
    let (mut ram, _) = sample(512);
    for at in [0, 255 * BLOCK] {
        ram.durable[at + 8] = 2;
        let crc = crc32c::crc32c(&ram.durable[at..at + 508]);
        ram.durable[at + 508..at + 512].copy_from_slice(&crc.to_le_bytes());
    }
    assert!(matches!(refused(ram), VolumeOpenError::Newer { version: 2, .. }));
    let (ram, _) = sample(512);
    let mut longer = Ram::for_volume(512, 300);
    longer.durable[..256 * BLOCK].copy_from_slice(&ram.durable);
    assert!(matches!(
        refused(longer),
        VolumeOpenError::OtherDevice { blocks: 256, device_blocks: 300, .. }
    ));
    // Formatting refuses as well, unless forced.
    let (mut ram, _) = sample(512);
    ram.untouched();
    let plain = FormatOptions::default();
    assert_eq!(format(&mut ram, &plain, tick).unwrap_err(), VolumeOpenError::HasVolume);
    assert!(ram.untouched());
    let force = FormatOptions { force: true, label: "again".into(), ..plain };
    assert_eq!(format(&mut ram, &force, tick).unwrap().label(), "again");
    let fs = open(ram);
    assert_eq!(fs.volume().list(ROOT, 0).unwrap().count(), 0);
    for (blocks, label) in [(20, ""), (256, "a label that is longer than thirty-two bytes")] {
        let options = FormatOptions { label: label.into(), ..FormatOptions::default() };
        let error = format(&mut Ram::for_volume(512, blocks), &options, tick).unwrap_err();
        assert!(matches!(error, VolumeOpenError::Unfit { .. }), "{error}");
    }
    let bad = Options { cache_pages: 3, ..Options::default() };
    assert!(matches!(try_open(formatted(512, 256), bad), Err(VolumeOpenError::Unfit { .. })));
}

#[test]
fn a_second_user_is_refused_until_the_first_is_known_to_be_gone() {
    let owner = |process| Options { owner: Owner { boot: 9, process }, ..Options::default() };
    let fs = try_open(formatted(512, 256), owner(1)).unwrap();
    let mut ram = cut(fs);
    ram.untouched();
    let image = ram.durable.clone();
    let error = try_open(ram_from_image(&image, 512), owner(2)).unwrap_err();
    assert_eq!(error, VolumeOpenError::InUse { owner: owner(1).owner });
    let wrong = Options { take_over: Some(owner(3).owner), ..owner(2) };
    assert!(try_open(ram_from_image(&image, 512), wrong).is_err());
    let right = Options { take_over: Some(owner(1).owner), ..owner(2) };
    assert!(try_open(ram_from_image(&image, 512), right).is_ok());
    assert!(
        try_open(ram_from_image(&image, 512), owner(1)).is_ok(),
        "the owner that has the volume may open it again"
    );
    let other_boot = Options { owner: Owner { boot: 10, process: 1 }, ..Options::default() };
    assert!(try_open(ram_from_image(&image, 512), other_boot).is_ok());
    // fsck checks, repairs nothing, and clears the mark if requested.
    let report = run_fsck(&mut ram).unwrap();
    assert_eq!((report.owner(), report.is_clean()), (Some(owner(1).owner), true));
    assert!(repair(&mut ram).unwrap().repaired);
    let fs = try_open(ram, owner(2)).unwrap();
    let closed = fs.close().unwrap();
    assert!(try_open(closed, owner(3)).is_ok());
}

#[test]
fn errors_of_data_are_told_by_the_sync_and_the_data_is_tried_again() {
    let mut fs = open(formatted(512, 256));
    let file = fs.create(ROOT, "f").unwrap();
    fs.write(file, 0, &pattern(1, 20_000)).unwrap();
    let data = u64::from(fs.volume().superblock().layout.data()) * 8;
    fs.volume_mut().device_mut().unwritable.extend(data..data + 8000 / 4);
    let error = fs.sync(file).unwrap_err();
    assert_eq!((error, error.errno()), (Error::Io { status: Status::WRITE_FAULT }, 5));
    assert_eq!(
        fs.read_all(file).unwrap(),
        pattern(1, 20_000),
        "data in the page cache stays readable"
    );
    assert_eq!(fs.sync(file).unwrap_err(), error);
    fs.volume_mut().device_mut().unwritable.clear();
    fs.sync(file).unwrap();
    let mut fs = open(cut(fs));
    assert_eq!(fs.read_all(file).unwrap(), pattern(1, 20_000));
    let fs_data = u64::from(fs.volume().superblock().layout.data()) * 8;
    let mut fs = open(fs.close().unwrap());
    fs.volume_mut().device_mut().unreadable.extend(fs_data..fs_data + 2000);
    let mut bytes = [0; 100];
    for offset in [0, 4096, 5000] {
        let error = fs.read(file, offset, &mut bytes).unwrap_err();
        assert_eq!(error, Error::Io { status: Status::UNRECOVERED_READ });
    }
    assert!(matches!(fs.write(file, 10, b"x"), Err(Error::Io { .. })));
    fs.volume_mut().device_mut().unreadable.clear();
    fs.write(file, 10, b"x").unwrap();
    assert_eq!(fs.read(file, 10, &mut bytes[..1]), Ok(1));
}

#[test]
fn a_journal_that_cannot_be_written_stops_changes_and_nothing_else() {
    for flush in [false, true] {
        let mut fs = open(formatted(512, 256));
        let file = fs.create(ROOT, "f").unwrap();
        fs.write(file, 0, &pattern(1, 100_000)).unwrap();
        fs.sync(file).unwrap();
        let layout = fs.volume().superblock().layout;
        let data = u64::from(layout.data()) * 8;
        let device = fs.volume_mut().device_mut();
        if flush {
            device.fail_flushes = true;
        } else {
            device.unwritable.extend(8..data);
        }
        fs.write(file, 0, &pattern(2, 100_000)).unwrap();
        assert!(matches!(fs.sync(file), Err(Error::Io { .. })));
        assert!(fs.volume().failure().is_some());
        assert!(fs.create(ROOT, "g").is_err());
        assert!(fs.write(file, 0, b"x").is_err());
        assert_eq!(fs.read_all(file).unwrap(), pattern(2, 100_000));
        assert!(matches!(fs.run(VolumeOp::SyncAll), Err(Error::Io { .. })));
        let mut ram = cut(fs);
        ram.unwritable.clear();
        ram.fail_flushes = false;
        let fs = open(ram);
        assert_eq!(fs.volume().stat(file).unwrap().size, 100_000);
    }
}

#[test]
fn blocks_are_discarded_once_they_are_unreferenced() {
    let mut fs = open(formatted(512, 256));
    let file = fs.create(ROOT, "f").unwrap();
    fs.write(file, 0, &pattern(1, 80_000)).unwrap();
    fs.sync(file).unwrap();
    let name = volume::Name::new("f").unwrap();
    fs.run(VolumeOp::Unlink { dir: ROOT, name }).unwrap();
    assert!(
        fs.volume().device().discarded.is_empty(),
        "blocks are discarded only once their release is durable"
    );
    fs.run(VolumeOp::SyncAll).unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    let device = fs.close().unwrap();
    assert_eq!(device.discarded.len(), 160);
}
