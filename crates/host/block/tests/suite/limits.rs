//! Invalid configurations, and behavior under faults and limits.

// guarantee: B-02, B-03, B-04

use crate::common;

use common::{Chaos, ChaosQueue, SECTOR};
use driver::{Features, Limits, LowLevelDriver, Null};
use nvme::Status;
use sluice_block::sched::SchedulerConfig;
use sluice_block::trace::Action;
use sluice_block::{
    BlockDevice, BlockError, BlockLayer, BlockLayerConfig, Payload, Queue, QueueFull, QueueModel,
    QueueTopology, Request, STATUS_REMOVED, StagingScope, Timeouts,
};
use time::{Component, Nanos};

const LIMITS: Limits = Limits {
    sector_bytes: SECTOR,
    sectors: 1 << 20,
    max_sectors: 8,
    optimal_sectors: 1,
    queue_depth: 16,
    volatile_cache: true,
    atomic: driver::AtomicLimits::NONE,
};
const FEATURES: Features = Features {
    segments: 8,
    fua: true,
    discard: true,
    write_zeroes: true,
    extents: false,
    atomic: driver::AtomicLimits::NONE,
};
const SHARED: QueueModel = QueueModel::MultiQueue { staging: StagingScope::Core };

fn chaos(queues: u16) -> Chaos {
    Chaos::new(LIMITS, FEATURES, queues, 1)
}

fn config(layout: QueueModel, cores: u16) -> BlockLayerConfig {
    let timeouts =
        Timeouts { command: Nanos::from_millis(1), abort: Nanos::from_millis(1), retries: 2 };
    BlockLayerConfig {
        queue_model: layout,
        topology: QueueTopology::flat(cores),
        timeouts,
        ..BlockLayerConfig::default()
    }
}

fn open(chaos: &mut Chaos, config: &BlockLayerConfig) -> Vec<Queue<ChaosQueue>> {
    BlockLayer::open(chaos, config).unwrap().1
}

fn read(lba: u64, tag: u64) -> Request {
    Request::read(lba, 1, Payload::BitBucket, tag)
}

/// Advances time until all requests have completed. Returns that time and each queue's completions.
fn run_until_idle(
    chaos: &Chaos,
    queues: &mut [Queue<ChaosQueue>],
    mut now: Nanos,
) -> (Nanos, Vec<Vec<(u64, Status)>>) {
    let mut done: Vec<Vec<(u64, Status)>> = vec![Vec::new(); queues.len()];
    for _ in 0..10_000 {
        chaos.world.lock().unwrap().now = now;
        let mut moved = false;
        for (queue, done) in queues.iter_mut().zip(&mut done) {
            moved |= queue.poll(now);
            done.extend(reap(queue));
        }
        if queues.iter().all(|q| q.outstanding() == 0) {
            return (now, done);
        }
        now = if moved { now } else { now + Nanos(1_000) };
    }
    panic!("some requests do not complete");
}

fn poll(queues: &mut [Queue<ChaosQueue>], now: Nanos) {
    for queue in queues {
        queue.poll(now);
    }
}

fn reap(queue: &mut Queue<ChaosQueue>) -> Vec<(u64, Status)> {
    std::iter::from_fn(|| queue.reap()).map(|c| (c.tag, c.status)).collect()
}

#[test]
fn drivers_and_configurations_that_cannot_be_are_refused() {
    let refused =
        |chaos: &mut Chaos, config: &BlockLayerConfig| BlockLayer::open(chaos, config).unwrap_err();
    let base = config(SHARED, 2);
    assert!(matches!(refused(&mut chaos(0), &base), BlockError::NoQueues));
    let mut astray = chaos(2);
    astray.mapping = Some(2);
    assert!(matches!(
        refused(&mut astray, &base),
        BlockError::Mapping { software: 0, mapped: 2, queues: 2 }
    ));
    let mut taken = chaos(2);
    taken.take_queue(1);
    assert!(matches!(refused(&mut taken, &base), BlockError::QueueTaken { queue: 1, queues: 2 }));
    for topology in
        [QueueTopology { sockets: 0, cores: 8 }, QueueTopology { sockets: 65535, cores: 2 }]
    {
        let config = BlockLayerConfig { topology, ..base.clone() };
        assert!(matches!(refused(&mut chaos(2), &config), BlockError::Topology { .. }));
    }
    for queue_depth in [0, u32::MAX] {
        let config = BlockLayerConfig { queue_depth, ..base.clone() };
        assert!(matches!(refused(&mut chaos(2), &config), BlockError::Depth(_)));
    }
    for limits in [
        Limits { sector_bytes: 0, ..LIMITS },
        Limits { sector_bytes: 520, ..LIMITS },
        Limits { sectors: 0, ..LIMITS },
        Limits { max_sectors: 0, ..LIMITS },
        Limits { max_sectors: u32::MAX, ..LIMITS },
    ] {
        let mut chaos = Chaos::new(limits, FEATURES, 2, 1);
        assert!(matches!(refused(&mut chaos, &base), BlockError::Limits(_)), "{limits:?}");
    }
    let fair: SchedulerConfig = "fair".parse().unwrap();
    let config = BlockLayerConfig { scheduler: fair.into(), ..base };
    let error = refused(&mut chaos(2), &config);
    assert!(error.to_string().starts_with("fair weigh submitters"), "{error}");
}

