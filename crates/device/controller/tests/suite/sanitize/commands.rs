//! The commands that are executed during Sanitize, and those that are refused; parameters that are
//! refused.

// guarantee: B-86

use controller::{AccessPolicy, AccessScope, Fault, FaultError, SanitizeMethod};
use nvme::{
    AdminCommand, FeatureSelect, IdentifyController, QueuePriority, SanitizeAction,
    SanitizeCommand, SanitizeLog, SecureErase, Sqe, Status, feature, log_page, sanicap,
};
use time::{Component, Nanos};
use transport::Port;

use super::*;
use crate::block_commands::harness::config;
use crate::hostile::host::configs;

fn format() -> Sqe {
    let erase = SecureErase::UserData;
    AdminCommand::FormatNvm { nsid: 1, lba_format: 0, protection: 0, erase }.to_sqe()
}

fn log_page_command(lid: u8) -> AdminCommand {
    AdminCommand::GetLogPage { lid, nsid: u32::MAX, bytes: 64, offset: 0, retain: true }
}

/// Admin commands that the specification allows during Sanitize, with the status that each has.
fn allowed() -> Vec<(AdminCommand, Status)> {
    let ok = Status::SUCCESS;
    let (qid, cqid, at, entries) = (3, 3, 0x1000, 1 << 16);
    let priority = QueuePriority::Low;
    let (fid, select, member) = (feature::VOLATILE_WRITE_CACHE, FeatureSelect::Current, 0);
    vec![
        (AdminCommand::Identify { cns: 1, nsid: 0 }, ok),
        (AdminCommand::Identify { cns: 0, nsid: 1 }, ok),
        (AdminCommand::GetFeatures { fid, select, member }, ok),
        (AdminCommand::SetFeatures { fid, save: false, value: 1 }, ok),
        (AdminCommand::Abort { sqid: 1, cid: 1 }, ok),
        (AdminCommand::DeleteSq { qid: 9 }, Status::INVALID_QID),
        (AdminCommand::DeleteCq { qid: 9 }, Status::INVALID_QID),
        (AdminCommand::CreateCq { qid, entries, at, vector: None }, Status::INVALID_QUEUE_SIZE),
        (AdminCommand::CreateSq { qid, entries, at, cqid, priority }, Status::INVALID_QUEUE_SIZE),
        // No registers, no timer.
        (AdminCommand::KeepAlive, Status::INVALID_OPCODE),
        (log_page_command(log_page::ERROR), ok),
        (log_page_command(log_page::HEALTH), ok),
        (log_page_command(log_page::CHANGED_NAMESPACES), ok),
        (log_page_command(0x80), Status::INVALID_LOG_PAGE),
        (log_page_command(log_page::SANITIZE), ok),
    ]
}

/// Admin commands that it does not allow.
fn refused() -> Vec<Sqe> {
    let mut all: Vec<Sqe> = (0..=u8::MAX)
        .filter(|lid| {
            ![log_page::ERROR, log_page::HEALTH, log_page::CHANGED_NAMESPACES, 0x80, 0x81]
                .contains(lid)
        })
        .map(|lid| log_page_command(lid).to_sqe())
        .collect();
    all.push(format());
    all.push(AdminCommand::GetLbaStatus { nsid: 1, slba: 0, nlb: 1, bytes: 64 }.to_sqe());
    all.push(AdminCommand::Geometry { nsid: 1 }.to_sqe());
    all.push(AdminCommand::DoorbellBufferConfig { values: 0x1000, events: 0x2000 }.to_sqe());
    all
}

fn io_commands() -> Vec<Sqe> {
    vec![
        Sqe::flush(1),
        Sqe::read(1, 0, 1),
        Sqe::write(1, 0, 1, false),
        Sqe::write_zeroes(1, 0, 1, false),
        Sqe::write_uncorrectable(1, 0, 1),
        Sqe::compare(1, 0, 1),
        Sqe::verify(1, 0, 1),
        Sqe::copy(1, 0, 1),
        Sqe::new(nvme::opcode::io::DATASET_MANAGEMENT, 1),
        Sqe::lba_status(1, 0, 1, 1),
    ]
}

