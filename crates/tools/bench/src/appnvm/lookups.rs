//! Lookups in a B+tree of four levels, in real time: by the rules of a drive (`demo/rules/btree.rules`), and
//! by the host, which reads each node itself. The media take 5 µs for a read.
//!
//! A lookup of the host takes `5 * (tR + R)` for its nodes and the value, one by rules `5 * tR + R`, where `R` is
//! the time from a completion to the next read: about a microsecond if the host polls, so that little is to be
//! gained, and the time of a wake-up if it sleeps. So the bound is for hosts that sleep.

use event::RealClock;
use nvme::{RuleCommand, RuleCommandKind};
use open::{OpenOptions, open_scenario};
use rng::Rng;
use time::Nanos;
use user_io::{Buffer, Handle, IoDevice, Queue, QueueConfig, RuleQueue, WaitMode};

use super::{BENCH, scenario_of, setup};
use crate::samples::interleaved;
use crate::{BenchError, Measurement, RunLength, Sink};
use block::{Payload, Request};

/// Rate of lookups by rules as a multiple of those of the host.
const FASTER: f64 = 2.5;

const DRIVE: &str = "[drive]\npreset = \"femu-default\"\npersonality = \"rules\"\n\
    rules.program = \"bench.rules\"\nftl.over_provisioning = 0.25\n\
    geometry = { channels = 8, pus = 8, chunks = 16, pages = 64 }\n\
    timing = { read = \"5us\", program = 0, erase = 0, channel = 0 }\n";

/// The program. Its application has other parallel units.
const PROGRAM: &str = include_str!("../../../../../demo/rules/btree.rules");
const UNITS: [&str; 2] = ["units = 64-127", "units = 0-63"];

const SECTOR: usize = 4096;
/// Entries that a node can have, and has.
const CAPACITY: usize = 254;
const FANOUT: u64 = 16;
const DEPTH: u32 = 4;
/// Sectors that are written behind the tree.
const FILLERS: u64 = 8192;

/// A tree of the keys below [`Tree::keys`], in the sectors behind those of the values. The value of a key is
/// in sector `key % values`, and begins with the number of that sector.
#[derive(Clone, Copy, Debug)]
struct Tree {
    keys: u64,
    values: u64,
    root: u64,
}

/// Returns the bytes of a node with these keys and children.
fn node(is_leaf: bool, entries: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR];
    bytes[0] = u8::from(is_leaf);
    bytes[2] = entries.len() as u8;
    for (at, (key, child)) in entries.iter().enumerate() {
        let (key_at, child_at) = (8 + 8 * at, 8 + 8 * (CAPACITY + at));
        bytes[key_at..key_at + 8].copy_from_slice(&key.to_le_bytes());
        bytes[child_at..child_at + 8].copy_from_slice(&child.to_le_bytes());
    }
    bytes
}

