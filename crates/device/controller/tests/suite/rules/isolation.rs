//! Hostile applications of a drive: their rules and commands read and change nothing of another one's.
//!
//! One application stores and loads, and a model knows what it has. The others have random rules, some of
//! them with random changes of their encoded form, and send random commands. Blocks of the first one
//! hold values below [`VALUES`], those of the others a mark of each: a byte of another application is
//! found wherever it is read.

// guarantee: B-129

use std::collections::BTreeMap;
use std::path::Path;

use controller::{Controller, DriveConfig, DriveRulesConfig};
use mem::PAGE_BYTES;
use nvme::{
    AdminCommand, CopyRange, DsmRange, RuleCommand, RuleCommandKind, RuleReply, Sqe, Status, opcode,
};
use rules::{CodeRange, RuleOp, RuleProgram, TableDeclaration, TableKind, verify};
use rules_lang::{CompileOptions, check};
use testkit::choices::{Choices, seed};

use super::applications::{host_of, read, rules_of};
use super::harness::{STORE_AND_LOAD, nand, settings};
use crate::block_commands::harness::config;
use crate::hostile::host::Host;

/// Values of the blocks of the application that is checked.
const VALUES: u8 = 0x80;
/// Pages of a host's memory for the data of commands; ranges are behind them.
const DATA_PAGES: usize = 4;
const RANGES_PAGE: u64 = 8;
/// Page for what LBA Status returns.
const STATUS_PAGE: u64 = 9;
/// Elements of the table of the application that is checked.
const ELEMENTS: u64 = 16;

/// Returns the mark of an application.
fn mark(app: usize) -> u8 {
    0xa0 + app as u8
}

fn name(app: usize) -> String {
    format!("app{app}")
}

/// An application's parallel units, and its quota of them in hundredths; 0 on units of its own.
#[derive(Clone, Copy, Debug)]
struct DeclaredApp {
    first: u32,
    last: u32,
    quota: u32,
}

impl DeclaredApp {
    const fn new(first: u32, last: u32, quota: u32) -> DeclaredApp {
        DeclaredApp { first, last, quota }
    }

    fn source(&self, app: usize) -> String {
        let DeclaredApp { first, last, quota } = self;
        let quota = match quota {
            0 => String::new(),
            quota => format!(", quota = {}.{:02}", quota / 100, quota % 100),
        };
        format!("app {} {{ units = {first}-{last}, spare = 0.1{quota} }}\n", name(app))
    }
}

/// Applications on units of their own.
const THICK: [&[DeclaredApp]; 4] = [
    &[DeclaredApp::new(0, 7, 0), DeclaredApp::new(8, 15, 0)],
    &[DeclaredApp::new(8, 15, 0), DeclaredApp::new(0, 7, 0)],
    &[DeclaredApp::new(0, 3, 0), DeclaredApp::new(4, 7, 0), DeclaredApp::new(8, 15, 0)],
    &[DeclaredApp::new(8, 15, 0), DeclaredApp::new(0, 3, 0), DeclaredApp::new(4, 7, 0)],
];

/// Applications that share their units, some of them beside others.
const THIN: [&[DeclaredApp]; 4] = [
    &[DeclaredApp::new(0, 15, 50), DeclaredApp::new(0, 15, 50)],
    &[DeclaredApp::new(0, 15, 20), DeclaredApp::new(0, 15, 30), DeclaredApp::new(0, 15, 40)],
    &[DeclaredApp::new(0, 7, 60), DeclaredApp::new(8, 15, 0), DeclaredApp::new(0, 7, 40)],
    &[DeclaredApp::new(8, 15, 20), DeclaredApp::new(0, 7, 0), DeclaredApp::new(8, 15, 80)],
];

/// Returns the rules without the last one, which collects, of an application that shares its lines.
fn without_collection(rules: String, is_thin: bool) -> String {
    match rules.rfind("rule ") {
        Some(last) if is_thin => rules[..last].to_owned(),
        _ => rules,
    }
}