/// Checks which commands the drive executes at this instant; `status` ends the others.
fn check_commands(b: &mut Bench, status: Status) {
    let before = b.host.now;
    for (command, expected) in allowed() {
        let mut sqe = command.to_sqe();
        if matches!(command, AdminCommand::Identify { .. } | AdminCommand::GetLogPage { .. }) {
            sqe.set_prp(b.host.at.0, 0);
        }
        let found = now(b, sqe);
        // The drive has nothing to abort, and says so in the result.
        assert_eq!(found, expected, "{}", command.name());
    }
    for mut sqe in refused() {
        sqe.set_prp(b.host.at.0, 0);
        if sqe.opcode == nvme::opcode::admin::DOORBELL_BUFFER_CONFIG {
            sqe.set_prp(0x1000, 0x2000);
        }
        // Commands that the drive never has are not known during Sanitize either.
        let unknown = [nvme::opcode::admin::GEOMETRY, nvme::opcode::admin::DOORBELL_BUFFER_CONFIG];
        let found = now(b, sqe);
        match unknown.contains(&sqe.opcode) {
            true => assert!(!found.is_success(), "{found}"),
            false => assert_eq!(found, status, "{:#x}", sqe.opcode),
        }
    }
    for mut sqe in io_commands() {
        sqe.set_sgl(b.host.block(0, 4096));
        b.host.submit(sqe);
        let cqe = b.host.reap_refused(&mut b.drive);
        assert_eq!(cqe.status, status, "{:#x}", sqe.opcode);
    }
    assert_eq!(b.host.now, before + Nanos(1_000 * io_commands().len() as u64));
}

#[test]
fn only_the_commands_of_the_specification_are_executed_meanwhile() {
    let mut b = Bench::new(config());
    fill(&mut b, 4096);
    assert_eq!(b.io(Sqe::write_uncorrectable(1, 4, 1), 0).status, Status::SUCCESS);
    assert_eq!(b.read(4, 1, 4096), Err(Status::UNRECOVERED_READ));
    assert_eq!(b.newest_error().1, 4);
    assert_eq!(now(&mut b, sanitize(SanitizeAction::Overwrite)), Status::SUCCESS);
    let newest = |b: &mut Bench| {
        let mut sqe = log_page_command(log_page::ERROR).to_sqe();
        sqe.set_prp(b.host.at.0, 0);
        assert_eq!(now(b, sqe), Status::SUCCESS);
        let mut entry = [0; 64];
        b.host.memory.read(0, &mut entry);
        nvme::ErrorEntry::from_bytes(entry)
    };
    let entry = newest(&mut b);
    assert_eq!((entry.status(), entry.lba.get()), (Status::UNRECOVERED_READ, 0), "no block");
    for _ in 0..20 {
        check_commands(&mut b, Status::SANITIZE_IN_PROGRESS);
        run(&mut b, 50);
    }
    assert_eq!(
        now(&mut b, sanitize(SanitizeAction::ExitFailureMode)),
        Status::SANITIZE_IN_PROGRESS
    );
    for _ in 0..2 {
        assert_eq!(now(&mut b, block_erase()), Status::SANITIZE_IN_PROGRESS);
    }
    run(&mut b, u64::MAX);
    assert_clean(&mut b, 4096);
    // A drive that was not sanitized in vain leaves no failure mode.
    assert_eq!(now(&mut b, sanitize(SanitizeAction::ExitFailureMode)), Status::SUCCESS);
    assert_eq!(log(&mut b).last_status(), SanitizeLog::SUCCEEDED);
    b.host.check_serves(&mut b.drive);
}

