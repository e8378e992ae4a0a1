//! Operations that fail, and the ways out of the failure mode.

// guarantee: B-85, B-86

use controller::{Fault, FaultScope, FaultSector};
use media::{Operation, PuId};
use nvme::{AdminCommand, SanitizeAction, SanitizeCommand, SanitizeLog, Status};

use super::*;
use crate::block_commands::harness::config;
use crate::interface::events::{event, request_event};

fn restricted(action: SanitizeAction) -> Sqe {
    AdminCommand::Sanitize(SanitizeCommand::new(action)).to_sqe()
}

/// Has the next erase of a chunk fail.
fn fail_erase(b: &mut Bench, chunk: u32) {
    let sector = FaultSector::Flash { pu: PuId(2), chunk, sector: 0 };
    let fault =
        Fault::OperationFailure { operation: Operation::Erase, scope: FaultScope::Next(sector) };
    b.drive.inject_fault(b.host.now, fault).unwrap();
}

/// Returns a drive whose Sanitize has failed.
fn failed(sqe: Sqe) -> Bench {
    let mut b = Bench::new(config());
    fill(&mut b, 4096);
    b.flush();
    let in_use = |b: &mut Bench, chunk| {
        let nand = b.drive.nand_mut().unwrap();
        let chunk = nand.layout().chunk(PuId(2), chunk);
        nand.chunk_info(chunk).unwrap().write_pointer > 0
    };
    let chunk = (0..16).find(|chunk| in_use(&mut b, *chunk)).unwrap();
    fail_erase(&mut b, chunk);
    assert_eq!(now(&mut b, sqe), Status::SUCCESS);
    run(&mut b, u64::MAX);
    let state = log(&mut b);
    assert_eq!((state.last_status(), state.is_erased()), (SanitizeLog::FAILED, false));
    assert_eq!(state.progress.get(), SanitizeLog::NO_PROGRESS);
    assert!(b.drive.is_idle());
    b
}

fn read_status(b: &mut Bench) -> Result<Vec<u8>, Status> {
    b.read(0, 1, 4096)
}

#[test]
fn a_chunk_that_cannot_be_erased_fails_the_operation() {
    for action in [SanitizeAction::BlockErase, SanitizeAction::Overwrite] {
        let mut b = failed(sanitize(action));
        for _ in 0..2 {
            assert_eq!(read_status(&mut b), Err(Status::SANITIZE_FAILED));
            assert_eq!(host_sectors(&mut b), 0);
            // It is a failure after a power cut, too.
            b = b.restart();
            assert_eq!(log(&mut b).last_status(), SanitizeLog::FAILED);
        }
        assert_eq!(now(&mut b, sanitize(SanitizeAction::ExitFailureMode)), Status::SUCCESS);
        assert_eq!(log(&mut b).last_status(), SanitizeLog::FAILED, "as the last operation");
        assert_eq!(read_status(&mut b), Ok(vec![0]));
        b.host.check_serves(&mut b.drive);
        b = b.restart();
        b.host.check_serves(&mut b.drive);
    }
}

#[test]
fn an_operation_without_exit_is_followed_by_one_without_exit() {
    let mut b = failed(restricted(SanitizeAction::BlockErase));
    for sqe in [sanitize(SanitizeAction::ExitFailureMode), block_erase()] {
        assert_eq!(now(&mut b, sqe), Status::SANITIZE_FAILED);
    }
    b = b.restart();
    assert_eq!(now(&mut b, restricted(SanitizeAction::ExitFailureMode)), Status::SANITIZE_FAILED);
    assert_eq!(read_status(&mut b), Err(Status::SANITIZE_FAILED));
    // The chunk whose erase has failed has no data any more.
    assert_eq!(now(&mut b, restricted(SanitizeAction::Overwrite)), Status::SUCCESS);
    run(&mut b, u64::MAX);
    assert_eq!(log(&mut b).last_status(), SanitizeLog::SUCCEEDED);
    assert_clean(&mut b, 4096);
    b.host.check_serves(&mut b.drive);
}

#[test]
fn an_operation_with_exit_may_be_repeated_in_any_way() {
    for sqe in [block_erase(), restricted(SanitizeAction::BlockErase)] {
        let mut b = failed(block_erase());
        assert_eq!(now(&mut b, sqe), Status::SUCCESS);
        run(&mut b, u64::MAX);
        assert_eq!(log(&mut b).last_status(), SanitizeLog::SUCCEEDED);
        assert_clean(&mut b, 4096);
    }
}

