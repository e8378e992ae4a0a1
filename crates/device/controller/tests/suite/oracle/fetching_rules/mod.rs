//! Rules that fetch sectors inside of the drive: lookups in nodes and scans of records, among writes, trims,
//! marks and reads of the same sectors, power cuts, and installations of another program. Each result
//! must be one that the sectors had between the submission and the completion of the command
//! ([`model`]), sector by sector: a write in flight is seen or not.
//!
//! Nodes are random: with children past the end, in cycles, and with more entries than a node has.

// guarantee: D-72

mod contents;
mod counts;
mod guards;
mod model;

use std::collections::BTreeMap;

use controller::{
    Controller, DriveConfig, DriveRulesConfig, Fault, RuleMissConfig, RuleTableEdit, WriteBuffer,
};
use media::{DataStore, MediaConfig};
use mem::PAGE_BYTES;
use nvme::{AdminCommand, Cqe, DsmRange, RuleCommand, RuleCommandKind, RuleReply, Sqe, Status};
use rng::Rng;
use rules::TableId;
use testkit::oracle::run_seeds;
use time::{Component, Nanos};

use super::case::power_on;
use super::configs::random_config;
use super::sector::UNREADABLE;
use crate::hostile::host::Host;
use crate::rules::harness::{RECLAIM, STORE_AND_LOAD, compiled_for, nand};
use contents::{CLASSES, Contents, KEYS, RECORDS, SECTOR_BYTES};
use counts::FetchCounts;
use guards::{GUARDED_READS, GUARDED_TRIMS, GUARDED_WRITES, Guard, GuardEnds};
use model::{CommandResult, HOPS, Model};

/// Seeds that found a bug.
const REGRESSIONS: [u64; 0] = [];

/// Operations of a command at most.
const OPS: u64 = 1 << 20;
/// Commands in flight at most.
const IN_FLIGHT_MAX: usize = 32;
/// Bytes of the buffer of each.
const BUFFER_BYTES: usize = 2 * PAGE_BYTES;
/// Sectors of a buffer.
const BUFFER_SECTORS: u64 = (BUFFER_BYTES / SECTOR_BYTES) as u64;
/// Sectors of a scan at most, more than the drive reads ahead.
const SCAN_SECTORS: u64 = 80;
/// Sectors that commands of the test address at most.
const AREA_SECTORS: u64 = 300;
/// Sectors that half of the commands address.
const HOT_SECTORS: u64 = 12;

/// The number of the table `wanted`: the second one of the program.
const WANTED: TableId = TableId::new(1);

/// The effect of a change of sectors.
#[derive(Clone, Debug)]
struct Change {
    /// The first sectors of its inputs.
    inputs: Vec<u64>,
    guard: Guard,
    /// Each sector, and the position of its value.
    sectors: Vec<(u64, u64)>,
    is_durable: bool,
}

/// A command.
#[derive(Clone, Debug)]
enum Work {
    Change(Change),
    Read {
        lba: u64,
        nlb: u32,
    },
    /// The position of each sector's value that is durable afterwards.
    Flush(Vec<u64>),
    Rules(RuleCommand),
}

/// A command in flight.
#[derive(Clone, Debug)]
struct InFlight {
    work: Work,
    slot: u64,
    /// The step of its submission.
    sent: u64,
    is_aborted: bool,
}

struct FetchCase {
    drive: Option<Controller>,
    host: Host,
    rng: Rng,
    model: Model,
    programs: [Vec<u8>; 2],
    write_buffer: WriteBuffer,
    in_flight_max: usize,
    /// By command.
    in_flight: BTreeMap<u16, InFlight>,
    free_slots: Vec<u64>,
    value: u64,
    counts: FetchCounts,
}

