//! Commands for rules: their fields, statuses, values and buffers.

use controller::{AccessPolicy, AccessScope, Controller};
use mem::PAGE_BYTES;
use nvme::{
    AdminCommand, CommandEffects, RULE_BUFFER_BYTES_MAX, RuleCommand, RuleCommandKind, RuleReply,
    SglDescriptor, Sqe, Status, log_page,
};

use super::harness::{STORE_AND_LOAD, ruled};
use crate::block_commands::harness::{Bench, config};
use crate::hostile::host::Host;

/// Executes a command whose buffer is at the begin of the host's memory.
pub(super) fn execute(bench: &mut Bench, command: RuleCommand) -> (Status, RuleReply) {
    let cqe = bench.io(command.to_sqe(1), command.buffer_bytes as usize);
    bench.drive.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
    (cqe.status, RuleReply::from_result(cqe.result, command.buffer_bytes > 0))
}

/// Returns a rule for the commands of an operation.
pub(super) fn rule(op: &str, action: &str) -> String {
    format!("rule on_{op} priority 3 when channel.app == db and header.op == {op}\n  do {action}\n")
}

#[test]
fn rules_see_the_fields_and_end_the_command_with_a_value() {
    let sum = "complete ok value header.lba + 10 * header.sectors + 1000 * header.arg0 + \
        100000 * header.arg1 + 10000000 * header.buffer";
    let rules: String =
        ["scan", "get", "ack", "user0", "user1", "user2", "user3"].map(|op| rule(op, sum)).concat();
    let mut bench = Bench::new(ruled(&format!("{rules}{STORE_AND_LOAD}")));
    for (kind, _) in RuleCommandKind::ALL {
        let (slba, nlb, arg0, arg1) = (7, 3, 4, 5);
        let command = RuleCommand { kind, slba, nlb, arg0, arg1, buffer_bytes: 0 };
        let expected = RuleReply { value: 504_037, bytes: 0 };
        assert_eq!(execute(&mut bench, command), (Status::SUCCESS, expected), "{kind:?}");
        if kind.returns_data() {
            let with_buffer = RuleCommand { buffer_bytes: 60, ..command };
            let expected = RuleReply { value: 600_504_037, bytes: 0 };
            assert_eq!(execute(&mut bench, with_buffer), (Status::SUCCESS, expected), "{kind:?}");
        }
    }
    let large = RuleCommand::new(RuleCommandKind::Get, 0, 1);
    let large = RuleCommand { arg0: 1 << 40, ..large };
    assert_eq!(execute(&mut bench, large).1.value, 10 + 1000 * (1 << 40));
    // A command with a buffer has 32 bits for the value.
    let limited = RuleCommand { buffer_bytes: 4, ..large };
    assert_eq!(execute(&mut bench, limited).1.value, u64::from(u32::MAX));
}

#[test]
fn a_command_can_end_as_a_read() {
    let get = rule("get", "header.lba = header.arg0; header.op = read; again")
        .replace("priority 3", "priority 3 hops 2");
    let mut bench = Bench::new(ruled(&format!("{get}{STORE_AND_LOAD}")));
    bench.write(20, 4, 4096, 7);
    for is_flushed in [false, true] {
        if is_flushed {
            bench.flush();
        }
        let command = RuleCommand::new(RuleCommandKind::Get, 0, 2);
        let command = RuleCommand { arg0: 21, buffer_bytes: 8192, ..command };
        let before = bench.drive.stats().bytes_read;
        bench.host.memory.fill(0, 4 * PAGE_BYTES, 0xee);
        let reply = RuleReply { value: 0, bytes: 8192 };
        assert_eq!(execute(&mut bench, command), (Status::SUCCESS, reply));
        let mut data = vec![0; 3 * PAGE_BYTES];
        bench.host.memory.read(0, &mut data);
        let pages: Vec<u8> = data.chunks(PAGE_BYTES).map(|page| page[17]).collect();
        assert_eq!(pages, [8, 9, 0xee]);
        assert_eq!(bench.drive.stats().bytes_read, before + 8192);
        // A buffer that is too small is not written.
        for buffer_bytes in [0, 4096, 8188] {
            let small = RuleCommand { buffer_bytes, ..command };
            let status = Status::RULE_OUTPUT_FULL.do_not_retry();
            assert_eq!(execute(&mut bench, small), (status, RuleReply::default()));
        }
        // The map has no such blocks.
        let end = bench.drive.sectors();
        for arg0 in [end + 100_000, u64::MAX] {
            let (status, _) = execute(&mut bench, RuleCommand { arg0, ..command });
            assert!(status.is(Status::RULE_INDEX), "{status}");
        }
        let (status, _) = execute(&mut bench, RuleCommand { arg0: end - 1, ..command });
        assert!(status.is(Status::RULE_INDEX) || status.is(Status::LBA_OUT_OF_RANGE), "{status}");
    }
}