#[test]
fn data_of_a_chunk_that_is_offline_fails_every_operation() {
    let mut b = Bench::new(config());
    fill(&mut b, 4096);
    b.flush();
    b.drive.inject_fault(b.host.now, Fault::DieFailure { pu: PuId(5) }).unwrap();
    for _ in 0..2 {
        assert_eq!(now(&mut b, block_erase()), Status::SUCCESS);
        run(&mut b, u64::MAX);
        assert_eq!(log(&mut b).last_status(), SanitizeLog::FAILED);
    }
    let left = host_sectors(&mut b);
    // A die has 16 chunks of 8 sectors.
    assert!((1..=128).contains(&left), "{left} sectors of the die, and no others");
    assert_eq!(now(&mut b, sanitize(SanitizeAction::ExitFailureMode)), Status::SUCCESS);
    // The drive works without the die.
    for lba in 0..b.drive.sectors() {
        assert_eq!(b.read(lba, 1, 4096), Ok(vec![0]));
    }
    b.host.check_serves(&mut b.drive);
}

#[test]
fn factory_bad_chunks_are_no_failure() {
    let mut config = config();
    if let media::MediaConfig::Nand(nand) = &mut config.media {
        nand.errors.factory_bad = 0.05;
    }
    let mut b = Bench::new(config);
    let capacity = b.drive.sectors();
    fill(&mut b, 4096);
    assert!(b.drive.nand_mut().unwrap().stats().offline_chunks > 0);
    assert_eq!(now(&mut b, block_erase()), Status::SUCCESS);
    run(&mut b, u64::MAX);
    assert_eq!(log(&mut b).last_status(), SanitizeLog::SUCCEEDED);
    assert_eq!(b.drive.sectors(), capacity);
    assert_clean(&mut b, 4096);
    let b = b.restart();
    assert_eq!(b.drive.sectors(), capacity);
}

#[test]
fn a_drive_without_flash_does_not_start_again() {
    for cut in [false, true] {
        let mut b = Bench::new(config());
        fill(&mut b, 4096);
        request_event(&mut b.host, &mut b.drive);
        for pu in 0..16 {
            b.drive.inject_fault(b.host.now, Fault::DieFailure { pu: PuId(pu) }).unwrap();
        }
        if cut {
            b.drive.inject_fault(b.host.now, Fault::PowerCut { after_ops: 0 }).unwrap();
        } else {
            b.host.cid += 1;
            let mut sqe = block_erase();
            sqe.cid = b.host.cid.into();
            b.host.admin.0.push(&sqe).unwrap();
            b.host.admin.0.ring();
            run(&mut b, 1_000);
            let mut sanitized = None;
            let mut internal_error = None;
            while let Some(cqe) = b.host.admin.1.pop() {
                b.host.admin.1.release();
                b.host.admin.0.update_head(cqe.sq_head);
                match cqe.cid == b.host.cid {
                    true => sanitized = Some(cqe.status),
                    false => internal_error = Some(cqe.result),
                }
            }
            let expected = (Some(Status::SUCCESS), Some(0x01_0300));
            assert_eq!((sanitized, internal_error), expected, "persistent internal error");
        }
        assert_eq!(read_status(&mut b), Err(Status::NOT_READY.do_not_retry()));
        if cut {
            assert_eq!(event(&mut b.host), Some(0x01_0300), "persistent internal error");
        }
        assert_eq!(now(&mut b, block_erase()), Status::INVALID_OPCODE);
    }
}

#[test]
fn nothing_happens_without_non_volatile_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    if let media::MediaConfig::Nand(nand) = &mut config.media {
        nand.data = media::DataStore::File(folder.path().join("drive.img"));
    }
    let mut b = Bench::new(config);
    b.write(0, 1, 4096, 1);
    // The file that would replace the present one cannot be made.
    let blocked = folder.path().join("drive.img.nvm.new");
    std::fs::create_dir(&blocked).unwrap();
    assert_eq!(now(&mut b, block_erase()), Status::INTERNAL);
    assert_eq!(log(&mut b).last_status(), SanitizeLog::NEVER);
    assert_eq!(read_status(&mut b), Ok(vec![1]));
    std::fs::remove_dir(&blocked).unwrap();
    assert_eq!(now(&mut b, block_erase()), Status::SUCCESS);
    run(&mut b, u64::MAX);
    // The first write afterwards must be in the record.
    std::fs::create_dir(&blocked).unwrap();
    assert_eq!(b.io(Sqe::write(1, 0, 1, false), 4096).status, Status::INTERNAL);
    assert_eq!((log(&mut b).is_erased(), read_status(&mut b)), (true, Ok(vec![0])));
    std::fs::remove_dir(&blocked).unwrap();
    b.host.check_serves(&mut b.drive);
    assert!(!log(&mut b).is_erased());
}
