//! Failures of sectors, drives and controllers.

use controller::{InjectedSectorError, SataData};
use driver::{
    AhciError, AhciHost, BindError, HardwareQueue, LowLevelDriver, Payload, QueueState, Request,
};
use nvme::Status;
use time::Nanos;

use super::harness::{Harness, config, stamp};

const SECTORS: u64 = 1 << 14;

fn harness(drives: usize) -> Harness {
    Harness::new(&config(drives, SECTORS, SataData::Memory))
}

fn fault(harness: &mut Harness, reads: bool, writes: bool) {
    let fault = InjectedSectorError { sectors: 1000..1002, reads, writes };
    assert!(harness.controller.inject_sector_error(0, fault));
}

#[test]
fn a_bad_sector_fails_its_command_and_no_other() {
    let mut harness = harness(2);
    for i in 0..32u64 {
        harness.region.write(0, &stamp(0, i * 100, 1));
        let payload = harness.payload(0);
        assert!(harness.run(0, &Request::write(i * 100, 1, payload, 0)).status.is_success());
    }
    fault(&mut harness, true, false);
    for i in 0..32u64 {
        // The tenth request reads sectors 1000 to 1003.
        let sectors = if i == 10 { 4 } else { 1 };
        let payload = harness.payload(i as usize * 4096);
        harness.submit(0, &Request::read(i * 100, sectors, payload, i)).unwrap();
        harness.submit(1, &Request::read(i * 100, 1, Payload::BitBucket, i)).unwrap();
    }
    let ended = harness.wait(64);
    for e in ended {
        let expected =
            if (e.queue, e.user) == (0, 10) { Status::UNRECOVERED_READ } else { Status::SUCCESS };
        assert_eq!(e.status, expected, "{e:?}");
        if e.queue == 0 && e.user != 10 {
            let mut bytes = [0; 512];
            harness.region.read(e.user as usize * 4096, &mut bytes);
            assert!(bytes == stamp(0, e.user * 100, 1), "{e:?}");
        }
    }
    let stats = harness.queues[0].stats();
    assert_eq!((stats.recoveries, stats.resets, stats.errors), (1, 0, 1));
    assert!(stats.reissued > 0, "{stats:?}");
    assert_eq!(
        harness.queues[1].stats().recoveries,
        0,
        "the error must not affect the other drive"
    );
    harness.controller.clear_sector_errors(0);
    assert!(harness.run(0, &Request::read(1000, 4, Payload::BitBucket, 0)).status.is_success());
}

#[test]
fn many_bad_sectors_at_once_and_commands_bound_meanwhile() {
    let mut harness = harness(1);
    fault(&mut harness, true, true);
    let mut random = rng::Rng::new(3);
    let (mut bad, mut ended, mut done, mut submitted) = (vec![], vec![], 0, 0u64);
    while done < 3_000 {
        while submitted < 3_000 && harness.queues[0].tags().free() > 0 {
            let lba = if random.below(8) == 0 { 998 + random.below(4) } else { random.below(900) };
            let request = match random.below(10) {
                0 => Request::flush(submitted),
                1..5 => Request::write(lba, 2, Payload::BitBucket, submitted),
                _ => Request::read(lba, 2, Payload::BitBucket, submitted),
            };
            let touches = request.sectors > 0 && (lba..lba + 2).any(|s| (1000..1002).contains(&s));
            bad.push((touches, request.op));
            harness.submit(0, &request).unwrap();
            submitted += 1;
        }
        harness.settle();
        harness.reap(&mut ended);
        for e in ended.drain(..) {
            let expected = match bad[e.user as usize] {
                (false, _) => Status::SUCCESS,
                (true, driver::Op::Read) => Status::UNRECOVERED_READ,
                (true, _) => Status::WRITE_FAULT,
            };
            assert_eq!(e.status, expected, "{:?}", bad[e.user as usize]);
            done += 1;
        }
        if done < 3_000 {
            assert!(harness.step());
        }
    }
    let stats = harness.queues[0].stats();
    let errors = bad.iter().filter(|b| b.0).count() as u64;
    assert!(errors > 100);
    assert_eq!((stats.errors, stats.recoveries, stats.resets), (errors, errors, 0));
    assert_eq!(harness.queues[0].tags().free(), 32);
}

