//! Format NVM: the whole drive, with its refusals, and power cuts in the middle.

// guarantee: B-84

use controller::{AccessPolicy, AccessScope, Controller, DriveConfig, Fault, FaultError};
use media::ChunkState;
use nvme::{AdminCommand, IdentifyController, QueuePriority, SecureErase, Sqe, Status};
use time::{Component, Nanos};

use super::harness::{Bench, config};
use crate::hostile::host::{Host, configs};

/// Format NVM with LBA format 0.
fn format(erase: SecureErase) -> Sqe {
    AdminCommand::FormatNvm { nsid: 1, lba_format: 0, protection: 0, erase }.to_sqe()
}

/// Writes every block, with garbage behind them.
fn fill(b: &mut Bench) {
    for lba in 0..2 * b.drive.sectors() {
        b.write(lba * 37 % b.drive.sectors(), 1, 4096, (lba % 200) as u8 + 1);
    }
    b.flush();
}

fn assert_zeros(b: &mut Bench) {
    for lba in 0..b.drive.sectors() {
        assert_eq!(b.read(lba, 1, 4096), Ok(vec![0]), "block {lba}");
    }
}

/// Submits an admin command without waiting for it.
fn send(host: &mut Host, mut sqe: Sqe) {
    host.cid += 1;
    sqe.cid = host.cid.into();
    host.admin.0.push(&sqe).unwrap();
    host.admin.0.ring();
}

/// Runs the drive for up to `events` instants, and returns the completion of the admin command.
fn run(host: &mut Host, drive: &mut Controller, events: u64) -> Option<Status> {
    for _ in 0..events {
        while drive.poll(host.now) {}
        if let Some(cqe) = host.admin.1.pop() {
            host.admin.1.release();
            host.admin.0.update_head(cqe.sq_head);
            return Some(cqe.status);
        }
        host.now = drive.deadline();
    }
    None
}

#[test]
fn a_format_clears_the_drive_for_good() {
    for blocks in [None, Some(512)] {
        for erase in [SecureErase::None, SecureErase::UserData] {
            let mut b = Bench::new(DriveConfig { lba_bytes: blocks, ..config() });
            let block_bytes = blocks.unwrap_or(4096) as usize;
            let sectors = b.drive.sectors();
            for lba in (0..sectors).step_by(3) {
                b.write(lba, 1, block_bytes, 1 + (lba % 200) as u8);
            }
            if blocks.is_none() {
                assert_eq!(b.io(Sqe::write_uncorrectable(1, 4, 1), 0).status, Status::SUCCESS);
            }
            assert_eq!(b.host.admin(&mut b.drive, format(erase)).status, Status::SUCCESS);
            assert_eq!(b.drive.check_invariants(), Ok(()));
            for restarted in [false, true] {
                for lba in 0..sectors {
                    assert_eq!(b.read(lba, 1, block_bytes), Ok(vec![0]), "block {lba}");
                }
                if !restarted {
                    assert_eq!(b.drive.stats().formats, 1);
                    b = b.restart();
                }
            }
            b.write(5, 1, block_bytes, 9);
            assert_eq!(b.read(5, 1, block_bytes), Ok(vec![9]));
        }
    }
}

#[test]
fn user_data_erase_erases_every_chunk_that_had_data() {
    let mut b = Bench::new(config());
    fill(&mut b);
    let holding = |b: &Bench| -> Vec<_> {
        let nand = &b.drive;
        let ftl = nand.ftl().unwrap();
        let shape = *ftl.geometry();
        shape.chunks().filter(|chunk| ftl.is_in_line(*chunk)).collect()
    };
    let chunks = holding(&b);
    let nand = b.drive.nand_mut().unwrap();
    let before: Vec<_> = chunks
        .iter()
        .map(|chunk| (*chunk, nand.chunk_info(*chunk).unwrap()))
        .filter(|(_, info)| info.state != ChunkState::Free)
        .collect();
    assert!(before.len() > 100, "{} chunks with data", before.len());
    let from = b.host.now;
    send(&mut b.host, format(SecureErase::UserData));
    assert_eq!(run(&mut b.host, &mut b.drive, 1_000_000), Some(Status::SUCCESS));
    // Each parallel unit erases its chunks one after the other, 3 ms each.
    let took = b.host.now.since(from);
    let per_unit = before.len() as u64 / 16;
    assert!(took >= Nanos::from_millis(3 * per_unit), "{took} for {per_unit} erases");
    assert!(took <= Nanos::from_millis(3 * per_unit + 100), "{took} for {per_unit} erases");
    let nand = b.drive.nand_mut().unwrap();
    for (chunk, info) in before {
        assert!(nand.chunk_info(chunk).unwrap().wear > info.wear, "{chunk} was not erased");
    }
    assert_zeros(&mut b);
}