#[test]
fn invalid_requests_fail_and_others_complete() {
    let mut device = chaos(1);
    let mut queues = open(&mut device, &config(SHARED, 1));
    let queue = &mut queues[0];
    let wrong = [
        (Request::read(LIMITS.sectors, 1, Payload::BitBucket, 1), Status::LBA_OUT_OF_RANGE),
        (Request::read(LIMITS.sectors - 1, 2, Payload::BitBucket, 2), Status::LBA_OUT_OF_RANGE),
        (Request::read(u64::MAX, u32::MAX, Payload::BitBucket, 3), Status::LBA_OUT_OF_RANGE),
        (Request::write(0, 0, Payload::BitBucket, 4), Status::INVALID_FIELD),
        (Request::discard(0, 0, 5), Status::INVALID_FIELD),
        (
            Request::read(0, 9, Payload::Scattered { table: mem::Iova(0), segments: 1 }, 6),
            Status::INVALID_FIELD,
        ),
    ];
    for (request, _) in wrong {
        queue.submit(Nanos(1), request).unwrap();
    }
    queue.submit(Nanos(1), read(5, 7)).unwrap();
    assert!(queue.poll(Nanos(1)));
    let want: Vec<(u64, Status)> = wrong.iter().map(|(r, s)| (r.tag, *s)).collect();
    assert_eq!(reap(queue), want);
    let (_, done) = run_until_idle(&device, &mut queues, Nanos(2));
    assert_eq!(done[0], [(7, Status::SUCCESS)]);
    assert_eq!(queues[0].stats().completed_early.get(), 6);
}

#[test]
fn a_full_queue_pushes_back_and_says_so_in_its_trace() {
    let mut device = chaos(1);
    let config = BlockLayerConfig { queue_depth: 3, ..config(SHARED, 1) };
    let mut queues = open(&mut device, &config);
    queues[0].trace(100);
    let requests: Vec<Request> = (0..5).map(|i| read(i * 10, i)).collect();
    let submit_many = |q: &mut Queue<_>, now, requests: &[Request]| {
        requests.iter().take_while(|request| q.submit(now, **request).is_ok()).count()
    };
    assert_eq!(submit_many(&mut queues[0], Nanos(1), &requests), 3);
    assert_eq!(queues[0].submit(Nanos(1), requests[3]), Err(QueueFull));
    assert_eq!(queues[0].stats().sleeps.get(), 2);
    let sleeps = |q: &mut Queue<_>| {
        let events = q.tracer().unwrap().events();
        events.iter().filter(|e| e.action == Action::Sleep).count()
    };
    assert_eq!(sleeps(&mut queues[0]), 2);
    queues[0].poll(Nanos(1));
    // At this time, every request has completed.
    let later = Nanos::from_micros(500);
    device.world.lock().unwrap().now = later;
    queues[0].poll(later);
    assert_eq!(std::iter::from_fn(|| queues[0].reap()).take(2).count(), 2);
    assert_eq!(std::iter::from_fn(|| queues[0].reap()).count(), 1);
    assert_eq!(submit_many(&mut queues[0], later, &requests[3..]), 2);
}

#[test]
fn a_flush_stands_for_all_that_wait_but_not_for_those_that_come_later() {
    for layout in [QueueModel::SingleQueue, SHARED] {
        let mut device = chaos(1);
        let mut queues = open(&mut device, &config(layout, 3));
        for tag in 0..5 {
            queues[0].submit(Nanos(1), Request::flush(tag)).unwrap();
            queues[0].poll(Nanos(1));
            for queue in &mut queues[1..] {
                queue.submit(Nanos(1), Request::flush(tag)).unwrap();
                queue.poll(Nanos(1));
            }
        }
        let (_, done) = run_until_idle(&device, &mut queues, Nanos(2));
        // The first flush is issued alone; the other fourteen wait for it and are combined.
        assert_eq!(device.world.lock().unwrap().flushes, 2);
        assert!(done.iter().all(|ended| ended.len() == 5));
    }
}

