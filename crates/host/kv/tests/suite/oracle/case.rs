//! [`Case`]: a seed with its drive, target and requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use kv::{
    Cursor, Key, Kv, KvAnswer, KvConfig, KvError, KvMutation, KvOp, KvOpenError, KvRequest,
    ValueBuffer,
};
use mem::{Iova, SharedRegion};
use nvme::Status;
use rng::Rng;
use time::{Component, Nanos};

use super::model::{Model, Version};
use testkit::open_channel_drive::{MockOpenChannelDrive, geometry};

const NOW: Nanos = Nanos(0);
/// Maximum number of outstanding requests, and of mutations of a batch.
const BUFFERS: usize = 16;
const CHANGES: u64 = 6;
/// Steps with progress between checks of all invariants. The other steps check the requests only:
/// a check of the index and the chunks after every step takes 6 times the CPU time of the test.
const CHECK_MOVES: u64 = 16;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) cuts: u64,
    pub(crate) compacted: u64,
    pub(crate) relocated: u64,
    pub(crate) large_value_chunks: u64,
    pub(crate) batches: u64,
    pub(crate) tombstones_dropped: u64,
    pub(crate) full: u64,
    pub(crate) failures: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.cuts += other.cuts;
        self.compacted += other.compacted;
        self.relocated += other.relocated;
        self.large_value_chunks += other.large_value_chunks;
        self.batches += other.batches;
        self.tombstones_dropped += other.tombstones_dropped;
        self.full += other.full;
        self.failures += other.failures;
    }
}

#[derive(Clone, Debug)]
enum SubmittedOp {
    /// Key, order, whether the key must exist, whether the completion implies durability.
    Change {
        key: Vec<u8>,
        order: u64,
        needs: bool,
        durable: bool,
    },
    /// Key, order, and whether the key must exist, for each mutation.
    Batch {
        members: Vec<(Vec<u8>, u64, bool)>,
        durable: bool,
    },
    Get {
        key: Vec<u8>,
        order: u64,
    },
    Exists {
        key: Vec<u8>,
        order: u64,
    },
    Sync {
        order: u64,
    },
}

pub(crate) struct Case {
    drive: MockOpenChannelDrive,
    kv: Kv,
    config: KvConfig,
    depth: u16,
    memory: Arc<SharedRegion>,
    at: Iova,
    buffer_bytes: usize,
    keys: Vec<Vec<u8>>,
    model: Model,
    outstanding: Vec<Option<SubmittedOp>>,
    rng: Rng,
    order: u64,
    value: u64,
    failing: bool,
    largest: usize,
    /// Whether there are only small values, of many keys.
    many: bool,
    /// Steps with progress.
    moves: u64,
    pub(crate) counts: Counts,
}

/// Fills memory with value `value`.
fn fill(memory: &SharedRegion, at: usize, value: u64, len: usize) {
    let mut bytes = vec![0; len];
    let mut rng = Rng::new(value);
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&rng.next_u64().to_le_bytes()[..word.len()]);
    }
    memory.write(at, &bytes);
}

fn is_value(memory: &SharedRegion, at: usize, value: u64, len: usize) -> bool {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes);
    let mut rng = Rng::new(value);
    bytes.chunks(8).all(|word| *word == rng.next_u64().to_le_bytes()[..word.len()])
}

pub(crate) fn open(
    drive: &mut MockOpenChannelDrive,
    config: KvConfig,
    depth: u16,
) -> Result<Kv, KvOpenError> {
    let (port, queue) = drive.connect(depth);
    let (info, chunks) = (drive.info(), drive.descriptors());
    let progress = &mut || {
        drive.fetch();
        for _ in 0..4 {
            drive.step();
        }
    };
    Kv::open(&info, &chunks, &|_| true, queue, port, config, progress, true)
}

