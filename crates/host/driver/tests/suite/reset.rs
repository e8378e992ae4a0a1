//! Queue resets with a drive that replies, rejects commands, forgets queues, or does not reply.

// guarantee: B-03

use crate::common;

use common::{Faults, MockDrive};
use nvme::Status;
use nvme::opcode::admin;
use sluice_driver::{
    BindError, ControllerHandle, HardwareQueue, LowLevelDriver, NvmeDevice, NvmeQueue, Payload,
    QueueState, Request, Tag, TagError,
};
use time::Nanos;
use transport::Port;

const POLLS: u64 = 100;

/// Timeout of a reset for each reply.
const RESET_TIMEOUT: Nanos = Nanos::from_millis(1000);

fn open(queues: u16) -> (MockDrive, Vec<NvmeQueue>) {
    let port = Port::new().unwrap();
    let mut drive = MockDrive::new(&port, 1000);
    let controller = ControllerHandle::connect(port, &mut || drive.progress(), POLLS).unwrap();
    let mut emulated =
        NvmeDevice::open(controller, queues, 8, false, &mut || drive.progress()).unwrap();
    let taken = (0..queues).map(|i| emulated.take_queue(i).unwrap()).collect();
    assert!(emulated.take_queue(0).is_none() && emulated.take_queue(queues).is_none());
    (drive, taken)
}

fn start(queue: &mut NvmeQueue, count: usize, now: Nanos) -> Vec<Tag> {
    let mut tags = vec![Tag(0); count];
    assert_eq!(queue.get_free_tags(&mut tags), count);
    for tag in &tags {
        let request = Request::read(tag.0.into(), 1, Payload::BitBucket, 100 + u64::from(tag.0));
        queue.bind_tag_cmd(*tag, &request, now).unwrap();
    }
    assert!(queue.issue_tags());
    tags.sort();
    tags
}

/// Returns all completions in order.
fn completions(queue: &mut NvmeQueue) -> Vec<(Tag, Status)> {
    let mut ended = Vec::new();
    while let Some(event) = queue.fetch_event() {
        queue.detach_tag_cmd(event.tag).unwrap();
        queue.release_tags(&[event.tag]).unwrap();
        ended.push((event.tag, event.status));
    }
    ended
}

/// Detaches and frees the tags of commands that the device has forgotten.
fn reclaim_tags(queue: &mut NvmeQueue) -> Vec<Tag> {
    let bound: Vec<Tag> = queue.tags().bound_tags().map(|(tag, _)| tag).collect();
    for tag in &bound {
        queue.detach_tag_cmd(*tag).unwrap();
        queue.release_tags(&[*tag]).unwrap();
    }
    bound
}

/// Polls until no queue is being reset; returns the time.
fn run(drive: &mut MockDrive, queues: &mut [NvmeQueue], mut now: Nanos, answers: bool) -> Nanos {
    for _ in 0..1_000_000 {
        let mut moved = answers && drive.poll();
        for queue in queues.iter_mut() {
            moved |= queue.poll(now);
        }
        if moved {
            continue;
        }
        let next = queues.iter().map(HardwareQueue::deadline).min().unwrap();
        if next == Nanos::MAX {
            return now;
        }
        assert!(next > now, "a deadline in the past at {now}");
        now = next;
    }
    panic!("the reset does not finish");
}

/// Checks that commands complete on a queue as on a new one.
fn assert_queue_works(drive: &mut MockDrive, queue: &mut NvmeQueue) {
    for _ in 0..5 {
        let tags = start(queue, 7, Nanos(1));
        drive.poll();
        let mut ended: Vec<Tag> = completions(queue)
            .into_iter()
            .map(|(tag, status)| {
                assert_eq!(status, Status::SUCCESS);
                tag
            })
            .collect();
        ended.sort();
        assert_eq!(ended, tags);
    }
    assert_eq!(queue.pair().spurious_completions(), 0);
}

