//! Operations that succeed: what they remove, how long they take, and what the log says.

// guarantee: B-85

use controller::{CmbConfig, Controller, DriveConfig, Fault, FaultError, SanitizeMethod};
use ftl::FtlConfig;
use media::{BufferSlot, ChunkState, MediaConfig, PhysSector};
use mem::PAGE_BYTES;
use nvme::{
    AdminCommand, QueuePriority, SanitizeAction, SanitizeCommand, SanitizeLog, Sqe, Status,
};
use time::{Component, Nanos};

use super::*;
use crate::block_commands::harness::config;
use crate::interface::events::{event, request_event};

/// Configurations of drives whose FTLs differ.
fn variants() -> Vec<(DriveConfig, usize)> {
    let through = DriveConfig { write_buffer: controller::WriteBuffer::None, ..config() };
    let bytes = 1 << 18;
    let protected = DriveConfig {
        write_buffer: controller::WriteBuffer::PowerLossProtected { bytes },
        ..config()
    };
    let volatile =
        DriveConfig { write_buffer: controller::WriteBuffer::Volatile { bytes }, ..config() };
    let cached =
        DriveConfig { ftl: FtlConfig { map_cache_sectors: 1 << 20, ..config().ftl }, ..config() };
    let small = DriveConfig { lba_bytes: Some(512), ..config() };
    vec![
        (config(), 4096),
        (through, 4096),
        (protected, 4096),
        (volatile, 4096),
        (cached, 4096),
        (small, 512),
    ]
}

#[test]
fn an_operation_leaves_nothing_of_the_data() {
    for (config, block_bytes) in variants() {
        for action in [SanitizeAction::BlockErase, SanitizeAction::Overwrite] {
            let mut b = Bench::new(config.clone());
            fill(&mut b, block_bytes);
            if block_bytes == 4096 {
                assert_eq!(b.io(Sqe::write_uncorrectable(1, 4, 1), 0).status, Status::SUCCESS);
            }
            // The write buffer has data that is on no media.
            b.write(7, 1, block_bytes, 3);
            assert!(host_sectors(&mut b) > 1_000);
            let capacity = b.drive.sectors();
            assert_eq!(now(&mut b, sanitize(action)), Status::SUCCESS, "it completes at once");
            assert_eq!(log(&mut b).last_status(), SanitizeLog::IN_PROGRESS);
            assert!(!b.drive.is_idle());
            run(&mut b, u64::MAX);
            let ended = log(&mut b);
            assert_eq!(ended.progress.get(), SanitizeLog::NO_PROGRESS);
            assert_eq!(ended.last_status(), SanitizeLog::SUCCEEDED);
            assert_eq!(b.drive.stats().sanitizes, 1);
            assert_eq!(b.drive.sectors(), capacity);
            assert_clean(&mut b, block_bytes);
            // At once after it, and after writes.
            for round in 0..3 {
                b = b.restart();
                assert_eq!(b.drive.sectors(), capacity);
                assert_eq!(log(&mut b).last_status(), SanitizeLog::SUCCEEDED);
                for lba in 0..capacity {
                    let expected = if round > 0 && lba % 5 == 0 { 9 } else { 0 };
                    assert_eq!(b.read(lba, 1, block_bytes), Ok(vec![expected]), "block {lba}");
                }
                for lba in (0..capacity).step_by(5) {
                    b.write(lba, 1, block_bytes, 9);
                }
                b.flush();
            }
        }
    }
}

#[test]
fn a_block_erase_erases_every_chunk_with_data_in_parallel() {
    let mut b = Bench::new(config());
    fill(&mut b, 4096);
    b.flush();
    let chunks: Vec<_> = b.drive.nand_mut().unwrap().chunks().collect();
    let used = chunks.iter().filter(|(_, info)| info.state != ChunkState::Free).count() as u64;
    let estimate = log(&mut b).block_erase_seconds.get();
    let from = b.host.now;
    assert_eq!(now(&mut b, block_erase()), Status::SUCCESS);
    let mut took = Nanos::ZERO;
    while log(&mut b).last_status() == SanitizeLog::IN_PROGRESS {
        run(&mut b, 1);
        took = b.host.now.since(from);
    }
    // 16 parallel units, 3 ms for a chunk; units differ by the chunks that they have in use.
    assert!(took >= Nanos::from_millis(3 * used.div_ceil(16)), "{took} for {used} chunks");
    assert!(took <= Nanos::from_millis(3 * 16 + 1), "{took} for {used} chunks");
    assert!(took <= Nanos::from_secs(estimate.into()) && estimate == 1);
    let nand = b.drive.nand_mut().unwrap();
    for (chunk, before) in chunks {
        let after = nand.chunk_info(chunk).unwrap();
        let erased = u32::from(before.state != ChunkState::Free);
        assert_eq!(after.wear, before.wear + erased, "{chunk}");
    }
}