impl Case {
    pub(crate) fn new(seed: u64) -> Case {
        let mut rng = Rng::new(seed ^ 0x6b76);
        let (channels, pus) = (1 + rng.below(3) as u32, 1 + rng.below(3) as u32);
        let unit = [1, 2, 4, 6][rng.below(4) as usize];
        let units = (16u32.div_ceil(unit)).max(4) + rng.below(12) as u32;
        let pair = [0, 0, 1, 2, 3][rng.below(5) as usize].min(units - 1) * unit;
        let chunks = 24 + rng.below(16) as u32;
        let mut geometry = geometry(channels, pus, chunks, unit * units, unit, pair);
        geometry.oob_bytes = [16, 16, 24, 64][rng.below(4) as usize];
        let config = KvConfig {
            active_pus: rng.below(u64::from((channels * pus).min(3)) + 1) as u32,
            over_provisioning: 0.05 + rng.f64() * 0.4,
            compactors: rng.below(3) as u32,
            queue_depth: 64,
            large_value_writes: rng.below(4) as u32,
            checksum_large_values: rng.chance(0.8),
        };
        let mut drive = MockOpenChannelDrive::new(geometry, true, seed ^ 0xf1a5);
        drive.options.reads_first = rng.chance(0.5);
        drive.options.mdts_sectors = [6, 16, 64][rng.below(3) as usize];
        for _ in 0..rng.below(3) {
            drive.spoil(rng.below(geometry.total_chunks()) as u32);
        }
        let failing = rng.chance(0.3);
        if failing {
            drive.faults.program_fail = [0.002, 0.005, 0.03][rng.below(3) as usize];
            drive.faults.erase_fail = [0.005, 0.02][rng.below(2) as usize];
        }
        let depth = [4, 16, 256][rng.below(3) as usize];
        let kv = open(&mut drive, config, depth).expect("a geometry that fits");
        let chunk = kv.layout().chunk_bytes as usize;
        let largest = 3 * chunk + 100;
        let buffer_bytes = largest + 1024 * CHANGES as usize;
        let memory = SharedRegion::anonymous(BUFFERS * buffer_bytes).unwrap();
        let at = kv.memory().register(&memory).unwrap();
        // In some cases small values fill the drive.
        let many = rng.chance(0.3);
        let keys = 8 + rng.below(if many { 1500 } else { 120 });
        let keys = (0..keys).map(|i| {
            let len = [4, 8, 24, 31, 255][rng.below(5) as usize];
            let mut key = format!("{i:04}").into_bytes();
            key.resize(len, b'a' + (i % 26) as u8);
            key
        });
        let keys = keys.collect();
        Case {
            drive,
            kv,
            config,
            depth,
            memory,
            at,
            buffer_bytes,
            keys,
            model: Model::default(),
            outstanding: vec![None; BUFFERS],
            rng,
            order: 1,
            value: 0,
            failing,
            largest,
            many,
            moves: 0,
            counts: Counts::default(),
        }
    }

    fn describe(&self) -> String {
        let (failing, cuts, stats) = (self.failing, self.counts.cuts, self.kv.stats());
        let (geometry, config, layout) = (self.drive.geometry, self.config, self.kv.layout());
        let state = self.kv.debug_state();
        format!(
            "(failing {failing}, {cuts} cuts, {state}\n{geometry:?}, {config:?}, {layout:?}, \
             {stats:?})"
        )
    }

    /// Runs a poll, some steps of the drive, and completions.
    fn step(&mut self, steps: u64) {
        let mut moved = self.kv.poll(NOW);
        while let Some(done) = self.kv.reap() {
            let asked = self.outstanding[done.tag as usize].take().expect("outstanding");
            self.on_complete(done.tag as usize, asked, done.result);
            moved = true;
        }
        moved |= self.drive.fetch();
        for _ in 0..steps {
            moved |= self.drive.step();
        }
        if moved {
            self.moves += 1;
            let checked = if self.moves.is_multiple_of(CHECK_MOVES) {
                self.kv.check_invariants()
            } else {
                self.kv.check_request_invariants()
            };
            assert!(checked.is_ok(), "{checked:?} {}", self.describe());
        }
        if !moved && steps > 0 && self.outstanding.iter().any(Option::is_some) {
            assert!(self.kv.poll(NOW), "stuck: {}", self.describe());
        }
    }

    fn wait_for(&mut self, mut until: impl FnMut(&Case) -> bool) {
        for _ in 0..1_000_000 {
            if until(self) {
                return;
            }
            self.step(1);
        }
        panic!("never ends: {}", self.describe());
    }

    fn quiesce(&mut self) {
        self.wait_for(|c| c.outstanding.iter().all(Option::is_none));
    }

    fn buffer(&mut self) -> usize {
        self.wait_for(|c| c.outstanding.iter().any(Option::is_none));
        self.outstanding.iter().position(Option::is_none).unwrap()
    }

