//! Schedulers in front of queues, and the completion poller.

// guarantee: A-11

use block::sched::{
    DirectionThrottle, GroupThrottle, PriorityConfig, RateLimit, SchedulerConfig, Scheduling,
    ThrottleConfig,
};
use controller::PersonalityKind;
use time::{Component, Nanos};
use user_io::{
    CompletionPoller, Group, Handle, IoDevice, Payload, PollPeriod, PollerConfig, QueueConfig,
    Request, Scheduled, ScheduledConfig, SharedQueue, WaitMode,
};

use super::harness::{config, drive, everywhere, null_limits, over};

fn queue(device: &IoDevice) -> user_io::Queue {
    device.create_queue(QueueConfig::default()).unwrap()
}

#[test]
fn a_scheduler_loses_nothing_whatever_it_is() {
    everywhere(|device| {
        for name in ["none", "deadline", "kyber", "fair", "priority"] {
            let scheduler: SchedulerConfig = name.parse().unwrap();
            let scheduling = Scheduling::from(scheduler);
            let config = ScheduledConfig { scheduling, device_depth: 4, depth: 64 };
            let scheduled = Scheduled::new(queue(device), &config).unwrap();
            let mut handle = Handle::new(device, scheduled).unwrap();
            let data = device.buffer(4096).unwrap();
            let mut seen = [0u8; 200];
            let mut next = 0u64;
            let mut most = 0;
            while seen.contains(&0) {
                while next < 200 {
                    let read = Request::read(next * 7 % 100, 1, data.payload(), next);
                    if handle.submit(read).is_err() {
                        break;
                    }
                    next += 1;
                }
                assert!(handle.outstanding() <= 64);
                let done = handle.wait().unwrap();
                most = most.max(handle.device().in_device());
                assert!(done.status.is_success());
                seen[done.tag as usize] += 1;
            }
            assert!(seen.iter().all(|n| *n == 1), "{name}: each request completes exactly once");
            assert!(most <= 4 && handle.device().queued() == 0, "{name}: {most}");
        }
    });
}

#[test]
fn the_better_class_goes_first() {
    let device = IoDevice::null(null_limits(64));
    let classes = vec![(Group(1), 0), (Group(2), 7)];
    let scheduler = SchedulerConfig::Priority(PriorityConfig { classes, ..Default::default() });
    let config =
        ScheduledConfig { scheduling: scheduler.into(), device_depth: 1, ..Default::default() };
    let shared = SharedQueue::new(Scheduled::new(queue(&device), &config).unwrap());
    let (mut bulk, mut log) = (shared.attach_group(Group(2)), shared.attach_group(Group(1)));
    use block::BlockDevice as _;
    for tag in 0..20 {
        bulk.submit(Nanos(tag), Request::read(0, 1, Payload::BitBucket, tag)).unwrap();
    }
    log.submit(Nanos(30), Request::read(0, 1, Payload::BitBucket, 99)).unwrap();
    // The device executes one request at a time: of the waiting requests, the last submitted goes
    // first.
    let mut turns = 0;
    while log.reap().is_none() {
        log.poll(Nanos(40 + turns));
        turns += 1;
    }
    assert!(turns <= 3, "{turns}");
    assert!(shared.outstanding() >= 17, "the other requests still wait");
}

#[test]
fn a_group_gets_its_rate_and_no_more() {
    let device = IoDevice::null(null_limits(64));
    let read =
        DirectionThrottle { operations: Some(RateLimit { per_sec: 1000, burst: 10 }), bytes: None };
    let groups = vec![(Group(3), GroupThrottle { read, ..Default::default() })];
    let limits = Some(ThrottleConfig { sector_bytes: 4096, groups });
    let scheduling = Scheduling { scheduler: SchedulerConfig::None, limits };
    let config = ScheduledConfig { scheduling, ..Default::default() };
    let mut scheduled = Scheduled::new(queue(&device), &config).unwrap();
    use block::BlockDevice as _;
    use user_io::GroupedSubmit as _;
    for tag in 0..2000 {
        let read = Request::read(0, 1, Payload::BitBucket, tag);
        scheduled.submit_for(Nanos::ZERO, Group(3), read).unwrap();
    }
    let (mut done, mut now) = (0u64, Nanos::ZERO);
    while now < Nanos::from_millis(1000) {
        while scheduled.poll(now) {}
        while scheduled.reap().is_some() {
            done += 1;
        }
        now = scheduled.deadline().max(now + Nanos(1));
    }
    assert!((1005..=1011).contains(&done), "a burst of 10, then 1000 per second: {done}");
}