/// Returns the rules of the application that is checked.
fn checked_rules(app: usize) -> String {
    let app = name(app);
    format!(
        "table {app}.{app}_map: addr[{app}.sectors] durable\n{}\
         table {app}.{app}_t: u64[{ELEMENTS}] volatile\n\
         rule {app}_set when channel.app == {app} and header.op == user2\n  \
         set {app}_t[header.arg0] = header.arg1\n  do complete ok value {app}_t[header.arg0]\n\
         rule {app}_element when channel.app == {app} and header.op == user3\n  \
         do complete ok value {app}_t[header.arg0]\n\
         rule {app}_fetch when channel.app == {app} and header.op == get\n  \
         do fetch r: Record at header.lba; emit r; complete ok value r.word[511]\n\
         rule {app}_reclaim when idle({app}) or {app}.free_lines < 4\n  \
         set v = best line of {app} by line.sectors - line.valid where line.valid < line.sectors\n  \
         do move valid of v to {app}.gc; erase v\n",
        rules_of(&app, STORE_AND_LOAD),
    )
}

/// Returns random rules of a hostile application.
fn hostile_rules(app: usize, c: &mut Choices) -> String {
    let app = name(app);
    let mut number = || match c.below(4) {
        0 => 0,
        1 => c.below(8),
        2 => c.below(2000),
        _ => c.below(u64::MAX),
    };
    let n: [u64; 10] = std::array::from_fn(|_| number());
    let [a, b, d, e, f, g, h, i, j, k] = n;
    format!(
        "table {app}.{app}_map: addr[{app}.sectors] durable\n\
         table {app}.{app}_t: u64[{ELEMENTS}] volatile\n\
         table {app}.{app}_s: set<u32>[8] volatile\n\
         rule {app}_store when channel.app == {app} and header.write and header.lba % 3 != {a}\n  \
         set {app}_map[header.lba + {b}] = next_addr({app}.host)\n  \
         do header.addr = {app}_map[header.lba + {b}]; insert lun\n\
         rule {app}_store_own priority 1 when channel.app == {app} and header.write and \
         header.lba % 2 == 0\n  set {app}_map[header.lba] = next_addr({app}.host)\n  \
         do header.addr = {app}_map[header.lba]; insert lun\n\
         rule {app}_load when channel.app == {app} and header.read\n  \
         do header.lba = header.lba * {d} + {e}; header.addr = {app}_map[header.lba]; insert lun\n\
         rule {app}_load_own priority 1 when channel.app == {app} and header.read and \
         header.lba % 2 == 1\n  do header.addr = {app}_map[header.lba]; insert lun\n\
         rule {app}_fetch when channel.app == {app} and header.op == get\n  \
         do fetch r: Record at header.arg0 * {f} + header.arg1; emit r; \
         {app}_t[header.lba] = r.word[header.lba % 512]; complete ok value r.word[0]\n\
         rule {app}_scan when channel.app == {app} and header.op == scan\n  \
         do for s in header.range up to 8 {{ for r: Record in s {{ emit r }} }} complete ok\n\
         rule {app}_again hops 1 when channel.app == {app} and header.op == user0\n  \
         do header.op = read; header.lba = header.arg0 + {g}; again\n\
         rule {app}_keep when channel.app == {app} and header.op == user2\n  \
         set {app}_t[header.arg0 + {h}] = header.arg1; add header.arg0 to {app}_s\n  \
         do complete ok value {app}_t[header.arg0]\n\
         rule {app}_trim when channel.app == {app} and header.op == trim and header.lba % 4 == {i}\n  \
         do complete ok\n\
         rule {app}_reclaim when idle({app}) or {app}.free_lines < 4\n  \
         set v = best line of {app} by line.age * {j} - line.valid * {k}\n  \
         do move valid of v to {app}.gc; erase v\n"
    )
}

/// Numbers of the programs that were changed.
#[derive(Debug, Default)]
struct ChangedPrograms {
    taken: u32,
    refused: u32,
}