#[test]
fn addresses_past_the_end_and_trims_of_them() {
    let mut harness = harness(1);
    let past = Request::read(SECTORS - 1, 2, Payload::BitBucket, 0);
    assert_eq!(harness.run(0, &past).status, Status::LBA_OUT_OF_RANGE);
    let past = Request::discard(SECTORS - 1, 2, 0);
    assert_eq!(harness.run(0, &past).status, Status::LBA_OUT_OF_RANGE);
    assert!(
        harness.run(0, &Request::read(SECTORS - 1, 1, Payload::BitBucket, 0)).status.is_success()
    );
    assert_eq!(harness.queues[0].stats().recoveries, 2);
}

#[test]
fn an_unplugged_drive_is_removed_and_the_others_still_work() {
    let mut harness = harness(3);
    for i in 0..32 {
        for queue in 0..3 {
            harness.submit(queue, &Request::read(i, 1, Payload::BitBucket, i)).unwrap();
        }
    }
    harness.pass(Nanos::from_micros(20));
    let now = harness.now();
    assert!(harness.controller.unplug(1, now));
    assert!(!harness.controller.unplug(1, now), "the drive is already unplugged");
    let ended = harness.wait(64);
    assert!(ended.iter().all(|e| e.queue != 1 && e.status.is_success()));
    assert_eq!(harness.queues[1].state(), QueueState::Removed);
    assert_eq!(harness.queues[1].deadline(), Nanos::MAX);
    assert_eq!(harness.queues[1].tags().bound(), 32, "the requests get no event");
    let tags: Vec<_> = harness.queues[1].tags().bound_tags().map(|t| t.0).collect();
    for tag in tags {
        harness.queues[1].detach_tag_cmd(tag).unwrap();
        harness.queues[1].release_tags(&[tag]).unwrap();
    }
    let request = Request::read(0, 1, Payload::BitBucket, 0);
    assert_eq!(harness.submit(1, &request), Err(BindError::Busy));
    // A drive that is plugged in again counts as a new one.
    harness.controller.plug(1, harness.runner.now());
    harness.pass(Nanos::from_millis(5));
    harness.queues[1].reset(harness.runner.now());
    assert_eq!(harness.queues[1].state(), QueueState::Removed);
    let function = harness.controller.function().clone();
    let mut progress = || {
        harness.runner.step(&mut [&mut harness.controller], Nanos::MAX);
    };
    let host = AhciHost::connect(function, &mut progress, 1000).unwrap();
    assert_eq!(host.queues(), 3);
}

#[test]
fn a_reset_forgets_and_comes_back() {
    let mut harness = harness(2);
    for i in 0..32 {
        harness.submit(0, &Request::write(i, 1, Payload::BitBucket, i)).unwrap();
        harness.submit(1, &Request::write(i, 1, Payload::BitBucket, i)).unwrap();
    }
    harness.pass(Nanos::from_micros(30));
    let now = harness.now();
    harness.queues[0].reset(now);
    assert_eq!(harness.queues[0].state(), QueueState::Resetting);
    assert!(!harness.queues[0].check_event());
    let ended = harness.wait(32);
    assert!(ended.iter().all(|e| e.queue == 1), "the other drive has no completions");
    harness.pass(Nanos::from_millis(10));
    assert_eq!(harness.queues[0].state(), QueueState::Ready);
    assert_eq!(harness.queues[0].tags().bound(), 32);
    let tags: Vec<_> = harness.queues[0].tags().bound_tags().map(|t| t.0).collect();
    for tag in tags {
        harness.queues[0].detach_tag_cmd(tag).unwrap();
        harness.queues[0].release_tags(&[tag]).unwrap();
    }
    assert!(harness.run(0, &Request::read(5, 8, Payload::BitBucket, 0)).status.is_success());
    assert_eq!(harness.controller.stats().drives[0].resets, 1);
    assert_eq!(harness.controller.stats().drives[1].resets, 0);
}