#[test]
fn an_overwrite_programs_its_pattern_in_every_pass() {
    let mut b = Bench::new(config());
    fill(&mut b, 4096);
    let command = SanitizeCommand {
        passes: 3,
        inverts: true,
        pattern: 0x1122_3344,
        ..SanitizeCommand::new(SanitizeAction::Overwrite)
    };
    assert_eq!(now(&mut b, AdminCommand::Sanitize(command).to_sqe()), Status::SUCCESS);
    let (mut seen, mut before, mut started) = ([false; 3], 0, b.host.now);
    let mut has_ended = false;
    loop {
        let state = log(&mut b);
        if state.last_status() != SanitizeLog::IN_PROGRESS {
            assert_eq!(state.passes(), 3);
            assert_eq!(state.cdw10.get(), command.to_dwords().0);
            break;
        }
        assert!(state.progress.get() >= before, "{} after {before}", state.progress.get());
        before = state.progress.get();
        let pass = usize::from(state.passes());
        if pass < 3 {
            if !std::mem::replace(&mut seen[pass], true) {
                // A pass erases and programs 16 chunks of 8 pages on each unit. The first one finds
                // chunks that are erased.
                let took = std::mem::replace(&mut started, b.host.now);
                let took = b.host.now.since(took);
                let expected = Nanos(16 * (3_000_000 + 8 * 510_240));
                let is_close = took.0.abs_diff(expected.0) < 500_000;
                assert!(pass < 2 || is_close, "{took}, not {expected}");
            }
            let nand = b.drive.nand_mut().unwrap();
            let written = nand.chunks().find(|(_, info)| info.write_pointer == 8);
            // In the first pass, a chunk that is not erased yet has data of the host.
            if let Some((chunk, _)) = written.filter(|(chunk, _)| chunk.get() % 16 == 0) {
                let mut data = [0; 4];
                let phys = PhysSector(nand.layout().phys(chunk, 0).get());
                nand.read_bytes(phys, &mut data);
                let pattern = if pass % 2 == 0 { 0x1122_3344 } else { !0x1122_3344u32 };
                if pass > 0 && data != pattern.to_le_bytes() {
                    assert_ne!(data[0], data[1], "data of the host");
                }
            }
        } else if !std::mem::replace(&mut has_ended, true) {
            started = b.host.now;
        }
        run(&mut b, 1);
    }
    assert_eq!(seen, [true; 3]);
    assert!(before > 0xf000, "{before}");
    assert!(b.host.now.since(started) <= Nanos::from_millis(16 * 3 + 1), "the erases at the end");
    assert_clean(&mut b, 4096);
    // All ends are events of the host that has sent the command.
    assert_eq!(log(&mut b).last_status(), SanitizeLog::SUCCEEDED);
}

#[test]
fn the_end_is_an_event_of_the_host_that_sent_the_command() {
    let mut b = Bench::new(config());
    let mut other = Host::new(&mut b.drive);
    request_event(&mut b.host, &mut b.drive);
    other.now = b.host.now;
    request_event(&mut other, &mut b.drive);
    let mut sqe = block_erase();
    sqe.cid = 7.into();
    b.write(0, 1, 4096, 1);
    b.host.admin.0.push(&sqe).unwrap();
    b.host.admin.0.ring();
    run(&mut b, 4);
    let cqe = b.host.admin.1.pop().unwrap();
    assert_eq!((cqe.cid, cqe.status), (7, Status::SUCCESS));
    b.host.admin.1.release();
    b.host.admin.0.update_head(cqe.sq_head);
    run(&mut b, u64::MAX);
    assert_eq!(event(&mut b.host), Some(0x81_0106), "type 6, information 1, log page 81h");
    assert_eq!(event(&mut other), None);
    // Reported once until the log is read.
    request_event(&mut b.host, &mut b.drive);
    assert_eq!(b.host.admin.1.pop().map(|cqe| cqe.cid), None);
    // The fault of an administrator is nobody's command.
    b.drive
        .inject_fault(b.host.now, Fault::Sanitize { action: SanitizeMethod::BlockErase })
        .unwrap();
    run(&mut b, u64::MAX);
    assert_eq!(event(&mut b.host), None);
}

