//! A flush on one core's queue covers the writes that were answered before on every other core's: on the queue
//! pairs of a drive, beneath `sq` and `mq`, and on shards.
//!
//! Writes are answered on random cores, a flush is answered on one core, more writes follow, and the power is cut.
//! A server announces the property to clients whose connections are on different cores (NBD, `CAN_MULTI_CONN`).
//!
//! `SLUICE_CASES` sets the number of seeds per stack, `SLUICE_SEED` a single one.

// guarantee: B-19

use std::path::Path;

use block::notify::{CompletionMethod, CompletionPolicy, NotifyConfig};
use block::{BlockDevice, Payload, Request};
use controller::Controller;
use mem::{Iova, SharedRegion};
use rng::Rng;
use scenario::Scenario;
use sluice_stack::{CoreQueues, Notification, Stack};
use std::sync::Arc;
use time::{Component, Nanos};

const SECTOR: usize = 4096;
/// Sectors that the cases write.
const SPAN: u64 = 512;
/// Maximum number of outstanding writes, and sectors of one.
const WRITES: usize = 24;
const LONGEST: u64 = 4;
/// Tags of flushes follow those of writes.
const FLUSH: u64 = 1000;

/// Completions arrive without delay.
const IMMEDIATE: Notification = Notification::Virtual(NotifyConfig {
    policy: CompletionPolicy { method: CompletionMethod::Poll, poll_interval: None },
    interrupt_cost: Nanos::ZERO,
    finish_cost: Nanos::ZERO,
});

/// A drive with a volatile write buffer in a file, with paired pages.
const DRIVE: &str = "[drive]\npreset = \"femu-default\"\ndata = \"file\"\npath = \"drive.img\"\n\
    cell = \"mlc\"\npaired_page_distance = 2\n\
    geometry = { channels = 2, pus = 4, chunks = 48, pages = 32 }\n\
    timing = { read = \"10us\", program = \"300us\", erase = \"1ms\" }\n";
const VOLATILE: &str = "write_buffer = { kind = \"volatile\", size = \"2M\" }\n";

fn drive() -> String {
    DRIVE.to_owned() + VOLATILE
}

fn target(keys: &str) -> String {
    format!("{DRIVE}personality = \"open-channel\"\n[target]\n{keys}")
}

fn pblk(shards: u32) -> String {
    target(&format!("kind = \"pblk\"\nshards = {shards}\n"))
}

fn layer(drive: &str, keys: &str) -> String {
    format!("{drive}[path]\n{keys}")
}

/// The queues of a stack, as the servers have them: each is a device of its own.
struct Case {
    cores: Vec<CoreQueues>,
    drive: Controller,
    memory: Vec<(Arc<SharedRegion>, Iova)>,
    now: Nanos,
    rng: Rng,
    /// Sectors and value of each outstanding write, by tag.
    writes: Vec<Option<(u64, u64, u64)>>,
    /// The flush that is waited for.
    flush: Option<u64>,
    /// By sector: the last value sent, answered, and flushed. Values grow.
    sent: Vec<u64>,
    answered: Vec<u64>,
    flushed: Vec<u64>,
    next: u64,
}

fn open(dir: &Path, text: &str) -> (Stack, Scenario) {
    let scenario = Scenario::parse(&dir.join("s.toml"), text).unwrap_or_else(|e| panic!("{e}"));
    let stack = Stack::build(&scenario.drives[0], None).unwrap();
    (stack, scenario)
}

impl Case {
    fn new(dir: &Path, text: &str, seed: u64) -> Case {
        let (stack, scenario) = open(dir, text);
        let stack = match &scenario.path.block_layer {
            Some(layer) => stack.with_block_layer(layer, Nanos::ZERO, IMMEDIATE).unwrap(),
            None => stack,
        };
        let Stack { device, drive, .. } = stack;
        let cores = device.split();
        let bytes = WRITES * LONGEST as usize * SECTOR;
        let memory = cores.iter().map(|core| core.memory().allocate_registered(bytes).unwrap());
        let none = vec![0; SPAN as usize];
        Case {
            memory: memory.collect(),
            cores,
            drive,
            now: Nanos::ZERO,
            rng: Rng::new(seed),
            writes: vec![None; WRITES],
            flush: None,
            sent: none.clone(),
            answered: none.clone(),
            flushed: none,
            next: 1,
        }
    }

