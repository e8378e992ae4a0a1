//! Commands with protection information: checks, tags, transfers.

use controller::{AccessPolicy, AccessScope, CorruptedPart, ProtectionErrors};
use nvme::{CopyRange, ProtectionInfo, Sqe, Status};
use time::Nanos;

use super::harness::{
    Bench, CHECK_APPLICATION, CHECK_GUARD, CHECK_REFERENCE, CHECKS, GENERATED, RANGES_PAGE, config,
    with_info,
};
use crate::hostile::host::Host;

const PAGE: usize = 4096;

#[test]
fn a_host_without_metadata_reads_what_it_wrote_and_no_block_that_changed() {
    for lba_bytes in [4096, 512] {
        let mut b = Bench::new(config(lba_bytes));
        b.write(16, 8, 10);
        assert_eq!(b.read(16, 8), Ok((10..18).collect()), "from the write buffer");
        b.flush();
        assert_eq!(b.read(16, 8), Ok((10..18).collect()), "from the flash");
        b.corrupt(19, CorruptedPart::Data);
        // All blocks of its sector changed.
        let first = if lba_bytes == 4096 { 19 } else { 16 };
        assert_eq!(b.read(16, 8), Err(Status::GUARD_CHECK));
        assert_eq!(b.newest_error(), (Status::GUARD_CHECK, first));
        let errors = ProtectionErrors { guard: 1, ..ProtectionErrors::default() };
        assert_eq!(b.errors(), errors);
        let health = b.log(nvme::log_page::HEALTH, 512);
        assert_eq!(health[160..176], 1u128.to_le_bytes(), "media and data integrity errors");
        let cloud = b.log(nvme::CLOUD_HEALTH, 512);
        assert_eq!(cloud[72..80], [1, 0, 0, 0, 0, 0, 0, 0], "detected and corrected errors");
        // Without the check the drive returns the wrong data; without the guard, too.
        assert_eq!(b.read_as(19, 1, GENERATED, 0), Ok(vec![13 ^ 0x5a]));
        assert_eq!(b.read_as(19, 1, GENERATED | CHECK_REFERENCE, 0), Ok(vec![13 ^ 0x5a]));
        // The data of a failed read did not reach the host.
        assert_eq!(b.read(19, 1), Err(Status::GUARD_CHECK));
        let mut bytes = vec![0; lba_bytes as usize];
        b.host.memory.read(0, &mut bytes);
        assert_eq!(bytes, vec![0xee; lba_bytes as usize]);
        // A new write ends the error.
        b.write(16, 8, 40);
        assert_eq!(b.read(16, 8), Ok((40..48).collect()));
    }
}

#[test]
fn changed_protection_information_is_found_by_its_kind() {
    let mut b = Bench::new(config(4096));
    b.write(0, 4, 1);
    b.flush();
    b.corrupt(1, CorruptedPart::Guard);
    b.corrupt(2, CorruptedPart::ReferenceTag);
    assert_eq!(b.read(0, 1), Ok(vec![1]));
    assert_eq!(b.read(1, 1), Err(Status::GUARD_CHECK));
    assert_eq!(b.read(2, 1), Err(Status::REFERENCE_TAG_CHECK));
    assert_eq!(b.newest_error(), (Status::REFERENCE_TAG_CHECK, 2));
    assert_eq!(b.read_as(3, 1, GENERATED | CHECK_APPLICATION, 0xffff_0001), {
        Err(Status::APPLICATION_TAG_CHECK)
    });
    let errors = ProtectionErrors { guard: 1, application_tag: 1, reference_tag: 1 };
    assert_eq!(b.errors(), errors);
    assert_eq!(b.errors().total(), 3);
}

