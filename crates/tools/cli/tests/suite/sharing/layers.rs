//! Layers with several submitters on a drive in another process: the block layer with merging,
//! striped drives with sleeping threads, and a host with verifying jobs. All of them register their
//! own memory, which the drive's process must be able to map.

// guarantee: A-06

use block::completion::{Blocking, BlockingConfig, InterruptSource, Strategy, StripeMember};
use block::{
    BlockDevice as _, BlockLayer, BlockLayerConfig, Payload, Queue, QueueModel, QueueTopology,
    StagingScope,
};
use driver::NvmeQueue;
use event::RealClock;
use nvme::Status;
use rng::Rng;
use time::{Component, Nanos};
use user_io::{DirectError, IoDevice, QueueConfig, QueueFactory, Request};
use workload::{IoCpuCosts, JobRunner, parse_jobs};

use super::harness::*;

fn served(server: &Server, partition: &str, queues: u16) -> (IoDevice, QueueFactory) {
    let device = IoDevice::connect(&server.socket, Some(partition)).unwrap();
    let config = QueueConfig { depth: 33, interrupts: true };
    let driver = device.queue_factory(queues, config).unwrap();
    (device, driver)
}

fn mq(driver: &mut QueueFactory, cores: u16) -> (BlockLayer, Vec<Queue<NvmeQueue>>) {
    let config = BlockLayerConfig {
        queue_model: QueueModel::MultiQueue { staging: StagingScope::Core },
        topology: QueueTopology::flat(cores),
        queue_depth: 64,
        merge: true,
        ..BlockLayerConfig::default()
    };
    BlockLayer::open(driver, &config).unwrap()
}

/// Submits all requests at once, and waits for all completions.
fn run_together(queue: &mut Queue<NvmeQueue>, clock: RealClock, requests: &[Request]) {
    for request in requests {
        queue.submit(clock.now(), *request).unwrap();
    }
    let (mut left, begin) = (requests.len(), std::time::Instant::now());
    while left > 0 {
        queue.poll(clock.now());
        while let Some(done) = queue.reap() {
            assert_eq!(done.status, Status::SUCCESS, "{done:?}");
            left -= 1;
        }
        assert!(
            begin.elapsed() < TEST_TIMEOUT,
            "{left} of {} requests do not complete",
            requests.len()
        );
        std::thread::yield_now();
    }
}