/// Returns the source of one of two programs.
fn source(config: &DriveConfig, program: usize, has_guards: bool) -> String {
    let last_unit = nand(config).geometry.total_pus() - 1;
    let (compare, added) = [(">", 0), ("<", 1_000)][program];
    let unequal = match program {
        0 => "if n.key[i] != header.arg0 { complete not_found }",
        _ => "",
    };
    let guards = match has_guards {
        true => [GUARDED_WRITES, GUARDED_READS, GUARDED_TRIMS].map(|guard| guard.rule(program)),
        false => Default::default(),
    };
    format!(
        "app db {{ units = 0-{last_unit}, spare = 0.01 }}\n\
         table map: addr[db.sectors] durable\ntable wanted: set<u32>[64] volatile\n{RECORDS}{}\
         rule get hops {HOPS}\n  when channel.app == db and header.op == get\n  \
         do fetch n: Node at header.arg1\n     set i = last n.key[0..n.count] <= header.arg0\n     \
         if none i {{ complete not_found }}\n     \
         if n.leaf == 1 {{ {unequal} header.lba = n.child[i]; header.op = read; again }}\n     \
         header.arg1 = n.child[i]; again\n\
         rule scan\n  when channel.app == db and header.op == scan\n  set found = {added}\n  \
         do for s in header.range up to {SCAN_SECTORS} {{ for p: Pair in s {{\n     \
         if p.value % {CLASSES} in wanted and p.value {compare} header.arg0 \
         {{ emit p; found = found + 1 }} }} }}\n     complete ok value found\n\
         {STORE_AND_LOAD}{RECLAIM}",
        guards.concat()
    )
}

/// Returns a small drive, so that it collects garbage.
fn config(rng: &mut Rng) -> DriveConfig {
    let mut config = random_config(rng, false, DataStore::Memory);
    let MediaConfig::Nand(nand) = &mut config.media else { panic!("NAND") };
    (nand.geometry.channels, nand.geometry.pus) =
        (1 + rng.below(2) as u32, 1 + rng.below(2) as u32);
    config.ftl.active_pus = config.ftl.active_pus.min(nand.geometry.total_pus());
    // Commands enter the drive when they are submitted, so that a power cut ends all of them.
    config.controller.fetch_latency = Nanos::ZERO;
    power_on(&mut config);
    config
}

impl FetchCase {
    fn new(seed: u64) -> FetchCase {
        let mut rng = Rng::new(seed ^ 0xfe7c4);
        let mut config = config(&mut rng);
        let has_guards = rng.chance(0.5);
        let programs =
            [0, 1].map(|program| compiled_for(&source(&config, program, has_guards), &config, OPS));
        config.rules = Some(DriveRulesConfig {
            program: programs[0].clone(),
            engines: 1 + rng.below(3) as u16,
            op: Nanos(rng.below(2) * rng.below(100)),
            ops: OPS,
            table_bytes: 1 << 20,
            misses: RuleMissConfig::default(),
            idle_poll: (rng.below(2) == 1).then_some(Nanos(1_000 + rng.below(300_000))),
        });
        let write_buffer = config.write_buffer;
        let mut drive = power_on(&mut config);
        let host = Host::with_queue(&mut drive);
        let sectors = drive.sectors();
        let mut case = FetchCase {
            drive: Some(drive),
            host,
            model: Model::new(sectors, sectors.min(AREA_SECTORS), has_guards),
            programs,
            write_buffer,
            in_flight_max: 1 + rng.below(IN_FLIGHT_MAX as u64) as usize,
            in_flight: BTreeMap::new(),
            free_slots: (0..IN_FLIGHT_MAX as u64).collect(),
            value: 0,
            counts: FetchCounts::default(),
            rng,
        };
        case.set_wanted();
        case
    }

    fn drive(&mut self) -> &mut Controller {
        self.drive.as_mut().expect("a drive with power")
    }

    /// Returns the power cuts of this drive that were injected and have occurred.
    fn injected_cuts(&mut self) -> usize {
        self.drive().faults().iter().filter(|fault| !fault.is_open).count()
    }