#[test]
fn a_host_with_metadata_gets_the_information_that_it_sent() {
    for lba_bytes in [4096, 512] {
        let mut b = Bench::new(config(lba_bytes));
        b.fill(5, 20);
        for i in 0..5 {
            b.set_info(i, b.info_of(20 + i as u8, 0xa000 + i as u16, 9 + i as u32));
        }
        let prinfo = CHECKS | CHECK_APPLICATION;
        let sqe = with_info(Sqe::write(1, 9, 5, false), prinfo, 0xf000_a000);
        assert_eq!(b.io(sqe, 5).status, Status::SUCCESS);
        for on_flash in [false, true] {
            if on_flash {
                b.flush();
            }
            assert_eq!(b.read_as(9, 5, prinfo, 0xf000_afff), Ok((20..25).collect()));
            for i in 0..5 {
                let info = b.info_of(20 + i as u8, 0xa000 + i as u16, 9 + i as u32);
                assert_eq!(b.info(i), info, "block {i} of {lba_bytes} bytes");
            }
            // The mask excludes bits of the tag.
            let wrong = b.read_as(9, 5, prinfo, 0x000f_0000);
            assert_eq!(wrong, Err(Status::APPLICATION_TAG_CHECK));
            assert_eq!(b.newest_error(), (Status::APPLICATION_TAG_CHECK, 10));
            // A part of the blocks.
            assert_eq!(b.read_as(11, 2, 0, 0), Ok(vec![22, 23]));
            assert_eq!(b.info(1), b.info_of(23, 0xa003, 12));
            assert_eq!(b.info(2).to_bytes(), [0xee; 8]);
        }
        // Blocks without data have no information, and are not checked.
        assert_eq!(b.read_as(100, 1, prinfo, 0xffff_1234), Ok(vec![0]));
        assert_eq!(b.info(0), ProtectionInfo::UNCHECKED);
    }
}

#[test]
fn a_write_with_wrong_information_changes_nothing() {
    for lba_bytes in [4096, 512] {
        let mut b = Bench::new(config(lba_bytes));
        b.write(0, 6, 1);
        b.fill(4, 30);
        let mut infos: Vec<_> = (0..4).map(|i| b.info_of(30 + i, 7, 1 + u32::from(i))).collect();
        let good = infos.clone();
        let write = |b: &mut Bench, infos: &[ProtectionInfo], prinfo| {
            b.fill(4, 30);
            infos.iter().enumerate().for_each(|(i, info)| b.set_info(i, *info));
            b.io(with_info(Sqe::write(1, 1, 4, false), prinfo, 0xffff_0007), 4).status
        };
        let all = CHECKS | CHECK_APPLICATION;
        infos[2].guard ^= 1;
        assert_eq!(write(&mut b, &infos, all), Status::GUARD_CHECK);
        assert_eq!(b.newest_error(), (Status::GUARD_CHECK, 3));
        infos[2] = ProtectionInfo { application_tag: 8, ..good[2] };
        assert_eq!(write(&mut b, &infos, all), Status::APPLICATION_TAG_CHECK);
        infos[2] = ProtectionInfo { reference_tag: 4, ..good[2] };
        assert_eq!(write(&mut b, &infos, all), Status::REFERENCE_TAG_CHECK);
        assert_eq!(b.read(0, 6), Ok((1..7).collect()));
        let errors = ProtectionErrors { guard: 1, application_tag: 1, reference_tag: 1 };
        assert_eq!(b.errors(), errors);
        // A write that does not ask for the check stores the wrong tag, and the read finds it.
        assert_eq!(write(&mut b, &infos, CHECK_GUARD), Status::SUCCESS);
        assert_eq!(b.read(1, 4), Err(Status::REFERENCE_TAG_CHECK));
        assert_eq!(b.newest_error(), (Status::REFERENCE_TAG_CHECK, 3));
        // The application tag FFFFh disables the checks of a block.
        infos[2] = ProtectionInfo { guard: 0, application_tag: 0xffff, reference_tag: 0x1234 };
        assert_eq!(write(&mut b, &infos, all), Status::SUCCESS);
        assert_eq!(b.read_as(1, 4, all, 0xffff_0007), Ok((30..34).collect()));
        assert_eq!(b.info(2), infos[2]);
        assert_eq!(write(&mut b, &good, all), Status::SUCCESS);
        assert_eq!(b.read(0, 6), Ok(vec![1, 30, 31, 32, 33, 6]));
    }
}