/// Returns the word at a place of a buffer.
fn word(buffer: &Buffer, at: usize) -> u64 {
    let mut bytes = [0; 8];
    buffer.read(at, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// The step after a node.
enum NodeStep {
    /// The child is a node.
    Node(u64),
    /// The child is a value.
    Value(u64),
}

/// Returns the step from a node for a key, which the tree has.
fn step(buffer: &Buffer, key: u64) -> NodeStep {
    let header = word(buffer, 0);
    let (is_leaf, count) = (header & 0xffff == 1, (header >> 16 & 0xffff) as usize);
    let (mut low, mut high) = (0, count.clamp(1, CAPACITY));
    while high - low > 1 {
        let middle = (low + high) / 2;
        if word(buffer, 8 + 8 * middle) <= key {
            low = middle;
        } else {
            high = middle;
        }
    }
    let child = word(buffer, 8 + 8 * (CAPACITY + low));
    if is_leaf { NodeStep::Value(child) } else { NodeStep::Node(child) }
}

impl Tree {
    /// Writes values and nodes to the start of a device.
    fn write(handle: &mut Handle<Queue>, buffer: &Buffer) -> Result<Tree, BenchError> {
        let (keys, values) = (FANOUT.pow(DEPTH), FANOUT.pow(DEPTH - 1));
        let mut store = |lba: u64, bytes: &[u8]| {
            buffer.write(0, bytes);
            handle.write(lba, buffer, false).map_err(setup)
        };
        for value in 0..values {
            store(value, &[value.to_le_bytes(); SECTOR / 8].concat())?;
        }
        let mut level: Vec<(u64, u64)> = (0..keys).map(|key| (key, key % values)).collect();
        let mut next = values;
        for depth in 0..DEPTH {
            let mut above = Vec::new();
            for entries in level.chunks(FANOUT as usize) {
                store(next, &node(depth == 0, entries))?;
                above.push((entries[0].0, next));
                next += 1;
            }
            level = above;
        }
        // The write buffer has none of them any more.
        for filler in 0..FILLERS {
            store(next + filler, &[0; SECTOR])?;
        }
        handle.flush().map_err(setup)?;
        Ok(Tree { keys, values, root: next - 1 })
    }

    /// Checks that a buffer has the value of a key.
    fn check(&self, buffer: &Buffer, key: u64) -> Result<(), BenchError> {
        let (found, expected) = (word(buffer, SECTOR - 8), key % self.values);
        match found == expected {
            true => Ok(()),
            false => Err(setup(format!("key {key}: sector {found}, expected {expected}"))),
        }
    }
}

/// A closed loop of lookups with a fixed number of them in flight.
struct LookupLoad<'a> {
    tree: Tree,
    buffers: &'a [Buffer],
    /// By number of the buffer, the key that is looked up.
    keys: Vec<u64>,
    rng: Rng,
    time: Nanos,
}

impl LookupLoad<'_> {
    fn next_key(&mut self, slot: usize) -> u64 {
        self.keys[slot] = self.rng.below(self.tree.keys);
        self.keys[slot]
    }

    /// Looks keys up by reading node after node. Returns lookups per second.
    fn run_on_host(mut self, handle: &mut Handle<Queue>) -> Result<f64, BenchError> {
        let clock = RealClock::start();
        let buffers = self.buffers;
        let read = |lba, slot: usize| {
            Request::read(lba, 1, Payload::Contiguous(buffers[slot].iova()), slot as u64)
        };
        let mut is_value = vec![false; buffers.len()];
        for slot in 0..buffers.len() {
            self.next_key(slot);
            handle.submit(read(self.tree.root, slot)).map_err(setup)?;
        }
        let mut lookups = 0;
        while let Some(done) = handle.wait() {
            if !done.status.is_success() {
                return Err(BenchError::Status(done.status));
            }
            let slot = done.tag as usize;
            let lba = if is_value[slot] {
                self.tree.check(&buffers[slot], self.keys[slot])?;
                lookups += 1;
                if clock.now() >= self.time {
                    continue;
                }
                self.next_key(slot);
                is_value[slot] = false;
                self.tree.root
            } else {
                match step(&buffers[slot], self.keys[slot]) {
                    NodeStep::Node(lba) => lba,
                    NodeStep::Value(lba) => {
                        is_value[slot] = true;
                        lba
                    }
                }
            };
            handle.submit(read(lba, slot)).map_err(setup)?;
        }
        Ok(f64::from(lookups) / clock.now().as_secs_f64())
    }

    /// Has the rules of the drive look keys up. Returns lookups per second.
    fn run_by_rules(mut self, queue: &mut RuleQueue) -> Result<f64, BenchError> {
        let clock = RealClock::start();
        let root = self.tree.root;
        let get = |key| {
            let command = RuleCommand::new(RuleCommandKind::Get, 0, 1);
            RuleCommand { arg0: key, arg1: root, ..command }
        };
        let buffers = self.buffers;
        for (slot, buffer) in buffers.iter().enumerate() {
            let key = self.next_key(slot);
            queue.submit(get(key), Some(buffer), slot as u64).map_err(setup)?;
        }
        let (mut lookups, mut outstanding) = (0, buffers.len());
        while outstanding > 0 {
            let Some(done) = queue.wait_until(Nanos::MAX) else {
                return Err(BenchError::Thread("the drive"));
            };
            if !done.status.is_success() {
                return Err(BenchError::Status(done.status));
            }
            let slot = done.user as usize;
            self.tree.check(&buffers[slot], self.keys[slot])?;
            lookups += 1;
            if clock.now() >= self.time {
                outstanding -= 1;
                continue;
            }
            let key = self.next_key(slot);
            queue.submit(get(key), Some(&buffers[slot]), done.user).map_err(setup)?;
        }
        Ok(f64::from(lookups) / clock.now().as_secs_f64())
    }
}

