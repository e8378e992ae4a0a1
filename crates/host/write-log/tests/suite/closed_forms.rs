//! The time of durable writes in closed form.

// guarantee: B-77

use std::collections::VecDeque;

use block::{BlockDevice, Completion, Limits, Op, Payload, QueueFull, Request};
use event::Waker;
use mem::{AddressSpace, PersistentMemory};
use nvme::Status;
use time::{Component, Nanos};
use write_log::{WriteLog, WriteLogConfig, WriteLogOpening};

use crate::common::IDENTITY;

const SECTOR: u32 = 4096;
/// Time of a command and its transfer to the drive's write buffer.
const BUFFERED: Nanos = Nanos::from_micros(10);
/// Time of a program, for which a flush waits.
const PROGRAM: Nanos = Nanos::from_micros(660);
const STORE: Nanos = Nanos(9);
const PERSIST: Nanos = Nanos(430);

/// A drive with a write buffer, without data: a flush, and a write with FUA, wait for a program.
#[derive(Debug)]
struct TimedDrive {
    limits: Limits,
    memory: AddressSpace,
    executing: VecDeque<(Nanos, Completion)>,
    done: VecDeque<Completion>,
}

impl TimedDrive {
    fn new() -> TimedDrive {
        let limits = Limits {
            sector_bytes: SECTOR,
            sectors: 1 << 20,
            max_sectors: 32,
            optimal_sectors: 1,
            queue_depth: 64,
            volatile_cache: true,
            atomic: block::AtomicLimits::NONE,
        };
        TimedDrive {
            limits,
            memory: AddressSpace::default(),
            executing: VecDeque::new(),
            done: VecDeque::new(),
        }
    }
}

impl Component for TimedDrive {
    fn poll(&mut self, now: Nanos) -> bool {
        let before = self.executing.len();
        let due = |entry: &mut (Nanos, Completion)| entry.0 <= now;
        while let Some((_, completion)) = self.executing.pop_front_if(due) {
            self.done.push_back(completion);
        }
        self.executing.len() < before
    }

    fn deadline(&self) -> Nanos {
        self.executing.front().map_or(Nanos::MAX, |entry| entry.0)
    }
}

impl BlockDevice for TimedDrive {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false, visit_layers: {});

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        let is_durable = request.fua || request.op == Op::Flush;
        let time = BUFFERED.0 + if is_durable { PROGRAM.0 } else { 0 };
        let last = self.executing.back().map_or(Nanos::ZERO, |entry| entry.0);
        let due = Nanos(now.0 + time).max(last);
        let (tag, status) = (request.tag, Status::SUCCESS);
        self.executing.push_back((due, Completion { tag, status, result: 0 }));
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn set_waker(&mut self, _: Waker) {}
}

fn log(bytes: usize) -> WriteLog<TimedDrive, PersistentMemory> {
    let memory = PersistentMemory::new(bytes).unwrap();
    let config =
        WriteLogConfig { store: STORE, persist: PERSIST, ..WriteLogConfig::new(bytes, IDENTITY) };
    let mut opening = WriteLogOpening::new(TimedDrive::new(), memory, config).unwrap();
    let mut now = Nanos::ZERO;
    while !opening.poll(now).unwrap() {
        now = opening.deadline().max(now);
    }
    opening.into_log().unwrap()
}

/// Executes requests at once. Returns when each completes, in the order of completion.
fn run<D: BlockDevice>(device: &mut D, begin: Nanos, requests: &[Request]) -> Vec<Nanos> {
    let mut now = begin;
    for request in requests {
        device.submit(now, *request).unwrap();
    }
    let mut times = Vec::new();
    loop {
        while device.poll(now) {}
        while let Some(completion) = device.reap() {
            assert!(completion.status.is_success());
            times.push(now);
        }
        if times.len() == requests.len() {
            return times;
        }
        let next = device.deadline();
        assert!(next > now && next < Nanos::MAX, "the next event is at {next:?}");
        now = next;
    }
}