/// Returns the program with up to three random changes of instructions of rules of hostile applications,
/// or the program itself if they are refused. Half of the changes have an instruction use a table of the
/// application that is checked.
fn changed(
    program: RuleProgram,
    checked: usize,
    options: &CompileOptions,
    c: &mut Choices,
    counts: &mut ChangedPrograms,
) -> RuleProgram {
    let mut next = program.clone();
    let hostile: Vec<_> = next.rules.iter().filter(|rule| rule.app.index() != checked).collect();
    let ranges: Vec<_> = hostile
        .iter()
        .flat_map(|rule| [rule.condition, rule.action])
        .filter(|range| range.len > 0)
        .collect();
    for _ in 0..1 + c.below(3) {
        let range = ranges[c.below(ranges.len() as u64) as usize];
        let mut at = (range.start + c.below(range.len.into()) as u32) as usize;
        let uses_table = |at: &usize| {
            use RuleOp::{TableContains, TableInsert, TableLoad, TableStore};
            matches!(program.code[*at].op, TableContains | TableInsert | TableLoad | TableStore)
        };
        let of_range = |range: &CodeRange| range.start as usize..(range.start + range.len) as usize;
        let uses: Vec<usize> = ranges.iter().flat_map(of_range).filter(uses_table).collect();
        if c.below(2) == 0 && !uses.is_empty() {
            at = uses[c.below(uses.len() as u64) as usize];
            let is_target = |table: &TableDeclaration| {
                table.app.index() == checked && table.kind != TableKind::Address
            };
            let target = program.tables.iter().position(is_target).expect("a table");
            next.code[at].imm = target as u64;
            continue;
        }
        let (instruction, value) = (&mut next.code[at], c.below(20) as u8);
        match c.below(6) {
            0 => instruction.op = RuleOp::from_code(value).unwrap_or(instruction.op),
            1 => instruction.d = value,
            2 => instruction.a = value,
            3 => instruction.b = value,
            4 => instruction.c = value,
            _ => instruction.imm = value.into(),
        }
    }
    let is_taken = verify(next.clone(), &options.grant).is_ok_and(|verified| {
        controller::check_executable(&verified, nand(&config()), &config().ftl, &[]).is_ok()
    });
    counts.taken += u32::from(is_taken);
    counts.refused += u32::from(!is_taken);
    if is_taken { next } else { program }
}

/// The drive, its hosts, and the model of the application that is checked.
struct Case {
    drive: Controller,
    hosts: Vec<Host>,
    checked: usize,
    blocks: BTreeMap<u64, u8>,
    elements: [u64; ELEMENTS as usize],
    /// Commands of hostile applications that succeeded.
    succeeded: u32,
}

fn new_hosts(drive: &mut Controller, apps: usize) -> Vec<Host> {
    (0..apps).map(|app| host_of(drive, &name(app))).collect()
}

impl Case {
    fn new(layouts: &[&[DeclaredApp]; 4], c: &mut Choices, counts: &mut ChangedPrograms) -> Case {
        let units = layouts[c.below(4) as usize];
        let checked = c.below(units.len() as u64) as usize;
        let declared = units.iter().enumerate().map(|(app, declared)| declared.source(app));
        let mut source: String = declared.collect();
        source.push_str("record Record = { word: u64[512] }\n");
        for (app, declared) in units.iter().enumerate() {
            let rules = match app == checked {
                true => checked_rules(app),
                false => hostile_rules(app, c),
            };
            source.push_str(&without_collection(rules, declared.quota > 0));
        }
        let base = config();
        let rules = DriveRulesConfig { ops: 1 << 20, ..settings() };
        let options = CompileOptions { grant: rules.grant(nand(&base)), ..Default::default() };
        let verified = check(Path::new("hostile.rules"), source.as_bytes(), &options);
        let verified = verified.unwrap_or_else(|error| panic!("{error}\n{source}"));
        let program = verified.program().clone();
        let program = changed(program, checked, &options, c, counts).encode();
        let rules = Some(DriveRulesConfig { program, ..rules });
        let mut drive = Controller::new(DriveConfig { rules, ..base }).expect("a drive");
        let hosts = new_hosts(&mut drive, units.len());
        let (blocks, elements) = (BTreeMap::new(), [0; ELEMENTS as usize]);
        Case { drive, hosts, checked, blocks, elements, succeeded: 0 }
    }

    fn sectors(&self, app: usize) -> u64 {
        self.drive.application_blocks(app as u32).expect("an application")
    }

    /// Returns an address that means something to an application of the drive, or to none.
    fn address(&self, app: usize, c: &mut Choices) -> u64 {
        let all: u64 = (0..self.hosts.len()).map(|app| self.sectors(app)).sum();
        match c.below(8) {
            0 => c.below(2 * all),
            1 => u64::MAX - c.below(4),
            2 => self.sectors(app) + c.below(4),
            3 => c.below(self.sectors(app)),
            _ => c.below(32),
        }
    }

