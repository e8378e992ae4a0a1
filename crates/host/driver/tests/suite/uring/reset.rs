//! Aborts, resets, and queues that are dropped with commands in flight.

use std::collections::BTreeSet;

use nvme::Status;
use rng::Rng;
use sluice_driver::{
    BindError, HardwareQueue, Payload, QueueState, Request, Tag, TaskWork, UringConfig,
};
use time::Nanos;

use super::fixture::{Disk, Fixture, poll_until_ready, release_bound_tags, run, wait};

const BYTES: u64 = 16 << 20;

/// Returns configurations for every path of commands to the kernel. Through the page cache, some
/// commands wait for kernel workers and can be cancelled.
fn configurations() -> [UringConfig; 6] {
    let default = UringConfig { depth: 64, ..UringConfig::default() };
    [
        default,
        UringConfig { direct: false, ..default },
        UringConfig { submission_thread: Some(Default::default()), ..default },
        UringConfig { task_work: TaskWork::Cooperative, ..default },
        UringConfig { task_work: TaskWork::Deferred, ..default },
        UringConfig { submit_batch: 1, ..default },
    ]
}

/// Binds a command to every tag; returns their number.
fn fill(harness: &mut Fixture, rng: &mut Rng, user: u64) -> u64 {
    let limits = harness.queue.limits();
    let mut bound = 0;
    while let Some(tag) = harness.queue.tags_mut().take() {
        let sectors = limits.max_sectors.min(256);
        let lba = rng.below(limits.sectors - u64::from(sectors));
        let data = Payload::Contiguous(harness.memory.at(0));
        let request = match rng.below(8) {
            0 => Request::flush(user + bound),
            1 => Request::write_zeroes(lba, sectors, false, user + bound),
            2 | 3 => Request::write(lba, sectors, data, user + bound),
            _ => Request::read(lba, sectors, data, user + bound),
        };
        harness.queue.bind_tag_cmd(tag, &request, Nanos(user)).unwrap();
        bound += 1;
    }
    bound
}

#[test]
fn every_tag_comes_back_once_from_a_reset() {
    let disk = Disk::new(BYTES);
    for config in configurations() {
        let mut harness = Fixture::open(&disk.path, config);
        let mut rng = Rng::new(3);
        for round in 0..20 {
            let user = round * 1000;
            let bound = fill(&mut harness, &mut rng, user);
            assert_eq!(bound, 64);
            let mut seen = BTreeSet::new();
            // In some rounds all commands are in the kernel, in some none. In some rounds, events
            // have been fetched.
            if round % 4 != 0 {
                harness.queue.issue_tags();
            }
            for _ in 0..round % 3 * 8 {
                let Some(event) = harness.queue.fetch_event() else { break };
                let command = harness.queue.detach_tag_cmd(event.tag).expect("the tag is bound");
                assert!(seen.insert(command.user));
                harness.queue.release_tags(&[event.tag]).unwrap();
            }
            harness.queue.reset(Nanos::ZERO);
            let refused = harness.queue.tags_mut().take().map(|tag| {
                let refused = harness.queue.bind_tag_cmd(tag, &Request::flush(0), Nanos::ZERO);
                harness.queue.release_tags(&[tag]).unwrap();
                refused
            });
            assert!(refused.is_none_or(|r| r == Err(BindError::Busy)), "{refused:?}");
            harness.queue.reset(Nanos::ZERO);
            poll_until_ready(&mut harness.queue);
            assert_eq!(harness.queue.fetch_event(), None, "the reset must drop the commands");
            for (_, user) in release_bound_tags(&mut harness.queue) {
                assert!(seen.insert(user), "{user} completed twice");
            }
            assert_eq!(seen, (user..user + bound).collect());
            assert_eq!(harness.queue.tags().free(), 64);
        }
        assert_eq!(harness.queue.stats().spurious_completions, 0);
        harness.ok(Request::read(0, 8, Payload::Contiguous(harness.memory.at(0)), 1));
    }
}

#[test]
fn a_reset_that_takes_too_long_removes_the_queue() {
    let disk = Disk::new(BYTES);
    let config = UringConfig { reset_timeout: Nanos(5), ..UringConfig::default() };
    let mut harness = Fixture::open(&disk.path, config);
    fill(&mut harness, &mut Rng::new(5), 0);
    harness.queue.issue_tags();
    harness.queue.reset(Nanos(100));
    assert_eq!(harness.queue.state(), QueueState::Resetting);
    assert!(harness.queue.deadline() <= Nanos(100));
    harness.queue.poll(Nanos(104));
    let early = harness.queue.state();
    harness.queue.poll(Nanos(105));
    match harness.queue.state() {
        QueueState::Removed => {
            assert_eq!(early, QueueState::Resetting, "the reset must not time out early");
            assert_eq!(harness.queue.fault().unwrap().kind(), std::io::ErrorKind::TimedOut);
            assert_eq!(harness.queue.deadline(), Nanos::MAX);
            assert!(!harness.queue.issue_tags() && harness.queue.fetch_event().is_none());
        }
        // 128 transfers of 128 KiB were already complete.
        state => assert_eq!(state, QueueState::Ready),
    }
    release_bound_tags(&mut harness.queue);
    assert_eq!(harness.queue.tags().bound(), 0);
}

