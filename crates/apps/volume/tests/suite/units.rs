//! Units: their format, their allocation, and what they keep whole on other devices.

// guarantee: B-102

use block::AtomicLimits;
use volume::{
    BLOCK, Error, FormatOptions, FsckOptions, FsckProblem, Ino, Options, VolumeLayout, VolumeOp,
    VolumeOpenError, format, fsck,
};

use crate::common::{Open, Ram, open, pattern, tick, try_open};

const BLOCKS: u64 = 1024;

/// Returns a device of 1024 blocks whose longest atomic write and boundary have these blocks.
fn device(longest: u32, boundary: u32) -> Ram {
    let mut ram = Ram::for_volume(512, BLOCKS);
    ram.limits.atomic = AtomicLimits { sectors: longest * 8, boundary_sectors: boundary * 8 };
    ram
}

fn shape(unit: Option<u32>) -> FormatOptions {
    FormatOptions { journal_blocks: Some(160), unit, ..FormatOptions::default() }
}

fn formatted(longest: u32, unit: Option<u32>) -> Ram {
    let mut ram = device(longest, 0);
    format(&mut ram, &shape(unit), tick).unwrap();
    ram
}

fn file(fs: &mut Open) -> Ino {
    fs.create(Ino::ROOT, "f").unwrap()
}

fn blocks(fs: &Open, ino: Ino) -> u64 {
    fs.volume().stat(ino).unwrap().blocks
}

#[test]
fn a_unit_is_what_the_device_and_the_journal_permit() {
    // Blocks of the longest atomic write, of its boundary, and of the unit.
    let cases = [
        (0, 0, 1),
        (1, 0, 1),
        (2, 0, 2),
        (3, 0, 2),
        (15, 0, 8),
        (16, 0, 16),
        (48, 0, 16),
        (16, 4, 4),
        (16, 6, 2),
        (16, 3, 1),
        (4, 16, 4),
    ];
    for (longest, boundary, unit) in cases {
        let mut ram = device(longest, boundary);
        let superblock = format(&mut ram, &shape(None), tick).unwrap();
        assert_eq!(superblock.layout.unit_blocks, unit, "{longest} {boundary}");
        assert_eq!(ram.durable[12], if unit > 1 { 2 } else { 0 }, "the feature flag");
        let fs = open(ram);
        let max = if longest > 0 { unit * BLOCK as u32 } else { 0 };
        assert_eq!(fs.volume().atomic_write_bytes_max(), max, "{longest} {boundary}");
    }
    // A smaller journal.
    let mut ram = device(16, 0);
    let superblock = format(&mut ram, &FormatOptions::default(), tick).unwrap();
    assert_eq!((superblock.layout.journal_blocks, superblock.layout.unit_blocks), (32, 2));
}

#[test]
fn a_unit_that_cannot_be_is_refused_and_nothing_is_written() {
    let mut ram = device(16, 0);
    for unit in [0, 1, 512, 2048, 5000, 12288, 131_072, u32::MAX] {
        let error = format(&mut ram, &shape(Some(unit)), tick).unwrap_err();
        assert!(error.to_string().contains("they have 4096 to 65536"), "{unit}: {error}");
    }
    let small = FormatOptions { unit: Some(65536), ..FormatOptions::default() };
    let error = format(&mut ram, &small, tick).unwrap_err();
    assert!(error.to_string().contains("a journal of 32 blocks permits 8192"), "{error}");
    assert!(ram.untouched());
}

#[test]
fn a_volume_opens_on_another_device_with_its_limits() {
    let mut image = formatted(16, None);
    // Another device, the pages of the cache, and what is kept whole.
    let cases = [(16, 4096, 16), (12, 4096, 8), (2, 4096, 2), (1, 4096, 1), (0, 4096, 0)];
    for (longest, cache_pages, max) in cases.into_iter().chain([(16, 20, 4), (16, 40, 8)]) {
        image.limits.atomic.sectors = longest * 8;
        let mut fs = try_open(image, Options { cache_pages, ..Options::default() }).unwrap();
        assert_eq!(fs.volume().atomic_write_bytes_max(), max * BLOCK as u32);
        let name = format!("{longest} {cache_pages}");
        let ino = fs.create(Ino::ROOT, &name).unwrap();
        fs.write(ino, 5, &pattern(9, 100_000)).unwrap();
        assert_eq!(fs.read_all(ino).unwrap()[5..], pattern(9, 100_000));
        image = fs.close().unwrap();
        assert_eq!(fsck(&mut image, FsckOptions::default(), tick).unwrap().problems, []);
        image.forget_memory();
    }
    // A volume without units has writes of a block, if the device does not tear them.
    for (longest, max) in [(16, BLOCK as u32), (0, 0)] {
        let mut ram = formatted(0, None);
        ram.limits.atomic.sectors = longest * 8;
        assert_eq!(open(ram).volume().atomic_write_bytes_max(), max);
    }
}