#[test]
fn without_a_cache_flushes_end_here_and_fua_is_no_command() {
    let limits = Limits { volatile_cache: false, ..LIMITS };
    let mut device = Chaos::new(limits, Features { fua: false, ..FEATURES }, 1, 1);
    let mut queues = open(&mut device, &config(SHARED, 1));
    let fua = Request { fua: true, ..Request::write(0, 20, Payload::BitBucket, 2) };
    queues[0].submit(Nanos(1), Request::flush(1)).unwrap();
    queues[0].submit(Nanos(1), fua).unwrap();
    let (_, done) = run_until_idle(&device, &mut queues, Nanos(2));
    assert_eq!(done[0].len(), 2);
    let world = device.world.lock().unwrap();
    assert_eq!((world.flushes, world.commands, world.longest), (0, 3, 8));
}

#[test]
fn fua_without_the_drivers_help_is_a_write_and_a_flush() {
    let mut device = Chaos::new(LIMITS, Features { fua: false, ..FEATURES }, 1, 1);
    let mut queues = open(&mut device, &config(SHARED, 1));
    for (tag, sectors) in [(1, 1), (2, 20)] {
        let write = Request::write(100 * tag, sectors, Payload::BitBucket, tag);
        queues[0].submit(Nanos(1), Request { fua: true, ..write }).unwrap();
        let (_, done) = run_until_idle(&device, &mut queues, Nanos(2));
        assert_eq!(done[0], [(tag, Status::SUCCESS)]);
        assert_eq!(device.world.lock().unwrap().flushes, tag);
    }
}

#[test]
fn a_command_that_never_ends_is_aborted_then_reset_then_fails() {
    for layout in [QueueModel::SingleQueue, SHARED] {
        let mut device = chaos(1);
        device.world.lock().unwrap().faults.lost = 1000;
        let mut queues = open(&mut device, &config(layout, 2));
        queues[0].submit(Nanos(1), read(1, 1)).unwrap();
        queues[1].submit(Nanos(1), Request::flush(2)).unwrap();
        let (end, done) = run_until_idle(&device, &mut queues, Nanos(1));
        // Three timeouts of 1 ms, with 1 ms for each abort.
        assert!(end >= Nanos::from_millis(6) && end < Nanos::from_millis(8), "{end}");
        assert_eq!(done, [[(1, Status::ABORTED)], [(2, Status::ABORTED)]]);
        let stats = queues[0].dispatch_stats();
        assert_eq!((stats.resets.get(), stats.timeouts.get(), stats.requeued.get()), (3, 6, 4));
        // The device recovers, and so does the queue.
        device.world.lock().unwrap().faults.lost = 0;
        queues[0].submit(end, read(1, 3)).unwrap();
        let (_, done) = run_until_idle(&device, &mut queues, end);
        assert_eq!(done[0], [(3, Status::SUCCESS)]);
    }
}

#[test]
fn a_removed_device_fails_everything_at_once_and_for_good() {
    for layout in
        [QueueModel::SingleQueue, SHARED, QueueModel::MultiQueue { staging: StagingScope::Device }]
    {
        let mut device = chaos(1);
        let mut queues = open(&mut device, &config(layout, 2));
        for queue in &mut queues {
            // More requests than tags, so that some wait in the staging queue.
            for tag in 0..40 {
                queue.submit(Nanos(1), read(tag * 10, tag)).unwrap();
            }
            queue.submit(Nanos(1), Request::flush(40)).unwrap();
            queue.poll(Nanos(1));
        }
        device.world.lock().unwrap().removed = true;
        let (_, done) = run_until_idle(&device, &mut queues, Nanos(2));
        for (queue, mut ended) in queues.iter_mut().zip(done) {
            queue.submit(Nanos(3), read(0, 41)).unwrap();
            queue.poll(Nanos(3));
            queue.poll(Nanos(3));
            ended.extend(reap(queue));
            assert_eq!(ended.len(), 42, "{layout:?}");
            assert!(ended.iter().all(|(_, status)| *status == STATUS_REMOVED));
        }
    }
}

