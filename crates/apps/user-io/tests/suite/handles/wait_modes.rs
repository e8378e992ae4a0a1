//! Wait modes of a handle, and the state that dropped handles leave.

// guarantee: A-07

use std::time::Duration;

use block::BlockDevice as _;
use controller::{ControllerConfig, DriveConfig, PersonalityKind};
use driver::{BounceStats, ConnectOptions, DataPointers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use time::Nanos;
use user_io::{
    DirectError, Handle, HybridPolling, IoDevice, Payload, QueueConfig, QueueStats, Request,
    SharedQueue, WaitMode,
};

use super::harness::{config, drive, everywhere, file, null_limits, over_with};

/// Returns the CPU time of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn all_modes() -> [WaitMode; 3] {
    [WaitMode::Poll, WaitMode::Interrupt, WaitMode::Hybrid(HybridPolling::default())]
}

#[test]
fn every_wait_mode_completes() {
    everywhere(|device| {
        for wait in all_modes() {
            let queue = device.create_queue(QueueConfig::default()).unwrap();
            let mut handle = Handle::new(device, queue).unwrap();
            handle.set_wait(wait).unwrap();
            let buffer = device.buffer(4096).unwrap();
            for lba in 0..64 {
                handle.write(lba, &buffer, false).unwrap();
                handle.read(lba, &buffer).unwrap();
            }
            for tag in 0..32 {
                handle.submit(Request::read(tag, 1, buffer.payload(), tag)).unwrap();
            }
            handle.drain();
            let mut seen: Vec<u64> = std::iter::from_fn(|| handle.reap()).map(|c| c.tag).collect();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..32), "{wait:?}: {seen:?}");
            assert_eq!(handle.wait(), None, "nothing is outstanding");
        }
    });
}

#[test]
fn who_waits_for_a_file_sleeps_in_it_or_elsewhere() {
    let (device, _file) = file(1 << 20);
    let queue = device.create_queue(QueueConfig::default()).unwrap();
    assert!(queue.can_wait());
    let mut handle = Handle::new(&device, queue).unwrap();
    handle.set_wait(WaitMode::Interrupt).unwrap();
    let buffer = device.buffer(4096).unwrap();
    let read = |tag| Request::read(tag % 256, 1, buffer.payload(), tag);
    // In the kernel, together with the submissions.
    let (mut next, mut ended) = (0, 0);
    while ended < 1000 {
        while next < 1000 && handle.outstanding() < 8 {
            handle.submit(read(next)).unwrap();
            next += 1;
        }
        assert!(handle.wait().unwrap().status.is_success());
        ended += 1;
    }
    assert_eq!(handle.wait(), None);
    let (sleeps, _) = handle.sleep_stats();
    assert!((1..=1000).contains(&sleeps), "one sleep per batch of completions: {sleeps}");
    // With a limit in the past; the outstanding request completes later.
    handle.submit(read(1)).unwrap();
    let mut found = handle.wait_until(Nanos(1));
    while found.is_none() {
        found = handle.wait_until(device.clock().now() + Nanos::from_micros(50));
    }
    assert_eq!(found.map(|done| done.tag), Some(1));
    // Refused requests complete without the kernel.
    handle.submit(Request::read(u64::MAX, 1, buffer.payload(), 2)).unwrap();
    assert!(!handle.wait().unwrap().status.is_success());
    // On the handle's descriptor, and in the kernel again.
    for tag in 0..50 {
        handle.submit(read(tag)).unwrap();
        while handle.arm() {
            let mut fds = [PollFd::new(&handle, PollFlags::IN)];
            let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
            assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "poll(2) timed out");
            handle.disarm();
        }
        assert_eq!(handle.reap().map(|done| done.tag), Some(tag));
        handle.run(read(0)).unwrap();
    }
    // A busy-polling handle does not sleep.
    handle.set_wait(WaitMode::Poll).unwrap();
    let before = handle.sleep_stats().0;
    handle.run(read(0)).unwrap();
    assert_eq!(handle.sleep_stats().0, before);
}