    /// Runs the drive at the present instant, and checks completions.
    fn poll(&mut self) {
        let cuts = self.injected_cuts();
        while self.drive.as_mut().expect("a drive").poll(self.host.now) {}
        self.reap();
        if self.injected_cuts() > cuts {
            self.check_after_cut();
        }
    }

    fn reap(&mut self) {
        let (sq, cq) = &mut self.host.admin;
        while let Some(cqe) = cq.pop() {
            cq.release();
            sq.update_head(cqe.sq_head);
            assert_eq!(cqe.status, Status::SUCCESS);
        }
        while let Some(cqe) = self.host.reap() {
            let flight = self.in_flight.remove(&cqe.cid).expect("one completion per command");
            self.model.step += 1;
            self.free_slots.push(flight.slot);
            if !cqe.status.is(Status::POWER_LOSS) {
                self.check(&flight, cqe);
            }
        }
    }

    fn step(&mut self) {
        match self.drive().deadline() {
            Nanos::MAX => {}
            at => self.host.now = self.host.now.max(at),
        }
        self.poll();
    }

    fn wait(&mut self) {
        while !self.in_flight.is_empty() {
            assert!(self.drive().deadline() < Nanos::MAX, "{:?}", self.in_flight);
            self.step();
        }
    }

    fn buffer(&self, slot: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.host.memory.read(slot as usize * BUFFER_BYTES, &mut data);
        data
    }

    /// Checks the result of a command.
    fn check(&mut self, flight: &InFlight, cqe: Cqe) {
        let (status, sent) = (cqe.status, flight.sent);
        match &flight.work {
            Work::Flush(marks) => {
                assert!(status.is_success(), "{status}");
                for (sector, mark) in self.model.sectors.iter_mut().zip(marks) {
                    sector.durable.set_durable(*mark);
                }
            }
            Work::Read { lba, nlb } => {
                let inputs: &[u64] = if *nlb > 1 { &[*lba] } else { &[] };
                if !self.is_guarded(GUARDED_READS, inputs, sent, status) {
                    let data = self.buffer(flight.slot, *nlb as usize * SECTOR_BYTES);
                    let result = CommandResult { status, reply: RuleReply::default(), data };
                    let is_possible = self.model.allows_read(*lba, *nlb, sent, &result);
                    assert!(is_possible, "a read of {nlb} sectors at {lba}: {status}");
                }
            }
            Work::Change(change) => self.check_change(change, sent, status),
            Work::Rules(command) => {
                let reply = RuleReply::from_result(cqe.result, command.buffer_bytes > 0);
                if flight.is_aborted && status == Status::ABORTED {
                    self.counts.aborted += 1;
                    return;
                }
                let bytes = command.buffer_bytes as usize;
                assert!(reply.bytes as usize <= bytes, "{reply:?}");
                let data = self.buffer(flight.slot, bytes);
                self.check_rule_command(command, sent, &CommandResult { status, reply, data });
            }
        }
    }

    fn check_rule_command(&mut self, command: &RuleCommand, sent: u64, result: &CommandResult) {
        let is_possible = match command.kind {
            RuleCommandKind::Get => {
                self.counts.lookups += 1;
                self.counts.found += u64::from(result.status.is_success());
                self.model.allows_lookup(command, sent, result)
            }
            _ => {
                self.counts.scans += 1;
                self.counts.scanned += u64::from(result.reply.bytes);
                self.model.allows_scan(command, sent, result)
            }
        };
        let (status, reply) = (result.status, result.reply);
        assert!(is_possible, "{command:?} ends with {status}, {reply:?}");
        let is_outside = status.is(Status::RULE_BAD_ADDRESS) || status.is(Status::RULE_INDEX);
        for (count, is_counted) in [
            (&mut self.counts.hop_limits, status.is(Status::RULE_HOP_LIMIT)),
            (&mut self.counts.outside, is_outside),
            (&mut self.counts.full, status.is(Status::RULE_OUTPUT_FULL)),
            (&mut self.counts.unreadable, status.is(Status::UNRECOVERED_READ)),
        ] {
            *count += u64::from(is_counted);
        }
    }

