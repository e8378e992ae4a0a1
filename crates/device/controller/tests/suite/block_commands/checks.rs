//! Compare and Verify.

use controller::{AccessPolicy, AccessScope, DriveConfig};
use media::{DataStore, MediaConfig};
use nvme::{IdentifyController, SglDescriptor, Sqe, Status};
use time::Nanos;

use super::harness::{Bench, config};
use crate::common::{drive, nand};
use crate::hostile::host::configs;

/// Time of a read of a sector: the array, and the transfer of 4 KiB over a channel of 400 MB/s.
const READ: Nanos = Nanos(50_000 + 10_240);

#[test]
fn a_compare_finds_the_first_block_that_differs() {
    let mut b = Bench::new(config());
    b.write(3, 4, 4096, 10);
    for on_flash in [false, true] {
        if on_flash {
            b.flush();
        }
        b.fill(4, 4096, 10);
        assert_eq!(b.io(Sqe::compare(1, 3, 4), 4 * 4096).status, Status::SUCCESS);
        // The last byte of the third block.
        b.host.memory.write(3 * 4096 - 1, &[99]);
        assert_eq!(b.io(Sqe::compare(1, 3, 4), 4 * 4096).status, Status::COMPARE_FAILURE);
        assert_eq!(b.newest_error(), (Status::COMPARE_FAILURE, 5));
        assert_eq!(b.io(Sqe::compare(1, 3, 2), 2 * 4096).status, Status::SUCCESS);
    }
    // Blocks that were never written are zeros.
    b.fill(1, 4096, 0);
    assert_eq!(b.io(Sqe::compare(1, 40, 1), 4096).status, Status::SUCCESS);
    b.fill(1, 4096, 1);
    assert_eq!(b.io(Sqe::compare(1, 40, 1), 4096).status, Status::COMPARE_FAILURE);
    // Nothing has changed.
    assert_eq!(b.read(3, 4, 4096), Ok(vec![10, 11, 12, 13]));
    let stats = b.drive.stats().block_commands;
    assert_eq!((stats.compares, stats.mismatches), (8, 3));
}

#[test]
fn parts_of_units_are_compared() {
    let mut b = Bench::new(DriveConfig { lba_bytes: Some(512), ..config() });
    b.write(5, 20, 512, 1);
    for on_flash in [false, true] {
        if on_flash {
            b.flush();
        }
        b.fill(20, 512, 1);
        assert_eq!(b.io(Sqe::compare(1, 5, 20), 20 * 512).status, Status::SUCCESS);
        b.fill(9, 512, 4);
        assert_eq!(b.io(Sqe::compare(1, 8, 9), 9 * 512).status, Status::SUCCESS);
        b.host.memory.write(8 * 512, &[0]);
        assert_eq!(b.io(Sqe::compare(1, 8, 9), 9 * 512).status, Status::COMPARE_FAILURE);
        assert_eq!(b.newest_error(), (Status::COMPARE_FAILURE, 16));
        assert_eq!(b.io(Sqe::verify(1, 7, 9), 0).status, Status::SUCCESS);
    }
}

#[test]
fn a_drive_without_data_compares_the_pattern_that_it_reads() {
    let mut without = config();
    let MediaConfig::Nand(nand) = &mut without.media else { unreachable!() };
    nand.data = DataStore::None;
    let mut b = Bench::new(without);
    b.fill(2, 4096, 0);
    assert_eq!(b.io(Sqe::write(1, 6, 2, false), 2 * 4096).status, Status::SUCCESS);
    for on_flash in [false, true] {
        if on_flash {
            b.flush();
        }
        assert_eq!(b.io(Sqe::read(1, 6, 2), 2 * 4096).status, Status::SUCCESS);
        assert_eq!(b.io(Sqe::compare(1, 6, 2), 2 * 4096).status, Status::SUCCESS);
        b.host.memory.write(5000, &[1, 2, 3]);
        assert_eq!(b.io(Sqe::compare(1, 6, 2), 2 * 4096).status, Status::COMPARE_FAILURE);
        assert_eq!(b.newest_error(), (Status::COMPARE_FAILURE, 7));
    }
}

#[test]
fn checks_take_the_time_of_a_read() {
    let mut slow = drive(media::NandConfig { data: DataStore::Memory, ..nand() });
    slow.controller.dma_bytes_per_sec = 100_000_000;
    let transfer = Nanos::transfer(4096, 100_000_000);
    let mut b = Bench::new(slow);
    b.write(0, 1, 4096, 1);
    b.flush();
    b.fill(1, 4096, 1);
    let ok = Status::SUCCESS;
    assert_eq!(b.timed(Sqe::read(1, 0, 1), 4096), (ok, READ + transfer));
    assert_eq!(b.timed(Sqe::compare(1, 0, 1), 4096), (ok, READ + transfer));
    assert_eq!(b.timed(Sqe::verify(1, 0, 1), 0), (ok, READ));
    let stats = b.drive.stats();
    assert_eq!((stats.reads, stats.bytes_read, stats.others), (2, 8192, 2), "a flush, a Verify");
}

