//! Commands that no rule matches: parked, released by another program, rejected, aborted, too many.

// guarantee: B-115

use controller::{
    AccessPolicy, AccessScope, Controller, DriveConfig, DriveRulesConfig, DriveRulesError,
    RuleMissConfig, RuleMissRecord,
};
use nvme::{AdminCommand, CopyRange, Cqe, QueuePriority, RuleMissLog, Sqe, Status, log_page};
use time::{Component, Nanos};

use super::harness::{APP, RECLAIM, STORE_AND_LOAD, compiled, ruled};
use crate::block_commands::harness::{Bench, RANGES_PAGE, config};
use crate::hostile::host::{Host, block_config};

const TIMEOUT: Nanos = Nanos(1_000_000);
const LOAD: &str = "rule load\n  when channel.app == db and header.read\n  \
    do header.addr = map[header.lba]; insert lun\n";
const MISSED: Status = Status::RULE_MISS.do_not_retry();

fn parking(rules: &str, parked_max: u32) -> DriveConfig {
    let mut config = ruled(rules);
    let rules = config.rules.take().expect("rules");
    let misses = RuleMissConfig { timeout: TIMEOUT, parked_max };
    DriveConfig { rules: Some(DriveRulesConfig { misses, ..rules }), ..config }
}

pub(super) fn poll(bench: &mut Bench) {
    while bench.drive.poll(bench.host.now) {}
    bench.drive.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
}

/// Executes an admin command without time.
pub(super) fn admin(bench: &mut Bench, sqe: Sqe) -> Cqe {
    let host = &mut bench.host;
    host.cid += 1;
    let (sq, _) = &mut host.admin;
    sq.push(&Sqe { cid: host.cid.into(), ..sqe }).unwrap();
    sq.ring();
    while bench.drive.poll(host.now) {}
    let (sq, cq) = &mut host.admin;
    let cqe = cq.pop().expect("the command completes at once");
    cq.release();
    sq.update_head(cqe.sq_head);
    cqe
}

/// Sends a part of a program from a page of the host's memory.
fn download(bench: &mut Bench, offset: u32, part: &[u8]) -> Status {
    bench.host.memory.write(8 * 4096, part);
    let bytes = part.len() as u64;
    let mut sqe = AdminCommand::RuleDownload { offset, bytes }.to_sqe();
    sqe.set_sgl(bench.host.block(8, bytes as u32));
    admin(bench, sqe).status
}

fn install(bench: &mut Bench, rules: &str) -> Cqe {
    let program = compiled(&format!("{APP}{rules}"), &config());
    for (at, part) in program.chunks(100).enumerate() {
        assert_eq!(download(bench, 100 * at as u32, part), Status::SUCCESS);
    }
    admin(bench, AdminCommand::RuleInstall.to_sqe())
}

fn write(bench: &mut Bench, lba: u64) -> u16 {
    let mut sqe = Sqe::write(1, lba, 1, false);
    sqe.set_sgl(bench.host.block(0, 4096));
    let cid = bench.host.submit(sqe);
    poll(bench);
    cid
}

/// Returns the completions until nothing is pending, with the times since `from`.
pub(super) fn ends(bench: &mut Bench, from: Nanos) -> Vec<(u16, Status, Nanos)> {
    let mut ends = Vec::new();
    loop {
        poll(bench);
        while let Some(cqe) = bench.host.reap() {
            ends.push((cqe.cid, cqe.status, bench.host.now.since(from)));
        }
        match bench.drive.deadline() {
            Nanos::MAX => return ends,
            at => bench.host.now = bench.host.now.max(at),
        }
    }
}

fn record(drive: &Controller, op: &str) -> RuleMissRecord {
    let stats = drive.stats().rules.expect("a drive with rules");
    stats.missed.into_iter().find(|record| record.op == op).expect("a class of misses")
}

#[test]
fn a_command_that_no_rule_matches_ends_after_the_timeout() {
    let mut bench = Bench::new(parking(LOAD, 4));
    let from = bench.host.now;
    let first = write(&mut bench, 5);
    bench.host.now += Nanos(10);
    let second = write(&mut bench, 6);
    assert!(bench.host.reap().is_none());
    assert_eq!(
        ends(&mut bench, from),
        [(first, MISSED, TIMEOUT), (second, MISSED, TIMEOUT + Nanos(10))]
    );
    let record = record(&bench.drive, "write");
    assert_eq!((record.misses, record.timed_out, record.parked), (2, 2, 0));
    assert_eq!((record.lba, record.blocks), (6, 1));
    assert_eq!((record.first_at, record.last_at), (from, from + Nanos(10)));
}