    fn core(&mut self) -> usize {
        self.rng.below(self.cores.len() as u64) as usize
    }

    /// Submits a write of a new value to sectors that no outstanding write has.
    fn write(&mut self) {
        let Some(tag) = self.writes.iter().position(Option::is_none) else { return };
        let sectors = 1 + self.rng.below(LONGEST);
        let lba = self.rng.below(SPAN - LONGEST);
        let overlaps = |w: &(u64, u64, u64)| w.0 < lba + sectors && lba < w.0 + w.1;
        if self.writes.iter().flatten().any(overlaps) {
            return;
        }
        let (core, value) = (self.core(), self.next);
        self.next += 1;
        let offset = tag * LONGEST as usize * SECTOR;
        let (region, at) = &self.memory[core];
        for word in 0..sectors as usize * SECTOR / 8 {
            region.write(offset + word * 8, &value.to_le_bytes());
        }
        let data = Payload::Contiguous(at.offset(offset as u64));
        let request = Request::write(lba, sectors as u32, data, tag as u64);
        self.cores[core].submit(self.now, request).expect("room for a request");
        self.writes[tag] = Some((lba, sectors, value));
        self.sent[lba as usize..][..sectors as usize].fill(value);
    }

    fn submit_flush(&mut self) -> u64 {
        let core = self.core();
        self.next += 1;
        let tag = FLUSH + self.next;
        self.cores[core].submit(self.now, Request::flush(tag)).expect("room for a flush");
        tag
    }

    /// Polls cores in any order, and the drive; advances the time if nothing moved.
    fn step(&mut self) {
        let count = self.cores.len();
        let first = self.core();
        let (mut moved, mut skipped) = (false, false);
        for core in (0..count).map(|i| (first + i) % count) {
            if count > 1 && self.rng.chance(0.2) {
                skipped = true;
                continue;
            }
            moved |= self.cores[core].poll(self.now);
            while let Some(done) = self.cores[core].reap() {
                moved = true;
                assert!(done.status.is_success(), "{}", done.status);
                if self.flush == Some(done.tag) {
                    self.flush = None;
                }
                if let Some(write) = self.writes.get_mut(done.tag as usize) {
                    let (lba, sectors, value) = write.take().expect("outstanding");
                    self.answered[lba as usize..][..sectors as usize].fill(value);
                }
            }
        }
        moved |= self.drive.poll(self.now);
        if !moved && !skipped {
            let cores = self.cores.iter().map(Component::deadline).min().unwrap_or(Nanos::MAX);
            let due = self.drive.deadline().min(cores);
            assert!(due > self.now, "a deadline in the past: {due:?}");
            if due < Nanos::MAX {
                self.now = due;
            }
        }
    }

    fn wait_for(&mut self, done: impl Fn(&Case) -> bool) {
        for _ in 0..1_000_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("never ends: {:?}, flush {:?}", self.writes, self.flush);
    }

    /// Writes on all cores until everything is answered, and flushes on one. A flush of before may be
    /// in flight then, which must not serve this one.
    fn write_and_flush(&mut self, flushes: bool) {
        for _ in 0..1 + self.rng.below(40) {
            self.write();
            if flushes && self.rng.chance(0.1) {
                let _ = self.submit_flush();
            }
            if self.rng.chance(0.5) {
                self.step();
            }
        }
        self.wait_for(|case| case.writes.iter().all(Option::is_none));
        if flushes {
            self.flush = Some(self.submit_flush());
            self.wait_for(|case| case.flush.is_none());
        }
        self.flushed.clone_from(&self.answered);
    }