#[test]
fn an_aligned_write_is_one_request_also_when_a_part_is_written_again() {
    let mut fs = open(formatted(4, None));
    let ino = file(&mut fs);
    let commands = |fs: &Open| fs.volume().stats().data_commands;
    fs.write(ino, 0, &pattern(1, 8 * BLOCK)).unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    // A sync of data does not wait for the transaction with the file's new time.
    for (offset, len) in [(0, 4), (2, 2), (4, 2), (1, 1)].map(|(at, n)| (at * BLOCK, n * BLOCK)) {
        let before = commands(&fs);
        fs.write(ino, offset as u64, &pattern(2, len)).unwrap();
        fs.run(VolumeOp::Sync { ino, data_only: true }).unwrap();
        assert_eq!(commands(&fs), before + 1, "{offset} {len}");
    }
    // A part of the write is changed before it is sent.
    let before = commands(&fs);
    fs.write(ino, 0, &pattern(3, 4 * BLOCK)).unwrap();
    fs.write(ino, 5000, b"later").unwrap();
    fs.run(VolumeOp::Sync { ino, data_only: true }).unwrap();
    assert_eq!(commands(&fs), before + 1);
    let stats = fs.volume().stats();
    assert_eq!((stats.journaled_blocks, stats.whole_writes_journaled), (0, 0));
    // A full sync waits for it, so that the data is journaled with it: all blocks of the write.
    fs.write(ino, 0, &pattern(4, 4 * BLOCK)).unwrap();
    fs.sync(ino).unwrap();
    let stats = fs.volume().stats();
    assert_eq!((stats.data_commands, stats.journaled_blocks), (before + 1, 4));
    assert_eq!(stats.whole_writes_journaled, 0, "it was not journaled to be whole");
    // Five blocks are more than a sync journals.
    fs.write(ino, 0, &pattern(5, 5 * BLOCK)).unwrap();
    fs.sync(ino).unwrap();
    assert_eq!(fs.volume().stats().journaled_blocks, 4);
    let mut fs = open(crate::common::cut(fs));
    assert_eq!(fs.read_all(ino).unwrap()[..5 * BLOCK], pattern(5, 5 * BLOCK));
}

#[test]
fn a_write_to_old_and_new_blocks_is_journaled() {
    let mut fs = open(formatted(4, None));
    let ino = file(&mut fs);
    fs.write(ino, 0, &pattern(1, BLOCK)).unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    fs.write(ino, 0, &pattern(2, 4 * BLOCK)).unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    let stats = fs.volume().stats();
    assert_eq!((stats.whole_writes_journaled, stats.journaled_blocks), (1, 4));
    let mut fs = open(crate::common::cut(fs));
    assert_eq!(fs.read_all(ino).unwrap(), pattern(2, 4 * BLOCK));
}

#[test]
fn files_have_whole_units_and_free_space_says_so() {
    let mut fs = open(formatted(4, None));
    let free = |fs: &Open| fs.volume().statfs().free;
    let all = free(&fs);
    assert_eq!(fs.volume().statfs().blocks, all);
    let ino = file(&mut fs);
    fs.write(ino, 0, b"x").unwrap();
    assert_eq!((blocks(&fs, ino), free(&fs)), (4, all - 4), "promised at once");
    fs.write(ino, 5000, b"x").unwrap();
    assert_eq!((blocks(&fs, ino), free(&fs)), (4, all - 4), "in the same unit");
    fs.write(ino, 40_000, b"x").unwrap();
    assert_eq!((blocks(&fs, ino), free(&fs)), (8, all - 8), "units without data are not there");
    fs.run(VolumeOp::SyncAll).unwrap();
    assert_eq!((blocks(&fs, ino), free(&fs)), (8, all - 8));
    // A part of a unit is not freed, and reads as zeros.
    fs.run(VolumeOp::Punch { ino, offset: 0, len: 2 * BLOCK as u64 }).unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    assert_eq!((blocks(&fs, ino), free(&fs)), (8, all - 8));
    assert!(fs.read_all(ino).unwrap()[..40_000].iter().all(|b| *b == 0));
    fs.run(VolumeOp::Allocate { ino, offset: 20_000, len: 1, keep_size: true }).unwrap();
    assert_eq!((blocks(&fs, ino), free(&fs)), (12, all - 12));
    fs.run(VolumeOp::Truncate { ino, size: 1 }).unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    assert_eq!(blocks(&fs, ino), 4, "the unit of the last byte");
    fs.run(VolumeOp::Truncate { ino, size: 0 }).unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    // The sync waits for the transaction, and not for the discard that begins when it is durable.
    assert_eq!((blocks(&fs, ino), free(&fs)), (0, all - 4));
    fs.run(VolumeOp::SyncAll).unwrap();
    assert_eq!((free(&fs), fs.volume().stats().discarded_blocks), (all, 12));
    fs.volume().check_invariants().unwrap();
}

#[test]
fn without_discards_a_removed_unit_is_free_when_its_removal_is_durable() {
    let options = Options { discard: false, ..Options::default() };
    let mut fs = try_open(formatted(4, None), options).unwrap();
    let all = fs.volume().statfs().free;
    let ino = file(&mut fs);
    fs.write(ino, 0, b"x").unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    fs.run(VolumeOp::Truncate { ino, size: 0 }).unwrap();
    assert_eq!(fs.volume().statfs().free, all - 4, "the removal is not durable");
    fs.run(VolumeOp::SyncAll).unwrap();
    assert_eq!(fs.volume().statfs().free, all);
    fs.volume().check_invariants().unwrap();
}