#[test]
fn a_new_program_releases_commands_in_the_order_of_their_misses() {
    let mut bench = Bench::new(parking(LOAD, 64));
    // One event for all misses until the host has read the log.
    let event = AdminCommand::AsyncEventRequest.to_sqe();
    bench.host.admin.0.push(&Sqe { cid: 9000.into(), ..event }).unwrap();
    bench.host.admin.0.ring();
    let from = bench.host.now;
    let missed: Vec<u16> = (0..8)
        .map(|lba| {
            bench.host.memory.fill(0, 4096, 40 + lba as u8);
            write(&mut bench, lba)
        })
        .collect();
    let (_, cq) = &mut bench.host.admin;
    let reported = cq.pop().expect("an event");
    cq.release();
    let (kind, page) = (reported.result & 7, reported.result >> 16 & 0xff);
    assert_eq!((reported.cid, kind, page), (9000, 7, u64::from(log_page::RULE_MISSES)));
    let (lid, bytes) = (log_page::RULE_MISSES, RuleMissLog::BYTES as u64);
    let read = AdminCommand::GetLogPage { lid, nsid: u32::MAX, bytes, offset: 0, retain: false };
    let mut sqe = read.to_sqe();
    sqe.set_sgl(bench.host.block(8, bytes as u32));
    assert_eq!(admin(&mut bench, sqe).status, Status::SUCCESS);
    let mut log = [0; RuleMissLog::BYTES];
    bench.host.memory.read(8 * 4096, &mut log);
    let [_, writes, others @ ..] = RuleMissLog::from_bytes(&log).0;
    assert_eq!((writes.misses.get(), writes.parked.get(), writes.slba.get()), (8, 8, 7));
    assert!(others.iter().all(|entry| entry.misses.get() == 0));

    // A program without a rule for writes leaves them parked, until the time that they had.
    bench.host.now += Nanos(500);
    assert_eq!(install(&mut bench, LOAD).result, 8);
    assert_eq!(record(&bench.drive, "write").misses, 8, "a command misses once");
    let installed = install(&mut bench, &format!("{STORE_AND_LOAD}{RECLAIM}"));
    assert_eq!((installed.status, installed.result), (Status::SUCCESS, 0));
    // All buffered writes have the data that the host's page has now.
    let order: Vec<u16> = ends(&mut bench, from).iter().map(|(cid, ..)| *cid).collect();
    assert_eq!(order, missed);
    assert_eq!(record(&bench.drive, "write").released, 8);
    assert_eq!(bench.read(0, 8, 4096), Ok(vec![47; 8]));
    let stats = bench.drive.stats().rules.unwrap();
    assert_eq!((stats.installations, stats.misses), (2, 8));
    let names: Vec<&str> = stats.rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["store", "load", "reclaim"]);
    // The program stays after a power cut.
    bench.flush();
    let mut bench = bench.restart();
    bench.write(3, 1, 4096, 77);
    assert_eq!(bench.read(3, 1, 4096), Ok(vec![77]));
}

#[test]
fn a_copy_goes_on_at_the_input_that_missed() {
    let load = LOAD.replace("rule load", "rule first");
    let mut bench = Bench::new(parking(&format!("{STORE_AND_LOAD}{RECLAIM}"), 4));
    bench.write(1, 2, 4096, 30);
    assert_eq!(install(&mut bench, &load).status, Status::SUCCESS);
    let ranges = [CopyRange::new(1, 1), CopyRange::new(2, 1)];
    for (at, range) in ranges.into_iter().enumerate() {
        let page = RANGES_PAGE as usize * 4096;
        bench.host.memory.write(page + at * CopyRange::BYTES, &range.to_bytes());
    }
    let mut sqe = Sqe::copy(1, 10, 2);
    sqe.set_sgl(bench.host.block(RANGES_PAGE, 2 * CopyRange::BYTES as u32));
    let cid = bench.host.submit(sqe);
    poll(&mut bench);
    assert_eq!((record(&bench.drive, "write").parked, record(&bench.drive, "write").lba), (1, 10));
    let store = STORE_AND_LOAD.replace("rule load", "rule reload");
    assert_eq!(install(&mut bench, &store).status, Status::SUCCESS);
    let from = bench.host.now;
    let ends = ends(&mut bench, from);
    assert_eq!((ends.len(), ends[0].0, ends[0].1), (1, cid, Status::SUCCESS));
    let rules = bench.drive.stats().rules.unwrap().rules;
    let matches: Vec<(&str, u64)> =
        rules.iter().map(|rule| (rule.name.as_str(), rule.matches)).collect();
    assert_eq!(matches, [("store", 1), ("reload", 0)], "the sources were decided before");
    assert_eq!(bench.read(10, 2, 4096), Ok(vec![30, 31]));
}