#[test]
fn checks_that_cannot_be_are_refused() {
    let mut b = Bench::new(config());
    let sectors = b.drive.sectors();
    for (slba, nlb) in [(sectors, 1), (sectors - 1, 2), (u64::MAX, 1), (u64::MAX - 3, 16)] {
        let compare = b.io(Sqe::compare(1, slba, nlb), nlb as usize * 4096).status;
        assert_eq!(compare, Status::LBA_OUT_OF_RANGE.do_not_retry());
        let verify = b.io(Sqe::verify(1, slba, nlb), 0).status;
        assert_eq!(verify, Status::LBA_OUT_OF_RANGE.do_not_retry());
    }
    // Data that is shorter than the blocks, and data that is dropped.
    assert_eq!(b.io(Sqe::compare(1, 0, 2), 4096).status, Status::SGL_LENGTH_INVALID);
    let mut sqe = Sqe::compare(1, 0, 1);
    sqe.set_sgl(SglDescriptor::BitBucket { length: 4096 });
    assert_eq!(b.host.io(&mut b.drive, sqe).status, Status::SGL_LENGTH_INVALID);
    for reserved in [1 << 16, 1 << 25] {
        for mut sqe in [Sqe::compare(1, 0, 1), Sqe::verify(1, 0, 1)] {
            sqe.cdw12 |= reserved;
            assert_eq!(b.io(sqe, 4096).status, Status::INVALID_FIELD);
        }
    }
    let mut sqe = Sqe::compare(1, 0, 1);
    sqe.flags |= 1;
    assert_eq!(b.io(sqe, 4096).status, Status::INVALID_FIELD, "no fused commands");
    b.host.check_serves(&mut b.drive);
}

#[test]
fn drives_without_these_commands_refuse_them_and_say_so() {
    let all = [
        (Sqe::compare(1, 0, 1), IdentifyController::ONCS_COMPARE),
        (Sqe::verify(1, 0, 1), IdentifyController::ONCS_VERIFY),
        (Sqe::write_uncorrectable(1, 0, 1), IdentifyController::ONCS_WRITE_UNCORRECTABLE),
        (Sqe::copy(1, 0, 1), IdentifyController::ONCS_COPY),
    ];
    let mut refused = 0;
    for config in configs() {
        let mut b = Bench::new(config);
        let (controller, namespace) = b.identify();
        let copies = controller.supports(IdentifyController::ONCS_COPY);
        assert_eq!((controller.ocfs.get() == 1, namespace.mcl.get() > 0), (copies, copies));
        for (sqe, bit) in all {
            b.fill(1, 4096, 0);
            let status = b.io(sqe, 4096).status;
            let is_supported = controller.supports(bit);
            assert_eq!(status == Status::INVALID_OPCODE, !is_supported, "{sqe:?}: {status}");
            refused += u32::from(!is_supported);
        }
    }
    // All of them on the open-channel drive, the null drive and phase-change memory; marks on the
    // two drives with blocks smaller than their units.
    assert_eq!(refused, 14);
}

#[test]
fn a_host_with_a_part_of_the_drive_checks_its_own_blocks() {
    let mut b = Bench::new(config());
    b.write(12, 2, 4096, 7);
    let part = AccessPolicy {
        write: false,
        ..AccessPolicy::for_scope(AccessScope::Sectors { first: 10, count: 4 })
    };
    let port = transport::Port::new().unwrap();
    b.drive.attach_as(&port, part).unwrap();
    let mut raw = crate::hostile::host::Host::on_port(port);
    raw.io = Some(raw.create(&mut b.drive, 1, 16, nvme::QueuePriority::Medium));
    let mut io = |raw: &mut crate::hostile::host::Host, mut sqe: Sqe| {
        sqe.set_sgl(raw.block(0, 2 * 4096));
        raw.io(&mut b.drive, sqe).status
    };
    raw.memory.fill(0, 4096, 7);
    raw.memory.fill(4096, 4096, 8);
    assert_eq!(io(&mut raw, Sqe::compare(1, 2, 2)), Status::SUCCESS);
    assert_eq!(io(&mut raw, Sqe::compare(1, 1, 2)), Status::COMPARE_FAILURE);
    assert_eq!(io(&mut raw, Sqe::verify(1, 0, 4)), Status::SUCCESS);
    let out = Status::LBA_OUT_OF_RANGE.do_not_retry();
    assert_eq!(io(&mut raw, Sqe::compare(1, 3, 2)), out);
    assert_eq!(io(&mut raw, Sqe::verify(1, 3, 2)), out);
    let protected = Status::WRITE_PROTECTED.do_not_retry();
    assert_eq!(io(&mut raw, Sqe::write_uncorrectable(1, 0, 1)), protected);
    assert_eq!(io(&mut raw, Sqe::copy(1, 0, 1)), protected);
}