/// The queues of a host: one for its own reads, and one for commands to the rules.
struct HostQueues {
    name: &'static str,
    reads: Handle<Queue>,
    rules: RuleQueue,
}

impl HostQueues {
    /// Creates queues of a host that sleeps while it waits, or polls.
    fn new(device: &IoDevice, sleeps: bool) -> Result<HostQueues, BenchError> {
        let config = QueueConfig { depth: 257, interrupts: sleeps };
        let queue = device.create_queue(config).map_err(setup)?;
        let mut reads = Handle::new(device, queue).map_err(setup)?;
        let (name, mode) = match sleeps {
            true => ("sleeping", WaitMode::Interrupt),
            false => ("polling", WaitMode::Poll),
        };
        reads.set_wait(mode).map_err(setup)?;
        Ok(HostQueues { name, reads, rules: device.rule_queue(config).map_err(setup)? })
    }
}

/// Measures lookups: one at a time of a host that sleeps and of one that polls, and many at a time.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub(super) fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let scenario = scenario_of(DRIVE, Some(&PROGRAM.replace(UNITS[0], UNITS[1])))?;
    let (device, _) = open_scenario(&scenario, None, &OpenOptions::default()).map_err(setup)?;
    let mut polling = HostQueues::new(&device, false)?;
    let mut sleeping = HostQueues::new(&device, true)?;
    let buffer = device.buffer(SECTOR).map_err(setup)?;
    let tree = Tree::write(&mut polling.reads, &buffer)?;
    measure(length, &device, tree, 1, &mut sleeping, sink)?;
    for depth in [1, 16, 128] {
        measure(length, &device, tree, depth, &mut polling, sink)?;
    }
    Ok(())
}

/// Measures lookups with `depth` of them in flight.
fn measure(
    length: RunLength,
    device: &IoDevice,
    tree: Tree,
    depth: usize,
    queues: &mut HostQueues,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let buffers: Result<Vec<Buffer>, _> = (0..depth).map(|_| device.buffer(SECTOR)).collect();
    let buffers = buffers.map_err(setup)?;
    let time = length.choose(Nanos::from_millis(500), Nanos::from_millis(5));
    let load = || LookupLoad {
        tree,
        buffers: &buffers,
        keys: vec![0; depth],
        rng: Rng::new(depth as u64),
        time,
    };
    let HostQueues { name, reads, rules } = queues;
    let rounds = length.choose(5, 1);
    let [by_host, by_rules] = interleaved(
        rounds,
        [&mut || load().run_on_host(reads), &mut || load().run_by_rules(rules)],
    )?;
    let case = |by: &str| format!("lookups by {by}, {name} host, QD {depth}");
    for (by, samples) in [("reads", &by_host), ("rules", &by_rules)] {
        sink.push(Measurement::median(BENCH, case(by), "rate", samples, "1/s"))?;
    }
    let ratio = by_rules.median() / by_host.median();
    let row = Measurement::new(BENCH, case("rules"), "multiple_of_reads", ratio, "");
    sink.push(match length {
        RunLength::Full if *name == "sleeping" => row.at_least(FASTER),
        _ => row,
    })
}