    /// Whether a guard ended a command whose inputs begin at these blocks. Its status must be possible.
    fn is_guarded(&mut self, guard: Guard, inputs: &[u64], sent: u64, status: Status) -> bool {
        let GuardEnds { denies, permits, fails } = self.model.guard_ends(guard, inputs, sent);
        if status == Status::RULE_DENIED.do_not_retry() {
            assert!(denies, "a {} of {inputs:?} is denied", guard.op);
            self.counts.denied += 1;
            return true;
        }
        // A read may also fail because of its own sectors.
        if status.is(Status::UNRECOVERED_READ) && fails {
            return true;
        }
        assert!(permits, "a {} of {inputs:?} ends with {status}", guard.op);
        false
    }

    fn check_change(&mut self, change: &Change, sent: u64, status: Status) {
        if self.is_guarded(change.guard, &change.inputs, sent, status) {
            change.sectors.iter().for_each(|(lba, _)| self.model.cancel(*lba));
            return;
        }
        assert!(status.is_success(), "a change of {:?}: {status}", change.inputs);
        for (lba, order) in &change.sectors {
            self.model.complete(*lba, *order, change.is_durable);
        }
    }

    /// Draws a range of sectors of the area, of `max` at most.
    fn range(&mut self, max: u64) -> (u64, u32) {
        let area = self.model.area;
        let span = if self.rng.chance(0.5) { HOT_SECTORS.min(area) } else { area };
        let max = if self.rng.chance(0.6) { 3 } else { max };
        let nlb = 1 + self.rng.below(max.min(span));
        (self.rng.below(span - nlb + 1), nlb as u32)
    }

    /// Draws a range that no command in flight changes.
    fn free_range(&mut self) -> Option<(u64, u32)> {
        let (lba, nlb) = self.range(BUFFER_SECTORS);
        let sectors = &self.model.sectors[lba as usize..][..nlb as usize];
        (!sectors.iter().any(|sector| sector.is_changing)).then_some((lba, nlb))
    }

    /// Submits a command whose buffer is that of a slot.
    fn send(&mut self, mut sqe: Sqe, slot: u64, bytes: usize, work: Work, sent: u64) {
        let first_page = slot * (BUFFER_BYTES / PAGE_BYTES) as u64;
        sqe.set_sgl(self.host.block(first_page, bytes as u32));
        let cid = self.host.submit(sqe);
        self.in_flight.insert(cid, InFlight { work, slot, sent, is_aborted: false });
        self.poll();
    }

    /// Draws a command and submits it.
    fn submit(&mut self) {
        while self.in_flight.len() >= self.in_flight_max {
            self.step();
        }
        self.model.step += 1;
        let kind = self.rng.below(100);
        match kind {
            0..30 => self.submit_change(false),
            30..38 => self.submit_change(true),
            38..42 => {
                let marks = self.model.sectors.iter().map(|s| s.durable.flush_mark()).collect();
                self.submit_work(Sqe::flush(1), 0, Work::Flush(marks));
            }
            42..52 => {
                let (lba, nlb) = self.range(BUFFER_SECTORS);
                let bytes = nlb as usize * SECTOR_BYTES;
                self.submit_work(Sqe::read(1, lba, nlb), bytes, Work::Read { lba, nlb });
            }
            52..85 => self.submit_lookup(),
            _ => self.submit_scan(),
        }
    }

    fn submit_work(&mut self, sqe: Sqe, bytes: usize, work: Work) {
        let slot = self.free_slots.pop().expect("a slot per command");
        let sent = self.model.step;
        self.send(sqe, slot, bytes, work, sent);
    }