#[test]
fn a_command_in_an_engine_is_matched_with_the_new_program() {
    // Operations are counted for rules that are tried.
    let ninety =
        "rule ninety when channel.app == db and header.write and header.lba == 99 do complete ok\n";
    let mut config = parking(&format!("{LOAD}{ninety}"), 4);
    config.rules.as_mut().expect("rules").op = Nanos(1000);
    let mut bench = Bench::new(config);
    let from = bench.host.now;
    let cid = write(&mut bench, 5);
    assert!(bench.drive.stats().rules.unwrap().missed.is_empty(), "the engine still works");
    assert_eq!(install(&mut bench, STORE_AND_LOAD).status, Status::SUCCESS);
    let ends = ends(&mut bench, from);
    assert_eq!((ends.len(), ends[0].0, ends[0].1), (1, cid, Status::SUCCESS));
    let stats = bench.drive.stats().rules.unwrap();
    assert_eq!((stats.misses, stats.rules[0].matches), (0, 1));
}

#[test]
fn parked_commands_are_rejected_aborted_and_limited() {
    let mut bench = Bench::new(parking(LOAD, 3));
    let cids: Vec<u16> = (0..4).map(|lba| write(&mut bench, lba)).collect();
    let refused = bench.host.reap().expect("the fourth is too many");
    assert_eq!((refused.cid, refused.status), (cids[3], Status::RULE_MISS), "it may be retried");

    let abort = |cid| AdminCommand::Abort { sqid: 1, cid }.to_sqe();
    assert_eq!(admin(&mut bench, abort(cids[1])).result, 0);
    let aborted = bench.host.reap().expect("an aborted command");
    assert_eq!((aborted.cid, aborted.status), (cids[1], Status::ABORTED));
    assert_eq!(admin(&mut bench, abort(cids[1])).result, 1, "it has ended");

    let reject = |op| AdminCommand::RuleReject { op }.to_sqe();
    assert_eq!(admin(&mut bench, reject(Some(0))).result, 0, "no read is parked");
    let unknown = admin(&mut bench, reject(Some(7))).status;
    assert_eq!(unknown, Status::INVALID_FIELD.do_not_retry());
    assert_eq!(admin(&mut bench, reject(Some(1))).result, 2);
    for cid in [cids[0], cids[2]] {
        let rejected = bench.host.reap().expect("a rejected command");
        assert_eq!((rejected.cid, rejected.status), (cid, MISSED));
    }
    assert_eq!(admin(&mut bench, reject(None)).result, 0, "a release for misses that are over");

    // Another queue has a limit of its own.
    let rings = bench.host.create(&mut bench.drive, 2, 16, QueuePriority::Medium);
    for lba in 0..3 {
        write(&mut bench, lba);
    }
    let first = bench.host.io.replace(rings);
    write(&mut bench, 9);
    assert!(bench.host.reap().is_none());
    // The deletion of a queue ends its commands.
    let delete = AdminCommand::DeleteSq { qid: 2 }.to_sqe();
    assert_eq!(admin(&mut bench, delete).status, Status::SUCCESS);
    bench.host.io = first;
    let cut = controller::Fault::PowerCut { after_ops: 0 };
    bench.drive.inject_fault(bench.host.now, cut).expect("a power cut");
    poll(&mut bench);
    for _ in 0..3 {
        assert_eq!(bench.host.reap().expect("a lost command").status, Status::POWER_LOSS);
    }
    let record = record(&bench.drive, "write");
    let RuleMissRecord { misses, rejected, refused, aborted, parked, .. } = record;
    assert_eq!((misses, rejected, refused, aborted, parked), (8, 2, 1, 5, 0));
    assert_eq!(bench.drive.deadline(), Nanos::MAX, "no timeout is left");
}