#[test]
fn commands_are_refused_until_a_format_ends() {
    let mut b = Bench::new(config());
    fill(&mut b);
    let mut busy = Sqe::read(1, 3, 1);
    busy.set_sgl(b.host.block(0, 4096));
    // The commands before the format end as usual, and the format waits for them.
    for _ in 0..10 {
        b.host.submit(busy);
    }
    while b.drive.poll(b.host.now) {}
    send(&mut b.host, format(SecureErase::UserData));
    while b.drive.poll(b.host.now) {}
    let refused = b.host.submit(busy);
    let cqe = b.host.reap_refused(&mut b.drive);
    assert_eq!((cqe.cid, cqe.status), (refused, Status::FORMAT_IN_PROGRESS));
    send(&mut b.host, format(SecureErase::None));
    assert_eq!(run(&mut b.host, &mut b.drive, 1), Some(Status::FORMAT_IN_PROGRESS));
    let error = Fault::Format { erase: false };
    assert_eq!(
        b.drive.inject_fault(b.host.now, error),
        Err(FaultError::InForce { kind: "format" })
    );
    assert!(!b.drive.is_idle());
    assert_eq!(run(&mut b.host, &mut b.drive, 1_000_000), Some(Status::SUCCESS));
    let ended: Vec<Status> = std::iter::from_fn(|| b.host.reap()).map(|cqe| cqe.status).collect();
    assert_eq!(ended, [Status::SUCCESS; 10]);
    assert_zeros(&mut b);
}

#[test]
fn after_a_power_cut_blocks_are_formatted_or_not() {
    let written = |lba: u64| (lba % 200) as u8 + 1;
    let (mut partly, mut ended) = (0, 0);
    for events in (0..60).chain((60..2_000).step_by(97)) {
        for erase in [SecureErase::None, SecureErase::UserData] {
            let mut b = Bench::new(config());
            for lba in 0..b.drive.sectors() {
                b.write(lba, 1, 4096, written(lba));
            }
            b.flush();
            send(&mut b.host, format(erase));
            let status = run(&mut b.host, &mut b.drive, events);
            b = b.restart();
            assert_eq!(b.drive.check_invariants(), Ok(()));
            let mut zeros = 0;
            for lba in 0..b.drive.sectors() {
                let value = b.read(lba, 1, 4096).unwrap()[0];
                assert!(value == 0 || value == written(lba), "block {lba} is {value}");
                zeros += u64::from(value == 0);
            }
            match status {
                Some(status) => {
                    assert_eq!((status, zeros), (Status::SUCCESS, b.drive.sectors()));
                    ended += 1;
                }
                None => partly += 1,
            }
            // The drive works, and can be formatted.
            b.host.check_serves(&mut b.drive);
            assert_eq!(b.host.admin(&mut b.drive, format(erase)).status, Status::SUCCESS);
            assert_zeros(&mut b);
        }
    }
    assert!(partly > 20 && ended > 20, "{partly} cut, {ended} ended");
}

#[test]
fn a_power_cut_with_attached_hosts_ends_the_command() {
    let mut b = Bench::new(config());
    fill(&mut b);
    send(&mut b.host, format(SecureErase::UserData));
    assert_eq!(run(&mut b.host, &mut b.drive, 20), None);
    b.drive.inject_fault(b.host.now, Fault::PowerCut { after_ops: 0 }).unwrap();
    assert_eq!(run(&mut b.host, &mut b.drive, 1), Some(Status::POWER_LOSS));
    b.host.check_serves(&mut b.drive);
}

