//! A program in a drive with rules and in a target with rules over an open-channel drive: equal requests
//! have equal ends and equal data.
//!
//! `SLUICE_SEED=n` replays one seed.

// guarantee: B-130

use std::path::Path;
use std::sync::Arc;

use block::{BlockDevice, Payload, Request};
use mem::{Iova, SharedRegion};
use nvme::Status;
use rng::Rng;
use scenario::Scenario;
use sluice_stack::{Stack, StackError, target_layers};
use time::{Component, Nanos};

const SECTOR: usize = 4096;
/// Sectors of a request at most.
const LONGEST: u64 = 8;

/// A small drive whose over-provisioning is that of its program.
const DRIVE: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, pus = 2, chunks = 32, pages = 16 }\n";

/// Returns `demo/rules/page.rules` for the drive, behind a rule that refuses one sector, and one that
/// counts writes of some and refuses the sixth.
fn program() -> String {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../demo/rules/page.rules");
    let text = std::fs::read_to_string(demo).expect("the program");
    let text = text.replace("units = 0-63, spare = 0.11", "units = 0-3, spare = 0.28");
    assert!(text.contains("units = 0-3"), "{text}");
    text + "table writes: u64[16] volatile\n\
        rule sealed priority 5 when channel.app == db and header.write and header.lba == 77\n  \
        do complete denied\n\
        rule full priority 4 when channel.app == db and header.write and header.lba < 16 and \
        writes[header.lba % 16] >= 5\n  do complete busy\n\
        rule count priority 3 when channel.app == db and header.write and header.lba < 16\n  \
        set writes[header.lba % 16] = writes[header.lba % 16] + 1\n  do continue\n"
}

fn stack(folder: &Path, keys: &str) -> Result<Stack, StackError> {
    let text = format!("{DRIVE}{keys}");
    let scenario = Scenario::parse(&folder.join("s.toml"), &text);
    Stack::build(&scenario.unwrap_or_else(|e| panic!("{e}")).drives[0], None)
}

/// A stack with memory for one request.
struct Bench {
    stack: Stack,
    memory: Arc<SharedRegion>,
    at: Iova,
    now: Nanos,
}

impl Bench {
    fn new(folder: &Path, keys: &str) -> Bench {
        let stack = stack(folder, keys).expect("a stack");
        let bytes = LONGEST as usize * SECTOR;
        let (memory, at) = stack.device.memory().allocate_registered(bytes).expect("memory");
        Bench { stack, memory, at, now: Nanos::ZERO }
    }

    /// Runs a request to its end. Returns its status and its result.
    fn run(&mut self, request: Request) -> (Status, u64) {
        let Stack { drive, device, .. } = &mut self.stack;
        device.submit(self.now, request).expect("room for a request");
        loop {
            while device.poll(self.now) | drive.poll(self.now) {}
            if let Some(done) = device.reap() {
                return (done.status, done.result);
            }
            let next = device.deadline().min(drive.deadline());
            assert!(next < Nanos::MAX, "{request:?} never ends");
            self.now = self.now.max(next);
        }
    }

    fn data(&self) -> Payload {
        Payload::Contiguous(self.at)
    }

    /// Writes sectors, each with its value in all bytes.
    fn write(&mut self, lba: u64, sectors: u32, value: u8) -> Status {
        self.memory.fill(0, sectors as usize * SECTOR, value);
        self.run(Request::write(lba, sectors, self.data(), 1)).0
    }

    /// Reads sectors. Returns the status and the bytes.
    fn read(&mut self, lba: u64, sectors: u32) -> (Status, Vec<u8>) {
        let mut bytes = vec![0xee; sectors as usize * SECTOR];
        self.memory.fill(0, bytes.len(), 0xee);
        let (status, _) = self.run(Request::read(lba, sectors, self.data(), 2));
        self.memory.read(0, &mut bytes);
        (status, bytes)
    }
}

