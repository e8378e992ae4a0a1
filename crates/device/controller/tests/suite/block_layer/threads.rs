//! Real time: the drive on its runner's thread, and submitters on theirs, which sleep or poll.

// guarantee: B-04

use std::time::{Duration, Instant};

use block::{BlockLayer, BlockLayerConfig, QueueModel, StagingScope};
use controller::{Controller, DriveConfig, PersonalityKind};
use driver::{ControllerHandle, NvmeDevice};
use event::{IdlePolicy, RealClock, RealRunner, StopHandle};
use time::{Component, Nanos};

use super::harness;
use super::load::Load;

struct Running {
    clock: RealClock,
    loads: Vec<Load>,
    layer: BlockLayer,
    stopper: StopHandle,
    thread: std::thread::JoinHandle<()>,
}

fn start(drive: DriveConfig, queues: u16, config: &BlockLayerConfig) -> Running {
    let keeps_data = drive.personality == PersonalityKind::Block;
    let mut drive = Controller::new(drive).unwrap();
    let port = drive.attach().unwrap();
    let clock = RealClock::start();
    let runner = RealRunner::new(clock, IdlePolicy::default()).unwrap();
    port.set_drive_waker(runner.waker()).unwrap();
    let stopper = runner.stop_handle();
    let thread = std::thread::spawn(move || runner.run(&mut drive).unwrap());
    let progress = &mut std::thread::yield_now;
    let controller = ControllerHandle::connect(port, progress, u64::MAX).unwrap();
    let emulated = NvmeDevice::open(controller, queues, 33, true, progress).unwrap();
    let (layer, ends) = BlockLayer::open(&mut harness::Narrow(emulated), config).unwrap();
    let loads = ends.into_iter().map(|queue| Load::new(queue, keeps_data, 11)).collect();
    Running { clock, loads, layer, stopper, thread }
}

/// The wait mode of a submitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Sleep,
    Poll,
}

/// A sleep of this length times out: the submitter was not woken, although it had requests.
const WAKE_TIMEOUT: Nanos = Nanos::from_millis(3_000);

/// Executes `count` requests; if `leaves`, returns early with requests in flight. Returns the
/// number of sleeps that timed out.
fn work(load: &mut Load, clock: RealClock, wait: Wait, count: u64, leaves: bool) -> u32 {
    let started = Instant::now();
    let mut forgotten = 0;
    let mut submitted = 0;
    while load.completed < count {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{:?}\n{:?}\n{:?}\n{:?}, due {} at {}",
            load.outstanding,
            load.queue.dispatch_stats(),
            load.queue.staging_stats(),
            load.queue,
            load.queue.deadline(),
            clock.now()
        );
        let now = clock.now();
        while submitted < count && load.submit(now) {
            submitted += 1;
        }
        if leaves && load.completed > count / 2 && !load.outstanding.is_empty() {
            load.queue.poll(now);
            break;
        }
        let moved = load.queue.poll(now);
        if load.reap() == 0 && !moved {
            match wait {
                Wait::Poll => std::thread::yield_now(),
                Wait::Sleep => {
                    let before = clock.now();
                    load.queue.sleep(before, WAKE_TIMEOUT).unwrap();
                    forgotten += u32::from(clock.now().since(before) >= WAKE_TIMEOUT);
                }
            }
        }
    }
    forgotten
}

fn run(
    drive: DriveConfig,
    queues: u16,
    config: BlockLayerConfig,
    wait: Wait,
    count: u64,
    leaves: bool,
) {
    let what = format!("{queues} queues, {:?}, {wait:?}, {leaves}", config.queue_model);
    let Running { clock, mut loads, layer, stopper, thread } = start(drive, queues, &config);
    if wait == Wait::Sleep {
        // The interrupt wakes the submitter that leaves.
        for load in &mut loads {
            load.queue.parker().unwrap();
        }
    }
    let threads: Vec<_> = loads
        .into_iter()
        .enumerate()
        .map(|(index, mut load)| {
            let leaves = leaves && index == 0;
            std::thread::spawn(move || {
                let forgotten = work(&mut load, clock, wait, count, leaves);
                let regular = (load.outstanding.is_empty(), load.failed.len());
                drop(load.queue);
                (forgotten, regular, leaves)
            })
        })
        .collect();
    for (index, thread) in threads.into_iter().enumerate() {
        let (forgotten, (settled, failed), left) = thread.join().unwrap();
        assert!(settled || left, "{what}: thread {index}");
        assert_eq!((forgotten, failed), (0, 0), "{what}: thread {index}");
    }
    stopper.stop();
    thread.join().unwrap();
    assert_eq!(layer.dispatch().iter().map(|d| d.resets.get() + d.timeouts.get()).sum::<u64>(), 0);
}

fn layouts(cores: u16) -> Vec<(QueueModel, u16)> {
    let (core, device) = (harness::multi(StagingScope::Core), harness::multi(StagingScope::Device));
    vec![(QueueModel::SingleQueue, 1), (core, 1), (core, cores), (core, cores / 2), (device, 2)]
}

#[test]
fn sleepers_are_woken() {
    for cores in [2, 8] {
        for (layout, queues) in layouts(cores) {
            run(harness::nand(), queues, harness::config(layout, cores), Wait::Sleep, 400, false);
            run(harness::null(), queues, harness::config(layout, cores), Wait::Sleep, 1_500, false);
        }
    }
}

#[test]
fn pollers_need_no_interrupts() {
    for cores in [2, 8] {
        for (layout, queues) in layouts(cores) {
            run(harness::nand(), queues, harness::config(layout, cores), Wait::Poll, 300, false);
            run(harness::null(), queues, harness::config(layout, cores), Wait::Poll, 1_000, false);
        }
    }
}

#[test]
fn a_submitter_that_leaves_takes_nothing_with_it() {
    for cores in [2, 8] {
        for (layout, queues) in layouts(cores) {
            for wait in [Wait::Sleep, Wait::Poll] {
                run(harness::nand(), queues, harness::config(layout, cores), wait, 300, true);
                run(harness::null(), queues, harness::config(layout, cores), wait, 1_000, true);
            }
        }
    }
}
