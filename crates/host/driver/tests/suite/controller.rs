//! Initialization with a drive that replies, rejects commands, reports impossible values, or does
//! not reply.

// guarantee: S-17

use crate::common;

use common::{Faults, MockDrive};
use nvme::opcode::admin;
use nvme::{
    ChunkState, FeatureSelect, Geometry, IdentifyNamespace, Sqe, Status, feature, log_page,
};
use sluice_driver::{Completed, ControllerHandle, DriverError};
use transport::Port;

const POLLS: u64 = 100;

/// Creates a drive of 1000 sectors, changes it with `change`, and returns the result of connecting
/// to it.
fn connect(
    change: impl FnOnce(&mut MockDrive),
) -> (MockDrive, Result<ControllerHandle, DriverError>) {
    let port = Port::new().unwrap();
    let mut drive = MockDrive::new(&port, 1000);
    change(&mut drive);
    let attached = ControllerHandle::connect(port, &mut || drive.progress(), POLLS);
    (drive, attached)
}

fn shape() -> Geometry {
    Geometry {
        groups: 2,
        pus: 3,
        chunks: 67,
        sectors: 96,
        sector_bytes: 4096,
        oob_bytes: 16,
        ws_min: 8,
        ws_opt: 24,
        mw_cunits: 48,
    }
}

#[test]
fn a_block_drive_is_what_it_says() {
    let (_, attached) = connect(|d| {
        d.namespace.nsfeat = 1 << 4;
        d.namespace.nows = 15.into();
    });
    let controller = attached.unwrap();
    let info = controller.info();
    assert_eq!((info.serial.as_str(), info.product.model.as_str()), ("mock-1", "Mock"));
    assert_eq!((info.nsid, info.sector_bytes, info.sectors), (1, 4096, 1000));
    assert_eq!((info.max_sectors, info.optimal_sectors), (32, 16));
    assert_eq!((info.io_queues, info.max_outstanding), (4, 256));
    assert!(info.volatile_cache);
    assert_eq!(info.open_channel, None);
}

#[test]
fn an_open_channel_drive_tells_its_shape_and_its_chunks() {
    let port = Port::new().unwrap();
    let mut drive = MockDrive::open_channel(&port, &shape());
    let mut progress = || drive.progress();
    let mut controller = ControllerHandle::connect(port, &mut progress, POLLS).unwrap();
    let open = controller.info().open_channel.unwrap();
    assert_eq!(open.geometry, shape());
    assert_eq!(open.format.to_string(), "group 1 | pu 2 | chunk 7 | sector 7");
    assert_eq!(open.timing.read_typical, 70_000);
    assert_eq!(controller.info().sectors, shape().total_sectors());
    assert_eq!(controller.info().oob_bytes, 16);

    // 402 chunks exceed one command.
    let all = controller.chunks(0, 402, &mut progress).unwrap();
    assert!(all.iter().enumerate().all(|(i, c)| c.wp.get() == i as u64));
    assert!(all.iter().all(|c| c.chunk_state() == Some(ChunkState::Free)));
    assert_eq!(controller.chunks(401, 1, &mut progress).unwrap()[0].wp.get(), 401);
    for (first, count) in [(401, 2), (u64::MAX, 2)] {
        let error = controller.chunks(first, count, &mut progress).unwrap_err();
        assert!(matches!(error, DriverError::NoSuchChunks { chunks: 402, .. }), "{error}");
    }
}

#[test]
fn logs_and_features() {
    let (mut drive, attached) = connect(|_| ());
    let mut controller = attached.unwrap();
    let mut progress = || drive.progress();
    assert_eq!(controller.health(&mut progress).unwrap().percentage_used, 7);
    let error = controller.log_page(0x77, 0, &mut [0; 64], &mut progress).unwrap_err();
    assert_eq!(error.status(), Some(Status::INVALID_LOG_PAGE));
    assert!(controller.log_page(log_page::HEALTH, 2, &mut [0; 64], &mut progress).is_err());
    assert!(controller.log_page(log_page::HEALTH, 0, &mut [0; 63], &mut progress).is_err());
    let cache = feature::VOLATILE_WRITE_CACHE;
    assert!(controller.get_feature(cache, FeatureSelect::Current, &mut progress).is_err());
    controller.set_feature(cache, 1, &mut progress).unwrap();
    assert_eq!(controller.get_feature(cache, FeatureSelect::Current, &mut progress).unwrap(), 1);
    assert!(controller.chunks(0, 1, &mut progress).is_err(), "a block drive has no chunk report");
}