#[test]
fn ranges_and_buffers_are_checked_before_the_rules() {
    let mut bench = Bench::new(ruled(&format!("{}{STORE_AND_LOAD}", rule("scan", "complete ok"))));
    let end = bench.drive.sectors();
    let inputs = |bench: &Bench| bench.drive.stats().rules.expect("rules").inputs;
    for (slba, nlb) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (0, 65_536)] {
        let command = RuleCommand::new(RuleCommandKind::Scan, slba, nlb);
        let (status, _) = execute(&mut bench, command);
        assert_eq!(status, Status::LBA_OUT_OF_RANGE.do_not_retry(), "{nlb} blocks from {slba}");
    }
    let command = RuleCommand::new(RuleCommandKind::Scan, 0, 1);
    let with = |buffer_bytes| RuleCommand { buffer_bytes, ..command }.to_sqe(1);
    // A descriptor that is too short, one that is no memory of the host, and misaligned pages.
    let mut short = with(8192);
    short.set_sgl(bench.host.block(0, 8191));
    let mut foreign = with(8192);
    foreign.set_sgl(SglDescriptor::DataBlock { address: 1 << 60, length: 8192 });
    let mut misaligned = with(8192);
    misaligned.set_prp(bench.host.at.0 + 2, 0);
    let mut second = with(8192);
    second.set_prp(bench.host.at.0, bench.host.at.0 + 4100);
    let mut large = with(4096);
    large.cdw13 = (RULE_BUFFER_BYTES_MAX + 1).into();
    for (sqe, status) in [
        (short, Status::SGL_LENGTH_INVALID),
        (foreign, Status::DATA_TRANSFER_ERROR),
        (misaligned, Status::PRP_OFFSET_INVALID),
        (second, Status::PRP_OFFSET_INVALID),
        (large, Status::INVALID_FIELD),
    ] {
        assert_eq!(bench.host.io(&mut bench.drive, sqe).status, status, "{sqe:?}");
    }
    assert_eq!(inputs(&bench), 0);
    assert_eq!(execute(&mut bench, command).0, Status::SUCCESS);
    assert_eq!(inputs(&bench), 1);
}

#[test]
fn a_command_without_a_rule_is_a_miss() {
    let mut bench = Bench::new(ruled(STORE_AND_LOAD));
    let (slba, nlb) = (5, 2);
    for (kind, _) in RuleCommandKind::ALL {
        let (status, _) = execute(&mut bench, RuleCommand::new(kind, slba, nlb));
        assert_eq!(status, Status::RULE_MISS.do_not_retry(), "{kind:?}");
    }
    let missed = bench.drive.stats().rules.expect("rules").missed;
    let named: Vec<&str> = missed.iter().map(|record| record.op.as_str()).collect();
    assert_eq!(named, ["scan", "get", "ack", "user0", "user1", "user2", "user3"]);
    let blocks =
        missed.iter().all(|record| (record.misses, record.lba, record.blocks) == (1, 5, 2));
    assert!(blocks, "{missed:?}");
}

/// Returns the effects of the I/O command with an opcode.
fn effects(drive: &mut Controller, opcode: u8) -> u32 {
    let mut host = Host::with_queue(drive);
    let (lid, bytes, nsid) = (log_page::EFFECTS, CommandEffects::BYTES as u64, u32::MAX);
    let mut sqe = AdminCommand::GetLogPage { lid, nsid, bytes, offset: 0, retain: false }.to_sqe();
    sqe.set_sgl(host.block(0, bytes as u32));
    assert_eq!(host.admin(drive, sqe).status, Status::SUCCESS);
    let mut entry = [0; 4];
    host.memory.read(1024 + 4 * usize::from(opcode), &mut entry);
    u32::from_le_bytes(entry)
}

#[test]
fn drives_without_rules_and_hosts_of_a_part_have_no_such_commands() {
    let mut bench = Bench::new(config());
    let mut ruled_drive = Controller::new(ruled(STORE_AND_LOAD)).expect("a drive");
    for (kind, opcode) in RuleCommandKind::ALL {
        let mut sqe = RuleCommand::new(kind, 0, 1).to_sqe(1);
        assert_eq!(bench.io(sqe, 0).status, Status::INVALID_OPCODE);
        sqe.cdw12 = u32::MAX.into();
        assert_eq!(bench.io(sqe, 0).status, Status::INVALID_OPCODE);
        assert_eq!(effects(&mut bench.drive, opcode), 0);
        assert_eq!(effects(&mut ruled_drive, opcode), CommandEffects::SUPPORTED, "{kind:?}");
    }
    let port = transport::Port::new().expect("a port");
    let scope = AccessScope::Sectors { first: 0, count: 100 };
    ruled_drive.attach_as(&port, AccessPolicy::for_scope(scope)).expect("a host of a part");
    let mut host = Host::on_port(port);
    let rings = host.create(&mut ruled_drive, 1, 8, nvme::QueuePriority::Medium);
    host.io = Some(rings);
    let sqe: Sqe = RuleCommand::new(RuleCommandKind::Scan, 0, 1).to_sqe(1);
    let status = host.io(&mut ruled_drive, sqe).status;
    assert_eq!(status, Status::INVALID_OPCODE.do_not_retry());
}