#[test]
fn a_reset_while_a_flush_is_in_flight() {
    let mut harness = harness(1);
    harness.submit(0, &Request::flush(0)).unwrap();
    harness.submit(0, &Request::read(0, 1, Payload::BitBucket, 1)).unwrap();
    harness.pass(Nanos::from_micros(10));
    harness.queues[0].reset(harness.runner.now());
    harness.pass(Nanos::from_millis(10));
    assert_eq!(harness.queues[0].state(), QueueState::Ready);
    for tag in harness.queues[0].tags().bound_tags().map(|t| t.0).collect::<Vec<_>>() {
        harness.queues[0].detach_tag_cmd(tag).unwrap();
        harness.queues[0].release_tags(&[tag]).unwrap();
    }
    assert!(harness.run(0, &Request::flush(0)).status.is_success());
}

#[test]
fn a_drive_that_goes_during_its_reset_is_removed() {
    let mut harness = harness(1);
    harness.queues[0].reset(harness.runner.now());
    harness.settle();
    harness.controller.unplug(0, harness.runner.now());
    harness.pass(Nanos::from_millis(3000));
    assert_eq!(harness.queues[0].state(), QueueState::Removed);
}

#[test]
fn a_controller_that_does_nothing_is_given_up() {
    let mut harness = harness(1);
    harness.submit(0, &Request::read(0, 1, Payload::BitBucket, 1)).unwrap();
    let queue = &mut harness.queues[0];
    let mut now = harness.runner.now();
    queue.reset(now);
    // The controller is not polled: its registers report a link, but commands do not start.
    for _ in 0..1_000_000 {
        queue.poll(now);
        now = queue.deadline().max(now);
        if queue.state() != QueueState::Resetting {
            break;
        }
    }
    assert_eq!(queue.state(), QueueState::Removed);
}

#[test]
fn only_commands_that_the_drive_does_not_have_can_be_aborted() {
    let mut harness = harness(1);
    let read = harness.submit(0, &Request::read(0, 1, Payload::BitBucket, 1)).unwrap();
    let flush = harness.submit(0, &Request::flush(2)).unwrap();
    let now = harness.now();
    harness.queues[0].abort_tag(read, now).unwrap();
    harness.queues[0].abort_tag(flush, now).unwrap();
    assert!(harness.queues[0].abort_tag(driver::Tag(9), now).is_err());
    let mut ended = harness.wait(2);
    ended.sort_by_key(|e| e.user);
    assert_eq!((ended[0].status, ended[1].status), (Status::SUCCESS, Status::ABORTED));
    assert_eq!(
        harness.controller.stats().drives[0].others,
        1,
        "the drive executed only IDENTIFY DEVICE"
    );
}

#[test]
fn bring_up_says_what_is_wrong() {
    let mut none = config(2, SECTORS, SataData::Memory);
    none.drives = vec![None, None];
    let function = none.function().unwrap();
    let mut controller = controller::AhciController::new(function.clone(), &none).unwrap();
    let mut runner = time::VirtualRunner::new();
    let mut progress = || {
        runner.step(&mut [&mut controller], Nanos::MAX);
    };
    let error = AhciHost::connect(function.clone(), &mut progress, 100).unwrap_err();
    assert!(matches!(error, AhciError::NoDrive { ports: 2 }), "{error}");
    let error = AhciHost::connect(function, &mut || (), 100).unwrap_err();
    assert!(matches!(error, AhciError::Timeout { polls: 100, .. }), "{error}");
    let nothing = transport::PciFunction::new(64).unwrap();
    let error = AhciHost::connect(nothing, &mut || (), 100).unwrap_err();
    assert!(matches!(error, AhciError::Unsupported(_)), "{error}");
    let mixed = {
        let mut mixed = config(2, SECTORS, SataData::Memory);
        mixed.drives[1].as_mut().unwrap().sector_bytes = 4096;
        mixed
    };
    let function = mixed.function().unwrap();
    let mut controller = controller::AhciController::new(function.clone(), &mixed).unwrap();
    let mut progress = || {
        runner.step(&mut [&mut controller], Nanos::MAX);
    };
    let error = AhciHost::connect(function, &mut progress, 1000).unwrap_err();
    assert!(matches!(error, AhciError::Drive { port: 1, .. }), "{error}");
}