    fn submit(&mut self, buffer: usize, op: KvOp, asked: SubmittedOp) {
        self.outstanding[buffer] = Some(asked);
        let request = KvRequest { op, tag: buffer as u64 };
        assert!(self.kv.submit(NOW, request).is_ok(), "room for a request");
    }

    fn key(&mut self) -> Vec<u8> {
        let all = self.keys.len() as u64;
        let span = if self.rng.chance(0.5) { all / 4 + 1 } else { all };
        self.keys[self.rng.below(span) as usize].clone()
    }

    fn len(&mut self) -> usize {
        let chunk = self.kv.layout().chunk_bytes as u64;
        let record = self.kv.layout().record_bytes as u64;
        let len = match self.rng.below(if self.many { 80 } else { 100 }) {
            0..4 => 0,
            4..60 => self.rng.below(300),
            60..80 => self.rng.below(record),
            80..88 => self.rng.below(3 * record),
            88..93 => chunk - 1 - self.rng.below(40),
            93..96 => chunk,
            96..98 => chunk + self.rng.below(chunk),
            _ => [2, 3][self.rng.below(2) as usize] * chunk + self.rng.below(100),
        };
        (len as usize).min(self.largest)
    }

    /// Draws a random mutation, with its value at `offset` of a buffer.
    fn draw(
        &mut self,
        offset: usize,
        len: usize,
        batch: Option<u64>,
    ) -> (KvMutation, Vec<u8>, u64, bool) {
        let bytes = self.key();
        let key = Key::new(&bytes).unwrap();
        self.order += 1;
        let order = self.order;
        let what = self.rng.below(100);
        if what < 22 {
            self.model.push(&bytes, Version { order, value: None, batch });
            return (KvMutation::Delete { key }, bytes, order, true);
        }
        self.value += 1;
        // Short values could be equal by chance, so all of them are equal.
        let number = if len < 8 { 0 } else { self.value };
        fill(&self.memory, offset, number, len);
        let version = Version { order, value: Some((number, len)), batch };
        self.model.push(&bytes, version);
        let value = ValueBuffer { at: self.at.offset(offset as u64), bytes: len as u64 };
        match what {
            22..45 => (KvMutation::Update { key, value }, bytes, order, true),
            _ => (KvMutation::Put { key, value }, bytes, order, false),
        }
    }

    fn change(&mut self) {
        let (buffer, len) = (self.buffer(), self.len());
        let (change, key, order, needs) = self.draw(buffer * self.buffer_bytes, len, None);
        let durable = self.rng.chance(0.1);
        let asked = SubmittedOp::Change { key, order, needs, durable };
        self.submit(buffer, KvOp::Mutation { mutation: change, durable }, asked);
    }

    fn batch(&mut self) {
        let buffer = self.buffer();
        self.order += 1;
        let (batch, mut members, mut changes) = (self.order, Vec::new(), Vec::new());
        for i in 0..1 + self.rng.below(CHANGES) {
            let len = [20, 200, 1000][self.rng.below(3) as usize];
            let len = self.rng.below(len) as usize;
            let offset = buffer * self.buffer_bytes + 1024 * i as usize;
            let (change, key, order, needs) = self.draw(offset, len, Some(batch));
            members.push((key, order, needs));
            changes.push(change);
        }
        let durable = self.rng.chance(0.2);
        let op = KvOp::Batch { mutations: changes.into(), durable };
        self.submit(buffer, op, SubmittedOp::Batch { members, durable });
    }

    fn get(&mut self, key: &[u8]) {
        let buffer = self.buffer();
        self.order += 1;
        let offset = buffer * self.buffer_bytes;
        let into =
            ValueBuffer { at: self.at.offset(offset as u64), bytes: self.buffer_bytes as u64 };
        self.memory.fill(offset, 64, 0xee);
        let asked = SubmittedOp::Get { key: key.to_vec(), order: self.order };
        self.submit(buffer, KvOp::Get { key: Key::new(key).unwrap(), into }, asked);
    }

    fn exists(&mut self) {
        let (buffer, key) = (self.buffer(), self.key());
        self.order += 1;
        let op = KvOp::Exists { key: Key::new(&key).unwrap() };
        self.submit(buffer, op, SubmittedOp::Exists { key, order: self.order });
    }

