//! Journaled data: readers, versions, damage, and failures to write it in place. Power cuts are in
//! `oracle`.

// guarantee: D-12

use crate::common;

use common::{Open, Ram, cut, formatted, open, pattern, tick, try_open};
use nvme::Status;
use time::Nanos;
use volume::{
    BLOCK, Error, FormatOptions, FsckOptions, FsckProblem, FsckReport, Ino, Options, RequestBuffer,
    SetAttr, Time, VolumeOp, VolumeOpenError, VolumeRequest, format, fsck,
};

const ROOT: Ino = Ino::ROOT;
const BLOCKS: usize = 256;

fn run_fsck(ram: &mut Ram) -> FsckReport {
    fsck(ram, FsckOptions::default(), tick).unwrap()
}

fn sync_data(fs: &mut Open, ino: Ino) {
    fs.run(VolumeOp::Sync { ino, data_only: true }).unwrap();
}

/// Returns a device with the contents of `image`.
fn ram_from_image(image: &[u8]) -> Ram {
    let mut ram = Ram::for_volume(512, (image.len() / BLOCK) as u64);
    ram.durable.copy_from_slice(image);
    ram
}

/// Changes both superblocks, and corrects their checksums.
fn superblocks(image: &mut [u8], change: impl Fn(&mut [u8])) {
    let second = image.len() - BLOCK;
    for at in [0, second] {
        let block = &mut image[at..at + 512];
        change(block);
        let crc = crc32c::crc32c(&block[..508]);
        block[508..].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Encodes a data record as in `docs/format/volume.md`.
fn record(ino: Ino, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut record = vec![8];
    record.extend(ino.0.to_le_bytes());
    record.extend(offset.to_le_bytes());
    record.extend((bytes.len() as u16).to_le_bytes());
    record.extend(bytes);
    record
}

/// Returns an image with one transaction of these records in its journal, and with the feature
/// flag.
fn with_transaction(mut ram: Ram, records: &[u8]) -> Vec<u8> {
    ram.settle();
    let block = run_fsck(&mut ram).superblock;
    let mut image = ram.durable.clone();
    superblocks(&mut image, |block| block[12] |= 1);
    let mut sector = vec![0; 512];
    sector[4..6].copy_from_slice(b"SJ");
    sector[6..8].copy_from_slice(&(records.len() as u16).to_le_bytes());
    for (at, word) in [(8, block.epoch), (16, block.journal_seq), (24, block.journal_txn)] {
        sector[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    sector[32] = 3;
    sector[40..40 + records.len()].copy_from_slice(records);
    let crc = crc32c::crc32c(&sector[4..]);
    sector[..4].copy_from_slice(&crc.to_le_bytes());
    let layout = block.layout;
    let journal = (1 + 2 * layout.snapshot_blocks) as usize * BLOCK;
    let at = block.journal_seq % (u64::from(layout.journal_blocks) * 8);
    let at = journal + at as usize * 512;
    image[at..at + 512].copy_from_slice(&sector);
    image
}

#[test]
fn readers_and_smaller_openings_see_all_of_it_and_a_reader_writes_nothing() {
    let mut ram = Ram::for_volume(512, 4096);
    // Large enough that no checkpoint occurs.
    let shape = FormatOptions { journal_blocks: Some(512), ..FormatOptions::default() };
    format(&mut ram, &shape, tick).unwrap();
    let mut fs = open(ram);
    let mut files = Vec::new();
    for i in 0..60u64 {
        let ino = fs.create(ROOT, &format!("f{i}")).unwrap();
        let mut bytes = pattern(i, 100 + 150 * i as usize);
        fs.write(ino, 0, &bytes).unwrap();
        // Half of the files are written in place, the others to the journal.
        fs.run(if i % 2 == 0 {
            VolumeOp::SyncAll
        } else {
            VolumeOp::Sync { ino, data_only: true }
        })
        .unwrap();
        let part = pattern(100 + i, 50);
        bytes[20..70].copy_from_slice(&part);
        fs.write(ino, 20, &part).unwrap();
        fs.sync(ino).unwrap();
        files.push((ino, bytes));
    }
    let stats = fs.volume().stats();
    assert!(stats.journal_only_blocks > 40, "{stats:?}");
    let mut ram = cut(fs);
    let report = run_fsck(&mut ram);
    assert!(
        report.is_clean() && report.journaled_blocks >= stats.journal_only_blocks,
        "{report:?}"
    );
    ram.untouched();
    let few = Options { cache_pages: 16, ..Options::default() };
    let mut fs = try_open(ram, Options { read_only: true, ..few }).unwrap();
    for (ino, bytes) in &files {
        assert_eq!(&fs.read_all(*ino).unwrap(), bytes, "{ino}");
        let blocks = bytes.len().div_ceil(BLOCK) as u64;
        assert_eq!(fs.volume().stat(*ino).unwrap().blocks, blocks);
    }
    fs.sync(files[0].0).unwrap();
    let mut ram = fs.close().unwrap();
    assert!(ram.untouched());
    let mut fs = try_open(ram, few).unwrap();
    assert_eq!(fs.volume().stats().recovered_blocks, report.journaled_blocks);
    for (ino, bytes) in &files {
        assert_eq!(&fs.read_all(*ino).unwrap(), bytes, "{ino}");
    }
    let mut fs = open(cut(fs));
    assert_eq!(fs.volume().stats().recovered_blocks, 0, "the data is in place");
    for (ino, bytes) in &files {
        assert_eq!(&fs.read_all(*ino).unwrap(), bytes, "{ino}");
    }
}

#[test]
fn a_volume_tells_older_readers_of_it_until_it_is_closed_and_older_volumes_are_read() {
    let features = |ram: &Ram| [0, BLOCKS - 1].map(|b| ram.durable[b * BLOCK + 12]);
    let ram = formatted(512, BLOCKS as u64);
    assert_eq!(features(&ram), [0, 0], "a volume without journaled data has no feature flag");
    let mut fs = open(ram);
    let file = fs.create(ROOT, "f").unwrap();
    fs.write(file, 0, b"small").unwrap();
    sync_data(&mut fs, file);
    let ram = cut(fs);
    assert_eq!(features(&ram), [1, 1]);
    // Without the feature flag such a record is malformed.
    let mut image = ram.durable.clone();
    superblocks(&mut image, |block| block[12] = 0);
    let error = try_open(ram_from_image(&image), Options::default()).unwrap_err();
    assert!(
        matches!(error, VolumeOpenError::Damaged { first: FsckProblem::Record { .. }, .. }),
        "{error}"
    );
    // An unknown feature.
    superblocks(&mut image, |block| block[12] = 5);
    let error = try_open(ram_from_image(&image), Options::default()).unwrap_err();
    assert!(matches!(error, VolumeOpenError::Newer { features: 5, .. }), "{error}");
    let mut fs = open(ram);
    assert_eq!(fs.read_all(file).unwrap(), b"small");
    let ram = fs.close().unwrap();
    assert_eq!(features(&ram), [0, 0], "older versions can read the volume again");
    // A volume after a power cut under such a version: its journal has sizes and extents.
    let mut fs = open(ram);
    fs.write(file, 5, &pattern(1, 40_000)).unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    assert_eq!(fs.volume().stats().journaled_blocks, 0);
    let mut image = cut(fs).durable;
    superblocks(&mut image, |block| block[12] = 0);
    let mut fs = open(ram_from_image(&image));
    assert_eq!(fs.volume().stats().recovered, 1);
    assert_eq!(fs.read_all(file).unwrap()[5..], pattern(1, 40_000));
}

#[test]
fn data_of_what_is_not_there_is_damage_that_can_be_repaired() {
    let mut fs = open(formatted(512, BLOCKS as u64));
    let dir = fs.make_directory(ROOT, "d").unwrap();
    let file = fs.create(ROOT, "f").unwrap();
    fs.write(file, 0, &pattern(1, 5000)).unwrap();
    let ram = fs.close().unwrap();
    for (ino, offset, block) in [(Ino(99), 0, 0), (dir, 10, 0), (file, 8192, 2)] {
        let image = with_transaction(ram_from_image(&ram.durable), &record(ino, offset, b"stray"));
        let finding = FsckProblem::OrphanedData { ino, block };
        let report = run_fsck(&mut ram_from_image(&image));
        assert_eq!(report.problems, std::slice::from_ref(&finding));
        assert!(!report.is_clean() && finding.is_repairable());
        let error = try_open(ram_from_image(&image), Options::default()).unwrap_err();
        assert_eq!(error, VolumeOpenError::Damaged { first: finding, count: 1 });
        let mut ram = ram_from_image(&image);
        let repair = FsckOptions { repair: true, clear_owner: false };
        assert!(fsck(&mut ram, repair, tick).unwrap().repaired);
        assert!(run_fsck(&mut ram).problems.is_empty());
        assert_eq!(open(ram).read_all(file).unwrap(), pattern(1, 5000));
    }
    // Valid records: beside other data, over a hole, and up to the end of the file.
    let mut all = record(file, 4090, b"abcdef");
    all.extend(record(file, 4096, &[b'x'; 100]));
    all.extend(record(file, 4990, &[b'y'; 100]));
    let mut ram = ram_from_image(&with_transaction(ram, &all));
    assert!(run_fsck(&mut ram).is_clean() && run_fsck(&mut ram).journaled_blocks == 2);
    let repair = FsckOptions { repair: true, clear_owner: true };
    assert!(!fsck(&mut ram, repair, tick).unwrap().repaired, "there is nothing to repair");
    let mut fs = open(ram);
    let mut expected = pattern(1, 5000);
    expected[4090..4096].copy_from_slice(b"abcdef");
    expected[4096..4196].fill(b'x');
    expected[4990..].fill(b'y');
    assert_eq!(fs.read_all(file).unwrap(), expected);
    fs.run(VolumeOp::Truncate { ino: file, size: 6000 }).unwrap();
    expected.resize(6000, 0);
    assert_eq!(fs.read_all(file).unwrap(), expected);
}

#[test]
fn invalid_data_or_data_without_space_is_refused() {
    let mut fs = open(formatted(512, BLOCKS as u64));
    let file = fs.create(ROOT, "f").unwrap();
    let size = fs.volume().statfs().free * BLOCK as u64;
    fs.write(file, 0, &pattern(1, size as usize)).unwrap();
    fs.run(VolumeOp::Truncate { ino: file, size: size + 4096 }).unwrap();
    let ram = fs.close().unwrap();
    let mut cut_off = record(file, 0, b"some");
    cut_off.pop();
    for records in [record(file, 0, b""), record(file, 4090, b"abcdefg"), cut_off] {
        let image = with_transaction(ram_from_image(&ram.durable), &records);
        let found = run_fsck(&mut ram_from_image(&image)).problems;
        assert!(matches!(found[..], [FsckProblem::Record { .. }]), "{found:?}");
    }
    let image = with_transaction(ram, &record(file, size, b"one block too many"));
    let finding = FsckProblem::NotEnoughSpace { blocks: 1 };
    let error = try_open(ram_from_image(&image), Options::default()).unwrap_err();
    assert_eq!(error, VolumeOpenError::Damaged { first: finding.clone(), count: 1 });
    let mut ram = ram_from_image(&image);
    let repair = FsckOptions { repair: true, clear_owner: true };
    let report = fsck(&mut ram, repair, tick).unwrap();
    assert_eq!((report.problems, report.repaired), (vec![finding], false));
    assert!(ram.untouched());
}

#[test]
fn what_cannot_be_brought_in_place_stays_in_the_journal() {
    let mut fs = open(formatted(512, BLOCKS as u64));
    let file = fs.create(ROOT, "f").unwrap();
    let layout = fs.volume().superblock().layout;
    let data = u64::from(layout.data()) * 8..u64::from(layout.blocks - 1) * 8;
    fs.volume_mut().device_mut().unwritable.extend(data.clone());
    let mut all = Vec::new();
    let mut append = |fs: &mut Open, i| {
        let line = pattern(i, 300);
        fs.write(file, all.len() as u64, &line).unwrap();
        all.extend(line);
        fs.run(VolumeOp::Sync { ino: file, data_only: true }).map(|_| all.clone())
    };
    let mut last = Vec::new();
    for i in 0..20 {
        last = append(&mut fs, i).unwrap();
    }
    assert_eq!(fs.run(VolumeOp::Close), Err(Error::Io { status: Status::WRITE_FAULT }));
    assert_eq!(fs.volume().failure(), Some(Status::WRITE_FAULT));
    // The next writable mount fails as well; a read-only one need not.
    let ram = cut(fs);
    let image = ram.durable.clone();
    let error = try_open(ram, Options::default()).unwrap_err();
    assert!(matches!(error, VolumeOpenError::Io { status: Status::WRITE_FAULT, .. }), "{error}");
    let mut fs =
        try_open(ram_from_image(&image), Options { read_only: true, ..Options::default() })
            .unwrap();
    assert_eq!(fs.read_all(file).unwrap(), last);
    // With more such data than the journal holds, changes stop before anything is lost.
    let mut fs = open(ram_from_image(&image));
    fs.volume_mut().device_mut().unwritable.extend(data);
    let mut wrote = last;
    let error = loop {
        let line = pattern(wrote.len() as u64, 300);
        if let Err(error) = fs.write(file, wrote.len() as u64, &line) {
            break error;
        }
        let before = wrote.len();
        wrote.extend(line);
        if let Err(error) = fs.run(VolumeOp::Sync { ino: file, data_only: true }) {
            wrote.truncate(before);
            break error;
        }
    };
    assert_eq!(error, Error::Io { status: Status::WRITE_FAULT });
    let mut ram = cut(fs);
    ram.unwritable.clear();
    let found = open(ram).read_all(file).unwrap();
    assert!(found.starts_with(&wrote), "{} of {}", found.len(), wrote.len());
}

/// A checkpoint is in progress that the device prevents from ending. While the volume is open the data
/// is written again later; closing it fails instead of waiting for that.
#[test]
fn a_close_does_not_wait_for_a_checkpoint_whose_data_cannot_be_written() {
    let mut fs = open(formatted(512, BLOCKS as u64));
    let file = fs.create(ROOT, "f").unwrap();
    fs.write(file, 0, &pattern(1, 300)).unwrap();
    sync_data(&mut fs, file);
    let layout = fs.volume().superblock().layout;
    let data = u64::from(layout.data()) * 8..u64::from(layout.blocks - 1) * 8;
    fs.volume_mut().device_mut().unwritable.extend(data);
    let before = fs.volume().stats().checkpoint_bytes;
    let mut names = 0;
    while fs.volume().stats().checkpoint_bytes == before {
        names += 1;
        fs.create(ROOT, &format!("{names}")).unwrap();
        fs.run(VolumeOp::Sync { ino: ROOT, data_only: false }).unwrap();
    }
    assert_eq!(fs.volume().failure(), None, "the journal has space");
    assert_eq!(fs.run(VolumeOp::Close), Err(Error::Io { status: Status::WRITE_FAULT }));
    let mut ram = cut(fs);
    ram.unwritable.clear();
    assert_eq!(open(ram).read_all(file).unwrap(), pattern(1, 300));
}

#[test]
fn bytes_between_the_end_and_what_is_written_behind_it_are_zeros_after_a_cut() {
    for sector_bytes in [512, 4096] {
        for again in [0, 100, 1000, 3500] {
            let mut fs = open(formatted(sector_bytes, BLOCKS as u64));
            let file = fs.create(ROOT, "f").unwrap();
            fs.write(file, 0, &pattern(1, 4000)).unwrap();
            sync_data(&mut fs, file);
            fs.run(VolumeOp::Truncate { ino: file, size: again }).unwrap();
            fs.write(file, 3700, b"behind a gap").unwrap();
            sync_data(&mut fs, file);
            assert_eq!(fs.volume().stats().journaled_blocks, 2);
            let mut fs = open(cut(fs));
            let mut expected = pattern(1, 4000);
            expected.truncate(again as usize);
            expected.resize(3700, 0);
            expected.extend(b"behind a gap");
            assert_eq!(fs.read_all(file).unwrap(), expected, "{again}");
        }
    }
}

#[test]
fn a_block_that_cannot_be_read_is_not_made_up() {
    let mut fs = open(formatted(512, BLOCKS as u64));
    let file = fs.create(ROOT, "f").unwrap();
    fs.write(file, 0, &pattern(1, 4000)).unwrap();
    let mut fs = open(fs.close().unwrap());
    let data = u64::from(fs.volume().superblock().layout.data()) * 8;
    fs.write(file, 3000, b"in the journal").unwrap();
    fs.sync(file).unwrap();
    let mut ram = cut(fs);
    ram.unreadable.extend(data..data + 1000);
    let image = ram.durable.clone();
    for read_only in [false, true] {
        let mut ram = ram_from_image(&image);
        ram.unreadable.extend(data..data + 1000);
        let error = try_open(ram, Options { read_only, ..Options::default() }).unwrap_err();
        assert!(
            matches!(error, VolumeOpenError::Io { status: Status::UNRECOVERED_READ, .. }),
            "{error}"
        );
    }
    let mut expected = pattern(1, 4000);
    expected[3000..3014].copy_from_slice(b"in the journal");
    assert_eq!(open(ram_from_image(&image)).read_all(file).unwrap(), expected);
}

/// A write beyond the end of a file zeroes the rest of its last block, and may then wait for pages.
/// A sync of the file meanwhile must not leave the zeros out of the journal.
#[test]
fn zeros_of_a_write_that_waits_are_journaled_by_a_sync_of_its_file() {
    let options = Options { cache_pages: 16, ..Options::default() };
    let mut fs = try_open(formatted(512, BLOCKS as u64), options).unwrap();
    let (file, other) = (fs.create(ROOT, "file").unwrap(), fs.create(ROOT, "other").unwrap());
    fs.write(file, 0, &pattern(1, BLOCK)).unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    fs.run(VolumeOp::Truncate { ino: file, size: 49 }).unwrap();
    sync_data(&mut fs, file);
    // The other file is older, and written first.
    fs.write(other, 0, &pattern(3, 10)).unwrap();
    fs.write(file, 0, &pattern(2, 10)).unwrap();
    let (_, iova) = fs.volume().memory().allocate_registered(11 * BLOCK).unwrap();
    let data = |len: usize| RequestBuffer { iova, len: len as u32 };
    // The first write leaves one page for changes: the second one uses it, and waits.
    let ops = [
        VolumeOp::Write { ino: other, offset: 0, data: data(11 * BLOCK) },
        VolumeOp::SetAttr {
            ino: file,
            changes: SetAttr { mode: Some(0o600), ..SetAttr::default() },
        },
        VolumeOp::Write { ino: file, offset: 40_000, data: data(10) },
        VolumeOp::Sync { ino: file, data_only: false },
    ];
    for (id, op) in (1000..).zip(ops) {
        let request = VolumeRequest { id, op, time: Time(0) };
        fs.volume_mut().submit(Nanos(1), request).unwrap();
    }
    fs.run(VolumeOp::Read { ino: other, offset: 0, data: data(1) }).unwrap();
    fs.run(VolumeOp::Sync { ino: file, data_only: false }).unwrap();
    let mut fs = open(cut(fs));
    let bytes = fs.read_all(file).unwrap();
    assert_eq!(bytes.len(), 40_010);
    assert_eq!(bytes[..10], pattern(2, 10));
    assert!(bytes[49..40_000].iter().all(|byte| *byte == 0), "removed data is back");
}
