//! A queue pair against a drive that posts valid and invalid completions.

use crate::common;

use common::{Faults, MockDrive};
use nvme::{Sqe, Status};
use sluice_driver::{ControllerHandle, QueueFull, QueuePair, Tag};
use transport::Port;

fn queue(depth: u16) -> (MockDrive, QueuePair) {
    let port = Port::new().unwrap();
    let mut drive = MockDrive::new(&port, 100);
    let mut progress = || drive.progress();
    let mut controller = ControllerHandle::connect(port, &mut progress, 10).unwrap();
    let pair = controller.create_queue_pair(depth, None, &mut progress).unwrap();
    (drive, pair)
}

#[test]
fn a_full_queue_pushes_back_and_nothing_is_seen_before_the_doorbell() {
    let (mut drive, mut pair) = queue(4);
    assert!(!pair.ring(), "there is no new entry to announce");
    for user in 0..3 {
        assert_eq!(pair.next_tag(), Some(Tag(user as u16)));
        assert_eq!(pair.submit(Sqe::flush(1), user), Ok(Tag(user as u16)));
    }
    assert_eq!((pair.submit(Sqe::flush(1), 3), pair.next_tag()), (Err(QueueFull), None));
    assert!(!drive.poll());
    assert!(pair.ring());
    assert!(drive.poll());
    assert_eq!(drive.flushes, 3);
    assert_eq!(pair.outstanding(), 3);
    assert_eq!(pair.reap().unwrap().user, 0);
    assert_eq!(pair.submit(Sqe::flush(1), 3), Ok(Tag(0)));
    assert_eq!(pair.reap().unwrap().user, 1);
    assert_eq!(pair.reap().unwrap().user, 2);
    assert_eq!(pair.reap(), None);
    pair.ring();
    drive.poll();
    assert_eq!(pair.reap().unwrap().user, 3);
    assert_eq!(pair.outstanding(), 0);
}

#[test]
fn every_command_comes_back_once_over_many_rounds_of_the_rings() {
    for depth in [2, 3, 7, 64] {
        let (mut drive, mut pair) = queue(depth);
        let (mut sent, mut back, mut state) = (0u64, vec![0u8; 20_000], 1u64);
        while back.contains(&0) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            for _ in 0..state >> 60 {
                if sent < back.len() as u64 && pair.submit(Sqe::read(1, sent % 99, 1), sent).is_ok()
                {
                    sent += 1;
                }
            }
            drive.faults.fail_io = (state >> 40 & 3 == 0).then_some(Status::WRITE_FAULT);
            pair.ring();
            drive.poll();
            // The test often reaps only some of the completions.
            for _ in 0..state >> 56 & 0xf {
                let Some(done) = pair.reap() else { break };
                back[done.user as usize] += 1;
            }
        }
        assert!(back.iter().all(|n| *n == 1));
        assert_eq!((pair.outstanding(), pair.spurious_completions()), (0, 0));
    }
}

#[test]
fn a_drive_that_lies_is_counted_and_completes_nothing_twice() {
    let (mut drive, mut pair) = queue(16);
    // Every completion is posted three times.
    drive.faults = Faults { repeat: 2, ..Faults::default() };
    for user in 0..4 {
        pair.submit(Sqe::flush(1), user).unwrap();
    }
    pair.ring();
    drive.poll();
    for user in 0..4 {
        assert_eq!(pair.reap().unwrap().user, user);
    }
    assert_eq!(pair.reap(), None);
    assert_eq!((pair.spurious_completions(), pair.outstanding()), (8, 0));

    // Completions of tags that are free or do not exist, or of another queue.
    for (i, faults) in [
        Faults { wrong_cid: 1, ..Faults::default() },
        Faults { wrong_cid: 0x8000, ..Faults::default() },
        Faults { wrong_queue: true, ..Faults::default() },
    ]
    .into_iter()
    .enumerate()
    {
        drive.faults = faults;
        pair.submit(Sqe::flush(1), 9).unwrap();
        pair.ring();
        drive.poll();
        assert_eq!(pair.reap(), None);
        assert_eq!(pair.spurious_completions(), 9 + i as u64);
        assert_eq!(pair.outstanding(), 1, "the command itself has no completion");
        assert_eq!(pair.orphan_next(Status::ABORTED).unwrap().user, 9);
        assert_eq!(pair.orphan_next(Status::ABORTED), None);
        assert_eq!(pair.outstanding(), 0);
    }
}

#[test]
fn failures_and_results_reach_the_submitter() {
    let (mut drive, mut pair) = queue(4);
    drive.faults.fail_io = Some(Status::UNRECOVERED_READ.do_not_retry());
    pair.submit(Sqe::read(1, 5, 1), 77).unwrap();
    pair.ring();
    drive.poll();
    let done = pair.reap().unwrap();
    assert_eq!((done.user, done.status), (77, Status::UNRECOVERED_READ.do_not_retry()));
}