    fn sync(&mut self) {
        let buffer = self.buffer();
        self.order += 1;
        self.submit(buffer, KvOp::Sync, SubmittedOp::Sync { order: self.order });
    }

    /// Returns whether a mutation of `key` at `order` finds the key missing.
    fn is_missing(&self, key: &[u8], order: u64) -> bool {
        self.model.before(key, order).is_none()
    }

    fn on_complete(
        &mut self,
        buffer: usize,
        asked: SubmittedOp,
        result: Result<KvAnswer, KvError>,
    ) {
        let full = matches!(result, Err(KvError::Full | KvError::ReadOnly));
        let is_full = |c: &mut Case| {
            c.counts.full += 1;
            assert!(result != Err(KvError::ReadOnly) || c.failing, "{}", c.describe());
        };
        match asked {
            SubmittedOp::Change { key, order, needs, durable } => match result {
                Ok(_) => {
                    assert!(!needs || !self.is_missing(&key, order), "changed what is not there");
                    if durable {
                        self.model.durable(&key, order);
                    }
                }
                Err(KvError::NotFound) => {
                    assert!(needs && self.is_missing(&key, order), "{}", key.escape_ascii());
                    self.model.remove(&key, order);
                }
                Err(KvError::NotDurable) => assert!(self.failing && durable),
                Err(_) if full => {
                    is_full(self);
                    self.model.remove(&key, order);
                }
                Err(e) => panic!("{e} {}", self.describe()),
            },
            SubmittedOp::Batch { members, durable } => {
                let missing = members
                    .iter()
                    .any(|(key, order, needs)| *needs && self.is_missing(key, *order));
                match result {
                    Ok(_) => {
                        assert!(!missing, "a batch changed what is not there: {members:?}");
                        self.counts.batches += 1;
                        if durable {
                            members
                                .iter()
                                .for_each(|(key, order, _)| self.model.durable(key, *order));
                        }
                    }
                    Err(KvError::NotDurable) => assert!(self.failing && durable),
                    Err(e) => {
                        let too_large = matches!(e, KvError::BatchTooLarge { .. });
                        assert!(full || too_large || e == KvError::NotFound && missing, "{e}");
                        if full {
                            is_full(self);
                        }
                        for (key, order, _) in members {
                            self.model.remove(&key, order);
                        }
                    }
                }
            }
            SubmittedOp::Get { key, order } => {
                let name = key.escape_ascii();
                match (self.model.before(&key, order), result) {
                    (None, Err(KvError::NotFound)) => {}
                    (Some((value, len)), Ok(KvAnswer::Value(bytes))) => {
                        assert_eq!(bytes, len as u64, "{name}");
                        let at = buffer * self.buffer_bytes;
                        let right = is_value(&self.memory, at, value, len);
                        assert!(right, "{name} is not {value} of {len}: {}", self.describe());
                    }
                    (expected, found) => {
                        panic!("{name}: {expected:?}, but {found:?} {}", self.describe())
                    }
                }
            }
            SubmittedOp::Exists { key, order } => {
                let expected = self.model.before(&key, order).map(|(_, len)| len as u64);
                assert_eq!(result, Ok(KvAnswer::Exists(expected)), "{}", key.escape_ascii());
            }
            SubmittedOp::Sync { order } => match result {
                Ok(_) => self.model.all_durable(order),
                Err(e) => assert!(self.failing && e == KvError::NotDurable, "{e}"),
            },
        }
    }

    /// Compares the keys, also by prefix, when no request is outstanding.
    fn compare_keys(&mut self) {
        self.quiesce();
        for prefix in ["", "0", "001", "1", "x"] {
            let mut cursor = Cursor::prefix(prefix.as_bytes());
            let found: Vec<(Vec<u8>, u64)> = std::iter::from_fn(|| self.kv.next(&mut cursor))
                .map(|(key, bytes)| (key.as_bytes().to_vec(), bytes))
                .collect();
            let keys = self.model.keys.keys().filter(|k| k.starts_with(prefix.as_bytes()));
            let expected: Vec<(Vec<u8>, u64)> = keys
                .filter_map(|k| Some((k.clone(), self.model.before(k, u64::MAX)?.1 as u64)))
                .collect();
            assert_eq!(found, expected);
        }
        let audit = self.kv.check_invariants();
        assert_eq!(audit, Ok(()), "{}", self.describe());
    }