#[test]
fn the_block_layer_merges_over_a_served_drive() {
    const BATCH: u64 = 32;
    let seed = std::env::var("SLUICE_SEED").map_or(11, |seed| seed.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let (device, mut driver) = served(&server, "left", 2);
    let (layer, queues) = mq(&mut driver, 2);
    let clock = device.clock();
    for (core, mut queue) in (0..).zip(queues) {
        // Two buffers alternately: data of neighbors is not contiguous, so a table is needed.
        let memory = [device.buffer(64 * SECTOR).unwrap(), device.buffer(64 * SECTOR).unwrap()];
        let mut rng = Rng::new(seed + core);
        let area = core * COUNT / 2;
        for round in 0..40 {
            let first = area + rng.below(COUNT / 2 - BATCH);
            let place = |slot: u64| (slot as usize % 2, slot as usize * SECTOR);
            let request = |slot: u64, write: bool| {
                let (which, offset) = place(slot);
                let at = Payload::Contiguous(memory[which].iova().offset(offset as u64));
                match write {
                    true => Request::write(first + slot, 1, at, slot),
                    false => Request::read(first + slot, 1, at, slot),
                }
            };
            for slot in 0..BATCH {
                let (which, offset) = place(slot);
                memory[which].write(offset, &content(core, first + slot, round));
            }
            let batch = |write| (0..BATCH).map(|slot| request(slot, write)).collect::<Vec<_>>();
            run_together(&mut queue, clock, &batch(true));
            memory.iter().for_each(|m| m.fill(0, m.len(), 0xee));
            run_together(&mut queue, clock, &batch(false));
            for slot in 0..BATCH {
                let ((which, offset), mut bytes) = (place(slot), vec![0; SECTOR]);
                memory[which].read(offset, &mut bytes);
                let sector = first + slot;
                let expected = content(core, sector, round);
                assert!(bytes == expected, "sector {sector}, SLUICE_SEED={seed}");
            }
        }
        let stat = layer.stat(clock.now());
        // A batch of adjacent requests is merged into a few commands.
        let (merged, all) = (stat.reads().merges + stat.writes().merges, 40 * 2 * BATCH);
        assert!(merged >= (core + 1) * all / 2, "{merged} of {all} were merged");
    }
    assert!(device.removal_reason().is_none());
    server.stop();
}

#[test]
fn threads_that_wait_are_served_over_striped_parts_of_a_served_drive() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let (mut devices, mut drivers, mut members) = (Vec::new(), Vec::new(), Vec::new());
    for partition in ["left", "right"] {
        let (device, mut driver) = served(&server, partition, 1);
        members.push(StripeMember::take(&mut driver, 0).unwrap());
        devices.push(device);
        drivers.push(driver);
    }
    let config = BlockingConfig {
        threads: 4,
        request_bytes: 8 * SECTOR as u32,
        stripe_bytes: 2 * SECTOR as u32,
        strategy: Strategy::async_poll(Nanos::from_micros(50)),
        ..BlockingConfig::default()
    };
    let (blocking, queues) = Blocking::open(members, InterruptSource::PerQueue, &config).unwrap();
    let threads = (0..).zip(queues).map(|(who, queue)| {
        std::thread::spawn(move || {
            let mut waiter = queue.enter();
            let mut rng = Rng::new(who);
            for round in 0..100 {
                // 5 sectors: 3 stripes, on both members.
                let lba = who * 400 + rng.below(380);
                for sector in 0..5 {
                    let bytes = content(who, lba + sector, round);
                    waiter.buffer().write(sector as usize * SECTOR, &bytes);
                }
                let wrote = waiter.write_at(lba, 5, 0).unwrap();
                waiter.buffer().fill(0, 5 * SECTOR, 0xee);
                let read = waiter.read_at(lba, 5, 0).unwrap();
                assert!(wrote.status.is_success() && read.status.is_success());
                for sector in 0..5 {
                    let mut bytes = vec![0; SECTOR];
                    waiter.buffer().read(sector as usize * SECTOR, &mut bytes);
                    assert!(bytes == content(who, lba + sector, round), "{who} {round} {sector}");
                }
            }
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().unwrap();
    }
    drop((blocking, drivers, devices));
    server.stop();
}

#[test]
fn a_host_verifies_through_the_block_layer_of_a_served_drive() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let (device, mut driver) = served(&server, "right", 1);
    let (_layer, queues) = mq(&mut driver, 1);
    let queue = queues.into_iter().next().unwrap();
    let text = "[j]\nrw=randwrite\nbs=4k\nsize=4m\niodepth=16\nverify=crc32c\n";
    let jobs = parse_jobs("test.fio".as_ref(), text).unwrap().jobs;
    let mut host = JobRunner::new(queue, jobs, IoCpuCosts::default(), 3).unwrap();
    let (clock, begin) = (device.clock(), std::time::Instant::now());
    while !host.is_done() {
        host.poll(clock.now());
        assert!(begin.elapsed() < TEST_TIMEOUT);
        std::thread::yield_now();
    }
    let result = host.finish().unwrap();
    let job = &result.jobs[0];
    assert!(
        job.requests.verified > 0 && job.requests.completed >= 2 * job.requests.verified,
        "{job:?}"
    );
    assert_eq!((job.requests.mismatches, job.requests.failed), (0, 0));
    drop(driver);
    server.stop();
}

#[test]
fn only_a_drive_has_hardware_queues() {
    let null = open::open("null:1M", &Default::default()).unwrap();
    let refused = null.queue_factory(1, QueueConfig::default()).unwrap_err();
    assert!(matches!(refused, DirectError::NoDrive { .. }), "{refused}");
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let device = IoDevice::connect(&server.socket, Some("left")).unwrap();
    let refused = device.queue_factory(0, QueueConfig::default()).unwrap_err();
    assert!(matches!(refused, DirectError::Config { key: "count", .. }), "{refused}");
    drop(device);
    server.stop();
}