#[test]
fn a_queue_is_as_good_as_new_after_a_reset() {
    let (mut drive, mut queues) = open(1);
    for round in 0..20 {
        // Varies the positions and phase tags of the rings.
        let queue = &mut queues[0];
        start(queue, 1 + round % 7, Nanos(1));
        drive.poll();
        assert_eq!(completions(queue).len(), 1 + round % 7);
        drive.faults.hold_io = true;
        let tags = start(queue, 6, Nanos(1));
        drive.poll();
        queue.reset(Nanos(5));
        queue.reset(Nanos(6));
        assert_eq!(queue.state(), QueueState::Resetting);
        let mut one = [Tag(0)];
        assert_eq!(queue.get_free_tags(&mut one), 1);
        let request = Request::flush(1);
        assert_eq!(queue.bind_tag_cmd(one[0], &request, Nanos(6)), Err(BindError::Busy));
        queue.release_tags(&one).unwrap();
        // The drive completes half of the commands while it deletes the queue; the reset drops
        // these completions.
        drive.faults.hold_io = false;
        run(&mut drive, &mut queues, Nanos(6), true);
        let queue = &mut queues[0];
        assert_eq!(queue.state(), QueueState::Ready);
        assert!(!queue.check_event() && queue.fetch_event().is_none());
        assert_eq!(reclaim_tags(queue), tags);
        assert_queue_works(&mut drive, queue);
    }
}

#[test]
fn commands_bound_and_not_issued_never_reach_the_drive() {
    let (mut drive, mut queues) = open(1);
    let queue = &mut queues[0];
    let mut tag = [Tag(0)];
    queue.get_free_tags(&mut tag);
    queue.bind_tag_cmd(tag[0], &Request::flush(1), Nanos(1)).unwrap();
    queue.reset(Nanos(2));
    assert!(!queue.issue_tags(), "the driver must not ring the doorbell during a reset");
    run(&mut drive, &mut queues, Nanos(2), true);
    let queue = &mut queues[0];
    assert!(!queue.issue_tags());
    drive.poll();
    assert_eq!((drive.flushes, reclaim_tags(queue).len()), (0, 1));
    assert_queue_works(&mut drive, queue);
}

#[test]
fn a_queue_that_the_drive_has_forgotten_is_made_again() {
    let (mut drive, mut queues) = open(1);
    drive.forget(1);
    let tags = start(&mut queues[0], 3, Nanos(1));
    queues[0].reset(Nanos(2));
    run(&mut drive, &mut queues, Nanos(2), true);
    assert_eq!(queues[0].state(), QueueState::Ready);
    assert_eq!(reclaim_tags(&mut queues[0]), tags);
    assert_queue_works(&mut drive, &mut queues[0]);
}

#[test]
fn a_drive_that_refuses_a_step_is_removed() {
    let refusals = [
        (admin::DELETE_SQ, Status::INTERNAL),
        (admin::DELETE_CQ, Status::INVALID_QUEUE_DELETION),
        (admin::CREATE_CQ, Status::INVALID_QID),
        (admin::CREATE_SQ, Status::INVALID_QUEUE_SIZE),
    ];
    for refused in refusals {
        let (mut drive, mut queues) = open(2);
        start(&mut queues[0], 3, Nanos(1));
        drive.faults.refuse_admin = Some(refused);
        queues[0].reset(Nanos(2));
        run(&mut drive, &mut queues, Nanos(2), true);
        assert_eq!(queues[0].state(), QueueState::Removed, "{refused:?}");
        // Nothing is returned, although the drive may have posted completions.
        drive.poll();
        assert!(!queues[0].check_event() && queues[0].fetch_event().is_none());
        assert_eq!(reclaim_tags(&mut queues[0]).len(), 3);
        assert_eq!(queues[0].deadline(), Nanos::MAX);
        let mut tag = [Tag(0)];
        queues[0].get_free_tags(&mut tag);
        let bound = queues[0].bind_tag_cmd(tag[0], &Request::flush(1), Nanos(3));
        assert_eq!(bound, Err(BindError::Busy));
        // The other queue is not affected.
        assert_eq!(queues[1].state(), QueueState::Ready);
        assert_queue_works(&mut drive, &mut queues[1]);
    }
}

#[test]
fn a_drive_that_leaves_a_step_unanswered_is_removed_after_a_while() {
    for ignored in [admin::DELETE_SQ, admin::DELETE_CQ, admin::CREATE_CQ, admin::CREATE_SQ] {
        let (mut drive, mut queues) = open(2);
        drive.faults = Faults { ignore_admin: Some(ignored), ..Faults::default() };
        start(&mut queues[0], 3, Nanos(1));
        queues[0].reset(Nanos(2));
        let now = run(&mut drive, &mut queues, Nanos(2), true);
        assert_eq!(queues[0].state(), QueueState::Removed);
        assert!(now >= RESET_TIMEOUT && now < RESET_TIMEOUT + Nanos::from_millis(1), "{now}");
        // The admin queue still waits for that reply, so no other queue can be reset.
        assert_queue_works(&mut drive, &mut queues[1]);
        queues[1].reset(now);
        let later = run(&mut drive, &mut queues, now, true);
        assert_eq!(queues[1].state(), QueueState::Removed);
        assert!(
            later >= now + RESET_TIMEOUT && later < now + RESET_TIMEOUT + Nanos::from_millis(1)
        );
    }
}