#[test]
fn zeros_and_deallocated_blocks() {
    for lba_bytes in [4096, 512] {
        let mut b = Bench::new(config(lba_bytes));
        b.write(0, 32, 1);
        let zeroes = |deallocates| Sqe::write_zeroes(1, 3, 14, deallocates);
        assert_eq!(b.io(with_info(zeroes(false), GENERATED, 0xabcd), 0).status, Status::SUCCESS);
        for on_flash in [false, true] {
            if on_flash {
                b.flush();
            }
            let all = CHECKS | CHECK_APPLICATION;
            assert_eq!(b.read_as(3, 14, all, 0xffff_abcd), Ok(vec![0; 14]));
            for i in 0..14 {
                let info =
                    ProtectionInfo { guard: 0, application_tag: 0xabcd, reference_tag: 3 + i };
                assert_eq!(b.info(i as usize), info);
            }
            assert_eq!(b.read(2, 1), Ok(vec![3]));
        }
        // Zeros are protected as other data.
        b.corrupt(8, CorruptedPart::Data);
        assert_eq!(b.read(8, 1), Err(Status::GUARD_CHECK));
        // Without PRACT, zeros are not checked.
        assert_eq!(b.io(zeroes(false), 0).status, Status::SUCCESS);
        assert_eq!(b.read_as(3, 14, CHECKS, 0), Ok(vec![0; 14]));
        assert_eq!(b.info(7), ProtectionInfo::UNCHECKED);
        assert_eq!(
            b.io(with_info(zeroes(true), GENERATED, 0), 0).status,
            Status::SUCCESS,
            "deallocated"
        );
        assert_eq!(b.read_as(8, 8, CHECKS, 0), Ok(vec![0; 8]));
        assert_eq!(b.info(0), ProtectionInfo::UNCHECKED);
        for prinfo in [CHECK_GUARD, GENERATED | CHECK_REFERENCE] {
            let status = b.io(with_info(zeroes(false), prinfo, 0), 0).status;
            assert_eq!(status, Status::INVALID_PROTECTION.do_not_retry());
        }
    }
}

#[test]
fn verify_and_compare_check_what_is_stored() {
    for lba_bytes in [4096, 512] {
        let mut b = Bench::new(config(lba_bytes));
        b.write(0, 16, 1);
        b.flush();
        b.corrupt(9, CorruptedPart::Data);
        let first = if lba_bytes == 4096 { 9 } else { 8 };
        for prinfo in [CHECK_GUARD, CHECKS] {
            let sqe = with_info(Sqe::verify(1, 0, 16), prinfo, 0);
            assert_eq!(b.io(sqe, 0).status, Status::GUARD_CHECK);
            assert_eq!(b.newest_error(), (Status::GUARD_CHECK, first));
        }
        assert_eq!(b.io(with_info(Sqe::verify(1, 0, 8), CHECKS, 0), 0).status, Status::SUCCESS);
        assert_eq!(b.io(Sqe::verify(1, 0, 16), 0).status, Status::SUCCESS, "without checks");
        b.fill(16, 1);
        let compare = |prinfo| with_info(Sqe::compare(1, 0, 16), prinfo, 0);
        assert_eq!(b.io(compare(CHECKS), 16).status, Status::GUARD_CHECK);
        assert_eq!(b.io(compare(0), 16).status, Status::COMPARE_FAILURE);
        b.fill(8, 1);
        let compare = with_info(Sqe::compare(1, 0, 8), CHECKS, 0);
        assert_eq!(b.io(compare, 8).status, Status::SUCCESS);
        // Neither takes information from the host, nor generates it.
        for sqe in [Sqe::verify(1, 0, 1), Sqe::compare(1, 0, 1)] {
            let status = b.io(with_info(sqe, GENERATED, 0), 1).status;
            assert_eq!(status, Status::INVALID_PROTECTION.do_not_retry());
        }
    }
}

/// Returns a Copy of one range, with what it asks of the sources and of the copies.
fn copy(b: &mut Bench, from: u64, to: u64, blocks: u32, fields: (u32, u32)) -> Sqe {
    let mut range = CopyRange::new(from, blocks);
    range.reference_tag = (from as u32).into();
    b.host.memory.write(RANGES_PAGE as usize * PAGE, &range.to_bytes());
    let (sources, copies) = fields;
    let mut sqe = with_info(Sqe::copy(1, to, 1), sources >> 14 | copies, 0x0000_1111);
    sqe.set_sgl(b.host.block(RANGES_PAGE, 32));
    sqe
}