    /// Submits a random command of a hostile application.
    fn submit(&mut self, app: usize, c: &mut Choices) {
        let (lba, other) = (self.address(app, c), self.address(app, c));
        let blocks = 1 + c.below(DATA_PAGES as u64) as u32;
        let nsid = [1, 1, 1, 1, 1, 1, 0, 2, u32::MAX][c.below(9) as usize];
        let bytes = blocks * PAGE_BYTES as u32;
        let (kind, _) = RuleCommandKind::ALL[c.below(7) as usize];
        let value = c.below(u64::MAX);
        let host = &mut self.hosts[app];
        let page = RANGES_PAGE as usize * PAGE_BYTES;
        let mut sqe = match c.below(18) {
            0..3 => Sqe::read(nsid, lba, blocks),
            3..5 => {
                host.memory.fill(0, DATA_PAGES * PAGE_BYTES, mark(app));
                Sqe::write(nsid, lba, blocks, c.below(4) == 0)
            }
            5 => Sqe::write_zeroes(nsid, lba, blocks, c.below(2) == 0),
            6 => Sqe::compare(nsid, lba, blocks),
            7 => Sqe::verify(nsid, lba, blocks),
            8 => {
                let trimmed = [DsmRange::new(lba, blocks), DsmRange::new(other, 1)];
                trimmed.iter().enumerate().for_each(|(at, range)| {
                    host.memory.write(page + 16 * at, &range.to_bytes());
                });
                Sqe::dataset_management(nsid, 2, true)
            }
            9 => {
                host.memory.write(page, &CopyRange::new(other, blocks).to_bytes());
                Sqe::copy(nsid, lba, 1)
            }
            10 => Sqe::write_uncorrectable(nsid, lba, 1),
            11 => Sqe::lba_status(nsid, lba, blocks, 4),
            _ => {
                let arg0 = if c.below(2) == 0 { other } else { value };
                let buffer_bytes = if kind.returns_data() { bytes } else { 0 };
                let command = RuleCommand::new(kind, lba, blocks);
                RuleCommand { arg0, arg1: value, buffer_bytes, ..command }.to_sqe(nsid)
            }
        };
        sqe.set_sgl(match sqe.opcode {
            opcode::io::DATASET_MANAGEMENT | opcode::io::COPY => host.block(RANGES_PAGE, 32),
            opcode::io::LBA_STATUS => host.block(STATUS_PAGE, 64),
            _ => host.block(0, bytes),
        });
        host.submit(sqe);
    }

    /// Executes random commands of hostile applications, beside one of the application that is checked.
    fn step(&mut self, c: &mut Choices) {
        let checked = self.checked;
        let hostile = (0..self.hosts.len()).filter(|app| *app != checked);
        for app in hostile.clone() {
            let memory = &self.hosts[app].memory;
            memory.fill(0, DATA_PAGES * PAGE_BYTES, 0xee);
            for _ in 0..c.below(4) {
                self.submit(app, c);
            }
        }
        self.check_command(c);
        for app in hostile {
            let host = &mut self.hosts[app];
            host.drain(&mut self.drive);
            while let Some(cqe) = host.reap() {
                self.succeeded += u32::from(cqe.status.is_success());
            }
            let mut bytes = vec![0; DATA_PAGES * PAGE_BYTES];
            host.memory.read(0, &mut bytes);
            let is_own = |byte: &u8| [0, 0xee, mark(app)].contains(byte);
            let foreign = bytes.iter().position(|byte| !is_own(byte));
            assert_eq!(foreign.map(|at| bytes[at]), None, "application {app} has read a block");
        }
    }

    /// Executes a command of the application that is checked, and compares it with the model.
    fn check_command(&mut self, c: &mut Choices) {
        let (checked, lba) = (self.checked, c.below(32));
        let (drive, host) = (&mut self.drive, &mut self.hosts[checked]);
        let element = c.below(ELEMENTS);
        match c.below(6) {
            0 | 1 => {
                let value = 2 + c.below(u64::from(VALUES) - 2) as u8;
                host.memory.fill(0, PAGE_BYTES, value);
                let mut sqe = Sqe::write(1, lba, 1, false);
                sqe.set_sgl(host.block(0, PAGE_BYTES as u32));
                assert_eq!(host.io(drive, sqe).status, Status::SUCCESS);
                self.blocks.insert(lba, value);
            }
            2 => assert_eq!(read(drive, host, lba), Ok(self.value(lba))),
            3 => {
                let get = RuleCommand {
                    buffer_bytes: PAGE_BYTES as u32,
                    ..RuleCommand::new(RuleCommandKind::Get, lba, 1)
                };
                let mut sqe = get.to_sqe(1);
                sqe.set_sgl(host.block(0, PAGE_BYTES as u32));
                assert_eq!(host.io(drive, sqe).status, Status::SUCCESS);
                let mut bytes = vec![0; PAGE_BYTES];
                host.memory.read(0, &mut bytes);
                assert_eq!(bytes, [self.value(lba); PAGE_BYTES]);
            }
            4 => {
                let (kind, arg1) = (RuleCommandKind::User2, c.below(1 << 40));
                let set = RuleCommand { arg0: element, arg1, ..RuleCommand::new(kind, 0, 1) };
                assert_eq!(host.io(drive, set.to_sqe(1)).status, Status::SUCCESS);
                self.elements[element as usize] = arg1;
            }
            _ => {
                let kind = RuleCommandKind::User3;
                let get = RuleCommand { arg0: element, ..RuleCommand::new(kind, 0, 1) };
                let cqe = host.io(drive, get.to_sqe(1));
                assert_eq!(cqe.status, Status::SUCCESS);
                let value = RuleReply::from_result(cqe.result, false).value;
                assert_eq!(value, self.elements[element as usize], "element {element}");
            }
        }
    }

