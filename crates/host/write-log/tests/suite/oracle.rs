//! Power cuts with torn lines at any store, persist and request, also while the log is replayed.
//!
//! Every request that was acknowledged as durable is there, and all other sectors are old or new. A
//! failing seed replays with `SLUICE_SEED=n cargo test -p sluice-write-log --test suite oracle`;
//! `SLUICE_CASES` sets the number of seeds.

// guarantee: B-50

use std::collections::BTreeMap;

use block::{BlockDevice, Completion, Op, Payload, Request};
use mem::{Iova, PersistentMemory};
use nvme::Status;
use rng::Rng;
use testkit::oracle::{Change, DeviceModel, SearchOrder, run_seeds};
use time::{Component, Nanos};
use write_log::{WriteLogConfig, WriteLogStats};

use crate::common::{Fuse, Parts, SECTOR, TestLog, config, parts_of, sector_of, value_of};

const SECTORS: u64 = 48;
const SLOT_SECTORS: u64 = 16;
const SLOTS: u64 = 8;
/// Power cuts of a seed, not counting those of openings.
const CUTS: u64 = 10;

#[derive(Debug)]
enum InFlight {
    Change(Change),
    Read(Vec<Option<u64>>),
    Flush(Vec<u64>),
}

#[derive(Debug)]
struct Sent {
    request: Request,
    kind: InFlight,
}

#[derive(Debug, Default)]
struct Outcome {
    cuts: u64,
    cuts_of_openings: u64,
    cuts_while_open: u64,
    lost_words: u64,
    failed: u64,
    closed: u64,
    stats: WriteLogStats,
}

struct Oracle {
    model: DeviceModel,
    rng: Rng,
    now: Nanos,
    in_flight: BTreeMap<u64, Sent>,
    /// Registered memory for the data of each slot.
    at: Iova,
    next_value: u64,
    outcome: Outcome,
}

impl Oracle {
    fn slot(&self, slot: u64) -> Iova {
        self.at.offset(slot * SLOT_SECTORS * SECTOR as u64)
    }

    /// Sends a random request that overlaps no other.
    fn submit(&mut self, log: &mut TestLog) {
        let Some(slot) = (0..SLOTS).find(|slot| !self.in_flight.contains_key(slot)) else { return };
        let kind = self.rng.below(20);
        let sectors = match kind {
            0..=8 => 1 + self.rng.below(4),
            9..=11 => 5 + self.rng.below(SLOT_SECTORS - 4),
            _ => 1 + self.rng.below(SLOT_SECTORS),
        };
        // A few sectors are changed often.
        let range = if self.rng.chance(0.5) { 20 } else { SECTORS };
        let lba = self.rng.below(range - sectors + 1);
        let sectors = sectors as u32;
        let data = Payload::Contiguous(self.slot(slot));
        let mut request = match kind {
            0..=11 => Request::write(lba, sectors, data, slot),
            12 => Request::discard(lba, sectors, slot),
            13 => Request::write_zeroes(lba, sectors, true, slot),
            14..=16 => Request::flush(slot),
            _ => Request::read(lba, sectors, data, slot),
        };
        request.fua = request.op == Op::Write && self.rng.chance(0.4);
        let end = lba + u64::from(sectors);
        let overlaps = |sent: &Sent| {
            let other = sent.request;
            other.op != Op::Flush && lba < other.lba + u64::from(other.sectors) && other.lba < end
        };
        if request.op != Op::Flush && self.in_flight.values().any(overlaps) {
            return;
        }
        let value = if request.op == Op::Write { self.next_value } else { 0 };
        if request.op == Op::Write {
            self.next_value += u64::from(sectors);
            for i in 0..u64::from(sectors) {
                let at = self.slot(slot).offset(i * SECTOR as u64);
                log.memory().write(at, &sector_of(value + i)).unwrap();
            }
        }
        if log.submit(self.now, request).is_err() {
            // The values are not used; the model has not seen them.
            return;
        }
        let kind = match request.op {
            Op::Flush => InFlight::Flush(self.model.flush_marks()),
            Op::Read => InFlight::Read(self.model.expected(lba, sectors)),
            _ => InFlight::Change(self.model.send(lba, sectors, value)),
        };
        self.in_flight.insert(slot, Sent { request, kind });
    }