#[test]
fn queues_that_are_reset_at_one_time_take_turns() {
    let (mut drive, mut queues) = open(4);
    for round in 0..10 {
        drive.faults.hold_io = true;
        for queue in &mut queues {
            start(queue, 5, Nanos(1));
        }
        drive.poll();
        for queue in &mut queues {
            let aborted = queue.tags().bound_tags().nth(round % 5).unwrap().0;
            // Aborts of other commands are interleaved, and take only their own replies.
            queue.abort_tag(aborted, Nanos(2)).unwrap();
            queue.reset(Nanos(2));
            assert_eq!(queue.abort_tag(aborted, Nanos(2)), Ok(()));
        }
        drive.faults.hold_io = false;
        run(&mut drive, &mut queues, Nanos(2), true);
        for queue in &mut queues {
            assert_eq!(queue.state(), QueueState::Ready, "round {round}");
            assert_eq!(reclaim_tags(queue).len(), 5);
            assert_queue_works(&mut drive, queue);
        }
    }
}

/// Aborts of one queue between the steps of another queue's reset do not take its replies.
#[test]
fn aborts_of_one_queue_do_not_disturb_the_reset_of_another() {
    let (mut drive, mut queues) = open(2);
    drive.faults.hold_io = true;
    start(&mut queues[0], 3, Nanos(1));
    let tags = start(&mut queues[1], 3, Nanos(1));
    drive.poll();
    drive.faults.hold_io = false;
    queues[0].reset(Nanos(2));
    let mut now = Nanos(2);
    while queues[0].state() == QueueState::Resetting {
        queues[0].poll(now);
        drive.poll();
        queues[1].abort_tag(tags[1], now).unwrap();
        drive.poll();
        now += Nanos::from_micros(10);
        assert!(now < RESET_TIMEOUT, "a reply was lost");
    }
    assert_eq!(queues[0].state(), QueueState::Ready);
    reclaim_tags(&mut queues[0]);
    assert_queue_works(&mut drive, &mut queues[0]);
}

#[test]
fn a_queue_that_goes_away_in_mid_reset_leaves_the_admin_queue_to_others() {
    let (mut drive, mut queues) = open(2);
    queues[0].reset(Nanos(1));
    queues[0].poll(Nanos(1));
    drop(queues.remove(0));
    queues[0].reset(Nanos(2));
    run(&mut drive, &mut queues, Nanos(2), true);
    assert_eq!(queues[0].state(), QueueState::Ready);
    assert_queue_works(&mut drive, &mut queues[0]);
}

#[test]
fn a_slow_drive_is_not_removed_while_it_answers() {
    let (mut drive, mut queues) = open(3);
    for queue in &mut queues {
        queue.reset(Nanos(1));
    }
    let mut now = Nanos(1);
    // One reply every 900 ms: twelve replies take eleven seconds.
    while queues.iter().any(|queue| queue.state() == QueueState::Resetting) {
        for queue in &mut queues {
            queue.poll(now);
        }
        now += Nanos::from_millis(900);
        drive.poll();
        assert!(now < Nanos::from_secs(60));
    }
    assert!(now > Nanos::from_secs(10), "{now}");
    assert!(queues.iter().all(|queue| queue.state() == QueueState::Ready));
}

#[test]
fn a_queue_without_controller_can_only_be_given_up() {
    let port = Port::new().unwrap();
    let mut drive = MockDrive::new(&port, 1000);
    let mut controller =
        ControllerHandle::connect(port.clone(), &mut || drive.progress(), POLLS).unwrap();
    let pair = controller.create_queue_pair(8, None, &mut || drive.progress()).unwrap();
    let mut queue = NvmeQueue::new(controller.info(), pair, port).unwrap();
    assert_queue_works(&mut drive, &mut queue);
    let tags = start(&mut queue, 2, Nanos(1));
    assert_eq!(queue.abort_tag(tags[0], Nanos(1)), Ok(()));
    let other = (0..7).map(Tag).find(|tag| !tags.contains(tag)).unwrap();
    let free = TagError::State {
        tag: other,
        found: sluice_driver::TagState::Free,
        wanted: sluice_driver::TagState::Bound,
    };
    assert_eq!(queue.abort_tag(other, Nanos(1)), Err(free));
    queue.reset(Nanos(1));
    assert_eq!(queue.state(), QueueState::Removed);
    assert_eq!(reclaim_tags(&mut queue), tags);
}