#[test]
fn a_copy_checks_its_sources_and_protects_its_copies() {
    for lba_bytes in [4096, 512] {
        let mut b = Bench::new(config(lba_bytes));
        b.write(2, 20, 1);
        let asked = (GENERATED | CHECKS, GENERATED);
        let sqe = copy(&mut b, 5, 61, 13, asked);
        assert_eq!(b.host.io(&mut b.drive, sqe).status, Status::SUCCESS);
        b.flush();
        assert_eq!(b.read_as(61, 13, CHECKS, 0), Ok((4..17).collect()));
        assert_eq!(b.info(12), b.info_of(16, 0x1111, 73));
        // A wrong source is not copied.
        b.corrupt(9, CorruptedPart::Data);
        let sqe = copy(&mut b, 5, 100, 13, asked);
        assert_eq!(b.host.io(&mut b.drive, sqe).status, Status::GUARD_CHECK);
        assert_eq!(b.newest_error(), (Status::GUARD_CHECK, if lba_bytes == 512 { 8 } else { 9 }));
        assert_eq!(b.read(100, 13), Ok(vec![0; 13]));
        let invalid = [
            (GENERATED | CHECKS, 0),
            (CHECKS, GENERATED),
            (0, 0),
            (GENERATED | CHECK_APPLICATION, GENERATED),
        ];
        for asked in invalid {
            let sqe = copy(&mut b, 2, 100, 1, asked);
            let status = b.host.io(&mut b.drive, sqe).status;
            assert_eq!(status, Status::INVALID_PROTECTION.do_not_retry(), "{asked:x?}");
        }
        // The range names another block.
        let sqe = copy(&mut b, 2, 100, 1, asked);
        b.host.memory.write(RANGES_PAGE as usize * PAGE + 24, &7u32.to_le_bytes());
        let status = b.host.io(&mut b.drive, sqe).status;
        assert_eq!(status, Status::INVALID_PROTECTION.do_not_retry());
    }
}

#[test]
fn fields_that_are_not_allowed_together_are_refused() {
    let mut b = Bench::new(config(4096));
    b.write(0, 4, 1);
    let invalid = Status::INVALID_PROTECTION.do_not_retry();
    let status = |b: &mut Bench, mut sqe: Sqe, prinfo: u32, tag: u32| {
        sqe.cdw12 |= prinfo;
        sqe.cdw14 = tag.into();
        b.io(sqe, 1).status
    };
    // With type 1 the reference tag is the address.
    assert_eq!(status(&mut b, Sqe::read(1, 2, 1), GENERATED | CHECK_REFERENCE, 3), invalid);
    assert_eq!(status(&mut b, Sqe::read(1, 2, 1), GENERATED | CHECK_GUARD, 3), Status::SUCCESS);
    assert_eq!(status(&mut b, Sqe::write(1, 2, 1, false), GENERATED, 3), invalid);
    assert_eq!(status(&mut b, Sqe::write(1, 2, 1, false), CHECK_REFERENCE, 3), invalid);
    assert_eq!(status(&mut b, Sqe::verify(1, 2, 1), CHECK_REFERENCE, 3), invalid);
    assert_eq!(status(&mut b, Sqe::write_zeroes(1, 2, 1, false), GENERATED, 3), invalid);
    // A transfer needs an address, and memory there.
    let mut sqe = Sqe::read(1, 2, 1);
    sqe.set_sgl(b.host.block(0, 4096));
    let no_address = b.host.io(&mut b.drive, sqe).status;
    assert_eq!(no_address, Status::INVALID_FIELD.do_not_retry());
    let mut list = Sqe::read(1, 2, 1);
    list.set_sgl(b.host.block(0, 4096));
    list.mptr = b.host.at.0.into();
    list.flags ^= 0xc0;
    let list = b.host.io(&mut b.drive, list).status;
    assert_eq!(list, Status::INVALID_FIELD, "a list for the information");
    for sqe in [Sqe::read(1, 0, 4), Sqe::write(1, 0, 4, false)] {
        let mut sqe = sqe;
        sqe.set_sgl(b.host.block(0, 4 * 4096));
        sqe.mptr = (b.host.block(63, 0).encode()[0] + 4096 - 24).into();
        let past_the_end = b.host.io(&mut b.drive, sqe).status;
        assert_eq!(past_the_end, Status::DATA_TRANSFER_ERROR);
    }
    assert_eq!(b.read(0, 4), Ok(vec![1, 2, 3, 4]));
}