#[test]
fn a_range_has_a_unit_at_each_end() {
    let mut fs = open(formatted(16, None));
    let ino = file(&mut fs);
    fs.write(ino, 15 * BLOCK as u64, &pattern(1, 2 * BLOCK)).unwrap();
    assert_eq!(blocks(&fs, ino), 2 + 30, "of two blocks at an edge");
    fs.write(ino, 64 * BLOCK as u64, b"x").unwrap();
    assert_eq!(blocks(&fs, ino), 32 + 16, "of one block in a unit");
}

#[test]
fn a_volume_of_units_can_be_filled_up() {
    let mut fs = open(formatted(16, None));
    let free = fs.volume().statfs().free;
    let mut files = 0;
    let error = loop {
        let ino = fs.create(Ino::ROOT, &files.to_string()).unwrap();
        if let Err(error) = fs.write(ino, 0, b"small") {
            break error;
        }
        files += 1;
    };
    assert_eq!((error, files), (Error::NoSpace, free / 16));
    let ino = fs.volume().lookup(Ino::ROOT, "0").unwrap();
    fs.write(ino, 4096, &pattern(1, 15 * BLOCK)).unwrap();
    assert_eq!(fs.write(ino, 65536, b"x"), Err(Error::NoSpace));
    fs.volume().check_invariants().unwrap();
    let mut ram = fs.close().unwrap();
    assert_eq!(fsck(&mut ram, FsckOptions::default(), tick).unwrap().problems, []);
}

#[test]
fn the_longest_file_ends_with_a_whole_unit() {
    let mut fs = open(formatted(16, None));
    let ino = file(&mut fs);
    let max = (u64::from(u32::MAX) / 16) * 16 * BLOCK as u64;
    fs.write(ino, max - 1, b"x").unwrap();
    assert_eq!(fs.write(ino, max, b"x"), Err(Error::TooLarge));
    let larger = VolumeOp::Truncate { ino, size: max + 1 };
    assert_eq!(fs.run(larger), Err(Error::TooLarge));
    fs.run(VolumeOp::Allocate { ino, offset: max - 1, len: 1, keep_size: false }).unwrap();
    fs.run(VolumeOp::Punch { ino, offset: max - 4096, len: u64::MAX >> 1 }).unwrap();
    fs.sync(ino).unwrap();
    fs.volume().check_invariants().unwrap();
}

/// Changes both superblocks, and corrects their checksums.
fn change_superblocks(ram: &mut Ram, change: impl Fn(&mut [u8])) {
    let second = ram.durable.len() - BLOCK;
    for at in [0, second] {
        let block = &mut ram.durable[at..at + 512];
        change(block);
        let crc = crc32c::crc32c(&block[..508]);
        block[508..].copy_from_slice(&crc.to_le_bytes());
    }
}

fn claim_units(ram: &mut Ram, blocks: u32) {
    change_superblocks(ram, |block| {
        block[12] |= 2;
        block[104..108].copy_from_slice(&blocks.to_le_bytes());
    });
}

#[test]
fn fsck_finds_parts_of_units_and_does_not_guess() {
    // The first block of data is a multiple of 4.
    let options = FormatOptions {
        journal_blocks: Some(33),
        metadata_blocks: Some(16),
        ..FormatOptions::default()
    };
    for (length, wrong) in [(8, None), (6, Some(5)), (3, Some(2))] {
        let mut ram = device(0, 0);
        let VolumeLayout { .. } = format(&mut ram, &options, tick).unwrap().layout;
        let mut fs = open(ram);
        let ino = file(&mut fs);
        fs.write(ino, 0, &pattern(1, length * BLOCK)).unwrap();
        let mut ram = fs.close().unwrap();
        claim_units(&mut ram, 4);
        let report = fsck(&mut ram, FsckOptions::default(), tick).unwrap();
        let expected: Vec<_> =
            wrong.map(|block| FsckProblem::Unaligned { ino, block }).into_iter().collect();
        assert_eq!(report.problems, expected);
        let repair = FsckOptions { repair: true, ..FsckOptions::default() };
        assert!(!fsck(&mut ram, repair, tick).unwrap().repaired);
        ram.forget_memory();
        let opened = try_open(ram, Options::default());
        let refused = matches!(
            opened,
            Err(VolumeOpenError::Damaged { first: FsckProblem::Unaligned { .. }, count: 1 })
        );
        assert_eq!(refused, wrong.is_some(), "{opened:?}");
    }
}

#[test]
fn a_unit_in_the_superblock_that_cannot_be_is_damage() {
    for blocks in [0, 1, 3, 32, u32::MAX] {
        let mut ram = formatted(4, None);
        claim_units(&mut ram, blocks);
        let opened = try_open(ram, Options::default());
        assert!(matches!(opened, Err(VolumeOpenError::Damaged { .. })), "{blocks}: {opened:?}");
    }
}