    fn collect_counts(&mut self) {
        let stats = self.kv.stats();
        self.counts.compacted += stats.chunks_compacted;
        self.counts.relocated += stats.relocated_bytes;
        self.counts.large_value_chunks += stats.large_value_chunks_written;
        self.counts.failures += stats.program_failures + stats.erase_failures;
        self.counts.tombstones_dropped += stats.deletes.saturating_sub(stats.tombstones);
    }

    fn cut_power(&mut self) {
        self.counts.cuts += 1;
        self.collect_counts();
        self.drive.cut_power();
        self.outstanding.fill(None);
        // Recoveries may be interrupted as well.
        for _ in 0..self.rng.below(3) {
            self.drive.faults.cut_after = Some(self.drive.stats.fetched + self.rng.below(60));
            match open(&mut self.drive, self.config, self.depth) {
                Ok(mut kv) => {
                    // So may their remaining work.
                    for _ in 0..self.rng.below(30) {
                        kv.poll(NOW);
                        self.drive.fetch();
                        self.drive.step();
                    }
                    assert_eq!(kv.check_invariants(), Ok(()), "{}", kv.debug_state());
                }
                Err(KvOpenError::Command { status: Status::POWER_LOSS, .. }) => {}
                Err(e) => panic!("{e}"),
            }
            self.drive.cut_power();
        }
        self.kv = open(&mut self.drive, self.config, self.depth).expect("a recovery");
        assert_eq!(self.kv.check_invariants(), Ok(()), "{}", self.describe());
        self.at = self.kv.memory().register(&self.memory).unwrap();
        let mut cursor = Cursor::default();
        let keys: Vec<(Key, u64)> = std::iter::from_fn(|| self.kv.next(&mut cursor)).collect();
        let mut found = BTreeMap::new();
        for (key, bytes) in keys {
            let value = self.identify(&key, bytes as usize);
            found.insert(key.as_bytes().to_vec(), (value, bytes as usize));
        }
        self.model.resolve(&found);
    }

    /// Determines which of its possible values a key has after a power cut.
    fn identify(&mut self, key: &Key, len: usize) -> u64 {
        let into = ValueBuffer { at: self.at, bytes: self.buffer_bytes as u64 };
        let op = KvOp::Get { key: key.clone(), into };
        assert!(self.kv.submit(NOW, KvRequest { op, tag: 0 }).is_ok());
        for _ in 0..1_000_000 {
            self.kv.poll(NOW);
            if let Some(done) = self.kv.reap() {
                assert_eq!(done.result, Ok(KvAnswer::Value(len as u64)), "{key:?}");
                let possible = self.model.possible(key.as_bytes());
                let is = |v: &&Version| {
                    v.value
                        .is_some_and(|(value, n)| n == len && is_value(&self.memory, 0, value, len))
                };
                let found = possible.iter().rfind(is);
                let value = found.unwrap_or_else(|| panic!("{key:?} is none of {possible:?}"));
                return value.value.unwrap().0;
            }
            self.drive.fetch();
            self.drive.step();
        }
        panic!("never read: {key:?}");
    }

    pub(crate) fn run(&mut self) {
        let requests = 150 + self.rng.below(if self.many { 5_000 } else { 1_200 });
        for _ in 0..requests {
            match self.rng.below(1000) {
                0..560 => self.change(),
                560..640 => self.batch(),
                640..680 => self.sync(),
                680..950 => {
                    let key = self.key();
                    self.get(&key);
                }
                950..984 => self.exists(),
                984..988 => self.compare_keys(),
                988..994 => {}
                _ if !self.many || self.rng.chance(0.2) => self.cut_power(),
                _ => {}
            }
            if self.rng.chance(0.6) {
                let steps = self.rng.below(8);
                self.step(steps);
            }
        }
        self.sync();
        self.compare_keys();
        for _ in 0..10_000 {
            self.step(1);
        }
        assert!(self.kv.is_idle(), "{}", self.describe());
        assert_eq!(self.kv.queue().spurious_completions(), 0);
        self.cut_power();
        let keys: Vec<Vec<u8>> = self.keys.clone();
        keys.iter().for_each(|key| self.get(key));
        self.compare_keys();
        self.collect_counts();
    }
}