/// Runs the same random requests on both. Returns the victims that the rules of each chose.
fn compare(folder: &Path, seed: u64) -> [u64; 2] {
    let drive =
        "ftl.over_provisioning = 0.28\npersonality = \"rules\"\nrules.program = \"p.rules\"\n";
    let target = "personality = \"open-channel\"\n[target]\nkind = \"rules\"\n\
        program = \"p.rules\"\nover_provisioning = 0.28\n";
    let mut benches = [Bench::new(folder, drive), Bench::new(folder, target)];
    let all = benches.iter().map(|bench| bench.stack.device.limits().sectors).min().unwrap();
    let mut rng = Rng::new(seed);
    let mut both = |run: &mut dyn FnMut(&mut Bench) -> (Status, Vec<u8>), what: &str| {
        let [one, other] = &mut benches;
        let (one, other) = (run(one), run(other));
        assert_eq!(one.0, other.0, "seed {seed}: {what}");
        assert!(one.1 == other.1, "seed {seed}: {what} returns other data");
        one.0
    };
    let (mut refused, requests) = (0, 3 * all / 2);
    for at in 0..requests {
        let sectors = 1 + rng.below(LONGEST) as u32;
        // A quarter of the requests is for the first sectors, whose rules count.
        let span = if rng.chance(0.25) { 32 } else { all };
        let lba = rng.below(span.max(u64::from(sectors)) - u64::from(sectors) + 1);
        let status = match rng.below(20) {
            0 => both(&mut |b| (b.run(Request::flush(0)).0, Vec::new()), "a flush"),
            1..3 => {
                let trim = Request::discard(lba, sectors, 0);
                both(&mut |b| (b.run(trim).0, Vec::new()), &format!("{trim:?}"))
            }
            3 => {
                let zero = Request::write_zeroes(lba, sectors, rng.chance(0.5), 0);
                both(&mut |b| (b.run(zero).0, Vec::new()), &format!("{zero:?}"))
            }
            4..8 => both(&mut |b| b.read(lba, sectors), &format!("a read of {lba}+{sectors}")),
            _ => {
                let value = at as u8 | 1;
                let what = format!("a write of {lba}+{sectors}");
                both(&mut |b| (b.write(lba, sectors, value), Vec::new()), &what)
            }
        };
        refused += u64::from(!status.is_success());
    }
    for lba in (0..all).step_by(LONGEST as usize) {
        let sectors = LONGEST.min(all - lba) as u32;
        both(&mut |b| b.read(lba, sectors), &format!("a read of {lba}+{sectors}"));
    }
    assert!(refused > 0, "seed {seed}: no rule has refused a request");
    let [drive, target] = &mut benches;
    let of_drive = drive.stack.drive.stats().rules.expect("a drive with rules");
    let of_target = target_layers::rule_stats(&mut target.stack.device);
    let [of_target] = &of_target[..] else { panic!("{of_target:?}") };
    let matches = of_drive.rules.iter().zip(&of_target.rules);
    for (one, other) in matches.filter(|(one, _)| one.name != "reclaim") {
        let counted = (one.matches, one.faults, one.ops);
        let other_counted = (other.counters.matches, other.counters.faults, other.counters.ops);
        assert_eq!((&one.name, counted), (&other.name, other_counted), "seed {seed}");
    }
    assert_eq!((of_drive.inputs, of_drive.misses), (of_target.inputs, of_target.miss_count()));
    [of_drive.victims, of_target.victims]
}

#[test]
fn a_target_with_rules_returns_the_data_of_a_drive_with_rules() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.rules"), program()).unwrap();
    let one = std::env::var("SLUICE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = one.map_or(1..=5, |seed| seed..=seed);
    for seed in seeds {
        let victims = compare(folder.path(), seed);
        assert!(victims.iter().all(|victims| *victims > 0), "seed {seed}: {victims:?}");
    }
}

/// The kinds of a target on a drive in a file, with equal data on the media.
fn of_kind(kind: &str) -> String {
    let drive = "data = \"file\"\npath = \"drive.img\"\npersonality = \"open-channel\"\n";
    format!("{drive}[target]\nover_provisioning = 0.28\n{kind}")
}

/// Opens a target of the kind, checks all sectors, and changes some. It ends with a checkpoint if
/// `is_orderly`, and otherwise with a power cut after a flush.
fn use_target(folder: &Path, kind: &str, values: &mut [u8], rng: &mut Rng, is_orderly: bool) {
    let mut bench = Bench::new(folder, &of_kind(kind));
    assert_eq!(bench.stack.device.limits().sectors, values.len() as u64, "{kind}");
    let sectors = values.len() as u64;
    for lba in 0..sectors {
        let (status, bytes) = bench.read(lba, 1);
        assert_eq!(status, Status::SUCCESS, "{kind}: sector {lba}");
        assert!(bytes == [values[lba as usize]; SECTOR], "{kind}: sector {lba}");
    }
    for _ in 0..sectors {
        let (lba, value) = (rng.below(sectors), rng.below(255) as u8 + 1);
        values[lba as usize] = value;
        assert_eq!(bench.write(lba, 1, value), Status::SUCCESS, "{kind}");
    }
    let trimmed = rng.below(sectors - 8);
    assert_eq!(bench.run(Request::discard(trimmed, 8, 0)).0, Status::SUCCESS);
    values[trimmed as usize..][..8].fill(0);
    assert_eq!(bench.run(Request::flush(0)).0, Status::SUCCESS);
    let stats = target_layers::rule_stats(&mut bench.stack.device);
    assert_eq!(stats.len(), usize::from(kind.contains("rules")));
    let Stack { mut device, mut drive, .. } = bench.stack;
    if !is_orderly {
        drop(device);
        return drop(drive.power_cut());
    }
    target_layers::begin_checkpoint(&mut device);
    while target_layers::is_checkpointing(&mut device) {
        if !(device.poll(bench.now) | drive.poll(bench.now)) {
            bench.now = bench.now.max(device.deadline().min(drive.deadline()));
        }
    }
    drop(device);
    drive.shut_down().expect("an image that is written");
}

#[test]
fn pblk_opens_what_a_target_with_rules_wrote_and_the_reverse() {
    let pblk = "kind = \"pblk\"\n";
    let rules = "kind = \"rules\"\ntemplate = \"throughput\"\n";
    for (first, second, is_orderly) in
        [(pblk, rules, true), (rules, pblk, true), (pblk, rules, false), (rules, pblk, false)]
    {
        let folder = tempfile::tempdir().unwrap();
        let sectors = Bench::new(folder.path(), &of_kind(first)).stack.device.limits().sectors;
        let (mut values, mut rng) = (vec![0; sectors as usize], Rng::new(6));
        for round in 0..6 {
            let kind = if round % 2 == 0 { first } else { second };
            use_target(folder.path(), kind, &mut values, &mut rng, is_orderly);
        }
    }
}