#[test]
fn timeouts_and_rejections_are_errors_that_name_the_command() {
    for opcode in [admin::IDENTIFY, admin::SET_FEATURES] {
        let silent = Faults { ignore_admin: Some(opcode), ..Faults::default() };
        let (_, attached) = connect(|d| d.faults = silent);
        let error = attached.unwrap_err();
        assert!(matches!(error, DriverError::Timeout { queue: 0, polls: POLLS, .. }), "{error}");
        let status = Status::INTERNAL;
        let refusing = Faults { refuse_admin: Some((opcode, status)), ..Faults::default() };
        let (_, attached) = connect(|d| d.faults = refusing);
        assert_eq!(attached.unwrap_err().status(), Some(status));
    }
}

#[test]
fn drives_that_cannot_be_are_refused() {
    let error = |change: fn(&mut MockDrive)| connect(change).1.unwrap_err();
    let implausible: [fn(&mut MockDrive); 6] = [
        |d| d.namespace.nsze = 0.into(),
        |d| d.namespace.nsze = u64::MAX.into(),
        |d| d.namespace.lbaf[0].lbads = 3,
        |d| d.namespace.lbaf[0].lbads = 200,
        |d| d.controller.sqes = 0x77,
        |d| (d.controller.mdts, d.namespace.lbaf[0].lbads) = (1, 20),
    ];
    for change in implausible {
        let error = error(change);
        assert!(matches!(error, DriverError::Implausible { .. }), "{error}");
    }
    // A drive that claims to be open-channel, but does not support the command or reports
    // impossible values.
    let error = error(|d| d.namespace.vendor[0] = IdentifyNamespace::VENDOR_OPEN_CHANNEL);
    assert_eq!(error.status(), Some(Status::INVALID_OPCODE));
    let port = Port::new().unwrap();
    let mut drive = MockDrive::open_channel(&port, &shape());
    drive.geometry.as_mut().unwrap().chunk_bits = 6;
    let error = ControllerHandle::connect(port, &mut || drive.progress(), POLLS).unwrap_err();
    assert!(matches!(error, DriverError::Geometry(_)), "{error}");
}

#[test]
fn queue_pairs_come_and_go() {
    let (mut drive, attached) = connect(|_| ());
    let mut controller = attached.unwrap();
    let mut progress = || drive.progress();
    let mut pairs = Vec::new();
    for qid in 1..=4 {
        let pair = controller.create_queue_pair(8, Some(qid), &mut progress).unwrap();
        assert_eq!((pair.qid(), pair.depth(), pair.capacity()), (qid, 8, 7));
        assert_eq!(pair.vector(), Some(qid));
        pairs.push(pair);
    }
    let error = controller.create_queue_pair(8, None, &mut progress).unwrap_err();
    assert!(matches!(error, DriverError::NoFreeQueue { granted: 4 }), "{error}");
    assert!(matches!(
        controller.create_queue_pair(1, None, &mut progress).unwrap_err(),
        DriverError::Depth { depth: 1, .. }
    ));

    // A deleted queue's memory has old phase tags, which the new queue must not see. There are more
    // iterations than a port has registrations.
    for round in 0..1100u64 {
        let pair = pairs.remove(0);
        let qid = pair.qid();
        controller
            .delete_queue_pair(pair, &mut |_| panic!("nothing outstanding"), &mut progress)
            .unwrap();
        let mut pair = controller.create_queue_pair(8, None, &mut progress).unwrap();
        assert_eq!(pair.qid(), qid);
        assert_eq!(pair.reap(), None);
        for i in 0..5 {
            pair.submit(Sqe::flush(1), round + i).unwrap();
        }
        pair.ring();
        progress();
        for i in 0..5 {
            let done = Completed { user: round + i, result: 0, status: Status::SUCCESS };
            assert_eq!(pair.reap(), Some(done));
        }
        assert_eq!((pair.reap(), pair.outstanding(), pair.spurious_completions()), (None, 0, 0));
        pairs.push(pair);
    }
}

