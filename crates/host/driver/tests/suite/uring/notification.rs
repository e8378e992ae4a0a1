//! Notification of a queue's owner, by polling, by its waker, or by the ring's descriptor; and the
//! number of system calls.

// guarantee: A-07

use std::time::{Duration, Instant};

use event::Parker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sluice_driver::{
    HardwareQueue, Payload, Polling, Request, SubmissionThread, Tag, TaskWork, UringConfig,
    WaitResult,
};
use time::Nanos;

use super::fixture::{Disk, Fixture, release_bound_tags, wait};

fn configurations() -> [UringConfig; 4] {
    let default = UringConfig::default();
    [
        default,
        UringConfig { task_work: TaskWork::Cooperative, ..default },
        UringConfig { task_work: TaskWork::Deferred, ..default },
        UringConfig { submission_thread: Some(SubmissionThread::default()), ..default },
    ]
}

fn issue(harness: &mut Fixture, count: usize) {
    bind(harness, count);
    assert!(harness.queue.issue_tags());
}

fn bind(harness: &mut Fixture, count: usize) {
    let mut tags = [Tag(0); 32];
    assert_eq!(harness.queue.get_free_tags(&mut tags[..count]), count);
    for (i, tag) in tags[..count].iter().enumerate() {
        let data = Payload::Contiguous(harness.memory.at(i * 4096));
        harness.queue.bind_tag_cmd(*tag, &Request::read(0, 8, data, 0), Nanos::ZERO).unwrap();
    }
}

fn drain_completions(harness: &mut Fixture, count: usize) {
    for _ in 0..count {
        let event = wait(&mut harness.queue);
        harness.queue.detach_tag_cmd(event.tag).unwrap();
        harness.queue.release_tags(&[event.tag]).unwrap();
    }
    assert!(!harness.queue.check_event());
}

#[test]
fn a_sleeping_owner_is_woken() {
    let disk = Disk::new(1 << 20);
    for config in configurations() {
        let mut harness = Fixture::open(&disk.path, config);
        let parker = Parker::new().unwrap();
        // The first waker is replaced.
        harness.queue.set_waker(Parker::new().unwrap().waker());
        harness.queue.set_waker(parker.waker());
        assert_eq!(
            harness.queue.deadline(),
            Nanos::MAX,
            "the owner may sleep, because the waker will wake it"
        );
        for _ in 0..100 {
            issue(&mut harness, 4);
            let begin = Instant::now();
            let mut ended = 0;
            while ended < 4 {
                parker.prepare();
                match harness.queue.fetch_event() {
                    Some(event) => {
                        parker.unpark();
                        harness.queue.detach_tag_cmd(event.tag).unwrap();
                        harness.queue.release_tags(&[event.tag]).unwrap();
                        ended += 1;
                    }
                    None => parker.park(&[], Nanos::from_millis(5000)).unwrap(),
                }
            }
            assert!(
                begin.elapsed() < Duration::from_secs(4),
                "the owner was not woken by the event"
            );
        }
    }
}

#[test]
fn an_owner_waits_in_the_kernel_with_one_system_call_for_all_it_has_bound() {
    let disk = Disk::new(1 << 20);
    for config in configurations() {
        let mut harness = Fixture::open(&disk.path, config);
        assert!(harness.queue.can_wait());
        assert_eq!(
            harness.queue.wait_for_event(Nanos::MAX),
            WaitResult::Ready,
            "no command is in flight, so the owner must not sleep"
        );
        assert_eq!(harness.queue.stats().system_calls, 0);
        for round in 0..200 {
            let count = 1 + round % 8;
            bind(&mut harness, count);
            let timeout = if round % 2 == 0 { Nanos::MAX } else { Nanos::from_millis(5000) };
            let mut ended = 0;
            while ended < count {
                let before = harness.queue.stats().system_calls;
                assert_ne!(harness.queue.wait_for_event(timeout), WaitResult::Unsupported);
                // The first call issues all commands.
                let rested = harness.queue.stats().system_calls;
                assert!(
                    rested - before <= 1,
                    "{} system calls in one wait, {config:?}",
                    rested - before
                );
                let mut looks = 0;
                loop {
                    looks += 1;
                    let Some(event) = harness.queue.fetch_event() else { break };
                    harness.queue.detach_tag_cmd(event.tag).unwrap();
                    harness.queue.release_tags(&[event.tag]).unwrap();
                    ended += 1;
                }
                // Completions without an interrupt stay in the kernel until the owner polls. A poll
                // that finds none makes one system call.
                let asked = harness.queue.stats().system_calls - rested;
                let most = if config.task_work == TaskWork::Interrupt { 0 } else { looks };
                assert!(asked <= most, "{asked} system calls in {looks} polls, {config:?}");
            }
        }
        // An available completion is found without a system call.
        issue(&mut harness, 1);
        while !harness.queue.check_event() {
            std::thread::yield_now();
        }
        let before = harness.queue.stats().system_calls;
        assert_eq!(harness.queue.wait_for_event(Nanos::MAX), WaitResult::Ready);
        assert_eq!(harness.queue.stats().system_calls, before);
        drain_completions(&mut harness, 1);
    }
}