#[test]
fn commands_that_were_fetched_before_end_first() {
    let mut b = Bench::new(config());
    fill(&mut b, 4096);
    b.flush();
    let mut read = Sqe::read(1, 3, 1);
    read.set_sgl(b.host.block(0, 4096));
    for _ in 0..10 {
        b.host.submit(read);
    }
    while b.drive.poll(b.host.now) {}
    assert_eq!(now(&mut b, block_erase()), Status::SUCCESS);
    let refused = b.host.submit(read);
    let cqe = b.host.reap_refused(&mut b.drive);
    assert_eq!((cqe.cid, cqe.status), (refused, Status::SANITIZE_IN_PROGRESS));
    run(&mut b, u64::MAX);
    let ended: Vec<Status> = std::iter::from_fn(|| b.host.reap()).map(|cqe| cqe.status).collect();
    assert_eq!(ended, [Status::SUCCESS; 10]);
    assert_clean(&mut b, 4096);
}

#[test]
fn format_and_sanitize_refuse_each_other() {
    let mut b = Bench::new(config());
    fill(&mut b, 4096);
    assert_eq!(now(&mut b, block_erase()), Status::SUCCESS);
    assert_eq!(now(&mut b, format()), Status::SANITIZE_IN_PROGRESS);
    run(&mut b, u64::MAX);
    fill(&mut b, 4096);
    b.host.cid += 1;
    let mut sqe = format();
    sqe.cid = b.host.cid.into();
    b.host.admin.0.push(&sqe).unwrap();
    b.host.admin.0.ring();
    run(&mut b, 3);
    for sqe in [block_erase(), sanitize(SanitizeAction::ExitFailureMode)] {
        assert_eq!(now(&mut b, sqe), Status::FORMAT_IN_PROGRESS);
    }
    let fault = Fault::Sanitize { action: SanitizeMethod::Overwrite };
    let (kind, status) = ("sanitize", Status::FORMAT_IN_PROGRESS);
    assert_eq!(b.drive.inject_fault(b.host.now, fault), Err(FaultError::Refused { kind, status }));
    run(&mut b, u64::MAX);
    let cqe = b.host.admin.1.pop().expect("the format ends");
    b.host.admin.1.release();
    b.host.admin.0.update_head(cqe.sq_head);
    assert_eq!(cqe.status, Status::SUCCESS);
    assert_eq!(log(&mut b).last_status(), SanitizeLog::SUCCEEDED, "of the first one");
    assert_eq!(now(&mut b, block_erase()), Status::SUCCESS);
    run(&mut b, u64::MAX);
    assert_clean(&mut b, 4096);
}