    fn value(&self, lba: u64) -> u8 {
        self.blocks.get(&lba).copied().unwrap_or(0)
    }

    /// Compares everything that the checked application has with the model.
    fn check_all(&mut self) {
        let table = self.drive.rule_table(&format!("{}_t", name(self.checked))).expect("a table");
        for (element, value) in self.elements.iter().enumerate() {
            assert_eq!(self.drive.rule_table_value(table, element as u64), Ok(*value));
        }
        for lba in 0..64 {
            let host = &mut self.hosts[self.checked];
            let found = read(&mut self.drive, host, lba);
            assert_eq!(found, Ok(self.value(lba)), "block {lba}");
        }
        self.drive.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
    }

    /// Cuts the power, after a flush of the application that is checked.
    fn cut_power(mut self) -> Case {
        let flushed = self.hosts[self.checked].io(&mut self.drive, Sqe::flush(1)).status;
        assert_eq!(flushed, Status::SUCCESS);
        let mut drive = self.drive.power_cut().power_on().expect("it recovers");
        let hosts = new_hosts(&mut drive, self.hosts.len());
        let Case { checked, blocks, succeeded, .. } = self;
        Case { drive, hosts, checked, blocks, elements: [0; ELEMENTS as usize], succeeded }
    }
}

/// Runs 40 seeds of hostile applications.
fn run(layouts: &[&[DeclaredApp]; 4]) {
    let (mut counts, mut succeeded) = (ChangedPrograms::default(), 0);
    for number in 0..40 {
        let mut c = Choices::seeded(seed() * 1000 + number);
        let mut case = Case::new(layouts, &mut c, &mut counts);
        for part in 0..4 {
            for _ in 0..50 {
                case.step(&mut c);
            }
            case.check_all();
            if part == 1 {
                case = case.cut_power();
                case.check_all();
            }
        }
        succeeded += case.succeeded;
    }
    assert!(counts.taken > 4 && counts.refused > 4, "{counts:?}");
    assert!(succeeded > 2000, "{succeeded} commands of hostile applications succeeded");
}

#[test]
fn hostile_applications_read_and_change_nothing_of_another() {
    run(&THICK);
}

#[test]
fn hostile_applications_read_and_change_nothing_of_another_on_the_same_units() {
    run(&THIN);
}

#[test]
fn hosts_of_applications_have_no_commands_for_the_whole_drive() {
    let mut c = Choices::seeded(seed());
    let mut case = Case::new(&THICK, &mut c, &mut ChangedPrograms::default());
    case.check_command(&mut c);
    let hostile = (0..case.hosts.len()).find(|app| *app != case.checked).expect("another one");
    // Rule programs, tables and misses; Format, Sanitize, namespaces.
    for opcode in [0xc1, 0xc4, 0xc5, 0xc6, 0xc8, 0x80, 0x84, 0x0d, 0x15] {
        let host = &mut case.hosts[hostile];
        let mut sqe = Sqe { opcode, nsid: 1.into(), ..Sqe::flush(1) };
        sqe.set_sgl(host.block(0, PAGE_BYTES as u32));
        let status = host.admin(&mut case.drive, sqe).status;
        assert!(status.is(Status::INVALID_OPCODE), "{opcode:x}: {status}");
    }
    // The page of misses names blocks of all applications.
    let (lid, nsid, bytes) = (0xc4, u32::MAX, 2048);
    let page = AdminCommand::GetLogPage { lid, nsid, bytes, offset: 0, retain: true };
    let host = &mut case.hosts[hostile];
    let mut sqe = page.to_sqe();
    sqe.set_sgl(host.block(0, 2048));
    let status = host.admin(&mut case.drive, sqe).status;
    assert!(status.is(Status::INVALID_LOG_PAGE), "{status}");
    case.check_all();
}