fn durable_write(lba: u64) -> Request {
    Request { fua: true, ..Request::write(lba, 1, Payload::BitBucket, 1) }
}

/// Time of a number of durable writes, one after the other.
fn time_of<D: BlockDevice>(device: &mut D, writes: u64) -> u64 {
    let begin = Nanos::from_secs(1);
    let last = (0..writes).fold(begin, |now, lba| run(device, now, &[durable_write(lba)])[0]);
    last.since(begin).0
}

/// A header and 4 KiB.
const LINES: u64 = 1 + 4096 / 64;

#[test]
fn a_durable_write_of_4_kib_costs_its_stores_and_one_persist() {
    const WRITES: u64 = 1_000;
    let in_log = time_of(&mut log(16 << 20), WRITES);
    assert_eq!(in_log, WRITES * (LINES * STORE.0 + PERSIST.0));
    let on_drive = time_of(&mut TimedDrive::new(), WRITES);
    assert_eq!(on_drive, WRITES * (BUFFERED.0 + PROGRAM.0));
    assert!(on_drive >= 8 * in_log, "{} times the rate", on_drive / in_log);
}

#[test]
fn a_write_and_a_flush_cost_as_much_as_a_durable_write() {
    let mut log = log(16 << 20);
    let begin = Nanos::from_secs(1);
    let written = run(&mut log, begin, &[Request::write(0, 1, Payload::BitBucket, 1)])[0];
    assert_eq!(written.since(begin).0, LINES * STORE.0);
    let flushed = run(&mut log, written, &[Request::flush(2)])[0];
    assert_eq!(flushed.since(written), PERSIST);
    let idle = run(&mut log, flushed, &[Request::flush(3)])[0];
    assert_eq!(idle, flushed, "all is persistent");
}

#[test]
fn writes_at_one_time_share_a_persist() {
    let mut log = log(16 << 20);
    let begin = Nanos::from_secs(1);
    let writes: Vec<Request> = (0..20).map(durable_write).collect();
    let times = run(&mut log, begin, &writes);
    let expected = Nanos(begin.0 + 20 * LINES * STORE.0 + PERSIST.0);
    assert_eq!(times, [expected; 20]);
}

#[test]
fn reads_of_logged_sectors_take_no_time_of_the_drive() {
    let mut log = log(16 << 20);
    let written = run(&mut log, Nanos::from_secs(1), &[durable_write(5)])[0];
    let read = |lba| [Request::read(lba, 1, Payload::BitBucket, 1)];
    assert_eq!(run(&mut log, written, &read(5)), [written]);
    assert_eq!(run(&mut log, written, &read(6)), [Nanos(written.0 + BUFFERED.0)]);
}

/// A runner that polls at deadlines only completes all requests of a mixed load.
#[test]
fn the_deadlines_of_a_mixed_load_are_complete() {
    let mut log = log(256 << 10);
    let (mut now, mut tag, mut outstanding) = (Nanos::from_secs(1), 0, 0);
    let mut rng = rng::Rng::new(1);
    while tag < 20_000 || outstanding > 0 {
        while tag < 20_000 && outstanding < 20 {
            let request = match rng.below(10) {
                0..=6 => Request::write(rng.below(500), 1, Payload::BitBucket, tag),
                7 => Request::write(1_000 + 32 * rng.below(20), 32, Payload::BitBucket, tag),
                8 => Request::flush(tag),
                _ => Request::read(rng.below(500), 1, Payload::BitBucket, tag),
            };
            log.submit(now, request).unwrap();
            (tag, outstanding) = (tag + 1, outstanding + 1);
        }
        // One poll does all that is possible.
        log.poll(now);
        while let Some(completion) = log.reap() {
            assert!(completion.status.is_success());
            outstanding -= 1;
        }
        let next = log.deadline();
        assert!(next < Nanos::MAX, "{outstanding} requests are outstanding: {log:?}");
        now = now.max(next);
    }
}
