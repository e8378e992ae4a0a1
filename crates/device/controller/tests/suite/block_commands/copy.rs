//! Copy: the drive reads all sources, and then writes.

use controller::{AccessPolicy, AccessScope, DriveConfig};
use media::DataStore;
use mem::PAGE_BYTES;
use nvme::{CopyRange, Cqe, IdentifyController, Sqe, Status};
use time::Nanos;

use super::harness::{Bench, RANGES_PAGE, config};
use crate::common::{drive, nand};

/// Time of a read and of a program of a sector.
const READ: Nanos = Nanos(50_000 + 10_240);
const PROGRAM: Nanos = Nanos(500_000 + 10_240);

/// Puts the source ranges into the host's memory, and returns the command.
fn command(b: &Bench, to: u64, sources: &[(u64, u32)]) -> Sqe {
    let at = RANGES_PAGE as usize * PAGE_BYTES;
    for (i, (slba, nlb)) in sources.iter().enumerate() {
        b.host.memory.write(at + i * 32, &CopyRange::new(*slba, *nlb).to_bytes());
    }
    let mut sqe = Sqe::copy(1, to, sources.len() as u16);
    sqe.set_sgl(b.host.block(RANGES_PAGE, sources.len() as u32 * 32));
    sqe
}

fn copy(b: &mut Bench, to: u64, sources: &[(u64, u32)]) -> Cqe {
    let sqe = command(b, to, sources);
    b.host.io(&mut b.drive, sqe)
}

#[test]
fn sources_are_copied_in_their_order() {
    let mut b = Bench::new(config());
    b.write(0, 8, 4096, 1);
    for on_flash in [false, true] {
        if on_flash {
            b.flush();
        }
        assert_eq!(copy(&mut b, 20, &[(6, 2), (0, 3), (90, 1), (4, 1)]).status, Status::SUCCESS);
        assert_eq!(b.read(20, 7, 4096), Ok(vec![7, 8, 1, 2, 3, 0, 5]));
        assert_eq!(b.io(Sqe::write_zeroes(1, 20, 7, true), 0).status, Status::SUCCESS);
    }
    // A destination that overlaps its sources gets the data from before the command.
    assert_eq!(copy(&mut b, 1, &[(0, 4)]).status, Status::SUCCESS);
    assert_eq!(copy(&mut b, 5, &[(6, 2), (5, 1)]).status, Status::SUCCESS);
    assert_eq!(b.read(0, 8, 4096), Ok(vec![1, 1, 2, 3, 4, 7, 8, 6]));
    let stats = b.drive.stats();
    assert_eq!((stats.block_commands.copies, stats.block_commands.copied_blocks), (4, 21));
    assert_eq!(stats.bytes_written, (8 + 21) * 4096);
}

#[test]
fn blocks_smaller_than_units_are_copied() {
    let mut b = Bench::new(DriveConfig { lba_bytes: Some(512), ..config() });
    b.write(0, 40, 512, 1);
    b.flush();
    let sources = [(3, 7), (17, 2), (8, 16)];
    for to in [100, 104, 111] {
        assert_eq!(copy(&mut b, to, &sources).status, Status::SUCCESS);
        let expected: Vec<u8> = sources
            .into_iter()
            .flat_map(|(slba, nlb)| slba as u8 + 1..slba as u8 + 1 + nlb as u8)
            .collect();
        assert_eq!(b.read(to, 25, 512), Ok(expected));
        assert_eq!(b.read(to - 1, 1, 512).unwrap().len(), 1);
    }
    assert_eq!(b.read(99, 1, 512), Ok(vec![0]), "the block before the first destination");
    assert_eq!(b.read(136, 1, 512), Ok(vec![0]), "the block behind the last destination");
}

#[test]
fn a_copy_is_as_durable_as_a_write() {
    let mut b = Bench::new(config());
    b.write(0, 2, 4096, 1);
    b.flush();
    let mut sqe = command(&b, 30, &[(0, 2)]);
    sqe.set_fua();
    assert_eq!(b.host.io(&mut b.drive, sqe).status, Status::SUCCESS);
    let mut b = b.restart();
    assert_eq!(b.read(30, 2, 4096), Ok(vec![1, 2]));
}

#[test]
fn a_copy_takes_the_time_of_its_reads_and_its_write() {
    let mut b = Bench::new(drive(media::NandConfig { data: DataStore::Memory, ..nand() }));
    b.write(0, 1, 4096, 1);
    b.flush();
    let time = |b: &mut Bench, fua| {
        let mut sqe = command(b, 50, &[(0, 1)]);
        if fua {
            sqe.set_fua();
        }
        let from = b.host.now;
        b.host.submit(sqe);
        loop {
            use time::Component;
            while b.drive.poll(b.host.now) {}
            if let Some(cqe) = b.host.reap() {
                assert_eq!(cqe.status, Status::SUCCESS);
                return b.host.now.since(from);
            }
            b.host.now = b.drive.deadline();
        }
    };
    assert_eq!(time(&mut b, false), READ, "the write completes in the buffer");
    b.flush();
    assert_eq!(time(&mut b, true), READ + PROGRAM);
}

