//! Real time: the controller on its runner's thread, the host on other threads, and an interrupt
//! context between them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use controller::{AhciController, AhciStats, InjectedSectorError, SataData};
use driver::{
    AhciHost, AhciPort, HardwareQueue, InterruptContext, InterruptOptions, Payload, Request, Tag,
};
use event::{IdlePolicy, RealClock, RealRunner, StopHandle};
use mem::{Iova, SharedRegion};
use nvme::Status;
use testkit::PollBudget;
use transport::PciFunction;

use super::harness::{config, stamp};

struct Running {
    clock: RealClock,
    function: Arc<PciFunction>,
    stopper: StopHandle,
    thread: std::thread::JoinHandle<AhciStats>,
}

fn start(drives: usize) -> Running {
    start_with(drives, |_| ())
}

fn start_with(drives: usize, prepare: impl Fn(&mut AhciController)) -> Running {
    let config = config(drives, 1 << 14, SataData::Memory);
    let function = config.function().unwrap();
    let mut controller = AhciController::new(function.clone(), &config).unwrap();
    prepare(&mut controller);
    let clock = RealClock::start();
    let runner = RealRunner::new(clock, IdlePolicy::default()).unwrap();
    function.set_device_waker(runner.waker());
    let stopper = runner.stop_handle();
    let thread = std::thread::spawn(move || {
        runner.run(&mut controller).unwrap();
        controller.stats()
    });
    Running { clock, function, stopper, thread }
}

/// A drive's queue, with commands that write sectors, read them back and compare.
struct Load {
    queue: AhciPort,
    region: Arc<SharedRegion>,
    at: Iova,
    index: usize,
    remaining: u64,
    next: u64,
}

impl Load {
    /// Reaps completions and issues as many new commands. Returns the number of completions.
    fn poll(&mut self, clock: RealClock) -> u64 {
        let mut ended = 0;
        while let Some(event) = self.queue.fetch_event() {
            let command = self.queue.detach_tag_cmd(event.tag).expect("an event of a command");
            self.queue.release_tags(&[event.tag]).unwrap();
            assert!(event.status.is_success(), "{}", event.status);
            let (number, read) = (command.user / 2, command.user % 2 == 1);
            if read {
                let mut bytes = [0; 512];
                self.region.read(self.offset(event.tag), &mut bytes);
                assert!(bytes == stamp(self.index, number % 4096, number), "command {number}");
            } else {
                // Read back written data, with any tag.
                self.submit(number, true, clock);
            }
            ended += 1;
        }
        while self.remaining > 0 && self.queue.tags().free() > 16 {
            self.remaining -= 1;
            self.next += 1;
            self.submit(self.next, false, clock);
        }
        self.queue.issue_tags();
        ended
    }

    fn offset(&self, tag: Tag) -> usize {
        (self.index * 32 + usize::from(tag.0)) * 512
    }

    fn submit(&mut self, number: u64, read: bool, clock: RealClock) {
        let mut tag = [Tag(0)];
        assert_eq!(self.queue.get_free_tags(&mut tag), 1);
        let offset = self.offset(tag[0]);
        let (lba, user) = (number % 4096, 2 * number + u64::from(read));
        let data = Payload::Contiguous(self.at.offset(offset as u64));
        let request = if read {
            self.region.fill(offset, 512, 0);
            Request::read(lba, 1, data, user)
        } else {
            self.region.write(offset, &stamp(self.index, lba, number));
            Request::write(lba, 1, data, user)
        };
        self.queue.bind_tag_cmd(tag[0], &request, clock.now()).unwrap();
    }
}

fn attach(running: &Running, commands: u64) -> (AhciHost, Vec<Load>) {
    let function = running.function.clone();
    let mut host =
        AhciHost::connect(function.clone(), &mut std::thread::yield_now, u64::MAX).unwrap();
    let region = SharedRegion::anonymous(1 << 20).unwrap();
    let at = function.memory().register(&region).unwrap();
    let loads = host.take_queues().into_iter().enumerate().map(|(index, queue)| Load {
        queue,
        region: region.clone(),
        at,
        index,
        remaining: commands,
        next: 0,
    });
    let loads = loads.collect();
    (host, loads)
}

#[test]
fn interrupts_drive_six_drives_without_anybody_polling() {
    const COMMANDS: u64 = 1_500;
    let running = start(6);
    let (host, loads) = attach(&running, COMMANDS);
    let (interrupt, clock) = (host.interrupt(), running.clock);
    let loads: Vec<_> = loads
        .into_iter()
        .map(|mut load| {
            load.queue.set_self_acknowledge(false);
            Mutex::new(load)
        })
        .collect();
    let loads = Arc::new(loads);
    let done = Arc::new(AtomicU64::new(0));
    let (theirs, count, line) = (loads.clone(), done.clone(), interrupt.clone());
    let context = InterruptContext::start(InterruptOptions::default(), move || {
        loop {
            let ports = line.pending();
            if ports == 0 {
                break;
            }
            line.acknowledge(ports);
            for (index, load) in theirs.iter().enumerate() {
                if ports >> index & 1 != 0 {
                    let ended = load.lock().unwrap().poll(clock);
                    count.fetch_add(ended, Ordering::Release);
                }
            }
        }
    })
    .unwrap();
    interrupt.set_line(context.waker());
    for load in loads.iter() {
        load.lock().unwrap().poll(clock);
    }
    PollBudget::every(Duration::from_millis(1), Duration::from_secs(60)).poll_until(
        || {
            assert!(context.is_running());
            // Each command is one write and one read.
            done.load(Ordering::Acquire) >= 6 * COMMANDS * 2
        },
        || format!("{done:?} commands completed"),
    );
    let stats = context.stats();
    assert!(stats.wall.count > 0 && stats.wall.count <= 6 * COMMANDS * 2 + 1_000);
    assert!(stats.cpu.longest > time::Nanos::ZERO);
    drop(context);
    running.stopper.stop();
    let drives = running.thread.join().unwrap().drives;
    assert!(drives.iter().all(|d| (d.reads, d.writes, d.errors) == (COMMANDS, COMMANDS, 0)));
}