#[test]
fn a_wait_with_a_limit_ends_by_then_and_not_before() {
    let mut config = super::harness::config(PersonalityKind::Null);
    config.null.latency = Nanos::from_millis(300);
    let device = super::harness::over(config);
    for wait in all_modes() {
        let queue = device.create_queue(QueueConfig::default()).unwrap();
        let mut handle = Handle::new(&device, queue).unwrap();
        handle.set_wait(wait).unwrap();
        assert_eq!(handle.wait_until(Nanos::MAX), None, "nothing is outstanding");
        handle.submit(Request::read(0, 1, Payload::BitBucket, 7)).unwrap();
        let limit = device.clock().now() + Nanos::from_millis(5);
        assert_eq!(
            handle.wait_until(limit),
            None,
            "{wait:?}: the request completes after the limit"
        );
        assert!(device.clock().now() >= limit, "{wait:?}");
        let limit = device.clock().now() + Nanos::from_millis(60_000);
        let ended = handle.wait_until(limit).map(|completion| completion.tag);
        assert_eq!(ended, Some(7), "{wait:?}");
        assert!(device.clock().now() < limit, "{wait:?}");
    }
}

#[test]
fn who_waits_for_an_event_takes_no_core() {
    // Every command takes 4 ms.
    let mut config = super::harness::config(PersonalityKind::Null);
    config.null.latency = Nanos::from_millis(4);
    let device = super::harness::over(config);
    let busy = |wait| {
        let queue = device.create_queue(QueueConfig::default()).unwrap();
        let mut handle = Handle::new(&device, queue).unwrap();
        handle.set_wait(wait).unwrap();
        let before = cpu();
        for _ in 0..20 {
            handle.run(Request::read(0, 1, Payload::BitBucket, 0)).unwrap();
        }
        (cpu() - before, handle.sleep_stats())
    };
    let (polled, slept) = busy(WaitMode::Poll);
    assert_eq!(slept.0, 0, "polling does not sleep");
    let (waited, slept) = busy(WaitMode::Interrupt);
    assert!(slept.0 >= 20, "one sleep per command: {slept:?}");
    let (hybrid, half) =
        busy(WaitMode::Hybrid(HybridPolling { sleep_percent: 80, ..HybridPolling::default() }));
    assert!(half.0 >= 15, "hybrid polling sleeps once it has measured latencies: {half:?}");
    // 80 ms in total: polling occupies the core as far as the machine allows.
    assert!(waited < polled / 4 && hybrid < polled * 3 / 4, "{polled:?} {hybrid:?} {waited:?}");
}

#[test]
fn a_descriptor_wakes_who_sleeps_elsewhere() {
    let device = drive(PersonalityKind::Block);
    let mut handle =
        Handle::new(&device, device.create_queue(QueueConfig::default()).unwrap()).unwrap();
    handle.set_wait(WaitMode::Interrupt).unwrap();
    for tag in 0..50 {
        handle.submit(Request::read(tag, 1, Payload::BitBucket, tag)).unwrap();
        handle.poll();
        let mut sleeps = 0;
        let done = loop {
            if let Some(done) = handle.reap() {
                break done;
            }
            if handle.arm() {
                let fd = rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN);
                rustix::event::poll(&mut [fd], None).unwrap();
                handle.disarm();
                sleeps += 1;
            }
            handle.poll();
            assert!(sleeps < 10, "spurious wake-ups");
        };
        assert_eq!(done.tag, tag);
    }
}

#[test]
fn a_completion_that_a_poll_has_found_keeps_a_handle_awake() {
    let device = drive(PersonalityKind::Block);
    let mut handle =
        Handle::new(&device, device.create_queue(QueueConfig::default()).unwrap()).unwrap();
    handle.set_wait(WaitMode::Interrupt).unwrap();
    for tag in 0..20 {
        handle.submit(Request::read(tag, 1, Payload::BitBucket, tag)).unwrap();
        handle.poll();
        // The first poll issues the command, a later one finds the completion; the first may do both.
        let limit = device.clock().now() + Nanos::from_secs(1);
        while !handle.poll() && device.clock().now() < limit {}
        assert!(!handle.arm(), "a completion is pending, so arm() must fail");
        assert_eq!(handle.reap().map(|done| done.tag), Some(tag));
    }
}

