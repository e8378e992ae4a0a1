//! Counts the instructions of requests to a key-value target, by single steps of the processor, and
//! compares them with those that a modeled machine charges for the target's work ([`KvWork`]).
//!
//! | case | requests |
//! |---|---|
//! | `get-64`, `get-4096` | reads of values of so many bytes, 32 at a time, from flash |
//! | `get-alone` | reads of 4,096 bytes, one at a time |
//! | `put-64`, `put-4096` | updates of such values, 32 at a time |
//! | `put-alone` | updates of 4,096 bytes, one at a time |
//! | `compact` | updates of 4,096 bytes on a full device, for which compaction relocates records |
//!
//! It fails if a request of a case has 3 % more or fewer instructions than are charged, or if a kind
//! of work occurs in no case.
//!
//! `cargo bench --package sluice-kv --bench steps`

use std::process::ExitCode;

use kv::{Key, Kv, KvConfig, KvRequest, KvWork, ValueBuffer};
use mem::SharedRegion;
use nvme::Geometry;
use platform::Step;
use rng::Rng;
use testkit::instructions::steps::{self, OUTSIDE};
use testkit::instructions::{Failed, RepeatCount};
use testkit::open_channel_drive::MockOpenChannelDrive;
use time::{Component, Nanos};

/// The mark of the target's code.
const HOST: u8 = 1;

/// Largest difference between the counted and the charged instructions of a request.
const TOLERANCE: f64 = 0.03;

/// A case.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Whether its requests are updates.
    updates: bool,
    value_bytes: u64,
    /// Requests at a time.
    depth: u64,
    /// Percent of the capacity that the values fill.
    percent: u64,
    /// Whether requests are counted from where compaction relocates records.
    compacts: bool,
    /// Requests that are counted.
    counted: u64,
}

const fn case(name: &'static str, updates: bool, value_bytes: u64, depth: u64) -> Case {
    Case { name, updates, value_bytes, depth, percent: 25, compacts: false, counted: 64 }
}

const CASES: [Case; 7] = [
    case("get-64", false, 64, 32),
    case("get-4096", false, 4096, 32),
    case("get-alone", false, 4096, 1),
    case("put-64", true, 64, 32),
    case("put-4096", true, 4096, 32),
    case("put-alone", true, 4096, 1),
    Case { percent: 80, compacts: true, counted: 512, ..case("compact", true, 4096, 32) },
];

/// A device of 8 parallel units and 24 MB.
const GEOMETRY: Geometry = Geometry {
    groups: 4,
    pus: 2,
    chunks: 12,
    sectors: 64,
    sector_bytes: 4096,
    oob_bytes: 16,
    ws_min: 4,
    ws_opt: 4,
    mw_cunits: 8,
};

/// A target and its drive.
struct Bench {
    drive: MockOpenChannelDrive,
    kv: Kv,
    value: ValueBuffer,
    keys: Vec<Key>,
}

impl Bench {
    fn new(case: &Case) -> Result<Bench, Failed> {
        let mut drive = MockOpenChannelDrive::new(GEOMETRY, true, 1);
        let (port, queue) = drive.connect(256);
        let (info, chunks) = (drive.info(), drive.descriptors());
        let config = KvConfig::default();
        let kv = Kv::open(&info, &chunks, &|_| true, queue, port, config, &mut || {}, true)?;
        let memory = SharedRegion::anonymous(4096)?;
        let value = ValueBuffer { at: kv.memory().register(&memory)?, bytes: case.value_bytes };
        Ok(Bench { drive, kv, value, keys: Vec::new() })
    }

    /// Runs requests together until all have completed.
    fn batch(&mut self, requests: Vec<KvRequest>) -> Result<(), Failed> {
        let mut left = requests.len();
        steps::mark(HOST);
        for request in requests {
            self.kv.submit(Nanos(1), request).map_err(|full| format!("{full:?}"))?;
        }
        self.kv.poll(Nanos(1));
        while left > 0 {
            while let Some(done) = self.kv.reap() {
                done.result?;
                left -= 1;
            }
            if left > 0 {
                steps::mark(OUTSIDE);
                self.run_drive();
                steps::mark(HOST);
                self.kv.poll(Nanos(1));
            }
        }
        steps::mark(OUTSIDE);
        Ok(())
    }

    /// Runs the drive until nothing is outstanding.
    fn run_drive(&mut self) {
        while self.drive.fetch() || self.drive.outstanding() > 0 {
            self.drive.step();
        }
    }