    fn submit_lookup(&mut self) {
        let (area, sectors) = (self.model.area, self.model.sectors.len() as u64);
        let nlb = if self.rng.chance(0.9) { 1 } else { 1 + self.rng.below(area.min(8)) };
        let command = RuleCommand {
            arg0: self.rng.below(KEYS + 8),
            arg1: match self.rng.below(30) {
                0 => sectors + self.rng.below(2),
                1..15 => self.rng.below(HOT_SECTORS.min(area)),
                _ => self.rng.below(area),
            },
            buffer_bytes: match self.rng.below(10) {
                0 => self.rng.below(SECTOR_BYTES as u64 * nlb) as u32,
                _ => nlb as u32 * SECTOR_BYTES as u32,
            },
            ..RuleCommand::new(RuleCommandKind::Get, self.rng.below(area - nlb + 1), nlb as u32)
        };
        self.submit_work(command.to_sqe(1), command.buffer_bytes as usize, Work::Rules(command));
    }

    fn submit_scan(&mut self) {
        let (lba, nlb) = self.range(SCAN_SECTORS);
        let command = RuleCommand {
            arg0: self.rng.below(KEYS),
            buffer_bytes: match self.rng.below(4) {
                0 => self.rng.below(600) as u32,
                _ => BUFFER_BYTES as u32,
            },
            ..RuleCommand::new(RuleCommandKind::Scan, lba, nlb)
        };
        self.submit_work(command.to_sqe(1), command.buffer_bytes as usize, Work::Rules(command));
    }

    /// Submits a write, zeros, a mark, or a trim.
    fn submit_change(&mut self, is_trim: bool) {
        let Some((lba, nlb)) = self.free_range() else { return };
        let kind = self.rng.below(if is_trim { 2 } else { 12 });
        let fua = !is_trim && kind > 1 && self.rng.chance(0.2);
        let mut ranges = vec![(lba, nlb)];
        if is_trim
            && kind == 0
            && let Some((second, blocks)) = self.free_range()
            && (second + u64::from(blocks) <= lba || lba + u64::from(nlb) <= second)
        {
            ranges.push((second, blocks));
        }
        let slot = self.free_slots.pop().expect("a slot per command");
        let at = slot as usize * BUFFER_BYTES;
        let (mut sqe, bytes) = match (is_trim, kind) {
            (true, 0) => {
                for (i, (lba, nlb)) in ranges.iter().enumerate() {
                    let range = DsmRange::new(*lba, *nlb).to_bytes();
                    self.host.memory.write(at + i * range.len(), &range);
                }
                let bytes = ranges.len() * DsmRange::BYTES;
                (Sqe::dataset_management(1, ranges.len() as u16, true), bytes)
            }
            (true, _) => (Sqe::write_zeroes(1, lba, nlb, true), 0),
            (false, 0) => (Sqe::write_uncorrectable(1, lba, nlb), 0),
            (false, 1) => (Sqe::write_zeroes(1, lba, nlb, false), 0),
            (false, _) => (Sqe::write(1, lba, nlb, false), nlb as usize * SECTOR_BYTES),
        };
        if fua {
            sqe.set_fua();
        }
        let is_durable = match self.write_buffer {
            WriteBuffer::None => !is_trim,
            WriteBuffer::Volatile { .. } => fua,
            WriteBuffer::PowerLossProtected { .. } => true,
        };
        let mut sectors = Vec::new();
        for (slba, nlb) in &ranges {
            for lba in *slba..slba + u64::from(*nlb) {
                let value = match (is_trim, kind) {
                    (false, 0) => UNREADABLE,
                    (true, _) | (false, 1) => 0,
                    (false, _) => {
                        self.value += 1;
                        let bytes = self.model.bytes_of(self.value);
                        let offset = (lba - slba) as usize * SECTOR_BYTES;
                        self.host.memory.write(at + offset, &bytes);
                        self.value
                    }
                };
                sectors.push((lba, self.model.send(lba, value)));
            }
        }
        let guard = if is_trim { GUARDED_TRIMS } else { GUARDED_WRITES };
        let inputs = ranges.iter().map(|(lba, _)| *lba).collect();
        let change = Change { inputs, guard, sectors, is_durable };
        let sent = self.model.step;
        self.send(sqe, slot, bytes, Work::Change(change), sent);
    }