#[test]
fn a_submitter_that_exits_does_not_disturb_others() {
    for layout in
        [QueueModel::SingleQueue, SHARED, QueueModel::MultiQueue { staging: StagingScope::Device }]
    {
        let mut device = chaos(1);
        let (layer, mut queues) = BlockLayer::open(&mut device, &config(layout, 3)).unwrap();
        for queue in &mut queues {
            for tag in 0..300 {
                queue.submit(Nanos(1), read(tag * 10, tag)).unwrap();
            }
        }
        // Polls until every core has requests in the device.
        for at in (0..500_000).step_by(1_000).map(Nanos) {
            device.world.lock().unwrap().now = at;
            poll(&mut queues, at);
        }
        drop(queues.remove(1));
        let (_, done) = run_until_idle(&device, &mut queues, Nanos(500_000));
        // Requests of the dropped queue complete as well.
        for _ in 0..200 {
            let now = device.world.lock().unwrap().now + Nanos(10_000);
            device.world.lock().unwrap().now = now;
            poll(&mut queues, now);
        }
        assert!(done.iter().all(|ended| ended.len() == 300));
        let stats = &layer.dispatch()[0];
        assert_eq!(stats.issued.get(), stats.completed.get());
        assert!(stats.orphans.get() > 0, "{layout:?}");
        queues[0].submit(Nanos(1 << 40), read(1, 99)).unwrap();
        let (_, done) = run_until_idle(&device, &mut queues, Nanos(1 << 40));
        assert_eq!(done[0], [(99, Status::SUCCESS)]);
    }
}

#[test]
fn tags_are_shared_fairly_by_cores_without_a_common_queue() {
    let mut device = chaos(1);
    let mut queues = open(&mut device, &config(SHARED, 2));
    let (mut tags, mut done) = ([0, 0], [0, 0]);
    let mut now = Nanos(1);
    for _ in 0..20_000 {
        now += Nanos(500);
        device.world.lock().unwrap().now = now;
        for (core, (queue, depth)) in queues.iter_mut().zip([1000, 4]).enumerate() {
            while queue.outstanding() < depth {
                tags[core] += 1;
                queue.submit(now, read(tags[core] % 1000 * 7, tags[core])).unwrap();
            }
            queue.poll(now);
            done[core] += reap(queue).len();
        }
    }
    // Half of the sixteen tags are the second core's share; it uses four of them.
    let share = done[1] as f64 / (done[0] + done[1]) as f64;
    assert!((0.30..0.37).contains(&share), "{done:?}");
}

#[test]
fn a_thousand_cores_share_one_hardware_queue() {
    let mut device = chaos(1);
    let mut config = config(SHARED, 1000);
    config.queue_depth = 4;
    config.merge = false;
    let mut queues = open(&mut device, &config);
    for queue in &mut queues {
        for tag in 0..4 {
            queue.submit(Nanos(1), read(tag, tag)).unwrap();
        }
    }
    let mut now = Nanos(1);
    while queues.iter().any(|q| q.outstanding() > 0) {
        now += Nanos(20_000);
        device.world.lock().unwrap().now = now;
        poll(&mut queues, now);
        assert!(now < Nanos::from_secs(10), "some requests do not complete");
    }
    assert!(queues.iter_mut().all(|q| reap(q).len() == 4));
}

#[test]
fn a_sleeper_wakes_for_a_completion_that_another_core_finds() {
    let mut null = Null::default();
    let config =
        BlockLayerConfig { topology: QueueTopology::flat(2), ..BlockLayerConfig::default() };
    let (_, mut queues) = BlockLayer::open(&mut null, &config).unwrap();
    let mut other = queues.pop().unwrap();
    let mut queue = queues.pop().unwrap();
    let clock = event::RealClock::start();
    let thread = std::thread::spawn(move || {
        let mut reaped = 0;
        for tag in 0..2_000u64 {
            queue.submit(clock.now(), read(tag, tag)).unwrap();
            while queue.reap().is_none() {
                queue.sleep(clock.now(), Nanos::from_millis(200)).unwrap();
                queue.poll(clock.now());
            }
            reaped += 1;
        }
        reaped
    });
    while !thread.is_finished() {
        other.submit(clock.now(), read(1, 1)).unwrap();
        other.poll(clock.now());
        while other.reap().is_some() {}
    }
    assert_eq!(thread.join().unwrap(), 2_000);
    assert!(clock.now() < Nanos::from_secs(60), "the submitter must be woken before its timeout");
}