    fn run(&mut self, case: &Case, begin: &mut dyn FnMut()) -> Result<KvWork, Failed> {
        let (mut rng, value) = (Rng::new(1), self.value);
        let layout = self.kv.layout();
        let capacity = u64::from(layout.budget.capacity) * u64::from(layout.chunk_bytes);
        while self.kv.stats().live_bytes < capacity * case.percent / 100 {
            let first = self.keys.len() as u64;
            // As long as those of YCSB.
            let key = |i: u64| Key::new(format!("user{i:019}").as_bytes());
            let keys = (first..first + 32).map(key).collect::<Result<Vec<_>, _>>()?;
            let put = |key: &Key| KvRequest::put(key.clone(), value, 0);
            self.batch(keys.iter().map(put).collect())?;
            self.keys.extend(keys);
        }
        let mut draw = |keys: &[Key], updates| {
            let key = keys[rng.below(keys.len() as u64) as usize].clone();
            match updates {
                true => KvRequest::update(key, value, 0),
                false => KvRequest::get(key, value, 0),
            }
        };
        let mut relocated = 0;
        for round in 0.. {
            let requests = (0..32).map(|_| draw(&self.keys, case.updates)).collect();
            self.batch(requests)?;
            let before = std::mem::replace(&mut relocated, self.kv.work().records_relocated);
            match case.compacts {
                true if relocated > before && round > 1000 => break,
                false if round == 32 => break,
                _ => {}
            }
        }
        let count = case.counted / case.depth;
        let batches: Vec<Vec<KvRequest>> = (0..count)
            .map(|_| (0..case.depth).map(|_| draw(&self.keys, case.updates)).collect())
            .collect();
        begin();
        let before = self.kv.work();
        for batch in batches {
            self.batch(batch)?;
        }
        let after = self.kv.work();
        Ok(KvWork {
            lookups: after.lookups - before.lookups,
            records_put: after.records_put - before.records_put,
            records_relocated: after.records_relocated - before.records_relocated,
            lines: after.lines - before.lines,
            commands: after.commands - before.commands,
            completions: after.completions - before.completions,
            drive_lines: after.drive_lines - before.drive_lines,
            turns: after.turns - before.turns,
        })
    }
}

/// Returns each kind of work with the step that it is charged as.
fn charged(work: &KvWork) -> [(Step, u64); 7] {
    [
        (Step::Find, work.lookups),
        (Step::Store, work.records_put),
        (Step::Relocate, work.records_relocated),
        (Step::RecordLine, work.lines),
        (Step::Command, work.commands),
        (Step::Event, work.completions),
        (Step::Turn, work.turns),
    ]
}

/// Prints a case. Returns whether the charged instructions are those that were counted.
fn check(case: &Case, occurred: &mut Vec<Step>) -> Result<bool, Failed> {
    let counts = steps::count_case(case.name, RepeatCount::Once)?;
    let counted = counts.get(&HOST).ok_or("nothing was counted")?.instructions;
    let work = Bench::new(case)?.run(case, &mut || {})?;
    let requests = case.counted as f64;
    let mut sum = 0.0;
    for (step, times) in charged(&work) {
        if times > 0 {
            occurred.push(step);
            println!(
                "{:12} {:11} {:6.2} times per request; {} instructions are charged",
                case.name,
                step.word(),
                times as f64 / requests,
                step.instructions(),
            );
        }
        sum += times as f64 * f64::from(step.instructions());
    }
    let difference = sum / counted - 1.0;
    let holds = difference.abs() <= TOLERANCE;
    println!(
        "{:12} a request: {:.1} instructions counted, {:.1} charged, {:+.1} %: {}",
        case.name,
        counted / requests,
        sum / requests,
        100.0 * difference,
        if holds { "ok" } else { "FAIL" },
    );
    Ok(holds)
}

fn gate() -> Result<bool, Failed> {
    let (mut holds, mut occurred) = (true, Vec::new());
    for case in &CASES {
        holds &= check(case, &mut occurred)?;
    }
    for (step, _) in charged(&KvWork::default()) {
        if !occurred.contains(&step) {
            println!("{} is charged and occurs in no case: FAIL", step.word());
            holds = false;
        }
    }
    Ok(holds)
}

fn stepped(name: &str) -> Result<bool, Failed> {
    let case = CASES.iter().find(|case| case.name == name).ok_or("no such case")?;
    let mut bench = Bench::new(case)?;
    steps::run_stepped(|begin| bench.run(case, begin).map(|_| ()))?;
    Ok(true)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => gate(),
        ["stepped", case] => stepped(case),
        _ => Err("no arguments".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("steps: {error}");
            ExitCode::FAILURE
        }
    }
}
