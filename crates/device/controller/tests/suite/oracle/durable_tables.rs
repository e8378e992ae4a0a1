//! Durable tables of rules: random commands whose rules change them, edits by the host, installations of
//! other programs, flushes and power cuts at any instant. After each cut the tables must be as they were
//! after one of the changes, not before the last one that a completed flush makes durable.

// guarantee: D-65

use std::collections::BTreeMap;

use controller::{
    Controller, DriveConfig, DriveRulesConfig, Fault, PuScheduling, RuleMissConfig, RuleTableEdit,
    WriteBuffer,
};
use media::{DataStore, MediaConfig};
use nvme::{RuleCommand, RuleCommandKind, Sqe, Status};
use rng::Rng;
use rules::TableId;
use testkit::oracle::run_seeds;
use time::{Component, Nanos};

use super::configs::random_config;
use crate::hostile::host::Host;
use crate::rules::harness::{RECLAIM, STORE_AND_LOAD, compiled, nand};

/// Keys of the set and of the map.
const KEYS: u64 = 32;
/// Elements of the arrays.
const REGIONS: usize = 8;
/// Commands in flight at most.
const IN_FLIGHT_MAX: usize = 12;

/// The tables: their numbers are those of their declarations, after the map.
const TABLES: &str = "table writes: u64[8] durable\ntable newest: u16[8] durable\n\
    table seen: set<u32>[40] durable\ntable sizes: map<u16, u16>[40] durable\n\
    table runs: u64[2] volatile\n";
const WRITES: TableId = TableId::new(1);
const LAST: TableId = TableId::new(2);
const SEEN: TableId = TableId::new(3);
const SIZES: TableId = TableId::new(4);
const RUNS: TableId = TableId::new(5);

/// Returns the source of a program whose counters rise by `step`.
fn source(config: &DriveConfig, step: u64) -> String {
    let last_unit = nand(config).geometry.total_pus() - 1;
    format!(
        "app db {{ units = 0-{last_unit}, spare = 0.01 }}\n\
         table map: addr[db.sectors] durable\n{TABLES}\
         rule count priority 5\n  when channel.app == db and header.write\n  \
         set writes[header.lba % 8] = writes[header.lba % 8] + {step}\n      \
         newest[header.lba % 8] = header.lba\n      runs[0] = runs[0] + 1\n  do continue\n\
         rule flushes priority 5\n  when channel.app == db and header.flush\n  \
         set writes[7] = writes[7] + {step}\n  do continue\n\
         rule join priority 4\n  when channel.app == db and header.op == user0\n  \
         do add header.arg0 to seen; sizes[header.arg0] = header.arg1; complete ok\n\
         rule leave priority 4\n  when channel.app == db and header.op == user1\n  \
         do remove header.arg0 from seen; remove header.arg0 from sizes; complete ok\n\
         {STORE_AND_LOAD}{RECLAIM}"
    )
}

/// The contents of the durable tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tables {
    writes: [u64; REGIONS],
    last: [u16; REGIONS],
    seen: Vec<bool>,
    sizes: BTreeMap<u64, u16>,
}

impl Tables {
    fn empty() -> Tables {
        Tables { seen: vec![false; KEYS as usize], ..Tables::default() }
    }

    fn read(drive: &Controller) -> Tables {
        let value = |table, key| drive.rule_table_value(table, key).expect("an element");
        let sizes = (0..KEYS).map(|key| (key, value(SIZES, key) as u16));
        Tables {
            writes: std::array::from_fn(|at| value(WRITES, at as u64)),
            last: std::array::from_fn(|at| value(LAST, at as u64) as u16),
            seen: (0..KEYS).map(|key| value(SEEN, key) == 1).collect(),
            sizes: sizes.filter(|(_, size)| *size > 0).collect(),
        }
    }
}

/// The tables after a change, and the installation and the program that they belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TableState {
    installation: u64,
    program: usize,
    tables: Tables,
}

struct Case {
    drive: Option<Controller>,
    host: Host,
    rng: Rng,
    programs: [Vec<u8>; 2],
    /// The states that a power cut may leave: the one that is durable for sure, and those since.
    states: Vec<TableState>,
    /// Number of the first of them.
    first: u64,
    /// By command in flight, the number of the state that it makes durable, if it is a flush.
    in_flight: BTreeMap<u16, Option<u64>>,
    /// Whether a power cut loses nothing.
    is_protected: bool,
    runs: u64,
    cuts: u64,
    lost: u64,
    installations: u64,
}

