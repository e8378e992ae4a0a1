//! Policies over a device with its own wait function: they sleep there, never without requests
//! outstanding below, and lose no request. `SLUICE_SEED=n` replays.

// guarantee: A-10

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use block::sched::{
    DirectionThrottle, GroupThrottle, RateLimit, SchedulerConfig, Scheduling, ThrottleConfig,
};
use block::{BlockDevice as _, Group, QueueFull, WaitResult};
use event::Waker;
use rng::Rng;
use time::{Component, Nanos};
use user_io::{
    Cache, CacheConfig, GroupedSubmit, Handle, IoDevice, Limits, MultiQueue, Payload, Queue,
    QueueConfig, QueueSelector, Request, Scheduled, ScheduledConfig, SharedQueue, WaitMode,
};

use super::harness::{file, null_limits};

/// State shared by the sleepers of one stack: the random generator, and the number of requests
/// below.
#[derive(Debug)]
struct Below {
    rng: RefCell<Rng>,
    queued: Cell<usize>,
    sleeps: Cell<u64>,
}

/// A device that completes requests only while a thread sleeps in it or is parked.
#[derive(Debug)]
struct Sleeper {
    queue: Queue,
    queued: VecDeque<Request>,
    parked: Rc<Cell<bool>>,
    below: Rc<Below>,
}

impl Sleeper {
    /// Completes one of the queued requests, in any order.
    fn complete_one(&mut self, now: Nanos) {
        let at = self.below.rng.borrow_mut().below(self.queued.len() as u64) as usize;
        let request = self.queued.remove(at).unwrap();
        self.below.queued.set(self.below.queued.get() - 1);
        self.queue.submit(now, request).unwrap();
        self.queue.poll(now);
    }
}

impl block::BlockDevice for Sleeper {
    block::delegate_block_device!(self => self.queue; limits, reap, memory, visit_layers);
    block::answer_block_device!(can_wake: true, enable_sharing: {});

    fn submit(&mut self, _: Nanos, request: Request) -> Result<(), QueueFull> {
        if self.queued.len() == 8 {
            return Err(QueueFull);
        }
        self.queued.push_back(request);
        self.below.queued.set(self.below.queued.get() + 1);
        Ok(())
    }

    fn set_waker(&mut self, _: Waker) {}

    fn can_wait(&self) -> bool {
        true
    }

    fn wait_for_event(&mut self, now: Nanos, until: Nanos) -> WaitResult {
        assert!(!self.queued.is_empty(), "the device sleeps without a queued request");
        self.below.sleeps.set(self.below.sleeps.get() + 1);
        // Some sleeps end spuriously.
        if until > now || self.below.rng.borrow_mut().chance(0.5) {
            self.complete_one(now);
        }
        WaitResult::Waited
    }
}

impl Component for Sleeper {
    fn poll(&mut self, now: Nanos) -> bool {
        if !self.queued.is_empty() && self.parked.replace(false) {
            self.complete_one(now);
            return true;
        }
        self.queue.poll(now)
    }

    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}

impl GroupedSubmit for Sleeper {
    fn submit_for(&mut self, now: Nanos, _: Group, request: Request) -> Result<(), QueueFull> {
        self.submit(now, request)
    }
}

/// A stack of devices, and its state.
struct Harness {
    top: Box<dyn block::BlockDevice>,
    parked: Rc<Cell<bool>>,
    below: Rc<Below>,
}

fn scheduled<D: block::BlockDevice>(device: D, per_sec: Option<u64>) -> Scheduled<D> {
    let each = |per_sec| DirectionThrottle {
        operations: Some(RateLimit { per_sec, burst: 1 }),
        bytes: None,
    };
    let groups = |per_sec| {
        let (read, write) = (each(per_sec), each(per_sec));
        vec![(Group(0), GroupThrottle { read, write })]
    };
    let limits = per_sec.map(|n| ThrottleConfig { sector_bytes: 4096, groups: groups(n) });
    let scheduling = Scheduling { scheduler: SchedulerConfig::None, limits };
    Scheduled::new(device, &ScheduledConfig { scheduling, device_depth: 4, depth: 64 }).unwrap()
}

/// A cache of minimum size.
fn cached<D: block::BlockDevice>(device: &IoDevice, below: D) -> Cache<D> {
    let config = CacheConfig { bytes: 64 * 4096, read_ahead: 8, ..CacheConfig::default() };
    Cache::new(device, below, config).unwrap()
}

const KINDS: u64 = 6;

impl Harness {
    fn new(device: &IoDevice, kind: u64, seed: u64) -> Harness {
        let (rng, parked) = (RefCell::new(Rng::new(seed)), Rc::new(Cell::new(false)));
        let below = Rc::new(Below { rng, queued: Cell::new(0), sleeps: Cell::new(0) });
        let one = || Sleeper {
            queue: device.create_queue(QueueConfig::default()).unwrap(),
            queued: VecDeque::new(),
            parked: parked.clone(),
            below: below.clone(),
        };
        let lanes = || MultiQueue::new(vec![one(), one()], QueueSelector::ByDirection).unwrap();
        let top: Box<dyn block::BlockDevice> = match kind {
            0 => Box::new(scheduled(one(), None)),
            1 => Box::new(scheduled(one(), Some(1_000_000))),
            2 => Box::new(lanes()),
            3 => Box::new(cached(device, one())),
            4 => Box::new(cached(device, scheduled(one(), Some(1_000_000)))),
            _ => {
                let lanes = vec![scheduled(one(), None), scheduled(one(), Some(1_000_000))];
                Box::new(cached(device, MultiQueue::new(lanes, QueueSelector::RoundRobin).unwrap()))
            }
        };
        Harness { top, parked, below }
    }