#[test]
fn an_injected_operation_is_recorded() {
    for action in [SanitizeMethod::BlockErase, SanitizeMethod::Overwrite] {
        let mut b = Bench::new(config());
        fill(&mut b, 4096);
        let fault = Fault::Sanitize { action };
        b.drive.inject_fault(b.host.now, fault).unwrap();
        let again = b.drive.inject_fault(b.host.now, fault);
        assert_eq!(again, Err(FaultError::InForce { kind: "sanitize" }));
        let format = b.drive.inject_fault(b.host.now, Fault::Format { erase: true });
        let (kind, status) = ("format", Status::SANITIZE_IN_PROGRESS);
        assert_eq!(format, Err(FaultError::Refused { kind, status }));
        assert!(b.drive.faults()[0].is_open);
        run(&mut b, u64::MAX);
        let record = b.drive.faults()[0];
        assert!(!record.is_open && record.count.is_some_and(|blocks| blocks > 500), "{record:?}");
        assert_clean(&mut b, 4096);
        assert_eq!(log(&mut b).passes(), u8::from(action == SanitizeMethod::Overwrite));
    }
}

#[test]
fn global_data_erased_ends_with_the_first_write() {
    let mut b = Bench::new(config());
    let state = log(&mut b);
    assert_eq!((state.last_status(), state.is_erased()), (SanitizeLog::NEVER, true));
    b.write(0, 1, 4096, 1);
    assert!(!log(&mut b).is_erased());
    for change in [
        Sqe::write(1, 3, 1, false),
        Sqe::write_zeroes(1, 3, 1, false),
        Sqe::write_uncorrectable(1, 3, 1),
    ] {
        assert_eq!(now(&mut b, block_erase()), Status::SUCCESS);
        run(&mut b, u64::MAX);
        for _ in 0..2 {
            assert!(log(&mut b).is_erased());
            assert_eq!(b.read(3, 1, 4096), Ok(vec![0]));
            b.flush();
            // It is as durable as the rest of the log.
            b = b.restart();
        }
        assert_eq!(b.io(change, 4096).status, Status::SUCCESS);
        assert!(!log(&mut b).is_erased());
        b = b.restart();
        let state = log(&mut b);
        assert_eq!((state.last_status(), state.is_erased()), (SanitizeLog::SUCCEEDED, false));
    }
}

#[test]
fn the_memory_buffer_is_cleared_except_for_queues() {
    let mut config = config();
    config.controller.cmb = Some(CmbConfig { bytes: 1 << 16, protected: true });
    let mut b = Bench {
        drive: Controller::new(config).unwrap(),
        host: Host::new(&mut Controller::new(crate::block_commands::harness::config()).unwrap()),
    };
    b.host = Host::with_queue(&mut b.drive);
    let base = b.host.port.bar(2).unwrap();
    let memory = b.host.port.memory().find(base, 1 << 16).unwrap();
    let (region, at) = (memory.region.clone(), memory.offset);
    region.fill(at, 1 << 16, 0x77);
    // A submission queue in the buffer, from 4096 on.
    let (qid, entries) = (2, 8);
    let create = AdminCommand::CreateCq {
        qid,
        entries,
        at: b.host.at.offset(40 * PAGE_BYTES as u64).0,
        vector: None,
    };
    assert_eq!(now(&mut b, create.to_sqe()), Status::SUCCESS);
    let ring = base.offset(4096).0;
    let priority = QueuePriority::Medium;
    let create = AdminCommand::CreateSq { qid, entries, at: ring, cqid: qid, priority };
    assert_eq!(now(&mut b, create.to_sqe()), Status::SUCCESS);
    assert_eq!(now(&mut b, block_erase()), Status::SUCCESS);
    run(&mut b, u64::MAX);
    let mut bytes = vec![0; 1 << 16];
    region.read(at, &mut bytes);
    for (offset, byte) in bytes.iter().enumerate() {
        let is_ring = (4096..4096 + 8 * 64).contains(&offset);
        assert_eq!(*byte, if is_ring { 0x77 } else { 0 }, "offset {offset}");
    }
}

#[test]
fn drives_without_data_are_sanitized_in_time() {
    let mut config = config();
    if let MediaConfig::Nand(nand) = &mut config.media {
        nand.data = media::DataStore::None;
    }
    let mut b = Bench::new(config);
    for lba in 0..b.drive.sectors() {
        b.write(lba, 1, 4096, 1);
    }
    let from = b.host.now;
    assert_eq!(now(&mut b, sanitize(SanitizeAction::Overwrite)), Status::SUCCESS);
    run(&mut b, u64::MAX);
    assert!(b.host.now.since(from) > Nanos(16 * (3_000_000 + 8 * 500_000)));
    assert_eq!(log(&mut b).last_status(), SanitizeLog::SUCCEEDED);
    assert_eq!(b.drive.ftl().unwrap().mapped(), 0);
    b.write(5, 1, 4096, 1);
    assert!(b.drive.nand_mut().unwrap().slot_data(BufferSlot(0)).is_none());
    assert_eq!(b.drive.deadline(), Nanos::MAX);
}