#[test]
fn commands_of_a_deleted_queue_come_back_once() {
    let (mut drive, attached) = connect(|d| d.faults.hold_io = true);
    let mut controller = attached.unwrap();
    let mut progress = || drive.progress();
    let mut pair = controller.create_queue_pair(16, None, &mut progress).unwrap();
    for user in 0..10 {
        pair.submit(Sqe::read(1, 0, 1), user).unwrap();
    }
    pair.ring();
    progress();
    let mut back = Vec::new();
    controller.delete_queue_pair(pair, &mut |c| back.push(c), &mut progress).unwrap();
    assert!(back.iter().all(|c| c.status == Status::ABORTED_SQ_DELETED));
    let mut users: Vec<u64> = back.iter().map(|c| c.user).collect();
    users.sort_unstable();
    assert_eq!(users, (0..10).collect::<Vec<_>>());
}

#[test]
fn a_refused_submission_queue_leaves_nothing_behind() {
    let status = Status::INVALID_QUEUE_SIZE;
    let faults = Faults { refuse_admin: Some((admin::CREATE_SQ, status)), ..Faults::default() };
    let (mut drive, attached) = connect(|d| d.faults = faults);
    let mut controller = attached.unwrap();
    let error = controller.create_queue_pair(8, None, &mut || drive.progress()).unwrap_err();
    let expected = DriverError::Command {
        command: "Create I/O Submission Queue",
        queue: 1,
        status: Status::INVALID_QUEUE_SIZE,
    };
    assert_eq!(error.to_string(), expected.to_string());
    drive.faults = Faults::default();
    let pair = controller.create_queue_pair(8, None, &mut || drive.progress()).unwrap();
    assert_eq!(pair.qid(), 1);
}

#[test]
fn after_a_timeout_admin_commands_stop_but_queues_still_work() {
    let (mut drive, attached) = connect(|_| ());
    let mut controller = attached.unwrap();
    let mut pair = controller.create_queue_pair(8, None, &mut || drive.progress()).unwrap();
    drive.faults.ignore_admin = Some(admin::GET_LOG_PAGE);
    let error = controller.health(&mut || drive.progress()).unwrap_err();
    assert!(matches!(error, DriverError::Timeout { .. }), "{error}");
    drive.faults = Faults::default();
    let error = controller.health(&mut || drive.progress()).unwrap_err();
    assert!(matches!(error, DriverError::Unresponsive { .. }), "{error}");
    pair.submit(Sqe::flush(1), 1).unwrap();
    pair.ring();
    drive.poll();
    assert!(pair.reap().is_some());
    pair.submit(Sqe::flush(1), 2).unwrap();
    let mut back = Vec::new();
    let deleted =
        controller.delete_queue_pair(pair, &mut |c| back.push(c.user), &mut || drive.progress());
    assert!(deleted.unwrap_err().is_unresponsive());
    assert_eq!(back, [2], "the command must be returned although the deletion timed out");
    assert!(controller.reclaim(&mut || drive.progress()).unwrap_err().is_unresponsive());
}

/// A drive that stalls for a while. Late replies arrive, and operation continues. Queues whose
/// creation or deletion timed out are found and reclaimed.
#[test]
fn late_replies_end_the_timeout_and_queues_of_unknown_state_are_reclaimed() {
    let (mut drive, attached) = connect(|_| ());
    let mut controller = attached.unwrap();
    let silence = &mut || ();
    let kept = controller.create_queue_pair(8, None, &mut || drive.progress()).unwrap();
    assert_eq!((kept.qid(), controller.next_qid()), (1, Some(2)));
    let error = controller.create_queue_pair(8, None, silence).unwrap_err();
    assert!(matches!(error, DriverError::Timeout { queue: 2, .. }), "{error}");
    assert_eq!(controller.next_qid(), Some(3), "queue 2 may exist on the drive");
    assert!(controller.health(silence).unwrap_err().is_unresponsive());
    drive.progress();
    controller.health(&mut || drive.progress()).unwrap();
    controller.reclaim(&mut || drive.progress()).unwrap();
    assert_eq!(controller.next_qid(), Some(2));

    let error = controller.delete_queue_pair(kept, &mut |_| (), silence).unwrap_err();
    assert!(error.is_unresponsive(), "{error}");
    assert_eq!(controller.next_qid(), Some(2));
    assert!(controller.reclaim(silence).unwrap_err().is_unresponsive());
    drive.progress();
    controller.reclaim(&mut || drive.progress()).unwrap();
    for qid in 1..=3 {
        let pair = controller.create_queue_pair(8, None, &mut || drive.progress()).unwrap();
        assert_eq!(pair.qid(), qid);
    }
}