#[test]
fn a_poller_wakes_who_waits_on_any_of_its_queues() {
    let device = drive(PersonalityKind::Block);
    for period in [
        PollPeriod::Busy,
        PollPeriod::Fixed(Nanos::from_micros(50)),
        PollerConfig::default().period,
    ] {
        let poller = CompletionPoller::start(device.clock(), PollerConfig { period }).unwrap();
        let queues: Vec<_> = (0..2).map(|_| SharedQueue::new(queue(&device))).collect();
        for queue in &queues {
            poller.watch(queue);
            poller.watch(queue);
        }
        std::thread::scope(|s| {
            for thread in 0..4 {
                let (device, seat) = (&device, queues[thread % 2].attach());
                s.spawn(move || {
                    let mut handle = Handle::new(device, seat).unwrap();
                    handle.set_wait(WaitMode::Interrupt).unwrap();
                    let data = device.buffer(4096).unwrap();
                    for round in 0..200 {
                        let lba = 200 * thread as u64 + round;
                        data.fill(0, 4096, round as u8);
                        handle.write(lba, &data, false).unwrap();
                        handle.read(lba, &data).unwrap();
                        let mut byte = [0];
                        data.read(4095, &mut byte);
                        assert_eq!(byte[0], round as u8);
                    }
                });
            }
        });
        let stats = poller.stats();
        assert!(stats.completions > 0 && stats.polls > 0, "{period:?}: {stats:?}");
        poller.unwatch(&queues[0]);
        drop(poller);
    }
}

#[test]
fn a_poller_with_nothing_to_do_takes_no_core_and_one_that_knows_sleeps() {
    let mut slow = config(PersonalityKind::Null);
    slow.null.latency = Nanos::from_millis(3);
    let device = over(slow);
    let poller = CompletionPoller::start(device.clock(), PollerConfig::default()).unwrap();
    let shared = SharedQueue::new(queue(&device));
    poller.watch(&shared);
    let mut handle = Handle::new(&device, shared.attach()).unwrap();
    handle.set_wait(WaitMode::Interrupt).unwrap();
    for _ in 0..40 {
        handle.run(Request::read(0, 1, Payload::BitBucket, 0)).unwrap();
    }
    let busy = poller.stats();
    assert!(busy.sleeps >= 60, "sleeps of at most 1 ms, during 40 reads of 3 ms each: {busy:?}");
    std::thread::sleep(std::time::Duration::from_millis(100));
    let idle = poller.stats();
    assert!(idle.polls - busy.polls < 20, "{busy:?} {idle:?}");
    for (period, value) in [(Nanos::ZERO, 0), (Nanos::from_millis(2000), 2_000_000_000)] {
        let config = PollerConfig { period: PollPeriod::Fixed(period) };
        let error = CompletionPoller::start(device.clock(), config).unwrap_err();
        assert!(error.to_string().contains(&value.to_string()), "{error}");
    }
}

/// Several threads use one queue of a file, whatever the mode of the file's other queues.
#[test]
fn a_shared_queue_of_a_file_is_any_threads() {
    use driver::{TaskWork, UringConfig};
    for task_work in [TaskWork::Interrupt, TaskWork::Cooperative, TaskWork::Deferred] {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let plain = UringConfig { direct: false, ..UringConfig::default() };
        let config = UringConfig { sector_bytes: Some(4096), task_work, ..plain };
        let device = IoDevice::file(file.path(), config).unwrap();
        let shared = SharedQueue::new(queue(&device));
        std::thread::scope(|scope| {
            for first in 0..4 {
                let (device, seat) = (&device, shared.attach());
                scope.spawn(move || {
                    let mut handle = Handle::new(device, seat).unwrap();
                    let buffer = device.buffer(4096).unwrap();
                    for n in 0..200 {
                        let lba = first + n % 64 * 4;
                        buffer.fill(0, 4096, n as u8);
                        handle.write(lba, &buffer, false).unwrap();
                        handle.read(lba, &buffer).unwrap();
                        let mut byte = [0];
                        buffer.read(77, &mut byte);
                        assert_eq!(byte, [n as u8], "{task_work:?}");
                    }
                });
            }
        });
        // The file's own queue is used by a handle on another thread.
        let own = std::thread::spawn({
            let handle = Handle::new(&device, queue(&device)).unwrap();
            let buffer = device.buffer(4096).unwrap();
            move || {
                let mut handle = handle;
                (0..100).for_each(|lba| handle.read(lba, &buffer).unwrap());
            }
        });
        own.join().unwrap();
    }
}