#[test]
fn parameters_that_cannot_be_are_refused() {
    let mut b = Bench::new(config());
    b.write(0, 1, 4096, 1);
    let (controller, _) = b.identify();
    let expected = sanicap::BLOCK_ERASE
        | sanicap::OVERWRITE
        | sanicap::NO_DEALLOCATE_INHIBITED
        | sanicap::MEDIA_NOT_MODIFIED;
    assert_eq!(controller.sanitize_capabilities(), expected);
    for cdw10 in [0, 5, 6, 7, 2 | 1 << 10, 2 | 1 << 31] {
        let mut sqe = block_erase();
        sqe.cdw10 = cdw10.into();
        assert_eq!(now(&mut b, sqe), Status::INVALID_FIELD, "{cdw10:#x}");
    }
    let invalid = Status::INVALID_FIELD.do_not_retry();
    assert_eq!(now(&mut b, sanitize(SanitizeAction::CryptoErase)), invalid, "no key");
    let keep =
        SanitizeCommand { no_deallocate: true, ..SanitizeCommand::new(SanitizeAction::BlockErase) };
    let keep = AdminCommand::Sanitize(keep).to_sqe();
    assert_eq!(now(&mut b, keep), invalid, "inhibited");
    assert_eq!(b.read(0, 1, 4096), Ok(vec![1]), "nothing has changed");
    assert_eq!(log(&mut b).last_status(), SanitizeLog::NEVER);
    // With the response mode of Sanitize config, the blocks are deallocated, and the log says so.
    let fid = feature::SANITIZE_CONFIG;
    let set = |value| AdminCommand::SetFeatures { fid, save: false, value }.to_sqe();
    assert_eq!(now(&mut b, set(2)), Status::INVALID_FIELD);
    assert_eq!(now(&mut b, set(1)), Status::SUCCESS);
    let get = AdminCommand::GetFeatures { fid, select: FeatureSelect::Current, member: 0 };
    assert_eq!(send(&mut b.host, &mut b.drive, get.to_sqe()).unwrap().result, 1);
    assert_eq!(now(&mut b, keep), Status::SUCCESS);
    run(&mut b, u64::MAX);
    assert_eq!(log(&mut b).last_status(), SanitizeLog::SUCCEEDED_DEALLOCATED);
    crate::interface::events::request_event(&mut b.host, &mut b.drive);
    let event = crate::interface::events::event(&mut b.host);
    assert_eq!(event, Some(0x81_0206), "with unexpected deallocation");
    read_log(&mut b);
    assert_clean(&mut b, 4096);
    for (nsid, expected) in [(0, Ok(())), (1, Err(Status::INVALID_FIELD))] {
        let page = (log_page::SANITIZE, nsid);
        let read = log_page_of(&mut b.host, &mut b.drive, page, (0, 512), true);
        assert_eq!(read.map(|_| ()), expected);
    }
}

#[test]
fn only_hosts_of_whole_drives_that_manage_their_flash_sanitize() {
    let mut refused = 0;
    for config in configs() {
        let mut b = Bench::new(config);
        let (controller, _) = b.identify();
        let is_supported = controller.oacs.get() & IdentifyController::OACS_FORMAT != 0;
        assert_eq!(controller.sanitize_capabilities() != 0, is_supported);
        let fid = feature::SANITIZE_CONFIG;
        let get = AdminCommand::GetFeatures { fid, select: FeatureSelect::Current, member: 0 };
        let feature = now(&mut b, get.to_sqe());
        let page = (log_page::SANITIZE, 0);
        let log = log_page_of(&mut b.host, &mut b.drive, page, (0, 512), true);
        let status = now(&mut b, block_erase());
        run(&mut b, u64::MAX);
        let fault = Fault::Sanitize { action: SanitizeMethod::BlockErase };
        let fault = b.drive.inject_fault(b.host.now, fault);
        run(&mut b, u64::MAX);
        if is_supported {
            assert_eq!((status, fault, feature), (Status::SUCCESS, Ok(()), Status::SUCCESS));
            assert!(log.is_ok());
        } else {
            assert_eq!((status, feature), (Status::INVALID_OPCODE, Status::INVALID_FIELD));
            assert_eq!(log, Err(Status::INVALID_LOG_PAGE));
            let no_flash = matches!(fault, Err(FaultError::NoFlash { .. }));
            assert!(no_flash || fault == Err(FaultError::NoFormat { kind: "sanitize" }));
            refused += 1;
        }
    }
    assert_eq!(refused, 3, "the open-channel drive, the null drive and phase-change memory");
    let mut b = Bench::new(config());
    for scope in [AccessScope::Sectors { first: 0, count: 10 }, AccessScope::All] {
        let port = Port::new().unwrap();
        b.drive.attach_as(&port, AccessPolicy::for_scope(scope)).unwrap();
        let mut other = Host::on_port(port);
        other.now = b.host.now;
        assert_eq!(other.admin(&mut b.drive, block_erase()).status, Status::INVALID_OPCODE);
        let page = (log_page::SANITIZE, 0);
        let log = log_page_of(&mut other, &mut b.drive, page, (0, 512), true);
        assert_eq!(log, Err(Status::INVALID_LOG_PAGE));
        b.host.now = other.now;
    }
}
