//! Completion strategies on the AHCI controller: interrupts, errors and recovery.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use controller::{AhciConfig, AhciController, InjectedSectorError, SataDriveConfig};
use driver::{AhciHost, AhciPort};
use event::{IdlePolicy, RealClock, RealRunner};
use sluice_block::Timeouts;
use sluice_block::completion::{
    Blocking, BlockingConfig, BlockingQueue, ContextKind, InterruptSource, Strategy, StripeMember,
};
use time::Nanos;

const DRIVES: usize = 3;
const THREADS: u16 = 8;
/// Sectors per thread.
const SECTORS: u64 = 256;

/// Runs `body` with a controller whose drive 1 cannot read its sector 5.
fn with_controller(body: impl FnOnce(Blocking<AhciPort>, Vec<BlockingQueue<AhciPort>>)) {
    let drive = SataDriveConfig { sectors: 4096, ..SataDriveConfig::default() };
    let config = AhciConfig::uniform(DRIVES, &drive);
    let function = config.function().unwrap();
    let mut controller = AhciController::new(function.clone(), &config).unwrap();
    controller
        .inject_sector_error(1, InjectedSectorError { sectors: 5..6, reads: true, writes: false });
    let runner = RealRunner::new(RealClock::start(), IdlePolicy::default()).unwrap();
    function.set_device_waker(runner.waker());
    let stopper = runner.stop_handle();
    let thread = std::thread::spawn(move || runner.run(&mut controller));
    let mut host = AhciHost::connect(function, &mut std::thread::yield_now, u64::MAX).unwrap();
    let source = InterruptSource::ahci(&host);
    let config = BlockingConfig {
        threads: THREADS,
        request_bytes: 32 * 512,
        stripe_bytes: 8 * 512,
        strategy: Strategy::SCSI,
        timeouts: Timeouts { command: Nanos::from_secs(5), ..Timeouts::default() },
        ..BlockingConfig::default()
    };
    let (blocking, queues) =
        Blocking::open(StripeMember::take_all(&mut host), source, &config).unwrap();
    body(blocking, queues);
    stopper.stop();
    thread.join().unwrap().unwrap();
}

fn strategies() -> impl Iterator<Item = (&'static str, Strategy)> {
    let interval = Nanos::from_micros(40);
    Strategy::NAMES.into_iter().map(move |n| (n, Strategy::from_name(n, interval).unwrap()))
}

#[test]
fn data_comes_back_under_every_strategy_and_while_it_changes() {
    with_controller(|mut blocking, queues| {
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = queues
            .into_iter()
            .enumerate()
            .map(|(index, queue)| {
                let stop = stop.clone();
                std::thread::spawn(move || {
                    let mut waiter = queue.enter();
                    // Avoid the unreadable sector.
                    let first = 64 + index as u64 * SECTORS;
                    let mut round = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        let (at, count) = (round * 7 % (SECTORS - 32), 1 + round % 32);
                        let byte = (index as u64 * 31 + round) as u8;
                        waiter.buffer().fill(0, count as usize * 512, byte);
                        let written = waiter.write_at(first + at, count as u32, 0).unwrap();
                        waiter.buffer().fill(0, count as usize * 512, !byte);
                        let read = waiter.read_at(first + at, count as u32, 0).unwrap();
                        assert!(written.status.is_success() && read.status.is_success());
                        let mut bytes = vec![0; count as usize * 512];
                        waiter.buffer().read(0, &mut bytes);
                        assert!(bytes.iter().all(|b| *b == byte), "thread {index}, {round}");
                        round += 1;
                    }
                    round
                })
            })
            .collect();
        for (name, strategy) in strategies() {
            let before = blocking.stats().waiters.requests;
            blocking.set_strategy(strategy).unwrap();
            let start = std::time::Instant::now();
            while blocking.stats().waiters.requests < before + 500 {
                assert!(start.elapsed().as_secs() < 20, "{name} makes no progress");
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        stop.store(true, Ordering::Relaxed);
        let rounds: u64 = threads.into_iter().map(|t| t.join().unwrap()).sum();
        let stats = blocking.stats();
        assert_eq!((stats.waiters.requests, stats.waiters.failed), (2 * rounds, 0));
        for kind in [ContextKind::HardIrq, ContextKind::SoftIrq, ContextKind::Poll] {
            assert!(stats.context(kind).unwrap().wall.count > 0, "{kind:?}");
        }
    });
}

#[test]
fn a_command_that_fails_does_not_affect_others() {
    with_controller(|mut blocking, mut queues| {
        let mut unlucky = queues.pop().unwrap().enter();
        let stop = Arc::new(AtomicBool::new(false));
        let others: Vec<_> = queues
            .into_iter()
            .map(|queue| {
                let stop = stop.clone();
                std::thread::spawn(move || {
                    let mut waiter = queue.enter();
                    while !stop.load(Ordering::Relaxed) {
                        // Reads on the drive with the unreadable sector, and on another one.
                        for lba in [9, 20] {
                            assert!(waiter.read_at(lba, 1, 0).unwrap().status.is_success());
                        }
                    }
                })
            })
            .collect();
        for (name, strategy) in strategies() {
            blocking.set_strategy(strategy).unwrap();
            for _ in 0..3 {
                // Sector 5 of drive 1 is sector 13 of the set.
                let status = unlucky.read_at(13, 1, 0).unwrap().status;
                assert!(status.is_media_error(), "{name}: {status}");
                assert!(unlucky.read_at(12, 1, 0).unwrap().status.is_success(), "{name}");
            }
        }
        stop.store(true, Ordering::Relaxed);
        others.into_iter().for_each(|t| t.join().unwrap());
        // Recovery proceeds without other threads.
        for (name, strategy) in strategies() {
            blocking.set_strategy(strategy).unwrap();
            let start = std::time::Instant::now();
            assert!(unlucky.read_at(13, 1, 0).unwrap().status.is_media_error(), "{name}");
            assert!(start.elapsed().as_millis() < 400, "{name}: {:?}", start.elapsed());
        }
    });
}