#[test]
fn an_abort_ends_a_command_that_the_device_has_not_begun() {
    let disk = Disk::new(BYTES);
    for config in configurations() {
        let mut harness = Fixture::open(&disk.path, config);
        let mut tags = [Tag(0); 2];
        assert_eq!(harness.queue.get_free_tags(&mut tags), 2);
        for tag in tags {
            let write = Request::write(0, 8, Payload::BitBucket, u64::from(tag.0));
            harness.queue.bind_tag_cmd(tag, &write, Nanos::ZERO).unwrap();
        }
        harness.queue.abort_tag(tags[0], Nanos::ZERO).unwrap();
        assert_eq!(harness.queue.fetch_event(), None, "not issued");
        harness.queue.issue_tags();
        let mut ends = [wait(&mut harness.queue), wait(&mut harness.queue)];
        ends.sort_by_key(|event| event.tag != tags[0]);
        assert_eq!(ends.map(|e| e.status), [Status::ABORTED, Status::SUCCESS]);
        release_bound_tags(&mut harness.queue);
        // Commands in the kernel complete once each, with success or aborted.
        let mut rng = Rng::new(11);
        let bound = fill(&mut harness, &mut rng, 0);
        harness.queue.issue_tags();
        for tag in 0..64 {
            let _ = harness.queue.abort_tag(Tag(tag), Nanos::ZERO);
        }
        let mut seen = BTreeSet::new();
        for _ in 0..bound {
            let event = wait(&mut harness.queue);
            assert!(seen.insert(event.tag));
            let fine = event.status.is_success() || event.status == Status::ABORTED;
            assert!(fine, "{}", event.status);
            harness.queue.detach_tag_cmd(event.tag).unwrap();
            harness.queue.release_tags(&[event.tag]).unwrap();
        }
        assert!(harness.queue.stats().cancellations > 0);
        assert_eq!(harness.queue.fetch_event(), None);
        harness.ok(Request::flush(0));
    }
}

#[test]
fn a_tag_that_was_given_back_is_busy_until_the_kernel_has_answered() {
    let disk = Disk::new(BYTES);
    let mut harness = Fixture::open(&disk.path, UringConfig { depth: 1, ..UringConfig::default() });
    let tag = harness.queue.tags_mut().take().unwrap();
    let read = Request::read(0, 256, Payload::Contiguous(harness.memory.at(0)), 1);
    harness.queue.bind_tag_cmd(tag, &read, Nanos::ZERO).unwrap();
    harness.queue.issue_tags();
    harness.queue.detach_tag_cmd(tag).unwrap();
    for request in [read, Request::flush(2), Request::discard(0, 1, 3)] {
        assert_eq!(harness.queue.bind_tag_cmd(tag, &request, Nanos::ZERO), Err(BindError::Busy));
    }
    // The event names a tag without a command; the owner counts and ignores it.
    assert_eq!(wait(&mut harness.queue).tag, tag);
    assert!(harness.queue.detach_tag_cmd(tag).is_err());
    harness.queue.release_tags(&[tag]).unwrap();
    harness.ok(read);
}

#[test]
fn a_queue_is_closed_with_commands_in_flight() {
    let disk = Disk::new(BYTES);
    for (round, config) in (0..).zip(configurations().into_iter().cycle().take(24)) {
        let mut harness = Fixture::open(&disk.path, config);
        fill(&mut harness, &mut Rng::new(round), 0);
        harness.queue.issue_tags();
        let Fixture { device, queue, memory } = harness;
        // Whatever the order of drops, the memory lives as long as the kernel may write to it.
        match round % 3 {
            0 => drop((queue, device, memory)),
            1 => drop((memory, device, queue)),
            _ => std::thread::spawn(move || drop((queue, memory))).join().unwrap(),
        }
    }
}

#[test]
fn a_deferred_queue_belongs_to_the_thread_that_issues_first() {
    let disk = Disk::new(BYTES);
    let config = UringConfig { task_work: TaskWork::Deferred, ..UringConfig::default() };
    // The ring is created in this thread and used in another one.
    let Fixture { mut queue, .. } = Fixture::open(&disk.path, config);
    let mut queue = std::thread::spawn(move || {
        assert!(run(&mut queue, Request::read(0, 8, Payload::BitBucket, 1)).is_success());
        queue
    })
    .join()
    .unwrap();
    let tag = queue.tags_mut().take().unwrap();
    queue.bind_tag_cmd(tag, &Request::flush(1), Nanos::ZERO).unwrap();
    queue.issue_tags();
    assert_eq!(queue.state(), QueueState::Removed);
    assert_eq!(queue.fault().unwrap().kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(queue.fetch_event(), None);
    assert_eq!(release_bound_tags(&mut queue), [(tag, 1)]);
}