    /// Cuts the power while writes are outstanding. Returns the number of sectors whose flushed value
    /// is gone.
    fn cut_power(mut self, dir: &Path, text: &str) -> usize {
        for _ in 0..self.rng.below(12) {
            self.write();
            self.step();
        }
        let Case { cores, drive, flushed, sent, .. } = self;
        drop(cores);
        drop(drive.power_cut());
        let (stack, _) = open(dir, text);
        let Stack { mut device, mut drive, .. } = stack;
        let (region, at) = device.memory().allocate_registered(SECTOR).unwrap();
        let (mut now, mut lost) = (Nanos::ZERO, 0);
        for lba in 0..SPAN {
            let request = Request::read(lba, 1, Payload::Contiguous(at), 0);
            device.submit(now, request).unwrap();
            let done = loop {
                let moved = device.poll(now) | drive.poll(now);
                if let Some(done) = device.reap() {
                    break done;
                }
                if !moved {
                    now = drive.deadline().min(device.deadline());
                }
            };
            assert!(done.status.is_success(), "sector {lba}: {}", done.status);
            let mut bytes = [0; SECTOR];
            region.read(0, &mut bytes);
            let (words, _) = bytes.as_chunks::<8>();
            let value = u64::from_le_bytes(words[0]);
            assert!(words.iter().all(|word| *word == words[0]), "sector {lba} is torn");
            assert!(value <= sent[lba as usize], "sector {lba}: {value} was never sent");
            lost += usize::from(value < flushed[lba as usize]);
        }
        lost
    }
}

/// Runs the case of a seed; returns the number of flushed sectors that were lost. Without `flushes`,
/// no flush is sent, as if each had succeeded without effect.
fn run(text: &str, seed: u64, flushes: bool) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let mut case = Case::new(dir.path(), text, seed);
    for _ in 0..1 + case.rng.below(5) {
        case.write_and_flush(flushes);
    }
    case.cut_power(dir.path(), text)
}

/// Runs seeds on a stack with `cores` queues: nothing flushed is lost, and without flushes something
/// is, so that a lost flush would be found.
fn covers_all_cores(text: &str, cores: usize) {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let first: u64 = number("SLUICE_SEED").unwrap_or(0);
    let count =
        if number("SLUICE_SEED").is_some() { 1 } else { number("SLUICE_CASES").unwrap_or(12) };
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Case::new(dir.path(), text, 0).cores.len(), cores, "{text}");
    let mut unflushed = 0;
    for seed in first..first + count {
        let lost = run(text, seed, true);
        assert_eq!(lost, 0, "sectors lost, SLUICE_SEED={seed}: {text}");
        unflushed += run(text, seed, false);
    }
    assert!(unflushed > 0, "without flushes nothing was lost: {text}");
}

#[test]
fn on_the_queue_pairs_of_a_drive() {
    covers_all_cores(&drive(), 1);
    covers_all_cores(&layer(&drive(), "queue_model = \"sq\"\ncores = 3\n"), 3);
    covers_all_cores(&layer(&drive(), "queue_model = \"mq\"\ncores = 4\nqueues = 4\n"), 4);
    covers_all_cores(&layer(&drive(), "queue_model = \"mq\"\ncores = 4\nqueues = 2\n"), 4);
    let one_staging = "queue_model = \"mq\"\nstaging = \"global\"\ncores = 4\nqueues = 4\n";
    covers_all_cores(&layer(&drive(), one_staging), 4);
}

#[test]
fn on_a_target_beneath_a_block_layer() {
    let rrpc = target("kind = \"rrpc\"\n").replace("[target]", "device_l2p = true\n[target]");
    for text in [pblk(1), rrpc] {
        covers_all_cores(&layer(&text, "queue_model = \"sq\"\ncores = 3\n"), 3);
        covers_all_cores(&layer(&text, "queue_model = \"mq\"\ncores = 3\n"), 3);
    }
}

#[test]
fn on_shards_with_and_without_a_block_layer() {
    covers_all_cores(&pblk(2), 2);
    covers_all_cores(&pblk(4), 4);
    covers_all_cores(&layer(&pblk(4), "queue_model = \"mq\"\ncores = 4\n"), 4);
    covers_all_cores(&layer(&pblk(4), "queue_model = \"mq\"\ncores = 3\nqueues = 2\n"), 3);
    covers_all_cores(&layer(&pblk(2), "queue_model = \"sq\"\ncores = 3\n"), 3);
    let one_staging = "queue_model = \"mq\"\nstaging = \"global\"\ncores = 4\nqueues = 2\n";
    covers_all_cores(&layer(&pblk(2), one_staging), 4);
}