/// Data in a Bit Bucket is zeros; a read into one is checked.
#[test]
fn bit_buckets_are_checked() {
    let mut b = Bench::new(config(4096));
    let bucket = nvme::SglDescriptor::BitBucket { length: 4096 };
    let mut sqe = with_info(Sqe::write(1, 5, 1, false), GENERATED, 3);
    sqe.set_sgl(bucket);
    assert_eq!(b.host.io(&mut b.drive, sqe).status, Status::SUCCESS);
    b.flush();
    assert_eq!(b.read_as(5, 1, CHECKS, 0), Ok(vec![0]));
    assert_eq!(b.info(0), b.info_of(0, 3, 5));
    b.corrupt(5, CorruptedPart::Data);
    let mut sqe = with_info(Sqe::read(1, 5, 1), GENERATED | CHECKS, 0);
    sqe.set_sgl(bucket);
    assert_eq!(b.host.io(&mut b.drive, sqe).status, Status::GUARD_CHECK);
}

/// A host with a part of the drive sees tags of its own addresses, and the host of the whole drive
/// those of the drive.
#[test]
fn tags_of_a_part_of_the_drive_are_converted() {
    let mut b = Bench::new(config(4096));
    let policy = AccessPolicy::for_scope(AccessScope::Sectors { first: 64, count: 64 });
    let port = transport::Port::new().unwrap();
    b.drive.attach_as(&port, policy).unwrap();
    let mut part = Host::on_port(port);
    let rings = part.create(&mut b.drive, 1, 16, nvme::QueuePriority::Medium);
    part.io = Some(rings);
    b.write(70, 1, 5);
    std::mem::swap(&mut b.host, &mut part);
    assert_eq!(b.read_as(6, 1, CHECKS, 0), Ok(vec![5]));
    assert_eq!(b.info(0), b.info_of(5, 0, 6));
    b.fill(1, 9);
    b.set_info(0, b.info_of(9, 1, 7));
    let sqe = with_info(Sqe::write(1, 7, 1, false), CHECKS, 0);
    assert_eq!(b.io(sqe, 1).status, Status::SUCCESS);
    std::mem::swap(&mut b.host, &mut part);
    assert_eq!(b.read_as(71, 1, CHECKS, 0), Ok(vec![9]));
    assert_eq!(b.info(0), b.info_of(9, 1, 71));
}

/// Eight bytes per block cross the link if the host transfers them, and checks take no time.
#[test]
fn the_link_carries_the_information_that_the_host_transfers() {
    let rate = 1_000_000_000;
    let time = |protected: bool, prinfo: u32, write: bool| {
        let mut config = config(4096);
        config.controller.dma_bytes_per_sec = rate;
        if !protected {
            config.protection = None;
        }
        let mut b = Bench::new(config);
        b.fill(4, 1);
        (0..4).for_each(|i| b.set_info(i, b.info_of(1 + i as u8, 0, 8 + i as u32)));
        let sqe = if write { Sqe::write(1, 8, 4, false) } else { Sqe::read(1, 8, 4) };
        let from = b.host.now;
        let sqe = with_info(sqe, prinfo, 0);
        let mut ends = Nanos::MAX;
        let mut sqe = sqe;
        sqe.set_sgl(b.host.block(0, 4 * 4096));
        sqe.mptr = (b.host.at.0 + 58 * 4096).into();
        b.host.submit(sqe);
        while ends == Nanos::MAX {
            use time::Component;
            while b.drive.poll(b.host.now) {}
            match b.host.reap() {
                Some(cqe) => {
                    assert_eq!(cqe.status, Status::SUCCESS);
                    ends = b.host.now;
                }
                None => b.host.now = b.drive.deadline(),
            }
        }
        ends.since(from)
    };
    for write in [false, true] {
        let plain = time(false, 0, write);
        assert_eq!(time(true, GENERATED | CHECKS, write), plain);
        assert_eq!(time(true, CHECKS, write), plain + Nanos::transfer(4 * 8, rate));
    }
}
