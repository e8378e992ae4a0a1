//! Write Uncorrectable: blocks that cannot be read until they are written.

use controller::WriteBuffer;
use ftl::FtlConfig;
use nvme::{DsmRange, Sqe, Status};

use super::harness::{Bench, config};

const UNREADABLE: Status = Status::UNRECOVERED_READ;

#[test]
fn marked_blocks_fail_until_they_are_written_or_trimmed() {
    let mut b = Bench::new(config());
    b.write(0, 8, 4096, 1);
    assert_eq!(b.io(Sqe::write_uncorrectable(1, 2, 3), 0).status, Status::SUCCESS);
    for on_flash in [false, true] {
        if on_flash {
            b.flush();
        }
        for lba in 0..8 {
            let expected = if (2..5).contains(&lba) { Err(UNREADABLE) } else { Ok(vec![lba + 1]) };
            assert_eq!(b.read(lba.into(), 1, 4096), expected, "block {lba}");
        }
        // The first block in error is that of the mark, in commands of each kind.
        assert_eq!(b.read(1, 6, 4096), Err(UNREADABLE));
        assert_eq!(b.newest_error(), (UNREADABLE, 2));
        assert_eq!(b.io(Sqe::verify(1, 0, 8), 0).status, UNREADABLE);
        assert_eq!(b.newest_error(), (UNREADABLE, 2));
        b.fill(1, 4096, 5);
        assert_eq!(b.io(Sqe::compare(1, 4, 1), 4096).status, UNREADABLE);
        assert_eq!(b.newest_error(), (UNREADABLE, 4));
        assert_eq!(b.io(Sqe::verify(1, 5, 3), 0).status, Status::SUCCESS);
    }
    b.write(2, 1, 4096, 50);
    assert_eq!(b.io(Sqe::write_zeroes(1, 3, 1, false), 0).status, Status::SUCCESS);
    b.host.memory.write(0, &DsmRange::new(4, 1).to_bytes());
    assert_eq!(b.io(Sqe::dataset_management(1, 1, true), 16).status, Status::SUCCESS);
    assert_eq!(b.read(0, 8, 4096), Ok(vec![1, 2, 50, 0, 0, 6, 7, 8]));
    assert_eq!(b.drive.stats().block_commands.uncorrectable_writes, 1);
    // The marks are no errors of the media.
    assert_eq!(b.drive.stats().media.unwrap().uncorrectable_reads, 0);
}

#[test]
fn flushed_marks_survive_power_cuts_and_garbage_collection() {
    let mut b = Bench::new(config());
    let sectors = b.drive.sectors();
    for lba in 0..sectors {
        b.write(lba, 1, 4096, lba as u8 % 200);
    }
    let marked = |lba: u64| lba % 7 == 3;
    for lba in (0..sectors).filter(|lba| marked(*lba)) {
        assert_eq!(b.io(Sqe::write_uncorrectable(1, lba, 1), 0).status, Status::SUCCESS);
    }
    b.flush();
    let mut relocations = 0;
    for round in 0..4 {
        // Lines with marked blocks are reclaimed.
        for lba in (0..4 * sectors).map(|i| i * 37 % sectors).filter(|lba| !marked(*lba)) {
            b.write(lba, 1, 4096, lba as u8 % 200);
        }
        relocations += b.drive.ftl().unwrap().stats().gc_relocations;
        if round % 2 == 1 {
            b.flush();
            b = b.restart();
        }
        for lba in 0..sectors {
            let expected = if marked(lba) { Err(UNREADABLE) } else { Ok(vec![lba as u8 % 200]) };
            assert_eq!(b.read(lba, 1, 4096), expected, "block {lba}, round {round}");
        }
    }
    assert!(relocations > 0);
    for lba in (0..sectors).filter(|lba| marked(*lba)) {
        b.write(lba, 1, 4096, 201);
    }
    b.flush();
    let mut b = b.restart();
    for lba in (0..sectors).filter(|lba| marked(*lba)) {
        assert_eq!(b.read(lba, 1, 4096), Ok(vec![201]), "block {lba}");
    }
}

#[test]
fn a_mark_is_durable_when_it_completes_without_a_cache() {
    let mut through = config();
    through.write_buffer = WriteBuffer::None;
    let mut b = Bench::new(through);
    b.write(9, 1, 4096, 1);
    assert_eq!(b.io(Sqe::write_uncorrectable(1, 9, 1), 0).status, Status::SUCCESS);
    let mut b = b.restart();
    assert_eq!(b.read(9, 1, 4096), Err(UNREADABLE));
}

#[test]
fn marks_are_in_the_pages_of_a_map_that_is_cached() {
    let mut cached = config();
    cached.ftl = FtlConfig { map_cache_sectors: 1 << 20, ..cached.ftl };
    let mut b = Bench::new(cached);
    b.write(9, 3, 4096, 1);
    assert_eq!(b.io(Sqe::write_uncorrectable(1, 10, 1), 0).status, Status::SUCCESS);
    b.flush();
    let mut b = b.restart().restart();
    assert_eq!(b.read(10, 1, 4096), Err(UNREADABLE));
    assert_eq!((b.read(9, 1, 4096), b.read(11, 1, 4096)), (Ok(vec![1]), Ok(vec![3])));
}

#[test]
fn marks_that_cannot_be_are_refused() {
    let mut b = Bench::new(config());
    let sectors = b.drive.sectors();
    for (slba, nlb) in [(sectors, 1), (sectors - 1, 2), (u64::MAX, 1), (u64::MAX - 3, 16)] {
        let status = b.io(Sqe::write_uncorrectable(1, slba, nlb), 0).status;
        assert_eq!(status, Status::LBA_OUT_OF_RANGE.do_not_retry());
    }
    for bit in 16..32 {
        let mut sqe = Sqe::write_uncorrectable(1, 0, 1);
        sqe.cdw12 |= 1 << bit;
        assert_eq!(b.io(sqe, 0).status, Status::INVALID_FIELD, "bit {bit}");
    }
    assert_eq!(b.read(0, 1, 4096), Ok(vec![0]));
    b.host.check_serves(&mut b.drive);
}