#[test]
fn programs_that_are_not_whole_or_not_accepted_change_nothing() {
    let mut bench = Bench::new(parking(STORE_AND_LOAD, 4));
    let program = compiled(&format!("{APP}{LOAD}"), &config());
    let (len, refused) = (program.len(), Status::RULE_PROGRAM.do_not_retry());
    let invalid = Status::INVALID_FIELD.do_not_retry();
    let install = AdminCommand::RuleInstall.to_sqe();
    assert_eq!(admin(&mut bench, install).status, refused, "nothing was sent");
    // Cut short.
    assert_eq!(download(&mut bench, 0, &program[..len - 1]), Status::SUCCESS);
    assert_eq!(admin(&mut bench, install).status, refused);
    // A gap, a part past the maximum, and one that is too long.
    assert_eq!(download(&mut bench, 0, &program[..50]), Status::SUCCESS);
    assert_eq!(download(&mut bench, 60, &program[60..]), invalid);
    assert_eq!(download(&mut bench, u32::MAX, &program), invalid);
    let long = AdminCommand::RuleDownload { offset: 0, bytes: 1 << 32 }.to_sqe();
    assert_eq!(admin(&mut bench, long).status, invalid);
    // Parts that are sent again, and twice.
    assert_eq!(download(&mut bench, 40, &program[40..]), Status::SUCCESS);
    assert_eq!(download(&mut bench, 40, &program[40..]), Status::SUCCESS);
    // A damaged byte.
    assert_eq!(download(&mut bench, 70, &[!program[70]]), Status::SUCCESS);
    assert_eq!(admin(&mut bench, install).status, refused);
    // A program that needs what the drive does not execute.
    let other_stream = format!(
        "{APP}{LOAD}rule keep when channel.app == db and header.write\n  \
        set map[header.lba] = next_addr(db.gc)\n  do header.addr = map[header.lba]; insert lun\n"
    );
    let other_stream = compiled(&other_stream, &config());
    assert_eq!(download(&mut bench, 0, &other_stream), Status::SUCCESS);
    assert_eq!(admin(&mut bench, install).status, refused);
    let stats = bench.drive.stats().rules.unwrap();
    assert_eq!((stats.installations, stats.rules.len()), (0, 2));
    bench.write(3, 1, 4096, 9);
    // The parts of a program are lost with the power.
    assert_eq!(download(&mut bench, 0, &program), Status::SUCCESS);
    bench.flush();
    let mut bench = bench.restart();
    assert_eq!(admin(&mut bench, install).status, refused);
    assert_eq!(bench.read(3, 1, 4096), Ok(vec![9]));
}

#[test]
fn a_host_of_a_part_of_the_drive_does_not_control_its_rules() {
    let mut bench = Bench::new(parking(LOAD, 4));
    let scope = AccessScope::Sectors { first: 20, count: 30 };
    let port = transport::Port::new().unwrap();
    bench.drive.attach_as(&port, AccessPolicy::for_scope(scope)).unwrap();
    let mut part = Host::on_port(port);
    part.io = Some(part.create(&mut bench.drive, 1, 16, QueuePriority::Medium));
    std::mem::swap(&mut part, &mut bench.host);
    let event = AdminCommand::AsyncEventRequest.to_sqe();
    bench.host.admin.0.push(&Sqe { cid: 9000.into(), ..event }).unwrap();
    bench.host.admin.0.ring();
    let cid = write(&mut bench, 1);
    assert!(bench.host.admin.1.pop().is_none(), "no event");
    for command in [
        AdminCommand::RuleDownload { offset: 0, bytes: 16 },
        AdminCommand::RuleInstall,
        AdminCommand::RuleReject { op: None },
    ] {
        let mut sqe = command.to_sqe();
        sqe.set_sgl(bench.host.block(8, 16));
        assert_eq!(admin(&mut bench, sqe).status, Status::INVALID_OPCODE, "{}", command.name());
    }
    assert!(bench.host.reap().is_none(), "the command is parked");
    // The host of the whole drive ends it.
    std::mem::swap(&mut part, &mut bench.host);
    assert_eq!(admin(&mut bench, AdminCommand::RuleReject { op: None }.to_sqe()).result, 1);
    let ended = part.reap().expect("a rejected command");
    assert_eq!((ended.cid, ended.status), (cid, MISSED));
}

#[test]
fn a_drive_without_rules_has_none_of_the_commands() {
    let mut bench = Bench::new(block_config());
    let (lid, bytes) = (log_page::RULE_MISSES, 128);
    let log = AdminCommand::GetLogPage { lid, nsid: 0, bytes, offset: 0, retain: true };
    for (command, status) in [
        (AdminCommand::RuleDownload { offset: 0, bytes: 16 }, Status::INVALID_OPCODE),
        (AdminCommand::RuleInstall, Status::INVALID_OPCODE),
        (AdminCommand::RuleReject { op: None }, Status::INVALID_OPCODE),
        (log, Status::INVALID_LOG_PAGE),
    ] {
        let mut sqe = command.to_sqe();
        sqe.set_sgl(bench.host.block(8, 128));
        assert_eq!(admin(&mut bench, sqe).status, status, "{}", command.name());
    }
    assert_eq!(bench.drive.rule_limits(), Err(DriveRulesError::NoRules));
    assert_eq!(bench.drive.install_rules(Nanos::ZERO, &[]), Err(DriveRulesError::NoRules));
    assert_eq!(bench.drive.reject_rule_misses(None), Err(DriveRulesError::NoRules));
}