#[test]
fn formats_that_cannot_be_are_refused() {
    let mut b = Bench::new(config());
    b.write(0, 1, 4096, 1);
    let mut status = |nsid, lba_format, protection, erase| {
        let command = AdminCommand::FormatNvm { nsid, lba_format, protection, erase };
        b.host.admin(&mut b.drive, command.to_sqe()).status
    };
    let none = SecureErase::None;
    assert_eq!(status(2, 0, 0, none), Status::INVALID_FIELD, "inactive");
    assert_eq!(status(33, 0, 0, none), Status::INVALID_NAMESPACE);
    assert_eq!(status(0, 0, 0, none), Status::INVALID_NAMESPACE);
    let invalid = Status::INVALID_FORMAT.do_not_retry();
    assert_eq!(status(1, 1, 0, none), invalid, "the drive has one LBA format");
    for protection in [1, 2, 16] {
        assert_eq!(status(1, 0, protection, none), invalid);
    }
    let encrypted = status(1, 0, 0, SecureErase::Cryptographic);
    assert_eq!(encrypted, Status::INVALID_FIELD.do_not_retry());
    for cdw10 in [3 << 9, 1 << 12, 1 << 31] {
        let mut sqe = format(none);
        sqe.cdw10 = cdw10.into();
        assert_eq!(b.host.admin(&mut b.drive, sqe).status, Status::INVALID_FIELD);
    }
    assert_eq!(b.read(0, 1, 4096), Ok(vec![1]), "nothing has changed");
    // A host with a part of the drive, or with all of it and restricted.
    for scope in [AccessScope::Sectors { first: 0, count: 10 }, AccessScope::All] {
        let port = transport::Port::new().unwrap();
        b.drive.attach_as(&port, AccessPolicy::for_scope(scope)).unwrap();
        let mut other = Host::on_port(port);
        other.now = b.host.now;
        assert_eq!(other.admin(&mut b.drive, format(none)).status, Status::INVALID_OPCODE);
    }
}

#[test]
fn only_drives_that_manage_their_flash_are_formatted() {
    let mut refused = 0;
    for config in configs() {
        let is_protected = config.protection.is_some();
        let mut b = Bench::new(config);
        let (controller, _) = b.identify();
        let is_supported = controller.oacs.get() & IdentifyController::OACS_FORMAT != 0;
        assert_eq!(controller.fna, 0, "no cryptographic erase");
        let mut sqe = format(SecureErase::None);
        // The present protection information.
        sqe.cdw10 |= u32::from(is_protected) << 5;
        let status = b.host.admin(&mut b.drive, sqe).status;
        let fault = b.drive.inject_fault(b.host.now, Fault::Format { erase: false });
        match is_supported {
            true => assert_eq!((status, fault), (Status::SUCCESS, Ok(()))),
            false => {
                assert_eq!(status, Status::INVALID_OPCODE);
                assert!(matches!(
                    fault,
                    Err(FaultError::NoFlash { .. } | FaultError::NoFormat { .. })
                ));
                refused += 1;
            }
        }
        b.host.drain(&mut b.drive);
    }
    assert_eq!(refused, 3, "the open-channel drive, the null drive and phase-change memory");
}

#[test]
fn an_injected_format_is_recorded() {
    let mut b = Bench::new(config());
    b.write(0, 5, 4096, 1);
    b.drive.inject_fault(b.host.now, Fault::Format { erase: true }).unwrap();
    assert!(b.drive.faults()[0].is_open);
    b.host.drain(&mut b.drive);
    let record = b.drive.faults()[0];
    assert!(!record.is_open && record.count.is_some_and(|blocks| blocks >= 5), "{record:?}");
    assert_zeros(&mut b);
}

#[test]
fn the_host_of_a_format_may_go() {
    let mut b = Bench::new(config());
    fill(&mut b);
    let mut other = Host::new(&mut b.drive);
    other.now = b.host.now;
    send(&mut other, format(SecureErase::UserData));
    assert_eq!(run(&mut other, &mut b.drive, 10), None);
    b.drive.detach(&other.port).unwrap();
    b.host.now = other.now;
    let next = Host::new(&mut b.drive);
    b.host.drain(&mut b.drive);
    assert_eq!(b.drive.check_invariants(), Ok(()));
    drop(next);
    assert_zeros(&mut b);
    let rings = b.host.create(&mut b.drive, 2, 16, QueuePriority::Medium);
    drop(rings);
}