fn config(rng: &mut Rng) -> DriveConfig {
    let mut config = random_config(rng, false, DataStore::Memory);
    let MediaConfig::Nand(nand) = &mut config.media else { panic!("NAND") };
    nand.geometry.chunks = 50 + rng.below(20) as u32;
    config.ftl.over_provisioning = 0.3 + rng.f64() * 0.4;
    config.ftl.map_cache_sectors = 0;
    config.ftl.owner_bytes = 3_200 + rng.below(3_000) as u32 + 8;
    config.pu_scheduling = PuScheduling::Fifo;
    // The rules decide about commands in the order of their submission.
    (config.controller.fetch_latency, config.controller.dma_bytes_per_sec) = (Nanos::ZERO, 0);
    config
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut rng = Rng::new(seed ^ 0xd0_5ab1e);
        let mut config = config(&mut rng);
        let programs = [1, 2].map(|step| compiled(&source(&config, step), &config));
        config.rules = Some(DriveRulesConfig {
            program: programs[0].clone(),
            engines: 1 + rng.below(3) as u16,
            op: Nanos(rng.below(2) * rng.below(200)),
            ops: 1 << 16,
            table_bytes: 1 << 20,
            misses: RuleMissConfig::default(),
            idle_poll: None,
        });
        let is_protected = matches!(config.write_buffer, WriteBuffer::PowerLossProtected { .. });
        let mut drive = Controller::new(config).expect("a drive");
        let host = Host::with_queue(&mut drive);
        Case {
            drive: Some(drive),
            host,
            rng,
            programs,
            states: vec![TableState { installation: 0, program: 0, tables: Tables::empty() }],
            first: 0,
            in_flight: BTreeMap::new(),
            is_protected,
            runs: 0,
            cuts: 0,
            lost: 0,
            installations: 0,
        }
    }

    fn drive(&mut self) -> &mut Controller {
        self.drive.as_mut().expect("a drive with power")
    }

    fn current(&self) -> &TableState {
        self.states.last().expect("a state")
    }

    /// Records a state. Returns its number.
    fn push(&mut self, state: TableState) -> u64 {
        self.states.push(state);
        self.first + self.states.len() as u64 - 1
    }

    /// Returns the power cuts of this drive that were injected and have occurred.
    fn injected_cuts(&mut self) -> usize {
        self.drive().faults().iter().filter(|fault| !fault.is_open).count()
    }

    /// Runs the drive at the present instant, and reaps completions.
    fn poll(&mut self) {
        let cuts = self.injected_cuts();
        while self.drive.as_mut().expect("a drive").poll(self.host.now) {}
        while let Some(cqe) = self.host.reap() {
            let flushed = self.in_flight.remove(&cqe.cid).expect("a command in flight");
            if cqe.status.is(Status::POWER_LOSS) {
                continue;
            }
            assert!(cqe.status.is_success(), "{}", cqe.status);
            if let Some(number) = flushed.filter(|number| *number > self.first) {
                self.states.drain(..(number - self.first) as usize);
                self.first = number;
            }
        }
        if self.injected_cuts() > cuts {
            self.check_after_cut();
        }
    }

    fn step(&mut self) {
        match self.drive().deadline() {
            Nanos::MAX => {}
            at => self.host.now = self.host.now.max(at),
        }
        self.poll();
    }

    /// The power was cut, and the drive has recovered.
    fn check_after_cut(&mut self) {
        self.cuts += 1;
        let TableState { installation, program, .. } = *self.current();
        let found = Tables::read(self.drive());
        let empty = Tables::empty();
        // The tables of another installation are discarded.
        let of_state = |state: &TableState| match state.installation == installation {
            true => state.tables == found,
            false => empty == found,
        };
        let Some(at) = self.states.iter().rposition(of_state) else {
            panic!("{found:?} is none of {:?}", self.states);
        };
        let lost = (self.states.len() - 1 - at) as u64;
        assert!(lost == 0 || !self.is_protected, "capacitors lose {lost} changes");
        self.lost += lost;
        self.first += at as u64;
        self.states = vec![TableState { installation, program, tables: found }];
        assert_eq!(self.drive().rule_table_value(RUNS, 0), Ok(0), "a volatile table");
        self.runs = 0;
        assert_eq!(self.drive().check_invariants(), Ok(()));
    }

    fn submit(&mut self) {
        while self.in_flight.len() >= IN_FLIGHT_MAX {
            self.step();
        }
        let TableState { installation, program, mut tables } = self.current().clone();
        let sectors = self.drive().sectors().min(200);
        let (step, lba) = (program as u64 + 1, self.rng.below(sectors));
        let (key, size) = (self.rng.below(KEYS), 1 + self.rng.below(65_535));
        let user =
            |kind| RuleCommand { arg0: key, arg1: size, ..RuleCommand::new(kind, 0, 1) }.to_sqe(1);
        let mut is_flush = false;
        let mut sqe = match self.rng.below(20) {
            0..=7 => {
                tables.writes[lba as usize % REGIONS] += step;
                tables.last[lba as usize % REGIONS] = lba as u16;
                self.runs += 1;
                Sqe::write(1, lba, 1, self.rng.chance(0.1))
            }
            8..=12 => {
                tables.seen[key as usize] = true;
                tables.sizes.insert(key, size as u16);
                user(RuleCommandKind::User0)
            }
            13..=15 => {
                tables.seen[key as usize] = false;
                tables.sizes.remove(&key);
                user(RuleCommandKind::User1)
            }
            16 => Sqe::read(1, lba, 1),
            _ => {
                tables.writes[REGIONS - 1] += step;
                is_flush = true;
                Sqe::flush(1)
            }
        };
        sqe.set_sgl(self.host.block(0, 512));
        let inputs = |case: &mut Case| case.drive().stats().rules.expect("rules").inputs;
        let before = inputs(self);
        let number = self.push(TableState { installation, program, tables });
        let cid = self.host.submit(sqe);
        self.in_flight.insert(cid, is_flush.then_some(number));
        let cuts = self.cuts;
        self.poll();
        assert!(self.cuts > cuts || inputs(self) == before + 1, "the rules have decided");
        if self.cuts == cuts {
            assert_eq!(Tables::read(self.drive()), self.current().tables);
            let runs = self.runs;
            assert_eq!(self.drive().rule_table_value(RUNS, 0), Ok(runs));
        }
    }

    /// The host changes several entries by one command.
    fn edit(&mut self) {
        let TableState { installation, program, mut tables } = self.current().clone();
        let count = 1 + self.rng.below(4);
        let entries: Vec<u64> = (0..count).map(|_| self.rng.below(KEYS)).collect();
        let (table, edits): (TableId, Vec<RuleTableEdit>) = match self.rng.below(3) {
            0 => {
                entries.iter().for_each(|key| tables.writes[*key as usize % REGIONS] = *key);
                let edit = |key: &u64| RuleTableEdit::Set { key: key % 8, value: *key };
                (WRITES, entries.iter().map(edit).collect())
            }
            1 => {
                entries.iter().for_each(|key| tables.seen[*key as usize] = true);
                (SEEN, entries.iter().map(|key| RuleTableEdit::Add { key: *key }).collect())
            }
            _ => {
                tables.sizes.retain(|key, _| !entries.contains(key));
                (SIZES, entries.iter().map(|key| RuleTableEdit::Remove { key: *key }).collect())
            }
        };
        self.drive().edit_rule_table(table, &edits).expect("entries that fit");
        assert_eq!(Tables::read(self.drive()), tables);
        self.push(TableState { installation, program, tables });
    }

    fn install(&mut self) {
        let program = self.rng.below(2) as usize;
        let (now, bytes) = (self.host.now, self.programs[program].clone());
        self.drive().install_rules(now, &bytes).expect("a program that fits");
        (self.runs, self.installations) = (0, self.installations + 1);
        let installation = self.installations;
        assert_eq!(Tables::read(self.drive()), Tables::empty());
        self.push(TableState { installation, program, tables: Tables::empty() });
    }

    /// Cuts the power: of a drive whose hosts stay, at once or after some operations of the media, or
    /// of one that is powered on again.
    fn cut_power(&mut self) {
        if self.rng.chance(0.6) {
            let after_ops = if self.rng.chance(0.5) { 0 } else { 1 + self.rng.below(8) };
            let (now, cuts) = (self.host.now, self.cuts);
            let before = self.injected_cuts();
            self.drive().inject_fault(now, Fault::PowerCut { after_ops }).expect("a fault");
            if self.injected_cuts() > before {
                self.check_after_cut();
            }
            // A cut that waits for operations needs some.
            let mut steps = 0;
            while self.cuts == cuts {
                self.submit();
                if self.cuts == cuts {
                    self.step();
                }
                steps += 1;
                assert!(steps < 10_000, "no operation ends");
            }
            return self.poll();
        }
        self.poll();
        let mut drive = self.drive.take().expect("a drive");
        loop {
            drive = drive.power_cut().power_on().expect("the drive recovers");
            if self.rng.chance(0.7) {
                break;
            }
            self.cuts += 1;
        }
        self.in_flight.clear();
        let now = self.host.now;
        self.host = Host::with_queue(&mut drive);
        self.host.now = self.host.now.max(now);
        self.drive = Some(drive);
        self.check_after_cut();
    }

    fn run(&mut self) {
        for _ in 0..30 {
            for _ in 0..1 + self.rng.below(40) {
                match self.rng.below(100) {
                    0..=5 => self.edit(),
                    6 => self.install(),
                    _ => self.submit(),
                }
                for _ in 0..self.rng.below(4) {
                    self.step();
                }
            }
            self.cut_power();
        }
        let now = self.host.now;
        assert!(self.drive().stats().late.max == Nanos::ZERO && now > Nanos::ZERO);
    }
}

#[test]
fn tables_are_as_after_a_prefix_of_the_commands_with_all_that_is_flushed() {
    let replay = "cargo test -p sluice-controller --test suite oracle::durable_tables";
    let run = run_seeds(400, &[], replay, |seed| {
        let mut case = Case::new(seed);
        case.run();
        (case.cuts, case.lost, case.installations)
    });
    let sum = |of: fn(&(u64, u64, u64)) -> u64| run.results.iter().map(of).sum::<u64>();
    let (cuts, lost, installations) = (sum(|r| r.0), sum(|r| r.1), sum(|r| r.2));
    println!("{cuts} power cuts, {lost} changes lost, {installations} installations");
    let is_usual = run.results.len() == 400;
    assert!(!is_usual || cuts >= 12_000 && lost > cuts && installations > 1_000, "{cuts} {lost}");
}