#[test]
fn a_thread_may_look_for_everybody() {
    let device = drive(PersonalityKind::Block);
    let shared = SharedQueue::new(device.create_queue(QueueConfig::default()).unwrap());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let looker = shared.clone();
        let (stop, clock) = (&stop, device.clock());
        s.spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                looker.poll_all(clock.now());
                std::thread::yield_now();
            }
        });
        let mut handle = Handle::new(&device, shared.attach()).unwrap();
        handle.set_wait(WaitMode::Interrupt).unwrap();
        for lba in 0..200 {
            handle.run(Request::read(lba, 1, Payload::BitBucket, 0)).unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_wait_mode_is_chosen_with_nothing_outstanding() {
    let device = IoDevice::null(null_limits(32));
    let queue = device.create_queue(QueueConfig::default()).unwrap();
    let mut handle = Handle::new(&device, queue).unwrap();
    handle.submit(Request::flush(1)).unwrap();
    let error = handle.set_wait(WaitMode::Interrupt).unwrap_err();
    assert!(error.to_string().contains("nothing outstanding"), "{error}");
    handle.wait().unwrap();
    for percent in [0, 100] {
        let hybrid = HybridPolling { sleep_percent: percent, ..HybridPolling::default() };
        assert!(handle.set_wait(WaitMode::Hybrid(hybrid)).is_err());
    }
    handle.set_wait(WaitMode::Interrupt).unwrap();
}

#[test]
fn threads_sleep_only_if_the_device_wakes_them() {
    let device = drive(PersonalityKind::Null);
    assert!(device.has_interrupts() && device.bound_driver().is_none());
    let config = QueueConfig { interrupts: false, ..QueueConfig::default() };
    let queue = device.create_queue(config).unwrap();
    assert!(!queue.has_interrupts() && !queue.can_wake());
    let mut handle = Handle::new(&device, queue).unwrap();
    let refused = handle.set_wait(WaitMode::Interrupt).unwrap_err();
    assert!(matches!(refused, DirectError::NoInterrupts { .. }), "{refused}");
    let said = refused.to_string();
    assert!(said.contains("WaitMode::Interrupt") && said.contains("uio_pci_generic"), "{said}");
    // The previous mode still works, and so do all modes that poll.
    for wait in [WaitMode::Poll, WaitMode::Hybrid(HybridPolling::default())] {
        handle.set_wait(wait).unwrap();
        handle.run(Request::read(0, 1, Payload::BitBucket, 0)).unwrap();
    }
    // The drive supports all SGLs, so nothing is copied, and its doorbells are registers.
    assert_eq!(handle.device().stats(), QueueStats::default());
    let null = IoDevice::null(null_limits(8));
    assert_eq!(null.create_queue(config).unwrap().stats(), QueueStats::default());
}

#[test]
fn a_queue_counts_what_it_copies_and_rings() {
    let config = config(PersonalityKind::Null);
    let doorbell_buffer = true;
    let device = over_with(
        DriveConfig {
            controller: ControllerConfig { doorbell_buffer, ..config.controller },
            ..config
        },
        ConnectOptions { data: Some(DataPointers::Prp), ..ConnectOptions::default() },
    );
    let queue = device.create_queue(QueueConfig::default()).unwrap();
    let mut handle = Handle::new(&device, queue).unwrap();
    let sector = device.limits().sector_bytes;
    let buffer = device.buffer(2 * sector as usize).unwrap();
    for _ in 0..10 {
        handle.run(Request::read(0, 1, buffer.payload(), 0)).unwrap();
    }
    let stats = handle.device().stats();
    assert_eq!(stats.bounced, BounceStats::default(), "bounce buffers are allocated on first use");
    let rung = stats.doorbells.expect("doorbells are in host memory");
    assert!(rung.register_writes + rung.register_writes_saved >= 10, "{rung:?}");
    let odd = Payload::Contiguous(buffer.iova().offset(1));
    for _ in 0..3 {
        handle.run(Request::read(0, 1, odd, 0)).unwrap();
    }
    let BounceStats { commands, bytes, busy, refused, memory } = handle.device().stats().bounced;
    assert_eq!((commands, bytes, busy, refused), (3, 3 * u64::from(sector), 0, 0));
    assert!((64 << 10..=4 << 20).contains(&memory), "{memory}");
    assert_eq!(handle.device().stats().bounce_refused, None);
    // Sum over several queues.
    let two = handle.device().stats().and(QueueStats::default()).and(stats);
    assert_eq!(two.bounced.commands, 3);
    assert!(two.doorbells.unwrap().register_writes >= rung.register_writes);
}