#[test]
fn a_poller_needs_no_interrupts() {
    const COMMANDS: u64 = 1_500;
    let running = start(2);
    let (host, mut loads) = attach(&running, COMMANDS);
    host.interrupt().mask();
    let (mut done, started) = (0, Instant::now());
    while done < 2 * COMMANDS * 2 {
        assert!(started.elapsed() < Duration::from_secs(60), "{done} commands completed");
        let ended: u64 = loads.iter_mut().map(|load| load.poll(running.clock)).sum();
        done += ended;
        if ended == 0 {
            std::thread::yield_now();
        }
    }
    running.stopper.stop();
    let stats = running.thread.join().unwrap();
    assert!(stats.drives.iter().all(|d| d.reads == COMMANDS && d.errors == 0));
    assert!(stats.late.count >= 2 * COMMANDS * 2);
}

/// The interrupt context acknowledges errors, the queue detects them, and the polling thread
/// recovers. Each step happens exactly once per error, for any interleaving of the threads.
#[test]
fn errors_are_recovered_from_while_interrupts_come() {
    const COMMANDS: u64 = 3_000;
    let fault = || InjectedSectorError { sectors: 0..64, reads: true, writes: false };
    let running = start_with(2, |controller| {
        controller.inject_sector_error(0, fault());
        controller.inject_sector_error(1, fault());
    });
    let function = running.function.clone();
    let mut host = AhciHost::connect(function, &mut std::thread::yield_now, u64::MAX).unwrap();
    let (interrupt, clock) = (host.interrupt(), running.clock);
    let queues: Vec<_> = host
        .take_queues()
        .into_iter()
        .map(|mut queue| {
            queue.set_self_acknowledge(false);
            Mutex::new((queue, 0u64))
        })
        .collect();
    let queues = Arc::new(queues);
    let [good, bad] = [const { AtomicU64::new(0) }; 2].map(Arc::new);
    let turn = {
        let (good, bad) = (good.clone(), bad.clone());
        move |(queue, submitted): &mut (AhciPort, u64)| {
            while let Some(event) = queue.fetch_event() {
                let command = queue.detach_tag_cmd(event.tag).expect("an event of a command");
                queue.release_tags(&[event.tag]).unwrap();
                let expected = match command.user < 64 {
                    true => Status::UNRECOVERED_READ,
                    false => Status::SUCCESS,
                };
                assert_eq!(event.status, expected);
                if command.user < 64 { &bad } else { &good }.fetch_add(1, Ordering::Release);
            }
            let mut tag = [Tag(0)];
            while *submitted < COMMANDS && queue.get_free_tags(&mut tag) == 1 {
                // One command in sixteen fails.
                let lba = if *submitted % 16 == 0 { *submitted % 64 } else { 64 + *submitted };
                let request = Request::read(lba, 1, Payload::BitBucket, lba);
                queue.bind_tag_cmd(tag[0], &request, clock.now()).unwrap();
                *submitted += 1;
            }
            queue.issue_tags();
        }
    };
    let (theirs, line, upcall) = (queues.clone(), interrupt.clone(), turn.clone());
    let context = InterruptContext::start(InterruptOptions::default(), move || {
        loop {
            let ports = line.pending();
            if ports == 0 {
                break;
            }
            line.acknowledge(ports);
            for (index, queue) in theirs.iter().enumerate() {
                if ports >> index & 1 != 0 {
                    upcall(&mut queue.lock().unwrap());
                }
            }
        }
    })
    .unwrap();
    interrupt.set_line(context.waker());
    let started = Instant::now();
    while good.load(Ordering::Acquire) + bad.load(Ordering::Acquire) < 2 * COMMANDS {
        assert!(started.elapsed() < Duration::from_secs(60), "{good:?} {bad:?}");
        assert!(context.is_running());
        for queue in queues.iter() {
            let mut guard = queue.lock().unwrap();
            guard.0.poll(clock.now());
            turn(&mut guard);
        }
    }
    drop(context);
    running.stopper.stop();
    running.thread.join().unwrap();
    for queue in queues.iter() {
        let stats = queue.lock().unwrap().0.stats();
        let failing = COMMANDS.div_ceil(16);
        assert_eq!((stats.errors, stats.recoveries, stats.resets), (failing, failing, 0));
    }
}