    /// Aborts a command of rules.
    fn abort(&mut self) {
        let of_rules = |flight: &InFlight| matches!(flight.work, Work::Rules(_));
        let selected = self.in_flight.iter_mut().find(|(_, flight)| of_rules(flight));
        let Some((cid, flight)) = selected else { return };
        flight.is_aborted = true;
        let mut sqe = AdminCommand::Abort { sqid: 1, cid: *cid }.to_sqe();
        self.host.cid = self.host.cid.wrapping_add(1);
        sqe.cid = self.host.cid.into();
        let (sq, _) = &mut self.host.admin;
        sq.push(&sqe).expect("space in the queue");
        sq.ring();
        self.poll();
    }

    /// The host changes the keys of `wanted`, by one command.
    fn set_wanted(&mut self) {
        let wanted = self.rng.next_u64() & self.rng.next_u64() & ((1 << CLASSES) - 1);
        self.model.step += 1;
        let before = self.model.wanted();
        let edits: Vec<RuleTableEdit> = (0..CLASSES)
            .filter(|class| (before ^ wanted) >> class & 1 == 1)
            .map(|class| match wanted >> class & 1 {
                1 => RuleTableEdit::Add { key: class },
                _ => RuleTableEdit::Remove { key: class },
            })
            .collect();
        self.drive().edit_rule_table(WANTED, &edits).expect("keys that fit");
        self.model.set_wanted(wanted);
    }

    fn install(&mut self) {
        let program = self.rng.below(2) as usize;
        let (now, bytes) = (self.host.now, self.programs[program].clone());
        let of_rules = |flight: &&InFlight| matches!(flight.work, Work::Rules(_));
        self.counts.restarted += self.in_flight.values().filter(of_rules).count() as u64;
        self.model.step += 1;
        self.drive().install_rules(now, &bytes).expect("a program that fits");
        self.model.install(program);
        self.poll();
        if self.rng.chance(0.8) {
            self.set_wanted();
        }
    }

    /// The power was cut, and the drive has recovered: its sectors are read.
    fn check_after_cut(&mut self) {
        self.counts.cuts += 1;
        assert!(self.in_flight.is_empty(), "{:?}", self.in_flight);
        self.model.step += 1;
        self.model.set_wanted(0);
        assert_eq!(self.drive().check_invariants(), Ok(()));
        let mut lba = 0;
        while lba < self.model.area {
            let nlb = BUFFER_SECTORS.min(self.model.area - lba) as u32;
            match self.read_now(lba, nlb) {
                Some(data) => {
                    for (lba, bytes) in (lba..).zip(data.chunks(SECTOR_BYTES)) {
                        self.found_after_cut(lba, Some(bytes));
                    }
                }
                None => {
                    for lba in lba..lba + u64::from(nlb) {
                        let data = self.read_now(lba, 1);
                        self.found_after_cut(lba, data.as_deref());
                    }
                }
            }
            lba += u64::from(nlb);
        }
        self.set_wanted();
    }