#[test]
fn nothing_is_written_if_a_source_cannot_be_read() {
    let mut b = Bench::new(config());
    b.write(0, 8, 4096, 1);
    b.write(20, 8, 4096, 100);
    assert_eq!(b.io(Sqe::write_uncorrectable(1, 5, 1), 0).status, Status::SUCCESS);
    let cqe = copy(&mut b, 20, &[(0, 3), (4, 3)]);
    assert_eq!((cqe.status, cqe.result), (Status::UNRECOVERED_READ, 0));
    assert_eq!(b.newest_error(), (Status::UNRECOVERED_READ, 5));
    assert_eq!(b.read(20, 8, 4096), Ok((100..108).collect()));
    assert_eq!(b.drive.stats().block_commands.copies, 0);
    // A copy heals its destination.
    assert_eq!(copy(&mut b, 5, &[(0, 1)]).status, Status::SUCCESS);
    assert_eq!(b.read(5, 1, 4096), Ok(vec![1]));
}

#[test]
fn the_limits_of_identify_are_those_of_the_drive() {
    let mut b = Bench::new(config());
    let (controller, namespace) = b.identify();
    assert!(controller.supports(IdentifyController::ONCS_COPY));
    assert_eq!(controller.ocfs.get(), 1);
    let (range, all) = (u32::from(namespace.mssrl.get()), namespace.mcl.get());
    let ranges = usize::from(namespace.msrc) + 1;
    assert_eq!((range, all, ranges), (64, 256, 128));
    let limit = Status::COMMAND_SIZE_LIMIT.do_not_retry();
    assert_eq!(copy(&mut b, 0, &[(0, range)]).status, Status::SUCCESS);
    assert_eq!(copy(&mut b, 0, &[(0, range + 1)]).status, limit);
    assert_eq!(copy(&mut b, 0, &[(0, range); 4]).status, Status::SUCCESS);
    assert_eq!(copy(&mut b, 0, &[(0, 52); 5]).status, limit);
    assert_eq!(copy(&mut b, 0, &vec![(0, 1); ranges]).status, Status::SUCCESS);
    assert_eq!(copy(&mut b, 0, &vec![(0, 1); ranges + 1]).status, limit);
}

#[test]
fn copies_that_cannot_be_are_refused() {
    let mut b = Bench::new(config());
    b.write(0, 2, 4096, 1);
    let sectors = b.drive.sectors();
    let out = Status::LBA_OUT_OF_RANGE.do_not_retry();
    for (to, sources) in [
        (sectors, [(0, 1), (1, 1)]),
        (sectors - 1, [(0, 1), (1, 1)]),
        (u64::MAX, [(0, 1), (1, 1)]),
        (10, [(0, 1), (sectors, 1)]),
        (10, [(sectors - 1, 2), (0, 1)]),
        (10, [(0, 1), (u64::MAX, 1)]),
    ] {
        assert_eq!(copy(&mut b, to, &sources).status, out, "{sources:?} to {to}");
    }
    // Descriptor formats, reserved fields, a directive, and a list that is too short.
    for bit in [8, 9, 10, 11, 16, 20, 25] {
        let mut sqe = command(&b, 10, &[(0, 1)]);
        sqe.cdw12 |= 1 << bit;
        assert_eq!(b.host.io(&mut b.drive, sqe).status, Status::INVALID_FIELD, "bit {bit}");
    }
    let mut sqe = command(&b, 10, &[(0, 1)]);
    sqe.cdw13 = (1 << 16).into();
    assert_eq!(b.host.io(&mut b.drive, sqe).status, Status::INVALID_FIELD);
    for reserved in [0, 7, 18, 23] {
        let sqe = command(&b, 10, &[(0, 1)]);
        b.host.memory.write(RANGES_PAGE as usize * PAGE_BYTES + reserved, &[1]);
        let status = b.host.io(&mut b.drive, sqe).status;
        assert_eq!(status, Status::INVALID_FIELD.do_not_retry(), "byte {reserved}");
    }
    let mut sqe = command(&b, 10, &[(0, 1), (1, 1)]);
    sqe.set_sgl(b.host.block(RANGES_PAGE, 32));
    assert_eq!(b.host.io(&mut b.drive, sqe).status, Status::SGL_LENGTH_INVALID);
    sqe.set_sgl(nvme::SglDescriptor::BitBucket { length: 64 });
    assert_eq!(b.host.io(&mut b.drive, sqe).status, Status::SGL_LENGTH_INVALID);
    sqe.set_prp(1 << 45, 0);
    assert_eq!(b.host.io(&mut b.drive, sqe).status, Status::DATA_TRANSFER_ERROR);
    assert_eq!(b.read(10, 1, 4096), Ok(vec![0]), "nothing was written");
}

#[test]
fn a_host_with_a_part_of_the_drive_copies_within_it() {
    let mut b = Bench::new(config());
    b.write(8, 8, 4096, 8);
    let part = AccessPolicy::for_scope(AccessScope::Sectors { first: 10, count: 4 });
    let port = transport::Port::new().unwrap();
    b.drive.attach_as(&port, part).unwrap();
    let host = crate::hostile::host::Host::on_port(port);
    let mut all = std::mem::replace(&mut b.host, host);
    let rings = b.host.create(&mut b.drive, 1, 16, nvme::QueuePriority::Medium);
    b.host.io = Some(rings);
    assert_eq!(copy(&mut b, 2, &[(0, 2)]).status, Status::SUCCESS);
    let out = Status::LBA_OUT_OF_RANGE.do_not_retry();
    for (to, source) in [(3, (0, 2)), (0, (3, 2)), (4, (0, 1)), (0, (u64::MAX, 1))] {
        assert_eq!(copy(&mut b, to, &[source]).status, out, "{source:?} to {to}");
    }
    all.now = b.host.now;
    std::mem::swap(&mut b.host, &mut all);
    assert_eq!(b.read(8, 8, 4096), Ok(vec![8, 9, 10, 11, 10, 11, 14, 15]));
}