    /// Waits like a handle: sleeps in the device, polls, and parks if it neither slept nor made
    /// progress.
    fn wait(&mut self, now: &mut Nanos) {
        let rest = self.top.wait_for_event(*now, Nanos::MAX);
        let moved = self.top.poll(*now);
        if rest != WaitResult::Unsupported || moved {
            return;
        }
        match self.top.deadline() {
            Nanos::MAX => {
                assert!(
                    self.below.queued.get() > 0,
                    "the handle is parked without a request below"
                );
                self.parked.set(true);
            }
            deadline => *now = deadline.max(*now + Nanos(1)),
        }
    }
}

fn any_stack_ends_everything(seed: u64) {
    let device = IoDevice::null(Limits { sectors: 512, ..null_limits(64) });
    let mut rng = Rng::new(seed);
    let mut harness = Harness::new(&device, seed % KINDS, seed);
    assert!(harness.top.can_wait());
    let (mut now, mut out, mut tag) = (Nanos(1), BTreeMap::new(), 0u64);
    while tag < 2_000 || !out.is_empty() {
        let most = 1 + rng.below(16) as usize;
        while tag < 2_000 && out.len() < most {
            let (lba, sectors) = (rng.below(500), 1 + rng.below(8) as u32);
            let request = match rng.below(20) {
                0 => Request::flush(tag),
                1 => Request::discard(lba, sectors, tag),
                2..10 => Request::write(lba, sectors, Payload::BitBucket, tag),
                _ => Request::read(lba, sectors, Payload::BitBucket, tag),
            };
            if harness.top.submit(now, request).is_err() {
                break;
            }
            out.insert(tag, ());
            tag += 1;
        }
        let mut rounds = 0;
        let first = loop {
            if let Some(done) = harness.top.reap() {
                break done;
            }
            harness.wait(&mut now);
            rounds += 1;
            assert!(rounds < 1_000, "the handle polls without progress");
        };
        out.remove(&first.tag).expect("each request completes once");
        while rng.chance(0.7)
            && let Some(done) = harness.top.reap()
        {
            out.remove(&done.tag).expect("each request completes once");
        }
    }
    assert!(harness.below.sleeps.get() > 50, "{} sleeps below", harness.below.sleeps.get());
}

#[test]
fn policies_sleep_in_the_device_below_and_always_wake() {
    let seed = std::env::var("SLUICE_SEED").ok().and_then(|s| s.parse().ok());
    for seed in seed.map_or(0..120, |seed| seed..seed + 1) {
        eprintln!("SLUICE_SEED={seed}");
        any_stack_ends_everything(seed);
    }
}

/// Returns the CPU time of this thread and the wall time of `work`.
fn cost(work: impl FnOnce()) -> (Duration, Duration) {
    let (cpu, wall) = (event::thread_cpu_time(), Instant::now());
    work();
    let cpu = event::thread_cpu_time().since(cpu);
    (Duration::from_nanos(cpu.0), wall.elapsed())
}

#[test]
fn an_idle_handle_over_cache_scheduler_and_file_uses_no_cpu() {
    let (device, _file) = file(4 << 20);
    let queue = || device.create_queue(QueueConfig::default()).unwrap();
    let data = device.buffer(4096).unwrap();
    // 25 reads a second: the rest of the time is waiting.
    let slow = |queue| cached(&device, scheduled(queue, Some(25)));
    let mut handle = Handle::new(&device, slow(queue())).unwrap();
    handle.set_wait(WaitMode::Interrupt).unwrap();
    let (cpu, wall) = cost(|| (0..12).for_each(|n| handle.read(n * 40, &data).unwrap()));
    assert!(wall > Duration::from_millis(400), "{wall:?}: the reads were not throttled");
    assert!(cpu < wall / 20, "{cpu:?} of {wall:?} CPU time");
    // Through a shared queue, the handle cannot sleep in the device, so it parks.
    let shared = SharedQueue::new(scheduled(queue(), Some(25)));
    let mut handle = Handle::new(&device, cached(&device, shared.attach())).unwrap();
    assert!(!handle.device().can_wait());
    handle.set_wait(WaitMode::Interrupt).unwrap();
    let (cpu, wall) = cost(|| (0..12).for_each(|n| handle.read(n * 40, &data).unwrap()));
    assert!(wall > Duration::from_millis(400), "{wall:?}: the reads were not throttled");
    assert!(cpu < wall / 20, "{cpu:?} of {wall:?} CPU time with a shared queue");
    // Without effective rate limits it sleeps in the kernel, and every write completes.
    let stack = cached(&device, scheduled(queue(), None));
    let mut handle = Handle::new(&device, stack).unwrap();
    handle.set_wait(WaitMode::Interrupt).unwrap();
    for lba in 0..200 {
        data.fill(0, 4096, lba as u8);
        handle.write(lba, &data, false).unwrap();
        if lba % 8 == 0 {
            handle.flush().unwrap();
        }
    }
    for lba in 0..200 {
        handle.read(lba, &data).unwrap();
        let mut byte = [0];
        data.read(1000, &mut byte);
        assert_eq!(byte, [lba as u8]);
    }
    assert!(handle.sleep_stats().0 > 10, "{:?}", handle.sleep_stats());
}