    /// Reads sectors that no guard is for. Returns `None` if one of them is unreadable.
    fn read_now(&mut self, lba: u64, nlb: u32) -> Option<Vec<u8>> {
        let bytes = nlb as usize * SECTOR_BYTES;
        let mut sqe = Sqe::read(1, lba, nlb);
        sqe.set_sgl(self.host.block(0, bytes as u32));
        let cid = self.host.submit(sqe);
        let (drive, host) = (self.drive.as_mut().expect("a drive"), &mut self.host);
        let cqe = loop {
            while drive.poll(host.now) {}
            if let Some(cqe) = host.reap() {
                break cqe;
            }
            // An idle drive may collect for ever.
            host.now = host.now.max(drive.deadline());
        };
        assert_eq!(cqe.cid, cid);
        if cqe.status.is(Status::UNRECOVERED_READ) {
            return None;
        }
        assert!(cqe.status.is_success(), "{}", cqe.status);
        let mut data = vec![0; bytes];
        self.host.memory.read(0, &mut data);
        Some(data)
    }

    fn found_after_cut(&mut self, lba: u64, bytes: Option<&[u8]>) {
        let value = bytes.map_or(UNREADABLE, Contents::value_of);
        let sector = &self.model.sectors[lba as usize];
        assert!(
            sector.durable.allows(value),
            "sector {lba} has {value} after a power cut: {sector:?}"
        );
        if let Some(bytes) = bytes {
            assert!(self.model.bytes_of(value) == bytes, "sector {lba} mixes two values");
        }
        self.model.reset(lba, value);
    }

    /// Cuts the power: of a drive whose hosts stay, at once or after some operations of the media, or
    /// of one that is powered on again.
    fn cut_power(&mut self) {
        if self.rng.chance(0.6) {
            let after_ops = if self.rng.chance(0.5) { 0 } else { 1 + self.rng.below(8) };
            let (now, cuts) = (self.host.now, self.counts.cuts);
            let before = self.injected_cuts();
            self.drive().inject_fault(now, Fault::PowerCut { after_ops }).expect("a fault");
            if self.injected_cuts() > before {
                self.reap();
                self.check_after_cut();
            }
            // A cut that waits for operations needs some.
            let mut steps = 0;
            while self.counts.cuts == cuts {
                self.submit();
                if self.counts.cuts == cuts {
                    self.step();
                }
                steps += 1;
                assert!(steps < 10_000, "no operation ends");
            }
            return;
        }
        self.poll();
        let mut drive = self.drive.take().expect("a drive");
        self.counts.reclaimed += drive.ftl().expect("an FTL").stats().lines_reclaimed;
        loop {
            drive = drive.power_cut().power_on().expect("the drive recovers");
            if self.rng.chance(0.7) {
                break;
            }
            self.counts.cuts += 1;
        }
        self.in_flight.clear();
        self.free_slots = (0..IN_FLIGHT_MAX as u64).collect();
        let now = self.host.now;
        self.host = Host::with_queue(&mut drive);
        self.host.now = self.host.now.max(now);
        self.drive = Some(drive);
        self.check_after_cut();
    }

    fn run(&mut self) {
        let eager = 1 + self.rng.below(6);
        for _ in 0..60 + self.rng.below(200) {
            match self.rng.below(100) {
                0..3 => self.set_wanted(),
                3..5 => self.install(),
                5..8 => self.abort(),
                _ => self.submit(),
            }
            for _ in 0..self.rng.below(eager) {
                self.step();
            }
            if self.rng.chance(0.02) {
                self.cut_power();
            }
            assert_eq!(self.drive().check_command_invariants(), Ok(()));
        }
        self.wait();
        self.cut_power();
        assert_eq!(self.drive().check_invariants(), Ok(()));
    }
}

#[test]
fn results_are_those_of_sectors_between_submission_and_completion() {
    let replay = "cargo test -p sluice-controller --test suite oracle::fetching_rules";
    let run = run_seeds(600, &REGRESSIONS, replay, |seed| {
        let mut case = FetchCase::new(seed);
        case.run();
        case.counts
    });
    let mut sum = FetchCounts::default();
    run.results.iter().for_each(|counts| sum.add(counts));
    println!("{sum:?}");
    let seen = sum.all();
    assert!(run.is_single || seen.iter().all(|count| *count > 0), "{sum:?}");
}