#[test]
fn a_system_call_takes_no_more_commands_along_than_a_batch() {
    let disk = Disk::new(1 << 20);
    for batch in [1, 2, 3, u16::MAX] {
        let config = UringConfig { submit_batch: batch, ..UringConfig::default() };
        let mut harness = Fixture::open(&disk.path, config);
        for count in 1..=16 {
            let calls = (count as u64).div_ceil(u64::from(batch));
            let before = harness.queue.stats().system_calls;
            issue(&mut harness, count);
            assert_eq!(harness.queue.stats().system_calls - before, calls, "{count} by {batch}");
            drain_completions(&mut harness, count);
            // A wait includes the last issue.
            let before = harness.queue.stats().system_calls;
            bind(&mut harness, count);
            assert_ne!(harness.queue.wait_for_event(Nanos::MAX), WaitResult::Unsupported);
            assert_eq!(harness.queue.stats().system_calls - before, calls, "{count} by {batch}");
            drain_completions(&mut harness, count);
        }
    }
}

#[test]
fn a_wait_ends_at_its_timeout_and_finds_aborted_commands() {
    let disk = Disk::new(1 << 20);
    let mut harness = Fixture::open(&disk.path, UringConfig::default());
    // The timeout is too short for most commands; commands without a completion stay in flight.
    for _ in 0..100 {
        bind(&mut harness, 1);
        let mut rested = 0;
        while !harness.queue.check_event() {
            assert_ne!(harness.queue.wait_for_event(Nanos(1)), WaitResult::Unsupported);
            rested += 1;
        }
        assert!(rested > 0);
        drain_completions(&mut harness, 1);
    }
    bind(&mut harness, 1);
    let (tag, _) = harness.queue.tags().bound_tags().next().unwrap();
    harness.queue.abort_tag(tag, Nanos::ZERO).unwrap();
    assert_eq!(
        harness.queue.wait_for_event(Nanos::MAX),
        WaitResult::Ready,
        "the abort completes the command before it reaches the kernel"
    );
    drain_completions(&mut harness, 1);
    // During a reset the queue must be polled.
    issue(&mut harness, 4);
    harness.queue.reset(Nanos::ZERO);
    assert_eq!(harness.queue.wait_for_event(Nanos::MAX), WaitResult::Unsupported);
    // A polled ring wakes no waiter.
    let polled = UringConfig { polling: Polling::WhereSupported, ..UringConfig::default() };
    let harness = Fixture::open(&disk.path, polled);
    assert_eq!(harness.queue.can_wait(), !harness.queue.is_polled());
}

#[test]
fn the_ring_is_a_descriptor_that_is_readable_while_there_are_events() {
    let disk = Disk::new(1 << 20);
    for config in configurations() {
        let mut harness = Fixture::open(&disk.path, config);
        if config.task_work == TaskWork::Deferred {
            assert!(
                harness.queue.event_fd().is_none(),
                "in this mode, the descriptor would wake no waiter"
            );
            continue;
        }
        let readable = |harness: &Fixture, ms: i64| {
            let fd = harness.queue.event_fd().expect("the ring has a descriptor in this mode");
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            let limit = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
            loop {
                match poll(&mut fds, Some(&limit)) {
                    Ok(count) => return count == 1,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        assert!(!readable(&harness, 0));
        for _ in 0..50 {
            issue(&mut harness, 1);
            let begin = Instant::now();
            assert!(readable(&harness, 5000), "{config:?}");
            assert!(begin.elapsed() < Duration::from_secs(4), "only the timeout ended the wait");
            drain_completions(&mut harness, 1);
            assert!(!readable(&harness, 0), "the descriptor must become unreadable without a read");
        }
    }
}

#[test]
fn many_commands_are_one_system_call() {
    let disk = Disk::new(1 << 20);
    let mut harness = Fixture::open(&disk.path, UringConfig::default());
    for round in 1..=10 {
        issue(&mut harness, 32);
        drain_completions(&mut harness, 32);
        let stats = harness.queue.stats();
        assert_eq!((stats.entries, stats.system_calls), (32 * round, round));
    }
    // A submission thread that is awake needs no system call. On a busy machine it may fall asleep.
    let config =
        UringConfig { submission_thread: Some(SubmissionThread::default()), ..Default::default() };
    let mut harness = Fixture::open(&disk.path, config);
    for _ in 0..10 {
        issue(&mut harness, 32);
        drain_completions(&mut harness, 32);
    }
    let stats = harness.queue.stats();
    assert_eq!(stats.entries, 320);
    assert!(stats.system_calls <= 3, "{stats:?}");
    assert!(release_bound_tags(&mut harness.queue).is_empty());
}