    fn on_completion(&mut self, log: &TestLog, completion: Completion) {
        let Completion { tag, status, .. } = completion;
        let Sent { request, kind } = self.in_flight.remove(&tag).expect("a request in flight");
        self.outcome.failed += u64::from(!status.is_success());
        match kind {
            InFlight::Change(change) => {
                self.model.complete(change, status.is_success(), request.fua);
            }
            InFlight::Flush(marks) if status.is_success() => self.model.flushed(&marks),
            InFlight::Flush(_) => {}
            // The device lost its power.
            InFlight::Read(_) if status == Status::POWER_LOSS => {}
            InFlight::Read(expected) => {
                assert!(status.is_success(), "{request:?}: {status:?}");
                self.check_read(log, &request, &expected);
            }
        }
    }

    fn check_read(&mut self, log: &TestLog, request: &Request, expected: &[Option<u64>]) {
        let mut sector = [0; SECTOR];
        for (i, expected) in (0..).zip(expected) {
            log.memory()
                .read(self.slot(request.tag).offset(i * SECTOR as u64), &mut sector)
                .unwrap();
            let (lba, found) = (request.lba + i, value_of(&sector));
            if let Err(wrong) = self.model.observe(lba, found, *expected) {
                panic!("sector {lba} {wrong}, after {:?}", self.outcome);
            }
        }
    }

    /// Polls and handles completions. Returns whether there is power.
    fn step(&mut self, log: &mut TestLog, fuse: &Fuse) -> bool {
        self.now = Nanos(self.now.0 + self.rng.below(120));
        log.poll(self.now);
        if !fuse.has_power() {
            return false;
        }
        while let Some(completion) = log.reap() {
            self.on_completion(log, completion);
        }
        true
    }

    /// Cuts the power of device and memory while the log is open.
    fn cut_while_open(&mut self, log: &mut TestLog, memory: &PersistentMemory, fuse: &Fuse) {
        // Reads that have completed returned contents of before.
        while let Some(completion) = log.reap() {
            self.on_completion(log, completion);
        }
        fuse.cut_device();
        self.outcome.lost_words += memory.cut_power(&mut self.rng);
        self.outcome.cuts_while_open += 1;
        // Reads in flight may find old contents.
        self.model.cut_power();
        for sent in self.in_flight.values_mut() {
            if let InFlight::Read(expected) = &mut sent.kind {
                expected.fill(None);
            }
        }
    }

    /// Opens the log, perhaps with power cuts on the way, and checks all sectors.
    fn open(&mut self, mut parts: Parts, config: WriteLogConfig) -> TestLog {
        let fuse = parts.device.fuse.clone();
        let mut log = loop {
            let cut_after = self.rng.chance(0.4).then(|| self.rng.below(12));
            fuse.set(cut_after);
            match parts.open(config) {
                Ok(log) => break log,
                Err(cut) => {
                    parts = *cut;
                    self.outcome.lost_words += parts.cut_power(&mut self.rng);
                    self.outcome.cuts_of_openings += 1;
                }
            }
        };
        fuse.set(None);
        self.model.cut_power();
        for lba in (0..SECTORS).step_by(SLOT_SECTORS as usize) {
            let data = Payload::Contiguous(self.slot(0));
            let request = Request::read(lba, SLOT_SECTORS as u32, data, 0);
            let kind = InFlight::Read(self.model.expected(lba, SLOT_SECTORS as u32));
            while log.submit(self.now, request).is_err() {
                self.step(&mut log, &fuse);
            }
            self.in_flight.insert(0, Sent { request, kind });
            while !self.in_flight.is_empty() {
                self.step(&mut log, &fuse);
            }
        }
        assert_eq!(self.model.settle(), 0, "every sector was read");
        log
    }

    fn add(&mut self, log: &TestLog) {
        let (sum, stats) = (&mut self.outcome.stats, log.stats());
        sum.replayed_records += stats.replayed_records;
        sum.superseded_records += stats.superseded_records;
        sum.space_waits += stats.space_waits;
        sum.failed_destages += stats.failed_destages;
        sum.destaged_sectors += stats.destaged_sectors;
        sum.absorbed_flushes += stats.absorbed_flushes;
        sum.read_sectors += stats.read_sectors;
    }
}

fn run(seed: u64) -> Outcome {
    let mut rng = Rng::new(seed);
    let bytes = [4352, 6400, 16_384, 65_536][rng.below(4) as usize];
    let parts = Parts::new(SECTORS, bytes, seed ^ 0x5eed);
    let fails = rng.chance(0.2);
    let (_, at) = parts
        .device
        .memory()
        .allocate_registered((SLOTS * SLOT_SECTORS) as usize * SECTOR)
        .unwrap();
    let fuse = parts.device.fuse.clone();
    let memory = parts.memory.memory.clone();
    let loses_power = rng.chance(0.3);
    let config = config(bytes);
    let mut oracle = Oracle {
        model: DeviceModel::new(SECTORS, SearchOrder::OldestFirst),
        rng,
        now: Nanos::ZERO,
        in_flight: BTreeMap::new(),
        at,
        next_value: 1,
        outcome: Outcome::default(),
    };
    let mut log = oracle.open(parts, config);
    for cut in 0..CUTS {
        // Power fails at an operation, or between two polls.
        let steps = 10 + oracle.rng.below(150);
        let operations = oracle.rng.chance(0.6).then(|| oracle.rng.below(150));
        fuse.set(operations);
        for _ in 0..steps {
            for _ in 0..oracle.rng.below(3) {
                oracle.submit(&mut log);
            }
            if loses_power && fuse.has_power() && oracle.rng.chance(0.03) {
                oracle.cut_while_open(&mut log, &memory, &fuse);
            }
            if !oracle.step(&mut log, &fuse) {
                break;
            }
        }
        let is_closed = fuse.has_power() && oracle.rng.chance(0.05);
        oracle.add(&log);
        let mut parts = if is_closed && !fails {
            fuse.set(None);
            close(&mut oracle, log, &fuse)
        } else {
            parts_of(log)
        };
        oracle.outcome.cuts += 1;
        oracle.outcome.lost_words += parts.cut_power(&mut oracle.rng);
        oracle.in_flight.clear();
        let device = &mut parts.device.device;
        device.unwritable.clear();
        device.fail_flushes = false;
        log = oracle.open(parts, config);
        if fails && cut % 2 == 1 {
            // Tests may change the device only through its parts.
            let mut parts = parts_of(log);
            let device = &mut parts.device.device;
            device.unwritable.extend((0..3).map(|_| oracle.rng.below(SECTORS)));
            device.fail_flushes = oracle.rng.chance(0.3);
            oracle.outcome.lost_words += parts.cut_power(&mut oracle.rng);
            log = match parts.try_open(config) {
                Ok(Ok(log)) => log,
                // The label cannot be flushed.
                _ => return oracle.outcome,
            };
        }
    }
    oracle.outcome
}

/// Completes all requests and closes the log.
fn close(oracle: &mut Oracle, mut log: TestLog, fuse: &Fuse) -> Parts {
    while !oracle.in_flight.is_empty() {
        oracle.step(&mut log, fuse);
    }
    log.close();
    while log.close_result().is_none() {
        oracle.step(&mut log, fuse);
    }
    assert_eq!(log.close_result(), Some(Ok(())));
    oracle.outcome.closed += 1;
    // All data is on the device.
    let marks = oracle.model.flush_marks();
    oracle.model.flushed(&marks);
    parts_of(log)
}

#[test]
fn acknowledged_durable_writes_survive_cuts_with_torn_lines() {
    let replay = "cargo test -p sluice-write-log --test suite oracle";
    let run = run_seeds(1_000, &[], replay, run);
    if run.is_single {
        return;
    }
    let sum = |count: fn(&Outcome) -> u64| run.results.iter().map(count).sum::<u64>();
    let counts = [
        ("cuts", sum(|o| o.cuts)),
        ("cuts of openings", sum(|o| o.cuts_of_openings)),
        ("cuts while open", sum(|o| o.cuts_while_open)),
        ("lost words", sum(|o| o.lost_words)),
        ("failed requests", sum(|o| o.failed)),
        ("closed logs", sum(|o| o.closed)),
        ("replayed records", sum(|o| o.stats.replayed_records)),
        ("superseded records", sum(|o| o.stats.superseded_records)),
        ("waits for space", sum(|o| o.stats.space_waits)),
        ("failed destages", sum(|o| o.stats.failed_destages)),
        ("destaged sectors", sum(|o| o.stats.destaged_sectors)),
        ("absorbed flushes", sum(|o| o.stats.absorbed_flushes)),
        ("sectors read from the log", sum(|o| o.stats.read_sectors)),
    ];
    println!("{counts:?}");
    for (what, count) in counts {
        assert!(count > 0, "{what}");
    }
    let cases = run.results.len() as u64;
    assert!(cases < 1_000 || counts[0].1 + counts[1].1 >= 10_000, "{counts:?}");
}
